//! Loop devices, and what they are made of. No process has that open for them, and they do not count as its holders.

use super::Identity;
use super::extent::Extent;
use super::users::first_line;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// `LOOP_GET_STATUS64` of linux/loop.h.
const GET_STATUS64: u64 = 0x4c05;
/// For how long one is waited for. It asks the file system of its file, and whoever opens it waits for who has just made it.
const GLANCE: Duration = Duration::from_secs(2);

/// The begin of `struct loop_info64`: what it is made of, as stat(2) has it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    /// Bytes of it; 0: all behind the offset.
    limit: u64,
    rest: [u8; 192],
}

/// What a loop device may be made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Below<'a> {
    /// A block device of one of these numbers (`st_rdev`).
    Device(&'a [u64]),
    /// A file: number of its file system, number in it.
    File(u64, u64),
}

impl Below<'_> {
    fn is(self, info: &Info) -> bool {
        match self {
            Below::Device(numbers) => info.rdevice != 0 && numbers.contains(&info.rdevice),
            Below::File(device, inode) => (info.device, info.inode) == (device, inode),
        }
    }
}

impl Info {
    /// The bytes that it shows.
    pub(super) fn extent(&self) -> Extent {
        Extent::all(self.identity()).piece(self.offset, self.limit)
    }

    /// What it is made of.
    pub(super) fn identity(&self) -> Identity {
        match self.rdevice {
            0 => Identity::Inode(self.device, self.inode),
            number => Identity::Block(number),
        }
    }
}

/// What a loop device says that it is made of; `None`: it is made of nothing, or cannot be asked.
///
/// # Errors
/// It does not answer.
pub(super) fn made_from(node: &Path) -> Result<Option<Info>, ()> {
    let (mut told, silent) = told(vec![node.to_owned()], info);
    match silent.is_empty() {
        true => Ok(told.pop().map(|(_, info)| info)),
        false => Err(()),
    }
}

/// Those that have not answered: a thread waits for each.
static HUNG: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn hung<R>(f: impl FnOnce(&mut BTreeSet<PathBuf>) -> R) -> R {
    f(&mut HUNG.lock().unwrap_or_else(PoisonError::into_inner))
}

/// What the name of a loop device's file says.
pub(super) enum Name {
    /// It is what is asked about.
    Same,
    /// It is on a file system that has nothing of that, and may not answer.
    Elsewhere,
    /// It is something else by now, or leads nowhere from here: the file may have been renamed, or is in a container.
    Other,
}

/// Who is made of `below`, in words: the loop device that says so. One that does not answer may be. One that cannot be asked, or may
/// not, is known by its file's name only, which may be of another container.
pub(super) fn made_of(below: Below<'_>, named: impl Fn(&Path) -> Name) -> Option<String> {
    let Told { says, named, silent } = told_of(named);
    let found = says.iter().find(|(_, info)| below.is(info)).map(|(node, _)| node);
    let is_told = |node: &&PathBuf| says.iter().any(|(n, _)| n == *node);
    let found = found.or_else(|| named.iter().find(|node| !is_told(node)));
    let unknown = || {
        let node = silent.first()?.display();
        Some(format!("{node} may be made of it: it does not say what it is made of"))
    };
    found.map(|node| is_made_of_it(node)).or_else(unknown)
}

/// The loop devices that are made of `below`, with what they say.
pub(super) fn all_made_of(below: Below<'_>, named: impl Fn(&Path) -> Name) -> Vec<(PathBuf, Info)> {
    let mut says = told_of(named).says;
    says.retain(|(_, info)| below.is(info));
    says
}

/// The loop devices that may be made of what is asked about, and do not say so: they do not answer, or only a name tells it.
pub(super) fn may_be_made_of(named: impl Fn(&Path) -> Name) -> Vec<PathBuf> {
    told_of(named).unclear()
}

/// What loop devices said, those that have the name of what is asked about, and those that did not answer.
struct Told {
    says: Vec<(PathBuf, Info)>,
    named: Vec<PathBuf>,
    silent: Vec<PathBuf>,
}

impl Told {
    /// Those that do not answer, and those of the name that do not say what they are made of.
    fn unclear(mut self) -> Vec<PathBuf> {
        let says = &self.says;
        self.named.retain(|node| says.iter().all(|(n, _)| n != node));
        self.named.retain(|node| !self.silent.contains(node));
        self.silent.append(&mut self.named);
        self.silent
    }
}

fn told_of(name: impl Fn(&Path) -> Name) -> Told {
    let loops = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let (mut all, mut named) = (Vec::new(), Vec::new());
    for l in loops {
        let Some(file) = first_line(l.path().join("loop/backing_file")) else { continue };
        if is_lost(Path::new(&file)) {
            continue;
        }
        let node = Path::new("/dev").join(l.file_name());
        match name(Path::new(&file)) {
            Name::Same => {
                named.push(node.clone());
                all.push(node);
            }
            Name::Elsewhere => {}
            Name::Other => all.push(node),
        }
    }
    let (says, silent) = told(all, info);
    Told { says, named, silent }
}

/// The begin of the name of the file that `weir attach` makes a loop device of.
pub const ATTACHED: &str = "volume-";

/// Whether a file has a name as `weir attach` gives one: with the attachment's mark, 16 digits.
pub fn is_attached(name: &str) -> bool {
    let is_digit = |c: u8| matches!(c, b'0'..=b'9' | b'a'..=b'f');
    let mark = name.strip_prefix(ATTACHED);
    mark.is_some_and(|mark| mark.len() == 16 && mark.bytes().all(is_digit))
}

/// Whether this is the file of an attachment whose file system is mounted nowhere any more. Nothing else is made of that; and who asks
/// its loop device has that open, which `weir detach` waits for.
fn is_lost(file: &Path) -> bool {
    let name = file.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    file.parent() == Some(Path::new("/")) && is_attached(name) && !file.exists()
}

/// Which loop device is made of a block device of this number (`st_rdev`), in words, as far as this process may see.
pub fn loop_on(number: u64) -> Option<String> {
    super::users::loop_of_device(&[number])
}

fn is_made_of_it(node: &Path) -> String {
    format!("{} is made of it", node.display())
}

/// What they say, and those that do not answer. Each of these keeps its thread, and is asked by no other.
fn told(
    mut nodes: Vec<PathBuf>,
    info: fn(&Path) -> Option<Info>,
) -> (Vec<(PathBuf, Info)>, Vec<PathBuf>) {
    let (mut told, mut silent) = (Vec::new(), Vec::new());
    nodes.retain(|n| match hung(|all| all.contains(n)) {
        true => {
            silent.push(n.clone());
            false
        }
        false => true,
    });
    while !nodes.is_empty() {
        let Some(answers) = ask(nodes.clone(), info) else {
            silent.append(&mut nodes);
            break;
        };
        while !nodes.is_empty() {
            // It either answers before it counts as hung, or sees that it does.
            let answer = answers.recv_timeout(GLANCE).or_else(|_| {
                hung(|all| {
                    answers.try_recv().inspect_err(|_| {
                        all.insert(nodes[0].clone());
                        silent.push(nodes.remove(0));
                    })
                })
            });
            let Ok((node, info)) = answer else { break };
            nodes.retain(|n| *n != node);
            told.extend(info.map(|info| (node, info)));
        }
    }
    (told, silent)
}

/// One after the other.
fn ask(
    nodes: Vec<PathBuf>,
    info: fn(&Path) -> Option<Info>,
) -> Option<Receiver<(PathBuf, Option<Info>)>> {
    let (tell, answers) = channel();
    let each = move || {
        for node in nodes {
            let info = info(&node);
            let sent = hung(|all| {
                all.remove(&node);
                tell.send((node, info)).is_ok()
            });
            if !sent {
                // Who asked goes on without this one: another thread asks the rest.
                return;
            }
        }
    };
    thread::Builder::new().name("weir-loops".into()).spawn(each).ok()?;
    Some(answers)
}

fn info(node: &Path) -> Option<Info> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    let file = File::options().read(true).custom_flags(flags).open(node).ok()?;
    let mut info = Info { device: 0, inode: 0, rdevice: 0, offset: 0, limit: 0, rest: [0; 192] };
    // SAFETY: the descriptor is open for the call; the kernel writes one `loop_info64`, 232 bytes, which `Info` is long.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), GET_STATUS64 as _, &raw mut info) };
    (done == 0).then_some(info)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn what_it_is_made_of_is_known_by_number() {
        assert_eq!(size_of::<Info>(), 232);
        let info = Info { device: 8, inode: 12, rdevice: 0, offset: 0, limit: 0, rest: [0; 192] };
        assert!(Below::File(8, 12).is(&info) && !Below::File(8, 13).is(&info));
        assert!(!Below::Device(&[0, 8]).is(&info), "that is a file");
        let part = |offset, limit| Info { offset, limit, ..info };
        let meets = |a: &Info, b: &Info| {
            let shows = |a: &Info, b: &Info| a.extent().shown(Identity::Block(7), b.extent());
            assert_eq!(shows(a, b).is_some(), shows(b, a).is_some());
            shows(a, b).is_some()
        };
        assert!(meets(&part(0, 0), &part(4096, 512)));
        assert!(meets(&part(4096, 0), &part(4000, 100)));
        assert!(!meets(&part(0, 4096), &part(4096, 0)) && meets(&part(0, 4097), &part(4096, 0)));
        assert!(!meets(&part(0, 0), &Info { inode: 13, ..part(0, 0) }), "another file");
        let info = Info { rdevice: 0x810, ..info };
        assert!(Below::Device(&[1, 0x810]).is(&info) && !Below::Device(&[8]).is(&info));
    }

    #[test]
    fn who_says_nothing_may_be_made_of_it() {
        let info = Info { device: 8, inode: 12, rdevice: 0, offset: 0, limit: 0, rest: [0; 192] };
        let all = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        let told = Told {
            says: vec![("says".into(), info), ("other".into(), Info { inode: 13, ..info })],
            named: all(&["says", "mute", "hangs"]),
            silent: all(&["hangs", "far"]),
        };
        assert_eq!(told.unclear(), all(&["hangs", "far", "mute"]));
    }

    #[test]
    fn the_file_of_an_attachment_that_is_gone_is_known_by_its_name() {
        let is = |name: &str| is_lost(Path::new(name));
        assert!(is("/volume-00000000000000aa"));
        let others =
            ["/volume", "/volume-aa", "/volume-00000000000000AA", "/volume-0000000000000000a"];
        assert!(!others.into_iter().any(is) && !is("/x/volume-00000000000000aa"));
        assert!(!is("/x-volume-00000000000000aa") && !is("/volume-00000000000000a/"));
    }

    #[test]
    fn what_does_not_answer_is_asked_once_and_the_rest_is() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        static OVER: Mutex<()> = Mutex::new(());
        fn slow(node: &Path) -> Option<Info> {
            if node.ends_with("hangs") {
                ASKED.fetch_add(1, Ordering::Relaxed);
                drop(OVER.lock());
            }
            Some(Info { device: 0, inode: 0, rdevice: 7, offset: 0, limit: 0, rest: [0; 192] })
        }
        let all = || ["a", "hangs", "b"].map(PathBuf::from).to_vec();
        let names = |(t, silent): (Vec<(PathBuf, Info)>, Vec<PathBuf>)| {
            (t.into_iter().map(|(n, _)| n).collect::<Vec<_>>(), silent)
        };
        let hangs = OVER.lock().unwrap();
        for _ in 0..2 {
            let (told, silent) = names(told(all(), slow));
            assert_eq!(
                (told, silent),
                (["a", "b"].map(PathBuf::from).to_vec(), vec!["hangs".into()])
            );
        }
        assert_eq!(ASKED.load(Ordering::Relaxed), 1);
        drop(hangs);
        // It may be asked again when it has answered.
        while hung(|all| all.contains(Path::new("hangs"))) {
            thread::yield_now();
        }
        assert_eq!(names(told(all(), slow)), (all(), Vec::new()));
    }
}
