//! The initiator's side: CDBs to send, answers to read.

mod build;
mod parse;

pub use build::*;
pub use parse::*;

#[cfg(test)]
mod tests;
