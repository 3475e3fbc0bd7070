//! Volumes as disks of this host, for the time of a scenario: a target, attachments, mounts, all taken away in the end.
//!
//! Everything is owned by a [guard](GUARD), a shell of its own that waits for its standard input to close. That happens when
//! the scenario is over, when it fails, and when it is killed, by whatever signal: there is one way to clean up, and it is
//! always the one that is taken. It is in no terminal's foreground group, so Ctrl-C does not reach it.

mod cold;
mod load;

pub(super) use cold::{Traffic, forget};
pub(super) use load::Load;

use super::ScenarioError;
use super::runner::Runner;
use super::target::{Medium, Wanted, config, free_port};
use crate::srp::{Login, scan};
use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use weir_proto_srp::PortId;

/// Starts the target, waits, and takes away what there is by then: databases, mounts, attachments, loop devices.
const GUARD: &str = include_str!("guard.sh");
/// How long a target may take to serve, in steps of [`STEP`].
const STEPS: u32 = 200;
const STEP: Duration = Duration::from_millis(100);
/// Seconds that a command may take.
const PATIENCE: &str = "300";

static NEXT: AtomicU32 = AtomicU32::new(0);

/// How a disk reaches its volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Srp,
    Brp,
}

impl Protocol {
    /// As `weir attach` calls it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Protocol::Srp => "srp",
            Protocol::Brp => "brp",
        }
    }
}

/// What this machine lacks to attach disks, and how to get it; `None` when nothing.
pub(super) fn missing() -> Option<String> {
    let root = std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0);
    let there = |p: &str| Path::new(p).exists();
    let ways = there("/dev/ublk-control") || there("/dev/fuse") && there("/dev/loop-control");
    if !root {
        return Some("attaching a disk needs root".into());
    }
    if !ways {
        return Some(
            "attaching a disk needs /dev/ublk-control, or /dev/fuse and /dev/loop-control".into(),
        );
    }
    let programs = [
        ("mkfs.ext4", "e2fsprogs"),
        ("losetup", "mount"),
        ("blockdev", "util-linux"),
        ("setpriv", "util-linux"),
    ];
    lacking(&programs)
}

/// The first of these programs that is not there, with the Debian package that has it.
pub(super) fn lacking(programs: &[(&str, &str)]) -> Option<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    let there =
        |p: &str| std::env::split_paths(&path).chain(usual.clone()).any(|d| d.join(p).is_file());
    let (program, package) = programs.iter().find(|(p, _)| !there(p))?;
    Some(format!("there is no program `{program}` (Debian: apt-get install {package})"))
}

fn system(what: &str) -> impl FnOnce(std::io::Error) -> ScenarioError + '_ {
    move |e| ScenarioError::System(what.to_owned(), e)
}

/// Runs a command with a limit of its time, and wants success.
pub(super) fn run(command: &mut Command) -> Result<String, ScenarioError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let args: Vec<String> =
        command.get_args().map(|a| a.to_string_lossy().into_owned()).take(6).collect();
    // It ends with this process too, however that comes about.
    let mut limited = Command::new("setpriv");
    limited
        .args(["--pdeathsig", "TERM", "timeout", "-k", "5", PATIENCE])
        .arg(command.get_program())
        .args(command.get_args());
    for (key, value) in command.get_envs() {
        if let Some(v) = value {
            limited.env(key, v);
        }
    }
    if let Some(dir) = command.get_current_dir() {
        limited.current_dir(dir);
    }
    let out = limited.stdin(Stdio::null()).output().map_err(system(&name))?;
    let text = |b: &[u8]| String::from_utf8_lossy(b).trim().to_owned();
    if out.status.success() {
        return Ok(text(&out.stdout));
    }
    let said = text(&out.stderr);
    let last: Vec<&str> = said.lines().rev().take(4).collect();
    let said: Vec<&str> = last.into_iter().rev().collect();
    Err(ScenarioError::Io(format!(
        "`{name} {}` ended with {}: {}",
        args.join(" "),
        out.status,
        said.join(" / ")
    )))
}

/// A target and what was attached of it.
pub(super) struct Site {
    program: PathBuf,
    /// Everything of it: `mnt-*`, `run`, `data`, logs.
    pub(super) dir: PathBuf,
    address: SocketAddr,
    guard: Option<Child>,
}

/// What a target is started with besides its configuration.
#[derive(Debug, Clone, Default)]
pub(super) struct Extra<'a> {
    /// Bytes of memory for files in [`Site::devices`], on which pools are made; 0: there is no such directory.
    pub(super) memory: u64,
    /// More arguments of `weir serve`.
    pub(super) args: &'a [&'a str],
}

impl Drop for Site {
    fn drop(&mut self) {
        // An error was told by `close`, or there is another one to tell.
        let _ = self.end();
    }
}

impl Site {
    /// Starts a target with the configuration that `config` makes for its address and directory.
    pub(super) fn start(
        r: &Runner<'_>,
        config: impl FnOnce(SocketAddr, &Path) -> String,
    ) -> Result<Site, ScenarioError> {
        Site::start_with(r, &Extra::default(), config)
    }

    /// The same with more.
    pub(super) fn start_with(
        r: &Runner<'_>,
        extra: &Extra<'_>,
        config: impl FnOnce(SocketAddr, &Path) -> String,
    ) -> Result<Site, ScenarioError> {
        if r.setup.target.is_some() {
            let why = "to be measured was named, but this scenario needs one of its own".to_owned();
            return Err(ScenarioError::Target(why));
        }
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("weir-site-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).map_err(system("a directory for the target"))?;
        // A database's user goes through it.
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&dir, open).map_err(system("the target's directory"))?;
        let address =
            SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().map_err(system("a port"))?));
        let toml = dir.join("weir.toml");
        std::fs::write(&toml, config(address, &dir))
            .map_err(system("the target's configuration"))?;
        let log =
            std::fs::File::create(dir.join("guard.log")).map_err(system("the guard's log"))?;
        let again = log.try_clone().map_err(system("the guard's log"))?;
        let guard = Command::new("sh")
            .args(["-c", GUARD, "weir-guard"])
            .arg(&r.setup.program)
            .arg(&dir)
            .arg(extra.memory.to_string())
            .args(extra.args)
            .stdin(Stdio::piped())
            .stdout(log)
            .stderr(again)
            .process_group(0)
            .spawn()
            .map_err(system("a shell"))?;
        let program = r.setup.program.clone();
        let mut site = Site { program, dir, address, guard: Some(guard) };
        site.wait(r)?;
        Ok(site)
    }

    fn wait(&mut self, r: &Runner<'_>) -> Result<(), ScenarioError> {
        let login = Login::new(self.address, PortId::default(), r.setup.initiator);
        let mut last = String::new();
        for _ in 0..STEPS {
            match scan(&login) {
                Ok(all) if !all.is_empty() => return Ok(()),
                Ok(_) => last = "it shows no volume".into(),
                Err(e) => last = e.to_string(),
            }
            std::thread::sleep(STEP);
        }
        let log = std::fs::read_to_string(self.dir.join("target.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(8)..].join("\n");
        Err(ScenarioError::Target(format!("does not serve: {last}\n{tail}")))
    }

    /// Where files for pools are, below the site's directory.
    pub(super) fn devices(dir: &Path) -> PathBuf {
        dir.join("devices")
    }

    /// Whether these files are in memory: there are kernels that cannot have them there.
    pub(super) fn in_memory(&self) -> bool {
        let at = Site::devices(&self.dir).display().to_string();
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        mounts.lines().any(|l| l.split(' ').nth(1) == Some(&at))
    }

    /// The `weir` program on this target's daemon.
    pub(super) fn weir(&self) -> Command {
        let mut c = Command::new(&self.program);
        c.env("WEIR_RUN_DIR", self.dir.join("run")).env("WEIR_DATA_DIR", self.dir.join("data"));
        c
    }

    /// Attaches a volume; gives the disk.
    pub(super) fn attach(&self, volume: &str, by: Protocol) -> Result<PathBuf, ScenarioError> {
        let mut port = self.address;
        if by == Protocol::Brp {
            port.set_port(port.port() + 1);
        }
        // The name is the machine's: links in /dev/weir go by it.
        let own = self.dir.file_name().and_then(OsStr::to_str).unwrap_or("weir-site");
        let name = format!("{own}-{volume}");
        let mut c = self.weir();
        c.args(["attach", volume, "--protocol", by.name(), "--json"]);
        c.args(["--name", &name, "--target", &port.to_string()]);
        let said = run(&mut c)?;
        let all: serde_json::Value = serde_json::from_str(&said).unwrap_or_default();
        match all["device"].as_str() {
            Some(d) => Ok(PathBuf::from(d)),
            None => Err(ScenarioError::Io(format!("`weir attach` named no disk: {said}"))),
        }
    }

    /// A target of one core with volumes of `size` bytes in memory, and three disks of that size: a volume attached by SRP,
    /// another by BRP, and one that is [`local`](Site::local).
    pub(super) fn with_three_disks(
        r: &Runner<'_>,
        size: u64,
    ) -> Result<(Site, [PathBuf; 3]), ScenarioError> {
        let cores = r.cores.first(1).target;
        let listen = std::net::Ipv4Addr::LOCALHOST.into();
        let wanted =
            Wanted { medium: Medium::Ram, volumes: 2, size, cores, buffers: 128 << 20, listen };
        let site = Site::start(r, |address, dir| config(&wanted, address, dir))?;
        let srp = site.attach("bench-0", Protocol::Srp)?;
        let brp = site.attach("bench-1", Protocol::Brp)?;
        let local = site.local(size)?;
        Ok((site, [srp, brp, local]))
    }

    /// A disk of `bytes` that no network is in front of: a loop device on a file in memory.
    pub(super) fn local(&self, bytes: u64) -> Result<PathBuf, ScenarioError> {
        let dir = self.dir.join("mnt-memory");
        std::fs::create_dir_all(&dir).map_err(system("a directory"))?;
        run(Command::new("mount").args(["-t", "tmpfs", "weir-site"]).arg(&dir))?;
        let file = dir.join("disk");
        let made = std::fs::File::create(&file).and_then(|f| f.set_len(bytes));
        made.map_err(system("a file in memory"))?;
        run(Command::new("losetup").args(["--find", "--show"]).arg(&file)).map(PathBuf::from)
    }

    /// Makes a file system on a disk and mounts it; gives where.
    pub(super) fn mount(&self, disk: &Path, name: &str) -> Result<PathBuf, ScenarioError> {
        let at = self.dir.join(format!("mnt-{name}"));
        std::fs::create_dir_all(&at).map_err(system("a directory"))?;
        // All of it now: what is left for later is written while something is measured.
        let whole = "lazy_itable_init=0,lazy_journal_init=0";
        run(Command::new("mkfs.ext4").args(["-q", "-E", whole]).arg(disk))?;
        run(Command::new("mount").arg(disk).arg(&at))?;
        Ok(at)
    }

    /// Takes everything away.
    ///
    /// # Errors
    /// Something could not be taken away; what the guard said.
    pub(super) fn close(mut self) -> Result<(), ScenarioError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), ScenarioError> {
        let Some(mut guard) = self.guard.take() else { return Ok(()) };
        drop(guard.stdin.take());
        let status = guard.wait().map_err(system("the guard"))?;
        if status.success() {
            return Ok(());
        }
        let log = std::fs::read_to_string(self.dir.join("guard.log")).unwrap_or_default();
        let text = format!("what was attached is still there, in {}: {log}", self.dir.display());
        Err(ScenarioError::Io(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_its_package() {
        assert_eq!(lacking(&[("sh", "dash")]), None);
        let said = lacking(&[("sh", "dash"), ("no-such-program", "the-package")]).unwrap();
        assert!(
            said.contains("`no-such-program`") && said.contains("install the-package"),
            "{said}"
        );
    }

    #[test]
    fn commands_that_fail_say_why() {
        assert_eq!(run(Command::new("echo").arg("x")).unwrap(), "x");
        let e = run(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err();
        let e = e.to_string();
        assert!(e.contains("why") && e.contains('3'), "{e}");
    }

    /// The guard ends by itself, with nothing left, when its input closes, whatever became of the target.
    #[test]
    fn the_guard_leaves_nothing() {
        let dir = std::env::temp_dir().join(format!("weir-guard-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        for program in ["/nonexistent/weir", "sleep"] {
            std::fs::create_dir_all(dir.join("run")).unwrap();
            let status = Command::new("sh")
                .args(["-c", GUARD, "weir-guard", program])
                .arg(&dir)
                .arg("0")
                .stdin(Stdio::null())
                .stderr(Stdio::null())
                .status();
            assert!(status.unwrap().success() && !dir.exists());
        }
    }
}
