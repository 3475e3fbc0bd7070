//! Periodic snapshots as a decision without I/O: a policy, the snapshots that are there and the time, in; what is to be
//! made and deleted, and when to ask again, out.
//!
//! A policy is text such as `every=10m keep=24`: a snapshot in each period of ten minutes, of which the newest 24
//! are kept. Several policies of a volume do not touch each other's snapshots, since each has its own names:
//! `auto-10m-TIME`, with the start of the period in seconds since 1970.

use std::fmt;
use std::str::FromStr;

/// Units of a period, longest first.
const UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3600), ('m', 60), ('s', 1)];
/// Shortest period in seconds.
const SHORTEST: u64 = 10;
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

/// What is wrong with the text of a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no policy for snapshots: {why}; write `every=10m keep=24`")]
pub struct PolicyError {
    text: String,
    why: String,
}

/// What a policy asks for now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decision {
    /// Name of the snapshot to make, if it is time.
    pub create: Option<String>,
    /// Names of snapshots to delete, oldest first, when the new one is there.
    pub delete: Vec<String>,
    /// When to ask again, in seconds since 1970.
    pub next: u64,
}

fn period(seconds: u64) -> String {
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

impl Policy {
    /// A snapshot in each period of `every` seconds, `keep` of them kept.
    ///
    /// # Errors
    /// The period is not 10 s to 366 days, or the number not 1 to 1000.
    pub fn new(every: u64, keep: u32) -> Result<Policy, PolicyError> {
        let wrong = |why: String| {
            Err(PolicyError { text: format!("every={} keep={keep}", period(every)), why })
        };
        if !(SHORTEST..=LONGEST).contains(&every) {
            return wrong(format!("a period is {SHORTEST} s to 366 d"));
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

    /// The name of the snapshot of the period that begins at `start`.
    fn name(&self, start: u64) -> String {
        format!("auto-{}-{start}", period(self.every))
    }

    /// When the period of a snapshot of this policy began; `None`: it is not of this policy.
    pub fn start_of(&self, name: &str) -> Option<u64> {
        let rest = name.strip_prefix("auto-")?.strip_prefix(&period(self.every))?;
        let start = rest.strip_prefix('-')?.parse().ok()?;
        (self.name(start) == name).then_some(start)
    }

    /// What is to be done at `now` (seconds since 1970), when the volume has snapshots with these names.
    ///
    /// One snapshot is made for the period that has begun, also when several were missed; none, when there is
    /// one of this period or of a later one (a clock that was set back makes no snapshot twice). Never is anything
    /// deleted but the oldest snapshots of this policy beyond those that it keeps.
    pub fn decide<'a>(&self, there: impl IntoIterator<Item = &'a str>, now: u64) -> Decision {
        let mut mine: Vec<u64> = there.into_iter().filter_map(|n| self.start_of(n)).collect();
        mine.sort_unstable();
        mine.dedup();
        let start = now - now % self.every;
        let due = mine.last().is_none_or(|newest| *newest < start);
        let after = mine.len() + usize::from(due);
        let many = after.saturating_sub(self.keep as usize).min(mine.len());
        Decision {
            create: due.then(|| self.name(start)),
            delete: mine[..many].iter().map(|s| self.name(*s)).collect(),
            next: start.saturating_add(self.every),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "every={} keep={}", period(self.every), self.keep)
    }
}

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Policy, PolicyError> {
        let wrong = |why: String| PolicyError { text: text.to_string(), why };
        let (mut every, mut keep) = (None, None);
        for word in text.split_whitespace() {
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
                _ => return Err(wrong(format!("`{key}` is unknown"))),
            };
            if twice {
                return Err(wrong(format!("`{key}` is there twice")));
            }
        }
        let every = every.ok_or_else(|| wrong("`every` is missing".into()))?;
        let keep = keep.ok_or_else(|| wrong("`keep` is missing".into()))?;
        Policy::new(every, keep).map_err(|e| wrong(e.why))
    }
}

#[cfg(test)]
mod tests;
