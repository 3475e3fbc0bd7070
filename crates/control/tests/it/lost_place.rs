//! A pool that a volume was to move to, or has moved from, is gone for good: the volume does not stay on its way for ever, and the
//! pool can be let go of.

use crate::fake::Fake;
use crate::support::*;
use std::sync::Arc;
use weir_control::Controller;
use weir_control::model::{
    Command, DeviceKind, MigrationSpec, Model, PoolSpec, Raid, Told, VolumePatch,
};
use weir_control::store::MetaStore;

const MIB: u64 = 1 << 20;

/// A node whose pool `lost` does not start any more, which has the other place of volume `v` in pool `here`.
async fn node(protected: bool, moved: bool) -> (Scratch, Arc<Controller>) {
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
    let dir = Scratch::new();
    let store = MetaStore::open(dir.path()).expect("a store");
    store.commit(&Model::default(), &m).expect("kept");
    drop(store);
    let fake = Arc::new(Fake::default());
    fake.break_call("start_pool lost");
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    (dir, c)
}

/// Whether the pool can be got rid of, and the volume used.
async fn gets_rid(protected: bool, moved: bool) -> Result<(), weir_control::Error> {
    let (_dir, c) = node(protected, moved).await;
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
    let (_dir, c) = node(true, false).await;
    c.cancel_migration("v".into()).await.expect("cancelled");
    assert!(c.model().volumes["v"].migration.is_some(), "its place is to be given back");
}
