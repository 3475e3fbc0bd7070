//! The house: a crate uses what is below it, nothing beside or above it.

use std::cmp::Ordering;

use super::Finding;
use crate::metadata::{Dependency, Kind, Package};

/// Where a crate stands. Inside a floor, a lower rank comes first and may be used by a higher one.
struct Place {
    name: &'static str,
    floor: u8,
    rank: u8,
}

const fn at(name: &'static str, floor: u8, rank: u8) -> Place {
    Place { name, floor, rank }
}

/// Every crate of the house, with or without a folder yet (ARCHITECTURE.md, "Floors"). A new crate
/// gets its line here.
const HOUSE: &[Place] = &[
    // 0, pure: what everything shares.
    at("weir-base", 0, 0),
    at("weir-wire", 0, 1),
    at("weir-codec", 0, 1),
    // 1, pure: protocol cores without I/O.
    at("weir-proto-iwarp", 1, 0),
    at("weir-proto-srp", 1, 0),
    at("weir-proto-scsi", 1, 0),
    at("weir-proto-brp", 1, 0),
    at("weir-proto-nbd", 1, 0),
    at("weir-proto-cluster", 1, 0),
    at("weir-proto-iscsi", 1, 0),
    at("weir-proto-nvme", 1, 0),
    at("weir-raft", 1, 0),
    at("weir-model", 1, 0),
    // 2, platform.
    at("weir-reactor", 2, 0),
    at("weir-mem", 2, 1),
    at("weir-disk", 2, 2),
    at("weir-stream", 2, 2),
    at("weir-uring", 2, 3),
    at("weir-fabric", 2, 4),
    at("weir-fabric-iwarp", 2, 5),
    at("weir-fabric-verbs", 2, 5),
    at("weir-sim", 2, 6),
    // 3, volumes.
    at("weir-block", 3, 0),
    at("weir-layers", 3, 1),
    at("weir-store", 3, 1),
    // 4, doors.
    at("weir-target-core", 4, 0),
    at("weir-target-srp", 4, 1),
    at("weir-target-brp", 4, 1),
    at("weir-target-iscsi", 4, 1),
    at("weir-target-nvmf", 4, 1),
    at("weir-target-nbd", 4, 1),
    at("weir-initiator-srp", 4, 1),
    at("weir-initiator-brp", 4, 1),
    at("weir-initiator-iscsi", 4, 1),
    at("weir-initiator-nvmf", 4, 1),
    at("weir-remote", 4, 2),
    at("weir-attach", 4, 2),
    at("weir-bench", 4, 2),
    // 5, cluster.
    at("weir-telemetry", 5, 0),
    at("weir-meta", 5, 1),
    at("weir-cluster", 5, 2),
    // 6, services.
    at("weir-control", 6, 0),
    at("weir-files", 6, 0),
    // 7, programs.
    at("weir", 7, 0),
    at("weir-sim-suites", 7, 0),
    // The project's own tool knows the house from outside only.
    at("xtask", u8::MAX, 0),
];

fn place(name: &str) -> Option<&'static Place> {
    HOUSE.iter().find(|place| place.name == name)
}

/// Floor of the crate in folder `folder` of `crates/`.
pub(super) fn floor_of_folder(folder: &str) -> Option<u8> {
    let found = |place: &&Place| {
        place.name.strip_prefix("weir-").unwrap_or(place.name) == folder && place.floor < u8::MAX
    };
    HOUSE.iter().find(found).map(|place| place.floor)
}

pub(super) fn check(packages: &[Package]) -> Vec<Finding> {
    let ours: Vec<&Package> = packages.iter().filter(|package| package.member).collect();
    let mut findings = Vec::new();
    for package in &ours {
        let Some(user) = place(&package.name) else {
            findings.push(Finding::new(
                &package.name,
                0,
                "no floor is known for this crate: give it a line in HOUSE, \
                 xtask/src/tidy/floors.rs, and in ARCHITECTURE.md",
            ));
            continue;
        };
        findings.extend(misnamed(package));
        for dependency in &package.dependencies {
            // Ours by name: a path elsewhere must not slip through.
            let is_ours = ours.iter().any(|other| other.name == dependency.name);
            match place(&dependency.name) {
                Some(used) if is_ours => findings.extend(judge(user, used, dependency)),
                _ => {}
            }
        }
    }
    findings
}

/// The crate in `crates/wire` is `weir-wire`; the rules that look at files rely on it.
fn misnamed(package: &Package) -> Option<Finding> {
    let folder = package.dir.file_name()?.to_str()?;
    let right = match package.name.strip_prefix("weir-") {
        Some(rest) => rest,
        None => &package.name,
    };
    (folder != right).then(|| {
        Finding::new(&package.name, 0, format!("is in the folder `{folder}`, not `{right}`"))
    })
}

fn judge(user: &Place, used: &Place, dependency: &Dependency) -> Option<Finding> {
    let allowed = if user.name == "xtask" || used.name == "xtask" {
        false
    } else if dependency.kind == Kind::Dev {
        // A test may bring in a neighbour, as the simulator for the reactor, but not who is above.
        used.floor <= user.floor
    } else {
        used.floor < user.floor || (used.floor == user.floor && used.rank < user.rank)
    };
    let relation = match used.floor.cmp(&user.floor) {
        _ if user.name == "xtask" => "xtask knows the house from outside only".to_string(),
        _ if used.name == "xtask" => "xtask is a tool, not a part".to_string(),
        Ordering::Greater => format!("floor {} is above floor {}", used.floor, user.floor),
        _ => format!("on floor {} it is beside or above, not below", user.floor),
    };
    (!allowed)
        .then(|| Finding::new(user.name, 0, format!("must not use {}: {relation}", used.name)))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{package, text};
    use super::*;

    fn found(packages: &[Package]) -> String {
        text(&check(packages))
    }

    #[test]
    fn downwards_is_allowed() {
        let packages = [
            package("weir-base", &["serde"]),
            package("weir-wire", &["weir-base"]),
            package("weir-reactor", &["weir-base", "dev:weir-sim"]),
            package("weir-mem", &["weir-reactor"]),
            package("weir-disk", &["weir-mem"]),
            package("weir-uring", &["weir-disk", "weir-reactor"]),
            package("weir-fabric", &["weir-mem", "weir-uring"]),
            package("weir-fabric-iwarp", &["weir-fabric", "weir-wire"]),
            package("weir-sim", &["weir-fabric-iwarp"]),
            package("weir-target-core", &["weir-sim"]),
            package("weir-target-srp", &["weir-target-core", "dev:weir-initiator-srp"]),
            package("weir-initiator-srp", &["weir-fabric"]),
            package("weir", &["weir-target-srp"]),
            package("xtask", &["anyhow"]),
        ];
        assert_eq!(found(&packages), "");
    }

    #[test]
    fn sideways_and_upwards_are_not() {
        let cases = [
            ("weir-base", "weir-wire", "beside"),
            ("weir-wire", "weir-codec", "beside"),
            ("weir-proto-srp", "weir-proto-scsi", "beside"),
            ("weir-proto-srp", "weir-reactor", "above"),
            ("weir-proto-srp", "dev:weir-reactor", "above"),
            ("weir-reactor", "weir-mem", "beside"),
            ("weir-mem", "weir-uring", "beside"),
            ("weir-fabric", "weir-fabric-iwarp", "beside"),
            ("weir-fabric-iwarp", "weir-fabric-verbs", "beside"),
            ("weir-fabric", "weir-sim", "beside"),
            ("weir-target-core", "weir-target-srp", "beside"),
            ("weir-target-srp", "weir-initiator-srp", "beside"),
            ("weir-block", "weir-target-core", "above"),
            ("weir-block", "build:weir", "above"),
            ("weir-control", "weir-files", "beside"),
            ("weir-base", "xtask", "tool"),
            ("xtask", "weir-base", "outside"),
        ];
        for (user, used, relation) in cases {
            let name = used.split(':').next_back().unwrap();
            let text = found(&[package(user, &[used]), package(name, &[])]);
            assert!(text.contains(user) && text.contains(relation), "{user} -> {used}: {text}");
        }
    }

    #[test]
    fn a_new_crate_needs_a_floor() {
        let text = found(&[package("weir-novel", &[])]);
        assert!(text.contains("weir-novel") && text.contains("floors.rs"), "{text}");
    }

    #[test]
    fn a_crate_is_where_its_name_says() {
        let mut wire = package("weir-wire", &[]);
        wire.dir = "/x/crates/wire".into();
        assert_eq!(found(&[wire.clone()]), "");
        wire.dir = "/x/crates/cursor".into();
        assert!(found(&[wire]).contains("`cursor`, not `wire`"));
        let mut program = package("weir", &[]);
        program.dir = "/x/crates/weir".into();
        assert_eq!(found(&[program]), "");
    }

    #[test]
    fn folders_have_floors() {
        assert_eq!(floor_of_folder("target-srp"), Some(4));
        assert_eq!(floor_of_folder("weir"), Some(7));
        assert_eq!(floor_of_folder("xtask"), None);
        assert_eq!(floor_of_folder("fuzz"), None);
    }

    #[test]
    fn no_crate_stands_twice() {
        for (n, place) in HOUSE.iter().enumerate() {
            assert!(HOUSE[..n].iter().all(|other| other.name != place.name), "{}", place.name);
        }
    }
}
