//! Snapshots of a data plane that keeps volumes and not bytes: what they hold, and who may need them.

use super::medium::{Dataset, Medium, Stamp};
use super::plane::refused;
use std::collections::BTreeMap;
use weir_control::live::SnapshotLive;
use weir_control::model::{Layout, Naa, Volume};
use weir_control::{Code, Error};

/// A volume has the blocks of a snapshot from now on.
#[derive(Debug, Clone)]
pub(super) struct Copied {
    pub(super) naa: Naa,
    pub(super) blocks: BTreeMap<u64, Stamp>,
    /// It had others before.
    pub(super) reverted: bool,
}

/// A snapshot of a dataset, as it is called on the devices.
fn named(dataset: &str, name: &str) -> String {
    format!("{dataset}@{name}")
}

impl Medium {
    /// The snapshots of a protected pool.
    pub(super) fn snapshots(&self, pool: u128) -> Vec<SnapshotLive> {
        let Some(store) = self.stores.get(&pool) else { return Vec::new() };
        let of = |name: &String| {
            let made = store.datasets.iter().filter(|(_, d)| d.origin.as_ref() == Some(name));
            made.map(|(clone, _)| clone.clone()).collect()
        };
        let live = |(name, (created, d)): (&String, &(u64, Dataset))| SnapshotLive {
            dataset: name.clone(),
            size: d.size,
            created: *created,
            clones: of(name),
            ..SnapshotLive::default()
        };
        store.snapshots.iter().map(live).collect()
    }

    /// A volume has snapshots.
    pub(super) fn has_snapshots(&self, pool: u128, v: &Volume) -> bool {
        let Layout::Store { dataset, .. } = &v.layout else { return false };
        let prefix = named(dataset, "");
        let store = self.stores.get(&pool);
        store.is_some_and(|s| s.snapshots.keys().any(|name| name.starts_with(&prefix)))
    }

    pub(super) fn take_snapshots(
        &mut self,
        pool: u128,
        wanted: &[(String, String)],
    ) -> Result<(), Error> {
        let store = self.stores.entry(pool).or_default();
        let is_known = |(dataset, _): &(String, String)| store.datasets.contains_key(dataset);
        if !wanted.iter().all(is_known) {
            return refused(Code::VolumeNotFound, "it is not on the devices");
        }
        if wanted.iter().any(|(d, name)| store.snapshots.contains_key(&named(d, name))) {
            return refused(Code::SnapshotExists, "it exists");
        }
        let next = store.snapshots.values().map(|(made, _)| *made).max().unwrap_or(0) + 1;
        for (dataset, name) in wanted {
            let is = store.datasets.get(dataset).cloned().unwrap_or_default();
            store.snapshots.insert(named(dataset, name), (next, is));
        }
        Ok(())
    }

    pub(super) fn delete_snapshot(&mut self, pool: u128, name: &str) -> Result<(), Error> {
        let store = self.stores.entry(pool).or_default();
        if store.datasets.values().any(|d| d.origin.as_deref() == Some(name)) {
            return refused(Code::SnapshotInUse, "a volume was made of it");
        }
        match store.snapshots.remove(name) {
            Some(_) => Ok(()),
            None => refused(Code::SnapshotNotFound, "it is not on the devices"),
        }
    }

    /// Makes a volume what it was at its newest snapshot.
    pub(super) fn revert(&mut self, pool: u128, v: &Volume, name: &str) -> Result<(), Error> {
        let Layout::Store { dataset, .. } = &v.layout else {
            return refused(Code::Unsupported, "it has no snapshots");
        };
        let store = self.stores.entry(pool).or_default();
        let prefix = named(dataset, "");
        let own = store.snapshots.iter().filter(|(name, _)| name.starts_with(&prefix));
        let Some((newest, (_, was))) = own.max_by_key(|(_, (made, _))| *made) else {
            return refused(Code::SnapshotNotFound, "it is not on the devices");
        };
        if newest != name {
            return refused(Code::SnapshotInUse, "the volume has newer snapshots");
        }
        let Some(is) = store.datasets.get_mut(dataset) else {
            return refused(Code::VolumeNotFound, "it is not on the devices");
        };
        (is.size, is.blocks) = (was.size, was.blocks.clone());
        let blocks = was.blocks.clone();
        self.copied.push(Copied { naa: v.naa, blocks, reverted: true });
        Ok(())
    }

    /// Makes a volume, of a snapshot if it was told so, unless it is there.
    pub(super) fn make(&mut self, pool: u128, v: &Volume) -> Result<(), Error> {
        let Layout::Store { dataset, origin, .. } = &v.layout else { return Ok(()) };
        let store = self.stores.entry(pool).or_default();
        if store.datasets.contains_key(dataset) {
            return Ok(());
        }
        let made = match origin {
            None => Dataset { size: v.size, ..Dataset::default() },
            Some(name) => match store.snapshots.get(name) {
                Some((_, was)) => Dataset { origin: origin.clone(), ..was.clone() },
                None => return refused(Code::SnapshotNotFound, format!("{name} is not there")),
            },
        };
        if origin.is_some() {
            let blocks = made.blocks.clone();
            self.copied.push(Copied { naa: v.naa, blocks, reverted: false });
        }
        store.datasets.insert(dataset.clone(), made);
        Ok(())
    }

    /// Snapshots that are no volume's of those with these datasets.
    pub(super) fn nobodys<'a>(
        &'a self,
        pool: u128,
        known: impl Fn(&str) -> bool + 'a,
    ) -> impl Iterator<Item = &'a String> {
        let all = self.stores.get(&pool).into_iter().flat_map(|s| s.snapshots.keys());
        all.filter(move |name| !name.split_once('@').is_some_and(|(dataset, _)| known(dataset)))
    }
}
