//! Processes that have something open.

use std::cell::OnceCell;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};

/// File systems of this machine's kernel, by the begin of their names. To ask what a file of another one is may take for ever: its
/// server, or a program, may have stopped.
const NEAR: [&str; 11] = [
    "devtmpfs", "tmpfs", "ramfs", "rootfs", "overlay", "ext", "xfs", "btrfs", "f2fs", "bcachefs",
    "zfs",
];

/// Whether a file system of this kind answers by itself.
pub(super) fn is_near(kind: &str) -> bool {
    NEAR.iter().any(|near| kind.starts_with(near))
}

/// Which descriptors are asked what they are.
#[derive(Debug, Clone, Copy)]
pub(super) enum Asked {
    /// Those of files with this number in their file system.
    Inode(u64),
    /// Those of any file of a file system that answers by itself: there may be a node of a device anywhere, as in a container.
    Near,
}

/// A process that has it open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opener {
    /// Its number.
    pub pid: u32,
    /// What its program is called.
    pub name: String,
}

/// Other processes that have the block device of this number (`st_rdev`) open, for reading or writing, as far as this one may see. The
/// node that they have opened may be anywhere but on a file system of another machine.
pub fn openers(number: u64) -> impl Iterator<Item = Opener> {
    processes()
        .filter(move |p| p.has(Asked::Near, false, |m| is_device(m, &[number])))
        .map(Process::told)
}

/// The first other process that has open for writing what is asked for and `is_it`.
pub(super) fn writer(asked: Asked, is_it: impl Fn(&Metadata) -> bool) -> Option<Opener> {
    processes().find(|p| p.has(asked, true, &is_it)).map(Process::told)
}

/// Whether a file is a block device of one of these numbers.
pub(super) fn is_device(meta: &Metadata, numbers: &[u64]) -> bool {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    meta.file_type().is_block_device() && numbers.contains(&meta.rdev())
}

/// One below `/proc`.
struct Process {
    pid: u32,
    dir: PathBuf,
    /// What is mounted where it is, read when that is asked.
    mounts: OnceCell<String>,
}

fn processes() -> impl Iterator<Item = Process> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|p| {
        let pid = p.file_name().to_str()?.parse().ok()?;
        (pid != std::process::id()).then(|| Process::at(pid, p.path()))
    })
}

impl Process {
    fn at(pid: u32, dir: PathBuf) -> Process {
        Process { pid, dir, mounts: OnceCell::new() }
    }

    fn told(self) -> Opener {
        let name = fs::read_to_string(self.dir.join("comm")).unwrap_or_default();
        Opener { pid: self.pid, name: name.trim_end().to_owned() }
    }

    fn has(&self, asked: Asked, writing: bool, is_it: impl Fn(&Metadata) -> bool) -> bool {
        let fds = fs::read_dir(self.dir.join("fdinfo")).into_iter().flatten().flatten();
        fds.map(|fd| fd.file_name()).any(|fd| {
            self.is_asked(&fd, asked, writing) && {
                // What has a name in a container may be another thing here, so the descriptor itself is asked.
                fs::metadata(self.dir.join("fd").join(&fd)).is_ok_and(|m| is_it(&m))
            }
        })
    }

    /// Whether a descriptor is to be asked what it is. The tables tell without a question to its file system, which may not answer.
    fn is_asked(&self, fd: &OsStr, asked: Asked, writing: bool) -> bool {
        let info = fs::read_to_string(self.dir.join("fdinfo").join(fd)).unwrap_or_default();
        let of = |key: &str| info.lines().find_map(|l| l.strip_prefix(key)).map(str::trim);
        let flags = of("flags:").and_then(|f| u32::from_str_radix(f, 8).ok()).unwrap_or(0);
        if writing && flags & 3 == 0 {
            return false;
        }
        match asked {
            Asked::Inode(number) => of("ino:").is_some_and(|n| n.parse() == Ok(number)),
            Asked::Near => {
                let name = fs::read_link(self.dir.join("fd").join(fd)).unwrap_or_default();
                // Sockets, pipes and the like have no such name.
                name.is_absolute() && self.is_near(&name, of("mnt_id:").unwrap_or_default())
            }
        }
    }

    /// Whether a file is on a file system of this machine's kernel. Of a mount that the process does not see its name has to say that.
    fn is_near(&self, name: &Path, mount: &str) -> bool {
        let read = || fs::read_to_string(self.dir.join("mountinfo")).unwrap_or_default();
        match kind_of_mount(self.mounts.get_or_init(read), mount) {
            Some(kind) => is_near(kind),
            None => name.starts_with("/dev"),
        }
    }
}

/// The file system that is mounted with this number, by the text of `mountinfo` (proc_pid_mountinfo(5)).
fn kind_of_mount<'a>(mountinfo: &'a str, id: &str) -> Option<&'a str> {
    let line = mountinfo.lines().find(|l| l.split(' ').next() == Some(id))?;
    line.split_once(" - ")?.1.split(' ').next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::process::Command;

    fn me() -> Process {
        Process::at(std::process::id(), "/proc/self".into())
    }

    #[test]
    fn what_is_open_is_known_by_what_it_is() {
        let path = std::env::temp_dir().join(format!("weir-openers-{}", std::process::id()));
        let file = fs::File::create(&path).unwrap();
        let meta = file.metadata().unwrap();
        let is_it = |m: &Metadata| (m.dev(), m.ino()) == (meta.dev(), meta.ino());
        for asked in [Asked::Inode(meta.ino()), Asked::Near] {
            assert!(me().has(asked, true, is_it) && !me().has(asked, true, |_| false));
        }
        assert!(!me().has(Asked::Inode(meta.ino() + 1), true, is_it));
        let read = fs::File::open(&path).unwrap();
        drop(file);
        assert!(me().has(Asked::Near, false, is_it) && !me().has(Asked::Near, true, is_it));
        drop(read);
        fs::remove_file(&path).unwrap();
        // This process itself is none.
        assert!(processes().all(|p| p.pid != std::process::id()));
    }

    /// As a container has it that is given a disk under another name.
    #[test]
    fn a_device_that_is_open_by_another_node_is_open() {
        let node = std::env::temp_dir().join(format!("weir-node-{}", std::process::id()));
        let made = Command::new("mknod").arg(&node).args(["c", "1", "3"]).status();
        let may = made.is_ok_and(|s| s.success());
        let null = fs::metadata("/dev/null").unwrap().rdev();
        // Nor may it be opened where such file systems have no devices.
        if let Some(file) = may.then(|| fs::File::options().write(true).open(&node).ok()).flatten()
        {
            // Others here have /dev/null open, too.
            let inode = file.metadata().unwrap().ino();
            let is_it = |m: &Metadata| m.rdev() == null && m.ino() == inode;
            assert!(me().has(Asked::Near, true, is_it));
        }
        drop(fs::remove_file(&node));
    }

    #[test]
    fn a_file_of_another_machine_is_not_asked() {
        let mounts = "22 1 0:5 / /dev rw - devtmpfs udev rw\n9 1 0:6 / /n rw shared:1 - nfs4 srv:/ rw\n\
             10 1 0:7 / /v rw - virtiofs share rw\n";
        assert_eq!(kind_of_mount(mounts, "22"), Some("devtmpfs"));
        assert_eq!(kind_of_mount(mounts, "9"), Some("nfs4"));
        assert_eq!(kind_of_mount(mounts, "2"), None);
        let p = me();
        p.mounts.set(mounts.into()).unwrap();
        let near = |name: &str, id| p.is_near(Path::new(name), id);
        assert!(near("/data/disk", "22") && !near("/n/disk", "9") && !near("/v/disk", "10"));
        assert!(near("/dev/sda", "7") && !near("/n/disk", "7"));
    }
}
