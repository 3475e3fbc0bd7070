//! Keyed logins (docs/brp.md): a host with a secret proves that it knows it before its login does anything.
//!
//! The connection is accepted with a challenge, on the reactor that will have the channel. Until HELLO has proved its
//! sender it is a [`Greeting`]: no session, no channel, two credits, and a time limit.

use crate::greetings::Place;
use crate::port::Port;
use crate::target::{Login, TargetShared, admit, join, name, note, refuse};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use weir_base::{MILLIS, Nanos, SECONDS};
use weir_fabric::{Connection, FabricError, Incoming, Params, SendFlags, Unclaimed};
use weir_proto_brp::keyed::{self, Challenge, HELLO_LEN, Hello, Transcript};
use weir_proto_brp::login::VERSION;
use weir_proto_brp::{LoginRequest, LoginResponse, RejectReason};
use weir_reactor::{Token, WaitChannel, completion, send_to, sleep, spawn_task, timeout};
use weir_target_core::{Secret, spread};

/// Connections of a port that have not proved themselves yet. For one more, one of the address that has most of them goes.
pub(crate) const MOST: usize = 64;
/// How long a host may take for its HELLO.
const PATIENCE: Nanos = 5 * SECONDS;
/// How long one that has to go may take for that.
const GOING: Nanos = 100 * MILLIS;
/// Credits of a connection that has not proved itself: HELLO takes one.
const CREDITS: u16 = 2;
/// Receive buffers for all that there may be: channels are not given these, or hosts with a secret would be kept out by those
/// that are there.
pub(crate) const RECEIVES: u32 = MOST as u32 * CREDITS as u32;

/// A connection between challenge and HELLO, as the receive path of its reactor knows it.
pub(crate) struct Greeting {
    qp: u32,
    number: u64,
    hello: Cell<Option<Hello>>,
    /// It has sent something else, or more.
    bad: Cell<bool>,
    heard: WaitChannel,
}

/// The greetings of one reactor.
#[derive(Default)]
pub(crate) struct Pending(RefCell<Vec<Rc<Greeting>>>);

impl Pending {
    /// Takes a message if it came by such a connection.
    pub(crate) fn take(&self, qp: u32, bytes: &[u8]) -> bool {
        let all = self.0.borrow();
        let Some(g) = all.iter().find(|g| g.qp == qp) else { return false };
        match Hello::decode(bytes) {
            Ok(h) if g.hello.get().is_none() && bytes.len() == HELLO_LEN => g.hello.set(Some(h)),
            _ => g.bad.set(true),
        }
        g.heard.signal();
        true
    }

    /// It has to go, for another one, unless it has said meanwhile who it is.
    fn send_away(&self, number: u64) {
        let all = self.0.borrow();
        let meant = |g: &&Rc<Greeting>| g.number == number && g.hello.get().is_none();
        if let Some(g) = all.iter().find(meant) {
            g.bad.set(true);
            g.heard.signal();
        }
    }

    fn add(&self, g: &Rc<Greeting>) {
        self.0.borrow_mut().push(g.clone());
    }

    fn remove(&self, qp: u32) {
        self.0.borrow_mut().retain(|g| g.qp != qp);
    }
}

/// A connection whose host has proved itself; the response to its login is a message.
pub(crate) struct Greeted {
    conn: Unclaimed,
    greeting: Rc<Greeting>,
    transcript: Transcript,
    pub(crate) secret: Arc<[u8]>,
    reads: u16,
}

/// A login that waits for its answer: by the connection manager, or on a connection that is there already.
pub(crate) enum Arrival {
    Asking(Box<dyn Incoming>),
    Greeted(Greeted),
}

impl Arrival {
    pub(crate) fn peer(&self) -> String {
        match self {
            Arrival::Asking(i) => i.peer(),
            Arrival::Greeted(g) => g.conn.peer(),
        }
    }

    /// RDMA READs that the peer serves at once.
    pub(crate) fn peer_serves_reads(&self) -> u16 {
        match self {
            Arrival::Asking(i) => i.peer_serves_reads(),
            Arrival::Greeted(g) => g.reads,
        }
    }

    /// What the host has proved to know.
    pub(crate) fn proved(&self) -> Secret {
        match self {
            Arrival::Asking(_) => Secret::None,
            Arrival::Greeted(g) => Secret::Known(g.secret.clone()),
        }
    }

    /// Refuses the login.
    pub(crate) fn refuse(self, port: &Port, request: &LoginRequest, reason: RejectReason) {
        match self {
            Arrival::Asking(i) => refuse(&port.shared, i, request, reason),
            Arrival::Greeted(g) => {
                let (peer, who) = (g.conn.peer(), &request.initiator);
                note(&port.shared, &peer, who, reason);
                port.greetings.remove(g.greeting.qp);
                say_no(g.conn.claim(), reason);
            }
        }
    }

    /// Lets the channel in.
    pub(crate) async fn accept(
        self,
        port: &Port,
        response: &LoginResponse,
    ) -> Result<Rc<dyn Connection>, FabricError> {
        match self {
            Arrival::Asking(i) => {
                let params = params(port, response.encode().to_vec(), i.peer_serves_reads());
                i.accept(&*port.provider, params).await
            }
            Arrival::Greeted(g) => {
                port.greetings.remove(g.greeting.qp);
                // What came before the welcome was sent without leave.
                if g.greeting.bad.get() || !g.conn.is_open() {
                    return Err(FabricError::Unavailable(
                        "the host did not wait for WELCOME".into(),
                    ));
                }
                let conn = g.conn.claim();
                send(&*conn, &g.transcript.welcome(&g.secret, response));
                Ok(conn)
            }
        }
    }
}

fn params(port: &Port, private_data: Vec<u8>, peer_serves: u16) -> Params {
    Params {
        private_data,
        recv_queue: port.recv_queue.clone(),
        reads_out: port.config.reads_out.min(peer_serves),
        reads_in: 0,
    }
}

fn send(conn: &dyn Connection, message: &[u8]) {
    if conn.send_slots().try_wait() {
        conn.send(message, None, SendFlags::default(), Token::NONE);
    }
}

/// Refuses on a connection that is there, and ends it in order: the reason is to arrive.
fn say_no(conn: Rc<dyn Connection>, reason: RejectReason) {
    send(&*conn, &keyed::refused(reason));
    let (token, closed) = completion();
    conn.on_closed(token);
    conn.disconnect(false);
    spawn_task(async move {
        closed.await;
        drop(conn);
    });
}

/// Challenges a host, on the reactor that has the channel or is to have it.
pub(crate) async fn challenge(
    shared: &Arc<TargetShared>,
    incoming: Box<dyn Incoming>,
    request: LoginRequest,
    secret: Arc<[u8]>,
) {
    let reactors = shared.spread.reactors();
    let place = shared.sessions.place(&name(&request), reactors.len());
    let reactor = reactors.get(place).map_or_else(weir_reactor::current_id, |h| h.id());
    let Some((number, gone)) = shared.greetings.begin(&incoming.peer(), reactor) else {
        return refuse(shared, incoming, &request, RejectReason::Resources);
    };
    send_away(shared, gone);
    let (target, limit) = (shared.spread.id(), shared.config.drain_timeout);
    let handed = spread::hand_over(&reactors, place, limit, incoming, move |incoming| {
        match Port::local(target) {
            Some(port) => {
                spawn_task(greet(port, incoming, request, secret, place, number));
                None
            }
            None => Some(incoming),
        }
    });
    let (incoming, reason) = match handed.await {
        Ok(None) | Err(None) => return,
        Ok(Some(incoming)) => (incoming, RejectReason::Unspecified),
        // It is held up.
        Err(Some(incoming)) => (incoming, RejectReason::Draining),
    };
    shared.greetings.end(number);
    refuse(shared, incoming, &request, reason);
}

/// Ends a connection that has lost its place to another one.
fn send_away(shared: &TargetShared, gone: Option<Place>) {
    let target = shared.spread.id();
    if let Some(g) = gone {
        send_to(g.reactor, move || {
            if let Some(port) = Port::local(target) {
                port.greetings.send_away(g.number);
            }
        });
    }
}

/// Receive buffers for a connection that is to prove itself: those of another one, if need be, that has to go.
async fn lend(port: &Port, number: u64) -> bool {
    if port.set_aside.lend(u32::from(CREDITS)) {
        return true;
    }
    let shared = &port.shared;
    let gone = shared.greetings.displace(number, weir_reactor::current_id());
    if gone.is_none() {
        return false;
    }
    send_away(shared, gone);
    let lent = async {
        while !port.set_aside.lend(u32::from(CREDITS)) {
            sleep(MILLIS).await;
        }
    };
    timeout(GOING, lent).await.is_ok()
}

async fn greet(
    port: Rc<Port>,
    incoming: Box<dyn Incoming>,
    request: LoginRequest,
    secret: Arc<[u8]>,
    place: usize,
    number: u64,
) {
    let shared = port.shared.clone();
    if !lend(&port, number).await {
        shared.greetings.end(number);
        return refuse(&shared, incoming, &request, RejectReason::Resources);
    }
    let proved = prove(&port, incoming, &request, &secret, number).await;
    port.set_aside.give_back(u32::from(CREDITS));
    // What it replaces may take long to end: that is no reason to keep others out.
    shared.greetings.end(number);
    let Some(greeted) = proved else { return };
    let arrival = Arrival::Greeted(greeted);
    // The secret may have changed meanwhile.
    let map = shared.access.map();
    if map.host(&request.initiator.0).is_none_or(|h| h.secret != Secret::Known(secret)) {
        return arrival.refuse(&port, &request, RejectReason::Secret);
    }
    let Some(seat) = admit(&shared, &request) else {
        return arrival.refuse(&port, &request, RejectReason::Resources);
    };
    let joined = join(&shared, &request, name(&request), Some(place)).await;
    if joined.channel.home != place {
        // Another login of this channel was quicker, and had it placed elsewhere.
        return arrival.refuse(&port, &request, RejectReason::Draining);
    }
    let login = Login { arrival, request, channel: joined.channel, seat };
    port.take_login(login, joined.draining);
}

/// Accepts with a challenge and waits for the proof.
async fn prove(
    port: &Rc<Port>,
    incoming: Box<dyn Incoming>,
    request: &LoginRequest,
    secret: &Arc<[u8]>,
    number: u64,
) -> Option<Greeted> {
    let c = &port.config;
    let nonce = port.shared.greetings.nonce(&c.nonce_seed, &c.port_id.0);
    let challenge = Challenge { version: VERSION, nonce, target: c.port_id };
    let (peer, reads) = (incoming.peer(), incoming.peer_serves_reads());
    let params = params(port, challenge.encode().to_vec(), reads);
    port.accepting.set(port.accepting.get() + 1);
    let accepted = incoming.accept(&*port.provider, params).await;
    port.accepting.set(port.accepting.get() - 1);
    let conn = match accepted {
        Ok(conn) => Unclaimed::new(conn),
        Err(e) => {
            tracing::warn!(%peer, error = %e, "connection failed while being accepted");
            port.more_held.signal();
            return None;
        }
    };
    let greeting = Rc::new(Greeting {
        qp: conn.qp(),
        number,
        hello: Cell::new(None),
        bad: Cell::new(false),
        heard: WaitChannel::new(0),
    });
    port.greetings.add(&greeting);
    port.more_held.signal();
    // It may have had to go before it was there.
    if !port.shared.greetings.has(number) {
        port.greetings.send_away(number);
    }
    let (token, closed) = completion();
    conn.on_closed(token);
    let g = greeting.clone();
    let watch = spawn_task(async move {
        closed.await;
        g.bad.set(true);
        g.heard.signal();
    });
    let heard = timeout(PATIENCE, greeting.heard.wait()).await;
    weir_reactor::cancel(watch);
    let hello = greeting.hello.get().filter(|_| heard.is_ok() && !greeting.bad.get());
    let t = hello.map(|h| (h, Transcript::new(request, &challenge, h.nonce)));
    match t {
        Some((h, transcript)) if h.is_proof(secret, &transcript) => {
            Some(Greeted { conn, greeting, transcript, secret: secret.clone(), reads })
        }
        other => {
            let why = if other.is_some() { "its secret is another one" } else { "no proof came" };
            port.shared.spread.counts().unproved(&peer, &request.initiator, &why);
            port.greetings.remove(greeting.qp);
            if other.is_some() {
                say_no(conn.claim(), RejectReason::Secret);
            }
            None
        }
    }
}
