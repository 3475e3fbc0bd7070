//! A checker for any [`Provider`](weir_fabric::Provider): two peers talk at random over connections and verify everything.
//!
//! Checked are: messages whole, once and in order; WRITE data in place before the message behind it, and
//! not a byte beside it; READ data; keys dead when they should be; every request completed once and before
//! the connection's end is told; slots given back; local memory free after completion (it is overwritten
//! at once); wrong keys, ranges, rights and lengths ending the connection. What is wrong panics.
//!
//! The two peers may be on one reactor or on two, in one process or in two: they share nothing but what
//! goes over the wire. See the `fabric` suite for its use under simulation.

mod message;
mod peer;
mod session;

pub use peer::{Config, Figures, Peer};
pub use session::{Crime, Mode, Outcome};
