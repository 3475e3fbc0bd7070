//! An engine as real processes: three voters, clients beside each other, and one fault after another. Every history is
//! checked.
//!
//! `WEIR_REGISTERS_ENGINE` is `openraft` or `etcd`. `WEIR_REGISTERS_CYCLES` and `WEIR_REGISTERS_START` choose how many cycles there are, and which is the first; `cargo
//! xtask registers --cycles N` is the long form. A cycle's faults follow from its number, the times of processes do not.

mod clients;
mod net;
mod nodes;

use clients::Clients;
use net::NODES;
use nodes::{Engine, Nodes, PATIENCE};
use std::thread::sleep;
use std::time::{Duration, Instant};
use weir_base::Prng;
use weir_cluster::registers::Pool;
use weir_cluster::registers::history::{Op, Summary, Violation, What, check};

/// Cycles of the short form.
const SHORT: u64 = 4;
/// Clients of a cycle.
const CLIENTS: u32 = 5;
/// How long a node or a way is away, in ms.
const AWAY: (u64, u64) = (200, 1500);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Kill,
    KillTwo,
    KillAll,
    Stop,
    StopTwice,
    CutOut,
    CutIn,
    CutPair,
    CutOff,
}

const FAULTS: [Fault; 9] = [
    Fault::Kill,
    Fault::Stop,
    Fault::CutOff,
    Fault::CutOut,
    Fault::KillTwo,
    Fault::CutIn,
    Fault::StopTwice,
    Fault::CutPair,
    Fault::KillAll,
];

/// The faults that can be had here.
fn faults(nodes: &Nodes) -> Vec<Fault> {
    use Fault::{CutIn, CutOff, CutOut, CutPair};
    let cuts = |f: &Fault| matches!(f, CutOut | CutIn | CutPair | CutOff);
    FAULTS.into_iter().filter(|f| nodes.net.can_cut() || !cuts(f)).collect()
}

/// One cycle: what its clients saw.
fn cycle(nodes: &mut Nodes, number: u64, zero: Instant) -> (Fault, Vec<Op>) {
    let mut chance = Prng::new(number);
    let all = faults(nodes);
    let fault = all[(number % all.len() as u64) as usize];
    let pools = pools(number);
    let sockets: Vec<_> = (1..=NODES).map(|n| nodes.socket(n)).collect();
    let clients = Clients::start(CLIENTS, &sockets, &pools, zero, number);
    wait_for_work(nodes, pools[0]);
    sleep(Duration::from_millis(chance.between(50, 300)));
    // Whoever leads has the most to lose. Sometimes it is another one.
    let leader = nodes.leader().filter(|_| chance.chance(3, 4));
    let one = leader.unwrap_or(1 + chance.below(u64::from(NODES)) as u8);
    let next = one % NODES + 1;
    let others: Vec<u8> = (1..=NODES).filter(|n| *n != one).collect();
    let away = Duration::from_millis(chance.between(AWAY.0, AWAY.1));
    match fault {
        Fault::Kill => nodes.kill(one),
        Fault::KillTwo => [one, next].into_iter().for_each(|n| nodes.kill(n)),
        Fault::KillAll => (1..=NODES).for_each(|n| nodes.kill(n)),
        Fault::Stop => nodes.stop(one),
        Fault::StopTwice => {
            nodes.stop(one);
            sleep(away / 2);
            nodes.stop(next);
            nodes.go_on(one);
        }
        Fault::CutOut => others.iter().for_each(|n| nodes.net.cut(one, *n)),
        Fault::CutIn => others.iter().for_each(|n| nodes.net.cut(*n, one)),
        Fault::CutPair => {
            nodes.net.cut(one, next);
            nodes.net.cut(next, one);
        }
        Fault::CutOff => others.iter().for_each(|n| {
            nodes.net.cut(one, *n);
            nodes.net.cut(*n, one);
        }),
    }
    sleep(away);
    nodes.mend();
    wait_for_work(nodes, pools[0]);
    sleep(Duration::from_millis(chance.between(50, 300)));
    (fault, clients.end())
}

fn pools(number: u64) -> [Pool; 2] {
    [Pool::from(number) << 8, (Pool::from(number) << 8) + 1]
}

/// Until every node answers reads: a majority is there, and all reach it.
fn wait_for_work(nodes: &Nodes, pool: Pool) {
    let begin = Instant::now();
    for n in 1..=NODES {
        while nodes.ask(n, &format!("read {pool:x}")).starts_with("failed") {
            assert!(begin.elapsed() < PATIENCE, "no majority for {PATIENCE:?}, though all is well");
        }
    }
}

/// Reads a register of an earlier cycle once more: nothing of it may be lost.
fn look_back(nodes: &Nodes, number: u64, zero: Instant) -> Op {
    let pool = pools(number)[0];
    let now = || zero.elapsed().as_nanos() as u64;
    let begin = now();
    let answer = nodes.ask(1 + (number % u64::from(NODES)) as u8, &format!("read {pool:x}"));
    let end = now();
    let found = answer.strip_prefix("register ").map(|digits| {
        let r = weir_cluster::registers::text::read(digits).expect("a register");
        (r.version, r)
    });
    assert!(found.is_some() || answer == "none", "{answer}");
    Op { client: 99, pool, begin, end, what: What::Read(found) }
}

fn engine() -> Engine {
    match std::env::var("WEIR_REGISTERS_ENGINE").as_deref() {
        Ok("etcd") => Engine::Etcd,
        Err(_) | Ok("openraft") => Engine::Openraft,
        Ok(other) => panic!("no engine {other}"),
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|n| n.parse().expect("a number"))
}

fn add(total: &mut Summary, s: &Summary) {
    total.ops += s.ops;
    total.reads += s.reads;
    total.told += s.told;
    total.done += s.done;
    total.other += s.other;
    total.doubt_happened += s.doubt_happened;
    total.doubt_unseen += s.doubt_unseen;
    total.versions += s.versions;
}

/// Cycles until one is wrong, or all are over.
fn cycles(
    nodes: &mut Nodes,
    numbers: impl Iterator<Item = u64>,
    quiet: bool,
) -> (Summary, Vec<(u64, Violation)>) {
    let zero = Instant::now();
    let mut total = Summary::default();
    let mut wrong = Vec::new();
    let mut before: Option<(u64, Vec<Op>)> = None;
    for number in numbers {
        let (fault, ops) = cycle(nodes, number, zero);
        let mut found = check(&ops);
        if let (Ok(_), Some((n, mut old))) = (&found, before.take()) {
            old.push(look_back(nodes, n, zero));
            if let Err(violations) = check(&old) {
                found = Err(violations);
            }
        }
        match found {
            Ok(s) => {
                if !quiet {
                    let doubts = s.doubt_happened + s.doubt_unseen;
                    println!(
                        "cycle {number} passed: {fault:?}, {} operations, {} changes, {doubts} in doubt",
                        s.ops, s.done
                    );
                }
                add(&mut total, &s);
                before = Some((number, ops));
            }
            Err(violations) => {
                if !quiet {
                    println!("cycle {number} FAILED: {fault:?}");
                    violations.iter().take(10).for_each(|v| println!("    {v}"));
                }
                wrong.extend(violations.into_iter().map(|v| (number, v)));
            }
        }
        if quiet && !wrong.is_empty() {
            break;
        }
    }
    (total, wrong)
}

#[test]
fn registers_are_linearizable_through_faults() {
    if std::env::var("WEIR_REGISTERS_PLANTED").is_ok() {
        return;
    }
    let from = number("WEIR_REGISTERS_START").unwrap_or(0);
    let many = number("WEIR_REGISTERS_CYCLES").unwrap_or(SHORT);
    let begin = Instant::now();
    let mut nodes = Nodes::new(engine(), None);
    let place = if nodes.net.can_cut() { "namespaces" } else { "loopback, so no way can be cut" };
    println!("three voters of {:?} in network {place}", engine());
    let (total, wrong) = cycles(&mut nodes, from..from + many, false);
    println!("{many} cycles in {:.1} s: {total:?}", begin.elapsed().as_secs_f64());
    assert!(wrong.is_empty(), "{} violations: see above", wrong.len());
    // How many there are is a matter of the machine.
    assert!(total.done > many, "only {} changes were made", total.done);
}

/// Cycles in which a bug must be found.
#[cfg(feature = "planted")]
const UNTIL_CAUGHT: usize = 27;

#[cfg(feature = "planted")]
#[test]
fn every_planted_bug_is_caught() {
    use weir_cluster::planted::Bug;
    let Ok(only) = std::env::var("WEIR_REGISTERS_PLANTED") else { return };
    let mut missed = Vec::new();
    for bug in Bug::ALL.iter().filter(|bug| !Bug::TESTS.contains(bug)) {
        let name = format!("{bug:?}");
        if only != "all" && !only.eq_ignore_ascii_case(&name) {
            continue;
        }
        let mut nodes = Nodes::new(engine(), Some(&name));
        // Some show only where all are killed at once: the last kind of fault.
        let step = if Bug::KILLS.contains(bug) { faults(&nodes).len() } else { 1 };
        let numbers = (step as u64 - 1..).step_by(step).take(UNTIL_CAUGHT);
        let (total, wrong) = cycles(&mut nodes, numbers, true);
        match wrong.first() {
            Some((cycle, violation)) => println!("caught {name} in cycle {cycle}: {violation}"),
            None => {
                println!("MISSED {name} in {UNTIL_CAUGHT} cycles, {} operations", total.ops);
                missed.push(name);
            }
        }
    }
    assert!(missed.is_empty(), "missed: {missed:?}");
}
