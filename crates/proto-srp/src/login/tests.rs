use proptest::prelude::*;

use super::*;

fn linux(tag: u64) -> LoginRequest {
    LoginRequest {
        tag: Tag(tag),
        request_iu_len: 8260,
        formats: BufferFormats::BOTH,
        action: MultiChannelAction::Independent,
        logout_solicited: false,
        credit_solicited: false,
        event_solicited: false,
        immediate: true,
        immediate_offset: 68,
        initiator: PortId::new(0x1011_1213_1415_1617, 0x2021_2223_2425_2627),
        target: PortId::new(0x3031_3233_3435_3637, 0x4041_4243_4445_4647),
    }
}

const INITIATOR: [u8; 16] = *b"\x10\x11\x12\x13\x14\x15\x16\x17\x20\x21\x22\x23\x24\x25\x26\x27";
const TARGET: [u8; 16] = *b"\x30\x31\x32\x33\x34\x35\x36\x37\x40\x41\x42\x43\x44\x45\x46\x47";

#[test]
fn ib_cm_form_offset_by_offset() {
    let mut b = [0xff; 70];
    assert_eq!(linux(0x0807_0605_0403_0201).encode(Form::IbCm, &mut b), Ok(64));
    assert_eq!(b[0], 0);
    assert_eq!(b[1..8], [0; 7]);
    assert_eq!(b[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(b[16..20], [0, 0, 0x20, 0x44]);
    assert_eq!(b[20..24], [0; 4]);
    assert_eq!(b[24..26], [0, 6]);
    assert_eq!(b[26], 0x81);
    assert_eq!(b[27], 0);
    assert_eq!(b[28..30], [0, 68]);
    assert_eq!(b[30..32], [0; 2]);
    assert_eq!(b[32..48], INITIATOR);
    assert_eq!(b[48..64], TARGET);
    assert_eq!(b[64..], [0xff; 6], "nothing behind the IU is touched");
}

#[test]
fn rdma_cm_form_offset_by_offset() {
    let mut b = [0xff; 60];
    assert_eq!(linux(0x0807_0605_0403_0201).encode(Form::RdmaCm, &mut b), Ok(56));
    assert_eq!(b[0..8], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(b[8..10], [0, 6]);
    assert_eq!(b[10], 0x81);
    assert_eq!(b[11], 0);
    assert_eq!(b[12..16], [0, 0, 0x20, 0x44]);
    assert_eq!(b[16..32], INITIATOR);
    assert_eq!(b[32..48], TARGET);
    assert_eq!(b[48..50], [0, 68]);
    assert_eq!(b[50..56], [0; 6]);
    assert_eq!(b[56..], [0xff; 4]);
}

#[test]
fn every_flag_has_its_bit() {
    for form in [Form::IbCm, Form::RdmaCm] {
        let at = if form == Form::IbCm { 26 } else { 10 };
        let decode = |flags: u8| {
            let mut b = [0; 64];
            linux(0).encode(form, &mut b).unwrap();
            b[at] = flags;
            LoginRequest::decode(&b, form).unwrap()
        };
        assert_eq!(decode(0x00).action, MultiChannelAction::Terminate);
        assert_eq!(decode(0x01).action, MultiChannelAction::Independent);
        assert_eq!(decode(0x02).action, MultiChannelAction::Reserved(2));
        assert_eq!(decode(0x03).action, MultiChannelAction::Reserved(3));
        assert!(decode(0x10).logout_solicited && !decode(!0x10).logout_solicited);
        assert!(decode(0x20).credit_solicited && !decode(!0x20).credit_solicited);
        assert!(decode(0x40).event_solicited && !decode(!0x40).event_solicited);
        assert!(decode(0x80).immediate && !decode(!0x80).immediate);
        assert_eq!(decode(0x80).immediate_offset, 68);
        assert_eq!(decode(0x00).immediate_offset, 0, "reserved before SRP-2");
        // Bits 2 and 3 are reserved.
        assert_eq!(decode(0x8c), decode(0x80));
    }
}

#[test]
fn short_is_an_error_and_padding_is_not() {
    for form in [Form::IbCm, Form::RdmaCm] {
        let mut b = [0; 200];
        let n = linux(9).encode(form, &mut b).unwrap();
        assert_eq!(LoginRequest::decode(&b, form), Ok(linux(9)));
        for len in 0..n {
            let short = Err(LoginError::Short { needed: n, got: len });
            assert_eq!(LoginRequest::decode(&b[..len], form), short);
            let needed = EncodeError::TooSmall { needed: n, got: len };
            assert_eq!(linux(9).encode(form, &mut [0; 64][..len]), Err(needed));
        }
        b[if form == Form::IbCm { 0 } else { 11 }] = 3;
        assert_eq!(LoginRequest::decode(&b, form), Err(LoginError::Type(3)));
    }
}

#[test]
fn the_form_is_recognised() {
    let initiators = [
        PortId::default(),
        PortId::new(0, 0x0002_c903_00a1_b2c3),
        PortId::new(0x0000_1000_0000_0000, 0x0006_0000_0000_0001),
        PortId::new(u64::MAX, u64::MAX),
    ];
    for form in [Form::IbCm, Form::RdmaCm] {
        for initiator in initiators {
            for request_iu_len in [0, 63, 276, 8260, u32::MAX] {
                for formats in [0, 2, 6, 0xffff] {
                    let plausible = matches!(formats, 2 | 6);
                    if !plausible && (request_iu_len == 0 || request_iu_len == u32::MAX) {
                        // Nothing in it looks like a login; either reading will be refused.
                        continue;
                    }
                    let formats = BufferFormats(formats);
                    let req = LoginRequest { request_iu_len, formats, initiator, ..linux(0) };
                    let mut b = [0; 92];
                    req.encode(form, &mut b).unwrap();
                    assert_eq!(LoginRequest::decode_any(&b), Ok((req, form)), "{req:x?}");
                }
            }
        }
    }
    let short = |got| Err(LoginError::Short { needed: 56, got });
    assert_eq!(LoginRequest::decode_any(&[]), short(0));
    assert_eq!(LoginRequest::decode_any(&[0; 55]), short(55));
    assert_eq!(LoginRequest::decode_any(&[0xff; 64]), Err(LoginError::Unrecognised));
    // A 64-byte form cut to 60 bytes is no login of the other form either.
    let mut b = [0; 64];
    linux(0).encode(Form::IbCm, &mut b).unwrap();
    b[11] = 0xff;
    assert_eq!(LoginRequest::decode_any(&b[..60]), Err(LoginError::Unrecognised));
}

/// Each sign counts for itself: a login of the 64-byte form that reads as well in the other but for one of them.
#[test]
fn one_sign_more_decides_the_form() {
    let plain = LoginRequest { target: PortId::new(0x3031_0000_0000_0000, 1), ..linux(0) };
    let tagged = |bytes: [u8; 8]| LoginRequest { tag: Tag::from_bytes(bytes), ..plain };
    let cases = [
        // Read in the short form: a good length and clean, but no buffer formats; or with
        // formats and clean, but with no length that can be.
        (tagged([0, 0, 0, 0, 0, 0, 1, 0]), 0),
        (tagged([0, 6, 0, 0, 0xff, 0xff, 0xff, 0xff]), 0),
        // Only clean; while the long form has formats as well, if no length.
        (LoginRequest { request_iu_len: 0, ..plain }, 0),
        // Only formats; while the long form, which is not clean, has a length as well.
        (
            LoginRequest { target: PortId(TARGET), ..tagged([0, 6, 0, 0, 0xff, 0xff, 0xff, 0xff]) },
            1,
        ),
    ];
    for (req, reserved) in cases {
        let mut b = [0; 64];
        req.encode(Form::IbCm, &mut b).unwrap();
        b[1] = reserved;
        assert_eq!(LoginRequest::decode_any(&b), Ok((req, Form::IbCm)), "{req:x?}");
    }
}

#[test]
fn response_offset_by_offset() {
    let rsp = LoginResponse {
        tag: Tag(0x0807_0605_0403_0201),
        credits: 62,
        request_iu_len: 8260,
        response_iu_len: 512,
        formats: BufferFormats::BOTH,
        result: MultiChannelResult::Maintained,
        solicit_supported: true,
        immediate_supported: true,
    };
    let b = rsp.to_bytes();
    assert_eq!(b.len(), 52);
    assert_eq!(b[0..4], [0xc0, 0, 0, 0]);
    assert_eq!(b[4..8], [0, 0, 0, 62]);
    assert_eq!(b[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(b[16..20], [0, 0, 0x20, 0x44]);
    assert_eq!(b[20..24], [0, 0, 2, 0]);
    assert_eq!(b[24..26], [0, 6]);
    assert_eq!(b[26], 0x92);
    assert_eq!(b[27..], [0; 25]);
    assert_eq!(LoginResponse::decode(&b), Ok(rsp));
    let results = [
        MultiChannelResult::NoneTerminated,
        MultiChannelResult::Terminated,
        MultiChannelResult::Maintained,
        MultiChannelResult::Reserved,
    ];
    for (i, result) in results.into_iter().enumerate() {
        let b = LoginResponse { result, solicit_supported: false, ..rsp }.to_bytes();
        assert_eq!(b[26], 0x80 | i as u8);
        assert_eq!(LoginResponse::decode(&b).unwrap().result, result);
    }
    // Bit 4 is SOLNTSUP, bit 7 IMMED_SUPPORTED.
    for bit in 0..8 {
        let mut b = b;
        b[26] = 1 << bit;
        let r = LoginResponse::decode(&b).unwrap();
        assert_eq!((r.solicit_supported, r.immediate_supported), (bit == 4, bit == 7));
    }
    for len in 0..52 {
        assert_eq!(
            LoginResponse::decode(&b[..len]),
            Err(LoginError::Short { needed: 52, got: len })
        );
    }
    assert_eq!(LoginResponse::decode(&[0; 52]), Err(LoginError::Type(0)));
}

#[test]
fn reject_offset_by_offset() {
    let reasons = [
        (RejectReason::Unspecified, 0),
        (RejectReason::InsufficientResources, 1),
        (RejectReason::IuLength, 2),
        (RejectReason::NoNexus, 3),
        (RejectReason::BufferFormat, 4),
        (RejectReason::MultiChannelUnsupported, 5),
        (RejectReason::ChannelLimit, 6),
        (RejectReason::Other(0x0001_0007), 7),
    ];
    for (reason, low) in reasons {
        let tag = Tag(0x0807_0605_0403_0201);
        let rej = LoginReject { tag, reason, formats: BufferFormats::BOTH };
        let b = rej.to_bytes();
        assert_eq!(b.len(), 32);
        assert_eq!(b[0..4], [0xc2, 0, 0, 0]);
        assert_eq!(b[4..8], [0, 1, 0, low]);
        assert_eq!(b[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(b[16..24], [0; 8]);
        assert_eq!(b[24..26], [0, 6]);
        assert_eq!(b[26..], [0; 6]);
        assert_eq!(LoginReject::decode(&b), Ok(rej));
        for len in 0..32 {
            let short = Err(LoginError::Short { needed: 32, got: len });
            assert_eq!(LoginReject::decode(&b[..len]), short);
        }
    }
    assert_eq!(LoginReject::decode(&[0xc0; 52]), Err(LoginError::Type(0xc0)));
}

/// The login of a stock Linux host, as it comes over iWARP with default options (facts 2.2, 2.6).
#[test]
fn a_linux_login_reads_as_what_it_is() {
    let mut b = [0; 56];
    b[9] = 6;
    b[10] = 0x80;
    b[14..16].copy_from_slice(&8260u16.to_be_bytes());
    b[32..48].copy_from_slice(&TARGET);
    b[49] = 68;
    let (req, form) = LoginRequest::decode_any(&b).unwrap();
    assert_eq!(form, Form::RdmaCm);
    assert_eq!((req.request_iu_len, req.formats), (8260, BufferFormats::BOTH));
    assert_eq!(req.action, MultiChannelAction::Terminate);
    assert!(req.immediate && req.immediate_offset == 68 && req.initiator.is_zero());
    assert_eq!(req.target, PortId(TARGET));
}

pub(crate) fn any_request() -> impl Strategy<Value = LoginRequest> {
    let ids = (any::<[u8; 16]>(), any::<[u8; 16]>());
    let len = prop_oneof![Just(63), Just(64), Just(8276), Just(8277), 0u32..10_000, any::<u32>()];
    let formats = prop_oneof![4 => Just(6u16), 1 => 0u16..16];
    let offset = prop_oneof![Just(67u16), Just(68), 0u16..9000];
    (any::<u64>(), len, formats, any::<u8>(), offset, ids).prop_map(
        |(tag, request_iu_len, formats, flags, offset, (i, t))| LoginRequest {
            tag: Tag(tag),
            request_iu_len,
            formats: BufferFormats(formats),
            action: MultiChannelAction::from_bits(flags),
            logout_solicited: flags & 0x10 != 0,
            credit_solicited: flags & 0x20 != 0,
            event_solicited: flags & 0x40 != 0,
            immediate: flags & 0x80 != 0,
            immediate_offset: if flags & 0x80 != 0 { offset } else { 0 },
            initiator: PortId(i),
            target: PortId(t),
        },
    )
}

proptest! {
    #[test]
    fn requests_round_trip(req in any_request(), pad in 0usize..40) {
        for form in [Form::IbCm, Form::RdmaCm] {
            let mut b = vec![0; form.len() + pad];
            prop_assert_eq!(req.encode(form, &mut b), Ok(form.len()));
            prop_assert_eq!(LoginRequest::decode(&b, form), Ok(req));
            crate::fuzzing::fuzz_login(&b);
        }
    }

    #[test]
    fn any_bytes_are_read(data in proptest::collection::vec(any::<u8>(), 0..120), lead in 0u8..4) {
        let mut data = data;
        // Random bytes rarely start like an IU.
        if let Some(b) = data.first_mut() {
            *b = [0x00, 0xc0, 0xc2, *b][usize::from(lead)];
        }
        crate::fuzzing::fuzz_login(&data);
    }
}
