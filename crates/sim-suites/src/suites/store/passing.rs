//! Errors that pass: every class of them, on one device or on all at once, and what must be there when they have passed.

use super::closing::SHREDDED;
use super::pool::{Errors, PATIENCE, Story};
use super::trouble::Trouble;
use crate::Wrong;
use std::cell::Cell;
use std::rc::Rc;
use weir_base::{IoError, MICROS, MILLIS, Nanos, Prng};
use weir_block::Volume;
use weir_mem::Slice;
use weir_reactor::sleep;
use weir_sim::{DiskConfig, Next, Odds, SimMedium};
use weir_store::format::superblock::MemberState;
use weir_store::{Pool, StoreError};

/// Every class of error that a device tells, but for that it is gone.
pub(crate) const KINDS: [IoError; 6] = [
    IoError::Medium,
    IoError::Path,
    IoError::Busy,
    IoError::Internal,
    IoError::NoSpace,
    IoError::ReadOnly,
];
/// What is written once to the director's volume, so that it can be looked for at any time.
const MARK: u8 = 0x5a;
const MARKED: usize = 8 * 4096;

/// How a story's devices stand, for the judgement of errors.
#[derive(Default)]
pub(crate) struct Illness {
    /// Until when errors are made to come.
    until: Cell<Nanos>,
    /// All devices are well for good: no error is excused any more.
    well: Cell<bool>,
    /// The pool is being closed, or is, and whoever uses it does not know.
    closing: Cell<bool>,
    windows: Cell<u64>,
    resumed: Cell<u64>,
    hidden: Cell<u64>,
    forgotten: Cell<u64>,
    told: Cell<u64>,
}

impl Illness {
    /// Whether an error of a request is no wonder, that began at `began`; `suspended`: the pool was, then or when it ended.
    pub(crate) fn excuses(
        &self,
        trouble: Trouble,
        copies: u8,
        e: IoError,
        write: bool,
        (began, suspended): (Nanos, bool),
    ) -> bool {
        match trouble {
            // It answers reads still.
            _ if self.closing.get() && write && e == IoError::Offline => true,
            Trouble::Full => e == IoError::NoSpace && write,
            _ if self.well.get() => false,
            Trouble::DeviceFails | Trouble::Stall => copies == 1,
            // Of a suspended pool everything can be read, what failed with it a second after a try to decide on that.
            Trouble::Passing => {
                let soon = began <= self.until.get() + 1100 * MILLIS;
                began <= self.until.get() || suspended && (write || e == IoError::Offline && soon)
            }
            Trouble::Unreadable => e == IoError::Medium,
            _ => false,
        }
    }

    /// Errors are made to come until then.
    fn comes(&self, until: Nanos) {
        self.until.set(self.until.get().max(until));
        self.windows.set(self.windows.get() + 1);
    }

    /// The pool is being closed beside I/O.
    pub(crate) fn closing(&self, yes: bool) {
        self.closing.set(yes);
    }

    /// From here on every device does what it should.
    pub(crate) fn is_over(&self) {
        self.well.set(true);
    }

    /// As figures of a run.
    pub(crate) fn figures(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("times that devices failed for a while", self.windows.get()),
            ("suspended pools that went on", self.resumed.get()),
            ("copies that could not be read after a crash", self.hidden.get()),
            ("crashes right after a device failed", self.forgotten.get()),
            ("of these, after something was acknowledged", self.told.get()),
        ]
    }
}

async fn write_mark(pool: &Pool) -> Result<(), StoreError> {
    let Some(id) = pool.find("director") else { return Ok(()) };
    let buf = Slice::heap(MARKED);
    buf.fill(MARK);
    Ok(pool.volume(id)?.write(0, buf, false).await?)
}

async fn has_mark(pool: &Pool) -> Result<(), String> {
    let id = pool.find("director").ok_or("the director's volume is gone")?;
    let v = pool.volume(id).map_err(|e| e.to_string())?;
    let buf = Slice::heap(MARKED);
    v.read(0, buf.clone()).await.map_err(|e| format!("what nobody writes is not read: {e}"))?;
    match buf.to_vec().iter().all(|b| *b == MARK) {
        true => Ok(()),
        false => Err("what nobody writes has changed".into()),
    }
}

fn calm(c: &mut DiskConfig) {
    (c.read_error, c.write_error, c.flush_error) = (Odds::NEVER, Odds::NEVER, Odds::NEVER);
}

impl Story {
    /// What is looked for later is written.
    pub(crate) fn mark(&self) -> Result<(), Wrong> {
        let pool = self.running()?;
        if self.trouble == Trouble::Passing {
            let done = self.w.run(&self.node, PATIENCE, async move { write_mark(&pool).await })?;
            done.map_err(|e| Wrong(format!("writing a mark: {e}")))?;
        }
        Ok(())
    }

    /// Reads fail while the pool is being opened, and not for longer than anybody should mind.
    pub(crate) fn fail_while_opening(&mut self) {
        if self.trouble != Trouble::Passing || self.errors.ill.well.get() || !self.rng.chance(1, 3)
        {
            return;
        }
        let kind = KINDS[self.rng.below(KINDS.len() as u64) as usize];
        let odds = Odds::one_in(self.rng.between(1, 3) as u32);
        let time = self.rng.between(MICROS, 2500 * MILLIS);
        self.errors.ill.comes(self.w.now() + time);
        for m in &self.media {
            m.set_config(|c| (c.error, c.read_error) = (kind, odds));
        }
        let media = self.media.clone();
        self.w.after(time, move |_| media.iter().for_each(|m| m.set_config(calm)));
    }

    /// All devices, or one of them, fail in one way for a while; then the pool goes on.
    pub(crate) fn fail_for_a_while(&mut self, pool: Pool) {
        let kind = KINDS[self.rng.below(KINDS.len() as u64) as usize];
        let odds = Odds::one_in(self.rng.between(1, 6) as u32);
        let what = self.rng.below(4);
        let from = self.rng.below(4 * MILLIS);
        let time = match what {
            0 | 1 if self.rng.chance(1, 3) => self.rng.between(250 * MILLIS, 1500 * MILLIS),
            _ => self.rng.between(10 * MICROS, 20 * MILLIS),
        };
        let one = self.rng.chance(1, 5).then_some(self.victim);
        let media: Vec<SimMedium> = match one {
            Some(n) => vec![self.media[n].clone()],
            None => self.media.clone(),
        };
        self.faults += 1;
        let (node, life) = (self.node.clone(), self.node.lives());
        let ill = media.clone();
        self.w.after(from, move |_| {
            if node.lives() != life || !node.is_alive() {
                return;
            }
            let change = |c: &mut DiskConfig| {
                c.error = kind;
                match what {
                    0 | 1 => c.read_error = odds,
                    2 => c.write_error = odds,
                    _ => c.flush_error = odds,
                }
            };
            ill.iter().for_each(|m| m.set_config(change));
        });
        self.w.after(from + time, move |_| media.iter().for_each(|m| m.set_config(calm)));
        let (errors, now) = (self.errors.clone(), self.w.now());
        errors.ill.comes(now + from + time);
        let (rng, after) = (self.rng.fork(), errors.ill.until.get() - now);
        self.node.spawn(go_on(pool, errors, after, rng));
    }

    /// In some lives the trouble is over before the life is, and the load goes on.
    pub(crate) fn outlast(&mut self, life: u64) -> Result<(), Wrong> {
        if self.trouble == Trouble::Passing && self.rng.chance(3, 4) {
            let until = self.errors.ill.until.get() + 5 * MILLIS;
            self.w.run_for(until.saturating_sub(self.w.now()));
            self.verdict()?;
            self.start_load(life)?;
        }
        if self.trouble == Trouble::OneThenOther {
            self.forget_a_failure()?;
        }
        Ok(())
    }

    /// One device fails, and power goes when the pool may think that it has told so.
    fn forget_a_failure(&mut self) -> Result<(), Wrong> {
        let time = self.rng.below(4 * MILLIS);
        self.w.run_for(time);
        let (pool, m) = (self.running()?, self.media[self.victim].clone());
        if !pool.status().whole {
            return self.verdict();
        }
        let kind = KINDS[self.rng.below(KINDS.len() as u64) as usize];
        m.set_config(|c| c.error = kind);
        m.next_is(if self.rng.chance(1, 2) { Next::WriteError } else { Next::FlushError });
        let name = m.name().to_string();
        let failed = || {
            let all = pool.status().devices;
            all.iter().any(|d| d.failed && d.name.as_deref() == Some(&*name))
        };
        let (told, failed_at) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(Nanos::MAX)));
        let (p, at, t, time) = (pool.clone(), failed_at.clone(), told.clone(), self.w.time());
        self.node.spawn(async move {
            let Some(v) = p.find(SHREDDED).and_then(|id| p.volume(id).ok()) else { return };
            while v.write(0, Slice::heap(4096), false).await.is_ok() {
                // Also one that was on its way when the device failed.
                t.set(t.get() || time.now() > at.get());
            }
        });
        if self.w.run_until(20 * MILLIS, failed).is_ok() {
            failed_at.set(self.w.now());
        }
        m.forget_next();
        if self.rng.chance(1, 2) {
            // At the first acknowledgement since.
            let _ = self.w.run_until(20 * MILLIS, || told.get());
            let time = self.rng.below(60 * MICROS);
            self.w.run_for(time);
        } else {
            if self.rng.chance(3, 4) {
                let _ = self.w.run_until(4 * MILLIS, || self.superblock_at_risk());
            }
            let time = self.rng.below(900 * MICROS);
            self.w.run_for(time);
        }
        let ill = &self.errors.ill;
        ill.forgotten.set(ill.forgotten.get() + 1);
        ill.told.set(ill.told.get() + u64::from(told.get()));
        self.known = told.get().then_some(name);
        self.verdict()
    }

    /// What was acknowledged when a device had failed was so only after a superblock told of that: so it is known now.
    pub(crate) fn is_known(&mut self, pool: &Pool) -> Result<(), Wrong> {
        let Some(name) = self.known.take() else { return Ok(()) };
        let all = pool.status().devices;
        match all.iter().find(|d| d.name.as_deref() == Some(&*name)) {
            Some(d) if d.state == MemberState::InSync => Err(Wrong(format!(
                "a write was acknowledged after {name} had failed, and after a crash nobody knows of that"
            ))),
            _ => Ok(()),
        }
    }

    /// When the pool says that every block has all its copies, any one device may fail.
    pub(crate) fn other_fails(&mut self, life: u64) -> Result<(), Wrong> {
        if self.trouble != Trouble::OneThenOther || life == 0 {
            return Ok(());
        }
        let pool = self.running()?;
        let p = pool.clone();
        let settled = self.w.run(&self.node, PATIENCE, async move { p.settled().await })?;
        if settled.is_err() || !pool.status().whole {
            return Err(Wrong(format!("the pool does not get whole again: {:?}", pool.status())));
        }
        let others: Vec<usize> = (0..self.first).filter(|n| *n != self.victim).collect();
        let other = others[self.rng.below(others.len() as u64) as usize];
        self.media[other].set_offline(true);
        self.read_all(1)?;
        self.media[other].set_offline(false);
        // A checkpoint under way says only at its end which devices have not taken it.
        let p = pool.clone();
        let _ = self.w.run(&self.node, PATIENCE, async move { p.checkpoint().await })?;
        let s = self.steward.clone();
        self.w.run(&self.node, PATIENCE, s.settle(pool, true))?;
        self.verdict()
    }

    /// A crash hides what was written since the last checkpoint, or some of it, until it is written or found again.
    pub(crate) fn hide(&mut self, places: Vec<Vec<(String, u64)>>) {
        if self.trouble != Trouble::Unreadable {
            return;
        }
        if self.rng.chance(1, 2) {
            self.media.iter().for_each(SimMedium::read_again);
        }
        let some = self.rng.between(1, 3);
        for copies in places {
            if !self.rng.chance(1, some) {
                continue;
            }
            for (name, at) in copies {
                if let Some(m) = self.media.iter().find(|m| m.name() == name) {
                    m.fail_reads(at, 4096);
                    self.errors.ill.hidden.set(self.errors.ill.hidden.get() + 1);
                }
            }
        }
    }

    /// Where what was written since the last checkpoint is: of each block, the copies.
    pub(crate) fn newest(&self) -> Vec<Vec<(String, u64)>> {
        let Some(pool) = self.pool.borrow().clone() else { return Vec::new() };
        let devices = pool.status().devices;
        let name = |n: u16| devices.iter().find(|d| d.number == n).and_then(|d| d.name.clone());
        let named = |(_, all): (u64, Vec<(u16, u64)>)| {
            all.into_iter().filter_map(|(n, at)| Some((name(n)?, at))).collect()
        };
        pool.blocks_of_log().into_iter().map(named).collect()
    }
}

/// When the devices are well again, a pool that was suspended meanwhile goes on.
async fn go_on(pool: Pool, errors: Rc<Errors>, after: Nanos, mut rng: Prng) {
    sleep(after + rng.between(1, 2 * MILLIS)).await;
    let wrong = |text: String| {
        if errors.ill.closing.get() {
            return;
        }
        errors.wrong.borrow_mut().get_or_insert(text);
    };
    // A device's flush or write may be noticed a little later.
    for _ in 0..3 {
        if let Err(e) = has_mark(&pool).await {
            let how = pool.status();
            return wrong(format!("after the trouble was over: {e}: {how:?}"));
        }
        if pool.status().suspended.is_some() {
            sleep(rng.below(MILLIS)).await;
            match pool.resume().await {
                Ok(()) => errors.ill.resumed.set(errors.ill.resumed.get() + 1),
                Err(e) => return wrong(format!("resuming when all devices are well: {e}")),
            }
        }
        sleep(MILLIS).await;
    }
}
