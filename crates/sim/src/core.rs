//! One simulated core: what the driver of one reactor needs, for one life of its process.

use crate::clock::Clock;
use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use weir_base::Nanos;
use weir_reactor::{Driver, Machine, Unpark};

/// Something that happens at a set time.
pub(crate) struct Event<F> {
    pub(crate) at: Nanos,
    tie: u64,
    pub(crate) run: F,
}

impl<F> Event<F> {
    pub(crate) fn new(clock: &Clock, at: Nanos, run: F) -> Self {
        Event { at: at.max(clock.now()), tie: clock.tie(), run }
    }

    /// Records in the trace that it happens now.
    pub(crate) fn trace(&self, clock: &Clock, who: u32) {
        clock.trace.mix(self.at ^ (u64::from(who) << 56));
        clock.trace.mix(self.tie);
    }
}

impl<F> PartialEq for Event<F> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<F> Eq for Event<F> {}

impl<F> PartialOrd for Event<F> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<F> Ord for Event<F> {
    /// The earliest is the greatest, as a heap wants it.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.tie).cmp(&(self.at, self.tie))
    }
}

/// What an event of a core does.
type Action = Box<dyn FnOnce()>;

/// One core of a node, from start to kill. A new life of the node has new cores.
pub(crate) struct Core {
    /// Number in the world, for the trace.
    pub(crate) number: u32,
    /// Number of its node.
    pub(crate) node: u32,
    pub(crate) label: String,
    pub(crate) clock: Rc<Clock>,
    /// Its clock shows the world's time plus this: no two nodes' clocks agree.
    offset: Nanos,
    events: RefCell<BinaryHeap<Event<Action>>>,
    alive: Cell<bool>,
    paused_until: Cell<Nanos>,
    /// Its reactor may not sleep yet: what it polls may have something.
    again: Cell<bool>,
    /// Number of its reactor.
    reactor: Cell<Option<u32>>,
}

impl Core {
    pub(crate) fn new(
        number: u32,
        node: u32,
        label: String,
        clock: Rc<Clock>,
        offset: Nanos,
    ) -> Rc<Core> {
        Rc::new(Core {
            number,
            node,
            label,
            clock,
            offset,
            events: RefCell::default(),
            alive: Cell::new(true),
            paused_until: Cell::new(0),
            again: Cell::new(false),
            reactor: Cell::new(None),
        })
    }

    pub(crate) fn set_reactor(&self, id: u32) {
        self.reactor.set(Some(id));
    }

    /// What belongs to one reactor is used on that one only.
    ///
    /// # Panics
    /// When called on another reactor, or on none.
    pub(crate) fn check_here(&self, what: &str) {
        assert!(
            weir_reactor::try_current_id() == self.reactor.get(),
            "{what} of {} used outside its reactor",
            self.label
        );
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.alive.get()
    }

    /// Ends this life: nothing that was scheduled happens any more.
    pub(crate) fn die(&self) {
        self.alive.set(false);
        // Dropping what events hold may schedule; on a dead core that is refused.
        let events = std::mem::take(&mut *self.events.borrow_mut());
        drop(events);
    }

    /// Runs `f` on this core, inside its reactor, `delay` nanoseconds from now. Dropped when it is dead.
    pub(crate) fn after(&self, delay: Nanos, f: impl FnOnce() + 'static) {
        if self.alive.get() {
            let at = self.clock.now().saturating_add(delay);
            let e = Event::new(&self.clock, at, Box::new(f) as Action);
            self.events.borrow_mut().push(e);
        }
    }

    pub(crate) fn pause_until(&self, at: Nanos) {
        self.paused_until.set(self.paused_until.get().max(at));
    }

    pub(crate) fn paused_until(&self) -> Nanos {
        self.paused_until.get()
    }

    pub(crate) fn set_again(&self, yes: bool) {
        self.again.set(yes);
    }

    pub(crate) fn again(&self) -> bool {
        self.again.get()
    }

    pub(crate) fn next_event(&self) -> Option<Nanos> {
        self.events.borrow().peek().map(|e| e.at)
    }

    pub(crate) fn events(&self) -> usize {
        self.events.borrow().len()
    }

    /// The time on this core's clock.
    pub(crate) fn now(&self) -> Nanos {
        self.clock.now() + self.offset
    }

    /// The world's time for a time on this core's clock.
    pub(crate) fn to_world(&self, local: Nanos) -> Nanos {
        local.saturating_sub(self.offset)
    }

    /// Adds a line to the trace in words.
    #[inline]
    pub(crate) fn say(&self, words: impl FnOnce() -> String) {
        let label = &self.label;
        self.clock.trace.line(self.clock.now(), || format!("{label}: {}", words()));
    }
}

/// A reactor's driver in a simulated world.
pub struct SimDriver {
    core: Rc<Core>,
    fifo: bool,
}

impl SimDriver {
    pub(crate) fn new(core: Rc<Core>, fifo: bool) -> Rc<SimDriver> {
        Rc::new(SimDriver { core, fifo })
    }
}

struct NoSleeper;

impl Unpark for NoSleeper {
    /// Nobody sleeps: the world looks at every mailbox before it moves time on.
    fn unpark(&self) {}
}

impl Driver for SimDriver {
    fn now(&self) -> Nanos {
        self.core.now()
    }

    fn poll(&self) -> bool {
        let core = &*self.core;
        let mut any = false;
        loop {
            let due = {
                let mut events = core.events.borrow_mut();
                match events.peek() {
                    Some(e) if e.at <= core.clock.now() => events.pop(),
                    _ => None,
                }
            };
            let Some(e) = due else { return any };
            any = true;
            e.trace(&core.clock, core.number);
            (e.run)();
        }
    }

    /// # Panics
    /// Always: only the world moves time on.
    fn park(&self, _until: Option<Nanos>) {
        panic!("a simulated reactor cannot block its thread: use World::run instead of block_on");
    }

    fn unparker(&self) -> Arc<dyn Unpark> {
        Arc::new(NoSleeper)
    }

    fn pick(&self, n: usize) -> usize {
        self.core.clock.pick(n)
    }

    fn permutes(&self) -> bool {
        !self.fifo
    }

    fn machine(&self) -> Option<&dyn Machine> {
        Some(self)
    }
}

/// When worlds begin, by the calendar: a second long past, so that nothing in a run is of another day.
const BEGIN: Duration = Duration::from_secs(1_700_000_000);

impl Machine for SimDriver {
    fn calendar(&self) -> Duration {
        BEGIN + Duration::from_nanos(self.core.clock.now())
    }

    fn entropy(&self, out: &mut [u8]) {
        out.fill_with(|| self.core.clock.between(0, 255) as u8);
    }
}
