//! The counters of one layer on one core.

use super::histogram::{BUCKETS, Histogram, bucket_of};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use weir_base::{IoResult, Nanos};

/// What an I/O does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Op {
    /// [`Volume::read`](crate::Volume::read).
    Read,
    /// [`Volume::write`](crate::Volume::write).
    Write,
    /// [`Volume::flush`](crate::Volume::flush).
    Flush,
    /// [`Volume::discard`](crate::Volume::discard).
    Discard,
    /// [`Volume::write_zeroes`](crate::Volume::write_zeroes).
    WriteZeroes,
}

impl Op {
    /// All of them, in the order of their numbers.
    pub const ALL: [Op; 5] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];

    /// Its name in parameters and tables.
    pub fn name(self) -> &'static str {
        match self {
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Discard => "discard",
            Op::WriteZeroes => "write-zeroes",
        }
    }

    /// The operation of this name.
    pub fn from_name(name: &str) -> Option<Op> {
        Op::ALL.into_iter().find(|o| o.name() == name)
    }
}

/// A number with one writer: a load and a store instead of a locked addition. Others may read it.
#[derive(Default)]
struct Own(AtomicU64);

impl Own {
    #[inline]
    fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }
    #[inline]
    fn sub(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_sub(n), Relaxed);
    }
    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

struct OpCounters {
    ops: Own,
    bytes: Own,
    errors: Own,
    at_once: Own,
    nanos: Own,
    latency: [Own; BUCKETS],
}

impl Default for OpCounters {
    fn default() -> Self {
        OpCounters {
            ops: Own::default(),
            bytes: Own::default(),
            errors: Own::default(),
            at_once: Own::default(),
            nanos: Own::default(),
            latency: [const { Own(AtomicU64::new(0)) }; BUCKETS],
        }
    }
}

/// The counters of one layer on one core: written by that core only, readable from every thread.
/// Aligned so that two cores never write to one line (128 bytes: lines are fetched in pairs).
#[derive(Default)]
#[repr(align(128))]
pub struct Counters {
    in_flight: Own,
    of: [OpCounters; Op::ALL.len()],
}

impl Counters {
    /// Counts an I/O that completed within its call; its latency is below what a clock tells.
    #[inline]
    pub fn at_once(&self, op: Op, bytes: u64, result: IoResult) {
        let c = &self.of[op as usize];
        c.at_once.add(1);
        Self::end(c, bytes, result);
    }

    /// Counts the start of an I/O that takes its time.
    #[inline]
    pub fn begin(&self) {
        self.in_flight.add(1);
    }

    /// Counts its end.
    #[inline]
    pub fn done(&self, op: Op, bytes: u64, result: IoResult, nanos: Nanos) {
        self.in_flight.sub(1);
        let c = &self.of[op as usize];
        c.nanos.add(nanos);
        c.latency[bucket_of(nanos)].add(1);
        Self::end(c, bytes, result);
    }

    /// Counts that its future was dropped.
    #[inline]
    pub fn dropped(&self) {
        self.in_flight.sub(1);
    }

    #[inline]
    fn end(c: &OpCounters, bytes: u64, result: IoResult) {
        c.ops.add(1);
        match result {
            Ok(()) => c.bytes.add(bytes),
            Err(_) => c.errors.add(1),
        }
    }

    /// A copy of the numbers, each one exact, together as of about now.
    pub fn snapshot(&self) -> Snapshot {
        let mut s = Snapshot { in_flight: self.in_flight.get(), ..Snapshot::default() };
        for (to, from) in s.of.iter_mut().zip(&self.of) {
            *to = OpFigures {
                ops: from.ops.get(),
                bytes: from.bytes.get(),
                errors: from.errors.get(),
                at_once: from.at_once.get(),
                nanos: from.nanos.get(),
                latency: Histogram(std::array::from_fn(|i| from.latency[i].get())),
            };
        }
        s
    }
}

/// Figures of one operation of a layer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpFigures {
    /// I/Os that ended, also in failure.
    pub ops: u64,
    /// Bytes of those that succeeded.
    pub bytes: u64,
    /// I/Os that failed.
    pub errors: u64,
    /// I/Os that completed within their call: they are not in `nanos` and `latency`.
    pub at_once: u64,
    /// Sum of the latencies of the others, in nanoseconds.
    pub nanos: u64,
    /// Latencies of the others.
    pub latency: Histogram,
}

/// Figures of a layer at one moment, of one core or summed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// I/Os below this layer now.
    pub in_flight: u64,
    of: [OpFigures; Op::ALL.len()],
}

impl Snapshot {
    /// Figures of one operation.
    pub fn of(&self, op: Op) -> &OpFigures {
        &self.of[op as usize]
    }

    /// Adds another core's.
    pub fn add(&mut self, other: &Snapshot) {
        self.in_flight += other.in_flight;
        for (a, b) in self.of.iter_mut().zip(&other.of) {
            a.ops += b.ops;
            a.bytes += b.bytes;
            a.errors += b.errors;
            a.at_once += b.at_once;
            a.nanos += b.nanos;
            a.latency.add(&b.latency);
        }
    }

    /// What happened since `earlier`.
    pub fn since(&self, earlier: &Snapshot) -> Snapshot {
        let mut d = self.clone();
        for (a, b) in d.of.iter_mut().zip(&earlier.of) {
            a.ops = a.ops.saturating_sub(b.ops);
            a.bytes = a.bytes.saturating_sub(b.bytes);
            a.errors = a.errors.saturating_sub(b.errors);
            a.at_once = a.at_once.saturating_sub(b.at_once);
            a.nanos = a.nanos.saturating_sub(b.nanos);
            a.latency = a.latency.since(&b.latency);
        }
        d
    }
}
