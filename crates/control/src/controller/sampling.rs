//! What is looked at once in a while: the counters, and what did not start or is not as it is declared.

use super::*;
use std::cell::Cell;

/// How often live counters are read, and how far apart the two readings behind a rate are at least.
const SAMPLE: Duration = Duration::from_secs(1);
/// How often objects that did not start are tried again, in samples.
const RETRY_SAMPLES: u32 = 5;

thread_local! {
    static EVERY: Cell<Duration> = const { Cell::new(SAMPLE) };
}

/// Controllers that this thread starts from now on look so often, instead of once a second, and try again what failed at each fifth
/// look. For tests, which would sleep most of their time.
pub fn sample_every(interval: Duration) {
    EVERY.set(interval);
}

/// How often a controller looks that this thread starts.
pub(super) fn every() -> Duration {
    EVERY.get()
}

impl Controller {
    async fn sample(&self) {
        // What is read must not be older than the configuration that is tidied by it.
        let one = self.changes.try_lock();
        if let Ok(mut live) = self.plane.status().await {
            self.count_damage(&mut live.pools);
            self.pace_pools(&mut live.pools);
            if one.is_ok() && !self.is_stopping() {
                self.close_rest().await;
                self.tidy_devices(&live).await;
                self.put_rules().await;
                self.put_records().await;
                self.look_at_store().await;
                if let Err(e) = self.see(&live).await {
                    tracing::warn!("who is logged in cannot be kept: {e}");
                }
            }
            drop(one);
            self.tell_damage(&live.pools);
            self.tell_faults(&live);
            // A store that is slow to write keeps nothing from being told.
            self.keep_damage(&live.pools).await;
            let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
            samples[0] = samples[1].take();
            samples[1] = Some((Instant::now(), live));
        }
    }
}

/// Reads the counters once in a while and now and then tries again what did not start, until the controller is gone.
pub(super) async fn sample_loop(controller: std::sync::Weak<Controller>) {
    let mut ticks = 0u32;
    loop {
        let Some(c) = controller.upgrade() else { return };
        c.sample().await;
        ticks = ticks.wrapping_add(1);
        let due = ticks.is_multiple_of(RETRY_SAMPLES);
        if c.has_opened() || due && (c.is_wanting() || c.has_declared_open()) {
            let one = c.changes.lock().await;
            c.bring_up().await;
            // Where devices were found is known before the daemon can be stopped.
            if let Ok(live) = c.plane.status().await
                && !c.is_stopping()
            {
                c.tidy_devices(&live).await;
            }
            drop(one);
            c.declare_again().await;
        }
        if due {
            c.retries.fetch_add(1, Ordering::Release);
        }
        let every = c.every;
        drop(c);
        sleep(every).await;
    }
}
