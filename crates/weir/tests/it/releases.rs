//! `weir pool release` and other commands that cannot be undone: who is asked, and who is in the way.

use crate::common::load::{Load, port, under_way};
use crate::common::{Daemon, texts, weir};

#[test]
fn a_pool_is_not_released_under_a_host_but_by_force() {
    let mut d = Daemon::new("releases");
    d.start();
    d.ok(&format!("pool create safe --raid 0 {}", d.devices(1, "256M")));
    d.ok("volume create v --pool safe --size 16M");
    d.ok(&format!("host create db --port {}", port(1)));
    d.ok("map create db v");
    let load = Load::start(
        &d,
        &format!(
            "bench --initiator srp --initiator-port {} --target {} --volume v --rw randwrite \
             --bs 4k --iodepth 4 --numjobs 1 --size 16m --time-based --runtime 3600",
            port(1),
            d.target()
        ),
    );
    d.until("it writes", || under_way(&d, "db") > 0);
    let (code, said) = d.fails("pool release safe --yes", 4);
    assert!(code == "volume_mapped" && said.contains("host `db` is logged in"), "{said}");
    assert!(said.contains("--force"), "{said}");
    d.until("nothing was taken from it", || under_way(&d, "db") > 0);
    let out = weir(&d.dir, &["pool", "release", "safe", "--yes", "--force"]);
    let (stdout, stderr) = texts(&out);
    assert!(out.status.success(), "{stdout}{stderr}");
    let note = "host `db` was logged in: its commands to volume `v` end with errors";
    assert!(stderr.contains(note), "{stderr}");
    drop(load);
    // One whose hosts are gone goes without.
    d.ok(&format!("pool import --device file:{}", d.path("disk0")));
    d.ok("pool release safe --yes");
    d.stop();
    d.is_clean(1);
}

#[test]
fn nothing_is_destroyed_unasked_where_nobody_can_be_asked() {
    let mut d = Daemon::new("unasked");
    d.start();
    d.ok(&format!("pool create safe --raid 0 {}", d.devices(1, "256M")));
    d.ok("volume create v --pool safe --size 16M");
    d.ok("snapshot create v@s");
    for line in [
        "pool release safe",
        "pool force safe",
        "volume delete v",
        "snapshot delete v@s",
        "snapshot revert v@s",
        &format!("volume export v --to {} --overwrite data", d.path("image")),
    ] {
        let (code, said) = d.fails(line, 2);
        assert!(code == "invalid_request" && said.contains("--yes"), "{line}: {said}");
    }
    d.ok("snapshot revert v@s --yes");
    d.ok("snapshot delete v@s --yes");
    d.ok("volume delete v --yes");
    d.ok("pool release safe --yes");
    d.stop();
}
