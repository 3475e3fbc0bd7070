//! The port as the node sees it.

use crate::config::{LEAST, TargetConfig};
use crate::target::Target;
use std::sync::Arc;
use weir_base::Nanos;
use weir_fabric::FabricError;
use weir_proto_srp::{PortId, TargetPolicy};
use weir_reactor::LocalFuture;
use weir_target_core::{ChannelLine, Counts, Frontend, NexusLine, PortSpec, RequestsLine, Site};

/// A target port that speaks SRP.
pub fn open(spec: PortSpec) -> Arc<dyn Frontend> {
    let default = TargetConfig::default();
    // For each channel what it has at least, and what the first ones may have beyond that.
    let recv_buffers = default.recv_buffers + (LEAST as usize + 1) * spec.channels;
    let config = TargetConfig {
        port_id: PortId(spec.id),
        relative_port: spec.relative,
        max_channels: spec.channels,
        recv_buffers,
        // Each command that a host has credit for finds one: none of them waits for another host's.
        requests: (recv_buffers + 1) * spec.reactors,
        policy: TargetPolicy { credits: 256, ..TargetPolicy::default() },
        ..default
    };
    Arc::new(Target::new(config, spec.access, spec.identity, spec.reactors))
}

impl Frontend for Target {
    fn join(&self, site: &Site) -> Result<(), FabricError> {
        let (units, pool) = (site.units.clone(), site.pool.clone());
        Target::join(self, site.rdma()?.clone(), units, pool).map(drop)
    }

    fn listen(&self, site: &Site, addr: &str) -> Result<String, FabricError> {
        Target::listen(self, &**site.rdma()?, addr)
    }

    fn close(&self) {
        Target::close(self);
    }

    fn leave(&self, patience: Nanos) -> LocalFuture<'_, bool> {
        Box::pin(self.leave_within(patience))
    }

    fn broken(&self) -> (u64, Vec<String>) {
        Target::broken(self)
    }

    fn counts(&self) -> &Counts {
        Target::counts(self)
    }

    fn nexuses(&self) -> Vec<NexusLine> {
        let all = Target::nexuses(self).into_iter();
        all.map(|n| NexusLine {
            initiator: n.initiator.0.to_vec(),
            address: n.address,
            channels: n.channels,
        })
        .collect()
    }

    fn channels(&self) -> Vec<ChannelLine> {
        let all = self.local_channels().into_iter();
        all.map(|c| ChannelLine {
            peer: c.peer,
            initiator: c.initiator.0.to_vec(),
            host: c.host,
            commands: c.commands,
            busy: c.busy,
        })
        .collect()
    }

    fn requests(&self) -> Option<RequestsLine> {
        let c = self.local_port()?.census();
        // There are more requests than receive buffers; it matters once none is posted.
        let waiting = if c.receives_posted == 0 { c.requests_waiting } else { 0 };
        Some(RequestsLine { total: c.requests, busy: c.requests_busy, waiting })
    }
}
