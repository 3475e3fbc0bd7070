//! What libblkid (util-linux) knows of a device, loaded when it is first wanted and where it is installed.

use super::{Found, Held};
use std::ffi::{CStr, CString, c_char, c_int, c_longlong, c_void};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

type Probe = *mut c_void;

type New = unsafe extern "C" fn() -> Probe;
type Free = unsafe extern "C" fn(Probe);
type SetDevice = unsafe extern "C" fn(Probe, c_int, c_longlong, c_longlong) -> c_int;
type Set = unsafe extern "C" fn(Probe, c_int) -> c_int;
type Next = unsafe extern "C" fn(Probe) -> c_int;
type Known = unsafe extern "C" fn(*const c_char) -> c_int;
type Value = unsafe extern "C" fn(Probe, *const c_char, *mut *const c_char, *mut usize) -> c_int;

/// The functions of the library that are used, with their types as in `blkid.h`.
struct Api {
    new: New,
    free: Free,
    set_device: SetDevice,
    superblocks: Set,
    superblocks_flags: Set,
    partitions: Set,
    next: Next,
    value: Value,
    known: [Known; 2],
}

/// `BLKID_SUBLKS_LABEL`, `BLKID_SUBLKS_TYPE`.
const WANTED: c_int = (1 << 1) | (1 << 5);

/// Other words for what the table of signatures knows too.
const WORDS: &[(&str, &str)] = &[
    ("LVM2_member", "lvm2"),
    ("linux_raid_member", "md"),
    ("crypto_LUKS", "luks"),
    ("zfs_member", "zfs"),
    ("vfat", "fat"),
    ("dos", "mbr"),
    ("swsuspend", "swap"),
    ("ceph_bluestore", "bluestore"),
    ("BitLocker", "bitlocker"),
    ("ddf_raid_member", "ddf"),
    ("isw_raid_member", "imsm"),
    ("DM_integrity", "integrity"),
    ("DM_verity_hash", "verity"),
];

fn load() -> Option<Api> {
    // SAFETY: loads a system library, whose initialisers have no preconditions; the name ends in 0.
    let lib = unsafe { libc::dlopen(c"libblkid.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if lib.is_null() {
        return None;
    }
    let find = |name: &CStr| {
        // SAFETY: the library is open, and stays so for the rest of the process; the name ends in 0.
        let f = unsafe { libc::dlsym(lib, name.as_ptr()) };
        (!f.is_null()).then_some(f)
    };
    macro_rules! function {
        ($type:ty, $name:literal) => {
            // SAFETY: a function of that name has had this type since version 2.17 of util-linux; not null.
            unsafe { std::mem::transmute::<*mut c_void, $type>(find($name)?) }
        };
    }
    Some(Api {
        new: function!(New, c"blkid_new_probe"),
        free: function!(Free, c"blkid_free_probe"),
        set_device: function!(SetDevice, c"blkid_probe_set_device"),
        superblocks: function!(Set, c"blkid_probe_enable_superblocks"),
        superblocks_flags: function!(Set, c"blkid_probe_set_superblocks_flags"),
        partitions: function!(Set, c"blkid_probe_enable_partitions"),
        next: function!(Next, c"blkid_do_probe"),
        value: function!(Value, c"blkid_probe_lookup_value"),
        known: [function!(Known, c"blkid_known_fstype"), function!(Known, c"blkid_known_pttype")],
    })
}

fn api() -> Option<&'static Api> {
    static API: OnceLock<Option<Api>> = OnceLock::new();
    API.get_or_init(load).as_ref()
}

/// A probe that ends with its scope.
struct Probing(&'static Api, Probe);

impl Drop for Probing {
    fn drop(&mut self) {
        // SAFETY: made by blkid_new_probe, used by nobody else.
        unsafe { (self.0.free)(self.1) }
    }
}

impl Probing {
    fn value(&self, name: &CStr) -> Option<String> {
        let (mut data, mut len) = (std::ptr::null(), 0usize);
        // SAFETY: the probe is valid, the name ends in 0, both results are locals of the right types.
        let r = unsafe { (self.0.value)(self.1, name.as_ptr(), &mut data, &mut len) };
        if r != 0 || data.is_null() {
            return None;
        }
        // SAFETY: on success the library gives `len` bytes at `data`, valid until the probe goes on.
        let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) };
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(len);
        let text = String::from_utf8_lossy(&bytes[..end]);
        Some(text.chars().filter(|c| !c.is_control()).collect())
    }
}

/// Whether the library calls something so that it may find.
pub(super) fn knows(word: &str) -> bool {
    let (Some(api), Ok(word)) = (api(), CString::new(word)) else { return false };
    // SAFETY: the word ends in 0; the functions only compare it.
    api.known.iter().any(|known| unsafe { known(word.as_ptr()) } != 0)
}

/// What the library finds in so many bytes from an offset; none where it is not installed, or does not work.
pub(super) fn probe(held: &Held, (from, len): (u64, u64)) -> Option<Vec<Found>> {
    let api = api()?;
    // Another description of the same file: the library reads small pieces, by way of the page cache.
    let file = File::open(format!("/proc/self/fd/{}", held.file().as_raw_fd())).ok()?;
    // SAFETY: no preconditions.
    let probe = Probing(api, unsafe { (api.new)() });
    if probe.1.is_null() {
        std::mem::forget(probe);
        return None;
    }
    let p = probe.1;
    let (from, len) = (c_longlong::try_from(from).ok()?, c_longlong::try_from(len).ok()?);
    // SAFETY: the probe is valid; the descriptor stays open until the probe is gone.
    let ready = unsafe {
        (api.set_device)(p, file.as_raw_fd(), from, len) == 0
            && (api.superblocks)(p, 1) == 0
            && (api.superblocks_flags)(p, WANTED) == 0
            && (api.partitions)(p, 1) == 0
    };
    if !ready {
        return None;
    }
    let mut found = Vec::new();
    // 0: something was found, and there may be more. A bound, should the library repeat itself.
    for _ in 0..64 {
        // SAFETY: the probe is valid.
        if unsafe { (api.next)(p) } != 0 {
            break;
        }
        let kind = probe.value(c"TYPE").or_else(|| probe.value(c"PTTYPE"));
        let Some(kind) = kind.filter(|k| !k.is_empty()) else { continue };
        let word = WORDS.iter().find(|(theirs, _)| *theirs == kind).map(|(_, ours)| *ours);
        let kind = word.map_or(kind, str::to_owned);
        found.push(Found { kind, about: probe.value(c"LABEL").unwrap_or_default() });
    }
    drop(probe);
    drop(file);
    Some(found)
}
