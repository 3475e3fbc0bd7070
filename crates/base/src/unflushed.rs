//! What was written to a volume and is not known to be durable, for all handles by which a host reaches it.
//!
//! A volatile cache belongs to the volume, not to a queue, path or session. So does the record of what may still be in
//! it: a flush over any of them takes it off, and a flush over any of them finds what was lost.
//!
//! | | |
//! |---|---|
//! | [`Unflushed`] | a volume's record, shared by reactors, paths and sessions |
//! | [`Ledger`] | one handle's part: what it has told of losses |
//!
//! A *cache* is a number that a target gives to what its volatile caches hold: it has another one after they may have been
//! lost.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Writes that were acknowledged out of one cache.
#[derive(Debug)]
struct Mark {
    cache: u64,
    /// Flushes that had begun when the last of them was acknowledged; 0 when all are durable.
    epoch: AtomicU64,
}

/// A volume's record of writes that no flush has covered yet.
#[derive(Debug)]
pub struct Unflushed {
    /// One more than flushes that have begun.
    epoch: AtomicU64,
    /// How often writes were found to be lost.
    losses: AtomicU64,
    marks: Mutex<Vec<Arc<Mark>>>,
}

impl Default for Unflushed {
    fn default() -> Self {
        Unflushed { epoch: AtomicU64::new(1), losses: AtomicU64::new(0), marks: Mutex::default() }
    }
}

impl Unflushed {
    fn marks(&self) -> MutexGuard<'_, Vec<Arc<Mark>>> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mark(&self, cache: u64) -> Arc<Mark> {
        let mut all = self.marks();
        if let Some(m) = all.iter().find(|m| m.cache == cache) {
            return m.clone();
        }
        // Caches that are gone leave nothing behind.
        all.retain(|m| m.epoch.load(SeqCst) > 0 || Arc::strong_count(m) > 1);
        let m = Arc::new(Mark { cache, epoch: AtomicU64::new(0) });
        all.push(m.clone());
        m
    }

    /// Writes out of the caches that `gone` names are lost: the next flush of each handle says so.
    pub fn lose(&self, gone: impl Fn(u64) -> bool) {
        let mut any = false;
        for m in self.marks().iter().filter(|m| gone(m.cache)) {
            any |= m.epoch.swap(0, SeqCst) > 0;
        }
        if any {
            self.losses.fetch_add(1, SeqCst);
        }
    }

    /// A flush that began at `epoch` has ended well.
    fn settle(&self, epoch: u64, gone: impl Fn(u64) -> bool) {
        // A mark that was renewed since the flush began may be of earlier writes as well, so a loss counts at once.
        self.lose(gone);
        for m in self.marks().iter() {
            let then = m.epoch.load(SeqCst);
            if then <= epoch {
                let _ = m.epoch.compare_exchange(then, 0, SeqCst, SeqCst);
            }
        }
    }

    /// True when a write may be in a volatile cache only.
    pub fn is_dirty(&self) -> bool {
        self.marks().iter().any(|m| m.epoch.load(SeqCst) > 0)
    }
}

/// Where a flush began, for [`Ledger::flushed`].
#[derive(Debug)]
pub struct Begun(Vec<u64>);

/// One handle's part of a volume's record. Each handle tells each loss once.
#[derive(Debug)]
pub struct Ledger {
    /// The record, and losses that were told. More than one where handles of the volume were opened apart first.
    all: Vec<(Arc<Unflushed>, Cell<u64>)>,
    mark: RefCell<Option<Arc<Mark>>>,
}

impl Ledger {
    /// A handle's part of these records of one volume; writes are noted in the first.
    pub fn new(records: Vec<Arc<Unflushed>>) -> Ledger {
        let known = |r: Arc<Unflushed>| {
            let losses = r.losses.load(SeqCst);
            (r, Cell::new(losses))
        };
        Ledger { all: records.into_iter().map(known).collect(), mark: RefCell::default() }
    }

    /// A write was acknowledged out of this cache. To be called before its caller learns of it.
    #[inline]
    pub fn written(&self, cache: u64) {
        let Some((record, _)) = self.all.first() else { return };
        // Read-only for all writes between two flushes, so reactors do not take the line from each other.
        let now = record.epoch.load(SeqCst);
        let mut mark = self.mark.borrow_mut();
        let m = match &mut *mark {
            Some(m) if m.cache == cache => m,
            other => other.insert(record.mark(cache)),
        };
        if m.epoch.load(SeqCst) != now {
            m.epoch.fetch_max(now, SeqCst);
        }
    }

    /// A flush begins. To be called before it is sent.
    pub fn begin(&self) -> Begun {
        Begun(self.all.iter().map(|(r, _)| r.epoch.fetch_add(1, SeqCst)).collect())
    }

    /// The flush has ended well. `gone` says of a cache whether it is another than the one that was flushed. False when
    /// something that was acknowledged before is lost and this handle has not told it yet; it counts as told then.
    pub fn flushed(&self, begun: &Begun, gone: impl Fn(u64) -> bool) -> bool {
        let mut whole = true;
        for ((record, told), epoch) in self.all.iter().zip(&begun.0) {
            record.settle(*epoch, &gone);
            let losses = record.losses.load(SeqCst);
            whole &= told.replace(losses) == losses;
        }
        whole
    }

    /// The target has failed a flush for good, and tells so once. The caller of this handle is told by that; others of the volume
    /// are by their next flush.
    pub fn failed(&self) {
        for (record, told) in self.all.iter().filter(|(r, _)| r.is_dirty()) {
            told.set(record.losses.fetch_add(1, SeqCst) + 1);
        }
    }

    /// The records.
    pub fn records(&self) -> impl Iterator<Item = &Arc<Unflushed>> {
        self.all.iter().map(|(r, _)| r)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> (Arc<Unflushed>, Ledger, Ledger) {
        let r = Arc::new(Unflushed::default());
        let ledger = || Ledger::new(vec![r.clone()]);
        (r.clone(), ledger(), ledger())
    }

    /// A flush over a target with this cache.
    fn flush(l: &Ledger, cache: u64) -> bool {
        let b = l.begin();
        l.flushed(&b, |c| c != cache)
    }

    #[test]
    fn a_loss_is_told_once_by_each_handle() {
        let (_, a, b) = two();
        a.written(1);
        assert!(!flush(&b, 2) && !flush(&a, 2), "each tells");
        assert!(flush(&a, 2) && flush(&b, 2), "once");
        b.written(2);
        assert!(flush(&a, 2), "what was written since is not lost");
    }

    #[test]
    fn a_flush_of_any_handle_covers_what_others_wrote() {
        let (r, a, b) = two();
        a.written(1);
        assert!(r.is_dirty() && flush(&b, 1) && !r.is_dirty());
        assert!(flush(&a, 2) && flush(&b, 2), "nothing was in the cache that was lost");
    }

    #[test]
    fn what_is_written_while_a_flush_runs_is_not_covered_by_it() {
        let (r, a, b) = two();
        a.written(1);
        let begun = b.begin();
        a.written(1);
        assert!(b.flushed(&begun, |c| c != 1) && r.is_dirty());
        assert!(!flush(&b, 2));
    }

    #[test]
    fn a_flush_that_is_sent_again_after_the_loss_tells_of_what_came_before_it() {
        let (_, a, b) = two();
        a.written(1);
        let begun = b.begin();
        // Renews the mark: the loss of the first must be told all the same.
        a.written(1);
        assert!(!b.flushed(&begun, |c| c != 2));
    }

    #[test]
    fn of_two_flushes_at_once_both_tell() {
        let (_, a, b) = two();
        a.written(1);
        let (x, y) = (a.begin(), b.begin());
        assert!(!a.flushed(&x, |c| c != 2) && !b.flushed(&y, |c| c != 2));
    }

    #[test]
    fn a_flush_that_is_given_up_takes_nothing_with_it() {
        let (_, a, _) = two();
        a.written(1);
        drop(a.begin());
        assert!(!flush(&a, 2));
    }

    #[test]
    fn a_flush_that_the_target_fails_is_told_by_each_handle_once() {
        let (_, a, b) = two();
        a.failed();
        assert!(flush(&b, 1), "nothing was written");
        b.written(1);
        a.failed();
        assert!(flush(&a, 1), "its caller knows");
        assert!(!flush(&b, 1) && flush(&b, 1), "the other is told once");
    }

    #[test]
    fn a_handle_that_is_opened_later_tells_of_nothing_that_was_told_before() {
        let (r, a, _) = two();
        a.written(1);
        assert!(!flush(&a, 2));
        let late = Ledger::new(vec![r]);
        assert!(flush(&late, 2));
    }
}
