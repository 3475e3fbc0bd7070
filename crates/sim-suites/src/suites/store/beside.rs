//! What goes on beside I/O: scrubs that end or are given up, snapshots that go soon after, and pairs of volumes that are
//! written in an order, of which no snapshot of both shows another.

use super::director::{Director, is_low};
use super::pool::{Loaded, Story};
use super::trouble::Trouble;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{IoError, MICROS, MILLIS, Prng};
use weir_block::Volume;
use weir_mem::Slice;
use weir_reactor::{sleep, spawn, timeout};
use weir_store::{Pool, ScrubWatch, StoreError};

/// The volumes of a pair: the first is written first.
pub(crate) const PAIR: [&str; 2] = ["left", "right"];

/// What was done, over all lives.
#[derive(Default)]
pub(crate) struct Beside {
    /// What the last scrub found.
    watch: RefCell<Rc<ScrubWatch>>,
    scrubs: Cell<u64>,
    given_up: Cell<u64>,
    passing: Cell<u64>,
    pairs: Cell<u64>,
    /// Blocks that did not hold what was written, moved to spares.
    pub(crate) relocated: Cell<u64>,
    /// Volumes that grew.
    pub(crate) grown: Cell<u64>,
    /// Times that blocks that were freed were overwritten, and that it was given up.
    pub(crate) shredded: Cell<(u64, u64)>,
    /// Pools that were closed beside everything else, and of those, the ones looked at afterwards.
    pub(crate) closed: Cell<(u64, u64)>,
}

fn more(n: &Cell<u64>) {
    n.set(n.get() + 1);
}

impl Beside {
    /// Scrubs to the end or gives up, one after the other.
    async fn scrubs(self: Rc<Self>, pool: Pool, mut rng: Prng) {
        loop {
            sleep(rng.below(5 * MILLIS)).await;
            let (p, rate) = (pool.clone(), [0, 0, 30_000][rng.below(3) as usize]);
            let watch: Rc<ScrubWatch> = Rc::default();
            self.watch.replace(watch.clone());
            let mut scrub = spawn(async move { p.scrub_watched(rate, watch).await });
            let patience = match rng.chance(1, 2) {
                true => rng.between(20 * MICROS, 3 * MILLIS),
                false => 1000 * MILLIS,
            };
            match timeout(patience, &mut scrub).await {
                Ok(Some(Ok(_))) => more(&self.scrubs),
                Ok(_) => return,
                Err(_) => {
                    scrub.cancel();
                    more(&self.given_up);
                }
            }
        }
    }

    /// As figures of a run.
    pub(crate) fn figures(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("scrubs beside I/O", self.scrubs.get()),
            ("scrubs given up", self.given_up.get()),
            ("snapshots that went soon after", self.passing.get()),
            ("pairs of volumes looked at in snapshots", self.pairs.get()),
            ("blocks that did not hold what was written, moved to spares", self.relocated.get()),
            ("volumes that grew", self.grown.get()),
            ("times that freed blocks were overwritten", self.shredded.get().0),
            ("times that this was given up", self.shredded.get().1),
            ("pools that were closed beside everything else", self.closed.get().0),
            ("of these, pools that were looked at afterwards", self.closed.get().1),
        ]
    }
}

impl Story {
    /// Every device does as it is told or fails: nothing that is read may be damaged.
    pub(crate) fn honest(&self) -> bool {
        use Trouble::*;
        !matches!(self.trouble, Latent | BothCopies | Lies | Passing | OneThenOther | Unreadable)
    }

    /// Looks whether a device was blamed that did as it was told.
    pub(crate) fn note_blame(&self) {
        let damaged = self.pool.borrow().as_ref().map_or(0, |p| p.counters().damaged);
        if self.honest() && damaged > 0 {
            let text = format!(
                "{damaged} copies were called damaged in a story of {:?}, where none was; the last scrub: {:?}",
                self.trouble,
                self.beside.watch.borrow().findings()
            );
            self.errors.wrong.borrow_mut().get_or_insert(text);
        }
    }

    /// Sets off what goes on beside I/O in this life.
    pub(crate) fn start_beside(&mut self, pool: &Pool) {
        self.start_shredding(pool);
        if matches!(self.trouble, Trouble::Lies | Trouble::Passing | Trouble::Unreadable) {
            return;
        }
        let mut rng = self.rng.fork();
        if rng.chance(2, 3) {
            self.node.spawn(self.beside.clone().scrubs(pool.clone(), rng.fork()));
        }
        if self.trouble == Trouble::Full {
            return;
        }
        let (b, d) = (self.beside.clone(), self.director.clone());
        if rng.chance(1, 2) {
            let volumes = self.volumes.clone();
            self.node.spawn(d.clone().passing(pool.clone(), volumes, b.clone()));
        }
        // Without checksums of data a kill in the middle of a write tells nobody whether it was written.
        if rng.chance(1, 2) && !self.unsummed {
            self.node.spawn(d.pairs(pool.clone(), b));
        }
    }
}

async fn number(v: &dyn Volume) -> Result<u64, IoError> {
    let buf = Slice::heap(4096);
    v.read(0, buf.clone()).await?;
    let mut n = [0; 8];
    buf.read_at(0, &mut n);
    Ok(u64::from_le_bytes(n))
}

async fn put(v: &dyn Volume, n: u64) -> Result<(), IoError> {
    let buf = Slice::heap(4096);
    buf.fill(0);
    buf.write_at(0, &n.to_le_bytes());
    v.write(0, buf, false).await
}

impl Director {
    /// Takes snapshots of the volumes under load and deletes them soon after, whatever else is done to them.
    async fn passing(self: Rc<Self>, pool: Pool, volumes: Vec<Rc<Loaded>>, beside: Rc<Beside>) {
        loop {
            sleep(self.below(2 * MILLIS)).await;
            let mine = |d: &weir_store::DatasetInfo| d.name.starts_with('p') && !d.deleting;
            let old: Vec<u32> = pool.datasets().into_iter().filter(mine).map(|d| d.id).collect();
            let done = match old.first() {
                Some(id) if old.len() > 2 || self.below(2) == 0 => pool.delete(*id).await,
                _ if is_low(&pool) => continue,
                _ => {
                    let v = &volumes[self.below(volumes.len() as u64) as usize];
                    let Some(id) = pool.find(&v.name) else { return };
                    more(&beside.passing);
                    pool.snapshot(&[(id, &self.name("p"))], 0).await.map(|_| ())
                }
            };
            match done {
                Ok(()) | Err(StoreError::Request(_) | StoreError::Io(IoError::NoSpace)) => {}
                Err(_) => return,
            }
        }
    }

    /// Writes a number to one volume, then to the other, over and over; looks at both in snapshots of one instant.
    async fn pairs(self: Rc<Self>, pool: Pool, beside: Rc<Beside>) {
        let ids = PAIR.map(|name| pool.find(name));
        let [Some(left), Some(right)] = ids else {
            return self.verdict.is_wrong("a volume of the pair is gone".into());
        };
        let (Ok(l), Ok(r)) = (pool.volume(left), pool.volume(right)) else { return };
        let (Ok(mut n), Ok(last)) = (number(&*l).await, number(&*r).await) else { return };
        if n != last && n != last + 1 {
            return self.verdict.is_wrong(format!("a pair is {n} and {last} after a crash"));
        }
        let writer = spawn(async move {
            // What may not have been written to the second is, before anything new.
            while put(&*l, n).await.is_ok() && put(&*r, n).await.is_ok() {
                n += 1;
            }
        });
        let old = |d: &weir_store::DatasetInfo| d.name.starts_with('o') && !d.deleting;
        for d in pool.datasets().iter().filter(|d| old(d)) {
            let _ = pool.delete(d.id).await;
        }
        while !writer.is_finished() && !is_low(&pool) {
            sleep(self.below(3 * MILLIS)).await;
            let names = [self.name("o"), self.name("o")];
            let made = pool.snapshot(&[(left, &names[0]), (right, &names[1])], 0).await;
            let Ok(made) = made else { break };
            let mut seen = Vec::new();
            for id in &made {
                let Ok(v) = pool.volume(*id) else { return };
                let Ok(n) = number(&*v).await else { return };
                seen.push(n);
            }
            more(&beside.pairs);
            if seen[0] != seen[1] && seen[0] != seen[1] + 1 {
                self.verdict.is_wrong(format!("snapshots of one instant show {seen:?}"));
            }
            for id in made {
                if pool.delete(id).await.is_err() {
                    return;
                }
            }
        }
        writer.cancel();
    }
}
