//! Turns: recoveries that kept the log instead of merging it, and which pages count after them.
//!
//! The log is then made of stretches: what is left of the life before the first turn, then for each turn the pages
//! with which that recovery made its verdicts last, and those of the life that it began. The last one is the present.

use super::le::*;
use super::log::PageHead;
use super::superblock::Superblock;
use super::{MAX_EPOCH, Result, ensure};

/// Most turns of a superblock; the next recovery merges.
pub const MAX_TURNS: usize = 4;
/// Bytes of a turn.
pub(super) const TURN: usize = 40;

/// A recovery that kept the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// Pages of the life before it count below this number, and all of those are there.
    pub end: u64,
    /// First page that it wrote.
    pub first: u64,
    /// First page of the life that it began: from `first` to here it wrote again what it found to have happened of the
    /// pages from `end` on.
    pub sure: u64,
    /// Checksum of the page before `sure`; if it wrote none, of the page before `end`.
    pub chain: u64,
    /// Nothing of the lives before was born in this epoch or later.
    pub epoch: u32,
}

impl Turn {
    pub(super) fn put(&self, b: &mut [u8]) {
        put64(b, 0, self.end);
        put64(b, 8, self.first);
        put64(b, 16, self.sure);
        put64(b, 24, self.chain);
        put32(b, 32, self.epoch);
    }

    pub(super) fn get(b: &[u8]) -> Turn {
        Turn {
            end: get64(b, 0),
            first: get64(b, 8),
            sure: get64(b, 16),
            chain: get64(b, 24),
            epoch: get32(b, 32),
        }
    }
}

pub(super) fn check_turns(s: &Superblock) -> Result<()> {
    ensure(s.turns.is_empty() || s.incarnation as usize > s.turns.len(), "incarnation")?;
    let (mut at, mut epoch) = (s.base_lsn, s.epoch);
    for t in &s.turns {
        let sorted = at <= t.end && t.end <= t.first && t.first <= t.sure;
        ensure(sorted, "pages of a turn")?;
        ensure(epoch <= t.epoch && t.epoch <= MAX_EPOCH, "epoch of a turn")?;
        (at, epoch) = (t.sure, t.epoch);
    }
    Ok(())
}

/// Pages of one life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    /// Who wrote them.
    pub incarnation: u32,
    /// The first of them.
    pub first: u64,
    /// Those before this one were written by the recovery that began it.
    pub sure: u64,
    /// The first that does not count; `None`: it is the present one.
    pub end: Option<u64>,
    /// Checksum of the page before `sure`.
    pub chain: u64,
}

/// What a superblock says of a page of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It is part of the log.
    Counts,
    /// It is none any more, or never became one.
    Old,
    /// It knows a newer superblock: superblocks were lost.
    Newer,
}

impl Superblock {
    /// The stretches of the log, the oldest first, the present one last.
    pub fn stretches(&self) -> impl Iterator<Item = Stretch> + '_ {
        let n = self.turns.len();
        (0..=n).map(move |k| {
            let begin = k.checked_sub(1).map(|k| self.turns[k]);
            let base = (self.base_lsn, self.base_lsn, self.base_chain);
            let (first, sure, chain) = begin.map_or(base, |t| (t.first, t.sure, t.chain));
            let end = self.turns.get(k).map(|t| t.end);
            let incarnation = self.incarnation.wrapping_sub((n - k) as u32);
            Stretch { incarnation, first, sure, end, chain }
        })
    }

    /// How a page stands that was found in the slot of its number.
    pub fn standing(&self, p: &PageHead) -> Standing {
        if p.incarnation > self.incarnation {
            // A recovery that did not come to its end may have left pages. It began from this superblock or one before.
            let unfinished = p.recovery
                && p.incarnation == self.incarnation.wrapping_add(1)
                && p.base_seq <= self.seq;
            return if unfinished { Standing::Old } else { Standing::Newer };
        }
        if p.incarnation == self.incarnation && p.base_seq > self.seq {
            return Standing::Newer;
        }
        let within = |s: Stretch| {
            s.incarnation == p.incarnation
                && p.lsn >= s.first
                && s.end.is_none_or(|e| p.lsn < e)
                && p.recovery == (p.lsn < s.sure)
        };
        if self.stretches().any(within) { Standing::Counts } else { Standing::Old }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::superblock::{BlobRoot, Member, MemberState, TableRoot};

    fn plain() -> Superblock {
        let member = Member {
            device: 9,
            state: MemberState::InSync,
            draining: false,
            leaving: false,
            written_off: false,
            since: 0,
            blocks: 1000,
            spares_used: 0,
            domain: 0,
        };
        Superblock {
            pool: 1,
            lineage: 2,
            parent_lineage: 0,
            seq: 7,
            incarnation: 5,
            owner_epoch: 0,
            epoch: 2,
            previous: 0,
            datasets: BlobRoot::default(),
            space: TableRoot::default(),
            base_lsn: 10,
            base_chain: 0,
            turns: Vec::new(),
            log_set: [Some(0), None],
            copies: 1,
            slab_shift: 8,
            log_pages: 64,
            table_pages: 1,
            spares: 0,
            next_dataset: 1,
            members: vec![member],
            incompat: 0,
            compat: 0,
        }
    }

    fn page(incarnation: u32, lsn: u64, recovery: bool) -> PageHead {
        PageHead {
            pool: 1,
            incarnation,
            owner_epoch: 0,
            lsn,
            previous: 0,
            stable: 0,
            base_seq: 7,
            recovery,
        }
    }

    #[test]
    fn pages_count_in_the_stretch_of_their_life() {
        let mut s = plain();
        assert_eq!(s.standing(&page(5, 10, false)), Standing::Counts);
        assert_eq!(
            s.standing(&page(5, 10, true)),
            Standing::Old,
            "of a recovery that merged after all"
        );
        assert_eq!(s.standing(&page(5, 9, false)), Standing::Old);
        assert_eq!(s.standing(&page(4, 12, false)), Standing::Old);
        s.turns = vec![
            Turn { end: 20, first: 25, sure: 27, chain: 1, epoch: 3 },
            Turn { end: 30, first: 30, sure: 30, chain: 2, epoch: 4 },
        ];
        s.incarnation = 7;
        for (lsn, life, recovery) in [
            (10, 5, false),
            (19, 5, false),
            (25, 6, true),
            (26, 6, true),
            (27, 6, false),
            (29, 6, false),
            (30, 7, false),
            (99, 7, false),
        ] {
            for other in 4..=7 {
                for flag in [false, true] {
                    let counts = (other, flag) == (life, recovery);
                    let standing = s.standing(&page(other, lsn, flag));
                    assert_eq!(standing == Standing::Counts, counts, "{lsn} {other} {flag}");
                    assert_ne!(standing, Standing::Newer);
                }
            }
        }
        // Between the lives nothing counts.
        for lsn in 20..25 {
            assert_eq!(s.standing(&page(5, lsn, false)), Standing::Old);
            assert_eq!(s.standing(&page(6, lsn, true)), Standing::Old);
        }
        let lives: Vec<u32> = s.stretches().map(|s| s.incarnation).collect();
        assert_eq!(lives, [5, 6, 7]);
    }

    #[test]
    fn pages_that_know_a_newer_superblock_are_told_from_those_of_a_recovery_that_did_not_end() {
        let s = plain();
        assert_eq!(s.standing(&page(6, 12, true)), Standing::Old);
        assert_eq!(s.standing(&page(6, 12, false)), Standing::Newer);
        assert_eq!(s.standing(&page(7, 12, true)), Standing::Newer);
        assert_eq!(s.standing(&PageHead { base_seq: 8, ..page(6, 12, true) }), Standing::Newer);
        assert_eq!(s.standing(&PageHead { base_seq: 8, ..page(5, 12, false) }), Standing::Newer);
    }

    #[test]
    fn turns_in_disorder_are_refused() {
        let good = Turn { end: 20, first: 25, sure: 27, chain: 1, epoch: 3 };
        let mut s = plain();
        s.incompat = crate::format::KEPT_LOG;
        let read = |s: &Superblock| Superblock::decode(&s.encode(9, 0), s.pool, 9, 0, 7);
        s.turns = vec![good];
        assert_eq!(read(&s), Ok(s.clone()));
        for bad in [
            Turn { end: 9, ..good },
            Turn { end: 26, ..good },
            Turn { sure: 24, ..good },
            Turn { epoch: 1, ..good },
            Turn { epoch: MAX_EPOCH + 1, ..good },
        ] {
            s.turns = vec![bad];
            assert!(read(&s).is_err(), "{bad:?}");
        }
        s.turns = vec![good, Turn { end: 26, ..good }];
        assert!(read(&s).is_err(), "before the end of the one before");
        s.turns = vec![good; 1];
        s.incompat = 0;
        assert!(read(&s).is_err(), "turns without the feature");
        (s.turns, s.incompat) = (Vec::new(), crate::format::KEPT_LOG);
        assert!(read(&s).is_err(), "the feature without turns");
    }
}
