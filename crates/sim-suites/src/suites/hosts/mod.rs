//! Weir's initiators before a machine that loses power, comes back, gives numbers to other units and answers late.
//! What was flushed is durable or told as lost, nothing lands on another unit or block, and nothing stands still.

mod unit;
mod way;

use crate::srp::Fault;
use crate::suites::scene::pool;
use crate::{Pass, Run, Wrong};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use unit::{BLOCK, BLOCKS, Medium, Memory, pattern};
use way::{Ended, Session, Way};
use weir_base::{MICROS, MILLIS, Prng, SECONDS};
use weir_initiator_brp as brp;
use weir_initiator_srp as srp;
use weir_proto_scsi::geometry::Geometry;
use weir_proto_scsi::identity::{Identity, PortName, TargetPort};
use weir_proto_scsi::lu::LuState;
use weir_proto_srp::{PortId, TargetPolicy};
use weir_reactor::{JoinHandle, sleep, timeout};
use weir_sim::{Node, Options, World};
use weir_target_core::{Access, AccessMap, HostRule, Unit, UnitShared, Units};

/// The unit that the host uses, and the one that gets its numbers.
const MINE: u8 = 0x61;
const OTHER: u8 = 0x62;

/// What happens besides I/O.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Weather {
    /// Numbers are given to other units.
    Numbers,
    /// Program and machine end and come back; commands are given up.
    Deaths,
    /// Commands take longer than hosts wait, all at once.
    Slow,
}

/// What a host was told.
#[derive(Default)]
struct Told {
    /// Block and number of each write that was acknowledged.
    acknowledged: RefCell<Vec<(usize, u64)>>,
    writes: Cell<u64>,
    flushes: Cell<u64>,
    lost: Cell<u64>,
    given_up: Cell<u64>,
    /// Tasks that have not ended.
    running: Cell<u64>,
    stop: Cell<bool>,
}

fn bump(n: &Cell<u64>) {
    n.set(n.get() + 1);
}

struct Hosts {
    srp: bool,
    weather: Weather,
    /// The ports of one machine.
    ports: Vec<Node>,
    host: Node,
    units: [Rc<Medium>; 2],
    access: RefCell<Vec<Arc<Access>>>,
    /// That of each port.
    targets: RefCell<[Option<Box<dyn Any>>; 2]>,
    policy: TargetPolicy,
    power: Cell<u64>,
    losses: Cell<u64>,
    told: Told,
    fault: Fault,
}

impl Hosts {
    fn port_id(&self, i: usize) -> PortId {
        PortId::new(0x5745_4952, i as u64 + 1)
    }

    /// The target at one of the ports, from a start of its program on.
    fn serve(&self, i: usize) -> Result<(), Wrong> {
        let node = &self.ports[i];
        let failed = |e: &dyn std::fmt::Display| Wrong(e.to_string());
        node.enter(|| {
            let pool = pool(&[(4096, 64), (16384, 16)])?;
            let units = Rc::new(Units::default());
            for m in &self.units {
                let name = PortName::Srp(self.port_id(i).0);
                let tag = if Rc::ptr_eq(m, &self.units[0]) { MINE } else { OTHER };
                let mut id = Identity::new("WEIR", "SIM", "0001", "S", [tag; 16]);
                id.ports = vec![TargetPort { relative_id: i as u16 + 1, group: 1, name }];
                (id.write_cache, id.power) = (true, Some(self.power.get()));
                let lu = LuState::new(id, Geometry::new(BLOCK as u32, BLOCKS as u64));
                let shared = UnitShared::new(&tag.to_string(), lu, None);
                let memory = Rc::new(Memory(m.clone()));
                units.insert(Unit::new(shared, memory, pool.clone(), 4096));
            }
            let access = Arc::new(Access::new(map(false)));
            let provider = node.provider();
            if self.srp {
                let config = weir_target_srp::TargetConfig {
                    port_id: self.port_id(i),
                    relative_port: i as u16 + 1,
                    policy: self.policy,
                    terminate_timeout: SECONDS,
                    // What a program holds that is killed is not given back before the process ends.
                    requests: 64,
                    recv_buffers: 64,
                    ..Default::default()
                };
                let id = Identity::new("WEIR", "SIM", "0001", "S", [MINE; 16]);
                let t = weir_target_srp::Target::new(config, access.clone(), id, 1);
                t.join(provider.clone(), units, pool).map_err(|e| failed(&e))?;
                t.listen(&*provider, &node.addr(1)).map_err(|e| failed(&e))?;
                self.targets.borrow_mut()[i] = Some(Box::new(t));
            } else {
                let credits = self.policy.credits as u16;
                let config = weir_target_brp::TargetConfig {
                    port_id: brp::PortId([i as u8 + 1; 16]),
                    relative_port: i as u16 + 1,
                    incarnation: u64::from(node.lives()) + 1,
                    power: self.power.get(),
                    credits,
                    recv_buffers: usize::from(credits) * 8,
                    keep_alive: SECONDS,
                    drain_timeout: SECONDS,
                    ..Default::default()
                };
                let t = weir_target_brp::Target::new(config, access.clone());
                t.join(provider.clone(), units, pool).map_err(|e| failed(&e))?;
                t.listen(&*provider, &node.addr(1)).map_err(|e| failed(&e))?;
                self.targets.borrow_mut()[i] = Some(Box::new(t));
            }
            self.access.borrow_mut()[i] = access;
            Ok(())
        })
    }

    /// A session with one of the ports, joined by all cores.
    fn session(&self, i: usize, rng: &mut Prng) -> Session {
        let addr = self.ports[i].addr(1);
        let channels = rng.between(1, self.host.cores() as u64) as usize;
        let slow = self.weather == Weather::Slow;
        let session = if self.srp {
            Session::Srp(srp::Session::new(srp::SessionConfig {
                channels,
                // Often as many as there are credits, or about: then who waits for the one waits for the other.
                depth: if rng.chance(1, 2) { rng.between(2, 4) } else { rng.between(2, 32) } as u16,
                command_timeout: if slow { 200 * MILLIS } else { 10 * SECONDS },
                // Longer than anything takes: what helps is the abort. Or shorter: then a reset is asked for, and the abort is
                // answered beside it.
                task_timeout: match slow && rng.chance(1, 2) {
                    true => rng.between(100, 600) * MILLIS,
                    false => 20 * SECONDS,
                },
                retries: 1000,
                reconnect_min: MILLIS,
                reconnect_max: 200 * MILLIS,
                fast_io_fail: SECONDS,
                ..srp::SessionConfig::new(&addr, self.port_id(i), PortId::new(7, 7))
            }))
        } else {
            Session::Brp(brp::Session::new(brp::SessionConfig {
                depth: rng.between(4, 32) as u16,
                session: i as u64 + 1,
                integrity: rng.chance(1, 2),
                variant: if rng.chance(1, 2) { brp::Variant::Brp3T } else { brp::Variant::Auto },
                inline_write: 8192,
                keep_alive: SECONDS,
                command_timeout: if slow { 200 * MILLIS } else { 0 },
                reconnect_min: MILLIS,
                reconnect_max: 200 * MILLIS,
                fast_io_fail: 3 * SECONDS,
                ..brp::SessionConfig::new(&addr, brp::PortId([7; 16]))
            }))
        };
        for core in 0..self.host.cores() {
            let provider = self.host.provider_on(core);
            self.host.enter_on(core, || match &session {
                Session::Srp(s) => s.join(provider),
                Session::Brp(s) => s.join(provider),
            });
        }
        session
    }

    /// Writes its own blocks, one after the other.
    async fn writer(
        self: Rc<Self>,
        way: Way,
        number: usize,
        of: usize,
        writes: u64,
        mut rng: Prng,
    ) {
        let t = &self.told;
        let mut mine: Vec<usize> = (0..BLOCKS).filter(|b| b % of == number).collect();
        for n in 1..=writes {
            if mine.is_empty() || self.fault.get().is_some() {
                break;
            }
            let block = mine[rng.below(mine.len() as u64) as usize];
            let data = pattern(MINE, block, n);
            // Not beside a write: one that is on its way just then is in the target's hands.
            if self.weather == Weather::Numbers
                && rng.chance(1, 3)
                && let Err(e) = way.scan().await
            {
                self.fault.set(format!("the list of units ended with {e:?}"));
            }
            let losses = self.losses.get();
            let write = way.write(block, &data);
            let gives_up = self.weather != Weather::Numbers && rng.chance(1, 6);
            let ended = match gives_up {
                true => timeout(rng.below(400 * MILLIS), write).await.unwrap_or(Err(Ended::Path)),
                false => write.await,
            };
            match ended {
                Ok(()) => {
                    if losses == self.losses.get() && self.units[0].cached(block) < n {
                        let what = format!("write {n} of block {block} was acknowledged, not done");
                        self.fault.set(what);
                    }
                    t.acknowledged.borrow_mut().push((block, n));
                    bump(&t.writes);
                }
                // It may be done yet, so the block is left alone.
                Err(Ended::Path) => {
                    mine.retain(|b| *b != block);
                    bump(&t.given_up);
                }
                Err(e) => self.fault.set(format!("a write ended with {e:?}")),
            }
            sleep(rng.below(3 * MILLIS)).await;
        }
        t.running.set(t.running.get() - 1);
    }

    /// Flushes now and then, and believes what it is told.
    async fn flusher(self: Rc<Self>, way: Way, mut rng: Prng) {
        let t = &self.told;
        let (mut promised, mut lost) = (0, 0);
        while !t.stop.get() {
            sleep(rng.below(60 * MILLIS)).await;
            let before = t.acknowledged.borrow().len();
            match way.flush().await {
                Ok(()) => {
                    bump(&t.flushes);
                    for (block, n) in &t.acknowledged.borrow()[promised.min(before)..before] {
                        if self.units[0].durable(*block) < *n {
                            let what = format!(
                                "a flush said that write {n} of block {block} is durable, which is lost"
                            );
                            self.fault.set(what);
                        }
                    }
                    promised = promised.max(before);
                }
                Err(Ended::LostCache) => {
                    bump(&t.lost);
                    lost += 1;
                    promised = t.acknowledged.borrow().len();
                    if lost > self.losses.get() {
                        self.fault.set(format!("{lost} losses are told, of {}", self.losses.get()));
                    }
                }
                Err(Ended::Path) => {}
                Err(e) => self.fault.set(format!("a flush ended with {e:?}")),
            }
        }
        t.running.set(t.running.get() - 1);
    }

    /// The program, or the machine with its caches, ends at all ports at once and comes back.
    fn death(self: &Rc<Self>, w: &World, rng: &mut Prng) {
        let (power, silent) = (rng.chance(1, 2), rng.chance(1, 2));
        let mut back = [rng.below(300 * MILLIS), rng.below(300 * MILLIS)];
        if rng.chance(1, 4) {
            back[rng.below(2) as usize] += SECONDS;
        }
        for node in &self.ports {
            match silent || power {
                true => node.power_off(),
                false => node.kill(),
            }
        }
        if power {
            self.units.iter().for_each(|m| m.power_cut());
            self.power.set(self.power.get() + 1);
            bump(&self.losses);
        }
        for (i, after) in back.into_iter().take(self.ports.len()).enumerate() {
            let me = self.clone();
            w.after(after, move |_| {
                me.ports[i].restart();
                if let Err(Wrong(e)) = me.serve(i) {
                    me.fault.set(e);
                }
            });
        }
    }

    /// What happens while the host works.
    fn trouble(self: &Rc<Self>, w: &World, rng: &mut Prng) {
        let done = || self.told.running.get() == 0 || self.fault.get().is_some();
        for round in 0..rng.between(2, 12) {
            w.run_for(rng.below(120 * MILLIS));
            match self.weather {
                Weather::Numbers => {
                    let show = |m: &AccessMap| {
                        self.access.borrow().iter().for_each(|a| a.set(m.clone()));
                    };
                    let now = map(round % 2 == 0);
                    if rng.chance(1, 2) {
                        // The other unit has the number, and the host's own has none for a while.
                        let mut alone = now.clone();
                        alone.hosts[0].luns = vec![(round as u16 % 2, OTHER.to_string())];
                        show(&alone);
                        w.run_for(rng.below(60 * MILLIS));
                    }
                    show(&now);
                }
                Weather::Deaths => {
                    // Between the login and the end of what is sent again there is time to give it up.
                    let slow = if rng.chance(1, 2) { 100 * MILLIS } else { MILLIS };
                    self.units[0].delay.set(slow);
                    self.death(w, rng);
                    w.run_for(2 * SECONDS);
                }
                Weather::Slow => {
                    self.units[0].delay.set(rng.below(SECONDS));
                    w.run_for(rng.below(2 * SECONDS));
                    self.units[0].delay.set(MILLIS);
                }
            }
            if done() {
                break;
            }
        }
        self.units[0].delay.set(100 * MICROS);
    }
}

/// Both units; `swapped`: by each other's number.
fn map(swapped: bool) -> AccessMap {
    let (mine, other) = if swapped { (1, 0) } else { (0, 1) };
    let luns = vec![(mine, MINE.to_string()), (other, OTHER.to_string())];
    AccessMap {
        hosts: vec![HostRule { host: "any".into(), any: true, luns, ..Default::default() }],
    }
}

pub(super) fn run(run: &Run) -> Result<Pass, Wrong> {
    let mut rng = Prng::new(run.seed ^ 0x4057);
    let srp = rng.chance(1, 2);
    let weather = match rng.below(4) {
        0 => Weather::Numbers,
        1 | 2 => Weather::Deaths,
        _ => Weather::Slow,
    };
    let w = run.world(Options { fifo: rng.chance(1, 3), ..Options::default() });
    let paths = if weather == Weather::Deaths { rng.between(1, 2) } else { 1 };
    let ports = (0..paths).map(|i| w.node(&format!("port{i}"))).collect();
    // One command at a time meets an attention for sure: others that are on their way do not.
    let cores = if weather == Weather::Numbers { 1 } else { rng.between(1, 2) as usize };
    let host = w.node_with("host", cores);
    let fault = Fault::default();
    let few = rng.between(2, 4) as u32;
    let policy = TargetPolicy {
        credits: few,
        max_table_entries: 64,
        ..weir_target_srp::TargetConfig::default().policy
    };
    let h = Rc::new(Hosts {
        srp,
        weather,
        ports,
        host,
        units: [Medium::new(MINE, &fault), Medium::new(OTHER, &fault)],
        access: RefCell::new((0..2).map(|_| Arc::new(Access::new(map(false)))).collect()),
        targets: RefCell::default(),
        policy,
        power: Cell::new(1),
        losses: Cell::new(0),
        told: Told::default(),
        fault,
    });
    (0..paths as usize).try_for_each(|i| h.serve(i))?;
    let sessions: Vec<Session> = (0..paths as usize).map(|i| h.session(i, &mut rng)).collect();
    for s in sessions.clone() {
        if !w.run(&h.host, 60 * SECONDS, async move { s.login().await })? {
            return Err(Wrong("a login failed in good weather".into()));
        }
    }
    let mut ways = Vec::new();
    for core in 0..cores {
        let all = sessions.clone();
        let open: JoinHandle<_> =
            h.host.spawn_on(core, async move { Session::open(&all, &[MINE; 16]).await });
        w.run_until(60 * SECONDS, || open.is_finished())?;
        let way = w.run(&h.host, SECONDS, open)?.ok_or(Wrong("a unit was not opened".into()))?;
        ways.push(way.map_err(Wrong)?);
    }
    let writers = if weather == Weather::Numbers { 1 } else { rng.between(2, 16) as usize };
    let writes = rng.between(10, 80);
    // A loss concerns who flushes, whoever wrote.
    let writing = if rng.chance(1, 2) { 1 } else { cores };
    for n in 0..writers {
        let core = n % writing;
        let task = h.clone().writer(ways[core].clone(), n, writers, writes, rng.fork());
        bump(&h.told.running);
        drop(h.host.spawn_on(core, task));
    }
    let flushers = if weather == Weather::Numbers { 0 } else { cores };
    for (core, way) in ways.iter().enumerate().take(flushers) {
        let task = h.clone().flusher(way.clone(), rng.fork());
        bump(&h.told.running);
        drop(h.host.spawn_on(core, task));
    }
    drop(ways);
    h.trouble(&w, &mut rng);
    let stop = |left: u64| {
        let ended = || h.told.running.get() <= left || h.fault.get().is_some();
        w.run_until(400 * SECONDS, ended).map_err(|e| {
            let (kind, n) = (if srp { "SRP" } else { "BRP" }, h.told.running.get());
            let held: Vec<usize> = (0..cores)
                .flat_map(|c| sessions.iter().map(move |s| (c, s)))
                .map(|(c, s)| h.host.enter_on(c, || s.held()))
                .collect();
            Wrong(format!(
                "{n} tasks of {writers} and {flushers} do not end by {kind} in {weather:?} over {paths} paths, \
                 {held:?} commands are held: {e}"
            ))
        })
    };
    stop(flushers as u64)?;
    h.told.stop.set(true);
    stop(0)?;
    w.run_for(30 * SECONDS);
    if let Some(what) = h.fault.get() {
        return Err(Wrong(what));
    }
    for core in 0..cores {
        let held: usize = sessions.iter().map(|s| h.host.enter_on(core, || s.held())).sum();
        if held > 0 {
            return Err(Wrong(format!("{held} commands and registrations are left")));
        }
    }
    for s in sessions {
        w.run(&h.host, 60 * SECONDS, async move { s.close().await })?;
    }
    let t = &h.told;
    let figures = vec![
        ("writes", t.writes.get()),
        ("given up", t.given_up.get()),
        ("flushes", t.flushes.get()),
        ("power losses", h.losses.get()),
        ("losses told", t.lost.get()),
    ];
    Ok(Pass { trace: w.trace_hash(), figures })
}
