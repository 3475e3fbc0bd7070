//! What a block device is made of. The kernel gives md, device mapper and partitions what is below them for themselves. A loop
//! device takes its file or device beside whoever has it.

use super::Identity;
use super::loops::made_from;
use super::openers::{Asked, writer};
use super::soon::soon_at;
use super::users::{
    first_line, in_use_but_for_loops, is_claimed, loops_of, number, of_number, opened_by,
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
    /// Other loop devices that show some of the same.
    pub beside: Vec<(PathBuf, Identity)>,
}

impl Part {
    /// Who uses it beside that loop device, in words: a mount, swap, what is made of it, a process that writes; of another loop device
    /// that shows some of the same as well.
    pub fn used_by(&self) -> Option<String> {
        let of_it = in_use_but_for_loops(self.identity).or_else(|| {
            let found = match self.identity {
                // Its disk cannot be told from the loop device's own use.
                Identity::Block(_) => None,
                Identity::Inode(_, inode) => {
                    writer(Asked::Inode(inode), |m| Identity::of(m) == Some(self.identity))
                }
            }?;
            Some(format!("process {} ({}) has it open", found.pid, found.name))
        });
        of_it.or_else(|| {
            self.beside.iter().find_map(|(node, identity)| {
                let why = in_use_but_for_loops(*identity);
                let why = why.or_else(|| opened_by(node, *identity));
                // Somebody may have mounted it elsewhere.
                let claimed = || is_claimed(node).then(|| "somebody has it for himself".into());
                let why = why.or_else(claimed)?;
                Some(format!("by {}, {why}", node.display()))
            })
        })
    }
}

/// The loop devices that are made of this, or of its disk or partitions, as far as they say so.
pub fn loops_on(identity: Identity) -> Vec<(PathBuf, Identity)> {
    let of = |node: &Path| Identity::of(&fs::metadata(node).ok()?);
    let all = loops_of(identity).into_iter();
    all.filter_map(|(node, _)| of(&node).map(|identity| (node, identity))).collect()
}

/// What loop devices have that this is made of, down to the ground, as far as it is known here: in a container they may have
/// no nodes, and their files no names.
///
/// # Errors
/// One of them does not answer, in words.
pub fn parts(identity: Identity, path: &Path) -> Result<Vec<Part>, String> {
    let mut found = Vec::new();
    if let Identity::Block(dev) = identity {
        walk(dev, Some(path), &mut found, DEEPEST)?;
    }
    Ok(found)
}

/// `node` is that of this device, if it is known.
fn walk(
    dev: u64,
    node: Option<&Path>,
    found: &mut Vec<Part>,
    deepest: usize,
) -> Result<(), String> {
    let Some(left) = deepest.checked_sub(1) else { return Ok(()) };
    let sys = PathBuf::from(format!("/sys/dev/block/{}", number(dev)));
    let of = |dir: PathBuf| of_number(&first_line(dir.join("dev"))?);
    let disk = sys.join("partition").exists().then(|| of(sys.join(".."))).flatten();
    let slaves = fs::read_dir(sys.join("slaves")).into_iter().flatten().flatten();
    for below in disk.into_iter().chain(slaves.filter_map(|s| of(s.path()))) {
        walk(below, None, found, left)?;
    }
    let Some(name) = first_line(sys.join("loop/backing_file")).map(PathBuf::from) else {
        return Ok(());
    };
    let dir = fs::canonicalize(&sys).ok();
    let last = dir.as_ref().and_then(|dir| dir.file_name()).unwrap_or_default();
    let node = node.map_or_else(|| Path::new("/dev").join(last), Path::to_owned);
    let told = made_from(&node);
    let told = told.map_err(|()| format!("{} does not say what it is made of", node.display()))?;
    // Where it cannot be asked, its file is known by name only.
    let identity = match told {
        Some(info) => Some(info.identity()),
        None => soon_at(&name).map_err(|e| e.to_string())?.map(|there| there.identity),
    };
    let Some(identity) = identity else { return Ok(()) };
    let mut beside = loops_of(identity);
    beside.retain(|(_, info)| told.is_none_or(|mine| mine.overlaps(info)));
    let beside = beside.into_iter().filter_map(|(node, _)| {
        let identity = Identity::of(&fs::metadata(&node).ok()?)?;
        (identity != Identity::Block(dev)).then_some((node, identity))
    });
    let beside = beside.collect();
    found.push(Part { of: node, identity, name, beside });
    match identity {
        Identity::Block(below) => walk(below, None, found, left),
        Identity::Inode(..) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_made_of_nothing() {
        let path = Path::new("/dev/none");
        assert_eq!(parts(Identity::Inode(8, 12), path), Ok(Vec::new()));
        // No device has this number.
        assert_eq!(parts(Identity::Block(libc::makedev(0xfff, 0xfffff)), path), Ok(Vec::new()));
    }
}
