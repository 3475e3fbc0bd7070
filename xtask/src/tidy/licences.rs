//! Licences of everything that is linked in, against the list in `deny.toml`.

use super::Finding;
use crate::metadata::Package;

pub(super) fn check(packages: &[Package], deny: &str) -> Vec<Finding> {
    let allowed = allowed(deny);
    if allowed.is_empty() {
        return vec![Finding::new("deny.toml", 0, "has no `allow` list under [licenses]")];
    }
    packages
        .iter()
        .filter_map(|package| {
            let name = format!("{} {}", package.name, package.version);
            match package.license.as_deref().map(|text| satisfied(text, &allowed)) {
                Some(Some(true)) => None,
                Some(Some(false)) => {
                    let license = package.license.as_deref().unwrap_or_default();
                    Some(Finding::new(
                        name,
                        0,
                        format!("licence `{license}` is not among those that deny.toml allows"),
                    ))
                }
                Some(None) => Some(Finding::new(name, 0, "its licence cannot be read")),
                None => Some(Finding::new(name, 0, "names no licence")),
            }
        })
        .collect()
}

/// The strings of `allow = [ … ]` in the section `[licenses]`.
fn allowed(deny: &str) -> Vec<String> {
    let without_comments: Vec<&str> =
        deny.lines().map(|line| line.split('#').next().unwrap_or_default().trim()).collect();
    let mut section = without_comments.iter().skip_while(|line| **line != "[licenses]").skip(1);
    let mut list = String::new();
    let mut inside = false;
    for line in section.by_ref().take_while(|line| !line.starts_with("[")) {
        let rest = match line.split_once('=') {
            Some((key, value)) if key.trim() == "allow" => value,
            _ if inside => line,
            _ => continue,
        };
        inside = true;
        list.push_str(rest);
        if rest.contains(']') {
            break;
        }
    }
    list.split('"').skip(1).step_by(2).map(String::from).collect()
}

/// Whether an SPDX expression can be met with the allowed licences; none if it is not one.
fn satisfied(expression: &str, allowed: &[String]) -> Option<bool> {
    // Old manifests write a slash for OR.
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser { words: &words, at: 0, allowed };
    let value = parser.any()?;
    (parser.at == words.len()).then_some(value)
}

struct Parser<'a> {
    words: &'a [&'a str],
    at: usize,
    allowed: &'a [String],
}

impl Parser<'_> {
    fn take(&mut self, word: &str) -> bool {
        let found = self.words.get(self.at) == Some(&word);
        self.at += usize::from(found);
        found
    }

    fn any(&mut self) -> Option<bool> {
        let mut value = self.all()?;
        while self.take("OR") {
            value |= self.all()?;
        }
        Some(value)
    }

    fn all(&mut self) -> Option<bool> {
        let mut value = self.one()?;
        while self.take("AND") {
            value &= self.one()?;
        }
        Some(value)
    }

    fn one(&mut self) -> Option<bool> {
        if self.take("(") {
            let value = self.any()?;
            return self.take(")").then_some(value);
        }
        let mut name = self.word()?.to_string();
        if self.take("WITH") {
            name = format!("{name} WITH {}", self.word()?);
        }
        Some(self.allowed.contains(&name))
    }

    fn word(&mut self) -> Option<&str> {
        let word = *self.words.get(self.at)?;
        self.at += 1;
        (!matches!(word, "OR" | "AND" | "WITH" | "(" | ")")).then_some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{package, text};
    use super::*;

    const DENY: &str = "[graph]\nallow = [\"GPL-3.0\"]\n[licenses]\n# \"AGPL-3.0\"\nallow = [\n  \
        \"MIT\", # fine\n  \"Apache-2.0\",\n  \"Apache-2.0 WITH LLVM-exception\",\n]\n[bans]\n\
        allow = [\"BSL-1.0\"]\n";

    #[test]
    fn reads_the_list() {
        assert_eq!(allowed(DENY), ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"]);
        assert_eq!(allowed("[licenses]\nallow = [\"MIT\"]\n"), ["MIT"]);
        assert!(allowed("allow = [\"MIT\"]\n").is_empty());
    }

    #[test]
    fn judges_expressions() {
        let allowed = allowed(DENY);
        let cases = [
            ("MIT", Some(true)),
            ("GPL-3.0", Some(false)),
            ("GPL-3.0 OR MIT", Some(true)),
            ("MIT/GPL-3.0", Some(true)),
            ("MIT AND GPL-3.0", Some(false)),
            ("(MIT OR GPL-3.0) AND Apache-2.0", Some(true)),
            ("MIT AND (GPL-3.0 OR BSL-1.0)", Some(false)),
            ("Apache-2.0 WITH LLVM-exception", Some(true)),
            ("MIT WITH LLVM-exception", Some(false)),
            ("GPL-3.0 OR MIT AND BSL-1.0", Some(false)),
            ("MIT OR", None),
            ("(MIT", None),
            ("MIT Apache-2.0", None),
            ("", None),
        ];
        for (expression, want) in cases {
            assert_eq!(satisfied(expression, &allowed), want, "{expression}");
        }
    }

    #[test]
    fn packages_are_judged() {
        let mut packages = [package("a", &[]), package("b", &[]), package("c", &[])];
        packages[1].license = Some("GPL-3.0".to_string());
        packages[2].license = None;
        let found = text(&check(&packages, DENY));
        assert_eq!(found.lines().count(), 2, "{found}");
        assert!(
            found.contains("b 0.1.0: licence `GPL-3.0`") && found.contains("c 0.1.0: names no")
        );
        assert!(text(&check(&packages, "")).contains("allow"));
    }
}
