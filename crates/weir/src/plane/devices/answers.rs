//! Whether devices answer, before anybody takes them.
//!
//! One that hangs has one thread that waits for it, whoever asks and however often; who takes a device meanwhile is not kept from it.

use super::{Holds, lock};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use weir_control::{Code, Error, Result};

/// How many may hang. More than that are not asked: each has a thread.
const MOST: usize = 256;
/// Asked for longer than this, a device counts as one that hangs.
const HANGS: Duration = Duration::from_secs(1);
/// How long the answer of one that is slow counts: whoever has given up gets it at the next try.
const COUNTS: Duration = Duration::from_secs(30);

/// A device that is being asked, or was slow to answer.
#[derive(Clone)]
pub(super) struct Question {
    begun: Instant,
    answered: Option<Instant>,
    /// Ends when it has answered.
    over: watch::Receiver<()>,
}

impl Question {
    fn counts(&self) -> bool {
        self.answered.is_none_or(|at| at.elapsed() < COUNTS)
    }

    fn hangs(&self) -> bool {
        self.answered.is_none() && self.begun.elapsed() > HANGS
    }
}

/// The thread that waits for an answer.
struct Waits {
    holds: Arc<Holds>,
    path: PathBuf,
    _over: watch::Sender<()>,
}

impl Drop for Waits {
    fn drop(&mut self) {
        let mut all = lock(&self.holds.questions);
        match all.get_mut(&self.path) {
            Some(slow) if slow.hangs() => slow.answered = Some(Instant::now()),
            _ => drop(all.remove(&self.path)),
        }
    }
}

fn silent(path: &Path) -> Error {
    Error::new(Code::IoError, format!("`{}` does not answer", path.display()))
        .because("opening it, or reading from it, has not come to an end")
        .hint("see to its file system or driver; it is tried again")
}

impl Holds {
    /// Whether what is at `path` answers within that time of when it was first asked, whatever it answers.
    ///
    /// # Errors
    /// It does not; too many others hang.
    pub(crate) async fn ask(self: &Arc<Self>, path: &str, within: Duration) -> Result<()> {
        let look = |path: &Path| drop(weir_uring::device::ask(path));
        self.ask_by(Path::new(path), within, look).await
    }

    /// The same, by `look`.
    pub(super) async fn ask_by(
        self: &Arc<Self>,
        path: &Path,
        within: Duration,
        look: impl FnOnce(&Path) + Send + 'static,
    ) -> Result<()> {
        let mut question = self.question(path, look)?;
        if question.answered.is_some() {
            return Ok(());
        }
        let answered = timeout_at(question.begun + within, question.over.changed());
        // Nothing is sent: it changes by its end.
        answered.await.map(drop).map_err(|_| silent(path))
    }

    /// Puts it, or joins who has put it before.
    fn question(
        self: &Arc<Self>,
        path: &Path,
        look: impl FnOnce(&Path) + Send + 'static,
    ) -> Result<Question> {
        let mut all = lock(&self.questions);
        all.retain(|_, q| q.counts());
        if let Some(known) = all.get(path) {
            return Ok(known.clone());
        }
        if all.values().filter(|q| q.hangs()).count() >= MOST {
            return Err(silent(path).because(format!("{MOST} others hang, and no more are asked")));
        }
        let (tell, over) = watch::channel(());
        let question = Question { begun: Instant::now(), answered: None, over };
        all.insert(path.to_owned(), question.clone());
        // Where there is no thread, its end takes that lock.
        drop(all);
        let waits = Waits { holds: self.clone(), path: path.to_owned(), _over: tell };
        let thread = std::thread::Builder::new().name("weir-device".into()).spawn(move || {
            look(&waits.path);
        });
        match thread {
            Ok(_) => Ok(question),
            Err(e) => Err(Error::new(Code::IoError, "no thread for a device").because(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Sender, channel};

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(50);

    /// Asks what does not answer before it is told to, in vain. Gives who tells it.
    async fn hangs(holds: &Arc<Holds>, path: &str) -> Sender<()> {
        let (answer, told) = channel::<()>();
        let asked = holds.ask_by(Path::new(path), SHORT, move |_| {
            let _ = told.recv();
        });
        let e = asked.await.expect_err("it hangs");
        assert!(e.to_string().contains("does not answer"), "{e}");
        answer
    }

    async fn until(what: &str, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < LONG, "{what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn one_that_hangs_has_one_thread_however_often_it_is_asked() {
        let (holds, path) = (Arc::<Holds>::default(), Path::new("/nowhere/disk"));
        let answer = hangs(&holds, "/nowhere/disk").await;
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let again = |within| {
            holds.ask_by(path, within, |_| {
                ASKED.fetch_add(1, Ordering::Relaxed);
            })
        };
        let begun = Instant::now();
        for _ in 0..1000 {
            assert!(again(SHORT).await.is_err(), "it has had its time");
        }
        assert!(begun.elapsed() < 1000 * SHORT / 2, "nobody waits for it anew");
        // Who has more patience is told when it answers.
        let (first, second) = (again(LONG), again(LONG));
        let answers = async {
            tokio::time::sleep(SHORT).await;
            answer.send(()).expect("it waits");
        };
        let (first, second, ()) = tokio::join!(first, second, answers);
        assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
        assert_eq!(ASKED.load(Ordering::Relaxed), 0, "a second thread");
        until("it is asked anew", || lock(&holds.questions).is_empty()).await;
        again(LONG).await.expect("it answers");
        assert_eq!(ASKED.load(Ordering::Relaxed), 1);
    }

    /// It takes longer than anybody waits, each time.
    #[tokio::test]
    async fn one_that_is_slow_has_answered_at_the_next_try() {
        let (holds, path) = (Arc::<Holds>::default(), Path::new("/nowhere/disk"));
        let slow = || holds.ask_by(path, SHORT, |_| std::thread::sleep(HANGS + SHORT));
        slow().await.expect_err("it is slow");
        let answers = || lock(&holds.questions).values().any(|q| q.answered.is_some());
        until("it answers", answers).await;
        slow().await.expect("it has answered since");
    }

    #[tokio::test]
    async fn who_asks_keeps_nobody_from_taking_it() {
        let path = std::env::temp_dir().join(format!("weir-asked-{}", std::process::id()));
        std::fs::write(&path, [1; 8192]).expect("a file");
        let (holds, name) = (Arc::<Holds>::default(), path.display().to_string());
        let answer = hangs(&holds, &name).await;
        let owner = super::super::Owner::Pool("p".into());
        let held = holds.hold_image(owner, &name, (false, None), super::super::Wait::No).await;
        assert!(held.is_ok(), "{:?}", held.err());
        drop(answer);
        std::fs::remove_file(&path).expect("removed");
    }

    #[tokio::test]
    async fn threads_that_hang_are_so_many_at_most() {
        let holds = Arc::<Holds>::default();
        let (answer, told) = channel::<()>();
        let told = Arc::new(std::sync::Mutex::new(told));
        for n in 0..MOST {
            let told = told.clone();
            let path = format!("/nowhere/{n}");
            let asked = holds.ask_by(Path::new(&path), Duration::ZERO, move |_| {
                let _ = lock(&told).recv();
            });
            assert!(asked.await.is_err());
        }
        let one_more = || holds.ask_by(Path::new("/nowhere/more"), LONG, |_| ());
        one_more().await.expect("they may be about to answer");
        tokio::time::sleep(2 * HANGS).await;
        let e = one_more().await.expect_err("they hang");
        assert!(e.to_string().contains("hang"), "{e}");
        drop(answer);
        until("they answer", || lock(&holds.questions).values().all(|q| !q.hangs())).await;
        one_more().await.expect("it is asked");
    }

    #[tokio::test]
    async fn a_look_that_breaks_off_is_an_end() {
        let (holds, path) = (Arc::<Holds>::default(), Path::new("/nowhere/disk"));
        let broke = holds.ask_by(path, LONG, |_| assert!(std::hint::black_box(false)));
        broke.await.expect("whoever takes it says what is wrong");
        // What it says on its end may take long.
        assert!(lock(&holds.questions).values().all(|q| !q.hangs()));
    }
}
