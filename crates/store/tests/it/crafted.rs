//! Images that somebody made so: looking at them ends, and takes no more memory than they have bytes.

use std::rc::Rc;
use weir_base::SECONDS;
use weir_block::Volume;
use weir_disk::Disk;
use weir_mem::Slice;
use weir_sim::{DiskConfig, Node, SimMedium, World};
use weir_store::dump::Dump;
use weir_store::format::blob::{DATASETS, SPACE, levels};
use weir_store::format::dataset::{DatasetRecord, RECORD};
use weir_store::format::label::{Layout, SUPER_SLOTS};
use weir_store::format::page::{FANOUT, HEADER, Header, PTR, seal};
use weir_store::format::superblock::{BlobRoot, Superblock, TableRoot};
use weir_store::format::{BLOCK, Block, LAST_EPOCH, NodePtr, PageKind, dead, slab, zeroed};
use weir_store::{Options, Pool, PoolSpec, StoreError, check, create, label_of};

const LEN: u64 = 8 << 20;
const SHIFT: u8 = 8;

/// One device with a pool that has a volume.
struct Bench {
    w: World,
    n: Node,
    medium: SimMedium,
    layout: Layout,
    newest: Superblock,
    /// A block of the pool that nothing uses.
    free: u64,
}

impl Bench {
    fn new() -> Bench {
        let w = World::new(3);
        let n = w.node("store");
        let medium = SimMedium::new("d", LEN, DiskConfig::default(), 1);
        n.attach(&medium);
        let spec =
            PoolSpec { slab_shift: SHIFT, log_pages: 64, spares: 8, ..PoolSpec::fitting(77, 1, 0) };
        let disk = n.disk("d") as Rc<dyn Disk>;
        let layout = w.run(&n, 1000 * SECONDS, async move {
            create(std::slice::from_ref(&disk), &spec).await.unwrap();
            let p = Pool::open(vec![disk.clone()], Options::default()).await.unwrap();
            p.create_volume("v", 64 << 20, 4096).await.unwrap();
            p.close().await.unwrap();
            label_of(&disk).await.unwrap().layout
        });
        let layout = layout.expect("it ends");
        let free = (u64::from(layout.extents - 1) << SHIFT) + 100;
        let newest = newest(&medium, &layout);
        Bench { w, n, medium, layout, newest, free }
    }

    fn run<T: 'static>(&self, f: impl Future<Output = T> + 'static) -> T {
        self.w.run(&self.n, 100_000 * SECONDS, f).expect("it ends")
    }

    fn disks(&self) -> Vec<Rc<dyn Disk>> {
        vec![self.n.disk("d")]
    }

    /// Where a block of the pool is: each slab has the extent of its number.
    fn at(&self, vbn: u64) -> u64 {
        (self.layout.extent((vbn >> SHIFT) as u32) + (vbn & ((1 << SHIFT) - 1))) * BLOCK as u64
    }

    fn header(&self, kind: PageKind, level: u8, owner: u64, index: u64, vbn: u64) -> Header {
        let (birth, max_birth) = (1, 1);
        let pool = self.newest.tag();
        Header { kind, level, entry_format: 0, pool, owner, index, birth, max_birth, vbn, count: 0 }
    }

    /// Puts a page on the next block that nothing uses.
    fn page(&mut self, kind: PageKind, level: u8, owner: u64, content: &[u8]) -> NodePtr {
        self.free += 1;
        self.page_at(self.free - 1, kind, level, owner, content)
    }

    fn page_at(&self, vbn: u64, kind: PageKind, level: u8, owner: u64, content: &[u8]) -> NodePtr {
        let mut b = zeroed();
        b[HEADER..HEADER + content.len()].copy_from_slice(content);
        let crc = seal(&mut b, &self.header(kind, level, owner, 0, vbn));
        self.medium.poke(self.at(vbn), &b[..]);
        NodePtr { vbn, birth: 1, max_birth: 1, crc }
    }

    /// The newest superblock is this one.
    fn put(&self, s: &Superblock) {
        for area in 0..2 {
            let at = self.layout.superblock(u64::from(area), s.seq) * BLOCK as u64;
            self.medium.poke(at, &s.encode(s.members[0].device, area)[..]);
        }
    }

    fn refused(&self) {
        let disks = self.disks();
        for gone in [
            self.run(Pool::open(disks.clone(), Options::default())).map(|_| ()),
            self.run(check(disks.clone(), Options::default())).map(|_| ()),
            self.run(async move { Dump::open(disks).await?.datasets().await.map(|_| ()) }),
        ] {
            assert!(matches!(gone, Err(StoreError::Pool(_))), "{gone:?}");
        }
    }
}

fn newest(m: &SimMedium, layout: &Layout) -> Superblock {
    let slots = (0..2u8).flat_map(|a| (0..SUPER_SLOTS).map(move |s| (a, s)));
    let found = slots.filter_map(|(area, slot)| {
        let mut b = zeroed();
        m.peek(layout.superblock(area.into(), slot) * BLOCK as u64, &mut b[..]);
        Superblock::decode_any(&b, area, slot).ok().map(|(_, s)| s)
    });
    found.max_by_key(|s| s.seq).expect("it has one")
}

/// Pages of pointers that name one page over and over would be a table of gigabytes.
#[test]
fn a_table_of_few_pages_that_says_it_is_long_is_refused() {
    for owner in [DATASETS, SPACE] {
        let mut b = Bench::new();
        let mut ptr = b.page(PageKind::Blob, 0, owner, &[]);
        for level in 1..=3 {
            let mut pointers = [0; FANOUT * PTR];
            pointers.chunks_mut(PTR).for_each(|p| ptr.put(p));
            ptr = b.page(PageKind::BlobIndex, level, owner, &pointers);
        }
        let len = (FANOUT * FANOUT * FANOUT * (BLOCK - HEADER)) as u64;
        assert_eq!(levels(len).len(), 4);
        let mut s = b.newest.clone();
        s.datasets = BlobRoot { ptr, height: 3, len };
        b.put(&s);
        b.refused();
        // Its height must be that of its length.
        for (height, len) in [(2, len), (3, 256), (0, len)] {
            s.datasets = BlobRoot { ptr, height, len };
            let block = s.encode(s.members[0].device, 0);
            let slot = s.seq % SUPER_SLOTS;
            assert!(Superblock::decode_any(&block, 0, slot).is_err(), "{height} {len}");
        }
        // As many pages as it must have, no more.
        s.datasets = BlobRoot { ptr, height: 3, len: len - (FANOUT * FANOUT * BLOCK) as u64 };
        b.put(&s);
        b.refused();
    }
}

/// Two slabs in one place would be two owners of each block.
#[test]
fn two_slabs_in_one_place_are_refused() {
    let b = Bench::new();
    let mut s = b.newest.clone();
    let at = |i| b.layout.table(s.space.which, i) * BLOCK as u64;
    let mut block = zeroed();
    b.medium.peek(at(0), &mut block[..]);
    let first = HEADER + 8;
    block.copy_within(first..first + 4 + slab::RECORD / 4, first + slab::RECORD);
    let mut header = b.header(PageKind::Blob, 0, SPACE, 0, 0);
    (header.birth, header.max_birth) = (s.epoch, s.epoch);
    seal(&mut block, &header);
    b.medium.poke(at(0), &block[..]);
    let bytes = &block[HEADER..HEADER + s.space.len as usize];
    s.space = TableRoot { crc: weir_codec::crc64(bytes), ..s.space };
    b.put(&s);
    let why = b.run(Pool::open(b.disks(), Options::default())).map(|_| ()).unwrap_err();
    assert!(why.to_string().contains("in the same place"), "{why}");
}

/// A page that refers to itself: checksums are affine, so there is one.
fn page_of_itself(make: impl Fn(u64) -> (Box<Block>, u64)) -> (Box<Block>, u64) {
    let zero = make(0).1;
    // Rows of (A + I) x = c, the right side in bit 64.
    let columns: Vec<u64> = (0..64).map(|i| make(1 << i).1 ^ zero ^ 1 << i).collect();
    let row = |bit: u32| {
        let left = (0..64).fold(0u128, |r, i| r | u128::from(columns[i] >> bit & 1) << i);
        left | u128::from(zero >> bit & 1) << 64
    };
    let mut rows: Vec<u128> = (0..64).map(row).collect();
    let mut x = 0u64;
    let mut pivots = Vec::new();
    for column in 0..64 {
        let at = pivots.len();
        let Some(k) = (at..64).find(|k| rows[*k] >> column & 1 == 1) else { continue };
        rows.swap(at, k);
        let pivot = rows[at];
        for (k, r) in rows.iter_mut().enumerate() {
            if k != at && *r >> column & 1 == 1 {
                *r ^= pivot;
            }
        }
        pivots.push(column);
    }
    for (k, column) in pivots.iter().enumerate() {
        x |= ((rows[k] >> 64 & 1) as u64) << column;
    }
    let (block, crc) = make(x);
    assert_eq!(crc, x, "there is a solution");
    (block, crc)
}

#[test]
fn a_list_that_leads_back_to_itself_ends() {
    let mut b = Bench::new();
    let vbn = b.free;
    b.free += 1;
    let header = b.header(PageKind::Dead, 0, 1, 0, vbn);
    let (block, crc) = page_of_itself(|crc| {
        dead::encode(&header, NodePtr { vbn, birth: 1, max_birth: 1, crc }, &[(vbn + 50, 1)])
    });
    b.medium.poke(b.at(vbn), &block[..]);
    let mut s = b.newest.clone();
    let mut table = zeroed();
    b.medium.peek(b.at(s.datasets.ptr.vbn), &mut table[..]);
    let content = &mut table[HEADER..HEADER + RECORD];
    let mut record = DatasetRecord::get(content).unwrap();
    record.dead = NodePtr { vbn, birth: 1, max_birth: 1, crc };
    record.dead_count = u64::MAX;
    record.put(content);
    let content = content.to_vec();
    s.datasets.ptr = b.page_at(s.datasets.ptr.vbn, PageKind::Blob, 0, DATASETS, &content);
    b.put(&s);
    let disks = b.disks();
    let report = b.run(async move { check(disks, Options::default()).await }).unwrap();
    let list = |f: &&weir_store::Finding| f.layer.starts_with("dead list");
    assert!(report.findings.iter().filter(list).count() > 0, "{:?}", report.findings);
    assert!(report.findings.len() < 100);
    let disks = b.disks();
    let report = b.run(async move {
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.scrub(0).await
    });
    assert!(report.unwrap().blocks < 10_000);
}

/// Epochs are counted to an end. Behind it there are no new snapshots, and everything else goes on.
#[test]
fn a_pool_in_its_last_epoch_is_written_and_checkpointed() {
    let b = Bench::new();
    let mut s = b.newest.clone();
    s.epoch = LAST_EPOCH - 12;
    b.put(&s);
    for life in 1..6u8 {
        let disks = b.disks();
        let epoch = b.run(async move {
            let p = Pool::open(disks, Options::default()).await.unwrap();
            let v = p.volume(1).unwrap();
            for round in 0..4u8 {
                let buf = Slice::heap(65536);
                buf.fill(life * 10 + round);
                v.write(u64::from(round % 2) << 16, buf, false).await.unwrap();
                p.checkpoint().await.unwrap();
                if (life, round) == (1, 0) {
                    p.snapshot(&[(1, "early")], 0).await.unwrap();
                }
            }
            if life == 3 {
                p.clone_snapshot(p.find("early").unwrap(), "clone").await.unwrap();
            }
            if life == 4 {
                p.delete(p.find("clone").unwrap()).await.unwrap();
                p.delete(p.find("early").unwrap()).await.unwrap();
            }
            let buf = Slice::heap(4096);
            v.read(65536, buf.clone()).await.unwrap();
            assert_eq!(buf.to_vec(), vec![life * 10 + 3; 4096]);
            if life > 1 {
                let late = p.snapshot(&[(1, "late")], 0).await;
                assert!(matches!(late, Err(StoreError::Request(_))), "{late:?}");
            }
            // Every other life ends without a last checkpoint.
            if life % 2 == 0 {
                p.close().await.unwrap();
            }
            p.status().epoch
        });
        assert!(epoch <= LAST_EPOCH && (life == 1 || epoch == LAST_EPOCH), "{epoch}");
        b.n.kill();
        b.n.restart();
    }
    let disks = b.disks();
    let p = b.run(Pool::open(disks, Options::default())).unwrap();
    b.run(async move { p.close().await }).unwrap();
    let disks = b.disks();
    let report = b.run(async move { check(disks, Options::default()).await }).unwrap();
    assert_eq!(report.findings, []);
}
