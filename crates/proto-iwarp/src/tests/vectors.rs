//! The vectors of the facts sheet, and of a live kernel.

use crate::Op;
use crate::rx::{Receiver, Segment, Step};
use crate::tests::hex;
use crate::tx;

#[test]
fn send_abcd() {
    let wire = hex("0016 41 43 00000000 00000000 00000001 00000000 41424344 00000000");
    let h = tx::untagged_header(Op::Send, 0, 0, 1, 0, 4, true);
    let (t, n) = tx::trailer(22, None);
    assert_eq!([&h[..], b"ABCD", &t[..n]].concat(), wire);
    let seg = Segment { op: Op::Send, last_segment: true, stag: 0, to: 0, msn: 1, mo: 0, total: 4 };
    assert_eq!(
        Receiver::new(false).next(&wire),
        Ok((28, Step::Payload { seg, start: 20, len: 4, offset: 0, remaining: 0, last: true }))
    );
}

#[test]
fn zero_length_write() {
    let wire = hex("000E C1 40 00000000 0000000000000000 00000000");
    let h = tx::tagged_header(Op::Write, 0, 0, 0, true);
    let (t, n) = tx::trailer(14, None);
    assert_eq!([&h[..], &t[..n]].concat(), wire);
    let seg =
        Segment { op: Op::Write, last_segment: true, stag: 0, to: 0, msn: 0, mo: 0, total: 0 };
    assert_eq!(
        Receiver::new(false).next(&wire),
        Ok((20, Step::Payload { seg, start: 16, len: 0, offset: 0, remaining: 0, last: true }))
    );
}

#[test]
fn read_request() {
    let wire =
        hex("002E 41 41 00000000 00000001 00000001 00000000 00000001 0000000000000000 00001000 \
         00001234 0000000000010000 00000000");
    let f = tx::read_request(1, 1, 0, 4096, 0x1234, 0x10000);
    let (t, n) = tx::trailer(46, None);
    assert_eq!([&f[..], &t[..n]].concat(), wire);
    let step = Step::ReadRequest {
        sink_stag: 1,
        sink_to: 0,
        size: 4096,
        src_stag: 0x1234,
        src_to: 0x10000,
    };
    assert_eq!(Receiver::new(false).next(&wire), Ok((52, step)));
}

/// "123456789" as payload would need a header, so the check value is placed by hand.
#[test]
fn crc_stands_least_significant_byte_first() {
    let (t, n) = tx::trailer(22, Some(weir_codec::crc32c(b"123456789")));
    assert_eq!(t[..n], hex("839206E3"));
}

#[test]
fn padding_fills_to_four() {
    for ulpdu in 14..40 {
        let (t, n) = tx::trailer(ulpdu, Some(0x0403_0201));
        assert_eq!((2 + ulpdu + n) % 4, 0);
        assert!((4..=tx::MAX_TRAILER).contains(&n));
        assert!(t[..n - 4].iter().all(|b| *b == 0));
        assert_eq!(t[n - 4..n], [1, 2, 3, 4]);
    }
}

/// The trailer's CRC covers header, payload and padding.
#[test]
fn running_crc_equals_the_whole() {
    for len in (0..9).chain(100..112).chain(548..560).chain([4096]) {
        let payload = vec![0xa5; len];
        let h = tx::untagged_header(Op::SendInvalidate, 77, 0, 1, 0, len, true);
        let mut sum = tx::FpduCrc::new(&h);
        sum.update(&payload);
        assert_eq!(sum.clone().finish(18 + len), tx::crc(&h, &payload));
        let (t, n) = sum.trailer(18 + len);
        let wire = [&h[..], &payload, &t[..n]].concat();
        let crc = weir_codec::crc32c(&wire[..wire.len() - 4]);
        assert_eq!(wire[wire.len() - 4..], crc.to_le_bytes());
        assert!(matches!(
            Receiver::new(true).next(&wire),
            Ok((used, Step::Payload { last: true, .. })) if used == wire.len()
        ));
    }
}

#[test]
fn largest_fpdu_goes_through() {
    let payload = vec![7; tx::MAX_TAGGED_PAYLOAD];
    let h = tx::tagged_header(Op::Write, 5, 6, payload.len(), true);
    assert_eq!(h[..2], [0xff, 0xff]);
    let (t, n) = tx::trailer(tx::MAX_ULPDU, None);
    let wire = [&h[..], &payload, &t[..n]].concat();
    assert!(matches!(
        Receiver::new(false).next(&wire),
        Ok((used, Step::Payload { last: true, .. })) if used == wire.len()
    ));
}

/// RFC 5044 section 4.1: ULPDU_Length has 16 bits, so an untagged segment holds 65517 bytes of payload.
#[test]
fn largest_untagged_fpdu_goes_through() {
    let payload = vec![7; 65_517];
    let h = tx::untagged_header(Op::Send, 0, 0, 1, 0, payload.len(), true);
    assert_eq!(h[..2], [0xff, 0xff]);
    let (t, n) = tx::trailer(tx::MAX_ULPDU, None);
    let wire = [&h[..], &payload, &t[..n]].concat();
    assert!(matches!(
        Receiver::new(false).next(&wire),
        Ok((used, Step::Payload { last: true, .. })) if used == wire.len()
    ));
}

#[test]
#[should_panic(expected = "untagged payload of 65518 bytes")]
fn too_large_an_untagged_payload_is_refused() {
    tx::untagged_header(Op::Send, 0, 0, 1, 0, 65_518, true);
}

#[test]
#[should_panic(expected = "tagged payload of 65522 bytes")]
fn too_large_a_payload_is_refused() {
    tx::tagged_header(Op::Write, 5, 6, tx::MAX_TAGGED_PAYLOAD + 1, true);
}
