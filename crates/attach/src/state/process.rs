//! Processes, which are known by more than their numbers.

use super::witness::Witness;
use crate::sys;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// Where a process has its number; what an older version has written says nothing of that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Home {
    /// Its pid namespace, as the kernel numbers it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_namespace: Option<u64>,
    /// The run of the machine: the first half of the kernel's boot id.
    #[serde(default, rename = "kernel_boot", skip_serializing_if = "Option::is_none")]
    pub boot: Option<u64>,
    /// The same as the version before has read it: in a container that may be made up.
    #[serde(default, rename = "boot", skip_serializing_if = "Option::is_none")]
    pub told_boot: Option<u64>,
}

impl Home {
    /// That of this process.
    pub fn here() -> Home {
        let pid_namespace = namespace(Path::new("/proc/self"));
        Home { pid_namespace, boot: boot(), told_boot: None }
    }

    /// Whether it is certainly that of another run of the machine.
    pub(crate) fn is_of_another_boot(self) -> bool {
        // What is made up in a container is so for all of it.
        let here = || self.pid_namespace == namespace(Path::new("/proc/self"));
        let now = boot();
        differ(self.boot, now) || (differ(self.told_boot, now) && here())
    }

    /// Whether it is certainly that of this run of the machine.
    pub(crate) fn is_of_this_boot(self) -> bool {
        self.boot.is_some() && self.boot == boot()
    }
}

fn differ(a: Option<u64>, b: Option<u64>) -> bool {
    a.is_some() && b.is_some() && a != b
}

/// The kernel's own number for this run of the machine. A container's manager may put another file in its place (as
/// systemd-nspawn and LXC do), which says nothing of the kernel.
fn boot() -> Option<u64> {
    number_of(Path::new("/proc/sys/kernel/random/boot_id"))
}

fn number_of(boot_id: &Path) -> Option<u64> {
    let mut file = fs::File::open(boot_id).ok().filter(|f| sys::is_of_proc(f.as_fd()))?;
    let mut id = String::new();
    file.read_to_string(&mut id).ok()?;
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).ok()
}

fn namespace(process: &Path) -> Option<u64> {
    fs::metadata(process.join("ns/pid")).ok().map(|m| m.ino())
}

/// How long the end of a process may take, from its number to its files.
const ENDING: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(20);

/// A process, told from another one of its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// When it started, in the kernel's ticks.
    pub(crate) started: u64,
    #[serde(flatten)]
    pub(crate) home: Home,
}

/// What is known of a process's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// It lives.
    Alive,
    /// It has ended.
    Ended,
    /// It has its number in another pid namespace, or it cannot be looked at, and may live.
    Elsewhere,
}

impl Process {
    /// This one.
    pub(crate) fn me() -> Process {
        let pid = std::process::id();
        let started = started(pid).ok().flatten().unwrap_or(0);
        Process { pid, started, home: Home::here() }
    }

    /// The one that has this number now.
    #[cfg(test)]
    pub(crate) fn of(pid: u32) -> Option<Process> {
        Some(Process { pid, started: started(pid).ok()??, home: Home::here() })
    }

    /// Whether it lives, by its number: that is only known where the number is its own.
    pub(crate) fn life(self) -> Life {
        let here = namespace(Path::new("/proc/self"));
        if differ(self.home.pid_namespace, here) {
            // The run of the machine as a container tells it may be none.
            let gone = self.home.pid_namespace.is_some_and(is_gone);
            return if gone { Life::Ended } else { Life::Elsewhere };
        }
        if self.home.is_of_another_boot() {
            return Life::Ended;
        }
        match started(self.pid) {
            Ok(Some(started)) if started == self.started => Life::Alive,
            Ok(_) => Life::Ended,
            // As when this process has no descriptor left to ask with.
            Err(_) => Life::Elsewhere,
        }
    }

    /// The same where the kernel itself says it by a lock that only the end of the process lets go. It is asked again for a
    /// while: a process that ends has no number any more before its files are closed.
    pub(super) fn life_by(self, witness: impl Fn() -> Witness) -> Life {
        for _ in 0..ENDING.as_millis() / STEP.as_millis() {
            match (witness(), self.life()) {
                (Witness::Unknown, life) => return life,
                (Witness::Free, _) => return Life::Ended,
                (Witness::Held, Life::Ended) => std::thread::sleep(STEP),
                (Witness::Held, life) => return life,
            }
        }
        Life::Elsewhere
    }

    /// Whether it lives for certain.
    pub(crate) fn is_alive(self) -> bool {
        self.life() == Life::Alive
    }
}

/// Whether no process is in this pid namespace any more. Only where all are seen is that known.
fn is_gone(pid_namespace: u64) -> bool {
    if !sys::has_all_processes() {
        return false;
    }
    let Ok(entries) = fs::read_dir("/proc") else { return false };
    let mut all = entries
        .flatten()
        .filter(|e| e.file_name().to_str().is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit())));
    all.all(|e| match fs::metadata(e.path().join("ns/pid")) {
        Ok(m) => m.ino() != pid_namespace,
        // One that has ended meanwhile is in none. Of others it is not known.
        Err(e) => e.kind() == std::io::ErrorKind::NotFound,
    })
}

/// When a process started, in ticks since the machine did; `None` when there is none, or nothing but its exit status.
fn started(pid: u32) -> io::Result<Option<u64>> {
    let stat = match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        // It ended while it was read.
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
        Err(e) => return Err(e),
    };
    // The name, in parentheses, may have anything in it.
    let mut words = stat.rsplit_once(')').map_or("", |s| s.1).split_whitespace();
    if matches!(words.next(), Some("Z" | "X")) {
        return Ok(None);
    }
    let started = words.nth(18).and_then(|w| w.parse().ok());
    started.map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_counts_in_its_namespace_only() {
        let me = Process::me();
        assert!(me.home.pid_namespace.is_some() && me.home.boot.is_some());
        assert_eq!(me.life(), Life::Alive);
        let home = |pid_namespace, boot| {
            let home = Home { pid_namespace, boot, told_boot: None };
            Process { home, ..me }
        };
        // An older version did not write it down.
        assert_eq!(home(None, None).life(), Life::Alive);
        assert_eq!(Process { started: 1, ..home(None, None) }.life(), Life::Ended);
        let other = home(me.home.pid_namespace, Some(1));
        assert_eq!(other.life(), Life::Ended, "the machine has started anew");
        // What a container tells of that is not the kernel's: its namespace counts.
        let contained = home(Some(1), Some(1)).life();
        let none = home(Some(1), me.home.boot).life();
        // Not even root may ask that of all everywhere.
        let all = sys::has_all_processes() && namespace(Path::new("/proc/1")).is_some();
        let wanted = if all { Life::Ended } else { Life::Elsewhere };
        assert_eq!((none, contained), (wanted, wanted), "no such namespace");
        let text = serde_json::to_value(me).unwrap();
        assert_eq!(text["pid"], me.pid);
        assert_eq!(serde_json::from_value::<Process>(text).unwrap(), me);
        let old: Process = serde_json::from_str(r#"{"pid":1,"started":2}"#).unwrap();
        assert_eq!(old.home, Home::default());
    }

    /// As systemd-nspawn and LXC put one there.
    #[test]
    fn a_file_that_is_not_the_kernel_s_says_nothing_of_the_machine_s_start() {
        let dir = crate::state::tests::Scratch::new("boot-id");
        let file = dir.0.join("boot_id");
        fs::write(&file, "c0ffee00-0000-0000-0000-000000000000\n").unwrap();
        assert_eq!(number_of(&file), None);
        assert!(boot().is_some());
    }

    /// The version before has believed whatever file was there.
    #[test]
    fn what_an_older_version_was_told_of_the_machine_s_start_counts_in_its_namespace_only() {
        let here = Home::here();
        let old = |pid_namespace, boot: u64| -> Home {
            let text = serde_json::json!({ "pid_namespace": pid_namespace, "boot": boot });
            serde_json::from_value(text).unwrap()
        };
        let inside = old(Some(1), 0xc0ff_ee00);
        assert!(!inside.is_of_another_boot() && !inside.is_of_this_boot());
        assert!(!old(None, 0xc0ff_ee00).is_of_another_boot());
        assert!(old(here.pid_namespace, 0xc0ff_ee00).is_of_another_boot());
        assert!(!old(here.pid_namespace, here.boot.unwrap()).is_of_another_boot());
        // This version has asked the kernel.
        assert!(Home { boot: Some(1), ..inside }.is_of_another_boot());
    }

    #[test]
    fn a_lock_says_more_than_a_number() {
        let me = Process::me();
        let other = Home { pid_namespace: Some(1), ..me.home };
        let elsewhere = Process { home: other, ..me };
        let ended = Process { started: 1, ..me };
        assert_eq!(elsewhere.life_by(|| Witness::Free), Life::Ended);
        assert_eq!(me.life_by(|| Witness::Free), Life::Ended, "another that looks like it");
        assert_eq!(me.life_by(|| Witness::Held), Life::Alive);
        assert_eq!(ended.life_by(|| Witness::Held), Life::Elsewhere, "it may live");
        assert_eq!(ended.life_by(|| Witness::Unknown), Life::Ended);
    }
}
