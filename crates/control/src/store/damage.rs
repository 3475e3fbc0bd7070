//! Opening a store whose file is damaged.
//!
//! The database checks the sums of its pages, but only after it has followed a few of them; where such a page is rotten
//! it panics instead of giving an error. Here that becomes an error like any other: by unwinding where the build does
//! that, and by a panic hook where a panic aborts.

use super::{Code, Error, FILE, Result};
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};

thread_local! {
    static OPENING: Cell<bool> = const { Cell::new(false) };
}

fn damaged() -> Error {
    Error::new(Code::StoreUnusable, format!("the configuration store {FILE} is damaged"))
        .because("a page in it does not hold what was written")
        .hint("keep the file; `weir serve --restore-from` makes a store of config.json beside it, the last good state")
}

/// Runs `open`, and turns a panic in it into an error.
pub(super) fn guarded<T>(open: impl FnOnce() -> Result<T>) -> Result<T> {
    let before = OPENING.replace(true);
    let opened = panic::catch_unwind(AssertUnwindSafe(open));
    OPENING.set(before);
    opened.unwrap_or_else(|_| Err(damaged()))
}

/// For programs that abort on panic: from now on a panic while a store is being opened ends the process with the error
/// and its exit code instead. Other panics go on as before.
pub fn explain_damage() {
    let next = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if OPENING.get() && cfg!(panic = "abort") {
            let e = damaged();
            eprintln!("error: {}\n   why: {} ({info})\n    do: {}", e.message, e.reason, e.hint);
            std::process::exit(e.kind().exit_code().into());
        }
        next(info);
    }));
}
