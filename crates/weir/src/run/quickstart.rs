//! `weir quickstart`: from nothing to a served, verified and measured volume.

use super::serve::{Daemon, Declared, on_runtime};
use crate::cli::args::QuickstartArgs;
use crate::cli::output;
use crate::cli::target::reachable;
use own::{BLOCK, Bench, LeftAlone, Own, Proof};
use serde::Serialize;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;
use weir_control::config::{Config, DEFAULT_BRP_TARGET, DEFAULT_TARGET};
use weir_control::live::Status;
use weir_control::model::{
    Command, DeviceKind, DeviceSpec, Host, HostSpec, InitiatorId, MapSpec, Model, PoolSpec,
    Protocol, TargetPort, TargetSpec, Transport, VolumeSpec, VolumeState,
};
use weir_control::units::format_size;
use weir_control::{Code, Controller, Error, Result};

mod own;

const POOL: &str = "quick";
const VOLUME: &str = "quick";
const HOST: &str = "everyone";
/// Who verifies and measures.
const OWN: &str = "quickstart";
/// What it means that something else is there.
const LOST: &str = "If no host has written to it, and nobody has made it smaller, data was lost: keep the data directory and report that";

/// What `--json` prints.
#[derive(Debug, Default, Serialize)]
struct Report {
    served: Served,
    /// Bytes that were there from an earlier run and proved right.
    kept_bytes: u64,
    /// Why the volume was left as it is.
    left_alone: Option<String>,
    /// Bytes written now, read back and compared.
    verified_bytes: u64,
    bench: Bench,
    /// Who has the volume.
    hosts: Vec<String>,
    attach: Vec<String>,
}

#[derive(Debug, Default, Serialize)]
struct Served {
    data_dir: String,
    volume: String,
    bytes: u64,
    address: String,
    brp_address: String,
    id_ext: String,
    ioc_guid: String,
    api: String,
    seconds_to_serve: f64,
}

/// Runs the command.
pub(crate) fn quickstart(args: QuickstartArgs) -> anyhow::Result<ExitCode> {
    let begun = Instant::now();
    let config = config(&args, own::port()?)?;
    let json = args.json;
    let say = move |text: &str| {
        if !json {
            crate::cli::say(&format!("{text}\n"));
        }
    };
    on_runtime(async move |stopping| {
        say(&format!("starting a node in {}", config.data_dir.display()));
        let started = Daemon::start(&config, &[], Declared::Quickstart, &stopping).await?;
        let Some(daemon) = started else { return cut_off(args.once).map(|()| ExitCode::SUCCESS) };
        let done = tokio::select! {
            biased;
            // What the host does is left where it is: it is parted from as all are.
            () = stopping.begun() => cut_off(args.once),
            done = show(&daemon, &config, &args, begun, &say) => done,
        };
        if args.once || done.is_err() {
            stopping.begin();
        } else if !stopping.has_begun() {
            say("serving until Ctrl-C");
        }
        let stopped = daemon.run().await;
        done?;
        stopped?;
        Ok(ExitCode::SUCCESS)
    })
}

/// What a run that is stopped before it has verified and measured ends with.
fn cut_off(once: bool) -> anyhow::Result<()> {
    match once {
        true => {
            Err(Error::new(Code::NotReady, format!("volume {VOLUME} is not verified and measured"))
                .because("the node was stopped before that")
                .hint("run it again: it goes on where it was")
                .into())
        }
        false => Ok(()),
    }
}

/// Has a host verify and measure, and says what came of it. What changes the configuration waits until that host is gone.
async fn show(
    daemon: &Daemon,
    config: &Config,
    args: &QuickstartArgs,
    begun: Instant,
    say: &impl Fn(&str),
) -> anyhow::Result<()> {
    let status = daemon.controller.status().await?;
    for f in &status.faults {
        tracing::error!(object = %f.object, "{}", f.text);
    }
    let port = port_of(&daemon.controller.model(), Protocol::Srp, DEFAULT_TARGET);
    let port = port.ok_or_else(|| Error::new(Code::Internal, "there is no target port"))?;
    if let Some(e) = in_the_way(&status, &daemon.controller.model(), &port) {
        return Err(e.into());
    }
    let address = address_of(daemon, &port.name).await?;
    let address =
        address.ok_or_else(|| Error::new(Code::Internal, "the target port does not listen"))?;
    let seconds = begun.elapsed().as_secs_f64();
    say(&format!("listening at {address} after {seconds:.2} s"));
    let model = daemon.controller.model();
    let volume = model.volume(VOLUME)?;
    let seen = has_others(&model);
    let own_port = own_port(config)?;
    let own = Arc::new(Own {
        address: loopback(address),
        login: own::login(&port, own_port),
        port: own_port,
        marker: marker(config),
        names: [volume.serial.clone(), volume.naa.to_string()],
        size: args.verify_size,
        seen,
        read_only: volume.read_only,
        runtime: args.runtime,
    });
    daemon
        .controller
        .starts_with(&format!("weir quickstart verifies and measures volume {VOLUME}"));
    if own.goes_on()? {
        say(&format!("an earlier run was cut off: all of volume {VOLUME} is read first"));
    }
    let served = async |proof: &Proof| -> Result<()> {
        let taken = has_others(&daemon.controller.model()) || own.was_served()?;
        // Kept before anybody has it: what a run that is cut off has shown may be taken back before the next one.
        own.note_served(proof.left_alone.is_none())?;
        // What is in it may be one host's only.
        if taken || proof.left_alone.is_some() {
            return Ok(());
        }
        match show_to_all(daemon).await {
            Ok(whom) => say(&format!("serving volume {VOLUME} to {whom}")),
            Err(e) => {
                own.note_kept_back()?;
                return Err(e);
            }
        }
        Ok(())
    };
    let done = exercise(&own, served).await;
    // Who would have its port is no host of the volume.
    leave(&daemon.controller, own_port).await;
    let goes_on = !args.once && has_hosts(&daemon.controller.model());
    if goes_on && let Err(e) = &done {
        tracing::error!("{e}");
        // Else the next run reads all of it.
        if let Err(e) = own.note_given() {
            tracing::warn!("{e}");
        }
    }
    daemon.controller.started();
    let (proof, bench) = match done {
        // Hosts that have volumes already go on.
        Err(e) if goes_on => {
            let failed = match e.code {
                Code::DataMismatch => LeftAlone::Lost(e.message),
                _ => LeftAlone::Failed(e.message),
            };
            (Proof { left_alone: Some(failed), ..Proof::default() }, Ok(Bench::default()))
        }
        Err(e) if e.code == Code::DataMismatch => return Err(e.hint(LOST).into()),
        done => done?,
    };
    let bench = match bench {
        Err(e) if goes_on => {
            tracing::warn!("volume {VOLUME} cannot be measured: {e}");
            Bench::default()
        }
        bench => bench?,
    };
    if args.once
        && proof.left_alone.is_none()
        && proof.kept + proof.verified < args.verify_size.min(1)
    {
        return Err(not_exercised(&LeftAlone::Unknown).into());
    }
    if let Some(why) = proof.left_alone.as_ref().filter(|_| args.once) {
        return Err(not_exercised(why).into());
    }
    let mut report = Report {
        kept_bytes: proof.kept,
        verified_bytes: proof.verified,
        left_alone: proof.left_alone.as_ref().map(LeftAlone::to_string),
        bench,
        ..Report::default()
    };
    let model = daemon.controller.model();
    if !has_others(&model) {
        say(&format!("nobody has volume {VOLUME}: weir map create HOST {VOLUME} gives it to one"));
    }
    report.hosts =
        model.maps.iter().filter(|m| m.volume == VOLUME).map(|m| m.host.clone()).collect();
    report.served.volume = VOLUME.into();
    report.served.bytes = volume.size;
    report.served.data_dir = config.data_dir.display().to_string();
    report.served.address = address.to_string();
    if let Some(brp) = port_of(&model, Protocol::Brp, DEFAULT_BRP_TARGET) {
        let at = address_of(daemon, &brp.name).await.unwrap_or_default();
        report.served.brp_address = at.map_or_else(String::new, |a| a.to_string());
    }
    report.served.seconds_to_serve = seconds;
    report.served.api = config.data_dir.join("weir.sock").display().to_string();
    report.served.id_ext = port.id_ext.to_string();
    report.served.ioc_guid = port.ioc_guid.to_string();
    report.attach = attach_lines(&port, address);
    let told = match args.json {
        true => output::json(&report),
        false => output::text(&summary(&report, proof.left_alone.as_ref(), args.once)),
    };
    match told {
        // Nobody reads it; hosts have the volume.
        Err(e) if !args.once => tracing::warn!("the summary cannot be written: {e}"),
        told => told?,
    }
    Ok(())
}

/// Takes the own host away.
async fn leave(controller: &Arc<Controller>, port: InitiatorId) {
    let unmapped = controller.delete_map(OWN.into(), VOLUME.into(), true).await;
    // By its number it would know another volume of the host for all.
    let forgotten = controller.forget_ports(&[port.into()]).await;
    let gone = controller.execute(Command::DeleteHost { name: OWN.into() }).await;
    for e in [unmapped.err(), forgotten.err(), gone.err()].into_iter().flatten() {
        if !matches!(e.code, Code::MapNotFound | Code::HostNotFound) {
            tracing::warn!("host `{OWN}` is still there: {e}");
        }
    }
}

/// What keeps the volume, or the way to it, from this program's own host. Faults of the rest are the operator's to see to.
fn in_the_way(status: &Status, model: &Model, port: &TargetPort) -> Option<Error> {
    let pool = model.volumes.get(VOLUME).map(|v| v.pool.as_str()).unwrap_or(POOL);
    // One that is open has faults, too, such as a device that is missing.
    let is_open = status.live.pools.iter().any(|p| p.name == pool);
    let needed = |object: &str| match object.split_once('/') {
        Some(("pool", name)) => name == pool && !is_open,
        Some(("volume", name)) => name == VOLUME,
        Some(("target", name)) => name == port.name,
        _ => false,
    };
    let fault = status.faults.iter().find(|f| needed(&f.object))?;
    let hint = "`weir serve` runs the rest, and tries it again; another --data-dir begins anew";
    let what = format!("{} did not start", fault.object);
    Some(Error::new(Code::IoError, what).because(&fault.text).hint(hint))
}

/// `--once` is for the verification and the measurement.
fn not_exercised(why: &LeftAlone) -> Error {
    match why {
        LeftAlone::Changed | LeftAlone::Lost(_) => {
            Error::new(Code::DataMismatch, format!("volume {VOLUME} has changed"))
                .because(format!("{why}; it is left as it is"))
                .hint(format!("without --once it is served. {LOST}"))
        }
        _ => Error::new(Code::VolumeInUse, format!("volume {VOLUME} is not verified and measured"))
            .because(format!("{why}; it is left as it is"))
            .hint(
                "without --once it is served; another --data-dir begins with a volume of its own",
            ),
    }
}

/// Somebody else has the volume.
fn has_others(model: &Model) -> bool {
    model.maps.iter().any(|m| m.volume == VOLUME && m.host != OWN)
}

/// Hosts have volumes, whichever.
fn has_hosts(model: &Model) -> bool {
    model.maps.iter().any(|m| m.host != OWN)
}

/// Gives the host that has it then.
async fn show_to_all(daemon: &Daemon) -> Result<String> {
    let controller = &daemon.controller;
    let model = controller.model();
    let all = model.hosts.values().find(|h| h.allow_any).map(|h| h.name.clone());
    let host = if model.hosts.contains_key(HOST) { Some(HOST.to_owned()) } else { all };
    let host = match host {
        Some(host) => host,
        None => {
            let all = HostSpec { name: HOST.into(), allow_any: true, ..HostSpec::default() };
            controller.execute(Command::CreateHost(all)).await?;
            HOST.into()
        }
    };
    let map = MapSpec { host: host.clone(), volume: VOLUME.into(), lun: None };
    controller.execute(Command::CreateMap(map)).await?;
    let all = controller.model().hosts.get(&host).is_some_and(|h| h.allow_any);
    Ok(if all { "all".into() } else { format!("host {host}") })
}

/// Makes what is not there yet. The rest is as the operator has it. A volume that is made is noted: of others nothing is known.
pub(super) async fn declare(controller: &Arc<Controller>, config: &Config) -> Result<()> {
    let model = controller.model();
    let makes = !model.volumes.contains_key(VOLUME);
    if model.volumes.get(VOLUME).is_some_and(|v| v.state == VolumeState::Deleting) {
        return Err(Error::new(Code::VolumeDeleting, format!("volume {VOLUME} is being deleted"))
            .because("a node has ended before that was done")
            .hint("`weir serve` ends it; another --data-dir begins with a volume of its own"));
    }
    if let Some(own) = model.hosts.get(OWN) {
        if !is_own(own, &model) {
            return Err(Error::new(Code::HostExists, format!("host `{OWN}` is not of this program"))
                .because("somebody has given it ports, a secret or volumes")
                .hint("give what it has to a host of another name, and delete it (`weir serve` runs the node); or name another --data-dir"));
        }
        controller.forget_ports(&own.ports).await?;
    }
    if makes {
        // Before it is made: a run that ends in between leaves a volume of which is known that nothing is in it. What was written to
        // another volume of that name is forgotten.
        own::begin(&marker(config), own_port(config)?)?;
    }
    let mut desired = config.desired();
    // Where the volume is there, it is in a pool, whichever.
    desired.pools.retain(|p| makes && !model.pools.contains_key(&p.name));
    desired.volumes.retain(|v| !model.volumes.contains_key(&v.name));
    let told = !config.listen.is_empty();
    desired.targets = targets(&model, desired.targets, told)?;
    if told && desired.targets.iter().all(|t| t.protocol != Protocol::Srp) {
        for t in model.targets.values().filter(|t| is_way(t)) {
            tracing::warn!(
                "--listen is not followed: hosts have target port `{}`, and that stays as it is",
                t.name
            );
        }
    }
    match controller.declare(desired).await {
        Ok(_) => Ok(()),
        Err(e) => {
            // This node ends.
            let hint = e.hint.trim_end_matches("; it is tried again every few seconds").to_owned();
            Err(e.hint(hint))
        }
    }
}

/// Whether the own host can come by it.
fn is_way(t: &TargetPort) -> bool {
    (t.protocol, t.transport) == (Protocol::Srp, Transport::Iwarp)
}

/// The target ports, of `wanted` ones: those that are there stay as they are, but for where they listen, if that was `told`. Where
/// hosts have their way, another one would be one that the operator does not know of.
fn targets(model: &Model, wanted: Vec<TargetSpec>, told: bool) -> Result<Vec<TargetSpec>> {
    let has_way = model.targets.values().any(is_way);
    let all = wanted.into_iter().filter_map(|w| match model.targets.get(&w.name) {
        // It is held back for as long as it is not declared.
        Some(t) => Some(TargetSpec {
            listen: if told && t.protocol == w.protocol { w.listen } else { t.listen.clone() },
            protocol: t.protocol,
            transport: t.transport,
            channels: Some(t.channels),
            cores: t.cores.clone(),
            crc: t.crc,
            ..w
        }),
        None => {
            let is_needed = told && w.protocol == Protocol::Srp && !has_way;
            (model.targets.is_empty() || is_needed).then_some(w)
        }
    });
    let all: Vec<_> = all.collect();
    let is_way = |t: &TargetSpec| (t.protocol, t.transport) == (Protocol::Srp, Transport::Iwarp);
    match has_way || all.iter().any(is_way) {
        true => Ok(all),
        false => Err(Error::new(Code::InvalidConfig, "this node has no SRP port by iWARP")
            .because("quickstart verifies by SRP, and opens none beside ports that are there")
            .hint(match model.targets.contains_key(DEFAULT_TARGET) {
                true => "`weir serve` serves it as it is; another --data-dir begins with a node of its own",
                false => "say where it may listen, e.g. --listen 127.0.0.1:5555",
            })),
    }
}

/// Whether a host is what a run that was cut off has left.
fn is_own(host: &Host, model: &Model) -> bool {
    let maps = model.maps.iter().filter(|m| m.host == host.name);
    let plain = !host.allow_any && !host.keyed && host.secret.is_none();
    let is_left = !host.ports.is_empty() && host.ports.iter().all(own::is_port);
    plain && is_left && maps.into_iter().all(|m| m.volume == VOLUME)
}

/// The initiator port of this run.
fn own_port(config: &Config) -> Result<InitiatorId> {
    let port = config.hosts.iter().find(|h| h.name == OWN).and_then(|h| h.ports.first());
    let id = port.and_then(|p| p.as_id()).map(InitiatorId);
    id.ok_or_else(|| Error::new(Code::Internal, "there is no host of its own"))
}

/// Where is noted what was written.
fn marker(config: &Config) -> std::path::PathBuf {
    config.data_dir.join("quickstart-data")
}

/// The own host's part, and what is to be done between its two halves.
async fn exercise(
    own: &Arc<Own>,
    served: impl AsyncFnOnce(&Proof) -> Result<()>,
) -> Result<(Proof, Result<Bench>)> {
    let proof = off_runtime(own, Own::verifies).await?;
    served(&proof).await?;
    let bench = match proof.left_alone {
        Some(_) => Ok(Bench::default()),
        None => off_runtime(own, Own::measures).await,
    };
    Ok((proof, bench))
}

/// Runs `f` on a thread of its own.
async fn off_runtime<R: Send + 'static>(
    own: &Arc<Own>,
    f: impl FnOnce(&Own) -> Result<R> + Send + 'static,
) -> Result<R> {
    let own = own.clone();
    let work = tokio::task::spawn_blocking(move || f(&own));
    work.await.map_err(|e| Error::new(Code::Internal, "the initiator ended").because(e))?
}

/// A pool on a sparse file, a volume on it, and this program's own host. Its initiator port is this run's only: nobody else can
/// have the volume by it, also where a run is cut off.
fn config(args: &QuickstartArgs, port: InitiatorId) -> Result<Config> {
    let mut c = Config::default();
    let volume = VolumeSpec {
        block_size: Some(BLOCK as u32),
        serial: Some(own::serial(port)),
        ..VolumeSpec::new(VOLUME, POOL, args.size)
    };
    // Also where the volume is there already, and keeps the size that it has.
    volume.check_size()?;
    if let Some(dir) = &args.data_dir {
        c.data_dir = dir.clone();
    }
    c.cores = args.cores.clone();
    c.buffer_memory = 64 << 20;
    c.listen = args.listen.iter().map(SocketAddr::to_string).collect();
    let data_dir = std::path::absolute(&c.data_dir)
        .map_err(|e| Error::new(Code::InvalidConfig, "--data-dir is not a path").because(e))?;
    let file = data_dir.join("pool.img");
    // A file that is there already keeps its size when that is larger; its label is behind that.
    let there = std::fs::metadata(&file).map_or(0, |m| m.len() >> 20 << 20);
    c.pools = vec![PoolSpec {
        name: POOL.into(),
        devices: vec![DeviceSpec {
            kind: DeviceKind::File,
            path: Some(file.display().to_string()),
            size: Some((args.size.next_multiple_of(1 << 20) + (64 << 20)).max(there)),
        }],
        raid: None,
        overwrite: Default::default(),
        memory: None,
    }];
    c.volumes = vec![volume];
    c.hosts = vec![HostSpec { name: OWN.into(), ports: vec![port.into()], ..HostSpec::default() }];
    c.maps = vec![MapSpec { host: OWN.into(), volume: VOLUME.into(), lun: Some(0) }];
    c.check()
}

/// A target port that speaks `protocol`: the one of that name, if there is one.
fn port_of(model: &Model, protocol: Protocol, name: &str) -> Option<TargetPort> {
    let all = || model.targets.values().filter(|t| t.protocol == protocol);
    // The own host knows no other way.
    let mut iwarp = all().filter(|t| t.transport == Transport::Iwarp);
    let named = iwarp.clone().find(|t| t.name == name);
    named.or_else(|| iwarp.next()).or_else(|| all().next()).cloned()
}

async fn address_of(daemon: &Daemon, port: &str) -> Result<Option<SocketAddr>> {
    let status = daemon.controller.status().await?;
    let live = status.live.ports.iter().find(|p| p.name == port);
    Ok(live.and_then(|p| p.listening.first()).and_then(|a| a.parse().ok()))
}

/// An address of this machine for a listening one.
fn loopback(a: SocketAddr) -> SocketAddr {
    let ip = match a.ip() {
        ip if !ip.is_unspecified() => ip,
        std::net::IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
        std::net::IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, a.port())
}

/// What a Linux host writes to attach, for each address that it may know this machine by.
fn attach_lines(port: &TargetPort, address: SocketAddr) -> Vec<String> {
    let dest = reachable(&address.to_string());
    let ids = format!("id_ext={},ioc_guid={},dest={dest}", port.id_ext, port.ioc_guid);
    vec![
        format!(
            "rxe, InfiniBand, RoCE: echo '{ids}' > /sys/class/infiniband_srp/srp-DEVICE-1/add_target"
        ),
        format!(
            "siw: echo '{ids},initiator_ext=UNIQUE-16-HEX-DIGITS' > /sys/class/infiniband_srp/srp-DEVICE-1/add_target"
        ),
    ]
}

fn summary(r: &Report, left_alone: Option<&LeftAlone>, ends: bool) -> String {
    let mut t = String::new();
    if r.kept_bytes > 0 {
        t += &format!(
            "kept:     {} of an earlier run are still there, every byte right\n",
            format_size(r.kept_bytes)
        );
    }
    match left_alone {
        Some(why) => {
            t += &format!("kept:     volume {VOLUME} is left as it is: {why}\n");
            if let LeftAlone::Changed | LeftAlone::Lost(_) = why {
                t += &format!("          {LOST}\n");
            }
        }
        None => t += &measured(r),
    }
    if ends {
        t += &format!(
            "\nvolume {0} ({1}) was served at {2}; the node ends now. Its data stays in {3}:\n  \
             weir --data-dir {3} quickstart serves it again\n",
            r.served.volume,
            format_size(r.served.bytes),
            r.served.address,
            r.served.data_dir
        );
        return t;
    }
    t += &format!(
        "\nvolume {} ({}) is served at {}\n",
        r.served.volume,
        format_size(r.served.bytes),
        r.served.address
    );
    if !r.served.brp_address.is_empty() {
        t += &format!(
            "and by BRP at {0}: weir bench --initiator brp --target {0} --volume {1}\n",
            r.served.brp_address, r.served.volume
        );
    }
    t += "To attach another Linux host with its own SRP initiator (docs/srp-linux-hosts.md), as root there:\n";
    for l in &r.attach {
        t += &format!("  {l}\n");
    }
    t += &format!("To look around: weir --data-dir {} status\n", r.served.data_dir);
    t
}

fn measured(r: &Report) -> String {
    let mut t = match r.verified_bytes {
        0 => String::new(),
        n => format!("verified: {} written over SRP, read back and compared\n", format_size(n)),
    };
    t += &format!(
        "bench:    4 KiB random reads, 32 at once: {:.0} IOPS, {}/s, latency {:.0} us mean, {:.0} us p99\n",
        r.bench.iops,
        format_size(r.bench.bw_bytes as u64),
        r.bench.clat_ns.mean / 1e3,
        r.bench.clat_ns.p99 as f64 / 1e3,
    );
    t
}
