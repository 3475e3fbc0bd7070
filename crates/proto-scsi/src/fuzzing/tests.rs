use super::*;
use crate::cdb::table::TABLE;
use proptest::prelude::*;

/// Scripts of mostly real commands, for otherwise most steps end at the operation code.
fn step() -> impl Strategy<Value = Vec<u8>> {
    let data = proptest::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..64);
    let command = (0u8..4, 0..TABLE.len(), any::<[u8; 16]>(), any::<[u8; 16]>(), data).prop_map(
        |(nexus, entry, noise, mask, data)| {
            let e = &TABLE[entry];
            let mut cdb = u128::from_be_bytes(noise) & u128::from_be_bytes(mask);
            cdb &= u128::from_be_bytes(e.usage);
            let mut cdb = cdb.to_be_bytes();
            cdb[0] = e.opcode;
            cdb[1] |= e.action.unwrap_or(0);
            let mut s = vec![nexus, 16];
            s.extend_from_slice(&cdb);
            s.push(data.len() as u8);
            s.extend_from_slice(&data);
            s
        },
    );
    let event =
        (0x80u8..=0xff, any::<u8>(), any::<u8>()).prop_map(|(e, a, b)| match e >> 2 & 0x1f {
            3 | 4 | 6 => vec![e, a],
            5 => vec![e, a, b],
            _ => vec![e],
        });
    let reserve = (0u8..4, 0u8..8, 0u8..9, 0u8..3, 0u8..3, any::<u8>()).prop_map(
        |(nexus, action, kind, key, action_key, flags)| {
            let mut s = vec![nexus, 16, 0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
            s.extend_from_slice(&[0; 6]);
            s.push(24);
            let mut list = [0; 24];
            (list[7], list[15], list[20]) = (key, action_key, flags & 0x05);
            s.extend_from_slice(&list);
            s
        },
    );
    prop_oneof![3 => command, 1 => event, 3 => reserve]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn scripts(config: u8, steps in proptest::collection::vec(step(), 1..60)) {
        let mut data = vec![config];
        data.extend(steps.concat());
        fuzz_cdb(&data);
    }

    #[test]
    fn noise(data in proptest::collection::vec(any::<u8>(), 0..512)) {
        fuzz_cdb(&data);
        fuzz_no_lu(&data);
        fuzz_sense(&data);
        fuzz_unmap(&data);
        fuzz_reservations(&data);
        fuzz_answers(&data);
    }
}
