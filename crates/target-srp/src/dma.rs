//! The DMA machine: transfers between local buffers and the initiator's memory.
//!
//! Both sides bring scatter-gather lists, so that one transfer may take several RDMA operations; they run in
//! parallel as the send queue and the negotiated number of READs allow. A transfer that is aborted before
//! its first operation, or moves nothing, calls back through the run queue (ASYNC WAIT).

use crate::request::Request;
use std::cell::Cell;
use std::rc::Rc;
use weir_fabric::Remote;
use weir_mem::{Lent, Slice};
use weir_proto_srp::bdt::{Segment, Walk};
use weir_proto_srp::states::DmaState;
use weir_reactor::{CompletionFuture, Token, completion, run_async};
use weir_target_core::{Stop, Transfer};

/// RDMA READs of one transfer at once; more wait their turn.
const PARALLEL_READS: usize = 16;

/// One command's transfers.
pub(crate) struct Dma<'a> {
    pub(crate) request: &'a Rc<Request>,
    pub(crate) immediate: Option<Slice>,
    pub(crate) state: Cell<DmaState>,
}

impl Dma<'_> {
    fn enter(&self, next: DmaState) {
        let now = self.state.replace(next);
        assert!(now.may_follow(next), "dma {}: {next} after {now}", self.request.id);
        self.request.port.trace.note("dma", self.request.id, next.name());
    }

    /// Nothing was posted: calls back in a context of its own.
    async fn come_back(&self, result: Result<(), Stop>) -> Result<(), Stop> {
        self.enter(DmaState::AsyncWait);
        run_async().await;
        self.enter(DmaState::Idle);
        result
    }

    /// The operations of a transfer; `None` when the initiator's list does not cover it.
    fn operations(&self, write: bool, at: u64, local: &Slice) -> Option<Operations> {
        let bdt = if write { &self.request.data_in } else { &self.request.data_out };
        let max = self.request.port.config.max_rdma.max(4096);
        bdt.with(|list| {
            // Nearly always one descriptor and one operation: no list is made.
            if let [d] = list
                && at.checked_add(local.len() as u64).is_some_and(|end| end <= u64::from(d.len))
            {
                let remote = Remote { key: d.key, addr: d.addr.wrapping_add(at) };
                return Some(Operations::One { remote, len: local.len(), at: 0, max });
            }
            let segments = [Segment { base: 0, len: local.len() as u32 }];
            let walk = Walk::new(list.iter().copied(), segments, at, local.len() as u64, max);
            let ops = walk
                .ok()?
                .map(|o| (o.local as usize, o.len as usize, Remote { key: o.key, addr: o.remote }));
            Some(Operations::Many(ops.collect::<Vec<_>>().into_iter()))
        })
    }
}

/// RDMA operations still to be posted: (local offset, length, remote place).
enum Operations {
    One { remote: Remote, len: usize, at: usize, max: u32 },
    Many(std::vec::IntoIter<(usize, usize, Remote)>),
}

impl Iterator for Operations {
    type Item = (usize, usize, Remote);
    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Operations::One { remote, len, at, max } => {
                let from = *at;
                let n = (*len - from).min(*max as usize);
                *at += n;
                let addr = remote.addr.wrapping_add(from as u64);
                (n > 0).then_some((from, n, Remote { key: remote.key, addr }))
            }
            Operations::Many(v) => v.next(),
        }
    }
}

impl Transfer for Dma<'_> {
    fn out_len(&self) -> u64 {
        self.immediate.as_ref().map_or(u64::from(self.request.data_out.total()), |d| d.len() as u64)
    }

    fn in_len(&self) -> u64 {
        u64::from(self.request.data_in.total())
    }

    fn immediate(&self) -> Option<Slice> {
        self.immediate.clone()
    }

    fn needs_stable_data(&self) -> bool {
        self.request.channel().conn.needs_stable_data()
    }

    fn stopped(&self) -> bool {
        self.request.stopped()
    }

    async fn halted(&self) {
        self.request.halted().await;
    }

    async fn buffer(&mut self, len: usize) -> Result<Lent, Stop> {
        self.request.buffer(len).await
    }

    fn piece(&self, len: usize) -> usize {
        self.request.channel().share.piece(len)
    }

    async fn fetch(&mut self, at: u64, into: Slice) -> Result<(), Stop> {
        self.enter(DmaState::BdtWait);
        if !self.request.data_out.ready().await || self.stopped() || into.is_empty() {
            let r = if into.is_empty() { Ok(()) } else { Err(Stop) };
            return self.come_back(r).await;
        }
        let Some(ops) = self.operations(false, at, &into) else {
            return self.come_back(Err(Stop)).await;
        };
        let channel = self.request.channel();
        // A host that serves no READ can only bring its data in the command.
        if channel.conn.reads_out() == 0 {
            return self.come_back(Err(Stop)).await;
        }
        let mut pending: [Option<CompletionFuture>; PARALLEL_READS] =
            [const { None }; PARALLEL_READS];
        let mut ok = true;
        for (i, (from, len, remote)) in ops.enumerate() {
            // The oldest of a full set is waited for first.
            if let Some(f) = pending[i % PARALLEL_READS].take() {
                ok &= f.await.is_ok();
            }
            if self.stopped() || !ok {
                break;
            }
            self.enter(DmaState::SqrWait);
            channel.conn.send_slots().wait().await;
            channel.conn.read_slots().wait().await;
            self.enter(DmaState::CqrWait);
            let (token, done) = completion();
            channel.conn.read(into.sub(from, len), remote, token);
            pending[i % PARALLEL_READS] = Some(done);
        }
        if self.state.get() == DmaState::BdtWait {
            return self.come_back(Err(Stop)).await;
        }
        self.enter(DmaState::XferWait);
        // Whatever was posted writes into `into` until it completes.
        for f in pending.iter_mut().filter_map(Option::take) {
            ok &= f.await.is_ok();
        }
        self.enter(DmaState::Idle);
        if ok && !self.stopped() { Ok(()) } else { Err(Stop) }
    }

    async fn deliver(&mut self, at: u64, from: Slice) -> Result<(), Stop> {
        self.enter(DmaState::BdtWait);
        let ready = self.request.data_in.is_ready() || self.request.data_in.ready().await;
        if !ready || self.stopped() || from.is_empty() {
            let r = if from.is_empty() { Ok(()) } else { Err(Stop) };
            return self.come_back(r).await;
        }
        let Some(ops) = self.operations(true, at, &from) else {
            return self.come_back(Err(Stop)).await;
        };
        let channel = self.request.channel();
        let whole = from.len();
        for (start, len, remote) in ops {
            self.enter(DmaState::SqrWait);
            if !channel.conn.send_slots().try_wait() {
                channel.conn.send_slots().wait().await;
            }
            self.enter(DmaState::CqrWait);
            // Unsignalled: the data goes out before the response that is posted behind it, and the
            // provider keeps the memory till then.
            let part = if len == whole { from.clone() } else { from.sub(start, len) };
            channel.conn.write(part, remote, Token::NONE);
        }
        self.enter(DmaState::XferWait);
        self.enter(DmaState::Idle);
        if self.stopped() { Err(Stop) } else { Ok(()) }
    }
}
