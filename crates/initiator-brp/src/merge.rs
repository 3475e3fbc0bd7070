//! Temporal merge: when commands that are there at the same time share a message (S1 section III C).
//!
//! A merged message costs its processing once, but its commands wait for the end of the turn and arrive all at
//! once. S1 found that merging pays from some number of commands in flight on and does harm below, and took a
//! threshold from experiments. [`Variant::Auto`] does the experiment while it works: [`Controller`].

use weir_base::{MICROS, Nanos};
use weir_proto_brp::Features;

/// Which of S1's designs a session follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Variant {
    /// BRP-1: no SCSI layer, and nothing else: the target runs one command of a channel at a time.
    Brp1,
    /// BRP-2: and every command for itself, in parallel.
    Brp2,
    /// BRP-3T: and always merged.
    Brp3T,
    /// BRP-3: and merged from so many commands in flight on.
    Brp3 {
        /// Commands in flight on the channel.
        threshold: u16,
    },
    /// Merged when that is found to be faster.
    #[default]
    Auto,
}

impl Variant {
    /// S1's BRP-3 with the threshold that its authors' method finds on loopback.
    pub const BRP3: Variant = Variant::Brp3 { threshold: 8 };

    /// The variant's name.
    pub fn name(self) -> &'static str {
        match self {
            Variant::Brp1 => "brp-1",
            Variant::Brp2 => "brp-2",
            Variant::Brp3T => "brp-3t",
            Variant::Brp3 { .. } => "brp-3",
            Variant::Auto => "auto",
        }
    }

    /// The variant of this name.
    pub fn named(name: &str) -> Option<Variant> {
        let all = [Variant::Brp1, Variant::Brp2, Variant::Brp3T, Variant::BRP3, Variant::Auto];
        all.into_iter().find(|v| v.name() == name)
    }

    pub(crate) fn features(self) -> Features {
        match self {
            Variant::Brp1 => Features::SERIAL,
            Variant::Brp2 => Features::default(),
            _ => Features::JUMBO.or(Features::COALESCE),
        }
    }
}

/// Classes of load: one for each power of two of commands in flight.
const CLASSES: usize = 12;
/// Completions and time after which a trial ends.
const TRIAL: u64 = 512;
const TRIAL_TIME: Nanos = 500 * MICROS;
/// A trial that takes longer than this was not busy all the time; it tells nothing.
const TRIAL_MAX: Nanos = 100_000 * MICROS;
/// What is done for so long after a change of the setting does not count: commands come in waves while they are merged, and
/// it takes a while until those have gone, or come.
const SETTLE: Nanos = 1000 * MICROS;
/// Trials with each setting in one comparison, and how many of them in a row.
const EACH: usize = 6;
const IN_A_ROW: usize = 3;
/// Comparisons in a row whose first half says one thing and the second half the other; the last counts all the same.
const TORN: u32 = 3;
/// Trials between two comparisons; doubles with each that confirms the setting.
const LOOK: u32 = 256;
const LOOK_MAX: u32 = 2048;
/// So much faster, in parts of 64, the other setting has to be to be taken.
const BETTER: u64 = 1;

/// What was learned for a class of load.
///
/// Both settings are compared by trials in turns, right behind each other: what another program, or a processor that
/// slows down, costs meanwhile, both pay. The median of a few trials counts, since a thread that was off its core for a
/// moment in one of them says nothing about merging.
#[derive(Debug, Clone, Copy)]
struct Class {
    /// Nanoseconds per command, times 16, of the last comparison: unmerged, merged. 0: not known.
    cost: [u64; 2],
    merged: bool,
    /// A comparison is under way, of which `done` trials are over.
    comparing: bool,
    /// Their outcomes: unmerged, merged.
    found: [[u64; EACH]; 2],
    done: usize,
    torn: u32,
    until_look: u32,
    look_every: u32,
}

/// The median, or the lower of two in the middle.
fn median<const N: usize>(mut all: [u64; N]) -> u64 {
    all.sort_unstable();
    all[(N - 1) / 2]
}

/// The medians of the first and the last trials of a setting.
fn halves(all: [u64; EACH]) -> [u64; 2] {
    let [a, b, c, d, e, f] = all;
    [median([a, b, c]), median([d, e, f])]
}

impl Class {
    const NEW: Class = Class {
        cost: [0; 2],
        merged: false,
        comparing: true,
        found: [[0; EACH]; 2],
        done: 0,
        torn: 0,
        until_look: LOOK,
        look_every: LOOK,
    };

    fn setting(&self) -> bool {
        if self.comparing { self.done / IN_A_ROW % 2 == 1 } else { self.merged }
    }

    /// Takes the outcome of a trial and decides about the next one.
    fn learn(&mut self, cost: u64) {
        if !self.comparing {
            self.until_look -= 1;
            self.comparing = self.until_look == 0;
            return;
        }
        let (turn, in_turn) = (self.done / IN_A_ROW, self.done % IN_A_ROW);
        self.found[turn % 2][turn / 2 * IN_A_ROW + in_turn] = cost;
        self.done += 1;
        if self.done < 2 * EACH {
            return;
        }
        let [plain, merged] = self.found.map(halves);
        let agree = (merged[0] < plain[0]) == (merged[1] < plain[1]);
        if !agree && self.torn < TORN {
            // Something else than merging made the difference.
            (self.torn, self.done) = (self.torn + 1, 0);
            return;
        }
        self.torn = 0;
        let first = self.cost == [0; 2];
        self.cost = self.found.map(median);
        let (mine, other) =
            (self.cost[usize::from(self.merged)], self.cost[usize::from(!self.merged)]);
        if other + other * BETTER / 64 < mine {
            self.merged = !self.merged;
            self.look_every = LOOK;
        } else if !first {
            self.look_every = (self.look_every * 2).min(LOOK_MAX);
        }
        (self.comparing, self.done, self.until_look) = (false, 0, self.look_every);
    }
}

/// A trial under way.
#[derive(Debug, Clone, Copy, Default)]
struct Trial {
    class: usize,
    merged: bool,
    begun: Nanos,
    done: u64,
    /// What does not count: completions of commands that were sent before it, and all until this time.
    skip: u64,
    settled: Nanos,
}

/// What a controller knows, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// From so many commands in flight (to twice as many, less one).
    pub in_flight: u32,
    /// Merged is on there.
    pub merged: bool,
    /// Nanoseconds per command without and with merging, as measured; 0 where not yet known.
    pub cost: [u64; 2],
}

/// Learns for one channel when merging pays: it compares the time per command with and without, for each class
/// of load by itself, and looks again now and then at what it does not use.
#[derive(Debug, Clone)]
pub struct Controller {
    classes: [Class; CLASSES],
    trial: Trial,
}

impl Default for Controller {
    fn default() -> Self {
        Controller::new()
    }
}

/// The class of this many commands in flight.
#[inline]
fn class(in_flight: u32) -> usize {
    (in_flight.max(1).ilog2() as usize).min(CLASSES - 1)
}

impl Controller {
    /// Knows nothing yet.
    pub fn new() -> Controller {
        Controller { classes: [Class::NEW; CLASSES], trial: Trial::default() }
    }

    /// Whether to merge with this many commands in flight.
    #[inline]
    pub fn merges(&self, in_flight: u32) -> bool {
        // One alone has nothing to be merged with.
        in_flight > 1 && self.classes[class(in_flight)].setting()
    }

    /// `n` commands have completed, of `in_flight` that were under way.
    #[inline]
    pub fn completed(&mut self, n: u64, in_flight: u32, now: Nanos) {
        let class = class(in_flight);
        if class.abs_diff(self.trial.class) > 1 {
            return self.begin(class, in_flight, now);
        }
        if self.trial.skip > 0 || now < self.trial.settled {
            self.trial.skip = self.trial.skip.saturating_sub(n);
            self.trial.begun = now;
            return;
        }
        self.trial.done += n;
        if self.trial.done >= TRIAL {
            self.conclude(class, in_flight, now);
        }
    }

    #[cold]
    fn begin(&mut self, class: usize, in_flight: u32, now: Nanos) {
        let merged = self.classes[class].setting();
        let same = merged == self.trial.merged && class == self.trial.class;
        let (skip, settled) = if same { (0, now) } else { (u64::from(in_flight), now + SETTLE) };
        self.trial = Trial { class, merged, begun: now, done: 0, skip, settled };
    }

    #[cold]
    fn conclude(&mut self, class: usize, in_flight: u32, now: Nanos) {
        let time = now.saturating_sub(self.trial.begun);
        if time < TRIAL_TIME {
            return;
        }
        if time < TRIAL_MAX && class == self.trial.class {
            self.classes[class].learn(time * 16 / self.trial.done.max(1));
        }
        self.begin(class, in_flight, now);
    }

    /// What was learned, for each class of load that was met.
    pub fn decisions(&self) -> Vec<Decision> {
        let known = |(_, c): &(usize, &Class)| c.cost != [0, 0];
        let decision = |(i, c): (usize, &Class)| Decision {
            in_flight: 1 << i,
            merged: i > 0 && c.merged,
            cost: c.cost.map(|c| c / 16),
        };
        self.classes.iter().enumerate().filter(known).map(decision).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_base::Prng;

    /// A channel with `depth` commands in flight that takes so long per command; gives the share of merged ones.
    fn play(
        c: &mut Controller,
        depth: u32,
        trials: u32,
        rng: &mut Prng,
        now: &mut Nanos,
        cost: impl Fn(bool) -> u64,
    ) -> f64 {
        let (mut merged, mut all) = (0u64, 0u64);
        for _ in 0..u64::from(trials) * TRIAL {
            let m = c.merges(depth);
            merged += u64::from(m);
            all += 1;
            // Noise of a tenth.
            let t = cost(m);
            *now += t * 9 / 10 + rng.below(t / 5 + 1);
            c.completed(1, depth, *now);
        }
        merged as f64 / all as f64
    }

    #[test]
    fn it_learns_what_pays_at_each_load_and_unlearns_it() {
        let (mut rng, mut now) = (Prng::new(5), 0);
        let mut c = Controller::new();
        let slow_merge = |m| if m { 1400 } else { 1000 };
        let fast_merge = |m| if m { 1000 } else { 1900 };
        play(&mut c, 8, 40, &mut rng, &mut now, slow_merge);
        play(&mut c, 64, 40, &mut rng, &mut now, fast_merge);
        let few = play(&mut c, 8, 400, &mut rng, &mut now, slow_merge);
        let many = play(&mut c, 64, 400, &mut rng, &mut now, fast_merge);
        assert!(few < 0.04, "merged {few} at depth 8");
        assert!(many > 0.96, "merged {many} at depth 64");
        let d = c.decisions();
        assert!(d.iter().any(|d| d.in_flight == 8 && !d.merged && d.cost[1] > d.cost[0]));
        assert!(d.iter().any(|d| d.in_flight == 64 && d.merged));
        // The machine changes.
        play(&mut c, 64, 2000, &mut rng, &mut now, slow_merge);
        let many = play(&mut c, 64, 400, &mut rng, &mut now, slow_merge);
        assert!(many < 0.04, "still merged {many} at depth 64");
    }

    #[test]
    fn what_the_machine_does_meanwhile_is_not_taken_for_merging() {
        for merge_is_better in [false, true] {
            let (mut rng, mut now) = (Prng::new(7), 0);
            let mut c = Controller::new();
            let (mut right, mut all, mut done) = (0u64, 0u64, 0u64);
            for i in 0..4000 * TRIAL {
                let m = c.merges(32);
                let better = m == merge_is_better;
                // A difference of 7 %; a clock that halves for tens of milliseconds; another program for 3 ms now and then.
                let t = if better { 1000 } else { 1070 };
                let t = if (now >> 25) % 3 == 0 { 2 * t } else { t };
                let stall = if rng.below(6 * TRIAL) == 0 { 3_000_000 } else { 0 };
                now += t * 9 / 10 + rng.below(t / 5 + 1) + stall;
                done += 1;
                if done % 4 == 0 {
                    c.completed(4, 32, now);
                }
                if i > 100 * TRIAL {
                    right += u64::from(better);
                    all += 1;
                }
            }
            let part = right as f64 / all as f64;
            assert!(part > 0.95, "{part} right where merging is better: {merge_is_better}");
        }
    }

    #[test]
    fn one_alone_is_never_merged_and_idle_times_teach_nothing() {
        let mut c = Controller::new();
        let mut now = 0;
        for _ in 0..10_000 {
            now += 1_000_000;
            assert!(!c.merges(1));
            c.completed(1, 1, now);
        }
        assert!(c.decisions().is_empty(), "{:?}", c.decisions());
    }

    #[test]
    fn names() {
        for v in [Variant::Brp1, Variant::Brp2, Variant::Brp3T, Variant::BRP3, Variant::Auto] {
            assert_eq!(Variant::named(v.name()), Some(v));
        }
        assert_eq!(Variant::named("brp-4"), None);
        assert!(!Variant::Brp2.features().has(Features::JUMBO));
    }
}
