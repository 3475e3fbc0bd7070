//! A channel: its slots and what it knows outlive its connections.

mod drain;
mod link;

use crate::planted::{Bug, has};
use crate::port::Port;
use crate::receive::CommandTap;
use crate::remembered::Place;
use crate::reply::Replies;
use crate::request::Work;
use crate::sessions::{ChannelName, Placed};
use crate::target::{ChannelInfo, Login};
use crate::tick::Seen;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use weir_base::{MILLIS, Nanos};
use weir_fabric::{Connection, SendFlags};
use weir_mem::{Account, BufPool, PoolConfig, Share};
use weir_proto_brp::control::{Event, GoodbyeReason};
use weir_proto_brp::login::{KEEP_ALIVE_UNIT, VERSION, bytes, units};
use weir_proto_brp::slot::Slot;
use weir_proto_brp::{
    Features, Header, Kind, LoginRequest, LoginResponse, RejectReason, Status, VolumeInfo,
};
use weir_proto_scsi::lu::Nexus;
use weir_proto_scsi::lun::Lun;
use weir_proto_scsi::transport_id::TransportId;
use weir_reactor::{Elapsed, Panicked, Token, WaitChannel, completion, now, spawn_task, timeout};
use weir_target_core::{Attached, Attachment, Link};

/// Send buffers of a channel: small data of many completions is gathered in one.
const SEND_BUFFERS: usize = 16;

/// A volume as the channel sees it.
#[derive(Clone)]
pub(crate) struct Known {
    pub(crate) number: u16,
    pub(crate) guard: u32,
    pub(crate) attached: Rc<Attached>,
}

/// A command slot.
#[derive(Default, Clone, Copy)]
pub(crate) struct SlotState {
    pub(crate) slot: Slot,
    /// The command is to end without further effect.
    pub(crate) aborted: bool,
    /// The command came with others in one message: its completion may share one too.
    pub(crate) together: bool,
}

/// What the present connection was granted.
#[derive(Clone, Copy, Default)]
pub(crate) struct Agreed {
    pub(crate) integrity: bool,
    pub(crate) coalesce: bool,
    pub(crate) serial: bool,
    pub(crate) long_ranges: bool,
    /// Longest message that the initiator receives, in bytes.
    pub(crate) max_message: usize,
    pub(crate) keep_alive: Nanos,
    pub(crate) credits: u16,
}

/// A channel of a session.
pub(crate) struct Channel {
    pub(crate) name: ChannelName,
    /// Index of its reactor.
    home: usize,
    pub(crate) port: Rc<Port>,
    pub(crate) view: Attachment,
    /// Of the data buffers, its host's part.
    pub(crate) share: Share,
    /// Of the requests.
    pub(crate) places: Rc<Account>,
    /// Commands that wait for one.
    pub(crate) waiting_work: RefCell<VecDeque<Work>>,
    me: Weak<Channel>,
    volumes: RefCell<Vec<Known>>,
    /// Generation of the access map that `volumes` are of.
    volumes_at: Cell<u64>,
    /// Made as they are used, up to `depth`.
    pub(crate) slots: RefCell<Vec<SlotState>>,
    depth: u16,
    /// Names these slots.
    memory: u64,
    conn: RefCell<Option<Rc<dyn Connection>>>,
    /// Counts connections: a command's answer goes to the one that it came by.
    generation: Cell<u64>,
    pub(crate) agreed: Cell<Agreed>,
    /// Commands between their begin and their end.
    busy: Cell<u32>,
    /// Those of them that may have had an effect, and who waits for none.
    acting: Cell<u32>,
    drained: WaitChannel,
    /// Released by an abort and by the end of the connection: waits for buffers are looked at again then.
    pub(crate) halt: WaitChannel,
    /// One at a time in serial sessions: that of the present connection.
    pub(crate) serial: RefCell<Rc<WaitChannel>>,
    /// One login at a time.
    logging_in: WaitChannel,
    pub(crate) replies: Replies,
    /// Made when a connection needs the first one, and gone with it.
    buffers: RefCell<Option<BufPool>>,
    /// The connection sends data from several places in one message, as far as is known.
    pub(crate) gathers: Cell<bool>,
    /// Credits to be given back.
    pub(crate) owed: Cell<u16>,
    /// A flush of this channel waits for something by itself.
    pub(crate) stuck: Cell<bool>,
    pub(crate) last_heard: Cell<Nanos>,
    /// Since when there is no connection.
    pub(crate) silent_since: Cell<Nanos>,
    /// Its place among those without one.
    waiting: Cell<Option<Place>>,
    ending: Cell<bool>,
    /// Events not told yet, and those that were told and not acknowledged.
    pub(crate) events: RefCell<Vec<Event>>,
    pub(crate) told: RefCell<Vec<Event>>,
    /// Volumes when events were last looked for.
    pub(crate) seen: RefCell<Vec<Seen>>,
    pub(crate) commands: Cell<u64>,
    pub(crate) messages: Cell<u64>,
}

impl Channel {
    fn new(port: Rc<Port>, login: &Login, depth: u16) -> Rc<Channel> {
        let Placed { name, nexus, home } = login.channel;
        let initiator = name.session.initiator;
        let view = Attachment::new(
            nexus,
            initiator.0.to_vec(),
            TransportId::srp(initiator.0),
            port.config.relative_port,
        );
        let host = port.shared.access.map().account(&initiator.0, "");
        let share = port.pool.share(&host);
        let places = |me: &Weak<Channel>| {
            let me = me.clone();
            let given = move || me.upgrade().iter().for_each(|c| c.next_work());
            port.places.account_told(&host, given)
        };
        let memory = port.shared.next_memory();
        let channel = Rc::new_cyclic(|me| Channel {
            name,
            home,
            places: places(me),
            waiting_work: RefCell::default(),
            port: port.clone(),
            view,
            share,
            me: me.clone(),
            volumes: RefCell::default(),
            volumes_at: Cell::new(0),
            slots: RefCell::default(),
            depth,
            memory,
            conn: RefCell::default(),
            generation: Cell::new(0),
            agreed: Cell::default(),
            busy: Cell::new(0),
            acting: Cell::new(0),
            drained: WaitChannel::new(0),
            halt: WaitChannel::new(0),
            serial: RefCell::new(Rc::new(WaitChannel::new(1))),
            logging_in: WaitChannel::new(1),
            replies: Replies::default(),
            buffers: RefCell::default(),
            gathers: Cell::new(true),
            owed: Cell::new(0),
            stuck: Cell::new(false),
            last_heard: Cell::new(now()),
            silent_since: Cell::new(now()),
            waiting: Cell::new(None),
            ending: Cell::new(false),
            events: RefCell::default(),
            told: RefCell::default(),
            seen: RefCell::default(),
            commands: Cell::new(0),
            messages: Cell::new(0),
        });
        let link: Rc<dyn Link> = channel.clone();
        channel.view.set_link(Rc::downgrade(&link));
        channel
    }

    /// Its place on the table of sessions.
    pub(crate) fn placed(&self) -> Placed {
        Placed { name: self.name, nexus: self.view.nexus(), home: self.home }
    }

    /// Sees to it that the slots up to that of `tag` are there. False: it is above those that were granted.
    #[inline]
    pub(crate) fn has_slot(&self, tag: u16) -> bool {
        let n = usize::from(tag);
        if n < self.slots.borrow().len() {
            return true;
        }
        if tag >= self.depth {
            return false;
        }
        let more = (n + 1).next_power_of_two().max(16).min(usize::from(self.depth));
        self.slots.borrow_mut().resize(more, SlotState::default());
        true
    }

    /// The buffers that small data is gathered in; `None` when there is no memory for them.
    pub(crate) fn buffers(&self) -> Option<BufPool> {
        let mut all = self.buffers.borrow_mut();
        if all.is_none() {
            let size = self.port.config.max_message.next_multiple_of(4096);
            *all = BufPool::new(&PoolConfig { classes: vec![(size, SEND_BUFFERS)] }).ok();
        }
        all.clone()
    }

    /// The connection is gone: the channel is one of those that wait for their host, of which there are so many at most.
    fn wait_for_host(&self) {
        let (port, here) = (&self.port, weir_reactor::current_id());
        let (own, all) = (port.config.remembered, port.config.max_channels);
        let row = &port.shared.remembered;
        let (place, others) = row.add(self.name, self.view.host(), here, own, all);
        self.waiting.set(Some(place));
        let target = port.shared.spread.id();
        for (name, reactor) in others {
            weir_reactor::send_to(reactor, move || {
                let channel = Port::local(target).and_then(|p| p.find(&name));
                if let Some(c) = channel.filter(|c| c.conn().is_none()) {
                    c.end_later(GoodbyeReason::Silent);
                }
            });
        }
    }

    /// It has a connection again, or is over.
    pub(crate) fn waits_no_more(&self) {
        if let Some(place) = self.waiting.take() {
            self.port.shared.remembered.remove(place);
        }
    }

    /// Serves a login on this reactor, until its connection is gone.
    pub(crate) async fn login(port: Rc<Port>, login: Login, draining: bool) {
        let (channel, known) = match port.find(&login.channel.name) {
            Some(c) if !draining => (c, true),
            Some(_) => {
                return login.arrival.refuse(&port, &login.request, RejectReason::Draining);
            }
            None if draining => {
                port.forget(&login.channel);
                return login.arrival.refuse(&port, &login.request, RejectReason::Draining);
            }
            // The channel that it was to go on with has ended meanwhile, perhaps with its session: units have forgotten
            // the nexus, and nobody would take this one off them.
            None if !port.shared.sessions.has(&login.channel) => {
                return login.arrival.refuse(&port, &login.request, RejectReason::Draining);
            }
            None => {
                let depth = login.request.depth.min(port.config.depth);
                let c = Channel::new(port.clone(), &login, depth);
                port.add_channel(c.clone());
                (c, false)
            }
        };
        let served = channel.clone().serve(login, known).await;
        if !served && !known && channel.conn().is_none() {
            // It has never been in service: there is nothing to remember.
            port.remove_channel(&channel);
        }
    }

    /// Accepts, and waits for the end. False when it was not accepted.
    async fn serve(self: Rc<Self>, login: Login, known: bool) -> bool {
        let Login { arrival, request, mut seat, .. } = login;
        let port = self.port.clone();
        // The end of a channel takes as long as a device may, and logins that wait for it keep places from others.
        let turn = self.logging_in.acquire(1);
        let turn = match has(Bug::EndingKeepsLogins) {
            true => Ok(turn.await),
            false if self.ending.get() => Err(Elapsed),
            false => timeout(port.config.drain_timeout, turn).await,
        };
        let Ok(turn) = turn else {
            arrival.refuse(&port, &request, RejectReason::Draining);
            return false;
        };
        // The login before this one may have come to nothing, and the channel with it.
        let present = port.find(&self.name).is_some_and(|c| Rc::ptr_eq(&c, &self));
        if self.ending.get() || !present {
            arrival.refuse(&port, &request, RejectReason::Draining);
            return false;
        }
        // The host has logged in anew, so its old connection is no good even if we do not know it yet.
        self.close(GoodbyeReason::Replaced, true);
        if !self.drain(port.config.drain_timeout).await {
            arrival.refuse(&port, &request, RejectReason::Draining);
            return false;
        }
        if !seat.claim(port.config.max_channels, &port.shared.access.map()) {
            arrival.refuse(&port, &request, RejectReason::Resources);
            return false;
        }
        let Some(credits) = port.commit(port.config.credits) else {
            arrival.refuse(&port, &request, RejectReason::Resources);
            return false;
        };
        let reads = arrival.peer_serves_reads();
        let (agreed, response) = self.settle(reads, &request, credits, known);
        let (peer, proved) = (arrival.peer(), arrival.proved());
        port.accepting.set(port.accepting.get() + 1);
        let accepted = arrival.accept(&port, &response).await;
        port.accepting.set(port.accepting.get() - 1);
        let conn = match accepted {
            Ok(c) => c,
            Err(e) => {
                tracing::warn!(%peer, error = %e, "connection failed while being accepted");
                port.uncommit(credits);
                port.more_held.signal();
                self.silent_since.set(now());
                return false;
            }
        };
        if port.is_stopped() {
            // Meanwhile; nobody would serve it.
            conn.disconnect(true);
            port.uncommit(credits);
            return false;
        }
        let qp = conn.qp();
        self.agreed.set(agreed);
        self.view.set_proved(proved);
        self.volumes_at.set(0);
        self.owed.set(0);
        // Nobody knows whether they have arrived by the connection before.
        let untold = self.told.take();
        if !has(Bug::ToldIsHeard) {
            self.events.borrow_mut().splice(..0, untold);
        }
        self.gathers.set(!conn.needs_stable_data());
        self.last_heard.set(now());
        self.next_generation();
        // What ended in this very turn is not for the new connection: its host sends that command again, or has its slot for another.
        if !has(Bug::RepliesStay) {
            self.replies.clear();
        }
        self.waits_no_more();
        *self.conn.borrow_mut() = Some(conn.clone());
        port.shared.sessions.set_connected(&self.name, true);
        self.refresh();
        port.connect(qp, self.clone());
        conn.set_tap(Some(Rc::new(CommandTap(Rc::downgrade(&self)))));
        if !self.events.borrow().is_empty() {
            self.make_dirty();
        }
        port.more_held.signal();
        let host = self.view.host();
        port.shared.spread.counts().logged_in(&host, &peer);
        tracing::info!(
            %peer, initiator = %self.name.session.initiator, %host,
            channel = self.name.channel, resumed = known, features = ?response.features,
            "channel in service"
        );
        drop(turn);
        let (token, closed) = completion();
        conn.on_closed(token);
        closed.await;
        // What was not looked at by now counts as never arrived.
        port.disconnect(qp);
        port.shared.spread.counts().logged_out(&host);
        let reason = conn.close_reason();
        if reason.starts_with(weir_fabric::OWN_ERROR) {
            port.shared.spread.broke(&peer, &reason);
        }
        tracing::info!(%peer, channel = self.name.channel, reason = %conn.close_reason(), "connection closed");
        self.replies.clear();
        self.conn.borrow_mut().take();
        self.give_up_waiting();
        self.view.cut_off();
        port.shared.sessions.set_connected(&self.name, false);
        self.buffers.take();
        self.halt.signal_all();
        if !self.ending.get() {
            self.wait_for_host();
        }
        self.silent_since.set(now());
        port.uncommit(credits);
        // Before whoever waits for the end of the connection comes to claim it.
        drop(seat);
        self.drained_maybe();
        true
    }

    fn settle(
        &self,
        peer_serves_reads: u16,
        request: &LoginRequest,
        credits: u16,
        resumed: bool,
    ) -> (Agreed, LoginResponse) {
        let c = &self.port.config;
        let features = request.features.and(c.features);
        let most = (c.keep_alive / MILLIS / KEEP_ALIVE_UNIT).min(u64::from(u16::MAX)) as u16;
        let keep_alive = request.keep_alive.min(most);
        let agreed = Agreed {
            integrity: features.has(Features::INTEGRITY),
            coalesce: features.has(Features::COALESCE),
            serial: features.has(Features::SERIAL),
            long_ranges: features.has(Features::LONG_RANGES),
            max_message: bytes(request.max_message).min(c.max_message),
            keep_alive: u64::from(keep_alive) * KEEP_ALIVE_UNIT * MILLIS,
            credits,
        };
        let jumbo = features.has(Features::JUMBO);
        let response = LoginResponse {
            version: VERSION,
            resumed,
            features,
            incarnation: c.incarnation,
            power: c.power,
            depth: self.depth,
            credits,
            max_message: units(c.max_message),
            keep_alive,
            max_len: c.max_len,
            max_segments: if peer_serves_reads == 0 { 1 } else { c.max_segments },
            max_commands: if jumbo { c.max_commands } else { 1 },
            target: c.port_id,
            memory: self.memory,
        };
        (agreed, response)
    }

    /// The present connection.
    #[inline]
    pub(crate) fn conn(&self) -> Option<Rc<dyn Connection>> {
        self.conn.borrow().clone()
    }

    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// True when an answer to what came by connection `generation` would go nowhere.
    #[inline]
    pub(crate) fn is_lost(&self, generation: u64) -> bool {
        self.generation.get() != generation
            || self.conn.borrow().as_ref().is_none_or(|c| !c.is_open())
    }

    /// A command begins.
    #[inline]
    pub(crate) fn begin(&self) {
        self.busy.set(self.busy.get() + 1);
    }

    /// Closes the connection, if there is one.
    pub(crate) fn close(&self, reason: GoodbyeReason, at_once: bool) {
        let Some(conn) = self.conn() else { return };
        if conn.is_open() && conn.send_slots().try_wait() {
            let header = Header { flags: reason as u8, ..Header::new(Kind::Goodbye) };
            let m = header.alone(self.agreed.get().integrity);
            conn.send(&m, None, SendFlags::default(), Token::NONE);
        }
        tracing::debug!(peer = %conn.peer(), ?reason, "closing a connection");
        conn.disconnect(at_once);
    }

    /// Ends the channel for good: what it remembers is gone.
    pub(crate) async fn end(self: Rc<Self>, reason: GoodbyeReason) {
        if self.ending.replace(true) {
            return;
        }
        let _turn = self.logging_in.acquire(1).await;
        self.close(reason, false);
        // However long that takes: as long as something writes it has not ended.
        while !self.drain(Nanos::from(u32::MAX)).await {}
        self.view.leave();
        self.port.remove_channel(&self);
    }

    /// The receive buffer of one of its messages is posted again.
    #[inline]
    pub(crate) fn credit_back(self: &Rc<Self>) {
        let owed = self.owed.get() + 1;
        self.owed.set(owed);
        if owed * 2 >= self.agreed.get().credits && self.conn.borrow().is_some() {
            self.make_dirty();
        }
    }

    /// Brings the volumes up to date with the access map.
    #[inline]
    pub(crate) fn refresh(&self) {
        if self.volumes_at.get() != self.port.shared.access.generation() {
            self.reload();
        }
    }

    #[cold]
    fn reload(&self) {
        let access = &self.port.shared.access;
        self.volumes_at.set(access.generation());
        self.view.refresh(access, &self.port.units);
        let mut all = Vec::new();
        for lun in self.view.luns() {
            if let (Some(number), Some(attached)) = (lun.index(), self.view.find(lun)) {
                all.push(Known { number, guard: guard(&attached), attached });
            }
        }
        *self.volumes.borrow_mut() = all;
    }

    /// The volume of this number, if the guard fits.
    #[inline]
    pub(crate) fn volume(&self, number: u16, guard: u32) -> Result<Rc<Attached>, Status> {
        let all = self.volumes.borrow();
        match all.iter().find(|k| k.number == number) {
            Some(k) if k.guard == guard || has(Bug::GuardNotCompared) => Ok(k.attached.clone()),
            Some(_) => Err(Status::WrongVolume),
            None if Lun::from_index(number).is_some_and(|l| self.view.is_absent(l)) => {
                Err(Status::NotReady)
            }
            None => Err(Status::NoVolume),
        }
    }

    /// All volumes, ascending by number.
    pub(crate) fn volumes(&self) -> Vec<Known> {
        self.volumes.borrow().clone()
    }

    /// For status displays.
    pub(crate) fn info(&self) -> ChannelInfo {
        ChannelInfo {
            peer: self.conn().map_or_else(String::new, |c| c.peer()),
            initiator: self.name.session.initiator,
            host: self.view.host(),
            commands: self.commands.get(),
            messages: self.messages.get(),
            busy: self.busy.get(),
        }
    }

    /// What was done for this host has panicked: its connection ends, and nobody else's. So does the channel: what it
    /// remembers of its slots may be wrong.
    #[cold]
    pub(crate) fn broke(self: &Rc<Self>, p: &Panicked) {
        self.port.shared.spread.broke(&self.info().peer, p);
        let me = self.clone();
        // Not here: whoever calls may be inside the connection.
        spawn_task(async move {
            if let Some(c) = me.conn() {
                c.disconnect(true);
            }
            me.end(GoodbyeReason::Unspecified).await;
        });
    }

    /// Ends the channel without anybody waiting for it.
    pub(crate) fn end_later(self: &Rc<Self>, reason: GoodbyeReason) {
        if self.ending.get() {
            return;
        }
        spawn_task(self.clone().end(reason));
    }
}

/// What commands to a volume carry: it follows from the volume's identity.
pub(crate) fn guard(a: &Attached) -> u32 {
    a.unit().shared().with(|s| weir_codec::crc32c(&s.identity().naa))
}

impl Known {
    /// What GEOMETRY and LIST tell.
    pub(crate) fn info(&self, nexus: Nexus) -> VolumeInfo {
        let unit = self.attached.unit();
        let g = unit.volume().geometry();
        let (uid, label, read_only) = unit.shared().with(|s| {
            let id = s.identity();
            (id.naa, id.label.clone(), s.write_protected())
        });
        let state = match self.attached.admit_block(nexus, false) {
            Err(weir_target_core::Refusal::NotReady) => weir_proto_brp::volume::PathState::Standby,
            _ => weir_proto_brp::volume::PathState::Optimized,
        };
        VolumeInfo {
            len: g.len,
            block_size: g.block_size,
            granularity: g.granularity,
            thin: g.thin,
            volatile_cache: g.volatile_cache,
            read_only: read_only || g.read_only,
            keeps_sums: unit.volume().keeps_sums(),
            guard: self.guard,
            uid,
            volume: self.number,
            state,
            name: if label.is_empty() { unit.shared().name().to_owned() } else { label },
        }
    }
}
