//! S1: BRP against SRP and against what the machine can do at all.
//!
//! | | |
//! |---|---|
//! | [`table1`] | what a SEND takes, by its size |
//! | [`table2`] | one 4 KiB I/O at a time |
//! | [`patterns`], [`attached`] | fig. 4 and 6: patterns, sizes, by the initiators, and as disks of this host |
//! | [`threads`] | fig. 5: 1 to 64 threads that write |
//! | [`merge`] | when merging pays, and whether the controller finds it |
//!
//! All ways to a point are measured one after the other, again and again, so that a machine that is faster at one
//! moment than at another favours none of them; medians are compared.

mod attached;
mod merge;
mod patterns;
mod table1;
mod table2;
mod threads;

pub(super) use merge::MERGE;
pub(super) use patterns::{FIG4, FIG6};
pub(super) use table1::TABLE1;
pub(super) use table2::TABLE2;
pub(super) use threads::FIG5;

use super::ScenarioError;
use super::reference::NEAR;
use super::runner::{Runner, fill};
use super::target::{Medium, Target};
use crate::bare::{Ends, bounce, request_response};
use crate::brp::{Brp, BrpOptions, PortId, Variant, Which};
use crate::engine::{self, JobResult, Options};
use crate::job::JobSpec;
use crate::local::Local;
use crate::srp::Login;
use crate::units;
use std::sync::Arc;
use weir_base::MILLIS;

const VOLUME: u64 = 256 << 20;
/// A part of it that fits the caches, as what the bare loop sends does.
const CACHED: u64 = 4 << 20;
/// How often a round is measured again during which the cores moved.
const AGAIN: u32 = 3;
const VARIANTS: [Variant; 5] =
    [Variant::Brp1, Variant::Brp2, Variant::Brp3T, Variant::BRP3, Variant::Auto];

/// How an I/O is done.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Via {
    Srp,
    /// SRP over a stream with MPA's CRC: the checksums that it can have.
    SrpCrc,
    Brp(Variant),
    /// BRP without checksums.
    Plain,
    Local,
    /// A TCP loop with the message sizes of BRP and nothing else.
    Bare,
    /// The same, with each answer from another place in as much memory as the I/Os go to.
    BareMemory,
}

impl Via {
    fn name(self) -> &'static str {
        match self {
            Via::Srp => "SRP",
            Via::SrpCrc => "SRP, CRC of the stream",
            Via::Brp(v) => v.name(),
            Via::Plain => "auto, no checksums",
            Via::Local => "local",
            Via::Bare => "bare TCP",
            Via::BareMemory => "bare TCP, same memory",
        }
    }
}

/// What one measurement gave.
#[derive(Debug, Clone, Copy)]
struct Point {
    /// I/Os per second.
    iops: f64,
    /// Mean latency in nanoseconds.
    mean: f64,
    /// Part of the commands that shared their message with others; 0 of what merges none.
    merged: f64,
}

/// What one way gave in each round.
#[derive(Debug, Clone, Default)]
struct Rounds(Vec<Point>);

impl Rounds {
    /// The round with the median rate.
    fn median(&self) -> Point {
        let mut p = self.0.clone();
        p.sort_by(|a, b| a.iops.total_cmp(&b.iops));
        p.get(p.len() / 2).copied().unwrap_or(Point { iops: 0.0, mean: 0.0, merged: 0.0 })
    }

    /// The median of this way's rate divided by the other's of the same round.
    fn ratio(&self, other: &Rounds) -> f64 {
        let mut all: Vec<f64> = self.0.iter().zip(&other.0).map(|(a, b)| a.iops / b.iops).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// Half the distance between the best and the worst round, as a part of the median.
    fn noise(&self) -> f64 {
        let all = || self.0.iter().map(|p| p.iops);
        let (low, high) = all().fold((f64::MAX, 0.0f64), |(l, h), x| (l.min(x), h.max(x)));
        if self.0.is_empty() { 0.0 } else { (high - low) / 2.0 / self.median().iops }
    }
}

/// Measures one way once.
fn once(r: &Runner<'_>, t: &Target, spec: &JobSpec, via: Via) -> Result<Point, ScenarioError> {
    let way = r.way(&r.cores.first(1));
    let options = Options { cores: way.cores.clone(), ..Options::default() };
    let of = |j: JobResult| Point { iops: j.iops(), mean: j.total().latency.mean(), merged: 0.0 };
    let brp = |variant, integrity| -> Result<Point, ScenarioError> {
        let address = t.login.addresses.first().copied();
        let mut address = address.ok_or_else(|| ScenarioError::Target("has no address".into()))?;
        // BRP is served at the port behind SRP's.
        address.set_port(address.port() + 1);
        let me = PortId(r.setup.initiator.0);
        let o = BrpOptions::new(address, me, vec![Which::Number(0)], spec);
        let brp = Arc::new(Brp::new(BrpOptions { variant, integrity, ..o }));
        let all = engine::run(brp.clone(), spec, &options)?;
        let (merged, sent) =
            brp.figures().iter().fold((0, 0), |(m, c), f| (m + f.merged, c + f.commands));
        let j = JobResult::merge(&all);
        match (j.errors, &j.first_error) {
            (0, _) if !j.lost => Ok(Point { merged: merged as f64 / sent.max(1) as f64, ..of(j) }),
            (_, e) => Err(ScenarioError::Io(e.clone().unwrap_or_else(|| "lost".into()))),
        }
    };
    match via {
        Via::Srp => r.once(t, spec, &way).map(of),
        Via::SrpCrc => r.once_as(Login { crc: true, ..t.login.clone() }, spec, &way).map(of),
        Via::Brp(v) => brp(v, true),
        Via::Plain => brp(Variant::Auto, false),
        Via::Local => {
            let local = Arc::new(Local::new(VOLUME));
            // Written before, as the target's: memory that was never touched is slow the first time.
            engine::run(local.clone(), &fill(VOLUME), &options)?;
            let all = engine::run(local, spec, &options)?;
            Ok(of(JobResult::merge(&all)))
        }
        Via::Bare | Via::BareMemory => {
            let memory = spec.size.filter(|_| via == Via::BareMemory).map(|s| s as usize);
            let (out, back) = if spec.rw.writes() { (spec.bs + 72, 16) } else { (72, spec.bs) };
            let depth = (spec.iodepth * spec.numjobs) as usize;
            let (out, back, time) = (out as usize, back as usize, r.setup.runtime);
            let b = request_response(ends(r), out, back, depth, memory, time)
                .map_err(|e| ScenarioError::System("the bare TCP loop".into(), e))?;
            Ok(Point { iops: b.iops(), mean: b.latency.mean(), merged: 0.0 })
        }
    }
}

/// Whether both cores are near to each other just now.
fn is_near(r: &Runner<'_>) -> Result<bool, ScenarioError> {
    bounce(ends(r), 30 * MILLIS)
        .map(|line| line < NEAR)
        .map_err(|e| ScenarioError::System("the cache line between the cores".into(), e))
}

fn ends(r: &Runner<'_>) -> Ends {
    let cores = r.cores.first(1);
    Ends { far: cores.target.first().copied(), near: cores.load.first().copied() }
}

/// Measures all ways in turn, as often as set, every other time in the opposite order.
fn rounds(
    r: &Runner<'_>,
    t: &Target,
    spec: &JobSpec,
    ways: &[Via],
) -> Result<Vec<Rounds>, ScenarioError> {
    let mut found = vec![Rounds::default(); ways.len()];
    if !spec.rw.writes() {
        // Each protocol reads what BRP has written: memory keeps the checksums that came with data.
        once(r, t, &fill(VOLUME), Via::Brp(Variant::Auto))?;
    }
    for round in 0..r.setup.repeat.max(1) {
        let mut order: Vec<usize> = (0..ways.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        let mut tries = 0;
        let all = loop {
            let before = is_near(r)?;
            let all: Result<Vec<Point>, ScenarioError> =
                order.iter().map(|i| once(r, t, spec, ways[*i])).collect();
            tries += 1;
            if is_near(r)? == before || tries > AGAIN {
                break all?;
            }
        };
        for (i, p) in order.into_iter().zip(all) {
            found[i].0.push(p);
        }
    }
    let text: Vec<String> = ways
        .iter()
        .zip(&found)
        .map(|(w, p)| format!("{} {}", w.name(), units::si(p.median().iops)))
        .collect();
    r.say(&format!("  {} depth {}: {}", spec.name, spec.iodepth * spec.numjobs, text.join(", ")));
    Ok(found)
}

/// As [`rounds`]; the median of each way.
fn all(
    r: &Runner<'_>,
    t: &Target,
    spec: &JobSpec,
    ways: &[Via],
) -> Result<Vec<Point>, ScenarioError> {
    Ok(rounds(r, t, spec, ways)?.iter().map(Rounds::median).collect())
}

/// A target, filled.
fn target(r: &Runner<'_>) -> Result<Target, ScenarioError> {
    let t = r.target(Medium::Ram, 1, VOLUME, &r.cores.first(1))?;
    r.fill(&t, 0, VOLUME)?;
    Ok(t)
}

/// What the bare loops of a page are.
const BARE: &str = " The bare TCP loop sends the same bytes again and again, or receives to the same place: they stay in the caches. \
    It is therefore compared with I/Os to the first 4 MiB of the volume. Those to all of it are compared with a loop whose answers come from \
    another place in as much memory each, or whose requests are put to one (*same memory*).";

fn method(r: &Runner<'_>, what: &str) -> String {
    format!(
        "{}; {what} on a volume of {} in memory, written before (by BRP, before reads). RDMA is iWARP in user space over TCP loopback without \
         MPA's CRC; BRP has its own checksums on unless a column says otherwise. User-space initiators on both \
         sides: no block layer, no page cache. Ways take turns, in the opposite order every other time; a round during which the \
         two cores moved, from two threads of one core to two cores or back, is measured again, up to {AGAIN} times.",
        r.cores.first(1).text(),
        units::size(VOLUME)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_round_counts_and_noise_is_told() {
        let rounds = |all: &[f64]| {
            Rounds(
                all.iter()
                    .map(|iops| Point { iops: *iops, mean: 1e9 / iops, merged: 0.0 })
                    .collect(),
            )
        };
        let r = rounds(&[90.0, 100.0, 130.0]);
        assert_eq!(r.median().iops, 100.0);
        assert!((r.noise() - 0.2).abs() < 1e-9);
        assert_eq!(rounds(&[7.0]).noise(), 0.0);
        assert_eq!(r.ratio(&rounds(&[100.0, 100.0, 100.0])), 1.0);
        assert!(r.ratio(&rounds(&[])).is_nan());
        assert_eq!((rounds(&[]).median().iops, rounds(&[]).noise()), (0.0, 0.0));
    }
}
