//! A pool that two nodes share, one device of each: owners die, stand still and are cut off, and the other node takes the pool over.
//! What was acknowledged is there at every moment, an owner that is none any more acknowledges nothing, and in the end each node
//! alone has everything.
//!
//! So far this is the store's part: epochs, who has everything, opening with fewer. The way to the other node's device and its gate
//! are stand-ins ([`shelf`]), and so is the register ([`register`]).

mod register;
mod shelf;

use crate::load::{Io, Load, Mix, VolumeIo};
use crate::srp::Fault;
use crate::{Pass, Run, Wrong};
use register::{Asker, Register};
use shelf::{Link, Shelf, Way};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{IoResult, MILLIS, Nanos, Prng, SECONDS};
use weir_block::Volume;
use weir_disk::Disk;
use weir_mem::{BufPool, PoolConfig, Slice};
use weir_reactor::{LocalFuture, TaskId, cancel, sleep, spawn_task};
use weir_sim::{DiskConfig, Node, Options, SimMedium, World};
use weir_store::format::superblock::MemberState;
use weir_store::{
    Able, Arbiter, DataSum, DeviceInfo, Options as StoreOptions, Owner, Pool, PoolSpec, StoreError,
    create,
};

/// Longest time that anything may take that must end.
const PATIENCE: Nanos = 120 * SECONDS;
/// The volume under load, and the one by which an owner is asked whether it still is one.
const VOLUMES: [&str; 2] = ["v", "probe"];

/// One of the two nodes.
struct Side {
    /// 1 or 2.
    number: u16,
    node: Node,
    medium: SimMedium,
    shelf: Rc<Shelf>,
}

/// A pool that is open, or was.
struct Life {
    side: usize,
    epoch: u32,
    pool: Rc<RefCell<Option<Pool>>>,
}

struct Story {
    w: World,
    rng: Prng,
    sides: [Side; 2],
    register: Rc<Register>,
    link: Rc<Link>,
    spec: PoolSpec,
    load: Rc<Load>,
    bufs: BufPool,
    fault: Fault,
    /// The owner's, and that of an owner before that stood still.
    life: Option<Life>,
    former: Option<Life>,
    /// Owner epochs that each side had in its present life.
    epochs: Vec<(usize, u32)>,
    /// Hosts at the present owner, of this life of its node.
    hosts: Vec<TaskId>,
    /// Counts owners: what looks after one of them goes with it.
    owners: Rc<Cell<u64>>,
    takeovers: u64,
    alone: u64,
    probes: Rc<Cell<u64>>,
}

impl Story {
    fn new(run: &Run) -> Result<Story, Wrong> {
        let w = run.world(Options::default());
        let mut rng = w.rng(0x9a19);
        let spec = PoolSpec {
            pool: u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64()),
            copies: 2,
            slab_shift: rng.between(6, 8) as u8,
            log_pages: rng.between(24, 96),
            spares: 8,
            data_sum: DataSum::Crc32k,
            overwrite: false,
            domains: vec![1, 2],
        };
        let config = DiskConfig { volatile_cache: rng.chance(4, 5), ..DiskConfig::default() };
        let mut side = |number: u16| {
            let len = (150 + spec.log_pages + 24 + rng.between(900, 1200)) * 4096;
            let node = w.node(["one", "two"][usize::from(number) - 1]);
            let name = format!("d{number}");
            let medium = SimMedium::new(&name, len, config.clone(), rng.next_u64());
            Side { number, node, medium, shelf: Rc::default() }
        };
        let sides = [side(1), side(2)];
        for s in &sides {
            sides.iter().for_each(|other| s.node.attach(&other.medium));
        }
        let bufs = BufPool::new(&PoolConfig { classes: vec![(4096, 32), (65536, 16)] });
        let mix = Mix {
            blocks: rng.between(4, 60) * 8,
            unit: if rng.chance(1, 2) { 8 } else { 1 },
            most: rng.between(1, 16),
            writes: rng.between(30, 80) as u32,
            think: rng.between(2, 20) * MILLIS,
            ..Mix::default()
        };
        Ok(Story {
            load: Load::new(1, w.time(), mix),
            register: Register::new(rng.fork(), w.time()),
            link: Rc::default(),
            sides,
            spec,
            bufs: bufs.map_err(|e| Wrong(e.to_string()))?,
            fault: Fault::default(),
            life: None,
            former: None,
            epochs: Vec::new(),
            hosts: Vec::new(),
            owners: Rc::default(),
            takeovers: 0,
            alone: 0,
            probes: Rc::default(),
            rng,
            w,
        })
    }

    fn verdict(&self) -> Result<(), Wrong> {
        match self.fault.get() {
            Some(what) => Err(Wrong(what)),
            None => self.load.verdict(),
        }
    }

    /// The way of one side to the device of one.
    fn way(&self, from: usize, to: usize, epoch: u32) -> Rc<Way> {
        let (side, there) = (&self.sides[from], &self.sides[to]);
        let link = (from != to).then(|| self.link.clone());
        Way::new(side.node.disk(there.medium.name()), there.shelf.clone(), epoch, link)
    }

    fn arbiter(&self, epoch: u32) -> Rc<dyn Arbiter> {
        Rc::new(Asker { register: self.register.clone(), epoch })
    }

    fn options(&mut self, side: usize, epoch: u32) -> StoreOptions {
        let owner = Owner {
            epoch,
            domain: self.sides[side].number,
            able: self.register.able(),
            arbiter: self.arbiter(epoch),
        };
        StoreOptions {
            owner: Some(owner),
            lineage: self.rng.next_u64() | 1,
            deadline: SECONDS,
            ..StoreOptions::default()
        }
    }

    fn make(&mut self) -> Result<(), Wrong> {
        let ways = [self.way(0, 0, 0), self.way(0, 1, 0)];
        let (spec, fault) = (self.spec.clone(), self.fault.clone());
        self.w.run(&self.sides[0].node, PATIENCE, async move {
            let disks: Vec<Rc<dyn Disk>> = ways.into_iter().map(|d| d as Rc<dyn Disk>).collect();
            if let Err(e) = create(&disks, &spec).await {
                fault.set(format!("the pool is not made: {e}"));
            }
        })?;
        self.verdict()?;
        self.take(0)?;
        let pool = self.running()?;
        let made = self.w.run(&self.sides[0].node, PATIENCE, async move {
            for name in VOLUMES {
                pool.create_volume(name, 1 << 20, 512).await?;
            }
            Ok::<_, StoreError>(())
        })?;
        made.map_err(|e| Wrong(format!("making the volumes: {e}")))?;
        self.serve()
    }

    /// One side takes the pool over: it claims it, fences what it reaches, and opens it.
    fn take(&mut self, side: usize) -> Result<(), Wrong> {
        let epoch = self.register.claim(self.sides[side].number);
        self.epochs.push((side, epoch));
        self.takeovers += 1;
        let both = self.link.is_up();
        self.alone += u64::from(!both);
        let mut ways = vec![self.way(side, side, epoch)];
        let other = 1 - side;
        if both {
            ways.push(self.way(side, other, epoch));
        }
        let (options, fault) = (self.options(side, epoch), self.fault.clone());
        let pool: Rc<RefCell<Option<Pool>>> = Rc::default();
        let (slot, link) = (pool.clone(), self.link.clone());
        let there = (
            self.sides[side].node.disk(self.sides[other].medium.name()),
            self.sides[other].shelf.clone(),
        );
        let returns = self.owners.clone();
        let life = returns.get();
        self.sides[side].node.spawn(async move {
            for way in &ways {
                // A newer owner may have been let in: then this one fails at its device.
                way.shelf.enter(epoch).await;
                way.disk.drained().await;
            }
            let mut session = ways.get(1).cloned();
            let disks = ways.into_iter().map(|d| d as Rc<dyn Disk>).collect();
            let opened = match Pool::open(disks, options).await {
                Ok(opened) => opened,
                Err(e) => return fault.set(format!("owner {epoch} does not open the pool: {e}")),
            };
            *slot.borrow_mut() = Some(opened.clone());
            // The other node's device comes back with the link.
            while returns.get() == life {
                sleep(50 * MILLIS).await;
                let is_off = session.as_ref().is_none_or(|w| !w.is_on());
                let out = |d: &DeviceInfo| d.state == MemberState::Out;
                let is_lost = opened.status().devices.iter().any(out) && is_off;
                if link.is_up() && is_lost && opened.status().suspended.is_none() {
                    let (disk, shelf) = there.clone();
                    let way = Way::new(disk, shelf, epoch, Some(link.clone()));
                    if !way.shelf.enter(epoch).await {
                        return;
                    }
                    way.disk.drained().await;
                    let _ = opened.attach(way.clone()).await;
                    session = Some(way);
                }
            }
        });
        let (done, fault) = (pool.clone(), self.fault.clone());
        let over = || done.borrow().is_some() || fault.get().is_some();
        self.w.run_until(PATIENCE, over)?;
        self.verdict()?;
        self.life = Some(Life { side, epoch, pool });
        Ok(())
    }

    fn running(&self) -> Result<Pool, Wrong> {
        let pool = self.life.as_ref().and_then(|l| l.pool.borrow().clone());
        pool.ok_or(Wrong("no pool is open".into()))
    }

    fn volume(&self, life: &Life, name: &str) -> Result<Rc<dyn Volume>, Wrong> {
        let pool = life.pool.borrow().clone().ok_or(Wrong("no pool is open".into()))?;
        let id = pool.find(name).ok_or(Wrong(format!("volume {name} is gone")))?;
        let volume = self.sides[life.side].node.enter(|| pool.volume(id));
        volume.map(|v| v as Rc<dyn Volume>).map_err(|e| Wrong(e.to_string()))
    }

    /// Everything is read, and hosts go on.
    fn serve(&mut self) -> Result<(), Wrong> {
        let Some(life) = &self.life else { return Ok(()) };
        // Nothing that an owner before has not done will be done any more: its commands have ended at the devices that count.
        self.load.settle();
        let (volume, node) = (self.volume(life, VOLUMES[0])?, self.sides[life.side].node.clone());
        let io = Rc::new(VolumeIo(volume.clone()));
        self.w.run(&node, PATIENCE, self.load.clone().read_all(io, self.bufs.clone()))?;
        self.verdict()?;
        for _ in 0..self.rng.between(1, 4) {
            let io = Rc::new(Host(VolumeIo(volume.clone())));
            let client = self.load.clone().client(io, self.bufs.clone(), self.rng.fork(), u64::MAX);
            self.hosts.push(node.enter(|| spawn_task(client)));
        }
        Ok(())
    }

    /// A node dies, perhaps with its power. What of it stood still is gone with it.
    fn die(&mut self, side: usize) {
        self.sides[side].node.kill();
        self.link.cut();
        if self.rng.chance(1, 2) {
            // Its own device's only.
            self.sides[side].medium.power_cut();
        }
        for (_, epoch) in self.epochs.extract_if(.., |(s, _)| *s == side) {
            self.sides.iter().for_each(|s| s.shelf.died(epoch));
        }
        self.former = self.former.take().filter(|l| l.side != side);
        self.sides[side].node.restart();
    }

    /// An owner that does not know that it is none any more acknowledges nothing.
    fn probe(&mut self, life: &Life) -> Result<(), Wrong> {
        let (volume, fault, epoch) =
            (self.volume(life, VOLUMES[1])?, self.fault.clone(), life.epoch);
        let pool = life.pool.borrow().clone();
        let probes = self.probes.clone();
        self.sides[life.side].node.spawn(async move {
            for n in 0..8u64 {
                let done = volume.write(n * 4096, Slice::heap(4096), false).await;
                probes.set(probes.get() + 1);
                if done.is_ok() {
                    return fault
                        .set(format!("owner {epoch}, which is none, has acknowledged a write"));
                }
                let knows = match &pool {
                    Some(p) => {
                        p.resume().await.is_err_and(|e| e.to_string().contains("another node"))
                    }
                    None => false,
                };
                if knows && volume.read(n * 4096, Slice::heap(4096)).await.is_ok() {
                    return fault
                        .set(format!("owner {epoch}, which is none and knows it, was read"));
                }
                sleep(100 * MILLIS).await;
            }
        });
        Ok(())
    }

    fn heal_perhaps(&mut self) {
        match self.rng.chance(1, 2) {
            true => self.link.heal(),
            false => self.link.cut(),
        }
    }

    /// The pool has another owner, or the same one anew.
    fn change(&mut self) -> Result<(), Wrong> {
        let Some(life) = self.life.take() else { return Ok(()) };
        // Hosts go elsewhere.
        let hosts = std::mem::take(&mut self.hosts);
        self.sides[life.side].node.enter(|| hosts.into_iter().for_each(cancel));
        self.owners.set(self.owners.get() + 1);
        let able = self.register.able();
        let is_able = |s: &Side| able.has(s.number);
        let other = 1 - life.side;
        let to_other = is_able(&self.sides[other]) && self.rng.chance(1, 2);
        match to_other {
            // It stands still, or is cut off, and goes on later.
            true if self.rng.chance(1, 2) => {
                if let Some(f) = self.former.take() {
                    self.die(f.side);
                }
                self.link.cut();
                if self.rng.chance(1, 2) {
                    let long = self.rng.below(3 * SECONDS);
                    self.sides[life.side].node.pause(long);
                }
                self.take(other)?;
                // The first write waits for the register, the others know.
                self.probe(&life)?;
                self.former = Some(life);
            }
            true => {
                self.die(life.side);
                if self.former.is_some() {
                    self.die(other);
                }
                self.heal_perhaps();
                self.take(other)?;
            }
            false => {
                self.die(life.side);
                if let Some(f) = self.former.take() {
                    self.die(f.side);
                }
                if is_able(&self.sides[life.side]) {
                    self.heal_perhaps();
                    self.take(life.side)?;
                } else {
                    self.take(other)?;
                }
            }
        }
        self.serve()
    }

    fn step(&mut self) -> Result<(), Wrong> {
        let longest = [50, 500, 3000][self.rng.below(3) as usize] * MILLIS;
        let pause = self.rng.below(longest);
        self.w.run_for(pause);
        self.verdict()?;
        match self.rng.below(8) {
            0..3 if self.link.is_up() => self.link.cut(),
            0..3 => self.link.heal(),
            3..6 => self.change()?,
            6 => {
                let Some(life) = &self.life else { return Ok(()) };
                let other = 1 - life.side;
                if self.former.as_ref().is_none_or(|f| f.side == other) {
                    // The partner's device is away while its node is.
                    self.link.cut();
                    self.former = None;
                    self.die(other);
                }
            }
            _ => self.link.heal(),
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Pass, Wrong> {
        if let Some(f) = self.former.take() {
            self.die(f.side);
        }
        self.link.heal();
        // It may not have been seen yet that it was down.
        self.w.run_for(2 * SECONDS);
        let pool = self.running()?;
        let both = Able::NONE.with(1).with(2);
        let well = || {
            let s = pool.status();
            s.whole && s.work.is_none() && s.suspended.is_none() && self.register.able() == both
        };
        if let Err(e) = self.w.run_until(60 * SECONDS, || self.verdict().is_err() || well()) {
            let able = self.register.able();
            return Err(Wrong(format!(
                "it does not come back: {e}; {able:?}; {:?}",
                pool.status()
            )));
        }
        self.verdict()?;
        self.load.stop();
        let load = self.load.clone();
        self.w.run_until(PATIENCE, || load.under_way() == 0)?;
        let side = self.life.as_ref().map_or(0, |l| l.side);
        let last = pool.clone();
        match self.rng.chance(1, 2) {
            true => {
                let closed = self
                    .w
                    .run(&self.sides[side].node, PATIENCE, async move { last.close().await })?;
                closed.map_err(|e| Wrong(format!("closing: {e}")))?;
            }
            false => self.die(side),
        }
        self.owners.set(self.owners.get() + 1);
        self.load.settle();
        // Each node alone.
        for n in 0..2 {
            let node = self.w.node(&format!("alone-{n}"));
            let copy = self.sides[n].medium.copy(&format!("c{n}"), 7 + n as u64);
            node.attach(&copy);
            let epoch = self.register.claim(self.sides[n].number);
            let options = self.options(n, epoch);
            let disks: Vec<Rc<dyn Disk>> = vec![node.disk(copy.name())];
            let opened = self.w.run(&node, PATIENCE, Pool::open(disks, options))?;
            let opened = opened.map_err(|e| Wrong(format!("node {} alone: {e}", n + 1)))?;
            let life = Life { side: n, epoch, pool: Rc::new(RefCell::new(Some(opened.clone()))) };
            let id = opened.find(VOLUMES[0]).ok_or(Wrong("the volume is gone".into()))?;
            let volume = node.enter(|| opened.volume(id)).map_err(|e| Wrong(e.to_string()))?;
            let io = Rc::new(VolumeIo(volume as Rc<dyn Volume>));
            self.w.run(&node, PATIENCE, self.load.clone().read_all(io, self.bufs.clone()))?;
            self.verdict().map_err(|w| Wrong(format!("node {} alone: {}", n + 1, w.0)))?;
            drop(life);
            node.kill();
            self.register.force(both);
        }
        let (f, r) = (self.load.figures(), &self.register);
        Ok(Pass {
            trace: self.w.trace_hash(),
            figures: vec![
                ("blocks read", f.blocks_read),
                ("writes", f.writes),
                ("openings", self.takeovers),
                ("openings with one device", self.alone),
                ("nodes that were dropped", r.fewer.get()),
                ("nodes that came back", r.more.get()),
                ("owners that were refused", r.refused.get()),
                ("nodes that came back in doubt", r.doubts.get()),
                ("writes asked of owners that are none", self.probes.get()),
            ],
        })
    }
}

/// A host. A pool that waits fails at once: it does not try again without a pause.
struct Host(VolumeIo);

async fn then<T>(done: IoResult<T>) -> IoResult<T> {
    if done.is_err() {
        sleep(5 * MILLIS).await;
    }
    done
}

impl Io for Host {
    fn read(&self, at: u64, buf: Slice) -> LocalFuture<'_, IoResult> {
        Box::pin(async move { then(self.0.read(at, buf).await).await })
    }
    fn write(&self, at: u64, buf: Slice, fua: bool) -> LocalFuture<'_, IoResult> {
        Box::pin(async move { then(self.0.write(at, buf, fua).await).await })
    }
    fn flush(&self) -> LocalFuture<'_, IoResult> {
        Box::pin(async move { then(self.0.flush().await).await })
    }
    fn zero(&self, at: u64, len: u64) -> LocalFuture<'_, IoResult> {
        Box::pin(async move { then(self.0.zero(at, len).await).await })
    }
}

pub(super) fn run(run: &Run) -> Result<Pass, Wrong> {
    let mut s = Story::new(run)?;
    s.make()?;
    for _ in 0..s.rng.between(3, 20) {
        s.step()?;
    }
    s.finish()
}
