//! A session for jobs.

use super::disk::BrpDisk;
use crate::client::{ConnectError, ConnectKind};
use crate::engine::{Connector, Meeting, Place};
use crate::fabric::Fabric;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use weir_base::Nanos;
use weir_fabric::{FabricError, Provider};
use weir_initiator_brp::{
    ChannelFigures, Error, Keep, PortId, RejectReason, Secret, Session, SessionConfig, Variant,
};

/// Which volume of the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// By its number for this host.
    Number(u16),
    /// By its name.
    Name(String),
}

/// What a load through BRP needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrpOptions {
    /// How to reach the target.
    pub fabric: Fabric,
    /// Addresses of the target.
    pub addresses: Vec<SocketAddr>,
    /// The target port; zero for whichever answers.
    pub target: PortId,
    /// Our port.
    pub initiator: PortId,
    /// The volumes.
    pub volumes: Vec<Which>,
    /// I/Os in flight of all jobs together: slots are made for them.
    pub in_flight: u32,
    /// Channels; 0: one per thread.
    pub channels: usize,
    /// When commands share a message.
    pub variant: Variant,
    /// Checksums of messages and data.
    pub integrity: bool,
    /// Largest inline I/O in bytes; `None` leaves it to the initiator.
    pub inline: Option<u32>,
    /// MPA's CRC.
    pub crc: bool,
    /// A command that takes longer is aborted, nanoseconds.
    pub timeout: Nanos,
    /// What this host proves at login.
    pub secret: Option<Secret>,
}

impl BrpOptions {
    /// A load of a job and its copies on these volumes.
    pub fn new(
        address: SocketAddr,
        initiator: PortId,
        volumes: Vec<Which>,
        spec: &crate::job::JobSpec,
    ) -> BrpOptions {
        BrpOptions {
            fabric: Fabric::default(),
            addresses: vec![address],
            target: PortId::default(),
            initiator,
            volumes,
            in_flight: spec.iodepth.saturating_mul(spec.numjobs),
            channels: 0,
            variant: Variant::Auto,
            integrity: true,
            inline: None,
            crc: false,
            timeout: 30 * weir_base::SECONDS,
            secret: None,
        }
    }

    fn place(&self) -> String {
        let all: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        all.join(", ")
    }
}

/// Reaches volumes of one BRP target.
pub struct Brp {
    options: BrpOptions,
    session: Session,
    joined: Meeting,
    logged_in: Meeting,
    failed: Mutex<Option<ConnectError>>,
    figures: Mutex<Vec<ChannelFigures>>,
}

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Brp {
    /// A way to the volumes of `options`.
    pub fn new(options: BrpOptions) -> Brp {
        let usual = SessionConfig::new("", options.initiator);
        let config = SessionConfig {
            addrs: options.addresses.iter().map(ToString::to_string).collect(),
            target: options.target,
            channels: options.channels,
            // Jobs may be spread unevenly: every channel can take all.
            depth: options.in_flight.clamp(1, 1024) as u16,
            variant: options.variant,
            integrity: options.integrity,
            inline_read: options.inline.unwrap_or(usual.inline_read),
            inline_write: options.inline.unwrap_or(usual.inline_write),
            keep: Keep::All,
            command_timeout: options.timeout,
            secret: options.secret.clone(),
            ..usual
        };
        Brp {
            session: Session::new(config),
            options,
            joined: Meeting::default(),
            logged_in: Meeting::default(),
            failed: Mutex::default(),
            figures: Mutex::default(),
        }
    }

    /// What the channels had done when they were closed, and what their merge controllers had decided.
    pub fn figures(&self) -> Vec<ChannelFigures> {
        lock(&self.figures).clone()
    }

    fn provider(&self, place: &Place) -> Result<Rc<dyn Provider>, ConnectError> {
        self.options.fabric.provider(self.options.crc, &place.reactor, &place.ring)
    }

    async fn join(&self, place: &Place) -> Result<(), ConnectError> {
        let gone = || {
            let why = "another thread of the load generator did not start";
            ConnectError::new(ConnectKind::Failed, "there was no login", why, "its error says more")
        };
        self.session.join(self.provider(place)?);
        if !place.meet(&self.joined).await {
            return Err(gone());
        }
        if place.worker == 0
            && let Err(e) = self.session.login().await
        {
            *lock(&self.failed) = Some(explain(&self.options.place(), &e));
        }
        if !place.meet(&self.logged_in).await {
            return Err(gone());
        }
        match lock(&self.failed).clone() {
            Some(e) => Err(e),
            None => Ok(()),
        }
    }

    async fn open(&self, which: &Which) -> Result<Rc<BrpDisk>, ConnectError> {
        let queue = self.session.queue();
        let disk = match which {
            Which::Number(n) => queue.open_number(*n).await,
            Which::Name(n) => queue.open(n).await,
        };
        disk.map(|d| Rc::new(BrpDisk::new(d))).map_err(|e| {
            let at = self.options.place();
            match &e {
                Error::NoVolume(name) => ConnectError::new(
                    ConnectKind::NoVolume,
                    format!("the target at {at} has no volume {name} for this host"),
                    &e,
                    "map the volume to the host (`weir map create`)",
                ),
                e => explain(&at, e),
            }
        })
    }
}

/// A failed login at `at` in words.
pub fn explain(at: &str, e: &Error) -> ConnectError {
    match e {
        Error::Rejected(reason) => {
            let hint = match reason {
                RejectReason::NotAllowed => {
                    "make a host for the initiator port (`weir host create`) or one for all (`--allow-any`), and map a \
                     volume to it; --initiator-port sets the port"
                }
                RejectReason::NoTarget => {
                    "compare --id-ext and --ioc-guid with what `weir target list` prints at the target"
                }
                RejectReason::Resources => {
                    "use fewer --channels, or wait until other hosts have left"
                }
                RejectReason::Secret => {
                    "give both sides the same one: `weir host set HOST --secret-file` at the target, --secret-file here"
                }
                _ => "the target's log says more",
            };
            let message = format!("the target at {at} refused the login");
            ConnectError::new(ConnectKind::Refused, message, reason, hint)
        }
        Error::Fabric(FabricError::Unreachable(why)) => ConnectError::new(
            ConnectKind::Unreachable,
            format!("no target answers at {at}"),
            why,
            "check the address and that the target serves BRP there (`weir target list`)",
        ),
        e => ConnectError::new(
            ConnectKind::Failed,
            format!("the login at {at} failed"),
            e,
            "whatever listens there may not be a BRP target of this fabric; SRP has another port",
        ),
    }
}

impl Connector for Brp {
    type Client = BrpDisk;

    fn volumes(&self) -> usize {
        self.options.volumes.len()
    }

    async fn connect(
        &self,
        place: &Place,
        jobs: &[(u32, Vec<usize>)],
    ) -> Result<Vec<Vec<Rc<BrpDisk>>>, ConnectError> {
        self.join(place).await?;
        let mut all = Vec::new();
        for (_, volumes) in jobs {
            let mut disks = Vec::new();
            for v in volumes {
                disks.push(self.open(&self.options.volumes[*v]).await?);
            }
            all.push(disks);
        }
        Ok(all)
    }

    async fn disconnect(&self, place: &Place) {
        lock(&self.figures).extend(self.session.channels());
        // One thread closes for all.
        if place.worker == 0 {
            self.session.close().await;
        }
    }
}
