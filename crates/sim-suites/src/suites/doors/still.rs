//! Runs in which one host stands still with much under way, and nothing else happens: others come to the end of their work.

use super::Play;
use crate::Wrong;
use weir_base::{MILLIS, Nanos, Prng, SECONDS};
use weir_sim::World;

/// How long the host stands still.
pub(super) const STILL: Nanos = 300 * SECONDS;
/// How long others have for all that they do.
const GOES_ON: Nanos = 60 * SECONDS;

/// Nobody loses patience, which would end its connections and give all back.
pub(super) fn stand_still(
    srp: &mut weir_target_srp::TargetConfig,
    brp: &mut weir_target_brp::TargetConfig,
) {
    (srp.probe_after, srp.terminate_timeout) = (2 * STILL, 2 * STILL);
    (brp.keep_alive, brp.session_timeout) = (2 * STILL, 2 * STILL);
    // As few as are enough for everybody to have some.
    brp.requests = 12;
}

impl Play {
    /// The first host stops in the midst of its work. Others come to the end of theirs all the same.
    pub(super) fn others_go_on(&self, w: &World, rng: &mut Prng) -> Result<(), Wrong> {
        let (first, others) = (&self.hosts[0], &self.hosts[1..]);
        w.run_for(rng.between(MILLIS, 20 * MILLIS));
        self.judge.disturbed();
        self.judge.delayed(0, STILL);
        self.judge.count("hosts that stood still beside others");
        first.machine.pause(STILL);
        let over = || others.iter().all(|h| h.running.get() == 0);
        w.run_until(GOES_ON, || self.judge.is_wrong() || over()).map_err(|s| {
            Wrong(format!(
                "a host that stands still keeps others from going on: {s}\n{}",
                self.node.census()
            ))
        })?;
        self.verdict()
    }
}
