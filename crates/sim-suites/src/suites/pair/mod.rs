//! A pool that two nodes share, one device of each: owners die, stand still and are cut off, and the other node takes the pool over.
//! What was acknowledged is there at every moment, an owner that is none any more acknowledges nothing, and in the end each node
//! alone has everything.
//!
//! So far this is the store's part: epochs, who has everything, opening with fewer. The way to the other node's device and its gate
//! are stand-ins ([`shelf`]), and so is the register ([`register`]).

mod former;
mod keeper;
mod register;
mod shelf;

use crate::load::{Io, Load, Mix, VolumeIo};
use crate::srp::Fault;
use crate::{Pass, Run, Wrong};
use former::Asked;
use keeper::{Keeper, Place};
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
use weir_store::format::label::Label;
use weir_store::{
    Able, Arbiter, DataSum, Options as StoreOptions, Owner, Pool, PoolSpec, StoreError, create,
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
    /// The device does not answer anybody.
    off: Cell<bool>,
    shelf: Rc<Shelf>,
}

impl Side {
    fn set_off(&self, off: bool) {
        self.off.set(off);
        self.medium.set_offline(off);
    }

    /// Nothing of the log on its device can be read, until that is mended.
    fn lose_log(&self) {
        let mut label = [0; 4096];
        self.medium.peek(0, &mut label);
        if let Ok(l) = Label::decode(&label) {
            self.medium.fail_reads(l.layout.log(0) * 4096, l.layout.log_pages * 4096);
        }
    }

    fn mend(&self) {
        self.set_off(false);
        self.medium.read_again();
    }
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
    /// Blocks that hosts use.
    blocks: u64,
    takeovers: u64,
    alone: u64,
    failed: u64,
    again: u64,
    off: u64,
    probes: Rc<Cell<u64>>,
    asked: Rc<Cell<u64>>,
    resumed: Rc<Cell<u64>>,
    given_up: Rc<Cell<u64>>,
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
            Side { number, node, medium, off: Cell::new(false), shelf: Rc::default() }
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
            blocks: mix.blocks,
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
            failed: 0,
            again: 0,
            off: 0,
            probes: Rc::default(),
            asked: Rc::default(),
            resumed: Rc::default(),
            given_up: Rc::default(),
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

    /// One side takes the pool over. What its own half has of the log may be lost to it for a while.
    fn take(&mut self, side: usize) -> Result<(), Wrong> {
        let able = self.register.able();
        let is_unread = self.rng.chance(1, 6);
        if is_unread {
            self.sides[side].lose_log();
        }
        let may_fail = is_unread || self.sides[side].off.get();
        let is_open = self.open(side, may_fail)?;
        self.sides[side].medium.read_again();
        if is_open {
            return Ok(());
        }
        // Nothing was acknowledged meanwhile: whoever had everything still has it.
        self.failed += 1;
        let now = self.register.able();
        if now != able {
            return Err(Wrong(format!("an opening that failed made {now:?} of {able:?}")));
        }
        self.sides[side].mend();
        self.open(side, false).map(drop)
    }

    /// It claims the pool, fences what it reaches, and opens it. False: that failed.
    fn open(&mut self, side: usize, may_fail: bool) -> Result<bool, Wrong> {
        let epoch = self.register.claim(self.sides[side].number);
        self.epochs.push((side, epoch));
        self.takeovers += 1;
        let both = self.link.is_up();
        self.alone += u64::from(!both);
        let place = |to: usize| Place {
            number: to as u16,
            disk: self.sides[side].node.disk(self.sides[to].medium.name()),
            shelf: self.sides[to].shelf.clone(),
            link: (to != side).then(|| self.link.clone()),
            session: (to == side || both).then(|| self.way(side, to, epoch)),
        };
        let places = [place(side), place(1 - side)];
        let (options, fault) = (self.options(side, epoch), self.fault.clone());
        let pool: Rc<RefCell<Option<Pool>>> = Rc::default();
        let (slot, failed) = (pool.clone(), Rc::new(Cell::new(false)));
        let (fails, owners, rng) = (failed.clone(), self.owners.clone(), self.rng.fork());
        let (resumed, given_up) = (self.resumed.clone(), self.given_up.clone());
        self.sides[side].node.spawn(async move {
            let ways: Vec<Rc<Way>> = places.iter().filter_map(|p| p.session.clone()).collect();
            for way in &ways {
                // A newer owner may have been let in: then this one fails at its device.
                way.shelf.enter(epoch).await;
                way.disk.drained().await;
            }
            let disks = ways.into_iter().map(|d| d as Rc<dyn Disk>).collect();
            let pool = match Pool::open(disks, options).await {
                Ok(opened) => opened,
                Err(_) if may_fail => return fails.set(true),
                Err(e) => return fault.set(format!("owner {epoch} does not open the pool: {e}")),
            };
            *slot.borrow_mut() = Some(pool.clone());
            Keeper { pool, epoch, places, owners, rng, resumed, given_up }.keep().await;
        });
        let (done, fault) = (pool.clone(), self.fault.clone());
        let over = || done.borrow().is_some() || failed.get() || fault.get().is_some();
        self.w.run_until(PATIENCE, over)?;
        self.verdict()?;
        if !failed.get() {
            self.life = Some(Life { side, epoch, pool });
        }
        Ok(!failed.get())
    }

    /// An epoch that an owner had is not opened under once more, be it by the same node.
    fn open_again(&mut self, life: &Life) -> Result<(), Wrong> {
        let way = self.way(life.side, life.side, life.epoch);
        let options = self.options(life.side, life.epoch);
        let node = self.sides[life.side].node.clone();
        self.again += 1;
        let opened = async move {
            way.disk.drained().await;
            Pool::open(vec![way as Rc<dyn Disk>], options).await.is_ok()
        };
        match self.w.run(&node, PATIENCE, opened)? {
            true => Err(Wrong(format!("owner epoch {} was opened under twice", life.epoch))),
            false => Ok(()),
        }
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
        let (Some(pool), epoch) = (life.pool.borrow().clone(), life.epoch) else {
            return Ok(());
        };
        let asked = Asked {
            pool,
            epoch,
            register: self.register.clone(),
            fault: self.fault.clone(),
            rng: self.rng.fork(),
            blocks: self.blocks,
            count: self.asked.clone(),
        };
        let asks = asked.ask(volume.clone());
        node.enter(|| spawn_task(asks));
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
                if self.rng.chance(1, 4) {
                    // With its own device it loses both at once, and asks nobody.
                    self.off += 1;
                    self.sides[life.side].set_off(true);
                }
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
                    let is_there = !self.sides[life.side].off.get();
                    if is_there && self.register.epoch.get() == life.epoch && self.rng.chance(1, 4)
                    {
                        self.open_again(&life)?;
                    }
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
        match self.rng.below(12) {
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
            7 => self.link.heal(),
            8 => {
                let side = &self.sides[self.rng.below(2) as usize];
                self.off += u64::from(!side.off.get());
                side.set_off(!side.off.get());
            }
            9 => {
                let longest = [1, 20, 120][self.rng.below(3) as usize] * SECONDS;
                self.register.sticks(self.rng.below(longest));
            }
            10 => self.register.answers(),
            _ => self.sides.iter().for_each(Side::mend),
        }
        Ok(())
    }

    /// An owner that has lost its own device, and then the way to the other node, does not go on: the other node takes over.
    fn leave(&mut self) -> Result<(), Wrong> {
        let is_suspended = self.running()?.status().suspended.is_some();
        let able = self.register.able();
        let Some(life) =
            self.life.take_if(|l| is_suspended && !able.has(self.sides[l.side].number))
        else {
            return Ok(());
        };
        let hosts = std::mem::take(&mut self.hosts);
        self.sides[life.side].node.enter(|| hosts.into_iter().for_each(cancel));
        self.owners.set(self.owners.get() + 1);
        self.die(life.side);
        self.link.heal();
        self.take(1 - life.side)?;
        self.serve()
    }

    fn finish(mut self) -> Result<Pass, Wrong> {
        if let Some(f) = self.former.take() {
            self.die(f.side);
        }
        self.link.heal();
        self.register.answers();
        self.sides.iter().for_each(Side::mend);
        // It may not have been seen yet that it was down.
        self.w.run_for(2 * SECONDS);
        self.leave()?;
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
                ("questions to owners that know that they are none", self.asked.get()),
                ("openings that failed", self.failed),
                ("openings under an epoch that was used", self.again),
                ("devices that failed", self.off),
                ("pools that went on", self.resumed.get()),
                ("such of which nobody waited for that", self.given_up.get()),
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
