//! An exhaustive model of two pair machines: the very structs that a daemon is to run, over the worst register allowed.
//! Messages and commands are late, lost, or come in any order. Nodes stop for any time and go on, or crash and start anew. One
//! clock runs at up to twice the rate of the other.
//!
//! `cargo xtask model pair --states N` looks at N states, in all scopes together. Here it is fewer.
//!
//! What the world promises the machines, and a daemon must keep: a command reaches only the life of the other node that let its
//! session in; what a node that crashed had begun at its own device has ended before its next life opens; a session that is
//! filled has nothing older under way in it; time is read after what it is given with.

mod scope;
mod search;
mod step;
mod world;

use scope::SCOPES;
use search::{search, wander};

/// States that are looked at in each scope, in the short form.
const SHORT: usize = 15_000;

/// Where a planted bug is looked for, and in how many states: in the scope that it is known to need if it is far from the
/// beginning, else in small parts of all of them before larger ones.
#[cfg(feature = "planted")]
fn places(bug: weir_proto_cluster::planted::Bug) -> Vec<(&'static scope::Scope, usize)> {
    use weir_proto_cluster::planted::Bug;
    let far = match bug {
        Bug::GateTrustsItself | Bug::EngineBesideGate => "start",
        Bug::GrantByOwner | Bug::LeaseFromReceipt => "take-over",
        Bug::ReadmitOverOldSession => "drop",
        Bug::DriftForgotten => "rates",
        Bug::StaleReadBelieved | Bug::DutiesWhenProposed => "partner",
        Bug::ServeBeforeDrop | Bug::GrantForgottenAtStart => "crash",
        Bug::GrantOfOldEpoch => "again",
        _ => "",
    };
    match SCOPES.iter().find(|s| s.name == far) {
        Some(scope) => vec![(scope, 2_000_000)],
        None => [5_000, 50_000, 500_000]
            .into_iter()
            .flat_map(|limit| SCOPES.iter().map(move |s| (s, limit)))
            .collect(),
    }
}

#[test]
fn no_state_breaks_a_promise() {
    let wanted = std::env::var("WEIR_MODEL_STATES").ok().map(|n| n.parse().expect("a number"));
    let total: usize = wanted.unwrap_or(SHORT * SCOPES.len());
    let (mut states, mut steps, mut by_chance, mut wrong) = (0, 0, 0, 0);
    let only = std::env::var("WEIR_MODEL_SCOPE").ok().filter(|o| !o.is_empty());
    for (n, scope) in SCOPES.iter().enumerate() {
        if only.as_ref().is_some_and(|o| o != scope.name) {
            continue;
        }
        // What a small scope leaves over is for the others.
        let share = match only {
            Some(_) => total,
            None => {
                let left: usize = SCOPES[n..].iter().map(|s| s.weight).sum();
                (total.saturating_sub(states) * scope.weight).div_ceil(left)
            }
        };
        let (start, rules) = scope.begin();
        let found = search(&start, &rules, share);
        let extent = if found.all { "all of them" } else { "cut" };
        println!(
            "{}: {} states ({extent}), {} steps, histories of up to {} steps",
            scope.name, found.states, found.steps, found.depth
        );
        let (start, rules) = scope.begin_widely();
        let histories = (share / 40).max(1) as u64;
        let far = wander(&start, &rules, histories, 120);
        println!("    and {histories} by chance, {} steps, up to {} each", far.steps, far.depth);
        for (what, history) in found.wrong.iter().chain(&far.wrong) {
            println!("VIOLATION in {}: {what}", scope.name);
            history.iter().for_each(|s| println!("    {s:?}"));
            wrong += 1;
        }
        by_chance += far.steps;
        states += found.states;
        steps += found.steps;
    }
    println!("{states} states, {steps} steps, {by_chance} steps by chance, {wrong} violations");
    assert_eq!(wrong, 0, "a promise is broken: see above");
}

#[cfg(feature = "planted")]
#[test]
fn every_planted_bug_is_caught() {
    use weir_proto_cluster::planted::{Bug, plant};
    if std::env::var("WEIR_PLANTED").is_ok() {
        return;
    }
    let only = std::env::var("WEIR_MODEL_PLANTED").ok().filter(|b| b != "all");
    let mut missed = Vec::new();
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    for bug in Bug::ALL {
        let name = format!("{bug:?}");
        if only.as_ref().is_some_and(|b| !b.eq_ignore_ascii_case(&name)) {
            continue;
        }
        let (mut states, mut caught) = (0, false);
        for (scope, limit) in places(*bug) {
            // A scope begins with what goes well; there no bug shows.
            let (start, rules) = scope.begin();
            plant(Some(*bug));
            let found = search(&start, &rules, limit);
            plant(None);
            states += found.states;
            if let Some((what, history)) = found.wrong {
                let (steps, scope) = (history.len(), scope.name);
                println!("caught {name} in {scope} after {states} states, {steps} steps: {what}");
                if only.is_some() {
                    history.iter().for_each(|s| println!("    {s:?}"));
                }
                caught = true;
                break;
            }
        }
        if !caught {
            println!("MISSED {name} in {states} states");
            missed.push(name);
        }
    }
    std::panic::set_hook(quiet);
    println!("planted bugs: {} missed", missed.len());
    assert!(missed.is_empty(), "missed: {missed:?}");
}
