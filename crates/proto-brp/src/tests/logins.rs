//! "Login" and "Keyed logins" of docs/brp.md: features, limits, reasons, and what each proof is made of.

use crate::keyed::{Answer, CHALLENGE_LEN, Challenge, Hello, NONCE, Transcript, answer, refused};
use crate::login::{
    Features, LoginError, LoginReject, LoginRequest, LoginResponse, RejectReason, bytes, units,
};
use crate::message::{HEADER, Header, Kind, MessageError};
use crate::types::PortId;
use weir_codec::mac;

const SECRET: &[u8] = b"sixteen bytes ok";

fn request() -> LoginRequest {
    LoginRequest {
        version_min: 1,
        version_max: 1,
        features: Features::USUAL,
        initiator: PortId([1; 16]),
        target: PortId([2; 16]),
        session: 3,
        channel: 4,
        depth: 1,
        max_message: 16,
        keep_alive: 0,
    }
}

fn response() -> LoginResponse {
    LoginResponse {
        version: 1,
        resumed: false,
        features: Features::USUAL,
        incarnation: 0x0f0e_0d0c_0b0a_0908,
        power: 0x1716_1514_1312_1110,
        depth: 0x1918,
        credits: 0x1b1a,
        max_message: 0x1d1c,
        keep_alive: 0x1f1e,
        max_len: 0x2322_2120,
        max_segments: 0x2524,
        max_commands: 0x2726,
        target: PortId(core::array::from_fn(|i| 0x28 + i as u8)),
        memory: 0x3f3e_3d3c_3b3a_3938,
    }
}

#[test]
fn a_response_is_these_bytes() {
    let mut want: [u8; 64] = core::array::from_fn(|i| i as u8);
    want[..8].copy_from_slice(&[b'B', b'R', b'P', b'r', 1, 0, 159, 0]);
    assert_eq!(response().encode(), want);
    assert_eq!(LoginResponse::decode(&want), Ok(response()));
    want[5] = 1;
    assert_eq!(LoginResponse::decode(&want), Ok(LoginResponse { resumed: true, ..response() }));
    // Bit 0 alone says that the channel is known; the others are reserved, and ignored on receipt.
    want[5] = 0xfe;
    assert_eq!(LoginResponse::decode(&want), Ok(response()));
}

/// "Connection managers may pad all three."
#[test]
fn padding_is_passed_over_and_what_is_too_short_is_no_login() {
    let reject = LoginReject { reason: RejectReason::Draining, version: 9 };
    let challenge = Challenge { version: 1, nonce: [7; NONCE], target: PortId([8; 16]) };
    let (a, b) = (request().encode(), response().encode());
    let (c, d) = (reject.encode(), challenge.encode());
    let padded = |b: &[u8]| [b, &[0xff; 40]].concat();
    assert_eq!(LoginRequest::decode(&padded(&a)), Ok(request()));
    assert_eq!(LoginResponse::decode(&padded(&b)), Ok(response()));
    assert_eq!(LoginReject::decode(&padded(&c)), Ok(reject));
    assert_eq!(Challenge::decode(&padded(&d)), Ok(challenge));
    let short = |b: &[u8]| b[..b.len() - 1].to_vec();
    assert_eq!(LoginRequest::decode(&short(&a)), Err(LoginError::NotBrp));
    assert_eq!(LoginResponse::decode(&short(&b)), Err(LoginError::NotBrp));
    assert_eq!(LoginReject::decode(&short(&c)), Err(LoginError::NotBrp));
    assert_eq!(Challenge::decode(&short(&d)), Err(LoginError::NotBrp));
    // As long as it may be, and of another kind: the first four bytes tell.
    assert!(LoginRequest::decode(&padded(&b)).is_err());
    assert!(LoginResponse::decode(&padded(&a)).is_err());
    assert!(LoginReject::decode(&padded(&b)).is_err());
    assert!(Challenge::decode(&padded(&b)).is_err());
}

#[test]
fn a_request_has_limits() {
    let with = |change: fn(&mut LoginRequest)| {
        let mut r = request();
        change(&mut r);
        (LoginRequest::decode(&r.encode()), r)
    };
    assert_eq!(LoginRequest::decode(&request().encode()), Ok(request()), "the least of all");
    let (got, r) = with(|r| (r.version_min, r.version_max) = (1, 3));
    assert_eq!(got, Ok(r));
    assert!(with(|r| (r.version_min, r.version_max) = (2, 1)).0.is_err());
    assert_eq!(with(|r| r.depth = 0).0, Err(LoginError::Value("depth")));
    assert_eq!(with(|r| r.max_message = 15).0, Err(LoginError::Value("message length")));
    let (got, r) = with(|r| r.max_message = 17);
    assert_eq!(got, Ok(r));
}

#[test]
fn a_response_has_limits() {
    let least = LoginResponse {
        depth: 1,
        credits: 2,
        max_message: 16,
        max_len: 1,
        max_segments: 1,
        max_commands: 1,
        ..response()
    };
    assert_eq!(LoginResponse::decode(&least.encode()), Ok(least));
    let bad = [
        (LoginResponse { depth: 0, ..response() }, "limit"),
        (LoginResponse { max_len: 0, ..response() }, "limit"),
        (LoginResponse { max_segments: 0, ..response() }, "limit"),
        (LoginResponse { max_commands: 0, ..response() }, "limit"),
        (LoginResponse { credits: 1, ..response() }, "number of credits"),
        (LoginResponse { credits: 0, ..response() }, "number of credits"),
        (LoginResponse { max_message: 15, ..response() }, "message length"),
    ];
    for (r, what) in bad {
        assert_eq!(LoginResponse::decode(&r.encode()), Err(LoginError::Value(what)));
    }
}

#[test]
fn lengths_travel_in_units_of_64_bytes() {
    assert_eq!([bytes(0), bytes(1), bytes(16), bytes(u16::MAX)], [0, 64, 1024, 4_194_240]);
    let cases = [(0, 0), (63, 0), (64, 1), (1024, 16), (1087, 16), (4_194_240, 65_535)];
    for (b, u) in cases {
        assert_eq!(units(b), u);
    }
    assert_eq!(units(usize::MAX), u16::MAX, "never longer than it is");
}

#[test]
fn features_have_their_bits() {
    let bits = [
        (0, Features::INTEGRITY),
        (1, Features::JUMBO),
        (2, Features::COALESCE),
        (3, Features::INLINE_READ),
        (4, Features::INLINE_WRITE),
        (5, Features::SERIAL),
        (6, Features::KEEP_OTHERS),
        (7, Features::LONG_RANGES),
        (9, Features::KEYED),
        (10, Features::SIBLINGS),
    ];
    for (bit, f) in bits {
        assert_eq!(f, Features(1 << bit));
        assert!(Features::ALL.has(f));
    }
    // Bit 8 is kept for peers, so this version knows it; SERIAL, KEEP_OTHERS and SIBLINGS make no session better.
    assert_eq!(Features::USUAL, Features(0x9f));
    assert_eq!(Features::ALL, Features(0x6ff));
}

#[test]
fn granted_is_a_part_of_what_was_wanted() {
    let (a, b) = (Features(0b0110), Features(0b0011));
    assert_eq!(a.and(b), Features(0b0010));
    assert_eq!(a.or(b), Features(0b0111));
    assert_eq!(a.without(b), Features(0b0100));
    assert!(a.has(Features(0b0100)) && a.has(a) && a.has(Features(0)));
    assert!(!a.has(b), "all of them, not one of them");
    assert!(!a.has(Features(0b1000)));
}

/// "After 0, 4 and 5 the same login may be let in later."
#[test]
fn rejects_are_these_bytes() {
    let reasons = [
        RejectReason::Unspecified,
        RejectReason::Version,
        RejectReason::NoTarget,
        RejectReason::NotAllowed,
        RejectReason::Resources,
        RejectReason::Draining,
        RejectReason::Invalid,
        RejectReason::Secret,
    ];
    for code in 0..=255u8 {
        let want = reasons.get(usize::from(code)).copied().unwrap_or(RejectReason::Unspecified);
        assert_eq!(RejectReason::from_code(code), want);
        assert_eq!(want.is_passing(), [0, 4, 5].contains(&(want as u8)));
    }
    for (code, reason) in reasons.into_iter().enumerate() {
        let b = LoginReject { reason, version: 9 }.encode();
        assert_eq!(
            (&b[..6], &b[6..]),
            (&[b'B', b'R', b'P', b'x', 9, code as u8][..], &[0; 10][..])
        );
    }
}

#[test]
fn a_challenge_is_these_bytes() {
    let c = Challenge { version: 1, nonce: [3; NONCE], target: PortId([4; 16]) };
    let want = [&b"BRPc\x01\0\0\0"[..], &[3; 32], &[4; 16], &[0; 8]].concat();
    assert_eq!(c.encode().to_vec(), want);
    assert_eq!((CHALLENGE_LEN, Challenge::decode(&want)), (64, Ok(c)));
}

/// The table of parts, put together by hand.
#[test]
fn proofs_are_made_of_the_parts_of_the_table() {
    let c = Challenge { version: 1, nonce: [3; NONCE], target: PortId([4; 16]) };
    let t = Transcript::new(&request(), &c, [5; NONCE]);
    let parts = [&[3; 32][..], &[5; 32], &request().encode(), &[4; 16]].concat();
    let hello = [&b"BRP 1 initiator\0"[..], &parts].concat();
    let code = mac::hmac_sha256(SECRET, &[&hello]);
    let want = [&[0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &[5; 32], &code].concat();
    assert_eq!(t.hello(SECRET).to_vec(), want);
    let answered = response().encode();
    let welcome = [&b"BRP 1 target\0\0\0\0"[..], &parts, &answered].concat();
    let code = mac::hmac_sha256(SECRET, &[&welcome]);
    let header = [0, 0, 0, 0, 0x86, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(t.welcome(SECRET, &response()).to_vec(), [&header[..], &answered, &code].concat());
    let mut no = [0; 16];
    (no[4], no[5]) = (0x87, 4);
    assert_eq!(refused(RejectReason::Resources), no);
}

/// Who takes another's nonce into its transcript has proved nothing for this HELLO.
#[test]
fn a_hello_proves_its_own_nonce_only() {
    let c = Challenge { version: 1, nonce: [3; NONCE], target: PortId([4; 16]) };
    let t = Transcript::new(&request(), &c, [5; NONCE]);
    let mut b = t.hello(SECRET);
    b[HEADER] ^= 1;
    assert!(!Hello::decode(&b).unwrap().is_proof(SECRET, &t));
}

/// HELLO, WELCOME and REFUSED are of one length, without parts; each is read in its own place only.
#[test]
fn messages_of_a_keyed_login_have_no_parts() {
    let c = Challenge { version: 1, nonce: [3; NONCE], target: PortId([4; 16]) };
    let t = Transcript::new(&request(), &c, [5; NONCE]);
    let (hello, welcome) = (t.hello(SECRET), t.welcome(SECRET, &response()));
    let no = refused(RejectReason::Draining);
    assert_eq!(answer(&no, SECRET, &t), Ok(Answer::Refused(RejectReason::Draining)));
    // Fields 6 (count), 10 (checksums) and 12 (inline data).
    for at in [6, 10, 12] {
        let e = MessageError::Counts("parts");
        let (mut h, mut w, mut n) = (hello, welcome, no);
        (h[at], w[at], n[at]) = (1, 1, 1);
        assert_eq!(Hello::decode(&h), Err(e));
        assert_eq!(answer(&w, SECRET, &t), Err(e));
        assert_eq!(answer(&n, SECRET, &t), Err(e));
    }
    assert!(answer(&[&no[..], &[0]].concat(), SECRET, &t).is_err());
    assert!(answer(&[&welcome[..], &[0]].concat(), SECRET, &t).is_err());
    let ping = Header::new(Kind::Ping).encode();
    assert_eq!(Hello::decode(&ping), Err(MessageError::Kind(3)));
    let goodbye = Header::new(Kind::Goodbye).encode();
    assert_eq!(answer(&goodbye, SECRET, &t), Err(MessageError::Kind(0x85)));
    // Who knows the secret may still say what cannot be.
    let odd = t.welcome(SECRET, &LoginResponse { depth: 0, ..response() });
    assert_eq!(answer(&odd, SECRET, &t), Err(MessageError::Counts("login response")));
}
