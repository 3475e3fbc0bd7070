//! A volume of another node as a disk of this one: [`Remote`] is a [`weir_disk::Disk`] over BRP (docs/brp.md), which pools take as
//! a device.
//!
//! [`Returns`] has those come back that a pool has lost.
//!
//! A disk heals by itself: a session whose connection is lost makes a new one. Commands wait for that for [`PATIENCE`], and fail as
//! *offline* after it, until the volume is there again. What was acknowledged and not flushed may be lost when the other node loses
//! its power: the next flush fails then, once.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]

mod disk;
mod error;
pub mod planted;
mod returns;

pub use disk::{PATIENCE, Place, Remote};
pub use error::Error;
pub use returns::{LONGEST, LOOK, Reach, Returns};
