//! Devices join and leave: adding, spares, replacing, draining, removing.

use super::copies::SOON;
use super::device::Device;
use super::find::history;
use super::labels::{label_within, superblocks};
use super::rebuild::no_room;
use super::upkeep::{BATCH, Work};
use super::{Inner, Pool, StoreError, StoreResult};
use crate::format::BLOCK;
use crate::format::label::{LABELS, Layout, SUPER_SLOTS};
use crate::format::superblock::{MAX_MEMBERS, Member, MemberState, Superblock};
use crate::planted::{Bug, has};
use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use weir_base::{IoError, IoResult};
use weir_codec::crc64;
use weir_disk::Disk;
use weir_mem::Slice;
use weir_reactor::{now, patience, sleep};

/// Blocks that are wiped with one write.
const PIECE: u64 = 256;

fn refused<T>(text: String) -> StoreResult<T> {
    Err(StoreError::Request(text))
}

/// As things stand.
fn not_now<T>(text: String) -> StoreResult<T> {
    Err(StoreError::State(text))
}

fn coming(number: u16) -> String {
    format!("device {number} is being brought back: it is not removed; cancel that first")
}

fn name_in_service(d: &Device) -> StoreError {
    let name = d.disk.as_ref().map_or("", |disk| disk.name());
    StoreError::Request(format!(
        "device {} is in service and goes by the name `{name}`, by which one device is found",
        d.number
    ))
}

impl Inner {
    async fn wipe(&self, d: &Device, first: u64, blocks: u64) -> IoResult {
        let zeros = Slice::heap((PIECE.min(blocks) as usize) * BLOCK);
        zeros.fill(0);
        let mut at = first;
        while at < first + blocks {
            let n = PIECE.min(first + blocks - at);
            let part = zeros.sub(0, n as usize * BLOCK);
            d.write(at, &part, self.options.deadline).await?;
            at += n;
        }
        Ok(())
    }

    /// Nothing that an earlier life of a device left is a superblock or a page of the log.
    pub(crate) async fn wipe_rings(&self, d: &Device) -> IoResult {
        for area in 0..2 {
            self.wipe(d, d.layout.superblock(area, 0), SUPER_SLOTS).await?;
        }
        // Here it may be stopped. Superblocks of one area without those of the other would say that there was nothing newer, also
        // after a power cut.
        if d.wiping.get() && !has(Bug::WipedPerhaps) {
            d.flush(self.options.deadline).await?;
        }
        for at in (0..d.layout.log_pages).step_by(PIECE as usize) {
            if d.wiping.get() && !self.upkeep_is_wanted() && !has(Bug::StillAsked) {
                return Err(IoError::Aborted);
            }
            let blocks = PIECE.min(d.layout.log_pages - at);
            self.wipe(d, d.layout.log(0) + at, blocks).await?;
        }
        d.flush(self.options.deadline).await
    }

    /// Nothing on a device says any more that it is one of a pool. Ends when it does not answer, or takes too long.
    async fn wipe_names(&self, d: &Device) -> IoResult {
        let labels = (0..LABELS).map(|copy| (d.layout.label(u64::from(copy)), 1));
        let rings = (0..2).map(|area| (d.layout.superblock(area, 0), SUPER_SLOTS));
        let until = now().saturating_add(self.options.deadline);
        for (at, blocks) in labels.chain(rings) {
            let mut wiped = self.wipe(d, at, blocks).await;
            if wiped.is_err_and(|e| !matches!(e, IoError::Medium | IoError::Offline)) {
                sleep(SOON[0]).await;
                wiped = self.wipe(d, at, blocks).await;
            }
            match wiped {
                Err(IoError::Offline) => return Err(IoError::Offline),
                Err(e) if now() > until => return Err(e),
                _ => {}
            }
        }
        d.flush(self.options.deadline).await
    }

    async fn write_labels(&self, d: &Device) -> IoResult {
        for copy in 0..LABELS {
            let label = d.label(self.pool, copy);
            let at = d.layout.label(u64::from(copy));
            d.write(at, &Slice::copy_of(&label.encode()[..]), self.options.deadline).await?;
        }
        d.flush(self.options.deadline).await
    }

    /// A device that is out of service answers, is the one that it was, and nothing old is on its way to it.
    ///
    /// It may be an older image of itself: then it misses more than what was written since it failed, also places that slabs
    /// and blocks were moved to. All of it is brought then, and that is recorded before anything is.
    pub(crate) async fn still_there(&self, d: &Rc<Device>) -> StoreResult {
        let Some(disk) = d.disk.clone() else { return Err(IoError::Offline.into()) };
        if !d.is_quiet(self.options.deadline).await && !has(Bug::AttachWithLateWrites) {
            return Err(StoreError::Pool(format!(
                "device {} still has writes under way that were given up; it cannot be brought back \
                 before they have ended",
                d.number
            )));
        }
        let limit = self.options.deadline;
        let label = label_within(&disk, limit).await?;
        if label.device != d.id || label.pool != self.pool {
            return Err(StoreError::Pool(format!(
                "`{}` is not device {} ({:016x}) any more: its label names device {:016x} of pool {:032x}",
                disk.name(),
                d.number,
                d.id,
                label.device,
                label.pool
            )));
        }
        let ring = superblocks(&disk, &label, limit).await?;
        let newest = ring.newest();
        let (foreign, held) = history(newest, &self.durable.borrow(), d.since.get());
        // Where two nodes share the pool it is known whose history counts: nobody is asked.
        if !d.asked.get() && self.options.owner.is_none() {
            // It went its own way, as it seems now, or may have. An older image was looked at before it was known as one.
            let held = held && d.since.get() > 0;
            d.held.set(d.held.get() || held);
            let why = match (held, ring.in_doubt()) {
                (true, _) => "has a history of its own",
                (_, true) => {
                    "has superblocks that cannot be read, and may have a history of its own"
                }
                _ => "",
            };
            if !why.is_empty() {
                return Err(StoreError::Pool(format!(
                    "device {} {why}: it is brought back on demand only, and loses that",
                    d.number
                )));
            }
        }
        d.foreign.set(d.foreign.get() || foreign || ring.in_doubt());
        let is_older = |s: &Superblock| {
            let me = s.members.iter().find(|m| m.device == d.id);
            s.epoch < d.since.get() || me.is_none_or(|m| m.spares_used < d.spares_used.get())
        };
        if (d.foreign.get() || newest.is_none_or(is_older)) && !has(Bug::OldImageTrusted) {
            d.since.set(0);
        }
        // A wipe may have been cut off, and what it has left looks as if it were the pool's own. Nothing is believed of what misses
        // everything.
        let misses_all = d.since.get() == 0 && !has(Bug::CutOffBelieved);
        d.foreign.set(d.foreign.get() || misses_all);
        d.failed.set(None);
        d.flushes.forget();
        Ok(())
    }

    /// A disk that is to be a new device, with its label on it.
    async fn prepare(&self, disk: Rc<dyn Disk>, state: MemberState) -> StoreResult<Rc<Device>> {
        if self.options.owner.is_some() {
            // Places, spares and the log would have to keep to one of each node.
            return not_now(
                "a pool that two nodes share has one device of each, and takes no other".into(),
            );
        }
        let label = match label_within(&disk, self.options.deadline).await {
            // It may belong to somebody.
            Err(no) if no.in_doubt => return Err(no.why),
            found => found.ok(),
        };
        if let Some(l) = label {
            let member = self.devices.borrow().iter().find(|d| d.id == l.device).cloned();
            let here = member.filter(|d| d.state.get() != MemberState::Gone);
            if let Some(d) = here.filter(|_| l.pool == self.pool) {
                return refused(format!(
                    "`{}` is device {} of this pool already; if it was away, bring it back instead",
                    disk.name(),
                    d.number
                ));
            }
            if l.pool != self.pool {
                return refused(format!(
                    "`{}` belongs to pool {:032x}: remove it from there first, or wipe its first and last \
                     264 KiB",
                    disk.name(),
                    l.pool
                ));
            }
        }
        if !self.is_disk_quiet(&disk).await {
            return Err(StoreError::Pool(format!(
                "`{}` still has writes under way that were given up; it cannot be taken before they \
                 have ended",
                disk.name()
            )));
        }
        let devices = self.devices.borrow().clone();
        let gone = devices.iter().position(|d| d.state.get() == MemberState::Gone);
        let number = gone.unwrap_or(devices.len());
        if number >= MAX_MEMBERS {
            return refused(format!(
                "the pool has {MAX_MEMBERS} devices, more are not possible: remove one first"
            ));
        }
        let Some(like) = devices.first().map(|d| d.layout) else {
            return Err(IoError::Internal.into());
        };
        let named = devices.iter().find(|d| d.is_named(disk.name()) && !d.is_away());
        if let Some(d) = named.filter(|_| !has(Bug::NameOfTwo)) {
            return Err(name_in_service(d));
        }
        let blocks = disk.len() / BLOCK as u64;
        let layout =
            Layout::plan(blocks, like.slab_shift, like.log_pages, like.table_pages, like.spares);
        let Some(layout) = layout else {
            return refused(format!(
                "`{}` has {} bytes; a device of this pool needs at least {}, for its log and one slab",
                disk.name(),
                disk.len(),
                like.least() * BLOCK as u64
            ));
        };
        let (seq, epoch) = (self.durable.borrow().seq, self.epoch.get());
        // Two that are prepared and do not join must not be taken for each other later either.
        let prepared = self.upkeep.prepared.replace(self.upkeep.prepared.get() + 1);
        let mut name = [0; 38];
        name[..16].copy_from_slice(&self.pool.to_le_bytes());
        name[16..24].copy_from_slice(&seq.to_le_bytes());
        name[24..28].copy_from_slice(&epoch.to_le_bytes());
        name[28..32].copy_from_slice(&self.incarnation.get().to_le_bytes());
        name[32..34].copy_from_slice(&(number as u16).to_le_bytes());
        name[34..].copy_from_slice(&prepared.to_le_bytes());
        let mut id = crc64(&name);
        while devices.iter().any(|d| d.id == id) {
            id = id.wrapping_add(1);
        }
        let member = Member {
            device: id,
            state,
            draining: false,
            leaving: false,
            written_off: false,
            since: 0,
            blocks,
            spares_used: 0,
            domain: 0,
        };
        let d = Device::new(number as u16, &member, layout, Some(disk));
        self.wipe_rings(&d).await?;
        // Before a superblock names it: what is named and not found keeps a pool from being opened.
        self.write_labels(&d).await?;
        Ok(d)
    }

    /// A device, unless another disk has taken its place.
    pub(super) fn still(&self, d: &Rc<Device>) -> Option<Rc<Device>> {
        self.device(d.number).filter(|now| Rc::ptr_eq(now, d) || has(Bug::DeviceByNumber))
    }

    /// Makes a prepared device a member: in a place that nobody has, or its own.
    fn admit_device(&self, d: &Rc<Device>) {
        let n = usize::from(d.number);
        let mut devices = self.devices.borrow_mut();
        if let Some(place) = devices.get_mut(n) {
            let own = place.id == d.id || place.state.get() == MemberState::Gone;
            assert!(own || has(Bug::ChangeGivenUp), "place {n} is another device's");
            *place = d.clone();
        } else {
            devices.push(d.clone());
        }
        drop(devices);
        self.arrange();
    }

    async fn join(&self, d: Rc<Device>, and: impl FnOnce(&Inner) + 'static) -> StoreResult<u16> {
        let n = d.number;
        let refusal = Rc::new(OnceCell::new());
        let (new, refused) = (d.clone(), refusal.clone());
        self.act(Box::new(move |i| {
            // One of that name may have been brought back meanwhile.
            if let Some(other) = i.in_service_as(&new) {
                let _ = refused.set(other);
                return;
            }
            i.take_names_of(&new);
            i.admit_device(&new);
            and(i);
        }))
        .await?;
        if let Some(other) = refusal.get() {
            let _ = self.wipe(&d, d.layout.label(0), 2).await;
            let _ = self.wipe(&d, d.layout.label(2), 2).await;
            return Err(name_in_service(other));
        }
        self.upkeep.retry();
        match d.usable() {
            true => Ok(n),
            false => Err(StoreError::Pool(format!(
                "device {n} failed as soon as it was written to; replace it by another"
            ))),
        }
    }

    /// Another device in service than `id` that goes by this name: the next start would find one of them.
    fn in_service_by(&self, name: &str, id: u64) -> Option<Rc<Device>> {
        let devices = self.devices.borrow();
        let other = |d: &&Rc<Device>| d.id != id && d.is_named(name) && !d.is_away();
        devices.iter().find(other).filter(|_| !has(Bug::NameOfTwo)).cloned()
    }

    /// The same, by the name of a new device.
    fn in_service_as(&self, new: &Device) -> Option<Rc<Device>> {
        new.disk.as_ref().and_then(|disk| self.in_service_by(disk.name(), new.id))
    }

    /// What is out of service and goes by the name of a new device is missing from now on: it may come back by another name.
    fn take_names_of(&self, new: &Device) {
        let mut devices = self.devices.borrow_mut();
        let other = |d: &&mut Rc<Device>| d.id != new.id && d.has_name_of(new) && d.is_away();
        for d in devices.iter_mut().filter(other).filter(|_| !has(Bug::NameOfTwo)) {
            *d = d.without_disk();
        }
    }

    fn member(&self, number: u16) -> StoreResult<Rc<Device>> {
        let d = self.device(number).filter(|d| d.state.get() != MemberState::Gone);
        d.ok_or_else(|| StoreError::Request(format!("this pool has no device {number}")))
    }

    /// Whether everything on a device could go elsewhere, with `more` to help.
    fn can_drain(&self, number: u16, more: Option<&Device>) -> StoreResult {
        let mut view = self.view_to_come();
        if let Some(d) = more {
            view.sites.push(super::plan::Site {
                number: d.number,
                fit: true,
                current: true,
                draining: false,
                vacant: (0..d.layout.extents).collect(),
                poor: Vec::new(),
            });
        }
        for s in view.sites.iter_mut().filter(|s| s.number == number) {
            (s.draining, s.fit) = (true, false);
        }
        view.can_clear(BATCH).map_err(|(n, unreadable)| no_room(number, n, unreadable))
    }

    /// A device that holds nothing leaves for good.
    pub(crate) async fn dismiss(&self, number: u16) -> StoreResult {
        let d = self.member(number)?;
        let (go, comes) = (d.clone(), Rc::new(Cell::new(false)));
        let told = comes.clone();
        self.act(Box::new(move |i| {
            // Or it would be wiped when it is somebody else's.
            if go.wiping.get() && !has(Bug::RemovedAmidWipe) {
                return told.set(true);
            }
            if i.space.borrow().occupied().all(|p| p.device != go.number) {
                go.state.set(MemberState::Gone);
                go.draining.set(false);
                go.leaving.set(false);
                go.written_off.set(false);
                i.arrange();
            }
        }))
        .await?;
        if comes.get() {
            return not_now(coming(number));
        }
        if d.state.get() != MemberState::Gone {
            return not_now(format!("device {number} got slabs meanwhile: drain it again"));
        }
        // Nothing refers to it any more; it must not be found as a part of this pool again.
        if d.usable() && d.is_quiet(self.options.deadline).await {
            // One that does not answer is not waited for again and again.
            let _ = self.wipe_names(&d).await;
        }
        // Others may have it when reads that began before have ended. What was given up keeps what it goes to by itself.
        let nobody = patience(self.options.deadline, self.pins.grace()).await.is_ok();
        if nobody && self.still(&d).is_some() && !has(Bug::GoneIsKept) {
            self.devices.borrow_mut()[usize::from(number)] = d.without_disk();
        }
        Ok(())
    }
}

impl Pool {
    /// Changes which devices there are, in turn with others that do, and to the end also when nobody waits for it any more: what is
    /// to be done at the next checkpoint would find other devices if the turn were given back before.
    async fn change<F>(&self, work: impl FnOnce(Rc<Inner>) -> F) -> StoreResult<F::Output>
    where
        F: Future + 'static,
    {
        let me = self.0.clone();
        let work = work(me.clone());
        let work = async move {
            me.check_running()?;
            Ok(work.await)
        };
        if has(Bug::ChangeGivenUp) {
            let _only = self.0.upkeep.changes.acquire(1).await;
            return work.await;
        }
        self.0.to_the_end_alone(work).await.unwrap_or(Err(IoError::Offline.into()))
    }

    /// Adds a disk: the pool grows by what it holds, at once where two devices have room, else as slabs are moved
    /// to it in the background. What was on it is lost. Returns its number.
    ///
    /// # Errors
    /// It is too small or belongs to a pool, or cannot be written.
    pub async fn add(&self, disk: Rc<dyn Disk>) -> StoreResult<u16> {
        self.change(|i| async move {
            let d = i.prepare(disk, MemberState::InSync).await?;
            i.join(d, |_| {}).await
        })
        .await?
    }

    /// Adds a disk that takes the place of a device that fails. What was on it is lost. Returns its number.
    ///
    /// # Errors
    /// It is too small or belongs to a pool, or cannot be written.
    pub async fn add_spare(&self, disk: Rc<dyn Disk>) -> StoreResult<u16> {
        self.change(|i| async move {
            let d = i.prepare(disk, MemberState::Spare).await?;
            i.join(d, |_| {}).await
        })
        .await?
    }

    /// Lets a disk take the place of a device, which leaves the pool when everything is off it. It goes on in the
    /// background. The old device is read as long as it answers. One that is away, and does not answer when it is asked, is taken not to
    /// come back: what only it has is lost then. What takes the place of a spare is one. Returns the number of the new one.
    ///
    /// # Errors
    /// The new disk is too small or belongs to a pool; slabs of the old one are nowhere else; or the pool
    /// cannot be written.
    pub async fn replace(&self, number: u16, disk: Rc<dyn Disk>) -> StoreResult<u16> {
        self.change(move |i| async move {
            // What takes the place of a spare waits as that did.
            let is_spare = i.member(number)?.state.get() == MemberState::Spare;
            let state = if is_spare { MemberState::Spare } else { MemberState::InSync };
            let d = i.prepare(disk, state).await?;
            if let Err(e) = i.can_drain(number, Some(&d)) {
                let _ = i.wipe(&d, d.layout.label(0), 2).await;
                let _ = i.wipe(&d, d.layout.label(2), 2).await;
                return Err(e);
            }
            i.join(d, move |i| {
                if let Some(old) = i.device(number) {
                    old.leave();
                }
            })
            .await
        })
        .await?
    }

    /// Moves everything off a device, in the background; [`settled`](Pool::settled) waits for it. Nothing new is
    /// put there meanwhile but what belongs to slabs that have not been moved yet.
    ///
    /// # Errors
    /// Other devices have no room, or not without both copies of a slab on the same one.
    pub async fn drain(&self, number: u16) -> StoreResult {
        self.change(move |i| async move {
            let d = i.member(number)?;
            if d.state.get() == MemberState::Spare {
                return not_now(format!("device {number} is a spare and holds nothing: remove it"));
            }
            let carries_log = i.durable.borrow().log_set.contains(&Some(number));
            let others = i.current_devices();
            let others = others.iter().filter(|o| o.number != number && !o.draining.get()).count();
            let copies = usize::from(i.durable.borrow().copies);
            if d.is_current() && carries_log && others < copies {
                return refused(format!(
                    "device {number} cannot be drained: {others} other devices are current, and it takes \
                     {copies} to keep what the pool has {copies} times; add a device first"
                ));
            }
            i.can_drain(number, None)?;
            i.act(Box::new(move |i| {
                if let Some(d) = i.device(number) {
                    d.draining.set(true);
                }
            }))
            .await?;
            i.upkeep.retry();
            Ok(())
        })
        .await?
    }

    /// Stops what is being done about a device: it is not drained or replaced any more (what has been moved stays
    /// where it is), or not brought back until [`resync`](Pool::resync) is called.
    ///
    /// # Errors
    /// There is no such device, nothing is being done about it but what makes the pool grow, or the pool cannot be written.
    pub async fn cancel(&self, number: u16) -> StoreResult {
        self.change(move |i| async move {
            let d = i.member(number)?;
            let work = i.upkeep.progress().filter(|p| p.device == number).map(|p| p.work);
            // It would be begun again at once.
            let grows = work == Some(Work::Balance) && !has(Bug::StoppedGoesOn);
            let mine = work.is_some() && !grows;
            let waiting = d.state.get() == MemberState::Out && !d.held.get();
            if !d.draining.get() && !mine && !waiting && grows {
                return not_now(format!(
                    "device {number} gets slabs of others, so that the pool can grow: that is not stopped. \
                     Drain the device if it is to have none"
                ));
            }
            if !d.draining.get() && !mine && !waiting {
                return not_now(format!("nothing is being done about device {number}"));
            }
            if mine {
                i.upkeep.cancel();
            }
            d.held.set(matches!(d.state.get(), MemberState::Out | MemberState::Syncing));
            if !has(Bug::StillAsked) {
                d.asked.set(false);
            }
            i.act(Box::new(move |i| {
                if let Some(d) = i.device(number) {
                    d.draining.set(false);
                    d.leaving.set(false);
                    i.taken_back(&d);
                }
            }))
            .await?;
            // What was given up so that it could be cleared is made again.
            i.upkeep.spread.set(true);
            // What could not be done about it has not failed any more.
            i.upkeep.forget(number);
            Ok(())
        })
        .await?
    }

    /// Removes a device that holds nothing: a spare, or one that was drained. Its label is wiped, if it answers. One that is
    /// drained and out of service is not waited for any more: it leaves in the background. What only it has, and cannot be read, is
    /// lost.
    ///
    /// # Errors
    /// It holds slabs and is not drained, or is in service, or the pool cannot be written.
    pub async fn remove(&self, number: u16) -> StoreResult {
        self.change(move |i| async move {
        let d = i.member(number)?;
        let held = i.space.borrow().held_by(number);
        if held > 0 && d.draining.get() && d.is_away() {
            let done = Rc::new(Cell::new(false));
            let told = done.clone();
            i.act(Box::new(move |i| {
                // It may have been brought back meanwhile.
                if let Some(d) = i.device(number).filter(|d| d.is_away()) {
                    d.leave();
                    d.unheard.set(false);
                    d.asked.set(false);
                    d.written_off.set(true);
                    told.set(true);
                }
            }))
            .await?;
            if !done.get() {
                return not_now(coming(number));
            }
            i.upkeep.retry();
            return Ok(());
        }
        if held > 0 {
            return not_now(format!(
                "device {number} holds {held} slabs: drain or replace it first, and wait until that is done"
            ));
        }
        let idle =
            d.draining.get() || matches!(d.state.get(), MemberState::Spare | MemberState::Out);
        if !idle {
            return not_now(format!(
                "device {number} is in use, new slabs may be put on it: drain it first"
            ));
        }
        i.dismiss(number).await?;
        // What failed about it is of no matter any more.
        i.upkeep.wake();
        Ok(())
        })
        .await?
    }

    /// Takes a disk back that is a device of this pool, and was missing or failed. It is brought up to date in
    /// the background, unless it went its own way: then [`resync`](Pool::resync) does that. Returns its number.
    ///
    /// # Errors
    /// It is no device of this pool; [`StoreError::State`]: it is in service.
    pub async fn attach(&self, disk: Rc<dyn Disk>) -> StoreResult<u16> {
        self.take_back(disk, true).await
    }

    /// The same where nobody has asked for it. What the operator has decided about the device stays: one that is to
    /// leave, or is not to be brought back, is not.
    ///
    /// # Errors
    /// As there; [`StoreError::State`]: the operator has decided otherwise.
    pub async fn attach_again(&self, disk: Rc<dyn Disk>) -> StoreResult<u16> {
        self.take_back(disk, has(Bug::ReturnsUnasked)).await
    }

    /// A device goes by this name that cannot be asked any more: nothing is sent to it from here on, as if it had failed.
    pub fn give_up(&self, name: &str) {
        let i = &self.0;
        let is_it = |d: &&Rc<Device>| d.disk.as_ref().is_some_and(|disk| disk.name() == name);
        let found = i.devices.borrow().iter().find(is_it).cloned();
        if let Some(d) = found.filter(|_| !i.options.read_only) {
            i.device_failed(&d, IoError::Offline);
        }
    }

    async fn take_back(&self, disk: Rc<dyn Disk>, asked: bool) -> StoreResult<u16> {
        self.change(move |i| async move {
        let limit = i.options.deadline;
        let label = match label_within(&disk, limit).await {
            Err(no) if !no.in_doubt => {
                return refused(format!("{}: it is no device of a pool; add it", no.why));
            }
            found => found?,
        };
        let old = i.devices.borrow().iter().find(|d| d.id == label.device).cloned();
        let old = old.filter(|d| label.pool == i.pool && d.state.get() != MemberState::Gone);
        let Some(old) = old else {
            return refused(format!("`{}` is no device of this pool: add it", disk.name()));
        };
        let away = |d: &Rc<Device>| d.is_away();
        let in_service = format!("device {} is in service", old.number);
        if !away(&old) {
            return not_now(in_service);
        }
        // One that is drained is read, and not filled: a spare that takes its place drains it, too.
        let decided = |d: &Device| d.held.get() || d.leaving.get() || d.written_off.get();
        if !asked && decided(&old) {
            return not_now(format!(
                "device {} is to leave, or is not to be brought back until it is asked for",
                old.number
            ));
        }
        let wiped = |d: &Device| d.wiping.get() && !has(Bug::RemovedAmidWipe);
        let comes = format!("device {} is being brought back already", old.number);
        if wiped(&old) {
            return not_now(comes);
        }
        let name = disk.name().to_owned();
        if let Some(other) = i.in_service_by(&name, old.id) {
            return Err(name_in_service(&other));
        }
        let quiet = old.is_quiet(limit).await && i.is_disk_quiet(&disk).await;
        if !quiet && !has(Bug::AttachWithLateWrites) {
            return Err(StoreError::Pool(format!(
                "device {} still has writes under way that were given up: try again when they have ended",
                old.number
            )));
        }
        // What cannot be read of it is read again before it is brought back.
        let ring = superblocks(&disk, &label, limit).await?;
        let owner = ring.newest().map_or(0, |s| s.owner_epoch);
        if let Err(why) = i.see_owner(owner) {
            i.fence_if_seen();
            return Err(StoreError::State(why));
        }
        let (foreign, held) = history(ring.newest(), &i.durable.borrow(), old.since.get());
        let n = old.number;
        let before = old.clone();
        i.act(Box::new(move |i| {
            // It may have been brought back meanwhile, and then this disk is not what it is.
            let stands = |d: &Rc<Device>| away(d) || has(Bug::DeviceByNumber);
            let stands = |d: &Rc<Device>| stands(d) && !wiped(d) && (asked || !decided(d));
            let Some(old) = i.still(&old).filter(stands) else { return };
            let d = Device::new(n, &old.member(), label.layout, Some(disk));
            d.written_off.set(false);
            d.remap.replace(old.remap.borrow().clone());
            // That another disk in its place went its own way says nothing of this one. After a wipe that was stopped `since` is 0,
            // and nothing is believed.
            d.foreign.set(foreign || has(Bug::ForeignByNumber) && old.foreign.get());
            d.held.set(held && i.options.owner.is_none());
            // Who asked for another disk did not ask for this one to lose what it has.
            d.asked.set(has(Bug::AskedByNumber) && old.asked.get());
            if i.in_service_as(&d).is_some() {
                return;
            }
            i.taken_back(&old);
            i.take_names_of(&d);
            i.admit_device(&d);
        }))
        .await?;
        if i.device(n).is_some_and(|d| Rc::ptr_eq(&d, &before)) {
            let other = i.in_service_by(&name, before.id);
            let why = if away(&before) { comes } else { in_service };
            return other.map_or_else(|| not_now(why), |o| Err(name_in_service(&o)));
        }
        i.upkeep.retry();
        Ok(n)
        })
        .await?
    }
}
