//! Commands: what a CDB asks for, decoded once, without allocation and without shared state.
//!
//! [`table`] holds every command that Weir knows, with the bits of its CDB that are evaluated.
//! Decoding ([`decode`]) and REPORT SUPPORTED OPERATION CODES both read that one table, so they
//! cannot disagree.

mod access;
mod command;
mod decode;
pub mod table;

pub use access::AccessClass;
pub use command::{
    ByteCheck, Command, ControlCommand, FormatList, ModeForm, ModePages, PrIn, PrOut, StartStop,
};
pub use decode::decode;

#[cfg(test)]
mod tests;
