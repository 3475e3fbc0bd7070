//! Is what was read from a volume what some order of the writes explains?
//!
//! Every 512-byte block is a register. Writes have unique values ([`blocks`](super::blocks)), so each
//! read names one write, and linearizability can be decided from *zones* (Gibbons, Korach, "Testing
//! shared memories", 1997): of each value that was certainly there, the time from the first end to the last
//! start among its write and its reads. A value whose first end lies before its last start was there all
//! the time between; two such spans must not overlap, and no value may have come and gone inside another's.
//!
//! Reads count like writes: once a new value was seen, the old one never comes back, also if the write of
//! the new one failed and nobody knows whether it was done.

use super::blocks::{BLOCK, Content, fill_block, place, read_block};
use std::collections::BTreeMap;
use weir_base::Nanos;

/// Names a write. Never 0; unique in its history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub u64);

/// The zeros before the first write.
const INITIAL: u64 = 0;

/// What was read cannot be explained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Block number.
    pub block: u64,
    /// What is wrong, with the writes and times that show it.
    pub what: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "block {}: {}", self.block, self.what)
    }
}

impl std::error::Error for Violation {}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// Not answered: it may take effect now or later.
    Open,
    /// Given up at this time: it may have taken effect, may do so later, or never.
    Unknown(Nanos),
    /// As before, but not any more after this time.
    Settled(Nanos),
    Acked(Nanos),
    /// Certainly without effect.
    Refused,
}

struct Write {
    first: u64,
    count: u64,
    start: Nanos,
    outcome: Outcome,
    zeros: bool,
    /// Nothing that happens makes it go away any more.
    durable: bool,
}

/// What is known of one value of one block.
#[derive(Debug, Clone, Copy)]
struct Zone {
    write: u64,
    /// Start of the write.
    start: Nanos,
    /// Earliest end of an operation that shows the value to have been there. `None`: nothing shows it.
    first_end: Option<Nanos>,
    /// Latest start of such an operation.
    last_start: Nanos,
}

impl Zone {
    fn span(&self) -> Option<(Nanos, Nanos)> {
        self.first_end.map(|f| (f, self.last_start))
    }
}

/// Why a value cannot have been there.
enum Misfit {
    /// It was gone for good.
    Gone,
    /// Another write's value was there.
    Excluded { start: Nanos, by: u64 },
}

/// Two values whose zones exclude each other.
fn conflict(a: &Zone, b: &Zone) -> bool {
    let (Some((fa, la)), Some((fb, lb))) = (a.span(), b.span()) else { return false };
    match (fa < la, fb < lb) {
        // Both were there for a while: not at the same time.
        (true, true) => fa.max(fb) < la.min(lb),
        // One was there for a while, and the other came and went meanwhile.
        (true, false) => fa < lb && fb < la,
        (false, true) => fb < la && fa < lb,
        (false, false) => false,
    }
}

/// The values of one block.
struct Register {
    zones: Vec<Zone>,
}

/// The history of one volume.
///
/// Times are of one clock, and a call's times lie between its submission and its completion.
pub struct BlockHistory {
    volume: u32,
    writes: BTreeMap<u64, Write>,
    next: u64,
    blocks: BTreeMap<u64, Register>,
    reads: u64,
    volatile: bool,
    /// The last power cut: values from before it have been there since, or are gone.
    epoch: Nanos,
}

impl BlockHistory {
    /// The history of a volume of zeros. `volume` tells volumes apart in their blocks.
    pub fn new(volume: u32) -> Self {
        BlockHistory {
            volume,
            writes: BTreeMap::new(),
            next: 1,
            blocks: BTreeMap::new(),
            reads: 0,
            volatile: false,
            epoch: 0,
        }
    }

    /// As [`new`](BlockHistory::new), of a volume that may lose acknowledged writes with power until a
    /// flush.
    pub fn volatile(volume: u32) -> Self {
        BlockHistory { volatile: true, ..BlockHistory::new(volume) }
    }

    fn begin(&mut self, first: u64, count: u64, at: Nanos, zeros: bool) -> WriteId {
        let id = self.next;
        self.next += 1;
        let w = Write { first, count, start: at, outcome: Outcome::Open, zeros, durable: false };
        self.writes.insert(id, w);
        for b in first..first + count {
            let zone = Zone { write: id, start: at, first_end: None, last_start: at };
            self.register(b).zones.push(zone);
        }
        WriteId(id)
    }

    fn register(&mut self, block: u64) -> &mut Register {
        self.blocks.entry(block).or_insert_with(|| {
            let zeros = Zone { write: INITIAL, start: 0, first_end: Some(0), last_start: 0 };
            Register { zones: vec![zeros] }
        })
    }

    /// A write of `count` blocks from block `first` begins.
    pub fn begin_write(&mut self, first: u64, count: u64, at: Nanos) -> WriteId {
        self.begin(first, count, at, false)
    }

    /// A write of zeros, or a discard on a volume where discarded blocks read as zeros, begins.
    pub fn begin_zero(&mut self, first: u64, count: u64, at: Nanos) -> WriteId {
        self.begin(first, count, at, true)
    }

    /// Fills `out` with the data of a write, from its first block on.
    ///
    /// # Panics
    /// When `out` is not in whole blocks or longer than the write.
    pub fn fill(&self, id: WriteId, out: &mut [u8]) {
        let w = &self.writes[&id.0];
        assert!(out.len().is_multiple_of(BLOCK) && (out.len() / BLOCK) as u64 <= w.count);
        for (i, b) in out.chunks_mut(BLOCK).enumerate() {
            fill_block(b, self.volume, w.first + i as u64, id.0);
        }
    }

    fn write(&mut self, id: WriteId) -> &mut Write {
        self.writes.get_mut(&id.0).expect("a write of this history")
    }

    /// The write was acknowledged.
    ///
    /// # Errors
    /// When what was read meanwhile excludes that.
    pub fn acked(&mut self, id: WriteId, at: Nanos) -> Result<(), Violation> {
        let durable = !self.volatile;
        let w = self.write(id);
        w.outcome = Outcome::Acked(at);
        w.durable |= durable;
        let blocks = w.first..w.first + w.count;
        blocks.into_iter().try_for_each(|b| self.learn(b, id.0, at, None))
    }

    /// The write failed at `at`, or nobody will ever know: it may have been done, in whole blocks, and may
    /// be done yet, until it is [`settled`](BlockHistory::settled). A write that is never mentioned again is the same.
    pub fn unknown(&mut self, id: WriteId, at: Nanos) {
        self.write(id).outcome = Outcome::Unknown(at);
    }

    /// From `at` on, a write of unknown outcome has been done or never will: its initiator or target is
    /// gone, or it was aborted.
    pub fn settled(&mut self, id: WriteId, at: Nanos) {
        let w = self.write(id);
        if matches!(w.outcome, Outcome::Open | Outcome::Unknown(_)) {
            w.outcome = Outcome::Settled(at);
        }
    }

    /// As [`settled`](BlockHistory::settled), for all writes that have no answer.
    pub fn settle_all(&mut self, at: Nanos) {
        let open = |w: &Write| matches!(w.outcome, Outcome::Open | Outcome::Unknown(_));
        for w in self.writes.values_mut().filter(|w| open(w)) {
            w.outcome = Outcome::Settled(at);
        }
    }

    /// As [`settled`](BlockHistory::settled), if the write was given up before `before`; tells whether it was.
    pub fn settle_unknown(&mut self, id: WriteId, before: Nanos, at: Nanos) -> bool {
        let w = self.write(id);
        let early = matches!(w.outcome, Outcome::Unknown(t) if t <= before);
        if early {
            w.outcome = Outcome::Settled(at);
        }
        early
    }

    /// Whether nothing of the write may happen any more: it was answered, refused or [`settled`](BlockHistory::settled).
    pub fn is_over(&self, id: WriteId) -> bool {
        let outcome = self.writes.get(&id.0).map(|w| w.outcome);
        !matches!(outcome, None | Some(Outcome::Open | Outcome::Unknown(_)))
    }

    /// The write failed and certainly changed nothing.
    pub fn refused(&mut self, id: WriteId) {
        self.write(id).outcome = Outcome::Refused;
    }

    /// A flush that began at `start` was acknowledged: what had been acknowledged before it is durable.
    pub fn flushed(&mut self, start: Nanos) {
        for w in self.writes.values_mut() {
            w.durable |= matches!(w.outcome, Outcome::Acked(t) if t <= start);
        }
    }

    /// The write is durable by itself (forced unit access).
    pub fn forced(&mut self, id: WriteId) {
        self.write(id).durable = true;
    }

    /// The volume lost power at `at`: what is unknown is settled, and if it is volatile, writes that are not
    /// durable may be gone, all of them or some, each block by itself.
    pub fn power_cut(&mut self, at: Nanos) {
        self.settle_all(at);
        if !self.volatile {
            return;
        }
        let (writes, last_cut) = (&self.writes, self.epoch);
        for r in self.blocks.values_mut() {
            // What was seen after the cut before, and is older than it, had been on the medium then; no
            // other value of that time can come back.
            let survivor = |z: &Zone| last_cut > 0 && z.start <= last_cut && z.first_end.is_some();
            if r.zones.iter().any(survivor) {
                r.zones.retain(|z| z.start > last_cut || survivor(z));
            }
            let old = r.zones.clone();
            // Certainly over before a durable value was begun: gone for good.
            let over = |z: &Zone| {
                let before_last_cut = (last_cut > 0 && z.start <= last_cut).then_some(last_cut);
                let end = z.first_end.or(before_last_cut);
                old.iter().any(|d| {
                    d.write != z.write
                        && d.write != INITIAL
                        && writes[&d.write].durable
                        && end.is_some_and(|f| f < d.start)
                })
            };
            r.zones.retain(|z| !over(z));
            // Any of the rest may be what is there now. Nothing is known of them but that.
            for z in &mut r.zones {
                z.first_end = None;
                z.start = at;
                z.last_start = at;
            }
        }
        self.epoch = at;
        for w in self.writes.values_mut() {
            if matches!(w.outcome, Outcome::Acked(_)) {
                w.outcome = Outcome::Settled(at);
            }
        }
    }

    /// Lets go of what cannot matter any more, when every operation that will yet be reported began at
    /// `t` or later. A value that is gone for good is then simply not known any more.
    pub fn forget_before(&mut self, t: Nanos) {
        let writes = &self.writes;
        for r in self.blocks.values_mut().filter(|r| r.zones.len() > 4) {
            // The latest write that was certainly in place before `t`, and for good.
            let in_place = |z: &&Zone| {
                z.first_end.is_some_and(|f| f < t)
                    && writes.get(&z.write).is_some_and(|w| w.durable)
            };
            let Some(by) = r.zones.iter().filter(in_place).map(|z| z.start).max() else { continue };
            r.zones.retain(|z| {
                let end = match (z.first_end, writes.get(&z.write).map(|w| w.outcome)) {
                    (Some(f), _) => f.max(z.last_start),
                    (None, Some(Outcome::Settled(at))) => at.max(z.start),
                    (None, Some(Outcome::Refused)) => z.start,
                    (None, _) => return true,
                };
                end >= by
            });
        }
    }

    /// Checks what a read of whole blocks from block `first` on returned.
    ///
    /// # Errors
    /// The first block that no order of the writes explains.
    pub fn read(
        &mut self,
        first: u64,
        bytes: &[u8],
        start: Nanos,
        end: Nanos,
    ) -> Result<(), Violation> {
        assert!(bytes.len().is_multiple_of(BLOCK), "whole blocks");
        for (i, b) in bytes.chunks(BLOCK).enumerate() {
            self.read_one(first + i as u64, b, start, end)?;
        }
        Ok(())
    }

    /// Blocks that were checked.
    pub fn reads(&self) -> u64 {
        self.reads
    }

    fn read_one(
        &mut self,
        block: u64,
        bytes: &[u8],
        start: Nanos,
        end: Nanos,
    ) -> Result<(), Violation> {
        self.reads += 1;
        let bad =
            |what: String| Err(Violation { block, what: format!("{what}; read {start}..{end}") });
        match read_block(bytes) {
            Content::Zero => self.read_zeros(block, start, end),
            Content::Mixed { at } => bad(format!(
                "bytes of different origin, the first at offset {at}: {:02x?}",
                &bytes[..32]
            )),
            Content::Written { volume, block: home, write } => {
                if (volume, home) != (self.volume, place(volume, block)) {
                    return bad(format!("holds block {home} of volume {volume}"));
                }
                let Some(w) = self.writes.get(&write) else {
                    return bad(format!("holds write {write}, which never was"));
                };
                if w.outcome == Outcome::Refused {
                    return bad(format!("holds write {write}, which was refused"));
                }
                if w.zeros || end < w.start || !(w.first..w.first + w.count).contains(&block) {
                    return bad(format!("holds write {write}, which cannot be there"));
                }
                self.learn(block, write, end, Some(start))
            }
        }
    }

    /// Zeros name no write: they may be the first zeros or those of any zeroing.
    fn read_zeros(&mut self, block: u64, start: Nanos, end: Nanos) -> Result<(), Violation> {
        self.register(block);
        let zones = &self.blocks[&block].zones;
        let origins: Vec<u64> = zones
            .iter()
            .map(|z| z.write)
            .filter(|w| {
                *w == INITIAL
                    || self
                        .writes
                        .get(w)
                        .is_some_and(|w| w.zeros && w.start <= end && w.outcome != Outcome::Refused)
            })
            .collect();
        let possible: Vec<u64> = origins
            .iter()
            .copied()
            .filter(|w| self.fit(block, *w, end, Some(start)).is_ok())
            .collect();
        match possible[..] {
            [] => Err(Violation {
                block,
                what: format!(
                    "zeros, which no write of zeros explains; read {start}..{end}; {}",
                    self.describe(block)
                ),
            }),
            [only] => self.learn(block, only, end, Some(start)),
            // Not known which: nothing is learned.
            _ => Ok(()),
        }
    }

    /// An operation that ended at `end` shows the value of `write` to have been in `block`; it began at
    /// `start` (a read), or is the write itself.
    fn learn(
        &mut self,
        block: u64,
        write: u64,
        end: Nanos,
        start: Option<Nanos>,
    ) -> Result<(), Violation> {
        let what = match self.fit(block, write, end, start) {
            Ok((index, zone)) => {
                self.register(block).zones[index] = zone;
                return Ok(());
            }
            Err(Misfit::Gone) => format!("write {write} is back, though it was gone for good"),
            Err(Misfit::Excluded { start, by }) => {
                format!("value of write {write} at {start}..{end}, but write {by} excludes it")
            }
        };
        Err(Violation { block, what: format!("{what}; {}", self.describe(block)) })
    }

    /// What is known of the value of `write` with that, and where it is to be kept.
    fn fit(
        &self,
        block: u64,
        write: u64,
        end: Nanos,
        start: Option<Nanos>,
    ) -> Result<(usize, Zone), Misfit> {
        let zones = &self.blocks[&block].zones;
        let index = zones.iter().position(|z| z.write == write).ok_or(Misfit::Gone)?;
        let mut z = zones[index];
        let first_end = match self.writes.get(&write).map(|w| w.outcome) {
            None => end.min(self.epoch),
            // If it was done at all, then before that; or it survived the last power cut.
            Some(Outcome::Settled(t)) => end.min(t.max(z.start)),
            Some(_) => end,
        };
        z.first_end = Some(z.first_end.map_or(first_end, |f| f.min(first_end)));
        z.last_start = z.last_start.max(start.unwrap_or(z.start));
        let other = zones.iter().enumerate().find(|(i, o)| *i != index && conflict(&z, o));
        match other {
            None => Ok((index, z)),
            Some((_, o)) => Err(Misfit::Excluded { start: start.unwrap_or(z.start), by: o.write }),
        }
    }

    /// The values of a block with their zones, for a message.
    fn describe(&self, block: u64) -> String {
        let Some(r) = self.blocks.get(&block) else { return "never written".to_string() };
        let all: Vec<String> = r
            .zones
            .iter()
            .map(|z| {
                let outcome = self.writes.get(&z.write).map(|w| w.outcome);
                format!(
                    "[write {} from {}, {}, first end {:?}, last start {}]",
                    z.write,
                    z.start,
                    outcome.map_or("initial zeros".to_string(), |o| format!("{o:?}")),
                    z.first_end,
                    z.last_start
                )
            })
            .collect();
        all.join(" ")
    }
}

#[cfg(test)]
mod tests;
