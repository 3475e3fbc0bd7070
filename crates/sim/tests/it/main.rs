//! What a simulated world promises, seen from outside.

mod fabric;
mod faults;
mod world;
