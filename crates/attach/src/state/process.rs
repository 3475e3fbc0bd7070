//! Processes, which are known by more than their numbers.

use crate::sys;
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Where a process has its number; what an older version has written says nothing of that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Home {
    /// Its pid namespace, as the kernel numbers it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_namespace: Option<u64>,
    /// The run of the machine: the first half of the kernel's boot id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<u64>,
}

impl Home {
    /// That of this process.
    pub fn here() -> Home {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().and_then(|id| {
            let digits: String = id.chars().filter(char::is_ascii_hexdigit).take(16).collect();
            u64::from_str_radix(&digits, 16).ok()
        });
        Home { pid_namespace: namespace(Path::new("/proc/self")), boot }
    }
}

fn namespace(process: &Path) -> Option<u64> {
    fs::metadata(process.join("ns/pid")).ok().map(|m| m.ino())
}

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
    /// It has its number in another pid namespace, and may live.
    Elsewhere,
}

impl Process {
    /// This one.
    pub(crate) fn me() -> Process {
        let pid = std::process::id();
        Process { pid, started: started(pid).unwrap_or(0), home: Home::here() }
    }

    /// The one that has this number now.
    #[cfg(test)]
    pub(crate) fn of(pid: u32) -> Option<Process> {
        Some(Process { pid, started: started(pid)?, home: Home::here() })
    }

    /// Whether it lives. By its number it is only known where that is its own.
    pub(crate) fn life(self) -> Life {
        let here = Home::here();
        let differ = |a: Option<u64>, b: Option<u64>| a.is_some() && b.is_some() && a != b;
        if differ(self.home.boot, here.boot) {
            return Life::Ended;
        }
        if differ(self.home.pid_namespace, here.pid_namespace) {
            let gone = self.home.pid_namespace.is_some_and(is_gone);
            return if gone { Life::Ended } else { Life::Elsewhere };
        }
        match started(self.pid) == Some(self.started) {
            true => Life::Alive,
            false => Life::Ended,
        }
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
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may have anything in it.
    let mut words = stat.rsplit_once(')')?.1.split_whitespace();
    if matches!(words.next()?, "Z" | "X") {
        return None;
    }
    words.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_counts_in_its_namespace_only() {
        let me = Process::me();
        assert!(me.home.pid_namespace.is_some() && me.home.boot.is_some());
        assert_eq!(me.life(), Life::Alive);
        let home = |pid_namespace, boot| Process { home: Home { pid_namespace, boot }, ..me };
        // An older version did not write it down.
        assert_eq!(home(None, None).life(), Life::Alive);
        assert_eq!(Process { started: 1, ..home(None, None) }.life(), Life::Ended);
        let other = home(me.home.pid_namespace, Some(1));
        assert_eq!(other.life(), Life::Ended, "the machine has started anew");
        let none = home(Some(1), me.home.boot).life();
        // Not even root may ask that of all everywhere.
        let all = sys::has_all_processes() && namespace(Path::new("/proc/1")).is_some();
        let wanted = if all { Life::Ended } else { Life::Elsewhere };
        assert_eq!(none, wanted, "no such namespace");
        let text = serde_json::to_value(me).unwrap();
        assert_eq!(text["pid"], me.pid);
        assert_eq!(serde_json::from_value::<Process>(text).unwrap(), me);
        let old: Process = serde_json::from_str(r#"{"pid":1,"started":2}"#).unwrap();
        assert_eq!(old.home, Home::default());
    }
}
