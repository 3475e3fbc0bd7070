//! Sets of ranges of block numbers.

use std::collections::BTreeMap;

/// Disjoint half-open ranges, joined where they touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a range.
    pub(crate) fn add(&mut self, mut from: u64, mut to: u64) {
        if from >= to {
            return;
        }
        if let Some((s, e)) = self.0.range(..=from).next_back().map(|(s, e)| (*s, *e))
            && e >= from
        {
            from = s;
            to = to.max(e);
        }
        while let Some((s, e)) = self.0.range(from..=to).next().map(|(s, e)| (*s, *e)) {
            self.0.remove(&s);
            to = to.max(e);
        }
        self.0.insert(from, to);
    }

    pub(crate) fn contains(&self, x: u64) -> bool {
        self.0.range(..=x).next_back().is_some_and(|(_, e)| *e > x)
    }

    /// Whether a number is in it, and up to where that is so of those after it, at most to `end`.
    pub(crate) fn run(&self, x: u64, end: u64) -> (bool, u64) {
        if let Some((_, e)) = self.0.range(..=x).next_back().filter(|(_, e)| **e > x) {
            return (true, end.min(*e));
        }
        (false, self.0.range(x..).next().map_or(end, |(s, _)| end.min(*s)))
    }

    /// True when all of the range is in it.
    pub(crate) fn covers(&self, from: u64, to: u64) -> bool {
        self.0.range(..=from).next_back().is_some_and(|(_, e)| *e >= to)
    }

    /// True when any of the range is in it.
    pub(crate) fn touches(&self, from: u64, to: u64) -> bool {
        self.0.range(..to).next_back().is_some_and(|(_, e)| *e > from)
    }

    /// The parts of a range that are in it.
    pub(crate) fn within(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64)> {
        let first = self.0.range(..=from).next_back().map_or(from, |(s, _)| *s);
        self.0
            .range(first..to)
            .map(move |(s, e)| ((*s).max(from), (*e).min(to)))
            .filter(|(s, e)| s < e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_base::Prng;

    #[test]
    fn behaves_like_a_set_of_numbers() {
        let mut rng = Prng::new(5);
        for _ in 0..200 {
            let (mut r, mut plain) = (Ranges::default(), [false; 64]);
            for _ in 0..rng.below(12) {
                let from = rng.below(64);
                let to = rng.between(from, 64);
                r.add(from, to);
                plain[from as usize..to as usize].fill(true);
            }
            let runs = plain.windows(2).filter(|w| !w[0] && w[1]).count() + usize::from(plain[0]);
            assert_eq!((r.len(), r.is_empty()), (runs, runs == 0));
            for from in 0..64 {
                assert_eq!(r.contains(from), plain[from as usize]);
                let same = |x: &u64| plain[*x as usize] == plain[from as usize];
                let end = rng.between(from + 1, 64);
                let to = from + (from..end).take_while(same).count() as u64;
                assert_eq!(r.run(from, end), (plain[from as usize], to));
                for to in from + 1..=64 {
                    let part = &plain[from as usize..to as usize];
                    assert_eq!(r.covers(from, to), part.iter().all(|x| *x));
                    assert_eq!(r.touches(from, to), part.iter().any(|x| *x));
                    let n: u64 = r.within(from, to).map(|(s, e)| e - s).sum();
                    assert_eq!(n as usize, part.iter().filter(|x| **x).count());
                }
            }
        }
    }
}
