//! What the machine could do before and after a scenario: figures of different hours or machines are told
//! apart by it.

use super::ScenarioError;
use super::runner::Runner;
use crate::bare::{Ends, bounce, request_response};
use crate::units;
use serde_json::{Value, json};
use weir_base::{MILLIS, Nanos};

/// Per figure.
const TIME: Nanos = 400 * MILLIS;
/// Round trips of a cache line below this are between two threads of one core, in nanoseconds.
pub(super) const NEAR: f64 = 180.0;
/// A machine that became so much faster or slower during a run is worth a warning.
const CHANGED: f64 = 1.25;

/// What the machine can do at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Reference {
    /// Round trip of a cache line between a core of each side, nanoseconds.
    line: f64,
    /// 72 bytes answered by 4 KiB over TCP, one at a time: mean, nanoseconds.
    serial: f64,
    /// The same with 32 outstanding, per second.
    rate: f64,
}

impl Reference {
    /// Measures; `None` when both sides share a core, where two spinning ends only disturb each other.
    pub(super) fn measure(r: &Runner<'_>) -> Result<Option<Reference>, ScenarioError> {
        let cores = r.cores.first(1);
        if cores.shared() {
            return Ok(None);
        }
        let ends = Ends { far: cores.target.first().copied(), near: cores.load.first().copied() };
        let measured = || -> std::io::Result<Reference> {
            Ok(Reference {
                line: bounce(ends, TIME / 4)?,
                serial: request_response(ends, 72, 4096, 1, None, TIME)?.latency.mean(),
                rate: request_response(ends, 72, 4096, 32, None, TIME)?.iops(),
            })
        };
        let reference =
            measured().map_err(|e| ScenarioError::System("the bare TCP loop".into(), e))?;
        Ok(Some(reference))
    }

    fn class(&self) -> &'static str {
        if self.line < NEAR { "near" } else { "far" }
    }

    fn json(&self) -> Value {
        json!({ "cache_line_ns": self.line, "cores": self.class(),
            "bare_4k_serial_ns": self.serial, "bare_4k_depth32_iops": self.rate })
    }
}

/// Before and after.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Frame(pub(super) Reference, pub(super) Reference);

impl Frame {
    /// True when figures from the beginning and the end of the run can be compared.
    fn is_steady(&self) -> bool {
        let Frame(a, b) = self;
        let near = |x: f64, y: f64| x.max(y) <= CHANGED * x.min(y);
        a.class() == b.class() && near(a.serial, b.serial) && near(a.rate, b.rate)
    }

    /// For a page.
    pub(super) fn text(&self) -> String {
        let Frame(a, b) = self;
        let mut t = format!(
            "A bare TCP loop between a core of each side, before and after: 72 bytes answered by 4 KiB take {} and {} one \
             at a time; with 32 outstanding there are {} and {} per second. A cache line goes there and back in {:.0} and \
             {:.0} ns ({}, {}).",
            units::nanos(a.serial),
            units::nanos(b.serial),
            units::si(a.rate),
            units::si(b.rate),
            a.line,
            b.line,
            a.class(),
            b.class()
        );
        if !self.is_steady() {
            t += " **These differ: something else used the machine, or its cores moved. Points of this page may not be \
                  comparable with each other.**";
        }
        t
    }

    pub(super) fn json(&self) -> Value {
        json!({ "before": self.0.json(), "after": self.1.json(), "steady": self.is_steady() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_changed_is_told() {
        let a = Reference { line: 90.0, serial: 10_000.0, rate: 1e6 };
        assert!(Frame(a, Reference { rate: 0.9e6, ..a }).is_steady());
        assert!(!Frame(a, Reference { rate: 0.7e6, ..a }).is_steady());
        assert!(!Frame(a, Reference { line: 300.0, ..a }).is_steady());
        assert!(!Frame(a, a).text().contains("**") && Frame(a, a).text().contains("near"));
        assert!(Frame(a, Reference { serial: 20_000.0, ..a }).text().contains("**These differ"));
    }
}
