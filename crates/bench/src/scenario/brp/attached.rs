//! The patterns of fig. 4 and 6 on disks of this host: whole kernel paths, with the page cache and past it.

use super::VOLUME;
use super::patterns::{PATTERNS, SIZES, THREADS, goal};
use crate::job::Rw;
use crate::plot::Bars;
use crate::scenario::ScenarioError;
use crate::scenario::attached::{Load, Site, missing};
use crate::scenario::page::{Section, Table};
use crate::scenario::runner::Runner;
use crate::units;
use serde_json::{Value, json};
use std::path::PathBuf;
use weir_base::Nanos;

const NAMES: [&str; 3] = ["SRP", "BRP", "local disk"];

/// Rates of one pattern in bytes per second: SRP, BRP, local disk.
struct Row {
    rw: Rw,
    bs: u32,
    direct: bool,
    rates: [f64; 3],
}

impl Row {
    fn io(&self) -> &'static str {
        if self.direct { "direct" } else { "buffered" }
    }

    fn of_local(&self, i: usize) -> f64 {
        self.rates[i] / self.rates[2]
    }
}

/// What the disks gave.
pub(super) struct Disks(Result<Vec<Row>, String>);

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

fn row(r: &Runner<'_>, disks: &[PathBuf; 3], load: Load) -> Result<Row, ScenarioError> {
    let mut found = [const { Vec::new() }; 3];
    for round in 0..r.setup.repeat.max(1) {
        for i in 0..3 {
            let i = if round % 2 == 0 { i } else { 2 - i };
            found[i].push(load.run(&disks[i])?.rate());
        }
    }
    let rates = found.map(median);
    let row = Row { rw: load.rw, bs: load.bs, direct: load.direct, rates };
    let text: Vec<String> =
        NAMES.iter().zip(rates).map(|(n, x)| format!("{n} {}", units::three(x / 1e6))).collect();
    let size = units::size(u64::from(load.bs));
    r.say(&format!("  {} {size}, {}, MB/s: {}", load.rw.name(), row.io(), text.join(", ")));
    Ok(row)
}

fn measured(r: &Runner<'_>) -> Result<Vec<Row>, ScenarioError> {
    let (site, disks) = Site::with_three_disks(r, VOLUME)?;
    r.say(&format!("attached: {disks:?}"));
    let fill = Load {
        rw: Rw::Write,
        bs: 1 << 20,
        threads: 1,
        direct: false,
        size: VOLUME,
        most: Nanos::MAX,
    };
    for d in &disks {
        fill.run(d)?;
    }
    let mut rows = Vec::new();
    for direct in [false, true] {
        for bs in SIZES {
            for rw in PATTERNS {
                let most = r.setup.runtime;
                let load = Load { rw, bs, threads: THREADS, direct, size: VOLUME, most };
                rows.push(row(r, &disks, load)?);
            }
        }
    }
    site.close()?;
    Ok(rows)
}

impl Disks {
    /// Measures, where disks can be attached.
    pub(super) fn measure(r: &Runner<'_>) -> Result<Disks, ScenarioError> {
        let why = match r.setup.target {
            Some(_) => Some("a target was named, and disks are attached of one of our own".into()),
            None => missing(),
        };
        match why {
            Some(why) => Ok(Disks(Err(why))),
            None => Ok(Disks(Ok(measured(r)?))),
        }
    }

    /// Points that were measured.
    pub(super) fn count(&self) -> u64 {
        self.0.as_ref().map_or(0, |rows| rows.len() as u64)
    }

    fn impossible(why: &str) -> Section {
        Section::Text(format!("**Buffered I/O was not measured: {why}.**"))
    }

    /// Throughput.
    pub(super) fn throughput(&self) -> Vec<Section> {
        let rows = match &self.0 {
            Ok(rows) => rows,
            Err(why) => return vec![Disks::impossible(why)],
        };
        let head = [
            "pattern",
            "I/O",
            "SRP MB/s",
            "BRP MB/s",
            "local disk MB/s",
            "BRP / SRP",
            "BRP / local",
        ];
        let mut table = Table::new(&head);
        for x in rows {
            let mut cells = vec![name(x), x.io().into()];
            cells.extend(x.rates.iter().map(|m| units::three(m / 1e6)));
            cells.push(format!("{:.2}", x.rates[1] / x.rates[0]));
            cells.push(format!("{:.2}", x.of_local(1)));
            table.row(cells);
        }
        let mut all = vec![Section::Table(table)];
        all.extend(bars(rows, "Throughput of attached disks", "MB/s", None, |x| {
            x.rates.map(|m| m / 1e6).to_vec()
        }));
        all
    }

    /// Parts of the local disk's throughput; goals met, and missed.
    pub(super) fn shares(&self) -> (Vec<Section>, u64, u64) {
        let rows = match &self.0 {
            Ok(rows) => rows,
            Err(why) => return (vec![Disks::impossible(why)], 0, 0),
        };
        let mut table = Table::new(&["pattern", "I/O", "SRP", "BRP", "goal for BRP", "met"]);
        let (mut passed, mut failed) = (0, 0);
        for x in rows {
            let met = x.of_local(1) >= goal(x.bs);
            *(if met { &mut passed } else { &mut failed }) += 1;
            table.row(vec![
                name(x),
                x.io().into(),
                format!("{:.2}", x.of_local(0)),
                format!("{:.2}", x.of_local(1)),
                format!(">= {}", goal(x.bs)),
                if met { "yes" } else { "no" }.into(),
            ]);
        }
        let mut all = vec![Section::Table(table)];
        all.extend(bars(rows, "Parts of a local disk", "part of a local disk's", Some(1.0), |x| {
            vec![x.of_local(0), x.of_local(1)]
        }));
        (all, passed, failed)
    }

    /// For the page's data.
    pub(super) fn json(&self) -> Value {
        match &self.0 {
            Err(why) => json!({ "not_measured": why }),
            Ok(rows) => rows
                .iter()
                .map(|x| {
                    json!({ "rw": x.rw.name(), "bs": x.bs, "io": x.io(), "srp": x.rates[0], "brp": x.rates[1],
                        "local_disk": x.rates[2] })
                })
                .collect(),
        }
    }

    /// How it was measured.
    pub(super) fn method(&self) -> String {
        format!(
            "Attached disks: `weir attach` of volumes of {} in memory (FUSE and a loop device, or ublk where the kernel has it); \
             *local disk* is a loop device on a file in memory (tmpfs): no target, no network, and no way into user space. {THREADS} \
             threads of this process each have a {THREADS}th of the disk and go over it once, or for as long as a point may last, \
             by the page cache (*buffered*) or past it (*direct*, `O_DIRECT`). The cache holds nothing of the disk at first, and \
             writes end with an fsync that counts. Load, kernel, attachments and target share all cores.",
            units::size(VOLUME)
        )
    }
}

/// Bars of what `of` makes of each row, for each of the first [`NAMES`]; a figure for each kind of I/O.
fn bars(
    rows: &[Row],
    title: &str,
    label: &str,
    line: Option<f64>,
    of: impl Fn(&Row) -> Vec<f64>,
) -> Vec<Section> {
    let figure = |direct: bool| {
        let part: Vec<&Row> = rows.iter().filter(|x| x.direct == direct).collect();
        let io = if direct { "direct" } else { "buffered" };
        let values: Vec<Vec<f64>> = part.iter().map(|x| of(x)).collect();
        let shown = values.first().map_or(0, Vec::len);
        let series = (NAMES.iter().take(shown).enumerate())
            .map(|(i, n)| (n.to_string(), values.iter().map(|v| v.get(i).copied()).collect()))
            .collect();
        let bars = Bars {
            title: format!("Attached disks, {io}, 16 threads"),
            label: label.into(),
            groups: part.iter().map(|x| name(x)).collect(),
            series,
            line,
        };
        Section::Bars(io.into(), format!("{title}, {io}"), vec![bars])
    };
    [false, true].map(figure).into()
}

fn name(x: &Row) -> String {
    format!("{} {}", x.rw.name(), units::size(u64::from(x.bs)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        let row = |bs, direct, rates| Row { rw: Rw::Read, bs, direct, rates };
        vec![
            row(4096, false, [5.0, 8.0, 10.0]),
            row(1 << 20, false, [9.0, 9.4, 10.0]),
            row(4096, true, [9.0, 7.9, 10.0]),
        ]
    }

    #[test]
    fn goals_are_parts_of_the_local_disk() {
        let d = Disks(Ok(rows()));
        let (sections, passed, failed) = d.shares();
        assert_eq!((passed, failed, d.count()), (1, 2, 3));
        assert_eq!((sections.len(), d.throughput().len()), (3, 3));
        assert_eq!(d.json()[1]["srp"], 9.0);
    }

    #[test]
    fn what_is_impossible_is_said_and_not_counted() {
        let d = Disks(Err("it needs a reason".into()));
        let (sections, passed, failed) = d.shares();
        assert_eq!((passed, failed, d.count()), (0, 0, 0));
        assert!(matches!(&sections[..], [Section::Text(t)] if t.contains("it needs a reason")));
        assert_eq!(d.json()["not_measured"], "it needs a reason");
    }
}
