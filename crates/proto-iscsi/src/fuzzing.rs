//! Entry points for fuzzers and random tests: any bytes in, invariants asserted.

// Here a panic is how a finding is told.
#![allow(clippy::panic)]

use crate::TEXT;
use crate::bhs::{Additional, Request};
use crate::intake::{Broken, Digests, Intake, Item};
use crate::keys::Offer;
use crate::login::{Credentials, Login, Mutual, Step};
use crate::text::{PAIRS, binary, hexadecimal, pairs, push};

/// Bytes of data that a PDU has at most, in streams of this file.
const MOST: u32 = 4096;

/// A PDU that came out of a stream: header, additional segments, data.
type Pdu = (Request, Vec<u8>, Vec<u8>);

/// Whole PDUs of a stream, whether it ended within one, and what broke it.
fn read(
    digests: Digests,
    stream: &[u8],
    mut cut: impl FnMut(usize) -> usize,
) -> (Vec<Pdu>, bool, Option<Broken>) {
    let mut intake = Intake::new(digests, MOST);
    let (mut all, mut left, mut within) = (Vec::<Pdu>::new(), stream, false);
    while !left.is_empty() {
        let (mut piece, rest) = left.split_at(cut(left.len()).clamp(1, left.len()));
        left = rest;
        loop {
            let (item, more) = match intake.next(piece) {
                Ok(found) => found,
                Err(e) => {
                    if within {
                        all.pop();
                    }
                    return (all, true, Some(e));
                }
            };
            assert!(more.len() <= piece.len());
            piece = more;
            match item {
                None => {
                    assert!(piece.is_empty(), "it wants more only when nothing is left");
                    break;
                }
                Some(Item::Head(r)) => {
                    assert!(!within && r.data_len() <= MOST);
                    assert_eq!(intake.additional().len(), r.ahs_len());
                    assert_eq!(intake.wanted(), r.data_len() as usize);
                    all.push((r, intake.additional().to_vec(), Vec::new()));
                    within = true;
                }
                Some(Item::Data(d)) => {
                    assert!(!d.is_empty());
                    let Some((.., data)) = all.last_mut() else { panic!("data without a header") };
                    data.extend_from_slice(d);
                }
                Some(Item::End) => {
                    let Some((r, _, data)) = all.last() else { panic!("an end without a header") };
                    assert_eq!(data.len(), r.data_len() as usize);
                    within = false;
                }
            }
        }
    }
    if within {
        assert!(intake.is_within());
        all.pop();
    }
    (all, intake.is_within(), None)
}

/// A stream, cut in different ways: the same comes out. The first byte chooses the cuts and the digests.
pub fn fuzz_pdu(data: &[u8]) -> bool {
    let Some((&seed, stream)) = data.split_first() else { return false };
    let digests = Digests { header: seed & 1 != 0, data: seed & 2 != 0 };
    let whole = read(digests, stream, |n| n);
    let mut state = u32::from(seed) | 1;
    let cut = read(digests, stream, |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as usize % 90 + 1
    });
    assert_eq!(whole, cut);
    assert_eq!(whole, read(digests, stream, |_| 1));
    for (_, additional, data) in &whole.0 {
        if let Some(a) = Additional::decode(additional) {
            assert!(a.cdb.len() <= additional.len());
        }
        fuzz_text(data);
    }
    !whole.0.is_empty()
}

/// Text that is read, and written again, is the same.
fn fuzz_text(data: &[u8]) {
    let Ok(all) = pairs(data) else { return };
    assert!(all.len() <= PAIRS);
    let mut again = Vec::new();
    for (k, v) in &all {
        push(&mut again, k, v);
        if let Some(bytes) = binary(v) {
            assert_eq!(binary(&hexadecimal(&bytes)), Some(bytes));
        }
    }
    assert_eq!(pairs(&again), Ok(all));
}

/// What an initiator says in a login, in requests cut out of `data`: nobody is let in without the proof, and no answer is too long.
/// The first byte chooses what is to be proved.
pub fn fuzz_login(data: &[u8]) -> bool {
    let Some((&choice, mut left)) = data.split_first() else { return false };
    let offer = Offer { max_recv: 65_536, max_burst: 1 << 20, first_burst: 65_536, digests: true };
    let challenge: Vec<u8> = (0..32).collect();
    let mut login = Login::new(offer, 1, 128, challenge, 7);
    let secret = (choice & 1 != 0).then(|| b"nobody guesses this".to_vec());
    let mutual = (choice & 2 != 0).then(|| Mutual {
        name: "target".to_owned(),
        secret: b"nor, as it happens, that".to_vec(),
    });
    let keyed = secret.is_some();
    for _ in 0..200 {
        let Some((head, rest)) = left.split_first_chunk::<48>() else { return false };
        let r = Request(*head);
        let (text, rest) = rest.split_at((r.data_len() as usize).min(rest.len()));
        left = rest;
        let mut step = login.request(r, text);
        if let Step::Who(c) = &step {
            assert!(!c.initiator.is_empty() && c.initiator.len() <= crate::login::NAME);
            assert!(c.discovery || c.target.is_some());
            step = login.admit(Credentials { secret: secret.clone(), mutual: mutual.clone() });
        }
        match step {
            Step::Send(answer) => {
                assert!(answer.text.len() <= TEXT && answer.status() == 0);
                assert!(pairs(&answer.text).is_ok());
            }
            Step::Accept => {
                assert!(!keyed, "nobody has proved anything");
                let p = login.params();
                assert!((512..1 << 24).contains(&p.max_send));
                let last = login.accept(9);
                assert!(last.bhs[1] & 0x83 == 0x83 && last.status() == 0);
                let p = login.params();
                assert!(p.first_burst <= p.max_burst && p.max_burst <= 1 << 20);
                return true;
            }
            Step::Refused(r) => {
                assert!(r.status() >= 0x0200 && r.text.is_empty());
                return false;
            }
            Step::End(_) => return false,
            Step::Who(_) => panic!("it asks twice who comes"),
        }
    }
    panic!("a login that does not end")
}
