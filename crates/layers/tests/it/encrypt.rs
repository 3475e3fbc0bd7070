//! Encryption against the model, and what is seen below it.

use crate::common::{
    Did, MemDisk, World, edges, exercise, pattern, ram, reactor, read, run, write,
};
use std::rc::Rc;
use weir_base::{IoError, MICROS};
use weir_block::{Filter, GraphSpec, IoFuture, NodeSpec, Volume};
use weir_layers::encrypt::{Encrypt, KEY_LEN, MasterKey, WHOLE};
use weir_mem::Slice;
use weir_reactor::{PollMode, spawn};

fn key(seed: u64) -> MasterKey {
    let bytes: [u8; KEY_LEN] = pattern(seed, KEY_LEN).try_into().unwrap();
    MasterKey::new(&bytes).unwrap()
}

fn over(lower: Rc<dyn Volume>, world: &World) -> Rc<dyn Volume> {
    Rc::new(Encrypt::new(lower, &key(1), world.pool.clone()))
}

fn ram_volume(world: &World, len: u64, block: u64) -> Rc<dyn Volume> {
    world
        .volume(GraphSpec::new("v", "r").with(ram("r", len).param("block-size", block.to_string())))
}

#[test]
fn as_the_model_says_over_memory() {
    for block in [512, 4096] {
        let r = reactor();
        r.block_on(PollMode::Sleep, async move {
            let world = World::new();
            let v = over(ram_volume(&world, 4 << 20, block), &world);
            assert_eq!(u64::from(v.geometry().block_size), block);
            assert!(!v.keeps_sums());
            exercise(v, block, 4, 300).await;
        });
    }
}

/// Slowly, so that buffers run out and the reserve is waited for; by memory that is aligned to nothing.
#[test]
fn as_the_model_says_over_a_slow_disk() {
    run(async {
        let disk = MemDisk::new(4 << 20, 512);
        disk.slow.set(50 * MICROS);
        let world = World::new().disk("d", disk.clone());
        let lower = world
            .volume(GraphSpec::new("v", "d").with(NodeSpec::new("d", "disk").param("path", "d")));
        let v = over(lower, &world);
        exercise(v, 7, 24, 100).await;
        assert!(disk.most_in_flight.get() > 8, "{}", disk.most_in_flight.get());
        assert!(world.pool.is_whole(), "buffers came back");
    });
}

#[test]
fn below_nothing_is_readable_and_what_was_not_written_is_zeros() {
    run(async {
        let world = World::new();
        let lower = ram_volume(&world, 1 << 20, 512);
        let v = over(lower.clone(), &world);
        let secret = b"a secret of 16 b".repeat(1024);
        write(&*v, 4096, &secret).await.unwrap();
        assert_eq!(read(&*v, 4096, secret.len()).await.unwrap(), secret);
        let below = read(&*lower, 4096, secret.len()).await.unwrap();
        assert!(!below.windows(16).any(|w| secret.windows(16).any(|s| s == w)));
        // The same data looks different in every sector.
        let sectors: Vec<_> = below.chunks(512).collect();
        assert!(sectors.iter().enumerate().all(|(i, s)| !sectors[..i].contains(s)));
        // Another key does not read it.
        let other: Rc<dyn Volume> =
            Rc::new(Encrypt::new(lower.clone(), &key(2), world.pool.clone()));
        assert_ne!(read(&*other, 4096, secret.len()).await.unwrap(), secret);

        v.discard(4096, 8192).await.unwrap();
        v.write_zeroes(4096 + 8192, 512, false).await.unwrap();
        for v in [&v, &lower] {
            assert!(read(&**v, 4096, 8192 + 512).await.unwrap().iter().all(|b| *b == 0));
        }
        // Zeros that a host writes are data, and are not seen below.
        write(&*v, 0, &[0; 512]).await.unwrap();
        assert!(read(&*v, 0, 512).await.unwrap().iter().all(|b| *b == 0));
        assert!(read(&*lower, 0, 512).await.unwrap().iter().any(|b| *b != 0));
        edges(&*v).await;
    });
}

/// The same sector has the same content below however the I/O was cut: a clone, a mirror and a reader of another size agree.
#[test]
fn a_sector_does_not_depend_on_its_neighbours() {
    run(async {
        let world = World::new();
        let (a, b) = (ram_volume(&world, 1 << 20, 512), ram_volume(&World::new(), 1 << 20, 512));
        let data = pattern(3, 96 << 10);
        write(&*over(a.clone(), &world), 1536, &data).await.unwrap();
        let v = over(b.clone(), &world);
        for (i, sector) in data.chunks(512).enumerate().rev() {
            write(&*v, 1536 + i as u64 * 512, sector).await.unwrap();
        }
        assert_eq!(read(&*a, 0, 1 << 20).await.unwrap(), read(&*b, 0, 1 << 20).await.unwrap());
    });
}

#[test]
fn the_callers_buffer_stays_as_it_is_and_writes_go_down_whole() {
    run(async {
        let disk = MemDisk::new(4 << 20, 512);
        let world = World::new().disk("d", disk.clone());
        let spec = GraphSpec::new("v", "d").with(NodeSpec::new("d", "disk").param("path", "d"));
        let v = over(world.volume(spec), &world);
        // Larger than any buffer of this pool.
        let data = pattern(5, WHOLE);
        let buf = Slice::copy_of(&data);
        v.write(512, buf.clone(), true).await.unwrap();
        assert_eq!(buf.to_vec(), data);
        let log = disk.take_log();
        assert_eq!(log, [Did::Write(512, WHOLE, true)]);
        // With checksums of what the host sent, and of what it gets.
        let (buf, sums) = (Slice::copy_of(&data), Slice::heap(WHOLE / 1024));
        weir_block::fill_sums(&buf, &sums);
        v.write_summed(0, buf.clone(), sums.clone(), false).await.unwrap();
        let (back, found) = (Slice::heap(WHOLE), Slice::heap(WHOLE / 1024));
        v.read_summed(0, back.clone(), found.clone()).await.unwrap();
        assert_eq!((back.to_vec(), found.to_vec()), (data, sums.to_vec()));
        buf.write_at(8192, &[1, 2, 3]);
        assert_eq!(v.write_summed(0, buf, sums, false).await, Err(IoError::Changed(2)));
    });
}

/// Errors from below come up, and what could not be read is not touched.
#[test]
fn errors_come_up() {
    run(async {
        let disk = MemDisk::new(1 << 20, 512);
        let world = World::new().disk("d", disk.clone());
        let spec = GraphSpec::new("v", "d").with(NodeSpec::new("d", "disk").param("path", "d"));
        let v = over(world.volume(spec), &world);
        write(&*v, 0, &pattern(1, 4096)).await.unwrap();
        disk.result.set(Err(IoError::Medium));
        for slow in [0, 10] {
            disk.slow.set(slow);
            assert_eq!(read(&*v, 0, 4096).await, Err(IoError::Medium));
            assert_eq!(write(&*v, 0, &pattern(1, 4096)).await, Err(IoError::Medium));
            assert_eq!(v.flush().await, Err(IoError::Medium));
        }
        disk.result.set(Ok(()));
        assert_eq!(read(&*v, 0, 4096).await.unwrap(), pattern(1, 4096));
    });
}

struct Stuck(Rc<dyn Volume>);

impl Filter for Stuck {
    fn lower(&self) -> &dyn Volume {
        &*self.0
    }
    fn write(&self, _at: u64, buf: Slice, _fua: bool) -> IoFuture<'_> {
        IoFuture::new(async move {
            weir_reactor::sleep(1_000_000).await;
            drop(buf);
            Err(IoError::Aborted)
        })
    }
}

/// Hosts give I/O up: buffers come back, also those of the reserve.
#[test]
fn what_is_given_up_gives_its_buffers_back() {
    run(async {
        let world = World::new();
        let v = over(Rc::new(Stuck(ram_volume(&world, 4 << 20, 512))), &world);
        let all: Vec<_> = (0..40)
            .map(|i| {
                let v = v.clone();
                spawn(async move { write(&*v, i * 65536, &pattern(i, 65536)).await })
            })
            .collect();
        weir_reactor::sleep(1000).await;
        assert!(!world.pool.is_whole());
        drop(all);
        let again = write(&*v, 0, &pattern(1, WHOLE)).await;
        assert_eq!(again, Err(IoError::Aborted));
        weir_reactor::sleep(100_000_000).await;
        assert!(world.pool.is_whole());
    });
}
