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

/// So many others do not answer that some could not be asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotAsked;

impl std::fmt::Display for NotAsked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{MOST} other paths do not answer, and no more are asked")
    }
}

impl std::error::Error for NotAsked {}

/// One that is being asked about, by whoever wants to know.
#[derive(Default)]
struct Question {
    answer: Mutex<Option<Option<There>>>,
    over: Condvar,
}

/// All that are being asked about.
struct Asked {
    all: Mutex<BTreeMap<PathBuf, Arc<Question>>>,
    /// One of them has been answered.
    fewer: Condvar,
}

static ASKED: Asked = Asked::new();

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

fn look(path: &Path) -> Option<There> {
    let meta = std::fs::metadata(path).ok()?;
    let identity = Identity::of(&meta)?;
    Some(There { identity, lasting: lasting_name_at(path, identity) })
}

/// Waits to be told, until then at most.
fn wait<'a, T>(
    over: &Condvar,
    guard: MutexGuard<'a, T>,
    until: Instant,
) -> Option<MutexGuard<'a, T>> {
    let left = until.checked_duration_since(Instant::now())?;
    Some(over.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0)
}

impl Question {
    fn answer(&self, until: Instant) -> Option<There> {
        let mut answer = lock(&self.answer);
        while answer.is_none() {
            answer = wait(&self.over, answer, until)?;
        }
        answer.clone().flatten()
    }
}

impl Asked {
    const fn new() -> Asked {
        Asked { all: Mutex::new(BTreeMap::new()), fewer: Condvar::new() }
    }

    /// Puts a question, or joins who has put it. It waits for its turn: too many are not answered yet.
    fn question(
        &'static self,
        path: &Path,
        look: fn(&Path) -> Option<There>,
        until: Instant,
    ) -> Result<Arc<Question>, NotAsked> {
        let mut all = lock(&self.all);
        loop {
            if let Some(known) = all.get(path) {
                return Ok(known.clone());
            }
            if all.len() < MOST {
                break;
            }
            all = wait(&self.fewer, all, until).ok_or(NotAsked)?;
        }
        let question = Arc::<Question>::default();
        let (asked, at) = (question.clone(), path.to_owned());
        let ask = move || {
            let found = look(&at);
            lock(&self.all).remove(&at);
            self.fewer.notify_all();
            *lock(&asked.answer) = Some(found);
            asked.over.notify_all();
        };
        thread::Builder::new().name("weir-look".into()).spawn(ask).map_err(|_| NotAsked)?;
        all.insert(path.to_owned(), question.clone());
        Ok(question)
    }

    fn ask(
        &'static self,
        paths: &[PathBuf],
        look: fn(&Path) -> Option<There>,
    ) -> Result<Vec<Option<There>>, NotAsked> {
        let until = Instant::now() + GLANCE;
        let all: Vec<_> =
            paths.iter().map(|p| self.question(p, look, until)).collect::<Result<_, _>>()?;
        Ok(all.into_iter().map(|q| q.answer(until)).collect())
    }
}

/// What is at these paths, all asked at once. `None`: nothing, or it does not answer within 2 s.
///
/// # Errors
/// Too many others do not answer, so that some of these could not be asked about.
pub fn soon(paths: &[PathBuf]) -> Result<Vec<Option<There>>, NotAsked> {
    ASKED.ask(paths, look)
}

/// The same of one.
///
/// # Errors
/// As of [`soon`].
pub fn soon_at(path: &Path) -> Result<Option<There>, NotAsked> {
    Ok(soon(&[path.to_owned()])?.pop().flatten())
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
            let all = ASKED.ask(&paths, slow).expect("they are asked");
            assert_eq!(found(all), [is(&paths[0]), None, None]);
        }
        let threads = lock(&ASKED.all).keys().filter(|p| p.starts_with(&dir)).count();
        assert_eq!(threads, 1);
        drop(held);
        while lock(&ASKED.all).contains_key(&paths[1]) {
            thread::yield_now();
        }
        let all = ASKED.ask(&paths, slow).expect("they are asked");
        assert_eq!(found(all), [is(&paths[0]), is(&paths[1]), None]);
        std::fs::remove_dir_all(&dir).expect("removed");
    }

    #[test]
    fn more_than_may_be_asked_at_once_wait_for_their_turn() {
        static HERE: Asked = Asked::new();
        static HANGS: Mutex<()> = Mutex::new(());
        fn there(path: &Path) -> Option<There> {
            if path.starts_with("/hangs") {
                drop(lock(&HANGS));
            }
            Some(There { identity: Identity::Inode(1, 1), lasting: None })
        }
        let paths = |n, dir: &str| -> Vec<_> {
            (0..n).map(|n| PathBuf::from(format!("/{dir}/{n}"))).collect()
        };
        let all = HERE.ask(&paths(4 * MOST, "fine"), there).expect("they are asked");
        assert!(all.iter().all(Option::is_some));
        // Of what was not asked nobody says that it is not there.
        let held = lock(&HANGS);
        let none = HERE.ask(&paths(MOST, "hangs"), there).expect("they are asked");
        assert!(none.iter().all(Option::is_none));
        assert_eq!(HERE.ask(&paths(1, "fine"), there), Err(NotAsked));
        drop(held);
        assert!(HERE.ask(&paths(1, "fine"), there).is_ok_and(|all| all[0].is_some()));
    }
}
