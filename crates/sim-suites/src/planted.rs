//! Bugs on purpose: each is switched on and hunted with a suite's seeds until one catches it.

use crate::runner::once;
use crate::{Args, Run, Suite, Wrong, own};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use weir_control::planted as control;
use weir_fabric_iwarp::planted as iwarp;
use weir_initiator_brp::planted as bio;
use weir_initiator_srp::planted as sio;
use weir_layers::planted as layers;
use weir_mem::planted as mem;
use weir_proto_scsi::planted as scsi;
use weir_proto_srp::planted as wire;
use weir_remote::planted as remote;
use weir_store::planted as store;
use weir_target_brp::planted as brp;
use weir_target_core::planted as core;
use weir_target_iscsi::planted as iscsi;
use weir_target_nbd::planted as nbd;
use weir_target_srp::planted as srp;

/// One kind of bug per crate: its module of planted bugs, and what stands before their names.
macro_rules! crates_of_bugs {
    ($($kind:ident: $module:ident, $prefix:literal;)+) => {
        /// A bug of one of the crates.
        #[derive(Debug, Clone, Copy)]
        enum Bug {
            $($kind($module::Bug),)+
        }

        impl Bug {
            fn name(self) -> String {
                match self {
                    $(Bug::$kind(b) => format!(concat!($prefix, "{:?}"), b),)+
                }
            }
        }

        /// Switches one bug on for this thread, or all off.
        fn plant(bug: Option<Bug>) {
            $($module::plant(match bug {
                Some(Bug::$kind(b)) => Some(b),
                _ => None,
            });)+
        }
    };
}

crates_of_bugs! {
    Store: store, "";
    Layers: layers, "";
    Own: own, "";
    Control: control, "";
    Scsi: scsi, "";
    Mem: mem, "";
    Iwarp: iwarp, "Iwarp";
    Core: core, "";
    Srp: srp, "";
    Brp: brp, "";
    Iscsi: iscsi, "Iscsi";
    Nbd: nbd, "Nbd";
    Bio: bio, "";
    Sio: sio, "Srp";
    Wire: wire, "Wire";
    Remote: remote, "";
}

/// Bugs of the control plane that `node` is to catch.
const NODE: &[control::Bug] = &[
    control::Bug::InForceBeforeDurable,
    control::Bug::UndoneHalf,
    control::Bug::UndoneOnce,
    control::Bug::CutAmongChanges,
    control::Bug::CutThoughOwed,
    control::Bug::FaultsOfNothing,
    control::Bug::SizesUnrecorded,
    control::Bug::UnmadeOnce,
    control::Bug::GainedIsForgotten,
    control::Bug::MovedBehind,
    control::Bug::MadeIsForgotten,
    control::Bug::RefusedListens,
    control::Bug::CloseOnce,
    control::Bug::OpenedBesidePart,
    control::Bug::PoolsBeforeVolumes,
];

/// Bugs of one crate, without `others`.
fn but<B: Copy + PartialEq>(all: &[B], others: &[B], kind: fn(B) -> Bug) -> Vec<Bug> {
    all.iter().filter(|b| !others.contains(b)).map(|b| kind(*b)).collect()
}

impl Bug {
    /// Those that a suite is to catch.
    fn of(suite: &Suite) -> Vec<Bug> {
        match suite.name {
            // Hosts reserve nothing and have one port, units stay where they are, and nobody stands still beside others. What else
            // could be wrong in what runs here is seen by doors: above all what lands after a login or an abort. Ports that are
            // full, logins of hosts that crashed and reactors that stand still are for tests.
            "srp" => vec![
                Bug::Core(core::Bug::PassNotShown),
                Bug::Core(core::Bug::FenceOneReactor),
                Bug::Core(core::Bug::AnswersNotAwaited),
                Bug::Srp(srp::Bug::AbortAnsweredEarly),
                Bug::Srp(srp::Bug::ResetOwnOnly),
                Bug::Srp(srp::Bug::NexusStays),
            ],
            // The same; and nobody ends commands of others. Disks neither fail, which doors has them do, nor lose a cache, which
            // hosts has.
            // In worlds whose messages go by streams.
            "fabric" => but(iwarp::Bug::ALL, &[], Bug::Iwarp),
            "brp" => vec![
                Bug::Brp(brp::Bug::RepliesStay),
                Bug::Brp(brp::Bug::DoneIsRunAgain),
                Bug::Brp(brp::Bug::DrainSkipped),
                Bug::Bio(bio::Bug::ResentAsNew),
            ],
            "remote" => {
                let mut all = but(remote::Bug::ALL, &[], Bug::Remote);
                all.push(Bug::Bio(bio::Bug::LostCacheNotTold));
                all
            }
            "doors" => [
                but(scsi::Bug::ALL, &[], Bug::Scsi),
                but(core::Bug::ALL, core::Bug::TESTS, Bug::Core),
                but(mem::Bug::ALL, mem::Bug::TESTS, Bug::Mem),
                but(srp::Bug::ALL, srp::Bug::TESTS, Bug::Srp),
                // Brp sees these two in hundreds of seeds, doors in ten thousand.
                but(
                    brp::Bug::ALL,
                    &[brp::Bug::TESTS, &[brp::Bug::DrainSkipped, brp::Bug::RepliesStay]].concat(),
                    Bug::Brp,
                ),
                vec![Bug::Bio(bio::Bug::ResentAsNew)],
            ]
            .concat(),
            "tcp" => {
                [but(nbd::Bug::ALL, &[], Bug::Nbd), but(iscsi::Bug::ALL, &[], Bug::Iscsi)].concat()
            }
            "hosts" => [
                but(bio::Bug::ALL, &[bio::Bug::TESTS, &[bio::Bug::ResentAsNew]].concat(), Bug::Bio),
                but(sio::Bug::ALL, sio::Bug::TESTS, Bug::Sio),
                but(wire::Bug::ALL, wire::Bug::TESTS, Bug::Wire),
            ]
            .concat(),
            "store" => [
                but(store::Bug::ALL, &[store::Bug::TESTS, store::Bug::PAIR].concat(), Bug::Store),
                but(layers::Bug::COMPRESS, &[], Bug::Layers),
                vec![Bug::Own(own::Bug::OpenDoesNotWait)],
            ]
            .concat(),
            "pair" => but(store::Bug::PAIR, &[], Bug::Store),
            // Most of the others are about what it does not do yet: declare, import, migrate, encrypt, and many nodes.
            "node" => NODE.iter().map(|b| Bug::Control(*b)).collect(),
            "migrate" => but(layers::Bug::MIGRATE, &[], Bug::Layers),
            _ => Vec::new(),
        }
    }
}

/// The bugs that no suite can catch, by the packages whose tests are to do it.
pub fn of_tests() -> Vec<(&'static str, String)> {
    let mut all = Vec::new();
    macro_rules! add {
        ($($package:literal: $module:ident;)+) => {
            $(all.extend($module::Bug::TESTS.iter().map(|b| ($package, format!("{b:?}"))));)+
        };
    }
    add! {
        "weir-mem": mem;
        "weir-store": store;
        "weir-layers": layers;
        "weir-target-core": core;
        "weir-target-srp": srp;
        "weir-target-brp": brp;
        "weir-initiator-brp": bio;
        "weir-initiator-srp": sio;
        "weir-proto-srp": wire;
    }
    all
}

/// What came of one bug.
struct Quarry {
    bug: Bug,
    /// Seeds run.
    seeds: u64,
    /// The lowest seed that caught it among those that ran, and what it saw.
    caught: Option<(u64, String)>,
}

/// What was caught and what was missed.
pub struct Hunt(Vec<Quarry>);

impl Hunt {
    /// Bugs that no seed caught.
    pub fn missed(&self) -> usize {
        self.0.iter().filter(|q| q.caught.is_none()).count()
    }
}

impl std::fmt::Display for Quarry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (bug, seeds) = (self.bug.name(), self.seeds);
        match &self.caught {
            Some((seed, what)) => {
                let line = what.lines().next().unwrap_or("");
                writeln!(f, "caught {bug} with seed {seed} of {seeds}: {line}")
            }
            None => writeln!(f, "MISSED {bug} in {seeds} seeds"),
        }
    }
}

impl std::fmt::Display for Hunt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|q| write!(f, "{q}"))?;
        let caught = self.0.len() - self.missed();
        writeln!(f, "planted bugs: {caught} caught, {} missed", self.missed())
    }
}

/// Hunts the bug with this name, or all.
///
/// # Errors
/// The suite has no such bug.
pub fn hunt(suite: &Suite, args: &Args, name: &str) -> Result<Hunt, String> {
    let wanted = |b: &Bug| name == "all" || b.name().eq_ignore_ascii_case(name);
    let bugs: Vec<Bug> = Bug::of(suite).into_iter().filter(wanted).collect();
    if bugs.is_empty() {
        let all: Vec<_> = Bug::of(suite).into_iter().map(Bug::name).collect();
        if all.is_empty() {
            return Err(format!("no bugs are planted in what {} runs", suite.name));
        }
        return Err(format!("no planted bug {name}; there are {}", all.join(", ")));
    }
    crate::runner::catch_panics();
    let told = |bug| {
        let quarry = one(suite, args, bug);
        // A hunt for all of them takes long.
        if name == "all" {
            eprint!("{quarry}");
        }
        quarry
    };
    Ok(Hunt(bugs.into_iter().map(told).collect()))
}

fn one(suite: &Suite, args: &Args, bug: Bug) -> Quarry {
    let (next, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let caught: Mutex<Option<(u64, String)>> = Mutex::new(None);
    std::thread::scope(|s| {
        for _ in 0..args.jobs {
            s.spawn(|| {
                plant(Some(bug));
                while !over.load(Ordering::Relaxed) {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= args.seeds {
                        break;
                    }
                    let seed = args.start.wrapping_add(n);
                    let run = Run { seed, words: args.words };
                    if let Err(Wrong(what)) = once(suite, run) {
                        over.store(true, Ordering::Relaxed);
                        let mut c = caught.lock().unwrap_or_else(|e| e.into_inner());
                        if c.as_ref().is_none_or(|(s, _)| *s > seed) {
                            *c = Some((seed, what));
                        }
                    }
                }
                plant(None);
            });
        }
    });
    let caught = caught.into_inner().unwrap_or_else(|e| e.into_inner());
    Quarry { bug, seeds: next.into_inner().min(args.seeds), caught }
}
