//! Verbs-shaped contract between protocols (SRP, BRP, NVMe/RDMA) and RDMA providers.
//!
//! | provider | crate |
//! |---|---|
//! | iWARP in user space over TCP | `weir-fabric-iwarp` |
//! | rdma-core (InfiniBand, RoCE, iWARP adapters, rxe, siw) | `weir-fabric-verbs` |
//! | in-process, for simulation | `weir-sim` |
//!
//! Everything belongs to one reactor, but for an [`Incoming`] connection, which may be accepted on
//! another reactor than the one that listens.
//!
//! # Rules
//! * Receives are posted (to a [`RecvQueue`]) before a connection is accepted or made; one that completes
//!   before the connection is established is held back and delivered after (S4).
//! * Whoever posts takes a slot of [`Connection::send_slots`] for each work request first, and one of
//!   [`Connection::read_slots`] for each RDMA READ; the provider gives them back when the request is over.
//! * Every wait for a slot ends with the connection at the latest, also where no slot ever was.
//! * Posting never fails. A request on a connection that is closed or closes completes with
//!   [`status::FLUSHED`].
//! * Work posted in one turn of the reactor leaves together at its end (one doorbell).
//! * On one connection a SEND is delivered after the data of all WRITEs posted before it.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]

mod recv;
mod unclaimed;

pub use recv::{RecvQueue, SoftRecvQueue, soft_queue};
pub use unclaimed::Unclaimed;
pub use weir_stream::source;

use std::rc::Rc;
use weir_base::Nanos;
use weir_mem::Slice;
use weir_reactor::{LocalFuture, Token, WaitChannel};

/// Values of [`Completion::result`](weir_reactor::Completion::result) for fabric operations; 0 is success.
pub mod status {
    /// The connection ended before the request was done.
    pub const FLUSHED: i32 = -1;
    /// The peer refused the key, range or right.
    pub const REMOTE_ACCESS: i32 = -2;
    /// The receive buffer was too short for the message.
    pub const LENGTH: i32 = -3;
}

/// How the reason of a connection begins that this program has ended for an error of its own.
pub const OWN_ERROR: &str = "an error of this program";

/// The end of a connection on which no READ could be outstanding: whoever waits for a place for one goes on, and finds
/// the connection closed.
pub fn release_readers(conn: &dyn Connection) {
    if conn.reads_out() == 0 {
        conn.read_slots().signal_n(1 << 24);
    }
}

/// A place in the peer's memory: the key that it gave and the address it meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// R_Key or STag.
    pub key: u32,
    /// Address (tagged offset).
    pub addr: u64,
}

/// What the peer may do with registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// RDMA READ.
    RemoteRead,
    /// RDMA WRITE.
    RemoteWrite,
}

/// How a SEND is to be delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SendFlags {
    /// Raise an event at the peer (solicited event).
    pub solicited: bool,
    /// Invalidate this key of the peer's.
    pub invalidate: Option<u32>,
}

/// An established (or formerly established) connection: a queue pair.
///
/// Receive completions go to the tokens posted on the connection's [`RecvQueue`], with `source` = this
/// connection's [`qp`](Connection::qp) and `len` = bytes received.
pub trait Connection {
    /// Number of this connection, unique in its reactor for the life of the process.
    fn qp(&self) -> u32;

    /// The peer's address, for messages and for telling hosts apart.
    fn peer(&self) -> String;

    /// Send queue: one unit for each work request.
    fn send_slots(&self) -> &WaitChannel;

    /// One unit for each RDMA READ that the peer serves at once (IRD/ORD agreed at set-up). Where that is none,
    /// whoever waits here waits for the end of the connection: look at [`reads_out`](Connection::reads_out) before.
    fn read_slots(&self) -> &WaitChannel;

    /// RDMA READs that may be outstanding at the peer, as agreed at set-up. 0: the peer serves none, and a command that
    /// needs one cannot be done (RFC 6581 allows an IRD of 0).
    fn reads_out(&self) -> u16;

    /// Sends `head` and then `data` as one message. `head` is copied. Nobody is told of the end but by
    /// `token` (use [`Token::NONE`] when the answer tells enough).
    fn send(&self, head: &[u8], data: Option<Slice>, flags: SendFlags, token: Token);

    /// As [`send`](Connection::send), with data from several places, in their order; takes them out of `data`.
    /// False: this provider cannot, or not for a message of this length, and nothing was done.
    fn send_gathered(
        &self,
        head: &[u8],
        data: &mut Vec<Slice>,
        flags: SendFlags,
        token: Token,
    ) -> bool {
        let _ = (head, data, flags, token);
        false
    }

    /// What was posted may leave now, rather than at the end of the turn: for data that has just been looked at, and
    /// is still in the caches when it is copied. A hint; a provider with hardware of its own has no use for it.
    fn push(&self) {}

    /// RDMA WRITE of `local` to the peer's memory. The data must not change before completion.
    fn write(&self, local: Slice, remote: Remote, token: Token);

    /// RDMA READ of the peer's memory into `local`. The completion says how much that was, or 0: not all providers tell.
    fn read(&self, local: Slice, remote: Remote, token: Token);

    /// A work request that moves nothing: completes `token` when all SENDs and WRITEs posted before it have left, as far
    /// as this side can tell (TCP: the peer's system has them), or never will.
    fn flush(&self, token: Token) {
        // The key of a WRITE of no bytes is not looked at.
        self.write(Slice::heap(1).sub(0, 0), Remote { key: 0, addr: 0 }, token);
    }

    /// Lets the peer access exactly `local` until [`deregister`](Connection::deregister); the key is hard
    /// to guess and good on this connection only where the provider can do that.
    ///
    /// # Errors
    /// No room for another registration.
    fn register(&self, local: &Slice, access: Access) -> Result<Remote, FabricError>;

    /// Ends a registration; the key is dead from here on.
    fn deregister(&self, key: u32);

    /// Shows every whole message to `tap` first, where it lies, before a posted receive is used for it;
    /// `None` ends that. False: this provider cannot (messages always go to posted receives).
    fn set_tap(&self, tap: Option<Rc<dyn Tap>>) -> bool {
        let _ = tap;
        false
    }

    /// Starts to close, in order (what is queued still goes out, within a time limit) or at once. Ends
    /// always, whatever the peer does. May be called again.
    fn disconnect(&self, now: bool);

    /// True when data of WRITEs and SENDs is read more than once on its way (a checksum), so that memory
    /// which may change meanwhile has to be copied first.
    fn needs_stable_data(&self) -> bool {
        false
    }

    /// True until it starts to close, from either side.
    fn is_open(&self) -> bool;

    /// When the peer last showed that it is there, as the reactor's clock tells it: by any data that came, a part of a
    /// message too, or by taking of much that it was sent. Who is behind a lot of data on a slow link is no less alive.
    /// To be asked several times in the time after which a peer counts as gone.
    fn last_life(&self) -> Nanos;

    /// Completes `token` (once) when the connection is down for good and all its requests have been
    /// completed. At once when that is so already.
    fn on_closed(&self, token: Token);

    /// Why it closed, in words for a log line; empty while open.
    fn close_reason(&self) -> String;
}

/// Takes messages that can be dealt with on the spot, so that they need no receive buffer, no completion
/// and no task. See [`Connection::set_tap`].
pub trait Tap {
    /// A message, while a receive is posted for it. True: it is done with, and the posted receive stays.
    /// False: it goes to the posted receive, and nothing has been done.
    ///
    /// Called from the provider's poll: it may post work on connections and take and give slots, but
    /// not close, register or post receives.
    fn message(&self, bytes: &[u8]) -> bool;

    /// `len` bytes from the peer have just been placed at byte `at` of the memory that was registered as `key`: a
    /// WRITE, or a part of one, which may go on or come again. They are still in the caches. Providers that cannot
    /// tell (the adapter places data by itself) do not call it, and messages of the same connection never come before
    /// it. As for [`message`](Tap::message), but it may not deregister either.
    fn placed(&self, key: u32, at: u64, len: usize) {
        let _ = (key, at, len);
    }
}

/// What an accepting or connecting side brings.
#[derive(Clone)]
pub struct Params {
    /// Private data of the connection manager: login request, response or rejection.
    pub private_data: Vec<u8>,
    /// Where messages from the peer are received.
    pub recv_queue: Rc<dyn RecvQueue>,
    /// RDMA READs that we want to have outstanding at the peer.
    pub reads_out: u16,
    /// RDMA READs that we serve at once.
    pub reads_in: u16,
}

/// A peer that wants to connect. Dropping it refuses without private data.
pub trait Incoming: Send {
    /// The peer's private data, possibly padded.
    fn private_data(&self) -> &[u8];

    /// The peer's address.
    fn peer(&self) -> String;

    /// True when private data has the form that the IB connection manager itself carries (SRP: 64-byte
    /// login), false for the RDMA connection manager's.
    fn native_cm(&self) -> bool {
        false
    }

    /// RDMA READs the peer will serve at once.
    fn peer_serves_reads(&self) -> u16;

    /// Accepts on the present reactor. The provider must be the present reactor's.
    fn accept(
        self: Box<Self>,
        provider: &dyn Provider,
        params: Params,
    ) -> LocalFuture<'static, Result<Rc<dyn Connection>, FabricError>>;

    /// Refuses, with private data where the transport can carry it.
    fn reject(self: Box<Self>, private_data: &[u8]);
}

/// A listening address.
pub trait Listener {
    /// The address, with the port that was chosen.
    fn local_addr(&self) -> String;

    /// The next peer that sent a well-formed connection request.
    fn next(&self) -> LocalFuture<'_, Result<Box<dyn Incoming>, FabricError>>;
}

/// A connection that was made, and the private data of the peer's acceptance.
pub type Connected = (Rc<dyn Connection>, Vec<u8>);

/// An RDMA provider of one reactor.
pub trait Provider {
    /// `iwarp`, `verbs`, `sim`.
    fn name(&self) -> &'static str;

    /// The provider itself, for [`Incoming::accept`] to find its own kind.
    fn as_any(&self) -> &dyn std::any::Any;

    /// A (shared) receive queue for up to `depth` posted buffers of at most `len` bytes.
    ///
    /// # Errors
    /// The device refuses.
    fn recv_queue(&self, depth: usize, len: usize) -> Result<Rc<dyn RecvQueue>, FabricError>;

    /// Makes memory known to the device once (the buffer pool). Providers in software need none.
    ///
    /// # Errors
    /// The device refuses, or a limit on locked memory.
    fn register_region(&self, base: std::ptr::NonNull<u8>, len: usize) -> Result<(), FabricError>;

    /// Listens on `addr` (`ip:port`, port 0 chooses).
    ///
    /// # Errors
    /// The address is not ours, in use, or no device serves it.
    fn listen(&self, addr: &str) -> Result<Rc<dyn Listener>, FabricError>;

    /// Connects; gives the connection and the peer's private data.
    fn connect<'a>(
        &'a self,
        addr: &'a str,
        params: Params,
    ) -> LocalFuture<'a, Result<Connected, FabricError>>;
}

/// Why a fabric operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The peer said no; its private data may tell why.
    #[error("the peer rejected the connection")]
    Rejected(Vec<u8>),
    /// No answer in time, or nothing listens there.
    #[error("cannot reach the peer: {0}")]
    Unreachable(String),
    /// The peer does not speak the protocol.
    #[error("protocol error at connection set-up: {0}")]
    Protocol(String),
    /// The address cannot be used here.
    #[error("cannot use address {0}: {1}")]
    Address(String, String),
    /// No provider, device, or room.
    #[error("{0}")]
    Unavailable(String),
}
