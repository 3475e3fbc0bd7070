//! Target and initiator together.

mod common;
mod flip;
mod integrity;
mod iwarp;
mod paths;
mod stored;
mod target;
