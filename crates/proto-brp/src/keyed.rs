//! Keyed logins (docs/brp.md, "Keyed logins"): each side proves that it knows the host's secret, for this connection
//! and these identities only. The request is answered by a challenge instead of a response; HELLO and WELCOME are the
//! first messages of the connection, and what a login does is not done before HELLO has proved its sender.

use crate::login::{
    LoginError, LoginRequest, LoginResponse, REQUEST_LEN, RESPONSE_LEN, RejectReason,
};
use crate::message::{HEADER, Header, Kind, MessageError, split};
use crate::types::{PortId, id_at};
use weir_codec::mac;

/// `BRPc`, the first bytes of a challenge.
const CHALLENGE: [u8; 4] = *b"BRPc";
/// Bytes of a challenge: what a response has.
pub const CHALLENGE_LEN: usize = RESPONSE_LEN;
/// Bytes of a nonce.
pub const NONCE: usize = 32;
/// Bytes of the shortest secret.
pub const SECRET_MIN: usize = 16;
/// Bytes of the longest secret.
pub const SECRET_MAX: usize = 256;
/// Bytes of a HELLO.
pub const HELLO_LEN: usize = HEADER + NONCE + mac::LEN;
/// Bytes of a WELCOME.
pub const WELCOME_LEN: usize = HEADER + RESPONSE_LEN + mac::LEN;

/// Labels keep the code of one side from being the code of the other.
const OF_INITIATOR: &[u8; 16] = b"BRP 1 initiator\0";
const OF_TARGET: &[u8; 16] = b"BRP 1 target\0\0\0\0";

/// The target's answer to the request of a keyed login: the connection is there, the channel is not in service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Challenge {
    /// The version spoken from here on.
    pub version: u8,
    /// Drawn anew for each connection.
    pub nonce: [u8; NONCE],
    /// The target's port.
    pub target: PortId,
}

impl Challenge {
    /// Writes the challenge.
    pub fn encode(&self) -> [u8; CHALLENGE_LEN] {
        let mut b = [0; CHALLENGE_LEN];
        b[..4].copy_from_slice(&CHALLENGE);
        b[4] = self.version;
        b[8..40].copy_from_slice(&self.nonce);
        b[40..56].copy_from_slice(&self.target.0);
        b
    }

    /// Reads a challenge; what follows it is padding.
    ///
    /// # Errors
    /// It is none.
    pub fn decode(b: &[u8]) -> Result<Challenge, LoginError> {
        if b.len() < CHALLENGE_LEN || b[..4] != CHALLENGE {
            return Err(LoginError::NotBrp);
        }
        Ok(Challenge { version: b[4], nonce: nonce_at(b, 8), target: PortId(id_at(b, 40)) })
    }
}

/// What both sides of one keyed login know before anything is proved. Whatever differs between them makes their codes
/// differ: nonces, identities, session, channel and features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transcript {
    /// As the target received it.
    pub request: [u8; REQUEST_LEN],
    /// The target's port.
    pub target: PortId,
    /// The target's nonce.
    pub target_nonce: [u8; NONCE],
    /// The initiator's nonce.
    pub initiator_nonce: [u8; NONCE],
}

impl Transcript {
    /// Of a login.
    pub fn new(
        request: &LoginRequest,
        challenge: &Challenge,
        initiator_nonce: [u8; NONCE],
    ) -> Self {
        Transcript {
            request: request.encode(),
            target: challenge.target,
            target_nonce: challenge.nonce,
            initiator_nonce,
        }
    }

    fn of_initiator(&self) -> [&[u8]; 5] {
        let n = (&self.target_nonce, &self.initiator_nonce);
        [OF_INITIATOR, n.0, n.1, &self.request, &self.target.0]
    }

    fn of_target<'a>(&'a self, response: &'a [u8; RESPONSE_LEN]) -> [&'a [u8]; 6] {
        let n = (&self.target_nonce, &self.initiator_nonce);
        [OF_TARGET, n.0, n.1, &self.request, &self.target.0, response]
    }

    /// The HELLO of an initiator that knows `secret`.
    pub fn hello(&self, secret: &[u8]) -> [u8; HELLO_LEN] {
        let mut b = [0; HELLO_LEN];
        b[..HEADER].copy_from_slice(&Header::new(Kind::Hello).encode());
        b[HEADER..HEADER + NONCE].copy_from_slice(&self.initiator_nonce);
        let code = mac::hmac_sha256(secret, &self.of_initiator());
        b[HEADER + NONCE..].copy_from_slice(&code);
        b
    }

    /// The WELCOME of a target that knows `secret`, with the response to the login.
    pub fn welcome(&self, secret: &[u8], response: &LoginResponse) -> [u8; WELCOME_LEN] {
        let mut b = [0; WELCOME_LEN];
        let response = response.encode();
        b[..HEADER].copy_from_slice(&Header::new(Kind::Welcome).encode());
        b[HEADER..HEADER + RESPONSE_LEN].copy_from_slice(&response);
        let code = mac::hmac_sha256(secret, &self.of_target(&response));
        b[HEADER + RESPONSE_LEN..].copy_from_slice(&code);
        b
    }
}

/// A HELLO as it came: nothing of it is proved yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// The initiator's nonce.
    pub nonce: [u8; NONCE],
    code: [u8; mac::LEN],
}

impl Hello {
    /// Reads the first message of the connection.
    ///
    /// # Errors
    /// It is no HELLO.
    pub fn decode(bytes: &[u8]) -> Result<Hello, MessageError> {
        let header = Header::decode(bytes, true)?;
        let body = body(&header, Kind::Hello, bytes, HELLO_LEN)?;
        Ok(Hello { nonce: nonce_at(body, 0), code: nonce_at(body, NONCE) })
    }

    /// Whether its sender knows `secret`; `t` has this HELLO's nonce.
    pub fn is_proof(&self, secret: &[u8], t: &Transcript) -> bool {
        t.initiator_nonce == self.nonce && mac::verify_sha256(secret, &t.of_initiator(), &self.code)
    }
}

/// What a target sends for a HELLO.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The login's response, from a target that knows the secret.
    Welcome(LoginResponse),
    /// The login is refused; the connection ends.
    Refused(RejectReason),
    /// The sender does not know the secret, or the response was changed on its way.
    NotProved,
}

/// Reads the first message of a target on the connection of a keyed login.
///
/// # Errors
/// It is neither WELCOME nor REFUSED, or the response in it cannot be.
pub fn answer(bytes: &[u8], secret: &[u8], t: &Transcript) -> Result<Answer, MessageError> {
    let header = Header::decode(bytes, false)?;
    if header.kind == Kind::Refused {
        body(&header, Kind::Refused, bytes, HEADER)?;
        return Ok(Answer::Refused(RejectReason::from_code(header.flags)));
    }
    let body = body(&header, Kind::Welcome, bytes, WELCOME_LEN)?;
    let mut response = [0; RESPONSE_LEN];
    response.copy_from_slice(&body[..RESPONSE_LEN]);
    if !mac::verify_sha256(secret, &t.of_target(&response), &nonce_at(body, RESPONSE_LEN)) {
        return Ok(Answer::NotProved);
    }
    LoginResponse::decode(&response)
        .map(Answer::Welcome)
        .map_err(|_| MessageError::Counts("login response"))
}

/// The message of a target that refuses a login after its challenge.
pub fn refused(reason: RejectReason) -> [u8; HEADER] {
    Header { flags: reason as u8, ..Header::new(Kind::Refused) }.encode()
}

/// What follows the header of a message of this kind and length.
fn body<'a>(
    header: &Header,
    kind: Kind,
    bytes: &'a [u8],
    len: usize,
) -> Result<&'a [u8], MessageError> {
    if header.kind != kind {
        return Err(MessageError::Kind(header.kind as u8));
    }
    if header.sums != 0 || header.data != 0 || header.count != 0 {
        return Err(MessageError::Counts("parts"));
    }
    let (head, _) = split(bytes, len, 0, false)?;
    Ok(head.get(HEADER..).unwrap_or(&[]))
}

/// 32 bytes at `at`; zeros where there are none.
fn nonce_at(b: &[u8], at: usize) -> [u8; NONCE] {
    let mut n = [0; NONCE];
    if let Some(from) = b.get(at..at + NONCE) {
        n.copy_from_slice(from);
    }
    n
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::login::Features;

    const SECRET: &[u8] = b"sixteen bytes ok";

    fn request() -> LoginRequest {
        LoginRequest {
            version_min: 1,
            version_max: 1,
            features: Features::USUAL.or(Features::KEYED),
            initiator: PortId([1; 16]),
            target: PortId([0; 16]),
            session: 7,
            channel: 3,
            depth: 64,
            max_message: 960,
            keep_alive: 50,
        }
    }

    fn response() -> LoginResponse {
        LoginResponse {
            version: 1,
            resumed: true,
            features: Features::USUAL,
            incarnation: 5,
            power: 6,
            depth: 64,
            credits: 32,
            max_message: 960,
            keep_alive: 50,
            max_len: 1 << 20,
            max_segments: 16,
            max_commands: 16,
            target: PortId([2; 16]),
            memory: 9,
        }
    }

    fn challenge() -> Challenge {
        Challenge { version: 1, nonce: [3; NONCE], target: PortId([2; 16]) }
    }

    fn transcript() -> Transcript {
        Transcript::new(&request(), &challenge(), [4; NONCE])
    }

    #[test]
    fn both_sides_prove_themselves() {
        assert_eq!(Challenge::decode(&challenge().encode()), Ok(challenge()));
        let t = transcript();
        let hello = Hello::decode(&t.hello(SECRET)).unwrap();
        assert_eq!(hello.nonce, [4; NONCE]);
        assert!(hello.is_proof(SECRET, &t));
        assert!(!hello.is_proof(b"sixteen bytes no", &t));
        let welcome = t.welcome(SECRET, &response());
        assert_eq!(answer(&welcome, SECRET, &t), Ok(Answer::Welcome(response())));
        assert_eq!(answer(&welcome, b"another secret!!", &t), Ok(Answer::NotProved));
        let no = refused(RejectReason::Secret);
        assert_eq!(answer(&no, SECRET, &t), Ok(Answer::Refused(RejectReason::Secret)));
    }

    #[test]
    fn whatever_differs_proves_nothing() {
        let t = transcript();
        let hello = Hello::decode(&t.hello(SECRET)).unwrap();
        let welcome = t.welcome(SECRET, &response());
        let others = [
            // Replayed on another connection.
            Transcript { target_nonce: [5; NONCE], ..t },
            Transcript { initiator_nonce: [5; NONCE], ..t },
            // Passed on to another target.
            Transcript { target: PortId([9; 16]), ..t },
        ];
        for other in others {
            assert!(!hello.is_proof(SECRET, &other));
            assert_eq!(answer(&welcome, SECRET, &other), Ok(Answer::NotProved));
        }
        // Every byte of the request counts: port, session, channel, features.
        for i in 0..REQUEST_LEN {
            let mut other = t;
            other.request[i] ^= 1;
            assert!(!hello.is_proof(SECRET, &other), "byte {i}");
        }
        // And every byte of the response.
        for i in HEADER..WELCOME_LEN {
            let mut changed = welcome;
            changed[i] ^= 1;
            assert_eq!(answer(&changed, SECRET, &t), Ok(Answer::NotProved), "byte {i}");
        }
    }

    #[test]
    fn a_proof_of_one_side_is_none_of_the_other() {
        let t = transcript();
        let reflected = t.hello(SECRET);
        assert!(answer(&reflected, SECRET, &t).is_err());
        let welcome = t.welcome(SECRET, &response());
        assert!(Hello::decode(&welcome).is_err());
    }

    #[test]
    fn lengths_and_counts_must_fit() {
        let t = transcript();
        let hello = t.hello(SECRET);
        for len in 0..HELLO_LEN {
            assert!(Hello::decode(&hello[..len]).is_err(), "{len} bytes");
        }
        let mut longer = hello.to_vec();
        longer.push(0);
        assert!(Hello::decode(&longer).is_err());
        for (at, what) in [(6, "count"), (10, "sums"), (12, "data")] {
            let mut bad = hello;
            bad[at] = 1;
            assert!(Hello::decode(&bad).is_err(), "{what}");
        }
        let welcome = t.welcome(SECRET, &response());
        for len in 0..WELCOME_LEN {
            assert!(answer(&welcome[..len], SECRET, &t).is_err(), "{len} bytes");
        }
    }
}
