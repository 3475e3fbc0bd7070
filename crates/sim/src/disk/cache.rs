//! A disk's content and its write cache: what is on the medium, what a read sees, and what a power cut
//! makes of the difference.

use super::pages::Pages;
use std::collections::VecDeque;
use weir_base::{Nanos, Prng};

/// Unit in which a write can be torn, in bytes.
const SECTOR: usize = 512;
/// Entries kept before the oldest are written back.
const CACHE: usize = 1024;

enum What {
    Data(Vec<u8>),
    Zero(u64),
}

/// A part of a write that the disk has taken.
struct Entry {
    op: u64,
    at: u64,
    what: What,
    /// Order in which its operation was reported as complete, if it was.
    finished: Option<Nanos>,
    durable: bool,
}

/// Content and cache.
#[derive(Default)]
pub(crate) struct Cache {
    /// On the medium.
    base: Pages,
    /// What reads see.
    live: Pages,
    /// What reads see and the medium may not have, in the order in which it was taken.
    log: VecDeque<Entry>,
    stamp: u64,
}

impl Cache {
    pub(crate) fn read(&self, at: u64, out: &mut [u8]) {
        self.live.read(at, out);
    }

    /// What reads see, all of it on the medium.
    pub(crate) fn settled(&self) -> Cache {
        Cache { base: self.live.clone(), live: self.live.clone(), ..Cache::default() }
    }

    pub(crate) fn live(&self) -> &Pages {
        &self.live
    }

    pub(crate) fn write(&mut self, op: u64, at: u64, bytes: Vec<u8>) {
        self.live.write(at, &bytes);
        self.push(op, at, What::Data(bytes));
    }

    pub(crate) fn zero(&mut self, op: u64, at: u64, len: u64) {
        self.live.zero(at, len);
        self.push(op, at, What::Zero(len));
    }

    fn push(&mut self, op: u64, at: u64, what: What) {
        self.log.push_back(Entry { op, at, what, finished: None, durable: false });
        if self.log.len() > CACHE
            && let Some(oldest) = self.log.front_mut()
        {
            oldest.durable = true;
            self.compact();
        }
    }

    /// The operation is reported as complete; with `durable` it survives from here on.
    pub(crate) fn finish(&mut self, op: u64, durable: bool) {
        self.stamp += 1;
        for e in self.log.iter_mut().filter(|e| e.op == op) {
            e.finished = Some(self.stamp);
            e.durable |= durable;
        }
        self.compact();
    }

    /// What a flush that begins now has to cover.
    pub(crate) fn mark(&self) -> u64 {
        self.stamp
    }

    /// The flush that began at `mark` is complete.
    pub(crate) fn flushed(&mut self, mark: u64) {
        for e in self.log.iter_mut().filter(|e| e.finished.is_some_and(|f| f <= mark)) {
            e.durable = true;
        }
        self.compact();
    }

    /// The flush that began at `mark` failed: some of what it had to cover is never written, though
    /// reads still see it, and a later flush will not mend that.
    pub(crate) fn flush_failed(&mut self, mark: u64, rng: &mut Prng) {
        self.log.retain(|e| e.durable || e.finished.is_none_or(|f| f > mark) || rng.chance(1, 3));
    }

    /// The disk writes its oldest entry back by itself.
    pub(crate) fn write_back(&mut self) {
        if let Some(e) = self.log.front_mut().filter(|e| e.finished.is_some()) {
            e.durable = true;
            self.compact();
        }
    }

    fn compact(&mut self) {
        while self.log.front().is_some_and(|e| e.durable && e.finished.is_some()) {
            if let Some(e) = self.log.pop_front() {
                put(&mut self.base, &e);
            }
        }
    }

    /// Entries that a power cut could lose.
    pub(crate) fn at_risk(&self) -> usize {
        self.log.iter().filter(|e| !e.durable).count()
    }

    /// Where they are, and how long.
    pub(crate) fn each_at_risk(&self, mut f: impl FnMut(u64, u64)) {
        for e in self.log.iter().filter(|e| !e.durable) {
            let len = match &e.what {
                What::Data(b) => b.len() as u64,
                What::Zero(len) => *len,
            };
            f(e.at, len);
        }
    }

    /// Power goes: of what was not durable a random part survives, whole, not at all, or torn.
    pub(crate) fn power_cut(&mut self, rng: &mut Prng, garbage: bool) {
        // Each cut has its own temper, so that all of nothing, all, prefixes and patchworks happen.
        let survive = [0, 10, 50, 90, 100][rng.below(5) as usize];
        let tear = [0, 20, 60][rng.below(3) as usize];
        for e in std::mem::take(&mut self.log) {
            if e.durable || rng.chance(survive, 100) {
                put(&mut self.base, &e);
            } else if rng.chance(tear, 100) {
                tear_in(&mut self.base, &e, rng, garbage);
            }
        }
        self.live = self.base.clone();
    }

    /// Flips bits in the range, on the medium and in the cache.
    pub(crate) fn rot(&mut self, at: u64, len: usize, bits: u32, rng: &mut Prng) {
        for _ in 0..bits {
            let byte = at + rng.below(len as u64);
            let bit = 1 << rng.below(8);
            for pages in [&mut self.base, &mut self.live] {
                let mut b = [0];
                pages.read(byte, &mut b);
                pages.write(byte, &[b[0] ^ bit]);
            }
        }
    }

    /// Changes bytes, on the medium and in the cache.
    pub(crate) fn poke(&mut self, at: u64, bytes: &[u8]) {
        self.base.write(at, bytes);
        self.live.write(at, bytes);
        if !self.log.is_empty() {
            // What was taken before and reaches the medium later must not cover it again.
            let what = What::Data(bytes.to_vec());
            let finished = Some(self.stamp);
            self.log.push_back(Entry { op: u64::MAX, at, what, finished, durable: true });
        }
    }

    pub(crate) fn truncate(&mut self, len: u64) {
        self.log.retain(|e| e.at < len);
        self.base.truncate(len);
        self.live.truncate(len);
    }
}

fn put(pages: &mut Pages, e: &Entry) {
    match &e.what {
        What::Data(bytes) => pages.write(e.at, bytes),
        What::Zero(len) => pages.zero(e.at, *len),
    }
}

/// Writes some sectors of the entry: a front part, a back part, or any.
fn tear_in(pages: &mut Pages, e: &Entry, rng: &mut Prng, garbage: bool) {
    let len = match &e.what {
        What::Data(b) => b.len() as u64,
        What::Zero(len) => *len,
    };
    // Sector borders are those of the disk, not of the entry.
    let first = e.at / SECTOR as u64;
    let sectors = (e.at + len).div_ceil(SECTOR as u64) - first;
    let (shape, edge) = (rng.below(3), rng.below(sectors + 1));
    for s in 0..sectors {
        let written = match shape {
            0 => s < edge,
            1 => s >= edge,
            _ => rng.chance(1, 2),
        };
        if !written {
            continue;
        }
        let from = ((first + s) * SECTOR as u64).max(e.at);
        let to = ((first + s + 1) * SECTOR as u64).min(e.at + len);
        if garbage && rng.chance(1, 8) {
            let mut noise = vec![0; (to - from) as usize];
            rng.fill(&mut noise);
            pages.write(from, &noise);
            continue;
        }
        match &e.what {
            What::Data(b) => pages.write(from, &b[(from - e.at) as usize..(to - e.at) as usize]),
            What::Zero(_) => pages.zero(from, to - from),
        }
    }
}

#[cfg(test)]
mod tests;
