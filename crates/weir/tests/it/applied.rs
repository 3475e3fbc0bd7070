//! `weir apply`, the notes of other commands about what the configuration file declares, and target ports that move:
//! the real program, plain pools in memory.

use crate::common::{Daemon, texts, weir};
use serde_json::Value;
use std::net::TcpListener;

const FILE: &str = "
[[pool]]
name = 'mem'
devices = [{ kind = 'ram', size = '64M' }]
[[volume]]
name = 'a'
pool = 'mem'
size = '8M'
[[volume]]
name = 'b'
pool = 'mem'
size = '8M'
[[host]]
name = 'h'
ports = ['1:2']
[[map]]
host = 'h'
volume = 'a'
";

/// A daemon that has started with the file, and what is behind that.
fn node(name: &str, more: &str) -> Daemon {
    let mut d = Daemon::new(name);
    std::fs::write(d.path("weir.toml"), format!("{FILE}{more}")).expect("written");
    d.start();
    d
}

/// Exit code, standard output and standard error of a command line.
fn run(d: &Daemon, line: &str) -> (Option<i32>, String, String) {
    let out = weir(&d.dir, &line.split_whitespace().collect::<Vec<_>>());
    let (stdout, stderr) = texts(&out);
    (out.status.code(), stdout, stderr)
}

/// Names in a list of a report.
fn names(report: &Value, list: &str) -> Vec<String> {
    let all = report[list].as_array().expect("a list").iter();
    all.map(|o| o["object"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn the_rest_of_a_file_is_applied_and_what_failed_is_told() {
    let d = node("applied-rest", "");
    d.ok("volume resize b 16M");
    d.ok("map delete h a");
    let apply = format!("apply {}", d.path("weir.toml"));
    // First only what would be.
    let (code, out, err) = run(&d, &format!("{apply} --dry-run"));
    assert_eq!(code, Some(4), "{out}{err}");
    for words in ["+ map/h/a", "    LUN 0", "! volume/b", "why: it has 16 MiB", "nothing was done"]
    {
        assert!(out.contains(words), "{words}: {out}");
    }
    assert!(err.contains("1 object(s) would not be as the file declares"), "{err}");
    assert_eq!(d.json("map list"), serde_json::json!([]));
    let (code, out, err) = run(&d, &format!("{apply} --json"));
    assert_eq!(code, Some(4), "{out}{err}");
    let report: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(names(&report, "applied"), ["map/h/a"]);
    assert_eq!(names(&report, "failed"), ["volume/b"]);
    assert_eq!((&report["unchanged"], &report["dry_run"]), (&3.into(), &false.into()));
    let error = &report["failed"][0]["error"];
    assert_eq!(error["code"], "shrink_refused");
    assert!(error["reason"].is_string() && error["hint"].is_string(), "{error}");
    assert_eq!(d.json("map list")[0]["volume"], "a");
    // What is not named goes if that is wanted, and data only if that is confirmed.
    d.ok("host create other --port 7:7");
    d.ok("volume create c --size 1M");
    let (code, out, _) = run(&d, &format!("{apply} --prune"));
    assert_eq!(code, Some(4), "{out}");
    assert!(out.contains("- host/other") && out.contains("! volume/c"), "{out}");
    assert!(out.contains("do: name it in the file; or confirm with --yes"), "{out}");
    let report = run(&d, &format!("{apply} --prune --yes --dry-run --json")).1;
    let report: Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(names(&report, "applied"), ["volume/c"]);
    d.ok("volume show c");
    let (_, out, _) = run(&d, &format!("{apply} --prune --yes"));
    assert!(out.contains("- volume/c"), "{out}");
    assert_eq!(d.fails("volume show c", 3).0, "volume_not_found");
    assert!(d.port("srp0").is_some(), "a file without ports says nothing of them");
}

#[test]
fn a_change_that_the_next_start_takes_back_is_noted() {
    let more = "[[pool]]\nname = 'more'\ndevices = [{ kind = 'ram', size = '64M' }]\n[[volume]]\nname = 'c'\npool = 'more'\nsize = '8M'";
    let mut d = node("applied-noted", more);
    let note = |line: &str, words: &[&str]| {
        let (code, out, err) = run(&d, line);
        assert_eq!(code, Some(0), "weir {line}: {out}{err}");
        assert_eq!(err.is_empty(), words.is_empty(), "weir {line}: {err}");
        for word in words {
            assert!(err.contains(word), "weir {line}: {word}: {err}");
        }
        out
    };
    note("volume create own --pool mem --size 1M", &[]);
    note("volume resize own 2M", &[]);
    note("map create h own", &[]);
    note("host create mine --port 4:4", &[]);
    note("volume resize c 16M", &["note: `volume/c`", "a fault after the next start"]);
    let out = note("host set h --add-port 3:3 --json", &["{\"note\":\"`host/h`", "puts it back"]);
    assert_eq!(serde_json::from_str::<Value>(&out).expect("JSON")["name"], "h");
    note("map delete h a", &["note: `map/h/a`", "makes it again"]);
    note("volume set b --read-only on", &["note: `volume/b`", "without read only yes"]);
    note("pool resize more --add ram:8M", &["note: `pool/more`", "fault"]);
    note("volume delete b --yes", &["note: `volume/b`", "makes it again"]);
    // What was said is what comes.
    d.stop();
    d.start();
    d.until("faults of what is declared", || {
        let faults = d.json("status")["faults"].to_string();
        ["declared/volume/c", "declared/pool/more"].iter().all(|f| faults.contains(f))
    });
    assert_eq!(d.json("host show h")["ports"].as_array().map(Vec::len), Some(1));
    assert_eq!(d.json("map show h a")["lun"], 0);
    assert_eq!(d.json("volume show b")["read_only"], false);
}

/// The first of ports on the loopback address that are free now, one behind the other.
fn free(n: u16) -> u16 {
    let from = 20_000 + (std::process::id() % 1_000) as u16 * 10;
    let is_free = |p: &u16| (0..n).all(|i| TcpListener::bind(("0.0.0.0", p + i)).is_ok());
    (from..60_000).find(is_free).expect("free ports")
}

#[test]
fn a_node_can_be_told_to_listen_anywhere() {
    let mut d = Daemon::new("applied-listen");
    let p = free(4);
    let is_at = |d: &Daemon, ip: &str, p: u16| {
        let faults = d.json("status")["faults"].to_string();
        assert_eq!(faults, "[]", "{}", d.log());
        assert_eq!(d.port("srp0"), Some(format!("{ip}:{p}")));
        assert_eq!(d.port("brp0"), Some(format!("{ip}:{}", p + 1)));
    };
    // At starts: by one further, by one back, all addresses of the machine, and one of them.
    for (ip, at) in [
        ("127.0.0.1", p),
        ("127.0.0.1", p + 1),
        ("127.0.0.1", p),
        ("0.0.0.0", p + 1),
        ("127.0.0.1", p),
    ] {
        d.start_at(&format!("{ip}:{at}"), &[]);
        d.wait();
        is_at(&d, ip, at);
        d.stop();
    }
    // Nor does it listen first where it was, which somebody else has by now.
    let other = TcpListener::bind(("127.0.0.1", p)).expect("bound");
    d.start_at(&format!("127.0.0.1:{}", p + 1), &[]);
    d.wait();
    is_at(&d, "127.0.0.1", p + 1);
    d.stop();
    drop(other);
    assert!(!d.log().contains("cannot listen"), "{}", d.log());
    // While it runs.
    d.start_at(&format!("127.0.0.1:{p}"), &[]);
    d.wait();
    let file = d.path("moved.toml");
    let everywhere = ("0.0.0.0", p + 1);
    let by_one = [p, p + 1, p + 2, p + 1].map(|at| ("127.0.0.1", at));
    for (ip, at) in std::iter::once(everywhere).chain(by_one) {
        std::fs::write(&file, format!("listen = ['{ip}:{at}']\n")).expect("written");
        d.ok(&format!("apply {file}"));
        is_at(&d, ip, at);
    }
    // One whose address somebody else has is a fault of its own, until it is free.
    let other = TcpListener::bind(("127.0.0.1", p)).expect("bound");
    std::fs::write(&file, format!("listen = ['127.0.0.1:{p}']\n")).expect("written");
    let (code, out, _) = run(&d, &format!("apply {file}"));
    assert_eq!(code, Some(1), "{out}");
    assert!(out.contains("! target/srp0") && out.contains("~ target/brp0"), "{out}");
    assert_eq!(d.port("brp0"), Some(format!("127.0.0.1:{}", p + 1)));
    drop(other);
    d.until("the port listens", || d.json("status")["faults"] == serde_json::json!([]));
    is_at(&d, "127.0.0.1", p);
}
