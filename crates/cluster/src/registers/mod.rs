//! The replicated registers: for each pool a small value that says who owns it, changed by compare-and-set.
//!
//! An engine keeps them. It promises three things, and no more:
//!
//! * [`read`](Registers::read) is linearizable: it gives a value that stood between the call and its answer.
//! * [`change`](Registers::change) puts a value in only if the version before it stands at that moment.
//! * Doubt is told as doubt. A time-out or a lost leader is never taken for a failure: [`Changed::InDoubt`].
//!
//! A change names its writer (node, life, number) in the value, so the register itself tells what became of it.
//! [`settle()`] asks until that is known.
//!
//! Versions count the changes of one register from 1, and are part of the value. The value that takes the place of
//! version `v` has version `v + 1`. So a given change can happen at one place of the order only, however often it is
//! asked for.

pub mod etcd;
pub mod history;
pub mod raft;
mod settle;
mod state;
pub mod text;
pub mod worst;

pub use settle::{Settled, Verdict, judge, settle};
pub use state::State;

use core::future::Future;
use thiserror::Error;
pub use weir_proto_cluster::{Register, Version};

/// Number of a pool.
pub type Pool = u128;

/// A version and the register that has it.
pub type Standing = (Version, Register);

/// What became of an attempt to change a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// It happened: the register had this version, and this value, at a moment between the call and its answer.
    Done(Version),
    /// It did not happen and will not by this attempt: this stood instead. `None`: there is no such register.
    ///
    /// An attempt before it with the same value may have happened, if that one was in doubt.
    Other(Option<Standing>),
    /// Nobody knows. It has happened, or will, or will not; [`settle()`] finds out.
    ///
    /// Told also when no majority was there to ask, as a caller must do the same in both cases.
    InDoubt,
    /// It was not asked for, since the value cannot follow what was expected.
    Refused(Refused),
}

/// Why a value cannot take the place of what is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Refused {
    /// Its version is not one more than that expected, or not 1 where none is expected.
    #[error("the new register's version does not follow the one expected")]
    Version,
    /// It is the register of another pool.
    #[error("the new register is of another pool")]
    Pool,
}

/// Why a register could not be read. Nothing is known then, not even what was read before still stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ReadError {
    /// No majority of the voters answered in time.
    #[error("no majority of the voters answered in time")]
    NoMajority,
    /// What the engine keeps in this place is no register that this program knows.
    #[error("what is kept in the place of the register is none")]
    Garbled,
    /// The engine of this node has ended, as after an error of its disk.
    #[error("the engine of the registers has ended on this node")]
    Ended,
}

/// Replicated registers.
///
/// All calls may be dropped at any time. A change that was dropped is one in doubt.
pub trait Registers: Send + Sync {
    /// The register of `pool` as it stood at a moment between call and answer; `None` if there is none.
    ///
    /// # Errors
    /// No majority answered in time, or the engine has ended.
    fn read(&self, pool: Pool) -> impl Future<Output = Result<Option<Standing>, ReadError>> + Send;

    /// Makes `value` the register of `pool`, if `expected` is the version that stands (`None`: there is none yet).
    fn change(
        &self,
        pool: Pool,
        expected: Option<Version>,
        value: Register,
    ) -> impl Future<Output = Changed> + Send;

    /// Waits until this node knows of a version newer than `than`, or of any. `None`: the engine has ended.
    ///
    /// This is a hint: it may come late, and what it tells may be over. It never tells what did not stand.
    fn newer(
        &self,
        pool: Pool,
        than: Option<Version>,
    ) -> impl Future<Output = Option<Standing>> + Send;
}

/// Whether `value` can take the place of `expected` as the register of `pool`.
///
/// # Errors
/// It cannot, whatever stands.
pub fn follows(pool: Pool, expected: Option<Version>, value: &Register) -> Result<(), Refused> {
    let next = expected.map_or(Some(1), |v| v.0.checked_add(1));
    if next != Some(value.version.0) {
        return Err(Refused::Version);
    }
    if value.pool != pool {
        return Err(Refused::Pool);
    }
    Ok(())
}
