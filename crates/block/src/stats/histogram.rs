//! A log-linear histogram of fixed size.

/// Sub-buckets of each power of two, as a power of two: values are kept to 1 part in 8.
const SUB_BITS: u32 = 3;
const SUB: usize = 1 << SUB_BITS;
/// Values from 2^40 ns (18 minutes) on share the last bucket.
const TOP_BITS: u32 = 40;
pub(super) const BUCKETS: usize = SUB * (TOP_BITS - SUB_BITS + 1) as usize;

/// The bucket of a value: exact below 8, then eight buckets for each power of two.
#[inline]
pub(super) fn bucket_of(value: u64) -> usize {
    if value < SUB as u64 {
        return value as usize;
    }
    let exponent = value.ilog2();
    let sub = (value >> (exponent - SUB_BITS)) as usize & (SUB - 1);
    (((exponent - SUB_BITS + 1) as usize) * SUB + sub).min(BUCKETS - 1)
}

/// The largest value of a bucket.
fn upper(bucket: usize) -> u64 {
    if bucket < SUB {
        return bucket as u64;
    }
    let shift = (bucket / SUB - 1) as u32;
    (((SUB + bucket % SUB) as u64 + 1) << shift) - 1
}

/// Counts of values in nanoseconds, each kept to 12.5 %.
#[derive(Clone, PartialEq, Eq)]
pub struct Histogram(pub(super) [u64; BUCKETS]);

impl Default for Histogram {
    fn default() -> Self {
        Histogram([0; BUCKETS])
    }
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Histogram(n={}, p50={})", self.count(), self.quantile(0.5))
    }
}

impl Histogram {
    /// Values counted.
    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Counts one value.
    pub fn record(&mut self, value: u64) {
        self.0[bucket_of(value)] += 1;
    }

    /// The value that the fraction `q` (0 to 1) of all values does not exceed, rounded up to its
    /// bucket's end; 0 when there is none.
    pub fn quantile(&self, q: f64) -> u64 {
        let n = self.count();
        let rank = ((n as f64 * q).ceil() as u64).clamp(1, n.max(1));
        let mut seen = 0;
        for (i, c) in self.0.iter().enumerate() {
            seen += c;
            if seen >= rank {
                return upper(i);
            }
        }
        0
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Histogram) {
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            *a += b;
        }
    }

    /// What was counted since `earlier`.
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let mut d = self.clone();
        for (a, b) in d.0.iter_mut().zip(&earlier.0) {
            *a = a.saturating_sub(*b);
        }
        d
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_and_hold_their_values() {
        let mut last = 0;
        for v in (0..5000).chain((13..50).flat_map(|e| [(1u64 << e) - 1, 1 << e, (1 << e) + 1])) {
            let b = bucket_of(v);
            assert!(b >= last, "{v}");
            last = b;
            if b < BUCKETS - 1 {
                assert!(v <= upper(b), "{v} in {b}");
                assert!(b == 0 || v > upper(b - 1), "{v} in {b}");
                assert!((upper(b) - v) as f64 <= v as f64 / 8.0, "{v} in {b}");
            }
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles() {
        let mut h = Histogram::default();
        assert_eq!(h.quantile(0.5), 0);
        for v in 1..=1000 {
            h.record(v);
        }
        let p50 = h.quantile(0.5);
        assert!((500..=563).contains(&p50), "{p50}");
        assert!((990..=1115).contains(&h.quantile(0.99)));
        assert_eq!(h.quantile(0.0), 1);
        let mut twice = h.clone();
        twice.add(&h);
        assert_eq!(twice.since(&h), h);
    }
}
