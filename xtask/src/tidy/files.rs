//! Rules for every text file: clean line ends, no words that say "not done", no one's own paths.

use super::{Finding, TextFile};

/// Words that mark unfinished work. Put together here, so that this file does not have them.
const WORDS: &[&str] = &[concat!("FIX", "ME"), concat!("XX", "X:"), concat!("HA", "CK:")];

/// Folders of one machine, which mean nothing on another.
const MACHINE_PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ho", "me/")];

/// Largest text file, in bytes: generated or recorded data does not belong here.
const MAX_BYTES: usize = 1 << 20;

pub(super) fn check(files: &[TextFile]) -> Vec<Finding> {
    files.iter().filter(|file| applies(&file.path)).flat_map(one).collect()
}

/// Not what a machine writes: fuzz inputs, plots, and cargo's own file.
fn applies(path: &str) -> bool {
    !path.starts_with("fuzz/corpus/") && !path.ends_with(".svg") && !path.ends_with("Cargo.lock")
}

fn one(file: &TextFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut object = |line, text: String| findings.push(Finding::new(&file.path, line, text));
    if file.text.len() > MAX_BYTES {
        object(0, format!("has {} bytes: too large to be read by anybody", file.text.len()));
    }
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        object(0, "has no newline at its end".into());
    }
    if file.text.ends_with("\n\n") {
        object(0, "ends with an empty line".into());
    }
    if file.path.ends_with(".md") {
        for n in torn_tables(&file.text) {
            object(n, "a table begins here without a head: is it torn?".into());
        }
    }
    for (n, line) in file.text.split('\n').enumerate() {
        if line.ends_with([' ', '\t']) {
            object(n + 1, "white space at the end of the line".into());
        }
        if line.ends_with('\r') {
            object(n + 1, "a carriage return at the end of the line".into());
        }
        for word in WORDS.iter().filter(|word| line.contains(**word)) {
            object(n + 1, format!("`{word}`: finish it, or open an issue"));
        }
        for path in MACHINE_PATHS.iter().filter(|path| names_path(line, path)) {
            object(n + 1, format!("`{path}` is a folder of one machine"));
        }
    }
    findings
}

/// Lines of Markdown where rows of a table begin that have no head, as below an empty line: they are shown as text.
fn torn_tables(text: &str) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().collect();
    let is_row = |n: usize| lines.get(n).is_some_and(|l| l.starts_with('|'));
    let begins = |n: &usize| is_row(*n) && (*n == 0 || !is_row(*n - 1));
    let has_head =
        |n: &usize| lines.get(*n + 1).is_some_and(|l| l.starts_with("|-") || l.starts_with("| -"));
    (0..lines.len()).filter(begins).filter(|n| !has_head(n)).map(|n| n + 1).collect()
}

/// Whether `line` has `path` as the beginning of a path, not inside another one.
fn names_path(line: &str, path: &str) -> bool {
    let inside = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '~' | '}' | ')');
    line.match_indices(path).any(|(at, _)| !line[..at].ends_with(inside))
}

#[cfg(test)]
mod tests {
    use super::super::testing::text;
    use super::*;

    fn found(content: &str) -> String {
        let file = TextFile { path: "a.sh".to_string(), text: content.to_string() };
        text(&check(&[file]))
    }

    #[test]
    fn clean_files_pass() {
        assert_eq!(found(""), "");
        assert_eq!(found("one\n\n\ttwo\n"), "");
        let [a, b] = MACHINE_PATHS else { panic!("two are known") };
        assert_eq!(found(&format!("${{ROOT}}{a}x y{a}z ~{b}x\n")), "");
    }

    #[test]
    fn each_rule_finds_its_sample() {
        let cases = [
            ("a".to_string(), "no newline"),
            ("a\n\n".to_string(), "empty line"),
            ("a \nb\n".to_string(), "a.sh:1: white space"),
            ("a\nb\t\n".to_string(), "a.sh:2: white space"),
            ("a\r\n".to_string(), "carriage return"),
            (format!("# {}: later\n", WORDS[0]), "finish it"),
            (format!("cd {}x\n", MACHINE_PATHS[0]), "one machine"),
            (format!("P=\"{}me\"\n", MACHINE_PATHS[1]), "one machine"),
            ("x".repeat(MAX_BYTES) + "\n", "too large"),
        ];
        for (content, want) in cases {
            let text = found(&content);
            assert!(text.contains(want), "{want}: {text}");
            assert_eq!(text.lines().count(), 1, "{want}: {text}");
        }
    }

    #[test]
    fn a_torn_table_is_found() {
        let found = |content: &str| {
            let file = TextFile { path: "a.md".to_string(), text: content.to_string() };
            text(&check(&[file]))
        };
        let table = "| a | b |\n|---|---|\n| 1 | 2 |\n";
        assert_eq!(found(&format!("text\n\n{table}\n{table}")), "");
        assert!(found(&format!("{table}\n| 3 | 4 |\n")).contains("a.md:5: a table begins"));
        assert!(found("| 3 | 4 |\n").contains("a.md:1: "));
    }

    #[test]
    fn what_machines_write_is_left_alone() {
        for path in ["fuzz/corpus/a/b", "docs/a.svg", "Cargo.lock", "fuzz/Cargo.lock"] {
            let file = TextFile { path: path.to_string(), text: "a \n\n".to_string() };
            assert_eq!(text(&check(&[file])), "", "{path}");
        }
    }
}
