//! Pure crates stay pure by what they may depend on; and who may depend on what brings its own
//! clock, threads or randomness.

use super::Finding;
use crate::metadata::{Kind, Package};

/// A pure crate, or all that begin so, and the crates of others that it may use. Ours are judged by
/// their floors.
const PURE: &[(&str, &[&str])] = &[
    ("weir-base", &[]),
    ("weir-wire", &["thiserror"]),
    // Checksums, parity, ciphers, compression: slices in, slices out.
    ("weir-codec", &["crc-fast", "hmac", "sha2", "thiserror"]),
    // CHAP: initiators choose the hash.
    ("weir-proto-iscsi", &["md-5", "sha1", "sha2", "sha3", "thiserror"]),
    ("weir-proto-", &["thiserror"]),
    ("weir-raft", &["thiserror"]),
    ("weir-model", &["thiserror", "serde"]),
];

/// What tests of pure crates may use besides.
const PURE_TESTS: &[&str] = &["proptest"];

/// Crates of others that make time, threads or chance of their own, and who may use them.
const RESTRICTED: &[(&str, &[&str])] = &[
    ("tokio", &["weir-cluster", "weir-control", "weir", "xtask"]),
    ("axum", &["weir-control", "weir"]),
    ("hyper", &["weir-control", "weir"]),
    ("rand", &[]),
    ("fastrand", &[]),
    // Keys that must be hard to guess get their seed from the operating system, in one place.
    ("getrandom", &["weir-reactor", "weir-uring"]),
    ("async-std", &[]),
    ("smol", &[]),
    ("rayon", &[]),
    ("crossbeam", &[]),
];

pub(super) fn check(packages: &[Package]) -> Vec<Finding> {
    let ours: Vec<&Package> = packages.iter().filter(|package| package.member).collect();
    let mut findings = Vec::new();
    for package in &ours {
        for dependency in &package.dependencies {
            let name = dependency.name.as_str();
            if ours.iter().any(|other| other.name == name) {
                continue;
            }
            let mut object = |text: String| findings.push(Finding::new(&package.name, 0, text));
            if let Some((_, allowed)) = RESTRICTED.iter().find(|(other, _)| *other == name)
                && !allowed.contains(&package.name.as_str())
            {
                let who = if allowed.is_empty() { "nobody".into() } else { allowed.join(", ") };
                object(format!(
                    "must not use {name}: time, threads and chance come from the reactor \
                     (allowed: {who})"
                ));
            } else if let Some(allowed) = pure(&package.name) {
                let tests = dependency.kind == Kind::Dev && PURE_TESTS.contains(&name);
                let normal = dependency.kind != Kind::Build && allowed.contains(&name);
                if !tests && !normal {
                    object(format!(
                        "a pure crate must not use {name}: its list is in xtask/src/tidy/pure.rs"
                    ));
                }
            }
        }
    }
    findings
}

fn pure(name: &str) -> Option<&'static [&'static str]> {
    let matches = |pattern: &str| match pattern.strip_suffix('-') {
        Some(_) => name.starts_with(pattern),
        None => name == pattern,
    };
    PURE.iter().find(|(pattern, _)| matches(pattern)).map(|(_, allowed)| *allowed)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{package, text};
    use super::*;

    #[test]
    fn the_lists_are_kept() {
        let packages = [
            package("weir-base", &["dev:proptest"]),
            package("weir-codec", &["crc-fast", "weir-base"]),
            package("weir-proto-srp", &["thiserror", "weir-base", "dev:proptest"]),
            package("weir-reactor", &["libc", "getrandom", "build:cc"]),
            package("weir-control", &["tokio", "axum"]),
        ];
        assert_eq!(text(&check(&packages)), "");
    }

    #[test]
    fn what_is_not_on_a_list_is_found() {
        let cases = [
            ("weir-base", "thiserror"),
            ("weir-wire", "libc"),
            ("weir-proto-srp", "tracing"),
            ("weir-proto-anything", "crc-fast"),
            ("weir-proto-srp", "proptest"),
            ("weir-proto-srp", "build:thiserror"),
            ("weir-codec", "dev:libc"),
            ("weir-target-srp", "tokio"),
            ("weir-target-srp", "dev:tokio"),
            ("weir-sim", "rand"),
            ("weir-fabric-iwarp", "getrandom"),
        ];
        for (user, used) in cases {
            let found = text(&check(&[package(user, &[used])]));
            let name = used.split(':').next_back().unwrap();
            assert!(found.contains(user) && found.contains(name), "{user} -> {used}: {found}");
        }
    }

    #[test]
    fn packages_of_others_are_not_judged() {
        let mut other = package("some-crate", &["rand", "tokio"]);
        other.member = false;
        assert_eq!(text(&check(&[other])), "");
    }
}
