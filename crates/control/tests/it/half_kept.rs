//! A command that is refused since its pool could not carry all of it leaves nothing of it on the devices.

use crate::fake::Fake;
use crate::support::*;
use std::sync::Arc;
use weir_control::model::{
    Carried, Command, DeviceKind, EncryptionSpec, FormSpec, KeySource, PoolSpec, Raid, RekeySpec,
    VolumeSpec,
};
use weir_control::{Controller, keys};

const MIB: u64 = 1 << 20;

/// What the devices of pool `safe` tell of volume `v`.
fn on_the_devices(fake: &Fake) -> serde_json::Value {
    let parts = fake.state().devices["safe"].parts.clone();
    let parts = parts.range(1..).map(|(_, c)| serde_json::from_slice(c).expect("a part"));
    let volumes = parts.flat_map(|p: serde_json::Value| p["volumes"].as_array().cloned().unwrap());
    let v = volumes.map(|d| d["volume"].clone()).find(|v| v["name"] == "v");
    v.unwrap_or_default()
}

/// The pool is nearly full: of the two copies of a wrapped key that are kept, the first finds room and the second does not. The command
/// is refused, the volume is as it was, and its owner throws the new key away. Whoever takes the pool over after the machine
/// is lost needs the old one. Gives whether the devices carry that, or there is a fault: right after the refusal, and later.
async fn refused(readable: bool) -> [(bool, bool); 2] {
    let dir = Scratch::new();
    let fake = Arc::new(Fake::default());
    fake.state().devices.insert("safe".into(), Carried::default());
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    let spec = pool("safe", &[(DeviceKind::File, Some("/nowhere/d0"), Some(GIB))]);
    let spec = PoolSpec { raid: Some(Raid::Zero), ..spec };
    c.execute(Command::CreatePool(spec)).await.expect("a pool");
    let key = |name: &str| {
        let path = dir.path().join(name);
        keys::new_key_file(&path).expect("a key");
        KeySource::File(path.display().to_string())
    };
    let (old, new) = (key("old.key"), key("new.key"));
    let encryption = Some(EncryptionSpec { key: old });
    let form = FormSpec { encryption, ..FormSpec::default() };
    let spec = VolumeSpec { form, ..volume("v", "safe", 8 * MIB) };
    c.execute(Command::CreateVolume(spec)).await.expect("a volume");
    let now = |c: &Controller| serde_json::to_value(&c.model().volumes["v"]).expect("JSON");
    let before = now(&c);
    assert_eq!(on_the_devices(&fake), before, "they carry it");

    fake.state().half_kept.insert("safe".into());
    if !readable {
        fake.break_call("record safe");
    }
    let refused = c.rekey("v".into(), RekeySpec { key: new, old_key: None }).await;
    let refused = refused.expect_err("it cannot be kept");
    assert!(refused.to_string().contains("is as it was"), "{refused}");
    assert_eq!(now(&c), before, "it is as it was");
    let stands = async || {
        let told = c.status().await.expect("a status").faults;
        (on_the_devices(&fake) == before, told.iter().any(|f| f.object == "record/safe"))
    };
    let first = stands().await;
    fake.mend();
    tried_again(&c).await;
    [first, stands().await]
}

#[tokio::test]
async fn devices_do_not_carry_a_key_that_was_refused() {
    assert_eq!(refused(true).await, [(true, false); 2], "as it was on the devices, and no fault");
}

/// What is on the devices now cannot be read for a while.
#[tokio::test]
async fn that_they_carry_it_is_a_fault_as_long_as_that_is_so() {
    assert_eq!(refused(false).await, [(false, true), (true, false)]);
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_refused_key_that_devices_keep_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::KeptThoughFailed));
    let stands = refused(true).await;
    plant(None);
    assert_eq!(stands[1], (false, false), "they carry it, and nothing tells so");
}
