//! What came of a job.

use crate::histogram::Histogram;
use crate::job::Op;
use crate::verify::BadBlock;
use weir_base::Nanos;

/// Figures of one kind of I/O.
#[derive(Debug, Clone, Default)]
pub struct OpResult {
    /// I/Os that ended well, after the ramp.
    pub ios: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Nanoseconds from submission to completion of each.
    pub latency: Histogram,
}

impl OpResult {
    /// Adds another's figures.
    pub fn add(&mut self, other: &OpResult) {
        self.ios += other.ios;
        self.bytes += other.bytes;
        self.latency.add(&other.latency);
    }
}

/// What checking found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyResult {
    /// I/Os whose data was checked.
    pub checked: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Reads of blocks of which nothing is known: the job writes, but had not written these.
    pub unknown: u64,
    /// I/Os with a wrong block.
    pub errors: u64,
    /// The first wrong blocks.
    pub bad: Vec<BadBlock>,
}

/// Wrong blocks that are kept for the report.
pub(super) const KEPT: usize = 8;

impl VerifyResult {
    /// Adds another's figures.
    pub fn add(&mut self, other: &VerifyResult) {
        self.checked += other.checked;
        self.bytes += other.bytes;
        self.unknown += other.unknown;
        self.errors += other.errors;
        let room = KEPT.saturating_sub(self.bad.len());
        self.bad.extend(other.bad.iter().take(room));
    }
}

/// What happened in one interval.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sample {
    /// Nanoseconds from the start of the load to the end of the interval.
    pub at: Nanos,
    /// Length of the interval, nanoseconds.
    pub length: Nanos,
    /// I/Os that ended.
    pub ios: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Sum of their latencies, nanoseconds.
    pub latency: u64,
}

/// Results of one copy of a job.
#[derive(Debug, Clone, Default)]
pub struct JobResult {
    /// Its number.
    pub index: u32,
    /// Figures by kind of I/O, in the order of [`Op::ALL`].
    pub ops: [OpResult; Op::ALL.len()],
    /// Length of the measurement in nanoseconds.
    pub runtime: Nanos,
    /// I/Os that failed.
    pub errors: u64,
    /// The first failure, in words.
    pub first_error: Option<String>,
    /// I/Os that had not ended when the wait for them was given up; counted among the errors too.
    pub stuck: u64,
    /// The job ended early, because its connection was lost.
    pub lost: bool,
    /// What checking found.
    pub verify: VerifyResult,
    /// Rate and latency over time.
    pub samples: Vec<Sample>,
}

impl JobResult {
    /// Figures of one kind.
    pub fn of(&self, op: Op) -> &OpResult {
        &self.ops[op as usize]
    }

    /// All kinds together.
    pub fn total(&self) -> OpResult {
        let mut all = OpResult::default();
        for o in &self.ops {
            all.add(o);
        }
        all
    }

    /// I/Os per second, all kinds together.
    pub fn iops(&self) -> f64 {
        per_second(self.ops.iter().map(|o| o.ios).sum(), self.runtime)
    }

    /// Bytes per second, all kinds together.
    pub fn bandwidth(&self) -> f64 {
        per_second(self.ops.iter().map(|o| o.bytes).sum(), self.runtime)
    }

    /// All copies as one (fio: `group_reporting`). The time is that of the longest.
    pub fn merge(jobs: &[JobResult]) -> JobResult {
        let mut all = JobResult::default();
        // Only intervals that all have seen to their end tell the rate of all.
        let samples = jobs.iter().map(|j| j.samples.len()).min().unwrap_or(0);
        for j in jobs {
            for (a, b) in all.ops.iter_mut().zip(&j.ops) {
                a.add(b);
            }
            all.runtime = all.runtime.max(j.runtime);
            all.errors += j.errors;
            all.first_error = all.first_error.or_else(|| j.first_error.clone());
            all.stuck += j.stuck;
            all.lost |= j.lost;
            all.verify.add(&j.verify);
            for (i, s) in j.samples.iter().take(samples).enumerate() {
                match all.samples.get_mut(i) {
                    Some(t) => {
                        t.ios += s.ios;
                        t.bytes += s.bytes;
                        t.latency += s.latency;
                    }
                    None => all.samples.push(*s),
                }
            }
        }
        all
    }
}

/// A count as a rate; 0 when no time passed.
pub(crate) fn per_second(n: u64, time: Nanos) -> f64 {
    if time == 0 { 0.0 } else { n as f64 * 1e9 / time as f64 }
}
