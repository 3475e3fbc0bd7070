//! What is counted of devices, and when it is told and kept.

use super::*;
use crate::model::{Command, DeviceKind, DeviceSpec, PoolSpec, Raid, VolumeSpec};

/// A configuration of a mirror `p` with a volume `v`, and the volume's name on the devices.
fn made() -> (Model, String) {
    let device = |n: u32| DeviceSpec {
        kind: DeviceKind::File,
        path: Some(format!("/nowhere/d{n}")),
        size: Some(1 << 30),
    };
    let mut model = Model::default();
    let pool = PoolSpec {
        name: "p".into(),
        devices: vec![device(0), device(1)],
        raid: Some(Raid::One),
        overwrite: Default::default(),
        memory: None,
    };
    model.apply(Command::CreatePool(pool), 7).expect("a pool");
    let volume = VolumeSpec::new("v", "p", 1 << 20);
    model.apply(Command::CreateVolume(volume), 8).expect("a volume");
    let dataset = model.volumes["v"].dataset();
    (model, dataset)
}

/// The pool as the data plane tells of it: of device 1 there are so many damaged copies and failed reads.
fn live(opening: u64, damaged: u64, unread: u64) -> PoolLive {
    let device = |number: u16| PoolDeviceLive {
        number,
        id: format!("{number:016x}"),
        path: Some(format!("/nowhere/d{number}")),
        ..PoolDeviceLive::default()
    };
    let bad = PoolDeviceLive { damaged, unread, ..device(1) };
    PoolLive { name: "p".into(), opening, devices: vec![device(0), bad], ..PoolLive::default() }
}

fn counted(book: &mut Book, model: &Model, mut pool: PoolLive) -> [u64; 3] {
    book.count(model, std::slice::from_mut(&mut pool));
    let d = &pool.devices[1];
    [d.damaged, d.unread, d.since_clean]
}

/// Damaged copies of volumes and snapshots on device 1.
fn damaged(opening: u64, what: &[(&str, u64, u64)]) -> PoolLive {
    let mut pool = live(opening, what.iter().map(|w| w.1).sum(), 0);
    let damage = |(whose, copies, lost): &(&str, u64, u64)| DamageLive {
        device: format!("{:016x}", 1),
        whose: DamageOf::Dataset((*whose).to_owned()),
        copies: *copies,
        lost: *lost,
    };
    pool.damage = what.iter().map(damage).collect();
    pool
}

#[test]
fn what_was_counted_is_added_up_over_openings_and_restarts() {
    let (model, _) = made();
    let mut book = Book::default();
    assert_eq!(counted(&mut book, &model, live(1, 3, 1)), [3, 1, 4]);
    assert_eq!(counted(&mut book, &model, live(1, 5, 1)), [5, 1, 6]);
    assert_eq!(counted(&mut book, &model, live(1, 3, 1)), [5, 1, 6], "an answer that comes late");
    assert_eq!(counted(&mut book, &model, live(2, 4, 0)), [9, 1, 10], "it was closed meanwhile");
    assert_eq!(counted(&mut book, &model, live(1, 5, 1)), [9, 1, 10], "one of before");
    let kept = book.unsaved(&model, &[], None);
    let store = MetaStore::open(&scratch()).expect("a store");
    store.keep_devices(&kept).expect("kept");
    let mut book = Book::load(&store).expect("read");
    assert_eq!(counted(&mut book, &model, live(1, 2, 0)), [11, 1, 12]);
    drop(store);
    drop(std::fs::remove_dir_all(scratch()));
}

fn scratch() -> std::path::PathBuf {
    std::env::temp_dir().join(format!("weir-damage-{}", std::process::id()))
}

#[test]
fn much_of_it_is_a_fault_until_a_scrub_finds_nothing() {
    let (model, _) = made();
    let mut book = Book::default();
    let mut step = |damaged, clean: Option<[u64; 2]>| {
        let mut pool = live(1, damaged, 2);
        pool.devices[1].clean = clean;
        book.count(&model, std::slice::from_mut(&mut pool));
        fault(&pool).map(|f| (f.object, f.code, f.text))
    };
    assert_eq!(step(7, None), None);
    let text =
        "pool `p` has damage: device 1 (/nowhere/d1) has had 8 damaged copies and 2 failed reads";
    let told = ("pool/p".to_owned(), "device_doubtful".to_owned(), text.to_owned());
    assert_eq!(step(8, None), Some(told));
    assert_eq!(step(8, Some([8, 2])), None, "a scrub went through it all");
    assert_eq!(step(17, Some([8, 2])), None);
    assert!(step(18, Some([8, 2])).is_some(), "it goes on like that");
}

#[test]
fn a_scrub_that_finds_nothing_after_a_restart_ends_what_was_before_it() {
    let (model, _) = made();
    let mut book = Book::default();
    assert_eq!(counted(&mut book, &model, live(1, 20, 0)), [20, 0, 20]);
    let mut pool = live(2, 0, 0);
    pool.devices[1].clean = Some([0, 0]);
    assert_eq!(counted(&mut book, &model, pool), [20, 0, 0]);
}

/// Texts of events, with how many seconds after the first look each was.
fn told() -> Vec<(u64, String)> {
    let (model, v) = made();
    let (mut book, begin) = (Book::default(), Instant::now());
    let snapshot = format!("{v}@s1");
    let found = [
        (0, damaged(1, &[(&v, 1, 0)])),
        (1, damaged(1, &[(&v, 3, 0), (&snapshot, 1, 1)])),
        (9, damaged(1, &[(&v, 4, 1), (&snapshot, 1, 1)])),
        (10, damaged(1, &[(&v, 4, 1), (&snapshot, 1, 1)])),
        (25, damaged(1, &[(&v, 4, 1), (&snapshot, 1, 1)])),
        (26, damaged(2, &[("60a5", 2, 2)])),
    ];
    let mut all = Vec::new();
    for (second, pool) in found {
        let mut pools = [pool];
        book.count(&model, &mut pools);
        let news = book.news(&model, &pools, begin + Duration::from_secs(second), APART);
        all.extend(news.into_iter().map(|(_, text)| (second, text)));
    }
    all
}

#[test]
fn damage_is_told_with_names_at_once_and_then_every_few_seconds() {
    let on = "on device 1 (/nowhere/d1)";
    let expected = [
        (0, format!("pool `p`: 1 damaged copy of volume `v` {on}")),
        (
            10,
            format!(
                "pool `p`: 3 damaged copies of volume `v` {on}, 1 of them without a good copy elsewhere; \
                 1 damaged copy of snapshot `v@s1` {on}, without a good copy elsewhere"
            ),
        ),
        (
            26,
            format!(
                "pool `p`: 2 damaged copies of volume `60a5` {on}, without a good copy elsewhere"
            ),
        ),
    ];
    assert_eq!(told(), expected);
}

#[cfg(feature = "planted")]
#[test]
fn an_event_for_each_damage_is_caught() {
    crate::planted::plant(Some(Bug::EachDamageTold));
    let told = told();
    crate::planted::plant(None);
    assert!(told.len() > 3);
}

#[test]
fn of_many_volumes_an_event_names_some_and_counts_the_others() {
    let (model, _) = made();
    let names: Vec<String> = (0..20).map(|n| format!("60a5{n:02}")).collect();
    let what: Vec<(&str, u64, u64)> = names.iter().map(|n| (n.as_str(), 2, 0)).collect();
    let pools = [damaged(1, &what)];
    let (_, text) = Book::default().news(&model, &pools, Instant::now(), APART).remove(0);
    assert_eq!(text.matches("of volume").count(), NAMED);
    assert!(text.ends_with("; 24 damaged copies of 12 other volumes and snapshots"), "{text}");
}

#[test]
fn copies_that_turn_out_to_have_been_the_last_are_told_once_more() {
    let (model, v) = made();
    let (mut book, begin) = (Book::default(), Instant::now());
    let mut step = |second, copies, lost| {
        let pools = [damaged(1, &[(&v, copies, lost)])];
        let now = begin + Duration::from_secs(second);
        let news = book.news(&model, &pools, now, APART);
        news.into_iter().map(|(_, text)| text).next().unwrap_or_default()
    };
    let on = "of volume `v` on device 1 (/nowhere/d1)";
    assert_eq!(step(0, 2, 0), format!("pool `p`: 2 damaged copies {on}"));
    let text = format!("pool `p`: 1 copy {on} that was damaged before has no good one elsewhere");
    assert_eq!(step(20, 2, 1), text);
    let text = format!(
        "pool `p`: 1 damaged copy {on}, without a good copy elsewhere; \
         1 copy {on} that was damaged before has no good one elsewhere"
    );
    assert_eq!(step(40, 3, 3), text);
    assert_eq!(step(60, 3, 3), "");
}

#[test]
fn damage_that_is_not_told_apart_is_not_said_to_be_the_pools_own() {
    let (model, v) = made();
    let mut pool = damaged(1, &[(&v, 1, 0), (&v, 2, 0)]);
    (pool.damage[0].whose, pool.damage[1].whose) = (DamageOf::Pool, DamageOf::Others);
    let (_, text) = Book::default().news(&model, &[pool], Instant::now(), APART).remove(0);
    let on = "on device 1 (/nowhere/d1)";
    let expected = format!(
        "pool `p`: 1 damaged copy of the pool's own data {on}; 2 damaged copies of other volumes and snapshots {on}"
    );
    assert_eq!(text, expected);
}

#[test]
fn reads_that_failed_are_told_once() {
    let (model, _) = made();
    let (mut book, now) = (Book::default(), Instant::now());
    let mut step = |unread, second| {
        let mut pools = [live(1, 0, unread)];
        book.count(&model, &mut pools);
        let news = book.news(&model, &pools, now + Duration::from_secs(second), APART);
        news.into_iter().map(|(_, text)| text).next()
    };
    let text = "pool `p`: 1 read failed on device 1 (/nowhere/d1)";
    assert_eq!(step(1, 0).as_deref(), Some(text));
    assert_eq!(step(1, 20), None);
}

/// How often the store is written, of a hundred errors within ten seconds, and what it has then.
fn writes() -> (usize, Vec<String>) {
    let (model, _) = made();
    let (mut book, begin) = (Book::default(), Instant::now());
    let mut writes = 0;
    for n in 0..100 {
        let mut pools = [live(1, n + 1, 0)];
        book.count(&model, &mut pools);
        let now = Some(begin + Duration::from_millis(n * 99));
        let changed = book.unsaved(&model, &pools, now);
        if !changed.is_empty() {
            writes += 1;
            book.saved(changed, now);
        }
    }
    let changed = book.unsaved(&model, &[], None);
    book.saved(changed, None);
    let texts = book.saved.values().map(|b| String::from_utf8_lossy(b).into_owned());
    (writes, texts.collect())
}

#[test]
fn the_store_is_written_now_and_then_however_much_is_found() {
    let (writes, kept) = writes();
    assert_eq!((writes, kept), (1, vec![r#"{"damaged":100,"unread":0,"clean":0}"#.to_owned()]));
}

#[cfg(feature = "planted")]
#[test]
fn a_write_for_each_damage_is_caught() {
    crate::planted::plant(Some(Bug::EachDamageTold));
    let (writes, _) = writes();
    crate::planted::plant(None);
    assert_eq!(writes, 100);
}

#[test]
fn of_what_is_gone_nothing_is_kept() {
    let (model, _) = made();
    let mut book = Book::default();
    counted(&mut book, &model, live(1, 3, 1));
    let changed = book.unsaved(&model, &[], None);
    book.saved(changed, None);
    assert_eq!(book.saved.len(), 1);
    let mut left = live(1, 3, 1);
    left.devices.truncate(1);
    let changed = book.unsaved(&model, &[left], None);
    assert!(changed.len() == 1 && changed.values().all(Vec::is_empty), "a device that has left");
    book.saved(changed, None);
    counted(&mut book, &model, live(1, 3, 1));
    let changed = book.unsaved(&model, &[], None);
    book.saved(changed, None);
    let changed = book.unsaved(&Model::default(), &[], None);
    assert!(changed.len() == 1 && changed.values().all(Vec::is_empty), "a pool that is gone");
}
