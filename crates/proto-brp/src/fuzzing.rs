//! Entry points for fuzzers and random tests: any bytes in, invariants asserted.
//!
//! Each returns whether the bytes got past the first checks. A failed assertion is the finding.

// Here a panic is how a finding is told.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)]

use crate::command::{self, Command, Commands, Descriptor};
use crate::completion::{self, Completion, Completions};
use crate::control::{Abort, Event, check_alone};
use crate::keyed;
use crate::login::{LoginReject, LoginRequest, LoginResponse};
use crate::message::{HEADER, Header, Kind, MessageError, seal};
use crate::slot::{Slot, Verdict};
use crate::sums;
use crate::types::Status;
use crate::volume::{VOLUME_INFO, VolumeInfo};

/// Logins and volume descriptions, with their round trips.
pub fn fuzz_login(data: &[u8]) -> bool {
    let mut reached = false;
    if let Ok(r) = LoginRequest::decode(data) {
        reached = true;
        assert_eq!(LoginRequest::decode(&r.encode()), Ok(r));
        assert!(r.depth > 0 && r.version_min <= r.version_max);
    }
    if let Ok(r) = LoginResponse::decode(data) {
        reached = true;
        assert_eq!(LoginResponse::decode(&r.encode()), Ok(r));
        assert!(r.credits >= 2 && r.depth > 0);
    }
    if let Ok(r) = LoginReject::decode(data) {
        reached = true;
        assert_eq!(LoginReject::decode(&r.encode()), Ok(r));
    }
    if let Some(v) = VolumeInfo::decode(data) {
        reached = true;
        assert!(data.len() >= VOLUME_INFO);
        assert_eq!(VolumeInfo::decode(&v.encode()), Some(v));
    }
    reached
}

/// Messages of both directions and their round trips. The first byte chooses direction and integrity; with
/// integrity every other input is given the right checksum, since a fuzzer does not find one.
pub fn fuzz_message(data: &[u8]) -> bool {
    let Some((&choice, rest)) = data.split_first() else { return false };
    let (to_target, integrity) = (choice & 1 == 0, choice & 2 != 0);
    let mut bytes = rest.to_vec();
    let Ok(header) = Header::decode(&bytes, to_target) else { return false };
    if integrity && choice & 4 == 0 {
        let control = control_len(&header).min(bytes.len());
        seal(&mut bytes[..control]);
    }
    let result = match header.kind {
        Kind::Commands => {
            Commands::decode(&header, &bytes, integrity).map(|c| commands(&c, &bytes))
        }
        Kind::Completions => {
            Completions::decode(&header, &bytes, integrity).map(|c| completions(&c, &bytes))
        }
        Kind::Abort => {
            Abort::decode_all(&header, &bytes, integrity).map(|all| abort(all, integrity))
        }
        Kind::Event => Event::decode_all(&header, &bytes, integrity).map(|all| {
            let all: Vec<Event> = all.collect();
            let again = Event::message(&all, header.extra, integrity);
            assert_eq!(again.len(), bytes.len());
            let h = Header::decode(&again, false).expect("our own header");
            assert_eq!(h.extra, header.extra);
            let back: Vec<Event> =
                Event::decode_all(&h, &again, integrity).expect("ours").collect();
            assert_eq!(back, all);
        }),
        Kind::Ping | Kind::Pong | Kind::EventAck | Kind::Logout | Kind::Goodbye => {
            check_alone(&header, &bytes, integrity).map(|()| assert_eq!(bytes.len(), HEADER))
        }
        // Messages of a keyed login come before anything is agreed: never with a checksum.
        Kind::Hello | Kind::Welcome | Kind::Refused => return keyed_message(&bytes),
    };
    if let (Err(MessageError::Check { stored, computed }), true) = (result, integrity) {
        assert_ne!(stored, computed);
        assert!(choice & 4 != 0, "a sealed message passes its check");
    }
    result.is_ok()
}

/// Bytes without the secret prove nothing, whatever they are.
fn keyed_message(bytes: &[u8]) -> bool {
    let t = keyed::Transcript {
        request: [1; crate::login::REQUEST_LEN],
        target: crate::PortId([2; 16]),
        target_nonce: [3; keyed::NONCE],
        initiator_nonce: [4; keyed::NONCE],
    };
    let secret = b"not in the bytes of any input";
    let hello = keyed::Hello::decode(bytes);
    if let Ok(h) = &hello {
        assert!(!h.is_proof(secret, &keyed::Transcript { initiator_nonce: h.nonce, ..t }));
    }
    let answer = keyed::answer(bytes, secret, &t);
    assert!(!matches!(answer, Ok(keyed::Answer::Welcome(_))));
    hello.is_ok() || answer.is_ok()
}

fn control_len(h: &Header) -> usize {
    match h.kind {
        Kind::Commands => {
            let (commands, descriptors) = (usize::from(h.count), usize::from(h.extra));
            command::Layout { commands, descriptors, sums: usize::from(h.sums) }.control()
        }
        Kind::Completions => {
            completion::Layout { completions: usize::from(h.count), sums: usize::from(h.sums) }
                .control()
        }
        Kind::Abort => HEADER + usize::from(h.count) * crate::control::ABORT,
        Kind::Event => HEADER + usize::from(h.count) * crate::control::EVENT,
        _ => HEADER,
    }
}

fn commands(all: &Commands<'_>, bytes: &[u8]) {
    let (mut n, mut end) = (0, None);
    for i in all.iter() {
        n += 1;
        assert_eq!(Command::decode(&i.command.encode()), i.command);
        assert_eq!(i.descriptors.len(), usize::from(i.command.segments));
        assert!(i.sums.is_empty() || i.sums.len() == i.command.sums_out());
        assert_eq!(i.data.1 as u64, i.command.inline());
        assert!(i.data.0 + i.data.1 <= bytes.len(), "inline data inside the message");
        assert!(end.is_none_or(|e| e == i.data.0), "inline data without gaps");
        end = Some(i.data.0 + i.data.1);
        for d in i.descriptors {
            assert_eq!(Descriptor::decode(d).encode(), *d);
        }
        if !i.sums.is_empty() && i.command.has(command::flag::INLINE_OUT) {
            let data = &bytes[i.data.0..i.data.0 + i.data.1];
            let half = i.command.len as usize;
            let bad = sums::verify(i.command.offset, &data[..half], i.sums);
            assert!(bad.is_none_or(|b| (b as usize) < i.sums.len()));
        }
    }
    assert_eq!(n, all.len());
    assert_eq!(end.unwrap_or(bytes.len()), bytes.len());
}

fn completions(all: &Completions<'_>, bytes: &[u8]) {
    let (mut n, mut data) = (0, 0);
    for i in all.iter() {
        n += 1;
        assert_eq!(Completion::decode(&i.completion.encode()), i.completion);
        assert_eq!(i.sums.len(), i.completion.sums());
        assert_eq!(i.data.len(), i.completion.inline as usize);
        data += i.data.len();
    }
    assert!(n == all.len() && data < bytes.len());
}

fn abort(all: impl Iterator<Item = Abort>, integrity: bool) {
    for a in all {
        let m = a.message(integrity);
        let h = Header::decode(&m, true).expect("our own header");
        let back: Vec<Abort> = Abort::decode_all(&h, &m, integrity).expect("ours").collect();
        assert_eq!(back, [a]);
    }
}

/// A slot against a model, by a script of steps.
///
/// The model knows which numbers have had an effect: none may have it twice, whatever is sent again.
pub fn fuzz_slot(data: &[u8]) -> bool {
    let mut slot = Slot::default();
    // The number of the command that the initiator has in this slot, and whether its effect was had.
    let (mut seq, mut effects, mut waiting) = (0u32, 0u32, false);
    for b in data {
        match b % 5 {
            // A new command, once the last one's completion was received.
            0 if !waiting => {
                seq = seq.wrapping_add(1);
                waiting = true;
                effects = 0;
            }
            // It arrives, for the first time or again.
            0 | 1 if waiting => match slot.judge(seq) {
                Verdict::New => {
                    assert_eq!(effects, 0, "an effect twice");
                    slot.begin(seq);
                }
                Verdict::Done(status, detail) => {
                    assert_eq!((status, detail), (Status::Ok, seq), "another command's end");
                    assert_eq!(effects, 1);
                }
                Verdict::Running => assert!(slot.is_running()),
                Verdict::Wrong => panic!("the initiator counts rightly"),
            },
            2 if slot.is_running() => {
                effects += 1;
                slot.end(Status::Ok, seq);
            }
            // The channel is lost before it had an effect.
            3 if slot.is_running() => slot.forget(),
            // Its completion is received.
            4 if waiting && effects == 1 && !slot.is_running() => waiting = false,
            _ => {}
        }
    }
    data.len() > 4
}
