//! What runs commands of several hosts at once. One program, so that it links once.

#[path = "../common/mod.rs"]
mod common;
mod compare_and_write;
mod extents;
mod fence;
mod losses;
mod reservations;
mod threads;
