//! Checkers that suites share. They do not depend on the simulation: any volume's and any provider's
//! tests can use them.

pub mod blocks;
pub mod fabric;
pub mod history;

pub use blocks::{Content, fill_block, read_block};
pub use history::{BlockHistory, Violation, WriteId};
