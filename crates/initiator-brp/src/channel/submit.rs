//! From commands to messages, one command each or many.

use super::slot::{Outcome, Slot, State};
use super::{Channel, Limits, add};
use crate::config::MESSAGE;
use crate::error::Error;
use crate::merge::Variant;
use crate::planted::{Bug, has};
use std::rc::Rc;
use weir_fabric::{Access, Connection, FabricError, SendFlags};
use weir_mem::Slice;
use weir_proto_brp::command::{COMMAND, DESCRIPTOR, Layout, SUM, flag};
use weir_proto_brp::completion;
use weir_proto_brp::control::Abort;
use weir_proto_brp::message::{ENOUGH, HEADER, seal};
use weir_proto_brp::{Descriptor, Features, Header, Kind, Op, sums};
use weir_reactor::{Token, now, spawn_task};

/// Sends what was left for the end of the turn.
pub(super) async fn dispatch(channel: Rc<Channel>) {
    loop {
        channel.dispatcher.wait().await;
        channel.dispatching.set(false);
        channel.pump(true);
    }
}

/// What one message will carry.
#[derive(Default)]
struct Batch {
    layout: Layout,
    /// Bytes of inline data, and pieces of memory that they come from.
    data: usize,
    pieces: usize,
}

/// How the data of a command moves.
struct Plan {
    segments: usize,
    inline_out: usize,
    inline_in: bool,
}

impl Channel {
    pub(super) fn wake_dispatcher(&self) {
        if !self.dispatching.replace(true) {
            self.dispatcher.signal();
        }
    }

    /// A command is ready: it goes now, or with others at the end of the turn.
    #[inline]
    pub(super) fn start(&self, tag: u16) {
        self.pending.borrow_mut().push_back(tag);
        let in_flight = self.table.borrow().in_use() as u32;
        if in_flight > self.load.get() {
            self.load.set(in_flight);
        }
        if self.merging() { self.wake_dispatcher() } else { self.pump(false) }
    }

    /// Whether commands wait for the end of the turn to share a message.
    #[inline]
    fn merging(&self) -> bool {
        match self.config.variant {
            Variant::Auto => self.controller.borrow().merges(self.load.get()),
            Variant::Brp3T => true,
            Variant::Brp3 { threshold } => self.load.get() >= u32::from(threshold),
            Variant::Brp1 | Variant::Brp2 => false,
        }
    }

    /// Sends what can go. With `merge`, many commands to a message.
    pub(super) fn pump(&self, merge: bool) {
        if self.stuck.get() {
            return;
        }
        let Some(conn) = self.conn.borrow().clone() else { return };
        if !self.aborts.borrow().is_empty() {
            self.send_aborts(&*conn);
        }
        let limits = self.limits.get();
        let most = if merge { limits.max_commands } else { 1 };
        // The last credit is for other messages.
        while self.credits.get() > 1 && !self.pending.borrow().is_empty() {
            if !conn.send_slots().try_wait() {
                return self.unstick(conn);
            }
            let sent = self.send(&*conn, &limits, most);
            if !sent {
                conn.send_slots().signal();
            }
        }
    }

    #[cold]
    fn unstick(&self, conn: Rc<dyn Connection>) {
        self.stuck.set(true);
        let me = self.me.clone();
        spawn_task(async move {
            conn.send_slots().wait().await;
            conn.send_slots().signal();
            if let Some(c) = me.upgrade() {
                c.stuck.set(false);
                c.pump(true);
            }
        });
    }

    #[inline]
    fn plan(&self, s: &Slot, limits: &Limits) -> Plan {
        let c = &s.command;
        let (out, data_in) = (c.data_out() as usize, c.data_in() as usize);
        let has = |f| limits.features.has(f);
        let inline_in = match c.operation() {
            Some(Op::Geometry | Op::List) => true,
            Some(Op::Read) => {
                let n = sums::count(c.offset, data_in as u64);
                let whole = completion::Layout { completions: 1, sums: n }.control() + data_in;
                has(Features::INLINE_READ)
                    && data_in <= self.config.inline_read as usize
                    && whole <= MESSAGE
            }
            _ => false,
        };
        let control = Layout { commands: 1, descriptors: 0, sums: s.sums.len() }.control();
        let inline_out = out > 0
            && has(Features::INLINE_WRITE)
            && out <= self.config.inline_write as usize
            && control + out <= limits.max_message;
        let described = out > 0 && !inline_out || data_in > 0 && !inline_in;
        Plan {
            segments: if described { s.memory.iter().filter(|m| !m.is_empty()).count() } else { 0 },
            inline_out: if inline_out { out } else { 0 },
            inline_in,
        }
    }

    /// Sends one message with up to `most` commands. False when none went.
    fn send(&self, conn: &dyn Connection, limits: &Limits, most: usize) -> bool {
        let mut table = self.table.borrow_mut();
        let mut pending = self.pending.borrow_mut();
        let mut batch = Batch::default();
        let mut buf: Option<Slice> = None;
        let integrity = limits.features.has(Features::INTEGRITY);
        let mut keys = self.keys.borrow_mut();
        keys.clear();
        while batch.layout.commands < most
            && let Some(&tag) = pending.get(batch.layout.commands)
        {
            let s = &mut table.slots[usize::from(tag)];
            let plan = self.plan(s, limits);
            let next = Layout {
                commands: batch.layout.commands + 1,
                descriptors: batch.layout.descriptors + plan.segments,
                sums: batch.layout.sums + if integrity { s.sums.len() } else { 0 },
            };
            let pieces = if plan.inline_out > 0 { s.memory.len() } else { 0 };
            let room = if plan.inline_out > 0 {
                limits.max_message.min(ENOUGH)
            } else {
                limits.max_message
            };
            let fits = next.control() + batch.data + plan.inline_out <= room;
            if batch.layout.commands > 0 && !fits {
                break;
            }
            if pieces > 0 && batch.pieces + pieces > 1 && buf.is_none() && !self.gathers.get() {
                // Data from several places is gathered in one buffer.
                buf = self.send_pool.try_alloc(limits.max_message);
                if buf.is_none() && batch.layout.commands > 0 {
                    break;
                }
            }
            if plan.segments > 0
                && let Err(e) = self.register(tag, s, conn, &mut keys, plan.segments)
            {
                if s.numbered {
                    // The target may have it, by this number: that is sent all the same, with nothing to do.
                    let once = s.command.operation() == Some(Op::CompareAndWrite);
                    let e = if once { Error::InDoubt } else { e };
                    s.orphan(Outcome::Lost(e)).into_iter().for_each(|w| w.wake());
                    s.empty();
                    continue;
                }
                // It has not been sent and never will be.
                pending.remove(batch.layout.commands);
                s.state = State::Done;
                s.outcome = Outcome::Lost(e);
                if let Some(w) = s.waker.take() {
                    w.wake();
                }
                continue;
            }
            s.command.segments = plan.segments as u16;
            s.command.flags &= !(flag::INLINE_IN | flag::INLINE_OUT);
            if plan.inline_in {
                s.command.flags |= flag::INLINE_IN;
            }
            if plan.inline_out > 0 {
                s.command.flags |= flag::INLINE_OUT;
            }
            batch.layout = next;
            batch.data += plan.inline_out;
            batch.pieces += pieces;
        }
        if batch.layout.commands == 0 {
            return false;
        }
        let gather = batch.pieces > 1 && self.gathers.get();
        if batch.pieces > 1 && !gather {
            // One command in several pieces may find no buffer free.
            let b = buf.take().unwrap_or_else(|| Slice::heap(batch.data));
            buf = Some(b.sub(0, batch.data));
        }
        let layout = batch.layout;
        let mut head = self.head.borrow_mut();
        head.clear();
        head.resize(layout.control(), 0);
        head[..HEADER].copy_from_slice(&layout.header(batch.data as u32).encode());
        let (mut at, mut sum_at, mut data_at) = (HEADER, layout.sums_at(), 0);
        let mut list = self.list.borrow_mut();
        list.clear();
        let now = now();
        for _ in 0..layout.commands {
            let Some(tag) = pending.pop_front() else { break };
            let s = &mut table.slots[usize::from(tag)];
            if !s.numbered {
                s.seq = s.seq.wrapping_add(1);
                s.numbered = true;
                s.started = now;
            }
            if s.state == State::Waiting {
                s.state = State::Sent;
            }
            s.command.seq = s.seq;
            head[at..at + COMMAND].copy_from_slice(&s.command.encode());
            at += COMMAND;
            for sum in s.sums.iter().filter(|_| integrity) {
                head[sum_at..sum_at + SUM].copy_from_slice(&sum.to_le_bytes());
                sum_at += SUM;
            }
            if s.command.has(flag::INLINE_OUT) {
                for m in s.memory.iter().filter(|m| !m.is_empty()) {
                    match &buf {
                        Some(buf) => buf.copy_from(data_at, m, 0, m.len()),
                        None => list.push(m.clone()),
                    }
                    data_at += m.len();
                }
            }
        }
        // A byte less, and every command behind it would write the data of another.
        assert!(
            data_at == batch.data || has(Bug::GivenUpKeepsItsData),
            "a message of {} bytes of data has {data_at}",
            batch.data
        );
        for (i, (addr, key, len)) in keys.iter().enumerate() {
            let at = layout.descriptors_at() + i * DESCRIPTOR;
            let d = Descriptor { addr: *addr, key: *key, len: *len };
            head[at..at + DESCRIPTOR].copy_from_slice(&d.encode());
        }
        if integrity {
            seal(&mut head);
        }
        let flags = SendFlags::default();
        if list.len() < 2 {
            conn.send(&head, buf.or_else(|| list.pop()), flags, Token::NONE);
        } else if !conn.send_gathered(&head, &mut list, flags, Token::NONE) {
            // From here on data is copied into one buffer.
            self.gathers.set(false);
            let all = Slice::heap(batch.data).sub(0, batch.data);
            let mut at = 0;
            for m in list.drain(..) {
                all.copy_from(at, &m, 0, m.len());
                at += m.len();
            }
            conn.send(&head, Some(all), flags, Token::NONE);
        }
        self.credits.set(self.credits.get() - 1);
        self.last_sent.set(now);
        add(&self.counts.messages, 1);
        add(&self.counts.commands, layout.commands as u64);
        if layout.commands > 1 {
            add(&self.counts.merged, layout.commands as u64);
        }
        true
    }

    /// Lets the target access the memory of a command.
    fn register(
        &self,
        tag: u16,
        s: &mut Slot,
        conn: &dyn Connection,
        keys: &mut Vec<(u64, u32, u32)>,
        segments: usize,
    ) -> Result<(), Error> {
        let limits = self.limits.get();
        if segments > usize::from(limits.max_segments) {
            return Err(Error::Invalid("data in more pieces than the target takes in one command"));
        }
        let out = s.command.data_out() > 0;
        let access = if out { Access::RemoteRead } else { Access::RemoteWrite };
        let mut placing = self.placing.borrow_mut();
        s.early.begin();
        let (before, mut at) = (keys.len(), 0);
        for m in s.memory.iter().filter(|m| !m.is_empty()) {
            match conn.register(m, access) {
                Ok(r) => {
                    s.keys.push(r.key);
                    keys.push((r.addr, r.key, m.len() as u32));
                    if !out && limits.features.has(Features::INTEGRITY) {
                        placing.add(r.key, tag, at);
                    }
                    at += m.len();
                }
                Err(e) => {
                    keys.truncate(before);
                    for k in s.keys.drain(..) {
                        placing.remove(k);
                        conn.deregister(k);
                    }
                    return Err(refused(e, conn));
                }
            }
        }
        Ok(())
    }

    fn send_aborts(&self, conn: &dyn Connection) {
        let integrity = self.limits.get().features.has(Features::INTEGRITY);
        while self.credits.get() > 0 && conn.send_slots().try_wait() {
            let Some(tag) = self.aborts.borrow_mut().pop_front() else {
                return conn.send_slots().signal();
            };
            let seq = {
                let t = self.table.borrow();
                let s = &t.slots[usize::from(tag)];
                let sent = matches!(s.state, State::Sent | State::Orphan);
                if !sent {
                    conn.send_slots().signal();
                    continue;
                }
                s.seq
            };
            let m = Abort { tag, seq }.message(integrity);
            conn.send(&m, None, SendFlags::default(), Token::NONE);
            self.credits.set(self.credits.get() - 1);
            self.last_sent.set(now());
        }
    }

    /// Sends a message that is only a header, if there is a credit for it.
    pub(super) fn send_header(&self, header: Header) -> bool {
        let Some(conn) = self.conn.borrow().clone() else { return false };
        if self.credits.get() == 0 || !conn.send_slots().try_wait() {
            return false;
        }
        let m = header.alone(self.limits.get().features.has(Features::INTEGRITY));
        conn.send(&m, None, SendFlags::default(), Token::NONE);
        self.credits.set(self.credits.get() - 1);
        self.last_sent.set(now());
        true
    }

    /// Tells the target that nothing more will come: it can forget the channel.
    pub(super) fn log_out(&self) {
        self.send_header(Header::new(Kind::Logout));
    }
}

fn refused(e: FabricError, conn: &dyn Connection) -> Error {
    if conn.is_open() { Error::Fabric(e) } else { Error::PathDown }
}
