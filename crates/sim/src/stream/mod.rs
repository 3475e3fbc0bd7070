//! Byte streams inside the process, over the same network as the fabric, that use every freedom which TCP and its
//! sockets have:
//!
//! * sends and receives are short, down to one byte, and data arrives in pieces that nobody sent;
//! * the kernel of a killed process still sends what it had taken, and one that lost power does not;
//! * buffers are finite: a peer that does not read stops its sender;
//! * streams are cut, reset and time out between any two bytes.

mod pipe;
mod setup;

pub(crate) use pipe::Pipe;
pub(crate) use setup::{ListeningInner, Partings};

use crate::core::Core;
use crate::fabric::Net;
use pipe::{SimStream, SimWatch};
use std::any::Any;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use weir_reactor::{CompletionFuture, LocalFuture};
use weir_stream::{Listener, Moved, Network, Parted, Piece, Ready, Room, Stream, Watch};

/// The streams of one simulated reactor.
#[derive(Clone)]
pub struct SimNetwork {
    net: Rc<Net>,
    core: Rc<Core>,
}

impl SimNetwork {
    pub(crate) fn new(net: Rc<Net>, core: Rc<Core>) -> SimNetwork {
        SimNetwork { net, core }
    }
}

impl Network for SimNetwork {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn resolve(&self, name: &str) -> Result<SocketAddr, String> {
        let found = self.net.resolve(name, self.core.node);
        let (node, port) = found.ok_or_else(|| "no such address".to_string())?;
        Ok(setup::address(node, port))
    }

    fn listen(&self, addr: SocketAddr) -> io::Result<Box<dyn Listener>> {
        setup::listen(self, addr)
    }

    fn connect(&self, addr: SocketAddr) -> LocalFuture<'_, io::Result<Box<dyn Stream>>> {
        Box::pin(setup::connect(self.clone(), addr))
    }

    fn secret(&self) -> u64 {
        self.net.draw(|r| r.next_u64())
    }
}

impl Stream for SimStream {
    fn receive(&self, into: &[Room]) -> Moved {
        self.pipe.receive(self.side, into)
    }

    fn send(&self, from: &[Piece]) -> Moved {
        self.pipe.send(self.side, from)
    }

    fn ready(&self, write: bool) -> CompletionFuture {
        self.pipe.ready(self.side, write)
    }

    fn watch(&self, key: u64, ready: Ready) -> Box<dyn Watch> {
        Box::new(SimWatch::new(&self.pipe, self.side, key, ready))
    }

    fn shutdown(&self, both: bool) {
        self.pipe.shutdown(self.side, both);
    }

    fn abort(&self) {
        self.pipe.abort(self.side);
    }

    fn unacknowledged(&self) -> u64 {
        self.pipe.unacknowledged(self.side)
    }

    fn has_ended(&self) -> bool {
        self.pipe.has_ended(self.side)
    }

    fn peer(&self) -> Option<SocketAddr> {
        self.pipe.peer(self.side)
    }

    fn local(&self) -> Option<SocketAddr> {
        self.pipe.local(self.side)
    }

    fn part(self: Box<Self>) -> Box<dyn Parted> {
        setup::part(*self)
    }
}
