//! Closing what may have the caller wait, by threads that may.

use crate::device::Identity;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::mem::{ManuallyDrop, take};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_reactor::try_current_id;

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    static HURRIES: Cell<bool> = const { Cell::new(false) };
}

/// From now on this thread has others close block devices. Reactors need not say so.
pub fn never_wait() {
    HURRIES.set(true);
}

fn may_wait() -> bool {
    try_current_id().is_none() && !HURRIES.get()
}

/// What closing a file may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    /// For nothing.
    Never,
    /// For a slow file system, which is asked even by that.
    FileSystem,
    /// For a block device: all that anybody has written to it is written with the last one, maybe by the very thread that closes it.
    /// This process claims it, if it says which one it is, until that is over.
    Device(Option<Identity>),
}

/// A file that is closed where that may take time.
#[derive(Debug)]
pub(crate) struct Aside {
    file: ManuallyDrop<File>,
    waits: Waits,
}

impl Aside {
    pub(crate) fn new(file: File, waits: Waits) -> Aside {
        Aside { file: ManuallyDrop::new(file), waits }
    }

    /// From now on it counts as one of a slow file system.
    pub(crate) fn set_slow(&mut self) {
        self.waits = Waits::FileSystem;
    }

    pub(crate) fn is_slow(&self) -> bool {
        self.waits == Waits::FileSystem
    }
}

impl Deref for Aside {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        // SAFETY: the field is not used again.
        let file = unsafe { ManuallyDrop::take(&mut self.file) };
        match self.waits {
            Waits::Never => drop(file),
            Waits::FileSystem => close(file),
            Waits::Device(claimed) if !may_wait() => close_about(claimed, file),
            Waits::Device(None) => drop(file),
            Waits::Device(claimed) => {
                // It may hang here as well as elsewhere, and who finds it claimed has to know whose doing that is.
                let closing = Closing::new(claimed);
                drop(file);
                drop(closing);
            }
        }
    }
}

/// Things that are being closed just now, by numbers, with the block devices that they are, and the next number.
static CLOSING: Mutex<(BTreeMap<u64, Option<Identity>>, u64)> = Mutex::new((BTreeMap::new(), 0));

/// Something that this process has used is being closed, by whichever thread: its lock may be there yet.
pub fn is_closing() -> bool {
    close_left();
    !lock(&CLOSING).0.is_empty()
}

/// This block device is being closed by this process, which claims it until that is over.
pub fn is_being_closed(device: Identity) -> bool {
    lock(&CLOSING).0.values().any(|closing| *closing == Some(device))
}

/// What begins to be closed from some time on. What hangs since before that counts for nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closings(u64);

impl Closings {
    /// From now on.
    pub fn since_now() -> Closings {
        Closings(lock(&CLOSING).1)
    }

    /// All of them have ended by now.
    pub fn are_over(self) -> bool {
        // Who waits for them sees to it that they get their threads.
        close_left();
        lock(&CLOSING).0.range(self.0..).next().is_none()
    }
}

/// Something is being closed for as long as this is there.
struct Closing(u64);

impl Closing {
    fn new(device: Option<Identity>) -> Closing {
        let (all, next) = &mut *lock(&CLOSING);
        let number = *next;
        all.insert(number, device);
        *next += 1;
        Closing(number)
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        lock(&CLOSING).0.remove(&self.0);
    }
}

/// Something that is closed when it is dropped, with its number.
type Thing = Box<dyn Send>;

/// Those for which no thread could be started. They stay open until one can, and count as being closed.
static LEFT: Mutex<Vec<Thing>> = Mutex::new(Vec::new());

/// Drops something that may be the last to have a device open, on a thread of its own, and waits for nothing.
pub fn drop_aside<T: Send + 'static>(what: T) {
    close(what);
}

/// Closes something on a thread of its own, and waits for nothing.
pub(crate) fn close<T: Send + 'static>(what: T) {
    close_about(None, what);
}

fn close_about<T: Send + 'static>(device: Option<Identity>, what: T) {
    close_left_and([Box::new((what, Closing::new(device))) as Thing]);
}

/// Closes what had no thread before.
pub(crate) fn close_left() {
    close_left_and([]);
}

/// Each has a thread of its own: one that hangs keeps no other.
fn close_left_and(new: impl IntoIterator<Item = Thing>) {
    let mut all = take(&mut *lock(&LEFT));
    all.extend(new);
    while let Some(next) = all.pop() {
        if let Err(next) = start(next) {
            all.push(next);
            break;
        }
    }
    lock(&LEFT).append(&mut all);
}

fn start(what: Thing) -> Result<(), Thing> {
    #[cfg(test)]
    if tests::NO_THREAD.take() {
        return Err(what);
    }
    let what = Arc::new(Mutex::new(Some(what)));
    let it = what.clone();
    let thread = std::thread::Builder::new().name("weir-closing".into()).spawn(move || {
        let mut next = lock(&it).take();
        while let Some(it) = next {
            drop(it);
            next = lock(&LEFT).pop();
        }
    });
    match thread {
        Ok(_) => Ok(()),
        Err(_) => lock(&what).take().map_or(Ok(()), Err),
    }
}

/// Of tests that count what is closed, one at a time.
#[cfg(test)]
pub(crate) static COUNTS: Mutex<()> = Mutex::new(());

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::io::{Write, copy, sink};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    thread_local! {
        /// The next one cannot be started.
        pub(crate) static NO_THREAD: Cell<bool> = const { Cell::new(false) };
    }

    /// The name of the thread that closed it, which waits then.
    struct Slow(Arc<Mutex<Option<String>>>, Receiver<()>);

    impl Drop for Slow {
        fn drop(&mut self) {
            *lock(&self.0) = std::thread::current().name().map(str::to_owned);
            let _ = self.1.recv();
        }
    }

    /// What hangs when it is closed, until it is let go on.
    pub(crate) struct Hung(TcpStream);

    impl Hung {
        /// A socket does, which waits until the other side has read all of it.
        pub(crate) fn new() -> (File, Hung) {
            let there = TcpListener::bind("127.0.0.1:0").expect("a socket");
            let at = there.local_addr().expect("its address");
            let mut here = TcpStream::connect(at).expect("a connection");
            let other = there.accept().expect("its other side").0;
            let linger = libc::linger { l_onoff: 1, l_linger: 300 };
            // SAFETY: a descriptor that `here` owns, and the structure that the option takes, with its size.
            let set = unsafe {
                libc::setsockopt(
                    here.as_raw_fd(),
                    libc::SOL_SOCKET,
                    libc::SO_LINGER,
                    (&raw const linger).cast(),
                    size_of_val(&linger) as _,
                )
            };
            assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
            here.set_nonblocking(true).expect("it does not wait");
            while here.write(&[0; 1 << 16]).is_ok() {}
            (File::from(OwnedFd::from(here)), Hung(other))
        }

        pub(crate) fn goes_on(mut self) {
            self.0.set_read_timeout(Some(Duration::from_secs(60))).expect("it has one");
            copy(&mut self.0, &mut sink()).expect("all of it");
        }
    }

    pub(crate) fn until(is_so: impl Fn() -> bool) {
        let begun = std::time::Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it never is");
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_hangs_where_its_closer_may_wait_is_known_to_be_closed() {
        let _alone = lock(&COUNTS);
        let (file, hung) = Hung::new();
        let device = Identity::Block(u64::MAX - 1);
        let last = Aside::new(file, Waits::Device(Some(device)));
        let before = Closings::since_now();
        let closes = std::thread::spawn(move || drop(last));
        until(|| is_being_closed(device));
        assert!(is_closing() && !before.are_over() && !closes.is_finished());
        hung.goes_on();
        closes.join().expect("no panic");
        assert!(before.are_over() && !is_being_closed(device), "it closed it itself");
    }

    #[test]
    fn what_was_not_claimed_is_nobody_s_while_it_is_closed() {
        let _alone = lock(&COUNTS);
        let open = || Aside::new(File::open("/dev/null").expect("open"), Waits::Device(None));
        let (by_itself, before) = (open(), Closings::since_now());
        drop(by_itself);
        assert_eq!(before, Closings::since_now());
        let aside = open();
        let hurries = std::thread::spawn(move || {
            never_wait();
            drop(aside);
        });
        hurries.join().expect("no panic");
        assert_ne!(before, Closings::since_now());
        until(|| before.are_over());
    }

    #[test]
    fn a_thread_closes_and_what_hangs_since_before_counts_for_nobody() {
        let _alone = lock(&COUNTS);
        let (go_on, held) = channel();
        let by = Arc::<Mutex<Option<String>>>::default();
        let before = Closings::since_now();
        close(Slow(by.clone(), held));
        let after = Closings::since_now();
        assert!(is_closing() && !before.are_over() && after.are_over());
        go_on.send(()).unwrap();
        while !before.are_over() {
            std::thread::yield_now();
        }
        assert_eq!(lock(&by).as_deref(), Some("weir-closing"));
    }

    #[test]
    fn what_gets_no_thread_gets_one_when_somebody_waits_for_it() {
        let _alone = lock(&COUNTS);
        let (go_on, held) = channel();
        let by = Arc::<Mutex<Option<String>>>::default();
        let before = Closings::since_now();
        NO_THREAD.set(true);
        close_about(Some(Identity::Block(u64::MAX)), Slow(by.clone(), held));
        assert!(is_being_closed(Identity::Block(u64::MAX)) && !NO_THREAD.get());
        assert!(!is_being_closed(Identity::Block(1)));
        go_on.send(()).unwrap();
        while !before.are_over() {
            std::thread::yield_now();
        }
        assert_eq!(lock(&by).as_deref(), Some("weir-closing"));
    }
}
