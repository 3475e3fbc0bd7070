//! Brings what the source has to the destination, and proves that it is there.

use super::{Inner, Phase};
use crate::planted::{Bug, has};
use std::cell::Cell;
use std::rc::Rc;
use weir_base::{MILLIS, SECONDS};
use weir_block::{Volume, is_zero};
use weir_mem::{BufPool, PoolConfig, Slice};
use weir_reactor::{WaitChannel, now, sleep, spawn};

/// Pieces copied at the same time.
const AT_ONCE: usize = 4;
/// Longest hole that is passed in one step: finding its end costs little, but changes of it wait meanwhile.
const HOLE: u64 = 1 << 30;
/// Longest hole that is made in one step, where the destination may have something else.
const MADE_HOLE: u64 = 16 << 20;
/// Buffers: a piece that is verified needs two.
const BUFFERS: usize = 2 * AT_ONCE;
/// How often a copier that waits looks whether it still has to.
const LOOK: u64 = 50 * MILLIS;

/// Why a piece was not done.
pub(super) enum End {
    /// The migration has ended.
    Over,
    /// It cannot go on.
    Failed(String),
}

type Done = Result<(), End>;

fn failed(what: &str, at: u64, e: impl std::fmt::Display) -> End {
    End::Failed(format!("{what} at byte {at}: {e}"))
}

impl Inner {
    /// The whole work, up to the moment when only the cut-over is missing; also once more after a change
    /// that failed at the source.
    pub(super) async fn copy_all(self: Rc<Self>) {
        if self.busy.replace(true) {
            return;
        }
        let end = self.clone().rounds().await;
        self.busy.set(false);
        if let Err(End::Failed(why)) = end {
            self.fail(why);
        }
    }

    async fn rounds(self: Rc<Self>) -> Done {
        if self.frontier.get() < self.plan.len {
            self.phase(Phase::Copying);
            self.clone().in_parallel(false).await?;
        }
        if self.plan.verify && !self.verified.get() {
            self.checked.set(0);
            self.phase(Phase::Verifying);
            self.clone().in_parallel(true).await?;
            self.verified.set(true);
        }
        loop {
            if self.is_behind() || !self.stale.is_empty() {
                self.go_on().await?;
            }
            let Some((mut from, end)) = self.stale.take() else { break };
            self.phase(Phase::Copying);
            while from < end {
                let to = end.min(from + self.plan.chunk);
                if let Err(e) = self.copy_again(from, to).await {
                    self.stale.put_back(false);
                    return Err(e);
                }
                from = to;
            }
            self.stale.put_back(true);
        }
        self.phase(Phase::Ready);
        Ok(())
    }

    async fn copy_again(&self, from: u64, to: u64) -> Done {
        // What is there was there before, so holes have to be made.
        self.copy(from, to, false).await?;
        if self.plan.verify { self.verify(from, to).await } else { Ok(()) }
    }

    async fn in_parallel(self: Rc<Self>, verify: bool) -> Done {
        let turn = Rc::new(WaitChannel::new(1));
        let workers: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                let (me, turn) = (self.clone(), turn.clone());
                spawn(async move { me.work(&turn, verify).await })
            })
            .collect();
        let mut end = Ok(());
        for w in workers {
            let done = w.await.unwrap_or(Err(End::Over));
            if let (Ok(()), Err(e)) = (&end, done) {
                if let End::Failed(why) = &e {
                    // The others stop.
                    self.fail(why.clone());
                }
                end = Err(e);
            }
        }
        end
    }

    async fn work(&self, turn: &WaitChannel, verify: bool) -> Done {
        loop {
            let picked = {
                let _turn = turn.acquire(1).await;
                self.go_on().await?;
                self.pick(verify).await
            };
            let Some((from, to, hole)) = picked else { return Ok(()) };
            match (verify, hole) {
                (false, false) => self.copy(from, to, self.plan.clean).await?,
                (false, true) => self.pass_hole(from, to).await?,
                (true, false) => self.verify(from, to).await?,
                (true, true) => self.verify_hole(from, to).await?,
            }
            self.done.set(self.done.get() + (to - from));
        }
    }

    /// What is to be done next: from, to, and whether it looks like a hole. From here on changes of it reach
    /// the destination.
    async fn pick(&self, verify: bool) -> Option<(u64, u64, bool)> {
        let place: &Cell<u64> = if verify { &self.checked } else { &self.frontier };
        let from = place.get();
        if from >= self.plan.len {
            return None;
        }
        let rest = self.plan.len - from;
        let longest = if self.plan.clean { HOLE } else { MADE_HOLE };
        let mut hole = None;
        if rest > self.plan.chunk {
            // How far it goes on is found out only where that may be far.
            let mut found = self.source.find_allocation(from, self.plan.chunk).await;
            if !found.mapped && found.len >= self.plan.chunk {
                found = self.source.find_allocation(from, rest.min(longest)).await;
            }
            hole = Some(found.len.min(rest)).filter(|n| !found.mapped && *n > self.plan.chunk);
        }
        let n = hole.unwrap_or(self.plan.chunk.min(rest));
        place.set(from + n);
        Some((from, from + n, hole.is_some()))
    }

    /// Waits as long as it is paused, or the destination is behind.
    async fn go_on(&self) -> Done {
        while (self.paused.get() || self.is_behind()) && self.is_mirroring() {
            sleep(LOOK).await;
        }
        if self.is_mirroring() { Ok(()) } else { Err(End::Over) }
    }

    /// Waits until so many bytes may be read.
    async fn throttle(&self, bytes: u64) -> Done {
        let begin = self.due.get().max(now());
        let rate = self.rate.get();
        if rate > 0 {
            let time = u128::from(bytes) * u128::from(SECONDS) / u128::from(rate);
            self.due.set(begin.saturating_add(time.min(u128::from(u64::MAX)) as u64));
        }
        // A new rate counts at once.
        while rate > 0 && self.rate.get() == rate && now() < begin {
            sleep((begin - now()).min(LOOK)).await;
            self.go_on().await?;
        }
        self.go_on().await
    }

    /// A stretch that looked empty: it is left out if it still is.
    async fn pass_hole(&self, from: u64, to: u64) -> Done {
        {
            let _lock = self.ranges.lock(from, to).await;
            let found = self.source.find_allocation(from, to - from).await;
            if !found.mapped && found.len >= to - from {
                return match self.plan.clean || has(Bug::HolesLeftOut) {
                    true => Ok(()),
                    false => self.make_hole(from, to - from).await,
                };
            }
        }
        let mut at = from;
        while at < to {
            let n = self.plan.chunk.min(to - at);
            self.copy(at, at + n, self.plan.clean).await?;
            at += n;
        }
        Ok(())
    }

    /// Whether what was read of the source is zeros for which the destination needs no space: then it reads as zeros there.
    async fn zeros_there(&self, at: u64, buf: &Slice, clean: bool) -> Result<bool, End> {
        if !(clean || self.destination.geometry().thin) || !is_zero(buf) {
            return Ok(false);
        }
        if !clean {
            self.make_hole(at, buf.len() as u64).await?;
        }
        Ok(true)
    }

    async fn make_hole(&self, at: u64, len: u64) -> Done {
        let done = self.there(at, at + len, |v| v.write_zeroes(at, len, true)).await;
        done.map(drop).map_err(|e| failed("the destination cannot be zeroed", at, e))
    }

    /// Copies a piece of at most a chunk. `clean`: the destination reads as zeros there.
    async fn copy(&self, from: u64, to: u64, clean: bool) -> Done {
        let early = match has(Bug::LockedForTheRate) {
            true => Some(self.ranges.lock(from, to).await),
            false => None,
        };
        self.throttle(to - from).await?;
        drop(early);
        let mut at = from;
        while at < to {
            // Each extent by itself: whoever waits for the piece waits for one I/O, not for as many as it has extents.
            let lock = self.ranges.lock(at, to).await;
            let _lock = (!has(Bug::CopiedUnlocked)).then_some(lock);
            let (n, mapped) = self.extent(&*self.source, at, to).await;
            if mapped {
                let buf = self.buffer(n).await?;
                let read = self.source.read(at, buf.clone()).await;
                read.map_err(|e| failed("the source cannot be read", at, e))?;
                if !self.zeros_there(at, &buf, clean).await? {
                    let done = self.there(at, at + n, |v| v.write(at, buf, false)).await;
                    done.map_err(|e| failed("the destination cannot be written", at, e))?;
                    self.copied.set(self.copied.get() + n);
                }
            } else if !clean && !has(Bug::HolesLeftOut) {
                self.make_hole(at, n).await?;
            }
            at += n;
        }
        Ok(())
    }

    /// Reads a piece from both sides and compares. One that may differ is left for when it was copied again.
    async fn verify(&self, from: u64, to: u64) -> Done {
        self.throttle(to - from).await?;
        let _lock = self.ranges.lock(from, to).await;
        if self.stale.has(from, to) {
            return Ok(());
        }
        let (a, b) = (self.buffer(to - from).await?, self.buffer(to - from).await?);
        let read = self.source.read(from, a.clone()).await;
        read.map_err(|e| failed("the source cannot be read", from, e))?;
        let done = self.there(from, to, |v| v.read(from, b.clone())).await;
        if !done.map_err(|e| failed("the destination cannot be read", from, e))? {
            return Ok(());
        }
        match first_difference(&a, &b) {
            None => Ok(()),
            Some(i) => Err(End::Failed(format!(
                "the destination does not hold what was written to it, at byte {}",
                from + i
            ))),
        }
    }

    /// A stretch that is empty at the source: that is proved if the destination says so too, else by reading.
    async fn verify_hole(&self, from: u64, to: u64) -> Done {
        {
            let _lock = self.ranges.lock(from, to).await;
            let hole = (to - from, false);
            if self.extent(&*self.source, from, to).await == hole {
                match self.allocation_there(from, to - from).await {
                    Some(found) if !found.mapped && found.len >= to - from => return Ok(()),
                    Some(_) => {}
                    None => {
                        self.mark(from, to);
                        return Ok(());
                    }
                }
            }
        }
        let mut at = from;
        while at < to {
            let n = self.plan.chunk.min(to - at);
            self.verify(at, at + n).await?;
            at += n;
        }
        Ok(())
    }

    async fn buffer(&self, len: u64) -> Result<Slice, End> {
        if self.buffers.get().is_none() {
            let made =
                BufPool::new(&PoolConfig { classes: vec![(self.plan.chunk as usize, BUFFERS)] });
            let made = made.map_err(|e| End::Failed(format!("no memory to copy with: {e}")))?;
            // Made by somebody else meanwhile: as good.
            drop(self.buffers.set(made));
        }
        match self.buffers.get() {
            Some(pool) => Ok(pool.alloc(len as usize).await),
            None => Err(End::Over),
        }
    }

    /// How far from `at` on a volume is all mapped, or all not; at most to `to`, and a block at least.
    async fn extent(&self, volume: &dyn Volume, at: u64, to: u64) -> (u64, bool) {
        let block = u64::from(volume.geometry().block_size);
        let found = volume.find_allocation(at, to - at).await;
        let len = if found.mapped {
            found.len.next_multiple_of(block).max(block)
        } else {
            found.len / block * block
        };
        // A hole of less than a block is none.
        if len == 0 { (block.min(to - at), true) } else { (len.min(to - at), found.mapped) }
    }
}

fn first_difference(a: &Slice, b: &Slice) -> Option<u64> {
    const STEP: usize = 4096;
    let (mut x, mut y) = ([0; STEP], [0; STEP]);
    let mut at = 0;
    while at < a.len() {
        let n = STEP.min(a.len() - at);
        a.read_at(at, &mut x[..n]);
        b.read_at(at, &mut y[..n]);
        if x[..n] != y[..n] {
            let i = x[..n].iter().zip(&y[..n]).position(|(x, y)| x != y);
            return Some((at + i.unwrap_or(0)) as u64);
        }
        at += n;
    }
    None
}
