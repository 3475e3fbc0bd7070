//! The handle that protocols hold.

use super::pair::{End, Pair, Work};
use std::rc::Rc;
use weir_base::Nanos;
use weir_fabric::{Access, Connection, FabricError, Remote, SendFlags, Tap};
use weir_mem::Slice;
use weir_reactor::{Token, WaitChannel};

/// One side of a simulated connection. Dropping the last handle closes it at once.
pub(crate) struct SimConnection {
    pair: Rc<Pair>,
    side: usize,
}

impl SimConnection {
    pub(crate) fn new(pair: Rc<Pair>, side: usize) -> Rc<SimConnection> {
        Rc::new(SimConnection { pair, side })
    }

    fn end(&self) -> &End {
        &self.pair.ends[self.side]
    }
}

impl Drop for SimConnection {
    fn drop(&mut self) {
        self.pair.disconnect(self.side, true);
    }
}

impl Connection for SimConnection {
    fn qp(&self) -> u32 {
        self.end().qp
    }

    fn peer(&self) -> String {
        self.end().peer.clone()
    }

    fn send_slots(&self) -> &WaitChannel {
        &self.end().send_slots
    }

    fn read_slots(&self) -> &WaitChannel {
        &self.end().read_slots
    }

    fn last_life(&self) -> Nanos {
        self.end().last_life.get()
    }

    fn reads_out(&self) -> u16 {
        self.end().read_depth as u16
    }

    fn send(&self, head: &[u8], data: Option<Slice>, flags: SendFlags, token: Token) {
        let invalidate = flags.invalidate;
        self.pair.post(self.side, Work::Send { bytes: head.to_vec(), data, invalidate }, token);
    }

    fn write(&self, local: Slice, remote: Remote, token: Token) {
        self.pair.post(self.side, Work::Write { local, remote }, token);
    }

    fn read(&self, local: Slice, remote: Remote, token: Token) {
        self.pair.post(self.side, Work::Read { local, remote }, token);
    }

    fn flush(&self, token: Token) {
        self.pair.flush(self.side, token);
    }

    fn register(&self, local: &Slice, access: Access) -> Result<Remote, FabricError> {
        self.pair.register(self.side, local.clone(), access)
    }

    fn deregister(&self, key: u32) {
        self.pair.deregister(self.side, key);
    }

    fn set_tap(&self, tap: Option<Rc<dyn Tap>>) -> bool {
        *self.end().tap.borrow_mut() = tap;
        self.pair.habits.taps
    }

    fn disconnect(&self, now: bool) {
        self.pair.disconnect(self.side, now);
    }

    fn is_open(&self) -> bool {
        self.end().is_open()
    }

    fn on_closed(&self, token: Token) {
        self.pair.on_closed(self.side, token);
    }

    fn close_reason(&self) -> String {
        match self.is_open() {
            true => String::new(),
            false => self.end().reason.borrow().clone(),
        }
    }
}
