//! Bugs on purpose, for the proof of the test suites. Without the feature `planted` there are none.

/// A bug that can be switched on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// Under Exclusive Access, one that is registered and no holder may read.
    RegisteredMayRead,
    /// PREEMPT takes away one of the registrations with the key that is named.
    PreemptFirstOnly,
    /// A unit attention is raised without the cached rules being made anew.
    AttentionBehindCache,
    /// An attention is raised for one of the nexuses of an initiator port.
    ToldOncePerHost,
    /// RELEASE tells nobody.
    ReleaseInSilence,
    /// LOGICAL UNIT RESET leaves the reservation of RESERVE(6).
    ResetKeepsReserve6,
    /// A holder that unregisters leaves its reservation in force.
    LeavingHolderHolds,
}

impl Bug {
    /// All there are.
    pub const ALL: &[Bug] = &[
        Bug::RegisteredMayRead,
        Bug::PreemptFirstOnly,
        Bug::AttentionBehindCache,
        Bug::ToldOncePerHost,
        Bug::ReleaseInSilence,
        Bug::ResetKeepsReserve6,
        Bug::LeavingHolderHolds,
    ];
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
