//! Counts of what passed and what failed, and the line that reports them.

use std::fmt;
use std::ops::AddAssign;

/// What passed and what failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl Tally {
    /// One thing, which passed or did not.
    pub(crate) fn one(passed: bool) -> Tally {
        Tally { passed: u64::from(passed), failed: u64::from(!passed) }
    }

    /// Reads the line that this type prints, as other programs of the project print it too.
    pub(crate) fn parse(line: &str) -> Option<Tally> {
        let (passed, failed) = line.trim().split_once(" passed, ")?;
        let failed = failed.strip_suffix(" failed")?;
        Some(Tally { passed: passed.parse().ok()?, failed: failed.parse().ok()? })
    }

    /// The counts of a program that ended: its last line if that is a count, else the program itself
    /// counts as one. A failure status with no counted failure is a failure of its own.
    pub(crate) fn of_program(output: &str, success: bool) -> Tally {
        let last = output.lines().rev().find(|line| !line.trim().is_empty());
        let mut tally = last.and_then(Tally::parse).unwrap_or_default();
        if tally == Tally::default() {
            return Tally::one(success);
        }
        if !success && tally.failed == 0 {
            tally.failed = 1;
        }
        tally
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::Tally;

    #[test]
    fn prints_what_it_reads() {
        let tally = Tally { passed: 12, failed: 3 };
        assert_eq!(tally.to_string(), "12 passed, 3 failed");
        assert_eq!(Tally::parse("12 passed, 3 failed"), Some(tally));
        assert_eq!(Tally::parse("12 passed, 3 failed, 1 skipped"), None);
        assert_eq!(Tally::parse("all passed"), None);
    }

    #[test]
    fn a_program_is_believed_only_as_far_as_its_status() {
        let of = |text, ok| Tally::of_program(text, ok);
        assert_eq!(of("x\n5 passed, 0 failed\n\n", true), Tally { passed: 5, failed: 0 });
        assert_eq!(of("5 passed, 0 failed\n", false), Tally { passed: 5, failed: 1 });
        assert_eq!(of("5 passed, 2 failed\n", false), Tally { passed: 5, failed: 2 });
        assert_eq!(of("done\n", true), Tally { passed: 1, failed: 0 });
        assert_eq!(of("", false), Tally { passed: 0, failed: 1 });
        assert_eq!(of("0 passed, 0 failed\n", false), Tally { passed: 0, failed: 1 });
    }
}
