//! The operating system below a reactor.
//!
//! [`Ring`] is the reactor's [`Driver`](weir_reactor::Driver): disk operations, readiness of sockets and sleep
//! all go through one `io_uring`. Socket *data* moves by plain non-blocking `recvmsg`/`sendmsg` on sockets
//! that are busy (one system call moves a whole batch either way, see ARCHITECTURE.md, "Sockets"); a
//! socket that falls silent is handed to the ring to watch. [`TcpNetwork`] has them as streams.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]

mod blocking;
mod closing;
mod control;
pub mod device;
mod file;
mod holes;
mod net;
mod ring;
mod stream;
mod thread;

pub use blocking::blocking;
pub use closing::{drop_aside, never_wait};
pub use control::control;
pub use device::{Held, HoldError, Identity};
pub use file::{FileDisk, OpenOptions, Opened, Remains};
pub use net::{Congestion, SocketOptions, TcpListener, TcpStream, cores, pin_to_core};
pub use ring::{Ring, Watch};
pub use stream::TcpNetwork;
pub use thread::thread_waits_in;
