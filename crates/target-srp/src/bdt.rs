//! The buffer descriptor table machine: where the initiator's memory of one command lies.
//!
//! Usually the descriptors are in the command and only have to be copied out of the receive buffer. What is
//! not there is fetched by RDMA READ, in parallel with the command's submission.

use crate::channel::Channel;
use crate::trace::Trace;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_fabric::Remote;
use weir_mem::Slice;
use weir_proto_srp::states::BdtState;
use weir_proto_srp::types::DESCRIPTOR_LEN;
use weir_proto_srp::{Buffer, Descriptor, DescriptorList};
use weir_reactor::{WaitChannel, completion};

/// Descriptors kept with the request: a direct one, or a short table.
const INLINE: usize = 4;

/// One command's table for one direction. Belongs to a request structure and is used again.
pub(crate) struct Bdt {
    id: u32,
    state: Cell<BdtState>,
    count: Cell<usize>,
    few: RefCell<[Descriptor; INLINE]>,
    many: RefCell<Vec<Descriptor>>,
    /// Bytes of the buffer that the table describes.
    total: Cell<u32>,
    /// Signalled when a fetch has ended.
    settled: WaitChannel,
}

impl Bdt {
    pub(crate) fn new(id: u32) -> Bdt {
        Bdt {
            id,
            state: Cell::new(BdtState::START),
            count: Cell::new(0),
            few: RefCell::default(),
            many: RefCell::default(),
            total: Cell::new(0),
            settled: WaitChannel::new(0),
        }
    }

    fn enter(&self, trace: &Trace, next: BdtState) {
        let now = self.state.replace(next);
        assert!(now.may_follow(next), "bdt {}: {next} after {now}", self.id);
        trace.note("bdt", self.id, next.name());
    }

    /// Bytes of the initiator's buffer.
    pub(crate) fn total(&self) -> u32 {
        self.total.get()
    }

    /// Copies what the command carries. True when entries are missing and [`fetch`](Bdt::fetch) must follow.
    pub(crate) fn load(&self, trace: &Trace, buffer: &Buffer<'_>) -> bool {
        if matches!(buffer, Buffer::None) {
            return false;
        }
        self.enter(trace, BdtState::BufferWait);
        self.total.set(buffer.len());
        let mut n = 0;
        let mut many = self.many.borrow_mut();
        let mut few = self.few.borrow_mut();
        for d in buffer.descriptors() {
            if n < INLINE {
                few[n] = d;
            } else {
                if n == INLINE {
                    many.extend_from_slice(&few[..]);
                }
                many.push(d);
            }
            n += 1;
        }
        self.count.set(n);
        let missing = buffer.missing_table().is_some();
        if !missing {
            self.enter(trace, BdtState::Ready);
        }
        missing
    }

    /// Fetches the missing entries from the initiator's memory.
    pub(crate) async fn fetch(
        &self,
        trace: &Trace,
        channel: &Rc<Channel>,
        missing: Descriptor,
        buf: Slice,
    ) {
        if channel.conn.reads_out() == 0 {
            return self.fail(trace);
        }
        self.enter(trace, BdtState::SqrWait);
        channel.conn.send_slots().wait().await;
        channel.conn.read_slots().wait().await;
        self.enter(trace, BdtState::CqrWait);
        let (token, done) = completion();
        let part = buf.sub(0, missing.len as usize);
        let remote = Remote { key: missing.key, addr: missing.addr };
        channel.conn.read(part.clone(), remote, token);
        self.enter(trace, BdtState::FetchWait);
        let ok = done.await.is_ok() && self.append(&part.to_vec());
        self.enter(trace, if ok { BdtState::Ready } else { BdtState::Failed });
        self.settled.signal_all();
    }

    /// There will be no table.
    pub(crate) fn fail(&self, trace: &Trace) {
        self.enter(trace, BdtState::Failed);
        self.settled.signal_all();
    }

    /// Its fetch has panicked.
    #[cold]
    pub(crate) fn give_up(&self) {
        self.state.set(BdtState::Failed);
        self.settled.signal_all();
    }

    /// Adds fetched entries and checks the whole against the stated total.
    fn append(&self, bytes: &[u8]) -> bool {
        let Some(list) = DescriptorList::new(bytes) else { return false };
        let mut many = self.many.borrow_mut();
        if many.is_empty() {
            many.extend_from_slice(&self.few.borrow()[..self.count.get().min(INLINE)]);
        }
        many.extend(list.iter());
        self.count.set(many.len());
        let sum: u64 = many.iter().map(|d| u64::from(d.len)).sum();
        sum >= u64::from(self.total.get()) && !many.iter().any(Descriptor::wraps)
    }

    /// Waits until the table is there. False: there is none.
    pub(crate) async fn ready(&self) -> bool {
        loop {
            match self.state.get() {
                BdtState::Ready => return true,
                BdtState::Free | BdtState::Failed => return false,
                _ => self.settled.wait().await,
            }
        }
    }

    /// The table is ready now.
    pub(crate) fn is_ready(&self) -> bool {
        self.state.get() == BdtState::Ready
    }

    /// Runs `f` on the descriptors.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&[Descriptor]) -> R) -> R {
        let n = self.count.get();
        if n <= INLINE && self.many.borrow().is_empty() {
            f(&self.few.borrow()[..n])
        } else {
            f(&self.many.borrow())
        }
    }

    /// Waits until no fetch is under way: it reads the initiator's memory, which is the command's only
    /// until the command is answered.
    #[inline]
    pub(crate) async fn settle(&self) {
        while !matches!(self.state.get(), BdtState::Free | BdtState::Ready | BdtState::Failed) {
            self.settled.wait().await;
        }
    }

    /// The request is done with the table.
    pub(crate) async fn release(&self, trace: &Trace) {
        self.settle().await;
        if self.state.get() != BdtState::Free {
            self.enter(trace, BdtState::Free);
        }
        self.count.set(0);
        self.total.set(0);
        self.many.borrow_mut().clear();
    }
}

/// Longest table that can be missing, in bytes.
pub(crate) fn table_bytes(max_entries: u32) -> usize {
    max_entries as usize * DESCRIPTOR_LEN
}
