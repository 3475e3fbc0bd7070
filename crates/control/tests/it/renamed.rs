//! Devices that pools have found by other names.

use crate::fake::Fake;
use crate::half_closed::{node, protected, within};
use crate::support::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use weir_control::Controller;
use weir_control::live::{PoolDeviceLive, PoolLive};
use weir_control::model::{Command, DeviceAction, DeviceKind, PoolSpec, Raid};

fn at(path: &str) -> Vec<PoolLive> {
    let device = PoolDeviceLive { path: Some(path.into()), ..PoolDeviceLive::default() };
    let (name, state) = ("safe".into(), "healthy".into());
    vec![PoolLive { name, state, devices: vec![device], ..PoolLive::default() }]
}

/// A mirror of `d0` and another device.
fn mirror(other: &str) -> PoolSpec {
    let two = ["/nowhere/d0", other].map(|d| (DeviceKind::File, Some(d), Some(GIB)));
    PoolSpec { raid: Some(Raid::One), ..pool("safe", &two) }
}

fn named(c: &Controller) -> Option<String> {
    c.model().pools["safe"].devices[0].path.clone()
}

/// Two more readings of the data plane have come to their ends.
async fn looked_at_again(fake: &Arc<Fake>) {
    let before = fake.state().polls;
    assert!(within(60, || fake.state().polls >= before + 3).await, "it is looked at");
}

async fn only_what_is_so_now() {
    let (_file, fake, c) = node().await;
    c.execute(Command::CreatePool(protected())).await.expect("a pool");
    fake.state().held = Some("reactor 0 waits in the kernel".into());
    fake.state().live_pools = at("/nowhere/of-before");
    looked_at_again(&fake).await;
    assert_eq!(named(&c).as_deref(), Some("/nowhere/d0"), "that is of before");
    fake.state().held = None;
    fake.state().live_pools = at("/nowhere/of-now");
    assert!(within(60, || named(&c).as_deref() == Some("/nowhere/of-now")).await, "it follows");
}

#[tokio::test]
async fn names_are_not_those_that_a_reactor_has_told_before_it_was_held_up() {
    only_what_is_so_now().await;
}

#[cfg(feature = "planted")]
#[tokio::test]
#[should_panic(expected = "that is of before")]
async fn names_of_before_are_caught() {
    weir_control::planted::plant(Some(weir_control::planted::Bug::NamesOfBefore));
    only_what_is_so_now().await;
}

/// Of a pool that lacks a device a name that another pool has by now is not its own any more; others may come back.
#[tokio::test]
async fn a_pool_that_lacks_a_device_loses_a_name_to_the_pool_that_has_it() {
    let (_file, fake, c) = node().await;
    let one = pool("other", &[(DeviceKind::File, Some("/nowhere/o0"), Some(GIB))]);
    let other = PoolSpec { raid: Some(Raid::Zero), ..one };
    for spec in [mirror("/nowhere/d1"), other] {
        c.execute(Command::CreatePool(spec)).await.expect("a pool");
    }
    let lacks = |path: &str| {
        let mut live = at(path).remove(0);
        live.devices.push(PoolDeviceLive::default());
        live
    };
    let names = |pool: &str| {
        let model = c.model();
        let paths = model.pools[pool].devices.iter().filter_map(|d| d.path.clone());
        paths.collect::<BTreeSet<_>>()
    };
    let set = |paths: &[&str]| paths.iter().map(|p| p.to_string()).collect::<BTreeSet<_>>();
    // Nobody has what is missing.
    fake.state().live_pools = vec![lacks("/nowhere/d0")];
    looked_at_again(&fake).await;
    assert_eq!(names("safe"), set(&["/nowhere/d0", "/nowhere/d1"]));
    // Another pool has it by now: what this one is told by it is kept, since it may come back under another.
    let has_it = PoolLive { name: "other".into(), ..at("/nowhere/d1").remove(0) };
    fake.state().live_pools = vec![lacks("/nowhere/d0"), has_it];
    looked_at_again(&fake).await;
    assert_eq!(names("safe"), set(&["/nowhere/d0", "/nowhere/d1"]));
    // The devices that are there have exchanged their names.
    let exchanged = PoolLive { name: "other".into(), ..at("/nowhere/d0").remove(0) };
    fake.state().live_pools = vec![lacks("/nowhere/o0"), exchanged];
    let both = || {
        names("safe") == set(&["/nowhere/o0", "/nowhere/d1"])
            && names("other") == set(&["/nowhere/d0"])
    };
    assert!(within(60, both).await, "{:?} {:?}", names("safe"), names("other"));
}

/// A pool that lacks a device follows those that are there all the same, and forgets none.
#[tokio::test]
async fn a_pool_that_lacks_a_device_follows_the_names_of_the_others() {
    let (_file, fake, c) = node().await;
    c.execute(Command::CreatePool(mirror("/nowhere/d1"))).await.expect("a pool");
    let named = |paths: &[&str]| {
        let model = c.model();
        let names = model.pools["safe"].devices.iter().filter_map(|d| d.path.as_deref());
        names.collect::<BTreeSet<_>>() == paths.iter().copied().collect()
    };
    let mut live = at("/nowhere/moved").remove(0);
    live.devices.push(PoolDeviceLive::default());
    fake.state().live_pools = vec![live.clone()];
    let all = ["/nowhere/d0", "/nowhere/d1", "/nowhere/moved"];
    assert!(within(60, || named(&all)).await, "what has moved is found by that");
    live.devices[1].path = Some("/nowhere/d1".into());
    fake.state().live_pools = vec![live];
    assert!(within(60, || named(&all[1..])).await, "it is whole");
}

/// One of two devices of one name is removed: the other one is to be found at the next start.
async fn removed_beside_its_heir() {
    let (_file, fake, c) = node().await;
    c.execute(Command::CreatePool(mirror("/nowhere/slot"))).await.expect("a pool");
    let device = |number, path: &str| PoolDeviceLive {
        number,
        path: Some(path.into()),
        ..PoolDeviceLive::default()
    };
    let devices =
        vec![device(0, "/nowhere/d0"), device(1, "/nowhere/slot"), device(2, "/nowhere/slot")];
    let live = PoolLive { name: "safe".into(), state: "healthy".into(), ..PoolLive::default() };
    fake.state().live_pools = vec![PoolLive { devices, ..live }];
    looked_at_again(&fake).await;
    c.pool_device("safe".into(), DeviceAction::Remove { number: 1 }).await.expect("removed");
    let model = c.model();
    let named =
        model.pools["safe"].devices.iter().any(|d| d.path.as_deref() == Some("/nowhere/slot"));
    assert!(named, "the configuration names what the pool has");
}

#[tokio::test]
async fn a_name_that_another_device_has_got_stays_when_the_first_one_goes() {
    removed_beside_its_heir().await;
}

#[cfg(feature = "planted")]
#[tokio::test]
#[should_panic(expected = "names what the pool has")]
async fn a_name_of_another_device_that_goes_is_caught() {
    weir_control::planted::plant(Some(weir_control::planted::Bug::NameOfAnother));
    removed_beside_its_heir().await;
}
