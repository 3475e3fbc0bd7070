//! A destination that stops answering for a while, again and again.

use std::cell::{Cell, RefCell};
use weir_base::{MILLIS, Nanos, Prng};
use weir_sim::SimMedium;

/// When a disk takes how much longer than it should.
pub(super) struct Stalls {
    medium: SimMedium,
    rng: RefCell<Prng>,
    patience: Nanos,
    /// It is slow, but not so slow that anybody would go on without it.
    slow_only: bool,
    /// The last one has no end.
    endless: bool,
    /// Those to come.
    left: Cell<u32>,
    /// When the present one ends, or the next begins.
    turn: Cell<Nanos>,
    on: Cell<bool>,
}

impl Stalls {
    /// Of a migration that begins now and has so much patience with `medium`.
    pub(super) fn new(medium: &SimMedium, mut rng: Prng, patience: Nanos, now: Nanos) -> Stalls {
        let first = if rng.chance(1, 2) { 0 } else { rng.below(20 * MILLIS) };
        Stalls {
            medium: medium.clone(),
            patience,
            slow_only: rng.chance(1, 8),
            endless: rng.chance(1, 8),
            left: Cell::new(rng.between(1, 4) as u32),
            turn: Cell::new(now + first),
            on: Cell::new(false),
            rng: RefCell::new(rng),
        }
    }

    /// No I/O takes so long that hosts go on without it.
    pub(super) fn is_slow_only(&self) -> bool {
        self.slow_only
    }

    /// It is `now`.
    pub(super) fn look(&self, now: Nanos) {
        if now < self.turn.get() {
            return;
        }
        match self.on.get() {
            true => self.end(now),
            false => self.begin(now),
        }
    }

    /// One begins, if one is left.
    pub(super) fn begin(&self, now: Nanos) {
        if self.on.get() || self.left.get() == 0 {
            return;
        }
        self.left.set(self.left.get() - 1);
        let mut rng = self.rng.borrow_mut();
        let longest = [[5, 30, 120], [3, 20, 120]].map(|of| of[rng.below(3) as usize]);
        let extra = match self.slow_only {
            true => rng.below(self.patience / 2),
            false => self.patience + rng.between(1, longest[0]) * MILLIS,
        };
        let lasts = match self.endless && self.left.get() == 0 {
            true => Nanos::MAX / 2,
            false => rng.between(1, longest[1]) * MILLIS,
        };
        self.medium.stall(extra);
        self.on.set(true);
        self.turn.set(now + lasts);
    }

    fn end(&self, now: Nanos) {
        self.medium.stall(0);
        self.on.set(false);
        self.turn.set(now + self.rng.borrow_mut().below(150 * MILLIS));
    }

    /// No more of them.
    pub(super) fn end_for_good(&self) {
        self.medium.stall(0);
        self.on.set(false);
        self.left.set(0);
    }
}
