use super::*;
use crate::rx::{Receiver, Segment, Step};
use crate::stag::Protection;
use crate::tests::hex;
use crate::{Fault, Op, Reason, read_queue, tx};

/// Seen from a live kernel: layer 0, type 2, code 7, with M and D, in siw's order.
#[test]
fn siw_order_is_told_by_its_flags() {
    let header = tx::untagged_header(Op::ReadRequest, 0, 1, 1, 0, 28, true);
    let body = [&hex("20 07 03 00")[..], &header].concat();
    let info = TerminateInfo::decode(&body).expect("a Terminate");
    assert_eq!((info.code, info.order, info.other), (Code::RDMAP_STREAM, Order::Siw, None));
    assert_eq!(info.segment_len, Some(46));
    assert_eq!(info.header(), &header[2..]);
    let text = info.to_string();
    assert!(text.contains("catastrophic error of this stream"), "{text}");
    assert!(text.contains("20 07 03 00"), "{text}");
}

#[test]
fn without_flags_the_defined_reading_wins() {
    // Layer 1 type 2 code 3 (MSN); swapped it would be layer 2 type 1, which nobody defines.
    let info = TerminateInfo::decode(&hex("12 03 00 00")).expect("a Terminate");
    assert_eq!((info.code, info.order, info.other), (Code::DDP_MSN, Order::Rfc, None));
    let info = TerminateInfo::decode(&hex("21 03 00 00")).expect("a Terminate");
    assert_eq!((info.code, info.order, info.other), (Code::DDP_MSN, Order::Siw, None));
    // Both readings are defined: both are shown.
    let info = TerminateInfo::decode(&hex("20 07 00 00")).expect("a Terminate");
    assert_eq!((info.code, info.other), (Code::MPA_RTR, Some(Code::RDMAP_STREAM)));
    assert!(info.to_string().contains("swapped"));
    // Both readings are the same: there is no other.
    let info = TerminateInfo::decode(&hex("11 00 00 00")).expect("a Terminate");
    assert_eq!((info.code, info.order, info.other), (Code::DDP_STAG, Order::Rfc, None));
    // Neither is: as the standard has it.
    let info = TerminateInfo::decode(&hex("9a 55 00 00")).expect("a Terminate");
    assert_eq!(info.code, Code { layer: 9, etype: 10, code: 0x55 });
    assert!(info.to_string().contains("undefined"));
}

#[test]
fn short_and_cut_bodies() {
    assert_eq!(TerminateInfo::decode(&[0; 3]), None);
    let info = TerminateInfo::decode(&hex("02 06 E0 00")).expect("control bytes alone");
    assert_eq!((info.segment_len, info.header()), (None, &[][..]));
    let info = TerminateInfo::decode(&hex("02 06 C0 00 0016 41 43 00")).expect("cut header");
    assert_eq!((info.segment_len, info.header()), (Some(0x16), &[][..]));
}

/// The flags decide before the code does: they lie at opposite ends of their byte.
#[test]
fn flags_decide_the_order_of_any_code() {
    // Both readings of 20 07 are defined; of 21 03 and 12 03 only the one that the flags speak against.
    for (bytes, order, code) in [
        ("20 07 C0 00", Order::Rfc, Code::MPA_RTR),
        ("20 07 03 00", Order::Siw, Code::RDMAP_STREAM),
        ("21 03 40 00", Order::Rfc, Code { layer: 2, etype: 1, code: 3 }),
        ("12 03 02 00", Order::Siw, Code { layer: 2, etype: 1, code: 3 }),
    ] {
        let info = TerminateInfo::decode(&hex(bytes)).expect("a Terminate");
        assert_eq!((info.order, info.code, info.other), (order, code, None), "{bytes}");
    }
}

/// RFC 5040 section 4.8: M says that the length is there, D the header, R the Read Request's body.
#[test]
fn each_flag_announces_its_own_part() {
    let rest = tx::read_request(1, 2, 3, 4, 5, 6);
    let with = |control: &str, rest: &[u8]| {
        let body = [&hex(control)[..], rest].concat();
        let info = TerminateInfo::decode(&body).expect("a Terminate");
        (info.segment_len, info.header().to_vec())
    };
    for (none, m, d, md, mdr) in [
        ("02 06 00 00", "02 06 80 00", "02 06 40 00", "02 06 C0 00", "02 06 E0 00"),
        ("20 06 00 00", "20 06 01 00", "20 06 02 00", "20 06 03 00", "20 06 07 00"),
    ] {
        assert_eq!(with(none, &rest), (None, vec![]));
        assert_eq!(with(m, &rest), (Some(46), vec![]));
        assert_eq!(with(d, &rest[2..]), (None, rest[2..20].to_vec()));
        assert_eq!(with(md, &rest), (Some(46), rest[2..20].to_vec()));
        assert_eq!(with(mdr, &rest), (Some(46), rest[2..].to_vec()));
    }
}

/// Every code, either order, with every kind of offending header, through the wire.
#[test]
fn frames_read_back() {
    let untagged = tx::untagged_header(Op::Send, 0, 0, 1, 0, 4, true);
    let tagged = tx::tagged_header(Op::Write, 1, 2, 3, true);
    let read = tx::read_request(1, 2, 3, 4, 5, 6);
    for header in [&untagged[..], &tagged, &read] {
        for order in [Order::Rfc, Order::Siw] {
            for packed in 0..=0xfff_u16 {
                let code = Code { layer: 0, etype: (packed >> 8) as u8, code: packed as u8 };
                let code = Code { layer: code.etype & 3, etype: code.etype >> 2, ..code };
                if code.text().is_none() {
                    continue;
                }
                let crc = packed & 1 != 0;
                let frame = tx::terminate_with(code, header, order, crc);
                let Ok((n, Step::Terminate(info))) = Receiver::new(crc).next(frame.as_bytes())
                else {
                    panic!("{code}");
                };
                assert_eq!(n, frame.as_bytes().len());
                assert_eq!((info.code, info.order), (code, order));
                assert_eq!(info.header(), &header[2..]);
                assert_eq!(info.segment_len, Some(u16::from_be_bytes([header[0], header[1]])));
            }
        }
    }
}

#[test]
fn a_frame_without_header() {
    let frame = tx::terminate_with(Code::MPA_STARTUP, &[], Order::Rfc, false);
    assert_eq!(
        frame.as_bytes(),
        hex("0016 41 47 00000000 00000002 00000001 00000000 20040000 00000000")
    );
}

/// RFC 5040 section 7: a Write's target is DDP's business, a READ's source RDMAP's.
#[test]
fn protection_codes_depend_on_the_operation() {
    let write =
        Segment { op: Op::Write, last_segment: true, stag: 1, to: 2, msn: 0, mo: 0, total: 3 };
    let read = read_queue::Request { sink_stag: 1, sink_to: 2, size: 3, src_stag: 4, src_to: 5 };
    let stag = 1;
    for (p, of_write, of_read) in [
        (Protection::InvalidStag { stag }, Code::DDP_STAG, Code::RDMAP_STAG),
        (Protection::Bounds { stag, to: 2, len: 3 }, Code::DDP_BOUNDS, Code::RDMAP_BOUNDS),
        (Protection::Wrap { stag }, Code::DDP_WRAP, Code::RDMAP_WRAP),
        (Protection::Access { stag }, Code::RDMAP_ACCESS, Code::RDMAP_ACCESS),
    ] {
        let reason = Reason::Protection(p);
        let fault = Fault::in_segment(reason, &write);
        assert_eq!(fault.code(), of_write);
        assert_eq!(fault.header(), tx::tagged_header(Op::Write, 1, 2, 3, true));
        let fault = Fault::in_read(reason, 9, &read);
        assert_eq!(fault.code(), of_read);
        assert_eq!(fault.header(), tx::read_request(9, 1, 2, 3, 4, 5));
    }
    let send = Segment { op: Op::Send, msn: 7, to: 0, ..write };
    let fault = Fault::in_segment(Reason::NoReceive, &send);
    assert_eq!(fault.code(), Code::DDP_NO_BUFFER);
    assert_eq!(fault.header(), tx::untagged_header(Op::Send, 1, 0, 7, 0, 3, true));
}
