//! Devices that do not answer while commands name them: nobody else waits for that.

use crate::fake::{Fake, State};
use crate::support::*;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use weir_control::declare::Desired;
use weir_control::model::{
    AdoptSpec, Command, DeviceKind, ImportSpec, MigrationSpec, PoolPatch, PoolSpec,
};
use weir_control::{Code, Controller, Result, Stopping};

const DISK: &str = "/nowhere/disk";

fn on_disk(name: &str) -> PoolSpec {
    pool(name, &[(DeviceKind::File, Some(DISK), Some(GIB))])
}

/// A node with a pool `p`, and a disk.
struct Node {
    dir: Scratch,
    fake: Arc<Fake>,
    c: Arc<Controller>,
    answers: Arc<Notify>,
}

impl Node {
    async fn new() -> Node {
        let dir = Scratch::new();
        let fake = Arc::new(Fake::default());
        let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
        c.execute(Command::CreatePool(ram_pool("p", GIB))).await.expect("a pool");
        Node { dir, fake, c, answers: Arc::default() }
    }

    async fn is_asked(&self) {
        is_asked(&self.fake).await;
    }

    /// The disk does not answer any more.
    fn hangs(&self) {
        hangs(&self.fake, &self.answers);
    }

    fn answers(&self) {
        self.fake.state().hung_devices.clear();
        self.answers.notify_waiters();
    }

    /// Something that waits for the disk, which does not answer.
    async fn waits<T, F>(&self, makes: impl FnOnce(Arc<Controller>) -> F) -> JoinHandle<Result<T>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.hangs();
        let waits = tokio::spawn(makes(self.c.clone()));
        self.is_asked().await;
        waits
    }

    async fn waits_for(&self, command: Command) -> JoinHandle<Result<()>> {
        self.waits(|c| async move { c.execute(command).await.map(drop) }).await
    }

    /// Another change is made at once.
    async fn others_go_on(&self, name: &str) {
        let other = self.c.execute(Command::CreateVolume(volume(name, "p", 1 << 20)));
        let done = tokio::time::timeout(Duration::from_secs(5), other).await;
        done.expect("others wait").expect("it is made");
    }
}

fn hangs(fake: &Fake, answers: &Arc<Notify>) {
    let mut s = fake.state();
    s.hung_devices.insert(DISK.into(), answers.clone());
    s.asked.clear();
}

/// Somebody waits for the disk.
async fn is_asked(fake: &Fake) {
    let is_at = |s: &State| s.asked.iter().chain(&s.taking).any(|p| p == DISK);
    until("the disk is asked", async || is_at(&fake.state())).await;
}

async fn end<T>(waits: JoinHandle<Result<T>>) -> Result<T> {
    waits.await.expect("no panic")
}

async fn beside_a_new_pool() {
    let n = Node::new().await;
    let makes = n.waits_for(Command::CreatePool(on_disk("new"))).await;
    n.others_go_on("one").await;
    assert!(!makes.is_finished() && !n.c.model().pools.contains_key("new"));
    n.answers();
    end(makes).await.expect("it is made");
    let patch = PoolPatch { add: ram_pool("x", GIB).devices, ..PoolPatch::default() };
    // All of a plain pool's devices are opened when it gets one.
    let adds = n.waits_for(Command::PatchPool { name: "new".into(), patch }).await;
    n.others_go_on("two").await;
    assert!(!adds.is_finished());
    n.answers();
    end(adds).await.expect("it is larger");
}

#[tokio::test]
async fn one_that_hangs_keeps_only_its_own_command_waiting() {
    beside_a_new_pool().await;
}

#[tokio::test]
async fn what_is_moved_to_adopted_or_taken_over_is_asked_before_the_turn_too() {
    let n = Node::new().await;
    n.others_go_on("moves").await;
    let to = MigrationSpec { path: Some(DISK.into()), ..MigrationSpec::default() };
    let moves = n.waits(|c| async move { c.start_migration("moves".into(), to).await }).await;
    n.others_go_on("one").await;
    n.answers();
    end(moves).await.expect("it moves");
    let spec = ImportSpec {
        name: None,
        devices: on_disk("x").devices,
        prefix: String::new(),
        key_commands: false,
        without_hosts: false,
        force: false,
        dry_run: false,
    };
    let imports = n.waits(|c| async move { c.import_pool(spec).await }).await;
    n.others_go_on("two").await;
    n.answers();
    end(imports).await.expect_err("there is no pool");
    let spec = AdoptSpec {
        name: "a".into(),
        path: DISK.into(),
        block_size: None,
        read_only: false,
        serial: None,
    };
    let adopts = n.waits(|c| async move { c.adopt(spec).await }).await;
    n.others_go_on("three").await;
    n.answers();
    end(adopts).await.expect_err("a volume moves to it");
}

#[tokio::test]
async fn of_two_commands_that_name_one_device_the_second_is_refused() {
    let n = Node::new().await;
    let first = n.waits_for(Command::CreatePool(on_disk("first"))).await;
    let second = n.waits_for(Command::CreatePool(on_disk("second"))).await;
    n.others_go_on("one").await;
    n.answers();
    end(first).await.expect("it is made");
    let e = end(second).await.expect_err("the disk is the first one's");
    assert_eq!(e.code, Code::DeviceInUse, "{e}");
    assert!(!n.c.model().pools.contains_key("second"));
}

/// Nothing is kept by asking: what becomes of a device and its pool until the turn is seen there.
#[tokio::test]
async fn what_changes_between_the_asking_and_the_turn_is_seen() {
    let n = Node::new().await;
    let makes = n.waits_for(Command::CreatePool(on_disk("new"))).await;
    n.c.execute(Command::CreatePool(ram_pool("new", GIB))).await.expect("the name is free");
    n.answers();
    let e = end(makes).await.expect_err("the name is another's by now");
    assert_eq!(e.code, Code::PoolExists, "{e}");
    let patch = PoolPatch { add: on_disk("x").devices, ..PoolPatch::default() };
    let adds = n.waits_for(Command::PatchPool { name: "new".into(), patch }).await;
    n.c.execute(Command::DeletePool { name: "new".into() }).await.expect("it is deleted");
    n.answers();
    let e = end(adds).await.expect_err("its pool is gone");
    assert_eq!(e.code, Code::PoolNotFound, "{e}");
    assert!(!n.fake.state().pools.contains_key("new"));
    // The disk itself goes: it is another program's when it is taken.
    let makes = n.waits_for(Command::CreatePool(on_disk("new"))).await;
    n.fake.state().taken.insert(DISK.into());
    n.answers();
    end(makes).await.expect_err("it is in use");
    assert!(!n.c.model().pools.contains_key("new"));
}

/// Whoever has sent it is gone: it comes to its end as any other.
#[tokio::test]
async fn one_that_is_given_up_while_it_asks_comes_to_its_end() {
    let n = Node::new().await;
    n.waits_for(Command::CreatePool(on_disk("new"))).await.abort();
    n.others_go_on("one").await;
    n.answers();
    until("it is made", async || n.c.model().pools.contains_key("new")).await;
    n.c.execute(Command::DeletePool { name: "new".into() }).await.expect("it is as any other");
}

#[tokio::test]
async fn a_stop_does_not_wait_for_one_that_hangs() {
    let n = Node::new().await;
    let makes = n.waits_for(Command::CreatePool(on_disk("new"))).await;
    let other = n.waits_for(Command::CreatePool(on_disk("other"))).await;
    n.c.shutdown().await.expect("all of it is closed");
    for asks in [makes, other] {
        let e = end(asks).await.expect_err("it is refused");
        assert!(e.to_string().contains("being stopped"), "{e}");
    }
    assert!(n.c.model().pools.len() == 1 && n.fake.state().pools.is_empty());
}

/// Whether all else that a file declares is there soon, beside a pool whose disk does not answer.
async fn declared_beside() -> bool {
    let Node { dir, fake, c, answers } = Node::new().await;
    c.shutdown().await.expect("its end");
    gone(c).await;
    // It has the store as well.
    drop(fake);
    let fake = Arc::new(Fake::default());
    hangs(&fake, &answers);
    let declared = Desired {
        pools: vec![on_disk("a-new"), ram_pool("b-new", GIB)],
        volumes: vec![volume("of-a", "a-new", 1 << 20), volume("of-b", "b-new", 1 << 20)],
        hosts: vec![host("h", &["1:2"]), host("i", &["1:3"])],
        maps: vec![map("h", "of-b"), map("i", "of-a"), map("i", "of-b")],
        targets: vec![target("srp0", "127.0.0.1:4444")],
    };
    let c = up(&dir, fake.clone(), &[], declared.clone(), Stopping::default()).await;
    let me = c.clone();
    let round = tokio::spawn(async move { me.declare_at_start(declared).await });
    is_asked(&fake).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let soon = c.model().map("h", "of-b").is_ok() && fake.state().targets.contains_key("srp0");
    // What comes after it in the file gets no number that it is to have.
    assert!(c.model().map("i", "of-b").is_err());
    fake.state().hung_devices.clear();
    answers.notify_waiters();
    round.await.expect("a round");
    let lun = |volume| c.model().map("i", volume).map(|m| m.lun).expect("a mapping");
    assert!(lun("of-a") < lun("of-b"));
    soon
}

#[tokio::test]
async fn a_declared_pool_that_hangs_keeps_nothing_else_of_the_file_waiting() {
    assert!(declared_beside().await);
}

#[cfg(feature = "planted")]
mod planted {
    use super::*;
    use weir_control::planted::{Bug, plant};

    #[tokio::test]
    #[should_panic(expected = "others wait")]
    async fn devices_that_are_asked_among_changes_are_seen() {
        plant(Some(Bug::AskedAmongChanges));
        beside_a_new_pool().await;
    }

    #[tokio::test]
    async fn what_waits_for_a_device_of_another_pool_is_seen() {
        plant(Some(Bug::AllWaitForKeys));
        assert!(!declared_beside().await);
    }
}
