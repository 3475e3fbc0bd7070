//! Ids, units, limits and the seeded generator that everything above shares.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]
#![forbid(unsafe_code)]

pub mod date;
pub mod names;
pub mod planted;
pub mod prng;
pub mod status;
pub mod unflushed;

pub use date::Date;
pub use prng::Prng;
pub use status::{IoError, IoResult};

/// Nanoseconds of a reactor's clock. The origin is arbitrary; under simulation it is virtual.
pub type Nanos = u64;

/// One microsecond.
pub const MICROS: Nanos = 1_000;
/// One millisecond.
pub const MILLIS: Nanos = 1_000_000;
/// One second.
pub const SECONDS: Nanos = 1_000_000_000;

/// Smallest unit of data protection and of snapshots, and the alignment of data buffers, in bytes (S2).
pub const BLOCK: usize = 4096;
