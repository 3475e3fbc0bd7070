//! Entry points for fuzzers and random tests: any bytes in, invariants asserted.

// Here a panic is how a finding is told.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)]

use crate::handshake::{OPTION_DATA, OPTIONS};
use crate::{Export, Handshake, Intake, Item, REQUEST, Request, Step, flags};

/// What came out of a stream: requests, and all data of each.
fn read(stream: &[u8], mut cut: impl FnMut(usize) -> usize) -> (Vec<(Request, Vec<u8>)>, bool) {
    let (mut intake, mut left) = (Intake::new(), stream);
    let mut all: Vec<(Request, Vec<u8>)> = Vec::new();
    while !left.is_empty() {
        let (mut piece, rest) = left.split_at(cut(left.len()).clamp(1, left.len()));
        left = rest;
        while !piece.is_empty() {
            let before = (piece.len(), intake.wanted());
            let Ok((item, rest)) = intake.next(piece) else {
                assert!(intake.next(piece).is_err(), "broken stays broken");
                return (all, false);
            };
            assert!(rest.len() < before.0, "it goes on");
            match item {
                None => assert!(rest.is_empty() && intake.wanted() == 0),
                Some(Item::Request(r)) => {
                    assert_eq!((before.1, intake.wanted()), (0, r.payload() as usize));
                    all.push((r, Vec::new()));
                }
                Some(Item::Data(d)) => {
                    assert!(!d.is_empty() && d.len() <= before.1);
                    assert_eq!(intake.wanted(), before.1 - d.len());
                    all.last_mut().expect("data follow a request").1.extend_from_slice(d);
                }
            }
            piece = rest;
        }
    }
    let within = all.last().is_some_and(|(r, d)| d.len() < r.payload() as usize);
    assert!(!within || intake.is_within());
    (all, true)
}

/// A stream, cut in different ways: the same comes out. The first byte chooses the cuts.
pub fn fuzz_stream(data: &[u8]) -> bool {
    let Some((&seed, stream)) = data.split_first() else { return false };
    let whole = read(stream, |n| n);
    let mut state = u32::from(seed) | 1;
    let cut = read(stream, |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as usize % 40 + 1
    });
    assert_eq!(whole, cut);
    assert_eq!(whole, read(stream, |_| 1));
    for (r, _) in &whole.0 {
        let bytes = r.encode();
        assert_eq!(bytes.len(), REQUEST);
        assert_eq!(Request::decode(&bytes), Ok(*r));
    }
    !whole.0.is_empty()
}

/// The one export that there is, of this name and as the default.
pub(crate) fn volume() -> Export {
    Export {
        name: "vol".to_owned(),
        len: 1 << 20,
        flags: flags::FLUSH,
        block: (1, 4096, 1 << 25),
        description: "a volume".to_owned(),
    }
}

/// The steps of a handshake without [`Step::More`], and what is left of the stream after it.
pub(crate) fn talk(stream: &[u8], mut cut: impl FnMut(usize) -> usize) -> (Vec<Step>, Vec<u8>) {
    let (mut shake, mut left, mut steps) = (Handshake::new(), stream, Vec::new());
    loop {
        let step = shake.step();
        match &step {
            Step::More => {
                assert!(shake.held() < OPTION_DATA, "it holds what it needs, no more");
                if left.is_empty() {
                    return (steps, Vec::new());
                }
                let (piece, rest) = left.split_at(cut(left.len()).clamp(1, left.len()));
                shake.feed(piece);
                left = rest;
                continue;
            }
            Step::Send(bytes) => assert!(!bytes.is_empty()),
            Step::List => {
                assert_eq!(shake.step(), step, "a question stays");
                shake.export(None);
                assert_eq!(shake.step(), step, "an answer to another question is none");
                shake.list(&[("vol", "a volume"), ("none", "")]);
            }
            Step::Export { name, .. } => {
                assert_eq!(shake.step(), step, "a question stays");
                shake.list(&[]);
                assert_eq!(shake.step(), step, "an answer to another question is none");
                let there = name.is_empty() || name == "vol";
                shake.export(there.then(volume).as_ref());
            }
            Step::Contexts { name } => {
                assert_eq!(shake.step(), step, "a question stays");
                shake.list(&[]);
                shake.export(None);
                assert_eq!(shake.step(), step, "an answer to another question is none");
                shake.contexts(name.is_empty() || name == "vol");
            }
            Step::Begin => {
                let agreed = shake.agreed();
                assert!(agreed.structured || !agreed.allocation);
                steps.push(step);
                assert_eq!(shake.step(), Step::Begin);
                shake.feed(left);
                return (steps, shake.rest());
            }
            Step::End(_) => {
                let held = shake.held();
                shake.feed(left);
                assert_eq!((shake.step(), shake.held()), (step.clone(), held));
                steps.push(step);
                return (steps, Vec::new());
            }
        }
        steps.push(step);
    }
}

/// Replies to options one after another: whole ones, of the option and kinds that there are.
fn replies(mut bytes: &[u8]) {
    while let Some((head, rest)) = bytes.split_first_chunk::<20>() {
        assert_eq!(head[..8], 0x3_e889_0455_65a9_u64.to_be_bytes());
        let field = |at: usize| u32::from_be_bytes(*head[at..].first_chunk().expect("4 bytes"));
        let (kind, len) = (field(12), field(16) as usize);
        assert!(matches!(kind & !(1 << 31), 1..=9) && len <= 4 + 2 * 4096);
        assert!(kind >> 31 == 0 || (len == 0 && bytes.len() == 20), "an error is alone");
        bytes = rest.get(len..).expect("a whole reply");
    }
    assert!(bytes.is_empty(), "a whole reply");
}

/// A client's bytes in the handshake, cut in different ways: the same comes out. The first byte chooses the cuts.
/// True if the transmission phase begins.
pub fn fuzz_handshake(data: &[u8]) -> bool {
    let Some((&seed, stream)) = data.split_first() else { return false };
    let whole = talk(stream, |n| n);
    let mut state = u32::from(seed) | 1;
    let cut = talk(stream, |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as usize % 40 + 1
    });
    assert_eq!(whole, cut);
    assert_eq!(whole, talk(stream, |_| 1));
    let (steps, rest) = whole;
    assert!(stream.ends_with(&rest));
    let begins = steps.last() == Some(&Step::Begin);
    let mut sent: Vec<&[u8]> = Vec::new();
    for step in &steps {
        if let Step::Send(bytes) = step {
            sent.push(bytes);
        }
    }
    assert!(sent.len() <= 1 + OPTIONS as usize, "one answer to each option");
    assert_eq!(sent.first().map(|greeting| greeting.len()), Some(18));
    for (n, bytes) in sent.iter().enumerate().skip(1) {
        let old = begins && n + 1 == sent.len() && matches!(bytes.len(), 10 | 134);
        if old {
            assert_eq!(bytes[..8], volume().len.to_be_bytes());
        } else {
            replies(bytes);
        }
    }
    begins
}
