//! What `weir top` shows: rows of each view, in the order that is wanted.

use super::super::progress;
use super::{Round, rate, time};
use std::cmp::Ordering;
use weir_control::live::{IoStats, MigrationLive, PoolLive, Status, VolumeLive};
use weir_control::units::format_size;

/// What is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum View {
    /// Volumes, with what hosts do to them.
    Volumes,
    /// Protected pools, with what is done about them.
    Pools,
    /// What takes long: migrations, scrubs, devices that are filled or emptied.
    Jobs,
    /// Hosts that are logged in.
    Hosts,
    /// Reactors, one on each core.
    Reactors,
    /// Pools of buffers and requests.
    Buffers,
}

impl View {
    pub(super) const ALL: [View; 6] =
        [View::Volumes, View::Pools, View::Jobs, View::Hosts, View::Reactors, View::Buffers];

    pub(super) fn name(self) -> &'static str {
        match self {
            View::Volumes => "volumes",
            View::Pools => "pools",
            View::Jobs => "jobs",
            View::Hosts => "hosts",
            View::Reactors => "reactors",
            View::Buffers => "buffers",
        }
    }
}

/// What comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sort {
    /// What has most to do: I/Os a second; for pools how full they are, for jobs how fast they go.
    Load,
    /// By name.
    Name,
    /// Bytes a second.
    Bandwidth,
    /// The longest latency: the 99th percentile of reads or writes.
    Latency,
    /// Commands in flight.
    Depth,
    /// Errors; of pools, damaged copies.
    Errors,
}

impl Sort {
    const ALL: [Sort; 6] =
        [Sort::Load, Sort::Name, Sort::Bandwidth, Sort::Latency, Sort::Depth, Sort::Errors];

    /// The next one of them.
    pub(super) fn next(self) -> Sort {
        let at = Sort::ALL.iter().position(|s| *s == self).map_or(0, |i| i + 1);
        Sort::ALL[at % Sort::ALL.len()]
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Sort::Load => "load",
            Sort::Name => "name",
            Sort::Bandwidth => "bandwidth",
            Sort::Latency => "latency",
            Sort::Depth => "depth",
            Sort::Errors => "errors",
        }
    }
}

/// How a line looks where there are colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Style {
    #[default]
    Plain,
    /// What names the others.
    Head,
    /// Something is going on.
    Busy,
    /// Something is wrong.
    Bad,
}

/// A row of a table.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) cells: Vec<String>,
    pub(super) style: Style,
    /// By what it is sorted, the largest first.
    weight: f64,
}

/// Head and rows of a view.
pub(super) struct Rows {
    pub(super) head: &'static [&'static str],
    pub(super) rows: Vec<Row>,
}

/// What takes long.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub(super) struct Job {
    /// `migration`, `scrub`, or what is done about a device: `resync`, `drain`, `balance`.
    pub(super) job: String,
    /// `volume/NAME` or `pool/NAME`.
    pub(super) object: String,
    pub(super) state: String,
    /// Bytes.
    pub(super) done: u64,
    pub(super) total: u64,
    pub(super) bytes_per_second: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) seconds_left: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
}

/// Bytes of a block of a protected pool.
const BLOCK: u64 = 4096;

/// All that goes on.
pub(super) fn jobs(status: &Status, migrations: &[MigrationLive]) -> Vec<Job> {
    let moving = migrations.iter().filter(|m| !m.is_over()).map(|m| Job {
        job: "migration".into(),
        object: format!("volume/{}", m.volume),
        state: if m.paused { format!("{} (paused)", m.state) } else { m.state.clone() },
        done: m.done,
        total: m.total,
        bytes_per_second: m.pace.bytes_per_second,
        seconds_left: m.pace.seconds_left,
        note: m.reason.clone(),
    });
    moving.chain(status.live.pools.iter().flat_map(of_pool)).collect()
}

fn of_pool(p: &PoolLive) -> Vec<Job> {
    let object = format!("pool/{}", p.name);
    let scrub = p.scrub.iter().filter(|s| s.state == "running").map(|s| Job {
        job: "scrub".into(),
        object: object.clone(),
        state: s.state.clone(),
        done: s.blocks * BLOCK,
        total: s.of_blocks * BLOCK,
        bytes_per_second: s.pace.bytes_per_second,
        seconds_left: s.pace.seconds_left,
        note: (s.damaged > 0).then(|| format!("{} copies damaged, {} lost", s.damaged, s.lost)),
    });
    let work = p.work.iter().map(|w| Job {
        job: w.work.clone(),
        object: object.clone(),
        state: "running".into(),
        done: w.done,
        total: w.total,
        bytes_per_second: w.pace.bytes_per_second,
        seconds_left: w.pace.seconds_left,
        note: Some(format!("device {}", w.device)),
    });
    scrub.chain(work).collect()
}

/// The rows of a view, sorted; `reversed`: the smallest first.
pub(super) fn of(view: View, round: &Round, sort: Sort, reversed: bool) -> Rows {
    let live = &round.status.live;
    let (head, mut rows): (&'static [&'static str], Vec<Row>) = match view {
        View::Volumes => (
            &[
                "VOLUME", ">R IOPS", ">R BW", ">R P50", ">R P99", ">W IOPS", ">W BW", ">W P50",
                ">W P99", ">QD", ">ERRORS",
            ],
            live.volumes.iter().map(|v| volume(v, sort)).collect(),
        ),
        View::Pools => (
            &["POOL", "STATE", ">SIZE", ">FREE", ">FULL", ">DEVICES", ">DAMAGED", "UNDER WAY"],
            live.pools.iter().map(|p| pool(p, sort)).collect(),
        ),
        View::Jobs => (
            &["JOB", "OF", "STATE", ">DONE", ">BYTES", ">RATE", ">LEFT", "NOTE"],
            round.jobs.iter().map(job).collect(),
        ),
        View::Hosts => {
            let all = live.ports.iter().flat_map(|p| &p.nexuses);
            let row = |n: &weir_control::live::NexusLive| Row {
                cells: vec![
                    n.host.clone().unwrap_or_else(|| "-".into()),
                    n.initiator.clone(),
                    n.peer.clone(),
                    n.channels.to_string(),
                    n.in_flight.to_string(),
                ],
                style: Style::Plain,
                weight: n.in_flight as f64,
            };
            (&["HOST", "INITIATOR", "PEER", ">CHANNELS", ">QD"], all.map(row).collect())
        }
        View::Reactors => (
            &[">CORE", ">BUSY", ">AWAKE", ">POLLS", ">USEFUL", ">SLEEPS", "HELD UP BY"],
            live.reactors.iter().map(reactor).collect(),
        ),
        View::Buffers => (
            &["POOL OF", ">TOTAL", ">FREE", ">LEAST FREE", ">WAITING"],
            live.census.iter().map(census).collect(),
        ),
    };
    let by_name = |a: &Row, b: &Row| a.cells.first().cmp(&b.cells.first());
    // Cores and buffers have an order of their own.
    if !matches!(view, View::Reactors | View::Buffers) {
        rows.sort_by(|a, b| match sort {
            Sort::Name => by_name(a, b),
            _ => b.weight.partial_cmp(&a.weight).unwrap_or(Ordering::Equal).then(by_name(a, b)),
        });
        if reversed {
            rows.reverse();
        }
    }
    Rows { head, rows }
}

fn io(s: &IoStats) -> [String; 4] {
    [
        rate(s.iops),
        progress::rate(s.bytes_per_second as u64),
        time(s.latency.p50_ns),
        time(s.latency.p99_ns),
    ]
}

fn volume(v: &VolumeLive, sort: Sort) -> Row {
    let errors = v.read.errors + v.write.errors;
    let mut cells = vec![v.name.clone()];
    cells.extend(io(&v.read));
    cells.extend(io(&v.write));
    cells.extend([v.in_flight.to_string(), errors.to_string()]);
    let weight = match sort {
        Sort::Load | Sort::Name => v.read.iops + v.write.iops,
        Sort::Bandwidth => v.read.bytes_per_second + v.write.bytes_per_second,
        Sort::Latency => v.read.latency.p99_ns.max(v.write.latency.p99_ns) as f64,
        Sort::Depth => v.in_flight as f64,
        Sort::Errors => errors as f64,
    };
    Row { cells, style: if errors > 0 { Style::Bad } else { Style::Plain }, weight }
}

fn pool(p: &PoolLive, sort: Sort) -> Row {
    let full = 100.0 * p.total.saturating_sub(p.free) as f64 / p.total.max(1) as f64;
    let under_way: Vec<String> = of_pool(p)
        .iter()
        .map(|j| format!("{} {} %", j.job, progress::percent(j.done, j.total)))
        .chain(p.trouble.clone())
        .collect();
    let style = match (p.state.as_str(), under_way.is_empty()) {
        ("healthy", true) => Style::Plain,
        ("healthy", false) => Style::Busy,
        _ => Style::Bad,
    };
    let in_sync = p.devices.iter().filter(|d| d.state == "in-sync").count();
    Row {
        cells: vec![
            p.name.clone(),
            p.state.clone(),
            format_size(p.total),
            format_size(p.free),
            format!("{full:.1} %"),
            format!("{in_sync}/{}", p.devices.len()),
            p.counters.damaged.to_string(),
            under_way.join(", "),
        ],
        style,
        weight: if sort == Sort::Errors { p.counters.damaged as f64 } else { full },
    }
}

fn job(j: &Job) -> Row {
    Row {
        cells: vec![
            j.job.clone(),
            j.object.clone(),
            j.state.clone(),
            format!("{} %", progress::percent(j.done, j.total)),
            format_size(j.total),
            progress::rate(j.bytes_per_second),
            j.seconds_left.map_or_else(|| "-".into(), progress::seconds),
            j.note.clone().unwrap_or_default(),
        ],
        style: Style::Busy,
        weight: j.bytes_per_second as f64,
    }
}

fn reactor(r: &weir_control::live::ReactorLive) -> Row {
    Row {
        cells: vec![
            r.core.to_string(),
            format!("{:.1} %", r.busy_percent),
            format!("{:.1} %", r.awake_percent),
            rate(r.polls as f64),
            rate(r.useful_polls as f64),
            rate(r.sleeps as f64),
            r.held.clone().unwrap_or_default(),
        ],
        style: if r.held.is_some() { Style::Bad } else { Style::Plain },
        weight: 0.0,
    }
}

fn census(c: &weir_control::live::CensusLive) -> Row {
    Row {
        cells: vec![
            c.name.clone(),
            c.total.to_string(),
            c.free.to_string(),
            c.least_free.to_string(),
            c.waiting.to_string(),
        ],
        style: if c.waiting > 0 { Style::Bad } else { Style::Plain },
        weight: 0.0,
    }
}
