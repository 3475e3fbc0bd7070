//! Connection set-up: TCP, then the MPA frames.

use crate::conn::Conn;
use crate::lobby::Lobby;
use crate::provider::{Iwarp, Shared};
use std::cell::RefCell;
use std::io::IoSliceMut;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use weir_base::SECONDS;
use weir_fabric::{
    Connected, Connection, FabricError, Incoming, Listener, Params, Provider, SoftRecvQueue,
};
use weir_proto_iwarp::mpa::{self, Kind};
use weir_reactor::{LocalFuture, WaitChannel, sleep, spawn_task, timeout};
use weir_uring::{TcpListener, TcpStream};

/// How long a peer may take for a start-up frame (siw as initiator waits 10 s for ours).
const FRAME_PATIENCE: u64 = 5 * SECONDS;
const CONNECT_PATIENCE: u64 = 10 * SECONDS;

fn resolve(addr: &str) -> Result<SocketAddr, FabricError> {
    let bad = |why: String| FabricError::Address(addr.to_owned(), why);
    addr.to_socket_addrs()
        .map_err(|e| bad(format!("{e}; expected ip:port or [ipv6]:port")))?
        .next()
        .ok_or_else(|| bad("it names no address".into()))
}

struct IwarpListener {
    socket: TcpListener,
    local: String,
    lobby: RefCell<Lobby<Handshake>>,
    /// Counts those whose requests have come, and of these a few that have gone again.
    arrived: WaitChannel,
}

pub(crate) fn listen(provider: &Iwarp, addr: &str) -> Result<Rc<dyn Listener>, FabricError> {
    let bad = |e: std::io::Error| FabricError::Address(addr.to_owned(), e.to_string());
    let socket = TcpListener::bind(resolve(addr)?).map_err(bad)?;
    let local = socket.local_addr().map_err(bad)?.to_string();
    let listener = Rc::new(IwarpListener {
        socket,
        local,
        lobby: RefCell::new(Lobby::new(provider.0.config.half_open)),
        arrived: WaitChannel::new(0),
    });
    spawn_task(accept_loop(provider.0.clone(), Rc::downgrade(&listener)));
    Ok(listener)
}

// Nobody but its user holds a listener for longer than a step: when that lets go, the socket is closed at once, and the
// accept loop ends.
impl Listener for IwarpListener {
    fn local_addr(&self) -> String {
        self.local.clone()
    }

    fn next(&self) -> LocalFuture<'_, Result<Box<dyn Incoming>, FabricError>> {
        Box::pin(async move {
            loop {
                self.arrived.wait().await;
                if let Some(h) = self.lobby.borrow_mut().next() {
                    return Ok(Box::new(h) as Box<dyn Incoming>);
                }
            }
        })
    }
}

/// The process, or the system, has no descriptor left.
fn none_left(e: &std::io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Connections that are taken in one turn of the reactor. Who is sent away may come again before the queue is empty.
const A_TURN: u64 = 16;

/// Takes every connection at once, so that nobody waits in the kernel's queue behind peers that say nothing; but those that
/// were let in have their turns in between.
async fn accept_loop(shared: Rc<Shared>, listener: std::rc::Weak<IwarpListener>) {
    for number in 0.. {
        if number % A_TURN == A_TURN - 1 {
            // Until the next turn.
            sleep(1).await;
        }
        let stream = loop {
            let Some(l) = listener.upgrade() else { return };
            let next = l.socket.try_accept(shared.config.socket);
            let fd = l.socket.as_raw_fd();
            drop(l);
            match next {
                Ok(Ok(s)) => break s,
                Ok(Err(_)) => {
                    // The end of the socket ends this too.
                    shared.ring.ready(fd, false).await;
                }
                // Out of descriptors: who says nothing gives one back. Or the peer is gone already.
                Err(e) => {
                    let l = listener.upgrade().filter(|_| none_left(&e));
                    let gone = l.and_then(|l| l.lobby.borrow_mut().make_room());
                    match gone {
                        Some(task) => weir_reactor::cancel(task),
                        None => sleep(SECONDS / 100).await,
                    }
                }
            }
        };
        let Some(l) = listener.upgrade() else { return };
        // One that is gone already says nothing more.
        let Some(from) = stream.peer_ip() else { continue };
        let task = spawn_task(greet(shared.clone(), listener.clone(), number, stream));
        let gone = l.lobby.borrow_mut().enter(number, from, task);
        if let Some(task) = gone {
            // Its connection ends with it.
            weir_reactor::cancel(task);
        }
    }
}

/// Reads a peer's request.
async fn greet(
    shared: Rc<Shared>,
    listener: std::rc::Weak<IwarpListener>,
    number: u64,
    stream: TcpStream,
) {
    let frame = timeout(FRAME_PATIENCE, read_frame(&shared, &stream, Kind::Request)).await;
    let request = match &frame {
        Ok(Ok((bytes, _))) => mpa::Request::decode(bytes).ok(),
        _ => None,
    };
    let Some(l) = listener.upgrade() else { return };
    let (Some(request), Ok(Ok((_, early)))) = (request, frame) else {
        return l.lobby.borrow_mut().leave(number);
    };
    let h = Handshake { peer: stream.peer(), stream, request, early };
    if l.lobby.borrow_mut().ready(number, h) {
        l.arrived.signal();
    }
}

/// Reads exactly one start-up frame; gives it and what came behind it.
async fn read_frame(
    shared: &Shared,
    stream: &TcpStream,
    kind: Kind,
) -> Result<(Vec<u8>, Vec<u8>), FabricError> {
    let mut bytes = Vec::with_capacity(1024);
    loop {
        match mpa::frame_len(&bytes, kind) {
            Err(e) => return Err(FabricError::Protocol(e.to_string())),
            Ok(Some(n)) if bytes.len() >= n => {
                let early = bytes.split_off(n);
                return Ok((bytes, early));
            }
            Ok(_) => {}
        }
        let mut part = [0u8; 1024];
        match stream.try_recv(&mut [IoSliceMut::new(&mut part)]) {
            Ok(Ok(0)) => return Err(FabricError::Unreachable("the peer closed".into())),
            Ok(Ok(n)) => bytes.extend_from_slice(&part[..n]),
            Ok(Err(_)) => {
                shared.ring.ready(stream.as_raw_fd(), false).await;
            }
            Err(e) => return Err(FabricError::Unreachable(e.to_string())),
        }
    }
}

async fn write_all(shared: &Shared, stream: &TcpStream, mut b: &[u8]) -> Result<(), FabricError> {
    while !b.is_empty() {
        match stream.try_send(b) {
            Ok(Ok(n)) => b = &b[n..],
            Ok(Err(_)) => {
                shared.ring.ready(stream.as_raw_fd(), true).await;
            }
            Err(e) => return Err(FabricError::Unreachable(e.to_string())),
        }
    }
    Ok(())
}

/// A peer whose request frame was read.
struct Handshake {
    stream: TcpStream,
    peer: String,
    request: mpa::Request,
    early: Vec<u8>,
}

fn soft_queue(params: &Params) -> Result<Rc<SoftRecvQueue>, FabricError> {
    // The queue came from this provider's recv_queue(); find its own kind again.
    weir_fabric::soft_queue(&params.recv_queue)
        .ok_or_else(|| FabricError::Unavailable("receive queue of another provider".into()))
}

impl Incoming for Handshake {
    fn private_data(&self) -> &[u8] {
        &self.request.private_data
    }

    fn peer(&self) -> String {
        self.peer.clone()
    }

    fn peer_serves_reads(&self) -> u16 {
        self.request.enhanced.map_or(u16::MAX, |e| e.ird)
    }

    fn accept(
        self: Box<Self>,
        provider: &dyn Provider,
        params: Params,
    ) -> LocalFuture<'static, Result<Rc<dyn Connection>, FabricError>> {
        let provider = provider.as_any().downcast_ref::<Iwarp>().cloned();
        Box::pin(async move {
            let provider = provider
                .ok_or_else(|| FabricError::Unavailable("provider of another kind".into()))?;
            let recv = soft_queue(&params)?;
            let policy = provider.policy(params.reads_out, params.reads_in);
            let answer = mpa::respond(&self.request, &policy, &params.private_data);
            let (reply, agreed) = match answer {
                Ok(a) => a,
                Err(r) => {
                    if let Ok(b) = r.reply.encode() {
                        write_all(&provider.0, &self.stream, &b).await?;
                    }
                    return Err(FabricError::Protocol(r.refusal.to_string()));
                }
            };
            let bytes = reply.encode().map_err(|e| FabricError::Protocol(e.to_string()))?;
            write_all(&provider.0, &self.stream, &bytes).await?;
            let c = Conn::start(&provider, self.stream, agreed, recv, &self.early);
            Ok(c as Rc<dyn Connection>)
        })
    }

    fn reject(self: Box<Self>, private_data: &[u8]) {
        if let Ok(b) = mpa::reject(&self.request, private_data).encode() {
            // Small enough for any socket buffer; a peer that does not read has no claim to it.
            let _ = self.stream.try_send(&b);
        }
        self.stream.shutdown(false);
    }
}

pub(crate) async fn connect(
    provider: Iwarp,
    addr: &str,
    params: Params,
) -> Result<Connected, FabricError> {
    let to = resolve(addr)?;
    let recv = soft_queue(&params)?;
    let attempt = async {
        let shared = &provider.0;
        let unreachable = |e: std::io::Error| FabricError::Unreachable(format!("{addr}: {e}"));
        let stream = TcpStream::connect(to, shared.config.socket).map_err(unreachable)?;
        loop {
            shared.ring.ready(stream.as_raw_fd(), true).await;
            match stream.connected() {
                Ok(()) => break,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(unreachable(e)),
            }
        }
        let policy = provider.policy(params.reads_out, params.reads_in);
        let request = policy.request(&params.private_data);
        let bytes = request.encode().map_err(|e| FabricError::Protocol(e.to_string()))?;
        write_all(shared, &stream, &bytes).await?;
        let (bytes, early) = read_frame(shared, &stream, Kind::Reply).await?;
        let reply = mpa::Reply::decode(&bytes).map_err(|e| FabricError::Protocol(e.to_string()))?;
        if reply.reject {
            return Err(FabricError::Rejected(reply.private_data));
        }
        let agreed = mpa::conclude(&request, &reply, &policy)
            .map_err(|e| FabricError::Protocol(e.to_string()))?;
        let conn = Conn::start(&provider, stream, agreed, recv, &early);
        Ok((conn as Rc<dyn Connection>, reply.private_data))
    };
    match timeout(CONNECT_PATIENCE, attempt).await {
        Ok(r) => r,
        Err(_) => Err(FabricError::Unreachable(format!("{addr}: no answer within 10 s"))),
    }
}
