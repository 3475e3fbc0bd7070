//! A pool on a file system that hangs, beside another one.

use super::{Found, Host, system, target, three};
use crate::bare::Clock;
use crate::scenario::ScenarioError;
use crate::scenario::runner::Runner;
use crate::scenario::target::{Medium, NOT_OURS, Target};
use crate::units;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// How long the operator may have to wait for what `weir status` says.
const STATUS: Duration = Duration::from_millis(200);
/// How often that is asked.
const ASKED: u32 = 20;
/// How long other pools may take to be served.
const START: Duration = Duration::from_secs(2);
/// How long the host of the pool that is going to hang works before that.
const BEGINS: Duration = Duration::from_secs(1);
/// How often it is looked for a disk, and how long.
const LOOK: Duration = Duration::from_millis(20);
const LOOKS: u32 = 500;

fn failed(what: &str, out: &Output) -> ScenarioError {
    let why = String::from_utf8_lossy(&out.stderr);
    ScenarioError::Io(format!("{what}: {}", why.trim()))
}

fn run_to_end(what: &str, command: &mut Command) -> Result<(), ScenarioError> {
    let out = command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| ScenarioError::System(what.to_owned(), e))?;
    if out.status.success() { Ok(()) } else { Err(failed(what, &out)) }
}

/// A command for the target's operator.
fn operate(r: &Runner<'_>, t: &Target, line: &str) -> Result<(), ScenarioError> {
    let mut c = Command::new(&r.setup.program);
    c.arg("--data-dir").arg(t.data().ok_or_else(|| ScenarioError::Target(NOT_OURS.into()))?);
    run_to_end(line, c.args(line.split(' ')))
}

/// A file system on a disk that another target has, by an attachment which can be stopped.
struct FileSystem {
    attachment: Child,
    at: PathBuf,
    /// Its disk's target, which goes last.
    _target: Target,
}

impl FileSystem {
    fn make(r: &Runner<'_>) -> Result<FileSystem, ScenarioError> {
        let of = target(r, Medium::Ram)?;
        let name = format!("weir-bench-{}", std::process::id());
        let dir = of.data().ok_or_else(|| ScenarioError::Target(NOT_OURS.into()))?;
        let dir = dir.parent().unwrap_or(Path::new("/tmp")).to_owned();
        let at = dir.join("mounted");
        std::fs::create_dir_all(&at).map_err(system("a directory to mount at"))?;
        let attachment = Command::new(&r.setup.program)
            .args(["attach", "--lun", "0", "--protocol", "srp", "--method", "fuse", "--foreground"])
            .args(["--target", &of.login.place().to_string(), "--name", &name])
            .arg("--run-dir")
            .arg(dir.join("attached"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(system("an attachment"))?;
        let fs = FileSystem { attachment, at, _target: of };
        let disk = Path::new("/dev/weir").join(&name);
        for _ in 0..LOOKS {
            if disk.exists() {
                break;
            }
            std::thread::sleep(LOOK);
        }
        run_to_end("a file system", Command::new("mkfs.ext4").arg("-q").arg(&disk))?;
        run_to_end("mounting it", Command::new("mount").arg(&disk).arg(&fs.at))?;
        Ok(fs)
    }

    fn signal(&self, name: &str) -> Result<(), ScenarioError> {
        let pid = self.attachment.id().to_string();
        run_to_end("a signal", Command::new("kill").args([name, &pid]))
    }

    fn hang(&self) -> Result<Hangs<'_>, ScenarioError> {
        self.signal("-STOP")?;
        Ok(Hangs(self))
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        // Errors mean that it was not mounted, or has ended.
        let _ = run_to_end("unmounting", Command::new("umount").arg(&self.at));
        let _ = self.signal("-TERM");
        let _ = self.attachment.wait();
    }
}

/// It does, as long as there is this.
struct Hangs<'a>(&'a FileSystem);

impl Drop for Hangs<'_> {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.0.signal("-CONT");
    }
}

/// The longest that `weir status` takes.
fn longest_status(r: &Runner<'_>, t: &Target) -> Result<Duration, ScenarioError> {
    let (clock, mut longest) = (Clock::new().map_err(system("a clock"))?, Duration::ZERO);
    for _ in 0..ASKED {
        let begun = clock.now();
        operate(r, t, "status --json")?;
        longest = longest.max(clock.since(begun));
    }
    Ok(longest)
}

fn measure(
    r: &Runner<'_>,
    t: &mut Target,
    fs: &FileSystem,
    found: &mut Found,
) -> Result<(), ScenarioError> {
    let file = fs.at.join("pool.img");
    operate(r, t, &format!("pool create slow --device file:{}:96M", file.display()))?;
    operate(r, t, "volume create slow --pool slow --size 64M")?;
    operate(r, t, "map create all slow --lun 1")?;
    let (mut ratios, mut longest) = (Vec::new(), Duration::ZERO);
    for n in 0..r.setup.repeat.max(1) {
        let alone = three(r, t)?;
        let load = "--rw randwrite --bs 64k --iodepth 32 --size 64m --time-based --runtime 3600s";
        let busy = Host::start_on(r, t, 300 + n, 1, load)?;
        std::thread::sleep(BEGINS);
        let hangs = fs.hang()?;
        // What it has sent stays with the target. A host that waits polls, and would take a core of this machine from the others.
        std::thread::sleep(BEGINS);
        busy.signal("-STOP")?;
        let beside = three(r, t)?;
        longest = longest.max(longest_status(r, t)?);
        busy.signal("-CONT")?;
        drop(hangs);
        drop(busy);
        // Before and after, as the machine's speed changes. What was held up is over then.
        std::thread::sleep(BEGINS);
        let alone = (alone + three(r, t)?) / 2.0;
        ratios.push(beside / alone);
        let (a, b) = (units::bandwidth(alone), units::bandwidth(beside));
        r.say(&format!("  three hosts: {a} by themselves, {b} beside a file system that hangs"));
        found.data.push(json!({ "alone_bytes": alone, "beside_hung_bytes": beside }));
    }
    ratios.sort_by(f64::total_cmp);
    let ratio = ratios[ratios.len() / 2];
    let what = "rate of three hosts beside a pool on a file system that hangs, with 32 writes";
    found.row(r, what, format!("{ratio:.2}"), ">= 0.95", ratio >= 0.95);
    let is = units::nanos(longest.as_nanos() as f64);
    found.row(r, "longest `weir status` meanwhile", is, "<= 200 ms", longest <= STATUS);
    t.stop()?;
    let hangs = fs.hang()?;
    let clock = Clock::new().map_err(system("a clock"))?;
    let begun = clock.now();
    t.start_again(r.setup)?;
    while t.shows(0).is_none() && clock.since(begun) < 10 * START {
        std::thread::sleep(LOOK);
    }
    let took = clock.since(begun);
    drop(hangs);
    let is = units::nanos(took.as_nanos() as f64);
    let what = "start with a pool on a file system that hangs: the other pool is served";
    found.row(r, what, is, "<= 2 s", took <= START);
    Ok(())
}

/// Needs root, FUSE, loop devices and ext4; without them it is said that this was not measured.
pub(super) fn run(r: &Runner<'_>, found: &mut Found) -> Result<(), ScenarioError> {
    let mut t = target(r, Medium::Ram)?;
    let fs = match FileSystem::make(r) {
        Ok(fs) => fs,
        Err(e) => {
            found.left_out(r, "a pool on a file system that hangs", &e.to_string());
            return Ok(());
        }
    };
    let done = measure(r, &mut t, &fs, found);
    // It has files there.
    drop(t);
    done
}
