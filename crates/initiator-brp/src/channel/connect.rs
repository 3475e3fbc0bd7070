//! Logins, and what happens when a connection is lost: it is made again, and what is in doubt is settled.

use super::slot::{Outcome, State};
use super::{Channel, Limits, Path, receive};
use crate::config::{MESSAGE, Secret};
use crate::error::Error;
use crate::planted::{Bug, has};
use std::rc::Rc;
use weir_base::{MILLIS, Nanos, Prng, SECONDS};
use weir_fabric::{Connection, FabricError, Params, RecvQueue, SendFlags, Unclaimed};
use weir_proto_brp::command::flag;
use weir_proto_brp::keyed::{self, Answer, Challenge, Transcript};
use weir_proto_brp::login::{KEEP_ALIVE_UNIT, VERSION, bytes, units};
use weir_proto_brp::{LoginReject, LoginRequest, LoginResponse, Op, RejectReason};
use weir_reactor::{CompletionQueue, Token, completion, now, sleep, spawn_task, timeout};

/// How long a target may take for its answer to HELLO: it may have to end what this login replaces first.
const HELLO_TIMEOUT: Nanos = 15 * SECONDS;

impl Channel {
    /// Logs in at the first address that lets it.
    pub(crate) async fn connect(self: &Rc<Self>) -> Result<(), Error> {
        let n = self.config.addrs.len();
        let mut last = Error::Invalid("the session has no address");
        for i in 0..n {
            let addr = &self.config.addrs[(usize::from(self.index) + i) % n];
            match self.connect_to(addr).await {
                Ok(()) => return Ok(()),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    async fn connect_to(self: &Rc<Self>, addr: &str) -> Result<(), Error> {
        let c = &self.config;
        let keep_alive = (c.keep_alive / MILLIS).div_ceil(KEEP_ALIVE_UNIT);
        let request = LoginRequest {
            version_min: VERSION,
            version_max: VERSION,
            features: c.features(self.shared.has_siblings()),
            initiator: c.initiator,
            target: c.target,
            session: self.shared.number,
            channel: self.index,
            depth: c.depth.max(1),
            max_message: units(MESSAGE),
            keep_alive: keep_alive.min(u64::from(u16::MAX)) as u16,
        };
        let queue = self.provider.recv_queue(self.receives.len(), MESSAGE)?;
        let cq = Rc::new(CompletionQueue::new());
        for (i, b) in self.receives.iter().enumerate() {
            queue.post(b.clone(), cq.token(i as u32));
        }
        let params = Params {
            private_data: request.encode().to_vec(),
            recv_queue: queue.clone(),
            reads_out: 0,
            reads_in: c.reads,
        };
        let (conn, answer) = self.provider.connect(addr, params).await.map_err(|e| match e {
            FabricError::Rejected(data) => Error::Rejected(
                LoginReject::decode(&data).map_or(RejectReason::Unspecified, |r| r.reason),
            ),
            e => Error::Fabric(e),
        })?;
        let unclaimed = Unclaimed::new(conn);
        let bad = |e: &dyn std::fmt::Display| Error::Protocol(e.to_string());
        let response = match &c.secret {
            None => LoginResponse::decode(&answer).map_err(|e| bad(&e))?,
            Some(secret) => {
                let prove = self.prove(&*unclaimed, &request, &answer, secret, &queue, &cq);
                match timeout(HELLO_TIMEOUT, prove).await {
                    Ok(response) => response?,
                    Err(_) => return Err(bad(&"it does not answer HELLO")),
                }
            }
        };
        if response.version != VERSION || !request.features.has(response.features) {
            return Err(bad(&"a version or feature that was not asked for"));
        }
        if self.path.get() == Path::Closed {
            return Err(Error::Closed);
        }
        self.take_depth(response.depth)?;
        let conn = unclaimed.claim();
        self.limits.set(Limits {
            features: response.features,
            max_message: bytes(response.max_message).min(MESSAGE),
            max_len: response.max_len,
            max_segments: response.max_segments,
            max_commands: usize::from(response.max_commands),
            keep_alive: u64::from(response.keep_alive) * KEEP_ALIVE_UNIT * MILLIS,
        });
        self.up_since.set(now());
        self.credits.set(response.credits);
        self.stuck.set(false);
        self.gathers.set(!conn.needs_stable_data());
        self.last_heard.set(now());
        self.last_sent.set(now());
        *self.conn.borrow_mut() = Some(conn.clone());
        let resumed = self.is_resumed(&response);
        self.settle(&response, resumed);
        if self.path.get() == Path::Stale {
            // Nothing is sent by it.
            self.conn.borrow_mut().take();
            return Err(Error::PathDown);
        }
        conn.set_tap(Some(Rc::new(receive::CompletionTap(Rc::downgrade(self)))));
        let (token, closed) = completion();
        conn.on_closed(token);
        let receiver = spawn_task(receive::receive(self.clone(), queue, cq.clone()));
        let me = self.clone();
        spawn_task(async move {
            closed.await;
            weir_reactor::cancel(receiver);
            // What came before the end still counts.
            while let Some((user, done)) = cq.try_next() {
                me.message(&me.receives[user as usize], done);
            }
            me.lost(&conn);
        });
        self.shared.set_here(true);
        self.set_path(Path::Up);
        self.pump(true);
        Ok(())
    }

    /// The rest of a keyed login: proves that this side knows the secret, and has the target prove it.
    async fn prove(
        &self,
        conn: &dyn Connection,
        request: &LoginRequest,
        answer: &[u8],
        secret: &Secret,
        queue: &Rc<dyn RecvQueue>,
        cq: &CompletionQueue,
    ) -> Result<LoginResponse, Error> {
        // A target that lets this host in without a proof does not know its secret, so it may be anybody.
        let unasked = |_| Error::Rejected(RejectReason::Secret);
        let challenge = Challenge::decode(answer).map_err(unasked)?;
        if challenge.target != request.target && !request.target.is_zero() {
            return Err(Error::Protocol("the challenge is of another target port".into()));
        }
        let drawn = self.logins.get() + 1;
        self.logins.set(drawn);
        let what = [request.session, u64::from(request.channel), drawn].map(u64::to_le_bytes);
        let nonce = weir_codec::mac::hmac_sha256(&secret.seed, &[what.as_flattened()]);
        let t = Transcript::new(request, &challenge, nonce);
        if conn.send_slots().try_wait() {
            conn.send(&t.hello(&secret.bytes), None, SendFlags::default(), Token::NONE);
        }
        let (user, c) = cq.next().await;
        if !c.is_ok() {
            return Err(Error::Protocol("the target ended the login".into()));
        }
        let buffer = &self.receives[user as usize];
        let message = buffer.sub(0, (c.len as usize).min(MESSAGE));
        // SAFETY: the message is complete and its buffer is posted again below only.
        let answer = keyed::answer(unsafe { message.bytes() }, &secret.bytes, &t);
        drop(message);
        queue.post(buffer.clone(), cq.token(user));
        match answer.map_err(|e| Error::Protocol(e.to_string()))? {
            Answer::Welcome(response) => Ok(response),
            Answer::Refused(reason) => Err(Error::Rejected(reason)),
            Answer::NotProved => Err(Error::Rejected(RejectReason::Secret)),
        }
    }

    /// The target may give fewer slots than asked for, at the first login.
    fn take_depth(&self, granted: u16) -> Result<(), Error> {
        let mut t = self.table.borrow_mut();
        let have = t.slots.len();
        let granted = usize::from(granted);
        if granted >= have {
            return Ok(());
        }
        if t.in_use() > 0 || !self.slot_units.try_wait_n((have - granted) as u32) {
            return Err(Error::Protocol("the target gives fewer slots than before".into()));
        }
        t.slots.truncate(granted);
        t.free.retain(|tag| usize::from(*tag) < granted);
        Ok(())
    }

    /// Whether the target goes on where the last connection ended. One that does not may have other volumes, or older ones.
    fn is_resumed(&self, response: &LoginResponse) -> bool {
        let before = (self.incarnation.get(), self.memory.get());
        self.incarnation.set(response.incarnation);
        self.memory.set(response.memory);
        // The target may know the channel from a login whose response never came here: then its slots are new
        // to us, and unused.
        let resumed = response.resumed && before == (response.incarnation, response.memory);
        if !resumed && before != (0, 0) {
            self.doubt();
        }
        resumed
    }

    /// Decides what becomes of commands that were with the target when the last connection was lost.
    fn settle(&self, response: &LoginResponse, resumed: bool) {
        self.power.set(response.power);
        self.shared.note_power(response.power);
        let mut wakers = Vec::new();
        let mut freed = 0;
        {
            let mut table = self.table.borrow_mut();
            let mut doubt: Vec<(u64, u16)> = Vec::new();
            let away = now().saturating_sub(self.lost_at.get());
            let lasted = self.lasted.get();
            for (tag, s) in table.slots.iter_mut().enumerate() {
                let with_target =
                    s.numbered && matches!(s.state, State::Sent | State::Orphan | State::Waiting);
                if !resumed {
                    // A target that knows nothing of this channel counts from the beginning.
                    s.seq = u32::from(with_target);
                }
                if with_target {
                    doubt.push((s.order, tag as u16));
                }
            }
            doubt.sort_unstable();
            let mut pending = self.pending.borrow_mut();
            let replayed = |tag: &u16| doubt.iter().any(|(_, t)| t == tag);
            pending.retain(|tag| !replayed(tag));
            for &(_, tag) in doubt.iter().rev() {
                let s = &mut table.slots[usize::from(tag)];
                let orphan = s.state == State::Orphan;
                // The time that the target is away is none of its own. What was before counts, and so does what is between
                // connections of moments: a path that comes back again and again, and does nothing, has to be left.
                let is_own = s.excused && !lasted && !has(Bug::MomentsAreOutages);
                if !is_own && !has(Bug::OutageCounts) {
                    s.started = s.started.saturating_add(away);
                }
                s.excused = true;
                if has(Bug::LoginIsBegin) {
                    s.started = now();
                }
                // An abort that was under way is not any more.
                s.asked = false;
                let lost_for_good = s.command.operation() == Some(Op::CompareAndWrite);
                if !resumed && (orphan || lost_for_good) {
                    s.seq = 0;
                    if orphan {
                        freed += u32::from(table.bury(tag));
                        continue;
                    }
                    s.outcome = Outcome::Lost(Error::InDoubt);
                    s.state = State::Done;
                    wakers.extend(s.waker.take());
                    continue;
                }
                if orphan {
                    s.command.flags = 0;
                    s.empty();
                } else {
                    s.state = State::Waiting;
                }
                if resumed && has(Bug::ResentAsNew) {
                    s.seq = s.seq.wrapping_add(1);
                }
                if resumed {
                    s.command.flags |= flag::REPLAY;
                }
                pending.push_front(tag);
            }
            self.shared.note_resent(doubt.len() as u64);
        }
        self.slot_units.signal_n(freed);
        wakers.into_iter().for_each(|w| w.wake());
    }

    /// Ends the connection; a new one will be made.
    pub(super) fn disconnect(&self, at_once: bool) {
        if let Some(c) = self.conn.borrow().as_ref() {
            c.disconnect(at_once);
        }
    }

    /// The connection is gone.
    fn lost(self: &Rc<Self>, conn: &Rc<dyn Connection>) {
        let present = self.conn.borrow().as_ref().is_some_and(|c| Rc::ptr_eq(c, conn));
        if !present {
            return;
        }
        tracing::warn!(channel = self.index, reason = %conn.close_reason(), "connection lost");
        self.conn.borrow_mut().take();
        self.credits.set(0);
        for s in self.table.borrow_mut().slots.iter_mut() {
            s.keys.clear();
        }
        self.placing.borrow_mut().clear();
        self.aborts.borrow_mut().clear();
        self.lost_at.set(now());
        let up = now().saturating_sub(self.up_since.get());
        self.lasted.set(up > self.config.reconnect_max);
        if self.path.get() == Path::Closed {
            return;
        }
        self.shared.note_loss();
        if matches!(self.path.get(), Path::Replaced | Path::Stale) {
            return;
        }
        self.set_path(Path::Blocked);
        let me = self.clone();
        let task = spawn_task(async move { me.recover().await });
        self.tasks.borrow_mut().push(task);
    }

    /// Logs in again, until that works.
    async fn recover(self: Rc<Self>) {
        let mut rng = Prng::new(self.shared.number ^ u64::from(self.index) ^ now());
        let (least, most) = (self.config.reconnect_min, self.config.reconnect_max);
        let longer = |pause: Nanos| (pause + pause / 4 + 1).clamp(least, most.max(least));
        // At once after a connection that lasted; else ever later.
        let mut pause = if self.lasted.get() { 0 } else { longer(self.pause.get()) };
        let mut told = String::new();
        loop {
            if pause > 0 {
                // Hosts that lost the same target do not come back in step.
                sleep(pause + rng.below(pause / 4 + 1)).await;
            }
            if matches!(self.path.get(), Path::Closed | Path::Stale) {
                return;
            }
            match self.connect().await {
                Ok(()) => break,
                Err(e) => {
                    let why = e.to_string();
                    match why == told {
                        true => tracing::debug!(channel = self.index, error = why, "login failed"),
                        // Once for each reason: it may stay so for days.
                        false => tracing::info!(channel = self.index, error = why, "login failed"),
                    }
                    told = why;
                }
            }
            pause = longer(pause);
        }
        self.pause.set(pause);
        self.shared.note_reconnect();
    }
}
