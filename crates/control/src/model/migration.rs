//! Volumes on their way to another place, and volumes that are foreign files or disks.

use super::pools::check_path;
use super::volumes::{check_size, default_kind};
use super::*;
use crate::planted::{Bug, has};
use crate::units::{self, format_size};
use std::path::Path;
use std::sync::LazyLock;
use utoipa::ToSchema;

/// What stands for the pool of volumes in image mode; no pool can be called so.
pub const IMAGES: &str = "(image)";

static IMAGE_POOL: LazyLock<Pool> = LazyLock::new(|| Pool {
    name: IMAGES.into(),
    devices: Vec::new(),
    id: None,
    protection: None,
    left: Vec::new(),
});

/// What hosts were told of a volume when they first saw it, and what therefore stays true wherever it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Told {
    /// It has a volatile write cache: hosts flush (WCE of the caching mode page).
    pub write_cache: bool,
    /// Discarded blocks read as zeros, and discarding gives space back.
    pub thin: bool,
}

/// How far a migration is, as far as that must outlive the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum MigrationStage {
    /// The volume is where it was; data is on its way to the place named here. After a restart it starts over.
    Copying,
    /// The volume has moved; the place named here is the old one, whose space is being given back.
    Leaving,
    /// The volume stays; the place named here is the one that it was to move to, whose space is being given back.
    Undoing,
}

/// A volume's other place, on the way to it or from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Migration {
    /// How far it is.
    pub stage: MigrationStage,
    /// The pool of the other place; `(image)` for a file or disk of its own.
    pub pool: String,
    /// How the volume is or will be laid out there.
    pub kind: VolumeKind,
    /// Where exactly its blocks are there.
    pub layout: Layout,
    /// Number of the place, among all that the volume has had.
    pub place: u32,
    /// Bytes a second at most; 0 for as fast as possible.
    pub rate: u64,
    /// Both sides are read and compared before the cut-over.
    pub verify: bool,
    /// Nothing is copied for now.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// The volume is forgotten in the end; the file or disk that it was moved to keeps its data.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub detach: bool,
    /// The file that it is moved to is made by Weir, if it is not there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub create: bool,
}

/// Where to move a volume, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MigrationSpec {
    /// The pool to move it to; this or `path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The file or block device that it becomes, byte by byte; an absolute path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// With `path`: make the file if there is none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub create: bool,
    /// With `path`: forget the volume in the end, so that the file or device can be taken away.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub detach: bool,
    /// With `path`: what may be lost that is there, in the words of the refusal without it.
    #[serde(default, skip_serializing_if = "Overwrite::is_nothing")]
    pub overwrite: Overwrite,
    /// What tells that which was found at `path` from others that come to have its name. The daemon looks itself.
    #[serde(skip)]
    pub identity: Option<String>,
    /// With `pool`: how to lay it out there; left out: what suits the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<VolumeKind>,
    /// Bytes a second at most; left out or 0: as fast as possible.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "units::opt_size"
    )]
    pub rate: Option<u64>,
    /// Do not read both sides and compare before the cut-over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_verify: bool,
    /// With `pool`: the form in which the data is kept there, as far as it is to be another one than here.
    #[serde(default, skip_serializing_if = "FormSpec::is_plain")]
    pub form: FormSpec,
    /// With `pool`, that may be the one where it is: encrypt it with another key of its own, which is new in any case.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reencrypt: bool,
    /// Leave to keep an encrypted volume's data as it is from now on, for whoever has the device to read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub decrypt: bool,
}

/// A change to a migration under way.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MigrationPatch {
    /// Bytes a second at most; 0: as fast as possible.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "units::opt_size"
    )]
    pub rate: Option<u64>,
    /// Whether copying waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

/// A foreign file or disk to make a volume of, as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AdoptSpec {
    /// The volume's name.
    pub name: String,
    /// The file or block device; an absolute path.
    pub path: String,
    /// Logical block size: 512 or 4096 bytes; left out: the device's, 512 for a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u32>,
    /// Hosts may only read it, and it is opened for reading only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// Unit serial number, 1 to 32 printable characters; left out: made from the world-wide name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
}

/// What was found of a foreign file or disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageFound {
    /// Where it is, without links.
    pub path: String,
    /// Its bytes.
    pub size: u64,
    /// The least block size that it can be used with, in bytes.
    pub block_size: u32,
    /// What tells it from others that come to have its name, if anything does.
    pub identity: Option<String>,
}

impl Volume {
    /// The volume as it is in its other place.
    pub fn elsewhere(&self, m: &Migration) -> Volume {
        Volume {
            pool: m.pool.clone(),
            kind: m.kind,
            layout: m.layout.clone(),
            place: m.place,
            migration: None,
            ..self.clone()
        }
    }
}

fn migrating(name: &str, stage: MigrationStage) -> Error {
    let e = Error::new(Code::VolumeMigrating, format!("volume `{name}` is being migrated"));
    match stage {
        MigrationStage::Copying => {
            e.hint(format!("wait until it has moved, or stop it: weir migrate cancel {name}"))
        }
        MigrationStage::Leaving | MigrationStage::Undoing => e
            .because("space in its other place is still being given back")
            .hint("`weir migrate show` tells how that stands"),
    }
}

/// What is said of a volume that is being made smaller.
pub(crate) fn being_cut(name: &str) -> Error {
    Error::new(Code::NotReady, format!("volume `{name}` is being made smaller"))
        .because("what it had beyond its new end is still being thrown away")
        .hint("try again in a moment; if it takes long, `weir status` says why")
}

impl Model {
    /// The pool that a volume or a migration names: a pool, or what stands for it in image mode.
    pub fn pool_at(&self, name: &str) -> Result<&Pool> {
        if name == IMAGES { Ok(&IMAGE_POOL) } else { self.pool(name) }
    }

    /// Every layout in a pool, with its volume: volumes, places that volumes move to, and places that they leave.
    pub fn places_in<'a>(
        &'a self,
        pool: &'a str,
    ) -> impl Iterator<Item = (&'a Volume, &'a Layout)> {
        self.volumes.values().flat_map(move |v| {
            let here = (v.pool == pool).then_some((v, &v.layout));
            let there = v.migration.as_ref().filter(|m| m.pool == pool).map(|m| (v, &m.layout));
            here.into_iter().chain(there)
        })
    }

    /// Every layout, with its volume and the number of the place that it is of.
    pub(crate) fn places(&self) -> impl Iterator<Item = (&Volume, u32, &Layout)> {
        self.volumes.values().flat_map(|v| {
            let there = v.migration.as_ref().map(|m| (v, m.place, &m.layout));
            std::iter::once((v, v.place, &v.layout)).chain(there)
        })
    }

    /// Refuses what cannot be done to a volume on its way.
    pub(crate) fn check_unmoved(&self, name: &str) -> Result<()> {
        match &self.volume(name)?.migration {
            Some(m) => Err(migrating(name, m.stage)),
            None => Ok(()),
        }
    }

    /// Refuses what cannot be done to a volume while it is copied. Once it is in one place it may be given up: the other place may
    /// be waited for in vain.
    pub(super) fn check_not_copied(&self, name: &str) -> Result<()> {
        match &self.volume(name)?.migration {
            Some(m) if m.stage == MigrationStage::Copying => Err(migrating(name, m.stage)),
            _ => Ok(()),
        }
    }

    /// Refuses what cannot be done to a volume on its way, or to one that is being made smaller.
    pub(crate) fn check_still(&self, name: &str) -> Result<()> {
        self.check_unmoved(name)?;
        match &self.volume(name)?.cut {
            Some(_) => Err(being_cut(name)),
            None => Ok(()),
        }
    }

    /// The volume whose image is at a path, on the way to it, or was a moment ago.
    fn image_owner(&self, path: &str) -> Option<&Volume> {
        let is_it = |l: &Layout| matches!(l, Layout::Image { path: p, .. } if p == path);
        self.places_in(IMAGES).find(|(_, l)| is_it(l)).map(|(v, _)| v)
    }

    /// Refuses a path that pools or volumes use.
    pub fn check_image_path(&self, path: &str) -> Result<()> {
        check_path(path)?;
        if let Some(v) = self.image_owner(path) {
            return Err(Error::new(Code::DeviceInUse, format!("`{path}` is volume `{}`", v.name))
                .hint("a file or disk can be one volume only"));
        }
        for pool in self.pools.values() {
            for used in pool.devices.iter().filter_map(|d| Some((d.kind, d.path.as_deref()?))) {
                let (kind, device) = used;
                let inside = kind == DeviceKind::Dir && Path::new(path).starts_with(device);
                if device == path || inside {
                    return Err(Error::new(
                        Code::DeviceInUse,
                        format!("`{path}` belongs to pool `{}`", pool.name),
                    )
                    .because(format!("`{device}` is one of its devices"))
                    .hint("use another file or disk; `weir migrate start` moves a volume out of a pool"));
                }
            }
        }
        Ok(())
    }

    pub(super) fn adopt_volume(
        &mut self,
        spec: AdoptSpec,
        found: &ImageFound,
        entropy: u128,
    ) -> Result<Vec<Change>> {
        self.check_image_path(&found.path)?;
        let block = spec.block_size.unwrap_or(found.block_size);
        if matches!(block, 512 | 4096) && block < found.block_size {
            return Err(Error::new(
                Code::InvalidBlockSize,
                format!("`{}` cannot be used in blocks of {block} bytes", found.path),
            )
            .because(format!("its own have {} bytes", found.block_size))
            .hint(format!("use --block-size {}", found.block_size)));
        }
        let rest = found.size % u64::from(block.max(1));
        if found.size == 0 || rest != 0 {
            let more = found.size.next_multiple_of(u64::from(block.max(1))).max(u64::from(block));
            return Err(Error::new(
                Code::InvalidSize,
                format!("`{}` cannot become a volume as it is", found.path),
            )
            .because(format!(
                "its {} bytes are not a multiple of the block size, {block}",
                found.size
            ))
            .hint(format!(
                "add what is missing of the last block first, e.g. `truncate -s {more} {}`, or copy it into a new volume",
                found.path
            )));
        }
        let like = VolumeSpec {
            block_size: Some(block),
            kind: Some(VolumeKind::Image),
            read_only: spec.read_only,
            serial: spec.serial,
            ..VolumeSpec::new(&spec.name, IMAGES, found.size)
        };
        let layout = Layout::Image {
            path: found.path.clone(),
            read_only: spec.read_only,
            identity: found.identity.clone(),
        };
        let mut changes =
            self.insert_volume(like, entropy, |_, _, _| Ok((VolumeKind::Image, layout)))?;
        if let Some(c) = changes.first_mut() {
            c.text = format!(
                "volume `{}` adopted: {}, {}",
                spec.name,
                found.path,
                format_size(found.size)
            );
        }
        Ok(changes)
    }

    pub(super) fn start_migration(
        &mut self,
        name: &str,
        spec: MigrationSpec,
    ) -> Result<Vec<Change>> {
        let volume = self.usable(name)?;
        if volume.state != VolumeState::Ready {
            return Err(Error::new(Code::NotReady, format!("volume `{name}` is being made"))
                .hint("try again in a moment"));
        }
        self.check_still(name)?;
        if !volume.snapshots.is_empty() {
            return Err(Error::new(
                Code::SnapshotInUse,
                format!("volume `{name}` has rules for periodic snapshots"),
            )
            .because("snapshots belong to a pool and cannot go along")
            .hint(format!("take the rules away first: weir snapshot policy clear {name}")));
        }
        let wrong = |text: &str, hint: &str| {
            Err(Error::new(Code::InvalidRequest, text.to_string()).hint(hint))
        };
        let (pool, kind, layout) = match (&spec.pool, &spec.path) {
            (Some(pool), None) => {
                if spec.create || spec.detach {
                    return wrong(
                        "a volume in a pool is not a file of its own",
                        "leave --create and --detach out, or name a path",
                    );
                }
                let pool = self.pool(pool)?;
                let same = spec.form.is_plain() && !spec.reencrypt && !spec.decrypt;
                if pool.name == volume.pool && (same || pool.protection.is_none()) {
                    return Err(Error::new(
                        Code::InvalidRequest,
                        format!("volume `{name}` is in pool `{}`", pool.name),
                    )
                    .hint("name another pool; `weir pool drain` and `replace` move data within a protected pool"));
                }
                let kind = spec.kind.unwrap_or_else(|| default_kind(pool));
                check_size(volume.size, volume.block_size)?;
                let like = VolumeSpec {
                    block_size: Some(volume.block_size),
                    kind: Some(kind),
                    read_only: volume.read_only,
                    ..VolumeSpec::new(name, &pool.name, volume.size)
                };
                Form::wanted(&spec.form, pool, name)?;
                let layout = self.lay_out(pool, &like, kind, volume.naa)?;
                let layout = layout.with_form(volume.form().moved(&spec)?);
                let layout = match pool.name == volume.pool {
                    true => layout.beside(&volume.layout),
                    false => layout,
                };
                (pool.name.clone(), kind, layout)
            }
            (None, Some(path)) => {
                if spec.kind.is_some() {
                    return wrong("a file of its own has no layout", "leave --kind out");
                }
                if !spec.form.is_plain() || spec.reencrypt {
                    return wrong(
                        "a file of its own has the volume's data as hosts see it",
                        "leave out in which form it is to be kept, or name a protected pool",
                    );
                }
                if let Some(m) = self.maps.iter().find(|m| m.volume == name && spec.detach) {
                    return Err(Error::new(
                        Code::VolumeMapped,
                        format!("volume `{name}` is still mapped"),
                    )
                    .because(format!("host `{}` sees it as LUN {}", m.host, m.lun))
                    .hint(
                        "unmap it first, or leave --detach out and delete it later: the file stays",
                    ));
                }
                self.check_image_path(path)?;
                let (path, identity) = (path.clone(), spec.identity.clone());
                let layout = Layout::Image { path, read_only: false, identity };
                (IMAGES.to_string(), VolumeKind::Image, layout)
            }
            _ => {
                return wrong(
                    "it is not clear where to",
                    "name a pool with --to, or a file or disk with --to-path",
                );
            }
        };
        self.check_place_free(name, &pool, &layout)?;
        volume.check_stays_secret(&spec, &layout)?;
        if kind == VolumeKind::Null {
            return Err(Error::new(
                Code::InvalidLayout,
                format!("volume `{name}` cannot move to pool `{pool}`"),
            )
            .because("a `null` volume keeps nothing of what is written")
            .hint("name another pool"));
        }
        let to = spec.path.clone().unwrap_or_else(|| format!("pool `{pool}`"));
        let migration = Migration {
            stage: MigrationStage::Copying,
            pool,
            kind,
            layout,
            place: volume.place + 1,
            rate: spec.rate.unwrap_or(0),
            verify: !spec.no_verify,
            paused: false,
            detach: spec.detach,
            create: spec.create,
        };
        self.set_migration(name, Some(migration));
        Ok(vec![told(name, format!("volume `{name}` is being moved to {to}"))])
    }

    /// Refuses a new place whose name on the devices another volume has: what is there would be thrown away.
    fn check_place_free(&self, name: &str, pool: &str, place: &Layout) -> Result<()> {
        let Layout::Store { dataset, .. } = place else { return Ok(()) };
        let is_it = |l: &Layout| matches!(l, Layout::Store { dataset: d, .. } if d == dataset);
        let other = self.places_in(pool).find(|(v, l)| v.name != name && is_it(l));
        let other = other.map(|(v, _)| v.name.as_str());
        let left = self.pools.get(pool).map_or(&[][..], |p| &p.left).iter();
        let left =
            || left.clone().find(|l| is_it(&l.volume.layout)).map(|l| l.volume.name.as_str());
        match other.or_else(left).filter(|_| !has(Bug::PlaceTakenOver)) {
            None => Ok(()),
            Some(other) => Err(Error::new(
                Code::VolumeExists,
                format!("pool `{pool}` has something of volume `{name}` already"),
            )
            .because(format!("it is volume `{other}` there, by its world-wide name"))
            .hint("delete that one first, if it is an old copy, or name another pool")),
        }
    }

    fn set_migration(&mut self, name: &str, migration: Option<Migration>) {
        if let Some(v) = self.volumes.get_mut(name) {
            v.migration = migration;
        }
    }

    pub(super) fn change_migration(
        &mut self,
        name: &str,
        patch: MigrationPatch,
    ) -> Result<Vec<Change>> {
        let m = self.copying(name)?;
        let mut new = m.clone();
        new.rate = patch.rate.unwrap_or(m.rate);
        new.paused = patch.paused.unwrap_or(m.paused);
        if new == *m {
            return Ok(Vec::new());
        }
        let text = match (new.paused, new.rate) {
            (true, _) => format!("the migration of volume `{name}` waits"),
            (false, 0) => format!("the migration of volume `{name}` goes as fast as it can"),
            (false, r) => format!("the migration of volume `{name}` takes {}/s", format_size(r)),
        };
        self.set_migration(name, Some(new));
        Ok(vec![told(name, text)])
    }

    /// The migration of a volume that can still be changed.
    pub fn copying(&self, name: &str) -> Result<&Migration> {
        match &self.volume(name)?.migration {
            Some(m) if m.stage == MigrationStage::Copying => Ok(m),
            Some(_) => Err(Error::new(
                Code::VolumeMigrating,
                format!("the migration of volume `{name}` is over"),
            )
            .because("only the space that is no longer needed is being given back")
            .hint("`weir migrate show` tells how it stands")),
            None => Err(Error::new(
                Code::MigrationNotFound,
                format!("volume `{name}` is not being migrated"),
            )
            .hint("`weir migrate list` shows what is")),
        }
    }

    /// The cut-over, or the end without one.
    pub(super) fn end_migration(&mut self, name: &str, moved: Option<Told>) -> Result<Vec<Change>> {
        let mut m = self.copying(name)?.clone();
        let Some(v) = self.volumes.get_mut(name) else { return Ok(Vec::new()) };
        let text = match moved {
            Some(_) => {
                std::mem::swap(&mut v.pool, &mut m.pool);
                std::mem::swap(&mut v.kind, &mut m.kind);
                std::mem::swap(&mut v.layout, &mut m.layout);
                std::mem::swap(&mut v.place, &mut m.place);
                v.told = moved;
                m.stage = MigrationStage::Leaving;
                format!("volume `{name}` has moved")
            }
            None => {
                m.stage = MigrationStage::Undoing;
                format!("volume `{name}` stays where it is")
            }
        };
        v.migration = Some(m);
        Ok(vec![told(name, text)])
    }

    /// Nobody waits any more for places in a pool that is not there, nor to delete volumes in it.
    pub(super) fn drop_places(&mut self, pool: &str) -> Result<Vec<Change>> {
        self.pool(pool)?;
        let over = |v: &&mut Volume| {
            let m = v.migration.as_ref().filter(|m| m.pool == pool && v.pool != pool);
            m.is_some_and(|m| m.stage != MigrationStage::Copying)
        };
        let mut changes = Vec::new();
        for v in self.volumes.values_mut().filter(over) {
            v.migration = None;
            let text = format!(
                "what there may be of volume `{}` in pool `{pool}` stays there, unknown",
                v.name
            );
            changes.push(told(&v.name, text));
        }
        // One that has another place goes when that has been cleared.
        let is_elsewhere = |v: &Volume| {
            v.migration.as_ref().is_some_and(|m| m.pool != pool) && !has(Bug::ClearedUnknown)
        };
        let is_going =
            |v: &&Volume| v.pool == pool && v.state == VolumeState::Deleting && !is_elsewhere(v);
        let going: Vec<_> =
            self.volumes.values().filter(is_going).map(|v| v.name.clone()).collect();
        for name in going {
            self.volumes.remove(&name);
            let text = format!(
                "volume `{name}` is forgotten; what there may be of it in pool `{pool}` stays there"
            );
            changes.push(Change::new(ObjectKind::Volume, Action::Deleted, &name, text));
        }
        Ok(changes)
    }

    /// Nothing is left of the migration; a volume that was to be detached goes too.
    pub(super) fn forget_migration(&mut self, name: &str) -> Result<Vec<Change>> {
        match &self.volume(name)?.migration {
            None => Ok(Vec::new()),
            Some(m) if m.stage == MigrationStage::Copying => {
                Err(Error::new(Code::Internal, format!("volume `{name}` is on its way"))
                    .hint("end its migration first"))
            }
            Some(m) if m.detach && m.stage == MigrationStage::Leaving => {
                self.volumes.remove(name);
                let text = format!("volume `{name}` is out of Weir's service");
                Ok(vec![Change::new(ObjectKind::Volume, Action::Deleted, name, text)])
            }
            Some(_) => {
                self.set_migration(name, None);
                Ok(vec![told(name, format!("the migration of volume `{name}` is over"))])
            }
        }
    }
}

fn told(name: &str, text: String) -> Change {
    Change::new(ObjectKind::Volume, Action::Updated, name, text)
}

#[cfg(test)]
mod tests;
