//! A logical unit of an SRP target, for the tools that run beside no daemon.

use super::bench::refused;
use crate::cli::args::{self, LoginArgs};
use crate::machine::machine;
use std::net::SocketAddr;
use std::rc::Rc;
use weir_bench::engine::Place;
use weir_bench::fabric::Fabric;
use weir_bench::srp::{self, Login, PathPolicy};
use weir_control::{Code, Error, Result};
use weir_fabric::Provider;
use weir_initiator_srp::{
    Channel, ChannelConfig, ChannelError, Error as SrpError, Multipath, Outcome,
};
use weir_mem::Slice;
use weir_proto_scsi::initiator::{self as scsi, Cdb};
use weir_proto_scsi::lun::Lun;
use weir_proto_scsi::sense::{Sense, SenseKey};
use weir_proto_scsi::status::Status;
use weir_proto_srp::PortId;
use weir_proto_srp::login::MultiChannelAction;
use weir_reactor::{LocalFuture, PollMode, Reactor};
use weir_uring::Ring;

/// Why there is no ring, and what to do.
pub(crate) fn no_ring(e: std::io::Error) -> Error {
    Error::new(Code::IoError, "io_uring cannot be used")
        .because(e)
        .hint("allow it: sysctl kernel.io_uring_disabled=0")
}

/// Runs `f` on a reactor of the calling thread, with the fabric of the login.
pub(crate) fn on_reactor<R: 'static>(
    login: &Login,
    f: impl FnOnce(Rc<dyn Provider>) -> LocalFuture<'static, Result<R>>,
) -> Result<R> {
    let ring = Ring::new().map_err(no_ring)?;
    let reactor = Reactor::new(Rc::new(ring.clone()));
    let place = Place::alone(reactor.clone(), ring);
    let provider = login.provider(&place).map_err(refused)?;
    let work = f(provider);
    let result = reactor.block_on(PollMode::default(), work);
    reactor.shutdown();
    result
}

/// What these options and addresses say of the way to a unit.
pub(crate) fn login(
    a: &LoginArgs,
    addresses: &[SocketAddr],
    multipath: Option<args::Policy>,
) -> Login {
    let half = |h: Option<weir_control::model::Hex64>| h.map_or(0, |h| h.0);
    Login {
        fabric: match a.fabric {
            args::Fabric::Iwarp => Fabric::Iwarp,
            args::Fabric::Verbs => Fabric::Verbs,
        },
        addresses: addresses.to_vec(),
        multipath: multipath.map(|p| match p {
            args::Policy::ActivePassive => PathPolicy::ActivePassive,
            args::Policy::RoundRobin => PathPolicy::RoundRobin,
        }),
        port_per_path: a.initiator_port.is_none(),
        target: PortId::new(half(a.id_ext), half(a.ioc_guid)),
        initiator: initiator_port(a),
        crc: a.crc,
        timeout: u64::try_from(a.timeout.as_nanos()).unwrap_or(u64::MAX),
    }
}

/// The initiator port of this process, unless one is given: tools must not end each other's sessions.
pub(crate) fn initiator_port(login: &LoginArgs) -> PortId {
    match login.initiator_port {
        Some(p) => PortId(p.0),
        None => {
            // Each session of a process has a port of its own: a login ends other sessions of its port.
            static SESSIONS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
            let n = SESSIONS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let pid = u64::from(n) << 24 | u64::from(std::process::id());
            PortId::new(0x5745_0000_0000_0000 | pid, machine())
        }
    }
}

/// Logs in to a target.
pub(crate) async fn connect(
    provider: &dyn Provider,
    target: SocketAddr,
    login: &LoginArgs,
    depth: u16,
) -> Result<Rc<Channel>> {
    let half = |h: Option<weir_control::model::Hex64>| h.map_or(0, |h| h.0);
    let port = PortId::new(half(login.id_ext), half(login.ioc_guid));
    let config = ChannelConfig {
        action: MultiChannelAction::Terminate,
        depth,
        command_timeout: login.timeout.as_nanos() as u64,
        ..ChannelConfig::new(port, initiator_port(login))
    };
    Channel::connect(provider, &target.to_string(), config).await.map_err(|e| {
        let hint = match &e {
            ChannelError::Rejected(_) => {
                "check --id-ext and --ioc-guid (`weir target show`) and that a host allows this initiator port (`weir host list`)"
            }
            _ => "check that the address is right and that a target listens there (`weir target list`)",
        };
        Error::new(Code::TargetUnreachable, format!("no session with {target}")).because(e).hint(hint)
    })
}

/// How a unit is reached.
#[derive(Clone)]
enum Way {
    /// A channel, without anything that makes up for its loss.
    /// With the unit's name: it is compared before a command is sent again after a unit attention.
    One(Rc<Channel>, Lun, Option<Vec<u8>>),
    Many(Rc<Multipath>),
}

/// A unit of a logged-in target.
#[derive(Clone)]
pub(crate) struct Remote {
    way: Way,
    pub(crate) block_size: u32,
    pub(crate) blocks: u64,
}

fn sense(o: &Outcome) -> String {
    match scsi::parse_sense(o.sense()) {
        Some(s) => s.to_string(),
        None => format!("status {:#04x}", o.status),
    }
}

/// What may be done about a command that failed.
fn what_to_do(sense: Option<&Sense>) -> &'static str {
    match sense.map(|s| (s.key, s.asc, s.ascq)) {
        Some((SenseKey::DataProtect, 0x27, 7)) => {
            "the volume's pool has no room: add devices there, delete snapshots or volumes, or discard what is not needed"
        }
        Some((SenseKey::DataProtect, ..)) => {
            "it may only be read: `weir volume set … --read-only off` at the target, or another volume"
        }
        Some((SenseKey::IllegalRequest, ..)) => "`weir inquiry` shows what the unit is and can do",
        _ => "`weir status` and `weir events` at the target say what is wrong there",
    }
}

/// Runs a command, once more after each unit attention.
pub(crate) async fn command(
    channel: &Channel,
    lun: Lun,
    cdb: &[u8],
    out: Option<Slice>,
    into: Option<Slice>,
) -> Result<Outcome> {
    command_to(channel, lun, None, cdb, out, into).await
}

/// As [`command`], and never to another unit than the one of this name.
async fn command_to(
    channel: &Channel,
    lun: Lun,
    naa: Option<&[u8]>,
    cdb: &[u8],
    out: Option<Slice>,
    into: Option<Slice>,
) -> Result<Outcome> {
    for _ in 0..4 {
        let o = channel
            .command(lun.0, cdb, out.as_slice(), into.as_slice())
            .await
            .map_err(|e| Error::new(Code::IoError, "the session broke off").because(e))?;
        let attention = scsi::parse_sense(o.sense())
            .is_some_and(|s| s.key == weir_proto_scsi::sense::SenseKey::UnitAttention);
        if o.is_good() {
            return Ok(o);
        }
        if o.status == Status::ReservationConflict as u8 {
            return Err(Error::new(Code::VolumeReserved, "another host has reserved the volume")
                .because(format!("it refuses the command {:#04x}", cdb[0]))
                .hint("end its use of the volume first"));
        }
        if !attention {
            let hint = what_to_do(scsi::parse_sense(o.sense()).as_ref());
            return Err(Error::new(Code::IoError, format!("the command {:#04x} failed", cdb[0]))
                .because(sense(&o))
                .hint(hint));
        }
        if naa.is_some() && Box::pin(self::naa(channel, lun)).await?.as_deref() != naa {
            return Err(Error::new(Code::IoError, "another unit has this number now")
                .because(sense(&o))
                .hint("`weir map list` shows what the host sees"));
        }
    }
    Err(Error::new(Code::IoError, "the unit reports one attention after the other"))
}

/// Data that a command returns.
pub(crate) async fn ask(channel: &Channel, lun: Lun, cdb: &[u8], len: usize) -> Result<Vec<u8>> {
    let buf = Slice::heap(len);
    let o = command(channel, lun, cdb, None, Some(buf.sub(0, len))).await?;
    let left = match o.in_residual {
        weir_proto_srp::residual::Residual::Under(n) => n as usize,
        _ => 0,
    };
    let mut v = buf.to_vec();
    v.truncate(len.saturating_sub(left));
    Ok(v)
}

/// The LUNs that the target reports.
pub(crate) async fn luns(channel: &Channel) -> Result<Vec<Lun>> {
    let b = ask(channel, Lun(0), &scsi::report_luns(4096).padded(), 4096).await?;
    scsi::parse_report_luns(&b)
        .map_err(|e| Error::new(Code::IoError, "the list of LUNs is cut short").because(e))
}

/// A unit's NAA designator.
async fn naa(channel: &Channel, lun: Lun) -> Result<Option<Vec<u8>>> {
    let page = ask(channel, lun, &scsi::vpd(0x83, 1024).padded(), 1024).await?;
    Ok(scsi::parse_naa(&page).map(<[u8]>::to_vec))
}

/// The name that a Weir target gives to a unit: its vendor-specific designator.
pub(crate) async fn name(channel: &Channel, lun: Lun) -> Option<String> {
    let b = ask(channel, lun, &scsi::vpd(0x83, 1024).padded(), 1024).await.ok()?;
    let mut all = scsi::parse_designators(&b)?;
    all.find(|d| d.kind == 0).map(|d| String::from_utf8_lossy(d.value).trim_end().to_owned())
}

/// Finds a unit: by LUN, else by name, else LUN 0.
pub(crate) async fn find(channel: &Channel, lun: Option<u16>, volume: Option<&str>) -> Result<Lun> {
    if let Some(n) = lun {
        return Lun::from_index(n)
            .ok_or_else(|| Error::new(Code::InvalidRequest, format!("{n} is not a LUN")));
    }
    let Some(wanted) = volume else { return Ok(Lun(0)) };
    let mut have = Vec::new();
    for lun in luns(channel).await? {
        match name(channel, lun).await {
            Some(n) if n == wanted => return Ok(lun),
            n => have.push(n.unwrap_or_else(|| format!("LUN {}", lun.index().unwrap_or(0)))),
        }
    }
    let list = if have.is_empty() { "none".into() } else { have.join(", ") };
    Err(Error::new(Code::VolumeNotFound, format!("the target shows no volume called {wanted}"))
        .because(format!("this initiator port sees: {list}"))
        .hint(
            "map the volume to a host that this port belongs to (`weir map create`), or use --lun",
        ))
}

/// Which unit is meant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// One address for each path.
    pub(crate) targets: &'a [SocketAddr],
    /// The LUN; without one it is that of the volume, else 0.
    pub(crate) lun: Option<u16>,
    pub(crate) volume: Option<&'a str>,
}

impl Remote {
    /// Logs in and finds the unit; with several addresses over all paths that are there.
    pub(crate) async fn open(
        provider: &Rc<dyn Provider>,
        wanted: Wanted<'_>,
        login: &LoginArgs,
        policy: args::Policy,
    ) -> Result<Remote> {
        if let [target] = wanted.targets {
            let channel = connect(&**provider, *target, login, 256).await?;
            let lun = find(&channel, wanted.lun, wanted.volume).await?;
            let (len, block_size) = Remote::capacity(&channel, lun).await?;
            let blocks = len / u64::from(block_size.max(1));
            // A unit without the page is known by its number alone.
            let name = naa(&channel, lun).await.unwrap_or_default();
            return Ok(Remote { way: Way::One(channel, lun, name), block_size, blocks });
        }
        let login = self::login(login, wanted.targets, Some(policy));
        let (paths, g) =
            srp::open_paths(provider, &login, wanted.lun, wanted.volume).await.map_err(refused)?;
        let blocks = g.len / u64::from(g.block_size.max(1));
        Ok(Remote { way: Way::Many(paths), block_size: g.block_size, blocks })
    }

    /// Logs out; commands of later fail.
    pub(crate) fn close(&self) {
        if let Way::One(channel, ..) = &self.way {
            channel.disconnect(false);
        }
    }

    /// Runs a command of which it does no harm if it is done twice.
    async fn run(&self, cdb: &Cdb, out: Option<Slice>, into: Option<Slice>) -> Result<()> {
        match &self.way {
            Way::One(channel, lun, name) => {
                let cdb = cdb.padded();
                command_to(channel, *lun, name.as_deref(), &cdb, out, into).await.map(drop)
            }
            Way::Many(paths) => {
                let done = paths.execute(cdb, out.as_slice(), into.as_slice()).await;
                done.map(drop).map_err(|e| {
                    let what = format!("the command {:#04x} failed", cdb.as_bytes()[0]);
                    let sense = match &e {
                        SrpError::Scsi { sense, .. } => sense.as_ref(),
                        _ => None,
                    };
                    let hint = what_to_do(sense);
                    Error::new(Code::IoError, what).because(&e).hint(hint)
                })
            }
        }
    }

    /// Capacity in bytes, and the block size.
    pub(crate) async fn capacity(channel: &Channel, lun: Lun) -> Result<(u64, u32)> {
        let b = ask(channel, lun, &scsi::read_capacity_16(32).padded(), 32).await?;
        let c = scsi::parse_capacity_16(&b)
            .map_err(|e| Error::new(Code::IoError, "the capacity is cut short").because(e))?;
        Ok(((c.last_lba + 1) * u64::from(c.block_size), c.block_size))
    }

    /// The unit's NAA designator; `None`: it has none.
    pub(crate) async fn name(&self) -> Result<Option<Vec<u8>>> {
        let buf = Slice::heap(1024);
        buf.fill(0);
        self.run(&scsi::vpd(0x83, 1024), None, Some(buf.clone())).await?;
        Ok(scsi::parse_naa(&buf.to_vec()).map(<[u8]>::to_vec))
    }

    /// Capacity in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.blocks * u64::from(self.block_size)
    }

    /// Fills `buf` from byte `at`.
    pub(crate) async fn read(&self, at: u64, buf: Slice) -> Result<()> {
        let b = u64::from(self.block_size);
        let cdb = scsi::read(at / b, (buf.len() as u64 / b) as u32, false);
        self.run(&cdb, None, Some(buf)).await
    }

    /// Writes `buf` at byte `at`.
    pub(crate) async fn write(&self, at: u64, buf: Slice) -> Result<()> {
        let b = u64::from(self.block_size);
        let cdb = scsi::write(at / b, (buf.len() as u64 / b) as u32, false);
        self.run(&cdb, Some(buf), None).await
    }

    /// Whole blocks in `bytes`, rounded up.
    pub(crate) fn round_up(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(u64::from(self.block_size))
    }

    /// Gives the range back; it reads as zeros where the unit is thin.
    pub(crate) async fn unmap(&self, at: u64, len: u64) -> Result<()> {
        let b = u64::from(self.block_size);
        let list = scsi::unmap_list(&[(at / b, (len / b) as u32)]);
        let data = Slice::copy_of(&list).sub(0, list.len());
        let cdb = scsi::unmap(list.len() as u16);
        self.run(&cdb, Some(data), None).await
    }

    /// Makes everything written durable.
    pub(crate) async fn flush(&self) -> Result<()> {
        self.run(&scsi::sync_cache(0, 0), None, None).await
    }
}
