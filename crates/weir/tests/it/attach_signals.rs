//! What ends `weir attach`: signals, whenever they come, and the end of whoever waits for it. For root with /dev/fuse and loop
//! devices, as `attach`.

use crate::attach::{Target, can, run, wait_for};
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A pool of memory with this volume, which every host sees.
fn seen_by_all(volume: &str) -> Target {
    Target::declared(&format!(
        "[[pool]]\nname = \"mem\"\ndevices = [{{ kind = \"ram\", size = \"128M\" }}]\n\
         [[host]]\nname = \"anyone\"\nallow_any = true\n\
         [[volume]]\nname = \"{volume}\"\npool = \"mem\"\nsize = \"32M\"\n\
         [[map]]\nhost = \"anyone\"\nvolume = \"{volume}\"\n"
    ))
}

/// Takes connections and says nothing.
fn mute() -> (TcpListener, String) {
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = mute.local_addr().unwrap().to_string();
    (mute, at)
}

fn signal(child: &Child, name: &str) {
    run("kill", &[name, &child.id().to_string()]);
}

/// Waits for the end of a process that was asked to end, and not for whatever it does.
fn ends(child: &mut Child) -> Option<std::process::ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(15) {
        if let Some(ended) = child.try_wait().unwrap() {
            return Some(ended);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

fn entries(target: &Target) -> usize {
    fs::read_dir(target.dir.join("run")).map_or(0, Iterator::count)
}

/// The process that makes an attachment, once it is at it.
fn maker(target: &Target, name: &str) -> u64 {
    let file = target.dir.join("run").join(name).join("maker.json");
    let pid =
        || serde_json::from_slice::<Value>(&fs::read(&file).ok()?).ok()?["process"]["pid"].as_u64();
    wait_for("its files", || {
        pid().is_some() && target.dir.join("run").join(name).join("disk").exists()
    });
    pid().unwrap()
}

#[test]
fn a_signal_ends_an_attachment_that_reaches_nobody() {
    if !can() {
        return;
    }
    let target = seen_by_all("it-unreached");
    let (_mute, at) = mute();
    for (name, background) in [("-TERM", false), ("-INT", false), ("-INT", true), ("-TERM", true)] {
        let end = if background { "" } else { " --foreground" };
        let mut child = target.begin(&format!("attach it-unreached --target {at}{end}"));
        let made_by = maker(&target, "it-unreached");
        assert_eq!(made_by != u64::from(child.id()), background);
        std::thread::sleep(Duration::from_millis(300));
        signal(&child, name);
        let ended = ends(&mut child);
        // It is an end in order: nothing is left, and the exit code says that nothing was made.
        let left = entries(&target);
        target.weir("detach it-unreached --force");
        assert_eq!(ended.map(|e| e.code()), Some(Some(1)), "{name}, background: {background}");
        assert_eq!(left, 0, "{name}, background: {background}");
    }
}

/// Nobody would know of the disk that it makes then.
#[test]
fn an_attachment_ends_with_whoever_waits_for_it() {
    if !can() {
        return;
    }
    let target = seen_by_all("it-orphan");
    let (_mute, at) = mute();
    let mut child = target.begin(&format!("attach it-orphan --target {at}"));
    maker(&target, "it-orphan");
    signal(&child, "-KILL");
    child.wait().unwrap();
    let start = Instant::now();
    while entries(&target) > 0 && start.elapsed() < Duration::from_secs(15) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let left = entries(&target);
    target.weir("detach it-orphan --force");
    assert_eq!(left, 0, "its process goes on");
}

/// Also not by way of a thread that was started before the others, as that of the log.
#[test]
fn no_signal_ends_an_attachment_whose_disk_is_in_use() {
    if !can() {
        return;
    }
    let target = seen_by_all("it-deaf");
    let mut child = target.begin("attach it-deaf --foreground");
    wait_for("the disk", || target.dir.join("run/it-deaf/state.json").exists());
    let state: Value =
        serde_json::from_slice(&fs::read(target.dir.join("run/it-deaf/state.json")).unwrap())
            .unwrap();
    let used = fs::File::open(state["device"].as_str().unwrap()).unwrap();
    for name in ["-TERM", "-INT", "-HUP", "-TSTP", "-TTIN", "-TTOU", "-TERM"] {
        signal(&child, name);
        std::thread::sleep(Duration::from_millis(200));
    }
    let ended = child.try_wait().unwrap();
    assert!(ended.is_none(), "{ended:?}, by {:?}", ended.and_then(|e| e.signal()));
    // No thread stands still, and none lets these through.
    for thread in fs::read_dir(format!("/proc/{}/task", child.id())).unwrap() {
        let text = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        let line = |what: &str| text.lines().find_map(|l| l.strip_prefix(what)).unwrap().trim();
        let held = u64::from_str_radix(line("SigBlk:"), 16).unwrap();
        let all: u64 = [1, 2, 15].iter().map(|n| 1 << (n - 1)).sum();
        // The one that reads them waits for them.
        let holds = held & all == all || line("Name:") == "weir-signals";
        assert!(holds && !line("State:").starts_with('T'), "{text}");
    }
    run(
        "dd",
        &[
            &format!("if={}", state["device"].as_str().unwrap()),
            "of=/dev/null",
            "count=1",
            "iflag=direct",
        ],
    );
    drop(used);
    signal(&child, "-TERM");
    let ended = ends(&mut child);
    assert!(ended.is_some_and(|e| e.success()), "{ended:?}");
    target.all_gone(&state);
}

#[test]
fn what_nohup_has_a_process_ignore_it_goes_on_to_ignore() {
    if !can() {
        return;
    }
    let target = seen_by_all("it-nohup");
    let (_mute, at) = mute();
    let script = "trap '' HUP; exec \"$0\" attach it-nohup --foreground --target \"$1\"";
    let mut child = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_weir"), &at])
        .env("WEIR_RUN_DIR", target.dir.join("run"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    maker(&target, "it-nohup");
    signal(&child, "-HUP");
    std::thread::sleep(Duration::from_millis(500));
    let ended = child.try_wait().unwrap();
    signal(&child, "-TERM");
    let then = ends(&mut child);
    assert!(ended.is_none() && then.is_some_and(|e| e.code() == Some(1)), "{ended:?}, {then:?}");
    assert_eq!(entries(&target), 0);
}
