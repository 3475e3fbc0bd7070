//! The connection manager: event channel and identifiers.

use crate::ffi::*;
use crate::library::{Api, Library, check, text};
use crate::objects::{Qp, set_nonblocking};
use std::ffi::c_int;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::RawFd;
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;

/// A channel of events. May be used by all threads; only its own reactor fetches events.
pub(crate) struct EventChannel {
    api: &'static Api,
    ptr: NonNull<rdma_event_channel>,
}

// SAFETY: librdmacm's calls may be made by any thread.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

/// An event, copied and acknowledged.
pub(crate) struct CmEvent {
    pub(crate) kind: c_int,
    pub(crate) status: c_int,
    /// Whom it is for.
    pub(crate) key: IdKey,
    pub(crate) private_data: Vec<u8>,
    /// READs that we may issue, and that the peer will issue.
    pub(crate) reads_out: u8,
    pub(crate) reads_in: u8,
    /// A new identifier, for a connection request.
    pub(crate) incoming: Option<CmId>,
}

impl CmEvent {
    /// The kind in words.
    pub(crate) fn describe(&self, lib: Library) -> String {
        // SAFETY: a pure function of a number.
        let name = text(unsafe { (lib.0.rdma_event_str)(self.kind) });
        match self.status {
            0 => name,
            e if e < 0 => format!("{name}: {}", io::Error::from_raw_os_error(-e)),
            e => format!("{name} (status {e})"),
        }
    }
}

/// Tells identifiers apart; may be used again when the identifier is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct IdKey(usize);

impl EventChannel {
    pub(crate) fn new(lib: Library) -> io::Result<Arc<EventChannel>> {
        // SAFETY: no preconditions.
        let ptr = unsafe { (lib.0.rdma_create_event_channel)() };
        let ptr = NonNull::new(ptr).ok_or_else(io::Error::last_os_error)?;
        let c = EventChannel { api: lib.0, ptr };
        set_nonblocking(c.fd())?;
        Ok(Arc::new(c))
    }

    pub(crate) fn fd(&self) -> RawFd {
        // SAFETY: the channel lives.
        unsafe { self.ptr.as_ref() }.fd
    }

    /// The next event; `None` when there is none.
    pub(crate) fn next(self: &Arc<Self>) -> Option<CmEvent> {
        let mut p = null_mut();
        // SAFETY: the channel lives, its descriptor does not block, and the result is a local.
        let rc = unsafe { (self.api.rdma_get_cm_event)(self.ptr.as_ptr(), &raw mut p) };
        if rc != 0 {
            return None;
        }
        let raw = NonNull::new(p)?;
        // SAFETY: the library gave an event, which is ours until it is acknowledged.
        let e = unsafe { raw.as_ref() };
        let private_data = match e.conn.private_data {
            p if p.is_null() => Vec::new(),
            // SAFETY: the event says how many bytes there are.
            p => unsafe {
                std::slice::from_raw_parts(p.cast::<u8>(), usize::from(e.conn.private_data_len))
            }
            .to_vec(),
        };
        let request = e.event == RDMA_CM_EVENT_CONNECT_REQUEST;
        let about = if request { e.listen_id } else { e.id };
        let incoming = NonNull::new(e.id).filter(|_| request);
        let event = CmEvent {
            kind: e.event,
            status: e.status,
            key: IdKey(about as usize),
            private_data,
            reads_out: e.conn.initiator_depth,
            reads_in: e.conn.responder_resources,
            incoming: incoming.map(|ptr| CmId { ptr, channel: self.clone() }),
        };
        // SAFETY: acknowledged once, here; nothing of it is used after.
        unsafe { (self.api.rdma_ack_cm_event)(raw.as_ptr()) };
        Some(event)
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: all identifiers on the channel held it.
        unsafe { (self.api.rdma_destroy_event_channel)(self.ptr.as_ptr()) };
    }
}

/// An identifier: a listener or one side of a connection.
pub(crate) struct CmId {
    ptr: NonNull<rdma_cm_id>,
    channel: Arc<EventChannel>,
}

// SAFETY: librdmacm's calls may be made by any thread; one owner makes them.
unsafe impl Send for CmId {}

/// What both sides tell each other when they connect.
pub(crate) struct ConnParam<'a> {
    pub(crate) private_data: &'a [u8],
    pub(crate) reads_in: u8,
    pub(crate) reads_out: u8,
    pub(crate) srq: bool,
}

impl CmId {
    pub(crate) fn new(channel: &Arc<EventChannel>) -> io::Result<CmId> {
        let mut p = null_mut();
        // SAFETY: the channel lives and the result is a local.
        check(unsafe {
            (channel.api.rdma_create_id)(channel.ptr.as_ptr(), &raw mut p, null_mut(), RDMA_PS_TCP)
        })?;
        let ptr = NonNull::new(p).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(CmId { ptr, channel: channel.clone() })
    }

    pub(crate) fn key(&self) -> IdKey {
        IdKey(self.ptr.as_ptr() as usize)
    }

    fn api(&self) -> &'static Api {
        self.channel.api
    }

    /// The device it was bound to; null when none was yet. Good while this identifier lives.
    pub(crate) fn device(&self) -> *mut ibv_device {
        // SAFETY: the identifier lives, and so does the context it shows.
        unsafe {
            let verbs = self.ptr.as_ref().verbs;
            if verbs.is_null() { null_mut() } else { (*verbs).device }
        }
    }

    pub(crate) fn local(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier lives.
        from_raw(unsafe { &self.ptr.as_ref().src_addr })
    }

    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier lives.
        from_raw(unsafe { &self.ptr.as_ref().dst_addr })
    }

    /// Binds to a local address, also one that was in use shortly before.
    pub(crate) fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        let mut one: c_int = 1;
        let mut raw = to_raw(addr);
        let (level, option) = (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR);
        // SAFETY: the identifier lives; both values are complete locals.
        unsafe {
            (self.api().rdma_set_option)(
                self.ptr.as_ptr(),
                level,
                option,
                (&raw mut one).cast(),
                size_of::<c_int>(),
            );
            check((self.api().rdma_bind_addr)(self.ptr.as_ptr(), (&raw mut raw).cast()))
        }
    }

    pub(crate) fn listen(&self, backlog: c_int) -> io::Result<()> {
        // SAFETY: the identifier lives.
        check(unsafe { (self.api().rdma_listen)(self.ptr.as_ptr(), backlog) })
    }

    pub(crate) fn resolve_addr(&self, to: SocketAddr, millis: c_int) -> io::Result<()> {
        let mut raw = to_raw(to);
        let to = (&raw mut raw).cast();
        // SAFETY: the identifier lives and the address is complete.
        check(unsafe { (self.api().rdma_resolve_addr)(self.ptr.as_ptr(), null_mut(), to, millis) })
    }

    pub(crate) fn resolve_route(&self, millis: c_int) -> io::Result<()> {
        // SAFETY: the identifier lives.
        check(unsafe { (self.api().rdma_resolve_route)(self.ptr.as_ptr(), millis) })
    }

    fn param(p: &ConnParam<'_>, qp: &Qp) -> io::Result<rdma_conn_param> {
        let private_data_len = u8::try_from(p.private_data.len())
            .map_err(|_| io::Error::other("more than 255 bytes of private data"))?;
        Ok(rdma_conn_param {
            private_data: p.private_data.as_ptr().cast(),
            private_data_len,
            responder_resources: p.reads_in,
            initiator_depth: p.reads_out,
            flow_control: 1,
            // Of 7 (IB: the most), and without end when the peer has no receive posted.
            retry_count: 7,
            rnr_retry_count: 7,
            srq: u8::from(p.srq),
            qp_num: qp.number,
        })
    }

    pub(crate) fn connect(&self, p: &ConnParam<'_>, qp: &Qp) -> io::Result<()> {
        let mut raw = Self::param(p, qp)?;
        // SAFETY: the identifier lives and the parameters are complete for the call.
        check(unsafe { (self.api().rdma_connect)(self.ptr.as_ptr(), &raw mut raw) })
    }

    pub(crate) fn accept(&self, p: &ConnParam<'_>, qp: &Qp) -> io::Result<()> {
        let mut raw = Self::param(p, qp)?;
        // SAFETY: as in connect().
        check(unsafe { (self.api().rdma_accept)(self.ptr.as_ptr(), &raw mut raw) })
    }

    /// Confirms a peer's acceptance (IB and RoCE).
    pub(crate) fn establish(&self) -> io::Result<()> {
        // SAFETY: the identifier lives.
        check(unsafe { (self.api().rdma_establish)(self.ptr.as_ptr()) })
    }

    /// The transport knows that the connection works before its manager does.
    pub(crate) fn notify_established(&self) {
        // SAFETY: the identifier lives. Failure means that it is established, or not of this kind.
        unsafe { (self.api().rdma_notify)(self.ptr.as_ptr(), IBV_EVENT_COMM_EST) };
    }

    pub(crate) fn reject(&self, private_data: &[u8]) -> io::Result<()> {
        let len = u8::try_from(private_data.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let p = if len == 0 { null() } else { private_data.as_ptr().cast() };
        // SAFETY: the identifier lives; `len` bytes are there.
        check(unsafe { (self.api().rdma_reject)(self.ptr.as_ptr(), p, len) })
    }

    /// Tells the peer that the connection ends, or answers its telling us.
    pub(crate) fn disconnect(&self) {
        // SAFETY: the identifier lives. Fails when it is disconnected, which is what was wanted.
        unsafe { (self.api().rdma_disconnect)(self.ptr.as_ptr()) };
    }

    /// Brings `qp` to `state` with the numbers agreed on; `change` may adjust them.
    pub(crate) fn bring_to(
        &self,
        qp: &Qp,
        state: c_int,
        change: impl FnOnce(&mut ibv_qp_attr, c_int),
    ) -> io::Result<()> {
        let mut attr = ibv_qp_attr { qp_state: state, ..Default::default() };
        let mut mask = 0;
        // SAFETY: the identifier lives; both results are locals.
        check(unsafe {
            (self.api().rdma_init_qp_attr)(self.ptr.as_ptr(), &raw mut attr, &raw mut mask)
        })?;
        change(&mut attr, mask);
        qp.modify(&mut attr, mask)
    }

    /// Moves the identifier, with events that wait for it, to another channel.
    pub(crate) fn migrate(&mut self, to: &Arc<EventChannel>) -> io::Result<()> {
        if Arc::ptr_eq(to, &self.channel) {
            return Ok(());
        }
        // SAFETY: identifier and channel live. Waits until the old channel's reactor has acknowledged
        // what it fetched, which next() does at once.
        check(unsafe { (self.api().rdma_migrate_id)(self.ptr.as_ptr(), to.ptr.as_ptr()) })?;
        self.channel = to.clone();
        Ok(())
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        // SAFETY: the owner's only identifier. Waits for acknowledgements as migrate() does.
        unsafe { (self.api().rdma_destroy_id)(self.ptr.as_ptr()) };
    }
}

fn to_raw(addr: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: all-zero bytes are a valid value of this plain structure.
    let mut s: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let p = &raw mut s;
    match addr {
        SocketAddr::V4(a) => {
            let v = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: a.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*a.ip()).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: a sockaddr_storage has room and alignment for every kind of address.
            unsafe { p.cast::<libc::sockaddr_in>().write(v) };
        }
        SocketAddr::V6(a) => {
            let v = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: a.port().to_be(),
                sin6_flowinfo: a.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
                sin6_scope_id: a.scope_id(),
            };
            // SAFETY: as above.
            unsafe { p.cast::<libc::sockaddr_in6>().write(v) };
        }
    }
    s
}

fn from_raw(s: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let p = &raw const *s;
    match c_int::from(s.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says what the storage holds.
            let a = unsafe { p.cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(u32::from_be(a.sin_addr.s_addr));
            Some(SocketAddr::from((ip, u16::from_be(a.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let a = unsafe { p.cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
            let port = u16::from_be(a.sin6_port);
            Some(SocketAddrV6::new(ip, port, a.sin6_flowinfo, a.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_through_the_library() {
        for a in ["192.0.2.7:5555", "[2001:db8::5%3]:1", "[::]:65535", "0.0.0.0:0"] {
            let a: SocketAddr = a.parse().unwrap();
            assert_eq!(from_raw(&to_raw(a)), Some(a));
        }
    }
}
