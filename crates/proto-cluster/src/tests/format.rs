//! Registers and messages: bytes and back.

use crate::fuzzing::fuzz_records;
use crate::ids::{Epoch, Life, Node, Nodes, Version};
use crate::message::{self, Beat, Message, MessageError};
use crate::register::{self, Class, Phase, Reason, Register, RegisterError, Writer};
use proptest::prelude::*;

fn node(n: u8) -> Node {
    Node::new(n).expect("1 to 8")
}

fn sample() -> Register {
    Register {
        version: Version(9),
        writer: Writer { node: node(5), life: Life(0x0102_0304_0506_0708), n: 77 },
        pool: 0x1122_3344_5566_7788_99aa_bbcc_ddee_ff00,
        group: [node(2), node(5)],
        epoch: Epoch(4),
        owner: node(5),
        preferred: node(2),
        able: Nodes::only(node(2)),
        phase: Phase::Handing(node(2)),
        power: 3,
        class: Class::Media,
        min_copies: 1,
        reason: Reason::Operator,
    }
}

#[test]
fn the_format_does_not_change() {
    let hex: String = sample().encode().iter().map(|b| format!("{b:02x}")).collect();
    let want = "575245470101020809000000000000000807060504030201\
                4d0000000505020200ffeeddccbbaa998877665544332211\
                02050101040000000300000000000000";
    assert_eq!(hex, want);
    let beat = Beat { epoch: Epoch(4), life: Life(7), sent: 258 };
    let hex: String = Message::Grant(beat).encode(9).iter().map(|b| format!("{b:02x}")).collect();
    let want = "57425472010000000900000000000000000000000000000007000000000000000201000000000000\
                0400000000000000";
    assert_eq!(hex, want);
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let right = sample().encode();
    let cases: [(usize, u8, RegisterError); 17] = [
        (0, b'X', RegisterError::NotOne),
        (4, 2, RegisterError::Format(2)),
        (5, 3, RegisterError::Value("phase")),
        (5, 0, RegisterError::Value("phase")),
        (6, 5, RegisterError::Value("next owner")),
        (6, 0, RegisterError::Value("next owner")),
        (7, 10, RegisterError::Value("reason")),
        (8, 0, RegisterError::Value("version")),
        (28, 9, RegisterError::Value("writer")),
        (29, 1, RegisterError::Value("owner")),
        (30, 3, RegisterError::Value("preferred owner")),
        (31, 0x03, RegisterError::Value("set of able nodes")),
        (31, 0x00, RegisterError::Value("set of able nodes")),
        (48, 5, RegisterError::Value("group")),
        (50, 0, RegisterError::Value("class")),
        (51, 3, RegisterError::Value("number of copies")),
        (52, 0, RegisterError::Value("owner epoch")),
    ];
    for (at, byte, want) in cases {
        let mut b = right;
        b[at] = byte;
        assert_eq!(Register::decode(&b), Err(want), "byte {at} is {byte}");
        assert!(!want.to_string().is_empty());
    }
    assert_eq!(Register::decode(&right[..63]), Err(RegisterError::Length(63)));
    assert_eq!(Register::decode(&[&right[..], &[0]].concat()), Err(RegisterError::Length(65)));
    assert_eq!(Register::decode(b"WREG"), Err(RegisterError::NotOne));
    assert_eq!(Message::decode(&[]), Err(MessageError::NotOne));
    let mut beat = Message::Beat(Beat { epoch: Epoch(1), life: Life(1), sent: 1 }).encode(1);
    assert_eq!(Message::decode(&beat[..47]), Err(MessageError::Length(47)));
    beat[4] = 2;
    assert_eq!(Message::decode(&beat), Err(MessageError::Format(2)));
    beat[4] = 1;
    beat[47] = 1;
    assert_eq!(Message::decode(&beat), Err(MessageError::Reserved));
}

fn registers() -> impl Strategy<Value = Register> {
    let ids = (any::<u64>(), any::<u32>(), any::<u128>(), any::<u64>());
    let nodes = (1u8..=8, 1u8..=8, 1u8..=7, any::<(bool, bool)>(), 1u8..4, 0u8..3);
    (ids, nodes, 1..u64::MAX, 1..u32::MAX, any::<bool>(), 1u8..=2, 0usize..10).prop_map(
        |(
            (life, n, pool, power),
            (writer, a, step, (o, p), able, phase),
            version,
            epoch,
            d2,
            min,
            r,
        )| {
            let group = [node(a), node((a + step - 1) % 8 + 1)];
            let owner = group[usize::from(o)];
            let pick =
                |bit: u8, node: Node| if able & bit == 0 { Nodes::NONE } else { Nodes::only(node) };
            let reasons =
                [Reason::Made, Reason::Silent, Reason::Restarted, Reason::Handed, Reason::GaveUp];
            let more = [
                Reason::OpenedWithFewer,
                Reason::PartnerLost,
                Reason::OwnDevices,
                Reason::Operator,
                Reason::Readmitted,
            ];
            Register {
                version: Version(version),
                writer: Writer { node: node(writer), life: Life(life), n },
                pool,
                group,
                epoch: Epoch(epoch),
                owner,
                preferred: group[usize::from(p)],
                able: pick(1, group[0]).or(pick(2, group[1])),
                phase: match phase {
                    0 => Phase::Serving,
                    1 => Phase::Handing(group[usize::from(!o)]),
                    _ => Phase::Released,
                },
                power,
                class: if d2 { Class::Memory } else { Class::Media },
                min_copies: min,
                reason: [reasons, more].concat()[r],
            }
        },
    )
}

proptest! {
    #[test]
    fn registers_come_back_as_they_were(r in registers()) {
        let bytes = r.encode();
        prop_assert!(bytes.len() == register::LEN && register::LEN <= register::MAX_LEN);
        prop_assert_eq!(Register::decode(&bytes), Ok(r));
        prop_assert!(fuzz_records(&bytes));
    }

    #[test]
    fn messages_come_back_as_they_were(pool: u128, life: u64, sent: u64, epoch: u32, grant: bool) {
        let beat = Beat { epoch: Epoch(epoch), life: Life(life), sent };
        let m = if grant { Message::Grant(beat) } else { Message::Beat(beat) };
        prop_assert_eq!(Message::decode(&m.encode(pool)), Ok((pool, m)));
        prop_assert!(fuzz_records(&m.encode(pool)));
    }

    #[test]
    fn any_bytes_are_a_value_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..96)) {
        fuzz_records(&bytes);
    }

    #[test]
    fn a_changed_byte_is_a_value_or_an_error(r in registers(), at in 0usize..message::LEN, byte: u8) {
        let mut bytes = r.encode();
        bytes[at] = byte;
        fuzz_records(&bytes);
    }
}
