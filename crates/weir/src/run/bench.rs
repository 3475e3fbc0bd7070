//! `weir bench`: from the command line to the load generator, and from its result to the reader.

use super::remote::login;
use crate::cli::args::{self, BenchArgs, BenchCommand, ScenarioArgs};
use crate::cli::output;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_base::{Nanos, SECONDS};
use weir_bench::brp::{Brp, BrpOptions, Variant, Which};
use weir_bench::client::{ConnectError, ConnectKind};
use weir_bench::engine::{self, JobResult, Options, RunError, Sample};
use weir_bench::job::{JobSpec, Rw, Verify};
use weir_bench::plot::{Axis, Chart, Scale, Series};
use weir_bench::report::Report;
use weir_bench::scenario::{self, Setup};
use weir_bench::srp::{self, Login, QueueMode, Srp, SrpOptions};
use weir_control::{Code, Error, Result};
use weir_initiator_brp::Secret;
use weir_proto_srp::PortId;
use weir_reactor::PollMode;

/// Measured unless the command line says how long or how much.
const RUNTIME: Nanos = 10 * SECONDS;
/// Points of a drawing over time, about.
const SAMPLES: u64 = 200;

/// Runs the command.
pub(crate) fn bench(args: BenchArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        Some(BenchCommand::Scenario(s)) => run_scenario(s),
        None => run_job(&args),
    }
}

fn nanos(d: Duration) -> Nanos {
    d.as_nanos().min(u128::from(Nanos::MAX)) as Nanos
}

/// Seconds since 1970; 0 on a machine whose clock is before that.
fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

fn spec(a: &BenchArgs) -> JobSpec {
    let rw = match a.rw {
        args::ReadWrite::Read => Rw::Read,
        args::ReadWrite::Write => Rw::Write,
        args::ReadWrite::Randread => Rw::RandRead,
        args::ReadWrite::Randwrite => Rw::RandWrite,
        args::ReadWrite::Rw => Rw::Mixed,
        args::ReadWrite::Randrw => Rw::RandMixed,
        args::ReadWrite::Trim => Rw::Trim,
        args::ReadWrite::Randtrim => Rw::RandTrim,
        args::ReadWrite::Nop => Rw::Nop,
    };
    let runtime = match (a.runtime, a.size) {
        (Some(d), _) => Some(nanos(d)),
        (None, Some(_)) if rw != Rw::Nop => None,
        (None, _) => Some(RUNTIME),
    };
    JobSpec {
        name: a.name.clone(),
        rw,
        // At most 64 MiB, which `BenchArgs::check` has seen to.
        bs: u32::try_from(a.bs).unwrap_or(u32::MAX),
        iodepth: a.iodepth,
        numjobs: a.numjobs,
        offset: a.offset,
        size: a.size,
        runtime,
        time_based: a.time_based,
        ramp: nanos(a.ramp_time),
        rwmixread: a.rwmixread,
        rate: a.rate,
        rate_iops: a.rate_iops,
        randseed: a.randseed,
        verify: a.verify.map(|v| match v {
            args::Verify::Crc32c => Verify::Crc32c,
            args::Verify::Pattern => Verify::Pattern,
        }),
        poll: match a.poll {
            args::PollMode::Adaptive => PollMode::default(),
            args::PollMode::Busy => PollMode::Busy,
            args::PollMode::Sleep => PollMode::Sleep,
        },
    }
}

/// A failed login as an error of the program.
pub(crate) fn refused(e: ConnectError) -> Error {
    let code = match e.kind {
        ConnectKind::Unreachable | ConnectKind::Refused => Code::TargetUnreachable,
        ConnectKind::NoVolume => Code::VolumeNotFound,
        ConnectKind::NoFabric => Code::Unsupported,
        ConnectKind::Failed => Code::IoError,
    };
    Error::new(code, e.message).because(e.reason).hint(e.hint)
}

fn failed(e: RunError) -> Error {
    match e {
        RunError::Connect(e) => refused(e),
        RunError::Job(e) => Error::new(Code::InvalidSize, "the job does not fit the volume")
            .because(e)
            .hint("choose other --offset, --size, --bs, --iodepth or --numjobs"),
        RunError::TooManyVolumes(..) => {
            Error::new(Code::InvalidRequest, "the load cannot be spread over all volumes")
                .because(e)
                .hint("raise --iodepth or --numjobs, or name fewer volumes")
        }
        e => Error::new(Code::IoError, "nothing was measured").because(e),
    }
}

/// The LUNs of the volumes that are named.
fn luns(a: &BenchArgs, login: &Login) -> Result<Vec<u16>> {
    if !a.lun.is_empty() {
        return Ok(a.lun.clone());
    }
    let found = srp::scan(login).map_err(refused)?;
    a.volume
        .iter()
        .map(|name| match found.iter().find(|f| f.is_called(name)) {
            Some(f) => Ok(f.lun),
            None => {
                let all: Vec<String> = found.iter().map(ToString::to_string).collect();
                let have = if all.is_empty() { "it shows none to this host".into() } else { all.join("\n") };
                Err(Error::new(
                    Code::VolumeNotFound,
                    format!("the target at {} shows no volume `{name}` to this host", login.place()),
                )
                .because(have)
                .hint("name one of these, give --lun, or map the volume to this host (`weir map create`)"))
            }
        })
        .collect()
}

fn variant(a: &BenchArgs) -> Variant {
    match a.variant {
        args::BrpVariant::Auto => Variant::Auto,
        args::BrpVariant::Brp1 => Variant::Brp1,
        args::BrpVariant::Brp2 => Variant::Brp2,
        args::BrpVariant::Brp3t => Variant::Brp3T,
        args::BrpVariant::Brp3 => Variant::BRP3,
    }
}

/// The load through BRP.
fn brp(a: &BenchArgs, login: &Login, spec: &JobSpec, secret: Option<Secret>) -> BrpOptions {
    let number = a.lun.iter().map(|n| Which::Number(*n));
    let named = a.volume.iter().map(|n| Which::Name(n.clone()));
    let volumes = number.chain(named).collect();
    // Where only a host is given, the port of SRP stands for it.
    let at = |mut t: SocketAddr| {
        if t.port() == crate::cli::DEFAULT_PORT {
            t.set_port(weir_proto_brp::DEFAULT_PORT);
        }
        t
    };
    let first = login.addresses.first().copied().unwrap_or(([127, 0, 0, 1], 0).into());
    BrpOptions {
        fabric: login.fabric,
        addresses: login.addresses.iter().copied().map(at).collect(),
        target: weir_bench::brp::PortId(login.target.0),
        channels: a.login.channels.map_or(0, usize::from),
        variant: variant(a),
        integrity: !a.no_integrity,
        inline: a.inline.map(|n| u32::try_from(n).unwrap_or(u32::MAX)),
        crc: login.crc,
        timeout: login.timeout,
        secret,
        ..BrpOptions::new(first, weir_bench::brp::PortId(login.initiator.0), volumes, spec)
    }
}

fn run_job(a: &BenchArgs) -> anyhow::Result<ExitCode> {
    let (spec, login) = (spec(a), login(&a.login, &a.target, a.multipath));
    let is_brp = a.initiator == args::Initiator::Brp;
    let secret = a.secret_file.as_deref().map(super::secret::read).transpose()?;
    if secret.is_some() && !is_brp {
        return Err(Error::new(Code::InvalidRequest, "SRP has no secrets")
            .hint("add --initiator brp, or leave --secret-file out")
            .into());
    }
    let luns = if is_brp { a.lun.clone() } else { luns(a, &login)? };
    let mut srp = SrpOptions::new(luns.clone(), &spec);
    srp.channels = a.login.channels.map_or(0, usize::from);
    srp.queue_mode = match a.queue_mode {
        args::QueueMode::Multi => QueueMode::Multi,
        args::QueueMode::Single => QueueMode::Single,
    };
    let time = spec.runtime.unwrap_or(RUNTIME).saturating_add(spec.ramp);
    let options = Options {
        cores: a.cores.iter().map(|c| usize::from(*c)).collect(),
        run: unix_time(),
        sample_every: if a.svg.is_some() { (time / SAMPLES).max(SECONDS / 100) } else { 0 },
        progress: !a.json && std::io::stderr().is_terminal(),
    };
    let target = if is_brp {
        let all: Vec<String> =
            a.volume.iter().cloned().chain(luns.iter().map(|l| format!("LUN {l}"))).collect();
        format!("brp ({}) {} volume {}", variant(a).name(), login.place(), all.join(", "))
    } else {
        let names = if a.volume.is_empty() {
            String::new()
        } else {
            format!(" volume {}", a.volume.join(", "))
        };
        let luns: Vec<String> = luns.iter().map(ToString::to_string).collect();
        format!("srp {}{names} (LUN {})", login.place(), luns.join(", "))
    };
    let results = if is_brp {
        engine::run(Brp::new(brp(a, &login, &spec, secret)), &spec, &options)
    } else {
        engine::run(Srp::new(login, srp), &spec, &options)
    };
    let results = results.map_err(failed)?;
    let report = Report {
        spec,
        all: JobResult::merge(&results),
        percentiles: a.percentile_list.clone(),
        target,
        unix_time: unix_time(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let json = report.json();
    if let Some(path) = &a.output {
        let text = serde_json::to_string_pretty(&json)? + "\n";
        write(path, &text)?;
    }
    if let Some(path) = &a.svg {
        write(path, &over_time(&report)?)?;
    }
    output::show(a.json, &json, |_| report.text())?;
    verdict(&report.all)?;
    Ok(ExitCode::SUCCESS)
}

/// A measurement with errors is a failure, once its figures are printed.
fn verdict(r: &JobResult) -> Result<()> {
    if r.verify.errors > 0 {
        let first = r.verify.bad.first().map(ToString::to_string).unwrap_or_default();
        let what =
            format!("{} of {} checked I/Os had wrong data", r.verify.errors, r.verify.checked);
        return Err(Error::new(Code::DataMismatch, what).because(first));
    }
    if r.errors > 0 || r.lost {
        let what = format!("{} I/Os failed", r.errors);
        return Err(
            Error::new(Code::IoError, what).because(r.first_error.clone().unwrap_or_default())
        );
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|e| {
        Error::new(Code::IoError, format!("{} cannot be written", path.display())).because(e)
    })
}

/// Rate and latency over time.
fn over_time(r: &Report) -> Result<String> {
    let line = |f: fn(&Sample) -> f64| {
        r.all.samples.iter().map(|s| (s.at as f64 / 1e9, f(s))).collect::<Vec<_>>()
    };
    let chart = |title: String, label: &str, points| Chart {
        title,
        x: Axis::new("seconds since the start of the load", Scale::Linear),
        y: Axis::new(label, Scale::Linear),
        series: vec![Series::new("all", points)],
    };
    let iops = line(|s| s.ios as f64 * 1e9 / s.length.max(1) as f64);
    let latency = line(|s| s.latency as f64 / s.ios.max(1) as f64 / 1e3);
    let charts = [
        chart(r.spec.summary(), "IOPS", iops),
        chart("Mean latency".into(), "microseconds", latency),
    ];
    weir_bench::plot::svg(&charts).map_err(|e| {
        Error::new(Code::Internal, "the drawing failed").because(e).hint("use a longer --runtime")
    })
}

fn run_scenario(a: &ScenarioArgs) -> anyhow::Result<ExitCode> {
    if a.list && a.json {
        let all: Vec<_> = scenario::ALL
            .iter()
            .map(|s| serde_json::json!({ "name": s.name, "title": s.title }))
            .collect();
        output::json(&all)?;
        return Ok(ExitCode::SUCCESS);
    }
    if a.list {
        let lines: String =
            scenario::ALL.iter().map(|s| format!("{:12} {}\n", s.name, s.title)).collect();
        output::text(&lines)?;
        return Ok(ExitCode::SUCCESS);
    }
    let name = a.name.as_deref().unwrap_or_default();
    let Some(s) = scenario::find(name) else {
        let all: Vec<&str> = scenario::ALL.iter().map(|s| s.name).collect();
        return Err(Error::new(Code::InvalidRequest, format!("there is no scenario `{name}`"))
            .because(format!("there are {}", all.join(", ")))
            .hint("`weir bench scenario --list` says what each does")
            .into());
    };
    if nanos(a.runtime) == 0 {
        return Err(Error::new(Code::InvalidRequest, "a measurement needs some time")
            .because("--runtime is 0")
            .hint("use e.g. --runtime 1s")
            .into());
    }
    let program = std::env::current_exe().map_err(|e| {
        Error::new(Code::IoError, "the path of this program is not known").because(e)
    })?;
    let setup = Setup {
        program,
        target: a.target,
        initiator: own_port(),
        runtime: nanos(a.runtime),
        repeat: a.repeat,
        out: a.out.clone(),
        unix_time: unix_time(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        command: rerun(a, name),
        say: |line| crate::cli::say(&format!("{line}\n")),
    };
    let outcome = scenario::run(s, &setup).map_err(|e| match e {
        scenario::ScenarioError::Run(e) => failed(e),
        e => Error::new(Code::IoError, format!("the scenario {name} did not run to its end"))
            .because(e),
    })?;
    output::text(&outcome.text)?;
    // The last line is read by `cargo xtask bench`.
    output::text(&format!("{} passed, {} failed", outcome.passed, outcome.failed))?;
    Ok(if outcome.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The command that measures again.
fn rerun(a: &ScenarioArgs, name: &str) -> String {
    let mut c = format!(
        "weir bench scenario {name} --runtime {}s --repeat {} --out {}",
        a.runtime.as_secs_f64(),
        a.repeat,
        a.out.display()
    );
    if let Some(t) = &a.target {
        c += &format!(" --target {}", show(t));
    }
    c
}

fn show(t: &SocketAddr) -> String {
    t.to_string()
}

/// An initiator port for targets that let any in.
fn own_port() -> PortId {
    PortId::new(0x5745_4952_0000_0000 | u64::from(std::process::id()), 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: BenchArgs,
    }

    fn of(line: &str) -> JobSpec {
        let all = format!("bench --target 127.0.0.1 --lun 0 {line}");
        spec(&Line::try_parse_from(all.split_whitespace()).unwrap().args)
    }

    #[test]
    fn time_and_size_mean_what_fio_means() {
        let end = |line: &str| {
            let s = of(line);
            (s.runtime.map(|t| t / SECONDS), s.size, s.time_based)
        };
        assert_eq!(end(""), (Some(10), None, false));
        assert_eq!(end("--runtime 5s"), (Some(5), None, false));
        assert_eq!(end("--size 1M"), (None, Some(1 << 20), false));
        assert_eq!(end("--size 1M --rw nop"), (Some(10), Some(1 << 20), false));
        assert_eq!(end("--size 1M --runtime 5 --time-based"), (Some(5), Some(1 << 20), true));
    }

    #[test]
    fn the_job_is_the_command_lines() {
        let s = of("--rw randrw --rwmixread 70 --bs 64k --iodepth 8 --numjobs 3 --verify pattern \
                    --rate 10M --rate-iops 100 --ramp-time 2 --offset 1M --randseed 9 --name x");
        assert_eq!(
            (s.rw, s.rwmixread, s.bs, s.iodepth, s.numjobs),
            (Rw::RandMixed, 70, 65536, 8, 3)
        );
        assert_eq!((s.rate, s.rate_iops, s.ramp), (Some(10 << 20), Some(100), 2 * SECONDS));
        assert_eq!((s.offset, s.randseed, s.verify), (1 << 20, 9, Some(Verify::Pattern)));
        assert_eq!((s.name.as_str(), s.poll), ("x", PollMode::default()));
        assert_eq!(of("--poll busy").poll, PollMode::Busy);
    }

    #[test]
    fn wrong_data_and_failed_io_have_their_exit_codes() {
        let mut r = JobResult::default();
        assert!(verdict(&r).is_ok());
        r.errors = 1;
        assert_eq!(verdict(&r).unwrap_err().kind().exit_code(), 1);
        r.verify.errors = 1;
        assert_eq!(verdict(&r).unwrap_err().code, Code::DataMismatch);
    }
}
