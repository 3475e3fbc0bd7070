//! The engine that is built in: the registers in a state machine of openraft, replicated among voters.
//!
//! A [`Voter`] is one of them, on one node. It keeps log, vote, snapshot and registers in one [`File`], durable before
//! anything is answered, and asks the others by way of [`Peers`]: [`tcp`] for real, anything else in tests.
//!
//! # Identity
//!
//! A voter has an [`Identity`], a random number that its file is made with. The others know it by that number, not by
//! its node or address. What a voter has promised (its vote, its log) is in the file. So a node that has lost its file
//! must not speak under the old identity: it would break promises that others count on.
//!
//! It cannot. [`File::open`] makes no file. [`File::create`] makes one with another identity, which is no member: its
//! vote counts for nobody, and what is meant for the old one is refused, since each request names the identity that it is
//! for. That somebody *joined before* is written down where it cannot be lost with the file: in the membership that the
//! others keep. The new identity comes in, and the old one goes, by [`Voter::replace`] at the leader.
//!
//! A file that is put back from an old copy looks like the true one. Nothing here can tell; it must not be done.
//!
//! # Beginning
//!
//! Each node makes its file. One of them, told all identities, calls [`Voter::form`] once. It is refused unless every
//! one of them answers that it is empty, so a cluster that exists is never formed again with part of its members.
//!
//! # Reads and changes
//!
//! A read goes to the leader, which asks a majority whether it still is one, and waits until its copy has all that was
//! decided by then (read-index). A change goes to the leader, too. If its answer does not come, or comes from who has
//! lost the lead, it is in doubt: an entry of the log may still be decided by the next leader. Only what was certainly
//! not handed to the engine is tried again.

mod error;
mod file;
mod log;
mod machine;
mod network;
pub mod peers;
pub mod tcp;
#[cfg(test)]
mod tests;
mod types;
mod voter;

pub use error::{FormError, ReplaceError, StartError};
pub use file::{File, FileError};
pub use peers::{PeerError, Peers};
pub use types::{Identity, Member};
pub use voter::{Known, Times, Voter};
