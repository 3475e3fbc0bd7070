//! Source files stay readable: one idea each.

use super::{Finding, TextFile};

const WARN: usize = 600;
const FAIL: usize = 1000;

/// Files over the limit, with the lines they have. An entry may only shrink, and goes when the file
/// is below the limit.
pub(super) const RATCHET: &[(&str, usize)] = &[];

pub(super) fn check(files: &[TextFile], ratchet: &[(&str, usize)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, _) in ratchet {
        if !files.iter().any(|file| file.path == *path) {
            findings.push(Finding::new(*path, 0, "is on the ratchet list, but does not exist"));
        }
    }
    for file in files.iter().filter(|file| counts(&file.path)) {
        let lines = file.text.lines().count();
        let known = ratchet.iter().find(|(path, _)| *path == file.path).map(|(_, lines)| *lines);
        let text = match known {
            Some(_) if lines <= FAIL => {
                format!("has {lines} lines now: take it off the ratchet list in tidy/size.rs")
            }
            Some(limit) if lines < limit => {
                format!("has {lines} lines now: lower its entry of {limit} in tidy/size.rs")
            }
            Some(limit) if lines == limit => continue,
            Some(limit) => format!("grew from {limit} to {lines} lines: split it"),
            None if lines > FAIL => format!("has {lines} lines, the limit is {FAIL}: split it"),
            None if lines > WARN => {
                let text = format!("has {lines} lines, more than {WARN}");
                findings.push(Finding::new(&file.path, 0, text).warning());
                continue;
            }
            None => continue,
        };
        findings.push(Finding::new(&file.path, 0, text));
    }
    findings
}

/// Whether a file is a source that is not tests only.
fn counts(path: &str) -> bool {
    path.ends_with(".rs") && !path.ends_with("/tests.rs") && !path.contains("/tests/")
}

#[cfg(test)]
mod tests {
    use super::super::testing::text;
    use super::*;

    fn file(path: &str, lines: usize) -> TextFile {
        TextFile { path: path.to_string(), text: "x\n".repeat(lines) }
    }

    #[test]
    fn long_files_are_found() {
        let files = [file("crates/a/src/lib.rs", 600), file("crates/a/src/b.rs", 1000)];
        let findings = check(&files, &[]);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].warning && findings[0].place.ends_with("b.rs"));
        let findings = check(&[file("crates/a/src/c.rs", 1001)], &[]);
        assert!(!findings[0].warning && text(&findings).contains("1001 lines"));
    }

    #[test]
    fn tests_and_other_files_may_be_long() {
        let files = [
            file("crates/a/src/tests.rs", 5000),
            file("crates/a/tests/it.rs", 5000),
            file("docs/a.md", 5000),
        ];
        assert_eq!(text(&check(&files, &[])), "");
        // But not every name that ends so.
        assert!(!check(&[file("crates/a/src/contests.rs", 5000)], &[]).is_empty());
    }

    #[test]
    fn the_ratchet_only_shrinks() {
        let ratchet = [("a.rs", 1200)];
        let of = |lines| text(&check(&[file("a.rs", lines)], &ratchet));
        assert_eq!(of(1200), "");
        assert!(of(1201).contains("grew"));
        assert!(of(1100).contains("lower"));
        assert!(of(900).contains("take it off"));
        assert!(text(&check(&[], &ratchet)).contains("does not exist"));
    }
}
