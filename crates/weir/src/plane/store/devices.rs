//! What is done about the devices of a protected pool while it is served.

use super::open::{device, failed};
use super::{Node, OpenPool, Pool};
use crate::plane::local::Local;
use std::rc::Rc;
use weir_control::model::{Device, DeviceAction, DeviceSpec, DeviceUse};
use weir_control::{Code, Error, Result};
use weir_reactor::get_local;
use weir_store::StoreError;

fn wrong(e: &StoreError) -> Error {
    match e {
        StoreError::Request(_) => Error::new(Code::InvalidDevice, "the devices stay as they are")
            .because(e)
            .hint("`weir pool show` numbers the devices and tells how they stand"),
        e => failed("the devices could not be changed".into(), e),
    }
}

impl OpenPool {
    async fn put(&self, spec: &DeviceSpec, how: DeviceUse) -> Result<()> {
        let path = spec.path.clone().unwrap_or_default();
        let Some(local) = get_local::<Local>() else {
            return Err(Error::new(Code::Internal, "the pool is on no reactor"));
        };
        let d = Device { kind: spec.kind, path: spec.path.clone(), size: spec.size.unwrap_or(0) };
        let opened = device(&local, &d, how != DeviceUse::Back).map_err(|e| {
            Error::new(Code::IoError, format!("{path} cannot be used"))
                .because(e)
                .hint("check that the path exists, is yours to write, and is not in use")
        });
        let (disk, lock) = opened?;
        let done = match how {
            DeviceUse::Member => self.pool.add(disk).await,
            DeviceUse::Spare => self.pool.add_spare(disk).await,
            DeviceUse::Replace(n) => self.pool.replace(n, disk).await,
            DeviceUse::Back => self.pool.attach(disk).await,
        };
        done.map_err(|e| wrong(&e))?;
        self.locks.borrow_mut().insert(path.clone(), lock);
        self.unused.borrow_mut().retain(|(p, _)| *p != path);
        Ok(())
    }
}

impl Node {
    pub(in crate::plane) async fn change_store_device(
        &self,
        pool: &Pool,
        action: &DeviceAction,
    ) -> Result<()> {
        let action = action.clone();
        self.with_pool(&pool.name, move |p: Rc<OpenPool>| {
            Box::pin(async move {
                let done = match action {
                    DeviceAction::Put { device, r#as } => return p.put(&device, r#as).await,
                    DeviceAction::Drain { number } => p.pool.drain(number).await,
                    DeviceAction::Cancel { number } => p.pool.cancel(number).await,
                    DeviceAction::Remove { number } => p.pool.remove(number).await,
                    DeviceAction::Resync => p.pool.resync().await,
                    DeviceAction::Resume => p.pool.resume().await,
                };
                p.let_go();
                done.map_err(|e| wrong(&e))
            })
        })
        .await?;
        self.size_maps(pool).await
    }
}
