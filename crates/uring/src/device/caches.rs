//! Caches that several files have in common.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use weir_disk::Losses;

/// By file system, or device.
static SHARED: Mutex<Vec<(u64, Weak<Losses>)>> = Mutex::new(Vec::new());

/// What is known of the cache below a file system, or of a device's: the flush of one file is told of a loss that others have
/// had. Where the page cache or a server has part in it, each file has its own.
/// `fua`: it can write a block durably by itself.
pub(super) fn losses(fs: u64, own: bool, fua: bool) -> Arc<Losses> {
    if own {
        return Arc::default();
    }
    let mut all = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|(_, l)| l.strong_count() > 0);
    let known = all.iter().find(|(of, _)| *of == fs);
    if let Some(l) = known.and_then(|(_, l)| l.upgrade()) {
        return l;
    }
    let new = Arc::new(Losses::new(fua));
    all.push((fs, Arc::downgrade(&new)));
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
    fn files_of_one_file_system_have_their_losses_in_common() {
        let of = |fs| losses(fs, false, false);
        let (a, b, other) = (of(7), of(7), of(8));
        let own = losses(7, true, false);
        a.note(&Err(IoError::Path));
        assert!(b.last() > 0 && other.last() == 0 && own.last() == 0);
        drop((a, b));
        assert_eq!(of(7).last(), 0);
    }
}
