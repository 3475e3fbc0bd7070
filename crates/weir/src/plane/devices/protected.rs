//! Devices of protected pools, before the store looks at their labels.

use super::belongs::{Found, labels};
use super::{Holds, Owner, Taken, To, Wait, Waited, check_waited, closed, unusable};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_control::model::{Device, DeviceKind, Pool, PoolId};
use weir_control::{Code, Error, Result};
use weir_store::format::label::Label;
use weir_uring::Held;
use weir_uring::device::{PAGE, all_of, make_file};

/// Bytes at both ends of a new device in which nothing of its former life is left.
const ENDS: u64 = 1 << 20;

/// What is to be done to a device before the store gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Make {
    /// Nothing: it is there.
    Nothing,
    /// A file that is not there is made, and gets its size. What is there has nothing in it, unless its pool uses it.
    File,
    /// The same, and what is at its ends goes, unless it carries the label of its pool.
    Anew(PoolId),
}

/// Overwrites both ends.
fn clear(held: &Held, path: &Path, waited: &Waited<'_>) -> Result<()> {
    let io = |e: std::io::Error| unusable(path, e);
    let len = held.len().map_err(io)? / PAGE * PAGE;
    if len == 0 {
        return Ok(());
    }
    let zeros = vec![0; ENDS.min(len) as usize];
    for at in [0, len.saturating_sub(ENDS)] {
        check_waited(path, waited)?;
        held.write(at, &zeros).map_err(io)?;
    }
    Ok(())
}

/// Takes off a device what makes it one of a pool that did not come to be.
pub(super) fn unmake(held: &Held, path: &Path, pool: Option<PoolId>) -> Result<()> {
    match labels(held, path)?.iter().any(|l| Some(l.pool) == pool) {
        true => clear(held, path, &|| true),
        false => Ok(()),
    }
}

/// Whether a device has been made one of a protected pool before.
fn has_label(held: &Held, path: &Path, pool: PoolId) -> Result<bool> {
    Ok(labels(held, path)?.iter().any(|l| l.pool == pool && is_protected(l)))
}

fn is_protected(label: &Found) -> bool {
    label.number.is_none()
}

/// Refuses what carries another pool's label: whose it is may be looking for it. What cannot be read is not judged here.
fn check_label(held: &Held, path: &Path, pool: PoolId) -> Result<()> {
    let first = held.read(0, PAGE as usize).ok();
    let label = first.and_then(|b| Label::decode(b.as_slice().try_into().ok()?).ok());
    match label.filter(|l| l.pool != pool.0) {
        None => Ok(()),
        // Nobody says that it is used.
        Some(l) => {
            let text = format!("`{}` is no device of this pool", path.display());
            Err(Error::new(Code::InvalidDevice, text)
                .because(format!("it belongs to pool {:032x}", l.pool))
                .hint("name another device; or see which disk has got this name"))
        }
    }
}

/// A device of the pool with this identity, or one to be looked at.
fn hold(
    holds: &Arc<Holds>,
    waited: &Waited<'_>,
    (owner, pool): (&Owner, Option<PoolId>),
    d: &Device,
    make: Make,
) -> Result<Taken> {
    let path = PathBuf::from(d.path.clone().unwrap_or_default());
    let wanted = make != Make::Nothing && d.kind == DeviceKind::File;
    if wanted {
        // Its name may lead elsewhere since it was admitted, after a crash.
        holds.check_outside(&path)?;
    }
    let made = match wanted.then(|| make_file(&path, 0)) {
        None => None,
        Some(Ok(made)) => Some(made),
        Some(Err(e)) if e.kind() == ErrorKind::AlreadyExists => None,
        Some(Err(e)) => return Err(unusable(&path, e)),
    };
    // At a start whoever has it may be about to end; a command is refused at once.
    let start = make == Make::Nothing && *owner != Owner::Look;
    let wait = if start { Wait::ForAnybody } else { Wait::ForTheDead };
    let held = holds.take_made(owner, &path, wait, made)?;
    if held.is_directory() {
        // What is one cannot be what the pool had.
        let text = format!("`{}` cannot be a device", path.display());
        return Err(Error::new(Code::InvalidDevice, text)
            .because("it is a directory")
            .hint("name a file or a block device"));
    }
    match *owner == Owner::Look {
        true => {
            // Its own label tells what a pool brings that is to come to this node.
            let of_a_pool = labels(&held, &path).is_ok_and(|all| all.iter().any(is_protected));
            let to = if of_a_pool { To::Back(None) } else { To::New };
            holds.check_inside_none(&path, held.identity(), to)?;
            holds.check_unused(&held, &path, to)?;
            holds.check_image(&path, &all_of(held.identity()), held.lasting_name(), None)?;
            holds.check_claims(held.held(), &path, true)?;
        }
        // A device that comes back by another path is this pool's.
        false if make == Make::Nothing => {
            let is_labelled = || holds.is_labelled_for(owner, &held, &path);
            holds.check_disk_again(&held, Some(owner), is_labelled)?;
            if !held.is_kept() {
                holds.check_below_again(&held, &path, Some(owner), || Ok(0))?;
            }
        }
        false => holds.check_disk(held.held(), &path, None)?,
    }
    match (make, pool) {
        (Make::Nothing, Some(pool)) => check_label(&held, &path, pool)?,
        // Another device may have the name since it was looked at.
        (Make::Anew(pool), _) | (Make::File, Some(pool)) if !holds.may_be_wiped(owner, &path) => {
            holds.check_again(&held, &path, owner, (Some(pool), None))?;
        }
        (Make::Nothing, None) => {}
        _ => {}
    }
    let len = held.len().map_err(|e| unusable(&path, e))?;
    check_waited(&path, waited)?;
    if make != Make::Nothing && !held.is_block() && len < d.size {
        held.set_len(d.size).map_err(|e| unusable(&path, e))?;
    }
    match (make, pool) {
        (Make::Anew(pool), _) | (Make::File, Some(pool)) if !has_label(&held, &path, pool)? => {
            holds.check_alone(&held, &path, pool, waited)?;
            if make != Make::File {
                clear(&held, &path, waited)?;
            }
        }
        _ => {}
    }
    Ok(held)
}

impl Holds {
    /// Holds a device of a protected pool that has this identity, and does not use it yet; without one, of one that does, or for
    /// a look at it.
    pub(crate) async fn hold_device(
        self: &Arc<Self>,
        (owner, pool): (&Owner, Option<PoolId>),
        device: &Device,
        make: Make,
    ) -> Result<Arc<Held>> {
        let path = PathBuf::from(device.path.clone().unwrap_or_default());
        let (owner, device) = (owner.clone(), device.clone());
        let taken = self
            .helped_while(&path, move |h, waited| hold(h, waited, (&owner, pool), &device, make));
        Ok(taken.await?.keep())
    }

    /// Holds the devices of a protected pool, each by itself; those of one that is not made yet are made.
    pub(crate) async fn hold_protected(
        self: &Arc<Self>,
        pool: &Pool,
    ) -> Vec<(String, Result<Arc<Held>>)> {
        let make = match &pool.protection {
            Some(p) if !p.formatted => Make::Anew(p.id),
            _ => Make::Nothing,
        };
        let id = pool.protection.as_ref().map(|p| p.id);
        // Those that do not answer are waited for together.
        let mut asked = Vec::new();
        for d in &pool.devices {
            let (holds, device) = (self.clone(), d.clone());
            let owner = Owner::Pool(pool.name.clone());
            asked.push(tokio::spawn(async move {
                holds.hold_device((&owner, id), &device, make).await
            }));
        }
        let mut all = Vec::new();
        for (d, task) in pool.devices.iter().zip(asked) {
            let path = d.path.clone().unwrap_or_else(|| "a device".into());
            let broke = |e| Err(Error::new(Code::Internal, "a look at it broke off").because(e));
            all.push((path, task.await.unwrap_or_else(broke)));
        }
        all
    }

    /// Lets go of a device that was not taken; a file that was made for it goes.
    pub(crate) async fn give_up(&self, owner: &Owner, path: &Path) {
        closed(self.keep_only(owner, |p| p != path)).await;
    }
}
