//! The world: virtual time and the seeded scheduler of all its reactors.

use crate::chance::Odds;
use crate::clock::Clock;
use crate::core::Event;
use crate::fabric::{Net, NetConfig};
use crate::node::{Node, Running};
use std::cell::{Cell, RefCell};
use std::collections::BinaryHeap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use weir_base::{MICROS, Nanos, Prng};

/// What a world is made with besides its seed.
#[derive(Debug, Clone)]
pub struct Options {
    /// The network.
    pub net: NetConfig,
    /// Least and greatest virtual time that one turn of a reactor takes, in nanoseconds. Never nothing,
    /// so that tasks which wait for each other by yielding do not stop the clock.
    pub turn_cost: (Nanos, Nanos),
    /// Runnable tasks go in the order in which they became runnable, as on a real reactor, not in any order.
    /// For programs that count on that.
    pub fifo: bool,
    /// After a turn a core may be away for a while, so that events pile up and their order is open.
    pub away: Odds,
    /// Longest time away, in nanoseconds.
    pub away_max: Nanos,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            net: NetConfig::default(),
            turn_cost: (50, 500),
            fifo: false,
            away: Odds::one_in(6),
            away_max: 40 * MICROS,
        }
    }
}

/// Why a world did not get where it was to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// Nothing is runnable and nothing will ever happen, but the condition is not met.
    Hang,
    /// The condition was not met within its time.
    TimeLimit,
    /// The task that was waited for was dropped: its node died.
    Killed,
}

/// A world that is stuck, and what it looked like.
#[derive(Debug, Clone)]
pub struct Stuck {
    /// Why.
    pub why: Why,
    /// When, in virtual nanoseconds.
    pub at: Nanos,
    /// All nodes and connections, and the last lines of the trace if lines are kept.
    pub dump: String,
}

impl std::fmt::Display for Stuck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let why = match self.why {
            Why::Hang => "hang: nothing is left to happen",
            Why::TimeLimit => "time limit",
            Why::Killed => "the node of the awaited task died",
        };
        write!(f, "{why} at {:.6} ms\n{}", self.at as f64 / 1e6, self.dump)
    }
}

impl std::error::Error for Stuck {}

type Happening = Box<dyn FnOnce(&World)>;

pub(crate) struct Inner {
    seed: u64,
    pub(crate) clock: Rc<Clock>,
    pub(crate) net: Rc<Net>,
    pub(crate) options: Options,
    nodes: RefCell<Vec<Node>>,
    cores: RefCell<Vec<Running>>,
    core_numbers: Cell<u32>,
    timeline: RefCell<BinaryHeap<Event<Happening>>>,
    in_turn: Cell<bool>,
    deferred: RefCell<Vec<Box<dyn FnOnce()>>>,
    ready: RefCell<Vec<usize>>,
    turns: Cell<u64>,
}

impl Inner {
    pub(crate) fn core_number(&self) -> u32 {
        let n = self.core_numbers.get();
        self.core_numbers.set(n + 1);
        n
    }

    pub(crate) fn add_core(&self, r: Running) {
        self.cores.borrow_mut().push(r);
    }

    pub(crate) fn remove_cores(&self, node: u32) {
        self.cores.borrow_mut().retain(|r| r.core.node != node);
    }

    /// Runs `f` now, or after the turn that is going on.
    pub(crate) fn outside_turns(&self, f: impl FnOnce() + 'static) {
        if self.in_turn.get() {
            self.deferred.borrow_mut().push(Box::new(f));
        } else {
            f();
        }
    }

    /// Lets something happen outside all reactors.
    pub(crate) fn schedule(&self, e: Event<Box<dyn FnOnce()>>) {
        let run: Happening = Box::new(move |_| (e.run)());
        self.timeline.borrow_mut().push(Event::new(&self.clock, e.at, run));
    }

    fn end_turn(&self) {
        self.in_turn.set(false);
        loop {
            let all = self.deferred.take();
            if all.is_empty() {
                break;
            }
            all.into_iter().for_each(|f| f());
        }
        self.net.send_refusals();
        self.net.partings.close();
    }
}

/// A world's clock, to be read anywhere. Programs under test have their reactor's.
#[derive(Clone)]
pub struct Time(Rc<Clock>);

impl Time {
    /// Virtual time since the world began.
    pub fn now(&self) -> Nanos {
        self.0.now()
    }
}

/// Several reactors in one thread under one clock and one seed.
///
/// Everything that happens follows from the seed and from what the program does: the same program with
/// the same seed gives the same [`trace_hash`](World::trace_hash). For that, programs under test must not
/// look at real time or addresses, nor iterate over hash tables with random keys.
///
/// Dropping the world drops all tasks, inside their reactors.
pub struct World(Rc<Inner>);

impl World {
    /// A world without faults.
    pub fn new(seed: u64) -> World {
        World::with(seed, Options::default())
    }

    /// A world as `options` say.
    pub fn with(seed: u64, options: Options) -> World {
        let mut rng = Prng::new(seed);
        let clock = Rc::new(Clock::new(rng.fork()));
        clock.trace.mix(seed);
        let net = Net::new(clock.clone(), rng.fork(), options.net.clone());
        World(Rc::new(Inner {
            seed,
            clock,
            net,
            options,
            nodes: RefCell::default(),
            cores: RefCell::default(),
            core_numbers: Cell::new(0),
            timeline: RefCell::default(),
            in_turn: Cell::new(false),
            deferred: RefCell::default(),
            ready: RefCell::default(),
            turns: Cell::new(0),
        }))
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    /// Virtual time since the world began.
    pub fn now(&self) -> Nanos {
        self.0.clock.now()
    }

    /// The world's clock, for tasks whose times must be comparable between nodes and lives.
    pub fn time(&self) -> Time {
        Time(self.0.clock.clone())
    }

    /// A source of chance for the program, the same for the same seed and `purpose`, and independent of
    /// the scheduler's.
    pub fn rng(&self, purpose: u64) -> Prng {
        let mut p = Prng::new(self.0.seed ^ purpose.wrapping_mul(0xd6e8_feb8_6659_fd93));
        p.fork()
    }

    /// The network.
    pub fn net(&self) -> &Rc<Net> {
        &self.0.net
    }

    /// The node with this name; made with one core when there is none yet.
    pub fn node(&self, name: &str) -> Node {
        self.node_with(name, 1)
    }

    /// The node with this name; made with `cores` cores when there is none yet.
    pub fn node_with(&self, name: &str, cores: usize) -> Node {
        let found = self.0.nodes.borrow().iter().find(|n| n.name() == name).cloned();
        found.unwrap_or_else(|| {
            let n = Node::new(&self.0, name, cores);
            self.0.nodes.borrow_mut().push(n.clone());
            n
        })
    }

    /// Does something `delay` nanoseconds from now, outside all reactors: faults, kills, checks.
    pub fn after(&self, delay: Nanos, f: impl FnOnce(&World) + 'static) {
        let at = self.now().saturating_add(delay);
        let e = Event::new(&self.0.clock, at, Box::new(f) as Happening);
        self.0.timeline.borrow_mut().push(e);
    }

    /// A hash over everything the scheduler decided and everything that happened so far.
    pub fn trace_hash(&self) -> u64 {
        self.0.clock.trace.hash()
    }

    /// How many decisions and events went into the hash.
    pub fn trace_steps(&self) -> u64 {
        self.0.clock.trace.steps()
    }

    /// Adds something that the program saw to the hash.
    pub fn note(&self, x: u64) {
        self.0.clock.trace.mix(x);
    }

    /// Turns of all reactors so far.
    pub fn turns(&self) -> u64 {
        self.0.turns.get()
    }

    /// Keeps the last lines of the trace in words for [`Stuck::dump`]; with `print` also writes each to
    /// standard error. Does not change the run.
    pub fn keep_words(&self, print: bool) {
        self.0.clock.trace.keep_words(print);
    }

    /// Adds a line to the trace in words.
    pub fn say(&self, words: impl FnOnce() -> String) {
        self.0.clock.trace.line(self.now(), || format!("world: {}", words()));
    }

    // Running.

    /// Runs until `done` says so.
    ///
    /// # Errors
    /// After `limit` nanoseconds of virtual time, or when nothing is left to happen.
    pub fn run_until(&self, limit: Nanos, mut done: impl FnMut() -> bool) -> Result<(), Stuck> {
        let end = self.now().saturating_add(limit);
        loop {
            if done() {
                return Ok(());
            }
            if self.now() > end {
                return Err(self.stuck(Why::TimeLimit));
            }
            if !self.step() {
                match self.next_time() {
                    None => return Err(self.stuck(Why::Hang)),
                    Some(t) if t > end => {
                        self.0.clock.advance_to(end);
                        return Err(self.stuck(Why::TimeLimit));
                    }
                    Some(t) => self.0.clock.advance_to(t),
                }
            }
        }
    }

    /// Runs for `duration` nanoseconds of virtual time.
    pub fn run_for(&self, duration: Nanos) {
        let end = self.now().saturating_add(duration);
        // Neither its time limit nor the lack of work is an error here.
        let _ = self.run_until(duration, || false);
        self.0.clock.advance_to(end);
    }

    /// Runs until nothing is left to happen.
    ///
    /// # Errors
    /// When something still happens after `limit` nanoseconds of virtual time.
    pub fn run_until_idle(&self, limit: Nanos) -> Result<(), Stuck> {
        match self.run_until(limit, || false) {
            Err(s) if s.why == Why::Hang => Ok(()),
            other => other,
        }
    }

    /// Starts `future` on the node's first core and runs until it is done.
    ///
    /// # Errors
    /// As [`run_until`](World::run_until), and when the node dies.
    pub fn run<T: 'static>(
        &self,
        node: &Node,
        limit: Nanos,
        future: impl Future<Output = T> + 'static,
    ) -> Result<T, Stuck> {
        let mut handle = node.spawn(future);
        self.run_until(limit, || handle.is_finished())?;
        match Pin::new(&mut handle).poll(&mut Context::from_waker(std::task::Waker::noop())) {
            Poll::Ready(Some(v)) => Ok(v),
            _ => Err(self.stuck(Why::Killed)),
        }
    }

    /// One step: something that is due happens, or one runnable reactor makes a turn. False when time
    /// must move on first.
    fn step(&self) -> bool {
        let inner = &*self.0;
        let now = self.now();
        let mut ready = inner.ready.take();
        ready.clear();
        for (i, r) in inner.cores.borrow().iter().enumerate() {
            if r.core.paused_until() <= now && is_ready(r, now) {
                ready.push(i);
            }
        }
        const TIMELINE: usize = usize::MAX;
        if inner.timeline.borrow().peek().is_some_and(|e| e.at <= now) {
            ready.push(TIMELINE);
        }
        let next = match ready.is_empty() {
            true => None,
            false => Some(ready[inner.clock.pick(ready.len())]),
        };
        inner.ready.replace(ready);
        match next {
            None => return false,
            Some(TIMELINE) => {
                let due = inner.timeline.borrow_mut().pop();
                if let Some(e) = due {
                    e.trace(&inner.clock, 0xff);
                    (e.run)(self);
                }
            }
            Some(i) => {
                let r = inner.cores.borrow()[i].clone();
                inner.clock.trace.mix(u64::from(r.core.number));
                inner.in_turn.set(true);
                let busy = r.reactor.turn();
                // As on a real one: it turns until nothing is to be done, and sleeps when all that it polls will wake it.
                r.core.set_again(r.reactor.has_pollers() && (busy || !r.reactor.arm()));
                inner.turns.set(inner.turns.get() + 1);
                let o = &inner.options;
                inner.clock.advance_to(now + inner.clock.between(o.turn_cost.0, o.turn_cost.1));
                if inner.clock.hit(o.away) {
                    r.core.pause_until(self.now() + inner.clock.between(0, o.away_max));
                }
            }
        }
        inner.end_turn();
        true
    }

    /// When something happens next, if nothing is runnable now.
    fn next_time(&self) -> Option<Nanos> {
        let now = self.now();
        let cores = self.0.cores.borrow();
        let of_cores = cores.iter().filter_map(|r| {
            let next = match r.reactor.has_work() || r.core.again() {
                true => Some(now),
                false => {
                    let timer = r.reactor.next_deadline().map(|t| r.core.to_world(t));
                    timer.into_iter().chain(r.core.next_event()).min()
                }
            };
            next.map(|t| t.max(r.core.paused_until()))
        });
        let timeline = self.0.timeline.borrow().peek().map(|e| e.at);
        of_cores.chain(timeline).min()
    }

    fn stuck(&self, why: Why) -> Stuck {
        Stuck { why, at: self.now(), dump: self.dump() }
    }

    /// All nodes and connections as they are, and the last lines of the trace if lines are kept.
    pub fn dump(&self) -> String {
        let mut out: Vec<String> = Vec::new();
        for n in self.0.nodes.borrow().iter() {
            out.extend(n.describe());
        }
        out.extend(self.0.net.describe());
        out.push(format!("{} more happenings on the timeline", self.0.timeline.borrow().len()));
        out.extend(self.0.clock.trace.lines());
        out.join("\n")
    }
}

fn is_ready(r: &Running, now: Nanos) -> bool {
    r.reactor.has_work()
        || r.core.again()
        || r.core.next_event().is_some_and(|t| t <= now)
        || r.reactor.next_deadline().is_some_and(|t| r.core.to_world(t) <= now)
}

impl Drop for World {
    fn drop(&mut self) {
        let nodes = self.0.nodes.take();
        if std::thread::panicking() {
            nodes.iter().for_each(Node::leak);
            std::mem::forget(self.0.cores.try_borrow_mut().map(|mut c| std::mem::take(&mut *c)));
            std::mem::forget(self.0.clone());
            return;
        }
        self.0.cores.borrow_mut().clear();
        let timeline = self.0.timeline.take();
        drop(timeline);
        nodes.iter().for_each(Node::end);
        self.0.net.clear();
    }
}
