//! Space of plain pools that is given back: of deleted volumes, and of places that volumes have left.
//!
//! A device may take hours to throw data away, or hang. So that goes on beside everything else, and again after a restart; until it
//! is over the configuration has what the space belonged to. Pools that are protected do it by themselves.

use super::*;
use crate::dataplane::Place;
use crate::model::{Naa, Pool, Volume, VolumeState};

/// How long a change waits for it, while all others wait.
pub(super) const SOON: Duration = Duration::from_millis(1500);
/// How long commands do that keep nobody waiting.
pub(super) const WAIT: Duration = Duration::from_secs(10);

/// A volume, and which of its places.
type Key = (Naa, u32);

/// What is to be cleared.
pub(super) enum Space<'a> {
    /// All that a deleted volume has.
    Volume(&'a Volume, &'a Pool),
    /// A place of a volume that goes on elsewhere; and whether it was made for it.
    Place(Place<'a>, bool),
}

/// One that has begun.
struct Clearing {
    /// How it has ended.
    over: watch::Receiver<Option<Result<()>>>,
    task: AbortHandle,
}

/// What is being cleared, and what has been since somebody has asked.
#[derive(Default)]
pub(super) struct Clearings(Mutex<BTreeMap<Key, Clearing>>);

impl Clearings {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Key, Clearing>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets how those have ended whose place is nobody's any more: another place may get its number.
    fn forget(&self, is_known: impl Fn(Key) -> bool) {
        self.all().retain(|key, c| c.over.look(Option::is_none) || is_known(*key));
    }

    /// Nothing more is thrown away by this process, but for the piece that is under way.
    pub(super) fn end(&self) {
        self.all().values().for_each(|c| c.task.abort());
    }
}

impl Space<'_> {
    fn key(&self) -> Key {
        let (Space::Volume(v, _) | Space::Place(Place { volume: v, .. }, _)) = self;
        (v.naa, v.place)
    }

    fn is_protected(&self) -> bool {
        match self {
            Space::Volume(_, pool) | Space::Place(Place { pool, .. }, _) => {
                pool.protection.is_some()
            }
        }
    }

    async fn clear(&self, plane: &dyn DataPlane) -> Result<()> {
        match *self {
            Space::Volume(v, pool) => plane.delete_volume_data(v, pool).await,
            Space::Place(place, made) => plane.clear_place(place, made).await,
        }
    }
}

impl Controller {
    /// Clears what nobody uses any more, and waits for that until then. None: that goes on, and it is to be asked for again. The
    /// caller holds `changes`.
    pub(super) async fn cleared(&self, space: Space<'_>, until: Instant) -> Option<Result<()>> {
        if space.is_protected() || has(Bug::ClearedAmongChanges) {
            return Some(space.clear(&*self.plane).await);
        }
        let key = space.key();
        let known = self.clearings.all().get(&key).map(|c| c.over.clone());
        // Only what begins may end in a moment.
        let (over, until) = match known {
            Some(over) => (over, Instant::now()),
            None => (self.begin_clearing(&space, key), until),
        };
        let done = match timeout(
            until.saturating_duration_since(Instant::now()),
            over.wait_for(Option::is_some),
        )
        .await
        {
            Err(_) => return None,
            Ok(Ok(done)) => done?,
            Ok(Err(_)) => Err(Error::new(Code::Internal, "the task that clears it has ended")),
        };
        self.clearings.all().remove(&key);
        Some(done)
    }

    fn begin_clearing(&self, space: &Space<'_>, key: Key) -> watch::Receiver<Option<Result<()>>> {
        let (tell, over) = watch::channel(None);
        let plane = self.plane.clone();
        let (v, pool, made) = match *space {
            Space::Volume(v, pool) => (v.clone(), pool.clone(), None),
            Space::Place(Place { volume, pool }, made) => {
                (volume.clone(), pool.clone(), Some(made))
            }
        };
        let task = platform::spawn(async move {
            let space = match made {
                None => Space::Volume(&v, &pool),
                Some(made) => Space::Place(Place { volume: &v, pool: &pool }, made),
            };
            let done = space.clear(&*plane).await;
            tell.send(Some(done));
        });
        let clearing = Clearing { over: over.clone(), task: task.abort_handle() };
        self.clearings.all().insert(key, clearing);
        over
    }

    /// The configuration was the one and is the other.
    pub(super) fn forget_cleared(&self, old: &Model, new: &Model) {
        if !self.clearings.all().is_empty() {
            let known = |m: &Model| -> BTreeSet<Key> {
                m.volumes.values().flat_map(keys).flatten().collect()
            };
            // What ended after it was forgotten is of no place that begins now.
            let (old, new) = (known(old), known(new));
            self.clearings.forget(|key| old.contains(&key) && new.contains(&key));
        }
    }

    fn is_being_cleared(&self, key: Key) -> bool {
        self.clearings.all().get(&key).is_some_and(|c| c.over.look(Option::is_none))
    }

    /// Refuses to forget whose space it is that is being thrown away, where others may get it.
    pub(super) fn check_cleared(&self, old: &Model, new: &Model) -> Result<()> {
        let knows =
            |pool: &str, key: Key| new.places_in(pool).any(|(v, _)| keys(v).contains(&Some(key)));
        for (pool, v) in old.pools.keys().flat_map(|p| old.places_in(p).map(move |(v, _)| (p, v))) {
            let mut all = keys(v).into_iter().flatten();
            let is_lost = |key: Key| self.is_being_cleared(key) && !knows(pool, key);
            if new.pools.contains_key(pool) && all.any(is_lost) && !has(Bug::ClearedUnknown) {
                let text =
                    format!("space of volume `{}` in pool `{pool}` is being given back", v.name);
                return Err(Error::new(Code::NotReady, text)
                    .because("until that is over it belongs to the volume")
                    .hint("`weir volume show` and `weir migrate show` tell how it stands; try again later"));
            }
        }
        Ok(())
    }

    /// A volume that is being deleted, and of which nothing is being cleared: that is to begin, or has ended.
    pub(super) fn is_to_be_deleted(&self, v: &Volume) -> bool {
        let runs = keys(v).into_iter().flatten().any(|key| self.is_being_cleared(key));
        v.state == VolumeState::Deleting && !runs && !has(Bug::ClearedUnasked)
    }

    /// Waits until then for the end of a deletion that a command has begun, and finishes it. The caller does not hold `changes`.
    pub(super) async fn deleted_soon(&self, name: &str, until: Instant) -> Result<Arc<Model>> {
        loop {
            let model = self.model();
            let is_going = |v: &&Volume| v.state == VolumeState::Deleting;
            let Some(v) = model.volumes.get(name).filter(is_going) else { return Ok(model) };
            let left = v.migration.as_ref().map(|m| m.place);
            let known = {
                let all = self.clearings.all();
                let of = |key| all.get(&key).map(|c| c.over.clone());
                keys(v).into_iter().flatten().find_map(of)
            };
            if let Some(over) = known {
                let over = over.wait_for(Option::is_some);
                tokio::select! {
                    biased;
                    _ = timeout(until.saturating_duration_since(Instant::now()), over) => {}
                    () = self.stopping.begun() => {}
                }
            }
            let Ok(_one) = self.turn().await else { return Ok(self.model()) };
            let now = self.model();
            let now = match now.volumes.get(name) {
                Some(v) if v.state == VolumeState::Deleting => {
                    self.finish_deletion(name, Instant::now()).await?
                }
                _ => return Ok(now),
            };
            // After the place that it has left comes its own.
            let goes_on =
                now.volumes.get(name).is_some_and(|v| left.is_some() && v.migration.is_none());
            if !goes_on || Instant::now() >= until {
                return Ok(now);
            }
        }
    }
}

/// The places of a volume.
fn keys(v: &Volume) -> [Option<Key>; 2] {
    [Some((v.naa, v.place)), v.migration.as_ref().map(|m| (v.naa, m.place))]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clearing(over: Option<Result<()>>) -> Clearing {
        let (_, over) = watch::channel(over);
        Clearing { over, task: platform::spawn(async {}).abort_handle() }
    }

    #[tokio::test]
    async fn how_a_clearing_ended_is_forgotten_with_its_place() {
        let all = Clearings::default();
        for (place, over) in [(1, Some(Ok(()))), (2, None), (3, Some(Ok(())))] {
            all.all().insert((Naa(7), place), clearing(over));
        }
        all.forget(|(_, place)| place == 3);
        let left: Vec<u32> = all.all().keys().map(|(_, place)| *place).collect();
        assert_eq!(left, [2, 3], "one goes on, and of one somebody will ask");
    }
}
