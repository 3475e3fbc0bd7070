//! Two real machines and two real gates, the worst register allowed, and a world that does everything that it may do to them.

use std::sync::Arc;

use weir_proto_cluster::message::Beat;
use weir_proto_cluster::pair::{Settings, Times};
use weir_proto_cluster::{
    Epoch, Gate, Life, Node, Nodes, Outcome, Pair, Register, Session, Writer,
};

/// What both clocks show in every state: only differences count.
pub(crate) const NOW: u64 = 64;
/// Commands on their way to devices of the other node.
pub(crate) const COMMANDS: usize = 3;

/// Small times: a lease of two ticks.
pub(crate) const TIMES: Times = Times {
    beat: 0,
    suspicion: 1,
    bias: 0,
    lease: 2,
    drift: 0,
    margin: 0,
    hand_over: 1,
    retry: 0,
    readmit: 0,
    readmit_max: 0,
    calm: 0,
    flapping: 0,
    fail_back: None,
};

/// How often things may happen in a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    pub(crate) writes: u8,
    pub(crate) crashes: u8,
    pub(crate) cuts: u8,
    pub(crate) doubts: u8,
    pub(crate) moves: u8,
    pub(crate) fails: u8,
    /// Reads of the register may be answered late.
    pub(crate) late_reads: bool,
    /// Clocks may run at different rates.
    pub(crate) rates: bool,
    /// The highest owner epoch.
    pub(crate) epochs: u32,
    /// The highest version of the register.
    pub(crate) versions: u64,
    /// The highest number of a session.
    pub(crate) sessions: u32,
}

/// A call of the register's `change`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Change {
    None,
    /// On its way.
    Sent(Register),
    /// Decided; the answer is on its way.
    Decided(u32, Outcome),
}

/// A call of the register's `read`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Read {
    None,
    Sent,
    /// What was read; it is on its way, and may be old when it comes.
    Taken(Register),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Run {
    Off,
    Opening(Epoch),
    On(Epoch),
    Closing(Epoch),
    Dropping(Epoch),
}

/// A write that is under way in an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Write {
    pub(crate) id: u8,
    pub(crate) here: bool,
    pub(crate) there: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Engine {
    pub(crate) run: Run,
    /// The session with the other node's device.
    pub(crate) session: Option<Session>,
    /// To be filled in this one.
    pub(crate) sync: Option<Session>,
    /// What reads return: the last write that was acknowledged, or found at the start.
    pub(crate) visible: u8,
    pub(crate) write: Option<Write>,
}

pub(crate) const OFF: Engine =
    Engine { run: Run::Off, session: None, sync: None, visible: 0, write: None };

/// One block, the superblock's owner epoch, and whether it works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Device {
    pub(crate) data: u8,
    pub(crate) epoch: Epoch,
    pub(crate) broken: bool,
    /// What its gate has promised to be rid of: anything below.
    pub(crate) rid: (Epoch, Session),
}

/// How far a write to the other node's device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Way {
    Net,
    /// Past the gate.
    Begun,
    /// Done; the answer is on its way.
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Command {
    pub(crate) from: u8,
    pub(crate) epoch: Epoch,
    pub(crate) session: Session,
    pub(crate) id: u8,
    pub(crate) way: Way,
    /// The engine does not wait for it any more.
    pub(crate) given_up: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Side {
    /// The machine, while the node runs.
    pub(crate) pair: Option<Pair>,
    pub(crate) life: u64,
    pub(crate) gate: Gate,
    /// What the gate has read of the register: epoch and owner.
    pub(crate) gate_read: Option<(Epoch, Node)>,
    pub(crate) engine: Engine,
    pub(crate) held: bool,
    pub(crate) device: Device,
    pub(crate) change: Change,
    pub(crate) read: Read,
    /// A login that has not been answered.
    pub(crate) attach: Option<(Epoch, Session)>,
    /// On their way to this node.
    pub(crate) beat: Option<Beat>,
    pub(crate) grant: Option<Beat>,
    /// A change of this node that was answered *in doubt*, and may still happen.
    pub(crate) float: Option<Register>,
}

/// A state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) register: Register,
    pub(crate) sides: [Side; 2],
    pub(crate) commands: [Option<Command>; COMMANDS],
    /// Writes that were begun, and the last that was acknowledged.
    pub(crate) begun: u8,
    pub(crate) acked: u8,
    /// The last that any read has returned, or could have.
    pub(crate) seen: u8,
    /// Epochs under which an engine was opened, as bits.
    pub(crate) opened: u32,
    pub(crate) budget: Budget,
}

pub(crate) fn node(i: usize) -> Node {
    Node::new(i as u8 + 1).expect("a small number")
}

/// What the machines are told of themselves; the same for all their lives.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    settings: [Arc<Settings>; 2],
}

impl Rules {
    /// With `rates`, one clock may run twice as fast as the other.
    pub(crate) fn new(rates: bool) -> Rules {
        let times = Times { drift: if rates { 1_000_000 } else { 0 }, ..TIMES };
        let of = |i: usize| {
            let times = times.clone();
            Arc::new(Settings { me: node(i), partner: node(1 - i), pool: 7, times })
        };
        Rules { settings: [of(0), of(1)] }
    }

    pub(crate) fn machine(&self, i: usize, life: u64) -> Pair {
        Pair::new(self.settings[i].clone(), Life(life * 2 + i as u64), NOW)
    }
}

impl World {
    /// A pool that was just made, and nobody has opened; both nodes start.
    pub(crate) fn new(rules: &Rules, budget: Budget) -> World {
        let writer = Writer { node: node(0), life: Life(0), n: 0 };
        let side = |i: usize| Side {
            pair: Some(rules.machine(i, 1)),
            life: 1,
            gate: Gate::new(node(i)),
            gate_read: None,
            engine: OFF,
            held: true,
            device: Device { data: 0, epoch: Epoch(1), broken: false, rid: (Epoch(0), Session(0)) },
            change: Change::None,
            read: Read::None,
            attach: None,
            beat: None,
            grant: None,
            float: None,
        };
        let mut world = World {
            register: Register::made(7, [node(0), node(1)], writer),
            sides: [side(0), side(1)],
            commands: [None; COMMANDS],
            begun: 0,
            acked: 0,
            seen: 0,
            opened: 0,
            budget,
        };
        for i in 0..2 {
            world.carry_out(i).expect("a start");
        }
        world
    }

    /// Whether the bounds of the scope are exceeded.
    pub(crate) fn is_outside(&self) -> bool {
        let r = &self.register;
        let session = |s: &Side| s.attach.is_some_and(|a| a.1.0 > self.budget.sessions);
        r.epoch.0 > self.budget.epochs
            || r.version.0 > self.budget.versions
            || self.sides.iter().any(session)
    }

    /// What must hold in every state.
    pub(crate) fn check(&mut self) -> Result<(), String> {
        let r = self.register;
        if r.able.is_empty() {
            return Err("P2: no node is able, by the register".into());
        }
        for i in 0..2 {
            let device = self.sides[i].device;
            let has = device.data >= self.acked.max(self.seen) || device.broken;
            if r.able.has(node(i)) && !has {
                return Err(format!(
                    "P2: {} is able and has write {}; {} was acknowledged and {} seen",
                    node(i),
                    device.data,
                    self.acked,
                    self.seen
                ));
            }
            let Some(pair) = &self.sides[i].pair else { continue };
            if let Some(known) = pair.known() {
                let future = known.version > r.version;
                if future || (known.version == r.version && *known != r) {
                    return Err(format!("P7: {} takes for fact what the register is not", node(i)));
                }
            }
            let engine = &self.sides[i].engine;
            if matches!(engine.run, Run::On(_) | Run::Closing(_)) && pair.may_read(NOW) {
                if engine.visible < self.acked {
                    return Err(format!(
                        "P5: {} may answer reads with write {}, after {} was acknowledged",
                        node(i),
                        engine.visible,
                        self.acked
                    ));
                }
                if engine.visible < self.seen {
                    return Err(format!(
                        "P6: {} may answer reads with write {}, after {} was read",
                        node(i),
                        engine.visible,
                        self.seen
                    ));
                }
                // Somebody reads all the time.
                self.seen = engine.visible;
            }
        }
        Ok(())
    }

    /// Commands in an order that says nothing, without those that have no effect any more.
    pub(crate) fn tidy(&mut self) {
        for slot in &mut self.commands {
            if let Some(c) = slot
                && c.way == Way::Done
            {
                let engine = &self.sides[usize::from(c.from)].engine;
                let waits = engine.write.is_some_and(|w| w.id == c.id && !w.there);
                if !waits || engine.session != Some(c.session) || epoch_of(engine) != Some(c.epoch)
                {
                    *slot = None;
                }
            }
        }
        self.commands.sort_unstable();
        for side in &mut self.sides {
            // A grant that is too old is none.
            side.grant = side.grant.filter(|g| g.sent + TIMES.lease > NOW);
            // A change that has lost cannot happen.
            if side.float.is_some_and(|v| v.version.0 != self.register.version.0 + 1) {
                side.float = None;
            }
        }
    }

    pub(crate) fn both() -> Nodes {
        Nodes::only(node(0)).with(node(1))
    }
}

/// Under which an engine writes, or may.
pub(crate) fn epoch_of(engine: &Engine) -> Option<Epoch> {
    match engine.run {
        Run::Off => None,
        Run::Opening(e) | Run::On(e) | Run::Closing(e) | Run::Dropping(e) => Some(e),
    }
}
