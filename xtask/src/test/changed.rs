//! What a change concerns: the packages that git says were touched, and all that depend on them.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::metadata::{self, Package};
use crate::process;
use crate::sim;

/// Whose tests read what stands in `docs/`, `openapi/` and `lab/`.
const READERS: &[&str] = &["weir-layers", "weir-control"];
/// What no test reads.
const UNREAD: &[&str] =
    &["README.md", "ARCHITECTURE.md", ".ci/", ".gitignore", "deny.toml", "lab/"];

/// What is run for a change.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Scope {
    /// Names of packages.
    pub(crate) packages: BTreeSet<String>,
    pub(crate) sim: bool,
    pub(crate) fuzz: bool,
}

impl Scope {
    /// Whether it has use for a step. What is quick, or looks at documents, is always run.
    pub(crate) fn has(&self, step: &str) -> bool {
        match step {
            "clippy" | "tests" => !self.packages.is_empty(),
            "sim" => self.sim,
            "fuzz" => self.fuzz,
            _ => true,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.packages.iter().map(String::as_str).collect();
        let fuzz = if self.fuzz { " fuzz" } else { "" };
        if names.is_empty() && !self.fuzz {
            return f.write_str("no package");
        }
        write!(f, "{}{fuzz}", names.join(" "))
    }
}

/// What is concerned by that in which the working tree differs from where it left `main`.
pub(crate) fn scope(root: &Path, packages: &[Package]) -> Result<Scope> {
    let fuzz = metadata::packages(&root.join("fuzz/Cargo.toml"), false)?;
    let fuzz = fuzz.first().context("fuzz/ has no package")?;
    Ok(concerned(root, &files(root)?, packages, fuzz))
}

/// Every file that was changed, added or removed, committed or not, relative to the root.
fn files(root: &Path) -> Result<Vec<String>> {
    let git = |args: &[&str]| process::capture(Command::new("git").arg("-C").arg(root).args(args));
    let base =
        ["main", "origin/main"].iter().find_map(|main| git(&["merge-base", "HEAD", main]).ok());
    let base = base.context("git knows no `main` that this branch comes from")?;
    let mut names = git(&["diff", "--name-only", "--no-renames", base.trim()])?;
    names += &git(&["ls-files", "--others", "--exclude-standard"])?;
    Ok(names.lines().map(String::from).collect())
}

fn concerned(root: &Path, files: &[String], packages: &[Package], fuzz: &Package) -> Scope {
    let mut names: BTreeSet<&str> = BTreeSet::new();
    let mut fuzz_itself = false;
    for file in files {
        let path = root.join(file);
        let owner = packages.iter().find(|package| path.starts_with(&package.dir));
        if let Some(package) = owner {
            names.insert(&package.name);
        } else if path.starts_with(&fuzz.dir) {
            fuzz_itself = true;
        } else if file.starts_with("docs/") || file.starts_with("openapi/") {
            names.extend(READERS);
        } else if !UNREAD.iter().any(|unread| file.starts_with(unread)) {
            // Manifests, the lock file, settings of tools: anything may be another.
            names.extend(packages.iter().map(|package| package.name.as_str()));
            fuzz_itself = true;
        }
    }
    let above = |package: &Package, names: &BTreeSet<&str>| {
        package.dependencies.iter().any(|dependency| names.contains(dependency.name.as_str()))
    };
    loop {
        let more: Vec<&str> = packages
            .iter()
            .filter(|package| !names.contains(package.name.as_str()) && above(package, &names))
            .map(|package| package.name.as_str())
            .collect();
        if more.is_empty() {
            break;
        }
        names.extend(more);
    }
    Scope {
        sim: names.contains(sim::PACKAGE),
        fuzz: fuzz_itself || above(fuzz, &names),
        packages: names.into_iter().map(String::from).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::{Dependency, Kind};

    fn package(name: &str, dir: &str, needs: &[&str]) -> Package {
        let dependency = |name: &&str| Dependency { name: (*name).into(), kind: Kind::Dev };
        Package {
            name: name.into(),
            version: "0.1.0".into(),
            license: None,
            member: true,
            dir: Path::new("/x").join(dir),
            dependencies: needs.iter().map(dependency).collect(),
            bins: Vec::new(),
        }
    }

    fn of(files: &[&str]) -> (String, bool, bool) {
        let packages = [
            package("weir", "crates/weir", &["weir-store", "serde"]),
            package(sim::PACKAGE, "crates/sim-suites", &["weir-store"]),
            package("weir-store", "crates/store", &["weir-base"]),
            package("weir-base", "crates/base", &[]),
            package("weir-layers", "crates/layers", &["weir-base"]),
            package("weir-control", "crates/control", &[]),
        ];
        let fuzz = package("weir-fuzz", "fuzz", &["weir-layers"]);
        let files: Vec<String> = files.iter().map(|file| (*file).to_string()).collect();
        let scope = concerned(Path::new("/x"), &files, &packages, &fuzz);
        let names: Vec<String> = scope.packages.into_iter().collect();
        (names.join(" ").replace("weir-", ""), scope.sim, scope.fuzz)
    }

    #[test]
    fn a_package_and_all_above_it() {
        assert_eq!(of(&["crates/weir/src/main.rs"]), ("weir".into(), false, false));
        let store = "weir sim-suites store".to_string();
        assert_eq!(of(&["crates/store/tests/x.rs", "README.md"]), (store, true, false));
        let base = "weir base layers sim-suites store".to_string();
        assert_eq!(of(&["crates/base/Cargo.toml"]), (base, true, true));
    }

    #[test]
    fn what_belongs_to_no_package() {
        let all = "weir base control layers sim-suites store";
        for file in ["Cargo.lock", ".cargo/config.toml", "something/new"] {
            let (names, sim, fuzz) = of(&[file]);
            assert_eq!(
                names.split(' ').collect::<BTreeSet<_>>(),
                all.split(' ').collect(),
                "{file}"
            );
            assert!(sim && fuzz);
        }
        assert_eq!(of(&["docs/cli.md"]), ("control layers".into(), false, true));
        assert_eq!(of(&["fuzz/targets/x.rs"]), (String::new(), false, true));
        assert_eq!(of(&["ARCHITECTURE.md", "lab/run"]), (String::new(), false, false));
        assert_eq!(of(&[]), (String::new(), false, false));
    }

    #[test]
    fn a_scope_has_use_for_some_steps() {
        let nothing = Scope { packages: BTreeSet::new(), sim: false, fuzz: false };
        assert!(["tidy", "fmt", "docs"].iter().all(|step| nothing.has(step)));
        assert!(!["clippy", "tests", "sim", "fuzz"].iter().any(|step| nothing.has(step)));
        assert_eq!(nothing.to_string(), "no package");
        let some = Scope { packages: ["weir".to_string()].into(), fuzz: true, ..nothing };
        assert!(some.has("tests") && some.has("fuzz") && !some.has("sim"));
        assert_eq!(some.to_string(), "weir fuzz");
    }

    #[test]
    fn git_tells_every_kind_of_change() {
        let dir = std::env::temp_dir().join(format!("weir-changed-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let git = |line: &str| {
            let mut command = Command::new("git");
            command.args(["-C"]).arg(&dir).args(["-c", "user.name=x", "-c", "user.email=x@y.z"]);
            process::capture(command.args(line.split(' '))).unwrap();
        };
        let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).unwrap();
        git("init --quiet --initial-branch main");
        write("old", "1");
        write("kept", "1");
        git("add .");
        git("commit --quiet -m first");
        git("checkout --quiet -b branch");
        write("committed", "1");
        git("add .");
        git("commit --quiet -m second");
        write("kept", "2");
        write("new", "1");
        std::fs::remove_file(dir.join("old")).unwrap();
        let mut names = files(&dir).unwrap();
        names.sort();
        assert_eq!(names, ["committed", "kept", "new", "old"]);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
