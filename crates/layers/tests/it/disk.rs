//! The `disk` leaf: what it tells the disk, and what it refuses.

use crate::common::{Did, MemDisk, World, pattern, read, run, write};
use std::rc::Rc;
use weir_base::IoError;
use weir_block::{GraphErrorKind, GraphSpec, NodeSpec, Volume};
use weir_mem::{BufPool, PoolConfig, Slice};
use weir_reactor::spawn;

fn node() -> NodeSpec {
    NodeSpec::new("d", "disk").param("path", "/d")
}

fn spec(n: NodeSpec) -> GraphSpec {
    GraphSpec::new("v", "d").with(n)
}

fn volume(disk: &Rc<MemDisk>, n: NodeSpec) -> Rc<dyn Volume> {
    World::new().disk("/d", disk.clone()).volume(spec(n))
}

#[test]
fn fua_flush_discard_and_zeroes_reach_the_disk() {
    run(async {
        let d = MemDisk::new(1 << 20, 512);
        let v = volume(&d, node());
        v.write(512, Slice::heap(1024), true).await.unwrap();
        v.write(0, Slice::heap(512), false).await.unwrap();
        v.flush().await.unwrap();
        v.discard(4096, 4096).await.unwrap();
        v.write_zeroes(0, 512, false).await.unwrap();
        v.read(0, Slice::heap(4096)).await.unwrap();
        v.read(0, Slice::heap(0)).await.unwrap();
        assert_eq!(
            d.take_log(),
            [
                Did::Write(512, 1024, true),
                Did::Write(0, 512, false),
                Did::Flush,
                Did::WriteZeroes(4096, 4096, true),
                Did::WriteZeroes(0, 512, false),
                Did::Read(0, 4096),
            ]
        );
        let g = v.geometry();
        assert_eq!((g.len, g.block_size, g.thin, g.volatile_cache), (1 << 20, 512, true, true));
    });
}

#[test]
fn discard_is_advice_where_the_volume_is_not_thin() {
    run(async {
        let d = MemDisk::with(1 << 20, 4096, |d| (d.sparse, d.volatile) = (false, false));
        let v = volume(&d, node());
        let g = v.geometry();
        assert_eq!((g.block_size, g.thin, g.volatile_cache), (4096, false, false));
        v.discard(0, 8192).await.unwrap();
        assert_eq!(d.take_log(), [Did::Discard(0, 8192)]);
        d.result.set(Err(IoError::Unsupported));
        assert_eq!(v.discard(0, 4096).await, Ok(()));
        d.result.set(Err(IoError::Medium));
        assert_eq!(v.discard(0, 4096).await, Err(IoError::Medium));
        assert_eq!(v.flush().await, Err(IoError::Medium));
        assert!(volume(&d, node().param("thin", "yes")).geometry().thin);
    });
}

/// File systems without such an operation: zeros are written as data.
#[test]
fn zeros_where_the_disk_has_no_operation_for_them() {
    run(async {
        let d = MemDisk::with(1 << 20, 512, |d| d.no_zeroes = true);
        let v = volume(&d, node());
        let data = pattern(1, 1 << 20);
        write(&*v, 0, &data).await.unwrap();
        v.write_zeroes(512, 200 << 10, false).await.unwrap();
        v.discard(400 << 10, 4096).await.unwrap();
        let mut want = data;
        want[512..512 + (200 << 10)].fill(0);
        want[400 << 10..404 << 10].fill(0);
        assert!(read(&*v, 0, 1 << 20).await.unwrap() == want);
    });
}

#[test]
fn a_read_only_volume_reads_only() {
    run(async {
        let d = MemDisk::new(1 << 20, 512);
        let world = World::new().disk("/d", d.clone());
        let v = world.volume(spec(node().param("read-only", true)));
        assert!(world.opened.borrow()[0].read_only && v.geometry().read_only);
        assert_eq!(write(&*v, 0, &[0; 512]).await, Err(IoError::ReadOnly));
        assert_eq!(v.write_zeroes(0, 512, true).await, Err(IoError::ReadOnly));
        assert_eq!(v.discard(0, 512).await, Err(IoError::ReadOnly));
        assert_eq!(v.resize(512), Err(IoError::ReadOnly));
        d.take_log();
        read(&*v, 0, 512).await.unwrap();
        assert_eq!(d.take_log(), [Did::Read(0, 512)]);
    });
}

#[test]
fn what_cannot_be_is_refused_with_the_reason() {
    let refused = |n: NodeSpec, kind: GraphErrorKind, words: &str| {
        let world = World::new().disk("/d", MemDisk::new(8192, 4096));
        let e = world.build(spec(n)).err().expect(words);
        assert_eq!((e.kind(), e.node()), (kind, Some("d")), "{e}");
        assert!(e.to_string().contains(words), "{e}");
    };
    use GraphErrorKind::{Disk, Param};
    refused(node().param("path", "/nowhere"), Disk, "`/nowhere` cannot be opened");
    refused(node().param("block-size", "512"), Disk, "has 4096-byte blocks and cannot be");
    refused(node().param("len", 12288u64), Disk, "has 8192 bytes, less than the 12288");
    refused(node().param("create", true), Param, "`create` needs `len`");
    let world = World::new().disk("/d", MemDisk::new(2048, 512));
    let e = world.build(spec(node().param("block-size", "4096"))).err().unwrap();
    assert!(e.to_string().contains("no room for a block"), "{e}");
}

#[test]
fn the_opener_is_told_what_is_wished() {
    run(async {
        let world = World::new().disk("/d", MemDisk::new(1 << 20, 512));
        world.volume(spec(node().param("create", true).param("len", "512KiB")));
        let wish = world.opened.borrow()[0].clone();
        assert_eq!((wish.create, wish.len, wish.read_only), (true, Some(512 << 10), false));
    });
}

#[test]
fn memory_that_a_disk_does_not_take_is_bounced() {
    run(async {
        let d = MemDisk::new(1 << 20, 4096);
        let v = volume(&d, node());
        let data = pattern(1, 300 << 10);
        let skewed = Slice::heap(data.len() + 8).sub(8, data.len());
        skewed.write_at(0, &data);
        v.write(4096, skewed.clone(), true).await.unwrap();
        let log = d.take_log();
        assert!(log.iter().all(|op| matches!(op, Did::Write(_, _, true))), "{log:?}");
        skewed.fill(0);
        v.read(4096, skewed.clone()).await.unwrap();
        assert!(skewed.to_vec() == data);
        assert!(d.data.borrow()[4096..4096 + data.len()] == data);
        d.result.set(Err(IoError::Medium));
        assert_eq!(v.write(0, skewed.sub(0, 4096), false).await, Err(IoError::Medium));
        assert_eq!(v.read(0, skewed.sub(0, 4096)).await, Err(IoError::Medium));
    });
}

/// With the pool empty, I/O with unaligned memory still ends: whoever holds the pool's buffers may be
/// waiting for just that.
#[test]
fn bouncing_needs_no_buffer_of_the_pool() {
    run(async {
        let mut world = World::new().disk("/d", MemDisk::with(1 << 20, 512, |d| d.slow.set(1000)));
        world.pool = BufPool::new(&PoolConfig { classes: vec![(4096, 1)] }).unwrap();
        let held = world.pool.alloc(4096).await;
        let v = world.volume(spec(node()));
        let ios: Vec<_> = (0..10u64)
            .map(|i| {
                let v = v.clone();
                spawn(async move {
                    let data = pattern(i, 80 << 10);
                    let buf = Slice::heap(data.len() + 1).sub(1, data.len());
                    buf.write_at(0, &data);
                    v.write(i * (80 << 10), buf.clone(), false).await.unwrap();
                    buf.fill(0);
                    v.read(i * (80 << 10), buf.clone()).await.unwrap();
                    buf.to_vec() == data
                })
            })
            .collect();
        for io in ios {
            assert_eq!(io.await, Some(true));
        }
        drop(held);
        assert!(world.pool.is_whole());
    });
}

#[test]
fn long_io_goes_in_transfers_of_bounded_size() {
    run(async {
        let d = MemDisk::with(40 << 20, 512, |d| d.slow.set(1000));
        let v = volume(&d, node());
        let data = pattern(3, 20 << 20);
        write(&*v, 512, &data).await.unwrap();
        let mut log = d.take_log();
        log.sort_by_key(|op| match op {
            Did::Write(at, ..) => *at,
            _ => 0,
        });
        let (eight, four) = (8 << 20, 4 << 20);
        assert_eq!(
            log,
            [
                Did::Write(512, eight, false),
                Did::Write(512 + eight as u64, eight, false),
                Did::Write(512 + 2 * eight as u64, four, false),
            ]
        );
        assert_eq!(d.most_in_flight.get(), 3);
        assert!(read(&*v, 512, data.len()).await.unwrap() == data);
    });
}

#[test]
fn resize_changes_the_file_once_and_every_handle() {
    run(async {
        let d = MemDisk::new(1 << 20, 512);
        let (a, b) = (volume(&d, node()), volume(&d, node()));
        a.resize(2 << 20).unwrap();
        assert_eq!(
            (a.geometry().len, b.geometry().len, d.data.borrow().len()),
            (2 << 20, 1 << 20, 2 << 20)
        );
        b.resize(2 << 20).unwrap();
        assert_eq!(b.geometry().len, 2 << 20);
        write(&*b, (2 << 20) - 512, &[1; 512]).await.unwrap();
        assert_eq!(a.resize(1000), Err(IoError::OutOfRange));
        a.resize(4096).unwrap();
        assert_eq!(read(&*a, 4096, 512).await, Err(IoError::OutOfRange));
    });
}
