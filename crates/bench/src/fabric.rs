//! How targets are reached.

use crate::client::{ConnectError, ConnectKind};
use std::rc::Rc;
use weir_fabric::Provider;
use weir_fabric_iwarp::{Config, CrcPolicy, Iwarp};
use weir_fabric_verbs::Verbs;
use weir_reactor::Reactor;
use weir_uring::{Ring, TcpNetwork};

/// How to reach a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fabric {
    /// iWARP in user space over TCP.
    #[default]
    Iwarp,
    /// An RDMA adapter, by way of rdma-core.
    Verbs,
}

impl Fabric {
    /// The fabric of a reactor; `crc`: ask for MPA's CRC, where there is that.
    ///
    /// # Errors
    /// There is no RDMA device.
    pub fn provider(
        self,
        crc: bool,
        reactor: &Reactor,
        ring: &Ring,
    ) -> Result<Rc<dyn Provider>, ConnectError> {
        match self {
            Fabric::Iwarp => {
                let crc = if crc { CrcPolicy::Require } else { CrcPolicy::Off };
                let config = Config { crc, ..Config::default() };
                Ok(Rc::new(Iwarp::new(reactor, TcpNetwork::new(ring), config)))
            }
            Fabric::Verbs => {
                let verbs = weir_fabric_verbs::load().and_then(|lib| {
                    lib.devices()?;
                    let config = weir_fabric_verbs::Config::default();
                    Verbs::new(reactor, ring, lib, config)
                });
                let verbs = verbs.map_err(|e| {
                    let message = "the verbs fabric cannot be used on this machine";
                    let hint = "make a device, or leave --fabric out to use iWARP in user space";
                    ConnectError::new(ConnectKind::NoFabric, message, e, hint)
                })?;
                Ok(Rc::new(verbs))
            }
        }
    }
}
