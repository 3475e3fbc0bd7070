//! When merging pays, and whether the controller finds it.

use super::{BARE, CACHED, Rounds, VARIANTS, VOLUME, Via, method, rounds, target};
use crate::brp::Variant;
use crate::job::{JobSpec, Rw};
use crate::plot::{Axis, Chart, Scale, Series};
use crate::scenario::page::{Page, Section, Table};
use crate::scenario::runner::Runner;
use crate::scenario::{Scenario, ScenarioError};
use crate::units;
use serde_json::{Value, json};
use weir_base::MILLIS;

pub(in crate::scenario) const MERGE: Scenario = Scenario {
    name: "brp-merge",
    title: "BRP: temporal merge by the number of I/Os in flight, and what the controller makes of it",
    run,
};

const DEPTHS: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
/// There the goals against SRP, BRP-2 and the bare loop count.
const DEEP: u32 = 128;
/// Auto against the better of never and always.
const NEVER_WORSE: f64 = 0.97;

/// What auto is compared with at one depth.
struct Goals {
    depth: u32,
    /// The bare loop that has to do with as much memory, or the plain one.
    bare_loop: Via,
    /// Against the better of BRP-2 and BRP-3T, SRP, BRP-2, that loop.
    better: f64,
    srp: f64,
    brp2: f64,
    bare: f64,
    /// Part of the commands that auto merged.
    merged: f64,
    noise: f64,
}

/// One goal: its text, what was found, and whether it is met.
type Judged = (String, f64, bool);

impl Goals {
    fn of(depth: u32, ways: &[Via], found: &[Rounds]) -> Goals {
        let at = |via: Via| ways.iter().position(|w| *w == via).and_then(|i| found.get(i));
        let none = Rounds::default();
        let auto = at(Via::Brp(Variant::Auto)).unwrap_or(&none);
        let to = |via| at(via).map_or(f64::NAN, |p| auto.ratio(p));
        let (two, three) = (to(Via::Brp(Variant::Brp2)), to(Via::Brp(Variant::Brp3T)));
        let judged = [Variant::Auto, Variant::Brp2, Variant::Brp3T];
        let bare_loop = if at(Via::BareMemory).is_some() { Via::BareMemory } else { Via::Bare };
        let noise = judged.map(|v| at(Via::Brp(v)).map_or(0.0, Rounds::noise));
        Goals {
            depth,
            bare_loop,
            better: if two.is_nan() { two } else { two.min(three) },
            srp: to(Via::Srp),
            brp2: two,
            bare: to(bare_loop),
            merged: auto.median().merged,
            noise: noise.into_iter().fold(0.0, f64::max),
        }
    }

    fn judged(&self) -> Vec<Judged> {
        let goal = |text: &str, least: f64, found: f64| {
            (format!(">= {least} x {text}"), found, found >= least)
        };
        let mut all = vec![goal("better of brp-2, brp-3t", NEVER_WORSE, self.better)];
        if self.depth == DEEP {
            all.push(goal("SRP", 1.5, self.srp));
            all.push(goal("brp-2", 1.3, self.brp2));
            all.push(goal(self.bare_loop.name(), 0.85, self.bare));
        }
        all
    }
}

fn job(r: &Runner<'_>, rw: Rw, depth: u32, size: u64) -> JobSpec {
    let spec = r.job(rw, 4096, depth, size);
    // Many points: half the usual time to warm up, which is many times what the controller needs.
    JobSpec { ramp: spec.ramp.min(100 * MILLIS), ..spec }
}

fn run(r: &Runner<'_>) -> Result<Page, ScenarioError> {
    let t = target(r)?;
    let (mut sections, mut data, mut passed, mut failed) = (Vec::new(), Vec::new(), 0, 0);
    for (size, rw) in
        [CACHED, VOLUME].into_iter().flat_map(|s| [(s, Rw::RandRead), (s, Rw::RandWrite)])
    {
        let mut ways = vec![Via::Bare];
        ways.extend((size == VOLUME).then_some(Via::BareMemory));
        ways.push(Via::Srp);
        ways.extend(VARIANTS.map(Via::Brp));
        let names: Vec<&str> = ways.iter().map(|w| w.name()).collect();
        let head: Vec<&str> = std::iter::once("in flight").chain(names.iter().copied()).collect();
        let mut table = Table::new(&head);
        let head = ["in flight", "auto merged", "noise", "goal", "auto", "met"];
        let mut goals = Table::new(&head);
        let mut lines = vec![Vec::new(); ways.len()];
        for depth in DEPTHS {
            let found = rounds(r, &t, &job(r, rw, depth, size), &ways)?;
            let rates: Vec<f64> = found.iter().map(|p| p.median().iops).collect();
            let mut row = vec![depth.to_string()];
            row.extend(rates.iter().map(|p| units::si(*p)));
            table.row(row);
            for (line, p) in lines.iter_mut().zip(&rates) {
                line.push((f64::from(depth), *p));
            }
            let g = Goals::of(depth, &ways, &found);
            for (text, ratio, met) in g.judged() {
                *(if met { &mut passed } else { &mut failed }) += 1;
                let met = if met { "yes" } else { "no" };
                let noise = format!("{:.1} %", g.noise * 100.0);
                let merged = format!("{:.0} %", g.merged * 100.0);
                let ratio = format!("{ratio:.2}");
                goals.row(vec![depth.to_string(), merged, noise, text, ratio, met.into()]);
            }
            data.push(as_json(rw, size, &g, &names, &found));
        }
        let series = ways.iter().zip(lines).map(|(w, l)| Series::new(w.name(), l)).collect();
        let title = format!("4 KiB {}, {}", rw.name(), units::size(size));
        let chart = Chart {
            title: title.clone(),
            x: Axis::new("in flight", Scale::Bytes),
            y: Axis::new("I/Os per second", Scale::Linear),
            series,
        };
        let name = format!("{}-{}", rw.name(), units::size(size));
        sections.push(Section::Text(format!("## {title}")));
        sections.push(Section::Figure(name, title, vec![chart]));
        sections.push(Section::Table(table));
        sections.push(Section::Table(goals));
    }
    Ok(Page {
        intro: "S1 finds that merging commands into one message (BRP-3T) pays when many are in flight and does harm when few \
                are, and chooses a threshold by experiment (BRP-3; here 8). *auto* makes the experiment while it works, for each power \
                of two of commands in flight by itself. It shall never be worse than the better of never (BRP-2) and always (BRP-3T).\n\n\
                1.5 x SRP and 1.3 x BRP-2 would be more than the bare loop where SRP, or BRP-2, comes within two thirds or three \
                quarters of it, as they do at depth 128 (srp-limits): there is no room for as much more. The goals stand as they were set."
            .into(),
        method: method(r, "4 KiB I/Os at random addresses")
            + BARE
            + " Rates are I/Os per second, medians; what auto is judged by is the median of the ratios of the rounds, each of which \
               has all ways in a row. *Auto merged* is the part of its commands that shared a message. *Noise* is half the distance between the best and the worst round of auto, brp-2 or \
               brp-3t, whichever is largest, as a part of the median: where it is above 3 %, a ratio of 0.97 tells little.",
        sections,
        data: json!(data),
        frame: None,
        passed,
        failed,
    })
}

fn as_json(rw: Rw, size: u64, g: &Goals, names: &[&str], found: &[Rounds]) -> Value {
    let of = |(n, p): (&&str, &Rounds)| {
        let all: Vec<f64> = p.0.iter().map(|x| x.iops).collect();
        (n.to_string(), json!({ "iops": p.median().iops, "rounds": all }))
    };
    let ways: serde_json::Map<String, Value> = names.iter().zip(found).map(of).collect();
    json!({
        "rw": rw.name(), "range": size, "depth": g.depth, "ways": ways, "noise": g.noise, "merged": g.merged,
        "auto": { "of_better": g.better, "of_srp": g.srp, "of_brp2": g.brp2, "of_bare": g.bare },
    })
}

#[cfg(test)]
mod tests {
    use super::super::Point;
    use super::*;

    #[test]
    fn goals_are_judged_against_the_better_way() {
        let ways = [
            Via::Bare,
            Via::Srp,
            Via::Brp(Variant::Brp2),
            Via::Brp(Variant::Brp3T),
            Via::Brp(Variant::Auto),
        ];
        let found = |rates: [f64; 5]| {
            rates.map(|iops| Rounds(vec![Point { iops, mean: 0.0, merged: 0.0 }; 3])).to_vec()
        };
        let g = Goals::of(64, &ways, &found([200.0, 100.0, 100.0, 150.0, 147.0]));
        assert_eq!(g.judged().iter().map(|j| j.2).collect::<Vec<_>>(), [true]);
        let g = Goals::of(64, &ways, &found([200.0, 100.0, 150.0, 100.0, 140.0]));
        assert_eq!(g.judged().iter().map(|j| j.2).collect::<Vec<_>>(), [false]);
        let g = Goals::of(128, &ways, &found([170.0, 100.0, 110.0, 150.0, 149.0]));
        let met: Vec<bool> = g.judged().iter().map(|j| j.2).collect();
        assert_eq!(met, [true, false, true, true]);
        // The loop that has to do with as much memory counts where it was measured.
        let mut likes = ways.to_vec();
        likes.insert(1, Via::BareMemory);
        let mut both = found([200.0, 100.0, 110.0, 150.0, 149.0]);
        both.insert(1, found([170.0; 5])[0].clone());
        assert!(Goals::of(128, &likes, &both).judged()[3].2);
        // A way that was not measured meets nothing.
        let g = Goals::of(128, &ways[..4], &found([1.0; 5])[..4]);
        assert!(g.judged().iter().all(|j| !j.2));
    }
}
