//! Building fuzz targets with coverage on the stable compiler.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process;

const LIMIT: Duration = Duration::from_secs(1800);

/// LLVM's coverage pass, reached with options that stable rustc has. They are what a nightly
/// compiler's own fuzzing tools pass, less the address sanitizer, which needs one.
const FLAGS: &[&str] = &[
    "-Cpasses=sancov-module",
    // Edges, with calls told apart by their caller.
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    // Operands of comparisons: magic numbers are solved, not guessed.
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    // More than one unit per crate would drop counters of units that nothing else refers to.
    "-Ccodegen-units=1",
    "--cfg=fuzzing",
];

/// What is missing to compile libFuzzer: a message, with the Debian package's name.
pub(crate) fn compiler_missing() -> Option<String> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let found = process::exists(&compiler, "--version");
    (!found).then(|| format!("no C++ compiler `{compiler}`: install the Debian package g++"))
}

/// The machine that we run on, as rustc names it.
pub(crate) fn host() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let text = process::capture(Command::new(rustc).arg("-vV"))?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(String::from).context("rustc -vV names no host")
}

/// Builds `targets`, all with one set of flags.
pub(crate) fn build(root: &Path, targets: &[String]) -> Result<()> {
    if let Some(missing) = compiler_missing() {
        bail!(missing);
    }
    println!("building fuzz targets: {}", targets.join(" "));
    let mut command = process::cargo();
    command.args(["build", "--release"]);
    command.arg("--manifest-path").arg(root.join("fuzz/Cargo.toml"));
    command.arg("--target-dir").arg(root.join("fuzz/target"));
    // With the target named, the flags are not applied to build scripts, which run without libFuzzer.
    command.args(["--target", &host()?]);
    for target in targets {
        command.args(["--bin", target]);
    }
    command.env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\u{1f}"));
    if !process::run(&mut command, LIMIT)?.success {
        bail!("the fuzz targets could not be built");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_host_is_this_one() {
        let host = super::host().unwrap();
        assert!(host.starts_with(std::env::consts::ARCH), "{host}");
        assert!(host.contains(std::env::consts::OS), "{host}");
    }
}
