use super::*;
use proptest::prelude::*;

fn encoded(s: Sense, f: SenseFormat) -> Vec<u8> {
    let mut b = [0xeeu8; 64];
    let n = s.encode(f, &mut b);
    b[..n].to_vec()
}

#[test]
fn golden_fixed_illegal_request_with_field_pointer() {
    // READ(10) with a reserved bit 5 of byte 1: SPC-4 tables 29 and 51.
    assert_eq!(
        encoded(Sense::cdb_bit(1, 5), SenseFormat::Fixed),
        [0x70, 0, 5, 0, 0, 0, 0, 0x0a, 0, 0, 0, 0, 0x24, 0, 0, 0xcd, 0, 1]
    );
    assert_eq!(
        encoded(Sense::list_byte(0x1234), SenseFormat::Fixed)[12..],
        [0x26, 0, 0, 0x80, 0x12, 0x34]
    );
}

#[test]
fn golden_descriptor_miscompare_with_information() {
    assert_eq!(
        encoded(Sense::MISCOMPARE.with_info(0x1_0000_0001), SenseFormat::Descriptor),
        [0x72, 0xe, 0x1d, 0, 0, 0, 0, 12, 0, 0x0a, 0x80, 0, 0, 0, 0, 1, 0, 0, 0, 1]
    );
    assert_eq!(
        encoded(Sense::MISCOMPARE.with_info(0x200), SenseFormat::Fixed)[..8],
        [0xf0, 0, 0xe, 0, 0, 2, 0, 0x0a]
    );
}

/// SPC-4 table 48.
#[test]
fn every_key_has_its_number() {
    let keys = [
        SenseKey::NoSense,
        SenseKey::RecoveredError,
        SenseKey::NotReady,
        SenseKey::MediumError,
        SenseKey::HardwareError,
        SenseKey::IllegalRequest,
        SenseKey::UnitAttention,
        SenseKey::DataProtect,
        SenseKey::BlankCheck,
        SenseKey::VendorSpecific,
        SenseKey::CopyAborted,
        SenseKey::AbortedCommand,
        SenseKey::Reserved,
        SenseKey::VolumeOverflow,
        SenseKey::Miscompare,
        SenseKey::Completed,
    ];
    for byte in 0..=255u8 {
        let key = SenseKey::from_bits(byte);
        assert_eq!((key, key as u8), (keys[usize::from(byte & 0x0f)], byte & 0x0f));
    }
}

/// SPC-4 4.5.2.4: SKSV says that the bytes mean something, C/D where the field is, BPV that a bit is named.
#[test]
fn sense_key_specific_bytes_are_read_flag_by_flag() {
    let fixed = |key: u8, specific: [u8; 3]| {
        let mut b = [0x70, 0, key, 0, 0, 0, 0, 0x0a, 0, 0, 0, 0, 0x24, 0, 0, 0, 0, 0];
        b[15..].copy_from_slice(&specific);
        let s = Sense::parse(&b).unwrap();
        let mut d = vec![0x72, key, 0x24, 0, 0, 0, 0, 8, 2, 6, 0, 0];
        d.extend_from_slice(&specific);
        d.push(0);
        assert_eq!(Sense::parse(&d), Some(s), "the same in the other form");
        (s.field, s.progress)
    };
    let field = |in_cdb, bit| (Some(FieldPointer { in_cdb, byte: 0x0102, bit }), None);
    assert_eq!(fixed(5, [0x80, 1, 2]), field(false, None));
    assert_eq!(fixed(5, [0xc0, 1, 2]), field(true, None));
    assert_eq!(fixed(5, [0x8d, 1, 2]), field(false, Some(5)));
    assert_eq!(fixed(5, [0xcf, 1, 2]), field(true, Some(7)));
    assert_eq!(fixed(5, [0xc8, 1, 2]), field(true, Some(0)));
    assert_eq!(fixed(5, [0x4f, 1, 2]), (None, None), "not valid");
    for key in [0, 2] {
        assert_eq!(fixed(key, [0x80, 1, 2]), (None, Some(0x0102)));
        assert_eq!(fixed(key, [0x00, 1, 2]), (None, None));
    }
    assert_eq!(fixed(3, [0x80, 1, 2]), (None, None), "another meaning under other keys");
}

/// SPC-4 4.5.2.2: INFORMATION counts with its VALID bit only, and descriptors of other types are passed over.
#[test]
fn information_needs_its_valid_bit() {
    let mut b = [0x72, 0xe, 0x1d, 0, 0, 0, 0, 12, 0, 10, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 1];
    assert_eq!(Sense::parse(&b).unwrap().info, Some(0x201));
    b[10] = 0x7f;
    assert_eq!(Sense::parse(&b).unwrap().info, None);
    let two = [
        0x72, 0xe, 0x1d, 0, 0, 0, 0, 16, 0x80, 2, 0xff, 0xff, 0, 10, 0x80, 0, 0, 0, 0, 0, 0, 0, 2,
        1,
    ];
    assert_eq!(Sense::parse(&two).unwrap().info, Some(0x201));
    let mut b = [0xf0, 0, 0xe, 0, 0, 2, 1, 10, 0, 0, 0, 0, 0x1d, 0];
    assert_eq!(Sense::parse(&b).unwrap().info, Some(0x201));
    b[0] = 0x70;
    assert_eq!(Sense::parse(&b).unwrap().info, None);
}

#[test]
fn deferred_errors_are_told_by_the_response_code() {
    for (code, deferred) in [(0x70, false), (0x71, true), (0x72, false), (0x73, true)] {
        let b = [code, 3, 3, 0, 0, 0, 0, 0];
        assert_eq!(Sense::parse(&b).map(|s| s.deferred), Some(deferred));
    }
    for code in [0x00, 0x6f, 0x74, 0x7f] {
        assert_eq!(Sense::parse(&[code, 0, 0, 0, 0, 0, 0, 0]), None);
    }
}

#[test]
fn fixed_form_leaves_out_an_information_it_has_no_room_for() {
    let b = encoded(Sense::MISCOMPARE.with_info(1 << 32), SenseFormat::Fixed);
    assert_eq!(b[0], 0x70);
    assert_eq!(b[3..7], [0; 4]);
}

#[test]
fn truncated_to_the_room_given() {
    for f in [SenseFormat::Fixed, SenseFormat::Descriptor] {
        let s = Sense::cdb_bit(2, 7).with_info(9);
        let full = encoded(s, f);
        for n in 0..full.len() {
            let mut b = vec![0u8; n];
            assert_eq!(s.encode(f, &mut b), n);
            assert_eq!(b, full[..n]);
        }
    }
}

#[test]
fn named_codes_are_distinct_and_shown() {
    for (i, (a, _)) in NAMED.iter().enumerate() {
        assert!(NAMED[..i].iter().all(|(b, _)| !b.same_code(a)), "{a} named twice");
    }
    let text = Sense::cdb_bit(1, 2).to_string();
    assert_eq!(text, "5/24/00 invalid field in CDB, CDB byte 1 bit 2");
}

fn any_sense() -> impl Strategy<Value = Sense> {
    let field = (any::<bool>(), any::<u16>(), proptest::option::of(0u8..8))
        .prop_map(|(in_cdb, byte, bit)| FieldPointer { in_cdb, byte, bit });
    (
        (0u8..16, any::<u8>(), any::<u8>()),
        proptest::option::of(any::<u64>()),
        proptest::option::of(field),
        proptest::option::of(any::<u16>()),
        any::<bool>(),
    )
        .prop_map(|((key, asc, ascq), info, field, progress, deferred)| {
            let key = SenseKey::from_bits(key);
            Sense {
                key,
                asc,
                ascq,
                info,
                field: field.filter(|_| key == SenseKey::IllegalRequest),
                progress: progress.filter(|_| key == SenseKey::NotReady),
                deferred,
            }
        })
}

proptest! {
    #[test]
    fn descriptor_form_round_trips(s in any_sense()) {
        prop_assert_eq!(Sense::parse(&encoded(s, SenseFormat::Descriptor)), Some(s));
    }

    #[test]
    fn fixed_form_round_trips(s in any_sense()) {
        let mut want = s;
        want.info = s.info.filter(|i| *i <= u64::from(u32::MAX));
        prop_assert_eq!(Sense::parse(&encoded(s, SenseFormat::Fixed)), Some(want));
    }

    #[test]
    fn parse_is_total(b in proptest::collection::vec(any::<u8>(), 0..64)) {
        let _ = Sense::parse(&b);
    }
}

/// SPC-4 4.5.2.1 and 4.5.3: ADDITIONAL SENSE LENGTH says how far sense data go; what is behind them in the buffer says nothing.
#[test]
fn what_is_behind_the_sense_data_is_not_read() {
    let mut fixed = [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 1, 0, 0xcd, 0, 1];
    assert_eq!(Sense::parse(&fixed).map(|s| (s.asc, s.ascq)), Some((0x24, 1)));
    fixed[7] = 5;
    assert_eq!(Sense::parse(&fixed).map(|s| (s.asc, s.ascq)), Some((0x24, 0)));
    fixed[7] = 4;
    assert_eq!(Sense::parse(&fixed), Some(Sense::new(SenseKey::IllegalRequest, 0, 0)));

    let information = [0x00, 0x0a, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 7];
    let mut descriptor = vec![0x72, 0xe, 0x1d, 0, 0, 0, 0, 12];
    descriptor.extend([0x03, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    descriptor.extend(information);
    assert_eq!(Sense::parse(&descriptor), Some(Sense::MISCOMPARE));
    descriptor[7] = 24;
    assert_eq!(Sense::parse(&descriptor), Some(Sense::MISCOMPARE.with_info(7)));
}
