//! The kernel's driver for block devices in user space (ublk, linux/ublk_cmd.h): a hardware queue for each reactor, whose
//! requests come and go as commands of the reactor's own ring.
//!
//! Every tag of a queue has a buffer and a task. The task hands the result of one request over and waits for the next in
//! one command; the driver copies the data.

use crate::disk::{Disk, Errno, Geometry, MAX_IO, Request, for_the_next};
use crate::error::{Error, Kind};
use crate::sys::{self, Mapping};
use crate::whose::Whose;
use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use weir_mem::Slice;
use weir_reactor::spawn_task;
use weir_uring::Ring;

const CONTROL: &str = "/dev/ublk-control";
/// Requests of a queue under way at once.
const DEPTH: u16 = 128;
/// Longest discard and write of zeroes, in sectors: 1 GiB.
const SECTORS: u32 = 1 << 21;
/// How long udev or the kernel may take to make a device's file.
const APPEAR: Duration = Duration::from_secs(10);

// Control commands: _IOWR('u', number, struct ublksrv_ctrl_cmd).
const ADD: u32 = 0xc020_7504;
/// _IOR('u', 2, struct ublksrv_ctrl_cmd)
const GET_INFO: u32 = 0x8020_7502;
const DELETE: u32 = 0xc020_7505;
const START: u32 = 0xc020_7506;
const STOP: u32 = 0xc020_7507;
const SET_PARAMS: u32 = 0xc020_7508;
const UPDATE_SIZE: u32 = 0xc020_7515;
// Commands of I/O: _IOWR('u', number, struct ublksrv_io_cmd).
const FETCH: u32 = 0xc010_7520;
const COMMIT_AND_FETCH: u32 = 0xc010_7521;
/// `struct ublksrv_ctrl_dev_info`, and where it has the device's state, its number and its process.
const INFO: usize = 64;
const STATE: usize = 4;
const NUMBER: usize = 12;
const PROCESS: usize = 16;
/// What the driver keeps for the process that serves the device, and does not look at: the attachment's mark.
const MARK: usize = 32;
/// There is no disk: not yet, or no more.
const DEAD: u16 = 0;
const DEVICES: &str = "/sys/class/ublk-char";
/// Commands are encoded as ioctls.
const F_CMD_IOCTL_ENCODE: u64 = 1 << 6;
/// Bytes of a descriptor, and between the queues' descriptors.
const DESCRIPTOR: usize = 24;
const QUEUE_STRIDE: usize = 4096 * DESCRIPTOR;

/// Whether this machine can do it.
///
/// # Errors
/// What is missing.
pub fn probe() -> Result<(), Error> {
    if Path::new(CONTROL).exists() {
        return Ok(());
    }
    Err(Error::new(
        Kind::Unsupported,
        "this kernel has no ublk",
        format!("there is no {CONTROL}"),
        "load it (`modprobe ublk_drv`, Linux 6.0 or newer), or use --method fuse",
    ))
}

fn control() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(CONTROL)
}

/// A device of the driver's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device {
    /// Its number.
    pub number: u32,
}

impl Device {
    /// The device whose disk this is.
    pub(crate) fn of(disk: &Path) -> Option<Device> {
        let name = disk.file_name()?.to_str()?;
        Some(Device { number: name.strip_prefix("ublkb")?.parse().ok()? })
    }

    /// Its disk, which may be there or not.
    pub(crate) fn disk(self) -> PathBuf {
        PathBuf::from(format!("/dev/ublkb{}", self.number))
    }

    /// Makes a device, which nobody serves yet.
    ///
    /// # Errors
    /// What the driver said.
    pub(crate) fn add(queues: usize, g: Geometry, mark: Option<&str>) -> Result<Device, Error> {
        probe()?;
        let failed = |e: &io::Error| Error::system("the ublk driver makes no device", e);
        let control = control().map_err(|e| failed(&e))?;
        let mut info = [0u8; INFO];
        info[..2].copy_from_slice(&(queues as u16).to_ne_bytes());
        info[2..4].copy_from_slice(&DEPTH.to_ne_bytes());
        info[8..12].copy_from_slice(&(MAX_IO as u32).to_ne_bytes());
        // Any number.
        info[NUMBER..NUMBER + 4].copy_from_slice(&u32::MAX.to_ne_bytes());
        info[PROCESS..PROCESS + 4].copy_from_slice(&std::process::id().to_ne_bytes());
        info[24..32].copy_from_slice(&F_CMD_IOCTL_ENCODE.to_ne_bytes());
        info[MARK..MARK + 8].copy_from_slice(&number_of(mark).unwrap_or(0).to_ne_bytes());
        sys::ublk_control(control.as_fd(), ADD, u32::MAX, &mut info, 0).map_err(|e| failed(&e))?;
        let number = info[NUMBER..].first_chunk().map_or(0, |b| u32::from_ne_bytes(*b));
        let device = Device { number };
        let set = sys::ublk_control(control.as_fd(), SET_PARAMS, number, &mut params(g), 0);
        if let Err(e) = set {
            device.delete();
            return Err(failed(&e));
        }
        Ok(device)
    }

    /// Its character device, by which it is served.
    pub(crate) fn open(self) -> Result<File, Error> {
        let path = PathBuf::from(format!("/dev/ublkc{}", self.number));
        appear(&path)?;
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|e| Error::system(format!("{} cannot be opened", path.display()), &e))
    }

    /// Lets the disk appear. Its queues are being served.
    pub(crate) fn start(self) -> Result<PathBuf, Error> {
        let failed = |e: &io::Error| Error::system("the ublk driver does not start the disk", e);
        let control = control().map_err(|e| failed(&e))?;
        let pid = u64::from(std::process::id());
        sys::ublk_control(control.as_fd(), START, self.number, &mut [], pid)
            .map_err(|e| failed(&e))?;
        let disk = self.disk();
        appear(&disk)?;
        Ok(disk)
    }

    /// Takes the disk away; requests under way fail.
    pub(crate) fn stop(self) -> io::Result<()> {
        sys::ublk_control(control()?.as_fd(), STOP, self.number, &mut [], 0).map(drop)
    }

    /// Ends the device. Nobody has its character device open any more.
    pub(crate) fn delete(self) {
        if let Ok(c) = control() {
            let _ = sys::ublk_control(c.as_fd(), DELETE, self.number, &mut [], 0);
        }
    }

    fn info(self) -> io::Result<[u8; INFO]> {
        let mut info = [0; INFO];
        sys::ublk_control(control()?.as_fd(), GET_INFO, self.number, &mut info, 0)?;
        Ok(info)
    }

    /// Whether that process serves it, or whoever did has ended; by the mark where there is one.
    pub(crate) fn is_of(self, pid: u32, mark: Option<&str>) -> bool {
        self.info().is_ok_and(|i| whose_is(&i, pid, false, mark) == Whose::Ours)
    }

    /// Whether it is that process's, or has this mark.
    pub(crate) fn whose(self, pid: u32, alive: bool, mark: Option<&str>) -> Whose {
        let unknown = |e: &io::Error| Whose::Unknown(format!("{CONTROL} cannot be asked: {e}"));
        let control = match control() {
            Ok(c) => c,
            // With the driver gone, so is the device; but that is not enough to end a process.
            Err(_) if !alive && self.is_missing() => return Whose::NotOurs,
            Err(e) => return unknown(&e),
        };
        let mut info = [0; INFO];
        match sys::ublk_control(control.as_fd(), GET_INFO, self.number, &mut info, 0) {
            Ok(_) => whose_is(&info, pid, alive, mark),
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => Whose::NotOurs,
            // The same in the words of an older driver.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) && self.is_missing() => Whose::NotOurs,
            Err(e) => unknown(&e),
        }
    }

    /// Whether it looks like the disk of some attachment, also of one whose process is not to be seen.
    pub(crate) fn looks_attached(self) -> bool {
        let Some(pid) = self.info().ok().as_ref().and_then(process) else { return true };
        let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return true };
        threads.flatten().any(|t| {
            let name = std::fs::read_to_string(t.path().join("comm"));
            name.is_ok_and(|n| n.starts_with(crate::workers::THREAD))
        })
    }

    fn is_missing(self) -> bool {
        sys::shows_disks() && !Path::new(DEVICES).join(format!("ublkc{}", self.number)).exists()
    }

    /// Devices that a process of this pid namespace made, which was killed before it served them. Where it had a mark that
    /// counts: by its number it may be a process of another container.
    pub(crate) fn left_by(pid: u32, mark: Option<&str>) -> Vec<Device> {
        if mark.is_none() && Path::new(&format!("/proc/{pid}")).exists() {
            return Vec::new();
        }
        let names = std::fs::read_dir(DEVICES).into_iter().flatten().flatten();
        let number = |e: std::fs::DirEntry| {
            e.file_name().to_str()?.strip_prefix("ublkc")?.parse::<u32>().ok()
        };
        let all = names.filter_map(number).map(|number| Device { number });
        let is = |i: &[u8; INFO]| match number_of(mark) {
            Some(mark) => mark_in(i) == mark,
            None => process(i) == Some(pid),
        };
        all.filter(|d| d.info().is_ok_and(|i| is(&i))).collect()
    }

    /// Has the disk take a new length over.
    pub(crate) fn resize(self, len: u64) -> io::Result<()> {
        let done =
            sys::ublk_control(control()?.as_fd(), UPDATE_SIZE, self.number, &mut [], len / 512);
        match done {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL)) => {
                let why = "this kernel's ublk driver cannot change a size (Linux 6.16 can)";
                Err(io::Error::other(why))
            }
            r => r.map(drop),
        }
    }
}

/// The process that a device is for; none: it has ended.
fn process(info: &[u8; INFO]) -> Option<u32> {
    let pid = info[PROCESS..].first_chunk().map_or(-1, |b| i32::from_ne_bytes(*b));
    u32::try_from(pid).ok()
}

fn number_of(mark: Option<&str>) -> Option<u64> {
    u64::from_str_radix(mark?, 16).ok()
}

fn mark_in(info: &[u8; INFO]) -> u64 {
    info[MARK..].first_chunk().map_or(0, |b| u64::from_ne_bytes(*b))
}

/// Whose a device is: that with the mark. Where there is none, as of an older version, that process's, also when it is nobody's
/// any more.
fn whose_is(info: &[u8; INFO], pid: u32, alive: bool, mark: Option<&str>) -> Whose {
    if let Some(mark) = number_of(mark) {
        return if mark_in(info) == mark { Whose::Ours } else { Whose::NotOurs };
    }
    let state = info[STATE..].first_chunk().map_or(u16::MAX, |b| u16::from_ne_bytes(*b));
    match process(info) {
        Some(p) if p == pid => Whose::Ours,
        None if state == DEAD => Whose::Ours,
        None if alive => Whose::Unknown("the driver says that its process has ended".into()),
        // Another's, which may come back.
        _ => Whose::NotOurs,
    }
}

/// Waits for a device's file.
fn appear(path: &Path) -> Result<(), Error> {
    let step = Duration::from_millis(10);
    for _ in 0..APPEAR.as_millis() / step.as_millis() {
        if path.exists() {
            return Ok(());
        }
        std::thread::sleep(step);
    }
    let message = format!("{} does not appear", path.display());
    let why =
        format!("the driver has made the device, and nobody its file in {} s", APPEAR.as_secs());
    Err(Error::new(Kind::Failed, message, why, "/dev needs devtmpfs or udev"))
}

/// `struct ublk_params`: what kind of disk it is.
fn params(g: Geometry) -> [u8; 60] {
    const BASIC: u32 = 1;
    const DISCARD: u32 = 2;
    const READ_ONLY: u32 = 1;
    const VOLATILE_CACHE: u32 = 1 << 2;
    const FUA: u32 = 1 << 3;
    let attributes = VOLATILE_CACHE | FUA | if g.read_only { READ_ONLY } else { 0 };
    let shift = g.block_size.trailing_zeros() as u8;
    let mut p = [0u8; 60];
    let mut put = |at: usize, b: &[u8]| p[at..at + b.len()].copy_from_slice(b);
    put(0, &60u32.to_ne_bytes());
    put(4, &(BASIC | DISCARD).to_ne_bytes());
    put(8, &attributes.to_ne_bytes());
    // Logical and physical block, best and least size of I/O.
    put(12, &[shift, shift.max(12), shift.max(12), shift.max(12)]);
    put(16, &((MAX_IO / 512) as u32).to_ne_bytes());
    put(24, &(g.len / 512).to_ne_bytes());
    put(44, &g.block_size.max(4096).to_ne_bytes());
    let discard = if g.thin { SECTORS } else { 0 };
    put(48, &discard.to_ne_bytes());
    put(52, &SECTORS.to_ne_bytes());
    put(56, &1u16.to_ne_bytes());
    p
}

/// One reactor's queue: the driver's descriptors. Each tag's task has a buffer.
pub struct Queue<D> {
    connection: Rc<OwnedFd>,
    ring: Ring,
    number: u16,
    descriptors: Mapping,
    disk: Rc<D>,
    /// Called once, when the kernel has ended the queue.
    ended: RefCell<Option<Box<dyn FnOnce()>>>,
}

impl<D: Disk> Queue<D> {
    /// Serves queue `number` of the device on the present reactor, until the driver ends it, and calls `ended` then.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn start(
        ring: &Ring,
        connection: OwnedFd,
        number: u16,
        disk: Rc<D>,
        ended: impl FnOnce() + 'static,
    ) -> io::Result<()> {
        let len = (usize::from(DEPTH) * DESCRIPTOR).next_multiple_of(4096);
        let at = usize::from(number) * QUEUE_STRIDE;
        let queue = Rc::new(Queue {
            descriptors: Mapping::new(connection.as_fd(), at, len)?,
            connection: Rc::new(connection),
            ring: ring.clone(),
            number,
            disk,
            ended: RefCell::new(Some(Box::new(ended))),
        });
        for tag in 0..DEPTH {
            spawn_task(queue.clone().serve(tag));
        }
        Ok(())
    }

    /// Serves the requests of one tag, one after the other.
    async fn serve(self: Rc<Self>, tag: u16) {
        let mut buf = Slice::heap(MAX_IO);
        let (mut op, mut result) = (FETCH, 0);
        loop {
            let (ring, fd) = (&self.ring, &self.connection);
            let came = sys::ublk_io(ring, fd, op, self.number, tag, result, &buf).await;
            if came != 0 {
                if came != -libc::ENODEV {
                    tracing::error!(queue = self.number, tag, came, "the ublk driver ends a tag");
                }
                break;
            }
            let d: [u8; DESCRIPTOR] = self.descriptors.read(usize::from(tag) * DESCRIPTOR);
            result = match request(&d, &buf) {
                Ok((r, len)) => match self.disk.run(&r).await {
                    Ok(()) => len,
                    Err(e) => {
                        drop(r);
                        buf = for_the_next(buf);
                        -e.0
                    }
                },
                Err(e) => -e.0,
            };
            op = COMMIT_AND_FETCH;
        }
        let ended = self.ended.borrow_mut().take();
        if let Some(f) = ended {
            f();
        }
    }
}

/// What a descriptor (`struct ublksrv_io_desc`) asks for, and the result of success.
fn request(d: &[u8; DESCRIPTOR], buf: &Slice) -> Result<(Request, i32), Errno> {
    const FUA: u32 = 1 << 13;
    const NOUNMAP: u32 = 1 << 15;
    let u32_at = |at: usize| d[at..].first_chunk().map_or(0, |b| u32::from_ne_bytes(*b));
    let flags = u32_at(0);
    let len = u64::from(u32_at(4)) * 512;
    let start = d[8..].first_chunk().map_or(0, |b| u64::from_ne_bytes(*b));
    if flags & 0xff == 2 {
        // Its address means nothing.
        return Ok((Request::Flush, 0));
    }
    let at = start.checked_mul(512).ok_or(Errno(libc::EINVAL))?;
    let data = || match usize::try_from(len) {
        Ok(n) if n <= buf.len() => Ok((buf.sub(0, n), n as i32)),
        _ => Err(Errno(libc::EINVAL)),
    };
    Ok(match flags & 0xff {
        0 => {
            let (buf, n) = data()?;
            (Request::Read { at, buf }, n)
        }
        1 => {
            let (buf, n) = data()?;
            (Request::Write { at, buf, fua: flags & FUA != 0 }, n)
        }
        3 => (Request::Discard { at, len }, 0),
        5 => (Request::WriteZeroes { at, len, unmap: flags & NOUNMAP == 0 }, 0),
        _ => return Err(Errno(libc::EOPNOTSUPP)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(op: u32, sectors: u32, start: u64) -> [u8; DESCRIPTOR] {
        let mut d = [0; DESCRIPTOR];
        d[..4].copy_from_slice(&op.to_ne_bytes());
        d[4..8].copy_from_slice(&sectors.to_ne_bytes());
        d[8..16].copy_from_slice(&start.to_ne_bytes());
        d
    }

    #[test]
    fn descriptors_are_requests() {
        let buf = Slice::heap(8192);
        let of = |d| request(&d, &buf).map(|(r, n)| (format!("{r:?}"), r.range(), n));
        let (text, range, n) = of(descriptor(1 | 1 << 13, 8, 16)).unwrap();
        assert!(text.contains("fua: true") && range == (8192, 4096) && n == 4096, "{text}");
        assert_eq!(of(descriptor(2, 0, u64::MAX)).unwrap().2, 0, "a flush has no address");
        let (text, range, _) = of(descriptor(5, 1 << 20, 8)).unwrap();
        assert!(text.contains("unmap: true") && range == (4096, 512 << 20), "{text}");
        let long = of(descriptor(0, 17, 0)).unwrap_err();
        assert_eq!(long, Errno(libc::EINVAL), "longer than the buffer");
        assert!(of(descriptor(0, 1, u64::MAX)).is_err() && of(descriptor(4, 1, 0)).is_err());
    }

    #[test]
    fn a_device_is_its_process_s_or_nobody_s() {
        let info = |state: u16, pid: i32| {
            let mut i = [0; INFO];
            i[STATE..STATE + 2].copy_from_slice(&state.to_ne_bytes());
            i[PROCESS..PROCESS + 4].copy_from_slice(&pid.to_ne_bytes());
            i
        };
        let of = |state, pid| whose_is(&info(state, pid), 7, true, None);
        assert!([of(1, 7), of(DEAD, 7), of(DEAD, -1)].iter().all(|w| *w == Whose::Ours));
        assert!([of(1, 8), of(DEAD, 8)].iter().all(|w| *w == Whose::NotOurs), "another's");
        assert!(matches!(of(2, -1), Whose::Unknown(_)), "of two that is one too many");
        let left = whose_is(&info(2, -1), 7, false, None);
        assert_eq!(left, Whose::NotOurs, "its process may come back");
        // By its mark it is known whatever the number of its process, which another container has, too.
        let marked = |mark: u64, pid| {
            let mut i = info(DEAD, pid);
            i[MARK..MARK + 8].copy_from_slice(&mark.to_ne_bytes());
            whose_is(&i, 7, true, Some("00000000000000aa"))
        };
        assert_eq!((marked(0xaa, -1), marked(0xaa, 9)), (Whose::Ours, Whose::Ours));
        assert_eq!((marked(0xab, 7), marked(0, -1)), (Whose::NotOurs, Whose::NotOurs));
    }

    #[test]
    fn disks_are_known_by_name() {
        assert_eq!(Device::of(Path::new("/dev/ublkb12")), Some(Device { number: 12 }));
        assert_eq!(Device::of(Path::new("/dev/loop12")), None);
    }
}
