//! Runs seeds in parallel threads and says which failed.

use crate::args::Args;
use crate::suites::Suite;
use crate::{Pass, Run, Wrong};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Each seed divisible by this is run twice, to see that its trace is the same.
const TWICE: u64 = 16;
/// More figures than that have a line each.
const ON_A_LINE: usize = 12;
/// Failures printed in full.
const SHOWN: usize = 5;

/// Suites, and the number of seeds from which on a figure that is 0 is a failure: they count what they did, and what a suite
/// never did it does not show.
const LONG: &[(&str, u64)] = &[("store", 2000), ("doors", 1000), ("hosts", 300), ("node", 300)];

/// A seed that failed.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// What was wrong.
    pub what: String,
}

/// What came out of many seeds.
#[derive(Debug)]
pub struct Tally {
    suite: &'static str,
    /// Seeds that found nothing wrong.
    pub passed: u64,
    /// Those that did, in order.
    pub failures: Vec<Failure>,
    /// Sums over all seeds that passed.
    pub figures: BTreeMap<&'static str, u64>,
    /// Real time of it all.
    pub elapsed: Duration,
}

thread_local! {
    /// The seed that this thread runs, and the panic that ended it.
    static CURRENT: RefCell<(u64, String)> = const { RefCell::new((0, String::new())) };
}

/// Keeps a panic's message for the report, instead of many threads' messages on the screen.
pub(crate) fn catch_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            let payload = info.payload();
            let said = payload.downcast_ref::<String>().map(String::as_str);
            let said = said.or(payload.downcast_ref::<&str>().copied()).unwrap_or("panicked");
            let place = info.location().map(|l| format!(" ({}:{})", l.file(), l.line()));
            let text = format!("{said}{}", place.unwrap_or_default());
            let kept = CURRENT.try_with(|c| {
                let mut c = c.borrow_mut();
                if !c.1.is_empty() {
                    // A panic while unwinding ends the process: this is the last chance to say where.
                    eprintln!("seed {}: {}\nand then: {text}", c.0, c.1);
                }
                c.1 = text.clone();
            });
            if kept.is_err() {
                eprintln!("{text}");
            }
        }));
    });
}

/// Runs one seed once.
pub(crate) fn once(suite: &Suite, run: Run) -> Result<Pass, Wrong> {
    CURRENT.with(|c| *c.borrow_mut() = (run.seed, String::new()));
    let result = catch_unwind(AssertUnwindSafe(|| (suite.run)(&run)));
    result.unwrap_or_else(|_| Err(Wrong(CURRENT.with(|c| std::mem::take(&mut c.borrow_mut().1)))))
}

/// Runs one seed, now and then twice.
fn seed(suite: &Suite, run: Run) -> Result<Pass, Wrong> {
    let first = once(suite, run)?;
    if run.seed.is_multiple_of(TWICE) {
        let again = once(suite, Run { words: false, ..run })?;
        if again.trace != first.trace {
            return Err(Wrong(format!(
                "not deterministic: one run has trace {:016x}, another {:016x}",
                first.trace, again.trace
            )));
        }
    }
    Ok(first)
}

/// Runs the seeds that `args` name.
pub fn run(suite: &Suite, args: &Args) -> Tally {
    catch_panics();
    let begin = Instant::now();
    let next = AtomicU64::new(0);
    let tally = Mutex::new(Tally {
        suite: suite.name,
        passed: 0,
        failures: Vec::new(),
        figures: BTreeMap::new(),
        elapsed: Duration::ZERO,
    });
    let work = || {
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= args.seeds {
                return;
            }
            let run = Run { seed: args.start.wrapping_add(n), words: args.words };
            let result = seed(suite, run);
            let mut t = tally.lock().unwrap_or_else(|e| e.into_inner());
            match result {
                Ok(pass) => {
                    t.passed += 1;
                    for (name, value) in pass.figures {
                        *t.figures.entry(name).or_default() += value;
                    }
                }
                Err(Wrong(what)) => t.failures.push(Failure { seed: run.seed, what }),
            }
        }
    };
    std::thread::scope(|s| {
        for _ in 0..args.jobs.min(args.seeds.max(1) as usize) {
            s.spawn(work);
        }
    });
    let mut t = tally.into_inner().unwrap_or_else(|e| e.into_inner());
    t.failures.sort_by_key(|f| f.seed);
    t.elapsed = begin.elapsed();
    t
}

impl Tally {
    /// What a long run never did.
    pub fn never_done(&self) -> Vec<&'static str> {
        let seeds = self.passed + self.failures.len() as u64;
        let long = LONG.iter().any(|(suite, n)| *suite == self.suite && seeds >= *n);
        let never = self.figures.iter().filter(|(_, n)| long && **n == 0);
        never.map(|(name, _)| *name).collect()
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, x) in self.failures.iter().enumerate() {
            let first = x.what.lines().next().unwrap_or("");
            let text = if i < SHOWN { &x.what } else { first };
            writeln!(f, "FAILED {} seed {}: {text}", self.suite, x.seed)?;
            writeln!(f, "  replay: cargo xtask sim {} --seeds 1 --start {}", self.suite, x.seed)?;
        }
        let figures: Vec<String> = self.figures.iter().map(|(n, v)| format!("{v} {n}")).collect();
        if figures.len() > ON_A_LINE {
            for (name, value) in &self.figures {
                writeln!(f, "{value:>12}  {name}")?;
            }
        } else if !figures.is_empty() {
            writeln!(f, "{}: {}", self.suite, figures.join(", "))?;
        }
        for name in self.never_done() {
            writeln!(f, "FAILED {}: 0 {name}: what it never did it does not show", self.suite)?;
        }
        let seeds = self.passed + self.failures.len() as u64;
        let rate = seeds as f64 / self.elapsed.as_secs_f64().max(1e-9);
        writeln!(f, "{}: {:.2} s, {rate:.0} seeds/s", self.suite, self.elapsed.as_secs_f64())?;
        writeln!(f, "{} passed, {} failed", self.passed, self.failures.len())
    }
}
