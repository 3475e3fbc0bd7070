//! What a refused or unrecorded change leaves in the data plane goes, or counts, whatever fails on the way.

use crate::fake::Fake;
use crate::full::Full;
use crate::half_closed;
use crate::owed::node;
use crate::support::*;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weir_control::declare::Desired;
use weir_control::model::{Command, DeviceKind, MigrationSpec, Model, PoolSpec, Raid, VolumePatch};
use weir_control::store::MetaStore;
use weir_control::{Code, Controller};

const MIB: u64 = 1 << 20;

fn resize(size: u64) -> Command {
    let patch = VolumePatch { size: Some(size), allow_shrink: true, ..VolumePatch::default() };
    Command::PatchVolume { name: "v".into(), patch }
}

/// A volume is made, cannot be opened, and what there is of it cannot be taken away at first. Whether it is in the end.
async fn made_in_vain() -> bool {
    let (_file, fake, c) = node().await;
    fake.state().half_opens.insert("x".into());
    fake.break_call("delete_volume_data x");
    c.execute(Command::CreateVolume(volume("x", "mem", MIB))).await.expect_err("it is refused");
    assert!(fake.state().data.contains("x"), "set-up");
    fake.mend();
    tried_again(&c).await;
    tried_again(&c).await;
    assert!(!c.model().volumes.contains_key("x"), "it was refused");
    !fake.state().data.contains("x")
}

#[tokio::test]
async fn what_was_made_of_a_refused_volume_goes_in_the_end() {
    assert!(made_in_vain().await);
}

/// A volume of a protected pool cannot be made larger, which its devices may hold. What is thrown away of it, and its size.
async fn larger_in_vain() -> (Vec<String>, u64) {
    let (_file, fake, c) = node().await;
    let spec = pool("safe", &[(DeviceKind::File, Some("/nowhere/d"), Some(GIB))]);
    c.execute(Command::CreatePool(PoolSpec { raid: Some(Raid::Zero), ..spec }))
        .await
        .expect("made");
    c.execute(Command::CreateVolume(volume("s", "safe", 8 * MIB))).await.expect("a volume");
    fake.break_call("update_volume s");
    let patch = VolumePatch { size: Some(12 * MIB), ..VolumePatch::default() };
    let larger = Command::PatchVolume { name: "s".into(), patch };
    c.execute(larger).await.expect_err("it is refused");
    tried_again(&c).await;
    let cuts = |fake: &Fake| {
        let s = fake.state();
        s.calls.iter().filter(|c| c.starts_with("cut_")).cloned().collect::<Vec<_>>()
    };
    assert_eq!(cuts(&fake), [""; 0], "hosts may see it yet");
    fake.mend();
    tried_again(&c).await;
    tried_again(&c).await;
    let v = &c.model().volumes["s"];
    assert_eq!(v.cut, None);
    (cuts(&fake), v.size)
}

#[tokio::test]
async fn what_a_protected_volume_was_to_be_larger_by_is_thrown_away() {
    let cuts = ["cut_volume s", "cut_ended s"].map(String::from).to_vec();
    assert_eq!(larger_in_vain().await, (cuts, 8 * MIB));
}

/// A volume of a plain pool is bound to no space that it was refused.
#[tokio::test]
async fn a_plain_volume_that_could_not_be_made_larger_is_as_it_was() {
    let (_file, fake, c) = node().await;
    let before = c.model().volumes["v"].clone();
    fake.break_call("update_volume v");
    c.execute(resize(12 * MIB)).await.expect_err("it is refused");
    assert_eq!(c.model().volumes["v"], before);
}

/// A pool cannot be started, nor taken away at first. How often that was tried.
async fn pool_in_vain() -> usize {
    let (_file, fake, c) = node().await;
    fake.break_call("start_pool x");
    fake.break_call("stop_pool x");
    let create = Command::CreatePool(ram_pool("x", GIB));
    c.execute(create.clone()).await.expect_err("it is refused");
    c.execute(Command::CreateHost(host("other", &["7:7"]))).await.expect("that is another thing");
    fake.mend();
    tried_again(&c).await;
    let faults = c.status().await.expect("a status").faults;
    assert!(faults.iter().all(|f| f.object != "pool/x"), "{faults:?}");
    let tried = fake.state().calls.iter().filter(|c| *c == "stop_pool x").count();
    c.execute(create).await.expect("its devices are free");
    tried
}

#[tokio::test]
async fn a_refused_pool_is_taken_away_in_the_end() {
    assert_eq!(pool_in_vain().await, 2);
}

/// The same, and another of its name is taken over by what its devices carry. What was done by that name.
async fn taken_over_by_its_name() -> Vec<String> {
    let (_file, fake, c) = half_closed::node().await;
    fake.state().found = Some(half_closed::found());
    fake.break_call("start_pool safe");
    fake.break_call("stop_pool safe");
    let create = Command::CreatePool(half_closed::protected());
    c.execute(create).await.expect_err("it is refused");
    fake.mend();
    c.import_pool(half_closed::taken()).await.expect("its name is free");
    tried_again(&c).await;
    let of_it = |c: &&String| ["start_pool safe", "stop_pool safe"].contains(&c.as_str());
    fake.state().calls.iter().filter(of_it).cloned().collect()
}

#[tokio::test]
async fn a_refused_pool_stands_in_no_import_s_way() {
    let in_order = ["start_pool safe", "stop_pool safe", "stop_pool safe", "start_pool safe"];
    assert_eq!(taken_over_by_its_name().await, in_order);
}

/// The configuration file declares such a pool, of which what takes long is in vain. How often that was tried in two rounds.
async fn declared_in_vain() -> usize {
    let (_file, fake, c) = node().await;
    fake.break_call("start_pool x");
    fake.break_call("stop_pool x");
    // Its rest is longer than what follows.
    fake.state().late.insert("stop_pool x".into(), Duration::from_secs(3));
    c.declare_at_start(Desired { pools: vec![ram_pool("x", GIB)], ..Desired::default() }).await;
    tried_again(&c).await;
    let faults = c.status().await.expect("a status").faults;
    assert!(faults.iter().any(|f| f.object == "declared/pool/x"), "{faults:?}");
    fake.state().calls.iter().filter(|c| *c == "stop_pool x").count()
}

#[tokio::test]
async fn what_is_declared_goes_round_no_rest() {
    assert_eq!(declared_in_vain().await, 1);
}

/// A target port cannot be started, nor stopped at first. How often that was tried.
async fn listens_in_vain() -> usize {
    let (_file, fake, c) = node().await;
    fake.break_call("start_target srp1");
    fake.break_call("stop_target srp1");
    let put = Command::PutTarget(target("srp1", "127.0.0.1:5556"));
    c.execute(put).await.expect_err("it is refused");
    fake.mend();
    tried_again(&c).await;
    tried_again(&c).await;
    c.shutdown().await.expect("it stops");
    fake.state().calls.iter().filter(|c| *c == "stop_target srp1").count()
}

#[tokio::test]
async fn a_refused_target_port_is_stopped_in_the_end() {
    assert_eq!(listens_in_vain().await, 2);
}

/// A volume is smaller, which cannot be recorded. There is room before the node stops. The size that the next life knows.
async fn smaller_at_the_end() -> u64 {
    for n in 0..60 {
        let (file, fake, c) = node().await;
        file.after(n);
        let done = c.execute(resize(MIB)).await;
        let told = c.status().await.expect("a status").faults;
        if done.is_err() || !told.iter().any(|f| f.object == "size/v") {
            continue;
        }
        file.has_room_again();
        c.shutdown().await.expect("it stops");
        drop(fake);
        gone(c).await;
        return size_found(&file).await;
    }
    panic!("it was never unrecorded");
}

async fn size_found(file: &Full) -> u64 {
    let store = MetaStore::open_on(file.copy()).expect("a store");
    let fake = Arc::new(Fake::default());
    let c = Controller::start_on(store, Path::new("/nowhere"), fake, Vec::new()).await;
    c.expect("a controller").model().volumes["v"].size
}

#[tokio::test]
async fn a_stop_records_the_sizes_that_hosts_see() {
    assert_eq!(smaller_at_the_end().await, MIB);
}

/// A node that was killed while volume `v` became larger, and did this before, whose pool cannot be looked into when it starts.
pub(crate) async fn unread_at_first(did: &[Command]) -> (Scratch, Arc<Fake>, Arc<Controller>) {
    let dir = Scratch::new();
    let mut m = Model::default();
    let spec = pool("safe", &[(DeviceKind::File, Some("/nowhere/d"), Some(GIB))]);
    let before = [
        Command::CreatePool(PoolSpec { raid: Some(Raid::Zero), ..spec }),
        Command::CreatePool(ram_pool("other", GIB)),
        Command::CreateVolume(volume("v", "safe", 8 * MIB)),
        Command::ReadyVolume { name: "v".into() },
        resize(12 * MIB),
    ];
    for command in before.iter().chain(did) {
        m.apply(command.clone(), 7).expect("it can be so");
    }
    let store = MetaStore::open(dir.path()).expect("a store");
    store.commit(&Model::default(), &m).expect("kept");
    drop(store);
    let fake = Arc::new(Fake::default());
    fake.state().held_sizes.insert("v".into(), 8 * MIB);
    fake.break_call("record safe");
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    assert_eq!(fake.state().volumes["v"].size, 8 * MIB);
    (dir, fake, c)
}

/// Has its pool be looked into.
pub(crate) async fn read_in_the_end(fake: &Fake) {
    fake.mend();
    let kept = async || fake.state().calls.iter().any(|c| c == "keep_record safe");
    until("it can be changed", kept).await;
}

/// The size that hosts see of a volume in such a pool in the end.
async fn opened_before_its_pool() -> u64 {
    let (_dir, fake, c) = unread_at_first(&[]).await;
    read_in_the_end(&fake).await;
    tried_again(&c).await;
    assert_eq!(c.model().volumes["v"].size, 12 * MIB);
    fake.state().volumes["v"].size
}

#[tokio::test]
async fn a_volume_grows_when_its_pool_can_be_changed() {
    assert_eq!(opened_before_its_pool().await, 12 * MIB);
}

/// Rules of snapshots are set of such a volume, while it cannot grow. Whether its size is recorded.
async fn recorded_unseen() -> bool {
    let (_dir, fake, c) = unread_at_first(&[]).await;
    read_in_the_end(&fake).await;
    fake.break_call("update_volume v");
    let rules = vec!["every=1d,keep=2".parse().expect("a rule")];
    let patch = VolumePatch { snapshots: Some(rules), ..VolumePatch::default() };
    c.execute(Command::PatchVolume { name: "v".into(), patch }).await.expect("it is set");
    c.model().volumes["v"].grown_from.is_none()
}

#[tokio::test]
async fn a_size_that_hosts_do_not_see_is_not_recorded() {
    assert!(!recorded_unseen().await);
}

/// Devices hold less of a volume than it has, and it was not to become larger: what is done with it once its pool can be looked into.
async fn devices_of_before() -> Vec<String> {
    let (_dir, fake, c) = unread_at_first(&[Command::ReadyVolume { name: "v".into() }]).await;
    read_in_the_end(&fake).await;
    let calls = || fake.state().calls.clone();
    let from = calls().iter().rposition(|c| c == "open_volume v").expect("it was opened");
    tried_again(&c).await;
    let of_it =
        |c: &&String| ["close_volume v", "open_volume v", "update_volume v"].contains(&c.as_str());
    calls()[from + 1..].iter().filter(of_it).cloned().collect()
}

/// Opening it says what is wrong.
#[tokio::test]
async fn a_volume_is_not_made_larger_by_what_it_has_lost() {
    assert_eq!(devices_of_before().await, ["close_volume v", "open_volume v"]);
}

/// The same, and it is changed, and moved, before it is opened again. Whether that is done.
async fn changed_before() -> [bool; 2] {
    let (_dir, fake, c) = unread_at_first(&[Command::ReadyVolume { name: "v".into() }]).await;
    read_in_the_end(&fake).await;
    let patch = VolumePatch { read_only: Some(true), ..VolumePatch::default() };
    let changes = c.execute(Command::PatchVolume { name: "v".into(), patch }).await;
    let to = MigrationSpec { pool: Some("other".into()), ..MigrationSpec::default() };
    let moves = c.start_migration("v".into(), to).await;
    let codes = [changes.map(drop), moves.map(drop)].map(|done| done.err().map(|e| e.code));
    codes.map(|code| code != Some(Code::NotReady))
}

#[tokio::test]
async fn a_volume_that_has_lost_something_is_not_changed() {
    assert_eq!(changed_before().await, [false; 2]);
}

/// A volume cannot be made smaller, and hosts may see that it was. Whether it is moved then.
async fn moves_meanwhile() -> bool {
    let (_file, fake, c) = node().await;
    c.execute(Command::CreatePool(ram_pool("other", GIB))).await.expect("a pool");
    fake.break_call("update_volume v");
    c.execute(resize(MIB)).await.expect_err("it is refused");
    let to = MigrationSpec { pool: Some("other".into()), ..MigrationSpec::default() };
    let moves = c.start_migration("v".into(), to.clone()).await;
    if let Err(e) = &moves {
        assert_eq!(e.code, Code::NotReady, "{e}");
        fake.mend();
        tried_again(&c).await;
        c.start_migration("v".into(), to).await.expect("hosts see it as it is");
    }
    moves.is_ok()
}

#[tokio::test]
async fn a_volume_that_hosts_see_smaller_is_not_moved() {
    assert!(!moves_meanwhile().await);
}

#[cfg(feature = "planted")]
mod planted {
    use super::*;
    use weir_control::planted::{Bug, plant};

    async fn with<T>(bug: Bug, f: impl Future<Output = T>) -> T {
        plant(Some(bug));
        let found = f.await;
        plant(None);
        found
    }

    #[tokio::test]
    async fn volumes_that_leave_something_behind_are_seen() {
        assert!(!with(Bug::MadeIsForgotten, made_in_vain()).await);
    }

    #[tokio::test]
    async fn a_volume_that_stays_smaller_is_seen() {
        assert_eq!(with(Bug::OpenedSmaller, opened_before_its_pool()).await, 8 * MIB);
    }

    #[tokio::test]
    async fn a_pool_that_is_left_is_seen() {
        assert_eq!(with(Bug::UnmadeOnce, pool_in_vain()).await, 1);
    }

    #[tokio::test]
    async fn a_refused_pool_that_is_passed_is_seen() {
        let done = with(Bug::RefusedIsPassed, taken_over_by_its_name()).await;
        assert_eq!(done[..3], ["start_pool safe", "stop_pool safe", "start_pool safe"]);
    }

    #[tokio::test]
    async fn a_size_that_is_recorded_unseen_is_seen() {
        assert!(with(Bug::UnseenIsRecorded, recorded_unseen()).await);
    }

    #[tokio::test]
    async fn zeros_for_what_was_lost_are_seen() {
        assert_eq!(with(Bug::ShortIsGrown, devices_of_before()).await, ["update_volume v"]);
    }

    #[tokio::test]
    async fn what_is_taken_for_its_own_is_seen() {
        assert!(with(Bug::GainedIsForgotten, larger_in_vain()).await.0.is_empty());
    }

    #[tokio::test]
    async fn a_part_that_is_moved_is_seen() {
        assert_eq!(with(Bug::MovedBehind, changed_before()).await, [true; 2]);
        assert!(with(Bug::MovedBehind, moves_meanwhile()).await);
    }

    #[tokio::test]
    async fn ports_that_are_left_are_seen() {
        assert_eq!(with(Bug::RefusedListens, listens_in_vain()).await, 1);
    }

    #[tokio::test]
    async fn sizes_that_a_stop_forgets_are_seen() {
        assert_eq!(with(Bug::SizesUnrecorded, smaller_at_the_end()).await, 8 * MIB);
    }
}
