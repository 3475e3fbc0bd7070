use super::*;
use std::collections::BTreeSet;

fn sector(c: &Cache, n: u64) -> u8 {
    let mut b = [0; SECTOR];
    c.read(n * SECTOR as u64, &mut b);
    assert!(b.iter().all(|x| *x == b[0]), "a sector is never torn");
    b[0]
}

fn write(c: &mut Cache, op: u64, first: u64, sectors: usize, value: u8) {
    c.write(op, first * SECTOR as u64, vec![value; sectors * SECTOR]);
}

#[test]
fn what_was_flushed_or_forced_survives_every_cut() {
    for seed in 0..300 {
        let mut rng = Prng::new(seed);
        let mut c = Cache::default();
        write(&mut c, 1, 0, 4, 1);
        c.finish(1, false);
        c.flushed(c.mark());
        write(&mut c, 2, 8, 4, 2);
        c.finish(2, true);
        c.power_cut(&mut rng, false);
        assert_eq!((0..4).map(|s| sector(&c, s)).collect::<Vec<_>>(), [1; 4]);
        assert_eq!((8..12).map(|s| sector(&c, s)).collect::<Vec<_>>(), [2; 4]);
        assert_eq!(c.at_risk(), 0);
    }
}

#[test]
fn an_older_write_never_comes_back_over_a_durable_one() {
    for seed in 0..300 {
        let mut rng = Prng::new(seed);
        let mut c = Cache::default();
        write(&mut c, 1, 0, 4, 1);
        c.finish(1, false);
        write(&mut c, 2, 0, 4, 2);
        c.finish(2, true);
        assert_eq!(c.at_risk(), 1);
        c.power_cut(&mut rng, false);
        assert_eq!((0..4).map(|s| sector(&c, s)).collect::<Vec<_>>(), [2; 4]);
    }
}

#[test]
fn a_flush_covers_what_had_completed_when_it_began() {
    let mut lost = 0;
    for seed in 0..200 {
        let mut c = Cache::default();
        write(&mut c, 1, 0, 1, 1);
        let mark = c.mark();
        c.finish(1, false);
        c.flushed(mark);
        c.power_cut(&mut Prng::new(seed), false);
        lost += u32::from(sector(&c, 0) == 0);
    }
    assert!(lost > 20, "{lost}");
}

#[test]
fn cuts_leave_old_new_torn_and_reordered_states() {
    let mut states = BTreeSet::new();
    for seed in 0..2000 {
        let mut c = Cache::default();
        write(&mut c, 1, 0, 4, 1);
        c.finish(1, false);
        c.flushed(c.mark());
        write(&mut c, 2, 0, 4, 2);
        write(&mut c, 3, 4, 1, 3);
        c.finish(2, false);
        c.finish(3, false);
        c.power_cut(&mut Prng::new(seed), false);
        states.insert((0..5).map(|s| sector(&c, s)).collect::<Vec<_>>());
    }
    for want in
        [[1, 1, 1, 1, 0], [2, 2, 2, 2, 3], [1, 1, 1, 1, 3], [2, 2, 2, 2, 0], [2, 1, 1, 1, 0]]
    {
        assert!(states.contains(&want[..]), "{want:?}");
    }
    let patchwork = |s: &&Vec<u8>| s[..4].windows(2).filter(|w| w[0] != w[1]).count() > 1;
    assert!(states.iter().any(|s| patchwork(&s)), "neither a front nor a back part");
    assert!(states.iter().all(|s| s[..4].iter().all(|v| [1, 2].contains(v))));
}

#[test]
fn garbage_only_where_it_is_asked_for() {
    let mut seen = false;
    for seed in 0..500 {
        let mut c = Cache::default();
        write(&mut c, 1, 0, 16, 1);
        c.finish(1, false);
        c.power_cut(&mut Prng::new(seed), true);
        let mut b = [0; 16 * SECTOR];
        c.read(0, &mut b);
        seen |= b.iter().any(|x| *x > 1);
    }
    assert!(seen);
}

#[test]
fn after_a_failed_flush_a_later_one_does_not_mend_what_was_dropped() {
    let mut lost = 0;
    for seed in 0..200 {
        let mut rng = Prng::new(seed);
        let mut c = Cache::default();
        write(&mut c, 1, 0, 1, 1);
        c.finish(1, false);
        c.flush_failed(c.mark(), &mut rng);
        assert_eq!(sector(&c, 0), 1, "reads still see it");
        c.flushed(c.mark());
        c.power_cut(&mut rng, false);
        lost += u32::from(sector(&c, 0) == 0);
    }
    assert!((50..190).contains(&lost), "{lost}");
}

#[test]
fn zeroes_are_torn_like_data() {
    let mut states = BTreeSet::new();
    for seed in 0..500 {
        let mut c = Cache::default();
        write(&mut c, 1, 0, 2, 1);
        c.finish(1, true);
        c.zero(2, 0, 1024);
        c.finish(2, false);
        c.power_cut(&mut Prng::new(seed), false);
        states.insert([sector(&c, 0), sector(&c, 1)]);
    }
    assert_eq!(states.len(), 4, "{states:?}");
}

#[test]
fn the_cache_is_bounded_and_rot_stays_in_its_range() {
    let mut c = Cache::default();
    for op in 0..5000 {
        write(&mut c, op, op % 64, 1, op as u8);
        c.finish(op, false);
    }
    assert!(c.at_risk() <= CACHE);
    c.flushed(c.mark());
    assert_eq!(c.at_risk(), 0);
    c.rot(SECTOR as u64, SECTOR, 1, &mut Prng::new(1));
    let mut b = [0; 3 * SECTOR];
    c.read(0, &mut b);
    let changed = |s: usize| b[s * SECTOR..][..SECTOR].iter().any(|x| *x != b[s * SECTOR + 511]);
    assert!(!changed(0) && !changed(2));
    let ones: u32 = b[SECTOR..2 * SECTOR].iter().map(|x| x.count_ones()).sum();
    assert_eq!(ones % 2, 1, "an odd number of bits differs from 512 equal bytes");
}

#[test]
fn what_was_poked_is_not_covered_again_by_what_the_cache_had() {
    for seed in 0..300 {
        for flushed in [false, true] {
            let mut c = Cache::default();
            write(&mut c, 1, 0, 4, 1);
            c.zero(2, 2 * SECTOR as u64, 4 * SECTOR as u64);
            c.finish(1, false);
            c.finish(2, false);
            c.poke(0, &[7; 6 * SECTOR]);
            if flushed {
                c.flushed(c.mark());
            }
            c.power_cut(&mut Prng::new(seed), true);
            assert_eq!((0..6).map(|s| sector(&c, s)).collect::<Vec<_>>(), [7; 6]);
        }
    }
}
