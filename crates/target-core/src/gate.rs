//! COMPARE AND WRITE against writes: atomic, on whatever reactors they run, without a lock that writes take.
//!
//! A unit is divided into areas of 1 MiB, which share 64 numbers. A COMPARE AND WRITE announces its areas in
//! one word that every write of the unit looks at. Writes count themselves per area in cells of their own
//! reactor. The COMPARE AND WRITE then sends a message to every reactor that has the unit: when that is
//! looked at there, each write has either been counted before, and is waited for, or will see the
//! announcement, and waits. So a plain write pays for one load of a word that hardly ever changes, and never
//! for a barrier or a read-modify-write that cores contend for.

use crate::planted::{Bug, has};
use crate::unit::{Unit, UnitShared};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_reactor::{Completion, Handle, Token, WaitChannel, completion, spawn_task};

/// Bytes of an area, as a power of two.
const AREA: u32 = 20;
/// Numbers that areas share.
const NUMBERS: usize = u64::BITS as usize;

/// A set of area numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Areas(u64);

impl Areas {
    /// Those that a range of bytes touches.
    #[inline]
    pub(crate) fn of(at: u64, len: u64) -> Areas {
        let first = at >> AREA;
        let last = at.saturating_add(len.saturating_sub(1)) >> AREA;
        let n = last - first + 1;
        if n >= NUMBERS as u64 {
            return Areas::ALL;
        }
        Areas(((1u64 << n) - 1).rotate_left(first as u32 % u64::BITS))
    }

    const ALL: Areas = Areas(u64::MAX);
    /// Of no write but one that is counted nowhere on purpose.
    const NONE: Areas = Areas(0);

    #[inline]
    fn numbers(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let n = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            (n < NUMBERS).then_some(n)
        })
    }
}

/// What all reactors share of a unit's gate.
#[derive(Default)]
pub(crate) struct SharedGate {
    /// Areas with a COMPARE AND WRITE.
    announced: AtomicU64,
}

impl SharedGate {
    #[inline]
    fn is_announced(&self, areas: Areas) -> bool {
        self.announced.load(Ordering::Acquire) & areas.0 != 0
    }
}

/// One reactor's side of the gate.
pub(crate) struct Gate {
    /// Writes between their start and their end, per area.
    writing: [Cell<u32>; NUMBERS],
    /// Who waits for fewer writes, and who for the end of a COMPARE AND WRITE.
    fewer: WaitChannel,
    may_write: WaitChannel,
    shared: Arc<UnitShared>,
}

impl Gate {
    /// A side on the present reactor.
    pub(crate) fn new(shared: Arc<UnitShared>) -> Gate {
        Gate {
            writing: [const { Cell::new(0) }; NUMBERS],
            fewer: WaitChannel::new(0),
            may_write: WaitChannel::new(0),
            shared,
        }
    }

    #[inline]
    fn is_writing(&self, areas: Areas) -> bool {
        areas.numbers().any(|n| self.writing[n].get() > 0)
    }

    async fn wait_for_writes(&self, areas: Areas) {
        while self.is_writing(areas) {
            self.fewer.wait().await;
        }
    }

    #[cold]
    async fn wait_for_compare(&self, areas: Areas) {
        while self.shared.gate.is_announced(areas) {
            self.may_write.wait().await;
        }
    }
}

/// Held while a write is between its start and its end.
pub(crate) struct Writing<'a> {
    gate: &'a Gate,
    areas: Areas,
}

impl Drop for Writing<'_> {
    #[inline]
    fn drop(&mut self) {
        for n in self.areas.numbers() {
            let c = &self.gate.writing[n];
            c.set(c.get() - 1);
        }
        if self.gate.fewer.waiting() > 0 {
            self.gate.fewer.signal_all();
        }
    }
}

/// Held by a COMPARE AND WRITE between its read and its write.
pub(crate) struct Comparing<'a> {
    unit: &'a Unit,
    areas: Areas,
}

impl Drop for Comparing<'_> {
    fn drop(&mut self) {
        let unit = self.unit;
        unit.shared.gate.announced.fetch_and(!self.areas.0, Ordering::AcqRel);
        unit.gate.may_write.signal_all();
        for (number, there) in unit.others() {
            there.run(move || {
                if let Some(u) = Unit::find(number) {
                    u.gate.may_write.signal_all();
                }
            });
        }
    }
}

impl Unit {
    /// The sides on other reactors.
    fn others(&self) -> Vec<(u64, Handle)> {
        let mut all = self.shared.members.all();
        all.retain(|(n, _)| *n != self.number);
        all
    }

    /// True while a COMPARE AND WRITE of the range is between its read and its write: writes wait.
    #[inline]
    pub(crate) fn is_compared(&self, at: u64, len: u64) -> bool {
        self.gate.shared.gate.is_announced(Areas::of(at, len))
    }

    /// Waits while a COMPARE AND WRITE of the range is between its read and its write.
    #[inline]
    pub(crate) async fn write_gate(&self, at: u64, len: u64) -> Writing<'_> {
        self.pass_gate(at, len, Bug::WriteNotCounted).await
    }

    /// The same; with `bug` planted, the write is not counted.
    #[inline]
    pub(crate) async fn pass_gate(&self, at: u64, len: u64, bug: Bug) -> Writing<'_> {
        let (gate, areas) = (&self.gate, Areas::of(at, len));
        if gate.shared.gate.is_announced(areas) {
            gate.wait_for_compare(areas).await;
        }
        let areas = if has(bug) { Areas::NONE } else { areas };
        for n in areas.numbers() {
            let c = &gate.writing[n];
            c.set(c.get() + 1);
        }
        Writing { gate, areas }
    }

    /// Waits until nobody else writes to the range, on any reactor, and keeps it so.
    pub(crate) async fn compare_gate(&self, at: u64, len: u64) -> Comparing<'_> {
        let gate = &self.gate;
        let shared = &gate.shared.gate;
        let areas = Areas::of(at, len);
        loop {
            gate.wait_for_compare(areas).await;
            let now = shared.announced.load(Ordering::Acquire);
            let taken = now & areas.0 == 0
                && shared
                    .announced
                    .compare_exchange(now, now | areas.0, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok();
            if taken {
                break;
            }
        }
        let alone = Comparing { unit: self, areas };
        // Whoever joins from here on sees the announcement: it takes the list's lock later.
        let others = self.others();
        let mut quiet = Vec::with_capacity(others.len());
        for (number, there) in others {
            let (token, done) = completion();
            let answer = Answer { caller: weir_reactor::handle(), token };
            there.run(move || {
                let Some(u) = Unit::find(number) else { return };
                spawn_task(async move {
                    u.gate.wait_for_writes(areas).await;
                    drop(answer);
                });
            });
            quiet.push(done);
        }
        gate.wait_for_writes(areas).await;
        for q in quiet {
            q.await;
        }
        alone
    }
}

/// Completes a token of the caller's when it is dropped: also by a reactor that has ended.
struct Answer {
    caller: Handle,
    token: Token,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.caller.complete(self.token, Completion::ok(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_are_those_that_a_range_touches() {
        const M: u64 = 1 << AREA;
        let numbers = |at, len| Areas::of(at, len).numbers().collect::<Vec<_>>();
        assert_eq!(numbers(0, 512), [0]);
        assert_eq!(numbers(M - 512, 512), [0]);
        assert_eq!(numbers(M - 512, 1024), [0, 1]);
        assert_eq!(numbers(63 * M, 2 * M), [0, 63]);
        assert_eq!(numbers(64 * M + 1, 1), [0]);
        assert_eq!(numbers(5 * M, 62 * M).len(), 62);
        for (at, len) in [(0, 64 * M), (7, u64::MAX), (u64::MAX, 1 << 40)] {
            assert!(Areas::of(at, len) == Areas::ALL || at == u64::MAX, "{at} {len}");
        }
        assert_eq!(Areas::of(0, u64::MAX), Areas::ALL);
        // Ranges that share a byte share a number.
        for (a, b) in [((0, M), (M - 1, 1)), ((10 * M, 100 * M), (40 * M, 1)), ((3, 1), (3, 1))] {
            assert!(Areas::of(a.0, a.1).0 & Areas::of(b.0, b.1).0 != 0, "{a:?} {b:?}");
        }
    }
}
