//! Files that are volumes by themselves: made once, with the volume, and never again.

use super::super::sizes::Key;
use super::{Entry, Holds, Owner, Wait, another, check_waited, lock, unusable};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use weir_control::units::format_size;
use weir_control::{Code, Error, Result};
use weir_uring::device::{is_as_recorded, lasting_name_of, make_file, says_where};
use weir_uring::{Held, Identity};

impl Holds {
    /// Shows the files and disks that pools have, by the pools' names and the paths. Under a lock: nobody else can let go of one
    /// meanwhile, so that `see` never has the last of it.
    pub(crate) fn of_pools(&self, see: impl FnOnce(Vec<(Key, Arc<Held>)>)) {
        let of = |e: &Entry| match &e.owner {
            Owner::Pool(name) if !e.looked_at && !e.held.is_directory() => {
                Some(((name.clone(), e.path.clone()), e.held.clone()))
            }
            _ => None,
        };
        let entries = lock(&self.entries);
        see(entries.iter().filter_map(of).collect());
    }

    /// Makes a file of so many bytes for a volume, in a directory of this pool. One that is there, as after a crash, must have nothing in it.
    pub(crate) async fn make_file(
        self: &Arc<Self>,
        owner: Owner,
        (pool, file): (&str, &str),
        size: u64,
    ) -> Result<()> {
        let path = PathBuf::from(file);
        let at = path.clone();
        let pool = pool.to_owned();
        let taken = self.helped_while(&at, move |holds, waited| {
            holds.check_inside(&pool, &path)?;
            let made = match make_file(&path, 0) {
                Ok(made) => Some(made),
                Err(e) if e.kind() == ErrorKind::AlreadyExists => None,
                Err(e) => return Err(unusable(&path, e)),
            };
            let held = holds.take_made(&owner, &path, Wait::ForTheDead, made)?;
            if held.contents().map_err(|e| unusable(&path, e))?.data {
                return Err(Error::new(
                    Code::DeviceInUse,
                    format!("`{}` is there already", path.display()),
                )
                .because("it has something in it, and a new volume has nothing")
                .hint("move that file away"));
            }
            check_waited(&path, waited)?;
            held.set_len(size).map_err(|e| unusable(&path, e))?;
            Ok(held)
        });
        drop(taken.await?.keep());
        Ok(())
    }

    /// Sees to it that what a volume is has the bytes that it `had`, and gives it its `size` if that is more.
    pub(crate) async fn check_len(
        self: &Arc<Self>,
        held: &Arc<Held>,
        had: u64,
        size: u64,
    ) -> Result<()> {
        let (held, path) = (held.clone(), held.path().to_owned());
        let at = path.clone();
        self.helped(&at, move |_| {
            let len = held.len().map_err(|e| unusable(&path, e))?;
            if len < had {
                return Err(Error::new(
                    Code::PoolDamaged,
                    format!("`{}` is not what it was", path.display()),
                )
                .because(format!("it has {}, and had {}", format_size(len), format_size(had)))
                .hint("bring back what is missing; it is tried again every few seconds"));
            }
            match len < size {
                true => held.set_len(size).map_err(|e| unusable(&path, e)),
                false => Ok(()),
            }
        })
        .await
    }

    /// Takes the file that a volume is, in a directory of this pool.
    pub(crate) async fn hold_file(
        self: &Arc<Self>,
        owner: Owner,
        (pool, file): (&str, &str),
        wait: Wait,
    ) -> Result<Arc<Held>> {
        let (path, pool) = (PathBuf::from(file), pool.to_owned());
        let at = path.clone();
        let take = move |holds: &Arc<Holds>| {
            holds.check_inside(&pool, &path)?;
            let held = holds.take(&owner, &path, false, wait)?;
            if !held.is_kept() {
                holds.check_above(&held, &path, None)?;
            }
            Ok(held)
        };
        Ok(self.helped(&at, take).await?.keep())
    }

    /// Takes the file or disk that a volume is as it is, and that has this lasting name if one is recorded. What the volume had before
    /// stays its own, whatever comes of this.
    pub(crate) async fn hold_image(
        self: &Arc<Self>,
        owner: Owner,
        path: &str,
        (read_only, recorded): (bool, Option<&str>),
        wait: Wait,
    ) -> Result<Arc<Held>> {
        let (path, recorded) = (PathBuf::from(path), recorded.map(str::to_owned));
        let at = path.clone();
        let take = move |holds: &Arc<Holds>| {
            let held = holds.take(&owner, &path, read_only, wait)?;
            holds.check_disk_again(&held, None, || Ok(false))?;
            if !held.is_kept() {
                holds.check_below_again(&held, &path, None, || Ok(0))?;
            }
            // Where nothing tells that it is the same, as of a loop device, or a bare number only. Else hosts may have written what they want.
            if !recorded.as_deref().is_some_and(says_where) && !held.is_kept() {
                holds.check_no_label(&held, &path)?;
            }
            match is_as_recorded(recorded.as_deref(), held.lasting_name()) {
                true => Ok(held),
                false => Err(another(&path).hint(
                    "put the one that had it back under its name; or delete the volume, which leaves the file or disk as it is, and adopt what is there now",
                )),
            }
        };
        Ok(self.helped(&at, take).await?.keep())
    }

    /// Removes the file of a volume that is no more, in a directory of this pool; it has this lasting name, if that is known. What
    /// has its path now and is something else stays.
    pub(crate) async fn remove_file(
        self: &Arc<Self>,
        owner: Owner,
        (pool, file): (&str, &str),
        lasting: Option<String>,
    ) -> Result<()> {
        let (path, pool) = (PathBuf::from(file), pool.to_owned());
        let at = path.clone();
        self.helped_while(&at, move |holds, waited| {
            holds.check_inside(&pool, &path)?;
            let io = |e| {
                Error::new(Code::IoError, format!("{} cannot be removed", path.display()))
                    .because(e)
            };
            let there = match std::fs::symlink_metadata(&path) {
                Err(e) if e.kind() == ErrorKind::NotFound => None,
                Err(e) => return Err(io(e)),
                Ok(meta) => Some(Identity::of(&meta)),
            };
            let held = holds.of(&owner, &path);
            let is_it = |there: Option<Identity>| match (&held, &lasting) {
                (Some(held), _) => there == Some(held.identity()),
                (None, Some(_)) => {
                    is_as_recorded(lasting.as_deref(), lasting_name_of(&path).as_deref())
                }
                (None, None) => true,
            };
            check_waited(&path, waited)?;
            match there {
                Some(there) if is_it(there) => std::fs::remove_file(&path).map_err(io)?,
                Some(_) => tracing::warn!(
                    "{}: another file has the name of the one that was to be removed, and stays",
                    path.display()
                ),
                None => {}
            }
            // Nobody else could lock it before.
            holds.release_path(&owner, &path);
            Ok(())
        })
        .await
    }
}
