//! Hosts with Weir's BRP initiator and a BRP target: verified I/O, and counters that show every COMPARE AND WRITE
//! that was done twice or not at all. In the end nothing may be left anywhere.

use crate::load::{Io, Load, Mix, VolumeIo};
use crate::srp::{DiskVolume, MemVolume};
use crate::{Pass, Run, Wrong};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use weir_base::{IoError, IoResult, MICROS, MILLIS, Prng, SECONDS};
use weir_block::Volume;
use weir_fabric::Provider;
use weir_initiator_brp::{Disk, Error, PortId, Session, SessionConfig, Status, Variant};
use weir_mem::{BufPool, PoolConfig, Slice};
use weir_proto_scsi::geometry::Geometry;
use weir_proto_scsi::identity::{Identity, PortName, TargetPort};
use weir_proto_scsi::lu::LuState;
use weir_reactor::{LocalFuture, sleep};
use weir_sim::{Cut, DiskConfig, NetConfig, Node, Options, SimMedium, World};
use weir_target_brp::{Target, TargetConfig};
use weir_target_core::{Access, AccessMap, HostRule, Unit, UnitShared, Units};

/// Bytes of a volume.
const LEN: u64 = 64 << 10;
/// Blocks that the load uses; the counter's is behind them.
const BLOCKS: u64 = 64;
const BLOCK: usize = 512;
const COUNTER: u64 = LEN - BLOCK as u64;

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

/// What a volume is made of. It outlives the target.
#[derive(Clone)]
enum Store {
    Memory { memory: Slice, direct: bool, delay: u64 },
    Disk(SimMedium),
}

impl Store {
    fn draw(rng: &mut Prng, name: &str) -> Store {
        let memory = Slice::heap(LEN as usize);
        memory.fill(0);
        match rng.below(3) {
            0 => Store::Memory { memory, direct: true, delay: 0 },
            1 => Store::Memory { memory, direct: false, delay: rng.below(200 * MICROS) },
            _ => {
                let config = DiskConfig { volatile_cache: false, ..DiskConfig::default() };
                Store::Disk(SimMedium::new(name, LEN, config, rng.next_u64()))
            }
        }
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

/// A counter in a block, which hosts raise by COMPARE AND WRITE.
#[derive(Default)]
struct Counter {
    raised: Cell<u64>,
    /// The target that knows is gone, or the host.
    in_doubt: Cell<u64>,
}

fn bump(c: &Cell<u64>) {
    c.set(c.get() + 1);
}

fn counter_block(n: u64) -> Vec<u8> {
    let mut b = vec![0; BLOCK];
    if n > 0 {
        b[..8].copy_from_slice(&n.to_le_bytes());
        b[504..].copy_from_slice(&(!n).to_le_bytes());
    }
    b
}

fn counter_value(b: &[u8]) -> Result<u64, String> {
    let word = |at: usize| b[at..at + 8].iter().rev().fold(0u64, |n, x| n << 8 | u64::from(*x));
    let n = word(0);
    if b == counter_block(n) {
        Ok(n)
    } else {
        Err(format!("the counter's block is no counter's: {n}"))
    }
}

/// What is wrong, once something is.
#[derive(Default, Clone)]
struct Fault(Rc<RefCell<Option<String>>>);

impl Fault {
    fn set(&self, what: String) {
        self.0.borrow_mut().get_or_insert(what);
    }

    fn get(&self) -> Option<String> {
        self.0.borrow().clone()
    }
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

/// One life of the target.
struct Serving {
    target: Target,
    pools: Vec<BufPool>,
}

/// A host in one life of its node.
struct Client {
    node: Node,
    life: u32,
    session: Session,
    pools: Vec<BufPool>,
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
    host: SessionConfig,
    stores: Vec<Store>,
    loads: Vec<Rc<Load>>,
    counters: Vec<Rc<Counter>>,
    fault: Fault,
    requests: u64,
    serving: RefCell<Option<Serving>>,
    old_pools: RefCell<Vec<BufPool>>,
    clients: RefCell<Vec<Client>>,
    kills: Cell<u64>,
    sessions: Cell<u64>,
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
        let shared: Vec<Arc<UnitShared>> = (0..self.stores.len())
            .map(|i| {
                let mut id = Identity::new("WEIR", "SIM", "1", &format!("{i:08}"), [i as u8; 16]);
                let name = PortName::Srp(self.config.port_id.0);
                id.ports = vec![TargetPort { relative_id: 1, group: 1, name }];
                let state = LuState::new(id, Geometry::new(BLOCK as u32, LEN / BLOCK as u64));
                UnitShared::new(&unit_name(i), state, None)
            })
            .collect();
        let config =
            TargetConfig { incarnation: u64::from(node.lives()) + 1, ..self.config.clone() };
        let target = Target::new(config, access);
        let mut pools = Vec::new();
        for core in 0..node.cores() {
            let classes = vec![(4096, 24), (16384, 8)];
            let pool = BufPool::new(&PoolConfig { classes }).map_err(|e| Wrong(e.to_string()))?;
            let units = Rc::new(Units::default());
            for (i, s) in self.stores.iter().enumerate() {
                let volume = s.volume(node, core, &unit_name(i));
                node.enter_on(core, || {
                    units.insert(Unit::new(shared[i].clone(), volume, pool.clone(), 16384));
                });
            }
            let provider: Rc<dyn Provider> = node.provider_on(core);
            let joined = node.enter_on(core, || target.join(provider, units, pool.clone()));
            joined.map_err(|e| Wrong(e.to_string()))?;
            pools.push(pool);
        }
        let listening =
            node.enter(|| target.listen(&*node.provider(), "0.0.0.0:1").map_err(|e| e.to_string()));
        listening.map_err(Wrong)?;
        *self.serving.borrow_mut() = Some(Serving { target, pools });
        Ok(())
    }

    /// A host with its clients on a node that has just started.
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
            let classes = vec![(4096, 32), (16384, 16)];
            pools.push(BufPool::new(&PoolConfig { classes }).map_err(|e| Wrong(e.to_string()))?);
            node.enter_on(core, || session.join(node.provider_on(core)));
        }
        let mut work = Vec::new();
        for core in 0..node.cores() {
            for _ in 0..rng.between(1, 4) {
                work.push((core, rng.below(self.loads.len() as u64) as usize, rng.fork()));
            }
        }
        let (me, s, n, r) = (self.clone(), session.clone(), node.clone(), running.clone());
        let mine = pools.clone();
        let mut fork = rng.fork();
        node.spawn(async move {
            // A login of all channels, however long that takes.
            while let Err(e) = s.login().await {
                if matches!(e, Error::Protocol(_) | Error::Invalid(_)) {
                    return me.fault.set(format!("a login failed: {e}"));
                }
                sleep(fork.below(300 * MILLIS)).await;
            }
            // This session is new, so nothing of older ones can happen any more.
            me.loads.iter().for_each(|l| l.settle_owner(number as u32));
            for (core, lun, rng) in work {
                me.client(&n, core, &s, number as u32, lun, mine[core].clone(), rng, r.clone());
            }
            r.set(r.get() - 1);
        });
        let client = Client { life: node.lives(), node: node.clone(), session, pools, running };
        self.clients.borrow_mut().push(client);
        Ok(())
    }

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
            let disk = match s.queue().open(&unit_name(lun)).await {
                Ok(d) => d,
                Err(Error::Replaced | Error::PathDown | Error::TimedOut) => {
                    return running.set(running.get() - 1);
                }
                Err(e) => return me.fault.set(format!("a volume is not there: {e}")),
            };
            if rng.chance(1, 3) {
                for _ in 0..me.requests / 2 {
                    me.raise(&disk, lun, &mut rng).await;
                }
            } else {
                let io = Rc::new(DiskIo { disk, owner, fault: me.fault.clone() });
                me.loads[lun].clone().client(io, pool, rng, me.requests).await;
            }
            running.set(running.get() - 1);
        });
    }

    /// Whether blocks of a volume may be read half written.
    fn torn(&self, lun: usize) -> bool {
        let lent = matches!(self.stores[lun], Store::Memory { direct: true, .. });
        lent && !self.host.integrity
    }

    /// Raises a counter by one.
    async fn raise(&self, disk: &Disk, lun: usize, rng: &mut Prng) {
        struct Doubt<'a>(&'a Counter, bool);
        impl Drop for Doubt<'_> {
            fn drop(&mut self) {
                if self.1 {
                    bump(&self.0.in_doubt);
                }
            }
        }
        let counter = &self.counters[lun];
        let buf = Slice::heap(BLOCK).sub(0, BLOCK);
        for _ in 0..50 {
            match disk.read(COUNTER, buf.clone()).await {
                Ok(()) => {}
                Err(Error::Status(Status::Medium)) => continue,
                Err(_) => return,
            }
            let n = match counter_value(&buf.to_vec()) {
                Ok(n) => n,
                // Without checksums, memory that is lent may be seen half written.
                Err(_) if self.torn(lun) => continue,
                Err(e) => return self.fault.set(e),
            };
            let both = [counter_block(n), counter_block(n + 1)].concat();
            let mut doubt = Doubt(counter, true);
            let r = disk.compare_and_write(COUNTER, Slice::copy_of(&both).sub(0, 2 * BLOCK)).await;
            match r {
                Ok(()) => {
                    doubt.1 = false;
                    return bump(&counter.raised);
                }
                Err(Error::Miscompare(_)) => doubt.1 = false,
                // It may have been done or not.
                Err(
                    Error::InDoubt
                    | Error::Replaced
                    | Error::PathDown
                    | Error::TimedOut
                    | Error::Status(Status::Medium),
                ) => return,
                Err(e) => return self.fault.set(format!("a compare and write failed: {e}")),
            }
            drop(doubt);
            sleep(rng.below(MILLIS)).await;
        }
    }

    fn storm(self: &Rc<Self>, w: &World, rng: &mut Prng, hosts: &[Node], deaths: bool) {
        let mut nodes = hosts.to_vec();
        nodes.push(self.target.clone());
        let span = rng.between(2 * MILLIS, 80 * MILLIS);
        for _ in 0..rng.between(1, 20) {
            let at = rng.below(span);
            let a = nodes[rng.below(nodes.len() as u64) as usize].clone();
            let t = self.target.number();
            match rng.below(10) {
                0..=4 => w.after(at, |w| {
                    w.net().cut_any(Cut::Any);
                }),
                5 | 6 => {
                    let (for_long, one_way) = (rng.below(4 * SECONDS), rng.chance(1, 2));
                    w.after(at, move |w| {
                        w.net().partition_one_way(a.number(), t);
                        if !one_way {
                            w.net().partition_one_way(t, a.number());
                        }
                        w.after(for_long, move |w| w.net().heal(a.number(), t));
                    });
                }
                7 => {
                    let duration = rng.below(2 * SECONDS);
                    w.after(at, move |_| a.pause(duration));
                }
                _ if deaths => self.death(w, at, a, rng),
                _ => {}
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
            bump(&me.kills);
            let is_target = node.number() == me.target.number();
            if is_target {
                // What hosts still wait for they will send again.
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
        for c in clients.iter().filter(|c| c.is_current()) {
            for core in 0..c.node.cores() {
                for census in c.node.enter_on(core, || c.session.census()) {
                    if (census.busy, census.registrations, census.waiting) != (0, 0, 0) {
                        return Err(Wrong(format!("a channel holds commands: {census:?}")));
                    }
                }
            }
            let s = c.session.clone();
            w.run(&c.node, 60 * SECONDS, async move { s.close().await })?;
        }
        let Some(serving) = self.serving.take() else {
            return Err(Wrong("the target is not there in the end".to_string()));
        };
        let node = &self.target;
        for core in 0..node.cores() {
            let t = serving.target.clone();
            let channels = || node.enter_on(core, || t.local_channels().len());
            // Sessions of hosts that died are forgotten in time.
            if let Err(s) = w.run_until(90 * SECONDS, || channels() == 0) {
                return Err(Wrong(format!("channels stay at the target: {s}")));
            }
            let idle = node.enter_on(core, || match t.local_port() {
                Some(p) => p.check_idle(),
                None => Err("the port is gone".to_string()),
            });
            idle.map_err(|e| Wrong(format!("target core {core}: {e}")))?;
            let left = node.spawn_on(core, async move { t.leave().await });
            w.run_until(10 * SECONDS, || left.is_finished())?;
        }
        if !serving.target.sessions().is_empty() {
            return Err(Wrong(format!("sessions are left: {:?}", serving.target.sessions())));
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
            let volume = self.stores[i].volume(node, 0, &unit_name(i));
            let pool = serving.pools[0].clone();
            let io = Rc::new(VolumeIo(volume.clone()));
            w.run(node, 10 * SECONDS, load.clone().read_all(io, pool))?;
            load.verdict()?;
            let counter = w.run(node, 10 * SECONDS, async move {
                let buf = Slice::heap(BLOCK).sub(0, BLOCK);
                for _ in 0..20 {
                    if volume.read(COUNTER, buf.clone()).await.is_ok() {
                        break;
                    }
                }
                buf.to_vec()
            })?;
            self.judge_counter(i, counter_value(&counter).map_err(Wrong)?)?;
        }
        let pools = serving.pools.iter().chain(clients.iter().flat_map(|c| &c.pools));
        for p in pools {
            if !p.is_whole() {
                return Err(Wrong(format!("buffers leaked: {:?}", p.census())));
            }
        }
        Ok(())
    }

    /// Everything acknowledged was done once; what is in doubt was done at most once.
    fn judge_counter(&self, i: usize, value: u64) -> Result<(), Wrong> {
        let (raised, doubt) = (self.counters[i].raised.get(), self.counters[i].in_doubt.get());
        if value < raised || value > raised + doubt {
            return Err(Wrong(format!(
                "counter {i} is {value} after {raised} acknowledged and {doubt} doubtful compare and writes"
            )));
        }
        Ok(())
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
    let stores: Vec<Store> = (0..volumes).map(|i| Store::draw(&mut rng, &unit_name(i))).collect();
    for s in &stores {
        if let Store::Disk(m) = s {
            target.attach(m);
        }
    }
    let integrity = rng.chance(3, 4);
    let loads: Vec<Rc<Load>> = stores
        .iter()
        .enumerate()
        .map(|(i, s)| {
            let direct = matches!(s, Store::Memory { direct: true, .. });
            let mix = Mix {
                blocks: BLOCKS,
                most: rng.between(1, 24),
                think: rng.below(500 * MICROS),
                // Memory that is lent may be seen half written where no checksum tells. A target that dies may
                // leave a write half done, and one that is sent again to the next is done again.
                exclusive: direct && !integrity || weather == Weather::Deaths,
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
        recv_buffers: usize::from(credits) * rng.between(9, 12) as usize,
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
    let play = Rc::new(Play {
        target: target.clone(),
        config,
        host,
        counters: stores.iter().map(|_| Rc::default()).collect(),
        stores,
        loads,
        fault: Fault::default(),
        requests: rng.between(5, 80),
        serving: RefCell::default(),
        old_pools: RefCell::default(),
        clients: RefCell::default(),
        kills: Cell::default(),
        sessions: Cell::default(),
    });
    play.serve()?;
    let mut hosts = Vec::new();
    for i in 0..rng.between(1, 3) {
        let node = w.node_with(&format!("host{i}"), rng.between(1, 2) as usize);
        play.start_host(&node, i, &mut rng)?;
        hosts.push(node);
    }
    if weather != Weather::Calm {
        play.storm(&w, &mut rng, &hosts, weather == Weather::Deaths);
        w.run_for(SECONDS);
        w.after(4 * SECONDS, |w| w.net().calm());
    }
    w.run_until(400 * SECONDS, || play.is_over())?;
    if let Some(what) = play.wrong() {
        return Err(Wrong(what));
    }
    w.net().calm();
    w.run_for(15 * SECONDS);
    let mut f = weir_initiator_brp::SessionFigures::default();
    let (mut commands, mut merged, mut stale) = (0, 0, 0);
    for c in play.clients.borrow().iter() {
        let g = c.session.figures();
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
            for x in c.node.enter_on(core, || c.session.channels()) {
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
    let blocks = play.loads.iter().map(|l| l.figures().blocks_read).sum();
    let writes = play.loads.iter().map(|l| l.figures().writes).sum();
    let raised = play.counters.iter().map(|c| c.raised.get()).sum();
    Ok(Pass {
        trace: w.trace_hash(),
        figures: vec![
            ("blocks verified", blocks),
            ("writes", writes),
            ("compare and writes", raised),
            ("commands", commands),
            ("merged", merged),
            ("stale completions", stale),
            ("connections lost", f.losses),
            ("commands sent again", f.resent),
            ("found done already", f.replayed),
            ("aborted", f.aborts),
            ("kills", play.kills.get()),
        ],
    })
}
