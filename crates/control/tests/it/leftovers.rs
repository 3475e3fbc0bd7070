//! What a change that was refused, or a volume that did not close, leaves behind: it ends when it can, and costs others nothing.

use crate::fake::Fake;
use crate::half_closed::{found, node, taken, within};
use crate::support::*;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_control::Controller;
use weir_control::model::{Carried, Command, DeviceKind, PoolSpec, Raid};

const MIB: u64 = 1 << 20;

fn protected(name: &str, path: &str) -> PoolSpec {
    let spec = pool(name, &[(DeviceKind::File, Some(path), Some(GIB))]);
    PoolSpec { raid: Some(Raid::Zero), ..spec }
}

/// Pools `safe` and `other` with volumes `v` and `w`, which hosts `h` and `k` see.
async fn used() -> (Arc<Fake>, Arc<Controller>) {
    let (_file, fake, c) = node().await;
    fake.state().devices.insert("other".into(), Carried::default());
    for command in [
        Command::CreatePool(protected("safe", "/nowhere/d0")),
        Command::CreatePool(protected("other", "/nowhere/d1")),
        Command::CreateVolume(volume("v", "safe", 8 * MIB)),
        Command::CreateVolume(volume("w", "other", 8 * MIB)),
        Command::CreateHost(host("h", &["1:2"])),
        Command::CreateHost(host("k", &["3:4"])),
        Command::CreateMap(map("h", "v")),
        Command::CreateMap(map("k", "w")),
    ] {
        c.execute(command).await.expect("it can be so");
    }
    (fake, c)
}

fn sees(fake: &Fake, volume: &str) -> bool {
    fake.state().access.hosts.iter().any(|h| h.luns.iter().any(|l| l.volume == volume))
}

/// A pool is let go of while a command of a host hangs in its volume: it is refused, after the time in which commands are to end.
/// Then the device answers again. The volume is the host's, by the configuration and by the mappings in force: it is served again.
#[tokio::test]
async fn a_volume_that_did_not_close_is_served_again() {
    served_again().await;
}

async fn served_again() {
    let (fake, c) = used().await;
    fake.break_call("close_volume v");
    // To a scale of 1 to 60.
    fake.state().slow_closes = Some(Duration::from_millis(500));
    c.release_pool("safe".into()).await.expect_err("it is refused");
    assert!(c.model().volumes.contains_key("v") && sees(&fake, "v"));
    let told = c.status().await.expect("a status").faults;
    // The device answers.
    fake.mend();
    fake.state().slow_closes = None;
    // The rest is ten times as long as it took; then what is left of it is closed, and it is opened again with what is tried again
    // every few seconds.
    let open = || fake.state().volumes.contains_key("v");
    assert!(within(15, || !open()).await, "what is left of it is closed");
    let served = within(20, open).await;
    let of_v: Vec<String> =
        fake.state().calls.iter().filter(|c| c.ends_with("_volume v")).cloned().collect();
    let later = c.status().await.expect("a status").faults;
    assert!(served, "it sees a volume that is not there; told {told:?}, then {later:?}; {of_v:?}");
}

/// A command of host `h` hangs in `v` while the mapping is taken away: refused, taken back, and `mappings` is a fault that rests. Another
/// pool is let go of, and that is refused: its host has its volume back.
#[tokio::test]
async fn mappings_that_rest_are_not_kept_from_another_host() {
    mapped_again().await;
}

async fn mapped_again() {
    let (fake, c) = used().await;
    // As the node does: mappings are in force at once, and what a host has lost of a volume whose device hangs is waited for.
    fake.state().parts_late = Some(("v".into(), Duration::from_secs(1)));
    let unmap = Command::DeleteMap { host: "h".into(), volume: "v".into() };
    c.execute(unmap).await.expect_err("a command of its host does not end");
    assert!(sees(&fake, "v") && sees(&fake, "w"));
    let tries = || fake.state().calls.iter().filter(|c| *c == "set_mappings late").count();
    let n = tries();
    assert!(within(10, || tries() > n).await, "it is tried again");
    tokio::time::sleep(Duration::from_millis(1100)).await;
    fake.break_call("stop_pool other");
    c.release_pool("other".into()).await.expect_err("it is refused");
    fake.mend();
    assert!(c.model().map("k", "w").is_ok(), "it is mapped");
    let begun = Instant::now();
    within(20, || sees(&fake, "w")).await;
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "for {:?} a host does not see its volume, for a second that another host's command was waited for",
        begun.elapsed()
    );
}

/// A pool that is to be taken over does not start, and there is no room to take that back; until there is, it has started and is in
/// use. When it is taken back, a command of a host hangs in its volume. The volume is closed when the device answers: the pool is
/// not this node's, and must not stay open.
#[tokio::test]
async fn a_pool_that_was_not_taken_over_is_stopped_when_its_volume_has_closed() {
    not_taken_over(false).await;
}

/// The same; then a pool of that name is made of other devices. By the data plane's book it has been open all the time, so its volumes
/// would be written to the devices of the pool that was not taken over.
#[tokio::test]
async fn a_new_pool_is_not_the_one_of_that_name_that_was_not_taken_over() {
    not_taken_over(true).await;
}

async fn not_taken_over(and_made: bool) {
    for n in 0..60 {
        let (file, fake, c) = node().await;
        fake.state().found = Some(found());
        fake.break_call("start_pool safe");
        file.after(n);
        c.import_pool(taken()).await.expect_err("it is refused");
        if !c.model().pools.contains_key("safe") {
            continue;
        }
        fake.mend();
        let is_used = || fake.state().access.hosts.iter().any(|h| !h.luns.is_empty());
        assert!(within(15, || fake.state().volumes.contains_key("v") && is_used()).await);
        fake.break_call("close_volume v");
        file.has_room_again();
        c.execute(Command::CreateHost(host("later", &["3:4"]))).await.expect("there is room again");
        assert!(!c.model().pools.contains_key("safe"), "it is taken back");
        let n = fake.state().calls.len();
        if and_made {
            let made = c.execute(Command::CreatePool(protected("safe", "/nowhere/d1"))).await;
            assert_eq!(made.expect_err("it is open yet").code, weir_control::Code::NotReady);
            let told = c.status().await.expect("a status").faults;
            assert!(told.iter().any(|f| f.object == "left/safe"), "{told:?}");
        }
        // The device answers.
        fake.mend();
        assert!(within(10, || !fake.state().volumes.contains_key("v")).await, "it is closed");
        if and_made {
            let made = c.execute(Command::CreatePool(protected("safe", "/nowhere/d1"))).await;
            let calls = fake.state().calls[n..].to_vec();
            let told = c.status().await.expect("a status").faults;
            assert!(
                made.is_err() || calls.iter().any(|c| c == "stop_pool safe"),
                "it is the old one's store, on the old one's devices: {calls:?}; told {told:?}"
            );
            return;
        }
        let stopped = within(15, || !fake.state().pools.contains_key("safe")).await;
        let told = c.status().await.expect("a status").faults;
        assert!(stopped, "the node has the devices of a pool that is not its own; told {told:?}");
        return;
    }
    panic!("it was never owed");
}

/// Eleven volumes whose device hangs are deleted, and cannot be closed: there is no time at which none of them rests, but one after
/// the other they leave commands the greater part of it.
async fn rest_together() {
    // As long as hosts' commands are waited for, to a scale of 1 to 60.
    const FENCE: Duration = Duration::from_millis(500);
    let (fake, c) = used().await;
    let names: Vec<String> = (0..11).map(|n| format!("a{n}")).collect();
    for name in &names {
        c.execute(Command::CreateVolume(volume(name, "safe", MIB))).await.expect("a volume");
        fake.break_call(&format!("close_volume {name}"));
    }
    fake.state().slow_closes = Some(FENCE);
    for name in &names {
        c.execute(delete_volume(name)).await.expect_err("its device hangs");
    }
    let closes = || fake.state().calls.iter().filter(|c| c.starts_with("close_volume")).count();
    let n = closes();
    tokio::time::sleep(20 * FENCE).await;
    assert!(closes() - n <= 3, "{} of 20 times are for what does not close", closes() - n);
}

#[tokio::test]
async fn many_that_do_not_close_leave_commands_their_turn() {
    rest_together().await;
}

#[cfg(feature = "planted")]
mod planted {
    use super::*;
    use weir_control::planted::{Bug, plant};

    #[tokio::test]
    #[should_panic(expected = "for what does not close")]
    async fn resting_one_by_one_is_seen() {
        plant(Some(Bug::EachRestsByItself));
        rest_together().await;
    }

    #[tokio::test]
    #[should_panic(expected = "it sees a volume that is not there")]
    async fn closing_for_good_is_seen() {
        plant(Some(Bug::ClosedForGood));
        served_again().await;
    }

    #[tokio::test]
    #[should_panic(expected = "a host does not see its volume")]
    async fn mappings_that_rest_are_seen() {
        plant(Some(Bug::OtherMappingsRest));
        mapped_again().await;
    }

    #[tokio::test]
    #[should_panic(expected = "devices of a pool that is not its own")]
    async fn what_is_left_open_is_seen() {
        plant(Some(Bug::LeftOpen));
        not_taken_over(false).await;
    }
}
