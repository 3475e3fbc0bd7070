//! rdma-core, loaded at run time.

use crate::ffi::*;
use libc::{c_char, c_int, c_uint, c_void};
use std::ffi::{CStr, CString};
use std::io;
use std::sync::OnceLock;
use weir_fabric::FabricError;

/// The calls this crate makes, each resolved by name and symbol version.
macro_rules! calls {
    ($($lib:ident $version:literal fn $name:ident($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        pub(crate) struct Api {
            $(pub(crate) $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            /// Whether librdmacm can be trusted to list devices anew (see [`Library::forget_removed`]).
            lists_anew: bool,
        }

        impl Api {
            fn resolve(libs: &Libs) -> Result<Api, String> {
                Ok(Api {
                    $($name: {
                        let p = libs.$lib.find(stringify!($name), $version)?;
                        // SAFETY: the symbol of this name and version has this signature
                        // (infiniband/verbs.h, rdma/rdma_cma.h).
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($arg),*) $(-> $ret)?,
                            >(p)
                        }
                    },)*
                    lists_anew: libs.cm.find("rdma_resolve_addrinfo", "RDMACM_1.4").is_ok(),
                })
            }
        }
    };
}

calls! {
    verbs "IBVERBS_1.1" fn ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
    verbs "IBVERBS_1.1" fn ibv_free_device_list(*mut *mut ibv_device);
    verbs "IBVERBS_1.1" fn ibv_get_device_name(*mut ibv_device) -> *const c_char;
    verbs "IBVERBS_1.1" fn ibv_get_device_guid(*mut ibv_device) -> u64;
    verbs "IBVERBS_1.1" fn ibv_open_device(*mut ibv_device) -> *mut ibv_context;
    verbs "IBVERBS_1.1" fn ibv_close_device(*mut ibv_context) -> c_int;
    verbs "IBVERBS_1.1" fn ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    verbs "IBVERBS_1.1" fn ibv_get_async_event(*mut ibv_context, *mut ibv_async_event) -> c_int;
    verbs "IBVERBS_1.1" fn ibv_ack_async_event(*mut ibv_async_event);
    verbs "IBVERBS_1.1" fn ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
    verbs "IBVERBS_1.1" fn ibv_dealloc_pd(*mut ibv_pd) -> c_int;
    verbs "IBVERBS_1.1" fn ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    verbs "IBVERBS_1.1" fn ibv_dereg_mr(*mut ibv_mr) -> c_int;
    verbs "IBVERBS_1.0" fn ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
    verbs "IBVERBS_1.0" fn ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
    verbs "IBVERBS_1.1" fn ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    verbs "IBVERBS_1.1" fn ibv_destroy_cq(*mut ibv_cq) -> c_int;
    verbs "IBVERBS_1.1" fn ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    verbs "IBVERBS_1.1" fn ibv_ack_cq_events(*mut ibv_cq, c_uint);
    verbs "IBVERBS_1.1" fn ibv_create_srq(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    verbs "IBVERBS_1.1" fn ibv_destroy_srq(*mut ibv_srq) -> c_int;
    verbs "IBVERBS_1.1" fn ibv_create_qp(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    verbs "IBVERBS_1.1" fn ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    verbs "IBVERBS_1.1" fn ibv_destroy_qp(*mut ibv_qp) -> c_int;
    verbs "IBVERBS_1.1" fn ibv_wc_status_str(c_int) -> *const c_char;
    cm "RDMACM_1.0" fn rdma_create_event_channel() -> *mut rdma_event_channel;
    cm "RDMACM_1.0" fn rdma_destroy_event_channel(*mut rdma_event_channel);
    cm "RDMACM_1.0" fn rdma_create_id(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, c_int) -> c_int;
    cm "RDMACM_1.0" fn rdma_destroy_id(*mut rdma_cm_id) -> c_int;
    cm "RDMACM_1.0" fn rdma_bind_addr(*mut rdma_cm_id, *mut libc::sockaddr) -> c_int;
    cm "RDMACM_1.0" fn rdma_listen(*mut rdma_cm_id, c_int) -> c_int;
    cm "RDMACM_1.0" fn rdma_resolve_addr(*mut rdma_cm_id, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
    cm "RDMACM_1.0" fn rdma_resolve_route(*mut rdma_cm_id, c_int) -> c_int;
    cm "RDMACM_1.0" fn rdma_connect(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    cm "RDMACM_1.2" fn rdma_establish(*mut rdma_cm_id) -> c_int;
    cm "RDMACM_1.0" fn rdma_accept(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    cm "RDMACM_1.0" fn rdma_reject(*mut rdma_cm_id, *const c_void, u8) -> c_int;
    cm "RDMACM_1.0" fn rdma_disconnect(*mut rdma_cm_id) -> c_int;
    cm "RDMACM_1.0" fn rdma_notify(*mut rdma_cm_id, c_int) -> c_int;
    cm "RDMACM_1.0" fn rdma_migrate_id(*mut rdma_cm_id, *mut rdma_event_channel) -> c_int;
    cm "RDMACM_1.2" fn rdma_init_qp_attr(*mut rdma_cm_id, *mut ibv_qp_attr, *mut c_int) -> c_int;
    cm "RDMACM_1.0" fn rdma_get_cm_event(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
    cm "RDMACM_1.0" fn rdma_ack_cm_event(*mut rdma_cm_event) -> c_int;
    cm "RDMACM_1.0" fn rdma_event_str(c_int) -> *const c_char;
    cm "RDMACM_1.0" fn rdma_set_option(*mut rdma_cm_id, c_int, c_int, *mut c_void, usize) -> c_int;
    cm "RDMACM_1.0" fn rdma_get_devices(*mut c_int) -> *mut *mut ibv_context;
    cm "RDMACM_1.0" fn rdma_free_devices(*mut *mut ibv_context);
}

/// One shared library, never unloaded.
struct Lib {
    name: &'static str,
    handle: *mut c_void,
}

struct Libs {
    verbs: Lib,
    cm: Lib,
}

fn dl_error() -> String {
    // SAFETY: dlerror gives null or a string that lives until the next dl call of this thread.
    let p = unsafe { libc::dlerror() };
    if p.is_null() {
        return "unknown error of the dynamic linker".into();
    }
    // SAFETY: not null, see above.
    unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned()
}

impl Lib {
    fn open(name: &'static str) -> Result<Lib, String> {
        let c = CString::new(name).map_err(|e| e.to_string())?;
        // SAFETY: loads a system library, whose initialisers have no preconditions.
        let handle = unsafe { libc::dlopen(c.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() { Err(dl_error()) } else { Ok(Lib { name, handle }) }
    }

    fn find(&self, symbol: &str, version: &str) -> Result<*mut c_void, String> {
        let missing = || format!("{} has no {symbol}@{version}: rdma-core is too old", self.name);
        let (s, v) = (CString::new(symbol), CString::new(version));
        let (Ok(s), Ok(v)) = (s, v) else { return Err(missing()) };
        // SAFETY: the handle is open and both strings end in 0.
        let p = unsafe { dlvsym(self.handle, s.as_ptr(), v.as_ptr()) };
        if p.is_null() { Err(missing()) } else { Ok(p) }
    }
}

unsafe extern "C" {
    /// As dlsym, for one version of a symbol: libibverbs still carries an older interface by the same names.
    fn dlvsym(handle: *mut c_void, symbol: *const c_char, version: *const c_char) -> *mut c_void;
}

/// rdma-core in this process. Copies are the same library.
#[derive(Clone, Copy)]
pub struct Library(pub(crate) &'static Api);

/// What a device is, for messages and for choosing one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Name, as `rdma link` shows it.
    pub name: String,
    /// True for iWARP adapters (and `siw`), false for InfiniBand and RoCE (and `rxe`).
    pub iwarp: bool,
}

static LIBRARY: OnceLock<Api> = OnceLock::new();

/// Loads rdma-core, once in a process.
///
/// # Errors
/// The libraries are not installed or too old; the text names the Debian packages.
pub fn load() -> Result<Library, FabricError> {
    if let Some(api) = LIBRARY.get() {
        return Ok(Library(api));
    }
    let unavailable = |why: String| {
        FabricError::Unavailable(format!(
            "RDMA through rdma-core is not available: {why}; install the Debian packages libibverbs1, \
             librdmacm1 and ibverbs-providers"
        ))
    };
    let open =
        || Ok(Libs { verbs: Lib::open("libibverbs.so.1")?, cm: Lib::open("librdmacm.so.1")? });
    let api = open().and_then(|libs| Api::resolve(&libs)).map_err(unavailable)?;
    Ok(Library(LIBRARY.get_or_init(|| api)))
}

impl Library {
    /// The RDMA devices that rdma-core can drive just now.
    ///
    /// # Errors
    /// There are none; the text says how to get one.
    pub fn devices(&self) -> Result<Vec<DeviceInfo>, FabricError> {
        let list = DeviceList::get(self.0).map_err(|e| none(&e.to_string()))?;
        let all: Vec<_> = list.iter().map(|d| info(self.0, d)).collect();
        if all.is_empty() { Err(none("the list is empty")) } else { Ok(all) }
    }
}

impl Library {
    /// Has librdmacm close devices that are gone: it keeps them open until it lists devices the next time.
    ///
    /// Versions before 52 sort the list wrongly when they do, which can lock up the caller for ever.
    /// They are left alone; the removal of a device whose driver waits for its users (rxe, siw) then lasts
    /// until this program ends. The same holds for the system's last device, in all versions.
    pub(crate) fn forget_removed(self) {
        if !self.0.lists_anew {
            return;
        }
        let mut n = 0;
        // SAFETY: fills in one int.
        let list = unsafe { (self.0.rdma_get_devices)(&raw mut n) };
        if !list.is_null() {
            // SAFETY: made by rdma_get_devices and not freed yet.
            unsafe { (self.0.rdma_free_devices)(list) };
        }
    }
}

fn none(why: &str) -> FabricError {
    FabricError::Unavailable(format!(
        "rdma-core finds no RDMA device ({why}): its drivers are in the Debian package ibverbs-providers, \
         the kernel needs ib_uverbs and rdma_ucm (modprobe -a ib_uverbs rdma_ucm), and a software device is \
         made by `rdma link add rxe0 type rxe netdev eth0` (package iproute2)"
    ))
}

/// Name and kind of a device.
pub(crate) fn info(api: &Api, device: *mut ibv_device) -> DeviceInfo {
    // SAFETY: the caller's device is alive: on a list that was not freed, or of an open context.
    let (name, transport) =
        unsafe { (CStr::from_ptr((api.ibv_get_device_name)(device)), (*device).transport_type) };
    DeviceInfo {
        name: name.to_string_lossy().into_owned(),
        iwarp: transport == IBV_TRANSPORT_IWARP,
    }
}

/// rdma-core's list of devices; a device on it stays good as long as the list or an open context of it.
pub(crate) struct DeviceList {
    api: &'static Api,
    list: *mut *mut ibv_device,
    len: usize,
}

impl DeviceList {
    pub(crate) fn get(api: &'static Api) -> io::Result<DeviceList> {
        let mut n = 0;
        // SAFETY: fills in one int.
        let list = unsafe { (api.ibv_get_device_list)(&raw mut n) };
        if list.is_null() {
            return Err(io::Error::last_os_error());
        }
        Ok(DeviceList { api, list, len: usize::try_from(n).unwrap_or(0) })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = *mut ibv_device> + '_ {
        // SAFETY: the list has `len` entries until it is freed.
        (0..self.len).map(|i| unsafe { *self.list.add(i) })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: made by ibv_get_device_list and not freed yet.
        unsafe { (self.api.ibv_free_device_list)(self.list) };
    }
}

/// A status or errno of rdma-core: 0, an errno, its negative, or -1 with `errno` set.
pub(crate) fn check(rc: c_int) -> io::Result<()> {
    match rc {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        e => Err(io::Error::from_raw_os_error(e.abs())),
    }
}

/// A string of the library's own.
pub(crate) fn text(p: *const c_char) -> String {
    if p.is_null() {
        return String::new();
    }
    // SAFETY: the library gives pointers to constant strings.
    unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let e = Lib::open("libweir-has-no-such.so.9").err().unwrap();
        assert!(e.contains("libweir-has-no-such.so.9"), "{e}");
        let c = Lib::open("libc.so.6").unwrap();
        let e = c.find("no_such_call", "GLIBC_2.2.5").err().unwrap();
        assert!(e.contains("no_such_call") && e.contains("too old"), "{e}");
        match load() {
            Ok(lib) => {
                // A machine without devices says how to get one.
                if let Err(e) = lib.devices() {
                    assert!(e.to_string().contains("ibverbs-providers"), "{e}");
                }
            }
            Err(e) => assert!(e.to_string().contains("libibverbs1"), "{e}"),
        }
    }

    #[test]
    fn results_of_all_kinds_become_errors() {
        assert!(check(0).is_ok());
        for rc in [libc::ENOMEM, -libc::ENOMEM] {
            assert_eq!(check(rc).err().and_then(|e| e.raw_os_error()), Some(libc::ENOMEM));
        }
    }
}
