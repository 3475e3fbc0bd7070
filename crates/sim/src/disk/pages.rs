//! Sparse bytes: what was never written is zero and takes no memory.

use std::collections::BTreeMap;

const PAGE: usize = 4096;

/// A sparse array of bytes in pages of 4 KiB.
#[derive(Clone, Default)]
pub(crate) struct Pages(BTreeMap<u64, Box<[u8; PAGE]>>);

/// Parts of a range: page, offset in it, offset in the range, length.
fn parts(at: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let pos = at + done as u64;
        let (page, off) = (pos / PAGE as u64, (pos % PAGE as u64) as usize);
        let n = (PAGE - off).min(len - done);
        let part = (page, off, done, n);
        done += n;
        Some(part)
    })
}

impl Pages {
    pub(crate) fn read(&self, at: u64, out: &mut [u8]) {
        for (page, off, pos, n) in parts(at, out.len()) {
            match self.0.get(&page) {
                Some(p) => out[pos..pos + n].copy_from_slice(&p[off..off + n]),
                None => out[pos..pos + n].fill(0),
            }
        }
    }

    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) {
        for (page, off, pos, n) in parts(at, bytes.len()) {
            let p = self.0.entry(page).or_insert_with(|| Box::new([0; PAGE]));
            p[off..off + n].copy_from_slice(&bytes[pos..pos + n]);
        }
    }

    pub(crate) fn zero(&mut self, at: u64, len: u64) {
        let end = at + len;
        let (first, last) = (at / PAGE as u64, end.div_ceil(PAGE as u64));
        let touched: Vec<u64> = self.0.range(first..last).map(|(p, _)| *p).collect();
        for page in touched {
            let start = page * PAGE as u64;
            if at <= start && start + PAGE as u64 <= end {
                self.0.remove(&page);
            } else if let Some(p) = self.0.get_mut(&page) {
                let from = at.saturating_sub(start) as usize;
                let to = ((end - start) as usize).min(PAGE);
                p[from..to].fill(0);
            }
        }
    }

    /// Forgets everything from `len` on.
    pub(crate) fn truncate(&mut self, len: u64) {
        self.zero(len, (u64::MAX / 2) - len);
    }

    /// Pages that take memory.
    pub(crate) fn used(&self) -> u64 {
        self.0.len() as u64
    }

    /// Pages that a write to this range would add.
    pub(crate) fn new_pages(&self, at: u64, len: usize) -> u64 {
        parts(at, len).filter(|(page, ..)| !self.0.contains_key(page)).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_base::Prng;

    #[test]
    fn behaves_like_a_plain_array() {
        const LEN: usize = 5 * PAGE;
        let (mut p, mut plain) = (Pages::default(), vec![0u8; LEN]);
        let mut rng = Prng::new(1);
        for _ in 0..3000 {
            let at = rng.below(LEN as u64) as usize;
            let len = rng.below((LEN - at) as u64 + 1) as usize;
            match rng.below(4) {
                0 => {
                    p.zero(at as u64, len as u64);
                    plain[at..at + len].fill(0);
                }
                1 | 2 => {
                    let len = len.min(700);
                    let mut b = vec![0; len];
                    rng.fill(&mut b);
                    p.write(at as u64, &b);
                    plain[at..at + len].copy_from_slice(&b);
                }
                _ => {
                    let mut b = vec![1; len];
                    p.read(at as u64, &mut b);
                    assert_eq!(b, plain[at..at + len]);
                }
            }
        }
        p.truncate(2 * PAGE as u64 + 5);
        plain[2 * PAGE + 5..].fill(0);
        let mut all = vec![0; LEN];
        p.read(0, &mut all);
        assert_eq!(all, plain);
        assert!(p.used() <= 3);
    }
}
