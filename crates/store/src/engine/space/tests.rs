//! The allocator.

use super::*;

fn space(slabs: u32) -> Space {
    let mut s = Space::new(8);
    for i in 0..slabs {
        let place = |device| Some(Placement { device, extent: i, filling: false });
        let copies = [place((i % 2 * 2) as u16), place((i % 2 * 2 + 1) as u16)];
        s.add(&SlabRecord { copies, ..SlabRecord::default() });
    }
    s.arrange(|_| true);
    s
}

#[test]
fn hands_out_every_block_once_in_runs_over_all_lanes() {
    let mut s = space(4);
    let total = s.total();
    let mut seen = std::collections::BTreeSet::new();
    let mut lanes = std::collections::BTreeSet::new();
    for _ in 0..16 {
        let (vbn, len) = s.alloc(16).unwrap();
        assert_eq!(len, 16, "nearly empty: whole runs");
        lanes.insert(s.slab_of(vbn) % 2);
        seen.extend(vbn..vbn + len);
    }
    assert_eq!(lanes.len(), 2, "striped");
    while let Some((vbn, len)) = s.alloc(7) {
        for v in vbn..vbn + len {
            assert!(s.is_place(v) && seen.insert(v), "{v}");
        }
    }
    assert_eq!((seen.len() as u64, s.free()), (total, 0));
    for v in &seen {
        s.release(*v);
    }
    assert_eq!(s.free(), total);
    assert!(s.alloc(1).is_some());
}

#[test]
fn freeing_twice_is_noticed() {
    let mut s = space(1);
    let (v, _) = s.alloc(1).unwrap();
    s.release(v);
    assert_eq!(s.contradiction, None);
    let free = s.free();
    s.release(v);
    assert_eq!(s.contradiction, Some(format!("block {v} is freed twice")));
    assert_eq!(s.free(), free, "it is not handed out once more");
}

#[test]
fn blocks_that_do_not_exist_are_a_contradiction_and_no_panic() {
    for v in [1 << 40, u64::MAX, 0] {
        for f in [Space::release, |s: &mut Space, v| s.disk_set(v, 1), Space::disk_clear] {
            let mut s = space(1);
            let free = s.free();
            f(&mut s, v);
            assert!(s.contradiction.is_some() && s.free() == free, "{v}");
        }
    }
}

#[test]
fn what_a_checkpoint_has_is_not_freed() {
    let mut s = space(1);
    let (v, _) = s.alloc(1).unwrap();
    s.disk_set(v, 1);
    s.release(v);
    assert_eq!(s.contradiction, Some(format!("block {v} is freed while a checkpoint has it")));
    assert!(s.is_used(v));
}
