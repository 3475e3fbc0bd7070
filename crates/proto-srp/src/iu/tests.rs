use proptest::prelude::*;

use super::*;
use crate::misc::{EventRequest, LogoutReason};
use crate::task::TaskFunction;
use crate::types::{EncodeError, Solicit};

const CTX: IuContext =
    IuContext { max_iu_len: 276, immediate_offset: None, max_table_entries: 2048 };
const TAG: Tag = Tag(0x0807_0605_0403_0201);
const TAG_BYTES: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

#[test]
fn task_management_offset_by_offset() {
    let t = TaskManagement {
        tag: TAG,
        lun: 0x0102_0304_0506_0708,
        function: TaskFunction::AbortTask,
        task_tag: Tag(0x1817_1615_1413_1211),
        solicit: Solicit { on_success: false, on_failure: true },
    };
    let mut b = [0xff; 50];
    assert_eq!(t.encode(&mut b), Ok(48));
    assert_eq!(b[0..2], [1, 4]);
    assert_eq!(b[2..8], [0; 6]);
    assert_eq!(b[8..16], TAG_BYTES);
    assert_eq!(b[16..20], [0; 4]);
    assert_eq!(b[20..28], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(b[28..32], [0, 0, 1, 0]);
    assert_eq!(b[32..40], [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
    assert_eq!(b[40..48], [0; 8]);
    assert_eq!(b[48..], [0xff; 2]);
    assert_eq!(Iu::decode(&b[..48], &CTX), Ok(Iu::TaskManagement(t)));
    for n in 1..48 {
        let short = IuError::Short { iu: IuType::TaskManagement, needed: 48, got: n };
        assert_eq!(Iu::decode(&b[..n], &CTX), Err(short));
        assert_eq!(short.answer(), None);
    }
    let e = EncodeError::TooSmall { needed: 48, got: 40 };
    assert_eq!(t.encode(&mut [0; 47]), Err(e));
    for (code, function) in [
        (0x01, TaskFunction::AbortTask),
        (0x02, TaskFunction::AbortTaskSet),
        (0x04, TaskFunction::ClearTaskSet),
        (0x08, TaskFunction::LunReset),
        (0x40, TaskFunction::ClearAca),
        (0x20, TaskFunction::Other(0x20)),
    ] {
        TaskManagement { function, ..t }.encode(&mut b).unwrap();
        assert_eq!(b[30], code);
        assert_eq!(TaskManagement::decode(&b).unwrap().function, function);
    }
}

/// The LUN reset of a Linux host as seen live (facts 4.1): task tag ffffffff 00000000.
#[test]
fn a_linux_lun_reset() {
    let mut b = [0; 48];
    b[0] = 1;
    b[8..12].copy_from_slice(&[2, 0, 0, 0x80]);
    b[30] = 8;
    b[32..36].fill(0xff);
    let Ok(Iu::TaskManagement(t)) = Iu::decode(&b, &CTX) else { panic!() };
    assert_eq!(t.function, TaskFunction::LunReset);
    assert_eq!((t.tag, t.task_tag), (Tag(0x8000_0002), Tag(0xffff_ffff)));
}

#[test]
fn small_ius_offset_by_offset() {
    let plain = |code: u8| {
        let mut b = [0; 16];
        b[0] = code;
        b[8..].copy_from_slice(&TAG_BYTES);
        b
    };
    assert_eq!(InitiatorLogout { tag: TAG }.to_bytes(), plain(0x03));
    assert_eq!(CreditResponse { tag: TAG }.to_bytes(), plain(0x41));
    assert_eq!(EventResponse { tag: TAG }.to_bytes(), plain(0x42));
    for (code, want) in [
        (0x03, Iu::InitiatorLogout(InitiatorLogout { tag: TAG })),
        (0x41, Iu::CreditResponse(CreditResponse { tag: TAG })),
        (0x42, Iu::EventResponse(EventResponse { tag: TAG })),
    ] {
        assert_eq!(Iu::decode(&plain(code), &CTX), Ok(want));
        assert_eq!(want.uses_credit(), code == 0x03);
        assert_eq!(want.tag(), TAG);
    }

    let logout =
        TargetLogout { tag: TAG, reason: LogoutReason::MultiChannelAction, solicited: true };
    let b = logout.to_bytes();
    assert_eq!((&b[..8], &b[8..]), (&[0x80, 1, 0, 0, 0, 0, 0, 4][..], &TAG_BYTES[..]));
    assert_eq!(decode_initiator(&b), Ok(TargetIu::TargetLogout(logout)));
    for n in 0..8 {
        assert_eq!(LogoutReason::from_code(n).code(), n);
    }

    let credit = CreditRequest { tag: TAG, delta: -2, solicited: false };
    let b = credit.to_bytes();
    assert_eq!(b[..8], [0x81, 0, 0, 0, 0xff, 0xff, 0xff, 0xfe]);
    assert_eq!(b[8..], TAG_BYTES);
    assert_eq!(decode_initiator(&b), Ok(TargetIu::CreditRequest(credit)));
    assert_eq!(decode_initiator(&b).unwrap().delta(), -2);

    for code in [0x03, 0x41, 0x42, 0x80, 0x81] {
        for n in 1..16 {
            let b = &plain(code)[..n];
            let e = if code < 0x80 {
                Iu::decode(b, &CTX).unwrap_err()
            } else {
                decode_initiator(b).unwrap_err()
            };
            assert!(matches!(e, IuError::Short { needed: 16, got, .. } if got == n));
        }
    }
}

#[test]
fn event_request_offset_by_offset() {
    let e = EventRequest {
        tag: TAG,
        delta: 1,
        lun: 0x0102_0304_0506_0708,
        sense: &[9, 8, 7],
        solicited: true,
    };
    let mut b = [0xff; 64];
    assert_eq!(e.encode(&mut b, 512), Ok(39));
    assert_eq!(b[0..8], [0x82, 1, 0, 0, 0, 0, 0, 1]);
    assert_eq!(b[8..16], TAG_BYTES);
    assert_eq!(b[16..20], [0; 4]);
    assert_eq!(b[20..28], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(b[28..32], [0, 0, 0, 3]);
    assert_eq!(b[32..36], [0; 4]);
    assert_eq!(b[36..39], [9, 8, 7]);
    assert_eq!(b[39..], [0xff; 25]);
    assert_eq!(decode_initiator(&b[..39]), Ok(TargetIu::EventRequest(e)));
    let quiet = EventRequest { solicited: false, ..e };
    assert_eq!(quiet.encode(&mut b, 512), Ok(39));
    assert_eq!(b[1], 0);
    assert_eq!(decode_initiator(&b[..39]), Ok(TargetIu::EventRequest(quiet)));
    // Cut by the negotiated length, and read cut.
    assert_eq!(e.encode(&mut b, 38), Ok(38));
    let Ok(TargetIu::EventRequest(back)) = decode_initiator(&b[..37]) else { panic!() };
    assert_eq!(back.sense, [9]);
    let small = EncodeError::TooSmall { needed: 36, got: 35 };
    assert_eq!(e.encode(&mut b, 35), Err(small));
    assert!(matches!(decode_initiator(&b[..35]), Err(IuError::Short { needed: 36, .. })));
}

#[test]
fn every_type_byte_on_both_sides() {
    let to_target = [0x01, 0x02, 0x03, 0x41, 0x42];
    let to_initiator = [0x80, 0x81, 0x82, 0xc1];
    for code in 0..=255u8 {
        let mut b = [0; 64];
        b[0] = code;
        let refused = Err(IuError::Type(code));
        assert_eq!(Iu::decode(&b, &CTX).is_ok(), to_target.contains(&code), "{code:#x}");
        assert_eq!(decode_initiator(&b).is_ok(), to_initiator.contains(&code), "{code:#x}");
        if !to_target.contains(&code) {
            assert_eq!(Iu::decode(&b, &CTX), refused);
        }
        if let Some(t) = IuType::from_code(code) {
            assert_eq!(t.code(), code);
            assert_eq!(t.uses_credit(), matches!(code, 1..=3));
        } else {
            assert!(!to_target.contains(&code) && !to_initiator.contains(&code));
        }
    }
    assert_eq!(Iu::decode(&[], &CTX), Err(IuError::Empty));
    assert_eq!(decode_initiator(&[]), Err(IuError::Empty));
}

/// Logs call IUs as the standard does, so that they can be looked up there.
#[test]
fn ius_have_the_names_of_the_standard() {
    for (code, name) in [
        (0x01, "SRP_TSK_MGMT"),
        (0x02, "SRP_CMD"),
        (0x03, "SRP_I_LOGOUT"),
        (0x41, "SRP_CRED_RSP"),
        (0x42, "SRP_AER_RSP"),
        (0x80, "SRP_T_LOGOUT"),
        (0x81, "SRP_CRED_REQ"),
        (0x82, "SRP_AER_REQ"),
        (0xc1, "SRP_RSP"),
    ] {
        assert_eq!(IuType::from_code(code).map(IuType::name), Some(name));
    }
}

#[test]
fn longer_than_negotiated() {
    let mut b = [0; 277];
    b[0] = 2;
    assert!(Iu::decode(&b[..276], &CTX).is_ok());
    assert_eq!(Iu::decode(&b, &CTX), Err(IuError::Long { max: 276, got: 277 }));
}

#[test]
fn bad_commands_are_answered_and_bad_peers_are_not() {
    let mut b = [0; 48];
    b[0] = 2;
    b[8..16].copy_from_slice(&TAG_BYTES);
    b[29] = 7;
    let e = Iu::decode(&b, &CTX).unwrap_err();
    assert_eq!(e.answer(), Some((TAG, RspCode::FieldsInvalid)));
    for e in [
        IuError::Empty,
        IuError::Type(9),
        IuError::Long { max: 1, got: 2 },
        IuError::Short { iu: IuType::Command, needed: 48, got: 3 },
    ] {
        assert_eq!(e.answer(), None);
        assert!(!e.to_string().is_empty());
    }
}

const CODES: [u8; 10] = [0x01, 0x02, 0x03, 0x41, 0x42, 0x80, 0x81, 0x82, 0xc1, 0xff];

proptest! {
    #[test]
    fn any_bytes_are_read(
        data in proptest::collection::vec(any::<u8>(), 0..400),
        code in 0usize..CODES.len(),
        calm in any::<bool>(),
    ) {
        let mut data = data;
        if let Some(b) = data.get_mut(4) {
            *b = CODES[code];
        }
        if calm && data.len() > 55 {
            // Valid formats and lengths that fit now and then.
            data[9] &= 0x31;
            data[33] = 0;
            data[35] &= 0x0c;
            data[52..55].fill(0);
        }
        crate::fuzzing::fuzz_iu(&data);
    }
}
