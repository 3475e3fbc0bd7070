//! Whether what clients saw can have been one register: the checker of histories.
//!
//! Versions order the changes of a register, so no search is needed. A history of one register is linearizable if and
//! only if all of this holds:
//!
//! 1. Each version has one value, and that value was asked for by a change that expected the version before.
//! 2. The versions are a chain: each up to the newest seen has a change that may have made it. One whose attempts were
//!    all told as not having happened may not.
//! 3. Whoever begins after another has ended sees no older version.
//! 4. Nobody sees a version, or a later one, whose change had not begun when they ended.
//! 5. A change that was told as done has made its version. One that was told another register neither expected that one,
//!    nor asked for it.
//!
//! What a node tells without being asked (`newer`) may be over: nothing is said of it by 3, and all that begins after it has ended is
//! bound by it, as by a read.
//!
//! A change in doubt may make its version at any time after it began, once, or never.
//!
//! Why that is enough: order all by version, the change before those that saw it, those by their begin. By 3 and 4 none
//! comes before one that had ended when it began, and by 1, 2 and 5 each sees what the order says.

use super::{Changed, Pool, Standing};
use core::fmt;
use std::collections::BTreeMap;
use weir_base::Nanos;
use weir_proto_cluster::{Register, Version};

/// What was asked, and what was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A read that gave this. Reads that failed say nothing, and are left out.
    Read(Option<Standing>),
    /// What `newer` told.
    Newer(Standing),
    /// A change, with what was expected and asked for. What was never answered is in doubt.
    Change(Option<Version>, Register, Changed),
}

/// One operation of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// The client, to tell operations apart in messages.
    pub client: u32,
    /// The register.
    pub pool: Pool,
    /// When it was asked.
    pub begin: Nanos,
    /// When it was answered, or given up.
    pub end: Nanos,
    /// The rest.
    pub what: What,
}

impl Op {
    /// The version that it saw, if it saw any: 0 is no register.
    fn seen(&self) -> Option<u64> {
        match self.what {
            What::Read(standing) | What::Change(_, _, Changed::Other(standing)) => {
                Some(standing.map_or(0, |(version, _)| version.0))
            }
            What::Newer((version, _)) => Some(version.0),
            What::Change(_, _, Changed::Done(version)) => Some(version.0),
            What::Change(_, _, Changed::InDoubt | Changed::Refused(_)) => None,
        }
    }

    /// The register that it saw.
    fn value(&self) -> Option<Standing> {
        match self.what {
            What::Read(standing) | What::Change(_, _, Changed::Other(standing)) => standing,
            What::Newer(standing) => Some(standing),
            What::Change(_, value, Changed::Done(version)) => Some((version, value)),
            What::Change(..) => None,
        }
    }

    /// Whether it may have made its value the register.
    fn may_have_made(&self) -> Option<&Register> {
        match &self.what {
            What::Change(_, value, Changed::Done(_) | Changed::InDoubt) => Some(value),
            _ => None,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = |f: &mut fmt::Formatter<'_>, standing: Option<Standing>| match standing {
            None => f.write_str("no register"),
            Some((v, r)) => write!(f, "version {} of {:?}", v.0, r.writer),
        };
        write!(f, "client {} from {} to {} ns: ", self.client, self.begin, self.end)?;
        match self.what {
            What::Read(standing) => {
                f.write_str("read ")?;
                short(f, standing)
            }
            What::Newer(standing) => {
                f.write_str("was told ")?;
                short(f, Some(standing))
            }
            What::Change(expected, value, changed) => {
                write!(f, "change {:?} to ", expected.map(|v| v.0))?;
                short(f, Some((value.version, value)))?;
                match changed {
                    Changed::Done(v) => write!(f, ": done, version {}", v.0),
                    Changed::Other(standing) => {
                        f.write_str(": other, ")?;
                        short(f, standing)
                    }
                    Changed::InDoubt => f.write_str(": in doubt"),
                    Changed::Refused(why) => write!(f, ": refused, {why}"),
                }
            }
        }
    }
}

/// What a history is made of, where nothing is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Operations that were looked at.
    pub ops: u64,
    /// Reads.
    pub reads: u64,
    /// What `newer` told.
    pub told: u64,
    /// Changes told as done.
    pub done: u64,
    /// Changes told another register.
    pub other: u64,
    /// Changes in doubt whose value was seen afterwards.
    pub doubt_happened: u64,
    /// Changes in doubt whose value nobody saw.
    pub doubt_unseen: u64,
    /// Versions that were seen, of all registers.
    pub versions: u64,
}

/// What is wrong with a history, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Looks at a history that begins with no registers. Operations may come in any order.
///
/// # Errors
/// It is none that registers can have: what is wrong with it, the most telling first.
pub fn check(history: &[Op]) -> Result<Summary, Vec<Violation>> {
    let mut pools = BTreeMap::<Pool, Vec<Op>>::new();
    for op in history {
        pools.entry(op.pool).or_default().push(*op);
    }
    let mut summary = Summary::default();
    let mut wrong = Vec::new();
    for (pool, ops) in pools {
        let mut one = OfPool::new(pool, ops);
        one.check(&mut summary);
        wrong.append(&mut one.wrong);
    }
    if wrong.is_empty() { Ok(summary) } else { Err(wrong) }
}

struct OfPool {
    pool: Pool,
    /// In the order of their begins.
    ops: Vec<Op>,
    wrong: Vec<Violation>,
    /// The value that each version was seen with first.
    values: BTreeMap<u64, Register>,
    /// Of each version, when the first change began that may have made it.
    made_from: BTreeMap<u64, Nanos>,
}

impl OfPool {
    fn new(pool: Pool, mut ops: Vec<Op>) -> OfPool {
        ops.sort_by_key(|op| (op.begin, op.end));
        OfPool { pool, ops, wrong: Vec::new(), values: BTreeMap::new(), made_from: BTreeMap::new() }
    }

    fn object(&mut self, text: String) {
        self.wrong.push(Violation(format!("pool {:x}: {text}", self.pool)));
    }

    fn check(&mut self, summary: &mut Summary) {
        self.answers();
        self.one_value();
        self.chain();
        self.real_time();
        self.begun();
        self.count(summary);
    }

    /// Rule 5, and what an answer cannot say.
    fn answers(&mut self) {
        for op in self.ops.clone() {
            if let Some((version, value)) = op.value()
                && (version != value.version || value.pool != self.pool)
            {
                self.object(format!("a register that calls itself another: {op}"));
            }
            let What::Change(expected, value, changed) = op.what else { continue };
            let next = expected.map_or(0, |v| v.0).checked_add(1);
            let may_be = next == Some(value.version.0) && value.pool == self.pool;
            let wrong = match changed {
                Changed::Done(version) => version != value.version || !may_be,
                Changed::Other(standing) => {
                    !may_be
                        || standing.map(|(v, _)| v) == expected
                        || standing.is_some_and(|(_, other)| other == value)
                }
                Changed::Refused(_) => may_be,
                Changed::InDoubt => !may_be,
            };
            if wrong {
                self.object(format!("an answer that cannot be: {op}"));
            }
        }
    }

    /// Rule 1, as far as values that were seen go.
    fn one_value(&mut self) {
        for op in self.ops.clone() {
            let Some((version, value)) = op.value() else { continue };
            match self.values.get(&version.0) {
                None => {
                    self.values.insert(version.0, value);
                }
                Some(first) if *first == value => {}
                Some(first) => {
                    let first = first.writer;
                    self.object(format!("version {} was also of {first:?}: {op}", version.0));
                }
            }
        }
    }

    /// Rules 1 and 2: each version has a change that may have made it.
    fn chain(&mut self) {
        let mut told_not = BTreeMap::<u64, Op>::new();
        for op in &self.ops {
            if let What::Change(_, value, Changed::Other(_)) = &op.what
                && self.values.get(&value.version.0) == Some(value)
            {
                told_not.insert(value.version.0, *op);
            }
            let Some(value) = op.may_have_made() else { continue };
            // A version that nobody saw may have been made by any that asked for it.
            if self.values.get(&value.version.0).is_none_or(|v| v == value) {
                let from = self.made_from.entry(value.version.0).or_insert(op.begin);
                *from = op.begin.min(*from);
            }
        }
        let newest = self.values.keys().next_back().copied().unwrap_or(0);
        for version in 1..=newest {
            if self.made_from.contains_key(&version) {
                continue;
            }
            match told_not.get(&version) {
                Some(op) => {
                    self.object(format!("it stands, and was told not to have happened: {op}"));
                }
                None => self.object(format!("nobody can have made version {version}")),
            }
        }
    }

    /// Rule 3.
    fn real_time(&mut self) {
        let mut by_end: Vec<Op> =
            self.ops.iter().filter(|op| op.seen().is_some()).copied().collect();
        by_end.sort_by_key(|op| op.end);
        let mut ended = by_end.iter().peekable();
        let mut newest: Option<Op> = None;
        let mut found = Vec::new();
        for op in &self.ops {
            let Some(seen) = op.seen() else { continue };
            while let Some(before) = ended.next_if(|before| before.end < op.begin) {
                if newest.is_none_or(|n| before.seen() > n.seen()) {
                    newest = Some(*before);
                }
            }
            let bound = !matches!(op.what, What::Newer(_));
            if let Some(before) = newest.filter(|n| bound && n.seen() > Some(seen)) {
                found.push(format!("it saw an older version: {op}; before it was {before}"));
            }
        }
        found.into_iter().for_each(|text| self.object(text));
    }

    /// Rule 4.
    fn begun(&mut self) {
        // Of each version, when all up to it can have been made at the soonest.
        let mut soonest = BTreeMap::new();
        let mut latest = 0;
        for (version, from) in &self.made_from {
            latest = latest.max(*from);
            soonest.insert(*version, latest);
        }
        for op in self.ops.clone() {
            let Some(seen) = op.seen() else { continue };
            let from = soonest.range(..=seen).next_back().map_or(0, |(_, from)| *from);
            if op.end < from {
                self.object(format!("it saw what was not asked for before {from} ns: {op}"));
            }
        }
    }

    fn count(&self, summary: &mut Summary) {
        summary.versions += self.values.len() as u64;
        summary.ops += self.ops.len() as u64;
        for op in &self.ops {
            match &op.what {
                What::Read(_) => summary.reads += 1,
                What::Newer(_) => summary.told += 1,
                What::Change(_, _, Changed::Done(_)) => summary.done += 1,
                What::Change(_, _, Changed::Other(_)) => summary.other += 1,
                What::Change(_, value, Changed::InDoubt) => {
                    if self.values.get(&value.version.0) == Some(value) {
                        summary.doubt_happened += 1;
                    } else {
                        summary.doubt_unseen += 1;
                    }
                }
                What::Change(_, _, Changed::Refused(_)) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
