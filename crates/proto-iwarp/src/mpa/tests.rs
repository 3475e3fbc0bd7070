use super::*;
use crate::tests::hex;

const POLICY: Policy = Policy { crc: CrcPolicy::Off, max_reads_out: 16, max_reads_in: 8 };

/// What ib_srp on siw sends: key, flags and lengths, IRD 4, ORD 0, 56 bytes of login.
fn siw_srp() -> Vec<u8> {
    let mut f = b"MPA ID Req Frame".to_vec();
    f.extend(hex("10 02 00 3C 00 04 00 00"));
    f.extend(0..56u8);
    f
}

#[test]
fn siw_request_reads_and_is_answered_as_siw_demands() {
    let bytes = siw_srp();
    assert_eq!(frame_len(&bytes[..19], Kind::Request), Ok(None));
    assert_eq!(frame_len(&bytes[..20], Kind::Request), Ok(Some(80)));
    let request = Request::decode(&bytes).expect("a request");
    assert_eq!(request.revision, 2);
    assert!(!request.markers && !request.crc);
    let words = Enhanced { ird: 4, ord: 0, ..Enhanced::default() };
    assert_eq!(request.enhanced, Some(words));
    assert_eq!(request.private_data, (0..56).collect::<Vec<u8>>());
    assert_eq!(request.encode().as_ref(), Ok(&bytes));

    let (reply, agreed) = respond(&request, &POLICY, &[0xab; 52]).expect("accepted");
    let mut wire = b"MPA ID Rep Frame".to_vec();
    wire.extend(hex("10 02 00 38 00 00 00 04"));
    wire.extend([0xab; 52]);
    assert_eq!(reply.encode(), Ok(wire));
    assert_eq!(agreed, Negotiated { crc: false, reads_out: 4, reads_in: 0, first_rtr: None });

    let crc = Policy { crc: CrcPolicy::Prefer, ..POLICY };
    let (reply, agreed) = respond(&request, &crc, &[]).expect("accepted");
    assert_eq!(reply.encode().expect("fits")[16..20], hex("50 02 00 04"));
    assert!(agreed.crc);
}

#[test]
fn gso_hint_of_siw_is_ignored() {
    let mut bytes = siw_srp();
    bytes[16] |= 0x08;
    let request = Request::decode(&bytes).expect("a request");
    assert_eq!(request.encode(), Ok(siw_srp()));
}

#[test]
fn foreign_bytes_are_found_early() {
    assert_eq!(frame_len(b"", Kind::Request), Ok(None));
    assert_eq!(frame_len(b"MPA ID Re", Kind::Reply), Ok(None));
    assert_eq!(frame_len(b"G", Kind::Request), Err(Error::Key));
    assert_eq!(frame_len(b"MPA ID Req Frame", Kind::Reply), Err(Error::Key));
    assert_eq!(frame_len(&[0, 0, 0x80, 0, 0x80, 0, 0, 0], Kind::Request), Err(Error::Key));
    let mut long = siw_srp();
    long[18..20].copy_from_slice(&513u16.to_be_bytes());
    assert_eq!(frame_len(&long, Kind::Request), Err(Error::Length(513)));
    let mut none = siw_srp();
    none.truncate(23);
    none[18..20].copy_from_slice(&3u16.to_be_bytes());
    assert_eq!(Request::decode(&none), Err(Error::NoDepthWords(3)));
    let cut = &siw_srp()[..79];
    assert_eq!(Request::decode(cut), Err(Error::Truncated { wanted: 80, got: 79 }));
    let glued = [&siw_srp()[..], &[0; 4]].concat();
    assert_eq!(Request::decode(&glued), Err(Error::Truncated { wanted: 80, got: 84 }));
}

#[test]
fn what_does_not_fit_is_not_encoded() {
    let mut r = POLICY.request(&[0; 508]);
    assert_eq!(r.encode().map(|f| f.len()), Ok(532));
    r.private_data.push(0);
    assert_eq!(r.encode(), Err(Error::PrivateDataTooLong(509)));
    r.enhanced = None;
    assert!(r.encode().is_ok());
    r.enhanced = Some(Enhanced { ird: 0x4000, ..Enhanced::default() });
    r.private_data.clear();
    assert_eq!(r.encode(), Err(Error::Depth(0x4000)));
}

#[test]
fn flag_bits_stand_where_the_standard_puts_them() {
    let request = Request {
        revision: 2,
        markers: true,
        crc: true,
        enhanced: Some(Enhanced {
            peer_to_peer: true,
            rtr_send: false,
            rtr_write: false,
            rtr_read: true,
            ird: 0x3fff,
            ord: 1,
        }),
        private_data: vec![],
    };
    assert_eq!(request.encode().expect("fits")[16..], hex("D0 02 00 04 BF FF 40 01"));
    let reply = Reply {
        revision: 2,
        markers: false,
        crc: false,
        reject: true,
        enhanced: Some(Enhanced { rtr_send: true, rtr_write: true, ..Enhanced::default() }),
        private_data: vec![9],
    };
    assert_eq!(reply.encode().expect("fits")[16..], hex("30 02 00 05 40 00 80 00 09"));
}

#[test]
fn revision_1_is_answered_in_kind() {
    let request = Request { revision: 1, enhanced: None, ..POLICY.request(b"x") };
    let (reply, agreed) = respond(&request, &POLICY, b"y").expect("accepted");
    assert_eq!(reply.encode().expect("fits")[16..], hex("00 01 00 01 79"));
    assert_eq!((agreed.reads_out, agreed.reads_in), (16, 8));
    assert_eq!(conclude(&request, &reply, &POLICY), Ok(agreed));
    // Revision 2 without S: the same.
    let request = Request { enhanced: None, ..POLICY.request(b"x") };
    let (reply, _) = respond(&request, &POLICY, b"y").expect("accepted");
    assert_eq!((reply.revision, reply.enhanced), (1, None));
    // S in a revision 1 frame is a reserved bit.
    let mut bytes = request.encode().expect("fits");
    (bytes[16], bytes[17]) = (0x10, 1);
    let read = Request::decode(&bytes).expect("a request");
    assert_eq!((read.enhanced, read.private_data), (None, b"x".to_vec()));
}

#[test]
fn refusals_carry_a_reply() {
    let markers = Request { markers: true, ..POLICY.request(&[]) };
    let refused = respond(&markers, &POLICY, b"never shown").expect_err("refused");
    assert_eq!(refused.refusal, Refusal::Markers);
    let wire = refused.reply.encode().expect("fits");
    assert_eq!(wire[16..], hex("30 02 00 04 0000 0000"));
    assert_eq!(conclude(&markers, &refused.reply, &POLICY), Err(Error::Rejected));
    for revision in [0, 3, 255] {
        let request = Request { revision, enhanced: None, ..POLICY.request(&[]) };
        let refused = respond(&request, &POLICY, &[]).expect_err("refused");
        assert_eq!(refused.refusal, Refusal::Revision(revision));
        assert_eq!((refused.reply.reject, refused.reply.revision), (true, 1));
    }
    // The consumer's own refusal.
    let reply = reject(&POLICY.request(&[]), b"why");
    assert_eq!(reply.encode().expect("fits")[16..], hex("30 02 00 07 0000 0000 77 68 79"));
}

/// CRC policies of both ends: whether the initiator goes on, and with CRC or without.
#[test]
fn crc_matrix() {
    use CrcPolicy::{Off, Prefer, Require};
    for (ask, answer, crc) in [
        (Off, Off, false),
        (Off, Prefer, true),
        (Off, Require, true),
        (Prefer, Off, true),
        (Prefer, Prefer, true),
        (Require, Off, true),
    ] {
        let (a, b) = (Policy { crc: ask, ..POLICY }, Policy { crc: answer, ..POLICY });
        let request = a.request(&[]);
        let (reply, ours) = respond(&request, &b, &[]).expect("accepted");
        let theirs = conclude(&request, &reply, &a).expect("agreed");
        assert_eq!((ours.crc, theirs.crc), (crc, crc), "{ask:?} {answer:?}");
        // A responder that ignores the wish.
        let deaf = Reply { crc: false, ..reply };
        let theirs = conclude(&request, &deaf, &a);
        match ask {
            Require => assert_eq!(theirs, Err(Error::NoCrc)),
            _ => assert_eq!(theirs.map(|n| n.crc), Ok(false)),
        }
    }
}

/// (offered IRD, ORD) × our (out, in) → reply (IRD, ORD), agreed (out, in).
#[test]
fn depth_matrix() {
    const U: u16 = DEPTH_UNSPECIFIED;
    for ((ird, ord), (out, inn), reply_words, agreed_depths) in [
        ((4, 0), (16, 8), (0, 4), (4, 0)),
        ((128, 0), (16, 8), (0, 16), (16, 0)),
        ((128, 128), (16, 8), (8, 16), (16, 8)),
        ((0, 3), (16, 8), (3, 0), (0, 3)),
        // ORD at least 1 when IRD was offered, though we will issue none.
        ((4, 4), (0, 0), (0, 1), (0, 0)),
        ((U, U), (16, 8), (U, U), (16, 8)),
        ((U, 2), (16, 8), (2, U), (16, 2)),
    ] {
        let request = Request {
            enhanced: Some(Enhanced { ird, ord, ..Enhanced::default() }),
            ..POLICY.request(&[])
        };
        let policy = Policy { crc: CrcPolicy::Off, max_reads_out: out, max_reads_in: inn };
        let (reply, agreed) = respond(&request, &policy, &[]).expect("accepted");
        let words = reply.enhanced.expect("words");
        assert_eq!((words.ird, words.ord), reply_words, "offered {ird} {ord}");
        assert_eq!((agreed.reads_out, agreed.reads_in), agreed_depths, "offered {ird} {ord}");
    }
}

#[test]
fn initiator_checks_the_reply() {
    let request = POLICY.request(&[]);
    let good = Reply {
        revision: 2,
        markers: false,
        crc: false,
        reject: false,
        enhanced: Some(Enhanced { ird: 10, ord: 8, ..Enhanced::default() }),
        private_data: vec![],
    };
    let agreed = conclude(&request, &good, &POLICY).expect("agreed");
    assert_eq!((agreed.reads_out, agreed.reads_in), (10, 8));
    // A responder may offer more than was asked for.
    let much = Enhanced { ird: 128, ord: 0, ..Enhanced::default() };
    let agreed = conclude(&request, &Reply { enhanced: Some(much), ..good.clone() }, &POLICY);
    assert_eq!(agreed.map(|n| (n.reads_out, n.reads_in)), Ok((16, 0)));

    let bad = |change: fn(&mut Reply)| {
        let mut reply = good.clone();
        change(&mut reply);
        conclude(&request, &reply, &POLICY).expect_err("refused")
    };
    assert_eq!(bad(|r| r.revision = 3), Error::Revision(3));
    assert_eq!(bad(|r| r.revision = 0), Error::Revision(0));
    assert_eq!(bad(|r| r.reject = true), Error::Rejected);
    assert_eq!(bad(|r| r.markers = true), Error::Markers);
    assert_eq!(bad(|r| r.enhanced = None), Error::NotEnhanced);
    let ird = bad(|r| r.enhanced = Some(Enhanced { ord: 9, ..Enhanced::default() }));
    assert_eq!(ird, Error::InsufficientIrd { wanted: 9, offered: 8 });
    assert_eq!(ird.terminate(), Some(Code::MPA_IRD));
    assert_eq!(Error::Key.terminate(), Some(Code::MPA_STARTUP));
    assert_eq!(Error::Rejected.terminate(), None);
}

/// RFC 6581 section 6: 0x3FFF says "not negotiated here", so no depth that is meant travels as that.
#[test]
fn a_depth_that_is_meant_is_never_the_open_one() {
    let all = Policy { max_reads_out: u16::MAX, max_reads_in: u16::MAX, ..POLICY };
    let words = all.request(&[]).enhanced.expect("words");
    assert_eq!((words.ird, words.ord), (0x3ffe, 0x3ffe));
    assert!(all.request(&[]).encode().is_ok());
}

/// Where either end leaves a depth open, each keeps to what it has itself.
#[test]
fn an_initiator_lives_with_depths_left_open() {
    const U: u16 = DEPTH_UNSPECIFIED;
    for ((ird, ord), (their_ird, their_ord), (out, inn)) in [
        ((8, 16), (U, U), (16, 8)),
        ((8, 16), (3, U), (3, 8)),
        ((8, 16), (U, 2), (16, 2)),
        ((U, U), (U, U), (16, 8)),
        ((U, 16), (16, 3), (16, 8)),
    ] {
        let words = |ird, ord| Some(Enhanced { ird, ord, ..Enhanced::default() });
        let request = Request { enhanced: words(ird, ord), ..POLICY.request(&[]) };
        let (reply, _) = respond(&request, &POLICY, &[]).expect("accepted");
        let reply = Reply { enhanced: words(their_ird, their_ord), ..reply };
        let agreed = conclude(&request, &reply, &POLICY).map(|n| (n.reads_out, n.reads_in));
        assert_eq!(agreed, Ok((out, inn)), "{ird} {ord}, answered {their_ird} {their_ord}");
    }
}

#[test]
fn peer_to_peer_picks_one_offered_frame() {
    for offer in 0..8u8 {
        let words = Enhanced {
            peer_to_peer: true,
            rtr_write: offer & 4 != 0,
            rtr_read: offer & 2 != 0,
            rtr_send: offer & 1 != 0,
            ird: 0,
            ord: 0,
        };
        let request = Request { enhanced: Some(words), ..POLICY.request(&[]) };
        let want = match offer {
            4.. => Some(Rtr::Write),
            2.. => Some(Rtr::Read),
            1 => Some(Rtr::Send),
            _ => None,
        };
        match (respond(&request, &POLICY, &[]), want) {
            (Ok((reply, agreed)), Some(rtr)) => {
                assert_eq!(agreed.first_rtr, Some(rtr));
                assert!(rtr != Rtr::Read || agreed.reads_in == 1);
                let e = reply.enhanced.expect("words");
                let chosen = [e.rtr_write, e.rtr_read, e.rtr_send];
                assert_eq!(chosen.iter().filter(|c| **c).count(), 1);
                let theirs = conclude(&request, &reply, &POLICY).expect("agreed");
                assert_eq!(theirs.first_rtr, Some(rtr));
                // A choice that was not offered, or no A bit.
                let turned = Enhanced {
                    rtr_write: !words.rtr_write,
                    rtr_read: !words.rtr_read,
                    rtr_send: !words.rtr_send,
                    ..e
                };
                let reply = Reply { enhanced: Some(turned), ..reply };
                assert_eq!(conclude(&request, &reply, &POLICY), Err(Error::NoRtr));
                let silent =
                    Reply { enhanced: Some(Enhanced { peer_to_peer: false, ..e }), ..reply };
                assert_eq!(conclude(&request, &silent, &POLICY), Err(Error::NoRtr));
            }
            (Err(refused), None) => assert_eq!(refused.refusal, Refusal::NoRtr),
            (got, _) => panic!("offer {offer}: {got:?}"),
        }
    }
    assert_eq!(Error::NoRtr.terminate(), Some(Code::MPA_RTR));
}

/// RFC 5044 section 7.1.1: PD_Length is at most 512.
#[test]
fn the_limit_of_private_data_is_exact() {
    let request = Request { enhanced: None, ..POLICY.request(&[7; 512]) };
    let wire = request.encode().expect("fits");
    assert_eq!(frame_len(&wire, Kind::Request), Ok(Some(HEADER + 512)));
    assert_eq!(Request::decode(&wire), Ok(request));
}

/// RFC 6581 section 6: only the S bit says that the IRD and ORD words are there.
#[test]
fn without_s_the_private_data_is_all_the_consumers() {
    let request =
        Request { markers: true, crc: true, enhanced: None, ..POLICY.request(&[0xff; 8]) };
    let wire = request.encode().expect("fits");
    assert_eq!(wire[16..20], hex("C0 02 00 08"));
    assert_eq!(Request::decode(&wire), Ok(request));
}

/// Each flag of a reply stands for itself: R is not read from another bit, nor C or M.
#[test]
fn flags_of_a_reply_are_read_one_by_one() {
    for bits in 0..8u8 {
        let reply = Reply {
            revision: 1,
            markers: bits & 4 != 0,
            crc: bits & 2 != 0,
            reject: bits & 1 != 0,
            enhanced: None,
            private_data: vec![],
        };
        let mut wire = reply.encode().expect("fits");
        assert_eq!(wire[16], bits << 5);
        assert_eq!(Reply::decode(&wire), Ok(reply.clone()));
        // The reserved bits, and S before revision 2, say nothing.
        wire[16] |= 0x1f;
        assert_eq!(Reply::decode(&wire), Ok(reply));
    }
}

#[test]
fn errors_read_as_sentences() {
    for e in [
        Error::Key,
        Error::Length(600),
        Error::Truncated { wanted: 20, got: 3 },
        Error::NoDepthWords(2),
        Error::PrivateDataTooLong(600),
        Error::Depth(0x4000),
        Error::Revision(9),
        Error::Rejected,
        Error::Markers,
        Error::NotEnhanced,
        Error::NoCrc,
        Error::InsufficientIrd { wanted: 2, offered: 1 },
        Error::NoRtr,
    ] {
        assert!(e.to_string().len() > 10);
    }
}
