//! A target port as a whole.

use crate::port::{self, Port};
use crate::sessions::Sessions;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use weir_base::{MILLIS, Nanos};
use weir_codec::mac::hmac_sha256;
use weir_fabric::FabricError;
use weir_proto_scsi::identity::Identity;
use weir_reactor::{LocalFuture, now, sleep};
use weir_target_core::{
    Access, ChannelLine, Counts, Frontend, NexusLine, PortSpec, RequestsLine, Site, Spread,
    initiator_key,
};

/// What names of targets begin with (RFC 7143 4.2.7.4).
pub const NAMES: &str = "iqn.2026-11.io.weir:";
/// The one target portal group of a port: all its addresses share their sessions' state.
pub(crate) const GROUP: u16 = 1;

/// What all reactors of a port share.
pub(crate) struct Shared {
    pub(crate) spread: Arc<Spread>,
    pub(crate) access: Arc<Access>,
    pub(crate) sessions: Sessions,
    pub(crate) connections: usize,
    pub(crate) relative: u16,
    pub(crate) identity: Identity,
    /// Its iSCSI name.
    pub(crate) name: String,
    /// Addresses that it listens on.
    pub(crate) portals: Mutex<Vec<std::net::SocketAddr>>,
    seed: [u8; 32],
    drawn: AtomicU64,
}

impl Shared {
    /// A challenge that nobody can foresee and that was never used before, with its identifier.
    pub(crate) fn challenge(&self) -> (Vec<u8>, u8) {
        let n = self.drawn.fetch_add(1, Ordering::Relaxed);
        (hmac_sha256(&self.seed, &[b"iSCSI CHAP", &n.to_le_bytes()]).to_vec(), n as u8)
    }
}

/// One iSCSI target port.
struct Target(Arc<Shared>);

/// A target port that speaks iSCSI.
pub fn open(spec: PortSpec) -> Arc<dyn Frontend> {
    let hex: String = spec.id.iter().map(|b| format!("{b:02x}")).collect();
    Arc::new(Target(Arc::new(Shared {
        spread: Arc::default(),
        access: spec.access,
        sessions: Sessions::default(),
        connections: spec.channels,
        relative: spec.relative,
        identity: spec.identity,
        name: format!("{NAMES}{hex}"),
        portals: Mutex::default(),
        seed: spec.seed,
        drawn: AtomicU64::new(0),
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
                    sessions = conns.len(),
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
        let local = port::listen(&self.0, &site.network, addr)?;
        self.0.portals.lock().unwrap_or_else(PoisonError::into_inner).push(local);
        Ok(local.to_string())
    }

    fn close(&self) {
        self.0.spread.close();
        if let Some(port) = Port::local(self.0.spread.id()) {
            port.conns().iter().for_each(|c| c.please_go());
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
        let line = |(name, channels): (String, usize)| NexusLine {
            initiator: initiator_key(&name),
            address: name,
            channels,
        };
        self.0.sessions.list().into_iter().map(line).collect()
    }

    fn channels(&self) -> Vec<ChannelLine> {
        let Some(port) = Port::local(self.0.spread.id()) else { return Vec::new() };
        port.conns().iter().map(|c| c.line()).collect()
    }

    fn requests(&self) -> Option<RequestsLine> {
        let conns = Port::local(self.0.spread.id())?.conns();
        let busy = conns.iter().map(|c| c.line().busy as usize).sum();
        let waiting = conns.iter().filter(|c| c.waits()).count();
        Some(RequestsLine { total: conns.len() * crate::order::DEPTH as usize, busy, waiting })
    }
}
