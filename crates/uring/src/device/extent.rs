//! Which bytes of a file or disk something shows.

use super::Identity;
use super::users::{partition, same_disk};

/// Bytes of a file or of a whole disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The file, or the disk: never a partition whose place is known.
    pub(super) of: Identity,
    from: u64,
    to: u64,
}

impl Extent {
    /// All of it. A partition is a piece of its disk.
    pub fn all(of: Identity) -> Extent {
        let part = match of {
            Identity::Block(number) => partition(number),
            Identity::Inode(..) => None,
        };
        match part {
            Some((disk, from, to)) => Extent { of: Identity::Block(disk), from, to },
            None => Extent { of, from: 0, to: u64::MAX },
        }
    }

    /// What is between these two places of it.
    pub fn of(of: Identity, from: u64, to: u64) -> Extent {
        Extent::all(of).piece(from, to.saturating_sub(from).max(1))
    }

    /// The first bytes of it, so many.
    pub fn first(self, bytes: u64) -> Extent {
        Extent { to: self.to.min(self.from.saturating_add(bytes)), ..self }
    }

    /// So many bytes of it (0: all) behind an offset.
    pub(super) fn piece(self, offset: u64, limit: u64) -> Extent {
        let from = self.from.saturating_add(offset);
        let to = if limit == 0 { u64::MAX } else { from.saturating_add(limit) };
        Extent { from, to: to.min(self.to), ..self }
    }

    /// What `device`, which is made of this, shows of these bytes. None: nothing.
    pub(super) fn shown(self, device: Identity, bytes: Extent) -> Option<Extent> {
        let (from, to) = (self.from.max(bytes.from), self.to.min(bytes.to));
        let shows = self.of == bytes.of && from < to;
        shows.then(|| Extent { of: device, from: from - self.from, to: to - self.from })
    }

    /// Where these bytes of a device are which is made of this.
    pub(super) fn below(self, bytes: Extent) -> Extent {
        let to = self.from.saturating_add(bytes.to).min(self.to);
        Extent { from: self.from.saturating_add(bytes.from), to, ..self }
    }

    /// Whether it has any of the bytes between these two places of a file or block device.
    pub fn meets(self, of: Identity, from: u64, to: u64) -> bool {
        Extent::of(of, from, to).shown(of, self).is_some()
    }

    /// What has any of these bytes: the file; or the disk, and those of its partitions that do.
    pub fn had_by(self) -> Vec<Identity> {
        let all = match self.of {
            Identity::Block(dev) => same_disk(dev).into_iter().map(Identity::Block).collect(),
            file => vec![file],
        };
        all.into_iter().filter(|i| Extent::all(*i).shown(*i, self).is_some()).collect()
    }

    /// The partitions that have any of these bytes.
    pub fn partitions(self) -> Vec<Identity> {
        self.had_by().into_iter().filter(|i| *i != self.of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Identity = Identity::Inode(8, 12);
    const DEVICE: Identity = Identity::Block(7);

    fn of(from: u64, to: u64) -> Extent {
        Extent { of: FILE, from, to }
    }

    #[test]
    fn bytes_are_followed_down_and_up() {
        let device = |from, to| Extent { of: DEVICE, from, to };
        // A loop device of 100 bytes from 50, and a part of it.
        let loop_device = of(0, u64::MAX).piece(50, 100);
        assert_eq!(loop_device.below(device(10, 20)), of(60, 70));
        assert_eq!(loop_device.below(device(0, u64::MAX)), of(50, 150));
        assert_eq!(loop_device.below(device(90, 200)), of(140, 150));
        assert_eq!(loop_device.shown(DEVICE, of(60, 70)), Some(device(10, 20)));
        // What it does not show is nowhere.
        let beyond = loop_device.below(device(100, 200));
        assert!(!beyond.meets(FILE, 0, u64::MAX) && beyond.had_by().is_empty());
    }

    #[test]
    fn only_the_same_bytes_are_met() {
        let bytes = of(4096, 8192);
        for (from, to, is_met) in
            [(0, 4096, false), (0, 4097, true), (8191, 9000, true), (8192, 9000, false)]
        {
            assert_eq!(bytes.meets(FILE, from, to), is_met, "{from} to {to}");
        }
        assert!(!bytes.meets(Identity::Inode(8, 13), 0, u64::MAX), "another file");
        assert_eq!(bytes.had_by(), [FILE]);
    }
}
