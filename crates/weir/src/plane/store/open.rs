//! Opening a protected pool on its home reactor: devices, labels, recovery.

use super::OpenPool;
use crate::plane::devices::Owner;
use crate::plane::local::{Local, look};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use weir_base::{Nanos, SECONDS};
use weir_control::dataplane::Without;
use weir_control::model::{Device, DeviceFound, DeviceKind, MapMemory, Pool, Protection};
use weir_control::{Code, Error, Result};
use weir_disk::Disk;
use weir_reactor::{spawn, timeout};
use weir_store::{LogEnd, Options, PoolSpec, StoreError, Told};
use weir_uring::Held;
use weir_uring::device::same_name;

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
struct Found {
    path: String,
    disk: Rc<dyn Disk>,
    /// What the operating system tells it from others by.
    name: Option<String>,
}

/// Devices as they are named, each held or not, and why not.
pub(super) type Devices = Vec<(String, Result<Arc<Held>>)>;

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
    }
}

pub(super) fn random() -> Result<u64> {
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

/// Files looked at in a directory, at most.
const MOST_FILES: usize = 256;

/// Where devices may be that are not where they were: all block devices, and what lies beside files that are.
async fn candidates(pool: &Pool) -> Vec<String> {
    let mut found = Vec::new();
    let partitions = std::fs::read_to_string("/proc/partitions").unwrap_or_default();
    for line in partitions.lines().skip(2) {
        found.extend(line.split_whitespace().nth(3).map(|name| format!("/dev/{name}")));
    }
    let files = pool.devices.iter().filter(|d| d.kind == DeviceKind::File);
    let dirs: BTreeSet<_> = files.filter_map(|d| Path::new(d.path.as_deref()?).parent()).collect();
    for dir in dirs {
        let at = dir.to_owned();
        let list = move || -> Option<Vec<String>> {
            let entries = std::fs::read_dir(at).ok()?.flatten();
            let files = entries.filter(|e| e.file_type().is_ok_and(|t| t.is_file()));
            Some(files.take(MOST_FILES).map(|e| e.path().display().to_string()).collect())
        };
        // One that does not answer hides nothing of the others.
        found.extend(look(&dir.join("all"), list).await.flatten().unwrap_or_default());
    }
    found.retain(|p| pool.devices.iter().all(|d| d.path.as_ref() != Some(p)));
    found
}

/// Whether a device of the pool is not there, as the newest of those says that are. That as many are there as the configuration
/// names says nothing: one out of service may have got the name of another.
async fn lacks_one(pool: &Pool, here: &[Found]) -> bool {
    let mut newest: Option<Told> = None;
    let mut devices = BTreeSet::new();
    for f in here {
        devices.extend(weir_store::label_of(&f.disk).await.ok().map(|l| l.device));
        let told = weir_store::told_by(&f.disk).await.ok();
        newest = newest.into_iter().chain(told).max_by_key(|t| t.seq);
    }
    here.len() < pool.devices.len()
        || newest.is_some_and(|t| t.members.iter().any(|m| !devices.contains(m)))
}

/// What is known of the devices that are there.
struct Known {
    devices: BTreeSet<u64>,
    /// The newest superblock's number; none while no device is there.
    seq: Option<u64>,
    /// The superblock that all of them had, and the page of the log before which all is on all halves, as the log says.
    had: u64,
    stable: u64,
    /// There is more in the log than the superblock covers.
    live: bool,
    /// What the devices of the configuration were told from others by.
    names: BTreeSet<String>,
    /// Of some of them the system knows nothing of the kind, or nobody has looked yet.
    nameless: bool,
}

impl Known {
    fn of(pool: &Pool) -> Known {
        Known {
            devices: BTreeSet::new(),
            seq: None,
            had: 0,
            stable: 0,
            live: false,
            names: pool.devices.iter().filter_map(|d| d.identity.clone()).collect(),
            nameless: pool.devices.iter().any(|d| d.identity.is_none()),
        }
    }

    async fn add(&mut self, disk: &Rc<dyn Disk>) {
        self.devices.extend(weir_store::label_of(disk).await.ok().map(|l| l.device));
        let Ok(end) = weir_store::log_end(disk).await else { return };
        self.seq = self.seq.max(Some(end.seq));
        (self.had, self.stable) = (self.had.max(end.had), self.stable.max(end.stable));
        self.live |= end.live;
    }

    /// Whether a device that [agrees](Self::agrees) is as new as the others for sure. One without the log tells only if all was
    /// closed in order.
    fn proves(&self, end: &LogEnd) -> bool {
        self.seq.is_some_and(|seq| end.seq >= seq) && (end.next.is_some() || !self.live)
    }

    /// Whether a device has more than those that are here, all of which had the same when the pool was closed in order.
    fn is_behind(&self, end: &LogEnd) -> bool {
        self.seq.is_some_and(|seq| end.seq > seq || end.seq == seq && end.live && !self.live)
    }

    /// Whether a device has what the others say that it has. One superblock, the last, may have reached some of them only: but
    /// the pool may have gone on for long after that, and its log tells.
    fn agrees(&self, end: &LogEnd) -> bool {
        self.seq.is_none_or(|seq| end.seq + 1 >= seq)
            && end.seq >= self.had
            && end.next.is_none_or(|next| next >= self.stable)
    }
}

/// What a path that the configuration does not name leads to.
enum Elsewhere {
    /// A device of the pool that has got another name.
    Renamed(Found),
    /// It carries the pool's label, and may be a copy of long ago.
    Copy,
    /// It did not answer, or cannot be read.
    Silent,
    /// Somebody else has it, who may write to it: why it cannot be had.
    Used(String),
    /// It has what nobody else has: the pool went on with it.
    Newer,
    /// Something else.
    Other,
}

/// What was seen at a path.
enum Seen {
    /// It did not answer.
    Silent,
    /// It carries the pool's label, as this device; and the end of its log, if that could be read.
    Ours(u64, Option<LogEnd>),
}

/// How long somebody else's disk may keep a pool waiting: to be opened, and to give its label.
const GLANCE: Nanos = 5 * SECONDS;
/// Paths that are looked at side by side.
const AT_ONCE: usize = 16;

/// What is at a path, if that matters to the pool.
async fn see(local: Rc<Local>, path: String, pool: u128) -> Option<Seen> {
    let look = async {
        let seen = match local.glance(Path::new(&path)).await {
            Some(seen) => seen.ok()?,
            None => return Some(Seen::Silent),
        };
        match weir_store::label_of(&seen).await {
            Ok(label) if label.pool != pool => None,
            Ok(label) => Some(Seen::Ours(label.device, weir_store::log_end(&seen).await.ok())),
            Err(StoreError::Io(_) | StoreError::Unread(_)) => Some(Seen::Silent),
            // Most are nobody's of the pool.
            Err(_) => None,
        }
    };
    timeout(GLANCE, look).await.unwrap_or(Some(Seen::Silent))
}

/// What is at these paths. One that does not answer keeps only itself waiting.
async fn see_all(local: &Rc<Local>, paths: Vec<String>, pool: u128) -> Vec<(String, Seen)> {
    let mut all = Vec::new();
    for some in paths.chunks(AT_ONCE) {
        let look = |path: &String| (path.clone(), spawn(see(local.clone(), path.clone(), pool)));
        let looks: Vec<_> = some.iter().map(look).collect();
        for (path, look) in looks {
            all.extend(look.await.flatten().map(|seen| (path, seen)));
        }
    }
    all
}

impl Elsewhere {
    /// Why it is not used.
    fn why_not(self) -> Option<String> {
        Some(match self {
            Elsewhere::Renamed(_) | Elsewhere::Other => return None,
            Elsewhere::Copy => "it carries the pool's label, and may be an old copy: `weir pool release` and `weir pool import` take it all the same".into(),
            Elsewhere::Silent => "it does not answer, or cannot be read, and may be a device that is missing: `weir pool attach` brings it back when it does".into(),
            Elsewhere::Used(why) => format!("it is a device that is missing, or a copy, and in use ({why}): end its use there"),
            Elsewhere::Newer => "it has what the others have not, as the pool was used without them: `weir pool release` and `weir pool import` take it".into(),
        })
    }
}

/// Opens what was seen at a path if it is a device of the pool that is not there yet, and no old copy of it: the very disk or
/// file that the pool had. Where the system does not tell disks from each other, one passes that is as new as the others for
/// sure.
async fn elsewhere(
    local: &Local,
    owner: &Owner,
    path: &str,
    seen: Seen,
    known: &Known,
) -> Elsewhere {
    let (device, end) = match seen {
        Seen::Silent => return Elsewhere::Silent,
        Seen::Ours(device, end) => (device, end),
    };
    if known.devices.contains(&device) {
        return Elsewhere::Other;
    }
    let Some(end) = end else { return Elsewhere::Silent };
    if !known.agrees(&end) {
        return Elsewhere::Copy;
    }
    // Whether it can be used says nothing of what it has.
    let if_unused = match known.is_behind(&end) {
        true => Elsewhere::Newer,
        false => Elsewhere::Copy,
    };
    let (holds, by, at) = (local.holds.clone(), owner.clone(), path.to_owned());
    let held = match look(Path::new(path), move || holds.hold_now(&by, &at)).await {
        None => return Elsewhere::Silent,
        Some(Err(e)) if e.code == Code::DeviceInUse => return Elsewhere::Used(e.reason),
        Some(Err(_)) => return if_unused,
        Some(Ok(held)) => held.keep(),
    };
    let name = held.lasting_name().map(str::to_owned);
    let ours = name.as_ref().is_some_and(|n| known.names.iter().any(|k| same_name(k, n)));
    let as_new = known.nameless && known.proves(&end);
    match local.disk(Path::new(path), &held) {
        Ok(disk) if ours || as_new => Elsewhere::Renamed(Found { path: path.into(), disk, name }),
        _ => {
            local.holds.release_path(owner, Path::new(path));
            if_unused
        }
    }
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
    let as_known =
        |d: &Device| DeviceFound { size: d.size, labelled: false, identity: d.identity.clone() };
    let mut sizes: Vec<DeviceFound> = pool.devices.iter().map(as_known).collect();
    let (mut found, mut unused) = (Vec::new(), Vec::new());
    let not_held = |(path, held): &(String, Result<_>)| held.is_err().then(|| path.clone());
    let unheld: Vec<String> = devices.iter().filter_map(not_held).collect();
    for (index, (path, held)) in devices.into_iter().enumerate() {
        let disk = held.and_then(|h| {
            let disk = local.disk(Path::new(&path), &h);
            let disk =
                disk.map_err(|e| Error::new(Code::IoError, "it cannot be used").because(e))?;
            Ok(Found { path: path.clone(), disk, name: h.lasting_name().map(str::to_owned) })
        });
        match disk {
            Ok(f) => {
                sizes[index].size = f.disk.len();
                found.push(f);
            }
            Err(e) => unused.push((path, if e.reason.is_empty() { e.message } else { e.reason })),
        }
    }
    if !p.formatted {
        if let Some((path, why)) = unused.first() {
            return Err(Error::new(Code::IoError, format!("pool {} cannot be made", pool.name))
                .because(format!("{path}: {why}"))
                .hint("check that the path exists, is yours to write, and is not in use"));
        }
        if !is_used(p, &found).await {
            format(pool, p, &found).await?;
        }
    }
    let mut ours = Vec::new();
    // One that is here may have what the others have not. And whether one has, or is being changed by somebody else.
    let (mut silent, mut ahead) = (false, false);
    for f in found {
        match weir_store::label_of(&f.disk).await {
            Ok(l) if l.pool == p.id.0 => ours.push(f),
            Ok(l) => {
                // Whose it is may be looking for it.
                local.holds.release_path(&owner, Path::new(&f.path));
                unused.push((f.path, format!("it belongs to pool {:032x}", l.pool)));
            }
            Err(e) => {
                silent |= matches!(e, StoreError::Io(_) | StoreError::Unread(_));
                unused.push((f.path, e.to_string()));
            }
        }
    }
    if p.formatted && lacks_one(pool, &ours).await {
        let mut known = Known::of(pool);
        for f in &ours {
            known.add(&f.disk).await;
        }
        let mut paths = candidates(pool).await;
        // What cannot be held may still be read.
        paths.extend(unheld);
        let seen = see_all(local, paths, p.id.0).await;
        // Each with the device that it says to be; it may be found by a later path.
        let mut doubts = Vec::new();
        for (path, seen) in seen {
            let device = match &seen {
                Seen::Ours(device, _) => Some(*device),
                Seen::Silent => None,
            };
            match elsewhere(local, &owner, &path, seen, &known).await {
                Elsewhere::Renamed(f) => {
                    known.add(&f.disk).await;
                    // It could not be had before, and can by now.
                    unused.retain(|(path, _)| *path != f.path);
                    ours.push(f);
                }
                Elsewhere::Other => {}
                doubt => doubts.push((path, device, doubt)),
            }
        }
        for (path, device, doubt) in doubts {
            if device.is_some_and(|d| known.devices.contains(&d)) {
                continue;
            }
            silent |= matches!(doubt, Elsewhere::Silent);
            ahead |= matches!(doubt, Elsewhere::Used(_) | Elsewhere::Newer);
            // Of one of its own, why it cannot be had says more.
            let is_told = unused.iter().any(|(p, _)| *p == path);
            if !(is_told && matches!(doubt, Elsewhere::Copy)) {
                unused.extend(doubt.why_not().map(|why| (path, why)));
            }
        }
    }
    for f in &ours {
        // Where it is now; the configuration follows.
        if let Some(n) = pool.devices.iter().position(|d| d.path.as_ref() == Some(&f.path)) {
            sizes[n].identity.clone_from(&f.name);
        }
    }
    let bytes = ours.iter().map(|f| f.disk.len()).sum::<u64>() / u64::from(p.raid.copies());
    let options = Options {
        cache: map_memory(p.memory, bytes),
        force: lacking == Lacking::Forced,
        last: match lacking {
            Lacking::NothingNewer(w) if w.last.pool == p.id && (w.silent || !silent) && !ahead => {
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
    let used: BTreeSet<String> = ours.into_iter().map(|f| f.path).collect();
    for (path, _) in &unused {
        // It may be looked at, and given to others.
        local.holds.release_path(&owner, Path::new(path));
    }
    let holds = (local.holds.clone(), owner);
    Ok((OpenPool::new(opened, unused, holds, used, local.pool.clone()), sizes))
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
