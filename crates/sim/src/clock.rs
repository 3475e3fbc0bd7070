//! What all reactors of one world share: virtual time, the order of events, the source of chance.

use crate::chance::Odds;
use crate::trace::Trace;
use std::cell::{Cell, RefCell};
use weir_base::{Nanos, Prng};

pub(crate) struct Clock {
    now: Cell<Nanos>,
    order: Cell<u64>,
    rng: RefCell<Prng>,
    pub(crate) trace: Trace,
}

impl Clock {
    pub(crate) fn new(rng: Prng) -> Clock {
        Clock {
            now: Cell::new(0),
            order: Cell::new(0),
            rng: RefCell::new(rng),
            trace: Trace::default(),
        }
    }

    #[inline]
    pub(crate) fn now(&self) -> Nanos {
        self.now.get()
    }

    /// Moves time on; it never goes back.
    pub(crate) fn advance_to(&self, at: Nanos) {
        self.now.set(self.now.get().max(at));
    }

    /// A number for an event among those of the same time: seeded, unique.
    pub(crate) fn tie(&self) -> u64 {
        let order = self.order.get() + 1;
        self.order.set(order);
        let chance = self.rng.borrow_mut().next_u64();
        (chance & !0xffff_ffff) | (order & 0xffff_ffff)
    }

    /// A decision of the scheduler: one of `n`, recorded in the trace.
    pub(crate) fn pick(&self, n: usize) -> usize {
        if n < 2 {
            return 0;
        }
        let k = self.rng.borrow_mut().below(n as u64);
        self.trace.mix(k);
        k as usize
    }

    pub(crate) fn hit(&self, odds: Odds) -> bool {
        odds.hit(&mut self.rng.borrow_mut())
    }

    /// Uniform in `lo..=hi`.
    pub(crate) fn between(&self, lo: u64, hi: u64) -> u64 {
        self.rng.borrow_mut().between(lo, hi)
    }
}
