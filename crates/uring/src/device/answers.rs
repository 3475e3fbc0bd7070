//! Whether a device answers at all.

use super::{Identity, PAGE};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Opens what is at a path and reads its first bytes, past the page cache; of what is not there yet, asks for the directory. It takes
/// and locks nothing, so whoever uses it goes on. What hangs here would hang whoever takes it.
///
/// # Errors
/// What the operating system said: it answers.
pub fn ask(path: &Path) -> io::Result<()> {
    let meta = match (std::fs::metadata(path), path.parent()) {
        (Err(e), Some(parent)) if e.kind() == io::ErrorKind::NotFound => {
            return std::fs::metadata(parent).map(drop);
        }
        (meta, _) => meta?,
    };
    if meta.is_dir() {
        return std::fs::read_dir(path)?.next().transpose().map(drop);
    }
    if Identity::of(&meta).is_none() {
        // Opening a pipe waits for its other end.
        return Ok(());
    }
    let open = |flags| File::options().read(true).custom_flags(libc::O_CLOEXEC | flags).open(path);
    let file = open(libc::O_DIRECT).or_else(|_| open(0))?;
    // What is read past the cache goes to a place that is aligned.
    let page = PAGE as usize;
    let mut buf = vec![0; 2 * page];
    let at = buf.as_ptr().align_offset(page);
    let to = buf.get_mut(at..at + page).ok_or(io::ErrorKind::InvalidInput)?;
    file.read_at(to, 0).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_answers_and_what_is_not_says_so() {
        let dir = std::env::temp_dir().join(format!("weir-asks-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let file = dir.join("file");
        assert!(ask(&file).is_ok(), "it can be made");
        for len in [0, 10, 3 * PAGE] {
            std::fs::write(&file, vec![1; len as usize]).expect("written");
            assert!(ask(&file).is_ok(), "{len} bytes");
        }
        let held = super::super::Held::open(&file, false).expect("it is free");
        assert!(ask(&file).is_ok() && ask(&dir).is_ok());
        drop(held);
        assert!(ask(&dir.join("none/file")).is_err());
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
