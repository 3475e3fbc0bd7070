//! Whether devices show one content, seen from threads of their own: one that hangs keeps nothing but itself.

use super::lock;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use weir_uring::device::{PAGE, is_claimed};
use weir_uring::{Held, Identity};

/// How long others may take to show what they have.
const GLANCE: Duration = Duration::from_secs(2);
/// Between how many places two disks of one name are compared.
const SAMPLES: u64 = 64;

/// What was seen of two block devices that say to be one disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sameness {
    /// They have the same content wherever that could be seen, labels included.
    Same,
    /// They have different content, and keep it.
    Other,
    /// Too much of them cannot be read, or does not answer.
    Unknown,
}

/// Devices that owe an answer from before: they are not asked again until it has come.
#[derive(Default)]
pub(super) struct Silent {
    /// What they have.
    reads: Mutex<Vec<(Identity, Weak<()>)>>,
    /// Whether somebody has them for himself, as far as they have told.
    claims: Mutex<Vec<(Identity, Weak<()>, bool)>>,
}

/// Whether somebody uses a block device.
pub(super) enum Claim {
    None,
    /// Somebody does. The device, if it can be opened beside that.
    Had(Option<Arc<Held>>),
}

/// Bytes of its disk that are before a partition; 0 of a disk. The kernel counts in sectors of 512 bytes, whatever the disk's are.
fn offset(held: &Held) -> u64 {
    let Identity::Block(dev) = held.identity() else { return 0 };
    // makedev(3).
    let major = ((dev >> 8) & 0xfff) | ((dev >> 32) & !0xfff);
    let minor = (dev & 0xff) | ((dev >> 12) & !0xff);
    let start = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/start")).ok();
    start.and_then(|s| s.trim().parse::<u64>().ok()).unwrap_or(0).saturating_mul(512)
}

/// A page of a device that begins at `start`, from `at`. It need not be aligned on the device.
fn page(held: &Held, start: u64, at: u64) -> Option<Vec<u8>> {
    let own = at.checked_sub(start)?;
    let (from, skipped) = (own / PAGE * PAGE, own % PAGE);
    let len = if skipped == 0 { PAGE } else { 2 * PAGE };
    let bytes = held.read(from, len as usize).ok()?;
    bytes.get(skipped as usize..(skipped + PAGE) as usize).map(<[u8]>::to_vec)
}

/// What a device has been asked for.
struct Asked {
    identity: Identity,
    told: Receiver<(u64, Vec<u8>)>,
    /// As long as the thread is busy.
    busy: Weak<()>,
}

impl Asked {
    /// The pages that come in time, by their places.
    fn pages(&self, until: Instant) -> BTreeMap<u64, Vec<u8>> {
        let left = || until.saturating_duration_since(Instant::now());
        std::iter::from_fn(|| self.told.recv_timeout(left()).ok()).collect()
    }
}

impl Silent {
    /// Has a thread that owns nothing else read pages of a device, in this order. What cannot be read is left out.
    fn ask(&self, held: &Arc<Held>, start: u64, places: Vec<u64>) -> Asked {
        let (tell, told) = channel();
        let (held, busy) = (held.clone(), Arc::new(()));
        let asked = Asked { identity: held.identity(), told, busy: Arc::downgrade(&busy) };
        let is_silent = {
            let mut all = lock(&self.reads);
            all.retain(|(_, busy)| busy.strong_count() > 0);
            all.iter().any(|(identity, _)| *identity == asked.identity)
        };
        if is_silent {
            return asked;
        }
        let read = move || {
            for at in places {
                // Whoever asked may have gone.
                if page(&held, start, at).is_some_and(|p| tell.send((at, p)).is_err()) {
                    break;
                }
            }
            drop((held, busy));
        };
        if let Err(e) = std::thread::Builder::new().name("weir-device".into()).spawn(read) {
            tracing::warn!("no thread for a device: {e}");
        }
        asked
    }

    /// Whether somebody has the block device at a path for himself, or uses it otherwise (`is_used`). The kernel tells that without the
    /// device: one that does not answer is nobody's.
    pub(super) fn claim(&self, path: &Path, identity: Identity, is_used: bool) -> Claim {
        let (tell, told) = channel();
        let busy = Arc::new(());
        let (asked, path) = (Arc::downgrade(&busy), path.to_owned());
        {
            let mut all = lock(&self.claims);
            all.retain(|(_, busy, _)| busy.strong_count() > 0);
            if let Some((.., is_claimed)) = all.iter().find(|(other, ..)| *other == identity) {
                return if *is_claimed || is_used { Claim::Had(None) } else { Claim::None };
            }
        }
        let look = move || {
            let is_claimed = is_used || is_claimed(&path);
            // Whoever asked may have gone.
            let _ = tell.send((is_claimed, None));
            if is_claimed {
                let _ = tell.send((true, Held::beside(&path).ok().map(Arc::new)));
            }
            drop(busy);
        };
        if let Err(e) = std::thread::Builder::new().name("weir-device".into()).spawn(look) {
            tracing::warn!("no thread for a device: {e}");
            return Claim::Had(None);
        }
        let until = Instant::now() + GLANCE;
        let next = || told.recv_timeout(until.saturating_duration_since(Instant::now()));
        match next() {
            Ok((true, _)) => match next() {
                Ok((_, held)) => Claim::Had(held),
                Err(_) => {
                    lock(&self.claims).push((identity, asked, true));
                    Claim::Had(None)
                }
            },
            Ok((false, _)) => Claim::None,
            Err(_) => {
                lock(&self.claims).push((identity, asked, false));
                Claim::None
            }
        }
    }

    /// Notes which of these have not answered in time.
    fn note(&self, all: &[Asked], until: Instant) {
        if Instant::now() >= until {
            lock(&self.reads).extend(all.iter().map(|a| (a.identity, a.busy.clone())));
        }
    }

    /// Whether two lead to one disk, by what both have of it. Hosts may write to them meanwhile.
    pub(super) fn sameness(&self, one: &Arc<Held>, other: &Arc<Held>) -> Sameness {
        let both = [one, other];
        let starts = both.map(|h| offset(h));
        let first = starts[0].max(starts[1]);
        let end = (starts[0] + one.last_len()).min(starts[1] + other.last_len());
        let pages = end.saturating_sub(first) / PAGE;
        let Some(last) = pages.checked_sub(1) else { return Sameness::Unknown };
        let until = Instant::now() + GLANCE;
        let look = |places: &[u64]| {
            // Else the one that answers would be busy still when this returns.
            if Instant::now() >= until {
                return Vec::new();
            }
            let asked = [0, 1].map(|n| self.ask(both[n], starts[n], places.to_vec()));
            let [a, mut b] = [0, 1].map(|n| asked[n].pages(until));
            self.note(&asked, until);
            let seen = a.into_iter().filter_map(|(at, a)| Some((at, a, b.remove(&at)?)));
            seen.collect::<Vec<_>>()
        };
        // Labels are at the ends.
        let ends = vec![first, first + last * PAGE];
        let between = (1..SAMPLES).map(|n| {
            first + (u128::from(last) * u128::from(n) / u128::from(SAMPLES)) as u64 * PAGE
        });
        let mut same = false;
        for (places, are_ends) in [(ends, true), (between.collect(), false)] {
            let seen = look(&places);
            let unlike = seen.iter().filter(|(_, a, b)| a != b).map(|(at, ..)| *at);
            let unlike: Vec<u64> = unlike.collect();
            // Between the two looks at one place both have been read: what was there all the time was not one.
            let again = if unlike.is_empty() { Vec::new() } else { look(&unlike) };
            if again.iter().any(|s| s.1 != s.2 && seen.contains(s)) {
                return Sameness::Other;
            }
            if are_ends {
                // One end is enough if there is something in it, such as the label.
                let told = |s: &(u64, Vec<u8>, Vec<u8>)| s.1 == s.2 && s.1.iter().any(|b| *b != 0);
                let all =
                    unlike.is_empty() && places.iter().all(|at| seen.iter().any(|s| s.0 == *at));
                // Blank ends of disks of two sizes tell nothing.
                let alike = starts[0] == starts[1] && one.last_len() == other.last_len();
                same = (all && alike) || seen.iter().any(told);
            }
        }
        if same { Sameness::Same } else { Sameness::Unknown }
    }

    /// The first of these that shows this page. What does not answer shows nothing.
    pub(super) fn showing(&self, all: &[Arc<Held>], at: u64, page: &[u8]) -> Option<Arc<Held>> {
        let until = Instant::now() + GLANCE;
        let asked: Vec<Asked> = all.iter().map(|h| self.ask(h, 0, vec![at])).collect();
        let shows = |a: &Asked| a.pages(until).get(&at).is_some_and(|now| now == page);
        let found = asked.iter().position(shows);
        self.note(&asked, until);
        found.and_then(|n| all.get(n).cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::path::PathBuf;

    const LEN: u64 = 256 * PAGE;

    struct Disk(PathBuf, Arc<Held>);

    impl Drop for Disk {
        fn drop(&mut self) {
            drop(std::fs::remove_file(&self.0));
        }
    }

    impl Disk {
        /// Of so many pages, which are all different from each other, and the same in any of these.
        fn new(name: &str, pages: u64) -> Disk {
            let path =
                std::env::temp_dir().join(format!("weir-same-{name}-{}", std::process::id()));
            let page = |n: u64| [n.to_le_bytes(), [1; 8]].concat().repeat(PAGE as usize / 16);
            std::fs::write(&path, (0..pages).flat_map(page).collect::<Vec<u8>>()).expect("a file");
            let held = Arc::new(Held::open(&path, false).expect("held"));
            Disk(path, held)
        }

        /// What is behind this cannot be read any more.
        fn cut(&self, len: u64) {
            let file = File::options().write(true).open(&self.0);
            file.and_then(|f| f.set_len(len)).expect("cut");
        }
    }

    fn seen(one: &Disk, other: &Disk) -> Sameness {
        let silent = Silent::default();
        let seen = silent.sameness(&one.1, &other.1);
        assert_eq!(seen, silent.sameness(&other.1, &one.1), "whichever is first");
        seen
    }

    #[test]
    fn what_both_have_tells_whether_they_are_one() {
        let (a, b, longer) = (Disk::new("a", 256), Disk::new("b", 256), Disk::new("longer", 300));
        assert_eq!([seen(&a, &b), seen(&a, &longer)], [Sameness::Same; 2]);
        // Somewhere between, of which 64 places are looked at.
        b.1.write(128 * PAGE, &[9; 8 * PAGE as usize]).expect("written");
        assert_eq!(seen(&a, &b), Sameness::Other);
        let (c, none) = (Disk::new("c", 256), Disk::new("none", 0));
        c.1.write(LEN - PAGE, &[9; PAGE as usize]).expect("written");
        assert_eq!([seen(&a, &c), seen(&c, &longer)], [Sameness::Other; 2]);
        assert_eq!(seen(&a, &none), Sameness::Unknown);
        for disk in [&a, &c, &longer] {
            disk.1.write(0, &[0; 256 * PAGE as usize]).expect("written");
        }
        assert_eq!(seen(&a, &c), Sameness::Same);
        assert_eq!(seen(&a, &longer), Sameness::Unknown, "one is as blank as the other");
    }

    #[test]
    fn what_cannot_be_read_says_nothing() {
        let (a, b) = (Disk::new("read", 256), Disk::new("unread", 256));
        b.cut(LEN / 2);
        assert_eq!(seen(&a, &b), Sameness::Same, "the first page is one and has something in it");
        b.cut(0);
        assert_eq!(seen(&a, &b), Sameness::Unknown);
        // One end is blank in both, and the other one is not seen.
        let (c, d) = (Disk::new("blank", 256), Disk::new("blank-unread", 256));
        for disk in [&c, &d] {
            disk.1.write(0, &[0; PAGE as usize]).expect("written");
        }
        assert_eq!(seen(&c, &d), Sameness::Same);
        d.cut(LEN / 2);
        assert_eq!(seen(&c, &d), Sameness::Unknown);
        d.1.write(64 * PAGE, &[9; 8 * PAGE as usize]).expect("written");
        assert_eq!(seen(&c, &d), Sameness::Other, "any place tells that they are two");
    }

    #[test]
    fn partitions_begin_anywhere() {
        let disk = Disk::new("partition", 4);
        let whole = disk.1.read(0, 2 * PAGE as usize).expect("read");
        // The device begins 1024 bytes behind the begin of its disk, and the page that is asked for 1536.
        assert_eq!(page(&disk.1, 1024, 1536).expect("read"), whole[512..][..PAGE as usize]);
        assert_eq!(page(&disk.1, 1024, 1024).expect("read"), whole[..PAGE as usize]);
        assert!(page(&disk.1, 1024, 512).is_none() && page(&disk.1, 0, 4 * PAGE).is_none());
    }

    /// It is busy with what it was asked before.
    #[test]
    fn one_that_owes_an_answer_is_not_asked_again() {
        let (a, b) = (Disk::new("silent", 16), Disk::new("asked", 16));
        let (silent, busy) = (Silent::default(), Arc::new(()));
        lock(&silent.reads).push((b.1.identity(), Arc::downgrade(&busy)));
        assert_eq!(silent.sameness(&a.1, &b.1), Sameness::Unknown);
        drop(busy);
        assert_eq!(silent.sameness(&a.1, &b.1), Sameness::Same);
    }

    /// It is claimed, and its driver hangs: one thread waits for it.
    #[test]
    fn one_that_is_claimed_is_so_as_long_as_it_owes_an_answer() {
        let a = Disk::new("claimed", 16);
        let (silent, busy) = (Silent::default(), Arc::new(()));
        for is_claimed in [true, false] {
            lock(&silent.claims).clear();
            lock(&silent.claims).push((a.1.identity(), Arc::downgrade(&busy), is_claimed));
            let claim = silent.claim(&a.0, a.1.identity(), false);
            assert_eq!(matches!(claim, Claim::Had(None)), is_claimed);
        }
        // That one hangs which is read says nothing.
        lock(&silent.claims).clear();
        lock(&silent.reads).push((a.1.identity(), Arc::downgrade(&busy)));
        assert!(matches!(silent.claim(&a.0, a.1.identity(), false), Claim::None));
        assert!(lock(&silent.claims).is_empty());
    }
}
