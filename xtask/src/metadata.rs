//! What cargo knows of the workspace, reduced to what the checks ask.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process;

/// How one package uses another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Normal,
    Build,
    Dev,
}

/// One line under a `[dependencies]` heading.
#[derive(Clone, Debug)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) kind: Kind,
}

/// A package of the workspace, or one that it needs.
#[derive(Clone, Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) license: Option<String>,
    /// Part of the workspace, not from a registry.
    pub(crate) member: bool,
    /// Folder of the manifest.
    pub(crate) dir: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
    /// Names of the executables.
    pub(crate) bins: Vec<String>,
}

/// Root folder of the workspace: from cargo when it runs us, else the first folder upwards of the
/// working directory that has an `xtask`.
pub(crate) fn root() -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os("CARGO_MANIFEST_DIR")
        && let Some(parent) = Path::new(&dir).parent()
    {
        return Ok(parent.to_path_buf());
    }
    let here = std::env::current_dir()?;
    let found = here.ancestors().find(|dir| dir.join("xtask/Cargo.toml").is_file());
    found.map(Path::to_path_buf).context("not inside a clone of the project")
}

/// All packages of the workspace at `manifest` and, with `deps`, those they need.
pub(crate) fn packages(manifest: &Path, deps: bool) -> Result<Vec<Package>> {
    query(manifest, if deps { None } else { Some("--no-deps") })
}

/// The same, with those they need; fails if the lock file does not fit the manifests.
pub(crate) fn packages_locked(manifest: &Path) -> Result<Vec<Package>> {
    query(manifest, Some("--locked")).with_context(|| {
        let manifest = manifest.display();
        format!(
            "a lock file out of date? Run `cargo update --workspace --manifest-path {manifest}`"
        )
    })
}

fn query(manifest: &Path, option: Option<&str>) -> Result<Vec<Package>> {
    let mut command = process::cargo();
    command.args(["metadata", "--format-version", "1", "--manifest-path"]).arg(manifest);
    command.args(option);
    let text = process::capture(&mut command)?;
    parse(&serde_json::from_str(&text).context("cargo metadata")?)
}

pub(crate) fn parse(metadata: &Value) -> Result<Vec<Package>> {
    let members: Vec<&str> =
        list(metadata, "workspace_members")?.filter_map(Value::as_str).collect();
    list(metadata, "packages")?
        .map(|package| {
            let manifest = Path::new(string(package, "manifest_path")?);
            let bins = list(package, "targets")?.filter(|target| {
                target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|k| k == "bin"))
            });
            Ok(Package {
                name: string(package, "name")?.to_string(),
                version: string(package, "version")?.to_string(),
                license: package["license"].as_str().map(String::from),
                member: members.contains(&string(package, "id")?),
                dir: manifest.parent().unwrap_or(manifest).to_path_buf(),
                dependencies: list(package, "dependencies")?
                    .map(dependency)
                    .collect::<Result<Vec<_>>>()?,
                bins: bins.filter_map(|target| Some(target["name"].as_str()?.into())).collect(),
            })
        })
        .collect()
}

fn dependency(value: &Value) -> Result<Dependency> {
    let kind = match value["kind"].as_str() {
        None => Kind::Normal,
        Some("build") => Kind::Build,
        Some("dev") => Kind::Dev,
        Some(other) => bail!("cargo metadata: unknown kind of dependency `{other}`"),
    };
    Ok(Dependency { name: string(value, "name")?.to_string(), kind })
}

fn list<'a>(value: &'a Value, key: &str) -> Result<std::slice::Iter<'a, Value>> {
    let list = value[key].as_array().with_context(|| format!("cargo metadata: no list `{key}`"))?;
    Ok(list.iter())
}

fn string<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    value[key].as_str().with_context(|| format!("cargo metadata: no text `{key}`"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reads_what_cargo_prints() {
        let packages = parse(&json!({
            "workspace_members": ["id-a"],
            "packages": [
                {
                    "name": "weir-a", "version": "0.1.0", "id": "id-a", "license": "Apache-2.0",
                    "manifest_path": "/x/crates/a/Cargo.toml",
                    "targets": [{"name": "a", "kind": ["lib"]}, {"name": "run-a", "kind": ["bin"]}],
                    "dependencies": [
                        {"name": "b", "kind": null}, {"name": "c", "kind": "dev"},
                        {"name": "d", "kind": "build"},
                    ],
                },
                {
                    "name": "b", "version": "1.2.3", "id": "id-b", "license": null,
                    "manifest_path": "/y/b/Cargo.toml", "targets": [], "dependencies": [],
                },
            ],
        }))
        .unwrap();
        let (a, b) = (&packages[0], &packages[1]);
        assert!(a.member && !b.member);
        assert_eq!(a.dir, Path::new("/x/crates/a"));
        assert_eq!(a.bins, ["run-a"]);
        let kinds: Vec<Kind> = a.dependencies.iter().map(|d| d.kind).collect();
        assert_eq!(kinds, [Kind::Normal, Kind::Dev, Kind::Build]);
        assert_eq!(b.license, None);
        assert!(parse(&json!({"packages": []})).is_err());
    }

    #[test]
    fn this_package_is_in_this_workspace() {
        let packages = packages(&root().unwrap().join("Cargo.toml"), false).unwrap();
        let me = packages.iter().find(|package| package.name == "xtask").unwrap();
        assert!(me.member);
        assert_eq!(me.bins, ["xtask"]);
    }
}
