//! Who owns the pool, and which nodes have everything: a register as bad as one may be, late and in doubt.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use weir_base::{MILLIS, Nanos, Prng, SECONDS};
use weir_reactor::{LocalFuture, sleep};
use weir_sim::Time;
use weir_store::{Able, Arbiter};

/// The register.
pub(super) struct Register {
    pub(super) epoch: Cell<u32>,
    pub(super) owner: Cell<u16>,
    able: Cell<Able>,
    /// Counts changes: one that is decided late holds only if none came between.
    version: Cell<u64>,
    rng: RefCell<Prng>,
    time: Time,
    /// Changes that are decided later: when, if this is still the version, and what is kept then.
    open: RefCell<Vec<(Nanos, u64, Able)>>,
    /// Longest time of an answer, and until when none comes at all.
    longest: Nanos,
    stuck_until: Cell<Nanos>,
    /// Epochs of owners that were told that they are none any more.
    knows: RefCell<BTreeSet<u32>>,
    /// Changes to fewer nodes, to more, refused, and such in doubt that were kept.
    pub(super) fewer: Cell<u64>,
    pub(super) more: Cell<u64>,
    pub(super) refused: Cell<u64>,
    pub(super) doubts: Cell<u64>,
}

fn add(n: &Cell<u64>) {
    n.set(n.get() + 1);
}

impl Register {
    pub(super) fn new(mut rng: Prng, time: Time) -> Rc<Register> {
        Rc::new(Register {
            epoch: Cell::new(0),
            owner: Cell::new(0),
            able: Cell::new(Able::NONE.with(1).with(2)),
            version: Cell::new(0),
            time,
            open: RefCell::default(),
            longest: [MILLIS, 20 * MILLIS, 400 * MILLIS][rng.below(3) as usize],
            rng: RefCell::new(rng),
            stuck_until: Cell::default(),
            knows: RefCell::default(),
            fewer: Cell::default(),
            more: Cell::default(),
            refused: Cell::default(),
            doubts: Cell::default(),
        })
    }

    /// A node takes the pool over. Gives its epoch. There is a majority then.
    pub(super) fn claim(&self, node: u16) -> u32 {
        self.answers();
        self.decide();
        self.epoch.set(self.epoch.get() + 1);
        self.owner.set(node);
        self.version.set(self.version.get() + 1);
        self.epoch.get()
    }

    /// It has no majority for so long.
    pub(super) fn sticks(&self, long: Nanos) {
        self.stuck_until.set(self.time.now() + long);
    }

    /// It has a majority again.
    pub(super) fn answers(&self) {
        self.stuck_until.set(0);
    }

    /// Waits for a while, and until there is a majority.
    async fn wait(&self) {
        sleep(self.pause()).await;
        while self.time.now() < self.stuck_until.get() {
            sleep(20 * MILLIS).await;
        }
    }

    /// Whether this owner was told that it is none any more.
    pub(super) fn has_refused(&self, epoch: u32) -> bool {
        self.knows.borrow().contains(&epoch)
    }

    /// What was in doubt until now is decided.
    fn decide(&self) {
        let now = self.time.now();
        let (due, later) = self.open.take().into_iter().partition(|(when, ..)| *when <= now);
        self.open.replace(later);
        let mut due: Vec<(Nanos, u64, Able)> = due;
        due.sort_by_key(|(when, ..)| *when);
        for (_, version, able) in due {
            if self.version.get() == version {
                self.set(able);
                add(&self.doubts);
            }
        }
    }

    /// The nodes that have everything.
    pub(super) fn able(&self) -> Able {
        self.decide();
        self.able.get()
    }

    /// As somebody has seen to it.
    pub(super) fn force(&self, able: Able) {
        self.set(able);
    }

    fn set(&self, able: Able) {
        self.able.set(able);
        self.version.set(self.version.get() + 1);
    }

    fn pause(&self) -> Nanos {
        self.rng.borrow_mut().below(self.longest)
    }

    fn chance(&self, n: u64, of: u64) -> bool {
        self.rng.borrow_mut().chance(n, of)
    }
}

/// The register as one owner asks it.
pub(super) struct Asker {
    pub(super) register: Rc<Register>,
    pub(super) epoch: u32,
}

impl Asker {
    fn owns(&self) -> bool {
        self.register.decide();
        self.register.epoch.get() == self.epoch
    }
}

impl Arbiter for Asker {
    fn fewer(&self, able: Able) -> LocalFuture<'_, bool> {
        Box::pin(async move {
            let r = &self.register;
            r.wait().await;
            if !self.owns() {
                add(&r.refused);
                r.knows.borrow_mut().insert(self.epoch);
                return false;
            }
            // Whatever was in doubt before is of another version, and comes to nothing.
            r.set(able);
            add(&r.fewer);
            r.wait().await;
            true
        })
    }

    fn more(&self, able: Able) -> LocalFuture<'_, bool> {
        let began = self.register.version.get();
        Box::pin(async move {
            let r = &self.register;
            r.wait().await;
            if !self.owns() || r.version.get() != began {
                return false;
            }
            if r.chance(1, 3) {
                // In doubt: it is kept or not, now or later.
                if r.chance(2, 3) {
                    let longest = [r.longest, 3 * SECONDS][usize::from(r.chance(1, 3))];
                    let when = r.time.now() + r.rng.borrow_mut().below(longest);
                    r.open.borrow_mut().push((when, r.version.get(), able));
                }
                return false;
            }
            r.set(able);
            add(&r.more);
            r.wait().await;
            true
        })
    }
}
