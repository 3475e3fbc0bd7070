//! A target port as a whole: logins, and what its reactors share.

use crate::config::TargetConfig;
use crate::greetings::Greetings;
use crate::keyed::{self, Arrival};
use crate::planted::{Bug, has};
use crate::port::Port;
use crate::remembered::Remembered;
use crate::sessions::{ChannelName, Joined, Keep, Placed, SessionName, Sessions};
use std::fmt::Display;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_base::{MILLIS, Nanos};
use weir_fabric::{FabricError, Incoming, Provider};
use weir_mem::BufPool;
use weir_proto_brp::control::GoodbyeReason;
use weir_proto_brp::login::VERSION;
use weir_proto_brp::{Features, LoginReject, LoginRequest, PortId, RejectReason};
use weir_reactor::{Handle, now, sleep, spawn_task};
use weir_target_core::{Access, Counts, Seat, Secret, Spread, Units, spread};

/// What all reactors of a target port share. Nothing of it is touched per command but a counter of `access`.
pub(crate) struct TargetShared {
    pub(crate) spread: Arc<Spread>,
    pub(crate) config: TargetConfig,
    pub(crate) access: Arc<Access>,
    pub(crate) sessions: Sessions,
    pub(crate) remembered: Remembered,
    pub(crate) greetings: Greetings,
    memories: AtomicU64,
}

impl TargetShared {
    /// Names the slots of a new channel.
    pub(crate) fn next_memory(&self) -> u64 {
        self.memories.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// A login on its way to the reactor that will serve it.
pub(crate) struct Login {
    pub(crate) arrival: Arrival,
    pub(crate) request: LoginRequest,
    pub(crate) channel: Placed,
    /// Its place among the channels of the port, which may be that of a channel that it ends.
    pub(crate) seat: Seat,
}

/// A session, for status displays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionInfo {
    /// Initiator port.
    pub initiator: PortId,
    /// The session's number.
    pub session: u64,
    /// Its channels.
    pub channels: usize,
}

/// A channel, for status displays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelInfo {
    /// The peer's address; empty while there is no connection.
    pub peer: String,
    /// Initiator port.
    pub initiator: PortId,
    /// The host that it belongs to.
    pub host: String,
    /// Commands since the first login.
    pub commands: u64,
    /// Messages that they came in.
    pub messages: u64,
    /// Commands under way.
    pub busy: u32,
}

/// One BRP target port. Cloning gives another handle; it may be used on any reactor.
#[derive(Clone)]
pub struct Target(Arc<TargetShared>);

impl Target {
    /// A target port. Every reactor that is to serve it [joins](Target::join).
    pub fn new(config: TargetConfig, access: Arc<Access>) -> Target {
        Target(Arc::new(TargetShared {
            spread: Arc::default(),
            config,
            access,
            sessions: Sessions::default(),
            remembered: Remembered::default(),
            greetings: Greetings::default(),
            memories: AtomicU64::new(0),
        }))
    }

    /// Adds the present reactor.
    ///
    /// # Errors
    /// Not enough memory, or the provider refuses.
    pub fn join(
        &self,
        provider: Rc<dyn Provider>,
        units: Rc<Units>,
        pool: BufPool,
    ) -> Result<Rc<Port>, FabricError> {
        let port = Port::start(self.0.clone(), provider, units, pool)?;
        self.0.spread.join();
        Ok(port)
    }

    /// Listens on `addr` with the present reactor's provider; channels are spread over all reactors.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub fn listen(&self, provider: &dyn Provider, addr: &str) -> Result<String, FabricError> {
        let shared = self.0.clone();
        spread::listen(&self.0.spread, provider, addr, move |incoming| {
            login(shared.clone(), incoming)
        })
    }

    /// Connections that an error of this program has ended, and what has not been told of them.
    pub fn broken(&self) -> (u64, Vec<String>) {
        (self.0.spread.broken(), self.0.spread.take_news())
    }

    /// What has happened at the port.
    pub fn counts(&self) -> &Counts {
        self.0.spread.counts()
    }

    /// The port's identifier.
    pub fn port_id(&self) -> PortId {
        self.0.config.port_id
    }

    /// Sessions that are known, with or without connections.
    pub fn sessions(&self) -> Vec<SessionInfo> {
        let all = self.0.sessions.list().into_iter();
        all.map(|(initiator, session, channels)| SessionInfo { initiator, session, channels })
            .collect()
    }

    /// Channels of the present reactor.
    pub fn local_channels(&self) -> Vec<ChannelInfo> {
        let Some(port) = Port::local(self.0.spread.id()) else { return Vec::new() };
        port.channels().iter().map(|c| c.info()).collect()
    }

    /// The port on the present reactor.
    pub fn local_port(&self) -> Option<Rc<Port>> {
        Port::local(self.0.spread.id())
    }

    /// Lets nobody in any more, closes the listeners of the present reactor and begins to end its channels. Called on
    /// every reactor before [`leave`](Target::leave) on any, so that they end side by side.
    pub fn close(&self) {
        self.0.spread.close();
        let Some(port) = Port::local(self.0.spread.id()) else { return };
        for c in port.channels() {
            c.end_later(GoodbyeReason::Leaving);
        }
    }

    /// Ends all channels of the present reactor and the port's part here, however long that takes.
    pub async fn leave(&self) {
        self.leave_within(Nanos::MAX).await;
    }

    /// As [`leave`](Target::leave), for so many nanoseconds at most: then connections end at once, and soon after
    /// that the port ends whatever its commands still do. False when some had not ended by then.
    pub async fn leave_within(&self, patience: Nanos) -> bool {
        let Some(port) = Port::local(self.0.spread.id()) else { return true };
        let began = now();
        loop {
            // Also those whose login was under way.
            self.close();
            let channels = port.channels();
            // Reads go on when their channels have ended.
            let quiet = channels.is_empty() && port.census().requests_busy == 0;
            if quiet && port.logins.get() == 0 {
                break;
            }
            let waited = now() - began;
            if waited >= patience / 2 {
                channels.iter().filter_map(|c| c.conn()).for_each(|c| c.disconnect(true));
            }
            if waited >= patience {
                tracing::error!(
                    channels = channels.len(), census = ?port.census(),
                    "commands have not ended in time: the target port ends without them"
                );
                port.stop();
                return false;
            }
            sleep(MILLIS).await;
        }
        if let Err(e) = port.check_idle() {
            tracing::error!("resources missing at the end: {e}");
        }
        port.stop();
        true
    }
}

/// Counts a login that is refused.
pub(crate) fn note(shared: &TargetShared, peer: &str, who: &dyn Display, reason: RejectReason) {
    let counts = shared.spread.counts();
    match reason {
        // It comes again, and is let in then.
        RejectReason::Draining => counts.put_off(peer, who),
        reason => counts.refused(peer, who, &reason),
    }
}

/// Refuses a login.
pub(crate) fn refuse(
    shared: &TargetShared,
    incoming: Box<dyn Incoming>,
    request: &LoginRequest,
    reason: RejectReason,
) {
    note(shared, &incoming.peer(), &request.initiator, reason);
    incoming.reject(&LoginReject { reason, version: VERSION }.encode());
}

/// The secret that is to be proved, if the login may go on.
fn judge(shared: &TargetShared, r: &LoginRequest) -> Result<Option<Arc<[u8]>>, RejectReason> {
    if r.version_min > VERSION || r.version_max < VERSION {
        return Err(RejectReason::Version);
    }
    if r.target != shared.config.port_id && !r.target.is_zero() {
        return Err(RejectReason::NoTarget);
    }
    if usize::from(r.channel) >= shared.config.max_channels {
        return Err(RejectReason::Resources);
    }
    match shared.access.map().host(&r.initiator.0) {
        Some(host) => match (&host.secret, r.features.has(Features::KEYED)) {
            (Secret::None, false) => Ok(None),
            (Secret::Known(secret), true) => Ok(Some(secret.clone())),
            _ => Err(RejectReason::Secret),
        },
        None => Err(RejectReason::NotAllowed),
    }
}

/// Judges a login, ends what it replaces, and hands it to the reactor that has the channel.
async fn login(shared: Arc<TargetShared>, incoming: Box<dyn Incoming>) {
    let request = match LoginRequest::decode(incoming.private_data()) {
        Ok(r) => r,
        Err(e) => {
            shared.spread.counts().stranger(&incoming.peer(), &e);
            let reason = RejectReason::Invalid;
            return incoming.reject(&LoginReject { reason, version: VERSION }.encode());
        }
    };
    match judge(&shared, &request) {
        Ok(None) => {}
        Ok(Some(secret)) => return keyed::challenge(&shared, incoming, request, secret).await,
        Err(reason) => return refuse(&shared, incoming, &request, reason),
    }
    let Some(seat) = admit(&shared, &request) else {
        return refuse(&shared, incoming, &request, RejectReason::Resources);
    };
    let name = name(&request);
    let Entered { channel, draining } = join(&shared, &request, name, None).await;
    let (target, reactors) = (shared.spread.id(), shared.spread.reactors());
    let limit = match has(Bug::LoginWaitsOnAndOn) {
        true => Nanos::MAX,
        false => shared.config.drain_timeout,
    };
    let login = Asked { incoming, request, seat };
    let handed = spread::hand_over(&reactors, channel.home, limit, login, move |asked: Asked| {
        let Asked { incoming, request, seat } = asked;
        match Port::local(target) {
            Some(port) => {
                let arrival = Arrival::Asking(incoming);
                port.take_login(Login { arrival, request, channel, seat }, draining);
                None
            }
            None => Some(incoming),
        }
    });
    match handed.await {
        Ok(None) | Err(None) => {}
        Ok(Some(incoming)) => refuse(&shared, incoming, &request, RejectReason::Unspecified),
        Err(Some(asked)) => {
            refuse(&shared, asked.incoming, &request, RejectReason::Draining);
            // Its name is on the table, and nobody may come for it again.
            spread::run_at(&reactors, channel.home, move || {
                if let Some(port) = Port::local(target).filter(|p| p.find(&name).is_none()) {
                    port.forget(&channel);
                }
            });
        }
    }
}

/// A login on its way to the reactor that has its channel.
struct Asked {
    incoming: Box<dyn Incoming>,
    request: LoginRequest,
    seat: Seat,
}

/// The channel that a login means.
pub(crate) fn name(request: &LoginRequest) -> ChannelName {
    let session = SessionName { initiator: request.initiator, session: request.session };
    ChannelName { session, channel: request.channel }
}

/// A place for a login, or the prospect of one that a channel has which the login ends: such channels may be dead, and would keep
/// their host out. Without either it ends nothing.
pub(crate) fn admit(shared: &TargetShared, request: &LoginRequest) -> Option<Seat> {
    let keep = Keep::of(request.features.and(shared.config.features));
    let ends = match has(Bug::OwnKeepOut) {
        true => 0,
        false => shared.sessions.ends(&name(request), keep),
    };
    let (most, map) = (shared.config.max_channels, shared.access.map());
    shared.spread.admit_for(most, &request.initiator.0, &map, ends)
}

/// Where a login has come to be.
pub(crate) struct Entered {
    pub(crate) channel: Placed,
    /// What it replaces has not ended.
    pub(crate) draining: bool,
}

/// Puts a channel on the table of sessions, ends what it replaces, and waits for that. A new one is placed at `wanted`.
pub(crate) async fn join(
    shared: &Arc<TargetShared>,
    request: &LoginRequest,
    name: ChannelName,
    wanted: Option<usize>,
) -> Entered {
    let reactors = shared.spread.reactors();
    let keep = Keep::of(request.features.and(shared.config.features));
    let new = || shared.spread.new_nexus();
    let Joined { channel, others } = shared.sessions.join(name, reactors.len(), keep, wanted, new);
    for other in &others {
        end(shared, &reactors, *other);
    }
    let until = now() + shared.config.drain_timeout;
    while shared.sessions.any(&others) && now() < until {
        sleep(MILLIS).await;
    }
    Entered { channel, draining: shared.sessions.any(&others) }
}

/// Ends a channel wherever it lives.
fn end(shared: &TargetShared, reactors: &[Handle], old: Placed) {
    let Some(h) = reactors.get(old.home) else { return };
    let target = shared.spread.id();
    h.run(move || {
        let channel = Port::local(target).and_then(|p| p.find(&old.name));
        match channel {
            // Another one has its name by now.
            Some(c) if c.placed() != old => {}
            Some(c) => {
                spawn_task(c.end(GoodbyeReason::Replaced));
            }
            // A login that never came to anything has left its name behind.
            None => {
                if let Some(p) = Port::local(target) {
                    p.forget(&old);
                }
            }
        }
    });
}
