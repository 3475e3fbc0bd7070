//! Declarative configuration: from what is declared and what there is to the command that closes the gap.

use crate::error::{Code, Error, Result};
use crate::model::{
    Command, DeviceGrow, HostPatch, HostSpec, MapSpec, Model, PoolPatch, PoolSpec, Raid,
    TargetSpec, VolumePatch, VolumeSpec,
};
use crate::planted::{Bug, has};
use crate::units::format_size;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use utoipa::ToSchema;

mod diff;
mod otherwise;
mod spec;

pub use diff::Difference;
pub(crate) use diff::{UNKNOWN_SIZE, differences, is_there};
pub(crate) use otherwise::is_otherwise;
pub(crate) use spec::How;
pub use spec::{ApplySpec, DoomedVolume};

/// Objects as they should be. What is not declared is left alone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Desired {
    /// Pools.
    pub pools: Vec<PoolSpec>,
    /// Volumes.
    pub volumes: Vec<VolumeSpec>,
    /// Hosts.
    pub hosts: Vec<HostSpec>,
    /// Mappings.
    pub maps: Vec<MapSpec>,
    /// Target ports.
    pub targets: Vec<TargetSpec>,
}

/// One declared object.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Item<'a> {
    Pool(&'a PoolSpec),
    Volume(&'a VolumeSpec),
    Host(&'a HostSpec),
    Map(&'a MapSpec),
    Target(&'a TargetSpec),
}

impl Desired {
    /// The mappings: those that name a number first, which no other may take then.
    pub(crate) fn maps_in_order(&self) -> impl Iterator<Item = &MapSpec> {
        let named = |yes: bool| self.maps.iter().filter(move |m| m.lun.is_some() == yes);
        named(true).chain(named(false))
    }

    /// Everything, in the order in which it can be made.
    pub(crate) fn items(&self) -> impl Iterator<Item = Item<'_>> {
        let pools = self.pools.iter().map(Item::Pool);
        let volumes = self.volumes.iter().map(Item::Volume);
        let hosts = self.hosts.iter().map(Item::Host);
        let maps = self.maps_in_order().map(Item::Map);
        pools.chain(volumes).chain(hosts).chain(maps).chain(self.targets.iter().map(Item::Target))
    }
}

impl Desired {
    /// Whether it declares an object (`volume/db-01`, `map/HOST/VOLUME`).
    pub(crate) fn names(&self, object: &str) -> bool {
        self.items().any(|i| i.object() == object)
    }

    /// What it declares of one object.
    pub(crate) fn only(&self, object: &str) -> Desired {
        let mut one = Desired::default();
        match self.items().find(|i| i.object() == object) {
            Some(Item::Pool(s)) => one.pools.push(s.clone()),
            Some(Item::Volume(s)) => one.volumes.push(s.clone()),
            Some(Item::Host(s)) => one.hosts.push(s.clone()),
            Some(Item::Map(s)) => one.maps.push(s.clone()),
            Some(Item::Target(s)) => one.targets.push(s.clone()),
            None => {}
        }
        one
    }

    /// Declares of the same objects what another says of them.
    pub(crate) fn take_over(&mut self, other: &Desired) {
        fn each<T: Clone>(mine: &mut [T], theirs: &[T], is_same: impl Fn(&T, &T) -> bool) {
            for m in mine {
                if let Some(t) = theirs.iter().find(|t| is_same(m, t)) {
                    m.clone_from(t);
                }
            }
        }
        each(&mut self.pools, &other.pools, |a, b| a.name == b.name);
        each(&mut self.volumes, &other.volumes, |a, b| a.name == b.name);
        each(&mut self.hosts, &other.hosts, |a, b| a.name == b.name);
        each(&mut self.maps, &other.maps, |a, b| (&a.host, &a.volume) == (&b.host, &b.volume));
        each(&mut self.targets, &other.targets, |a, b| a.name == b.name);
    }

    /// Declares only those objects that `stays` says.
    pub(crate) fn retain(&mut self, stays: impl Fn(&str) -> bool) {
        self.pools.retain(|s| stays(&Item::Pool(s).object()));
        self.volumes.retain(|s| stays(&Item::Volume(s).object()));
        self.hosts.retain(|s| stays(&Item::Host(s).object()));
        self.maps.retain(|s| stays(&Item::Map(s).object()));
        self.targets.retain(|s| stays(&Item::Target(s).object()));
    }
}

impl Item<'_> {
    /// The object's name with its kind in front.
    pub(crate) fn object(&self) -> String {
        match self {
            Item::Pool(s) => format!("pool/{}", s.name),
            Item::Volume(s) => format!("volume/{}", s.name),
            Item::Host(s) => format!("host/{}", s.name),
            Item::Map(s) => format!("map/{}/{}", s.host, s.volume),
            Item::Target(s) => format!("target/{}", s.name),
        }
    }

    /// The objects without which it cannot be.
    pub(crate) fn needs(&self) -> Vec<String> {
        match self {
            Item::Volume(s) => vec![format!("pool/{}", s.pool)],
            Item::Map(s) => vec![format!("host/{}", s.host), format!("volume/{}", s.volume)],
            Item::Pool(_) | Item::Host(_) | Item::Target(_) => Vec::new(),
        }
    }

    /// Which of the objects without which it cannot be made is not as it is declared, of all that `failed`. What is there
    /// already was made of what there was.
    pub(crate) fn lost(&self, model: &Model, failed: impl Fn(&str) -> bool) -> Option<String> {
        let is_made = is_there(&self.object(), model) && !has(Bug::LostIfNotThere);
        let is_lost = |n: &String| {
            let counts = !has(Bug::LostIfNotThere) || !is_there(n, model);
            failed(n) && counts
        };
        self.needs().into_iter().find(|n| !is_made && is_lost(n))
    }

    /// Whether it is as declared.
    pub(crate) fn is_so(&self, model: &Model) -> bool {
        match self {
            Item::Target(s) => {
                let put = Command::PutTarget((*s).clone());
                model.clone().apply(put, 0).is_ok_and(|c| c.is_empty())
            }
            other => matches!(other.command(model), Ok(None)),
        }
    }

    /// The command that makes it so, if one is needed.
    pub(crate) fn command(&self, model: &Model) -> Result<Option<Command>> {
        match self {
            Item::Pool(s) => pool(model, s),
            Item::Volume(s) => volume(model, s),
            Item::Host(s) => Ok(host(model, s)),
            Item::Map(s) => map(model, s),
            // The model finds out itself whether a target port changes.
            Item::Target(s) => Ok(Some(Command::PutTarget((*s).clone()))),
        }
    }
}

/// An object that `failed`, and by which hosts may be given something else than is declared for them. A mapping that is not
/// there, since its volume is not as declared or it is `waiting`, gives them nothing, unless another has its number.
pub(crate) fn exposes<'a>(
    desired: &Desired,
    model: &Model,
    failed: impl Iterator<Item = &'a str> + Clone,
    waiting: &BTreeSet<String>,
) -> Option<String> {
    let has_failed = |object: &str| failed.clone().any(|f| f == object);
    let is_another = |map: &str| {
        let spec = desired.maps.iter().find(|m| format!("map/{}/{}", m.host, m.volume) == map);
        let in_place = |m: &MapSpec| model.maps_of_host(&m.host).any(|l| Some(l.lun) == m.lun);
        spec.is_some_and(in_place) && !has(Bug::NumberOfAnother)
    };
    let is_missing = |map: &str| {
        let volume = map.splitn(3, '/').nth(2).unwrap_or_default();
        let waits = || has_failed(&format!("volume/{volume}")) || waiting.contains(map);
        !is_there(map, model) && waits() && !is_another(map)
    };
    // They may write what they are only to read.
    let is_writable = |name: &str| {
        let wanted = desired.volumes.iter().any(|v| v.name == name && v.read_only);
        let is = model.volumes.get(name).is_some_and(|v| !v.read_only);
        wanted && is && model.maps.iter().any(|m| m.volume == name)
    };
    let mut all = failed.clone();
    let found = all.find(|object| match object.split_once('/') {
        Some(("host", _)) => true,
        Some(("map", _)) => !is_missing(object),
        Some(("volume", name)) => is_writable(name),
        _ => false,
    });
    found.filter(|_| !has(Bug::PortsBesideWrongHosts)).map(str::to_string)
}

/// Why an object is not made that needs another.
pub(crate) fn lacks(object: &str, lost: &str) -> Error {
    Error::new(Code::NotReady, format!("`{object}` needs `{lost}`"))
        .because(format!("`{lost}` is not as declared"))
        .hint(format!("correct `{lost}`, then apply the file again"))
}

/// What may be free once something else of the same declaration has been changed.
pub(crate) fn may_become_free(e: &Error) -> bool {
    matches!(e.code, Code::PortInUse | Code::LunInUse)
}

fn immutable(object: &str, field: &str, is: &str, wanted: &str) -> Error {
    Error::new(Code::ImmutableField, format!("the {field} of {object} cannot change"))
        .because(format!("it is {is} and the declaration says {wanted}"))
        .hint("correct the declaration, or delete the object and let it be made again")
}

fn pool(model: &Model, spec: &PoolSpec) -> Result<Option<Command>> {
    let Some(pool) = model.pools.get(&spec.name) else {
        return Ok(Some(Command::CreatePool(spec.clone())));
    };
    let object = format!("pool `{}`", spec.name);
    let raid = |r: Option<Raid>| r.map_or("plain".to_string(), |r| format!("raid {r}"));
    let is = pool.protection.as_ref().map(|p| p.raid);
    if spec.raid != is {
        return Err(immutable(&object, "protection", &raid(is), &raid(spec.raid)));
    }
    if spec.raid.is_some() {
        // Its devices come and go by commands; those of the declaration are the ones that it was made of.
        let other =
            spec.memory.filter(|m| pool.protection.as_ref().is_some_and(|p| p.memory != *m));
        let patch = |m| PoolPatch { memory: Some(m), ..PoolPatch::default() };
        return Ok(other.map(|m| Command::PatchPool { name: spec.name.clone(), patch: patch(m) }));
    }
    if spec.devices.len() < pool.devices.len() {
        let (is, wanted) = (pool.devices.len(), spec.devices.len());
        return Err(immutable(&object, "number of devices", &is.to_string(), &wanted.to_string()));
    }
    let mut patch = PoolPatch::default();
    for (i, (is, wanted)) in pool.devices.iter().zip(&spec.devices).enumerate() {
        if (is.kind, &is.path) != (wanted.kind, &wanted.path) {
            let show = |k: crate::model::DeviceKind, p: &Option<String>| {
                format!("{} {}", k.as_str(), p.as_deref().unwrap_or("without a path"))
            };
            return Err(immutable(
                &object,
                &format!("device {i}"),
                &show(is.kind, &is.path),
                &show(wanted.kind, &wanted.path),
            ));
        }
        if let Some(size) = wanted.size.filter(|s| *s != is.size) {
            patch.grow.push(DeviceGrow { device: i, size: Some(size) });
        }
    }
    patch.add = spec.devices[pool.devices.len()..].to_vec();
    let same = patch == PoolPatch::default();
    Ok((!same).then(|| Command::PatchPool { name: spec.name.clone(), patch }))
}

fn volume(model: &Model, spec: &VolumeSpec) -> Result<Option<Command>> {
    if !model.volumes.contains_key(&spec.name) {
        return Ok(Some(Command::CreateVolume(spec.clone())));
    }
    let volume = model.usable(&spec.name)?;
    let object = format!("volume `{}`", spec.name);
    if spec.pool != volume.pool {
        return Err(immutable(&object, "pool", &volume.pool, &spec.pool));
    }
    if let Some(kind) = spec.kind.filter(|k| *k != volume.kind) {
        return Err(immutable(&object, "kind", volume.kind.as_str(), kind.as_str()));
    }
    if let Some(size) = spec.block_size.filter(|s| *s != volume.block_size) {
        let (is, wanted) = (volume.block_size.to_string(), size.to_string());
        return Err(immutable(&object, "block size", &is, &wanted));
    }
    if let Some(serial) = spec.serial.as_ref().filter(|s| **s != volume.serial) {
        return Err(immutable(&object, "serial number", &volume.serial, serial));
    }
    if let Some(wanted) = &spec.form.encryption {
        let is = volume.form().encryption.as_ref().map(|e| e.key.to_string());
        if is.as_ref() != Some(&wanted.key.to_string()) {
            let is = is.map_or("none".to_string(), |k| format!("from {k}"));
            return Err(immutable(&object, "key", &is, &format!("from {}", wanted.key))
                .hint("`weir volume rekey` changes a key, `weir migrate start` encrypts; or correct the declaration"));
        }
    }
    // What is left out is not compared.
    let wanted = crate::model::Form::default().renewed(&spec.form)?;
    let words = |form: &crate::model::Form, part: &str| {
        let found = form.words().into_iter().find(|(p, _)| *p == part);
        found.map_or("none".to_string(), |(_, how)| how)
    };
    for part in ["compression", "deduplication"] {
        let (is, wanted) = (words(volume.form(), part), words(&wanted, part));
        if wanted != "none" && is != wanted {
            return Err(immutable(&object, part, &is, &wanted)
                .hint("`weir migrate start` moves it to a place of another form; or correct the declaration"));
        }
    }
    if let crate::model::Layout::Stripe { chunk, columns } = &volume.layout {
        if let Some(wanted) = spec.chunk.filter(|c| c != chunk) {
            return Err(immutable(&object, "chunk", &chunk.to_string(), &wanted.to_string()));
        }
        if let Some(wanted) = spec.columns.filter(|c| *c != columns.len()) {
            let is = columns.len().to_string();
            return Err(immutable(&object, "number of columns", &is, &wanted.to_string()));
        }
    }
    if spec.size < volume.size {
        return Err(Error::new(Code::ShrinkRefused, format!("{object} was not made smaller"))
            .because(format!(
                "it has {} and the declaration says {}",
                format_size(volume.size),
                format_size(spec.size)
            ))
            .hint("correct the declaration; a declaration never shrinks a volume"));
    }
    let snapshots = spec.snapshots.clone().filter(|s| *s != volume.snapshots);
    if (spec.size, spec.read_only) == (volume.size, volume.read_only) && snapshots.is_none() {
        return Ok(None);
    }
    let (size, read_only) = (Some(spec.size), Some(spec.read_only));
    let patch = VolumePatch { size, read_only, snapshots, ..VolumePatch::default() };
    Ok(Some(Command::PatchVolume { name: spec.name.clone(), patch }))
}

fn host(model: &Model, spec: &HostSpec) -> Option<Command> {
    let Some(host) = model.hosts.get(&spec.name) else {
        return Some(Command::CreateHost(spec.clone()));
    };
    let patch = HostPatch {
        add_ports: spec.ports.iter().filter(|p| !host.ports.contains(p)).copied().collect(),
        remove_ports: host.ports.iter().filter(|p| !spec.ports.contains(p)).copied().collect(),
        allow_any: (spec.allow_any != host.allow_any).then_some(spec.allow_any),
        // As with all else that is not declared: a host keeps a secret that the declaration does not name.
        secret: spec.secret.clone().filter(|s| host.secret.as_ref() != Some(s)),
        no_secret: false,
    };
    let same = patch == HostPatch::default();
    (!same).then(|| Command::PatchHost { name: spec.name.clone(), patch })
}

fn map(model: &Model, spec: &MapSpec) -> Result<Option<Command>> {
    let Some(m) = model.maps_of_host(&spec.host).find(|m| m.volume == spec.volume) else {
        return Ok(Some(Command::CreateMap(spec.clone())));
    };
    match spec.lun.filter(|l| *l != m.lun) {
        None => Ok(None),
        Some(lun) => {
            let object = format!("the mapping of `{}` to `{}`", spec.volume, spec.host);
            Err(immutable(&object, "LUN", &m.lun.to_string(), &lun.to_string()))
        }
    }
}
