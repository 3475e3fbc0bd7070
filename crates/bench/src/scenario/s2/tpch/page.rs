//! The page about it.

use super::super::scene::RULE;
use super::{DEVICE, Found, KINDS, REFRESH, ROWS, Runs, SUPPLIERS, Step, VOLUME};
use crate::plot::Bars;
use crate::scenario::page::{Page, Section, Table};
use crate::scenario::store::{cost, median};
use crate::units;
use serde_json::{Value, json};
use weir_base::{Nanos, SECONDS};

/// What the page tells besides the figures.
pub(super) struct About {
    /// Of PostgreSQL.
    pub(super) version: String,
    /// Whether the pools' devices were in memory.
    pub(super) in_memory: bool,
    pub(super) loaded: Nanos,
    pub(super) largest: u64,
    pub(super) bytes: u64,
    /// Snapshots that were seen.
    pub(super) versions: usize,
}

/// Numbers of rows against the specification's at scale factor 1.
fn scale() -> f64 {
    f64::from(ROWS[0]) / f64::from(SUPPLIERS)
}

/// Milliseconds of a step on one kind of pool.
fn ms(runs: &[Found]) -> f64 {
    median(runs.iter().map(|f| f.ms).collect())
}

fn megabytes(runs: &[Found], of: fn(&Found) -> u64) -> f64 {
    median(runs.iter().map(|f| of(f) as f64 / 1e6).collect())
}

/// What one kind costs against another in a step, in percent of the rate: the median over rounds, in each of which they
/// ran next to each other.
fn costs(runs: &Runs, of: usize, against: usize) -> f64 {
    let rounds = runs[of].iter().zip(&runs[against]);
    median(rounds.map(|(a, b)| cost(1.0 / a.ms, 1.0 / b.ms)).collect())
}

/// Of one kind in one round, over all steps: the geometric mean, and the sum, in milliseconds.
pub(super) fn together(runs: &[Runs], kind: usize, round: usize) -> (f64, f64) {
    let all: Vec<f64> = runs.iter().filter_map(|r| r[kind].get(round)).map(|f| f.ms).collect();
    let logs: f64 = all.iter().map(|t| t.ln()).sum();
    ((logs / all.len().max(1) as f64).exp(), all.iter().sum())
}

/// Over all rounds: for each kind the medians of what [`together`] gives.
fn overall(runs: &[Runs], of: fn((f64, f64)) -> f64) -> [Vec<f64>; KINDS.len()] {
    let rounds = runs.first().map_or(0, |r| r[0].len());
    std::array::from_fn(|k| (0..rounds).map(|n| of(together(runs, k, n))).collect())
}

fn cost_of(times: &[Vec<f64>; KINDS.len()], of: usize, against: usize) -> f64 {
    let rounds = times[of].iter().zip(&times[against]);
    median(rounds.map(|(a, b)| cost(1.0 / a, 1.0 / b)).collect())
}

/// Queries per hour, as clause 5.4.1 reckons power from the geometric mean.
fn power(mean_ms: f64) -> f64 {
    3600.0 * 1000.0 * scale() / mean_ms
}

/// What checksums cost and what versions cost, with what S2 says.
fn summary(runs: &[Runs]) -> Table {
    let mut t = Table::new(&["", "checksums cost %", "S2", "versions cost %", "S2"]);
    let queries: Vec<&Runs> = runs.iter().collect();
    let of_steps = |a, b| median(queries.iter().map(|r| costs(r, a, b)).collect());
    let mut row = |name: &str, sums: f64, versions: f64| {
        let (sums, versions) = (format!("{sums:.1}"), format!("{versions:.1}"));
        t.row(vec![name.into(), sums, "12 - 20".into(), versions, "2.5 - 5".into()]);
    };
    for (name, of) in [
        ("power (geometric mean of the times)", (|m| m.0) as fn((f64, f64)) -> f64),
        ("sum of the times", |m| m.1),
    ] {
        let times = overall(runs, of);
        row(name, cost_of(&times, 1, 0), cost_of(&times, 2, 1));
    }
    row("median over queries", of_steps(1, 0), of_steps(2, 1));
    t
}

fn powers(runs: &[Runs]) -> Table {
    let mut t = Table::new(&["pool", "geometric mean ms", "sum s", "power (queries/h x scale)"]);
    let (means, sums) = (overall(runs, |m| m.0), overall(runs, |m| m.1));
    for (k, kind) in KINDS.iter().enumerate() {
        let (mean, sum) = (median(means[k].clone()), median(sums[k].clone()));
        let cells = [mean, sum / 1000.0, power(mean)].map(units::three);
        t.row(std::iter::once(kind.name().into()).chain(cells).collect());
    }
    t
}

fn table(steps: &[Step], runs: &[Runs]) -> Table {
    let mut head = vec!["query".to_owned()];
    head.extend(KINDS.iter().map(|k| format!("{} ms", k.name())));
    head.extend(["checksums cost %", "versions cost %", "MB read", "MB written"].map(Into::into));
    let mut t = Table { head, rows: Vec::new() };
    for (step, runs) in steps.iter().zip(runs) {
        let mut cells = vec![format!("{} {}", step.name, step.text)];
        cells.extend(runs.iter().map(|r| units::three(ms(r))));
        cells.extend([costs(runs, 1, 0), costs(runs, 2, 1)].map(|c| format!("{c:.1}")));
        cells.push(units::three(megabytes(&runs[1], |f| f.traffic.read)));
        cells.push(units::three(megabytes(&runs[1], |f| f.traffic.written)));
        t.row(cells);
    }
    t
}

fn drawing(steps: &[Step], runs: &[Runs]) -> Vec<Bars> {
    let bars = |title: &str, part: std::ops::Range<usize>| Bars {
        title: title.into(),
        label: "milliseconds".into(),
        groups: steps[part.clone()].iter().map(|s| s.name.clone()).collect(),
        series: KINDS
            .iter()
            .enumerate()
            .map(|(k, kind)| {
                let heights = runs[part.clone()].iter().map(|r| Some(ms(&r[k]))).collect();
                (kind.name().to_owned(), heights)
            })
            .collect(),
        line: None,
    };
    let half = steps.len() / 2;
    let (first, last) = (&steps[0].name, &steps[steps.len() - 1].name);
    let title = |from: &str, to: &str| format!("TPC-H-like queries, {from} to {to}");
    vec![
        bars(&title(first, &steps[half - 1].name), 0..half),
        bars(&title(&steps[half].name, last), half..steps.len()),
    ]
}

fn data(about: &About, steps: &[Step], runs: &[Runs]) -> Value {
    let each = |runs: &[Found]| -> Value {
        let run = |f: &Found| json!({ "ms": f.ms, "bytes_read": f.traffic.read, "bytes_written": f.traffic.written });
        runs.iter().map(run).collect()
    };
    let step = |(s, r): (&Step, &Runs)| {
        let kinds: serde_json::Map<String, Value> =
            KINDS.iter().zip(r).map(|(k, f)| (k.name().to_owned(), each(f))).collect();
        json!({ "query": s.name, "runs": kinds, "checksums_cost_percent": costs(r, 1, 0),
            "versions_cost_percent": costs(r, 2, 1) })
    };
    let times = overall(runs, |m| m.0);
    json!({
        "scale": scale(), "load_s": about.loaded as f64 / 1e9, "database_bytes": about.bytes, "lineitem_bytes": about.largest,
        "snapshots_seen": about.versions, "devices_in_memory": about.in_memory,
        "power_checksums_cost_percent": cost_of(&times, 1, 0), "power_versions_cost_percent": cost_of(&times, 2, 1),
        "queries": steps.iter().zip(runs).map(step).collect::<Value>(),
    })
}

fn method(about: &About) -> String {
    let [suppliers, parts, customers, orders] = ROWS;
    format!(
        "One target on one core with three pools, each RAID-10 over four files of {} {}, each with a volume of {} that is attached by \
         `weir attach` over SRP (FUSE and a loop device, or ublk where the kernel has it): {}. SRP, because BRP's own checksums would be \
         there even if the store's are not. *{}*: checksums cover no data (for this measurement only), *{}*: as pools are, *{}*: besides, \
         while a query runs the volume has the rule `{RULE}`: snapshots every second, of which all but the newest two are purged \
         ({} different ones were seen at the ends of queries). Each disk has an ext4 and a PostgreSQL {} of its own, 16 MB of shared \
         buffers, 4 MB to sort and hash in, one process for a query, a price of random reads that lets it scan (`random_page_cost = 25`), no autovacuum, no compilation. Before each query there is a \
         checkpoint, and the page cache forgets the database's files: *MB read* is what the disk was asked for with checksums. \
         Queries are run next to each other on the three pools, in turns as to which is first; a time is from sending the query to having \
         its answer, and a point's run lasts as long as that. Costs are in percent of the rate, medians over rounds, so they are not exactly \
         those of the medians beside them. Load, servers, kernel and target share all cores of the machine.\n\n\
         TPC-H-like: the specification's eight tables at scale factor {} ({suppliers} suppliers, {parts} parts, {customers} customers, {orders} \
         orders with some {} lines; the database has {} MB, `lineitem` alone {}), made by the server itself in {} s and then copied, so \
         that pages, statistics and plans are the same on all three. Values have the specification's ranges and dependencies, all by a hash \
         of the key; text is simpler than its grammar. There are indexes of primary keys only. All 22 \
         queries with the parameters that the specification gives for their validation, Q17 and Q20 without the inner queries for each part, between the two refresh functions ({} brings a \
         thousandth of the orders; {} takes them again, so that each round begins with the same data), in the order of their numbers and one after the other: \
         a power run, but not an audited one; no figure may be compared with published ones. Every answer was the same on all pools and in all rounds.",
        units::size(DEVICE),
        if about.in_memory {
            "in memory (tmpfs), opened past the page cache"
        } else {
            "in the directory for temporary files, opened past the page cache (this kernel's tmpfs cannot do that)"
        },
        units::size(VOLUME),
        "4 KiB blocks, each write on both copies before it is acknowledged",
        KINDS[0].name(),
        KINDS[1].name(),
        KINDS[2].name(),
        about.versions,
        about.version,
        scale(),
        orders * 4,
        about.bytes / 1_000_000,
        about.largest / 1_000_000,
        about.loaded / SECONDS,
        REFRESH[0].0,
        REFRESH[1].0,
    )
}

pub(super) fn page(about: &About, steps: &[Step], runs: &[Runs]) -> Page {
    let caption = "Time of each query, without checksums, with them, and with versions".to_owned();
    Page {
        intro: "S2 draws TPC-H on RAID-10 with and without checksums (EDC) and versioning, without figures to read off; over all of its \
                workloads it gives 12 to 20 % for checksums and 2.5 to 5 % for versions. A database adds work of its own to each block, so \
                costs are smaller here than in the store alone ([store-overhead](store-overhead.md), [s2-orion](s2-orion.md))."
            .into(),
        method: method(about),
        sections: vec![
            Section::Bars(String::new(), caption, drawing(steps, runs)),
            Section::Table(summary(runs)),
            Section::Table(powers(runs)),
            Section::Table(table(steps, runs)),
        ],
        data: data(about, steps, runs),
        frame: None,
        passed: (steps.len() * KINDS.len()) as u64,
        failed: 0,
    }
}
