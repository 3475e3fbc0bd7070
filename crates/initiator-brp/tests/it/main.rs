//! Target and initiator together.

mod anything;
mod common;
mod fair;
mod flip;
mod hostile;
mod integrity;
mod iwarp;
mod keyed;
mod paths;
mod peer;
mod power;
mod registrations;
mod slow_link;
mod stored;
mod target;
