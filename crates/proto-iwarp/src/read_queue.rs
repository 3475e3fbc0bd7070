//! RDMA READs outstanding: ours at the peer, and the peer's at us.

use crate::fault::Reason;
use crate::rx::Segment;
use std::collections::VecDeque;

/// One of our READs, waiting for its response.
#[derive(Debug, Clone, Copy)]
struct Read<T> {
    sink_stag: u32,
    sink_to: u64,
    size: u32,
    token: T,
}

/// What a Read Response segment belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Response<T> {
    /// The READ's token.
    pub token: T,
    /// Where in the READ the segment's payload begins, bytes.
    pub at: u32,
}

/// Our READs in the order of their requests, which is the order of their responses (RFC 5040
/// section 5.2).
#[derive(Debug)]
pub struct Outbound<T> {
    reads: VecDeque<Read<T>>,
    limit: usize,
    /// Of the oldest READ: bytes that segments were accepted for.
    placed: u32,
    /// The last accepted segment of the oldest READ, and where it begins in the READ.
    current: Option<(Segment, u32)>,
    next_msn: u32,
}

impl<T: Copy> Outbound<T> {
    /// At most `limit` READs at once, as negotiated.
    pub fn new(limit: u16) -> Self {
        let limit = usize::from(limit);
        Outbound {
            reads: VecDeque::with_capacity(limit),
            limit,
            placed: 0,
            current: None,
            next_msn: 1,
        }
    }

    /// READs waiting.
    #[inline]
    pub fn len(&self) -> usize {
        self.reads.len()
    }

    /// True with none waiting.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    /// True when another READ may be sent.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.reads.len() < self.limit
    }

    /// Notes a READ that is about to be sent, and gives the message number of its request. `None`:
    /// the limit is reached, wait for a response.
    #[inline]
    pub fn issue(&mut self, sink_stag: u32, sink_to: u64, size: u32, token: T) -> Option<u32> {
        if !self.has_room() {
            return None;
        }
        self.reads.push_back(Read { sink_stag, sink_to, size, token });
        let msn = self.next_msn;
        self.next_msn = msn.wrapping_add(1);
        Some(msn)
    }

    /// Whether `seg`, a Read Response, is what the oldest READ waits for, and where its payload
    /// goes. To be asked for every part; parts of one segment get the same answer.
    #[inline]
    pub fn accept(&mut self, seg: &Segment) -> Result<Response<T>, Reason> {
        let read = self.reads.front().ok_or(Reason::UnexpectedResponse)?;
        if let Some((current, at)) = self.current
            && current == *seg
        {
            return Ok(Response { token: read.token, at });
        }
        let at = self.placed;
        let expected_to = read.sink_to.wrapping_add(u64::from(at));
        if seg.stag != read.sink_stag || seg.to != expected_to {
            return Err(Reason::ResponseMismatch {
                stag: seg.stag,
                to: seg.to,
                expected_stag: read.sink_stag,
                expected_to,
            });
        }
        let got = u64::from(at) + u64::from(seg.total);
        let asked = read.size;
        if got > u64::from(asked) || (seg.last_segment && got != u64::from(asked)) {
            return Err(Reason::ResponseSize { got, asked });
        }
        self.placed = got as u32;
        self.current = Some((*seg, at));
        Ok(Response { token: read.token, at })
    }

    /// The oldest READ's last segment is complete (`last` of the receiver's step): takes the READ
    /// off. `None` when no accepted segment ended it.
    #[inline]
    pub fn complete(&mut self) -> Option<T> {
        match self.current.take() {
            Some((seg, _)) if seg.last_segment => {
                self.placed = 0;
                self.reads.pop_front().map(|r| r.token)
            }
            other => {
                self.current = other;
                None
            }
        }
    }

    /// Takes all READs off, oldest first: the stream has ended.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.placed = 0;
        self.current = None;
        self.reads.drain(..).map(|r| r.token)
    }
}

/// A READ of the peer, to be answered by Read Response segments in order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Key to echo.
    pub sink_stag: u32,
    /// Where the response begins.
    pub sink_to: u64,
    /// Bytes wanted.
    pub size: u32,
    /// Our key that names the source.
    pub src_stag: u32,
    /// Where in it the data begins.
    pub src_to: u64,
}

/// The peer's READs, waiting to be served.
#[derive(Debug)]
pub struct Inbound {
    queue: VecDeque<Request>,
    limit: u16,
    next_msn: u32,
}

impl Inbound {
    /// At most `limit` READs at once, as negotiated.
    pub fn new(limit: u16) -> Self {
        Inbound { queue: VecDeque::with_capacity(usize::from(limit)), limit, next_msn: 1 }
    }

    /// READs waiting or being served.
    #[inline]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// True with none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes a Read Request from the receiver. More than agreed on ends the stream.
    #[inline]
    pub fn push(&mut self, request: Request) -> Result<(), Reason> {
        self.next_msn = self.next_msn.wrapping_add(1);
        if self.queue.len() >= usize::from(self.limit) {
            return Err(Reason::ReadQueueFull(self.limit));
        }
        self.queue.push_back(request);
        Ok(())
    }

    /// The oldest READ. It counts until [`Inbound::done`].
    #[inline]
    pub fn front(&self) -> Option<&Request> {
        self.queue.front()
    }

    /// The oldest READ's whole response is on its way.
    #[inline]
    pub fn done(&mut self) -> Option<Request> {
        self.queue.pop_front()
    }

    /// Message number of the newest Read Request, for [`crate::Fault::in_read`].
    #[inline]
    pub fn last_msn(&self) -> u32 {
        self.next_msn.wrapping_sub(1)
    }

    /// Message number of the oldest READ's request.
    #[inline]
    pub fn front_msn(&self) -> u32 {
        self.next_msn.wrapping_sub(self.queue.len() as u32)
    }
}

#[cfg(test)]
mod tests;
