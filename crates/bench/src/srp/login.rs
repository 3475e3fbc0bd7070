//! How to log in, and what to tell people when that fails.

use crate::client::{ConnectError, ConnectKind};
use crate::engine::Place;
use std::net::SocketAddr;
use std::rc::Rc;
use weir_base::{Nanos, SECONDS};
use weir_fabric::{FabricError, Provider};
use weir_fabric_iwarp::{Config, CrcPolicy, Iwarp};
use weir_initiator_srp::{ChannelError, SessionConfig};
use weir_proto_srp::{PortId, RejectReason};

/// How to log in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// Addresses of the target, one or more: paths to the same units.
    pub addresses: Vec<SocketAddr>,
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
        Login { addresses: vec![address], target, initiator, crc: false, timeout: 30 * SECONDS }
    }

    pub(super) fn provider(&self, place: &Place) -> Rc<dyn Provider> {
        let crc = if self.crc { CrcPolicy::Require } else { CrcPolicy::Off };
        Rc::new(Iwarp::new(&place.reactor, &place.ring, Config { crc, ..Config::default() }))
    }

    pub(super) fn session(&self, initiator: PortId) -> SessionConfig {
        let mut c = SessionConfig::new("", self.target, initiator);
        c.addrs = self.addresses.iter().map(ToString::to_string).collect();
        c.command_timeout = self.timeout;
        c
    }

    /// Where the target is, for messages.
    pub fn place(&self) -> String {
        let all: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        all.join(", ")
    }

    /// A failed login in words.
    pub(super) fn explain(&self, e: ChannelError) -> ConnectError {
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
                         or one for all (`--any`), and map a volume to it; --initiator-port sets the port"
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
                "whatever listens there may not be an SRP target over iWARP",
            ),
        }
    }
}
