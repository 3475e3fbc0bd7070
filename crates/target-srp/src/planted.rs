//! Bugs on purpose, for the proof of the test suites. Without the feature `planted` there are none.

/// A bug that can be switched on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// ABORT TASK is answered while the task may still write.
    AbortAnsweredEarly,
    /// The units do not forget a nexus whose last channel has ended.
    NexusStays,
    /// A login that ends the channels of its nexus does not wait for their end.
    OldChannelsStay,
    /// PREEMPT AND ABORT does not end the preempted nexuses' commands.
    PreemptedGoOn,
    /// LOGICAL UNIT RESET ends its own nexus's commands only.
    ResetOwnOnly,
    /// A PREEMPT AND ABORT is answered though its own task set has been aborted meanwhile.
    PreemptorAnswers,
    /// A command waits for its descriptor table's buffer while it holds that of its data.
    TableHeldUp,
}

impl Bug {
    /// All there are.
    pub const ALL: &[Bug] = &[
        Bug::AbortAnsweredEarly,
        Bug::NexusStays,
        Bug::OldChannelsStay,
        Bug::PreemptedGoOn,
        Bug::ResetOwnOnly,
        Bug::PreemptorAnswers,
        Bug::TableHeldUp,
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
