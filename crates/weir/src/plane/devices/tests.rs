//! What is taken for somebody who waits, or has given up.

use super::*;
use std::sync::mpsc::channel;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("weir-taken-{name}-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&dir));
        std::fs::create_dir_all(&dir).expect("a directory");
        Scratch(dir)
    }

    /// A file with something in it.
    fn file(&self) -> PathBuf {
        let path = self.0.join("disk");
        std::fs::write(&path, [1; 8192]).expect("a file");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn pool(name: &str) -> Owner {
    Owner::Pool(name.into())
}

/// Waits until no thread is busy with a path any more.
fn ended(holds: &Holds, path: &Path) {
    let begun = Instant::now();
    while lock(&holds.asked).contains(path) {
        assert!(begun.elapsed() < Duration::from_secs(60), "it ends");
        std::thread::sleep(AGAIN);
    }
}

#[tokio::test]
async fn what_comes_when_nobody_waits_any_more_is_let_go_of() {
    let (dir, holds) = (Scratch::new("late"), Arc::<Holds>::default());
    let (path, made) = (dir.file(), dir.0.join("made"));
    for (path, is_made) in [(&path, false), (&made, true)] {
        let (go_on, answers) = channel::<()>();
        let at = path.clone();
        let taken = holds.helped_while(path, move |h, waited| {
            answers.recv().expect("somebody lets it go on");
            if is_made {
                std::fs::write(&at, []).expect("a file");
            }
            let made = Made::at(&at).filter(|_| is_made);
            let taken = h.take_made(&pool("p"), &at, Wait::No, made)?;
            assert!(!waited(), "it is told that nobody waits");
            assert!(check_waited(&at, waited).is_err());
            Ok(taken)
        });
        let waits = tokio::time::timeout(Duration::from_millis(50), taken);
        assert!(waits.await.is_err(), "the device does not answer");
        go_on.send(()).expect("it waits");
        ended(&holds, path);
        let begun = Instant::now();
        while !holds.paths_of(|_| true).is_empty() || is_made && path.exists() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is nobody's");
            std::thread::sleep(AGAIN);
        }
        assert_eq!(path.exists(), !is_made, "what was made goes");
    }
    holds
        .hold(pool("q"), &path.display().to_string(), false, Wait::ForTheDead)
        .await
        .expect("free");
}

#[test]
fn what_was_made_and_cannot_be_had_goes() {
    let (dir, holds) = (Scratch::new("made"), Arc::<Holds>::default());
    let path = dir.file();
    let had = holds.take(&pool("p"), &path, false, Wait::No).expect("taken").keep();
    assert!(holds.take_made(&pool("q"), &path, Wait::No, None).is_err() && path.exists());
    let made = Made::at(&path);
    assert!(holds.take_made(&pool("q"), &path, Wait::No, made).is_err() && !path.exists());
    drop(had);
}

/// What had the name when it was made has gone; somebody has put another file there meanwhile.
#[test]
fn what_was_made_does_not_take_another_file_of_its_name_with_it() {
    let (dir, holds) = (Scratch::new("replaced"), Arc::<Holds>::default());
    let path = dir.file();
    let taken = holds.take_made(&pool("p"), &path, Wait::No, Made::at(&path)).expect("taken");
    std::fs::remove_file(&path).expect("removed");
    let others = dir.0.join("others");
    std::fs::write(&others, b"precious")
        .and_then(|()| std::fs::rename(&others, &path))
        .expect("put");
    drop(taken);
    assert_eq!(std::fs::read(&path).expect("it is there"), b"precious");
    assert!(holds.paths_of(|_| true).is_empty());
}

/// A file in use has been moved, and another pool's has its name now: reactors know what is held by its name.
#[test]
fn a_name_leads_to_one_thing_only() {
    let (dir, holds) = (Scratch::new("names"), Arc::<Holds>::default());
    let path = dir.file();
    let first = holds.take(&pool("a"), &path, false, Wait::No).expect("taken").keep();
    std::fs::rename(&path, dir.0.join("moved")).expect("moved");
    dir.file();
    for wait in [Wait::No, Wait::ForTheDead] {
        let e = holds.take(&pool("b"), &path, false, wait).err().expect("its name is a's");
        assert!(e.to_string().contains("pool `a` has what had that name"), "{e}");
    }
    assert!(holds.find(&path).is_some_and(|h| Arc::ptr_eq(&h, &first)));
    // Who looks at it writes nothing.
    drop(holds.take(&Owner::Look, &path, false, Wait::No).expect("a look"));
    holds.release_all(&pool("a"));
    drop(first);
    holds.take(&pool("b"), &path, false, Wait::No).expect("free").keep();
}

#[tokio::test]
async fn what_is_kept_stays_and_what_was_there_before_is_not_let_go_of() {
    let (dir, holds) = (Scratch::new("kept"), Arc::<Holds>::default());
    let path = dir.file();
    holds.hold(pool("p"), &path.display().to_string(), false, Wait::No).await.expect("taken");
    drop(holds.take(&pool("p"), &path, false, Wait::No).expect("it has it"));
    assert_eq!(holds.paths_of(|o| *o == pool("p")), std::slice::from_ref(&path));
    let e = holds.take(&pool("q"), &path, false, Wait::ForAnybody).err().expect("it is p's");
    assert!(e.to_string().contains("belongs to pool `p`"), "{e}");
}

/// Two pools look for their devices at once, and each has the other's by its old name for a moment.
#[test]
fn a_device_that_somebody_is_about_to_find_not_to_be_theirs_is_waited_for() {
    let (dir, holds) = (Scratch::new("moment"), Arc::<Holds>::default());
    let path = dir.file();
    for wait in [Wait::No, Wait::ForAnybody, Wait::ForTheDead] {
        let not_theirs = holds.take(&pool("a"), &path, false, Wait::No).expect("taken");
        let (h, p) = (holds.clone(), path.clone());
        let other = std::thread::spawn(move || h.take(&pool("b"), &p, false, wait).map(drop));
        std::thread::sleep(5 * AGAIN);
        assert!(!other.is_finished(), "it waits");
        drop(not_theirs);
        other.join().expect("no panic").expect("it has it now");
    }
}
