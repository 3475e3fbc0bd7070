//! Sockets as the streams of a reactor.

use crate::net::{Congestion, SocketOptions, TcpListener, TcpStream};
use crate::ring::{self, Ring};
use std::any::Any;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use weir_reactor::{CompletionFuture, LocalFuture};
use weir_stream::{Accepted, Listener, Moved, Network, Parted, Piece, Ready, Room, Stream, Watch};

const _: () = {
    assert!(size_of::<Piece>() == size_of::<libc::iovec>());
    assert!(align_of::<Piece>() == align_of::<libc::iovec>());
    assert!(size_of::<Room>() == size_of::<libc::iovec>());
    assert!(align_of::<Room>() == align_of::<libc::iovec>());
};

/// TCP of one reactor.
#[derive(Clone)]
pub struct TcpNetwork {
    ring: Ring,
    options: SocketOptions,
}

impl TcpNetwork {
    /// Sockets that the reactor of `ring` looks after, made as `options` say.
    pub fn with(ring: &Ring, options: SocketOptions) -> Rc<TcpNetwork> {
        Rc::new(TcpNetwork { ring: ring.clone(), options })
    }

    /// Sockets that the reactor of `ring` looks after, with CUBIC: BBR, the default of some systems, wants few packets in
    /// flight on a short link, and stalls.
    pub fn new(ring: &Ring) -> Rc<TcpNetwork> {
        TcpNetwork::with(ring, SocketOptions { buffer: 0, congestion: Congestion::Cubic })
    }
}

/// A socket of a reactor.
struct Socket {
    tcp: TcpStream,
    ring: Ring,
}

impl Stream for Socket {
    #[inline]
    fn receive(&self, into: &[Room]) -> Moved {
        // SAFETY: a room is a pointer and a length, in this order, as `iovec` is. Whoever made it promised that it is valid
        // for writes.
        unsafe {
            self.tcp.try_recv_raw(std::slice::from_raw_parts(into.as_ptr().cast(), into.len()))
        }
    }

    #[inline]
    fn send(&self, from: &[Piece]) -> Moved {
        // SAFETY: a piece is a pointer and a length, in this order, as `iovec` is. Whoever made it promised that it is valid
        // for reads.
        unsafe {
            self.tcp.try_send_raw(std::slice::from_raw_parts(from.as_ptr().cast(), from.len()))
        }
    }

    fn ready(&self, write: bool) -> CompletionFuture {
        self.ring.ready(self.tcp.as_raw_fd(), write)
    }

    fn watch(&self, key: u64, ready: Ready) -> Box<dyn Watch> {
        Box::new(self.ring.watch(self.tcp.as_raw_fd(), key, ready))
    }

    fn shutdown(&self, both: bool) {
        self.tcp.shutdown(both);
    }

    fn abort(&self) {
        self.tcp.abort();
    }

    fn limit_unsent(&self, bytes: u32) {
        self.tcp.limit_unsent(bytes);
    }

    fn unacknowledged(&self) -> u64 {
        self.tcp.unacknowledged()
    }

    fn has_ended(&self) -> bool {
        self.tcp.has_ended()
    }

    fn peer(&self) -> Option<SocketAddr> {
        self.tcp.peer_addr()
    }

    fn local(&self) -> Option<SocketAddr> {
        self.tcp.local_addr()
    }

    fn part(self: Box<Self>) -> Box<dyn Parted> {
        Box::new(self.tcp)
    }
}

impl Watch for ring::Watch {
    fn arm(&self, write: bool) {
        ring::Watch::arm(self, write);
    }
}

impl Parted for TcpStream {
    fn join(self: Box<Self>, network: &dyn Network) -> Option<Box<dyn Stream>> {
        let network = network.as_any().downcast_ref::<TcpNetwork>()?;
        Some(Box::new(Socket { tcp: *self, ring: network.ring.clone() }))
    }

    fn refuse(self: Box<Self>, bytes: &[u8]) {
        // Small enough for any socket buffer; a peer that does not read has no claim to it.
        let _ = self.try_send(bytes);
        self.shutdown(false);
    }
}

struct Listening {
    tcp: TcpListener,
    local: SocketAddr,
    network: TcpNetwork,
}

impl Listener for Listening {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn accept(&self) -> Accepted {
        match self.tcp.try_accept(self.network.options) {
            Ok(Ok(tcp)) => {
                Accepted::Stream(Box::new(Socket { tcp, ring: self.network.ring.clone() }))
            }
            Ok(Err(_)) => Accepted::Nobody,
            Err(e) if matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                Accepted::NoDescriptor
            }
            Err(_) => Accepted::Gone,
        }
    }

    fn ready(&self) -> CompletionFuture {
        self.network.ring.ready(self.tcp.as_raw_fd(), false)
    }
}

impl Network for TcpNetwork {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn resolve(&self, name: &str) -> Result<SocketAddr, String> {
        let mut found =
            name.to_socket_addrs().map_err(|e| format!("{e}; expected ip:port or [ipv6]:port"))?;
        found.next().ok_or_else(|| "it names no address".into())
    }

    fn listen(&self, addr: SocketAddr) -> io::Result<Box<dyn Listener>> {
        let tcp = TcpListener::bind(addr)?;
        let local = tcp.local_addr()?;
        Ok(Box::new(Listening { tcp, local, network: self.clone() }))
    }

    fn connect(&self, addr: SocketAddr) -> LocalFuture<'_, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let tcp = TcpStream::connect(addr, self.options)?;
            loop {
                self.ring.ready(tcp.as_raw_fd(), true).await;
                match tcp.connected() {
                    Ok(()) => break,
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(Box::new(Socket { tcp, ring: self.ring.clone() }) as Box<dyn Stream>)
        })
    }

    fn secret(&self) -> u64 {
        let mut seed = [0u8; 8];
        // SAFETY: fills eight bytes of a local.
        let n = unsafe { libc::getrandom(seed.as_mut_ptr().cast(), 8, 0) };
        assert_eq!(n, 8, "the operating system's random source");
        u64::from_ne_bytes(seed)
    }
}
