//! A pool that hosts use is let go of by force only.

use crate::fake::Fake;
use crate::support::*;
use std::sync::Arc;
use weir_control::client::{Client, Endpoint};
use weir_control::model::{Command, DeviceKind, PoolSpec, Raid};
use weir_control::server::{SOCKET, Server};
use weir_control::{Code, Controller, Error};

const MIB: u64 = 1 << 20;

/// Host `h` is logged in and sees volume `v` of pool `safe`, which is to be let go of.
async fn released_under_a_host(force: bool) -> (Result<(), Error>, Vec<String>, bool) {
    let dir = Scratch::new();
    let fake = Arc::new(Fake::default());
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    let run = async |command| drop(c.execute(command).await.expect("it is done"));
    let spec = pool("safe", &[(DeviceKind::File, Some("/nowhere/d0"), Some(GIB))]);
    run(Command::CreatePool(PoolSpec { raid: Some(Raid::Zero), ..spec })).await;
    run(Command::CreateVolume(volume("v", "safe", 8 * MIB))).await;
    run(Command::CreateHost(host("h", &["1:2"]))).await;
    run(Command::CreateMap(map("h", "v"))).await;
    run(Command::PutTarget(target("srp0", "127.0.0.1:5555"))).await;
    {
        let mut s = fake.state();
        (s.empty, s.initiator) = (false, Some("0000000000000001:0000000000000002".into()));
    }
    let server = Server::bind(c.clone(), None, None).await.expect("bound");
    tokio::spawn(server.run(std::future::pending()));
    let client = Client::new(Endpoint::Unix(dir.path().join(SOCKET)), None);
    let done = client.release_pool("safe", force).await;
    (done, client.notes(), c.model().pools.contains_key("safe"))
}

#[tokio::test]
async fn hosts_that_are_logged_in_keep_their_volumes() {
    let (done, notes, is_there) = released_under_a_host(false).await;
    let e = done.expect_err("it is in use");
    assert_eq!(e.code, Code::VolumeMapped);
    assert!(e.reason.contains("host `h` is logged in and sees volume `v`"), "{e}");
    assert!(e.hint.contains("--force"), "{}", e.hint);
    assert!(is_there && notes.is_empty(), "{notes:?}");
}

#[tokio::test]
async fn by_force_they_lose_them_and_that_is_said() {
    let (done, notes, is_there) = released_under_a_host(true).await;
    done.expect("released");
    let note = "host `h` was logged in: its commands to volume `v` end with errors; a disk of `weir attach` waits until the pool is back";
    assert_eq!(notes, [note]);
    assert!(!is_there);
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn what_is_taken_unasked_is_seen() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::ReleasedInUse));
    assert!(!released_under_a_host(false).await.2);
    plant(None);
}
