//! What asks an attachment to end: SIGINT, SIGTERM and SIGHUP. They are held back from all threads and read by one, so that none
//! of them ends a process whose disk is in use, and each is heard at any time.

use crate::error::{Error, Kind};
use crate::sys::{self, Held};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Hook = Box<dyn FnMut(i32) + Send>;

#[derive(Default)]
struct Heard {
    /// The last one that nobody has been told.
    came: Option<i32>,
    hook: Option<Hook>,
}

/// The signals of this process.
#[derive(Clone)]
pub struct Signals {
    heard: Arc<Mutex<Heard>>,
    /// Whoever started this process reads its standard output until there is a disk.
    is_child: bool,
}

impl Signals {
    /// Holds them back from this thread and all that it starts, so it comes before any other thread. One that is ignored, as
    /// SIGHUP by `nohup`, stays ignored.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn hold() -> Result<Signals, Error> {
        let failed = |e: &std::io::Error| Error::system("signals cannot be held back", e);
        let held = Held::hold(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP]);
        let held = held.map_err(|e| failed(&e))?;
        let signals = Signals { heard: Arc::default(), is_child: false };
        let reader = signals.clone();
        let read = move || {
            loop {
                let signal = held.wait();
                let mut heard = reader.heard();
                match &mut heard.hook {
                    Some(hook) => hook(signal),
                    None => heard.came = Some(signal),
                }
            }
        };
        let thread = std::thread::Builder::new().name("weir-signals".into()).spawn(read);
        thread.map_err(|e| failed(&e))?;
        Ok(signals)
    }

    /// The same for a process in the background, which is also asked to end by the end of whoever waits for it.
    #[must_use]
    pub fn of_child(self) -> Signals {
        Signals { is_child: true, ..self }
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody wants an attachment to end that is being made.
    pub fn is_asked(&self) -> bool {
        self.heard().came.is_some() || (self.is_child && sys::is_stdout_broken())
    }

    /// Why it ends then.
    pub fn reason(&self) -> Error {
        let why = match self.heard().came {
            Some(libc::SIGINT) => "by Ctrl-C (SIGINT)",
            Some(libc::SIGTERM) => "by SIGTERM",
            Some(_) => "by SIGHUP: its terminal is gone",
            None => "whoever waited for it has ended",
        };
        Error::new(Kind::Interrupted, "the attachment was ended before it was made", why, "")
    }

    /// Has `hook` called with each from here on, and with one that has come before.
    pub(crate) fn tell(&self, mut hook: impl FnMut(i32) + Send + 'static) {
        let mut heard = self.heard();
        if let Some(signal) = heard.came.take() {
            hook(signal);
        }
        heard.hook = Some(Box::new(hook));
    }

    /// Sends each on to a process, which must not be waited for before [`Signals::keep`].
    pub fn pass_to(&self, pid: u32) {
        self.tell(move |signal| drop(sys::kill(pid, signal)));
    }

    /// Passes nothing on any more.
    pub fn keep(&self) {
        self.heard().hook = None;
    }
}

#[cfg(test)]
impl Signals {
    /// Those of no process.
    pub(crate) fn none() -> Signals {
        Signals { heard: Arc::default(), is_child: false }
    }

    /// As if this one had come.
    pub(crate) fn came(&self, signal: i32) {
        let mut heard = self.heard();
        match &mut heard.hook {
            Some(hook) => hook(signal),
            None => heard.came = Some(signal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn one_that_comes_before_anybody_listens_is_heard() {
        let signals = Signals::none();
        assert!(!signals.is_asked());
        signals.came(libc::SIGTERM);
        assert!(signals.is_asked());
        assert!(signals.reason().reason.contains("SIGTERM"));
        let (tell, told) = channel();
        signals.tell(move |s| tell.send(s).unwrap());
        assert!(!signals.is_asked(), "it has been told");
        signals.came(libc::SIGINT);
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [libc::SIGTERM, libc::SIGINT]);
        signals.keep();
        signals.came(libc::SIGINT);
        assert!(told.try_recv().is_err() && signals.is_asked());
    }
}
