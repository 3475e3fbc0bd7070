//! Commands on their way to a request, and those that wait for one.

use super::{Ended, Parts};
use crate::channel::Channel;
use crate::planted::{Bug, has};
use crate::port::Port;
use std::rc::Rc;
use weir_mem::Slice;
use weir_proto_brp::command::{Command, Descriptor, Item};

/// A command for a request.
pub(crate) struct Work {
    pub(super) channel: Rc<Channel>,
    pub(super) generation: u64,
    pub(super) command: Command,
    pub(super) parts: Parts,
    /// Its inline data.
    pub(super) data: Option<Slice>,
}

impl Work {
    /// Takes what the command needs out of its message.
    pub(crate) fn new(channel: Rc<Channel>, item: &Item<'_>, bytes: &[u8]) -> Work {
        let port = &channel.port;
        let mut parts = port.spare.borrow_mut().pop().unwrap_or_default();
        parts.descriptors.clear();
        parts.descriptors.extend(item.descriptors.iter().map(Descriptor::decode));
        parts.sums.clear();
        parts.sums.extend_from_slice(item.sums);
        let (at, len) = item.data;
        let data = bytes.get(at..at + len).filter(|d| !d.is_empty()).map(|d| {
            // Memory of its own when buffers run short: the message cannot wait, and the number of such is
            // limited by slots. Also for a command that waits for others: these may wait for a buffer.
            let at_once = !channel.agreed.get().serial && channel.places.can_take(0);
            let buf = match at_once && len <= port.pool.max_len() {
                true => channel.share.try_alloc(len),
                false => None,
            };
            let buf = buf.unwrap_or_else(|| port.aside.borrow_mut().get(len));
            buf.write_at(0, d);
            buf
        });
        let (generation, command) = (channel.generation(), item.command);
        Work { channel, generation, command, parts, data }
    }

    /// It will not be run.
    pub(crate) fn give_up(self) {
        self.channel.ended(self.generation, &self.command, Ended::Lost, &[], false);
    }
}

impl Port {
    /// Gives a command to a request. It waits when there is none that its host may have.
    #[inline]
    pub(crate) fn submit(&self, work: Work) {
        if work.channel.places.try_one(0) {
            return self.begin_work(work);
        }
        let channel = work.channel.clone();
        channel.waiting_work.borrow_mut().push_back(work);
        channel.places.ask(0);
    }

    /// Gives a command to a request: one was taken for it.
    #[inline]
    #[expect(clippy::unreachable, reason = "an invariant: they are counted")]
    fn begin_work(&self, work: Work) {
        let idle = self.idle.borrow_mut().pop();
        match idle {
            Some(r) => {
                *r.work.borrow_mut() = Some(work);
                r.wake.signal();
            }
            // Its requests are none any more, and nobody wants the place.
            None if self.is_stopped() => work.give_up(),
            None => unreachable!("as many are idle as may be taken"),
        }
    }
}

impl Channel {
    /// A request is there for the command that has waited longest for one.
    pub(crate) fn next_work(&self) {
        let work = self.waiting_work.borrow_mut().pop_front();
        if let Some(work) = work {
            self.port.begin_work(work);
        }
    }

    /// Nobody waits for what commands without a request would tell: they have had no effect, and will have none. Those that have
    /// one hold it until they end; what waits would be as much again with every connection.
    pub(crate) fn give_up_waiting(&self) {
        if has(Bug::WaitingStay) {
            return;
        }
        self.places.ask_no_more(0);
        self.waiting_work.take().into_iter().for_each(Work::give_up);
    }
}
