//! What is at a path that nobody of the pool has: whether it carries the pool's label, and how far it has come.

use crate::plane::local::{Glanced, Local};
use rustix::io::Errno;
use std::path::Path;
use std::rc::Rc;
use weir_base::{MILLIS, Nanos, SECONDS};
use weir_disk::Disk;
use weir_reactor::{sleep, timeout};
use weir_store::{LogEnd, StoreError, Told};
use weir_uring::Identity;

/// How long somebody else's disk may keep a pool waiting: to be opened, and to give its label.
const GLANCE: Nanos = 5 * SECONDS;
/// How long a device of the pool that is elsewhere may take to tell how far it has come.
const LOG: Nanos = 60 * SECONDS;
/// After how long one that cannot be read is asked again. It is not open meanwhile, so that whoever takes it away need not wait.
const AGAIN: Nanos = 500 * MILLIS;

/// What carries the pool's label elsewhere.
pub(super) struct Labelled {
    pub(super) device: u64,
    /// Its superblock, if that can be read.
    pub(super) seq: Option<u64>,
    /// How far it has come, if that can be read.
    pub(super) end: Option<LogEnd>,
    /// What the operating system tells it from others by.
    pub(super) name: Option<String>,
}

impl Labelled {
    /// Whether it has left the pool, as those that are there know. They do not know what has come to it since.
    pub(super) fn has_left(&self, newest: Option<&Told>) -> bool {
        newest.is_some_and(|t| {
            self.seq.is_some_and(|seq| seq <= t.seq) && !t.members.contains(&self.device)
        })
    }
}

/// What was seen at a path.
pub(super) enum Seen {
    /// A device that the pool has, by another of its names.
    Own,
    /// It was read, and is none of the pool.
    Foreign,
    /// It carries the pool's label.
    Ours(Labelled),
    /// There is nothing, or nothing that this process may open.
    Closed,
    /// It did not answer, or cannot be read.
    Silent,
}

impl Seen {
    pub(super) fn device(&self) -> Option<u64> {
        match self {
            Seen::Ours(l) => Some(l.device),
            _ => None,
        }
    }

    pub(super) fn end(&self) -> Option<&LogEnd> {
        match self {
            Seen::Ours(l) => l.end.as_ref(),
            _ => None,
        }
    }

    /// Whether what was read says that it is no device which the pool lacks. An error says nothing of the kind, nor does time.
    pub(super) fn is_nothing_missing(&self) -> bool {
        matches!(self, Seen::Own | Seen::Foreign)
    }
}

/// Whether the error of an opening says that nothing is there that may be a device, or nothing that this process may have. None that a
/// disk gives, or its driver, does.
fn is_an_answer(e: &std::io::Error) -> bool {
    let of_names = [Errno::NOENT, Errno::NOTDIR, Errno::ACCESS, Errno::PERM];
    // A drive without a disk, and a copy that another machine writes to.
    let of_drives = [Errno::NOMEDIUM, Errno::MEDIUMTYPE];
    Errno::from_io_error(e).is_none_or(|n| of_names.contains(&n) || of_drives.contains(&n))
}

/// The pool, and which of its devices something says to be.
type Says = Result<(u128, u64), StoreError>;

/// What is at a path, and what it says to be: one thing, of which nobody knows what it is as long as it cannot be read.
async fn opened(local: &Local, path: &str, own: &[Identity]) -> Result<(Glanced, Says), Seen> {
    let mut unread: Option<Identity> = None;
    loop {
        let at = match local.glance(Path::new(path)).await {
            Some(Ok(at)) => at,
            // What was there before did not say what it is.
            Some(Err(_)) if unread.is_some() => return Err(Seen::Silent),
            Some(Err(e)) if is_an_answer(&e) => return Err(Seen::Closed),
            Some(Err(_)) => return Err(Seen::Silent),
            None => return Err(Seen::Silent),
        };
        if own.contains(&at.identity) {
            return Err(Seen::Own);
        }
        if unread.is_some_and(|u| u != at.identity) {
            return Err(Seen::Silent);
        }
        if !weir_store::is_unreadable(&at.disk).await {
            let label = weir_store::label_of(&at.disk).await;
            return Ok((at, label.map(|l| (l.pool, l.device))));
        }
        unread = Some(at.identity);
        drop(at);
        sleep(AGAIN).await;
    }
}

/// How far a disk with the pool's label has come, if it tells in time.
async fn log_end(disk: &Rc<dyn Disk>) -> Option<LogEnd> {
    timeout(LOG, weir_store::log_end(disk)).await.ok()?.ok()
}

/// Whether a disk is the device that was seen, and has come just as far. Where the system does not tell disks from each other, its
/// path may lead to another one since.
pub(super) async fn is_still(
    disk: &Rc<dyn Disk>,
    (pool, device): (u128, u64),
    end: &LogEnd,
) -> bool {
    let label = timeout(GLANCE, weir_store::label_of(disk)).await.ok().and_then(Result::ok);
    label.is_some_and(|l| (l.pool, l.device) == (pool, device))
        && log_end(disk).await.as_ref() == Some(end)
}

/// What is at a path.
pub(super) async fn see(local: Rc<Local>, path: String, pool: u128, own: Rc<[Identity]>) -> Seen {
    let (at, label) = match timeout(GLANCE, opened(&local, &path, &own)).await {
        Err(_) => return Seen::Silent,
        Ok(Err(seen)) => return seen,
        Ok(Ok(found)) => found,
    };
    match label {
        Ok((of, _)) if of != pool => Seen::Foreign,
        // It is nobody else's: what it has is waited for as long as of those that are there.
        Ok((_, device)) => {
            let end = log_end(&at.disk).await;
            let seq = end.as_ref().map(|end| end.seq);
            let end = end.filter(|end| !end.unread);
            Seen::Ours(Labelled { device, seq, end, name: at.name })
        }
        Err(StoreError::Io(_) | StoreError::Unread(_)) => Seen::Silent,
        // Most are nobody's of the pool.
        Err(_) => Seen::Foreign,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::sync::Arc;
    use weir_disk::{DiskOp, report};
    use weir_reactor::{Driver, PollMode, Reactor, Token, Unpark, complete, now, spawn_task};
    use weir_store::{PoolSpec, create};

    #[test]
    fn what_a_driver_says_is_no_answer() {
        let of = |n: Errno| is_an_answer(&n.into());
        assert!([Errno::NOENT, Errno::ACCESS, Errno::NOMEDIUM].into_iter().all(of));
        let drivers = [Errno::IO, Errno::NXIO, Errno::NODEV, Errno::TIMEDOUT, Errno::STALE];
        assert!(!drivers.into_iter().any(of));
        assert!(is_an_answer(&std::io::Error::other("a directory")));
    }

    #[test]
    fn what_is_in_use_is_cleared_by_what_was_read_alone() {
        assert!(Seen::Own.is_nothing_missing() && Seen::Foreign.is_nothing_missing());
        let ours = Seen::Ours(Labelled { device: 1, seq: None, end: None, name: None });
        for seen in [Seen::Silent, Seen::Closed, ours] {
            assert!(!seen.is_nothing_missing());
        }
    }

    /// Time that passes only while all wait for it.
    #[derive(Default)]
    struct Clock(Cell<Nanos>);

    struct Nobody;

    impl Unpark for Nobody {
        fn unpark(&self) {}
    }

    impl Driver for Clock {
        fn now(&self) -> Nanos {
            self.0.get()
        }
        fn poll(&self) -> bool {
            false
        }
        fn park(&self, until: Option<Nanos>) {
            self.0.set(self.0.get().max(until.expect("somebody waits for ever")));
        }
        fn unparker(&self) -> Arc<dyn Unpark> {
            Arc::new(Nobody)
        }
    }

    /// In memory. A read takes some time.
    struct Slow(RefCell<Vec<u8>>, Cell<Nanos>);

    impl Disk for Slow {
        fn len(&self) -> u64 {
            self.0.borrow().len() as u64
        }
        fn block_size(&self) -> u32 {
            4096
        }
        fn volatile_cache(&self) -> bool {
            false
        }
        fn name(&self) -> &str {
            "slow"
        }
        fn submit(&self, op: DiskOp, token: Token) {
            let mut takes = 0;
            match op {
                DiskOp::Read { offset, buf } => {
                    let all = self.0.borrow();
                    buf.write_at(0, &all[offset as usize..offset as usize + buf.len()]);
                    takes = self.1.get();
                }
                DiskOp::Write { offset, buf, .. } => {
                    let mut all = self.0.borrow_mut();
                    all[offset as usize..offset as usize + buf.len()]
                        .copy_from_slice(&buf.to_vec());
                }
                _ => {}
            }
            spawn_task(async move {
                sleep(takes).await;
                complete(token, report(Ok(())));
            });
        }
    }

    #[test]
    fn a_device_of_the_pool_has_a_minute_to_tell_how_far_it_has_come() {
        let reactor = Reactor::new(Rc::new(Clock::default()));
        reactor.block_on(PollMode::Sleep, async {
            let slow = Rc::new(Slow(RefCell::new(vec![0; 64 << 20]), Cell::new(0)));
            let disk: Rc<dyn Disk> = slow.clone();
            let spec = PoolSpec::fitting(7, 1, disk.len());
            create(std::slice::from_ref(&disk), &spec).await.expect("a pool");
            let end = log_end(&disk).await.expect("it tells");
            let device = weir_store::label_of(&disk).await.expect("a label").device;
            assert!(is_still(&disk, (7, device), &end).await);
            for other in [(8, device), (7, device ^ 1)] {
                assert!(!is_still(&disk, other, &end).await);
            }
            assert!(!is_still(&disk, (7, device), &LogEnd { seq: end.seq + 1, ..end }).await);
            for (takes, tells) in [(2, true), (19, false)] {
                slow.1.set(takes * SECONDS);
                let begun = now();
                assert_eq!(log_end(&disk).await, tells.then_some(end));
                let took = now() - begun;
                assert!(took > GLANCE && took <= LOG, "{took}");
                assert_eq!(took == LOG, !tells, "{took}");
            }
        });
    }

    #[test]
    fn what_has_left_the_pool_is_none_that_it_lacks() {
        let newest = Told { seq: 9, members: vec![1, 2] };
        let of = |device, seq| Labelled { device, seq, end: None, name: None };
        assert!(of(3, Some(9)).has_left(Some(&newest)));
        // It may have come back, and gone on; it is a member; nobody knows.
        assert!(!of(3, Some(10)).has_left(Some(&newest)));
        assert!(!of(2, Some(9)).has_left(Some(&newest)));
        assert!(!of(3, None).has_left(Some(&newest)));
        assert!(!of(3, Some(9)).has_left(None));
    }
}
