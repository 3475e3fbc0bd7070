//! The first thing that somebody found wrong.

use crate::Wrong;
use std::cell::{Cell, RefCell};

/// What one who looks at a pool found wrong. It outlives the pool's lives.
#[derive(Default)]
pub(crate) struct Verdict {
    wrong: RefCell<Option<String>>,
    closing: Cell<bool>,
}

impl Verdict {
    /// Fails with what was found.
    pub(crate) fn get(&self) -> Result<(), Wrong> {
        match self.wrong.borrow().as_ref() {
            Some(w) => Err(Wrong(w.clone())),
            None => Ok(()),
        }
    }

    /// The pool is being closed: what is under way may fail.
    pub(crate) fn closing(&self, yes: bool) {
        self.closing.set(yes);
    }

    /// Notes what is wrong, if it is the first and the pool is not being closed.
    pub(crate) fn is_wrong(&self, text: String) {
        if !self.closing.get() {
            self.wrong.borrow_mut().get_or_insert(text);
        }
    }
}
