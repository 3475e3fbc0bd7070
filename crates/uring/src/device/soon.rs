//! What a name leads to, of a file system that may not answer.

use super::Identity;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// For how long is waited.
const GLANCE: Duration = Duration::from_secs(2);

/// Names that are being asked about: a thread waits for each.
static ASKED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn asked() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    ASKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is at a path, with what `more` says of it. `None`: nothing, or it does not answer, or somebody asks the same just now.
pub fn identity_soon<R: Send + 'static>(
    path: &Path,
    more: impl FnOnce(&Path) -> R + Send + 'static,
) -> Option<(Identity, R)> {
    if !asked().insert(path.to_owned()) {
        return None;
    }
    let (tell, told) = channel();
    let at = path.to_owned();
    let look = move || {
        let identity = std::fs::metadata(&at).ok().and_then(|m| Identity::of(&m));
        let found = identity.map(|identity| (identity, more(&at)));
        asked().remove(&at);
        // Who asked may have gone on.
        let _ = tell.send(found);
    };
    match thread::Builder::new().name("weir-look".into()).spawn(look) {
        Ok(_) => told.recv_timeout(GLANCE).ok().flatten(),
        Err(_) => {
            asked().remove(path);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn what_does_not_answer_is_asked_once() {
        let dir = std::env::temp_dir().join(format!("weir-soon-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let there = std::fs::metadata(&dir).ok().and_then(|m| Identity::of(&m));
        assert_eq!(identity_soon(&dir, |_| 7), there.map(|i| (i, 7)));
        assert_eq!(identity_soon(&dir.join("none"), |_| 7), None);
        let hangs = Arc::new(Mutex::new(()));
        let held = hangs.lock().expect("it is free");
        let waits = hangs.clone();
        assert_eq!(identity_soon(&dir, move |_| drop(waits.lock())), None);
        assert_eq!(identity_soon(&dir, |_| ()), None, "another one waits");
        drop(held);
        while asked().contains(&dir) {
            thread::yield_now();
        }
        assert_eq!(identity_soon(&dir, |_| ()), there.map(|i| (i, ())));
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
