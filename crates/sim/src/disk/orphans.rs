//! What a killed process had asked of a disk and the disk has not done yet: it is done later, whoever has the disk then.

use super::medium::SimMedium;
use crate::clock::Clock;
use crate::core::Event;
use std::rc::Rc;
use weir_base::{MILLIS, Nanos, SECONDS};

/// A part of a write.
pub(crate) enum What {
    Data(Vec<u8>),
    Zero(u64),
}

/// The parts of a write that have not been moved when its process was killed.
pub(crate) struct Orphan {
    pub(crate) op: u64,
    /// Where each part goes.
    pub(crate) parts: Vec<(u64, What)>,
    pub(crate) durable: bool,
}

impl SimMedium {
    /// Lets what is left of a process that was killed now come to its end, in the time that a disk takes, or one in trouble:
    /// a path that is retried, a sector that is read over and over.
    pub(crate) fn adopt(&self, clock: &Rc<Clock>, schedule: impl Fn(Event<Box<dyn FnOnce()>>)) {
        let orphans = std::mem::take(&mut *self.0.orphans.borrow_mut());
        let longest = [MILLIS / 5, 5 * MILLIS, 50 * MILLIS, 3 * SECONDS];
        let longest = longest[self.draw(|r| r.below(4)) as usize];
        for o in orphans {
            // One that had not been begun is not.
            if self.draw(|r| r.chance(1, 3)) {
                continue;
            }
            let epoch = self.0.epoch.get();
            for part in o.parts {
                let at = clock.now() + self.draw(|r| r.below(longest));
                self.0.busy_until.set(self.0.busy_until.get().max(at + 1));
                let (m, op, durable) = (self.clone(), o.op, o.durable);
                let land = move || {
                    if m.0.epoch.get() == epoch && !m.is_offline() {
                        m.land(op, part, durable);
                    }
                };
                schedule(Event::new(clock, at, Box::new(land) as Box<dyn FnOnce()>));
            }
        }
    }

    /// Nothing of a world that ends goes on.
    pub(crate) fn abandon(&self) {
        self.0.orphans.borrow_mut().clear();
        self.0.busy_until.set(0);
    }

    fn land(&self, op: u64, (at, what): (u64, What), durable: bool) {
        let mut cache = self.0.cache.borrow_mut();
        let len = match what {
            What::Data(bytes) => {
                let len = bytes.len() as u64;
                cache.write(op, at, bytes);
                len
            }
            What::Zero(len) => {
                cache.zero(op, at, len);
                len
            }
        };
        cache.finish(op, durable);
        drop(cache);
        self.mend(at, len);
        self.count(|c| &mut c.late_writes);
    }

    /// How long it takes from `now` on until nothing of a killed process is under way any more. Whoever opens a disk waits for
    /// that, as the operating system has it: the lock goes with the descriptor that the I/O holds.
    pub fn drains_in(&self, now: Nanos) -> Nanos {
        match self.0.config.borrow().open_waits {
            true => self.0.busy_until.get().saturating_sub(now),
            false => 0,
        }
    }
}
