use super::*;

fn devices() -> Vec<DeviceSpec> {
    let file = |n: u32| DeviceSpec {
        kind: DeviceKind::File,
        path: Some(format!("/srv/d{n}")),
        size: Some(1 << 30),
    };
    vec![file(0), file(1)]
}

fn volume(name: &str) -> VolumeSpec {
    toml::from_str(&format!("name = \"{name}\"\npool = \"safe\"\nsize = \"1G\"")).unwrap()
}

/// A node with a pool of two volumes, one of which two hosts see.
pub(in crate::model) fn node() -> Model {
    let mut m = Model::default();
    let pool = PoolSpec {
        name: "safe".into(),
        devices: devices(),
        raid: Some(Raid::One),
        overwrite: Default::default(),
        memory: Some(MapMemory::Full),
    };
    m.apply(Command::CreatePool(pool), 77).unwrap();
    for (n, name) in [(1 << 90, "a"), (1 << 91, "b")] {
        m.apply(Command::CreateVolume(volume(name)), n).unwrap();
        m.apply(Command::ReadyVolume { name: name.into() }, 0).unwrap();
    }
    for (host, port) in [("h", Some("1:2")), ("others", None), ("idle", Some("5:6"))] {
        let spec = HostSpec {
            name: host.into(),
            ports: port.iter().map(|p| p.parse().unwrap()).collect(),
            allow_any: port.is_none(),
            ..HostSpec::default()
        };
        m.apply(Command::CreateHost(spec), 0).unwrap();
    }
    for (host, lun) in [("h", 7), ("others", 0)] {
        let map = MapSpec { host: host.into(), volume: "a".into(), lun: Some(lun) };
        m.apply(Command::CreateMap(map), 0).unwrap();
    }
    m
}

pub(in crate::model) fn found(m: &Model) -> PoolFound {
    let dataset =
        |v: &Volume| DatasetFound { name: v.dataset(), size: v.size, block_size: v.block_size };
    PoolFound {
        id: PoolId(77),
        copies: 2,
        members: 2,
        record: Carried::one(m.pool_record("safe").unwrap().bytes().unwrap()),
        datasets: m.volumes.values().map(dataset).collect(),
    }
}

fn spec() -> ImportSpec {
    ImportSpec {
        name: None,
        devices: devices(),
        prefix: String::new(),
        key_commands: false,
        without_hosts: false,
        force: false,
        dry_run: false,
    }
}

fn import(m: &mut Model, spec: ImportSpec, found: PoolFound) -> Result<ImportReport> {
    let known = BTreeSet::new();
    let report = m.plan_import(&spec, &found, &known);
    let done = m.apply(Command::ImportPool { spec, found, known }, 0);
    assert_eq!(done.is_ok(), report.is_ok(), "a plan is what comes of it");
    report
}

#[test]
fn a_pool_brings_its_volumes_and_who_sees_them() {
    let old = node();
    let mut new = Model::default();
    let report = import(&mut new, spec(), found(&old)).unwrap();
    assert_eq!(new.volumes, old.volumes);
    assert_eq!(new.maps, old.maps);
    // Whoever sees nothing of the pool stays where it is.
    assert!(new.hosts.keys().eq(["h", "others"]));
    assert_eq!(new.hosts["h"], old.hosts["h"]);
    let (is, was) = (&new.pools["safe"], &old.pools["safe"]);
    assert_eq!(is.protection.as_ref().unwrap().memory, MapMemory::Full);
    assert!(is.protection.as_ref().unwrap().formatted);
    assert_eq!(is.protection.as_ref().unwrap().id, was.protection.as_ref().unwrap().id);
    assert_eq!((report.hosts.len(), report.maps.len(), report.left_out.len()), (2, 2, 0));
    // It is here now.
    let other = ImportSpec { name: Some("x".into()), devices: Vec::new(), ..spec() };
    assert!(import(&mut new.clone(), other, found(&old)).is_err());
    let e = import(&mut new, spec(), found(&old)).unwrap_err();
    assert_eq!(e.code, Code::PoolExists);
}

#[test]
fn names_that_are_taken_are_said_and_a_prefix_helps() {
    let old = node();
    let mut new = Model::default();
    let pool: PoolSpec = toml::from_str(
        "name = \"safe\"\nraid = \"1\"\ndevices = [{ kind = \"block\", path = \"/dev/a\" }, { kind = \"block\", path = \"/dev/b\" }]",
    )
    .unwrap();
    new.apply(Command::CreatePool(pool), 5).unwrap();
    new.apply(Command::CreateVolume(volume("a")), 1 << 92).unwrap();
    assert_eq!(import(&mut new, spec(), found(&old)).unwrap_err().code, Code::PoolExists);
    let named = ImportSpec { name: Some("second".into()), ..spec() };
    let before = new.clone();
    let e = import(&mut new, named.clone(), found(&old)).unwrap_err();
    assert_eq!((e.code, &new), (Code::VolumeExists, &before), "nothing of it has happened");
    // The host's port is another host's here.
    let host = HostSpec {
        name: "mine".into(),
        ports: vec!["1:2".parse().unwrap()],
        ..HostSpec::default()
    };
    new.apply(Command::CreateHost(host), 0).unwrap();
    let prefixed = ImportSpec { prefix: "old-".into(), ..named };
    let report = import(&mut new, prefixed, found(&old)).unwrap();
    assert!(new.volumes.keys().eq(["a", "old-a", "old-b"]));
    assert_eq!(new.volumes["old-a"].pool, "second");
    assert_eq!(report.hosts, ["others"]);
    assert_eq!(report.left_out.len(), 2, "the host and its mapping: {:?}", report.left_out);
    assert_eq!(report.maps, [("others".to_string(), "old-a".to_string())]);
}

#[test]
fn what_is_on_the_devices_counts() {
    let old = node();
    let mut f = found(&old);
    // One is gone, one is there that nobody knows of, in two kinds of names.
    f.datasets.remove(0);
    for name in ["60a5745c92219dbae913873c9da42afa", "odd"] {
        f.datasets.push(DatasetFound { name: name.into(), size: 4096, block_size: 4096 });
    }
    let mut new = Model::default();
    let report = import(&mut new, spec(), f.clone()).unwrap();
    assert_eq!(report.left_out.len(), 3, "{:?}", report.left_out);
    let nameless: Vec<_> = report.volumes.iter().filter(|v| v.nameless).collect();
    assert_eq!(nameless.len(), 2);
    let known = &new.volumes["recovered-9da42afa"];
    assert_eq!(known.naa.to_string(), "60a5745c92219dbae913873c9da42afa");
    assert!(new.volumes.contains_key("b") && !new.volumes.contains_key("a"));
    // Without names a name is needed, and all are nameless.
    for record in [
        None,
        Some(b"{}".to_vec()),
        Some(br#"{"version":9,"pool":"p","raid":"1","volumes":[],"hosts":[],"maps":[]}"#.to_vec()),
    ] {
        let record = record.map(Carried::one).unwrap_or_default();
        let f = PoolFound { record, ..f.clone() };
        let mut new = Model::default();
        assert_eq!(import(&mut new, spec(), f.clone()).unwrap_err().code, Code::InvalidName);
        let named = ImportSpec { name: Some("p".into()), ..spec() };
        let report = import(&mut new, named, f).unwrap();
        assert!(report.volumes.len() == 3 && report.volumes.iter().all(|v| v.nameless));
        assert_eq!(report.left_out.len(), 1);
        assert_eq!(new.pools["p"].protection.as_ref().unwrap().raid, Raid::One);
    }
}

#[test]
fn what_is_said_on_devices_is_not_believed_without_looking() {
    let old = node();
    let with = |change: &dyn Fn(&mut Volume)| {
        let mut record = old.pool_record("safe").unwrap();
        change(&mut record.volumes[0]);
        let record = Carried::one(record.bytes().unwrap());
        let mut new = Model::default();
        let report = import(&mut new, spec(), PoolFound { record, ..found(&old) }).unwrap();
        assert!(!report.left_out.is_empty());
        (new, report)
    };
    // A volume that is somewhere else, and ones that cannot be.
    let elsewhere = |v: &mut Volume| {
        v.layout = Layout::Image { path: "/etc/shadow".into(), read_only: false, identity: None };
    };
    let odd: [&dyn Fn(&mut Volume); 4] =
        [&elsewhere, &|v| v.kind = VolumeKind::Thin, &|v| v.size = 5, &|v| v.serial = "a b".into()];
    for change in odd {
        let (new, _) = with(change);
        // It comes as one that nothing is known of.
        assert!(!new.volumes.contains_key("a") && new.volumes.len() == 2);
        assert!(new.volumes.values().all(|v| matches!(v.layout, Layout::Store { .. })));
    }
    // The same data twice.
    let twin = old.volumes["b"].layout.clone();
    let (new, _) = with(&|v| v.layout = twin.clone());
    let mut datasets: Vec<_> = new.volumes.values().map(Volume::dataset).collect();
    datasets.sort();
    datasets.dedup();
    assert_eq!(datasets.len(), 2);
    // A program that would be run.
    let run: Encryption =
        serde_json::from_str(r#"{"cipher": "aes-256-xts", "key": "command:/bin/sh -c id"}"#)
            .unwrap();
    let secret = |v: &mut Volume| {
        let Layout::Store { form, .. } = &mut v.layout else { panic!("it is in a pool") };
        form.encryption = Some(run.clone());
    };
    let (new, report) = with(&secret);
    assert!(new.volumes.keys().eq(["b"]), "{report:?}");
    assert!(report.left_out[0].contains("--key-commands"), "{report:?}");
    let mut record = old.pool_record("safe").unwrap();
    secret(&mut record.volumes[0]);
    let allowed = ImportSpec { key_commands: true, ..spec() };
    let f = PoolFound { record: Carried::one(record.bytes().unwrap()), ..found(&old) };
    let mut new = Model::default();
    import(&mut new, allowed, f).unwrap();
    assert!(new.volumes.keys().eq(["a", "b"]));
}

#[test]
fn a_pool_that_is_released_leaves_nothing_and_can_come_again() {
    let mut m = node();
    let f = found(&m);
    m.apply(Command::ReleasePool { name: "safe".into(), newer: false }, 0).unwrap();
    assert!(m.pools.is_empty() && m.volumes.is_empty() && m.maps.is_empty());
    assert_eq!(m.hosts.len(), 3);
    import(&mut m, spec(), f).unwrap();
    let again = node();
    assert_eq!((m.volumes, m.maps, m.hosts), (again.volumes, again.maps, again.hosts));
}

fn kept(m: &Model, mut there: Carried) -> Carried {
    let stamp = Stamp { life: "a life".into(), revision: 1 };
    let parts = m.missing_parts("safe", &there, &stamp).unwrap();
    there.parts.extend(parts.into_iter().map(|p| (p.number, p.content)));
    there
}

/// Whether a volume that an import left out comes with a later one, with its key and its mappings.
fn comes_later(wrong: &dyn Fn(&mut Volume), right: &dyn Fn(&mut Volume)) -> bool {
    let mut old = node();
    let key: Encryption = serde_json::from_str(
        r#"{"cipher": "aes-256-xts", "key": "command:/bin/give", "sealed": {"of": "60a5745c92219dbae913873c9da42afa", "text": "the only one"}}"#,
    )
    .unwrap();
    let a = old.volumes.get_mut("a").unwrap();
    let Layout::Store { form, .. } = &mut a.layout else { panic!("it is in a pool") };
    form.encryption = Some(key);
    let was = a.clone();
    wrong(a);
    let mut found = found(&old);
    let data = found.datasets.iter_mut().find(|d| d.name == was.dataset()).unwrap();
    data.size = was.form().stored_len(was.size);
    let there = kept(&old, Carried::default());
    let mut new = Model::default();
    let f = PoolFound { record: there.clone(), ..found.clone() };
    import(&mut new, spec(), f).unwrap();
    assert!(!new.volumes.contains_key("a") && new.volumes.contains_key("b"));
    // Another life, after other changes, and a pool without anything else.
    let mut new: Model = serde_json::from_str(&serde_json::to_string(&new).unwrap()).unwrap();
    new.apply(Command::DeleteVolume { name: "b".into() }, 0).unwrap();
    new.apply(Command::ForgetVolume { name: "b".into() }, 0).unwrap();
    let mut record = kept(&new, there);
    for part in record.parts.values_mut() {
        // A program that understands it.
        let mut part_is: serde_json::Value = serde_json::from_slice(part).unwrap();
        for d in part_is["volumes"].as_array_mut().into_iter().flatten() {
            let mut v: Volume = serde_json::from_value(d["volume"].clone()).unwrap();
            right(&mut v);
            d["volume"] = serde_json::to_value(v).unwrap();
        }
        *part = serde_json::to_vec(&part_is).unwrap();
    }
    let mut datasets = found.datasets.clone();
    datasets.retain(|d| d.name == was.dataset());
    let mut again = Model::default();
    let allowed = ImportSpec { key_commands: true, ..spec() };
    import(&mut again, allowed, PoolFound { record, datasets, ..found }).unwrap();
    again.volumes.get("a") == Some(&was) && again.maps == old.maps
}

/// Growth that was under way goes on if what the volume had is there; else it has what there is, and grows no more.
#[test]
fn growth_goes_on_only_from_what_a_volume_had() {
    for (has, is) in [(1 << 30, (2 << 30, Some(1 << 30))), (1 << 29, (1 << 29, None))] {
        let mut old = node();
        let patch = VolumePatch { size: Some(2 << 30), ..VolumePatch::default() };
        old.apply(Command::PatchVolume { name: "a".into(), patch }, 0).unwrap();
        let mut found = found(&old);
        let of_a = old.volumes["a"].dataset();
        found.datasets.iter_mut().filter(|d| d.name == of_a).for_each(|d| d.size = has);
        let mut m = Model::default();
        import(&mut m, spec(), found).unwrap();
        let a = &m.volumes["a"];
        assert_eq!((a.size, a.grown_from), is);
    }
}

#[test]
fn what_an_import_left_out_comes_with_a_later_one() {
    assert!(comes_later(&|_| (), &|_| ()), "its key comes from a command");
    let serial = node().volumes["a"].serial.clone();
    let odd = |v: &mut Volume| v.serial = "a b".into();
    assert!(comes_later(&odd, &|v| v.serial.clone_from(&serial)), "it could not be so");
}

#[cfg(feature = "planted")]
#[test]
fn what_was_left_out_and_is_overwritten_is_caught() {
    use crate::planted::plant;
    plant(Some(Bug::LeftOutIsOverwritten));
    let came = comes_later(&|_| (), &|_| ());
    plant(None);
    assert!(!came);
}

/// Who sees a volume that one import left out and the next takes in, where the host that saw it is not the one of that name here,
/// or not any more.
fn sees_what_was_left_out(here: &[Command]) -> (Vec<String>, Vec<String>) {
    let mut old = node();
    let key: Encryption =
        serde_json::from_str(r#"{"cipher": "aes-256-xts", "key": "command:/bin/give"}"#).unwrap();
    let a = old.volumes.get_mut("a").unwrap();
    let Layout::Store { form, .. } = &mut a.layout else { panic!("it is in a pool") };
    form.encryption = Some(key);
    let mut found = found(&old);
    for d in &mut found.datasets {
        let v = old.volumes.values().find(|v| v.dataset() == d.name).unwrap();
        d.size = v.form().stored_len(v.size);
    }
    let there = kept(&old, Carried::default());
    let mut new = Model::default();
    let mut here = here.to_vec();
    // Whoever has the name from the beginning.
    if matches!(here.first(), Some(Command::CreateHost(_))) {
        new.apply(here.remove(0), 0).unwrap();
    }
    import(&mut new, spec(), PoolFound { record: there.clone(), ..found.clone() }).unwrap();
    for command in here {
        new.apply(command, 0).unwrap();
    }
    let record = kept(&new, there);
    new.apply(Command::ReleasePool { name: "safe".into(), newer: false }, 0).unwrap();
    let again = ImportSpec { key_commands: true, ..spec() };
    let report = import(&mut new, again, PoolFound { record, ..found }).unwrap();
    assert!(new.volumes.contains_key("a"));
    let sees = new.hosts.values().filter(|h| new.map(&h.name, "a").is_ok());
    let ports = sees.flat_map(|h| h.ports.iter().map(ToString::to_string)).collect();
    (ports, report.left_out)
}

fn another_h() -> Command {
    let ports = vec!["7:8".parse().unwrap()];
    Command::CreateHost(HostSpec { name: "h".into(), ports, ..HostSpec::default() })
}

/// Ways in which `h` is not the host that saw the volume.
fn others_of_that_name() -> [Vec<Command>; 2] {
    [vec![another_h()], vec![Command::DeleteHost { name: "h".into() }, another_h()]]
}

#[test]
fn a_volume_that_was_left_out_is_not_seen_by_another_host_of_that_name() {
    let (ports, left_out) = sees_what_was_left_out(&[]);
    assert_eq!((ports, left_out.len()), (vec!["0000000000000001:0000000000000002".into()], 0));
    for here in others_of_that_name() {
        let (ports, left_out) = sees_what_was_left_out(&here);
        assert_eq!(ports, [""; 0], "{left_out:?}");
        assert_eq!(left_out.len(), 2, "the host and its mapping: {left_out:?}");
    }
}

#[cfg(feature = "planted")]
#[test]
fn a_host_of_that_name_that_gets_what_was_left_out_is_caught() {
    use crate::planted::plant;
    plant(Some(Bug::LeftByName));
    let seen = others_of_that_name().map(|here| sees_what_was_left_out(&here).0.len());
    plant(None);
    assert_eq!(seen, [1, 1]);
}

/// What a volume moves to is made anew: nothing of another is to be there.
fn moves_to_where_another_is(left: bool) -> bool {
    let old = node();
    let mut found = found(&old);
    if !left {
        found.record = Carried::default();
    }
    let mut new = Model::default();
    let pool: PoolSpec = toml::from_str(
        "name = \"new\"\nraid = \"0\"\ndevices = [{ kind = \"block\", path = \"/dev/a\" }]",
    )
    .unwrap();
    new.apply(Command::CreatePool(pool), 5).unwrap();
    // The volume has moved here from there; there is an older copy.
    let mut v = old.volumes["a"].clone();
    v.pool = "new".into();
    new.volumes.insert("a".into(), v);
    let old_copy = ImportSpec { name: Some("safe".into()), prefix: "old-".into(), ..spec() };
    if left {
        let mut record = old.pool_record("safe").unwrap();
        record.volumes[0].serial = "a b".into();
        found.record = Carried::one(record.bytes().unwrap());
    }
    import(&mut new, old_copy, found).unwrap();
    let to = MigrationSpec { pool: Some("safe".into()), ..MigrationSpec::default() };
    new.apply(Command::StartMigration { name: "a".into(), spec: to }, 0).is_ok()
}

#[test]
fn a_volume_does_not_move_to_where_another_is() {
    assert!(!moves_to_where_another_is(false));
    assert!(!moves_to_where_another_is(true));
}

#[cfg(feature = "planted")]
#[test]
fn a_volume_that_moves_to_where_another_is_is_caught() {
    use crate::planted::plant;
    plant(Some(Bug::PlaceTakenOver));
    let moves = [false, true].map(moves_to_where_another_is);
    plant(None);
    assert_eq!(moves, [true, true]);
}

#[test]
fn a_name_that_was_left_out_is_not_used_and_its_pool_is_not_deleted() {
    let mut m = node();
    let left = Left { volume: m.volumes["a"].clone(), seen_by: Vec::new() };
    m.maps.clear();
    for v in ["a", "b"] {
        m.apply(Command::DeleteVolume { name: v.into() }, 0).unwrap();
        m.apply(Command::ForgetVolume { name: v.into() }, 0).unwrap();
    }
    m.pools.get_mut("safe").unwrap().left.push(left);
    let e = m.apply(Command::CreateVolume(volume("a")), 1 << 92).unwrap_err();
    assert_eq!(e.code, Code::VolumeExists);
    let e = m.apply(Command::DeletePool { name: "safe".into() }, 0).unwrap_err();
    assert_eq!(e.code, Code::PoolInUse);
    m.apply(Command::ReleasePool { name: "safe".into(), newer: false }, 0).unwrap();
}

/// Volumes are told with their keys also where the part with the pool itself is lost.
#[test]
fn the_pool_itself_is_not_needed_for_its_volumes() {
    let old = node();
    let mut record = kept(&old, Carried::default());
    record.parts.remove(&0);
    record.doubtful.push(0);
    let mut new = Model::default();
    import(&mut new, spec(), PoolFound { record, ..found(&old) }).unwrap();
    assert_eq!((&new.volumes, &new.maps), (&old.volumes, &old.maps));
}
