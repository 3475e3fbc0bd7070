//! Plans: what is moved where, and what is refused.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn at(device: u16, extent: u32) -> Option<Placement> {
    Some(Placement { device, extent, filling: false })
}

fn site(number: u16, vacant: &[u32]) -> Site {
    Site {
        number,
        fit: true,
        current: true,
        draining: false,
        vacant: vacant.to_vec(),
        poor: Vec::new(),
    }
}

fn plot(slab: usize, a: (u16, u32), b: (u16, u32), used: u64) -> Plot {
    Plot { slab, copies: [at(a.0, a.1), at(b.0, b.1)], empty: used == 0, used, deaf: false }
}

fn drained(mut v: View, device: u16) -> View {
    for s in v.sites.iter_mut().filter(|s| s.number == device) {
        (s.draining, s.fit) = (true, false);
    }
    v
}

#[test]
fn a_mirror_of_two_cannot_lose_one() {
    let v = View {
        sites: vec![site(0, &[]), site(1, &[5, 6])],
        plots: vec![plot(0, (0, 0), (1, 0), 9)],
        copies: 2,
        expendable: 0,
    };
    let v = drained(v, 0);
    assert_eq!(v.can_clear(3), Err((1, 0)), "the only room is on the device of the other copy");
    let mut third = v.clone();
    third.sites.push(site(2, &[3]));
    assert_eq!(third.can_clear(3), Ok(()));
    assert_eq!(third.evacuate(9).moves, [(0, 0, at(2, 3).unwrap())]);
    // What no device has cannot be moved.
    third.sites[1].current = false;
    third.sites[0].current = false;
    assert_eq!(third.can_clear(3), Err((1, 1)));
}

#[test]
fn empty_slabs_make_room() {
    let v = View {
        sites: vec![site(0, &[]), site(1, &[]), site(2, &[])],
        plots: vec![
            plot(0, (0, 0), (1, 0), 9),
            plot(1, (1, 1), (2, 0), 0),
            plot(2, (0, 1), (2, 1), 0),
        ],
        copies: 2,
        expendable: 2,
    };
    let v = drained(v, 0);
    // Its own empty one is given up, and one that has an extent on the third device.
    assert_eq!(v.evacuate(9).give_up, [2, 1]);
    assert_eq!(v.can_clear(3), Ok(()));
    let full = View { expendable: 1, ..v };
    assert_eq!(full.can_clear(3), Ok(()), "what the first one gives up is room on device 2");
    let fuller = View { expendable: 0, ..full };
    assert!(fuller.can_clear(3).is_err());
}

#[test]
fn one_more_device_in_a_mirror_is_room_for_half_of_it() {
    let mut v = View {
        sites: vec![site(0, &[]), site(1, &[]), site(2, &[0, 1, 2, 3, 4, 5, 6, 7])],
        plots: (0..8).map(|s| plot(s, (0, s as u32), (1, s as u32), s as u64)).collect(),
        copies: 2,
        expendable: 0,
    };
    assert!(v.grow(99).is_empty());
    let moves = v.balance(99);
    assert_eq!(moves.len(), 4);
    assert_eq!(moves.iter().filter(|(_, i, _)| *i == 0).count(), 2, "both give the same");
    v.carry_out(&Plan { moves, ..Plan::default() });
    assert_eq!(v.grow(99).len(), 4, "twelve slabs on twenty-four extents");
    assert_eq!(v.grow(3).len(), 3);
}

#[test]
fn places_that_do_not_give_back_what_is_written_there_are_taken_last() {
    let poor = Site { poor: vec![3, 4, 5], ..site(2, &[]) };
    let sites = vec![site(0, &[]), site(1, &[]), poor, site(3, &[7])];
    let plots = vec![plot(0, (0, 0), (1, 0), 5), plot(1, (0, 1), (1, 1), 5)];
    let mut v = drained(View { sites, plots, copies: 2, expendable: 0 }, 0);
    let to = |v: &View| v.evacuate(9).moves.iter().map(|m| (m.2.device, m.2.extent)).collect();
    let all: Vec<(u16, u32)> = to(&v);
    assert_eq!(all, [(3, 7), (2, 3)]);
    // Before that, what is empty makes room.
    v.plots.push(plot(2, (3, 8), (1, 2), 0));
    v.expendable = 1;
    let plan = v.evacuate(9);
    assert_eq!((plan.moves.len(), plan.give_up), (1, vec![2]));
    assert_eq!(v.grow(9), Vec::<[Option<Placement>; 2]>::new());
}

fn views() -> impl Strategy<Value = (View, u16)> {
    let slabs = prop::collection::vec((0..5u16, 1..5u16, 0..3u64), 0..20);
    let spare = prop::collection::vec((0..6u32, 0..3u32), 5);
    (slabs, spare, 0..5u16, 0..4usize).prop_map(|(slabs, spare, gone, expendable)| {
        let mut next = [0u32; 5];
        let mut extent = |d: u16| {
            next[usize::from(d)] += 1;
            next[usize::from(d)] - 1
        };
        let plots = slabs.into_iter().enumerate().map(|(s, (a, step, used))| {
            let b = (a + step) % 5;
            plot(s, (a, extent(a)), (b, extent(b)), used)
        });
        let plots: Vec<Plot> = plots.collect();
        let sites = (0..5u16).map(|d| {
            let (first, (good, poor)) = (next[usize::from(d)], spare[usize::from(d)]);
            let poor = (first + good..first + good + poor).collect();
            Site { poor, ..site(d, &(first..first + good).collect::<Vec<_>>()) }
        });
        let v = View { sites: sites.collect(), plots, copies: 2, expendable };
        (drained(v, gone), gone)
    })
}

proptest! {
    #[test]
    fn plans_never_put_two_things_in_one_place((v, gone) in views()) {
        let mut now = v.clone();
        for _ in 0..40 {
            let plan = now.evacuate(3);
            if plan.is_empty() {
                break;
            }
            prop_assert!(plan.give_up.len() <= now.expendable);
            for s in &plan.give_up {
                prop_assert!(now.plots.iter().any(|p| p.slab == *s && p.empty));
            }
            now.carry_out(&plan);
            let mut seen = BTreeSet::new();
            for p in &now.plots {
                let [Some(a), Some(b)] = p.copies else { panic!("copies stay two") };
                prop_assert_ne!(a.device, b.device);
                prop_assert!(seen.insert((a.device, a.extent)) && seen.insert((b.device, b.extent)));
            }
            for s in &now.sites {
                let free = s.vacant.iter().chain(&s.poor);
                prop_assert!(free.copied().all(|e| seen.insert((s.number, e))));
            }
        }
        let left = now.plots.iter().flat_map(|p| p.copies.iter().flatten());
        let left = left.filter(|c| c.device == gone).count();
        prop_assert_eq!(v.can_clear(3).is_ok(), left == 0, "what is promised is kept");
        for new in now.grow(50) {
            let [Some(a), Some(b)] = new else { panic!("new slabs are whole") };
            prop_assert!(a.device != b.device && a.device != gone && b.device != gone);
        }
    }
}
