//! What the program says: its log, and what is wrong with what it was asked.

use crate::common::{Daemon, texts, weir};
use serde_json::Value;
use std::process::Command;

#[test]
fn log_lines_name_no_places_of_the_program() {
    let mut d = Daemon::new("said-text");
    d.start();
    d.stop();
    let log = d.log();
    assert!(log.contains(" INFO ") && log.contains("serving"), "{log}");
    assert!(!log.contains("weir::") && !log.contains("weir_"), "{log}");
}

#[test]
fn log_lines_are_json_where_that_is_wanted() {
    let mut d = Daemon::new("said-json");
    d.env.push(("WEIR_LOG_FORMAT", "json".into()));
    d.start();
    d.stop();
    // Also what it says at its end.
    std::fs::write(d.path("weir.toml"), "nonsense").expect("written");
    d.start_only();
    assert_eq!(d.ended().code(), Some(2), "{}", d.log());
    let lines: Vec<Value> = d
        .log()
        .lines()
        .map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}")))
        .collect();
    let serving = lines.iter().find(|l| l["text"] == "serving").expect("it says so");
    assert_eq!(serving["level"], "info");
    assert_eq!(serving["data_dir"], d.dir.display().to_string());
    assert!(serving["time"].as_str().is_some_and(|t| t.ends_with('Z')), "{serving}");
    let last = lines.last().expect("the error");
    assert_eq!(last["error"]["code"], "invalid_config", "{last}");
    d.env = vec![("WEIR_LOG_FORMAT", "xml".into())];
    d.start_only();
    assert_eq!(d.ended().code(), Some(2), "{}", d.log());
}

/// Standard error of a command that fails.
fn refused(d: &Daemon, line: &str) -> String {
    let (stdout, stderr) = texts(&weir(&d.dir, &line.split_whitespace().collect::<Vec<_>>()));
    assert!(stderr.contains("error: "), "weir {line}: {stdout}{stderr}");
    stderr
}

#[test]
fn errors_say_what_fits() {
    let mut d = Daemon::new("said-errors");
    d.start();
    d.ok(&format!("pool create plain --device file:{}:64M", d.path("plain")));
    d.ok(&format!("pool create safe --raid 0 --device file:{}:256M", d.path("safe")));
    // What grows a pool depends on what it is.
    assert!(refused(&d, "pool create plain --device ram:64M").contains("weir pool resize plain"));
    assert!(refused(&d, "pool create safe --device ram:64M").contains("weir pool add safe"));
    let said = refused(&d, "pool add plain --device ram:64M");
    assert!(said.contains("weir pool resize plain") && !said.contains("snapshots"), "{said}");
    // Snapshots by their names.
    d.ok("volume create v --pool safe --size 8M");
    d.ok("snapshot create v@one");
    d.ok("snapshot create v@two");
    let said = refused(&d, "snapshot revert v@one --yes");
    assert!(said.contains("newer snapshots") && !said.contains("dataset"), "{said}");
    // A full volume.
    d.ok(&format!("pool create small --raid 0 --device file:{}:128M", d.path("small")));
    d.ok("volume create big --pool small --size 1G");
    d.ok("host create all --allow-any");
    d.ok("map create all big");
    std::fs::write(d.path("data"), crate::common::noise(1, 160 << 20)).expect("written");
    let line =
        format!("write --target {} --volume big --input {} --bs 1m", d.target(), d.path("data"));
    let said = refused(&d, &line);
    assert!(said.contains("space allocation failed") && said.contains("    do: "), "{said}");
    d.stop();
    // Devices are named as for pools, or as they are.
    for device in ["safe", "file:safe"].map(|p| p.replace("safe", &d.path("safe"))) {
        d.ok(&format!("check --device {device}"));
        d.ok(&format!("dump --device {device} label"));
    }
}

#[test]
fn two_data_directories_are_no_choice_of_the_daemon() {
    let d = Daemon::new("said-two");
    let (file, other) = (d.path("weir.toml"), d.path("other"));
    std::fs::write(&file, format!("data_dir = \"{other}\"\n")).expect("written");
    let (_, said) = texts(&weir(&d.dir, &["serve", "--config", &file]));
    assert!(said.contains("WEIR_DATA_DIR is") && said.contains("--data-dir"), "{said}");
    assert!(!std::path::Path::new(&other).exists() && !d.dir.join("weir.redb").exists());
    let memory = weir(&d.dir, &["serve", "--buffer-memory", "900T"]);
    let (_, said) = texts(&memory);
    assert!(said.contains("more than the machine has"), "{said}");
}

#[test]
fn a_quickstart_that_has_ended_does_not_say_to_look_around() {
    let d = Daemon::new("said-once");
    let out = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args([
            "quickstart",
            "--once",
            "--listen",
            "127.0.0.1:0",
            "--size",
            "64M",
            "--runtime",
            "200ms",
        ])
        .env_clear()
        .env("WEIR_DATA_DIR", &d.dir)
        .output()
        .expect("it runs");
    let (said, log) = texts(&out);
    assert!(out.status.success(), "{said}{log}");
    assert!(said.contains("was served at") && said.contains("ends now"), "{said}");
    assert!(!said.contains("To look around") && !said.contains("is served at"), "{said}");
}

#[test]
fn what_makes_no_sense_is_refused_with_what_does() {
    let mut d = Daemon::new("said-sense");
    d.start();
    d.ok("host create all --allow-any");
    let at = d.target();
    d.ok(&format!("pool create safe --raid 0 --device file:{}:64M", d.path("safe")));
    for (line, exit, words) in [
        ("pool create m --device ram:64M --overwrite nonsense".to_owned(), 2, "`nonsense`"),
        (format!("bench --target {at} --lun 0 --runtime 0"), 2, "--runtime"),
        (format!("bench --target {at} --lun 0 --cores 9999"), 2, "core 9999"),
        ("top --once --interval 1ms".to_owned(), 2, "at least 100 ms"),
        (format!("inquiry --target {at} --lun 99"), 3, "no LUN 99"),
        (format!("bench --target {at} --lun 99 --runtime 1"), 3, ""),
        (
            format!("volume create v --size 8M --encrypt --key file:{}", d.path("none")),
            4,
            "key new",
        ),
    ] {
        let (_, said) = d.fails(&line, exit);
        assert!(said.contains(words) && !said.contains("rekey"), "weir {line}: {said}");
    }
    d.ok("pool create m --device ram:64M --overwrite ext4,DATA");
    // What is made is named as it is asked for.
    let out = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["key", "new", "k.key", "--json"])
        .current_dir(&d.dir)
        .output()
        .expect("weir runs");
    let made: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let key = made["key"].as_str().expect("a source").to_owned();
    d.ok(&format!("volume create v --pool safe --size 8M --encrypt --key {key}"));
    d.stop();
    let refused = texts(&weir(&d.dir, &["serve", "--listen", "127.0.0.1:0", "--cores", "9999"])).1;
    assert!(refused.contains("no core 9999") && refused.contains("it may use"), "{refused}");
}

#[test]
fn a_volume_is_read_into_what_has_no_places() {
    let mut d = Daemon::new("said-streams");
    d.start();
    d.ok("pool create m --device ram:64M");
    d.ok("volume create v --size 8M");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let (file, data) = (d.path("data"), crate::common::noise(5, 1 << 20));
    std::fs::write(&file, &data).expect("written");
    d.write("v", &file);
    let (at, pipe) = (d.target(), d.path("pipe"));
    d.ok(&format!("read --target {at} --volume v --output /dev/null"));
    d.ok(&format!("copy srp://{at}/v /dev/null"));
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    let length = data.len();
    for line in [
        format!("read --target {at} --volume v --length {length} --output {pipe}"),
        format!("copy srp://{at}/v {pipe} --length {length}"),
    ] {
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::read(pipe)
        });
        d.ok(&line);
        assert!(reader.join().expect("it ran").expect("read") == data, "weir {line}");
    }
    // The other way round, and only as much as comes.
    let writer = std::thread::spawn({
        let (pipe, data) = (pipe.clone(), data[4096..].to_vec());
        move || std::fs::write(pipe, data)
    });
    d.ok(&format!("copy {pipe} srp://{at}/v"));
    writer.join().expect("it ran").expect("written");
    let now = d.read("v", length);
    assert!(now[..length - 4096] == data[4096..] && now[length - 4096..] == data[length - 4096..]);
    d.fails(&format!("copy srp://{at}/v /dev/null --verify"), 2);
    d.stop();
}
