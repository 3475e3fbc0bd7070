//! Whether the devices that were found suffice: what is missing, or older than it should be, may have gone on without them.

use super::StoreResult;
use super::device::Device;
use super::find::{Part, history};
use super::labels::Superblocks;
use super::log_end::half;
use super::open::{Options, pool_error};
use super::owner::Owner;
use crate::format::slab::{SlabRecord, reserved};
use crate::format::superblock::{MemberState, Superblock};
use crate::planted::{Bug, has};
use std::rc::Rc;
use weir_base::Nanos;

/// What keeps a device from being one that has what the others have.
const UNREAD: &str = "has superblocks that cannot be read";

/// The same, where its superblocks are older than what the others go by.
const OLDER: &str = "is an old copy of itself, or has lost what was written to it";

/// It lacks the newest superblock. Whether it ever had that, nobody can tell.
const UNSURE: &str = "lacks the newest superblock, and the log of the others, which tells whether it had that, cannot be read";

/// Devices as the newest superblock has them, and what was found of each.
pub(super) struct Sight<'a> {
    best: &'a Superblock,
    found: &'a [Part],
    devices: &'a [Rc<Device>],
    /// `None`: no table was found.
    slabs: Option<&'a [SlabRecord]>,
    /// The newest superblock of which each half of the log says that it was on every device in sync, by number of the device.
    had: Vec<(u16, u64)>,
    /// Halves of the log that may say more, as they cannot be read.
    unread: Vec<u16>,
}

impl<'a> Sight<'a> {
    pub(super) async fn new(
        best: &'a Superblock,
        found: &'a [Part],
        devices: &'a [Rc<Device>],
        slabs: Option<&'a [SlabRecord]>,
        limit: Nanos,
    ) -> Sight<'a> {
        let (had, unread) = (Vec::new(), Vec::new());
        let mut sight = Sight { best, found, devices, slabs, had, unread };
        // Only then does it matter.
        let lacks = |d: &Rc<Device>| sight.ring(d).is_some_and(|r| sight.lacks_newest(r));
        if sight.in_sync().any(lacks) && !has(Bug::OneBehindPasses) {
            sight.ask_log(limit).await;
        }
        sight
    }

    fn lacks_newest(&self, ring: &Superblocks) -> bool {
        ring.newest().is_none_or(|s| s.rank() < self.best.rank())
    }

    fn in_sync(&self) -> impl Iterator<Item = &'a Rc<Device>> + use<'a> {
        self.devices.iter().filter(|d| d.state.get() == MemberState::InSync)
    }

    fn ring(&self, d: &Device) -> Option<&'a Superblocks> {
        self.found.iter().find(|p| p.label.device == d.id).map(|p| &p.ring)
    }

    /// Has the log say which superblock all in sync had when pages of it were written that count.
    async fn ask_log(&mut self, limit: Nanos) {
        for d in self.in_sync().filter(|d| self.best.log_set.contains(&Some(d.number))) {
            let Some(disk) = &d.disk else { continue };
            let half = half(disk, &d.layout, self.best, limit).await;
            let is_whole = half.as_ref().is_ok_and(|h| !h.unread) || has(Bug::UnreadSaysNothing);
            self.had.extend(half.ok().map(|h| (d.number, h.had.min(self.best.seq))));
            self.unread.extend((!is_whole).then_some(d.number));
        }
    }

    /// It has come into service with the newest superblock, by all that is known of the one before: it was not there, or a
    /// spare. What a spare had before it takes a place is wiped.
    fn joined(&self, id: u64) -> bool {
        let apart = |s: &Superblock| {
            let states = s.members.iter().filter(|m| m.device == id).map(|m| m.state);
            let had = |state| match state {
                MemberState::InSync | MemberState::Syncing | MemberState::Out => true,
                MemberState::Spare | MemberState::Gone => has(Bug::SpareIsBehind),
            };
            !states.into_iter().any(had)
        };
        let all = self.found.iter().flat_map(|p| &p.ring.all);
        let mut before = all
            .filter(|s| s.seq.wrapping_add(1) == self.best.seq && s.lineage == self.best.lineage);
        before.clone().count() > 0 && before.all(apart)
    }

    /// What is there of a device is not what it was: it lacks a superblock that it had. That is an old copy of the device, or one
    /// that forgets.
    fn is_older(&self, d: &Device, ring: &Superblocks) -> bool {
        let newest = ring.newest().map(|s| s.seq);
        // What has none may have joined with the newest.
        let last = newest.unwrap_or(self.best.seq.saturating_sub(1));
        let had = self.had.iter().map(|(_, had)| *had).max().unwrap_or(0);
        // Its own log may say so: then it is no older than that, and has lost no more than a superblock. Or that is damaged.
        let own = self.had.iter().any(|(n, had)| *n == d.number && *had > last);
        let lost = had > last && !own && !ring.is_unclear(had);
        // A superblock is begun when the one before it is on every device in sync. One that has joined with the newest one need
        // not have got that; it may have the log already.
        let lacks = match ring.newest() {
            Some(s) => s.rank() < self.best.rank() && s.seq.saturating_add(1) != self.best.seq,
            None => true,
        };
        let joined = newest.is_none() && self.joined(d.id) && !has(Bug::NewcomerIsBehind);
        lost || lacks && !joined
    }

    /// It lacks the newest superblock, and what the others cannot read of the log may say that it had it.
    fn is_unsure(&self, d: &Device, ring: &Superblocks) -> bool {
        let others = self.unread.iter().any(|n| *n != d.number);
        let joined = ring.newest().is_none() && self.joined(d.id);
        others && self.lacks_newest(ring) && !joined
    }

    /// Whether the pool may have gone on with nothing but devices that are missing, or older than they should be: each slab with
    /// anything on it has a copy there. Others in sync would tell of anything newer. What was being filled may have come into
    /// service with the very next superblock.
    fn may_be_elsewhere(&self) -> bool {
        let away = |n: u16| match self.devices.get(usize::from(n)) {
            Some(d) if d.state.get() == MemberState::InSync => {
                self.ring(d).is_none_or(|r| self.is_older(d, r))
            }
            Some(d) => d.state.get() == MemberState::Syncing,
            None => false,
        };
        if has(Bug::DevicesForCopies) {
            return self.in_sync().filter(|d| !away(d.number)).count()
                < usize::from(self.best.copies);
        }
        let Some(slabs) = self.slabs else { return true };
        let room = (1u64 << self.best.slab_shift) - reserved(self.best.slab_shift);
        // What is empty may have been given up since.
        let mut filled = slabs.iter().filter(|s| s.which.is_some() && u64::from(s.free) < room);
        filled.all(|s| s.copies.iter().flatten().any(|c| !c.filling && away(c.device)))
    }

    /// Nothing that is there and has what it should has a copy of some slab that is on this one.
    fn is_needed(&self, d: &Device) -> bool {
        let is_good = |n: u16| {
            let other = self.devices.get(usize::from(n));
            let other = other.filter(|o| o.state.get() == MemberState::InSync);
            other.is_some_and(|o| self.ring(o).is_some_and(|r| !self.is_older(o, r)))
        };
        self.slabs.into_iter().flatten().any(|s| {
            let mut on = s.copies.iter().flatten().filter(|c| !c.filling).map(|c| c.device);
            on.clone().any(|n| n == d.number) && !on.any(is_good)
        })
    }

    /// Sees to it that nothing newer can be anywhere, or that somebody has said so; gives the lineage that the pool goes on with.
    pub(super) fn suffices(&self, options: &Options, unread: bool) -> StoreResult<(u64, u64)> {
        let best = self.best;
        let may_hide = |r: &Superblocks, some: &[u64]| some.iter().any(|n| r.may_hide(*n));
        let mut lineage = (best.lineage, best.parent_lineage);
        let is_last = |last| last == best.chain() || has(Bug::LastNotCompared);
        // What is there and cannot be read may be what is missing.
        let may_miss = !unread || options.without_unread || has(Bug::UnreadIsMissing);
        let nothing_newer = may_miss && options.last.is_some_and(is_last);
        let elsewhere = self.may_be_elsewhere() && !has(Bug::OldCopyPasses);
        for d in self.in_sync() {
            let ring = self.ring(d);
            let is_older = ring.is_some_and(|r| self.is_older(d, r));
            let needed = is_older && self.is_needed(d);
            let why = match ring {
                None => "is missing",
                // A newer one may be there and say that the others are out. What seems to be behind may have the newest.
                Some(r) if may_hide(r, &[best.seq.wrapping_add(1)]) => UNREAD,
                Some(r) if is_older && may_hide(r, &[best.seq, best.seq.wrapping_sub(1)]) => UNREAD,
                // In its newest state it may say that the others are out.
                Some(_) if is_older && (elsewhere || needed) => OLDER,
                Some(r) if !is_older && self.is_unsure(d, r) => UNSURE,
                Some(_) => continue,
            };
            let elsewhere = || options.owner.as_ref().is_some_and(|o| self.another_has_all(o, d));
            let known = nothing_newer && ![UNREAD, UNSURE].contains(&why);
            if !(options.force || known || elsewhere()) {
                return pool_error(format!(
                    "device {} ({:016x}) {why}: in its newest state it may have what the others have not. \
                     Bring that, or open by force to go on without it",
                    d.number, d.id
                ));
            }
            match ring {
                // It goes on with what is known of it. If it is noted to be behind later, that is of no matter.
                Some(r) => {
                    d.hidden.replace(r.hidden().collect());
                    // No newer one is elsewhere: this is the real one.
                    if why == UNREAD && !is_older {
                        continue;
                    }
                }
                None => {
                    d.state.set(MemberState::Out);
                    d.since.set(best.epoch);
                }
            }
            lineage = (options.lineage, best.lineage);
        }
        Ok(lineage)
    }

    /// Of a pool that two nodes share: another node than that of this device has everything, as is kept, and all that it had is there.
    fn another_has_all(&self, owner: &Owner, d: &Device) -> bool {
        let is_whole = |o: &Rc<Device>| {
            self.ring(o).is_some_and(|r| {
                let hides = r.may_hide(self.best.seq.wrapping_add(1));
                // What of its log cannot be read it may not have, and then nobody would miss it.
                let is_read = !self.unread.contains(&o.number) || has(Bug::UnreadHasAll);
                !hides && is_read && !self.is_older(o, r) && !self.is_unsure(o, r)
            })
        };
        self.in_sync().any(|o| o.domain != d.domain && owner.able.has(o.domain) && is_whole(o))
    }

    /// The same of devices of nodes that are not held to have everything: what they lack is brought, and if they have gone their
    /// own way, all of it. Nobody is asked: it is known who has what counts.
    pub(super) fn note_others(&self, others: &[Part]) {
        for d in self.devices {
            let Some(p) = others.iter().find(|p| p.label.device == d.id) else { continue };
            let (foreign, _) = history(p.ring.newest(), self.best, d.since.get());
            d.foreign.set(foreign);
            d.held.set(false);
        }
    }

    /// Notes on each device that is there what may be believed of it. By force an older one stays that has what nothing else has:
    /// checksums tell what of that is out of date.
    pub(super) fn note(&self, force: bool) {
        let stays = |d: &Device| force && !has(Bug::OlderIsOut) && self.is_needed(d);
        let older: Vec<bool> = self
            .devices
            .iter()
            .map(|d| self.ring(d).is_some_and(|r| self.is_older(d, r)) && !stays(d))
            .collect();
        for (d, older) in self.devices.iter().zip(older) {
            let Some(ring) = self.ring(d) else { continue };
            let newest = ring.newest();
            let mut since = d.since.get();
            if d.state.get() == MemberState::InSync && older {
                since = newest.map_or(0, |s| s.epoch);
                d.state.set(MemberState::Out);
                // What slabs and blocks were moved to since is missing there, too, however old it is.
                d.since.set(0);
            }
            let (foreign, held) = history(newest, self.best, since);
            let is_new = newest.is_none() && d.state.get() == MemberState::InSync;
            d.foreign.set(foreign && !is_new);
            d.held.set(held);
        }
        // Before the newest superblock is on all of them.
        for d in self.in_sync() {
            let knows = |s: &Superblock| {
                s.members.iter().any(|m| m.device == d.id && m.state == MemberState::InSync)
            };
            let mut all = self.in_sync().filter_map(|o| self.ring(o)?.newest());
            d.untold.set(!all.all(knows));
        }
    }
}
