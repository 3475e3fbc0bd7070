//! One volume over several sessions: when a path fails, its commands go over another.

use crate::disk::Disk;
use crate::error::Error;
use crate::queue::{self, Queue};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::unflushed::Ledger;
use weir_base::{Nanos, SECONDS};
use weir_mem::Slice;
use weir_reactor::{WaitChannel, sleep};

/// How much later than the keep-alive time says a target may give a connection up: it looks now and then only, and
/// what was on its way counts as heard when it comes.
const LATE: Nanos = SECONDS;

struct Path {
    queue: Queue,
    /// The volume on this path, where it was last found.
    disk: RefCell<Option<Rc<Disk>>>,
}

/// A volume that is reached over several paths, one of them at a time; a handle of the present reactor.
///
/// Paths are sessions with different target ports, or from different initiator ports; the volume is recognised
/// by its identity, whatever its number on each. A path is left when its session fails fast
/// ([`fast_io_fail`](crate::SessionConfig::fast_io_fail)) or the target says that the volume cannot be used there. What was
/// under way on it is sent again over the next.
///
/// A target that has lost its host gives the connection up after the keep-alive time, and then nothing of it
/// can happen any more. So there has to be a keep-alive time, and `fast_io_fail` must be longer than
/// [`keep_alive`](crate::SessionConfig::keep_alive) by a second, which [`open`](Multipath::open) checks. What changes the volume
/// and was given up earlier, because it took too long or the session was closed, waits for as long before it
/// is sent over the next path, or fails: its old target might else do it after newer writes.
pub struct Multipath {
    uid: [u8; 16],
    /// Of all paths: a flush over one tells what was lost of writes over another.
    ledger: Rc<Ledger>,
    paths: Vec<Path>,
    active: Cell<usize>,
    /// One change of path at a time.
    switching: WaitChannel,
    switches: Cell<u64>,
    last_error: RefCell<Option<Error>>,
}

impl Multipath {
    /// Finds the volume with this identity on each path. Paths that are down now are looked at when they are
    /// needed.
    ///
    /// # Errors
    /// No path has the volume, or a path would be left before its target has given up, or one that never does.
    pub async fn open(queues: Vec<Queue>, uid: &[u8; 16]) -> Result<Multipath, Error> {
        for q in &queues {
            let c = &q.local.shared.config;
            if queues.len() > 1 && c.keep_alive == 0 {
                return Err(Error::Invalid(
                    "with several paths, keep_alive must not be 0: a target would never give a lost host up",
                ));
            }
            if queues.len() > 1 && c.fast_io_fail < c.keep_alive + LATE {
                return Err(Error::Invalid(
                    "with several paths, fast_io_fail has to be longer than keep_alive by a second",
                ));
            }
        }
        let path = |queue| Path { queue, disk: RefCell::default() };
        let m = Multipath {
            uid: *uid,
            ledger: Rc::new(queue::ledger(&queues, uid)),
            paths: queues.into_iter().map(path).collect(),
            active: Cell::new(0),
            switching: WaitChannel::new(1),
            switches: Cell::new(0),
            last_error: RefCell::default(),
        };
        for i in 0..m.paths.len() {
            match m.find(i).await {
                Ok(()) => {
                    m.active.set(i);
                    return Ok(m);
                }
                Err(e @ Error::Invalid(_)) => return Err(e),
                Err(_) => {}
            }
        }
        Err(Error::NoVolume("with this identity on any path".into()))
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

    /// The volume on the path in use.
    pub fn disk(&self) -> Option<Rc<Disk>> {
        self.paths[self.active.get()].disk.borrow().clone()
    }

    /// As [`Disk::read`].
    ///
    /// # Errors
    /// What the target said, or that no path is left.
    pub async fn read(&self, at: u64, buf: Slice) -> Result<(), Error> {
        self.attempt(false, async |d: &Disk| d.read(at, buf.clone()).await).await
    }

    /// As [`Disk::write`].
    ///
    /// # Errors
    /// What the target said, or that no path is left.
    pub async fn write(&self, at: u64, buf: Slice, fua: bool) -> Result<(), Error> {
        self.run(async |d: &Disk| d.write(at, buf.clone(), fua).await).await
    }

    /// As [`Disk::flush`].
    ///
    /// # Errors
    /// What the target said, or that no path is left.
    pub async fn flush(&self) -> Result<(), Error> {
        self.run(async |d: &Disk| d.flush().await).await
    }

    /// As [`Disk::discard`].
    ///
    /// # Errors
    /// What the target said, or that no path is left.
    pub async fn discard(&self, at: u64, len: u64) -> Result<(), Error> {
        self.run(async |d: &Disk| d.discard(at, len).await).await
    }

    /// As [`Disk::write_zeroes`].
    ///
    /// # Errors
    /// What the target said, or that no path is left.
    pub async fn write_zeroes(&self, at: u64, len: u64, unmap: bool) -> Result<(), Error> {
        self.run(async |d: &Disk| d.write_zeroes(at, len, unmap).await).await
    }

    /// Waits until nothing can be changed any more by what was given up before, over any path: operations of this reactor whose
    /// futures were dropped. The target has told their end, or has lost this host for so long that it has given them up.
    pub async fn given_up(&self) {
        let mut late = 0;
        for p in &self.paths {
            if !p.queue.given_up().await {
                late = late.max(p.queue.local.shared.config.keep_alive + LATE);
            }
        }
        sleep(late).await;
    }

    /// Runs an operation on the path in use, and on the others when paths fail under it. It must be one that may
    /// be done twice in a row.
    ///
    /// # Errors
    /// What the operation failed with, or that no path is left.
    pub async fn run<T>(&self, op: impl AsyncFn(&Disk) -> Result<T, Error>) -> Result<T, Error> {
        self.attempt(true, op).await
    }

    /// As [`run`](Multipath::run); `changes` says that the operation may change the volume.
    async fn attempt<T>(
        &self,
        changes: bool,
        op: impl AsyncFn(&Disk) -> Result<T, Error>,
    ) -> Result<T, Error> {
        for _ in 0..=self.paths.len() {
            let at = self.active.get();
            let disk = self.paths[at].disk.borrow().clone();
            let failed = match disk {
                Some(d) => match op(&d).await {
                    Err(e) if e.is_path() => e,
                    other => return other,
                },
                None => Error::PathDown,
            };
            // A path that is down has been so for long enough; these ends come at once.
            let early = matches!(failed, Error::TimedOut | Error::Closed);
            let switched = self.switch(at, failed).await;
            if changes && early {
                sleep(self.paths[at].queue.local.shared.config.keep_alive + LATE).await;
            }
            switched?;
        }
        Err(self.last_error().unwrap_or(Error::PathDown))
    }

    /// Goes from path `from` to the next that has the volume, if nobody has done so meanwhile.
    async fn switch(&self, from: usize, why: Error) -> Result<(), Error> {
        let _one = self.switching.acquire(1).await;
        if self.active.get() != from {
            return Ok(());
        }
        *self.last_error.borrow_mut() = Some(why.clone());
        let n = self.paths.len();
        // The present path comes last: it may be back.
        for i in (1..=n).map(|i| (from + i) % n) {
            if self.find(i).await.is_ok() {
                tracing::warn!(from, to = i, why = %why, "path changed");
                self.active.set(i);
                self.switches.set(self.switches.get() + u64::from(i != from));
                return Ok(());
            }
        }
        Err(why)
    }

    /// Finds the volume on a path; it may have another number than last time.
    async fn find(&self, i: usize) -> Result<(), Error> {
        let path = &self.paths[i];
        let known = path.disk.borrow().clone();
        match known {
            Some(d) => d.refresh(true).await?,
            None => {
                let disk = path.queue.open_path(&self.uid, self.ledger.clone()).await?;
                *path.disk.borrow_mut() = Some(Rc::new(disk));
            }
        }
        if self.paths.len() > 1 && path.queue.local.channel()?.limits().keep_alive == 0 {
            return Err(Error::Invalid(
                "with several paths, a target has to agree to a keep-alive time",
            ));
        }
        Ok(())
    }
}
