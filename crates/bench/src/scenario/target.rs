//! A target process for the time of a scenario.

use super::{ScenarioError, Setup};
use crate::bare::Clock;
use crate::srp::{Found, Login, scan};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use weir_proto_srp::PortId;
use weir_uring::TcpListener;

/// How long a target may take to serve, in steps of [`STEP`].
const STEPS: u32 = 200;
const STEP: Duration = Duration::from_millis(100);
/// How often it is looked whether one that stops has ended.
const LOOK: Duration = Duration::from_millis(5);
pub(super) const NOT_OURS: &str = "must be a process of this scenario: leave --target out";

/// What volumes are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Medium {
    /// Memory.
    Ram,
    /// Nothing: writes are forgotten.
    Null,
    /// A file, which outlives the process.
    File,
}

/// What to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) medium: Medium,
    pub(super) volumes: u16,
    /// Bytes of each.
    pub(super) size: u64,
    pub(super) cores: Vec<usize>,
    /// Memory for I/O buffers in bytes.
    pub(super) buffers: u64,
    /// Where it listens; load comes to 127.0.0.1.
    pub(super) listen: IpAddr,
}

/// A target that serves; a process of its own ends with it.
pub(super) struct Target {
    pub(super) login: Login,
    address: SocketAddr,
    process: Option<Process>,
}

struct Process {
    child: Child,
    /// Goes after the process.
    dir: TempDir,
}

impl Drop for Process {
    fn drop(&mut self) {
        // All that it had was temporary. Errors mean that it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct TempDir(PathBuf);

impl Drop for TempDir {
    fn drop(&mut self) {
        // What cannot be removed is left to whoever cleans up the directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

static NEXT: AtomicU32 = AtomicU32::new(0);

fn system(what: &str) -> impl FnOnce(std::io::Error) -> ScenarioError + '_ {
    move |e| ScenarioError::System(what.to_owned(), e)
}

/// A port that nobody listens on.
pub(super) fn free_port() -> std::io::Result<u16> {
    let l = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    Ok(l.local_addr()?.port())
}

/// The configuration of a target with the volumes wanted under LUN 0 and up, for any host. A file is in `dir`.
pub(super) fn config(wanted: &Wanted, address: SocketAddr, dir: &Path) -> String {
    let kind = match wanted.medium {
        Medium::Ram => "kind = \"ram\"".to_owned(),
        Medium::Null => "kind = \"null\"".to_owned(),
        Medium::File => format!("kind = \"file\", path = \"{}\"", dir.join("pool.img").display()),
    };
    let cores: Vec<String> = wanted.cores.iter().map(ToString::to_string).collect();
    let (size, n) = (wanted.size, u64::from(wanted.volumes));
    let mut t = format!(
        "listen = [\"{address}\"]\ncores = [{}]\nbuffer_memory = {}\n\
         [[pool]]\nname = \"bench\"\ndevices = [{{ {kind}, size = {} }}]\n\
         [[host]]\nname = \"all\"\nallow_any = true\n",
        cores.join(", "),
        wanted.buffers,
        // Room for what a pool keeps for itself.
        size * n + (64 << 20),
    );
    for v in 0..wanted.volumes {
        let _ = write!(
            t,
            "[[volume]]\nname = \"bench-{v}\"\npool = \"bench\"\nsize = {size}\n\
             [[map]]\nhost = \"all\"\nvolume = \"bench-{v}\"\nlun = {v}\n"
        );
    }
    t
}

impl Target {
    /// Starts a target, or takes the one that is to be measured.
    pub(super) fn start(setup: &Setup, wanted: &Wanted) -> Result<Target, ScenarioError> {
        if let Some(address) = setup.target {
            let login = Login::new(address, PortId::default(), setup.initiator);
            let t = Target { login, address, process: None };
            let found =
                t.scan().map_err(|e| ScenarioError::Target(format!("at {address}: {e}")))?;
            t.check(&found, wanted)?;
            return Ok(t);
        }
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("weir-bench-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).map_err(system("a directory for the target"))?;
        let dir = TempDir(dir);
        let port = free_port().map_err(system("a port for the target"))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let file = dir.0.join("weir.toml");
        std::fs::write(&file, config(wanted, SocketAddr::from((wanted.listen, port)), &dir.0))
            .map_err(system("the target's configuration"))?;
        let child = serve(setup, &dir.0)?;
        let login = Login::new(address, PortId::default(), setup.initiator);
        let mut t = Target { login, address, process: Some(Process { child, dir }) };
        t.wait(wanted)?;
        Ok(t)
    }

    /// Stops the process as an operator does; gives how long that takes.
    ///
    /// # Errors
    /// It does not end, or not in order; it is none of ours.
    pub(super) fn stop(&mut self) -> Result<Duration, ScenarioError> {
        let p = self.process.as_mut().ok_or_else(|| ScenarioError::Target(NOT_OURS.into()))?;
        let pid = p.child.id().to_string();
        let clock = Clock::new().map_err(system("a clock"))?;
        let begun = clock.now();
        Command::new("kill").args(["-TERM", &pid]).status().map_err(system("kill"))?;
        while clock.since(begun) < STEP * STEPS {
            match p.child.try_wait().map_err(system("the target's process"))? {
                None => std::thread::sleep(LOOK),
                Some(status) if status.success() => return Ok(clock.since(begun)),
                Some(status) => {
                    let text = format!("ended with {status}: {}", tail(&p.dir.0));
                    return Err(ScenarioError::Target(text));
                }
            }
        }
        Err(ScenarioError::Target(format!("does not end: {}", tail(&p.dir.0))))
    }

    /// Starts the process again, as it was.
    ///
    /// # Errors
    /// It is none of ours.
    pub(super) fn start_again(&mut self, setup: &Setup) -> Result<(), ScenarioError> {
        let p = self.process.as_mut().ok_or_else(|| ScenarioError::Target(NOT_OURS.into()))?;
        p.child = serve(setup, &p.dir.0)?;
        Ok(())
    }

    fn scan(&self) -> Result<Vec<Found>, crate::client::ConnectError> {
        scan(&self.login)
    }

    /// The length of a LUN, if it is served.
    pub(super) fn shows(&self, lun: u16) -> Option<u64> {
        self.scan().ok()?.iter().find(|f| f.lun == lun).map(|f| f.len)
    }

    fn check(&self, found: &[Found], wanted: &Wanted) -> Result<(), ScenarioError> {
        for lun in 0..wanted.volumes {
            let Some(f) = found.iter().find(|f| f.lun == lun) else {
                let text = format!(
                    "shows no LUN {lun}, and this scenario needs LUN 0 to {}",
                    wanted.volumes - 1
                );
                return Err(ScenarioError::Target(text));
            };
            if f.len < wanted.size {
                let text =
                    format!("has {} bytes under LUN {lun}, and {} are needed", f.len, wanted.size);
                return Err(ScenarioError::Target(text));
            }
        }
        Ok(())
    }

    /// Waits until the process serves.
    fn wait(&mut self, wanted: &Wanted) -> Result<(), ScenarioError> {
        let mut last = String::new();
        for _ in 0..STEPS {
            if let Some(p) = &mut self.process
                && let Ok(Some(status)) = p.child.try_wait()
            {
                return Err(ScenarioError::Target(format!(
                    "ended with {status}: {}",
                    tail(&p.dir.0)
                )));
            }
            match self.scan() {
                Ok(found) => match self.check(&found, wanted) {
                    Ok(()) => return Ok(()),
                    Err(e) => last = e.to_string(),
                },
                Err(e) => last = e.to_string(),
            }
            std::thread::sleep(STEP);
        }
        let log = self.process.as_ref().map(|p| tail(&p.dir.0)).unwrap_or_default();
        Err(ScenarioError::Target(format!("does not serve: {last}\n{log}")))
    }

    /// The TCP port of its SRP port.
    pub(super) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Its data directory, if it is ours.
    pub(super) fn data(&self) -> Option<PathBuf> {
        self.process.as_ref().map(|p| p.dir.0.join("data"))
    }

    /// Number of the process, if it is ours.
    pub(super) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(|p| p.child.id())
    }
}

/// The process of a target whose configuration is in `dir`.
fn serve(setup: &Setup, dir: &Path) -> Result<Child, ScenarioError> {
    let log = std::fs::File::options().create(true).append(true).open(dir.join("log"));
    Command::new(&setup.program)
        .arg("--data-dir")
        .arg(dir.join("data"))
        .arg("serve")
        .arg("--config")
        .arg(dir.join("weir.toml"))
        // Its end of the pipe closes when this process ends, however that comes about.
        .arg("--until-stdin-closes")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(log.map_err(system("the target's log"))?)
        .spawn()
        .map_err(system("the target's process"))
}

/// The last lines of a target's log.
fn tail(dir: &Path) -> String {
    let text = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}
