//! What the target sends.

use super::slot::{Outcome, Slot, State};
use super::{Channel, Path, add};
use crate::config::MESSAGE;
use std::rc::{Rc, Weak};
use weir_fabric::{RecvQueue, Tap};
use weir_mem::Slice;
use weir_proto_brp::completion::{Completions, Item, flag};
use weir_proto_brp::control::{Event, EventKind, GoodbyeReason, check_alone};
use weir_proto_brp::message::MessageError;
use weir_proto_brp::{Features, Header, Kind, Op, Status, sums};
use weir_reactor::{Completion, CompletionQueue, now};

impl Channel {
    /// Takes one message.
    #[inline]
    pub(super) fn message(&self, buf: &Slice, c: Completion) {
        if !c.is_ok() {
            return;
        }
        let message = buf.sub(0, (c.len as usize).min(MESSAGE));
        self.last_heard.set(now());
        // SAFETY: the message is complete and its buffer is not posted again before this ends.
        let bytes = unsafe { message.bytes() };
        if let Err(e) = self.take_message(bytes) {
            tracing::warn!(channel = self.index, error = %e, "bad message of the target");
            self.shared.note_bad_message();
            self.disconnect(true);
        }
    }

    fn take_message(&self, bytes: &[u8]) -> Result<(), MessageError> {
        let integrity = self.limits.get().features.has(Features::INTEGRITY);
        let header = Header::decode(bytes, false)?;
        match header.kind {
            Kind::Completions => {
                let all = Completions::decode(&header, bytes, integrity)?;
                self.completions(&all, integrity);
            }
            Kind::Pong => check_alone(&header, bytes, integrity)?,
            Kind::Event => {
                for e in Event::decode_all(&header, bytes, integrity)? {
                    self.shared.event(e);
                    if EventKind::from_code(e.kind) == Some(EventKind::Volumes) {
                        self.doubt();
                    }
                }
                self.credits.set(self.credits.get().saturating_add(header.extra));
                self.send_header(Header::new(Kind::EventAck));
                return Ok(());
            }
            _ => {
                check_alone(&header, bytes, integrity)?;
                let reason = GoodbyeReason::from_code(header.flags);
                tracing::info!(channel = self.index, ?reason, "the target says goodbye");
                if reason == GoodbyeReason::Replaced {
                    self.shared.set_here(false);
                    self.set_path(Path::Replaced);
                }
                self.disconnect(false);
            }
        }
        self.credits.set(self.credits.get().saturating_add(header.extra));
        if !self.pending.borrow().is_empty() || !self.aborts.borrow().is_empty() {
            // What had to wait goes together, where that is allowed.
            self.pump(true);
        }
        Ok(())
    }

    /// Takes a message of completions that is as it should be. False: nothing was done.
    #[inline]
    fn tapped(&self, bytes: &[u8]) -> bool {
        let integrity = self.limits.get().features.has(Features::INTEGRITY);
        let Ok(header) = Header::decode(bytes, false) else { return false };
        if header.kind != Kind::Completions {
            return false;
        }
        let Ok(all) = Completions::decode(&header, bytes, integrity) else { return false };
        self.last_heard.set(now());
        self.completions(&all, integrity);
        self.credits.set(self.credits.get().saturating_add(header.extra));
        if !self.pending.borrow().is_empty() || !self.aborts.borrow().is_empty() {
            self.wake_dispatcher();
        }
        true
    }

    fn completions(&self, all: &Completions<'_>, integrity: bool) {
        add(&self.counts.responses, 1);
        let before = self.table.borrow().in_use() as u32;
        for item in all.iter() {
            self.complete(&item, integrity);
        }
        let load = self.load.get().max(before);
        // It falls slowly, so that the waves in which completions come do not move it.
        self.load.set(load - (load - before.min(load)).div_ceil(16));
        if self.config.variant == crate::merge::Variant::Auto {
            self.controller.borrow_mut().completed(all.len() as u64, self.load.get(), now());
        }
    }

    /// One completion.
    #[inline]
    fn complete(&self, item: &Item<'_>, integrity: bool) {
        let c = &item.completion;
        let mut table = self.table.borrow_mut();
        let Some(s) = table.slots.get_mut(usize::from(c.tag)) else {
            return add(&self.counts.stale, 1);
        };
        if !matches!(s.state, State::Sent | State::Orphan) || s.seq != c.seq {
            return add(&self.counts.stale, 1);
        }
        if c.flags & flag::REPLAYED != 0 {
            self.shared.note_replayed();
        }
        if s.state == State::Orphan {
            let free = table.bury(c.tag);
            drop(table);
            if free {
                self.slot_units.signal();
            }
            return;
        }
        s.outcome = match Status::from_code(c.status) {
            Some(Status::Ok) => arrived(s, item, integrity),
            Some(Status::Aborted) if s.expired => Outcome::Lost(crate::error::Error::TimedOut),
            Some(Status::Checksum) if has_changed(s) => Outcome::MemoryChanged(c.detail),
            Some(status) => Outcome::Failed(status, c.detail),
            None => Outcome::Failed(Status::Internal, u32::from(c.status)),
        };
        s.state = State::Done;
        let waker = s.waker.take();
        drop(table);
        if let Some(w) = waker {
            w.wake();
        }
    }
}

/// True when a command's memory no longer fits the checksums that were taken of it.
#[cold]
fn has_changed(s: &Slot) -> bool {
    let half = s.command.len as usize;
    let (mut at, mut changed) = (0, false);
    for i in 0..s.command.data_out() as usize / half.max(1) {
        super::sums_of(s.command.offset, s.memory.iter(), i * half, half, |sum| {
            changed |= s.sums.get(at).is_none_or(|then| *then != sum);
            at += 1;
        });
    }
    changed
}

/// Brings inline data to its place and checks what has come.
#[inline]
fn arrived(s: &Slot, item: &Item<'_>, integrity: bool) -> Outcome {
    let c = &s.command;
    let wanted = c.data_in() as usize;
    if wanted == 0 {
        return Outcome::Done(0);
    }
    let mut came = wanted;
    let inline_in = weir_proto_brp::command::flag::INLINE_IN;
    if c.has(inline_in) {
        came = item.data.len();
        let short = came < wanted && c.operation() == Some(Op::Read);
        if short || came > wanted {
            return Outcome::Failed(Status::Internal, 0);
        }
        let mut data = item.data;
        for m in s.memory.iter() {
            let (now, rest) = data.split_at(m.len().min(data.len()));
            m.write_at(0, now);
            data = rest;
        }
    }
    if !integrity {
        return Outcome::Done(came as u32);
    }
    // What is checked is what the caller will see: the bytes in its memory.
    let sure = item.completion.flags & flag::LENT == 0;
    if item.sums.len() != sums::count(c.offset, came as u64) {
        return Outcome::Damaged { piece: 0, sure: true };
    }
    if let Some(early) = s.early.sums(came).filter(|_| !c.has(inline_in)) {
        let same = |(a, b): (&u32, &[u8; 4])| *a == u32::from_le_bytes(*b);
        return match early.iter().zip(item.sums).position(|pair| !same(pair)) {
            Some(piece) => Outcome::Damaged { piece: piece as u32, sure },
            None => Outcome::Done(came as u32),
        };
    }
    let (mut at, mut bad) = (0, None);
    super::sums_of(c.offset, s.memory.iter(), 0, came, |sum| {
        if bad.is_none() && u32::from_le_bytes(item.sums[at]) != sum {
            bad = Some(at as u32);
        }
        at += 1;
    });
    match bad {
        Some(piece) => Outcome::Damaged { piece, sure },
        None => Outcome::Done(came as u32),
    }
}

/// Takes completions right from the bytes on the wire; other messages are rare and may end the connection.
pub(super) struct CompletionTap(pub(super) Weak<Channel>);

impl Tap for CompletionTap {
    #[inline]
    fn message(&self, bytes: &[u8]) -> bool {
        self.0.upgrade().is_some_and(|c| c.tapped(bytes))
    }

    fn placed(&self, key: u32, at: u64, len: usize) {
        if let Some(c) = self.0.upgrade() {
            c.placed(key, at, len);
        }
    }
}

/// Harvests messages for as long as the connection lives.
pub(super) async fn receive(
    channel: Rc<Channel>,
    queue: Rc<dyn RecvQueue>,
    cq: Rc<CompletionQueue>,
) {
    loop {
        let (user, c) = cq.next().await;
        let buf = &channel.receives[user as usize];
        channel.message(buf, c);
        queue.post(buf.clone(), cq.token(user));
    }
}
