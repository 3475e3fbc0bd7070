//! What lies where in the volume below, and what records of slots say (docs/format.md).

use crate::sum::own_sum;
use weir_mem::Slice;

/// Chunks of a group.
pub(super) const PER: u64 = 256;
/// Slots of a group: first those of its chunks, their homes, then as many others.
pub(super) const SLOTS: u64 = 2 * PER;
/// Bytes in front of the first group: the summary, and what is kept of the index.
pub(super) const FRONT: u64 = 1 << 30;
/// Bytes of the records of a group.
pub(super) const META: usize = 4096;
/// What a count cannot get beyond.
pub(super) const MOST: u32 = (1 << 24) - 1;
const REF_BITS: u32 = 40;
const ZEROS: u64 = (1 << REF_BITS) - 1;
/// Slots that references can name.
const SLOTS_MOST: u64 = ZEROS - 1;

/// Where a chunk's data is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In the chunk's own slot.
    Home,
    /// It is zeros, whatever its slot holds.
    Zeros,
    /// In another slot.
    Slot(u64),
}

/// What is kept of a slot: how often chunks refer to it that it is not the home of, at most; and if it is a home, where
/// the data of its chunk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Record(pub(super) u64);

impl Record {
    pub(super) fn count(self) -> u32 {
        (self.0 >> REF_BITS) as u32
    }

    pub(super) fn place(self) -> Place {
        match self.0 & ZEROS {
            0 => Place::Home,
            ZEROS => Place::Zeros,
            n => Place::Slot(n - 1),
        }
    }

    pub(super) fn with_count(self, count: u32) -> Record {
        Record(self.0 & ZEROS | u64::from(count.min(MOST)) << REF_BITS)
    }

    pub(super) fn with_place(self, place: Place) -> Record {
        let bits = match place {
            Place::Home => 0,
            Place::Zeros => ZEROS,
            Place::Slot(n) => n.min(SLOTS_MOST - 1) + 1,
        };
        Record(self.0 & !ZEROS | bits)
    }

    /// Chunks that this record, which is number `k` of its group, saves: one for a reference, less one for a slot that
    /// is used without its own chunk. The sum over all records is what all of it saves.
    pub(super) fn saves(self, k: usize) -> i64 {
        let home = (k as u64) < PER;
        let refers = home && matches!(self.place(), Place::Slot(_));
        let lodges = self.count() > 0 && !(home && self.place() == Place::Home);
        i64::from(refers) - i64::from(lodges)
    }
}

/// Where things are in the volume below, if chunks have 2^`shift` bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub(super) shift: u8,
}

impl Layout {
    pub(super) fn chunk(self) -> u64 {
        1 << self.shift
    }

    /// Bytes from a group to the next: its records, slots that are nobody's home, homes.
    fn group_len(self) -> u64 {
        (1 + SLOTS) << self.shift
    }

    /// Groups that are as a whole in so many bytes from where one begins.
    pub(super) fn groups_in(self, len: u64) -> u64 {
        len / self.group_len()
    }

    /// Where a group begins; its records are there.
    pub(super) fn group(self, group: u64) -> u64 {
        FRONT.saturating_add(group.saturating_mul(self.group_len()))
    }

    /// Where a slot begins.
    pub(super) fn slot(self, slot: u64) -> u64 {
        let k = slot % SLOTS;
        // Homes come last, so that the last group ends with the last chunk.
        let place = if k < PER { 1 + PER + k } else { 1 + k - PER };
        self.group(slot / SLOTS) + (place << self.shift)
    }

    pub(super) fn stored_len(self, len: u64) -> u64 {
        let whole = PER << self.shift;
        let rest = match len % whole {
            0 => 0,
            r => ((1 + PER) << self.shift) + r,
        };
        self.group(len / whole).saturating_add(rest)
    }

    pub(super) fn seen_len(self, stored: u64) -> u64 {
        let stored = stored.saturating_sub(FRONT);
        let rest = (stored % self.group_len()).saturating_sub((1 + PER) << self.shift);
        stored / self.group_len() * (PER << self.shift) + rest
    }
}

/// The slot that is a chunk's home.
pub(super) fn home(chunk: u64) -> u64 {
    chunk / PER * SLOTS + chunk % PER
}

/// The chunk whose home a slot is.
pub(super) fn owner(slot: u64) -> Option<u64> {
    (slot % SLOTS < PER).then_some(slot / SLOTS * PER + slot % SLOTS)
}

/// Whether a record of chunk `chunk` makes sense in a volume with so many whole chunks; `all` are the records of its
/// group.
pub(super) fn is_sound(
    record: Record,
    chunk: u64,
    all: &[Record],
    whole: u64,
    groups: u64,
) -> bool {
    let Place::Slot(s) = record.place() else { return true };
    let there = match owner(s) {
        Some(o) => o < whole && o != chunk,
        None => s / SLOTS < groups,
    };
    let near = s / SLOTS == chunk / PER;
    there && !(near && all.get((s % SLOTS) as usize).is_none_or(|r| r.count() == 0))
}

/// What the first block says of the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Summary {
    /// Counts may be too high: they were being changed.
    pub(super) open: bool,
    /// Chunks saved.
    pub(super) saved: i64,
}

const MAGIC: &[u8; 8] = b"WRdedup\x02";
/// Bytes of a summary.
pub(super) const SUMMARY: usize = 32;

impl Summary {
    pub(super) fn encode(self, shift: u8) -> [u8; SUMMARY] {
        let mut b = [0; SUMMARY];
        b[..8].copy_from_slice(MAGIC);
        (b[8], b[9]) = (u8::from(self.open), shift);
        b[16..24].copy_from_slice(&self.saved.to_le_bytes());
        let sum = own_sum(&b[..28]).to_le_bytes();
        b[28..].copy_from_slice(&sum);
        b
    }

    /// `None`: it is damaged, or of another size of chunks.
    pub(super) fn decode(b: &[u8; SUMMARY], shift: u8) -> Option<Summary> {
        if *b == [0; SUMMARY] {
            return Some(Summary::default());
        }
        let sum = u32::from_le_bytes([b[28], b[29], b[30], b[31]]);
        if b[..8] != *MAGIC || b[9] != shift || sum != own_sum(&b[..28]) {
            return None;
        }
        let saved = i64::from_le_bytes(std::array::from_fn(|i| b[16 + i]));
        Some(Summary { open: b[8] != 0, saved })
    }
}

/// A record in a block of them.
pub(super) fn read_record(block: &Slice, k: usize) -> Record {
    let mut b = [0; 8];
    block.read_at(k * 8, &mut b);
    Record(u64::from_le_bytes(b))
}

pub(super) fn write_record(block: &Slice, k: usize, r: Record) {
    block.write_at(k * 8, &r.0.to_le_bytes());
}

/// Any bytes as records, a summary, and a block of the index: for fuzzing. Whether something was taken for sound.
pub(super) fn fuzz(data: &[u8]) -> bool {
    let mut all = [Record::default(); SLOTS as usize];
    for (r, b) in all.iter_mut().zip(data.chunks_exact(8)) {
        *r = Record(b.iter().fold(0, |a, b| a << 8 | u64::from(*b)));
    }
    let (whole, groups) = (1000, 4);
    let mut any = false;
    for (k, r) in all.iter().enumerate() {
        assert_eq!(r.with_count(r.count()).with_place(r.place()), *r);
        assert!((-1..=1).contains(&r.saves(k)));
        let chunk = k as u64 + PER;
        if k < PER as usize && is_sound(*r, chunk, &all, whole, groups) {
            let layout = Layout { shift: 12 };
            if let Place::Slot(s) = r.place() {
                assert!(s != home(chunk) && s < groups * SLOTS);
                let end = layout.slot(s) + layout.chunk();
                assert!(end <= layout.stored_len(whole << 12), "{s} is not there");
                any = true;
            }
        }
    }
    let mut b = [0; SUMMARY];
    data.iter().zip(&mut b).for_each(|(from, to)| *to = *from);
    any |= b != [0; SUMMARY] && Summary::decode(&b, 12).is_some();
    any | super::index::fuzz(data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_base::Prng;

    #[test]
    fn lengths_go_both_ways_and_slots_do_not_meet() {
        for shift in [12, 15, 17] {
            let l = Layout { shift };
            let c = l.chunk();
            for len in [0, 512, 4096, c, c + 512, 255 * c, 256 * c, 257 * c + 512, 1 << 40] {
                assert_eq!(l.seen_len(l.stored_len(len)), len, "{shift} {len}");
            }
            let mut all: Vec<u64> = (0..3 * SLOTS).map(|s| l.slot(s)).collect();
            all.extend((0..3).map(|g| l.group(g)));
            all.sort_unstable();
            assert!(all.windows(2).all(|w| w[0] + c == w[1]) && all[0] == FRONT);
            for chunk in [0, 1, 255, 256, 1000] {
                assert_eq!(owner(home(chunk)), Some(chunk));
                assert_eq!(l.slot(home(chunk)) + 512, l.stored_len(chunk * c + 512));
            }
            assert_eq!(owner(256), None);
        }
        assert!(Layout { shift: 12 }.stored_len(u64::MAX) > 1 << 63, "too much is not little");
    }

    #[test]
    fn records_keep_what_is_put_into_them() {
        for place in [Place::Home, Place::Zeros, Place::Slot(0), Place::Slot(SLOTS_MOST - 1)] {
            for count in [0, 1, 77, MOST] {
                let r = Record::default().with_place(place).with_count(count);
                assert_eq!((r.place(), r.count()), (place, count));
            }
        }
        assert_eq!(Record::default(), Record::default().with_place(Place::Home));
        assert_eq!(Record::default().with_count(u32::MAX).count(), MOST);
    }

    #[test]
    fn what_is_saved_is_references_less_lodgers() {
        let r = |place, count| Record::default().with_place(place).with_count(count);
        assert_eq!(r(Place::Home, 5).saves(3), 0);
        assert_eq!(r(Place::Slot(9), 0).saves(3), 1);
        assert_eq!(r(Place::Slot(9), 2).saves(3), 0);
        assert_eq!(r(Place::Zeros, 2).saves(3), -1);
        assert_eq!(r(Place::Home, 2).saves(300), -1);
        assert_eq!(r(Place::Home, 0).saves(300), 0);
    }

    #[test]
    fn summaries() {
        let s = Summary { open: true, saved: -5 };
        let b = s.encode(12);
        assert_eq!(Summary::decode(&b, 12), Some(s));
        assert_eq!(Summary::decode(&b, 13), None);
        assert_eq!(Summary::decode(&[0; SUMMARY], 12), Some(Summary::default()));
        for i in 0..SUMMARY * 8 {
            let mut bad = b;
            bad[i / 8] ^= 1 << (i % 8);
            assert_eq!(Summary::decode(&bad, 12), None, "bit {i}");
        }
    }

    #[test]
    fn anything_may_be_there() {
        let mut prng = Prng::new(1);
        let mut sound = 0;
        for _ in 0..500 {
            let mut data = vec![0; prng.between(0, 4096) as usize];
            prng.fill(&mut data);
            // Small numbers, so that some are references to what there is.
            data.chunks_mut(8).for_each(|b| b.iter_mut().take(7).skip(3).for_each(|b| *b &= 1));
            sound += u32::from(fuzz(&data));
        }
        assert!(sound > 0);
    }
}
