//! An RDMA provider inside the process, over a network that delays, reorders between connections, cuts
//! and partitions, and that uses every freedom which the contract in `weir-fabric` leaves:
//!
//! * local memory is read piece by piece between post and completion, never at the post; the memory of an
//!   RDMA READ is sampled piece by piece too, and its data may arrive after a SEND posted later;
//! * completions come early (the data has left) or late (the peer has acknowledged), reads out of order
//!   with the rest;
//! * receives are taken in any order, messages wait while there is none;
//! * what arrives before the connection was handed to its owner is held back;
//! * whoever breaks a rule that a caller must keep (posts without a slot) panics.

mod connection;
mod net;
mod pair;
mod recv;
mod setup;
mod transfer;

pub use net::{Carrier, Net, NetConfig, NodeNumber, Planted, Style};
pub use pair::Cut;

use crate::core::Core;
use setup::SimListener;
use std::cell::Cell;
use std::ptr::NonNull;
use std::rc::Rc;
use weir_fabric::{Connected, FabricError, Listener, Params, Provider, RecvQueue};
use weir_reactor::LocalFuture;

/// The provider of one simulated reactor.
#[derive(Clone)]
pub struct SimFabric(pub(crate) Rc<Inner>);

pub(crate) struct Inner {
    pub(crate) net: Rc<Net>,
    pub(crate) core: Rc<Core>,
    pub(crate) native_cm: Cell<bool>,
}

impl SimFabric {
    pub(crate) fn new(net: Rc<Net>, core: Rc<Core>) -> SimFabric {
        SimFabric(Rc::new(Inner { net, core, native_cm: Cell::new(false) }))
    }

    /// Connections made from here on carry private data in the form of the IB connection manager
    /// ([`Incoming::native_cm`](weir_fabric::Incoming::native_cm)).
    pub fn set_native_cm(&self, yes: bool) {
        self.0.native_cm.set(yes);
    }
}

impl Provider for SimFabric {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn recv_queue(&self, depth: usize, len: usize) -> Result<Rc<dyn RecvQueue>, FabricError> {
        Ok(Rc::new(recv::SimRecvQueue::new(self.0.core.clone(), depth, len)))
    }

    fn register_region(&self, _base: NonNull<u8>, _len: usize) -> Result<(), FabricError> {
        Ok(())
    }

    fn listen(&self, addr: &str) -> Result<Rc<dyn Listener>, FabricError> {
        Ok(SimListener::new(&self.0, addr)?)
    }

    fn connect<'a>(
        &'a self,
        addr: &'a str,
        params: Params,
    ) -> LocalFuture<'a, Result<Connected, FabricError>> {
        Box::pin(setup::connect(self.0.clone(), addr.to_string(), params))
    }
}
