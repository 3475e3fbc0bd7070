//! Power goes while much is under way: what was acknowledged is there, of the rest each part is old or new, what was read
//! once stays so; no count is too low, and after a recount none is too high.

use crate::common::{reactor, read};
use crate::dedup::together::{UNIT, contents, range};
use crate::dedup::{CHUNKS, options, pool};
use crate::medium::{Blocks, Medium};
use std::cell::RefCell;
use std::rc::Rc;
use weir_base::{MICROS, Prng, SECONDS};
use weir_block::Volume;
use weir_layers::dedup::{Dedup, Options, stored_len};
use weir_mem::Slice;
use weir_reactor::{PollMode, sleep, spawn_task};

/// What the volume should hold.
#[derive(Default)]
struct Truth {
    chunk: u32,
    /// Acknowledged, or read.
    is: Vec<u32>,
    /// Under way, or failed, or were so when power went.
    maybe: Vec<Vec<u32>>,
    unique: u32,
    acknowledged: u64,
    torn: u64,
}

impl Truth {
    /// Compares what was read from a unit on, and remembers it.
    fn compare(&mut self, from: u64, data: &[u8], what: &str) {
        for (i, got) in data.chunks(UNIT as usize).enumerate() {
            let unit = from + i as u64;
            let u = unit as usize;
            let fits = |version: u32| got == contents(unit, version, self.chunk);
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

async fn host(v: Rc<Dedup>, truth: Rc<RefCell<Truth>>, first: u64, units: u64, seed: u64) {
    let mut prng = Prng::new(seed);
    let chunk = truth.borrow().chunk;
    let each = u64::from(chunk) / UNIT;
    loop {
        let (at, n) = range(&mut prng, first, units, chunk);
        let (byte, len) = (at * UNIT, n * UNIT);
        if prng.chance(1, 4) {
            let got = read(&*v, byte, len as usize).await.expect("reads work");
            truth.borrow_mut().compare(at, &got, "read");
            continue;
        }
        let zero = prng.chance(1, 8);
        let mut data = Vec::new();
        {
            let mut t = truth.borrow_mut();
            t.unique += 1;
            let unique = prng.chance(1, 4);
            let one = prng.below(6) as u32;
            for u in at..at + n {
                let version = match (zero, unique) {
                    (true, _) => 0,
                    (_, true) => 1000 * t.unique + (u / each) as u32,
                    _ => (one + (u / each) as u32) % 6,
                };
                t.maybe[u as usize].push(version);
                data.extend(contents(u, version, chunk));
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
            for u in at..at + n {
                t.is[u as usize] = t.maybe[u as usize].pop().expect("nobody else's");
                t.maybe[u as usize].clear();
            }
        }
    }
}

#[derive(Default)]
struct Sum {
    acknowledged: u64,
    torn: u64,
    saved: u64,
    recounts_cut: u64,
}

fn story(seed: u64, lives: u64, sum: &mut Sum) {
    let mut prng = Prng::new(seed);
    let chunk = CHUNKS[seed as usize % 4];
    let tasks = prng.between(1, 6);
    let each = u64::from(chunk) / UNIT;
    let share = prng.between(1, 12) * each;
    // Sometimes over several groups.
    let apart = if seed % 4 == 3 { 300 * each } else { share };
    let units = apart * tasks;
    let len = units * UNIT;
    let truth = Rc::new(RefCell::new(Truth {
        chunk,
        is: vec![0; units as usize],
        maybe: vec![Vec::new(); units as usize],
        ..Truth::default()
    }));
    let mut left = Blocks::default();
    for life in 0..lives {
        let lower = Medium::with(stored_len(len, chunk), 512, seed * 100 + life, left);
        let slow = prng.between(1, 100) * MICROS;
        lower.slow.set(slow);
        lower.vague.set(seed.is_multiple_of(2));
        lower.late.set([0, slow, 20 * slow][prng.below(3) as usize]);
        lower.fail.set([0, 0, 20][prng.below(3) as usize]);
        // Sometimes within the recount, sometimes long after it.
        let lasts = slow * prng.between(1, 200);
        let idle = [0, 0, 20 * SECONDS][prng.below(3) as usize];
        let o = Options { records: [1, 1 << 20][prng.below(2) as usize], ..options(chunk) };
        let (t, m) = (truth.clone(), lower.clone());
        let r = reactor();
        let check_first = prng.chance(1, 2);
        let cut = r.block_on(PollMode::Sleep, async move {
            let v = Dedup::new(m.clone(), o, pool()).expect("these are possible");
            if check_first {
                let slow = m.slow.take();
                let got = read(&*v, 0, len as usize).await.expect("reads work");
                t.borrow_mut().compare(0, &got, "after the crash");
                assert_eq!(v.audit(false).await.expect("reads work"), None, "seed {seed}");
                m.slow.set(slow);
            }
            sleep(idle).await;
            for i in 0..tasks {
                let host = host(v.clone(), t.clone(), i * apart, share, seed * 7 + life * 13 + i);
                spawn_task(host);
            }
            sleep(lasts).await;
            u64::from(v.figures().is_some_and(|f| f.recount.is_some()))
        });
        sum.recounts_cut += cut;
        left = lower.cut();
        r.abandon();
    }
    let lower = Medium::with(stored_len(len, chunk), 512, seed, left);
    lower.vague.set(seed.is_multiple_of(3));
    let t = truth.clone();
    sum.saved += reactor().block_on(PollMode::Sleep, async move {
        let v = Dedup::new(lower.clone(), options(chunk), pool()).expect("these are possible");
        assert_eq!(v.audit(false).await.expect("reads work"), None, "seed {seed}");
        for what in ["in the end", "once more"] {
            let got = read(&*v, 0, len as usize).await.expect("reads work");
            t.borrow_mut().compare(0, &got, what);
            // The recount, and what it leads to.
            sleep(30 * SECONDS).await;
        }
        assert!(v.is_clean(), "seed {seed}: {:?}", v.figures());
        lower.vague.set(false);
        assert_eq!(v.audit(true).await.expect("reads work"), None, "seed {seed}");
        v.figures().expect("read by now").saved / u64::from(chunk)
    });
    let t = truth.borrow();
    sum.acknowledged += t.acknowledged;
    sum.torn += t.torn;
}

#[test]
fn power_cuts() {
    let number = |name: &str| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    let (stories, first) = (number("WEIR_SEEDS").unwrap_or(300), number("WEIR_FIRST").unwrap_or(0));
    let mut sum = Sum::default();
    for seed in first..first + stories {
        println!("seed {seed}");
        story(seed, 6, &mut sum);
    }
    let Sum { acknowledged, torn, saved, recounts_cut } = sum;
    println!("{acknowledged} acknowledged, {torn} units of others found, {saved} chunks saved");
    println!("{recounts_cut} cuts within a recount");
    assert!(acknowledged > 20 * stories && torn > stories && saved > stories, "too little");
    assert!(recounts_cut > 0 || stories < 100);
}
