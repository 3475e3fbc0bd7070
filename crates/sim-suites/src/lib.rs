//! Simulation suites: programs that run in a simulated world under one seed, and their runner.
//!
//! `weir-sim-suites SUITE --seeds N [--start S] [--jobs J]` runs seeds S to S+N-1; each is a world of its
//! own in one thread. A failing seed is printed with the command that replays it. The last line is
//! `N passed, N failed`.

mod args;
pub mod load;
pub mod own;
#[cfg(feature = "planted")]
pub mod planted;
mod runner;
pub mod srp;
mod suites;

pub use args::{Args, USAGE};
pub use runner::{Failure, Tally, run};
pub use suites::{SUITES, Suite};

use weir_base::Prng;
use weir_sim::{Carrier, Options, Stuck, World};

/// One run of a suite.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// Everything that happens follows from this.
    pub seed: u64,
    /// Write the trace in words to standard error.
    pub words: bool,
}

impl Run {
    /// The world of this run. In one of three that have a network its messages go by the provider that ships, on byte streams.
    pub fn world(&self, mut options: Options) -> World {
        if options.net.planted.is_none() && Prng::new(self.seed ^ 0x73_7472).chance(1, 3) {
            options.net.carrier = Carrier::Streams;
        }
        let w = World::with(self.seed, options);
        if self.words {
            w.keep_words(true);
        }
        w
    }
}

/// What a run that found nothing wrong has to show.
#[derive(Debug, Clone, Default)]
pub struct Pass {
    /// [`World::trace_hash`] at the end: the same for every run of the seed.
    pub trace: u64,
    /// Figures to be summed up over all seeds: what was covered.
    pub figures: Vec<(&'static str, u64)>,
}

/// What is wrong, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong(pub String);

impl From<Stuck> for Wrong {
    fn from(s: Stuck) -> Self {
        Wrong(s.to_string())
    }
}

impl From<String> for Wrong {
    fn from(s: String) -> Self {
        Wrong(s)
    }
}

impl From<weir_sim::check::Violation> for Wrong {
    fn from(v: weir_sim::check::Violation) -> Self {
        Wrong(v.to_string())
    }
}
