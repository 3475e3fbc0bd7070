use super::*;
use std::sync::mpsc;

fn ram(len: u64, f: impl FnOnce(&mut Config)) -> Ram {
    let mut config =
        Config { len, reserve: 64 << 20, huge: true, prefault: false, release: true, thin: true };
    f(&mut config);
    Ram::new(Arc::new(Region::new(config).unwrap()), 512, config.thin)
}

fn read(r: &Ram, at: u64, len: usize) -> Vec<u8> {
    let buf = Slice::copy_of(&vec![0xa5; len]);
    assert_eq!(r.read(at, buf.clone()).result(), Some(Ok(())), "{at}+{len}");
    buf.to_vec()
}

fn write(r: &Ram, at: u64, data: &[u8]) {
    assert_eq!(r.write(at, Slice::copy_of(data), false).result(), Some(Ok(())));
}

#[test]
fn all_handles_see_the_same_bytes_and_sizes_on_every_core() {
    let a = ram(1 << 20, |_| ());
    write(&a, 4096, &[3; 512]);
    let region = a.region.clone();
    let (to_b, from_a) = mpsc::channel::<()>();
    let b = std::thread::spawn(move || {
        let b = Ram::new(region, 512, true);
        assert_eq!(read(&b, 4096, 512), [3; 512]);
        write(&b, 8192, &[4; 512]);
        b.resize(2 << 20).unwrap();
        from_a.recv().unwrap();
        assert_eq!(b.geometry().len, 512);
        assert_eq!(b.read(512, Slice::heap(512)).result(), Some(Err(IoError::OutOfRange)));
    });
    while a.geometry().len != 2 << 20 {
        std::thread::yield_now();
    }
    assert_eq!(read(&a, 8192, 512), [4; 512]);
    a.resize(512).unwrap();
    to_b.send(()).unwrap();
    b.join().unwrap();
}

#[test]
fn growing_never_moves_the_base_and_brings_zeros() {
    for (release, len) in [(true, 3 << 20), (false, 3 << 20), (true, 8192)] {
        let r = ram(len, |c| c.release = release);
        let base = r.region.memory().0;
        write(&r, 0, &[1; 4096]);
        write(&r, len - 512, &[2; 512]);
        let late = r.direct(len - 4096, 4096).unwrap();
        r.resize(4096).unwrap();
        // An I/O that was on its way when the end was cut off.
        late.fill(9);
        drop(late);
        r.resize(40 << 20).unwrap();
        assert_eq!(r.region.memory(), (base, 40 << 20));
        assert_eq!(read(&r, 0, 4096), [1; 4096]);
        assert!(read(&r, 4096, 10 << 20).iter().all(|b| *b == 0));
        write(&r, (40 << 20) - 512, &[5; 512]);
        assert_eq!(r.resize(65 << 20), Err(IoError::NoSpace));
        assert_eq!(r.resize(0), Err(IoError::OutOfRange));
        assert_eq!(r.resize(513), Err(IoError::OutOfRange));
        assert_eq!(r.geometry().len, 40 << 20);
    }
}

#[test]
fn what_is_in_use_is_known_by_granules() {
    let r = ram(2 << 20, |_| ());
    assert_eq!(r.allocated(), Some(0));
    assert_eq!(r.allocation(0, 2 << 20), Allocation { mapped: false, len: 2 << 20 });
    write(&r, 4096 + 512, &[1; 512]);
    assert_eq!(r.allocated(), Some(4096));
    assert_eq!(r.allocation(0, 2 << 20), Allocation { mapped: false, len: 4096 });
    assert_eq!(r.allocation(4096, 512), Allocation { mapped: true, len: 512 });
    assert_eq!(r.allocation(4608, 1 << 20), Allocation { mapped: true, len: 3584 });
    // A write over granules 63 to 130: three words of the map.
    write(&r, 63 * 4096, &vec![1; 68 * 4096]);
    assert_eq!(r.allocated(), Some(69 * 4096));
    assert_eq!(r.allocation(63 * 4096, 1 << 20), Allocation { mapped: true, len: 68 * 4096 });
    // Only whole granules are given back, but all of the range reads as zeros.
    r.discard(64 * 4096 + 512, 66 * 4096).result().unwrap().unwrap();
    assert_eq!(r.allocated(), Some((69 - 65) * 4096));
    assert!(read(&r, 64 * 4096 + 512, 66 * 4096).iter().all(|b| *b == 0));
    assert_eq!(read(&r, 64 * 4096, 512), [1; 512]);
    r.write_zeroes(0, 4096, false).result().unwrap().unwrap();
    assert!(r.allocation(0, 512).mapped, "zeros that were asked to stay have space");
    assert!(!r.allocation(1 << 20, 512).mapped);
    assert!(r.direct(1 << 20, 512).is_some());
    assert!(!r.allocation(1 << 20, 512).mapped, "to be read");
    assert!(r.write_now(1 << 20, &[1; 512], &[]));
    assert!(r.allocation(1 << 20, 512).mapped, "written");
    r.resize(4096).unwrap();
    r.resize(2 << 20).unwrap();
    assert_eq!(r.allocated(), Some(4096));
    let thick = ram(1 << 20, |c| c.thin = false);
    assert_eq!(thick.allocated(), Some(1 << 20));
    assert_eq!(thick.allocation(0, 512), Allocation { mapped: true, len: 512 });
    assert!(!thick.geometry().thin);
}

/// The last granule of a volume that ends within it.
#[test]
fn a_volume_may_end_within_a_granule() {
    let r = ram(4096 + 512, |_| ());
    write(&r, 4096, &[1; 512]);
    assert_eq!(r.allocated(), Some(4096));
    r.discard(4096, 512).result().unwrap().unwrap();
    assert_eq!(r.allocated(), Some(0));
    assert_eq!(r.allocation(0, 4608), Allocation { mapped: false, len: 4608 });
    assert_eq!(read(&r, 4096, 512), [0; 512]);
}

/// A large thin volume costs little until it is written, and its map is asked in bounded steps.
#[test]
fn a_large_volume_is_small_until_written() {
    let r = ram(1 << 44, |c| c.reserve = 1 << 45);
    write(&r, (1 << 43) + 4096, &[1; 4096]);
    assert_eq!(r.allocated(), Some(4096));
    assert_eq!(r.allocation(0, 1 << 44), Allocation { mapped: false, len: 1 << 30 });
    let near = (1 << 43) - (200 << 20);
    let to = (200 << 20) + 4096;
    assert_eq!(r.allocation(near, 1 << 40), Allocation { mapped: false, len: to });
    assert_eq!(r.allocation(near + to, 1 << 40), Allocation { mapped: true, len: 4096 });
    r.region.mark_unused(0, 1 << 44);
    assert_eq!(r.allocated(), Some(0));
    r.resize(4096).unwrap();
    r.resize(1 << 45).unwrap();
    assert_eq!(read(&r, (1 << 43) + 4096, 4096), [0; 4096]);
}

/// Bytes of the volume that are in memory.
fn resident(r: &Ram) -> u64 {
    let (base, len) = r.region.memory();
    let mut pages = vec![0u8; len.div_ceil(4096) as usize];
    // SAFETY: the range is mapped, its base is aligned, and there is a byte for each page.
    let ok = unsafe { libc::mincore(base.as_ptr().cast(), len as usize, pages.as_mut_ptr()) };
    assert_eq!(ok, 0);
    pages.iter().filter(|p| **p & 1 == 1).count() as u64 * 4096
}

#[test]
fn large_discards_give_memory_back_unless_a_device_has_it() {
    const LEN: usize = 48 << 20;
    for (release, gives) in [(true, true), (false, false)] {
        let r = ram(LEN as u64, |c| c.release = release);
        for at in (0..LEN as u64).step_by(1 << 20) {
            write(&r, at, &vec![1; 1 << 20]);
        }
        assert_eq!(resident(&r), LEN as u64);
        r.discard(512, LEN as u64 - 1024).result().unwrap().unwrap();
        assert_eq!(resident(&r) < LEN as u64 / 8, gives, "{}", resident(&r));
        assert_eq!((read(&r, 0, 512)[0], read(&r, LEN as u64 - 512, 512)[0]), (1, 1));
        assert!(read(&r, 512, LEN - 1024).iter().all(|b| *b == 0));
    }
}

#[test]
fn direct_memory_is_the_volume_and_is_counted() {
    let r = ram(1 << 20, |_| ());
    assert_eq!(r.direct_in_use(), Some(false));
    let s = r.direct(4096, 8192).unwrap();
    s.fill(7);
    assert_eq!(read(&r, 8192, 4096), [7; 4096]);
    let part = s.sub(0, 512);
    drop(s);
    assert_eq!(r.direct_in_use(), Some(true));
    let region = Arc::downgrade(&r.region);
    drop(r);
    assert!(region.upgrade().is_some(), "the slice keeps the memory");
    assert_eq!(part.to_vec(), [7; 512]);
    drop(part);
    assert!(region.upgrade().is_none());
    let r = ram(1 << 20, |_| ());
    assert!(r.direct(1 << 20, 512).is_none());
    assert!(r.direct(100, 512).is_none());
    // From the volume to the volume, also where the two overlap.
    write(&r, 0, &(0..8192).map(|i| (i / 512) as u8).collect::<Vec<_>>());
    let whole = r.direct(512, 4096).unwrap();
    assert_eq!(r.read(0, whole).result(), Some(Ok(())));
    assert_eq!(read(&r, 512, 4096), (0..4096).map(|i| (i / 512) as u8).collect::<Vec<_>>());
}

#[test]
fn prefaulted_memory_is_there_at_once() {
    assert_eq!(resident(&ram(32 << 20, |c| c.prefault = true)), 32 << 20);
    assert_eq!(resident(&ram(32 << 20, |_| ())), 0);
}

#[test]
fn absurd_reservations_are_errors() {
    let config = Config {
        len: 4096,
        reserve: u64::MAX,
        huge: false,
        prefault: false,
        release: true,
        thin: false,
    };
    assert!(Region::new(config).is_err());
    assert!(Region::new(Config { reserve: 1 << 60, ..config }).is_err());
}

/// The checksums that a block's reader gets, and whether they were kept.
fn sums(r: &Ram, at: u64, len: usize) -> (Vec<u32>, bool) {
    let (buf, sums) = (Slice::heap(len), Slice::heap(len / 1024));
    r.read_summed(at, buf, sums.clone()).result().unwrap().unwrap();
    let given =
        sums.to_vec().chunks(4).map(|s| u32::from_le_bytes(s.try_into().unwrap())).collect();
    let mut kept = Vec::new();
    let all = r.kept_sums(at, len, &mut |s| kept.push(s));
    assert!(!all || kept == given);
    (given, all)
}

#[test]
fn checksums_that_come_with_data_are_kept_until_others_write() {
    let r = ram(1 << 20, |_| ());
    let of = |b: u8| weir_codec::crc32c(&[b; 4096]);
    let le = |s: u32| s.to_le_bytes();
    assert_eq!(sums(&r, 0, 8192), (vec![of(0); 2], false), "taken when they are asked for");
    assert!(r.write_now(4096, &[7; 8192], &[le(of(7)), le(of(7))]));
    assert_eq!(sums(&r, 4096, 8192), (vec![of(7); 2], true));
    assert!(!sums(&r, 0, 8192).1, "not of all");
    // Those that do not fit are kept as well: whoever compares finds it out.
    let both = Slice::copy_of(&[le(1), le(of(5))].concat());
    let done = r.write_summed(4096, Slice::copy_of(&[5; 8192]), both, false).result();
    assert_eq!((done, sums(&r, 4096, 8192)), (Some(Ok(())), (vec![1, of(5)], true)));
    write(&r, 4096 + 512, &[6; 512]);
    assert_eq!((sums(&r, 4096, 4096).1, sums(&r, 8192, 4096).1), (false, true));
    r.write_zeroes(8192, 4096, false).result().unwrap().unwrap();
    assert_eq!(sums(&r, 8192, 4096), (vec![of(0)], false));
    assert!(r.write_now(8192, &[7; 4096], &[le(of(7))]));
    r.resize(8192).unwrap();
    r.resize(1 << 20).unwrap();
    assert_eq!(sums(&r, 8192, 4096), (vec![of(0)], false), "what was cut off is forgotten");
    // Parts of blocks have none, and what is out of range is refused.
    assert!(r.write_now(8192, &[7; 512], &[]) && !r.kept_sums(8192, 512, &mut |_| ()));
    assert!(!r.write_now(1 << 20, &[7; 4096], &[le(of(7))]));
    assert!(!r.kept_sums(1 << 20, 4096, &mut |_| ()));
}

#[test]
fn a_kept_checksum_always_is_that_of_what_was_written_last() {
    // Two threads write to the same few blocks, with and without checksums, while one reads.
    let region = ram(16 << 12, |_| ()).region.clone();
    std::thread::scope(|s| {
        for t in 0..2u8 {
            let region = region.clone();
            s.spawn(move || {
                let mut rng = weir_base::Prng::new(u64::from(t));
                for i in 0..20_000u32 {
                    let b = (i % 100) as u8 * 2 + t;
                    let at = rng.below(4) * 4096;
                    let sum = weir_codec::crc32c(&[b; 4096]).to_le_bytes();
                    let sums: &[_] = if rng.chance(3, 4) { &[sum] } else { &[] };
                    region.write_now(at, &[b; 4096], sums).unwrap();
                }
            });
        }
        let r = Ram::new(region.clone(), 512, true);
        for i in 0..20_000u64 {
            let (buf, sums) = (Slice::heap(4096), Slice::heap(4));
            r.read_summed(i % 4 * 4096, buf.clone(), sums.clone()).result().unwrap().unwrap();
            assert_eq!(sums.to_vec(), weir_codec::crc32c(&buf.to_vec()).to_le_bytes());
        }
    });
    let r = Ram::new(region, 512, true);
    assert!(r.write_now(0, &[1; 4096], &[weir_codec::crc32c(&[1; 4096]).to_le_bytes()]));
    assert!(sums(&r, 0, 4096).1, "and the table is as good as new");
}
