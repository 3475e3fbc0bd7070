use super::*;
use proptest::prelude::*;

const TAG: Tag = Tag(0x0807_0605_0403_0201);

#[test]
fn offset_by_offset() {
    let sense = [0x70, 0, 5, 0x11, 0x22];
    let r = Response {
        tag: TAG,
        status: 2,
        delta: 3,
        solicited: true,
        code: Some(RspCode::TmfFailed),
        out_residual: Residual::Under(0x0102_0304),
        in_residual: Residual::Over(0x0506_0708),
        sense: &sense,
    };
    let mut b = [0xff; 64];
    assert_eq!(r.encode(&mut b, 512), Ok(45));
    assert_eq!(b[0..4], [0xc1, 1, 0, 0]);
    assert_eq!(b[4..8], [0, 0, 0, 3]);
    assert_eq!(b[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(b[16..18], [0, 0]);
    assert_eq!(b[18], 0x01 | 0x02 | 0x08 | 0x10);
    assert_eq!(b[19], 2);
    assert_eq!(b[20..24], [1, 2, 3, 4]);
    assert_eq!(b[24..28], [5, 6, 7, 8]);
    assert_eq!(b[28..32], [0, 0, 0, 5]);
    assert_eq!(b[32..36], [0, 0, 0, 4]);
    assert_eq!(b[36..40], [0, 0, 0, 5]);
    assert_eq!(b[40..45], sense);
    assert_eq!(b[45..], [0xff; 19]);
    assert_eq!(Response::decode(&b[..45]), Ok(r));
}

/// The response that says no more than GOOD, on the short way that nearly all take.
#[test]
fn a_plain_response_offset_by_offset() {
    let mut want = [0; 36];
    want[..2].copy_from_slice(&[0xc1, 1]);
    want[4..8].copy_from_slice(&[0, 0, 0, 3]);
    want[8..16].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(Response::good(TAG, 3, true), want);
    want[1] = 0;
    want[4..8].fill(0xff);
    assert_eq!(Response::good(TAG, -1, false), want);
    want[19] = 0x18;
    let mut b = [0xff; 40];
    assert_eq!(Response::scsi(TAG, 0x18, -1).encode(&mut b, 512), Ok(36));
    assert_eq!((&b[..36], &b[36..]), (&want[..], &[0xff; 4][..]));
}

#[test]
fn every_valid_bit() {
    let bits = |r: Response<'_>| {
        let mut b = [0; 64];
        let n = r.encode(&mut b, 64).unwrap();
        assert_eq!(Response::decode(&b[..n]), Ok(r));
        b[18]
    };
    let plain = Response::scsi(TAG, 0, 1);
    assert_eq!(bits(plain), 0);
    assert_eq!(bits(Response::code(TAG, RspCode::Complete, 1)), 0x01);
    assert_eq!(bits(plain.with_sense(&[1])), 0x02);
    let both = |data_out, data_in| plain.with_residuals(Residuals { data_out, data_in });
    assert_eq!(bits(both(Residual::Over(1), Residual::None)), 0x04);
    assert_eq!(bits(both(Residual::Under(1), Residual::None)), 0x08);
    assert_eq!(bits(both(Residual::None, Residual::Over(1))), 0x10);
    assert_eq!(bits(both(Residual::None, Residual::Under(1))), 0x20);
    for (code, byte) in [
        (RspCode::Complete, 0),
        (RspCode::FieldsInvalid, 2),
        (RspCode::TmfUnsupported, 4),
        (RspCode::TmfFailed, 5),
        (RspCode::Other(9), 9),
    ] {
        let mut b = [0; 40];
        assert_eq!(Response::code(TAG, code, -1).encode(&mut b, 40), Ok(40));
        assert_eq!((b[39], &b[4..8]), (byte, &[0xff; 4][..]));
        assert_eq!(Response::decode(&b).unwrap().code, Some(code));
        assert_eq!(RspCode::from_code(byte), code);
    }
}

#[test]
fn sense_is_cut_to_the_negotiated_length() {
    let sense = [7; 100];
    let mut b = [0; 512];
    let r = Response::scsi(TAG, 2, 1).with_sense(&sense);
    for max in 36..200 {
        let n = r.encode(&mut b, max).unwrap();
        assert_eq!(n, max.min(136));
        let back = Response::decode(&b[..n]).unwrap();
        assert_eq!(back.sense.len(), n - 36);
        assert_eq!(b[18] & 2 != 0, n > 36, "SNSVALID only with sense");
    }
    assert_eq!(r.encode(&mut b[..50], 512), Ok(50));
    let small = |needed, got| Err(EncodeError::TooSmall { needed, got });
    assert_eq!(r.encode(&mut b, 35), small(36, 35));
    assert_eq!(Response::code(TAG, RspCode::Complete, 0).encode(&mut b, 39), small(40, 39));
}

#[test]
fn a_targets_mistakes_are_read_safely() {
    let mut b = [0; 48];
    b[0] = 0xc1;
    for n in 0..36 {
        assert!(matches!(Response::decode(&b[..n]), Err(IuError::Short { needed: 36, .. })));
    }
    // Lengths without valid bits count as nothing.
    b[28..36].fill(0xff);
    let r = Response::decode(&b).unwrap();
    assert_eq!((r.code, r.sense), (None, &[][..]));
    // Sense longer than the IU is cut; response data longer than the IU is an error.
    b[18] = 0x02;
    assert_eq!(Response::decode(&b).unwrap().sense.len(), 12);
    b[18] = 0x01;
    assert!(matches!(Response::decode(&b), Err(IuError::Short { iu: IuType::Response, .. })));
    // Response data too short for a code, and with room behind the code.
    b[32..36].copy_from_slice(&[0, 0, 0, 3]);
    assert_eq!(Response::decode(&b).unwrap().code, None);
    b[32..36].copy_from_slice(&[0, 0, 0, 8]);
    b[39] = 4;
    b[28..32].copy_from_slice(&[0, 0, 0, 2]);
    b[18] = 0x03;
    b[44..46].copy_from_slice(&[0xaa, 0xbb]);
    let r = Response::decode(&b).unwrap();
    assert_eq!((r.code, r.sense), (Some(RspCode::TmfUnsupported), &[0xaa, 0xbb][..]));
    // Both residual bits: underflow.
    b[18] = 0x3c;
    b[20..24].copy_from_slice(&[0, 0, 0, 1]);
    b[24..28].copy_from_slice(&[0, 0, 0, 2]);
    let r = Response::decode(&b).unwrap();
    assert_eq!((r.out_residual, r.in_residual), (Residual::Under(1), Residual::Under(2)));
}

proptest! {
    #[test]
    fn plain_responses_are_read_and_written_as_others_are(
        mut iu in proptest::collection::vec(any::<u8>(), 36..80),
        valid in any::<bool>(),
        ids in (any::<u64>(), any::<u8>(), any::<i32>(), any::<bool>()),
    ) {
        if !valid {
            iu[18] = 0;
        }
        iu[0] = 0xc1;
        let whole = Response::decode(&iu);
        let says_more = iu[18] != 0;
        prop_assert_eq!(Plain::decode(&iu).is_none(), says_more);
        if let Some(p) = Plain::decode(&iu) {
            let mut r = Response::scsi(p.tag, p.status, p.delta);
            r.solicited = p.solicited;
            prop_assert_eq!(Ok(r), whole);
        }
        iu[0] = 0x02;
        prop_assert_eq!(Plain::decode(&iu), None);
        let (tag, status, delta, solicited) = ids;
        let mut r = Response::scsi(Tag(tag), status, delta);
        r.solicited = solicited;
        let mut out = [0xff; 64];
        let n = r.encode(&mut out, 64).unwrap();
        prop_assert_eq!(Response::decode(&out[..n]), Ok(r));
        prop_assert_eq!(&out[..n], &r.plain()[..]);
        prop_assert_eq!(r.encode(&mut out, 35).is_err(), r.encode(&mut out[..35], 64).is_err());
    }
}
