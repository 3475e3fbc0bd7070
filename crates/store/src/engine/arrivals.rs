//! Blocks of metadata whose writing has not ended: what is read there meanwhile is not them.

use crate::planted::{Bug, has};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use weir_reactor::WaitChannel;

/// How often each block is being written.
#[derive(Default)]
pub(crate) struct Arrivals {
    expected: RefCell<BTreeMap<u64, u32>>,
    arrived: WaitChannel,
}

/// A block is being written, for as long as this lives.
pub(crate) struct Arrival {
    all: Rc<Arrivals>,
    vbn: u64,
}

impl Arrivals {
    /// A write of the block begins.
    pub(crate) fn expect(self: &Rc<Self>, vbn: u64) -> Arrival {
        *self.expected.borrow_mut().entry(vbn).or_default() += 1;
        Arrival { all: self.clone(), vbn }
    }

    pub(crate) fn is_expected(&self, vbn: u64) -> bool {
        self.expected.borrow().contains_key(&vbn)
    }

    /// Blocks that are being written.
    pub(crate) fn len(&self) -> usize {
        self.expected.borrow().len()
    }

    /// Waits until no write of the block is under way.
    pub(crate) async fn wait(&self, vbn: u64) {
        while self.is_expected(vbn) && !has(Bug::ReadOnItsWay) {
            self.arrived.wait().await;
        }
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        let mut expected = self.all.expected.borrow_mut();
        if let Some(n) = expected.get_mut(&self.vbn) {
            *n -= 1;
            if *n == 0 {
                expected.remove(&self.vbn);
            }
        }
        drop(expected);
        self.all.arrived.signal_all();
    }
}
