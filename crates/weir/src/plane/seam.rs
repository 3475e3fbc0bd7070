//! The control plane's wishes, each passed on to the part of the node that carries it out.

use super::devices::{Owner, closed};
use super::node::Node;
use super::store::Lacking;
use std::net::SocketAddr;
use std::time::Duration;
use weir_control::controller::PoolRules;
use weir_control::dataplane::{
    DataPlane, Decision, Hooks, ImageWish, Inside, KnownImage, KnownPool, LastState, LayerTrial,
    Place, ScrubAction, Without, Work,
};
use weir_control::live::{
    GraphLive, LayerKindLive, LiveStatus, MigrationProgress, ScrubLive, SnapshotLive,
    SnapshotRuleLive,
};
use weir_control::model::{
    self, Carried, Device, DeviceAction, DeviceFound, DeviceGrow, DeviceSpec, HostAuth, ImageFound,
    Overwrite, Pool, PoolFound, RecordPart, TargetPort, Told, Volume,
};
use weir_target_core::{AccessMap, End, HostRule, Secret};

impl DataPlane for Node {
    fn attach(&self, hooks: Hooks) {
        // Called once; a second call would change nothing.
        self.watchdog.tell(hooks.clone());
        let _ = self.hooks.set(hooks);
    }

    fn configured(&self, pools: Vec<KnownPool>, images: Vec<KnownImage>) {
        self.holds.know(pools, images);
    }

    fn ask<'a>(&'a self, path: &'a str, within: Duration) -> Work<'a, ()> {
        match path.parse() {
            Ok(address) => Box::pin(self.ask_remote(address, within)),
            Err(_) => Box::pin(self.holds.ask(path, within)),
        }
    }

    fn admit<'a>(
        &'a self,
        pool: &'a str,
        devices: &'a [DeviceSpec],
        inside: Inside<'a>,
    ) -> Work<'a, ()> {
        Box::pin(closed(self.admit_devices(pool, devices, inside)))
    }

    fn admit_growth<'a>(
        &'a self,
        pool: &'a Pool,
        grow: &'a [DeviceGrow],
        overwrite: &'a Overwrite,
    ) -> Work<'a, ()> {
        Box::pin(self.holds.admit_growth(pool, grow, overwrite))
    }

    fn dismiss<'a>(&'a self, pool: &'a str, devices: &'a [DeviceSpec]) -> Work<'a, ()> {
        Box::pin(self.dismiss_devices(pool, devices))
    }

    fn start_pool<'a>(
        &'a self,
        pool: &'a Pool,
        without: Option<Without>,
    ) -> Work<'a, Vec<DeviceFound>> {
        Box::pin(async move {
            match Node::is_store(pool) {
                true => self.open_store(pool, Lacking::of(without)).await,
                false => self.holds.start_plain(pool).await,
            }
        })
    }

    fn unmake_pool<'a>(&'a self, pool: &'a Pool, made: bool) -> Work<'a, ()> {
        Box::pin(closed(async move {
            let _last = self.close_store(&pool.name).await?;
            self.take_back(|o| matches!(o, Owner::Pool(p) if *p == pool.name)).await?;
            self.remotes.let_go(&pool.name).await;
            if made {
                self.unmake_remote(pool).await;
            }
            self.holds.unmake(pool, made).await;
            Ok(())
        }))
    }

    fn force_pool<'a>(&'a self, pool: &'a Pool) -> Work<'a, Vec<DeviceFound>> {
        Box::pin(self.open_store(pool, Lacking::Forced))
    }

    fn stop_pool<'a>(&'a self, name: &'a str) -> Work<'a, Option<LastState>> {
        Box::pin(closed(self.end_pool(name)))
    }

    fn end_pool<'a>(&'a self, name: &'a str) -> Work<'a, Option<LastState>> {
        Box::pin(async move {
            let last = self.close_store(name).await;
            self.take_back(|o| matches!(o, Owner::Pool(p) if p == name)).await?;
            self.holds.release_all(&Owner::Pool(name.to_owned()));
            self.remotes.let_go(name).await;
            last
        })
    }

    fn find_pool<'a>(&'a self, devices: &'a [Device], force: bool) -> Work<'a, PoolFound> {
        Box::pin(self.look_for_store(devices.to_vec(), force))
    }

    fn keep_record<'a>(&'a self, pool: &'a Pool, parts: &'a [RecordPart]) -> Work<'a, ()> {
        Box::pin(self.keep_in_store(pool, parts.to_vec()))
    }

    fn record<'a>(&'a self, pool: &'a Pool) -> Work<'a, Carried> {
        Box::pin(self.record_in_store(pool))
    }

    fn change_device<'a>(&'a self, pool: &'a Pool, action: &'a DeviceAction) -> Work<'a, ()> {
        Box::pin(self.change_store_device(pool, action))
    }

    fn create_volume<'a>(&'a self, volume: &'a Volume, pool: &'a Pool) -> Work<'a, ()> {
        Box::pin(async move {
            match Node::is_store(pool) {
                true => self.make_in_store(volume, pool).await,
                false => self.make_own_file(volume, pool).await,
            }
        })
    }

    fn snapshots<'a>(&'a self, pool: &'a Pool) -> Work<'a, Vec<SnapshotLive>> {
        Box::pin(self.list_snapshots(pool))
    }

    fn take_snapshots<'a>(
        &'a self,
        pool: &'a Pool,
        wanted: &'a [(String, String)],
    ) -> Work<'a, ()> {
        Box::pin(self.snapshot_in_store(pool, wanted.to_vec()))
    }

    fn delete_snapshot<'a>(&'a self, pool: &'a Pool, dataset: &'a str) -> Work<'a, ()> {
        Box::pin(self.delete_in_store(dataset.to_owned(), pool))
    }

    fn set_snapshot_rules<'a>(&'a self, pool: &'a Pool, rules: &'a PoolRules) -> Work<'a, ()> {
        let events = self.hooks.get().map(|h| h.events.clone());
        Box::pin(self.set_store_rules(pool, rules, events))
    }

    fn snapshot_rules<'a>(&'a self, pool: &'a Pool) -> Work<'a, Vec<SnapshotRuleLive>> {
        Box::pin(self.store_rules(pool))
    }

    fn revert_volume<'a>(
        &'a self,
        pool: &'a Pool,
        volume: &'a Volume,
        snapshot: &'a str,
    ) -> Work<'a, ()> {
        Box::pin(async move {
            // Nobody sees the volume; nothing of what was admitted while somebody did may come later.
            self.fence(&volume.name, End::Gone).await?;
            self.revert_in_store(pool, volume, snapshot).await
        })
    }

    fn scrub<'a>(&'a self, pool: &'a Pool, action: ScrubAction) -> Work<'a, Option<ScrubLive>> {
        Box::pin(self.scrub_store(pool, action))
    }

    fn graph<'a>(&'a self, volume: &'a str) -> Work<'a, GraphLive> {
        Box::pin(self.graph_of(volume))
    }

    fn layer_kinds(&self) -> Vec<LayerKindLive> {
        self.kinds_of_layers()
    }

    fn hold_layers<'a>(
        &'a self,
        was: &'a Volume,
        is: &'a Volume,
        pool: &'a Pool,
        trial: &'a LayerTrial,
    ) -> Work<'a, ()> {
        Box::pin(self.hold_for_layers(was, is, pool, trial))
    }

    fn decide_layers<'a>(
        &'a self,
        was: &'a Volume,
        is: &'a Volume,
        pool: &'a Pool,
        keep: bool,
    ) -> Work<'a, ()> {
        Box::pin(self.decide_for_layers(was, is, pool, keep))
    }

    fn find_image<'a>(&'a self, wish: &'a ImageWish) -> Work<'a, ImageFound> {
        Box::pin(self.look_at_image(wish))
    }

    fn start_migration<'a>(
        &'a self,
        here: Place<'a>,
        there: Place<'a>,
        migration: &'a model::Migration,
    ) -> Work<'a, ()> {
        Box::pin(self.begin_migration(here, there, migration))
    }

    fn migration<'a>(&'a self, volume: &'a str) -> Work<'a, Option<MigrationProgress>> {
        Box::pin(self.migration_progress(volume))
    }

    fn tune_migration<'a>(&'a self, volume: &'a str, rate: u64, paused: bool) -> Work<'a, ()> {
        Box::pin(self.tune(volume, rate, paused))
    }

    fn hold_migration<'a>(&'a self, volume: &'a str) -> Work<'a, Told> {
        Box::pin(self.hold(volume))
    }

    fn decide_migration<'a>(&'a self, volume: &'a str, decision: Decision) -> Work<'a, ()> {
        Box::pin(self.decide(volume, decision))
    }

    fn end_migration<'a>(&'a self, here: Place<'a>, there: Place<'a>) -> Work<'a, ()> {
        Box::pin(self.finish_migration(here, there))
    }

    fn clear_place<'a>(&'a self, there: Place<'a>, made: bool) -> Work<'a, ()> {
        Box::pin(async move {
            if made {
                self.remove_image(there.volume).await?;
            }
            self.clear_data(there.volume, there.pool).await
        })
    }

    fn open_volume<'a>(&'a self, volume: &'a Volume, pool: &'a Pool) -> Work<'a, ()> {
        Box::pin(async move {
            let r = self.open(volume, pool).await;
            if r.is_err() {
                closed(self.close(&volume.name)).await?;
            }
            r
        })
    }

    fn update_volume<'a>(&'a self, volume: &'a Volume, pool: &'a Pool) -> Work<'a, ()> {
        Box::pin(self.update(volume, pool))
    }

    fn size_of<'a>(&'a self, volume: &'a Volume, pool: &'a Pool) -> Work<'a, Option<u64>> {
        Box::pin(async move {
            match Node::is_store(pool) {
                true => self.size_in_store(volume, pool).await,
                false => Ok(None),
            }
        })
    }

    fn cut_volume<'a>(&'a self, volume: &'a Volume, pool: &'a Pool) -> Work<'a, ()> {
        Box::pin(self.cut(volume, pool))
    }

    fn close_volume<'a>(&'a self, name: &'a str) -> Work<'a, ()> {
        Box::pin(closed(self.close(name)))
    }

    fn end_volume<'a>(&'a self, name: &'a str) -> Work<'a, ()> {
        Box::pin(self.close(name))
    }

    fn delete_volume_data<'a>(&'a self, volume: &'a Volume, pool: &'a Pool) -> Work<'a, ()> {
        Box::pin(self.delete(volume, pool))
    }

    fn set_mappings<'a>(&'a self, access: &'a model::AccessMap) -> Work<'a, ()> {
        Box::pin(async move {
            let hosts = access
                .hosts
                .iter()
                .map(|h| HostRule {
                    host: h.name.clone(),
                    ports: h.ports.iter().map(|p| p.key().to_vec()).collect(),
                    any: h.allow_any,
                    secret: match &h.auth {
                        HostAuth::Open => Secret::None,
                        HostAuth::Secret(s) => Secret::Known(s.bytes().into()),
                        HostAuth::Lost => Secret::Lost,
                    },
                    luns: h.luns.iter().map(|l| (l.lun, l.volume.clone())).collect(),
                })
                .collect();
            self.set_access(AccessMap { hosts }).await
        })
    }

    fn start_target<'a>(&'a self, port: &'a TargetPort) -> Work<'a, Vec<SocketAddr>> {
        Box::pin(self.listen(port))
    }

    fn stop_target<'a>(&'a self, name: &'a str) -> Work<'a, ()> {
        Box::pin(self.remove_port(name))
    }

    fn let_nobody_in(&self) {
        self.shut_ports();
    }

    fn status(&self) -> Work<'_, LiveStatus> {
        Box::pin(self.live())
    }
}
