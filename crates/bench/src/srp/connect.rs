//! Logging in, and what to tell people when that fails.

use super::disk::SrpDisk;
use crate::client::{ClientError, ConnectError, ConnectKind};
use crate::engine::{Connector, Place};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use weir_fabric::{FabricError, Provider};
use weir_fabric_iwarp::{Config, CrcPolicy, Iwarp};
use weir_initiator_srp::{Channel, ChannelConfig, ChannelError};
use weir_proto_scsi::Lun;
use weir_proto_srp::login::MultiChannelAction;
use weir_proto_srp::{PortId, RejectReason};
use weir_reactor::{get_local, set_local};

/// How to log in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// The target's address.
    pub address: SocketAddr,
    /// The target port. All zero: whichever answers at the address, where the target allows that.
    pub target: PortId,
    /// Our port.
    pub initiator: PortId,
    /// Ask for MPA's CRC.
    pub crc: bool,
    /// Writes up to this many bytes go with the command; 0 turns that off.
    pub immediate: u32,
}

impl Login {
    /// The defaults for this address and initiator port.
    pub fn new(address: SocketAddr, target: PortId, initiator: PortId) -> Login {
        Login { address, target, initiator, crc: false, immediate: 8192 }
    }

    pub(super) fn provider(&self, place: &Place) -> Rc<dyn Provider> {
        let crc = if self.crc { CrcPolicy::Require } else { CrcPolicy::Off };
        Rc::new(Iwarp::new(&place.reactor, &place.ring, Config { crc, ..Config::default() }))
    }

    pub(super) async fn channel(
        &self,
        provider: &dyn Provider,
        initiator: PortId,
        action: MultiChannelAction,
        queue: u16,
        depth: u32,
    ) -> Result<Rc<Channel>, ConnectError> {
        let config = ChannelConfig {
            target: self.target,
            initiator,
            action,
            queue,
            depth: depth.clamp(1, 4096) as u16,
            immediate: self.immediate,
            reads: 16,
        };
        let address = self.address.to_string();
        Channel::connect(provider, &address, config).await.map_err(|e| self.explain(e))
    }

    /// A failed login in words.
    fn explain(&self, e: ChannelError) -> ConnectError {
        let at = self.address;
        match e {
            ChannelError::Rejected(reason) => {
                let hint = match reason {
                    RejectReason::NoNexus if self.target == PortId::default() => {
                        "the target wants to be called by its port identifier: give --id-ext and --ioc-guid, \
                         which `weir target list` prints at the target"
                    }
                    RejectReason::NoNexus => {
                        "compare --id-ext and --ioc-guid with what `weir target list` prints at the target"
                    }
                    RejectReason::ChannelLimit => {
                        "the target may not know this initiator port: make a host for it (`weir host create`) \
                         or one for all (`--any`), and map a volume to it; --initiator-port sets the port"
                    }
                    RejectReason::InsufficientResources => {
                        "use fewer --channels, or wait until other hosts have left"
                    }
                    RejectReason::IuLength => "the target takes shorter messages only",
                    _ => "the target's log says more",
                };
                let message = format!("the target at {at} refused the login");
                let port = format!(
                    "{reason} (initiator port {}, target port {})",
                    self.initiator, self.target
                );
                ConnectError::new(ConnectKind::Refused, message, port, hint)
            }
            ChannelError::Fabric(FabricError::Unreachable(why)) => ConnectError::new(
                ConnectKind::Unreachable,
                format!("no target answers at {at}"),
                why,
                "check the address, and that the target runs (`weir status` at the target)",
            ),
            ChannelError::Fabric(FabricError::Address(addr, why)) => ConnectError::new(
                ConnectKind::Unreachable,
                format!("the address {addr} cannot be used"),
                why,
                "give another address",
            ),
            ChannelError::Fabric(e) => ConnectError::new(
                ConnectKind::Failed,
                format!("the connection to {at} failed"),
                e,
                "whatever listens there may not be an SRP target over iWARP",
            ),
            e => ConnectError::new(
                ConnectKind::Failed,
                format!("the login at {at} failed"),
                e,
                "whatever listens there may not be an SRP target",
            ),
        }
    }
}

/// Which sessions jobs use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sessions {
    /// One for all: one initiator port, a channel for each thread.
    #[default]
    Shared,
    /// One for each job, with an initiator port of its own: as many hosts as jobs.
    PerJob,
}

/// Reaches logical units of one SRP target.
#[derive(Debug, Clone)]
pub struct Srp {
    /// How to log in.
    pub login: Login,
    /// The units, as small numbers.
    pub luns: Vec<u16>,
    /// I/Os in flight per job: what queues are made for.
    pub iodepth: u32,
    /// Which sessions jobs use.
    pub sessions: Sessions,
}

/// The channels of the present reactor.
#[derive(Default)]
struct Open(RefCell<Vec<Rc<Channel>>>);

impl Srp {
    async fn open(&self, channel: &Rc<Channel>, lun: u16) -> Result<Rc<SrpDisk>, ConnectError> {
        let wire = Lun::from_index(lun).ok_or_else(|| {
            ConnectError::new(
                ConnectKind::NoVolume,
                format!("{lun} is no LUN"),
                "LUNs are numbers from 0 to 16383",
                "give another --lun",
            )
        })?;
        let disk = SrpDisk::open(channel.clone(), wire.0).await;
        disk.map(Rc::new).map_err(|e| no_disk(self.login.address, lun, e))
    }
}

/// A unit that does not answer as a disk does.
fn no_disk(at: SocketAddr, lun: u16, e: ClientError) -> ConnectError {
    let unknown = matches!(e, ClientError::Scsi { sense: Some(s), .. } if s.asc == 0x25);
    if unknown {
        return ConnectError::new(
            ConnectKind::NoVolume,
            format!("the target at {at} has no LUN {lun} for this host"),
            e,
            "`weir inquiry --target ADDRESS` lists what it has; map the volume to the host (`weir map create`)",
        );
    }
    let message = format!("LUN {lun} of the target at {at} cannot be used");
    ConnectError::new(ConnectKind::Failed, message, e, "`weir inquiry` shows what it is")
}

impl Connector for Srp {
    type Client = SrpDisk;

    fn volumes(&self) -> usize {
        self.luns.len()
    }

    async fn connect(
        &self,
        place: &Place,
        jobs: &[(u32, Vec<usize>)],
    ) -> Result<Vec<Vec<Rc<SrpDisk>>>, ConnectError> {
        let provider = self.login.provider(place);
        let open = Rc::new(Open::default());
        set_local(open.clone());
        let mut shared: Option<Rc<Channel>> = None;
        let mut all = Vec::new();
        for (job, volumes) in jobs {
            let channel = match (self.sessions, &shared) {
                (Sessions::Shared, Some(c)) => c.clone(),
                (Sessions::Shared, None) => {
                    let depth = self.iodepth.saturating_mul(jobs.len() as u32);
                    let queue = place.worker as u16;
                    // Nobody else has this port, so there is nothing to end.
                    let action = MultiChannelAction::Independent;
                    let port = self.login.initiator;
                    let c = self.login.channel(&*provider, port, action, queue, depth).await?;
                    shared.insert(c).clone()
                }
                (Sessions::PerJob, _) => {
                    let mine = self.login.initiator;
                    let ext = mine.extension().wrapping_add(u64::from(*job) << 48);
                    let port = PortId::new(ext, mine.guid());
                    let action = MultiChannelAction::Terminate;
                    self.login.channel(&*provider, port, action, 0, self.iodepth).await?
                }
            };
            open.0.borrow_mut().push(channel.clone());
            let mut disks = Vec::new();
            for v in volumes {
                disks.push(self.open(&channel, self.luns[*v]).await?);
            }
            all.push(disks);
        }
        Ok(all)
    }

    async fn disconnect(&self, _place: &Place) {
        let Some(open) = get_local::<Open>() else { return };
        for c in open.0.take() {
            c.disconnect();
        }
    }
}
