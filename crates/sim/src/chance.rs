//! Odds and latencies: how a simulation draws what happens and how long it takes.

use weir_base::{MICROS, Nanos, Prng};

/// How often something happens, in parts per million.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Odds(pub u32);

impl Odds {
    /// It does not happen.
    pub const NEVER: Odds = Odds(0);
    /// It happens each time.
    pub const ALWAYS: Odds = Odds(1_000_000);

    /// Once in `n` times on average; never when `n` is 0.
    pub const fn one_in(n: u32) -> Odds {
        match n {
            0 => Odds::NEVER,
            n => Odds(1_000_000 / n),
        }
    }

    /// Draws. Costs no draw when it cannot happen.
    #[inline]
    pub fn hit(self, rng: &mut Prng) -> bool {
        self.0 > 0 && rng.chance(u64::from(self.0), 1_000_000)
    }
}

/// A distribution of delays: a base, a uniform spread, and now and then a long tail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latency {
    /// Least, in nanoseconds.
    pub base: Nanos,
    /// Up to this much more, uniformly.
    pub spread: Nanos,
    /// How often the tail is added.
    pub tail: Odds,
    /// Up to this much more in the tail.
    pub tail_max: Nanos,
}

impl Latency {
    /// Between `base` and `base + spread`, without tail.
    pub const fn uniform(base: Nanos, spread: Nanos) -> Latency {
        Latency { base, spread, tail: Odds::NEVER, tail_max: 0 }
    }

    /// A local network: 5 to 25 µs, one in 200 up to 2 ms more.
    pub const fn lan() -> Latency {
        Latency {
            base: 5 * MICROS,
            spread: 20 * MICROS,
            tail: Odds::one_in(200),
            tail_max: 2000 * MICROS,
        }
    }

    /// A flash disk: 20 to 120 µs, one in 100 up to 5 ms more.
    pub const fn flash() -> Latency {
        Latency {
            base: 20 * MICROS,
            spread: 100 * MICROS,
            tail: Odds::one_in(100),
            tail_max: 5000 * MICROS,
        }
    }

    /// Draws one delay.
    #[inline]
    pub fn draw(&self, rng: &mut Prng) -> Nanos {
        let mut t = self.base + rng.below(self.spread + 1);
        if self.tail.hit(rng) {
            t += rng.below(self.tail_max + 1);
        }
        t
    }
}

/// Cuts `len` bytes at random places into at most `max` pieces of (offset, length), in order. No bytes
/// are one empty piece.
pub(crate) fn pieces(rng: &mut Prng, len: usize, max: usize) -> Vec<(usize, usize)> {
    let n = if len < 2 || max < 2 { 1 } else { 1 + rng.below(max.min(len) as u64) as usize };
    let mut ends: Vec<usize> = (1..n).map(|_| rng.between(1, len as u64 - 1) as usize).collect();
    ends.push(len);
    ends.sort_unstable();
    ends.dedup();
    let mut at = 0;
    ends.iter()
        .map(|&end| {
            let piece = (at, end - at);
            at = end;
            piece
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_everything_once() {
        let mut rng = Prng::new(1);
        for len in [0, 1, 2, 3, 100, 4096] {
            for max in 1..6 {
                let p = pieces(&mut rng, len, max);
                assert!(p.len() <= max && !p.is_empty());
                let mut at = 0;
                for (o, l) in p {
                    assert_eq!(o, at);
                    assert!(l > 0 || len == 0);
                    at += l;
                }
                assert_eq!(at, len);
            }
        }
    }

    #[test]
    fn odds_and_latencies_stay_in_their_bounds() {
        let mut rng = Prng::new(2);
        let lan = Latency::lan();
        for _ in 0..10_000 {
            assert!(!Odds::NEVER.hit(&mut rng));
            assert!(Odds::ALWAYS.hit(&mut rng));
            let t = lan.draw(&mut rng);
            assert!(t >= lan.base && t <= lan.base + lan.spread + lan.tail_max);
        }
        assert_eq!(Odds::one_in(0), Odds::NEVER);
        let hits = (0..100_000).filter(|_| Odds::one_in(10).hit(&mut rng)).count();
        assert!((9000..11000).contains(&hits), "{hits}");
    }
}
