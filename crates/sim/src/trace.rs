//! The trace of a run: a hash over every decision and event, and the last lines in words.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use weir_base::Nanos;

/// Lines kept for a dump.
const KEEP: usize = 400;

#[derive(Default)]
pub(crate) struct Trace {
    hash: Cell<u64>,
    steps: Cell<u64>,
    words: Cell<bool>,
    print: Cell<bool>,
    lines: RefCell<VecDeque<String>>,
}

impl Trace {
    /// Adds a decision to the hash.
    #[inline]
    pub(crate) fn mix(&self, x: u64) {
        let h = (self.hash.get().rotate_left(23) ^ x).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.hash.set(h ^ (h >> 29));
        self.steps.set(self.steps.get() + 1);
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash.get()
    }

    pub(crate) fn steps(&self) -> u64 {
        self.steps.get()
    }

    /// Keeps lines from here on; with `print` also writes them to standard error as they come.
    pub(crate) fn keep_words(&self, print: bool) {
        self.words.set(true);
        self.print.set(print);
    }

    /// Adds a line, if lines are kept. Words never change the hash: a replay with words is the same run.
    #[inline]
    pub(crate) fn line(&self, now: Nanos, words: impl FnOnce() -> String) {
        if !self.words.get() {
            return;
        }
        let line = format!("{:>13.6} ms  {}", now as f64 / 1e6, words());
        if self.print.get() {
            eprintln!("{line}");
        }
        let mut lines = self.lines.borrow_mut();
        if lines.len() == KEEP {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.borrow().iter().cloned().collect()
    }
}
