//! A volume behind the initiators, as one reactor reaches it: what fails because of the way to it is done again, until it
//! works or the time for it is over.

use crate::disk::{Disk, Errno, Geometry, Request, check};
use crate::given_up::{GivenUp, Hold};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use weir_base::{MILLIS, Nanos, SECONDS};
use weir_initiator_brp as brp;
use weir_initiator_srp as srp;
use weir_proto_scsi::sense::{Sense, SenseKey};
use weir_proto_scsi::{Lun, Status};
use weir_reactor::{now, sleep, spawn_task, timeout};

/// How long it is not said again that requests wait: at first, and at most.
const FIRST_PAUSE: Nanos = 10 * SECONDS;
const LONGEST_PAUSE: Nanos = 640 * SECONDS;
/// Longest pause between two tries.
const PAUSE: Nanos = SECONDS;
/// How long a write of which a lost path may still do something is left alone.
const SETTLE: Nanos = 5 * SECONDS;
/// Blocks of one command where the unit does not say how many it takes.
const BLOCKS: u64 = 1 << 16;

/// The way to a volume.
pub(crate) enum Way {
    /// BRP, over one or more paths.
    Brp(brp::Multipath),
    /// SRP, over one or more paths, known by its designator.
    Srp(srp::Multipath),
    /// SRP, a unit that has no designator to know it by.
    Plain(srp::Queue, Lun),
}

impl Way {
    /// Waits until nothing can be done any more of what was given up before: the target has said so, or has lost us for
    /// long enough.
    async fn given_up(&self) {
        match self {
            Way::Brp(p) => return p.given_up().await,
            Way::Srp(p) => p.given_up().await,
            Way::Plain(q, _) => q.given_up().await,
        }
        sleep(SETTLE).await;
    }
}

/// Why an operation failed, and whether it is worth another try.
struct Fault {
    errno: i32,
    /// It may be tried again, after this time at least.
    again: Option<Nanos>,
    why: String,
}

/// How long requests wait, which is the same for all queues of a disk.
#[derive(Clone)]
pub(crate) struct Patience {
    fail_after: Option<Nanos>,
    given_up: Arc<GivenUp>,
}

impl Patience {
    /// A request fails that could not be done for so long; `None` has it wait for ever.
    pub(crate) fn of(fail_after: Option<Nanos>) -> Patience {
        Patience { fail_after, given_up: Arc::default() }
    }
}

/// A volume behind the initiators.
pub struct Volume {
    way: Rc<Way>,
    geometry: Cell<Geometry>,
    /// Most bytes of one UNMAP, and of one WRITE SAME; SRP.
    limits: (u64, u64),
    /// The host gets an error when a request could not be done for so long.
    fail_after: Option<Nanos>,
    /// Changes that failed for that reason and may still be done.
    given_up: Arc<GivenUp>,
    /// Those of them that were given up here.
    ends: Rc<Ends>,
    /// Requests that wait for the way to the volume.
    waiting: Cell<u32>,
    told: Told,
}

impl Volume {
    pub(crate) fn brp(paths: brp::Multipath, patience: Patience) -> Option<Volume> {
        let info = paths.disk()?.info();
        let geometry = Geometry {
            len: info.len,
            block_size: info.block_size,
            thin: info.thin,
            read_only: info.read_only,
        };
        Some(Volume::new(Way::Brp(paths), geometry, (u64::MAX, u64::MAX), patience))
    }

    pub(crate) fn srp(way: Way, unit: &srp::LogicalUnit, patience: Patience) -> Volume {
        let block = u64::from(unit.block_size);
        // 0 says nothing.
        let told = |n: Option<u64>| n.filter(|n| *n > 0).unwrap_or(BLOCKS);
        let unmap = told(unit.limits.map(|l| l.max_unmap_blocks.into()));
        let same = told(unit.limits.map(|l| l.max_write_same_blocks));
        // A length in blocks has 32 bits.
        let bytes = |blocks: u64| blocks.min(u64::from(u32::MAX)).saturating_mul(block);
        let geometry = Geometry {
            len: unit.len,
            block_size: unit.block_size,
            thin: unit.unmap,
            read_only: false,
        };
        Volume::new(way, geometry, (bytes(unmap), bytes(same)), patience)
    }

    fn new(way: Way, geometry: Geometry, limits: (u64, u64), patience: Patience) -> Volume {
        let way = Rc::new(way);
        Volume {
            ends: Rc::new(Ends {
                way: way.clone(),
                held: RefCell::default(),
                watched: Cell::default(),
            }),
            way,
            geometry: Cell::new(geometry),
            limits,
            fail_after: patience.fail_after,
            given_up: patience.given_up,
            waiting: Cell::new(0),
            told: Told::default(),
        }
    }

    /// Has the volume refuse changes here, whatever the target would do.
    pub(crate) fn set_read_only(&self) {
        self.geometry.set(Geometry { read_only: true, ..self.geometry.get() });
    }

    /// Takes a new length over.
    pub(crate) fn set_len(&self, len: u64) {
        self.geometry.set(Geometry { len, ..self.geometry.get() });
    }

    /// The length by the target's word; `None` when that cannot be had. BRP targets tell news by themselves and are asked
    /// only when they did, or if `anyway`.
    pub(crate) async fn ask_len(&self, anyway: bool) -> Option<u64> {
        match &*self.way {
            Way::Brp(paths) => {
                let disk: Rc<brp::Disk> = paths.disk()?;
                disk.refresh(anyway).await.ok()?;
                Some(disk.info().len)
            }
            Way::Srp(paths) => {
                let op = async |q: &srp::Queue, lun| q.size(lun).await;
                paths.run(srp::Repeat::Always, op).await.ok()
            }
            Way::Plain(q, lun) => q.size(*lun).await.ok(),
        }
    }

    async fn once(&self, r: &Request) -> Result<(), Fault> {
        match &*self.way {
            Way::Brp(p) => match r {
                Request::Read { at, buf } => p.read(*at, buf.clone()).await,
                Request::Write { at, buf, fua } => p.write(*at, buf.clone(), *fua).await,
                Request::Flush => p.flush().await,
                Request::Discard { at, len } => p.discard(*at, *len).await,
                Request::WriteZeroes { at, len, unmap } => p.write_zeroes(*at, *len, *unmap).await,
            }
            .map_err(|e| brp_fault(&e)),
            Way::Srp(p) => match r {
                Request::Read { at, buf } => p.read(*at, buf.clone()).await,
                Request::Write { at, buf, fua } => p.write(*at, buf.clone(), *fua).await,
                Request::Flush => p.flush().await,
                Request::Discard { at, len } => {
                    let most = self.limits.0;
                    pieces(*at, *len, most, async |at, len| p.unmap(&[(at, len)]).await).await
                }
                Request::WriteZeroes { at, len, unmap } => {
                    let most = self.limits.1;
                    let op = async |at, len| p.write_zeroes(at, len, *unmap).await;
                    pieces(*at, *len, most, op).await
                }
            }
            .map_err(|e| srp_fault(&e)),
            Way::Plain(q, lun) => match r {
                Request::Read { at, buf } => q.read(*lun, *at, buf.clone()).await,
                Request::Write { at, buf, fua } => q.write(*lun, *at, buf.clone(), *fua).await,
                Request::Flush => q.flush(*lun).await,
                Request::Discard { at, len } => {
                    let most = self.limits.0;
                    pieces(*at, *len, most, async |at, len| q.unmap(*lun, &[(at, len)]).await).await
                }
                Request::WriteZeroes { at, len, unmap } => {
                    let most = self.limits.1;
                    let op = async |at, len| q.write_zeroes(*lun, at, len, *unmap).await;
                    pieces(*at, *len, most, op).await
                }
            }
            .map_err(|e| srp_fault(&e)),
        }
    }

    /// Tries again and again.
    #[cold]
    async fn again(&self, r: &Request, first: Fault) -> Result<(), Errno> {
        let _waiting = Waiting::new(&self.waiting);
        let mut fault = first;
        let mut pause = 10 * MILLIS;
        let ended = loop {
            let Some(least) = fault.again else { break Err(Errno(fault.errno)) };
            self.tell(&fault.why);
            sleep(pause.max(least)).await;
            pause = (pause * 2).min(PAUSE);
            match self.once(r).await {
                Ok(()) => {
                    self.told.ends();
                    break Ok(());
                }
                Err(f) => fault = f,
            }
        };
        if ended.is_err() {
            tracing::error!(error = %fault.why, range = ?r.range(), "a request fails");
        }
        ended
    }

    /// Says that requests wait.
    fn tell(&self, why: &str) {
        if let Some(next) = self.told.is_due(now()) {
            let (requests, silent) = (self.waiting.get(), next / SECONDS);
            tracing::warn!(
                requests,
                why,
                "requests wait for the volume; said again after {silent} s"
            );
        }
    }

    async fn patiently(&self, r: &Request) -> Result<(), Errno> {
        match self.once(r).await {
            Ok(()) => Ok(()),
            Err(f) => Box::pin(self.again(r, f)).await,
        }
    }
}

/// Changes that were given up on a queue and may still be done. They can be many where a target does not answer for long:
/// one task waits for all that have come, and then for those that came meanwhile.
struct Ends {
    way: Rc<Way>,
    held: RefCell<Vec<Hold>>,
    watched: Cell<bool>,
}

impl Ends {
    /// Keeps this one until it is over.
    fn watch(self: &Rc<Self>, hold: Hold) {
        self.held.borrow_mut().push(hold);
        if self.watched.replace(true) {
            return;
        }
        let me = self.clone();
        spawn_task(async move {
            loop {
                let now = me.held.take();
                if now.is_empty() {
                    return me.watched.set(false);
                }
                me.way.given_up().await;
                drop(now);
            }
        });
    }
}

/// When it was said that requests wait: again after a pause, which rises while none of them goes on.
#[derive(Debug, Default)]
struct Told {
    /// When, if ever, and the pause after that.
    last: Cell<Option<(Nanos, Nanos)>>,
}

impl Told {
    /// Whether it is to be said now: how long it is not said again then.
    fn is_due(&self, now: Nanos) -> Option<Nanos> {
        let pause = match self.last.get() {
            None => FIRST_PAUSE,
            Some((at, pause)) if now.saturating_sub(at) >= pause => (2 * pause).min(LONGEST_PAUSE),
            Some(_) => return None,
        };
        self.last.set(Some((now, pause)));
        Some(pause)
    }

    /// One went on: what comes next is news, but not at once.
    fn ends(&self) {
        self.last.set(self.last.get().map(|(at, _)| (at, FIRST_PAUSE)));
    }
}

/// One request that waits, also one that is given up then.
struct Waiting<'a>(&'a Cell<u32>);

impl Waiting<'_> {
    fn new(count: &Cell<u32>) -> Waiting<'_> {
        count.set(count.get() + 1);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Disk for Volume {
    fn geometry(&self) -> Geometry {
        self.geometry.get()
    }

    async fn run(&self, r: &Request) -> Result<(), Errno> {
        check(&self.geometry.get(), r)?;
        let Some(limit) = self.fail_after else { return self.patiently(r).await };
        let begun = Cell::new(false);
        let ended = timeout(limit, async {
            self.given_up.passed(r).await;
            begun.set(true);
            self.patiently(r).await
        });
        if let Ok(ended) = ended.await {
            return ended;
        }
        tracing::error!(range = ?r.range(), "a request waited for too long and fails");
        if begun.get() && r.changes() {
            self.ends.watch(self.given_up.hold(r));
        }
        Err(Errno(libc::EIO))
    }
}

/// Runs an operation on a range in pieces of at most `most` bytes.
async fn pieces(
    at: u64,
    len: u64,
    most: u64,
    op: impl AsyncFn(u64, u64) -> Result<(), srp::Error>,
) -> Result<(), srp::Error> {
    let mut done = 0;
    while done < len {
        let n = (len - done).min(most.max(1));
        op(at + done, n).await?;
        done += n;
    }
    Ok(())
}

/// What a failure over BRP means.
#[cold]
fn brp_fault(e: &brp::Error) -> Fault {
    use brp::Status as S;
    let (errno, again) = match e {
        brp::Error::Status(s) => match s {
            S::Busy | S::Aborted | S::NotReady | S::Offline | S::NoVolume | S::WrongVolume => {
                (libc::EIO, Some(0))
            }
            S::NoSpace => (libc::ENOSPC, None),
            S::ReadOnly => (libc::EROFS, None),
            S::Unsupported => (libc::EOPNOTSUPP, None),
            S::Reserved => (libc::EBADE, None),
            S::OutOfRange | S::Invalid => (libc::EINVAL, None),
            S::Medium | S::ChecksumMedium => (libc::ENODATA, None),
            _ => (libc::EIO, None),
        },
        // Nothing of it is under way at the target any more, or what is has the same effect again.
        e if e.is_path() => (libc::EIO, Some(0)),
        // LostCache, Damaged and the like: the host has to know.
        _ => (libc::EIO, None),
    };
    Fault { errno, again, why: e.to_string() }
}

/// What a failure over SRP means.
#[cold]
fn srp_fault(e: &srp::Error) -> Fault {
    let (errno, again) = match e {
        srp::Error::LostUnderWay { .. } | srp::Error::TimedOut => (libc::EIO, Some(SETTLE)),
        srp::Error::Fabric(_) => (libc::EIO, Some(0)),
        srp::Error::Scsi { status, sense } => scsi_fault(*status, sense.as_ref()),
        e if e.is_path() => (libc::EIO, Some(0)),
        _ => (libc::EIO, None),
    };
    Fault { errno, again, why: e.to_string() }
}

fn scsi_fault(status: u8, sense: Option<&Sense>) -> (i32, Option<Nanos>) {
    let Some(s) = sense else {
        return match Status::from_code(status) {
            Some(Status::ReservationConflict) => (libc::EBADE, None),
            Some(Status::Busy | Status::TaskSetFull) => (libc::EIO, Some(0)),
            _ => (libc::EIO, None),
        };
    };
    match (s.key, s.asc) {
        // LOGICAL UNIT NOT SUPPORTED: the target has just started, or the volume was unmapped.
        (SenseKey::IllegalRequest, 0x25) => (libc::EIO, Some(0)),
        (SenseKey::NotReady | SenseKey::UnitAttention | SenseKey::AbortedCommand, _) => {
            (libc::EIO, Some(0))
        }
        // INVALID COMMAND OPERATION CODE, INVALID FIELD IN CDB: not offered by this unit.
        (SenseKey::IllegalRequest, 0x20 | 0x24) => (libc::EOPNOTSUPP, None),
        (SenseKey::IllegalRequest, _) => (libc::EINVAL, None),
        // SPACE ALLOCATION FAILED WRITE PROTECT
        (SenseKey::DataProtect, 0x27) if s.ascq == 7 => (libc::ENOSPC, None),
        (SenseKey::DataProtect, _) => (libc::EROFS, None),
        (SenseKey::MediumError, _) => (libc::ENODATA, None),
        _ => (libc::EIO, None),
    }
}

#[cfg(test)]
mod tests;
