//! What may wait in the kernel for this very process, or for a target that is gone: on a thread of its own, so that a signal is
//! heard meanwhile.
//!
//! The thread has a file table of its own. A process that was killed keeps its files, and what it has locked by them, for as long
//! as one of its threads waits in the kernel with them: it would be taken for one that lives. Nothing is logged on the thread, as
//! a log may be a file.

use crate::error::{Error, Kind};
use crate::sys;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often is looked whether it is to be waited for any more.
const LOOK: Duration = Duration::from_millis(20);
/// How long it may take to end when what it waits for has gone.
const END: Duration = Duration::from_secs(10);

/// The thread.
#[derive(Default)]
pub(crate) struct Aside(Option<JoinHandle<()>>);

/// What the thread says.
enum News<R> {
    /// It has got this device, and waits for an answer.
    Won(PathBuf, Sender<Result<(), Error>>),
    Done(Result<R, Error>),
}

impl Aside {
    /// Runs `f`, and waits for its result until somebody has `asked` to end. `f` may have this thread told what it has won. It owns
    /// no file, and opens those that it needs.
    ///
    /// # Errors
    /// That of `f`, or why it is not waited for: then it goes on.
    pub(crate) fn run<R: Send + 'static>(
        &mut self,
        asked: impl Fn() -> Option<Error>,
        won: impl Fn(&Path) -> Result<(), Error>,
        f: impl FnOnce(&dyn Fn(&Path) -> Result<(), Error>) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        let (tell, told) = channel();
        let work = move || {
            // Where that cannot be had it goes without.
            let _ = sys::have_own_files();
            let done = f(&|device: &Path| {
                let (answer, answered) = channel();
                let asked = tell.send(News::Won(device.to_owned(), answer));
                asked.ok().and_then(|()| answered.recv().ok()).unwrap_or_else(|| Err(left()))
            });
            let _ = tell.send(News::Done(done));
        };
        let thread = std::thread::Builder::new().name("weir-disk".into()).spawn(work);
        self.0 = Some(thread.map_err(|e| Error::system("no thread can be started", &e))?);
        loop {
            match told.recv_timeout(LOOK) {
                Ok(News::Won(device, answer)) => drop(answer.send(won(&device))),
                Ok(News::Done(result)) => return result,
                Err(RecvTimeoutError::Timeout) => asked().map_or(Ok(()), Err)?,
                Err(RecvTimeoutError::Disconnected) => {
                    let (what, why) = ("a thread has ended", "it says nothing of that");
                    return Err(Error::new(Kind::Failed, what, why, "see the log"));
                }
            }
        }
    }

    /// Sees it end, once nothing is there that it waits for.
    pub(crate) fn end(self) {
        let Some(thread) = self.0 else { return };
        for _ in 0..END.as_millis() / LOOK.as_millis() {
            if thread.is_finished() {
                return;
            }
            std::thread::sleep(LOOK);
        }
        tracing::error!("the kernel does not let go of a disk that was being made");
    }
}

fn left() -> Error {
    Error::new(Kind::Interrupted, "a disk is not made", "nobody waits for it any more", "")
}

/// Runs what needs nothing of this thread, and waits for it however long that takes.
///
/// # Errors
/// That of `f`.
pub(crate) fn aside<R: Send + 'static>(
    f: impl FnOnce() -> Result<R, Error> + Send + 'static,
) -> Result<R, Error> {
    Aside::default().run(|| None, |_| Ok(()), move |_| f())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    #[test]
    fn what_waits_is_left_when_somebody_asks_and_seen_to_end() {
        assert_eq!(aside(|| Ok(7)), Ok(7));
        let (go, wait) = channel::<()>();
        let asked = || Some(Error::new(Kind::Interrupted, "", "", ""));
        let waits = move || wait.recv().map_or(Ok(1), |()| Ok(2));
        let mut left = Aside::default();
        let done = left.run(asked, |_| Ok(()), move |_| waits());
        assert_eq!(done.unwrap_err().kind, Kind::Interrupted);
        drop(go);
        left.end();
        assert_eq!(
            aside(|| -> Result<(), Error> { panic!("on purpose") }).unwrap_err().kind,
            Kind::Failed
        );
    }

    #[test]
    fn who_waits_is_told_what_was_won_unless_he_has_left() {
        let won = std::cell::RefCell::new(Vec::new());
        let device = |won: &dyn Fn(&Path) -> Result<(), Error>| won(Path::new("/dev/none"));
        let note = |d: &Path| {
            won.borrow_mut().push(d.to_owned());
            Ok(())
        };
        Aside::default().run(|| None, note, device).unwrap();
        assert_eq!(*won.borrow(), [Path::new("/dev/none")]);
        let (tell, told) = channel();
        let asked = || Some(left());
        let late = move |won: &dyn Fn(&Path) -> Result<(), Error>| {
            std::thread::sleep(10 * LOOK);
            tell.send(won(Path::new("/dev/none"))).unwrap();
            Ok(())
        };
        assert!(Aside::default().run(asked, |_| Ok(()), late).is_err());
        assert!(told.recv().unwrap().is_err(), "nobody has written it down");
    }

    #[test]
    fn the_thread_has_none_of_the_process_s_files() {
        let file = File::open("/dev/null").unwrap();
        let number = file.as_raw_fd();
        let is_open = move || Path::new(&format!("/proc/thread-self/fd/{number}")).exists();
        assert!(is_open());
        assert_eq!(aside(move || Ok(is_open())), Ok(false));
        assert!(is_open());
    }
}
