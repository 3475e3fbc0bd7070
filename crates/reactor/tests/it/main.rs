//! What a reactor promises, seen from outside. One program, so that it links once.

mod common;
mod completions;
mod executor;
mod mailbox;
mod semaphore;
mod semaphore_model;
mod time;
mod time_model;
