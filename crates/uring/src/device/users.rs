//! Who else uses a file or block device: mounts, swap, loop devices, holders in the kernel, other processes.

use super::lasting::PARTITION;
use super::loops::{Below, Info, Name, all_made_of, made_of, may_be_made_of};
use super::openers::{Asked, is_device, is_near, writer};
use super::{EXCLUSIVE, Identity};
use std::fs;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Major and minor number (makedev(3), Linux).
fn major(dev: u64) -> u64 {
    ((dev >> 8) & 0xfff) | ((dev >> 32) & !0xfff)
}

fn minor(dev: u64) -> u64 {
    (dev & 0xff) | ((dev >> 12) & !0xff)
}

pub(super) fn number(dev: u64) -> String {
    format!("{}:{}", major(dev), minor(dev))
}

/// The device of a text like `8:1`.
pub(super) fn of_number(text: &str) -> Option<u64> {
    let (major, minor) = text.trim().split_once(':')?;
    Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
}

fn lines(path: impl AsRef<Path>) -> Vec<String> {
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

pub(super) fn first_line(path: impl AsRef<Path>) -> Option<String> {
    let text = lines(path).into_iter().next()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// A path as the kernel writes it into tables, where blanks are `\040` (proc(5)).
fn unescaped(text: &str) -> PathBuf {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&b, tail)) = rest.split_first() {
        let code = tail.get(..3).filter(|_| b == b'\\').and_then(|d| std::str::from_utf8(d).ok());
        match code.and_then(|d| u8::from_str_radix(d, 8).ok()) {
            Some(c) => {
                out.push(c);
                rest = &tail[3..];
            }
            None => {
                out.push(b);
                rest = tail;
            }
        }
    }
    use std::os::unix::ffi::OsStringExt;
    PathBuf::from(std::ffi::OsString::from_vec(out))
}

fn is(path: &Path, identity: Identity) -> bool {
    fs::metadata(path).ok().and_then(|m| Identity::of(&m)) == Some(identity)
}

/// A line of the table of mounts: device number, where, kind of file system, and what of.
struct Mount {
    number: String,
    at: PathBuf,
    kind: String,
    source: String,
}

fn mounts() -> Vec<Mount> {
    let parse = |l: &String| {
        let (head, tail) = l.split_once(" - ")?;
        let mut head = head.split(' ');
        let number = head.nth(2)?.to_owned();
        let at = unescaped(head.nth(1)?);
        let mut tail = tail.split(' ').map(str::to_owned);
        Some(Mount { number, at, kind: tail.next()?, source: tail.next().unwrap_or_default() })
    };
    lines("/proc/self/mountinfo").iter().filter_map(parse).collect()
}

/// Who in the kernel uses this: a mounted file system, swap, a loop device, md, LVM and the like. Partitions of a disk
/// count as the disk. None: nobody who can be told.
pub fn used_by(identity: Identity) -> Option<String> {
    in_use_but_for_loops(identity).or_else(|| match identity {
        Identity::Block(dev) => loop_of_device(&same_disk(dev)),
        Identity::Inode(dev, inode) => file_used_by(dev, inode),
    })
}

/// The same without loop devices.
pub(super) fn in_use_but_for_loops(identity: Identity) -> Option<String> {
    let swaps = lines("/proc/swaps");
    let swap = |l: &&String| {
        let name = l.split_whitespace().next().map(unescaped);
        name.is_some_and(|p| is(&p, identity))
    };
    if swaps.iter().skip(1).any(|l| swap(&l)) {
        return Some("it is swap space".into());
    }
    match identity {
        Identity::Block(dev) => block_used_by(dev),
        Identity::Inode(..) => None,
    }
}

/// The block device of this number, with its partitions, or the disk that it is a partition of.
pub(super) fn same_disk(dev: u64) -> Vec<u64> {
    let sys = PathBuf::from(format!("/sys/dev/block/{}", number(dev)));
    let of = |dir: PathBuf| of_number(&first_line(dir.join("dev"))?);
    let subs = fs::read_dir(&sys).into_iter().flatten().flatten().map(|d| d.path());
    let parts = subs.filter(|d| d.join("partition").exists()).filter_map(of);
    let disk = sys.join("partition").exists().then(|| of(sys.join(".."))).flatten();
    std::iter::once(dev).chain(parts).chain(disk).collect()
}

/// Of a partition: its disk, and between which bytes of that it is. Where that is not known it is all of it.
pub(super) fn partition(dev: u64) -> Option<(u64, u64, u64)> {
    let sys = PathBuf::from(format!("/sys/dev/block/{}", number(dev)));
    if !sys.join("partition").exists() {
        return None;
    }
    let disk = of_number(&first_line(sys.join("../dev"))?)?;
    // The kernel counts in sectors of 512 bytes, whatever the disk's are.
    let bytes = |of: &str| Some(first_line(sys.join(of))?.parse::<u64>().ok()?.saturating_mul(512));
    let place = bytes("start").zip(bytes("size"));
    Some(place.map_or((disk, 0, u64::MAX), |(at, len)| (disk, at, at.saturating_add(len))))
}

/// The node that the system has of a block device, if it has one here.
pub(super) fn node(dev: u64) -> Option<PathBuf> {
    let told = lines(format!("/sys/dev/block/{}/uevent", number(dev)));
    let name = told.iter().find_map(|l| l.strip_prefix("DEVNAME="))?;
    let node = Path::new("/dev").join(name);
    is(&node, Identity::Block(dev)).then_some(node)
}

/// The same of what is one.
pub fn node_of(identity: Identity) -> Option<PathBuf> {
    match identity {
        Identity::Block(dev) => node(dev),
        Identity::Inode(..) => None,
    }
}

/// What the kernel has made of a block device, as device mapper and md do; not of its partitions.
pub(super) fn holders(dev: u64) -> Vec<u64> {
    let all = fs::read_dir(format!("/sys/dev/block/{}/holders", number(dev)));
    let all = all.into_iter().flatten().flatten().map(|h| h.path().join("dev"));
    all.filter_map(|path| of_number(&first_line(path)?)).collect()
}

fn block_used_by(dev: u64) -> Option<String> {
    let sys = PathBuf::from(format!("/sys/dev/block/{}", number(dev)));
    let mut all = vec![(number(dev), sys.clone())];
    for sub in fs::read_dir(&sys).into_iter().flatten().flatten() {
        if sub.path().join("partition").exists() {
            all.push((first_line(sub.path().join("dev")).unwrap_or_default(), sub.path()));
        }
    }
    let mounts = mounts();
    for (number, sys) in &all {
        // A file system of several devices has a number of its own; its source is one of them.
        let source = |m: &Mount| {
            let meta = m.source.starts_with("/dev/").then(|| fs::metadata(unescaped(&m.source)));
            meta.is_some_and(|m| m.is_ok_and(|m| super::users::number(m.rdev()) == *number))
        };
        if let Some(m) = mounts.iter().find(|m| m.number == *number || source(m)) {
            let at = m.at.display();
            return Some(format!("it, or a partition of it, is mounted at {at}"));
        }
        let mut holders = fs::read_dir(sys.join("holders")).into_iter().flatten().flatten();
        if let Some(h) = holders.next() {
            return Some(format!("{} is made of it", h.file_name().display()));
        }
    }
    None
}

/// The loop device that is made of a device of one of these numbers, in words.
pub(super) fn loop_of_device(numbers: &[u64]) -> Option<String> {
    let mounts = mounts();
    made_of(Below::Device(numbers), |path| name_of_device(&mounts, path, numbers))
}

fn name_of_device(mounts: &[Mount], path: &Path, numbers: &[u64]) -> Name {
    match on(mounts, path) {
        // A file of another machine is not looked at: its file system may not answer.
        Some(m) if !is_near(&m.kind) => Name::Elsewhere,
        _ => match fs::metadata(path).is_ok_and(|m| is_device(&m, numbers)) {
            true => Name::Same,
            false => Name::Other,
        },
    }
}

fn file_used_by(dev: u64, inode: u64) -> Option<String> {
    let mounts = mounts();
    made_of(Below::File(dev, inode), |path| name_of_file(&mounts, path, (dev, inode)))
}

fn name_of_file(mounts: &[Mount], path: &Path, (dev, inode): (u64, u64)) -> Name {
    match on(mounts, path) {
        // So is one here, but for those of the file system in question.
        Some(m) if !is_near(&m.kind) && m.number != number(dev) => Name::Elsewhere,
        _ => match is(path, Identity::Inode(dev, inode)) {
            true => Name::Same,
            false => Name::Other,
        },
    }
}

/// The loop devices that are made of this, or of its disk or partitions.
pub(super) fn loops_of(identity: Identity) -> Vec<(PathBuf, Info)> {
    let mounts = mounts();
    match identity {
        Identity::Block(dev) => {
            let all = same_disk(dev);
            all_made_of(Below::Device(&all), |path| name_of_device(&mounts, path, &all))
        }
        Identity::Inode(dev, inode) => {
            let file = (dev, inode);
            all_made_of(Below::File(dev, inode), |path| name_of_file(&mounts, path, file))
        }
    }
}

/// The loop devices, but for these, that may be made of this, or of its disk or partitions, and do not say so: they do not answer, or
/// are known by a name only.
pub fn unclear_loops(identity: Identity, but: &[Identity]) -> Vec<PathBuf> {
    let mounts = mounts();
    let mut all = match identity {
        Identity::Block(dev) => {
            let all = same_disk(dev);
            may_be_made_of(|path| name_of_device(&mounts, path, &all))
        }
        Identity::Inode(dev, inode) => {
            may_be_made_of(|path| name_of_file(&mounts, path, (dev, inode)))
        }
    };
    // Its node may have another name here, or none.
    let number = |node: &Path| {
        let sys = Path::new("/sys/block").join(node.file_name()?);
        of_number(&first_line(sys.join("dev"))?)
    };
    all.retain(|node| number(node).is_none_or(|dev| !but.contains(&Identity::Block(dev))));
    all
}

/// This, and what it is part of, and its parts: of a block device its disk and partitions.
pub fn all_of(identity: Identity) -> Vec<Identity> {
    match identity {
        Identity::Block(dev) => same_disk(dev).into_iter().map(Identity::Block).collect(),
        inode => vec![inode],
    }
}

/// The mount that a file with this name is on.
fn on<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    let of = mounts.iter().filter(|m| path.starts_with(&m.at));
    of.max_by_key(|m| m.at.as_os_str().len())
}

/// Another process that has this open for writing, as far as this one may see. None: none that can be seen.
pub fn opened_by(path: &Path, identity: Identity) -> Option<String> {
    let found = match identity {
        Identity::Block(number) => {
            let all = same_disk(number);
            writer(Asked::Near, |m| is_device(m, &all))
        }
        Identity::Inode(..) => {
            let inode = fs::metadata(path).ok()?.ino();
            writer(Asked::Inode(inode), |m| Identity::of(m) == Some(identity))
        }
    }?;
    Some(format!("process {} ({}) has it open", found.pid, found.name))
}

/// Whether a process still runs: one that was killed and not looked after yet does not.
fn is_alive(pid: u32) -> bool {
    let stat = first_line(format!("/proc/{pid}/stat"));
    let state = stat.as_deref().and_then(|s| s.rsplit_once(") ")?.1.chars().next());
    state.is_some_and(|s| !matches!(s, 'Z' | 'X'))
}

/// The process that has a file locked, as far as the kernel tells; none also when that process has ended and only its last
/// writes hold the lock.
pub fn locked_by(path: &Path) -> Option<u32> {
    let meta = fs::metadata(path).ok()?;
    let file = format!("{:02x}:{:02x}:{}", major(meta.dev()), minor(meta.dev()), meta.ino());
    let of = |l: &String| {
        let words: Vec<&str> = l.split_whitespace().collect();
        let pid = words.get(4)?.parse().ok()?;
        (words.get(5) == Some(&file.as_str()) && is_alive(pid)).then_some(pid)
    };
    lines("/proc/locks").iter().find_map(of)
}

/// Whether the system has a block device of this number still: one that was pulled keeps it as long as it is open.
pub(super) fn is_there(dev: u64) -> bool {
    fs::exists(format!("/sys/dev/block/{}", number(dev))).unwrap_or(true)
}

/// What the system knows a block device by, whatever number it has: a partition's and a volume's own, a disk's.
pub(super) fn world_wide_name(dev: u64) -> Option<String> {
    let sys = PathBuf::from(format!("/sys/dev/block/{}", number(dev)));
    let own = ["dm/uuid", "wwid", "device/wwid", "device/serial", "serial", "md/uuid"];
    if let Some(name) = own.iter().find_map(|f| first_line(sys.join(f))) {
        return Some(name);
    }
    let part = first_line(sys.join("partition"))?;
    let disk = fs::canonicalize(&sys).ok()?.parent()?.to_path_buf();
    let name = own.iter().find_map(|f| first_line(disk.join(f)))?;
    Some(format!("{name}{PARTITION}{part}"))
}

/// The other block devices of this lasting name, with their paths.
pub fn other_paths(identity: Identity, name: &str) -> Vec<(PathBuf, Identity)> {
    let parse = |l: &String| {
        let path = Path::new("/dev").join(l.split_whitespace().nth(3)?);
        let other = Identity::of(&fs::metadata(&path).ok()?)?;
        let Identity::Block(dev) = other else { return None };
        let is_it = other != identity && world_wide_name(dev).as_deref() == Some(name);
        is_it.then_some((path, other))
    };
    lines("/proc/partitions").iter().filter_map(parse).collect()
}

/// Whether somebody has a block device for himself: it is mounted, a part of another one, or open so in a process, which may have ended
/// and have writes under way still. Whoever would claim it at this moment finds it claimed. May wait for its driver if it is not.
pub fn is_claimed(path: &Path) -> bool {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | EXCLUSIVE;
    let opened = fs::OpenOptions::new().read(true).custom_flags(flags).open(path);
    opened.is_err_and(|e| e.raw_os_error() == Some(libc::EBUSY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_the_kernel_are_read() {
        assert_eq!(unescaped(r"/a\040b\134c\01"), PathBuf::from(r"/a b\c\01"));
        assert_eq!((major(0x0010_0802), minor(0x0010_0802)), (8, 0x102));
        let root = mounts();
        assert!(root.iter().any(|m| m.at == Path::new("/")), "there is a root");
    }
}
