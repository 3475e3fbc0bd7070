//! `weir quickstart`: from nothing to a served, verified and measured volume.

use super::remote::{self, Remote, Wanted};
use super::serve::{Daemon, Declared, on_runtime};
use crate::cli::args::{Fabric, LoginArgs, Policy, QuickstartArgs};
use crate::cli::output;
use serde::Serialize;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use weir_base::Prng;
use weir_control::config::Config;
use weir_control::model::{
    DeviceKind, DeviceSpec, HostSpec, MapSpec, PoolSpec, Protocol, TargetPort, VolumeSpec,
};
use weir_control::units::format_size;
use weir_control::{Code, Error, Result};
use weir_mem::Slice;
use weir_reactor::{clock, spawn};

const POOL: &str = "quick";
const VOLUME: &str = "quick";
const HOST: &str = "everyone";
/// Bytes of one verification I/O.
const PIECE: u64 = 256 << 10;
/// Verification I/Os in flight.
const DEPTH: usize = 16;

/// What `--json` prints.
#[derive(Debug, Default, Serialize)]
struct Report {
    served: Served,
    /// Bytes that were there from an earlier run and proved right.
    kept_bytes: u64,
    /// Bytes written now, read back and compared.
    verified_bytes: u64,
    bench: Bench,
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

#[derive(Debug, Default, Serialize)]
struct Bench {
    rw: &'static str,
    bs: u64,
    iodepth: usize,
    runtime_seconds: f64,
    iops: f64,
    bw_bytes: f64,
    clat_ns: Clat,
}

#[derive(Debug, Default, Serialize)]
struct Clat {
    mean: f64,
    p50: u64,
    p99: u64,
    max: u64,
}

/// Runs the command.
pub(crate) fn quickstart(args: QuickstartArgs) -> anyhow::Result<ExitCode> {
    let begun = Instant::now();
    let config = config(&args)?;
    let json = args.json;
    let say = move |text: &str| {
        if !json {
            crate::cli::say(&format!("{text}\n"));
        }
    };
    on_runtime(async move |stopping| {
        say(&format!("starting a node in {}", config.data_dir.display()));
        let started = Daemon::start(&config, &[], Declared::AllOrNothing, &stopping).await?;
        let Some(daemon) = started else { return Ok(ExitCode::SUCCESS) };
        let done = tokio::select! {
            biased;
            // What the host does is left where it is: it is parted from as all are.
            () = stopping.begun() => Ok(()),
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

/// Has a host verify and measure, and says what came of it.
async fn show(
    daemon: &Daemon,
    config: &Config,
    args: &QuickstartArgs,
    begun: Instant,
    say: &impl Fn(&str),
) -> anyhow::Result<()> {
    if let Some((object, text)) = daemon.faults().await.into_iter().next() {
        return Err(Error::new(Code::IoError, format!("{object} did not start"))
            .because(text)
            .into());
    }
    let (port, address) = serving(daemon).await?;
    let seconds = begun.elapsed().as_secs_f64();
    say(&format!("serving volume {VOLUME} at {address} after {seconds:.2} s"));
    let local = loopback(address);
    let marker = config.data_dir.join("quickstart-data");
    let (size, runtime) = (args.verify_size.min(args.size), args.runtime);
    let work = tokio::task::spawn_blocking(move || exercise(local, &port, &marker, size, runtime));
    let (mut report, port) =
        work.await.map_err(|e| Error::new(Code::Internal, "the initiator ended").because(e))??;
    report.served.data_dir = config.data_dir.display().to_string();
    report.served.address = address.to_string();
    if let Some(brp) = port_of(daemon, Protocol::Brp) {
        let at = address_of(daemon, &brp.name).await?;
        report.served.brp_address = at.map_or_else(String::new, |a| a.to_string());
    }
    report.served.seconds_to_serve = seconds;
    report.served.api = config.data_dir.join("weir.sock").display().to_string();
    report.served.id_ext = port.id_ext.to_string();
    report.served.ioc_guid = port.ioc_guid.to_string();
    report.attach = attach_lines(&port, address);
    if args.json {
        output::json(&report)?;
    } else {
        output::text(&summary(&report))?;
    }
    Ok(())
}

/// A pool on a sparse file, a volume on it, and a host that stands for all.
fn config(args: &QuickstartArgs) -> Result<Config> {
    let mut c = Config::default();
    if let Some(dir) = &args.data_dir {
        c.data_dir = dir.clone();
    }
    c.cores = args.cores.clone();
    c.buffer_memory = 64 << 20;
    c.listen = vec![args.listen.to_string()];
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
    c.volumes =
        vec![VolumeSpec { block_size: Some(512), ..VolumeSpec::new(VOLUME, POOL, args.size) }];
    c.hosts = vec![HostSpec { name: HOST.into(), allow_any: true, ..HostSpec::default() }];
    c.maps = vec![MapSpec { host: HOST.into(), volume: VOLUME.into(), lun: Some(0) }];
    c.check()
}

async fn serving(daemon: &Daemon) -> Result<(TargetPort, SocketAddr)> {
    let port = port_of(daemon, Protocol::Srp);
    let port = port.ok_or_else(|| Error::new(Code::Internal, "there is no target port"))?;
    let address = address_of(daemon, &port.name).await?;
    let address =
        address.ok_or_else(|| Error::new(Code::Internal, "the target port does not listen"))?;
    Ok((port, address))
}

/// The first target port that speaks `protocol`.
fn port_of(daemon: &Daemon, protocol: Protocol) -> Option<TargetPort> {
    daemon.controller.model().targets.values().find(|t| t.protocol == protocol).cloned()
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

/// What an earlier run wrote: seed and length.
fn kept(marker: &Path) -> Option<(u64, u64)> {
    let text = std::fs::read_to_string(marker).ok()?;
    let mut words = text.split_whitespace().map(str::parse::<u64>);
    Some((words.next()?.ok()?, words.next()?.ok()?))
}

fn keep(marker: &Path, seed: u64, len: u64) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let tmp = marker.with_extension("new");
        std::fs::write(&tmp, format!("{seed} {len}\n"))?;
        std::fs::File::open(&tmp)?.sync_all()?;
        std::fs::rename(&tmp, marker)
    };
    write().map_err(|e| {
        Error::new(Code::IoError, "the note of what was written cannot be kept").because(e)
    })
}

/// The initiator's part: verify what is there, write anew, verify that, measure.
fn exercise(
    address: SocketAddr,
    port: &TargetPort,
    marker: &Path,
    size: u64,
    runtime: Duration,
) -> Result<(Report, TargetPort)> {
    let login = LoginArgs {
        fabric: Fabric::Iwarp,
        id_ext: Some(port.id_ext),
        ioc_guid: Some(port.ioc_guid),
        initiator_port: None,
        channels: None,
        crc: false,
        timeout: Duration::from_secs(30),
    };
    let port = port.clone();
    let earlier = kept(marker);
    let marker = marker.to_owned();
    let way = remote::login(&login, &[address], None);
    remote::on_reactor(&way, move |provider| {
        Box::pin(async move {
            let wanted = Wanted { targets: &[address], lun: Some(0), volume: None };
            let unit = Remote::open(&provider, wanted, &login, Policy::ActivePassive).await?;
            let mut report = Report::default();
            report.served.volume = VOLUME.into();
            report.served.bytes = unit.len();
            if let Some((seed, len)) = earlier {
                report.kept_bytes = verify(&unit, seed, len.min(unit.len())).await?;
            }
            let size = size.min(unit.len()) / PIECE * PIECE;
            let seed = std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(1, |d| d.as_nanos() as u64);
            // While the volume is being rewritten nothing is promised about it.
            let _ = std::fs::remove_file(&marker);
            fill(&unit, seed, size).await?;
            unit.flush().await?;
            report.verified_bytes = verify(&unit, seed, size).await?;
            keep(&marker, seed, size)?;
            report.bench = measure(&unit, runtime).await?;
            unit.close();
            Ok((report, port))
        })
    })
}

fn pattern(seed: u64, at: u64, buf: &mut [u8]) {
    Prng::new(seed ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15)).fill(buf);
}

/// Runs `f` for every piece of the first `size` bytes, several at once.
async fn pieces<F, Fut>(size: u64, f: F) -> Result<()>
where
    F: Fn(u64, Slice) -> Fut + Clone + 'static,
    Fut: Future<Output = Result<()>> + 'static,
{
    let workers: Vec<_> = (0..DEPTH as u64)
        .map(|w| {
            let f = f.clone();
            spawn(async move {
                let buf = Slice::heap(PIECE as usize);
                let mut at = w * PIECE;
                while at < size {
                    f(at, buf.clone()).await?;
                    at += DEPTH as u64 * PIECE;
                }
                Result::<()>::Ok(())
            })
        })
        .collect();
    for w in workers {
        w.await.unwrap_or(Ok(()))?;
    }
    Ok(())
}

async fn fill(unit: &Remote, seed: u64, size: u64) -> Result<()> {
    let unit = unit.clone();
    pieces(size, move |at, buf| {
        let unit = unit.clone();
        async move {
            let mut v = vec![0; buf.len()];
            pattern(seed, at, &mut v);
            buf.write_at(0, &v);
            unit.write(at, buf).await
        }
    })
    .await
}

async fn verify(unit: &Remote, seed: u64, size: u64) -> Result<u64> {
    let unit = unit.clone();
    pieces(size, move |at, buf| {
        let unit = unit.clone();
        async move {
            buf.fill(0);
            unit.read(at, buf.clone()).await?;
            let mut v = vec![0; buf.len()];
            pattern(seed, at, &mut v);
            match buf.to_vec().iter().zip(&v).position(|(a, b)| a != b) {
                None => Ok(()),
                Some(i) => Err(Error::new(
                    Code::DataMismatch,
                    format!("byte {} of the volume is not what was written", at + i as u64),
                )),
            }
        }
    })
    .await?;
    Ok(size)
}

/// 4 KiB random reads, 32 at once.
async fn measure(unit: &Remote, runtime: Duration) -> Result<Bench> {
    const BS: u64 = 4096;
    const IODEPTH: usize = 32;
    let end = clock() + runtime.as_nanos() as u64;
    let begun = clock();
    let workers: Vec<_> = (0..IODEPTH)
        .map(|w| {
            let unit = unit.clone();
            spawn(async move {
                let buf = Slice::heap(BS as usize);
                let mut rng = Prng::new(w as u64);
                let mut lat = Vec::new();
                let mut t = clock();
                while t < end {
                    unit.read(rng.below(unit.len() / BS) * BS, buf.clone()).await?;
                    let now = clock();
                    lat.push((now - t) as u32);
                    t = now;
                }
                Result::<Vec<u32>>::Ok(lat)
            })
        })
        .collect();
    let mut lat: Vec<u32> = Vec::new();
    for w in workers {
        lat.extend(w.await.unwrap_or_else(|| Ok(Vec::new()))?);
    }
    let seconds = (clock() - begun) as f64 / 1e9;
    lat.sort_unstable();
    let at =
        |p: usize| lat.get(lat.len().saturating_sub(1) * p / 100).copied().map_or(0, u64::from);
    let mean = lat.iter().map(|l| f64::from(*l)).sum::<f64>() / lat.len().max(1) as f64;
    let iops = lat.len() as f64 / seconds;
    Ok(Bench {
        rw: "randread",
        bs: BS,
        iodepth: IODEPTH,
        runtime_seconds: seconds,
        iops,
        bw_bytes: iops * BS as f64,
        clat_ns: Clat { mean, p50: at(50), p99: at(99), max: at(100) },
    })
}

/// What a Linux host writes to attach, for each address that it may know this machine by.
fn attach_lines(port: &TargetPort, address: SocketAddr) -> Vec<String> {
    let dest = if address.ip().is_unspecified() {
        format!("ADDRESS-OF-THIS-MACHINE:{}", address.port())
    } else {
        address.to_string()
    };
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

fn summary(r: &Report) -> String {
    let mut t = String::new();
    if r.kept_bytes > 0 {
        t += &format!(
            "kept:     {} of an earlier run are still there, every byte right\n",
            format_size(r.kept_bytes)
        );
    }
    t += &format!(
        "verified: {} written over SRP, read back and compared\n",
        format_size(r.verified_bytes)
    );
    t += &format!(
        "bench:    4 KiB random reads, 32 at once: {:.0} IOPS, {}/s, latency {:.0} us mean, {:.0} us p99\n",
        r.bench.iops,
        format_size(r.bench.bw_bytes as u64),
        r.bench.clat_ns.mean / 1e3,
        r.bench.clat_ns.p99 as f64 / 1e3,
    );
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
