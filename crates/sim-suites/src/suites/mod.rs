//! The suites.

mod canary;
mod disk;
mod fabric;
mod reactor;

use crate::{Pass, Run, Wrong};

/// A program to run under many seeds.
pub struct Suite {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What it shows.
    pub about: &'static str,
    /// Runs it under one seed.
    pub run: fn(&Run) -> Result<Pass, Wrong>,
}

/// All there are.
pub const SUITES: &[Suite] = &[
    Suite {
        name: "reactor",
        about: "tasks, semaphores, timers, cancels and mailboxes of a node with several cores",
        run: reactor::run,
    },
    Suite {
        name: "fabric",
        about: "two-sided traffic over connections that abort, are cut and partitioned, and of peers that break rules",
        run: fabric::run,
    },
    Suite {
        name: "disk",
        about: "concurrent I/O on disks with volatile caches through kills and power cuts, against block histories",
        run: disk::run,
    },
    Suite {
        name: "canary",
        about: "planted bugs: a run that does not fail has found nothing (for the runner's own tests)",
        run: canary::run,
    },
];
