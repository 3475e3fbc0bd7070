//! Counting what `cargo test` ran.

use crate::tally::Tally;

/// Sums over all test programs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) tally: Tally,
    pub(crate) ignored: u64,
    pub(crate) programs: u64,
}

/// Adds up every line `test result: ok. 3 passed; 0 failed; 0 ignored; …`.
pub(crate) fn of_cargo_test(output: &str) -> Counts {
    let mut counts = Counts::default();
    // A test's own output may stand before the words on the same line.
    for (_, result) in output.lines().filter_map(|line| line.split_once("test result: ")) {
        let Some((_, numbers)) = result.split_once(". ") else { continue };
        counts.programs += 1;
        for field in numbers.split(';') {
            let Some((number, word)) = field.trim().split_once(' ') else { continue };
            let Ok(number) = number.parse::<u64>() else { continue };
            match word {
                "passed" => counts.tally.passed += number,
                "failed" => counts.tally.failed += number,
                "ignored" => counts.ignored += number,
                _ => {}
            }
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_up_all_programs() {
        let output = "running 3 tests\n\
            test a ... ok\n\
            test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s\n\
            noise test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n";
        let want = Counts { tally: Tally { passed: 4, failed: 2 }, ignored: 1, programs: 2 };
        assert_eq!(of_cargo_test(output), want);
    }

    #[test]
    fn no_result_is_no_count() {
        assert_eq!(of_cargo_test("error: could not compile\n"), Counts::default());
        assert_eq!(of_cargo_test("test result: \n"), Counts::default());
    }
}
