//! Power goes while much is under way: what was acknowledged is there, of the rest each part is old or new, and what was
//! read once stays so.

use crate::common::{reactor, read};
use crate::compress::{KINDS, options, pool};
use crate::medium::{Blocks, Medium};
use std::cell::RefCell;
use std::rc::Rc;
use weir_base::{MICROS, Prng};
use weir_block::Volume;
use weir_layers::compress::{Compress, Options, stored_len};
use weir_mem::Slice;
use weir_reactor::{PollMode, sleep, spawn_task};

/// What is written and compared as one.
const UNIT: u64 = 512;

/// Contents of a unit: a version and how well it compresses. Version 0 is zeros.
fn contents(unit: u64, version: u32) -> [u8; UNIT as usize] {
    let mut b = [0; UNIT as usize];
    match version % 4 {
        _ if version == 0 => {}
        0 => Prng::new(unit << 32 | u64::from(version)).fill(&mut b),
        1 => b.fill(version as u8),
        2 => b[100..104].copy_from_slice(&version.to_le_bytes()),
        _ => {
            Prng::new(u64::from(version)).fill(&mut b[..200]);
        }
    }
    if version > 0 {
        b[..4].copy_from_slice(&version.to_le_bytes());
        b[4..12].copy_from_slice(&unit.to_le_bytes());
    }
    b
}

/// What the volume should hold.
#[derive(Default)]
struct Truth {
    /// Acknowledged, or read.
    is: Vec<u32>,
    /// Under way, or failed, or were so when power went.
    maybe: Vec<Vec<u32>>,
    versions: u32,
    acknowledged: u64,
    torn: u64,
}

impl Truth {
    /// Compares what was read from a unit on, and remembers it.
    fn compare(&mut self, from: u64, data: &[u8], what: &str) {
        for (i, got) in data.chunks(UNIT as usize).enumerate() {
            let unit = from + i as u64;
            let u = unit as usize;
            let fits = |version: u32| got == contents(unit, version);
            if fits(self.is[u]) {
            } else if let Some(version) = self.maybe[u].iter().copied().find(|v| fits(*v)) {
                self.is[u] = version;
                self.torn += 1;
            } else {
                let found = u32::from_le_bytes([got[0], got[1], got[2], got[3]]);
                panic!("{what}: unit {unit} is {found}, not {} or {:?}", self.is[u], self.maybe[u]);
            }
            self.maybe[u].clear();
        }
    }
}

async fn host(v: Rc<Compress>, truth: Rc<RefCell<Truth>>, first: u64, units: u64, seed: u64) {
    let mut prng = Prng::new(seed);
    loop {
        let most = [8, 16, 64, 300][prng.below(4) as usize];
        let mut n = prng.between(1, units.min(most));
        let mut at = first + prng.between(0, units - n);
        if prng.chance(1, 2) {
            // As file systems write.
            at = (at & !7).max(first);
            n = n.next_multiple_of(8).min(first + units - at);
        }
        let (byte, len) = (at * UNIT, n * UNIT);
        let range = at as usize..(at + n) as usize;
        if prng.chance(1, 4) {
            let got = read(&*v, byte, len as usize).await.expect("reads work");
            truth.borrow_mut().compare(at, &got, "read");
            continue;
        }
        let zero = prng.chance(1, 8);
        let mut data = Vec::new();
        {
            let mut t = truth.borrow_mut();
            t.versions += 4;
            // Mostly of one kind.
            let version = if zero { 0 } else { t.versions + prng.below(4) as u32 };
            for u in range.clone() {
                t.maybe[u].push(version);
                data.extend(contents(u as u64, version));
            }
        }
        let done = match zero {
            true => v.discard(byte, len).await,
            false => v.write(byte, Slice::copy_of(&data), false).await,
        };
        if done.is_err() {
            // In part, or not at all; what is there now stays.
            let got = read(&*v, byte, len as usize).await.expect("reads work");
            truth.borrow_mut().compare(at, &got, "after a failure");
        } else {
            let mut t = truth.borrow_mut();
            t.acknowledged += 1;
            for u in range {
                t.is[u] = t.maybe[u].pop().expect("nobody else's");
                t.maybe[u].clear();
            }
        }
    }
}

struct Sum {
    acknowledged: u64,
    torn: u64,
}

fn story(seed: u64, lives: u64) -> Sum {
    let mut prng = Prng::new(seed);
    let (algorithm, chunk) = KINDS[seed as usize % 4];
    let tasks = prng.between(1, 6);
    let units = prng.between(1, 5) * 2 * u64::from(chunk) / UNIT / tasks * tasks;
    let len = units * UNIT;
    let truth = Rc::new(RefCell::new(Truth {
        is: vec![0; units as usize],
        maybe: vec![Vec::new(); units as usize],
        ..Truth::default()
    }));
    let mut left = Blocks::default();
    for life in 0..lives {
        let lower = Medium::with(stored_len(len, chunk), 512, seed * 100 + life, left);
        let slow = prng.between(1, 100) * MICROS;
        lower.slow.set(slow);
        lower.fail.set([0, 0, 20][prng.below(3) as usize]);
        let lasts = slow * prng.between(1, 60);
        let o = Options {
            stamp: prng.next_u64(),
            memory: [1, 1 << 20][prng.below(2) as usize],
            ..options(algorithm, chunk)
        };
        let (t, m) = (truth.clone(), lower.clone());
        let r = reactor();
        let check_first = prng.chance(1, 2);
        r.block_on(PollMode::Sleep, async move {
            let v = Compress::new(m.clone(), o, pool()).expect("these are possible");
            if check_first {
                let slow = m.slow.take();
                let got = read(&*v, 0, len as usize).await.expect("reads work");
                t.borrow_mut().compare(0, &got, "after the crash");
                m.slow.set(slow);
            }
            let share = units / tasks;
            for i in 0..tasks {
                let host = host(v.clone(), t.clone(), i * share, share, seed * 7 + life * 13 + i);
                spawn_task(host);
            }
            sleep(lasts).await;
        });
        left = lower.cut();
        r.abandon();
    }
    let lower = Medium::with(stored_len(len, chunk), 512, seed, left);
    let t = truth.clone();
    reactor().block_on(PollMode::Sleep, async move {
        let o = Options { stamp: seed, ..options(algorithm, chunk) };
        let v = Compress::new(lower, o, pool()).expect("these are possible");
        for what in ["in the end", "once more"] {
            let got = read(&*v, 0, len as usize).await.expect("reads work");
            t.borrow_mut().compare(0, &got, what);
        }
    });
    let t = truth.borrow();
    Sum { acknowledged: t.acknowledged, torn: t.torn }
}

#[test]
fn power_cuts() {
    let stories: u64 = std::env::var("WEIR_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(200);
    let (mut acknowledged, mut torn) = (0, 0);
    let first: u64 = std::env::var("WEIR_FIRST").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
    for seed in first..first + stories {
        println!("seed {seed}");
        let s = story(seed, 5);
        acknowledged += s.acknowledged;
        torn += s.torn;
    }
    println!("{acknowledged} changes acknowledged, {torn} units of others found");
    assert!(acknowledged > 20 * stories && torn > stories, "{acknowledged} {torn}");
}
