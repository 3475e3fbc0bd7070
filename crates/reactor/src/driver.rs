//! What a reactor needs from the world below it.

use std::sync::Arc;
use std::time::Duration;
use weir_base::Nanos;

/// The operating system or a simulation, as one reactor sees it.
pub trait Driver {
    /// The clock. Never goes back.
    fn now(&self) -> Nanos;

    /// Harvests completions and submits what was queued; true when anything happened.
    fn poll(&self) -> bool;

    /// Sleeps until there may be something to do: a completion, [`Unpark::unpark`], or `until`.
    /// May return early.
    fn park(&self, until: Option<Nanos>);

    /// What another core calls to end a [`park`](Driver::park).
    fn unparker(&self) -> Arc<dyn Unpark>;

    /// Which of `n` runnable tasks goes next. Always the first, unless a simulation permutes.
    fn pick(&self, _n: usize) -> usize {
        0
    }

    /// True when [`pick`](Driver::pick) is to be asked.
    fn permutes(&self) -> bool {
        false
    }

    /// The simulated machine around this reactor; none: the real one.
    fn machine(&self) -> Option<&dyn Machine> {
        None
    }
}

/// What a program asks a machine for besides the clock. Programs ask the operating system where none is simulated.
pub trait Machine {
    /// Time since 1970 by the calendar.
    fn calendar(&self) -> Duration;

    /// Fills `out` with chance, for identities.
    fn entropy(&self, out: &mut [u8]);
}

/// Ends another core's sleep.
pub trait Unpark: Send + Sync {
    /// Makes the reactor's present or next `park` return.
    fn unpark(&self);
}

/// A source of events that is polled once per turn (S0: "a small number of polling threads").
pub trait Poller {
    /// Harvests events; true when anything happened.
    fn poll(&self) -> bool;

    /// Called at the end of a turn: rings doorbells, so that what a turn posted leaves together.
    fn flush(&self) {}

    /// Called before the reactor sleeps: arms a wake-up for new events. False when events came in
    /// meanwhile and the reactor must not sleep.
    fn arm(&self) -> bool {
        true
    }
}

/// How a reactor waits for work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PollMode {
    /// Polls for this long after the last work, then sleeps.
    Adaptive {
        /// Nanoseconds of polling without work before sleep.
        spin: Nanos,
    },
    /// Never sleeps.
    Busy,
    /// Sleeps as soon as there is no work.
    Sleep,
}

impl Default for PollMode {
    /// Adaptive, 200 µs: longer than a loopback round trip, short against a second.
    fn default() -> Self {
        PollMode::Adaptive { spin: 200 * weir_base::MICROS }
    }
}
