//! What is compared, and with what.

use super::super::ScenarioError;
use super::super::runner::{Runner, Way};
use super::super::target::Target;
use crate::bare::{self, Bare, Ends};
use crate::job::{JobSpec, Rw};
use crate::units;

/// Bytes of a command on the wire, about: a read's request, and what goes before a write's data.
const COMMAND: usize = 72;
/// Bytes of a response without data.
const RESPONSE: usize = 16;
/// Large requests in flight.
const LARGE_DEPTH: u32 = 8;

/// What a ratio should be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

impl Goal {
    pub(super) fn is_met(self, ratio: f64) -> bool {
        match self {
            Goal::AtLeast(g) => ratio >= g,
            Goal::AtMost(g) => ratio <= g,
        }
    }

    pub(super) fn text(self) -> String {
        match self {
            Goal::AtLeast(g) => format!(">= {g:.2}"),
            Goal::AtMost(g) => format!("<= {g:.2}"),
        }
    }
}

/// What counts of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Measure {
    Latency,
    Rate,
    Bandwidth,
}

/// One comparison.
pub(super) struct Point {
    pub(super) name: String,
    pub(super) unit: &'static str,
    pub(super) goal: Goal,
    rw: Rw,
    bs: u32,
    depth: u32,
    measure: Measure,
    /// The volume's size; also of the memory that the bare loop's answers come from, if `cold`.
    pub(super) volume: u64,
    cold: bool,
}

/// A volume that fits the cores' caches, as what the bare loop sends does.
pub(super) const SMALL: u64 = 4 << 20;
/// One that does not.
pub(super) const LARGE: u64 = 256 << 20;

pub(super) fn job(r: &Runner<'_>, rw: Rw, bs: u32, depth: u32, volume: u64) -> JobSpec {
    r.job(rw, bs, depth, volume)
}

/// All comparisons.
pub(super) fn all() -> Vec<Point> {
    let small = |bs: u32, depth, measure, unit, goal| Point {
        name: format!("{} random reads, depth {depth}", units::size(u64::from(bs))),
        unit,
        goal,
        rw: Rw::RandRead,
        bs,
        depth,
        measure,
        volume: SMALL,
        cold: false,
    };
    let cold = |p: Point| Point {
        name: format!("{}, from {}", p.name, units::size(LARGE)),
        volume: LARGE,
        cold: true,
        ..p
    };
    let mut all = vec![
        small(4096, 1, Measure::Latency, "ns", Goal::AtMost(1.5)),
        small(4096, 32, Measure::Rate, "IOPS", Goal::AtLeast(0.7)),
        small(4096, 128, Measure::Rate, "IOPS", Goal::AtLeast(0.7)),
        small(512, 128, Measure::Rate, "IOPS", Goal::AtLeast(0.35)),
        cold(small(4096, 32, Measure::Rate, "IOPS", Goal::AtLeast(0.7))),
        cold(small(4096, 128, Measure::Rate, "IOPS", Goal::AtLeast(0.7))),
        cold(small(512, 128, Measure::Rate, "IOPS", Goal::AtLeast(0.35))),
    ];
    for bs in [128 << 10, 1 << 20] {
        for rw in [Rw::RandRead, Rw::RandWrite] {
            let what = if rw == Rw::RandRead { "reads" } else { "writes" };
            all.push(Point {
                name: format!("{} {what}, depth {LARGE_DEPTH}", units::size(u64::from(bs))),
                unit: "B/s",
                goal: Goal::AtLeast(0.8),
                rw,
                bs,
                depth: LARGE_DEPTH,
                measure: Measure::Bandwidth,
                volume: LARGE,
                cold: false,
            });
        }
    }
    all.push(Point {
        name: "TEST UNIT READY against 4k reads, depth 128".into(),
        unit: "/s",
        goal: Goal::AtLeast(1.5),
        rw: Rw::Nop,
        bs: 4096,
        depth: 128,
        measure: Measure::Rate,
        volume: SMALL,
        cold: false,
    });
    all
}

impl Point {
    /// What it is compared with.
    pub(super) fn bare(
        &self,
        r: &Runner<'_>,
        target: &Target,
        way: &Way,
        ends: Ends,
    ) -> Result<f64, ScenarioError> {
        let time = r.setup.runtime;
        let system = |e| ScenarioError::System("the bare TCP loop".into(), e);
        let bs = self.bs as usize;
        let exchange = |request, response| {
            let memory = self.cold.then_some(self.volume as usize);
            bare::request_response(ends, request, response, self.depth as usize, memory, time)
                .map_err(system)
        };
        let of = |b: &Bare| match self.measure {
            Measure::Latency => b.latency.mean(),
            Measure::Rate => b.iops(),
            Measure::Bandwidth => b.bandwidth(),
        };
        Ok(match (self.rw, self.measure) {
            (Rw::Nop, _) => {
                let spec = job(r, Rw::RandRead, self.bs, self.depth, self.volume);
                r.once(target, &spec, way)?.iops()
            }
            // The faster of a stream and of requests and answers: nobody shall say that the bar was low.
            (rw, Measure::Bandwidth) => {
                let stream = bare::stream(ends, bs, time).map_err(system)?;
                let loops = if rw.writes() {
                    exchange(COMMAND + bs, RESPONSE)?
                } else {
                    exchange(COMMAND, bs)?
                };
                of(&stream).max(of(&loops))
            }
            _ => of(&exchange(COMMAND, bs)?),
        })
    }

    /// What Weir does.
    pub(super) fn weir(
        &self,
        r: &Runner<'_>,
        target: &Target,
        way: &Way,
    ) -> Result<f64, ScenarioError> {
        let j = r.once(target, &job(r, self.rw, self.bs, self.depth, self.volume), way)?;
        Ok(match self.measure {
            Measure::Latency => j.total().latency.mean(),
            Measure::Rate => j.iops(),
            Measure::Bandwidth => j.bandwidth(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_bounds() {
        assert!(Goal::AtLeast(0.7).is_met(0.7) && !Goal::AtLeast(0.7).is_met(0.69));
        assert!(Goal::AtMost(1.5).is_met(1.5) && !Goal::AtMost(1.5).is_met(1.51));
        assert_eq!(all().len(), 12);
    }
}
