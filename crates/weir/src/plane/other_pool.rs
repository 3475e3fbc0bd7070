//! A pool of a name that another one has which is open.

use super::{Node, NodeConfig};
use weir_control::dataplane::{DataPlane, Inside};
use weir_control::model::{
    Command, DeviceKind, DeviceSpec, Model, Overwrite, PoolSpec, Raid, VolumeSpec,
};
use weir_reactor::PollMode;

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
