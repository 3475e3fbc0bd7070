//! What hosts are answered, and what they read.

use super::{ARRIVED, Judge};
use crate::suites::doors::book::{Content, HIDDEN, NO_READ, NO_WRITE, READ, WRITE};
use weir_base::{MILLIS, Nanos};
use weir_sim::check::blocks::{self, BLOCK, read_block};

impl Judge {
    /// A command that was sent at `sent` has been answered. Had it been ended, its answer would have left by then.
    /// `hidden`: it was told that there is no such unit.
    pub(in crate::suites::doors) fn answered(
        &self,
        path: usize,
        volume: u32,
        sent: Nanos,
        hidden: bool,
    ) {
        let (p, now) = (&self.paths[path], self.now());
        let Some(left) = now.checked_sub(ARRIVED) else { return };
        let arrived = self.arrived_by(p.host, Some(sent));
        if arrived == Nanos::MAX || self.arrived_by(p.host, Some(left)) == Nanos::MAX {
            return;
        }
        let late = self.with(volume, |b| b.outlived((path, p.pair), (sent, arrived), left, hidden));
        if let Some((at, why)) = late {
            self.wrong(format!(
                "a command that path {path} sent at {sent} is answered long after {why} has ended it, at {at}"
            ));
        }
    }

    /// A command that was sent at `sent` has not been answered in the time that its host gives commands. Where nothing holds
    /// it up, somebody must have ended it.
    pub(in crate::suites::doors) fn unanswered(
        &self,
        path: usize,
        volume: u32,
        sent: Nanos,
        cdb: &[u8],
    ) {
        let now = self.now();
        // A PREEMPT AND ABORT of its own ends others; of whom the others are nobody knows before they are answered.
        let own = usize::from(cdb[0] == 0x5f && cdb[1] & 0x1f == 5);
        let prompt = self.books.borrow().iter().all(|b| b.delay <= MILLIS);
        let ends = self.with(volume, |b| b.fences_in(sent, now));
        if prompt && !self.fragile.get() && ends <= own {
            self.wrong(format!(
                "a command {cdb:02x?} that path {path} sent at {sent} is not answered, though nobody has ended it"
            ));
        }
    }

    /// A command of this path and this time was refused because of a reservation, or ran.
    pub(in crate::suites::doors) fn judged(
        &self,
        path: usize,
        volume: u32,
        writes: bool,
        ran: bool,
        begun: Nanos,
    ) {
        let now = self.now();
        let bits = self.with(volume, |b| b.possible(path, begun, now));
        let need = match (writes, ran) {
            (false, true) => READ,
            (true, true) => WRITE,
            (false, false) => NO_READ,
            (true, false) => NO_WRITE,
        };
        if bits & need == 0 {
            let what = match (writes, ran) {
                (false, true) => "has read",
                (true, true) => "has written",
                (false, false) => "was refused to read",
                (true, false) => "was refused to write",
            };
            let state = self.with(volume, |b| b.orders.guess());
            self.wrong(format!(
                "path {path} (nexus {:?}) {what} volume {volume} at {begun}..{now}, against {state:?}",
                self.paths[path].pair
            ));
        }
    }

    /// A command of this path was told that there is no such unit.
    pub(in crate::suites::doors) fn hidden(&self, path: usize, volume: u32, begun: Nanos) {
        let now = self.now();
        if self.with(volume, |b| b.possible(path, begun, now)) & HIDDEN == 0 {
            self.wrong(format!(
                "path {path} does not find volume {volume} at {begun}..{now}, which it is shown"
            ));
        }
    }

    /// Whether a path has been shown a volume all the time since `begun`.
    pub(in crate::suites::doors) fn was_shown(
        &self,
        path: usize,
        volume: u32,
        begun: Nanos,
    ) -> bool {
        let now = self.now();
        self.with(volume, |b| b.possible(path, begun, now)) & HIDDEN == 0
    }

    /// What was read of a volume.
    pub(in crate::suites::doors) fn read(
        &self,
        path: usize,
        volume: u32,
        first: u64,
        bytes: &[u8],
        begun: Nanos,
    ) {
        let now = self.now();
        let books = self.books.borrow();
        let b = &books[volume as usize - 1];
        for (i, bytes) in bytes.chunks(BLOCK).enumerate() {
            let block = first + i as u64;
            let content = match read_block(bytes) {
                blocks::Content::Zero => 0,
                blocks::Content::Written { volume: v, block: k, write }
                    if (v, k) == (volume, block) =>
                {
                    write
                }
                // Memory that is lent may be sent half written.
                blocks::Content::Mixed { .. } if b.direct && b.changed(block, begun, now) => {
                    continue;
                }
                other => {
                    self.wrong(format!(
                        "path {path} reads {other:?} from block {block} of volume {volume}"
                    ));
                    return;
                }
            };
            if !b.held(block, begun, now).any(|c| c == content) {
                let held: Vec<Content> = b.held(block, begun, now).collect();
                self.wrong(format!(
                    "path {path} reads write {content} from block {block} of volume {volume} at {begun}..{now}, which held {held:?}"
                ));
                return;
            }
        }
        drop(books);
        self.count("reads verified");
    }

    /// A COMPARE AND WRITE was told that something else is there.
    pub(in crate::suites::doors) fn miscompared(
        &self,
        volume: u32,
        block: u64,
        expected: Content,
        begun: Nanos,
    ) {
        let now = self.now();
        let other = self.with(volume, |b| b.held(block, begun, now).any(|c| c != expected));
        if !other {
            self.wrong(format!("a COMPARE AND WRITE of block {block} of volume {volume} finds a difference where there is none"));
        }
    }

    /// Zeros were written to a range.
    pub(in crate::suites::doors) fn zeroed(
        &self,
        volume: u32,
        first: u64,
        count: u64,
        begun: Nanos,
    ) {
        let now = self.now();
        let books = self.books.borrow();
        let b = &books[volume as usize - 1];
        if (first..first + count).any(|k| !b.held(k, begun, now).any(|c| c == 0)) {
            self.wrong(format!(
                "zeros were acknowledged on {first}+{count} of volume {volume} and are not there"
            ));
        }
    }
}
