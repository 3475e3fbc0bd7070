//! One logical unit over several sessions: when a path fails, its commands are sent over another.

use crate::error::Error;
use crate::queue::Queue;
use std::cell::{Cell, RefCell};
use weir_mem::Slice;
use weir_proto_scsi::Lun;
use weir_proto_scsi::sense::Sense;
use weir_reactor::WaitChannel;

struct Path {
    queue: Queue,
    /// The unit's number on this path, where it was last found.
    lun: Cell<Option<Lun>>,
}

/// A logical unit that is reached over several paths, one of them at a time; a handle of the present reactor.
///
/// Paths are sessions to different target ports, or from different initiator ports; the unit is recognised by
/// its NAA designator, whatever its number on each. A path is left when its session fails fast
/// ([`fast_io_fail`](crate::SessionConfig::fast_io_fail), which should be short here), when a command
/// took too long as often as it was tried, or when the unit says that it cannot be used there. What was under
/// way on it is sent again over the next path. It is used again when the others fail.
///
/// A write that the old path's target still has may be done after its second try on the new path, as with
/// any multipath driver; targets that share a unit must end the commands of a lost nexus before
/// `fast_io_fail` has passed.
pub struct Multipath {
    naa: Vec<u8>,
    paths: Vec<Path>,
    active: Cell<usize>,
    /// One change of path at a time.
    switching: WaitChannel,
    switches: Cell<u64>,
    /// Why the last path was left.
    last_error: RefCell<Option<Error>>,
}

impl Multipath {
    /// Finds the unit with this NAA designator on each path. Paths that are down now are looked at when
    /// they are needed.
    ///
    /// # Errors
    /// No path has the unit.
    pub async fn open(queues: Vec<Queue>, naa: &[u8]) -> Result<Multipath, Error> {
        let paths = queues.into_iter().map(|queue| Path { queue, lun: Cell::new(None) }).collect();
        let m = Multipath {
            naa: naa.to_vec(),
            paths,
            active: Cell::new(0),
            switching: WaitChannel::new(1),
            switches: Cell::new(0),
            last_error: RefCell::default(),
        };
        let mut first = None;
        for i in 0..m.paths.len() {
            if m.find(&m.paths[i]).await.is_ok() {
                first = first.or(Some(i));
            }
        }
        match first {
            Some(i) => m.active.set(i),
            None => return Err(Error::Invalid("no path has a unit with this designator".into())),
        }
        Ok(m)
    }

    /// Number of the path in use, in the order in which they were given.
    pub fn active(&self) -> usize {
        self.active.get()
    }

    /// How often the path was changed.
    pub fn switches(&self) -> u64 {
        self.switches.get()
    }

    /// Why the last path was left.
    pub fn last_error(&self) -> Option<Error> {
        self.last_error.borrow().clone()
    }

    /// Fills `buf` from `offset` (bytes).
    ///
    /// # Errors
    /// What the target said, or that no path is left.
    pub async fn read(&self, offset: u64, buf: Slice) -> Result<(), Error> {
        self.run(async |q: &Queue, lun| q.read(lun, offset, buf.clone()).await).await
    }

    /// Writes `buf` at `offset` (bytes).
    ///
    /// # Errors
    /// What the target said, or that no path is left.
    pub async fn write(&self, offset: u64, buf: Slice, fua: bool) -> Result<(), Error> {
        self.run(async |q: &Queue, lun| q.write(lun, offset, buf.clone(), fua).await).await
    }

    /// Everything written before is on the medium afterwards.
    ///
    /// # Errors
    /// What the target said, or that no path is left.
    pub async fn flush(&self) -> Result<(), Error> {
        self.run(async |q: &Queue, lun| q.flush(lun).await).await
    }

    /// Gives ranges (offset and length in bytes) back.
    ///
    /// # Errors
    /// What the target said, or that no path is left.
    pub async fn unmap(&self, ranges: &[(u64, u64)]) -> Result<(), Error> {
        self.run(async |q: &Queue, lun| q.unmap(lun, ranges).await).await
    }

    /// The range reads as zeros afterwards.
    ///
    /// # Errors
    /// What the target said, or that no path is left.
    pub async fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> Result<(), Error> {
        self.run(async |q: &Queue, lun| q.write_zeroes(lun, offset, len, unmap).await).await
    }

    /// Runs an operation on the path in use; on the others, one after the other, when paths fail under it.
    /// It must be one that may be done twice.
    ///
    /// # Errors
    /// What the operation failed with, or that no path is left.
    pub async fn run<T>(
        &self,
        op: impl AsyncFn(&Queue, Lun) -> Result<T, Error>,
    ) -> Result<T, Error> {
        for _ in 0..=self.paths.len() {
            let at = self.active.get();
            let path = &self.paths[at];
            let failed = match path.lun.get() {
                Some(lun) => match op(&path.queue, lun).await {
                    Err(e) if leaves(&e) => e,
                    other => return other,
                },
                None => Error::PathDown,
            };
            self.switch(at, failed).await?;
        }
        Err(self.last_error().unwrap_or(Error::PathDown))
    }

    /// Goes from path `from` to the next that has the unit, if nobody has done so meanwhile.
    async fn switch(&self, from: usize, why: Error) -> Result<(), Error> {
        let _one = self.switching.acquire(1).await;
        if self.active.get() != from {
            return Ok(());
        }
        *self.last_error.borrow_mut() = Some(why.clone());
        let n = self.paths.len();
        // The present path comes last: it may be back.
        for i in (1..=n).map(|i| (from + i) % n) {
            if self.find(&self.paths[i]).await.is_ok() {
                tracing::warn!(from, to = i, why = %why, "path changed");
                self.active.set(i);
                self.switches.set(self.switches.get() + u64::from(i != from));
                return Ok(());
            }
        }
        Err(why)
    }

    /// Finds the unit on a path; it may have another number than last time.
    async fn find(&self, path: &Path) -> Result<(), Error> {
        if let Some(lun) = path.lun.get()
            && path.queue.naa(lun).await?.as_deref() == Some(&*self.naa)
        {
            return Ok(());
        }
        path.lun.set(None);
        for lun in path.queue.luns().await? {
            match path.queue.naa(lun).await {
                Ok(Some(n)) if n == self.naa => {
                    path.queue.forget(lun);
                    path.lun.set(Some(lun));
                    return Ok(());
                }
                Ok(_) | Err(Error::Scsi { .. }) => {}
                Err(e) => return Err(e),
            }
        }
        Err(Error::Invalid("the unit is not on this path".into()))
    }
}

/// True for errors that another path may not have.
fn leaves(e: &Error) -> bool {
    e.is_path()
        || e.sense().is_some_and(|s| {
            let gone = [
                Sense::ALUA_STANDBY,
                Sense::ALUA_UNAVAILABLE,
                Sense::ALUA_TRANSITION,
                Sense::LU_NOT_SUPPORTED,
                Sense::OFFLINE,
            ];
            gone.iter().any(|g| g.same_code(s))
        })
}
