//! What tells files and disks from others of their kind also after a restart of the machine.

use super::{Identity, users};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// What the kernel answers with to `FS_IOC_GETFSUUID` (linux/fs.h, from Linux 6.9 on).
#[repr(C)]
struct FsUuid {
    len: u8,
    uuid: [u8; 16],
}

/// `_IOR(0x15, 0, struct fsuuid2)`.
const GETFSUUID: u32 = 0x8011_1500;
/// Magic number of ext2 to ext4, and of btrfs (statfs(2)).
const EXT: libc::__fsword_t = 0xef53;
const BTRFS: libc::__fsword_t = 0x9123_683e;

/// What is between the name of a disk and the number of its partition.
pub(super) const PARTITION: &str = " partition ";

/// What a file system is known by over restarts, of those that say so. Its device number is not: it goes by the order in which
/// disks were found.
fn file_system(file: &File) -> Option<String> {
    // SAFETY: an all-zero statfs buffer is a valid value of that plain C struct.
    let mut s: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a valid buffer, and a descriptor that `file` owns.
    if unsafe { libc::fstatfs(file.as_raw_fd(), &mut s) } < 0 {
        return None;
    }
    // These make it of their UUID (btrfs with the subvolume), with any kernel; others may make it of the device's number.
    if [EXT, BTRFS].contains(&(s.f_type & 0xffff_ffff)) {
        // SAFETY: a plain C struct of two ints (statfs(2)), whose fields `libc` does not show.
        let [low, high]: [u32; 2] = unsafe { std::mem::transmute(s.f_fsid) };
        return (low | high != 0).then(|| format!("{low:08x}{high:08x}"));
    }
    let mut u = FsUuid { len: 0, uuid: [0; 16] };
    // SAFETY: the kernel writes one `FsUuid` to the address given.
    if unsafe { libc::ioctl(file.as_raw_fd(), GETFSUUID as _, &mut u) } < 0 || u.len != 16 {
        return None;
    }
    Some(u.uuid.iter().map(|b| format!("{b:02x}")).collect())
}

/// The lasting name of what was opened: the number of a file and its file system, the world-wide name of a disk. None where the
/// system knows none. Asks the file system, which may wait.
pub(crate) fn lasting_name(identity: Identity, file: &File) -> Option<String> {
    match identity {
        Identity::Inode(_, inode) => Some(match file_system(file) {
            Some(fs) => format!("inode {inode} of {fs}"),
            None => format!("inode {inode}"),
        }),
        Identity::Block(number) => users::world_wide_name(number),
    }
}

/// The lasting name of the file at `path`; none also of what is no file. Waits for the file system.
pub fn lasting_name_of(path: &Path) -> Option<String> {
    if !std::fs::symlink_metadata(path).ok()?.is_file() {
        return None;
    }
    let flags = libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    lasting_name(Identity::of(&file.metadata().ok()?)?, &file)
}

/// The lasting name of what is at `path`, and is this. Waits for the file system.
pub(super) fn lasting_name_at(path: &Path, identity: Identity) -> Option<String> {
    if let Identity::Block(number) = identity {
        return users::world_wide_name(number);
    }
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let is_it = Identity::of(&file.metadata().ok()?) == Some(identity);
    is_it.then(|| lasting_name(identity, &file)).flatten()
}

/// Number of a file, and its file system where that is told.
fn parts(name: &str) -> Option<(&str, Option<&str>)> {
    let file = name.strip_prefix("inode ")?;
    Some(file.split_once(" of ").map_or((file, None), |(inode, fs)| (inode, Some(fs))))
}

/// Whether two lasting names are those of one thing. Those of older programs do not say which file system a file is on; such a
/// name is compared by the number of the file only.
pub fn same_name(one: &str, other: &str) -> bool {
    match (parts(one), parts(other)) {
        (Some((a, None)), Some((b, _))) | (Some((a, _)), Some((b, None))) => a == b,
        _ => one == other,
    }
}

/// Whether a lasting name is nothing else's: it is no bare number of a file, which file systems give each by themselves.
pub fn says_where(name: &str) -> bool {
    parts(name).is_none_or(|(_, fs)| fs.is_some())
}

/// Whether things with these names have anything in common: they are the same, or one is a partition of the other, a disk.
pub fn overlap(one: &str, other: &str) -> bool {
    match (one.split_once(PARTITION), other.split_once(PARTITION)) {
        (Some((disk, _)), None) => disk == other,
        (None, Some((disk, _))) => disk == one,
        _ => one == other,
    }
}

/// Whether a thing has the lasting name that is recorded. Where none is recorded anything has it.
pub fn is_as_recorded(recorded: Option<&str>, now: Option<&str>) -> bool {
    recorded.is_none_or(|r| now.is_some_and(|n| same_name(r, n)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_one_number_on_two_file_systems_are_two() {
        assert!(same_name("inode 7 of ab", "inode 7 of ab"));
        assert!(!same_name("inode 7 of ab", "inode 7 of cd"));
        assert!(!same_name("inode 7 of ab", "inode 8 of ab"));
    }

    #[test]
    fn names_of_older_programs_are_compared_by_what_they_say() {
        assert!(same_name("inode 7", "inode 7 of ab") && same_name("inode 7 of ab", "inode 7"));
        assert!(same_name("inode 7", "inode 7") && !same_name("inode 7", "inode 8"));
        assert!(!same_name("inode 7", "inode 77 of ab"));
        assert!(same_name("naa.5 of x", "naa.5 of x") && !same_name("naa.5 of x", "naa.5"));
        assert!(!same_name("naa.5", "inode 5"));
        assert!(is_as_recorded(None, None) && is_as_recorded(None, Some("naa.5")));
        assert!(!is_as_recorded(Some("naa.5"), None));
        assert!(is_as_recorded(Some("inode 7"), Some("inode 7 of ab")));
    }

    #[test]
    fn two_paths_to_one_disk_have_one_name() {
        let (disk, first, second) = ("naa.5", "naa.5 partition 1", "naa.5 partition 2");
        assert!(overlap(disk, disk) && overlap(first, first));
        assert!(overlap(disk, first) && overlap(second, disk));
        assert!(!overlap(first, second) && !overlap(disk, "naa.55") && !overlap("naa.55", first));
    }

    #[test]
    fn a_file_has_the_name_that_it_is_held_by() {
        let path = std::env::temp_dir().join(format!("weir-lasting-{}", std::process::id()));
        std::fs::write(&path, [0; 4096]).expect("a file");
        let held = super::super::Held::open(&path, true).expect("held");
        assert_eq!(lasting_name_of(&path).as_deref(), held.lasting_name());
        assert!(held.lasting_name().is_some_and(|n| n.starts_with("inode ")));
        drop(held);
        std::fs::remove_file(&path).expect("removed");
        assert_eq!(lasting_name_of(&path), None);
    }
}
