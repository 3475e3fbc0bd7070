use super::*;
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};

const BOTH: Access = Access { remote_read: true, remote_write: true };

fn table(capacity: usize) -> StagTable<usize> {
    StagTable::new(capacity, &mut Prng::new(42))
}

/// The published test vector of Speck 32/64.
#[test]
fn cipher_is_speck() {
    let cipher = Speck32::new(0x1918_1110_0908_0100);
    assert_eq!(cipher.encrypt([0x6574_694c]), [0xa868_42f2]);
}

#[test]
fn bounds_are_exact() {
    let mut t = table(4);
    let k = t.insert(0x1000, 0x100, BOTH, 5).expect("room");
    let bounds = |to, len| Err(Protection::Bounds { stag: k, to, len });
    assert_eq!(t.check(k, 0x1000, 0x100, BOTH), Ok(&5));
    assert_eq!(t.check(k, 0x10ff, 1, BOTH), Ok(&5));
    assert_eq!(t.check(k, 0xfff, 1, BOTH), bounds(0xfff, 1));
    assert_eq!(t.check(k, 0x1000, 0x101, BOTH), bounds(0x1000, 0x101));
    assert_eq!(t.check(k, 0x1001, 0x100, BOTH), bounds(0x1001, 0x100));
    assert_eq!(t.check(k, 0x1100, 1, BOTH), bounds(0x1100, 1));
    assert_eq!(t.check(k, u64::MAX, 1, BOTH), bounds(u64::MAX, 1));
    assert_eq!(t.check(k, u64::MAX, 2, BOTH), Err(Protection::Wrap { stag: k }));
    assert_eq!(t.check(k, 0x1000, u64::MAX, BOTH), Err(Protection::Wrap { stag: k }));
}

#[test]
fn the_top_of_the_range_can_be_registered() {
    let mut t = table(4);
    let k = t.insert(u64::MAX - 15, 16, BOTH, 1).expect("ends exactly at 2^64");
    assert_eq!(t.check(k, u64::MAX, 1, BOTH), Ok(&1));
    assert_eq!(t.check(k, u64::MAX - 15, 16, BOTH), Ok(&1));
    assert_eq!(t.check(k, u64::MAX, 2, BOTH), Err(Protection::Wrap { stag: k }));
    assert_eq!(t.insert(u64::MAX - 15, 17, BOTH, 1), Err(InsertError::Range));
    let all = t.insert(0, u64::MAX, BOTH, 2).expect("room");
    assert_eq!(t.check(all, 0, u64::MAX, BOTH), Ok(&2));
}

#[test]
fn rights_are_checked_before_bounds() {
    let mut t = table(4);
    let r = t.insert(0, 10, Access::READ, 0).expect("room");
    let w = t.insert(0, 10, Access::WRITE, 0).expect("room");
    let none = t.insert(0, 10, Access::default(), 0).expect("room");
    assert!(t.check(r, 0, 1, Access::READ).is_ok() && t.check(w, 0, 1, Access::WRITE).is_ok());
    for (k, need) in [(r, Access::WRITE), (w, Access::READ), (none, Access::READ), (r, BOTH)] {
        assert_eq!(t.check(k, 0, 1, need), Err(Protection::Access { stag: k }));
        assert_eq!(t.check(k, 99, 1, need), Err(Protection::Access { stag: k }));
    }
}

#[test]
fn zero_length_names_nothing() {
    let mut t = table(4);
    let k = t.insert(0x1000, 16, Access::READ, 3).expect("room");
    assert_eq!(t.check_write(0xdead, 99, 0), Ok(None));
    assert_eq!(t.check_read(0xdead, 99, 0), Ok(None));
    assert_eq!(t.check_read(k, 0x1000, 16), Ok(Some(&3)));
    assert_eq!(t.check_write(k, 0x1000, 16), Err(Protection::Access { stag: k }));
    // Asked for directly, the key must be live.
    assert_eq!(t.check(k, 0, 0, Access::READ), Ok(&3));
    assert_eq!(t.check(!k, 0, 0, Access::READ), Err(Protection::InvalidStag { stag: !k }));
}

#[test]
fn a_removed_key_never_matches_again() {
    let mut t = table(1);
    let mut old = HashSet::new();
    for i in 0..20_000 {
        let k = t.insert(0, 1, BOTH, i).expect("room");
        assert!(k != 0 && old.insert(k), "a key came back");
        assert_eq!(t.insert(0, 1, BOTH, i), Err(InsertError::Full(1)));
        assert_eq!(t.remove(k), Some(i));
        assert_eq!(t.remove(k), None);
        assert_eq!(t.get(k), None);
    }
    let live = t.insert(0, 1, BOTH, 7).expect("room");
    assert!(old.iter().all(|k| t.get(*k).is_none()));
    assert_eq!((t.get(live), t.len(), t.is_empty()), (Some(&7), 1, false));
}

#[test]
fn what_is_registered_is_counted() {
    let mut t = table(3);
    assert_eq!((t.len(), t.is_empty(), t.capacity()), (0, true, 3));
    let k = t.insert(0, 1, BOTH, 7).expect("room");
    assert_eq!((t.len(), t.is_empty(), t.capacity()), (1, false, 3));
    t.remove(k);
    assert_eq!((t.len(), t.is_empty()), (0, true));
    // A table without room would have no use: the least has one place.
    assert_eq!(table(0).capacity(), 1);
}

/// After 2^32 insertions the counter comes round to keys that may still be live.
#[test]
fn a_live_key_is_not_given_out_twice() {
    let mut t = table(4);
    let start = t.count;
    let first = t.insert(0, 1, BOTH, 1).expect("room");
    (t.count, t.left) = (start, 0);
    let second = t.insert(0, 1, BOTH, 2).expect("room");
    assert_ne!(first, second);
    assert_eq!((t.get(first), t.get(second)), (Some(&1), Some(&2)));
}

#[test]
fn keys_look_random() {
    let mut t = table(4096);
    let keys: Vec<u32> = (0..4096).map(|i| t.insert(0, 1, BOTH, i).expect("room")).collect();
    for bit in 0..32 {
        let ones = keys.iter().filter(|k| *k >> bit & 1 == 1).count();
        assert!((1850..2250).contains(&ones), "bit {bit}: {ones} of 4096");
        let flips = keys.windows(2).filter(|k| (k[0] ^ k[1]) >> bit & 1 == 1).count();
        assert!((1850..2250).contains(&flips), "bit {bit} changes {flips} times");
    }
    let other: Vec<u32> = {
        let mut t = StagTable::new(4096, &mut Prng::new(43));
        (0..4096).map(|i| t.insert(0, 1, BOTH, i).expect("room")).collect()
    };
    let shared = other.iter().filter(|k| keys.contains(k)).count();
    assert!(shared < 3, "{shared} keys shared by two tables");
}

#[test]
fn the_secret_is_not_printed() {
    let text = format!("{:?}", table(1));
    assert!(text.contains("Speck32,"), "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Against a map, with many removals so that probe chains are closed in every way.
    #[test]
    fn behaves_as_a_map(capacity in 1usize..40, ops in prop::collection::vec(any::<u16>(), 0..600)) {
        let mut t = table(capacity);
        let mut model: HashMap<u32, usize> = HashMap::new();
        let mut keys: Vec<u32> = Vec::new();
        for (i, op) in ops.into_iter().enumerate() {
            if op & 1 == 0 {
                match t.insert(0, 1, BOTH, i) {
                    Ok(k) => {
                        prop_assert!(model.len() < capacity);
                        prop_assert!(model.insert(k, i).is_none());
                        keys.push(k);
                    }
                    Err(e) => {
                        prop_assert_eq!(e, InsertError::Full(capacity));
                        prop_assert_eq!(model.len(), capacity);
                    }
                }
            } else if !keys.is_empty() {
                let k = keys[usize::from(op >> 1) % keys.len()];
                prop_assert_eq!(t.remove(k), model.remove(&k));
            }
            prop_assert_eq!(t.len(), model.len());
            for k in &keys {
                prop_assert_eq!(t.get(*k), model.get(k));
            }
        }
    }

    /// Against arithmetic in 128 bits.
    #[test]
    fn check_is_exact(
        base in prop_oneof![any::<u64>(), 0u64..32, u64::MAX - 32..],
        len in prop_oneof![any::<u64>(), 0u64..32],
        to in prop_oneof![any::<u64>(), 0u64..64, u64::MAX - 64..],
        want in prop_oneof![any::<u64>(), 1u64..64],
        near: bool,
    ) {
        let top = 1u128 << 64;
        let mut t = table(2);
        let end = u128::from(base) + u128::from(len);
        let key = t.insert(base, len, BOTH, 1);
        prop_assert_eq!(key.is_ok(), end <= top);
        let Ok(key) = key else { return Ok(()) };
        let to = if near { base.wrapping_add(to % 64).wrapping_sub(16) } else { to };
        let stop = u128::from(to) + u128::from(want.max(1));
        let got = t.check(key, to, want.max(1), BOTH);
        if stop > top {
            prop_assert_eq!(got, Err(Protection::Wrap { stag: key }));
        } else {
            prop_assert_eq!(got.is_ok(), to >= base && stop <= end);
        }
    }
}
