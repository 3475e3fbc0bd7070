//! What pools carry of the configuration on their devices, and pools that are taken over by that.

use super::*;
use crate::model::{Device, DeviceSpec, ImportReport, ImportSpec, Pool, PoolFound};

/// Bytes of a record up to which it is written with every change; a longer one, of a hundred volumes and more, with the next
/// sample, so that many changes in a row write it once.
const SHORT: usize = 64 << 10;

/// What the devices of the pools that are up carry, as of which revision.
#[derive(Debug, Default)]
pub(super) struct Records {
    kept: BTreeMap<String, (u64, Vec<u8>)>,
    /// Why the newest could not be written.
    failed: BTreeMap<String, String>,
}

impl Controller {
    /// Has the devices of protected pools carry what the configuration says of these. What fails is tried again with the
    /// next sample: the configuration itself is safe. `quick`: long ones may wait for that, too. The caller holds `changes`, or
    /// is alone.
    pub(super) async fn put_records(&self, quick: bool) {
        let model = self.model();
        let now = model.revision;
        let is_up = |p: &&Pool| p.protection.is_some() && self.up().pools.contains(&p.name);
        let pools: Vec<&Pool> = model.pools.values().filter(is_up).collect();
        {
            let records = &mut self.up().records;
            let is_there = |name: &String| pools.iter().any(|p| p.name == *name);
            records.kept.retain(|name, _| is_there(name));
            records.failed.retain(|name, _| is_there(name));
        }
        for pool in pools {
            let enough = |(at, r): &(u64, Vec<u8>)| *at == now || quick && r.len() > SHORT;
            if self.up().records.kept.get(&pool.name).is_some_and(enough) {
                continue;
            }
            let record = model.pool_record(&pool.name).ok().and_then(|r| r.bytes());
            let Some(record) = record else { continue };
            let done = match self.up().records.kept.get_mut(&pool.name) {
                Some((at, old)) if *old == record => {
                    *at = now;
                    continue;
                }
                _ => self.plane.keep_record(pool, &record),
            };
            let done = done.await;
            let records = &mut self.up().records;
            match done {
                Ok(()) => {
                    records.failed.remove(&pool.name);
                    records.kept.insert(pool.name.clone(), (now, record));
                }
                Err(e) => {
                    let why = e.to_string();
                    // Once, not every second.
                    if records.failed.get(&pool.name) != Some(&why) {
                        tracing::warn!(
                            "pool {}: its devices do not carry the newest names and mappings: {why}",
                            pool.name
                        );
                        records.failed.insert(pool.name.clone(), why);
                    }
                }
            }
        }
    }

    /// Takes a pool over from devices that another configuration made it of, or tells what that would bring.
    pub async fn import_pool(self: &Arc<Self>, spec: ImportSpec) -> Result<ImportReport> {
        let me = self.clone();
        finish(tokio::spawn(async move {
            let _one = me.changes.lock().await;
            let model = me.model();
            // Before anything is opened: what is in use here is not to be found.
            model.check_devices(&spec.devices)?;
            let device = |d: &DeviceSpec| Device::known(d.kind, d.path.clone(), 0);
            let devices: Vec<Device> = spec.devices.iter().map(device).collect();
            let found: PoolFound = me.plane.find_pool(&devices, spec.force).await?;
            let report = model.plan_import(&spec, &found)?;
            if spec.dry_run {
                return Ok(report);
            }
            me.change(Command::ImportPool { spec, found }).await?;
            Ok(report)
        }))
        .await
    }

    /// Lets go of a protected pool and its volumes, which stay on its devices.
    pub async fn release_pool(self: &Arc<Self>, name: String) -> Result<()> {
        let me = self.clone();
        finish(tokio::spawn(async move {
            let _one = me.changes.lock().await;
            // A pool that is not up leaves with what its devices carry already.
            if me.up().pools.contains(&name) {
                me.put_records(false).await;
                if let Some(why) = me.up().records.failed.get(&name) {
                    return Err(Error::new(
                        Code::IoError,
                        format!("pool `{name}` cannot be released"),
                    )
                    .because(format!("its devices do not carry the newest names: {why}"))
                    .hint(
                        "`weir pool show` tells how the pool stands; a full one needs some room",
                    ));
                }
            }
            me.change(Command::ReleasePool { name }).await.map(drop)
        }))
        .await
    }

    /// Closes what is released, hosts first.
    pub(super) async fn finish_release(&self, name: &str, old: &Model, new: &Model) -> Result<()> {
        self.plane.set_mappings(&new.access()).await?;
        for v in old.volumes_of_pool(name) {
            self.plane.close_volume(&v.name).await?;
            let mut up = self.up();
            up.volumes.remove(&v.name);
            up.faults.remove(&format!("volume/{}", v.name));
        }
        self.plane.stop_pool(name).await?;
        let mut up = self.up();
        up.pools.remove(name);
        up.faults.remove(&format!("pool/{name}"));
        Ok(())
    }

    /// Opens a pool that was taken over, and its volumes: what does not start is a fault.
    pub(super) async fn finish_import(&self, pool: &Pool, force: bool) -> Result<Arc<Model>> {
        let sizes = match force {
            true => self.plane.force_pool(pool).await?,
            false => self.plane.start_pool(pool).await?,
        };
        self.pool_started(pool, sizes).await?;
        self.bring_up().await;
        Ok(self.model())
    }
}
