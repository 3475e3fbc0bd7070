//! What a disk was really asked for, and how its files get out of the page cache.

use super::run;
use crate::scenario::ScenarioError;
use std::path::Path;
use std::process::Command;

/// Bytes of a sector, as the kernel counts.
const SECTOR: u64 = 512;

/// Bytes that went from and to a disk since it is there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::scenario) struct Traffic {
    pub(in crate::scenario) read: u64,
    pub(in crate::scenario) written: u64,
}

impl Traffic {
    /// Of this disk by now.
    pub(in crate::scenario) fn of(disk: &Path) -> Result<Traffic, ScenarioError> {
        let name = disk.file_name().unwrap_or_default();
        let file = Path::new("/sys/class/block").join(name).join("stat");
        let text = std::fs::read_to_string(&file)
            .map_err(|e| ScenarioError::System(file.display().to_string(), e))?;
        Traffic::parse(&text)
            .ok_or_else(|| ScenarioError::Io(format!("{}: `{}`", file.display(), text.trim())))
    }

    fn parse(stat: &str) -> Option<Traffic> {
        let mut words = stat.split_whitespace();
        let sectors = words.nth(2)?.parse::<u64>().ok()?;
        let written = words.nth(3)?.parse::<u64>().ok()?;
        Some(Traffic { read: sectors * SECTOR, written: written * SECTOR })
    }

    /// Between an earlier time and now.
    pub(in crate::scenario) fn since(self, before: Traffic) -> Traffic {
        Traffic {
            read: self.read.saturating_sub(before.read),
            written: self.written.saturating_sub(before.written),
        }
    }
}

/// Writes the larger files below a directory and has the page cache forget them; small ones hardly count. Only these: what
/// else the machine has in its memory is left alone.
pub(in crate::scenario) fn forget(dir: &Path) -> Result<(), ScenarioError> {
    let mut c = Command::new("find");
    c.arg(dir).args(["-type", "f", "-size", "+64k", "-exec", "dd", "of={}"]);
    c.args(["oflag=nocache", "conv=notrunc,fdatasync", "count=0", "status=none", ";"]);
    run(&mut c).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_is_read_as_the_kernel_writes_it() {
        let line = "  6 0 16 3 100 5 4096 44 0 1 2 0 0 0 0 2 7\n";
        let t = Traffic::parse(line).unwrap();
        assert_eq!(t, Traffic { read: 16 * 512, written: 4096 * 512 });
        let before = Traffic { read: 512, written: 0 };
        assert_eq!(t.since(before), Traffic { read: 15 * 512, written: 4096 * 512 });
        assert_eq!(Traffic::parse("1 2 3"), None);
    }

    #[test]
    fn files_that_are_forgotten_keep_what_is_in_them() {
        let dir = std::env::temp_dir().join(format!("weir-cold-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("below")).unwrap();
        let file = dir.join("below/file");
        std::fs::write(&file, vec![7; 200 << 10]).unwrap();
        forget(&dir).unwrap();
        assert!(std::fs::read(&file).unwrap() == vec![7; 200 << 10]);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
