//! A volume moves back and forth between two disks while hosts on two cores use it, through faults of either disk,
//! cancels, commits that fail, and crashes at any moment. The destination may stop answering for a while, again and
//! again, so that the migration falls behind and catches up under load.
//!
//! As in the daemon, the graph of each core leads to the volume's place or to the migration, changes one core after the
//! other, and a durable record says which place is the volume. Hosts' data is checked against block histories; in
//! addition both disks are compared, byte by byte, at each cut-over.

mod stalls;
mod volume;

use crate::load::{Load, Mix};
use crate::{Pass, Run, Wrong};
use stalls::Stalls;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use volume::{Judge, Path, Thin};
use weir_base::{MICROS, MILLIS, Nanos, Prng, SECONDS};
use weir_block::{Junction, Volume};
use weir_layers::migrate::{Migration, Phase, Plan};
use weir_mem::{BufPool, PoolConfig};
use weir_reactor::sleep;
use weir_sim::{DiskConfig, Next, Node, Odds, Options, SimMedium, World};

/// Longest time that anything may take that must end.
const PATIENCE: Nanos = 120 * SECONDS;
const CORES: usize = 2;
const NAMES: [&str; 2] = ["a", "b"];

/// What goes wrong in a story, besides crashes and cancels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Nothing,
    /// I/O of the destination fails.
    DestinationFails,
    /// The destination does not answer for a while.
    DestinationStalls,
    /// I/O of the source fails, which hosts may see.
    SourceFails,
    /// It is not known what is durable.
    CommitFails,
}

/// How a cut-over went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    None,
    UnderWay,
    /// It has to be tried again.
    NotYet,
    Moved,
}

/// What outlives the daemon, and what its tasks tell the story.
#[derive(Default)]
struct Told {
    /// The durable record: which disk is the volume.
    home: Cell<usize>,
    cut: Cell<Option<Cut>>,
    doubtful: Cell<bool>,
    wrong: RefCell<Option<String>>,
}

struct Story {
    w: World,
    rng: Prng,
    trouble: Trouble,
    node: Node,
    media: [SimMedium; 2],
    len: u64,
    load: Rc<Load>,
    judge: Rc<Judge>,
    pools: Vec<BufPool>,
    told: Rc<Told>,
    /// Of this life: what hosts use, by core.
    tops: Vec<Rc<Junction>>,
    moving: Option<Rc<Migration>>,
    stalls: Option<Rc<Stalls>>,
    /// Crashes and cancels are that much rarer in this migration.
    calm: u64,
    moved: u64,
    cancelled: u64,
    failed: u64,
    crashes: u64,
    crashes_at_cut_over: u64,
    /// How often a migration fell behind, and how often it caught up.
    behind: u64,
    caught_up: u64,
}

impl Story {
    fn new(run: &Run) -> Result<Story, Wrong> {
        let w = run.world(Options::default());
        let mut rng = w.rng(0x316);
        let trouble = [
            Trouble::Nothing,
            Trouble::DestinationFails,
            Trouble::DestinationStalls,
            Trouble::DestinationStalls,
            Trouble::SourceFails,
            Trouble::CommitFails,
        ][rng.below(6) as usize];
        let len = rng.between(8, 48) * 4096;
        let node = w.node_with("node", CORES);
        let config = DiskConfig { pieces: rng.between(1, 4) as usize, ..DiskConfig::default() };
        let media = NAMES.map(|n| SimMedium::new(n, len, config.clone(), rng.next_u64()));
        media.iter().for_each(|m| node.attach(m));
        let longest = [1, 4, 16][rng.below(3) as usize] * MILLIS;
        let think = rng.below(longest);
        let mix = Mix {
            blocks: len / 512,
            most: rng.between(1, 24),
            writes: rng.between(20, 60) as u32,
            zeros: rng.between(0, 30) as u32,
            // Busy hosts soon write again what the destination has wrong; others leave it to be seen.
            think,
            volatile: true,
            ..Mix::default()
        };
        let load = Load::new(1, w.time(), mix);
        let mut pools = Vec::new();
        for _ in 0..CORES {
            let made = BufPool::new(&PoolConfig { classes: vec![(16384, 16)] });
            pools.push(made.map_err(|e| Wrong(e.to_string()))?);
        }
        Ok(Story {
            w,
            rng,
            trouble,
            node,
            media,
            len,
            load,
            judge: Rc::default(),
            pools,
            told: Rc::default(),
            tops: Vec::new(),
            moving: None,
            stalls: None,
            calm: 1,
            moved: 0,
            cancelled: 0,
            failed: 0,
            crashes: 0,
            crashes_at_cut_over: 0,
            behind: 0,
            caught_up: 0,
        })
    }

    fn place(&self, core: usize, which: usize) -> Rc<dyn Volume> {
        Rc::new(Thin { disk: self.node.disk_on(core, NAMES[which]), len: self.len })
    }

    fn verdict(&self) -> Result<(), Wrong> {
        self.load.verdict()?;
        for w in [&self.judge.wrong, &self.told.wrong] {
            if let Some(w) = w.borrow().as_ref() {
                return Err(Wrong(format!("{w}, in a story of {:?}", self.trouble)));
            }
        }
        Ok(())
    }

    /// Opens a disk as the daemon does: it has nobody's I/O before all that a killed process had asked of it has ended.
    fn take(&self, which: usize) -> Result<(), Wrong> {
        let disk = self.node.disk_on(0, NAMES[which]);
        Ok(self.w.run(&self.node, PATIENCE, async move { disk.drained().await })?)
    }

    /// The daemon starts: the volume is where the durable record says.
    fn open(&mut self) -> Result<(), Wrong> {
        let home = self.told.home.get();
        self.take(home)?;
        self.tops.clear();
        for core in 0..CORES {
            let place = self.place(core, home);
            let top = self.node.enter_on(core, || Rc::new(Junction::new(place)));
            for _ in 0..self.rng.between(1, 4) {
                let path = Path { volume: top.clone(), judge: self.judge.clone() };
                let client = self.load.clone().client(
                    Rc::new(path),
                    self.pools[core].clone(),
                    self.rng.fork(),
                    u64::MAX,
                );
                self.node.spawn_on(core, client);
            }
            self.tops.push(top);
        }
        Ok(())
    }

    /// Has every core use another volume, one after the other.
    fn regraph(&mut self, make: impl Fn(&Story, usize) -> Rc<dyn Volume>) -> Result<(), Wrong> {
        for core in 0..CORES {
            let new = self.node.enter_on(core, || make(self, core));
            let (top, told) = (self.tops[core].clone(), self.told.clone());
            let done = Rc::new(Cell::new(false));
            let flag = done.clone();
            self.node.spawn_on(core, async move {
                loop {
                    match top.quiesce().await {
                        Ok(q) => {
                            if let Err(e) = q.swap(new) {
                                told.wrong.borrow_mut().get_or_insert(format!("a swap: {e}"));
                            }
                            break;
                        }
                        // The flush failed: once more.
                        Err(_) => sleep(MILLIS).await,
                    }
                }
                flag.set(true);
            });
            self.w.run_until(PATIENCE, || done.get())?;
        }
        Ok(())
    }

    fn start(&mut self, quiet: bool) -> Result<(), Wrong> {
        let home = self.told.home.get();
        let clean = self.rng.chance(1, 2);
        self.take(1 - home)?;
        let there = &self.media[1 - home];
        // A new place reads as zeros; one that is not new holds anything.
        let fill = if clean { 0 } else { 0x5a };
        there.set_offline(false);
        there.forget_next();
        there.poke(0, &vec![fill; self.len as usize]);
        let stalls = self.trouble == Trouble::DestinationStalls;
        self.calm = [if stalls { 8 } else { 1 }, 8, 40][self.rng.below(3) as usize];
        let plan = Plan {
            len: self.len,
            clean,
            verify: self.rng.chance(2, 3),
            // No slower than that a calm one ends.
            rate: match self.rng.chance(1, 2) {
                true => 1 << self.rng.between(if quiet || self.calm > 1 { 20 } else { 17 }, 22),
                false => 0,
            },
            chunk: 4096 << self.rng.below(3),
            // Healthy disks take up to 5 ms here.
            patience: [6, 10, 30][self.rng.below(3) as usize] * MILLIS,
        };
        let patience = plan.patience;
        let (source, destination) = (self.place(0, home), self.place(0, 1 - home));
        let made = self.node.enter_on(0, || Migration::new(source, destination, plan));
        let moving = Rc::new(made.map_err(|e| Wrong(e.to_string()))?);
        self.moving = Some(moving.clone());
        self.told.cut.set(Some(Cut::None));
        self.regraph(|_, _| moving.entrance().handle())?;
        self.node.enter_on(0, || moving.begin());
        // What was sent before anything was found late, twice, and a flush at the cut-over.
        self.judge.limit.set(3 * patience + 60 * MILLIS);
        if !quiet {
            self.make_trouble(patience);
        }
        Ok(())
    }

    fn make_trouble(&mut self, patience: Nanos) {
        let home = self.told.home.get();
        let (here, there) = (&self.media[home], &self.media[1 - home]);
        let odds = Odds::one_in(self.rng.between(20, 400) as u32);
        match self.trouble {
            Trouble::DestinationFails => match self.rng.below(4) {
                0 => there.set_config(|c| c.write_error = odds),
                1 => there.set_config(|c| c.read_error = odds),
                2 => there.next_is(Next::FlushError),
                _ => {}
            },
            Trouble::DestinationStalls => {
                let stalls = Stalls::new(there, self.rng.fork(), patience, self.w.now());
                if stalls.is_slow_only() {
                    // Many I/Os that are no reason to fall behind add up.
                    self.judge.limit.set(0);
                }
                self.stalls = Some(Rc::new(stalls));
            }
            Trouble::SourceFails => {
                self.judge.lenient.set(true);
                here.set_config(|c| c.write_error = odds);
                if self.rng.chance(1, 4) {
                    here.set_config(|c| c.read_error = odds);
                }
            }
            _ => {}
        }
    }

    fn end_trouble(&mut self) {
        self.stalls = None;
        for m in &self.media {
            m.forget_next();
            m.stall(0);
            m.set_config(|c| {
                c.write_error = Odds::NEVER;
                c.read_error = Odds::NEVER;
            });
        }
    }

    /// Everything up to the moment when I/O goes on at the destination, as a task of the daemon.
    fn cut_over(&mut self, quiet: bool) {
        let Some(moving) = self.moving.clone() else { return };
        let (told, media) = (self.told.clone(), self.media.clone());
        let (len, mut rng) = (self.len as usize, self.rng.fork());
        let doubt = !quiet
            && match self.trouble {
                Trouble::CommitFails => self.rng.chance(1, 2),
                Trouble::DestinationStalls => self.rng.chance(1, 8),
                _ => false,
            };
        let (stalls, judge) = (self.stalls.clone(), self.judge.clone());
        told.cut.set(Some(Cut::UnderWay));
        self.node.spawn_on(0, async move {
            let held = match moving.hold(3 * SECONDS).await {
                Ok(h) => h,
                Err(_) => return told.cut.set(Some(Cut::NotYet)),
            };
            // From here on it may be the volume, whose failures hosts do see.
            let there = &media[1 - told.home.get()];
            match (doubt, &stalls) {
                (true, _) => judge.limit.set(0),
                (false, Some(s)) => s.end_for_good(),
                _ => {}
            }
            there.forget_next();
            there.set_config(|c| {
                c.write_error = Odds::NEVER;
                c.read_error = Odds::NEVER;
            });
            let [a, b] = [&media[0], &media[1]].map(|m| {
                let mut bytes = vec![0; len];
                m.peek(0, &mut bytes);
                bytes
            });
            if let Some(i) = a.iter().zip(&b).position(|(a, b)| a != b) {
                let text = format!("at the cut-over the disks differ at byte {i}");
                told.wrong.borrow_mut().get_or_insert(text);
            }
            if !told.doubtful.get() && media[1 - told.home.get()].at_risk() > 0 {
                let text = "at the cut-over the destination is not durable".to_string();
                told.wrong.borrow_mut().get_or_insert(text);
            }
            // What is durable is so at some moment of the commit.
            let there = 1 - told.home.get();
            sleep(rng.below(MILLIS)).await;
            if !doubt || rng.chance(1, 2) {
                told.home.set(there);
            }
            sleep(rng.below(MILLIS)).await;
            if doubt {
                told.doubtful.set(true);
                held.doubtful();
                return told.cut.set(Some(Cut::NotYet));
            }
            if let Err(e) = held.moved() {
                told.wrong.borrow_mut().get_or_insert(format!("the cut-over: {e}"));
            }
            told.cut.set(Some(Cut::Moved));
        });
    }

    /// The volume is at home alone again.
    fn settle(&mut self) -> Result<(), Wrong> {
        let home = self.told.home.get();
        self.end_trouble();
        self.regraph(|s, core| s.place(core, home))?;
        if let Some(m) = self.moving.take() {
            self.node.enter_on(0, || m.stop());
            // What nobody waits for any more must not come to a place that is made anew.
            self.w.run_until(PATIENCE, || m.under_way() == 0)?;
            self.node.enter_on(0, || drop(m));
        }
        self.judge.lenient.set(false);
        Ok(())
    }

    fn crash(&mut self) {
        self.crashes += 1;
        if self.told.cut.get() == Some(Cut::UnderWay) {
            self.crashes_at_cut_over += 1;
        }
        if self.rng.chance(1, 2) {
            self.node.kill();
            self.load.settle();
        } else {
            self.node.power_off();
            self.load.power_cut();
        }
        // Nothing of the process is left.
        self.moving = None;
        self.tops.clear();
        self.end_trouble();
        self.told.cut.set(None);
        self.judge.limit.set(0);
        self.told.doubtful.set(false);
        self.judge.lenient.set(false);
        self.w.run_for(SECONDS);
        self.node.restart();
    }

    /// Now, as the cut-over comes, the destination may stop answering: one in `odds`.
    fn stall(&mut self, odds: u64) {
        if let Some(s) = &self.stalls
            && self.rng.chance(1, odds)
        {
            s.begin(self.w.now());
        }
    }

    /// A migration has failed; it must not without a fault of a disk.
    fn judge_failure(&self, quiet: bool, reason: Option<&str>) -> Result<(), Wrong> {
        let reason = reason.unwrap_or("none");
        let fails = matches!(self.trouble, Trouble::DestinationFails | Trouble::SourceFails);
        // No disk here loses what it has taken.
        if quiet || !fails || reason.contains("does not hold") {
            let trouble = self.trouble;
            return Err(Wrong(format!("it failed without a fault: {reason} ({trouble:?})")));
        }
        Ok(())
    }

    /// A migration to whatever end; false: it ended by a crash.
    fn migrate(&mut self, quiet: bool) -> Result<bool, Wrong> {
        self.start(quiet)?;
        let began = self.w.now();
        let mut was_behind = false;
        loop {
            if let Some(s) = &self.stalls {
                s.look(self.w.now());
            }
            let slice = self.rng.between(10 * MICROS, MILLIS);
            self.w.run_for(slice);
            self.verdict()?;
            // What has failed at either side is not done later.
            self.load.settle_given_up();
            let Some(m) = self.moving.clone() else { return Ok(false) };
            let status = m.status();
            let doubtful = self.told.doubtful.get();
            let is_behind = status.waits.is_some();
            match (was_behind, is_behind) {
                (false, true) => self.behind += 1,
                (true, false) if status.phase != Phase::Failed => self.caught_up += 1,
                _ => {}
            }
            was_behind = is_behind;
            if !quiet && self.rng.chance(1, 60 * self.calm) {
                self.crash();
                return Ok(false);
            }
            match (self.told.cut.get(), status.phase) {
                (Some(Cut::Moved), _) => {
                    self.moved += 1;
                    self.told.doubtful.set(false);
                    self.settle()?;
                    return Ok(true);
                }
                (Some(Cut::UnderWay), _) => self.stall(20),
                (_, Phase::Failed) => {
                    self.failed += 1;
                    self.judge_failure(quiet, status.reason.as_deref())?;
                    self.settle()?;
                    return Ok(true);
                }
                // Once it is not known what is durable, only a restart tells.
                (_, Phase::Ready) if !doubtful && self.rng.chance(1, 3) => {
                    self.stall(3);
                    self.cut_over(quiet);
                }
                // Sometimes a little later, so that something may happen meanwhile.
                (_, Phase::Ready) if !doubtful => self.stall(6),
                (_, _) if doubtful && self.rng.chance(1, 40) => {
                    self.crash();
                    return Ok(false);
                }
                _ if !quiet && !doubtful && self.rng.chance(1, 100 * self.calm) => {
                    self.cancelled += 1;
                    self.node.enter_on(0, || m.stop());
                    self.settle()?;
                    return Ok(true);
                }
                _ if !quiet && self.rng.chance(1, 30) => {
                    let (rate, paused) = (self.rng.below(1 << 22), self.rng.chance(1, 3));
                    self.node.enter_on(0, || {
                        m.set_rate(rate);
                        m.set_paused(paused);
                    });
                }
                _ => {}
            }
            if self.w.now() - began > PATIENCE {
                if quiet {
                    return Err(Wrong(format!("it does not end: {status:?}")));
                }
                self.crash();
                return Ok(false);
            }
        }
    }

    fn finish(mut self) -> Result<Pass, Wrong> {
        // With nothing in its way a migration gets to its end.
        let before = self.moved;
        if !self.migrate(true)? || self.moved == before {
            return Err(Wrong("a migration without trouble did not move the volume".into()));
        }
        self.load.stop();
        let load = self.load.clone();
        self.w.run_until(PATIENCE, || load.under_way() == 0)?;
        self.verdict()?;
        for round in 0..2 {
            let core = round % CORES;
            let path = Path { volume: self.tops[core].clone(), judge: self.judge.clone() };
            let all = self.load.clone().read_all(Rc::new(path), self.pools[core].clone());
            let done = Rc::new(Cell::new(false));
            let flag = done.clone();
            self.node.spawn_on(core, async move {
                all.await;
                flag.set(true);
            });
            self.w.run_until(PATIENCE, || done.get())?;
        }
        self.verdict()?;
        let f = self.load.figures();
        let figures = vec![
            ("moved", self.moved),
            ("cancelled", self.cancelled),
            ("failed", self.failed),
            ("crashes", self.crashes),
            ("crashes at the cut-over", self.crashes_at_cut_over),
            ("fell behind", self.behind),
            ("caught up", self.caught_up),
            ("blocks read", f.blocks_read),
            ("writes", f.writes),
            ("excused errors", self.judge.excused.get()),
        ];
        Ok(Pass { trace: self.w.trace_hash(), figures })
    }
}

pub(super) fn run(run: &Run) -> Result<Pass, Wrong> {
    let mut s = Story::new(run)?;
    for _ in 0..s.rng.between(1, 4) {
        if s.tops.is_empty() {
            s.open()?;
        }
        let time = s.rng.below(3 * MILLIS);
        s.w.run_for(time);
        s.migrate(false)?;
        s.verdict()?;
    }
    if s.tops.is_empty() {
        s.open()?;
    }
    s.finish()
}
