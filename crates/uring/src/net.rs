//! TCP sockets, non-blocking.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use weir_stream::WouldBlock;

/// How a stream's sender finds its rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Congestion {
    /// As the system does by default.
    #[default]
    System,
    /// CUBIC (RFC 9438), Linux's own default.
    Cubic,
    /// Reno (RFC 5681).
    Reno,
    /// BBR. On links with round trips of microseconds it allows only a few packets in flight, so that
    /// small messages stall.
    Bbr,
    /// DCTCP (RFC 8257), for data centres whose switches mark packets.
    Dctcp,
}

impl Congestion {
    /// The kernel's name for it.
    fn name(self) -> Option<&'static str> {
        match self {
            Congestion::System => None,
            Congestion::Cubic => Some("cubic"),
            Congestion::Reno => Some("reno"),
            Congestion::Bbr => Some("bbr"),
            Congestion::Dctcp => Some("dctcp"),
        }
    }
}

/// What a stream is made with. The default leaves all to the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SocketOptions {
    /// Bytes of send and receive buffer each; 0 leaves them to the kernel's tuning.
    pub buffer: usize,
    /// Congestion control; the system's stays where the kernel does not have the one asked for.
    pub congestion: Congestion,
}

/// Seconds after which a silent peer is asked whether it is there, and between questions; how many go unanswered.
const KEEPALIVE_IDLE: libc::c_int = 30;
const KEEPALIVE_EVERY: libc::c_int = 10;
const KEEPALIVE_TRIES: libc::c_int = 3;

/// Sets an option of a socket, if the kernel will.
fn set_option(fd: RawFd, level: libc::c_int, name: libc::c_int, value: &[u8]) {
    let len = value.len() as libc::socklen_t;
    // SAFETY: passes readable bytes and their number.
    unsafe { libc::setsockopt(fd, level, name, value.as_ptr().cast(), len) };
}

/// A connected stream. `Send`: a connection may be handed to another reactor.
#[derive(Debug)]
pub struct TcpStream(std::net::TcpStream);

fn soft<T>(r: io::Result<T>) -> io::Result<Result<T, WouldBlock>> {
    match r {
        Ok(v) => Ok(Ok(v)),
        Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(Err(WouldBlock))
        }
        Err(e) => Err(e),
    }
}

impl TcpStream {
    fn set_up(s: std::net::TcpStream, options: SocketOptions) -> io::Result<TcpStream> {
        s.set_nonblocking(true)?;
        s.set_nodelay(true)?;
        let fd = s.as_raw_fd();
        // A peer that has gone without a word, and has nothing to acknowledge, is found within a minute.
        set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &1i32.to_ne_bytes());
        for (name, n) in [
            (libc::TCP_KEEPIDLE, KEEPALIVE_IDLE),
            (libc::TCP_KEEPINTVL, KEEPALIVE_EVERY),
            (libc::TCP_KEEPCNT, KEEPALIVE_TRIES),
        ] {
            set_option(fd, libc::IPPROTO_TCP, name, &n.to_ne_bytes());
        }
        // Both are advice: the kernel clips buffers, and may not have the algorithm.
        if options.buffer > 0 {
            let n = (options.buffer as libc::c_int).to_ne_bytes();
            for name in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
                set_option(fd, libc::SOL_SOCKET, name, &n);
            }
        }
        if let Some(name) = options.congestion.name() {
            set_option(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name.as_bytes());
        }
        Ok(TcpStream(s))
    }

    /// Starts to connect; [`connected`](TcpStream::connected) tells when it is writable.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn connect(addr: SocketAddr, options: SocketOptions) -> io::Result<TcpStream> {
        let family = if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: plain system call; the result is checked.
        let fd = unsafe { libc::socket(family, kind, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh socket that nobody else owns.
        let s = unsafe { <std::net::TcpStream as std::os::fd::FromRawFd>::from_raw_fd(fd) };
        let s = TcpStream::set_up(s, options)?;
        let r = match addr {
            SocketAddr::V4(a) => {
                let sa = libc::sockaddr_in {
                    sin_family: libc::AF_INET as u16,
                    sin_port: a.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*a.ip()).to_be() },
                    sin_zero: [0; 8],
                };
                // SAFETY: the address is a complete sockaddr_in of the size given.
                unsafe { libc::connect(fd, (&raw const sa).cast(), size_of_val(&sa) as u32) }
            }
            SocketAddr::V6(a) => {
                let sa = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as u16,
                    sin6_port: a.port().to_be(),
                    sin6_flowinfo: a.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
                    sin6_scope_id: a.scope_id(),
                };
                // SAFETY: the address is a complete sockaddr_in6 of the size given.
                unsafe { libc::connect(fd, (&raw const sa).cast(), size_of_val(&sa) as u32) }
            }
        };
        if r < 0 {
            let e = io::Error::last_os_error();
            if e.raw_os_error() != Some(libc::EINPROGRESS) {
                return Err(e);
            }
        }
        Ok(s)
    }

    /// Whether connecting has succeeded.
    ///
    /// # Errors
    /// Why it has failed; `WouldBlock` kind while it is not decided.
    pub fn connected(&self) -> io::Result<()> {
        if let Some(e) = self.0.take_error()? {
            return Err(e);
        }
        match self.0.peer_addr() {
            Ok(_) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::NotConnected => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            Err(e) => Err(e),
        }
    }

    /// Receives into several buffers; 0 bytes is the end of the stream.
    ///
    /// # Errors
    /// The connection is broken.
    #[inline]
    pub fn try_recv(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<Result<usize, WouldBlock>> {
        soft(io::Read::read_vectored(&mut &self.0, bufs))
    }

    /// Receives into raw memory.
    ///
    /// # Safety
    /// Every `iovec` must be valid for writes, and no Rust reference to its bytes may exist.
    ///
    /// # Errors
    /// The connection is broken.
    #[inline]
    pub unsafe fn try_recv_raw(
        &self,
        bufs: &[libc::iovec],
    ) -> io::Result<Result<usize, WouldBlock>> {
        // SAFETY: the iovecs are valid by the caller's promise.
        let n = unsafe {
            if let [one] = bufs {
                // Not by libc's function, a point of cancellation: that costs two locked instructions, also when
                // nothing is there, which is most often.
                let (fd, none) = (self.0.as_raw_fd(), std::ptr::null_mut::<libc::c_void>());
                let (at, len) = (one.iov_base, one.iov_len);
                libc::syscall(libc::SYS_recvfrom, fd, at, len, 0, none, none) as isize
            } else {
                libc::readv(self.0.as_raw_fd(), bufs.as_ptr(), bufs.len() as i32)
            }
        };
        soft(if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) })
    }

    /// Sends from raw memory.
    ///
    /// # Safety
    /// Every `iovec` must be valid for reads.
    ///
    /// # Errors
    /// The connection is broken.
    #[inline]
    pub unsafe fn try_send_raw(
        &self,
        bufs: &[libc::iovec],
    ) -> io::Result<Result<usize, WouldBlock>> {
        // SAFETY: an all-zero msghdr is valid; the iovecs are valid by the caller's promise.
        let n = unsafe {
            let mut m: libc::msghdr = std::mem::zeroed();
            m.msg_iov = bufs.as_ptr().cast_mut();
            m.msg_iovlen = bufs.len() as _;
            libc::sendmsg(self.0.as_raw_fd(), &m, libc::MSG_NOSIGNAL)
        };
        soft(if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) })
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn try_send(&self, bytes: &[u8]) -> io::Result<Result<usize, WouldBlock>> {
        soft(io::Write::write_vectored(&mut &self.0, &[IoSlice::new(bytes)]))
    }

    /// Sends bytes from several places.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn try_send_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<Result<usize, WouldBlock>> {
        soft(io::Write::write_vectored(&mut &self.0, bufs))
    }

    /// Ends our direction, or both.
    pub fn shutdown(&self, both: bool) {
        let how = if both { std::net::Shutdown::Both } else { std::net::Shutdown::Write };
        // An error means that it is down already.
        let _ = self.0.shutdown(how);
    }

    /// Takes no more than about so many bytes that have not left yet.
    pub fn limit_unsent(&self, bytes: u32) {
        let n = bytes.to_ne_bytes();
        set_option(self.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, &n);
    }

    /// Bytes that were sent and that the peer has not acknowledged.
    pub fn unacknowledged(&self) -> u64 {
        let mut n: libc::c_int = 0;
        // SAFETY: writes one number into a local. It stays 0 where the socket is gone.
        unsafe { libc::ioctl(self.as_raw_fd(), libc::TIOCOUTQ, &raw mut n) };
        u64::try_from(n).unwrap_or(0)
    }

    /// The peer has ended its direction, or the connection is broken, whatever is yet to be received.
    pub fn has_ended(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
        // SAFETY: one structure, which outlives the call; it does not wait.
        let n = unsafe { libc::poll(&raw mut poll, 1, 0) };
        n > 0 && poll.revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
    }

    /// Ends both directions at once: what the kernel still has to send is dropped, and the peer is told by a reset.
    pub fn abort(&self) {
        // SAFETY: an all-zero address is one of family AF_UNSPEC, by which Linux dissolves a connection.
        unsafe {
            let none: libc::sockaddr = std::mem::zeroed();
            let len = size_of::<libc::sockaddr>() as libc::socklen_t;
            libc::connect(self.as_raw_fd(), &none, len);
        }
        self.shutdown(true);
    }

    /// Our own address; `None` if it is gone.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.0.local_addr().ok()
    }

    /// The peer's address; `None` if it is gone.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.0.peer_addr().ok()
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        // A poll of the ring holds the socket open; this ends both.
        self.shutdown(true);
    }
}

impl AsRawFd for TcpStream {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A listening socket.
#[derive(Debug)]
pub struct TcpListener(std::net::TcpListener);

impl TcpListener {
    /// Listens on `addr`.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
        let l = std::net::TcpListener::bind(addr)?;
        // As many as the system lets wait. Of a short queue a crowd has one fall out, whose peer tries again after a second.
        // SAFETY: plain system call on our own descriptor, which listens already.
        if unsafe { libc::listen(l.as_raw_fd(), libc::c_int::MAX) } != 0 {
            return Err(io::Error::last_os_error());
        }
        l.set_nonblocking(true)?;
        Ok(TcpListener(l))
    }

    /// The address that was bound.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// The next connection, if one waits.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn try_accept(&self, options: SocketOptions) -> io::Result<Result<TcpStream, WouldBlock>> {
        Ok(match soft(self.0.accept())? {
            Ok((s, _)) => Ok(TcpStream::set_up(s, options)?),
            Err(w) => Err(w),
        })
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        // SAFETY: plain system call on our own descriptor; ends polls of the ring.
        unsafe { libc::shutdown(self.0.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

impl AsRawFd for TcpListener {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// The processor cores that this thread may run on; empty if that is not known.
pub fn cores() -> Vec<u16> {
    // SAFETY: an all-zero cpu_set_t is an empty set; the call writes at most its size.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) < 0 {
            return Vec::new();
        }
        set
    };
    // SAFETY: the index is within the set.
    (0..libc::CPU_SETSIZE as u16)
        .filter(|c| unsafe { libc::CPU_ISSET(usize::from(*c), &set) })
        .collect()
}

/// Binds the calling thread to one processor.
///
/// # Errors
/// There is no such processor, or it is not ours.
pub fn pin_to_core(core: usize) -> io::Result<()> {
    // SAFETY: an all-zero cpu_set_t is an empty set; CPU_SET checks its range; the call reads the set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if core >= libc::CPU_SETSIZE as usize {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        libc::CPU_SET(core, &mut set);
        if libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
