//! How near the SRP path comes to what the machine can do: every point next to a bare TCP loop of the same
//! message sizes, measured in the same minute.

mod idle;
mod points;

pub(super) use idle::resident;

use super::page::{Page, Section, Table};
use super::reference::NEAR;
use super::runner::Runner;
use super::target::Medium;
use super::{Scenario, ScenarioError};
use crate::bare::{Ends, bounce};
use crate::units;
use points::{Goal, LARGE, Point, SMALL};
use serde_json::{Value, json};
use weir_base::MILLIS;

pub(super) const LIMITS: Scenario =
    Scenario { name: "srp-limits", title: "SRP against the machine's own limits", run };

/// How often a measurement is made again when the cores moved meanwhile.
const AGAIN: u32 = 2;

/// A and B of one repetition.
#[derive(Debug, Clone, Copy)]
struct Pair {
    bare: f64,
    weir: f64,
    /// The cache line before and after, nanoseconds.
    line: [f64; 2],
}

impl Pair {
    fn ratio(&self) -> f64 {
        self.weir / self.bare
    }

    /// True when both cores stayed as near to each other as they were.
    fn is_steady(&self) -> bool {
        (self.line[0] < NEAR) == (self.line[1] < NEAR)
    }

    fn class(&self) -> &'static str {
        match (self.is_steady(), self.line[0] < NEAR) {
            (false, _) => "moved",
            (true, true) => "near",
            (true, false) => "far",
        }
    }
}

/// The pair with the median ratio.
fn median(pairs: &[Pair]) -> Option<Pair> {
    let mut all = pairs.to_vec();
    all.sort_by(|a, b| a.ratio().total_cmp(&b.ratio()));
    all.get(all.len() / 2).copied()
}

fn run(r: &Runner<'_>) -> Result<Page, ScenarioError> {
    let cores = r.cores.first(1);
    let ends = Ends { far: cores.target.first().copied(), near: cores.load.first().copied() };
    let target = r.target(Medium::Ram, 1, LARGE, &cores)?;
    r.fill(&target, 0, LARGE)?;
    let way = r.way(&cores);
    let head = ["point", "bare", "Weir", "unit", "ratio", "of all", "goal", "met", "cores"];
    let mut table = Table::new(&head);
    let (mut data, mut passed, mut failed) = (Vec::new(), 0, 0);
    let line = || {
        bounce(ends, 100 * MILLIS)
            .map_err(|e| ScenarioError::System("the cache line between the cores".into(), e))
    };
    for p in points::all() {
        let mut pairs = Vec::new();
        for _ in 0..r.setup.repeat.max(1) {
            let mut tries = 0;
            loop {
                let before = line()?;
                let bare = p.bare(r, &target, &way, ends)?;
                let weir = p.weir(r, &target, &way)?;
                let pair = Pair { bare, weir, line: [before, line()?] };
                tries += 1;
                if pair.is_steady() || tries > AGAIN {
                    pairs.push(pair);
                    break;
                }
            }
        }
        let Some(m) = median(&pairs) else { continue };
        let met = p.goal.is_met(m.ratio());
        *(if met { &mut passed } else { &mut failed }) += 1;
        let all: Vec<String> = pairs.iter().map(|p| format!("{:.2}", p.ratio())).collect();
        table.row(vec![
            p.name.clone(),
            units::si(m.bare),
            units::si(m.weir),
            p.unit.into(),
            format!("{:.2}", m.ratio()),
            all.join(" "),
            p.goal.text(),
            if met { "yes".into() } else { "no".into() },
            m.class().into(),
        ]);
        r.say(&format!(
            "  {}: bare {}, Weir {} {}, ratio {:.2}, goal {}: {}",
            p.name,
            units::si(m.bare),
            units::si(m.weir),
            p.unit,
            m.ratio(),
            p.goal.text(),
            if met { "met" } else { "missed" }
        ));
        data.push(as_json(&p, &pairs, met));
    }
    drop(target);
    let mut notes = Vec::new();
    if cores.shared() {
        notes.push(
            "**Both sides shared one core: these figures say nothing about the goals, which are for two.**".to_owned(),
        );
    }
    match two_channels(r)? {
        Some((row, met, value)) => {
            *(if met { &mut passed } else { &mut failed }) += 1;
            table.row(row);
            data.push(value);
        }
        None => notes.push(format!(
            "Two channels on two cores were not measured: that needs four cores, two for each side, and there are {}.",
            r.machine.cores
        )),
    }
    let mut sections = vec![Section::Table(table)];
    sections.extend(notes.into_iter().map(Section::Text));
    if r.setup.target.is_none() {
        let idle = idle::measure(r)?;
        passed += idle.passed;
        failed += idle.failed;
        sections.push(Section::Table(idle.table));
        data.push(idle.data);
    }
    Ok(Page {
        intro: "Each row compares Weir's SRP initiator and target over loopback with a loop that only sends requests and \
                answers of the same size over TCP, both ends spinning on the same two cores: what a target with no protocol \
                and no storage would get. The ratio is Weir divided by bare, for latency as for rates; TEST UNIT READY is \
                compared with 4 KiB reads. The bare loop sends the same bytes again and again, which stay in the cache: small \
                reads are therefore from the first 4 MiB of the volume. Rows `from 256m` use all of it; what they are compared \
                with takes its answers from as much memory."
            .into(),
        method: format!(
            "{}; a volume of {} in memory, written before; addresses at random; iWARP without MPA CRC. Bare loop and Weir \
             take turns; the row shows the pair with the median ratio. `cores` tells whether a cache line went between the \
             two cores in less than {NEAR:.0} ns (near: two threads of one core) or not (far), before and after; a pair \
             during which that changed was measured again up to {AGAIN} times.",
            cores.text(),
            units::size(LARGE)
        ),
        sections,
        data: json!(data),
        frame: None,
        passed,
        failed,
    })
}

fn as_json(p: &Point, pairs: &[Pair], met: bool) -> Value {
    let pair = |x: &Pair| {
        json!({ "bare": x.bare, "weir": x.weir, "ratio": x.ratio(),
            "cache_line_ns": x.line, "cores": x.class() })
    };
    json!({
        "point": p.name,
        "unit": p.unit,
        "ratio": median(pairs).map(|m| m.ratio()),
        "goal": p.goal.text(),
        "met": met,
        "pairs": pairs.iter().map(pair).collect::<Vec<_>>(),
    })
}

type Row = (Vec<String>, bool, Value);

/// Two channels on two cores of each side against one; `None` where there are not as many cores.
fn two_channels(r: &Runner<'_>) -> Result<Option<Row>, ScenarioError> {
    let two = r.cores.first(2);
    if two.target.len() < 2 || two.load.len() < 2 || two.shared() {
        return Ok(None);
    }
    let target = r.target(Medium::Ram, 1, SMALL, &two)?;
    r.fill(&target, 0, SMALL)?;
    let mut pairs = Vec::new();
    for _ in 0..r.setup.repeat.max(1) {
        let rate = |n: usize| {
            let mut way = r.way(&two.first(n));
            way.channels = n;
            let mut spec = points::job(r, crate::job::Rw::RandRead, 4096, 128, SMALL);
            spec.numjobs = n as u32;
            r.once(&target, &spec, &way).map(|j| j.iops())
        };
        pairs.push(Pair { bare: rate(1)?, weir: rate(2)?, line: [0.0; 2] });
    }
    let Some(m) = median(&pairs) else { return Ok(None) };
    let goal = Goal::AtLeast(1.8);
    let met = goal.is_met(m.ratio());
    let all: Vec<String> = pairs.iter().map(|p| format!("{:.2}", p.ratio())).collect();
    let row = vec![
        "two channels on two cores, against one".into(),
        units::si(m.bare),
        units::si(m.weir),
        "IOPS".into(),
        format!("{:.2}", m.ratio()),
        all.join(" "),
        goal.text(),
        if met { "yes".into() } else { "no".into() },
        two.text(),
    ];
    let ratios: Vec<f64> = pairs.iter().map(Pair::ratio).collect();
    let value = json!({ "point": row[0], "one": m.bare, "two": m.weir, "ratios": ratios,
        "ratio": m.ratio(), "goal": goal.text(), "met": met });
    Ok(Some((row, met, value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_pair_is_shown_and_moves_are_told() {
        let pair = |bare, weir, line| Pair { bare, weir, line };
        let all = [
            pair(10.0, 8.0, [90.0, 95.0]),
            pair(10.0, 5.0, [300.0, 310.0]),
            pair(10.0, 7.0, [90.0, 300.0]),
        ];
        let m = median(&all).unwrap();
        assert_eq!((m.weir, m.class()), (7.0, "moved"));
        assert_eq!((all[0].class(), all[1].class()), ("near", "far"));
        assert!(median(&[]).is_none());
    }
}
