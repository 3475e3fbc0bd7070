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
