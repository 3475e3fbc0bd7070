//! Entry points for fuzzers and property tests: any bytes, with the promises asserted.
//!
//! A failed assertion here is a defect of this crate, whatever the bytes.

// Here a panic is how a finding is told.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)]

mod drive;
mod script;

pub use drive::{Message, Outcome, drive};
pub use script::{Choices, Script};

use crate::mpa::{self, CrcPolicy, Policy, Reply, Request};
use crate::terminate::TerminateInfo;
use weir_base::Prng;

/// About how long a script becomes, in bytes, and the most of one message: a few messages of a few segments, short
/// enough for millions of executions. Property tests make longer ones.
const SCRIPT_BYTES: usize = 1024;
const SCRIPT_MESSAGE: usize = 4096;

/// An incoming stream. The first byte chooses: CRC on, the rest is a script of valid operations
/// (else raw wire bytes), one bit of the result is flipped.
///
/// # Panics
/// When the receiver breaks its contract, or when chopping the stream changes what is delivered.
pub fn fuzz_stream(data: &[u8]) {
    let Some((&mode, rest)) = data.split_first() else { return };
    let crc = mode & 1 != 0;
    let mut script = Script::default();
    let mut stream = if mode & 2 != 0 {
        script = Script::build(&mut Choices::with(rest, SCRIPT_BYTES, SCRIPT_MESSAGE), crc);
        script.bytes.clone()
    } else {
        rest.to_vec()
    };
    let mut prng = Prng::new(u64::from(mode) ^ (data.len() as u64) << 8);
    let flip = mode & 6 == 6 && !stream.is_empty();
    if flip {
        let bit = prng.below(stream.len() as u64 * 8);
        stream[bit as usize / 8] ^= 1 << (bit % 8);
    }
    let whole = drive(&stream, crc, None);
    let parts = drive(&stream, crc, Some(&mut prng));
    assert_eq!(parts.messages, whole.messages, "chopping changed the messages");
    assert_eq!(parts.fault.is_some(), whole.fault.is_some(), "chopping changed the verdict");
    if flip && crc {
        let n = whole.messages.len();
        assert_eq!(whole.messages[..], script.messages[..n], "a flipped bit was delivered");
    } else if mode & 2 != 0 && !flip {
        assert_eq!(whole.messages, script.messages, "a valid stream was not reproduced");
        assert!(whole.fault.is_none() && whole.unread == 0, "a valid stream was not taken whole");
    }
}

/// A start-up frame, as both sides see it.
///
/// # Panics
/// When decoding and encoding disagree, or two ends of a negotiation reach different results.
pub fn fuzz_mpa(data: &[u8]) {
    for kind in [mpa::Kind::Request, mpa::Kind::Reply] {
        if let Ok(Some(n)) = mpa::frame_len(data, kind) {
            assert!((mpa::HEADER..=mpa::HEADER + mpa::MAX_PRIVATE).contains(&n));
        }
    }
    if let Some(info) = TerminateInfo::decode(data) {
        assert!(!info.to_string().is_empty());
        assert!(info.header().len() <= data.len());
    }
    let choice = |i: usize| data.get(i).copied().unwrap_or(0);
    let policy = Policy {
        crc: [CrcPolicy::Off, CrcPolicy::Prefer, CrcPolicy::Require][usize::from(choice(0) % 3)],
        max_reads_out: u16::from(choice(1)),
        max_reads_in: u16::from(choice(2)),
    };
    // Most of a fuzzer's frames would fail on the key: also take the bytes as what follows it.
    let keyed = |key: &[u8]| [key, data].concat();
    let trim = |mut f: Vec<u8>, kind| {
        if let Ok(Some(n)) = mpa::frame_len(&f, kind) {
            f.truncate(n);
        }
        f
    };
    for frame in [data.to_vec(), trim(keyed(b"MPA ID Req Frame"), mpa::Kind::Request)] {
        if let Ok(request) = Request::decode(&frame) {
            answer(&request, &policy);
        }
    }
    for frame in [data.to_vec(), trim(keyed(b"MPA ID Rep Frame"), mpa::Kind::Reply)] {
        if let Ok(reply) = Reply::decode(&frame) {
            assert_eq!(Reply::decode(&recode(reply.encode())), Ok(reply.clone()));
            if let Ok(agreed) = mpa::conclude(&policy.request(&[]), &reply, &policy) {
                assert!(!reply.reject && agreed.crc == reply.crc);
                assert!(agreed.reads_in <= policy.max_reads_in.max(1));
                assert!(agreed.reads_out <= policy.max_reads_out);
            }
        }
    }
}

/// What was decoded always fits the format again.
fn recode(frame: Result<Vec<u8>, mpa::Error>) -> Vec<u8> {
    frame.unwrap_or_else(|e| panic!("a decoded frame cannot be encoded: {e}"))
}

/// Responder's and initiator's ends of one negotiation.
fn answer(request: &Request, policy: &Policy) {
    assert_eq!(Request::decode(&recode(request.encode())).as_ref(), Ok(request));
    match mpa::respond(request, policy, b"hello") {
        Ok((reply, ours)) => {
            assert_eq!(Reply::decode(&recode(reply.encode())).as_ref(), Ok(&reply));
            assert!(!reply.markers && !request.markers);
            // The initiator behind the request, with depths of its own that the request tells.
            let theirs = Policy {
                crc: if request.crc { CrcPolicy::Require } else { CrcPolicy::Off },
                max_reads_out: request.enhanced.map_or(7, |e| e.ord),
                max_reads_in: request.enhanced.map_or(7, |e| e.ird),
            };
            let theirs = mpa::conclude(request, &reply, &theirs)
                .unwrap_or_else(|e| panic!("our own reply is not accepted: {e}"));
            assert_eq!(ours.crc, theirs.crc);
            assert_eq!(ours.first_rtr, theirs.first_rtr);
            if let Some(e) = request.enhanced {
                assert!(e.ird == mpa::DEPTH_UNSPECIFIED || ours.reads_out <= theirs.reads_in);
                assert!(e.ord == mpa::DEPTH_UNSPECIFIED || theirs.reads_out <= ours.reads_in);
            }
        }
        Err(refused) => {
            assert!(refused.reply.reject && !refused.to_string().is_empty());
            assert_eq!(Reply::decode(&recode(refused.reply.encode())), Ok(refused.reply));
        }
    }
}
