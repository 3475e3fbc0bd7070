//! What the devices of a pool that are there say of it, and which of two counts that say to be the same one.

use std::cmp::Ordering;
use weir_store::LogEnd;
use weir_uring::device::same_name;

/// Whether a device is the one that was at its path when the pool was open last, by what the system tells it from others by. The
/// better the less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Name {
    /// It is that very one.
    Recorded,
    /// Nobody knows.
    Unknown,
    /// It is another one.
    Another,
}

impl Name {
    /// Of what is recorded of a path, and what is there now.
    pub(super) fn of(recorded: Option<&str>, now: Option<&str>) -> Name {
        match (recorded, now) {
            (None, _) => Name::Unknown,
            (Some(r), Some(n)) if same_name(r, n) => Name::Recorded,
            (Some(_), _) => Name::Another,
        }
    }
}

/// What is known of a device that says to be one of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Standing {
    /// How far it has come; none if that cannot be read.
    pub(super) end: Option<LogEnd>,
    pub(super) name: Name,
}

/// How far a device has come: the number of its superblock, then the end of its log.
pub(super) fn age(end: &LogEnd) -> (u64, Option<u64>) {
    (end.seq, end.next)
}

impl Standing {
    /// Which of two counts that say to be one device: the newer one. Where that cannot be told, the very device does. The greater
    /// the better.
    fn against(&self, other: &Standing) -> Ordering {
        let by_age = match (&self.end, &other.end) {
            (Some(a), Some(b)) => age(a).cmp(&age(b)),
            // What cannot be read is not behind.
            _ => Ordering::Equal,
        };
        let is_read = self.end.is_some().cmp(&other.end.is_some());
        by_age.then(other.name.cmp(&self.name)).then(is_read)
    }
}

/// Which of several counts that say to be one device: the newest of those that can be read, or one that cannot be read and counts
/// more than that one. In which order they are named does not matter.
pub(super) fn best_of<'a>(all: impl Iterator<Item = &'a Standing>) -> Option<usize> {
    let mut all: Vec<_> = all.enumerate().collect();
    all.sort_by_key(|(_, s)| s.end.is_none());
    let best = all.into_iter().reduce(|best, s| if s.1.against(best.1).is_gt() { s } else { best });
    best.map(|(n, _)| n)
}

/// What the devices that are there say, all together: also those that may be old copies.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The newest superblock's number; none while no device is there.
    seq: Option<u64>,
    /// The superblock that all of them had, and the page of the log before which all is on all halves, as the log says, or may.
    had: u64,
    stable: u64,
    /// There is more in the log than the superblock covers.
    live: bool,
}

impl Known {
    pub(super) fn add(&mut self, end: &LogEnd) {
        self.seq = self.seq.max(Some(end.seq));
        let had = if end.unread { end.seq } else { end.had };
        (self.had, self.stable) = (self.had.max(had), self.stable.max(end.stable));
        self.live |= end.live;
    }

    /// Whether a device that [agrees](Self::agrees) is as new as the others for sure. One without the log tells only if all was
    /// closed in order.
    pub(super) fn proves(&self, end: &LogEnd) -> bool {
        self.seq.is_some_and(|seq| end.seq >= seq) && (end.next.is_some() || !self.live)
    }

    /// Whether a device has more than those that are here, all of which had the same when the pool was closed in order.
    pub(super) fn is_behind(&self, end: &LogEnd) -> bool {
        self.seq.is_some_and(|seq| end.seq > seq || end.seq == seq && end.live && !self.live)
    }

    /// Whether a device has what the others say that it has. One superblock, the last, may have reached some of them only: but
    /// the pool may have gone on for long after that, and its log tells.
    pub(super) fn agrees(&self, end: &LogEnd) -> bool {
        self.seq.is_none_or(|seq| end.seq + 1 >= seq)
            && end.seq >= self.had
            && end.next.is_none_or(|next| next >= self.stable)
    }

    /// Whether what is at its path may be an old copy of the device, which is elsewhere: it is behind, or not what was there.
    pub(super) fn doubts(&self, at: &Standing) -> bool {
        at.name == Name::Another || at.end.is_some_and(|end| !self.agrees(&end))
    }

    /// Whether another one may count instead of what is `at` the path of a device. Nothing older than that does, unless that is
    /// behind for sure; nor what is only as new as a device that has everything.
    pub(super) fn may_displace(&self, at: &Standing, other: &LogEnd) -> bool {
        // What cannot be read is not behind.
        let Some(end) = at.end else { return false };
        self.agrees(other)
            && match age(other).cmp(&age(&end)) {
                Ordering::Greater => true,
                _ if !self.agrees(&end) => true,
                Ordering::Equal => at.name == Name::Another && !self.proves(&end),
                Ordering::Less => false,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(seq: u64, next: u64) -> LogEnd {
        let had = seq.saturating_sub(1);
        LogEnd { seq, had, stable: 0, next: Some(next), live: false, unread: false }
    }

    fn at(end: LogEnd, name: Name) -> Standing {
        Standing { end: Some(end), name }
    }

    fn known(all: &[LogEnd]) -> Known {
        let mut known = Known::default();
        all.iter().for_each(|e| known.add(e));
        known
    }

    #[test]
    fn a_name_is_compared_with_what_is_recorded_of_that_path() {
        assert_eq!(Name::of(None, Some("inode 7 of a")), Name::Unknown);
        assert_eq!(Name::of(Some("inode 7"), Some("inode 7 of a")), Name::Recorded);
        assert_eq!(Name::of(Some("inode 7 of a"), Some("inode 7 of b")), Name::Another);
        assert_eq!(Name::of(Some("naa.5"), None), Name::Another);
    }

    #[test]
    fn an_old_copy_gives_way_and_takes_no_newer_ones_place() {
        let (old, new) = (end(5, 50), end(9, 90));
        let both = known(&[old, new]);
        // What is behind is in doubt, whichever file it is.
        assert!(both.doubts(&at(old, Name::Recorded)) && !both.doubts(&at(new, Name::Unknown)));
        for name in [Name::Recorded, Name::Unknown, Name::Another] {
            assert!(both.may_displace(&at(old, name), &new));
            assert!(!both.may_displace(&at(new, name), &old), "{name:?}");
        }
        // All that are at their paths are old copies of one time: only what they are gives them away.
        let all_old = known(&[old, old]);
        assert!(!all_old.doubts(&at(old, Name::Recorded)));
        let copy = at(old, Name::Another);
        assert!(all_old.doubts(&copy) && all_old.may_displace(&copy, &new));
    }

    /// One superblock behind proves nothing: the last one may have reached some devices only.
    #[test]
    fn what_is_newer_is_not_given_up_for_the_very_device() {
        let (old, new) = (end(8, 80), end(9, 90));
        let both = known(&[LogEnd { had: 8, ..new }]);
        assert!(both.agrees(&old));
        assert!(!both.may_displace(&at(new, Name::Another), &old));
        assert!(both.may_displace(&at(old, Name::Another), &new));
    }

    #[test]
    fn of_two_alike_the_very_device_counts_unless_the_other_has_all_for_sure() {
        let e = LogEnd { next: None, live: false, ..end(9, 0) };
        let closed = known(&[e]);
        assert!(!closed.may_displace(&at(e, Name::Another), &e), "it has all that there is");
        // A device without the log does not tell what was written last.
        let live = known(&[e, LogEnd { live: true, ..end(9, 90) }]);
        assert!(live.may_displace(&at(e, Name::Another), &e));
        assert!(!live.may_displace(&at(e, Name::Recorded), &e));
        assert!(!live.may_displace(&at(e, Name::Unknown), &e));
    }

    #[test]
    fn what_cannot_be_read_is_not_behind() {
        let all = known(&[end(5, 50)]);
        let unread = Standing { end: None, name: Name::Another };
        assert!(all.doubts(&unread) && !all.may_displace(&unread, &end(9, 90)));
        assert!(!all.doubts(&Standing { end: None, name: Name::Recorded }));
    }

    /// What cannot be read of a log may say that everybody had the newest superblock.
    #[test]
    fn what_lacks_a_superblock_is_in_doubt_while_the_log_is_not_read() {
        let (behind, new) = (end(8, 80), LogEnd { had: 8, ..end(9, 90) });
        assert!(!known(&[behind, new]).doubts(&at(behind, Name::Recorded)));
        let unread = known(&[behind, LogEnd { unread: true, ..new }]);
        assert!(unread.doubts(&at(behind, Name::Recorded)));
        assert!(unread.may_displace(&at(behind, Name::Recorded), &new));
    }

    #[test]
    fn of_several_of_one_label_the_newest_counts() {
        let (old, new) = (at(end(5, 50), Name::Recorded), at(end(9, 90), Name::Another));
        assert_eq!(new.against(&old), Ordering::Greater);
        let longer = at(end(5, 51), Name::Another);
        assert_eq!(longer.against(&old), Ordering::Greater);
        // As new, or nobody knows: the very device.
        assert_eq!(old.against(&at(end(5, 50), Name::Another)), Ordering::Greater);
        let unread = Standing { end: None, name: Name::Recorded };
        assert_eq!(unread.against(&new), Ordering::Greater);
        assert_eq!(Standing { name: Name::Another, ..unread }.against(&new), Ordering::Less);
    }

    #[test]
    fn which_of_several_counts_is_the_same_in_any_order() {
        // Each counts more than the next one, and the last more than the first.
        let old = at(end(5, 50), Name::Recorded);
        let unread = Standing { end: None, name: Name::Unknown };
        let new = at(end(9, 90), Name::Another);
        for order in [[old, unread, new], [unread, new, old], [new, old, unread]] {
            for mut all in [order, [order[1], order[0], order[2]]] {
                assert_eq!(all[best_of(all.iter()).unwrap()], unread, "{all:?}");
                all[all.iter().position(|s| *s == unread).unwrap()].name = Name::Another;
                assert_eq!(all[best_of(all.iter()).unwrap()], new, "{all:?}");
            }
        }
        assert_eq!(best_of([].iter()), None);
    }
}
