//! Connection set-up: TCP, then the MPA frames.

use crate::conn::Conn;
use crate::provider::Iwarp;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use weir_base::SECONDS;
use weir_fabric::{
    Connected, Connection, FabricError, Incoming, Listener, Params, Provider, SoftRecvQueue,
};
use weir_proto_iwarp::mpa::{self, Kind};
use weir_reactor::{LocalFuture, WaitChannel, sleep, spawn_task, timeout};
use weir_stream::{Accepted, Lobby, Network, Parted, Stream};

/// How long a peer may take for a start-up frame (siw as initiator waits 10 s for ours).
const FRAME_PATIENCE: u64 = 5 * SECONDS;
const CONNECT_PATIENCE: u64 = 10 * SECONDS;

fn resolve(network: &dyn Network, addr: &str) -> Result<SocketAddr, FabricError> {
    network.resolve(addr).map_err(|why| FabricError::Address(addr.to_owned(), why))
}

/// A peer's address, or words saying that there is none.
pub(crate) fn words(peer: Option<SocketAddr>) -> String {
    peer.map_or_else(|| "(disconnected)".into(), |a| a.to_string())
}

struct IwarpListener {
    waiting: Box<dyn weir_stream::Listener>,
    local: String,
    lobby: RefCell<Lobby<Handshake>>,
    /// Counts those whose requests have come, and of these a few that have gone again.
    arrived: WaitChannel,
}

pub(crate) fn listen(provider: &Iwarp, addr: &str) -> Result<Rc<dyn Listener>, FabricError> {
    let bad = |e: std::io::Error| FabricError::Address(addr.to_owned(), e.to_string());
    let network = &provider.0.network;
    let waiting = network.listen(resolve(&**network, addr)?).map_err(bad)?;
    let local = waiting.local_addr().to_string();
    let listener = Rc::new(IwarpListener {
        waiting,
        local,
        lobby: RefCell::new(Lobby::new(provider.0.config.half_open)),
        arrived: WaitChannel::new(0),
    });
    spawn_task(accept_loop(Rc::downgrade(&listener)));
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
                if let Some(h) = self.lobby.borrow_mut().admit() {
                    return Ok(Box::new(h) as Box<dyn Incoming>);
                }
            }
        })
    }
}

/// Connections that are taken in one turn of the reactor. Who is sent away may come again before the queue is empty.
const A_TURN: u64 = 16;

/// Takes every connection at once, so that nobody waits in the kernel's queue behind peers that say nothing; but those that
/// were let in have their turns in between.
async fn accept_loop(listener: std::rc::Weak<IwarpListener>) {
    for number in 0.. {
        if number % A_TURN == A_TURN - 1 {
            // Until the next turn.
            sleep(1).await;
        }
        let stream = loop {
            let Some(l) = listener.upgrade() else { return };
            match l.waiting.accept() {
                Accepted::Stream(s) => break s,
                Accepted::Nobody => {
                    let next = l.waiting.ready();
                    drop(l);
                    // The end of the listener ends this too.
                    next.await;
                }
                Accepted::NoDescriptor => {
                    // Who says nothing gives one back.
                    let gone = l.lobby.borrow_mut().make_room();
                    drop(l);
                    match gone {
                        Some(task) => weir_reactor::cancel(task),
                        None => sleep(SECONDS / 100).await,
                    }
                }
                Accepted::Gone => {
                    drop(l);
                    sleep(SECONDS / 100).await;
                }
            }
        };
        let Some(l) = listener.upgrade() else { return };
        // One that is gone already says nothing more.
        let Some(from) = stream.peer() else { continue };
        let task = spawn_task(greet(listener.clone(), number, stream));
        let gone = l.lobby.borrow_mut().enter(number, from.ip(), task);
        if let Some(task) = gone {
            // Its connection ends with it.
            weir_reactor::cancel(task);
        }
    }
}

/// Reads a peer's request.
async fn greet(listener: std::rc::Weak<IwarpListener>, number: u64, stream: Box<dyn Stream>) {
    let frame = timeout(FRAME_PATIENCE, read_frame(&*stream, Kind::Request)).await;
    let request = match &frame {
        Ok(Ok((bytes, _))) => mpa::Request::decode(bytes).ok(),
        _ => None,
    };
    let Some(l) = listener.upgrade() else { return };
    let (Some(request), Ok(Ok((_, early)))) = (request, frame) else {
        return l.lobby.borrow_mut().leave(number);
    };
    let h = Handshake { peer: words(stream.peer()), stream: stream.part(), request, early };
    if l.lobby.borrow_mut().ready(number, h) {
        l.arrived.signal();
    }
}

/// Reads exactly one start-up frame; gives it and what came behind it.
async fn read_frame(stream: &dyn Stream, kind: Kind) -> Result<(Vec<u8>, Vec<u8>), FabricError> {
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
        match stream.receive_some(&mut part).await {
            Ok(0) => return Err(FabricError::Unreachable("the peer closed".into())),
            Ok(n) => bytes.extend_from_slice(&part[..n]),
            Err(e) => return Err(FabricError::Unreachable(e.to_string())),
        }
    }
}

async fn write_all(stream: &dyn Stream, bytes: &[u8]) -> Result<(), FabricError> {
    stream.send_all(bytes).await.map_err(|e| FabricError::Unreachable(e.to_string()))
}

/// A peer whose request frame was read.
struct Handshake {
    stream: Box<dyn Parted>,
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
            let stream = self.stream.join(&*provider.0.network);
            let stream = stream
                .ok_or_else(|| FabricError::Unavailable("stream of another network".into()))?;
            let policy = provider.policy(params.reads_out, params.reads_in);
            let answer = mpa::respond(&self.request, &policy, &params.private_data);
            let (reply, agreed) = match answer {
                Ok(a) => a,
                Err(r) => {
                    if let Ok(b) = r.reply.encode() {
                        write_all(&*stream, &b).await?;
                    }
                    return Err(FabricError::Protocol(r.refusal.to_string()));
                }
            };
            let bytes = reply.encode().map_err(|e| FabricError::Protocol(e.to_string()))?;
            write_all(&*stream, &bytes).await?;
            let c = Conn::start(&provider, stream, agreed, recv, &self.early);
            Ok(c as Rc<dyn Connection>)
        })
    }

    fn reject(self: Box<Self>, private_data: &[u8]) {
        if let Ok(b) = mpa::reject(&self.request, private_data).encode() {
            self.stream.refuse(&b);
        }
    }
}

pub(crate) async fn connect(
    provider: Iwarp,
    addr: &str,
    params: Params,
) -> Result<Connected, FabricError> {
    let to = resolve(&*provider.0.network, addr)?;
    let recv = soft_queue(&params)?;
    let attempt = async {
        let unreachable = |e: std::io::Error| FabricError::Unreachable(format!("{addr}: {e}"));
        let stream = provider.0.network.connect(to).await.map_err(unreachable)?;
        let policy = provider.policy(params.reads_out, params.reads_in);
        let request = policy.request(&params.private_data);
        let bytes = request.encode().map_err(|e| FabricError::Protocol(e.to_string()))?;
        write_all(&*stream, &bytes).await?;
        let (bytes, early) = read_frame(&*stream, Kind::Reply).await?;
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
