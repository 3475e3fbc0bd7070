//! Devices of plain pools: made once, found again by their labels.

mod known;
#[cfg(test)]
mod tests;

use super::admit::check_kind;
use super::label::{Label, most};
use super::{Holds, Owner, Taken, Wait, Waited, check_waited, closed, protected, unusable};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_control::model::{Device, DeviceFound, DeviceKind, EXTENT_ALIGN, Pool, PoolId};
use weir_control::units::format_size;
use weir_control::{Code, Error, Result};
use weir_uring::Held;
use weir_uring::device::{Made, PAGE, is_as_recorded, make_dir, make_file, read_file};

/// The label of a directory, in a file of it.
const DIR_LABEL: &str = ".weir-pool";
/// The same, before it is whole.
const NEW_LABEL: &str = ".weir-pool.new";
/// All that Weir puts into a directory before there are volumes.
pub(super) const LABELS: [&str; 2] = [DIR_LABEL, NEW_LABEL];
/// Bytes at both ends of a new device in which nothing of its former life is left.
const ENDS: u64 = 1 << 20;

fn foreign(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::new(Code::PoolDamaged, format!("`{}` is not what it was", path.display()))
        .because(why)
        .hint("bring back what the pool was made of, such as a file system that is not mounted; it is tried again every few seconds")
}

/// The label of a directory, if it has one.
fn directory_label(dir: &Path) -> Result<Option<Label>> {
    match read_file(&dir.join(DIR_LABEL), PAGE) {
        Ok(b) => Label::decode(&b).map_err(|e| foreign(dir, e)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) if e.kind() == ErrorKind::InvalidData => {
            Err(foreign(dir, format!("its `{DIR_LABEL}` is no label")))
        }
        Err(e) => Err(unusable(dir, e)),
    }
}

/// The label of a directory, if it can be read.
pub(super) fn labelled(dir: &Path) -> Option<Label> {
    directory_label(dir).ok().flatten()
}

/// Refuses a directory that is another pool's.
pub(super) fn check_directory(dir: &Path) -> Result<()> {
    match directory_label(dir)? {
        None => Ok(()),
        Some(l) => {
            Err(super::in_use(dir, format!("it belongs to plain pool {}", l.pool)).hint(format!(
                "name another directory; if nobody needs that pool any more, remove `{}` in it",
                dir.join(DIR_LABEL).display()
            )))
        }
    }
}

fn label_directory(dir: &Path, label: &Label, waited: &Waited<'_>) -> Result<()> {
    let (path, new) = (dir.join(DIR_LABEL), dir.join(NEW_LABEL));
    let io = |e: std::io::Error| unusable(&path, e);
    check_waited(dir, waited)?;
    match std::fs::remove_file(&new) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(io(e)),
        _ => {}
    }
    make_file(&new, 0).map_err(io)?;
    std::fs::write(&new, label.encode()).map_err(io)?;
    std::fs::File::open(&new).and_then(|f| f.sync_all()).map_err(io)?;
    check_waited(dir, waited)?;
    std::fs::rename(&new, &path).map_err(io)?;
    std::fs::File::open(dir).and_then(|d| d.sync_all()).map_err(io)
}

/// One device of a plain pool that is started.
struct Starting<'a> {
    owner: &'a Owner,
    pool: Option<PoolId>,
    number: u32,
    device: &'a Device,
    path: &'a Path,
    waited: &'a Waited<'a>,
}

impl Starting<'_> {
    fn label(&self, size: u64) -> Option<Label> {
        Some(Label { pool: self.pool?, device: self.number, size })
    }

    /// Makes what is new and not there, and gives what was made.
    fn make(&self, holds: &Holds) -> Result<Option<Made>> {
        // Its name may lead elsewhere since it was admitted, after a crash.
        if self.device.new {
            holds.check_outside(self.path)?;
        }
        let made = match (self.device.new, self.device.kind) {
            (true, DeviceKind::File) => make_file(self.path, 0),
            (true, DeviceKind::Dir) => make_dir(self.path),
            _ => return Ok(None),
        };
        match made {
            Ok(made) => Ok(Some(made)),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(None),
            Err(e) => Err(unusable(self.path, e)
                .hint("check that its directory is there and is yours to write")),
        }
    }

    fn io(&self, e: impl std::fmt::Display) -> Error {
        unusable(self.path, e)
    }

    /// The label that a device of so many bytes for volumes has.
    fn read_label(&self, held: &Held, size: u64) -> Result<Option<Label>> {
        let place = Label::place(size);
        if place + PAGE > held.len().map_err(|e| self.io(e))? {
            return Ok(None);
        }
        let page = held.read(place, PAGE as usize).map_err(|e| self.io(e))?;
        Label::decode(&page).map_err(|e| foreign(self.path, e))
    }

    /// The label of one that a pool has had, and behind how many bytes.
    fn known_label(&self, held: &Held) -> Result<Option<(Label, u64)>> {
        let (had, size) = (self.device.had(), self.device.size);
        let behind = |at: u64| Ok(self.read_label(held, at)?.map(|l| (l, at)));
        match behind(had)? {
            // A change of size that a crash has cut off may have come this far. A disk is not looked at behind what it had.
            None if self.device.grown_from.is_some() && !held.is_block() => behind(size),
            l => Ok(l),
        }
    }

    fn is_ours(&self, l: &Label) -> bool {
        Some(l.pool) == self.pool && l.device == self.number
    }

    /// Gives a new file so many bytes for volumes and room for a label behind them, if it can be made longer. Gives what there is
    /// for volumes then: what cannot get longer gives up its end for the label.
    fn make_room(&self, held: &Held, wanted: u64) -> Result<u64> {
        check_waited(self.path, self.waited)?;
        let len = held.len().map_err(|e| self.io(e))?;
        if !held.is_block() && len < most(wanted) && held.set_len(most(wanted)).is_ok() {
            return Ok(wanted);
        }
        if len < wanted {
            return Err(self.no_room(wanted));
        }
        match !held.is_block() && len >= most(wanted) && wanted > 0 {
            true => Ok(wanted),
            false => Ok((len / PAGE * PAGE).saturating_sub(PAGE)),
        }
    }

    fn no_room(&self, wanted: u64) -> Error {
        let why = format!("it cannot get {}", format_size(wanted));
        unusable(self.path, why).hint("is its file system full, or too small for it?")
    }

    /// Refuses what is in a new device if it was never looked at: a crash came between, and another disk may have the name.
    fn check_new(&self, holds: &Holds, held: &Held) -> Result<()> {
        match holds.may_be_wiped(self.owner, self.path) {
            true => Ok(()),
            false => {
                let number = Some(self.number);
                holds.check_again(held, self.path, self.owner, (self.pool, number))
            }
        }
    }

    fn start_new(&self, holds: &Holds, held: &Held) -> Result<DeviceFound> {
        let len = held.len().map_err(|e| self.io(e))?;
        let declared = self.device.size;
        let wanted = match held.is_block() {
            true => declared,
            // One that a pool has had before, with the room for its label.
            false if declared > 0 && len <= most(declared) => declared,
            false => declared.max(len),
        };
        let size = self.make_room(held, wanted)?;
        if size < EXTENT_ALIGN {
            return Err(Error::new(
                Code::InvalidDevice,
                format!("`{}` is too small", self.path.display()),
            )
            .because(format!("it has {}", format_size(len)))
            .hint("give it at least 2 MiB"));
        }
        holds.check_alone(held, self.path, self.pool.unwrap_or(PoolId(0)), self.waited)?;
        let len = held.len().map_err(|e| self.io(e))?;
        self.clear(held, (0, len / PAGE * PAGE))?;
        self.finish(held, size)
    }

    /// Takes away what is at both ends of bytes that come to the pool.
    fn clear(&self, held: &Held, (from, to): (u64, u64)) -> Result<()> {
        let zeros = vec![0; ENDS.min(to.saturating_sub(from)) as usize];
        for at in [from, to.saturating_sub(ENDS).max(from)] {
            check_waited(self.path, self.waited)?;
            held.write(at, &zeros).map_err(|e| self.io(e))?;
        }
        Ok(())
    }

    /// Labels it behind so many bytes for volumes.
    fn finish(&self, held: &Held, size: u64) -> Result<DeviceFound> {
        match self.label(size) {
            Some(l) => {
                check_waited(self.path, self.waited)?;
                held.write(Label::place(size), &l.encode()).map_err(|e| self.io(e))?;
                Ok(DeviceFound { size, labelled: true, ..DeviceFound::default() })
            }
            None => Ok(self.unlabelled(held, size)),
        }
    }

    fn unlabelled(&self, held: &Held, size: u64) -> DeviceFound {
        let identity = held.lasting_name().map(str::to_owned);
        DeviceFound { size, identity, ..DeviceFound::default() }
    }

    fn start_directory(&self) -> Result<DeviceFound> {
        let (d, found) = (self.device, directory_label(self.path)?);
        match found {
            Some(l) if self.is_ours(&l) => {}
            Some(_) if d.new => check_directory(self.path)?,
            Some(l) => {
                return Err(foreign(self.path, format!("it is the directory of pool {}", l.pool)));
            }
            None if d.labelled => {
                return Err(foreign(self.path, "it does not carry the pool's label"));
            }
            None => {
                if let Some(l) = self.label(0) {
                    label_directory(self.path, &l, self.waited)?;
                }
            }
        }
        Ok(DeviceFound { labelled: self.pool.is_some(), ..DeviceFound::default() })
    }

    fn start(&self, holds: &Arc<Holds>) -> Result<(DeviceFound, Taken)> {
        holds.check_same(self.owner, self.path)?;
        let made = self.make(holds)?;
        let wait = if self.device.new { Wait::ForTheDead } else { Wait::ForAnybody };
        let held = holds.take_made(self.owner, self.path, wait, made)?;
        let grows_to = holds.take_growth(self.owner, &held);
        if !self.device.new {
            // It has been used since it was made.
            holds.set_made(self.owner, self.path, None);
        }
        check_kind(&held, self.path, self.device.kind)?;
        match self.device.new {
            true => holds.check_disk(held.held(), self.path, None)?,
            false => {
                let known = || {
                    let label = self.known_label(&held)?;
                    Ok(label.is_some_and(|(l, _)| self.is_ours(&l)))
                };
                holds.check_disk_again(&held, None, known)?;
                if !held.is_kept() {
                    let place = || Ok(if known()? { Label::place(self.device.had()) } else { 0 });
                    holds.check_below_again(&held, self.path, Some(self.owner), place)?;
                    if !held.is_directory() && !known()? {
                        let had = self.device.had();
                        holds.check_not_twice(&held, self.path, (self.owner, had))?;
                    }
                }
            }
        }
        if self.device.new {
            self.check_new(holds, &held)?;
        }
        let found = match (self.device.kind, self.device.new) {
            (DeviceKind::Dir, _) => self.start_directory(),
            (_, true) => self.start_new(holds, &held),
            (_, false) => self.start_known(holds, &held, grows_to),
        };
        Ok((found?, held))
    }
}

impl Holds {
    /// Holds a device that is known by its name, and does nothing with it.
    async fn hold_named(self: &Arc<Self>, owner: &Owner, d: &Device) {
        let (Some(path), Some(name)) = (&d.path, d.identity.clone()) else { return };
        let (owner, at, had) = (owner.clone(), PathBuf::from(path), d.had());
        let path = at.clone();
        let take = move |holds: &Arc<Holds>| -> Result<Option<Taken>> {
            let held = holds.take(&owner, &path, false, Wait::No)?;
            if !held.is_kept() {
                holds.check_below_again(&held, &path, Some(&owner), || Ok(0))?;
            }
            let is_it = held.lasting_name().is_some_and(|n| is_as_recorded(Some(&name), Some(n)));
            Ok(Some(held).filter(|h| is_it && h.last_len() >= had))
        };
        // Else it is not there now.
        if let Ok(Some(taken)) = self.helped(&at, take).await {
            drop(taken.keep());
        }
    }

    /// Starts the devices of a plain pool. See [`DataPlane::start_pool`](weir_control::dataplane::DataPlane::start_pool).
    pub(crate) async fn start_plain(self: &Arc<Self>, pool: &Pool) -> Result<Vec<DeviceFound>> {
        let owner = Owner::Pool(pool.name.clone());
        let named =
            |p: &Path| pool.devices.iter().any(|d| d.path.as_deref().map(Path::new) == Some(p));
        closed(self.keep_only(&owner, named)).await;
        let mut all = Vec::new();
        let mut failed = None;
        for (number, d) in (0..).zip(&pool.devices) {
            // What is there of a pool is held, whatever it lacks: nobody else gets it. Nothing more is made or labelled.
            if failed.is_some() && (d.new || !d.labelled) {
                self.hold_named(&owner, d).await;
                continue;
            }
            let Some(path) = d.path.as_ref().map(PathBuf::from) else {
                all.push(d.size.into());
                continue;
            };
            let (at, owner, device, id) = (path.clone(), owner.clone(), d.clone(), pool.id);
            let name = pool.name.clone();
            let found = self
                .helped_while(&at, move |holds, waited| {
                    let (owner, device, path) = (&owner, &device, &path);
                    Starting { owner, pool: id, number, device, path, waited }.start(holds)
                })
                .await
                .map_err(|e| {
                    let e2 =
                        Error::new(e.code, format!("pool {name} cannot be started")).because(&e);
                    if e.hint.is_empty() { e2 } else { e2.hint(e.hint) }
                });
            match found {
                Ok((found, taken)) => {
                    drop(taken.keep());
                    all.push(found);
                }
                Err(e) => drop(failed.get_or_insert(e)),
            }
        }
        self.forget_growth(&owner);
        failed.map_or(Ok(all), Err)
    }

    /// Takes the labels of a plain pool off its devices; also those of a protected one, and what was `made` for either, if it did not
    /// come to be.
    pub(crate) async fn unmake(self: &Arc<Self>, pool: &Pool, made: bool) {
        let owner = Owner::Pool(pool.name.clone());
        // Side by side: of those that hang each waits for its own end.
        let mut all = tokio::task::JoinSet::new();
        for d in pool.devices.iter().filter(|d| d.local_path().is_some()) {
            let (me, owner, device) = (self.clone(), owner.clone(), d.clone());
            let (name, id, is_protected) =
                (pool.name.clone(), pool.identity(), pool.protection.is_some());
            all.spawn(async move {
                let path = PathBuf::from(device.path.clone().unwrap_or_default());
                let at = path.clone();
                let unmake = move |holds: &Arc<Holds>| match holds.of(&owner, &at) {
                    None => Ok(()),
                    Some(held) if held.is_directory() || !is_protected => {
                        unlabel(&held, &at, &device, id)
                    }
                    Some(held) if made => protected::unmake(&held, &at, id),
                    Some(_) => Ok(()),
                };
                if let Err(e) = me.helped(&path, unmake).await {
                    tracing::warn!("the label of pool {name} stays on a device: {e}");
                }
            });
        }
        all.join_all().await;
        if !made {
            self.stands(&owner);
        }
        self.forget_yielded(&owner);
        self.keep_only(&owner, |_| false).await;
    }
}

/// Takes a pool's label off a device that is not a protected pool's.
fn unlabel(held: &Held, path: &Path, device: &Device, id: Option<PoolId>) -> Result<()> {
    let ours = |l: &Label| Some(l.pool) == id;
    if held.is_directory() {
        if directory_label(path)?.is_some_and(|l| ours(&l)) {
            std::fs::remove_file(path.join(DIR_LABEL)).map_err(|e| unusable(path, e))?;
        }
        return Ok(());
    }
    let len = held.len().map_err(|e| unusable(path, e))?;
    let last = |len: u64| (len / PAGE * PAGE).saturating_sub(PAGE);
    let mut places = vec![Label::place(device.had()), last(device.had())];
    // A crash may have come before its size was recorded. What a disk has gained is not this pool's.
    places.extend((!held.is_block()).then(|| Label::place(device.size)));
    places.extend(device.new.then(|| last(len)));
    for place in places {
        if place + PAGE > len {
            continue;
        }
        let page = held.read(place, PAGE as usize).map_err(|e| unusable(path, e))?;
        if Label::decode(&page).is_ok_and(|l| l.is_some_and(|l| ours(&l))) {
            held.write(place, &[0; PAGE as usize]).map_err(|e| unusable(path, e))?;
        }
    }
    Ok(())
}
