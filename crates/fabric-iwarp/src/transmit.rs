//! The sending half: what is to go out, in order, as pieces that one system call gathers.

use crate::conn::{Conn, State};
use crate::planted::{Bug, has};
use crate::provider::Shared;
use std::collections::VecDeque;
use weir_fabric::Remote;
use weir_mem::Slice;
use weir_proto_iwarp::Op;
use weir_proto_iwarp::tx;
use weir_reactor::{Token, now};

/// Pieces gathered by one system call at most (Linux: UIO_MAXIOV is 1024).
const GATHER: usize = 512;
/// Bytes of headers after which sent ones are dropped from the front.
const COMPACT: usize = 64 << 10;
/// Bytes of one connection in one turn, about.
const BURST: usize = 1 << 20;
/// Payload up to which copying next to the headers is cheaper than another piece.
const COPY: usize = 256;

/// Bytes of a payload that are fetched into the cache when it is queued, since the kernel copies it a little later.
/// The rest the processor fetches by itself in time.
const PREFETCH: usize = 512;
/// Payload from which waiting for its first bytes does not matter.
const LARGE: usize = 16 << 10;

enum Piece {
    /// So many bytes of `heads`.
    Head(usize),
    Data(Slice),
}

/// Bytes on their way from which on it is a sign of life when they get fewer.
const BACKLOG: u64 = 64 << 10;

/// What happens when all bytes up to a place in the stream are with the kernel.
enum Done {
    /// Work requests without a waiter.
    Slots(u32),
    Request(Token),
    /// A flush, and the place up to which the peer's system is to have all.
    Flush(u64, Token),
    /// A READ of the peer was served.
    Served,
}

/// The transmit queue of a connection.
pub(crate) struct Tx {
    crc: bool,
    fpdu_payload: usize,
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that have gone.
    gone: usize,
    /// Headers, trailers and small payloads; `head_at` is the first byte not yet gone.
    heads: Vec<u8>,
    head_at: usize,
    /// Bytes queued and sent since the start.
    queued: u64,
    sent: u64,
    done: VecDeque<(u64, Done)>,
    send_msn: u32,
    gathered: Vec<weir_stream::Piece>,
}

impl Tx {
    pub(crate) fn new(crc: bool, fpdu_payload: usize) -> Tx {
        Tx {
            crc,
            fpdu_payload: (fpdu_payload & !4095).clamp(4096, 61440),
            pieces: VecDeque::new(),
            gone: 0,
            heads: Vec::new(),
            head_at: 0,
            queued: 0,
            sent: 0,
            done: VecDeque::new(),
            send_msn: 1,
            gathered: Vec::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// `n` more bytes of `heads` are to go out.
    #[inline]
    fn copied(&mut self, n: usize) {
        self.queued += n as u64;
        match self.pieces.back_mut() {
            Some(Piece::Head(have)) => *have += n,
            _ => self.pieces.push_back(Piece::Head(n)),
        }
    }

    /// Queues one FPDU: header, up to two payload parts, padding and CRC.
    #[inline]
    fn fpdu<const H: usize>(&mut self, header: &[u8; H], first: &[u8], data: Option<Slice>) {
        let payload = first.len() + data.as_ref().map_or(0, Slice::len);
        let ulpdu = H - 2 + payload;
        let (trailer, n) = if self.crc {
            let mut crc = tx::FpduCrc::new(header);
            crc.update(first);
            if let Some(d) = &data {
                // SAFETY: where CRCs are on, callers give data that does not change (needs_stable_data).
                crc.update(unsafe { d.bytes() });
            }
            crc.trailer(ulpdu)
        } else {
            tx::trailer(ulpdu, None)
        };
        let mut run = H + first.len();
        // By words, as it was written: see proto-iwarp's `first_word`.
        header.chunks(8).for_each(|w| self.heads.extend_from_slice(w));
        self.heads.extend_from_slice(first);
        match data {
            Some(d) if d.len() > COPY => {
                self.copied(run);
                run = 0;
                self.queued += d.len() as u64;
                if d.len() < LARGE {
                    d.prefetch(PREFETCH);
                }
                self.pieces.push_back(Piece::Data(d));
            }
            Some(d) => {
                let at = self.heads.len();
                self.heads.resize(at + d.len(), 0);
                d.read_at(0, &mut self.heads[at..]);
                run += d.len();
            }
            None => {}
        }
        // A word is copied quicker than `n` bytes.
        self.heads.extend_from_slice(&trailer);
        self.heads.truncate(self.heads.len() - (trailer.len() - n));
        self.copied(run + n);
    }

    #[inline]
    fn mark(&mut self, token: Token) {
        if token == Token::NONE {
            if let Some((at, Done::Slots(n))) = self.done.back_mut()
                && *n < 32
            {
                *n += 1;
                *at = self.queued;
                return;
            }
            self.done.push_back((self.queued, Done::Slots(1)));
        } else {
            self.done.push_back((self.queued, Done::Request(token)));
        }
    }

    /// A Write or Read Response message.
    fn tagged_message(&mut self, op: Op, key: u32, to: u64, data: Slice) {
        let total = data.len();
        if total <= self.fpdu_payload {
            let header = tx::tagged_header(op, key, to, total, true);
            return self.fpdu(&header, &[], Some(data));
        }
        let mut at = 0;
        loop {
            let n = (total - at).min(self.fpdu_payload);
            let last = at + n == total;
            let header = tx::tagged_header(op, key, to.wrapping_add(at as u64), n, last);
            self.fpdu(&header, &[], Some(data.sub(at, n)));
            at += n;
            if last {
                return;
            }
        }
    }

    pub(crate) fn tagged(&mut self, op: Op, key: u32, to: u64, data: Slice, token: Token) {
        self.tagged_message(op, key, to, data);
        self.mark(token);
    }

    /// Tells when all that is queued so far has arrived.
    pub(crate) fn flush(&mut self, token: Token) {
        self.done.push_back((self.queued, Done::Flush(self.queued, token)));
    }

    /// Bytes that the kernel has taken since the start.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// The answer to a READ of the peer.
    pub(crate) fn response(&mut self, key: u32, to: u64, data: Slice) {
        self.tagged_message(Op::ReadResponse, key, to, data);
        self.done.push_back((self.queued, Done::Served));
    }

    pub(crate) fn send(
        &mut self,
        op: Op,
        key: u32,
        head: &[u8],
        data: Option<Slice>,
        token: Token,
    ) {
        let msn = self.send_msn;
        self.send_msn = msn.wrapping_add(1);
        let total = head.len() + data.as_ref().map_or(0, Slice::len);
        if total <= self.fpdu_payload {
            let header = tx::untagged_header(op, key, 0, msn, 0, total, true);
            self.fpdu(&header, head, data);
            return self.mark(token);
        }
        let mut at = 0;
        loop {
            let n = (total - at).min(self.fpdu_payload);
            let last = at + n == total;
            let header = tx::untagged_header(op, key, 0, msn, at as u32, n, last);
            let first = &head[at.min(head.len())..(at + n).min(head.len())];
            let rest = n - first.len();
            let from = (at + first.len()).saturating_sub(head.len());
            let part = data.as_ref().filter(|_| rest > 0).map(|d| d.sub(from, rest));
            self.fpdu(&header, first, part);
            at += n;
            if last {
                break;
            }
        }
        self.mark(token);
    }

    /// A message of one FPDU from several places. False: it is longer, or a CRC would have to be taken.
    pub(crate) fn send_gathered(
        &mut self,
        op: Op,
        head: &[u8],
        data: &mut Vec<Slice>,
        token: Token,
    ) -> bool {
        let total = head.len() + data.iter().map(Slice::len).sum::<usize>();
        if total > self.fpdu_payload || self.crc {
            return false;
        }
        let header = tx::untagged_header(op, 0, 0, self.send_msn, 0, total, true);
        self.send_msn = self.send_msn.wrapping_add(1);
        self.heads.extend_from_slice(&header);
        self.heads.extend_from_slice(head);
        self.copied(header.len() + head.len());
        for d in data.drain(..) {
            if d.len() > COPY {
                self.queued += d.len() as u64;
                self.pieces.push_back(Piece::Data(d));
            } else {
                let at = self.heads.len();
                self.heads.resize(at + d.len(), 0);
                d.read_at(0, &mut self.heads[at..]);
                self.copied(d.len());
            }
        }
        let (trailer, n) = tx::trailer(header.len() - 2 + total, None);
        self.heads.extend_from_slice(&trailer[..n]);
        self.copied(n);
        self.mark(token);
        true
    }

    pub(crate) fn read_request(&mut self, msn: u32, sink: u32, size: u32, remote: Remote) {
        let frame = tx::read_request(msn, sink, 0, size, remote.key, remote.addr);
        self.fpdu(&frame, &[], None);
    }

    /// A complete frame (Terminate).
    pub(crate) fn frame(&mut self, bytes: &[u8]) {
        self.heads.extend_from_slice(bytes);
        self.copied(bytes.len());
    }

    /// Gathers from the front; gives the bytes gathered.
    fn gather(&mut self) -> usize {
        self.gathered.clear();
        let mut head_at = self.head_at;
        let mut skip = self.gone;
        let mut total = 0;
        for p in self.pieces.iter().take(GATHER) {
            let (base, len) = match p {
                Piece::Head(n) => {
                    let len = n - skip;
                    let base = self.heads[head_at..head_at + len].as_ptr();
                    head_at += len;
                    (base, len)
                }
                // SAFETY: `skip` is less than the length of the first piece, and 0 for others.
                Piece::Data(d) => (unsafe { d.as_ptr().add(skip).cast_const() }, d.len() - skip),
            };
            skip = 0;
            total += len;
            // SAFETY: the queue keeps it, and the headers stay where they are until the next one is queued. Before anything
            // else is done with the queue it is gathered anew.
            self.gathered.push(unsafe { weir_stream::Piece::new(base, len) });
            if total >= BURST {
                break;
            }
        }
        total
    }

    /// `n` bytes from the front are with the kernel.
    fn advance(&mut self, mut n: usize) {
        self.sent += n as u64;
        while n > 0 {
            let Some(front) = self.pieces.front() else { break };
            let (len, is_head) = match front {
                Piece::Head(h) => (*h, true),
                Piece::Data(d) => (d.len(), false),
            };
            let take = n.min(len - self.gone);
            if is_head {
                self.head_at += take;
            }
            n -= take;
            self.gone += take;
            if self.gone < len {
                break;
            }
            self.gone = 0;
            self.pieces.pop_front();
        }
        if self.pieces.is_empty() {
            self.heads.clear();
            self.head_at = 0;
        } else if self.head_at > COMPACT && self.head_at * 2 > self.heads.len() {
            self.heads.drain(..self.head_at);
            self.head_at = 0;
        }
    }

    fn next_done(&mut self) -> Option<Done> {
        match self.done.front() {
            Some((at, _)) if *at <= self.sent => self.done.pop_front().map(|(_, d)| d),
            _ => None,
        }
    }

    /// Drops everything that has not gone.
    pub(crate) fn abandon(&mut self) {
        self.pieces.clear();
        self.gone = 0;
        self.heads.clear();
        self.head_at = 0;
        self.sent = self.queued;
    }
}

impl Conn {
    /// Sends what the kernel takes, tells who waited for it.
    pub(crate) fn transmit(&self, shared: &Shared) {
        if self.is_down() {
            return;
        }
        let mut broken = None;
        {
            let mut tx = self.tx.borrow_mut();
            // A peer that takes as fast as we send must not keep us from the other connections; what is
            // left goes in the next turn.
            let mut left = BURST;
            while !tx.is_empty() && left > 0 {
                let total = tx.gather();
                match self.stream.send(&tx.gathered) {
                    Ok(Ok(n)) => {
                        tx.advance(if has(Bug::ShortIsWhole) { total } else { n });
                        left = left.saturating_sub(n);
                        if n < total {
                            break;
                        }
                    }
                    Ok(Err(_)) => break,
                    Err(e) => {
                        broken = Some(e);
                        break;
                    }
                }
            }
        }
        self.report_done(0);
        if let Some(e) = broken {
            return self.down(shared, &format!("cannot send: {e}"));
        }
        if self.state.get() == State::Draining && self.tx_idle() {
            self.half_close();
        }
    }

    /// Sends what is queued before the end of the turn. A broken connection is left to the end of the turn, and so is
    /// telling who waited for what has gone.
    pub(crate) fn transmit_early(&self) {
        if self.tx_idle() || self.is_down() {
            return;
        }
        let mut tx = self.tx.borrow_mut();
        tx.gather();
        let Ok(Ok(n)) = self.stream.send(&tx.gathered) else { return };
        tx.advance(n);
        drop(tx);
        // What was left over from an earlier turn may be all there is: nothing else would ring.
        self.ring_later();
    }

    /// Looks whether the peer has taken of what was sent, where that was much: then its answers wait behind it. A peer
    /// that stands still takes no more than its buffers hold, and a few small messages prove nothing.
    pub(crate) fn look_for_life(&self) {
        let unsent = self.stream.unacknowledged();
        let taken = self.tx.borrow().sent.wrapping_sub(unsent);
        let (before, backlog) = self.taken.replace((taken, unsent));
        if taken != before && backlog >= BACKLOG {
            self.last_life.set(now());
        }
    }

    /// Completes requests whose bytes have gone.
    pub(crate) fn report_done(&self, result: i32) {
        loop {
            let next = self.tx.borrow_mut().next_done();
            match next {
                None => return,
                Some(Done::Slots(n)) => self.slots_back(n),
                Some(Done::Request(token)) => self.finish(token, result),
                Some(Done::Flush(at, token)) => self.flushed(at, token, result),
                Some(Done::Served) => {
                    self.reads_in.borrow_mut().done();
                }
            }
        }
    }

    /// Goes on with what the kernel had no room for.
    pub(crate) fn retry_transmit(&self, shared: &Shared) -> bool {
        if self.dirty.get() || self.tx_idle() {
            return false;
        }
        let before = self.tx.borrow().sent;
        self.transmit(shared);
        self.tx.borrow().sent != before
    }
}
