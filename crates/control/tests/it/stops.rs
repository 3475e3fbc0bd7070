//! The end of a node: nobody is let in, what is under way ends, all of a kind is closed side by side and each in its time. What could
//! not be closed is named.

use crate::fake::Fake;
use crate::full::Full;
use crate::support::*;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weir_control::declare::Desired;
use weir_control::model::{Command, DeviceKind, MigrationSpec};
use weir_control::store::MetaStore;
use weir_control::{Code, Controller, Error, Stopping};

const N: usize = 6;
/// Longer than anything is waited for.
const NEVER: Duration = Duration::from_secs(3600);

/// A node with some pools, a volume in each, and as many target ports.
async fn node(dir: &Scratch) -> (Arc<Fake>, Arc<Controller>) {
    let fake = Arc::new(Fake::default());
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    for i in 0..N {
        let pool = format!("p{i}");
        for command in [
            Command::CreatePool(ram_pool(&pool, GIB)),
            Command::CreateVolume(volume(&format!("v{i}"), &pool, 1 << 20)),
            Command::PutTarget(target(&format!("t{i}"), &format!("127.0.0.1:{}", 5000 + i))),
        ] {
            c.execute(command).await.expect("it can be so");
        }
    }
    fake.state().calls.clear();
    (fake, c)
}

fn late(fake: &Fake, call: &str, by: Duration) {
    fake.state().late.insert(call.into(), by);
}

/// How it ends, and after how long, by a clock that nobody waits for.
async fn end(c: &Arc<Controller>) -> (Result<(), Error>, Duration) {
    tokio::time::pause();
    let begun = tokio::time::Instant::now();
    let done = c.shutdown().await;
    let took = begun.elapsed();
    tokio::time::resume();
    assert!(took < Duration::from_secs(45), "{took:?}");
    (done, took)
}

/// What is open yet.
fn open(fake: &Fake) -> Vec<String> {
    let s = fake.state();
    s.targets.keys().chain(s.volumes.keys()).chain(s.pools.keys()).cloned().collect()
}

/// The end of one that leaves something: what is said of it.
async fn leaves(fake: &Fake, c: &Arc<Controller>, left: &[&str]) -> String {
    let (done, _) = end(c).await;
    assert_eq!(open(fake), left);
    let e = done.expect_err("not all of it could be closed");
    assert_eq!(e.code, Code::LeftOpen, "{e}");
    let said = e.to_string();
    for (i, kind) in (0..N).flat_map(|i| ["p", "v", "t"].map(|kind| (i, kind))) {
        let name = format!("{kind}{i}");
        let named = said.contains(&format!("`{name}`"));
        assert_eq!(named, left.contains(&name.as_str()), "{name}: {said}");
    }
    said
}

/// The place of a call among all.
fn at(fake: &Fake, call: &str) -> usize {
    let calls = fake.state().calls.clone();
    calls.iter().position(|c| c == call).unwrap_or_else(|| panic!("{call}: {calls:?}"))
}

async fn side_by_side() {
    let dir = Scratch::new();
    let (fake, c) = node(&dir).await;
    for i in 0..N {
        for call in ["stop_target t", "close_volume v", "stop_pool p"] {
            late(&fake, &format!("{call}{i}"), Duration::from_secs(4));
        }
    }
    let (done, took) = end(&c).await;
    done.expect("all of it is closed");
    assert_eq!(open(&fake), Vec::<String>::new());
    assert!(took < Duration::from_secs(15), "one after another: {took:?}");
    let first = (0..N).map(|i| at(&fake, &format!("close_volume v{i}"))).min();
    let last = (0..N).map(|i| at(&fake, &format!("stop_target t{i}"))).max();
    assert!(last < first, "volumes are closed while hosts have connections");
}

#[tokio::test]
async fn all_of_a_kind_end_side_by_side() {
    side_by_side().await;
}

#[tokio::test]
async fn hosts_that_are_cut_off_keep_nothing_open_and_are_no_failure() {
    let dir = Scratch::new();
    let (fake, c) = node(&dir).await;
    late(&fake, "stop_target t3", NEVER);
    end(&c).await.0.expect("all volumes and pools are closed");
    assert_eq!(open(&fake), ["t3"]);
}

async fn hung_volume() {
    let dir = Scratch::new();
    let (fake, c) = node(&dir).await;
    late(&fake, "close_volume v3", NEVER);
    leaves(&fake, &c, &["v3", "p3"]).await;
    assert!(!fake.state().calls.contains(&"stop_pool p3".into()));
}

#[tokio::test]
async fn a_pool_stays_open_whose_volume_has_not_ended_and_no_other_does() {
    hung_volume().await;
}

#[tokio::test]
async fn a_volume_that_waits_for_a_device_to_fail_is_closed_before_its_pool() {
    let dir = Scratch::new();
    let (fake, c) = node(&dir).await;
    late(&fake, "close_volume v3", Duration::from_secs(21));
    late(&fake, "stop_pool p1", Duration::from_secs(21));
    end(&c).await.0.expect("all of it is closed");
    assert!(at(&fake, "close_volume v3") < at(&fake, "stop_pool p3"));
    assert!(at(&fake, "stop_pool p0") < at(&fake, "close_volume v3"), "it waits for another's");
}

async fn hung_pool() {
    let dir = Scratch::new();
    let (fake, c) = node(&dir).await;
    late(&fake, "stop_pool p0", NEVER);
    late(&fake, "stop_pool p1", Duration::from_secs(1));
    leaves(&fake, &c, &["p0"]).await;
}

#[tokio::test]
async fn a_pool_that_hangs_keeps_no_other_open() {
    hung_pool().await;
}

/// Something that was let go of hangs while it is closed. Who waits for that has no time left.
#[tokio::test]
async fn the_end_does_not_wait_until_devices_are_closed() {
    let dir = Scratch::new();
    let (fake, c) = node(&dir).await;
    fake.state().closings = Duration::from_secs(3);
    late(&fake, "close_volume v3", Duration::from_secs(31));
    late(&fake, "stop_pool p1", Duration::from_secs(39));
    end(&c).await.0.expect("all of it is closed");
    assert_eq!(open(&fake), Vec::<String>::new());
}

#[tokio::test]
async fn what_fails_to_close_is_named_and_the_rest_is_closed() {
    let dir = Scratch::new();
    let (fake, c) = node(&dir).await;
    fake.break_call("stop_pool p2");
    let e = end(&c).await.0.expect_err("it is told");
    assert!(e.code == Code::LeftOpen && e.to_string().contains("`p2`"), "{e}");
    assert_eq!(open(&fake), Vec::<String>::new());
}

#[tokio::test]
async fn both_pools_wait_for_a_volume_that_moves() {
    let dir = Scratch::new();
    let (fake, c) = node(&dir).await;
    let to = MigrationSpec { pool: Some("p5".into()), ..MigrationSpec::default() };
    c.start_migration("v1".into(), to).await.expect("it moves");
    late(&fake, "close_volume v1", NEVER);
    let (done, _) = end(&c).await;
    assert_eq!(open(&fake), ["v1", "p1", "p5"]);
    done.expect_err("not all of it could be closed");
}

/// A command moves a target port while the stop begins. Whether it was let in there.
async fn nobody_in() {
    let dir = Scratch::new();
    let (fake, c) = node(&dir).await;
    late(&fake, "stop_target t0", Duration::from_secs(5));
    let moved = tokio::spawn({
        let c = c.clone();
        let put = vec![target("t0", "127.0.0.1:6000")];
        async move { c.execute(Command::PutTargets { put, gone: Vec::new() }).await }
    });
    within(|| fake.state().calls.contains(&"stop_target t0 begins".into())).await;
    end(&c).await.0.expect("all of it is closed");
    assert_eq!(open(&fake), Vec::<String>::new());
    let calls = fake.state().calls.clone();
    let shut = calls.iter().position(|c| c == "let_nobody_in").expect("nobody is let in any more");
    assert!(shut < at(&fake, "stop_target t1"));
    assert!(shut < at(&fake, "start_target t0"), "the change goes on to its end");
    drop(moved.await.expect("no panic"));
}

async fn within(is_so: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(120), "it does not come");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn no_port_comes_up_after_the_stop_has_begun() {
    nobody_in().await;
}

/// Several changes are one request, of which the first is under way when the stop begins: each has a turn of its own. Another
/// request waits for its turn.
async fn no_new_turns() {
    let dir = Scratch::new();
    let (fake, c) = node(&dir).await;
    fake.state().slow_pools.insert("slow".into(), Duration::from_secs(5));
    let pools = ["slow", "next", "last"].map(|n| ram_pool(n, GIB));
    let desired = Desired { pools: pools.into(), ..Desired::default() };
    let declared = tokio::spawn({
        let c = c.clone();
        async move { c.declare(desired).await }
    });
    within(|| fake.state().calls.contains(&"start_pool slow begins".into())).await;
    let waits = tokio::spawn({
        let c = c.clone();
        async move { c.execute(Command::CreateHost(host("waits", &["1:2"]))).await }
    });
    tokio::task::yield_now().await;
    end(&c).await.0.expect("all of it is closed");
    let e = declared.await.expect("no panic").expect_err("nothing new is begun");
    assert!(e.code == Code::NotReady && e.to_string().contains("being stopped"), "{e}");
    let e = waits.await.expect("no panic").expect_err("nothing new is begun");
    assert!(e.code == Code::NotReady && e.to_string().contains("being stopped"), "{e}");
    let m = c.model();
    let made = ["slow", "next", "last"].map(|p| m.pools.contains_key(p));
    assert_eq!(made, [true, false, false], "the change goes on to its end");
    assert!(!m.hosts.contains_key("waits"));
    assert_eq!(open(&fake), Vec::<String>::new());
}

#[tokio::test]
async fn a_change_under_way_ends_and_no_other_is_begun() {
    no_new_turns().await;
}

#[tokio::test]
async fn a_change_that_does_not_end_keeps_nothing_else_open() {
    let dir = Scratch::new();
    let (fake, c) = node(&dir).await;
    fake.state().slow_pools.insert("slow".into(), NEVER);
    let made = tokio::spawn({
        let c = c.clone();
        async move { c.execute(Command::CreatePool(ram_pool("slow", GIB))).await }
    });
    within(|| fake.state().calls.contains(&"start_pool slow begins".into())).await;
    let said = leaves(&fake, &c, &[]).await;
    assert!(said.contains("a change that was under way"), "{said}");
    made.abort();
}

/// A configuration to start with, and a data plane that has nothing of it yet. One pool does not open.
async fn to_start(dir: &Scratch) -> Arc<Fake> {
    let (_, c) = node(dir).await;
    c.shutdown().await.expect("all of it is closed");
    drop(c);
    let fake = Arc::new(Fake::default());
    fake.state().slow_pools.insert("p4".into(), NEVER);
    fake
}

async fn hung_opening() {
    let dir = Scratch::new();
    let fake = to_start(&dir).await;
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    within(|| fake.state().volumes.len() == N - 1).await;
    let e = end(&c).await.0.expect_err("it is left");
    assert!(e.code == Code::LeftOpen && e.to_string().contains("`p4`"), "{e}");
    assert_eq!(open(&fake), Vec::<String>::new());
}

#[tokio::test]
async fn a_pool_that_is_being_opened_for_ever_is_named() {
    hung_opening().await;
}

/// The stop begins while the start itself waits for a volume, and a pool has still to open.
async fn stopped_start() {
    let dir = Scratch::new();
    let fake = to_start(&dir).await;
    late(&fake, "open_volume v0", Duration::from_secs(21));
    tokio::time::pause();
    let stopping = Stopping::default();
    let begins = tokio::spawn({
        let (fake, stopping) = (fake.clone(), stopping.clone());
        async move {
            within(|| fake.state().calls.contains(&"open_volume v0 begins".into())).await;
            stopping.begin()
        }
    });
    let c = up(&dir, fake.clone(), &[], Desired::default(), stopping).await;
    let took = begins.await.expect("no panic").elapsed();
    tokio::time::resume();
    assert!(took < Duration::from_secs(10), "the start is waited for: {took:?}");
    let e = end(&c).await.0.expect_err("it is left");
    assert!(e.code == Code::LeftOpen && e.to_string().contains("`p4`"), "{e}");
    assert_eq!(e.to_string().matches("`p").count(), 1, "{e}");
    assert_eq!(open(&fake), Vec::<String>::new());
    let calls = fake.state().calls.clone();
    assert!(calls.contains(&"close_volume v0".into()), "{calls:?}");
    let up = ["start_target", "open_volume v1"];
    assert!(!calls.iter().any(|c| up.iter().any(|u| c.starts_with(u))), "{calls:?}");
}

#[tokio::test]
async fn a_stop_in_the_midst_of_a_start_waits_for_no_more_than_openings() {
    stopped_start().await;
}

#[tokio::test]
async fn what_a_stop_may_take_counts_from_its_first_word() {
    let dir = Scratch::new();
    let (fake, c) = node(&dir).await;
    late(&fake, "stop_pool p0", NEVER);
    tokio::time::pause();
    let begun = c.stopping().begin();
    // Whatever came between the signal and the end of everything.
    tokio::time::advance(Duration::from_secs(15)).await;
    c.shutdown().await.expect_err("it is left");
    let took = begun.elapsed();
    tokio::time::resume();
    // By 41 s pools, and for a second what the log of events has yet to get, which a busy machine's disk may take.
    assert!(took < Duration::from_secs(43), "{took:?}");
    assert_eq!(open(&fake), ["p0"]);
}

#[tokio::test]
async fn a_start_that_is_stopped_brings_nothing_more_up() {
    let dir = Scratch::new();
    let (_, c) = node(&dir).await;
    c.shutdown().await.expect("all of it is closed");
    drop(c);
    let fake = Arc::new(Fake::default());
    let stopping = Stopping::default();
    stopping.begin();
    let c = up(&dir, fake.clone(), &[], Desired::default(), stopping).await;
    c.shutdown().await.expect("all of it is closed");
    let calls = fake.state().calls.clone();
    let up = ["start_", "open_"];
    assert!(!calls.iter().any(|c| up.iter().any(|u| c.starts_with(u))), "{calls:?}");
}

/// A node whose pool was opened, while the store cannot record that: whether a stop closes it.
async fn unrecorded_pool() -> bool {
    let file = Full::default();
    let life = async |size: u64, full: bool| {
        let fake = Arc::new(Fake::default());
        fake.state().block_sizes.insert("/nowhere/b".into(), size);
        let store = MetaStore::open_on(file.clone()).expect("a store");
        if full {
            file.after(0);
        }
        let c = Controller::start_on(store, Path::new("/nowhere"), fake.clone(), Vec::new()).await;
        (fake, c.expect("a controller"))
    };
    let (_, c) = life(GIB, false).await;
    let block = pool("b", &[(DeviceKind::Block, Some("/nowhere/b"), None)]);
    c.execute(Command::CreatePool(block)).await.expect("a pool");
    c.shutdown().await.expect("it stops");
    gone(c).await;
    file.closed().await;
    let (fake, c) = life(2 * GIB, true).await;
    assert!(fake.state().pools.contains_key("b"), "it is open");
    c.shutdown().await.expect("it stops");
    !fake.state().pools.contains_key("b")
}

#[tokio::test]
async fn a_pool_that_is_open_and_not_up_is_closed() {
    assert!(unrecorded_pool().await);
}

#[cfg(feature = "planted")]
mod planted {
    use super::*;
    use weir_control::planted::{Bug, plant};

    #[tokio::test]
    #[should_panic(expected = "one after another")]
    async fn pools_that_are_closed_in_turn_are_seen() {
        plant(Some(Bug::PoolsInTurn));
        side_by_side().await;
    }

    #[tokio::test]
    #[should_panic(expected = "left")]
    async fn a_hung_pool_that_keeps_others_open_is_seen() {
        plant(Some(Bug::PoolsInTurn));
        hung_pool().await;
    }

    #[tokio::test]
    #[should_panic(expected = "left")]
    async fn a_pool_that_is_closed_before_its_volumes_is_seen() {
        plant(Some(Bug::PoolsBeforeVolumes));
        hung_volume().await;
    }

    #[tokio::test]
    #[should_panic(expected = "it is left")]
    async fn an_opening_that_is_left_unsaid_is_seen() {
        plant(Some(Bug::OpeningsUnnamed));
        hung_opening().await;
    }

    #[tokio::test]
    #[should_panic(expected = "the start is waited for")]
    async fn a_stop_that_waits_for_the_start_is_seen() {
        plant(Some(Bug::StopWaitsForStart));
        stopped_start().await;
    }

    #[tokio::test]
    #[should_panic(expected = "nobody is let in any more")]
    async fn hosts_that_are_let_in_are_seen() {
        plant(Some(Bug::LetsInAtTheEnd));
        nobody_in().await;
    }

    #[tokio::test]
    #[should_panic(expected = "nothing new is begun")]
    async fn a_turn_while_it_stops_is_seen() {
        plant(Some(Bug::TurnsWhileStopping));
        no_new_turns().await;
    }
}
