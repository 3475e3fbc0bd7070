//! One node with two SRP ports and one BRP port on two reactors, and hosts with paths through several of them to the same
//! volumes: reservations, preemption, resets, aborts, COMPARE AND WRITE among plain writes, volumes that are hidden, deleted,
//! put back and resized, hosts that stop and go on later.
//!
//! The [`judge`] looks at the medium itself: a block that lands must be of a write that is not over, of a nexus that
//! could write at a time after every end that was promised meanwhile, and of the volume that has the place. A model of
//! SPC ([`spc`], [`orders`]) says what each nexus may do, and which unit attentions are due ([`attentions`]).

mod attentions;
mod book;
mod host;
mod judge;
mod medium;
mod node;
mod orders;
mod path;
mod spc;
mod still;

use crate::srp::Style;
use crate::suites::scene::{check_whole, pool};
use crate::{Pass, Run, Wrong};
use host::{Bio, Host, Way};
use judge::Judge;
use medium::PLACE;
use node::{BRP, Node, NodeConfig, initiator_id, port_id};
use path::{Path, PathConfig};
use spc::Pair;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use still::{STILL, stand_still};
use weir_base::{MICROS, MILLIS, Nanos, Prng, SECONDS};
use weir_initiator_brp::{Session, SessionConfig, Variant};
use weir_proto_srp::{PortId, TargetPolicy};
use weir_reactor::sleep;
use weir_sim::{Carrier, Cut, NetConfig, Odds, Options, World};
use weir_target_core::PATIENCE;

/// The plan of a host: its paths.
struct Plan {
    pairs: Vec<Pair>,
}

/// RDMA READs that one side serves or does at once; now and then none.
fn reads(rng: &mut Prng) -> u16 {
    if rng.chance(1, 16) { 0 } else { rng.between(1, 8) as u16 }
}

/// Settings of the ports.
fn ports(
    rng: &mut Prng,
    cores: usize,
    hosts: usize,
) -> (weir_target_srp::TargetConfig, weir_target_brp::TargetConfig) {
    let credits = rng.between(3, 16) as u32;
    let recv_buffers = hosts * 3 * (credits as usize + 1);
    let srp = weir_target_srp::TargetConfig {
        requests: (recv_buffers + rng.below(20) as usize) * cores,
        recv_buffers,
        policy: TargetPolicy { credits, max_table_entries: 64, ..TargetPolicy::default() },
        reads_out: reads(rng),
        max_rdma: 4096 << rng.below(3),
        chunk: 4096 << rng.below(3),
        probe_after: 2 * SECONDS,
        terminate_timeout: if rng.chance(1, 4) { 10 * MILLIS } else { 5 * SECONDS },
        ..weir_target_srp::TargetConfig::default()
    };
    let credits = rng.between(2, 16) as u16;
    let brp = weir_target_brp::TargetConfig {
        requests: rng.between(1, 40) as usize,
        recv_buffers: usize::from(credits) * hosts * 3,
        credits,
        depth: rng.between(1, 32) as u16,
        reads_out: reads(rng),
        max_rdma: 4096 << rng.below(3),
        max_commands: rng.between(1, 16) as u16,
        max_len: 16384,
        keep_alive: 2 * SECONDS,
        session_timeout: 20 * SECONDS,
        drain_timeout: SECONDS,
        ..weir_target_brp::TargetConfig::default()
    };
    (srp, brp)
}

/// Who has which ports, and which ways.
fn plans(rng: &mut Prng) -> Vec<Plan> {
    let hosts = rng.between(2, 6);
    let mut next = 0;
    let mut all = Vec::new();
    for _ in 0..hosts {
        next += 1;
        let one_port = rng.chance(1, 2);
        let mut pairs = Vec::new();
        for port in 1..=BRP {
            if rng.chance(2, 3) || (port == BRP && pairs.is_empty()) {
                if !one_port && !pairs.is_empty() {
                    next += 1;
                }
                pairs.push((next, port));
            }
        }
        all.push(Plan { pairs });
    }
    all
}

/// Everything that plays.
struct Play {
    judge: Rc<Judge>,
    node: Rc<Node>,
    hosts: Vec<Rc<Host>>,
    direct: bool,
}

impl Play {
    /// Something that happens to a host or the network.
    fn mishap(self: &Rc<Self>, w: &World, rng: &mut Prng, at: Nanos) {
        let host = self.hosts[rng.below(self.hosts.len() as u64) as usize].clone();
        let me = self.clone();
        let duration = match rng.below(4) {
            0 => rng.below(20 * MILLIS),
            1 => rng.below(400 * MILLIS),
            // About as long as a fence waits for hosts.
            2 => PATIENCE + rng.below(300 * MILLIS),
            _ => rng.below(3 * SECONDS),
        };
        let one_way = rng.chance(1, 2);
        match rng.below(9) {
            8 => {
                let which = rng.below(8) as usize;
                w.after(at, move |_| me.node.hang(which, duration));
            }
            // It stops, between a command and its data perhaps, and goes on later.
            0..=4 => w.after(at, move |_| {
                me.judge.disturbed();
                me.judge.delayed(host.number, duration);
                me.judge.count("hosts stopped");
                host.machine.pause(duration);
            }),
            5 | 6 => w.after(at, move |w| {
                let (a, b) = (host.machine.number(), me.node.machine.number());
                me.judge.disturbed();
                me.judge.delayed(host.number, duration + SECONDS);
                me.judge.count("partitions");
                w.net().partition_one_way(a, b);
                if !one_way {
                    w.net().partition_one_way(b, a);
                }
                w.after(duration, move |w| w.net().heal(a, b));
            }),
            _ => w.after(at, move |w| {
                me.judge.disturbed();
                me.judge.count("channels cut");
                w.net().cut_any(Cut::Any);
            }),
        }
    }

    fn wish(self: &Rc<Self>, w: &World, rng: &mut Prng, at: Nanos) {
        let (me, mut fork) = (self.clone(), rng.fork());
        let away = self.hosts[rng.below(self.hosts.len() as u64) as usize].clone();
        if rng.chance(1, 5) && away.is_scsi() {
            w.after(at, move |_| {
                away.machine.spawn(away.clone().leave());
                let machine = me.node.machine.clone();
                machine.spawn(async move {
                    me.node.clone().replace_while_away(away.number, &mut fork, me.direct).await;
                    away.come_back();
                });
            });
            return;
        }
        if rng.chance(1, 8)
            && let Some(Way::Srp(path)) = away.ways.first().cloned()
        {
            return w.after(at, move |_| me.end_beside_login(&away, path, fork));
        }
        w.after(at, move |_| {
            let wish = me.node.clone().wish(fork, me.direct);
            me.node.machine.spawn(wish);
        });
    }

    /// A port ends and is made again while a host is logging in there, which stands still until afterwards.
    fn end_beside_login(&self, host: &Rc<Host>, path: Rc<Path>, mut rng: Prng) {
        let (patience, port) = (rng.below(100 * MILLIS), path.pair().1);
        // Both reactors of the port have so much patience.
        let still = 2 * patience + rng.between(MILLIS, 200 * MILLIS);
        let on_the_way = rng.below(60 * MICROS);
        let (judge, stopped) = (self.judge.clone(), Rc::new(Cell::new(false)));
        let (h, s) = (host.clone(), stopped.clone());
        let stand_still = move || {
            weir_reactor::spawn_task(async move {
                sleep(on_the_way).await;
                judge.disturbed();
                judge.delayed(h.number, still);
                judge.count("hosts stopped in a login");
                s.set(true);
                h.machine.pause(still);
            });
        };
        host.machine.enter(|| path.log_in_anew(stand_still));
        let node = self.node.clone();
        self.node.machine.spawn(async move {
            node.remake_when(port, patience, || stopped.get()).await;
        });
    }

    fn verdict(&self) -> Result<(), Wrong> {
        self.judge.fault.get().map_or(Ok(()), |w| Err(Wrong(w)))
    }
}

fn host(
    w: &World,
    rng: &mut Prng,
    number: usize,
    plan: &Plan,
    first: usize,
    play: (&Rc<Judge>, &Rc<Node>),
    (impatient, patient): (Odds, bool),
) -> Result<Rc<Host>, Wrong> {
    let (judge, node) = play;
    let machine = w.node(&format!("host{number}"));
    let pool = pool(&[(4096, 64), (16384, 16)])?;
    let native_cm = rng.chance(1, 2) && w.net().carrier() == Carrier::Messages;
    machine.fabric().set_native_cm(native_cm);
    let style = Style {
        immediate: if rng.chance(1, 2) { rng.between(512, 8192) as u32 } else { 0 },
        descriptors: rng.between(1, 12) as usize,
        timeout: if patient { 2 * STILL } else { rng.between(300 * MILLIS, 2 * SECONDS) },
        impatient,
        reads: if rng.chance(1, 8) { (0, 0) } else { (1, 8) },
    };
    let mut ways = Vec::new();
    for (i, (initiator, port)) in plan.pairs.iter().enumerate() {
        let addr = node.machine.addr(u16::from(*port));
        if *port == BRP {
            let mut config = SessionConfig {
                addrs: vec![addr],
                session: number as u64 + 1,
                channels: rng.between(1, 2) as usize,
                depth: rng.between(1, 16) as u16,
                variant: [Variant::Brp1, Variant::BRP3, Variant::Auto][rng.below(3) as usize],
                integrity: rng.chance(3, 4),
                inline_write: if rng.chance(1, 2) { 0 } else { rng.below(8192) as u32 },
                inline_read: if rng.chance(1, 2) { 0 } else { rng.below(8192) as u32 },
                reads: reads(rng),
                keep_alive: rng.between(300, 2000) * MILLIS,
                command_timeout: if rng.chance(1, 4) { rng.between(300, 900) * MILLIS } else { 0 },
                abort_timeout: 500 * MILLIS,
                reconnect_min: MILLIS,
                reconnect_max: 200 * MILLIS,
                fast_io_fail: if rng.chance(1, 4) { 3 * SECONDS } else { 60 * SECONDS },
                ..SessionConfig::new("", weir_initiator_brp::PortId(initiator_id(*initiator)))
            };
            if patient {
                (config.keep_alive, config.command_timeout) = (2 * STILL, 0);
            }
            let fetched = config.reads > 0 && node.fetches(*port);
            let session = Session::new(config);
            machine.enter(|| session.join(machine.provider()));
            ways.push(Way::Brp(Bio::new(first + i, session, fetched)));
            continue;
        }
        let config = PathConfig {
            addr,
            target: PortId(port_id(*port)),
            initiator: PortId(initiator_id(*initiator)),
            channels: rng.between(1, 2) as usize,
            fetched: style.reads.0 > 0 && node.fetches(*port),
            style: style.clone(),
            native_cm,
        };
        let provider = machine.provider();
        let (judge, pool) = (judge.clone(), pool.clone());
        ways.push(Way::Srp(Path::new(first + i, judge, provider, pool, config, rng.fork())));
    }
    Ok(Rc::new(Host {
        number,
        machine,
        judge: judge.clone(),
        node: node.clone(),
        pool,
        ways,
        running: Cell::new(0),
        stop: Cell::new(false),
        patient,
        think: rng.below(2 * MILLIS),
    }))
}

fn start(h: &Rc<Host>, rng: &mut Prng, cluster: Nanos, still: bool) {
    for way in &h.ways {
        let Way::Brp(b) = way else { continue };
        let (b, mut fork, me) = (b.clone(), rng.fork(), h.clone());
        h.machine.spawn(async move {
            while let Err(e) = b.session.login().await {
                use weir_initiator_brp::Error;
                if matches!(e, Error::Protocol(_) | Error::Invalid(_)) {
                    return me.judge.wrong(format!("a login failed: {e}"));
                }
                if me.stop.get() {
                    return;
                }
                sleep(fork.below(300 * MILLIS)).await;
            }
        });
    }
    let clients = rng.between(1, 4);
    for _ in 0..if still && h.number == 0 { 24 } else { clients } {
        h.running.set(h.running.get() + 1);
        h.machine.spawn(h.clone().client(rng.fork(), rng.between(20, 120)));
    }
    if h.ways.iter().any(|w| matches!(w, Way::Srp(_))) && !still {
        h.running.set(h.running.get() + 1);
        h.machine.spawn(h.clone().cluster(rng.fork(), cluster, rng.between(5, 30)));
    }
}

pub(super) fn run(run: &Run) -> Result<Pass, Wrong> {
    let mut rng = Prng::new(run.seed ^ 0xd0025);
    // On a punctual network it is known when a message has arrived at the latest.
    let hostile = rng.chance(1, 3);
    let still = Prng::new(run.seed ^ 0x0571_1100).chance(1, 6);
    let hostile = hostile && !still;
    let net = if hostile { NetConfig::hostile(&mut rng) } else { NetConfig::default() };
    let w = run.world(Options { net, fifo: rng.chance(1, 3), ..Options::default() });
    let machine = w.node_with("target", 2);
    let plans = plans(&mut rng);
    let paths: Vec<(usize, Pair)> =
        plans.iter().enumerate().flat_map(|(h, p)| p.pairs.iter().map(move |x| (h, *x))).collect();
    let volumes = rng.between(1, 3) as usize;
    let initiators: Vec<BTreeSet<u8>> =
        plans.iter().map(|p| p.pairs.iter().map(|x| x.0).collect()).collect();
    let (mut srp, mut brp) = ports(&mut rng, 2, plans.len());
    if still {
        stand_still(&mut srp, &mut brp);
    }
    let lingers = srp.terminate_timeout < SECONDS;
    let nature = (!hostile, lingers, run.words);
    let judge = Rc::new(Judge::new(w.time(), paths, volumes, nature));
    let slow = if !lingers && rng.chance(1, 6) { rng.between(2, 8) } else { 0 };
    if slow > 0 {
        // Hosts give such commands up, and with them their connections.
        judge.disturbed();
    }
    let config = NodeConfig {
        srp,
        brp,
        tas: rng.chance(1, 2),
        forgets: if rng.chance(1, 2) { rng.between(2, 8) } else { 0 },
        slow,
        buffers: match rng.chance(1, 3) {
            // Of each size one for each host, and one for the next.
            _ if still => 3 * (plans.len() + 1),
            true => rng.between(1, 4) as usize,
            false => 24,
        },
    };
    let node = Node::start(machine.clone(), judge.clone(), volumes, initiators, config, &mut rng)?;
    let direct = rng.chance(1, 4) && !still;
    for place in 0..volumes {
        let delay = match rng.below(4) {
            _ if direct => 0,
            // What a channel that has ended leaves with the device has to be there for a while.
            _ if lingers && rng.chance(1, 2) => 60 * MILLIS,
            0 => 0,
            1 => 200 * MICROS,
            2 => 5 * MILLIS,
            _ => 60 * MILLIS,
        };
        let (n, blocks) = (node.clone(), rng.between(32, PLACE));
        let seeing: Vec<usize> = (0..plans.len()).filter(|_| rng.chance(5, 6)).collect();
        w.run(&machine, SECONDS, async move {
            let number = n.create(place, blocks, direct, delay).await;
            for h in seeing {
                n.map(h, place as u16, number).await;
            }
        })?;
    }
    let impatient = match rng.below(3) {
        _ if still => Odds::NEVER,
        0 => Odds::NEVER,
        _ => Odds::one_in(rng.between(5, 100) as u32),
    };
    let mut hosts = Vec::new();
    let mut first = 0;
    for (i, plan) in plans.iter().enumerate() {
        hosts.push(host(&w, &mut rng, i, plan, first, (&judge, &node), (impatient, still))?);
        first += plan.pairs.len();
    }
    let cluster = rng.between(2 * MILLIS, 60 * MILLIS);
    hosts.iter().for_each(|h| start(h, &mut rng, cluster, still));
    let play = Rc::new(Play { judge: judge.clone(), node: node.clone(), hosts, direct });
    let span = rng.between(20 * MILLIS, 600 * MILLIS);
    if still {
        play.others_go_on(&w, &mut rng)?;
    } else if rng.chance(4, 5) {
        for _ in 0..rng.below(10) {
            let at = rng.below(span);
            play.mishap(&w, &mut rng, at);
        }
    }
    if rng.chance(4, 5) && !still {
        for _ in 0..rng.below(10) {
            let at = rng.below(span);
            play.wish(&w, &mut rng, at);
        }
    }
    w.after(5 * SECONDS, |w| w.net().calm());
    let p = play.clone();
    w.after(8 * SECONDS, move |_| p.hosts.iter().for_each(|h| h.stop.set(true)));
    w.run_until(400 * SECONDS, || {
        judge.is_wrong()
            || (play.hosts.iter().all(|h| h.running.get() == 0) && node.busy.get() == 0)
    })
    .map_err(|s| Wrong(format!("{s}\n{}", node.census())))?;
    play.verdict()?;
    w.net().calm();
    w.run_for(5 * SECONDS);
    for h in &play.hosts {
        w.run(&h.machine, 90 * SECONDS, h.clone().close())?;
    }
    let pools = node.close(&w)?;
    play.verdict()?;
    check_whole(pools.iter().chain(play.hosts.iter().map(|h| &h.pool)))?;
    let mut figures: Vec<(&'static str, u64)> = judge.figures().into_iter().collect();
    figures.push(("reservations that could not be kept", node.forgotten()));
    Ok(Pass { trace: w.trace_hash(), figures })
}
