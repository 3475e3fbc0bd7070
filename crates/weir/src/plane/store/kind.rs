//! Block devices of which the system says nothing that lasts, such as those of DRBD, virtio or device mapper: what kind they are.

use std::path::Path;
use weir_control::model::{Device, DeviceKind};

/// Disks whose names end in letters, which number them.
const LETTERED: [&str; 4] = ["xvd", "sd", "vd", "hd"];

/// What kind of block device a path names, by the kernel's own name for it; none for what is elsewhere or was given its name by others.
fn kind(path: &str) -> Option<&str> {
    let path = Path::new(path);
    let name = path.file_name()?.to_str()?;
    match path.parent()?.to_str()? {
        "/dev" => {}
        "/dev/mapper" => return Some("dm-"),
        _ => return None,
    }
    let lettered = LETTERED.into_iter().find(|k| name.starts_with(k));
    let end = name.find(|c: char| c.is_ascii_digit()).unwrap_or(name.len());
    lettered.or(name.get(..end)).filter(|k| !k.is_empty())
}

/// Whether what is at a path, and is called that by the system, may be a device of which nothing is recorded but where it was. A
/// device that is made of another one, such as DRBD's of a logical volume, has the same label as the lower one. That is of another
/// kind, or has a name that lasts.
pub(super) fn may_be(was: &Device, path: &str, name: Option<&str>) -> bool {
    let was_at = was.path.as_deref().unwrap_or_default();
    match was.kind {
        DeviceKind::Block if was_at == path => true,
        DeviceKind::Block => name.is_none() && kind(path).is_some_and(|k| kind(was_at) == Some(k)),
        _ => !path.starts_with("/dev/"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_a_device_is_not_that_device() {
        for (was_at, path, name, may) in [
            // Below DRBD, a mapping without an identity, and one that udev has named.
            ("/dev/drbd1", "/dev/dm-3", Some("LVM-x"), false),
            ("/dev/drbd1", "/dev/vdb", None, false),
            ("/dev/mapper/x", "/dev/loop1", None, false),
            ("/dev/drbd/by-res/r0/0", "/dev/vdb", None, false),
            ("/dev/mapper/x", "/dev/dm-3", Some("LVM-x"), false),
            ("/dev/loop1", "/srv/disk", Some("inode 7"), false),
            // Found in another order.
            ("/dev/vdb", "/dev/vdc", None, true),
            ("/dev/vdb", "/dev/vdc", Some("serial"), false),
            ("/dev/vdz", "/dev/vdaa1", None, true),
            ("/dev/loop1", "/dev/loop12", None, true),
            ("/dev/mapper/x", "/dev/dm-3", None, true),
            ("/dev/nbd0", "/dev/nbd1", None, true),
            // The very path.
            ("/srv/link", "/srv/link", None, true),
            ("/dev/drbd1", "/dev/drbd1", Some("now"), true),
        ] {
            let was = Device::known(DeviceKind::Block, Some(was_at.into()), 0);
            assert_eq!(may_be(&was, path, name), may, "{path} for {was_at}");
        }
        let was = Device::known(DeviceKind::File, Some("/srv/disk".into()), 0);
        let file = |path| may_be(&was, path, Some("inode 7"));
        assert!(file("/srv/moved") && !file("/dev/loop1"));
    }
}
