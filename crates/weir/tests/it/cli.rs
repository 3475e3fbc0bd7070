//! The real program against a real server, with a data plane that only remembers.

use crate::fake::Fake;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use weir_control::Controller;
use weir_control::server::Server;

/// A server with a fake data plane on threads of its own, and its data directory.
pub(crate) struct Node {
    pub(crate) dir: PathBuf,
    pub(crate) fake: Arc<Fake>,
    _runtime: tokio::runtime::Runtime,
}

impl Node {
    pub(crate) fn start() -> Node {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let n = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("weir-cli-{}-{n}", std::process::id()));
        let fake = Arc::new(Fake::default());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let server = runtime.block_on(async {
            let controller = Controller::start(&dir, fake.clone()).await.expect("a controller");
            Server::bind(controller, None, None).await.expect("bound")
        });
        runtime.spawn(server.run(std::future::pending()));
        Node { dir, fake, _runtime: runtime }
    }

    /// Runs `weir` with these arguments against this node.
    pub(crate) fn weir(&self, line: &str) -> Output {
        weir(&self.dir, line)
    }

    /// Runs it, wants success, and gives standard output.
    pub(crate) fn ok(&self, line: &str) -> String {
        let out = self.weir(line);
        let (stdout, stderr) = texts(&out);
        assert!(out.status.success(), "weir {line}: {stdout}{stderr}");
        assert_eq!(stderr, "", "weir {line}");
        stdout
    }

    pub(crate) fn json(&self, line: &str) -> Value {
        let text = self.ok(&format!("{line} --json"));
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("weir {line}: {e}: {text}"))
    }

    /// Runs it, wants this exit code, and gives the error as people and as programs see it.
    fn fails(&self, line: &str, exit: i32) -> (String, Value) {
        let out = self.weir(line);
        let (stdout, stderr) = texts(&out);
        assert_eq!(out.status.code(), Some(exit), "weir {line}: {stdout}{stderr}");
        assert_eq!(stdout, "", "weir {line}: errors go to standard error");
        let (_, json) = texts(&self.weir(&format!("{line} --json")));
        let json: Value =
            serde_json::from_str(&json).unwrap_or_else(|e| panic!("{line}: {e}: {json}"));
        assert_eq!(json["exit_code"], exit, "weir {line}");
        (stderr, json["error"].clone())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.dir));
    }
}

fn weir(dir: &Path, line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(line.split_whitespace())
        .env_clear()
        .env("WEIR_DATA_DIR", dir)
        .stdin(Stdio::null())
        .output()
        .expect("weir runs")
}

pub(crate) fn texts(out: &Output) -> (String, String) {
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).expect("UTF-8");
    (text(&out.stdout), text(&out.stderr))
}

#[test]
fn from_an_empty_node_to_a_lun_and_back() {
    let n = Node::start();
    assert!(n.ok("pool list").contains("weir pool create"), "an empty list says what to do");
    assert!(n.ok("pool create mem --device ram:1G").contains("1 GiB free"));
    assert!(n.ok("volume create db-01 --size 100M").contains("naa.6"), "the only pool is taken");
    n.ok("host create web-1 --port 1:2c90300a1b2c3");
    assert_eq!(n.ok("map create web-1 db-01"), "host web-1 sees volume db-01 as LUN 0\n");

    let v = n.json("volume show db-01");
    assert_eq!((&v["size"], &v["block_size"]), (&Value::from(100 << 20), &Value::from(512)));
    assert_eq!(n.json("volume list").as_array().map(Vec::len), Some(1));
    assert!(n.ok("volume show db-01").contains("extent of device 0: 100 MiB at 0 B"));
    assert!(n.ok("volume list --pool mem").contains("db-01"));
    assert!(n.ok("host show web-1").contains("0000000000000001:0002c90300a1b2c3"));
    assert!(n.ok("map list --host web-1").contains("db-01"));
    assert_eq!(n.json("map show web-1 db-01")["lun"], 0);

    assert!(n.ok("volume resize db-01 +28M").contains("128 MiB"));
    assert!(n.ok("volume set db-01 --read-only on").contains("read-only"));
    assert!(n.ok("pool resize mem --add ram:1G --grow 0:2G").contains("3 GiB"));
    assert!(n.ok("host set web-1 --add-port 1:9 --allow-any on").contains("any other"));
    assert_eq!(n.fake.state().volumes["db-01"].size, 128 << 20);

    n.ok("map delete web-1 db-01");
    n.ok("volume delete db-01 --yes");
    n.ok("host delete web-1");
    assert_eq!(n.json("pool delete mem")["deleted"], "mem");
    assert!(n.fake.state().data.is_empty());
}

#[test]
fn errors_say_what_why_and_what_to_do() {
    let n = Node::start();
    n.ok("pool create mem --device ram:1G");
    n.ok("volume create v --size 1M");
    n.ok("host create h --allow-any");
    n.ok("map create h v");
    for (line, exit, code) in [
        ("pool show none", 3, "pool_not_found"),
        ("pool show NONE", 2, "invalid_name"),
        ("pool show ../volumes", 2, "invalid_name"),
        ("pool create mem --device ram:1G", 4, "pool_exists"),
        ("pool create q --device ram:1k", 2, "invalid_size"),
        ("pool delete mem", 4, "pool_in_use"),
        ("pool resize mem --grow 7:2G", 2, "invalid_device"),
        ("pool resize mem --grow 0:1M", 4, "shrink_refused"),
        ("volume show none", 3, "volume_not_found"),
        ("volume list --pool none", 3, "pool_not_found"),
        ("volume create v --size 1M", 4, "volume_exists"),
        ("volume create w --size 2G", 6, "pool_full"),
        ("volume create w --size 1000", 2, "invalid_size"),
        ("volume create w --size 1M --kind thin", 2, "invalid_layout"),
        ("volume resize v 512", 4, "shrink_refused"),
        ("volume delete v --yes", 4, "volume_mapped"),
        ("host create i --port 0:0", 2, "invalid_port"),
        ("host create i", 2, "invalid_port"),
        ("host create i --allow-any", 4, "port_in_use"),
        ("host delete h", 4, "host_mapped"),
        ("map create h v --lun 3", 4, "map_exists"),
        ("map create h none", 3, "volume_not_found"),
        ("map delete h none", 3, "volume_not_found"),
        ("target show none", 3, "target_not_found"),
        ("apply /nonexistent.toml", 2, "invalid_config"),
        ("bench scenario store-minute --runtime 0s", 2, "invalid_request"),
        ("bench --target 127.0.0.1 --lun 0 --bs 7", 2, "invalid_request"),
    ] {
        let (text, json) = n.fails(line, exit);
        assert_eq!(json["code"], code, "weir {line}: {json}");
        assert!(text.starts_with("error: ") && text.contains("\n    do: "), "weir {line}: {text}");
    }
    let (text, _) = n.fails("volume delete v --yes", 4);
    assert_eq!(
        text,
        "error: volume `v` is still mapped\n   why: host `h` sees it as LUN 0\n    \
         do: unmap it first: weir map delete h v\n"
    );
    n.fake.break_call("open_volume w");
    let (text, _) = n.fails("volume create w --size 1M", 1);
    assert!(text.contains("the test wants it"), "{text}");
    n.fake.mend();
    n.ok("volume create w --size 1M");
    n.ok("pool create mem2 --device ram:1G");
    assert!(n.fails("volume create x --size 1M", 2).0.contains("--pool"), "two pools: which?");
    // Usage errors are the parser's; they come with the right exit code and an explanation.
    for line in [
        "",
        "pool",
        "volume create",
        "volume create w --size lots",
        "pool create x --device foo",
        "pool resize mem",
        "host create i --port xyz",
        "map create h v --lun 70000",
        "frobnicate",
    ] {
        let out = n.weir(line);
        assert_eq!(out.status.code(), Some(2), "weir {line}");
        assert!(texts(&out).1.len() > 40, "weir {line}: {:?}", texts(&out));
        let (_, json) = n.fails(line, 2);
        assert_eq!(json["code"], "invalid_request", "weir {line}: {json}");
        let message = json["detail"].as_str().unwrap_or_default();
        assert!(!message.is_empty() && !message.contains('\n'), "weir {line}: {json}");
        assert!(!json["hint"].as_str().unwrap_or_default().is_empty(), "weir {line}: {json}");
    }
    // Wherever it says that JSON is wanted.
    let json: Value = serde_json::from_str(&texts(&n.weir("--json pool")).1).expect("JSON");
    assert_eq!(json["exit_code"], 2, "{json}");
    // Help is no error, whatever else is said.
    assert!(n.ok("pool create --help --json").contains("Usage"));
    assert!(n.ok("--version --json").starts_with("weir "));
}

/// All commands that have no further ones below them, as their words; found in the help.
fn commands(n: &Node, path: &str) -> Vec<String> {
    let help = n.ok(&format!("{path} --help"));
    let listed = help.split("\nCommands:\n").nth(1).unwrap_or_default();
    let words = listed.lines().take_while(|l| l.starts_with("  "));
    // What is further in goes on with a description.
    let names = words.filter(|l| !l.starts_with("   ")).filter_map(|l| l.split_whitespace().next());
    let below: Vec<String> =
        names.filter(|w| *w != "help").map(|w| format!("{path} {w}")).collect();
    if below.is_empty() {
        return vec![path.trim().to_owned()];
    }
    below.iter().flat_map(|p| commands(n, p)).collect()
}

#[test]
fn wrong_arguments_of_every_command_are_told_in_json() {
    let n = Node::start();
    let all = commands(&n, "");
    for word in ["serve", "pool create", "snapshot policy set", "bench scenario", "dump map", "top"]
    {
        assert!(all.iter().any(|c| c == word), "{word}: {all:?}");
    }
    assert!(all.len() > 70, "{all:?}");
    for command in &all {
        for line in [
            format!("{command} --no-such-option --json"),
            format!("--json {command} --no-such-option"),
        ] {
            let out = n.weir(&line);
            let (stdout, stderr) = texts(&out);
            assert_eq!(
                (out.status.code(), stdout.as_str()),
                (Some(2), ""),
                "weir {line}: {stderr}"
            );
            let json: Value =
                serde_json::from_str(&stderr).unwrap_or_else(|e| panic!("{line}: {e}: {stderr}"));
            assert_eq!(
                (&json["exit_code"], &json["error"]["code"]),
                (&2.into(), &"invalid_request".into()),
                "weir {line}"
            );
            let told = json["error"]["detail"].as_str().unwrap_or_default();
            assert!(told.contains("--no-such-option"), "weir {line}: {json}");
        }
    }
}

#[test]
fn scenarios_are_listed_for_programs_too() {
    let n = Node::start();
    let all = n.json("bench scenario --list");
    let all = all.as_array().expect("a list");
    let text = n.ok("bench scenario --list");
    assert!(all.len() > 5 && all.len() == text.lines().count(), "{text}");
    for s in all {
        let (name, title) = (s["name"].as_str().expect("it"), s["title"].as_str().expect("it"));
        assert!(text.lines().any(|l| l.starts_with(name) && l.ends_with(title)), "{s}: {text}");
    }
}

#[test]
fn without_a_daemon_the_exit_code_is_5() {
    let dir = std::env::temp_dir().join("weir-cli-nobody");
    for line in ["pool list", "status", "top --once", "--server http://127.0.0.1:1 status"] {
        let out = weir(&dir, line);
        assert_eq!(out.status.code(), Some(5), "weir {line}: {:?}", texts(&out));
        assert!(texts(&out).1.contains("weir serve"), "weir {line}");
    }
    for (server, why) in [("https://127.0.0.1:1", "https"), ("ftp://x", "`ftp` is not spoken")] {
        let out = weir(&dir, &format!("--server {server} status"));
        assert_eq!(out.status.code(), Some(2));
        assert!(texts(&out).1.contains(why), "{:?}", texts(&out));
    }
}

#[test]
fn status_top_events_and_targets() {
    let n = Node::start();
    let file = n.dir.join("node.toml");
    let text = "[[target]]\nname = 'srp0'\nlisten = ['192.0.2.1:5555']\n\
        [[pool]]\nname = 'p'\ndevices = [{ kind = 'ram', size = '1G' }]\n\
        [[volume]]\nname = 'v'\npool = 'p'\nsize = '1M'\n\
        [[host]]\nname = 'h'\nports = ['1:2c90300a1b2c3']\n[[map]]\nhost = 'h'\nvolume = 'v'\n";
    std::fs::write(&file, text).expect("written");
    let apply = format!("apply {}", file.display());
    assert!(n.ok(&apply).contains("5 changed, 0 as they were"));
    assert_eq!(n.json(&apply)["unchanged"], 5);

    let s = n.json("status");
    assert_eq!((&s["volumes"], &s["faults"]), (&Value::from(1), &Value::Array(Vec::new())));
    let text = n.ok("status");
    assert!(text.contains("all is well") && text.contains("192.0.2.1:5555"), "{text}");
    let top = n.ok("top --once");
    for word in ["VOLUME", "90.0us", "250.0us", "12.5 %", "requests", "1900", "2c90300a1b2c3"] {
        assert!(top.contains(word), "{word} is missing: {top}");
    }
    assert!(!top.contains('\x1b'), "no terminal codes with --once");
    assert_eq!(n.json("top --once")["live"]["volumes"][0]["name"], "v");
    let events = n.ok("events --json");
    let event = |line: &str| serde_json::from_str::<Value>(line).expect("JSON");
    let kinds: Vec<Value> = events.lines().map(|l| event(l)["kind"].clone()).collect();
    assert_eq!(kinds.first(), Some(&Value::from("node.started")), "{events}");
    assert!(kinds.iter().any(|k| k == "pool.created"), "{events}");
    assert!(n.ok("events").contains("map.created"));

    let t = n.json("target list");
    let shown = n.ok("target show srp0");
    let id = t[0]["id_ext"].as_str().expect("an identifier");
    assert!(shown.contains(&format!("echo 'id_ext={id},ioc_guid=")), "{shown}");
    assert!(shown.contains(",dest=192.0.2.1:5555'") && shown.contains("initiator_ext"), "{shown}");
    assert!(n.ok("target list").contains("iwarp"));
}

#[test]
fn scripts_for_shells_and_the_table_of_codes() {
    let n = Node::start();
    assert!(n.ok("completions bash").contains("complete -F _weir"));
    assert!(n.ok("exit-codes").contains("volume_mapped"));
    assert!(n.ok("help exit-codes").contains("volume_mapped"));
    assert_eq!(n.json("exit-codes")[3]["exit_code"], 4);
    // A reader that goes away early is no error.
    let mut child = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["completions", "zsh"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("weir runs");
    drop(child.stdout.take());
    let out = child.wait_with_output().expect("its end");
    assert!(out.status.success() && out.stderr.is_empty(), "{:?}", texts(&out));
}
