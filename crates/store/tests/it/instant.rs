//! Snapshots of many volumes at one instant, as much as the log holds.

use crate::bench::{B, Bench, MIB, first, spec, write};
use weir_reactor::spawn;
use weir_store::format::log::{Entry, NAME, SLOTS};
use weir_store::{Options, Pool, PoolSpec, StoreError, create};

/// Pages of the log, and of those the most that snapshots of one instant may take: twice that, and eight that stay free.
const RING: u64 = 48;
const MOST: u64 = 20;
/// Writes that are in the log before, a page each.
const WRITES: u64 = 16;

/// Names as long as may be, of so many snapshots as fit the pages.
fn names(of: &str, pages: u64) -> Vec<String> {
    let each = SLOTS / Entry::snapshot_slots(NAME);
    let rest = NAME - of.len();
    (0..pages as usize * each).map(|n| format!("{of}{n:0rest$}")).collect()
}

async fn snapshot(p: &Pool, v: u32, names: &[String]) -> Result<Vec<u32>, StoreError> {
    let all: Vec<(u32, &str)> = names.iter().map(|n| (v, n.as_str())).collect();
    p.snapshot(&all, 0).await
}

async fn pool(disks: Vec<std::rc::Rc<dyn weir_disk::Disk>>) -> (Pool, u32) {
    create(&disks, &PoolSpec { log_pages: RING, ..spec(1) }).await.unwrap();
    let p = Pool::open(disks, Options::default()).await.unwrap();
    let v = p.create_volume("v", 64 * MIB, 4096).await.unwrap();
    p.settled().await.unwrap();
    p.checkpoint().await.unwrap();
    (p, v)
}

#[test]
fn more_snapshots_of_one_instant_than_the_log_holds_are_refused() {
    let b = Bench::new(1, 0);
    let disks = b.all();
    b.run(async move {
        let (p, v) = pool(disks).await;
        let mut all = names("a", MOST);
        all.push("one more".into());
        let refused = snapshot(&p, v, &all).await;
        assert!(
            matches!(&refused, Err(StoreError::Request(e)) if e.contains("take fewer")),
            "{refused:?}"
        );
        assert_eq!(p.datasets().len(), 1, "none of them is made");
        all.pop();
        assert_eq!(snapshot(&p, v, &all).await.unwrap().len(), all.len());
        p.close().await.unwrap();
    });
}

/// Two instants, one right after the other, of which the log has room for one. What of that, and of writes before, is there after a
/// power cut.
fn after_two_instants(seed: u64) -> (usize, Vec<u64>) {
    let b = Bench::new(1, seed);
    let disks = b.all();
    b.run(async move {
        let (p, v) = pool(disks).await;
        for k in 0..WRITES {
            write(&p, v, k * B, B, k as u8 + 1).await.unwrap();
        }
        let both = ["a", "b"].map(|of| {
            let p = p.clone();
            spawn(async move { snapshot(&p, v, &names(of, MOST)).await.map(drop) })
        });
        for one in both {
            one.await.unwrap().unwrap();
        }
    });
    b.restart();
    let p = b.open().unwrap();
    b.run(async move {
        let v = p.find("v").unwrap();
        let mut lost = Vec::new();
        for k in 0..WRITES {
            if first(&p, v, k * B).await != Ok(k as u8 + 1) {
                lost.push(k);
            }
        }
        (p.datasets().iter().filter(|d| d.snapshot).count(), lost)
    })
}

#[test]
fn instants_one_after_the_other_wait_for_room_in_the_log() {
    for seed in 0..2 {
        let all = names("a", MOST).len() * 2;
        assert_eq!(after_two_instants(seed), (all, Vec::new()), "seed {seed}");
    }
}
