//! How long things take, or may take.

use weir_base::{MILLIS, Nanos, SECONDS};

/// Times of the pair machine, by the clock of the node, which runs on while the machine sleeps (`CLOCK_BOOTTIME`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Times {
    /// Between two beats.
    pub beat: Nanos,
    /// Silence after which the other is taken to be gone.
    pub suspicion: Nanos,
    /// So much longer the partner waits: on a cut link the owner wins the race as a rule.
    pub bias: Nanos,
    /// What an owner may count on from when it sent a beat that was answered.
    pub lease: Nanos,
    /// How much faster one node's clock may run than the other's, in millionths.
    pub drift: u32,
    /// What the partner waits longer, whatever the clocks.
    pub margin: Nanos,
    /// Within which the next owner takes what it is handed.
    pub hand_over: Nanos,
    /// After an opening that failed, and a session that did not come about.
    pub retry: Nanos,
    /// After which a partner that was dropped is taken back the first time.
    pub readmit: Nanos,
    /// The longest of these waits: each is twice the one before.
    pub readmit_max: Nanos,
    /// After so long without a drop the first wait is enough again.
    pub calm: Nanos,
    /// Two drops within this are a fault.
    pub flapping: Nanos,
    /// After which a pool goes back to its preferred node, when both are able.
    pub fail_back: Option<Nanos>,
}

impl Times {
    /// What a daemon uses.
    pub const USUAL: Times = Times {
        beat: 100 * MILLIS,
        suspicion: 500 * MILLIS,
        bias: 150 * MILLIS,
        lease: SECONDS,
        drift: 10_000,
        margin: 50 * MILLIS,
        hand_over: 5 * SECONDS,
        retry: 10 * SECONDS,
        readmit: 30 * SECONDS,
        readmit_max: 3600 * SECONDS,
        calm: 3600 * SECONDS,
        flapping: 60 * SECONDS,
        fail_back: Some(60 * SECONDS),
    };

    /// For how long a partner promises, by its own clock, when it answers a beat: a lease by the fastest clock allowed, and
    /// the margin (rule R7).
    pub fn grant(&self) -> Nanos {
        let drift = u128::from(self.lease) * u128::from(self.drift);
        let drift = Nanos::try_from(drift.div_ceil(1_000_000)).unwrap_or(Nanos::MAX);
        self.lease.saturating_add(drift).saturating_add(self.margin)
    }
}
