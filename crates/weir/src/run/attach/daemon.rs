//! The daemon of this machine: where it listens, and that it lets an attachment in. A host and a mapping that are missing
//! are made there; they go with the attachment.

use super::said;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use weir_attach::signals::Signals;
use weir_attach::state::Mapped;
use weir_control::client::{Client, Endpoint};
use weir_control::model::{
    Host, HostSecret, HostSpec, InitiatorPort, MapSpec, Mapping, Protocol, check_name,
};
use weir_control::{Code, Error, Result};

/// How long the daemon may take to forget what was made. The end of an attachment waits no longer.
const FORGET: Duration = Duration::from_secs(4);
/// How often is looked for a signal, and for the end of the daemon's start.
const LOOK: Duration = Duration::from_millis(50);
/// Names of volumes that an error shows.
const NAMED: usize = 10;

/// Where a target listens.
pub(super) struct Addresses {
    pub(super) brp: Vec<SocketAddr>,
    pub(super) srp: Vec<SocketAddr>,
}

/// Runs what asks the daemon.
fn ask<R>(work: impl Future<Output = Result<R>>) -> Result<R> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|e| Error::new(Code::Internal, "the daemon cannot be asked").because(e))?;
    runtime.block_on(work)
}

/// The same until a signal comes. What it was asked to make it may make all the same: that was noted before.
fn ask_until<R>(signals: &Signals, work: impl Future<Output = Result<R>>) -> Result<R> {
    let asked = async {
        while !signals.is_asked() {
            tokio::time::sleep(LOOK).await;
        }
    };
    ask(async {
        tokio::select! {
            done = work => done,
            () = asked => Err(said(signals.reason())),
        }
    })
}

/// Where the daemon listens.
pub(super) fn addresses(client: &Client, signals: &Signals) -> Result<Addresses> {
    let work = async {
        let mut status = client.status().await?;
        // What it has to be attached is not known before.
        while status.starting.is_some() {
            tokio::time::sleep(LOOK).await;
            status = client.status().await?;
        }
        Ok((client.targets().await?, status))
    };
    let (targets, status) = ask_until(signals, work).map_err(|e: Error| {
        let hint = "start one with `weir serve`, or name a target with --target";
        if signals.is_asked() { e } else { e.hint(hint) }
    })?;
    let mut found = Addresses { brp: Vec::new(), srp: Vec::new() };
    for target in &targets {
        let port = status.live.ports.iter().find(|p| p.name == target.name);
        let listening = port.map_or(&[][..], |p| &p.listening);
        // One address of each port is enough on the same machine.
        if let Some(at) = listening.iter().find_map(|a| a.parse::<SocketAddr>().ok()) {
            match target.protocol {
                Protocol::Brp => found.brp.push(local(at)),
                Protocol::Srp => found.srp.push(local(at)),
                // The kernel's own clients have those.
                Protocol::Nbd | Protocol::Iscsi => {}
            }
        }
    }
    // Several ports of one daemon are no further paths.
    found.brp.truncate(1);
    found.srp.truncate(1);
    if found.brp.is_empty() && found.srp.is_empty() {
        return Err(Error::new(Code::TargetUnreachable, "the daemon serves no target port")
            .because(format!("the one at {} listens nowhere", client.endpoint()))
            .hint("`weir target list` shows its ports; or name another target with --target"));
    }
    Ok(found)
}

/// An address that is good on this machine.
fn local(mut at: SocketAddr) -> SocketAddr {
    if at.ip().is_unspecified() {
        at.set_ip(match at.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    at
}

/// What is to be let in.
pub(super) struct Guest {
    /// The attachment's name.
    pub(super) name: String,
    pub(super) port: InitiatorPort,
    pub(super) volume: String,
    /// File with what it proves at login.
    pub(super) secret_file: Option<PathBuf>,
    /// Nothing may be made for it.
    pub(super) no_map: bool,
    /// The port was given: other programs may log in by it, too.
    pub(super) shared: bool,
}

/// What is missing.
#[derive(Debug, PartialEq, Eq)]
enum Missing {
    /// Nothing: the port sees the volume.
    Nothing,
    /// A mapping for the host of this name, which names the port.
    Mapping(String),
    /// A host, too; it may have this name.
    Host(String),
    /// A mapping for the host of this name, which stands for all ports. A host of its own would take from other sessions
    /// of the port what they see by that one.
    ForAll(String),
    /// The same, and that host names the port as well.
    ForAllAndIt(String),
}

/// What it takes that the port sees the volume. A host for all ports is given nothing: every machine would see it.
fn missing(hosts: &[Host], maps: &[Mapping], guest: &Guest) -> Missing {
    let own = hosts.iter().find(|h| h.ports.contains(&guest.port));
    let seen_by = seen_by(hosts, guest.port);
    let sees = |h: &Host| maps.iter().any(|m| m.host == h.name && m.volume == guest.volume);
    match (seen_by, own) {
        (Some(h), _) if sees(h) => Missing::Nothing,
        (Some(h), None) if guest.shared => Missing::ForAll(h.name.clone()),
        (_, Some(h)) if h.allow_any => Missing::ForAllAndIt(h.name.clone()),
        (_, Some(h)) => Missing::Mapping(h.name.clone()),
        (_, None) => Missing::Host(free_name(hosts, &guest.name)),
    }
}

/// A name for the host of an attachment.
fn free_name(hosts: &[Host], attachment: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let name: String = attachment.chars().filter(|c| fits(*c)).take(50).collect();
    let name = format!("attach-{}", name.to_ascii_lowercase());
    let taken = |n: &String| hosts.iter().any(|h| h.name == *n);
    let numbered = (2u32..).map(|i| format!("{name}-{i}"));
    std::iter::once(name.clone()).chain(numbered).find(|n| !taken(n)).unwrap_or(name)
}

/// Sees to it that the daemon lets the attachment in, and gives what had to be made for that, and the volume's world-wide
/// name. Something is made by its socket only: who may open that may change everything.
///
/// `note` is told what is about to be made, and again what was. None: nothing.
pub(super) fn let_in(
    client: &Client,
    guest: &Guest,
    signals: &Signals,
    note: &mut dyn FnMut(Option<&Mapped>) -> Result<()>,
) -> Result<(Option<Mapped>, Option<String>)> {
    let Endpoint::Unix(socket) = client.endpoint() else {
        // Where it says that it listens another daemon may, as behind a tunnel.
        let naa = ask_until(signals, async { volume_of(client, guest).await });
        return naa.map(|naa| (None, Some(naa)));
    };
    // The attachment may end in another directory.
    let socket = std::path::absolute(socket).unwrap_or_else(|_| socket.clone());
    let server = Endpoint::Unix(socket).to_string();
    ask_until(signals, async {
        let naa = volume_of(client, guest).await?;
        let known = Some(naa.clone());
        let (hosts, maps) = (client.hosts().await?, client.maps().await?);
        let (host, secret) = match missing(&hosts, &maps, guest) {
            Missing::Nothing => return Ok((None, known)),
            wanted if guest.no_map => return Err(unmapped(&wanted, guest)),
            wanted @ (Missing::ForAll(_) | Missing::ForAllAndIt(_)) => {
                return Err(unmapped(&wanted, guest));
            }
            Missing::Mapping(host) => (host, None),
            Missing::Host(name) => {
                let secret = guest.secret_file.as_deref().map(HostSecret::read).transpose()?;
                (name, Some(secret))
            }
        };
        let (made_host, volume) = (secret.is_some(), guest.volume.clone());
        let shared = guest.shared;
        let (lun, unmapped) = (None, false);
        let mapped = Mapped { server, host, made_host, volume, naa, lun, unmapped, shared };
        let made = make(client, guest.port, mapped, secret, note).await?;
        let known = made.as_ref().map(|m| m.naa.clone()).or(known);
        Ok((made, known))
    })
}

/// The world-wide name of the volume that is wanted.
async fn volume_of(client: &Client, guest: &Guest) -> Result<String> {
    check_name("volume", &guest.volume)?;
    let volumes = client.volumes().await?;
    match volumes.iter().find(|v| v.volume.name == guest.volume) {
        Some(v) => Ok(v.volume.naa.to_string()),
        None => Err(no_volume(volumes.iter().map(|v| v.volume.name.as_str()), guest)),
    }
}

/// The world-wide name of the volume that an initiator port sees by a number.
pub(super) fn seen_as(
    client: &Client,
    port: InitiatorPort,
    lun: u16,
    signals: &Signals,
) -> Result<String> {
    ask_until(signals, async {
        let (hosts, maps) = (client.hosts().await?, client.maps().await?);
        let host = seen_by(&hosts, port);
        let map = host.and_then(|h| maps.iter().find(|m| m.host == h.name && m.lun == lun));
        // Whatever answers at the daemon's addresses would be another one's.
        let Some(m) = map else { return Err(sees_nothing(port, lun, host)) };
        Ok(client.volume(&m.volume).await?.volume.naa.to_string())
    })
}

fn sees_nothing(port: InitiatorPort, lun: u16, host: Option<&Host>) -> Error {
    let (why, host) = match host {
        Some(h) => {
            (format!("this is host {} for it, by its initiator port {port}", h.name), &*h.name)
        }
        None => (format!("it knows no host with the initiator port {port}"), "HOST"),
    };
    Error::new(Code::MapNotFound, format!("the daemon shows nothing as LUN {lun} here"))
        .because(why)
        .hint(format!(
            "weir map create {host} VOLUME --lun {lun}; or weir attach VOLUME, which sees to that"
        ))
}

/// The host as which a port is let in.
fn seen_by(hosts: &[Host], port: InitiatorPort) -> Option<&Host> {
    let own = hosts.iter().find(|h| h.ports.contains(&port));
    own.or_else(|| hosts.iter().find(|h| h.allow_any))
}

/// Makes the mapping, and the host where there is a `secret` for one, which may be none.
async fn make(
    client: &Client,
    port: InitiatorPort,
    mut mapped: Mapped,
    secret: Option<Option<HostSecret>>,
    note: &mut dyn FnMut(Option<&Mapped>) -> Result<()>,
) -> Result<Option<Mapped>> {
    let made_host = mapped.made_host;
    note(Some(&mapped))?;
    if let Some(secret) = secret {
        let (name, ports) = (mapped.host.clone(), vec![port]);
        let spec = HostSpec { name, ports, secret, ..HostSpec::default() };
        if let Err(e) = client.create_host(&spec).await {
            // What has that name or port is somebody else's, and so is its mapping.
            if is_refusal(&e) {
                note(None)?;
            }
            return Err(e);
        }
    }
    let (host, volume) = (mapped.host.clone(), mapped.volume.clone());
    match client.create_map(&MapSpec { host, volume, lun: None }).await {
        Ok(m) => {
            mapped.lun = Some(m.lun);
            note(Some(&mapped))?;
            // The volume may have been made anew just before; as long as it is mapped it is not.
            let now = client.volume(&mapped.volume).await?.volume.naa.to_string();
            if now != mapped.naa {
                mapped.naa = now;
                note(Some(&mapped))?;
            }
            Ok(Some(mapped))
        }
        // Nothing is made. A host that was is taken back as at any end.
        Err(e) if is_refusal(&e) => {
            mapped.unmapped = true;
            let made = made_host.then_some(mapped);
            note(made.as_ref())?;
            // Somebody else was faster, and may want it to stay.
            if e.code == Code::MapExists { Ok(made) } else { Err(e) }
        }
        // What was made all the same is taken back as at any end.
        Err(e) => Err(e),
    }
}

/// Whether the daemon has said that it makes nothing. After any other error it may have made it.
fn is_refusal(e: &Error) -> bool {
    use weir_control::error::Kind;
    let is_refused =
        matches!(e.kind(), Kind::Invalid | Kind::NotFound | Kind::Conflict | Kind::Denied);
    is_refused || e.code == Code::Starting
}

fn no_volume<'a>(all: impl Iterator<Item = &'a str>, guest: &Guest) -> Error {
    let all: Vec<&str> = all.collect();
    let more = all.len().saturating_sub(NAMED);
    let have = match (all.is_empty(), more) {
        (true, _) => "it has none".into(),
        (_, 0) => format!("it has {}", all.join(", ")),
        (_, n) => format!("it has {} and {n} more", all[..NAMED].join(", ")),
    };
    Error::new(Code::VolumeNotFound, format!("the daemon has no volume {}", guest.volume))
        .because(have)
        .hint("`weir volume list` shows its volumes; --target names another target")
}

/// What a person would have to type.
fn unmapped(missing: &Missing, guest: &Guest) -> Error {
    let (volume, port) = (&guest.volume, guest.port);
    let hint = match missing {
        Missing::Host(name) => format!(
            "weir host create {name} --port {port}; weir map create {name} {volume}; or leave --no-map out"
        ),
        Missing::Mapping(host) => {
            format!("weir map create {host} {volume}; or leave --no-map out")
        }
        Missing::ForAll(host) => format!(
            "leave --initiator-port out; or, for every host that none names: weir map create {host} {volume}"
        ),
        Missing::ForAllAndIt(host) => format!(
            "weir host set {host} --remove-port {port}, and it gets a host of its own; or, for every host that none names: \
             weir map create {host} {volume}"
        ),
        Missing::Nothing => String::new(),
    };
    let why = match missing {
        Missing::ForAll(host) => format!(
            "its initiator port {port} was given, so others may use it, and see what host {host} sees"
        ),
        Missing::ForAllAndIt(host) => format!(
            "host {host}, which has its initiator port {port}, stands for all ports that none has, too"
        ),
        _ => format!("its initiator port here is {port}, and --no-map was given"),
    };
    Error::new(Code::MapNotFound, format!("volume {volume} is not mapped to this host"))
        .because(why)
        .hint(hint)
}

/// What was made for an attachment, in a sentence.
pub(super) fn sentence(m: &Mapped) -> String {
    let Mapped { host, volume, .. } = m;
    let lun = m.lun.unwrap_or_default();
    match m.made_host {
        true if m.unmapped => format!("made for it: host {host}"),
        true => format!("made for it: host {host}, which sees {volume} as LUN {lun}"),
        false => format!("made for it: host {host} sees {volume} as LUN {lun}"),
    }
}

/// Takes back what was made for an attachment that had this initiator port, as far as it is still that. Gives a sentence
/// on what became of it.
///
/// # Errors
/// Something stays that may be the attachment's.
pub(super) fn take_back(m: &Mapped, port: &str) -> Result<String> {
    at_daemon(m, async |client| forget(&client, m, port).await)
}

/// A sentence on what became of what an attachment's own process has seen to.
pub(super) fn seen_to(m: &Mapped) -> String {
    let (host, volume) = (&m.host, &m.volume);
    let look = at_daemon(m, async |client| {
        let mapping = found(client.map(host, volume).await)?;
        Ok((mapping, found(client.host(host).await)?))
    });
    match look {
        Ok((None, None)) if m.made_host => {
            format!("volume {volume} is not mapped to host {host} any more, which is deleted")
        }
        Ok((None, _)) => format!("volume {volume} is not mapped to host {host} any more"),
        Ok((Some(now), _)) => {
            format!("host {host} sees volume {volume} as LUN {} now, which stays", now.lun)
        }
        // Its process may have failed at that as well.
        Err(e) => stays(m, &e),
    }
}

fn at_daemon<R>(m: &Mapped, work: impl AsyncFnOnce(Client) -> Result<R>) -> Result<R> {
    let endpoint: Endpoint = m.server.parse()?;
    let client = Client::new(endpoint, None);
    ask(async {
        match tokio::time::timeout(FORGET, work(client)).await {
            Ok(done) => done,
            Err(_) => Err(Error::new(Code::DaemonUnreachable, "the daemon does not answer")
                .because(format!("it had {} s", FORGET.as_secs()))),
        }
    })
}

/// A sentence on what stays, and how to take it away by hand.
pub(super) fn stays(m: &Mapped, why: &Error) -> String {
    let Mapped { host, volume, .. } = m;
    format!("volume {volume} may still be mapped to host {host}: {why}; {}", by_hand(m))
}

/// What takes it away by hand.
pub(super) fn by_hand(m: &Mapped) -> String {
    let Mapped { host, volume, .. } = m;
    let map = (!m.unmapped).then(|| format!("weir map delete {host} {volume}"));
    let host = m.made_host.then(|| format!("weir host delete {host}"));
    Vec::from_iter(map.into_iter().chain(host)).join("; ")
}

async fn forget(client: &Client, m: &Mapped, port: &str) -> Result<String> {
    let (name, volume) = (&m.host, &m.volume);
    let port: InitiatorPort = port.parse()?;
    let Some(host) = found(client.host(name).await)? else {
        return Ok(format!("volume {volume} is not mapped to host {name} any more"));
    };
    if !host.ports.contains(&port) {
        return Ok(format!("host {name} is another one now, and stays as it is"));
    }
    let same = match found(client.volume(volume).await)? {
        Some(v) => v.volume.naa.to_string() == m.naa,
        None => false,
    };
    let mapping = found(client.map(name, volume).await)?;
    let mut text = match mapping {
        Some(_) if m.unmapped => {
            format!("host {name} sees volume {volume} by somebody else, which stays")
        }
        // Whose it is then is not known: somebody may have been faster.
        Some(_) if m.lun.is_none() && !m.made_host => {
            return Err(Error::new(Code::VolumeMapped, "it is not known who has made the mapping")
                .because("the attachment was killed while it asked for it"));
        }
        Some(now) if m.lun.is_some_and(|lun| now.lun != lun) || !same => {
            return Ok(format!("host {name} sees another volume {volume} now, which stays"));
        }
        // Whoever else is of that host may have begun to use the volume, and be away for a moment. Our own session may not be
        // known to be over yet; another one by this port can only be there if the port was given.
        Some(_) => {
            found(client.delete_map_of(name, volume, port, !m.shared).await)?;
            format!("volume {volume} is not mapped to host {name} any more")
        }
        None => format!("volume {volume} is not mapped to host {name} any more"),
    };
    if m.made_host && !host.allow_any && host.ports == [port] {
        match found(client.delete_host(name).await) {
            Ok(_) => text += ", which is deleted",
            Err(e) if e.code == Code::HostMapped => text += ", which stays: it has others",
            // Its port would be let in as the host for all, and see another volume by a number that it knows.
            Err(e) if e.code == Code::LunInUse => {
                text += &format!(", which stays for now; in ten minutes: weir host delete {name}");
            }
            Err(e) => return Err(e),
        }
    }
    Ok(text)
}

/// What is there; `None` when it is not.
fn found<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(v) => Ok(Some(v)),
        Err(e) if e.kind() == weir_control::error::Kind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests;
