//! Small helpers of the tests.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use weir_control::controller::sample_every;
use weir_control::dataplane::DataPlane;
use weir_control::declare::Desired;
use weir_control::model::{
    Command, DeviceKind, DeviceSpec, HostSpec, MapSpec, PoolSpec, TargetSpec, VolumeSpec,
};
use weir_control::{Controller, Stopping};

/// Waits until `is_so`, in all the time that a busy machine may need.
pub(crate) async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let begun = Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < Duration::from_secs(120), "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits for a whole round in which what is not well, or not as it is declared, was tried again: one that began after the call.
pub(crate) async fn tried_again(c: &Controller) {
    let rounds = async || c.status().await.expect("a status").retries;
    let before = rounds().await;
    // The first to end may have begun before.
    until("it tries again", async || rounds().await >= before + 2).await;
}

/// The end of a controller that was not told of it, as when the program is killed.
pub(crate) async fn gone(c: Arc<Controller>) {
    let left = Arc::downgrade(&c);
    drop(c);
    until("nothing is under way any more", async || left.strong_count() == 0).await;
}

/// A node that is up. Those commands may be run for keys.
pub(crate) async fn up(
    dir: &Scratch,
    plane: Arc<dyn DataPlane>,
    commands: &[&str],
    declared: Desired,
    stopping: Stopping,
) -> Arc<Controller> {
    let commands = commands.iter().map(ToString::to_string).collect();
    let c = Controller::open(dir.path(), plane, commands, declared, stopping).await;
    let c = c.expect("a controller");
    c.come_up().await.expect("it is up");
    c.started();
    c
}

/// A directory that is removed at the end of the test.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// A new, empty one. Controllers of this test do not sleep long.
    pub(crate) fn new() -> Scratch {
        sample_every(Duration::from_millis(100));
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("weir-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a scratch directory");
        Scratch(dir)
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

pub(crate) const GIB: u64 = 1 << 30;

pub(crate) fn pool(name: &str, devices: &[(DeviceKind, Option<&str>, Option<u64>)]) -> PoolSpec {
    let devices = devices.iter().map(|(kind, path, size)| DeviceSpec {
        kind: *kind,
        path: path.map(str::to_string),
        size: *size,
    });
    PoolSpec {
        name: name.into(),
        devices: devices.collect(),
        raid: None,
        overwrite: Default::default(),
        memory: None,
    }
}

pub(crate) fn ram_pool(name: &str, size: u64) -> PoolSpec {
    pool(name, &[(DeviceKind::Ram, None, Some(size))])
}

pub(crate) fn volume(name: &str, pool: &str, size: u64) -> VolumeSpec {
    VolumeSpec::new(name, pool, size)
}

pub(crate) fn host(name: &str, ports: &[&str]) -> HostSpec {
    let ports = ports.iter().map(|p| p.parse().expect("a port")).collect();
    HostSpec { name: name.into(), ports, ..HostSpec::default() }
}

pub(crate) fn map(host: &str, volume: &str) -> MapSpec {
    MapSpec { host: host.into(), volume: volume.into(), lun: None }
}

pub(crate) fn target(name: &str, listen: &str) -> TargetSpec {
    TargetSpec { name: name.into(), listen: vec![listen.into()], ..TargetSpec::default() }
}

pub(crate) fn delete_volume(name: &str) -> Command {
    Command::DeleteVolume { name: name.into() }
}
