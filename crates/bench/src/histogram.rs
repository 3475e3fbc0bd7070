//! Latencies: a log-linear histogram of fixed size, cheap to record into.

/// Buckets of each power of two, as a power of two: a percentile is off by less than 1 in 128.
const SUB_BITS: u32 = 7;
const SUB: u64 = 1 << SUB_BITS;
/// Values from 2^37 ns (137 s) on share the last bucket.
const TOP_BITS: u32 = 37;
const BUCKETS: usize = (SUB as usize) * (TOP_BITS - SUB_BITS + 1) as usize;

/// Counts of values (nanoseconds), with exact least, greatest, mean and deviation.
#[derive(Clone, PartialEq)]
pub struct Histogram {
    counts: Box<[u64]>,
    n: u64,
    min: u64,
    max: u64,
    sum: u64,
    squares: f64,
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Histogram(n {}, min {}, mean {:.0}, max {})",
            self.n,
            self.min(),
            self.mean(),
            self.max
        )
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            counts: vec![0; BUCKETS].into_boxed_slice(),
            n: 0,
            min: u64::MAX,
            max: 0,
            sum: 0,
            squares: 0.0,
        }
    }
}

#[inline]
fn bucket(v: u64) -> usize {
    if v < SUB {
        return v as usize;
    }
    let shift = v.ilog2() - SUB_BITS;
    let b = ((u64::from(shift) + 1) << SUB_BITS) + ((v >> shift) - SUB);
    (b as usize).min(BUCKETS - 1)
}

/// The middle of a bucket.
fn middle(b: usize) -> u64 {
    let b = b as u64;
    if b < SUB {
        return b;
    }
    let shift = (b >> SUB_BITS) - 1;
    let low = (SUB + (b & (SUB - 1))) << shift;
    low + ((1 << shift) >> 1)
}

impl Histogram {
    /// Counts a value.
    #[inline]
    pub fn record(&mut self, v: u64) {
        self.counts[bucket(v)] += 1;
        self.n += 1;
        self.sum = self.sum.saturating_add(v);
        self.squares += (v as f64) * (v as f64);
        self.min = self.min.min(v);
        self.max = self.max.max(v);
    }

    /// Adds another histogram's values.
    pub fn add(&mut self, other: &Histogram) {
        for (a, b) in self.counts.iter_mut().zip(&other.counts) {
            *a += b;
        }
        self.n += other.n;
        self.sum = self.sum.saturating_add(other.sum);
        self.squares += other.squares;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Values counted.
    pub fn count(&self) -> u64 {
        self.n
    }

    /// The least value; 0 without any.
    pub fn min(&self) -> u64 {
        if self.n == 0 { 0 } else { self.min }
    }

    /// The greatest value.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The mean; 0 without values.
    pub fn mean(&self) -> f64 {
        if self.n == 0 { 0.0 } else { self.sum as f64 / self.n as f64 }
    }

    /// The standard deviation of the sample; 0 below two values.
    pub fn stddev(&self) -> f64 {
        if self.n < 2 {
            return 0.0;
        }
        let n = self.n as f64;
        let mean = self.mean();
        ((self.squares - n * mean * mean).max(0.0) / (n - 1.0)).sqrt()
    }

    /// The value that `percent` of all values do not exceed, to 1 part in 128; 0 without values.
    pub fn percentile(&self, percent: f64) -> u64 {
        if percent <= 0.0 {
            return self.min();
        }
        if self.n == 0 {
            return 0;
        }
        let rank = ((percent / 100.0 * self.n as f64).ceil() as u64).clamp(1, self.n);
        let mut seen = 0;
        for (b, c) in self.counts.iter().enumerate() {
            seen += c;
            if seen >= rank {
                return middle(b).clamp(self.min, self.max);
            }
        }
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_order_and_near_their_values() {
        let mut last = 0;
        let mut v = 0u64;
        while v < 1 << 36 {
            let b = bucket(v);
            assert!(b >= last, "{v}");
            last = b;
            let m = middle(b);
            assert!(m.abs_diff(v) * 128 <= v.max(128), "{v} {m}");
            v = v + 1 + v / 300;
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn figures_are_those_of_the_values() {
        let mut h = Histogram::default();
        assert_eq!((h.percentile(99.0), h.min(), h.mean()), (0, 0, 0.0));
        for v in 1..=100 {
            h.record(v * 1000);
        }
        let mut other = Histogram::default();
        other.record(1_000_000);
        h.add(&other);
        assert_eq!((h.count(), h.min(), h.max()), (101, 1000, 1_000_000));
        assert!((h.mean() - 6_050_000.0 / 101.0).abs() < 1e-6);
        let p50 = h.percentile(50.0);
        assert!(p50.abs_diff(51_000) < 51_000 / 100, "{p50}");
        assert_eq!(h.percentile(100.0), 1_000_000);
        assert_eq!(h.percentile(0.0), 1000);
        // Of 2 and 4: mean 3, deviation of the sample sqrt 2.
        let mut s = Histogram::default();
        s.record(2);
        s.record(4);
        assert!((s.stddev() - 2f64.sqrt()).abs() < 1e-9);
    }
}
