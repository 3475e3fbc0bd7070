use crate::bhs::{Additional, Request, Response, Stat, op};
use crate::chap::{Algorithm, response, verify};
use crate::discovery::{Parts, Target, describe, means};
use crate::fuzzing::{fuzz_login, fuzz_pdu};
use crate::intake::{Broken, Digests, Intake, Item, digest, padding};
use crate::keys::{Offer, Params};
use crate::sequence::{Incoming, Outgoing, Residual, unsolicited};
use crate::text::{binary, hexadecimal, number, pairs, push};
use crate::window::{Window, before};
use crate::{NO_TAG, TEXT};
use proptest::prelude::*;

mod logins;

const OFFER: Offer =
    Offer { max_recv: 262_144, max_burst: 1 << 20, first_burst: 65_536, digests: true };

fn params() -> Params {
    Params { max_send: 1000, max_burst: 2500, initial_r2t: false, ..Params::new(&OFFER) }
}

/// A PDU on the wire.
fn wire(digests: Digests, bhs: [u8; 48], data: &[u8]) -> Vec<u8> {
    let mut h = bhs;
    let [_, a, b, c] = (data.len() as u32).to_be_bytes();
    h[5..8].copy_from_slice(&[a, b, c]);
    let mut out = h.to_vec();
    if digests.header {
        out.extend(digest(&h));
    }
    let mut body = data.to_vec();
    body.resize(body.len() + padding(body.len()), 0);
    out.extend_from_slice(&body);
    if digests.data && !body.is_empty() {
        out.extend(digest(&body));
    }
    out
}

#[test]
fn digests_are_sent_least_significant_byte_first() {
    assert_eq!(digest(b"123456789"), [0x83, 0x92, 0x06, 0xe3]);
    // RFC 3720 B.4: 32 bytes of zeroes, and of ones.
    assert_eq!(digest(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
    assert_eq!(digest(&[0xff; 32]), [0x43, 0xab, 0xa8, 0x62]);
}

#[test]
fn a_flipped_bit_breaks_a_stream_with_digests() {
    let digests = Digests { header: true, data: true };
    let good = wire(digests, [0; 48], b"hello");
    for (at, want) in
        [(9, Broken::HeaderDigest), (53, Broken::DataDigest), (58, Broken::DataDigest)]
    {
        let mut bad = good.clone();
        bad[at] ^= 1;
        let (mut intake, mut left) = (Intake::new(digests, 100), &bad[..]);
        let found = loop {
            match intake.next(left) {
                Ok((None, _)) => panic!("it was not seen"),
                Ok((_, rest)) => left = rest,
                Err(e) => break e,
            }
        };
        assert_eq!(found, want, "{at}");
    }
    let mut intake = Intake::new(digests, 4);
    assert_eq!(intake.next(&good), Err(Broken::TooLong(5)));
}

#[test]
fn data_that_go_past_are_summed_too() {
    let digests = Digests { header: false, data: true };
    let bytes = wire(digests, [0; 48], b"0123456789");
    let mut intake = Intake::new(digests, 100);
    assert!(matches!(intake.next(&bytes[..48]), Ok((Some(Item::Head(_)), []))));
    assert_eq!(intake.wanted(), 10);
    intake.passed(&bytes[48..58]);
    assert_eq!(intake.next(&bytes[58..]), Ok((Some(Item::End), &[][..])));
    assert!(!intake.is_within());
}

#[test]
fn additional_segments_hold_long_cdbs_and_read_lengths() {
    // A CDB of 32 bytes: 16 more, AHSLength 17; then a read length.
    let mut ahs = vec![0, 17, 1, 0];
    ahs.extend(16..32);
    ahs.extend([0, 5, 2, 0, 0, 1, 0, 0]);
    let a = Additional::decode(&ahs).unwrap();
    assert_eq!((a.cdb, a.read_len), (&(16..32).collect::<Vec<u8>>()[..], Some(65_536)));
    assert_eq!(Additional::decode(&[]), Some(Additional::default()));
    assert_eq!(Additional::decode(&[0, 9, 1, 0]), None);
    // One of three bytes of CDB ends at a multiple of four.
    let a = Additional::decode(&[0, 4, 1, 0, 7, 8, 9, 0, 0, 5, 2, 0, 0, 0, 2, 0]).unwrap();
    assert_eq!((a.cdb, a.read_len), (&[7, 8, 9][..], Some(512)));
}

#[test]
fn text_is_read_as_it_is_meant() {
    let text = b"InitiatorName=iqn.a:b=c\0\0X-y=\0MaxBurstLength=0x200\0";
    let all = pairs(text).unwrap();
    assert_eq!(all, [("InitiatorName", "iqn.a:b=c"), ("X-y", ""), ("MaxBurstLength", "0x200")]);
    for bad in [&b"NoValue\0"[..], b"=x\0", b"a b=c\0", b"a=\xff\0"] {
        assert!(pairs(bad).is_err(), "{bad:?}");
    }
    assert!(pairs(format!("{}=x", "k".repeat(64)).as_bytes()).is_err());
    assert!(pairs(format!("k={}", "v".repeat(256)).as_bytes()).is_err());
    assert!(pairs(&b"a=b\0".repeat(129)).is_err() && pairs(&b"a=b\0".repeat(128)).is_ok());
    let numbers = ["0", "4294967295", "0x10", "0XfF", "", "-1", "+1", "4294967296", "0x", "1 "];
    let want = [Some(0), Some(u32::MAX), Some(16), Some(255), None, None, None, None, None, None];
    assert_eq!(numbers.map(number), want);
    assert_eq!(binary("0x00fF"), Some(vec![0, 255]));
    assert_eq!(binary("0bAP8="), Some(vec![0, 255]));
    assert_eq!(binary("0bAP9x"), Some(vec![0, 0xff, 0x71]));
    for bad in
        ["", "0x", "0x0", "0xgg", "0b", "0bA", "0bA===", "0bA=AA", "0b====AAAA", "00ff", "0ü1"]
    {
        assert_eq!(binary(bad), None, "{bad}");
    }
}

/// Responses to the challenge 00 01 .. 0f, identifier 1, secret "secret12secret", by Python's hashlib.
#[test]
fn chap_responses_are_the_hashes_that_they_should_be() {
    let challenge: Vec<u8> = (0..16).collect();
    let cases = [
        (Algorithm::Md5, "0x29f61be97be10b4aa63f1b9db780ad69"),
        (Algorithm::Sha1, "0x0155a56a398cbb9822fb82250e9d129ae2603aee"),
        (Algorithm::Sha256, "0xc8a29fcca5e5132c734f1d3b3f4a42267918ceb70c232c06e9e93a5d5bd68012"),
        (Algorithm::Sha3, "0x39e1af4dfb9ba7a6ae8a108ad659f02eb8a12563aa225ef7404bb4f396b2977c"),
    ];
    for (a, want) in cases {
        let got = response(a, 1, b"secret12secret", &challenge);
        assert_eq!(hexadecimal(&got), want, "{a:?}");
        assert!(verify(a, 1, b"secret12secret", &challenge, &got));
        assert!(!verify(a, 2, b"secret12secret", &challenge, &got));
        assert!(!verify(a, 1, b"secret12secreT", &challenge, &got));
        assert!(!verify(a, 1, b"secret12secret", &challenge, &got[..got.len() - 1]));
        assert!(!verify(a, 1, b"secret12secret", &challenge, &[]));
        let longer = [&got[..], &[0]].concat();
        assert!(!verify(a, 1, b"secret12secret", &challenge, &longer));
    }
    assert_eq!(Algorithm::choose("9,7,5"), Some(Algorithm::Sha256));
    assert_eq!(Algorithm::choose("0x5"), Some(Algorithm::Md5));
    assert_eq!(Algorithm::choose("1,2,x,"), None);
}

#[test]
fn a_window_delivers_in_order_and_never_goes_back() {
    let mut w = Window::new(u32::MAX, 4);
    assert!(w.has(u32::MAX) && w.has(2) && !w.has(3) && !w.has(u32::MAX - 1));
    assert_eq!((w.pass(1, 'c'), w.pass(0, 'b')), (Ok(None), Ok(None)));
    assert!(!w.has(0) && !w.has(1), "they wait for their turn");
    assert_eq!((w.pass(0, 'x'), w.pass(3, 'y')), (Err('x'), Err('y')));
    assert_eq!(w.due(), None);
    assert_eq!(w.pass(u32::MAX, 'a'), Ok(Some('a')));
    assert_eq!((w.due(), w.due(), w.due()), (Some('b'), Some('c'), None));
    assert_eq!(w.pass(1, 'c'), Err('c'), "it came already");
    // Three are under way: one place is left.
    assert_eq!((w.expected(), w.most(1)), (2, 2));
    assert_eq!(w.most(0), 2, "it never goes back");
    assert!(w.skip(2) && !w.skip(2) && !w.skip(9));
    assert_eq!(w.pass(2, 'z'), Err('z'), "its number was given up");
    assert_eq!((w.due(), w.expected(), w.most(0)), (None, 3, 2));
    assert!(!w.has(3), "it is closed");
    assert_eq!((w.pass(3, 'd'), w.most(9)), (Err('d'), 11));
    assert_eq!(
        (w.pass(4, 'e'), w.pass(3, 'd'), w.due(), w.due()),
        (Ok(None), Ok(Some('d')), Some('e'), None)
    );
    assert_eq!((w.pass(5, 'f'), w.pass(5, 'f'), w.expected()), (Ok(Some('f')), Err('f'), 6));
    assert_eq!((w.pass(7, 'h'), w.held(), w.clear(), w.held()), (Ok(None), 1, vec!['h'], 0));
    assert!(before(u32::MAX, 0) && !before(0, u32::MAX) && !before(5, 5));
}

#[test]
fn data_out_comes_in_order_and_no_more_than_was_asked_for() {
    let mut s = Incoming::new(7, 100, 400);
    assert_eq!(s.take(0, 100, 100, false), Ok(100));
    for bad in
        [(0, 200, 100, false), (1, 300, 100, true), (1, 200, 201, true), (1, 200, 200, false)]
    {
        assert!(s.take(bad.0, bad.1, bad.2, bad.3).is_err(), "{bad:?}");
    }
    assert!(s.take(1, 200, 100, true).is_err(), "it ends too early");
    assert!(s.take(1, u32::MAX, 2, true).is_err());
    assert_eq!(s.take(1, 200, 200, true), Ok(200));
    // What comes by itself may end before.
    let mut s = Incoming::new(NO_TAG, 0, 400);
    assert_eq!(s.take(0, 0, 10, true), Ok(0));
    let p = params();
    assert_eq!(unsolicited(&p, 1000, 200, true), Some(200));
    assert_eq!(unsolicited(&p, 100_000, 200, false), Some(65_536));
    assert_eq!(unsolicited(&p, 1000, 0, false), Some(1000));
    assert_eq!(unsolicited(&p, 100, 200, true), None, "more than there is");
    assert_eq!(unsolicited(&p, 1 << 20, 65_537, true), None);
    let p = Params { initial_r2t: true, immediate_data: false, ..p };
    assert_eq!(unsolicited(&p, 1000, 0, false), None);
    assert_eq!(unsolicited(&p, 1000, 1, true), None);
    assert_eq!(unsolicited(&p, 1000, 0, true), Some(0));
}

#[test]
fn data_in_is_cut_to_pdus_and_sequences() {
    let (p, mut o) = (params(), Outgoing::default());
    let mut left = 6000;
    let mut all = Vec::new();
    while left > 0 {
        let d = o.next(&p, left);
        left -= d.len;
        all.push((d.data_sn, d.len, d.ends));
    }
    let want = [
        (0, 1000, false),
        (1, 1000, false),
        (2, 500, true),
        (3, 1000, false),
        (4, 1000, false),
        (5, 500, true),
        (6, 1000, false),
    ];
    assert_eq!(all, want);
    assert_eq!(o.count(), 7);
}

#[test]
fn residuals_say_what_is_missing_and_what_is_too_much() {
    let cases = [
        (512, 512, 512, Residual::None),
        (512, 1024, 512, Residual::Under(512)),
        (1024, 512, 512, Residual::Over(512)),
        // It failed before anything was moved.
        (0, 512, 0, Residual::Under(512)),
        (1024, 512, 0, Residual::Under(512)),
        (0, 0, 0, Residual::None),
        (1 << 40, 512, 512, Residual::Over(u32::MAX)),
    ];
    for (command, expected, moved, want) in cases {
        assert_eq!(Residual::new(command, expected, moved), want, "{command} {expected} {moved}");
    }
    assert_eq!((Residual::Under(3).flags(), Residual::Over(3).flags()), (2, 4));
}

#[test]
fn responses_are_laid_out_as_the_standard_has_them() {
    let mut stat = 5;
    let mut r = Response::scsi(0x1122_3344, 2, Residual::Under(9), 18);
    r.seal(&mut stat, 7, 8);
    assert_eq!(stat, 6);
    assert_eq!(r.bhs[..4], [0x21, 0x82, 0, 2]);
    assert_eq!(r.bhs[5..8], [0, 0, 20]);
    assert_eq!(
        r.bhs[16..36],
        [0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 7, 0, 0, 0, 8]
    );
    assert_eq!(r.bhs[44..], [0, 0, 0, 9]);
    let mut r = Response::r2t(1, 0x0001 << 48, 2, 3, 4, 5);
    r.seal(&mut stat, 7, 8);
    assert_eq!((stat, &r.bhs[24..28]), (6, &[0, 0, 0, 6][..]), "it shows the next number only");
    assert_eq!(r.bhs[8..16], [0, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(r.bhs[36..], [0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5]);
    let r = Response::data_in(1, 2, 3, 4, false);
    assert_eq!((r.stat, r.bhs[1]), (Stat::Without, 0));
    let mut r = r.and_good(Residual::None);
    r.seal(&mut stat, 7, 8);
    assert_eq!((stat, r.bhs[1], r.bhs[27]), (7, 0x81, 6));
    let r = Request([0x41; 48]);
    assert!(r.is_immediate() && r.op() == op::COMMAND && !r.is_final());
}

#[test]
fn send_targets_tells_what_is_asked_for_in_parts() {
    let t = Target { name: "iqn.x".into(), portals: vec!["[::1]:3260".into()], group: 1 };
    let mut out = Vec::new();
    describe(&mut out, &t);
    assert_eq!(out, b"TargetName=iqn.x\0TargetAddress=[::1]:3260,1\0");
    assert!(means("All", "iqn.x", true) && !means("All", "iqn.x", false));
    assert!(means("", "iqn.x", false) && !means("", "iqn.x", true));
    assert!(means("iqn.x", "iqn.x", true) && !means("iqn.y", "iqn.x", true));
    let mut parts = Parts::default();
    let (mut all, mut next) = parts.begin(out.clone(), 20, 1);
    while let Some(tag) = next {
        assert!(parts.next(tag + 1, 20, 9).is_none());
        let (part, more) = parts.next(tag, 20, tag + 1).unwrap();
        assert!(part.len() <= 20);
        all.extend(part);
        next = more;
    }
    assert_eq!(all, out);
    assert!(parts.next(1, 20, 2).is_none());
}

proptest! {
    #[test]
    fn any_stream_comes_out_the_same_however_it_is_cut(
        seed in any::<u8>(),
        pdus in proptest::collection::vec((any::<[u8; 16]>(), proptest::collection::vec(any::<u8>(), 0..300)), 1..6),
        flip in proptest::option::of(any::<usize>()),
    ) {
        let digests = Digests { header: seed & 1 != 0, data: seed & 2 != 0 };
        let mut stream = vec![seed];
        for (head, data) in &pdus {
            let mut bhs = [0; 48];
            bhs[16..32].copy_from_slice(head);
            stream.extend(wire(digests, bhs, data));
        }
        prop_assert!(fuzz_pdu(&stream));
        if let Some(at) = flip {
            let n = stream.len();
            stream[at % n] ^= 0x10;
            fuzz_pdu(&stream);
        }
    }

    #[test]
    fn any_bytes_are_no_trouble(data in proptest::collection::vec(any::<u8>(), 0..600)) {
        fuzz_pdu(&data);
        fuzz_login(&data);
    }

    #[test]
    fn text_comes_back_as_it_was(all in proptest::collection::vec(("[A-Za-z][A-Za-z0-9.-]{0,20}", "[ -~]{0,40}"), 0..20)) {
        let mut out = Vec::new();
        all.iter().for_each(|(k, v)| push(&mut out, k, v));
        let back = pairs(&out).unwrap();
        prop_assert_eq!(back.len(), all.len());
        prop_assert!(back.iter().zip(&all).all(|((k, v), (x, y))| k == x && v == y));
        prop_assert!(out.len() <= TEXT);
    }
}
