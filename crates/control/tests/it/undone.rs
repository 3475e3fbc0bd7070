//! What a refused or unrecorded change leaves in the data plane goes, or counts, whatever fails on the way.

use crate::fake::Fake;
use crate::full::Full;
use crate::owed::node;
use crate::support::*;
use std::path::Path;
use std::sync::Arc;
use weir_control::Controller;
use weir_control::model::{Command, DeviceKind, VolumePatch};
use weir_control::store::MetaStore;

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

/// A volume cannot be made larger, and hosts may have seen that it was. What is thrown away of it.
async fn larger_in_vain() -> (Vec<String>, u64) {
    let (_file, fake, c) = node().await;
    let before = c.model().volumes["v"].layout.capacity();
    fake.break_call("update_volume v");
    c.execute(resize(12 * MIB)).await.expect_err("it is refused");
    tried_again(&c).await;
    let cuts = |fake: &Fake| {
        let s = fake.state();
        s.calls.iter().filter(|c| c.starts_with("cut_")).cloned().collect::<Vec<_>>()
    };
    assert_eq!(cuts(&fake), [""; 0], "hosts may see it yet");
    fake.mend();
    tried_again(&c).await;
    tried_again(&c).await;
    let v = &c.model().volumes["v"];
    assert_eq!((v.layout.capacity(), v.cut), (before, None));
    (cuts(&fake), v.size)
}

#[tokio::test]
async fn what_a_volume_was_to_be_larger_by_is_thrown_away_before_others_get_it() {
    let cuts = ["cut_volume v", "cut_ended v"].map(String::from).to_vec();
    assert_eq!(larger_in_vain().await, (cuts, 8 * MIB));
}

/// A file need not have become larger: there may be nothing to throw away, and it is as it was.
#[tokio::test]
async fn a_file_that_could_not_be_made_larger_is_as_it_was() {
    let (_file, fake, c) = node().await;
    let dir = pool("dir", &[(DeviceKind::Dir, Some("/nowhere"), None)]);
    c.execute(Command::CreatePool(dir)).await.expect("a pool");
    c.execute(Command::CreateVolume(volume("f", "dir", MIB))).await.expect("a volume");
    let before = c.model().volumes["f"].clone();
    fake.break_call("update_volume f");
    let patch = VolumePatch { size: Some(2 * MIB), ..VolumePatch::default() };
    let larger = Command::PatchVolume { name: "f".into(), patch };
    c.execute(larger).await.expect_err("it is refused");
    assert_eq!(c.model().volumes["f"], before);
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
    async fn space_that_is_free_as_it_is_is_seen() {
        assert!(with(Bug::GainedIsForgotten, larger_in_vain()).await.0.is_empty());
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
