//! A pool that two nodes share: one of them owns it, under an epoch that no other owner has had.
//!
//! Which node may own the pool, and which nodes have everything, is kept elsewhere, in a register of both. The engine asks before
//! it goes on with fewer: what it acknowledges then, a node that is still held to have everything would lack.

use super::Inner;
use crate::format::slab::Placement;
use crate::format::superblock::{MAX_DOMAIN, Superblock};
use crate::planted::{Bug, has};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::{Rc, Weak};
use weir_base::{IoError, IoResult, Nanos, SECONDS};
use weir_reactor::{LocalFuture, patience, sleep, spawn_task};

/// When a node that has everything is told of again, if that was not kept.
const AGAIN: Nanos = SECONDS;

/// Nodes, by number, whose devices hold everything that was acknowledged, without those of any other node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Able(u64);

impl Able {
    /// None.
    pub const NONE: Able = Able(0);

    /// With this one.
    ///
    /// # Panics
    /// There is no such node: its number is 0, or more than [`MAX_DOMAIN`].
    pub fn with(self, domain: u16) -> Able {
        assert!((1..=MAX_DOMAIN).contains(&domain), "no node has the number {domain}");
        Able(self.0 | 1 << domain)
    }

    /// Without those of `others`.
    pub fn without(self, others: Able) -> Able {
        Able(self.0 & !others.0)
    }

    /// Those of both.
    pub fn and(self, others: Able) -> Able {
        Able(self.0 | others.0)
    }

    /// Whether this one is among them.
    pub fn has(self, domain: u16) -> bool {
        domain <= MAX_DOMAIN && self.0 >> domain & 1 == 1
    }

    /// There is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Who keeps which nodes have everything.
pub trait Arbiter {
    /// Only these have everything from here on. Waits until that is kept: nothing is acknowledged before. False: this node does not
    /// own the pool any more, and writes nothing from then on.
    ///
    /// Whoever answers true has ended each [`more`](Arbiter::more) that began before and is in doubt still: it must not be kept
    /// later. That is so also where the register says these already.
    fn fewer(&self, able: Able) -> LocalFuture<'_, bool>;

    /// These have everything (again). False: it is not kept, or may not be; it is told again later. So it is when this takes too
    /// long, and is dropped. Nothing waits for it.
    fn more(&self, able: Able) -> LocalFuture<'_, bool>;
}

/// In whose name a pool of two nodes is opened.
#[derive(Clone)]
pub struct Owner {
    /// Its owner epoch: greater than that of every opening before.
    pub epoch: u32,
    /// Its number.
    pub domain: u16,
    /// The nodes that have everything. What devices of others tell is not believed.
    pub able: Able,
    /// Who is asked.
    pub arbiter: Rc<dyn Arbiter>,
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Owner { epoch, domain, able, .. } = self;
        write!(f, "Owner({domain}, epoch {epoch}, able {:b})", able.0)
    }
}

/// What all lives of a pool know of who owns it. What one of them learns, the others know: also when it does not come to serve.
#[derive(Clone, Default)]
pub(crate) struct Ownership {
    /// The nodes that may be held to have everything.
    told: Cell<Able>,
    /// Those of them that surely are.
    sure: Cell<Able>,
    /// Counts how often fewer were told of: what is answered to an older question says nothing.
    asked: Cell<u64>,
    /// Somebody tells of more nodes.
    telling: Cell<bool>,
    /// The life that has them.
    life: RefCell<Weak<Inner>>,
    /// The newest owner epoch that any device tells of.
    seen: Cell<u32>,
    /// Another node owns the pool.
    fenced: Cell<bool>,
}

impl Ownership {
    pub(super) fn new(owner: Option<&Owner>) -> Ownership {
        let able = Cell::new(owner.map_or(Able::NONE, |o| o.able));
        Ownership { told: able.clone(), sure: able, ..Ownership::default() }
    }

    /// A device tells of an owner of this epoch.
    pub(super) fn see(&self, epoch: u32) {
        self.seen.set(self.seen.get().max(epoch));
    }

    /// The nodes that may be held to have everything.
    pub(super) fn told(&self) -> Able {
        self.told.get()
    }

    /// Tells of more nodes; `None`: there are no more. Whether that is kept, which may take long. The pool is not kept for it.
    async fn tell(&self) -> Option<bool> {
        let life = self.life.borrow().upgrade()?;
        let limit = life.options.deadline;
        let news = {
            let only = match has(Bug::MoreAwaited) {
                true => None,
                false => Some(life.super_lock.acquire(1).await),
            };
            let news = life.news();
            drop(only);
            news
        };
        drop(life);
        let (able, arbiter) = news?;
        let asked = self.asked.get();
        let kept = match has(Bug::MoreAwaited) {
            true => arbiter.more(able).await,
            false => patience(limit, arbiter.more(able)).await.unwrap_or(false),
        };
        let kept = kept && (asked == self.asked.get() || has(Bug::OldAnswerCounts));
        if kept {
            self.told.set(self.told.get().and(able));
            self.sure.set(able);
        }
        Some(kept)
    }

    /// As a life has it that is beginning.
    pub(super) fn of_life(self: &Rc<Self>) -> Rc<Ownership> {
        match has(Bug::KnownToOneLife) {
            true => Rc::new(Ownership::clone(self)),
            false => self.clone(),
        }
    }
}

impl Inner {
    /// Another node owns the pool.
    pub(crate) fn is_fenced(&self) -> bool {
        self.owned.fenced.get()
    }

    /// Whether it may be told what the pool has.
    ///
    /// # Errors
    /// Another node owns it, and may have written since.
    pub(crate) fn check_owned(&self) -> IoResult {
        if self.is_fenced() { Err(IoError::Offline) } else { Ok(()) }
    }

    /// The owner epoch of what is written; 0 for a pool of one node.
    pub(crate) fn owner_epoch(&self) -> u32 {
        self.options.owner.as_ref().map_or(0, |o| o.epoch)
    }

    /// The nodes each of which has all slabs and the log on devices that are current.
    fn able_now(&self) -> Able {
        let (durable, space) = (self.durable.borrow(), self.space.borrow());
        let is_current = |n: u16, domain: u16| {
            self.device(n).is_some_and(|d| d.domain == domain && d.is_current())
        };
        let has_all = |domain: u16| {
            let mut slabs = space.slabs.iter().filter(|s| s.exists() && s.offered);
            let on = |c: &Placement| !c.filling && is_current(c.device, domain);
            let mut log = durable.log_set.iter().flatten();
            slabs.all(|s| s.copies.iter().flatten().any(on)) && log.any(|n| is_current(*n, domain))
        };
        let devices = self.devices.borrow();
        let all = devices.iter().map(|d| d.domain).filter(|d| *d > 0 && has_all(*d));
        all.fold(Able::NONE, Able::with)
    }

    /// Those that have everything by a durable superblock may be told of from here on, and then what they lack must be told. So they
    /// count as told before that is asked for.
    fn count_as_told(&self, now: Able) {
        if !has(Bug::DoubtOfMoreForgotten) {
            self.owned.told.set(self.owned.told.get().and(now));
        }
    }

    /// Sees to it that no node is held to have everything that has not. Comes before anything is acknowledged without a device that
    /// failed, and before a superblock says so.
    ///
    /// # Errors
    /// Another node owns the pool: this one is suspended.
    pub(crate) async fn agree(&self) -> IoResult {
        let Some(owner) = &self.options.owner else { return Ok(()) };
        loop {
            self.check_running()?;
            let now = self.able_now();
            if !has(Bug::CountsWhenAsked) {
                self.count_as_told(now);
            }
            let told = self.owned.told.get();
            if told.without(now).is_empty() || has(Bug::FewerUntold) {
                return Ok(());
            }
            let able = told.without(told.without(now));
            if able.is_empty() {
                // Whoever is told of has not got everything. The register stays right, and nothing is acknowledged.
                self.suspend(IoError::Offline);
                return Err(IoError::Offline);
            }
            self.owned.asked.set(self.owned.asked.get() + 1);
            if has(Bug::FewerNotAwaited) {
                let (arbiter, me) = (owner.arbiter.clone(), self.me.clone());
                self.owned.told.set(able);
                spawn_task(async move {
                    if !arbiter.fewer(able).await
                        && let Some(i) = me.upgrade()
                    {
                        i.fence();
                    }
                });
                return Ok(());
            }
            if !owner.arbiter.fewer(able).await {
                self.fence();
                return Err(IoError::Offline);
            }
            self.owned.told.set(able);
            self.owned.sure.set(able);
        }
    }

    /// Another node owns the pool: nothing is written any more, and it does not go on by itself.
    fn fence(&self) {
        if !has(Bug::FencedGoesOn) {
            self.owned.fenced.set(true);
            self.suspend(IoError::Offline);
        }
    }

    /// A newer owner was seen: nothing of this life may be told any more either.
    pub(super) fn fence_if_seen(&self) {
        if self.see_owner(0).is_err() {
            self.fence();
        }
    }

    /// Has the nodes told of that have everything by a superblock that is durable. The caller holds `super_lock`.
    pub(crate) async fn readmit(&self) {
        self.owned.life.replace(self.me.clone());
        if self.news().is_none() || self.owned.telling.replace(true) {
            return;
        }
        let owned = self.owned.clone();
        let tells = async move {
            while let Some(kept) = owned.tell().await {
                if !kept {
                    sleep(AGAIN).await;
                }
            }
            owned.telling.set(false);
        };
        if has(Bug::MoreAwaited) {
            return tells.await;
        }
        spawn_task(tells);
    }

    /// The nodes that have everything, if not all of them are surely held to have it. The caller holds `super_lock`: what they have
    /// is said by a superblock, and that was written twice.
    fn news(&self) -> Option<(Able, Rc<dyn Arbiter>)> {
        let owner = self.options.owner.as_ref()?;
        let now = self.able_now();
        if now.without(self.owned.sure.get()).is_empty() || self.check_running().is_err() {
            return None;
        }
        self.count_as_told(now);
        Some((now, owner.arbiter.clone()))
    }

    /// Whether a pool of two nodes may be opened by this superblock. `again`: it goes on in its place.
    ///
    /// # Errors
    /// It may not, in words.
    pub(crate) fn check_owner(&self, found: &Superblock, again: bool) -> Result<(), String> {
        let of_cluster = found.members.iter().any(|m| m.domain > 0);
        match &self.options.owner {
            None if of_cluster && !self.options.read_only => {
                Err("it is shared by two nodes, one of \
                 which owns it: only that one opens it, by the cluster that keeps who it is"
                    .into())
            }
            Some(_) if !of_cluster => Err("it is a pool of one node: nobody owns it".into()),
            Some(o) if !found.members.iter().any(|m| m.domain == o.domain) => {
                Err(format!("node {} has no device of it", o.domain))
            }
            // One that has lost its own device since goes on with the other node's.
            Some(o) if !again && !o.able.has(o.domain) => Err(format!(
                "node {} is not held to have everything: another one opens it",
                o.domain
            )),
            Some(o) if self.owned.seen.get() == o.epoch && !again && !has(Bug::EpochUsedAgain) => {
                Err(format!(
                    "it was opened under owner epoch {} before: its node has to claim it anew",
                    o.epoch
                ))
            }
            Some(_) if has(Bug::EpochUsedAgain) => Ok(()),
            _ => self.see_owner(0),
        }
    }

    /// A device of a pool of two nodes tells of an owner of this epoch.
    ///
    /// # Errors
    /// It owns the pool, and this node does not, in words.
    pub(super) fn see_owner(&self, epoch: u32) -> Result<(), String> {
        let Some(owner) = &self.options.owner else { return Ok(()) };
        if !has(Bug::PageOfAnyOwner) {
            self.owned.see(epoch);
        }
        let seen = self.owned.seen.get();
        if seen <= owner.epoch {
            return Ok(());
        }
        Err(format!(
            "it was opened under owner epoch {seen}, and this node owns it under {}: another node has it by now",
            owner.epoch
        ))
    }
}

/// Whether what a device says of a pool is believed, by who is held to have everything: `newest` is its newest superblock.
pub(super) fn is_believed(owner: Option<&Owner>, device: u64, newest: Option<&Superblock>) -> bool {
    let Some(owner) = owner.filter(|_| !has(Bug::AnybodyIsAble)) else { return true };
    let own = newest.and_then(|s| s.members.iter().find(|m| m.device == device));
    own.is_none_or(|m| owner.able.has(m.domain) || m.domain == 0)
}
