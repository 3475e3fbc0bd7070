//! The channel machine: one connection of a host, from its login to the last resource given back.

use crate::at_once::AtOnceTap;
use crate::events::Events;
use crate::nexus::{ChannelRef, NexusName};
use crate::planted::{Bug, has};
use crate::port::Port;
use crate::target;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{Nanos, SECONDS};
use weir_fabric::{Connection, Incoming, Params, SendFlags};
use weir_mem::Share;
use weir_proto_scsi::lu::Nexus;
use weir_proto_scsi::transport_id::TransportId;
use weir_proto_srp::credit::RequestLimit;
use weir_proto_srp::misc::{CreditRequest, LogoutReason, TargetLogout};
use weir_proto_srp::states::ChannelState;
use weir_proto_srp::{IuContext, LoginResponse, Negotiated, PortId, Tag};
use weir_reactor::{
    LocalFuture, Panicked, TaskId, Token, WaitChannel, completion, contained_future, now, sleep,
    spawn_task,
};
use weir_target_core::{Attachment, Link, Seat};

/// What a login has settled and the accepting reactor needs.
pub(crate) struct Login {
    pub(crate) incoming: Box<dyn Incoming>,
    pub(crate) name: NexusName,
    pub(crate) nexus: Nexus,
    pub(crate) initiator: PortId,
    pub(crate) response: LoginResponse,
    pub(crate) negotiated: Negotiated,
    /// The host wants asynchronous events on this channel.
    pub(crate) events: bool,
    /// Its place among the channels of the port.
    pub(crate) seat: Seat,
}

/// An SRP channel in service.
pub(crate) struct Channel {
    pub(crate) id: u32,
    pub(crate) peer: String,
    pub(crate) initiator: PortId,
    pub(crate) conn: Rc<dyn Connection>,
    pub(crate) context: IuContext,
    pub(crate) response_len: usize,
    /// Its nexus, among those of its port.
    name: NexusName,
    pub(crate) view: Attachment,
    /// Of the data buffers, its host's part.
    pub(crate) share: Share,
    state: Cell<ChannelState>,
    /// Messages that were no valid IUs and could be answered.
    pub(crate) malformed: Cell<u32>,
    credit: RefCell<RequestLimit>,
    /// Requests that hold the channel, and who waits for none.
    busy: Cell<u32>,
    drained: WaitChannel,
    lost: Cell<bool>,
    /// Since when a request of ours (CRED_REQ, AER_REQ) is unanswered: there may be one at a time.
    asked: Cell<Option<Nanos>>,
    last_heard: Cell<Nanos>,
    next_tag: Cell<u64>,
    pub(crate) events: Events,
    /// Commands since login.
    pub(crate) served: Cell<u64>,
    port: Rc<Port>,
}

impl Channel {
    fn enter(&self, next: ChannelState) {
        let now = self.state.replace(next);
        assert!(now.may_follow(next), "channel {}: {next} after {now}", self.id);
        self.port.trace.note("channel", self.id, next.name());
    }

    /// Accepts a login on this reactor and serves it until it ends.
    pub(crate) async fn accept(port: Rc<Port>, login: Login) {
        let Login { incoming, name, nexus, initiator, mut response, .. } = login;
        let Login { negotiated, events, seat, .. } = login;
        let peer = incoming.peer();
        let lose = |port: &Port, name: &NexusName| {
            if port.has_joined(name) {
                target::give_up(&port.shared, name);
            }
        };
        // RESOURCE WAIT: receives for all credits granted, and one for the answer to our own request.
        let Some(credits) = port.commit(response.credits as u32) else {
            let reason = weir_proto_srp::RejectReason::InsufficientResources;
            incoming.reject(&port.shared.reject(response.tag, reason));
            let why = "no receive buffers are left";
            port.shared.spread.counts().refused(&peer, &initiator, &why);
            return lose(&port, &name);
        };
        response.credits = credits as i32;
        let params = Params {
            private_data: response.to_bytes().to_vec(),
            recv_queue: port.recv_queue.clone(),
            reads_out: port.config.reads_out.min(incoming.peer_serves_reads()),
            reads_in: 0,
        };
        port.accepting.set(port.accepting.get() + 1);
        let conn = incoming.accept(&*port.provider, params).await;
        port.accepted();
        let conn = match conn {
            Ok(c) => c,
            Err(e) => {
                tracing::warn!(%peer, error = %e, "connection failed while being accepted");
                port.uncommit(credits);
                port.established.signal_all();
                return lose(&port, &name);
            }
        };
        let id = port.next_channel();
        let me = ChannelRef { reactor: weir_reactor::current_id(), channel: id };
        // The port has ended meanwhile, or a later login of the nexus has ended its channels. In one poll with what puts it in service.
        if port.is_stopped() || !port.shared.nexuses.attach(&name, me) {
            conn.disconnect(true);
            port.uncommit(credits);
            port.refuses(conn.qp());
            return lose(&port, &name);
        }
        let view = Attachment::new(
            nexus,
            initiator.0.to_vec(),
            TransportId::srp(initiator.0),
            port.config.relative_port,
        );
        let share = port.pool.share(&name.account(&port.shared.access.map()));
        let channel = Rc::new(Channel {
            id,
            peer,
            initiator,
            conn,
            context: negotiated.iu_context(),
            response_len: (negotiated.response_iu_len as usize).min(512),
            name: name.clone(),
            view,
            share,
            state: Cell::new(ChannelState::START),
            credit: RefCell::new(RequestLimit::new(credits)),
            busy: Cell::new(0),
            drained: WaitChannel::new(0),
            malformed: Cell::new(0),
            lost: Cell::new(false),
            asked: Cell::new(None),
            last_heard: Cell::new(now()),
            next_tag: Cell::new(1),
            events: Events::default(),
            served: Cell::new(0),
            port: port.clone(),
        });
        let link: Rc<dyn Link> = channel.clone();
        channel.view.set_link(Rc::downgrade(&link));
        for s in [
            ChannelState::ResourceWait,
            ChannelState::NexusWait,
            ChannelState::AcceptWait,
            ChannelState::Established,
        ] {
            channel.enter(s);
        }
        // It may find that the host has been given a secret meanwhile.
        channel.view.refresh(&port.shared.access, &port.units);
        port.add_channel(channel.clone());
        channel.conn.set_tap(Some(Rc::new(AtOnceTap(Rc::downgrade(&channel)))));
        port.has_joined(&name);
        port.established.signal_all();
        let host = channel.view.host();
        port.shared.spread.counts().logged_in(&host, &channel.peer);
        tracing::info!(
            peer = %channel.peer, initiator = %channel.initiator, %host,
            channel = id, credits, "channel established"
        );
        let probe = channel.spawn(Channel::probe(channel.clone()));
        let watch = events.then(|| channel.spawn(Channel::watch_events(channel.clone())));
        let (token, closed) = completion();
        channel.conn.on_closed(token);
        closed.await;
        // They would hold the connection, and with it a file, until their next look.
        for task in [Some(probe), watch].into_iter().flatten() {
            weir_reactor::cancel(task);
        }
        channel.lost.set(true);
        port.shared.spread.counts().logged_out(&host);
        let reason = channel.conn.close_reason();
        if reason.starts_with(weir_fabric::OWN_ERROR) {
            port.shared.spread.broke(&channel.peer, &reason);
        }
        port.stop_waits(&channel);
        channel.conn.set_tap(None);
        tracing::info!(
            peer = %channel.peer, initiator = %channel.initiator, channel = id,
            reason = %channel.conn.close_reason(), commands = channel.served.get(), "channel closed"
        );
        channel.enter(ChannelState::FlushWait);
        channel.enter(ChannelState::DrainWait);
        channel.view.leave();
        port.shared.nexuses.lose(&name);
        channel.view.left().await;
        if has(Bug::SeatHeldOn) {
            channel.leave_nexus();
        }
        // What a device does not hold up ends by itself, and soon: nothing that a host has of the port outlives its place there.
        while channel.busy.get() > 0 {
            channel.drained.wait().await;
        }
        port.remove_channel(&channel);
        port.uncommit(credits);
        channel.enter(ChannelState::Free);
        drop(seat);
        // Whoever waits for the end of the channel finds its place free.
        channel.leave_nexus();
    }

    /// Its port has ended. What a device holds yet is waited for by writes of the host's next login, which that port knows
    /// nothing of.
    pub(crate) fn is_left_behind(&self) {
        self.view.leave();
        self.leave_nexus();
    }

    fn leave_nexus(&self) {
        let me = ChannelRef { reactor: weir_reactor::current_id(), channel: self.id };
        if let Some(n) = self.port.shared.nexuses.detach(&self.name, me) {
            target::forget(&self.port.shared, n);
        }
    }

    /// True once there is nobody to answer.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.get() || !self.conn.is_open()
    }

    /// The port that it belongs to.
    #[inline]
    pub(crate) fn port(&self) -> &Rc<Port> {
        &self.port
    }

    /// In service, and its connection up.
    #[inline]
    pub(crate) fn is_established(&self) -> bool {
        self.state.get() == ChannelState::Established && !self.is_lost()
    }

    /// Whether [`charge`](Channel::charge) will find a credit.
    #[inline]
    pub(crate) fn can_charge(&self) -> bool {
        self.credit.borrow().granted() > 0
    }

    /// The host is there.
    #[inline]
    pub(crate) fn heard(&self) {
        self.last_heard.set(now());
    }

    /// A request takes hold of the channel.
    #[inline]
    pub(crate) fn begin(&self) {
        self.busy.set(self.busy.get() + 1);
        self.heard();
    }

    /// A request lets go.
    #[inline]
    pub(crate) fn end(&self) {
        self.busy.set(self.busy.get() - 1);
        if self.busy.get() == 0 && self.lost.get() {
            self.drained.signal_all();
        }
    }

    /// Requests under way.
    pub(crate) fn busy(&self) -> u32 {
        self.busy.get()
    }

    /// A request that takes a credit. False, and the end of the channel, when it has none: a host that
    /// overruns its limit may overrun any other.
    #[inline]
    pub(crate) fn charge(&self) -> bool {
        self.served.set(self.served.get() + 1);
        let ok = self.credit.borrow_mut().consume().is_ok();
        if !ok {
            self.close(
                "the host sent more requests than it has credits",
                Some(LogoutReason::Unspecified),
            );
        }
        ok
    }

    /// Ends a request with a response: the credits that this carries.
    #[inline]
    pub(crate) fn release(&self) -> i32 {
        let mut c = self.credit.borrow_mut();
        c.release();
        c.take_delta()
    }

    /// Ends a request without a response.
    pub(crate) fn refund(self: &Rc<Self>) {
        let ask = {
            let mut c = self.credit.borrow_mut();
            c.release();
            c.needs_credit_request()
        };
        if ask {
            self.ask();
        }
    }

    /// A request of ours is unanswered.
    pub(crate) fn has_asked(&self) -> bool {
        self.asked.get().is_some()
    }

    /// Claims the right to the one request of ours; false when another has it.
    pub(crate) fn begin_asking(&self) -> bool {
        let free = self.asked.get().is_none();
        if free {
            self.asked.set(Some(now()));
        }
        free
    }

    /// Credits that are due, for a message of ours to carry.
    pub(crate) fn take_credits(&self) -> i32 {
        self.credit.borrow_mut().take_delta()
    }

    pub(crate) fn new_tag(&self) -> Tag {
        let t = self.next_tag.get();
        self.next_tag.set(t + 1);
        Tag(t)
    }

    /// Sends CRED_REQ with whatever credits are due, if nothing is unanswered.
    fn ask(self: &Rc<Self>) {
        if self.is_lost() || !self.begin_asking() {
            return;
        }
        let me = self.clone();
        spawn_task(async move {
            me.conn.send_slots().wait().await;
            let delta = me.take_credits();
            let r = CreditRequest { solicited: false, delta, tag: me.new_tag() };
            me.conn.send(&r.to_bytes(), None, SendFlags::default(), Token::NONE);
        });
    }

    /// The answer to our own request came.
    pub(crate) fn answered(self: &Rc<Self>) {
        self.asked.set(None);
        if self.credit.borrow().needs_credit_request() {
            self.ask();
        }
        self.tell_event();
    }

    /// Asks a silent host whether it is there, and ends the channel when it is not: a host that lost its
    /// power says nothing.
    ///
    /// One that has never said anything is asked as well. iWARP has it speak first: `siw` refuses an answer to its login that
    /// has bytes behind it. It waits for that answer for ten seconds at most, so both cannot come to it together.
    async fn probe(channel: Rc<Channel>) {
        let period = channel.port.config.probe_after;
        let mut next = period;
        loop {
            sleep(next).await;
            if channel.is_lost() {
                return;
            }
            // Who sends nothing does not look at the access map by itself.
            channel.view.refresh(&channel.port.shared.access, &channel.port.units);
            let heard = channel.last_heard.get().max(channel.conn.last_life());
            let silent = now().saturating_sub(heard);
            let unused = channel.served.get() == 0 && has(Bug::UnusedNotAsked);
            next = if silent < period { period - silent } else { period };
            if silent < period || unused {
                continue;
            }
            let Some(at) = channel.asked.get() else {
                channel.ask();
                continue;
            };
            // It may have been asked for something else a moment ago, and has as long for that answer as for any.
            let asked = now().saturating_sub(at);
            if asked < period && !has(Bug::AnswerAtOnce) {
                next = period - asked;
                continue;
            }
            let why = format!("the host has been silent for {} s", silent / SECONDS);
            return channel.close(&why, Some(LogoutReason::Inactive));
        }
    }

    /// What was done for this host has panicked: its connection ends, and nobody else's.
    #[cold]
    pub(crate) fn broke(self: &Rc<Self>, p: &Panicked) {
        self.port.shared.spread.broke(&self.peer, p);
        let me = self.clone();
        // Not here: whoever calls may be inside the connection.
        spawn_task(async move { me.conn.disconnect(true) });
    }

    /// Runs a task of this channel.
    fn spawn(self: &Rc<Self>, task: impl Future<Output = ()> + 'static) -> TaskId {
        let me = self.clone();
        spawn_task(async move {
            if let Err(p) = contained_future(task).await {
                me.broke(&p);
            }
        })
    }

    /// Ends the channel from our side: T_LOGOUT where a reason is given, then the disconnect.
    pub(crate) fn close(&self, why: &str, reason: Option<LogoutReason>) {
        if self.state.get() != ChannelState::Established {
            return;
        }
        tracing::warn!(peer = %self.peer, channel = self.id, why, "closing channel");
        self.enter(ChannelState::LogoutWait);
        if let Some(reason) = reason
            && !self.is_lost()
            && self.conn.send_slots().try_wait()
        {
            let r = TargetLogout { solicited: false, reason, tag: self.new_tag() };
            self.conn.send(&r.to_bytes(), None, SendFlags::default(), Token::NONE);
        }
        self.enter(ChannelState::DisconnectWait);
        self.lost.set(true);
        self.view.leave();
        self.conn.disconnect(false);
    }
}

impl Link for Channel {
    fn refresh(&self) {
        self.view.refresh(&self.port.shared.access, &self.port.units);
    }

    fn sent(&self) -> LocalFuture<'static, ()> {
        let conn = self.conn.clone();
        Box::pin(async move {
            conn.send_slots().wait().await;
            let (token, done) = completion();
            conn.flush(token);
            done.await;
        })
    }

    fn cut(&self, why: &str) {
        self.close(why, None);
        self.conn.disconnect(true);
    }

    fn bar(&self) {
        let why = match self.view.is_unknown() {
            true => "nobody knows its host any more",
            false => "its host has a secret, which it cannot prove by SRP",
        };
        self.close(why, Some(LogoutReason::Unspecified));
    }
}
