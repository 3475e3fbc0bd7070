//! Target and initiator together.

mod anything;
mod common;
mod ending;
mod fair;
mod flip;
mod full;
mod hostile;
mod integrity;
mod iwarp;
mod keyed;
mod left;
mod paths;
mod peer;
mod power;
#[path = "../../../initiator-srp/tests/it/raw.rs"]
mod raw;
mod registrations;
mod siblings;
mod slow_link;
mod stored;
mod target;
mod wrong_reads;
