//! A pool of a name that another one has which is open.

use super::devices::PATIENCE;
use super::{Node, NodeConfig};
use std::sync::mpsc::Receiver;
use std::time::Instant;
use weir_control::dataplane::{DataPlane, Inside};
use weir_control::model::{
    Command, DeviceKind, DeviceSpec, Model, Overwrite, PoolSpec, Raid, VolumeSpec,
};
use weir_reactor::PollMode;

/// Hangs while it is dropped, until it is told to go on.
struct Hung(Receiver<()>);

impl Drop for Hung {
    fn drop(&mut self) {
        let _ = self.0.recv();
    }
}

/// Pool `safe` of a file, with volume `v`, in a configuration that makes identities of `entropy`.
fn configured(file: &std::path::Path, entropy: u128) -> (Model, Vec<DeviceSpec>) {
    let device = DeviceSpec {
        kind: DeviceKind::File,
        path: Some(file.display().to_string()),
        size: Some(256 << 20),
    };
    let spec = PoolSpec {
        name: "safe".into(),
        devices: vec![device.clone()],
        raid: Some(Raid::Zero),
        overwrite: Overwrite::default(),
        memory: None,
    };
    let mut m = Model::default();
    m.apply(Command::CreatePool(spec), entropy).expect("a pool");
    m.apply(Command::CreateVolume(VolumeSpec::new("v", "safe", 8 << 20)), entropy).expect("one");
    (m, vec![device])
}

/// A device of anybody hangs while it is closed, as of when a pool is being stopped. Whoever deletes the pool is not told before that
/// its devices are free; at the end of the process nobody is told.
#[test]
fn the_end_of_a_pool_does_not_wait_for_what_hangs_while_it_is_closed() {
    let dir = std::env::temp_dir().join(format!("weir-ended-pool-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let config = NodeConfig {
        cores: vec![None],
        poll: PollMode::Sleep,
        buffer_memory: 16 << 20,
        unsummed: Vec::new().into(),
        initiator: weir_control::model::InitiatorId([1; 16]),
        secret: None,
    };
    let node = Node::start(&config).expect("a node");
    let rt = tokio::runtime::Runtime::new().expect("a runtime");
    let stops = async |at_the_end: bool| {
        let (m, devices) = configured(&dir.join(format!("{at_the_end}")), u128::from(at_the_end));
        let overwrite = Overwrite::default();
        node.admit("safe", &devices, Inside::Only(&overwrite)).await.expect("admitted");
        node.start_pool(m.pool("safe").expect("it"), None).await.expect("it starts");
        let (go_on, hangs) = std::sync::mpsc::channel();
        let begun = Instant::now();
        let stop = async {
            let last = match at_the_end {
                true => node.end_pool("safe").await,
                false => node.stop_pool("safe").await,
            };
            (last.expect("it stops").is_some(), begun.elapsed())
        };
        // By then it has begun, and waits for its reactor.
        let (stopped, ()) = tokio::join!(stop, async { weir_uring::drop_aside(Hung(hangs)) });
        go_on.send(()).expect("it hangs");
        stopped
    };
    let (ended, stopped) = rt.block_on(async { (stops(true).await, stops(false).await) });
    node.end().expect("all reactors end");
    std::fs::remove_dir_all(&dir).expect("it is gone");
    assert!(ended.0 && stopped.0, "what they have is told");
    assert!(stopped.1 >= PATIENCE && ended.1 < PATIENCE, "{ended:?} {stopped:?}");
}

/// A pool is open in the data plane that the configuration does not have (any more), since one of its volumes did not close when its import
/// was taken back. A pool of that name is made of another device. It is there, and not on the old one's device.
#[test]
fn a_pool_of_the_same_name_is_not_another_one() {
    let dir = std::env::temp_dir().join(format!("weir-other-pool-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let config = NodeConfig {
        cores: vec![None],
        poll: PollMode::Sleep,
        buffer_memory: 16 << 20,
        unsummed: Vec::new().into(),
        initiator: weir_control::model::InitiatorId([1; 16]),
        secret: None,
    };
    let node = Node::start(&config).expect("a node");
    let rt = tokio::runtime::Runtime::new().expect("a runtime");
    let (old, new) = (dir.join("old"), dir.join("new"));
    let told = rt.block_on(async {
        let (m, devices) = configured(&old, 7);
        node.admit("safe", &devices, Inside::Only(&Overwrite::default())).await.expect("admitted");
        node.start_pool(m.pool("safe").expect("it"), None).await.expect("it starts");
        let (m, devices) = configured(&new, 9);
        let overwrite = Overwrite::default();
        node.admit("safe", &devices, Inside::Only(&overwrite)).await.expect("admitted");
        let pool = m.pool("safe").expect("it");
        match node.start_pool(pool, None).await {
            Err(e) => Some(e.to_string()),
            Ok(_) => {
                let made = node.create_volume(m.volume("v").expect("it"), pool).await;
                made.err().map(|e| e.to_string())
            }
        }
    });
    let written = std::fs::metadata(&new).map_or(0, |m| std::os::unix::fs::MetadataExt::blocks(&m));
    rt.block_on(async { node.stop_pool("safe").await.expect("it stops") });
    node.end().expect("all reactors end");
    std::fs::remove_dir_all(&dir).expect("it is gone");
    assert!(
        told.is_some() || written > 0,
        "the new pool has started and has a volume, and nothing is on its device: it is on that of the old pool"
    );
}
