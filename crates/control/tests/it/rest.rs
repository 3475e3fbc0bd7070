//! The REST interface and its client, over both kinds of socket.

use crate::fake::Fake;
use crate::support::*;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use weir_control::client::{Client, Endpoint};
use weir_control::config::Tokens;
use weir_control::model::{HostPatch, PoolPatch, VolumePatch};
use weir_control::server::{SOCKET, Server, openapi_document};
use weir_control::{Code, Controller, Kind};

/// The token of role read.
const READ: &str = "only-to-look-at-it";

struct Node {
    client: Client,
    tcp: Option<std::net::SocketAddr>,
    stop: oneshot::Sender<()>,
    ended: tokio::task::JoinHandle<weir_control::Result<()>>,
}

async fn node(dir: &Path, tcp: bool, token: Option<&str>) -> Node {
    let controller = Controller::start(dir, Arc::new(Fake::default())).await.expect("a controller");
    let address = tcp.then(|| "127.0.0.1:0".parse().expect("an address"));
    let tokens = token.map(|t| Tokens { admin: t.to_string(), read: READ.to_string() });
    let server = Server::bind(controller, address, tokens).await.expect("bound");
    let client = Client::new(Endpoint::Unix(server.socket().to_path_buf()), None);
    let tcp = server.tcp_address();
    let (stop, stopped) = oneshot::channel::<()>();
    let ended = tokio::spawn(server.run(async move { drop(stopped.await) }));
    Node { client, tcp, stop, ended }
}

/// Sends raw bytes and gives the whole answer as text.
async fn raw(dir: &Path, request: &str) -> String {
    let mut s = UnixStream::connect(dir.join(SOCKET)).await.expect("connected");
    s.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    s.read_to_string(&mut answer).await.expect("an answer");
    answer
}

fn request(method: &str, path: &str, body: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test]
async fn objects_live_and_die_over_the_unix_socket() {
    let dir = Scratch::new();
    let n = node(dir.path(), false, None).await;
    let c = &n.client;
    assert!(c.pools().await.expect("pools").is_empty());
    let p = c.create_pool(&ram_pool("mem", GIB)).await.expect("a pool");
    assert_eq!((p.capacity, p.free), (GIB, GIB));
    let patch =
        PoolPatch { add: ram_pool("x", GIB).devices, grow: Vec::new(), ..PoolPatch::default() };
    assert_eq!(c.patch_pool("mem", &patch).await.expect("larger").capacity, 2 * GIB);
    let v = c.create_volume(&volume("v1", "mem", 1 << 20)).await.expect("a volume");
    let info = c.volume("v1").await.expect("it");
    assert_eq!((info.volume, info.not_served), (v, None));
    let patch = VolumePatch { size: Some(3 << 20), ..VolumePatch::default() };
    assert_eq!(c.patch_volume("v1", &patch).await.expect("larger").size, 3 << 20);
    c.create_host(&host("h1", &["1:2"])).await.expect("a host");
    let patch = HostPatch { allow_any: Some(true), ..HostPatch::default() };
    assert!(c.patch_host("h1", &patch).await.expect("changed").allow_any);
    let m = c.create_map(&map("h1", "v1")).await.expect("a mapping");
    assert_eq!(c.map("h1", "v1").await.expect("it"), m);
    let t = c.put_target(&target("srp0", "127.0.0.1:5555")).await.expect("a target");
    assert_eq!(c.target("srp0").await.expect("it"), t);
    assert_eq!(c.targets().await.expect("all"), [t]);

    let e = c.delete_volume("v1").await.unwrap_err();
    assert_eq!(e.code, Code::VolumeMapped);
    assert!(e.hint.contains("weir map delete h1 v1"), "{e:?}");
    let status = c.status().await.expect("a status");
    assert_eq!((status.pools, status.volumes, status.hosts, status.maps), (1, 1, 1, 1));
    assert_eq!(status.live.volumes[0].name, "v1");

    let page = c.events(0, Duration::ZERO).await.expect("events");
    assert_eq!([&page.events[0].kind, &page.events[1].kind], ["node.started", "pool.created"]);
    let kinds: Vec<&str> = page.events.iter().map(|e| e.kind.as_str()).collect();
    assert!(kinds.contains(&"map.created"), "{kinds:?}");

    c.delete_map("h1", "v1", true).await.expect("unmapped");
    c.delete_volume("v1").await.expect("deleted");
    c.delete_host("h1").await.expect("deleted");
    c.delete_pool("mem").await.expect("deleted");
    c.delete_target("srp0").await.expect("deleted");
    assert_eq!(c.volume("v1").await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(c.volume("../pools").await.unwrap_err().code, Code::InvalidName);

    // A reader that waits for events does not hold up the end.
    let waiting = tokio::spawn({
        let c = c.clone();
        async move { c.events(1 << 20, Duration::from_secs(60)).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    n.stop.send(()).expect("told");
    tokio::time::timeout(Duration::from_secs(10), n.ended)
        .await
        .expect("in time")
        .unwrap()
        .unwrap();
    drop(waiting.await);
    assert!(!dir.path().join(SOCKET).exists());
    assert_eq!(n.client.status().await.unwrap_err().code, Code::DaemonUnreachable);
}

#[tokio::test]
async fn every_wrong_request_gets_a_problem_document() {
    let dir = Scratch::new();
    let _n = node(dir.path(), false, None).await;
    let cases = [
        (request("GET", "/", ""), 404, "not_found"),
        (request("GET", "/v1/volumes/none", ""), 404, "volume_not_found"),
        (request("GET", "/v1/maps/a/b", ""), 404, "host_not_found"),
        (request("PUT", "/v1/pools", ""), 405, "method_not_allowed"),
        (request("POST", "/v1/pools", "{"), 400, "invalid_request"),
        (request("POST", "/v1/pools", r#"{"name":"a"}"#), 400, "invalid_request"),
        (
            request("POST", "/v1/pools", r#"{"name":"a","devices":[],"x":1}"#),
            400,
            "invalid_request",
        ),
        (request("POST", "/v1/pools", r#"{"name":"A","devices":[]}"#), 400, "invalid_name"),
        (request("POST", "/v1/pools", r#"{"name":"a","devices":[]}"#), 400, "invalid_device"),
        (
            request("POST", "/v1/volumes", r#"{"name":"v","pool":"none","size":"1G"}"#),
            404,
            "pool_not_found",
        ),
        (request("POST", "/v1/hosts", r#"{"name":"h","ports":["zz:1"]}"#), 400, "invalid_request"),
        (request("GET", "/v1/events?after=x", ""), 400, "invalid_request"),
        (request("DELETE", "/v1/hosts/%ff", ""), 400, "invalid_request"),
    ];
    for (request, status, code) in cases {
        let first = request.lines().next().unwrap_or("").to_string();
        let answer = raw(dir.path(), &request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{first}: {answer}");
        assert!(answer.contains("content-type: application/problem+json"), "{first}: {answer}");
        let body = answer.split_once("\r\n\r\n").expect("a body").1;
        let problem: serde_json::Value = serde_json::from_str(body).expect("JSON");
        assert_eq!(problem["code"], code, "{first}: {problem}");
        assert_eq!(problem["status"], status, "{first}");
        let hint = problem["hint"].as_str().unwrap_or("");
        assert!(!hint.is_empty(), "{first} says nothing about what to do: {problem}");
    }
    let mut form = request("POST", "/v1/pools", "{}");
    form = form.replace("application/json", "text/plain");
    let answer = raw(dir.path(), &form).await;
    let reason = "Expected request with `Content-Type: application/json`";
    assert!(answer.contains(reason), "a web page cannot post: {answer}");
    let large = request("POST", "/v1/pools", &" ".repeat(9 << 20));
    let mut s = UnixStream::connect(dir.path().join(SOCKET)).await.expect("connected");
    drop(s.write_all(large.as_bytes()).await);
    let mut answer = vec![0; 12];
    s.read_exact(&mut answer).await.expect("an answer");
    assert_eq!(answer, b"HTTP/1.1 400");
}

#[tokio::test]
async fn tcp_wants_the_token() {
    let dir = Scratch::new();
    let n = node(dir.path(), true, Some("correct-horse-battery")).await;
    let at = Endpoint::Tcp(n.tcp.expect("tcp").to_string());
    for token in [None, Some("correct-horse-batterx"), Some("correct"), Some("")] {
        let c = Client::new(at.clone(), token.map(str::to_string));
        assert_eq!(c.status().await.unwrap_err().code, Code::Unauthorized, "{token:?}");
    }
    let c = Client::new(at, Some("correct-horse-battery".into()));
    c.status().await.expect("let in");
    n.client.status().await.expect("the Unix socket wants none");
    // Who it was is told.
    c.create_pool(&ram_pool("over-tcp", GIB)).await.expect("made");
    n.client.create_pool(&ram_pool("here", GIB)).await.expect("made");
    let all = c.events(0, Duration::ZERO).await.expect("events").events;
    let by = |pool: &str| {
        let object = format!("pool/{pool}");
        all.iter().find(|e| e.object == object).map(|e| e.by.clone()).expect("an event")
    };
    assert_eq!(by("over-tcp"), "token:admin");
    assert!(by("here").starts_with("uid:"), "{}", by("here"));
}

#[tokio::test]
async fn a_token_to_read_changes_nothing() {
    let dir = Scratch::new();
    let n = node(dir.path(), true, Some("correct-horse-battery")).await;
    let c = Client::new(Endpoint::Tcp(n.tcp.expect("tcp").to_string()), Some(READ.into()));
    c.status().await.expect("let in");
    let refused = c.create_pool(&ram_pool("mem", GIB)).await.expect_err("refused");
    assert_eq!(refused.code, Code::Unauthorized);
    assert!(n.client.pools().await.expect("pools").is_empty());
}

#[tokio::test]
async fn tcp_is_for_loopback_names_and_no_web_page() {
    let dir = Scratch::new();
    let n = node(dir.path(), true, Some("correct-horse-battery")).await;
    let address = n.tcp.expect("tcp");
    let ask = async |headers: &str| {
        let mut s = TcpStream::connect(address).await.expect("connected");
        let request = format!(
            "GET /v1/status HTTP/1.1\r\n{headers}Connection: close\r\n\
             Authorization: Bearer correct-horse-battery\r\n\r\n"
        );
        s.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        s.read_to_string(&mut answer).await.expect("an answer");
        answer[9..12].to_string()
    };
    assert_eq!(ask(&format!("Host: {address}\r\n")).await, "200");
    for name in ["evil.example:80", "127.evil.example:80", "127.0.0.1.evil.example"] {
        assert_eq!(ask(&format!("Host: {name}\r\n")).await, "401", "{name}");
    }
    let page = format!("Host: {address}\r\nOrigin: http://evil.example\r\n");
    assert_eq!(ask(&page).await, "401");
    // No address without a token.
    for address in ["0.0.0.0:0", "127.0.0.1:0"] {
        let dir = Scratch::new();
        let c = Controller::start(dir.path(), Arc::new(Fake::default())).await.expect("started");
        let e = Server::bind(c, Some(address.parse().unwrap()), None).await.unwrap_err();
        assert_eq!(e.code, Code::InvalidConfig);
    }
}

#[tokio::test]
async fn the_socket_is_private_and_replaces_one_left_by_a_crash() {
    use std::os::unix::fs::PermissionsExt;
    let dir = Scratch::new();
    drop(tokio::net::UnixListener::bind(dir.path().join(SOCKET)).expect("a stale socket"));
    let n = node(dir.path(), false, None).await;
    n.client.status().await.expect("served");
    let mode = std::fs::metadata(dir.path().join(SOCKET)).expect("it").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn many_clients_at_once_get_different_luns() {
    let dir = Scratch::new();
    let n = node(dir.path(), false, None).await;
    n.client.create_pool(&ram_pool("mem", GIB)).await.expect("a pool");
    n.client.create_host(&host("h", &["1:2"])).await.expect("a host");
    let tasks = (0..32).map(|i| {
        let c = n.client.clone();
        tokio::spawn(async move {
            let name = format!("v{i}");
            c.create_volume(&volume(&name, "mem", 1 << 20)).await.expect("a volume");
            // Somebody else wants the same volume mapped: one of the two must be told so.
            let spec = map("h", &name);
            let twice = tokio::join!(c.create_map(&spec), c.create_map(&spec));
            let (won, lost) = match twice {
                (Ok(m), Err(e)) | (Err(e), Ok(m)) => (m, e),
                both => panic!("{both:?}"),
            };
            assert_eq!(lost.code, Code::MapExists);
            won.lun
        })
    });
    let mut luns = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        luns.push(task.await.expect("no panic"));
    }
    luns.sort_unstable();
    assert_eq!(luns, (0..32).collect::<Vec<u16>>());
}

#[tokio::test]
async fn metrics_are_well_formed() {
    let dir = Scratch::new();
    let n = node(dir.path(), false, None).await;
    n.client.create_pool(&ram_pool("mem", GIB)).await.expect("a pool");
    n.client.create_volume(&volume("v1", "mem", 1 << 20)).await.expect("a volume");
    n.client.put_target(&target("srp0", "127.0.0.1:5555")).await.expect("a target");
    let text = n.client.metrics().await.expect("metrics");
    let mut families = std::collections::BTreeSet::new();
    for line in text.lines() {
        if let Some(family) = line.strip_prefix("# TYPE ") {
            let name = family.split(' ').next().unwrap_or("");
            assert!(families.insert(name.to_string()), "{name} twice");
            continue;
        }
        if line.starts_with('#') {
            continue;
        }
        let (series, value) = line.rsplit_once(' ').expect("a value");
        let name = series.split('{').next().unwrap_or("");
        assert!(families.contains(name), "{line} has no family");
        value.parse::<f64>().unwrap_or_else(|_| panic!("{line}"));
    }
    assert!(text.contains("weir_volume_ios_total{volume=\"v1\",direction=\"read\"} "));
    assert!(text.contains("weir_pool_capacity_bytes{pool=\"mem\"} 1073741824\n"));
}

#[tokio::test]
async fn rates_come_from_two_readings() {
    let dir = Scratch::new();
    weir_control::controller::sample_every(Duration::from_secs(1));
    let n = node(dir.path(), false, None).await;
    n.client.create_pool(&ram_pool("mem", GIB)).await.expect("a pool");
    n.client.create_volume(&volume("v1", "mem", 1 << 20)).await.expect("a volume");
    tokio::time::sleep(Duration::from_millis(2300)).await;
    let read = n.client.status().await.expect("a status").live.volumes[0].read;
    // The fake does 1000 reads of 4 KiB between two readings; there are about two in the window.
    assert!((400.0..3000.0).contains(&read.iops), "{read:?}");
    assert!((read.bytes_per_second / read.iops - 4096.0).abs() < 1.0, "{read:?}");
}

#[test]
fn the_checked_in_description_is_the_present_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../openapi/weir.json");
    let present = openapi_document();
    if std::env::var_os("WEIR_UPDATE_OPENAPI").is_some() {
        std::fs::write(&path, &present).expect("written");
    }
    let kept = std::fs::read_to_string(&path).expect("openapi/weir.json");
    assert!(
        kept == present,
        "openapi/weir.json differs from the code; run this test with WEIR_UPDATE_OPENAPI=1 and look at the difference"
    );
}

#[test]
fn the_description_is_one_that_validators_accept() {
    let api: serde_json::Value = serde_json::from_str(&openapi_document()).expect("JSON");
    let mut ids = std::collections::BTreeSet::new();
    for (path, item) in api["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations") {
            let id = operation["operationId"].as_str().expect("an identifier").to_owned();
            assert!(ids.insert(id.clone()), "{method} {path}: another one is `{id}`, too");
            for (status, answer) in operation["responses"].as_object().expect("answers") {
                let text = answer["description"].as_str().unwrap_or_default();
                assert!(!text.is_empty(), "{method} {path}: {status} is not described");
            }
        }
    }
}

/// Nothing is taken down in order before the interface has ended: who is connected and says nothing, or not all that it
/// began to say, must not keep the daemon from ending.
#[tokio::test]
async fn a_client_that_stands_still_does_not_hold_up_the_end() {
    for (what, said) in [
        ("nothing", ""),
        ("half a header, no token", "GET /v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "),
        (
            "half a body, no token",
            "POST /v1/pools HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
             Content-Length: 100\r\n\r\n{",
        ),
        (
            "half a body",
            "POST /v1/pools HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
             Authorization: Bearer correct-horse-battery\r\nContent-Length: 100\r\n\r\n{",
        ),
    ] {
        let dir = Scratch::new();
        let n = node(dir.path(), true, Some("correct-horse-battery")).await;
        let mut s = TcpStream::connect(n.tcp.expect("tcp")).await.expect("connected");
        s.write_all(said.as_bytes()).await.expect("sent");
        tokio::time::sleep(Duration::from_millis(300)).await;
        let Node { stop, ended, .. } = n;
        drop(stop);
        let ended = tokio::time::timeout(Duration::from_secs(15), ended).await;
        assert!(ended.is_ok(), "the interface has not ended 15 s after it was told to: {what}");
        drop(s);
    }
}

/// Whoever reaches the address, with no token at all, must not keep as many connections as there are descriptors: then no
/// host could log in either.
#[tokio::test]
async fn who_never_finishes_its_request_is_dropped() {
    let dir = Scratch::new();
    let n = node(dir.path(), true, Some("correct-horse-battery")).await;
    let address = n.tcp.expect("tcp");
    let mut all = Vec::new();
    for i in 0..300 {
        let mut s = TcpStream::connect(address).await.expect("connected");
        if i % 2 == 0 {
            s.write_all(b"GET /v1/status HTTP/1.1\r\nHo").await.expect("sent");
        }
        all.push(s);
    }
    // Meanwhile the socket is served.
    n.client.status().await.expect("a status");
    tokio::time::sleep(Duration::from_secs(45)).await;
    let mut open = 0;
    for s in &mut all {
        let mut b = [0];
        let read = tokio::time::timeout(Duration::from_millis(5), s.read(&mut b)).await;
        open += usize::from(read.is_err());
    }
    assert!(open < 300, "{open} connections without a request are open after 45 s");
}

/// A body that does not come in time is answered, and one that is too long; neither keeps a connection.
#[tokio::test]
async fn a_body_that_does_not_come_is_refused() {
    let dir = Scratch::new();
    let _n = node(dir.path(), false, None).await;
    let head = "POST /v1/pools HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n";
    let late = format!("{head}Content-Length: 100\r\n\r\n{{");
    let late = raw(dir.path(), &late);
    let answer = tokio::time::timeout(Duration::from_secs(45), late).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("30 s"), "{answer}");
    let long = raw(dir.path(), &format!("{head}Content-Length: 100000000\r\n\r\n{{")).await;
    assert!(long.starts_with("HTTP/1.1 400 ") && long.contains("8 MiB"), "{long}");
}
