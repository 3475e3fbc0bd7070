//! What of a channel's commands is to be waited for when its connection has ended.

use super::Channel;
use crate::planted::{Bug, has};
use std::rc::Rc;
use weir_base::Nanos;
use weir_proto_brp::slot::Slot;
use weir_reactor::{WaitChannel, timeout};

impl Channel {
    /// It is over.
    #[inline]
    pub(crate) fn over(&self) {
        self.busy.set(self.busy.get() - 1);
        self.drained_maybe();
    }

    /// A command is about to have an effect: [`has_acted`](Channel::has_acted) must follow its end.
    #[inline]
    pub(crate) fn acts(&self) {
        self.acting.set(self.acting.get() + 1);
    }

    /// Its slot knows how it ended.
    #[inline]
    pub(crate) fn has_acted(&self) {
        self.acting.set(self.acting.get() - 1);
        self.drained_maybe();
    }

    #[inline]
    pub(super) fn drained_maybe(&self) {
        if self.drained.waiting() > 0 {
            self.drained.signal_all();
        }
    }

    /// Waits until there is neither a connection nor a command under way that may have an effect. Reads may go on: a device that
    /// hangs may never end them, and nobody hears of them any more.
    pub(super) async fn drain(&self, patience: Nanos) -> bool {
        let drained = async {
            let acting = if has(Bug::ReadsHoldUp) { &self.busy } else { &self.acting };
            let left = || acting.get() > 0 && !has(Bug::DrainSkipped);
            while left() || self.conn.borrow().is_some() {
                self.drained.wait().await;
            }
        };
        timeout(patience, drained).await.is_ok()
    }

    /// Another connection: what is left of those before has had no effect, and will have none. Sent again it is new.
    pub(super) fn next_generation(&self) {
        self.generation.set(self.generation.get() + 1);
        let mut slots = self.slots.borrow_mut();
        slots.iter_mut().map(|s| &mut s.slot).filter(|s| s.is_running()).for_each(Slot::forget);
        *self.serial.borrow_mut() = Rc::new(WaitChannel::new(1));
    }
}
