//! `cargo xtask tidy`: the rules of the house that neither the compiler nor clippy checks.
//!
//! Every rule is a function from what it looks at to findings, so that its tests can show samples
//! that it must and must not report.

mod calls;
mod files;
mod floors;
mod licences;
mod promises;
mod pure;
mod rust;
mod size;

use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::metadata;
use crate::process;

/// Something that a rule objects to.
#[derive(Debug)]
pub(crate) struct Finding {
    /// File or package.
    place: String,
    /// Line in the file, from 1; 0: the whole.
    line: usize,
    text: String,
    /// Said, but not counted as a failure.
    warning: bool,
}

impl Finding {
    fn new(place: impl Into<String>, line: usize, text: impl Into<String>) -> Finding {
        Finding { place: place.into(), line, text: text.into(), warning: false }
    }

    fn warning(self) -> Finding {
        Finding { warning: true, ..self }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.warning { "warning: " } else { "error: " })?;
        match self.line {
            0 => write!(f, "{}: {}", self.place, self.text),
            line => write!(f, "{}:{line}: {}", self.place, self.text),
        }
    }
}

/// A text file of the project.
pub(crate) struct TextFile {
    /// Relative to the root, with slashes.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Checks everything. Whether no rule was broken.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let packages = metadata::packages(&root.join("Cargo.toml"), true)?;
    let fuzz = metadata::packages_locked(&root.join("fuzz/Cargo.toml"))?;
    let deny = std::fs::read_to_string(root.join("deny.toml")).context("deny.toml")?;
    let texts = text_files(root)?;
    let sources = rust::sources(&texts);

    let mut findings = lock_file(root)?;
    findings.extend(floors::check(&packages));
    findings.extend(pure::check(&packages));
    findings.extend(licences::check(&packages, &deny));
    findings.extend(licences::check(&fuzz, &deny));
    findings.extend(files::check(&texts));
    findings.extend(promises::check(&texts, &sources));
    findings.extend(size::check(&texts, size::RATCHET));
    for source in &sources {
        findings.extend(calls::check(source));
    }
    for finding in &findings {
        println!("{finding}");
    }
    let denied = cargo_deny(root)?;
    let errors = findings.iter().filter(|finding| !finding.warning).count();
    println!(
        "tidy: {} packages, {} files ({} of Rust), {errors} errors, {} warnings",
        packages.len() + fuzz.len(),
        texts.len(),
        sources.len(),
        findings.len() - errors,
    );
    Ok(errors == 0 && denied)
}

/// Cargo brought the lock file up to date before we ran. In a clean clone that shows as a change.
fn lock_file(root: &Path) -> Result<Vec<Finding>> {
    if std::env::var_os("CI").is_none() {
        return Ok(Vec::new());
    }
    let mut git = Command::new("git");
    git.arg("-C").arg(root).args(["status", "--porcelain", "--", "Cargo.lock"]);
    let changed = !process::capture(&mut git)?.trim().is_empty();
    let text = "is not what the manifests ask for: commit what cargo makes of it";
    Ok(changed.then(|| Finding::new("Cargo.lock", 0, text)).into_iter().collect())
}

/// `cargo deny` knows more of licences than our own check; where it is installed, it is asked too.
fn cargo_deny(root: &Path) -> Result<bool> {
    if !process::exists("cargo-deny", "--version") {
        return Ok(true);
    }
    let mut command = process::cargo();
    command.args(["deny", "--offline", "check", "licenses", "bans", "sources"]).current_dir(root);
    Ok(process::run(&mut command, std::time::Duration::from_secs(300))?.success)
}

/// The text files of the project: those git knows or would add.
fn text_files(root: &Path) -> Result<Vec<TextFile>> {
    let mut git = Command::new("git");
    git.arg("-C").arg(root);
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"]);
    let list = process::capture(&mut git).context("the rules are checked in a git clone")?;
    let mut files = Vec::new();
    for path in list.split('\0').filter(|path| !path.is_empty()) {
        // Deleted but not yet committed, or a link to a folder.
        let Ok(bytes) = std::fs::read(root.join(path)) else { continue };
        if let Ok(text) = String::from_utf8(bytes)
            && !text.contains('\0')
        {
            files.push(TextFile { path: path.to_string(), text });
        }
    }
    Ok(files)
}

/// The folder name of the crate that a file belongs to: `wire` for `crates/wire/src/lib.rs`.
pub(crate) fn crate_of(path: &str) -> &str {
    let mut parts = path.split('/');
    match parts.next() {
        Some("crates") => parts.next().unwrap_or_default(),
        Some(first) => first,
        None => "",
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! What the tests of the rules share.

    use super::Finding;
    use crate::metadata::{Dependency, Kind, Package};

    /// A package of the workspace; a dependency is `name`, `dev:name` or `build:name`.
    pub(crate) fn package(name: &str, dependencies: &[&str]) -> Package {
        let dependencies = dependencies.iter().map(|text| {
            let (kind, name) = match text.split_once(':') {
                Some(("dev", name)) => (Kind::Dev, name),
                Some(("build", name)) => (Kind::Build, name),
                _ => (Kind::Normal, *text),
            };
            Dependency { name: name.to_string(), kind }
        });
        Package {
            name: name.to_string(),
            version: "0.1.0".to_string(),
            license: Some("Apache-2.0".to_string()),
            member: true,
            dir: std::path::PathBuf::new(),
            dependencies: dependencies.collect(),
            bins: Vec::new(),
        }
    }

    /// The findings as text, one on a line.
    pub(crate) fn text(findings: &[Finding]) -> String {
        findings.iter().map(Finding::to_string).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::crate_of;

    #[test]
    fn a_file_belongs_to_a_crate() {
        assert_eq!(crate_of("crates/wire/src/lib.rs"), "wire");
        assert_eq!(crate_of("xtask/src/main.rs"), "xtask");
        assert_eq!(crate_of("fuzz/targets/canary.rs"), "fuzz");
        assert_eq!(crate_of("README.md"), "README.md");
    }
}
