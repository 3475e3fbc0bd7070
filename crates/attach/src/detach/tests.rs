use super::*;
use crate::state::tests::{Scratch, ended, mapped, state};
use crate::state::{Maker, Process};
use std::fs;
use std::process::Command;

fn ours(place: &Place, device: &Path) -> bool {
    place.maker().is_some_and(|m| whose::is_left(place, &m, device))
}

/// The files of an attachment of that process, for which something was made.
fn left_by(dir: &Scratch, process: Process) -> Place {
    let mut place = dir.place("a");
    place.create().unwrap();
    let made = Made {
        pid: process.pid,
        started: process.started,
        home: process.home,
        ..Made::here(mapped(), "1:2".into(), Vec::new())
    };
    place.write_made(Some(&made)).unwrap();
    let maker = Maker::of(process);
    fs::write(dir.0.join("run/a/maker.json"), serde_json::to_vec(&maker).unwrap()).unwrap();
    place
}

#[test]
fn what_was_made_is_known_until_it_is_taken_back_or_given_up() {
    if !sys::is_root() {
        println!("SKIPPED: it needs root");
        return;
    }
    let dir = Scratch::new("kept");
    let run = dir.0.join("run");
    let place = left_by(&dir, ended());
    let cannot = |_: &Made| Err::<String, _>("the daemon is away");
    for _ in 0..2 {
        let done = detach(&run, "a", false, cannot).unwrap();
        let left = done.left.unwrap();
        assert!(left.kept && left.why == "the daemon is away" && left.made.mapped == mapped());
        assert!(place.made().is_some());
    }
    let done = detach(&run, "a", false, |_| Ok::<_, ()>("taken back".into())).unwrap();
    assert!(done.notes.contains(&"taken back".to_owned()) && done.left.is_none());
    assert!(!place.exists());
    let place = left_by(&dir, ended());
    assert!(!detach(&run, "a", true, cannot).unwrap().left.unwrap().kept, "given up");
    assert!(!place.exists());
}

/// Its process took the disk away and ended in order, but could not take back what was made: its state is gone by then.
#[test]
fn a_process_that_could_not_take_it_back_does_not_hide_that() {
    if !sys::is_root() {
        println!("SKIPPED: it needs root");
        return;
    }
    let dir = Scratch::new("hidden");
    let run = dir.0.join("run");
    let mut process = Command::new("sleep").arg("60").spawn().unwrap();
    let it = Process::of(process.id()).unwrap();
    let place = left_by(&dir, Process::me());
    let Process { pid, started, .. } = it;
    let state =
        State { pid, started, mapped: Some(mapped()), ..state("a", Method::Nbd, "/dev/nbd98765") };
    place.write(&state).unwrap();
    let maker = Maker::of(it);
    fs::write(run.join("a/maker.json"), serde_json::to_vec(&maker).unwrap()).unwrap();
    let ends = std::thread::spawn({
        let place = place.clone();
        move || {
            std::thread::sleep(Duration::from_millis(500));
            place.leave_made(None);
            process.kill().unwrap();
            process.wait().unwrap();
        }
    });
    let done = detach(&run, "a", false, |_| Err::<String, _>("no")).unwrap();
    ends.join().unwrap();
    assert!(done.left.is_some_and(|l| l.kept) && place.made().is_some());
}

#[test]
fn who_is_making_an_attachment_is_ended_before_its_files_go() {
    if !sys::is_root() {
        println!("SKIPPED: it needs root");
        return;
    }
    let dir = Scratch::new("maker");
    let run = dir.0.join("run");
    let mut maker = Command::new("sleep").arg("60").spawn().unwrap();
    let it = Process::of(maker.id()).unwrap();
    let place = left_by(&dir, it);
    let undo = |_: &Made| Ok::<String, ()>("taken back".into());
    assert_eq!(detach(&run, "a", false, undo).unwrap_err().kind, Kind::Busy);
    assert!(maker.try_wait().unwrap().is_none() && place.made().is_some());
    let done = detach(&run, "a", true, |made| {
        assert!(!it.is_alive(), "it makes nothing any more");
        undo(made)
    });
    done.unwrap();
    assert!(!place.exists() && !maker.wait().unwrap().success());
}

/// It was killed between its device and its state.
#[test]
fn a_device_goes_with_an_attachment_that_was_never_finished() {
    if !sys::is_root() || loopdev::probe().is_err() {
        println!("SKIPPED: it needs root and loop devices");
        return;
    }
    let dir = Scratch::new("unfinished");
    let mut place = dir.place("a");
    place.create().unwrap();
    let file = place.disk().join(crate::fuse::file_name(place.mark().as_deref()));
    fs::write(&file, vec![0; 1 << 20]).unwrap();
    let won = |device: &Path| {
        assert!(loopdev::is_free(device), "not yet");
        place.about_to_have(Method::Fuse, device)
    };
    let device = loopdev::configure(&file, 512, false, won).unwrap();
    assert!(ours(&place, &device));
    place.make_link(&device).unwrap();
    let disk = Some((Method::Fuse, device.clone()));
    let maker = Maker { disk, mark: place.mark(), ..Maker::of(ended()) };
    fs::write(dir.0.join("run/a/maker.json"), serde_json::to_vec(&maker).unwrap()).unwrap();
    let done = detach(&dir.0.join("run"), "a", false, |_| Ok::<_, ()>(String::new())).unwrap();
    assert!(done.left.is_none());
    // Whoever looks for a free device may have this one open for a moment.
    let left = wait_for("", || !ours(&place, &device)).is_err();
    if left {
        loopdev::clear(&device, None).unwrap();
    }
    assert!(!left, "{} has its file yet", device.display());
}

/// The version before kept what it had made in the state only, and did not write down whose the files are.
#[test]
fn what_an_older_version_made_is_taken_back() {
    if !sys::is_root() {
        println!("SKIPPED: it needs root");
        return;
    }
    let dir = Scratch::new("older");
    let run = dir.0.join("run");
    let mut place = dir.place("a");
    let Process { pid, started, .. } = ended();
    let initiator_port = "1:2".to_owned();
    let state =
        State { pid, started, initiator_port, ..state("a", Method::Fuse, "/dev/loop98765") };
    let write = |place: &mut Place| {
        place.create().unwrap();
        let mut value = serde_json::to_value(&state).unwrap();
        for new in ["pid_namespace", "kernel_boot"] {
            value.as_object_mut().unwrap().remove(new);
        }
        let mut mapped = serde_json::to_value(mapped()).unwrap();
        mapped.as_object_mut().unwrap().remove("shared");
        value["mapped"] = mapped;
        fs::write(run.join("a/state.json"), value.to_string()).unwrap();
        fs::remove_file(run.join("a/maker.json")).unwrap();
    };
    write(&mut place);
    let mut asked = Vec::new();
    let old = Process { home: crate::state::Home::default(), ..ended() };
    // What could not be taken back is known the next time, too.
    for _ in 0..2 {
        let done = detach(&run, "a", false, |made| {
            asked.push(made.clone());
            Err::<String, _>("the daemon is away")
        });
        assert!(done.unwrap().left.is_some_and(|l| l.kept));
    }
    let done = detach(&run, "a", false, |made| {
        asked.push(made.clone());
        Ok::<_, ()>("taken back".into())
    });
    assert!(done.unwrap().notes.contains(&"taken back".to_owned()));
    assert!(!place.exists());
    for made in &asked {
        assert!(made.initiator_port == "1:2" && made.process() == old);
        assert!(made.mapped.shared, "it is not known that nobody else has the port");
    }
    assert_eq!(asked.len(), 3);
}

/// What the kernel has cannot be asked for: that is no reason to end who may serve it.
#[test]
fn a_process_whose_disk_is_not_known_is_left_alone_without_force() {
    if !sys::is_root() || Path::new("/dev/ublk-control").exists() {
        println!("SKIPPED: it needs root, and a machine without ublk");
        return;
    }
    let dir = Scratch::new("unknown");
    let run = dir.0.join("run");
    let mut process = Command::new("sleep").arg("60").spawn().unwrap();
    let it = Process::of(process.id()).unwrap();
    let place = left_by(&dir, Process::me());
    let Process { pid, started, .. } = it;
    let state = State { pid, started, ..state("a", Method::Ublk, "/dev/ublkb0") };
    place.write(&state).unwrap();
    let maker = Maker { disk: Some((Method::Ublk, state.device.clone())), ..Maker::of(it) };
    fs::write(run.join("a/maker.json"), serde_json::to_vec(&maker).unwrap()).unwrap();
    let undo = |_: &Made| Ok::<_, ()>(String::new());
    let done = detach(&run, "a", false, undo).map(|d| d.notes);
    let lives = process.try_wait().unwrap().is_none();
    assert!(lives && done.is_err(), "{done:?}");
    assert!(place.read().is_some() && place.made().is_some());
    assert!(detach(&run, "a", true, undo).is_ok() && !place.exists());
    process.wait().unwrap();
}

/// The kernel may give a free device to others at once: its name is gone by then.
#[test]
fn the_name_of_a_disk_goes_before_the_disk_and_comes_back_if_that_stays() {
    if !sys::is_root() || loopdev::probe().is_err() {
        println!("SKIPPED: it needs root and loop devices");
        return;
    }
    let dir = Scratch::new("name");
    let mut place = dir.place("a");
    place.create().unwrap();
    let file = place.disk().join(crate::fuse::file_name(place.mark().as_deref()));
    fs::write(&file, vec![0; 1 << 20]).unwrap();
    let device = loopdev::configure(&file, 512, false, |_| Ok(())).unwrap();
    let link = place.make_link(&device).unwrap();
    let Process { pid, started, .. } = ended();
    let mark = place.mark();
    let state = State { pid, started, mark, ..state("a", Method::Fuse, device.to_str().unwrap()) };
    let failed = nameless(&place, &state, |_| {
        assert!(fs::read_link(&link).is_err());
        Err(Error::new(Kind::Busy, "", "", ""))
    });
    let back = place.is_link_to(&device);
    let done = take_disk(&place, &state, false, &mut Vec::new());
    let left = ours(&place, &device);
    if left {
        loopdev::clear(&device, None).unwrap();
    }
    assert!(failed.is_err() && back && done.is_ok() && !left, "{done:?}");
    assert!(fs::read_link(&link).is_err());
}

/// Of two that end an attachment, the slower one must not end the next of that name.
#[test]
fn who_ends_an_attachment_keeps_others_from_that_meanwhile() {
    if !sys::is_root() {
        println!("SKIPPED: it needs root");
        return;
    }
    let dir = Scratch::new("two");
    let run = dir.0.join("run");
    let slower_and_next = || {
        let place = left_by(&dir, ended());
        let held = File::open(run.join("a")).unwrap();
        held.lock().unwrap();
        let slower = std::thread::spawn({
            let run = run.clone();
            move || detach(&run, "a", false, |_| Ok::<String, ()>("taken back".into()))
        });
        std::thread::sleep(Duration::from_millis(300));
        assert!(place.made().is_some() && !slower.is_finished(), "another is at it");
        place.remove();
        let next = left_by(&dir, Process::me());
        drop(held);
        let kind = slower.join().unwrap().unwrap_err().kind;
        assert!(next.made().is_some() && next.is_own());
        (kind, next)
    };
    // It finds the next one, which is being made. Should it look between the two, it finds none, and is right.
    let (mut kind, mut next) = slower_and_next();
    while kind == Kind::NotFound {
        next.remove();
        (kind, next) = slower_and_next();
    }
    assert_eq!(kind, Kind::Busy);
    // An end that is under way lets the process itself take its part.
    next.remove();
    let mut process = Command::new("sleep").arg("60").spawn().unwrap();
    let it = Process::of(process.id()).unwrap();
    let place = left_by(&dir, Process::me());
    let Process { pid, started, .. } = it;
    let state = State { pid, started, ..state("a", Method::Nbd, "/dev/nbd98765") };
    place.write(&state).unwrap();
    let maker = Maker::of(it);
    fs::write(run.join("a/maker.json"), serde_json::to_vec(&maker).unwrap()).unwrap();
    let slower = std::thread::spawn({
        let run = run.clone();
        move || detach(&run, "a", false, |_| Err::<String, _>("it is another's"))
    });
    std::thread::sleep(Duration::from_millis(300));
    let held = place.lock(Duration::from_secs(2)).unwrap();
    place.remove();
    let next = left_by(&dir, Process::me());
    process.kill().unwrap();
    process.wait().unwrap();
    drop(held);
    assert!(slower.join().unwrap().unwrap().left.is_none());
    assert!(next.made().is_some() && next.is_own());
    next.remove();
}

/// As of a container: by its number here it is another process, or none.
#[test]
fn an_attachment_of_another_pid_namespace_is_left_alone_without_force() {
    if !sys::is_root() {
        println!("SKIPPED: it needs root");
        return;
    }
    let dir = Scratch::new("elsewhere");
    let run = dir.0.join("run");
    let mut process = Command::new("unshare").args(["-p", "-f", "sleep", "60"]).spawn().unwrap();
    let inside = format!("/proc/{}/ns/pid_for_children", process.id());
    let here = Process::me();
    let namespace = || fs::metadata(&inside).ok().map(|m| std::os::unix::fs::MetadataExt::ino(&m));
    wait_for("", || namespace().is_some_and(|n| Some(n) != here.home.pid_namespace)).unwrap();
    let home = crate::state::Home { pid_namespace: namespace(), ..here.home };
    // The first process there.
    let it = Process { pid: 1, started: 1, home };
    let place = left_by(&dir, Process::me());
    let state = State { pid: 1, started: 1, home, ..state("a", Method::Nbd, "/dev/nbd98765") };
    place.write(&state).unwrap();
    let maker = Maker::of(it);
    let write = || fs::write(run.join("a/maker.json"), serde_json::to_vec(&maker).unwrap());
    write().unwrap();
    let refused = |with_state: bool| {
        let e = detach(&run, "a", false, |_| Ok::<_, ()>(String::new())).map(|d| d.notes);
        let e = e.unwrap_err();
        assert!(e.kind == Kind::Busy && e.reason.contains("pid namespace"), "{e:?}");
        assert!(place.made().is_some() && place.read().is_some() == with_state);
    };
    refused(true);
    // Nor is one that is being made.
    fs::rename(run.join("a/state.json"), run.join("state")).unwrap();
    refused(false);
    fs::rename(run.join("state"), run.join("a/state.json")).unwrap();
    let e = dir.place("a").create().unwrap_err();
    assert!(e.reason.contains("pid namespace"), "{e:?}");
    let done = detach(&run, "a", true, |_| Ok::<_, ()>(String::new())).unwrap();
    assert!(done.notes.iter().any(|n| n.contains("may go on")), "{:?}", done.notes);
    assert!(!place.exists());
    process.kill().unwrap();
    process.wait().unwrap();
}

/// Its process was killed before it had written down whose it is.
#[test]
fn a_directory_of_nobody_is_taken_away() {
    if !sys::is_root() {
        println!("SKIPPED: it needs root");
        return;
    }
    let dir = Scratch::new("nobody");
    let run = dir.0.join("run");
    fs::create_dir_all(run.join("a/disk")).unwrap();
    assert!(detach(&run, "a", false, |_| Ok::<_, ()>(String::new())).is_ok());
    assert!(!run.join("a").exists());
}
