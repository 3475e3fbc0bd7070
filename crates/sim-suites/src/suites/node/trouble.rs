//! What goes wrong below the control plane, and when.

use std::collections::BTreeSet;
use std::time::Duration;
use weir_base::Prng;
use weir_control::platform::sleep;
use weir_control::{Code, Error};

/// What becomes of a call of the data plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Works,
    /// It fails, and nothing has been done.
    Fails,
    /// It fails, and has been done.
    FailsLate,
}

/// What is wrong now.
#[derive(Debug)]
pub(super) struct Trouble {
    rng: Prng,
    /// Of a thousand calls so many fail.
    pub(super) failing: u64,
    /// Of a thousand calls so many take up to seconds.
    pub(super) slow: u64,
    /// Devices that are not there.
    pub(super) missing: BTreeSet<String>,
    /// Devices that do not answer.
    pub(super) silent: BTreeSet<String>,
    pub(super) failed: u64,
}

impl Trouble {
    pub(super) fn none(rng: Prng) -> Trouble {
        let (missing, silent) = Default::default();
        Trouble { rng, failing: 0, slow: 0, missing, silent, failed: 0 }
    }

    /// All is well again.
    pub(super) fn end(&mut self) {
        (self.failing, self.slow) = (0, 0);
        self.missing.clear();
        self.silent.clear();
    }

    /// What becomes of the next call, and how long it takes.
    pub(super) fn next(&mut self) -> (Fate, Duration) {
        let fate = match self.rng.chance(self.failing, 1000) {
            false => Fate::Works,
            true if self.rng.chance(1, 3) => Fate::FailsLate,
            true => Fate::Fails,
        };
        self.failed += u64::from(fate != Fate::Works);
        let long = if self.rng.chance(self.slow, 1000) { 4_000_000 } else { 400 };
        (fate, Duration::from_micros(self.rng.below(long)))
    }
}

/// What a call that fails says.
pub(super) fn failed(call: &str) -> Error {
    Error::new(Code::IoError, format!("`{call}` failed")).because("the seed wants it")
}

/// How long a device may take to answer, and how often it is looked at meanwhile.
const PATIENCE: u32 = 400;
const LOOK: Duration = Duration::from_millis(50);

/// Waits until `is_silent` is not so any more. False: that took too long.
pub(super) async fn answers(is_silent: impl Fn() -> bool) -> bool {
    for _ in 0..PATIENCE {
        if !is_silent() {
            return true;
        }
        sleep(LOOK).await;
    }
    false
}
