//! Logging in to targets from all reactors, and finding the volume.

use crate::error::{Error, Kind};
use crate::volume::{Patience, Volume, Way};
use crate::workers::{Here, Workers};
use std::rc::Rc;
use weir_base::{MILLIS, Nanos, SECONDS};
use weir_initiator_brp as brp;
use weir_initiator_srp as srp;
use weir_proto_scsi::Lun;
use weir_reactor::{LocalFuture, sleep, spawn_task};

/// Far away, and still no number that overflows when a time is added.
const FOR_EVER: Nanos = 100 * 365 * 24 * 3600 * SECONDS;
/// How long a path of several may be down before its commands go over another, SRP.
const LEAVE_PATH: Nanos = SECONDS;
/// How often a new size is looked for.
const LOOK: Nanos = 2 * SECONDS;
/// Of so many looks one asks the target whether or not it has told of something.
const ANYWAY: u64 = 15;

/// Which volume of a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// By its name.
    Name(String),
    /// By its number for this host (LUN).
    Number(u16),
}

impl std::fmt::Display for Which {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Which::Name(n) => f.write_str(n),
            Which::Number(n) => write!(f, "LUN {n}"),
        }
    }
}

/// The way to a volume: a session for each path.
#[derive(Debug, Clone)]
pub enum Paths {
    /// By BRP.
    Brp(Vec<brp::SessionConfig>),
    /// By SRP, over these paths as the policy says.
    Srp(Vec<srp::SessionConfig>, srp::PathPolicy),
}

/// What is to be reached.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The volume.
    pub which: Which,
    /// What identifies it, in hexadecimal, where that is known: another one of that name is not meant.
    pub identity: Option<String>,
    /// The way.
    pub paths: Paths,
    /// A request that could not be done for so long fails; `None` has it wait for ever.
    pub fail_after: Option<Nanos>,
    /// Refuse writes.
    pub read_only: bool,
}

impl Wanted {
    /// Refuses another volume than the one that is known.
    fn check(&self, found: &str) -> Result<(), Error> {
        match &self.identity {
            Some(known) if !known.eq_ignore_ascii_case(found) => Err(Error::new(
                Kind::NoVolume,
                format!("the target has another volume {} than the daemon", self.which),
                format!("the target's is {found}, the daemon's is {known}"),
                "somebody else listens at the daemon's address here, as in a container; name the target with --target",
            )),
            _ => Ok(()),
        }
    }
}

/// Why a volume is not reached.
#[derive(Debug, Clone)]
pub enum Failure {
    /// No BRP login worked: why the last did not, or one that may work later.
    Brp(brp::Error),
    /// A BRP login worked, and what came after that did not.
    Lost(brp::Error),
    /// No SRP login worked: why the last did not.
    Srp(srp::ChannelError),
    /// The target has other volumes: these.
    NoVolume(Vec<String>),
    /// Something else.
    Other(Error),
}

/// What a target waits for that may let the same login in later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Passes {
    /// Room for another channel.
    Room,
    /// The end of what this host has sent before.
    Drained,
}

impl Failure {
    /// What the target waits for, if that may let the same login in later.
    pub(crate) fn passes(&self) -> Option<Passes> {
        match self {
            Failure::Brp(e) => passes(e),
            _ => None,
        }
    }

    /// Whether another protocol would find the same, or must not be tried.
    pub(crate) fn is_last(&self) -> bool {
        let by_others = matches!(self, Failure::Brp(_) | Failure::Srp(_));
        !by_others || self.passes() == Some(Passes::Drained)
    }
}

/// One for no reason that BRP knows is no such refusal: what speaks SRP only refuses logins by BRP so.
fn passes(e: &brp::Error) -> Option<Passes> {
    match e {
        brp::Error::Rejected(brp::RejectReason::Draining) => Some(Passes::Drained),
        brp::Error::Rejected(brp::RejectReason::Resources) => Some(Passes::Room),
        _ => None,
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        Failure::Other(e)
    }
}

/// The sessions with a volume's targets.
#[derive(Clone)]
pub enum Sessions {
    /// One for each path.
    Brp(Vec<brp::Session>),
    /// One for each path.
    Srp(Vec<srp::Session>),
}

/// A volume that all reactors reach.
pub struct Reached {
    /// The sessions.
    pub sessions: Sessions,
    /// The volume's name, if the target told one.
    pub name: Option<String>,
    /// What identifies the volume, whatever the path, in hexadecimal.
    pub identity: String,
}

/// Logs in and opens the volume on every reactor, where [`volume`] finds it.
///
/// # Errors
/// No path could be logged in, or the volume is not there.
pub fn reach(workers: &Workers, wanted: &Wanted) -> Result<Reached, Failure> {
    match &wanted.paths {
        Paths::Brp(configs) => brp_volume(workers, configs, wanted),
        Paths::Srp(configs, policy) => srp_volume(workers, configs, *policy, wanted),
    }
}

/// The present reactor's part of the volume.
pub fn volume() -> Option<Rc<Volume>> {
    weir_reactor::get_local::<Volume>()
}

impl Reached {
    /// Logs out. Requests that wait fail.
    pub fn close(&self, workers: &Workers) {
        let sessions = self.sessions.clone();
        let _ = workers.call_to_end(0, move |_| {
            Box::pin(async move {
                match sessions {
                    Sessions::Brp(all) => {
                        for s in all {
                            s.close().await;
                        }
                    }
                    Sessions::Srp(all) => {
                        for s in all {
                            s.close().await;
                        }
                    }
                }
            })
        });
    }

    /// Has `told` called on the first reactor with every new length.
    ///
    /// # Errors
    /// The reactor has ended.
    pub fn on_resize(
        &self,
        workers: &Workers,
        told: impl Fn(u64) + Send + 'static,
    ) -> Result<(), Error> {
        let sessions = self.sessions.clone();
        workers.call(0, move |_| {
            spawn_task(async move {
                let mut seen = None;
                for round in 0u64.. {
                    sleep(LOOK).await;
                    let Some(v) = volume() else { return };
                    let news = news(&sessions);
                    // Also without news now and then: what changed just after a login may not have been told.
                    let anyway = round % ANYWAY == 0;
                    if seen == Some(news) && !anyway {
                        continue;
                    }
                    if let Some(len) = v.ask_len(anyway).await {
                        seen = Some(news);
                        if len != crate::disk::Disk::geometry(&*v).len {
                            told(len);
                        }
                    }
                }
            });
            Box::pin(async {})
        })
    }

    /// Has every reactor take a new length over.
    ///
    /// # Errors
    /// A reactor has ended.
    pub fn set_len(&self, workers: &Workers, len: u64) -> Result<(), Error> {
        each(workers, move |_| {
            if let Some(v) = volume() {
                v.set_len(len);
            }
            Box::pin(async {})
        })
        .map(drop)
    }
}

/// A number that changes when a volume may have another size.
fn news(sessions: &Sessions) -> u64 {
    match sessions {
        // The session itself knows when to ask.
        Sessions::Brp(_) => weir_reactor::now(),
        Sessions::Srp(all) => all
            .iter()
            .map(|s| {
                let f = s.figures();
                f.unit_attentions + f.reconnects + s.notices().len() as u64
            })
            .sum(),
    }
}

/// Runs `f` on every reactor.
fn each<R: Send + 'static>(
    workers: &Workers,
    f: impl Fn(Rc<Here>) -> LocalFuture<'static, R> + Clone + Send + 'static,
) -> Result<Vec<R>, Error> {
    (0..workers.len()).map(|i| workers.call(i, f.clone())).collect()
}

fn brp_volume(
    workers: &Workers,
    configs: &[brp::SessionConfig],
    wanted: &Wanted,
) -> Result<Reached, Failure> {
    let several = configs.len() > 1;
    let config = |c: &brp::SessionConfig| {
        let mut c = c.clone();
        // With one path nothing else is left than to wait. With several the target that has lost us must have
        // given up first (initiator-brp, Multipath).
        c.fast_io_fail = if several { c.keep_alive + SECONDS } else { FOR_EVER };
        c
    };
    let sessions: Vec<brp::Session> =
        configs.iter().map(|c| brp::Session::new(config(c))).collect();
    let all = sessions.clone();
    each(workers, move |here| {
        all.iter().for_each(|s| s.join(here.provider.clone()));
        Box::pin(async {})
    })?;
    let (all, which) = (sessions.clone(), wanted.which.clone());
    let reached =
        Reached { sessions: Sessions::Brp(sessions), name: None, identity: String::new() };
    let found = workers.call(0, move |_| {
        Box::pin(async move {
            brp_login(&all).await.map_err(Failure::Brp)?;
            let mut last = None;
            for s in &all {
                match s.queue().list().await {
                    Ok(list) => return brp_find(list, &which),
                    Err(e) => last = Some(e),
                }
            }
            Err(Failure::Lost(last.unwrap_or(brp::Error::PathDown)))
        })
    });
    let opened = found.map_err(Failure::from).and_then(|r| r).and_then(|info| {
        wanted.check(&hex(&info.uid))?;
        let Sessions::Brp(all) = reached.sessions.clone() else { return Ok(info) };
        let (uid, patience, read_only) =
            (info.uid, Patience::of(wanted.fail_after), wanted.read_only);
        let done = each(workers, move |_| {
            let (all, patience) = (all.clone(), patience.clone());
            Box::pin(async move {
                let queues = all.iter().map(brp::Session::queue).collect();
                let paths = brp::Multipath::open(queues, &uid).await?;
                let v = Volume::brp(paths, patience).ok_or(brp::Error::PathDown)?;
                keep(v, read_only);
                Ok(())
            })
        })?;
        done.into_iter().collect::<Result<Vec<()>, _>>().map_err(Failure::Lost)?;
        Ok(info)
    });
    match opened {
        Ok(info) => Ok(Reached { name: Some(info.name), identity: hex(&info.uid), ..reached }),
        Err(e) => {
            reached.close(workers);
            Err(e)
        }
    }
}

fn keep(v: Volume, read_only: bool) {
    if read_only {
        v.set_read_only();
    }
    weir_reactor::set_local(Rc::new(v));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Logs several paths in. One is enough to begin with; the others are tried again and again.
async fn brp_login(sessions: &[brp::Session]) -> Result<(), brp::Error> {
    let mut failed = Vec::new();
    let mut last = None;
    for s in sessions {
        if let Err(e) = s.login().await {
            // Of several reasons the one that passes counts: another protocol must not be tried.
            last = last.filter(|l| passes(l) > passes(&e)).or(Some(e));
            failed.push(s.clone());
        }
    }
    match last {
        Some(e) if failed.len() == sessions.len() => return Err(e),
        _ => {}
    }
    for s in failed {
        spawn_task(async move {
            let mut pause = 100 * MILLIS;
            // A session that was closed is refused as such, and that is its end.
            loop {
                sleep(pause).await;
                match s.login().await {
                    Ok(()) | Err(brp::Error::Closed) => return,
                    Err(_) => pause = (pause * 2).min(2 * SECONDS),
                }
            }
        });
    }
    Ok(())
}

fn brp_find(list: Vec<brp::VolumeInfo>, which: &Which) -> Result<brp::VolumeInfo, Failure> {
    let have = list.iter().map(|v| v.name.clone()).collect();
    let mut all = list.into_iter();
    let found = match which {
        Which::Name(n) => all.find(|v| v.name == *n),
        Which::Number(n) => all.find(|v| v.volume == *n),
    };
    found.ok_or(Failure::NoVolume(have))
}

fn srp_volume(
    workers: &Workers,
    configs: &[srp::SessionConfig],
    policy: srp::PathPolicy,
    wanted: &Wanted,
) -> Result<Reached, Failure> {
    let several = configs.len() > 1;
    let config = |c: &srp::SessionConfig| {
        let mut c = c.clone();
        c.fast_io_fail = if several { LEAVE_PATH } else { FOR_EVER };
        c.reconnect_max = 2 * SECONDS;
        c
    };
    let sessions: Vec<srp::Session> =
        configs.iter().map(|c| srp::Session::new(config(c))).collect();
    let all = sessions.clone();
    each(workers, move |here| {
        all.iter().for_each(|s| s.join(here.provider.clone()));
        Box::pin(async {})
    })?;
    let (all, which) = (sessions.clone(), wanted.which.clone());
    let reached =
        Reached { sessions: Sessions::Srp(sessions), name: None, identity: String::new() };
    let found = workers.call(0, move |_| {
        Box::pin(async move {
            srp_login(&all).await.map_err(Failure::Srp)?;
            let first = all.iter().find(|s| s.state() == srp::PathState::Running);
            let Some(first) = first else {
                return Err(Failure::Srp(srp::ChannelError::NoReactor));
            };
            srp_find(&first.queue(), &which).await
        })
    });
    let opened = found.map_err(Failure::from).and_then(|r| r).and_then(|(name, unit)| {
        wanted.check(&unit.naa.as_deref().map(hex).unwrap_or_default())?;
        let Sessions::Srp(all) = reached.sessions.clone() else { return Ok((name, unit)) };
        let (patience, read_only, of) =
            (Patience::of(wanted.fail_after), wanted.read_only, unit.clone());
        let done = each(workers, move |_| {
            let (all, patience, unit) = (all.clone(), patience.clone(), of.clone());
            Box::pin(async move {
                let mut queues: Vec<srp::Queue> = all.iter().map(srp::Session::queue).collect();
                let way = match &unit.naa {
                    Some(naa) => {
                        let config = srp::MultipathConfig {
                            policy,
                            no_path: FOR_EVER,
                            ..srp::MultipathConfig::default()
                        };
                        Way::Srp(srp::Multipath::open(queues, naa, config).await?)
                    }
                    None if queues.len() == 1 => Way::Plain(queues.remove(0).bind(&unit), unit.lun),
                    None => {
                        let why = "the unit has no NAA designator to know it by on other paths";
                        return Err(srp::Error::Invalid(why.into()));
                    }
                };
                keep(Volume::srp(way, &unit, patience), read_only);
                Ok(())
            })
        })?;
        done.into_iter().collect::<Result<Vec<()>, _>>().map_err(|e| unusable(&e))?;
        Ok((name, unit))
    });
    match opened {
        Ok((name, unit)) => {
            let identity = unit.naa.as_deref().map(hex).or(unit.serial).unwrap_or_default();
            Ok(Reached { name, identity, ..reached })
        }
        Err(e) => {
            reached.close(workers);
            Err(e)
        }
    }
}

fn unusable(e: &srp::Error) -> Failure {
    let message = "the volume cannot be used";
    Failure::Other(Error::new(Kind::Failed, message, e, "`weir inquiry` shows what it is"))
}

async fn srp_login(sessions: &[srp::Session]) -> Result<(), srp::ChannelError> {
    let mut failed = Vec::new();
    let mut last = None;
    for s in sessions {
        if let Err(e) = s.login().await {
            last = Some(e);
            failed.push(s.clone());
        }
    }
    match last {
        Some(e) if failed.len() == sessions.len() => return Err(e),
        _ => {}
    }
    failed.iter().for_each(srp::Session::login_later);
    Ok(())
}

async fn srp_find(
    queue: &srp::Queue,
    which: &Which,
) -> Result<(Option<String>, srp::LogicalUnit), Failure> {
    let all = queue.scan().await.map_err(|e| unusable(&e))?;
    let mut have = Vec::new();
    for unit in all.into_iter().filter(|u| u.device_type == 0 && u.block_size >= 512) {
        let names = queue.names(unit.lun).await;
        let found = match which {
            Which::Name(n) => names.contains(n) || unit.serial.as_ref() == Some(n),
            Which::Number(n) => unit.lun == Lun::from_index(*n).unwrap_or(Lun::ZERO),
        };
        let name = names.into_iter().next();
        if found {
            return Ok((name, unit));
        }
        let lun = unit.lun.index().unwrap_or(0);
        have.push(format!("LUN {lun} {}", name.or(unit.serial).unwrap_or_default()));
    }
    Err(Failure::NoVolume(have))
}
