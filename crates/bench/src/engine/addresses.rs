//! Where I/Os go.

use weir_base::Prng;

/// A random order in which every number below `n` comes once: four rounds of a Feistel network over the
/// next even power of two, repeated while it leaves the range (M. Luby and C. Rackoff, 1988).
#[derive(Debug, Clone)]
pub(super) struct Permutation {
    n: u64,
    half: u32,
    keys: [u64; 4],
}

impl Permutation {
    pub(super) fn new(n: u64, rng: &mut Prng) -> Permutation {
        let bits = 64 - n.saturating_sub(1).leading_zeros();
        Permutation {
            n,
            half: bits.div_ceil(2).max(1),
            keys: std::array::from_fn(|_| rng.next_u64()),
        }
    }

    /// The number at place `i`, which is below `n`.
    pub(super) fn at(&self, i: u64) -> u64 {
        let mask = (1u64 << self.half) - 1;
        let mut x = i;
        loop {
            let (mut l, mut r) = (x >> self.half, x & mask);
            for k in self.keys {
                let mut f = (r ^ k).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                f ^= f >> 32;
                (l, r) = (r, l ^ (f & mask));
            }
            x = l << self.half | r;
            if x < self.n {
                return x;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_once_and_not_in_order() {
        for n in [1, 2, 3, 100, 1000, 4097] {
            let p = Permutation::new(n, &mut Prng::new(n));
            let mut seen: Vec<u64> = (0..n).map(|i| p.at(i)).collect();
            assert!(
                n < 100 || seen.windows(2).filter(|w| w[0] + 1 == w[1]).count() < n as usize / 10
            );
            seen.sort_unstable();
            assert_eq!(seen, (0..n).collect::<Vec<_>>());
        }
    }
}
