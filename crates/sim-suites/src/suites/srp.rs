//! Hosts and an SRP target. Every byte that is read is checked, every response, every credit; in the end
//! nothing may be left anywhere.

use crate::load::{Load, Mix, VolumeIo};
use crate::srp::{DiskVolume, Fault, Host, HostConfig, HostIo, MemVolume, Resets};
use crate::{Pass, Run, Wrong};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use weir_base::{MICROS, MILLIS, Prng, SECONDS};
use weir_block::Volume;
use weir_fabric::Provider;
use weir_mem::{BufPool, PoolConfig, Slice};
use weir_proto_scsi::geometry::Geometry;
use weir_proto_scsi::identity::{Identity, PortName, TargetPort};
use weir_proto_scsi::lu::LuState;
use weir_proto_srp::{PortId, TargetPolicy, TaskFunction};
use weir_reactor::sleep;
use weir_sim::{Cut, DiskConfig, NetConfig, Node, Odds, Options, SimMedium, World};
use weir_target_core::{Access, AccessMap, HostRule, Unit, UnitShared, Units};
use weir_target_srp::{Target, TargetConfig};

const TARGET: PortId = PortId::new(0x5745_4952, 1);
/// Bytes of a volume.
const LEN: u64 = 64 << 10;

/// What happens besides I/O.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Weather {
    /// Nothing.
    Calm,
    /// Resets of slow units, on a network without faults: what they end must end.
    Resets,
    /// Aborts, resets, cuts, partitions, duplicate logins, deaths.
    Storm,
    /// The same, on a network that does all it can by itself.
    HostileNet,
}

/// What a logical unit is made of. It outlives the target.
#[derive(Clone)]
enum Store {
    Memory { memory: Slice, direct: bool, delay: u64 },
    Disk(SimMedium),
}

impl Store {
    fn draw(rng: &mut Prng, name: &str, weather: Weather) -> Store {
        let memory = Slice::heap(LEN as usize);
        memory.fill(0);
        if weather == Weather::Resets {
            // Slow, so that resets meet commands that have been there for long.
            return Store::Memory { memory, direct: false, delay: 80 * MILLIS };
        }
        match rng.below(3) {
            0 => Store::Memory { memory, direct: true, delay: 0 },
            1 => Store::Memory { memory, direct: false, delay: rng.below(100 * MICROS) },
            _ => {
                let config = DiskConfig { volatile_cache: false, ..DiskConfig::default() };
                Store::Disk(SimMedium::new(name, LEN, config, rng.next_u64()))
            }
        }
    }

    fn is_direct(&self) -> bool {
        matches!(self, Store::Memory { direct: true, .. })
    }

    fn volume(&self, node: &Node, core: usize, name: &str) -> Rc<dyn Volume> {
        match self {
            Store::Memory { memory, direct, delay } => {
                Rc::new(MemVolume { memory: memory.clone(), direct: *direct, delay: *delay })
            }
            Store::Disk(_) => Rc::new(DiskVolume(node.disk_on(core, name))),
        }
    }
}

fn unit_name(i: usize) -> String {
    format!("v{i}")
}

/// One life of the target.
struct Serving {
    life: u32,
    target: Target,
    pools: Vec<BufPool>,
}

/// A host in one life of its node.
struct Client {
    node: Node,
    life: u32,
    host: Rc<Host>,
    pool: BufPool,
    running: Rc<Cell<u32>>,
}

impl Client {
    fn is_current(&self) -> bool {
        self.node.is_alive() && self.node.lives() == self.life
    }
}

/// What happens and what came of it.
struct Play {
    target: Node,
    config: TargetConfig,
    stores: Vec<Store>,
    tas: bool,
    loads: Vec<Rc<Load>>,
    fault: Fault,
    requests: u64,
    host_config: HostConfig,
    serving: RefCell<Option<Serving>>,
    old_pools: RefCell<Vec<BufPool>>,
    clients: RefCell<Vec<Client>>,
    kills: Cell<u64>,
    time: weir_sim::Time,
}

impl Play {
    fn wrong(&self) -> Option<String> {
        let loads = self.loads.iter().filter_map(|l| l.verdict().err().map(|Wrong(w)| w));
        self.fault.get().into_iter().chain(loads).next()
    }

    fn is_over(&self) -> bool {
        let done = |c: &Client| c.running.get() == 0 || !c.is_current();
        self.wrong().is_some() || self.clients.borrow().iter().all(done)
    }

    /// Puts the target on its node, which has just started.
    fn serve(&self) -> Result<(), Wrong> {
        let node = &self.target;
        let luns: Vec<(u16, String)> =
            (0..self.stores.len()).map(|i| (i as u16, unit_name(i))).collect();
        let rule = HostRule { host: "all".into(), ports: Vec::new(), any: true, luns };
        let access = Arc::new(Access::new(AccessMap { hosts: vec![rule] }));
        let identity = |i: usize| {
            let mut id = Identity::new("WEIR", "SIM", "0001", &format!("{i:08}"), [i as u8; 16]);
            id.task_aborted_status = self.tas;
            id.ports = vec![TargetPort { relative_id: 1, group: 1, name: PortName::Srp(TARGET.0) }];
            id
        };
        let shared: Vec<Arc<UnitShared>> = (0..self.stores.len())
            .map(|i| {
                let state = LuState::new(identity(i), Geometry::new(512, LEN / 512));
                UnitShared::new(&unit_name(i), state, None)
            })
            .collect();
        let target = Target::new(self.config.clone(), access, identity(0), node.cores());
        let mut pools = Vec::new();
        for core in 0..node.cores() {
            let classes = vec![(4096, 24), (16384, 8)];
            let pool = BufPool::new(&PoolConfig { classes }).map_err(|e| Wrong(e.to_string()))?;
            let units = Rc::new(Units::default());
            for (i, s) in self.stores.iter().enumerate() {
                let volume = s.volume(node, core, &unit_name(i));
                units.insert(Unit::new(shared[i].clone(), volume, pool.clone(), self.config.chunk));
            }
            let provider: Rc<dyn Provider> = node.provider_on(core);
            let joined = node.enter_on(core, || target.join(provider, units, pool.clone()));
            joined.map_err(|e| Wrong(e.to_string()))?;
            pools.push(pool);
        }
        let listening =
            node.enter(|| target.listen(&*node.provider(), "0.0.0.0:1").map_err(|e| e.to_string()));
        listening.map_err(Wrong)?;
        *self.serving.borrow_mut() = Some(Serving { life: node.lives(), target, pools });
        Ok(())
    }

    /// A host with its clients on a node that has just started.
    fn start_host(&self, node: &Node, number: u64, rng: &mut Prng) -> Result<(), Wrong> {
        let classes = vec![(4096, 64), (16384, 16)];
        let pool = BufPool::new(&PoolConfig { classes }).map_err(|e| Wrong(e.to_string()))?;
        let provider: Rc<dyn Provider> = node.provider();
        node.provider().set_native_cm(self.host_config.native_cm);
        let config = HostConfig {
            initiator: PortId::new(0x1000 + number, 7),
            channels: rng.between(1, 2) as usize,
            ..self.host_config.clone()
        };
        let (fault, loads) = (self.fault.clone(), self.loads.clone());
        let fork = rng.fork();
        let host = Host::new(provider, pool.clone(), config, fault, loads, self.time.clone(), fork);
        let running = Rc::new(Cell::new(0));
        for _ in 0..rng.between(1, 4) {
            let lun = rng.below(self.loads.len() as u64) as usize;
            let io = Rc::new(HostIo { host: host.clone(), lun });
            let work = self.loads[lun].clone().client(io, pool.clone(), rng.fork(), self.requests);
            running.set(running.get() + 1);
            let r = running.clone();
            node.spawn(async move {
                work.await;
                r.set(r.get() - 1);
            });
        }
        let client = Client { node: node.clone(), life: node.lives(), host, pool, running };
        self.clients.borrow_mut().push(client);
        Ok(())
    }

    /// A host resets a unit.
    fn reset(&self, rng: &mut Prng) {
        let all = self.clients.borrow();
        let c = &all[rng.below(all.len() as u64) as usize];
        let lun = crate::srp::lun(rng.below(self.loads.len() as u64) as usize);
        let host = c.host.clone();
        let function = match rng.chance(1, 2) {
            true => TaskFunction::LunReset,
            false => TaskFunction::ClearTaskSet,
        };
        c.node.spawn(async move { host.manage(function, lun).await });
    }

    /// Something that a host does besides its I/O.
    fn nuisance(&self, rng: &mut Prng) {
        let all = self.clients.borrow();
        let alive: Vec<&Client> = all.iter().filter(|c| c.is_current()).collect();
        if alive.is_empty() {
            return;
        }
        let c = alive[rng.below(alive.len() as u64) as usize];
        let host = c.host.clone();
        let lun = crate::srp::lun(rng.below(self.loads.len() as u64) as usize);
        match rng.below(5) {
            0 => c.node.enter(|| host.drop_one()),
            1 | 2 => {
                c.node.spawn(async move { host.manage(TaskFunction::LunReset, lun).await });
            }
            3 => {
                c.node.spawn(async move { host.manage(TaskFunction::AbortTaskSet, lun).await });
            }
            _ => {
                c.node.spawn(async move { host.manage(TaskFunction::ClearTaskSet, lun).await });
            }
        }
    }

    /// Another login in a host's name, from another node.
    fn duplicate(self: &Rc<Self>, w: &World, number: u64, rng: &mut Prng) -> Result<(), Wrong> {
        let node = w.node("impostor");
        if !node.is_alive() {
            return Ok(());
        }
        let classes = vec![(4096, 32)];
        let pool = BufPool::new(&PoolConfig { classes }).map_err(|e| Wrong(e.to_string()))?;
        let config = HostConfig {
            initiator: PortId::new(0x1000 + number, 7),
            channels: 1,
            tries: 2,
            ..self.host_config.clone()
        };
        let (provider, fault) = (node.provider(), self.fault.clone());
        provider.set_native_cm(self.host_config.native_cm);
        let (time, fork) = (self.time.clone(), rng.fork());
        let host = Host::new(provider, pool.clone(), config, fault, self.loads.clone(), time, fork);
        let stay = rng.below(20 * MILLIS);
        let running = Rc::new(Cell::new(1));
        let (h, r) = (host.clone(), running.clone());
        node.spawn(async move {
            if h.channel().await.is_some() {
                sleep(stay).await;
            }
            h.close().await;
            r.set(0);
        });
        let client = Client { life: node.lives(), node, host, pool, running };
        self.clients.borrow_mut().push(client);
        Ok(())
    }

    fn storm(self: &Rc<Self>, w: &World, rng: &mut Prng, hosts: &[Node], deaths: bool) {
        let mut nodes = hosts.to_vec();
        nodes.push(self.target.clone());
        let span = rng.between(2 * MILLIS, 60 * MILLIS);
        for _ in 0..rng.below(20) {
            let at = rng.below(span);
            let pick = |rng: &mut Prng| nodes[rng.below(nodes.len() as u64) as usize].clone();
            let (a, mut fork, me) = (pick(rng), rng.fork(), self.clone());
            let t = self.target.number();
            match rng.below(12) {
                0 | 1 => w.after(at, |w| {
                    w.net().cut_any(Cut::Any);
                }),
                2 => {
                    let (for_long, one_way) = (rng.below(4 * SECONDS), rng.chance(1, 2));
                    w.after(at, move |w| {
                        w.net().partition_one_way(a.number(), t);
                        if !one_way {
                            w.net().partition_one_way(t, a.number());
                        }
                        w.after(for_long, move |w| w.net().heal(a.number(), t));
                    });
                }
                3 => {
                    let duration = rng.below(2 * SECONDS);
                    w.after(at, move |_| a.pause(duration));
                }
                4 => {
                    let number = rng.below(hosts.len() as u64);
                    w.after(at, move |w| {
                        if let Err(Wrong(e)) = me.duplicate(w, number, &mut fork) {
                            me.fault.set(e);
                        }
                    });
                }
                5 if deaths => self.death(w, at, a, rng),
                _ => w.after(at, move |_| me.nuisance(&mut fork)),
            }
        }
    }

    /// A node dies and comes back.
    fn death(self: &Rc<Self>, w: &World, at: u64, node: Node, rng: &mut Prng) {
        let (silent, back, mut fork) = (rng.chance(1, 2), rng.below(SECONDS), rng.fork());
        let me = self.clone();
        w.after(at, move |w| {
            if !node.is_alive() {
                return;
            }
            match silent {
                true => node.power_off(),
                false => node.kill(),
            }
            me.kills.set(me.kills.get() + 1);
            let is_target = node.number() == me.target.number();
            if is_target {
                me.loads.iter().for_each(|l| l.settle_given_up());
                if let Some(s) = me.serving.take() {
                    me.old_pools.borrow_mut().extend(s.pools);
                }
            }
            let number = u64::from(node.number()).saturating_sub(1);
            w.after(back, move |_| {
                node.restart();
                let started = match is_target {
                    true => me.serve(),
                    false => me.start_host(&node, number, &mut fork),
                };
                if let Err(Wrong(e)) = started {
                    me.fault.set(e);
                }
            });
        });
    }

    /// Ends hosts and target and looks for anything left.
    fn close(&self, w: &World) -> Result<(), Wrong> {
        let clients = self.clients.take();
        for c in &clients {
            if c.is_current() {
                let h = c.host.clone();
                w.run(&c.node, 60 * SECONDS, async move { h.close().await })?;
            }
        }
        let Some(serving) = self.serving.take() else {
            return Err(Wrong("the target is not there in the end".to_string()));
        };
        assert_eq!(serving.life, self.target.lives(), "the target of this life");
        for core in 0..self.target.cores() {
            let (node, t) = (&self.target, serving.target.clone());
            let channels = || node.enter_on(core, || t.local_channels().len());
            if let Err(s) = w.run_until(30 * SECONDS, || channels() == 0) {
                return Err(Wrong(format!("channels stay at the target: {s}")));
            }
            let t = serving.target.clone();
            let idle = node.enter_on(core, || match t.local_port() {
                Some(p) => p.check_idle(),
                None => Err("the port is gone".to_string()),
            });
            idle.map_err(|e| Wrong(format!("target core {core}: {e}")))?;
            let t = serving.target.clone();
            let left = node.spawn_on(core, async move { t.leave().await });
            w.run_until(10 * SECONDS, || left.is_finished())?;
        }
        if !serving.target.nexuses().is_empty() {
            return Err(Wrong(format!("nexuses are left: {:?}", serving.target.nexuses())));
        }
        if w.net().connections() > 0 {
            return Err(Wrong(format!("connections are left\n{}", w.dump())));
        }
        if let Some(what) = self.wrong() {
            return Err(Wrong(what));
        }
        // The volumes themselves must hold what the hosts were told.
        for (i, load) in self.loads.iter().enumerate() {
            load.settle();
            let volume = self.stores[i].volume(&self.target, 0, &unit_name(i));
            let pool = serving.pools[0].clone();
            let io = Rc::new(VolumeIo(volume));
            w.run(&self.target, 10 * SECONDS, load.clone().read_all(io, pool))?;
            load.verdict()?;
        }
        drop(clients.iter().map(|c| c.host.clone()).collect::<Vec<_>>());
        let pools = serving.pools.iter().chain(clients.iter().map(|c| &c.pool));
        for p in pools {
            if !p.is_whole() {
                return Err(Wrong(format!("buffers leaked: {:?}", p.census())));
            }
        }
        Ok(())
    }
}

pub(super) fn run(run: &Run) -> Result<Pass, Wrong> {
    let mut rng = Prng::new(run.seed ^ 0x5c51);
    let weather = match rng.below(10) {
        0..=2 => Weather::Calm,
        3 => Weather::Resets,
        4..=6 => Weather::Storm,
        _ => Weather::HostileNet,
    };
    let net = match weather {
        Weather::HostileNet => NetConfig::hostile(&mut rng),
        _ => NetConfig::default(),
    };
    let fifo = rng.chance(1, 3);
    let w = run.world(Options { net, fifo, ..Options::default() });
    let target = w.node_with("target", rng.between(1, 2) as usize);
    let stores: Vec<Store> = (0..rng.between(1, 2) as usize)
        .map(|i| Store::draw(&mut rng, &unit_name(i), weather))
        .collect();
    for s in &stores {
        if let Store::Disk(m) = s {
            target.attach(m);
        }
    }
    let loads: Vec<Rc<Load>> = stores
        .iter()
        .enumerate()
        .map(|(i, s)| {
            let mix = Mix {
                blocks: 64,
                most: rng.between(1, 24),
                think: rng.below(500 * MICROS),
                exclusive: s.is_direct(),
                ..Mix::default()
            };
            Load::new(i as u32 + 1, w.time(), mix)
        })
        .collect();
    let immediate = if rng.chance(1, 2) { rng.between(512, 8192) as u32 } else { 0 };
    let descriptors = rng.between(1, 12) as usize;
    let credits = rng.between(4, 16) as u32;
    // Enough for a first channel of everybody, not always for the others.
    let recv_buffers = (rng.between(5, 12) * u64::from(credits + 1)) as usize;
    let config = TargetConfig {
        port_id: TARGET,
        requests: (recv_buffers + rng.below(20) as usize) * target.cores(),
        recv_buffers,
        policy: TargetPolicy { credits, max_table_entries: 64, ..TargetPolicy::default() },
        reads_out: rng.between(1, 8) as u16,
        max_rdma: 4096 << rng.below(3),
        chunk: 4096 << rng.below(3),
        probe_after: 2 * SECONDS,
        ..TargetConfig::default()
    };
    let host_config = HostConfig {
        initiator: TARGET,
        target: TARGET,
        addr: target.addr(1),
        channels: 1,
        immediate,
        descriptors,
        timeout: rng.between(100 * MILLIS, 2 * SECONDS)
            + if weather == Weather::Resets { SECONDS } else { 0 },
        impatient: match weather {
            Weather::Calm | Weather::Resets => Odds::NEVER,
            _ => Odds::one_in(rng.between(5, 100) as u32),
        },
        native_cm: rng.chance(1, 2),
        tries: 200,
        resets: Resets::new(weather == Weather::Resets),
    };
    let play = Rc::new(Play {
        target: target.clone(),
        config,
        stores,
        tas: rng.chance(1, 2),
        loads,
        fault: Fault::default(),
        requests: rng.between(5, 80),
        host_config,
        serving: RefCell::default(),
        old_pools: RefCell::default(),
        clients: RefCell::default(),
        kills: Cell::default(),
        time: w.time(),
    });
    play.serve()?;
    let mut hosts = Vec::new();
    for i in 0..rng.between(1, 3) {
        let node = w.node(&format!("host{i}"));
        play.start_host(&node, i, &mut rng)?;
        hosts.push(node);
    }
    if weather == Weather::Resets {
        for _ in 0..rng.between(1, 6) {
            let (me, mut fork) = (play.clone(), rng.fork());
            w.after(rng.below(500 * MILLIS), move |_| me.reset(&mut fork));
        }
    } else if weather != Weather::Calm {
        let deaths = rng.chance(1, 3);
        play.storm(&w, &mut rng, &hosts, deaths);
        w.run_for(SECONDS);
        w.after(4 * SECONDS, |w| w.net().calm());
    }
    w.run_until(400 * SECONDS, || play.is_over())?;
    if let Some(what) = play.wrong() {
        return Err(Wrong(what));
    }
    w.net().calm();
    w.run_for(15 * SECONDS);
    let mut figures = crate::srp::Figures::default();
    for c in play.clients.borrow().iter() {
        let f = c.host.figures();
        figures.answered += f.answered;
        figures.aborted += f.aborted;
        figures.lost += f.lost;
        figures.attentions += f.attentions;
        figures.logins += f.logins;
        figures.functions += f.functions;
    }
    play.close(&w)?;
    let blocks = play.loads.iter().map(|l| l.figures().blocks_read).sum();
    let writes = play.loads.iter().map(|l| l.figures().writes).sum();
    Ok(Pass {
        trace: w.trace_hash(),
        figures: vec![
            ("blocks verified", blocks),
            ("writes", writes),
            ("commands answered", figures.answered),
            ("aborted", figures.aborted),
            ("lost with their channel", figures.lost),
            ("unit attentions", figures.attentions),
            ("logins", figures.logins),
            ("task management functions", figures.functions),
            ("kills", play.kills.get()),
        ],
    })
}
