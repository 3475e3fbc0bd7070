use super::*;

fn guest() -> Guest {
    Guest {
        name: "DB_02".into(),
        port: InitiatorPort::new(1, 2),
        volume: "v".into(),
        secret_file: None,
        no_map: false,
        shared: false,
    }
}

fn host(name: &str, ports: &[InitiatorPort], allow_any: bool) -> Host {
    let ports = ports.to_vec();
    Host { name: name.into(), ports, allow_any, keyed: false, secret: None }
}

fn map(host: &str, volume: &str) -> Mapping {
    Mapping { host: host.into(), lun: 0, volume: volume.into() }
}

#[test]
fn what_is_missing_is_made_for_this_port_only() {
    let (g, port) = (guest(), InitiatorPort::new(1, 2));
    let all = host("anyone", &[], true);
    let own = host("own", &[InitiatorPort::new(9, 9), port], false);
    let of = |hosts: &[Host], maps: &[Mapping]| missing(hosts, maps, &g);
    let new = || Missing::Host("attach-db_02".into());
    let one = std::slice::from_ref(&all);
    assert_eq!(of(&[], &[]), new());
    assert_eq!(of(one, &[map("anyone", "v")]), Missing::Nothing);
    assert_eq!(of(one, &[map("anyone", "w")]), new(), "not for everybody");
    // Others may be logged in by a port that was given, and see what the host for all sees.
    let shared = Guest { shared: true, ..guest() };
    let found = missing(one, &[], &shared);
    assert_eq!(found, Missing::ForAll("anyone".into()));
    assert_eq!(missing(&[], &[], &shared), new());
    let both = [all, own.clone()];
    // A host that names the port counts, and nothing else.
    assert_eq!(of(&both, &[map("anyone", "v")]), Missing::Mapping("own".into()));
    assert_eq!(of(&both, &[map("own", "v")]), Missing::Nothing);
    let open = host("open", &[port], true);
    for shared in [false, true] {
        let g = Guest { shared, ..guest() };
        let of = |maps: &[Mapping]| missing(std::slice::from_ref(&open), maps, &g);
        assert_eq!(of(&[]), Missing::ForAllAndIt("open".into()));
        assert_eq!(of(&[map("open", "v")]), Missing::Nothing);
    }
    let taken = [host("attach-db_02", &[], false), host("attach-db_02-2", &[], false)];
    assert_eq!(of(&taken, &[]), Missing::Host("attach-db_02-3".into()));
}

#[test]
fn names_of_hosts_can_be_names() {
    for name in ["X", &"y".repeat(64), "a.b_c-d", "9"] {
        assert!(check_name("host", &free_name(&[], name)).is_ok(), "{name}");
    }
}

#[test]
fn a_refusal_says_what_to_type() {
    let (g, port) = (guest(), "0000000000000001:0000000000000002");
    let e = unmapped(&Missing::Host("h".into()), &g);
    let line = format!("weir host create h --port {port}; weir map create h v");
    assert!(e.hint.starts_with(&line), "{}", e.hint);
    assert!(unmapped(&Missing::Mapping("h".into()), &g).hint.starts_with("weir map create h"));
    let e = unmapped(&Missing::ForAllAndIt("h".into()), &g);
    assert!(e.hint.starts_with(&format!("weir host set h --remove-port {port}")), "{}", e.hint);
    let many: Vec<String> = (0..12).map(|i| format!("v{i}")).collect();
    let e = no_volume(many.iter().map(String::as_str), &g);
    assert!(e.reason.ends_with("v9 and 2 more"), "{}", e.reason);
}

#[test]
fn addresses_for_all_are_local_ones() {
    for (at, here) in
        [("0.0.0.0:1", "127.0.0.1:1"), ("[::]:1", "[::1]:1"), ("192.0.2.7:1", "192.0.2.7:1")]
    {
        assert_eq!(local(at.parse().unwrap()), here.parse().unwrap());
    }
}

/// A daemon that answers each request with a status and a body; gives what it was asked for.
fn answering(
    path: &std::path::Path,
    answer: impl Fn(&str) -> (u16, serde_json::Value) + Send + 'static,
) -> Asked {
    use std::io::{Read, Write};
    let listener = std::os::unix::net::UnixListener::bind(path).unwrap();
    let asked = Asked::default();
    let lines = asked.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut request) = (stream.unwrap(), [0; 4096]);
            let n = stream.read(&mut request).unwrap();
            let line = String::from_utf8_lossy(&request[..n]).lines().next().unwrap().to_owned();
            let (status, body) = answer(&line);
            let body = body.to_string();
            lines.lock().unwrap().push(line);
            let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n", body.len());
            stream.write_all(format!("{head}connection: close\r\n\r\n{body}").as_bytes()).unwrap();
        }
    });
    asked
}

/// A daemon that refuses one request, and says yes to others.
fn refusing(path: &std::path::Path, what: &'static str, status: u16, code: &'static str) -> Asked {
    answering(path, move |line| match line.contains(what) {
        true => {
            let e = Error::new(Code::Internal, "no").problem();
            let mut e = serde_json::to_value(e).unwrap();
            (e["code"], e["status"]) = (code.into(), status.into());
            (status, e)
        }
        false => (200, serde_json::to_value(own_host()).unwrap()),
    })
}

/// The host that is made for the attachment.
fn own_host() -> Host {
    host("h", &[InitiatorPort::new(1, 2)], false)
}

type Asked = std::sync::Arc<std::sync::Mutex<Vec<String>>>;

/// What is about to be made.
fn planned(client: &Client, made_host: bool) -> Mapped {
    Mapped {
        server: client.endpoint().to_string(),
        host: "h".into(),
        made_host,
        volume: "v".into(),
        naa: "6001".into(),
        lun: None,
        unmapped: false,
        shared: false,
    }
}

/// A directory for the sockets of a test.
struct Sockets(PathBuf);

impl Sockets {
    fn new(name: &str) -> Sockets {
        let dir = std::env::temp_dir().join(format!("weir-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        Sockets(dir)
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whoever was faster has the host or the port: nothing of that is this attachment's to take back.
#[test]
fn what_the_daemon_has_refused_is_not_taken_for_made() {
    let dir = Sockets::new("refused");
    for (n, (made_host, what, status, code, noted)) in [
        (true, "/v1/hosts", 409, "host_exists", None),
        (true, "/v1/hosts", 409, "port_in_use", None),
        // It may have made it.
        (true, "/v1/hosts", 500, "internal", Some(false)),
        (false, "/v1/maps", 409, "lun_in_use", None),
        (false, "/v1/maps", 500, "internal", Some(false)),
        // The host is there, and its mapping is somebody else's if there is one.
        (true, "/v1/maps", 409, "lun_in_use", Some(true)),
        (true, "/v1/maps", 409, "map_exists", Some(true)),
    ]
    .into_iter()
    .enumerate()
    {
        let socket = dir.0.join(n.to_string());
        let asked = refusing(&socket, what, status, code);
        let client = Client::new(Endpoint::Unix(socket), None);
        let mut last = None;
        let mut note = |m: Option<&Mapped>| {
            last = m.cloned();
            Ok(())
        };
        let (secret, port) = (made_host.then_some(None), InitiatorPort::new(1, 2));
        let said = ask(make(&client, port, planned(&client, made_host), secret, &mut note));
        // What somebody else has mapped for the attachment is as good.
        assert_eq!(said.is_ok(), code == "map_exists", "{code}: {said:?}");
        assert_eq!(last.as_ref().map(|m| m.unmapped), noted, "{code}: {said:?}");
        {
            let asked = asked.lock().unwrap();
            assert!(asked.last().is_some_and(|l| l.contains(what)), "{asked:?}");
            assert!(asked.iter().all(|l| !l.starts_with("DELETE")), "{asked:?}");
        }
        if let Some(made) = last.filter(|m| m.unmapped) {
            let socket = dir.0.join(format!("{n}-end"));
            let asked = answering(&socket, |line| {
                let path = line.split(' ').nth(1).unwrap_or_default();
                let value = match path.split('/').nth(2) {
                    Some("maps") => serde_json::to_value(map("h", "v")),
                    Some("volumes") => Ok(volume("6002")),
                    _ => serde_json::to_value(own_host()),
                };
                (200, value.unwrap())
            });
            let client = Client::new(Endpoint::Unix(socket), None);
            ask(forget(&client, &made, &port.to_string())).unwrap();
            let asked = asked.lock().unwrap();
            assert!(asked.iter().all(|l| !l.starts_with("DELETE /v1/maps")), "{asked:?}");
            assert!(asked.iter().any(|l| l.starts_with("DELETE /v1/hosts")), "{asked:?}");
        }
    }
}

/// The volume of that name with this world-wide name, as its daemon tells it.
fn volume(naa: &str) -> serde_json::Value {
    serde_json::json!({
        "name": "v", "pool": "p", "size": 1 << 20, "block_size": 512, "kind": "ram", "read_only": false,
        "layout": { "layer": "extent", "device": 0, "offset": 0, "length": 1 << 20 },
        "serial": "s", "naa": format!("6{naa:0>31}"),
    })
}

/// Between the question for the volume and its mapping somebody may have made it anew.
#[test]
fn a_mapping_is_taken_back_of_the_volume_that_it_is_of() {
    let dir = Sockets::new("anew");
    let socket = dir.0.join("s");
    let _asked = answering(&socket, |line| match line.contains("/v1/volumes") {
        true => (200, volume("6002")),
        false => (200, serde_json::to_value(map("h", "v")).unwrap()),
    });
    let client = Client::new(Endpoint::Unix(socket), None);
    let mut last = None;
    let mut note = |m: Option<&Mapped>| {
        last = m.cloned();
        Ok(())
    };
    let planned = planned(&client, false);
    let port = InitiatorPort::new(1, 2);
    let made = ask(make(&client, port, planned, None, &mut note)).unwrap();
    assert!(made.as_ref().is_some_and(|m| m.lun == Some(0) && m.naa.ends_with("6002")), "{made:?}");
    assert_eq!(made, last);
}
