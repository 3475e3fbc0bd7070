//! Waiting until the peer's system has what was sent.

use crate::conn::Conn;
use weir_base::MICROS;
use weir_reactor::{Token, sleep, spawn_task};

/// How often the kernel is asked what it still holds.
const EVERY: u64 = 200 * MICROS;

impl Conn {
    /// The kernel has taken all up to byte `at` of the stream.
    pub(crate) fn flushed(&self, at: u64, token: Token, result: i32) {
        let me = self.shared().and_then(|s| s.get(self.slot));
        let Some(me) = me.filter(|c| !c.has_arrived(at)) else { return self.finish(token, result) };
        spawn_task(async move {
            while !me.has_arrived(at) {
                sleep(EVERY).await;
            }
            me.finish(token, result);
        });
    }

    /// The peer has acknowledged all up to byte `at` of the stream, or will never do so.
    fn has_arrived(&self, at: u64) -> bool {
        // What is not acknowledged may be older than the first byte of the queue: the frames of the set-up.
        self.is_down() || self.tx.borrow().sent() >= at + self.stream.unacknowledged()
    }
}
