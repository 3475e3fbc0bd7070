//! Volumes of other nodes as devices of pools of this one: reached, looked at before they come, and each of them used once.

use super::devices::{Holds, Owner, check_found, in_use};
use super::local::{Local, on};
use super::node::Node;
use crate::machine::port_of;
use std::collections::BTreeMap;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use weir_base::{Nanos, SECONDS};
use weir_control::dataplane::Inside;
use weir_control::model::{
    DeviceSpec, HostSecret, InitiatorId, Overwrite, Pool, PoolId, RemoteAddress,
};
use weir_control::{Code, Error, Result};
use weir_disk::{Disk, DiskOp, run};
use weir_fabric_iwarp::CrcPolicy;
use weir_initiator_brp::{Family, PortId, Secret};
use weir_mem::Slice;
use weir_reactor::{LocalFuture, spawn, timeout};
use weir_remote::{Place, Reach, Remote};
use weir_store::StoreError;
use weir_uring::blocking;
use weir_uring::device::{Contents, Sample};

/// How long a name may take to be resolved.
const RESOLVE: Nanos = 5 * SECONDS;
/// How long the whole look at a new one may take.
const DEADLINE: Duration = Duration::from_secs(20);
/// How long another node may take to answer at all.
const ANSWER: Duration = Duration::from_secs(5);
/// How long volumes of a pool that is closed are waited for.
const LET_GO: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(10);
/// Commands in flight to one volume.
const DEPTH: u16 = 128;
/// Pieces of a volume that are read side by side.
const AT_ONCE: usize = 16;
/// Bytes at both ends of a new device in which nothing of its former life is left.
const ENDS: u64 = 1 << 20;

/// A volume that a pool uses, and by which name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Use {
    uid: [u8; 16],
    pool: String,
    name: String,
}

/// What the node has of volumes of others.
pub(crate) struct Remotes {
    /// As whom this node logs in.
    initiator: InitiatorId,
    secret: Option<HostSecret>,
    family: Family,
    used: Mutex<Vec<Use>>,
    /// New devices that were looked at in this life of the process, by pool and name: what may be lost of them was said.
    admitted: Mutex<BTreeMap<(String, String), String>>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a volume is reached for.
#[derive(Debug, Clone, Copy)]
pub(super) struct For<'a> {
    /// The pool.
    pub(super) pool: &'a str,
    /// The pool has it, and may by another name.
    pub(super) back: bool,
}

impl<'a> For<'a> {
    /// A look, or a new device.
    pub(super) fn new(pool: &'a str) -> For<'a> {
        For { pool, back: false }
    }
}

/// A use of a volume, as long as a disk is on it.
struct Claim(Arc<Remotes>, Use);

impl Drop for Claim {
    fn drop(&mut self) {
        let mut all = lock(&self.0.used);
        if let Some(n) = all.iter().position(|u| *u == self.1) {
            all.swap_remove(n);
        }
    }
}

impl Remotes {
    /// `life` is drawn anew for each life of the process.
    pub(crate) fn new(initiator: InitiatorId, secret: Option<HostSecret>, life: u32) -> Remotes {
        let (used, admitted) = (Mutex::default(), Mutex::default());
        Remotes { initiator, secret, family: Family::new(life), used, admitted }
    }

    /// As whom this node logs in.
    pub(super) fn initiator(&self) -> InitiatorId {
        self.initiator
    }

    /// Has a pool use a volume by this name. A pool may do so twice while a disk on it takes another's place; by another name only
    /// where it takes `back` what it has, by its label.
    fn claim(self: &Arc<Self>, new: Use, back: bool) -> Result<Claim> {
        let mut all = lock(&self.used);
        let same = |u: &Use| u.pool == new.pool && (back || u.name == new.name);
        let other = |u: &&Use| u.uid == new.uid && !same(u);
        if let Some(u) = all.iter().find(other) {
            let why = format!("pool `{}` has that volume, as `{}`", u.pool, u.name);
            return Err(in_use(Path::new(&new.name), why));
        }
        all.push(new.clone());
        Ok(Claim(self.clone(), new))
    }

    fn admit(&self, pool: &str, name: &str, identity: String) {
        lock(&self.admitted).insert((pool.to_owned(), name.to_owned()), identity);
    }

    fn is_admitted(&self, pool: &str, name: &str, identity: &str) -> bool {
        let all = lock(&self.admitted);
        all.get(&(pool.to_owned(), name.to_owned())).is_some_and(|i| i == identity)
    }

    /// Whether a pool has volumes, or has asked something of one that has not come to its end.
    fn uses(&self, pool: &str) -> bool {
        lock(&self.used).iter().any(|u| u.pool == pool)
    }

    /// Waits until a pool that was closed has none any more, as long as one may reasonably take: whoever is told that it is closed
    /// uses them at once.
    pub(super) async fn let_go(&self, pool: &str) {
        let begun = Instant::now();
        while self.uses(pool) && begun.elapsed() < LET_GO {
            tokio::time::sleep(STEP).await;
        }
    }

    /// What was looked at by this name has come, or does not.
    pub(super) fn forget(&self, pool: &str, name: &str) {
        lock(&self.admitted).remove(&(pool.to_owned(), name.to_owned()));
    }

    /// Why a volume is not reached, and what to do.
    fn explain(&self, name: &str, e: &weir_remote::Error) -> Error {
        use weir_remote::Error as E;
        let port = self.initiator;
        let (code, hint) = match e {
            E::Unreachable { .. } => (
                Code::TargetUnreachable,
                "check the address, and that the other node serves BRP there (`weir target list` there)".to_owned(),
            ),
            E::Silent(_) => (Code::IoError, "see to the other node, and the network to it".to_owned()),
            E::Refused { .. } => (
                Code::TargetUnreachable,
                format!("at the other node: `weir host create NAME --port {port}`, then `weir map create` for the volume"),
            ),
            E::NoVolume { have, .. } => {
                let have = match have.is_empty() {
                    true => "it shows none".to_owned(),
                    false => format!("it shows {}", have.join(", ")),
                };
                let hint = format!("{have}; map the volume there to a host with the initiator port {port}");
                (Code::VolumeNotFound, hint)
            }
            _ => (Code::IoError, "`weir status` at the other node says what is wrong there".to_owned()),
        };
        Error::new(code, format!("`{name}` cannot be used")).because(e).hint(hint)
    }
}

/// The first address of a host that may be a name.
async fn resolve(address: &RemoteAddress) -> Result<String> {
    let at = address.at();
    if at.parse::<std::net::SocketAddr>().is_ok() {
        return Ok(at);
    }
    let (asked, about) = (at.clone(), weir_codec::crc64(at.as_bytes()));
    let ask = move || asked.to_socket_addrs().map(|mut all| all.next());
    let why = match timeout(RESOLVE, blocking(about, ask)).await {
        Ok(Some(Ok(Some(found)))) => return Ok(found.to_string()),
        Ok(Some(Err(e))) => e.to_string(),
        Ok(_) => "it has no address".to_owned(),
        Err(_) => "the look for its address has not come to an end".to_owned(),
    };
    Err(Error::new(Code::TargetUnreachable, format!("`{address}` cannot be used"))
        .because(format!("{}: {why}", address.host))
        .hint("check the name, or write the IP address"))
}

impl Local {
    /// Reaches a volume of another node for a pool.
    pub(super) async fn reach(&self, to: For<'_>, address: &RemoteAddress) -> Result<Rc<Remote>> {
        let name = address.to_string();
        let remotes = &self.remotes;
        let place = Place {
            at: resolve(address).await?,
            volume: address.volume.clone(),
            initiator: PortId(remotes.initiator.0),
            family: remotes.family.clone(),
            depth: DEPTH,
            session: 0,
            secret: match &remotes.secret {
                None => None,
                Some(s) => Some(Secret { bytes: s.bytes().to_vec(), seed: crate::seed::draw()? }),
            },
        };
        let opened = Remote::open(self.iwarp(CrcPolicy::Off), &place, &name).await;
        let remote = opened.map_err(|e| remotes.explain(&name, &e))?;
        let uid = remote.uid();
        let refused = |why: String, hint: &str| {
            let text = format!("`{name}` cannot be a device");
            Err(Error::new(Code::InvalidDevice, text).because(why).hint(hint))
        };
        let is_own = |u: &Rc<weir_target_core::Unit>| {
            u.shared().with(|s| s.identity().naa == uid).then(|| u.shared().name().to_owned())
        };
        if let Some(own) = self.units.all().iter().find_map(is_own) {
            let why = format!("it is volume `{own}` of this node, which would wait for itself");
            return refused(why, "name a volume of another node");
        }
        if remote.is_read_only() {
            let hint = "let it be written at the other node: `weir volume set … --read-only off`";
            return refused("it may only be read".into(), hint);
        }
        let claim = remotes.claim(Use { uid, pool: to.pool.to_owned(), name }, to.back)?;
        remote.keep(Box::new(claim));
        Ok(Rc::new(remote))
    }

    /// Refuses a new device that has something in it which may not be lost. `own`: it may carry this pool's label, and be looked at
    /// no further. Gives whether it does.
    pub(super) async fn check_new(
        &self,
        disk: &Rc<dyn Disk>,
        (pool, own): (&str, Option<PoolId>),
        overwrite: &Overwrite,
    ) -> Result<bool> {
        let name = disk.name().to_owned();
        let label = match weir_store::label_of(disk).await {
            Ok(l) => Some(PoolId(l.pool)),
            // It may have one.
            Err(e @ (StoreError::Io(_) | StoreError::Unread(_))) => return Err(unread(&name, e)),
            Err(_) => None,
        };
        if label.is_some() && label == own {
            return Ok(true);
        }
        if let Some(other) = label.and_then(|id| self.holds.name_of(id)) {
            let why = format!("it carries the label of pool `{other}`");
            return Err(in_use(Path::new(&name), why));
        }
        if self.remotes.is_admitted(pool, &name, &disk.identity()) {
            return Ok(false);
        }
        check_found(&contents(disk).await?, &format!("`{name}`"), overwrite)?;
        Ok(false)
    }

    /// The same of a device that comes to a pool now, which may have been looked at before: what is left at its ends goes.
    pub(super) async fn take_new(
        &self,
        disk: &Rc<dyn Disk>,
        (pool, own): (&str, Option<PoolId>),
    ) -> Result<()> {
        let is_own = self.check_new(disk, (pool, own), &Overwrite::default()).await?;
        self.remotes.forget(pool, disk.name());
        if is_own {
            return Ok(());
        }
        clear(disk).await
    }
}

/// Overwrites both ends.
async fn clear(disk: &Rc<dyn Disk>) -> Result<()> {
    let len = disk.len() / 4096 * 4096;
    for at in [0, len.saturating_sub(ENDS)] {
        let op = DiskOp::WriteZeroes { offset: at, len: ENDS.min(len), unmap: true };
        run(&**disk, op).await.map_err(|e| unread(disk.name(), e))?;
    }
    Ok(())
}

/// How the devices of a pool are reached again.
pub(super) struct Again {
    pub(super) local: Weak<Local>,
    pub(super) owner: Owner,
}

impl Reach for Again {
    fn reach<'a>(
        &'a self,
        name: &'a str,
    ) -> LocalFuture<'a, std::result::Result<Rc<Remote>, String>> {
        Box::pin(async move {
            let told = |e: Error| if e.reason.is_empty() { e.message } else { e.reason };
            let Some(local) = self.local.upgrade() else { return Err("the node ends".into()) };
            let address: RemoteAddress = name.parse().map_err(told)?;
            let pool = self.owner.pool().unwrap_or_default();
            let to = For { pool, back: true };
            local.reach(to, &address).await.map_err(told)
        })
    }
}

fn unread(name: &str, why: impl std::fmt::Display) -> Error {
    Error::new(Code::IoError, format!("`{name}` cannot be used"))
        .because(why)
        .hint("`weir status` at the other node says what is wrong there")
}

/// What is in a volume of another node: where signatures are, at both ends and in samples between.
async fn contents(disk: &Rc<dyn Disk>) -> Result<Contents> {
    let name = disk.name().to_owned();
    let len = disk.len() / 4096 * 4096;
    let copy = Sample::of(len).map_err(|e| unread(&name, e))?;
    let places = copy.places();
    for some in places.chunks(AT_ONCE) {
        let read = |(at, len): &(u64, usize)| {
            let (disk, at, buf) = (disk.clone(), *at, Slice::heap(*len));
            spawn(async move {
                let op = DiskOp::Read { offset: at, buf: buf.clone() };
                run(&*disk, op).await.map(|()| (at, buf))
            })
        };
        let reads: Vec<_> = some.iter().map(read).collect();
        let mut all = Vec::new();
        for read in reads {
            all.push(read.await.unwrap_or(Err(weir_base::IoError::Internal)));
        }
        for done in all {
            let (at, buf) = done.map_err(|e| unread(&name, e))?;
            copy.put(at, &buf.to_vec()).map_err(|e| unread(&name, e))?;
        }
    }
    let look = blocking(weir_codec::crc64(name.as_bytes()), move || copy.contents());
    let broke = || unread(&name, "the look at it broke off");
    look.await.ok_or_else(broke)?.map_err(|e| unread(&name, e))
}

impl Node {
    /// Whether a volume of another node is reached within that time. Nothing is taken.
    pub(super) async fn ask_remote(&self, address: RemoteAddress, within: Duration) -> Result<()> {
        let Some(reactor) = self.handles().first().cloned() else { return Ok(()) };
        let name = address.to_string();
        let asked = on(&reactor, move |_: Rc<Local>| {
            Box::pin(async move {
                let at = resolve(&address).await?;
                // Whether it is let in is seen in its turn.
                let _ = blocking(weir_codec::crc64(at.as_bytes()), move || {
                    let at = at.parse().map_err(std::io::Error::other)?;
                    TcpStream::connect_timeout(&at, ANSWER)
                })
                .await;
                Ok(())
            })
        });
        let silent = || unread(&name, "the other node does not answer");
        tokio::time::timeout(within, asked).await.map_err(|_| silent())?
    }

    /// Looks at a volume of another node that is to come to a pool, or refuses it.
    pub(super) async fn admit_remote(
        &self,
        pool: &str,
        spec: &DeviceSpec,
        inside: Inside<'_>,
    ) -> Result<()> {
        let address: RemoteAddress = spec.path.as_deref().unwrap_or_default().parse()?;
        let Some(reactor) = self.handles().first().cloned() else {
            return Err(Error::new(Code::Internal, "there is no reactor"));
        };
        let (own, overwrite) = match inside {
            Inside::Anything => (None, None),
            Inside::Only(o) => (None, Some(o.clone())),
            Inside::OwnOr(o) => (self.holds.id_of(pool), Some(o.clone())),
        };
        let (pool, name) = (pool.to_owned(), address.to_string());
        let (of, back) = (pool.clone(), overwrite.is_none());
        let looked = on(&reactor, move |local: Rc<Local>| {
            Box::pin(async move {
                let disk: Rc<dyn Disk> = local.reach(For { pool: &of, back }, &address).await?;
                if let Some(overwrite) = overwrite {
                    local.remotes.forget(&of, disk.name());
                    local.check_new(&disk, (&of, own), &overwrite).await?;
                }
                Ok(disk.identity().into_owned())
            })
        });
        let late = || unread(&name, "the look at it has not come to an end");
        let identity = tokio::time::timeout(DEADLINE, looked).await.map_err(|_| late())??;
        self.remotes.admit(&pool, &name, identity);
        Ok(())
    }
}

impl Node {
    /// Takes off volumes of other nodes what makes them devices of a pool that did not come to be.
    pub(super) async fn unmake_remote(&self, pool: &Pool) {
        let Some(reactor) = self.handles().first().cloned() else { return };
        for d in pool.devices.iter().filter(|d| d.kind.is_remote()) {
            let name = d.path.clone().unwrap_or_default();
            let (of, id, at) = (pool.name.clone(), pool.identity(), name.clone());
            self.remotes.forget(&of, &name);
            let unmade = on(&reactor, move |local: Rc<Local>| {
                Box::pin(async move {
                    let disk: Rc<dyn Disk> = local.reach(For::new(&of), &at.parse()?).await?;
                    match weir_store::label_of(&disk).await {
                        Ok(l) if Some(PoolId(l.pool)) == id => clear(&disk).await,
                        _ => Ok(()),
                    }
                })
            });
            if let Err(e) = unmade.await {
                tracing::warn!("the label of pool {} stays on {name}: {e}", pool.name);
            }
        }
    }
}

/// What this node is called as an initiator: the same for as long as its data is where it is, on this machine.
pub(crate) fn initiator_of(data_dir: &Path) -> InitiatorId {
    use std::os::unix::ffi::OsStrExt;
    let dir = std::fs::canonicalize(data_dir).unwrap_or_else(|_| data_dir.to_owned());
    let (ext, guid) = port_of(*b"WN", dir.as_os_str().as_bytes().iter().copied());
    InitiatorId((u128::from(ext) << 64 | u128::from(guid)).to_be_bytes())
}

impl Holds {
    /// What the labels of a pool of the configuration call it.
    fn id_of(&self, pool: &str) -> Option<PoolId> {
        self.known_pools().into_iter().find(|k| k.name == pool).map(|k| k.id)
    }

    /// The pool of the configuration whose labels say this.
    fn name_of(&self, id: PoolId) -> Option<String> {
        self.known_pools().into_iter().find(|k| k.id == id).map(|k| k.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_used_once() {
        let all = Arc::new(Remotes::new(InitiatorId([1; 16]), None, 1));
        let of = |uid, pool: &str, name: &str| {
            all.claim(Use { uid: [uid; 16], pool: pool.into(), name: name.into() }, false)
        };
        let back = |pool: &str, name: &str| {
            all.claim(Use { uid: [1; 16], pool: pool.into(), name: name.into() }, true)
        };
        let first = of(1, "p", "brp://a:1/v").expect("free");
        let e = of(1, "q", "brp://a:1/v").err().expect("it is another pool's");
        assert!(e.code == Code::DeviceInUse && e.reason.contains("`p`"), "{e:?}");
        // Nor by another way to it: both copies would be one.
        assert!(of(1, "p", "brp://b:1/v").is_err());
        // What the pool has already may have got another address.
        assert!(back("p", "brp://b:1/v").is_ok() && back("q", "brp://b:1/v").is_err());
        let again = of(1, "p", "brp://a:1/v").expect("a disk on it takes the other's place");
        drop(first);
        assert!(of(1, "q", "brp://a:1/v").is_err());
        drop(again);
        assert!(of(1, "q", "brp://a:1/v").is_ok() && of(2, "p", "brp://a:1/w").is_ok());
    }

    #[test]
    fn what_was_looked_at_is_that_very_volume() {
        let all = Remotes::new(InitiatorId([1; 16]), None, 1);
        all.admit("p", "brp://a:1/v", "volume 1".into());
        assert!(all.is_admitted("p", "brp://a:1/v", "volume 1"));
        assert!(!all.is_admitted("p", "brp://a:1/v", "volume 2"));
        all.forget("p", "brp://a:1/v");
        assert!(!all.is_admitted("p", "brp://a:1/v", "volume 1"));
    }
}
