//! How protected pools were closed. One that lacks devices at the next start is opened without them if those that are there have
//! what all had when it was closed: nothing can be newer than that.
//!
//! Such a record counts for one start. It goes from the store before anything is opened, so that after a kill nobody takes what
//! devices were once for what they were last; and a store that is made anew of its readable copy has none.

use super::*;
use crate::dataplane::LastState;
use crate::model::Pool;

/// Under which names the store keeps the records, by identity of the pool.
const STOPPED: &str = "stopped/";

/// Pools by identity, and what their devices had when they were closed in order.
type Records = BTreeMap<String, u64>;

/// What is known of that in this life. None: the store has not given its records away yet.
#[derive(Default)]
pub(super) struct Stopped(Mutex<Option<Records>>);

/// Takes the records out of the store, unless they are to be `left` there.
fn take(store: &MetaStore, left: bool) -> Result<Records> {
    let found = store.blobs(STOPPED)?;
    if !found.is_empty() && !left {
        store.put_blobs(found.keys().map(|key| (key.as_str(), &[][..])))?;
    }
    // What makes no sense says nothing.
    let known = |(key, b): (&String, &Vec<u8>)| {
        let newest = u64::from_le_bytes(b.as_slice().try_into().ok()?);
        Some((key.strip_prefix(STOPPED)?.to_owned(), newest))
    };
    Ok(found.iter().filter_map(known).collect())
}

impl Stopped {
    fn all(&self) -> MutexGuard<'_, Option<Records>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the devices of a pool had when it was closed, if it has not been opened since.
    pub(super) fn of(&self, pool: &Pool) -> Option<LastState> {
        let id = pool.identity()?;
        self.all()
            .as_ref()?
            .get(&id.to_string())
            .map(|newest| LastState { pool: id, newest: *newest })
    }

    /// A pool is, or may be, open.
    pub(super) fn forget(&self, pool: &Pool) {
        if let Some(id) = pool.identity().filter(|_| !has(Bug::StoppedThoughOpened)) {
            self.all().as_mut().map(|all| all.remove(&id.to_string()));
        }
    }
}

impl Controller {
    /// Has the store give its records away, before any protected pool is opened.
    ///
    /// # Errors
    /// It takes no changes.
    pub(super) async fn take_stopped(&self) -> Result<()> {
        if self.stopped.all().is_some() {
            return Ok(());
        }
        let store = self.store.clone();
        let left = has(Bug::StoppedForEver);
        let mut taken = blocking(move || take(&store, left)).await.map_err(|e| {
            Error::new(Code::NotReady, "protected pools are not opened yet").because(e).hint(
                "see to the file system of the data directory; it is tried again every few seconds",
            )
        })?;
        // One that was put back from an older copy says nothing of devices.
        if self.store.is_older() && !has(Bug::OlderVouches) {
            taken.clear();
        }
        self.stopped.all().get_or_insert(taken);
        Ok(())
    }

    /// Records how pools were closed at the end. Those that have not been opened in this life are as they were.
    pub(super) async fn keep_stopped(&self, closed: Vec<LastState>) -> Result<()> {
        let model = self.model();
        let mut all = self.stopped.all().clone().unwrap_or_default();
        let there = |id: &String| {
            model.pools.values().any(|p| p.identity().is_some_and(|i| i.to_string() == *id))
        };
        all.retain(|id, _| there(id));
        all.extend(closed.into_iter().map(|last| (last.pool.to_string(), last.newest)));
        if all.is_empty() {
            return Ok(());
        }
        let store = self.store.clone();
        let rows: Vec<_> =
            all.into_iter().map(|(id, n)| (format!("{STOPPED}{id}"), n.to_le_bytes())).collect();
        blocking(move || store.put_blobs(rows.iter().map(|(k, b)| (k.as_str(), &b[..])))).await
    }
}
