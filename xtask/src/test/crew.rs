//! Jobs side by side: as many at once as the machine holds, each one's output in one piece.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use crate::tally::Tally;

/// How many jobs that mostly wait fit on one core.
const WAITING_PER_CORE: usize = 3;
/// After so long without a word, the running jobs are named.
const SILENCE: Duration = Duration::from_secs(30);

/// What a job takes of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    /// Cargo at work in a target directory, which it locks: one at a time in each.
    Build(&'static str),
    /// A core.
    Core,
    /// Next to nothing: it mostly waits.
    Little,
}

/// What there is to do: part of a step, that runs as one.
pub(crate) struct Job {
    pub(crate) step: &'static str,
    pub(crate) title: String,
    pub(crate) takes: Takes,
    pub(crate) work: Work,
}

/// What a job does; an error is a failure.
pub(crate) type Work = Box<dyn FnOnce() -> Result<Ended> + Send>;

/// What became of a job.
#[derive(Default)]
pub(crate) struct Ended {
    pub(crate) tally: Tally,
    /// All that it printed.
    pub(crate) text: String,
    /// A word for the summary.
    pub(crate) remark: String,
    /// What can be done now.
    pub(crate) next: Vec<Job>,
}

/// A job that ended, and when, counted from the start of all.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) step: &'static str,
    pub(crate) title: String,
    pub(crate) began: Duration,
    pub(crate) ended: Duration,
    pub(crate) tally: Tally,
    pub(crate) remark: String,
}

impl Report {
    /// How long it took.
    pub(crate) fn took(&self) -> f64 {
        (self.ended - self.began).as_secs_f64()
    }

    /// The same, counted from a start that was earlier by `before`.
    pub(crate) fn later(self, before: Duration) -> Report {
        Report { began: self.began + before, ended: self.ended + before, ..self }
    }

    /// `ok` or `FAILED`.
    pub(crate) fn verdict(&self) -> &'static str {
        if self.tally.failed == 0 { "ok" } else { "FAILED" }
    }
}

struct Running {
    number: usize,
    step: &'static str,
    title: String,
    takes: Takes,
    began: Duration,
}

/// How many cores there are.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// How many jobs, or tests of one program, that mostly wait run at once.
pub(crate) fn waiting_at_once(cores: usize) -> usize {
    cores * WAITING_PER_CORE
}

/// Whether a job that takes `job` may run beside those that take `others`.
fn fits(job: Takes, others: &[Takes], cores: usize) -> bool {
    let builds = others.iter().filter(|t| matches!(t, Takes::Build(_))).count();
    let same = others.iter().filter(|t| **t == job).count();
    match job {
        Takes::Build(_) => same == 0,
        // A build has use for every core, but one job computes beside it, so that no core idles at its ends.
        Takes::Core => same < cores.saturating_sub(builds).max(1),
        Takes::Little => same < waiting_at_once(cores),
    }
}

/// Runs `jobs` and all that follow from them, each as soon as it fits, in their order. `show` is called for each
/// that ends, with what it printed, and with a line now and then when none has ended for long.
pub(crate) fn run(
    jobs: Vec<Job>,
    cores: usize,
    show: &mut dyn FnMut(Option<&Report>, &str),
) -> Vec<Report> {
    let started = Instant::now();
    let mut waiting: VecDeque<Job> = jobs.into();
    let mut running: Vec<Running> = Vec::new();
    let mut reports = Vec::new();
    let (sender, results) = mpsc::channel::<(usize, Result<Ended>)>();
    for number in 0.. {
        let taken: Vec<Takes> = running.iter().map(|r| r.takes).collect();
        if let Some(at) = waiting.iter().position(|job| fits(job.takes, &taken, cores))
            && let Some(Job { step, title, takes, work }) = waiting.remove(at)
        {
            running.push(Running { number, step, title, takes, began: started.elapsed() });
            let sender = sender.clone();
            thread::spawn(move || {
                let result = catch_unwind(AssertUnwindSafe(work));
                // The receiver lives as long as any job runs.
                let _ = sender.send((number, result.unwrap_or_else(|_| Err(anyhow!("a panic")))));
            });
            continue;
        }
        if running.is_empty() {
            break;
        }
        let (ended, result) = match results.recv_timeout(SILENCE) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                let names = running.iter().map(|r| format!("{} {}", r.step, r.title));
                let names: Vec<String> = names.map(|name| name.trim_end().to_string()).collect();
                let seconds = started.elapsed().as_secs();
                show(None, &format!(".. {seconds} s: {}\n", names.join(", ")));
                continue;
            }
        };
        let Some(at) = running.iter().position(|r| r.number == ended) else { continue };
        let Running { step, title, began, .. } = running.remove(at);
        let ended = result.unwrap_or_else(|error| Ended {
            tally: Tally::one(false),
            text: format!("{step}: {error:#}\n"),
            remark: format!("{error:#}"),
            next: Vec::new(),
        });
        waiting.extend(ended.next);
        let (tally, remark) = (ended.tally, ended.remark);
        let report = Report { step, title, began, ended: started.elapsed(), tally, remark };
        show(Some(&report), &ended.text);
        reports.push(report);
    }
    reports
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const LONG: Duration = Duration::from_millis(60);

    fn job(
        title: &str,
        takes: Takes,
        work: impl FnOnce() -> Result<Ended> + Send + 'static,
    ) -> Job {
        Job { step: "step", title: title.into(), takes, work: Box::new(work) }
    }

    fn quiet(jobs: Vec<Job>, cores: usize) -> Vec<Report> {
        run(jobs, cores, &mut |_, _| {})
    }

    /// The most of `n` such jobs that ran at once.
    fn at_once(n: usize, takes: Takes, cores: usize) -> usize {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let jobs = (0..n).map(|i| {
            let (now, most) = (now.clone(), most.clone());
            job(&i.to_string(), takes, move || {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::sleep(LONG);
                now.fetch_sub(1, Ordering::SeqCst);
                Ok(Ended { tally: Tally::one(true), ..Ended::default() })
            })
        });
        assert_eq!(quiet(jobs.collect(), cores).len(), n);
        most.load(Ordering::SeqCst)
    }

    #[test]
    fn no_more_run_at_once_than_fit() {
        assert_eq!(at_once(5, Takes::Core, 2), 2);
        assert_eq!(at_once(3, Takes::Build("a"), 2), 1);
        assert_eq!(at_once(2 * WAITING_PER_CORE + 1, Takes::Little, 2), 2 * WAITING_PER_CORE);
    }

    #[test]
    fn builds_take_cores_but_never_the_last() {
        let (a, b) = (Takes::Build("a"), Takes::Build("b"));
        assert!(fits(b, &[a, Takes::Core], 2));
        assert!(!fits(a, &[a], 2));
        assert!(fits(Takes::Core, &[a, b], 2));
        assert!(!fits(Takes::Core, &[a, Takes::Core], 2));
        assert!(fits(Takes::Core, &[a, Takes::Core], 4));
        assert!(fits(Takes::Little, &[a, b, Takes::Core], 1));
    }

    #[test]
    fn what_follows_runs_too_and_what_fails_is_told() {
        let first = job("first", Takes::Core, || {
            let next = job("next", Takes::Core, || anyhow::bail!("no luck"));
            let tally = Tally { passed: 3, failed: 0 };
            Ok(Ended { tally, text: "said\n".into(), next: vec![next], ..Ended::default() })
        });
        let panics = job("panics", Takes::Core, || panic!("on purpose"));
        let mut shown = Vec::new();
        let reports = run(vec![first, panics], 1, &mut |report, text| {
            shown.push((report.map(|r| r.title.clone()), text.to_string()));
        });
        assert_eq!(shown[0], (Some("first".into()), "said\n".into()));
        let verdict = |title| reports.iter().find(|r| r.title == title).unwrap().verdict();
        assert_eq!(
            (verdict("first"), verdict("next"), verdict("panics")),
            ("ok", "FAILED", "FAILED")
        );
        assert!(shown.iter().any(|(_, text)| text.contains("no luck")), "{shown:?}");
        assert_eq!(reports[0].tally.passed, 3);
    }
}
