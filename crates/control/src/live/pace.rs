//! How fast what takes long goes on, and when it will be done: from what was seen of it in the last seconds.

use crate::platform::Instant;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use utoipa::ToSchema;

/// Over how long a pace is measured.
const WINDOW: Duration = Duration::from_secs(15);
/// Two looks that are closer to each other count as one.
const APART: Duration = Duration::from_millis(200);
/// Less than this says nothing.
const LEAST: Duration = Duration::from_millis(500);
/// What was not seen for so long is over.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// How fast something goes on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Pace {
    /// Bytes a second of late. Filled in by the controller; 0 when nothing is known yet.
    pub bytes_per_second: u64,
    /// Seconds until this state of it is done at that rate; none when it does not go on, or nothing is known yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
}

/// What was seen of everything that takes long, by name.
#[derive(Debug, Default)]
pub(crate) struct Paces(BTreeMap<String, VecDeque<(Instant, u64)>>);

impl Paces {
    /// Notes that so many bytes of so many are done of it now, and gives its pace.
    pub(crate) fn see(&mut self, name: &str, done: u64, total: u64, now: Instant) -> Pace {
        let since = |t: &Instant| now.saturating_duration_since(*t);
        self.0.retain(|_, s| s.back().is_some_and(|(t, _)| since(t) < FORGOTTEN));
        let seen = self.0.entry(name.to_owned()).or_default();
        if seen.back().is_some_and(|(_, d)| *d > done) {
            // It began anew.
            seen.clear();
        }
        if seen.back().is_none_or(|(t, _)| since(t) >= APART) {
            seen.push_back((now, done));
        }
        while seen.len() > 2 && seen.front().is_some_and(|(t, _)| since(t) > WINDOW) {
            seen.pop_front();
        }
        let Some((from, before)) = seen.front().copied() else { return Pace::default() };
        let took = since(&from);
        if took < LEAST {
            return Pace::default();
        }
        let bytes_per_second = ((done - before) as f64 / took.as_secs_f64()) as u64;
        let seconds_left = total.saturating_sub(done).checked_div(bytes_per_second);
        Pace { bytes_per_second, seconds_left }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_of_late_and_begins_anew() {
        let (mut p, begin) = (Paces::default(), Instant::now());
        let at = |ms: u64| begin + Duration::from_millis(ms);
        let pace = |bytes_per_second, seconds_left| Pace { bytes_per_second, seconds_left };
        assert_eq!(p.see("a", 0, 1000, at(0)), Pace::default(), "one look says nothing");
        assert_eq!(p.see("a", 0, 1000, at(100)), Pace::default(), "two at once neither");
        assert_eq!(p.see("a", 200, 1000, at(2000)), pace(100, Some(8)));
        assert_eq!(p.see("b", 0, 1000, at(2000)), Pace::default(), "each by itself");
        // What it was long ago does not count.
        for s in 3..40 {
            p.see("a", 200, 1000, at(s * 1000));
        }
        assert_eq!(p.see("a", 200, 1000, at(40_000)), pace(0, None));
        assert_eq!(p.see("a", 10, 1000, at(41_000)), Pace::default(), "the next state of it");
        assert_eq!(p.see("a", 110, 1000, at(42_000)), pace(100, Some(8)));
        // More than was thought, and none at all.
        assert_eq!(p.see("a", 1010, 1000, at(51_000)).seconds_left, Some(0));
        assert_eq!(p.0.len(), 2);
        p.see("c", 0, 0, at(112_000));
        assert_eq!(p.0.keys().collect::<Vec<_>>(), ["c"], "what is over is forgotten");
    }
}
