//! Where histories begin, and how much may happen in them.

use crate::step::Step;
use crate::world::{Budget, NOW, Rules, Run, World, node};

/// A part of all histories.
pub(crate) struct Scope {
    pub(crate) name: &'static str,
    start: fn(&mut World, &Rules),
    budget: Budget,
    /// Its share of the states that are looked at.
    pub(crate) weight: usize,
}

const NOTHING: Budget = Budget {
    writes: 0,
    crashes: 0,
    cuts: 0,
    doubts: 0,
    moves: 0,
    fails: 0,
    late_reads: false,
    rates: false,
    epochs: 30,
    versions: 60,
    sessions: 9,
};

/// All scopes. The bounds of writes, epochs and versions are relative to the beginning.
pub(crate) const SCOPES: &[Scope] = &[
    // Both nodes start, and nobody knows anything.
    Scope {
        name: "start",
        start: |_, _| {},
        budget: Budget { writes: 1, crashes: 1, epochs: 2, versions: 4, ..NOTHING },
        weight: 1,
    },
    // The partner takes over from an owner that is silent, or only seems to be.
    Scope {
        name: "take-over",
        start: serve_both,
        budget: Budget { writes: 1, epochs: 1, versions: 2, ..NOTHING },
        // All of it, as of the two after "rates".
        weight: 4,
    },
    // The same with clocks that differ.
    Scope {
        name: "rates",
        start: serve_both,
        budget: Budget { writes: 1, rates: true, epochs: 1, versions: 2, ..NOTHING },
        weight: 1,
    },
    // The partner is dropped; nobody takes over.
    Scope {
        name: "drop",
        start: serve_both,
        budget: Budget { writes: 2, cuts: 1, epochs: 0, versions: 2, ..NOTHING },
        weight: 1,
    },
    // The same with registers that do not tell.
    Scope {
        name: "drop-doubt",
        start: serve_both,
        budget: Budget {
            writes: 1,
            cuts: 1,
            doubts: 1,
            late_reads: true,
            epochs: 0,
            versions: 2,
            ..NOTHING
        },
        weight: 2,
    },
    // The partner is dropped and comes back; nobody takes over.
    Scope {
        name: "partner",
        start: serve_both,
        budget: Budget {
            writes: 2,
            cuts: 1,
            doubts: 1,
            late_reads: true,
            epochs: 0,
            versions: 3,
            ..NOTHING
        },
        weight: 1,
    },
    // The partner is out, comes back, and takes over.
    Scope {
        name: "alone",
        start: serve_alone,
        budget: Budget { writes: 1, cuts: 1, doubts: 1, epochs: 1, versions: 3, ..NOTHING },
        weight: 1,
    },
    // Registers that do not tell.
    Scope {
        name: "doubt",
        start: serve_both,
        budget: Budget {
            writes: 1,
            cuts: 1,
            doubts: 2,
            late_reads: true,
            epochs: 1,
            versions: 3,
            ..NOTHING
        },
        weight: 1,
    },
    // Nodes that end and start anew.
    Scope {
        name: "crash",
        start: serve_both,
        budget: Budget { writes: 1, crashes: 2, epochs: 2, versions: 4, ..NOTHING },
        weight: 1,
    },
    // The owner serves again after a start, and what was sent to its former life is still under way.
    Scope {
        name: "again",
        start: serve_again,
        budget: Budget { writes: 1, cuts: 1, epochs: 1, versions: 3, ..NOTHING },
        weight: 1,
    },
    // The pool goes to the other node.
    Scope {
        name: "move",
        start: serve_both,
        budget: Budget { writes: 1, cuts: 1, moves: 1, epochs: 2, versions: 4, ..NOTHING },
        weight: 1,
    },
    // Devices of a node fail.
    Scope {
        name: "devices",
        start: serve_both,
        budget: Budget { writes: 1, cuts: 1, fails: 1, epochs: 1, versions: 4, ..NOTHING },
        weight: 1,
    },
];

impl Scope {
    /// The first state.
    pub(crate) fn begin(&self) -> (World, Rules) {
        let rules = Rules::new(self.budget.rates);
        let mut world = World::new(&rules, NOTHING);
        (self.start)(&mut world, &rules);
        let (epochs, versions) = (world.register.epoch.0, world.register.version.0);
        world.budget = Budget {
            writes: self.budget.writes + world.begun,
            epochs: self.budget.epochs + epochs,
            versions: self.budget.versions + versions,
            sessions: world.sides[0].engine.session.map_or(2, |s| s.0 + 1),
            ..self.budget
        };
        (world, rules)
    }

    /// The first state, and a budget that lets everything happen several times.
    pub(crate) fn begin_widely(&self) -> (World, Rules) {
        let (mut world, rules) = self.begin();
        let b = world.budget;
        world.budget = Budget {
            writes: world.begun + 4,
            crashes: 3,
            cuts: 3,
            doubts: 4,
            moves: 2,
            late_reads: true,
            epochs: world.register.epoch.0 + 8,
            versions: world.register.version.0 + 24,
            sessions: b.sessions + 6,
            ..b
        };
        (world, rules)
    }
}

/// Has what goes well happen, until nothing does but time.
fn settle(world: &mut World, rules: &Rules) -> Result<(), String> {
    let mut steps = Vec::new();
    for _ in 0..400 {
        world.steps(&mut steps);
        steps.retain(|s| rank(*s, world) < LATER);
        steps.sort_by_key(|s| rank(*s, world));
        let mut next = None;
        for step in &steps {
            let mut after = world.clone();
            after.take(*step, rules)?;
            if after != *world {
                next = Some(after);
                break;
            }
        }
        match next {
            Some(after) => *world = after,
            None => return Ok(()),
        }
    }
    Err(format!("P12: the nodes do not come to rest: {world:#?}"))
}

/// Whether the pool is served some time after all faults have ended (P12). What broke for good is not asked for.
pub(crate) fn heals(world: &World, rules: &Rules) -> Result<(), String> {
    if world.sides.iter().any(|s| s.device.broken) {
        return Ok(());
    }
    let mut world = world.clone();
    world.budget = Budget { writes: world.begun, ..NOTHING };
    for i in 0..2u8 {
        if world.sides[usize::from(i)].pair.is_none() {
            world.take(Step::Start(i), rules)?;
        }
    }
    for _ in 0..40 {
        settle(&mut world, rules)?;
        let whole = world.register.able == World::both();
        if (0..2).any(|i| whole && is_serving(&world, i) && may_read(&world, i)) {
            return Ok(());
        }
        tick(&mut world, rules)?;
    }
    Err(format!("P12: the pool is not served with both nodes any more: {world:#?}"))
}

fn may_read(world: &World, i: usize) -> bool {
    world.sides[i].pair.as_ref().is_some_and(|p| p.may_read(NOW))
}

/// What does not happen by itself, or only as time goes on.
const LATER: u32 = 9;

/// What goes well, in its order.
fn rank(step: Step, world: &World) -> u32 {
    let settles = |i: u8| world.sides[usize::from(i)].engine.session.is_some();
    match step {
        Step::Told(_) | Step::Answer(_) | Step::Watch(_) => 0,
        Step::Login(_) | Step::GateReads(_) | Step::GateTold(_) => 1,
        Step::Beat(_) | Step::Grant(_) => 2,
        Step::OpenBoth(_) | Step::Closed(_) | Step::Synced(_) => 3,
        Step::Begin(_) | Step::Arrive(_) | Step::Execute(_) | Step::Done(_) => 4,
        Step::Acknowledge(_) => 4,
        Step::OpenAlone(i) if !settles(i) => 5,
        _ => LATER,
    }
}

/// Both nodes look at their clocks; the beat arrives before the second one does.
fn tick(world: &mut World, rules: &Rules) -> Result<(), String> {
    world.take(Step::Time(1, 1), rules)?;
    let owner = (0..2u8).find(|i| is_serving(world, usize::from(*i))).unwrap_or(0);
    for i in [owner, 1 - owner] {
        if world.sides[usize::from(i)].pair.is_some() {
            world.take(Step::Wake(i), rules)?;
        }
        settle(world, rules)?;
    }
    Ok(())
}

fn is_serving(world: &World, i: usize) -> bool {
    matches!(world.sides[i].engine.run, Run::On(_)) && !world.sides[i].held
}

/// The first node serves with both; one write was acknowledged.
fn serve_both(world: &mut World, rules: &Rules) {
    world.budget.writes = 1;
    for _ in 0..20 {
        settle(world, rules).expect("what goes well");
        let done = is_serving(world, 0) && world.acked == 1 && world.register.able == World::both();
        if done && may_read(world, 0) {
            return;
        }
        tick(world, rules).expect("what goes well");
    }
    panic!("does not serve: {world:#?}");
}

/// The first node serves alone; the partner misses the last write, and may come back.
fn serve_alone(world: &mut World, rules: &Rules) {
    serve_both(world, rules);
    world.budget.cuts = 1;
    world.take(Step::Cut(0), rules).expect("a cut");
    world.take(Step::Answer(0), rules).expect("a drop");
    world.budget.writes += 1;
    world.take(Step::Begin(0), rules).expect("a write");
    world.take(Step::Acknowledge(0), rules).expect("a write that is acknowledged alone");
    assert!(world.acked == 2 && !world.register.able.has(node(1)));
}

/// The owner ended and started anew, and has opened with both; a grant to its former life is still under way.
fn serve_again(world: &mut World, rules: &Rules) {
    serve_both(world, rules);
    world.budget.crashes = 1;
    for step in [Step::Wake(0), Step::Beat(1), Step::Crash(0), Step::Start(0)] {
        world.take(step, rules).expect("a crash");
    }
    let late = world.sides[0].grant.take();
    for _ in 0..20 {
        settle(world, rules).expect("what goes well");
        if is_serving(world, 0) && world.register.able == World::both() {
            world.sides[0].grant = late;
            return;
        }
        tick(world, rules).expect("what goes well");
    }
    panic!("does not serve again: {world:#?}");
}
