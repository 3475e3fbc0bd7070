//! Devices that are taken on threads of their own, for somebody who waits or has given up.

use super::{AGAIN, Entry, Holds, Owner, PATIENCE, Wait, lock, plain, unusable};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_control::{Code, Error, Result};
use weir_uring::device::{Closings, Made};
use weir_uring::{Held, drop_aside};

/// How long a device may take to be opened and looked at.
pub(super) const DEADLINE: Duration = Duration::from_secs(20);

/// Does something that may let go of devices, and waits until these are closed, as long as one may reasonably take: reactors, and the
/// threads of the control plane, have others do that, and whoever is told that a device is let go of uses it at once.
pub(in crate::plane) async fn closed<R>(work: impl Future<Output = R>) -> R {
    let since = Closings::since_now();
    let done = work.await;
    let begun = Instant::now();
    while !since.are_over() && begun.elapsed() < PATIENCE {
        tokio::time::sleep(AGAIN).await;
    }
    done
}

impl Holds {
    /// Does something that may wait for a file system or driver, on a thread of its own.
    ///
    /// # Errors
    /// Those of `f`; it takes too long. Then it may still come to its end, and what it gives is dropped.
    pub(crate) async fn helped<R: Send + 'static>(
        self: &Arc<Self>,
        path: &Path,
        f: impl FnOnce(&Arc<Holds>) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        self.helped_while(path, |holds, _| f(holds)).await
    }

    /// The same for what changes something: it asks before that whether anybody waits for it still.
    pub(crate) async fn helped_while<R: Send + 'static>(
        self: &Arc<Self>,
        path: &Path,
        f: impl FnOnce(&Arc<Holds>, &Waited<'_>) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        let silent = || {
            Error::new(Code::IoError, format!("`{}` does not answer", path.display()))
                .because("opening it, or looking at it, has not come to an end")
                .hint("see to its file system or driver; it is tried again")
        };
        if !lock(&self.asked).insert(path.to_owned()) {
            return Err(silent());
        }
        let (tell, told) = tokio::sync::oneshot::channel();
        let (holds, asked) = (self.clone(), path.to_owned());
        let thread = std::thread::Builder::new().name("weir-device".into()).spawn(move || {
            let done = f(&holds, &|| !tell.is_closed());
            let mut all = lock(&holds.asked);
            if let Err(late) = tell.send(done) {
                // Nobody waits. What is let go of now may not be taken for theirs by whoever asks next.
                drop(all);
                drop(late);
                all = lock(&holds.asked);
            }
            all.remove(&asked);
        });
        if let Err(e) = thread {
            lock(&self.asked).remove(path);
            return Err(Error::new(Code::IoError, "no thread for a device").because(e));
        }
        match tokio::time::timeout(DEADLINE, told).await {
            Ok(Ok(done)) => done,
            Ok(Err(_)) => Err(Error::new(Code::Internal, "the thread of a device ended")),
            Err(_) => Err(silent()),
        }
    }

    /// Takes what is at `path` for an owner, who may have it already. What nobody keeps is let go of: whoever asked may have given
    /// up since. May wait as long as the file system does.
    ///
    /// # Errors
    /// Those of [`open`](Holds::open); its owner uses something else that had that name.
    pub(crate) fn take(
        self: &Arc<Self>,
        owner: &Owner,
        path: &Path,
        read_only: bool,
        wait: Wait,
    ) -> Result<Taken> {
        self.check_same(owner, path)?;
        let before = self.kept(owner, path);
        let opened = self.open(owner, path, read_only, wait);
        let is_it = |b: &Arc<Held>| opened.as_ref().is_ok_and(|held| Arc::ptr_eq(b, held));
        let is_kept = before.as_ref().is_some_and(is_it);
        if let Some(other) = before.filter(|_| !is_kept) {
            // What had that name before may hang, which is not this one's fault.
            drop_aside(other);
        }
        let held = opened?;
        let (owner, path) = (owner.clone(), path.to_owned());
        Ok(Taken { holds: self.clone(), owner, path, held, is_kept, made: None })
    }

    /// Takes what may have been `made` for this a moment ago: that goes if it is not kept.
    pub(super) fn take_made(
        self: &Arc<Self>,
        owner: &Owner,
        path: &Path,
        wait: Wait,
        made: Option<Made>,
    ) -> Result<Taken> {
        match (self.take(owner, path, false, wait), made) {
            // Else another file has got its name since.
            (Ok(mut taken), Some(made)) if made.is(taken.identity()) => {
                taken.made = Some(made);
                self.set_made(owner, path, Some(made));
                Ok(taken)
            }
            (Err(e), Some(made)) => {
                remove(made, path);
                Err(e)
            }
            (taken, _) => taken,
        }
    }

    /// Takes a device of a protected pool that carries its label, without waiting for its lock. May wait as long as the file system
    /// does.
    pub(crate) fn hold_now(self: &Arc<Self>, owner: &Owner, path: &str) -> Result<Taken> {
        let path = Path::new(path);
        let taken = self.take(owner, path, false, Wait::No)?;
        self.check_disk_again(&taken, Some(owner), || self.is_labelled_for(owner, &taken, path))?;
        self.check_claims(taken.held(), path, true)?;
        if !taken.is_kept() {
            self.check_below_again(&taken, path, Some(owner), || Ok(0))?;
        }
        Ok(taken)
    }
}

/// A device that was taken for somebody who may have gone since: the pool may be another's by now, or no more.
pub(crate) struct Taken {
    holds: Arc<Holds>,
    owner: Owner,
    path: PathBuf,
    held: Arc<Held>,
    is_kept: bool,
    /// It was made a moment ago, and goes if it is not kept.
    made: Option<Made>,
}

impl Taken {
    /// Its owner has it.
    pub(crate) fn keep(mut self) -> Arc<Held> {
        self.is_kept = true;
        self.holds.with_entry(&self.owner, &self.path, |e| e.looked_at = false);
        self.held.clone()
    }
}

impl Taken {
    /// What is taken, for whoever looks at it on another thread.
    pub(in crate::plane) fn held(&self) -> &Arc<Held> {
        &self.held
    }

    /// By which name.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Its owner had it before.
    pub(super) fn is_kept(&self) -> bool {
        self.is_kept
    }
}

impl Deref for Taken {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        // While nobody else can lock it.
        if let Some(made) = self.made.take() {
            remove(made, &self.path);
        }
        let same = |e: &Entry| Arc::ptr_eq(&e.held, &self.held);
        self.holds.release(|e| e.owner == self.owner && e.path == self.path && same(e));
    }
}

/// Whether somebody waits for what is being done.
pub(crate) type Waited<'a> = dyn Fn() -> bool + 'a;

/// Refuses to change a device for somebody who has given up: it may be another's by now.
pub(super) fn check_waited(path: &Path, waited: &Waited<'_>) -> Result<()> {
    match waited() {
        true => Ok(()),
        false => Err(unusable(path, "it answered too late")),
    }
}

/// Removes what was made a moment ago, by us, with the label that it may have got.
pub(crate) fn remove(made: Made, path: &Path) {
    if let Err(e) = made.remove(path, &plain::LABELS) {
        tracing::warn!("{} was made for nothing and stays: {e}", path.display());
    }
}
