//! The sides of a unit: one on each reactor, reached by messages.

use crate::unit::Unit;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use weir_reactor::{Handle, get_local, local_or_default};

/// Sides and their reactors.
#[derive(Default)]
pub(crate) struct Members(Mutex<Vec<(u64, Handle)>>);

/// The sides of a reactor, by number.
#[derive(Default)]
struct Here(RefCell<BTreeMap<u64, Weak<Unit>>>);

impl Members {
    fn lock(&self) -> MutexGuard<'_, Vec<(u64, Handle)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All, in the order in which they joined.
    pub(crate) fn all(&self) -> Vec<(u64, Handle)> {
        self.lock().clone()
    }

    pub(crate) fn leave(&self, number: u64) {
        self.lock().retain(|(n, _)| *n != number);
    }
}

/// A number, for a side or a command aside; no two of a program have the same, and none is 0.
pub(crate) fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Unit {
    /// Makes the side known to messages, on the present reactor.
    pub(crate) fn join(self: &Rc<Self>) {
        let here = local_or_default::<Here>();
        let mut here = here.0.borrow_mut();
        here.retain(|_, u| u.strong_count() > 0);
        here.insert(self.number, Rc::downgrade(self));
        self.shared.members.lock().push((self.number, weir_reactor::handle()));
    }

    /// The side of this number, if it is on the present reactor.
    pub(crate) fn find(number: u64) -> Option<Rc<Unit>> {
        get_local::<Here>()?.0.borrow().get(&number)?.upgrade()
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        self.shared.members.leave(self.number);
    }
}
