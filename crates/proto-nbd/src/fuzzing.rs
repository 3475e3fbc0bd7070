//! Entry points for fuzzers and random tests: any bytes in, invariants asserted.

// Here a panic is how a finding is told.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)]

use crate::{Intake, Item, REQUEST, Request};

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
