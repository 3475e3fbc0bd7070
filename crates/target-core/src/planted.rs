//! Bugs on purpose, for the proof of the test suites. Without the feature `planted` there are none.

/// A bug that can be switched on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A SCSI write lets go of the gate before it writes: a COMPARE AND WRITE does not wait for it.
    WriteNotCounted,
    /// The same for a write of a front end without SCSI.
    BlockWriteNotCounted,
    /// A command that was fenced while its data came writes it all the same.
    PassNotShown,
    /// Each port counts its nexuses from 1.
    PortsShareNexuses,
    /// A fence ends what is under way on one reactor only.
    FenceOneReactor,
    /// Nobody waits for the end of commands to volumes that are hidden.
    PartDoesNotWait,
    /// A fence does not wait until the answers of what it ended have left.
    AnswersNotAwaited,
    /// I/O that a lost channel left behind is not waited for by writes of the next one.
    LingeringForgotten,
}

impl Bug {
    /// All there are.
    pub const ALL: &[Bug] = &[
        Bug::WriteNotCounted,
        Bug::BlockWriteNotCounted,
        Bug::PassNotShown,
        Bug::PortsShareNexuses,
        Bug::FenceOneReactor,
        Bug::PartDoesNotWait,
        Bug::AnswersNotAwaited,
        Bug::LingeringForgotten,
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
