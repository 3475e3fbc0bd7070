//! Labels and superblocks that are damaged are mended, and a device without any label is still known.

use std::rc::Rc;
use weir_base::SECONDS;
use weir_block::Volume;
use weir_disk::Disk;
use weir_sim::{DiskConfig, Node, SimMedium, World};
use weir_store::format::label::{LABELS, Label, Layout};
use weir_store::format::superblock::Superblock;
use weir_store::{Options, Pool, PoolSpec, ScrubWatch, StoreError, check, create, label_of};

const LEN: u64 = 8 << 20;

fn spec() -> PoolSpec {
    PoolSpec { slab_shift: 8, log_pages: 64, spares: 8, ..PoolSpec::fitting(77, 2, 0) }
}

struct Bench {
    w: World,
    n: Node,
    media: Vec<SimMedium>,
}

impl Bench {
    /// Two devices with a pool.
    fn new() -> Bench {
        let w = World::new(3);
        let n = w.node("store");
        let medium = |i| SimMedium::new(&format!("d{i}"), LEN, DiskConfig::default(), i);
        let media: Vec<SimMedium> = (0..2).map(medium).collect();
        media.iter().for_each(|m| n.attach(m));
        let b = Bench { w, n, media };
        let disks = b.disks();
        b.run(async move { create(&disks, &spec()).await }).unwrap();
        b
    }

    fn disks(&self) -> Vec<Rc<dyn Disk>> {
        (0..2).map(|i| self.n.disk(&format!("d{i}")) as Rc<dyn Disk>).collect()
    }

    fn run<T: 'static>(&self, f: impl Future<Output = T> + 'static) -> T {
        self.w.run(&self.n, 1000 * SECONDS, f).expect("it ends")
    }

    fn open(&self) -> Result<Pool, StoreError> {
        self.run(Pool::open(self.disks(), Options::default()))
    }

    /// The pool is opened and closed, which is what puts its labels right.
    fn life(&self) {
        let p = self.open().unwrap();
        self.run(async move { p.close().await }).unwrap();
    }

    fn layout(&self, n: usize) -> Layout {
        let d = self.disks().remove(n);
        self.run(async move { label_of(&d).await }).unwrap().layout
    }

    fn spoil(&self, n: usize, block: u64) {
        self.media[n].poke(block * 4096 + 9, &[0x55; 40]);
    }

    fn block(&self, n: usize, at: u64) -> [u8; 4096] {
        let mut b = [0; 4096];
        self.media[n].peek(at * 4096, &mut b);
        b
    }

    /// Number of the newest superblock of the first device.
    fn newest(&self, y: &Layout) -> u64 {
        let slots = (0..64).map(|n| {
            let block = self.block(0, y.superblock(0, n));
            Superblock::decode_any(&block, 0, n)
        });
        slots.flatten().map(|(_, s)| s.seq).max().expect("there are superblocks")
    }

    fn has_label(&self, n: usize, at: u64) -> bool {
        Label::decode(&self.block(n, at)).is_ok()
    }
}

#[test]
fn a_label_is_mended_before_the_next_copy_goes() {
    let b = Bench::new();
    let y = b.layout(1);
    for copy in (0..u64::from(LABELS)).chain(0..4) {
        match copy % 2 {
            0 => b.spoil(1, y.label(copy)),
            _ => b.media[1].fail_reads(y.label(copy) * 4096, 4096),
        }
        b.life();
        assert!(b.has_label(1, y.label(copy)), "copy {copy}");
    }
}

#[test]
fn a_device_without_a_label_is_known_by_its_superblocks() {
    let b = Bench::new();
    let y = b.layout(0);
    for lost in [vec![0], vec![1], vec![0, 1]] {
        // One area of superblocks is enough.
        for n in &lost {
            (0..4).for_each(|c| b.spoil(*n, y.label(c)));
            (0..64).for_each(|s| b.spoil(*n, y.superblock(*n as u64, s)));
        }
        let disks = b.disks();
        let options = Options::default();
        let report = b.run(async move { check(disks, options).await }).unwrap();
        assert_eq!(report.findings, []);
        b.life();
        for n in lost {
            assert!((0..4).all(|c| b.has_label(n, y.label(c))), "device {n}");
        }
    }
    let disks = b.disks();
    let made = b.run(async move { create(&disks, &spec()).await });
    assert!(made.is_err(), "it is not taken for another pool");
}

#[test]
fn a_device_with_neither_is_missing_and_nobody_guesses() {
    let b = Bench::new();
    let y = b.layout(0);
    (0..4).for_each(|c| b.spoil(0, y.label(c)));
    for area in 0..2 {
        (0..64).for_each(|s| b.spoil(0, y.superblock(area, s)));
    }
    let e = b.open().err().expect("it may have what the other has not").to_string();
    assert!(e.contains("is missing"), "{e}");
    assert!(!b.has_label(0, 0), "nothing was written");
}

#[test]
fn a_label_of_a_newer_program_is_left_alone() {
    let b = Bench::new();
    let y = b.layout(0);
    for c in 0..4 {
        let mut block = b.block(0, y.label(c));
        block[16] |= 0x80;
        let crc = weir_codec::crc64(&block[..4088]);
        block[4088..].copy_from_slice(&crc.to_le_bytes());
        b.media[0].poke(y.label(c) * 4096, &block);
    }
    let e = b.open().err().expect("it is refused").to_string();
    assert!(e.contains("is missing") || e.contains("feature"), "{e}");
}

#[test]
fn scrub_lists_and_mends_labels_and_superblocks() {
    let b = Bench::new();
    let y = b.layout(0);
    let p = b.open().unwrap();
    let q = p.clone();
    b.run(async move { q.checkpoint().await }).unwrap();
    let newest = b.newest(&y);
    b.spoil(0, y.label(2));
    b.media[1].fail_reads(y.label(0) * 4096, 4096);
    b.spoil(0, y.superblock(0, newest));
    b.spoil(1, y.superblock(1, newest - 1));
    let scrub = |p: &Pool| {
        let (p, watch) = (p.clone(), Rc::new(ScrubWatch::default()));
        let w = watch.clone();
        let report = b.run(async move { p.scrub_watched(0, w).await }).unwrap();
        (report, watch.findings())
    };
    let (report, findings) = scrub(&p);
    assert_eq!((report.damaged, report.repaired, report.lost), (4, 4, 0), "{findings:?}");
    let count = |layer: &str| findings.iter().filter(|f| f.layer == layer).count();
    assert_eq!((count("labels"), count("superblocks")), (2, 2), "{findings:?}");
    assert!(findings.iter().all(|f| f.what.ends_with("mended")), "{findings:?}");
    let (report, findings) = scrub(&p);
    assert_eq!((report.damaged, findings), (0, vec![]));
    b.run(async move { p.close().await }).unwrap();
}

/// A life that ends while it writes a superblock may leave it on some devices only. If the next one left it at that and ended
/// in the same way, the others would lack two and be taken for devices that forget.
#[test]
fn the_newest_superblock_is_on_all_devices_before_the_next_is_begun() {
    let b = Bench::new();
    b.life();
    let y = b.layout(0);
    let newest = b.newest(&y);
    for area in 0..2 {
        b.spoil(1, y.superblock(area, newest));
    }
    b.life();
    assert!(b.newest(&y) > newest);
    for area in 0..2u8 {
        let block = b.block(1, y.superblock(u64::from(area), newest));
        let (_, s) = Superblock::decode_any(&block, area, newest % 64).expect("it was completed");
        assert_eq!(s.seq, newest);
    }
}

/// A device that is being filled gets superblocks, too. One that a life was writing when it ended may be on that device only; when
/// it is away at the next start, the others go on with another one of that number.
#[test]
fn a_superblock_that_was_never_finished_on_a_device_out_of_sync_does_not_count() {
    for behind in [1, 0] {
        let b = Bench::new();
        let p = b.open().unwrap();
        b.media[1].set_offline(true);
        let data = weir_mem::Slice::heap(4096);
        data.fill(7);
        let written = data.clone();
        b.run(async move {
            let id = p.create_volume("v", 1 << 20, 4096).await.unwrap();
            p.checkpoint().await.unwrap();
            p.volume(id).unwrap().write(0, written, false).await.unwrap();
            p.checkpoint().await.unwrap();
            p.close().await.unwrap();
        });
        b.media[1].set_offline(false);
        let y = b.layout(0);
        let number = b.newest(&y) - behind;
        let find = |number: u64| {
            let block = b.block(0, y.superblock(0, number));
            Superblock::decode_any(&block, 0, number % 64).unwrap().1
        };
        // Of a life that knows no write.
        let mut s = find(number - 2);
        (s.seq, s.previous) = (number, find(number).previous);
        s.incarnation -= 1;
        let disk = b.disks().remove(1);
        let id = b.run(async move { label_of(&disk).await }).unwrap().device;
        for area in 0..2 {
            let at = y.superblock(u64::from(area), number) * 4096;
            b.media[1].poke(at, &s.encode(id, area)[..]);
        }
        for reversed in [false, true] {
            let (mut disks, data) = (b.disks(), data.to_vec());
            if reversed {
                disks.reverse();
            }
            b.run(async move {
                let p = Pool::open(disks, Options::default()).await.unwrap();
                let buf = weir_mem::Slice::heap(4096);
                p.volume(1).unwrap().read(0, buf.clone()).await.unwrap();
                assert_eq!(buf.to_vec(), data, "{behind} behind, reversed: {reversed}");
                p.close().await.unwrap();
            });
        }
    }
}
