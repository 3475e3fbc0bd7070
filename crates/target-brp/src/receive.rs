//! Messages of initiators: each command is looked at by itself, and many end right here.

use crate::channel::Channel;
use crate::planted::{Bug, has};
use crate::port::Port;
use crate::reply::Reply;
use crate::request::{Ended, Work};
use std::rc::{Rc, Weak};
use weir_block::check_range;
use weir_fabric::{SendFlags, Tap};
use weir_proto_brp::command::{Command, Commands, Item, flag};
use weir_proto_brp::completion::{self, Completion};
use weir_proto_brp::control::{Abort, GoodbyeReason, check_alone};
use weir_proto_brp::slot::Verdict;
use weir_proto_brp::{Header, Kind, MessageError, Op, Status, sums};
use weir_reactor::{Completion as Received, Token, contained, now};
use weir_target_core::{Attached, Pass};

/// Messages looked at before what they brought about is sent.
const BATCH: usize = 64;
/// Bytes of lent memory that are fetched into the cache when it is lent; the rest the processor fetches by itself in time.
const PREFETCH: usize = 512;

/// Takes messages as they come, for as long as the port lives.
pub(crate) async fn harvest(port: Rc<Port>) {
    loop {
        let (number, c) = port.cq.next().await;
        port.harvesting.set(true);
        port.received(number, c);
        for _ in 1..BATCH {
            let Some((number, c)) = port.cq.try_next() else { break };
            port.received(number, c);
        }
        port.harvesting.set(false);
        port.flush_all();
    }
}

/// Looks at messages again that overtook the end of their connection's set-up (S4).
pub(crate) async fn harvest_held(port: Rc<Port>) {
    loop {
        port.more_held.wait().await;
        let all = port.held.take();
        for (number, c) in all {
            port.received(number, c);
        }
        port.flush_all();
    }
}

impl Port {
    #[inline]
    fn received(self: &Rc<Self>, number: u32, c: Received) {
        let channel = if c.is_ok() { self.by_qp(c.source) } else { None };
        if channel.is_none() && c.is_ok() {
            match contained(|| self.greeted(number, c)) {
                Ok(false) => {}
                Ok(true) => return self.post(number),
                Err(p) => {
                    self.shared.spread.broke("a host that has not proved itself", &p);
                    return self.post(number);
                }
            }
        }
        if channel.is_none() && c.is_ok() && self.accepting.get() > 0 {
            return self.held.borrow_mut().push((number, c));
        }
        if let Some(channel) = &channel {
            let message = self.buffer(number).sub(0, c.len as usize);
            // SAFETY: the message is complete; the provider writes no more to its buffer until it is posted again.
            let bytes = unsafe { message.bytes() };
            match contained(|| channel.message(bytes)) {
                Ok(Ok(())) => {}
                Ok(Err(e)) => {
                    tracing::warn!(peer = %channel.info().peer, error = %e, "bad message");
                    channel.close(GoodbyeReason::Protocol, false);
                }
                Err(p) => channel.broke(&p),
            }
        }
        self.post(number);
        if let Some(channel) = channel {
            channel.credit_back();
        }
    }
}

impl Port {
    /// True when the message came by a connection that has not proved itself yet.
    #[cold]
    fn greeted(&self, number: u32, c: Received) -> bool {
        let message = self.buffer(number).sub(0, c.len as usize);
        // SAFETY: the message is complete; the provider writes no more to its buffer until it is posted again.
        self.greetings.take(c.source, unsafe { message.bytes() })
    }
}

/// A command that has begun: it is over when what is done for it panics.
pub(crate) struct UnderWay<'a>(pub(crate) &'a Rc<Channel>);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.over();
    }
}

/// Takes commands right from the bytes on the wire; other messages are rare and may end the channel.
pub(crate) struct CommandTap(pub(crate) Weak<Channel>);

impl Tap for CommandTap {
    #[inline]
    fn message(&self, bytes: &[u8]) -> bool {
        let Some(channel) = self.0.upgrade() else { return false };
        let taken = contained(|| channel.tapped(bytes)).unwrap_or_else(|p| {
            channel.broke(&p);
            true
        });
        if taken {
            channel.credit_back();
        }
        taken
    }
}

impl Channel {
    /// Takes a message of commands that is as it should be. False: nothing was done.
    #[inline]
    fn tapped(self: &Rc<Self>, bytes: &[u8]) -> bool {
        let Ok(header) = Header::decode(bytes, true) else { return false };
        if header.kind != Kind::Commands {
            return false;
        }
        match Commands::decode(&header, bytes, self.agreed.get().integrity) {
            Ok(all) if self.has_slots(&all) => {
                self.commands_of(&all, bytes);
                true
            }
            _ => false,
        }
    }

    /// Whether all tags are those of slots.
    #[inline]
    fn has_slots(&self, all: &Commands<'_>) -> bool {
        all.iter().all(|i| self.has_slot(i.command.tag))
    }

    #[inline]
    fn commands_of(self: &Rc<Self>, all: &Commands<'_>, bytes: &[u8]) {
        self.last_heard.set(now());
        self.messages.set(self.messages.get() + 1);
        self.refresh();
        self.commands.set(self.commands.get() + all.len() as u64);
        let together = all.len() > 1;
        for item in all.iter() {
            self.command(&item, bytes, together);
        }
    }

    /// Takes a message.
    fn message(self: &Rc<Self>, bytes: &[u8]) -> Result<(), MessageError> {
        self.last_heard.set(now());
        let integrity = self.agreed.get().integrity;
        let header = Header::decode(bytes, true)?;
        match header.kind {
            Kind::Commands => {
                let all = Commands::decode(&header, bytes, integrity)?;
                if !self.has_slots(&all) {
                    return Err(MessageError::Counts("slots"));
                }
                self.commands_of(&all, bytes);
            }
            Kind::Abort => {
                for a in Abort::decode_all(&header, bytes, integrity)? {
                    self.abort(a);
                }
            }
            Kind::Ping => {
                check_alone(&header, bytes, integrity)?;
                self.pong(header.count, integrity);
            }
            Kind::EventAck => {
                check_alone(&header, bytes, integrity)?;
                self.told.borrow_mut().clear();
                self.make_dirty();
            }
            _ => {
                check_alone(&header, bytes, integrity)?;
                self.end_later(GoodbyeReason::Unspecified);
            }
        }
        Ok(())
    }

    fn pong(&self, count: u16, integrity: bool) {
        let Some(conn) = self.conn() else { return };
        if conn.send_slots().try_wait() {
            let extra = self.owed.replace(0);
            let m = Header { count, extra, ..Header::new(Kind::Pong) }.alone(integrity);
            conn.send(&m, None, SendFlags::default(), Token::NONE);
        }
    }

    fn abort(&self, a: Abort) {
        self.port.shared.spread.counts().managed();
        let mut slots = self.slots.borrow_mut();
        let Some(s) = slots.get_mut(usize::from(a.tag)) else { return };
        match s.slot.judge(a.seq) {
            Verdict::Running => {
                s.aborted = true;
                self.halt.signal_all();
            }
            // Its answer may have come too late.
            Verdict::Done(..) => self.view.given_up(a.tag.into()),
            _ => {}
        }
    }

    /// One command: told from those seen before, then done at once or given to a request.
    #[inline]
    fn command(self: &Rc<Self>, item: &Item<'_>, bytes: &[u8], together: bool) {
        let c = &item.command;
        {
            let mut slots = self.slots.borrow_mut();
            let Some(s) = slots.get_mut(usize::from(c.tag)) else { return };
            match s.slot.judge(c.seq) {
                Verdict::New => {}
                Verdict::Done(status, detail) if !has(Bug::DoneIsRunAgain) => {
                    if c.data_in() == 0 || status != Status::Ok {
                        drop(slots);
                        let mut e = Completion::new(c.tag, c.seq, status, detail);
                        e.flags = completion::flag::REPLAYED;
                        return self.answer(e);
                    }
                }
                Verdict::Done(..) => {}
                // Twice on one connection: the first one is going to be answered.
                Verdict::Running => return,
                Verdict::Wrong => {
                    drop(slots);
                    return self.answer(Completion::new(c.tag, c.seq, Status::Sequence, 0));
                }
            }
            s.slot.begin(c.seq);
            s.aborted = false;
            s.together = together;
        }
        self.begin();
        let under_way = UnderWay(self);
        let mut kept = self.port.kept.borrow_mut();
        kept.clear();
        match self.at_once(item, bytes, &mut kept) {
            Some(ended) => self.ended(self.generation(), c, ended, &kept, false),
            None => self.port.submit(Work::new(self.clone(), item, bytes)),
        }
        std::mem::forget(under_way);
    }

    /// A completion without data.
    fn answer(self: &Rc<Self>, completion: Completion) {
        self.reply(Reply::new(completion, false), &[]);
    }

    /// Does what needs no waiting: inline data of a volume that is memory. Checksums that are kept of what is read
    /// come into `kept`.
    #[inline]
    fn at_once(&self, item: &Item<'_>, bytes: &[u8], kept: &mut Vec<u32>) -> Option<Ended> {
        let c = &item.command;
        // Whatever is wrong with it is found out by a request.
        if self.agreed.get().serial || !self.keeps_limits(c) {
            return None;
        }
        match c.operation() {
            Some(Op::Read) if c.has(flag::INLINE_IN) && !c.has(flag::STABLE) => {
                let a = self.allowed(c, false).ok()?.0;
                let (volume, len) = (a.unit().volume(), c.len as usize);
                let data = volume.direct(c.offset, len)?;
                // The kernel copies it at the end of the batch. Until then nothing of it is looked at, so that the
                // checksums are older than the data all the same.
                data.prefetch(PREFETCH);
                let integrity = self.agreed.get().integrity;
                if integrity && !volume.kept_sums(c.offset, len, &mut |s| kept.push(s)) {
                    kept.clear();
                }
                Some(Ended::Data { data, stable: false })
            }
            Some(Op::Write) if c.has(flag::INLINE_OUT) => {
                let a = self.allowed(c, true).ok()?.0;
                let unit = a.unit();
                let (at, len) = item.data;
                if a.is_held_up() || !unit.may_write_now(c.offset, len as u64) {
                    return None;
                }
                let data = bytes.get(at..at + len)?;
                if self.agreed.get().integrity
                    && let Some(bad) = sums::verify(c.offset, data, item.sums)
                {
                    return Some(Ended::Status(Status::Checksum, bad));
                }
                unit.volume()
                    .write_now(c.offset, data, item.sums)
                    .then_some(Ended::Status(Status::Ok, 0))
            }
            Some(Op::Nop) => Some(Ended::Status(Status::Ok, 0)),
            Some(_) => None,
            None => Some(Ended::Status(Status::Unsupported, 0)),
        }
    }

    /// Whether a command keeps to what the login said: how much it moves, and that its answer fits what the initiator
    /// receives. The same for commands that end at once and for those that wait.
    #[inline]
    pub(crate) fn keeps_limits(&self, c: &Command) -> bool {
        let agreed = self.agreed.get();
        let short = c.len <= self.port.config.max_len;
        match c.operation() {
            Some(Op::Discard | Op::WriteZeroes) => short || agreed.long_ranges,
            Some(Op::Read) => short && c.answer_len(agreed.integrity) <= agreed.max_message as u64,
            _ => short,
        }
    }

    /// Looks whether a command may read or write its volume. Tells as well whether writes must be durable.
    #[inline]
    pub(crate) fn admit(&self, c: &Command, writes: bool) -> Result<(Pass, bool), Status> {
        // It may have waited for a request.
        self.refresh();
        let (a, durable) = self.allowed(c, writes)?;
        let g = a.unit().volume().geometry();
        match check_range(&g, c.offset, u64::from(c.len)) {
            Ok(()) => Ok((a.pass_of(c.tag.into()), durable)),
            Err(_) => Err(Status::OutOfRange),
        }
    }

    /// As [`admit`](Channel::admit), for a command that is looked at as it comes.
    #[inline]
    fn allowed(&self, c: &Command, writes: bool) -> Result<(Rc<Attached>, bool), Status> {
        let writes = writes && !has(Bug::WriteAdmittedAsRead);
        let a = self.volume(c.volume, c.guard)?;
        let durable = a.admit_block(self.view.nexus(), writes).map_err(|r| {
            use weir_target_core::Refusal;
            match r {
                Refusal::Reserved => Status::Reserved,
                Refusal::ReadOnly => Status::ReadOnly,
                Refusal::NotReady => Status::NotReady,
                Refusal::Gone => Status::NoVolume,
                _ => Status::Offline,
            }
        })?;
        // The unit is told of a smaller size before its volume is.
        if c.offset.saturating_add(u64::from(c.len)) > a.len(self.view.nexus()) {
            return Err(Status::OutOfRange);
        }
        Ok((a, durable))
    }

    /// A command has ended: its slot remembers how, and whoever sent it is told if it is still there.
    #[inline]
    pub(crate) fn ended(
        self: &Rc<Self>,
        generation: u64,
        c: &Command,
        ended: Ended,
        rdma_sums: &[u32],
        lent: bool,
    ) {
        if generation != self.generation() && !has(Bug::FormerEnds) {
            // It has had no effect, and its slot may have another command by now.
            return self.over();
        }
        let (status, detail, data, stable) = match ended {
            // Its host is to prove that it knows a new secret. Whoever does goes on with the command.
            Ended::Status(Status::NoVolume, _) if self.view.is_barred() => {
                return self.ended(generation, c, Ended::Lost, &[], false);
            }
            Ended::Status(s, d) => (s, d, None, true),
            Ended::Data { data, stable } => (Status::Ok, 0, Some(data), stable),
            Ended::Lost | Ended::Again => {
                if let Some(s) = self.slots.borrow_mut().get_mut(usize::from(c.tag)) {
                    s.slot.forget();
                }
                return self.over();
            }
        };
        let mut together = false;
        if let Some(s) = self.slots.borrow_mut().get_mut(usize::from(c.tag)) {
            s.slot.end(status, detail);
            together = s.together;
        }
        let mut completion = Completion::new(c.tag, c.seq, status, detail);
        if !rdma_sums.is_empty() {
            completion.flags = completion::flag::SUMS;
            completion.detail = rdma_sums.len() as u32;
        }
        if lent {
            completion.flags |= completion::flag::LENT;
        }
        let mut reply = Reply::new(completion, together);
        if let Some(d) = data {
            reply = reply.with_data(d, c.offset, stable, self.agreed.get().integrity);
        }
        self.reply(reply, rdma_sums);
        self.over();
    }
}
