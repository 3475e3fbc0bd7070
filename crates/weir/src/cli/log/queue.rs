//! Lines of the log on their way to whoever reads them. That may stand still, or have ended: nobody who logs waits for it.

use super::json;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

/// Lines that may wait; more are left out and counted.
const MOST: usize = 4096;

enum Job {
    Line(Vec<u8>),
    /// All before it has been written.
    Tell(SyncSender<()>),
}

/// The way to the reader. What is written at once is a line.
#[derive(Debug, Clone)]
pub(super) struct Queue {
    jobs: SyncSender<Job>,
    left_out: Arc<AtomicU64>,
    /// Lines are JSON.
    json: bool,
}

impl Queue {
    /// A queue to `to`, which a thread of its own writes to.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub(super) fn to(to: impl Write + Send + 'static, json: bool) -> io::Result<Queue> {
        let (jobs, all) = sync_channel(MOST);
        let run = move || write(to, &all);
        std::thread::Builder::new().name("weir-log".into()).spawn(run)?;
        Ok(Queue { jobs, left_out: Arc::default(), json })
    }

    pub(super) fn is_json(&self) -> bool {
        self.json
    }

    /// A line of what is no event of the log.
    pub(super) fn line(&self, level: &str, text: &str) -> String {
        if self.json { json::said(level, text) } else { format!("{text}\n") }
    }

    /// Waits until what came before is written, but for no longer than `limit`.
    pub(super) fn settle(&self, limit: Duration) {
        let until = Instant::now() + limit;
        let (tell, told) = sync_channel(1);
        let mut job = Job::Tell(tell);
        // A reader that is slow makes room.
        while let Err(TrySendError::Full(again)) = self.jobs.try_send(job) {
            if Instant::now() >= until {
                return;
            }
            job = again;
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = told.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

fn write(mut to: impl Write, jobs: &Receiver<Job>) {
    for job in jobs {
        // A reader that has ended is no reason to end.
        match job {
            Job::Line(line) => drop(to.write_all(&line)),
            Job::Tell(tell) => {
                drop(to.flush());
                let _ = tell.try_send(());
            }
        }
    }
}

impl Write for Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let n = self.left_out.swap(0, Ordering::Relaxed);
        let mut text = Vec::new();
        if n > 0 {
            let missed = format!("... {n} lines were left out: nobody read the log for a while");
            text.extend_from_slice(self.line("warn", &missed).as_bytes());
        }
        text.extend_from_slice(line);
        if let Err(TrySendError::Full(_)) = self.jobs.try_send(Job::Line(text)) {
            self.left_out.fetch_add(n + 1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Mutex, MutexGuard};

    /// A reader that stands still while somebody holds it.
    #[derive(Clone, Default)]
    struct Reader(Arc<Mutex<Vec<u8>>>);

    impl Reader {
        fn hold(&self) -> MutexGuard<'_, Vec<u8>> {
            self.0.lock().expect("it")
        }
    }

    impl Write for Reader {
        fn write(&mut self, b: &[u8]) -> io::Result<usize> {
            self.hold().write(b)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_reader_that_stands_still_holds_nobody_up_and_is_told_what_it_missed() {
        let reader = Reader::default();
        let mut queue = Queue::to(reader.clone(), false).expect("a thread");
        queue.write_all(b"first\n").expect("written");
        queue.settle(LONG);
        let held = reader.hold();
        let all = MOST as u64 + 100;
        for n in 0..all {
            queue.write_all(format!("{n}\n").as_bytes()).expect("written");
        }
        queue.settle(Duration::from_millis(1));
        drop(held);
        while !reader.hold().ends_with(b"last\n") {
            queue.write_all(b"last\n").expect("written");
            queue.settle(LONG);
        }
        let text = String::from_utf8(reader.hold().clone()).expect("text");
        let missed: u64 = text
            .lines()
            .filter_map(|l| l.strip_prefix("... ")?.split(' ').next()?.parse::<u64>().ok())
            .sum();
        let came = text.lines().filter(|l| l.parse::<u64>().is_ok()).count() as u64;
        assert!(missed >= 99 && came >= MOST as u64, "{missed} missed, {came} came");
        assert!(text.starts_with("first\n0\n1\n"));
    }

    #[test]
    fn what_is_said_of_lines_that_are_missed_is_json_too() {
        let reader = Reader::default();
        let mut queue = Queue::to(reader.clone(), true).expect("a thread");
        queue.left_out.store(7, Ordering::Relaxed);
        queue.write_all(b"{}\n").expect("written");
        queue.settle(LONG);
        let text = String::from_utf8(reader.hold().clone()).expect("text");
        let (first, rest) = text.split_once('\n').expect("two lines");
        let first: serde_json::Value = serde_json::from_str(first).expect("JSON");
        assert_eq!((first["level"].as_str(), rest), (Some("warn"), "{}\n"));
        assert!(first["text"].as_str().is_some_and(|t| t.contains("7 lines")), "{first}");
    }

    #[test]
    fn a_reader_that_has_ended_ends_nothing() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let mut queue = Queue::to(writer, false).expect("a thread");
        drop(reader);
        for _ in 0..3 {
            queue.write_all(b"a line\n").expect("written");
            queue.settle(LONG);
        }
    }
}
