//! Several snapshots of one volume, made with one command: one may go, and the others keep what they have.

use crate::bench::{B, Bench, MIB, first, spec, write};
use weir_base::SECONDS;
use weir_reactor::sleep;
use weir_store::{Options, Pool, StoreError, check, create};

const MANY: u64 = 64;
/// More pages of a dead list than one checkpoint gives back.
const PAGES: u64 = 300;

/// A volume gets two snapshots at once, and is written over. Those go that have these numbers, one after the other, or at the
/// same time; others are written to what is free then. What is wrong with what is left.
fn left_of_twins(go: &'static [usize], at_once: bool) -> Vec<String> {
    let b = Bench::new(1, 0);
    let disks = b.all();
    let again = disks.clone();
    b.run(async move {
        create(&disks, &spec(1)).await.unwrap();
        let o = Options { reuse_at_once: true, ..Options::default() };
        let p = Pool::open(disks, o.clone()).await.unwrap();
        let v = p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        let w = p.create_volume("w", 64 * MIB, 4096).await.unwrap();
        p.settled().await.unwrap();
        let all = async |volume, value| {
            for k in 0..MANY {
                write(&p, volume, k * B, B, value).await.unwrap();
            }
            p.checkpoint().await.unwrap();
        };
        all(v, 1).await;
        let before = p.snapshot(&[(v, "before")], 0).await.unwrap()[0];
        all(v, 2).await;
        let twins = p.snapshot(&[(v, "a"), (v, "b"), (v, "c")], 0).await.unwrap();
        let empty = p.status().free;
        all(v, 3).await;
        let full = p.status().free;
        match at_once {
            true => {
                let gone = go.iter().map(|n| {
                    let (p, id) = (p.clone(), twins[*n]);
                    weir_reactor::spawn(async move { p.delete(id).await.unwrap() })
                });
                for g in gone.collect::<Vec<_>>() {
                    g.await.unwrap();
                }
            }
            false => {
                for n in go {
                    p.delete(twins[*n]).await.unwrap();
                }
            }
        }
        sleep(10 * SECONDS).await;
        p.checkpoint().await.unwrap();
        p.checkpoint().await.unwrap();
        let mut wrong = Vec::new();
        let back = p.status().free.saturating_sub(full) / B;
        if go.len() == 3 && back < MANY {
            wrong.push(format!("{back} blocks came back, of {empty} to {full}"));
        }
        for k in 0..4 {
            for j in 0..MANY {
                write(&p, w, (k * MANY + j) * B, B, 4).await.unwrap();
            }
            p.checkpoint().await.unwrap();
        }
        let mut look = async |id, value| {
            for k in 0..MANY {
                let found = first(&p, id, k * B).await;
                if found != Ok(value) {
                    wrong.push(format!("dataset {id}, block {k}: {found:?}, not {value}"));
                    return;
                }
            }
        };
        look(before, 1).await;
        for (n, id) in twins.iter().enumerate() {
            if !go.contains(&n) {
                look(*id, 2).await;
            }
        }
        look(v, 3).await;
        wrong.extend(p.status().trouble);
        p.close().await.unwrap();
        let report = check(again, o).await.unwrap();
        wrong.extend(report.findings.iter().map(|f| format!("{f:?}")));
        wrong.truncate(4);
        wrong
    })
}

const GO: [&[usize]; 10] =
    [&[0], &[1], &[2], &[0, 1], &[1, 0], &[0, 2], &[2, 0], &[0, 1, 2], &[2, 1, 0], &[1, 2, 0]];

#[test]
fn of_snapshots_made_at_once_of_one_volume_any_may_go() {
    for go in GO {
        for at_once in [false, true] {
            assert_eq!(left_of_twins(go, at_once), Vec::<String>::new(), "{go:?} {at_once}");
        }
    }
}

/// Of two snapshots made at once one is being given back, over several checkpoints, and the volume becomes what the other one is.
/// Then that one goes, too. What is wrong with the volume in the end.
fn left_of_a_revert_beside_a_deletion() -> Vec<String> {
    let b = Bench::new(1, 0);
    let disks = b.all();
    let again = disks.clone();
    b.run(async move {
        create(&disks, &spec(1)).await.unwrap();
        let o = Options { reuse_at_once: true, ..Options::default() };
        let p = Pool::open(disks, o.clone()).await.unwrap();
        let v = p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        let w = p.create_volume("w", 64 * MIB, 4096).await.unwrap();
        p.settled().await.unwrap();
        for k in 0..PAGES {
            write(&p, v, k * B, B, 1).await.unwrap();
        }
        p.checkpoint().await.unwrap();
        let twins = p.snapshot(&[(v, "a"), (v, "b")], 0).await.unwrap();
        for k in 0..PAGES {
            // A page of the dead list each.
            write(&p, v, k * B, B, 2).await.unwrap();
            p.checkpoint().await.unwrap();
        }
        let (q, younger) = (p.clone(), twins[1]);
        let gone = weir_reactor::spawn(async move { q.delete(younger).await });
        while !p.datasets().iter().any(|d| d.deleting) {
            sleep(1000).await;
        }
        let mut tries = 0;
        while let Err(e) = p.revert(v, twins[0]).await {
            tries += 1;
            assert!(matches!(e, StoreError::Request(_)) && tries < 100, "{e}");
            sleep(SECONDS).await;
        }
        gone.await.unwrap().unwrap();
        sleep(10 * SECONDS).await;
        p.delete(twins[0]).await.unwrap();
        sleep(10 * SECONDS).await;
        p.checkpoint().await.unwrap();
        for k in 0..PAGES {
            write(&p, w, k * B, B, 4).await.unwrap();
        }
        p.checkpoint().await.unwrap();
        let mut wrong = Vec::new();
        for k in 0..PAGES {
            let found = first(&p, v, k * B).await;
            if found != Ok(1) {
                wrong.push(format!("block {k}: {found:?}"));
            }
        }
        wrong.extend(p.status().trouble);
        p.close().await.unwrap();
        let report = check(again, o).await.unwrap();
        wrong.extend(report.findings.iter().map(|f| format!("{f:?}")));
        wrong.truncate(4);
        wrong
    })
}

#[test]
fn a_volume_is_made_a_snapshot_while_another_one_of_that_instant_goes() {
    assert_eq!(left_of_a_revert_beside_a_deletion(), Vec::<String>::new());
}

#[test]
fn a_snapshot_of_which_a_part_is_given_back_when_power_goes_is_no_finding() {
    let b = Bench::new(1, 0);
    let disks = b.all();
    b.run(async move {
        create(&disks, &spec(1)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        let v = p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        for k in 0..PAGES {
            write(&p, v, k * B, B, 1).await.unwrap();
        }
        p.checkpoint().await.unwrap();
        let s = p.snapshot(&[(v, "s")], 0).await.unwrap()[0];
        for k in 0..PAGES {
            write(&p, v, k * B, B, 2).await.unwrap();
            p.checkpoint().await.unwrap();
        }
        p.delete(s).await.unwrap();
    });
    b.restart();
    let report = b.run(check(b.all(), Options::default())).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings.first());
    assert_eq!(report.datasets, 2, "it is still there");
}

#[cfg(feature = "planted")]
#[test]
fn snapshots_that_are_taken_for_one_are_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::TwinsAreOne));
    let wrong = left_of_twins(&[0], false);
    plant(None);
    assert!(!wrong.is_empty());
}

#[cfg(feature = "planted")]
#[test]
fn a_revert_beside_what_is_left_of_a_snapshot_is_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::RevertBesideTwin));
    let wrong = left_of_a_revert_beside_a_deletion();
    plant(None);
    assert!(!wrong.is_empty());
}
