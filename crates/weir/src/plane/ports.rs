//! Target ports of the node.

use super::door;
use super::local::{Local, on};
use super::node::{Node, RunningTarget, identity, lock};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use weir_base::Nanos;
use weir_control::model::{self, TargetPort, Transport};
use weir_control::{Code, Error, Result};
use weir_fabric_iwarp::CrcPolicy;
use weir_proto_scsi::identity::{PortName, TargetPort as ScsiPort};
use weir_proto_srp::PortId;
use weir_target_core::{PortSpec, Site};

/// How long the channels of a target port may take to end: hosts that stand still are parted from after half of it. What a device
/// holds longer is waited for when its volume is closed.
const LEAVE: Duration = Duration::from_secs(8);

impl Node {
    pub(super) async fn listen(&self, port: &TargetPort) -> Result<Vec<SocketAddr>> {
        self.check_not_shut()?;
        let running =
            lock(&self.targets).get(&port.name).map(|t| (t.spec == *port, t.listening.clone()));
        match running {
            Some((true, listening)) => return Ok(listening),
            Some((false, _)) => self.stop(&port.name).await?,
            None => {}
        }
        let handles = self.handles_on(&port.cores)?;
        let id = PortId::new(port.id_ext.0, port.ioc_guid.0);
        self.announce(port, id);
        let crc = match port.crc {
            model::CrcPolicy::Peer => CrcPolicy::Off,
            model::CrcPolicy::Require => CrcPolicy::Require,
        };
        let (none, seed) = (identity("none", [0; 16]), crate::seed::draw()?);
        let spec = PortSpec {
            id: id.0,
            relative: port.relative,
            channels: usize::from(port.channels),
            reactors: handles.len(),
            access: self.access.clone(),
            identity: none,
            incarnation: door::incarnation(),
            power: door::power(),
            seed,
        };
        let target = door::open(port.protocol, spec);
        let transport = port.transport;
        let name = port.name.clone();
        let mut error = None;
        for h in &handles {
            let (target, name) = (target.clone(), name.clone());
            let joined = on(h, move |local: Rc<Local>| {
                Box::pin(async move {
                    target.join(&site(&local, transport, crc)?).map_err(|e| {
                        Error::new(Code::IoError, format!("target port {name} does not start"))
                            .because(e)
                    })
                })
            })
            .await;
            if let Err(e) = joined {
                // What other reactors have of it ends below: each try would leave that much behind.
                error = Some(e);
                break;
            }
        }
        let mut listening = Vec::new();
        let wanted = if error.is_none() { &port.listen[..] } else { &[] };
        for addr in wanted {
            let (target, addr2, name) = (target.clone(), addr.clone(), name.clone());
            let r = on(&handles[0], move |local: Rc<Local>| {
                Box::pin(async move {
                    target.listen(&site(&local, transport, crc)?, &addr2).map_err(|e| {
                        Error::new(
                            Code::IoError,
                            format!("target port {name} cannot listen on {addr2}"),
                        )
                        .because(e)
                        .hint("use an address of this machine and a free port")
                    })
                })
            })
            .await;
            match r {
                Ok(a) => listening.extend(a.parse::<SocketAddr>()),
                Err(e) => error = Some(e),
            }
        }
        let entry = RunningTarget { target, listening: listening.clone(), spec: port.clone() };
        lock(&self.targets).insert(name.clone(), entry);
        // Either this sees that the ports are shut by now, or who shuts them sees this one.
        let error = error.or(self.check_not_shut().err());
        if let Some(e) = error {
            self.stop(&name).await?;
            return Err(e);
        }
        Ok(listening)
    }

    /// Makes a port known to all units.
    fn announce(&self, port: &TargetPort, id: PortId) {
        let mut ports = lock(&self.ports);
        let known = ScsiPort { relative_id: port.relative, group: 1, name: PortName::Srp(id.0) };
        // One that does not start is tried again and again: hosts hear of it once.
        if ports.insert(port.name.clone(), known.clone()) != Some(known) {
            self.tell_ports(&ports);
        }
    }

    fn tell_ports(&self, ports: &BTreeMap<String, ScsiPort>) {
        let all: Vec<_> = ports.values().cloned().collect();
        for u in lock(&self.units).values() {
            u.with(|s| s.set_ports(all.clone()));
        }
    }

    /// Ends a port that is no more.
    pub(super) async fn remove_port(&self, name: &str) -> Result<()> {
        self.stop(name).await?;
        let mut ports = lock(&self.ports);
        // When the node is being stopped they all go, to come again: no host is to hear of each.
        if ports.remove(name).is_some() && self.check_not_shut().is_ok() {
            self.tell_ports(&ports);
        }
        Ok(())
    }

    /// Ends a port. Its channels end side by side, on all reactors.
    pub(super) async fn stop(&self, name: &str) -> Result<()> {
        let Some(t) = lock(&self.targets).remove(name) else { return Ok(()) };
        let (target, name) = (t.target, name.to_owned());
        self.on_all(move |_| {
            Box::pin(async move {
                if !target.leave(LEAVE.as_nanos() as Nanos).await {
                    tracing::warn!(target = %name, "the port has ended before hosts' commands");
                }
                Ok(())
            })
        })
        .await
    }

    /// From here on nobody is let in at any port, and no port comes up. Waits for nothing.
    pub(super) fn shut_ports(&self) {
        self.shut.store(true, Ordering::SeqCst);
        for t in lock(&self.targets).values() {
            for h in self.handles() {
                let target = t.target.clone();
                h.run(move || target.close());
            }
        }
    }

    fn check_not_shut(&self) -> Result<()> {
        match self.shut.load(Ordering::SeqCst) {
            true => Err(Error::new(Code::NotReady, "the daemon is being stopped")),
            false => Ok(()),
        }
    }
}

/// What a reactor has for a port of this transport.
fn site(local: &Local, transport: Transport, crc: CrcPolicy) -> Result<Site> {
    let fabric = match transport {
        Transport::Tcp => None,
        Transport::Iwarp => Some(local.iwarp(crc)),
        Transport::Verbs => Some(local.verbs().map_err(|e| {
            Error::new(Code::IoError, "no RDMA adapter can be used").because(e).hint(
                "install rdma-core's libraries and see `rdma link`, or use `transport = \"iwarp\"`",
            )
        })?),
    };
    let (units, pool) = (local.units.clone(), local.pool.clone());
    Ok(Site { fabric, network: local.network(), units, pool })
}
