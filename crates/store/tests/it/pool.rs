//! A pool from the outside: what it offers, what it refuses, what it keeps.

use crate::common::{filled, read};
use std::rc::Rc;
use weir_base::{IoError, SECONDS};
use weir_block::Volume;
use weir_disk::Disk;
use weir_mem::Slice;
use weir_sim::{DiskConfig, Node, SimMedium, World};
use weir_store::{Options, Pool, PoolSpec, StoreError, check, create, label_of};

const LIMIT: u64 = 100 * SECONDS;
const MIB: u64 = 1 << 20;

fn spec(copies: u8) -> PoolSpec {
    PoolSpec { slab_shift: 8, log_pages: 64, spares: 8, ..PoolSpec::fitting(77, copies, 0) }
}

struct Bench {
    w: World,
    n: Node,
    media: Vec<SimMedium>,
}

impl Bench {
    fn new(devices: usize) -> Bench {
        let w = World::new(5);
        let n = w.node("store");
        let media: Vec<SimMedium> = (0..devices)
            .map(|i| SimMedium::new(&format!("d{i}"), 8 * MIB, DiskConfig::default(), i as u64))
            .collect();
        media.iter().for_each(|m| n.attach(m));
        Bench { w, n, media }
    }

    fn disks(&self, which: &[usize]) -> Vec<Rc<dyn Disk>> {
        which.iter().map(|i| self.n.disk(&format!("d{i}")) as Rc<dyn Disk>).collect()
    }

    fn run<T: 'static>(&self, f: impl Future<Output = T> + 'static) -> T {
        self.w.run(&self.n, LIMIT, f).expect("it ends")
    }
}

#[test]
fn volumes_snapshots_and_clones_survive_in_every_order_of_devices() {
    let b = Bench::new(4);
    let (disks, again) = (b.disks(&[0, 1, 2, 3]), b.disks(&[3, 1, 0, 2]));
    b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        let id = p.create_volume("data", 100 * MIB, 512).await.unwrap();
        let v = p.volume(id).unwrap();
        assert_eq!(read(&*v, 99 * MIB, 4096).await, Ok(vec![0; 4096]), "thin");
        v.write(MIB, filled(3 << 16, 1), false).await.unwrap();
        let s = p.snapshot(&[(id, "before")], 12).await.unwrap()[0];
        v.write(MIB + 512, filled(1024, 2), true).await.unwrap();
        v.discard(MIB + 8192, 8192).await.unwrap();
        let c = p.clone_snapshot(s, "clone").await.unwrap();
        let cv = p.volume(c).unwrap();
        cv.write(MIB, filled(512, 3), false).await.unwrap();
        let all = read(&*v, MIB, 16384).await.unwrap();
        assert_eq!((all[0], all[512], all[1536], all[8192]), (1, 2, 1, 0));
        let sv = p.volume(s).unwrap();
        assert_eq!(sv.write(0, filled(512, 1), false).await, Err(IoError::ReadOnly));
        assert_eq!(read(&*sv, MIB, 16384).await, Ok(vec![1; 16384]));
        p.close().await.unwrap();
    });
    b.run(async move {
        let report = check(again.clone(), Options::default()).await.unwrap();
        assert_eq!(report.findings, []);
        assert!(report.blocks > 48 && report.datasets == 3);
        let p = Pool::open(again, Options::default()).await.unwrap();
        let names: Vec<String> = p.datasets().into_iter().map(|d| d.name).collect();
        assert_eq!(names, ["data", "before", "clone"]);
        let (v, s) = (p.find("data").unwrap(), p.find("before").unwrap());
        let c = p.find("clone").unwrap();
        assert_eq!(read(&*p.volume(c).unwrap(), MIB, 1024).await.unwrap()[511..513], [3, 1]);
        // What is in use stays.
        assert!(matches!(p.delete(s).await, Err(StoreError::Request(_))));
        assert!(matches!(p.delete(v).await, Err(StoreError::Request(_))));
        p.revert(v, s).await.unwrap();
        let data = p.volume(v).unwrap();
        assert_eq!(read(&*data, MIB, 16384).await, Ok(vec![1; 16384]));
        p.delete(c).await.unwrap();
        p.delete(s).await.unwrap();
        p.delete(v).await.unwrap();
        assert_eq!(data.read(0, Slice::heap(512)).await, Err(IoError::Offline));
        for _ in 0..4 {
            p.checkpoint().await.unwrap();
        }
        let status = p.status();
        assert!(p.datasets().is_empty(), "{:?}", p.datasets());
        assert_eq!(status.free, status.total, "everything was given back");
        p.close().await.unwrap();
    });
}

#[test]
fn a_shrunk_volume_grows_with_zeros() {
    let b = Bench::new(2);
    let disks = b.disks(&[0, 1]);
    b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        let id = p.create_volume("v", MIB, 512).await.unwrap();
        let v = p.volume(id).unwrap();
        v.write(0, filled(MIB as usize, 9), false).await.unwrap();
        p.resize(id, 4096 + 512).await.unwrap();
        assert_eq!(v.read(8192, Slice::heap(512)).await, Err(IoError::OutOfRange));
        p.resize(id, MIB).await.unwrap();
        let all = read(&*v, 0, MIB as usize).await.unwrap();
        assert!(all[..4608].iter().all(|x| *x == 9) && all[4608..].iter().all(|x| *x == 0));
    });
}

#[test]
fn wrong_requests_are_refused_with_reasons() {
    let b = Bench::new(3);
    let (one, two, three) = (b.disks(&[0]), b.disks(&[0, 1]), b.disks(&[2]));
    b.run(async move {
        let text = |r: Result<(), StoreError>| r.expect_err("refused").to_string();
        assert!(text(create(&one, &spec(2)).await).contains("at least as many devices"));
        let huge = PoolSpec { log_pages: 1 << 20, ..spec(2) };
        assert!(text(create(&two, &huge).await).contains("has no room"));
        create(&two, &spec(2)).await.unwrap();
        let other = PoolSpec { pool: 78, ..spec(2) };
        assert!(text(create(&two, &other).await).contains("belongs to pool"));
        assert_eq!(label_of(&two[1]).await.unwrap().pool, 77);
        let open = async |d: Vec<Rc<dyn Disk>>| match Pool::open(d, Options::default()).await {
            Ok(_) => "opened".to_string(),
            Err(e) => e.to_string(),
        };
        assert!(open(vec![]).await.contains("no devices"));
        assert!(open(three.clone()).await.contains("has no label"));
        assert!(open(one.clone()).await.contains("is missing"));
        create(&three, &PoolSpec { pool: 78, ..spec(1) }).await.unwrap();
        let mixed = vec![two[0].clone(), two[1].clone(), three[0].clone()];
        assert!(open(mixed).await.contains("another pool"));
        let p = Pool::open(two, Options::default()).await.unwrap();
        let refused = async |name: &str, len, block| {
            matches!(p.create_volume(name, len, block).await, Err(StoreError::Request(_)))
        };
        p.create_volume("v", MIB, 4096).await.unwrap();
        assert!(refused("v", MIB, 4096).await, "the name is taken");
        assert!(refused("", MIB, 4096).await && refused(&"x".repeat(64), MIB, 4096).await);
        assert!(refused("w", MIB + 1, 512).await && refused("w", MIB, 1024).await);
        assert!(refused("w", 0, 512).await && refused("w", 1 << 60, 512).await);
        assert!(p.volume(99).is_err() && p.revert(1, 1).await.is_err());
        assert!(p.snapshot(&[(99, "s")], 0).await.is_err());
    });
}

#[test]
fn a_pool_goes_on_without_a_device_and_scrub_mends_what_rots() {
    let b = Bench::new(2);
    let disks = b.disks(&[0, 1]);
    let pool = b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        let id = p.create_volume("v", 4 * MIB, 4096).await.unwrap();
        p.volume(id).unwrap().write(0, filled(MIB as usize, 7), false).await.unwrap();
        p.checkpoint().await.unwrap();
        p
    });
    // A bit in every block of one half.
    for block in 0..b.media[0].len() / 4096 {
        b.media[0].rot(block * 4096, 4096, 1);
    }
    let p = pool.clone();
    b.run(async move {
        let report = p.scrub(0).await.unwrap();
        assert!(report.damaged > 256 && report.repaired == report.damaged, "{report:?}");
        assert_eq!(report.lost, 0);
        assert_eq!(p.scrub(0).await.unwrap().damaged, 0);
    });
    b.media[0].set_offline(true);
    let p = pool.clone();
    b.run(async move {
        let v = p.volume(1).unwrap();
        v.write(0, filled(4096, 8), false).await.unwrap();
        assert!(!p.status().whole && p.status().suspended.is_none());
        assert_eq!(read(&*v, 0, 8192).await.unwrap()[4095..4097], [8, 7]);
    });
    b.media[1].set_offline(true);
    b.run(async move {
        let v = pool.volume(1).unwrap();
        assert_eq!(v.write(0, filled(4096, 9), false).await, Err(IoError::Offline));
        assert!(pool.status().suspended.is_some());
    });
}
