//! A pool that a volume was to move to, or has moved from, is gone for good: the volume does not stay on its way for ever, and the
//! pool can be let go of.

use crate::applied::{applied, failed};
use crate::fake::Fake;
use crate::support::*;
use std::sync::Arc;
use std::time::Duration;
use weir_control::declare::{ApplySpec, Desired};
use weir_control::model::{
    Command, DeviceKind, MigrationSpec, Model, PoolSpec, Raid, Told, VolumePatch,
};
use weir_control::store::MetaStore;
use weir_control::{Code, Controller};

const MIB: u64 = 1 << 20;

/// A node whose pool `lost` does not start any more, which has the other place of volume `v` in pool `here`.
async fn node(protected: bool, moved: bool) -> (Scratch, Arc<Controller>, Arc<Fake>) {
    node_without("start_pool lost", protected, moved).await
}

/// The same, with another call that fails.
async fn node_without(
    broken: &str,
    protected: bool,
    moved: bool,
) -> (Scratch, Arc<Controller>, Arc<Fake>) {
    let mut m = Model::default();
    for (n, name) in ["here", "lost"].into_iter().enumerate() {
        let path = format!("/nowhere/d{n}");
        let spec = pool(name, &[(DeviceKind::File, Some(&path), Some(GIB))]);
        let raid = (protected || name == "here").then_some(Raid::Zero);
        m.apply(Command::CreatePool(PoolSpec { raid, ..spec }), n as u128).expect("a pool");
    }
    let (from, to) = if moved { ("lost", "here") } else { ("here", "lost") };
    let go = MigrationSpec { pool: Some(to.into()), ..MigrationSpec::default() };
    for command in [
        Command::CreateVolume(volume("v", from, 8 * MIB)),
        Command::StartMigration { name: "v".into(), spec: go },
    ] {
        m.apply(command, 7777).expect("it can be so");
        if let Some(v) = m.volumes.get_mut("v") {
            v.state = weir_control::model::VolumeState::Ready;
        }
    }
    if moved {
        let told = Some(Told { write_cache: true, thin: true });
        m.apply(Command::EndMigration { name: "v".into(), moved: told }, 0).expect("it has moved");
    }
    let (dir, fake) = kept(&m, broken);
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    (dir, c, fake)
}

/// What a node finds at its start, and a data plane of which a call fails.
fn kept(m: &Model, broken: &str) -> (Scratch, Arc<Fake>) {
    let dir = Scratch::new();
    let store = MetaStore::open(dir.path()).expect("a store");
    store.commit(&Model::default(), m).expect("kept");
    drop(store);
    let fake = Arc::new(Fake::default());
    fake.break_call(broken);
    (dir, fake)
}

/// Whether the pool can be got rid of, and the volume used.
async fn gets_rid(protected: bool, moved: bool) -> Result<(), weir_control::Error> {
    let (_dir, c, _fake) = node(protected, moved).await;
    if !moved {
        c.cancel_migration("v".into()).await?;
    }
    match protected {
        true => c.release_pool("lost".into()).await?,
        false => c.execute(Command::DeletePool { name: "lost".into() }).await.map(drop)?,
    }
    assert!(!c.model().pools.contains_key("lost"));
    let patch = VolumePatch { size: Some(16 * MIB), ..VolumePatch::default() };
    c.execute(Command::PatchVolume { name: "v".into(), patch }).await?;
    let faults = c.status().await?.faults;
    assert_eq!(faults, [], "nothing is left of it");
    Ok(())
}

#[tokio::test]
async fn a_pool_that_is_gone_for_good_keeps_no_volume_on_its_way() {
    for protected in [true, false] {
        for moved in [true, false] {
            let done = gets_rid(protected, moved).await;
            assert!(done.is_ok(), "protected {protected}, moved {moved}: {done:?}");
        }
    }
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_pool_that_is_waited_for_for_ever_is_caught() {
    use weir_control::planted::{Bug, plant};
    for protected in [true, false] {
        plant(Some(Bug::LostIsWaitedFor));
        let done = gets_rid(protected, false).await;
        plant(None);
        assert!(done.is_err());
    }
}

/// As long as it may come back by itself, nothing is given up: only a command does that.
#[tokio::test]
async fn a_place_in_a_pool_that_is_away_is_cleared_when_it_is_back() {
    for protected in [true, false] {
        let (_dir, c, fake) = node(protected, false).await;
        c.cancel_migration("v".into()).await.expect("cancelled");
        assert!(c.model().volumes["v"].migration.is_some(), "its place is to be given back");
        assert!(!called(&fake, "clear_place v"), "protected {protected}");
    }
}

/// A volume has moved, and what it has moved to does not open at the next start. Whether the place that it has left is cleared.
async fn cleared_unopened(protected: bool) -> bool {
    let (_dir, c, fake) = node_without("open_volume v", protected, true).await;
    tried_again(&c).await;
    let cleared = called(&fake, "clear_place v");
    fake.mend();
    let is_over = async || c.model().volumes["v"].migration.is_none();
    until("it is cleared when the volume is there", is_over).await;
    assert!(called(&fake, "clear_place v"));
    cleared
}

/// It may be all there is of it.
#[tokio::test]
async fn a_place_that_was_left_is_not_cleared_before_the_other_opens() {
    for protected in [true, false] {
        assert!(!cleared_unopened(protected).await, "protected {protected}");
    }
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_place_that_is_cleared_unopened_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::ClearedUnopened));
    let cleared = cleared_unopened(true).await;
    plant(None);
    assert!(cleared);
}

/// The same, and it never opens again: somebody gives it up, with both its places.
#[tokio::test]
async fn a_moved_volume_that_never_opens_can_be_deleted() {
    for protected in [true, false] {
        let (_dir, c, fake) = node_without("open_volume v", protected, true).await;
        fake.state().tells_snapshots = true;
        tried_again(&c).await;
        let waits = c.execute(Command::DeletePool { name: "lost".into() }).await;
        assert_eq!(waits.expect_err("it has the other place").code, Code::PoolInUse);
        c.execute(delete_volume("v")).await.expect("it is given up");
        until("it is gone", async || c.model().volumes.is_empty()).await;
        for call in ["clear_place v", "delete_volume_data v"] {
            assert!(called(&fake, call), "{call}, protected {protected}");
        }
        for name in ["lost", "here"] {
            c.execute(Command::DeletePool { name: name.into() }).await.expect("nothing is in it");
        }
        assert_eq!(c.status().await.expect("a status").faults, []);
    }
}

/// A volume is deleted whose plain pool is away, and the place that it has left takes long to be cleared. Whether the pool, and with
/// it the volume, can be forgotten meanwhile.
async fn forgotten_amid_clearing() -> bool {
    let mut m = Model::default();
    for (n, name) in ["here", "lost"].into_iter().enumerate() {
        let path = format!("/nowhere/d{n}");
        let spec = pool(name, &[(DeviceKind::File, Some(&path), Some(GIB))]);
        m.apply(Command::CreatePool(spec), n as u128).expect("a pool");
    }
    let go = MigrationSpec { pool: Some("lost".into()), ..MigrationSpec::default() };
    let told = Some(Told { write_cache: true, thin: true });
    for command in [
        Command::CreateVolume(volume("v", "here", 8 * MIB)),
        Command::StartMigration { name: "v".into(), spec: go },
        Command::EndMigration { name: "v".into(), moved: told },
    ] {
        m.apply(command, 7777).expect("it can be so");
    }
    let (dir, fake) = kept(&m, "start_pool lost");
    fake.state().late.insert("clear_place v".into(), Duration::from_secs(5));
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    let me = c.clone();
    let deleted = tokio::spawn(async move { me.execute(delete_volume("v")).await });
    until("it begins", async || called(&fake, "clear_place v begins")).await;
    let forgotten = c.execute(Command::DeletePool { name: "lost".into() }).await.is_ok();
    assert!(!called(&fake, "clear_place v"), "set-up");
    let deleted = deleted.await.expect("it ends");
    if !forgotten {
        deleted.expect_err("its pool is away");
        assert!(called(&fake, "clear_place v"));
        c.execute(Command::DeletePool { name: "lost".into() }).await.expect("both are forgotten");
    }
    assert!(c.model().volumes.is_empty());
    forgotten
}

/// Others would get space that is being thrown away.
#[tokio::test]
async fn nobody_forgets_whose_space_is_being_cleared() {
    assert!(!forgotten_amid_clearing().await);
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn space_that_is_cleared_for_nobody_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::ClearedUnknown));
    let forgotten = forgotten_amid_clearing().await;
    plant(None);
    assert!(forgotten);
}

fn called(fake: &Fake, call: &str) -> bool {
    fake.state().calls.iter().any(|c| c == call)
}

/// A declaration that does not name the pool gives no place up, whoever has it.
#[tokio::test]
async fn a_place_in_a_pool_that_is_away_is_given_up_by_a_command_only() {
    for moved in [true, false] {
        let (_dir, c, _fake) = node(false, moved).await;
        if !moved {
            c.cancel_migration("v".into()).await.expect("cancelled");
        }
        let here = pool("here", &[(DeviceKind::File, Some("/nowhere/d0"), Some(GIB))]);
        let here = PoolSpec { raid: Some(Raid::Zero), ..here };
        let desired = Desired {
            pools: vec![here],
            volumes: vec![volume("v", "here", 8 * MIB)],
            ..Desired::default()
        };
        let spec = ApplySpec { prune: true, ..ApplySpec::from(desired) };
        let report = c.apply(spec).await.expect("a report");
        assert_eq!(failed(&report), [("pool/lost".to_string(), Code::NotReady)], "moved {moved}");
        assert!(c.model().volumes["v"].migration.is_some(), "its place is known");
    }
}

/// A volume is deleted while its plain pool is away, as when a file system is not mounted. The node, and whether its data was
/// deleted before that is back.
async fn deleted_while_away() -> (Scratch, Arc<Controller>, Arc<Fake>, bool) {
    let mut m = Model::default();
    let spec = pool("lost", &[(DeviceKind::Dir, Some("/nowhere/dir"), None)]);
    m.apply(Command::CreatePool(spec), 1).expect("a pool");
    m.apply(Command::CreateVolume(volume("v", "lost", 8 * MIB)), 2).expect("a volume");
    let (dir, fake) = kept(&m, "start_pool lost");
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    let deleted = c.execute(delete_volume("v")).await;
    let lost = called(&fake, "delete_volume_data v");
    assert!(lost || deleted.is_err(), "{deleted:?}");
    (dir, c, fake, lost)
}

#[tokio::test]
async fn a_volume_whose_pool_is_away_is_deleted_when_that_is_back() {
    let (_dir, c, fake, lost) = deleted_while_away().await;
    assert!(!lost, "there is nothing to be deleted yet");
    // A declaration that does not name the pool, gives nothing up.
    let prune = ApplySpec { prune: true, delete_all_data: true, ..ApplySpec::default() };
    let plan = c.apply(ApplySpec { dry_run: true, ..prune.clone() }).await.expect("a report");
    let done = c.apply(prune).await.expect("a report");
    for report in [plan, done] {
        let told = ["volume/v", "pool/lost"].map(|o| (o.to_string(), Code::NotReady));
        assert_eq!((applied(&report), failed(&report)), (vec![], told.to_vec()));
    }
    assert_eq!(c.model().volumes.len(), 1, "it is known still");
    fake.mend();
    until("it is gone", async || c.model().volumes.is_empty()).await;
    assert!(called(&fake, "delete_volume_data v"));
}

#[tokio::test]
async fn a_pool_that_is_gone_for_good_goes_with_volumes_that_are_being_deleted() {
    let (_dir, c, fake, _) = deleted_while_away().await;
    c.execute(Command::DeletePool { name: "lost".into() }).await.expect("both are forgotten");
    let model = c.model();
    assert!(model.pools.is_empty() && model.volumes.is_empty());
    assert!(!called(&fake, "delete_volume_data v"));
    assert_eq!(c.status().await.expect("a status").faults, []);
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_volume_that_is_deleted_unseen_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::AwayIsEmpty));
    let (.., lost) = deleted_while_away().await;
    plant(None);
    assert!(lost);
}
