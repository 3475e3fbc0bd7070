//! What a receiver refuses, and how it says so.

use crate::rx::{MIN_STAGING, Receiver, Step};
use crate::terminate::Code;
use crate::{Fault, Op, Reason, tx};

fn untagged(op: Op, queue: u32, msn: u32, mo: u32, len: usize, last: bool) -> Vec<u8> {
    let h = tx::untagged_header(op, 0, queue, msn, mo, len, last);
    let (t, n) = tx::trailer(h.len() - 2 + len, None);
    [&h[..], &vec![0; len], &t[..n]].concat()
}

fn tagged(op: Op, stag: u32, to: u64, len: usize, last: bool) -> Vec<u8> {
    let h = tx::tagged_header(op, stag, to, len, last);
    let (t, n) = tx::trailer(h.len() - 2 + len, None);
    [&h[..], &vec![0; len], &t[..n]].concat()
}

/// Runs all but the last FPDU, which must fault.
fn fault(fpdus: &[Vec<u8>]) -> Fault {
    let mut rx = Receiver::new(false).with_send_limit(1000);
    let (last, good) = fpdus.split_last().expect("an FPDU");
    for f in good {
        assert_eq!(rx.next(f).expect("valid").0, f.len());
    }
    let fault = rx.next(last).expect_err("refused");
    assert_eq!(rx.next(last).expect_err("ended").reason(), Reason::Ended);
    fault
}

fn set(mut f: Vec<u8>, at: usize, byte: u8) -> Vec<u8> {
    f[at] = byte;
    f
}

#[test]
fn every_violation_has_its_reason_and_code() {
    use Op::{ReadRequest, ReadResponse, Send, SendSolicited, Terminate, Write};
    let send = || untagged(Send, 0, 1, 0, 8, true);
    let write = || tagged(Write, 7, 0x1000, 8, true);
    let read = || untagged(ReadRequest, 1, 1, 0, 28, true);
    let more = || tagged(Write, 7, 0x1000, 8, false);
    let cases: Vec<(Vec<Vec<u8>>, Reason, Code)> = vec![
        (vec![set(send(), 1, 17)], Reason::Length { ulpdu: 17, least: 18 }, Code::MPA_FRAMING),
        (vec![set(write(), 1, 13)], Reason::Length { ulpdu: 13, least: 14 }, Code::MPA_FRAMING),
        (
            vec![set(send(), 2, 0x42)],
            Reason::DdpVersion { got: 2, tagged: false },
            Code::DDP_UNTAGGED_VERSION,
        ),
        (
            vec![set(write(), 2, 0xc0)],
            Reason::DdpVersion { got: 0, tagged: true },
            Code::DDP_TAGGED_VERSION,
        ),
        (vec![set(send(), 3, 0x83)], Reason::RdmapVersion(2), Code::RDMAP_VERSION),
        (vec![set(send(), 3, 0x48)], Reason::Opcode(8), Code::RDMAP_OPCODE),
        (vec![set(send(), 3, 0x4f)], Reason::Opcode(15), Code::RDMAP_OPCODE),
        (
            vec![set(send(), 3, 0x40)],
            Reason::OpcodeTagged { op: Write, tagged: false },
            Code::RDMAP_OPCODE,
        ),
        (
            vec![set(write(), 3, 0x43)],
            Reason::OpcodeTagged { op: Send, tagged: true },
            Code::RDMAP_OPCODE,
        ),
        (vec![untagged(Send, 3, 1, 0, 8, true)], Reason::Queue(3), Code::DDP_QUEUE),
        (
            vec![untagged(Send, 1, 1, 0, 8, true)],
            Reason::OpcodeQueue { op: Send, queue: 1 },
            Code::RDMAP_OPCODE,
        ),
        (
            vec![untagged(ReadRequest, 0, 1, 0, 28, true)],
            Reason::OpcodeQueue { op: ReadRequest, queue: 0 },
            Code::RDMAP_OPCODE,
        ),
        (
            vec![untagged(Send, 0, 0, 0, 8, true)],
            Reason::Msn { queue: 0, got: 0, expected: 1 },
            Code::DDP_MSN,
        ),
        (vec![send(), send()], Reason::Msn { queue: 0, got: 1, expected: 2 }, Code::DDP_MSN),
        (vec![read(), read()], Reason::Msn { queue: 1, got: 1, expected: 2 }, Code::DDP_MSN),
        (
            vec![untagged(Send, 0, 1, 4, 8, true)],
            Reason::Offset { got: 4, expected: 0 },
            Code::DDP_OFFSET,
        ),
        (
            vec![untagged(Send, 0, 1, 0, 8, false), untagged(Send, 0, 1, 12, 8, true)],
            Reason::Offset { got: 12, expected: 8 },
            Code::DDP_OFFSET,
        ),
        (
            vec![untagged(Send, 0, 1, 0, 8, false), untagged(SendSolicited, 0, 1, 8, 8, true)],
            Reason::OpcodeChanged { got: SendSolicited, expected: Send },
            Code::RDMAP_OPCODE,
        ),
        (
            vec![untagged(Send, 0, 1, 0, 600, false), untagged(Send, 0, 1, 600, 401, true)],
            Reason::TooLong { len: 1001, limit: 1000 },
            Code::DDP_TOO_LONG,
        ),
        (
            vec![untagged(ReadRequest, 1, 1, 0, 28, false)],
            Reason::NotSingle(ReadRequest),
            Code::DDP_TOO_LONG,
        ),
        (
            vec![untagged(ReadRequest, 1, 1, 8, 28, true)],
            Reason::Offset { got: 8, expected: 0 },
            Code::DDP_OFFSET,
        ),
        (
            vec![untagged(ReadRequest, 1, 1, 0, 27, true)],
            Reason::BodyLength { op: ReadRequest, got: 27 },
            Code::RDMAP_UNSPECIFIED,
        ),
        (
            vec![untagged(ReadRequest, 1, 1, 0, 29, true)],
            Reason::BodyLength { op: ReadRequest, got: 29 },
            Code::RDMAP_UNSPECIFIED,
        ),
        (
            vec![untagged(Terminate, 2, 1, 0, 3, true)],
            Reason::BodyLength { op: Terminate, got: 3 },
            Code::RDMAP_UNSPECIFIED,
        ),
        (
            vec![untagged(Terminate, 2, 2, 0, 4, true)],
            Reason::Msn { queue: 2, got: 2, expected: 1 },
            Code::DDP_MSN,
        ),
        (
            vec![more(), tagged(Write, 8, 0x1008, 8, true)],
            Reason::Interleaved { stag: 8, expected: 7 },
            Code::DDP_STAG,
        ),
        (
            vec![more(), tagged(Write, 7, 0x1010, 8, true)],
            Reason::Gap { to: 0x1010, expected: 0x1008 },
            Code::DDP_BOUNDS,
        ),
        (
            vec![more(), tagged(Write, 7, 0x1000, 8, true)],
            Reason::Gap { to: 0x1000, expected: 0x1008 },
            Code::DDP_BOUNDS,
        ),
        (
            vec![more(), tagged(ReadResponse, 7, 0x1008, 8, true)],
            Reason::OpcodeChanged { got: ReadResponse, expected: Write },
            Code::RDMAP_OPCODE,
        ),
        (vec![tagged(Write, 7, u64::MAX - 6, 8, true)], Reason::Wrap, Code::DDP_WRAP),
        (
            vec![tagged(Write, 7, u64::MAX - 7, 8, false), tagged(Write, 7, 0, 1, true)],
            Reason::Wrap,
            Code::DDP_WRAP,
        ),
    ];
    for (fpdus, reason, code) in cases {
        let fault = fault(&fpdus);
        assert_eq!(fault.reason(), reason);
        assert_eq!(fault.code(), code, "{reason:?}");
        assert!(fpdus.last().expect("an FPDU").starts_with(fault.header()));
        assert!(fault.header().len() >= 16 && !fault.to_string().is_empty());
    }
}

/// A bad header is found before its payload has come, when the FPDU is too large to wait for.
#[test]
fn large_fpdus_are_refused_by_their_header() {
    let f = untagged(Op::Send, 0, 2, 0, 50_000, true);
    let mut rx = Receiver::new(true);
    assert_eq!(rx.next(&f[..19]), Ok((0, Step::More(1))));
    let fault = rx.next(&f[..20]).expect_err("refused");
    assert_eq!(fault.reason(), Reason::Msn { queue: 0, got: 2, expected: 1 });
    assert_eq!(fault.header(), &f[..20]);
}

#[test]
fn the_send_limit_is_exact() {
    let mut rx = Receiver::new(false).with_send_limit(1000);
    for (msn, mo, len, last) in [(1, 0, 600, false), (1, 600, 400, true), (2, 0, 1000, true)] {
        assert!(rx.next(&untagged(Op::Send, 0, msn, mo, len, last)).is_ok());
    }
    let fault = rx.next(&untagged(Op::Send, 0, 3, 0, 1001, true)).expect_err("refused");
    assert_eq!(fault.reason(), Reason::TooLong { len: 1001, limit: 1000 });
}

#[test]
fn reserved_bits_are_not_checked() {
    let mut f = untagged(Op::Send, 0, 1, 0, 8, true);
    f[2] |= 0x3c;
    f[3] |= 0x30;
    assert!(Receiver::new(false).next(&f).is_ok());
}

#[test]
fn wrong_crc_in_one_piece_and_in_parts() {
    let payload = vec![3; 40_000];
    let h = tx::tagged_header(Op::Write, 1, 2, payload.len(), true);
    let mut sum = tx::FpduCrc::new(&h);
    sum.update(&payload);
    let right = sum.finish(h.len() - 2 + payload.len());
    let (t, n) = tx::trailer(h.len() - 2 + payload.len(), Some(right ^ 1));
    let wire = [&h[..], &payload, &t[..n]].concat();
    let reason = Reason::Crc { got: right ^ 1, expected: right };

    let fault = Receiver::new(true).next(&wire).expect_err("refused");
    assert_eq!((fault.reason(), fault.code()), (reason, Code::MPA_CRC));
    assert_eq!(fault.header(), h);

    let mut rx = Receiver::new(true);
    assert_eq!(rx.next(&wire[..16]), Ok((0, Step::More(4))));
    assert!(matches!(rx.next(&wire[..20]), Ok((20, Step::Payload { len: 4, last: false, .. }))));
    assert_eq!(rx.direct().map(|d| (d.offset, d.remaining)), Some((4, 39_996)));
    rx.direct_done(&payload[4..1234]);
    assert_eq!(rx.direct().map(|d| (d.offset, d.remaining)), Some((1234, 38_766)));
    rx.direct_done(&payload[1234..]);
    assert_eq!(rx.direct(), None);
    assert_eq!(rx.next(&[]), Ok((0, Step::More(n))));
    let fault = rx.next(&t[..n]).expect_err("refused");
    assert_eq!((fault.reason(), fault.header()), (reason, &h[..]));

    assert!(Receiver::new(false).next(&wire).is_ok(), "CRC off: the field is ignored");
}

#[test]
fn the_end_of_a_segment_in_parts_is_one_empty_step() {
    let wire = untagged(Op::Send, 0, 1, 0, 40_001, true);
    let mut rx = Receiver::new(false);
    let Ok((n, Step::Payload { len, remaining, last, .. })) = rx.next(&wire[..40_021]) else {
        panic!("a part");
    };
    assert_eq!((n, len, remaining, last), (40_021, 40_001, 0, false));
    assert_eq!((rx.direct(), rx.at_boundary()), (None, false));
    assert_eq!(rx.next(&wire[40_021..40_027]), Ok((0, Step::More(1))));
    let Ok((n, Step::Payload { len, offset, remaining, last, .. })) = rx.next(&wire[40_021..])
    else {
        panic!("the end");
    };
    assert_eq!((n, len, offset, remaining, last), (7, 0, 40_001, 0, true));
    assert!(rx.at_boundary());
}

#[test]
fn small_fpdus_come_whole() {
    let len = MIN_STAGING - 24;
    let wire = untagged(Op::Send, 0, 1, 0, len, true);
    assert_eq!(wire.len(), MIN_STAGING);
    let mut rx = Receiver::new(false);
    for have in [0, 1, 19, 20, 500, MIN_STAGING - 1] {
        let Ok((0, Step::More(n))) = rx.next(&wire[..have]) else { panic!("more") };
        assert!(n >= 1 && have + n <= MIN_STAGING);
        // Once the header is there, all that is missing is asked for.
        assert!(have < 20 || have + n == MIN_STAGING);
    }
    assert!(matches!(rx.next(&wire), Ok((MIN_STAGING, Step::Payload { last: true, .. }))));
}

#[test]
fn message_numbers_wrap() {
    // 2^32 messages would take too long: the sequence is checked through its own arithmetic by
    // starting near the end.
    let mut rx = Receiver::new(false);
    rx.start_at(u32::MAX, u32::MAX);
    for msn in [u32::MAX, 0, 1] {
        assert!(rx.next(&untagged(Op::Send, 0, msn, 0, 8, true)).is_ok());
        assert!(rx.next(&untagged(Op::ReadRequest, 1, msn, 0, 28, true)).is_ok());
    }
}

/// A Write whose FPDU is too large to wait for, of which 4 bytes of payload have come.
fn in_parts(len: usize) -> Receiver {
    let wire = tagged(Op::Write, 1, 0, len, true);
    let mut rx = Receiver::new(false);
    assert!(matches!(rx.next(&wire[..20]), Ok((20, Step::Payload { len: 4, .. }))));
    rx
}

#[test]
#[should_panic(expected = "beyond the segment")]
fn placing_too_much_is_a_defect_of_the_caller() {
    let mut rx = in_parts(40_000);
    rx.direct_skip(1000);
    rx.direct_done(&[0; 40_000 - 4 - 1000 + 1]);
}

#[test]
fn all_that_was_named_may_be_placed() {
    let mut rx = in_parts(40_000);
    rx.direct_skip(1000);
    rx.direct_done(&[0; 40_000 - 4 - 1000]);
    assert_eq!((rx.direct(), rx.at_boundary()), (None, false), "the trailer is still to come");
}

#[test]
fn a_receiver_knows_whether_crcs_were_agreed() {
    assert!(Receiver::new(true).crc() && !Receiver::new(false).crc());
}

/// Who waits for as many bytes as `More` says waits for nothing that the peer may not send: the least FPDU is 20 bytes.
#[test]
fn the_least_fpdu_is_waited_for_exactly() {
    let wire = tagged(Op::Write, 0, 0, 0, true);
    let mut rx = Receiver::new(false);
    for have in 0..20 {
        assert_eq!(rx.next(&wire[..have]), Ok((0, Step::More(20 - have))));
    }
    assert!(matches!(rx.next(&wire), Ok((20, Step::Payload { last: true, .. }))));
}

/// RFC 5040 section 4.3, table of opcodes: which of them send, invalidate, and ask for a solicited event.
#[test]
fn opcodes_mean_what_the_table_says() {
    let of = |o: u8| {
        let op = Op::from_bits(o).expect("an opcode");
        [op.is_tagged(), op.is_send(), op.invalidates(), op.is_solicited()].map(u8::from)
    };
    assert_eq!([of(0), of(1), of(2)], [[1, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]);
    assert_eq!([of(3), of(4)], [[0, 1, 0, 0], [0, 1, 1, 0]]);
    assert_eq!([of(5), of(6)], [[0, 1, 0, 1], [0, 1, 1, 1]]);
    assert_eq!(of(7), [0, 0, 0, 0]);
    assert!((8..=255).all(|o| Op::from_bits(o).is_none()));
}
