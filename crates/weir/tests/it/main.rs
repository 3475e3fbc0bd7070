//! The program itself, from outside. One program, so that it links once. Apart is what `cargo xtask` runs by name, what
//! has a harness of its own, and what sets a switch of `common` for its whole process (`dedup`).

mod applied;
mod attach;
mod attach_devices;
mod attach_elsewhere;
mod attach_local;
mod attach_shared;
mod attach_signals;
mod beside;
mod cli;
#[path = "../common/mod.rs"]
mod common;
mod compress;
mod declared_anew;
mod degraded;
mod descriptors;
mod devices;
mod encrypted;
mod events;
mod exchanged;
#[path = "../../../control/tests/it/fake.rs"]
mod fake;
mod growing;
mod growing_down;
mod hidden;
mod hung;
mod import;
mod late_data;
mod layers;
mod left_out;
mod loops;
mod lost_cache;
mod migrate;
mod nbd;
mod older;
mod partly_old;
mod policy;
mod progress;
mod protected;
mod quick;
mod refused_release;
mod releases;
mod remote_devices;
mod reservations;
mod said;
mod same_name;
mod secret;
mod shorter;
mod slow_files;
mod starting;
mod stopped_host;
mod stops;
mod suspended;
mod top;
mod truth;
mod two_paths;
