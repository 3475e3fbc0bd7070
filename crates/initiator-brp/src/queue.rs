//! A reactor's handle for I/O on a session.

use crate::channel::{Io, Outcome, Path};
use crate::disk::Disk;
use crate::error::{Error, Hop};
use crate::planted::{Bug, has};
use crate::session::Local;
use std::rc::Rc;
use std::sync::Arc;
use weir_base::unflushed::{Ledger, Unflushed};
use weir_base::{MILLIS, Nanos};
use weir_mem::Slice;
use weir_proto_brp::volume::VOLUME_INFO;
use weir_proto_brp::{Op, Status, VolumeInfo};
use weir_reactor::sleep;

/// Descriptions asked for at once.
const AT_ONCE: usize = 64;
/// How often is looked whether commands that were given up have ended.
const LOOK: Nanos = 5 * MILLIS;

/// The present reactor's handle for I/O. Cloning gives another handle to the same.
#[derive(Clone)]
pub struct Queue {
    pub(crate) local: Rc<Local>,
}

impl Queue {
    pub(crate) fn new(local: Rc<Local>) -> Queue {
        Queue { local }
    }

    /// The volumes that the target shows to this initiator port.
    ///
    /// # Errors
    /// What the target said, or that the path is down.
    pub async fn list(&self) -> Result<Vec<VolumeInfo>, Error> {
        let buf = Slice::heap(AT_ONCE * VOLUME_INFO);
        let mut all = Vec::new();
        loop {
            let io = Io {
                op: Op::List,
                flags: 0,
                volume: 0,
                guard: 0,
                offset: all.len() as u64,
                len: buf.len() as u32,
                memory: std::slice::from_ref(&buf),
            };
            let n = match self.local.channel()?.run(io).await {
                Outcome::Done(n) => n as usize / VOLUME_INFO,
                o => return Err(plain(o)),
            };
            let bytes = buf.to_vec();
            for b in bytes.chunks(VOLUME_INFO).take(n) {
                let v = VolumeInfo::decode(b);
                all.push(v.ok_or_else(|| Error::Protocol("a bad volume description".into()))?);
            }
            if n < AT_ONCE {
                return Ok(all);
            }
        }
    }

    /// Opens the volume of this name.
    ///
    /// # Errors
    /// There is none of this name, or the path is down.
    pub async fn open(&self, name: &str) -> Result<Disk, Error> {
        let found = self.list().await?.into_iter().find(|v| v.name == name);
        let info = found.ok_or_else(|| Error::NoVolume(name.to_owned()))?;
        Ok(self.disk(info))
    }

    /// Opens the volume of this number.
    ///
    /// # Errors
    /// There is none of this number, or the path is down.
    pub async fn open_number(&self, number: u16) -> Result<Disk, Error> {
        let found = self.list().await?.into_iter().find(|v| v.volume == number);
        let info = found.ok_or_else(|| Error::NoVolume(number.to_string()))?;
        Ok(self.disk(info))
    }

    /// Opens the volume with this identity, whatever its name and number here.
    ///
    /// # Errors
    /// There is none, or the path is down.
    pub async fn open_uid(&self, uid: &[u8; 16]) -> Result<Disk, Error> {
        self.open_path(uid, Rc::new(ledger(std::slice::from_ref(self), uid))).await
    }

    fn disk(&self, info: VolumeInfo) -> Disk {
        let ledger = Rc::new(ledger(std::slice::from_ref(self), &info.uid));
        Disk::new(self.clone(), info, ledger)
    }

    /// As [`open_uid`](Queue::open_uid), for one of several paths of a handle.
    pub(crate) async fn open_path(
        &self,
        uid: &[u8; 16],
        ledger: Rc<Ledger>,
    ) -> Result<Disk, Error> {
        let found = self.list().await?.into_iter().find(|v| v.uid == *uid);
        let info = found.ok_or_else(|| Error::NoVolume("with this identity".into()))?;
        Ok(Disk::new(self.clone(), info, ledger))
    }

    /// There and back again.
    ///
    /// # Errors
    /// The path is down.
    pub async fn nop(&self) -> Result<(), Error> {
        let io = Io { op: Op::Nop, flags: 0, volume: 0, guard: 0, offset: 0, len: 0, memory: &[] };
        match self.local.channel()?.run(io).await {
            Outcome::Done(_) => Ok(()),
            o => Err(plain(o)),
        }
    }

    /// Waits until the target has told the end of every change here that was given up before, by dropping its future or
    /// because it took too long. False: the path was not up all the time, so the target may know of some that we do not.
    pub(crate) async fn given_up(&self) -> bool {
        let channels = self.local.channels();
        let of_then: Vec<_> = channels.iter().map(|c| c.given_up()).collect();
        let mut known = true;
        for (c, of_then) in channels.iter().zip(of_then) {
            loop {
                if c.path() != Path::Up {
                    known = false;
                    break;
                }
                if !c.given_up().iter().any(|g| of_then.contains(g)) {
                    break;
                }
                sleep(LOOK).await;
            }
        }
        known
    }

    /// True while the path of some channel here is up.
    pub fn is_up(&self) -> bool {
        self.local.channel().is_ok_and(|c| c.path() == Path::Up)
    }

    /// True once another session has taken the place of this one: it logs in no more.
    pub fn is_replaced(&self) -> bool {
        self.local.channels().iter().any(|c| c.path() == Path::Replaced)
    }

    /// Waits for a change of the path, if it is down.
    pub async fn up_or_changed(&self) {
        if let Ok(c) = self.local.channel()
            && c.path() != Path::Up
        {
            c.path_changed().await;
        }
    }
}

/// A handle's part of what is known of writes to a volume by the sessions of these queues, which have it in common from
/// here on.
pub(crate) fn ledger(queues: &[Queue], uid: &[u8; 16]) -> Ledger {
    let mut records: Vec<Arc<Unflushed>> = Vec::new();
    for q in queues {
        let new = records.first().cloned().unwrap_or_default();
        let have = match has(Bug::LostCacheByHandle) {
            true => Arc::default(),
            false => q.local.shared.unflushed(*uid, new),
        };
        if !records.iter().any(|r| Arc::ptr_eq(r, &have)) {
            records.push(have);
        }
    }
    Ledger::new(records)
}

/// An end that trying again does not change.
pub(crate) fn plain(o: Outcome) -> Error {
    match o {
        Outcome::Failed(Status::Miscompare, at) => Error::Miscompare(at),
        Outcome::Failed(status, _) => Error::Status(status),
        Outcome::Lost(e) => e,
        Outcome::Damaged { piece, .. } => Error::Damaged {
            hop: Hop::WireToInitiator,
            at: u64::from(piece) * weir_proto_brp::sums::PIECE,
        },
        Outcome::MemoryChanged(piece) => Error::Damaged {
            hop: Hop::InitiatorMemory,
            at: u64::from(piece) * weir_proto_brp::sums::PIECE,
        },
        Outcome::Done(_) => Error::Protocol("an end that is none".into()),
    }
}
