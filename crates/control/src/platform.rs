//! What the control plane has of the machine: tasks, time, work that blocks, the calendar and chance.
//!
//! Tokio and the operating system give them. Under simulation the reactor does, on which the controller runs then: time is
//! virtual, chance is the seed's, and nothing blocks. What waits for other tasks only ([`tokio::sync`]) is the same in both.

use std::io::Read;
use std::ops::{Add, Sub};
use std::pin::pin;
use std::sync::LazyLock;
use std::task::Poll;
use std::time::Duration;

mod tasks;
pub mod watch;

use tasks::Alarm;
pub use tasks::{AbortHandle, Broken, JoinHandle, JoinSet, spawn, spawn_blocking};

/// A moment of the clock that never goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

/// Instants are counted from a while before this, so that none is negative where tests set Tokio's clock.
static BEGIN: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
const BEFORE: Duration = Duration::from_secs(30 * 24 * 3600);

impl Instant {
    /// This moment.
    pub fn now() -> Instant {
        if is_simulated() {
            return Instant(Duration::from_nanos(weir_reactor::clock()));
        }
        let now = tokio::time::Instant::now().into_std();
        let since = now.saturating_duration_since(*BEGIN);
        Instant(BEFORE + since - BEGIN.saturating_duration_since(now))
    }

    /// Since then; nothing for one to come.
    pub fn elapsed(self) -> Duration {
        Instant::now().saturating_duration_since(self)
    }

    /// Since an earlier one; nothing since a later one.
    pub fn saturating_duration_since(self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, d: Duration) -> Instant {
        Instant(self.0.saturating_add(d))
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;
    fn sub(self, d: Duration) -> Instant {
        Instant(self.0.saturating_sub(d))
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

/// Whether this is a simulated reactor.
pub fn is_simulated() -> bool {
    weir_reactor::simulated(|_| ()).is_some()
}

/// Time since 1970.
pub fn calendar() -> Duration {
    weir_reactor::simulated(|m| m.calendar()).unwrap_or_else(|| {
        let now = std::time::SystemTime::now();
        now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
    })
}

/// Fills `out` from the machine's random source.
///
/// # Errors
/// It has none.
pub fn entropy(out: &mut [u8]) -> std::io::Result<()> {
    match weir_reactor::simulated(|m| m.entropy(out)) {
        Some(()) => Ok(()),
        None => std::fs::File::open("/dev/urandom")?.read_exact(out),
    }
}

/// The time was up.
#[derive(Debug, PartialEq, Eq)]
pub struct Elapsed;

/// Waits so long.
pub async fn sleep(d: Duration) {
    match is_simulated() {
        true => Alarm::after(d).await,
        false => tokio::time::sleep(d).await,
    }
}

fn nanos(d: Duration) -> u64 {
    d.as_nanos().try_into().unwrap_or(u64::MAX)
}

/// Runs `work` for at most so long, then drops it.
///
/// # Errors
/// It took longer.
pub async fn timeout<F: Future>(d: Duration, work: F) -> Result<F::Output, Elapsed> {
    let (mut work, mut late) = (pin!(work), pin!(sleep(d)));
    std::future::poll_fn(move |cx| match work.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Ok(done)),
        Poll::Pending => late.as_mut().poll(cx).map(|()| Err(Elapsed)),
    })
    .await
}

/// Runs `work` until then at most, and drops it.
///
/// # Errors
/// It took longer.
pub async fn timeout_at<F: Future>(until: Instant, work: F) -> Result<F::Output, Elapsed> {
    timeout(until.saturating_duration_since(Instant::now()), work).await
}
