//! Disks that can be taken back: whoever still remembers one, such as an idle session, does not keep its device.

use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use weir_base::{IoError, IoResult};
use weir_disk::{Disk, DiskOp, Extent, Losses, report};
use weir_reactor::{LocalFuture, Token, complete};
use weir_uring::{FileDisk, Identity};

/// A disk until it is taken back, and nothing after that.
pub(crate) struct Lent {
    disk: RefCell<Option<Rc<FileDisk>>>,
    name: String,
    identity: String,
    len: u64,
    block: u32,
    losses: Option<Arc<Losses>>,
}

impl Lent {
    fn get(&self) -> Option<Rc<FileDisk>> {
        self.disk.borrow().clone()
    }
}

impl Disk for Lent {
    fn len(&self) -> u64 {
        self.disk.borrow().as_ref().map_or(self.len, |d| d.len())
    }

    fn block_size(&self) -> u32 {
        self.block
    }

    fn volatile_cache(&self) -> bool {
        self.disk.borrow().as_ref().is_none_or(|d| d.volatile_cache())
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn identity(&self) -> Cow<'_, str> {
        self.identity.as_str().into()
    }

    fn submit(&self, op: DiskOp, token: Token) {
        match &*self.disk.borrow() {
            Some(d) => d.submit(op, token),
            None => complete(token, report(Err(IoError::Offline))),
        }
    }

    fn set_len(&self, len: u64) -> IoResult {
        self.get().map_or(Err(IoError::Offline), |d| d.set_len(len))
    }

    fn extent(&self, at: u64, len: u64) -> LocalFuture<'_, Extent> {
        let disk = self.get();
        Box::pin(async move {
            match disk {
                Some(d) => d.extent(at, len).await,
                None => Extent { mapped: true, len },
            }
        })
    }

    fn is_thin(&self) -> bool {
        self.get().is_some_and(|d| d.is_thin())
    }

    fn allocated(&self) -> Option<u64> {
        self.get().and_then(|d| d.allocated())
    }

    fn losses(&self) -> Option<Arc<Losses>> {
        self.losses.clone()
    }
}

/// The disks that a reactor has lent, by what they are on: that may have got another name since.
#[derive(Default)]
pub(crate) struct Lending(RefCell<Vec<(Identity, Weak<Lent>)>>);

impl Lending {
    /// Lends a disk on this.
    pub(crate) fn lend(&self, on: Identity, disk: FileDisk) -> Rc<dyn Disk> {
        let lent = Rc::new(Lent {
            name: disk.name().to_owned(),
            identity: disk.identity().into_owned(),
            len: disk.len(),
            block: disk.block_size(),
            losses: disk.losses(),
            disk: RefCell::new(Some(Rc::new(disk))),
        });
        let mut all = self.0.borrow_mut();
        all.retain(|(_, l)| l.strong_count() > 0);
        all.push((on, Rc::downgrade(&lent)));
        lent
    }

    /// Takes all disks on these back. What is under way on them goes on to its end.
    pub(crate) fn take_back(&self, these: &[Identity]) {
        let mut gone = Vec::new();
        self.0.borrow_mut().retain(|(on, lent)| {
            let keep = !these.contains(on);
            if !keep {
                gone.extend(lent.upgrade());
            }
            keep
        });
        gone.iter().for_each(|l| drop(l.disk.take()));
    }
}
