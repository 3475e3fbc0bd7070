//! What outlives a process: devices with their labels and blocks, and what protected pools keep on theirs.

use super::snapshots::Copied;
use std::collections::{BTreeMap, BTreeSet};
use weir_control::model::{Layout, Naa, Volume};

/// Bytes of a block here: volumes are so small that one written block of each is enough.
pub(super) const BLOCK: u64 = 1 << 20;

/// What a host wrote to a block: the volume that it meant, and which of all writes it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) naa: Naa,
    pub(super) write: u64,
}

/// A file or disk that pools are made of.
#[derive(Debug, Clone, Default)]
pub(super) struct Disk {
    pub(super) size: u64,
    pub(super) label: Option<u128>,
    pub(super) blocks: BTreeMap<u64, Stamp>,
}

/// A volume in a protected pool.
#[derive(Debug, Clone, Default)]
pub(super) struct Dataset {
    pub(super) size: u64,
    /// The snapshot that it was made of.
    pub(super) origin: Option<String>,
    pub(super) blocks: BTreeMap<u64, Stamp>,
}

/// What the devices of a protected pool have.
#[derive(Debug, Clone, Default)]
pub(super) struct Store {
    pub(super) datasets: BTreeMap<String, Dataset>,
    /// Snapshots, and in which order they were made.
    pub(super) snapshots: BTreeMap<String, (u64, Dataset)>,
    pub(super) parts: BTreeMap<u32, Vec<u8>>,
    /// Tells a state of the devices from all others.
    pub(super) newest: u64,
}

/// All of it.
#[derive(Debug, Clone, Default)]
pub(super) struct Medium {
    pub(super) disks: BTreeMap<String, Disk>,
    pub(super) stores: BTreeMap<u128, Store>,
    /// Volumes that have become what snapshots are, since somebody has looked.
    pub(super) copied: Vec<Copied>,
}

/// Where a block is: on a device of its pool, or in a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Spot {
    On(usize, u64),
    In(String, u64),
}

/// Where block `n` of a layout is.
pub(super) fn spot(layout: &Layout, n: u64) -> Option<Spot> {
    match layout {
        Layout::Store { dataset, .. } => Some(Spot::In(dataset.clone(), n)),
        Layout::Extent { device, offset, length } => {
            (n * BLOCK < *length).then_some(Spot::On(*device, offset / BLOCK + n))
        }
        Layout::Concat { parts } => {
            let mut before = 0;
            parts.iter().find_map(|p| {
                let first = before;
                before += blocks_of(p);
                let here = (first..before).contains(&n);
                here.then(|| spot(p, n - first)).flatten()
            })
        }
        // A chunk is a block here.
        Layout::Stripe { columns, .. } => {
            let all = columns.len() as u64;
            spot(columns.get((n % all) as usize)?, n / all)
        }
        _ => None,
    }
}

fn blocks_of(layout: &Layout) -> u64 {
    match layout {
        Layout::Extent { length, .. } => length / BLOCK,
        Layout::Concat { parts } | Layout::Stripe { columns: parts, .. } => {
            parts.iter().map(blocks_of).sum()
        }
        _ => 0,
    }
}

/// The devices of a pool, by path.
pub(super) type Paths = Vec<String>;

impl Medium {
    fn blocks(
        &mut self,
        pool: u128,
        paths: &Paths,
        at: Spot,
    ) -> Option<(&mut BTreeMap<u64, Stamp>, u64)> {
        match at {
            Spot::On(device, n) => Some((&mut self.disks.get_mut(paths.get(device)?)?.blocks, n)),
            Spot::In(name, n) => {
                let set = self.stores.get_mut(&pool)?.datasets.get_mut(&name)?;
                (n * BLOCK < set.size).then_some((&mut set.blocks, n))
            }
        }
    }

    /// What is in a block of a volume. Error: it has no such block.
    pub(super) fn read(
        &mut self,
        pool: u128,
        paths: &Paths,
        v: &Volume,
        n: u64,
    ) -> Result<Option<Stamp>, String> {
        let at = spot(&v.layout, n).and_then(|at| self.blocks(pool, paths, at));
        let (blocks, n) = at.ok_or_else(|| format!("volume {} has no block {n}", v.name))?;
        Ok(blocks.get(&n).copied())
    }

    /// Writes a block of a volume.
    pub(super) fn write(
        &mut self,
        pool: u128,
        paths: &Paths,
        v: &Volume,
        n: u64,
        stamp: Stamp,
    ) -> Result<(), String> {
        let at = spot(&v.layout, n).and_then(|at| self.blocks(pool, paths, at));
        let (blocks, n) = at.ok_or_else(|| format!("volume {} has no block {n}", v.name))?;
        blocks.insert(n, stamp);
        Ok(())
    }

    /// Throws away what a volume has from block `from` on.
    pub(super) fn discard(&mut self, pool: u128, paths: &Paths, v: &Volume, from: u64) {
        if let Layout::Store { dataset, .. } = &v.layout {
            if let Some(set) = self.stores.get_mut(&pool).and_then(|s| s.datasets.get_mut(dataset))
            {
                set.blocks.retain(|n, _| *n < from);
                set.size = set.size.min(from * BLOCK);
            }
            return;
        }
        for n in from..blocks_of(&v.layout) {
            if let Some((blocks, n)) =
                spot(&v.layout, n).and_then(|at| self.blocks(pool, paths, at))
            {
                blocks.remove(&n);
            }
        }
    }

    /// Where something is that no volume has of a plain pool, among all of `volumes` in it.
    pub(super) fn left_over(&self, paths: &Paths, volumes: &[&Volume]) -> Option<String> {
        let mut owned = BTreeSet::new();
        for v in volumes {
            for n in 0..blocks_of(&v.layout) {
                if let Some(Spot::On(device, at)) = spot(&v.layout, n)
                    && !owned.insert((device, at))
                {
                    return Some(format!("block {at} of device {device} is of two volumes"));
                }
            }
        }
        paths.iter().enumerate().find_map(|(device, path)| {
            let disk = self.disks.get(path)?;
            let n = disk.blocks.keys().find(|n| !owned.contains(&(device, **n)))?;
            Some(format!("block {n} of {path} has data, and is no volume's: {:?}", disk.blocks[n]))
        })
    }
}
