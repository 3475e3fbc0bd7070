//! What is done about the devices of a protected pool while it is served.

use super::open::failed;
use super::{Node, OpenPool, Pool};
use crate::plane::devices::{Make, Owner, check_words, closed, in_use};
use crate::plane::local::Local;
use crate::plane::remote::For;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use weir_base::{MILLIS, Nanos, SECONDS};
use weir_control::dataplane::Inside;
use weir_control::model::{Device, DeviceAction, DeviceSpec, DeviceUse, Overwrite, RemoteAddress};
use weir_control::{Code, Error, Result};
use weir_disk::Disk;
use weir_reactor::{LocalFuture, get_local, sleep};
use weir_store::format::superblock::MemberState;
use weir_store::{DeviceInfo, StoreError};
use weir_uring::Held;

/// How long a device that has left is waited for, until nothing asks it any more.
const LEAVES: Nanos = SECONDS;
const STEP: Nanos = 10 * MILLIS;

fn wrong(e: &StoreError) -> Error {
    match e {
        StoreError::Request(_) => Error::new(Code::InvalidDevice, "the devices stay as they are")
            .because(e)
            .hint("`weir pool show` numbers the devices and tells how they stand"),
        StoreError::State(_) => failed("the devices stay as they are".into(), e),
        e => failed("the devices could not be changed".into(), e),
    }
}

impl OpenPool {
    /// Has the pool take in what is held by this name now.
    async fn put(&self, path: String, held: &Arc<Held>, how: DeviceUse) -> Result<()> {
        let Some(local) = get_local::<Local>() else {
            return Err(Error::new(Code::Internal, "the pool is on no reactor"));
        };
        let disk = local.disk(Path::new(&path), held).map_err(|e| {
            Error::new(Code::IoError, format!("{path} cannot be used"))
                .because(e)
                .hint("check that the path exists, is yours to write, and is not in use")
        })?;
        // While it was taken, the pool may have let go of it, as it had left.
        let (holds, owner) = &self.holds;
        if !holds.kept(owner, Path::new(&path)).is_some_and(|kept| Arc::ptr_eq(&kept, held)) {
            return Err(
                in_use(Path::new(&path), "this pool has just let go of it").hint("try again")
            );
        }
        // From here on: one of this path may leave the pool while that waits.
        self.used.borrow_mut().put(&path, held);
        let done = self.put_disk(disk, how).await;
        if done.is_err() && !self.names(&path) {
            self.used.borrow_mut().take_out(&path, held);
        }
        done.map_err(|e| wrong(&e))
    }

    /// The same of a disk.
    pub(super) async fn put_disk(
        &self,
        disk: Rc<dyn Disk>,
        how: DeviceUse,
    ) -> std::result::Result<(), StoreError> {
        let name = disk.name().to_owned();
        let done = match how {
            DeviceUse::Member => self.pool.add(disk).await,
            DeviceUse::Spare => self.pool.add_spare(disk).await,
            DeviceUse::Replace(n) => self.pool.replace(n, disk).await,
            DeviceUse::Back => self.pool.attach(disk).await,
        };
        // One that failed as it came in is a member all the same.
        if done.is_ok() || self.names(&name) {
            self.unused.borrow_mut().retain(|(p, _)| *p != name);
        }
        done.map(drop)
    }

    /// Has the pool take in a volume of another node.
    async fn put_remote(&self, pool: &Pool, address: &RemoteAddress, how: DeviceUse) -> Result<()> {
        let Some(local) = get_local::<Local>() else {
            return Err(Error::new(Code::Internal, "the pool is on no reactor"));
        };
        let to = For { pool: &pool.name, back: how == DeviceUse::Back };
        let remote = local.reach(to, address).await?;
        let disk: Rc<dyn Disk> = remote.clone();
        let name = disk.name().to_owned();
        if how != DeviceUse::Back && !self.names(&name) {
            let id = pool.protection.as_ref().map(|p| p.id);
            local.take_new(&disk, (&pool.name, id)).await?;
        }
        let done = self.put_disk(disk, how).await;
        // It may have got it, and failed late; what was refused nobody else has.
        if Rc::strong_count(&remote) > 1 {
            self.returns.add(&name, Some(&remote));
        }
        done.map_err(|e| wrong(&e))
    }

    /// A device of the pool has this path.
    fn names(&self, path: &str) -> bool {
        self.pool.status().devices.iter().any(|d| d.name.as_deref() == Some(path))
    }

    /// Names of the devices in service, and of those that are not and of none that is: others may have these by now.
    fn service(&self) -> (BTreeSet<PathBuf>, BTreeSet<PathBuf>) {
        let is_out = |d: &DeviceInfo| match d.state {
            MemberState::Out => true,
            MemberState::Spare => d.failed,
            _ => false,
        };
        let (out, on): (Vec<_>, Vec<_>) = self.pool.status().devices.into_iter().partition(is_out);
        let names =
            |all: Vec<DeviceInfo>| all.into_iter().filter_map(|d| d.name.map(PathBuf::from));
        let on: BTreeSet<PathBuf> = names(on).collect();
        let out = names(out).filter(|name| !on.contains(name)).collect();
        (on, out)
    }
}

impl Node {
    /// Has a protected pool take a device in, which the configuration names already.
    async fn put_store_device(
        &self,
        pool: &Pool,
        spec: &DeviceSpec,
        how: DeviceUse,
        overwrite: &Overwrite,
    ) -> Result<()> {
        let (owner, path) = (Owner::Pool(pool.name.clone()), spec.path.clone().unwrap_or_default());
        if spec.kind.is_remote() {
            let (address, of): (RemoteAddress, _) = (path.parse()?, pool.clone());
            let put = move |p: Rc<OpenPool>| -> LocalFuture<'static, Result<()>> {
                Box::pin(async move { p.put_remote(&of, &address, how).await })
            };
            return self.with_pool(&pool.name, put).await;
        }
        let used = self.is_in_use(&pool.name, &path).await;
        let make = match (&pool.protection, how) {
            (_, DeviceUse::Back) => Make::Nothing,
            // What is to be lost was named; what is used by this pool never is.
            (Some(p), _) if !used && !overwrite.is_nothing() => Make::Anew(p.id),
            _ => Make::File,
        };
        let device = Device::known(spec.kind, spec.path.clone(), spec.size.unwrap_or(0));
        let new =
            pool.protection.as_ref().map(|p| p.id).filter(|_| !used && how != DeviceUse::Back);
        let done = match self.holds.hold_device((&owner, new), &device, make).await {
            Ok(held) => {
                let name = path.clone();
                self.with_pool(&pool.name, move |p: Rc<OpenPool>| {
                    Box::pin(async move { p.put(name, &held, how).await })
                })
                .await
            }
            Err(e) => Err(e),
        };
        match &done {
            Ok(()) => self.holds.stands(&owner),
            // What failed late is a member by now.
            Err(_) if self.is_in_use(&pool.name, &path).await => self.holds.stands(&owner),
            Err(_) => self.holds.give_up(&owner, Path::new(&path)).await,
        }
        done
    }

    /// Whether a pool uses what it holds by that name. One that is not open any more holds nothing.
    async fn is_in_use(&self, pool: &str, path: &str) -> bool {
        let held = self.holds.kept(&Owner::Pool(pool.to_owned()), Path::new(path));
        let asked = path.to_owned();
        let names = |p: Rc<OpenPool>| -> LocalFuture<'static, Result<bool>> {
            Box::pin(async move { Ok(p.names(&asked)) })
        };
        held.is_some_and(|h| h.is_used()) && self.with_pool(pool, names).await.unwrap_or(false)
    }

    /// Takes devices for a pool, or refuses them. What it has given up of that name makes room.
    pub(in crate::plane) async fn admit_devices(
        &self,
        pool: &str,
        devices: &[DeviceSpec],
        inside: Inside<'_>,
    ) -> Result<()> {
        let service =
            self.with_pool(pool, |p: Rc<OpenPool>| Box::pin(async move { Ok(p.service()) }));
        if let Inside::Only(overwrite) | Inside::OwnOr(overwrite) = inside {
            check_words(overwrite)?;
        }
        // One that is not open has none.
        let (in_service, given_up) = service.await.unwrap_or_default();
        let owner = Owner::Pool(pool.to_owned());
        for path in devices.iter().filter_map(|d| d.local_path().map(PathBuf::from)) {
            // It was given up, and has come back.
            if in_service.contains(&path) && self.holds.kept(&owner, &path).is_none() {
                return Err(in_use(&path, "a device of this pool in service goes by that name"));
            }
        }
        let (remote, here): (Vec<_>, Vec<_>) =
            devices.iter().cloned().partition(|d| d.kind.is_remote());
        for d in &remote {
            self.admit_remote(pool, d, inside).await?;
        }
        self.holds.admit(pool, &here, inside, &given_up).await
    }

    /// Lets go of devices that were looked at for an open pool, and that it does not get after all.
    pub(in crate::plane) async fn dismiss_devices(
        &self,
        pool: &str,
        devices: &[DeviceSpec],
    ) -> Result<()> {
        let owner = Owner::Pool(pool.to_owned());
        for d in devices.iter().filter(|d| d.kind.is_remote()) {
            self.remotes.forget(pool, d.path.as_deref().unwrap_or_default());
        }
        for path in devices.iter().filter_map(|d| d.local_path().map(str::to_owned)) {
            if !self.is_in_use(pool, &path).await {
                self.holds.give_up(&owner, Path::new(&path)).await;
            }
        }
        Ok(())
    }

    pub(in crate::plane) async fn change_store_device(
        &self,
        pool: &Pool,
        action: &DeviceAction,
    ) -> Result<()> {
        if let DeviceAction::Put { device, r#as, overwrite } = action {
            self.put_store_device(pool, device, *r#as, overwrite).await?;
            return self.size_maps(pool).await;
        }
        let action = action.clone();
        let leaves = matches!(action, DeviceAction::Remove { .. });
        let work = self.with_pool(&pool.name, move |p: Rc<OpenPool>| {
            Box::pin(async move {
                let done = match action {
                    DeviceAction::Put { .. } => Ok(()),
                    DeviceAction::Drain { number } => p.pool.drain(number).await,
                    DeviceAction::Cancel { number } => p.pool.cancel(number).await,
                    DeviceAction::Remove { number } => p.pool.remove(number).await,
                    DeviceAction::Resync => p.pool.resync().await,
                    DeviceAction::Resume => p.pool.resume().await,
                };
                // Whoever is told that it has left uses it at once.
                let mut waited = 0;
                while !p.let_go() && leaves && waited < LEAVES {
                    sleep(STEP).await;
                    waited += STEP;
                }
                done.map_err(|e| wrong(&e))
            })
        });
        closed(work).await?;
        self.size_maps(pool).await
    }
}
