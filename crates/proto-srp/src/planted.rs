//! Bugs on purpose, for the proof of the test suites. Without the feature `planted` there are none.

/// A bug that can be switched on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A target keeps credits that are due from a host that has one left, which that keeps for task management.
    CreditKeptAtOne,
}

impl Bug {
    /// All there are.
    pub const ALL: &[Bug] = &[Bug::CreditKeptAtOne];
}

#[cfg(feature = "planted")]
mod switch {
    use super::Bug;
    use std::cell::Cell;

    thread_local! {
        static ON: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Switches one bug on for this thread, or all off.
    pub fn plant(bug: Option<Bug>) {
        ON.with(|o| o.set(bug));
    }

    pub(crate) fn has(bug: Bug) -> bool {
        ON.with(|o| o.get() == Some(bug))
    }
}

#[cfg(not(feature = "planted"))]
mod switch {
    /// There are no bugs on purpose in this build.
    #[inline(always)]
    pub(crate) const fn has(_bug: super::Bug) -> bool {
        false
    }
}

pub(crate) use switch::has;
#[cfg(feature = "planted")]
pub use switch::plant;
