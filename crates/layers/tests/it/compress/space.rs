//! What space is taken and given back, and what is told of it; errors below; several at once.

use crate::common::{pattern, read, run, write};
use crate::compress::{options, pool};
use crate::medium::{BLOCK, Medium};
use std::rc::Rc;
use weir_base::{IoError, MILLIS, Prng, SECONDS};
use weir_block::{Allocation, Volume};
use weir_layers::compress::{Algorithm, Compress, Figures, Options, stored_len};
use weir_mem::{BufPool, PoolConfig, Slice};
use weir_reactor::{run_async, sleep, spawn, timeout};

const C: u32 = 32 << 10;
const LEN: u64 = 64 * C as u64;

fn text(seed: u64, len: usize) -> Vec<u8> {
    let mut p = Prng::new(seed);
    (0..len).map(|_| b"abcdefgh"[p.below(8) as usize]).collect()
}

fn volume() -> (Rc<Medium>, Rc<Compress>) {
    let lower = Medium::new(stored_len(LEN, C), 512, 1);
    let v = Compress::new(lower.clone(), options(Algorithm::Zstd(3), C), pool()).unwrap();
    (lower, v)
}

/// Blocks mapped once nothing is left to be given back, without the account.
async fn settled(m: &Medium) -> u64 {
    sleep(3 * SECONDS).await;
    m.mapped() - u64::from(m.blocks.borrow().0.contains_key(&0))
}

#[test]
fn old_forms_are_given_back() {
    run(async {
        let (m, v) = volume();
        for round in 0..3 {
            write(&*v, 0, &text(round, LEN as usize)).await.unwrap();
        }
        // Three bits of eight.
        let packed = settled(&m).await;
        assert!((64 * 3..=64 * 4).contains(&packed), "{packed}");
        let f = v.figures().unwrap();
        assert_eq!(f, Figures { saved: LEN - packed * BLOCK, exact: true });

        // To what cannot be compressed, and back.
        write(&*v, 0, &pattern(1, LEN as usize)).await.unwrap();
        assert_eq!(settled(&m).await, LEN / BLOCK);
        assert_eq!(v.figures().unwrap().saved, 0);
        write(&*v, 0, &text(9, LEN as usize)).await.unwrap();
        assert!(settled(&m).await <= 64 * 4);
        write(&*v, 0, &vec![0; LEN as usize]).await.unwrap();
        assert_eq!(settled(&m).await, 0);
        assert_eq!(v.figures().unwrap().saved, 0);
    });
}

#[test]
fn filling_and_writing_again_and_again_cost_few_discards() {
    run(async {
        let (m, v) = volume();
        // Looks whether anything is there, but gives nothing back.
        write(&*v, 0, &text(1, LEN as usize)).await.unwrap();
        sleep(SECONDS).await;
        assert_eq!(m.trims.get(), 0);
        for i in 0..200 {
            write(&*v, 4096, &text(i, 4096)).await.unwrap();
        }
        sleep(SECONDS).await;
        assert!((1..=2).contains(&m.trims.get()), "{}", m.trims.get());
    });
}

/// Small writes in a row go straight to where they belong, and are compressed when the chunk's end is written.
#[test]
fn a_file_written_block_by_block_is_compressed() {
    run(async {
        let (m, v) = volume();
        let data = text(1, LEN as usize);
        for (i, part) in data.chunks(4096).enumerate() {
            write(&*v, i as u64 * 4096, part).await.unwrap();
        }
        assert!(settled(&m).await <= 64 * 4);
        assert!(read(&*v, 0, LEN as usize).await.unwrap() == data);
    });
}

#[test]
fn the_account_lasts_and_discards_are_in_it() {
    run(async {
        let (m, v) = volume();
        write(&*v, 0, &text(1, LEN as usize)).await.unwrap();
        settled(&m).await;
        let before = v.figures().unwrap();
        assert!(before.saved >= LEN / 2);
        drop(v);
        let o = Options { stamp: 77, ..options(Algorithm::Lz4, C) };
        let v = Compress::new(m.clone(), o, pool()).unwrap();
        assert_eq!(v.figures(), None, "not read yet");
        sleep(MILLIS).await;
        assert_eq!(v.figures(), Some(before));
        // Chunks of which nothing is known.
        v.discard(0, LEN / 2).await.unwrap();
        let half = v.figures().unwrap();
        assert!(half.exact && half.saved.abs_diff(before.saved / 2) < 20 * BLOCK, "{half:?}");
        v.discard(0, LEN).await.unwrap();
        assert_eq!(v.figures(), Some(Figures { saved: 0, exact: true }));
    });
}

#[test]
fn allocation_is_that_of_the_form() {
    run(async {
        let (_, v) = volume();
        let find = |at, len| v.find_allocation(at, len);
        let c = u64::from(C);
        assert!(!find(0, c).await.mapped);
        write(&*v, 0, &text(1, C as usize)).await.unwrap();
        assert_eq!(find(512, 3 * c).await, Allocation { mapped: true, len: c - 512 });
        assert_eq!(v.allocation(512, 3 * c), Allocation { mapped: true, len: c - 512 });
        // One block of a chunk that is kept as it is.
        write(&*v, c + 8192, &pattern(1, 4096)).await.unwrap();
        assert!(!find(c, c).await.mapped && !v.allocation(c, c).mapped);
        assert_eq!(find(c + 8192, 4096).await, Allocation { mapped: true, len: 4096 });
        // Nothing is known of it.
        assert_eq!(v.allocation(5 * c, c), Allocation { mapped: true, len: c });
        assert!(!find(5 * c, c).await.mapped);
        assert_eq!(v.geometry().granularity, C);
    });
}

#[test]
fn many_write_parts_of_one_chunk_at_once() {
    for seed in 0..20 {
        run(async move {
            let (m, v) = volume();
            m.slow.set(20_000);
            let mut tasks = Vec::new();
            for i in 0..64u64 {
                let v = v.clone();
                tasks.push(spawn(async move {
                    for round in 0..6 {
                        let s = seed + i * 10 + round;
                        let data = if s % 3 == 0 { pattern(s, 512) } else { text(s, 512) };
                        write(&*v, i * 512, &data).await.unwrap();
                        assert!(read(&*v, i * 512, 512).await.unwrap() == data, "{i}");
                    }
                }));
            }
            for t in tasks {
                t.await.unwrap();
            }
        });
    }
}

/// Whoever gives a write up does not know whether it happens, but it does not happen after a later one.
#[test]
fn writes_given_up_do_not_come_late() {
    for seed in 0..200 {
        run(async move {
            let (m, v) = volume();
            let mut p = Prng::new(seed);
            m.slow.set(100_000);
            for _ in 0..6 {
                let at = p.below(8) * 4096;
                let len =
                    [4096, 16384, C as usize][p.below(3) as usize].min((C as u64 - at) as usize);
                let old = if p.chance(1, 2) { text(p.next_u64(), len) } else { pattern(1, len) };
                {
                    let w = v.write(at, Slice::copy_of(&old), false);
                    let time = sleep(p.below(300_000));
                    let given_up = weir_reactor::timeout(0, async move { (w.await, time.await) });
                    let _ = given_up.await;
                }
                let new = if p.chance(1, 2) { text(p.next_u64(), len) } else { pattern(2, len) };
                write(&*v, at, &new).await.unwrap();
                for _ in 0..3 {
                    assert!(read(&*v, at, len).await.unwrap() == new, "seed {seed}");
                    sleep(100_000).await;
                }
            }
        });
    }
}

/// What cannot be read, or contradicts itself, is an error of that chunk; writing it whole mends it.
#[test]
fn damage_is_told_and_overwritten() {
    run(async {
        let (m, v) = volume();
        let data = text(1, 2 * C as usize);
        write(&*v, 0, &data).await.unwrap();
        settled(&m).await;
        for what in 0..3 {
            for reopened in [false, true] {
                let o = Options { stamp: 5, ..options(Algorithm::Zstd(3), C) };
                let v =
                    if reopened { Compress::new(m.clone(), o, pool()).unwrap() } else { v.clone() };
                // The form of chunk 0 is in one of two areas.
                let first =
                    1 + if m.blocks.borrow().0.contains_key(&1) { 0 } else { u64::from(C) / BLOCK };
                match what {
                    0 => m.bad.borrow_mut().push(first),
                    1 => m.blocks.borrow_mut().0.get_mut(&first).unwrap()[20] ^= 1,
                    _ => m.blocks.borrow_mut().0.get_mut(&(first + 1)).unwrap()[2000] ^= 1,
                }
                assert_eq!(read(&*v, 4096, 512).await, Err(IoError::Medium), "{what} {reopened}");
                let part = v.write(4096, Slice::copy_of(&[1; 4096]), false).await;
                assert_eq!(part, Err(IoError::Medium), "{what} {reopened}");
                assert!(read(&*v, u64::from(C), C as usize).await.unwrap() == data[C as usize..]);
                write(&*v, 0, &data[..C as usize]).await.unwrap();
                assert!(read(&*v, 0, C as usize).await.unwrap() == data[..C as usize]);
                settled(&m).await;
                drop(v);
            }
        }
    });
}

/// What changes the volume below from elsewhere holds the layer still meanwhile.
#[test]
fn held_still_it_forgets() {
    run(async {
        let (m, v) = volume();
        let (one, two) = (text(1, LEN as usize), pattern(2, LEN as usize));
        write(&*v, 0, &one).await.unwrap();
        sleep(3 * SECONDS).await;
        let (then, told) = (m.blocks.borrow().clone(), v.figures());
        write(&*v, 0, &two).await.unwrap();
        let hold = v.hold().await;
        let other = v.clone();
        let waits = spawn(async move { read(&*other, 0, LEN as usize).await.unwrap() });
        sleep(SECONDS).await;
        assert!(!waits.is_finished());
        *m.blocks.borrow_mut() = then;
        drop(hold);
        assert!(waits.await.unwrap() == one);
        sleep(2 * SECONDS).await;
        assert_eq!(v.figures(), told);
    });
}

/// Writes that make zeros of their chunks have all the memory that is kept for when there is none. What was known of the chunks
/// is forgotten meanwhile, so that each has to look what its chunk has saved.
#[test]
fn nobody_waits_for_memory_while_holding_some() {
    run(async {
        let (chunk, chunks) = (u64::from(C), 100_000);
        let m = Medium::new(stored_len(chunks * chunk, C), 512, 3);
        // None of its buffers is as long as a chunk.
        let pool = BufPool::new(&PoolConfig { classes: vec![(4096, 1)] }).unwrap();
        let v = Compress::new(m.clone(), options(Algorithm::Lz4, C), pool).unwrap();
        for i in 0..4 {
            write(&*v, i * chunk, &[7; C as usize / 2]).await.unwrap();
        }
        // Nothing else is read then.
        assert_eq!(settled(&m).await, 4);
        m.slow.set(MILLIS);
        let zeros = |i| {
            let v = v.clone();
            spawn(async move { write(&*v, i * chunk, &[0; C as usize / 2]).await })
        };
        let writes: Vec<_> = (0..4).map(zeros).collect();
        while m.reading() < 4 {
            run_async().await;
        }
        m.slow.set(0);
        // So many that they are not looked at one by one.
        v.discard(10 * chunk, 5000 * chunk).await.unwrap();
        assert_eq!(m.reading(), 4, "all have their memory still");
        assert!(v.figures().unwrap().saved > 0, "it is to be known what they have saved");
        for w in writes {
            let done = timeout(120 * SECONDS, w).await;
            assert!(matches!(done, Ok(Some(Ok(())))), "all wait for one another: {done:?}");
        }
        assert!(read(&*v, 0, 4 * chunk as usize).await.unwrap().iter().all(|b| *b == 0));
        assert_eq!(settled(&m).await, 0);
    });
}
