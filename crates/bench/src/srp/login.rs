//! How to log in, and what to tell people when that fails.

use crate::client::{ConnectError, ConnectKind};
use crate::engine::Place;
use crate::fabric::Fabric;
use std::net::SocketAddr;
use std::rc::Rc;
use std::slice::from_ref;
use weir_base::{Nanos, SECONDS};
use weir_fabric::{FabricError, Provider};
use weir_initiator_srp::{ChannelError, Error, PathPolicy, SessionConfig};
use weir_proto_srp::{PortId, RejectReason};
use weir_reactor::Reactor;
use weir_uring::Ring;

/// Time without a path after which commands go over another.
const FAST_IO_FAIL: Nanos = SECONDS;
/// Longest pause between attempts to log in to one of several paths.
const RECONNECT: Nanos = 2 * SECONDS;

/// How to log in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// How to reach the target.
    pub fabric: Fabric,
    /// Addresses, one or more: of one target port, whose channels are spread over them, unless `multipath`.
    pub addresses: Vec<SocketAddr>,
    /// Each address is a target port of its own, by which the same units are reached, and has a session.
    pub multipath: Option<PathPolicy>,
    /// Each path may have an initiator port of its own: paths to one and the same target port then do not
    /// end each other.
    pub port_per_path: bool,
    /// The target port. All zero: whichever answers at the address, where the target allows that.
    pub target: PortId,
    /// Our port.
    pub initiator: PortId,
    /// Ask for MPA's CRC.
    pub crc: bool,
    /// A command that takes longer is aborted, nanoseconds.
    pub timeout: Nanos,
}

impl Login {
    /// The defaults for this address and these ports.
    pub fn new(address: SocketAddr, target: PortId, initiator: PortId) -> Login {
        Login {
            fabric: Fabric::Iwarp,
            addresses: vec![address],
            multipath: None,
            port_per_path: false,
            target,
            initiator,
            crc: false,
            timeout: 30 * SECONDS,
        }
    }

    /// The fabric of a reactor of the load generator.
    ///
    /// # Errors
    /// There is no RDMA device.
    pub fn provider(&self, place: &Place) -> Result<Rc<dyn Provider>, ConnectError> {
        self.provider_on(&place.reactor, &place.ring)
    }

    /// The fabric of a reactor.
    ///
    /// # Errors
    /// There is no RDMA device.
    pub fn provider_on(
        &self,
        reactor: &Reactor,
        ring: &Ring,
    ) -> Result<Rc<dyn Provider>, ConnectError> {
        self.fabric.provider(self.crc, reactor, ring)
    }

    /// The sessions that the login stands for: one, or one for each path.
    pub fn sessions(&self, initiator: PortId) -> Vec<SessionConfig> {
        let one = |addrs: &[SocketAddr], initiator| {
            let mut c = SessionConfig::new("", self.target, initiator);
            c.addrs = addrs.iter().map(ToString::to_string).collect();
            c.command_timeout = self.timeout;
            c
        };
        if self.multipath.is_none() {
            return vec![one(&self.addresses, initiator)];
        }
        let path = |(i, a): (usize, &SocketAddr)| {
            let other = if self.port_per_path { (i as u64) << 48 } else { 0 };
            let port = PortId::new(initiator.extension() ^ other, initiator.guid());
            let mut c = one(from_ref(a), port);
            (c.fast_io_fail, c.reconnect_max) = (FAST_IO_FAIL, RECONNECT);
            c
        };
        self.addresses.iter().enumerate().map(path).collect()
    }

    /// Where the target is, for messages.
    pub fn place(&self) -> String {
        let all: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        all.join(", ")
    }

    /// A failed login in words.
    pub fn explain(&self, e: ChannelError) -> ConnectError {
        let at = self.place();
        match e {
            ChannelError::Rejected(reason) => {
                let hint = match reason {
                    RejectReason::NoNexus if self.target.is_zero() => {
                        "the target wants to be called by its port identifier: give --id-ext and --ioc-guid, \
                         which `weir target list` prints at the target"
                    }
                    RejectReason::NoNexus => {
                        "compare --id-ext and --ioc-guid with what `weir target list` prints at the target"
                    }
                    RejectReason::ChannelLimit => {
                        "the target may not know this initiator port: make a host for it (`weir host create`) \
                         or one for all (`--allow-any`), and map a volume to it; --initiator-port sets the port"
                    }
                    RejectReason::InsufficientResources => {
                        "use fewer --channels, or wait until other hosts have left"
                    }
                    _ => "the target's log says more",
                };
                ConnectError::new(
                    ConnectKind::Refused,
                    format!("the target at {at} refused the login"),
                    format!(
                        "{reason} (initiator port {}, target port {})",
                        self.initiator, self.target
                    ),
                    hint,
                )
            }
            ChannelError::Fabric(FabricError::Unreachable(why)) => ConnectError::new(
                ConnectKind::Unreachable,
                format!("no target answers at {at}"),
                why,
                "check the address, and that the target runs (`weir status` at the target)",
            ),
            ChannelError::Fabric(FabricError::Address(address, why)) => ConnectError::new(
                ConnectKind::Unreachable,
                format!("the address {address} cannot be used"),
                why,
                "give another address",
            ),
            e => ConnectError::new(
                ConnectKind::Failed,
                format!("the login at {at} failed"),
                e,
                "whatever listens there may not be an SRP target of this fabric",
            ),
        }
    }

    /// A unit that does not answer as a disk does.
    pub(super) fn no_disk(&self, lun: u16, e: &Error) -> ConnectError {
        let at = self.place();
        // LOGICAL UNIT NOT SUPPORTED, or no peripheral at this number.
        let unknown = e.sense().is_some_and(|s| s.asc == 0x25)
            || matches!(e, Error::Invalid(w) if w.contains("qualifier"));
        if unknown {
            return ConnectError::new(
                ConnectKind::NoVolume,
                format!("the target at {at} has no LUN {lun} for this host"),
                e,
                "`weir inquiry --target ADDRESS` lists what it has; map the volume to the host (`weir map create`)",
            );
        }
        let message = format!("LUN {lun} of the target at {at} cannot be used");
        ConnectError::new(ConnectKind::Failed, message, e, "`weir inquiry` shows what it is")
    }
}
