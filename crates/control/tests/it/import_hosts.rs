//! Who gets in by a pool that is taken over, where a host of the same name is here already.

use crate::support::*;
use std::collections::BTreeSet;
use weir_control::model::{
    Carried, Command, DatasetFound, DeviceKind, HostAccess, HostAuth, HostSecret, HostSpec,
    ImportSpec, Model, PoolFound, PoolSpec, Raid,
};

const MIB: u64 = 1 << 20;

/// A pool whose volume `v` a host `db` sees, as another node left it.
fn found(db: HostSpec) -> PoolFound {
    let mut m = Model::default();
    let spec = pool("safe", &[(DeviceKind::File, Some("/nowhere/d0"), Some(GIB))]);
    let spec = PoolSpec { raid: Some(Raid::Zero), ..spec };
    for command in [
        Command::CreatePool(spec),
        Command::CreateVolume(volume("v", "safe", 8 * MIB)),
        Command::ReadyVolume { name: "v".into() },
        Command::CreateHost(db),
        Command::CreateMap(map("db", "v")),
    ] {
        m.apply(command, 7).expect("it can be so");
    }
    let id = m.pools["safe"].protection.as_ref().expect("it is protected").id;
    let v = &m.volumes["v"];
    let dataset = DatasetFound { name: v.dataset(), size: v.size, block_size: v.block_size };
    let record = m.pool_record("safe").expect("a record").bytes().expect("bytes");
    PoolFound { id, copies: 1, members: 1, record: Carried::one(record), datasets: vec![dataset] }
}

/// Ports, whether any others, and the proof.
type Seen = (Vec<String>, bool, HostAuth);

/// Who sees `v`, by which ports and for which proof, on a node that has this host and takes the pool over; and what was left out.
fn seen(here: HostSpec, there: HostSpec) -> (Vec<Seen>, Vec<String>) {
    let mut m = Model::default();
    m.apply(Command::CreateHost(here), 1).expect("a host");
    let devices = pool("x", &[(DeviceKind::File, Some("/nowhere/d0"), None)]).devices;
    let spec = ImportSpec {
        name: None,
        devices,
        prefix: String::new(),
        key_commands: false,
        without_hosts: false,
        force: false,
        dry_run: false,
    };
    let found = found(there);
    let known = BTreeSet::new();
    let left_out = m.plan_import(&spec, &found, &known).expect("it can be").left_out;
    m.apply(Command::ImportPool { spec, found, known }, 1).expect("taken over");
    let hosts = m.access().hosts;
    let sees = hosts.into_iter().filter(|h| h.luns.iter().any(|l| l.volume == "v"));
    let ports = |h: &HostAccess| h.ports.iter().map(ToString::to_string).collect();
    (sees.map(|h| (ports(&h), h.allow_any, h.auth)).collect(), left_out)
}

fn keyed(spec: HostSpec, with: u8) -> HostSpec {
    HostSpec { secret: Some(HostSecret::new(vec![with; 32]).expect("a secret")), ..spec }
}

fn any(ports: &[&str]) -> HostSpec {
    HostSpec { allow_any: true, ..host("db", ports) }
}

/// Pairs of a host that is here and one that the pool tells of, which are not the same.
fn different() -> [(HostSpec, HostSpec); 6] {
    [
        (host("db", &["1:2"]), keyed(host("db", &["1:2"]), 7)),
        (host("db", &["5:6"]), host("db", &["1:2"])),
        (host("db", &["1:2", "5:6"]), host("db", &["1:2"])),
        (any(&[]), host("db", &["1:2"])),
        (any(&["1:2"]), host("db", &["1:2"])),
        (keyed(host("db", &["5:6"]), 7), keyed(host("db", &["1:2"]), 7)),
    ]
}

#[test]
fn a_host_that_differs_from_its_namesake_here_sees_nothing_and_is_told() {
    for (here, there) in different() {
        let (sees, left_out) = seen(here.clone(), there);
        assert_eq!(sees, [], "{here:?}");
        assert_eq!(left_out.len(), 2, "the host and its mapping: {left_out:?}");
        assert!(left_out.iter().all(|l| l.contains("host `db`")), "{left_out:?}");
    }
}

/// A secret that it was given here is asked for: pools carry none to compare it with.
#[test]
fn a_host_that_is_here_already_sees_its_volumes() {
    let plain = host("db", &["1:2", "3:4"]);
    let turned = host("db", &["3:4", "1:2"]);
    for (here, there) in [
        (turned, plain.clone()),
        (any(&[]), any(&[])),
        (keyed(plain.clone(), 7), plain.clone()),
        (keyed(plain.clone(), 8), keyed(plain, 7)),
    ] {
        let secret = here.secret.clone();
        let (sees, left_out) = seen(here, there);
        assert_eq!((sees.len(), left_out.len()), (1, 0), "{left_out:?}");
        assert_eq!(sees[0].2, secret.map_or(HostAuth::Open, HostAuth::Secret));
    }
}

#[cfg(feature = "planted")]
#[test]
fn a_host_that_is_taken_for_its_namesake_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::HostsByName));
    let caught = different().into_iter().filter(|(h, t)| !seen(h.clone(), t.clone()).0.is_empty());
    let caught = caught.count();
    plant(None);
    assert_eq!(caught, different().len());
}
