//! Which pool a device belongs to, by the labels that are on it, whatever it is called.

use super::label::Label as Plain;
use super::plain::labelled;
use super::{Holds, Owner, in_use, lock, unusable};
use std::fs::Metadata;
use std::path::Path;
use weir_control::dataplane::{KnownImage, KnownPool};
use weir_control::model::PoolId;
use weir_control::{Code, Result};
use weir_store::format::label::Label;
use weir_uring::device::{PAGE, overlap, same_name, says_where, soon};
use weir_uring::{Held, Identity};

/// What a label says: the pool, and in a plain one the device's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) pool: PoolId,
    pub(super) number: Option<u32>,
}

/// A label, and between which bytes of what carries it the device is that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) label: Found,
    /// Where the label is.
    pub(super) at: u64,
    pub(super) from: u64,
    pub(super) to: u64,
}

/// What a page at this place says, if it is a label: it has its own place in its device. Where that cannot be, it is a copy, and only the
/// page is known.
fn span(page: &[u8], at: u64) -> Option<Span> {
    let of = |label, place: u64, len: u64| match at.checked_sub(place) {
        Some(from) => Span { label, at, from, to: from.saturating_add(len) },
        None => Span { label, at, from: at, to: at + PAGE },
    };
    if let Some(l) = page.try_into().ok().and_then(|p| Label::decode(p).ok()) {
        let label = Found { pool: PoolId(l.pool), number: None };
        let place = l.layout.label(l.copy.into()).saturating_mul(PAGE);
        return Some(of(label, place, l.layout.blocks.saturating_mul(PAGE)));
    }
    let l = Plain::decode(page).ok().flatten()?;
    let label = Found { pool: l.pool, number: Some(l.device) };
    // Whoever writes to a volume may have written any size.
    let place = l.size.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
    Some(of(label, place, place.saturating_add(PAGE)))
}

/// The labels that a file or block device carries, at any of the places where labels are, and what they are of.
pub(super) fn spans(held: &Held, path: &Path) -> Result<Vec<Span>> {
    if held.is_directory() {
        return Ok(Vec::new());
    }
    let end = held.len().map_err(|e| unusable(path, e))?;
    spans_between(held, path, (0, end))
}

/// The same of a device that were between these places of it.
pub(super) fn spans_between(held: &Held, path: &Path, (from, to): (u64, u64)) -> Result<Vec<Span>> {
    let (mut found, end) = (Vec::new(), to / PAGE * PAGE);
    let places = [Some(from), Some(from + PAGE), end.checked_sub(PAGE), end.checked_sub(2 * PAGE)];
    for at in places.into_iter().flatten().filter(|at| (from..end).contains(at)) {
        let page = held.read(at, PAGE as usize).map_err(|e| unusable(path, e))?;
        found.extend(span(&page, at).filter(|s| !found.contains(s)));
    }
    Ok(found)
}

/// The labels alone.
pub(super) fn labels(held: &Held, path: &Path) -> Result<Vec<Found>> {
    spans(held, path).map(alone)
}

pub(super) fn alone(spans: Vec<Span>) -> Vec<Found> {
    let mut found = Vec::new();
    for Span { label, .. } in spans {
        found.extend(Some(label).filter(|l| !found.contains(l)));
    }
    found
}

/// Whether a directory has this file, by a name that will do.
fn has(dir: &Path, file: Identity, will_do: impl Fn(&str) -> bool) -> bool {
    let is_it = |meta: Metadata| Identity::of(&meta) == Some(file);
    let mut all = std::fs::read_dir(dir).into_iter().flatten().flatten();
    all.any(|f| f.metadata().is_ok_and(is_it) && f.file_name().to_str().is_some_and(&will_do))
}

/// Whether a file has a name as a pool gives that of a volume in its directory: the volume's, and 8 digits.
fn is_volumes(name: &str) -> bool {
    let is_digit = |c: u8| matches!(c, b'0'..=b'9' | b'a'..=b'f');
    let parts = name.strip_suffix(".img").and_then(|name| name.rsplit_once('.'));
    parts.is_some_and(|(of, digits)| {
        !of.is_empty() && digits.len() == 8 && digits.bytes().all(is_digit)
    })
}

impl Holds {
    /// Notes which pools and images the configuration has, whether they can be started or not.
    pub(crate) fn know(&self, pools: Vec<KnownPool>, images: Vec<KnownImage>) {
        *lock(&self.known) = pools;
        *lock(&self.images) = images;
    }

    /// The pools that the configuration has.
    pub(crate) fn known_pools(&self) -> Vec<KnownPool> {
        lock(&self.known).clone()
    }

    /// Refuses what is in a directory that a pool of this node has, whether that is up or not.
    pub(crate) fn check_outside(&self, path: &Path) -> Result<()> {
        let real = std::fs::canonicalize(path).or_else(|e| match path.parent() {
            Some(parent) => std::fs::canonicalize(parent).map(|p| p.join("new")),
            None => Err(e),
        });
        let Ok(real) = real else { return Ok(()) };
        let of = |dir: &Path| std::fs::metadata(dir).ok().and_then(|m| Identity::of(&m));
        let file = of(&real);
        let around: Vec<_> = real.ancestors().skip(1).filter_map(|d| Some((d, of(d)?))).collect();
        let refused = |dir: &Path, owner: String| {
            in_use(path, format!("`{}` is the directory of {owner}", dir.display()))
        };
        for (dir, identity) in &around {
            if let Some((owner, _)) = self.owner_of(*identity) {
                return Err(refused(dir, owner.to_string()));
            }
        }
        let known = lock(&self.known).clone();
        let all: Vec<_> =
            known.iter().flat_map(|p| p.directories.iter().map(move |(n, d)| (p, *n, d))).collect();
        let paths: Vec<_> = all.iter().map(|(.., d)| (*d).clone()).collect();
        let there = soon(&paths).map_err(|e| unusable(path, e))?;
        for ((pool, number, path), there) in all.into_iter().zip(there) {
            let is_it =
                |(_, i): &&(&Path, Identity)| there.as_ref().is_some_and(|t| t.identity == *i);
            let mine =
                |dir: &Path| labelled(dir).is_some_and(|l| (l.pool, l.device) == (pool.id, number));
            // The file may have another name as well, or be mounted by itself. One that is up is held.
            let is_free = |file: &Identity| self.owner_of(*file).is_none();
            let file = file.filter(|_| there.is_some()).filter(is_free);
            if file.is_some_and(|file| mine(path) && has(path, file, |_| true)) {
                let why = format!("it is a file of pool `{}`, in `{}`", pool.name, path.display());
                return Err(in_use(&real, why));
            }
            // That is up.
            if self.kept(&Owner::Pool(pool.name.clone()), path).is_some() {
                continue;
            }
            // It may be mounted elsewhere now. Where its own path leads to it still, this is a copy.
            let is_moved = || there.is_none() || !mine(path);
            let moved = || around.iter().find(|(dir, _)| is_moved() && mine(dir));
            if let Some((dir, _)) = around.iter().find(is_it).or_else(moved) {
                return Err(refused(dir, format!("pool `{}`", pool.name)));
            }
        }
        Ok(())
    }

    /// Refuses a file that is a volume's in a directory of a pool of this node, whether that is up or not. What else is in there, or below
    /// it, may be its owner's for longer than the directory is the pool's.
    pub(super) fn check_no_file(&self, path: &Path, file: Identity) -> Result<()> {
        if matches!(file, Identity::Block(_)) {
            return Ok(());
        }
        let around = std::fs::canonicalize(path).ok();
        let around = around.as_deref().and_then(Path::parent);
        let known = lock(&self.known).clone();
        let all: Vec<_> =
            known.iter().flat_map(|p| p.directories.iter().map(move |(n, d)| (p, *n, d))).collect();
        let paths: Vec<_> = all.iter().map(|(.., d)| (*d).clone()).collect();
        let there = soon(&paths).map_err(|e| unusable(path, e))?;
        for ((pool, number, at), there) in all.into_iter().zip(there) {
            let mine = |dir: &&Path| {
                labelled(dir).is_some_and(|l| (l.pool, l.device) == (pool.id, number))
            };
            // Its label may be gone, or not be readable now.
            let own = there.map(|_| at.as_path());
            // It may be mounted elsewhere now. Where its own path leads to it still, that is a copy.
            let moved = around.filter(|dir| !own.as_ref().is_some_and(mine) && mine(dir));
            let mut dirs = own.into_iter().chain(moved);
            if let Some(dir) = dirs.find(|dir| has(dir, file, is_volumes)) {
                let why = format!("it is a file of pool `{}`, in `{}`", pool.name, dir.display());
                return Err(in_use(path, why));
            }
        }
        Ok(())
    }

    /// Refuses a file or disk that a volume is, which is not up: by whichever name it is reached, and also where it has another one
    /// than it had, as far as its `lasting` name tells. A disk and its partitions are one: what it is, is given with `all` of these.
    /// Where nothing but its path tells what the volume is, what this `owner` has at that path is not it.
    pub(crate) fn check_image(
        &self,
        path: &Path,
        all: &[Identity],
        lasting: Option<&str>,
        owner: Option<&Owner>,
    ) -> Result<()> {
        let mut known = lock(&self.images).clone();
        // One that is up is held, by its own volume: somebody else may have what has its path now.
        let place = |image: &KnownImage| Owner::Place(image.volume.clone(), image.place);
        let is_owners = |image: &KnownImage| {
            let told = image.identity.as_deref().is_some_and(says_where);
            let held = owner.filter(|_| !told).and_then(|o| self.kept(o, &image.path));
            held.is_some_and(|h| all.contains(&h.identity()))
        };
        known.retain(|image| self.kept(&place(image), &image.path).is_none() && !is_owners(image));
        let paths: Vec<_> = known.iter().map(|image| image.path.clone()).collect();
        let now = soon(&paths).map_err(|e| unusable(path, e))?;
        for (image, now) in known.iter().zip(now) {
            let recorded = image.identity.as_deref();
            let is_same = |a: Option<&str>, b: Option<&str>| match (a, b) {
                (Some(a), Some(b)) => same_name(a, b),
                _ => true,
            };
            let there = now.as_ref().filter(|t| is_same(recorded, t.lasting.as_deref()));
            // It may have another name now. Where its own leads to it still, this is a copy of its file system.
            let is_moved = || {
                let told = recorded.filter(|r| says_where(r) && there.is_none());
                told.zip(lasting).is_some_and(|(r, l)| overlap(r, l))
            };
            if there.is_some_and(|t| all.contains(&t.identity)) || is_moved() {
                let why = format!("it is volume `{}`, which is not open", image.volume);
                return Err(in_use(path, why).hint(format!(
                    "`weir volume show {}` tells how that stands; once it is deleted the file may be used",
                    image.volume
                )));
            }
        }
        Ok(())
    }

    /// Whether a device carries the label of this pool. Refuses one that carries the label of another pool of this node: also
    /// while that is not up, by whichever name it is reached, and whatever may be overwritten.
    pub(crate) fn check_belongs(
        &self,
        held: &Held,
        path: &Path,
        pool: Option<&str>,
    ) -> Result<bool> {
        self.check_labels(&labels(held, path)?, path, pool)
    }

    /// The same of the labels that it carries.
    pub(super) fn check_labels(
        &self,
        labels: &[Found],
        path: &Path,
        pool: Option<&str>,
    ) -> Result<bool> {
        let known = lock(&self.known);
        let carried = |p: &&KnownPool| labels.iter().any(|l| l.pool == p.id);
        let mut owners = known.iter().filter(carried).map(|p| &p.name);
        let mut own = false;
        match owners.find(|name| {
            own |= pool == Some(name.as_str());
            pool != Some(name.as_str())
        }) {
            Some(other) => Err(in_use(path, format!("it is a device of this node's pool `{other}`"))
                .hint(format!("`weir pool show {other}` tells how that pool stands; once it is deleted or released the device may be used"))),
            None => Ok(own),
        }
    }

    /// Refuses what is to be a volume again, and carries the label of a pool of this node: that device has come here since. What cannot
    /// be read is not judged here.
    pub(super) fn check_no_label(&self, held: &Held, path: &Path) -> Result<()> {
        match self.check_belongs(held, path, None) {
            Err(e) if e.code != Code::IoError => Err(e),
            _ => Ok(()),
        }
    }

    /// Refuses what carries the label of another device than this `number` of its own plain pool: it is a path to that one, or a copy
    /// of it. In a protected pool the store looks for that.
    pub(super) fn check_no_twin(
        &self,
        labels: &[Found],
        path: &Path,
        (pool, number): (Option<&str>, Option<u32>),
    ) -> Result<()> {
        let known = lock(&self.known).clone();
        let Some(p) = known.iter().find(|p| pool == Some(p.name.as_str())) else {
            return Ok(());
        };
        let is_one = |n: &u32| (*n as usize) < p.devices && Some(*n) != number;
        let of = |l: &Found| l.number.filter(|n| l.pool == p.id && is_one(n));
        match labels.iter().find_map(of) {
            None => Ok(()),
            Some(n) => Err(in_use(path, format!("it carries the label of device {n} of this pool, and is that or a copy of it")).hint(
                "name another device; if it is no path to that disk, but a copy that nobody needs, erase its first and last MiB",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_store::format::label::Layout;

    #[test]
    fn files_of_volumes_are_known_by_their_names() {
        assert!(is_volumes("v.0123abcd.img") && is_volumes("a.b.00000000.img"));
        for name in ["v.img", "v.0123abc.img", "v.0123ABCD.img", ".0123abcd.img", "v.0123abcd"] {
            assert!(!is_volumes(name), "{name}");
        }
    }

    #[test]
    fn a_label_tells_where_its_device_is() {
        let (pool, size) = (PoolId(7), 8 << 20);
        let plain = Plain { pool, device: 2, size }.encode();
        let found = |label, at, from, to| Some(Span { label, at, from, to });
        let label = Found { pool, number: Some(2) };
        let (to, behind) = (size + PAGE, 512 * PAGE);
        assert_eq!(span(&plain, size), found(label, size, 0, to));
        let at = size + behind;
        assert_eq!(span(&plain, at), found(label, at, behind, behind + to));
        // It is not where it was written.
        assert_eq!(span(&plain, PAGE), found(label, PAGE, PAGE, 2 * PAGE));
        let layout = Layout::plan(64 << 8, 10, 1024, 4, 16).expect("it fits");
        let (label, len) = (Found { pool, number: None }, (64 << 8) * PAGE);
        for copy in 0..4 {
            let l = Label { pool: 7, device: 1, layout, incompat: 0, compat: 0, copy };
            let at = (1 << 20) + layout.label(copy.into()) * PAGE;
            let page = l.encode();
            assert_eq!(span(&page[..], at), found(label, at, 1 << 20, (1 << 20) + len), "{copy}");
        }
        assert_eq!(span(&[0; PAGE as usize], 0), None);
    }
}
