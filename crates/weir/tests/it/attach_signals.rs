//! What ends `weir attach`: signals, whenever they come, and the end of whoever waits for it. For root with /dev/fuse and loop
//! devices, as `attach`.

use crate::attach::{Target, can, run, wait_for};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
fn ends(child: &mut Child) -> Option<ExitStatus> {
    let mut ends_in = |secs| {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(secs) {
            let ended = child.try_wait().unwrap();
            if ended.is_some() {
                return ended;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        child.kill().unwrap();
        None
    };
    let ended = ends_in(15);
    // One that waits in the kernel does not end by that either.
    if ended.is_none() {
        ends_in(5);
    }
    ended
}

fn entries(target: &Target) -> usize {
    fs::read_dir(target.dir.join("run")).map_or(0, Iterator::count)
}

/// Whoever looks for a free device may have the disk open for a moment.
fn nothing_is_left(target: &Target) {
    let mine = target.dir.to_str().unwrap();
    wait_for("the end of the disk", || {
        !run("losetup", &["--all"]).contains(mine) && !run("mount", &[]).contains(mine)
    });
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
        let thread = thread.unwrap().path();
        // Workers of the ring come and go: one that ends meanwhile has no status, or an empty one.
        let text = fs::read_to_string(thread.join("status")).unwrap_or_default();
        let line = |what: &str| text.lines().find_map(|l| l.strip_prefix(what)).map(str::trim);
        let held = line("SigBlk:").map_or(0, |held| u64::from_str_radix(held, 16).unwrap());
        let all: u64 = [1, 2, 15].iter().map(|n| 1 << (n - 1)).sum();
        // The one that reads them waits for them.
        let holds = held & all == all || line("Name:") == Some("weir-signals");
        let stands = line("State:").is_none_or(|state| state.starts_with('T'));
        assert!((holds && !stands) || !thread.exists(), "{text}");
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

/// Passes on what a host and a target say to each other, unless that is to be held.
fn between(port: u16, held: impl Fn() -> bool + Clone + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for host in listener.incoming() {
            let (host, target) = (host.unwrap(), TcpStream::connect(("127.0.0.1", port)).unwrap());
            let back = (target.try_clone().unwrap(), host.try_clone().unwrap());
            for (mut from, mut to) in [(host, target), back] {
                let held = held.clone();
                std::thread::spawn(move || {
                    let mut bytes = vec![0; 1 << 16];
                    while let Ok(n @ 1..) = from.read(&mut bytes) {
                        while held() {
                            std::thread::sleep(Duration::from_millis(20));
                        }
                        if to.write_all(&bytes[..n]).is_err() {
                            return;
                        }
                    }
                });
            }
        }
    });
    at
}

/// The kernel looks for partitions of a new disk, and waits for its target.
#[test]
fn a_signal_ends_an_attachment_whose_target_is_gone_while_its_disk_is_made() {
    if !can() {
        return;
    }
    let target = seen_by_all("it-halfway");
    let maker = target.dir.join("run/it-halfway/maker.json");
    let file = maker.clone();
    let at_disk = move || {
        let noted = fs::read(&file).ok().and_then(|t| serde_json::from_slice::<Value>(&t).ok());
        noted.is_some_and(|m| !m["disk"].is_null())
    };
    let brp = ("brp", target.port + 1);
    for ((protocol, port), name) in
        [(("srp", target.port), "-TERM"), (brp, "-TERM"), (brp, "-KILL")]
    {
        let at = between(port, at_disk.clone());
        let line = format!("attach it-halfway --foreground --protocol {protocol} --target {at}");
        let mut child = target.begin(&line);
        wait_for("the disk that is being made", &at_disk);
        std::thread::sleep(Duration::from_millis(500));
        let made = target.dir.join("run/it-halfway/state.json").exists();
        let noted: Value = serde_json::from_slice(&fs::read(&maker).unwrap()).unwrap();
        let mark = noted["mark"].as_str().unwrap();
        assert!(!made, "set-up: nothing of the target was waited for");
        signal(&child, name);
        if name == "-KILL" {
            // It may wait for itself until then.
            wait_for("its end", || target.weir("detach it-halfway").status.success());
        }
        let ended = ends(&mut child);
        let left = entries(&target);
        target.weir("detach it-halfway --force");
        let code = (name == "-TERM").then_some(1);
        assert_eq!(ended.map(|e| e.code()), Some(code), "{protocol}, {name}");
        assert_eq!(left, 0, "{protocol}, {name}");
        nothing_is_left(&target);
        // Also by a name without a mount.
        wait_for("the end of its file", || !run("losetup", &["--all"]).contains(mark));
    }
}

/// What was to be said of it cannot be, as nobody reads it any more.
#[test]
fn a_disk_of_which_nobody_was_told_goes_unless_it_is_in_use() {
    if !can() {
        return;
    }
    let target = seen_by_all("it-untold");
    for is_used in [false, true] {
        // It is full: who writes to it waits.
        let (read, mut full) = std::io::pipe().unwrap();
        full.write_all(&[b' '; 1 << 16]).unwrap();
        let mut child =
            target.command("attach it-untold --foreground").stdout(full).spawn().unwrap();
        let file = target.dir.join("run/it-untold/state.json");
        wait_for("the disk", || file.exists());
        let state: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        let device = state["device"].as_str().unwrap();
        let used = is_used.then(|| fs::File::open(device).unwrap());
        drop(read);
        if is_used {
            std::thread::sleep(Duration::from_secs(3));
            assert!(child.try_wait().unwrap().is_none(), "a disk that is in use was taken away");
            let from = format!("if={device}");
            run("dd", &[&from, "of=/dev/null", "count=1", "iflag=direct"]);
            drop(used);
            signal(&child, "-TERM");
        }
        assert!(ends(&mut child).is_some(), "in use: {is_used}");
        target.all_gone(&state);
    }
}

/// As where /run is full: nobody could detach it.
#[test]
fn a_disk_of_which_nothing_can_be_written_down_goes_unless_it_is_in_use() {
    if !can() {
        return;
    }
    let target = seen_by_all("it-unwritten");
    let dir = target.dir.join("run/it-unwritten");
    // What is written is first written to this.
    let new = dir.join("state.new");
    let (made, go) = (dir.join("maker.json"), Arc::new(AtomicBool::new(false)));
    let goes = go.clone();
    let at = between(target.port, move || !goes.load(Ordering::Acquire));
    let line = format!("attach it-unwritten --foreground --target {at} --protocol srp");
    for is_used in [false, true] {
        go.store(false, Ordering::Release);
        let mut child = target.begin(&line);
        maker(&target, "it-unwritten");
        fs::create_dir(&new).unwrap();
        go.store(true, Ordering::Release);
        let mut used = None;
        if is_used {
            wait_for("the disk", || {
                let text = fs::read(&made).unwrap_or_default();
                let maker: Value = serde_json::from_slice(&text).unwrap_or_default();
                let device = || fs::File::open(maker["disk"][1].as_str().unwrap());
                used = maker["diskseq"].is_u64().then(device);
                used.is_some()
            });
            let used = used.unwrap().unwrap();
            std::thread::sleep(Duration::from_secs(4));
            assert!(child.try_wait().unwrap().is_none(), "a disk that is in use was taken away");
            // Once it can be written it is, and the attachment is one as any other.
            fs::remove_dir(&new).unwrap();
            wait_for("its state", || dir.join("state.json").exists());
            drop(used);
            target.ok("detach it-unwritten");
            assert!(ends(&mut child).is_some_and(|e| e.success()));
        } else {
            assert_eq!(ends(&mut child).map(|e| e.code()), Some(Some(1)));
            fs::remove_dir_all(&dir).unwrap();
        }
        nothing_is_left(&target);
        assert_eq!(entries(&target), 0);
    }
}
