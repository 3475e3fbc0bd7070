//! A pool whose one device is a disk and whose other one is a volume of another node, by the pool's own means to reach it and to have it
//! back: both nodes die and come back, links are cut and parted. What was acknowledged is there at every moment, and when all is
//! quiet the far half has everything again, by itself.

mod far;

use crate::load::{Load, Mix, VolumeIo};
use crate::srp::Fault;
use crate::{Pass, Run, Wrong};
use far::{Far, VOLUME};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{MILLIS, Nanos, Prng, SECONDS};
use weir_disk::Disk;
use weir_fabric::Provider;
use weir_initiator_brp::{Family, PortId};
use weir_mem::{BufPool, PoolConfig};
use weir_reactor::{LocalFuture, sleep};
use weir_remote::{Place, Reach, Remote, Returns};
use weir_sim::{Cut, DiskConfig, NetConfig, Node, Options, SimMedium, World};
use weir_store::{DataSum, Options as StoreOptions, Pool, PoolSpec, create};

/// Longest time that anything may take that must end.
const PATIENCE: Nanos = 120 * SECONDS;
/// What the far half is called in the pool.
const NAME: &str = "brp://far/half";
/// The volume on the pool.
const DATASET: &str = "v";

/// How the near node reaches the far one.
struct Way {
    provider: Rc<dyn Provider>,
    place: Place,
    /// Sessions so far.
    sessions: Cell<u64>,
}

impl Reach for Way {
    fn reach<'a>(&'a self, name: &'a str) -> LocalFuture<'a, Result<Rc<Remote>, String>> {
        Box::pin(async move {
            let session = self.sessions.get() + 1;
            self.sessions.set(session);
            let place = Place { session, ..self.place.clone() };
            let opened = Remote::open(self.provider.clone(), &place, name).await;
            opened.map(Rc::new).map_err(|e| e.to_string())
        })
    }
}

/// The pool, and what looks after its far half.
type Open = (Pool, Rc<Returns>);

struct Story {
    w: World,
    rng: Prng,
    near: Node,
    disk: SimMedium,
    far: Rc<Far>,
    spec: PoolSpec,
    load: Rc<Load>,
    bufs: BufPool,
    fault: Fault,
    /// Of this life of the near node.
    pool: Rc<RefCell<Option<Open>>>,
    deaths: u64,
}

impl Story {
    fn new(run: &Run) -> Result<Story, Wrong> {
        let w = run.world(Options::default());
        let mut rng = w.rng(0x4e30);
        if rng.chance(1, 3) {
            let hostile = NetConfig::hostile(&mut rng);
            w.net().set_config(|c| *c = hostile);
        }
        let spec = PoolSpec {
            pool: u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64()),
            copies: if rng.chance(1, 4) { 1 } else { 2 },
            slab_shift: rng.between(6, 8) as u8,
            log_pages: rng.between(24, 96),
            spares: 8,
            data_sum: DataSum::Crc32k,
            overwrite: false,
            domains: Vec::new(),
        };
        let len = (150 + spec.log_pages + 24 + rng.between(900, 1200)) * 4096;
        let near = w.node("near");
        let config = DiskConfig { volatile_cache: rng.chance(4, 5), ..DiskConfig::default() };
        let disk = SimMedium::new("here", len, config, rng.next_u64());
        near.attach(&disk);
        let far = Far::new(&w, len, &mut rng)?;
        let bufs = BufPool::new(&PoolConfig { classes: vec![(4096, 32), (65536, 16)] });
        // Some hosts always have a write under way.
        let longest = [2 * MILLIS, 20 * MILLIS][rng.below(2) as usize];
        let think = rng.below(longest);
        let mix = Mix {
            blocks: rng.between(4, 60) * 8,
            unit: if rng.chance(1, 2) { 8 } else { 1 },
            most: rng.between(1, 16),
            writes: rng.between(30, 80) as u32,
            // A pool that waits fails at once.
            think: if spec.copies == 1 { think.max(20 * MILLIS) } else { think },
            ..Mix::default()
        };
        let load = Load::new(1, w.time(), mix);
        Ok(Story {
            w,
            rng,
            near,
            disk,
            far,
            spec,
            load,
            bufs: bufs.map_err(|e| Wrong(e.to_string()))?,
            fault: Fault::default(),
            pool: Rc::default(),
            deaths: 0,
        })
    }

    fn way(&self) -> Way {
        let place = Place {
            at: self.far.node.addr(1),
            volume: VOLUME.into(),
            initiator: PortId([7; 16]),
            family: Family::new(self.near.lives() + 1),
            depth: 16,
            session: 0,
            secret: None,
        };
        Way { provider: self.near.provider(), place, sessions: Cell::new(0) }
    }

    fn verdict(&self) -> Result<(), Wrong> {
        for fault in [&self.fault, &self.far.fault] {
            if let Some(what) = fault.get() {
                return Err(Wrong(what));
            }
        }
        self.load.verdict()
    }

    /// Opens the pool, which is made at first, on a near node that has just started and reaches the far one.
    fn open(&mut self, first: bool) -> Result<(), Wrong> {
        let (way, disk, spec) = (self.way(), self.near.disk("here"), self.spec.clone());
        let (pool, fault) = (self.pool.clone(), self.fault.clone());
        let lineage = self.rng.next_u64();
        self.w.run(&self.near, PATIENCE, async move {
            disk.drained().await;
            let remote = loop {
                match way.reach(NAME).await {
                    Ok(r) => break r,
                    // The target may wait for the end of what the last life had sent.
                    Err(_) => sleep(100 * MILLIS).await,
                }
            };
            let mut disks: Vec<Rc<dyn Disk>> = vec![remote.clone()];
            if spec.copies == 2 {
                disks.insert(0, disk);
            }
            if first && let Err(e) = create(&disks, &spec).await {
                return fault.set(format!("the pool is not made: {e}"));
            }
            match Pool::open(disks, StoreOptions { lineage, ..StoreOptions::default() }).await {
                Ok(opened) => {
                    if first && let Err(e) = opened.create_volume(DATASET, 1 << 20, 512).await {
                        return fault.set(format!("the volume is not made: {e}"));
                    }
                    let returns = Returns::start(opened.clone(), Rc::new(way));
                    returns.add(NAME, Some(&remote));
                    *pool.borrow_mut() = Some((opened, returns));
                }
                Err(e) => fault.set(format!("the pool is not opened: {e}")),
            }
        })?;
        self.verdict()?;
        // Neither the last life's disk nor its session can do anything any more.
        self.load.settle_given_up();
        for _ in 0..self.rng.between(1, 4) {
            let io = Rc::new(VolumeIo(self.volume()?));
            let client = self.load.clone().client(io, self.bufs.clone(), self.rng.fork(), u64::MAX);
            self.near.spawn(client);
        }
        Ok(())
    }

    fn running(&self) -> Result<Pool, Wrong> {
        let running = self.pool.borrow();
        running.as_ref().map(|(p, _)| p.clone()).ok_or(Wrong("no pool is open".into()))
    }

    fn volume(&self) -> Result<Rc<dyn weir_block::Volume>, Wrong> {
        let pool = self.running()?;
        let found = pool.datasets().into_iter().find(|d| d.name == DATASET);
        let id = found.ok_or(Wrong("the volume is gone".into()))?.id;
        let volume = self.near.enter(|| pool.volume(id));
        volume.map(|v| v as Rc<dyn weir_block::Volume>).map_err(|e| Wrong(e.to_string()))
    }

    /// The near node dies, and comes back when the far one is there.
    fn die(&mut self) -> Result<(), Wrong> {
        self.deaths += 1;
        self.pool.take();
        match self.rng.chance(1, 2) {
            true => self.near.power_off(),
            false => self.near.kill(),
        }
        let pause = self.rng.below(SECONDS);
        self.w.run_for(pause);
        self.w.net().heal_all();
        let far = self.far.clone();
        self.w.run_until(PATIENCE, || far.node.is_alive())?;
        self.near.restart();
        self.open(false)
    }

    fn step(&mut self) -> Result<(), Wrong> {
        let longest = [50, 500, 4000][self.rng.below(3) as usize] * MILLIS;
        let pause = self.rng.below(longest);
        self.w.run_for(pause);
        self.verdict()?;
        self.settle()?;
        let (a, b) = (self.near.number(), self.far.node.number());
        match self.rng.below(10) {
            0 => self.die()?,
            1..4 => self.far.die(&self.w, &mut self.rng),
            4 => {
                self.w.net().cut_between(a, b, Cut::Any);
            }
            5..7 => {
                let (longest, one_way) = (self.rng.below(10 * SECONDS), self.rng.chance(1, 2));
                self.w.net().partition_one_way(a, b);
                if !one_way {
                    self.w.net().partition_one_way(b, a);
                }
                self.w.after(longest, move |w| w.net().heal(a, b));
            }
            7 => self.far.stall(&mut self.rng),
            _ => {}
        }
        Ok(())
    }

    /// What has failed while the pool waited was done by now, or never will be.
    fn settle(&self) -> Result<(), Wrong> {
        if self.spec.copies == 1 && self.running()?.status().suspended.is_none() {
            self.load.settle_given_up();
        }
        Ok(())
    }

    fn is_well(pool: &Pool) -> bool {
        let s = pool.status();
        let all = s.devices.iter().all(|d| !d.failed && d.name.is_some());
        s.whole && s.work.is_none() && s.suspended.is_none() && all
    }

    fn be_well(&self) -> Result<Pool, Wrong> {
        let (pool, far) = (self.running()?, self.far.clone());
        self.w.run_until(PATIENCE, || far.node.is_alive())?;
        // That it was away may not have been seen yet.
        self.w.run_for(weir_remote::PATIENCE + 2 * weir_remote::LOOK);
        let well = || Story::is_well(&pool);
        if let Err(e) = self.w.run_until(40 * SECONDS, || self.verdict().is_err() || well()) {
            return Err(Wrong(format!("it does not come back: {e}; {:?}", pool.status())));
        }
        self.verdict()?;
        self.settle()?;
        Ok(pool)
    }

    /// While it is away, also for a moment, the far volume becomes what it was a while ago. Hosts may do nothing meanwhile.
    fn go_back(&mut self) -> Result<(), Wrong> {
        self.be_well()?;
        let before = self.far.image();
        let idle = self.rng.chance(1, 2);
        self.w.run_for(SECONDS);
        if idle {
            self.load.stop();
        }
        self.w.run_for(SECONDS);
        let away = self.rng.below([100 * MILLIS, 10 * SECONDS][self.w.now() as usize % 2]);
        self.far.die_and_be(&self.w, before, away);
        self.w.run_for(20 * SECONDS);
        Ok(())
    }

    /// The same where the pool has nothing else, and waits for it: it does not go on with that, whoever may wait, and goes on when the
    /// volume is what it was.
    fn go_back_alone(&mut self) -> Result<(), Wrong> {
        let pool = self.be_well()?;
        let (before, written) = (self.far.image(), self.load.figures().writes);
        self.w.run_for(SECONDS);
        let changed = self.load.figures().writes > written;
        let away = weir_remote::PATIENCE + self.rng.between(2, 10) * SECONDS;
        let last = self.far.die_and_be(&self.w, before, away);
        self.w.run_for(away + 15 * SECONDS);
        if changed && pool.status().suspended.is_none() {
            return Err(Wrong("a pool that waited went on with what its device was before".into()));
        }
        self.far.die_and_be(&self.w, last, SECONDS);
        self.w.run_for(2 * SECONDS);
        Ok(())
    }

    /// In the end all is well by itself, and each half has everything.
    fn finish(mut self) -> Result<Pass, Wrong> {
        self.w.net().heal_all();
        self.w.net().calm();
        self.far.be_well();
        match self.rng.chance(1, 2) {
            true if self.spec.copies == 2 => self.go_back()?,
            true => self.go_back_alone()?,
            false => {}
        }
        let pool = self.be_well()?;
        self.load.stop();
        let load = self.load.clone();
        self.w.run_until(PATIENCE, || load.under_way() == 0)?;
        let scrubbed = pool.clone();
        let report = self.w.run(&self.near, PATIENCE, async move { scrubbed.scrub(0).await })?;
        let report = report.map_err(|e| Wrong(format!("the scrub: {e}")))?;
        if report.damaged > 0 || report.lost > 0 {
            return Err(Wrong(format!("a scrub found copies that are not right: {report:?}")));
        }
        // The far half alone.
        self.disk.set_offline(self.spec.copies == 2);
        let io = Rc::new(VolumeIo(self.volume()?));
        self.w.run(&self.near, PATIENCE, self.load.clone().read_all(io, self.bufs.clone()))?;
        self.verdict()?;
        let f = self.load.figures();
        Ok(Pass {
            trace: self.w.trace_hash(),
            figures: vec![
                ("blocks read", f.blocks_read),
                ("writes", f.writes),
                ("deaths here", self.deaths),
                ("deaths there", self.far.deaths.get()),
                ("devices failed", pool.counters().devices_failed),
            ],
        })
    }
}

pub(super) fn run(run: &Run) -> Result<Pass, Wrong> {
    let mut s = Story::new(run)?;
    s.far.serve()?;
    s.open(true)?;
    for _ in 0..s.rng.between(3, 20) {
        s.step()?;
    }
    s.finish()
}
