//! How fast jobs go on: every look at one, by whoever asks and once a second, is noted.

use super::Controller;
use crate::live::{Pace, PoolLive, ScrubLive};
use crate::platform::Instant;
use std::sync::PoisonError;

/// Bytes of a block of a protected pool.
const BLOCK: u64 = 4096;

impl Controller {
    /// Notes how far a job is, and gives its pace.
    pub(super) fn pace(&self, job: &str, done: u64, total: u64) -> Pace {
        let mut paces = self.paces.lock().unwrap_or_else(PoisonError::into_inner);
        paces.see(job, done, total, Instant::now())
    }

    /// The paces of what is under way in pools.
    pub(super) fn pace_pools(&self, pools: &mut [PoolLive]) {
        for p in pools {
            if let Some(w) = &mut p.work {
                let job = format!("work/{}/{}/{}", p.name, w.work, w.device);
                w.pace = self.pace(&job, w.done, w.total);
            }
            if let Some(s) = &mut p.scrub {
                self.pace_scrub(&p.name, s);
            }
        }
    }

    /// The pace of a scrub of a pool.
    pub(super) fn pace_scrub(&self, pool: &str, s: &mut ScrubLive) {
        if s.state == "running" {
            let (done, total) = (s.blocks.saturating_mul(BLOCK), s.of_blocks.saturating_mul(BLOCK));
            s.pace = self.pace(&format!("scrub/{pool}"), done, total);
        }
    }
}
