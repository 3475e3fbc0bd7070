//! Who uses a disk.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use weir_uring::device::{Opener, loop_on, openers};

/// For how many times as long many that look are waited for as one.
const CROWD: u32 = 5;

/// Uses of a block device (and its partitions) that stand against taking it away, in words; that by the process which
/// serves it does not.
pub(crate) fn of(device: &Path, server: u32) -> Vec<String> {
    let mut uses = lasting(device);
    uses.extend(opened(device, server).into_iter().map(|o| o.text));
    uses
}

/// A process that has a disk open.
pub(crate) struct Open {
    /// Its number.
    pub(crate) pid: u32,
    /// The use in words.
    pub(crate) text: String,
}

/// A disk and its partitions, by name.
fn disks(device: &Path) -> Vec<String> {
    let Some(name) = device.file_name().and_then(|n| n.to_str()) else { return Vec::new() };
    let mut disks = vec![name.to_owned()];
    let entries = fs::read_dir(format!("/sys/block/{name}")).into_iter().flatten().flatten();
    disks.extend(
        entries
            .filter_map(|e| e.file_name().into_string().ok())
            .filter(|n| n.starts_with(name) && n.len() > name.len()),
    );
    disks
}

/// Those that last until somebody ends them.
pub(crate) fn lasting(device: &Path) -> Vec<String> {
    let disks = disks(device);
    let Some(name) = disks.first() else { return Vec::new() };
    let mut uses = Vec::new();
    for disk in &disks {
        let numbers = number_of(name, disk);
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        uses.extend(mounted_at(&mounts, &numbers).map(|at| format!("{disk} is mounted at {at}")));
        let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
        let path = format!("/dev/{disk} ");
        if swaps.lines().any(|l| l.starts_with(&path)) {
            uses.push(format!("{disk} is swap space"));
        }
        let made = fs::metadata(Path::new("/dev").join(disk)).ok().and_then(|m| loop_on(m.rdev()));
        uses.extend(made.map(|why| format!("{disk}: {why}")));
        let holders = fs::read_dir(format!("/sys/class/block/{disk}/holders"));
        for h in holders.into_iter().flatten().flatten() {
            uses.push(format!("{disk} is part of {}", h.file_name().to_string_lossy()));
        }
    }
    uses
}

/// Those by processes that have it open, which may be for a moment; but for this one and the one that serves it.
pub(crate) fn opened(device: &Path, server: u32) -> Vec<Open> {
    let mut all = Vec::new();
    for disk in disks(device) {
        let node = Path::new("/dev").join(disk);
        let Ok(wanted) = fs::metadata(&node).map(|m| m.rdev()) else { continue };
        let told = |Opener { pid, name }: Opener| {
            let text = format!("process {pid} ({name}) has {} open", node.display());
            Open { pid, text }
        };
        all.extend(openers(wanted).filter(|p| p.pid != server).map(told));
    }
    all
}

/// Tells who keeps a disk open from those that look at it one after the other.
pub(crate) struct Lookers {
    /// At how many looks on end each had it open.
    looks: BTreeMap<u32, u32>,
    all: u32,
    enough: u32,
}

impl Lookers {
    /// Who has it open at so many looks on end keeps it.
    pub(crate) fn new(enough: u32) -> Lookers {
        Lookers { looks: BTreeMap::new(), all: 0, enough }
    }

    /// Whether it is kept, when these processes have it open at this look. Others at each look are waited for no longer than
    /// [`CROWD`] times as long.
    pub(crate) fn keep(&mut self, now: &[u32]) -> bool {
        let before = std::mem::take(&mut self.looks);
        let looks = |pid: &u32| (*pid, before.get(pid).map_or(1, |n| n + 1));
        self.looks = now.iter().map(looks).collect();
        self.all += 1;
        self.all >= CROWD * self.enough || self.looks.values().any(|n| *n >= self.enough)
    }
}

/// `major:minor` of a disk or of one of its partitions.
fn number_of(whole: &str, disk: &str) -> String {
    let path = if whole == disk {
        format!("/sys/block/{whole}/dev")
    } else {
        format!("/sys/block/{whole}/{disk}/dev")
    };
    fs::read_to_string(path).unwrap_or_default().trim_end().to_owned()
}

/// Where a device is mounted, by the lines of a `mountinfo` file.
fn mounted_at<'a>(mountinfo: &'a str, number: &'a str) -> impl Iterator<Item = String> + 'a {
    mountinfo.lines().filter_map(move |line| {
        let mut words = line.split(' ');
        let at = (words.nth(2) == Some(number)).then(|| words.nth(1)).flatten()?;
        Some(unescape(at))
    })
}

/// Blanks and the like are octal numbers behind a backslash.
fn unescape(text: &str) -> String {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| *first == b'\\');
        let octal = octal.and_then(|d| std::str::from_utf8(d).ok());
        match octal.and_then(|d| u8::from_str_radix(d, 8).ok()) {
            Some(c) => {
                out.push(c);
                rest = &tail[3..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_by_number() {
        let info = "22 1 7:3 / /mnt/a\\040b rw - ext4 /dev/loop3 rw\n23 1 7:30 / /x rw - ext4 /dev/loop30 rw\n";
        assert_eq!(mounted_at(info, "7:3").collect::<Vec<_>>(), ["/mnt/a b"]);
        assert_eq!(mounted_at(info, "7:4").count(), 0);
        assert_eq!(unescape("a\\134b\\"), "a\\b\\");
    }

    #[test]
    fn a_device_that_is_not_there_has_no_users() {
        assert!(of(Path::new("/dev/no-such-disk"), 0).is_empty());
    }

    #[test]
    fn one_that_stays_is_told_from_many_that_pass() {
        let keeps = |looks: &dyn Fn(u32) -> Vec<u32>, all: u32| {
            let mut lookers = Lookers::new(3);
            (0..all).position(|n| lookers.keep(&looks(n)))
        };
        assert_eq!(keeps(&|n| vec![n, 7000], 15), Some(2));
        // Each has it at two looks on end, and somebody at any.
        assert_eq!(keeps(&|n| vec![n, n + 1], 14), None);
        assert_eq!(keeps(&|n| vec![n, n + 1], 15), Some(14));
        assert_eq!(keeps(&|n| vec![u32::from(n == 2)], 5), None, "it was not there at each");
    }
}
