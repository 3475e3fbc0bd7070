//! What is known of one volume: what was on the medium and when, who could do what, and which commands have been ended.

use super::attentions::{Attentions, Flight};
use super::orders::Orders;
use super::spc::{Code, OF_RESERVATIONS, Pair};
use std::collections::{BTreeMap, BTreeSet};
use weir_base::Nanos;

/// What a block holds: a write by its number, 0 for zeros.
pub(super) type Content = u64;

/// Something that was possible for a path.
pub(super) const READ: u8 = 1;
/// To write.
pub(super) const WRITE: u8 = 2;
/// To be refused a read because of a reservation.
pub(super) const NO_READ: u8 = 4;
/// The same of a write.
pub(super) const NO_WRITE: u8 = 8;
/// To see no unit at all.
pub(super) const HIDDEN: u8 = 16;

/// An end that was promised to commands: those admitted before it began have no effect after it.
pub(super) struct Fence {
    /// Of these nexuses only.
    pub(super) of: Option<BTreeSet<Pair>>,
    pub(super) began: Nanos,
    /// `None`: not yet, and perhaps never.
    pub(super) ended: Option<Nanos>,
    pub(super) why: &'static str,
}

impl Fence {
    /// It is an end of this nexus's commands.
    pub(super) fn concerns(&self, who: Pair) -> bool {
        self.of.as_ref().is_none_or(|of| of.contains(&who))
    }
}

/// A volume.
pub(super) struct Book {
    pub(super) slot: usize,
    /// Logical blocks; those that may be there while it changes.
    pub(super) blocks: u64,
    pub(super) direct: bool,
    pub(super) delay: Nanos,
    /// It is not deleted.
    pub(super) lives: bool,
    /// What each block held from when on.
    versions: Vec<Vec<(Nanos, Content)>>,
    pub(super) fences: Vec<Fence>,
    pub(super) orders: Orders,
    pub(super) attentions: Attentions,
    /// Who may see it, by host: (may, may not).
    pub(super) seen_by: BTreeMap<usize, (bool, bool)>,
    /// What was possible for each path from when on.
    rights: Vec<(Nanos, Vec<u8>)>,
    /// UA_INTLCK_CTRL may be set: attentions are told again and again.
    pub(super) interlock: bool,
    /// MODE SELECTs under way that ask for that, and when the last one ended.
    pub(super) interlocking: u32,
    pub(super) asked: Nanos,
    /// It may have been for commands that were sent until then.
    pub(super) interlocked: Nanos,
}

impl Book {
    pub(super) fn new(
        slot: usize,
        blocks: u64,
        most: u64,
        direct: bool,
        delay: Nanos,
        now: Nanos,
    ) -> Book {
        Book {
            slot,
            blocks,
            direct,
            delay,
            lives: true,
            versions: (0..most).map(|_| vec![(now, 0)]).collect(),
            fences: Vec::new(),
            orders: Orders::default(),
            attentions: Attentions::default(),
            seen_by: BTreeMap::new(),
            rights: Vec::new(),
            interlock: false,
            interlocking: 0,
            asked: 0,
            interlocked: 0,
        }
    }

    /// Attentions may be told again and again.
    pub(super) fn keeps_attentions(&self) -> bool {
        self.interlock || self.interlocking > 0
    }

    /// A command of a nexus ended with a unit attention.
    ///
    /// # Errors
    /// There was none to tell.
    pub(super) fn told(
        &mut self,
        who: Pair,
        flight: Flight,
        code: Code,
        now: Nanos,
    ) -> Result<(), String> {
        // Once the orders are lost nobody knows whom a command about reservations tells: it may be anyone.
        if self.orders.is_lost() && OF_RESERVATIONS.contains(&code) {
            self.attentions.perhaps(who, code);
        }
        self.attentions.told(flight, code, now)
    }

    /// What the medium holds now.
    pub(super) fn content(&self, block: u64) -> Content {
        self.versions[block as usize].last().map_or(0, |v| v.1)
    }

    /// Something else is there now.
    pub(super) fn landed(&mut self, block: u64, content: Content, now: Nanos) {
        self.versions[block as usize].push((now, content));
    }

    /// Everything that a block has held at some moment of a time.
    pub(super) fn held(
        &self,
        block: u64,
        from: Nanos,
        to: Nanos,
    ) -> impl Iterator<Item = Content> + '_ {
        let all = &self.versions[block as usize];
        all.iter().enumerate().filter_map(move |(i, (at, c))| {
            let until = all.get(i + 1).map_or(Nanos::MAX, |n| n.0);
            (*at <= to && until >= from).then_some(*c)
        })
    }

    /// True when it changed, or began to, in that time.
    pub(super) fn changed(&self, block: u64, from: Nanos, to: Nanos) -> bool {
        self.versions[block as usize].iter().any(|(at, _)| (from..=to).contains(at))
    }

    /// What is possible has changed. `paths`: host and nexus of each.
    pub(super) fn note(&mut self, paths: &[(usize, Pair)], now: Nanos) {
        let all = paths
            .iter()
            .map(|(host, pair)| {
                let (seen, hidden) = self.seen_by.get(host).copied().unwrap_or((false, true));
                let mut bits = if hidden { HIDDEN } else { 0 };
                if seen && self.orders.is_lost() {
                    bits |= READ | WRITE | NO_READ | NO_WRITE;
                } else if seen {
                    for s in self.orders.states() {
                        let (read, write) = s.may(*pair);
                        bits |= if read { READ } else { NO_READ };
                        bits |= if write { WRITE } else { NO_WRITE };
                    }
                }
                bits
            })
            .collect();
        self.rights.push((now, all));
    }

    /// Everything that was possible for a path at some moment of a time.
    pub(super) fn possible(&self, path: usize, from: Nanos, to: Nanos) -> u8 {
        let all = &self.rights;
        let mut bits = 0;
        for (i, (at, r)) in all.iter().enumerate() {
            let until = all.get(i + 1).map_or(Nanos::MAX, |n| n.0);
            if *at <= to && until >= from {
                bits |= r[path];
            }
        }
        bits
    }

    /// Commands of that time may have been ended in the middle.
    pub(super) fn was_fenced(&self, from: Nanos, to: Nanos) -> bool {
        self.fences.iter().any(|f| f.began <= to && f.ended.is_none_or(|e| e >= from))
    }

    /// Ends that were under way in that time.
    pub(super) fn fences_in(&self, from: Nanos, to: Nanos) -> usize {
        let then = |f: &&Fence| f.began <= to && f.ended.is_none_or(|e| e >= from);
        self.fences.iter().filter(then).count()
    }

    /// An end that was to silence a command, promised before its answer left at `left`: when, and why. The command was sent at
    /// `sent` and had come by `arrived`. `hidden`: it was told that there is no such unit.
    pub(super) fn outlived(
        &self,
        (path, who): (usize, Pair),
        (sent, arrived): (Nanos, Nanos),
        left: Nanos,
        hidden: bool,
    ) -> Option<(Nanos, &'static str)> {
        // It found no unit when it came: it is none of the unit's commands, however long it waited for a buffer since.
        if hidden && self.possible(path, sent, arrived) & HIDDEN != 0 {
            return None;
        }
        let ends = self.fences.iter().filter(|f| f.concerns(who) && f.began > arrived);
        ends.filter_map(|f| f.ended.map(|e| (e, f.why))).find(|(e, _)| *e < left)
    }

    /// Commands of a nexus that ran at `now` were admitted at this time or later, as far as ends were promised before `now`.
    pub(super) fn admitted_since(&self, who: Pair, now: Nanos) -> (Nanos, &'static str) {
        let mine = |f: &&Fence| f.ended.is_some_and(|e| e < now) && f.concerns(who);
        let last = self.fences.iter().filter(mine).max_by_key(|f| f.began);
        last.map_or((0, ""), |f| (f.began, f.why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suites::doors::spc::{Act, CAPACITY, PREEMPTED};

    #[test]
    fn once_the_orders_are_lost_a_clear_may_have_told_anyone() {
        let who = (1, 1);
        let mut b = Book::new(0, 1, 1, false, 0, 0);
        let f = b.attentions.depart(who, 1);
        assert!(b.told(who, f, PREEMPTED, 2).is_err(), "nothing has raised it");
        for n in 0..20 {
            let pairs = vec![(n, 2)];
            b.orders.begin((n, 2), Act::Register { key: 0, new: 5, ignore: true, pairs });
        }
        assert!(b.orders.is_lost());
        for at in [10, 20] {
            let f = b.attentions.depart(who, at);
            b.told(who, f, PREEMPTED, at + 1).expect("any CLEAR may have raised it");
        }
        let f = b.attentions.depart(who, 30);
        assert!(b.told(who, f, CAPACITY, 31).is_err(), "it comes of no reservation");
    }

    #[test]
    fn a_command_that_found_no_unit_is_not_ended_with_the_unit() {
        let (host, who) = (0, (1, 1));
        let mut b = Book::new(0, 1, 1, false, 0, 0);
        let mut seen = |at, may| {
            b.seen_by.insert(host, may);
            b.note(&[(host, who)], at);
        };
        seen(10, (true, false));
        seen(100, (true, true));
        seen(200, (false, true));
        let (began, ended) = (300, Some(310));
        b.fences.push(Fence { of: None, began, ended, why: "deletion" });
        let outlived = |times, hidden| b.outlived((0, who), times, 400, hidden).is_some();
        assert!(!outlived((110, 160), true), "it came when the unit was being hidden");
        assert!(!outlived((90, 140), true), "it may have come then");
        assert!(outlived((40, 90), true), "it came to the unit");
        assert!(outlived((110, 160), false), "the unit itself answered");
    }
}
