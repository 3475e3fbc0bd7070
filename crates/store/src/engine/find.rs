//! Finding a pool: its newest superblock, its devices, and what each of them has.

use super::device::Device;
use super::labels::{Superblocks, label_within, superblocks};
use super::log_end::half;
use super::open::{Options, parse_space, pool_error, space_table};
use super::owner::{Ownership, is_believed};
use super::suffice::Sight;
use super::{StoreError, StoreResult};
use crate::format::LAST_EPOCH;
use crate::format::label::{Label, Layout};
use crate::format::slab::{RemapRecord, SlabRecord};
use crate::format::superblock::{MemberState, Superblock};
use crate::planted::{Bug, has};
use std::rc::Rc;
use weir_base::Nanos;
use weir_disk::Disk;

/// A disk, and what it says about itself.
pub(super) struct Part {
    pub(super) disk: Rc<dyn Disk>,
    pub(super) label: Label,
    pub(super) ring: Superblocks,
}

/// A pool as it was found.
pub(super) struct Found {
    /// Its newest superblock.
    pub(super) best: Superblock,
    pub(super) devices: Vec<Rc<Device>>,
    /// The lineage that it goes on with, and the one before.
    pub(super) lineage: (u64, u64),
    /// The table of slabs and replaced blocks; `None`: it makes no sense.
    pub(super) table: Option<(Vec<SlabRecord>, Vec<RemapRecord>)>,
    /// Disks that are not used, as another one is the same device, and why.
    pub(super) left_out: Vec<(String, String)>,
}

/// The devices of a pool as a superblock has them, with the disks that were found.
fn members(best: &Superblock, found: &[Part], others: &[Part], any: Label) -> Vec<Rc<Device>> {
    let all = best.members.iter().enumerate();
    all.map(|(n, m)| {
        let here = found.iter().chain(others).find(|p| p.label.device == m.device);
        // A missing one is laid out as the others are, in its own size.
        let y = any.layout;
        let like =
            |blocks| Layout::plan(blocks, y.slab_shift, y.log_pages, y.table_pages, y.spares);
        let layout = here.map(|p| p.label.layout).or(like(m.blocks)).unwrap_or(y);
        let d = Device::new(n as u16, m, layout, here.map(|p| p.disk.clone()));
        if here.is_some() && !has(Bug::FoundStaysLost) {
            // It has come back.
            d.written_off.set(false);
        }
        d
    })
    .collect()
}

/// Whether of two disks that are one device the second has come further. `None`: what would tell cannot be read.
async fn is_newer(one: &Part, other: &Part, limit: Nanos) -> Option<bool> {
    let newest = |p: &Part| p.ring.newest().map(Superblock::age);
    if newest(one) != newest(other) {
        return Some(newest(one) < newest(other));
    }
    let Some(s) = one.ring.newest() else { return Some(false) };
    let mut ends = [0; 2];
    for (end, p) in ends.iter_mut().zip([one, other]) {
        let half = half(&p.disk, &p.label.layout, s, limit).await.ok();
        *end = half.filter(|h| !h.unread || has(Bug::UnreadSaysNothing))?.next;
    }
    Some(ends[0] < ends[1])
}

/// Of disks that are the same device the one that has come furthest stays; says which ones do not.
async fn one_each(found: &mut Vec<Part>, limit: Nanos) -> StoreResult<Vec<(String, String)>> {
    let mut told = Vec::new();
    if has(Bug::FirstOfTwo) {
        return Ok(told);
    }
    let mut each: Vec<Part> = Vec::new();
    for p in found.drain(..) {
        let Some(n) = each.iter().position(|o| o.label.device == p.label.device) else {
            each.push(p);
            continue;
        };
        let gone = match is_newer(&each[n], &p, limit).await {
            Some(true) => std::mem::replace(&mut each[n], p),
            Some(false) => p,
            None => {
                return pool_error(format!(
                    "`{}` and `{}` are the same device ({:016x}), and cannot be read so far that the newer one is known: \
                     take the older one away",
                    each[n].disk.name(),
                    p.disk.name(),
                    p.label.device
                ));
            }
        };
        let (name, id) = (each[n].disk.name(), gone.label.device);
        let why = format!("it is left out: `{name}` is the same device ({id:016x}), and no older");
        told.push((gone.disk.name().to_string(), why));
    }
    *found = each;
    Ok(told)
}

/// Finds the pool that disks belong to, its newest superblock and its devices.
pub(super) async fn find(
    disks: Vec<Rc<dyn Disk>>,
    options: &Options,
    owned: &Ownership,
) -> StoreResult<Found> {
    let limit = options.deadline;
    let mut found: Vec<Part> = Vec::new();
    let (mut unlabelled, mut unread) = (None, false);
    for disk in disks {
        let label = match label_within(&disk, limit).await {
            Ok(l) => l,
            Err(no) => {
                unread |= no.in_doubt;
                unlabelled = Some(no.why);
                continue;
            }
        };
        // One that does not answer any more is missing. It is not one that knows less than the others.
        match superblocks(&disk, &label, limit).await {
            Ok(ring) => found.push(Part { disk, label, ring }),
            Err(e) => (unlabelled, unread) = (Some(e.into()), true),
        }
    }
    let Some(any) = found.first().map(|p| p.label) else {
        return Err(unlabelled.unwrap_or(StoreError::Pool("no devices were given".into())));
    };
    if let Some(p) = found.iter().find(|p| p.label.pool != any.pool) {
        let (name, pool) = (p.disk.name(), p.label.pool);
        return pool_error(format!("`{name}` belongs to another pool, {pool:032x}"));
    }
    let left_out = one_each(&mut found, limit).await?;
    let owner = options.owner.as_ref();
    let (found, others): (Vec<Part>, Vec<Part>) =
        found.into_iter().partition(|p| is_believed(owner, p.label.device, p.ring.newest()));
    // Who owned it last any device may tell.
    let told = |p: &Part| p.ring.newest().map(|s| s.owner_epoch);
    let others_told = others.iter().filter(|_| !has(Bug::OthersUnasked)).filter_map(told);
    found.iter().filter_map(told).chain(others_told).for_each(|epoch| owned.see(epoch));
    let also = |e| match e {
        StoreError::Pool(mut text) => {
            left_out.iter().for_each(|(name, why)| text.push_str(&format!("; `{name}`: {why}")));
            StoreError::Pool(text)
        }
        e => e,
    };
    let made = of(&found, &others, any, options, unread).await;
    let (best, devices, lineage, table) = made.map_err(also)?;
    Ok(Found { best, devices, lineage, table, left_out })
}

type Table = Option<(Vec<SlabRecord>, Vec<RemapRecord>)>;

/// What disks that are one device each make.
async fn of(
    found: &[Part],
    others: &[Part],
    any: Label,
    options: &Options,
    unread: bool,
) -> StoreResult<(Superblock, Vec<Rc<Device>>, (u64, u64), Table)> {
    let best = newest(found)?;
    let alike =
        |l: &Label| l.layout.slab_shift == best.slab_shift && l.layout.log_pages == best.log_pages;
    if let Some(p) = found.iter().find(|p| !alike(&p.label)) {
        return pool_error(format!("`{}` is laid out in another way than its pool", p.disk.name()));
    }
    if let Some(p) = others.iter().find(|p| is_ahead(&p.ring, &best)).filter(|_| !options.force) {
        return pool_error(format!(
            "`{}` lacks nothing that the others have, which are held to have everything, and has more: they were put back to \
             an earlier state. Put them back to their last state, or open by force to go on with what they have",
            p.disk.name()
        ));
    }
    let devices = members(&best, found, others, any);
    let is_found = |d: &Device| found.iter().any(|p| p.label.device == d.id);
    let here = |d: &Rc<Device>| d.disk.clone().filter(|_| is_found(d)).map(|disk| (disk, d.layout));
    let disks: Vec<_> = devices.iter().filter_map(here).collect();
    let bytes = space_table(&disks, &best, options.deadline).await;
    let table = bytes.as_deref().map(parse_space);
    let lineage = {
        let slabs = table.iter().flatten().map(|(slabs, _)| &slabs[..]).next();
        let sight = Sight::new(&best, found, &devices, slabs, options.deadline).await;
        let lineage = sight.suffices(options, unread)?;
        sight.note(options.force);
        sight.note_others(others);
        if options.owner.is_some() {
            // Who has what counts is known: nobody is asked about what others did.
            devices.iter().for_each(|d| d.held.set(false));
        }
        lineage
    };
    if !devices.iter().any(|d| d.disk.is_some() && d.state.get() == MemberState::InSync) {
        return pool_error("no device has what the newest superblock tells of");
    }
    // What was being filled is begun anew; nothing of it was relied on.
    for d in devices.iter().filter(|d| d.state.get() == MemberState::Syncing) {
        d.state.set(MemberState::Out);
    }
    match table {
        Some(table) => Ok((best, devices, lineage, table)),
        None => pool_error("no device has a whole table of slabs"),
    }
}

/// The newest superblock of all. The others do not contradict it.
fn newest(found: &[Part]) -> StoreResult<Superblock> {
    let all = || found.iter().flat_map(|p| p.ring.all.iter().map(move |s| (p, s)));
    // The last one of a life may be on a device out of sync only. When that is away the next life begins with another one of
    // that number.
    let Some(best) = all().map(|(_, s)| s).max_by_key(|s| s.age()).cloned() else {
        return pool_error("no device has a readable superblock");
    };
    // The one before it, where that is still there, must be the one that it names.
    let in_sync =
        |id: u64| best.members.iter().any(|m| m.device == id && m.state == MemberState::InSync);
    let mut before = all().filter(|(p, s)| {
        s.seq.wrapping_add(1) == best.seq && s.lineage == best.lineage && in_sync(p.label.device)
    });
    if before.clone().count() > 0 && before.all(|(_, s)| s.chain() != best.previous) {
        return pool_error("the newest superblock does not follow the one before it");
    }
    for p in found {
        if let Some(s) = p.ring.newest()
            && s.lineage != best.lineage
            && s.lineage != best.parent_lineage
            && in_sync(p.label.device)
        {
            return pool_error(format!(
                "`{}` went its own way, or is an old copy: the pool was opened by force without it, and with it or \
                 once more since",
                p.disk.name()
            ));
        }
    }
    Ok(best)
}

/// Whether a device of a node that is not held to have everything goes on where the others end: it has what was begun when all of
/// them had more than they have now.
fn is_ahead(ring: &Superblocks, best: &Superblock) -> bool {
    let follows = |s: &Superblock| {
        s.lineage == best.lineage
            && s.age() > best.age()
            && s.seq > best.seq.saturating_add(1)
            && !has(Bug::OthersUnasked)
    };
    ring.all.iter().any(follows)
}

/// Whether nothing of a device that is out of sync may be believed, and whether it has a history of its own,
/// which bringing it back would end. It missed what was written in and after epoch `since`.
pub(crate) fn history(newest: Option<&Superblock>, best: &Superblock, since: u32) -> (bool, bool) {
    let Some(s) = newest else { return (true, false) };
    // A lineage is changed by whoever goes on without a device that is in sync; so one never forks.
    // In the last epoch nobody can tell who was ahead.
    let behind = s.epoch <= since && s.epoch < LAST_EPOCH;
    let ours = s.lineage == best.lineage || (s.lineage == best.parent_lineage && behind);
    (!ours, !ours)
}
