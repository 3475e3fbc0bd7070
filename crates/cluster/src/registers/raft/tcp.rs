//! A plain TCP way between voters, guarded by a secret of the cluster.
//!
//! # Messages
//!
//! | who | bytes |
//! |---|---|
//! | caller | `WREP`, 1, three zeros, identity that is called (8, little-endian), nonce (16) |
//! | called | status (0: it is me, 1: that is another), nonce (16), code (32) over both messages |
//! | caller | code (32) over both messages |
//! | either | length (4, little-endian), so many bytes, code (32) over a counter, length and bytes |
//!
//! Codes are HMAC-SHA-256. Those of the first three are keyed with the secret, those of frames with a key made of the
//! secret and both nonces, one for each direction. So a stranger is neither heard nor believed, and nothing can be
//! changed, repeated, or put in another order. Nothing is encrypted: who listens learns who owns which pool.
//!
//! # Limits
//!
//! Frames have at most [`MAX_FRAME`] bytes, a stranger gets no frame read, a called voter has [`MAX_CALLERS`] connections, and
//! every step has a deadline. Strangers may use up the connections for a second at a time; a firewall keeps them away.

use super::peers::{PeerError, Peers};
use super::types::{Identity, Member};
use super::voter::Voter;
use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use weir_codec::mac::{hmac_sha256, verify_sha256};

/// Most bytes of one request or answer.
pub const MAX_FRAME: usize = 1 << 20;
/// Most connections that a voter is called by at once.
pub const MAX_CALLERS: usize = 64;
/// Fewest bytes of a secret.
pub const MIN_SECRET: usize = 16;

const MAGIC: [u8; 8] = [b'W', b'R', b'E', b'P', 1, 0, 0, 0];
const CODE: usize = 32;
const HELLO: usize = 32;
const REPLY: usize = 17;
/// For the first messages, and for the rest of a frame that has begun.
const STEP: Duration = Duration::from_secs(1);
/// How long a connection without a request is kept.
const IDLE: Duration = Duration::from_secs(60);
/// Connections without a request that a caller keeps for each voter.
const KEPT: usize = 4;

/// The secret of a cluster.
#[derive(Clone)]
pub struct Secret(Arc<[u8]>);

/// A secret that is too short to be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a secret of a cluster has at least {MIN_SECRET} bytes")]
pub struct TooShort;

impl Secret {
    /// From bytes that nobody guesses.
    ///
    /// # Errors
    /// They are too few.
    pub fn new(bytes: &[u8]) -> Result<Secret, TooShort> {
        if bytes.len() < MIN_SECRET { Err(TooShort) } else { Ok(Secret(bytes.into())) }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

fn nonce() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn strange(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// One direction of a connection.
struct Direction {
    key: [u8; CODE],
    count: u64,
}

impl Direction {
    fn code(&mut self, len: [u8; 4], bytes: &[u8]) -> [u8; CODE] {
        let count = self.count.to_le_bytes();
        self.count += 1;
        hmac_sha256(&self.key, &[&count, &len, bytes])
    }

    fn verify(&mut self, len: [u8; 4], bytes: &[u8], code: &[u8; CODE]) -> bool {
        let count = self.count.to_le_bytes();
        self.count += 1;
        verify_sha256(&self.key, &[&count, &len, bytes], code)
    }
}

/// A connection whose other end has proved that it knows the secret.
struct Session {
    stream: TcpStream,
    out: Direction,
    back: Direction,
}

impl Session {
    fn new(secret: &Secret, stream: TcpStream, hello: &[u8], reply: &[u8], calls: bool) -> Session {
        let key = |name: &[u8]| hmac_sha256(&secret.0, &[name, hello, reply]);
        let of = |name| Direction { key: key(name), count: 0 };
        let (to, from) =
            (of(b"weir registers: requests".as_slice()), of(b"weir registers: answers"));
        let (out, back) = if calls { (to, from) } else { (from, to) };
        Session { stream, out, back }
    }

    /// Calls the voter of this identity.
    async fn call(secret: &Secret, to: Identity, address: SocketAddr) -> io::Result<Session> {
        let mut stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut hello = [0; HELLO];
        hello[..8].copy_from_slice(&MAGIC);
        hello[8..16].copy_from_slice(&to.to_le_bytes());
        hello[16..].copy_from_slice(&nonce()?);
        stream.write_all(&hello).await?;
        let (mut reply, mut code) = ([0; REPLY], [0; CODE]);
        stream.read_exact(&mut reply).await?;
        stream.read_exact(&mut code).await?;
        if !verify_sha256(&secret.0, &[b"weir registers: called", &hello, &reply], &code) {
            return Err(strange("who answers does not know the secret of the cluster"));
        }
        if reply[0] != 0 {
            return Err(strange("another voter has this address by now"));
        }
        let proof = hmac_sha256(&secret.0, &[b"weir registers: caller", &hello, &reply]);
        stream.write_all(&proof).await?;
        Ok(Session::new(secret, stream, &hello, &reply, true))
    }

    /// Is called by somebody who means the voter `me`.
    async fn called(secret: &Secret, me: Identity, mut stream: TcpStream) -> io::Result<Session> {
        stream.set_nodelay(true)?;
        let mut hello = [0; HELLO];
        stream.read_exact(&mut hello).await?;
        if hello[..8] != MAGIC {
            return Err(strange("no voter of this version"));
        }
        let other = hello[8..16] != me.to_le_bytes();
        let mut reply = [0; REPLY];
        reply[0] = u8::from(other);
        reply[1..].copy_from_slice(&nonce()?);
        let code = hmac_sha256(&secret.0, &[b"weir registers: called", &hello, &reply]);
        stream.write_all(&[&reply[..], &code[..]].concat()).await?;
        if other {
            return Err(strange("another voter is meant"));
        }
        let mut proof = [0; CODE];
        stream.read_exact(&mut proof).await?;
        if !verify_sha256(&secret.0, &[b"weir registers: caller", &hello, &reply], &proof) {
            return Err(strange("who calls does not know the secret of the cluster"));
        }
        Ok(Session::new(secret, stream, &hello, &reply, false))
    }

    async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let len = u32::try_from(bytes.len()).ok().filter(|_| bytes.len() <= MAX_FRAME);
        let len = len.ok_or_else(|| strange("too long for a frame"))?.to_le_bytes();
        let code = self.out.code(len, bytes);
        // In one piece: a part by itself would be a packet by itself.
        self.stream.write_all(&[&len[..], bytes, &code[..]].concat()).await
    }

    /// The next frame, whose first bytes are waited for so long.
    async fn receive(&mut self, first: Duration) -> io::Result<Vec<u8>> {
        let mut len = [0; 4];
        timeout(first, self.stream.read_exact(&mut len)).await??;
        timeout(STEP, self.rest(len)).await?
    }

    async fn rest(&mut self, len: [u8; 4]) -> io::Result<Vec<u8>> {
        let many = u32::from_le_bytes(len) as usize;
        if many > MAX_FRAME {
            return Err(strange("a frame that is too long"));
        }
        let mut bytes = vec![0; many];
        self.stream.read_exact(&mut bytes).await?;
        let mut code = [0; CODE];
        self.stream.read_exact(&mut code).await?;
        if self.back.verify(len, &bytes, &code) {
            Ok(bytes)
        } else {
            Err(strange("a frame with a wrong code"))
        }
    }

    /// Whether the other end has neither closed it nor said what nobody asked for.
    fn is_quiet(&self) -> bool {
        let read = self.stream.try_read(&mut [0]);
        read.is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock)
    }
}

/// The calling side.
#[derive(Debug)]
pub struct Tcp {
    secret: Secret,
    idle: Mutex<BTreeMap<Identity, Vec<Session>>>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Session")
    }
}

impl Tcp {
    /// One that has called nobody yet.
    pub fn new(secret: Secret) -> Tcp {
        Tcp { secret, idle: Mutex::default() }
    }

    fn take(&self, identity: Identity) -> Option<Session> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = idle.get_mut(&identity)?;
        // What was closed meanwhile is dropped. A request to it would be lost, and a change in doubt.
        while let Some(session) = kept.pop() {
            if session.is_quiet() {
                return Some(session);
            }
        }
        None
    }

    fn keep(&self, identity: Identity, session: Session) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = idle.entry(identity).or_default();
        if kept.len() < KEPT {
            kept.push(session);
        }
    }

    async fn connected(&self, identity: Identity, member: &Member) -> Result<Session, PeerError> {
        if let Some(session) = self.take(identity) {
            return Ok(session);
        }
        let not = |e: &dyn fmt::Display| PeerError::NotSent(e.to_string());
        let address = member.address.parse().map_err(|e| not(&e))?;
        Session::call(&self.secret, identity, address).await.map_err(|e| not(&e))
    }
}

impl Peers for Tcp {
    async fn ask(
        &self,
        identity: Identity,
        member: &Member,
        request: Vec<u8>,
        limit: Duration,
    ) -> Result<Vec<u8>, PeerError> {
        let until = Instant::now() + limit;
        let late = || "in time".to_string();
        let connected = timeout_at(until, self.connected(identity, member)).await;
        let mut session = connected.map_err(|_| PeerError::NotSent(late()))??;
        let exchange = async {
            session.send(&request).await?;
            session.receive(limit).await
        };
        let answer = timeout_at(until, exchange).await.map_err(|_| PeerError::Lost(late()))?;
        let answer = answer.map_err(|e| PeerError::Lost(e.to_string()))?;
        self.keep(identity, session);
        Ok(answer)
    }
}

/// Answers whoever calls, for as long as it is polled. Dropped, it cuts all connections.
///
/// # Errors
/// The listener fails for good.
pub async fn serve<P: Peers>(
    listener: TcpListener,
    secret: Secret,
    voter: Voter<P>,
) -> io::Result<()> {
    let places = Arc::new(Semaphore::new(MAX_CALLERS));
    let mut callers = JoinSet::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            // Of a connection that ended at once, or for want of descriptors: others may be taken.
            Err(e) if passing(&e) => {
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
            Err(e) => return Err(e),
        };
        while callers.try_join_next().is_some() {}
        // Who finds no place is closed, and calls again.
        let Ok(place) = places.clone().try_acquire_owned() else { continue };
        let (secret, voter) = (secret.clone(), voter.clone());
        callers.spawn(async move {
            // Why a connection ended is of no use to anybody here: the caller makes another one.
            let _ = attend(stream, &secret, &voter).await;
            drop(place);
        });
    }
}

fn passing(e: &io::Error) -> bool {
    use io::ErrorKind as K;
    const FEW: [i32; 2] = [23, 24];
    matches!(e.kind(), K::ConnectionAborted | K::ConnectionReset | K::Interrupted)
        || e.raw_os_error().is_some_and(|n| FEW.contains(&n))
}

async fn attend<P: Peers>(stream: TcpStream, secret: &Secret, voter: &Voter<P>) -> io::Result<()> {
    let called = Session::called(secret, voter.identity(), stream);
    let mut session = timeout(STEP, called).await??;
    loop {
        let request = session.receive(IDLE).await?;
        let answer = voter.answer(&request).await;
        timeout(STEP, session.send(&answer)).await??;
    }
}

#[cfg(test)]
mod tests;
