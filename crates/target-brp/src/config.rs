//! Settings of a target port.

use weir_base::{Nanos, SECONDS};
use weir_proto_brp::{Features, PortId};

/// Longest message that a target receives and most inline data that it sends, in bytes: what one FPDU of the
/// iWARP provider carries, so that a message is never cut.
pub(crate) const MESSAGE: usize = 61440;

/// Credits that every channel has, as long as there are receive buffers for that: so many for each channel of the port.
pub(crate) const LEAST: u16 = 2;

/// Settings of one BRP target port. Numbers are per reactor unless they say otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetConfig {
    /// The port's identifier.
    pub port_id: PortId,
    /// Relative target port identifier, as logical units know the port; 1 to 65535.
    pub relative_port: u16,
    /// Features that are granted when asked for.
    pub features: Features,
    /// Command slots of one channel at most.
    pub depth: u16,
    /// Messages that one channel may have on the way at most.
    pub credits: u16,
    /// Longest message received, in bytes; a multiple of 4096.
    pub max_message: usize,
    /// Receive buffers of that length.
    pub recv_buffers: usize,
    /// Requests for commands that wait for something.
    pub requests: usize,
    /// Channels of the whole port that have a connection. No session has a channel of this number or a higher one.
    pub max_channels: usize,
    /// Channels without a connection that are remembered of one host; as many as `max_channels` are of all together.
    pub remembered: usize,
    /// RDMA READs wanted outstanding per channel; the peer may serve fewer.
    pub reads_out: u16,
    /// Longest single RDMA operation, in bytes.
    pub max_rdma: u32,
    /// Most bytes of one command; no more than the largest buffer of the pool.
    pub max_len: u32,
    /// Most descriptors of one command.
    pub max_segments: u16,
    /// Most commands of one message.
    pub max_commands: u16,
    /// Longest keep-alive that is agreed to, in nanoseconds; 0 allows none at all.
    pub keep_alive: Nanos,
    /// How long a session without channels is kept, in nanoseconds.
    pub session_timeout: Nanos,
    /// How long a login waits for what the lost connection left.
    pub drain_timeout: Nanos,
    /// Names this run of the program to its initiators.
    pub incarnation: u64,
    /// Changes when the machine loses power.
    pub power: u64,
    /// What nonces of keyed logins are drawn from: 32 bytes that nobody can guess, other ones for each run.
    pub nonce_seed: [u8; 32],
}

impl Default for TargetConfig {
    fn default() -> Self {
        TargetConfig {
            port_id: PortId(0x5745_4952_0000_0001_5745_4952_0000_0001u128.to_be_bytes()),
            relative_port: 1,
            features: Features::ALL,
            depth: 1024,
            credits: 128,
            max_message: MESSAGE,
            recv_buffers: 1024,
            requests: 1024,
            max_channels: 1024,
            remembered: 64,
            reads_out: 16,
            max_rdma: 1 << 20,
            max_len: 1 << 20,
            max_segments: 256,
            max_commands: 256,
            keep_alive: 10 * SECONDS,
            session_timeout: 60 * SECONDS,
            drain_timeout: 5 * SECONDS,
            incarnation: 1,
            power: 1,
            nonce_seed: [0; 32],
        }
    }
}
