//! What a device of a plain pool has gained, and is to have: it is looked at as a new device is, and never taken unasked.

use super::admit::{check_empty, kept_open_by};
use super::belongs::{Span, alone, spans_between};
use super::label::{Label, most};
use super::{Entry, Holds, Owner, Taken, another, in_use, unusable};
use std::path::PathBuf;
use std::sync::Arc;
use weir_control::model::{Device, DeviceGrow, EXTENT_ALIGN, Overwrite, Pool, PoolId};
use weir_control::units::format_size;
use weir_control::{Code, Error, Result};
use weir_uring::device::{Extent, Found, PAGE, used_by};
use weir_uring::{Held, Identity};

/// Bytes for volumes of a device that has so many, with its label behind them.
fn all_of(len: u64) -> u64 {
    (len / PAGE * PAGE).saturating_sub(PAGE)
}

/// Where that begins which a device has not had yet: behind its label, if it has one.
pub(super) fn behind(d: &Device) -> u64 {
    match d.labelled {
        true => most(d.had()),
        false => Label::place(d.had()),
    }
}

/// What a device with so many bytes for volumes could have besides, of `len` that it has; 0 if that is no use.
pub(super) fn gained(size: u64, len: u64) -> u64 {
    Some(all_of(len).saturating_sub(size)).filter(|more| *more >= EXTENT_ALIGN).unwrap_or(0)
}

/// A device that is to grow.
struct Growing {
    owner: Owner,
    pool: Option<PoolId>,
    number: u32,
    device: Device,
    path: PathBuf,
    /// To so many bytes for volumes; none: to all that there is.
    size: Option<u64>,
    overwrite: Overwrite,
}

impl Growing {
    fn wrong(&self, why: impl std::fmt::Display, hint: &str) -> Error {
        Error::new(Code::InvalidDevice, format!("`{}` cannot grow by that", self.path.display()))
            .because(why)
            .hint(hint)
    }

    /// The bytes for volumes that it is to have.
    fn wanted(&self, held: &Held, len: u64) -> Result<u64> {
        if !held.is_block() {
            let hint = "say how large it is to be, e.g. --grow 0:200G";
            return self.size.ok_or_else(|| self.wrong("it is a file", hint));
        }
        let size = self.size.unwrap_or(all_of(len));
        let has =
            format!("it has {}, and had {}", format_size(len), format_size(self.device.had()));
        let is_more = match self.size {
            Some(size) => size > self.device.had(),
            None => gained(self.device.had(), len) > 0,
        };
        match is_more && most(size) <= len {
            true => Ok(size),
            false => Err(self.wrong(
                has,
                "make the disk larger first, and have the system see that; then leave the size out, and all of it is taken",
            )),
        }
    }

    fn admit(&self, holds: &Arc<Holds>) -> Result<()> {
        let path = self.path.as_path();
        let there = std::fs::metadata(path).ok().and_then(|m| Identity::of(&m));
        let Some(held) = holds.kept(&self.owner, path) else {
            let text = format!("`{}` is not open, and cannot grow", path.display());
            return Err(Error::new(Code::NotReady, text).hint(
                "`weir status` says what is wrong with its pool; once that is up it may grow",
            ));
        };
        if there != Some(held.identity()) {
            return Err(another(path));
        }
        let len = held.len().map_err(|e| unusable(path, e))?;
        let size = self.wanted(&held, len)?;
        let (from, to) = (behind(&self.device), most(size).min(len));
        // Else it is made longer, and nobody has had that.
        if from < to {
            self.check(holds, &held, (from, to), len)?;
        }
        holds.with_entry(&self.owner, path, |e| e.grows_to = Some(size));
        Ok(())
    }

    /// Whether this is the label that a crash may have left, which it was to have.
    fn is_left(&self, s: &Span) -> bool {
        let own = (self.pool.unwrap_or(PoolId(0)), Some(self.number));
        (s.label.pool, s.label.number) == own
    }

    /// Asks of what it gains all that is asked of a new device, of which so many bytes are there.
    fn check(
        &self,
        holds: &Holds,
        held: &Arc<Held>,
        (from, to): (u64, u64),
        len: u64,
    ) -> Result<()> {
        let (path, name, is) = (self.path.as_path(), self.owner.pool(), held.identity());
        let bytes = Extent::of(is, from, to);
        if let Some(why) = used_by(is) {
            return Err(in_use(path, why));
        }
        let real = std::fs::canonicalize(path).map_err(|e| unusable(path, e))?;
        if let Some(why) = kept_open_by(&real, is) {
            return Err(in_use(path, why));
        }
        holds.check_gained_below(held, (path, name, self.number), bytes)?;
        holds.check_image(path, &bytes.had_by(), held.lasting_name(), None)?;
        holds.check_disk(held, path, None)?;
        let mut spans = spans_between(held, path, (from, to))?;
        let last = to / PAGE * PAGE - PAGE;
        let end = match spans.iter().any(|s| s.at == last && self.is_left(s)) {
            true => last,
            false => to,
        };
        // It may get a part of what is there: what begins in that has its label behind it.
        let mut reach = spans_between(held, path, (to, len))?;
        reach.retain(|s| s.from < to && from < s.to);
        let is_others = reach.iter().any(|s| !self.is_left(s));
        spans.append(&mut reach);
        let labels = alone(spans);
        holds.check_labels(&labels, path, name)?;
        holds.check_no_twin(&labels, path, (name, Some(self.number)))?;
        let mut contents = held.contents_between(from, end).map_err(|e| unusable(path, e))?;
        if is_others && contents.found.iter().all(|f| f.kind != "weir") {
            contents.found.push(Found { kind: "weir".into(), about: String::new() });
        }
        let what = format!("what `{}` has gained", path.display());
        check_empty(&contents, &what, &self.overwrite, "see whose that is; ")
    }
}

impl Holds {
    /// Looks at what devices of a plain pool have gained, and are to have. See
    /// [`DataPlane::admit_growth`](weir_control::dataplane::DataPlane::admit_growth).
    pub(crate) async fn admit_growth(
        self: &Arc<Self>,
        pool: &Pool,
        grow: &[DeviceGrow],
        overwrite: &Overwrite,
    ) -> Result<()> {
        let owner = Owner::Pool(pool.name.clone());
        for DeviceGrow { device: number, size } in grow {
            let Some(device) = pool.devices.get(*number) else { continue };
            let Some(path) = device.path.as_ref().map(PathBuf::from) else { continue };
            let growing = Growing {
                owner: owner.clone(),
                pool: pool.id,
                number: u32::try_from(*number).unwrap_or(u32::MAX),
                device: device.clone(),
                path: path.clone(),
                size: *size,
                overwrite: overwrite.clone(),
            };
            self.helped(&path, move |holds| growing.admit(holds)).await?;
        }
        Ok(())
    }

    /// What was looked at for a device to grow, once: what it may gain later is looked at by itself. What has got its name since was
    /// not looked at.
    pub(super) fn take_growth(&self, owner: &Owner, held: &Taken) -> Option<u64> {
        let is_it = |e: &&mut Entry| {
            (&e.owner, e.path.as_path()) == (owner, held.path())
                && Arc::ptr_eq(&e.held, held.held())
        };
        let mut entries = super::lock(&self.entries);
        let size = entries.iter_mut().find(is_it)?.grows_to.take();
        size.filter(|_| held.is_kept())
    }

    /// The start is over for which devices were looked at that were to grow.
    pub(super) fn forget_growth(&self, owner: &Owner) {
        let mut entries = super::lock(&self.entries);
        entries.iter_mut().filter(|e| e.owner == *owner).for_each(|e| e.grows_to = None);
    }
}
