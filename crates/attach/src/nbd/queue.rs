//! One reactor's connection to the driver: requests come and replies go by a socket, in any order.

use crate::disk::{Disk, Errno, MAX_IO, Request, for_the_next};
use crate::sys;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::rc::{Rc, Weak};
use weir_mem::Slice;
use weir_proto_nbd::{self as proto, Intake, Item, Op, REPLY};
use weir_reactor::{Poller, Reactor, WaitChannel, spawn_task};
use weir_uring::{Ring, Watch};

/// Requests of a connection under way at once: as many as the driver's tags for it, so that there is always a buffer.
const TASKS: usize = 128;
/// Bytes that are received at once; data of long writes go straight to their buffers.
const STAGE: usize = 64 << 10;
/// Receptions in one turn.
const TURN: usize = 32;

/// A request that waits for a task, with the memory for its data.
struct Work {
    request: proto::Request,
    buf: Option<Slice>,
}

/// The data of a write that come in.
struct Filling {
    request: proto::Request,
    /// None: it is too long, and its data go nowhere.
    buf: Option<Slice>,
    have: usize,
}

struct Input {
    intake: Intake,
    stage: Box<[u8]>,
    /// What was received and not looked at.
    from: usize,
    to: usize,
    filling: Option<Filling>,
}

/// A reply on its way.
struct Out {
    head: [u8; REPLY],
    /// What goes with it: the buffer, and how much of it.
    data: Option<(Slice, usize)>,
    sent: usize,
}

/// What a queue has done, and has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Census {
    /// Requests answered.
    pub answered: u64,
    /// Of these, with an error.
    pub failed: u64,
    /// Requests taken and not answered.
    pub under_way: u64,
}

/// One reactor's queue.
pub struct Queue<D> {
    socket: UnixStream,
    disk: Rc<D>,
    watch: Watch,
    ready: Rc<RefCell<VecDeque<u64>>>,
    input: RefCell<Input>,
    /// Buffers that no request has.
    free: RefCell<Vec<Slice>>,
    todo: RefCell<VecDeque<Work>>,
    arrived: WaitChannel,
    output: RefCell<VecDeque<Out>>,
    census: Cell<Census>,
    /// Called once, when the connection has ended.
    ended: RefCell<Option<Box<dyn FnOnce()>>>,
}

impl<D: Disk> Queue<D> {
    /// Serves requests that come by `socket`, which does not wait, on the present reactor, until its other end is gone or
    /// says good-bye, and calls `ended` then.
    pub fn start(
        reactor: &Reactor,
        ring: &Ring,
        socket: UnixStream,
        disk: Rc<D>,
        ended: impl FnOnce() + 'static,
    ) -> Rc<Queue<D>> {
        let ready = Rc::new(RefCell::new(VecDeque::with_capacity(4)));
        let watch = ring.watch(socket.as_raw_fd(), 0, ready.clone());
        let stage = vec![0; STAGE].into_boxed_slice();
        let queue = Rc::new(Queue {
            socket,
            disk,
            watch,
            ready,
            input: RefCell::new(Input {
                intake: Intake::new(),
                stage,
                from: 0,
                to: 0,
                filling: None,
            }),
            // Memory is taken as far as it is used.
            free: RefCell::new((0..TASKS).map(|_| Slice::heap(MAX_IO)).collect()),
            todo: RefCell::new(VecDeque::with_capacity(TASKS)),
            arrived: WaitChannel::new(0),
            output: RefCell::new(VecDeque::with_capacity(TASKS)),
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

    fn is_over(&self) -> bool {
        self.ended.borrow().is_none()
    }

    /// True when requests may be there for which there is no buffer.
    fn is_full(&self) -> bool {
        self.free.borrow().is_empty()
    }

    fn end(&self, why: &str) {
        let ended = self.ended.borrow_mut().take();
        if let Some(f) = ended {
            tracing::debug!(why, "a connection of the nbd driver has ended");
            let _ = self.socket.shutdown(Shutdown::Both);
            f();
        }
    }

    /// Takes requests and sends replies; true when there was any.
    fn turn(&self) -> bool {
        if self.is_over() {
            return false;
        }
        if self.watch.armed() && self.ready.borrow_mut().pop_front().is_none() {
            return false;
        }
        self.ready.borrow_mut().clear();
        let mut any = self.send();
        for _ in 0..TURN {
            let mut input = self.input.borrow_mut();
            match self.look(&mut input) {
                Ok(true) => {}
                Ok(false) => return any,
                Err(why) => {
                    drop(input);
                    self.end(&why);
                    return true;
                }
            }
            let received = self.receive(&mut input);
            let within = input.intake.is_within();
            drop(input);
            match received {
                Ok(0) => {
                    if within {
                        tracing::error!("the nbd driver has ended a connection within a request");
                    }
                    self.end("the other end is gone");
                    return true;
                }
                Ok(_) => any = true,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return any,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    self.end(&e.to_string());
                    return true;
                }
            }
        }
        any
    }

    /// Receives once: data of a write to where they belong, all else to the stage, which is empty.
    fn receive(&self, input: &mut Input) -> io::Result<usize> {
        let wanted = input.intake.wanted();
        if wanted >= STAGE
            && let Some(f) = &mut input.filling
            && let Some(buf) = &f.buf
        {
            let rest = buf.sub(f.have, wanted);
            let n = sys::read_two(self.socket.as_fd(), &mut [], &rest)?;
            f.have += n;
            input.intake.passed(n);
            self.filled(input);
            return Ok(n);
        }
        let n = (&self.socket).read(&mut input.stage)?;
        (input.from, input.to) = (0, n);
        Ok(n)
    }

    /// Looks at what is on the stage. False: there is no buffer for what is next.
    fn look(&self, input: &mut Input) -> Result<bool, String> {
        while input.from < input.to {
            if input.intake.wanted() == 0 && self.is_full() {
                return Ok(false);
            }
            let Input { intake, stage, from, to, filling } = input;
            let staged = stage.get(*from..*to).unwrap_or_default();
            let (item, rest) = intake.next(staged).map_err(|e| e.to_string())?;
            *from = *to - rest.len();
            match (item, filling) {
                (Some(Item::Request(r)), _) => self.request(input, r)?,
                (Some(Item::Data(d)), Some(f)) => {
                    if let Some(buf) = &f.buf {
                        buf.write_at(f.have, d);
                    }
                    f.have += d.len();
                    self.filled(input);
                }
                (Some(Item::Data(_)), None) | (None, _) => {}
            }
        }
        Ok(true)
    }

    /// A request. There is a buffer for it.
    fn request(&self, input: &mut Input, request: proto::Request) -> Result<(), String> {
        let len = request.len as usize;
        let data = || {
            let fits = (1..=MAX_IO).contains(&len);
            fits.then(|| self.free.borrow_mut().pop()).flatten()
        };
        match request.op {
            Op::Disconnect => return Err("the driver has said good-bye".into()),
            Op::Write { .. } => {
                input.filling = Some(Filling { request, buf: data(), have: 0 });
                self.filled(input);
            }
            Op::Read => match data() {
                Some(buf) => self.enqueue(request, Some(buf)),
                None => self.refuse(request, libc::EINVAL),
            },
            Op::Flush | Op::Trim { .. } | Op::WriteZeroes { .. } => self.enqueue(request, None),
            Op::Cache | Op::BlockStatus { .. } | Op::Unknown(_) => {
                self.refuse(request, libc::EOPNOTSUPP)
            }
        }
        Ok(())
    }

    /// Passes a write on when all of its data are there.
    fn filled(&self, input: &mut Input) {
        if input.intake.wanted() > 0 {
            return;
        }
        match input.filling.take() {
            Some(Filling { request, buf: Some(buf), .. }) => self.enqueue(request, Some(buf)),
            Some(Filling { request, buf: None, .. }) => self.refuse(request, libc::EINVAL),
            None => {}
        }
    }

    fn enqueue(&self, request: proto::Request, buf: Option<Slice>) {
        self.count(|c| c.under_way += 1);
        self.todo.borrow_mut().push_back(Work { request, buf });
        self.arrived.signal();
    }

    fn refuse(&self, request: proto::Request, errno: i32) {
        self.count(|c| c.under_way += 1);
        self.reply(&request, Err(Errno(errno)), None);
    }

    async fn serve(&self, w: Work) {
        let Work { request, buf } = w;
        let (at, len) = (request.at, request.len as usize);
        let range = u64::from(request.len);
        let (disk, part) = (&self.disk, buf.as_ref().map(|b| b.sub(0, len.min(b.len()))));
        let done = match (request.op, part) {
            (Op::Read, Some(buf)) => disk.run(&Request::Read { at, buf }).await,
            (Op::Write { fua }, Some(buf)) => disk.run(&Request::Write { at, buf, fua }).await,
            (Op::Flush, _) => disk.run(&Request::Flush).await,
            (Op::Trim { .. }, _) => disk.run(&Request::Discard { at, len: range }).await,
            (Op::WriteZeroes { fua, unmap }, _) => {
                let zeroed = disk.run(&Request::WriteZeroes { at, len: range, unmap }).await;
                match zeroed {
                    Ok(()) if fua => disk.run(&Request::Flush).await,
                    r => r,
                }
            }
            _ => Err(Errno(libc::EINVAL)),
        };
        let buf = if done.is_err() { buf.map(for_the_next) } else { buf };
        self.reply(&request, done, buf);
    }

    /// Answers a request, and has its buffer for others once it is sent.
    fn reply(&self, request: &proto::Request, done: Result<(), Errno>, buf: Option<Slice>) {
        self.count(|c| {
            c.under_way -= 1;
            c.answered += 1;
            c.failed += u64::from(done.is_err());
        });
        let error = done.map_or_else(|e| proto::error_number(e.0), |()| 0);
        let len = if request.op == Op::Read && error == 0 { request.len as usize } else { 0 };
        let out =
            Out { head: proto::reply(request.cookie, error), data: buf.map(|b| (b, len)), sent: 0 };
        self.output.borrow_mut().push_back(out);
        self.send();
    }

    /// Sends replies as far as the socket takes them; true when there was any.
    fn send(&self) -> bool {
        let mut any = false;
        let mut output = self.output.borrow_mut();
        while let Some(out) = output.front_mut() {
            let len = out.data.as_ref().map_or(0, |(_, len)| *len);
            if !self.is_over() && out.sent < REPLY + len {
                let head = out.head.get(out.sent.min(REPLY)..).unwrap_or_default();
                let past = out.sent.saturating_sub(REPLY);
                let data = out.data.as_ref().filter(|_| len > past);
                let data = data.map(|(b, len)| b.sub(past, len - past));
                match sys::write_two(self.socket.as_fd(), head, data.as_ref()) {
                    Ok(n) => {
                        out.sent += n;
                        any = true;
                    }
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => return any,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => {
                        drop(output);
                        self.end(&e.to_string());
                        return self.send();
                    }
                }
                continue;
            }
            if let Some((buf, _)) = output.pop_front().and_then(|o| o.data) {
                self.free.borrow_mut().push(buf);
            }
        }
        any
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
        self.0.turn()
    }

    fn arm(&self) -> bool {
        let q = &self.0;
        let replies = !q.output.borrow().is_empty();
        // Without a buffer there is nothing to do until a request has ended.
        if !q.is_over() && (replies || !q.is_full()) {
            q.watch.arm(replies);
        }
        true
    }
}
