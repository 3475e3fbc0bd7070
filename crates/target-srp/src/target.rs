//! A target port as a whole: logins, and what its reactors share.

use crate::channel::Login;
use crate::config::TargetConfig;
use crate::ending::terminate;
use crate::nexus::{NexusName, Nexuses};
use crate::planted::{Bug, has};
use crate::port::Port;
use std::rc::Rc;
use std::sync::Arc;
use weir_base::{MILLIS, Nanos};
use weir_fabric::{FabricError, Incoming, Provider};
use weir_mem::BufPool;
use weir_proto_scsi::identity::Identity;
use weir_proto_scsi::lu::Nexus;
use weir_proto_srp::misc::LogoutReason;
use weir_proto_srp::policy::MultiChannel;
use weir_proto_srp::{Form, LoginReject, LoginRequest, PortId, RejectReason, Tag, evaluate};
use weir_reactor::{now, sleep};
use weir_target_core::{Access, Counts, Secret, Spread, Units, spread};

/// What all reactors of a target port share.
pub(crate) struct TargetShared {
    pub(crate) spread: Arc<Spread>,
    pub(crate) config: TargetConfig,
    pub(crate) access: Arc<Access>,
    /// Vendor and product for LUNs without a unit.
    pub(crate) identity: Identity,
    pub(crate) nexuses: Nexuses,
    expected: usize,
}

impl TargetShared {
    pub(crate) fn reactor_count(&self) -> usize {
        self.expected.max(1)
    }

    pub(crate) fn reject(&self, tag: Tag, reason: RejectReason) -> Vec<u8> {
        let formats = weir_proto_srp::login::BufferFormats::BOTH;
        LoginReject { reason, tag, formats }.to_bytes().to_vec()
    }
}

/// A channel, for status displays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelInfo {
    /// The peer's address.
    pub peer: String,
    /// Its initiator port.
    pub initiator: PortId,
    /// The host's name.
    pub host: String,
    /// Commands since login.
    pub commands: u64,
    /// Requests under way.
    pub busy: u32,
}

/// A nexus, for status displays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NexusInfo {
    /// The initiator port.
    pub initiator: PortId,
    /// Address of a host without a port identifier.
    pub address: String,
    /// Its channels.
    pub channels: usize,
}

/// One SRP target port. Cloning gives another handle; it may be used on any reactor.
#[derive(Clone)]
pub struct Target(Arc<TargetShared>);

impl Target {
    /// A target port that will run on `reactors` reactors.
    pub fn new(
        config: TargetConfig,
        access: Arc<Access>,
        identity: Identity,
        reactors: usize,
    ) -> Self {
        Target(Arc::new(TargetShared {
            spread: Arc::default(),
            config,
            access,
            identity,
            nexuses: Nexuses::default(),
            expected: reactors,
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

    /// Listens on `addr` with the present reactor's provider; logins are spread over all reactors.
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

    /// Nexuses logged in.
    pub fn nexuses(&self) -> Vec<NexusInfo> {
        let all = self.0.nexuses.list();
        all.into_iter()
            .map(|(initiator, address, c)| NexusInfo { initiator, address, channels: c.len() })
            .collect()
    }

    /// Channels of the present reactor.
    pub fn local_channels(&self) -> Vec<ChannelInfo> {
        let Some(port) = Port::local(self.0.spread.id()) else { return Vec::new() };
        port.channels()
            .iter()
            .map(|c| ChannelInfo {
                peer: c.peer.clone(),
                initiator: c.initiator,
                host: c.view.host(),
                commands: c.served.get(),
                busy: c.busy(),
            })
            .collect()
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
            c.close("the target stops", Some(LogoutReason::Unspecified));
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
            if channels.is_empty() && port.logins.get() == 0 {
                break;
            }
            let waited = now() - began;
            if waited >= patience / 2 {
                channels.iter().for_each(|c| c.conn.disconnect(true));
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

/// A login comes to nothing after it has joined its nexus, which may be over by that: then the units forget it.
pub(crate) fn give_up(shared: &TargetShared, name: &NexusName) {
    if let Some(nexus) = shared.nexuses.give_up(name) {
        forget(shared, nexus);
    }
}

/// The last channel of a nexus is gone.
pub(crate) fn forget(shared: &TargetShared, nexus: Nexus) {
    if !has(Bug::NexusStays) {
        shared.access.nexus_lost(nexus);
    }
}

/// Nexuses are over, whose channels see nothing any more: what they had reserved is free, but for units of which a device has writes
/// of theirs yet.
pub(crate) fn over(shared: &TargetShared, former: &[Nexus]) {
    let former = former.iter().filter(|_| !has(Bug::NexusStays));
    former.for_each(|n| shared.access.nexus_over(*n));
}

fn refuse(
    shared: &TargetShared,
    incoming: Box<dyn Incoming>,
    request: &LoginRequest,
    reason: RejectReason,
) {
    shared.spread.counts().refused(&incoming.peer(), &request.initiator, &reason);
    let data = shared.reject(request.tag, reason);
    incoming.reject(&data);
}

/// Judges a login, ends older channels where it says so, and hands it to the reactor that will serve it.
async fn login(shared: Arc<TargetShared>, incoming: Box<dyn Incoming>) {
    let form = if incoming.native_cm() { Form::IbCm } else { Form::RdmaCm };
    let request = match LoginRequest::decode(incoming.private_data(), form) {
        Ok(r) => r,
        Err(e) => {
            shared.spread.counts().stranger(&incoming.peer(), &e);
            return incoming.reject(&[]);
        }
    };
    let (mut response, negotiated) = match evaluate(&request, &shared.config.policy) {
        Ok(r) => r,
        Err(reason) => return refuse(&shared, incoming, &request, reason),
    };
    // An initiator that does not know the port's identifier asks for whatever is at the address: zero.
    if request.target != shared.config.port_id && !request.target.is_zero() {
        return refuse(&shared, incoming, &request, RejectReason::NoNexus);
    }
    // A host that nobody has made known has no business here. One that has a secret cannot prove it by SRP.
    if shared.access.map().host(&request.initiator.0).is_none_or(|h| h.secret != Secret::None) {
        return refuse(&shared, incoming, &request, RejectReason::ChannelLimit);
    }
    let alone = negotiated.multichannel == MultiChannel::Terminate;
    let new = || shared.spread.new_nexus();
    let (name, joined) = shared.nexuses.join(&request.initiator, &incoming.peer(), alone, new);
    if alone && !joined.others.is_empty() {
        shared.nexuses.terminate_wait(&name, true);
        let until = now() + shared.config.terminate_timeout;
        let ending = terminate(&shared, &joined.others, joined.old.clone());
        let are_unaware = || ending.are_unaware();
        let are_there =
            || !has(Bug::OldChannelsStay) && shared.nexuses.has_any(&name, &joined.others);
        let patient = || now() < until || has(Bug::LoginWaitsOnAndOn) && are_unaware();
        // A login must not wait for a dead channel for ever. What of its writes is with a device then is waited for by
        // the writes of the new one, volume by volume.
        // Nor does one that comes to nothing: of those of one host the last one waits.
        let is_over = || shared.nexuses.is_over(&name) && !has(Bug::SupersededWaits);
        while patient() && !is_over() && (are_unaware() || are_there()) {
            sleep(MILLIS).await;
        }
        shared.nexuses.terminate_wait(&name, false);
        // Commands of these would begin after the answer.
        if are_unaware() && !has(Bug::UnawareGoOn) || is_over() {
            give_up(&shared, &name);
            ending.refuse();
            return refuse(&shared, incoming, &request, RejectReason::InsufficientResources);
        }
        response.result = weir_proto_srp::login::MultiChannelResult::Terminated;
    }
    if alone && !(joined.others.is_empty() && has(Bug::JoiningHold)) {
        // What they had reserved is free from here on, but for units of which a device has writes of theirs yet. So it is if all
        // that is left of them is a channel that is being set up.
        over(&shared, &joined.old);
    }
    let (most, map) = (shared.config.max_channels, shared.access.map());
    // Its own channels that it has ended do not count any more: they may be those of before a crash.
    let seat = shared.spread.admit(most, &request.initiator.0, &map);
    let Some(seat) = seat.filter(|_| !shared.nexuses.is_crowded(&name, most)) else {
        give_up(&shared, &name);
        return refuse(&shared, incoming, &request, RejectReason::InsufficientResources);
    };
    let reactors = shared.spread.reactors();
    let home = joined.turn as usize % reactors.len().max(1);
    let (initiator, nexus) = (request.initiator, joined.id);
    let events = request.event_solicited;
    let joined = name.clone();
    let login = Login { incoming, name, nexus, initiator, response, negotiated, events, seat };
    let target = shared.spread.id();
    let limit = match has(Bug::LoginWaitsOnAndOn) {
        true => Nanos::MAX,
        false => shared.config.terminate_timeout,
    };
    let handed = spread::hand_over(&reactors, home, limit, login, move |login: Login| {
        match Port::local(target) {
            Some(port) => {
                port.take_login(login);
                true
            }
            None => {
                login.incoming.reject(&[]);
                false
            }
        }
    });
    match handed.await {
        Ok(true) => {}
        // The port has ended meanwhile.
        Ok(false) if has(Bug::StoppedKeepsNexuses) => {}
        Ok(false) | Err(None) => give_up(&shared, &joined),
        Err(Some(Login { incoming, .. })) => {
            give_up(&shared, &joined);
            refuse(&shared, incoming, &request, RejectReason::InsufficientResources);
        }
    }
}
