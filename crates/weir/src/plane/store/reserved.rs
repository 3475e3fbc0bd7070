//! Persistent reservations on the devices of pools: a node that takes a pool over keeps out whom hosts have shut out before.
//!
//! The data directory has them as well, for volumes of other pools. Each copy has a number that grows with every change, and the
//! greater one counts, wherever it is: another node may have had the pool meanwhile, or the volume may have been in another pool.

use super::{Node, OpenPool, Stores, record};
use crate::plane::local::Local;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use weir_control::Result;
use weir_control::dataplane::Hooks;
use weir_control::model::{Naa, Pool, Volume};
use weir_reactor::{Handle, WaitChannel};
use weir_store::StoreError;
use weir_target_core::ReservationStore;

/// What the volume is called on the devices that has them.
pub(super) const NAME: &str = ".reservations";

/// A state of a volume's reservations and its number. Of no bytes: there are none any more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Told")]
pub(in crate::plane) struct State {
    number: u64,
    state: Vec<u8>,
}

/// As devices tell it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Told {
    /// Of a program that did not number them.
    Bare(Vec<u8>),
    Numbered {
        number: u64,
        state: Vec<u8>,
    },
}

impl From<Told> for State {
    fn from(t: Told) -> State {
        match t {
            Told::Bare(state) => State { number: 0, state },
            Told::Numbered { number, state } => State { number, state },
        }
    }
}

/// The first byte of what the data directory has, where it is numbered; reservations by themselves begin with 1.
const NUMBERED: u8 = 0xa2;

impl State {
    /// As the data directory has it: which volume it is of, too, since it goes by names there.
    fn encode(&self, of: Naa) -> Vec<u8> {
        let mut all = vec![NUMBERED];
        all.extend_from_slice(&self.number.to_le_bytes());
        all.extend_from_slice(&of.bytes());
        all.extend_from_slice(&self.state);
        all
    }

    /// The other way round; none: it is another volume's.
    fn decode(bytes: &[u8], of: Naa) -> Option<State> {
        let Some((&NUMBERED, rest)) = bytes.split_first() else {
            return Some(State { number: 0, state: bytes.to_vec() });
        };
        let (number, rest) = rest.split_first_chunk()?;
        let (whose, state) = rest.split_first_chunk::<16>()?;
        let number = u64::from_le_bytes(*number);
        (*whose == of.bytes()).then(|| State { number, state: state.to_vec() })
    }
}

/// States by the volumes' names on the devices.
type States = BTreeMap<String, State>;

/// What the devices of an open pool carry.
pub(super) struct Reserved {
    /// One writes at a time.
    turn: WaitChannel,
    /// Once it was read.
    known: RefCell<Option<States>>,
}

impl Default for Reserved {
    fn default() -> Self {
        Reserved { turn: WaitChannel::new(1), known: RefCell::default() }
    }
}

impl OpenPool {
    /// What the devices have; none: they have something that cannot be made out.
    async fn read_states(&self) -> std::result::Result<Option<States>, StoreError> {
        let Some(d) = self.find(NAME) else { return Ok(Some(States::default())) };
        let v = self.pool.volume(d.id)?;
        let found = record::newest(&*v, record::Slots::FIRST).await?;
        Ok(match found.content {
            Some((_, content)) => serde_json::from_slice(&content).ok(),
            // A crash left it without a first content.
            None if found.lens == [0; 2] => Some(States::default()),
            None => None,
        })
    }

    /// The state of a volume's reservations; none: the devices tell nothing about them.
    async fn reserved(&self, dataset: &str) -> std::result::Result<Option<State>, StoreError> {
        let _one = self.reserved.turn.acquire(1).await;
        let known = self.reserved.known.take();
        let states = match known {
            Some(k) => k,
            None => self
                .read_states()
                .await?
                .ok_or_else(|| StoreError::Request("they make no sense".into()))?,
        };
        let found = states.get(dataset).cloned();
        *self.reserved.known.borrow_mut() = Some(states);
        Ok(found)
    }

    /// Has the devices carry a state, unless they have a newer one. Durable when it ends.
    async fn reserve(&self, dataset: &str, state: State) -> std::result::Result<(), StoreError> {
        self.change_states(|states| match states.get(dataset) {
            Some(old) if old.number >= state.number => false,
            // Of a volume that never had any nothing is told.
            None if state.state.is_empty() => false,
            _ => {
                states.insert(dataset.to_owned(), state);
                true
            }
        })
        .await
    }

    /// Has the devices carry nothing of a volume that has left them: it may come back as another one.
    pub(super) async fn unreserve(&self, dataset: &str) -> std::result::Result<(), StoreError> {
        if self.find(NAME).is_none() {
            return Ok(());
        }
        self.change_states(|states| states.remove(dataset).is_some()).await
    }

    async fn change_states(
        &self,
        change: impl FnOnce(&mut States) -> bool,
    ) -> std::result::Result<(), StoreError> {
        let _one = self.reserved.turn.acquire(1).await;
        // Not known any more if this fails.
        let known = self.reserved.known.take();
        let mut states = match known {
            Some(k) => k,
            // What cannot be made out was told when the volumes were opened; there must be a way on.
            None => self.read_states().await?.unwrap_or_default(),
        };
        if change(&mut states) {
            let there: BTreeSet<String> =
                self.pool.datasets().into_iter().map(|d| d.name).collect();
            states.retain(|d, _| there.contains(d));
            let content = serde_json::to_vec(&states)
                .map_err(|e| StoreError::Request(format!("the reservations: {e}")))?;
            self.keep(NAME, record::Slots::FIRST, &content).await?;
        }
        *self.reserved.known.borrow_mut() = Some(states);
        Ok(())
    }
}

/// Tells whether all have done their part, once the last of them has gone, in whatever way.
struct Done {
    tell: Option<Box<dyn FnOnce(bool) + Send>>,
    left: usize,
}

impl Drop for Done {
    fn drop(&mut self) {
        if let Some(tell) = self.tell.take() {
            tell(self.left == 0);
        }
    }
}

/// Hands reservations of a unit, on all reactors, to the control plane's store, then to the pools that have the volume.
#[derive(Clone)]
pub(in crate::plane) struct Reservations {
    hooks: Hooks,
    stores: Arc<Mutex<Stores>>,
    of: Naa,
    at: Arc<Mutex<Known>>,
}

/// What is known of a unit's reservations.
struct Known {
    /// Number of the last state that was handed over.
    number: u64,
    /// The newest state that was handed over, by the unit's revision.
    newest: (u64, Vec<u8>),
    /// The newest that is durable wherever it has to be.
    kept: (u64, Vec<u8>),
}

impl Reservations {
    /// Of a volume whose reservations are, as of its start, these.
    pub(in crate::plane) fn new(
        hooks: Hooks,
        stores: Arc<Mutex<Stores>>,
        of: Naa,
        now: State,
    ) -> Reservations {
        let (newest, kept) = ((0, now.state.clone()), (0, now.state));
        let at = Arc::new(Mutex::new(Known { number: now.number, newest, kept }));
        Reservations { hooks, stores, of, at }
    }

    fn at(&self) -> std::sync::MutexGuard<'_, Known> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands the newest state over under a number of its own.
    fn hand_over(&self, volume: &str, at: &mut Known, done: Box<dyn FnOnce(bool, u64) + Send>) {
        at.number += 1;
        let number = at.number;
        let state = State { number, state: at.newest.1.clone() };
        let (name, stores) = (volume.to_owned(), self.stores.clone());
        let bytes = state.encode(self.of);
        let then = move |r: Result<()>| match r {
            // Where it is now: a place that the volume comes to later takes what the data directory has.
            Ok(()) => {
                let places = stores.lock().unwrap_or_else(PoisonError::into_inner).places(&name);
                carry(places, state, Box::new(move |ok| done(ok, number)));
            }
            Err(_) => done(false, number),
        };
        self.hooks.reservations.save(volume, bytes, Box::new(then));
    }

    /// A state that was refused is not to count after a restart, wherever it is durable by now: the one before it follows
    /// under a greater number, unless a newer one has done so. What fails of that is tried again with the next change.
    fn take_back(&self, volume: &str, number: u64) {
        let mut at = self.at();
        if at.number != number {
            return;
        }
        at.newest = at.kept.clone();
        self.hand_over(volume, &mut at, Box::new(|_, _| {}));
    }
}

impl Stores {
    /// Where a volume is: reactor, pool and name there. Two places while it moves.
    fn places(&self, volume: &str) -> Vec<(Handle, String, String)> {
        let all = self.volumes.iter().filter(|((name, _), _)| name == volume);
        all.filter_map(|(_, (pool, dataset))| {
            let home = self.pools.get(pool)?.home.clone();
            Some((home, pool.clone(), dataset.clone()))
        })
        .collect()
    }
}

/// Has the pools that a volume is in carry its state.
fn carry(places: Vec<(Handle, String, String)>, state: State, done: Box<dyn FnOnce(bool) + Send>) {
    let all = Arc::new(Mutex::new(Done { tell: Some(done), left: places.len() }));
    for (home, pool, dataset) in places {
        let (all, state) = (all.clone(), state.clone());
        home.run(move || {
            let open = weir_reactor::get_local::<Local>()
                .and_then(|l| l.stores.borrow().get(&pool).cloned());
            weir_reactor::spawn_task(async move {
                let done = match open {
                    Some(p) => p.reserve(&dataset, state).await.map_err(|e| e.to_string()),
                    None => Err("it is not open".into()),
                };
                match done {
                    Ok(()) => all.lock().unwrap_or_else(PoisonError::into_inner).left -= 1,
                    Err(why) => {
                        tracing::error!("pool {pool} cannot carry reservations of a volume: {why}");
                    }
                }
            });
        });
    }
}

impl ReservationStore for Reservations {
    fn save(
        &self,
        volume: &str,
        revision: u64,
        state: Vec<u8>,
        done: Box<dyn FnOnce(bool) + Send>,
    ) {
        // Jobs are done in the order in which they are handed over. Two reactors may come in another order than that of
        // their changes: the later of them hands the newer state over once more.
        let mut at = self.at();
        if revision >= at.newest.0 {
            at.newest = (revision, state);
        }
        let (me, name, handed) = (self.clone(), volume.to_owned(), at.newest.clone());
        let then = move |ok, number| {
            if ok {
                let mut at = me.at();
                if handed.0 >= at.kept.0 {
                    at.kept = handed;
                }
            } else {
                me.take_back(&name, number);
            }
            done(ok);
        };
        self.hand_over(volume, &mut at, Box::new(then));
    }
}

impl Node {
    /// The reservations that a volume has when it is opened: the newer of what the data directory and its pool have.
    pub(in crate::plane) async fn reservations_of(
        &self,
        volume: &Volume,
        pool: &Pool,
    ) -> Result<State> {
        let Some(hooks) = self.hooks.get() else { return Ok(State::default()) };
        let here = hooks.reservations.load(&volume.name)?.unwrap_or_default();
        let here = State::decode(&here, volume.naa).unwrap_or_default();
        if !Node::is_store(pool) {
            return Ok(here);
        }
        let dataset = volume.dataset();
        let found = self.with_pool(&pool.name, move |p| {
            Box::pin(async move { Ok(p.reserved(&dataset).await) })
        });
        match found.await? {
            // Of two that have no numbers the pool's: another node may have had it.
            Ok(Some(there)) if there.number >= here.number => {
                if there != here {
                    let bytes = there.encode(volume.naa);
                    hooks.reservations.save(&volume.name, bytes, Box::new(|_| {}));
                }
                Ok(there)
            }
            Ok(_) => Ok(here),
            Err(e) => {
                let object = format!("volume/{}", volume.name);
                let text = format!("the reservations that its pool carries cannot be read: {e}");
                hooks.events.publish("error", &object, &text);
                Ok(here)
            }
        }
    }

    /// Has a pool carry the reservations of a volume of which it tells nothing or something older: it was made before pools did
    /// that, or the volume is on its way to it or was elsewhere meanwhile.
    pub(super) async fn carry_reservations(&self, volume: &Volume, pool: &Pool) -> Result<()> {
        let Some(hooks) = self.hooks.get() else { return Ok(()) };
        let here = hooks.reservations.load(&volume.name)?.unwrap_or_default();
        let Some(here) = State::decode(&here, volume.naa) else { return Ok(()) };
        let dataset = volume.dataset();
        let done = self.with_pool(&pool.name, move |p| {
            Box::pin(async move { Ok(p.reserve(&dataset, here).await) })
        });
        if let Err(e) = done.await? {
            // The data directory has them.
            let text = format!("its pool cannot carry its reservations: {e}");
            hooks.events.publish("error", &format!("volume/{}", volume.name), &text);
        }
        Ok(())
    }
}

impl State {
    /// What hosts have registered; none: nothing.
    pub(in crate::plane) fn bytes(&self) -> Option<&[u8]> {
        (!self.state.is_empty()).then_some(&self.state[..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use weir_control::events::EventLog;
    use weir_control::store::{self, MetaStore};

    #[test]
    fn what_was_given_up_is_not_told_as_done() {
        for (left, told) in [(0, true), (1, false), (2, false)] {
            let (tell, heard) = mpsc::channel();
            let tell = Box::new(move |ok| tell.send(ok).expect("it is waited for"));
            drop(Done { tell: Some(tell), left });
            assert_eq!(heard.recv(), Ok(told));
        }
    }

    #[test]
    fn states_of_programs_without_numbers_are_the_oldest() {
        let of = Naa::from_random(7);
        let new = State { number: 3, state: vec![1, 2] };
        assert_eq!(State::decode(&new.encode(of), of), Some(new.clone()));
        assert_eq!(State::decode(&new.encode(of), Naa::from_random(8)), None, "another volume's");
        assert_eq!(State::decode(&[1, 9], of), Some(State { number: 0, state: vec![1, 9] }));
        assert_eq!(State::decode(&[NUMBERED, 1], of), None);
        let told = br#"{"a":[1,9],"b":{"number":3,"state":[1,2]}}"#;
        let states: States = serde_json::from_slice(told).expect("both kinds");
        assert_eq!((states["a"].number, &states["b"]), (0, &new));
    }

    #[test]
    fn the_newest_state_stays_in_whatever_order_they_come() {
        let dir = std::env::temp_dir().join(format!("weir-reserved-{}", std::process::id()));
        let meta = Arc::new(MetaStore::open(&dir).expect("a store"));
        let reservations = store::ReservationStore::start(meta).expect("a saver");
        let hooks = Hooks {
            reservations: reservations.clone(),
            events: EventLog::default(),
            keys: Arc::default(),
        };
        let (of, now) = (Naa::from_random(7), State { number: 40, state: Vec::new() });
        let r = Reservations::new(hooks, Arc::default(), of, now);
        let (tell, told) = mpsc::channel();
        for (revision, state) in [(1, b"a"), (3, b"c"), (2, b"b")] {
            let tell = tell.clone();
            let done = Box::new(move |ok| tell.send(ok).expect("it is waited for"));
            r.save("v", revision, state.to_vec(), done);
        }
        assert_eq!((0..3).map(|_| told.recv()).collect::<Vec<_>>(), [Ok(true); 3]);
        let kept = |r: &store::ReservationStore| {
            let bytes = r.load("v").expect("it is read").expect("there is one");
            State::decode(&bytes, of)
        };
        assert_eq!(kept(&reservations), Some(State { number: 43, state: b"c".to_vec() }));
        // One that was refused after all is followed by the one before it, under a greater number.
        r.at().newest = (4, b"d".to_vec());
        r.take_back("v", 43);
        let begin = std::time::Instant::now();
        while kept(&reservations).is_some_and(|s| s.number < 44) {
            assert!(begin.elapsed().as_secs() < 60, "it is saved");
            std::thread::yield_now();
        }
        assert_eq!(kept(&reservations), Some(State { number: 44, state: b"c".to_vec() }));
        std::fs::remove_dir_all(&dir).expect("it goes");
    }
}
