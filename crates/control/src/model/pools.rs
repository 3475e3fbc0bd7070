//! Pools and their devices.

use super::apply::check_count;
use super::layout::FreeSpace;
use super::protection::{check_devices, check_kind};
use super::*;
use crate::units::format_size;
use std::path::{Component, Path};

/// What the devices of a protected pool are called now that the configuration does not say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceNames {
    /// The pool.
    pub pool: String,
    /// Paths that it has devices at no longer.
    pub gone: Vec<String>,
    /// Devices that it has and that are not named.
    pub come: Vec<DeviceSpec>,
}

/// Has a device of a plain pool grow when the pool is started next.
fn grow_device(pool: &str, device: &mut Device, grow: &DeviceGrow) -> Result<()> {
    let on_disk = matches!(device.kind, DeviceKind::File | DeviceKind::Block);
    let size = match grow.size {
        _ if device.kind == DeviceKind::Dir => {
            return Err(Error::new(Code::Unsupported, "a dir device cannot be given a size")
                .because("it has what its file system has")
                .hint("make that larger"));
        }
        // What it has gained is seen when it is looked at: a file, too, may be a disk by that name.
        None if on_disk => device.size,
        None => {
            let text = format!("device {} of pool `{pool}` cannot grow by itself", grow.device);
            return Err(Error::new(Code::InvalidDevice, text)
                .hint(format!("say how large it is to be, e.g. --grow {}:4G", grow.device)));
        }
        Some(size) => size,
    };
    if size < device.size {
        return Err(Error::new(
            Code::ShrinkRefused,
            format!("device {} of pool `{pool}` cannot become smaller", grow.device),
        )
        .because(format!("it has {} now", format_size(device.size)))
        .hint("create a new pool with smaller devices instead"));
    }
    if grow.size.is_some() {
        check_device_size(size)?;
    }
    if on_disk && (size > device.size || grow.size.is_none()) {
        device.grown_from.get_or_insert(device.size);
    }
    device.size = size;
    Ok(())
}

fn no_maps(pool: &str) -> Error {
    Error::new(Code::Unsupported, format!("`{pool}` is a plain pool, which has no maps in memory"))
        .hint("leave the memory out, or protect the pool with --raid")
}

impl Model {
    /// A pool with its use of space.
    pub fn pool_info(&self, name: &str) -> Result<PoolInfo> {
        let pool = self.pool(name)?;
        let mut allocated = 0;
        for (_, layout) in self.places_in(name) {
            layout.for_each_extent(&mut |_, _, length| allocated += length);
        }
        let free = FreeSpace::of(pool, self.places_in(name));
        let free: u64 = (0..pool.devices.len()).map(|d| free.on(d)).sum();
        Ok(PoolInfo {
            name: pool.name.clone(),
            devices: pool.devices.clone(),
            capacity: allocated + free,
            allocated,
            free,
            provisioned: self.volumes_of_pool(name).fold(0u64, |sum, v| sum.saturating_add(v.size)),
            volumes: self.volumes_of_pool(name).count(),
            protection: pool.protection.clone(),
            live: None,
        })
    }

    pub(super) fn create_pool(&mut self, spec: PoolSpec, entropy: u128) -> Result<Vec<Change>> {
        check_name("pool", &spec.name)?;
        if let Some(pool) = self.pools.get(&spec.name) {
            return Err(Error::new(Code::PoolExists, format!("pool `{}` exists", spec.name))
                .hint(format!("choose another name, or add devices with `{}`", pool.grown_by())));
        }
        check_count("pool", self.pools.len())?;
        if spec.devices.is_empty() {
            return Err(Error::new(Code::InvalidDevice, "a pool needs at least one device")
                .hint("add e.g. `--device file:/srv/weir/disk0.img:100G`"));
        }
        if let Some(raid) = spec.raid {
            check_devices(raid, &spec.devices)?;
        } else if spec.memory.is_some() {
            return Err(no_maps(&spec.name));
        } else {
            check_plain(&spec.devices)?;
        }
        let devices = self.new_devices(&[], &spec.devices)?;
        let text = format!("pool `{}` created with {} device(s)", spec.name, devices.len());
        let change = Change::new(ObjectKind::Pool, Action::Created, &spec.name, text);
        let (overwrite, memory) = (!spec.overwrite.is_nothing(), spec.memory.unwrap_or_default());
        let id = PoolId(entropy);
        let protect = |raid| Protection { raid, id, formatted: false, overwrite, memory };
        let protection = spec.raid.map(protect);
        let id = protection.is_none().then_some(id);
        let pool = Pool { name: spec.name.clone(), devices, id, protection, left: Vec::new() };
        self.pools.insert(spec.name, pool);
        Ok(vec![change])
    }

    /// Checks new devices against each other and against those of every pool.
    pub(super) fn new_devices(
        &self,
        present: &[Device],
        specs: &[DeviceSpec],
    ) -> Result<Vec<Device>> {
        let mut devices: Vec<Device> = Vec::with_capacity(specs.len());
        check_count("device", present.len() + specs.len())?;
        for spec in specs {
            let device = check_device(spec)?;
            if let Some(path) = &device.path {
                let in_pools =
                    self.pools.values().flat_map(|p| p.devices.iter().map(|d| (d, &p.name)));
                if let Some((_, owner)) = in_pools.into_iter().find(|(d, _)| d.path == device.path)
                {
                    return Err(Error::new(
                        Code::DeviceInUse,
                        format!("`{path}` belongs to pool `{owner}`"),
                    )
                    .hint("a device can be in one pool only; use another one"));
                }
                let is_it = |l: &Layout| matches!(l, Layout::Image { path: p, .. } if p == path);
                if let Some((v, _)) = self.places_in(IMAGES).find(|(_, l)| is_it(l)) {
                    return Err(Error::new(
                        Code::DeviceInUse,
                        format!("`{path}` is volume `{}`", v.name),
                    )
                    .hint("move the volume off it first, with `weir migrate start`"));
                }
                if devices.iter().any(|d| d.path == device.path) {
                    return Err(Error::new(Code::DeviceInUse, format!("`{path}` is named twice"))
                        .hint("name each device once"));
                }
            }
            devices.push(device);
        }
        let kind_is_dir = |d: &Device| d.kind == DeviceKind::Dir;
        let mut all = present.iter().chain(&devices);
        let first = all.next().map(kind_is_dir);
        if all.any(|d| Some(kind_is_dir(d)) != first) {
            return Err(Error::new(
                Code::InvalidDevice,
                "a pool cannot mix directories with other devices",
            )
            .hint("make one pool of the directories and another of the rest"));
        }
        Ok(devices)
    }

    /// Gives plain pools an identity that have none, as those of older programs. True: there were some.
    pub fn identify_pools(&mut self, entropy: u128) -> bool {
        let nameless = self.pools.values_mut().filter(|p| p.protection.is_none() && p.id.is_none());
        let mut any = false;
        for (n, pool) in (0..).zip(nameless) {
            pool.id = Some(PoolId(entropy.wrapping_add(n)));
            any = true;
        }
        any
    }

    pub(super) fn size_pool(&mut self, name: &str, sizes: &[DeviceFound]) -> Result<Vec<Change>> {
        let pool = self.pool(name)?;
        if sizes.len() != pool.devices.len() {
            return Err(Error::new(
                Code::Internal,
                format!("pool `{name}` has {} devices", pool.devices.len()),
            )
            .because(format!("{} sizes were given for it", sizes.len())));
        }
        for (i, (device, found)) in pool.devices.iter().zip(sizes).enumerate() {
            let size = &found.size;
            let mut end = 0;
            for (_, layout) in self.places_in(name) {
                layout.for_each_extent(&mut |d, offset, length| {
                    if d == i {
                        end = end.max(offset + length);
                    }
                });
            }
            if *size < end {
                let what = device.path.clone().unwrap_or_else(|| format!("device {i}"));
                return Err(Error::new(
                    Code::NotReady,
                    format!("{what} of pool `{name}` is smaller than it was"),
                )
                .because(format!("it has {size} bytes and volumes reach up to byte {end}"))
                .hint("give the device its former size back; its data beyond the end is missing"));
            }
        }
        let labelled = pool.protection.as_ref().is_none_or(|p| p.formatted);
        let same = |d: &Device, f: &DeviceFound| {
            let known = (d.size, d.labelled, &d.identity) == (f.size, f.labelled, &f.identity);
            known && !d.new && d.grown_from.is_none()
        };
        if labelled && pool.devices.iter().zip(sizes).all(|(d, f)| same(d, f)) {
            return Ok(Vec::new());
        }
        let total = sizes.iter().fold(0u64, |sum, f| sum.saturating_add(f.size));
        if let Some(pool) = self.pools.get_mut(name) {
            for (d, f) in pool.devices.iter_mut().zip(sizes) {
                (d.size, d.labelled, d.identity) = (f.size, f.labelled, f.identity.clone());
                (d.new, d.grown_from) = (false, None);
            }
            if let Some(p) = &mut pool.protection {
                (p.formatted, p.overwrite) = (true, false);
            }
        }
        let text = format!("pool `{name}` has {} on its devices", format_size(total));
        Ok(vec![Change::new(ObjectKind::Pool, Action::Updated, name, text)])
    }

    pub(super) fn patch_pool(&mut self, name: &str, patch: PoolPatch) -> Result<Vec<Change>> {
        let pool = self.pool(name)?;
        let mut devices = pool.devices.clone();
        let was = pool.protection.as_ref().map(|p| p.memory);
        if was.is_none() && patch.memory.is_some() {
            return Err(no_maps(name));
        }
        if was.is_some() && !(patch.add.is_empty() && patch.grow.is_empty()) {
            return Err(Error::new(
                Code::Unsupported,
                format!("`{name}` is a protected pool, whose devices do not grow in place"),
            )
            .hint("add a device with `weir pool add`, or replace one by a larger one with `weir pool replace`"));
        }
        for grow in &patch.grow {
            let Some(device) = devices.get_mut(grow.device) else {
                return Err(Error::new(
                    Code::InvalidDevice,
                    format!("pool `{name}` has no device {}", grow.device),
                )
                .hint("`weir pool show` numbers them"));
            };
            grow_device(name, device, grow)?;
        }
        check_plain(&patch.add)?;
        let added = self.new_devices(&devices, &patch.add)?;
        devices.extend(added);
        if devices == self.pool(name)?.devices && patch.memory.is_none_or(|m| Some(m) == was) {
            return Ok(Vec::new());
        }
        if let Some(pool) = self.pools.get_mut(name) {
            pool.devices = devices;
            if let (Some(p), Some(memory)) = (&mut pool.protection, patch.memory) {
                p.memory = memory;
            }
        }
        let text = format!("pool `{name}` changed");
        Ok(vec![Change::new(ObjectKind::Pool, Action::Updated, name, text)])
    }

    /// The command that was to add them has not come to its end, so nothing is on them.
    pub(super) fn drop_new(&mut self, name: &str) -> Result<Vec<Change>> {
        let pool = self.pool(name)?;
        let kept = pool.devices.iter().take_while(|d| !d.new).count();
        let behind = pool.devices.get(kept..).unwrap_or_default();
        let mut used = false;
        for (_, layout) in self.places_in(name) {
            used |= layout.devices().iter().any(|d| *d >= kept);
        }
        let all_new = behind.iter().all(|d| d.new);
        if pool.protection.is_some() || kept == 0 || behind.is_empty() || !all_new || used {
            return Ok(Vec::new());
        }
        let paths: Vec<&str> = behind.iter().filter_map(|d| d.path.as_deref()).collect();
        let text = format!("pool `{name}` does not get {}", paths.join(", "));
        if let Some(pool) = self.pools.get_mut(name) {
            pool.devices.truncate(kept);
        }
        Ok(vec![Change::new(ObjectKind::Pool, Action::Updated, name, text)])
    }

    pub(super) fn put_device(&mut self, name: &str, spec: &DeviceSpec) -> Result<Vec<Change>> {
        let pool = self.pool(name)?;
        if pool.protection.is_none() {
            return Err(not_protected(name));
        }
        check_kind(spec)?;
        if pool.devices.iter().any(|d| d.path == spec.path) {
            // It was named before; whether it is in use is for the pool to say.
            return Ok(Vec::new());
        }
        let mut added = self.new_devices(&pool.devices, std::slice::from_ref(spec))?;
        // It is made, if it has to be, by the command that takes it in, and never again.
        added.iter_mut().for_each(|d| d.new = false);
        if let Some(pool) = self.pools.get_mut(name) {
            pool.devices.extend(added);
        }
        let path = spec.path.as_deref().unwrap_or_default();
        let text = format!("pool `{name}` gets {path}");
        Ok(vec![Change::new(ObjectKind::Pool, Action::Updated, name, text)])
    }

    pub(super) fn drop_device(&mut self, name: &str, path: &str) -> Result<Vec<Change>> {
        let pool = self.pool(name)?;
        let named = pool.devices.iter().any(|d| d.path.as_deref() == Some(path));
        if pool.protection.is_none() || !named || pool.devices.len() == 1 {
            return Ok(Vec::new());
        }
        if let Some(pool) = self.pools.get_mut(name) {
            pool.devices.retain(|d| d.path.as_deref() != Some(path));
        }
        let text = format!("{path} is no device of pool `{name}` any more");
        Ok(vec![Change::new(ObjectKind::Pool, Action::Updated, name, text)])
    }

    pub(super) fn name_devices(&mut self, pools: &[DeviceNames]) -> Result<Vec<Change>> {
        let mut next = self.clone();
        for DeviceNames { pool: name, gone, .. } in pools {
            if self.pool(name)?.protection.is_none() {
                return Err(Error::new(Code::Unsupported, format!("`{name}` is a plain pool"))
                    .hint("its devices stay where they are named"));
            }
            if let Some(pool) = next.pools.get_mut(name) {
                pool.devices.retain(|d| d.path.as_ref().is_none_or(|p| !gone.contains(p)));
            }
        }
        let mut changes = Vec::new();
        for DeviceNames { pool: name, gone, come } in pools {
            let mut added = next.new_devices(&next.pool(name)?.devices, come)?;
            // They are there.
            added.iter_mut().for_each(|d| d.new = false);
            let Some(pool) = next.pools.get_mut(name) else { continue };
            pool.devices.extend(added);
            if pool.devices.is_empty() {
                let text = format!("pool `{name}` would have no device any more");
                return Err(Error::new(Code::Internal, text).hint("name at least one"));
            }
            let come = come.iter().filter_map(|d| d.path.as_ref());
            let texts = gone
                .iter()
                .map(|p| format!("{p} is no device of pool `{name}` any more"))
                .chain(come.map(|p| format!("pool `{name}` has {p}")));
            changes.extend(
                texts.map(|text| Change::new(ObjectKind::Pool, Action::Updated, name, text)),
            );
        }
        *self = next;
        Ok(changes)
    }

    pub(super) fn delete_pool(&mut self, name: &str) -> Result<Vec<Change>> {
        if let Some(l) = self.pool(name)?.left.first() {
            return Err(Error::new(Code::PoolInUse, format!("pool `{name}` still holds volumes"))
                .because(format!("`{}` was left out when the pool was taken over", l.volume.name))
                .hint("`weir pool release` leaves them on its devices, and `weir pool import` takes them in if it may"));
        }
        let volumes: Vec<&str> =
            self.places_in(name).map(|(v, _)| v.name.as_str()).take(4).collect();
        if !volumes.is_empty() {
            return Err(Error::new(Code::PoolInUse, format!("pool `{name}` still holds volumes"))
                .because(format!("for example `{}`", volumes.join("`, `")))
                .hint("delete its volumes first, with `weir volume delete`"));
        }
        self.pools.remove(name);
        let text = format!("pool `{name}` deleted");
        Ok(vec![Change::new(ObjectKind::Pool, Action::Deleted, name, text)])
    }
}

/// Refuses devices of other nodes in a plain pool, which would be gone with that node.
fn check_plain(devices: &[DeviceSpec]) -> Result<()> {
    match devices.iter().find(|d| d.kind.is_remote()) {
        None => Ok(()),
        Some(d) => {
            let at = d.path.as_deref().unwrap_or("it");
            Err(Error::new(Code::InvalidDevice, format!("`{at}` cannot be in a plain pool"))
                .because("a volume of another node may come and go, and only protected pools cope with that")
                .hint("protect the pool with --raid 1, --raid 10 or --raid 0"))
        }
    }
}

/// Largest device in bytes: 8 EiB - 1, what a file offset can name.
const MAX_DEVICE: u64 = i64::MAX as u64;

fn check_device_size(size: u64) -> Result<()> {
    if (EXTENT_ALIGN..=MAX_DEVICE).contains(&size) {
        return Ok(());
    }
    Err(Error::new(Code::InvalidSize, format!("a device cannot have {size} bytes"))
        .because("space is handed out in pieces of 1 MiB, and a file offset has 63 bits")
        .hint("give it at least 1 MiB"))
}

fn check_device(spec: &DeviceSpec) -> Result<Device> {
    let kind = spec.kind;
    let word = kind.as_str();
    let wrong = |message: String| Error::new(Code::InvalidDevice, message);
    match &spec.path {
        None if kind.is_remote() => {
            return Err(wrong(format!("a `{word}` device needs an address"))
                .hint("write e.g. `--device brp://192.0.2.7/half-a`"));
        }
        Some(at) if kind.is_remote() => {
            let address: RemoteAddress = at.parse()?;
            if address.to_string() != *at {
                return Err(wrong(format!("`{at}` is not written as Weir does"))
                    .because("one volume must not have two names")
                    .hint(format!("write `{address}`")));
            }
        }
        None if kind.has_path() => {
            return Err(wrong(format!("a `{word}` device needs a path"))
                .hint(format!("write e.g. `--device {word}:/srv/weir/disk0`")));
        }
        Some(path) if !kind.has_path() => {
            return Err(wrong(format!("a `{word}` device has no path, but `{path}` was given"))
                .hint(format!("write e.g. `--device {word}:4G`")));
        }
        Some(path) => check_path(path)?,
        None => {}
    }
    match spec.size {
        Some(_) if matches!(kind, DeviceKind::Dir | DeviceKind::Block | DeviceKind::Brp) => {
            return Err(wrong(format!("a `{word}` device cannot be given a size"))
                .because("it has the size that it reports")
                .hint("leave the size out"));
        }
        Some(size) => check_device_size(size)?,
        None if !kind.has_path() && !kind.is_remote() => {
            return Err(wrong(format!("a `{word}` device needs a size"))
                .hint(format!("write e.g. `--device {word}:4G`")));
        }
        None => {}
    }
    let known = Device::known(kind, spec.path.clone(), spec.size.unwrap_or(0));
    Ok(Device { new: kind.has_path() || kind.is_remote(), ..known })
}

/// An absolute path without `.` and `..`, so that the same device always has the same path.
pub(super) fn check_path(path: &str) -> Result<()> {
    let p = Path::new(path);
    let plain = p.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)));
    let same = p.components().collect::<std::path::PathBuf>().as_os_str() == path;
    if p.is_absolute() && plain && same && !path.contains('\0') && path.len() < 4096 {
        return Ok(());
    }
    Err(Error::new(Code::InvalidDevice, format!("`{path}` cannot be the path of a device"))
        .because("it must be absolute, without `.`, `..`, `//` and a slash at the end")
        .hint("write e.g. /srv/weir/disk0.img"))
}

impl Pool {
    /// The command that adds a device to it.
    pub(crate) fn grown_by(&self) -> String {
        match self.protection {
            Some(_) => format!("weir pool add {} --device …", self.name),
            None => format!("weir pool resize {} --add …", self.name),
        }
    }
}

/// A plain pool has devices one by one.
pub(crate) fn not_protected(name: &str) -> Error {
    Error::new(Code::Unsupported, format!("`{name}` is a plain pool"))
        .because("it keeps no copies: no device of it can be a spare, go, come back or be replaced")
        .hint(format!("add devices to it with `weir pool resize {name} --add …`"))
}
