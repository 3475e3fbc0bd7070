//! Disks that were looked at and have not answered since.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use weir_uring::{FileDisk, Identity, Remains};

/// What a reactor has looked at. One that hangs stays open until it answers, whoever gave up waiting: it is opened once.
#[derive(Default)]
pub(super) struct Unanswered(RefCell<Vec<(Identity, Weak<FileDisk>, Remains)>>);

impl Unanswered {
    /// Something is looked at, by this disk.
    pub(super) fn look(&self, identity: Identity, disk: &Rc<FileDisk>) {
        self.0.borrow_mut().push((identity, Rc::downgrade(disk), disk.remains()));
    }

    /// Those that nobody looks at any more, and that owe an answer.
    pub(super) fn all(&self) -> Vec<Identity> {
        let mut all = self.0.borrow_mut();
        all.retain(|(.., remains)| remains.is_open());
        let given_up = all.iter().filter(|(_, disk, _)| disk.strong_count() == 0);
        given_up.map(|(identity, ..)| *identity).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use weir_disk::{Disk, DiskOp};
    use weir_mem::Slice;
    use weir_reactor::{PollMode, Reactor, completion};
    use weir_uring::{OpenOptions, Opened, Ring};

    fn look(ring: &Ring, path: &Path, unanswered: &Unanswered) -> (Identity, Rc<FileDisk>) {
        let o = OpenOptions { read_only: true, ..OpenOptions::default() };
        let opened = Opened::open(path, o).expect("open");
        let identity = opened.identity().expect("a file");
        let disk = Rc::new(FileDisk::of(ring, opened));
        unanswered.look(identity, &disk);
        (identity, disk)
    }

    #[test]
    fn what_was_given_up_owes_an_answer_until_it_comes() {
        let path = std::env::temp_dir().join(format!("weir-unanswered-{}", std::process::id()));
        std::fs::write(&path, [1; 8192]).expect("a file");
        let ring = Ring::new().expect("a ring");
        let reactor = Reactor::new(Rc::new(ring.clone()));
        let name = path.clone();
        reactor.block_on(PollMode::Sleep, async move {
            let unanswered = Unanswered::default();
            drop(look(&ring, &name, &unanswered));
            assert_eq!(unanswered.all(), [], "nothing was asked");
            let (identity, disk) = look(&ring, &name, &unanswered);
            let (token, done) = completion();
            disk.submit(DiskOp::Read { offset: 0, buf: Slice::heap(4096) }, token);
            assert_eq!(unanswered.all(), [], "somebody waits");
            drop(disk);
            assert_eq!(unanswered.all(), [identity]);
            done.await;
            assert_eq!(unanswered.all(), [], "it has answered");
        });
        std::fs::remove_file(&path).expect("removed");
    }
}
