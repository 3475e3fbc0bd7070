//! What is brought to a device: all that it misses, and nothing that belongs elsewhere by now.

#[path = "common/bench.rs"]
mod bench;

use bench::{B, Bench, MIB, first, spec, write};
use weir_base::MILLIS;
use weir_store::format::tree::LEAF;
use weir_store::{Options, Pool, create};

/// A volume is deleted while a walk is in it, and its places are used again for acknowledged writes of another one.
fn deleted_beside_a_fill(copies: u8) -> Vec<String> {
    let devices = usize::from(copies);
    let b = Bench::new(devices + 1, 0);
    let disks = b.disks(&(0..devices).collect::<Vec<_>>());
    let new = b.disk(devices);
    let o = Options { reuse_at_once: true, ..Options::default() };
    b.run(async move {
        create(&disks, &spec(copies)).await.unwrap();
        let p = Pool::open(disks, o).await.unwrap();
        let v = p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        let a = p.create_volume("a", 1 << 40, 4096).await.unwrap();
        write(&p, v, 0, 3 * MIB, 1).await.unwrap();
        for i in 0..100 {
            write(&p, a, i * LEAF as u64 * B, B, 2).await.unwrap();
        }
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        p.set_fill_rate(100 * B);
        p.replace(0, new).await.unwrap();
        // Until the second walk, the one that proves, is in the second volume.
        loop {
            weir_reactor::sleep(100 * MILLIS).await;
            let Some(w) = p.status().work else { continue };
            if w.done > w.total / 2 + 3 * MIB + 20 * B {
                break;
            }
        }
        p.delete(a).await.unwrap();
        while p.datasets().iter().any(|d| d.id == a) {
            p.checkpoint().await.unwrap();
        }
        let mut written = 0;
        while write(&p, v, 32 * MIB + written * B, B, 3).await.is_ok() {
            written += 1;
        }
        assert!(written > 100, "{written}");
        p.set_fill_rate(0);
        p.settled().await.unwrap();
        let s = p.status();
        assert!(s.whole, "{s:?}");
        let mut wrong = Vec::new();
        for k in 0..written {
            let found = first(&p, v, 32 * MIB + k * B).await;
            if found != Ok(3) {
                wrong.push(format!("block {k}, acknowledged: {found:?}"));
            }
        }
        let now = p.scrub(0).await.unwrap();
        if now.damaged + now.lost > 0 || p.counters().damaged > 0 {
            wrong.push(format!("a pool that says that it is whole: {now:?}, {:?}", p.counters()));
        }
        wrong
    })
}

#[test]
fn a_volume_deleted_while_the_only_device_is_replaced_takes_no_other_data_along() {
    assert_eq!(deleted_beside_a_fill(1), Vec::<String>::new());
}

#[test]
fn a_volume_deleted_while_a_device_of_a_mirror_is_replaced_damages_nothing() {
    assert_eq!(deleted_beside_a_fill(2), Vec::<String>::new());
}
