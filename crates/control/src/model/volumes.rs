//! Volumes.

use super::apply::check_count;
use super::layout::{FreeSpace, largest};
use super::snapshots::check_groups;
use super::*;
use crate::units::format_size;

/// Default stripe chunk in bytes.
const DEFAULT_CHUNK: u64 = 64 << 10;

impl Volume {
    /// Hosts may see its size, and a start does not know that yet.
    pub fn is_size_unrecorded(&self) -> bool {
        self.grown_from.is_some() || self.cut.is_some_and(|c| c.open)
    }
}

impl Model {
    pub(super) fn create_volume(&mut self, spec: VolumeSpec, entropy: u128) -> Result<Vec<Change>> {
        self.insert_volume(spec, entropy, |model, spec, naa| {
            let pool = model.pool(&spec.pool)?;
            let kind = spec.kind.unwrap_or_else(|| default_kind(pool));
            Ok((kind, model.lay_out(pool, spec, kind, naa)?))
        })
    }

    /// A new volume whose kind and layout come from `lay_out`.
    pub(super) fn insert_volume(
        &mut self,
        spec: VolumeSpec,
        entropy: u128,
        lay_out: impl FnOnce(&Model, &VolumeSpec, Naa) -> Result<(VolumeKind, Layout)>,
    ) -> Result<Vec<Change>> {
        check_name("volume", &spec.name)?;
        if let Some(v) = self.volumes.get(&spec.name) {
            let code = match v.state {
                VolumeState::Ready | VolumeState::Creating => Code::VolumeExists,
                VolumeState::Deleting => Code::VolumeDeleting,
            };
            return Err(Error::new(code, format!("volume `{}` exists", spec.name))
                .because(match v.state {
                    VolumeState::Ready | VolumeState::Creating => "names are used once only",
                    VolumeState::Deleting => "it is being deleted",
                })
                .hint("choose another name"));
        }
        self.check_not_left(&spec.name, None)?;
        check_count("volume", self.volumes.len())?;
        let block_size = spec.block_size.unwrap_or(512);
        if !matches!(block_size, 512 | 4096) {
            return Err(Error::new(
                Code::InvalidBlockSize,
                format!("{block_size} bytes cannot be a block size"),
            )
            .hint("use 512 or 4096"));
        }
        check_size(spec.size, block_size)?;
        if let Some(serial) = &spec.serial {
            check_serial(serial)?;
        }
        let naa = self.fresh_naa(entropy);
        let (kind, layout) = lay_out(self, &spec, naa)?;
        let serial = spec.serial.unwrap_or_else(|| format!("{:016X}", naa.0 as u64));
        let text = format!(
            "volume `{}` created in pool `{}`: {} {}",
            spec.name,
            spec.pool,
            kind.as_str(),
            format_size(spec.size)
        );
        let change = Change::new(ObjectKind::Volume, Action::Created, &spec.name, text);
        let volume = Volume {
            name: spec.name.clone(),
            pool: spec.pool,
            size: spec.size,
            block_size,
            kind,
            layout,
            read_only: spec.read_only,
            serial,
            naa,
            state: first_state(kind),
            snapshots: spec.snapshots.unwrap_or_default(),
            migration: None,
            place: 0,
            told: None,
            cut: None,
            layers: Vec::new(),
            grown_from: None,
            newer_in: None,
        };
        if !volume.snapshots.is_empty() {
            let mut with = self.volumes.clone();
            with.insert(spec.name.clone(), volume.clone());
            self.check_rules(&volume, &with)?;
            check_groups(&volume, None, &with)?;
        }
        self.volumes.insert(spec.name, volume);
        Ok(vec![change])
    }

    /// Refuses the name of a volume that was left out when its pool was taken over, and may come yet; `but`: in another pool.
    pub(super) fn check_not_left(&self, name: &str, but: Option<&str>) -> Result<()> {
        let has = |p: &&Pool| {
            Some(p.name.as_str()) != but && p.left.iter().any(|l| l.volume.name == name)
        };
        match self.pools.values().find(has) {
            None => Ok(()),
            Some(p) => Err(Error::new(Code::VolumeExists, format!("volume `{name}` exists"))
                .because(format!(
                    "it is in pool `{}`, and was left out when that was taken over",
                    p.name
                ))
                .hint("choose another name; for an import, --prefix")),
        }
    }

    /// A name that no volume has. `entropy` decides; a clash moves on to the next number.
    pub(super) fn fresh_naa(&self, entropy: u128) -> Naa {
        let mut bits = entropy;
        loop {
            let naa = Naa::from_random(bits);
            if self.volumes.values().all(|v| v.naa != naa) {
                return naa;
            }
            bits = bits.wrapping_add(1);
        }
    }

    pub(super) fn lay_out(
        &self,
        pool: &Pool,
        spec: &VolumeSpec,
        kind: VolumeKind,
        naa: Naa,
    ) -> Result<Layout> {
        let form = Form::wanted(&spec.form, pool, &spec.name)?;
        if kind != VolumeKind::Stripe && (spec.chunk.is_some() || spec.columns.is_some()) {
            return Err(Error::new(
                Code::InvalidLayout,
                format!("a `{}` volume has no chunk and no columns", kind.as_str()),
            )
            .hint("ask for kind `stripe`, or leave both out"));
        }
        if kind == VolumeKind::Protected && pool.protection.is_some() {
            return Ok(Layout::Store { dataset: naa.to_string(), origin: None, form });
        }
        if kind == VolumeKind::Image {
            return Err(Error::new(Code::InvalidLayout, "a pool holds no `image` volume")
                .because("that is a file or disk of its own")
                .hint("`weir volume adopt` makes one of what is there, `weir volume export` moves a volume to one"));
        }
        let devices = eligible(pool, kind);
        if devices.is_empty() {
            let wanted = match kind {
                VolumeKind::Protected => {
                    return Err(Error::new(
                        Code::InvalidLayout,
                        format!("pool `{}` cannot hold a `protected` volume", pool.name),
                    )
                    .because("it is a plain pool")
                    .hint("name a pool that was made with --raid"));
                }
                VolumeKind::Thin => "`dir`",
                VolumeKind::Ram => "`ram`",
                VolumeKind::Null => "`null`",
                VolumeKind::Concat | VolumeKind::Stripe | VolumeKind::Image => {
                    "`file`, `block`, `ram` or `null`"
                }
            };
            return Err(Error::new(
                Code::InvalidLayout,
                format!("pool `{}` cannot hold a `{}` volume", pool.name, kind.as_str()),
            )
            .because(format!("it has no {wanted} device"))
            .hint("name another pool or another kind"));
        }
        if kind == VolumeKind::Thin {
            return Ok(self.place_file(pool, &devices, &spec.name, naa));
        }
        let mut free = FreeSpace::of(pool, self.places_in(&pool.name));
        let mut columns = 0;
        let layout = if kind == VolumeKind::Stripe {
            columns = spec.columns.unwrap_or(devices.len());
            if !(2..=devices.len()).contains(&columns) {
                return Err(Error::new(
                    Code::InvalidLayout,
                    format!("pool `{}` cannot stripe over {columns} device(s)", pool.name),
                )
                .because(format!("it has {}, and a stripe needs two or more", devices.len()))
                .hint(format!(
                    "add devices with `{}`, or ask for kind `concat`",
                    pool.grown_by()
                )));
            }
            let chunk = spec.chunk.unwrap_or(DEFAULT_CHUNK);
            check_chunk(chunk)?;
            free.stripe(&devices, columns, chunk, spec.size)
        } else {
            free.concat(&devices, spec.size)
        };
        layout.ok_or_else(|| {
            let free = FreeSpace::of(pool, self.places_in(&pool.name));
            full(pool, spec.size, largest(&free, &devices, columns))
        })
    }

    /// A file on the directory that has the fewest bytes provisioned.
    fn place_file(&self, pool: &Pool, devices: &[usize], name: &str, naa: Naa) -> Layout {
        let load = |d: usize| {
            self.volumes_of_pool(&pool.name)
                .filter(|v| v.layout.devices().contains(&d))
                .fold(0u64, |sum, v| sum.saturating_add(v.size))
        };
        let device = devices.iter().copied().min_by_key(|d| (load(*d), *d)).unwrap_or(0);
        // The end of the world-wide name keeps a new volume from ever meeting the file of a deleted namesake.
        Layout::File { device, file: format!("{name}.{:08x}.img", naa.0 as u32) }
    }

    pub(super) fn patch_volume(&mut self, name: &str, patch: VolumePatch) -> Result<Vec<Change>> {
        let mut volume = self.usable(name)?.clone();
        if patch.serve_here {
            // What is under way waits for just that.
            return self.serve_here(name, &patch);
        }
        self.check_still(name)?;
        if let Layout::Image { path, read_only, .. } = &volume.layout {
            let wrong = |what: &str, why: &str| {
                Err(Error::new(Code::Unsupported, format!("volume `{name}` {what}"))
                    .because(why)
                    .hint(format!("`weir migrate start {name} --to POOL` moves it to a pool first; {path} stays as it is")))
            };
            if patch.size.is_some_and(|s| s != volume.size) {
                return wrong("keeps its size", "it is a file or disk of its own");
            }
            if patch.read_only == Some(false) && *read_only {
                return wrong("cannot be written", "it was adopted for reading only");
            }
        }
        if let Some(size) = patch.size.filter(|s| *s != volume.size) {
            check_size(size, volume.block_size)?;
            let pool = self.pool(&volume.pool)?;
            if size < volume.size {
                if !patch.allow_shrink {
                    return Err(Error::new(
                        Code::ShrinkRefused,
                        format!("volume `{name}` was not made smaller"),
                    )
                    .because(format!(
                        "the data between {} and {} would be lost",
                        format_size(size),
                        format_size(volume.size)
                    ))
                    .hint("if that is wanted, repeat it with --allow-shrink"));
                }
                // The layout follows once what is cut off is gone: nobody else gets it before.
                volume.cut = Some(Cut { from: volume.size, open: true });
            } else {
                let devices = eligible(pool, volume.kind);
                let mut free = FreeSpace::of(pool, self.places_in(&pool.name));
                volume.layout = free
                    .grown(&volume.layout, &devices, size)
                    .ok_or_else(|| self.cannot_grow(pool, &volume, size))?;
            }
            if matches!(volume.layout, Layout::File { .. } | Layout::Store { .. }) {
                // What it has at least, whether the change gets to its end or not.
                let had = volume.grown_from.unwrap_or(volume.size).min(size);
                volume.grown_from = (had < size).then_some(had);
            }
            volume.size = size;
        }
        if let Some(read_only) = patch.read_only {
            volume.read_only = read_only;
        }
        if let Some(rules) = patch.snapshots {
            volume.snapshots = rules;
            let mut with = self.volumes.clone();
            with.insert(name.to_string(), volume.clone());
            self.check_rules(&volume, &with)?;
            check_groups(&volume, self.volumes.get(name), &with)?;
        }
        if self.volumes.get(name) == Some(&volume) {
            return Ok(Vec::new());
        }
        let text = format!(
            "volume `{name}` is now {}{}",
            format_size(volume.size),
            if volume.read_only { ", read-only" } else { "" }
        );
        self.volumes.insert(name.to_string(), volume);
        Ok(vec![Change::new(ObjectKind::Volume, Action::Updated, name, text)])
    }

    /// A volume that was to be made smaller is: what it had beyond its end may be thrown away.
    pub(super) fn agree_cut(&mut self, name: &str) -> Result<Vec<Change>> {
        self.volume(name)?;
        let cut = self.volumes.get_mut(name).and_then(|v| v.cut.as_mut());
        let Some(cut) = cut.filter(|c| c.open) else { return Ok(Vec::new()) };
        cut.open = false;
        let text = format!("volume `{name}` is smaller");
        Ok(vec![Change::new(ObjectKind::Volume, Action::Updated, name, text)])
    }

    /// Has volumes keep their size that were to be made smaller, where nobody knows that they are: what is said of each.
    pub fn keep_sizes(&mut self) -> Vec<(String, String)> {
        let mut kept = Vec::new();
        for v in self.volumes.values_mut() {
            let Some(cut) = v.cut.filter(|c| c.open) else { continue };
            if matches!(v.layout, Layout::File { .. } | Layout::Store { .. }) {
                v.grown_from = Some(v.size);
            }
            let text = format!(
                "volume `{}` keeps its {}: making it smaller had not come to its end, and nothing was cut off",
                v.name,
                format_size(cut.from)
            );
            (v.size, v.cut) = (cut.from, None);
            kept.push((v.name.clone(), text));
        }
        kept
    }

    /// What was beyond the end of a volume that was made smaller is gone: the space is free.
    pub(super) fn finish_cut(&mut self, name: &str) -> Result<Vec<Change>> {
        let volume = self.volume(name)?;
        if volume.cut.is_none_or(|c| c.open) {
            return Ok(Vec::new());
        }
        let layout = volume.layout.shrunk(volume.size);
        if let Some(v) = self.volumes.get_mut(name) {
            v.cut = None;
            v.layout = layout;
        }
        let text = format!("what volume `{name}` had beyond its new end is gone");
        Ok(vec![Change::new(ObjectKind::Volume, Action::Updated, name, text)])
    }

    /// The devices hold more of a volume than is known of it: nobody asked for less, so they are right.
    pub(super) fn adopt_size(&mut self, name: &str, size: u64) -> Result<Vec<Change>> {
        let volume = self.volume(name)?;
        let size = size - size % u64::from(volume.block_size.max(1));
        if size <= volume.size {
            return Ok(Vec::new());
        }
        let text = format!(
            "volume `{name}` has {} on its devices and not {}, as the configuration said",
            format_size(size),
            format_size(volume.size)
        );
        if let Some(v) = self.volumes.get_mut(name) {
            v.size = size;
            v.cut = None;
        }
        Ok(vec![Change::new(ObjectKind::Volume, Action::Updated, name, text)])
    }

    fn cannot_grow(&self, pool: &Pool, volume: &Volume, size: u64) -> Error {
        let free = FreeSpace::of(pool, self.places_in(&pool.name));
        let (devices, columns) = match &volume.layout {
            Layout::Stripe { columns, .. } => (volume.layout.devices(), columns.len()),
            _ => (eligible(pool, volume.kind), 0),
        };
        full(pool, size - volume.size, largest(&free, &devices, columns))
    }

    /// Makes a volume of a snapshot that has this size.
    pub(super) fn clone_volume(
        &mut self,
        spec: CloneSpec,
        size: u64,
        entropy: u128,
    ) -> Result<Vec<Change>> {
        check_name("volume", &spec.name)?;
        check_snapshot_name(&spec.snapshot)?;
        let source = self.usable(&spec.volume)?.clone();
        let origin = snapshot_dataset(&source.dataset(), &spec.snapshot);
        let like = VolumeSpec {
            block_size: Some(source.block_size),
            kind: Some(VolumeKind::Protected),
            read_only: spec.read_only,
            ..VolumeSpec::new(&spec.name, source.pool, size)
        };
        let mut changes = self.create_volume(like, entropy)?;
        if let Some(v) = self.volumes.get_mut(&spec.name)
            && let Layout::Store { origin: o, form, .. } = &mut v.layout
        {
            *o = Some(origin);
            // What the snapshot has was written in the form of its volume, which has not moved since.
            *form = source.layout.form().clone();
        }
        if let Some(c) = changes.first_mut() {
            c.text = format!(
                "volume `{}` made of snapshot `{}@{}`",
                spec.name, spec.volume, spec.snapshot
            );
        }
        Ok(changes)
    }

    /// A volume that was to be made, or made larger, is there.
    pub(super) fn ready_volume(&mut self, name: &str) -> Result<Vec<Change>> {
        let volume = self.volume(name)?;
        if volume.state != VolumeState::Creating && volume.grown_from.is_none() {
            return Err(Error::new(Code::Internal, format!("volume `{name}` is not being made"))
                .hint("`weir volume show` tells how it stands"));
        }
        if let Some(v) = self.volumes.get_mut(name) {
            v.state = VolumeState::Ready;
            v.grown_from = None;
        }
        let text = format!("volume `{name}` is ready");
        Ok(vec![Change::new(ObjectKind::Volume, Action::Updated, name, text)])
    }

    /// The volume, unless it is being deleted.
    pub(crate) fn usable(&self, name: &str) -> Result<&Volume> {
        let volume = self.volume(name)?;
        if volume.state == VolumeState::Deleting {
            return Err(Error::new(
                Code::VolumeDeleting,
                format!("volume `{name}` is being deleted"),
            )
            .hint("wait until it is gone"));
        }
        Ok(volume)
    }

    pub(super) fn delete_volume(&mut self, name: &str) -> Result<Vec<Change>> {
        if self.volume(name)?.state == VolumeState::Deleting {
            return Ok(Vec::new());
        }
        self.check_not_copied(name)?;
        if let Some(m) = self.maps.iter().find(|m| m.volume == name) {
            return Err(Error::new(Code::VolumeMapped, format!("volume `{name}` is still mapped"))
                .because(format!("host `{}` sees it as LUN {}", m.host, m.lun))
                .hint(format!("unmap it first: weir map delete {} {name}", m.host)));
        }
        if !self.volume(name)?.snapshots.is_empty() {
            return Err(Error::new(
                Code::SnapshotInUse,
                format!("volume `{name}` has periodic snapshots"),
            )
            .because("it has rules for them, by which more would be made")
            .hint(format!("end them first: weir snapshot policy clear {name}")));
        }
        if let Some(v) = self.volumes.get_mut(name) {
            v.state = VolumeState::Deleting;
        }
        let text = format!("volume `{name}` is being deleted");
        Ok(vec![Change::new(ObjectKind::Volume, Action::Updated, name, text)])
    }

    pub(super) fn forget_volume(&mut self, name: &str) -> Result<Vec<Change>> {
        if self.volume(name)?.state != VolumeState::Deleting {
            return Err(Error::new(Code::Internal, format!("volume `{name}` is in use"))
                .because("it can only be forgotten after its deletion began"));
        }
        // What else was said of the same data is of no use any more.
        if let Some(v) = self.volumes.remove(name)
            && let Some(p) = self.pools.get_mut(&v.pool)
        {
            p.left.retain(|l| l.volume.dataset() != v.dataset());
        }
        let text = format!("volume `{name}` deleted");
        Ok(vec![Change::new(ObjectKind::Volume, Action::Deleted, name, text)])
    }
}

fn full(pool: &Pool, need: u64, largest: u64) -> Error {
    let reason = if pool.devices.iter().any(|d| d.size == 0) {
        "the size of its devices is not known yet, as the pool did not start".to_string()
    } else {
        format!("{} are needed and at most {} can be had", format_size(need), format_size(largest))
    };
    Error::new(Code::PoolFull, format!("pool `{}` has not enough room", pool.name))
        .because(reason)
        .hint(format!("ask for less, delete a volume, or add a device with `{}`", pool.grown_by()))
}

/// A volume that is something of its own on the devices is there once the data plane says so.
fn first_state(kind: VolumeKind) -> VolumeState {
    match kind {
        VolumeKind::Protected | VolumeKind::Thin => VolumeState::Creating,
        _ => VolumeState::Ready,
    }
}

pub(super) fn default_kind(pool: &Pool) -> VolumeKind {
    if pool.protection.is_some() {
        return VolumeKind::Protected;
    }
    let all = |kind| pool.devices.iter().all(|d| d.kind == kind);
    if all(DeviceKind::Dir) {
        VolumeKind::Thin
    } else if all(DeviceKind::Ram) && pool.devices.len() == 1 {
        VolumeKind::Ram
    } else if all(DeviceKind::Null) && pool.devices.len() == 1 {
        VolumeKind::Null
    } else if pool.devices.len() > 1 {
        VolumeKind::Stripe
    } else {
        VolumeKind::Concat
    }
}

/// The devices that a volume of that kind may lie on.
fn eligible(pool: &Pool, kind: VolumeKind) -> Vec<usize> {
    let fits = |d: &Device| match kind {
        VolumeKind::Thin => d.kind == DeviceKind::Dir,
        VolumeKind::Ram => d.kind == DeviceKind::Ram,
        VolumeKind::Null => d.kind == DeviceKind::Null,
        VolumeKind::Concat | VolumeKind::Stripe => d.kind != DeviceKind::Dir,
        VolumeKind::Protected | VolumeKind::Image => false,
    };
    if pool.protection.is_some() {
        // Its devices are the store's.
        return Vec::new();
    }
    (0..pool.devices.len()).filter(|i| fits(&pool.devices[*i])).collect()
}

pub(super) fn check_size(size: u64, block_size: u32) -> Result<()> {
    let wrong = |reason: String| {
        Err(Error::new(Code::InvalidSize, format!("a volume cannot have {size} bytes"))
            .because(reason)
            .hint("use a size such as 10G"))
    };
    if size == 0 {
        return wrong("it would be empty".into());
    }
    if size > MAX_VOLUME {
        return wrong("the most is 1 EiB".into());
    }
    if !size.is_multiple_of(u64::from(block_size)) {
        return wrong(format!("it must be a multiple of the block size, {block_size}"));
    }
    Ok(())
}

fn check_chunk(chunk: u64) -> Result<()> {
    if chunk.is_power_of_two() && (MIN_CHUNK..=MAX_CHUNK).contains(&chunk) {
        return Ok(());
    }
    Err(Error::new(Code::InvalidLayout, format!("{chunk} bytes cannot be a stripe chunk"))
        .hint("use a power of two from 4k to 1M"))
}

pub(super) fn check_serial(serial: &str) -> Result<()> {
    if (1..=32).contains(&serial.len()) && serial.bytes().all(|b| b.is_ascii_graphic()) {
        return Ok(());
    }
    Err(Error::new(
        Code::InvalidRequest,
        format!("`{}` cannot be a serial number", serial.escape_debug()),
    )
    .hint("use 1 to 32 printable ASCII characters without blanks, or leave it out"))
}
