//! How protected pools were closed. One that lacks devices at the next start is opened without them if those that are there have
//! what all had when it was closed: nothing can be newer than that.
//!
//! Such a record counts for one start. It goes from the store before anything is opened, so that after a kill nobody takes what
//! devices were once for what they were last; and a store that is made anew of its readable copy has none. A copy of the store that
//! is put back has it still: so it names the data directory as it was then, which changes before anything is opened.

use super::*;
use crate::dataplane::{LastState, Without};
use crate::model::Pool;

/// Under which names the store keeps the records, by identity of the pool.
const STOPPED: &str = "stopped/";

/// Pools by identity, and what their devices had when they were closed in order.
type Records = BTreeMap<String, u64>;

/// What is known of that in this life.
#[derive(Default)]
pub(super) struct Stopped {
    /// None: the store has not given its records away yet.
    all: Mutex<Option<Records>>,
    /// What it had, where giving them away has been tried in vain.
    begun: Arc<Mutex<Option<Begun>>>,
}

/// Records that are being taken out of the store. Which of them count is known before the directory changes: if the rest fails, it
/// is tried again, and nothing in the store tells that any more.
#[derive(Clone)]
struct Begun {
    /// Those that are of this data directory.
    count: Records,
    /// The rows to remove.
    rows: Vec<String>,
    /// The data directory is another one now; false: it could not be told from what it was.
    turned: Option<bool>,
}

/// From when on, after it was tried in vain, a pool may be opened without devices, in samples (of a second). They may be late.
const LATE: u32 = 4;
/// The same for devices that do not answer.
const SILENT: u32 = 60;

/// Looks at the records in the store. `any`: those of a copy count, too.
fn read(store: &MetaStore, any: bool) -> Result<Begun> {
    let (found, mark) = (store.blobs(STOPPED)?, store.mark()?.bytes());
    // What makes no sense says nothing.
    let known = |(key, b): (&String, &Vec<u8>)| {
        let (newest, of) = b.split_first_chunk()?;
        let id = key.strip_prefix(STOPPED)?.to_owned();
        (of == mark || any).then(|| (id, u64::from_le_bytes(*newest)))
    };
    let count = found.iter().filter_map(known).collect();
    Ok(Begun { count, rows: found.into_keys().collect(), turned: None })
}

/// Takes the records out of the store, and goes on where it was when it failed.
fn take(store: &MetaStore, begun: &Mutex<Option<Begun>>, any: bool, anew: bool) -> Result<Records> {
    let known = lock(begun).clone();
    let mut b = match known.filter(|_| !anew) {
        Some(b) => b,
        None => read(store, any)?,
    };
    *lock(begun) = Some(b.clone());
    if b.turned.is_none() {
        // First: it is no matter if nothing but this is done. Also where there is no record: one may be put back later.
        match store.turn() {
            Err(e) if !b.rows.is_empty() => return Err(e),
            turned => b.turned = Some(turned.unwrap_or(false)),
        }
        *lock(begun) = Some(b.clone());
    }
    if !b.rows.is_empty() {
        store.put_blobs(b.rows.iter().map(|key| (key.as_str(), &[][..])))?;
    }
    lock(begun).take();
    Ok(if b.turned == Some(true) || any { b.count } else { Records::new() })
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stopped {
    fn all(&self) -> MutexGuard<'_, Option<Records>> {
        lock(&self.all)
    }

    /// Those of pools that have not been opened in this life, to be written anew. Where none has been given away, the store has them.
    fn kept(&self) -> Records {
        let begun = lock(&self.begun).clone().filter(|b| b.turned == Some(true));
        self.all().clone().or(begun.map(|b| b.count)).unwrap_or_default()
    }

    /// How a pool may be opened without devices, so many samples after it was tried in vain, if it has not been opened since it was
    /// closed.
    pub(super) fn of(&self, pool: &Pool, after: u128) -> Option<Without> {
        let id = pool.identity()?;
        let newest = *self.all().as_ref()?.get(&id.to_string())?;
        let last = LastState { pool: id, newest };
        let is_late = after >= LATE.into() || has(Bug::NobodyIsLate);
        is_late.then_some(Without { last, silent: after >= SILENT.into() })
    }

    /// The opening of a pool has ended so. One that had begun to write may have been open.
    pub(super) fn ended<T>(&self, pool: &Pool, done: &Result<T>) {
        let begun = match done {
            Ok(_) => true,
            Err(e) => e.code == Code::PoolUnfinished && !has(Bug::UnfinishedIsNone),
        };
        if begun {
            self.forget(pool);
        }
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
        let (left, any) = (has(Bug::StoppedForEver), has(Bug::CopyVouches));
        let anew = has(Bug::RecordsReadAnew);
        let begun = self.stopped.begun.clone();
        let work = move || match left {
            true => Ok(read(&store, any)?.count),
            false => take(&store, &begun, any, anew),
        };
        let taken = blocking(work).await.map_err(|e| {
            Error::new(Code::NotReady, "protected pools are not opened yet").because(e).hint(
                "see to the file system of the data directory; it is tried again every few seconds",
            )
        })?;
        self.stopped.all().get_or_insert(taken);
        Ok(())
    }

    /// Records how pools were closed at the end. Those that have not been opened in this life are as they were.
    pub(super) async fn keep_stopped(&self, closed: Vec<LastState>) -> Result<()> {
        let model = self.model();
        let mut all = self.stopped.kept();
        let there = |id: &String| {
            model.pools.values().any(|p| p.identity().is_some_and(|i| i.to_string() == *id))
        };
        all.retain(|id, _| there(id));
        all.extend(closed.into_iter().map(|last| (last.pool.to_string(), last.newest)));
        if all.is_empty() {
            return Ok(());
        }
        let store = self.store.clone();
        blocking(move || {
            let mark = store.mark()?.bytes();
            let row = |(id, n): (String, u64)| {
                (format!("{STOPPED}{id}"), [&n.to_le_bytes()[..], &mark].concat())
            };
            let rows: Vec<_> = all.into_iter().map(row).collect();
            store.put_blobs(rows.iter().map(|(k, b)| (k.as_str(), &b[..])))
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::PoolId;

    #[test]
    fn a_missing_device_is_waited_for_5_s_and_one_that_does_not_answer_a_minute() {
        let id = PoolId(7);
        let (name, devices, left) = ("p".into(), Vec::new(), Vec::new());
        let pool = Pool { name, devices, id: Some(id), protection: None, left };
        let stopped = Stopped::default();
        *stopped.all() = Some(Records::from([(id.to_string(), 3)]));
        // The first look is the one before these.
        let at = |n| stopped.of(&pool, n).map(|w| (w.last.newest, w.silent));
        assert_eq!((at(0), at(3)), (None, None));
        assert_eq!((at(4), at(59)), (Some((3, false)), Some((3, false))));
        assert_eq!(at(60), Some((3, true)));
        assert_eq!(super::super::sampling::every(), Duration::from_secs(1));
    }
}
