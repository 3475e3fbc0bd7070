//! What a simulated world promises, seen from outside.

mod disk;
mod fabric;
mod faults;
mod world;
