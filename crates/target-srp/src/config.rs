//! Settings of a target port.

use weir_base::{MILLIS, Nanos, SECONDS};
use weir_proto_srp::{PortId, TargetPolicy};

/// Credits that every channel has, as long as there are receive buffers for that: one more than these for each channel of
/// the port.
pub(crate) const LEAST: u32 = 4;

/// Settings of one SRP target port. Numbers are per reactor unless they say otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetConfig {
    /// The port's identifier: id_ext and ioc_guid of a Linux host's add_target line.
    pub port_id: PortId,
    /// Relative target port identifier, as VPD pages name the port; 1 to 65535.
    pub relative_port: u16,
    /// Request structures of the whole port, divided among its reactors (S0: 2 000).
    pub requests: usize,
    /// Receive buffers; fewer than requests (S0).
    pub recv_buffers: usize,
    /// What a login is offered.
    pub policy: TargetPolicy,
    /// Channels of the whole port.
    pub max_channels: usize,
    /// RDMA READs wanted outstanding per channel; the peer may serve fewer.
    pub reads_out: u16,
    /// Longest single RDMA operation, in bytes.
    pub max_rdma: u32,
    /// Longest piece of a command's data that is moved and stored in one step, in bytes, when data passes
    /// through buffers.
    pub chunk: usize,
    /// How long a login waits for channels that it ends, and then for the reactor that is to have it.
    pub terminate_timeout: Nanos,
    /// How long a connection may stay without an IU of its host's before it is probed with CRED_REQ. Ten seconds at least
    /// where hosts are Linux: a login's answer and CRED_REQ must not come to them at once.
    pub probe_after: Nanos,
    /// How often the units of a host that asked for asynchronous events (SRP_AER_REQ) are looked at.
    pub event_period: Nanos,
}

impl Default for TargetConfig {
    fn default() -> Self {
        TargetConfig {
            port_id: PortId::new(0x5745_4952_0000_0001, 0x5745_4952_0000_0001),
            relative_port: 1,
            requests: 2000,
            recv_buffers: 1024,
            policy: TargetPolicy { credits: 256, ..TargetPolicy::default() },
            max_channels: 1024,
            reads_out: 16,
            max_rdma: 1 << 20,
            chunk: 1 << 20,
            terminate_timeout: 5 * SECONDS,
            probe_after: 60 * SECONDS,
            event_period: 100 * MILLIS,
        }
    }
}
