//! What every SCSI front end shares: logical units, which initiator sees which, and the execution of
//! commands against volumes.
//!
//! A logical unit's state (reservations, unit attentions, mode pages) is one for all reactors and front ends
//! ([`UnitShared`], behind a lock taken for control commands only). Each reactor has its own [`Unit`] with its
//! own handle to the volume. Reads and writes are admitted by a copy of the rules that is valid as long as
//! one counter, read without a lock, has not moved.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]

mod access;
mod at_once;
mod attachment;
mod block_door;
mod comings;
mod counts;
pub mod doubts;
mod execute;
mod fence;
mod frontend;
mod gate;
mod keeping;
mod known;
mod linger;
mod losses;
mod media;
mod members;
mod pass;
pub mod planted;
mod seats;
pub mod spread;
mod transfer;
mod turn;
mod unit;
mod vital;

pub use access::{ADDRESS_KEY, Access, AccessMap, HostRule, Secret, address_key, initiator_key};
pub use at_once::AtOnce;
pub use attachment::Attachment;
pub use block_door::{CompareGuard, Refusal, WriteGuard};
pub use comings::Coming;
pub use counts::{Counted, Counts};
pub use execute::{Outcome, execute_unmapped};
pub use fence::{End, Link, PATIENCE, Whom};
pub use frontend::{ChannelLine, Frontend, NexusLine, PortSpec, RequestsLine, Site};
pub use pass::{Aside, Inside, Pass, Watch};
pub use seats::Seat;
pub use spread::{Receives, Spread};
pub use transfer::{Stop, Transfer};
pub use unit::{Attached, ReservationStore, Unit, UnitShared, Units};
