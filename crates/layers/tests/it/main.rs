//! Leaves and layers. One program, so that it links once; what counts allocations is a program of its own.

#[path = "../common/mod.rs"]
mod common;
mod compress;
mod dedup;
mod disk;
mod docs;
mod encrypt;
mod faults;
mod files;
mod graphs;
mod live;
mod losses;
#[path = "../common/medium.rs"]
mod medium;
mod model;
