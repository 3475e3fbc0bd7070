//! A story's world: devices, pool, volumes, load.

use super::beside::{Beside, PAIR};
use super::closing::SHREDDED;
use super::crashes::Crashes;
use super::director::{Director, is_low};
use super::faults::Faults;
use super::forms::{Form, Forms};
use super::passing::{Illness, KINDS};
use super::steward::{Bay, Steward};
use super::trouble::Trouble;
use crate::load::{Io, Load, Mix};
use crate::{Run, Wrong, own};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{IoError, IoResult, MICROS, MILLIS, Nanos, Prng, SECONDS};
use weir_block::Volume;
use weir_disk::Disk;
use weir_mem::{BufPool, PoolConfig, Slice};
use weir_reactor::LocalFuture;
use weir_sim::check::blocks::SUMMED;
use weir_sim::{
    DiskConfig, Next, Node, Odds, Options as WorldOptions, SimDisk, SimMedium, Time, World,
};
use weir_store::format::label::Layout;
use weir_store::format::superblock::MemberState;
use weir_store::{DataSum, Options, Pool, PoolSpec, create, label_of};

/// Longest time that anything may take that must end.
pub(crate) const PATIENCE: u64 = 120 * SECONDS;

/// A volume under load.
pub(crate) struct Loaded {
    pub(crate) name: String,
    pub(crate) load: Rc<Load>,
    pub(crate) form: Form,
}

/// Errors that volumes gave and nothing excuses.
#[derive(Default)]
pub(crate) struct Errors {
    pub(crate) wrong: RefCell<Option<String>>,
    pub(crate) excused: Cell<u64>,
    pub(crate) ill: Illness,
}

/// A path to a volume that judges errors.
pub(crate) struct StoreIo {
    id: u32,
    form: Form,
    forms: Rc<Forms>,
    pool: Pool,
    errors: Rc<Errors>,
    trouble: Trouble,
    copies: u8,
    director: Rc<Director>,
    time: Time,
}

impl StoreIo {
    /// The volume; on its node.
    pub(crate) fn volume(&self) -> Result<Rc<dyn Volume>, IoError> {
        self.forms.open(&self.pool, self.id, self.form).map(|f| f.volume).map_err(|e| {
            self.errors.wrong.borrow_mut().get_or_insert(format!("a volume: {e}"));
            IoError::Internal
        })
    }

    /// When a request begins, and whether the pool is suspended then.
    fn begin(&self) -> (Nanos, bool) {
        (self.time.now(), self.pool.status().suspended.is_some())
    }

    fn judge(
        &self,
        r: IoResult,
        write: bool,
        what: &str,
        at: u64,
        (began, suspended): (Nanos, bool),
    ) -> IoResult {
        if let Err(e) = r {
            // A pool may have given empty slabs up so that a device could go.
            let few = self.trouble == Trouble::Devices && is_low(&self.pool);
            let full = e == IoError::NoSpace && (few || self.director.fills(&self.pool));
            let when = (began, suspended || self.pool.status().suspended.is_some());
            let ill = &self.errors.ill;
            let excused = ill.excuses(self.trouble, self.copies, e, write, when);
            match excused || (write && full) {
                true => self.errors.excused.set(self.errors.excused.get() + 1),
                false => {
                    let (s, trouble) = (self.pool.status(), self.trouble);
                    let text = format!(
                        "{what} at {at} failed: {e}, in a story of {trouble:?}; {} of {} bytes are free",
                        s.free, s.total
                    );
                    self.errors.wrong.borrow_mut().get_or_insert(text);
                }
            }
        }
        r
    }

    /// What was answered by an error has been done or has not, and stays so. Layers above the pool go on with it.
    fn decided(&self, r: IoResult) -> IoResult {
        if self.form.is_plain() { r.map_err(|_| IoError::Aborted) } else { r }
    }
}

impl Io for StoreIo {
    fn read(&self, at: u64, buf: Slice) -> LocalFuture<'_, IoResult> {
        Box::pin(async move {
            let began = self.begin();
            self.judge(self.volume()?.read(at, buf).await, false, "a read", at, began)
        })
    }
    fn write(&self, at: u64, buf: Slice, fua: bool) -> LocalFuture<'_, IoResult> {
        Box::pin(async move {
            let began = self.begin();
            let done = self.volume()?.write(at, buf, fua).await;
            self.decided(self.judge(done, true, "a write", at, began))
        })
    }
    fn flush(&self) -> LocalFuture<'_, IoResult> {
        Box::pin(async move { self.volume()?.flush().await })
    }
    fn zero(&self, at: u64, len: u64) -> LocalFuture<'_, IoResult> {
        Box::pin(async move {
            let began = self.begin();
            let done = self.volume()?.write_zeroes(at, len, true).await;
            self.decided(self.judge(done, true, "a zeroing", at, began))
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
    /// Of the media, those that the pool was made on.
    pub(crate) first: usize,
    /// Devices that are not there any more.
    pub(crate) missing: Vec<usize>,
    /// The one device that may have faults.
    pub(crate) victim: usize,
    /// Times that the pool was opened with both copies of one of its superblocks damaged.
    pub(crate) hidden: Cell<u64>,
    /// A device has lost what it said that it had, and somebody has to say that there is nothing newer.
    pub(crate) lied: Cell<bool>,
    pub(crate) node: Node,
    pub(crate) volumes: Vec<Rc<Loaded>>,
    pub(crate) bufs: BufPool,
    pub(crate) errors: Rc<Errors>,
    pub(crate) pool: Rc<RefCell<Option<Pool>>>,
    pub(crate) director: Rc<Director>,
    pub(crate) steward: Rc<Steward>,
    pub(crate) beside: Rc<Beside>,
    /// Bytes of maps in memory; places are used again at once.
    cache: usize,
    reuse_at_once: bool,
    /// What one checkpoint gives back of what was deleted.
    give_back: u64,
    /// Checksums do not cover the data: lives end in order only.
    pub(crate) unsummed: bool,
    /// How its first device is laid out.
    pub(crate) like: Option<Layout>,
    pub(crate) crashes: Crashes,
    /// Faults of single copies that were aimed at what is in use.
    pub(crate) aimed: Faults,
    /// Chance for those.
    pub(crate) faulty: RefCell<Prng>,
    pub(crate) stalls: u64,
    pub(crate) faults: u64,
    /// When the last of the faults that were planned for a time comes.
    pub(crate) faults_until: u64,
    pub(crate) replayed: u64,
    pub(crate) repaired: u64,
    /// Recoveries that kept the log, and those that merged it.
    pub(crate) opened: (u64, u64),
    /// Turns of the newest superblock at the last crash.
    pub(crate) turns: usize,
    /// A device that failed before something was acknowledged, in a life that has ended since.
    pub(crate) known: Option<String>,
    /// Mends that were given up.
    pub(crate) mends: u64,
}

impl Story {
    pub(crate) fn new(run: &Run) -> Result<Story, Wrong> {
        let w = run.world(WorldOptions::default());
        let mut rng = w.rng(0x5709);
        let trouble = Trouble::draw(&mut rng);
        let copies = if rng.chance(1, 7) { 1 } else { 2 };
        let copies = match trouble {
            Trouble::Latent | Trouble::HalfLost | Trouble::Away | Trouble::Lies => 2,
            Trouble::OneThenOther => 2,
            Trouble::Unreadable => [1, 1, 2][rng.below(3) as usize],
            _ => copies,
        };
        let devices = match copies {
            1 => rng.between(1, 3),
            _ => [2, 2, 2, 3, 4][rng.below(5) as usize],
        };
        let slab_shift = rng.between(6, 9) as u8;
        let mut sums = w.rng(0x5a_5709);
        let old = sums.chance(1, 8);
        let spec = PoolSpec {
            pool: u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64()),
            copies,
            slab_shift,
            log_pages: rng.between(24, 96),
            spares: 8,
            data_sum: if old { DataSum::Crc32c } else { DataSum::Crc32k },
            overwrite: false,
            domains: Vec::new(),
        };
        let config = DiskConfig {
            open_waits: !own::has(own::Bug::OpenDoesNotWait),
            block_size: if rng.chance(1, 4) { 4096 } else { 512 },
            volatile_cache: rng.chance(4, 5),
            garbage: rng.chance(1, 4),
            error: KINDS[rng.below(KINDS.len() as u64) as usize],
            ..DiskConfig::default()
        };
        let node = w.node("store");
        let mut media = Vec::new();
        let small = trouble == Trouble::Full;
        let more = match trouble {
            Trouble::Devices => rng.between(1, 3),
            Trouble::Lies => 1,
            _ => 0,
        };
        for n in 0..devices + more {
            let data = if small { 512 } else { rng.between(900, 1600) };
            let blocks = 150 + spec.log_pages + spec.spares + 16 + data;
            let m = SimMedium::new(&format!("d{n}"), blocks * 4096, config.clone(), rng.next_u64());
            node.attach(&m);
            media.push(m);
        }
        let bufs = BufPool::new(&PoolConfig { classes: vec![(4096, 32), (65536, 16)] });
        let bufs = bufs.map_err(|e| Wrong(e.to_string()))?;
        let (mut volumes, mut formed) = (Vec::new(), w.rng(0xf0_5709));
        for n in 0..rng.between(1, 2) {
            let (name, form) = (format!("v{n}"), Form::draw(&mut formed));
            let first = rng.below(4) * 336 * 8 * rng.below(3);
            let blocks = match trouble {
                Trouble::Full => 512 * 8,
                _ => rng.between(4, 40) * 8 + rng.below(8),
            };
            let unit = if rng.chance(1, 2) { 8 } else { 1 };
            let mix = Mix {
                // On both sides of where one group of chunks ends and the next begins.
                first: match form.border().filter(|_| formed.chance(1, 2)) {
                    Some(border) => border - (blocks / 16 * 8).min(border),
                    None => first,
                },
                blocks,
                unit,
                most: match unit {
                    _ if small => 12,
                    // Several whole blocks and parts of others.
                    1 if rng.chance(2, 3) => rng.between(8, 120),
                    _ => rng.between(1, 10),
                },
                writes: rng.between(30, 80) as u32,
                zeros: rng.between(0, 8) as u32,
                think: rng.below(MILLIS / 2),
                ..Mix::default()
            };
            let summed = if !old && sums.chance(1, 2) { SUMMED } else { 0 };
            let load = Load::new(form.kind() | summed | (n as u32 + 1), w.time(), mix);
            volumes.push(Rc::new(Loaded { name, load, form }));
        }
        let victim = rng.below(devices) as usize;
        let director = Director::new(rng.fork(), formed, bufs.clone());
        let steward = Steward::new(rng.fork(), copies == 2);
        let faulty = RefCell::new(rng.fork());
        let mut other = w.rng(0xbe_5709);
        let cache = [0, 0, 64 << 10][other.below(3) as usize];
        let unsummed = trouble == Trouble::None && other.chance(1, 8);
        Ok(Story {
            w,
            rng,
            trouble,
            spec,
            media,
            first: devices as usize,
            missing: Vec::new(),
            victim,
            hidden: Cell::new(0),
            lied: Cell::new(false),
            node,
            volumes,
            bufs,
            errors: Rc::default(),
            pool: Rc::default(),
            director,
            steward,
            beside: Rc::default(),
            cache,
            reuse_at_once: other.chance(1, 2),
            give_back: if other.chance(1, 2) { other.between(1, 4) } else { 256 },
            unsummed,
            like: None,
            crashes: Crashes::default(),
            aimed: Faults::default(),
            faulty,
            stalls: 0,
            faults: 0,
            faults_until: 0,
            replayed: 0,
            repaired: 0,
            opened: (0, 0),
            turns: 0,
            known: None,
            mends: 0,
        })
    }

    /// What it is about, for whoever looks at one that failed.
    pub(crate) fn about(&self) -> String {
        let forms: Vec<Form> = self.volumes.iter().map(|v| v.form).collect();
        format!(
            "a story of {:?}: {} devices, {} copies, cache {}, at once {}, unsummed {}, {forms:?}",
            self.trouble,
            self.media.len(),
            self.spec.copies,
            self.cache,
            self.reuse_at_once,
            self.unsummed
        )
    }

    pub(crate) fn options(&self) -> Options {
        Options {
            deadline: match self.trouble {
                // Longer than a device takes that is well.
                Trouble::Stall | Trouble::Away => {
                    [40, 12, 12][self.spec.log_pages as usize % 3] * MILLIS
                }
                _ => 20 * SECONDS,
            },
            cache: self.cache,
            reuse_at_once: self.reuse_at_once,
            give_back: self.give_back,
            sum_data: !self.unsummed,
            buffers: 256 << 10,
            force: !self.missing.is_empty() || self.is_hidden() || self.lied.get(),
            spare_after: Some(self.spec.log_pages % 4 * MILLIS),
            lineage: self.spec.pool as u64 ^ self.w.now() | 1,
            proof: MILLIS,
            ..Options::default()
        }
    }

    /// A fault by chance and a crash may have hit both copies of a superblock.
    fn is_hidden(&self) -> bool {
        let victim = &self.media[self.victim];
        self.trouble == Trouble::Latent && (self.hides_superblock(victim) || self.hides_log(victim))
    }

    fn opened(&self) -> Vec<Rc<SimDisk>> {
        let here = (0..self.media.len()).filter(|n| !self.missing.contains(n));
        let mut disks: Vec<Rc<SimDisk>> = here.map(|n| self.node.disk(&format!("d{n}"))).collect();
        let turn = self.crashes.all as usize % disks.len().max(1);
        disks.rotate_left(turn);
        disks
    }

    pub(crate) fn disks(&self) -> Vec<Rc<dyn Disk>> {
        self.opened().into_iter().map(|d| d as Rc<dyn Disk>).collect()
    }

    pub(crate) fn create(&mut self) -> Result<(), Wrong> {
        let (mut disks, spec) = (self.disks(), self.spec.clone());
        disks.truncate(self.first);
        let made = self.w.run(&self.node, PATIENCE, async move { create(&disks, &spec).await })?;
        made.map_err(|e| Wrong(format!("creating the pool: {e}")))?;
        let first = self.disks().remove(0);
        let label = self.w.run(&self.node, PATIENCE, async move { label_of(&first).await })?;
        self.like = label.ok().map(|l| l.layout);
        self.open()?;
        let pool = self.running()?;
        let volumes = self.volumes.clone();
        let made = self.w.run(&self.node, PATIENCE, async move {
            for v in volumes {
                pool.create_volume(&v.name, v.form.stored_len(64 << 30), 512).await?;
            }
            pool.create_volume("director", 1 << 30, 4096).await?;
            for name in PAIR.into_iter().chain([SHREDDED]) {
                pool.create_volume(name, 1 << 20, 4096).await?;
            }
            Ok::<(), weir_store::StoreError>(())
        })?;
        made.map_err(|e| Wrong(format!("creating the volumes: {e}")))?;
        self.mark()?;
        let pool = self.running()?;
        let closed = self.w.run(&self.node, PATIENCE, async move { pool.close().await })?;
        closed.map_err(|e| Wrong(format!("closing the new pool: {e}")))?;
        self.node.kill();
        self.pool.take();
        self.node.restart();
        Ok(())
    }

    pub(crate) fn running(&self) -> Result<Pool, Wrong> {
        self.pool.borrow().clone().ok_or_else(|| Wrong("the pool is not open".to_string()))
    }

    fn start_open(&self) -> Rc<RefCell<Option<String>>> {
        let (disks, options) = (self.opened(), self.options());
        self.hidden.set(self.hidden.get() + u64::from(self.is_hidden()));
        let (slot, failed) = (self.pool.clone(), Rc::new(RefCell::new(None)));
        let f = failed.clone();
        self.node.spawn(async move {
            for d in &disks {
                d.drained().await;
            }
            let disks = disks.into_iter().map(|d| d as Rc<dyn Disk>).collect();
            match Pool::open(disks, options).await {
                Ok(p) => *slot.borrow_mut() = Some(p),
                Err(e) => *f.borrow_mut() = Some(e.to_string()),
            }
        });
        failed
    }

    pub(crate) fn open(&mut self) -> Result<(), Wrong> {
        self.fail_while_opening();
        let pool = self.pool.clone();
        let mut was_hidden = self.is_hidden();
        let failed = loop {
            let failed = self.start_open();
            let done = || pool.borrow().is_some() || failed.borrow().is_some();
            self.w.run_until(PATIENCE, done)?;
            if self.is_lie(&failed) {
                continue;
            }
            // A fault has come while it was opened: then somebody has to ask for it.
            if failed.borrow().is_none() || was_hidden || !self.is_hidden() {
                break failed;
            }
            was_hidden = true;
        };
        if let Some(e) = failed.borrow().as_ref() {
            return Err(Wrong(format!("opening in a story of {:?}: {e}", self.trouble)));
        }
        let pool = self.running()?;
        self.is_known(&pool)?;
        if !self.trouble.with_devices() {
            let all = pool.status().devices;
            if let Some(d) = all.iter().find(|d| d.state != MemberState::InSync) {
                return Err(Wrong(format!(
                    "device {} is {:?} after opening in a story of {:?}, where none was ill",
                    d.number, d.state, self.trouble
                )));
            }
        }
        let c = pool.counters();
        self.replayed += c.replayed;
        self.repaired += c.replay_repairs;
        self.opened.0 += c.logs_kept;
        self.opened.1 += 1 - c.logs_kept;
        Ok(())
    }

    /// It was refused for a device that lies; by force it is opened from here on.
    fn is_lie(&self, failed: &RefCell<Option<String>>) -> bool {
        let is_old = failed.borrow().as_ref().is_some_and(|e| e.contains("old copy"));
        let lies = match self.trouble {
            Trouble::Lies => true,
            // One that loses writes may lose superblocks, again and again.
            Trouble::Latent => self.lacks_superblock(&self.media[self.victim]),
            _ => false,
        };
        lies && is_old && !self.lied.replace(true)
    }

    /// Crashes several times in the middle of opening.
    pub(crate) fn crash_while_opening(&mut self) -> Result<(), Wrong> {
        // One of these may bring it back.
        self.known = None;
        for _ in 0..self.rng.between(1, 4) {
            let was_hidden = self.is_hidden();
            let failed = self.start_open();
            let time = self.rng.between(MICROS, 12 * MILLIS);
            let pool = self.pool.clone();
            if self.rng.chance(1, 4) {
                // The short time in which a superblock may be on one device only, and twice in a row.
                let done = || pool.borrow().is_some() || self.superblock_at_risk();
                let _ = self.w.run_until(PATIENCE, done);
            } else {
                let _ = self.w.run_until(time, || pool.borrow().is_some());
            }
            let may_fail = !was_hidden && self.is_hidden() || self.is_lie(&failed);
            if let Some(e) = failed.borrow().as_ref().filter(|_| !may_fail) {
                return Err(Wrong(format!("opening in a story of {:?}: {e}", self.trouble)));
            }
            let recovering = self.pool.borrow().is_none();
            self.crash(recovering);
        }
        Ok(())
    }

    /// Ends this life. `recovering`: the pool was being opened.
    fn crash(&mut self, recovering: bool) {
        let kill = self.rng.chance(1, 3) || self.unsummed;
        let newest = self.newest();
        self.note_crash(kill, recovering);
        self.note_blame();
        if kill {
            self.node.kill();
        } else {
            self.node.power_off();
        }
        self.pool.take();
        self.director.is_over();
        for m in &self.media {
            m.stall(0);
            // It is back when the machine is.
            m.set_offline(false);
            m.set_config(|c| {
                (c.read_error, c.write_error, c.flush_error) =
                    (Odds::NEVER, Odds::NEVER, Odds::NEVER);
            });
            self.steward.all_back();
            if self.spec.copies == 1 || self.trouble == Trouble::Lies {
                // A pool with one copy cannot even be opened while its device fails.
                m.forget_next();
            }
        }
        self.hide(newest);
        self.volumes.iter().for_each(|v| v.load.settle());
        self.node.restart();
    }

    pub(crate) fn io(&self, pool: &Pool, v: &Loaded) -> Result<Rc<StoreIo>, Wrong> {
        let id = pool.find(&v.name).ok_or_else(|| Wrong(format!("volume {} is gone", v.name)))?;
        Ok(Rc::new(StoreIo {
            id,
            form: v.form,
            forms: self.director.forms(),
            pool: pool.clone(),
            errors: self.errors.clone(),
            trouble: self.trouble,
            copies: self.spec.copies,
            director: self.director.clone(),
            time: self.w.time(),
        }))
    }

    /// Ends the layers of volumes in a form in order.
    pub(crate) fn settle_forms(&self) -> Result<(), Wrong> {
        let forms = self.director.forms();
        Ok(self.w.run(&self.node, PATIENCE, async move { forms.settle().await })?)
    }

    pub(crate) fn start_load(&mut self, life: u64) -> Result<(), Wrong> {
        if self.trouble == Trouble::Lies && life == 1 {
            return Ok(());
        }
        let pool = self.running()?;
        for v in self.volumes.clone() {
            for _ in 0..self.rng.between(1, 6) {
                let (io, rng) = (self.io(&pool, &v)?, self.rng.fork());
                let most = match self.trouble {
                    // It may take long.
                    Trouble::Passing => self.rng.between(30, 300),
                    _ => u64::MAX,
                };
                self.node.spawn(v.load.clone().client(io, self.bufs.clone(), rng, most));
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
        self.start_beside(&pool);
        match self.trouble {
            Trouble::Latent => self.latent(),
            Trouble::DeviceFails if life == 1 => self.fail_a_device(),
            Trouble::Stall if life == 1 => {
                let (m, at) = (self.media[self.victim].clone(), self.rng.below(5 * MILLIS));
                self.faults += 1;
                self.stalls += 1;
                let (node, life) = (self.node.clone(), self.node.lives());
                self.w.after(at, move |_| {
                    if node.lives() == life {
                        m.stall(10 * SECONDS);
                    }
                });
            }
            Trouble::BothCopies => {
                let d = self.director.clone();
                self.node.spawn(d.damage(pool, self.media.clone()));
                self.faults += 1;
            }
            Trouble::Passing => self.fail_for_a_while(pool),
            Trouble::Away => {
                self.snapshots(&pool);
                let (s, bay) = (self.steward.clone(), self.bay(self.victim));
                self.node.spawn(s.comes_and_goes(pool, bay));
            }
            Trouble::Devices => {
                self.snapshots(&pool);
                let bays = (0..self.media.len()).map(|n| self.bay(n)).collect();
                self.node.spawn(self.steward.clone().rebuilds(pool, bays));
            }
            Trouble::Lies if life == 1 => {
                let (s, bay) = (self.steward.clone(), self.bay(self.first));
                self.node.spawn(s.liar(pool, self.victim as u16, bay));
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

    /// In half of the stories there are snapshots besides.
    fn snapshots(&self, pool: &Pool) {
        if self.spec.log_pages.is_multiple_of(2) {
            let (d, volumes) = (self.director.clone(), self.volumes.clone());
            self.node.spawn(d.snapshots(pool.clone(), volumes, self.w.time()));
        }
    }

    fn bay(&self, n: usize) -> Bay {
        let name = format!("d{n}");
        Bay { disk: self.node.disk(&name), medium: self.media[n].clone(), name }
    }

    fn latent(&mut self) {
        let m = self.media[self.victim].clone();
        for _ in 0..self.rng.between(1, 12) {
            let at = self.rng.below(20 * MILLIS);
            self.faults_until = self.faults_until.max(self.w.now() + at);
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
        if !self.unsummed && self.rng.chance(1, 6) {
            self.close_beside()?;
        } else if (self.rng.chance(1, 8) && self.spec.copies == 2) || self.unsummed {
            let pool = self.running()?;
            self.volumes.iter().for_each(|v| v.load.stop());
            self.director.verdict.closing(true);
            self.steward.verdict.closing(true);
            let volumes = self.volumes.clone();
            let idle = || volumes.iter().all(|v| v.load.under_way() == 0);
            self.w.run_until(PATIENCE, idle)?;
            self.settle_forms()?;
            let p = pool.clone();
            let closed = self.w.run(&self.node, PATIENCE, async move { p.close().await })?;
            // Its devices may have failed just now.
            let passing = self.trouble == Trouble::Passing && pool.status().suspended.is_some();
            if let Err(e) = closed
                && self.trouble != Trouble::Full
                && !passing
            {
                return Err(Wrong(format!("closing in a story of {:?}: {e}", self.trouble)));
            }
        }
        self.crash(false);
        self.volumes.iter().for_each(|v| v.load.go_on());
        self.director.verdict.closing(false);
        self.steward.verdict.closing(false);
        self.errors.ill.closing(false);
        self.verdict()?;
        if self.trouble == Trouble::Away {
            // It may not be there when the pool is opened next, and be there the time after.
            self.missing.clear();
            if self.rng.chance(1, 3) {
                self.missing.push(self.victim);
                self.faults += 1;
            }
        }
        if self.trouble == Trouble::HalfLost && self.missing.is_empty() && self.rng.chance(1, 2) {
            self.missing.push(self.victim);
            self.faults += 1;
        }
        Ok(())
    }

    pub(crate) fn verdict(&self) -> Result<(), Wrong> {
        self.volumes.iter().try_for_each(|v| v.load.verdict())?;
        self.director.verdict.get()?;
        self.steward.verdict.get()?;
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
}
