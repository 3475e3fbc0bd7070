//! Finding a pool: its newest superblock, its devices, and what each of them has.

use super::device::Device;
use super::labels::{Superblocks, label_within, superblocks};
use super::open::{Options, pool_error};
use super::{StoreError, StoreResult};
use crate::format::LAST_EPOCH;
use crate::format::label::{Label, Layout};
use crate::format::superblock::{MemberState, Superblock};
use crate::planted::{Bug, has};
use std::rc::Rc;
use weir_disk::Disk;

/// What keeps a device from being one that has what the others have.
const UNREAD: &str = "has superblocks that cannot be read";

/// The same, where its superblocks are older than what the others go by.
const OLDER: &str = "is an old copy of itself, or has lost what was written to it";

/// The devices of a pool as a superblock has them, with the disks that were found.
fn members(best: &Superblock, found: &[(Rc<dyn Disk>, Label)], any: Label) -> Vec<Rc<Device>> {
    let all = best.members.iter().enumerate();
    all.map(|(n, m)| {
        let here = found.iter().find(|(_, l)| l.device == m.device);
        // A missing one is laid out as the others are, in its own size.
        let y = any.layout;
        let like =
            |blocks| Layout::plan(blocks, y.slab_shift, y.log_pages, y.table_pages, y.spares);
        let layout = here.map(|(_, l)| l.layout).or(like(m.blocks)).unwrap_or(y);
        Device::new(n as u16, m, layout, here.map(|(d, _)| d.clone()))
    })
    .collect()
}

/// Finds the pool that disks belong to, its newest superblock and its devices.
pub(super) async fn find(
    disks: Vec<Rc<dyn Disk>>,
    options: &Options,
) -> StoreResult<(Superblock, Vec<Rc<Device>>, (u64, u64))> {
    let limit = options.deadline;
    let mut found: Vec<(Rc<dyn Disk>, Label)> = Vec::new();
    let (mut unlabelled, mut unread) = (None, false);
    let mut rings: Vec<Superblocks> = Vec::new();
    for d in disks {
        let l = match label_within(&d, limit).await {
            Ok(l) => l,
            Err(no) => {
                unread |= no.in_doubt;
                unlabelled = Some(no.why);
                continue;
            }
        };
        // One that does not answer any more is missing. It is not one that knows less than the others.
        match superblocks(&d, &l, limit).await {
            Ok(ring) => {
                rings.push(ring);
                found.push((d, l));
            }
            Err(e) => (unlabelled, unread) = (Some(e.into()), true),
        }
    }
    let Some(any) = found.first().map(|(_, l)| *l) else {
        return Err(unlabelled.unwrap_or(StoreError::Pool("no devices were given".into())));
    };
    if let Some((d, l)) = found.iter().find(|(_, l)| l.pool != any.pool) {
        return pool_error(format!("`{}` belongs to another pool, {:032x}", d.name(), l.pool));
    }
    let each = rings.iter().enumerate();
    let all: Vec<(usize, &Superblock)> =
        each.flat_map(|(n, r)| r.all.iter().map(move |s| (n, s))).collect();
    // The last one of a life may be on a device out of sync only. When that is away the next life begins with another one of
    // that number.
    let newer = |s: &&Superblock| (s.seq, s.incarnation);
    let Some(best) = all.iter().map(|(_, s)| *s).max_by_key(newer).cloned() else {
        return pool_error("no device has a readable superblock");
    };
    // The one before it, where that is still there, must be the one that it names.
    let in_sync =
        |id: u64| best.members.iter().any(|m| m.device == id && m.state == MemberState::InSync);
    let mut before = all.iter().filter(|(n, s)| {
        s.seq.wrapping_add(1) == best.seq
            && s.lineage == best.lineage
            && in_sync(found[*n].1.device)
    });
    if before.clone().count() > 0 && before.all(|(_, s)| s.chain() != best.previous) {
        return pool_error("the newest superblock does not follow the one before it");
    }
    for (n, (d, l)) in found.iter().enumerate() {
        if let Some(s) = rings[n].newest()
            && s.lineage != best.lineage
            && s.lineage != best.parent_lineage
            && in_sync(l.device)
        {
            return pool_error(format!(
                "`{}` went its own way: the pool was opened by force without it and with it",
                d.name()
            ));
        }
    }
    let alike =
        |l: &Label| l.layout.slab_shift == best.slab_shift && l.layout.log_pages == best.log_pages;
    if let Some((d, _)) = found.iter().find(|(_, l)| !alike(l)) {
        return pool_error(format!("`{}` is laid out in another way than its pool", d.name()));
    }
    let devices = members(&best, &found, any);
    // With the newest superblock.
    let joined = |id: u64| {
        let mut before = all
            .iter()
            .map(|(_, s)| *s)
            .filter(|s| s.seq.wrapping_add(1) == best.seq && s.lineage == best.lineage);
        before.clone().count() > 0 && before.all(|s| s.members.iter().all(|m| m.device != id))
    };
    let ring =
        |d: &Device| found.iter().position(|(_, l)| l.device == d.id).and_then(|n| rings.get(n));
    // A superblock is begun when the one before it is on every device in sync. Whatever is further behind is not what
    // it was: an old copy of the device, or a device that forgets. One that the superblock before did not know has
    // joined with the newest one, which need not have come to it; it may have the log already.
    let behind = |d: &Device, ring: &Superblocks| match ring.newest() {
        Some(s) => s.seq.saturating_add(1) < best.seq,
        None => has(Bug::NewcomerIsBehind) || !joined(d.id),
    };
    let may_hide = |r: &Superblocks, some: &[u64]| some.iter().any(|n| r.may_hide(*n));
    let mut lineage = (best.lineage, best.parent_lineage);
    let is_last = |last| last == best.chain() || has(Bug::LastNotCompared);
    // What is there and cannot be read may be what is missing.
    let may_miss = !unread || options.without_unread || has(Bug::UnreadIsMissing);
    let nothing_newer = may_miss && options.last.is_some_and(is_last);
    let in_sync = || devices.iter().filter(|d| d.state.get() == MemberState::InSync);
    // So many fail together only where the pool is suspended: the others would tell of anything newer.
    let are_few = in_sync().filter(|d| ring(d).is_some_and(|r| !behind(d, r))).count()
        < usize::from(best.copies);
    for d in in_sync() {
        let is_older = ring(d).is_some_and(|r| behind(d, r));
        let why = match ring(d) {
            None => "is missing",
            // A newer one may be there and say that the others are out. What seems to be behind may have the newest.
            Some(r) if may_hide(r, &[best.seq.wrapping_add(1)]) => UNREAD,
            Some(r) if is_older && may_hide(r, &[best.seq, best.seq.wrapping_sub(1)]) => UNREAD,
            // In its newest state it may say that the others are out.
            Some(_) if is_older && are_few && !has(Bug::OldCopyPasses) => OLDER,
            Some(_) => continue,
        };
        if !(options.force || nothing_newer && why != UNREAD) {
            return pool_error(format!(
                "device {} ({:016x}) {why}: in its newest state it may have what the others have not. \
                 Bring that, or open by force to go on without it",
                d.number, d.id
            ));
        }
        match ring(d) {
            // It has all that is known, and goes on with that.
            Some(r) if !is_older => {
                d.hidden.replace(r.hidden().collect());
                continue;
            }
            // It is found to be behind below.
            Some(_) => {}
            None => {
                d.state.set(MemberState::Out);
                d.since.set(best.epoch);
            }
        }
        lineage = (options.lineage, best.lineage);
    }
    for d in devices.iter().filter(|d| d.disk.is_some()) {
        let Some(ring) = ring(d) else { continue };
        let (newest, behind) = (ring.newest(), behind(d, ring));
        let mut since = d.since.get();
        if d.state.get() == MemberState::InSync && behind {
            since = newest.map_or(0, |s| s.epoch);
            d.state.set(MemberState::Out);
            // What slabs and blocks were moved to since is missing there, too, however old it is.
            d.since.set(0);
        }
        let (foreign, held) = history(newest, &best, since);
        d.foreign.set(foreign && (behind || newest.is_some()));
        d.held.set(held);
    }
    if !devices.iter().any(|d| d.disk.is_some() && d.state.get() == MemberState::InSync) {
        return pool_error("no device has what the newest superblock tells of");
    }
    // What was being filled is begun anew; nothing of it was relied on.
    for d in devices.iter().filter(|d| d.state.get() == MemberState::Syncing) {
        d.state.set(MemberState::Out);
    }
    Ok((best, devices, lineage))
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
