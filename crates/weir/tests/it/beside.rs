//! Devices that show what others show as well: whose that is, and that it comes back to whoever had it.

use crate::loops::{begun, comes_back, faults, file, put, with};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// Hosts have copied a device of another pool of the node onto a volume, which begins where its device does.
#[test]
fn a_label_that_hosts_wrote_to_one_device_is_in_nobody_s_way() {
    let Some((mut d, image, disk)) = begun("beside-labels") else { return };
    drop(disk);
    let (own, lower) = (d.path("own"), with(&["--sizelimit", "33554432"], &image));
    let upper = with(&["-o", "33554432"], &image);
    d.start();
    d.ok(&format!("pool create b --raid 0 --device file:{own}:64M"));
    d.ok(&format!("pool create l --device block:{}", lower.0));
    d.ok("volume create t --pool l --size 8M");
    d.ok(&format!("volume adopt v --path {}", upper.0));
    d.stop();
    let page = fs::read(&own).expect("read")[..4096].to_vec();
    assert!(page.starts_with(b"WeirP"), "it is a label");
    let copy = File::options().write(true).open(&image).expect("open");
    copy.write_all_at(&page, 0).expect("written");
    comes_back(&mut d, "a label in a volume");
    // Where the pool is not up whose device that is, the label counts: nobody knows whose it is.
    d.stop();
    let other = d.path("other");
    file(&other);
    put(&d, &lower, &["--sizelimit", "33554432"], &other);
    d.start();
    d.tried_again();
    let told = faults(&d);
    assert!(["pool/l", "volume/v", "pool `b`"].iter().all(|w| told.contains(w)), "{told}");
    d.stop();
}
