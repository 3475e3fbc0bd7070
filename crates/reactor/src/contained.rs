//! Panics that end a connection instead of the program.
//!
//! A program with many hosts should not go down for what one of them says. Where [`contain_panics`] has been called, a
//! panic of what runs in [`contained`] comes back as an error to whoever runs it, who then ends that connection. It ends
//! the process everywhere else, and in what a contained part runs as [`vital`]: what several connections share, and what
//! keeps data. A panic there says that an invariant does not hold, and then nothing is safer than a restart.
//!
//! Without [`contain_panics`] (tests, simulation) a panic is a panic, so that no suite passes over one.

use std::any::Any;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

static ON: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// What runs now may panic.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// What a contained part said when it panicked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Panicked(String);

impl std::fmt::Display for Panicked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Panicked {
    fn of(payload: &(dyn Any + Send)) -> Panicked {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        Panicked(text.unwrap_or("a panic without words").to_owned())
    }
}

/// Sets what was before again, also while it unwinds.
struct Back(bool);

impl Drop for Back {
    fn drop(&mut self) {
        INSIDE.set(self.0);
    }
}

/// From here on every panic that is not contained, on whatever thread, calls `end` (which aborts the process), and contained
/// ones are errors. `tell` says what has happened, without waiting for anybody; where it does not (false), the usual hook does, which
/// waits for standard error. To be called once, before threads are started.
pub fn contain_panics(tell: fn(&PanicHookInfo<'_>) -> bool, end: fn() -> !) {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !tell(info) {
            usual(info);
        }
        // Before anything unwinds: nobody sees what is half done.
        if !INSIDE.get() {
            end();
        }
    }));
    ON.store(true, Ordering::Relaxed);
}

/// Runs what may panic without harm to others: what it has borrowed of theirs it leaves as it found it, or they end too.
///
/// # Errors
/// It has panicked, and this process [contains](contain_panics) that.
#[inline]
pub fn contained<R>(f: impl FnOnce() -> R) -> Result<R, Panicked> {
    if !ON.load(Ordering::Relaxed) {
        return Ok(f());
    }
    let _back = Back(INSIDE.replace(true));
    catch_unwind(AssertUnwindSafe(f)).map_err(|p| Panicked::of(&*p))
}

/// As [`contained`], for a future. One that is large and made often is given pinned (`pin!`): it is not moved then.
///
/// # Errors
/// As for [`contained`]. What the future held has been dropped by then.
pub async fn contained_future<F: Future>(future: F) -> Result<F::Output, Panicked> {
    let mut future = pin!(future);
    poll_fn(move |cx| match contained(|| future.as_mut().poll(cx)) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(v)) => Poll::Ready(Ok(v)),
        Err(p) => Poll::Ready(Err(p)),
    })
    .await
}

/// Runs what must not panic, as a part of what may: a panic of it ends the process.
#[inline]
pub fn vital<R>(f: impl FnOnce() -> R) -> R {
    if !INSIDE.get() {
        return f();
    }
    let _back = Back(INSIDE.replace(false));
    f()
}
