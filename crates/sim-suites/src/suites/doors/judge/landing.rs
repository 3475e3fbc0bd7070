//! Writes from their start to their end, and what of them lands on the medium.

use super::Judge;
use crate::suites::doors::book::{Content, WRITE};
use crate::suites::doors::node::BRP;
use weir_base::Nanos;
use weir_sim::check::blocks::{self, BLOCK, fill_block, read_block};

/// Where a write stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Its end is not known.
    Open,
    /// It was done, or ended: nothing of it happens any more.
    Over(Nanos),
    /// It was refused: nothing of it happens at all.
    Refused,
}

pub(super) struct Write {
    path: usize,
    epoch: u32,
    volume: u32,
    first: u64,
    count: u64,
    begun: Nanos,
    /// When its message was handed to the network.
    sent: Option<Nanos>,
    /// Of a COMPARE AND WRITE: what must be there.
    expects: Option<Content>,
    end: End,
    landed: u64,
}

impl Judge {
    /// A write begins. Gives its number, which is what its blocks hold.
    pub(in crate::suites::doors) fn begin_write(
        &self,
        path: usize,
        volume: u32,
        first: u64,
        count: u64,
        expects: Option<Content>,
    ) -> u64 {
        let mut all = self.writes.borrow_mut();
        all.push(Write {
            path,
            epoch: self.paths[path].epoch.get(),
            volume,
            first,
            count,
            begun: self.now(),
            sent: None,
            expects,
            end: End::Open,
            landed: 0,
        });
        all.len() as u64
    }

    /// The data of a write.
    pub(in crate::suites::doors) fn data(&self, number: u64) -> Vec<u8> {
        let all = self.writes.borrow();
        let w = &all[number as usize - 1];
        let mut out = vec![0; w.count as usize * BLOCK];
        for (i, b) in out.chunks_mut(BLOCK).enumerate() {
            fill_block(b, w.volume, w.first + i as u64, number);
        }
        out
    }

    fn write<R>(&self, number: u64, f: impl FnOnce(&mut Write) -> R) -> R {
        f(&mut self.writes.borrow_mut()[number as usize - 1])
    }

    /// Its message is handed to the network.
    pub(in crate::suites::doors) fn sent(&self, number: u64) {
        let now = self.now();
        self.write(number, |w| {
            w.sent = Some(now);
            w.epoch = self.paths[w.path].epoch.get();
        });
    }

    /// It ended with GOOD.
    pub(in crate::suites::doors) fn done(&self, number: u64) {
        let now = self.now();
        let (landed, count, what) = self.write(number, |w| {
            w.end = End::Over(now);
            (w.landed, w.count, (w.volume, w.first, w.begun))
        });
        if landed != u64::MAX >> (64 - count) {
            self.wrong(format!(
                "write {number} {what:?} was acknowledged, but only blocks {landed:b} are written"
            ));
        }
    }

    /// It ended otherwise: nothing more of it happens.
    pub(in crate::suites::doors) fn over(&self, number: u64) {
        let now = self.now();
        self.write(number, |w| w.end = End::Over(now));
    }

    /// It was refused. One that was done in part when an end came to it has asked again.
    pub(in crate::suites::doors) fn refused(&self, number: u64) {
        let now = self.now();
        let (landed, volume, begun) = self.write(number, |w| {
            w.end = End::Refused;
            (w.landed, w.volume, w.begun)
        });
        if landed != 0 && !self.with(volume, |b| b.was_fenced(begun, now)) {
            self.wrong(format!("write {number} was refused, but blocks {landed:b} are written"));
        }
    }

    /// It was refused when it was sent for the last time; before that it may have been done.
    pub(in crate::suites::doors) fn refused_again(&self, number: u64) {
        self.over(number);
    }

    /// A block is written on the medium, by the handle that `volume` was opened with.
    pub(in crate::suites::doors) fn land(
        &self,
        slot: usize,
        handle: u32,
        block: u64,
        bytes: Option<&[u8]>,
    ) {
        let now = self.now();
        let owner = self.owners.borrow()[slot];
        if owner != Some(handle) {
            let found = bytes.map(read_block);
            self.wrong(format!(
                "a write to volume {handle} lands in place {slot}, which belongs to {owner:?}: block {block}, {found:?}"
            ));
            return;
        }
        let content = match bytes.map(read_block) {
            None | Some(blocks::Content::Zero) => 0,
            Some(blocks::Content::Written { volume, block: b, write }) => {
                if (volume, b) != (handle, block) {
                    return self.wrong(format!(
                        "write {write} to block {b} of volume {volume} lands on block {block} of volume {handle}"
                    ));
                }
                if let Err(why) = self.may_land(write, block, now) {
                    self.wrong(format!(
                        "write {write} lands on block {block} of volume {handle}, {why}"
                    ));
                }
                write
            }
            Some(blocks::Content::Mixed { at }) => {
                return self.wrong(format!(
                    "a torn block, at {at}, lands on block {block} of volume {handle}"
                ));
            }
        };
        let blocks = self.with(handle, |b| {
            b.landed(block, content, now);
            b.blocks
        });
        if block >= blocks {
            self.wrong(format!(
                "write {content} lands on block {block} of volume {handle}, which has {blocks}"
            ));
        }
    }

    fn may_land(&self, number: u64, block: u64, now: Nanos) -> Result<(), String> {
        let mut all = self.writes.borrow_mut();
        let Some(w) = (number as usize).checked_sub(1).and_then(|n| all.get_mut(n)) else {
            return Err("though it never was".to_string());
        };
        let bit = block
            .checked_sub(w.first)
            .filter(|b| *b < w.count)
            .ok_or("where it was not meant for")?;
        let again = w.landed >> bit & 1 != 0;
        w.landed |= 1 << bit;
        match w.end {
            End::Open => {}
            End::Over(at) => return Err(format!("which is over since {at}")),
            End::Refused => return Err("though it was refused".to_string()),
        }
        let p = &self.paths[w.path];
        let mut newest = self.newest.borrow_mut();
        let newest = newest.entry((w.path, w.volume)).or_insert(w.epoch);
        // What a lost channel left with a slow device comes before all that the next one writes there.
        let lingers = p.pair.1 != BRP && w.epoch >= *newest;
        *newest = w.epoch.max(*newest);
        if w.epoch < p.epoch.get() && !(self.lingers.get() && lingers) {
            return Err(format!(
                "though path {} has logged in since, it is of {}",
                w.path, w.begun
            ));
        }
        let books = self.books.borrow();
        let b = &books[w.volume as usize - 1];
        if let Some(expected) = w.expects {
            let found = b.content(block);
            if again {
                return Err("a second time, and it is a COMPARE AND WRITE".to_string());
            }
            if found != expected {
                return Err(format!("a COMPARE AND WRITE that compared {expected}, over {found}"));
            }
        }
        let (since, why) = b.admitted_since(p.pair, now);
        let arrived = now.min(self.arrived_by(p.host, w.sent));
        let from = w.begun.max(since);
        if from > arrived {
            return Err(format!(
                "sent by path {} at {:?}, though everything before {since} was ended by {why}",
                w.path, w.sent
            ));
        }
        // An end counts for what has come. Whether a command may run is looked at when it runs: until then it may wait, for
        // a buffer of its descriptors or for what a lost channel has left with the device. SPC-4 has a reservation apply to
        // what comes after it is confirmed, and leaves it to the target which of the commands that it has already it applies to.
        if b.possible(w.path, from, now) & WRITE == 0 {
            return Err(format!(
                "though path {} (nexus {:?}) may not write from {from} (begun {}, {why}) to {now}; it is {:?}",
                w.path,
                p.pair,
                w.begun,
                b.orders.guess()
            ));
        }
        Ok(())
    }
}
