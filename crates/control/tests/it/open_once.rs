//! What may be open of a volume is known, whatever else failed; and what does not close leaves commands their turn.

use crate::fake::Fake;
use crate::full::Full;
use crate::support::*;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_control::Controller;
use weir_control::model::{Command, DeviceKind, VolumePatch};
#[cfg(feature = "planted")]
use weir_control::planted::{Bug, plant};
use weir_control::store::MetaStore;

const MIB: u64 = 1 << 20;

fn plane() -> Arc<Fake> {
    let fake = Arc::new(Fake::default());
    fake.state().block_sizes.insert("/nowhere".into(), GIB);
    fake
}

async fn on(file: &Full, fake: &Arc<Fake>) -> Arc<Controller> {
    let store = MetaStore::open_on(file.clone()).expect("a store");
    let c = Controller::start_on(store, Path::new("/nowhere"), fake.clone(), Vec::new()).await;
    c.expect("a controller")
}

/// Volume `v`, which is a file of its own and which host `h` sees.
async fn used() -> (Full, Arc<Fake>, Arc<Controller>) {
    let (file, fake) = (Full::default(), plane());
    let c = on(&file, &fake).await;
    for command in [
        Command::CreatePool(pool("dir", &[(DeviceKind::Dir, Some("/nowhere"), None)])),
        Command::CreateVolume(volume("v", "dir", 8 * MIB)),
        Command::CreateHost(host("h", &["1:2"])),
        Command::CreateMap(map("h", "v")),
    ] {
        c.execute(command).await.expect("it can be so");
    }
    (file, fake, c)
}

fn grow() -> Command {
    let patch = VolumePatch { size: Some(16 * MIB), ..VolumePatch::default() };
    Command::PatchVolume { name: "v".into(), patch }
}

/// Whether `v` was opened while it was open.
fn opened_beside_itself(fake: &Fake) -> bool {
    let s = fake.state();
    let of_v = s.calls.iter().filter(|c| *c == "open_volume v" || *c == "close_volume v");
    let of_v: Vec<_> = of_v.collect();
    of_v.windows(2).any(|two| two[0] == "open_volume v" && two[1] == "open_volume v")
}

/// Waits until something is tried again.
async fn opened_twice(fake: &Fake) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(13) {
        if opened_beside_itself(fake) {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    false
}

/// A volume was made larger, the file system of the store ran full just then, and the daemon is started anew while it is: the volume is
/// opened, and that it has its size cannot be recorded. Hosts have it. It must not be opened again under them, every few seconds.
#[tokio::test]
async fn a_volume_whose_growth_cannot_be_recorded_is_not_opened_beside_itself() {
    for n in 0..60 {
        let (file, _, c) = used().await;
        file.after(n);
        let _ = c.execute(grow()).await;
        if c.model().volumes["v"].grown_from.is_none() {
            // It was refused at once, or is recorded.
            continue;
        }
        c.shutdown().await.expect("the end");
        drop(c);
        let (file, fake) = (file.copy(), plane());
        let store = MetaStore::open_on(file.clone()).expect("a store");
        file.after(0);
        let c = Controller::start_on(store, Path::new("/nowhere"), fake.clone(), Vec::new()).await;
        let c = c.expect("a controller");
        assert!(c.model().volumes["v"].grown_from.is_some(), "there was no room to record it");
        {
            let s = fake.state();
            assert!(s.volumes.contains_key("v"), "it is open");
            assert!(s.access.hosts.iter().any(|h| !h.luns.is_empty()), "and its host sees it");
        }
        assert!(!opened_twice(&fake).await, "it is opened beside itself, under its host");
        return;
    }
    panic!("it was never owed");
}

/// The same where it is not opened on all reactors, and what there is of it does not close.
#[tokio::test]
async fn a_volume_that_was_opened_in_part_is_not_opened_beside_itself() {
    opened_in_part().await;
}

#[cfg(feature = "planted")]
#[tokio::test]
#[should_panic(expected = "opened beside what is left")]
async fn what_is_opened_beside_a_part_is_caught() {
    plant(Some(Bug::OpenedBesidePart));
    opened_in_part().await;
}

async fn opened_in_part() {
    let (file, _, c) = used().await;
    c.shutdown().await.expect("the end");
    drop(c);
    let (file, fake) = (file.copy(), plane());
    fake.state().half_opens.insert("v".into());
    let _c = on(&file, &fake).await;
    assert!(!opened_twice(&fake).await, "it is opened beside what is left of it");
}

/// Waits until the size of `v` is recorded, and nothing is said of it any more.
async fn recorded(c: &Controller) {
    for _ in 0..1500 {
        let faults = c.status().await.expect("a status").faults;
        if c.model().volumes["v"].grown_from.is_none() && faults.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("its size is not recorded: {:?}", c.status().await.expect("a status").faults);
}

/// A volume is larger, and its host was told so. That this cannot be recorded makes it no smaller under the host: nobody has said
/// that what was written there meanwhile may be lost.
#[tokio::test]
async fn a_volume_that_hosts_have_seen_grow_is_not_made_smaller() {
    seen_to_grow().await;
}

#[cfg(feature = "planted")]
#[tokio::test]
#[should_panic(expected = "was refused")]
async fn growth_that_is_taken_back_is_caught() {
    plant(Some(Bug::SizeTakenBack));
    seen_to_grow().await;
}

async fn seen_to_grow() {
    let mut unrecorded = 0;
    for n in 0..60 {
        let (file, fake, c) = used().await;
        file.after(n);
        let done = c.execute(grow()).await;
        let told = fake.state().sizes.clone();
        let owed = c.model().volumes["v"].grown_from.is_some();
        assert!(done.is_ok() || told.is_empty(), "full after {n}: it is larger, and was refused");
        file.has_room_again();
        c.execute(Command::CreateHost(host("later", &["3:4"]))).await.expect("there is room again");
        let sizes: Vec<u64> = fake.state().sizes.iter().map(|(_, size)| *size).collect();
        assert!(
            sizes.is_sorted(),
            "full after {n}: the host of a volume saw it with these sizes, one after the other: {sizes:?}"
        );
        if done.is_ok() && owed {
            if unrecorded == 0 {
                recorded(&c).await;
            }
            unrecorded += 1;
        } else if done.is_ok() {
            break;
        }
    }
    assert!(unrecorded > 0, "it was never in the way");
}

/// Three volumes whose device hangs are deleted, and cannot be closed: that is tried again. For which part of the time that keeps
/// commands waiting.
#[tokio::test]
async fn what_does_not_close_leaves_commands_their_turn() {
    does_not_close().await;
}

#[cfg(feature = "planted")]
#[tokio::test]
#[should_panic(expected = "of the time commands wait")]
async fn what_closes_without_a_rest_is_caught() {
    plant(Some(Bug::ClosesWithoutRest));
    does_not_close().await;
}

async fn does_not_close() {
    // As long as hosts' commands are waited for, to a scale of 1 to 30.
    const FENCE: Duration = Duration::from_secs(1);
    let (_file, fake, c) = used().await;
    let names = ["a", "b", "d"];
    for name in names {
        c.execute(Command::CreateVolume(volume(name, "dir", MIB))).await.expect("a volume");
        fake.break_call(&format!("close_volume {name}"));
    }
    fake.state().slow_closes = Some(FENCE);
    for name in names {
        c.execute(delete_volume(name)).await.expect_err("its device hangs");
    }
    // From here on they are tried again.
    let tried = || fake.state().calls.iter().filter(|c| c.starts_with("close_volume ")).count();
    let (begun, before, mut n) = (Instant::now(), tried(), 0);
    while begun.elapsed() < Duration::from_secs(15) {
        n += 1;
        c.execute(Command::CreateHost(host(&format!("h{n}"), &[&format!("9:{n:x}")])))
            .await
            .expect("a host");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let closes = tried() - before;
    assert!(closes > 0 && n > closes, "of {n} commands and {closes} closes");
    // What the closes themselves take: a busy machine has fewer of them, not more.
    let share = (FENCE * closes as u32).as_secs_f64() / begun.elapsed().as_secs_f64();
    assert!(
        share < 0.5,
        "{:.0} % of the time commands wait for what does not close",
        share * 100.0
    );
}
