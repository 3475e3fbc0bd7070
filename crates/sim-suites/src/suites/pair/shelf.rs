//! The device of a node, as owners of both nodes reach it: the stand-in for a device that is exported to the partner.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use weir_base::{IoError, MICROS};
use weir_disk::{Disk, DiskOp, report, run};
use weir_reactor::{Token, complete, sleep, spawn_task};
use weir_sim::SimDisk;

/// What guards one device: nothing of an older owner epoch runs any more when a newer one is let in.
#[derive(Default)]
pub(super) struct Shelf {
    known: Cell<u32>,
    /// Commands under way, by epoch.
    running: RefCell<BTreeMap<u32, u32>>,
}

impl Shelf {
    /// Lets this epoch in, when what is older has ended. False: a newer one is in.
    pub(super) async fn enter(&self, epoch: u32) -> bool {
        if epoch < self.known.get() {
            return false;
        }
        self.known.set(epoch);
        while self.running.borrow().iter().any(|(e, n)| *e < epoch && *n > 0) {
            sleep(100 * MICROS).await;
        }
        epoch == self.known.get()
    }

    /// The node that has it has died, and what was under way with it.
    pub(super) fn died(&self, epoch: u32) {
        self.running.borrow_mut().remove(&epoch);
    }
}

/// The link between the nodes.
#[derive(Default)]
pub(super) struct Link {
    down: Cell<bool>,
    cuts: Cell<u64>,
}

impl Link {
    pub(super) fn is_up(&self) -> bool {
        !self.down.get()
    }

    pub(super) fn heal(&self) {
        self.down.set(false);
    }

    /// Ends all sessions that are on it.
    pub(super) fn cut(&self) {
        self.down.set(true);
        self.cuts.set(self.cuts.get() + 1);
    }
}

/// A session with a node's device. Once its link has been down it is over: nobody knows what became of what it had sent.
pub(super) struct Way {
    pub(super) disk: Rc<SimDisk>,
    pub(super) shelf: Rc<Shelf>,
    epoch: u32,
    /// None: the device is the node's own. The number is that of cuts when it began.
    link: Option<(Rc<Link>, u64)>,
}

impl Way {
    pub(super) fn new(
        disk: Rc<SimDisk>,
        shelf: Rc<Shelf>,
        epoch: u32,
        link: Option<Rc<Link>>,
    ) -> Rc<Way> {
        let link = link.map(|l| (l.clone(), l.cuts.get()));
        Rc::new(Way { disk, shelf, epoch, link })
    }

    /// The session goes on.
    pub(super) fn is_on(&self) -> bool {
        is_on(self.link.as_ref())
    }
}

fn is_on(link: Option<&(Rc<Link>, u64)>) -> bool {
    link.is_none_or(|(l, cuts)| l.is_up() && l.cuts.get() == *cuts)
}

impl Disk for Way {
    fn len(&self) -> u64 {
        self.disk.len()
    }
    fn block_size(&self) -> u32 {
        self.disk.block_size()
    }
    fn volatile_cache(&self) -> bool {
        self.disk.volatile_cache()
    }
    fn name(&self) -> &str {
        self.disk.name()
    }
    fn identity(&self) -> Cow<'_, str> {
        self.disk.identity()
    }
    fn submit(&self, op: DiskOp, token: Token) {
        if !self.is_on() || self.epoch != self.shelf.known.get() {
            return complete(token, report(Err(IoError::Offline)));
        }
        let (disk, shelf, epoch, link) =
            (self.disk.clone(), self.shelf.clone(), self.epoch, self.link.clone());
        *shelf.running.borrow_mut().entry(epoch).or_default() += 1;
        spawn_task(async move {
            let mut done = run(&*disk, op).await;
            if let Some(n) = shelf.running.borrow_mut().get_mut(&epoch) {
                *n = n.saturating_sub(1);
            }
            // The answer is lost with the link.
            if !is_on(link.as_ref()) {
                done = Err(IoError::Offline);
            }
            complete(token, report(done));
        });
    }
}
