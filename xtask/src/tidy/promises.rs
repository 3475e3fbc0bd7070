//! What `docs/promises.md` names as showing a promise is there: a page that names tests which were
//! renamed or went away would promise more than anybody shows.

use super::rust::Source;
use super::{Finding, TextFile};

const PAGE: &str = "docs/promises.md";

/// Looks at every `path.rs::test` of the page. `::test` alone is of the file that its line named
/// before. Scenarios of the lab are named by their paths.
pub(super) fn check(texts: &[TextFile], sources: &[Source]) -> Vec<Finding> {
    let Some(page) = texts.iter().find(|file| file.path == PAGE) else {
        return vec![Finding::new(PAGE, 0, "does not exist: it says what shows each promise")];
    };
    let mut findings = Vec::new();
    let mut named = 0;
    for (number, line) in page.text.lines().enumerate() {
        let mut file = "";
        // What stands between backticks is every second part.
        for code in line.split('`').skip(1).step_by(2) {
            let text = match code.split_once("::") {
                Some((path, name)) if path.is_empty() || path.ends_with(".rs") => {
                    if !path.is_empty() {
                        file = path;
                    }
                    named += 1;
                    test(file, name, texts, sources)
                }
                _ if code.starts_with("lab/scenarios/") => {
                    let there = texts.iter().any(|file| file.path == code);
                    (!there).then(|| format!("names {code}, which does not exist"))
                }
                _ => None,
            };
            findings.extend(text.map(|text| Finding::new(PAGE, number + 1, text)));
        }
    }
    if named == 0 {
        findings.push(Finding::new(PAGE, 0, "names no test"));
    }
    findings
}

/// What is wrong with naming test `name` of `file`.
fn test(file: &str, name: &str, texts: &[TextFile], sources: &[Source]) -> Option<String> {
    if file.is_empty() {
        return Some(format!("names {name} without a file before it in its line"));
    }
    let Some(source) = sources.iter().find(|source| source.path == file) else {
        return Some(format!("names {file}, which does not exist"));
    };
    let head = format!("fn {name}(");
    let lines = source.code.iter().enumerate();
    let mut found = lines.filter(|(_, line)| line.contains(&head)).map(|(at, _)| at).peekable();
    if found.peek().is_none() {
        return Some(format!("names {name}, which {file} does not have"));
    }
    // A case of a test without the standard harness stands in a list, with its name.
    let case = format!("(\"{name}\", ");
    let of_a_list = || texts.iter().any(|text| text.path == file && text.text.contains(&case));
    if found.any(|at| has_attribute(&source.code[..at])) || of_a_list() {
        return None;
    }
    Some(format!("names {name}, which is no test of {file}"))
}

/// Whether the attributes at the end of `above` make a test of what follows.
fn has_attribute(above: &[String]) -> bool {
    let lines = above.iter().rev().map(|line| line.trim());
    let mut attributes = lines.take_while(|line| line.is_empty() || line.starts_with("#["));
    attributes.any(|line| line == "#[test]" || line.starts_with("#[tokio::test"))
}

#[cfg(test)]
mod tests {
    use super::super::{rust, testing::text};
    use super::*;

    const TESTS: &str = "\
fn helper() {}

/// What it shows.
#[test]
// A remark.
#[cfg(unix)]
fn kept() {}

#[tokio::test(flavor = \"multi_thread\")]
async fn answered() {}

// #[test] fn gone() {}
fn main() { run(&[(\"cut\", cut)]) }
fn cut() {}
";

    fn findings(page: &str) -> String {
        let file = |path: &str, text: &str| TextFile { path: path.into(), text: text.into() };
        let texts = [
            file("crates/a/tests/it/b.rs", TESTS),
            file("lab/scenarios/c.sh", ""),
            file(PAGE, page),
        ];
        text(&check(&texts, &rust::sources(&texts)))
    }

    #[test]
    fn what_is_there_may_be_named() {
        let page = "# Promises\n\n\
            | is kept | `crates/a/tests/it/b.rs::kept`, `::answered` |\n\
            | is not lost | `lab/scenarios/c.sh`, `crates/a/tests/it/b.rs::cut` |\n\
            | other code | `weir status`, `std::fs`, `b.rs` |\n";
        assert_eq!(findings(page), "");
    }

    #[test]
    fn what_is_not_there_is_found() {
        let named = |code: &str| findings(&format!("\n`crates/a/tests/it/b.rs::kept` {code}\n"));
        assert_eq!(
            named("`::lost`"),
            "error: docs/promises.md:2: names lost, which crates/a/tests/it/b.rs does not have"
        );
        assert!(named("`::gone`").contains("does not have"), "a comment");
        assert!(named("`::kep`").contains("does not have"), "a part of a name");
        assert!(named("`::helper`").contains("is no test"));
        assert!(named("`crates/a/tests/b.rs::kept`").contains("b.rs, which does not exist"));
        assert!(named("`lab/scenarios/d.sh`").contains("d.sh, which does not exist"));
        // Names without a file do not reach back over lines.
        assert!(named("\n`::kept`").contains(":3: names kept without a file"));
    }

    #[test]
    fn the_page_is_there_and_names_something() {
        assert!(findings("# Promises\n").contains("names no test"));
        assert!(text(&check(&[], &[])).contains("docs/promises.md: does not exist"));
    }
}
