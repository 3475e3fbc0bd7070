//! The port as the node sees it.

use crate::config::{LEAST, TargetConfig};
use crate::target::Target;
use std::sync::Arc;
use weir_base::Nanos;
use weir_fabric::FabricError;
use weir_proto_brp::PortId;
use weir_reactor::LocalFuture;
use weir_target_core::{ChannelLine, Counts, Frontend, NexusLine, PortSpec, RequestsLine, Site};

/// A target port that speaks BRP.
pub fn open(spec: PortSpec) -> Arc<dyn Frontend> {
    let default = TargetConfig::default();
    let half = default.recv_buffers / 2;
    let config = TargetConfig {
        port_id: PortId(spec.id),
        relative_port: spec.relative,
        max_channels: spec.channels,
        // A half at least for the first ones, beyond what each channel has.
        recv_buffers: default.recv_buffers.max(half + usize::from(LEAST) * spec.channels),
        incarnation: spec.incarnation,
        power: spec.power,
        nonce_seed: spec.seed,
        ..default
    };
    Arc::new(Target::new(config, spec.access))
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
        let all = self.sessions().into_iter();
        all.map(|s| NexusLine {
            initiator: s.initiator.0.to_vec(),
            address: String::new(),
            channels: s.channels,
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
        Some(RequestsLine { total: c.requests, busy: c.requests_busy, waiting: c.waiting })
    }
}
