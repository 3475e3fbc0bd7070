//! The real daemon on a port of its own, for tests that stop, kill and restart it.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "a module of several tests, each of which uses a part"
)]

pub mod harness;
pub mod load;
pub mod lossy;
pub mod versions;

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// What is said of a daemon that does not come up.
pub const SILENT: &str = "the daemon does not answer";

/// A data directory, and the daemon in it when one runs.
pub struct Daemon {
    pub dir: PathBuf,
    /// What the daemon sees as `/sys/dev/block`, if not that: where the kernel tells what block devices are.
    pub block_devices: Option<PathBuf>,
    /// How many descriptors it may have, if that is not as usual.
    pub descriptors: Option<u32>,
    /// What else is in its environment.
    pub env: Vec<(&'static str, String)>,
    child: Option<Child>,
}

pub fn weir(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(args)
        .env_clear()
        .env("WEIR_DATA_DIR", dir)
        .stdin(Stdio::null())
        .output()
        .expect("weir runs")
}

pub fn texts(out: &Output) -> (String, String) {
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    (text(&out.stdout), text(&out.stderr))
}

impl Daemon {
    /// An empty directory under the one for temporary files of tests, which is on a disk.
    pub fn new(name: &str) -> Daemon {
        // Tests of one program run side by side, and so do programs.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{name}-{}-{number}", std::process::id());
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        drop(std::fs::remove_dir_all(&dir));
        std::fs::create_dir_all(&dir).expect("a directory");
        Daemon { dir, block_devices: None, descriptors: None, env: Vec::new(), child: None }
    }

    /// Starts the daemon on two reactors and waits until it answers.
    pub fn start(&mut self) {
        self.start_only();
        self.wait();
    }

    /// Waits until the daemon answers, and has opened its pools or has said why not.
    pub fn wait(&self) {
        self.wait_until(|status| !status.contains("is being opened"));
    }

    /// Waits until the daemon's start is over, and its status will do.
    pub fn wait_until(&self, will_do: impl Fn(&str) -> bool) {
        self.answers(|status| !status.contains("starting, for") && will_do(status));
    }

    /// Waits until the daemon answers with a status that will do, also in the midst of its start.
    pub fn answers(&self, will_do: impl Fn(&str) -> bool) {
        let begin = Instant::now();
        let is_so = || {
            let out = weir(&self.dir, &["status"]);
            out.status.success() && will_do(&String::from_utf8_lossy(&out.stdout))
        };
        while !is_so() {
            // On a busy machine a process alone may take seconds to start.
            assert!(begin.elapsed() < Duration::from_secs(120), "{SILENT}: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Starts the daemon.
    pub fn start_only(&mut self) {
        self.start_with(&[]);
    }

    /// Starts the daemon with further arguments.
    pub fn start_with(&mut self, more: &[&str]) {
        self.start_at("127.0.0.1:0", more);
    }

    /// The same with an address for the target port `srp0`.
    pub fn start_at(&mut self, listen: &str, more: &[&str]) {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.dir.join("log"))
            .expect("a log");
        self.start_logging_to(log, listen, more);
    }

    /// The same with another log.
    pub fn start_logging_to(&mut self, log: impl Into<Stdio>, listen: &str, more: &[&str]) {
        // A configuration file in the directory counts, as it would for a service.
        let file = self.dir.join("weir.toml");
        let config = file.exists().then(|| ["--config".into(), file.into_os_string()]);
        let mut program = Command::new(env!("CARGO_BIN_EXE_weir"));
        if let Some(n) = self.descriptors {
            let weir = program.get_program().to_owned();
            program = Command::new("sh");
            program.args(["-c", &format!("ulimit -n {n}; exec \"$0\" \"$@\"")]).arg(weir);
        }
        if let Some(dir) = &self.block_devices {
            let line = r#"mount --bind "$0" /sys/dev/block && exec "$@""#;
            let weir = program.get_program().to_owned();
            program = Command::new("unshare");
            program.args(["-m", "sh", "-c", line]).arg(dir).arg(weir);
        }
        let child = program
            .args(["serve", "--listen", listen, "--cores", "0,1", "--poll", "sleep"])
            .args(["--buffer-memory", "64M"])
            .args(config.into_iter().flatten())
            .args(more)
            .env_clear()
            .env("WEIR_DATA_DIR", &self.dir)
            .envs(self.env.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("weir serve runs");
        self.child = Some(child);
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// The process, for a killer thread.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// kill -9, and waits for the end.
    pub fn kill(&mut self) {
        if let Some(mut c) = self.child.take() {
            drop(c.kill());
            c.wait().expect("its end");
        }
    }

    /// SIGTERM, and waits for an orderly end.
    pub fn stop(&mut self) {
        if self.child.is_some() {
            terminate(self.pid());
            let ended = self.ended();
            assert!(ended.success(), "{ended}: {}", self.log());
        }
    }

    /// Waits for the end of the daemon, which something else brings about.
    pub fn ended(&mut self) -> ExitStatus {
        let mut c = self.child.take().expect("it runs");
        let begun = Instant::now();
        loop {
            if let Some(ended) = c.try_wait().expect("its end") {
                return ended;
            }
            if begun.elapsed() > Duration::from_secs(120) {
                drop(c.kill());
                panic!("the daemon does not end: {}", self.log());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for something that the daemon does by itself.
    pub fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !done() {
            let late = begun.elapsed() > Duration::from_secs(120);
            assert!(!late, "{what}: {}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits for a whole round in which the daemon tried again what is not well, or not as it is declared: one that began after the
    /// call. Whatever it does by itself it has done.
    pub fn tried_again(&self) {
        let rounds = || self.json("status")["retries"].as_u64().expect("a number");
        let before = rounds();
        // The first to end may have begun before.
        self.until("it tries again", || rounds() >= before + 2);
    }

    /// A file of the directory.
    pub fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// Runs a command line, wants success, gives standard output.
    pub fn ok(&self, line: &str) -> String {
        let args: Vec<&str> = line.split_whitespace().collect();
        let out = weir(&self.dir, &args);
        let (stdout, stderr) = texts(&out);
        assert!(out.status.success(), "weir {line}: {stdout}{stderr}\n{}", self.log());
        stdout
    }

    pub fn json(&self, line: &str) -> Value {
        let text = self.ok(&format!("{line} --json"));
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("weir {line}: {e}: {text}"))
    }

    /// Runs it, wants this exit code, gives the code of the error and standard error.
    pub fn fails(&self, line: &str, exit: i32) -> (String, String) {
        let line = format!("{line} --json");
        let args: Vec<&str> = line.split_whitespace().collect();
        let out = weir(&self.dir, &args);
        let (stdout, stderr) = texts(&out);
        assert_eq!(out.status.code(), Some(exit), "weir {line}: {stdout}{stderr}");
        let json: Value = serde_json::from_str(&stderr).unwrap_or_default();
        (json["error"]["code"].as_str().unwrap_or_default().to_owned(), stderr)
    }

    /// Where a target port listens, if there is one.
    pub fn port(&self, name: &str) -> Option<String> {
        let status = self.json("status");
        let ports = status["live"]["ports"].as_array().cloned().unwrap_or_default();
        let port = ports.iter().find(|p| p["name"] == name)?;
        port["listening"][0].as_str().map(ToOwned::to_owned)
    }

    /// Where the target port for SRP listens.
    pub fn target(&self) -> String {
        self.port("srp0").unwrap_or_else(|| panic!("it listens: {}", self.json("status")))
    }

    /// Nothing is wrong with the pool on the first `n` of [`devices`](Daemon::devices), which is not open.
    pub fn is_clean(&self, n: usize) {
        let all: String =
            (0..n).map(|i| format!("--device {} ", self.path(&format!("disk{i}")))).collect();
        let report = self.json(&format!("check {all}"));
        assert_eq!(report["clean"], true, "{report}");
    }

    /// The devices of a pool as options, files of this size in the directory.
    pub fn devices(&self, n: usize, size: &str) -> String {
        (0..n)
            .map(|i| format!("--device file:{}:{size} ", self.path(&format!("disk{i}"))))
            .collect()
    }

    /// Writes a file to a volume over SRP.
    pub fn write(&self, volume: &str, file: &str) {
        let target = self.target();
        self.ok(&format!("write --target {target} --volume {volume} --input {file} --bs 64k"));
    }

    /// Reads the first bytes of a volume over SRP.
    pub fn read(&self, volume: &str, len: usize) -> Vec<u8> {
        let (target, out) = (self.target(), self.path("read-back"));
        // The tool writes into a file that is there and leaves its length alone.
        drop(std::fs::remove_file(&out));
        self.ok(&format!(
            "read --target {target} --volume {volume} --length {len} --output {out} --bs 64k"
        ));
        std::fs::read(out).expect("what was read")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut c) = self.child.take() {
            drop(c.kill());
            drop(c.wait());
        }
        if !std::thread::panicking() {
            drop(std::fs::remove_dir_all(&self.dir));
        }
    }
}

/// A command line that runs beside the test; it may fail.
pub struct Beside(std::thread::JoinHandle<Output>, String);

impl Beside {
    pub fn run(d: &Daemon, line: &str) -> Beside {
        let (dir, args) = (d.dir.clone(), line.to_owned());
        let work = move || weir(&dir, &args.split_whitespace().collect::<Vec<_>>());
        Beside(std::thread::spawn(work), line.to_owned())
    }

    pub fn has_ended(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits for its end: whether it succeeded, and what it said.
    pub fn end(self, d: &Daemon) -> (bool, String) {
        d.until(&format!("`weir {}` ends", self.1), || self.has_ended());
        let out = self.0.join().expect("it ran");
        let (stdout, stderr) = texts(&out);
        (out.status.success(), stdout + &stderr)
    }

    /// The same of one that is to succeed.
    pub fn succeeds(self, d: &Daemon) {
        let line = self.1.clone();
        let (done, said) = self.end(d);
        assert!(done, "weir {line}: {said}\n{}", d.log());
    }
}

/// SIGTERM; a second one ends a daemon at once.
pub fn terminate(pid: u32) {
    let status = Command::new("kill").arg(pid.to_string()).status().expect("kill runs");
    assert!(status.success(), "there is a process {pid}");
}

/// Runs a command line in a thread.
pub fn command(d: &Daemon, line: &str) -> impl FnOnce() + Send + 'static {
    let (dir, line) = (d.dir.clone(), line.to_owned());
    move || {
        let args: Vec<&str> = line.split_whitespace().collect();
        let out = weir(&dir, &args);
        assert!(out.status.success(), "weir {line}: {:?}", texts(&out));
    }
}

/// Bytes that look like nothing, different for each seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = weir_base::Prng::new(seed);
    let mut v = Vec::with_capacity(len + 8);
    while v.len() < len {
        v.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    v.truncate(len);
    v
}
