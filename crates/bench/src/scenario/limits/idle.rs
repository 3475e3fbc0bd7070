//! What an idle node costs.

use super::super::ScenarioError;
use super::super::page::Table;
use super::super::runner::Runner;
use super::super::target::{Medium, Target, Wanted};
use serde_json::{Value, json};
use std::time::Duration;

const VOLUMES: u16 = 10;
const SIZE: u64 = 64 << 20;
const BUFFERS: u64 = 64 << 20;
/// Left alone before, and watched.
const SETTLE: Duration = Duration::from_secs(3);
const WATCH: Duration = Duration::from_secs(5);
const MOST_MEMORY: u64 = 100 << 20;
const MOST_PERCENT: f64 = 1.0;

pub(super) struct Idle {
    pub(super) table: Table,
    pub(super) data: Value,
    pub(super) passed: u64,
    pub(super) failed: u64,
}

/// Nanoseconds that all threads of a process ran: the first number of each one's schedstat.
fn ran(pid: u32) -> std::io::Result<u64> {
    let mut sum = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end meanwhile.
        let text = std::fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
        sum += text.split(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(sum)
}

/// Resident memory of a process in bytes.
pub(in crate::scenario) fn resident(pid: u32) -> std::io::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
    kib.map(|k| k << 10).ok_or_else(|| std::io::Error::other("no VmRSS"))
}

/// Watches a node with ten volumes that nobody uses.
pub(super) fn measure(r: &Runner<'_>) -> Result<Idle, ScenarioError> {
    let wanted = Wanted {
        medium: Medium::Ram,
        volumes: VOLUMES,
        size: SIZE,
        cores: r.cores.first(1).target,
        buffers: BUFFERS,
        listen: std::net::Ipv4Addr::LOCALHOST.into(),
    };
    let target = Target::start(r.setup, &wanted)?;
    let system = |e| ScenarioError::System("figures of the idle process".into(), e);
    let Some(pid) = target.pid() else {
        return Err(ScenarioError::Target("is not a process of this scenario".into()));
    };
    std::thread::sleep(SETTLE);
    let before = ran(pid).map_err(system)?;
    std::thread::sleep(WATCH);
    let percent =
        ran(pid).map_err(system)?.saturating_sub(before) as f64 / WATCH.as_nanos() as f64 * 100.0;
    let memory = resident(pid).map_err(system)?;
    let beyond = memory.saturating_sub(BUFFERS);
    let mut table = Table::new(&["idle node with 10 volumes", "measured", "goal", "met"]);
    let mib = |b: u64| format!("{:.0} MiB", b as f64 / f64::from(1 << 20));
    let (mut passed, mut failed) = (0, 0);
    let mut row = |what: &str, is: String, goal: String, met: bool| {
        *(if met { &mut passed } else { &mut failed }) += 1;
        r.say(&format!("  {what}: {is}, goal {goal}: {}", if met { "met" } else { "missed" }));
        table.row(vec![what.into(), is, goal, if met { "yes".into() } else { "no".into() }]);
    };
    row(
        "resident memory",
        mib(memory),
        format!("<= {} and the buffers' {}", mib(MOST_MEMORY), mib(BUFFERS)),
        beyond <= MOST_MEMORY,
    );
    row(
        "processor time",
        format!("{percent:.2} %"),
        format!("< {MOST_PERCENT} %"),
        percent < MOST_PERCENT,
    );
    let data = json!({ "point": "idle", "volumes": VOLUMES, "resident_bytes": memory,
        "buffer_bytes": BUFFERS, "cpu_percent": percent });
    Ok(Idle { table, data, passed, failed })
}
