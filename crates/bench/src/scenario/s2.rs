//! S2's workloads on protected pools: without checksums of the data, with them, and with versions captured and purged.

mod load;
mod scene;
mod tpch;

pub(super) use tpch::TPCH;

use super::page::{Page, Section, Table};
use super::pooled::{Folder, alone};
use super::runner::Runner;
use super::store::{cost, median};
use super::{Scenario, ScenarioError};
use crate::plot::{Axis, Chart, Scale, Series};
use crate::units;
use load::{Figures, Load, Stream};
use scene::{KINDS, Kind, Scene};
use serde_json::{Value, json};
use weir_reactor::PollMode;

pub(super) const IOMETER: Scenario = Scenario {
    name: "s2-iometer",
    title: "S2: IOmeter's patterns RS, WS, FS and WEB on RAID-10",
    run: iometer,
};

pub(super) const ORION: Scenario = Scenario {
    name: "s2-orion",
    title: "S2: ORION's throughput (1 MiB) and rate (8 KiB) on RAID-10",
    run: orion,
};

pub(super) const JETSTRESS: Scenario = Scenario {
    name: "s2-jetstress",
    title: "S2: a mail server's data and log (JetStress) on RAID-10",
    run: jetstress,
};

pub(super) const WRITE: Scenario = Scenario {
    name: "store-write",
    title: "The store: 4 KiB random writes on RAID-10 with checksums and snapshots",
    run: write,
};

/// What counts of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Rate,
    Megabytes,
}

impl Unit {
    fn of(self, streams: &[Figures]) -> f64 {
        match self {
            Unit::Rate => streams.iter().map(Figures::rate).sum(),
            Unit::Megabytes => streams.iter().map(|f| f.bytes / 1e6).sum(),
        }
    }
}

/// One line of points: a load by the number of I/Os in flight.
struct Line {
    name: &'static str,
    unit: Unit,
    depths: &'static [u32],
    load: fn(u32) -> Load,
}

/// One point: for each kind of pool the figures of each run's streams, and their medians.
struct Point {
    depth: u32,
    runs: [Vec<Vec<Figures>>; KINDS.len()],
    found: [Vec<Figures>; KINDS.len()],
}

impl Point {
    fn new(depth: u32, runs: [Vec<Vec<Figures>>; KINDS.len()]) -> Point {
        let found = std::array::from_fn(|k| medians(&runs[k]));
        Point { depth, runs, found }
    }

    /// Of all streams together, for each kind: medians.
    fn values(&self, unit: Unit) -> [f64; KINDS.len()] {
        let all = |k: usize| self.runs[k].iter().map(|f| unit.of(f)).collect();
        std::array::from_fn(|k| median(all(k)))
    }

    /// What one kind costs against another, in percent: the median over rounds, in each of which they took turns, so that
    /// what the machine does meanwhile hardly counts.
    fn cost(&self, unit: Unit, of: usize, against: usize) -> f64 {
        let rounds = self.runs[of].iter().zip(&self.runs[against]);
        median(rounds.map(|(a, b)| cost(unit.of(a), unit.of(b))).collect())
    }
}

/// Measures all points of the lines, each kind of pool in turn so that none is favoured.
fn measure(r: &Runner<'_>, lines: &[Line]) -> Result<Vec<Vec<Point>>, ScenarioError> {
    let folder = Folder::new(&std::env::temp_dir(), "s2")?;
    let dir = folder.0.clone();
    let (repeat, time, say) = (r.setup.repeat.max(1) as usize, r.setup.runtime, r.setup.say);
    let plan: Vec<_> = lines.iter().map(|l| (l.name, l.depths, l.load)).collect();
    alone(r, PollMode::default(), move |ring| async move {
        let mut scenes = Vec::new();
        for kind in KINDS {
            scenes.push(Scene::new(&ring, &dir, kind).await?);
        }
        let mut all = Vec::new();
        for (name, depths, load) in plan {
            let mut points = Vec::new();
            for depth in depths.iter().copied() {
                let load = load(depth);
                let mut runs: [Vec<Vec<Figures>>; KINDS.len()] = Default::default();
                for round in 0..repeat {
                    for k in (0..KINDS.len()).map(|k| (k + round) % KINDS.len()) {
                        runs[k].push(scenes[k].measure(&load, time).await?);
                    }
                }
                let p = Point::new(depth, runs);
                let text: Vec<String> = p.values(Unit::Rate).map(units::si).to_vec();
                say(&format!("  {name} depth {depth}: {}", text.join(", ")));
                points.push(p);
            }
            all.push(points);
        }
        for s in scenes {
            s.close().await?;
        }
        Ok(all)
    })
}

/// The median of each figure of each stream.
fn medians(runs: &[Vec<Figures>]) -> Vec<Figures> {
    let streams = runs.first().map_or(0, Vec::len);
    let of = |i: usize, f: fn(&Figures) -> f64| median(runs.iter().map(|r| f(&r[i])).collect());
    (0..streams)
        .map(|i| Figures {
            reads: of(i, |f| f.reads),
            writes: of(i, |f| f.writes),
            bytes: of(i, |f| f.bytes),
        })
        .collect()
}

/// What checksums and versions cost over points, in percent: medians.
fn costs(points: &[Point], unit: Unit) -> (f64, f64) {
    let of = |a: usize, b: usize| median(points.iter().map(|p| p.cost(unit, a, b)).collect());
    (of(1, 0), of(2, 1))
}

fn chart(line: &Line, points: &[Point]) -> Chart {
    let what = match line.unit {
        Unit::Rate => "I/Os per second",
        Unit::Megabytes => "MB/s",
    };
    let of = |k: usize| {
        points.iter().map(|p| (f64::from(p.depth), p.values(line.unit)[k])).collect::<Vec<_>>()
    };
    Chart {
        title: line.name.to_string(),
        x: Axis::new("I/Os in flight", Scale::Bytes),
        y: Axis::new(what, Scale::Linear),
        series: KINDS.iter().enumerate().map(|(k, kind)| Series::new(kind.name(), of(k))).collect(),
    }
}

fn table(lines: &[Line], all: &[Vec<Point>]) -> Table {
    let mut t = Table::new(&[
        "load, in flight",
        "unit",
        KINDS[0].name(),
        KINDS[1].name(),
        KINDS[2].name(),
        "checksums cost %",
        "versions cost %",
    ]);
    for (line, points) in lines.iter().zip(all) {
        for p in points {
            let v = p.values(line.unit);
            let (unit, show): (_, fn(f64) -> String) = match line.unit {
                Unit::Rate => ("IOPS", units::si),
                Unit::Megabytes => ("MB/s", units::three),
            };
            let mut row = vec![format!("{}, {}", line.name, p.depth), unit.into()];
            row.extend(v.iter().map(|n| show(*n)));
            let (sums, versions) = (p.cost(line.unit, 1, 0), p.cost(line.unit, 2, 1));
            row.extend([format!("{sums:.1}"), format!("{versions:.1}")]);
            t.row(row);
        }
    }
    t
}

fn data(lines: &[Line], all: &[Vec<Point>]) -> Value {
    let point = |line: &Line, p: &Point| {
        let stream = |f: &Figures| json!({ "reads": f.reads, "writes": f.writes, "bytes_per_second": f.bytes });
        let kinds: serde_json::Map<String, Value> = KINDS
            .iter()
            .zip(&p.found)
            .map(|(k, f)| (k.name().to_owned(), f.iter().map(stream).collect()))
            .collect();
        json!({ "load": line.name, "in_flight": p.depth, "streams": kinds,
            "checksums_cost_percent": p.cost(line.unit, 1, 0),
            "versions_cost_percent": p.cost(line.unit, 2, 1) })
    };
    let each = lines.iter().zip(all).flat_map(|(l, all)| all.iter().map(move |p| point(l, p)));
    each.collect()
}

/// The costs of each line in one table, beside S2's.
fn summary(lines: &[Line], all: &[Vec<Point>]) -> Table {
    let mut t = Table::new(&["load", "checksums cost %", "S2", "versions cost %", "S2"]);
    for (line, points) in lines.iter().zip(all) {
        let (sums, versions) = costs(points, line.unit);
        let (sums, versions) = (format!("{sums:.1}"), format!("{versions:.1}"));
        t.row(vec![line.name.into(), sums, "12 - 20".into(), versions, "2.5 - 5".into()]);
    }
    t
}

fn method() -> String {
    format!(
        "three pools of the same four files in one directory, RAID-10, opened past the page cache, each write flushed to both \
         copies before it is acknowledged; *{}*: checksums cover no data (for this measurement only), *{}*: as pools are, *{}*: \
         besides, a rule `{}` has snapshots of all volumes made at one instant and purged. The load runs in the pools' \
         reactor on one core, no protocol in between. Runs alternate between the pools; costs are medians over the rounds, so \
         they are not exactly those of the medians beside them. \
         Versions are captured every second, so that there are some in each run; S2 calls its own rate frequent.",
        KINDS[0].name(),
        KINDS[1].name(),
        KINDS[2].name(),
        scene::RULE,
    )
}

fn page(lines: &[Line], all: &[Vec<Point>], intro: &str, sections: Vec<Section>) -> Page {
    let caption = "by I/Os in flight, with and without checksums and versions".to_string();
    let charts = lines.iter().zip(all).map(|(l, p)| chart(l, p)).collect();
    let mut all_sections =
        vec![Section::Figure(String::new(), caption, charts), Section::Table(summary(lines, all))];
    all_sections.extend(sections);
    all_sections.push(Section::Table(table(lines, all)));
    Page {
        intro: intro.into(),
        method: method(),
        sections: all_sections,
        data: data(lines, all),
        frame: None,
        passed: all.iter().map(|p| p.len() as u64 * KINDS.len() as u64).sum(),
        failed: 0,
    }
}

const DEPTHS: &[u32] = &[1, 4, 16, 64];

fn iometer(r: &Runner<'_>) -> Result<Page, ScenarioError> {
    let line = |name, unit, load| Line { name, unit, depths: DEPTHS, load };
    let lines = [
        line("RS", Unit::Megabytes, |d| Load::one(Stream::in_a_row(100, 64 << 10, d))),
        line("WS", Unit::Megabytes, |d| Load::one(Stream::in_a_row(0, 64 << 10, d))),
        line("FS", Unit::Rate, |d| Load::one(Stream::at_random(80, load::FILE_SERVER, d))),
        line("WEB", Unit::Rate, |d| Load::one(Stream::at_random(100, load::WEB_SERVER, d))),
    ];
    let all = measure(r, &lines)?;
    let intro = "S2 draws four of IOmeter's patterns on RAID-10 and names them only. Taken here: *RS* and *WS*, streams of reads and of \
        writes, 64 KiB each, in a row; *FS*, the file server, and *WEB*, the web server, as IOmeter defines them: at random addresses, FS \
        80 % reads of 512 bytes (10 %), 1 (5), 2 (5), 4 (60), 8 (2), 16 (4), 32 (4) and 64 KiB (10 %); WEB reads only, of 512 bytes \
        (22 %), 1 (15), 2 (8), 4 (23), 8 (15), 16 (2), 32 (6), 64 (7), 128 (1) and 512 KiB (1 %). Addresses are multiples of the size.";
    Ok(page(&lines, &all, intro, Vec::new()))
}

fn orion(r: &Runner<'_>) -> Result<Page, ScenarioError> {
    const LARGE: &[u32] = &[1, 2, 4, 8, 16];
    let line = |name, unit, depths, load| Line { name, unit, depths, load };
    let lines = [
        line("1 MiB reads", Unit::Megabytes, LARGE, |d| {
            Load::one(Stream::at_random(100, load::MEBIBYTE, d))
        }),
        line("1 MiB, half writes", Unit::Megabytes, LARGE, |d| {
            Load::one(Stream::at_random(50, load::MEBIBYTE, d))
        }),
        line("8 KiB reads", Unit::Rate, DEPTHS, |d| {
            Load::one(Stream::at_random(100, load::EIGHT, d))
        }),
        line("8 KiB, half writes", Unit::Rate, DEPTHS, |d| {
            Load::one(Stream::at_random(50, load::EIGHT, d))
        }),
    ];
    let all = measure(r, &lines)?;
    let best = |of: std::ops::Range<usize>, unit, kind: usize| {
        let points = lines[of.clone()].iter().zip(&all[of]).flat_map(|(_, p)| p);
        points.map(|p| p.values(unit)[kind]).fold(0.0, f64::max)
    };
    let mut t = Table::new(&["", "most IOPS", "S2's", "most MB/s", "S2's"]);
    let theirs = [("2088", "154.96"), ("2018", "144.39"), ("2067", "110.82")];
    for (k, (kind, (iops, mb))) in KINDS.iter().zip(theirs).enumerate() {
        let (rate, bytes) = (best(2..4, Unit::Rate, k), best(0..2, Unit::Megabytes, k));
        let (rate, bytes) = (units::si(rate), units::three(bytes));
        t.row(vec![kind.name().into(), rate, iops.into(), bytes, mb.into()]);
    }
    let intro = "ORION is Oracle's load generator: large I/Os for throughput, small ones for the rate, at random addresses, by the number in \
        flight. S2 gives the peaks of its controller with eight disks of 2010; only how they relate can be compared. ORION reads unless it \
        is told otherwise; the lines with half writes are measured too, since versions cost nothing without any.";
    Ok(page(&lines, &all, intro, vec![Section::Table(t)]))
}

fn jetstress(r: &Runner<'_>) -> Result<Page, ScenarioError> {
    let lines = [Line {
        name: "data and log",
        unit: Unit::Rate,
        depths: DEPTHS,
        load: |d| Load {
            streams: vec![
                Stream::at_random(55, load::EIGHT, d),
                Stream::in_a_row(0, 4 << 10, 1).of_log(),
            ],
        },
    }];
    let all = measure(r, &lines)?;
    let mut t = Table::new(&["pool, in flight", "data reads/s", "data writes/s", "log writes/s"]);
    for p in &all[0] {
        for (kind, f) in KINDS.iter().zip(&p.found) {
            let [data, log] = f.as_slice() else { continue };
            let row = [data.reads, data.writes, log.writes].map(units::si);
            let mut cells = vec![format!("{}, {}", kind.name(), p.depth)];
            cells.extend(row);
            t.row(cells);
        }
    }
    let mut theirs = Table::new(&["S2", "data reads/s", "data writes/s", "log writes/s"]);
    for (name, row) in [
        ("no EDC", ["679", "557", "70"]),
        ("EDC", ["544", "456", "54"]),
        ("EDC and versions", ["516", "435", "54"]),
    ] {
        let mut cells = vec![name.to_owned()];
        cells.extend(row.map(str::to_owned));
        theirs.row(cells);
    }
    let intro = "JetStress does what a mail server does: 8 KiB at random addresses of the data, 55 % of them reads (S2 counted 679 reads to 557 \
        writes), and a log that is written in a row, one write of 4 KiB at a time. Here data and log are two volumes of one pool; \
        versions are taken of both at one instant. How many data I/Os are in flight is given; the log has one.";
    Ok(page(&lines, &all, intro, vec![Section::Table(t), Section::Table(theirs)]))
}

/// One figure, to be set beside other programs on the same devices (`lab/btrfs-beside-weir`).
fn write(r: &Runner<'_>) -> Result<Page, ScenarioError> {
    const DEPTH: u32 = 32;
    let folder = Folder::new(&std::env::temp_dir(), "store-write")?;
    let dir = folder.0.clone();
    let (repeat, time) = (r.setup.repeat.max(1), r.setup.runtime);
    let runs = alone(r, PollMode::default(), move |ring| async move {
        let scene = Scene::new(&ring, &dir, Kind::Versions).await?;
        let load = Load::one(Stream::at_random(0, load::FOUR, DEPTH));
        let mut runs = Vec::new();
        for _ in 0..repeat {
            runs.push(Unit::Rate.of(&scene.measure(&load, time).await?));
        }
        scene.close().await?;
        Ok(runs)
    })?;
    let iops = median(runs.clone());
    let mut t = Table::new(&["in flight", "IOPS"]);
    t.row(vec![DEPTH.to_string(), units::si(iops)]);
    Ok(Page {
        intro: "A protected pool as it is used: two copies, checksums, snapshots made and purged."
            .into(),
        method: method(),
        sections: vec![Section::Table(t)],
        data: json!({ "iops": iops, "runs": runs, "in_flight": DEPTH }),
        frame: None,
        passed: 1,
        failed: 0,
    })
}

#[cfg(test)]
mod tests;
