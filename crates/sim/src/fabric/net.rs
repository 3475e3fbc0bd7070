//! The network between nodes: addresses, delays, partitions, and what a test can do to it.

use super::pair::{Cut, Pair};
use super::setup::{Attempt, ListenerInner};
use crate::chance::{Latency, Odds};
use crate::clock::Clock;
use crate::core::Core;
use crate::stream::{ListeningInner, Partings, Pipe};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex};
use weir_base::{MICROS, MILLIS, Nanos, Prng, SECONDS};

/// Which provider's habits a connection shows where the contract leaves a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Drawn for each connection, each habit by itself.
    Any,
    /// One stream each way, so that a message without a receive holds up what is behind it; requests
    /// complete when their data has left.
    Iwarp,
    /// Read responses pass by waiting messages; requests complete when the peer has acknowledged.
    Verbs,
}

/// What carries messages between nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Carrier {
    /// A provider of the simulation, with the freedoms of all providers.
    #[default]
    Messages,
    /// The provider that ships, `weir-fabric-iwarp`, on simulated byte streams.
    Streams,
}

/// A bug of a provider, planted to see that a checker finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// WRITE data is placed only after the message behind it was delivered.
    LateWrite,
    /// A range that is not inside the registration is ignored, not refused.
    AnyRange,
    /// The right of a registration is not looked at.
    AnyRight,
    /// Keys live on after they were deregistered or invalidated.
    ImmortalKeys,
    /// A request completes before its data has left.
    EarlyCompletion,
    /// The end of a connection is told before its requests have completed.
    EarlyEnd,
    /// Flushed requests do not give their slots back.
    LostSlots,
    /// A message is lost now and then.
    LostMessage,
    /// A message is delivered twice now and then.
    DoubleMessage,
    /// READ data is wrong in one byte now and then.
    WrongRead,
}

impl Planted {
    /// All there are.
    pub const ALL: [Planted; 10] = [
        Planted::LateWrite,
        Planted::AnyRange,
        Planted::AnyRight,
        Planted::ImmortalKeys,
        Planted::EarlyCompletion,
        Planted::EarlyEnd,
        Planted::LostSlots,
        Planted::LostMessage,
        Planted::DoubleMessage,
        Planted::WrongRead,
    ];
}

/// What the network does by itself.
#[derive(Debug, Clone)]
pub struct NetConfig {
    /// What nodes' providers are, from their next start on.
    pub carrier: Carrier,
    /// One-way delay of a frame.
    pub latency: Latency,
    /// What a byte takes on its way between the two ends of a connection, in nanoseconds; 0 when it takes no time, however many
    /// there are. A slow link holds what was sent in order: what is small waits behind what is large.
    pub byte_time: Nanos,
    /// From post (or from the piece before) to the moment at which local memory is read.
    pub transmit: Latency,
    /// From the arrival of a read request (or the piece before) to the moment its memory is sampled.
    pub sample: Latency,
    /// Least and greatest depth of a connection's send queue; drawn for each side.
    pub send_depth: (u32, u32),
    /// Most pieces that a transfer is cut into.
    pub pieces: usize,
    /// Registrations that one side of a connection may have.
    pub max_registrations: usize,
    /// A connection request without answer fails after this long.
    pub connect_timeout: Nanos,
    /// An orderly close becomes an abrupt one after this long.
    pub close_limit: Nanos,
    /// How long until a side notices that its peer is silent: least and greatest; drawn for each side.
    pub dead_after: (Nanos, Nanos),
    /// Habits of connections.
    pub style: Style,
    /// Private data arrives with zeros behind it.
    pub pad: Odds,
    /// A connection request is refused by the network.
    pub refuse: Odds,
    /// A connection request arrives twice; nobody is behind the second.
    pub duplicate: Odds,
    /// The acceptance is lost: the acceptor has a connection, the connector has none.
    pub half_open: Odds,
    /// A connection is cut, drawn at each transmission.
    pub cut: Odds,
    /// All delays grow for a while, drawn at each transmission.
    pub spike: Odds,
    /// A bug.
    pub planted: Option<Planted>,
}

impl Default for NetConfig {
    /// Nothing fails; every freedom of the contract is used.
    fn default() -> Self {
        NetConfig {
            carrier: Carrier::Messages,
            latency: Latency::lan(),
            byte_time: 0,
            transmit: Latency {
                base: 0,
                spread: 3 * MICROS,
                tail: Odds::one_in(50),
                tail_max: 200 * MICROS,
            },
            sample: Latency {
                base: 0,
                spread: 5 * MICROS,
                tail: Odds::one_in(20),
                tail_max: 100 * MICROS,
            },
            send_depth: (4, 64),
            pieces: 3,
            max_registrations: 4096,
            connect_timeout: 3 * SECONDS,
            close_limit: 2 * SECONDS,
            dead_after: (2 * SECONDS, 8 * SECONDS),
            style: Style::Any,
            pad: Odds::one_in(2),
            refuse: Odds::NEVER,
            duplicate: Odds::NEVER,
            half_open: Odds::NEVER,
            cut: Odds::NEVER,
            spike: Odds::NEVER,
            planted: None,
        }
    }
}

impl NetConfig {
    /// Faults at rates drawn from `rng`, some of them absent: seeds differ in what goes wrong.
    pub fn hostile(rng: &mut Prng) -> NetConfig {
        let mut odds = |least: u32| match rng.below(3) {
            0 => Odds::NEVER,
            _ => Odds::one_in(least * (1 + rng.below(20) as u32)),
        };
        let config = NetConfig {
            refuse: odds(4),
            duplicate: odds(4),
            half_open: odds(8),
            cut: odds(200),
            spike: odds(500),
            ..NetConfig::default()
        };
        let depth = 1 + rng.below(16) as u32;
        NetConfig { send_depth: (depth, depth + rng.below(32) as u32), ..config }
    }
}

pub(crate) struct NodeNet {
    pub(crate) name: String,
    /// The machine has power (its process may be dead).
    pub(crate) powered: bool,
    next_port: u16,
}

struct Held {
    from: u32,
    core: Rc<Core>,
    run: Box<dyn FnOnce()>,
}

/// The network of a world.
pub struct Net {
    pub(crate) clock: Rc<Clock>,
    pub(crate) rng: RefCell<Prng>,
    config: RefCell<NetConfig>,
    pub(crate) nodes: RefCell<Vec<NodeNet>>,
    pub(crate) listeners: RefCell<BTreeMap<(u32, u16), Weak<ListenerInner>>>,
    pub(crate) stream_listeners: RefCell<BTreeMap<(u32, u16), Weak<ListeningInner>>>,
    blocked: RefCell<BTreeSet<(u32, u32)>>,
    held: RefCell<Vec<Held>>,
    pairs: RefCell<Vec<Weak<Pair>>>,
    pipes: RefCell<Vec<Weak<Pipe>>>,
    pub(crate) partings: Partings,
    pub(crate) attempts: RefCell<BTreeMap<u64, Rc<Attempt>>>,
    pub(crate) verdicts: Verdicts,
    spike_until: Cell<Nanos>,
    spike_extra: Cell<Nanos>,
    next_id: Cell<u64>,
}

/// Refusals pronounced, by number of the request, with their private data. Locked, since a request may be
/// dropped anywhere.
pub(crate) type Verdicts = Arc<Mutex<Vec<(u64, Vec<u8>)>>>;

/// How the nodes of [`Net::partition`] and its like are named: by number, see
/// [`Node::number`](crate::Node::number).
pub type NodeNumber = u32;

impl Net {
    pub(crate) fn new(clock: Rc<Clock>, rng: Prng, config: NetConfig) -> Rc<Net> {
        Rc::new(Net {
            clock,
            rng: RefCell::new(rng),
            config: RefCell::new(config),
            nodes: RefCell::default(),
            listeners: RefCell::default(),
            stream_listeners: RefCell::default(),
            blocked: RefCell::default(),
            held: RefCell::default(),
            pairs: RefCell::default(),
            pipes: RefCell::default(),
            partings: Partings::default(),
            attempts: RefCell::default(),
            verdicts: Arc::default(),
            spike_until: Cell::new(0),
            spike_extra: Cell::new(0),
            next_id: Cell::new(1),
        })
    }

    /// Draws with the network's own source of chance.
    pub(crate) fn draw<R>(&self, f: impl FnOnce(&mut Prng) -> R) -> R {
        f(&mut self.rng.borrow_mut())
    }

    pub(crate) fn config<R>(&self, f: impl FnOnce(&NetConfig) -> R) -> R {
        f(&self.config.borrow())
    }

    /// True when this bug is planted.
    pub(crate) fn has_bug(&self, bug: Planted) -> bool {
        self.config(|c| c.planted) == Some(bug)
    }

    pub(crate) fn hit(&self, odds: impl FnOnce(&NetConfig) -> Odds) -> bool {
        let odds = self.config(odds);
        self.draw(|r| odds.hit(r))
    }

    /// What carries messages.
    pub fn carrier(&self) -> Carrier {
        self.config(|c| c.carrier)
    }

    /// Changes what the network does by itself from here on.
    pub fn set_config(&self, change: impl FnOnce(&mut NetConfig)) {
        change(&mut self.config.borrow_mut());
    }

    /// Ends all faults that the network does by itself, and all partitions.
    pub fn calm(self: &Rc<Self>) {
        self.set_config(|c| {
            c.refuse = Odds::NEVER;
            c.duplicate = Odds::NEVER;
            c.half_open = Odds::NEVER;
            c.cut = Odds::NEVER;
            c.spike = Odds::NEVER;
        });
        self.heal_all();
    }

    pub(crate) fn id(&self) -> u64 {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        id
    }

    /// One-way delay of the next frame.
    pub(crate) fn delay(&self) -> Nanos {
        let latency = self.config(|c| c.latency);
        let extra = match self.clock.now() < self.spike_until.get() {
            true => self.draw(|r| r.below(self.spike_extra.get() + 1)),
            false => 0,
        };
        extra + self.draw(|r| latency.draw(r))
    }

    pub(crate) fn dead_after(&self) -> Nanos {
        let (lo, hi) = self.config(|c| c.dead_after);
        self.draw(|r| r.between(lo, hi))
    }

    /// All delays grow by up to `extra` for `duration`.
    pub fn spike(&self, duration: Nanos, extra: Nanos) {
        self.spike_until.set(self.clock.now() + duration);
        self.spike_extra.set(extra);
    }

    /// A spike of drawn size, as [`NetConfig::spike`] makes them.
    pub(crate) fn random_spike(&self) {
        let (d, e) = self.draw(|r| (r.below(500 * MILLIS), r.below(50 * MILLIS)));
        self.spike(d, e);
    }

    // Addresses.

    pub(crate) fn add_node(&self, name: &str) -> u32 {
        let mut nodes = self.nodes.borrow_mut();
        nodes.push(NodeNet { name: name.to_string(), powered: true, next_port: 49152 });
        nodes.len() as u32 - 1
    }

    pub(crate) fn ip(node: u32) -> String {
        format!("10.0.{}.{}", node / 250, 1 + node % 250)
    }

    /// Node and port of `host:port`; the host is a node's name or address, or `0.0.0.0` for `own`.
    pub(crate) fn resolve(&self, addr: &str, own: u32) -> Option<(u32, u16)> {
        let (host, port) = addr.rsplit_once(':')?;
        let port = port.parse().ok()?;
        if matches!(host, "0.0.0.0" | "[::]" | "127.0.0.1" | "localhost") {
            return Some((own, port));
        }
        let nodes = self.nodes.borrow();
        let found = (0..nodes.len() as u32)
            .find(|&n| nodes[n as usize].name == host || Net::ip(n) == host)?;
        Some((found, port))
    }

    /// A port that nobody used before on this node.
    pub(crate) fn fresh_port(&self, node: u32) -> u16 {
        let mut nodes = self.nodes.borrow_mut();
        let n = &mut nodes[node as usize];
        let port = n.next_port;
        n.next_port = if port == u16::MAX { 49152 } else { port + 1 };
        port
    }

    // Partitions.

    /// Nothing passes between the two nodes, either way, until healed. What is under way waits.
    pub fn partition(&self, a: NodeNumber, b: NodeNumber) {
        self.partition_one_way(a, b);
        self.partition_one_way(b, a);
    }

    /// Nothing passes from one node to the other; the way back is open.
    pub fn partition_one_way(&self, from: NodeNumber, to: NodeNumber) {
        self.clock.trace.line(self.clock.now(), || format!("net: partition {from} -> {to}"));
        self.blocked.borrow_mut().insert((from, to));
    }

    /// Ends partitions between the two nodes; what waited arrives after new delays.
    pub fn heal(self: &Rc<Self>, a: NodeNumber, b: NodeNumber) {
        self.clock.trace.line(self.clock.now(), || format!("net: heal {a} - {b}"));
        for way in [(a, b), (b, a)] {
            self.blocked.borrow_mut().remove(&way);
        }
        self.release_held();
    }

    /// Ends all partitions.
    pub fn heal_all(self: &Rc<Self>) {
        self.blocked.borrow_mut().clear();
        self.release_held();
    }

    fn release_held(self: &Rc<Self>) {
        let held = std::mem::take(&mut *self.held.borrow_mut());
        for h in held {
            if self.is_blocked(h.from, h.core.node) {
                self.held.borrow_mut().push(h);
            } else {
                self.carry(h.from, &h.core, self.delay(), h.run);
            }
        }
    }

    pub(crate) fn is_blocked(&self, from: u32, to: u32) -> bool {
        !self.blocked.borrow().is_empty() && self.blocked.borrow().contains(&(from, to))
    }

    /// Keeps `run` until the way from `from` to the core's node is open again.
    pub(crate) fn hold(&self, from: u32, core: &Rc<Core>, run: Box<dyn FnOnce()>) {
        self.held.borrow_mut().push(Held { from, core: core.clone(), run });
    }

    /// Runs `run` on `core` after `delay`, or when a partition that is in the way has healed.
    pub(crate) fn carry(
        self: &Rc<Self>,
        from: u32,
        core: &Rc<Core>,
        delay: Nanos,
        run: Box<dyn FnOnce()>,
    ) {
        let (net, to) = (self.clone(), core.clone());
        core.after(delay, move || match net.is_blocked(from, to.node) {
            true => net.hold(from, &to, run),
            false => run(),
        });
    }

    // Connections.

    pub(crate) fn add_pair(&self, pair: &Rc<Pair>) {
        let mut pairs = self.pairs.borrow_mut();
        if pairs.len() == pairs.capacity() {
            pairs.retain(|p| p.strong_count() > 0);
        }
        pairs.push(Rc::downgrade(pair));
    }

    pub(crate) fn pairs(&self) -> Vec<Rc<Pair>> {
        self.pairs.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    fn open_pairs(&self) -> Vec<Rc<Pair>> {
        self.pairs().into_iter().filter(|p| p.is_up()).collect()
    }

    pub(crate) fn add_pipe(&self, pipe: &Rc<Pipe>) {
        let mut pipes = self.pipes.borrow_mut();
        if pipes.len() == pipes.capacity() {
            pipes.retain(|p| p.strong_count() > 0);
        }
        pipes.push(Rc::downgrade(pipe));
    }

    fn pipes(&self) -> Vec<Rc<Pipe>> {
        self.pipes.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    fn open_pipes(&self) -> Vec<Rc<Pipe>> {
        self.pipes().into_iter().filter(|p| p.is_up()).collect()
    }

    /// Connections and streams of which at least one side is up.
    pub fn connections(&self) -> usize {
        self.open_pairs().len() + self.open_pipes().len()
    }

    /// Whether a stream between two nodes is lost, and one of them has not heard of it. It was cut, or the other machine lost power.
    pub fn has_unheard_end(&self, a: NodeNumber, b: NodeNumber) -> bool {
        self.open_pipes().iter().any(|p| p.is_between(a, b) && p.is_unheard())
    }

    /// Cuts one connection, drawn from those that are up. False when there is none.
    pub fn cut_any(&self, how: Cut) -> bool {
        let (open, streams) = (self.open_pairs(), self.open_pipes());
        if open.is_empty() && streams.is_empty() {
            return false;
        }
        let k = self.draw(|r| r.below((open.len() + streams.len()) as u64)) as usize;
        match open.get(k) {
            Some(p) => p.cut(how),
            None => streams[k - open.len()].cut(how),
        }
        true
    }

    /// Cuts all connections between two nodes; gives their number.
    pub fn cut_between(&self, a: NodeNumber, b: NodeNumber, how: Cut) -> usize {
        let hit: Vec<_> = self.open_pairs().into_iter().filter(|p| p.is_between(a, b)).collect();
        let streams = self.open_pipes().into_iter().filter(|p| p.is_between(a, b));
        let streams: Vec<_> = streams.collect();
        hit.iter().for_each(|p| p.cut(how));
        streams.iter().for_each(|p| p.cut(how));
        hit.len() + streams.len()
    }

    // Life and death of nodes.

    /// The process on `node` has died; with `silent` its machine has lost power, too, and tells nobody.
    pub(crate) fn node_died(self: &Rc<Self>, node: u32, silent: bool) {
        self.nodes.borrow_mut()[node as usize].powered = !silent;
        self.held.borrow_mut().retain(|h| h.core.node != node);
        self.listeners.borrow_mut().retain(|(n, _), _| *n != node);
        self.stream_listeners.borrow_mut().retain(|(n, _), _| *n != node);
        for pair in self.pairs() {
            pair.node_died(node, silent);
        }
        for pipe in self.pipes() {
            pipe.node_died(node);
        }
        self.partings.node_died(node);
        let gone: Vec<_> = {
            let mut attempts = self.attempts.borrow_mut();
            let ids: Vec<u64> =
                attempts.iter().filter(|(_, a)| a.server_node == node).map(|(id, _)| *id).collect();
            ids.iter().filter_map(|id| attempts.remove(id)).collect()
        };
        for a in gone {
            if !silent {
                a.refused(self, node, "connection reset");
            }
        }
    }

    /// Before its process is gone: that says nothing to anybody.
    pub(crate) fn loses_power(&self, node: u32) {
        for pipe in self.pipes() {
            pipe.loses_power(node);
        }
    }

    pub(crate) fn node_started(&self, node: u32) {
        self.nodes.borrow_mut()[node as usize].powered = true;
    }

    pub(crate) fn is_powered(&self, node: u32) -> bool {
        self.nodes.borrow()[node as usize].powered
    }

    /// Drops everything that could keep tasks' memory alive after the world's end.
    pub(crate) fn clear(&self) {
        let held = std::mem::take(&mut *self.held.borrow_mut());
        let attempts = std::mem::take(&mut *self.attempts.borrow_mut());
        drop((held, attempts));
        self.partings.clear();
        for pair in self.pairs() {
            pair.forget_all();
        }
        for pipe in self.pipes() {
            pipe.forget_all();
        }
    }

    /// State of all connections that are not down, for a dump.
    pub(crate) fn describe(&self) -> Vec<String> {
        let mut out: Vec<String> = self.open_pairs().iter().flat_map(|p| p.describe()).collect();
        out.extend(self.open_pipes().iter().flat_map(|p| p.describe()));
        for way in self.blocked.borrow().iter() {
            out.push(format!("partition {} -> {}", way.0, way.1));
        }
        for a in self.attempts.borrow().values() {
            out.push(format!("connection request {} waits for its verdict", a.id));
        }
        out
    }
}
