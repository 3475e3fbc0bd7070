//! Whose a disk is: the kernel may have given the number of its device to another since.

use crate::fuse;
use crate::host::loopdev;
use crate::host::{diskseq, users};
use crate::nbd;
use crate::state::{Home, Life, Maker, Method, Place, Process, State};
use crate::sys;
use crate::ublk;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_uring::device::is_attached;

/// The file of a volume as the kernel tells it when its file system is mounted nowhere any more, without a mark.
const LOST: &str = "/volume";
/// Who only looks what a disk is has it open for less than all of these looks. So does udev, and whoever wants a free device.
const STEP: Duration = Duration::from_millis(50);
const LOOKS: u32 = 20;

/// Whose a disk is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Whose {
    /// The attachment's.
    Ours,
    /// Certainly another's, or gone.
    NotOurs,
    /// It cannot be said, for this reason.
    Unknown(String),
}

/// What is known of a disk that an attachment has, or had.
struct Had<'a> {
    device: &'a Path,
    home: Home,
    diskseq: Option<u64>,
    mark: Option<&'a str>,
    /// Its process may live.
    lives: bool,
}

/// Whose the disk of an attachment is now.
pub(crate) fn whose(place: &Place, state: &State) -> Whose {
    let device = state.device.as_path();
    let had = Had {
        device,
        home: state.home,
        diskseq: state.diskseq,
        mark: state.mark.as_deref(),
        lives: state.is_alive() || place.life().is_some_and(|l| l != Life::Ended),
    };
    let (pid, alive) = (state.pid, state.is_alive());
    let no_such = || Whose::Unknown(format!("{} is no device of that driver", device.display()));
    if state.home.is_of_another_boot() {
        return Whose::NotOurs;
    }
    match state.method {
        Method::Fuse => whose_loop(place, &had),
        Method::Ublk => by_number(&had).unwrap_or_else(|| {
            let asked = |d: ublk::Device| d.whose(pid, alive, had.mark);
            ublk::Device::of(device).map_or_else(no_such, asked)
        }),
        // The driver's number for a device stays the same, whoever has it.
        Method::Nbd => match nbd::Device::of(device) {
            None => no_such(),
            Some(d) if alive => d.whose(pid, state.thread),
            Some(d) if d.is_left(state.thread, || place.is_link_to(device)) => Whose::Ours,
            Some(_) => Whose::NotOurs,
        },
    }
}

/// Whose a disk is by the kernel's number for it, which it gives once in each run of the machine; none: that says nothing.
fn by_number(had: &Had<'_>) -> Option<Whose> {
    same(had.diskseq?, diskseq(had.device)?, had.home.is_of_this_boot())
}

fn same(then: u64, now: u64, this_boot: bool) -> Option<Whose> {
    match then == now {
        true => this_boot.then_some(Whose::Ours),
        false => Some(Whose::NotOurs),
    }
}

fn whose_loop(place: &Place, had: &Had<'_>) -> Whose {
    let backing = match loopdev::backing(had.device) {
        Ok(Some(b)) => b,
        Ok(None) => return Whose::NotOurs,
        Err(e) => return Whose::Unknown(format!("the kernel does not say what its file is: {e}")),
    };
    // Whatever the path of its file is from here: a directory has several, and a container another root.
    by_number(had).unwrap_or_else(|| by_file(place, had, &backing))
}

/// Whose a loop device is by the name of its file.
fn by_file(place: &Place, had: &Had<'_>, backing: &str) -> Whose {
    let name = fuse::file_name(had.mark);
    let unknown = || Whose::Unknown(format!("the kernel says that its file is {backing}"));
    if had.mark.is_some() {
        return match backing.strip_suffix(&name).is_some_and(|dir| dir.ends_with('/')) {
            true => Whose::Ours,
            false if had.lives => unknown(),
            false => Whose::NotOurs,
        };
    }
    let file = place.disk().join(name);
    if Path::new(backing) == file {
        return Whose::Ours;
    }
    match loopdev::is_named(had.device, &file) {
        Ok(false) if !had.lives => Whose::NotOurs,
        // Its process has ended, and with that the mount namespace of its file.
        Ok(true) if !had.lives && backing == LOST => Whose::Ours,
        _ => unknown(),
    }
}

/// Whether a loop device has the file of the attachment that this process makes or has.
pub(crate) fn is_own(place: &Place, device: &Path) -> bool {
    place.maker().is_some_and(|m| whose_made(place, &m, device, true) == Whose::Ours)
}

/// Whose the loop device is that an attachment was about to get when its process ended.
pub(crate) fn is_left(place: &Place, maker: &Maker, device: &Path) -> bool {
    whose_made(place, maker, device, false) == Whose::Ours
}

fn whose_made(place: &Place, maker: &Maker, device: &Path, lives: bool) -> Whose {
    let (home, mark) = (maker.process.home, maker.mark.as_deref());
    if home.is_of_another_boot() {
        return Whose::NotOurs;
    }
    whose_loop(place, &Had { device, home, diskseq: maker.diskseq, mark, lives })
}

/// Whether the attachment in this directory, whose process has ended, has that disk yet, and somebody uses it.
pub(crate) fn is_used(dir: &Path, process: Process, device: &Path) -> bool {
    let place = dir.parent().zip(dir.file_name().and_then(|n| n.to_str()));
    let Some(place) = place.and_then(|(run, name)| Place::of(run, name).ok()) else { return false };
    let state = place.read().filter(|s| s.process() == process && s.device == device);
    state.is_some_and(|s| whose(&place, &s) != Whose::NotOurs) && is_open(device)
}

/// Whether somebody has a disk for themselves, as who has mounted it.
pub(crate) fn is_taken(device: &Path) -> bool {
    let flags = libc::O_EXCL | libc::O_CLOEXEC;
    let mine = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(device);
    mine.is_err_and(|e| e.raw_os_error() == Some(libc::EBUSY))
}

/// Whether somebody has mounted a disk, or has it open for longer than who only looks what it is.
pub(crate) fn is_open(device: &Path) -> bool {
    // Who has it for themselves counts as one, whoever that is.
    let taken = || is_taken(device).then_some(0);
    let who = || users::opened(device, 0).into_iter().map(|o| o.pid).chain(taken()).collect();
    !users::lasting(device).is_empty() || lasts(who)
}

/// Whether somebody is among those that have a disk open at each of some looks, with pauses; false as soon as nobody has it.
fn lasts(mut who: impl FnMut() -> Vec<u32>) -> bool {
    let mut lookers = users::Lookers::new(LOOKS);
    loop {
        match who() {
            now if now.is_empty() => return false,
            now if lookers.keep(&now) => return true,
            _ => std::thread::sleep(STEP),
        }
    }
}

/// Whether the disk of an attachment has certainly gone, or is another's: nothing of it is lost with its process.
pub(crate) fn has_gone(place: &Place, state: &State) -> bool {
    let listed =
        |d: &PathBuf| Path::new("/sys/block").join(d.file_name().unwrap_or_default()).exists();
    let no_disk = state.method == Method::Ublk && sys::shows_disks() && !listed(&state.device);
    no_disk || whose(place, state) == Whose::NotOurs
}

/// Whether a disk looks like that of some attachment, of whatever run directory. What is not known does.
pub(crate) fn looks_attached(device: &Path) -> bool {
    if let Some(d) = nbd::Device::of(device) {
        return d.looks_attached();
    }
    if let Some(d) = ublk::Device::of(device) {
        return d.looks_attached();
    }
    let marked = |b: &str| b.rsplit_once('/').is_some_and(|(_, name)| is_attached(name));
    let file = |b: &str| b == LOST || b.ends_with("/disk/volume") || marked(b);
    loopdev::backing(device).map_or(true, |b| b.is_some_and(|b| file(&b)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::Scratch;

    #[test]
    fn who_looks_for_a_moment_does_not_use_a_disk() {
        let mut looks = [vec![1], vec![1], vec![]].into_iter();
        assert!(!lasts(|| looks.next().unwrap()));
        assert!(lasts(|| vec![1]));
        // Another one at each look, of whom one is the last.
        let mut looks = (0..2 * LOOKS).map(|n| vec![n]);
        assert!(!lasts(|| looks.next().unwrap_or_default()));
    }

    /// Two containers may have one path each, and one directory two.
    #[test]
    fn a_loop_device_is_known_by_number_then_by_its_mark() {
        assert_eq!(same(7, 8, true), Some(Whose::NotOurs));
        assert_eq!(same(7, 8, false), Some(Whose::NotOurs));
        assert_eq!(same(7, 7, true), Some(Whose::Ours));
        assert_eq!(same(7, 7, false), None, "numbers begin anew with the machine");
        let dir = Scratch::new("marks");
        let place = dir.place("a");
        let device = Path::new("/dev/loop987654");
        let had = |mark, lives| Had { device, home: Home::here(), diskseq: None, mark, lives };
        let mine = Some("00000000000000aa");
        assert!(is_attached(&fuse::file_name(mine)) && !is_attached(&fuse::file_name(None)));
        let path = |name: &str| place.disk().join(name).display().to_string();
        let by = |b: &str, lives| by_file(&place, &had(mine, lives), b);
        for b in [path("volume-00000000000000aa"), "/volume-00000000000000aa".into()] {
            assert_eq!((by(&b, true), by(&b, false)), (Whose::Ours, Whose::Ours), "{b}");
        }
        // Another container's, by the very path.
        for b in
            [path("volume-00000000000000ab"), path("volume"), "/x-volume-00000000000000aa".into()]
        {
            assert!(matches!(by(&b, true), Whose::Unknown(_)), "{b}");
            assert_eq!(by(&b, false), Whose::NotOurs, "{b}");
        }
        // An older version's.
        assert_eq!(by_file(&place, &had(None, true), &path("volume")), Whose::Ours);
        assert!(matches!(by_file(&place, &had(None, true), "/x/volume"), Whose::Unknown(_)));
    }

    #[test]
    fn another_run_of_the_machine_has_other_disks() {
        let dir = Scratch::new("boots");
        let place = dir.place("a");
        let mut state = crate::state::tests::state("a", Method::Nbd, "/dev/none");
        assert!(matches!(whose(&place, &state), Whose::Unknown(_)));
        state.home.boot = Some(1);
        assert_eq!(whose(&place, &state), Whose::NotOurs);
    }
}
