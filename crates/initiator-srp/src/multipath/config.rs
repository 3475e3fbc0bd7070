//! Settings of a unit with several paths.

use weir_base::{MILLIS, Nanos, SECONDS};

/// Which of several good paths commands take. Paths of a worse access state (ALUA) are used only when there
/// is no better one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PathPolicy {
    /// One at a time: the first in the order given that is among the best.
    #[default]
    ActivePassive,
    /// All of the best, in turn.
    RoundRobin,
}

/// Settings of a unit with several paths. Times are in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MultipathConfig {
    /// Which path a command takes.
    pub policy: PathPolicy,
    /// Pause between two looks at every path (TEST UNIT READY, REPORT TARGET PORT GROUPS).
    pub check_every: Nanos,
    /// How long a path must have been good before it is preferred again; `None`: not before the others fail.
    pub failback: Option<Nanos>,
    /// A command that changes the medium and was under way when its connection ended, or was aborted because it took too
    /// long, is sent over another path only so long after that end: by then the old target must have ended it, or it could be done once
    /// more on top of what was written since. The old path's own return ends the wait, since a login ends
    /// what the target has of earlier ones.
    pub settle: Nanos,
    /// How long a command waits when no path is good.
    pub no_path: Nanos,
}

impl Default for MultipathConfig {
    /// Active-passive, a look every second, back after 5 s, 5 s for writes in doubt, 30 s without a path.
    fn default() -> Self {
        MultipathConfig {
            policy: PathPolicy::ActivePassive,
            check_every: SECONDS,
            failback: Some(5 * SECONDS),
            settle: 5 * SECONDS,
            no_path: 30 * SECONDS,
        }
    }
}

impl MultipathConfig {
    /// Pause while a path is not good: whether its session is back is asked more often, and costs nothing.
    pub(super) fn look(&self) -> Nanos {
        (self.check_every / 10).max(MILLIS)
    }
}
