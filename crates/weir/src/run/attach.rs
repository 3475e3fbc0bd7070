//! `weir attach` and `weir detach`: the way to the volume, and a process for each disk.

mod daemon;
mod detach;

pub(crate) use self::detach::detach;

use self::daemon::{Addresses, Guest};
use super::remote::{initiator_port, login};
use crate::cli::args::{AttachArgs, AttachMethod, AttachProtocol, RunDir};
use crate::cli::log::{log_to_file, log_to_stderr};
use crate::cli::output::{self, Table};
use crate::machine::port_of;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use weir_attach::attachment::{self, Attachment, NotAttached, Spec};
use weir_attach::error::{Error as AttachError, Kind};
use weir_attach::reach::{Failure, Paths, Wanted, Which};
use weir_attach::signals::Signals;
use weir_attach::state::{self, Life, Listed, Made, Mapped, Method, Place, State};
use weir_bench::client::ConnectError;
use weir_bench::srp::Login;
use weir_control::client::Client;
use weir_control::model::InitiatorPort;
use weir_control::units::format_size;
use weir_control::{Code, Error, Result};
use weir_initiator_brp as brp;
use weir_initiator_srp::ChannelError;
use weir_proto_srp::{PortId, RejectReason};

/// Environment variable that `--background-child` stands beside, so that nobody gives it by accident.
const CHILD: &str = "--background-child";
/// Commands in flight per channel: what a queue of the kernel's can have under way.
const DEPTH: u16 = 256;

/// Runs `weir attach`. `daemon` is asked for addresses when none is given.
pub(crate) fn attach(
    args: AttachArgs,
    daemon: impl FnOnce() -> anyhow::Result<Client>,
) -> anyhow::Result<ExitCode> {
    if args.list {
        return list(&args);
    }
    if args.foreground || args.background_child {
        // Before the first thread, that of the log: a thread that does not hold signals back has them end the process.
        let signals = Signals::hold().map_err(said)?;
        let signals = if args.background_child {
            become_background(&args)?;
            signals.of_child()
        } else {
            log_to_stderr("info")?;
            signals
        };
        // Without a target it is the daemon's volume.
        let daemon = if args.target.is_empty() { Some(daemon()?) } else { None };
        let found = match &daemon {
            Some(d) => daemon::addresses(d, &signals),
            None => Ok(given(&args)),
        };
        let attached = found.and_then(|at| make(&args, &at, daemon.as_ref(), &signals));
        return if args.background_child {
            serve_child(attached)
        } else {
            serve_here(&args, attached)
        };
    }
    start_child(&args)
}

/// The addresses of the command line.
fn given(args: &AttachArgs) -> Addresses {
    let with = |from: u16, to: u16| {
        let change = move |mut a: SocketAddr| {
            if a.port() == from {
                a.set_port(to);
            }
            a
        };
        args.target.iter().copied().map(change).collect::<Vec<_>>()
    };
    let (srp, brp) = (crate::cli::DEFAULT_PORT, weir_proto_brp::DEFAULT_PORT);
    // Where only a host is given, the port of SRP stands for it. A port that was given is tried as it is.
    Addresses { brp: with(srp, brp), srp: with(brp, srp) }
}

/// The attachment's name.
fn name(args: &AttachArgs) -> String {
    args.name.clone().or_else(|| args.volume.clone()).unwrap_or_default()
}

/// The initiator port of an attachment: the same for the same name on the same machine, so that its login ends what is
/// left of one whose process was killed.
fn port(args: &AttachArgs) -> PortId {
    if args.login.initiator_port.is_some() {
        return initiator_port(&args.login);
    }
    // The upper half of the extension is for the number of the path.
    let (ext, guid) = port_of(*b"WA", name(args).bytes());
    PortId::new(ext, guid)
}

/// BRP sessions, one for each path. `life` tells targets that those with one port are of one process.
fn brp_sessions(login: &Login, life: u32) -> Vec<brp::SessionConfig> {
    let path = |(i, at): (usize, &SocketAddr)| {
        let other = if login.port_per_path { (i as u64) << 48 } else { 0 };
        let port = PortId::new(login.initiator.extension() ^ other, login.initiator.guid());
        brp::SessionConfig {
            target: brp::PortId(login.target.0),
            depth: DEPTH,
            command_timeout: login.timeout,
            ..brp::SessionConfig::new(&at.to_string(), brp::PortId(port.0))
        }
    };
    let mut all: Vec<_> = login.addresses.iter().enumerate().map(path).collect();
    // Paths with one port would end each other.
    brp::as_paths(&mut all, life);
    all
}

/// The ways to the volume, best first, with the login each stands for. `life` is drawn anew for each process.
fn ways(
    args: &AttachArgs,
    at: &Addresses,
    secret: Option<&brp::Secret>,
    life: u32,
) -> Vec<(Login, Wanted)> {
    let which = match (&args.volume, args.lun) {
        (Some(name), _) => Which::Name(name.clone()),
        (None, n) => Which::Number(n.unwrap_or(0)),
    };
    let base = |addresses: &[SocketAddr], multipath| Login {
        initiator: port(args),
        ..login(&args.login, addresses, multipath)
    };
    let wanted = |paths| Wanted {
        which: which.clone(),
        identity: None,
        paths,
        fail_after: args.fail_after.map(|d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)),
        read_only: args.read_only,
    };
    let mut ways = Vec::new();
    if args.protocol != AttachProtocol::Srp && !at.brp.is_empty() {
        let login = base(&at.brp, None);
        let mut sessions = brp_sessions(&login, life);
        for s in &mut sessions {
            s.channels = args.login.channels.map_or(0, usize::from);
            s.secret = secret.cloned();
        }
        ways.push((login, wanted(Paths::Brp(sessions))));
    }
    // A host with a secret never goes where none is asked for.
    let is_open = secret.is_none();
    if args.protocol != AttachProtocol::Brp && !at.srp.is_empty() && is_open {
        let policy = (at.srp.len() > 1).then_some(args.multipath);
        let login = base(&at.srp, policy);
        let mut sessions = login.sessions(login.initiator);
        for s in &mut sessions {
            s.depth = DEPTH;
            s.channels = args.login.channels.map_or(0, usize::from);
        }
        let policy = login.multipath.unwrap_or_default();
        ways.push((login, wanted(Paths::Srp(sessions, policy))));
    }
    ways
}

/// Makes the disk. `daemon` is to let it in, if the volume is that daemon's.
fn make(
    args: &AttachArgs,
    at: &Addresses,
    daemon: Option<&Client>,
    signals: &Signals,
) -> Result<Attachment> {
    let secret = args.secret_file.as_deref().map(super::secret::read).transpose()?;
    let [a, b, c, d, ..] = crate::seed::draw()?;
    let life = u32::from_le_bytes([a, b, c, d]);
    let ways = ways(args, at, secret.as_ref(), life);
    let Some((first, _)) = ways.first() else {
        let what = format!("the daemon has no port for {:?}", args.protocol).to_lowercase();
        return Err(Error::new(Code::TargetUnreachable, what)
            .because("`listen` in its configuration makes one of each")
            .hint("leave --protocol out, or name another target with --target"));
    };
    let method = match args.method {
        AttachMethod::Ublk => Some(Method::Ublk),
        AttachMethod::Nbd => Some(Method::Nbd),
        AttachMethod::Fuse => Some(Method::Fuse),
        AttachMethod::Auto => None,
    };
    let mut claimed = attachment::claim(&args.run.run_dir, &name(args), method).map_err(said)?;
    // By a port that was given the attachment may have company at other targets.
    let port = first.initiator.to_string();
    let given = args.login.initiator_port.is_some();
    let targets = at.brp.iter().chain(&at.srp).copied();
    let targets: BTreeSet<_> = if given { targets.collect() } else { BTreeSet::new() };
    let targets = Vec::from_iter(targets);
    claimed.keep_port(weir_attach::port::claim(&port, &targets).map_err(said)?);
    let (stays, noted) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(None)));
    {
        let (port, stays, noted) = (first.initiator.to_string(), stays.clone(), noted.clone());
        claimed.at_the_end(move || {
            let noted: Option<Mapped> = noted.lock().unwrap_or_else(PoisonError::into_inner).take();
            let Some(m) = noted else { return true };
            match daemon::take_back(&m, &port) {
                Ok(text) => {
                    tracing::info!("{text}");
                    true
                }
                Err(e) => {
                    let text = daemon::stays(&m, &e);
                    tracing::warn!("{text}");
                    *stays.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
                    false
                }
            }
        });
    }
    let noting = claimed.noting();
    let port = first.initiator.to_string();
    let mut note = |mapped: Option<&Mapped>| {
        let made = mapped.map(|m| Made::here(m.clone(), port.clone(), targets.clone()));
        noting.note(made.as_ref()).map_err(said)?;
        *noted.lock().unwrap_or_else(PoisonError::into_inner) = mapped.cloned();
        Ok(())
    };
    let (mapped, identity) = match (daemon, &args.volume) {
        (Some(daemon), Some(volume)) => {
            let guest = Guest {
                name: name(args),
                port: InitiatorPort::id(first.initiator.0),
                volume: volume.clone(),
                secret_file: args.secret_file.clone(),
                no_map: args.no_map,
                shared: args.login.initiator_port.is_some(),
            };
            daemon::let_in(daemon, &guest, signals, &mut note)?
        }
        (Some(daemon), None) => {
            let (port, lun) = (InitiatorPort::id(first.initiator.0), args.lun.unwrap_or(0));
            (None, Some(daemon::seen_as(daemon, port, lun, signals)?))
        }
        (None, _) => (None, None),
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let spec = Spec {
        ways: ways
            .iter()
            .map(|(_, w)| Wanted { identity: identity.clone(), ..w.clone() })
            .collect(),
        queues: args.queues.map_or((cores / 2).clamp(1, 4), usize::from),
        initiator_port: first.initiator.to_string(),
        mapped,
    };
    let login = first.clone();
    let provider: weir_attach::workers::MakeProvider =
        Arc::new(move |reactor, ring| login.provider_on(reactor, ring).map_err(|e| e.to_string()));
    attachment::attach(claimed, &spec, &provider, signals).map_err(|e| {
        let mut e = match e {
            NotAttached::Other(e) => said(e),
            NotAttached::Unreached(all) => unreached(&ways, all),
        };
        if let Some(text) = stays.lock().unwrap_or_else(PoisonError::into_inner).take() {
            e.reason = format!("{}\n{text}", e.reason);
        }
        e
    })
}

/// What kept us from the volume, by every way that was tried.
fn unreached(ways: &[(Login, Wanted)], all: Vec<(usize, Failure)>) -> Error {
    let mut errors: Vec<Error> = all
        .into_iter()
        .map(|(i, failure)| {
            let (login, wanted) = &ways[i];
            match failure {
                Failure::Brp(e) => {
                    let unknown = matches!(e, brp::Error::Rejected(brp::RejectReason::NotAllowed));
                    let said = refused(weir_bench::brp::explain(&login.place(), &e));
                    if unknown { said.hint(to_type(login, wanted)) } else { said }
                }
                Failure::Lost(e) => refused(weir_bench::brp::explain(&login.place(), &e)),
                Failure::Srp(e) => {
                    // SRP has no better word for it.
                    let unknown =
                        matches!(e, ChannelError::Rejected(RejectReason::ChannelLimit));
                    let said = refused(login.explain(e));
                    if unknown {
                        said.hint(format!("if the target does not know it: {}", to_type(login, wanted)))
                    } else {
                        said
                    }
                }
                Failure::Other(e) => said(e),
                Failure::NoVolume(have) => {
                    let have = if have.is_empty() {
                        "it shows none to this host".into()
                    } else {
                        format!("it shows {}", have.join(", "))
                    };
                    let what = format!(
                        "the target at {} has no volume {} for this host",
                        login.place(),
                        wanted.which
                    );
                    Error::new(Code::VolumeNotFound, what).because(have).hint(format!(
                        "name one of these, or map the volume to this host (`weir map create`); its initiator port is {}",
                        login.initiator
                    ))
                }
            }
        })
        .collect();
    let Some(mut last) = errors.pop() else {
        return Error::new(Code::TargetUnreachable, "no target was asked");
    };
    // What the other protocol said goes before.
    for e in errors {
        last.reason = format!("{}: {}\n{}", e.message, e.reason, last.reason);
    }
    last
}

/// What lets an attachment in, to be typed at the target.
fn to_type(login: &Login, wanted: &Wanted) -> String {
    let volume = match &wanted.which {
        Which::Name(name) => name.as_str(),
        Which::Number(_) => "VOLUME",
    };
    format!(
        "at the target: weir host create HOST --port {}; weir map create HOST {volume}",
        login.initiator
    )
}

fn refused(e: ConnectError) -> Error {
    super::bench::refused(e)
}

/// An error of the attachment as one of the program.
fn said(e: AttachError) -> Error {
    let code = match e.kind {
        Kind::Denied => Code::Unauthorized,
        Kind::Unsupported => Code::Unsupported,
        Kind::Exists | Kind::Busy => Code::DeviceInUse,
        Kind::NotFound => Code::NotFound,
        Kind::Unreachable => Code::TargetUnreachable,
        Kind::NoVolume => Code::VolumeNotFound,
        Kind::Invalid => Code::InvalidName,
        Kind::Failed | Kind::Interrupted => Code::IoError,
    };
    Error::new(code, e.message).because(e.reason).hint(e.hint)
}

fn text(s: &State, run: &RunDir) -> String {
    let size = format_size(s.size);
    let ro = if s.read_only { ", read-only" } else { "" };
    let disk = s.link.as_ref().unwrap_or(&s.device).display();
    let device = s.device.display();
    let unnamed = match s.link {
        Some(_) => "",
        None => "it has no name in /dev/weir: that cannot be written\n",
    };
    let made = s.mapped.as_ref().map_or(String::new(), |m| daemon::sentence(m) + "\n");
    let also = if s.mapped.is_some() { ", and what was made for it" } else { "" };
    format!(
        "{disk} ({device}) is volume {}, {size}{ro}, by {} and {}\n{unnamed}{made}`{}` takes it away{also}",
        s.volume,
        s.protocol,
        s.method,
        run.detach(&s.name)
    )
}

fn serve_here(args: &AttachArgs, attached: Result<Attachment>) -> anyhow::Result<ExitCode> {
    let a = attached?;
    let said = output::show(args.json, a.state(), |s| text(s, &args.run));
    serve(a, said)
}

/// In the background: tells the process that waits, and serves.
fn serve_child(attached: Result<Attachment>) -> anyhow::Result<ExitCode> {
    match attached {
        Ok(a) => {
            let said = output::json_line(&serde_json::json!({ "attached": a.state() }));
            if said.is_ok()
                && let Err(e) = weir_attach::close_stdout()
            {
                tracing::warn!(error = %e, "standard output stays open");
            }
            serve(a, said)
        }
        Err(e) => {
            output::json_line(&serde_json::json!({ "error": e.problem() }))?;
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Serves a disk of which somebody was told; else only if it is in use already.
fn serve(a: Attachment, said: anyhow::Result<()>) -> anyhow::Result<ExitCode> {
    let a = if said.is_ok() { Some(a) } else { a.withdraw() };
    if let Some(a) = a {
        a.serve();
    }
    said.map(|()| ExitCode::SUCCESS)
}

/// Starts the process that serves the disk, and waits until there is a disk. A signal that comes meanwhile is passed on to
/// that process, which ends, and says so.
fn start_child(args: &AttachArgs) -> anyhow::Result<ExitCode> {
    let failed = |e: std::io::Error| {
        Error::new(Code::IoError, "no process can be started for the disk").because(e)
    };
    let program = std::env::current_exe().map_err(failed)?;
    // The process inherits that they are held back.
    let signals = Signals::hold().map_err(said)?;
    let mut child = Command::new(program)
        .args(std::env::args_os().skip(1))
        .arg(CHILD)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    signals.pass_to(child.id());
    let mut line = String::new();
    let read = child.stdout.take().map(|out| BufReader::new(out).read_line(&mut line));
    signals.keep();
    read.transpose()?;
    let said: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
    if let Some(problem) = said.get("error") {
        let problem: weir_control::error::Problem = serde_json::from_value(problem.clone())?;
        child.wait()?;
        return Err(Error::from(problem).into());
    }
    let Some(attached) = said.get("attached") else {
        let status = child.wait()?;
        return Err(Error::new(Code::Internal, "the process for the disk ended")
            .because(status)
            .hint("run it again with --foreground to see why")
            .into());
    };
    let state: State = serde_json::from_value(attached.clone())?;
    output::show(args.json, &state, |s| text(s, &args.run))?;
    Ok(ExitCode::SUCCESS)
}

/// Prepares the process in the background: it belongs to no terminal, and logs to a file.
fn become_background(args: &AttachArgs) -> anyhow::Result<()> {
    weir_attach::leave_session()?;
    let log = Place::of(&args.run.run_dir, &name(args)).map(|p| p.log());
    log_to_file("info", log.ok())
}

fn list(args: &AttachArgs) -> anyhow::Result<ExitCode> {
    let all = state::list(&args.run.run_dir);
    if args.json {
        let line = |l: &Listed| match &l.state {
            Some(s) => {
                let mut v = serde_json::to_value(s).unwrap_or_default();
                v["alive"] = match l.life {
                    Life::Alive => true.into(),
                    Life::Ended => false.into(),
                    // It is not known.
                    Life::Elsewhere => serde_json::Value::Null,
                };
                v
            }
            None => serde_json::json!({ "name": l.name, "alive": false }),
        };
        output::json(&all.iter().map(line).collect::<Vec<_>>())?;
        return Ok(ExitCode::SUCCESS);
    }
    if all.is_empty() {
        output::text("nothing is attached; `weir attach VOLUME` attaches a volume")?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut t = Table::new(&["NAME", "VOLUME", "DISK", ">SIZE", "BY", "TARGETS", "PROCESS"]);
    for Listed { name, state, life } in all {
        match state {
            Some(s) => {
                let process = match life {
                    Life::Alive => s.pid.to_string(),
                    Life::Ended => {
                        format!("{} has ended; `{}` cleans up", s.pid, args.run.detach(&name))
                    }
                    Life::Elsewhere => {
                        format!("{} of another pid namespace; may live, detach it there", s.pid)
                    }
                };
                let by = format!("{}, {}", s.protocol, s.method);
                let size = format_size(s.size);
                let disk = s.device.display().to_string();
                t.row(vec![name, s.volume, disk, size, by, s.targets.join(", "), process]);
            }
            None => {
                let dash = || "-".to_owned();
                let unfinished = "not finished".to_owned();
                t.row(vec![name, dash(), dash(), dash(), dash(), dash(), unfinished]);
            }
        }
    }
    output::text(&t.text())?;
    Ok(ExitCode::SUCCESS)
}
