//! The disk.

use crate::error::{Error, io_error};
use crate::planted::{Bug, has};
use std::any::Any;
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{IoError, IoResult, MILLIS, Nanos, SECONDS};
use weir_disk::{Disk, DiskOp, report};
use weir_fabric::Provider;
use weir_initiator_brp::{Family, Keep, PortId, Secret, Session, SessionConfig};
use weir_reactor::{Token, complete, spawn_task, timeout, try_current_id};

/// How long commands wait for a lost connection before they fail. A restart of the other node's daemon takes less.
pub const PATIENCE: Nanos = 3 * SECONDS;
/// A side that hears nothing for so long gives the connection up.
const KEEP_ALIVE: Nanos = 2 * SECONDS;
/// How long a login, and the look for the volume, may take.
const LOGIN: Nanos = 5 * SECONDS;

/// Where a volume is, and as whom it is reached.
#[derive(Debug, Clone)]
pub struct Place {
    /// `ip:port` of a target port.
    pub at: String,
    /// The volume's name there.
    pub volume: String,
    /// The initiator port of this node.
    pub initiator: PortId,
    /// This life of this node: its sessions leave each other alone, those of former lives end.
    pub family: Family,
    /// Commands in flight; memory is kept for each.
    pub depth: u16,
    /// Names the session, as [`SessionConfig::session`].
    pub session: u64,
    /// What this node proves to know, where it is asked for that.
    pub secret: Option<Secret>,
}

/// What is there until the last command has ended.
struct Reached {
    volume: weir_initiator_brp::Disk,
    session: Ends,
    /// The session's doubts at the beginning.
    doubts: u64,
    /// Whether they count.
    strict: Cell<bool>,
    /// Goes with the rest.
    kept: RefCell<Option<Box<dyn Any>>>,
}

impl Reached {
    fn is_doubtful(&self) -> bool {
        let doubted = self.strict.get() && self.doubts != self.session.0.doubts();
        doubted && !has(Bug::HealedUnlooked)
    }

    /// One operation. What may have met another volume, or an older one, has failed.
    async fn run(&self, op: DiskOp) -> IoResult {
        if self.is_doubtful() {
            return Err(IoError::Offline);
        }
        let done = run(&self.volume, op).await;
        if self.is_doubtful() { Err(IoError::Offline) } else { done }
    }
}

/// A volume of another node, on the reactor that opened it. The session ends with it, and with its last command.
pub struct Remote {
    reached: RefCell<Rc<Reached>>,
    name: String,
    uid: [u8; 16],
    /// As of the login: what a volume gains is a disk's when it is opened anew.
    len: u64,
    block: u32,
    volatile: bool,
    thin: bool,
}

impl Remote {
    /// Logs in, and opens the volume, which messages are to call `name`.
    ///
    /// # Errors
    /// Why it is not reached; after five seconds at most.
    pub async fn open(
        provider: Rc<dyn Provider>,
        place: &Place,
        name: &str,
    ) -> Result<Remote, Error> {
        let config = SessionConfig {
            channels: 1,
            keep: Keep::Siblings(place.family.clone()),
            keep_alive: KEEP_ALIVE,
            reconnect_max: 500 * MILLIS,
            fast_io_fail: PATIENCE,
            depth: place.depth,
            session: place.session,
            secret: place.secret.clone(),
            ..SessionConfig::new(&place.at, place.initiator)
        };
        let session = Session::new(config);
        session.join(provider);
        // Ends the session also where this is given up.
        let ends = Ends(session.clone());
        let opened = timeout(LOGIN, async {
            session.login().await?;
            let doubts = session.doubts();
            let all = session.queue().list().await?;
            let found = all.iter().find(|v| v.name == place.volume).map(|v| v.uid);
            match found {
                Some(uid) => session.queue().open_uid(&uid).await.map(|v| Ok((v, doubts))),
                None => Ok(Err(all.into_iter().map(|v| v.name).collect())),
            }
        });
        let (volume, doubts) = match opened.await {
            Err(_) => return Err(Error::Silent(place.at.clone())),
            Ok(Err(e)) => return Err(Error::of(&place.at, &e)),
            Ok(Ok(Err(have))) => {
                let (at, volume) = (place.at.clone(), place.volume.clone());
                return Err(Error::NoVolume { at, volume, have });
            }
            Ok(Ok(Ok(found))) => found,
        };
        let i = volume.info();
        let (strict, kept) = (Cell::new(false), RefCell::default());
        let reached = Reached { volume, session: ends, doubts, strict, kept };
        Ok(Remote {
            reached: RefCell::new(Rc::new(reached)),
            name: name.to_owned(),
            uid: i.uid,
            len: i.len,
            block: i.block_size,
            volatile: i.volatile_cache,
            thin: i.thin,
        })
    }

    /// Goes on by the connection of another disk on the same volume.
    pub fn renew(&self, by: &Remote) {
        let new = by.reached.borrow().clone();
        *self.reached.borrow_mut() = new;
    }

    /// Keeps something as long as it is there, or a command of it.
    pub fn keep(&self, kept: Box<dyn Any>) {
        *self.reached.borrow().kept.borrow_mut() = Some(kept);
    }

    /// What identifies the volume, by whatever path or name it is reached.
    pub fn uid(&self) -> [u8; 16] {
        self.uid
    }

    /// Whether the volume is to be opened anew when it may not be what it was, which a pool can do without for a while. Else it goes
    /// on as if nothing had been.
    pub fn set_strict(&self, yes: bool) {
        let reached = self.reached.borrow();
        reached.strict.set(yes);
        reached.session.0.set_resends(!yes || has(Bug::HealedUnlooked));
    }

    /// Whether it may not be what it was, and that counts: it was away, or another machine answers. Nothing is done on it any more.
    pub fn is_doubtful(&self) -> bool {
        self.reached.borrow().is_doubtful()
    }

    /// Whether its connection is up.
    pub fn is_up(&self) -> bool {
        self.reached.borrow().volume.queue().is_up()
    }

    /// Whether somebody else has logged in there as this node: it has nothing to say any more.
    pub fn is_replaced(&self) -> bool {
        self.reached.borrow().volume.queue().is_replaced()
    }

    /// Whether the other node refuses writes to it.
    pub fn is_read_only(&self) -> bool {
        self.reached.borrow().volume.info().read_only
    }
}

/// Ends a session that nobody has.
struct Ends(Session);

impl Drop for Ends {
    fn drop(&mut self) {
        if try_current_id().is_some() {
            let session = self.0.clone();
            spawn_task(async move { session.close().await });
        }
    }
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote").field("name", &self.name).finish_non_exhaustive()
    }
}

async fn run(volume: &weir_initiator_brp::Disk, op: DiskOp) -> IoResult {
    let done = match op {
        DiskOp::Read { offset, buf } => volume.read(offset, buf).await,
        DiskOp::Write { offset, buf, fua } => volume.write(offset, buf, fua).await,
        DiskOp::Flush if has(Bug::FlushIsNothing) => Ok(()),
        DiskOp::Flush => volume.flush().await,
        DiskOp::Discard { offset, len } => volume.discard(offset, len).await,
        DiskOp::WriteZeroes { offset, len, unmap } => volume.write_zeroes(offset, len, unmap).await,
    };
    if has(Bug::LossIsNone) && done == Err(weir_initiator_brp::Error::LostCache) {
        return Ok(());
    }
    done.map_err(|e| {
        let failed = io_error(&e);
        tracing::debug!(volume = volume.info().name, "{e}");
        failed
    })
}

impl Disk for Remote {
    fn len(&self) -> u64 {
        self.len
    }

    fn block_size(&self) -> u32 {
        self.block
    }

    fn volatile_cache(&self) -> bool {
        self.volatile
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn identity(&self) -> Cow<'_, str> {
        let hex: String = self.uid.iter().map(|b| format!("{b:02x}")).collect();
        format!("volume {hex}").into()
    }

    fn submit(&self, op: DiskOp, token: Token) {
        let reached = self.reached.borrow().clone();
        spawn_task(async move {
            let done = reached.run(op).await;
            complete(token, report(done));
        });
    }

    fn is_thin(&self) -> bool {
        self.thin
    }
}
