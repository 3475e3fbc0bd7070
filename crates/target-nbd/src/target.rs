//! A target port as a whole.

use crate::nexuses::{Initiator, Nexuses, address};
use crate::port::{self, Port};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use weir_base::{MILLIS, Nanos};
use weir_fabric::FabricError;
use weir_reactor::{LocalFuture, now, sleep};
use weir_target_core::{
    Access, ChannelLine, Counts, Frontend, NexusLine, PortSpec, RequestsLine, Site, Spread,
};

/// What all reactors of a port share.
pub(crate) struct Shared {
    pub(crate) spread: Arc<Spread>,
    pub(crate) access: Arc<Access>,
    pub(crate) nexuses: Nexuses,
    pub(crate) connections: usize,
    /// The number of the next connection.
    pub(crate) next: AtomicU64,
    pub(crate) relative: u16,
}

/// One NBD target port.
struct Target(Arc<Shared>);

/// A target port that speaks NBD.
pub fn open(spec: PortSpec) -> Arc<dyn Frontend> {
    Arc::new(Target(Arc::new(Shared {
        spread: Arc::default(),
        access: spec.access,
        nexuses: Nexuses::default(),
        connections: spec.channels,
        next: AtomicU64::new(0),
        relative: spec.relative,
    })))
}

impl Target {
    async fn leave_within(&self, patience: Nanos) -> bool {
        let Some(port) = Port::local(self.0.spread.id()) else { return true };
        let began = now();
        loop {
            // Also those that have come meanwhile.
            self.close();
            let conns = port.conns();
            if conns.is_empty() {
                break;
            }
            let waited = now() - began;
            if waited >= patience / 2 {
                conns.iter().for_each(|c| c.abort("the target stops"));
            }
            if waited >= patience {
                tracing::error!(
                    connections = conns.len(),
                    "commands have not ended in time: the target port ends without them"
                );
                port.stop();
                return false;
            }
            sleep(MILLIS).await;
        }
        port.stop();
        true
    }
}

impl Frontend for Target {
    fn join(&self, site: &Site) -> Result<(), FabricError> {
        Port::start(&self.0, site);
        self.0.spread.join();
        Ok(())
    }

    fn listen(&self, site: &Site, addr: &str) -> Result<String, FabricError> {
        port::listen(&self.0, &site.network, addr)
    }

    fn close(&self) {
        self.0.spread.close();
        if let Some(port) = Port::local(self.0.spread.id()) {
            port.conns().iter().for_each(|c| c.end("the target stops"));
        }
    }

    fn leave(&self, patience: Nanos) -> LocalFuture<'_, bool> {
        Box::pin(self.leave_within(patience))
    }

    fn broken(&self) -> (u64, Vec<String>) {
        (self.0.spread.broken(), self.0.spread.take_news())
    }

    fn counts(&self) -> &Counts {
        self.0.spread.counts()
    }

    fn nexuses(&self) -> Vec<NexusLine> {
        let line = |(initiator, channels): (Initiator, usize)| NexusLine {
            initiator: initiator.to_vec(),
            address: address(&initiator).to_string(),
            channels,
        };
        self.0.nexuses.list().into_iter().map(line).collect()
    }

    fn channels(&self) -> Vec<ChannelLine> {
        let Some(port) = Port::local(self.0.spread.id()) else { return Vec::new() };
        port.conns().iter().map(|c| c.line()).collect()
    }

    fn requests(&self) -> Option<RequestsLine> {
        let conns = Port::local(self.0.spread.id())?.conns();
        let busy = conns.iter().map(|c| c.line().busy as usize).sum();
        let waiting = conns.iter().filter(|c| c.waits()).count();
        Some(RequestsLine { total: conns.len() * crate::conn::DEPTH as usize, busy, waiting })
    }
}
