//! The per-core executor that everything with time, disk or network in it runs on.
//!
//! One [`Reactor`] per core: a run queue of local tasks, timers, completion slots, a mailbox for other
//! cores, and a [`Driver`] that knows the operating system (`weir-uring`) or a simulated world
//! (`weir-sim`). Tasks are `!Send`; a wake-up on the same core touches no atomic.
//!
//! The asynchronous semaphore of S0 section V is [`WaitChannel`]. It is the one tool for mutexes,
//! resource pools, one-shot events and barriers.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]

mod call;
mod completion;
mod completion_queue;
mod contained;
mod driver;
mod executor;
mod local;
mod mailbox;
mod task;
mod timer;
mod unless;
mod wait_channel;

pub use call::call;
pub use completion::{Completion, CompletionFuture, Token, complete, completion};
pub use completion_queue::CompletionQueue;
pub use contained::{Panicked, contain_panics, contained, contained_future, vital};
pub use driver::{Driver, Machine, PollMode, Poller, Unpark};
pub use executor::{
    Figures, Reactor, cancel, clock, current_id, now, run_async, simulated, spawn, spawn_task,
    try_current_id,
};
pub use local::{get_local, get_part, local_or_default, remove_part, set_local, set_part};
pub use mailbox::{Handle, Progress, handle, send_to};
pub use task::{JoinHandle, TaskId};
pub use timer::{Elapsed, Overdue, Sleep, patience, sleep, sleep_until, timeout};
pub use unless::unless;
pub use wait_channel::{Units, Wait, WaitChannel};

use std::future::Future;
use std::pin::Pin;

/// A boxed future of one reactor; for control paths, never per I/O.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;
