//! One side of a checked connection.

use super::message::{HEAD, Kind, decode, encode, find_foreign, put_pattern};
use super::peer::Peer;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use weir_base::{MICROS, MILLIS, Prng, SECONDS};
use weir_fabric::{Access, Connection, Remote, SendFlags, status};
use weir_mem::Slice;
use weir_reactor::{Completion, Token, WaitChannel, completion, run_async, sleep, spawn};

/// What fills memory around a place that is offered.
const GUARD: u8 = 0xa5;

/// How a connection is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Both sides do all they have to, then it is closed in order.
    Orderly,
    /// The connecting side closes at once, at some moment.
    ConnectorAborts,
    /// The accepting side closes at once, at some moment.
    AcceptorAborts,
    /// The connecting side breaks a rule, and the connection must end.
    Criminal(Crime),
    /// The accepting side refuses.
    Reject,
}

/// A rule to break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crime {
    /// Another key than the one given.
    WrongKey,
    /// One byte too far.
    PastEnd,
    /// READ where only WRITE is allowed, or the other way round.
    WrongRight,
    /// A key that was given back.
    StaleKey,
    /// A message longer than the peer's receive buffers.
    TooLong,
}

const CRIMES: [Crime; 5] =
    [Crime::WrongKey, Crime::PastEnd, Crime::WrongRight, Crime::StaleKey, Crime::TooLong];

impl Mode {
    /// Draws one: mostly [`Mode::Orderly`].
    pub fn draw(rng: &mut Prng) -> Mode {
        match rng.below(10) {
            0 => Mode::ConnectorAborts,
            1 => Mode::AcceptorAborts,
            2 => Mode::Criminal(CRIMES[rng.below(CRIMES.len() as u64) as usize]),
            3 => Mode::Reject,
            _ => Mode::Orderly,
        }
    }

    /// All that can be drawn.
    pub fn all() -> Vec<Mode> {
        let plain =
            [Mode::Orderly, Mode::ConnectorAborts, Mode::AcceptorAborts, Mode::Reject].into_iter();
        plain.chain(CRIMES.map(Mode::Criminal)).collect()
    }

    /// The private data that asks for this.
    pub(super) fn pack(self, seed: u64) -> Vec<u8> {
        let code = Mode::all().iter().position(|m| *m == self).unwrap_or(0) as u8;
        [&b"check"[..], &[code], &seed.to_le_bytes()].concat()
    }

    pub(super) fn parse(private: &[u8]) -> Option<(u64, Mode)> {
        let rest = private.strip_prefix(b"check")?;
        let mode = *Mode::all().get(usize::from(*rest.first()?))?;
        let seed = u64::from_le_bytes(rest.get(1..9)?.try_into().ok()?);
        Some((seed, mode))
    }
}

/// How a connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All was done, and it was closed in order.
    Complete,
    /// It ended before; the reason given by the provider.
    Broken(String),
}

/// A place of ours that the peer may use.
struct Offer {
    buf: Slice,
    at: usize,
    len: usize,
    access: Access,
    fill: u64,
}

/// The connection is over; the work at hand cannot be done.
struct Over;

pub(super) struct Session {
    peer: Rc<Peer>,
    conn: Rc<dyn Connection>,
    side: usize,
    mode: Mode,
    rng: RefCell<Prng>,
    sent: Cell<u64>,
    received: Cell<u64>,
    /// Messages received before the one that is next.
    early: RefCell<BTreeMap<u64, (Kind, u32)>>,
    offers: RefCell<BTreeMap<u32, Offer>>,
    /// Units: places that may be offered yet.
    room: WaitChannel,
    /// Answers to offers that are being worked on.
    answering: Cell<u32>,
    answered: WaitChannel,
    /// Requests posted and not completed.
    under_way: Cell<u32>,
    bye: WaitChannel,
    said_bye: Cell<bool>,
    got_bye: Cell<bool>,
    /// A key that we gave back to the peer.
    stale: Cell<Option<Remote>>,
    /// Send and read slots at the start.
    slots: (u32, u32),
    crime_done: Cell<bool>,
}

/// Counts a request that is under way, also when its future is dropped.
struct UnderWay<'a>(&'a Cell<u32>);

impl<'a> UnderWay<'a> {
    fn new(c: &'a Cell<u32>) -> Self {
        c.set(c.get() + 1);
        UnderWay(c)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Session {
    pub(super) fn new(
        peer: Rc<Peer>,
        conn: Rc<dyn Connection>,
        side: usize,
        seed: u64,
        mode: Mode,
    ) -> Rc<Session> {
        assert!(!conn.peer().is_empty());
        let slots = (conn.send_slots().count(), conn.read_slots().count());
        assert!(slots.0 > 0, "a connection without send slots");
        assert_eq!(slots.1, u32::from(peer.config.reads), "read slots as both sides asked for");
        Rc::new(Session {
            conn,
            side,
            mode,
            rng: RefCell::new(Peer::rng(seed, side)),
            sent: Cell::new(0),
            received: Cell::new(0),
            early: RefCell::default(),
            offers: RefCell::default(),
            room: WaitChannel::new(peer.config.offers),
            answering: Cell::new(0),
            answered: WaitChannel::new(0),
            under_way: Cell::new(0),
            bye: WaitChannel::new(0),
            said_bye: Cell::new(false),
            got_bye: Cell::new(false),
            stale: Cell::new(None),
            slots,
            crime_done: Cell::new(false),
            peer,
        })
    }

    pub(super) fn qp(&self) -> u32 {
        self.conn.qp()
    }

    fn draw<R>(&self, f: impl FnOnce(&mut Prng) -> R) -> R {
        f(&mut self.rng.borrow_mut())
    }

    fn wrong(&self, what: &str) -> ! {
        panic!(
            "connection {} to {} (side {}, {:?}, {}): {what}",
            self.qp(),
            self.conn.peer(),
            self.side,
            self.mode,
            if self.conn.is_open() { "open".to_string() } else { self.conn.close_reason() },
        )
    }

    // The whole of it.

    /// Plays this side to the end of the connection.
    pub(super) async fn run(self: Rc<Self>) -> Outcome {
        let me = self.clone();
        let work = spawn(async move {
            if me.work().await.is_err() && me.conn.is_open() {
                me.wrong("a request failed though the connection is open");
            }
        });
        let (token, closed) = completion();
        self.conn.on_closed(token);
        closed.await;
        if self.conn.is_open() {
            self.wrong("told of the end but still open");
        }
        let reason = self.conn.close_reason();
        if reason.is_empty() {
            self.wrong("closed without a reason");
        }
        // All completions were given before, those of messages too; those who wait for them only have to run.
        sleep(100 * MICROS).await;
        for _ in 0..100 {
            if self.under_way.get() == 0 {
                break;
            }
            sleep(10 * MICROS).await;
        }
        if self.under_way.get() > 0 {
            self.wrong(&format!("closed with {} requests not completed", self.under_way.get()));
        }
        work.cancel();
        for _ in 0..100_000 {
            if self.answering.get() == 0 {
                break;
            }
            sleep(100 * MICROS).await;
        }
        if self.answering.get() > 0 {
            self.wrong("work hangs after the end");
        }
        self.check_end().await;
        // Told again, at once.
        let (token, closed) = completion();
        self.conn.on_closed(token);
        closed.await;
        let complete = self.said_bye.get() && self.got_bye.get();
        self.peer.count(|f| match complete {
            true => f.complete += 1,
            false => f.broken += 1,
        });
        match complete {
            true => Outcome::Complete,
            false => Outcome::Broken(reason),
        }
    }

    /// After the end: slots are back, and what is posted now is flushed.
    async fn check_end(&self) {
        let now = (self.conn.send_slots().count(), self.conn.read_slots().count());
        if now != self.slots {
            self.wrong(&format!("slots leaked: {now:?} of {:?}", self.slots));
        }
        // The peer says goodbye only when its places are back; we say it only if we had no trouble.
        let punished = match self.mode {
            Mode::Criminal(Crime::TooLong) => !self.said_bye.get(),
            _ => !self.got_bye.get(),
        };
        if let Mode::Criminal(crime) = self.mode
            && self.crime_done.get()
            && !punished
        {
            self.wrong(&format!("{crime:?} went unpunished"));
        }
        if self.got_bye.get() && !self.early.borrow().is_empty() {
            self.wrong("messages are missing");
        }
        for (_, o) in std::mem::take(&mut *self.offers.borrow_mut()) {
            self.check_guards(&o);
        }
        self.conn.send_slots().wait().await;
        let (token, done) = completion();
        self.conn.send(b"too late", None, SendFlags::default(), token);
        let late = done.await;
        if late.result != status::FLUSHED {
            self.wrong(&format!("posted after the end: {late:?}"));
        }
        self.conn.disconnect(false);
        self.conn.disconnect(true);
    }

    /// Begins operations, waits for the peer's, ends the connection.
    async fn work(self: &Rc<Self>) -> Result<(), Over> {
        let ops = self.peer.config.ops;
        let abort_at = match (self.mode, self.side) {
            (Mode::ConnectorAborts, 0) | (Mode::AcceptorAborts, 1) => {
                Some(self.draw(|r| r.below(u64::from(ops) + 1)) as u32)
            }
            _ => None,
        };
        for op in 0..=ops {
            if abort_at == Some(op) {
                self.conn.disconnect(true);
                return Err(Over);
            }
            if op == ops || !self.conn.is_open() {
                break;
            }
            match self.draw(|r| r.below(10)) {
                0..=4 => self.say(Kind::Plain, None).await?,
                5..=8 => self.offer().await?,
                _ => sleep(self.draw(|r| r.below(300 * MICROS))).await,
            }
        }
        if self.mode == Mode::Criminal(Crime::TooLong) && self.side == 0 {
            self.too_long().await;
        }
        // Everything we offered has come back, everything we were offered is answered.
        self.room.wait_n(self.peer.config.offers).await;
        while self.answering.get() > 0 {
            self.answered.wait().await;
        }
        self.say(Kind::Bye, None).await?;
        self.said_bye.set(true);
        if !self.got_bye.get() {
            self.bye.wait().await;
        }
        if self.side == 0 {
            // The peer may close first as well.
            self.conn.disconnect(false);
            return Ok(());
        }
        sleep(30 * SECONDS).await;
        if self.conn.is_open() {
            self.wrong("the connector said goodbye but did not close");
        }
        Ok(())
    }

    // Requests.

    /// Waits for one request. What it used of local memory is overwritten as soon as it is over.
    async fn done(&self, c: weir_reactor::CompletionFuture, local: Option<&Slice>) -> Completion {
        let under_way = UnderWay::new(&self.under_way);
        let c = c.await;
        drop(under_way);
        if let Some(l) = local {
            l.fill(0xee);
        }
        c
    }

    fn verdict(&self, c: Completion) -> Result<(), Over> {
        match c.result {
            0 => Ok(()),
            status::FLUSHED => Err(Over),
            status::REMOTE_ACCESS | status::LENGTH if self.crime_done.get() => Err(Over),
            other => self.wrong(&format!("a request ended with status {other}")),
        }
    }

    /// Sends a message.
    async fn say(&self, kind: Kind, invalidate: Option<u32>) -> Result<(), Over> {
        let len = self.draw(|r| r.between(HEAD as u64, self.peer.config.message as u64)) as usize;
        let inline = match self.draw(|r| r.chance(1, 2)) {
            true => len,
            false => self.draw(|r| r.below(len as u64)) as usize,
        };
        let data = match len - inline {
            0 => None,
            n => Some(self.peer.pool.alloc(n).await),
        };
        let silent = self.draw(|r| r.chance(1, 4));
        self.conn.send_slots().wait().await;
        if !self.conn.is_open() {
            self.conn.send_slots().signal();
            return Err(Over);
        }
        let seq = self.sent.get();
        self.sent.set(seq + 1);
        let m = encode(seq, kind, len);
        if let Some(d) = &data {
            d.write_at(0, &m[inline..]);
        }
        let flags = SendFlags { solicited: self.draw(|r| r.chance(1, 2)), invalidate };
        if silent {
            self.conn.send(&m[..inline], data, flags, Token::NONE);
            return Ok(());
        }
        let (token, done) = completion();
        self.conn.send(&m[..inline], data.clone(), flags, token);
        let c = self.done(done, data.as_ref()).await;
        self.verdict(c)
    }

    async fn read(&self, local: &Slice, from: Remote) -> Completion {
        self.conn.read_slots().wait().await;
        self.conn.send_slots().wait().await;
        let (token, done) = completion();
        self.conn.read(local.clone(), from, token);
        self.done(done, None).await
    }

    async fn write(&self, local: &Slice, to: Remote) -> Completion {
        self.conn.send_slots().wait().await;
        let (token, done) = completion();
        self.conn.write(local.clone(), to, token);
        self.done(done, Some(local)).await
    }

    // Offering memory.

    async fn offer(&self) -> Result<(), Over> {
        self.room.wait().await;
        let buf = self.peer.pool.alloc(4096).await;
        let (at, len, access, fill) = self.draw(|r| {
            let at = r.below(2000);
            let len = r.between(1, 2000);
            let access = if r.chance(1, 2) { Access::RemoteRead } else { Access::RemoteWrite };
            (at as usize, len as usize, access, r.next_u64())
        });
        buf.fill(GUARD);
        let place = buf.sub(at, len);
        if access == Access::RemoteRead {
            put_pattern(&place, fill, 0);
        }
        if !self.conn.is_open() {
            return Err(Over);
        }
        let Ok(remote) = self.conn.register(&place, access) else {
            self.room.signal();
            return Ok(());
        };
        let offer = Offer { buf, at, len, access, fill };
        if self.offers.borrow_mut().insert(remote.key, offer).is_some() {
            self.wrong("a key was given out twice");
        }
        self.say(Kind::Offer { place: remote, len: len as u32, access, fill }, None).await
    }

    fn check_guards(&self, o: &Offer) {
        let all = o.buf.to_vec();
        let outside = all[..o.at].iter().chain(&all[o.at + o.len..]);
        if outside.clone().any(|b| *b != GUARD) {
            self.wrong("memory beside a registration was written");
        }
        if o.access == Access::RemoteRead
            && let Some(i) = find_foreign(&o.buf.sub(o.at, o.len), o.fill, 0)
        {
            self.wrong(&format!("byte {i} of a read-only registration was written"));
        }
    }

    /// An offer of ours comes back, with what was written to it.
    fn take_back(&self, key: u32, dead: bool, extra: u32, wrote: Option<(u64, u32, u64)>) {
        let Some(o) = self.offers.borrow_mut().remove(&key) else {
            self.wrong("a place came back that was not out");
        };
        if dead && extra != key {
            self.wrong(&format!("key {key} was to be invalidated, the completion says {extra}"));
        }
        if !dead {
            self.conn.deregister(key);
        }
        self.check_guards(&o);
        if let Some((at, len, fill)) = wrote {
            let (at, len) = (at as usize, len as usize);
            let place = o.buf.sub(o.at, o.len);
            if let Some(i) = find_foreign(&place.sub(at, len), fill, at) {
                self.wrong(&format!(
                    "byte {i} of {len} of a WRITE is not there with the SEND behind it"
                ));
            }
            let v = place.to_vec();
            if v[..at].iter().chain(&v[at + len..]).any(|b| *b != GUARD) {
                self.wrong("a WRITE wrote more than it should");
            }
            self.peer.count(|f| f.writes += 1);
        }
        self.room.signal();
    }

    // Receiving.

    /// A message has arrived; `extra` is the key that it invalidated.
    pub(super) fn receive(self: &Rc<Self>, bytes: &[u8], extra: u32) {
        let (seq, kind) = match decode(bytes) {
            Ok(m) => m,
            Err(e) => self.wrong(&e),
        };
        // Each receive is waited for by a task of its own, and which of them runs first is the
        // scheduler's choice. So messages may be out of order here, but no further than there are receives.
        let next = self.received.get();
        let known = seq < next || self.early.borrow_mut().insert(seq, (kind, extra)).is_some();
        if known || seq >= next + self.peer.config.receives as u64 {
            self.wrong(&format!("message {seq} arrived when {next} was next"));
        }
        while let Some((kind, extra)) = { self.early.borrow_mut().remove(&self.received.get()) } {
            self.received.set(self.received.get() + 1);
            self.peer.count(|f| f.messages += 1);
            self.take(kind, extra);
        }
    }

    fn take(self: &Rc<Self>, kind: Kind, extra: u32) {
        match kind {
            Kind::Plain => {}
            Kind::Bye => {
                self.got_bye.set(true);
                self.bye.signal();
            }
            Kind::Return { key, dead } => self.take_back(key, dead, extra, None),
            Kind::Wrote { key, dead, at, len, fill } => {
                self.take_back(key, dead, extra, Some((at, len, fill)));
            }
            Kind::Offer { place, len, access, fill } => {
                self.answering.set(self.answering.get() + 1);
                let me = self.clone();
                spawn(async move {
                    let over = me.answer(place, len as usize, access, fill).await.is_err();
                    if over && me.conn.is_open() && !me.crime_done.get() {
                        me.wrong("a request was flushed though the connection is open");
                    }
                    me.answering.set(me.answering.get() - 1);
                    me.answered.signal();
                });
            }
        }
    }

    /// Uses a place that the peer offers, and gives it back.
    async fn answer(
        &self,
        place: Remote,
        len: usize,
        access: Access,
        fill: u64,
    ) -> Result<(), Over> {
        if let Mode::Criminal(crime) = self.mode
            && self.side == 0
            && crime != Crime::TooLong
            && !self.crime_done.get()
            && self.draw(|r| r.chance(1, 3))
        {
            return self.commit(crime, place, len, access).await;
        }
        if self.draw(|r| r.chance(1, 4)) {
            run_async().await;
        }
        let key = place.key;
        let dead = self.draw(|r| r.chance(1, 3));
        let invalidate = dead.then_some(key);
        // A place that a criminal will come back to must not be invalidated behind its back.
        if access == Access::RemoteRead {
            for _ in 0..self.draw(|r| r.between(1, 3)) {
                let (at, n) = self.part(len);
                let local = self.peer.pool.alloc(n.max(1)).await.sub(0, n);
                local.fill(0x11);
                let c = self.read(&local, Remote { addr: place.addr + at as u64, key }).await;
                self.verdict(c)?;
                if c.len != 0 && c.len as usize != n {
                    self.wrong(&format!("a READ of {n} bytes moved {}", c.len));
                }
                if let Some(i) = find_foreign(&local, fill, at) {
                    self.wrong(&format!("byte {i} of a READ of {n} at {at} is wrong"));
                }
                self.peer.count(|f| f.reads += 1);
            }
            self.stale.set(Some(place));
            return self.say(Kind::Return { key, dead }, invalidate).await;
        }
        let (at, n) = self.part(len);
        let fill = self.draw(|r| r.next_u64());
        let local = self.peer.pool.alloc(n.max(1)).await.sub(0, n);
        put_pattern(&local, fill, at);
        let cut = self.draw(|r| r.below(n as u64 + 1)) as usize;
        let to = |at: usize| Remote { addr: place.addr + at as u64, key };
        // The front part is not waited for: the SEND behind it must not overtake it.
        self.conn.send_slots().wait().await;
        self.conn.write(local.sub(0, cut), to(at), Token::NONE);
        let silent = self.draw(|r| r.chance(1, 2));
        if silent {
            self.conn.send_slots().wait().await;
            self.conn.write(local.sub(cut, n - cut), to(at + cut), Token::NONE);
        } else {
            let c = self.write(&local.sub(cut, n - cut), to(at + cut)).await;
            self.verdict(c)?;
        }
        self.stale.set(Some(place));
        self.say(Kind::Wrote { key, dead, at: at as u64, len: n as u32, fill }, invalidate).await
    }

    /// A part of a place, empty now and then.
    fn part(&self, len: usize) -> (usize, usize) {
        self.draw(|r| {
            let at = r.below(len as u64 + 1) as usize;
            let n = r.below((len - at) as u64 + 1) as usize;
            (at, n)
        })
    }

    // Crimes.

    async fn commit(
        &self,
        crime: Crime,
        mut place: Remote,
        len: usize,
        mut access: Access,
    ) -> Result<(), Over> {
        match crime {
            Crime::WrongKey => place.key ^= 1 << self.draw(|r| r.below(32)),
            Crime::PastEnd => place.addr += 1,
            Crime::WrongRight => {
                access = match access {
                    Access::RemoteRead => Access::RemoteWrite,
                    Access::RemoteWrite => Access::RemoteRead,
                };
            }
            Crime::StaleKey => match self.stale.get() {
                // The peer has it back for certain only after a while.
                Some(old) => {
                    place = old;
                    sleep(2 * SECONDS).await;
                }
                None => return self.give_up(place.key).await,
            },
            Crime::TooLong => {}
        }
        self.crime_done.set(true);
        let n = if crime == Crime::StaleKey { 1 } else { len };
        let local = self.peer.pool.alloc(n).await;
        // Not the guard's pattern, so that any effect shows.
        local.fill(0x77);
        let c = match access {
            Access::RemoteRead => self.read(&local, place).await,
            Access::RemoteWrite => self.write(&local, place).await,
        };
        if access == Access::RemoteRead && c.is_ok() {
            self.wrong(&format!("{crime:?} went unpunished"));
        }
        self.verdict(c)?;
        self.await_punishment().await
    }

    /// Gives a place back unused.
    async fn give_up(&self, key: u32) -> Result<(), Over> {
        self.say(Kind::Return { key, dead: false }, None).await
    }

    async fn too_long(&self) {
        let len = self.peer.config.message + 1;
        self.conn.send_slots().wait().await;
        self.crime_done.set(true);
        let (token, done) = completion();
        self.conn.send(&vec![0; len], None, SendFlags::default(), token);
        let c = self.done(done, None).await;
        if self.verdict(c).is_ok() {
            let _ = self.await_punishment().await;
        }
    }

    async fn await_punishment(&self) -> Result<(), Over> {
        for _ in 0..10_000 {
            if !self.conn.is_open() {
                return Err(Over);
            }
            sleep(MILLIS).await;
        }
        self.wrong("a crime went unpunished for ten seconds")
    }
}
