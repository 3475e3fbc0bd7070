//! A story's world: devices, pool, volumes, load.

use super::director::Director;
use super::excused;
use super::trouble::Trouble;
use crate::load::{Io, Load, Mix};
use crate::{Pass, Run, Wrong};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{IoError, IoResult, MICROS, MILLIS, Prng, SECONDS};
use weir_block::Volume;
use weir_disk::Disk;
use weir_mem::{BufPool, PoolConfig, Slice};
use weir_reactor::LocalFuture;
use weir_sim::{DiskConfig, Next, Node, Odds, Options as WorldOptions, SimMedium, World};
use weir_store::{Options, Pool, PoolSpec, StoreVolume, check, create};

/// Longest time that anything may take that must end.
const PATIENCE: u64 = 120 * SECONDS;

/// A volume under load.
pub(crate) struct Loaded {
    pub(crate) name: String,
    pub(crate) load: Rc<Load>,
}

/// Errors that volumes gave and nothing excuses.
#[derive(Default)]
pub(crate) struct Errors {
    pub(crate) wrong: RefCell<Option<String>>,
    pub(crate) excused: Cell<u64>,
}

/// A path to a volume that judges errors.
pub(crate) struct StoreIo {
    volume: Rc<StoreVolume>,
    errors: Rc<Errors>,
    trouble: Trouble,
    copies: u8,
}

impl StoreIo {
    fn judge(&self, r: IoResult, write: bool, what: &str, at: u64) -> IoResult {
        if let Err(e) = r {
            match excused(self.trouble, self.copies, e, write) {
                true => self.errors.excused.set(self.errors.excused.get() + 1),
                false => {
                    let text =
                        format!("{what} at {at} failed: {e}, in a story of {:?}", self.trouble);
                    self.errors.wrong.borrow_mut().get_or_insert(text);
                }
            }
        }
        r
    }
}

impl Io for StoreIo {
    fn read(&self, at: u64, buf: Slice) -> LocalFuture<'_, IoResult> {
        Box::pin(async move { self.judge(self.volume.read(at, buf).await, false, "a read", at) })
    }
    fn write(&self, at: u64, buf: Slice, fua: bool) -> LocalFuture<'_, IoResult> {
        Box::pin(
            async move { self.judge(self.volume.write(at, buf, fua).await, true, "a write", at) },
        )
    }
    fn flush(&self) -> LocalFuture<'_, IoResult> {
        Box::pin(self.volume.flush())
    }
    fn zero(&self, at: u64, len: u64) -> LocalFuture<'_, IoResult> {
        Box::pin(async move {
            self.judge(self.volume.write_zeroes(at, len, true).await, true, "a zeroing", at)
        })
    }
}

/// One seed's story.
pub(crate) struct Story {
    pub(crate) w: World,
    pub(crate) rng: Prng,
    pub(crate) trouble: Trouble,
    pub(crate) spec: PoolSpec,
    pub(crate) media: Vec<SimMedium>,
    /// Devices that are not there any more.
    pub(crate) missing: Vec<usize>,
    /// The one device that may have faults.
    pub(crate) victim: usize,
    pub(crate) node: Node,
    pub(crate) volumes: Vec<Rc<Loaded>>,
    pub(crate) bufs: BufPool,
    pub(crate) errors: Rc<Errors>,
    pub(crate) pool: Rc<RefCell<Option<Pool>>>,
    pub(crate) director: Rc<Director>,
    pub(crate) crashes: u64,
    pub(crate) crashes_in_recovery: u64,
    pub(crate) faults: u64,
    replayed: u64,
    repaired: u64,
}

impl Story {
    pub(crate) fn new(run: &Run) -> Result<Story, Wrong> {
        let w = run.world(WorldOptions::default());
        let mut rng = w.rng(0x5709);
        let trouble = Trouble::draw(&mut rng);
        let copies = if rng.chance(1, 7) { 1 } else { 2 };
        let copies = match trouble {
            Trouble::Latent | Trouble::HalfLost => 2,
            _ => copies,
        };
        let devices = match copies {
            1 => rng.between(1, 3),
            _ => [2, 2, 2, 3, 4][rng.below(5) as usize],
        };
        let slab_shift = rng.between(6, 9) as u8;
        let spec = PoolSpec {
            pool: u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64()),
            copies,
            slab_shift,
            log_pages: rng.between(24, 96),
            spares: 8,
            overwrite: false,
        };
        let config = DiskConfig {
            block_size: if rng.chance(1, 4) { 4096 } else { 512 },
            volatile_cache: rng.chance(4, 5),
            garbage: rng.chance(1, 4),
            ..DiskConfig::default()
        };
        let node = w.node("store");
        let mut media = Vec::new();
        let small = trouble == Trouble::Full;
        for n in 0..devices {
            let data = if small { 512 } else { rng.between(900, 1600) };
            let blocks = 150 + spec.log_pages + spec.spares + 16 + data;
            let m = SimMedium::new(&format!("d{n}"), blocks * 4096, config.clone(), rng.next_u64());
            node.attach(&m);
            media.push(m);
        }
        let bufs = BufPool::new(&PoolConfig { classes: vec![(4096, 32), (65536, 16)] });
        let bufs = bufs.map_err(|e| Wrong(e.to_string()))?;
        let mut volumes = Vec::new();
        for n in 0..rng.between(1, 2) {
            let mix = Mix {
                first: rng.below(4) * 336 * 8 * rng.below(3),
                blocks: match trouble {
                    Trouble::Full => 512 * 8,
                    _ => rng.between(4, 40) * 8 + rng.below(8),
                },
                unit: if rng.chance(1, 2) { 8 } else { 1 },
                most: if small { 12 } else { rng.between(1, 10) },
                writes: rng.between(30, 80) as u32,
                zeros: rng.between(0, 8) as u32,
                think: rng.below(MILLIS / 2),
                ..Mix::default()
            };
            let name = format!("v{n}");
            volumes.push(Rc::new(Loaded { name, load: Load::new(n as u32 + 1, w.time(), mix) }));
        }
        let victim = rng.below(devices) as usize;
        let director = Director::new(rng.fork());
        Ok(Story {
            w,
            rng,
            trouble,
            spec,
            media,
            missing: Vec::new(),
            victim,
            node,
            volumes,
            bufs,
            errors: Rc::default(),
            pool: Rc::default(),
            director,
            crashes: 0,
            crashes_in_recovery: 0,
            faults: 0,
            replayed: 0,
            repaired: 0,
        })
    }

    fn options(&self) -> Options {
        Options {
            deadline: match self.trouble {
                Trouble::Stall => 40 * MILLIS,
                _ => 20 * SECONDS,
            },
            cache: 64 << 10,
            buffers: 256 << 10,
            force: !self.missing.is_empty(),
            lineage: self.spec.pool as u64 ^ self.w.now() | 1,
            ..Options::default()
        }
    }

    fn disks(&self) -> Vec<Rc<dyn Disk>> {
        let here = (0..self.media.len()).filter(|n| !self.missing.contains(n));
        let mut disks: Vec<Rc<dyn Disk>> =
            here.map(|n| self.node.disk(&format!("d{n}")) as Rc<dyn Disk>).collect();
        let turn = self.crashes as usize % disks.len().max(1);
        disks.rotate_left(turn);
        disks
    }

    pub(crate) fn create(&mut self) -> Result<(), Wrong> {
        let (disks, spec) = (self.disks(), self.spec.clone());
        let made = self.w.run(&self.node, PATIENCE, async move { create(&disks, &spec).await })?;
        made.map_err(|e| Wrong(format!("creating the pool: {e}")))?;
        self.open()?;
        let pool = self.running()?;
        let names: Vec<_> = self.volumes.iter().map(|v| v.name.clone()).collect();
        let made = self.w.run(&self.node, PATIENCE, async move {
            for name in names {
                pool.create_volume(&name, 64 << 30, 512).await?;
            }
            pool.create_volume("director", 1 << 30, 4096).await?;
            pool.close().await
        })?;
        made.map_err(|e| Wrong(format!("creating the volumes: {e}")))?;
        self.node.kill();
        self.pool.take();
        self.node.restart();
        Ok(())
    }

    pub(crate) fn running(&self) -> Result<Pool, Wrong> {
        self.pool.borrow().clone().ok_or_else(|| Wrong("the pool is not open".to_string()))
    }

    fn start_open(&self) -> Rc<RefCell<Option<String>>> {
        let (disks, options) = (self.disks(), self.options());
        let (slot, failed) = (self.pool.clone(), Rc::new(RefCell::new(None)));
        let f = failed.clone();
        self.node.spawn(async move {
            match Pool::open(disks, options).await {
                Ok(p) => *slot.borrow_mut() = Some(p),
                Err(e) => *f.borrow_mut() = Some(e.to_string()),
            }
        });
        failed
    }

    pub(crate) fn open(&mut self) -> Result<(), Wrong> {
        let failed = self.start_open();
        let pool = self.pool.clone();
        let done = || pool.borrow().is_some() || failed.borrow().is_some();
        self.w.run_until(PATIENCE, done)?;
        if let Some(e) = failed.borrow().as_ref() {
            return Err(Wrong(format!("opening in a story of {:?}: {e}", self.trouble)));
        }
        let c = self.running()?.counters();
        self.replayed += c.replayed;
        self.repaired += c.replay_repairs;
        Ok(())
    }

    /// Crashes once or twice in the middle of opening.
    pub(crate) fn crash_while_opening(&mut self) -> Result<(), Wrong> {
        for _ in 0..self.rng.between(1, 2) {
            let failed = self.start_open();
            let time = self.rng.between(MICROS, 12 * MILLIS);
            let pool = self.pool.clone();
            let end = self.w.now() + time;
            let _ = self.w.run_until(time, || pool.borrow().is_some());
            if let Some(e) = failed.borrow().as_ref() {
                return Err(Wrong(format!("opening in a story of {:?}: {e}", self.trouble)));
            }
            if self.pool.borrow().is_none() || self.w.now() < end {
                self.crashes_in_recovery += 1;
            }
            self.crash();
        }
        Ok(())
    }

    fn crash(&mut self) {
        self.crashes += 1;
        if self.rng.chance(1, 4) {
            self.node.kill();
        } else {
            self.node.power_off();
        }
        self.pool.take();
        for m in &self.media {
            m.stall(0);
            // It is back when the machine is.
            m.set_offline(false);
            m.set_config(|c| c.flush_error = Odds::NEVER);
            if self.spec.copies == 1 {
                // A pool with one copy cannot even be opened while its device fails.
                m.forget_next();
            }
        }
        self.volumes.iter().for_each(|v| v.load.settle());
        self.node.restart();
    }

    fn io(&self, pool: &Pool, name: &str) -> Result<Rc<StoreIo>, Wrong> {
        let id = pool.find(name).ok_or_else(|| Wrong(format!("volume {name} is gone")))?;
        let volume = pool.volume(id).map_err(|e| Wrong(e.to_string()))?;
        Ok(Rc::new(StoreIo {
            volume,
            errors: self.errors.clone(),
            trouble: self.trouble,
            copies: self.spec.copies,
        }))
    }

    pub(crate) fn start_load(&mut self, _life: u64) -> Result<(), Wrong> {
        let pool = self.running()?;
        for v in self.volumes.clone() {
            for _ in 0..self.rng.between(1, 6) {
                let (io, rng) = (self.io(&pool, &v.name)?, self.rng.fork());
                self.node.spawn(v.load.clone().client(io, self.bufs.clone(), rng, u64::MAX));
            }
        }
        Ok(())
    }

    /// Sets off this life's trouble.
    pub(crate) fn start_trouble(&mut self, life: u64) -> Result<(), Wrong> {
        let pool = self.running()?;
        let p = pool.clone();
        let mut rng = self.rng.fork();
        // Checkpoints at odd moments.
        self.node.spawn(async move {
            loop {
                weir_reactor::sleep(rng.between(MILLIS / 4, 12 * MILLIS)).await;
                if p.checkpoint().await.is_err() {
                    return;
                }
            }
        });
        match self.trouble {
            Trouble::Latent => self.latent(),
            Trouble::DeviceFails if life == 1 => self.fail_a_device(),
            Trouble::Stall if life == 1 => {
                let (m, at) = (self.media[self.victim].clone(), self.rng.below(5 * MILLIS));
                self.faults += 1;
                let (node, life) = (self.node.clone(), self.node.lives());
                self.w.after(at, move |_| {
                    if node.lives() == life {
                        m.stall(10 * SECONDS);
                    }
                });
            }
            Trouble::BothCopies => {
                let io = self.io(&pool, "director")?;
                let d = self.director.clone();
                self.node.spawn(d.damage(pool, io.volume.clone(), self.media.clone()));
                self.faults += 1;
            }
            Trouble::Snapshots => {
                let volumes = self.volumes.clone();
                let d = self.director.clone();
                self.node.spawn(d.snapshots(pool, volumes, self.w.time()));
            }
            _ => {}
        }
        Ok(())
    }

    fn latent(&mut self) {
        let m = self.media[self.victim].clone();
        for _ in 0..self.rng.between(1, 12) {
            let at = self.rng.below(20 * MILLIS);
            let (what, place, m) = (self.rng.below(5), self.rng.below(m.len() / 4096), m.clone());
            self.faults += 1;
            self.w.after(at, move |_| match what {
                0 => m.next_is(Next::LostWrite),
                1 => m.next_is(Next::MisdirectedWrite),
                2 => m.fail_reads(place * 4096, 4096),
                _ => m.rot(place * 4096, 4096, 3),
            });
        }
    }

    fn fail_a_device(&mut self) {
        let (m, at) = (self.media[self.victim].clone(), self.rng.below(10 * MILLIS));
        let what = self.rng.below(3);
        self.faults += 1;
        let (node, life) = (self.node.clone(), self.node.lives());
        self.w.after(at, move |_| match what {
            _ if node.lives() != life || !node.is_alive() => {}
            0 => m.next_is(Next::WriteError),
            // It goes on failing: whoever does not mind the first loses more.
            1 => m.set_config(|c| c.flush_error = Odds::one_in(2)),
            _ => m.set_offline(true),
        });
    }

    /// Ends this life in some way.
    pub(crate) fn end_life(&mut self) -> Result<(), Wrong> {
        self.verdict()?;
        if self.rng.chance(1, 8) && self.spec.copies == 2 {
            let pool = self.running()?;
            self.volumes.iter().for_each(|v| v.load.stop());
            self.director.closing(true);
            let volumes = self.volumes.clone();
            let idle = || volumes.iter().all(|v| v.load.under_way() == 0);
            self.w.run_until(PATIENCE, idle)?;
            let closed = self.w.run(&self.node, PATIENCE, async move { pool.close().await })?;
            if let Err(e) = closed
                && self.trouble != Trouble::Full
            {
                return Err(Wrong(format!("closing in a story of {:?}: {e}", self.trouble)));
            }
        }
        self.crash();
        self.volumes.iter().for_each(|v| v.load.go_on());
        self.director.closing(false);
        self.verdict()?;
        if self.trouble == Trouble::HalfLost && self.missing.is_empty() && self.rng.chance(1, 2) {
            self.missing.push(self.victim);
            self.faults += 1;
        }
        Ok(())
    }

    pub(crate) fn verdict(&self) -> Result<(), Wrong> {
        self.volumes.iter().try_for_each(|v| v.load.verdict())?;
        self.director.verdict()?;
        match self.errors.wrong.borrow().as_ref() {
            Some(e) => Err(Wrong(e.clone())),
            None => Ok(()),
        }
    }

    pub(crate) fn check_snapshots(&mut self) -> Result<(), Wrong> {
        let (d, pool) = (self.director.clone(), self.running()?);
        self.w.run(&self.node, PATIENCE, d.check(pool))?;
        self.verdict()
    }

    fn read_all(&mut self, times: u32) -> Result<(), Wrong> {
        let pool = self.running()?;
        for _ in 0..times {
            for v in self.volumes.clone() {
                let io = self.io(&pool, &v.name)?;
                self.w.run(&self.node, PATIENCE, v.load.clone().read_all(io, self.bufs.clone()))?;
            }
        }
        self.verdict()
    }

    /// Reads everything in every way.
    pub(crate) fn finish(mut self) -> Result<Pass, Wrong> {
        let dead =
            self.spec.copies == 1 && matches!(self.trouble, Trouble::DeviceFails | Trouble::Stall);
        for m in &self.media {
            m.set_offline(false);
        }
        self.open()?;
        self.check_snapshots()?;
        self.read_all(2)?;
        let mut damaged = 0;
        if self.trouble == Trouble::Full {
            self.make_room()?;
        }
        if self.trouble == Trouble::Latent {
            // Faults that wait for a write must not come while everything is put right.
            let (pool, m) = (self.running()?, self.media[self.victim].clone());
            m.forget_next();
            let done = self.w.run(&self.node, PATIENCE, async move { pool.scrub(0).await })?;
            let report = done.map_err(|e| Wrong(format!("scrubbing: {e}")))?;
            damaged = report.damaged;
            if report.lost > 0 || report.repaired != report.damaged {
                return Err(Wrong(format!("scrub did not mend everything: {report:?}")));
            }
            self.read_all(1)?;
        }
        let pool = self.running()?;
        let c = pool.counters();
        let closed = self.w.run(&self.node, PATIENCE, async move { pool.close().await })?;
        if let Err(e) = closed
            && !dead
        {
            return Err(Wrong(format!("closing: {e}")));
        }
        self.node.kill();
        self.pool.take();
        self.volumes.iter().for_each(|v| v.load.settle());
        self.node.restart();
        self.verify()?;
        let whole = self.missing.is_empty()
            && !matches!(self.trouble, Trouble::DeviceFails | Trouble::Stall | Trouble::BothCopies);
        if self.spec.copies == 2 && whole {
            self.each_half_alone()?;
        }
        let sum = |f: fn(&crate::load::Figures) -> u64| {
            self.volumes.iter().map(|v| f(&v.load.figures())).sum::<u64>()
        };
        Ok(Pass {
            trace: self.w.trace_hash(),
            figures: vec![
                ("blocks verified", sum(|f| f.blocks_read)),
                ("writes acknowledged", sum(|f| f.writes)),
                ("crashes", self.crashes),
                ("of them in recovery", self.crashes_in_recovery),
                ("faults", self.faults),
                ("errors excused", self.errors.excused.get()),
                ("damaged copies found by scrub", damaged),
                ("copies repaired", c.repaired + self.repaired),
                ("log entries replayed", self.replayed),
                ("snapshots verified", self.director.verified()),
            ],
        })
    }

    /// In a full pool deletions work, and then so do writes.
    fn make_room(&mut self) -> Result<(), Wrong> {
        let pool = self.running()?;
        let mut all = Vec::new();
        for v in &self.volumes {
            all.push(self.io(&pool, &v.name)?);
        }
        let done = self.w.run(&self.node, PATIENCE, async move {
            for io in &all {
                io.volume.write_zeroes(0, io.volume.geometry().len, true).await?;
            }
            let buf = Slice::heap(65536);
            for n in 0..4 {
                all[0].volume.write(n << 16, buf.clone(), false).await?;
            }
            all[0].volume.write_zeroes(0, 1 << 20, true).await?;
            Ok::<_, IoError>(())
        })?;
        done.map_err(|e| Wrong(format!("a full pool after a deletion: {e}")))?;
        self.volumes.clear();
        Ok(())
    }

    /// The offline verifier finds nothing.
    fn verify(&mut self) -> Result<(), Wrong> {
        let (disks, options) = (self.disks(), self.options());
        let report =
            self.w.run(&self.node, PATIENCE, async move { check(disks, options).await })?;
        let report = report.map_err(|e| Wrong(format!("verifying: {e}")))?;
        let all = report.findings.iter();
        let findings: Vec<_> = match self.trouble {
            Trouble::BothCopies => report
                .structural()
                .filter(|f| f.what != "no good copy" || !f.layer.starts_with("dataset"))
                .collect(),
            _ => all.collect(),
        };
        if let Some(f) = findings.first() {
            return Err(Wrong(format!(
                "the verifier in a story of {:?}: {}: block {}: {} ({} findings)",
                self.trouble,
                f.layer,
                f.vbn,
                f.what,
                findings.len()
            )));
        }
        Ok(())
    }

    /// Everything is read again with each device missing in turn.
    fn each_half_alone(&mut self) -> Result<(), Wrong> {
        for gone in 0..self.media.len() {
            let node = self.w.node(&format!("without-d{gone}"));
            let mut disks: Vec<Rc<dyn Disk>> = Vec::new();
            for (n, m) in self.media.iter().enumerate().filter(|(n, _)| *n != gone) {
                let name = format!("c{gone}-{n}");
                node.attach(&m.copy(&name, n as u64));
                disks.push(node.disk(&name));
            }
            let options = Options { force: true, ..self.options() };
            let opened = self.w.run(&node, PATIENCE, Pool::open(disks, options))?;
            let pool = opened.map_err(|e| Wrong(format!("without device {gone}: {e}")))?;
            for v in self.volumes.clone() {
                let io = self.io(&pool, &v.name)?;
                self.w.run(&node, PATIENCE, v.load.clone().read_all(io, self.bufs.clone()))?;
            }
            self.w.run(&node, PATIENCE, self.director.clone().check(pool))?;
            node.kill();
            self.verdict().map_err(|w| Wrong(format!("without device {gone}: {}", w.0)))?;
        }
        Ok(())
    }
}
