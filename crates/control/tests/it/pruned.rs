//! What a declaration does not name goes: only the data that somebody was asked about, no target port that is in use, and no
//! port before those that are declared can be.

use crate::applied::{MIB, applied, apply, failed, file, node};
use crate::fake::Fake;
use crate::support::*;
use std::sync::Arc;
use std::time::Duration;
use weir_control::controller::ApplyReport;
use weir_control::declare::{ApplySpec, Desired, DoomedVolume};
use weir_control::model::Command;
use weir_control::{Code, Controller};

/// The file without volume `b`, to be pruned.
fn less() -> ApplySpec {
    let mut less = file();
    less.volumes.truncate(1);
    less.hosts.truncate(1);
    less.maps.truncate(1);
    ApplySpec { prune: true, ..less.into() }
}

fn doomed(plan: &ApplyReport) -> Vec<DoomedVolume> {
    let of = |a: &weir_control::controller::Applied| {
        let name = a.object.strip_prefix("volume/")?.to_string();
        Some(DoomedVolume { name, naa: a.naa? })
    };
    plan.applied.iter().filter_map(of).collect()
}

/// Between the question and the answer one volume of those asked about is made anew, and one comes that nobody has heard of.
async fn confirmed_too_late() {
    let dir = Scratch::new();
    let (c, fake) = node(&dir).await;
    apply(&c, file()).await;
    c.execute(Command::CreateVolume(volume("c", "mem", MIB))).await.expect("made");
    let plan = apply(&c, ApplySpec { dry_run: true, ..less() }).await;
    let asked = doomed(&plan);
    assert_eq!(asked.iter().map(|d| d.name.as_str()).collect::<Vec<_>>(), ["b", "c"]);
    c.execute(delete_volume("c")).await.expect("deleted");
    for name in ["c", "late"] {
        c.execute(Command::CreateVolume(volume(name, "mem", MIB))).await.expect("made");
    }
    let r = apply(&c, ApplySpec { delete_data: asked, ..less() }).await;
    assert!(!applied(&r).contains(&"-volume/late".into()), "nobody was asked about it");
    assert!(!applied(&r).contains(&"-volume/c".into()), "it is another one");
    assert_eq!(applied(&r), ["-map/i/b", "-host/i", "-volume/b"]);
    let kept = ["volume/c", "volume/late"].map(|v| (v.to_string(), Code::InvalidRequest));
    assert_eq!(failed(&r), kept);
    assert_eq!(fake.state().data.iter().cloned().collect::<Vec<_>>(), ["a", "c", "late"]);
}

#[tokio::test]
async fn only_volumes_that_somebody_was_asked_about_are_deleted() {
    confirmed_too_late().await;
}

/// A volume whose deletion could not be ended is one that goes, by a rehearsal as well.
#[tokio::test]
async fn a_rehearsal_tells_that_a_deletion_is_carried_on() {
    let dir = Scratch::new();
    let (c, fake) = node(&dir).await;
    apply(&c, file()).await;
    c.execute(Command::CreateVolume(volume("c", "mem", MIB))).await.expect("made");
    fake.break_call("delete_volume_data c");
    c.execute(delete_volume("c")).await.expect_err("it is not wholly deleted");
    let prune = ApplySpec { prune: true, ..file().into() };
    let plan = apply(&c, ApplySpec { dry_run: true, ..prune.clone() }).await;
    assert_eq!(applied(&plan), ["-volume/c"]);
    fake.mend();
    // Unless it has gone meanwhile by itself.
    let r = apply(&c, prune).await;
    assert!(applied(&r).is_empty() || r.applied == plan.applied, "{r:?}");
    assert!(!c.model().volumes.contains_key("c"));
}

/// The file with another port in place of the one that there is.
fn other_port(name: &str, listen: &str) -> ApplySpec {
    let mut other = file();
    other.targets = vec![target(name, listen)];
    ApplySpec { prune: true, ..other.into() }
}

fn ports(c: &Controller, fake: &Fake) -> Vec<String> {
    let there: Vec<String> = fake.state().targets.keys().cloned().collect();
    assert_eq!(there, c.model().targets.keys().cloned().collect::<Vec<_>>());
    there
}

/// A host is logged in at a port that the file does not name.
async fn pruned_in_use() {
    let dir = Scratch::new();
    let (c, fake): (Arc<Controller>, _) = node(&dir).await;
    apply(&c, file()).await;
    fake.state().empty = false;
    let spec = other_port("srp1", "127.0.0.1:5556");
    let plan = apply(&c, ApplySpec { dry_run: true, ..spec.clone() }).await;
    let r = apply(&c, spec.clone()).await;
    assert_eq!(ports(&c, &fake), ["srp0", "srp1"], "hosts are logged in there");
    assert_eq!(failed(&r), [("target/srp0".to_string(), Code::TargetInUse)]);
    assert_eq!(ApplyReport { dry_run: false, ..plan }, r);
    // A reactor that is held up does not say whose are there.
    fake.state().held = Some("a disk".into());
    assert_eq!(failed(&apply(&c, spec.clone()).await).len(), 1);
    {
        let mut s = fake.state();
        (s.held, s.empty) = (None, true);
    }
    let r = apply(&c, spec).await;
    assert_eq!((applied(&r), ports(&c, &fake)), (vec!["-target/srp0".into()], vec!["srp1".into()]));
}

#[tokio::test]
async fn a_target_port_at_which_hosts_are_logged_in_is_not_pruned() {
    pruned_in_use().await;
}

#[tokio::test]
async fn no_port_is_pruned_before_the_declared_ones_can_be() {
    let dir = Scratch::new();
    let (c, fake) = node(&dir).await;
    apply(&c, file()).await;
    let wrong = other_port("no", "nowhere");
    let plan = apply(&c, ApplySpec { dry_run: true, ..wrong.clone() }).await;
    let r = apply(&c, wrong).await;
    let told = [("target/no", Code::InvalidAddress), ("target/srp0", Code::NotReady)];
    assert_eq!(failed(&r), told.map(|(o, code)| (o.to_string(), code)));
    assert!(r.failed[1].error.reason.as_ref().is_some_and(|w| w.contains("target/no")), "{r:?}");
    assert_eq!(ApplyReport { dry_run: false, ..plan }, r);
    assert_eq!(ports(&c, &fake), ["srp0"]);
    // One may have the address of another that goes.
    let right = other_port("srp1", "127.0.0.1:5555");
    let plan = apply(&c, ApplySpec { dry_run: true, ..right.clone() }).await;
    let r = apply(&c, right).await;
    assert_eq!(
        (failed(&r), applied(&r)),
        (vec![], vec!["+target/srp1".into(), "-target/srp0".into()])
    );
    assert_eq!(ApplyReport { dry_run: false, ..plan }, r);
    assert_eq!(ports(&c, &fake), ["srp1"]);
}

/// The file names what needs objects, and not these. What goes.
async fn pruned_though_needed() -> Vec<String> {
    let dir = Scratch::new();
    let (c, _) = node(&dir).await;
    apply(&c, Desired { maps: Vec::new(), ..file() }).await;
    let mut less = file();
    (less.pools, less.hosts) = (Vec::new(), Vec::new());
    less.volumes.truncate(1);
    let spec = ApplySpec { prune: true, delete_all_data: true, ..less.into() };
    let r = apply(&c, spec).await;
    applied(&r)
}

#[tokio::test]
async fn what_something_declared_needs_is_not_pruned() {
    assert_eq!(pruned_though_needed().await, ["+map/h/a", "+map/i/b"]);
}

/// A pool is not declared, and it is not known yet what its devices carry.
async fn pruned_while_it_opens() -> Vec<String> {
    let dir = Scratch::new();
    let (c, _) = node(&dir).await;
    c.execute(Command::CreatePool(ram_pool("other", GIB))).await.expect("a pool");
    c.shutdown().await.expect("an end");
    gone(c).await;
    let fake = Arc::new(Fake::default());
    fake.state().slow_pools.insert("other".into(), Duration::from_secs(3));
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    let r = apply(&c, ApplySpec { prune: true, ..Desired::default().into() }).await;
    applied(&r)
}

#[tokio::test]
async fn a_pool_that_is_being_opened_is_not_pruned() {
    assert_eq!(pruned_while_it_opens().await, [""; 0]);
}

/// A file gives a host another initiator port in place of one that is logged in. What was done.
async fn ports_taken_in_use() -> Vec<String> {
    let dir = Scratch::new();
    let (c, fake) = node(&dir).await;
    apply(&c, file()).await;
    {
        let mut s = fake.state();
        (s.empty, s.initiator) = (false, Some("0000000000000001:0000000000000003".into()));
    }
    let mut other = file();
    other.hosts[1] = host("i", &["1:4"]);
    let plan = apply(&c, ApplySpec { dry_run: true, ..other.clone().into() }).await;
    let r = apply(&c, other.clone()).await;
    assert_eq!(ApplyReport { dry_run: false, ..plan }, r);
    if !r.failed.is_empty() {
        assert_eq!(failed(&r), [("host/i".to_string(), Code::VolumeMapped)]);
        fake.state().empty = true;
        assert_eq!(applied(&apply(&c, other).await), ["~host/i"]);
    }
    applied(&r)
}

#[tokio::test]
async fn a_file_takes_no_volumes_from_ports_that_are_logged_in() {
    assert_eq!(ports_taken_in_use().await, [""; 0]);
}

#[cfg(feature = "planted")]
mod planted {
    use super::*;
    use weir_control::planted::{Bug, plant};

    #[tokio::test]
    #[should_panic(expected = "nobody was asked about it")]
    async fn data_that_goes_without_a_question_is_seen() {
        plant(Some(Bug::SomeConfirmedIsAll));
        confirmed_too_late().await;
    }

    #[tokio::test]
    async fn what_goes_though_it_is_needed_is_seen() {
        plant(Some(Bug::PrunedThoughNeeded));
        let gone = pruned_though_needed().await;
        plant(None);
        assert_eq!(gone[..2], ["-host/h", "-host/i"]);
    }

    #[tokio::test]
    async fn a_pool_that_goes_while_it_opens_is_seen() {
        plant(Some(Bug::PrunedBesideOpening));
        let gone = pruned_while_it_opens().await;
        plant(None);
        assert_eq!(gone, ["-pool/other"]);
    }

    #[tokio::test]
    async fn ports_that_lose_their_volumes_are_seen() {
        plant(Some(Bug::PortsTakenInUse));
        let done = ports_taken_in_use().await;
        plant(None);
        assert_eq!(done, ["~host/i"]);
    }

    #[tokio::test]
    #[should_panic(expected = "it is another one")]
    async fn data_that_goes_by_its_name_is_seen() {
        plant(Some(Bug::ConfirmedByName));
        confirmed_too_late().await;
    }

    #[tokio::test]
    #[should_panic(expected = "hosts are logged in there")]
    async fn a_port_that_is_pruned_under_hosts_is_seen() {
        plant(Some(Bug::PortsPrunedInUse));
        pruned_in_use().await;
    }
}
