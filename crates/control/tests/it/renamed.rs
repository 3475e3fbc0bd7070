//! Devices that pools have found by other names.

use crate::fake::Fake;
use crate::half_closed::{node, protected, within};
use std::sync::Arc;
use weir_control::Controller;
use weir_control::live::{PoolDeviceLive, PoolLive};
use weir_control::model::Command;

fn at(path: &str) -> Vec<PoolLive> {
    let device = PoolDeviceLive { path: Some(path.into()), ..PoolDeviceLive::default() };
    let (name, state) = ("safe".into(), "healthy".into());
    vec![PoolLive { name, state, devices: vec![device], ..PoolLive::default() }]
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
