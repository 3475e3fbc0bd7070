//! One reactor's queue of FUSE requests.

use super::abi::{self, Ask, HEAD, Header, Reply};
use crate::disk::{Disk, Errno, MAX_IO, Request};
use crate::sys;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_mem::{BufPool, PoolConfig, Slice};
use weir_reactor::{Poller, Reactor, WaitChannel, spawn_task};
use weir_uring::{Ring, Watch};

/// Requests of a queue under way at once; the kernel's others wait in its own queue.
const TASKS: usize = 256;
/// Messages taken in one turn.
const TURN: usize = 32;
/// Writes up to this size are copied out of the receive buffer, which then takes the next message.
const SMALL: usize = 64 << 10;
/// fallocate: do not change the size; deallocate; make zeroes.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 0x10;

/// I/O that waits for a task.
struct Work {
    unique: u64,
    what: What,
}

enum What {
    Read { at: u64, len: usize },
    Write { at: u64, buf: Slice },
    Sync,
    Allocate { at: u64, len: u64, mode: u32 },
}

/// What a queue has done, and has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Census {
    /// I/O requests answered.
    pub answered: u64,
    /// Of these, with an error.
    pub failed: u64,
    /// Requests taken and not answered.
    pub under_way: u64,
}

/// The file that is shown.
#[derive(Debug, Clone)]
pub struct Shown {
    /// Its name.
    pub name: String,
    /// Its length.
    pub len: Arc<AtomicU64>,
}

/// One reactor's queue.
pub struct Queue<D> {
    connection: OwnedFd,
    disk: Rc<D>,
    pool: BufPool,
    file: Shown,
    watch: Watch,
    ready: Rc<RefCell<VecDeque<u64>>>,
    /// Where the next message goes.
    receive: RefCell<Option<Slice>>,
    todo: RefCell<VecDeque<Work>>,
    arrived: WaitChannel,
    census: Cell<Census>,
    /// Called once, when the kernel has ended the connection.
    ended: RefCell<Option<Box<dyn FnOnce()>>>,
}

impl<D: Disk> Queue<D> {
    /// Buffers that a reactor needs for a queue: receive buffers and large I/O, middle, small.
    pub fn buffers() -> PoolConfig {
        PoolConfig { classes: vec![(4096, 512), (SMALL, 128), (MAX_IO, 32)] }
    }

    /// Serves requests of `connection` on the present reactor, until the kernel ends it, and calls `ended` then.
    pub fn start(
        reactor: &Reactor,
        ring: &Ring,
        pool: BufPool,
        connection: OwnedFd,
        disk: Rc<D>,
        file: Shown,
        ended: impl FnOnce() + 'static,
    ) -> Rc<Queue<D>> {
        let ready = Rc::new(RefCell::new(VecDeque::with_capacity(4)));
        let watch = ring.watch(connection.as_raw_fd(), 0, ready.clone());
        let queue = Rc::new(Queue {
            connection,
            disk,
            pool,
            file,
            watch,
            ready,
            receive: RefCell::default(),
            todo: RefCell::new(VecDeque::with_capacity(TASKS)),
            arrived: WaitChannel::new(0),
            census: Cell::default(),
            ended: RefCell::new(Some(Box::new(ended))),
        });
        for _ in 0..TASKS {
            let weak = Rc::downgrade(&queue);
            spawn_task(work(weak));
        }
        reactor.add_poller(Rc::new(Source(queue.clone())));
        queue
    }

    /// What it has done.
    pub fn census(&self) -> Census {
        self.census.get()
    }

    fn count(&self, f: impl FnOnce(&mut Census)) {
        let mut c = self.census.get();
        f(&mut c);
        self.census.set(c);
    }

    /// Takes messages; true when there was any.
    fn take(&self) -> bool {
        if self.ended.borrow().is_none() {
            return false;
        }
        if self.watch.armed() && self.ready.borrow_mut().pop_front().is_none() {
            return false;
        }
        self.ready.borrow_mut().clear();
        let mut any = false;
        for _ in 0..TURN {
            let mut slot = self.receive.borrow_mut();
            if slot.is_none() {
                *slot = self.pool.try_alloc(MAX_IO);
            }
            let Some(buf) = slot.clone() else {
                // All buffers are with requests that wait for the target.
                drop(slot);
                if sys::is_broken(self.connection.as_fd()) {
                    self.end("it was unmounted or aborted");
                }
                return any;
            };
            drop(slot);
            let mut head = [0; HEAD];
            match sys::read_two(self.connection.as_fd(), &mut head, &buf) {
                Ok(n) => {
                    any = true;
                    self.message(&head, n, buf);
                }
                Err(e) => match e.raw_os_error() {
                    Some(libc::EAGAIN) => return any,
                    // A request that was taken back meanwhile.
                    Some(libc::EINTR | libc::ENOENT) => {}
                    Some(libc::ENODEV) => {
                        self.end("it was unmounted");
                        return true;
                    }
                    _ => {
                        self.end(&e.to_string());
                        return true;
                    }
                },
            }
        }
        any
    }

    fn end(&self, why: &str) {
        let ended = self.ended.borrow_mut().take();
        if let Some(f) = ended {
            tracing::debug!(why, "the kernel has ended a queue");
            f();
        }
    }

    /// A message of `n` bytes: its first bytes are in `head`, the rest in `buf`.
    fn message(&self, head: &[u8; HEAD], n: usize, buf: Slice) {
        let Some(h) = Header::parse(&head[..n.min(HEAD)]) else { return };
        if h.is_write() {
            return match h.ask(&head[..n.min(HEAD)]) {
                Some(Ask::Write { at, len }) if len as usize == n.saturating_sub(HEAD) => {
                    self.write(h.unique, at, buf, len as usize);
                }
                _ => self.answer(&Reply::error(h.unique, libc::EINVAL), None),
            };
        }
        if n <= HEAD {
            self.ask(&h, &head[..n]);
        } else {
            // A name, or arguments that nothing here looks at.
            let mut whole = head.to_vec();
            whole.extend(buf.sub(0, n - HEAD).to_vec());
            self.ask(&h, &whole);
        }
    }

    fn write(&self, unique: u64, at: u64, mut buf: Slice, len: usize) {
        let small = if len <= SMALL { self.pool.try_alloc(len.max(1)) } else { None };
        let data = match small {
            Some(small) => {
                small.copy_from(0, &buf, 0, len);
                small.sub(0, len)
            }
            None => {
                // The buffer goes with the request.
                *self.receive.borrow_mut() = None;
                buf.narrow(0, len);
                buf
            }
        };
        self.enqueue(unique, What::Write { at, buf: data });
    }

    fn enqueue(&self, unique: u64, what: What) {
        self.count(|c| c.under_way += 1);
        self.todo.borrow_mut().push_back(Work { unique, what });
        self.arrived.signal();
    }

    /// Answers what can be answered at once.
    fn ask(&self, h: &Header, message: &[u8]) {
        let len = self.file.len.load(Ordering::Acquire);
        let read_only = self.disk.geometry().read_only;
        let no = |errno| Err(Errno(errno));
        let reply = match h.ask(message) {
            None => no(libc::EINVAL),
            Some(Ask::Silent) => return,
            Some(Ask::Read { at, len: n }) => {
                // What the page cache asks for beyond the end is not there.
                let n = u64::from(n).min(len.saturating_sub(at));
                if n == 0 || n > MAX_IO as u64 {
                    Ok(Reply::head(h.unique, 0).to_vec())
                } else {
                    return self.enqueue(h.unique, What::Read { at, len: n as usize });
                }
            }
            Some(Ask::Sync) => return self.enqueue(h.unique, What::Sync),
            Some(Ask::Allocate { at, len, mode }) => {
                return self.enqueue(h.unique, What::Allocate { at, len, mode });
            }
            Some(Ask::Init { major, minor, readahead, flags }) => {
                match Reply::init(major, minor, readahead, flags) {
                    Some(r) => Ok(r.finish(h.unique)),
                    None => no(libc::EPROTO),
                }
            }
            Some(Ask::Lookup { parent: abi::ROOT, name }) if name == self.file.name.as_bytes() => {
                Ok(Reply::entry(abi::FILE, len, read_only).finish(h.unique))
            }
            Some(Ask::Lookup { .. }) => no(libc::ENOENT),
            // Its length is the volume's, whatever is asked for; that is how the kernel is told of a new one.
            Some(Ask::GetAttr { node } | Ask::SetAttr { node }) => {
                Ok(Reply::attributes(node, len, read_only).finish(h.unique))
            }
            Some(Ask::Open { node: abi::FILE } | Ask::OpenDir { node: abi::ROOT }) => {
                Ok(Reply::opened().finish(h.unique))
            }
            Some(Ask::Open { .. } | Ask::OpenDir { .. }) => no(libc::EISDIR),
            Some(Ask::Release | Ask::Destroy) => Ok(Reply::error(h.unique, 0).to_vec()),
            Some(Ask::StatFs) => Ok(Reply::statfs(len).finish(h.unique)),
            Some(Ask::ReadDir { from, len }) => {
                Ok(Reply::directory(&self.file.name, from, len).finish(h.unique))
            }
            Some(Ask::Write { .. } | Ask::Other) => no(libc::ENOSYS),
        };
        match reply {
            Ok(bytes) => self.answer(&bytes, None),
            Err(e) => self.answer(&Reply::error(h.unique, e.0), None),
        }
    }

    fn answer(&self, head: &[u8], data: Option<&Slice>) {
        if let Err(e) = sys::write_two(self.connection.as_fd(), head, data)
            // ENOENT: nobody waits for it any more. ENODEV: the connection is gone, which `take` sees.
            && !matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENODEV))
        {
            tracing::error!(error = %e, "the kernel does not take an answer");
        }
    }

    async fn serve(&self, w: Work) {
        let unique = w.unique;
        let done = match w.what {
            What::Read { at, len } => {
                let buf = self.pool.alloc(len).await;
                let r = self.disk.run(&Request::Read { at, buf: buf.clone() }).await;
                if r.is_ok() {
                    self.answer(&Reply::head(unique, len), Some(&buf));
                }
                r
            }
            What::Write { at, buf } => {
                let len = buf.len() as u32;
                let r = self.disk.run(&Request::Write { at, buf, fua: false }).await;
                if r.is_ok() {
                    self.answer(&Reply::written(unique, len), None);
                }
                r
            }
            What::Sync => self.plain(unique, Request::Flush).await,
            What::Allocate { at, len, mode } => match self.allocation(at, len, mode) {
                Ok(r) => self.plain(unique, r).await,
                Err(e) => Err(e),
            },
        };
        if let Err(e) = done {
            self.answer(&Reply::error(unique, e.0), None);
        }
        self.count(|c| {
            c.under_way -= 1;
            c.answered += 1;
            c.failed += u64::from(done.is_err());
        });
    }

    async fn plain(&self, unique: u64, r: Request) -> Result<(), Errno> {
        self.disk.run(&r).await?;
        self.answer(&Reply::error(unique, 0), None);
        Ok(())
    }

    /// What a fallocate is for the volume. A hole reads as zeroes, also for the loop device, which makes both discards
    /// and zeroes of it; so a volume that gives no space back refuses it rather than write zeroes for every discard.
    fn allocation(&self, at: u64, len: u64, mode: u32) -> Result<Request, Errno> {
        match mode & !KEEP_SIZE {
            PUNCH_HOLE if self.disk.geometry().thin => {
                Ok(Request::WriteZeroes { at, len, unmap: true })
            }
            ZERO_RANGE => Ok(Request::WriteZeroes { at, len, unmap: false }),
            _ => Err(Errno(libc::EOPNOTSUPP)),
        }
    }
}

/// Serves one request after the other.
async fn work<D: Disk>(queue: Weak<Queue<D>>) {
    // The reactor keeps the queue for as long as it keeps this task.
    while let Some(q) = queue.upgrade() {
        q.arrived.wait().await;
        let next = q.todo.borrow_mut().pop_front();
        if let Some(w) = next {
            q.serve(w).await;
        }
    }
}

/// What the reactor polls.
struct Source<D>(Rc<Queue<D>>);

impl<D: Disk> Poller for Source<D> {
    fn poll(&self) -> bool {
        self.0.take()
    }

    fn arm(&self) -> bool {
        if self.0.ended.borrow().is_some() {
            self.0.watch.arm(false);
        }
        true
    }
}
