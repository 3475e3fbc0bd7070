use super::*;
use crate::error::Kind;
use std::os::unix::fs::symlink;

/// A directory that goes at the end.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Scratch {
        let dir = format!("weir-attach-{name}-{}", std::process::id());
        let dir = fs::canonicalize(std::env::temp_dir()).unwrap().join(dir);
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        Scratch(dir)
    }

    /// A place of that name, with the names of disks in `links`.
    pub(crate) fn place(&self, name: &str) -> Place {
        let links = self.0.join("links");
        fs::create_dir_all(&links).unwrap();
        Place::of(&self.0.join("run"), name).unwrap().with_links(&links)
    }

    fn links(&self) -> Vec<String> {
        let all = fs::read_dir(self.0.join("links")).unwrap();
        let all = all.map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut all: Vec<_> = all.filter(|name| !name.starts_with('.')).collect();
        all.sort();
        all
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What this process has, by that name.
pub(crate) fn state(name: &str, method: Method, device: &str) -> State {
    let Process { pid, started, home } = Process::me();
    State {
        name: name.into(),
        volume: name.into(),
        protocol: "brp".into(),
        targets: vec!["127.0.0.1:5556".into()],
        initiator_port: String::new(),
        identity: "6001".into(),
        method,
        device: device.into(),
        link: None,
        size: 1 << 30,
        block_size: 512,
        read_only: false,
        queues: 1,
        pid,
        started,
        home,
        mapped: None,
        thread: None,
        diskseq: None,
        mark: None,
    }
}

/// What was made for an attachment of volume `v`.
pub(crate) fn mapped() -> Mapped {
    Mapped {
        server: "unix:/nowhere".into(),
        host: "h".into(),
        made_host: true,
        volume: "v".into(),
        naa: String::new(),
        lun: None,
        unmapped: false,
        shared: false,
    }
}

/// A process that has ended.
pub(crate) fn ended() -> Process {
    Process { started: 1, ..Process::me() }
}

#[test]
fn names_are_checked_and_used_once() {
    for bad in ["", ".", "..", "a/b", "-x", "a b", &"x".repeat(65)] {
        assert_eq!(Place::of(Path::new("/x"), bad).unwrap_err().kind, Kind::Invalid, "{bad}");
    }
    let dir = Scratch::new("state");
    let mut place = dir.place("db-01");
    place.create().unwrap();
    assert_eq!(place.create().unwrap_err().kind, Kind::Exists);
    let listed = Listed { name: "db-01".into(), state: None, life: Life::Alive };
    assert_eq!(list(&dir.0.join("run")), [listed]);
    assert!(place.is_own() && place.owner() == Some(Process::me()));
    let state = state("db-01", Method::Fuse, "/dev/loop0");
    place.write(&state).unwrap();
    assert_eq!(place.read().as_ref(), Some(&state));
    assert!(state.is_alive());
    assert!(!State { started: state.started + 1, ..state.clone() }.is_alive());
    place.remove();
    assert!(!place.exists());
    assert!(place.write(&state).is_err(), "it is nobody's");
}

/// The kernel gives the number of a killed attachment's disk to the next.
#[test]
fn who_gets_a_device_takes_its_other_names_away() {
    let dir = Scratch::new("links");
    let nbd = |n: u32| PathBuf::from(format!("/dev/nbd{n}"));
    let (mut a, mut b, mut c) = (dir.place("a"), dir.place("b"), dir.place("c"));
    for (place, n) in [(&mut a, 0), (&mut c, 1)] {
        place.create().unwrap();
        place.about_to_have(Method::Nbd, &nbd(n)).unwrap();
        assert!(place.make_link(&nbd(n)).is_ok_and(|l| l.starts_with(&dir.0)));
        place.write(&state(place.name(), Method::Nbd, nbd(n).to_str().unwrap())).unwrap();
    }
    b.create().unwrap();
    b.about_to_have(Method::Nbd, &nbd(0)).unwrap();
    assert_eq!(dir.links(), ["c"], "/dev/weir/a is not b's disk");
    b.make_link(&nbd(0)).unwrap();
    assert!(b.is_link_to(&nbd(0)) && !a.is_link_to(&nbd(0)) && !b.is_link_to(&nbd(1)));
    // What has the name by now is not taken away with the old one.
    symlink(nbd(7), dir.0.join("links/a")).unwrap();
    a.remove();
    assert_eq!(dir.links(), ["a", "b", "c"]);
    b.remove();
    c.remove();
    assert_eq!(dir.links(), ["a"]);
}

#[test]
fn a_name_of_a_disk_goes_though_its_state_was_never_written() {
    let dir = Scratch::new("unwritten");
    let mut place = dir.place("a");
    for left in [true, false] {
        place.create().unwrap();
        place.about_to_have(Method::Fuse, Path::new("/dev/loop5")).unwrap();
        place.make_link(Path::new("/dev/loop5")).unwrap();
        match left {
            true => place.leave_made(None),
            false => place.remove(),
        }
        assert!(dir.links().is_empty());
        place.remove();
    }
}

#[test]
fn a_directory_is_known_by_its_full_name() {
    let dir = Scratch::new("full");
    fs::create_dir(dir.0.join("real")).unwrap();
    symlink("real", dir.0.join("run")).unwrap();
    let mut place = dir.place("a");
    assert_eq!(place.disk(), dir.0.join("real/a/disk"));
    place.create().unwrap();
    // One that was not there when it was named.
    symlink("later", dir.0.join("late")).unwrap();
    let mut late = Place::of(&dir.0.join("late/run"), "a").unwrap();
    fs::create_dir(dir.0.join("later")).unwrap();
    late.create().unwrap();
    assert_eq!(late.disk(), dir.0.join("later/run/a/disk"));
}

/// Everybody may open /dev/weir, and so lock it.
#[test]
fn names_do_not_wait_for_whoever_holds_their_directory() {
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, Instant};
    let dir = Scratch::new("held");
    let mut place = dir.place("a");
    place.create().unwrap();
    let links = dir.0.join("links");
    let device = Path::new("/dev/loop98765");
    let held = fs::File::open(&links).unwrap();
    held.lock().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let other = place.clone();
    std::thread::spawn(move || {
        let done = other.about_to_have(Method::Fuse, device).is_ok();
        let _ = tell.send(done && other.make_link(device).is_ok());
    });
    assert_eq!(told.recv_timeout(Duration::from_secs(2)), Ok(true), "it waits");
    // Only root could hold this one.
    let lock = links.join(".lock");
    assert_eq!(fs::metadata(&lock).unwrap().permissions().mode() & 0o777, 0o600);
    let held = fs::File::open(&lock).unwrap();
    held.lock().unwrap();
    let start = Instant::now();
    assert!(place.about_to_have(Method::Fuse, device).is_err(), "it is no disk yet");
    place.remove();
    assert!(dir.links().is_empty() && start.elapsed() < Duration::from_secs(30));
}

/// A disk of this machine that is no attachment's, if there is one.
fn foreign() -> Option<PathBuf> {
    let disks = fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
    let used = disks.filter(|d| {
        let size = fs::read_to_string(d.path().join("size")).unwrap_or_default();
        !matches!(size.trim(), "" | "0")
    });
    let mut all = used.map(|d| Path::new("/dev").join(d.file_name()));
    let found = all.find(|d| d.exists() && !crate::whose::looks_attached(d));
    if found.is_none() {
        println!("SKIPPED: this machine has no disk");
    }
    found
}

#[test]
fn a_name_is_taken_over_only_where_nobody_can_mean_an_attachment_by_it() {
    let dir = Scratch::new("in-use");
    let mut place = dir.place("a");
    place.create().unwrap();
    let link = dir.0.join("links/a");
    let mine = Path::new("/dev/loop98765");
    // Of no device, of one that is not there, and its own: these are free.
    for old in ["/dev/loop98764", "nowhere", "/dev/loop98765"] {
        symlink(old, &link).unwrap();
        assert!(place.make_link(mine).is_ok() && place.is_link_to(mine), "{old}");
        fs::remove_file(&link).unwrap();
    }
    // What is no symbolic link, and one to something else, stay.
    fs::write(&link, "x").unwrap();
    assert!(place.make_link(mine).is_err() && fs::read(&link).unwrap() == b"x");
    fs::remove_file(&link).unwrap();
    symlink(&dir.0, &link).unwrap();
    assert!(place.keep_name().is_err() && fs::read_link(&link).unwrap() == dir.0);
    fs::remove_file(&link).unwrap();
    // Who writes to this name writes to another's disk.
    let Some(foreign) = foreign() else { return };
    symlink(&foreign, &link).unwrap();
    assert!(place.keep_name().unwrap());
    assert!(fs::read_link(&link).is_err(), "it is not to be seen until it is this one's disk");
    assert!(place.make_link(mine).is_ok() && place.is_link_to(mine));
    place.remove();
    assert!(dir.links().is_empty());
}

/// Of two run directories, both may have an attachment of that name.
#[test]
fn a_name_is_that_of_one_attachment_as_long_as_that_lives() {
    let dir = Scratch::new("two-dirs");
    let mut one = dir.place("a");
    let links = dir.0.join("links");
    let mut two = Place::of(&dir.0.join("other"), "a").unwrap().with_links(&links);
    let (first, second) = (Path::new("/dev/loop98765"), Path::new("/dev/loop98764"));
    one.create().unwrap();
    two.create().unwrap();
    let refused = |two: &Place| {
        let e = two.keep_name().unwrap_err();
        let by = format!("process {}", std::process::id());
        assert!(e.kind == Kind::Exists && e.reason.contains(&by), "{e:?}");
        assert!(e.reason.contains("run/a") && e.hint.contains("--name"), "{e:?}");
        assert!(two.make_link(second).is_err());
    };
    assert!(one.keep_name().unwrap());
    refused(&two);
    one.make_link(first).unwrap();
    refused(&two);
    // While it is being detached.
    assert!(one.take_link(first, false) && dir.links().is_empty());
    refused(&two);
    one.make_link(first).unwrap();
    // Its end leaves what is not its own.
    two.remove();
    assert!(one.is_link_to(first));
    // Once its process has ended, and nobody uses its disk, another may have the name.
    let record = links.join(".made/a");
    let mut text: serde_json::Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    assert_eq!(text["device"], first.to_str().unwrap());
    text["started"] = 1.into();
    fs::write(&record, text.to_string()).unwrap();
    let maker = Maker::of(ended());
    fs::write(dir.0.join("run/a/maker.json"), serde_json::to_vec(&maker).unwrap()).unwrap();
    two.create().unwrap();
    assert!(two.keep_name().unwrap());
    two.make_link(second).unwrap();
    one.remove();
    assert!(two.is_link_to(second), "it is not the first one's any more");
    two.remove();
    assert!(dir.links().is_empty() && !record.exists());
}

/// The kernel has freed the device of a killed attachment, and somebody else has got it.
#[test]
fn a_name_goes_with_its_attachment_whoever_has_the_device() {
    let Some(foreign) = foreign() else { return };
    let dir = Scratch::new("foreign");
    for recorded in [true, false] {
        let mut place = dir.place("a");
        place.create().unwrap();
        place.make_link(&foreign).unwrap();
        if !recorded {
            // As by an older version.
            fs::remove_file(dir.0.join("links/.made/a")).unwrap();
        }
        place.write(&state("a", Method::Fuse, foreign.to_str().unwrap())).unwrap();
        place.remove();
        assert!(dir.links().is_empty(), "recorded: {recorded}");
    }
}

#[test]
fn who_gave_a_name_is_for_root() {
    use std::os::unix::fs::PermissionsExt;
    let dir = Scratch::new("made");
    let mut place = dir.place("a");
    place.create().unwrap();
    assert!(place.keep_name().unwrap());
    let made = dir.0.join("links/.made");
    assert_eq!(fs::metadata(&made).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(fs::read_dir(&made).unwrap().count(), 1);
}
