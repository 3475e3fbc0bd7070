//! What was declared at a start and is tried again, beside all that may happen meanwhile: hosts that log in, a refused change that
//! is owed, another file, a deletion.

use crate::applied::{MIB, failed, node};
use crate::fake::Fake;
use crate::full::Full;
use crate::support::*;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weir_control::declare::Desired;
use weir_control::model::{
    Command, HostPatch, HostSecret, HostSpec, InitiatorPort, MigrationSpec, TargetSpec, VolumeSpec,
};
use weir_control::store::MetaStore;
use weir_control::{Code, Controller, Stopping};

fn ports(p: &str) -> Vec<InitiatorPort> {
    vec![p.parse().expect("a port")]
}

fn file(hosts: Vec<HostSpec>) -> Desired {
    Desired {
        pools: vec![ram_pool("mem", GIB)],
        volumes: vec![volume("v", "mem", 8 * MIB)],
        hosts,
        maps: vec![map("h", "v")],
        targets: vec![target("srp0", "127.0.0.1:5555")],
    }
}

async fn faults(c: &Controller) -> Vec<String> {
    c.status().await.expect("a status").faults.into_iter().map(|f| f.object).collect()
}

fn logs_in(fake: &Fake) {
    let mut s = fake.state();
    (s.empty, s.initiator) = (false, Some("0000000000000001:0000000000000003".into()));
}

/// The file of the start gives host `h` a port that another one has. Host `h` is logged in by the one that it is to lose. The file
/// is corrected and applied, and that is refused. By which ports the host is known some seconds later.
async fn tried_again_under_a_host() -> Vec<InitiatorPort> {
    let dir = Scratch::new();
    let (c, fake) = node(&dir).await;
    c.apply(file(vec![host("h", &["1:3"])]).into()).await.expect("a report");
    c.execute(Command::CreateHost(host("z", &["1:4"]))).await.expect("made");
    c.declare_at_start(file(vec![host("h", &["1:4"])])).await;
    assert!(faults(&c).await.contains(&"declared/host/h".to_string()), "set-up");
    logs_in(&fake);
    let right = file(vec![host("z", &["7:7"]), host("h", &["1:4"])]);
    let r = c.apply(right.into()).await.expect("a report");
    assert_eq!(failed(&r), [("host/h".to_string(), Code::VolumeMapped)]);
    tried_again(&c).await;
    tried_again(&c).await;
    c.model().hosts["h"].ports.clone()
}

#[tokio::test]
async fn what_is_tried_again_takes_no_volume_from_a_host_that_is_logged_in() {
    assert_eq!(tried_again_under_a_host().await, ports("1:3"));
}

/// A machine is let in as any, and has a volume by that. A file gives its port to a host of its own that has none. What was refused.
async fn named_under_a_host() -> Vec<(String, Code)> {
    let dir = Scratch::new();
    let (c, fake) = node(&dir).await;
    let any = HostSpec { allow_any: true, ..host("h", &[]) };
    c.apply(file(vec![any.clone()]).into()).await.expect("a report");
    logs_in(&fake);
    let mut named = file(vec![any, host("new", &["1:3"])]);
    let r = c.apply(named.clone().into()).await.expect("a report");
    assert_eq!(c.model().hosts.contains_key("new"), r.failed.is_empty());
    // Nor is anybody put out by being named no more.
    named.hosts = vec![host("h", &["5:5"])];
    let other = c.apply(named.into()).await.expect("a report");
    failed(&r).into_iter().chain(failed(&other)).collect()
}

#[tokio::test]
async fn a_file_takes_no_volume_from_who_was_let_in_as_any() {
    let refused = ["host/new", "host/h"].map(|h| (h.to_string(), Code::VolumeMapped));
    assert_eq!(named_under_a_host().await, refused);
}

/// A mapping of the file is refused by the data plane, and the store is full, so that this cannot be taken back. Whether the mapping
/// is there when all is well again.
async fn tried_again_while_owed() -> bool {
    for n in 0..60 {
        let (full, fake) = (Full::default(), Arc::new(Fake::default()));
        let store = MetaStore::open_on(full.clone()).expect("a store");
        let c = Controller::start_on(store, Path::new("/nowhere"), fake.clone(), Vec::new()).await;
        let c = c.expect("a controller");
        let declared = file(vec![host("h", &["1:3"])]);
        let bare = Desired { maps: Vec::new(), ..declared.clone() };
        c.declare(bare).await.expect("all but the mapping");
        fake.break_call("set_mappings");
        full.after(n);
        c.declare_at_start(declared).await;
        if c.model().maps.is_empty() {
            continue;
        }
        tried_again(&c).await;
        tried_again(&c).await;
        fake.mend();
        full.has_room_again();
        for _ in 0..3 {
            tried_again(&c).await;
        }
        return !c.model().maps.is_empty();
    }
    panic!("it was never owed");
}

#[tokio::test]
async fn what_is_declared_is_not_forgotten_for_a_change_that_is_taken_back() {
    assert!(tried_again_while_owed().await);
}

/// A volume whose key takes its time, and is none.
fn secret() -> VolumeSpec {
    serde_json::from_value(serde_json::json!({
        "name": "e", "pool": "mem", "size": MIB,
        "form": { "encryption": { "key": "command:/bin/sleep 4" } },
    }))
    .expect("a volume")
}

/// A round is under way, held up by a command that gives a key. Another file says otherwise meanwhile, and cannot be carried out.
/// Whether the round makes what the first file declared.
async fn a_round_beside_another_file() -> bool {
    let dir = Scratch::new();
    let fake = Arc::new(Fake::default());
    fake.state().empty = true;
    let c = up(&dir, fake, &["/bin/sleep"], Desired::default(), Stopping::default()).await;
    c.apply(file(vec![host("h", &["1:2"])]).into()).await.expect("a report");
    c.execute(Command::CreateHost(host("z", &["7:7"]))).await.expect("made");
    let mut first = file(vec![host("h", &["1:2"]), host("twin", &["1:2"])]);
    first.volumes.push(secret());
    let start = c.clone();
    let round = tokio::spawn(async move { start.declare_at_start(first).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    let other = file(vec![host("h", &["5:6"]), host("twin", &["7:7"])]);
    let r = c.apply(other.into()).await.expect("a report");
    assert_eq!(failed(&r), [("host/twin".to_string(), Code::PortInUse)]);
    round.await.expect("a round");
    c.model().hosts.contains_key("twin")
}

#[tokio::test]
async fn a_round_makes_nothing_that_another_file_declares_otherwise() {
    assert!(!a_round_beside_another_file().await);
}

/// A command that gives a key hangs. Whether a host of the same file is there soon and its port listens, and what comes of the volume.
async fn beside_a_key_that_hangs() -> (bool, bool, Vec<String>) {
    let dir = Scratch::new();
    let fake = Arc::new(Fake::default());
    let c = up(&dir, fake.clone(), &["/bin/sleep"], Desired::default(), Stopping::default()).await;
    let mut declared = file(vec![host("h", &["1:2"])]);
    declared.volumes.push(secret());
    declared.hosts.push(host("i", &["1:9"]));
    declared.maps.extend([map("i", "e"), map("i", "v")]);
    let start = c.clone();
    let round = tokio::spawn(async move { start.declare_at_start(declared).await });
    tokio::time::sleep(Duration::from_millis(2500)).await;
    // What comes after it in the file gets no number that it is to have.
    let soon = c.model().map("h", "v").is_ok() && c.model().map("i", "v").is_err();
    let listens = fake.state().targets.contains_key("srp0");
    round.await.expect("a round");
    // By then it is known that there is no such key.
    until("all was tried", async || c.model().map("i", "v").is_ok()).await;
    let here = faults(&c).await;
    (soon, listens, here)
}

#[tokio::test]
async fn a_key_that_hangs_holds_up_its_own_volume_only() {
    let late = ["declared/map/i/e", "declared/volume/e"].map(String::from);
    assert_eq!(beside_a_key_that_hangs().await, (true, true, late.into()));
}

/// A volume that is not as declared is deleted by hand. Its data cannot be removed at first, or that is `slow`. Whether it is there
/// in the end.
async fn deleted_in_the_end(slow: bool) -> bool {
    let dir = Scratch::new();
    let (c, fake) = node(&dir).await;
    for command in [
        Command::CreatePool(ram_pool("mem", GIB)),
        Command::CreateVolume(volume("v", "mem", 16 * MIB)),
    ] {
        c.execute(command).await.expect("it can be so");
    }
    c.declare_at_start(Desired { maps: Vec::new(), ..file(Vec::new()) }).await;
    assert_eq!(faults(&c).await, ["declared/volume/v"], "set-up: it is larger");
    if slow {
        fake.state().late.insert("delete_volume_data v".into(), Duration::from_secs(3));
        c.execute(delete_volume("v")).await.expect("it goes on");
        fake.state().late.clear();
    } else {
        fake.break_call("delete_volume_data v");
        c.execute(delete_volume("v")).await.expect_err("not at once");
        fake.mend();
    }
    let begun = std::time::Instant::now();
    while c.model().volumes.get("v").is_some_and(|v| v.size > 8 * MIB) {
        assert!(begun.elapsed() < Duration::from_secs(60), "it goes on");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tried_again(&c).await;
    tried_again(&c).await;
    c.model().volumes.contains_key("v")
}

#[tokio::test]
async fn a_volume_whose_deletion_takes_long_does_not_come_back() {
    assert!(!deleted_in_the_end(false).await);
    assert!(!deleted_in_the_end(true).await);
}

#[tokio::test]
async fn a_volume_that_is_about_to_be_gone_is_not_as_declared() {
    let dir = Scratch::new();
    let (c, fake) = node(&dir).await;
    let declared =
        Desired { hosts: Vec::new(), maps: Vec::new(), targets: Vec::new(), ..file(Vec::new()) };
    assert_eq!(c.apply(declared.clone().into()).await.expect("a report").failed, []);
    fake.break_call("delete_volume_data v");
    c.execute(delete_volume("v")).await.expect_err("not at once");
    let r = c.apply(declared.into()).await.expect("a report");
    assert_eq!(failed(&r), [("volume/v".to_string(), Code::VolumeDeleting)]);
}

/// The file of a start moves a port, and has a pool that takes its time. Somebody applies another file meanwhile, so that the port is
/// left for later. Whether it listens within so many seconds.
async fn untried_beside_another_file(seconds: u64) -> bool {
    let dir = Scratch::new();
    let before = node(&dir).await.0;
    before.execute(Command::PutTarget(target("srp0", "127.0.0.1:4444"))).await.expect("a port");
    before.shutdown().await.expect("an end");
    gone(before).await;
    let fake = Arc::new(Fake::default());
    for name in ["slow", "other"] {
        fake.state().slow_pools.insert(name.into(), Duration::from_secs(3));
    }
    let slow = |name| Desired { pools: vec![ram_pool(name, GIB)], ..Desired::default() };
    let declared = Desired { targets: file(Vec::new()).targets, ..slow("slow") };
    let c = up(&dir, fake.clone(), &[], declared.clone(), Stopping::default()).await;
    let start = c.clone();
    let round = tokio::spawn(async move { start.declare_at_start(declared).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(c.apply(slow("other").into()).await.expect("a report").failed, []);
    round.await.expect("a round");
    assert!(fake.state().targets.is_empty(), "set-up: it was left for later");
    assert_eq!(faults(&c).await, Vec::<String>::new(), "set-up: nothing is told");
    let listens = async || {
        while fake.state().targets.is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(seconds), listens()).await.is_ok()
}

#[tokio::test]
async fn what_an_apply_was_in_the_way_of_is_tried_again() {
    assert!(untried_beside_another_file(60).await);
}

/// A volume is to be larger, and moves. The migration ends without an effect. How large it is in the end.
async fn after_a_migration() -> u64 {
    let dir = Scratch::new();
    let (c, _fake) = node(&dir).await;
    for command in [
        Command::CreatePool(ram_pool("mem", GIB)),
        Command::CreatePool(ram_pool("other", GIB)),
        Command::CreateVolume(volume("v", "mem", 8 * MIB)),
    ] {
        c.execute(command).await.expect("it can be so");
    }
    let to = MigrationSpec { pool: Some("other".into()), ..MigrationSpec::default() };
    c.start_migration("v".into(), to).await.expect("it moves");
    let larger = vec![volume("v", "mem", 16 * MIB)];
    c.declare_at_start(Desired { volumes: larger, ..Desired::default() }).await;
    assert_eq!(faults(&c).await, ["declared/volume/v"], "set-up: it moves");
    c.cancel_migration("v".into()).await.expect("it stays");
    for _ in 0..3 {
        tried_again(&c).await;
    }
    c.model().volume("v").expect("a volume").size
}

#[tokio::test]
async fn what_is_declared_is_not_given_up_for_another_change() {
    assert_eq!(after_a_migration().await, 16 * MIB);
}

/// The same, but the volume gets where it moves to. What is told of it in the end.
async fn after_it_has_moved() -> Vec<String> {
    let dir = Scratch::new();
    let (c, fake) = node(&dir).await;
    for command in [
        Command::CreatePool(ram_pool("mem", GIB)),
        Command::CreatePool(ram_pool("other", GIB)),
        Command::CreateVolume(volume("v", "mem", 8 * MIB)),
    ] {
        c.execute(command).await.expect("it can be so");
    }
    fake.state().moves.insert("v".into(), "copying".into());
    let to = MigrationSpec { pool: Some("other".into()), ..MigrationSpec::default() };
    c.start_migration("v".into(), to).await.expect("it moves");
    let larger = vec![volume("v", "mem", 16 * MIB)];
    c.declare_at_start(Desired { volumes: larger, ..Desired::default() }).await;
    assert_eq!(faults(&c).await, ["declared/volume/v"], "set-up: it moves");
    fake.state().moves.insert("v".into(), "ready".into());
    until("it has moved", async || c.model().volumes["v"].migration.is_none()).await;
    assert_eq!(c.model().volumes["v"].pool, "other");
    tried_again(&c).await;
    faults(&c).await
}

#[tokio::test]
async fn a_volume_that_was_moved_is_not_told_as_elsewhere_than_declared() {
    assert_eq!(after_it_has_moved().await, [""; 0]);
}

/// A host cannot have its port yet. It gets a secret meanwhile, which nobody has declared. Which ports it has in the end.
async fn after_another_part() -> Vec<InitiatorPort> {
    let dir = Scratch::new();
    let (c, _fake) = node(&dir).await;
    for h in [host("z", &["1:4"]), host("h", &["1:3"])] {
        c.execute(Command::CreateHost(h)).await.expect("made");
    }
    c.declare_at_start(Desired { hosts: vec![host("h", &["1:4"])], ..Desired::default() }).await;
    assert_eq!(faults(&c).await, ["declared/host/h"], "set-up");
    let secret = Some(HostSecret::new(vec![7; 32]).expect("a secret"));
    let patch = HostPatch { secret, ..HostPatch::default() };
    c.execute(Command::PatchHost { name: "h".into(), patch }).await.expect("it has a secret");
    c.execute(Command::DeleteHost { name: "z".into() }).await.expect("the port is free");
    tried_again(&c).await;
    tried_again(&c).await;
    c.model().hosts["h"].ports.clone()
}

#[tokio::test]
async fn what_is_declared_is_not_given_up_for_what_is_not() {
    assert_eq!(after_another_part().await, ports("1:4"));
}

/// A target port cannot be where it is declared. Somebody gives it another identity where it is. Where it is in the end.
async fn a_port_by_hand() -> Vec<String> {
    let dir = Scratch::new();
    let (c, _fake) = node(&dir).await;
    for t in [target("srp0", "127.0.0.1:4444"), target("there", "127.0.0.1:5555")] {
        c.execute(Command::PutTarget(t)).await.expect("a port");
    }
    let declared = vec![target("srp0", "127.0.0.1:5555")];
    c.declare_at_start(Desired { targets: declared, ..Desired::default() }).await;
    assert_eq!(faults(&c).await, ["declared/target/srp0"], "set-up");
    let guid = Some("0000000000000007".parse().expect("a number"));
    let other = TargetSpec { ioc_guid: guid, ..target("srp0", "127.0.0.1:4444") };
    c.execute(Command::PutTarget(other)).await.expect("by hand");
    c.execute(Command::DeleteTarget { name: "there".into() }).await.expect("it is free");
    tried_again(&c).await;
    tried_again(&c).await;
    c.model().targets["srp0"].listen.clone()
}

#[tokio::test]
async fn a_port_that_was_changed_by_hand_stays_so() {
    assert_eq!(a_port_by_hand().await, ["127.0.0.1:4444"]);
}

/// A port may be given to another host by hand as ever.
#[tokio::test]
async fn by_hand_a_port_is_taken_from_a_host_that_is_logged_in() {
    let dir = Scratch::new();
    let (c, fake) = node(&dir).await;
    c.apply(file(vec![host("h", &["1:3"])]).into()).await.expect("a report");
    logs_in(&fake);
    let (add_ports, remove_ports) = (ports("1:4"), ports("1:3"));
    let patch = HostPatch { add_ports, remove_ports, ..HostPatch::default() };
    c.execute(Command::PatchHost { name: "h".into(), patch }).await.expect("by hand");
}

#[cfg(feature = "planted")]
mod planted {
    use super::*;
    use weir_control::planted::{Bug, plant};

    async fn with<T>(bug: Bug, run: impl Future<Output = T>) -> T {
        plant(Some(bug));
        let found = run.await;
        plant(None);
        found
    }

    #[tokio::test]
    async fn what_is_tried_again_under_hosts_is_seen() {
        assert_eq!(with(Bug::RetriesTakeInUse, tried_again_under_a_host()).await, ports("1:4"));
    }

    #[tokio::test]
    async fn what_is_taken_from_anybody_is_seen() {
        assert_eq!(with(Bug::PortsTakenInUse, named_under_a_host()).await, []);
    }

    #[tokio::test]
    async fn what_is_forgotten_while_owed_is_seen() {
        assert!(!with(Bug::DeclaredThoughOwed, tried_again_while_owed()).await);
    }

    #[tokio::test]
    async fn a_stale_round_is_seen() {
        assert!(with(Bug::DeclaredAsItWas, a_round_beside_another_file()).await);
    }

    #[tokio::test]
    async fn what_waits_for_a_key_is_seen() {
        assert!(!with(Bug::AllWaitForKeys, beside_a_key_that_hangs()).await.0);
    }

    #[tokio::test]
    async fn a_port_that_waits_for_a_key_is_seen() {
        assert!(!with(Bug::PortsWaitForKeys, beside_a_key_that_hangs()).await.1);
    }

    #[tokio::test]
    async fn what_is_not_tried_again_is_seen() {
        assert!(!with(Bug::OpenUntried, untried_beside_another_file(20)).await);
    }

    #[tokio::test]
    async fn what_is_given_up_for_another_change_is_seen() {
        assert_eq!(with(Bug::AnyChangeFulfils, after_a_migration()).await, 8 * MIB);
    }

    #[tokio::test]
    async fn what_is_told_of_what_has_moved_is_seen() {
        let told = with(Bug::MovingIsNoWish, after_it_has_moved()).await;
        assert_eq!(told, ["declared/volume/v"]);
    }

    #[tokio::test]
    async fn what_is_given_up_for_another_part_is_seen() {
        assert_eq!(with(Bug::AnyPartFulfils, after_another_part()).await, ports("1:3"));
    }

    #[tokio::test]
    async fn a_port_that_is_taken_for_unchanged_is_seen() {
        assert_eq!(with(Bug::PortsGoByFacts, a_port_by_hand()).await, ["127.0.0.1:5555"]);
    }

    #[tokio::test]
    async fn what_comes_back_is_seen() {
        assert!(with(Bug::DeletedComesBack, deleted_in_the_end(false)).await);
    }
}
