//! PDUs out, in the order in which they were made.

use crate::conn::Conn;
use crate::order::Place;
use std::rc::Rc;
use weir_base::{Nanos, SECONDS};
use weir_mem::Slice;
use weir_proto_iscsi::bhs::{LEN, Response};
use weir_proto_iscsi::intake::{digest, padding};
use weir_reactor::{WaitChannel, run_async, timeout};
use weir_stream::{Piece, WouldBlock};

/// PDUs that one system call sends.
const GATHER: usize = 32;
/// PDUs that are queued, from which on commands wait with more data.
const QUEUE: usize = 64;
/// After so many bytes others have their turn.
const TURN: u64 = 256 << 10;
/// How long an initiator may take nothing of what is there for it. One that is alive takes some of it.
const STALL: Nanos = 30 * SECONDS;
/// Answers that belong to no command, at once: more wait in TCP.
pub(crate) const ASIDE: u32 = 16;

/// Data of a PDU.
pub(crate) enum Data {
    Slice(Slice),
    Bytes(Vec<u8>),
}

impl Data {
    fn raw(&self) -> (*const u8, usize) {
        match self {
            Data::Slice(s) => (s.as_ptr().cast_const(), s.len()),
            Data::Bytes(b) => (b.as_ptr(), b.len()),
        }
    }
}

/// A place for an answer that belongs to no command.
pub(crate) struct Aside(Rc<Conn>);

impl Drop for Aside {
    fn drop(&mut self) {
        self.0.aside.signal();
    }
}

/// A PDU on its way.
pub(crate) struct Out {
    response: Response,
    sealed: bool,
    head: [u8; LEN + 4],
    head_len: usize,
    data: Data,
    tail: [u8; 8],
    tail_len: usize,
    place: Option<Place>,
    _aside: Option<Aside>,
}

impl Out {
    fn len(&self) -> usize {
        self.head_len + self.data.raw().1 + self.tail_len
    }
}

impl Conn {
    /// A place for an answer that belongs to no command; the wait for one ends with the session.
    pub(crate) async fn aside(self: &Rc<Self>) -> Option<Aside> {
        if !self.ending.get() {
            weir_reactor::unless(self.halt.wait(), self.aside.wait()).await?;
            return Some(Aside(self.clone()));
        }
        None
    }

    /// The same without a wait.
    pub(crate) fn try_aside(&self) -> Option<Aside> {
        let me = self.me.upgrade()?;
        self.aside.try_wait().then(|| Aside(me))
    }

    /// Sends a PDU with text or sense data.
    pub(crate) fn push(&self, response: Response, data: Vec<u8>) {
        self.send_out(response, Data::Bytes(data), None, None);
    }

    /// Sends a PDU. `place`: that of its command, which ends with it.
    pub(crate) fn send_out(
        &self,
        response: Response,
        data: Data,
        place: Option<Place>,
        aside: Option<Aside>,
    ) {
        if self.is_over() {
            // Nobody hears of it.
            return;
        }
        let digests = self.params.get().digests;
        let (at, len) = data.raw();
        let pad = padding(len);
        let mut tail = [0; 8];
        let mut tail_len = pad;
        if digests.data && len > 0 {
            let mut sum = weir_codec::Crc32c::new();
            // SAFETY: the data are kept until they have left, and nothing changes them: whoever gave them knows of the digest
            // (`needs_stable_data`).
            sum.update(unsafe { std::slice::from_raw_parts(at, len) });
            sum.update(&tail[..pad]);
            tail[pad..pad + 4].copy_from_slice(&sum.finish().to_le_bytes());
            tail_len += 4;
        }
        let head_len = if digests.header { LEN + 4 } else { LEN };
        let out = Out {
            response,
            sealed: false,
            head: [0; LEN + 4],
            head_len,
            data,
            tail,
            tail_len,
            place,
            _aside: aside,
        };
        self.queued.set(self.queued.get() + out.len() as u64);
        self.out.borrow_mut().push_back(out);
        self.news.signal_all();
    }

    /// No PDU waits that will tell the initiator of the window.
    pub(crate) fn all_sealed(&self) -> bool {
        self.out.borrow().iter().all(|o| o.sealed)
    }

    /// So much is queued that commands wait with more data.
    pub(crate) fn is_full(&self) -> bool {
        self.out.borrow().len() >= QUEUE
    }

    /// Gives a PDU its numbers, when it is about to leave.
    fn seal(&self, o: &mut Out) {
        o.sealed = true;
        if let Some(p) = &mut o.place {
            p.free();
        }
        let (exp, most) = self.numbers();
        let mut stat_sn = self.stat_sn.get();
        o.response.seal(&mut stat_sn, exp, most);
        self.stat_sn.set(stat_sn);
        o.head[..LEN].copy_from_slice(&o.response.bhs);
        let sum = digest(&o.response.bhs);
        o.head[LEN..].copy_from_slice(&sum);
    }

    /// Sends PDUs as they come.
    pub(crate) async fn send(self: Rc<Self>) {
        let mut turn = self.handed.get() + TURN;
        loop {
            if self.is_over() {
                return;
            }
            if self.out.borrow().is_empty() {
                self.news.wait().await;
                continue;
            }
            match self.try_send() {
                Ok(Ok(())) if self.handed.get() >= turn => {
                    turn = self.handed.get() + TURN;
                    run_async().await;
                }
                Ok(Ok(())) => {}
                Ok(Err(WouldBlock)) => {
                    let before = self.stream.unacknowledged();
                    let stands = timeout(STALL, self.stream.ready(true)).await.is_err();
                    if stands && self.stream.unacknowledged() >= before {
                        return self.abort("the initiator takes nothing of what it has asked for");
                    }
                }
                Err(e) => return self.abort(&format!("connection lost: {e}")),
            }
        }
    }

    /// Sends what the kernel takes of the first PDUs.
    fn try_send(&self) -> std::io::Result<Result<(), WouldBlock>> {
        let mut out = self.out.borrow_mut();
        for o in out.iter_mut().take(GATHER).filter(|o| !o.sealed) {
            self.seal(o);
        }
        let (mut pieces, mut skip) = (Vec::with_capacity(3 * GATHER), self.gone.get());
        for o in out.iter().take(GATHER) {
            let (at, len) = o.data.raw();
            let parts = [(o.head.as_ptr(), o.head_len), (at, len), (o.tail.as_ptr(), o.tail_len)];
            for (at, len) in parts {
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
        let mut done = Vec::new();
        while let Some(o) = out.front() {
            let len = o.len();
            if gone < len {
                break;
            }
            gone -= len;
            done.extend(out.pop_front());
        }
        self.gone.set(gone);
        let left = out.len();
        drop(out);
        // Places and buffers go back only now: whoever gets them may look at the queue.
        drop(done);
        for _ in left..QUEUE {
            if !self.room.signal_first() {
                break;
            }
        }
        if left == 0 {
            self.news.signal_all();
            // Also those whose turn went to commands that have been aborted.
            self.room.signal_all();
        }
        Ok(Ok(()))
    }
}

/// Places for [`Aside`].
pub(crate) fn asides() -> WaitChannel {
    WaitChannel::new(ASIDE)
}
