//! The log as it is on the devices: read from all halves, united, and proved to have everything that it must have.

use super::device::Device;
use super::log::WINDOW;
use super::together::together;
use super::{Inner, StoreError, StoreResult, block_of};
use crate::format::log::{PageHead, decode_head};
use crate::format::superblock::Superblock;
use crate::format::turn::Standing;
use crate::format::{BLOCK, Block};
use crate::planted::{Bug, has};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use weir_base::IoError;
use weir_mem::Slice;
use weir_reactor::sleep;

/// Pages of one read.
const CHUNK: u64 = 64;
/// Reads of one half under way at once.
const AHEAD: u64 = 8;

/// A page that counts.
pub(super) struct Page {
    pub(super) head: PageHead,
    pub(super) crc: u64,
    pub(super) block: Box<Block>,
}

/// What lives that are over left in the log.
#[derive(Default)]
pub(super) struct OldLog {
    /// Pages that count, by number.
    pub(super) pages: BTreeMap<u64, Page>,
    /// Pages before this one are durable on all halves with their data, all of them.
    pub(super) stable: u64,
    /// Checksum of the page before that.
    pub(super) stable_chain: u64,
    /// One more than the last page.
    pub(super) next: u64,
    /// Checksum of the last page.
    pub(super) chain: u64,
    /// Halves that were read, and of the pages that could not be read there, on how many of them.
    halves: u32,
    unread: BTreeMap<u64, u32>,
    /// Pages of recoveries. A recovery that did not come to its end may have left others under the same number.
    by_recovery: BTreeMap<u64, Vec<Page>>,
}

fn damaged<T>(text: String) -> StoreResult<T> {
    Err(StoreError::Pool(text))
}

fn breaks<T>(lsn: u64) -> StoreResult<T> {
    damaged(format!("page {lsn} of the log does not follow the one before"))
}

fn lost<T>(lsn: u64) -> StoreResult<T> {
    damaged(format!("page {lsn} of the log is lost on every half, though it was acknowledged"))
}

impl OldLog {
    fn add(&mut self, page: Page) {
        let lsn = page.head.lsn;
        if !page.head.recovery {
            self.pages.entry(lsn).or_insert(page);
            return;
        }
        let all = self.by_recovery.entry(lsn).or_default();
        if all.iter().all(|p| p.crc != page.crc) {
            all.push(page);
        }
    }

    /// Of a recovery's pages those count that lead to the last one, which the superblock names by its checksum. Gives
    /// the checksum of the page that the first of them follows.
    fn choose(&mut self, first: u64, sure: u64, chain: u64) -> StoreResult<u64> {
        let mut want = chain;
        for lsn in (first..sure).rev() {
            let all = self.by_recovery.remove(&lsn).unwrap_or_default();
            let Some(page) = all.into_iter().find(|p| p.crc == want) else { return lost(lsn) };
            want = page.head.previous;
            self.pages.insert(lsn, page);
        }
        Ok(want)
    }

    /// Sees to it that all that must be there is there, and follows one from the other.
    fn prove(mut self, s: &Superblock) -> StoreResult<OldLog> {
        let mut chain = s.base_chain;
        for part in s.stretches() {
            if self.choose(part.first, part.sure, part.chain)? != chain {
                return breaks(part.first);
            }
            chain = part.chain;
            let told = self.pages.range(part.sure..).map(|(_, p)| p.head.stable).max();
            let end = part.end.unwrap_or(told.unwrap_or(0).max(part.sure));
            for lsn in part.sure..end {
                let Some(p) = self.pages.get(&lsn) else { return lost(lsn) };
                if p.head.previous != chain {
                    return breaks(lsn);
                }
                chain = p.crc;
            }
            (self.stable, self.stable_chain) = (end, chain);
        }
        // Pages after that may be missing.
        let mut next = self.stable;
        for (lsn, p) in self.pages.range(self.stable..) {
            if *lsn == next && p.head.previous != chain {
                return breaks(*lsn);
            }
            (next, chain) = (*lsn + 1, p.crc);
        }
        (self.next, self.chain) = (next, chain);
        Ok(self)
    }

    /// The page that may follow what was found, and that no half can read: whether it was written nobody knows. Those behind
    /// it were not acknowledged before it.
    fn unknown(&self, end: u64) -> Option<u64> {
        let next = (self.stable..end).find(|n| !self.pages.contains_key(n))?;
        (self.unread.get(&next) == Some(&self.halves)).then_some(next)
    }
}

impl Inner {
    /// Reads the live part of the log.
    pub(super) async fn read_log(&self) -> StoreResult<OldLog> {
        let s = self.durable.borrow().clone();
        let mut halves: Vec<u16> = self.log.set.borrow().clone();
        if has(Bug::ReplayOneLog) {
            halves.truncate(1);
        }
        let found = RefCell::new(OldLog::default());
        let current = |n: &u16| self.device(*n).filter(|d| d.is_current());
        let halves: Vec<Rc<Device>> = halves.iter().filter_map(current).collect();
        // Of a pool that was closed in order, and is as it was then, there is nothing in it.
        let empty = self.options.last == Some(s.chain());
        if halves.is_empty() && !self.options.force && !empty {
            return damaged("no device that has the log is there and current".into());
        }
        let each = halves.iter().map(|d| self.read_half(d, &s, &found));
        for read in together(each).await {
            read?;
        }
        let mut found = found.into_inner();
        found.halves = halves.len() as u32;
        let log = found.prove(&s)?;
        let unknown = log.unknown(s.base_lsn.saturating_add(s.log_pages));
        match unknown.filter(|_| !self.options.force && !has(Bug::UnreadIsUnwritten)) {
            Some(lsn) => damaged(format!(
                "page {lsn} of the log cannot be read on any half, and may be the last one that was acknowledged; \
                 see to the devices, or open by force to go on without it"
            )),
            None => Ok(log),
        }
    }

    /// Adds what one half has.
    async fn read_half(
        &self,
        d: &Device,
        s: &Superblock,
        found: &RefCell<OldLog>,
    ) -> StoreResult<()> {
        let ring = s.log_pages;
        let end = s.base_lsn.saturating_add(ring);
        let (mut lsn, mut last) = (s.base_lsn, s.turns.last().map_or(s.base_lsn, |t| t.sure));
        while lsn < end && lsn <= last.saturating_add(WINDOW) {
            let mut reads = Vec::new();
            for _ in 0..AHEAD {
                let n = CHUNK.min(ring - lsn % ring).min(end - lsn);
                if n > 0 {
                    reads.push(self.read_pages(d, lsn, n));
                }
                lsn += n;
            }
            for (at, part) in together(reads).await.into_iter().flatten() {
                let Some(part) = part else {
                    *found.borrow_mut().unread.entry(at).or_default() += 1;
                    continue;
                };
                let block = block_of(&part);
                let Ok((head, crc)) = decode_head(&block, self.tag) else { continue };
                if head.lsn % ring != at % ring {
                    continue;
                }
                self.see_owner(head.owner_epoch).map_err(StoreError::State)?;
                match s.standing(&head) {
                    Standing::Newer => {
                        return damaged(format!(
                            "the log knows superblock {} of incarnation {}, the newest that can be read \
                             is {} of {}: superblocks were lost",
                            head.base_seq, head.incarnation, s.seq, s.incarnation
                        ));
                    }
                    Standing::Counts if head.lsn == at => {
                        last = last.max(at);
                        found.borrow_mut().add(Page { head, crc, block });
                    }
                    Standing::Counts | Standing::Old => {}
                }
            }
        }
        Ok(())
    }

    /// Reads pages that lie side by side, with their numbers. `None`: it cannot be read.
    async fn read_pages(&self, d: &Device, lsn: u64, n: u64) -> Vec<(u64, Option<Slice>)> {
        let buf = Slice::heap(n as usize * BLOCK);
        let limit = self.options.deadline;
        if d.read(d.layout.log(lsn), &buf, limit).await.is_ok() {
            return (0..n).map(|i| (lsn + i, Some(buf.sub(i as usize * BLOCK, BLOCK)))).collect();
        }
        let (mut read, mut given_up) = (Vec::new(), 0);
        for at in lsn..lsn + n {
            let mut pauses = Inner::patience(given_up).iter();
            let page = loop {
                // A read that was given up may still write to the other memory.
                let one = Slice::heap(BLOCK);
                match d.read(d.layout.log(at), &one, limit).await {
                    Ok(()) => break Some(one),
                    Err(IoError::Offline) => break None,
                    Err(_) => match pauses.next() {
                        Some(pause) => sleep(*pause).await,
                        None => break None,
                    },
                }
            };
            given_up += u64::from(page.is_none());
            read.push((at, page));
        }
        read
    }
}
