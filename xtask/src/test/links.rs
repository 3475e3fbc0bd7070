//! Relative links in the documents must lead somewhere.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Checks README.md, ARCHITECTURE.md and docs/**/*.md. Whether all links point to existing files, and what is to be
/// said of them.
pub(crate) fn check(root: &Path) -> Result<(bool, String)> {
    let mut files = vec![root.join("README.md"), root.join("ARCHITECTURE.md")];
    files.retain(|file| file.is_file());
    collect(&root.join("docs"), &mut files)?;
    let mut said = String::new();
    let mut broken = 0;
    for file in &files {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let name = file.strip_prefix(root).unwrap_or(file).display();
        let dir = file.parent().unwrap_or(root);
        for (line, target) in links(&text) {
            if !exists(root, dir, &target) {
                said += &format!("{name}:{line}: link to `{target}`, which does not exist\n");
                broken += 1;
            }
        }
    }
    said += &format!("links: {} documents, {broken} broken links\n", files.len());
    Ok((broken == 0, said))
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if !dir.is_dir() {
        return Ok(());
    }
    let mut entries: Vec<PathBuf> =
        fs::read_dir(dir)?.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            files.push(path);
        }
    }
    Ok(())
}

fn exists(root: &Path, dir: &Path, target: &str) -> bool {
    let path = target.split(['#', '?']).next().unwrap_or_default().replace("%20", " ");
    let path = path.as_str();
    match path.strip_prefix('/') {
        _ if path.is_empty() => true,
        Some(from_root) => root.join(from_root).exists(),
        None => dir.join(path).exists(),
    }
}

/// Line and target of every link that has no scheme: `[text](target)`, `![](target)`, `[label]: target`,
/// `src="target"`, `href="target"`. Code is left out.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut fence: Option<&str> = None;
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| trimmed.starts_with(mark));
        match (fence, mark) {
            (None, Some(mark)) => {
                fence = Some(mark);
                continue;
            }
            (Some(open), mark) => {
                if mark == Some(open) {
                    fence = None;
                }
                continue;
            }
            (None, None) => {}
        }
        let line = without_code(line);
        let mut add = |target: &str| {
            let target = target.trim().trim_start_matches('<');
            let target = target.split([' ', '>']).next().unwrap_or_default();
            if !target.is_empty() && !has_scheme(target) {
                found.push((number + 1, target.to_string()));
            }
        };
        for rest in line.split("](").skip(1) {
            if let Some((target, _)) = rest.split_once(')') {
                add(target);
            }
        }
        for attribute in ["src=\"", "href=\""] {
            for rest in line.split(attribute).skip(1) {
                if let Some((target, _)) = rest.split_once('"') {
                    add(target);
                }
            }
        }
        if let Some((label, target)) = line.split_once("]: ")
            && label.starts_with('[')
            && !label.starts_with("[^")
        {
            add(target);
        }
    }
    found
}

/// The line with `code spans` taken out.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join(" ")
}

fn has_scheme(target: &str) -> bool {
    let scheme = target.split(':').next().unwrap_or_default();
    target.starts_with("//")
        || (scheme.len() < target.len()
            && scheme.len() > 1
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_relative_links_only() {
        let text = "See [a](docs/a.md#part) and ![b](<img/b.png> \"title\"), `[no](code.md)`,\n\
            [web](https://x.org/y.md), [mail](mailto:x@y.z).\n\
            ```\n[fenced](gone.md)\n```\n\
            [label]: ./c.md\n[^note]: not a link.md\n<img src=\"d.svg\">\n";
        let want = [(1, "docs/a.md#part"), (1, "img/b.png"), (6, "./c.md"), (8, "d.svg")];
        let want: Vec<(usize, String)> = want.map(|(n, t)| (n, t.to_string())).to_vec();
        assert_eq!(links(text), want);
    }

    #[test]
    fn a_link_must_lead_somewhere() {
        let dir = std::env::temp_dir().join(format!("weir-links-{}", std::process::id()));
        fs::create_dir_all(dir.join("docs/sub")).unwrap();
        fs::write(dir.join("README.md"), "[a](docs/a.md#x) [self](#part) [root](/docs/a.md)\n")
            .unwrap();
        fs::write(dir.join("docs/a.md"), "[up](../README.md) [dir](sub)\n").unwrap();
        assert!(check(&dir).unwrap().0);
        fs::write(dir.join("docs/sub/b.md"), "[gone](a.md)\n").unwrap();
        let (passed, said) = check(&dir).unwrap();
        assert!(!passed && said.starts_with("docs/sub/b.md:1: link to `a.md`"), "{said}");
        fs::remove_dir_all(&dir).unwrap();
    }
}
