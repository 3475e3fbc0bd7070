//! Files on file systems that have the caller wait (FUSE, NFS), as disks.

use crate::common::lossy::{Disks, Nature, can_mount};
use std::rc::Rc;
use weir_disk::{DiskOp, run};
use weir_mem::Slice;
use weir_reactor::{PollMode, Reactor};
use weir_uring::{FileDisk, OpenOptions, Ring};

/// A write that is to be kept when it ends has been flushed by then: not every such file system does that by itself.
#[test]
fn a_write_that_must_be_kept_is_flushed_before_it_ends() {
    let dir = std::env::temp_dir().join(format!("weir-kept-{}", std::process::id()));
    let disks = match can_mount() {
        Ok(()) => Disks::mount(&dir, 1, 1 << 20, Nature::Flushes, 1).expect("a disk"),
        Err(e) => return eprintln!("skipped: {e}"),
    };
    let ring = Ring::new().expect("a ring");
    let reactor = Reactor::new(Rc::new(ring.clone()));
    let disks = reactor.block_on(PollMode::Sleep, async move {
        let file = &disks.files()[0];
        let disk = FileDisk::open(&ring, file, OpenOptions::default()).expect("a disk");
        let write = |fua| {
            let op = DiskOp::Write { offset: 4096, buf: Slice::heap(8192), fua };
            run(&disk, op)
        };
        write(false).await.expect("written");
        let before = disks.cuts().flushes;
        for n in 1..=3 {
            write(true).await.expect("written");
            assert!(disks.cuts().flushes >= before + n, "it is in a cache yet");
        }
        disks
    });
    drop(disks);
    drop(std::fs::remove_dir_all(&dir));
}
