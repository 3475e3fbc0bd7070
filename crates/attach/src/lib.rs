//! A volume as a disk of this host.
//!
//! | | |
//! |---|---|
//! | [`disk`] | the contract: what the kernel asks for, and whoever does it |
//! | [`reach`], [`volume`] | a volume behind the initiators; what fails because of the way to it is done again |
//! | [`fuse`] | a file of the volume's size, of which the kernel's loop device makes a disk |
//! | [`nbd`] | a disk of the kernel's driver for network block devices, on sockets to this process |
//! | [`ublk`] | a disk of the kernel's driver for block devices in user space |
//! | [`attachment`], [`mod@detach`] | from the making of a disk to its end |
//! | [`state`] | the files that an attachment is known by, also after its process was killed |
//! | [`signals`] | what asks an attachment to end |
//! | [`port`] | the claim of an initiator port on this machine |
//! | [`workers`] | the reactors, one queue of the kernel's each |
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod aside;
pub mod attachment;
pub mod detach;
pub mod disk;
pub mod error;
pub mod fuse;
mod given_up;
mod host;
pub mod nbd;
pub mod port;
pub mod reach;
pub mod signals;
pub mod state;
mod sys;
pub mod ublk;
pub mod volume;
mod whose;
pub mod workers;

pub use sys::{close_stdout, is_root, leave_session};
