//! The login phase, a target's side (RFC 7143 section 6.3, 11.12, 11.13).
//!
//! Requests in, [steps](Step) out. It asks its caller twice: [who](Step::Who) comes, and whether the session [begins](Step::Accept).

mod auth;
mod response;
mod stage;

pub use auth::{Credentials, Mutual};
pub use response::{LoginResponse, status};

use crate::TEXT;
use crate::bhs::{Request, be32, op};
use crate::keys::{Offer, Params};
use crate::text::{PAIRS, pairs};
use auth::Auth;

/// Bytes of an iSCSI name, at most (RFC 7143 4.2.7.1).
pub const NAME: usize = 223;
/// Requests of one login, at most: no initiator needs as many.
const REQUESTS: u32 = 64;

/// Stages (RFC 7143 11.12.3).
pub(crate) const SECURITY: u8 = 0;
pub(crate) const OPERATIONAL: u8 = 1;
pub(crate) const FULL: u8 = 3;

/// Who wants what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Name of the initiator.
    pub initiator: String,
    /// The initiator's part of the session's name.
    pub isid: [u8; 6],
    /// Name of the target; none in discovery sessions.
    pub target: Option<String>,
    /// It wants to know what there is, and no more.
    pub discovery: bool,
    /// The session that it is to belong to; 0: a new one.
    pub tsih: u16,
}

/// What is to be done next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Send this; another request comes.
    Send(LoginResponse),
    /// Say who this is: [`Login::admit`] or [`Login::refuse`].
    Who(Claim),
    /// All is agreed upon. The session begins by [`Login::accept`], or does not by [`Login::refuse`].
    Accept,
    /// Send this, and close the connection.
    Refused(LoginResponse),
    /// Close the connection: what comes is no login.
    End(&'static str),
}

/// One connection's login.
#[derive(Debug)]
pub struct Login {
    offer: Offer,
    /// Commands that a session may have under way at the begin.
    slots: u32,
    challenge: Vec<u8>,
    id: u8,
    /// The first request's header, of which all others repeat much.
    first: Option<Request>,
    now: Option<Request>,
    requests: u32,
    stage: u8,
    stat_sn: u32,
    /// Text so far of a request that goes on.
    text: Vec<u8>,
    claim: Option<Claim>,
    auth: Auth,
    params: Params,
    /// Keys that have been negotiated.
    seen: Vec<String>,
    /// This target's own keys have been told.
    told_group: bool,
    told_length: bool,
    group: u16,
}

impl Login {
    /// A login at a target that wants `offer`, by target portal group `group`; a session may have `slots` commands under way.
    /// `challenge`: 16 bytes or more that nobody could foresee; `id`: another one each time.
    pub fn new(offer: Offer, group: u16, slots: u32, challenge: Vec<u8>, id: u8) -> Login {
        Login {
            params: Params::new(&offer),
            offer,
            slots,
            challenge,
            id,
            first: None,
            now: None,
            requests: 0,
            stage: SECURITY,
            stat_sn: 0,
            text: Vec::new(),
            claim: None,
            auth: Auth::default(),
            seen: Vec::new(),
            told_group: false,
            told_length: false,
            group,
        }
    }

    /// Takes a request with its data.
    pub fn request(&mut self, r: Request, data: &[u8]) -> Step {
        if r.op() != op::LOGIN {
            return Step::End("its login is none");
        }
        self.requests += 1;
        self.now = Some(r);
        let stage = r.flags() >> 2 & 3;
        let first = match self.first {
            Some(first) => first,
            None => {
                self.first = Some(r);
                self.stage = stage;
                self.stat_sn = r.exp_stat_sn();
                r
            }
        };
        // Version-min: the least that the initiator speaks (11.12.5).
        if r.0[3] > 0 {
            return self.refuse(status::VERSION);
        }
        let same = |at: std::ops::Range<usize>| r.0.get(at.clone()) == first.0.get(at);
        // ISID, TSIH, ITT, CID.
        let same = same(8..22);
        let (next, transit, more) = (r.flags() & 3, r.is_final(), r.flags() & 0x40 != 0);
        let leap = transit && (next <= stage || next == 2);
        if !same
            || stage != self.stage
            || stage > OPERATIONAL
            || leap
            || transit && more
            || self.requests > REQUESTS
            || self.text.len() + data.len() > TEXT
        {
            return self.refuse(status::INITIATOR_ERROR);
        }
        self.text.extend_from_slice(data);
        if more {
            return Step::Send(self.answer(false, Vec::new()));
        }
        if self.claim.is_some() {
            return self.go_on();
        }
        match self.read_claim(&r) {
            Ok(claim) => {
                self.claim = Some(claim.clone());
                Step::Who(claim)
            }
            Err(why) => self.refuse(why),
        }
    }

    /// Who comes, and what for, by the first text.
    fn read_claim(&self, r: &Request) -> Result<Claim, u16> {
        let all = pairs(&self.text).map_err(|_| status::INITIATOR_ERROR)?;
        let find = |key: &str| all.iter().find(|(k, _)| *k == key).map(|(_, v)| *v);
        let initiator = find("InitiatorName").ok_or(status::MISSING)?;
        let discovery = match find("SessionType") {
            None | Some("Normal") => false,
            Some("Discovery") => true,
            Some(_) => return Err(status::SESSION_TYPE),
        };
        let target = find("TargetName").map(str::to_owned);
        if target.is_none() && !discovery {
            return Err(status::MISSING);
        }
        let bad = |name: &str| {
            // A comma parts a name from a session in a TransportID.
            let graphic = |b: u8| b.is_ascii_graphic() && b != b',' || b >= 0x80;
            name.is_empty() || name.len() > NAME || !name.bytes().all(graphic)
        };
        if bad(initiator) || target.as_deref().is_some_and(bad) {
            return Err(status::INITIATOR_ERROR);
        }
        let mut isid = [0; 6];
        isid.copy_from_slice(&r.0[8..14]);
        let tsih = be32(&r.0, 12) as u16;
        Ok(Claim { initiator: initiator.to_owned(), isid, target, discovery, tsih })
    }

    /// The initiator is known, and proves this.
    pub fn admit(&mut self, credentials: Credentials) -> Step {
        self.auth.ask(credentials);
        self.go_on()
    }

    fn go_on(&mut self) -> Step {
        let text = std::mem::take(&mut self.text);
        let done =
            pairs(&text).map_err(|_| status::INITIATOR_ERROR).and_then(|all| self.keys(&all));
        let out = match done {
            Ok(out) if out.len() <= TEXT => out,
            Ok(_) => return self.refuse(status::INITIATOR_ERROR),
            Err(why) => return self.refuse(why),
        };
        let wants = self.now.is_some_and(|r| r.is_final());
        let next = self.now.map_or(0, |r| r.flags() & 3);
        // Nobody leaves the first stage without the proof that is asked for.
        let grants = wants && self.auth.is_over();
        if self.stage == OPERATIONAL && !self.auth.is_over() {
            return self.refuse(status::AUTHENTICATION);
        }
        if grants && next == FULL {
            self.text = out;
            return Step::Accept;
        }
        let answer = self.answer(grants, out);
        if grants {
            self.stage = next;
        }
        Step::Send(answer)
    }

    /// Begins the session, which is known by `tsih` from here on. The response is to be sent, and then it is in its full-feature
    /// phase.
    pub fn accept(&mut self, tsih: u16) -> LoginResponse {
        let text = std::mem::take(&mut self.text);
        let mut r = self.answer(true, text);
        r.bhs[14..16].copy_from_slice(&tsih.to_be_bytes());
        crate::keys::settle(&mut self.params);
        if self.told_length {
            self.params.max_recv = self.offer.max_recv;
        }
        r
    }

    /// Ends the login with this class and detail, as in [`status`].
    pub fn refuse(&mut self, why: u16) -> Step {
        let mut r = self.answer(false, Vec::new());
        r.bhs[36..38].copy_from_slice(&why.to_be_bytes());
        Step::Refused(r)
    }

    /// What was agreed on.
    pub fn params(&self) -> Params {
        self.params
    }

    /// The number that the first command will have.
    pub fn cmd_sn(&self) -> u32 {
        self.first.map_or(0, |r| r.cmd_sn())
    }

    /// The number that the next response will have.
    pub fn stat_sn(&self) -> u32 {
        self.stat_sn
    }

    fn keys(&mut self, all: &[(&str, &str)]) -> Result<Vec<u8>, u16> {
        let mut out = Vec::new();
        if self.seen.len() + all.len() > 2 * PAIRS {
            return Err(status::INITIATOR_ERROR);
        }
        for pair in all {
            self.key(*pair, &mut out)?;
        }
        self.auth.step(&self.challenge, self.id, &mut out)?;
        self.own_keys(&mut out);
        Ok(out)
    }
}
