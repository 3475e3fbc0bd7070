//! Writes of the log on their way into memory: many at once, since one by one they take longer than a restart may.

use super::dataset::Dataset;
use super::{Inner, StoreError, StoreResult};
use crate::format::log::Run;
use crate::format::tree::MapEntry;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Fewer are put into the layers one by one.
const FEW: usize = 64;

struct Put {
    dataset: u32,
    lba: u64,
    entry: MapEntry,
}

/// Writes that are taken up next, in the order of the log.
#[derive(Default)]
pub(super) struct Gather {
    puts: Vec<Put>,
    /// The dataset asked for last.
    last: Option<(u32, Option<Rc<Dataset>>)>,
}

impl Gather {
    /// The dataset of a write; `None`: it is not there any more.
    pub(super) fn dataset(&mut self, i: &Inner, id: u32) -> Option<Rc<Dataset>> {
        if let Some((known, ds)) = &self.last
            && *known == id
        {
            return ds.clone();
        }
        let ds = i.datasets.borrow().get(&id).cloned();
        self.last = Some((id, ds.clone()));
        ds
    }

    /// Takes up a write that happened.
    pub(super) fn run(&mut self, i: &Inner, r: &Run<'_>) -> StoreResult {
        if self.last.as_ref().is_none_or(|(id, _)| *id != r.dataset) {
            self.dataset(i, r.dataset);
        }
        if self.last.as_ref().is_none_or(|(_, ds)| ds.is_none()) {
            return Ok(());
        }
        for (k, crc) in (0..).zip(r.crcs()) {
            let entry = MapEntry { vbn: r.vbn + k, birth: r.birth, crc };
            self.block(i, r.dataset, r.lba + k, entry)?;
        }
        Ok(())
    }

    /// Takes up a block of a dataset that is there.
    pub(super) fn block(
        &mut self,
        i: &Inner,
        dataset: u32,
        lba: u64,
        entry: MapEntry,
    ) -> StoreResult {
        let mut space = i.space.borrow_mut();
        let MapEntry { vbn, birth, .. } = entry;
        if !space.is_place(vbn) {
            let text = format!("the log names block {vbn}, which is no place");
            return Err(StoreError::Pool(text));
        }
        if !space.take(vbn) {
            let by = if space.is_on_disk(vbn) { "the checkpoint" } else { "another entry" };
            let epoch = i.durable.borrow().epoch;
            return Err(StoreError::Pool(format!(
                "the log writes block {vbn} for dataset {dataset} in epoch {birth}, which {by} uses; \
                 the checkpoint is of epoch {epoch}"
            )));
        }
        self.taken(dataset, lba, entry);
        Ok(())
    }

    /// Takes up a block whose place was taken for it.
    pub(super) fn taken(&mut self, dataset: u32, lba: u64, entry: MapEntry) {
        self.puts.push(Put { dataset, lba, entry });
    }

    /// Puts what was gathered into the layers: before anything that is no write, and in the end.
    pub(super) fn settle(&mut self, i: &Inner) {
        self.last = None;
        let mut puts = std::mem::take(&mut self.puts);
        if puts.len() >= FEW {
            // Of several writes to a block the last one stays the last.
            puts.sort_by_key(|p| (p.dataset, p.lba));
        }
        for some in puts.chunk_by(|a, b| a.dataset == b.dataset) {
            let Some(ds) = some.first().and_then(|p| self.dataset(i, p.dataset)) else { continue };
            if some.len() < FEW || !ds.top.active.borrow().map.is_empty() {
                some.iter().for_each(|p| i.apply_put(&ds, p.lba, p.entry));
                continue;
            }
            let mut last = Vec::with_capacity(some.len());
            for same in some.chunk_by(|a, b| a.lba == b.lba) {
                let Some((newest, older)) = same.split_last() else { continue };
                older.iter().for_each(|p| i.free_later(p.entry.vbn));
                last.push((newest.lba, newest.entry));
            }
            i.ckpt.entries.set(i.ckpt.entries.get() + last.len() as u64);
            last.iter().for_each(|(lba, _)| i.losses.is_anew(ds.id, *lba, 1));
            ds.top.active.borrow_mut().map = BTreeMap::from_iter(last);
        }
        self.last = None;
    }
}
