//! In simulated worlds.
