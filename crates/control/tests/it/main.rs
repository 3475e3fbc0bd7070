//! The control plane against a data plane that only remembers, and the store against crashes.

mod closed;
mod controller;
mod crash;
mod fake;
mod full;
mod half_added;
mod half_closed;
mod half_kept;
mod hung_pool;
mod import_hosts;
mod leftovers;
mod let_go;
mod lost_place;
mod newer;
mod no_leave;
mod numbers;
mod open_once;
mod owed;
mod power_cut;
mod refused;
mod rest;
mod retried;
mod same_volume;
mod shrink;
mod stale_place;
mod support;
