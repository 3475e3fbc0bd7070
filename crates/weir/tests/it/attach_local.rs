//! `weir attach` to the daemon of this machine: a host and a mapping that are missing are made, and go with the attachment.
//! For root with /dev/fuse and loop devices, as `attach`.

use crate::attach::{Target, can, run, wait_for};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// A pool with a volume that nobody sees. Names in /dev/weir are the machine's, so each test has another.
fn unseen(volume: &str) -> String {
    format!(
        "[[pool]]\nname = \"mem\"\ndevices = [{{ kind = \"ram\", size = \"256M\" }}]\n\
         [[volume]]\nname = \"{volume}\"\npool = \"mem\"\nsize = \"64M\"\n"
    )
}

fn json(t: &Target, line: &str) -> Value {
    serde_json::from_str(&t.ok(&format!("{line} --json"))).unwrap()
}

/// The names of the hosts, and who sees what.
fn seen(t: &Target) -> (Vec<String>, Vec<String>) {
    let list = |line: &str| json(t, line).as_array().cloned().unwrap();
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    let hosts = list("host list").iter().map(|h| text(&h["name"])).collect();
    let map = |m: &Value| format!("{}/{}", text(&m["host"]), text(&m["volume"]));
    let mut maps: Vec<String> = list("map list").iter().map(map).collect();
    maps.sort();
    (hosts, maps)
}

fn nothing() -> (Vec<String>, Vec<String>) {
    (Vec::new(), Vec::new())
}

/// The last block of commands of the README, as it stands but for the directory.
#[test]
fn the_last_block_of_the_readme_works() {
    if !can() {
        return;
    }
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let readme = fs::read_to_string(readme).unwrap();
    let block = readme.rsplit("```\n").nth(1).unwrap();
    let mut target = Target::declared("");
    let mut last = String::new();
    for line in block.lines() {
        let line = line.replace("/srv/", &format!("{}/", target.dir.display()));
        last = target.ok(line.strip_prefix("weir ").unwrap());
    }
    assert!(last.contains("made for it: host attach-db-02, which sees db-02 as LUN 0"), "{last}");
    assert!(last.contains("takes it away, and what was made for it"), "{last}");
    let (hosts, maps) = seen(&target);
    assert_eq!((hosts, maps), (vec!["attach-db-02".into()], vec!["attach-db-02/db-02".into()]));
    let a = json(&target, "attach --list")[0].clone();
    let made = &a["mapped"];
    assert_eq!((&made["host"], &made["made_host"]), (&"attach-db-02".into(), &true.into()));
    // It is a disk, also after the daemon was killed.
    target.kill();
    target.start();
    let of = format!("of={}", a["device"].as_str().unwrap());
    run("dd", &["if=/dev/urandom", &of, "bs=64k", "count=4", "oflag=direct"]);
    let said = target.ok("detach db-02");
    let gone = "volume db-02 is not mapped to host attach-db-02 any more";
    assert!(said.contains(gone), "{said}");
    assert_eq!(seen(&target), nothing());
    target.all_gone(&a);
    assert!(target.ok("snapshot list").contains("db-02@monday"));
}

#[test]
fn nothing_is_made_where_that_is_not_wanted_and_the_refusal_says_what_to_type() {
    if !can() {
        return;
    }
    let target = Target::declared(&unseen("typed"));
    let refused = target.fails("attach typed --no-map", 3);
    assert!(refused.contains("volume typed is not mapped to this host"), "{refused}");
    assert_eq!(seen(&target), nothing());
    // What it says works, and what others made stays.
    let hint = refused.lines().find_map(|l| l.trim().strip_prefix("do: ")).unwrap();
    for line in hint.split("; ").filter_map(|l| l.strip_prefix("weir ")) {
        target.ok(line);
    }
    let before = seen(&target);
    for line in ["typed --no-map", "typed"] {
        let a = target.attach(line);
        assert!(a["mapped"].is_null(), "{a}");
        target.ok("detach typed");
        target.all_gone(&a);
        assert_eq!(seen(&target), before);
    }
    // A host that is there gets a mapping, and keeps nothing else of it.
    target.ok("volume create other --size 1M");
    target.ok("map create attach-typed other");
    target.ok("map delete attach-typed typed");
    let a = target.attach("typed");
    assert_eq!(a["mapped"]["made_host"], false, "{a}");
    assert_eq!(seen(&target).1, ["attach-typed/other", "attach-typed/typed"]);
    target.ok("detach typed");
    target.all_gone(&a);
    assert_eq!(seen(&target), (vec!["attach-typed".into()], vec!["attach-typed/other".into()]));
}

#[test]
fn a_host_for_all_is_given_nothing() {
    if !can() {
        return;
    }
    let all = unseen("private") + "[[host]]\nname = \"anyone\"\nallow_any = true\n";
    let target = Target::declared(&all);
    // Nor is it taken from those who use a port that was given.
    let given = target.fails("attach private --initiator-port 5:5", 3);
    assert!(given.contains("weir map create anyone private"), "{given}");
    let a = target.attach("private --protocol srp");
    assert_eq!(seen(&target).1, ["attach-private/private"]);
    target.ok("detach private");
    target.all_gone(&a);
    assert_eq!(seen(&target), (vec!["anyone".into()], Vec::new()));
}

#[test]
fn a_host_that_is_made_proves_the_secret_that_is_given() {
    if !can() {
        return;
    }
    let target = Target::declared(&unseen("proven"));
    let file = target.dir.join("secret");
    fs::write(&file, "a secret of more than 16 bytes\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let a = target.attach(&format!("proven --secret-file {}", file.display()));
    assert_eq!((&a["protocol"], &a["mapped"]["made_host"]), (&"brp".into(), &true.into()));
    assert_eq!(json(&target, "host show attach-proven")["keyed"], true);
    target.ok("detach proven");
    target.all_gone(&a);
    assert_eq!(seen(&target), nothing());
}

#[test]
fn what_was_made_is_taken_back_when_the_attachment_fails() {
    if !can() {
        return;
    }
    let target = Target::declared(&unseen("failing"));
    // No target port is called that: the login is refused.
    let refused = target.fails("attach failing --id-ext 1 --ioc-guid 2", 5);
    assert!(refused.contains("refused the login"), "{refused}");
    assert_eq!(seen(&target), nothing());
    let none = target.fails("attach dusk", 3);
    assert!(none.contains("no volume dusk") && none.contains("it has failing"), "{none}");
    assert_eq!(seen(&target), nothing());
    // Elsewhere nothing is made, and what is to be typed there is said.
    for (protocol, port) in [("brp", target.port + 1), ("srp", target.port)] {
        let line = format!("attach failing --target 127.0.0.1:{port} --protocol {protocol}");
        let refused = target.fails(&line, 5);
        let lines = refused.split("weir host create HOST --port ").nth(1).unwrap_or_default();
        assert!(lines.contains("; weir map create HOST failing"), "{refused}");
    }
    assert_eq!(seen(&target), nothing());
    // A name that is taken costs the one who has it nothing.
    let a = target.attach("failing");
    target.ok("volume create other --size 1M");
    target.fails("attach other --name failing", 4);
    assert_eq!(seen(&target).1, ["attach-failing/failing"]);
    target.ok("detach failing");
    target.all_gone(&a);
    assert_eq!(fs::read_dir(target.dir.join("run")).map_or(0, Iterator::count), 0);
}

#[test]
fn it_is_taken_back_however_the_attachment_ends() {
    if !can() {
        return;
    }
    let mut target = Target::declared(&unseen("ended"));
    for (end, sign) in [("-TERM", "by a signal"), ("-KILL", "by force of the kernel")] {
        let a = target.attach("ended");
        run("kill", &[end, &a["pid"].to_string()]);
        if end == "-KILL" {
            wait_for("the end of the process", || target.ok("attach --list").contains("has ended"));
            let said = target.ok("detach ended");
            assert!(said.contains("not mapped to host attach-ended any more"), "{said}");
        }
        target.all_gone(&a);
        assert_eq!(seen(&target), nothing(), "{sign}");
    }
    // Without the daemon it stays, and that is said with what to type. It is known until somebody gives it up.
    let a = target.attach("ended");
    target.kill();
    let line = "weir map delete attach-ended ended; weir host delete attach-ended";
    for again in ["detach ended --force", "detach ended"] {
        let said = target.fails(again, 5);
        assert!(said.contains("may still be mapped") && said.contains(line), "{said}");
        assert!(
            said.contains("`weir detach ended --run-dir ") && said.contains("` again"),
            "{said}"
        );
    }
    let said = target.ok("detach ended --force");
    assert!(said.contains("may still be mapped") && said.contains(line), "{said}");
    target.all_gone(&a);
    target.start();
    assert_eq!(seen(&target).1, ["attach-ended/ended"]);
}

/// The disk goes, and what was made for it does not: neither is hidden.
#[test]
fn a_detach_that_takes_nothing_back_says_so_until_it_does() {
    if !can() {
        return;
    }
    let target = Target::declared(&unseen("honest"));
    let a = target.attach("honest");
    let (socket, away) = (target.dir.join("data/weir.sock"), target.dir.join("away"));
    fs::rename(&socket, &away).unwrap();
    for _ in 0..2 {
        let said = target.fails("detach honest", 5);
        assert!(said.contains("weir map delete attach-honest honest"), "{said}");
    }
    fs::rename(&away, &socket).unwrap();
    assert_eq!(seen(&target).1, ["attach-honest/honest"]);
    let said = target.ok("detach honest");
    assert!(said.contains("not mapped to host attach-honest any more, which is deleted"), "{said}");
    assert_eq!(seen(&target), nothing());
    target.all_gone(&a);
}

/// A host that was there has another initiator port, whose user is away for a moment.
#[test]
fn a_mapping_stays_that_another_port_of_the_host_may_use() {
    if !can() {
        return;
    }
    let target = Target::declared(&unseen("both"));
    let a = target.attach("both");
    let port = a["initiator_port"].as_str().unwrap();
    target.ok("detach both");
    target.ok(&format!("host create own --port {port} --port 7:7"));
    let a = target.attach("both");
    assert_eq!(a["mapped"]["made_host"], false, "{a}");
    let other = target.attach("both --name it-other --initiator-port 7:7 --no-map");
    // The daemon sees who is there.
    target.ok("host create x --port 8:8");
    target.ok("detach it-other");
    assert_eq!(json(&target, "attach --list").as_array().map(Vec::len), Some(1), "{other}");
    let said = target.fails("detach both", 4);
    assert!(said.contains("may be about to come back"), "{said}");
    assert!(said.contains("weir map delete own both"), "{said}");
    assert_eq!(seen(&target).1, ["own/both"]);
    // Once nobody wants it.
    target.ok("map delete own both");
    target.ok("detach both");
    target.all_gone(&a);
}

/// By a port that was given others may have the volume, but a session of the past is its own.
#[test]
fn what_was_made_for_a_port_that_was_given_goes_too() {
    if !can() {
        return;
    }
    let target = Target::declared(&unseen("given"));
    let a = target.attach("given --initiator-port 5:5");
    assert_eq!(a["mapped"]["shared"], true, "{a}");
    target.ok("host create x --port 8:8");
    target.ok("host delete x");
    target.ok("detach given");
    target.all_gone(&a);
    assert_eq!(seen(&target), nothing());
}

/// Its process ends in order while the daemon takes no commands: what it could not take back is known until somebody does.
#[test]
fn what_could_not_be_taken_back_is_taken_back_later() {
    if !can() {
        return;
    }
    let target = Target::declared(&unseen("later"));
    let a = target.attach("later");
    let (socket, away) = (target.dir.join("data/weir.sock"), target.dir.join("away"));
    fs::rename(&socket, &away).unwrap();
    run("kill", &["-TERM", &a["pid"].to_string()]);
    let pid = a["pid"].as_u64().unwrap();
    wait_for("the end of the process", || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    });
    fs::rename(&away, &socket).unwrap();
    assert_eq!(seen(&target).1, ["attach-later/later"], "set-up");
    let why = target.fails("attach later", 4);
    assert!(why.contains("could not be taken back yet"), "{why}");
    let said = target.ok("detach later");
    assert!(said.contains("not mapped to host attach-later any more"), "{said}");
    assert_eq!(seen(&target), nothing());
    target.all_gone(&a);
}

/// It is killed at some moment after its host was made, which no state of it tells of.
#[test]
fn an_attachment_that_is_killed_while_it_is_made_leaves_nothing() {
    if !can() {
        return;
    }
    let target = Target::declared(&unseen("early"));
    for n in 0..6 {
        let mut child = target.begin("attach early --foreground");
        wait_for("its host", || !seen(&target).0.is_empty());
        std::thread::sleep(std::time::Duration::from_millis(3 * n));
        child.kill().unwrap();
        // It is known to have been killed, once it was. Until then it may wait for itself.
        wait_for("its end", || target.weir("detach early").status.success());
        child.wait().unwrap();
        assert_eq!(seen(&target), nothing(), "round {n}");
    }
}

/// What has the name of what was made, and is another thing, is left alone.
#[test]
fn what_was_made_anew_meanwhile_stays() {
    if !can() {
        return;
    }
    let target = Target::declared(&unseen("anew"));
    let a = target.attach("anew");
    target.ok("map delete attach-anew anew --force");
    target.ok("host delete attach-anew");
    target.ok("host create attach-anew --port 7:7");
    target.ok("map create attach-anew anew");
    let said = target.ok("detach anew --force");
    assert!(said.contains("host attach-anew is another one now"), "{said}");
    assert_eq!(seen(&target).1, ["attach-anew/anew"]);
    target.all_gone(&a);
}
