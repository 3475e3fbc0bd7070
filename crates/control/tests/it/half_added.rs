//! A crash cuts off a command that was to add a device to a plain pool, between naming it and making it: the pool comes up without.

use crate::fake::Fake;
use crate::support::*;
use std::sync::Arc;
use weir_control::Controller;
use weir_control::model::{Command, DeviceKind, DeviceSpec, Model, PoolPatch};
use weir_control::store::MetaStore;

/// Whether the volumes of the pool are served, and the devices that it has.
async fn served(taken: &str) -> (bool, Vec<String>) {
    let mut m = Model::default();
    let spec = pool("p", &[(DeviceKind::File, Some("/nowhere/a"), Some(GIB))]);
    m.apply(Command::CreatePool(spec), 7).expect("a pool");
    let found = m.pools["p"].devices.iter().map(|d| d.size.into()).collect();
    m.apply(Command::SizePool { name: "p".into(), sizes: found }, 0).expect("it is made");
    m.apply(Command::CreateVolume(volume("v", "p", 1 << 20)), 8).expect("a volume");
    let more = DeviceSpec { kind: DeviceKind::Block, path: Some("/dev/b".into()), size: None };
    let patch = PoolPatch { add: vec![more], ..PoolPatch::default() };
    m.apply(Command::PatchPool { name: "p".into(), patch }, 0).expect("another device");
    let dir = Scratch::new();
    let store = MetaStore::open(dir.path()).expect("a store");
    store.commit(&Model::default(), &m).expect("kept");
    drop(store);
    let fake = Arc::new(Fake::default());
    fake.state().block_sizes.insert("/dev/b".into(), GIB);
    fake.state().taken.insert(taken.into());
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    let is_served = fake.state().volumes.contains_key("v");
    let model = c.model();
    let paths = model.pools["p"].devices.iter().filter_map(|d| d.path.clone()).collect();
    (is_served, paths)
}

fn names(all: &[&str]) -> Vec<String> {
    all.iter().map(|n| n.to_string()).collect()
}

/// What was to be overwritten there is there still, and nobody says any more that it may be lost.
#[tokio::test]
async fn a_device_that_was_not_added_to_its_end_keeps_no_volumes_down() {
    assert_eq!(served("/dev/b").await, (true, names(&["/nowhere/a"])));
    // Where it can be had, the command comes to its end.
    assert_eq!(served("/dev/c").await, (true, names(&["/nowhere/a", "/dev/b"])));
    // And nothing is given up for what the pool had.
    assert_eq!(served("/nowhere/a").await, (false, names(&["/nowhere/a", "/dev/b"])));
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_device_that_keeps_volumes_down_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::NewKeepsAllDown));
    let found = served("/dev/b").await;
    plant(None);
    assert!(!found.0);
}
