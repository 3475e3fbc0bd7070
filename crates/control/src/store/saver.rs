//! Persistent reservations from reactors to the store.
//!
//! A reactor must not wait for a disk. It hands the bytes over and is called back once they are durable; only then may
//! it answer PERSISTENT RESERVE OUT with APTPL set (SPC-4 5.13.5). What arrives meanwhile shares the next transaction.

use super::{MetaStore, RESERVATIONS};
use crate::error::{Code, Error, Result};
use crate::platform;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use tokio::sync::mpsc::error::SendError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Called by the saver when the bytes are durable, or with the reason why they are not.
pub type Done = Box<dyn FnOnce(Result<()>) + Send>;

struct Job {
    volume: String,
    bytes: Vec<u8>,
    done: Done,
}

/// Most jobs that share a transaction.
const BATCH: usize = 256;

/// Keeps persistent reservations. Cheap to clone.
#[derive(Clone)]
pub struct ReservationStore {
    store: Arc<MetaStore>,
    jobs: UnboundedSender<Job>,
}

impl fmt::Debug for ReservationStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReservationStore")
    }
}

impl ReservationStore {
    /// Starts the saver: a thread, or a task where nothing blocks. It ends when the last clone is dropped and its work is done.
    pub fn start(store: Arc<MetaStore>) -> Result<ReservationStore> {
        let (jobs, mut inbox) = unbounded_channel::<Job>();
        let to = store.clone();
        if platform::is_simulated() {
            platform::spawn(async move {
                while let Some(first) = inbox.recv().await {
                    save(&to, first, &mut inbox);
                }
            });
            return Ok(ReservationStore { store, jobs });
        }
        std::thread::Builder::new()
            .name("weir-reservations".into())
            .spawn(move || {
                while let Some(first) = inbox.blocking_recv() {
                    save(&to, first, &mut inbox);
                }
            })
            .map_err(|e| Error::new(Code::IoError, "no thread for reservations").because(e))?;
        Ok(ReservationStore { store, jobs })
    }

    /// Keeps `bytes` as the reservations of `volume`; empty bytes remove them. Never blocks. `done` is called exactly
    /// once. Of several saves for one volume the one handed over last wins.
    pub fn save(&self, volume: &str, bytes: Vec<u8>, done: Done) {
        let job = Job { volume: volume.to_string(), bytes, done };
        if let Err(SendError(job)) = self.jobs.send(job) {
            // Not from here: the caller may hold what is needed to be told.
            std::thread::spawn(move || {
                (job.done)(Err(Error::new(Code::Internal, "the saver of reservations has ended")));
            });
        }
    }

    /// The reservations of `volume`, if any were kept. Blocks for a read of the store.
    pub fn load(&self, volume: &str) -> Result<Option<Vec<u8>>> {
        self.store.blob(&format!("{RESERVATIONS}{volume}"))
    }
}

/// Saves one, and what has come meanwhile, in one transaction.
fn save(store: &MetaStore, first: Job, inbox: &mut UnboundedReceiver<Job>) {
    let mut batch = vec![first];
    while batch.len() < BATCH
        && let Ok(job) = inbox.try_recv()
    {
        batch.push(job);
    }
    let mut latest: BTreeMap<String, &[u8]> = BTreeMap::new();
    for job in &batch {
        latest.insert(format!("{RESERVATIONS}{}", job.volume), &job.bytes);
    }
    let outcome = store.put_blobs(latest.iter().map(|(k, v)| (k.as_str(), *v)));
    for job in batch {
        (job.done)(outcome.clone());
    }
}
