//! Who the initiator is: AuthMethod and CHAP (RFC 7143 12.1).

use super::status;
use crate::chap::{Algorithm, CHALLENGE, LONGEST, response, verify};
use crate::text::{binary, hexadecimal, number, push};
use std::fmt;

/// What an initiator is to prove, and may ask.
#[derive(Clone, Default)]
pub struct Credentials {
    /// The secret that it knows; none: its name is enough.
    pub secret: Option<Vec<u8>>,
    /// What this target proves when it is asked to.
    pub mutual: Option<Mutual>,
}

/// A target's own name and secret for CHAP. The secret is another one than that of the initiator (RFC 7143 9.2.1).
#[derive(Clone)]
pub struct Mutual {
    /// The name that it gives.
    pub name: String,
    /// The secret.
    pub secret: Vec<u8>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Credentials(secret: {}, mutual: {})",
            self.secret.is_some(),
            self.mutual.is_some()
        )
    }
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum At {
    /// Nothing was agreed on.
    #[default]
    Begin,
    /// The initiator's list of algorithms comes.
    List,
    /// Its response comes.
    Response(Algorithm),
    /// It is over, and all is well.
    Over,
}

/// The authentication of one login.
#[derive(Debug, Default)]
pub(super) struct Auth {
    wants: Credentials,
    at: At,
    method: Option<String>,
    list: Option<String>,
    name: Option<String>,
    told: Option<Vec<u8>>,
    id: Option<u8>,
    challenge: Option<Vec<u8>>,
}

impl Auth {
    pub(super) fn ask(&mut self, wants: Credentials) {
        self.wants = wants;
    }

    /// Nothing is to be proved, or it has been.
    pub(super) fn is_over(&self) -> bool {
        self.wants.secret.is_none() && self.at == At::Begin || self.at == At::Over
    }

    /// Takes a key of the initiator.
    pub(super) fn key(&mut self, key: &str, value: &str) -> Result<(), u16> {
        let bytes = |least: usize, most: usize| {
            let found = binary(value).filter(|b| (least..=most).contains(&b.len()));
            found.map(Some).ok_or(status::INITIATOR_ERROR)
        };
        match key {
            "AuthMethod" => self.method = Some(value.to_owned()),
            "CHAP_A" => self.list = Some(value.to_owned()),
            "CHAP_N" => self.name = Some(value.to_owned()),
            "CHAP_R" => self.told = bytes(1, LONGEST)?,
            "CHAP_C" => self.challenge = bytes(CHALLENGE, LONGEST)?,
            _ => {
                let id = number(value).and_then(|n| u8::try_from(n).ok());
                self.id = Some(id.ok_or(status::INITIATOR_ERROR)?);
            }
        }
        Ok(())
    }

    /// What all keys of a request come to; adds what is answered.
    pub(super) fn step(&mut self, challenge: &[u8], id: u8, out: &mut Vec<u8>) -> Result<(), u16> {
        const FAILED: Result<(), u16> = Err(status::AUTHENTICATION);
        if let Some(methods) = self.method.take() {
            let wants = if self.wants.secret.is_some() { "CHAP" } else { "None" };
            if self.at != At::Begin || !methods.split(',').any(|m| m == wants) {
                return FAILED;
            }
            push(out, "AuthMethod", wants);
            self.at = if wants == "CHAP" { At::List } else { At::Over };
        }
        if let Some(list) = self.list.take() {
            let Some(a) = Algorithm::choose(&list).filter(|_| self.at == At::List) else {
                return FAILED;
            };
            push(out, "CHAP_A", &a.code().to_string());
            push(out, "CHAP_I", &id.to_string());
            push(out, "CHAP_C", &hexadecimal(challenge));
            self.at = At::Response(a);
            return Ok(());
        }
        let asks = (self.id.take(), self.challenge.take());
        let Some(told) = self.told.take() else {
            // A challenge without a response to ours.
            return if asks == (None, None) { Ok(()) } else { FAILED };
        };
        let (At::Response(a), Some(secret)) = (self.at, &self.wants.secret) else { return FAILED };
        let named = self.name.take().is_some_and(|n| !n.is_empty());
        // It is always computed: time does not tell about names.
        if !verify(a, id, secret, challenge, &told) || !named || challenge.len() < CHALLENGE {
            return FAILED;
        }
        match asks {
            (None, None) => {}
            (Some(their_id), Some(theirs)) => {
                // One who knows no secret could have us answer our own challenge (RFC 7143 9.2.1).
                let (Some(m), false) = (&self.wants.mutual, theirs == challenge) else {
                    return FAILED;
                };
                if m.secret == *secret {
                    return FAILED;
                }
                push(out, "CHAP_N", &m.name);
                push(out, "CHAP_R", &hexadecimal(&response(a, their_id, &m.secret, &theirs)));
            }
            _ => return FAILED,
        }
        self.at = At::Over;
        Ok(())
    }
}
