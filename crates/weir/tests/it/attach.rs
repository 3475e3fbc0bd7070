//! A disk of this host on a volume of a target that is killed under it. For root with /dev/fuse and loop devices; elsewhere
//! the test says that it did nothing.

use serde_json::Value;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longest that anything here may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// O_EXCL: a block device is nobody else's.
pub(crate) const EXCLUSIVE: i32 = 0o200;
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Whether this machine can run the tests.
pub(crate) fn can() -> bool {
    let root =
        fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
    let mkfs = ["/sbin/mkfs.ext4", "/usr/sbin/mkfs.ext4"].iter().any(|p| Path::new(p).exists());
    // Loop devices and names in /dev/weir are the machine's: two of this program at once would meet each other's.
    static ALONE: OnceLock<fs::File> = OnceLock::new();
    ALONE.get_or_init(|| {
        let lock = std::env::temp_dir().join("weir-attach-it.lock");
        let lock = fs::OpenOptions::new().write(true).create(true).truncate(false).open(lock);
        let lock = lock.expect("a lock");
        lock.lock().expect("a lock");
        lock
    });
    for (there, what) in [
        (root, "root"),
        (Path::new("/dev/fuse").exists(), "/dev/fuse"),
        (Path::new("/dev/loop-control").exists(), "/dev/loop-control"),
        (mkfs, "mkfs.ext4"),
    ] {
        if !there {
            println!("SKIPPED: it needs {what}, which is not here");
            return false;
        }
    }
    true
}

pub(crate) fn wait_for(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "{what} takes too long");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs a command with a limit of its time, and wants success.
pub(crate) fn run(program: &str, args: &[&str]) -> String {
    let out = Command::new("timeout")
        .args(["-k", "5", "60", program])
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|e| panic!("{program}: {e}"));
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    assert!(out.status.success(), "{program} {args:?}: {}{}", text(&out.stdout), text(&out.stderr));
    text(&out.stdout)
}

/// A target in a directory of its own, which may be killed and started again.
pub(crate) struct Target {
    pub(crate) dir: PathBuf,
    pub(crate) port: u16,
    process: Option<Child>,
    /// Takes everything away once its input ends, also when this process was killed.
    sweeper: Child,
}

/// What the sweeper does in the directory `$1` with the program `$2`. An attachment goes before what is mounted on it: with its
/// process, whatever waits in the kernel for a target that is gone ends with an error.
const SWEEP: &str = r#"
cat > /dev/null
for a in "$1"/run/* "$1"/run-2/*; do
    test -d "$a" && WEIR_RUN_DIR="${a%/*}" timeout -k 5 60 "$2" detach --force "$(basename "$a")"
done
pid=$(cat "$1/pid") && grep -qa "$1/" "/proc/$pid/cmdline" && kill -9 "$pid"
grep -q "$1/mnt" /proc/self/mounts && umount -l "$1/mnt"
rm -rf "$1"
"#;

impl Target {
    fn new(volumes: &[(&str, &str)]) -> Target {
        let mut t = String::from(
            "[[pool]]\nname = \"thin\"\ndevices = [{ kind = \"dir\", path = \"thin\" }]\n\
             [[host]]\nname = \"anyone\"\nallow_any = true\n",
        );
        for (name, size) in volumes {
            t += &format!(
                "[[volume]]\nname = \"{name}\"\npool = \"thin\"\nsize = \"{size}\"\n\
                 [[map]]\nhost = \"anyone\"\nvolume = \"{name}\"\n"
            );
        }
        Target::declared(&t)
    }

    /// One with what a file declares, beside its listeners.
    pub(crate) fn declared(what: &str) -> Target {
        let n = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("weir-attach-it-{}-{n}", std::process::id()));
        fs::create_dir_all(dir.join("mnt")).unwrap();
        // Two ports in a row that are free now, and that nobody is given who asks for any.
        let first = std::process::id().wrapping_mul(64) + n;
        let ports = (0..10_000).map(|k| 10_000 + (first + k) % 10_000 * 2);
        let is_free = |p: &u16| (0..2).all(|k| TcpListener::bind(("127.0.0.1", p + k)).is_ok());
        let port = ports.map(|p| p as u16).find(is_free).unwrap();
        let t = format!(
            "data_dir = {:?}\nlisten = [\"127.0.0.1:{port}\"]\nbuffer_memory = \"32M\"\n{what}",
            dir.join("data")
        );
        fs::write(dir.join("weir.toml"), t).unwrap();
        let sweeper = Command::new("sh")
            .args(["-c", SWEEP, "sweep"])
            .arg(&dir)
            .arg(env!("CARGO_BIN_EXE_weir"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Who ends the group of the test does not end it.
            .process_group(0)
            .spawn()
            .unwrap();
        let mut target = Target { dir, port, process: None, sweeper };
        target.start();
        target
    }

    pub(crate) fn start(&mut self) {
        let log = fs::OpenOptions::new().append(true).create(true).open(self.dir.join("log"));
        let child = Command::new(env!("CARGO_BIN_EXE_weir"))
            .args(["serve", "--config"])
            .arg(self.dir.join("weir.toml"))
            .stdin(Stdio::null())
            .stderr(log.unwrap())
            .spawn()
            .unwrap();
        fs::write(self.dir.join("pid"), child.id().to_string()).unwrap();
        self.process = Some(child);
        // It answers before its ports listen.
        wait_for("the target's start", || {
            let told = self.weir("status");
            told.status.success()
                && !String::from_utf8_lossy(&told.stdout).contains("starting, for")
        });
    }

    pub(crate) fn kill(&mut self) {
        let mut child = self.process.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Has it end in order.
    pub(crate) fn stop(&mut self) {
        let mut child = self.process.take().unwrap();
        run("kill", &["-TERM", &child.id().to_string()]);
        wait_for("the target's end", || child.try_wait().unwrap().is_some());
    }

    /// Begins a command, which may be killed.
    pub(crate) fn begin(&self, line: &str) -> Child {
        self.command(line).stdout(Stdio::null()).spawn().unwrap()
    }

    /// A command that hears signals also where the tests are run with some of them ignored: under `nohup`, or in a shell's
    /// background.
    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = Command::new("env");
        command
            .args(["--default-signal=HUP,INT,TERM,TSTP,TTIN,TTOU", env!("CARGO_BIN_EXE_weir")])
            .args(line.split_whitespace())
            .env("WEIR_DATA_DIR", self.dir.join("data"))
            .env("WEIR_RUN_DIR", self.dir.join("run"))
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    /// Runs a command. One that cannot be ended, as it waits in the kernel, fails the test: its output is in files, since a
    /// pipe would have no end either.
    pub(crate) fn weir(&self, line: &str) -> Output {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let said = ["out", "err"].map(|s| self.dir.join(format!("{number}.{s}")));
        let [out, err] = said.each_ref().map(|s| fs::File::create(s).unwrap());
        let mut child = Command::new("timeout")
            .args(["-k", "5", "60", env!("CARGO_BIN_EXE_weir")])
            .args(line.split_whitespace())
            .env("WEIR_DATA_DIR", self.dir.join("data"))
            .env("WEIR_RUN_DIR", self.dir.join("run"))
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .unwrap();
        let mut status = None;
        wait_for(&format!("weir {line}"), || {
            status = child.try_wait().unwrap();
            status.is_some()
        });
        let [stdout, stderr] = said.map(|s| fs::read(s).unwrap());
        Output { status: status.unwrap(), stdout, stderr }
    }

    pub(crate) fn ok(&self, line: &str) -> String {
        let out = self.weir(line);
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        assert!(out.status.success(), "weir {line}: {}{}", text(&out.stdout), text(&out.stderr));
        text(&out.stdout)
    }

    /// Runs it, wants this exit code, and gives what it said.
    pub(crate) fn fails(&self, line: &str, exit: i32) -> String {
        let out = self.weir(line);
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(exit), "weir {line}: {text}");
        text
    }

    pub(crate) fn attach(&self, line: &str) -> Value {
        serde_json::from_str(&self.ok(&format!("attach {line} --json"))).unwrap()
    }

    fn mnt(&self) -> PathBuf {
        self.dir.join("mnt")
    }

    fn mount(&self, device: &str) {
        run("mount", &[device, self.mnt().to_str().unwrap()]);
    }

    fn unmount(&self) {
        run("umount", &[self.mnt().to_str().unwrap()]);
    }

    /// Nothing of an attachment is left.
    pub(crate) fn all_gone(&self, attached: &Value) {
        let device = attached["device"].as_str().unwrap();
        let pid = attached["pid"].as_u64().unwrap();
        let name = attached["name"].as_str().unwrap();
        wait_for("the end of the process", || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        });
        let backing = format!("/sys/block/{}/loop/backing_file", &device["/dev/".len()..]);
        let backing = fs::read_to_string(backing).unwrap_or_default();
        let mine = format!("{}/", self.dir.display());
        assert!(!backing.contains(&mine), "{device} still has {backing}");
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(&mine), "{mounts}");
        assert!(fs::symlink_metadata(format!("/dev/weir/{name}")).is_err());
        assert_eq!(fs::read_dir(self.dir.join("run")).map_or(0, Iterator::count), 0);
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(mut child) = self.process.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        drop(self.sweeper.stdin.take());
        let _ = self.sweeper.wait();
    }
}

/// Bytes that depend on file and place.
fn content(file: u64, len: usize) -> Vec<u8> {
    let mut x = file.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        out.extend(x.to_le_bytes());
    }
    out.truncate(len);
    out
}

/// mkfs, mount, files, and two deaths of the target while more are written; every byte is there afterwards.
fn files_outlive_the_target(protocol: &str) {
    const LEN: usize = 1 << 20;
    let mut target = Target::new(&[("disk", "512M")]);
    let a = target.attach(&format!("disk --protocol {protocol} --queues 2 --name it-{protocol}"));
    assert_eq!((&a["protocol"], &a["method"]), (&protocol.into(), &"fuse".into()));
    assert_eq!(a["size"], 512 << 20);
    let device = a["device"].as_str().unwrap().to_owned();
    assert_eq!(fs::canonicalize(a["link"].as_str().unwrap()).unwrap(), Path::new(&device));
    run("mkfs.ext4", &["-q", &device]);
    target.mount(&device);
    let busy = target.fails(&format!("detach it-{protocol}"), 4);
    assert!(busy.contains("is mounted at"), "{busy}");

    let (stop, count) = (AtomicBool::new(false), AtomicU32::new(0));
    let mnt = target.mnt();
    std::thread::scope(|s| {
        let (stop, count, mnt) = (&stop, &count, &mnt);
        for writer in 0..4u64 {
            s.spawn(move || {
                let mut i = 0;
                while !stop.load(Ordering::Relaxed) {
                    let path = mnt.join(format!("{writer}-{}", i % 16));
                    let mut f = fs::File::create(path).unwrap();
                    f.write_all(&content(writer << 32 | i, LEN)).unwrap();
                    f.sync_all().expect("the host sees no error");
                    count.fetch_add(1, Ordering::Relaxed);
                    i += 1;
                }
                fs::write(mnt.join(format!("{writer}-last")), i.to_string()).unwrap();
            });
        }
        for _ in 0..2 {
            let before = count.load(Ordering::Relaxed);
            wait_for("writing", || count.load(Ordering::Relaxed) > before + 8);
            target.kill();
            std::thread::sleep(Duration::from_millis(1500));
            let stuck = count.load(Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(300));
            assert_eq!(
                count.load(Ordering::Relaxed),
                stuck,
                "something is written without a target"
            );
            target.start();
            wait_for("going on", || count.load(Ordering::Relaxed) > stuck);
        }
        stop.store(true, Ordering::Relaxed);
    });
    target.unmount();
    run("fsck.ext4", &["-n", "-f", &device]);
    // A second attachment reads what is on the volume, not what some cache has.
    target.ok(&format!("detach it-{protocol}"));
    target.all_gone(&a);
    let a = target.attach(&format!("disk --protocol {protocol} --read-only --name it-{protocol}"));
    let device = a["device"].as_str().unwrap();
    run("mount", &["-o", "ro,noload", device, mnt.to_str().unwrap()]);
    for writer in 0..4u64 {
        let n: u64 =
            fs::read_to_string(mnt.join(format!("{writer}-last"))).unwrap().parse().unwrap();
        for i in n.saturating_sub(16)..n {
            let got = fs::read(mnt.join(format!("{writer}-{}", i % 16))).unwrap();
            assert!(got == content(writer << 32 | i, LEN), "writer {writer}, file {i}");
        }
    }
    target.unmount();
    assert!(fs::write(device, [0; 512]).is_err(), "it is read-only");
    target.ok(&format!("detach it-{protocol}"));
    target.all_gone(&a);
}

#[test]
fn files_outlive_the_target_by_brp() {
    if can() {
        files_outlive_the_target("brp");
    }
}

#[test]
fn files_outlive_the_target_by_srp() {
    if can() {
        files_outlive_the_target("srp");
    }
}

#[test]
fn an_attachment_whose_process_was_killed_is_cleaned_up() {
    if !can() {
        return;
    }
    let target = Target::new(&[("disk", "64M")]);
    let a = target.attach("disk --name it-killed");
    let again = target.fails("attach disk --name it-killed", 4);
    assert!(again.contains("there is an attachment it-killed already"), "{again}");
    run("kill", &["-9", &a["pid"].to_string()]);
    wait_for("the end of the process", || target.ok("attach --list").contains("has ended"));
    assert_eq!(
        serde_json::from_str::<Value>(&target.ok("attach --list --json")).unwrap()[0]["alive"],
        false
    );
    let said = target.ok("detach it-killed");
    assert!(said.contains("had ended before"), "{said}");
    target.all_gone(&a);
    target.fails("detach it-killed", 3);
}

/// Of a shell in a mount namespace of its own: it keeps no mount of the tests beside it, which would be in use as long as it lives.
pub(crate) const ALONE: &str =
    "for m in $(grep -o '[^ ]*/weir-attach-it-[^ ]*' /proc/mounts); do umount -l $m 2>&-; done; ";

/// Whoever mounts it where `weir detach` cannot see it, as in a container, keeps a disk that works.
#[test]
fn a_disk_that_is_mounted_in_another_namespace_is_left_alone() {
    if !can() {
        return;
    }
    let target = Target::new(&[("disk", "64M")]);
    let a = target.attach("disk --name it-elsewhere");
    let device = a["device"].as_str().unwrap();
    run("mkfs.ext4", &["-q", device]);
    let mnt = target.mnt();
    let script = "mount \"$0\" \"$1\" && touch \"$1/mounted\" && exec sleep 1000";
    let mut elsewhere = Command::new("unshare")
        .args(["--mount", "sh", "-c", &format!("{ALONE}{script}"), device])
        .arg(&mnt)
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let inside = PathBuf::from(format!("/proc/{}/root", elsewhere.id()));
    let inside = inside.join(mnt.strip_prefix("/").unwrap());
    wait_for("the mount", || inside.join("mounted").exists());
    assert!(!mnt.join("mounted").exists(), "it is not to be seen here");
    let busy = target.fails("detach it-elsewhere", 4);
    assert!(busy.contains("is in use"), "{busy}");
    fs::write(inside.join("file"), content(1, 1 << 20)).unwrap();
    fs::File::open(inside.join("file")).unwrap().sync_all().unwrap();
    elsewhere.kill().unwrap();
    elsewhere.wait().unwrap();
    // Nothing was taken away meanwhile, or later.
    std::thread::sleep(Duration::from_millis(500));
    target.mount(device);
    assert!(fs::read(mnt.join("file")).unwrap() == content(1, 1 << 20));
    target.unmount();
    target.ok("detach it-elsewhere");
    target.all_gone(&a);
}

/// A disk that is being flushed for its end is nobody's to mount any more.
#[test]
fn nobody_mounts_a_disk_that_is_being_detached() {
    if !can() {
        return;
    }
    let mut target = Target::new(&[("disk", "64M")]);
    let a = target.attach("disk --name it-late");
    let device = a["device"].as_str().unwrap();
    // Its flush waits.
    target.kill();
    let device = PathBuf::from(device);
    let mine = || fs::OpenOptions::new().read(true).custom_flags(EXCLUSIVE).open(&device);
    assert!(mine().is_ok());
    let mut detach = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["detach", "it-late"])
        .env("WEIR_RUN_DIR", target.dir.join("run"))
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    assert!(detach.try_wait().unwrap().is_none(), "it waits for the target");
    let busy = mine().err().and_then(|e| e.raw_os_error());
    target.start();
    assert!(detach.wait().unwrap().success());
    assert_eq!(busy, Some(16), "EBUSY");
    target.all_gone(&a);
}

#[test]
fn a_disk_whose_target_is_gone_is_taken_away_by_force_only() {
    if !can() {
        return;
    }
    let mut target = Target::new(&[("disk", "64M")]);
    let a = target.attach("disk --name it-gone");
    target.kill();
    // Something that waits for the target.
    let mut dd = Command::new("dd")
        .args(["if=/dev/zero", "bs=64k", "count=1", "oflag=direct"])
        .arg(format!("of={}", a["device"].as_str().unwrap()))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(dd.try_wait().unwrap().is_none(), "it waits");
    let busy = target.fails("detach it-gone", 4);
    assert!(busy.contains("open"), "{busy}");
    target.ok("detach it-gone --force");
    wait_for("the error", || dd.try_wait().unwrap().is_some_and(|s| !s.success()));
    target.all_gone(&a);
}

/// What waits in the kernel cannot be ended, so `detach` has another process wait there.
#[test]
fn a_detach_ends_though_its_target_never_answers() {
    if !can() {
        return;
    }
    let mut target = Target::new(&[("disk", "64M")]);
    let a = target.attach("disk --name it-hangs");
    target.kill();
    let busy = target.fails("detach it-hangs", 4);
    assert!(busy.contains("the target has not answered for 30 s"), "{busy}");
    target.start();
    // Once the flush that was left behind has ended nobody uses the disk.
    wait_for("the end", || target.weir("detach it-hangs").status.success());
    target.all_gone(&a);
}

#[test]
fn an_error_after_a_time_is_for_those_who_ask_for_it() {
    if !can() {
        return;
    }
    let mut target = Target::new(&[("disk", "64M")]);
    let a = target.attach("disk --name it-fail --fail-after 1s");
    target.kill();
    let device = format!("if={}", a["device"].as_str().unwrap());
    let start = Instant::now();
    let read = Command::new("dd")
        .args([&device, "of=/dev/null", "bs=4k", "count=1", "iflag=direct"])
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(!read.success() && start.elapsed() > Duration::from_millis(900));
    target.start();
    wait_for("the target's return", || {
        let dd = Command::new("dd")
            .args([&device, "of=/dev/null", "bs=4k", "count=1", "iflag=direct"])
            .stderr(Stdio::null())
            .status();
        dd.unwrap().success()
    });
    target.ok("detach it-fail");
    target.all_gone(&a);
}

#[test]
fn the_disk_grows_with_the_volume() {
    if !can() {
        return;
    }
    let target = Target::new(&[("disk", "64M")]);
    for protocol in ["brp", "srp"] {
        let a = target.attach(&format!("disk --name it-grow --protocol {protocol}"));
        let device = a["device"].as_str().unwrap();
        let size = || run("blockdev", &["--getsize64", device]).trim().parse::<u64>().unwrap();
        let (before, more) = (size(), 64 << 20);
        target.ok(&format!("volume resize disk {}M", (before + more) >> 20));
        wait_for("the new size", || size() == before + more);
        // The new part is there.
        let seek = format!("seek={}", (before + more) / 4096 - 1);
        let of = format!("of={device}");
        run("dd", &["if=/dev/zero", &of, "bs=4k", "count=1", "oflag=direct", &seek]);
        target.ok("detach it-grow");
        target.all_gone(&a);
    }
}

#[test]
fn what_cannot_be_attached_is_said() {
    if !can() {
        return;
    }
    let target = Target::new(&[("disk", "64M")]);
    let none = target.fails("attach no-such-volume", 3);
    assert!(none.contains("no volume no-such-volume") && none.contains("disk"), "{none}");
    let nobody = target.fails("attach disk --target 127.0.0.1:9 --name it-no", 5);
    assert!(nobody.contains("no target answers"), "{nobody}");
    if !Path::new("/sys/block/nbd0").exists() {
        let nbd = target.fails("attach disk --method nbd", 7);
        assert!(nbd.contains("this kernel has no nbd") && nbd.contains("modprobe nbd"), "{nbd}");
    }
    target.fails("attach disk --name ../x", 2);
    // Nothing is left of any of them.
    assert_eq!(fs::read_dir(target.dir.join("run")).map_or(0, Iterator::count), 0);
    assert!(target.ok("attach --list").contains("nothing is attached"));
    // An address of the target port is taken for what it speaks.
    for (add, protocol) in [(0, "srp"), (1, "brp")] {
        let a =
            target.attach(&format!("disk --target 127.0.0.1:{} --name it-auto", target.port + add));
        assert_eq!(a["protocol"], protocol);
        target.ok("detach it-auto");
        target.all_gone(&a);
    }
}
