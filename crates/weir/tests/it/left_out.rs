//! What `weir pool import` leaves out is there for another import: the real program, files as devices.

use crate::common::{Daemon, noise};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;

fn names(report: &Value) -> Vec<&str> {
    let all = report["volumes"].as_array().expect("volumes");
    all.iter().filter_map(|v| v["name"].as_str()).collect()
}

/// A node that lost its data directory takes its pool in without a volume whose key comes from a command. The only wrapped key of the
/// volume is what the pool carries.
#[test]
fn a_volume_that_an_import_left_out_comes_with_the_next() {
    let mut d = Daemon::new("left-out");
    let (program, key) = (d.path("give-key"), d.path("the.key"));
    std::fs::write(&program, format!("#!/bin/sh\nexec cat {key}\n")).expect("written");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).expect("mode");
    std::fs::write(d.path("weir.toml"), format!("key_commands = [\"{program}\"]\n"))
        .expect("written");
    let import = format!("pool import --device file:{}", d.path("disk"));
    d.start();
    d.ok(&format!("key new {key}"));
    d.ok(&format!("pool create safe --raid 0 --device file:{}:128M", d.path("disk")));
    d.ok("volume create other --pool safe --size 4M");
    d.ok(&format!("volume create secret --pool safe --size 4M --encrypt --key command:{program}"));
    d.ok("host create all --allow-any");
    d.ok("map create all secret");
    let data = noise(5, 256 << 10);
    std::fs::write(d.path("data"), &data).expect("written");
    d.write("secret", &d.path("data"));
    d.stop();
    for lost in ["weir.redb", "config.json", "weir.lock"] {
        std::fs::remove_file(d.path(lost)).expect("it was there");
    }
    d.start();
    let report = d.json(&import);
    assert_eq!(names(&report), ["other"], "{report}");
    let told = report["left_out"].to_string();
    assert!(told.contains("volume `secret`") && told.contains("--key-commands"), "{told}");
    // Whatever happens to the rest of the pool, also in another life.
    assert_eq!(d.fails("volume create secret --pool safe --size 1M", 4).0, "volume_exists");
    d.ok("volume create more --pool safe --size 1M");
    d.stop();
    d.start();
    d.ok("volume delete other --yes");
    d.ok("volume delete more --yes");
    assert_eq!(d.fails("pool delete safe", 4).0, "pool_in_use");
    d.ok("pool release safe --yes");
    let report = d.json(&format!("{import} --key-commands"));
    assert_eq!(names(&report), ["secret"], "{report}");
    assert_eq!(d.json("map list")[0]["volume"], "secret");
    assert!(d.read("secret", data.len()) == data);
}
