//! What a protected pool carries of the configuration on its devices, and how another node takes the pool over by that.

mod hosts;

use super::apply::check_count;
use super::protection::check_kind;
use super::record::PoolRecord;
use super::volumes::{check_serial, check_size};
use super::*;
use crate::planted::{Bug, has};
use utoipa::ToSchema;

/// A volume that is on a pool's devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetFound {
    /// What it is called there.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Bytes of a logical block.
    pub block_size: u32,
}

/// A pool that was found on devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolFound {
    /// Its identity.
    pub id: PoolId,
    /// Copies of each block.
    pub copies: u8,
    /// Devices that it has, also those that are not there.
    pub members: usize,
    /// What it carries of the configuration; nothing: it was made before pools did that, or it cannot be read.
    pub record: Carried,
    /// Its volumes.
    pub datasets: Vec<DatasetFound>,
}

/// A pool to take over from devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportSpec {
    /// What to call it; left out: what it was called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its devices, in any order.
    pub devices: Vec<DeviceSpec>,
    /// Put before the names of its volumes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// Take in volumes, too, whose keys come from commands, which are run as soon as the volumes are opened.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub key_commands: bool,
    /// Leave hosts and mappings out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_hosts: bool,
    /// Though devices are missing that may have what the others have not, or some of what the pool carries cannot be read; that is
    /// lost then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    /// Only tell what would be done.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// A volume that came with a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeImported {
    /// Its name.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// The pool carries nothing about it but that it is there: it is shown as it is stored, for reading only, under a name that says
    /// so.
    pub nameless: bool,
}

/// What came, or would come, of taking a pool over.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImportReport {
    /// What the pool is called now.
    pub pool: String,
    /// Its volumes.
    pub volumes: Vec<VolumeImported>,
    /// Hosts that were made.
    pub hosts: Vec<String>,
    /// Mappings that were made: host and volume.
    pub maps: Vec<(String, String)>,
    /// What was left out, and why.
    pub left_out: Vec<String>,
}

/// A pool, its volumes and whoever sees them, ready to be put into the model.
#[derive(Default)]
struct Import {
    volumes: Vec<Volume>,
    hosts: Vec<Host>,
    maps: Vec<Mapping>,
    report: ImportReport,
}

/// Whether what is said of a volume can be so.
fn check_described(v: &Volume) -> Result<()> {
    let Layout::Store { .. } = &v.layout else {
        return Err(Error::new(Code::InvalidLayout, "it is in no protected pool"));
    };
    if v.kind != VolumeKind::Protected || !matches!(v.block_size, 512 | 4096) {
        return Err(Error::new(Code::InvalidLayout, "a protected volume is not like that"));
    }
    check_serial(&v.serial)?;
    if let Some(n) = &v.newer_in {
        check_name("pool", &n.pool)?;
    }
    check_size(v.size, v.block_size)
}

impl Model {
    /// Whether devices may become those of a pool that is taken over.
    ///
    /// # Errors
    /// There are none, one is of a kind that cannot be, or in use by a pool or volume.
    pub fn check_devices(&self, devices: &[DeviceSpec]) -> Result<()> {
        if devices.is_empty() {
            return Err(Error::new(Code::InvalidDevice, "no devices were named")
                .hint("name all devices of the pool: --device /dev/sdb --device /dev/sdc"));
        }
        devices.iter().try_for_each(check_kind)?;
        self.new_devices(&[], devices).map(drop)
    }

    /// The pool with that identity.
    ///
    /// # Errors
    /// There is none.
    pub fn pool_of(&self, id: PoolId) -> Result<&Pool> {
        let is_it = |p: &&Pool| p.protection.as_ref().is_some_and(|p| p.id == id);
        self.pools.values().find(is_it).ok_or_else(|| {
            Error::new(Code::PoolNotFound, format!("there is no pool {id}"))
                .hint("`weir pool list` shows what there is")
        })
    }

    /// What taking over a pool would bring.
    ///
    /// # Errors
    /// As [`Command::ImportPool`] has them.
    pub fn plan_import(
        &self,
        spec: &ImportSpec,
        found: &PoolFound,
        known: &BTreeSet<(String, u16)>,
    ) -> Result<ImportReport> {
        let mut after = self.clone();
        Ok(after.import(spec, found, known)?.report)
    }

    pub(super) fn import_pool(
        &mut self,
        spec: &ImportSpec,
        found: &PoolFound,
        known: &BTreeSet<(String, u16)>,
    ) -> Result<Vec<Change>> {
        let mut after = self.clone();
        let done = after.import(spec, found, known)?;
        let pool = &done.report.pool;
        let text = format!(
            "pool `{pool}` taken over from {} device(s), with {} volume(s)",
            spec.devices.len(),
            done.volumes.len()
        );
        let mut changes = vec![Change::new(ObjectKind::Pool, Action::Created, pool, text)];
        let is_nameless =
            |name: &str| done.report.volumes.iter().any(|v| v.nameless && v.name == name);
        for v in &done.volumes {
            let how = match is_nameless(&v.name) {
                true => ", for reading only: the pool does not tell in which form it is stored",
                false => "",
            };
            let text = format!("volume `{}` came with pool `{pool}`{how}", v.name);
            changes.push(Change::new(ObjectKind::Volume, Action::Created, &v.name, text));
        }
        for h in &done.hosts {
            let text = format!("host `{}` came with pool `{pool}`", h.name);
            changes.push(Change::new(ObjectKind::Host, Action::Created, &h.name, text));
        }
        for m in &done.maps {
            let text = format!("volume `{}` is LUN {} of host `{}`", m.volume, m.lun, m.host);
            let name = format!("{}/{}", m.host, m.volume);
            changes.push(Change::new(ObjectKind::Map, Action::Created, &name, text));
        }
        *self = after;
        Ok(changes)
    }

    pub(super) fn release_pool(&mut self, name: &str, newer: bool) -> Result<Vec<Change>> {
        if self.pool(name)?.protection.is_none() {
            return Err(Error::new(Code::Unsupported, format!("`{name}` is a plain pool"))
                .because("its devices do not tell what is on them")
                .hint("delete its volumes, then `weir pool delete`"));
        }
        let mut changes = Vec::new();
        let moving = |v: &&mut Volume| v.migration.as_ref().is_some_and(|m| m.pool == name);
        if newer {
            for v in self.volumes.values_mut().filter(moving).filter(|v| v.pool != name) {
                v.migration = None;
                let text =
                    format!("volume `{}` has nothing to do with pool `{name}` any more", v.name);
                changes.push(Change::new(ObjectKind::Volume, Action::Updated, &v.name, text));
            }
        } else {
            for (v, _) in self.places_in(name) {
                self.check_unmoved(&v.name)?;
            }
        }
        let leaving = self.volumes_of_pool(name);
        let elsewhere = |v: &Volume| v.migration.as_ref().map(|m| m.pool.clone());
        let volumes: Vec<(String, Option<String>)> =
            leaving.map(|v| (v.name.clone(), elsewhere(v))).collect();
        self.maps.retain(|m| {
            let stays = volumes.iter().all(|(v, _)| *v != m.volume);
            if !stays {
                let name = format!("{}/{}", m.host, m.volume);
                let text = format!("volume `{}` leaves with its pool", m.volume);
                changes.push(Change::new(ObjectKind::Map, Action::Deleted, &name, text));
            }
            stays
        });
        for (v, elsewhere) in volumes {
            self.volumes.remove(&v);
            let left = elsewhere.filter(|e| e != name).map_or(String::new(), |e| {
                format!("; what there may be of it in pool `{e}` stays there, unknown")
            });
            let text = format!("volume `{v}` leaves with pool `{name}`{left}");
            changes.push(Change::new(ObjectKind::Volume, Action::Deleted, &v, text));
        }
        self.pools.remove(name);
        let text = format!("pool `{name}` released; what it holds stays on its devices");
        changes.insert(0, Change::new(ObjectKind::Pool, Action::Deleted, name, text));
        Ok(changes)
    }

    /// Puts the pool in; the model is of no use after an error.
    fn import(
        &mut self,
        spec: &ImportSpec,
        found: &PoolFound,
        known: &BTreeSet<(String, u16)>,
    ) -> Result<Import> {
        let mut done = Import::default();
        let mut left_out = |why: &str| {
            done.report.left_out.push(format!("names, hosts and mappings: {why}"));
            None
        };
        let record = match found.record.record() {
            Ok(Some(r)) => Some(r),
            Ok(None) => left_out("the pool carries none of them"),
            Err(why) => left_out(&why),
        };
        if !found.record.doubtful.is_empty() {
            left_out(
                "some of what the pool carries cannot be read; what it had before is taken instead",
            );
        }
        let name = match (&spec.name, &record) {
            (Some(n), _) => n.clone(),
            (None, Some(r)) => r.pool.clone(),
            (None, None) => {
                return Err(Error::new(
                    Code::InvalidName,
                    "the pool does not say what it is called",
                )
                .hint(match found.record.doubtful.is_empty() {
                    true => "name it: weir pool import NAME --device …",
                    false => {
                        "some of what it carries cannot be read: see to the devices and try again"
                    }
                }));
            }
        };
        self.import_devices(&name, spec, found, record.as_ref())?;
        done.report.pool = name;
        self.import_volumes(&mut done, spec, found, record.as_ref())?;
        if let Some(r) = record.filter(|_| !spec.without_hosts) {
            self.import_hosts(&mut done, spec, r, known);
        }
        Ok(done)
    }

    fn import_devices(
        &mut self,
        name: &str,
        spec: &ImportSpec,
        found: &PoolFound,
        record: Option<&PoolRecord>,
    ) -> Result<()> {
        check_name("pool", name)?;
        if self.pools.contains_key(name) {
            return Err(Error::new(Code::PoolExists, format!("pool `{name}` exists"))
                .hint("choose another name: weir pool import NAME --device …"));
        }
        let same = |p: &&Pool| p.protection.as_ref().is_some_and(|p| p.id == found.id);
        if let Some(p) = self.pools.values().find(same) {
            return Err(Error::new(Code::PoolExists, "that pool is here already")
                .because(format!("it is pool `{}`", p.name))
                .hint("`weir pool attach` takes a device back that was missing"));
        }
        check_count("pool", self.pools.len())?;
        self.check_devices(&spec.devices)?;
        let mut devices = self.new_devices(&[], &spec.devices)?;
        // What is taken over is there.
        devices.iter_mut().for_each(|d| d.new = false);
        let raid = record.map(|r| r.raid).filter(|r| r.copies() == found.copies);
        let raid = raid.unwrap_or(match (found.copies, found.members) {
            (1, _) => Raid::Zero,
            (_, ..=2) => Raid::One,
            _ => Raid::Ten,
        });
        let memory = record.map(|r| r.memory).unwrap_or_default();
        let protection =
            Some(Protection { raid, id: found.id, formatted: true, overwrite: false, memory });
        let pool = Pool { name: name.into(), devices, id: None, protection, left: Vec::new() };
        self.pools.insert(name.into(), pool);
        Ok(())
    }

    fn import_volumes(
        &mut self,
        done: &mut Import,
        spec: &ImportSpec,
        found: &PoolFound,
        record: Option<&PoolRecord>,
    ) -> Result<()> {
        let is_there = |d: &str| found.datasets.iter().any(|f| f.name == d);
        let mut known = BTreeSet::new();
        for v in record.map_or(&[][..], |r| &r.volumes) {
            // What is on devices may have been put there by anybody.
            if let Err(e) = check_described(v) {
                done.report.left_out.push(format!("what is said of volume `{}`: {e}", v.name));
                self.leave(&done.report.pool, spec, record, v);
                continue;
            }
            if !known.insert(v.dataset()) {
                done.report.left_out.push(format!("volume `{}`: it is another one, too", v.name));
                self.leave(&done.report.pool, spec, record, v);
                continue;
            }
            let key = v.form().encryption.as_ref().map(|e| &e.key);
            if v.state == VolumeState::Ready && !is_there(&v.dataset()) {
                let text = format!("volume `{}`: it is not on the devices", v.name);
                done.report.left_out.push(text);
                continue;
            }
            if let Some(KeySource::Command(line)) = key
                && !spec.key_commands
            {
                self.check_new_name(&format!("{}{}", spec.prefix, v.name), &done.report.pool)?;
                self.leave(&done.report.pool, spec, record, v);
                let text = format!(
                    "volume `{}`: its key comes from a command, `{}`, which is run if that is allowed (--key-commands)",
                    v.name,
                    line.escape_debug()
                );
                done.report.left_out.push(text);
                continue;
            }
            let mut v = Volume {
                name: format!("{}{}", spec.prefix, v.name),
                pool: done.report.pool.clone(),
                migration: None,
                layers: Vec::new(),
                ..v.clone()
            };
            let has = found.datasets.iter().find(|f| f.name == v.dataset());
            let has = has.map_or(0, |f| v.form().seen_len(f.size));
            let has = has - has % u64::from(v.block_size);
            // One that was being made smaller has what is on its way out; nobody else had leave to take any of it.
            if has > v.size
                && check_size(has, v.block_size).is_ok()
                && v.cut.is_none_or(|c| has != c.from || c.open)
            {
                let text = format!(
                    "the size of volume `{}` that the pool tells, {} bytes: it has {has}",
                    v.name, v.size
                );
                done.report.left_out.push(text);
                v.size = has;
                v.cut = None;
            }
            if has > 0
                && has < v.grown_from.unwrap_or(v.size)
                && check_size(has, v.block_size).is_ok()
            {
                let text = format!(
                    "the size of volume `{}` that the pool tells, {} bytes: it has {has} only",
                    v.name, v.size
                );
                done.report.left_out.push(text);
                v.size = has;
                v.grown_from = None;
            }
            if !v.snapshots.is_empty() {
                let mut with = self.volumes.clone();
                with.insert(v.name.clone(), v.clone());
                if let Err(e) = self.check_rules(&v, &with) {
                    done.report.left_out.push(format!("rules of volume `{}`: {e}", v.name));
                    v.snapshots.clear();
                }
            }
            if let Some(n) = &v.newer_in {
                let text = format!(
                    "volume `{}` is not served: pool `{}` had it when it was looked at last",
                    v.name, n.pool
                );
                done.report.left_out.push(text);
            }
            self.put_imported(done, v, false)?;
        }
        for f in &found.datasets {
            if known.contains(&f.name) {
                continue;
            }
            let free = |naa: &Naa| self.volumes.values().all(|v| v.naa != *naa);
            let naa = f.name.parse().ok().filter(free);
            // The same each time that it is looked at.
            let bits = |b: u128, c: u8| b.wrapping_mul(0x0100_0000_01b3).wrapping_add(c.into());
            let naa = naa.unwrap_or_else(|| self.fresh_naa(f.name.bytes().fold(found.id.0, bits)));
            let layout =
                Layout::Store { dataset: f.name.clone(), origin: None, form: Form::default() };
            let v = Volume {
                name: format!("{}recovered-{:08x}", spec.prefix, naa.0 as u32),
                pool: done.report.pool.clone(),
                size: f.size,
                block_size: f.block_size,
                kind: VolumeKind::Protected,
                layout,
                // If it has a form, this is the inside of it, which a write would destroy.
                read_only: true,
                serial: format!("{:016X}", naa.0 as u64),
                naa,
                state: VolumeState::Ready,
                snapshots: Vec::new(),
                migration: None,
                place: 0,
                told: None,
                cut: None,
                layers: Vec::new(),
                grown_from: None,
                newer_in: None,
            };
            self.put_imported(done, v, true)?;
        }
        Ok(())
    }

    /// Has the pool go on carrying what it says of a volume that does not come.
    fn leave(&mut self, pool: &str, spec: &ImportSpec, record: Option<&PoolRecord>, v: &Volume) {
        if has(Bug::LeftOutIsOverwritten) {
            return;
        }
        let seen_by = record.map(|r| r.seen_by(&v.name)).unwrap_or_default();
        let name = format!("{}{}", spec.prefix, v.name);
        let volume = Volume { name, pool: pool.into(), ..v.clone() };
        if let Some(p) = self.pools.get_mut(pool) {
            p.left.push(Left { volume, seen_by });
        }
    }

    fn check_new_name(&self, name: &str, pool: &str) -> Result<()> {
        check_name("volume", name)?;
        if self.volumes.contains_key(name) {
            return Err(Error::new(Code::VolumeExists, format!("volume `{name}` exists"))
                .because("the pool has a volume of that name, too")
                .hint("give its volumes other names, with --prefix"));
        }
        self.check_not_left(name, Some(pool))
    }

    fn put_imported(&mut self, done: &mut Import, v: Volume, nameless: bool) -> Result<()> {
        self.check_new_name(&v.name, &v.pool)?;
        check_count("volume", self.volumes.len())?;
        if let Some(other) = self.volumes.values().find(|o| o.naa == v.naa) {
            return Err(Error::new(
                Code::VolumeExists,
                format!("volume `{}` is here already", v.name),
            )
            .because(format!("it is volume `{}`, by its world-wide name", other.name))
            .hint("delete that one first, if it is a copy"));
        }
        let (name, size) = (v.name.clone(), v.size);
        done.report.volumes.push(VolumeImported { name, size, nameless });
        done.volumes.push(v.clone());
        self.volumes.insert(v.name.clone(), v);
        Ok(())
    }
}

#[cfg(test)]
pub(in crate::model) mod tests;
