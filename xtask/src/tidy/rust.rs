//! Rust sources as the rules see them: code without comments and texts, and which lines are tests.

use std::collections::BTreeSet;

use super::{TextFile, crate_of};

/// A source file, line by line.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) path: String,
    /// Folder name of its crate.
    pub(crate) crate_name: String,
    /// Code only: comments and what is in quotes are blank.
    pub(crate) code: Vec<String>,
    /// Comments only.
    pub(crate) comments: Vec<String>,
    /// Compiled for tests only.
    pub(crate) test: Vec<bool>,
}

/// All Rust files among `files`.
pub(crate) fn sources(files: &[TextFile]) -> Vec<Source> {
    let mut sources: Vec<Source> = files
        .iter()
        .filter(|file| file.path.ends_with(".rs"))
        .map(|f| read(&f.path, &f.text))
        .collect();
    // Files of modules that their parent compiles for tests only, whatever their name.
    let mut test_files = BTreeSet::new();
    for source in &sources {
        for (line, code) in source.code.iter().enumerate() {
            let name = code.trim().strip_suffix(';').and_then(|code| code.rsplit_once("mod "));
            if let Some((_, name)) = name
                && source.test[line]
            {
                test_files.insert(module_dir(&source.path) + name.trim());
            }
        }
    }
    for source in &mut sources {
        let stem = source.path.strip_suffix(".rs").unwrap_or_default();
        let stem = stem.strip_suffix("/mod").unwrap_or(stem);
        let inside = |prefix: &String| {
            stem.strip_prefix(prefix.as_str()).is_some_and(|r| r.is_empty() || r.starts_with('/'))
        };
        if test_files.iter().any(inside) {
            source.test.fill(true);
        }
    }
    sources
}

/// Where the files of a file's modules lie, with a slash at the end.
fn module_dir(path: &str) -> String {
    let (dir, file) = path.rsplit_once('/').unwrap_or(("", path));
    match file {
        "lib.rs" | "main.rs" | "mod.rs" => format!("{dir}/"),
        _ => format!("{dir}/{}/", file.strip_suffix(".rs").unwrap_or(file)),
    }
}

/// One file by itself.
pub(crate) fn read(path: &str, text: &str) -> Source {
    let (code, comments) = split(text);
    let code: Vec<String> = code.split('\n').map(String::from).collect();
    let comments: Vec<String> = comments.split('\n').map(String::from).collect();
    let is_test_file = path.ends_with("/tests.rs")
        || path.split('/').any(|part| matches!(part, "tests" | "benches" | "examples"));
    let test = if is_test_file { vec![true; code.len()] } else { test_lines(&code) };
    Source { path: path.to_string(), crate_name: crate_of(path).to_string(), code, comments, test }
}

/// Marks the items that stand behind `#[cfg(test)]`.
fn test_lines(code: &[String]) -> Vec<bool> {
    let mut marks = vec![false; code.len()];
    let mut line = 0;
    while line < code.len() {
        let compact: String = code[line].split_whitespace().collect();
        let found = ["#[cfg(test)]", "#[cfg(all(test,", "#![cfg(test)]"]
            .into_iter()
            .find_map(|mark| compact.find(mark).map(|at| (mark, at)));
        let Some((mark, _)) = found else {
            line += 1;
            continue;
        };
        if mark.starts_with("#!") {
            marks.fill(true);
            return marks;
        }
        let end = item_end(code, line);
        marks[line..=end].fill(true);
        line = end + 1;
    }
    marks
}

/// Last line of the item whose attribute is on line `first`: the matching brace, or a semicolon
/// before any brace.
fn item_end(code: &[String], first: usize) -> usize {
    let (mut braces, mut brackets) = (0_i32, 0_i32);
    for (number, line) in code.iter().enumerate().skip(first) {
        for c in line.chars() {
            match c {
                '{' => braces += 1,
                '}' => {
                    braces -= 1;
                    if braces <= 0 {
                        return number;
                    }
                }
                '[' | '(' => brackets += 1,
                ']' | ')' => brackets -= 1,
                ';' if braces == 0 && brackets == 0 => return number,
                _ => {}
            }
        }
    }
    code.len() - 1
}

/// Splits a source into code and comments, each with everything else blank and all lines in place.
fn split(text: &str) -> (String, String) {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut comments = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let (end, kind) = token(&chars, at);
        for &c in &chars[at..end] {
            let blank = if c == '\n' { '\n' } else { ' ' };
            code.push(if kind == Token::Code { c } else { blank });
            comments.push(if kind == Token::Comment { c } else { blank });
        }
        at = end;
    }
    (code, comments)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Token {
    Code,
    Comment,
    Text,
}

/// End and kind of what begins at `at`.
fn token(chars: &[char], at: usize) -> (usize, Token) {
    let next = |n: usize| chars.get(at + n).copied().unwrap_or('\0');
    match (chars[at], next(1)) {
        ('/', '/') => {
            let length = chars[at..].iter().position(|c| *c == '\n');
            (length.map_or(chars.len(), |length| at + length), Token::Comment)
        }
        ('/', '*') => (block_comment_end(chars, at), Token::Comment),
        ('"', _) => (string_end(chars, at), Token::Text),
        ('\'', _) => match char_end(chars, at) {
            Some(end) => (end, Token::Text),
            None => (at + 1, Token::Code),
        },
        (c, _) if c.is_alphanumeric() || c == '_' => {
            let length =
                chars[at..].iter().take_while(|c| c.is_alphanumeric() || **c == '_').count();
            let word: String = chars[at..at + length].iter().collect();
            let after = at + length;
            if matches!(word.as_str(), "r" | "br" | "cr")
                && let Some(end) = raw_string_end(chars, after)
            {
                return (end, Token::Text);
            }
            (after, Token::Code)
        }
        _ => (at + 1, Token::Code),
    }
}

fn block_comment_end(chars: &[char], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0);
    while at + 1 < chars.len() {
        match (chars[at], chars[at + 1]) {
            ('/', '*') => depth += 1,
            ('*', '/') => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    chars.len()
}

fn string_end(chars: &[char], start: usize) -> usize {
    let mut at = start + 1;
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

/// End of `#"…"#` that begins at `start`, behind the `r`; none if it is something else.
fn raw_string_end(chars: &[char], start: usize) -> Option<usize> {
    let hashes = chars[start.min(chars.len())..].iter().take_while(|c| **c == '#').count();
    if chars.get(start + hashes) != Some(&'"') {
        return None;
    }
    let mut at = start + hashes + 1;
    while at < chars.len() {
        let closing = chars[at] == '"'
            && chars[at + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes;
        if closing {
            return Some(at + 1 + hashes);
        }
        at += 1;
    }
    Some(chars.len())
}

/// End of the character literal at `start`; none for a lifetime.
fn char_end(chars: &[char], start: usize) -> Option<usize> {
    match chars.get(start + 1)? {
        '\\' => {
            let rest = &chars[(start + 3).min(chars.len())..];
            rest.iter().position(|c| *c == '\'').map(|length| start + 3 + length + 1)
        }
        _ => (chars.get(start + 2) == Some(&'\'')).then_some(start + 3),
    }
}

/// Whether `word` stands in `line` with nothing of a name before or behind it.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    let in_name = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = !word.starts_with(in_name) || !line[..at].ends_with(in_name);
        let behind = !word.ends_with(in_name) || !line[at + word.len()..].starts_with(in_name);
        before && behind
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        split(text).0
    }

    #[test]
    fn comments_and_texts_are_blank() {
        assert_eq!(code("a // b\nc"), "a     \nc");
        assert_eq!(code("a /* x /* y */ z */ b"), "a                   b");
        assert_eq!(code(r#"f("x\"y", b"z") + 1"#), "f(      , b   ) + 1");
        assert_eq!(code("r#\"a \"b\" c\"# d"), "             d");
        assert_eq!(code("r\"\\\" d"), "     d");
        assert_eq!(
            code("fn f<'a>(x: &'a str, c: char) { c == '\"' || c == '\\'' }").matches('"').count(),
            0
        );
        assert!(code("x: &'a str, y: &'b str").contains("&'a str, y: &'b"));
        assert_eq!(code("'\\u{1F600}' x"), "            x");
        assert_eq!(code("\"never closed\n x"), "             \n  ");
        assert_eq!(code("for r in 0..1 {}"), "for r in 0..1 {}");
    }

    #[test]
    fn comments_are_kept_apart() {
        let source = read("crates/a/src/lib.rs", "x(\"// no\"); // yes\n/// doc\n");
        assert_eq!(source.comments[0].trim(), "// yes");
        assert_eq!(source.comments[1].trim(), "/// doc");
        assert_eq!(source.crate_name, "a");
    }

    #[test]
    fn test_modules_are_marked() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n  fn b() { let s = \"}\"; }\n}\nfn c() {}\n\
            #[cfg(test)]\nuse x;\nfn d() {}\n#[cfg(all(test, unix))]\nfn e() {\n}\nfn g() {}\n";
        let marks = read("crates/a/src/lib.rs", text).test;
        let want = [0, 1, 1, 1, 1, 0, 1, 1, 0, 1, 1, 1, 0, 0].map(|n| n == 1);
        assert_eq!(marks, want);
        // Not for tests only.
        let source = read(
            "crates/a/src/lib.rs",
            "#[cfg(not(test))]\nfn f() {}\n#[cfg(any(test, x))]\nfn g() {}\n",
        );
        assert!(source.test.iter().all(|mark| !mark));
        assert!(
            read("crates/a/src/lib.rs", "#![cfg(test)]\nfn f() {}\n").test.iter().all(|mark| *mark)
        );
    }

    #[test]
    fn files_of_test_modules_are_tests() {
        let file = |path: &str, text: &str| TextFile { path: path.into(), text: text.into() };
        let sources = sources(&[
            file("crates/a/src/lib.rs", "mod b;\n#[cfg(test)]\npub(crate) mod golden;\n"),
            file("crates/a/src/golden.rs", "fn f() {}\n"),
            file("crates/a/src/golden/deep.rs", "fn f() {}\n"),
            file("crates/a/src/golden_not.rs", "fn f() {}\n"),
            file("crates/a/src/b.rs", "fn f() {}\n#[cfg(test)]\nmod check;\n"),
            file("crates/a/src/b/check.rs", "fn f() {}\n"),
            file("crates/a/src/b/tests.rs", "fn f() {}\n"),
            file("crates/a/tests/it.rs", "fn f() {}\n"),
            file("crates/a/README.md", "x\n"),
        ]);
        let tests: Vec<&str> = sources
            .iter()
            .filter(|s| s.test.iter().all(|test| *test))
            .map(|s| s.path.rsplit_once('/').unwrap().1)
            .collect();
        assert_eq!(tests, ["golden.rs", "deep.rs", "check.rs", "tests.rs", "it.rs"]);
        assert_eq!(sources.len(), 8);
    }

    #[test]
    fn words_are_whole() {
        assert!(has_word("unsafe { x }", "unsafe"));
        assert!(!has_word("unsafe_code", "unsafe"));
        assert!(!has_word("my_unsafe", "unsafe"));
        assert!(has_word("x::Instant::now()", "Instant::now"));
        assert!(has_word("a.b(todo!())", "todo!"));
        assert!(!has_word("mytodo!()", "todo!"));
    }
}
