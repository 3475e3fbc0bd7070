//! S1 fig. 4 and 6: sequential and random, reads and writes, 4 KiB and 1 MiB.

use super::attached::Disks;
use super::{VARIANTS, VOLUME, Via, all, method, target};
use crate::brp::Variant;
use crate::job::{JobSpec, Rw};
use crate::plot::Bars;
use crate::scenario::page::{Page, Section, Table};
use crate::scenario::runner::Runner;
use crate::scenario::target::Target;
use crate::scenario::{Scenario, ScenarioError};
use crate::units;
use serde_json::{Value, json};

pub(in crate::scenario) const FIG4: Scenario = Scenario {
    name: "brp-fig4",
    title: "S1 fig. 4: throughput of SRP, BRP and local I/O by pattern",
    run: fig4,
};
pub(in crate::scenario) const FIG6: Scenario = Scenario {
    name: "brp-fig6",
    title: "S1 fig. 6: what each optimization brings, normalised to local I/O",
    run: fig6,
};

/// S1's threads.
pub(super) const THREADS: u32 = 16;
pub(super) const SIZES: [u32; 2] = [4096, 1 << 20];
pub(super) const PATTERNS: [Rw; 4] = [Rw::Read, Rw::Write, Rw::RandRead, Rw::RandWrite];

/// Heading of what [`Disks`] found.
const ATTACHED: &str = "## As disks of this host, buffered and direct";

/// What S1 reached of local I/O, which is the goal here.
pub(super) fn goal(bs: u32) -> f64 {
    if bs <= 4096 { 0.8 } else { 0.95 }
}

/// One pattern, in the ways asked for: bytes per second.
struct Row {
    rw: Rw,
    bs: u32,
    rates: Vec<f64>,
}

impl Row {
    fn name(&self) -> String {
        format!("{} {}", self.rw.name(), units::size(u64::from(self.bs)))
    }

    fn of(&self, ways: &[Via], via: Via) -> f64 {
        ways.iter().position(|w| *w == via).and_then(|i| self.rates.get(i)).map_or(f64::NAN, |r| *r)
    }
}

fn direct(r: &Runner<'_>, t: &Target, bs: u32, ways: &[Via]) -> Result<Vec<Row>, ScenarioError> {
    let mut rows = Vec::new();
    for rw in PATTERNS {
        let spec = JobSpec { numjobs: THREADS, ..r.job(rw, bs, 1, VOLUME) };
        let p = all(r, t, &spec, ways)?;
        let rates = p.iter().map(|p| p.iops * f64::from(bs)).collect();
        rows.push(Row { rw, bs, rates });
    }
    Ok(rows)
}

/// A drawing of rows of one size.
fn drawing(
    title: &str,
    label: &str,
    ways: &[Via],
    rows: &[Row],
    value: impl Fn(&Row, Via) -> f64,
) -> Bars {
    let heights = |w: &Via| rows.iter().map(|r| Some(value(r, *w))).collect();
    Bars {
        title: title.to_owned(),
        label: label.to_owned(),
        groups: rows.iter().map(|r| r.rw.name().to_owned()).collect(),
        series: ways.iter().map(|w| (w.name().to_owned(), heights(w))).collect(),
        line: None,
    }
}

fn as_json(row: &Row, ways: &[Via]) -> Value {
    let rates: serde_json::Map<String, Value> =
        ways.iter().zip(&row.rates).map(|(w, p)| (w.name().to_owned(), json!(p))).collect();
    json!({ "rw": row.rw.name(), "bs": row.bs, "io": "direct", "bytes_per_second": rates })
}

fn fig4(r: &Runner<'_>) -> Result<Page, ScenarioError> {
    let t = target(r)?;
    let auto = Via::Brp(Variant::Auto);
    let ways = [Via::Srp, auto, Via::Plain, Via::Local];
    let head = [
        "pattern",
        "SRP MB/s",
        "BRP MB/s",
        "BRP, no checksums MB/s",
        "local MB/s",
        "BRP / SRP",
        "BRP / local",
    ];
    let mut table = Table::new(&head);
    let (mut data, mut sections) = (Vec::new(), Vec::new());
    for bs in SIZES {
        let rows = direct(r, &t, bs, &ways)?;
        for row in &rows {
            let mut cells = vec![row.name()];
            cells.extend(row.rates.iter().map(|m| units::three(m / 1e6)));
            for other in [Via::Srp, Via::Local] {
                cells.push(format!("{:.2}", row.of(&ways, auto) / row.of(&ways, other)));
            }
            table.row(cells);
            data.push(as_json(row, &ways));
        }
        let size = units::size(u64::from(bs));
        // Local I/O of 4 KiB is so fast that nothing else could be read off beside it.
        let shown: Vec<Via> = ways.into_iter().filter(|w| *w != Via::Local).collect();
        let value = |row: &Row, w| row.of(&ways, w) / 1e6;
        let bars = drawing(&format!("{size}, direct, 16 threads"), "MB/s", &shown, &rows, value);
        sections.push(Section::Bars(size.clone(), format!("Throughput of {size} I/O"), vec![bars]));
    }
    sections.push(Section::Table(table));
    drop(t);
    let disks = Disks::measure(r)?;
    sections.push(Section::Text(ATTACHED.into()));
    sections.extend(disks.throughput());
    let passed = data.len() as u64 + disks.count();
    Ok(Page {
        intro: "S1 runs 16 threads of sequential and random, buffered and direct I/O of 4 KiB and 1 MiB. Its BRP comes near \
                local I/O everywhere. *Local* here is the same kind of volume inside the load generator: a copy in memory, which no \
                wire on this machine can match."
            .into(),
        method: method(r, "16 threads with one direct I/O at a time each") + "\n\n" + &disks.method(),
        sections,
        data: json!({ "initiators": data, "disks": disks.json() }),
        frame: None,
        passed,
        failed: 0,
    })
}

fn fig6(r: &Runner<'_>) -> Result<Page, ScenarioError> {
    let t = target(r)?;
    let mut ways = vec![Via::Local, Via::Srp];
    ways.extend(VARIANTS.map(Via::Brp));
    let auto = Via::Brp(Variant::Auto);
    let head: Vec<&str> = std::iter::once("pattern")
        .chain(ways[1..].iter().map(|w| w.name()))
        .chain(["goal for auto", "met"])
        .collect();
    let mut table = Table::new(&head);
    let (mut data, mut sections, mut passed, mut failed) = (Vec::new(), Vec::new(), 0, 0);
    for bs in SIZES {
        let rows = direct(r, &t, bs, &ways)?;
        let share = |row: &Row, w| row.of(&ways, w) / row.of(&ways, Via::Local);
        for row in &rows {
            let met = share(row, auto) >= goal(bs);
            *(if met { &mut passed } else { &mut failed }) += 1;
            let mut cells = vec![row.name()];
            cells.extend(ways[1..].iter().map(|w| format!("{:.3}", share(row, *w))));
            cells.push(format!(">= {}", goal(bs)));
            cells.push(if met { "yes" } else { "no" }.into());
            table.row(cells);
            data.push(as_json(row, &ways));
        }
        let size = units::size(u64::from(bs));
        let title = format!("{size}, direct, 16 threads");
        let bars = drawing(&title, "part of local I/O", &ways[1..], &rows, share);
        sections.push(Section::Bars(
            size.clone(),
            format!("Parts of local {size} I/O"),
            vec![bars],
        ));
    }
    sections.push(Section::Table(table));
    drop(t);
    let disks = Disks::measure(r)?;
    let (shares, met, missed) = disks.shares();
    sections.push(Section::Text(ATTACHED.into()));
    sections.extend(shares);
    Ok(Page {
        intro: "S1 normalises I/O of 16 threads to local I/O on a DRAM disk behind PCI Express, which takes 12 to 13 us itself: SRP \
                gets to about 0.35, BRP to more than 0.8 for every small pattern. Here local I/O is a copy in memory of a few hundred \
                nanoseconds without a system call, less than a message over TCP takes by itself, so the shares are small by nature; \
                what can be compared are the columns with each other. S1's marks are shown all the same."
            .into(),
        method: method(r, "16 threads with one direct I/O at a time each") + "\n\n" + &disks.method(),
        sections,
        data: json!({ "initiators": data, "disks": disks.json() }),
        frame: None,
        passed: passed + met,
        failed: failed + missed,
    })
}
