//! Devices that go by other names than the configuration says: it follows what their pools have found.

use super::*;
use crate::live::{LiveStatus, PoolLive};
use crate::model::{Change, DeviceKind, DeviceNames, DeviceSpec, Pool, RemoteAddress};

fn uses(live: &PoolLive, path: &String) -> bool {
    live.devices.iter().any(|d| d.path.as_ref() == Some(path))
}

/// What is to be said otherwise of a pool, if anything. Of one that is not whole, what is not in use may be a device that comes
/// back: only what `another` pool has by now is not, and as many of these names go as there are new ones.
fn names_of(
    pool: &Pool,
    live: &PoolLive,
    another: impl Fn(&String) -> bool,
) -> Option<DeviceNames> {
    let whole = live.devices.iter().all(|d| d.path.is_some());
    let used = |p: &String| uses(live, p) || !whole && !another(p);
    let named = |p: &&String| pool.devices.iter().any(|d| d.path.as_ref() == Some(*p));
    let spec = |path: &String| {
        let kind = match path.starts_with("/dev/") {
            true => DeviceKind::Block,
            false if RemoteAddress::is_meant(path) => DeviceKind::Brp,
            false => DeviceKind::File,
        };
        DeviceSpec { kind, path: Some(path.clone()), size: None }
    };
    let now = live.devices.iter().filter_map(|d| d.path.as_ref());
    let mut gone: Vec<_> =
        pool.devices.iter().filter_map(|d| d.path.clone()).filter(|p| !used(p)).collect();
    let come: Vec<_> = now.filter(|p| !named(p)).map(spec).collect();
    if !whole {
        gone.truncate(come.len());
    }
    let something = !gone.is_empty() || !come.is_empty();
    something.then(|| DeviceNames { pool: pool.name.clone(), gone, come })
}

impl Controller {
    /// Records what the devices of an open pool are told from others by.
    pub(super) async fn know_devices(&self, name: &str) -> Result<()> {
        let model = self.model();
        self.start_pool(model.pool(name)?).await.map(drop)
    }

    /// Names devices as their pools know them: those that have left in the background no longer, and those that were
    /// found under another path by that. The caller holds `changes`.
    pub(super) async fn tidy_devices(&self, live: &LiveStatus) {
        let model = self.model();
        // What a reactor that is held up has said is of before.
        let held = |r: usize| live.reactors.get(r).is_some_and(|r| r.held.is_some());
        let of_now = |l: &&PoolLive| !held(l.reactor) || has(Bug::NamesOfBefore);
        let now: Vec<_> = live.pools.iter().filter(of_now).collect();
        let of = |l: &&PoolLive| {
            let another = |p: &String| now.iter().any(|o| o.name != l.name && uses(o, p));
            names_of(model.pools.get(&l.name)?, l, another)
        };
        let all: Vec<_> = now.iter().filter_map(of).collect();
        if all.is_empty() || self.name_devices(&all).await.is_ok() {
            return;
        }
        // One that cannot be so keeps the others from nothing.
        for one in all {
            let name = one.pool.clone();
            if let Err(e) = self.name_devices(&[one]).await {
                tracing::warn!("pool {name}: {e}");
            }
        }
    }

    async fn name_devices(&self, pools: &[DeviceNames]) -> Result<()> {
        let model = self.model();
        let mut new = Model::clone(&model);
        let changes = new.apply(Command::NameDevices { pools: pools.to_vec() }, 0)?;
        self.commit(&model, new).await?;
        for Change { name, text, .. } in &changes {
            self.events.publish("pool.updated", &format!("pool/{name}"), text);
        }
        for names in pools {
            if let Err(e) = self.know_devices(&names.pool).await {
                tracing::warn!("pool {}: {e}", names.pool);
            }
        }
        Ok(())
    }
}
