//! The pool store: redirect-on-write volumes over mirrored and striped devices.
//!
//! A [`Pool`] lives on one reactor, its home. Data and log entry of a write go to all halves at the same time; one
//! flush makes both durable; then the write takes effect in memory and is acknowledged. A checkpoint
//! merges what is in memory into the maps on disk. Recovery reads the log of all halves and decides by
//! checksum what was written.
//!
//! * [`mod@format`] — what is on the devices, sans-IO;
//! * `engine` — devices, space, log, layers, maps, checkpoints, recovery, healing, snapshots;
//! * [`dump`] — any block explained;
//! * [`policy`] — periodic snapshots as a decision without I/O;
//! * [`planted`] — bugs on purpose, for the proof of the tests.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]

pub mod dump;
mod engine;
pub mod format;
pub mod fuzzing;
pub mod planted;
pub mod policy;

pub use format::DataSum;

pub use engine::{
    Able, Arbiter, Counters, Damage, DatasetInfo, DeviceInfo, FIRST, Finding, LogEnd, Options,
    Owner, Place, Pool, PoolSpec, Progress, Repair, Report, ScrubReport, ScrubWatch, Status,
    StoreError, StoreVolume, Told, Whose, Work, check, check_watched, create, is_unreadable,
    label_of, log_end, repair, told_by,
};
