//! The contract between protocols on byte streams and whatever carries bytes: TCP sockets through io_uring
//! (`weir-uring`), or simulated ones that are short, slow, cut and reset (`weir-sim`).
//!
//! Everything belongs to one reactor, but for a [`Parted`] stream, which is on its way from one reactor to another.
//!
//! # Rules
//! * Nothing here waits: calls move what can be moved now. Whoever wants more asks a [`Watch`], or waits for
//!   [`Stream::ready`].
//! * A call may move less than it was given, down to one byte.
//! * What was sent arrives in order and whole, or the stream breaks. Nobody is told how far it had come.
//! * Dropping a stream closes it: what was sent still goes out, and what the peer sends is refused.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]

mod lobby;
mod piece;
mod source;

pub use lobby::Lobby;
pub use piece::{Piece, Room};
pub use source::source;

use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use weir_reactor::{CompletionFuture, LocalFuture};

/// The stream has no data or no room just now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WouldBlock;

/// What came of trying to move bytes: how many, or none for now. An error: the stream is broken, for good.
pub type Moved = io::Result<Result<usize, WouldBlock>>;

/// Where watches put the keys of streams that are ready.
pub type Ready = Rc<RefCell<VecDeque<u64>>>;

/// A connected byte stream on the present reactor.
pub trait Stream {
    /// Receives into `into`, one after the other; 0 bytes is the end of the peer's direction.
    ///
    /// # Errors
    /// The stream is broken.
    fn receive(&self, into: &[Room]) -> Moved;

    /// Sends what lies in `from`, one after the other.
    ///
    /// # Errors
    /// The stream is broken.
    fn send(&self, from: &[Piece]) -> Moved;

    /// Waits until there is something to receive (or room to send, with `write`), or the stream has ended. Dropping the
    /// stream ends the wait.
    fn ready(&self, write: bool) -> CompletionFuture;

    /// A watch that puts `key` into `ready`. It goes before the stream does.
    fn watch(&self, key: u64, ready: Ready) -> Box<dyn Watch>;

    /// Ends our direction when all that was sent has gone, or with `both` the peer's too.
    fn shutdown(&self, both: bool);

    /// Ends both directions at once: what has not gone is dropped, and the peer is told by a reset.
    fn abort(&self);

    /// The system keeps about so many bytes at most that have not left yet. A slow peer gets what is sent after them the sooner.
    /// Does nothing where the system has no such limit.
    fn limit_unsent(&self, _bytes: u32) {}

    /// Bytes that were sent and that the peer's system has not acknowledged.
    fn unacknowledged(&self) -> u64;

    /// The peer's direction has ended, or the stream is broken, as far as its system has told: what it sent before may be yet
    /// to be received.
    fn has_ended(&self) -> bool;

    /// The peer's address; `None` when it is gone.
    fn peer(&self) -> Option<SocketAddr>;

    /// Our own address, by which the peer has come; `None` when that is not known.
    fn local(&self) -> Option<SocketAddr>;

    /// Makes it ready to go to another reactor. Nobody waits for it or watches it.
    fn part(self: Box<Self>) -> Box<dyn Parted>;
}

impl dyn Stream + '_ {
    /// Receives into `into`; 0 bytes is the end of the peer's direction.
    ///
    /// # Errors
    /// The stream is broken.
    pub fn receive_bytes(&self, into: &mut [u8]) -> Moved {
        // SAFETY: nobody else uses the bytes while they are borrowed here.
        self.receive(&[unsafe { Room::new(into.as_mut_ptr(), into.len()) }])
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// The stream is broken.
    pub fn send_bytes(&self, from: &[u8]) -> Moved {
        // SAFETY: readable while they are borrowed here.
        self.send(&[unsafe { Piece::new(from.as_ptr(), from.len()) }])
    }

    /// Sends all of `from`, and waits until it is taken.
    ///
    /// # Errors
    /// The stream is broken.
    pub async fn send_all(&self, mut from: &[u8]) -> io::Result<()> {
        while !from.is_empty() {
            match self.send_bytes(from)? {
                Ok(n) => from = &from[n..],
                Err(WouldBlock) => drop(self.ready(true).await),
            }
        }
        Ok(())
    }

    /// The next bytes, once there are any: at most as many as `into` has room for. 0 is the end.
    ///
    /// # Errors
    /// The stream is broken.
    pub async fn receive_some(&self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.receive_bytes(into)? {
                Ok(n) => return Ok(n),
                Err(WouldBlock) => drop(self.ready(false).await),
            }
        }
    }
}

/// Tells once, for each time it is armed, when a stream becomes readable, writable or broken. Dropping it ends that.
pub trait Watch {
    /// Asks for one event: there is something to receive or the stream has ended, and with `write` also room to send.
    fn arm(&self, write: bool);
}

/// A stream on its way to another reactor. Dropping it closes it.
pub trait Parted: Send {
    /// Puts it on the reactor of `network`. `None`: that is a network of another kind.
    fn join(self: Box<Self>, network: &dyn Network) -> Option<Box<dyn Stream>>;

    /// Sends as much of `bytes` as there is room for, and closes.
    fn refuse(self: Box<Self>, bytes: &[u8]);
}

/// What a listener has.
pub enum Accepted {
    /// A peer.
    Stream(Box<dyn Stream>),
    /// Nobody waits: see [`Listener::ready`].
    Nobody,
    /// There is no descriptor for whoever waits.
    NoDescriptor,
    /// A peer that has gone again, or another passing trouble.
    Gone,
}

/// An address that peers may connect to. Dropping it ends that, and the waits for it.
pub trait Listener {
    /// The address, with the port that was chosen.
    fn local_addr(&self) -> SocketAddr;

    /// The next peer, if one waits.
    fn accept(&self) -> Accepted;

    /// Waits until a peer may wait.
    fn ready(&self) -> CompletionFuture;
}

/// Streams of one reactor.
pub trait Network {
    /// The network itself, for [`Parted::join`] to find its own kind.
    fn as_any(&self) -> &dyn Any;

    /// The address that `name` (`address:port` or `name:port`) means.
    ///
    /// # Errors
    /// It means none, in words.
    fn resolve(&self, name: &str) -> Result<SocketAddr, String>;

    /// Listens on `addr`; port 0 chooses one.
    ///
    /// # Errors
    /// The address is not ours, or in use.
    fn listen(&self, addr: SocketAddr) -> io::Result<Box<dyn Listener>>;

    /// Connects. Takes as long as the network lets it.
    fn connect(&self, addr: SocketAddr) -> LocalFuture<'_, io::Result<Box<dyn Stream>>>;

    /// A number that nobody can guess, for keys.
    fn secret(&self) -> u64;
}
