//! The initiator against the real target, over iWARP on loopback and in simulated worlds.

mod again;
mod common;
mod target;

mod cores;
mod events;
mod fair;
mod held_up;
mod hostile;
mod iwarp;
mod kept_out;
mod late;
mod paths;
mod peer;
mod raw;
mod script;
mod second;
mod set_up;
mod silent;
mod sim;
mod trouble;
mod two_ports;
mod units;
mod wrong_reads;
