//! What a front end of any protocol is to the node that has it.

use crate::access::Access;
use crate::counts::Counts;
use crate::unit::Units;
use std::rc::Rc;
use std::sync::Arc;
use weir_base::Nanos;
use weir_fabric::{FabricError, Provider};
use weir_mem::BufPool;
use weir_proto_scsi::identity::Identity;
use weir_reactor::LocalFuture;
use weir_stream::Network;

/// What a target port is made of, whatever it speaks.
pub struct PortSpec {
    /// Its identifier: where the protocol has one of 16 bytes, that.
    pub id: [u8; 16],
    /// Its number among the target ports of the node (SPC-4: relative target port identifier).
    pub relative: u16,
    /// Channels, or connections, that hosts may have at once.
    pub channels: usize,
    /// Reactors that will [join](Frontend::join) it.
    pub reactors: usize,
    /// Who sees what.
    pub access: Arc<Access>,
    /// Vendor and product, where a host asks what is not there.
    pub identity: Identity,
    /// Names this run of the program.
    pub incarnation: u64,
    /// Changes when volatile caches may have been lost.
    pub power: u64,
    /// Nobody can guess it, and no other port has it.
    pub seed: [u8; 32],
}

/// What a reactor has for the front ends on it.
pub struct Site {
    /// RDMA, by the transport of the port; none where that is TCP.
    pub fabric: Option<Rc<dyn Provider>>,
    /// Byte streams: TCP.
    pub network: Rc<dyn Network>,
    /// Its sides of the units.
    pub units: Rc<Units>,
    /// Its data buffers.
    pub pool: BufPool,
}

impl Site {
    /// RDMA.
    ///
    /// # Errors
    /// The port's transport is not RDMA.
    pub fn rdma(&self) -> Result<&Rc<dyn Provider>, FabricError> {
        self.fabric.as_ref().ok_or_else(|| FabricError::Unavailable("it needs RDMA".into()))
    }
}

/// A host's login, for status displays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NexusLine {
    /// The initiator port, as the [access map](crate::HostRule::ports) has it.
    pub initiator: Vec<u8>,
    /// Address of a host that has no other identifier.
    pub address: String,
    /// Its channels.
    pub channels: usize,
}

/// A channel of the present reactor, for status displays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelLine {
    /// The peer's address; empty while there is no connection.
    pub peer: String,
    /// The initiator port, as the [access map](crate::HostRule::ports) has it.
    pub initiator: Vec<u8>,
    /// The host that it belongs to.
    pub host: String,
    /// Commands so far.
    pub commands: u64,
    /// Commands under way.
    pub busy: u32,
}

/// Request structures of the present reactor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestsLine {
    /// All there are.
    pub total: usize,
    /// Those in use.
    pub busy: usize,
    /// Commands that wait for one.
    pub waiting: usize,
}

/// A target port of any protocol, on several reactors. It may be used on any of them.
///
/// | call | where | when |
/// |---|---|---|
/// | [`join`](Frontend::join) | each of its reactors | first |
/// | [`listen`](Frontend::listen) | one of them | when all have joined |
/// | [`close`](Frontend::close) | each | at the end, before [`leave`](Frontend::leave) on any |
/// | [`leave`](Frontend::leave) | each | last |
///
/// docs/adding-a-door.md says what a front end owes to units: fences, parting from hosts, losses.
pub trait Frontend: Send + Sync {
    /// Adds the present reactor.
    ///
    /// # Errors
    /// Not enough memory, or the transport refuses.
    fn join(&self, site: &Site) -> Result<(), FabricError>;

    /// Listens on `addr` (`ip:port`), on the present reactor, which has joined; hosts are spread over all. Gives the address, with the
    /// port that was chosen.
    ///
    /// # Errors
    /// The address cannot be listened on.
    fn listen(&self, site: &Site, addr: &str) -> Result<String, FabricError>;

    /// Begins to end the port on the present reactor: nobody is let in any more.
    fn close(&self);

    /// Ends the port's part on the present reactor, within so many nanoseconds. False when commands had not ended.
    fn leave(&self, patience: Nanos) -> LocalFuture<'_, bool>;

    /// Connections that an error of this program has ended, and what has not been told of them.
    fn broken(&self) -> (u64, Vec<String>);

    /// What has happened at the port since it was made.
    fn counts(&self) -> &Counts;

    /// Hosts that are logged in, on all reactors.
    fn nexuses(&self) -> Vec<NexusLine>;

    /// Channels of the present reactor.
    fn channels(&self) -> Vec<ChannelLine>;

    /// Request structures of the present reactor; `None` where it has no part of the port.
    fn requests(&self) -> Option<RequestsLine>;
}
