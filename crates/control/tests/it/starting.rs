//! The interface while the node starts: it answers, and nothing is changed before what is configured is in effect.

use crate::fake::Fake;
use crate::support::*;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use weir_control::client::{Client, Endpoint};
use weir_control::declare::Desired;
use weir_control::model::Command;
use weir_control::server::{SOCKET, Server};
use weir_control::{Code, Controller, Result, Stopping};

/// A node that has a pool `a` with a volume, which hangs, and a port, and is to have a host `new`. Its start has not begun.
struct Starts {
    dir: Scratch,
    fake: Arc<Fake>,
    answers: Arc<Notify>,
    c: Arc<Controller>,
    client: Client,
    declared: Desired,
    served: JoinHandle<Result<()>>,
}

async fn starts() -> Starts {
    let dir = Scratch::new();
    let before = Controller::start(dir.path(), Arc::new(Fake::default())).await.expect("started");
    for command in [
        Command::CreatePool(ram_pool("a", GIB)),
        Command::CreateVolume(volume("v", "a", GIB / 2)),
        Command::PutTarget(target("srp0", "127.0.0.1:5555")),
    ] {
        before.execute(command).await.expect("it can be so");
    }
    before.shutdown().await.expect("its end");
    gone(before).await;
    let (fake, answers) = (Arc::new(Fake::default()), Arc::new(Notify::new()));
    fake.state().hung_pools.insert("a".into(), answers.clone());
    let declared = Desired { hosts: vec![host("new", &["1:2"])], ..Desired::default() };
    let (all, stopping) = (declared.clone(), Stopping::default());
    let c = Controller::open(dir.path(), fake.clone(), Vec::new(), all, stopping.clone()).await;
    let c = c.expect("a controller");
    let server = Server::bind(c.clone(), None, None).await.expect("bound");
    let client = Client::new(Endpoint::Unix(server.socket().to_path_buf()), None);
    let served = tokio::spawn(server.run(stopping.begun()));
    Starts { dir, fake, answers, c, client, declared, served }
}

impl Starts {
    /// A command, and its result when that is there.
    fn asks(&self, name: &str) -> JoinHandle<Result<()>> {
        let (client, spec) = (self.client.clone(), host(name, &["7:8"]));
        tokio::spawn(async move { client.create_host(&spec).await.map(drop) })
    }
}

async fn told_and_unchanged() {
    let s = starts().await;
    // Before anything is brought up.
    let status = s.client.status().await.expect("it answers");
    let starting = status.starting.expect("it starts");
    assert_eq!(
        (&starting.pools[..], &starting.declared[..]),
        (&["a".into()][..], &["host/new".into()][..])
    );
    assert!(starting.since_ms > 0);
    assert_eq!(s.client.volumes().await.expect("a list").len(), 1);
    let mut raw = UnixStream::connect(s.dir.path().join(SOCKET)).await.expect("connected");
    let get = "GET /v1/metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    raw.write_all(get.as_bytes()).await.expect("sent");
    let mut metrics = String::new();
    raw.read_to_string(&mut metrics).await.expect("an answer");
    assert!(metrics.contains("\nweir_starting 1\n"), "{metrics}");
    let asks = s.asks("early");
    // What answers after it has been taken after it.
    for _ in 0..20 {
        s.client.status().await.expect("it answers");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!asks.is_finished() && s.c.model().hosts.is_empty(), "the command is not waited with");
    // While it comes up, and when only what is declared is not so yet.
    s.c.come_up().await.expect("it comes up");
    let starting = s.client.status().await.expect("it answers").starting.expect("it starts");
    assert_eq!((starting.pools.len(), starting.declared.len()), (1, 1));
    assert!(!asks.is_finished() && s.c.model().hosts.is_empty());
    s.c.declare_at_start(s.declared.clone()).await;
    let starting = s.client.status().await.expect("it answers").starting.expect("it starts");
    assert_eq!((starting.pools.len(), starting.declared.len()), (1, 0));
    assert!(!asks.is_finished());
    s.c.started();
    asks.await.expect("no panic").expect("it is made");
    let status = s.client.status().await.expect("it answers");
    assert_eq!(status.starting, None);
    assert!(status.faults.iter().any(|f| f.object == "pool/a"), "{:?}", status.faults);
    s.answers.notify_waiters();
    s.c.shutdown().await.expect("its end");
    s.served.await.expect("no panic").expect("the interface's end");
}

#[tokio::test]
async fn what_the_node_has_is_told_from_the_first_moment_and_nothing_is_changed() {
    told_and_unchanged().await;
}

#[tokio::test]
async fn a_command_is_refused_when_the_start_takes_long() {
    let s = starts().await;
    tokio::time::pause();
    let (client, spec) = (s.client.clone(), host("early", &["7:8"]));
    let e = client.create_host(&spec).await.expect_err("it is refused");
    assert_eq!((e.code, e.kind().http_status()), (Code::Starting, 503));
    let mut raw = UnixStream::connect(s.dir.path().join(SOCKET)).await.expect("connected");
    let delete = "DELETE /v1/volumes/v HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    raw.write_all(delete.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    raw.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("retry-after: "), "{answer}");
    tokio::time::resume();
    assert!(s.c.model().hosts.is_empty() && s.c.model().volumes.contains_key("v"));
    assert_eq!(s.fake.state().calls, Vec::<String>::new(), "nothing was brought up for it");
}

#[tokio::test]
async fn a_stop_in_the_midst_of_a_start_ends_who_waits_for_it() {
    let s = starts().await;
    let asks = s.asks("early");
    s.client.status().await.expect("it answers");
    s.c.stopping().begin();
    let e = asks.await.expect("no panic").expect_err("it is refused");
    assert!(matches!(e.code, Code::NotReady | Code::DaemonUnreachable), "{e:?}");
    s.c.shutdown().await.expect("its end");
    s.served.await.expect("no panic").expect("the interface's end");
    assert!(s.c.model().hosts.is_empty() && !s.dir.path().join(SOCKET).exists());
}

#[cfg(feature = "planted")]
mod planted {
    use super::*;
    use weir_control::planted::{Bug, plant};

    #[tokio::test]
    #[should_panic(expected = "the command is not waited with")]
    async fn a_command_that_gets_through_is_seen() {
        plant(Some(Bug::CommandsWhileStarting));
        told_and_unchanged().await;
    }
}
