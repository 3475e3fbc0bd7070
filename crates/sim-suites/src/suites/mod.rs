//! The suites.

mod brp;
mod canary;
mod disk;
mod doors;
mod fabric;
mod hosts;
mod migrate;
mod node;
mod pair;
mod reactor;
mod remote;
mod scene;
mod srp;
mod store;
mod tcp;

use crate::{Pass, Run, Wrong};

/// A program to run under many seeds.
pub struct Suite {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What it shows.
    pub about: &'static str,
    /// Must fail: it has planted bugs, for the proof of the others.
    pub planted: bool,
    /// Runs it under one seed.
    pub run: fn(&Run) -> Result<Pass, Wrong>,
}

/// All there are.
pub const SUITES: &[Suite] = &[
    Suite {
        name: "reactor",
        about: "tasks, semaphores, timers, cancels and mailboxes of a node with several cores",
        planted: false,
        run: reactor::run,
    },
    Suite {
        name: "fabric",
        about: "two-sided traffic over connections that abort, are cut and partitioned, and of peers that break rules",
        planted: false,
        run: fabric::run,
    },
    Suite {
        name: "disk",
        about: "concurrent I/O on disks with volatile caches through kills and power cuts, against block histories",
        planted: false,
        run: disk::run,
    },
    Suite {
        name: "srp",
        about: "hosts and an SRP target through aborts, resets, cuts, duplicate logins and deaths, with verified data",
        planted: false,
        run: srp::run,
    },
    Suite {
        name: "brp",
        about: "hosts and a BRP target through cuts, partitions and deaths: verified data, every compare and write once",
        planted: false,
        run: brp::run,
    },
    Suite {
        name: "doors",
        about: "a node with three ports: reservations, preemption, resets and unmapping among hosts with several paths",
        planted: false,
        run: doors::run,
    },
    Suite {
        name: "tcp",
        about: "a volume by iSCSI and NBD at once: cuts between any two bytes, deaths of hosts and target, changes of the access map",
        planted: false,
        run: tcp::run,
    },
    Suite {
        name: "hosts",
        about: "Weir's initiators before lost power, numbers that change hands, few credits and commands given up",
        planted: false,
        run: hosts::run,
    },
    Suite {
        name: "store",
        about: "pools of redirect-on-write volumes through crashes, damage, lost devices, snapshots and want of space",
        planted: false,
        run: store::run,
    },
    Suite {
        name: "remote",
        about: "a mirror of a disk and a volume of another node, through deaths of both, cuts and partitions: nothing is lost, and it comes back",
        planted: false,
        run: remote::run,
    },
    Suite {
        name: "pair",
        about: "a pool of two nodes: owners die, stand still and are cut off, the other takes over; each alone has everything in the end",
        planted: false,
        run: pair::run,
    },
    Suite {
        name: "migrate",
        about: "volumes that move under I/O, through faults of both sides, cancels, failed commits and crashes",
        planted: false,
        run: migrate::run,
    },
    Suite {
        name: "node",
        about: "a node's control plane through kills in the midst of changes, calls that fail, bad devices and a full disk",
        planted: false,
        run: node::run,
    },
    Suite {
        name: "canary-fabric",
        about: "providers with a planted bug each, for the proof of the fabric checker: must fail",
        planted: true,
        run: fabric::planted,
    },
    Suite {
        name: "canary",
        about: "programs with a planted bug each, for the proof of runner and simulator: must fail",
        planted: true,
        run: canary::run,
    },
];
