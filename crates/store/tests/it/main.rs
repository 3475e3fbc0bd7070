//! Pools, on simulated devices. One program, so that it links once.

mod answered;
mod asked;
mod attaching;
#[path = "../common/bench.rs"]
mod bench;
mod beside;
mod closed;
#[path = "../common/mod.rs"]
mod common;
mod crafted;
mod damage;
mod devices;
mod doubted;
mod draining;
mod errors;
mod extents;
mod filling;
mod full;
mod instant;
mod keeper;
mod labels;
mod lacking;
mod last;
mod late;
mod leaving;
mod lines;
mod logs;
mod making;
mod missed;
mod no_echo;
mod older;
mod one_name;
mod pool;
mod protocol_model;
mod resizing;
mod restart;
mod resuming;
mod rot;
mod shredding;
mod silent;
mod taken_back;
mod told;
mod twice;
mod twins;
mod unread;
mod wrapped;
