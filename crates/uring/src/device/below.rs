//! What a block device is made of. The kernel gives md, device mapper and partitions what is below them for themselves. A loop
//! device takes its file or device beside whoever has it.

use super::Identity;
use super::extent::Extent;
use super::loops::{Info, made_from};
use super::openers::{Asked, writer};
use super::soon::soon_at;
use super::users::{
    first_line, holders, in_use_but_for_loops, is_claimed, loops_of, node as node_of, number,
    of_number, opened_by, same_disk,
};
use std::fs;
use std::path::{Path, PathBuf};

/// More devices on one another than anybody has.
const DEEPEST: usize = 16;

/// What a loop device is made of, which is, or is part of, what was asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The loop device.
    pub of: PathBuf,
    /// What it is.
    pub identity: Identity,
    /// The name of that when the loop device was made, as far as it is known. It may lead elsewhere by now.
    pub name: PathBuf,
    /// Which bytes of it what was asked about shows.
    pub bytes: Extent,
    /// Other devices that show some of these, and which of their own: loop devices, and what is made of these.
    pub beside: Vec<(PathBuf, Extent)>,
}

/// Who uses a block device, in words, but for loop devices: these have it open in no process, and do not claim it. If `is_own`,
/// the caller does.
fn in_use(node: Option<&Path>, identity: Identity, is_own: bool) -> Option<String> {
    let opened = || opened_by(node.unwrap_or(Path::new("")), identity);
    // Somebody may have mounted it elsewhere.
    let claimed = || (!is_own && is_claimed(node?)).then(|| "somebody has it for himself".into());
    in_use_but_for_loops(identity).or_else(opened).or_else(claimed)
}

impl Part {
    /// Who uses it beside that loop device, in words: a mount, swap, what is made of it, a process that writes, a claim; of another
    /// device that shows some of the same as well. A claim is the caller's own where `is_own` says so.
    pub fn used_by(&self, is_own: impl Fn(Extent) -> bool) -> Option<String> {
        let of_it = match self.identity {
            Identity::Block(dev) => {
                // In a container the name may be all that there is.
                let is_it = |m: fs::Metadata| Identity::of(&m) == Some(self.identity);
                let named = || fs::metadata(&self.name).is_ok_and(is_it).then(|| self.name.clone());
                let node = node_of(dev).or_else(named);
                in_use(node.as_deref(), self.identity, is_own(self.bytes))
            }
            Identity::Inode(_, inode) => in_use_but_for_loops(self.identity).or_else(|| {
                let found =
                    writer(Asked::Inode(inode), |m| Identity::of(m) == Some(self.identity))?;
                Some(format!("process {} ({}) has it open", found.pid, found.name))
            }),
        };
        of_it.or_else(|| used_beside(&self.beside, is_own))
    }
}

/// Who uses one of these, in words, as [`Part::used_by`].
pub fn used_beside(all: &[(PathBuf, Extent)], is_own: impl Fn(Extent) -> bool) -> Option<String> {
    all.iter().find_map(|(node, bytes)| {
        let why = in_use(Some(node), bytes.of, is_own(*bytes))?;
        Some(format!("by {}, {why}", node.display()))
    })
}

/// The loop devices that show some of these bytes, as far as they say so, with all that is made of these; and which of their bytes do.
pub fn above(bytes: Extent) -> Vec<(PathBuf, Extent)> {
    let mut found = Vec::new();
    climb(bytes, &[], &mut found, DEEPEST);
    found
}

/// The loop devices that show these bytes.
fn loops_on(bytes: Extent) -> Vec<(PathBuf, Extent)> {
    let shown = |(node, info): (PathBuf, Info)| {
        let identity = fs::metadata(&node).ok().and_then(|m| Identity::of(&m));
        let shown = identity.and_then(|identity| info.extent().shown(identity, bytes));
        shown.map(|shown| (node, shown))
    };
    loops_of(bytes.of).into_iter().filter_map(shown).collect()
}

/// What the kernel has made of these bytes.
fn holders_of(bytes: Extent) -> Vec<(PathBuf, Extent)> {
    let Identity::Block(dev) = bytes.of else { return Vec::new() };
    let all = same_disk(dev).into_iter();
    let shows = |dev: &u64| Extent::all(Identity::Block(*dev)).shown(bytes.of, bytes).is_some();
    // Where a holder has which bytes is its own to know.
    let holders = all.filter(shows).flat_map(holders);
    holders.filter_map(|h| Some((node_of(h)?, Extent::all(Identity::Block(h))))).collect()
}

/// What shows these bytes, but for the devices with these numbers.
fn climb(bytes: Extent, but: &[u64], found: &mut Vec<(PathBuf, Extent)>, deepest: usize) {
    let mut next = loops_on(bytes);
    next.append(&mut holders_of(bytes));
    climb_by(next, but, found, deepest);
}

/// The same by these, which show them.
fn climb_by(
    all: Vec<(PathBuf, Extent)>,
    but: &[u64],
    found: &mut Vec<(PathBuf, Extent)>,
    deepest: usize,
) {
    let Some(left) = deepest.checked_sub(1) else { return };
    for (node, shown) in all {
        let is_it = |dev: &u64| shown.of == Identity::Block(*dev);
        if !but.iter().any(is_it) && found.iter().all(|(_, known)| *known != shown) {
            found.push((node, shown));
            climb(shown, but, found, left);
        }
    }
}

/// What a device is made of, where others may show that as well.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Below {
    /// What loop devices have that it is made of.
    pub parts: Vec<Part>,
    /// Loop devices that show what the kernel has made it of otherwise, and what is made of these: they take that beside it.
    pub beside: Vec<(PathBuf, Extent)>,
}

/// What this is made of, down to the ground, as far as it is known here: in a container loop devices may have no nodes, and their
/// files no names.
///
/// # Errors
/// A loop device does not answer, in words.
pub fn below(identity: Identity, path: &Path) -> Result<Below, String> {
    below_bytes((identity, path), Extent::all(identity))
}

/// The same of these bytes of it only.
///
/// # Errors
/// As there.
pub fn below_bytes((identity, path): (Identity, &Path), bytes: Extent) -> Result<Below, String> {
    let mut found = Below::default();
    // A partition's node is not its disk's.
    let node = Some(path).filter(|_| bytes.of == identity);
    walk(bytes, node, &mut found, &mut Vec::new())?;
    Ok(found)
}

/// `node` is that of the device that these bytes are of, if it is known; `from` are those that led here.
fn walk(
    bytes: Extent,
    node: Option<&Path>,
    found: &mut Below,
    from: &mut Vec<u64>,
) -> Result<(), String> {
    let Identity::Block(dev) = bytes.of else { return Ok(()) };
    if from.len() >= DEEPEST {
        return Ok(());
    }
    from.push(dev);
    let done = step((dev, bytes), node, found, from);
    from.pop();
    done
}

fn step(
    (dev, bytes): (u64, Extent),
    node: Option<&Path>,
    found: &mut Below,
    from: &mut Vec<u64>,
) -> Result<(), String> {
    let sys = PathBuf::from(format!("/sys/dev/block/{}", number(dev)));
    let slaves = fs::read_dir(sys.join("slaves")).into_iter().flatten().flatten();
    for below in slaves.filter_map(|s| of_number(&first_line(s.path().join("dev"))?)) {
        // Which bytes of it are where is known to what is made of it, and so is what else the kernel has made of it.
        let bytes = Extent::all(Identity::Block(below));
        climb_by(loops_on(bytes), from, &mut found.beside, DEEPEST);
        walk(bytes, None, found, from)?;
    }
    let Some(name) = first_line(sys.join("loop/backing_file")).map(PathBuf::from) else {
        return Ok(());
    };
    let dir = fs::canonicalize(&sys).ok();
    let last = dir.as_ref().and_then(|dir| dir.file_name()).unwrap_or_default();
    let node = node.map_or_else(|| Path::new("/dev").join(last), Path::to_owned);
    let told = made_from(&node);
    let told = told.map_err(|()| format!("{} does not say what it is made of", node.display()))?;
    let (identity, shown) = match told {
        Some(info) => (info.identity(), info.extent()),
        // Where it cannot be asked, its file is known by name only.
        None => {
            let Some(there) = soon_at(&name).map_err(|e| e.to_string())? else { return Ok(()) };
            let told = |of: &str| first_line(sys.join(of))?.parse().ok();
            let (offset, limit) = (told("loop/offset"), told("loop/sizelimit"));
            let all = Extent::all(there.identity);
            (there.identity, all.piece(offset.unwrap_or(0), limit.unwrap_or(0)))
        }
    };
    let bytes = shown.below(bytes);
    let mut beside = Vec::new();
    climb(bytes, from, &mut beside, DEEPEST);
    found.parts.push(Part { of: node, identity, name, bytes, beside });
    walk(bytes, None, found, from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_made_of_nothing() {
        let path = Path::new("/dev/none");
        assert_eq!(below(Identity::Inode(8, 12), path), Ok(Below::default()));
        // No device has this number.
        let none = Identity::Block(libc::makedev(0xfff, 0xfffff));
        assert_eq!(below(none, path), Ok(Below::default()));
    }
}
