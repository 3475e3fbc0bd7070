use proptest::prelude::*;

use super::*;

fn d(addr: u64, key: u32, len: u32) -> Descriptor {
    Descriptor { addr, key, len }
}

fn s(base: u64, len: u32) -> Segment {
    Segment { base, len }
}

fn op(remote: u64, key: u32, segment: usize, local: u64, len: u32) -> RdmaOp {
    RdmaOp { remote, key, segment, local, len }
}

#[test]
fn both_lists_cut() {
    let remote = [d(0x1000, 1, 100), d(0x2000, 2, 50), d(0x3000, 3, 100)];
    let local = [s(0, 60), s(1000, 80), s(2000, 200)];
    let ops: Vec<_> = Walk::new(remote, local, 10, 200, 0).unwrap().collect();
    assert_eq!(
        ops,
        [
            op(0x100a, 1, 0, 0, 60),
            op(0x1046, 1, 1, 1000, 30),
            op(0x2000, 2, 1, 1030, 50),
            op(0x3000, 3, 2, 2000, 60),
        ]
    );
}

#[test]
fn the_largest_operation_cuts() {
    let ops: Vec<_> = Walk::new([d(0, 9, 10)], [s(0, 10)], 0, 10, 4).unwrap().collect();
    assert_eq!(ops, [op(0, 9, 0, 0, 4), op(4, 9, 0, 4, 4), op(8, 9, 0, 8, 2)]);
}

#[test]
fn one_operation_where_one_is_enough() {
    let mut w = Walk::new([d(4096, 7, 1 << 20)], [s(0, 1 << 20)], 0, 1 << 20, 0).unwrap();
    assert_eq!(w.clone().count(), 1);
    assert_eq!(w.left(), 1 << 20);
    assert_eq!(w.next(), Some(op(4096, 7, 0, 0, 1 << 20)));
    assert_eq!((w.left(), w.next()), (0, None));
}

#[test]
fn empty_windows_and_entries() {
    let none: [Descriptor; 0] = [];
    assert_eq!(Walk::new(none, [], 0, 0, 0).unwrap().next(), None);
    let remote = [d(5, 5, 0), d(1, 1, 4), d(6, 6, 0), d(2, 2, 4)];
    let local = [s(9, 0), s(0, 8)];
    let ops: Vec<_> = Walk::new(remote, local, 0, 8, 0).unwrap().collect();
    assert_eq!(ops, [op(1, 1, 1, 0, 4), op(2, 2, 1, 4, 4)]);
}

#[test]
fn what_does_not_fit_is_found_first() {
    let r = [d(0, 1, 10), d(0, 2, 10)];
    let l = [s(0, 15)];
    let err = |offset, len| Walk::new(r, l, offset, len, 0).err();
    assert_eq!(err(0, 15), None);
    assert_eq!(err(5, 15), None);
    assert_eq!(err(6, 15), Some(WalkError::RemoteShort { needed: 21, got: 20 }));
    assert_eq!(err(0, 16), Some(WalkError::LocalShort { needed: 16, got: 15 }));
    assert_eq!(err(1, u64::MAX), Some(WalkError::Wraps));
    let wraps = d(u64::MAX - 3, 1, 5);
    assert_eq!(Walk::new([wraps], [s(0, 5)], 0, 5, 0).err(), Some(WalkError::Wraps));
    let local = s(u64::MAX, 2);
    assert_eq!(Walk::new([d(0, 1, 2)], [local], 0, 2, 0).err(), Some(WalkError::Wraps));
    // The last byte of the address space is a good byte, here and there.
    let top = Walk::new([d(0, 1, 8)], [s(u64::MAX - 7, 8)], 0, 8, 0).unwrap();
    assert!(top.eq([op(0, 1, 0, u64::MAX - 7, 8)]));
    let last = d(u64::MAX - 3, 1, 4);
    let ops: Vec<_> = Walk::new([last], [s(0, 4)], 0, 4, 3).unwrap().collect();
    assert_eq!(ops, [op(u64::MAX - 3, 1, 0, 0, 3), op(u64::MAX, 1, 0, 3, 1)]);
}

/// Byte by byte: which (remote address, key) each local byte belongs to.
fn naive(
    remote: &[Descriptor],
    local: &[Segment],
    offset: u64,
    len: u64,
) -> Option<Vec<(u64, u32, usize, u64)>> {
    let far: Vec<_> =
        remote.iter().flat_map(|d| (0..u64::from(d.len)).map(|i| (d.addr + i, d.key))).collect();
    let near: Vec<_> = local
        .iter()
        .enumerate()
        .flat_map(|(n, s)| (0..u64::from(s.len)).map(move |i| (n, s.base + i)))
        .collect();
    let far = far.get(offset as usize..(offset + len) as usize)?;
    let near = near.get(..len as usize)?;
    Some(far.iter().zip(near).map(|(f, n)| (f.0, f.1, n.0, n.1)).collect())
}

proptest! {
    #[test]
    fn same_bytes_as_the_naive_model(
        remote in proptest::collection::vec((0u64..1 << 40, any::<u32>(), 0u32..40), 0..8),
        local in proptest::collection::vec((0u64..1 << 40, 0u32..40), 0..8),
        offset in 0u64..60,
        len in 0u64..120,
        max_op in 0u32..20,
    ) {
        let remote: Vec<_> = remote.into_iter().map(|(a, k, l)| d(a, k, l)).collect();
        let local: Vec<_> = local.into_iter().map(|(b, l)| s(b, l)).collect();
        let walk =
            Walk::new(remote.iter().copied(), local.iter().copied(), offset, len, max_op);
        let Some(want) = naive(&remote, &local, offset, len) else {
            prop_assert!(walk.is_err());
            return Ok(());
        };
        let ops: Vec<_> = walk.unwrap().collect();
        let got: Vec<_> = ops
            .iter()
            .flat_map(|o| {
                (0..u64::from(o.len)).map(|i| (o.remote + i, o.key, o.segment, o.local + i))
            })
            .collect();
        prop_assert_eq!(got, want);
        for o in &ops {
            prop_assert!(o.len > 0 && (max_op == 0 || o.len <= max_op));
        }
        // No more operations than boundaries ask for.
        let cuts = remote.len() + local.len() + 1;
        let tiny = if max_op == 0 { 0 } else { len as usize / max_op as usize };
        prop_assert!(ops.len() <= cuts + tiny);
    }

    #[test]
    fn any_lists(data in proptest::collection::vec(any::<u8>(), 0..300), small in any::<bool>()) {
        let mut data = data;
        if small && data.len() > 21 {
            // Lengths that have a chance to fit.
            data[0..6].fill(0);
            data[8..14].fill(0);
            data[20] %= 8;
        }
        crate::fuzzing::fuzz_bdt(&data);
    }
}
