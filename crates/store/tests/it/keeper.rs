//! The keeper of periodic snapshots, in virtual time.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use weir_base::{MILLIS, SECONDS};
use weir_block::Volume;
use weir_disk::Disk;
use weir_mem::Slice;
use weir_reactor::{now, sleep};
use weir_sim::{DiskConfig, Node, SimMedium, World};
use weir_store::policy::{Charge, Keeper, News};
use weir_store::{Options, Pool, PoolSpec, create};

const MIB: u64 = 1 << 20;
/// What the clock on the wall shows when the world begins: 2026-11-22 04:20:00.
const BEGIN: u64 = 1_795_321_200;

struct Bench {
    w: World,
    n: Node,
}

impl Bench {
    fn new() -> Bench {
        let w = World::new(7);
        let n = w.node("store");
        for i in 0..2 {
            let name = format!("d{i}");
            n.attach(&SimMedium::new(&name, 8 * MIB, DiskConfig::default(), i));
        }
        Bench { w, n }
    }

    fn disks(&self) -> Vec<Rc<dyn Disk>> {
        (0..2).map(|i| self.n.disk(&format!("d{i}")) as Rc<dyn Disk>).collect()
    }

    fn run<T: 'static>(&self, f: impl Future<Output = T> + 'static) -> T {
        self.w.run(&self.n, 100_000 * SECONDS, f).expect("it ends")
    }
}

/// A pool, its keeper, and the clock on the wall, which can be set.
struct Kept {
    pool: Pool,
    keeper: Rc<Keeper>,
    /// Added to the clock, in seconds.
    off: Rc<Cell<i64>>,
    news: Rc<RefCell<Vec<News>>>,
}

impl Kept {
    async fn open(disks: Vec<Rc<dyn Disk>>) -> Kept {
        let pool = Pool::open(disks, Options::default()).await.unwrap();
        let (off, news) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(Vec::new())));
        let (o, n) = (off.clone(), news.clone());
        let begin = now();
        let clock = move || BEGIN.saturating_add_signed(o.get()) * SECONDS + now() - begin;
        let keeper = Keeper::start(pool.clone(), clock, move |x| n.borrow_mut().push(x));
        Kept { pool, keeper, off, news }
    }

    async fn new(disks: Vec<Rc<dyn Disk>>) -> Kept {
        let spec =
            PoolSpec { slab_shift: 8, log_pages: 64, spares: 8, ..PoolSpec::fitting(7, 2, 0) };
        create(&disks, &spec).await.unwrap();
        let k = Kept::open(disks).await;
        for v in ["a", "b", "c"] {
            k.pool.create_volume(v, 4 * MIB, 512).await.unwrap();
        }
        k
    }

    async fn set(&self, rules: &[(&str, &str)]) {
        let mut charges: Vec<Charge> = Vec::new();
        for (v, r) in rules {
            let rule = r.parse().unwrap();
            match charges.iter_mut().find(|c| c.volume == *v) {
                Some(c) => c.rules.push(rule),
                None => charges.push(Charge { volume: v.to_string(), rules: vec![rule] }),
            }
        }
        self.keeper.set(charges).await;
    }

    /// Names of the snapshots of a volume, in the order in which they were made.
    fn of(&self, volume: &str) -> Vec<String> {
        let all = self.pool.datasets().into_iter().filter(|d| d.snapshot && !d.deleting);
        let mine =
            all.filter_map(|d| Some(d.name.strip_prefix(volume)?.strip_prefix('@')?.to_string()));
        mine.collect()
    }

    fn troubles(&self) -> usize {
        self.news.borrow().iter().filter(|n| matches!(n, News::Trouble(..))).count()
    }

    async fn end(self) {
        self.keeper.stop().await;
        self.pool.close().await.unwrap();
    }
}

#[test]
fn snapshots_come_and_go_by_the_clock_and_others_stay() {
    let b = Bench::new();
    let (disks, again) = (b.disks(), b.disks());
    b.run(async move {
        let k = Kept::new(disks).await;
        let a = k.pool.find("a").unwrap();
        k.pool.snapshot(&[(a, "a@by-hand"), (a, "a@auto-1m-by-hand")], 1).await.unwrap();
        k.set(&[("a", "every=1m,keep=3"), ("a", "every=1h,keep=2"), ("b", "every=10m,keep=1")])
            .await;
        sleep(SECONDS).await;
        assert_eq!(k.of("b"), ["auto-10m-20261122-042000"], "the first is made at once");
        sleep(7 * 60 * SECONDS).await;
        assert_eq!(
            k.of("a"),
            [
                "by-hand",
                "auto-1m-by-hand",
                "auto-1h-20261122-040000",
                "auto-1m-20261122-042500",
                "auto-1m-20261122-042600",
                "auto-1m-20261122-042700"
            ]
        );
        let standing = k.keeper.standing();
        assert_eq!(standing.len(), 3);
        assert_eq!(standing[0].last.as_deref(), Some("auto-1m-20261122-042700"));
        assert_eq!((standing[0].kept, standing[0].next), (3, BEGIN + 480));
        assert_eq!(k.troubles(), 0);
        // Rules that are gone leave their snapshots.
        k.set(&[("a", "every=1m,keep=1")]).await;
        sleep(60 * SECONDS).await;
        assert_eq!(k.of("a").len(), 4);
        assert_eq!(k.of("b"), ["auto-10m-20261122-042000"]);
        k.end().await;
    });
    // It was down for hours: one is made at once, none of those that were missed.
    b.run(async move {
        let k = Kept::open(again).await;
        k.off.set(5 * 3600 + 30);
        k.set(&[("a", "every=1m,keep=3"), ("a", "every=1h,keep=2")]).await;
        sleep(SECONDS).await;
        let made = k.of("a");
        let minutes: Vec<_> = made.iter().filter(|n| n.starts_with("auto-1m-2")).collect();
        assert_eq!(minutes.len(), 2, "{made:?}");
        assert_eq!(made.iter().filter(|n| n.starts_with("auto-1h-")).count(), 2, "{made:?}");
        k.end().await;
    });
}

#[test]
fn a_clock_that_is_set_neither_ends_a_rule_nor_has_it_delete_what_is_new() {
    let b = Bench::new();
    let disks = b.disks();
    b.run(async move {
        let k = Kept::new(disks).await;
        k.off.set(12 * 365 * 86400);
        k.set(&[("a", "every=1m,keep=3")]).await;
        sleep(150 * SECONDS).await;
        assert!(k.of("a").iter().all(|n| n.starts_with("auto-1m-2038")) && k.of("a").len() == 3);
        k.off.set(0);
        sleep(61 * SECONDS).await;
        let made = k.of("a");
        assert!(made.last().unwrap().starts_with("auto-1m-2026"), "it goes on: {made:?}");
        sleep(180 * SECONDS).await;
        assert!(k.of("a").iter().all(|n| n.starts_with("auto-1m-2026")), "{:?}", k.of("a"));
        // Set back by two minutes: periods that have a snapshot get no second one.
        let before = k.of("a");
        k.off.set(-120);
        sleep(110 * SECONDS).await;
        assert_eq!(k.of("a"), before);
        sleep(120 * SECONDS).await;
        assert_ne!(k.of("a"), before);
        assert_eq!(k.of("a").len(), 3);
        k.end().await;
    });
}

#[test]
fn a_group_is_of_one_instant() {
    let b = Bench::new();
    let disks = b.disks();
    b.run(async move {
        let k = Kept::new(disks).await;
        let volume = |n: &str| k.pool.volume(k.pool.find(n).unwrap()).unwrap();
        let (va, vb) = (volume("a"), volume("b"));
        let on = Rc::new(Cell::new(true));
        // One number to `a`, then to `b`: at any instant `b` has it or the one before.
        let (go, a2, b2) = (on.clone(), va.clone(), vb.clone());
        let writer = weir_reactor::spawn(async move {
            let mut n = 0u64;
            while go.get() {
                n += 1;
                for v in [&a2, &b2] {
                    let buf = Slice::heap(512);
                    buf.write_at(0, &n.to_le_bytes());
                    v.write(0, buf, false).await.unwrap();
                }
                sleep(MILLIS).await;
            }
        });
        k.set(&[("a", "every=2s,keep=5,group=db"), ("b", "every=2s,keep=3,group=db")]).await;
        sleep(15 * SECONDS).await;
        // A third joins; it is in from the next period on.
        let charges = [("a", "every=2s,keep=9,group=db"), ("c", "every=2s,keep=9,group=db")];
        k.set(&[charges[0], ("b", "every=2s,keep=9,group=db"), charges[1]]).await;
        sleep(100 * MILLIS).await;
        assert_eq!(k.of("c").len(), 0);
        sleep(4 * SECONDS).await;
        assert!(k.of("c").len() >= 2);
        on.set(false);
        writer.await.unwrap();
        let names: BTreeSet<String> = k.of("b").into_iter().collect();
        assert!(names.len() >= 4);
        let number = async |v: &str, s: &str| {
            let id = k.pool.find(&format!("{v}@{s}")).unwrap();
            let buf = Slice::heap(512);
            k.pool.volume(id).unwrap().read(0, buf.clone()).await.unwrap();
            u64::from_le_bytes(buf.to_vec()[..8].try_into().unwrap())
        };
        for s in &names {
            let (x, y) = (number("a", s).await, number("b", s).await);
            assert!(x == y || x == y + 1, "{s}: a has {x}, b has {y}");
            assert!(x > 0);
        }
        k.end().await;
    });
}

#[test]
fn a_full_pool_is_told_once_and_tried_again_without_a_storm() {
    let b = Bench::new();
    let disks = b.disks();
    b.run(async move {
        let k = Kept::new(disks).await;
        let id = k.pool.create_volume("big", 64 * MIB, 4096).await.unwrap();
        let v = k.pool.volume(id).unwrap();
        k.set(&[("a", "every=1s,keep=4"), ("big", "every=1s,keep=500")]).await;
        let on = Rc::new(Cell::new(true));
        let go = on.clone();
        let writer = weir_reactor::spawn(async move {
            // What is overwritten stays with snapshots, until there is no room for more of them either.
            let mut n = 0u64;
            while go.get() {
                n = n * 25 % 16381 + 1;
                let _ = v.write(n * 4096, filled(4096), false).await;
                sleep(20 * MILLIS).await;
            }
        });
        for _ in 0..600 {
            sleep(SECONDS).await;
            if k.keeper.troubles().len() == 2 {
                break;
            }
        }
        let (checkpoints, before) = (k.pool.counters().checkpoints, k.of("a"));
        assert_eq!(k.troubles(), 2, "told once for each: {:?}", k.news.borrow().last());
        on.set(false);
        writer.await.unwrap();
        sleep(600 * SECONDS).await;
        let tried = k.pool.counters().checkpoints - checkpoints;
        let why: BTreeSet<String> = k.keeper.troubles().into_iter().map(|(_, why)| why).collect();
        assert_eq!(why.len(), 1, "{why:?}");
        assert_eq!(k.troubles(), 2, "{:?}", k.news.borrow().last());
        assert_eq!(k.of("a"), before, "nothing is deleted for what was not made");
        assert!(tried < 60, "{tried} checkpoints in ten minutes");
        // Fewer are kept: there is room, and it goes on.
        k.set(&[("a", "every=1s,keep=4"), ("big", "every=1s,keep=2")]).await;
        sleep(330 * SECONDS).await;
        assert_eq!(k.keeper.troubles(), []);
        assert_eq!((k.of("a").len(), k.of("big").len()), (4, 2));
        assert_eq!(k.news.borrow().iter().filter(|n| matches!(n, News::Over(_))).count(), 2);
        k.end().await;
    });
}

#[test]
fn what_a_volume_was_made_of_stays_and_the_rest_goes_on() {
    let b = Bench::new();
    let disks = b.disks();
    b.run(async move {
        let k = Kept::new(disks).await;
        k.set(&[("a", "every=1s,keep=2")]).await;
        sleep(1500 * MILLIS).await;
        let first = k.of("a")[0].clone();
        let s = k.pool.find(&format!("a@{first}")).unwrap();
        let clone = k.pool.clone_snapshot(s, "clone").await.unwrap();
        sleep(6 * SECONDS).await;
        let made = k.of("a");
        assert_eq!((made.len(), &made[0]), (3, &first), "{made:?}");
        assert_eq!(k.troubles(), 0);
        k.pool.delete(clone).await.unwrap();
        sleep(4 * SECONDS).await;
        assert_eq!(k.of("a").len(), 2);
        // Fewer are kept from now on.
        k.set(&[("a", "every=1s,keep=1")]).await;
        sleep(500 * MILLIS).await;
        assert_eq!(k.of("a").len(), 1);
        k.end().await;
    });
}

fn filled(len: usize) -> Slice {
    let s = Slice::heap(len);
    s.fill(3);
    s
}
