//! The commit and recovery protocol as an executable specification, checked for every small case.
//!
//! Up to three writes to two logical blocks are under way when power goes. Each consists of four transfers: data and log
//! page, to two halves. Every combination of what is on the media is tried, with every set of up to two latent
//! faults on one half, with recovery from both halves or from either alone, and with a second crash at every
//! point of recovery; all of it with a recovery that ends with a checkpoint, and with one that keeps the log and logs
//! its verdicts anew. What must hold:
//!
//! * an acknowledged write is there, or a later one to its block;
//! * what was read after one recovery is read after the next;
//! * everything can be read.
//!
//! Each planted bug must break one of these.

use std::cell::Cell;

const LBAS: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    None,
    /// A write is acknowledged when the first half has it.
    AckAfterOneHalf,
    /// Recovery reads the first half's log only.
    OneLog,
    /// Recovery believes entries without looking at the data.
    EntryWithoutData,
    /// Recovery serves without having completed the halves and without a new checkpoint.
    ServeBeforeRepair,
    /// Recovery stops at the first missing page, while acknowledgements come in any order.
    StopAtHole,
    /// The checkpoint of recovery is written at the same time as the repairs.
    CheckpointBesideRepair,
    /// The block of a value that was overwritten is used again at once.
    ReuseAtOnce,
    /// A recovery that keeps the log lets all pages count from then on, whatever it found.
    VerdictForgotten,
    /// The superblock of a recovery that keeps the log is written at the same time as the pages logged anew.
    TurnBesideAgain,
}

/// A write: the block it goes to, what is on the media, whether it was acknowledged, and what its page
/// says to be stable.
#[derive(Clone, Copy, Debug)]
struct Write {
    lba: usize,
    /// Bits: data on half 0, data on half 1, page on half 0, page on half 1.
    io: u8,
    acked: bool,
    stable: usize,
}

/// What is on the media. Values are numbers of writes from 1 on, 0 is what was there before.
#[derive(Clone, Debug)]
struct Media {
    writes: Vec<Write>,
    /// data[half][write]; whether it is whole.
    data: [Vec<bool>; 2],
    page: [Vec<bool>; 2],
    base: [[bool; LBAS]; 2],
    /// Whether a half has the superblock of recovery, and what that says: a map, or what counts of the log that was kept.
    checkpoint: [bool; 2],
    map: [usize; LBAS],
    turn: Option<Turn>,
    /// again[half][write]: the page in which recovery logged it anew.
    again: [Vec<bool>; 2],
}

/// A log that was kept: writes before `end` count, and those that were logged anew.
#[derive(Clone, Debug)]
struct Turn {
    end: usize,
    anew: Vec<usize>,
}

type Halves = [bool; 2];

/// What recovery makes of what it finds.
struct Decision {
    map: [usize; LBAS],
    /// Copies of data to complete: half, write.
    repairs: Vec<(usize, usize)>,
    turn: Turn,
}

impl Media {
    fn new(writes: &[Write]) -> Media {
        let bit = |n: u8| writes.iter().map(|w| w.io >> n & 1 == 1).collect();
        Media {
            writes: writes.to_vec(),
            data: [bit(0), bit(1)],
            page: [bit(2), bit(3)],
            base: [[true; LBAS]; 2],
            checkpoint: [false; 2],
            map: [0; LBAS],
            turn: None,
            again: [vec![false; writes.len()], vec![false; writes.len()]],
        }
    }

    /// What counts of a log that was kept: all of it must be there.
    fn recover_kept(&self, halves: &[usize], turn: &Turn, bug: Bug) -> Option<Decision> {
        let mut map = [0; LBAS];
        for i in 0..turn.end {
            match halves.iter().any(|h| self.page[*h][i]) {
                true => map[self.writes[i].lba] = i + 1,
                false if bug == Bug::VerdictForgotten => {}
                false => return None,
            }
        }
        for i in &turn.anew {
            if !halves.iter().any(|h| self.again[*h][*i]) {
                return None;
            }
            map[self.writes[*i].lba] = i + 1;
        }
        Some(Decision { map, repairs: Vec::new(), turn: turn.clone() })
    }

    /// What recovery decides to be there, and what it has to complete.
    fn recover(&self, with: Halves, bug: Bug) -> Option<Decision> {
        let halves: Vec<usize> = (0..2).filter(|h| with[*h]).collect();
        if halves.iter().any(|h| self.checkpoint[*h]) {
            let turn = Turn { end: 0, anew: Vec::new() };
            return match &self.turn {
                Some(turn) => self.recover_kept(&halves, turn, bug),
                None => Some(Decision { map: self.map, repairs: Vec::new(), turn }),
            };
        }
        let logs = match bug {
            Bug::OneLog => &halves[..1],
            _ => &halves[..],
        };
        let page = |i: usize| logs.iter().any(|h| self.page[*h][i]);
        let n = self.writes.len();
        let stable = (0..n).filter(|i| page(*i)).map(|i| self.writes[i].stable).max().unwrap_or(0);
        let (mut map, mut repairs) = ([0; LBAS], Vec::new());
        let mut turn = Turn { end: stable, anew: Vec::new() };
        if bug == Bug::VerdictForgotten {
            turn.end = n;
        }
        for i in 0..n {
            if !page(i) {
                if i < stable {
                    return None;
                }
                if bug == Bug::StopAtHole {
                    break;
                }
                continue;
            }
            let data = halves.iter().any(|h| self.data[*h][i]);
            if i >= stable && !data && bug != Bug::EntryWithoutData {
                continue;
            }
            map[self.writes[i].lba] = i + 1;
            if i >= turn.end {
                turn.anew.push(i);
            }
            if data {
                repairs.extend(halves.iter().filter(|h| !self.data[**h][i]).map(|h| (*h, i)));
            }
        }
        Some(Decision { map, repairs, turn })
    }

    /// Recovery is over: everything that it writes is there.
    fn recovered(&mut self, with: Halves, d: &Decision, keep: bool) {
        for (h, i) in &d.repairs {
            self.data[*h][*i] = true;
        }
        self.map = d.map;
        self.checkpoint = with;
        self.turn = keep.then(|| d.turn.clone());
        self.log_anew(with, d);
    }

    fn log_anew(&mut self, with: Halves, d: &Decision) {
        for h in (0..2).filter(|h| with[*h]) {
            d.turn.anew.iter().for_each(|i| self.again[h][*i] = true);
        }
    }

    fn read(&self, with: Halves, map: &[usize; LBAS], lba: usize) -> Option<usize> {
        let value = map[lba];
        let good = |h: usize| match value {
            0 => self.base[h][lba],
            v => self.data[h][v - 1],
        };
        (0..2).any(|h| with[h] && good(h)).then_some(value)
    }
}

struct Checker {
    bug: Bug,
    /// Recovery keeps the log.
    keep: bool,
    states: Cell<u64>,
    violations: Cell<u64>,
}

impl Checker {
    fn violation(&self) {
        self.violations.set(self.violations.get() + 1);
    }

    /// Recovery is over and hosts read: everything is there that must be.
    fn serve(&self, m: &Media, with: Halves, map: &[usize; LBAS]) -> Option<[usize; LBAS]> {
        let mut seen = [0; LBAS];
        for (lba, value) in seen.iter_mut().enumerate() {
            let Some(v) = m.read(with, map, lba) else {
                self.violation();
                return None;
            };
            *value = v;
            let last = m.writes.iter().rposition(|w| w.acked && w.lba == lba).map_or(0, |i| i + 1);
            if v < last {
                self.violation();
                return None;
            }
        }
        Some(seen)
    }

    /// One recovery and what can come after it. `seen`: what hosts have read before.
    fn recovery(&self, m: &Media, with: Halves, seen: Option<[usize; LBAS]>, again: bool) {
        self.states.set(self.states.get() + 1);
        let Some(d) = m.recover(with, self.bug) else { return self.violation() };
        let (map, repairs) = (d.map, &d.repairs);
        if let Some(before) = seen {
            // No write came since: what was seen must be what is there.
            if self.serve(m, with, &map).is_some_and(|now| now != before) {
                self.violation();
            }
        }
        // What was drawn once stays: a half that was left out has no superblock.
        let mut done = m.clone();
        if self.bug != Bug::ServeBeforeRepair && !(m.checkpoint[0] || m.checkpoint[1]) {
            done.recovered(with, &d, self.keep);
        }
        let Some(read) = self.serve(&done, with, &map) else { return };
        if !again {
            return;
        }
        // Power goes inside recovery: any of its repairs are done, and then any part of its checkpoint.
        for subset in 0..1u32 << repairs.len() {
            let mut part = m.clone();
            for (k, (h, i)) in repairs.iter().enumerate() {
                if subset >> k & 1 == 1 {
                    part.data[*h][*i] = true;
                }
            }
            let all = subset + 1 == 1 << repairs.len();
            for halves in [[false, false], [true, false], [false, true], [true, true]] {
                let some = halves[0] || halves[1];
                let may = all || self.bug == Bug::CheckpointBesideRepair;
                if (some && !may) || (halves[0] && !with[0]) || (halves[1] && !with[1]) {
                    continue;
                }
                if some && self.bug == Bug::ServeBeforeRepair {
                    continue;
                }
                let mut cut = part.clone();
                cut.map = map;
                cut.checkpoint = halves;
                cut.turn = self.keep.then(|| d.turn.clone());
                if self.bug != Bug::TurnBesideAgain {
                    // Without a superblock these are the same as none.
                    cut.log_anew(with, &d);
                }
                self.recovery(&cut, with, None, false);
                if with == [true, true] {
                    // One half is lost with that.
                    self.recovery(&cut, [true, false], None, false);
                    self.recovery(&cut, [false, true], None, false);
                }
            }
        }
        // Hosts have read, and power goes again; either half may be lost with it.
        self.recovery(&done, with, Some(read), false);
        if with == [true, true] {
            self.recovery(&done, [true, false], Some(read), false);
            self.recovery(&done, [false, true], Some(read), false);
            self.later_faults(&done, read);
        }
    }

    /// Pages that were kept, or logged anew, are damaged on one half after recovery.
    fn later_faults(&self, done: &Media, read: [usize; LBAS]) {
        let Some(turn) = &done.turn else { return };
        for half in 0..2 {
            let mut x = done.clone();
            (0..turn.end).for_each(|i| x.page[half][i] = false);
            turn.anew.iter().for_each(|i| x.again[half][*i] = false);
            self.recovery(&x, [true, true], Some(read), false);
        }
    }

    /// All that can have become of the media until recovery.
    fn crash(&self, writes: &[Write]) {
        let m = Media::new(writes);
        self.recovery(&m, [true, true], None, true);
        self.recovery(&m, [true, false], None, true);
        self.recovery(&m, [false, true], None, true);
        // Up to two latent faults on one half.
        let n = writes.len();
        let places = 2 * n + LBAS;
        for half in 0..2 {
            for a in 0..places {
                for b in a..places {
                    let mut x = m.clone();
                    for place in [a, b] {
                        match place {
                            p if p < n => x.data[half][p] = false,
                            p if p < 2 * n => x.page[half][p - n] = false,
                            p => x.base[half][p - 2 * n] = false,
                        }
                    }
                    // A torn write that is damaged once more is the same state again, which is harmless.
                    self.recovery_with_faults(&x);
                }
            }
        }
    }

    /// With faults on one half both are needed, until recovery has completed them.
    fn recovery_with_faults(&self, m: &Media) {
        self.states.set(self.states.get() + 1);
        let both = [true, true];
        let Some(d) = m.recover(both, self.bug) else { return self.violation() };
        let mut done = m.clone();
        if self.bug != Bug::ServeBeforeRepair {
            done.recovered(both, &d, self.keep);
        }
        let Some(read) = self.serve(&done, both, &d.map) else { return };
        self.recovery(&done, both, Some(read), false);
    }

    /// Every way in which `writes` more writes can be under way.
    fn enumerate(&self, writes: &mut Vec<Write>, more: usize) {
        if !writes.is_empty() {
            self.crash(writes);
        }
        if more == 0 {
            return;
        }
        let i = writes.len();
        // What may be called stable: acknowledged writes without a gap.
        let stable_most = writes.iter().take_while(|w| w.acked).count();
        for lba in 0..LBAS {
            // A block is locked until its write is acknowledged.
            if writes.iter().any(|w| w.lba == lba && !w.acked) {
                continue;
            }
            for stable in 0..=stable_most {
                for io in 0..16u8 {
                    let whole = match self.bug {
                        Bug::AckAfterOneHalf => io & 0b0101 == 0b0101,
                        _ => io == 0b1111,
                    };
                    for acked in [false, true] {
                        // Acknowledgements come in order, unless the bug is about that.
                        let in_order = stable_most == i || self.bug == Bug::StopAtHole;
                        if acked && !(whole && in_order) {
                            continue;
                        }
                        writes.push(Write { lba, io, acked, stable });
                        self.enumerate(writes, more - 1);
                        writes.pop();
                    }
                }
            }
        }
    }
}

/// The old block of an overwritten value takes the next write's data before a checkpoint has let go of it.
fn reuse_at_once(c: &Checker) {
    for io in 0..16u8 {
        let first = Write { lba: 0, io: 0b1111, acked: true, stable: 0 };
        let second = Write { lba: 1, io, acked: false, stable: 1 };
        let mut m = Media::new(&[first, second]);
        for half in 0..2 {
            if io >> half & 1 == 1 {
                // The checkpoint's block of logical block 0 is overwritten; nobody needs it while the log
                // holds. But recovery of the second write's absence must find the first one's value.
                m.base[half][0] = false;
            }
            // The log page of the first write is damaged on this half, as a latent fault.
            let mut x = m.clone();
            x.page[half][0] = false;
            c.recovery_with_faults(&x);
        }
        // A write to block 1 takes the block that still holds the value of block 1 as of the checkpoint.
        let mut y = Media::new(&[first, second]);
        for half in 0..2 {
            y.base[half][1] = io >> half & 1 == 0;
        }
        c.recovery(&y, [true, true], None, true);
    }
}

fn run(bug: Bug, keep: bool, writes: usize) -> Checker {
    let c = Checker { bug, keep, states: Cell::new(0), violations: Cell::new(0) };
    match bug {
        Bug::ReuseAtOnce => reuse_at_once(&c),
        _ => c.enumerate(&mut Vec::new(), writes),
    }
    c
}

#[test]
fn the_protocol_holds_in_every_small_case() {
    for keep in [false, true] {
        let c = run(Bug::None, keep, 3);
        assert_eq!(c.violations.get(), 0, "in {} states", c.states.get());
        assert!(c.states.get() > 900_000, "{} states", c.states.get());
        println!("{} states, no violation", c.states.get());
    }
}

#[test]
fn every_planted_protocol_bug_is_found() {
    for bug in [
        Bug::AckAfterOneHalf,
        Bug::OneLog,
        Bug::EntryWithoutData,
        Bug::ServeBeforeRepair,
        Bug::StopAtHole,
        Bug::CheckpointBesideRepair,
        Bug::ReuseAtOnce,
        Bug::VerdictForgotten,
        Bug::TurnBesideAgain,
    ] {
        for keep in [false, true] {
            if !keep && matches!(bug, Bug::VerdictForgotten | Bug::TurnBesideAgain) {
                continue;
            }
            let c = run(bug, keep, 2);
            assert!(c.violations.get() > 0, "{bug:?} was not found in {} states", c.states.get());
            println!("{bug:?}: {} violations in {} states", c.violations.get(), c.states.get());
        }
    }
}
