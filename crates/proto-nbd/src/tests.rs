use super::*;
use proptest::prelude::*;

/// A write as the kernel's driver sends it.
const WRITE: [u8; 28] = [
    0x25, 0x60, 0x95, 0x13, 0, 1, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 1, 0, 0, 0x10, 0, 0, 0, 0,
    4,
];

#[test]
fn the_bytes_of_requests_and_replies() {
    let r = Request::decode(&WRITE).unwrap();
    let cookie = [1, 2, 3, 4, 5, 6, 7, 8];
    assert_eq!(r, Request { op: Op::Write { fua: true }, cookie, at: 0x1_0000_1000, len: 4 });
    assert_eq!(r.encode(), WRITE);
    let op = |flags: u8, code: u8| {
        let mut b = WRITE;
        (b[5], b[7]) = (flags, code);
        Request::decode(&b).unwrap().op
    };
    assert_eq!(op(0, 0), Op::Read);
    assert_eq!(op(0, 2), Op::Disconnect);
    assert_eq!(op(0, 3), Op::Flush);
    assert_eq!(op(0, 4), Op::Trim { fua: false });
    assert_eq!(op(1, 4), Op::Trim { fua: true });
    assert_eq!(op(0, 5), Op::Cache);
    assert_eq!(op(0, 7), Op::BlockStatus { one: false });
    assert_eq!(op(8, 7), Op::BlockStatus { one: true });
    assert_eq!(op(0, 8), Op::Unknown(8));
    assert_eq!(op(2, 6), Op::WriteZeroes { fua: false, unmap: false });
    assert_eq!(op(1, 6), Op::WriteZeroes { fua: true, unmap: true });
    let mut bad = WRITE;
    bad[3] = 0x14;
    assert_eq!(Request::decode(&bad), Err(Broken { found: 0x2560_9514 }));
    assert_eq!(reply(cookie, 28), [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 28, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!([5, 28, 30, 61, -3].map(error_number), [5, 28, 1, 5, 5]);
}

#[test]
fn data_may_go_past() {
    let mut intake = Intake::new();
    let (item, rest) = intake.next(&WRITE).unwrap();
    assert!(matches!(item, Some(Item::Request(_))) && rest.is_empty());
    assert_eq!(intake.wanted(), 4);
    intake.passed(3);
    assert!(intake.is_within());
    assert_eq!(intake.next(&[9, 0x25]), Ok((Some(Item::Data(&[9])), &[0x25][..])));
    assert!(!intake.is_within());
    assert_eq!(intake.next(&[0x25]), Ok((None, &[][..])));
    assert!(intake.is_within());
}

fn request() -> impl Strategy<Value = Request> {
    let op = prop_oneof![
        Just(Op::Read),
        any::<bool>().prop_map(|fua| Op::Write { fua }),
        Just(Op::Flush),
        any::<bool>().prop_map(|fua| Op::Trim { fua }),
        any::<(bool, bool)>().prop_map(|(fua, unmap)| Op::WriteZeroes { fua, unmap }),
        (7u16..).prop_map(Op::Unknown),
        Just(Op::Disconnect),
    ];
    (op, any::<[u8; 8]>(), any::<u64>(), 0u32..200).prop_map(|(op, cookie, at, len)| Request {
        op,
        cookie,
        at,
        len,
    })
}

proptest! {
    #[test]
    fn every_stream_of_requests_is_understood(all in prop::collection::vec(request(), 1..8), seed: u8, noise in prop::collection::vec(any::<u8>(), 0..60)) {
        let mut data = vec![seed];
        for r in &all {
            data.extend(r.encode());
            data.extend((0..r.payload()).map(|i| i as u8));
        }
        prop_assert!(fuzzing::fuzz_stream(&data));
        data.extend(noise);
        prop_assert!(fuzzing::fuzz_stream(&data));
    }

    #[test]
    fn no_bytes_do_harm(data in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzzing::fuzz_stream(&data);
    }
}
