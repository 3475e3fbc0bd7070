//! A mapping that one initiator port of a host is to lose: whoever has the volume by another port keeps it.

use crate::fake::Fake;
use crate::support::*;
use std::sync::Arc;
use std::time::Duration;
use weir_control::client::{Client, Endpoint};
use weir_control::model::{Command, InitiatorPort};
use weir_control::server::{SOCKET, Server};
use weir_control::{Code, Controller};

async fn run(c: &Arc<Controller>, command: Command) {
    c.execute(command).await.expect("done");
}

/// Host `h` sees `v`, by two ports.
async fn node(dir: &Scratch) -> (Arc<Fake>, Arc<Controller>, Client) {
    let fake = Arc::new(Fake::default());
    fake.state().empty = true;
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    run(&c, Command::CreatePool(ram_pool("mem", GIB))).await;
    run(&c, Command::CreateVolume(volume("v", "mem", 1 << 20))).await;
    run(&c, Command::CreateHost(host("h", &["1:2", "1:3"]))).await;
    run(&c, Command::CreateMap(map("h", "v"))).await;
    run(&c, Command::PutTarget(target("srp0", "127.0.0.1:5555"))).await;
    let server = Server::bind(c.clone(), None, None).await.expect("bound");
    tokio::spawn(server.run(std::future::pending()));
    let client = Client::new(Endpoint::Unix(dir.path().join(SOCKET)), None);
    (fake, c, client)
}

/// Port `1:N` logs in, and the daemon sees it.
async fn logs_in(fake: &Fake, c: &Arc<Controller>, n: u64) {
    {
        let mut s = fake.state();
        (s.empty, s.initiator) = (false, Some(InitiatorPort::new(1, n).to_string()));
    }
    run(c, Command::CreateHost(host("x", &["8:8"]))).await;
    run(c, Command::DeleteHost { name: "x".into() }).await;
}

#[tokio::test]
async fn another_port_keeps_the_volume_also_while_it_is_away() {
    let dir = Scratch::new();
    let (fake, c, client) = node(&dir).await;
    let port = InitiatorPort::new(1, 2);
    logs_in(&fake, &c, 3).await;
    for force in [false, true] {
        let e = client.delete_map_of("h", "v", port, force).await.expect_err("it is in use");
        assert!(e.code == Code::VolumeMapped && e.reason.contains("is logged in"), "{e}");
    }
    fake.state().empty = true;
    for force in [false, true] {
        let e = client.delete_map_of("h", "v", port, force).await.expect_err("it may come back");
        assert!(e.code == Code::VolumeMapped && e.reason.contains("s ago"), "{e}");
        assert!(e.hint.contains("weir map delete h v"), "{e:?}");
    }
    assert!(c.model().map("h", "v").is_ok());
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(601)).await;
    tokio::time::resume();
    client.delete_map_of("h", "v", port, true).await.expect("nobody is there");
    assert!(c.model().map("h", "v").is_err());
    let e = client.delete_map_of("h", "v", port, true).await.expect_err("it is gone");
    assert_eq!(e.code, Code::MapNotFound);
}

#[tokio::test]
async fn the_port_itself_loses_it_by_force_or_once_it_has_logged_out() {
    let dir = Scratch::new();
    let (fake, c, client) = node(&dir).await;
    let port = InitiatorPort::new(1, 2);
    logs_in(&fake, &c, 2).await;
    let e = client.delete_map_of("h", "v", port, false).await.expect_err("it is logged in");
    assert_eq!(e.code, Code::VolumeMapped);
    client.delete_map_of("h", "v", port, true).await.expect("by force");
    run(&c, Command::CreateMap(map("h", "v"))).await;
    fake.state().empty = true;
    client.delete_map_of("h", "v", port, false).await.expect("that it was there says nothing");
}
