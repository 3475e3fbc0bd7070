//! Files that say whether whoever wrote them lives: the process keeps its file locked, and the kernel lets the lock go when the
//! process ends, however that comes. It is the same in every pid namespace, and in every run of the machine.

use serde::de::DeserializeOwned;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

/// How long those who look may have a lock.
const WAIT: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(5);

/// What the kernel says of whoever wrote a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Witness {
    /// It lives.
    Held,
    /// It has ended.
    Free,
    /// Nothing: it did not lock the file, or that cannot be asked.
    #[default]
    Unknown,
}

/// A file for what is written next.
pub(super) struct New {
    file: File,
    /// The kernel keeps it locked for this process.
    pub(super) locked: bool,
}

impl New {
    /// Makes a file where there is none.
    pub(super) fn at(path: &Path) -> io::Result<New> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(path)?;
        for _ in 0..WAIT.as_millis() / STEP.as_millis() {
            match file.try_lock() {
                Ok(()) => return Ok(New { file, locked: true }),
                Err(TryLockError::WouldBlock) => std::thread::sleep(STEP),
                Err(TryLockError::Error(_)) => break,
            }
        }
        Ok(New { file, locked: false })
    }

    /// Writes it. The lock lasts as long as the file is kept.
    pub(super) fn write(mut self, text: &[u8]) -> io::Result<File> {
        self.file.write_all(text)?;
        Ok(self.file)
    }
}

/// Reads a file that is made in this way, and asks the kernel for whoever wrote it, if that has `locked` it.
pub(super) fn read<T: DeserializeOwned>(
    path: &Path,
    locked: impl Fn(&T) -> bool,
) -> Option<(T, Witness)> {
    loop {
        let mut file =
            OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path).ok()?;
        let mut text = Vec::new();
        file.read_to_end(&mut text).ok()?;
        let what: T = serde_json::from_slice(&text).ok()?;
        if !locked(&what) {
            return Some((what, Witness::Unknown));
        }
        // Shared with others that look.
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => return Some((what, Witness::Held)),
            Err(TryLockError::Error(_)) => return Some((what, Witness::Unknown)),
            // It may just have been written anew, and the lock be that of the new one.
            Ok(()) if is_at(&file, path) => return Some((what, Witness::Free)),
            Ok(()) => {}
        }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let id = |m: fs::Metadata| (m.dev(), m.ino());
    let (file, there) = (file.metadata().map(id), fs::symlink_metadata(path).map(id));
    file.is_ok() && file.ok() == there.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::Scratch;

    #[test]
    fn a_file_says_whether_its_writer_lives() {
        let dir = Scratch::new("witness");
        let path = dir.0.join("file");
        let state = |locked: bool| read::<u8>(&path, |_| locked);
        assert_eq!(state(true), None);
        let new = New::at(&path).unwrap();
        assert!(new.locked && New::at(&path).is_err());
        let held = new.write(b"7").unwrap();
        assert_eq!(state(true), Some((7, Witness::Held)));
        assert_eq!(state(false), Some((7, Witness::Unknown)));
        // Written anew it is the new file's lock that counts.
        let next = dir.0.join("next");
        let new = New::at(&next).unwrap().write(b"8").unwrap();
        fs::rename(&next, &path).unwrap();
        drop(held);
        assert_eq!(state(true), Some((8, Witness::Held)));
        drop(new);
        // A process that another test begins has all files for a moment.
        let ended = (0..100).any(|_| {
            std::thread::sleep(STEP);
            state(true) == Some((8, Witness::Free))
        });
        assert!(ended);
    }
}
