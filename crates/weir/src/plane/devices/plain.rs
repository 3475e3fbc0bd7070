//! Devices of plain pools: made once, found again by their labels.

use super::admit::check_kind;
use super::belongs::{Found, spans};
use super::below::is_shown_behind;
use super::label::{Label, most};
use super::{Holds, Owner, Taken, Wait, Waited, check_waited, protected, unusable};
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
    fn make(&self) -> Result<Option<Made>> {
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

    /// The label of one that a pool has had.
    fn known_label(&self, held: &Held) -> Result<Option<Label>> {
        match self.read_label(held, self.device.had())? {
            // A change of size that a crash has cut off may have come this far.
            None if self.device.grown_from.is_some() => self.read_label(held, self.device.size),
            l => Ok(l),
        }
    }

    fn name(&self) -> Option<&str> {
        match self.owner {
            Owner::Pool(name) => Some(name),
            _ => None,
        }
    }

    fn is_ours(&self, l: &Label) -> bool {
        Some(l.pool) == self.pool && l.device == self.number
    }

    /// Gives a file so many bytes for volumes and room for a label behind them, if it can be made longer. Gives what
    /// there is for volumes now, and whether a label fits behind it.
    fn make_room(&self, held: &Held, wanted: u64) -> Result<(u64, bool)> {
        check_waited(self.path, self.waited)?;
        let len = held.len().map_err(|e| self.io(e))?;
        let whole = Label::place(wanted) + PAGE;
        if !held.is_block() && len < whole && held.set_len(whole).is_ok() {
            return Ok((wanted, true));
        }
        if len < wanted {
            let why = format!("it cannot get {}", format_size(wanted));
            return Err(
                unusable(self.path, why).hint("is its file system full, or too small for it?")
            );
        }
        if len >= whole && !held.is_block() && wanted > 0 {
            return Ok((wanted, true));
        }
        let place = (len / PAGE * PAGE).saturating_sub(PAGE);
        // One that is new gives up its last MiB for it, if there is no rest behind the last whole one.
        let free = self.device.new || place / EXTENT_ALIGN == len / EXTENT_ALIGN;
        match free && place > 0 {
            true => Ok((place, true)),
            false => Ok((len, false)),
        }
    }

    /// Refuses what is in a new device if it was never looked at: a crash came between, and another disk may have the name.
    fn check_new(&self, holds: &Holds, held: &Held) -> Result<()> {
        match holds.may_be_wiped(self.owner, self.path) {
            true => Ok(()),
            false => holds.check_again(held, self.path, self.pool),
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
        let (size, room) = self.make_room(held, wanted)?;
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
        let zeros = vec![0; ENDS.min(len / PAGE * PAGE) as usize];
        let last = (len / PAGE * PAGE).saturating_sub(ENDS);
        for at in [0, last] {
            check_waited(self.path, self.waited)?;
            held.write(at, &zeros).map_err(|e| self.io(e))?;
        }
        self.finish(held, size, room)
    }

    /// Labels it.
    fn finish(&self, held: &Held, size: u64, room: bool) -> Result<DeviceFound> {
        match self.label(size).filter(|_| room) {
            Some(l) => {
                check_waited(self.path, self.waited)?;
                held.write(Label::place(size), &l.encode()).map_err(|e| self.io(e))?;
                Ok(DeviceFound { size, labelled: true, identity: None })
            }
            None => {
                let identity = held.lasting_name().map(str::to_owned);
                Ok(DeviceFound { size, labelled: false, identity })
            }
        }
    }

    fn start_known(&self, holds: &Holds, held: &Held) -> Result<DeviceFound> {
        let (d, len) = (self.device, held.len().map_err(|e| self.io(e))?);
        if len < d.had() {
            let why = format!("it has {}, and had {}", format_size(len), format_size(d.had()));
            return Err(foreign(self.path, why));
        }
        match self.known_label(held)? {
            Some(l) if !self.is_ours(&l) => {
                let why = format!("it carries the label of device {} of pool {}", l.device, l.pool);
                return Err(foreign(self.path, why));
            }
            None if d.labelled => {
                return Err(foreign(self.path, "it does not carry the pool's label"));
            }
            None if !is_as_recorded(d.identity.as_deref(), held.lasting_name()) => {
                return Err(foreign(self.path, "it is another file or disk of that name"));
            }
            // Nothing tells it from others but what they carry.
            None => {
                holds.check_belongs(held, self.path, self.name())?;
            }
            Some(_) => {}
        }
        if d.grown_from.is_none() && d.labelled {
            // A disk may have become larger below; of a file, what is behind the label is nobody's.
            let place = (len / PAGE * PAGE).saturating_sub(PAGE);
            if !held.is_block() || place < Label::place(d.size) + EXTENT_ALIGN {
                return Ok(DeviceFound { size: d.size, labelled: true, identity: None });
            }
            // Or it is set up so that it shows what is another's as well, of this pool or not, up or not.
            let is_own = |l: &Found| Some(l.pool) == self.pool && l.number == Some(self.number);
            let labels = spans(held, self.path)?.into_iter().filter(|s| s.at == place);
            let label = labels.map(|s| s.label).find(|l| !is_own(l));
            let behind = Label::place(d.size) + PAGE;
            if label.is_some() || is_shown_behind(held, self.path, behind)? {
                tracing::warn!(
                    device = %self.path.display(),
                    "it is larger than it was, and what is behind its label is shown by another device or \
                     carries a label: the pool does not grow by that"
                );
                return Ok(DeviceFound { size: d.size, labelled: true, identity: None });
            }
            return self.finish(held, place, true);
        }
        let wanted = if d.grown_from.is_some() { d.size } else { len.max(d.size) };
        let (size, room) = match held.is_block() || d.grown_from.is_some() || d.size > 0 {
            true => self.make_room(held, wanted)?,
            false => (len, false),
        };
        self.finish(held, size, room)
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
        Ok(DeviceFound { size: 0, labelled: self.pool.is_some(), identity: None })
    }

    fn start(&self, holds: &Arc<Holds>) -> Result<(DeviceFound, Taken)> {
        holds.check_same(self.owner, self.path)?;
        let made = self.make()?;
        let wait = if self.device.new { Wait::ForTheDead } else { Wait::ForAnybody };
        let held = holds.take_made(self.owner, self.path, wait, made)?;
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
                    Ok(label.is_some_and(|l| self.is_ours(&l)))
                };
                holds.check_disk_again(&held, None, known)?;
                if !held.is_kept() {
                    let place = || Ok(if known()? { Label::place(self.device.had()) } else { 0 });
                    holds.check_below_again(&held, self.path, Some(self.owner), place)?;
                }
            }
        }
        let found = match (self.device.kind, self.device.new) {
            (DeviceKind::Dir, _) => self.start_directory(),
            (_, true) => {
                self.check_new(holds, &held)?;
                self.start_new(holds, &held)
            }
            (_, false) => self.start_known(holds, &held),
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
        self.keep_only(&owner, named).await;
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
        failed.map_or(Ok(all), Err)
    }

    /// Takes the labels of a plain pool off its devices; also those of a protected one, and what was `made` for either, if it did not
    /// come to be.
    pub(crate) async fn unmake(self: &Arc<Self>, pool: &Pool, made: bool) {
        let owner = Owner::Pool(pool.name.clone());
        // Side by side: of those that hang each waits for its own end.
        let mut all = tokio::task::JoinSet::new();
        for d in pool.devices.iter().filter(|d| d.path.is_some()) {
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
    for place in [Label::place(device.size), (len / PAGE * PAGE).saturating_sub(PAGE)] {
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

#[cfg(test)]
mod tests {
    use super::*;
    use weir_control::dataplane::KnownPool;

    struct Dir(PathBuf);

    impl Drop for Dir {
        fn drop(&mut self) {
            drop(std::fs::remove_dir_all(&self.0));
        }
    }

    fn dir(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("weir-plain-{name}-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&dir));
        std::fs::create_dir_all(&dir).expect("a directory");
        Dir(dir)
    }

    const SIZE: u64 = 4 << 20;

    /// Starts a device as a pool of this identity has it, with nobody else there.
    fn start(path: &Path, pool: u128, known: &Device) -> Result<DeviceFound> {
        let owner = Owner::Pool("p".into());
        let (pool, number) = (Some(PoolId(pool)), 0);
        let s = Starting { owner: &owner, pool, number, device: known, path, waited: &|| true };
        s.start(&Arc::default()).map(|(found, taken)| {
            taken.keep();
            found
        })
    }

    fn file(path: &Path, size: u64) -> Device {
        Device::known(DeviceKind::File, Some(path.display().to_string()), size)
    }

    #[test]
    fn a_device_of_an_older_program_is_labelled_and_keeps_its_data() {
        let d = dir("older");
        let path = d.0.join("disk");
        let data: Vec<u8> = (0..SIZE).map(|n| (n % 251) as u8).collect();
        std::fs::write(&path, &data).expect("written");
        let old = file(&path, SIZE);
        let found = start(&path, 7, &old).expect("it starts");
        assert_eq!(found, DeviceFound { size: SIZE, labelled: true, identity: None });
        let now = std::fs::read(&path).expect("read");
        assert!(now[..data.len()] == data && now.len() as u64 == SIZE + PAGE);
        // From now on it is told from others.
        let known = Device { labelled: true, ..old.clone() };
        assert_eq!(start(&path, 7, &known).expect("it starts"), found);
        for known in [&known, &old] {
            let e = start(&path, 8, known).expect_err("another pool's");
            assert!(e.reason.contains("label of device 0 of pool"), "{e}");
        }
        std::fs::write(&path, &data).expect("written");
        let e = start(&path, 7, &known).expect_err("it has no label");
        assert_eq!(e.code, Code::PoolDamaged);
        assert!(std::fs::read(&path).expect("read") == data, "nothing is written to it");
    }

    #[test]
    fn growing_that_was_cut_off_goes_on() {
        let d = dir("growing");
        let path = d.0.join("disk");
        let new = Device { new: true, ..file(&path, SIZE) };
        start(&path, 7, &new).expect("it is made");
        let growing = Device { labelled: true, grown_from: Some(SIZE), ..file(&path, 2 * SIZE) };
        for len in [SIZE + PAGE, SIZE + PAGE + 5000, 2 * SIZE + PAGE] {
            let f = std::fs::File::options().write(true).open(&path).expect("open");
            f.set_len(len).expect("its length");
            let found = start(&path, 7, &growing).expect("it grows");
            assert_eq!((found.size, found.labelled), (2 * SIZE, true), "from {len}");
            let f = std::fs::read(&path).expect("read");
            assert_eq!(f.len() as u64, 2 * SIZE + PAGE);
            // Back to before, for the next length.
            let label = Label { pool: PoolId(7), device: 0, size: SIZE }.encode();
            let mut f = f[..SIZE as usize].to_vec();
            f.extend(label);
            std::fs::write(&path, f).expect("written");
        }
    }

    /// A device of which nothing is known but its size, as an older program left it, and another pool's disk has its name now.
    #[test]
    fn what_carries_the_label_of_another_pool_of_the_node_is_not_taken() {
        let dir = dir("foreign");
        let path = dir.0.join("d");
        // At any of the places where labels are.
        let label = Label { pool: PoolId(9), device: 0, size: SIZE };
        let mut content = vec![0; SIZE as usize + 100];
        content[..PAGE as usize].copy_from_slice(&label.encode());
        std::fs::write(&path, &content).expect("a file");
        let owner = Owner::Pool("p".into());
        let holds = Arc::<Holds>::default();
        let known = |name: &str, id| KnownPool {
            name: name.into(),
            id: PoolId(id),
            devices: 1,
            directories: Vec::new(),
        };
        holds.know(vec![known("p", 7), known("other", 9)], Vec::new());
        let known = file(&path, SIZE);
        let s = Starting {
            owner: &owner,
            pool: Some(PoolId(7)),
            number: 0,
            device: &known,
            path: &path,
            waited: &|| true,
        };
        let e = s.start(&holds).err().expect("it is another pool's");
        assert!(e.to_string().contains("pool `other`"), "{e}");
        assert!(std::fs::read(&path).expect("read") == content, "nothing is written");
        assert!(holds.paths_of(|_| true).is_empty(), "and it is let go of");
    }

    /// Somebody has given up while the first of several writes was under way.
    #[test]
    fn nothing_more_is_written_for_somebody_who_has_gone() {
        let d = dir("gone");
        let (path, sub) = (d.0.join("disk"), d.0.join("dir"));
        let content = vec![7; 8 << 20];
        std::fs::write(&path, &content).expect("a file");
        let owner = Owner::Pool("p".into());
        let (holds, asked) = (Arc::<Holds>::default(), std::cell::Cell::new(0));
        let waited = || asked.replace(asked.get() + 1) < 2;
        let device = |path: &Path, kind| Device {
            new: true,
            ..Device::known(kind, Some(path.display().to_string()), SIZE)
        };
        let (disk, directory) = (device(&path, DeviceKind::File), device(&sub, DeviceKind::Dir));
        drop(holds.take(&owner, &path, false, Wait::No).expect("it is there").keep());
        holds.set_admitted(&owner, &path);
        // A file is made longer before; of a directory the label is written, and named.
        for (path, device, before) in [(&path, &disk, 0), (&sub, &directory, 1)] {
            asked.set(before);
            let (owner, waited) = (&owner, &waited);
            let s = Starting { owner, pool: Some(PoolId(7)), number: 0, device, path, waited };
            assert!(s.start(&holds).is_err());
        }
        let now = std::fs::read(&path).expect("read");
        assert!(now[..1 << 20].iter().all(|b| *b == 0), "the first write was under way");
        assert!(now[1 << 20..8 << 20] == content[1 << 20..], "its end is as it was");
        assert!(!sub.exists(), "what was made for it is gone, with all that came into it");
    }

    #[test]
    fn only_what_is_new_is_made() {
        let d = dir("new");
        let path = d.0.join("disk");
        let known = file(&path, SIZE);
        assert!(start(&path, 7, &known).is_err() && !path.exists());
        let sub = d.0.join("dir");
        let directory = Device::known(DeviceKind::Dir, Some(sub.display().to_string()), 0);
        assert!(start(&sub, 7, &directory).is_err() && !sub.exists());
        start(&sub, 7, &Device { new: true, ..directory.clone() }).expect("it is made");
        let labelled = Device { labelled: true, ..directory };
        start(&sub, 7, &labelled).expect("it is there");
        assert!(start(&sub, 8, &labelled).is_err(), "another pool's");
        std::fs::remove_file(sub.join(DIR_LABEL)).expect("removed");
        assert!(start(&sub, 7, &labelled).is_err() && !sub.join(DIR_LABEL).exists());
        // What cannot be made leaves nothing.
        let none = d.0.join("none/disk");
        assert!(start(&none, 7, &Device { new: true, ..known }).is_err());
        let small = Device { new: true, ..file(&path, 4096) };
        assert!(start(&path, 7, &small).is_err() && !path.exists());
    }
}
