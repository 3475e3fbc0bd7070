//! One channel: its slots outlive its connections.
//!
//! | | |
//! |---|---|
//! | [`submit`] | from a command to its message; merging |
//! | [`receive`] | what the target sends |
//! | [`connect`] | logins, loss and return of the connection, what is in doubt |
//! | [`early`] | checksums of data as they come |
//! | [`watch`] | keep-alive, commands that take too long |
//!
//! A command's future may be dropped at any time. Its registrations end at once, so that its memory can be
//! used for something else; the command is aborted, and its slot stays taken until the target has told its end.

mod connect;
mod early;
mod receive;
mod slot;
mod submit;
mod watch;

pub(crate) use slot::Outcome;

use crate::config::{MESSAGE, SessionConfig};
use crate::error::Error;
use crate::merge::{Controller, Decision, Variant};
use crate::planted::{Bug, has};
use crate::session::Shared;
use slot::{Slot, State, Table};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll};
use weir_base::Nanos;
use weir_fabric::{Connection, Provider};
use weir_mem::{BufPool, PoolConfig, Slice};
use weir_proto_brp::{Command, Features, Op};
use weir_reactor::{TaskId, WaitChannel, now, spawn_task};

/// Send buffers of a channel, for small writes that share a message.
const SEND_BUFFERS: usize = 16;
/// Messages of the target beyond one per slot.
const EXTRA_RECEIVES: usize = 8;

/// The path of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Path {
    /// No connection; commands wait.
    Blocked,
    /// Commands run.
    Up,
    /// No connection for too long; commands fail.
    Failing,
    /// Another session of this initiator port has taken its place; commands fail.
    Replaced,
    /// Volumes may not be what they were, and commands are not for others: they fail, and no new connection is made.
    Stale,
    /// Closed by its owner.
    Closed,
}

/// What the present connection was granted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) features: Features,
    /// Longest message that the target receives, in bytes.
    pub(crate) max_message: usize,
    pub(crate) max_len: u32,
    pub(crate) max_segments: u16,
    pub(crate) max_commands: usize,
    pub(crate) keep_alive: Nanos,
}

/// One command to be run.
pub(crate) struct Io<'a> {
    pub(crate) op: Op,
    pub(crate) flags: u8,
    pub(crate) volume: u16,
    pub(crate) guard: u32,
    pub(crate) offset: u64,
    pub(crate) len: u32,
    /// Memory of what it brings or wants.
    pub(crate) memory: &'a [Slice],
}

/// What a channel holds at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelCensus {
    /// Command slots.
    pub slots: usize,
    /// Those in use.
    pub busy: usize,
    /// Registrations of commands in flight.
    pub registrations: usize,
    /// Messages that the target would take now.
    pub credits: u16,
    /// Commands that are not sent yet.
    pub waiting: usize,
}

/// What a channel has done, and what its merge controller has decided.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChannelFigures {
    /// Number of the channel.
    pub index: u16,
    /// Commands sent.
    pub commands: u64,
    /// Messages that they went in.
    pub messages: u64,
    /// Commands that shared their message with others.
    pub merged: u64,
    /// Messages of completions received.
    pub responses: u64,
    /// Completions that fitted no command, and were ignored.
    pub stale: u64,
    /// What the controller has learned, by load; only of [`Variant::Auto`].
    pub decisions: Vec<Decision>,
}

#[derive(Default)]
struct Counts {
    commands: Cell<u64>,
    messages: Cell<u64>,
    merged: Cell<u64>,
    responses: Cell<u64>,
    stale: Cell<u64>,
}

fn add(c: &Cell<u64>, n: u64) {
    c.set(c.get() + n);
}

/// A channel of the present reactor.
pub(crate) struct Channel {
    index: u16,
    shared: Arc<Shared>,
    provider: Rc<dyn Provider>,
    config: SessionConfig,
    conn: RefCell<Option<Rc<dyn Connection>>>,
    path: Cell<Path>,
    changed: WaitChannel,
    limits: Cell<Limits>,
    table: RefCell<Table>,
    placing: RefCell<early::Placing>,
    slot_units: WaitChannel,
    /// Commands to be sent, in order; aborts go first.
    pending: RefCell<VecDeque<u16>>,
    aborts: RefCell<VecDeque<u16>>,
    credits: Cell<u16>,
    /// Sends at the end of the turn.
    dispatcher: WaitChannel,
    dispatching: Cell<bool>,
    /// Waits for a place in the send queue.
    stuck: Cell<bool>,
    controller: RefCell<Controller>,
    /// Commands in flight lately, at most.
    load: Cell<u32>,
    head: RefCell<Vec<u8>>,
    keys: RefCell<Vec<(u64, u32, u32)>>,
    list: RefCell<Vec<Slice>>,
    /// The connection sends data from several places in one message, as far as is known.
    gathers: Cell<bool>,
    send_pool: BufPool,
    receives: Vec<Slice>,
    last_sent: Cell<Nanos>,
    last_heard: Cell<Nanos>,
    lost_at: Cell<Nanos>,
    /// When the present connection was made, and the pause before it.
    up_since: Cell<Nanos>,
    /// Whether the connection before was there for longer than the longest pause.
    lasted: Cell<bool>,
    pause: Cell<Nanos>,
    ping: Cell<u16>,
    /// Keyed logins tried: nonces are drawn by it.
    logins: Cell<u64>,
    /// Run of the target's program, and what names its memory of our slots: of the last login that worked.
    incarnation: Cell<u64>,
    memory: Cell<u64>,
    power: Cell<u64>,
    counts: Counts,
    tasks: RefCell<Vec<TaskId>>,
    me: Weak<Channel>,
}

impl Channel {
    /// A channel without a connection.
    pub(crate) fn new(
        shared: Arc<Shared>,
        provider: Rc<dyn Provider>,
        index: u16,
    ) -> Result<Rc<Channel>, Error> {
        let config = shared.config.clone();
        let classes = vec![(MESSAGE.next_multiple_of(4096), SEND_BUFFERS)];
        let send_pool = BufPool::new(&PoolConfig { classes })
            .map_err(|_| Error::Invalid("no memory for a channel"))?;
        let depth = config.depth.max(1);
        let n = usize::from(depth) + EXTRA_RECEIVES;
        let all = Slice::heap(n * MESSAGE);
        for (base, len) in [send_pool.region(), (all.base(), all.len())] {
            provider.register_region(base, len)?;
        }
        let channel = Rc::new_cyclic(|me| Channel {
            index,
            shared,
            provider,
            conn: RefCell::default(),
            path: Cell::new(Path::Blocked),
            changed: WaitChannel::new(0),
            limits: Cell::new(Limits {
                features: Features::default(),
                max_message: MESSAGE,
                max_len: 1 << 20,
                max_segments: 1,
                max_commands: 1,
                keep_alive: 0,
            }),
            table: RefCell::new(Table::new(depth)),
            placing: RefCell::default(),
            slot_units: WaitChannel::new(u32::from(depth)),
            pending: RefCell::default(),
            aborts: RefCell::default(),
            credits: Cell::new(0),
            dispatcher: WaitChannel::new(0),
            dispatching: Cell::new(false),
            stuck: Cell::new(false),
            controller: RefCell::default(),
            load: Cell::new(0),
            head: RefCell::default(),
            keys: RefCell::default(),
            list: RefCell::default(),
            gathers: Cell::new(true),
            send_pool,
            receives: (0..n).map(|i| all.sub(i * MESSAGE, MESSAGE)).collect(),
            last_sent: Cell::new(now()),
            last_heard: Cell::new(now()),
            lost_at: Cell::new(now()),
            up_since: Cell::new(now()),
            lasted: Cell::new(false),
            pause: Cell::new(0),
            ping: Cell::new(0),
            logins: Cell::new(0),
            incarnation: Cell::new(0),
            memory: Cell::new(0),
            power: Cell::new(0),
            counts: Counts::default(),
            tasks: RefCell::default(),
            me: me.clone(),
            config,
        });
        let tasks = vec![
            spawn_task(submit::dispatch(channel.clone())),
            spawn_task(watch::watch(channel.clone())),
        ];
        *channel.tasks.borrow_mut() = tasks;
        Ok(channel)
    }

    /// Number of the channel in its session.
    pub(crate) fn index(&self) -> u16 {
        self.index
    }

    /// What the target last said of its power: it changes when volatile caches may have been lost.
    #[inline]
    pub(crate) fn power(&self) -> u64 {
        self.power.get()
    }

    /// The path.
    #[inline]
    pub(crate) fn path(&self) -> Path {
        self.path.get()
    }

    /// What the connection was granted.
    #[inline]
    pub(crate) fn limits(&self) -> Limits {
        self.limits.get()
    }

    fn set_path(&self, path: Path) {
        if self.path.get() == Path::Closed || self.path.replace(path) == path {
            return;
        }
        self.changed.signal_all();
        if let Some(e) = self.refusal() {
            self.fail_all(e);
        }
    }

    /// Waits until the path is not as it is now.
    pub(crate) async fn path_changed(&self) {
        self.changed.wait().await;
    }

    /// Commands fail; those that are with the target keep their slots until that is settled.
    fn fail_all(&self, e: Error) {
        let mut wakers = Vec::new();
        {
            let mut t = self.table.borrow_mut();
            for s in t.slots.iter_mut() {
                match s.state {
                    State::Waiting if !s.numbered => {
                        s.state = State::Done;
                        s.outcome = Outcome::Lost(e.clone());
                        wakers.extend(s.waker.take());
                    }
                    State::Waiting | State::Sent => {
                        wakers.extend(s.orphan(Outcome::Lost(e.clone())))
                    }
                    _ => {}
                }
            }
            self.pending.borrow_mut().retain(|tag| t.slots[usize::from(*tag)].numbered);
        }
        wakers.into_iter().for_each(|w| w.wake());
        // Whoever waits for a slot finds the path down; the units given here belong to no slot.
        self.slot_units.signal_n(self.slot_units.waiting() as u32);
    }

    /// Volumes may not be what they were. Where commands are for those of before only, this is the end.
    fn doubt(&self) {
        self.shared.note_doubt();
        if !self.shared.goes_on() {
            self.set_path(Path::Stale);
            self.disconnect(true);
        }
    }

    /// Commands that nobody waits for any more and of which the target has not told the end, by slot and order. Not those
    /// that change nothing.
    pub(crate) fn given_up(&self) -> Vec<(u16, u64)> {
        let t = self.table.borrow();
        let counts = |s: &Slot| s.state == State::Orphan && s.may_change();
        let orphans = t.slots.iter().enumerate().filter(|(_, s)| counts(s));
        orphans.map(|(tag, s)| (tag as u16, s.order)).collect()
    }

    /// What is in use.
    pub(crate) fn census(&self) -> ChannelCensus {
        let t = self.table.borrow();
        ChannelCensus {
            slots: t.slots.len(),
            busy: t.in_use(),
            registrations: t.slots.iter().map(|s| s.keys.len()).sum(),
            credits: self.credits.get(),
            waiting: self.pending.borrow().len() + self.slot_units.waiting(),
        }
    }

    /// What it has done.
    pub(crate) fn figures(&self) -> ChannelFigures {
        let auto = self.config.variant == Variant::Auto;
        ChannelFigures {
            index: self.index,
            commands: self.counts.commands.get(),
            messages: self.counts.messages.get(),
            merged: self.counts.merged.get(),
            responses: self.counts.responses.get(),
            stale: self.counts.stale.get(),
            decisions: if auto { self.controller.borrow().decisions() } else { Vec::new() },
        }
    }

    /// Runs a command to its end.
    #[inline]
    pub(crate) async fn run(&self, io: Io<'_>) -> Outcome {
        let tag = match self.try_take() {
            Some(t) => t,
            None => match self.take().await {
                Ok(t) => t,
                Err(e) => return Outcome::Lost(e),
            },
        };
        self.fill(tag, &io);
        self.start(tag);
        InFlight { channel: self, tag }.await
    }

    fn refusal(&self) -> Option<Error> {
        match self.path.get() {
            Path::Failing | Path::Stale => Some(Error::PathDown),
            Path::Replaced => Some(Error::Replaced),
            Path::Closed => Some(Error::Closed),
            _ => None,
        }
    }

    #[inline]
    fn try_take(&self) -> Option<u16> {
        if self.refusal().is_some() || !self.slot_units.try_wait() {
            return None;
        }
        self.table.borrow_mut().free.pop()
    }

    #[cold]
    async fn take(&self) -> Result<u16, Error> {
        loop {
            if let Some(e) = self.refusal() {
                return Err(e);
            }
            self.slot_units.wait().await;
            if let Some(e) = self.refusal() {
                // The unit may be one that belongs to no slot; if it does not, there is a slot for it.
                let free = self.table.borrow().free.len() as u32;
                if self.slot_units.count() < free {
                    self.slot_units.signal();
                }
                return Err(e);
            }
            if let Some(tag) = self.table.borrow_mut().free.pop() {
                return Ok(tag);
            }
        }
    }

    #[inline]
    fn fill(&self, tag: u16, io: &Io<'_>) {
        let mut t = self.table.borrow_mut();
        t.order += 1;
        let order = t.order;
        let s = &mut t.slots[usize::from(tag)];
        s.state = State::Waiting;
        s.command = Command {
            op: io.op as u8,
            flags: io.flags,
            tag,
            seq: 0,
            offset: io.offset,
            len: io.len,
            volume: io.volume,
            segments: 0,
            guard: io.guard,
        };
        s.memory.set(io.memory);
        s.sums.clear();
        s.order = order;
        s.numbered = false;
        s.expired = false;
        s.asked = false;
        s.excused = false;
        s.started = now();
        if self.config.integrity && s.command.data_out() > 0 {
            let half = io.len as usize;
            let halves = s.command.data_out() as usize / half.max(1);
            let memory = std::mem::take(&mut s.memory);
            for i in 0..halves {
                sums_of(io.offset, memory.iter(), i * half, half, |c| s.sums.push(c));
            }
            s.memory = memory;
        }
    }

    /// The command in this slot is given up or over, for its future.
    #[inline]
    fn let_go(&self, tag: u16) {
        let mut t = self.table.borrow_mut();
        let s = &mut t.slots[usize::from(tag)];
        if !s.keys.is_empty() {
            // The memory may be used for something else from here on.
            let (conn, mut placing) = (self.conn.borrow(), self.placing.borrow_mut());
            for k in s.keys.drain(..) {
                placing.remove(k);
                conn.iter().for_each(|c| c.deregister(k));
            }
        }
        match s.state {
            State::Done => {
                t.set_free(tag);
                drop(t);
                self.slot_units.signal();
            }
            State::Waiting if !s.numbered => {
                t.set_free(tag);
                drop(t);
                self.pending.borrow_mut().retain(|p| *p != tag);
                self.slot_units.signal();
            }
            State::Waiting | State::Sent => {
                if s.state == State::Waiting && !has(Bug::GivenUpKeepsItsData) {
                    // It was with the target and is about to be sent again, by the length that it was made with.
                    s.empty();
                }
                s.state = State::Orphan;
                s.waker = None;
                s.memory.clear();
                drop(t);
                self.aborts.borrow_mut().push_back(tag);
                self.wake_dispatcher();
            }
            State::Orphan => {
                s.unread = false;
                s.memory.clear();
            }
            State::Free => {}
        }
    }

    /// Ends the connection and all tasks of the channel. Commands fail.
    pub(crate) async fn close(&self) {
        self.log_out();
        self.set_path(Path::Closed);
        let conn = self.conn.borrow().clone();
        if let Some(c) = conn {
            c.disconnect(false);
            let (token, closed) = weir_reactor::completion();
            c.on_closed(token);
            closed.await;
        }
        for t in self.tasks.take() {
            weir_reactor::cancel(t);
        }
    }
}

/// Checksums of `len` bytes from byte `skip` of some memory on, which lie at `offset` of a volume.
#[inline]
fn sums_of<'a>(
    offset: u64,
    memory: impl Iterator<Item = &'a Slice>,
    skip: usize,
    len: usize,
    mut f: impl FnMut(u32),
) {
    let (mut skip, mut left, mut at) = (skip, len, offset);
    let piece = weir_proto_brp::sums::PIECE;
    let mut open: Option<weir_codec::Crc32c> = None;
    for s in memory {
        if skip >= s.len() {
            skip -= s.len();
            continue;
        }
        let n = (s.len() - skip).min(left);
        let part = s.sub(skip, n);
        skip = 0;
        left -= n;
        // SAFETY: the caller's memory must not change while the command runs; if it does the checksum tells.
        let mut bytes = unsafe { part.bytes() };
        if open.is_none() && left == 0 {
            // All of it in one piece of memory.
            return weir_proto_brp::sums::each(at, bytes, f);
        }
        while !bytes.is_empty() {
            let (now, rest) = bytes.split_at(bytes.len().min((piece - at % piece) as usize));
            open.get_or_insert_default().update(now);
            at += now.len() as u64;
            bytes = rest;
            if at.is_multiple_of(piece)
                && let Some(c) = open.take()
            {
                f(c.finish());
            }
        }
        if left == 0 {
            break;
        }
    }
    if let Some(c) = open {
        f(c.finish());
    }
}

/// A command under way.
struct InFlight<'a> {
    channel: &'a Channel,
    tag: u16,
}

impl Future for InFlight<'_> {
    type Output = Outcome;
    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let mut t = self.channel.table.borrow_mut();
        let s = &mut t.slots[usize::from(self.tag)];
        match s.state {
            State::Done | State::Orphan => {
                s.unread = false;
                Poll::Ready(std::mem::replace(&mut s.outcome, Outcome::Done(0)))
            }
            _ => {
                s.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for InFlight<'_> {
    #[inline]
    fn drop(&mut self) {
        self.channel.let_go(self.tag);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_base::Prng;

    #[test]
    fn checksums_do_not_depend_on_how_memory_is_cut() {
        let mut rng = Prng::new(3);
        for _ in 0..200 {
            let len = 1 + rng.below(20_000) as usize;
            let offset = rng.below(16) * 512;
            let mut data = vec![0; len];
            rng.fill(&mut data);
            let mut whole = Vec::new();
            weir_proto_brp::sums::each(offset, &data, |s| whole.push(s));
            let before = rng.below(600) as usize;
            let mut all = vec![0; before];
            all.extend(&data);
            let mut cuts: Vec<usize> =
                (0..rng.below(6)).map(|_| rng.below(all.len() as u64 + 1) as usize).collect();
            cuts.extend([0, all.len()]);
            cuts.sort_unstable();
            let memory: Vec<Slice> =
                cuts.windows(2).map(|w| Slice::copy_of(&all[w[0]..w[1]])).collect();
            let mut parts = Vec::new();
            sums_of(offset, memory.iter(), before, len, |s| parts.push(s));
            assert_eq!(parts, whole, "{len} bytes at {offset} cut at {cuts:?}");
        }
    }
}
