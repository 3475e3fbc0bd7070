//! The jobs of upkeep: a device is brought back, one is cleared, what is vacant is made use of.

use super::copies::LATER;
use super::device::Device;
use super::fill::{Filled, Into};
use super::labels::label_within;
use super::plan::{Plan, Plot, Site, View};
use super::space::{Slab, Space};
use super::together::together;
use super::upkeep::{BATCH, Work};
use super::{Inner, StoreError, StoreResult};
use crate::format::slab::{Placement, RECORD, REMAP};
use crate::format::superblock::MemberState;
use crate::format::{MAX_VBN, page};
use crate::planted::{Bug, has};
use std::collections::BTreeSet;
use std::rc::Rc;
use weir_base::IoError;
use weir_reactor::{now, patience, sleep};

/// Spares of a device for which the table of slabs keeps room when the pool grows; more are used while it has some left.
const SPARES: u64 = 32;

impl Inner {
    /// Brings a device up to date that missed something.
    pub(super) async fn bring_back(self: &Rc<Self>, d: &Rc<Device>) -> StoreResult {
        let n = d.number;
        self.still_there(d).await?;
        if d.foreign.get() {
            // First: a power cut may leave some of its superblocks, by which it would miss a part only.
            let mine = d.clone();
            if !has(Bug::WipedUntold) {
                let missed = move |i: &Inner| {
                    if let Some(d) = i.still(&mine) {
                        d.since.set(0);
                    }
                };
                self.act(Box::new(missed)).await?;
            }
            // Another disk has its place, it was removed and may be somebody else's, or somebody has stopped this.
            let is_gone = |d: Rc<Device>| d.state.get() == MemberState::Gone;
            let is_wanted = self.upkeep_is_wanted() || has(Bug::StillAsked);
            if self.still(d).is_none_or(is_gone) || !is_wanted {
                return Err(IoError::Aborted.into());
            }
            // What its log and superblocks say must never be believed again.
            d.wiping.set(true);
            let wiped = self.wipe_rings(d).await;
            d.wiping.set(false);
            wiped?;
        }
        let since = match d.foreign.get() {
            true => 0,
            false if has(Bug::ResyncFromNow) => self.epoch.get(),
            false => d.since.get(),
        };
        // Another disk may take its place meanwhile.
        let mine = d.clone();
        let begin = move |i: &Inner| {
            let is_out = |d: &Rc<Device>| d.usable() && d.state.get() == MemberState::Out;
            if let Some(d) = i.still(&mine).filter(|d| is_out(d) && !d.written_off.get()) {
                d.state.set(MemberState::Syncing);
            }
        };
        self.act(Box::new(begin)).await?;
        // Somebody may have removed it meanwhile, which stands.
        if self.still(d).is_none() || d.written_off.get() {
            return Err(IoError::Aborted.into());
        }
        self.upkeep.plan_for(self.fill_estimate(Into::Device(n, since)));
        if !d.is_written() {
            return Err(IoError::Offline.into());
        }
        self.fill(Into::Device(n, since)).await?;
        let mine = d.clone();
        let end = move |i: &Inner| {
            let d = i.still(&mine);
            if let Some(d) = d.filter(|d| d.usable() && d.state.get() == MemberState::Syncing) {
                d.state.set(MemberState::InSync);
                d.foreign.set(false);
                // Who stopped this came too late: it is brought back by itself the next time.
                d.held.set(false);
                i.arrange();
            }
        };
        self.act(Box::new(end)).await?;
        match d.is_current() {
            true => Ok(()),
            false => Err(IoError::Offline.into()),
        }
    }

    /// Moves everything off the devices that are drained.
    pub(super) async fn clear(self: &Rc<Self>, n: u16) -> StoreResult {
        let (mut looked, mut asked) = (false, false);
        // One that has failed, and is not brought back as it is to leave, may be readable for all that.
        if !has(Bug::FailedIsDead) {
            self.ask_absent().await;
        }
        // Slabs that lack something without it, and those that were moved to places that do not give everything back.
        let (mut held, mut deaf) = (BTreeSet::new(), BTreeSet::new());
        loop {
            self.upkeep_goes_on().await?;
            let mut view = self.view();
            view.plots.retain(|p| !held.contains(&p.slab));
            view.plots.iter_mut().for_each(|p| p.deaf = deaf.contains(&p.slab));
            let left: u64 = view
                .plots
                .iter()
                .filter(|p| p.copies.iter().flatten().any(|c| c.device == n))
                .map(|p| p.used)
                .sum();
            self.upkeep.plan_for(left);
            let plan = view.evacuate(BATCH);
            if !plan.is_empty() {
                let Filled { stay, deaf: no_echo, .. } = self.carry_out(plan).await?;
                held.extend(stay.into_iter().filter(|s| !no_echo.contains(s)));
                // They go elsewhere with the next plan.
                deaf.extend(no_echo);
                looked = false;
                continue;
            }
            if !held.is_empty() && !asked {
                asked = true;
                // It may have been away for a moment only. Then what it has is read. Or nobody waits for that any more.
                if self.ask_absent().await {
                    held.clear();
                    continue;
                }
            }
            // What others have moved or given up lately is vacant after one more.
            if (plan.stuck > 0 || !plan.deaf.is_empty()) && !looked {
                self.checkpoint_now().await?;
                looked = true;
                continue;
            }
            let all = self.view();
            let of_it = |p: &&Plot| p.copies.iter().flatten().any(|c| c.device == n);
            let count = |is: &dyn Fn(&usize) -> bool| {
                all.plots.iter().filter(of_it).filter(|p| is(&p.slab)).count()
            };
            let (held, deaf) = (count(&|s| held.contains(s)), count(&|s| plan.deaf.contains(s)));
            return match plan.stuck {
                0 => match (held, deaf) {
                    (0, 0) => Ok(()),
                    (0, _) => Err(poor_room(deaf)),
                    (_, 0) => {
                        Err(unread_elsewhere(held, self.device(n).is_some_and(|d| d.is_away())))
                    }
                    _ => Err(both(held, deaf)),
                },
                _ => Err(no_room(n, plan.stuck, plan.unreadable)),
            };
        }
    }

    /// Asks devices that failed, and are not brought back as they are drained, whether they can be read again. Until one has been
    /// asked, what only it may have stays where it is, whatever is being moved. True: one can be, or counts as lost from here on.
    async fn ask_absent(&self) -> bool {
        let is_away = |d: &Device| d.draining.get() && d.is_away() && !d.is_readable();
        let holds = |d: &Device| self.space.borrow().held_by(d.number) > 0;
        let absent = |d: &&Rc<Device>| is_away(d) && !d.written_off.get() && holds(d);
        let all: Vec<_> = self.devices.borrow().iter().filter(absent).cloned().collect();
        let ask = |d: &Rc<Device>| {
            let d = d.clone();
            async move { self.answers(&d).await }
        };
        // Side by side: a stop waits for them.
        let answers = together(all.iter().map(ask)).await;
        let mut any = false;
        for (d, answers) in all.into_iter().zip(answers) {
            any |= answers;
            if d.unheard.replace(false) && !answers {
                // A pool that cannot be written now waits for that device, and says so.
                any |= self.write_off(d).await.is_ok();
            }
        }
        any
    }

    /// A device that failed answers, and is the one that it was: what it has is read from here on, each block as far as its checksum
    /// proves it. Superblocks, histories and late writes matter only if it is brought back.
    async fn answers(&self, d: &Rc<Device>) -> bool {
        let limit = self.options.deadline;
        if has(Bug::IllIsSilent) {
            return matches!(patience(limit, self.still_there(d)).await, Ok(Ok(())));
        }
        let Some(disk) = d.disk.clone() else { return false };
        let label = patience(limit, label_within(&disk, limit)).await;
        let is_it = matches!(label, Ok(Ok(l)) if l.device == d.id && l.pool == self.pool);
        if is_it {
            d.failed.set(None);
            d.flushes.forget();
        }
        is_it
    }

    /// The same of a removed one, which gets no second chance: it may be away for a moment only.
    pub(super) async fn answers_soon(&self, d: &Rc<Device>) -> bool {
        let until = now().saturating_add(self.options.deadline);
        for pause in LATER.iter().map(Some).chain([None]) {
            if self.answers(d).await {
                return true;
            }
            match pause.filter(|_| now() < until && self.upkeep_is_wanted()) {
                Some(pause) => sleep(*pause).await,
                None => break,
            }
        }
        false
    }

    /// What only this device has is lost.
    async fn write_off(&self, d: Rc<Device>) -> StoreResult {
        self.act(Box::new(move |i| {
            if let Some(d) = i.still(&d).filter(|d| d.leaving.get() && d.is_absent()) {
                d.written_off.set(true);
            }
        }))
        .await
    }

    /// Gives up what a plan gives up, and moves what it moves. Gives the slabs that stay where they are, as not all that they have
    /// can be read, or be had from where they were to go.
    async fn carry_out(self: &Rc<Self>, plan: Plan) -> StoreResult<Filled> {
        let moves = plan.moves.clone();
        let begin = move |i: &Inner| {
            // Hosts have gone on writing since the plan was made.
            let keep = if has(Bug::GivenUpAsPlanned) { 0 } else { i.keep_free() };
            let mut space = i.space.borrow_mut();
            for s in plan.give_up {
                let spared = space.free() >= keep.saturating_add(space.room());
                if space.is_empty_slab(s) && (spared || keep == 0) {
                    space.give_up(s);
                }
            }
            for (s, index, to) in plan.moves {
                let good = i.device(to.device).is_some_and(|d| d.is_current());
                if good && space.slabs[s].exists() && space.is_vacant(&to) {
                    space.begin_move(s, index, to);
                }
            }
            drop(space);
            i.arrange();
        };
        self.act(Box::new(begin)).await?;
        if moves.is_empty() {
            // What was given up is vacant after one more.
            self.checkpoint_now().await?;
            return Ok(Filled::default());
        }
        let mut filled = Ok(Filled::default());
        let returns = self.upkeep.returns();
        if !has(Bug::SwitchedBeforeCopied) {
            filled = self.fill(Into::Moves).await;
        }
        let filled = match filled {
            Ok(filled) => filled,
            Err(e) => {
                self.space.borrow_mut().abandon_moves();
                return Err(e.into());
            }
        };
        let (stay, is_lossy) = (filled.stay.clone(), filled.is_lossy);
        let end = move |i: &Inner| {
            // What was lost without a device is not when that is back.
            let stands = !is_lossy || i.upkeep.returns() == returns || has(Bug::ReturnUnseen);
            for (n, s) in i.space.borrow_mut().slabs.iter_mut().enumerate() {
                if let Some(m) = &mut s.moving {
                    let current = i.device(m.to.device).is_some_and(|d| d.is_current());
                    m.ready = current && stands && !stay.contains(&n);
                }
            }
            // What cannot be used any more is begun anew by the next plan.
            i.space.borrow_mut().abandon_moves();
        };
        self.act(Box::new(end)).await?;
        Ok(filled)
    }

    /// What the pool looks like to plans.
    pub(crate) fn view(&self) -> View {
        let space = self.space.borrow();
        let taken = space.occupied().collect();
        self.view_of(&space, taken, |s| space.slabs[s].copies, |s| space.is_empty_slab(s))
    }

    /// As [`view`](Inner::view), when the moves under way are over and what nothing needs any more is vacant.
    pub(crate) fn view_to_come(&self) -> View {
        if has(Bug::UnderWayIsInTheWay) {
            return self.view();
        }
        let space = self.space.borrow();
        let taken = space.slabs.iter().flat_map(Slab::copies_to_come).flatten().collect();
        let copies = |s: usize| space.slabs[s].copies_to_come();
        self.view_of(&space, taken, copies, |s| space.will_be_empty(s))
    }

    fn view_of(
        &self,
        space: &Space,
        taken: Vec<Placement>,
        copies: impl Fn(usize) -> [Option<Placement>; 2],
        is_empty: impl Fn(usize) -> bool,
    ) -> View {
        let taken: BTreeSet<(u16, u32)> = taken.iter().map(|p| (p.device, p.extent)).collect();
        let sites = self.devices.borrow();
        let sites = sites.iter().filter(|d| d.state.get() != MemberState::Gone).map(|d| {
            let all = (0..d.layout.extents).filter(|e| !taken.contains(&(d.number, *e)));
            let (poor, vacant) = all.partition(|e| self.upkeep.is_shunned(d, *e));
            Site {
                number: d.number,
                fit: d.is_current() && !d.draining.get(),
                current: d.is_current(),
                draining: d.draining.get(),
                vacant,
                poor,
            }
        });
        let room = space.room();
        let plots = space.slabs.iter().enumerate().filter(|(_, s)| s.exists());
        let plots = plots.map(|(slab, s)| Plot {
            slab,
            copies: copies(slab),
            empty: is_empty(slab),
            used: room - u64::from(s.free),
            deaf: false,
        });
        let (sites, plots) = (sites.collect(), plots.collect());
        // The pool must not be too full without them.
        let keep = self.keep_free();
        let expendable = space.free().saturating_sub(keep) / room.max(1);
        let copies = usize::from(self.durable.borrow().copies);
        View { sites, plots, copies, expendable: expendable as usize }
    }

    /// Blocks that must stay free whatever is given up.
    fn keep_free(&self) -> u64 {
        let nodes: u64 = self.datasets.borrow().values().map(|d| d.nodes()).sum();
        2 * self.reserve() + nodes + 256.min(self.space.borrow().total() / 4)
    }

    /// Bytes that the table of slabs has room for, which has a fixed place on each device, and those that slabs and spares in use
    /// take of them. A spare is in use before it is known whether it holds anything.
    fn table_room(&self) -> (u64, u64) {
        let devices = self.devices.borrow();
        let members = devices.iter().filter(|d| d.state.get() != MemberState::Gone);
        let pages = members.map(|d| d.layout.table_pages).min().unwrap_or(0);
        let remaps: usize = devices.iter().map(|d| d.spares_used.get() as usize).sum();
        let slabs = self.space.borrow().slabs.len();
        (pages * page::PAYLOAD as u64, (8 + slabs * RECORD + remaps * REMAP) as u64)
    }

    /// There is room to note one more block that lives in a spare.
    pub(super) fn may_replace(&self) -> bool {
        let (room, used) = self.table_room();
        used + REMAP as u64 <= room
    }

    /// New slabs that what is vacant makes possible.
    pub(super) fn new_slabs(&self) -> Vec<[Option<Placement>; 2]> {
        let (room, used) = self.table_room();
        let devices = self.devices.borrow();
        let members = devices.iter().filter(|d| d.state.get() != MemberState::Gone);
        // Pools of older programs may have no room for all.
        let spares =
            |d: &Device| d.layout.spares.saturating_sub(d.spares_used.get().into()).min(SPARES);
        let kept: u64 = members.map(|d| spares(d) * REMAP as u64).sum();
        drop(devices);
        let space = self.space.borrow();
        let there = space.slabs.iter().filter(|s| s.exists()).count() as u64;
        // Places of slabs that were given up are used again.
        let places = space.slabs.len() as u64 + room.saturating_sub(used + kept) / RECORD as u64;
        let most = places.min(MAX_VBN >> space.shift).saturating_sub(there);
        drop(space);
        self.view().grow(most as usize)
    }

    /// Moves that make new slabs possible, but of those that are `held`.
    pub(super) fn levelling(&self, held: &BTreeSet<usize>) -> Vec<(usize, usize, Placement)> {
        let mut view = self.view();
        view.plots.retain(|p| !held.contains(&p.slab));
        view.balance(BATCH)
    }

    /// Makes new slabs of what is vacant, after moves if need be.
    pub(super) async fn spread(self: &Rc<Self>) -> StoreResult {
        // Slabs of which not everything can be read stay where they are; others move as well.
        let mut held = BTreeSet::new();
        if !self.space.borrow().leaving.is_empty() {
            self.checkpoint_now().await?;
        }
        loop {
            let new = self.new_slabs();
            if !new.is_empty() {
                let grow = move |i: &Inner| {
                    let (room, used) = i.table_room();
                    let mut space = i.space.borrow_mut();
                    let places = space.slabs.iter().filter(|s| !s.exists()).count();
                    // Blocks that were mended meanwhile may have taken of the room.
                    let most = places + room.saturating_sub(used) as usize / RECORD;
                    for copies in new.into_iter().take(most) {
                        let good = |c: &Placement| {
                            i.device(c.device).is_some_and(|d| d.is_current() && !d.draining.get())
                        };
                        let mut all = copies.iter().flatten();
                        if all.all(|c| good(c) && space.is_vacant(c)) {
                            space.grow(copies);
                        }
                    }
                };
                self.act(Box::new(grow)).await?;
                // What the extents of earlier slabs leave is vacant after one more.
                self.checkpoint_now().await?;
            }
            let moves = self.levelling(&held);
            let Some((.., to)) = moves.first() else {
                self.upkeep.spread.set(!self.new_slabs().is_empty() || !held.is_empty());
                return match held.len() {
                    0 => Ok(()),
                    n => Err(StoreError::Pool(format!("not all that is on {n} slabs can be read"))),
                };
            };
            self.upkeep.begin(Work::Balance, to.device);
            let view = self.view();
            let moved = |p: &&Plot| moves.iter().any(|(s, ..)| *s == p.slab);
            self.upkeep.plan_for(view.plots.iter().filter(moved).map(|p| p.used).sum());
            held.extend(self.carry_out(Plan { moves, ..Plan::default() }).await?.stay);
            self.checkpoint_now().await?;
        }
    }
}

/// Why a device keeps slabs: not all that they have can be read elsewhere.
fn unread_elsewhere(slabs: usize, is_away: bool) -> StoreError {
    let hint = match is_away {
        true => {
            "bring it back if it is away. If it is gone for good, remove it: what only it has is lost then"
        }
        false => {
            "that is tried again from time to time. To give up what cannot be read, let `weir scrub start` mend the \
             other copies first; then pull the device out, and remove it: what only it has is lost then"
        }
    };
    StoreError::Pool(format!(
        "not all that is on {slabs} slabs of it can be read elsewhere; {hint}"
    ))
}

/// Why a device keeps slabs: nothing that has room gives back what is written there.
fn poor_room(slabs: usize) -> StoreError {
    StoreError::Pool(format!(
        "{slabs} slabs of it find no place that gives back what is written there; add another device, or \
         delete data. It is tried again from time to time"
    ))
}

/// Both. What only lacks a place would be lost if the device were pulled out.
fn both(held: usize, deaf: usize) -> StoreError {
    StoreError::Pool(format!(
        "not all that is on {held} slabs of it can be read elsewhere, and {deaf} slabs find no place that gives \
         back what is written there; add another device first. It is tried again from time to time"
    ))
}

/// Why a device cannot be drained.
pub(crate) fn no_room(device: u16, copies: usize, unreadable: usize) -> StoreError {
    let mut text = format!(
        "device {device} cannot be drained: {copies} slabs on it find no place on another device that is \
         current and has not the other copy; add a device, or delete data"
    );
    if unreadable > 0 {
        text = format!(
            "device {device} cannot be drained: {unreadable} slabs on it are on no device that is there \
             and current; bring the device back first"
        );
    }
    StoreError::Request(text)
}
