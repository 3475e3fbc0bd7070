//! How what hosts use is shared out, so that one that stands still keeps no other from going on.
//!
//! Of each kind (buffers of one size, say) some are *kept*: one for every host that is there and has none, and some for
//! hosts that may come. What is free beyond that is *spare*. A host that has none may take one. Any other takes as long as
//! it has less than [`PART`] times what is spare, and a channel no more than it leaves to the other channels of its host. So
//! a host that is alone has two thirds of what there is (half by one channel). Each that comes finds something, however
//! many before it stand still, as long as these are no more than are kept for.
//!
//! Whoever has to wait does so behind his own channel's others only; channels of a host take turns, and so do hosts.

use crate::planted::{Bug, has};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use weir_reactor::WaitChannel;

/// A host may have so many times what it leaves over.
const PART: u32 = 4;
/// Of each kind one of so many is kept for hosts that have none.
const KEPT: u32 = 4;

/// Things of several kinds that hosts share, on one reactor. Only counts: the things are somewhere else.
#[derive(Clone)]
pub struct Shares(Rc<Inner>);

struct Inner {
    kinds: Box<[Kind]>,
    hosts: RefCell<Vec<Weak<Host>>>,
}

struct Kind {
    total: u32,
    free: Cell<u32>,
    /// For hosts that have none, these included that have one; 0 as long as there is no host.
    kept: Cell<u32>,
    /// Hosts that have one or more.
    served: Cell<u32>,
    /// Hosts that wait, the next one first.
    row: RefCell<VecDeque<Rc<Host>>>,
}

impl Kind {
    /// What is free, and not kept for anybody.
    #[inline]
    fn spare(&self) -> u32 {
        self.free.get().saturating_sub(self.kept.get().saturating_sub(self.served.get()))
    }
}

struct Host {
    /// Empty for the house: what is not taken for a host. It may have all that is spare.
    name: String,
    parts: Box<[HostPart]>,
    all: Weak<Inner>,
}

/// What a host has of one kind.
#[derive(Default)]
struct HostPart {
    held: Cell<u32>,
    /// Its channels that wait, the next one first.
    row: RefCell<VecDeque<Rc<Account>>>,
}

/// What one channel of a host has.
pub struct Account {
    all: Rc<Inner>,
    host: Rc<Host>,
    parts: Box<[Part]>,
    /// For who does not wait as a task.
    given: Option<Box<dyn Fn()>>,
}

/// What a channel has of one kind.
struct Part {
    held: Cell<u32>,
    /// Given what it waited for by a signal; the count is 0 but for what somebody gave up just then.
    waits: WaitChannel,
    /// Asked for by [`Account::ask`], and not given yet.
    asked: Cell<u32>,
    in_row: Cell<bool>,
}

impl Part {
    fn waiting(&self) -> usize {
        self.waits.waiting() + self.asked.get() as usize
    }
}

impl Shares {
    /// So many of each kind.
    pub fn new(totals: impl IntoIterator<Item = usize>) -> Shares {
        let kind = |n: usize| Kind {
            total: n as u32,
            free: Cell::new(n as u32),
            kept: Cell::new(0),
            served: Cell::new(0),
            row: RefCell::default(),
        };
        let kinds = totals.into_iter().map(kind).collect();
        Shares(Rc::new(Inner { kinds, hosts: RefCell::default() }))
    }

    /// An account for another channel of the host of this name. The host counts as there until its last account and
    /// what that has are gone.
    ///
    /// # Panics
    /// When the name is empty.
    pub fn account(&self, host: &str) -> Rc<Account> {
        self.make(host, None)
    }

    /// As [`account`](Shares::account), for a channel that [asks](Account::ask) rather than waits: `given` is called with
    /// each thing that it is given. It takes and gives nothing itself.
    ///
    /// # Panics
    /// When the name is empty.
    pub fn account_told(&self, host: &str, given: impl Fn() + 'static) -> Rc<Account> {
        self.make(host, Some(Box::new(given)))
    }

    fn make(&self, host: &str, given: Option<Box<dyn Fn()>>) -> Rc<Account> {
        assert!(!host.is_empty(), "a host has a name");
        let known = self.0.hosts.borrow().iter().filter_map(Weak::upgrade).find(|h| h.name == host);
        let host = known.unwrap_or_else(|| {
            let host = self.new_host(host);
            self.0.hosts.borrow_mut().push(Rc::downgrade(&host));
            self.0.set_aside();
            host
        });
        self.account_of(host, given)
    }

    /// An account for what is taken for no host.
    pub(crate) fn house(&self) -> Rc<Account> {
        self.account_of(self.new_host(""), None)
    }

    fn new_host(&self, name: &str) -> Rc<Host> {
        let parts = self.0.kinds.iter().map(|_| HostPart::default()).collect();
        Rc::new(Host { name: name.to_owned(), parts, all: Rc::downgrade(&self.0) })
    }

    fn account_of(&self, host: Rc<Host>, given: Option<Box<dyn Fn()>>) -> Rc<Account> {
        let part = |_| Part {
            held: Cell::new(0),
            waits: WaitChannel::new(0),
            asked: Cell::new(0),
            in_row: Cell::new(false),
        };
        let parts = self.0.kinds.iter().map(part).collect();
        Rc::new(Account { all: self.0.clone(), host, parts, given })
    }

    /// How many of a kind are free.
    pub fn free(&self, kind: usize) -> u32 {
        self.0.kinds[kind].free.get()
    }

    /// How many requests wait for one of a kind.
    pub fn waiting(&self, kind: usize) -> usize {
        let row = self.0.kinds[kind].row.borrow();
        let of = |h: &Rc<Host>| -> usize {
            h.parts[kind].row.borrow().iter().map(|a| a.parts[kind].waiting()).sum()
        };
        row.iter().map(of).sum()
    }

    /// Hosts that have an account.
    pub fn hosts(&self) -> usize {
        self.0.hosts.borrow().iter().filter(|h| h.strong_count() > 0).count()
    }
}

impl Inner {
    /// A host has come or gone.
    fn set_aside(&self) {
        let mut hosts = self.hosts.borrow_mut();
        hosts.retain(|h| h.strong_count() > 0);
        let there = hosts.len() as u32;
        drop(hosts);
        for (k, kind) in self.kinds.iter().enumerate() {
            // One more than there are hosts: the next one finds something too. No more than half: most of them may be idle, and all
            // would be kept for these.
            let half = kind.total.div_ceil(2).max(2).min(kind.total);
            let kept = (kind.total / KEPT).max((there + 1).min(half));
            kind.kept.set(if there == 0 { 0 } else { kept });
            self.serve(k);
        }
    }

    /// Gives what may be given to those that wait for it.
    #[cold]
    fn serve(&self, k: usize) {
        let kind = &self.kinds[k];
        let mut left = kind.row.borrow().len();
        while left > 0 && kind.free.get() > 0 {
            let Some(host) = kind.row.borrow_mut().pop_front() else { return };
            let next = host.next(k);
            if !host.parts[k].row.borrow().is_empty() {
                kind.row.borrow_mut().push_back(host);
            }
            match next {
                Some(account) => {
                    account.take(k);
                    account.give(k);
                    account.stay_in_row(k);
                    // Everybody is asked again: whose turn it was may have been refused for want of what is spare.
                    left = kind.row.borrow().len();
                }
                None => left -= 1,
            }
        }
    }
}

impl Host {
    fn is_house(&self) -> bool {
        self.name.is_empty()
    }

    /// The next of its channels that waits and may have one; it is out of the row.
    fn next(&self, k: usize) -> Option<Rc<Account>> {
        let row = &self.parts[k].row;
        let waiting = row.borrow().len();
        for _ in 0..waiting {
            let account = row.borrow_mut().pop_front()?;
            if account.may_take(k) {
                account.parts[k].in_row.set(false);
                return Some(account);
            }
            row.borrow_mut().push_back(account);
        }
        None
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(all) = self.all.upgrade().filter(|_| !self.is_house()) {
            all.set_aside();
        }
    }
}

impl Account {
    /// Whether the rule lets it have one more.
    #[inline]
    fn may_take(&self, k: usize) -> bool {
        let kind = &self.all.kinds[k];
        if kind.free.get() == 0 {
            return false;
        }
        if has(Bug::NoShareOfHost) {
            return true;
        }
        let spare = kind.spare();
        if self.host.is_house() {
            return spare > 0;
        }
        let (host, own) = (self.host.parts[k].held.get(), self.parts[k].held.get());
        // With the one in question in its hand.
        let shares_on = || own + host + 2 <= (spare - 1) * PART;
        host == 0 || (host < spare * PART && (own == 0 || shares_on()))
    }

    #[inline]
    fn take(&self, k: usize) {
        let kind = &self.all.kinds[k];
        kind.free.set(kind.free.get() - 1);
        let host = &self.host.parts[k].held;
        if host.replace(host.get() + 1) == 0 && !self.host.is_house() {
            kind.served.set(kind.served.get() + 1);
        }
        let own = &self.parts[k].held;
        own.set(own.get() + 1);
    }

    /// Whether [`try_one`](Account::try_one) takes one.
    #[inline]
    pub fn can_take(&self, k: usize) -> bool {
        self.may_take(k) && !self.parts[k].in_row.get()
    }

    /// Takes one, if it may and none of its channel waits for one.
    #[inline]
    pub fn try_one(&self, k: usize) -> bool {
        let can = self.can_take(k);
        if can {
            self.take(k);
        }
        can
    }

    /// Asks for one that could not be taken: it will be given.
    pub fn ask(self: &Rc<Self>, k: usize) {
        let asked = &self.parts[k].asked;
        asked.set(asked.get() + 1);
        self.stand_in_row(k);
    }

    /// What was [asked](Account::ask) for and has not been given is wanted no more.
    pub fn ask_no_more(&self, k: usize) {
        self.parts[k].asked.set(0);
        if self.parts[k].waiting() == 0 {
            self.leave_row(k);
        }
    }

    /// One was taken for somebody who waits or has asked.
    fn give(&self, k: usize) {
        let part = &self.parts[k];
        match (&self.given, part.asked.get()) {
            (Some(given), asked @ 1..) => {
                part.asked.set(asked - 1);
                given();
            }
            _ => part.waits.signal(),
        }
    }

    /// Gives one back.
    #[inline]
    pub fn give_back(&self, k: usize) {
        let kind = &self.all.kinds[k];
        kind.free.set(kind.free.get() + 1);
        let (host, own) = (&self.host.parts[k].held, &self.parts[k].held);
        own.set(own.get() - 1);
        host.set(host.get() - 1);
        if host.get() == 0 && !self.host.is_house() {
            kind.served.set(kind.served.get() - 1);
        }
        if !kind.row.borrow().is_empty() {
            self.all.serve(k);
        }
    }

    /// Waits for one. What is waited for is given up when this is dropped.
    pub async fn one(self: &Rc<Self>, k: usize) {
        if self.try_one(k) {
            return;
        }
        let _in_row = InRow { account: self, k };
        self.stand_in_row(k);
        self.parts[k].waits.wait().await;
    }

    /// Others have all there is, and its host has none.
    #[inline]
    pub fn is_without(&self, k: usize) -> bool {
        self.all.kinds[k].free.get() == 0 && self.host.parts[k].held.get() == 0
    }

    fn stand_in_row(self: &Rc<Self>, k: usize) {
        if self.parts[k].in_row.replace(true) {
            return;
        }
        let part = &self.host.parts[k];
        part.row.borrow_mut().push_back(self.clone());
        if part.row.borrow().len() == 1 {
            self.all.kinds[k].row.borrow_mut().push_back(self.host.clone());
        }
    }

    /// It has been out of the row, and more of it wait.
    fn stay_in_row(self: &Rc<Self>, k: usize) {
        if self.parts[k].waiting() > 0 {
            self.stand_in_row(k);
        }
    }

    /// Nobody of it waits any more.
    fn leave_row(&self, k: usize) {
        if !self.parts[k].in_row.replace(false) {
            return;
        }
        let part = &self.host.parts[k];
        part.row.borrow_mut().retain(|a| !std::ptr::eq(&**a, self));
        if part.row.borrow().is_empty() {
            let mut row = self.all.kinds[k].row.borrow_mut();
            row.retain(|h| !Rc::ptr_eq(h, &self.host));
        }
    }
}

/// Somebody waits.
struct InRow<'a> {
    account: &'a Rc<Account>,
    k: usize,
}

impl Drop for InRow<'_> {
    fn drop(&mut self) {
        let (account, k) = (self.account, self.k);
        let waits = &account.parts[k].waits;
        // First, or what is given back could be given to it again.
        if account.parts[k].waiting() == 0 {
            account.leave_row(k);
        }
        // Given to one who did not come to take it.
        while waits.try_wait() {
            if !has(Bug::ShareNotGivenBack) {
                account.give_back(k);
            }
        }
    }
}

#[cfg(test)]
mod tests;
