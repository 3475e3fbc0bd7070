//! Where a file has holes.
//!
//! The ring has no operation for that question, and the system call may have to read the file system's
//! metadata. So one thread of the process asks for all reactors, which are not held up.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use weir_disk::Extent;
use weir_reactor::{Completion, Handle, Token, completion};

/// A question, and whom to tell the answer.
struct Question {
    file: Arc<OwnedFd>,
    at: u64,
    len: u64,
    answer: Arc<Mutex<Option<Extent>>>,
    caller: Handle,
    token: Token,
}

fn asker() -> &'static Option<Mutex<Sender<Question>>> {
    static ASKER: OnceLock<Option<Mutex<Sender<Question>>>> = OnceLock::new();
    ASKER.get_or_init(|| {
        let (tell, told) = channel::<Question>();
        let thread = std::thread::Builder::new().name("weir-holes".into()).spawn(move || {
            for q in told {
                let found = look(&q.file, q.at, q.len);
                *q.answer.lock().unwrap_or_else(PoisonError::into_inner) = found;
                q.caller.complete(q.token, Completion::ok(0));
            }
        });
        thread.ok().map(|_| Mutex::new(tell))
    })
}

/// The first extent of `at..at+len`; `None` when the file system does not tell.
pub(crate) async fn find(file: Arc<OwnedFd>, at: u64, len: u64) -> Option<Extent> {
    let asker = asker().as_ref()?;
    let answer = Arc::new(Mutex::new(None));
    let (token, done) = completion();
    let caller = weir_reactor::handle();
    let q = Question { file, at, len, answer: answer.clone(), caller, token };
    asker.lock().unwrap_or_else(PoisonError::into_inner).send(q).ok()?;
    done.await;
    *answer.lock().unwrap_or_else(PoisonError::into_inner)
}

fn look(file: &OwnedFd, at: u64, len: u64) -> Option<Extent> {
    let seek = |whence: libc::c_int| {
        let from = libc::off_t::try_from(at).ok()?;
        // SAFETY: plain system call on a descriptor that is open; nobody uses the position that it sets.
        let to = unsafe { libc::lseek(file.as_raw_fd(), from, whence) };
        if to >= 0 {
            return u64::try_from(to).ok();
        }
        // No data from here to the end.
        let none = std::io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO);
        none.then_some(u64::MAX)
    };
    let data = seek(libc::SEEK_DATA)?;
    if data > at {
        return Some(Extent { mapped: false, len: (data - at).min(len) });
    }
    let hole = seek(libc::SEEK_HOLE)?;
    // It may have been punched between the two questions.
    Some(Extent { mapped: true, len: hole.saturating_sub(at).clamp(1, len.max(1)) })
}
