//! Hosts with Weir's BRP initiator and a BRP target: verified I/O, and counters that show every COMPARE AND WRITE
//! that was done twice or not at all. In the end nothing may be left anywhere.

mod counter;

use crate::load::{Io, Load, Mix};
use crate::srp::Fault;
use crate::suites::scene::{Client, Play, Scene, Store, check_whole, partition, pool, unit_name};
use crate::{Pass, Run, Wrong};
use counter::Counter;
use std::cell::Cell;
use std::rc::Rc;
use weir_base::{IoError, IoResult, MICROS, MILLIS, Nanos, Prng, SECONDS};
use weir_initiator_brp::{Disk, Error, PortId, Session, SessionConfig, Status, Variant};
use weir_mem::{BufPool, Slice};
use weir_reactor::{LocalFuture, sleep};
use weir_sim::{Cut, NetConfig, Node, Options, World};
use weir_target_brp::{Target, TargetConfig};

/// Blocks that the load uses; the counter's is behind them.
const BLOCKS: u64 = 64;

/// How often is looked whether commands that timed out have ended.
const ENDS_LOOK: Nanos = 100 * MILLIS;

/// What happens besides I/O.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Weather {
    /// Nothing.
    Calm,
    /// Cuts, partitions, pauses.
    Storm,
    /// And deaths of hosts and target.
    Deaths,
}

/// A volume as a host's path to it.
struct DiskIo {
    disk: Disk,
    owner: u32,
    fault: Fault,
}

impl DiskIo {
    fn result(&self, r: Result<(), Error>) -> IoResult {
        r.map_err(|e| match e {
            Error::Status(Status::OutOfRange) => IoError::OutOfRange,
            Error::Status(Status::Medium) => IoError::Medium,
            Error::Closed | Error::Replaced | Error::PathDown | Error::TimedOut => IoError::Offline,
            // The simulated network changes nothing.
            e => {
                self.fault.set(format!("an I/O failed: {e}"));
                IoError::Internal
            }
        })
    }
}

impl Io for DiskIo {
    fn owner(&self) -> u32 {
        self.owner
    }
    fn read(&self, at: u64, buf: Slice) -> LocalFuture<'_, IoResult> {
        Box::pin(async move {
            if buf.len() < 1024 {
                return self.result(self.disk.read(at, buf).await);
            }
            let half = [buf.sub(0, 300), buf.sub(300, buf.len() - 300)];
            self.result(self.disk.read_to(at, &half).await)
        })
    }
    fn write(&self, at: u64, buf: Slice, fua: bool) -> LocalFuture<'_, IoResult> {
        Box::pin(async move { self.result(self.disk.write(at, buf, fua).await) })
    }
    fn flush(&self) -> LocalFuture<'_, IoResult> {
        Box::pin(async move { self.result(self.disk.flush().await) })
    }
    fn zero(&self, at: u64, len: u64) -> LocalFuture<'_, IoResult> {
        Box::pin(async move { self.result(self.disk.write_zeroes(at, len, true).await) })
    }
}

/// What happens and what came of it.
struct Brp {
    scene: Scene<Target, Session>,
    config: TargetConfig,
    host: SessionConfig,
    counters: Vec<Counter>,
    sessions: Cell<u64>,
}

impl Play for Brp {
    type Target = Target;
    type Host = Session;

    fn scene(&self) -> &Scene<Target, Session> {
        &self.scene
    }

    fn serve(&self) -> Result<(), Wrong> {
        let incarnation = u64::from(self.scene.target.lives()) + 1;
        let config = TargetConfig { incarnation, ..self.config.clone() };
        let target = Target::new(config, self.scene.access());
        self.scene.put_up(target, |i| self.scene.identity(i, self.config.port_id.0), 16384)
    }

    fn start_host(self: &Rc<Self>, node: &Node, number: u64, rng: &mut Prng) -> Result<(), Wrong> {
        self.sessions.set(self.sessions.get() + 1);
        let config = SessionConfig {
            initiator: PortId([number as u8 + 1; 16]),
            session: self.sessions.get(),
            channels: rng.between(1, 3) as usize,
            ..self.host.clone()
        };
        let session = Session::new(config);
        let running = Rc::new(Cell::new(1));
        let mut pools = Vec::new();
        for core in 0..node.cores() {
            pools.push(pool(&[(4096, 32), (16384, 16)])?);
            node.enter_on(core, || session.join(node.provider_on(core)));
        }
        let mut work = Vec::new();
        for core in 0..node.cores() {
            for _ in 0..rng.between(1, 4) {
                work.push((core, rng.below(self.scene.loads.len() as u64) as usize, rng.fork()));
            }
        }
        let (me, s, n, r) = (self.clone(), session.clone(), node.clone(), running.clone());
        let mine = pools.clone();
        let mut fork = rng.fork();
        node.spawn(async move {
            // A login of all channels, however long that takes.
            while let Err(e) = s.login().await {
                if matches!(e, Error::Protocol(_) | Error::Invalid(_)) {
                    return me.scene.fault.set(format!("a login failed: {e}"));
                }
                sleep(fork.below(300 * MILLIS)).await;
            }
            // This session is new, so nothing of older ones can happen any more.
            me.scene.loads.iter().for_each(|l| l.settle_owner(number as u32));
            for (core, lun, rng) in work {
                me.client(&n, core, &s, number as u32, lun, mine[core].clone(), rng, r.clone());
            }
            r.set(r.get() - 1);
        });
        let (node, life) = (node.clone(), node.lives());
        let client = Client { node, life, host: session, pools, running };
        self.scene.clients.borrow_mut().push(client);
        Ok(())
    }
}

impl Brp {
    #[allow(clippy::too_many_arguments)] // What one client is made of.
    fn client(
        self: &Rc<Self>,
        node: &Node,
        core: usize,
        session: &Session,
        owner: u32,
        lun: usize,
        pool: BufPool,
        mut rng: Prng,
        running: Rc<Cell<u32>>,
    ) {
        running.set(running.get() + 1);
        let (me, s) = (self.clone(), session.clone());
        node.spawn_on(core, async move {
            let scene = &me.scene;
            let disk = match s.queue().open(&unit_name(lun)).await {
                Ok(d) => d,
                Err(Error::Replaced | Error::PathDown | Error::TimedOut) => {
                    return running.set(running.get() - 1);
                }
                Err(e) => return scene.fault.set(format!("a volume is not there: {e}")),
            };
            if rng.chance(1, 3) {
                let torn = me.torn(lun);
                for _ in 0..scene.requests / 2 {
                    me.counters[lun].raise(&disk, torn, &scene.fault, &mut rng).await;
                }
            } else {
                let io = Rc::new(DiskIo { disk, owner, fault: scene.fault.clone() });
                scene.loads[lun].clone().client(io, pool, rng, scene.requests).await;
            }
            running.set(running.get() - 1);
        });
    }

    /// Whether blocks of a volume may be read half written.
    fn torn(&self, lun: usize) -> bool {
        self.scene.stores[lun].is_direct() && !self.host.integrity
    }

    fn storm(self: &Rc<Self>, w: &World, rng: &mut Prng, hosts: &[Node], deaths: bool) {
        let mut nodes = hosts.to_vec();
        nodes.push(self.scene.target.clone());
        let span = rng.between(2 * MILLIS, 80 * MILLIS);
        for _ in 0..rng.between(1, 20) {
            let at = rng.below(span);
            let a = nodes[rng.below(nodes.len() as u64) as usize].clone();
            let t = self.scene.target.number();
            match rng.below(10) {
                0..=4 => w.after(at, |w| {
                    w.net().cut_any(Cut::Any);
                }),
                5 | 6 => partition(w, rng, at, (a.number(), t), 4 * SECONDS),
                7 => {
                    let duration = rng.below(2 * SECONDS);
                    w.after(at, move |_| a.pause(duration));
                }
                _ if deaths => self.death(w, at, a, rng),
                _ => {}
            }
        }
    }

    /// What a host's channels hold of commands, if they hold any.
    fn held(c: &Client<Session>) -> Option<String> {
        let all = (0..c.node.cores()).flat_map(|core| c.node.enter_on(core, || c.host.census()));
        let mut holds = all.filter(|c| (c.busy, c.registrations, c.waiting) != (0, 0, 0));
        holds.next().map(|c| format!("a channel holds commands: {c:?}"))
    }

    /// Ends hosts and target and looks for anything left.
    fn close(&self, w: &World) -> Result<(), Wrong> {
        let clients = self.scene.clients.take();
        for c in clients.iter().filter(|c| c.is_current()) {
            // Commands whose time was up keep their slots until the target has told their ends, perhaps by another connection.
            for _ in 0..20 * SECONDS / ENDS_LOOK {
                if Brp::held(c).is_none() {
                    break;
                }
                w.run_for(ENDS_LOOK);
            }
            if let Some(what) = Brp::held(c) {
                return Err(Wrong(what));
            }
            let s = c.host.clone();
            w.run(&c.node, 60 * SECONDS, async move { s.close().await })?;
        }
        // Sessions of hosts that died are forgotten in time.
        let pools = self.scene.close_target(w, 90 * SECONDS)?;
        for (i, counter) in self.counters.iter().enumerate() {
            let volume = self.scene.check_volume(w, i, &pools[0])?;
            counter.judge(w, &self.scene.target, volume)?;
        }
        check_whole(pools.iter().chain(clients.iter().flat_map(|c| &c.pools)))
    }
}

pub(super) fn run(run: &Run) -> Result<Pass, Wrong> {
    let mut rng = Prng::new(run.seed ^ 0xb4b);
    let weather = match rng.below(10) {
        0 | 1 => Weather::Calm,
        2..=6 => Weather::Storm,
        _ => Weather::Deaths,
    };
    let hostile = weather != Weather::Calm && rng.chance(1, 2);
    let net = if hostile { NetConfig::hostile(&mut rng) } else { NetConfig::default() };
    let fifo = rng.chance(1, 3);
    let w = run.world(Options { net, fifo, ..Options::default() });
    let target = w.node_with("target", rng.between(1, 2) as usize);
    let volumes = rng.between(1, 2) as usize;
    let stores: Vec<Store> = (0..volumes)
        .map(|i| match weather != Weather::Calm && rng.chance(1, 4) {
            // Logins of hosts that come back must meet commands that have been there for long.
            true => Store::slow(20 * MILLIS),
            false => Store::draw(&mut rng, &unit_name(i), 200 * MICROS),
        })
        .collect();
    stores.iter().for_each(|s| s.attach(&target));
    let integrity = rng.chance(3, 4);
    let loads: Vec<Rc<Load>> = stores
        .iter()
        .enumerate()
        .map(|(i, s)| {
            let mix = Mix {
                blocks: BLOCKS,
                most: rng.between(1, 24),
                think: rng.below(500 * MICROS),
                // Memory that is lent may be seen half written where no checksum tells. A target that dies may
                // leave a write half done, and one that is sent again to the next is done again.
                exclusive: s.is_direct() && !integrity || weather == Weather::Deaths,
                ..Mix::default()
            };
            Load::new(i as u32 + 1, w.time(), mix)
        })
        .collect();
    let variants = [Variant::Brp1, Variant::Brp2, Variant::Brp3T, Variant::BRP3, Variant::Auto];
    let inline = |rng: &mut Prng| if rng.chance(1, 4) { 0 } else { rng.below(12 << 10) as u32 };
    let credits = rng.between(2, 16) as u16;
    let config = TargetConfig {
        requests: rng.between(1, 40) as usize,
        // For nine channels: an eighth is set apart for greetings.
        recv_buffers: usize::from(credits) * rng.between(11, 14) as usize,
        credits,
        depth: rng.between(1, 32) as u16,
        reads_out: rng.between(1, 8) as u16,
        max_rdma: 4096 << rng.below(3),
        max_commands: rng.between(1, 16) as u16,
        keep_alive: 2 * SECONDS,
        session_timeout: 20 * SECONDS,
        drain_timeout: SECONDS,
        ..TargetConfig::default()
    };
    let host = SessionConfig {
        addrs: vec![target.addr(1)],
        depth: rng.between(1, 32) as u16,
        variant: variants[rng.below(5) as usize],
        integrity,
        inline_read: inline(&mut rng),
        inline_write: inline(&mut rng),
        reads: rng.between(1, 4) as u16,
        keep_alive: rng.between(300, 2000) * MILLIS,
        command_timeout: if rng.chance(1, 4) { rng.between(100, 900) * MILLIS } else { 0 },
        abort_timeout: 500 * MILLIS,
        reconnect_min: MILLIS,
        reconnect_max: 200 * MILLIS,
        fast_io_fail: if rng.chance(1, 4) { 3 * SECONDS } else { 300 * SECONDS },
        ..SessionConfig::new("", PortId::default())
    };
    let counters = stores.iter().map(|_| Counter::default()).collect();
    let scene = Scene::new(&target, stores, loads, rng.between(5, 80));
    let play = Rc::new(Brp { scene, config, host, counters, sessions: Cell::default() });
    play.serve()?;
    let mut hosts = Vec::new();
    for i in 0..rng.between(1, 3) {
        let node = w.node_with(&format!("host{i}"), rng.between(1, 2) as usize);
        play.start_host(&node, i, &mut rng)?;
        hosts.push(node);
    }
    if weather != Weather::Calm {
        play.storm(&w, &mut rng, &hosts, weather == Weather::Deaths);
        play.scene.sit_out(&w);
    }
    play.scene.play_out(&w)?;
    let mut f = weir_initiator_brp::SessionFigures::default();
    let (mut commands, mut merged, mut stale) = (0, 0, 0);
    for c in play.scene.clients.borrow().iter() {
        let g = c.host.figures();
        f.losses += g.losses;
        f.resent += g.resent;
        f.replayed += g.replayed;
        f.aborts += g.aborts;
        f.bad_messages += g.bad_messages;
        f.damaged += g.damaged;
        for core in 0..c.node.cores() {
            if !c.is_current() {
                continue;
            }
            for x in c.node.enter_on(core, || c.host.channels()) {
                commands += x.commands;
                merged += x.merged;
                stale += x.stale;
            }
        }
    }
    if f.bad_messages > 0 || f.damaged > 0 {
        return Err(Wrong(format!("damage where there is none: {f:?}")));
    }
    play.close(&w)?;
    let raised = play.counters.iter().map(|c| c.raised.get()).sum();
    let mut figures = play.scene.figures();
    figures.extend([
        ("compare and writes", raised),
        ("commands", commands),
        ("merged", merged),
        ("stale completions", stale),
        ("connections lost", f.losses),
        ("commands sent again", f.resent),
        ("found done already", f.replayed),
        ("aborted", f.aborts),
    ]);
    Ok(Pass { trace: w.trace_hash(), figures })
}
