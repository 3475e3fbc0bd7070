//! Who may do what at the same time: block ranges, the gate of writes, readers of blocks.

use crate::planted::{Bug, has};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_reactor::WaitChannel;

/// Locks of block ranges of one dataset.
#[derive(Default)]
pub(crate) struct RangeLocks {
    /// Number, first block, end.
    held: RefCell<Vec<(u64, u64, u64)>>,
    next: Cell<u64>,
    released: WaitChannel,
}

/// A locked range; dropping it unlocks.
pub(crate) struct RangeLock {
    locks: Rc<RangeLocks>,
    id: u64,
}

impl Drop for RangeLock {
    fn drop(&mut self) {
        let mut held = self.locks.held.borrow_mut();
        if let Some(k) = held.iter().position(|(id, ..)| *id == self.id) {
            held.swap_remove(k);
        }
        drop(held);
        self.locks.released.signal_all();
    }
}

impl RangeLocks {
    fn is_free(&self, from: u64, to: u64) -> bool {
        self.held.borrow().iter().all(|(_, s, e)| to <= *s || *e <= from)
    }

    /// Locks `from..to`, when nobody holds any of it.
    pub(crate) async fn lock(self: &Rc<Self>, from: u64, to: u64) -> RangeLock {
        while !self.is_free(from, to) {
            self.released.wait().await;
        }
        self.take(from, to)
    }

    /// Locks a range without looking.
    pub(crate) fn take(self: &Rc<Self>, from: u64, to: u64) -> RangeLock {
        let id = self.next.get();
        self.next.set(id + 1);
        self.held.borrow_mut().push((id, from, to));
        RangeLock { locks: self.clone(), id }
    }
}

#[derive(Default)]
struct GateState {
    inside: Cell<u32>,
    closed: Cell<u32>,
    opened: WaitChannel,
    empty: WaitChannel,
}

/// Writes go through; a cut closes the gate and waits until none is inside.
#[derive(Default, Clone)]
pub(crate) struct Gate(Rc<GateState>);

/// A write inside the gate.
pub(crate) struct Pass(Rc<GateState>);

impl Drop for Pass {
    fn drop(&mut self) {
        self.0.inside.set(self.0.inside.get() - 1);
        if self.0.inside.get() == 0 {
            self.0.empty.signal_all();
        }
    }
}

/// The gate is closed while this lives, and nobody is inside.
pub(crate) struct Closed(Rc<GateState>);

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.closed.set(self.0.closed.get() - 1);
        if self.0.closed.get() == 0 {
            self.0.opened.signal_all();
        }
    }
}

impl Gate {
    pub(crate) async fn enter(&self) -> Pass {
        while self.0.closed.get() > 0 {
            self.0.opened.wait().await;
        }
        self.pass()
    }

    /// Goes in also when it is closed: for whoever closed it.
    pub(crate) fn pass(&self) -> Pass {
        self.0.inside.set(self.0.inside.get() + 1);
        Pass(self.0.clone())
    }

    pub(crate) async fn close(&self) -> Closed {
        self.0.closed.set(self.0.closed.get() + 1);
        let closed = Closed(self.0.clone());
        while self.0.inside.get() > 0 {
            self.0.empty.wait().await;
        }
        closed
    }

    /// Closes it without waiting for those inside.
    pub(crate) fn close_at_once(&self) -> Closed {
        self.0.closed.set(self.0.closed.get() + 1);
        Closed(self.0.clone())
    }
}

#[derive(Default)]
struct PinState {
    counts: [Cell<u32>; 2],
    side: Cell<usize>,
    /// How often the sides have changed.
    turns: Cell<u64>,
    empty: WaitChannel,
}

/// Readers of blocks: what they looked up stays in place until they are done.
#[derive(Default, Clone)]
pub(crate) struct Pins(Rc<PinState>);

/// A reader.
pub(crate) struct Pin {
    state: Rc<PinState>,
    side: usize,
}

impl Clone for Pin {
    /// Another one that began when this did: whoever waits for this one waits for both.
    fn clone(&self) -> Pin {
        let c = &self.state.counts[self.side];
        c.set(c.get() + 1);
        Pin { state: self.state.clone(), side: self.side }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let c = &self.state.counts[self.side];
        c.set(c.get() - 1);
        if c.get() == 0 {
            self.state.empty.signal_all();
        }
    }
}

impl Pins {
    pub(crate) fn pin(&self) -> Pin {
        let side = self.0.side.get();
        let c = &self.0.counts[side];
        c.set(c.get() + 1);
        Pin { state: self.0.clone(), side }
    }

    /// Waits until everybody who is reading now is done.
    pub(crate) async fn grace(&self) {
        let s = &self.0;
        // Somebody has waited for these and was given up, or waits still.
        while s.counts[1 - s.side.get()].get() > 0 && !has(Bug::GraceForgets) {
            s.empty.wait().await;
        }
        let (old, turn) = (s.side.get(), s.turns.get() + 1);
        s.side.set(1 - old);
        s.turns.set(turn);
        // When the sides have changed again nobody was left.
        while s.counts[old].get() > 0 && (s.turns.get() == turn || has(Bug::GraceForgets)) {
            s.empty.wait().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_base::SECONDS;
    use weir_reactor::{sleep, spawn, timeout};
    use weir_sim::World;

    fn sim<F: Future<Output = ()> + 'static>(f: F) {
        let w = World::new(1);
        let n = w.node("n");
        w.run(&n, 1000 * SECONDS, f).unwrap();
    }

    /// Whether whoever waits for readers came to an end before this one, which began before it, when others were waiting,
    /// and some had been given up.
    fn overtaken(given_up: u32, others: u32) -> bool {
        let result = Rc::new(Cell::new(false));
        let told = result.clone();
        sim(async move {
            let pins = Pins::default();
            let reader = pins.pin();
            for _ in 0..given_up {
                assert!(timeout(SECONDS, pins.grace()).await.is_err());
            }
            for _ in 0..others {
                let pins = pins.clone();
                spawn(async move { pins.grace().await });
                sleep(SECONDS).await;
            }
            let early = timeout(SECONDS, pins.grace()).await.is_ok();
            let later = pins.pin();
            drop(reader);
            // That one is waited for, too.
            assert!(timeout(SECONDS, pins.grace()).await.is_err());
            drop(later);
            pins.grace().await;
            told.set(early);
        });
        result.get()
    }

    #[test]
    fn who_waits_for_readers_waits_for_all_of_them() {
        for given_up in 0..4 {
            for others in 0..4 {
                assert!(!overtaken(given_up, others), "{given_up} {others}");
            }
        }
    }

    #[test]
    fn who_waits_for_readers_does_not_wait_for_those_who_come_later() {
        sim(async {
            let pins = Pins::default();
            let reader = pins.pin();
            let wait = |pins: Pins| spawn(async move { pins.grace().await });
            let first = wait(pins.clone());
            sleep(SECONDS).await;
            let second = pins.pin();
            let all = wait(pins.clone());
            sleep(SECONDS).await;
            drop(reader);
            assert!(timeout(SECONDS, first).await.is_ok());
            let third = pins.pin();
            drop(second);
            assert!(timeout(SECONDS, all).await.is_ok());
            drop(third);
        });
    }

    #[cfg(feature = "planted")]
    #[test]
    fn who_forgets_readers_of_before_is_caught() {
        use crate::planted::plant;
        plant(Some(Bug::GraceForgets));
        let all = [overtaken(1, 0), overtaken(0, 1)];
        plant(None);
        assert_eq!(all, [true; 2]);
    }
}
