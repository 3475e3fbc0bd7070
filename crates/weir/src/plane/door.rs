//! A target port's front end, whichever protocol it speaks.

use std::rc::Rc;
use std::sync::Arc;
use weir_base::Nanos;
use weir_control::model::{Protocol, TargetPort};
use weir_fabric::{FabricError, Provider};
use weir_mem::BufPool;
use weir_proto_scsi::identity::Identity;
use weir_proto_srp::{PortId, TargetPolicy};
use weir_target_brp as brp;
use weir_target_core::{Access, Counts, Units};
use weir_target_srp as srp;

/// The front end of one port. Cloning gives another handle; it may be used on any reactor.
#[derive(Clone)]
pub(crate) enum Door {
    Srp(srp::Target),
    Brp(brp::Target),
}

/// A host's login, for status displays.
pub(crate) struct NexusLine {
    pub(crate) initiator: PortId,
    pub(crate) address: String,
    pub(crate) channels: usize,
}

/// A channel of the present reactor.
pub(crate) struct ChannelLine {
    pub(crate) peer: String,
    pub(crate) initiator: PortId,
    pub(crate) host: String,
    pub(crate) commands: u64,
    pub(crate) busy: u32,
}

/// Request structures of the present reactor.
pub(crate) struct RequestsLine {
    pub(crate) total: usize,
    pub(crate) busy: usize,
    pub(crate) waiting: usize,
}

impl Door {
    /// A front end for `port`, to run on `reactors` reactors.
    pub(crate) fn new(
        port: &TargetPort,
        access: Arc<Access>,
        identity: Identity,
        reactors: usize,
        nonce_seed: [u8; 32],
    ) -> Door {
        let id = PortId::new(port.id_ext.0, port.ioc_guid.0);
        match port.protocol {
            Protocol::Srp => {
                let default = srp::TargetConfig::default();
                let channels = usize::from(port.channels);
                // For each channel what it has at least, and what the first ones may have beyond that.
                let recv_buffers = default.recv_buffers + (srp::LEAST as usize + 1) * channels;
                let config = srp::TargetConfig {
                    port_id: id,
                    relative_port: port.relative,
                    max_channels: channels,
                    recv_buffers,
                    // Each command that a host has credit for finds one: none of them waits for another host's.
                    requests: (recv_buffers + 1) * reactors,
                    policy: TargetPolicy { credits: 256, ..TargetPolicy::default() },
                    ..default
                };
                Door::Srp(srp::Target::new(config, access, identity, reactors))
            }
            Protocol::Brp => {
                let default = brp::TargetConfig::default();
                let channels = usize::from(port.channels);
                let config = brp::TargetConfig {
                    port_id: weir_proto_brp::PortId(id.0),
                    relative_port: port.relative,
                    max_channels: channels,
                    // A half at least for the first ones, beyond what each channel has.
                    recv_buffers: default
                        .recv_buffers
                        .max(default.recv_buffers / 2 + usize::from(brp::LEAST) * channels),
                    incarnation: incarnation(),
                    power: power(),
                    nonce_seed,
                    ..default
                };
                Door::Brp(brp::Target::new(config, access))
            }
        }
    }

    /// Adds the present reactor.
    pub(crate) fn join(
        &self,
        provider: Rc<dyn Provider>,
        units: Rc<Units>,
        pool: BufPool,
    ) -> Result<(), FabricError> {
        match self {
            Door::Srp(t) => t.join(provider, units, pool).map(drop),
            Door::Brp(t) => t.join(provider, units, pool).map(drop),
        }
    }

    /// Listens on `addr`.
    pub(crate) fn listen(&self, p: &dyn Provider, addr: &str) -> Result<String, FabricError> {
        match self {
            Door::Srp(t) => t.listen(p, addr),
            Door::Brp(t) => t.listen(p, addr),
        }
    }

    /// Begins to end the port on the present reactor: nobody is let in any more.
    pub(crate) fn close(&self) {
        match self {
            Door::Srp(t) => t.close(),
            Door::Brp(t) => t.close(),
        }
    }

    /// Ends the port's part on the present reactor, within so many nanoseconds. False when commands had not ended.
    pub(crate) async fn leave(&self, patience: Nanos) -> bool {
        match self {
            Door::Srp(t) => t.leave_within(patience).await,
            Door::Brp(t) => t.leave_within(patience).await,
        }
    }

    /// Connections that an error of this program has ended, and what has not been told of them.
    pub(crate) fn broken(&self) -> (u64, Vec<String>) {
        match self {
            Door::Srp(t) => t.broken(),
            Door::Brp(t) => t.broken(),
        }
    }

    /// What has happened at the port since it was made.
    pub(crate) fn counts(&self) -> &Counts {
        match self {
            Door::Srp(t) => t.counts(),
            Door::Brp(t) => t.counts(),
        }
    }

    /// Hosts that are logged in.
    pub(crate) fn nexuses(&self) -> Vec<NexusLine> {
        match self {
            Door::Srp(t) => {
                let line = |n: srp::NexusInfo| NexusLine {
                    initiator: n.initiator,
                    address: n.address,
                    channels: n.channels,
                };
                t.nexuses().into_iter().map(line).collect()
            }
            Door::Brp(t) => {
                let line = |s: brp::SessionInfo| NexusLine {
                    initiator: PortId(s.initiator.0),
                    address: String::new(),
                    channels: s.channels,
                };
                t.sessions().into_iter().map(line).collect()
            }
        }
    }

    /// Channels of the present reactor.
    pub(crate) fn channels(&self) -> Vec<ChannelLine> {
        match self {
            Door::Srp(t) => {
                let line = |c: srp::ChannelInfo| ChannelLine {
                    peer: c.peer,
                    initiator: c.initiator,
                    host: c.host,
                    commands: c.commands,
                    busy: c.busy,
                };
                t.local_channels().into_iter().map(line).collect()
            }
            Door::Brp(t) => {
                let line = |c: brp::ChannelInfo| ChannelLine {
                    peer: c.peer,
                    initiator: PortId(c.initiator.0),
                    host: c.host,
                    commands: c.commands,
                    busy: c.busy,
                };
                t.local_channels().into_iter().map(line).collect()
            }
        }
    }

    /// Request structures of the present reactor.
    pub(crate) fn requests(&self) -> Option<RequestsLine> {
        let (total, busy, waiting) = match self {
            Door::Srp(t) => {
                let c = t.local_port()?.census();
                // There are more requests than receive buffers; it matters once none is posted.
                let short = c.receives_posted == 0;
                (c.requests, c.requests_busy, if short { c.requests_waiting } else { 0 })
            }
            Door::Brp(t) => {
                let c = t.local_port()?.census();
                (c.requests, c.requests_busy, c.waiting)
            }
        };
        Some(RequestsLine { total, busy, waiting })
    }
}

/// Names this run of the program.
fn incarnation() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |d| d.as_nanos() as u64) ^ u64::from(std::process::id()) << 48
}

/// Changes when the machine starts: what volatile caches had may be gone then, and only then.
pub(super) fn power() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let hex: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    // Where the kernel does not tell, every start counts as a loss of power.
    u64::from_str_radix(&hex, 16).unwrap_or_else(|_| incarnation())
}
