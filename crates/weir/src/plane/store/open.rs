//! Opening a protected pool on its home reactor: devices, labels, recovery.

use super::elsewhere::{Search, Unheld};
use super::used::Used;
use super::{Node, OpenPool};
use crate::plane::devices::Owner;
use crate::plane::local::Local;
use crate::plane::remote::For;
use std::fs::File;
use std::path::Path;
use std::rc::{Rc, Weak as RcWeak};
use std::sync::{Arc, Weak};
use weir_control::dataplane::Without;
use weir_control::model::{Device, DeviceFound, MapMemory, Pool, Protection, RemoteAddress};
use weir_control::{Code, Error, Result};
use weir_disk::Disk;
use weir_reactor::spawn;
use weir_remote::Remote;
use weir_store::{Options, PoolSpec, StoreError};
use weir_uring::{Held, Identity};

/// Part of a pool's space, as volumes can use it, that is kept of its maps in memory: half a GiB for a TiB.
const LEAN_SHARE: u64 = 2048;
/// The same for all of them: a leaf of 4 KiB for 336 blocks, and what is above the leaves (docs/format.md).
const FULL_SHARE: u64 = 330;
/// Least memory for maps in bytes.
const CACHE_MIN: u64 = 32 << 20;

/// Memory for the maps of a pool in which so many bytes can be used.
pub(super) fn map_memory(tier: MapMemory, bytes: u64) -> usize {
    let share = match tier {
        MapMemory::Lean => LEAN_SHARE,
        MapMemory::Full => FULL_SHARE,
    };
    (bytes / share).max(CACHE_MIN) as usize
}

/// A device that could be opened.
pub(super) struct Found {
    pub(super) path: String,
    pub(super) disk: Rc<dyn Disk>,
    /// What the operating system tells it from others by.
    pub(super) name: Option<String>,
    /// None of a volume of another node.
    pub(super) identity: Option<Identity>,
    /// What is held of it. Whoever does without it lets go of it by its path.
    pub(super) held: Weak<Held>,
    /// The disk, if it is a volume of another node.
    pub(super) remote: RcWeak<Remote>,
}

/// What a device's name leads to.
pub(super) enum Source {
    /// Something on this machine, which is held.
    Held(Arc<Held>),
    /// A volume of another node.
    Remote(RemoteAddress),
}

/// Devices as they are named, each held or not, and why not.
pub(super) type Devices = Vec<(String, Result<Source>)>;

impl Node {
    /// The devices of a pool, of which those of this machine are held.
    pub(super) async fn hold_all(&self, pool: &Pool) -> Devices {
        let mut here = pool.clone();
        here.devices.retain(|d| !d.kind.is_remote());
        let held = self.holds.hold_protected(&here).await.into_iter();
        let mut all: Devices = held.map(|(path, h)| (path, h.map(Source::Held))).collect();
        all.extend(pool.devices.iter().filter(|d| d.kind.is_remote()).map(remote));
        all
    }
}

/// A volume of another node by its name.
pub(super) fn remote(d: &Device) -> (String, Result<Source>) {
    let name = d.path.clone().unwrap_or_default();
    let address = name.parse().map(Source::Remote);
    (name, address)
}

/// Opens what a pool has, side by side.
pub(super) async fn reach_all(
    local: &Rc<Local>,
    pool: &str,
    devices: Devices,
) -> Vec<(String, Result<Found>)> {
    let mut all = Vec::new();
    for (path, source) in devices {
        let (local, pool, at) = (local.clone(), pool.to_owned(), path.clone());
        let open = async move {
            match source? {
                Source::Held(h) => {
                    let disk = local.disk(Path::new(&at), &h);
                    let disk = disk
                        .map_err(|e| Error::new(Code::IoError, "it cannot be used").because(e))?;
                    let name = h.lasting_name().map(str::to_owned);
                    let (identity, held) = (Some(h.identity()), Arc::downgrade(&h));
                    Ok(Found { path: at, disk, name, identity, held, remote: RcWeak::new() })
                }
                Source::Remote(address) => {
                    let disk = local.reach(For::new(&pool), &address).await?;
                    let (name, remote) = (Some(disk.identity().into_owned()), Rc::downgrade(&disk));
                    Ok(Found { path: at, disk, name, identity: None, held: Weak::new(), remote })
                }
            }
        };
        all.push((path, spawn(open)));
    }
    let mut found = Vec::new();
    for (path, open) in all {
        let broke = Err(Error::new(Code::Internal, "the opening of it broke off"));
        found.push((path, open.await.unwrap_or(broke)));
    }
    found
}

/// Whether a volume of another node that is not reached is nowhere, as a disk that was taken out: that node is down, or shows it no
/// longer.
fn is_gone(e: &Error) -> bool {
    matches!(e.code, Code::TargetUnreachable | Code::VolumeNotFound)
}

/// What the control plane is told of a failure of the store.
pub(super) fn failed(what: String, e: &StoreError) -> Error {
    match e {
        StoreError::Io(weir_base::IoError::NoSpace) => Error::new(Code::PoolFull, what)
            .because(e)
            .hint("delete snapshots or volumes, or discard what hosts no longer need"),
        StoreError::Io(_) => Error::new(Code::IoError, what)
            .because(e)
            .hint("`weir pool show` tells how the devices stand"),
        StoreError::Pool(_) | StoreError::Unread(_) => Error::new(Code::PoolDamaged, what)
            .because(e)
            .hint("`weir check` looks at the devices without changing them"),
        StoreError::Unfinished(e) => failed(what, e),
        StoreError::Request(_) => Error::new(Code::InvalidRequest, what)
            .because(e)
            .hint("`weir snapshot list` and `weir pool show` tell what is there"),
        StoreError::State(_) => Error::new(Code::DeviceState, what)
            .because(e)
            .hint("`weir pool show` tells how the pool and its devices stand"),
    }
}

pub(in crate::plane) fn random() -> Result<u64> {
    use std::io::Read;
    let mut b = [0; 8];
    File::open("/dev/urandom")
        .and_then(|mut f| f.read_exact(&mut b))
        .map_err(|e| Error::new(Code::IoError, "no random bits").because(e))?;
    Ok(u64::from_le_bytes(b))
}

/// Whether a pool was made after all, and used: the configuration that says otherwise may have been put back.
async fn is_used(p: &Protection, found: &[Found]) -> bool {
    for f in found {
        let own = weir_store::label_of(&f.disk).await.is_ok_and(|l| l.pool == p.id.0);
        if own && weir_store::told_by(&f.disk).await.is_ok_and(|t| t.seq > weir_store::FIRST) {
            return true;
        }
    }
    false
}

async fn format(pool: &Pool, p: &Protection, found: &[Found]) -> Result<()> {
    let bytes = found.iter().map(|f| f.disk.len()).sum();
    let mut spec = PoolSpec::fitting(p.id.0, p.raid.copies(), bytes);
    spec.overwrite = p.overwrite;
    let disks: Vec<_> = found.iter().map(|f| f.disk.clone()).collect();
    weir_store::create(&disks, &spec).await.map_err(|e| {
        let code =
            if matches!(e, StoreError::Request(_)) { Code::InvalidDevice } else { Code::IoError };
        Error::new(code, format!("pool {} cannot be made", pool.name)).because(e).hint(
            "give larger devices; `weir pool import` takes over the pool that devices belong to, --overwrite makes a new one of them, and its data is lost",
        )
    })
}

/// Whether checksums cover the data of a pool: always, unless somebody measures what they cost.
fn summed(local: &Local, pool: &Pool, p: &Protection) -> Result<bool> {
    if !local.unsummed.contains(&pool.name) {
        return Ok(true);
    }
    if p.formatted {
        let text = format!("pool {} cannot be opened without checksums", pool.name);
        return Err(Error::new(Code::InvalidRequest, text)
            .because("it may have data with checksums, which would be of no use any more")
            .hint("leave --measure-without-checksums out"));
    }
    tracing::warn!(pool = %pool.name, "data has no checksums and cannot be read by any other daemon: this is to measure");
    Ok(false)
}

/// What is done if devices are missing that may have what the others have not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::plane) enum Lacking {
    /// The pool is not opened.
    Refused,
    /// Nor is it unless those that are there have this state, the last one of all.
    NothingNewer(Without),
    /// What they may have is lost.
    Forced,
}

impl Lacking {
    pub(in crate::plane) fn of(without: Option<Without>) -> Lacking {
        without.map_or(Lacking::Refused, Lacking::NothingNewer)
    }
}

/// Opens the pool, making it when it has not been made yet; gives it and the sizes of its devices.
pub(super) async fn open(
    local: &Rc<Local>,
    pool: &Pool,
    devices: Devices,
    lacking: Lacking,
) -> Result<(OpenPool, Vec<DeviceFound>)> {
    let owner = Owner::Pool(pool.name.clone());
    let Some(p) = &pool.protection else {
        return Err(Error::new(Code::Internal, format!("pool {} is a plain one", pool.name)));
    };
    let sum_data = summed(local, pool, p)?;
    let as_known = |d: &Device| DeviceFound {
        size: d.size,
        labelled: false,
        identity: d.identity.clone(),
        gained: 0,
    };
    let mut sizes: Vec<DeviceFound> = pool.devices.iter().map(as_known).collect();
    let (mut found, mut unused) = (Vec::new(), Vec::new());
    let devices = reach_all(local, &pool.name, devices).await;
    let not_held = |(path, held): &(String, Result<_>)| {
        let e = held.as_ref().err().filter(|_| !RemoteAddress::is_meant(path))?;
        Some(Unheld { path: path.clone(), in_use: e.code == Code::DeviceInUse })
    };
    let unheld: Vec<Unheld> = devices.iter().filter_map(not_held).collect();
    let not_gone = |(path, held): &(String, Result<_>)| {
        RemoteAddress::is_meant(path) && held.as_ref().is_err_and(|e| !is_gone(e))
    };
    let lacking = match lacking {
        Lacking::NothingNewer(w) if !w.silent && devices.iter().any(not_gone) => Lacking::Refused,
        other => other,
    };
    let first = devices.iter().find_map(|(_, held)| held.as_ref().err().cloned());
    for (path, disk) in devices {
        match disk {
            Ok(f) => found.push(f),
            Err(e) => unused.push((path, if e.reason.is_empty() { e.message } else { e.reason })),
        }
    }
    if !p.formatted {
        if let Some((path, why)) = unused.first() {
            let hint = "check that the path exists, is yours to write, and is not in use";
            let (code, hint) = match first {
                Some(e) if !e.hint.is_empty() => (e.code, e.hint),
                _ => (Code::IoError, hint.to_owned()),
            };
            return Err(Error::new(code, format!("pool {} cannot be made", pool.name))
                .because(format!("{path}: {why}"))
                .hint(hint));
        }
        if !is_used(p, &found).await {
            for f in found.iter().filter(|f| RemoteAddress::is_meant(&f.path)) {
                local.take_new(&f.disk, (&pool.name, Some(p.id))).await?;
            }
            format(pool, p, &found).await?;
        }
    }
    let mut ours = Vec::new();
    // One that is here may have what the others have not.
    let mut unread = false;
    for f in found {
        match weir_store::label_of(&f.disk).await {
            Ok(l) if l.pool == p.id.0 => ours.push((f, l.device)),
            Ok(l) => {
                // Whose it is may be looking for it.
                local.holds.release_path(&owner, Path::new(&f.path));
                unused.push((f.path, format!("it belongs to pool {:032x}", l.pool)));
            }
            Err(e) => {
                unread |= matches!(e, StoreError::Io(_) | StoreError::Unread(_));
                unused.push((f.path, e.to_string()));
            }
        }
    }
    let mut search = Search::new(local, &owner, (pool, p.id.0), ours, unused).await;
    search.leave_copies_out();
    if p.formatted && search.is_due().await {
        search.look(unheld).await;
    }
    let (ours, mut unused, doubt) = search.end();
    let silent = doubt.silent || unread;
    if let Some(newer) = doubt.newer.filter(|_| lacking != Lacking::Forced) {
        let text = format!("pool {} cannot be opened", pool.name);
        return Err(Error::new(Code::PoolDamaged, text).because(newer).hint(format!(
            "put each device back under its name, and old copies away; or `weir pool force {}` goes on with what is there",
            pool.name
        )));
    }
    for f in &ours {
        // Where it is now; the configuration follows.
        if let Some(n) = pool.devices.iter().position(|d| d.path.as_ref() == Some(&f.path)) {
            sizes[n].size = f.disk.len();
            sizes[n].identity.clone_from(&f.name);
        }
    }
    let bytes = ours.iter().map(|f| f.disk.len()).sum::<u64>() / u64::from(p.raid.copies());
    let options = Options {
        cache: map_memory(p.memory, bytes),
        force: lacking == Lacking::Forced,
        last: match lacking {
            Lacking::NothingNewer(w)
                if w.last.pool == p.id && (w.silent || !silent) && !doubt.ahead =>
            {
                Some(w.last.newest)
            }
            _ => None,
        },
        without_unread: matches!(lacking, Lacking::NothingNewer(w) if w.silent),
        lineage: random()?,
        sum_data,
        ..Options::default()
    };
    let disks = ours.iter().map(|f| f.disk.clone()).collect();
    let opened = weir_store::Pool::open(disks, options).await.map_err(|e| {
        let mut reason = e.to_string();
        for (path, why) in &unused {
            reason.push_str(&format!("; {path}: {why}"));
        }
        let code = match e {
            StoreError::Unfinished(_) => Code::PoolUnfinished,
            _ => Code::PoolDamaged,
        };
        Error::new(code, format!("pool {} cannot be opened", pool.name))
            .because(reason)
            .hint(format!(
                "bring the missing devices back; if they are gone for good, `weir pool force {}` goes on without them",
                pool.name
            ))
    })?;
    if opened.status().pool != p.id.0 {
        return Err(Error::new(Code::PoolDamaged, format!("pool {} is another pool", pool.name))
            .because("its devices carry another identity than the configuration"));
    }
    let lacks = opened.status().devices.iter().filter(|d| d.name.is_none()).count();
    if lacks > 0 && matches!(lacking, Lacking::NothingNewer(_)) {
        tracing::warn!(pool = %pool.name, "opened without {lacks} of its devices: it was closed in order, and the others have all that it had then");
    }
    let remotes: Vec<_> = ours.iter().map(|f| (f.path.clone(), f.remote.upgrade())).collect();
    let mut used: Used = ours.into_iter().map(|f| (f.path, f.held)).collect();
    for (path, why) in opened.left_out() {
        tracing::warn!(pool = %pool.name, "{path}: {why}");
        used.remove(&path);
        unused.push((path, why));
    }
    for (path, _) in &unused {
        // It may be looked at, and given to others.
        local.holds.release_path(&owner, Path::new(path));
    }
    let of_others: Vec<_> =
        unused.extract_if(.., |(path, _)| RemoteAddress::is_meant(path)).collect();
    let opened = OpenPool::new(opened, unused, (local.holds.clone(), owner), used, local);
    for d in pool.devices.iter().filter(|d| d.kind.is_remote()) {
        let name = d.path.as_deref().unwrap_or_default();
        let disk = remotes.iter().find(|(path, _)| path == name);
        opened.returns.add(name, disk.and_then(|(_, disk)| disk.as_ref()));
    }
    of_others.into_iter().for_each(|(path, why)| opened.returns.say(&path, why));
    Ok((opened, sizes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_for_maps_is_what_the_tiers_promise() {
        let (mib, tib) = (1 << 20, 1u64 << 40);
        assert_eq!(map_memory(MapMemory::Lean, tib), 512 * mib);
        assert_eq!(map_memory(MapMemory::Lean, 1 << 30), 32 * mib);
        let full = map_memory(MapMemory::Full, tib);
        // 336 blocks to a leaf of 4 KiB is 3121 MiB, and a node above them for each 100.
        assert!(full > 3121 * mib * 101 / 100 && full < 3200 * mib, "{full}");
    }
}
