//! What the build needs beside cargo: found, installed where we may, or named exactly.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::fuzz;
use crate::process;

const INSTALL_LIMIT: Duration = Duration::from_secs(600);

/// Something that may be missing.
struct Need {
    what: &'static str,
    /// Whether it is here.
    found: fn() -> bool,
    remedy: Remedy,
}

enum Remedy {
    /// Debian packages.
    Packages(&'static [&'static str]),
    /// A component of the Rust toolchain.
    Component(&'static str),
}

const NEEDS: &[Need] = &[
    Need {
        what: "a C compiler and linker (`cc`)",
        found: || process::exists("cc", "--version"),
        remedy: Remedy::Packages(&["gcc", "libc6-dev"]),
    },
    Need {
        what: "a C++ compiler (`c++`), for libFuzzer",
        found: || fuzz::compiler_missing().is_none(),
        remedy: Remedy::Packages(&["g++"]),
    },
    Need {
        what: "git",
        found: || process::exists("git", "--version"),
        remedy: Remedy::Packages(&["git"]),
    },
    Need { what: "rustfmt", found: || subcommand("fmt"), remedy: Remedy::Component("rustfmt") },
    Need { what: "clippy", found: || subcommand("clippy"), remedy: Remedy::Component("clippy") },
];

/// Finds what is missing and installs it: packages on Debian as root, components with rustup.
/// Whether all is there in the end.
pub(crate) fn check(_root: &Path) -> Result<bool> {
    let missing: Vec<&Need> = NEEDS.iter().filter(|need| !(need.found)()).collect();
    let mut packages = Vec::new();
    for need in &missing {
        println!("missing: {}", need.what);
        match need.remedy {
            Remedy::Packages(names) => packages.extend_from_slice(names),
            Remedy::Component(name) => add_component(name)?,
        }
    }
    if !packages.is_empty() {
        install(&packages)?;
    }
    let mut complete = true;
    for need in missing.iter().filter(|need| !(need.found)()) {
        complete = false;
        println!("still missing: {}: {}", need.what, advice(&need.remedy));
    }
    if let Ok(value) = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled")
        && value.trim() != "0"
    {
        println!(
            "note: io_uring is not open to everybody on this machine: \
             `sysctl kernel.io_uring_disabled=0` opens it"
        );
    }
    Ok(complete)
}

fn subcommand(name: &str) -> bool {
    process::capture(process::cargo().args([name, "--version"])).is_ok()
}

fn advice(remedy: &Remedy) -> String {
    match remedy {
        Remedy::Packages(names) => {
            format!("run `apt-get install {}` (or your system's equivalent)", names.join(" "))
        }
        Remedy::Component(name) => format!("run `rustup component add {name}`"),
    }
}

fn add_component(name: &str) -> Result<()> {
    if process::exists("rustup", "--version") {
        process::run(Command::new("rustup").args(["component", "add", name]), INSTALL_LIMIT)?;
    }
    Ok(())
}

fn install(packages: &[&str]) -> Result<()> {
    let root = process::capture(Command::new("id").arg("-u"))?.trim() == "0";
    if !root || !process::exists("apt-get", "--version") {
        return Ok(());
    }
    println!("installing {}", packages.join(" "));
    let mut update = Command::new("apt-get");
    process::run(update.arg("update"), INSTALL_LIMIT)?;
    let mut install = Command::new("apt-get");
    install.args(["install", "-y", "--no-install-recommends"]).args(packages);
    process::run(install.env("DEBIAN_FRONTEND", "noninteractive"), INSTALL_LIMIT)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_what_to_type() {
        let text = advice(&Remedy::Packages(&["gcc", "libc6-dev"]));
        assert!(text.contains("apt-get install gcc libc6-dev"), "{text}");
        assert!(advice(&Remedy::Component("clippy")).contains("rustup component add clippy"));
    }
}
