//! Checksums from the initiator's memory to the medium and back: a protected pool behind the target, bits that change in
//! the target's memory and on the medium.

use crate::common::{bytes, check_clean, on_reactor, session_config, slice};
use crate::target::{BLOCK, Served, config, serve_volume};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::Prng;
use weir_block::{Filter, IoFuture, Volume};
use weir_disk::{Disk, DiskOp, report};
use weir_fabric::Provider;
use weir_initiator_brp::{Error, Event, Hop, Session, SessionConfig};
use weir_mem::Slice;
use weir_reactor::{Token, complete};
use weir_store::{Options, Pool, PoolSpec, create};

const LEN: u64 = 4 << 20;
const SIZES: [usize; 3] = [4096, 12 << 10, 256 << 10];

/// A device in memory.
struct Medium(Slice);

impl Disk for Medium {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }
    fn block_size(&self) -> u32 {
        4096
    }
    fn volatile_cache(&self) -> bool {
        false
    }
    fn name(&self) -> &str {
        "memory"
    }
    fn submit(&self, op: DiskOp, token: Token) {
        match op {
            DiskOp::Read { offset, buf } => buf.copy_from(0, &self.0, offset as usize, buf.len()),
            DiskOp::Write { offset, buf, .. } => {
                self.0.copy_from(offset as usize, &buf, 0, buf.len());
            }
            DiskOp::WriteZeroes { offset, len, .. } => {
                self.0.sub(offset as usize, len as usize).fill(0);
            }
            DiskOp::Flush | DiskOp::Discard { .. } => {}
        }
        complete(token, report(Ok(())));
    }
}

/// The target's memory, in which bits change: of so many writes before they get to the volume, and of so many reads
/// after they came from there.
struct Memory {
    volume: Rc<dyn Volume>,
    writes: Cell<u32>,
    reads: Cell<u32>,
    prng: RefCell<Prng>,
}

impl Memory {
    fn due(left: &Cell<u32>) -> bool {
        let n = left.get();
        left.set(n.saturating_sub(1));
        n > 0
    }

    /// Changes one bit; tells in which 4 KiB.
    fn flip(&self, buf: &Slice) {
        let bit = self.prng.borrow_mut().below(buf.len() as u64 * 8);
        let mut byte = [0];
        buf.read_at((bit / 8) as usize, &mut byte);
        buf.write_at((bit / 8) as usize, &[byte[0] ^ 1 << (bit % 8)]);
    }
}

impl Filter for Memory {
    fn lower(&self) -> &dyn Volume {
        &*self.volume
    }
    fn keeps_sums(&self) -> bool {
        self.volume.keeps_sums()
    }
    fn read_summed(&self, at: u64, buf: Slice, sums: Slice) -> IoFuture<'_> {
        IoFuture::new(async move {
            self.volume.read_summed(at, buf.clone(), sums).await?;
            if Memory::due(&self.reads) {
                self.flip(&buf);
            }
            Ok(())
        })
    }
    fn write_summed(&self, at: u64, buf: Slice, sums: Slice, fua: bool) -> IoFuture<'_> {
        if Memory::due(&self.writes) {
            self.flip(&buf);
        }
        self.volume.write_summed(at, buf, sums, fua)
    }
}

struct Scene {
    media: [Slice; 2],
    pool: Pool,
    id: u32,
    memory: Rc<Memory>,
    served: Served,
    session: Session,
}

async fn scene(p: Rc<dyn Provider>, seed: u64) -> Scene {
    let media = [0; 2].map(|_| Slice::heap(32 << 20));
    let disks: Vec<Rc<dyn Disk>> =
        media.iter().map(|m| Rc::new(Medium(m.clone())) as Rc<dyn Disk>).collect();
    let spec = PoolSpec { overwrite: true, ..PoolSpec::fitting(9, 2, 64 << 20) };
    create(&disks, &spec).await.unwrap();
    let pool = Pool::open(disks, Options::default()).await.unwrap();
    let id = pool.create_volume("v", LEN, BLOCK as u32).await.unwrap();
    let memory = Rc::new(Memory {
        volume: pool.volume(id).unwrap(),
        writes: Cell::new(0),
        reads: Cell::new(0),
        prng: RefCell::new(Prng::new(seed)),
    });
    let served = serve_volume(p.clone(), "127.0.0.1:0", config(), memory.clone(), Rc::default());
    let c = SessionConfig { retries: 3, ..session_config(&served) };
    let session = Session::connect(p, c).await.unwrap();
    Scene { media, pool, id, memory, served, session }
}

impl Scene {
    fn hops(&self) -> Vec<Hop> {
        let hop = |e: &Event| match e {
            Event::Damaged { hop, .. } => Some(*hop),
            _ => None,
        };
        self.session.events().iter().filter_map(hop).collect()
    }

    async fn end(self) {
        check_clean(&self.session, &self.served).await;
        self.pool.close().await.unwrap();
    }
}

#[test]
fn data_changed_in_the_targets_memory_is_found_and_never_stored() {
    for (seed, len) in SIZES.into_iter().enumerate() {
        on_reactor(move |p| async move {
            let s = scene(p, seed as u64).await;
            let d = s.session.queue().open("v").await.unwrap();
            let (old, new) = (bytes(len, 1), bytes(len, 2));
            d.write(4096, slice(&old), false).await.unwrap();
            // Once: the initiator sends what it still has.
            s.memory.writes.set(1);
            d.write(4096, slice(&new), false).await.unwrap();
            assert_eq!(s.hops(), [Hop::TargetMemory], "{len}");
            // Always: it is told, and what was there stays.
            s.memory.writes.set(u32::MAX);
            let e = d.write(4096, slice(&old), false).await;
            assert!(matches!(e, Err(Error::Damaged { hop: Hop::TargetMemory, .. })), "{len} {e:?}");
            s.memory.writes.set(0);
            let back = Slice::heap(len).sub(0, len);
            d.read(4096, back.clone()).await.unwrap();
            // Blocks of a long write that were right may have been written; none is anything else.
            for (i, b) in back.to_vec().chunks(4096).enumerate() {
                let at = i * 4096;
                assert!(b == &new[at..at + 4096] || b == &old[at..at + 4096], "{len}: block {i}");
            }
            drop(d);
            s.end().await;
        });
    }
}

#[test]
fn data_changed_in_the_targets_memory_after_it_was_read_is_found() {
    for (seed, len) in SIZES.into_iter().enumerate() {
        on_reactor(move |p| async move {
            let s = scene(p, seed as u64).await;
            let d = s.session.queue().open("v").await.unwrap();
            let data = bytes(len, 1);
            d.write(4096, slice(&data), false).await.unwrap();
            let back = Slice::heap(len).sub(0, len);
            s.memory.reads.set(1);
            d.read(4096, back.clone()).await.unwrap();
            assert!(
                back.to_vec() == data && s.hops() == [Hop::TargetMemory],
                "{len} {:?}",
                s.hops()
            );
            s.memory.reads.set(u32::MAX);
            let e = d.read(4096, back.clone()).await;
            assert!(matches!(e, Err(Error::Damaged { hop: Hop::TargetMemory, .. })), "{len} {e:?}");
            s.memory.reads.set(0);
            drop(d);
            s.end().await;
        });
    }
}

#[test]
fn data_changed_on_the_medium_is_mended_from_the_other_copy_or_named() {
    for len in SIZES {
        on_reactor(move |p| async move {
            let s = scene(p, 0).await;
            let d = s.session.queue().open("v").await.unwrap();
            let data = bytes(len, 1);
            d.write(4096, slice(&data), false).await.unwrap();
            let v = s.pool.volume(s.id).unwrap();
            let last = 4096 + len as u64 - 4096;
            let places = v.locate(last).await.unwrap();
            assert_eq!(places.len(), 2);
            let rot = |n: usize| {
                let (device, at) = places[n];
                s.media[usize::from(device)].write_at(at as usize + 99, &[0xee, 0x11]);
            };
            let back = Slice::heap(len).sub(0, len);
            rot(0);
            for _ in 0..4 {
                d.read(4096, back.clone()).await.unwrap();
                assert!(back.to_vec() == data, "{len}");
            }
            rot(0);
            rot(1);
            for _ in 0..3 {
                let e = d.read(4096, back.clone()).await;
                assert_eq!(e, Err(Error::Damaged { hop: Hop::Medium, at: last }), "{len}");
            }
            drop(d);
            s.end().await;
        });
    }
}

/// What a volume says of itself, and parts of blocks, which have no checksum of the store's.
#[test]
fn a_volume_tells_that_it_keeps_checksums_and_parts_of_blocks_work() {
    on_reactor(|p| async move {
        let s = scene(p, 0).await;
        let all = s.session.queue().list().await.unwrap();
        assert!(all.iter().all(|v| v.keeps_sums) && !all.is_empty());
        let d = s.session.queue().open("v").await.unwrap();
        let mut model = vec![0; 64 << 10];
        for (at, len) in [(512, 512), (3584, 1024), (4096, 8192), (10240, 20480), (0, 512)] {
            let data = bytes(len, at as u64);
            model[at..at + len].copy_from_slice(&data);
            d.write(at as u64, slice(&data), false).await.unwrap();
        }
        for (at, len) in [(0, 64 << 10), (512, 512), (4608, 9216)] {
            let back = Slice::heap(len).sub(0, len);
            d.read(at as u64, back.clone()).await.unwrap();
            assert!(back.to_vec() == model[at..at + len], "{at} {len}");
        }
        assert_eq!(s.hops(), []);
        drop(d);
        s.end().await;
    });
}
