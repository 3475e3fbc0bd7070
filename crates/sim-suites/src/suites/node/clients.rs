//! Who changes the configuration, each its own objects, and what of it must be there.

use super::medium::BLOCK;
use std::collections::{BTreeMap, BTreeSet};
use weir_base::Prng;
use weir_control::model::{
    CloneSpec, Command, DeviceKind, DeviceSpec, HostPatch, HostSpec, MapSpec, MigrationSpec, Model,
    PoolSpec, TargetSpec, VolumeKind, VolumePatch, VolumeSpec, VolumeState,
};

/// Whether an object is client `k`'s.
pub(super) fn own(name: &str, k: usize) -> bool {
    name.ends_with(&format!("-{k}"))
}

/// What a client's objects are: all that it can tell of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Want {
    /// Pool, size and whether hosts may only read.
    pub(super) volumes: BTreeMap<String, (String, u64, bool)>,
    hosts: BTreeMap<String, BTreeSet<String>>,
    maps: BTreeSet<(String, String)>,
    targets: BTreeMap<String, Vec<String>>,
    pub(super) pools: BTreeMap<String, usize>,
}

impl Want {
    /// What a configuration has of client `k`.
    pub(super) fn of(model: &Model, k: usize) -> Want {
        let own = |name: &str| own(name, k);
        let mut w = Want::default();
        for v in model.volumes.values().filter(|v| own(&v.name)) {
            if v.state != VolumeState::Deleting {
                w.volumes.insert(v.name.clone(), (v.pool.clone(), v.size, v.read_only));
            }
        }
        for h in model.hosts.values().filter(|h| own(&h.name)) {
            let ports = h.ports.iter().map(ToString::to_string).collect();
            w.hosts.insert(h.name.clone(), ports);
        }
        for m in model.maps.iter().filter(|m| own(&m.host)) {
            w.maps.insert((m.host.clone(), m.volume.clone()));
        }
        for t in model.targets.values().filter(|t| own(&t.name)) {
            w.targets.insert(t.name.clone(), t.listen.clone());
        }
        for p in model.pools.values().filter(|p| own(&p.name)) {
            w.pools.insert(p.name.clone(), p.devices.len());
        }
        w
    }
}

impl Want {
    /// The same, but for volumes that have their former sizes, as `found` says: that they have others could not be recorded, and was
    /// told. And for those that move, which may be here or there.
    pub(super) fn as_found(
        &self,
        found: &Want,
        former: &BTreeMap<String, u64>,
        moving: &BTreeMap<String, BTreeSet<String>>,
    ) -> Want {
        let mut w = self.clone();
        for (name, v) in &mut w.volumes {
            let Some((pool, size, _)) = found.volumes.get(name) else { continue };
            if former.get(name) == Some(size) {
                v.1 = *size;
            }
            if moving.get(name).is_some_and(|pools| pools.contains(pool)) {
                v.0.clone_from(pool);
            }
        }
        w
    }
}

pub(super) fn pool(name: &str, devices: usize, raid: Option<&str>, size: u64) -> PoolSpec {
    let devices = (0..devices).map(|n| device(name, n, size)).collect();
    let raid = raid.and_then(|r| serde_json::from_value(r.into()).ok());
    PoolSpec { name: name.into(), devices, raid, ..PoolSpec::default() }
}

fn device(pool: &str, n: usize, size: u64) -> DeviceSpec {
    let path = Some(format!("/sim/{pool}.{n}"));
    DeviceSpec { kind: DeviceKind::File, path, size: Some(size) }
}

pub(super) fn target(name: &str, listen: String) -> TargetSpec {
    TargetSpec { name: name.into(), listen: vec![listen], ..TargetSpec::default() }
}

fn one<'a, T>(rng: &mut Prng, all: impl ExactSizeIterator<Item = T> + 'a) -> Option<T> {
    let n = all.len() as u64;
    (n > 0).then(|| rng.below(n) as usize).and_then(|i| { all }.nth(i))
}

/// What a client asks for.
#[derive(Debug)]
pub(super) enum Step {
    Do(Command),
    Move(String, MigrationSpec),
    Stay(String),
    /// A snapshot of a volume.
    Snap(String, String),
    Unsnap(String, String),
    Revert(String, String),
    Clone(CloneSpec),
}

/// A volume is to move.
pub(super) fn moves(name: String, rng: &mut Prng) -> Step {
    let pool = Some(format!("p{}", rng.below(2)));
    Step::Move(name, MigrationSpec { pool, ..MigrationSpec::default() })
}

/// The next step of client `k`, and what is there when it has been done.
pub(super) fn next(k: usize, was: &Want, rng: &mut Prng) -> Option<(Step, Want)> {
    if rng.chance(1, 8) {
        let name = one(rng, was.volumes.keys())?.clone();
        let step = if rng.chance(1, 3) { Step::Stay(name) } else { moves(name, rng) };
        return Some((step, was.clone()));
    }
    if rng.chance(1, 4) {
        let (volume, name) = (one(rng, was.volumes.keys())?.clone(), format!("s{}", rng.below(2)));
        let step = match rng.below(8) {
            0..=3 => Step::Snap(volume, name),
            4 | 5 => Step::Unsnap(volume, name),
            6 => Step::Revert(volume, name),
            _ => Step::Clone(CloneSpec {
                name: format!("v{}-{k}", rng.below(3)),
                volume,
                snapshot: name,
                read_only: false,
            }),
        };
        return Some((step, was.clone()));
    }
    command(k, was, rng).map(|(command, is)| (Step::Do(command), is))
}

fn command(k: usize, was: &Want, rng: &mut Prng) -> Option<(Command, Want)> {
    let mut is = was.clone();
    let n = rng.below(3);
    let name = |what: &str| format!("{what}{n}-{k}");
    let volume = one(rng, was.volumes.keys()).cloned();
    let host = one(rng, was.hosts.keys()).cloned();
    let size = rng.between(1, 6) * BLOCK;
    let command = match rng.below(16) {
        0..=3 => {
            let own = format!("q0-{k}");
            let pool = match rng.below(5) {
                0 if was.pools.contains_key(&own) => own,
                n => format!("p{}", n % 2),
            };
            is.volumes.insert(name("v"), (pool.clone(), size, false));
            let mut spec = VolumeSpec::new(name("v"), &pool, size);
            if pool == "p0" {
                spec.kind = Some(VolumeKind::Concat);
                if rng.chance(1, 2) {
                    (spec.kind, spec.chunk) = (Some(VolumeKind::Stripe), Some(BLOCK));
                }
            }
            Command::CreateVolume(spec)
        }
        4 | 5 => {
            let name = volume?;
            is.volumes.remove(&name);
            Command::DeleteVolume { name }
        }
        6..=8 => {
            let name = volume?;
            let v = is.volumes.get_mut(&name)?;
            let patch = match rng.chance(1, 3) {
                true => {
                    v.2 = !v.2;
                    VolumePatch { read_only: Some(v.2), ..VolumePatch::default() }
                }
                false => {
                    v.1 = size;
                    let allow_shrink = true;
                    VolumePatch { size: Some(size), allow_shrink, ..VolumePatch::default() }
                }
            };
            Command::PatchVolume { name, patch }
        }
        9 => {
            let port = format!("{:x}:{:x}", k + 1, n + 1);
            let ports = [port.parse().ok()?];
            is.hosts.insert(name("h"), ports.iter().map(ToString::to_string).collect());
            let spec = HostSpec { name: name("h"), ports: ports.into(), ..HostSpec::default() };
            Command::CreateHost(spec)
        }
        10 => {
            let name = host?;
            let port = format!("{:x}:{:x}", k + 1, rng.between(10, 15)).parse().ok()?;
            let ports = is.hosts.get_mut(&name)?;
            let mut patch = HostPatch::default();
            match ports.insert(format!("{port}")) {
                true => patch.add_ports.push(port),
                false => {
                    ports.remove(&format!("{port}"));
                    patch.remove_ports.push(port);
                }
            }
            Command::PatchHost { name, patch }
        }
        11 => {
            let name = host?;
            is.hosts.remove(&name);
            Command::DeleteHost { name }
        }
        12 => {
            let (host, volume) = (host?, volume?);
            is.maps.insert((host.clone(), volume.clone()));
            Command::CreateMap(MapSpec { host, volume, lun: None })
        }
        13 => {
            let (host, volume) = one(rng, was.maps.iter())?.clone();
            is.maps.remove(&(host.clone(), volume.clone()));
            Command::DeleteMap { host, volume }
        }
        14 => match one(rng, was.targets.keys()).cloned() {
            Some(name) if rng.chance(1, 2) => {
                is.targets.remove(&name);
                Command::DeleteTarget { name }
            }
            _ => {
                let listen = format!("127.0.0.1:{}", 5000 + k * 100 + rng.below(4) as usize);
                is.targets.insert(name("t"), vec![listen.clone()]);
                Command::PutTarget(target(&name("t"), listen))
            }
        },
        _ => {
            let name = format!("q0-{k}");
            match was.pools.contains_key(&name) {
                true => {
                    is.pools.remove(&name);
                    Command::DeletePool { name }
                }
                false => {
                    let raid = Some("1");
                    is.pools.insert(name.clone(), 2);
                    Command::CreatePool(pool(&name, 2, raid, 64 * BLOCK))
                }
            }
        }
    };
    Some((command, is))
}
