//! A connection in service.

use crate::execute::{LONGEST, error};
use crate::greet::Greeted;
use crate::nexuses::{Initiator, octets};
use crate::port::Port;
use crate::status;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::atomic::Ordering;
use weir_base::{MICROS, Nanos, SECONDS};
use weir_mem::{Share, Slice};
use weir_proto_nbd::structured::Head;
use weir_proto_nbd::{Agreed, Intake, Item, Op, Request};
use weir_proto_scsi::lu::Nexus;
use weir_proto_scsi::lun::Lun;
use weir_proto_scsi::transport_id::TransportId;
use weir_reactor::{
    LocalFuture, TaskId, WaitChannel, contained_future, current_id, now, run_async, sleep,
    spawn_task, unless,
};
use weir_stream::{Piece, Stream, WouldBlock};
use weir_target_core::doubts::Doubts;
use weir_target_core::{Attached, Attachment, ChannelLine, Link, Seat};

/// Requests of one connection at once; more wait in TCP.
pub(crate) const DEPTH: u32 = 64;
/// How long a request may keep memory of its own, of which there is little: until its data have come, or its reply has gone.
const LARGE_PATIENCE: Nanos = 60 * SECONDS;
/// Bytes received at most in one go.
pub(crate) const STAGING: usize = 64 << 10;
/// Replies that one system call sends.
const GATHER: usize = 32;
/// Bytes of replies that wait in our system to leave.
const UNSENT: u32 = 256 << 10;
/// How often is looked whether what was sent has arrived.
const LOOK: Nanos = 200 * MICROS;

/// A reply on its way.
struct Reply {
    head: Head,
    data: Option<Slice>,
    _large: Option<Rc<Large>>,
}

impl Reply {
    fn len(&self) -> usize {
        self.head.bytes().len() + self.data.as_ref().map_or(0, Slice::len)
    }
}

/// One of the requests with memory of their own.
struct Large {
    port: Rc<Port>,
    /// Whoever keeps it for too long loses its connection.
    watch: Cell<Option<TaskId>>,
    /// That of its host.
    own: Rc<WaitChannel>,
}

impl Drop for Large {
    fn drop(&mut self) {
        self.port.large.signal();
        self.own.signal();
        if let Some(watch) = self.watch.take() {
            weir_reactor::cancel(watch);
        }
    }
}

/// Memory for the data of a request.
enum Memory {
    Buffer(Slice),
    Large(Slice, Rc<Large>),
    /// It ends in this error, whatever its data are.
    None(u32),
}

impl Memory {
    fn slice(&self) -> Result<&Slice, u32> {
        match self {
            Memory::Buffer(s) | Memory::Large(s, _) => Ok(s),
            Memory::None(e) => Err(*e),
        }
    }
}

/// How the requests of a connection came to an end.
#[derive(PartialEq, Eq)]
enum Last {
    /// In the middle of one, or there is no connection any more.
    Broken,
    /// The client has said so, or wants no more.
    Left,
    /// The port wants no more.
    Stopped,
}

pub(crate) struct Conn {
    pub(crate) port: Rc<Port>,
    pub(crate) stream: Box<dyn Stream>,
    peer: String,
    pub(crate) initiator: Initiator,
    /// No other connection of the port has it.
    pub(crate) number: u64,
    lun: Lun,
    pub(crate) naa: [u8; 16],
    /// What the number was last found to mean.
    known: RefCell<Weak<Attached>>,
    pub(crate) agreed: Agreed,
    view: Attachment,
    share: Share,
    slots: WaitChannel,
    /// A request waits for its place or memory.
    waits: Cell<bool>,
    /// Whether its client is there. While that is asked nothing begins.
    pub(crate) doubts: Rc<Doubts>,
    /// Bytes of replies that had gone when it was asked about last, until one that went since is acknowledged.
    pub(crate) suspect: Cell<Option<u64>>,
    /// What has been received ahead of its turn, signalled when there is some; when that was looked for, and whether it was all.
    pub(crate) ahead: RefCell<VecDeque<Vec<u8>>>,
    pub(crate) ahead_len: Cell<usize>,
    pub(crate) news_ahead: WaitChannel,
    pub(crate) looked: Cell<Nanos>,
    pub(crate) is_all: Cell<bool>,
    /// When something came last.
    came: Cell<Nanos>,
    /// The client wants no more than it has asked for.
    goodbye: Cell<bool>,
    replies: RefCell<VecDeque<Reply>>,
    /// Bytes of the first of them that have gone.
    gone: Cell<usize>,
    /// Bytes of replies so far, and of these with the kernel.
    queued: Cell<u64>,
    handed: Cell<u64>,
    /// Signalled when there is a reply, or the end.
    news: WaitChannel,
    busy: Cell<u32>,
    commands: Cell<u64>,
    /// No request is taken any more; those that run are answered.
    ending: Cell<bool>,
    /// Nobody is there to be answered.
    over: Cell<bool>,
    halt: WaitChannel,
    _seat: Seat,
    me: Weak<Conn>,
}

impl Conn {
    /// Puts a connection into service.
    pub(crate) fn start(port: &Rc<Port>, stream: Box<dyn Stream>, g: Greeted) {
        let shared = &port.shared;
        let nexus = shared.nexuses.enter(g.initiator, current_id(), || shared.spread.new_nexus());
        let account = shared.access.map().account(&g.initiator, "");
        let (id, who) = (TransportId::srp(octets(&g.initiator)), g.initiator.to_vec());
        let conn = Rc::new_cyclic(|me: &Weak<Conn>| Conn {
            port: port.clone(),
            stream,
            peer: g.peer,
            initiator: g.initiator,
            number: shared.next.fetch_add(1, Ordering::Relaxed),
            lun: g.lun,
            naa: g.naa,
            known: RefCell::default(),
            agreed: g.agreed,
            view: Attachment::new(nexus, who, id, shared.relative),
            share: port.pool.share(&account),
            slots: WaitChannel::new(DEPTH),
            waits: Cell::new(false),
            doubts: Rc::default(),
            suspect: Cell::new(None),
            ahead: RefCell::default(),
            ahead_len: Cell::new(0),
            news_ahead: WaitChannel::new(0),
            looked: Cell::new(0),
            is_all: Cell::new(false),
            came: Cell::new(now()),
            goodbye: Cell::new(false),
            replies: RefCell::default(),
            gone: Cell::new(0),
            queued: Cell::new(0),
            handed: Cell::new(0),
            news: WaitChannel::new(0),
            busy: Cell::new(0),
            commands: Cell::new(0),
            ending: Cell::new(false),
            over: Cell::new(false),
            halt: WaitChannel::new(0),
            _seat: g.seat,
            me: me.clone(),
        });
        conn.view.set_link(conn.me.clone());
        conn.view.look_at_only(g.lun);
        // A fence waits until what was sent before has arrived. What lies in our own system would be too much for who is slow.
        conn.stream.limit_unsent(UNSENT);
        port.add(&conn);
        spawn_task(conn.live(g.rest));
    }

    pub(crate) fn nexus(&self) -> Nexus {
        self.view.nexus()
    }

    /// The export, as long as the host sees it. Another volume that has its number by now is none of the client's: it would take it
    /// for the same.
    pub(crate) fn export(&self) -> Option<Rc<Attached>> {
        let found = self.view.find(self.lun)?;
        let now = Rc::downgrade(&found);
        if !self.known.borrow().ptr_eq(&now) {
            if found.unit().shared().with(|s| s.identity().naa != self.naa) {
                self.abort("another volume has its number");
                return None;
            }
            *self.known.borrow_mut() = now;
        }
        Some(found)
    }

    /// The port ends whatever commands still do.
    pub(crate) fn parts(&self) {
        self.view.leave();
    }

    /// The host sees it, and it is not there (yet).
    pub(crate) fn is_absent(&self) -> bool {
        self.view.is_absent(self.lun)
    }

    /// Waits, or until nobody is there to be answered.
    pub(crate) async fn pause(&self, time: Nanos) {
        unless(self.halt.wait(), sleep(time)).await;
    }

    /// Something has come.
    pub(crate) fn came(&self) {
        self.came.set(now());
    }

    /// When something came last.
    pub(crate) fn last_came(&self) -> Nanos {
        self.came.get()
    }

    /// What it has asked for is done to its end.
    pub(crate) fn has_said_goodbye(&self) -> bool {
        self.goodbye.get()
    }

    /// Bytes of replies with the kernel so far.
    pub(crate) fn handed(&self) -> u64 {
        self.handed.get()
    }

    /// Looks at the access map, if that has changed.
    pub(crate) fn look(&self) {
        self.view.refresh(&self.port.shared.access, &self.port.units);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.get() || self.port.is_dead()
    }

    /// A command waits for a place or a buffer.
    pub(crate) fn waits(&self) -> bool {
        self.waits.get()
    }

    pub(crate) fn line(&self) -> ChannelLine {
        ChannelLine {
            peer: self.peer.clone(),
            initiator: self.initiator.to_vec(),
            host: self.view.host(),
            commands: self.commands.get(),
            busy: self.busy.get(),
        }
    }

    /// Takes no more requests; those that run are answered.
    pub(crate) fn end(&self, why: &str) {
        if !self.ending.replace(true) {
            tracing::info!(peer = %self.peer, why, "a connection ends");
            self.halt.signal_all();
        }
    }

    /// Ends at once.
    pub(crate) fn abort(&self, why: &str) {
        self.end(why);
        if !self.over.replace(true) {
            self.stream.abort();
            self.halt.signal_all();
            self.news.signal_all();
        }
    }

    async fn live(self: Rc<Self>, rest: Vec<u8>) {
        let shared = self.port.shared.clone();
        self.look();
        let host = self.view.host();
        shared.spread.counts().logged_in(&host, &self.peer);
        tracing::info!(peer = %self.peer, %host, "connection in service");
        let sender = spawn_task(self.clone().send());
        let many = shared.nexuses.are_many(&self.initiator);
        if many {
            let ask = unless(self.halt.wait(), self.after_former());
            if unless(self.gone_again(), ask).await.flatten() == Some(false) {
                self.abort("another connection of its host may have been left by a gone client");
            }
        }
        if many {
            // Others may have asked before this one was here to be asked.
            self.part_if_gone();
        }
        let served = contained_future(pin!(self.clone().receive(rest))).await;
        match served {
            Ok(Last::Broken) => {}
            Ok(how) => {
                if how == Last::Left && !self.goodbye.get() {
                    // What was received begins, if it need not wait for others.
                    run_async().await;
                    // Who comes next may be another life of the host, and what it writes is newer than what has not begun.
                    self.view.leave();
                }
                // Who has said goodbye has all done that it has asked for (NBD protocol, `NBD_CMD_DISC`).
                // What came before is answered.
                while self.busy.get() > 0 && !self.is_over() {
                    self.news.wait().await;
                }
            }
            Err(p) => shared.spread.broke(&self.peer, &p),
        }
        self.end("it is over");
        self.over.set(true);
        self.view.leave();
        self.stream.shutdown(true);
        weir_reactor::cancel(sender);
        let unsent = self.replies.take().len();
        (0..unsent).for_each(|_| self.sent());
        while self.busy.get() > 0 {
            self.news.wait().await;
        }
        self.view.left().await;
        shared.spread.counts().logged_out(&host);
        shared.spread.counts().gone(self.commands.get());
        if shared.nexuses.leave(&self.initiator, current_id()) {
            shared.access.nexus_lost(self.nexus());
        }
        tracing::info!(peer = %self.peer, %host, "connection closed");
        self.port.remove(&self);
    }

    /// Takes requests until the client, or the port, wants no more.
    async fn receive(self: Rc<Self>, rest: Vec<u8>) -> Last {
        let mut intake = Intake::new();
        // The write whose data come, and how much of them is there; without memory they are skipped.
        let mut write: Option<(Request, Memory, usize)> = None;
        let (mut staging, mut have) = (vec![0; STAGING], rest);
        loop {
            let mut left = &have[..];
            while !left.is_empty() {
                if self.ending.get() {
                    return Last::Stopped;
                }
                let Ok((item, more)) = intake.next(left) else {
                    tracing::warn!(peer = %self.peer, "what it sends is no NBD request");
                    return Last::Broken;
                };
                left = more;
                match item {
                    Some(Item::Request(r)) if r.op == Op::Disconnect => {
                        self.goodbye.set(true);
                        return Last::Left;
                    }
                    Some(Item::Request(r)) => {
                        let Some(memory) = self.memory(&r).await else { return Last::Stopped };
                        write = Some((r, memory, 0));
                    }
                    Some(Item::Data(d)) => {
                        let Some((_, memory, filled)) = &mut write else { continue };
                        if let Ok(m) = memory.slice() {
                            m.write_at(*filled, d);
                        }
                        *filled += d.len();
                    }
                    None => {}
                }
                if intake.wanted() == 0
                    && let Some((r, memory, _)) = write.take()
                {
                    if !self.may_begin().await {
                        return Last::Stopped;
                    }
                    self.begin(r, memory);
                }
            }
            if self.ending.get() {
                return Last::Stopped;
            }
            let next = unless(self.halt.wait(), self.more(&mut staging, &mut have)).await;
            match next {
                // Others have their turn, however much is there.
                Some(Ok(true)) => run_async().await,
                // Between two requests that is an end like any other.
                Some(Ok(_)) if intake.is_within() => return Last::Broken,
                Some(Ok(_)) => return Last::Left,
                Some(Err(_)) => return Last::Broken,
                None => return Last::Stopped,
            }
        }
    }

    /// The next bytes. False: there are no more.
    async fn more(&self, staging: &mut [u8], have: &mut Vec<u8>) -> std::io::Result<bool> {
        loop {
            if let Some(ahead) = self.take_ahead() {
                *have = ahead;
                return Ok(true);
            }
            match self.stream.receive_bytes(staging)? {
                Ok(n) => {
                    self.came();
                    have.clear();
                    have.extend_from_slice(&staging[..n]);
                    return Ok(n > 0);
                }
                Err(WouldBlock) => {
                    // What it says does not matter: it is tried again.
                    let _ = unless(self.news_ahead.wait(), self.stream.ready(false)).await;
                }
            }
        }
    }

    /// Waits while it is asked whether the client is there. False: nothing begins any more.
    async fn may_begin(&self) -> bool {
        self.certain().await;
        if self.is_suspect() {
            self.part_if_gone();
        }
        !self.ending.get()
    }

    /// Waits while it is asked whether the client is there, or until the end.
    pub(crate) async fn certain(&self) {
        if self.doubts.are_raised() && !self.ending.get() {
            unless(self.halt.wait(), self.doubts.cleared()).await;
        }
    }

    /// Waits for a place for a request, and for memory for its data. `None`: the connection ends.
    async fn memory(&self, r: &Request) -> Option<Memory> {
        self.waits.set(true);
        let wait = async {
            self.slots.wait().await;
            let has_data = matches!(r.op, Op::Read | Op::Write { .. });
            match r.len as usize {
                _ if matches!(r.op, Op::BlockStatus { .. }) => Memory::Buffer(status::memory()),
                n if n == 0 || !has_data => Memory::Buffer(Slice::heap(1).sub(0, 0)),
                n if n <= self.share.max_len() => Memory::Buffer(self.share.alloc(n).await),
                _ if r.len > LONGEST => Memory::None(error::EOVERFLOW),
                _ if !self.has(r) => Memory::None(error::EINVAL),
                n => {
                    // One of each host, so that one that stands still has not all.
                    let own = self.port.large_of(self.initiator);
                    let turn = own.acquire(1).await;
                    self.port.large.wait().await;
                    turn.forget();
                    let watch = Cell::new(Some(self.watch()));
                    let large = Large { port: self.port.clone(), own: own.clone(), watch };
                    Memory::Large(Slice::heap(n).sub(0, n), Rc::new(large))
                }
            }
        };
        let memory = unless(self.gone(), unless(self.halt.wait(), wait)).await.flatten();
        self.waits.set(false);
        memory
    }

    /// Whoever keeps scarce memory for too long loses its connection.
    fn watch(&self) -> TaskId {
        let me = self.me.clone();
        spawn_task(async move {
            sleep(LARGE_PATIENCE).await;
            if let Some(me) = me.upgrade() {
                me.abort("a large request has not come to its end");
            }
        })
    }

    /// Whether the volume has what a request is about. Of one that is not there (now) the request itself tells.
    fn has(&self, r: &Request) -> bool {
        self.look();
        let end = r.at.checked_add(u64::from(r.len));
        let in_it = |a: Rc<Attached>| end.is_some_and(|end| end <= a.len(self.nexus()));
        self.export().is_none_or(in_it)
    }

    /// Starts a request, which has its place.
    fn begin(&self, r: Request, memory: Memory) {
        let Some(me) = self.me.upgrade() else { return };
        self.busy.set(self.busy.get() + 1);
        self.commands.set(self.commands.get() + 1);
        spawn_task(async move {
            let done = match memory.slice() {
                Err(e) => Err(e),
                Ok(m) => match contained_future(pin!(me.execute(&r, m))).await {
                    Ok(done) => done,
                    Err(p) => {
                        me.port.shared.spread.broke(&me.peer, &p);
                        me.abort("an error of this program");
                        Err(error::EIO)
                    }
                },
            };
            let (memory, large) = match memory {
                Memory::Buffer(s) => (Some(s), None),
                Memory::Large(s, large) => (Some(s), Some(large)),
                Memory::None(_) => (None, None),
            };
            let data = memory.zip(done.ok()).filter(|(_, n)| *n > 0).map(|(s, n)| s.sub(0, n));
            let head = me.head(&r, done);
            me.answer(Reply { head, data, _large: large });
        });
    }

    /// What begins the reply to a request.
    fn head(&self, r: &Request, done: Result<usize, u32>) -> Head {
        let structured = self.agreed.structured;
        match (r.op, done) {
            (Op::Read | Op::BlockStatus { .. }, Err(e)) if structured => Head::error(r.cookie, e),
            (Op::Read, Ok(n)) if structured => Head::data(r, n),
            (Op::BlockStatus { .. }, Ok(n)) => Head::status(r, n),
            (_, done) => Head::simple(r.cookie, done.err().unwrap_or(0)),
        }
    }

    fn answer(&self, reply: Reply) {
        match self.over.get() {
            true => self.sent(),
            false => {
                self.queued.set(self.queued.get() + reply.len() as u64);
                self.replies.borrow_mut().push_back(reply);
            }
        }
        self.news.signal_all();
    }

    /// A reply has gone, or never will.
    fn sent(&self) {
        self.busy.set(self.busy.get() - 1);
        self.slots.signal();
    }

    /// Sends replies as they come.
    async fn send(self: Rc<Self>) {
        loop {
            if self.is_over() {
                return;
            }
            if self.replies.borrow().is_empty() {
                self.news.wait().await;
                continue;
            }
            match self.try_send() {
                Ok(Ok(())) => {}
                Ok(Err(WouldBlock)) => drop(self.stream.ready(true).await),
                Err(e) => return self.abort(&format!("connection lost: {e}")),
            }
        }
    }

    /// Sends what the kernel takes of the first replies.
    fn try_send(&self) -> std::io::Result<Result<(), WouldBlock>> {
        let mut replies = self.replies.borrow_mut();
        let (mut pieces, mut skip) = (Vec::with_capacity(2 * GATHER), self.gone.get());
        for r in replies.iter().take(GATHER) {
            let data = r.data.as_ref().map(|d| (d.as_ptr().cast_const(), d.len()));
            let head = (r.head.bytes().as_ptr(), r.head.bytes().len());
            for (at, len) in [Some(head), data].into_iter().flatten() {
                let gone = skip.min(len);
                skip -= gone;
                if gone < len {
                    // SAFETY: the queue keeps it, and is not changed before the pieces are gone.
                    pieces.push(unsafe { Piece::new(at.add(gone), len - gone) });
                }
            }
        }
        let n = match self.stream.send(&pieces)? {
            Ok(n) => n,
            Err(w) => return Ok(Err(w)),
        };
        drop(pieces);
        self.handed.set(self.handed.get() + n as u64);
        let mut gone = self.gone.get() + n;
        while let Some(r) = replies.front() {
            let len = r.len();
            if gone < len {
                break;
            }
            gone -= len;
            replies.pop_front();
            self.sent();
        }
        self.gone.set(gone);
        if replies.is_empty() {
            self.news.signal_all();
        }
        Ok(Ok(()))
    }
}

impl Link for Conn {
    fn refresh(&self) {
        self.look();
    }

    fn sent(&self) -> LocalFuture<'static, ()> {
        let (me, at) = (self.me.clone(), self.queued.get());
        Box::pin(async move {
            let waits = |c: &Rc<Conn>| {
                // What is not acknowledged may be older than the first reply.
                !c.is_over() && c.handed.get() < at + c.stream.unacknowledged()
            };
            while me.upgrade().is_some_and(|c| waits(&c)) {
                sleep(LOOK).await;
            }
        })
    }

    fn cut(&self, why: &str) {
        tracing::warn!(peer = %self.peer, why, "closing a connection");
        self.abort(why);
    }

    fn bar(&self) {
        self.abort("its host is not let in any more");
    }
}
