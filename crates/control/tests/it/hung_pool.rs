//! A pool whose devices do not answer at the start, or are slow: all else is served, and it comes when it comes.

use crate::fake::Fake;
use crate::support::*;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_control::Controller;
use weir_control::model::{Carried, Command, DeviceKind, PoolPatch, PoolSpec, Raid};

const MIB: u64 = 1 << 20;

async fn within(seconds: u64, is_so: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !is_so() && begun.elapsed() < Duration::from_secs(seconds) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    is_so()
}

/// A node with pools `a` and `z`, a volume in each, an empty pool `b`, and a port, that starts again while the devices of `a` and
/// `b` hang.
async fn start_again() -> (Scratch, Arc<Fake>, Arc<tokio::sync::Notify>, Arc<Controller>) {
    let dir = Scratch::new();
    let c = Controller::start(dir.path(), Arc::new(Fake::default())).await.expect("a controller");
    for command in [
        Command::CreatePool(ram_pool("a", GIB)),
        Command::CreatePool(ram_pool("b", GIB)),
        Command::CreatePool(ram_pool("z", GIB)),
        Command::CreateVolume(volume("in-a", "a", 8 * MIB)),
        Command::CreateVolume(volume("in-z", "z", 8 * MIB)),
        Command::PutTarget(target("srp0", "127.0.0.1:0")),
    ] {
        c.execute(command).await.expect("it can be so");
    }
    c.shutdown().await.expect("its end");
    drop(c);
    let (fake, answers) = (Arc::new(Fake::default()), Arc::new(tokio::sync::Notify::new()));
    for pool in ["a", "b"] {
        fake.state().hung_pools.insert(pool.into(), answers.clone());
    }
    let started = Controller::start(dir.path(), fake.clone());
    let c = tokio::time::timeout(Duration::from_secs(20), started).await;
    (dir, fake, answers, c.expect("it starts").expect("a controller"))
}

async fn serves_others() {
    let (_dir, fake, answers, c) = start_again().await;
    assert!(fake.state().volumes.contains_key("in-z") && fake.state().targets.contains_key("srp0"));
    let told = c.status().await.expect("a status").faults;
    let of_pool = told.iter().find(|f| f.object == "pool/a").expect("a fault");
    assert!(of_pool.text.contains("is being opened"), "{of_pool:?}");
    // No command has to wait for it.
    let made = c.execute(Command::CreateVolume(volume("more", "z", 8 * MIB)));
    tokio::time::timeout(Duration::from_secs(30), made)
        .await
        .expect("in time")
        .expect("it is made");
    let refused = c.execute(Command::CreateVolume(volume("more-a", "a", 8 * MIB))).await;
    assert_eq!(refused.expect_err("it is not up").code, weir_control::Code::NotReady);
    fake.state().hung_pools.clear();
    answers.notify_waiters();
    assert!(within(30, || fake.state().volumes.contains_key("in-a")).await, "it comes");
    assert!(within(30, || fake.state().pools.contains_key("b")).await, "so does the other");
    let told = c.status().await.expect("a status").faults;
    assert!(told.is_empty(), "{told:?}");
    let opened = fake.state().calls.iter().filter(|c| *c == "start_pool a").count();
    assert_eq!(opened, 1, "once");
    c.shutdown().await.expect("its end");
    assert!(fake.state().pools.is_empty());
}

#[tokio::test]
async fn one_that_hangs_keeps_nobody_from_starting() {
    serves_others().await;
}

/// What is wanted of a pool while it is being opened is done afterwards.
async fn one_after_the_other() {
    let (_dir, fake, answers, c) = start_again().await;
    let deleted = tokio::spawn({
        let c = c.clone();
        async move { c.execute(Command::DeletePool { name: "b".into() }).await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let stopped = |pool: &str| fake.state().calls.contains(&format!("stop_pool {pool}"));
    assert!(!stopped("b") && !deleted.is_finished(), "it is closed while it is being opened");
    answers.notify_waiters();
    deleted.await.expect("no panic").expect("it is deleted");
    assert!(within(30, || fake.state().volumes.contains_key("in-a")).await, "the other one comes");
    assert!(!fake.state().pools.contains_key("b") && stopped("b"));
    assert!(c.status().await.expect("a status").faults.is_empty());
}

#[tokio::test]
async fn one_that_is_being_opened_is_closed_when_it_is_open() {
    one_after_the_other().await;
}

#[tokio::test]
async fn one_that_is_being_opened_is_closed_at_the_end() {
    let (_dir, fake, answers, c) = start_again().await;
    let down = tokio::spawn(async move { c.shutdown().await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    answers.notify_waiters();
    down.await.expect("no panic").expect("its end");
    assert!(fake.state().pools.is_empty(), "nothing stays open");
}

/// A pool that was being opened is deleted, which fails when it has been closed: it is opened again.
async fn opened_anew() {
    let (_dir, fake, answers, c) = start_again().await;
    let deleted = tokio::spawn({
        let c = c.clone();
        async move { c.execute(Command::DeletePool { name: "b".into() }).await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    fake.break_call("stop_pool b");
    fake.state().hung_pools.clear();
    answers.notify_waiters();
    deleted.await.expect("no panic").expect_err("it is refused");
    fake.mend();
    assert!(within(30, || fake.state().pools.contains_key("b")).await, "it is up, and not open");
}

#[tokio::test]
async fn what_an_opening_has_found_does_not_count_when_the_pool_was_closed_since() {
    opened_anew().await;
}

/// A protected pool hangs at the start, which may say that a volume of a plain one is elsewhere by now.
async fn told_first() -> (Scratch, Arc<Fake>, Arc<tokio::sync::Notify>, Arc<Controller>) {
    let dir = Scratch::new();
    let fake = || {
        let fake = Arc::new(Fake::default());
        fake.state().devices.insert("safe".into(), Carried::default());
        fake.state().tells_snapshots = true;
        fake
    };
    let c = Controller::start(dir.path(), fake()).await.expect("a controller");
    let spec = pool("safe", &[(DeviceKind::File, Some("/nowhere/d0"), Some(GIB))]);
    for command in [
        Command::CreatePool(PoolSpec { raid: Some(Raid::Zero), ..spec }),
        Command::CreatePool(ram_pool("plain", GIB)),
        Command::CreateVolume(volume("v", "plain", 8 * MIB)),
    ] {
        c.execute(command).await.expect("it can be so");
    }
    c.shutdown().await.expect("its end");
    drop(c);
    let (fake, answers) = (fake(), Arc::new(tokio::sync::Notify::new()));
    fake.state().hung_pools.insert("safe".into(), answers.clone());
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    (dir, fake, answers, c)
}

async fn waits_for_word() {
    let (_dir, fake, answers, _c) = told_first().await;
    assert!(!fake.state().volumes.contains_key("v"), "it is served, and may be elsewhere");
    answers.notify_waiters();
    assert!(within(30, || fake.state().volumes.contains_key("v")).await, "it comes");
}

#[tokio::test]
async fn a_volume_that_may_be_elsewhere_waits_until_that_is_known() {
    waits_for_word().await;
}

async fn not_lost() {
    let (_dir, _fake, _answers, c) = told_first().await;
    let done = tokio::time::timeout(Duration::from_secs(60), c.release_pool("safe".into())).await;
    let e = done.expect("in time").expect_err("whether it is lost is not known");
    assert!(e.to_string().contains("is being opened"), "taken for lost: {e}");
    assert!(c.model().pools.contains_key("safe"));
}

#[tokio::test]
async fn one_that_is_being_opened_is_not_let_go_of_as_lost() {
    not_lost().await;
}

/// A pool comes up while a command keeps others waiting, and is to be let go of by the next one.
async fn not_lost_when_it_has_come() {
    let (_dir, fake, safe, c) = told_first().await;
    let other = Arc::new(tokio::sync::Notify::new());
    fake.state().hung_pools.insert("slow".into(), other.clone());
    let slow = tokio::spawn({
        let c = c.clone();
        async move { c.execute(Command::CreatePool(ram_pool("slow", GIB))).await }
    });
    let hangs = |f: &Fake| f.state().calls.iter().any(|c| c == "start_pool slow hangs");
    assert!(within(30, || hangs(&fake)).await, "it is made");
    let released = tokio::spawn({
        let c = c.clone();
        async move { c.release_pool("safe".into()).await }
    });
    // It waits for its turn.
    tokio::time::sleep(Duration::from_millis(100)).await;
    fake.state().hung_pools.clear();
    safe.notify_waiters();
    assert!(within(30, || fake.state().pools.contains_key("safe")).await, "it is open");
    other.notify_waiters();
    slow.await.expect("no panic").expect("it is made");
    let e = released.await.expect("no panic").expect_err("nobody has looked at it");
    assert!(e.to_string().contains("is being opened"), "taken for lost: {e}");
    assert!(within(30, || fake.state().volumes.contains_key("v")).await, "all goes on");
    c.release_pool("safe".into()).await.expect("it is let go of");
}

#[tokio::test]
async fn one_that_has_just_been_opened_is_not_let_go_of_as_lost() {
    not_lost_when_it_has_come().await;
}

/// A command opens a pool that is being opened in the background, and has nothing to do with its volumes.
async fn patched_meanwhile() {
    let dir = Scratch::new();
    let c = Controller::start(dir.path(), Arc::new(Fake::default())).await.expect("a controller");
    c.execute(Command::CreatePool(ram_pool("a", GIB))).await.expect("a pool");
    c.execute(Command::CreateVolume(volume("v", "a", 8 * MIB))).await.expect("a volume");
    c.shutdown().await.expect("its end");
    drop(c);
    // The command comes before the pool is looked at again.
    weir_control::controller::sample_every(Duration::from_secs(1));
    let fake = Arc::new(Fake::default());
    fake.state().slow_pools.insert("a".into(), Duration::from_millis(1700));
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    let patch = PoolPatch { add: ram_pool("x", GIB).devices, ..PoolPatch::default() };
    c.execute(Command::PatchPool { name: "a".into(), patch }).await.expect("it is larger");
    if !fake.state().volumes.contains_key("v") {
        let faults = c.status().await.expect("a status").faults;
        let told =
            faults.iter().any(|f| f.object == "pool/a" && f.text.contains("is being opened"));
        assert!(told || fake.state().volumes.contains_key("v"), "{faults:?}");
    }
    assert!(within(60, || fake.state().volumes.contains_key("v")).await, "it is opened by itself");
    assert!(c.status().await.expect("a status").faults.is_empty());
}

#[tokio::test]
async fn volumes_of_a_pool_that_a_command_has_opened_are_opened() {
    patched_meanwhile().await;
}

/// What the opening of a pool has found is thrown away by a command that is refused, and the next opening fails. Whether an orderly
/// stop closes it.
async fn closed_though_forgotten() -> bool {
    let dir = Scratch::new();
    let c = Controller::start(dir.path(), Arc::new(Fake::default())).await.expect("a controller");
    c.execute(Command::CreatePool(ram_pool("a", GIB))).await.expect("a pool");
    c.shutdown().await.expect("its end");
    drop(c);
    weir_control::controller::sample_every(Duration::from_secs(1));
    let fake = Arc::new(Fake::default());
    fake.state().slow_pools.insert("a".into(), Duration::from_millis(1700));
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    fake.state().taken.insert("/nowhere/x".into());
    let spec = pool("x", &[(DeviceKind::File, Some("/nowhere/x"), Some(GIB))]);
    let patch = PoolPatch { add: spec.devices, ..PoolPatch::default() };
    let patch = Command::PatchPool { name: "a".into(), patch };
    c.execute(patch).await.expect_err("the device is in use");
    assert!(fake.state().pools.contains_key("a"), "it is open");
    fake.state().slow_pools.clear();
    fake.break_call("start_pool a");
    let n = fake.state().calls.len();
    let failed = || fake.state().calls[n..].iter().any(|c| c == "start_pool a");
    assert!(within(30, failed).await, "it is opened again");
    c.shutdown().await.expect("its end");
    !fake.state().pools.contains_key("a")
}

#[tokio::test]
async fn a_pool_that_is_open_is_closed_at_the_stop_whatever_its_last_opening_found() {
    assert!(closed_though_forgotten().await);
}

#[cfg(feature = "planted")]
mod planted {
    use super::*;

    #[tokio::test]
    async fn a_pool_that_is_left_open_is_seen() {
        plant(Some(Bug::OpenForgotten));
        let closed = closed_though_forgotten().await;
        plant(None);
        assert!(!closed);
    }

    use weir_control::planted::{Bug, plant};

    #[tokio::test]
    #[should_panic(expected = "it starts")]
    async fn one_after_the_other_is_seen() {
        plant(Some(Bug::OpenedInTurn));
        serves_others().await;
    }

    #[tokio::test]
    #[should_panic(expected = "it is opened by itself")]
    async fn what_opens_no_volumes_is_seen() {
        plant(Some(Bug::OpenedWithoutVolumes));
        patched_meanwhile().await;
    }

    #[tokio::test]
    #[should_panic(expected = "closed while it is being opened")]
    async fn one_beside_the_other_is_seen() {
        plant(Some(Bug::OpenedBesideClose));
        one_after_the_other().await;
    }

    #[tokio::test]
    #[should_panic(expected = "it is up, and not open")]
    async fn an_opening_of_before_is_seen() {
        plant(Some(Bug::OldOpeningCounts));
        opened_anew().await;
    }

    #[tokio::test]
    #[should_panic(expected = "nobody has looked at it")]
    async fn one_that_has_come_and_is_taken_for_lost_is_seen() {
        plant(Some(Bug::OpenedIsLost));
        not_lost_when_it_has_come().await;
    }

    #[tokio::test]
    #[should_panic(expected = "may be elsewhere")]
    async fn a_volume_served_too_soon_is_seen() {
        plant(Some(Bug::ServedUntold));
        waits_for_word().await;
    }
}
