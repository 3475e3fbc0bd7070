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
