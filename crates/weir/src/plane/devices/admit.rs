//! What is looked at before a device comes to Weir: whether others use it, what is in it, whether it makes sense.

use super::{A_LOOK, Holds, Owner, Taken, To, Wait, belongs, in_use, unusable};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use weir_control::dataplane::Inside;
use weir_control::model::{DeviceKind, DeviceSpec, Overwrite, PoolId};
use weir_control::units::format_size;
use weir_control::{Code, Error, Result};
use weir_uring::device::{Contents, all_of, is_kind, opened_by, used_by};
use weir_uring::{Held, Identity};

/// How far apart is looked whether somebody has a device open.
const STEP: Duration = Duration::from_millis(50);

fn wrong(path: &Path, why: impl std::fmt::Display, hint: &str) -> Error {
    Error::new(Code::InvalidDevice, format!("`{}` cannot be a device", path.display()))
        .because(why)
        .hint(hint)
}

/// Another process that has this open for writing, and for longer than who only looks what it is.
pub(super) fn kept_open_by(path: &Path, identity: Identity) -> Option<String> {
    kept(|| opened_by(path, identity))
}

/// A use that lasts.
pub(super) fn kept(used: impl Fn() -> Option<String>) -> Option<String> {
    let mut found = used()?;
    for _ in 0..A_LOOK.as_millis() / STEP.as_millis() {
        std::thread::sleep(STEP);
        found = used()?;
    }
    Some(found)
}

/// Refuses words for what may be destroyed that no refusal uses: somebody means something else.
pub(crate) fn check_words(overwrite: &Overwrite) -> Result<()> {
    match overwrite.0.iter().find(|w| !is_kind(w)) {
        None => Ok(()),
        Some(word) => {
            let text = format!("`{word}` is nothing that a device can have in it");
            Err(Error::new(Code::InvalidRequest, text)
                .because("what may be destroyed is named in the words of the refusal without it")
                .hint("leave it out, and see what is said of the device; or name e.g. ext4, gpt or data"))
        }
    }
}

/// Refuses what has something in it that may not be lost.
pub(crate) fn check_blank(held: &Held, path: &Path, overwrite: &Overwrite) -> Result<()> {
    let contents = held.contents().map_err(|e| unusable(path, e))?;
    check_found(&contents, &format!("`{}`", path.display()), overwrite)
}

/// The same of what was found.
pub(crate) fn check_found(contents: &Contents, what: &str, overwrite: &Overwrite) -> Result<()> {
    let hint = match contents.kinds().iter().any(|k| k == "weir") {
        true => "name another device; `weir pool import` takes over a protected pool; ",
        false => "name another device; ",
    };
    check_empty(contents, what, overwrite, hint)
}

/// The same, with what else may be done.
pub(super) fn check_empty(
    contents: &Contents,
    what: &str,
    overwrite: &Overwrite,
    hint: &str,
) -> Result<()> {
    let kinds = contents.kinds();
    if overwrite.covers(&kinds) {
        return Ok(());
    }
    let all = kinds.join(",");
    Err(Error::new(Code::DeviceInUse, format!("{what} is not empty"))
        .because(format!("it has {} in it", contents.told()))
        .hint(format!("{hint}if what is in it may be destroyed, say so: --overwrite {all}")))
}

/// Refuses a kind of device that is something else at that path.
pub(super) fn check_kind(held: &Held, path: &Path, kind: DeviceKind) -> Result<()> {
    let fits = match kind {
        DeviceKind::Dir => held.is_directory(),
        DeviceKind::Block => held.is_block(),
        _ => !held.is_directory(),
    };
    match fits {
        true => Ok(()),
        false => {
            let why = match (held.is_directory(), held.is_block()) {
                (true, _) => "it is a directory",
                (_, true) => "it is a block device",
                _ => "it is a file",
            };
            Err(wrong(path, why, "write file:PATH:SIZE, dir:PATH or block:PATH for what it is"))
        }
    }
}

/// Refuses a new file or directory that cannot be made, without making it.
fn check_can_be_made(spec: &DeviceSpec, path: &Path) -> Result<()> {
    match (spec.kind, spec.size) {
        (DeviceKind::Block, _) => return Err(unusable(path, "there is no such device")),
        (DeviceKind::File, None) => {
            let hint = "write file:PATH:SIZE, and it is made";
            return Err(wrong(path, "it does not exist, and no size is given", hint));
        }
        _ => {}
    }
    let Some(parent) = path.parent() else { return Err(unusable(path, "it has no name")) };
    let meta = std::fs::metadata(parent).map_err(|e| {
        let why = format!("the directory `{}` is not there: {e}", parent.display());
        unusable(path, why).hint("make that directory first")
    })?;
    match meta.is_dir() && !meta.permissions().readonly() {
        true => Ok(()),
        false => Err(unusable(path, format!("nothing can be made in `{}`", parent.display()))),
    }
}

/// What was taken, if there is something.
fn admit(
    holds: &Arc<Holds>,
    owner: &Owner,
    spec: &DeviceSpec,
    inside: Inside<'_>,
) -> Result<Option<Taken>> {
    let Some(path) = spec.path.as_ref().map(PathBuf::from) else { return Ok(None) };
    if matches!(inside, Inside::Only(_)) {
        holds.check_outside(&path)?;
    }
    match std::fs::symlink_metadata(&path) {
        Err(e) if e.kind() == ErrorKind::NotFound && !matches!(inside, Inside::Anything) => {
            holds.check_outside(&path)?;
            return check_can_be_made(spec, &path).map(|()| None);
        }
        _ => {}
    }
    let held = holds.take(owner, &path, false, Wait::ForTheDead)?;
    check_kind(&held, &path, spec.kind)?;
    let name = owner.pool();
    // Told when nobody else is found to use it.
    let belongs = holds.check_belongs(&held, &path, name);
    let to = match (inside, &belongs) {
        (Inside::Anything, Ok(true)) => To::Back(Some(owner)),
        (Inside::OwnOr(_), Ok(true)) => To::Back(None),
        _ => To::New,
    };
    let own = holds.check_comes(&held, (&path, name), to, belongs)?;
    let overwrite = match inside {
        Inside::OwnOr(o) if !own => Some(o),
        Inside::Only(o) => Some(o),
        Inside::Anything | Inside::OwnOr(_) => None,
    };
    match overwrite {
        // Nothing is overwritten: it comes back.
        None if own => {
            holds.check_disk_again(&held, Some(owner), || Ok(own))?;
            holds.check_claims(held.held(), &path, true)?;
        }
        None => holds.check_disk(held.held(), &path, Some(owner))?,
        Some(_) => holds.check_disk(held.held(), &path, None)?,
    }
    let Some(overwrite) = overwrite else { return Ok(Some(held)) };
    holds.check_no_twin(&belongs::labels(&held, &path)?, &path, (name, None))?;
    if held.is_directory() {
        return super::plain::check_directory(&path).map(|()| Some(held));
    }
    check_blank(&held, &path, overwrite)?;
    let len = held.len().map_err(|e| unusable(&path, e))?;
    match spec.size {
        // What a label takes is not counted.
        Some(size) if spec.kind == DeviceKind::File && super::label::most(size) < len => {
            let why =
                format!("it has {}, and {} are asked for", format_size(len), format_size(size));
            return Err(wrong(
                &path,
                why,
                "leave the size out, or give it at least the size that it has",
            ));
        }
        None if spec.kind == DeviceKind::File && len == 0 => {
            return Err(wrong(&path, "it has no bytes", "write file:PATH:SIZE, and it gets them"));
        }
        _ => {}
    }
    Ok(Some(held))
}

/// As [`admit`], for a thread of its own.
fn look(
    owner: Owner,
    spec: DeviceSpec,
    inside: Inside<'_>,
) -> impl FnOnce(&Arc<Holds>) -> Result<Option<Taken>> + Send + 'static {
    let (own, overwrite) = match inside {
        Inside::Anything => (false, None),
        Inside::Only(o) => (false, Some(o.clone())),
        Inside::OwnOr(o) => (true, Some(o.clone())),
    };
    move |holds| {
        let inside = match &overwrite {
            None => Inside::Anything,
            Some(o) if own => Inside::OwnOr(o),
            Some(o) => Inside::Only(o),
        };
        let taken = admit(holds, &owner, &spec, inside)?;
        if let Some(path) = &spec.path {
            holds.set_admitted(&owner, Path::new(path));
        }
        Ok(taken)
    }
}

/// Refuses more memory than the machine has.
fn check_memory(devices: &[DeviceSpec]) -> Result<()> {
    let ram = devices.iter().filter(|d| d.kind == DeviceKind::Ram).filter_map(|d| d.size);
    let wanted = ram.fold(0u64, u64::saturating_add);
    let table = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = table.lines().find_map(|l| l.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    match total.and_then(|t| t.trim().parse::<u64>().ok()) {
        Some(kib) if wanted > kib.saturating_mul(1024) => Err(Error::new(
            Code::InvalidDevice,
            format!("{} of memory cannot be had", format_size(wanted)),
        )
        .because(format!("the machine has {}", format_size(kib * 1024)))
        .hint("give the `ram` devices less")),
        _ => Ok(()),
    }
}

impl Holds {
    /// Refuses what somebody else uses.
    pub(crate) fn check_unused(&self, held: &Held, path: &Path, to: To<'_>) -> Result<()> {
        if let Some(why) = used_by(held.identity()) {
            return Err(in_use(path, why));
        }
        self.check_below(held, path, to)?;
        let name = std::fs::canonicalize(path).map_err(|e| unusable(path, e))?;
        match kept_open_by(&name, held.identity()) {
            Some(why) => Err(in_use(path, why)),
            None => Ok(()),
        }
    }

    /// Refuses what is, or may be, another's of this node or of others. Gives whether it carries its own pool's label; `belongs`: what
    /// its labels say, which is told when nobody else is found to use it.
    fn check_comes(
        &self,
        held: &Held,
        (path, pool): (&Path, Option<&str>),
        to: To<'_>,
        belongs: Result<bool>,
    ) -> Result<bool> {
        self.check_inside_none(path, held.identity(), to)?;
        self.check_unused(held, path, to)?;
        self.check_image(path, &all_of(held.identity()), held.lasting_name(), to.its_own())?;
        let own = belongs?;
        self.check_belongs_below(held, path, pool, to)?;
        Ok(own)
    }

    /// Refuses a new device of a pool that nobody looked at: the process has ended since, or its name leads to another one. All that
    /// is asked of a device that comes is asked of it. The pool's own label may be there already, and nothing else.
    pub(super) fn check_again(
        &self,
        held: &Held,
        path: &Path,
        owner: &Owner,
        (pool, number): (Option<PoolId>, Option<u32>),
    ) -> Result<()> {
        let name = owner.pool();
        self.check_comes(held, (path, name), To::New, self.check_belongs(held, path, name))?;
        let labels = belongs::labels(held, path)?;
        self.check_no_twin(&labels, path, (name, number))?;
        if !labels.is_empty() && labels.iter().all(|l| Some(l.pool) == pool) {
            return Ok(());
        }
        let contents = held.contents().map_err(|e| unusable(path, e))?;
        match contents.data {
            false => Ok(()),
            true => Err(Error::new(Code::DeviceInUse, format!("`{}` is not empty", path.display()))
                .because(format!("it has {} in it, and was not looked at: another device has its name since, or the daemon has ended while it was taken", contents.told()))
                .hint("if it is the device that was meant, take it out of the pool and add it again; else put that device back under this name")),
        }
    }

    /// Takes devices for a pool, or refuses them; another device may have a name of one that is `given_up`. See [`DataPlane::admit`](weir_control::dataplane::DataPlane::admit).
    pub(crate) async fn admit(
        self: &Arc<Self>,
        pool: &str,
        devices: &[DeviceSpec],
        inside: Inside<'_>,
        given_up: &BTreeSet<PathBuf>,
    ) -> Result<()> {
        check_memory(devices)?;
        let owner = Owner::Pool(pool.to_owned());
        let mut all = Vec::new();
        for d in devices {
            let path = PathBuf::from(d.path.clone().unwrap_or_default());
            // All or none: an error lets go of those before.
            let look = look(owner.clone(), d.clone(), inside);
            let (makes_room, by, at) = (given_up.contains(&path), owner.clone(), path.clone());
            let look = move |holds: &Arc<Holds>| {
                if makes_room {
                    holds.yield_name(&by, &at)?;
                }
                look(holds)
            };
            all.extend(self.helped(&path, look).await?);
        }
        all.into_iter().for_each(|taken| drop(taken.keep()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Make;
    use super::super::label::Label;
    use super::*;
    use weir_control::dataplane::{KnownImage, KnownPool};
    use weir_control::model::{Device, Pool};

    const SIZE: u64 = 4 << 20;

    /// It was to come to a pool and the process has ended; its name leads to a volume that is not up, or into a pool's directory, or to
    /// another device of its pool.
    #[tokio::test]
    async fn what_nobody_has_looked_at_since_is_asked_what_a_new_device_is() {
        let dir = std::env::temp_dir().join(format!("weir-again-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&dir));
        std::fs::create_dir_all(&dir).expect("a directory");
        let (path, id) = (dir.join("disk"), PoolId(7));
        let known = Device::known(DeviceKind::File, Some(path.display().to_string()), SIZE);
        let devices = vec![Device { new: true, ..known.clone() }];
        let pool =
            Pool { name: "p".into(), devices, id: Some(id), protection: None, left: Vec::new() };
        let owner = Owner::Pool("p".into());
        let image = KnownImage { volume: "v".into(), place: 0, path: path.clone(), identity: None };
        let of_pool = |name: &str, id, directories| KnownPool {
            name: name.into(),
            id,
            devices: 2,
            directories,
        };
        let inside = of_pool("d", PoolId(8), vec![(0, dir.clone())]);
        let mut twin = vec![0; SIZE as usize];
        twin.extend(Label { pool: id, device: 1, size: SIZE }.encode());
        for (pools, images, content, why) in [
            (vec![], vec![image], vec![0; SIZE as usize], "volume `v`"),
            (vec![inside], vec![], vec![0; SIZE as usize], "directory of pool `d`"),
            (vec![of_pool("p", id, vec![])], vec![], twin.clone(), "label of device 1"),
        ] {
            std::fs::write(&path, &content).expect("a file");
            let holds = Arc::<Holds>::default();
            holds.know(pools, images);
            let e = holds.start_plain(&pool).await.expect_err(why);
            assert!(e.to_string().contains(why), "{e}");
            let made =
                holds.hold_device((&owner, Some(id)), &known, Make::Anew(id)).await.map(drop);
            let e = made.expect_err(why);
            assert!(e.to_string().contains(why), "{e}");
            assert!(std::fs::read(&path).expect("read") == content, "it was written to");
        }
        // A directory as well: a crash came when it had been made.
        let sub = dir.join("sub");
        std::fs::create_dir(&sub).expect("a directory");
        let known = Device::known(DeviceKind::Dir, Some(sub.display().to_string()), 0);
        let pool = Pool { devices: vec![Device { new: true, ..known }], ..pool };
        let holds = Arc::<Holds>::default();
        holds.know(vec![of_pool("d", PoolId(8), vec![(0, dir.clone())])], Vec::new());
        let e = holds.start_plain(&pool).await.expect_err("it is inside another pool's");
        assert!(e.to_string().contains("directory of pool `d`"), "{e}");
        assert_eq!(std::fs::read_dir(&sub).expect("read").count(), 0, "it was labelled");
        // Nor is anything made there.
        std::fs::remove_dir(&sub).expect("removed");
        let e = holds.start_plain(&pool).await.expect_err("it would be inside another pool's");
        assert!(e.to_string().contains("directory of pool `d`") && !sub.exists(), "{e}");
        let absent = dir.join("absent");
        let known = Device::known(DeviceKind::File, Some(absent.display().to_string()), SIZE);
        let made = holds.hold_device((&owner, Some(id)), &known, Make::Anew(id)).await.map(drop);
        let e = made.expect_err("it would be inside another pool's");
        assert!(e.to_string().contains("directory of pool `d`") && !absent.exists(), "{e}");
        holds.know(Vec::new(), Vec::new());
        holds.start_plain(&pool).await.expect("it is nobody's");
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
