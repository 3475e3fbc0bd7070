//! Target and initiator together.

mod common;
mod iwarp;
mod sim;
mod target;
