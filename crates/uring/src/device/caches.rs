//! Caches that several files and devices have in common.

use super::Identity;
use super::users::{first_line, number, of_number};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use weir_disk::Losses;

/// By what [`of`] gives.
static SHARED: Mutex<Vec<(u64, Weak<Losses>)>> = Mutex::new(Vec::new());

/// The cache that this has its data in: a partition has its disk's.
pub(super) fn of(identity: Identity) -> u64 {
    match identity {
        Identity::Inode(fs, _) => fs,
        Identity::Block(device) => !disk_of(device),
    }
}

/// The disk that a partition is on, or the device itself.
fn disk_of(device: u64) -> u64 {
    let dir = std::fs::canonicalize(format!("/sys/dev/block/{}", number(device)));
    dir.ok().and_then(|d| of_number(&first_line(whole(&d).join("dev"))?)).unwrap_or(device)
}

fn whole(dir: &Path) -> &Path {
    dir.parent().filter(|_| dir.join("partition").exists()).unwrap_or(dir)
}

/// What is known of a cache, by what [`of`] gives: the flush of one file is told of a loss that others have
/// had. Where the page cache or a server has part in it, each file has its own instead.
/// `fua`: it can write a block durably by itself.
pub(super) fn losses(cache: u64, fua: bool) -> Arc<Losses> {
    let mut all = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|(_, l)| l.strong_count() > 0);
    let known = all.iter().find(|(of, _)| *of == cache);
    if let Some(l) = known.and_then(|(_, l)| l.upgrade()) {
        return l;
    }
    let new = Arc::new(Losses::new(fua));
    all.push((cache, Arc::downgrade(&new)));
    new
}

/// Whether a block device can write a block durably by itself; a partition is asked by its disk. What is made of others says so of all
/// that can be flushed: nothing is believed of that.
pub(super) fn has_fua(number: u64) -> bool {
    let dir = format!("/sys/dev/block/{}:{}", libc::major(number), libc::minor(number));
    fua_by(std::path::Path::new(&dir))
}

fn fua_by(dir: &std::path::Path) -> bool {
    let of = |dir: &std::path::Path| {
        let fua = std::fs::read_to_string(dir.join("queue/fua")).ok()?;
        let alone = std::fs::read_dir(dir.join("slaves")).is_ok_and(|mut d| d.next().is_none());
        Some(alone && fua.trim() == "1")
    };
    of(dir).or_else(|| of(&dir.join(".."))).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_base::IoError;

    #[test]
    fn what_is_made_of_other_disks_is_not_believed() {
        let dir = std::env::temp_dir().join(format!("weir-fua-{}", std::process::id()));
        for (disk, fua) in [("alone", "1\n"), ("none", "0\n"), ("made", "1\n")] {
            for d in ["queue", "slaves", "part"] {
                std::fs::create_dir_all(dir.join(disk).join(d)).expect("a directory");
            }
            std::fs::write(dir.join(disk).join("queue/fua"), fua).expect("written");
        }
        std::fs::write(dir.join("made/slaves/sda"), "").expect("written");
        let all = ["alone", "alone/part", "none", "made", "made/part", "nowhere"];
        let all = all.map(|d| fua_by(&dir.join(d)));
        assert_eq!(all, [true, true, false, false, false, false]);
        std::fs::remove_dir_all(&dir).expect("removed");
    }

    #[test]
    fn a_partition_has_the_cache_of_its_disk() {
        let dir = std::env::temp_dir().join(format!("weir-whole-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("sda/sda1")).expect("a directory");
        std::fs::write(dir.join("sda/sda1/partition"), "1").expect("written");
        let all = ["sda", "sda/sda1"].map(|d| whole(&dir.join(d)).to_path_buf());
        assert_eq!(all, [dir.join("sda"), dir.join("sda")]);
        std::fs::remove_dir_all(&dir).expect("removed");
    }

    #[test]
    fn files_of_one_file_system_have_their_losses_in_common() {
        let of = |cache| losses(cache, false);
        let (a, b, other) = (of(7), of(7), of(8));
        a.note(&Err(IoError::Path));
        assert!(b.last() > 0 && other.last() == 0);
        drop((a, b));
        assert_eq!(of(7).last(), 0);
    }
}
