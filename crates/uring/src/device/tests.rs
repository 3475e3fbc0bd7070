use super::*;
use crate::closing::tests::{Hung, until};
use std::process::{Command, Stdio};
use weir_disk::Disk as _;

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("weir-held-{name}-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&dir));
        std::fs::create_dir_all(&dir).expect("a directory");
        Dir(dir)
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).expect("it is written");
        path
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Holds what no other test has. A test beside this one may start a program: until that has replaced it, the new process
/// shares the descriptors of this one, and with them a lock that was just given up.
fn held(path: &Path) -> Held {
    for _ in 0..10_000 {
        match Held::open(path, false) {
            Err(HoldError::Busy) => std::thread::sleep(std::time::Duration::from_millis(1)),
            other => return other.expect("it is held"),
        }
    }
    panic!("{path:?} is held by somebody else");
}

#[test]
fn one_thing_has_one_identity_and_one_holder() {
    let dir = Dir::new("names");
    let path = dir.file("disk", &[0; 8192]);
    let (link, hard) = (dir.0.join("link"), dir.0.join("hard"));
    std::os::unix::fs::symlink(&path, &link).expect("a link");
    std::fs::hard_link(&path, &hard).expect("another name");
    let first = held(&path);
    for name in [&path, &link, &hard] {
        assert!(matches!(Held::open(name, false), Err(HoldError::Busy)), "{name:?}");
        let meta = std::fs::metadata(name).expect("it is there");
        assert_eq!(Identity::of(&meta), Some(first.identity()));
    }
    assert_eq!(locked_by(&link), Some(std::process::id()));
    drop(first);
    drop(held(&hard));
}

#[test]
fn the_lock_goes_with_the_last_user_not_with_the_first() {
    let dir = Dir::new("last");
    let path = dir.file("disk", &[0; 8192]);
    let first = Arc::new(held(&path));
    let ring = crate::Ring::new().expect("a ring");
    let disk = crate::FileDisk::on(&ring, &path, &first).expect("a disk");
    assert!(first.is_used());
    let again = crate::FileDisk::on(&ring, Path::new("other"), &first).expect("another");
    assert!(again.name() == "other" && again.identity() == disk.identity());
    drop((first, again));
    assert!(matches!(Held::open(&path, false), Err(HoldError::Busy)), "a reactor has it still");
    drop(disk);
    drop(held(&path));
}

#[test]
fn what_is_no_device_is_refused_without_waiting() {
    let dir = Dir::new("kinds");
    let pipe = dir.0.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().is_ok_and(|s| s.success()));
    for path in [pipe.as_path(), Path::new("/dev/null")] {
        assert!(matches!(Held::open(path, false), Err(HoldError::Kind)), "{path:?}");
    }
    assert!(matches!(Held::open(&dir.0.join("none"), false), Err(HoldError::Io(_))));
    let d = Held::open(&dir.0, false).expect("a directory is held");
    assert!(d.is_directory() && matches!(Held::open(&dir.0, false), Err(HoldError::Busy)));
}

#[test]
fn another_process_that_writes_is_told() {
    let dir = Dir::new("writers");
    let path = dir.file("disk", &[0; 8192]);
    let device = held(&path);
    let (path, identity) = (device.path().to_owned(), device.identity());
    assert_eq!(opened_by(&path, identity), None);
    let mut child = Command::new("sh")
        .args(["-c", "exec 3>>\"$0\"; echo; read -r _"])
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a shell");
    // It says a word when it has the file open.
    let mut word = [0; 1];
    io::Read::read_exact(child.stdout.as_mut().expect("its output"), &mut word).expect("a word");
    let found = opened_by(&path, identity);
    drop(child.stdin.take());
    child.wait().expect("its end");
    if let Some(text) = &found {
        assert!(text.contains(&child.id().to_string()) && text.contains("(sh)"), "{text}");
    }
    // Kernels before 5.14 do not tell the numbers of files.
    let tells = std::fs::read_to_string("/proc/self/fdinfo/0").is_ok_and(|t| t.contains("ino:"));
    assert_eq!(found.is_some(), tells);
    assert_eq!(opened_by(&path, identity), None);
}

#[test]
fn contents_are_found_by_signature_or_as_bytes() {
    let dir = Dir::new("contents");
    let look = |bytes: &[u8]| {
        let path = dir.file("disk", bytes);
        held(&path).contents().expect("it is read")
    };
    assert_eq!(look(&[]), Contents::default());
    assert_eq!(look(&[0; 100_000]), Contents::default());
    let text = look(b"root:x:0:0:root:/root:/bin/bash\n");
    assert_eq!(
        (text.kinds(), text.told().as_str()),
        (vec!["data".into()], "data of no known kind")
    );
    for at in [0, 5000, 3 << 20, (6 << 20) - 1] {
        let mut bytes = vec![0; 6 << 20];
        bytes[at] = 1;
        assert_eq!(look(&bytes).kinds(), ["data"], "at {at}");
    }
    let mut bytes = vec![0; 1 << 20];
    bytes[1080..1082].copy_from_slice(b"\x53\xef");
    assert_eq!(look(&bytes).kinds()[0], "ext2");
}

#[test]
fn what_mkfs_makes_is_known_with_and_without_the_library() {
    let dir = Dir::new("mkfs");
    let path = dir.0.join("disk");
    for (tool, kind) in [("mkfs.ext4", "ext4"), ("mkfs.xfs", "xfs"), ("mkswap", "swap")] {
        let file = File::create(&path).expect("a file");
        file.set_len(320 << 20).expect("its size");
        let made = Command::new(tool).arg("-q").arg(&path).output();
        let made = match made {
            Ok(o) if !o.status.success() => Command::new(tool).arg(&path).output(),
            other => other,
        };
        if !made.is_ok_and(|o| o.status.success()) {
            eprintln!("skipped: {tool} is not installed");
            continue;
        }
        let device = held(&path);
        assert_eq!(device.contents().expect("it is read").kinds(), [kind]);
        if let Some(found) = blkid::probe(&device, (0, device.len().expect("its length"))) {
            assert_eq!(found[0].kind, kind, "libblkid says the same");
        }
    }
}

#[test]
fn new_files_and_directories_are_their_owners() {
    use std::os::unix::fs::PermissionsExt;
    let dir = Dir::new("modes");
    let (file, sub) = (dir.0.join("file"), dir.0.join("sub"));
    make_file(&file, 0).expect("a file");
    make_dir(&sub).expect("a directory");
    let mode = |p: &Path| std::fs::metadata(p).expect("it is there").permissions().mode() & 0o777;
    assert_eq!((mode(&file), mode(&sub)), (0o600, 0o700));
    let exists = |e: io::Error| e.kind() == io::ErrorKind::AlreadyExists;
    assert!(make_file(&file, 0).is_err_and(exists) && make_dir(&sub).is_err_and(exists));
    assert!(make_dir(&dir.0.join("a/b")).is_err(), "not several at once");
    let device = held(&file);
    device.set_len(2 * PAGE).expect("its length");
    device.write(PAGE, &[7; PAGE as usize]).expect("it is written");
    assert_eq!(device.read(0, 8192).expect("it is read")[4095..4097], [0, 7]);
    assert!(device.read(PAGE, 8192).is_err(), "there is no more");
}

/// A loop device, which goes with its scope.
struct Loop(PathBuf);

impl Loop {
    fn new(file: &Path) -> Option<Loop> {
        let out = Command::new("losetup").args(["-f", "--show"]).arg(file).output().ok()?;
        let name = String::from_utf8(out.stdout).ok()?;
        out.status.success().then(|| Loop(name.trim().into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        drop(Command::new("losetup").arg("-d").arg(&self.0).status());
    }
}

/// What had a name before is closed by a thread that may wait. It may hang in that, and is claimed.
#[test]
fn what_is_dropped_aside_and_hangs_is_known_to_be_closed() {
    let _alone = crate::closing::COUNTS.lock();
    let (file, hung) = Hung::new();
    let identity = Identity::Block(u64::MAX - 2);
    let last = Arc::new(Held {
        file: Aside::new(file, Waits::Device(Some(identity))),
        path: "/dev/none".into(),
        identity,
        read_only: false,
        directory: false,
        block: 512,
        len: AtomicU64::new(0),
        lasting: None,
        users: AtomicUsize::new(0),
        losses: Arc::default(),
    });
    let (another, before) = (last.clone(), Closings::since_now());
    crate::drop_aside(another);
    until(|| before.are_over());
    assert!(!is_being_closed(identity), "it was not the last");
    crate::drop_aside(last);
    until(|| is_being_closed(identity));
    hung.goes_on();
    until(|| !is_being_closed(identity) && before.are_over());
}

/// One that somebody else has is given up as one that was held: its claim goes with it.
#[test]
fn a_device_that_is_locked_is_closed_as_one_that_was_claimed() {
    let dir = Dir::new("locked");
    let Some(device) = Loop::new(&dir.file("image", &[7; 1 << 20])) else {
        return eprintln!("skipped: no loop devices");
    };
    let _alone = crate::closing::COUNTS.lock();
    let looks = File::open(&device.0).expect("open");
    looks.lock().expect("a lock");
    let before = Closings::since_now();
    assert!(matches!(Held::open(&device.0, false), Err(HoldError::Busy)));
    assert!(before != Closings::since_now() && before.are_over());
    drop(looks);
    let (beside, before) = (Held::beside(&device.0).expect("open"), Closings::since_now());
    drop(beside);
    assert_eq!(before, Closings::since_now(), "it holds nothing");
}

/// Who is the last to close one has everything written, which may wait for this reactor.
#[test]
fn a_reactor_has_a_thread_close_a_block_device() {
    let dir = Dir::new("closed");
    let Some(device) = Loop::new(&dir.file("image", &[7; 1 << 20])) else {
        return eprintln!("skipped: no loop devices");
    };
    let path = device.0.as_path();
    let ring = crate::Ring::new().expect("a ring");
    let reactor = weir_reactor::Reactor::new(std::rc::Rc::new(ring.clone()));
    let _alone = crate::closing::COUNTS.lock();
    // It hangs there as well.
    let (last, before) = (held(path), Closings::since_now());
    drop(last);
    assert_ne!(Closings::since_now(), before, "also who may wait says so");
    assert!(before.are_over(), "and closes it itself");
    let (last, before) = (held(path), Closings::since_now());
    reactor.enter(|| drop(last));
    assert_ne!(Closings::since_now(), before, "the last one");
    // One that comes when nobody waits for it any more.
    let before = Closings::since_now();
    let o = crate::OpenOptions { read_only: true, ..Default::default() };
    let late = crate::Opened::open(path, o).expect("it is opened");
    reactor.enter(|| drop(late));
    assert_ne!(Closings::since_now(), before, "it was not held");
    // Other threads that serve many.
    let (last, before) = (held(path), Closings::since_now());
    let hurries = std::thread::spawn(move || {
        crate::never_wait();
        drop(last);
    });
    hurries.join().expect("no panic");
    assert_ne!(Closings::since_now(), before, "it said so");
    // A read that is under way when nobody has the disk any more.
    let last = Arc::new(held(path));
    let (before, name) = (Closings::since_now(), path.to_owned());
    reactor.block_on(weir_reactor::PollMode::Sleep, async move {
        let disk = crate::FileDisk::on(&ring, &name, &last).expect("a disk");
        let (token, done) = weir_reactor::completion();
        let buf = Slice::heap(4096);
        disk.submit(weir_disk::DiskOp::Read { offset: 0, buf: buf.clone() }, token);
        let remains = disk.remains();
        drop((disk, last));
        assert!(remains.is_open() && Closings::since_now() == before, "the read has it");
        assert!(weir_disk::status(done.await).is_ok() && buf.to_vec() == [7; 4096]);
        assert!(!remains.is_open());
    });
    assert_ne!(Closings::since_now(), before, "the read that was the last");
    drop(held(path));
}
