//! The initiator against the real target, over iWARP on loopback and in simulated worlds.

mod target;

mod iwarp;
