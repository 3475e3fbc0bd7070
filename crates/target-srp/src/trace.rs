//! A ring of state changes, for looking at one request's way through its machines.

use std::cell::{Cell, RefCell};
use weir_base::Nanos;

/// One change of state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceEntry {
    /// When.
    pub at: Nanos,
    /// `request`, `dma`, `bdt`, `channel`, `nexus`.
    pub machine: &'static str,
    /// Which instance.
    pub id: u32,
    /// The state entered, as the document writes it.
    pub state: &'static str,
}

/// The newest state changes of a port. Off until a size is set; then it costs one clock read of the turn
/// and one store per change.
#[derive(Debug, Default)]
pub struct Trace {
    on: Cell<bool>,
    entries: RefCell<Vec<TraceEntry>>,
    next: Cell<usize>,
    size: Cell<usize>,
}

impl Trace {
    /// Keeps the newest `size` entries; 0 turns tracing off.
    pub fn set_size(&self, size: usize) {
        let mut e = self.entries.borrow_mut();
        e.clear();
        e.reserve_exact(size);
        self.size.set(size);
        self.next.set(0);
        self.on.set(size > 0);
    }

    /// True while changes of state are kept.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.get()
    }

    #[inline]
    pub(crate) fn note(&self, machine: &'static str, id: u32, state: &'static str) {
        if self.on.get() {
            self.store(TraceEntry { at: weir_reactor::now(), machine, id, state });
        }
    }

    #[cold]
    fn store(&self, entry: TraceEntry) {
        let mut e = self.entries.borrow_mut();
        let next = self.next.get();
        if e.len() < self.size.get() {
            e.push(entry);
        } else {
            e[next] = entry;
        }
        self.next.set((next + 1) % self.size.get());
    }

    /// The entries, oldest first.
    pub fn entries(&self) -> Vec<TraceEntry> {
        let e = self.entries.borrow();
        let split = if e.len() < self.size.get() { 0 } else { self.next.get() };
        e[split..].iter().chain(&e[..split]).copied().collect()
    }
}
