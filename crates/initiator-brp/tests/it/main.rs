//! Target and initiator together.

mod anything;
mod common;
mod ending;
mod fair;
mod flip;
mod full;
mod held_up;
mod hostile;
mod hung;
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
#[path = "../../../initiator-srp/tests/it/second.rs"]
mod second;
mod siblings;
mod slow_link;
mod stale;
mod stored;
mod target;
mod wrong_reads;
