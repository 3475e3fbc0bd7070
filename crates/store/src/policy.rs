//! Periodic snapshots: which are to be made and deleted, as decisions without I/O, and the [`Keeper`] that does it.
//!
//! A rule is text such as `every=10m,keep=24`: a snapshot in each period of ten minutes, of which the newest 24
//! are kept. Periods begin at whole multiples of their length since 1970, so days at midnight UTC. Several rules of a
//! volume do not touch each other's snapshots, since each has its own names: `auto-10m-20261122-073000`, with the start
//! of the period in UTC. Volumes whose rules name the same group and period have their snapshots of one instant.

mod keeper;
mod plan;

pub use keeper::{Keeper, News, Standing};
pub use plan::{Charge, Due, Key};

use std::fmt;
use std::str::FromStr;
use weir_base::Date;

/// What names of such snapshots begin with. Others should not.
pub const PREFIX: &str = "auto-";
/// Most volumes of a group: their entries have room in the log together.
pub const MOST_IN_GROUP: usize = 64;
/// Longest name of a group in bytes.
const MOST_NAME: usize = 30;

/// Units of a period, longest first.
const UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3600), ('m', 60), ('s', 1)];
/// Longest period in seconds: a year.
const LONGEST: u64 = 366 * 86_400;
/// Most snapshots that a policy keeps.
const MOST: u32 = 1000;

/// When snapshots of a volume are made and how many are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Policy {
    every: u64,
    keep: u32,
}

/// A policy, and with whom its snapshots are of one instant.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rule {
    /// When, and how many.
    pub policy: Policy,
    /// Volumes of a pool with the same group and period have their snapshots of one instant.
    pub group: Option<String>,
}

/// What is wrong with the text of a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no rule for snapshots: {why}; write `every=10m,keep=24`")]
pub struct PolicyError {
    text: String,
    why: String,
}

/// A period of so many seconds in its longest whole unit, such as `10m`.
pub fn period(seconds: u64) -> String {
    let whole = |(_, s): &&(char, u64)| seconds.is_multiple_of(*s);
    match UNITS.iter().find(whole) {
        Some((unit, s)) => format!("{}{unit}", seconds / s),
        None => format!("{seconds}s"),
    }
}

fn seconds(text: &str) -> Option<u64> {
    let unit = text.chars().last()?;
    let (_, s) = UNITS.iter().find(|(u, _)| *u == unit)?;
    let digits = &text[..text.len() - unit.len_utf8()];
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| digits.parse::<u64>().ok()?.checked_mul(*s)).flatten()
}

/// `20261122-073000` as seconds since 1970. Only what [`stamp`] writes is read.
fn unstamp(text: &str) -> Option<u64> {
    let part = |at: usize, len: usize| -> Option<u64> {
        let digits = text.get(at..at + len)?;
        digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
    };
    let d = Date {
        year: part(0, 4)?,
        month: part(4, 2)?,
        day: part(6, 2)?,
        hour: part(9, 2)?,
        minute: part(11, 2)?,
        second: part(13, 2)?,
    };
    d.seconds().filter(|s| stamp(*s) == text)
}

fn stamp(seconds: u64) -> String {
    let d = Date::of(seconds);
    let (date, clock) = ((d.year, d.month, d.day), (d.hour, d.minute, d.second));
    format!("{:04}{:02}{:02}-{:02}{:02}{:02}", date.0, date.1, date.2, clock.0, clock.1, clock.2)
}

impl Policy {
    /// A snapshot in each period of `every` seconds, `keep` of them kept.
    ///
    /// # Errors
    /// The period is not 1 s to 366 days, or the number not 1 to 1000.
    pub fn new(every: u64, keep: u32) -> Result<Policy, PolicyError> {
        let wrong = |why: String| {
            Err(PolicyError { text: format!("every={},keep={keep}", period(every)), why })
        };
        if !(1..=LONGEST).contains(&every) {
            return wrong("a period is 1 s to 366 d".into());
        }
        if !(1..=MOST).contains(&keep) {
            return wrong(format!("1 to {MOST} snapshots can be kept"));
        }
        Ok(Policy { every, keep })
    }

    /// Seconds between snapshots.
    pub fn every(&self) -> u64 {
        self.every
    }

    /// Snapshots that are kept.
    pub fn keep(&self) -> u32 {
        self.keep
    }

    /// The name of the snapshot of the period that begins at `start`: at most 30 characters.
    fn name(&self, start: u64) -> String {
        format!("{PREFIX}{}-{}", period(self.every), stamp(start))
    }

    /// The name of the snapshot of the period in which `now` is (seconds since 1970).
    pub fn name_at(&self, now: u64) -> String {
        self.name(now - now % self.every)
    }

    /// When the next period begins.
    pub fn next(&self, now: u64) -> u64 {
        (now - now % self.every).saturating_add(self.every)
    }

    /// When the period of a snapshot of this policy began; `None`: it is not of this policy.
    pub fn start_of(&self, name: &str) -> Option<u64> {
        let rest = name.strip_prefix(PREFIX)?.strip_prefix(&period(self.every))?;
        unstamp(rest.strip_prefix('-')?).filter(|s| s.is_multiple_of(self.every))
    }

    /// The snapshot that is to be made at `now` (seconds since 1970), when the volume has snapshots with these names:
    /// that of the period that has begun, if it is not there. Of several that were missed only this one is made.
    pub fn due<'a>(&self, there: impl IntoIterator<Item = &'a str>, now: u64) -> Option<String> {
        let name = self.name_at(now);
        there.into_iter().all(|n| n != name).then_some(name)
    }

    /// Which snapshots are too many, of those that there are in the order in which they were made: the oldest
    /// of this policy beyond those that it keeps. That order and not the times in their names decides, so a clock that
    /// was set wrong and right again neither ends a policy nor has it delete what is new.
    pub fn excess<'a>(&self, there: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
        let of_mine = |n: &&str| self.start_of(n).is_some();
        let mut mine: Vec<&str> = there.into_iter().filter(of_mine).collect();
        mine.truncate(mine.len().saturating_sub(self.keep as usize));
        mine
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "every={},keep={}", period(self.every), self.keep)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.policy.fmt(f)?;
        match &self.group {
            Some(g) => write!(f, ",group={g}"),
            None => Ok(()),
        }
    }
}

fn is_name(text: &str) -> bool {
    let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b);
    (1..=MOST_NAME).contains(&text.len()) && text.bytes().all(good)
}

impl FromStr for Rule {
    type Err = PolicyError;

    /// `every=10m,keep=24` or `every=10m,keep=24,group=db`; blanks will do instead of commas.
    fn from_str(text: &str) -> Result<Rule, PolicyError> {
        let wrong = |why: String| PolicyError { text: text.to_string(), why };
        let (mut every, mut keep, mut group) = (None, None, None);
        let words = text.split(|c: char| c.is_ascii_whitespace() || c == ',');
        for word in words.filter(|w| !w.is_empty()) {
            let (key, value) =
                word.split_once('=').ok_or_else(|| wrong(format!("`{word}` has no `=`")))?;
            let twice = match key {
                "every" => {
                    let n = seconds(value).ok_or_else(|| {
                        wrong(format!("`{value}` is no period: a number and s, m, h or d"))
                    })?;
                    every.replace(n).is_some()
                }
                "keep" => {
                    let n = value.parse().map_err(|_| wrong(format!("`{value}` is no number")))?;
                    keep.replace(n).is_some()
                }
                "group" if !is_name(value) => {
                    let why = format!("a group's name has 1 to {MOST_NAME} of a-z 0-9 . _ -");
                    return Err(wrong(why));
                }
                "group" => group.replace(value.to_string()).is_some(),
                _ => return Err(wrong(format!("`{key}` is unknown"))),
            };
            if twice {
                return Err(wrong(format!("`{key}` is there twice")));
            }
        }
        let every = every.ok_or_else(|| wrong("`every` is missing".into()))?;
        let keep = keep.ok_or_else(|| wrong("`keep` is missing".into()))?;
        let policy = Policy::new(every, keep).map_err(|e| wrong(e.why))?;
        Ok(Rule { policy, group })
    }
}

#[cfg(test)]
mod tests;
