//! The model: rules, layouts, and random commands against invariants.

use super::*;
use crate::error::Kind;
use weir_base::Prng;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn device(kind: DeviceKind, path: Option<&str>, size: Option<u64>) -> DeviceSpec {
    DeviceSpec { kind, path: path.map(str::to_string), size }
}

fn file(path: &str, size: u64) -> DeviceSpec {
    device(DeviceKind::File, Some(path), Some(size))
}

fn ram(size: u64) -> DeviceSpec {
    device(DeviceKind::Ram, None, Some(size))
}

fn pool(name: &str, devices: Vec<DeviceSpec>) -> Command {
    Command::CreatePool(PoolSpec {
        name: name.into(),
        devices,
        raid: None,
        overwrite: Default::default(),
        memory: None,
    })
}

fn spec(name: &str, pool: &str, size: u64) -> VolumeSpec {
    VolumeSpec::new(name, pool, size)
}

fn volume(name: &str, pool: &str, size: u64) -> Command {
    Command::CreateVolume(spec(name, pool, size))
}

fn resize(name: &str, size: u64, allow_shrink: bool) -> Command {
    let patch = VolumePatch { size: Some(size), allow_shrink, ..VolumePatch::default() };
    Command::PatchVolume { name: name.into(), patch }
}

fn host(name: &str, ports: &[&str], allow_any: bool) -> Command {
    let ports = ports.iter().map(|p| p.parse().unwrap()).collect();
    Command::CreateHost(HostSpec { name: name.into(), ports, allow_any, ..HostSpec::default() })
}

fn map(host: &str, volume: &str, lun: Option<u16>) -> Command {
    Command::CreateMap(MapSpec { host: host.into(), volume: volume.into(), lun })
}

fn target(name: &str, listen: &[&str]) -> TargetSpec {
    TargetSpec {
        name: name.into(),
        listen: listen.iter().map(|l| l.to_string()).collect(),
        ..TargetSpec::default()
    }
}

fn with(commands: Vec<Command>) -> Model {
    let mut m = Model::default();
    for (i, c) in commands.into_iter().enumerate() {
        let what = format!("{c:?}");
        m.apply(c, i as u128 * 7919 + 1).unwrap_or_else(|e| panic!("{what}: {e}"));
    }
    m
}

/// The command must be refused with this code, a hint, and no change.
fn refused(m: &Model, c: Command, code: Code) -> Error {
    let mut copy = m.clone();
    let what = format!("{c:?}");
    let e = copy.apply(c, 99).expect_err(&what);
    assert_eq!(e.code, code, "{what}: {e}");
    assert!(!e.hint.is_empty(), "{what}: no hint");
    assert!(!e.message.ends_with('.'), "{e}");
    assert_eq!(copy, *m, "{what}: a refusal changes nothing");
    e
}

#[test]
fn devices_are_checked() {
    let m = with(vec![pool("p", vec![file("/d/a", GIB)])]);
    let one = |d: DeviceSpec| pool("q", vec![d]);
    use DeviceKind::*;
    for bad in [
        device(File, None, Some(GIB)),
        device(Ram, Some("/x"), Some(GIB)),
        device(Ram, None, None),
        device(Null, None, None),
        device(Dir, Some("/x"), Some(GIB)),
        device(Block, Some("/dev/x"), Some(GIB)),
        device(Block, Some("dev/x"), None),
        device(Block, Some("/dev/../x"), None),
        device(Block, Some("/dev//x"), None),
        device(Block, Some("/dev/x/"), None),
        device(Block, Some("/dev/\0x"), None),
    ] {
        refused(&m, one(bad), Code::InvalidDevice);
    }
    refused(&m, one(ram(MIB - 1)), Code::InvalidSize);
    refused(&m, one(ram(u64::MAX)), Code::InvalidSize);
    refused(&m, pool("q", vec![]), Code::InvalidDevice);
    let e = refused(&m, one(file("/d/a", GIB)), Code::DeviceInUse);
    assert!(e.message.contains("pool `p`"));
    refused(&m, pool("q", vec![file("/d/b", GIB), file("/d/b", GIB)]), Code::DeviceInUse);
    let mixed = vec![ram(GIB), device(Dir, Some("/x"), None)];
    refused(&m, pool("q", mixed), Code::InvalidDevice);
    refused(&m, pool("p", vec![ram(GIB)]), Code::PoolExists);
    refused(&m, pool("P", vec![ram(GIB)]), Code::InvalidName);
}

#[test]
fn volumes_are_checked() {
    let m = with(vec![pool("p", vec![ram(GIB)]), volume("v", "p", MIB)]);
    refused(&m, volume("v", "p", MIB), Code::VolumeExists);
    refused(&m, volume("w", "none", MIB), Code::PoolNotFound);
    refused(&m, volume("w", "p", 0), Code::InvalidSize);
    refused(&m, volume("w", "p", 513), Code::InvalidSize);
    refused(&m, volume("w", "p", MAX_VOLUME + 512), Code::InvalidSize);
    refused(&m, volume("w", "p", 2 * GIB), Code::PoolFull);
    refused(&m, volume("..", "p", MIB), Code::InvalidName);
    let make = |f: fn(&mut VolumeSpec)| {
        let mut s = spec("w", "p", MIB);
        f(&mut s);
        Command::CreateVolume(s)
    };
    refused(&m, make(|s| s.block_size = Some(1024)), Code::InvalidBlockSize);
    refused(&m, make(|s| (s.block_size, s.size) = (Some(4096), 512)), Code::InvalidSize);
    refused(&m, make(|s| s.kind = Some(VolumeKind::Thin)), Code::InvalidLayout);
    refused(&m, make(|s| s.kind = Some(VolumeKind::Null)), Code::InvalidLayout);
    refused(&m, make(|s| s.kind = Some(VolumeKind::Stripe)), Code::InvalidLayout);
    refused(&m, make(|s| s.chunk = Some(65_536)), Code::InvalidLayout);
    refused(&m, make(|s| s.serial = Some("".into())), Code::InvalidRequest);
    refused(&m, make(|s| s.serial = Some("a b".into())), Code::InvalidRequest);
    let two = with(vec![pool("p", vec![ram(GIB), ram(GIB)])]);
    let stripe = |chunk| {
        let mut s = spec("w", "p", MIB);
        (s.kind, s.chunk) = (Some(VolumeKind::Stripe), Some(chunk));
        Command::CreateVolume(s)
    };
    for chunk in [0, 512, 2048, 65_537, 2 * MIB] {
        refused(&two, stripe(chunk), Code::InvalidLayout);
    }
    for columns in [0, 1, 3] {
        let mut s = spec("w", "p", MIB);
        (s.kind, s.columns) = (Some(VolumeKind::Stripe), Some(columns));
        refused(&two, Command::CreateVolume(s), Code::InvalidLayout);
    }
}

#[test]
fn deleting_what_is_used_is_refused_with_the_way_out() {
    let m = with(vec![
        pool("p", vec![ram(GIB)]),
        volume("v", "p", MIB),
        host("h", &["1:2"], false),
        map("h", "v", None),
    ]);
    let e = refused(&m, Command::DeleteVolume { name: "v".into() }, Code::VolumeMapped);
    assert_eq!(e.hint, "unmap it first: weir map delete h v");
    refused(&m, Command::DeleteHost { name: "h".into() }, Code::HostMapped);
    refused(&m, Command::DeletePool { name: "p".into() }, Code::PoolInUse);
    refused(&m, Command::DeletePool { name: "q".into() }, Code::PoolNotFound);
    refused(&m, Command::DeleteTarget { name: "q".into() }, Code::TargetNotFound);
    let mut m = m;
    let unmap = Command::DeleteMap { host: "h".into(), volume: "v".into() };
    m.apply(unmap.clone(), 0).unwrap();
    refused(&m, unmap, Code::MapNotFound);
    let mut copy = m.clone();
    let forget = Command::ForgetVolume { name: "v".into() };
    assert!(copy.apply(forget.clone(), 0).is_err(), "only after deletion began");
    m.apply(Command::DeleteVolume { name: "v".into() }, 0).unwrap();
    for c in [resize("v", 2 * MIB, false), map("h", "v", None), volume("v", "p", MIB)] {
        refused(&m, c, Code::VolumeDeleting);
    }
    m.apply(forget, 0).unwrap();
    m.apply(Command::DeletePool { name: "p".into() }, 0).unwrap();
    m.apply(Command::DeleteHost { name: "h".into() }, 0).unwrap();
    assert_eq!((m.pools.len(), m.volumes.len(), m.hosts.len(), m.maps.len()), (0, 0, 0, 0));
}

#[test]
fn layouts_use_what_the_pool_has() {
    let layout = |devices: Vec<DeviceSpec>, s: VolumeSpec| {
        let m = with(vec![pool("p", devices), Command::CreateVolume(s)]);
        let v = m.volumes["v"].clone();
        (v.kind, v.layout)
    };
    let whole = Layout::Extent { device: 0, offset: 0, length: MIB };
    // Any size takes whole extents.
    assert_eq!(layout(vec![ram(GIB)], spec("v", "p", 512)), (VolumeKind::Ram, whole.clone()));
    let f = || file("/d/a", GIB);
    assert_eq!(layout(vec![f()], spec("v", "p", MIB)), (VolumeKind::Concat, whole.clone()));
    let (kind, l) = layout(vec![f(), file("/d/b", GIB)], spec("v", "p", 3 * MIB));
    assert_eq!(kind, VolumeKind::Stripe);
    let column = |device| Layout::Extent { device, offset: 0, length: 2 * MIB };
    assert_eq!(l, Layout::Stripe { chunk: 65_536, columns: vec![column(0), column(1)] });
    // A concat prefers a device that holds it all, and goes on to the next where none does.
    let mut s = spec("v", "p", 3 * MIB);
    s.kind = Some(VolumeKind::Concat);
    let devices = vec![file("/d/a", 2 * MIB), file("/d/b", 5 * MIB)];
    let (_, l) = layout(devices.clone(), s.clone());
    assert_eq!(l, Layout::Extent { device: 1, offset: 0, length: 3 * MIB });
    s.size = 6 * MIB;
    let (_, l) = layout(devices, s);
    let parts = vec![
        Layout::Extent { device: 0, offset: 0, length: 2 * MIB },
        Layout::Extent { device: 1, offset: 0, length: 4 * MIB },
    ];
    assert_eq!(l, Layout::Concat { parts });
    // Thin volumes spread over directories.
    let dir = |p| device(DeviceKind::Dir, Some(p), None);
    let m = with(vec![
        pool("p", vec![dir("/d/a"), dir("/d/b")]),
        volume("v", "p", 1 << 50),
        volume("w", "p", MIB),
        volume("x", "p", MIB),
    ]);
    let on = |name: &str| m.volumes[name].layout.devices();
    assert_eq!((on("v"), on("w"), on("x")), (vec![0], vec![1], vec![1]));
    assert!(matches!(&m.volumes["v"].layout, Layout::File { file, .. } if file.starts_with("v.")));
}

#[test]
fn resizing_keeps_data_where_it_is() {
    let mut m = with(vec![
        pool("p", vec![ram(10 * MIB)]),
        volume("a", "p", 2 * MIB),
        volume("b", "p", 2 * MIB),
    ]);
    refused(&m, resize("a", MIB, false), Code::ShrinkRefused);
    refused(&m, resize("a", 100 * MIB, false), Code::PoolFull);
    m.apply(resize("a", 4 * MIB, false), 0).unwrap();
    let parts = vec![
        Layout::Extent { device: 0, offset: 0, length: 2 * MIB },
        Layout::Extent { device: 0, offset: 4 * MIB, length: 2 * MIB },
    ];
    assert_eq!(m.volumes["a"].layout, Layout::Concat { parts });
    // The end grows in place when what follows is free.
    m.apply(resize("a", 5 * MIB, false), 0).unwrap();
    let Layout::Concat { parts } = &m.volumes["a"].layout else { panic!("a concat") };
    assert_eq!(parts[1], Layout::Extent { device: 0, offset: 4 * MIB, length: 3 * MIB });
    let whole = m.volumes["a"].layout.clone();
    m.apply(resize("a", MIB, true), 0).unwrap();
    // The space is nobody's before what was there is gone, and nothing else is done to the volume meanwhile.
    let a = &m.volumes["a"];
    assert_eq!((a.size, a.cut, &a.layout), (MIB, Some(Cut { from: 5 * MIB, open: true }), &whole));
    assert_eq!(a.held(), 5 * MIB, "what is cut off is cleared with the volume");
    let finish = Command::FinishCut { name: "a".into() };
    assert_eq!(m.apply(finish, 0).unwrap(), [], "nothing is cut that may be taken back");
    m.apply(Command::AgreeCut { name: "a".into() }, 0).unwrap();
    refused(&m, resize("a", 2 * MIB, false), Code::NotReady);
    m.apply(Command::FinishCut { name: "a".into() }, 0).unwrap();
    assert_eq!(m.volumes["a"].cut, None);
    let first = Layout::Extent { device: 0, offset: 0, length: MIB };
    assert_eq!(m.volumes["a"].layout, first);
    assert_eq!(m.pool_info("p").unwrap().free, 7 * MIB);
    // The same size again is no change.
    let revision = m.revision;
    assert!(m.apply(resize("a", MIB, false), 0).unwrap().is_empty());
    assert_eq!(m.revision, revision);
}

#[test]
fn hosts_and_luns() {
    let m = with(vec![
        pool("p", vec![ram(GIB)]),
        volume("v", "p", MIB),
        volume("w", "p", MIB),
        host("h", &["1:2", "1:2", "1:3"], false),
        host("any", &[], true),
        map("h", "v", Some(1)),
    ]);
    assert_eq!(m.hosts["h"].ports.len(), 2, "the same port twice counts once");
    refused(&m, host("h", &["7:7"], false), Code::HostExists);
    refused(&m, host("i", &[], false), Code::InvalidPort);
    let e = refused(&m, host("i", &["0:0"], false), Code::InvalidPort);
    assert!(e.hint.contains("initiator_ext"));
    refused(&m, host("i", &["1:3"], false), Code::PortInUse);
    refused(&m, host("i", &["7:7"], true), Code::PortInUse);
    refused(&m, map("h", "v", Some(2)), Code::MapExists);
    refused(&m, map("h", "w", Some(1)), Code::LunInUse);
    refused(&m, map("h", "w", Some(16_384)), Code::InvalidLun);
    refused(&m, map("none", "w", None), Code::HostNotFound);
    refused(&m, map("h", "none", None), Code::VolumeNotFound);
    let e = refused(&m, map("h", "v@s", None), Code::VolumeNotFound);
    assert!(e.hint.contains("weir clone create v@s NAME --read-only"), "{}", e.hint);
    let mut m = m;
    m.apply(map("h", "w", None), 0).unwrap();
    assert_eq!(m.map("h", "w").unwrap().lun, 0, "the lowest that is free");
    m.apply(map("any", "v", None), 0).unwrap();
    let access = m.access();
    let h = access.hosts.iter().find(|h| h.name == "h").unwrap();
    let luns: Vec<(u16, &str)> = h.luns.iter().map(|l| (l.lun, l.volume.as_str())).collect();
    assert_eq!(luns, [(0, "w"), (1, "v")]);
    // A host whose name begins like another's has its own mappings.
    m.apply(host("h.1", &["8:8"], false), 0).unwrap();
    assert_eq!(m.maps_of_host("h.1").count(), 0);
    let patch = HostPatch { remove_ports: m.hosts["h"].ports.clone(), ..HostPatch::default() };
    refused(&m, Command::PatchHost { name: "h".into(), patch }, Code::InvalidPort);
}

#[test]
fn target_ports_keep_their_identity() {
    let mut m = with(vec![Command::PutTarget(target("srp0", &["0.0.0.0:5555"]))]);
    let before = m.targets["srp0"].clone();
    assert!(before.id_ext.0 != 0 && before.ioc_guid.0 != 0);
    let same = Command::PutTarget(target("srp0", &["0.0.0.0:5555"]));
    assert!(m.apply(same, 77).unwrap().is_empty(), "put twice changes nothing");
    m.apply(Command::PutTarget(target("srp0", &["0.0.0.0:5556", "[::1]:5556"])), 78).unwrap();
    let after = &m.targets["srp0"];
    assert_eq!((after.id_ext, after.ioc_guid), (before.id_ext, before.ioc_guid));
    let put = |t| Command::PutTarget(t);
    for listen in ["", "5555", "host:1", "1.2.3.4", "1.2.3.4:99999"] {
        refused(&m, put(target("srp1", &[listen])), Code::InvalidAddress);
    }
    refused(&m, put(target("srp1", &[])), Code::InvalidAddress);
    refused(&m, put(target("srp1", &["0.0.0.0:5556"])), Code::PortInUse);
    refused(&m, put(target("srp1", &["[0:0::1]:5556"])), Code::PortInUse);
    let mut twin = target("srp1", &["0.0.0.0:1"]);
    (twin.id_ext, twin.ioc_guid) = (Some(before.id_ext), Some(before.ioc_guid));
    refused(&m, put(twin), Code::PortInUse);
    let mut many = target("srp1", &["0.0.0.0:1"]);
    many.channels = Some(0);
    refused(&m, put(many), Code::InvalidRequest);
}

#[test]
fn target_ports_keep_their_relative_identifiers() {
    let relative = |m: &Model| m.targets.values().map(|t| t.relative).collect::<Vec<_>>();
    let put = |m: &mut Model, name, address: &str| {
        let entropy = address.bytes().fold(1, |e: u128, b| e * 257 + u128::from(b));
        m.apply(Command::PutTarget(target(name, &[address])), entropy << 9).unwrap();
    };
    let mut m = with(Vec::new());
    put(&mut m, "srp0", "0.0.0.0:5555");
    put(&mut m, "brp0", "0.0.0.0:5556");
    assert_eq!(relative(&m), [2, 1], "by name: brp0, srp0");
    put(&mut m, "srp0", "0.0.0.0:5557");
    put(&mut m, "a", "0.0.0.0:5558");
    assert_eq!(relative(&m), [3, 2, 1]);
    assert!(!m.number_targets());
    m.apply(Command::DeleteTarget { name: "brp0".into() }, 5).unwrap();
    assert_eq!(relative(&m), [3, 1]);
    put(&mut m, "b", "0.0.0.0:5559");
    assert_eq!(relative(&m), [3, 2, 1]);
    // A configuration from before has none: its ports were counted in the order of their names.
    for t in m.targets.values_mut() {
        t.relative = 0;
    }
    assert!(m.number_targets());
    assert_eq!(relative(&m), [1, 2, 3]);
}

/// Extents in their pools do not overlap and lie on their devices; layouts are large enough; names fit keys.
fn check(m: &Model) {
    for p in m.pools.values() {
        let mut used: Vec<(usize, u64, u64)> = Vec::new();
        for v in m.volumes_of_pool(&p.name) {
            v.layout.for_each_extent(&mut |d, o, l| used.push((d, o, l)));
            if let Some(capacity) = v.layout.capacity() {
                assert!(capacity >= v.size, "{v:?}");
                let most = v.cut.map_or(v.size, |c| c.from);
                assert!(capacity < most + 16 * MIB, "wasteful: {v:?}");
            }
        }
        used.sort_unstable();
        for w in used.windows(2) {
            assert!(w[0].0 != w[1].0 || w[0].1 + w[0].2 <= w[1].1, "overlap: {w:?}");
        }
        for (d, o, l) in used {
            assert!(o % EXTENT_ALIGN == 0 && l % EXTENT_ALIGN == 0 && l > 0);
            assert!(o + l <= p.devices[d].size, "beyond the device");
        }
        let info = m.pool_info(&p.name).unwrap();
        assert_eq!(info.allocated + info.free, info.capacity);
    }
    for map in &m.maps {
        assert!(m.hosts.contains_key(&map.host) && m.volumes.contains_key(&map.volume));
    }
    let names: std::collections::BTreeSet<_> = m.volumes.values().map(|v| v.naa).collect();
    assert_eq!(names.len(), m.volumes.len(), "world-wide names are unique");
}

/// The first bytes of every volume stay where they are while it grows: where byte `at` of a layout lies.
fn locate(l: &Layout, at: u64) -> Option<(usize, u64)> {
    match l {
        Layout::File { .. } | Layout::Store { .. } | Layout::Image { .. } => None,
        Layout::Extent { device, offset, length } => {
            (at < *length).then_some((*device, offset + at))
        }
        Layout::Concat { parts } => {
            let mut at = at;
            for p in parts {
                let length = p.capacity()?;
                if at < length {
                    return locate(p, at);
                }
                at -= length;
            }
            None
        }
        Layout::Stripe { chunk, columns } => {
            let (index, within) = (at / chunk, at % chunk);
            let (column, row) = (index % columns.len() as u64, index / columns.len() as u64);
            locate(&columns[column as usize], row * chunk + within)
        }
    }
}

#[test]
fn random_commands_keep_the_invariants() {
    let mut outcomes = std::collections::BTreeMap::<String, u32>::new();
    for seed in 0..60 {
        let mut prng = Prng::new(seed);
        let mut m = Model::default();
        for _ in 0..300 {
            let name = |p: &mut Prng, letter: char, n: u64| format!("{letter}{}", p.below(n));
            let (v, p, h) =
                (name(&mut prng, 'v', 12), name(&mut prng, 'p', 3), name(&mut prng, 'h', 4));
            let size = prng.between(1, 40) * MIB / 2;
            let command = match prng.below(12) {
                0 => {
                    let devices = (0..prng.between(1, 4))
                        .map(|i| match prng.below(3) {
                            0 => ram(prng.between(4, 64) * MIB),
                            1 => file(&format!("/{p}/{i}"), prng.between(4, 64) * MIB),
                            _ => device(DeviceKind::Null, None, Some(prng.between(4, 64) * MIB)),
                        })
                        .collect();
                    pool(&p, devices)
                }
                1 | 2 => {
                    let mut s = spec(&v, &p, size);
                    if prng.chance(1, 2) {
                        s.kind =
                            Some([VolumeKind::Concat, VolumeKind::Stripe][prng.below(2) as usize]);
                        s.chunk =
                            (s.kind == Some(VolumeKind::Stripe)).then(|| 4096 << prng.below(9));
                    }
                    Command::CreateVolume(s)
                }
                3 | 4 => resize(&v, size, prng.chance(1, 2)),
                5 => Command::DeleteVolume { name: v },
                6 if prng.chance(1, 3) => Command::AgreeCut { name: v },
                6 if prng.chance(1, 2) => Command::FinishCut { name: v },
                6 => Command::ForgetVolume { name: v },
                7 => host(&h, &[&format!("{h}:1").replace('h', "1")], false),
                8 => map(&h, &v, prng.chance(1, 3).then(|| prng.below(4) as u16)),
                9 => Command::DeleteMap { host: h, volume: v },
                10 => {
                    let patch = PoolPatch {
                        add: vec![ram(prng.between(1, 16) * MIB)],
                        grow: vec![DeviceGrow { device: 0, size: Some(prng.between(4, 96) * MIB) }],
                        ..PoolPatch::default()
                    };
                    Command::PatchPool { name: p, patch }
                }
                _ => Command::DeletePool { name: p },
            };
            let before = m.clone();
            let entropy = u128::from(prng.below(4));
            let kind = format!("{command:?}").split(['(', ' ']).next().unwrap().to_string();
            match m.apply(command.clone(), entropy) {
                Ok(changes) => {
                    *outcomes.entry(format!("{kind} ok")).or_default() += 1;
                    assert_eq!(m.revision, before.revision + u64::from(!changes.is_empty()));
                    let mut again = before.clone();
                    again.apply(command, entropy).unwrap();
                    assert_eq!(again, m, "the same command gives the same model");
                }
                Err(e) => {
                    *outcomes.entry(format!("{kind} refused")).or_default() += 1;
                    assert_eq!(m, before, "a refusal changes nothing");
                    assert!(!matches!(e.kind(), Kind::Failed) || kind == "ForgetVolume", "{e}");
                }
            }
            check(&m);
            for (name, old) in &before.volumes {
                let Some(new) = m.volumes.get(name) else { continue };
                assert_eq!(old.naa, new.naa);
                for _ in 0..4 {
                    let at = prng.below(old.size.min(new.size));
                    assert_eq!(locate(&old.layout, at), locate(&new.layout, at), "{name} at {at}");
                }
            }
        }
    }
    for kind in
        ["CreatePool", "CreateVolume", "PatchVolume", "CreateMap", "PatchPool", "ForgetVolume"]
    {
        for outcome in ["ok", "refused"] {
            let n = outcomes.get(&format!("{kind} {outcome}")).copied().unwrap_or(0);
            assert!(n > 10, "{kind} {outcome}: only {n} times");
        }
    }
}

fn protected(name: &str, raid: Raid, devices: Vec<DeviceSpec>) -> Command {
    Command::CreatePool(PoolSpec {
        name: name.into(),
        devices,
        raid: Some(raid),
        overwrite: Default::default(),
        memory: None,
    })
}

/// What a disk has gained is seen when it is looked at; until that is recorded it has what it had.
#[test]
fn a_disk_grows_by_what_is_found() {
    let block = DeviceSpec { kind: DeviceKind::Block, path: Some("/dev/x".into()), size: None };
    let mut m = with(vec![pool("p", vec![block]), pool("q", vec![ram(GIB)])]);
    m.apply(Command::SizePool { name: "p".into(), sizes: vec![GIB.into()] }, 0).expect("sized");
    let grow = |pool: &str, size| {
        let grow = vec![DeviceGrow { device: 0, size }];
        Command::PatchPool { name: pool.into(), patch: PoolPatch { grow, ..PoolPatch::default() } }
    };
    refused(&m, grow("q", None), Code::InvalidDevice);
    refused(&m, grow("p", Some(GIB / 2)), Code::ShrinkRefused);
    for (size, wanted) in [(None, GIB), (Some(3 * GIB), 3 * GIB)] {
        let mut m = m.clone();
        assert_eq!(m.apply(grow("p", size), 0).expect("it grows").len(), 1);
        let d = m.pools["p"].devices[0].clone();
        assert_eq!((d.size, d.had()), (wanted, GIB));
        let found = vec![(2 * GIB).into()];
        m.apply(Command::SizePool { name: "p".into(), sizes: found }, 0).expect("sized");
        let d = &m.pools["p"].devices[0];
        assert_eq!((d.size, d.grown_from), (2 * GIB, None));
    }
}

#[test]
fn protected_pools_are_checked() {
    let files = |n: usize| (0..n).map(|i| file(&format!("/p/{i}"), GIB)).collect::<Vec<_>>();
    let m = Model::default();
    for (raid, n) in
        [(Raid::One, 1), (Raid::One, 3), (Raid::Ten, 2), (Raid::Zero, 0), (Raid::Ten, 33)]
    {
        refused(&m, protected("p", raid, files(n)), Code::InvalidDevice);
    }
    refused(&m, protected("p", Raid::Zero, vec![ram(GIB)]), Code::InvalidDevice);

    let mut m = with(vec![protected("p", Raid::One, files(2)), pool("q", vec![ram(GIB)])]);
    assert!(m.pools["p"].protection.as_ref().is_some_and(|p| !p.formatted && p.raid.copies() == 2));
    m.apply(Command::SizePool { name: "p".into(), sizes: vec![GIB.into(), GIB.into()] }, 0)
        .expect("sized");
    assert!(m.pools["p"].protection.as_ref().is_some_and(|p| p.formatted));
    let patch = |pool: &str, patch| Command::PatchPool { name: pool.into(), patch };
    let grow = vec![DeviceGrow { device: 0, size: Some(2 * GIB) }];
    refused(&m, patch("p", PoolPatch { grow, ..PoolPatch::default() }), Code::Unsupported);
    let maps = |m| PoolPatch { memory: Some(m), ..PoolPatch::default() };
    refused(&m, patch("q", maps(MapMemory::Full)), Code::Unsupported);
    assert!(m.apply(patch("p", maps(MapMemory::Lean)), 0).expect("no change").is_empty());
    assert_eq!(m.apply(patch("p", maps(MapMemory::Full)), 0).expect("changed").len(), 1);
    assert!(m.pools["p"].protection.as_ref().is_some_and(|p| p.memory == MapMemory::Full));
    // Devices join and leave by name; one that is named already, or is not, changes nothing.
    let put = |d: DeviceSpec| Command::PutDevice { name: "p".into(), device: d };
    let drop = |path: &str| Command::DropDevice { name: "p".into(), path: path.into() };
    m.apply(put(file("/p/2", GIB)), 0).expect("named");
    assert!(m.apply(put(file("/p/2", GIB)), 0).expect("known").is_empty());
    refused(&m, put(ram(GIB)), Code::InvalidDevice);
    let other = Command::PutDevice { name: "q".into(), device: file("/p/9", GIB) };
    refused(&m, other, Code::Unsupported);
    m.apply(drop("/p/0"), 0).expect("dropped");
    assert!(m.apply(drop("/p/0"), 0).expect("unknown").is_empty());
    assert_eq!(m.pools["p"].devices.len(), 2);
}

#[test]
fn volumes_of_protected_pools_are_made_in_two_steps() {
    let files = (0..4).map(|i| file(&format!("/p/{i}"), GIB)).collect();
    let mut m = with(vec![protected("p", Raid::Ten, files), pool("q", vec![ram(GIB)])]);
    let of = |kind| Command::CreateVolume(VolumeSpec { kind: Some(kind), ..spec("w", "p", MIB) });
    refused(&m, of(VolumeKind::Stripe), Code::InvalidLayout);
    let plain = VolumeSpec { kind: Some(VolumeKind::Protected), ..spec("w", "q", MIB) };
    refused(&m, Command::CreateVolume(plain), Code::InvalidLayout);
    // Thin: larger than the pool.
    m.apply(volume("v", "p", 64 * GIB), 5).expect("made");
    let v = m.volumes["v"].clone();
    assert_eq!((v.kind, v.state), (VolumeKind::Protected, VolumeState::Creating));
    assert_eq!(
        v.layout,
        Layout::Store { dataset: v.naa.to_string(), origin: None, form: Form::default() }
    );
    refused(&m, volume("v", "p", MIB), Code::VolumeExists);
    let ready = Command::ReadyVolume { name: "v".into() };
    m.apply(ready.clone(), 0).expect("ready");
    refused(&m, ready, Code::Internal);
    m.apply(resize("v", GIB, true), 0).expect("shrunk");
    m.apply(Command::AgreeCut { name: "v".into() }, 0).expect("agreed");
    m.apply(Command::FinishCut { name: "v".into() }, 0).expect("cut");
    // What the devices have of a volume is never less than nobody asked for.
    let mut more = m.clone();
    let adopt = |size| Command::AdoptSize { name: "v".into(), size };
    assert!(more.apply(adopt(GIB - 512), 0).expect("less").is_empty());
    more.apply(adopt(3 * GIB + 7), 0).expect("more");
    assert_eq!(more.volumes["v"].size, 3 * GIB);
    m.apply(resize("v", 2 * GIB, false), 0).expect("grown");

    let clone = |snapshot: &str, name: &str| {
        let (snapshot, name) = (snapshot.to_string(), name.to_string());
        let spec = CloneSpec { volume: "v".into(), snapshot, name, read_only: false };
        Command::CloneVolume { spec, size: 3 * GIB }
    };
    refused(&m, clone(&"s".repeat(31), "c"), Code::InvalidName);
    refused(&m, clone("s", "v"), Code::VolumeExists);
    m.apply(clone("s", "c"), 6).expect("cloned");
    let c = &m.volumes["c"];
    let origin = Some(snapshot_dataset(&v.dataset(), "s"));
    assert_eq!(
        c.layout,
        Layout::Store { dataset: c.naa.to_string(), origin, form: Form::default() }
    );
    assert_eq!((c.size, c.state, c.pool.as_str()), (3 * GIB, VolumeState::Creating, "p"));
}

#[test]
fn pools_may_have_each_others_paths_from_one_moment_to_the_next() {
    let mut m = Model::default();
    for (name, path) in [("a", "/d/0"), ("b", "/d/1")] {
        let mut made = pool(name, vec![file(path, GIB)]);
        if let Command::CreatePool(spec) = &mut made {
            spec.raid = Some(Raid::Zero);
        }
        m.apply(made, 7).expect("made");
    }
    let names = |pool: &str, gone: &str, come: &[&str]| DeviceNames {
        pool: pool.into(),
        gone: vec![gone.into()],
        come: come.iter().map(|p| file(p, GIB)).collect(),
    };
    let paths = |m: &Model| -> Vec<String> {
        m.pools.values().flat_map(|p| p.devices.iter().filter_map(|d| d.path.clone())).collect()
    };
    let one = Command::NameDevices { pools: vec![names("a", "/d/0", &["/d/1"])] };
    refused(&m, one, Code::DeviceInUse);
    let none = Command::NameDevices { pools: vec![names("a", "/d/0", &[])] };
    refused(&m, none, Code::Internal);
    let both = vec![names("a", "/d/0", &["/d/1"]), names("b", "/d/1", &["/d/0"])];
    assert_eq!(m.apply(Command::NameDevices { pools: both }, 0).expect("named").len(), 4);
    assert_eq!(paths(&m), ["/d/1", "/d/0"]);
    assert!(m.pools.values().all(|p| p.devices.iter().all(|d| !d.new)));
}

#[test]
fn a_configuration_writes_raid_as_it_likes() {
    for text in [r#""10""#, "10"] {
        assert_eq!(serde_json::from_str::<Raid>(text).expect("read"), Raid::Ten);
    }
    assert_eq!(serde_json::to_string(&Raid::Zero).expect("written"), r#""0""#);
    assert!(serde_json::from_str::<Raid>("5").is_err());
    // What an earlier version wrote has no protection.
    let old = r#"{"name":"p","devices":[]}"#;
    assert_eq!(serde_json::from_str::<Pool>(old).expect("read").protection, None);
}

#[test]
fn rules_for_snapshots_are_checked_and_kept() {
    let mut m = Model::default();
    let device = |kind, path: &str| DeviceSpec {
        kind,
        path: (!path.is_empty()).then(|| path.to_string()),
        size: Some(GIB),
    };
    let pool = |name: &str, raid, devices| PoolSpec {
        name: name.into(),
        devices,
        raid,
        overwrite: Default::default(),
        memory: None,
    };
    let two = vec![device(DeviceKind::File, "/a"), device(DeviceKind::File, "/b")];
    m.apply(Command::CreatePool(pool("p", Some(Raid::One), two)), 1).unwrap();
    m.apply(Command::CreatePool(pool("q", None, vec![device(DeviceKind::Ram, "")])), 2).unwrap();
    let rules =
        |all: &[&str]| -> Vec<SnapshotRule> { all.iter().map(|r| r.parse().unwrap()).collect() };
    let create = |name: &str, pool: &str, r: &[&str]| {
        Command::CreateVolume(VolumeSpec { snapshots: Some(rules(r)), ..spec(name, pool, MIB) })
    };
    let code = |r: Result<Vec<Change>>| r.expect_err("refused").code;
    assert_eq!(code(m.apply(create("x", "q", &["every=1m,keep=2"]), 3)), Code::Unsupported);
    m.apply(create("v", "p", &["every=1m,keep=2", "every=1h,keep=2"]), 4).unwrap();
    assert_eq!(m.volumes["v"].snapshots.len(), 2);
    let set = |volumes: &[String], r: &[&str]| {
        Command::SetSnapshotRules(SnapshotPolicySpec { volumes: volumes.to_vec(), rules: rules(r) })
    };
    let v = ["v".to_string()];
    assert_eq!(
        code(m.apply(set(&v, &["every=60s,keep=2", "every=1m,keep=3"]), 0)),
        Code::InvalidRequest
    );
    assert_eq!(code(m.apply(set(&[], &[]), 0)), Code::InvalidRequest);
    assert_eq!(code(m.apply(set(&["none".to_string()], &[]), 0)), Code::VolumeNotFound);
    let nine: Vec<String> = (1..=9).map(|n| format!("every={n}s,keep=1")).collect();
    let nine: Vec<&str> = nine.iter().map(String::as_str).collect();
    assert_eq!(code(m.apply(set(&v, &nine), 0)), Code::InvalidRequest);
    // The store's file and the interface have them as text.
    let text = serde_json::to_string(&m.volumes["v"]).unwrap();
    assert!(text.contains(r#""snapshots":["every=1m,keep=2","every=1h,keep=2"]"#), "{text}");
    assert_eq!(serde_json::from_str::<Volume>(&text).unwrap(), m.volumes["v"]);
    // What rules are followed for is not deleted.
    assert_eq!(code(m.apply(Command::DeleteVolume { name: "v".into() }, 0)), Code::SnapshotInUse);
    assert_eq!(m.apply(set(&v, &[]), 0).unwrap().len(), 1);
    assert_eq!(m.apply(set(&v, &[]), 0).unwrap().len(), 0, "nothing changes");
    m.apply(Command::DeleteVolume { name: "v".into() }, 0).unwrap();
    // A group has a bound, and one that is too large changes nothing.
    let names: Vec<String> = (0..65).map(|n| format!("g{n}")).collect();
    for (n, name) in names.iter().enumerate() {
        m.apply(create(name, "p", &[]), 100 + n as u128).unwrap();
    }
    let before = m.clone();
    assert_eq!(code(m.apply(set(&names, &["every=1m,keep=1,group=g"]), 0)), Code::InvalidRequest);
    assert_eq!(m, before);
    m.apply(set(&names[..64], &["every=1m,keep=1,group=g"]), 0).unwrap();
    m.apply(set(&names[64..], &["every=1h,keep=1,group=g"]), 0).unwrap();
    let patch = VolumePatch {
        snapshots: Some(rules(&["every=1m,keep=1,group=g"])),
        ..VolumePatch::default()
    };
    assert_eq!(
        code(m.apply(Command::PatchVolume { name: "g64".into(), patch }, 0)),
        Code::InvalidRequest
    );
    // Nor does it go over several pools, which share no instant, whichever command asks for it.
    let grouped = ["every=1m,keep=1,group=g"];
    let two = vec![device(DeviceKind::File, "/c"), device(DeviceKind::File, "/d")];
    m.apply(Command::CreatePool(pool("far", Some(Raid::One), two)), 999).unwrap();
    m.apply(create("far", "far", &[]), 1000).unwrap();
    let far = ["far".to_string()];
    let patch = VolumePatch { snapshots: Some(rules(&grouped)), ..VolumePatch::default() };
    for asked in [
        set(&far, &grouped),
        Command::PatchVolume { name: "far".into(), patch },
        create("more", "far", &grouped),
    ] {
        let e = m.apply(asked, 2000).unwrap_err();
        assert_eq!(e.code, Code::InvalidRequest);
        assert!(e.to_string().contains("group `g` has volume `g0` of pool `p`"), "{e}");
    }
    m.apply(set(&far, &["every=1m,keep=1,group=other"]), 0).unwrap();
    m.apply(set(&far, &["every=1d,keep=1,group=g"]), 0).unwrap();
    // What came that way, as by an import, stays and may keep more.
    m.volumes.get_mut("far").unwrap().snapshots = rules(&grouped);
    for asked in ["every=1m,keep=1,group=g", "every=1m,keep=2,group=g"] {
        let snapshots = Some(rules(&[asked]));
        let patch = VolumePatch { snapshots, ..VolumePatch::default() };
        m.apply(Command::PatchVolume { name: "far".into(), patch }, 0).unwrap();
    }
}

#[test]
fn names_of_snapshots_fit_the_store() {
    assert_eq!(snapshot_dataset(&Naa(6 << 124).to_string(), "s").len(), 34);
}
