//! Persistent reservations on the devices of pools: a node that takes a pool over keeps out whom hosts have shut out before.
//!
//! The data directory has them as well, for volumes of other pools. Where a pool tells about a volume, the pool is right: another
//! node may have had it meanwhile.

use super::{Node, OpenPool, Stores, record};
use crate::plane::local::Local;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use weir_control::Result;
use weir_control::dataplane::Hooks;
use weir_control::model::{Pool, Volume};
use weir_reactor::{Handle, WaitChannel};
use weir_store::StoreError;
use weir_target_core::ReservationStore;

/// What the volume is called on the devices that has them.
pub(super) const NAME: &str = ".reservations";

/// States by the volumes' names on the devices; of no bytes: there are none any more.
type States = BTreeMap<String, Vec<u8>>;

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
        let (found, lens) = record::newest(&*v).await?;
        Ok(match found {
            Some((_, content)) => serde_json::from_slice(&content).ok(),
            // A crash left it without a first content.
            None if lens == [0; 2] => Some(States::default()),
            None => None,
        })
    }

    /// The state of a volume's reservations; none: the devices tell nothing about them.
    async fn reserved(&self, dataset: &str) -> std::result::Result<Option<Vec<u8>>, StoreError> {
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

    /// Has the devices carry a state. Durable when it ends. `first`: only if they tell nothing about the volume.
    async fn reserve(
        &self,
        dataset: &str,
        state: Vec<u8>,
        first: bool,
    ) -> std::result::Result<(), StoreError> {
        let _one = self.reserved.turn.acquire(1).await;
        // Not known any more if this fails.
        let known = self.reserved.known.take();
        let mut states = match known {
            Some(k) => k,
            // What cannot be made out was told when the volumes were opened; there must be a way on.
            None => self.read_states().await?.unwrap_or_default(),
        };
        // Of a volume that never had any nothing is told.
        let news = match states.get(dataset) {
            Some(old) => !first && *old != state,
            None => !state.is_empty(),
        };
        if news {
            states.insert(dataset.to_owned(), state);
            let there: BTreeSet<String> =
                self.pool.datasets().into_iter().map(|d| d.name).collect();
            states.retain(|d, _| there.contains(d));
            let content = serde_json::to_vec(&states)
                .map_err(|e| StoreError::Request(format!("the reservations: {e}")))?;
            self.keep(NAME, &content).await?;
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
pub(in crate::plane) struct Reservations {
    hooks: Hooks,
    stores: Arc<Mutex<Stores>>,
    /// The newest state that was handed over, by its revision.
    newest: Mutex<(u64, Vec<u8>)>,
}

impl Reservations {
    pub(in crate::plane) fn new(hooks: Hooks, stores: Arc<Mutex<Stores>>) -> Reservations {
        Reservations { hooks, stores, newest: Mutex::default() }
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
fn carry(
    places: Vec<(Handle, String, String)>,
    state: Vec<u8>,
    done: Box<dyn FnOnce(bool) + Send>,
) {
    let all = Arc::new(Mutex::new(Done { tell: Some(done), left: places.len() }));
    for (home, pool, dataset) in places {
        let (all, state) = (all.clone(), state.clone());
        home.run(move || {
            let open = weir_reactor::get_local::<Local>()
                .and_then(|l| l.stores.borrow().get(&pool).cloned());
            weir_reactor::spawn_task(async move {
                let done = match open {
                    Some(p) => p.reserve(&dataset, state, false).await.map_err(|e| e.to_string()),
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
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if revision >= newest.0 {
            *newest = (revision, state);
        }
        let state = newest.1.clone();
        let (name, kept, stores) = (volume.to_owned(), state.clone(), self.stores.clone());
        let then = move |r: Result<()>| match r {
            // Where it is now: a place that the volume comes to later takes what the data directory has.
            Ok(()) => {
                let places = stores.lock().unwrap_or_else(PoisonError::into_inner).places(&name);
                carry(places, kept, done);
            }
            Err(_) => done(false),
        };
        self.hooks.reservations.save(volume, state, Box::new(then));
    }
}

impl Node {
    /// The reservations that a volume has when it is opened.
    pub(in crate::plane) async fn reservations_of(
        &self,
        volume: &Volume,
        pool: &Pool,
    ) -> Result<Option<Vec<u8>>> {
        let Some(hooks) = self.hooks.get() else { return Ok(None) };
        let here = hooks.reservations.load(&volume.name)?.unwrap_or_default();
        let is_any = |state: Vec<u8>| (!state.is_empty()).then_some(state);
        if !Node::is_store(pool) {
            return Ok(is_any(here));
        }
        let dataset = volume.dataset();
        let found = self.with_pool(&pool.name, move |p| {
            Box::pin(async move { Ok(p.reserved(&dataset).await) })
        });
        match found.await? {
            Ok(Some(there)) => {
                if there != here {
                    hooks.reservations.save(&volume.name, there.clone(), Box::new(|_| {}));
                }
                Ok(is_any(there))
            }
            Ok(None) => Ok(is_any(here)),
            Err(e) => {
                let object = format!("volume/{}", volume.name);
                let text = format!("the reservations that its pool carries cannot be read: {e}");
                hooks.events.publish("error", &object, &text);
                Ok(is_any(here))
            }
        }
    }

    /// Has a pool carry the reservations of a volume that it tells nothing about, because it was made before pools did that, or
    /// the volume is on its way to it.
    pub(super) async fn carry_reservations(&self, volume: &Volume, pool: &Pool) -> Result<()> {
        let Some(hooks) = self.hooks.get() else { return Ok(()) };
        let here = hooks.reservations.load(&volume.name)?.unwrap_or_default();
        if here.is_empty() {
            return Ok(());
        }
        let dataset = volume.dataset();
        let done = self.with_pool(&pool.name, move |p| {
            Box::pin(async move { Ok(p.reserve(&dataset, here, true).await) })
        });
        if let Err(e) = done.await? {
            // The data directory has them.
            let text = format!("its pool cannot carry its reservations: {e}");
            hooks.events.publish("error", &format!("volume/{}", volume.name), &text);
        }
        Ok(())
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
    fn the_newest_state_stays_in_whatever_order_they_come() {
        let dir = std::env::temp_dir().join(format!("weir-reserved-{}", std::process::id()));
        let meta = Arc::new(MetaStore::open(&dir).expect("a store"));
        let reservations = store::ReservationStore::start(meta).expect("a saver");
        let hooks = Hooks {
            reservations: reservations.clone(),
            events: EventLog::default(),
            keys: Arc::default(),
        };
        let r = Reservations::new(hooks, Arc::default());
        let (tell, told) = mpsc::channel();
        for (revision, state) in [(1, b"a"), (3, b"c"), (2, b"b")] {
            let tell = tell.clone();
            let done = Box::new(move |ok| tell.send(ok).expect("it is waited for"));
            r.save("v", revision, state.to_vec(), done);
        }
        assert_eq!((0..3).map(|_| told.recv()).collect::<Vec<_>>(), [Ok(true); 3]);
        assert_eq!(reservations.load("v").expect("it is read").as_deref(), Some(&b"c"[..]));
        std::fs::remove_dir_all(&dir).expect("it goes");
    }
}
