//! Breadth first over all states, each once.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::panic::AssertUnwindSafe;

use weir_base::Prng;

use crate::scope::heals;
use crate::step::Step;
use crate::world::{Rules, World};

/// Of so many steps one is asked whether all goes well from there if nothing more fails.
const HEALS: u64 = 499;

/// Multiply and rotate: fast, the same on every machine.
#[derive(Default)]
struct Mix(u64);

impl Mix {
    fn add(&mut self, v: u64) {
        self.0 = (self.0.rotate_left(23) ^ v).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        let z = (self.0 ^ (self.0 >> 32)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z ^ (z >> 29)
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut b = [0; 8];
            b[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(b));
        }
    }

    fn write_u8(&mut self, v: u8) {
        self.add(u64::from(v));
    }

    fn write_u32(&mut self, v: u32) {
        self.add(u64::from(v));
    }

    fn write_u64(&mut self, v: u64) {
        self.add(v);
    }

    fn write_usize(&mut self, v: usize) {
        self.add(v as u64);
    }

    fn write_isize(&mut self, v: isize) {
        self.add(v as u64);
    }
}

/// What is hashed already.
#[derive(Default)]
struct Plain(u64);

impl Hasher for Plain {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, v: u64) {
        self.0 = v;
    }
}

fn sum(world: &World) -> u64 {
    let mut mix = Mix::default();
    world.hash(&mut mix);
    mix.finish()
}

/// What a search found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) states: usize,
    pub(crate) steps: u64,
    /// Length of the longest of the shortest histories.
    pub(crate) depth: usize,
    /// Every state within the bounds was seen.
    pub(crate) all: bool,
    /// What was violated, and the shortest history to it.
    pub(crate) wrong: Option<(String, Vec<Step>)>,
}

/// Looks at up to `limit` states that follow from `start`.
pub(crate) fn search(start: &World, rules: &Rules, limit: usize) -> Found {
    let mut seen: HashSet<u64, BuildHasherDefault<Plain>> = HashSet::default();
    // The history of each state: the one before, and the step from there.
    let mut from: Vec<(u32, Step)> = vec![(0, Step::Time(0, 0))];
    let (mut layer, mut next) = (vec![(start.clone(), 0u32)], Vec::new());
    let mut steps = Vec::new();
    let mut found = Found { states: 1, all: true, ..Found::default() };
    seen.insert(sum(start));
    while !layer.is_empty() {
        for (world, at) in layer.drain(..) {
            world.steps(&mut steps);
            for step in &steps {
                let mut after = world.clone();
                found.steps += 1;
                let asked = found.steps.is_multiple_of(HEALS);
                let right = caught(|| {
                    after.take(*step, rules)?;
                    if asked { heals(&after, rules) } else { Ok(()) }
                });
                if let Err(what) = right {
                    let mut history = vec![*step];
                    let mut n = at;
                    while n != 0 {
                        history.push(from[n as usize].1);
                        n = from[n as usize].0;
                    }
                    history.reverse();
                    found.wrong = Some((what, history));
                    return found;
                }
                if after.is_outside() || !seen.insert(sum(&after)) {
                    continue;
                }
                if found.states >= limit {
                    found.all = false;
                    return found;
                }
                found.states += 1;
                from.push((at, *step));
                next.push((after, (from.len() - 1) as u32));
            }
        }
        std::mem::swap(&mut layer, &mut next);
        found.depth += usize::from(!layer.is_empty());
    }
    found
}

/// An assertion of a machine is a finding, too.
fn caught(run: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    std::panic::catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|e| {
        let text = e.downcast_ref::<String>().map_or("a panic", String::as_str);
        Err(format!("assertion: {text}"))
    })
}

/// Goes through `histories` by chance, each of up to `length` steps: far, where the search above is thorough. After each
/// all goes well, and the pool must be served (P12).
pub(crate) fn wander(start: &World, rules: &Rules, histories: u64, length: usize) -> Found {
    let mut found = Found::default();
    let mut steps = Vec::new();
    for seed in 0..histories {
        let mut chance = Prng::new(seed);
        let (mut world, mut history) = (start.clone(), Vec::new());
        let right = caught(|| {
            while history.len() < length && !world.is_outside() {
                world.steps(&mut steps);
                let step = steps[chance.below(steps.len() as u64) as usize];
                history.push(step);
                world.take(step, rules)?;
            }
            heals(&world, rules)
        });
        found.steps += history.len() as u64;
        found.depth = found.depth.max(history.len());
        if let Err(what) = right {
            found.wrong = Some((what, history));
            return found;
        }
    }
    found
}
