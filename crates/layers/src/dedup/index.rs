//! The index: where contents may be found, by their hash. It is advice: whoever follows it compares.
//!
//! A table of buckets of eight entries, each of 24 bits of the hash and a slot. It grows bucket by bucket (linear hashing),
//! up to a limit, from which on new entries take the places of others. Hashes of 34 bits are all that is told apart,
//! of which the lowest ten follow from the bucket.

use weir_codec::crc64;

/// Entries of a bucket.
const WAYS: usize = 8;
/// Buckets of a segment, the unit of memory; a table has one or more.
const SEGMENT: u64 = 1 << LOW;
/// Bits of a hash that every table has buckets for.
const LOW: u32 = 10;
const SLOT_BITS: u32 = 40;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
const KEY_MASK: u64 = (1 << (64 - SLOT_BITS + LOW)) - 1;

/// Bytes of a block in which entries are kept.
pub(super) const BLOCK: usize = 4096;
/// Buckets of one.
const KEPT: u64 = 63;
const HEAD: usize = 24;
const MAGIC: u32 = u32::from_le_bytes(*b"WRdx");

/// The index.
pub(super) struct Index {
    segments: Vec<Box<[u64]>>,
    /// There are 2^level + split buckets, once there are any.
    level: u32,
    split: u64,
    used: u64,
    /// Segments at most.
    most: usize,
    /// Changed since [`Index::keep`] was asked for them last, by buckets of a block.
    changes: u64,
}

fn tag_of(key: u64) -> u64 {
    key >> LOW
}

fn entry(key: u64, slot: u64) -> u64 {
    // Nothing is 0.
    tag_of(key) << SLOT_BITS | ((slot + 1) & SLOT_MASK)
}

impl Index {
    /// One that takes `memory` bytes at most, but 64 KiB if it is used at all.
    pub(super) fn new(memory: usize) -> Index {
        let most = (memory / (SEGMENT as usize * WAYS * 8)).max(1);
        Index { segments: Vec::new(), level: LOW, split: 0, used: 0, most, changes: 0 }
    }

    fn buckets(&self) -> u64 {
        if self.segments.is_empty() { 0 } else { (1 << self.level) + self.split }
    }

    fn bucket_of(&self, key: u64) -> u64 {
        let i = key & ((2 << self.level) - 1);
        if i < self.buckets() { i } else { key & ((1 << self.level) - 1) }
    }

    fn bucket(&self, i: u64) -> Option<&[u64]> {
        let at = (i % SEGMENT) as usize * WAYS;
        self.segments.get((i / SEGMENT) as usize)?.get(at..at + WAYS)
    }

    fn bucket_mut(&mut self, i: u64) -> Option<&mut [u64]> {
        let at = (i % SEGMENT) as usize * WAYS;
        self.segments.get_mut((i / SEGMENT) as usize)?.get_mut(at..at + WAYS)
    }

    /// The slot in which contents with that hash were seen last.
    pub(super) fn get(&self, hash: u64) -> Option<u64> {
        let key = hash & KEY_MASK;
        let tag = tag_of(key);
        let found = self
            .bucket(self.bucket_of(key))?
            .iter()
            .find(|e| **e != 0 && **e >> SLOT_BITS == tag)?;
        Some((found & SLOT_MASK) - 1)
    }

    /// Contents with that hash are in `slot` now.
    pub(super) fn put(&mut self, hash: u64, slot: u64) {
        self.insert(hash & KEY_MASK, slot, true);
    }

    fn insert(&mut self, key: u64, slot: u64, newer: bool) {
        if self.segments.is_empty() {
            self.add_segment();
        }
        let (tag, new) = (tag_of(key), entry(key, slot));
        let i = self.bucket_of(key);
        let Some(bucket) = self.bucket_mut(i) else { return };
        let mut added = false;
        if let Some(e) = bucket.iter_mut().find(|e| **e != 0 && **e >> SLOT_BITS == tag) {
            if !newer || *e == new {
                return;
            }
            *e = new;
        } else if let Some(e) = bucket.iter_mut().find(|e| **e == 0) {
            *e = new;
            added = true;
        } else if newer {
            // Any of them; which one differs from time to time.
            bucket[(slot ^ key >> 20) as usize % WAYS] = new;
        }
        self.changes += 1;
        if added {
            self.used += 1;
            // Buckets that are yet to be split have up to twice as many as others.
            if self.used > self.buckets() * 3 {
                self.grow();
            }
        }
    }

    fn add_segment(&mut self) {
        self.segments.push(vec![0; SEGMENT as usize * WAYS].into());
    }

    /// Has so many buckets, if there may be as many.
    fn make_room(&mut self, buckets: u64) {
        if self.segments.is_empty() {
            self.add_segment();
        }
        while self.buckets() < buckets.min(self.most as u64 * SEGMENT) {
            self.grow();
        }
    }

    /// Splits one bucket into two.
    fn grow(&mut self) {
        let new = self.buckets();
        if new / SEGMENT >= self.segments.len() as u64 {
            if self.segments.len() >= self.most {
                return;
            }
            self.add_segment();
        }
        let (old, bit) = (self.split, self.level - LOW + SLOT_BITS);
        let mut moved = [0; WAYS];
        if let Some(from) = self.bucket_mut(old) {
            for (e, to) in from.iter_mut().zip(&mut moved) {
                if *e >> bit & 1 == 1 {
                    *to = std::mem::take(e);
                }
            }
        }
        if let Some(to) = self.bucket_mut(new) {
            to.copy_from_slice(&moved);
        }
        self.split += 1;
        if self.split == 1 << self.level {
            self.level += 1;
            self.split = 0;
        }
    }

    /// Entries changed since the last call.
    pub(super) fn take_changes(&mut self) -> u64 {
        std::mem::take(&mut self.changes)
    }

    /// Puts them back: they could not be kept.
    pub(super) fn add_changes(&mut self, n: u64) {
        self.changes += n;
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Blocks that all of it takes.
    pub(super) fn blocks(&self) -> u64 {
        self.buckets().div_ceil(KEPT)
    }

    /// Block `n` of what is kept: complete in itself.
    pub(super) fn keep(&self, n: u64, to: &mut [u8; BLOCK]) {
        to.fill(0);
        to[8..12].copy_from_slice(&MAGIC.to_le_bytes());
        to[12..16].copy_from_slice(&((n * KEPT) as u32).to_le_bytes());
        to[16..20].copy_from_slice(&(self.blocks() as u32).to_le_bytes());
        for b in 0..KEPT {
            let Some(bucket) = self.bucket(n * KEPT + b) else { break };
            let at = HEAD + b as usize * WAYS * 8;
            for (e, to) in bucket.iter().zip(to[at..].chunks_exact_mut(8)) {
                to.copy_from_slice(&e.to_le_bytes());
            }
        }
        let sum = crc64(&to[8..]).to_le_bytes();
        to[..8].copy_from_slice(&sum);
    }

    /// Takes in what was kept, where nothing newer is known; how many blocks there are of it. `None`: it is damaged, or none.
    pub(super) fn take_in(&mut self, block: &[u8; BLOCK]) -> Option<u64> {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| block[at + i]));
        let sum = u64::from_le_bytes(std::array::from_fn(|i| block[i]));
        if word(8) != MAGIC || sum != crc64(&block[8..]) {
            return None;
        }
        let (first, blocks) = (u64::from(word(12)), u64::from(word(16)));
        // So that its entries come to the buckets that they were in.
        self.make_room(first + KEPT);
        for b in 0..KEPT {
            let at = HEAD + b as usize * WAYS * 8;
            for e in block[at..at + WAYS * 8].as_chunks::<8>().0 {
                let e = u64::from_le_bytes(*e);
                if e & SLOT_MASK != 0 {
                    let key = e >> SLOT_BITS << LOW | (first + b) & (SEGMENT - 1);
                    self.insert(key, (e & SLOT_MASK) - 1, false);
                }
            }
        }
        Some(blocks)
    }
}

/// Any bytes as a block of what was kept: for fuzzing. Whether it was taken for one.
pub(super) fn fuzz(data: &[u8]) -> bool {
    let mut block = [0; BLOCK];
    data.iter().zip(&mut block).for_each(|(from, to)| *to = *from);
    let mut index = Index::new(16 << 10);
    let mut taken = index.take_in(&block).is_some();
    // Nobody guesses checksums.
    block[8..12].copy_from_slice(&MAGIC.to_le_bytes());
    let sum = crc64(&block[8..]).to_le_bytes();
    block[..8].copy_from_slice(&sum);
    taken |= index.take_in(&block).is_some() && index.used() > 0;
    let most = KEPT * WAYS as u64 * 2;
    assert!(index.used() <= most, "more than there was");
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_base::Prng;

    #[test]
    fn what_was_put_is_found_while_there_is_room() {
        let mut index = Index::new(1 << 20);
        let mut prng = Prng::new(1);
        assert_eq!((index.get(5), index.blocks()), (None, 0));
        let all: Vec<(u64, u64)> = (0..60_000).map(|i| (prng.next_u64(), i)).collect();
        for (hash, slot) in &all {
            index.put(*hash, *slot);
        }
        let found = all.iter().filter(|(h, s)| index.get(*h) == Some(*s)).count();
        assert!(found > 58_000, "{found}");
        let wrong = (0..60_000).filter(|_| index.get(prng.next_u64()).is_some()).count();
        assert!(wrong < 300, "{wrong}");
        // Newer places count.
        index.put(all[59_999].0, 7);
        assert_eq!(index.get(all[59_999].0), Some(7));
    }

    #[test]
    fn memory_is_bounded_and_grows_with_use() {
        let mut index = Index::new(256 << 10);
        let mut prng = Prng::new(2);
        for n in 0..200_000 {
            index.put(prng.next_u64(), n);
            let most = 1 + (n / 3 / SEGMENT) as usize;
            assert!(index.segments.len() <= most.min(4), "{n}");
        }
        assert_eq!(index.segments.len(), 4);
        // What came last is there.
        let hash = prng.next_u64();
        index.put(hash, SLOT_MASK - 2);
        assert_eq!(index.get(hash), Some(SLOT_MASK - 2));
    }

    #[test]
    fn what_is_kept_is_taken_in_again() {
        let (mut a, mut b) = (Index::new(1 << 20), Index::new(1 << 20));
        let mut prng = Prng::new(3);
        let all: Vec<u64> = (0..50_000).map(|_| prng.next_u64()).collect();
        all.iter().zip(0..).for_each(|(h, n)| a.put(*h, n));
        b.put(all[3], 99);
        let mut block = [0; BLOCK];
        assert_eq!(b.take_in(&block), None);
        for n in 0..a.blocks() {
            a.keep(n, &mut block);
            let mut bad = block;
            bad[prng.below(BLOCK as u64) as usize] ^= 8;
            assert_eq!(b.take_in(&bad), None);
            assert_eq!(b.take_in(&block), Some(a.blocks()));
        }
        assert_eq!(b.get(all[3]), Some(99), "it was newer");
        let same = all.iter().filter(|h| a.get(**h).is_some() && a.get(**h) == b.get(**h)).count();
        assert!(same > 47_000, "{same}");
    }
}
