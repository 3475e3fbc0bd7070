//! The task that makes and deletes periodic snapshots of a pool, on the pool's reactor.

use super::plan::{self, Charge, Due, Key, There};
use super::{MOST_IN_GROUP, Rule};
use crate::{DatasetInfo, Pool, StoreError};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use weir_base::{Nanos, SECONDS};
use weir_reactor::{WaitChannel, now, spawn, spawn_task, timeout};

/// How long after a failure it is tried again; twice as long after each further one ...
const RETRY: Nanos = 5 * SECONDS;
/// ... up to this.
const RETRY_MOST: Nanos = 300 * SECONDS;
/// Longest sleep: the clock that periods go by may be set while it sleeps.
const LOOK: Nanos = 10 * SECONDS;
/// Snapshots deleted at a time; they share a checkpoint.
const TOGETHER: usize = 64;

/// What a keeper did, for logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// Snapshots were made, at one instant: volumes, and what the snapshot of each is called.
    Made(Vec<String>, String),
    /// A snapshot was deleted: volume and name.
    Deleted(String, String),
    /// Something is not done, and why. Told once, until it changes or is over.
    Trouble(Key, String),
    /// What was not done is done.
    Over(Key),
}

/// How a rule of a volume stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The volume's name in the pool.
    pub volume: String,
    /// The rule.
    pub rule: Rule,
    /// The newest snapshot of the rule.
    pub last: Option<String>,
    /// Snapshots of the rule that are there.
    pub kept: usize,
    /// When the next one is due, in seconds since 1970.
    pub next: u64,
    /// Why what is due is not done.
    pub trouble: Option<String>,
}

struct Trouble {
    why: String,
    failures: u32,
    /// When it is tried again, by the reactor's clock.
    again: Nanos,
}

/// Makes and deletes snapshots of a pool's volumes as their rules say.
pub struct Keeper {
    pool: Pool,
    /// Nanoseconds since 1970, by a clock that may be set.
    clock: Box<dyn Fn() -> Nanos>,
    tell: Box<dyn Fn(News)>,
    charges: RefCell<Vec<Charge>>,
    trouble: RefCell<BTreeMap<Key, Trouble>>,
    /// Held while something is done.
    busy: WaitChannel,
    wake: WaitChannel,
    ending: Cell<bool>,
    ended: WaitChannel,
}

/// What the pool has: snapshots by volume in the order in which they were made, and numbers by name.
struct Listing {
    there: There,
    numbers: BTreeMap<String, u32>,
    /// Snapshots that volumes were made of.
    held: BTreeSet<u32>,
}

fn full_name(volume: &str, snapshot: &str) -> String {
    format!("{volume}@{snapshot}")
}

impl Keeper {
    /// Begins with no rules. `clock` gives nanoseconds since 1970; `tell` is told what is done and what fails.
    pub fn start(
        pool: Pool,
        clock: impl Fn() -> Nanos + 'static,
        tell: impl Fn(News) + 'static,
    ) -> Rc<Keeper> {
        let me = Rc::new(Keeper {
            pool,
            clock: Box::new(clock),
            tell: Box::new(tell),
            charges: RefCell::default(),
            trouble: RefCell::default(),
            busy: WaitChannel::new(1),
            wake: WaitChannel::new(0),
            ending: Cell::new(false),
            ended: WaitChannel::new(0),
        });
        spawn_task(me.clone().work());
        me
    }

    /// Puts other rules in force. When this returns, nothing of those before is under way.
    pub async fn set(&self, charges: Vec<Charge>) {
        let busy = self.busy.acquire(1).await;
        if *self.charges.borrow() == charges {
            return;
        }
        let keys: BTreeSet<Key> =
            charges.iter().flat_map(|c| c.rules.iter().map(|r| Key::of(&c.volume, r))).collect();
        self.trouble.borrow_mut().retain(|k, _| keys.contains(k));
        *self.charges.borrow_mut() = charges;
        drop(busy);
        self.wake.signal();
    }

    /// Ends the task. When this returns, nothing is under way.
    pub async fn stop(&self) {
        if !self.ending.replace(true) {
            self.wake.signal();
            self.ended.wait().await;
        }
    }

    /// How the rules stand.
    pub fn standing(&self) -> Vec<Standing> {
        let (listing, seconds) = (self.list(), (self.clock)() / SECONDS);
        let (charges, trouble) = (self.charges.borrow(), self.trouble.borrow());
        let of = |c: &Charge, r: &Rule| {
            let names = listing.there.get(&c.volume);
            let mut mine: Vec<&String> = names.into_iter().flatten().collect();
            mine.retain(|n| r.policy.start_of(n).is_some());
            Standing {
                volume: c.volume.clone(),
                rule: r.clone(),
                last: mine.last().map(|n| n.to_string()),
                kept: mine.len(),
                next: r.policy.next(seconds),
                trouble: trouble.get(&Key::of(&c.volume, r)).map(|t| t.why.clone()),
            }
        };
        charges.iter().flat_map(|c| c.rules.iter().map(|r| of(c, r)).collect::<Vec<_>>()).collect()
    }

    /// What is due and not done, with the reason.
    pub fn troubles(&self) -> Vec<(Key, String)> {
        self.trouble.borrow().iter().map(|(k, t)| (k.clone(), t.why.clone())).collect()
    }

    async fn work(self: Rc<Self>) {
        while !self.ending.get() {
            let busy = self.busy.acquire(1).await;
            self.pass().await;
            let pause = self.pause();
            drop(busy);
            // The end of the time is as good a reason to look as being woken.
            let _ = timeout(pause, self.wake.wait()).await;
        }
        self.ended.signal();
    }

    /// How long nothing is to be done.
    fn pause(&self) -> Nanos {
        let (clock, mut pause) = ((self.clock)(), LOOK);
        for rule in self.charges.borrow().iter().flat_map(|c| &c.rules) {
            let next = rule.policy.next(clock / SECONDS).saturating_mul(SECONDS);
            pause = pause.min(next.saturating_sub(clock));
        }
        for t in self.trouble.borrow().values() {
            pause = pause.min(t.again.saturating_sub(now()));
        }
        pause.max(weir_base::MILLIS)
    }

    fn list(&self) -> Listing {
        let all = self.pool.datasets();
        let mut l = Listing {
            there: There::new(),
            numbers: BTreeMap::new(),
            held: all.iter().filter(|d| !d.snapshot).map(|d| d.parent).collect(),
        };
        // They come by number, and numbers grow.
        let live = |d: &&DatasetInfo| !d.deleting;
        for d in all.iter().filter(live) {
            match d.name.split_once('@') {
                Some((volume, name)) if d.snapshot => {
                    l.there.entry(volume.to_string()).or_default().push(name.to_string());
                }
                _ if !d.snapshot => drop(l.there.entry(d.name.clone()).or_default()),
                _ => continue,
            }
            l.numbers.insert(d.name.clone(), d.id);
        }
        l
    }

    /// Makes and deletes what is due now.
    async fn pass(&self) {
        let charges = self.charges.borrow().clone();
        if charges.is_empty() {
            return;
        }
        let seconds = (self.clock)() / SECONDS;
        let mut listing = self.list();
        let keys: BTreeSet<Key> =
            charges.iter().flat_map(|c| c.rules.iter().map(|r| Key::of(&c.volume, r))).collect();
        let waiting: BTreeSet<&Key> = keys.iter().filter(|k| self.waits(k)).collect();
        let mut failed = BTreeSet::new();
        for due in plan::due(&charges, &listing.there, seconds) {
            if waiting.contains(&due.key) {
                continue;
            }
            match self.make(&due, &listing, seconds).await {
                Ok(()) => (self.tell)(News::Made(due.volumes, due.name)),
                Err(why) => {
                    self.failed(due.key.clone(), why);
                    failed.insert(due.key);
                }
            }
        }
        // What is too many goes also when nothing new could be made, as in a pool that is full.
        let mut stuck = BTreeSet::new();
        loop {
            listing = self.list();
            let free = |(volume, name, key): &(String, String, Key)| {
                let number = listing.numbers.get(&full_name(volume, name));
                let is_free = number.is_some_and(|n| !listing.held.contains(n));
                is_free && !waiting.contains(key) && !stuck.contains(key)
            };
            let many = plan::excess(&charges, &listing.there);
            let some: Vec<_> = many.into_iter().filter(free).take(TOGETHER).collect();
            if some.is_empty() {
                break;
            }
            for (key, why) in self.delete(some, &listing).await {
                if let Some(why) = why.filter(|_| !failed.contains(&key)) {
                    self.failed(key.clone(), why);
                }
                stuck.insert(key);
            }
        }
        let ill = |k: &Key| waiting.contains(k) || failed.contains(k) || stuck.contains(k);
        for key in keys.iter().filter(|k| !ill(k)) {
            if self.trouble.borrow_mut().remove(key).is_some() {
                (self.tell)(News::Over(key.clone()));
            }
        }
    }

    async fn make(&self, due: &Due, listing: &Listing, seconds: u64) -> Result<(), String> {
        if due.volumes.len() > MOST_IN_GROUP {
            let n = due.volumes.len();
            return Err(format!("a group has up to {MOST_IN_GROUP} volumes, this one has {n}"));
        }
        let number = |v: &String| listing.numbers.get(v).copied();
        let named = due.volumes.iter().filter_map(|v| Some((number(v)?, full_name(v, &due.name))));
        let named: Vec<(u32, String)> = named.collect();
        let wanted: Vec<(u32, &str)> = named.iter().map(|(n, s)| (*n, s.as_str())).collect();
        self.pool.snapshot(&wanted, seconds).await.map(drop).map_err(|e| e.to_string())
    }

    /// Gives what was not deleted, and why if that is to be told.
    async fn delete(
        &self,
        some: Vec<(String, String, Key)>,
        listing: &Listing,
    ) -> Vec<(Key, Option<String>)> {
        let mut under_way = Vec::new();
        for (volume, name, key) in some {
            let Some(n) = listing.numbers.get(&full_name(&volume, &name)).copied() else {
                continue;
            };
            let pool = self.pool.clone();
            under_way.push((volume, name, key, spawn(async move { pool.delete(n).await })));
        }
        let mut left = Vec::new();
        for (volume, name, key, task) in under_way {
            match task.await {
                Some(Ok(())) => (self.tell)(News::Deleted(volume, name)),
                // Somebody has made a volume of it, or deleted it.
                Some(Err(StoreError::Request(_))) | None => left.push((key, None)),
                Some(Err(e)) => left.push((key, Some(format!("`{name}` is not deleted: {e}")))),
            }
        }
        left
    }

    /// Whether something failed and is not to be tried again yet.
    fn waits(&self, key: &Key) -> bool {
        self.trouble.borrow().get(key).is_some_and(|t| now() < t.again)
    }

    fn failed(&self, key: Key, why: String) {
        let mut all = self.trouble.borrow_mut();
        let before = all.get(&key);
        let failures = before.map_or(0, |t| t.failures);
        let is_news = before.is_none_or(|t| t.why != why);
        let pause = RETRY.saturating_mul(1 << failures.min(10)).min(RETRY_MOST);
        let again = now() + pause;
        all.insert(key.clone(), Trouble { why: why.clone(), failures: failures + 1, again });
        drop(all);
        if is_news {
            (self.tell)(News::Trouble(key, why));
        }
    }
}
