//! What names lead to, of file systems that may not answer.

use super::Identity;
use super::lasting::lasting_name_at;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// For how long all that is asked is waited for.
const GLANCE: Duration = Duration::from_secs(2);
/// Names that are being asked about at most: a thread waits for each.
const MOST: usize = 256;

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct There {
    /// What it is.
    pub identity: Identity,
    /// Its lasting name.
    pub lasting: Option<String>,
}

/// One that is being asked about, by whoever wants to know.
#[derive(Default)]
struct Question {
    answer: Mutex<Option<Option<There>>>,
    over: Condvar,
}

static ASKED: Mutex<BTreeMap<PathBuf, Arc<Question>>> = Mutex::new(BTreeMap::new());

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

fn look(path: &Path) -> Option<There> {
    let meta = std::fs::metadata(path).ok()?;
    let identity = Identity::of(&meta)?;
    Some(There { identity, lasting: lasting_name_at(path, identity) })
}

/// Puts a question, or joins who has put it. None: too many are not answered.
fn question(path: &Path, look: fn(&Path) -> Option<There>) -> Option<Arc<Question>> {
    let mut all = lock(&ASKED);
    if let Some(known) = all.get(path) {
        return Some(known.clone());
    }
    if all.len() >= MOST {
        return None;
    }
    let question = Arc::<Question>::default();
    let (asked, at) = (question.clone(), path.to_owned());
    let ask = move || {
        let found = look(&at);
        lock(&ASKED).remove(&at);
        *lock(&asked.answer) = Some(found);
        asked.over.notify_all();
    };
    thread::Builder::new().name("weir-look".into()).spawn(ask).ok()?;
    all.insert(path.to_owned(), question.clone());
    Some(question)
}

fn wait(question: &Question, until: Instant) -> Option<There> {
    let mut answer = lock(&question.answer);
    while answer.is_none() {
        let left = until.checked_duration_since(Instant::now())?;
        let (next, _) =
            question.over.wait_timeout(answer, left).unwrap_or_else(PoisonError::into_inner);
        answer = next;
    }
    answer.clone().flatten()
}

fn ask(paths: &[PathBuf], look: fn(&Path) -> Option<There>) -> Vec<Option<There>> {
    let all: Vec<_> = paths.iter().map(|p| question(p, look)).collect();
    let until = Instant::now() + GLANCE;
    all.into_iter().map(|q| wait(&*q?, until)).collect()
}

/// What is at these paths, all asked at once. `None`: nothing, or it does not answer within 2 s.
pub fn soon(paths: &[PathBuf]) -> Vec<Option<There>> {
    ask(paths, look)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_answer_is_asked_once_and_not_waited_for_by_the_rest() {
        static HANGS: Mutex<()> = Mutex::new(());
        fn slow(path: &Path) -> Option<There> {
            if path.ends_with("hangs") {
                drop(lock(&HANGS));
            }
            look(path)
        }
        let dir = std::env::temp_dir().join(format!("weir-soon-{}", std::process::id()));
        let paths = ["here", "hangs", "none"].map(|n| dir.join(n));
        std::fs::create_dir_all(&dir).expect("a directory");
        paths[..2].iter().for_each(|p| std::fs::write(p, "").expect("a file"));
        let is = |p: &PathBuf| {
            let meta = std::fs::metadata(p).expect("it is there");
            Identity::of(&meta)
        };
        let found = |all: Vec<Option<There>>| -> Vec<_> {
            all.into_iter().map(|t| t.map(|t| t.identity)).collect()
        };
        let held = lock(&HANGS);
        for _ in 0..2 {
            assert_eq!(found(ask(&paths, slow)), [is(&paths[0]), None, None]);
        }
        let threads = lock(&ASKED).keys().filter(|p| p.starts_with(&dir)).count();
        assert_eq!(threads, 1);
        drop(held);
        while lock(&ASKED).contains_key(&paths[1]) {
            thread::yield_now();
        }
        assert_eq!(found(ask(&paths, slow)), [is(&paths[0]), is(&paths[1]), None]);
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
