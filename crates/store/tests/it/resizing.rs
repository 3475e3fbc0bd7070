//! A volume is made smaller beside whatever goes on: what was beyond its new end is not there again when it grows.

use crate::bench::{B, Bench, first, spec, write};
use std::cell::Cell;
use std::rc::Rc;
use weir_base::{IoError, MICROS, MILLIS};
use weir_block::Volume;
use weir_mem::Slice;
use weir_reactor::{sleep, spawn};
use weir_store::{Options, Pool, create};

const LONG: u64 = 64 * B;
const SHORT: u64 = 32 * B;

/// What goes on beside it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Beside {
    /// Writes to what is cut off.
    Writes,
    /// Writes to the rest of a block of which the first part stays.
    Parts,
    /// The volume is made what its snapshot is.
    Revert,
    /// The volume is made larger.
    Growth,
    /// Writes, where it is a snapshot that makes it smaller.
    Shorter,
    /// The same, and the new end is within a block.
    ShorterPart,
}

const ALL: [Beside; 6] = [
    Beside::Writes,
    Beside::Parts,
    Beside::Revert,
    Beside::Growth,
    Beside::Shorter,
    Beside::ShorterPart,
];

/// A volume is made smaller, and after that larger again. The first blocks beyond the end it had that are not zeros then.
fn left_beyond(what: Beside, seed: u64) -> Vec<(u64, Result<u8, IoError>)> {
    let b = Bench::new(2, seed);
    let disks = b.all();
    b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        let by_snapshot = matches!(what, Beside::Shorter | Beside::ShorterPart);
        let inside = matches!(what, Beside::Parts | Beside::ShorterPart);
        let short = if inside { SHORT + 512 } else { SHORT };
        let len = if by_snapshot { short } else { LONG };
        let v = p.create_volume("v", len, 512).await.unwrap();
        write(&p, v, 0, len / B * B, 1).await.unwrap();
        let s = p.snapshot(&[(v, "s")], 0).await.unwrap()[0];
        p.checkpoint().await.unwrap();
        if by_snapshot {
            p.resize(v, LONG).await.unwrap();
        }
        let over = Rc::new(Cell::new(false));
        let mut all = Vec::new();
        for k in 0..8 {
            let (p, over) = (p.clone(), over.clone());
            all.push(spawn(async move {
                sleep((seed * 37 % 50 + k * 20) * MICROS).await;
                let buf = Slice::heap(512);
                buf.fill(7);
                while !over.get() {
                    match what {
                        Beside::Writes | Beside::Shorter => {
                            _ = write(&p, v, SHORT + k * B, 2 * B, 7).await
                        }
                        // The block that the end is in, as a whole.
                        Beside::ShorterPart => _ = write(&p, v, SHORT, B, 7).await,
                        Beside::Parts => {
                            let to = p.volume(v).unwrap();
                            let _ = to.write(SHORT + 512 + k % 4 * 512, buf.clone(), false).await;
                        }
                        Beside::Revert | Beside::Growth if k > 1 => return,
                        Beside::Revert => return drop(p.revert(v, s).await),
                        Beside::Growth if k == 0 => return drop(p.resize(v, 2 * LONG).await),
                        Beside::Growth => _ = write(&p, v, LONG, B, 7).await,
                    }
                    sleep(10 * MICROS).await;
                }
            }));
        }
        match what {
            _ if by_snapshot => {
                // They are under way.
                sleep(2 * MILLIS).await;
                p.revert(v, s).await.unwrap();
            }
            _ => p.resize(v, short).await.unwrap(),
        }
        over.set(true);
        for one in all {
            one.await;
        }
        let len = p.datasets().iter().find(|d| d.id == v).unwrap().len;
        p.resize(v, 2 * LONG).await.unwrap();
        let mut wrong = Vec::new();
        for at in (len.next_multiple_of(B)..2 * LONG).step_by(B as usize) {
            let found = first(&p, v, at).await;
            if found != Ok(0) {
                wrong.push((at / B, found));
            }
        }
        if !len.is_multiple_of(B) {
            let buf = Slice::heap(512);
            p.volume(v).unwrap().read(len, buf.clone()).await.unwrap();
            if buf.to_vec()[0] != 0 {
                wrong.push((len / B, Ok(buf.to_vec()[0])));
            }
        }
        wrong.truncate(3);
        wrong
    })
}

#[test]
fn what_was_cut_off_is_not_there_again() {
    let mut wrong = Vec::new();
    for what in ALL {
        let left = |seed| (what, seed, left_beyond(what, seed));
        wrong.extend((0..20).map(left).find(|(.., left)| !left.is_empty()));
    }
    assert_eq!(wrong, []);
}

#[cfg(feature = "planted")]
#[test]
fn what_is_written_beyond_a_new_end_is_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::WrittenBeyondTheEnd));
    let all = ALL.map(|what| (0..20).any(|seed| !left_beyond(what, seed).is_empty()));
    plant(None);
    assert_eq!(all, [true; ALL.len()]);
}
