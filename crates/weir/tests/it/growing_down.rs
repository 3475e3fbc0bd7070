//! Plain pools that are not up, or were not when the daemon ended: nothing that they have not had is theirs.

use crate::common::Daemon;
use crate::devices::refused;
use crate::growing::{LABEL, MIB, capacity, enlarge, is_blank_from, recorded, write_at};
use crate::loops::{begun, comes_back, faults};
use std::fs;

#[test]
fn a_pool_that_is_down_does_not_grow() {
    let Some((mut d, image, disk)) = begun("growing-down") else { return };
    let [second, away] = ["second", "away"].map(|name| d.path(name));
    d.start();
    d.ok(&format!("pool create p --device block:{} --device file:{second}:8M", disk.0));
    let had = d.json("pool show p")["devices"][0]["size"].clone();
    d.stop();
    fs::rename(&second, &away).expect("renamed");
    enlarge(&disk, &image, 128);
    d.start();
    assert!(faults(&d).contains("pool/p"), "{}", faults(&d));
    for size in ["", ":96M"] {
        refused(&d, &format!("pool resize p --grow 0{size}"), 4, &["pool `p` is not up"]);
        assert!(is_blank_from(&image, 64), "it was written to");
    }
    d.stop();
    // Nor does a command seem to have done something that changes nothing after a crash.
    recorded(&mut d, |devices| devices[0]["grown_from"] = had.clone());
    refused(&d, "pool resize p --grow 0", 4, &["pool `p` is not up"]);
    assert!(is_blank_from(&image, 64), "it was written to");
    d.stop();
    fs::rename(&away, &second).expect("renamed");
    comes_back(&mut d, "as it was");
    d.ok("pool resize p --grow 0");
    assert_eq!(capacity(&d), 135 * MIB);
    d.stop();
}

/// Behind what a file had is another pool's device, by a loop device that is gone.
#[test]
fn what_is_behind_a_file_already_is_not_taken_unasked() {
    let mut d = Daemon::new("growing-file");
    let [disk, second, away, of_b] = ["disk", "second", "away", "of-b"].map(|name| d.path(name));
    d.start();
    d.ok(&format!("pool create p --device file:{disk}:8M --device file:{second}:8M"));
    d.ok(&format!("pool create b --device file:{of_b}:8M"));
    let before = capacity(&d);
    d.stop();
    let (copy, at) = (fs::read(&of_b).expect("read"), 8 * MIB + LABEL);
    write_at(&disk, &copy, at);
    let is_as_it_was = || fs::read(&disk).expect("read")[at as usize..] == copy;
    fs::rename(&second, &away).expect("renamed");
    d.start();
    refused(&d, "pool resize p --grow 0:12M", 4, &["pool `p` is not up"]);
    assert!(is_as_it_was(), "it was written to");
    d.stop();
    fs::rename(&away, &second).expect("renamed");
    for size in [12 * MIB, 16 * MIB, 32 * MIB] {
        // The daemon ended when it had recorded that this is to grow.
        recorded(&mut d, |devices| {
            devices[0]["grown_from"] = (8 * MIB).into();
            devices[0]["size"] = size.into();
        });
        assert_eq!((faults(&d).as_str(), capacity(&d)), ("[]", before));
        for overwrite in ["", " --overwrite weir,data"] {
            let grow = format!("pool resize p --grow 0:{}M{overwrite}", size / MIB);
            refused(&d, &grow, 4, &["is in use", "pool `b`"]);
        }
        assert!(is_as_it_was(), "it was written to");
        d.stop();
    }
}
