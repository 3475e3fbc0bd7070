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

/// A daemon that refuses one request, and says yes to others; gives what it was asked for.
fn refusing(path: &std::path::Path, what: &'static str, status: u16, code: &'static str) -> Asked {
    use std::io::{Read, Write};
    let listener = std::os::unix::net::UnixListener::bind(path).unwrap();
    let asked = Asked::default();
    let lines = asked.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut request) = (stream.unwrap(), [0; 4096]);
            let n = stream.read(&mut request).unwrap();
            let line = String::from_utf8_lossy(&request[..n]).lines().next().unwrap().to_owned();
            let (status, body) = match line.contains(what) {
                true => {
                    let e = Error::new(Code::Internal, "no").problem();
                    let mut e = serde_json::to_value(e).unwrap();
                    (e["code"], e["status"]) = (code.into(), status.into());
                    (status, e.to_string())
                }
                false => (200, serde_json::to_string(&host("h", &[], false)).unwrap()),
            };
            lines.lock().unwrap().push(line);
            let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n", body.len());
            stream.write_all(format!("{head}connection: close\r\n\r\n{body}").as_bytes()).unwrap();
        }
    });
    asked
}

type Asked = std::sync::Arc<std::sync::Mutex<Vec<String>>>;

/// Whoever was faster has the host or the port: nothing of that is this attachment's to take back.
#[test]
fn what_the_daemon_has_refused_is_not_taken_for_made() {
    let dir = std::env::temp_dir().join(format!("weir-refused-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir(&dir).unwrap();
    for (n, (made_host, what, status, code, noted)) in [
        (true, "/v1/hosts", 409, "host_exists", false),
        (true, "/v1/hosts", 409, "port_in_use", false),
        // It may have made it.
        (true, "/v1/hosts", 500, "internal", true),
        (false, "/v1/maps", 409, "lun_in_use", false),
        (false, "/v1/maps", 500, "internal", true),
        // The host is there.
        (true, "/v1/maps", 409, "lun_in_use", true),
    ]
    .into_iter()
    .enumerate()
    {
        let socket = dir.join(n.to_string());
        let asked = refusing(&socket, what, status, code);
        let client = Client::new(Endpoint::Unix(socket), None);
        let mapped = Mapped {
            server: client.endpoint().to_string(),
            host: "h".into(),
            made_host,
            volume: "v".into(),
            naa: "6001".into(),
            lun: None,
            shared: false,
        };
        let mut last = None;
        let mut note = |m: Option<&Mapped>| {
            last = m.cloned();
            Ok(())
        };
        let secret = made_host.then_some(None);
        let port = InitiatorPort::new(1, 2);
        let said = ask(make(&client, port, mapped, secret, &mut note)).unwrap_err();
        assert_eq!(last.is_some(), noted, "{code}: {said:?}");
        let asked = asked.lock().unwrap();
        assert!(asked.last().is_some_and(|l| l.contains(what)), "{asked:?}");
        assert!(asked.iter().all(|l| !l.starts_with("DELETE")), "{asked:?}");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}
