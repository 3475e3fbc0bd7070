//! The login: who the initiator is, and what it wants. Sessions for discovery are served here, too.

use crate::order::DEPTH;
use crate::port::Port;
use crate::sessions::{Member, enter};
use crate::target::{GROUP, Shared};
use crate::text::{About, Texts};
use std::rc::Rc;
use std::sync::PoisonError;
use weir_base::{SECONDS, names};
use weir_proto_iscsi::bhs::{Request, Response, Stat, op};
use weir_proto_iscsi::discovery::Target;
use weir_proto_iscsi::intake::{Digests, Intake, Item, digest, padding};
use weir_proto_iscsi::keys::{Offer, Params};
use weir_proto_iscsi::login::{Claim, Credentials, Login, LoginResponse, Step, status};
use weir_proto_iscsi::{NO_TAG, TEXT};
use weir_reactor::{run_async, timeout};
use weir_stream::Stream;
use weir_target_core::{Seat, Secret, initiator_key};

/// How long a login may take.
const PATIENCE: u64 = 15 * SECONDS;
/// How long a discovery session may take.
const DISCOVERY: u64 = 30 * SECONDS;

/// What this target wants of sessions.
pub(crate) const OFFER: Offer =
    Offer { max_recv: 256 << 10, max_burst: 1 << 20, first_burst: 256 << 10, digests: true };

/// A session that has been let in.
pub(crate) struct Greeted {
    pub(crate) peer: String,
    /// Is given back before the member, whose end a login may wait for.
    pub(crate) seat: Seat,
    pub(crate) member: Member,
    pub(crate) proved: Secret,
    pub(crate) params: Params,
    /// The first command's number, and that of the next response.
    pub(crate) cmd_sn: u32,
    pub(crate) stat_sn: u32,
    /// What came behind the login.
    pub(crate) rest: Vec<u8>,
}

/// Addresses of the port: those that it listens on, and where that is any, the one by which the initiator has come.
pub(crate) fn portals(shared: &Shared, stream: &dyn Stream) -> Vec<String> {
    let all = shared.portals.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut found: Vec<String> = Vec::new();
    for at in stream.local().into_iter().chain(all) {
        let text = std::net::SocketAddr::new(at.ip().to_canonical(), at.port()).to_string();
        if !at.ip().is_unspecified() && !found.contains(&text) {
            found.push(text);
        }
    }
    found
}

/// PDUs of a connection that is no session yet.
struct Pdus<'a> {
    stream: &'a dyn Stream,
    intake: Intake,
    bytes: Vec<u8>,
    /// Of these, those that were looked at.
    at: usize,
}

impl<'a> Pdus<'a> {
    fn new(stream: &'a dyn Stream, digests: Digests, bytes: Vec<u8>) -> Pdus<'a> {
        Pdus { stream, intake: Intake::new(digests, TEXT as u32), bytes, at: 0 }
    }

    /// The next PDU, whole. `None`: there is none, or none that could be.
    async fn next(&mut self) -> Option<(Request, Vec<u8>)> {
        let mut request = None;
        let mut data = Vec::new();
        loop {
            let left = self.bytes.get(self.at..)?;
            let (item, rest) = self.intake.next(left).ok()?;
            let rest = rest.len();
            match item {
                Some(Item::Head(r)) => request = Some(r),
                Some(Item::Data(d)) => data.extend_from_slice(d),
                Some(Item::End) => {
                    self.at = self.bytes.len() - rest;
                    return Some((request?, data));
                }
                None => {}
            }
            self.at = self.bytes.len() - rest;
            if item.is_none() {
                self.bytes.resize(4096, 0);
                self.at = 0;
                // Others have their turn, however much is there; limits of time are seen here, too.
                run_async().await;
                match self.stream.receive_some(&mut self.bytes).await {
                    Ok(n) if n > 0 => self.bytes.truncate(n),
                    _ => return None,
                }
            }
        }
    }

    fn rest(self) -> Vec<u8> {
        self.bytes.get(self.at..).unwrap_or_default().to_vec()
    }
}

/// An initiator at the port.
struct Guest<'a> {
    port: &'a Rc<Port>,
    peer: &'a str,
    stream: &'a dyn Stream,
}

impl Guest<'_> {
    fn shared(&self) -> &Shared {
        &self.port.shared
    }

    /// Judges who comes: what it is to prove, or why it is refused.
    fn judge(&self, c: &Claim) -> Result<Secret, (u16, &'static str)> {
        if names::iscsi(&c.initiator).is_none() {
            return Err((status::INITIATOR_ERROR, "its name is no iqn., eui. or naa. name"));
        }
        let map = self.shared().access.map();
        let rule = map.host(&initiator_key(&c.initiator));
        // A stranger is told nothing, not even whether there is such a target.
        let rule = rule.ok_or((status::NOT_ALLOWED, "no host has this name"))?;
        if c.target.as_ref().is_some_and(|t| *t != self.shared().name) {
            return Err((status::NOT_FOUND, "it asks for another target"));
        }
        match (c.tsih, &rule.secret) {
            (0, Secret::Lost) => Err((status::AUTHENTICATION, "its secret is lost here")),
            (0, secret) => Ok(secret.clone()),
            (n, _) if self.shared().sessions.has(n) => {
                Err((status::NOT_IN_SESSION, "a session has one connection"))
            }
            _ => Err((status::NO_SESSION, "there is no such session")),
        }
    }

    fn refused(&self, claim: Option<&Claim>, r: &LoginResponse, why: &str) {
        let counts = self.shared().spread.counts();
        let status = r.status();
        let why = format!("{why} (status {status:04x})");
        match claim {
            Some(c) if status == status::AUTHENTICATION => {
                counts.unproved(self.peer, &c.initiator, &why);
            }
            Some(c) => counts.refused(self.peer, &c.initiator, &why),
            None => counts.stranger(self.peer, &why),
        }
    }

    async fn send(&self, r: &LoginResponse) -> Option<()> {
        self.stream.send_all(&r.bytes()).await.ok()
    }

    async fn refuse(&self, login: &mut Login, claim: Option<&Claim>, why: (u16, &str)) {
        if let Step::Refused(r) = login.refuse(why.0) {
            self.refused(claim, &r, why.1);
            let _ = self.send(&r).await;
        }
    }

    async fn log_in(&self, home: u32) -> Option<Entered> {
        let (challenge, id) = self.shared().challenge();
        let mut login = Login::new(OFFER, GROUP, DEPTH, challenge, id);
        let mut pdus = Pdus::new(self.stream, Digests::default(), Vec::new());
        let (mut claim, mut proved) = (None, Secret::None);
        loop {
            let (r, data) = pdus.next().await?;
            let mut step = login.request(r, &data);
            if let Step::Who(c) = step {
                let judged = self.judge(&c);
                claim = Some(c);
                match judged {
                    Err(why) => {
                        self.refuse(&mut login, claim.as_ref(), why).await;
                        return None;
                    }
                    Ok(secret) => proved = secret,
                }
                let secret = match &proved {
                    Secret::Known(s) => Some(s.to_vec()),
                    _ => None,
                };
                step = login.admit(Credentials { secret, mutual: None });
            }
            match step {
                Step::Send(r) => self.send(&r).await?,
                Step::Refused(r) => {
                    self.refused(claim.as_ref(), &r, "its login cannot be");
                    let _ = self.send(&r).await;
                    return None;
                }
                Step::Accept => break,
                Step::Who(_) => return None,
                Step::End(why) => {
                    self.shared().spread.counts().stranger(self.peer, &why);
                    return None;
                }
            }
        }
        let claim = claim?;
        if claim.discovery {
            let r = login.accept(1);
            self.send(&r).await?;
            return Some(Entered::Discovery(Box::new(login), pdus.rest()));
        }
        // Names are compared in lower case (RFC 3722).
        let key = (claim.initiator.to_ascii_lowercase(), claim.isid);
        let shared = &self.port.shared;
        let (who, map) = (initiator_key(&claim.initiator), shared.access.map());
        // Nothing ends for one that finds no place. It may have that of what it replaces.
        let ends = shared.sessions.of(&key);
        let seat = shared.spread.admit_for(shared.connections, &who, &map, ends);
        let full = (status::RESOURCES, "the port has as many sessions as it may");
        let Some(mut seat) = seat else {
            self.refuse(&mut login, Some(&claim), full).await;
            return None;
        };
        let Some(member) = enter(&self.port.shared, key, home, || !self.stream.has_ended()).await
        else {
            let why = (status::UNAVAILABLE, "what it replaces has not ended");
            self.refuse(&mut login, Some(&claim), why).await;
            return None;
        };
        if !seat.claim(shared.connections, &shared.access.map()) {
            self.refuse(&mut login, Some(&claim), full).await;
            return None;
        }
        let r = login.accept(member.tsih);
        self.send(&r).await?;
        Some(Entered::Session(Box::new(Greeted {
            peer: self.peer.to_owned(),
            member,
            proved,
            params: login.params(),
            cmd_sn: login.cmd_sn(),
            stat_sn: login.stat_sn(),
            seat,
            rest: pdus.rest(),
        })))
    }

    /// Serves a discovery session: text, pings and the logout only (RFC 7143 4.3).
    async fn discover(&self, login: &Login, rest: Vec<u8>) -> Option<()> {
        let mut params = login.params();
        let (mut cmd_sn, mut stat_sn) = (login.cmd_sn(), login.stat_sn());
        let portals = portals(self.shared(), self.stream);
        let target = Target { name: self.shared().name.clone(), portals, group: GROUP };
        let mut pdus = Pdus::new(self.stream, params.digests, rest);
        let mut texts = Texts::default();
        loop {
            let (r, data) = pdus.next().await?;
            // One segment may have many.
            run_async().await;
            if !r.is_immediate() {
                if r.cmd_sn() != cmd_sn {
                    continue;
                }
                cmd_sn = cmd_sn.wrapping_add(1);
            }
            let (mut head, text) = match r.op() {
                op::TEXT => {
                    let about = About { target: &target, offer: &OFFER, discovery: true };
                    let done = texts.request(&r, &data, &about, &mut params);
                    done.unwrap_or_else(|why| (Response::reject(why), r.0.to_vec()))
                }
                op::NOP_OUT if r.itt() == NO_TAG => continue,
                op::NOP_OUT => {
                    let head = Response::new(op::NOP_IN, 0x80, r.itt(), Stat::Takes);
                    (head.with32(20, NO_TAG).with_data(data.len()), data)
                }
                op::LOGOUT => {
                    (Response::new(op::LOGOUT_RESPONSE, 0x80, r.itt(), Stat::Takes), Vec::new())
                }
                _ => return None,
            };
            head.seal(&mut stat_sn, cmd_sn, cmd_sn.wrapping_add(DEPTH - 1));
            let mut bytes = head.bhs.to_vec();
            if params.digests.header {
                bytes.extend(digest(&head.bhs));
            }
            let mut body = text;
            body.resize(body.len() + padding(body.len()), 0);
            bytes.extend_from_slice(&body);
            if params.digests.data && !body.is_empty() {
                bytes.extend(digest(&body));
            }
            self.stream.send_all(&bytes).await.ok()?;
            if r.op() == op::LOGOUT {
                self.stream.shutdown(false);
                return None;
            }
        }
    }
}

enum Entered {
    Session(Box<Greeted>),
    /// What is behind the login.
    Discovery(Box<Login>, Vec<u8>),
}

/// Goes through the login. `None`: nobody was let in for commands.
pub(crate) async fn greet(port: &Rc<Port>, stream: &dyn Stream, home: u32) -> Option<Greeted> {
    let peer = stream.peer()?.to_string();
    let who = Guest { port, peer: &peer, stream };
    match timeout(PATIENCE, who.log_in(home)).await {
        Ok(Some(Entered::Session(g))) => Some(*g),
        Ok(Some(Entered::Discovery(login, rest))) => {
            let _ = timeout(DISCOVERY, who.discover(&login, rest)).await;
            None
        }
        Ok(None) => None,
        Err(_) => {
            port.shared.spread.counts().stranger(&peer, &"no iSCSI login within 15 s");
            None
        }
    }
}
