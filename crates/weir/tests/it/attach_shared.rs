//! Attachments that share what is the machine's: devices, names in /dev/weir, processes. For root with /dev/fuse and loop
//! devices, as `attach`.

use crate::attach::{ALONE, Target, can, run, wait_for};
use crate::devices::Loop;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
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

fn text<'a>(a: &'a Value, what: &str) -> &'a str {
    a[what].as_str().unwrap()
}

fn kill(target: &Target, a: &Value) {
    run("kill", &["-9", &a["pid"].to_string()]);
    wait_for("the end of the process", || target.ok("attach --list").contains("has ended"));
}

/// Gives the device of an attachment that was killed to a foreign program. False: another test has it.
fn give_away(device: &str, foreign: &Path) -> bool {
    run("losetup", &["-d", device]);
    let backing = format!("/sys/block/{}/loop/backing_file", &device["/dev/".len()..]);
    wait_for("the free device", || fs::read_to_string(&backing).is_err());
    Command::new("losetup").arg(device).arg(foreign).status().unwrap().success()
}

/// What is in a foreign program's file.
static FOREIGN: [u8; 1 << 20] = [0x5a; 1 << 20];

#[test]
fn a_name_that_is_left_over_is_not_a_foreign_program_s_disk() {
    if !can() {
        return;
    }
    let target = seen_by_all("it-lost");
    let foreign = target.dir.join("foreign.img");
    fs::write(&foreign, FOREIGN).unwrap();
    let link = Path::new("/dev/weir/it-lost");
    let mut had = 0;
    // It may also be noticed at the next attachment only: by another run directory, or when its files are gone.
    for detached in [true, false] {
        let taken = (0..5).find_map(|_| {
            let a = target.attach("it-lost");
            assert_eq!(fs::read_link(link).unwrap(), Path::new(text(&a, "device")));
            kill(&target, &a);
            let given = give_away(text(&a, "device"), &foreign);
            // Another test may have had it meanwhile, and taken its name away.
            let taken = given && fs::read_link(link).is_ok();
            if given && !taken {
                run("losetup", &["-d", text(&a, "device")]);
            }
            if !taken {
                target.ok("detach it-lost");
            }
            taken.then_some(a)
        });
        let old = taken.expect("the device of the killed one");
        let old = text(&old, "device");
        assert_eq!(fs::read_link(link).unwrap(), Path::new(old), "set-up");
        let other = target.dir.join("run-2");
        if detached {
            target.ok("detach it-lost");
            let left = fs::symlink_metadata(link);
            assert!(left.is_err(), "it leads to the foreign disk");
        }
        let line = format!("attach it-lost --run-dir {} --json", other.display());
        let said = target.weir(&line);
        let a: Value = serde_json::from_slice(&said.stdout).unwrap_or_default();
        let now = fs::read_link(link);
        if said.status.success() {
            let of = format!("of={}", link.display());
            run("dd", &["if=/dev/zero", &of, "bs=64k", "count=4", "oflag=direct"]);
            target.ok(&format!("detach it-lost --run-dir {}", other.display()));
        }
        // The one that was killed leaves the name alone, if it is not its own any more.
        if !detached {
            target.ok("detach it-lost");
        }
        run("losetup", &["-d", old]);
        let err = String::from_utf8_lossy(&said.stderr);
        assert_eq!(now.unwrap(), Path::new(text(&a, "device")), "{err}");
        assert_eq!(text(&a, "link"), link.to_str().unwrap());
        assert!(fs::read(&foreign).unwrap() == FOREIGN, "it wrote to the foreign disk");
        assert!(fs::symlink_metadata(link).is_err());
        had += 1;
    }
    assert_eq!(had, 2);
}

#[test]
fn a_name_that_is_another_attachment_s_is_refused_before_anything_is_made() {
    if !can() {
        return;
    }
    let target = seen_by_all("it-named");
    let a = target.attach("it-named");
    let other = target.dir.join("run-2");
    let line = format!("attach it-named --run-dir {}", other.display());
    let refused = target.fails(&line, 4);
    assert!(refused.contains("cannot have the name /dev/weir/it-named"), "{refused}");
    assert!(refused.contains(&a["pid"].to_string()) && refused.contains("--name"), "{refused}");
    assert_eq!(fs::read_dir(&other).map_or(0, Iterator::count), 0);
    assert_eq!(fs::read_link("/dev/weir/it-named").unwrap(), Path::new(text(&a, "device")));
    let b = target.ok(&format!("{line} --name it-named-2 --json"));
    let b: Value = serde_json::from_str(&b).unwrap();
    assert_eq!(text(&b, "link"), "/dev/weir/it-named-2");
    target.ok(&format!("detach it-named-2 --run-dir {}", other.display()));
    target.ok("detach it-named");
    target.all_gone(&a);
}

/// In a container, whose process this one does not know by its number.
#[test]
fn an_attachment_of_another_pid_namespace_is_not_taken_for_one_that_has_ended() {
    if !can() {
        return;
    }
    let target = Target::declared(
        "[[pool]]\nname = \"mem\"\ndevices = [{ kind = \"ram\", size = \"128M\" }]\n\
         [[volume]]\nname = \"it-inside\"\npool = \"mem\"\nsize = \"32M\"\n",
    );
    let weir = env!("CARGO_BIN_EXE_weir");
    let script = "\"$0\" attach it-inside --json >\"$1.new\" && mv \"$1.new\" \"$1\" \
                  && read end && \"$0\" detach it-inside";
    let said: PathBuf = target.dir.join("said");
    let mut inside = Command::new("unshare")
        .args(["-p", "-f", "--kill-child", "--mount-proc", "--propagation", "shared"])
        .args(["sh", "-c", script, weir])
        .arg(&said)
        .env("WEIR_DATA_DIR", target.dir.join("data"))
        .env("WEIR_RUN_DIR", target.dir.join("run"))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for("the attachment", || said.exists() || inside.try_wait().unwrap().is_some());
    let a: Value = serde_json::from_slice(&fs::read(&said).unwrap()).unwrap();
    let maps = || target.ok("map list --json").contains("attach-it-inside");
    assert!(maps());
    let list: Value = serde_json::from_str(&target.ok("attach --list --json")).unwrap();
    assert_eq!(list[0]["alive"], Value::Null, "{list}");
    let shown = target.ok("attach --list");
    assert!(shown.contains("of another pid namespace"), "{shown}");
    let refused = target.fails("detach it-inside", 4);
    assert!(refused.contains("may live") && refused.contains("container"), "{refused}");
    assert!(maps() && target.dir.join("run/it-inside/state.json").exists());
    let of = format!("of={}", text(&a, "device"));
    run("dd", &["if=/dev/zero", &of, "bs=64k", "count=4", "oflag=direct"]);
    // Where it was attached it can be detached.
    drop(inside.stdin.take().map(|mut i| std::io::Write::write_all(&mut i, b"end\n")));
    let ended = inside.wait().unwrap();
    assert!(ended.success() && !maps());
    assert!(fs::symlink_metadata("/dev/weir/it-inside").is_err());
}

/// A pool of memory with this volume, which nobody sees yet.
fn unseen(volume: &str) -> Target {
    Target::declared(&format!(
        "[[pool]]\nname = \"mem\"\ndevices = [{{ kind = \"ram\", size = \"128M\" }}]\n\
         [[volume]]\nname = \"{volume}\"\npool = \"mem\"\nsize = \"32M\"\n"
    ))
}

/// Where another /dev/weir is, as in a container.
fn attach_apart(target: &Target, line: &str) -> std::process::Output {
    let script = "mount -t tmpfs none /dev/weir && exec timeout -k 5 60 \"$0\" \"$@\"";
    Command::new("unshare")
        .args(["--mount", "sh", "-c", &format!("{ALONE}{script}"), env!("CARGO_BIN_EXE_weir")])
        .args(line.split_whitespace())
        .env("WEIR_DATA_DIR", target.dir.join("data"))
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Two of one name have one initiator port: the login of one would end the session of the other.
#[test]
fn an_initiator_port_is_one_attachment_s() {
    if !can() {
        return;
    }
    let target = unseen("it-port");
    let a = target.attach("it-port");
    let maps = || target.ok("map list --json").contains("attach-it-port");
    let works = |a: &Value| {
        let of = format!("of={}", text(a, "device"));
        run("dd", &["if=/dev/zero", &of, "bs=64k", "count=4", "oflag=direct"]);
    };
    let other = target.dir.join("run-2");
    let line = format!("attach it-port --run-dir {}", other.display());
    let refused = attach_apart(&target, &line);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(4), "{said}");
    assert!(said.contains("initiator port") && said.contains(&a["pid"].to_string()), "{said}");
    assert_eq!(fs::read_dir(&other).map_or(0, Iterator::count), 0);
    works(&a);
    assert!(maps());
    // One that was killed has it no more. What was made for it is what the next one uses.
    kill(&target, &a);
    let b: Value = serde_json::from_str(&target.ok(&format!("{line} --json"))).unwrap();
    let said = target.fails("detach it-port", 4);
    assert!(said.contains("may still be mapped"), "{said}");
    assert!(said.contains("initiator port") && said.contains(&b["pid"].to_string()), "{said}");
    works(&b);
    assert!(maps());
    assert_eq!(fs::read_link("/dev/weir/it-port").unwrap(), Path::new(text(&b, "device")));
    target.ok(&format!("detach it-port --run-dir {}", other.display()));
    target.ok("detach it-port");
    assert!(!maps());
    target.all_gone(&a);
}

/// Who gives the port that another attachment has of its name takes its session, and at the end its mapping.
#[test]
fn an_initiator_port_that_is_given_may_not_be_another_attachment_s() {
    if !can() {
        return;
    }
    let target = unseen("it-derived");
    let a = target.attach("it-derived");
    let port = text(&a, "initiator_port").to_owned();
    let given = format!("attach it-derived --name it-derived-2 --initiator-port {port}");
    let refused = target.fails(&given, 4);
    assert!(refused.contains(&a["pid"].to_string()), "{refused}");
    let of = format!("of={}", text(&a, "device"));
    run("dd", &["if=/dev/zero", &of, "bs=64k", "count=4", "oflag=direct"]);
    assert!(target.ok("map list --json").contains("attach-it-derived"));
    target.ok("detach it-derived");
    target.all_gone(&a);
    // Nor may one have it of its name while somebody has given it.
    let b: Value = serde_json::from_str(&target.ok(&format!("{given} --json"))).unwrap();
    let refused = target.fails("attach it-derived", 4);
    assert!(refused.contains("initiator port"), "{refused}");
    target.ok("detach it-derived-2");
    target.all_gone(&b);
}

/// At one target, that is: another one knows nothing of it.
#[test]
fn an_initiator_port_that_is_given_is_one_attachment_s_too() {
    if !can() {
        return;
    }
    let target = unseen("it-given");
    let a = target.attach("it-given --initiator-port 5:6");
    let refused = target.fails("attach it-given --name it-given-2 --initiator-port 5:6", 4);
    assert!(refused.contains("another --initiator-port"), "{refused}");
    let elsewhere = unseen("it-given");
    let b = elsewhere.attach("it-given --name it-given-2 --initiator-port 5:6");
    // One that was killed is not kept by who has its port elsewhere. The target may not have seen yet that it has ended.
    kill(&target, &a);
    wait_for("its end", || target.weir("detach it-given").status.success());
    assert!(!target.ok("map list --json").contains("it-given"));
    target.all_gone(&a);
    assert!(elsewhere.ok("map list --json").contains("it-given"));
    elsewhere.ok("detach it-given-2");
    elsewhere.all_gone(&b);
}

/// An attachment that was killed, and its mounts with it: as of a container that ended. With the name that its file has then.
fn lost(target: &Target, volume: &str) -> (Value, String) {
    let script = format!("{ALONE}exec \"$0\" attach \"$1\" --json");
    let out = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script, env!("CARGO_BIN_EXE_weir"), volume])
        .env("WEIR_DATA_DIR", target.dir.join("data"))
        .env("WEIR_RUN_DIR", target.dir.join("run"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let a: Value = serde_json::from_slice(&out.stdout).unwrap();
    kill(target, &a);
    let name = text(&a, "device").trim_start_matches("/dev/");
    let backing = || fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"));
    let lost = format!("/volume-{}", text(&a, "mark"));
    wait_for("the end of its mounts", || backing().is_ok_and(|b| b.trim_end() == lost));
    (a, lost)
}

/// As in a container that ended: nothing of the mounts of its namespace is left, and the loop device has its file yet.
#[test]
fn a_disk_whose_mount_namespace_is_gone_is_cleaned_up() {
    if !can() {
        return;
    }
    let target = seen_by_all("it-mounts");
    let (a, lost) = lost(&target, "it-mounts");
    let name = text(&a, "device").trim_start_matches("/dev/");
    let backing = || fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"));
    let used = fs::File::open(text(&a, "device")).unwrap();
    let busy = target.fails("detach it-mounts", 4);
    assert!(busy.contains("open"), "{busy}");
    drop(used);
    target.ok("detach it-mounts");
    // Whoever looks for a free device may have this one open for a moment.
    let file = || backing().unwrap_or_default();
    let start = std::time::Instant::now();
    while file().trim_end() == lost && start.elapsed().as_secs() < 5 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let left = file();
    if left.trim_end() == lost {
        run("losetup", &["-d", text(&a, "device")]);
    }
    assert!(left.trim_end() != lost, "{name} is bound yet");
    target.all_gone(&a);
}

/// Ends a daemon whose pool lacks a device when it starts again.
fn lacking(target: &mut Target) {
    let path = |name: &str| target.dir.join(name).display().to_string();
    let (here, gone, away) = (path("here"), path("gone"), path("elsewhere"));
    target.ok(&format!("pool create q --raid 1 --device file:{here}:64M --device file:{gone}:64M"));
    target.kill();
    fs::create_dir(&away).unwrap();
    fs::rename(&gone, format!("{away}/gone")).unwrap();
}

/// Whether the daemon with this directory has a device open.
fn has_open(dir: &Path, device: &str) -> bool {
    let number = fs::metadata(device).unwrap().rdev();
    let daemon = fs::read_to_string(dir.join("pid")).unwrap_or_default();
    let all = fs::read_dir(format!("/proc/{}/fd", daemon.trim())).into_iter().flatten();
    all.flatten().any(|f| fs::metadata(f.path()).is_ok_and(|m| m.rdev() == number))
}

/// It asks its own volumes, too, that are disks of its machine. When it is the last to close one, it is written what others have written.
#[test]
fn a_daemon_that_looks_for_a_device_does_not_wait_for_itself() {
    if !can() {
        return;
    }
    let mut target = Target::declared(
        "cores = [0]\n[[pool]]\nname = \"mem\"\ndevices = [{ kind = \"ram\", size = \"128M\" }]\n\
         [[host]]\nname = \"anyone\"\nallow_any = true\n\
         [[volume]]\nname = \"it-self\"\npool = \"mem\"\nsize = \"32M\"\n\
         [[map]]\nhost = \"anyone\"\nvolume = \"it-self\"\n",
    );
    lacking(&mut target);
    target.start();
    wait_for("it is served", || !target.ok("status --json").contains("volume/it-self"));
    let a = target.attach("it-self");
    let device = text(&a, "device");
    // So that a look takes long enough to be seen, and that it is given up.
    for (n, time) in [(0, "200ms"), (1, "6s")] {
        target.ok(&format!("layer insert it-self delay time={time} ops=read --name slow --force"));
        let disk = fs::OpenOptions::new().write(true).open(device).unwrap();
        disk.write_all_at(&vec![7; 1 << 20], (8 + n) << 20).unwrap();
        wait_for("it is looked at", || has_open(&target.dir, device));
        drop(disk);
        wait_for("the look ends", || !has_open(&target.dir, device));
        target.ok("layer remove it-self slow");
        let from = format!("if={device}");
        run("dd", &[&from, "of=/dev/null", "bs=64k", "count=1", "iflag=direct"]);
    }
    target.ok("detach it-self");
    target.all_gone(&a);
}

/// A device of a pool has lost its name to a disk of the daemon's own volume, which is held until that is found, and let go of then.
#[test]
fn a_daemon_that_lets_go_of_a_disk_does_not_wait_for_itself() {
    if !can() {
        return;
    }
    let mut target = Target::declared(
        "cores = [0]\n[[pool]]\nname = \"mem\"\ndevices = [{ kind = \"ram\", size = \"128M\" }]\n\
         [[host]]\nname = \"anyone\"\nallow_any = true\n\
         [[volume]]\nname = \"it-own\"\npool = \"mem\"\nsize = \"32M\"\n\
         [[map]]\nhost = \"anyone\"\nvolume = \"it-own\"\n",
    );
    let dir = target.dir.clone();
    let path = |name: &str| dir.join(name);
    let (here, image, leg) = (path("here"), path("image"), path("leg"));
    fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let disk = Loop::new(&image).unwrap();
    std::os::unix::fs::symlink(&disk.0, &leg).unwrap();
    let legs = format!("--device file:{}:64M --device block:{}", here.display(), leg.display());
    target.ok(&format!("pool create q --raid 1 {legs}"));
    target.stop();
    // Neither is there at the start, so that it is tried again.
    drop(disk);
    fs::remove_file(&leg).unwrap();
    fs::create_dir(path("elsewhere")).unwrap();
    fs::rename(&here, path("elsewhere/here")).unwrap();
    let away = path("elsewhere/here");
    target.start();
    wait_for("it is served", || !target.ok("status --json").contains("volume/it-own"));
    let a = target.attach("it-own");
    let device = text(&a, "device");
    target.ok("layer insert it-own delay time=200ms ops=read --name slow --force");
    std::os::unix::fs::symlink(device, &leg).unwrap();
    fs::rename(&away, &here).unwrap();
    let state = || {
        let shown = target.weir("pool show q --json");
        let shown: Value = serde_json::from_slice(&shown.stdout).unwrap_or_default();
        shown["live"]["state"].clone()
    };
    wait_for("it is opened without that disk", || {
        let disk = fs::OpenOptions::new().write(true).open(device).unwrap();
        disk.write_all_at(&[7; 1 << 20], 8 << 20).unwrap();
        wait_for("it is held", || has_open(&target.dir, device) || state() == "degraded");
        drop(disk);
        state() == "degraded"
    });
    let log = fs::read_to_string(target.dir.join("log")).unwrap();
    assert!(!log.contains("is held up"), "{log}");
    target.ok("layer remove it-own slow");
    let from = format!("if={device}");
    run("dd", &[&from, "of=/dev/null", "bs=64k", "count=1", "iflag=direct"]);
    wait_for("it is let go of", || !has_open(&target.dir, device));
    target.ok("detach it-own");
    target.all_gone(&a);
}

/// A daemon that lacks a device asks all that there are, and those that cannot be read for seconds. It does not have them open then.
#[test]
fn a_dead_disk_is_kept_open_by_no_daemon_that_looks_for_another() {
    if !can() {
        return;
    }
    let mut target = seen_by_all("it-dead");
    let (a, _) = lost(&target, "it-dead");
    // It keeps its file for as long as somebody has it open.
    let used = fs::File::open(text(&a, "device")).unwrap();
    lacking(&mut target);
    let (dir, device) = (target.dir.clone(), text(&a, "device"));
    let unread = format!("{device}: it does not answer, or cannot be read");
    let is_told = AtomicBool::new(false);
    let at_most = std::thread::scope(|scope| {
        let looks = scope.spawn(|| {
            let (mut looks, mut at_most) = (0, 0);
            let begun = Instant::now();
            while !is_told.load(Ordering::Relaxed) && begun.elapsed().as_secs() < 120 {
                looks = if has_open(&dir, device) { looks + 1 } else { 0 };
                at_most = at_most.max(looks);
                std::thread::sleep(Duration::from_millis(50));
            }
            at_most
        });
        target.start();
        wait_for("it is asked", || target.ok("status --json").contains(&unread));
        is_told.store(true, Ordering::Relaxed);
        looks.join().unwrap()
    });
    assert!(at_most < 20, "it has it open at {at_most} looks on end");
    drop(used);
    target.ok("detach it-dead");
    target.all_gone(&a);
}

/// Processes that have a device open for a moment each, so that somebody has it at any time.
fn pass_by(device: &str, for_long: Duration) {
    let begun = Instant::now();
    let mut all = Vec::new();
    while begun.elapsed() < for_long {
        let script = format!("exec 9<{device}; exec sleep 0.3");
        all.push(Command::new("sh").args(["-c", &script]).spawn().unwrap());
        std::thread::sleep(Duration::from_millis(50));
        all.retain_mut(|p| p.try_wait().unwrap().is_none());
    }
    all.iter_mut().for_each(|p| drop(p.wait()));
}

/// As those that look for a free device, or ask what all are made of.
#[test]
fn who_has_a_disk_open_for_a_moment_does_not_keep_it_from_going() {
    if !can() {
        return;
    }
    let target = seen_by_all("it-passed");
    let (a, lost) = lost(&target, "it-passed");
    let device = text(&a, "device");
    std::thread::scope(|scope| {
        scope.spawn(|| pass_by(device, Duration::from_secs(4)));
        // Who has it for good is told from those.
        let mut keeps = Command::new("sh")
            .args(["-c", &format!("exec 9<{device}; read end")])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let busy = target.fails("detach it-passed", 4);
        assert!(busy.contains(&format!("process {} (sh)", keeps.id())), "{busy}");
        drop(keeps.stdin.take());
        keeps.wait().unwrap();
    });
    std::thread::scope(|scope| {
        scope.spawn(|| pass_by(device, Duration::from_secs(4)));
        std::thread::sleep(Duration::from_millis(200));
        target.ok("detach it-passed");
    });
    let file = format!("/sys/block/{}/loop/backing_file", &device["/dev/".len()..]);
    let is_bound = || fs::read_to_string(&file).is_ok_and(|b| b.trim_end() == lost);
    wait_for("the free device", || !is_bound());
    target.all_gone(&a);
}

/// Ends with this.
struct Daemon(std::process::Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The daemon that is asked by its socket is in a container with a network of its own, and another one listens at its address.
#[test]
fn another_daemon_s_volume_of_that_name_is_not_attached() {
    if !can() {
        return;
    }
    let target = seen_by_all("it-same");
    let dir = target.dir.join("inside");
    fs::create_dir(&dir).unwrap();
    let config = fs::read_to_string(target.dir.join("weir.toml")).unwrap();
    let data = |d: &Path| format!("{:?}", d.join("data"));
    fs::write(dir.join("weir.toml"), config.replace(&data(&target.dir), &data(&dir))).unwrap();
    let script = "ip link set lo up && exec \"$0\" serve --config \"$1\"";
    let inside = Command::new("unshare")
        .args(["--net", "sh", "-c", script, env!("CARGO_BIN_EXE_weir")])
        .arg(dir.join("weir.toml"))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _inside = Daemon(inside);
    let at = format!("--data-dir {}", dir.join("data").display());
    wait_for("the other daemon", || target.weir(&format!("target list {at}")).status.success());
    for protocol in ["brp", "srp"] {
        let refused = target.fails(&format!("attach it-same --protocol {protocol} {at}"), 3);
        assert!(refused.contains("another volume it-same than the daemon"), "{refused}");
        assert!(refused.contains("--target"), "{refused}");
        // What is that daemon's is attached.
        let a = target.attach(&format!("it-same --protocol {protocol}"));
        target.ok("detach it-same");
        target.all_gone(&a);
    }
}
