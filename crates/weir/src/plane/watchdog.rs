//! Looks from outside whether reactors get on, and says what holds one up.
//!
//! A reactor serves all volumes of its core: whatever makes it wait makes all of them wait. Nothing of this program should;
//! what does is named, with the file or device that the system call is about.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use weir_control::dataplane::Hooks;
use weir_reactor::Handle;
use weir_uring::thread_waits_in;

/// How often it looks.
const EVERY: Duration = Duration::from_millis(200);
/// A turn that waits for longer in the kernel holds its reactor up.
const LONG: Duration = Duration::from_secs(1);
/// So does one that runs for longer; on a busy machine a thread may wait for a processor for seconds.
const VERY_LONG: Duration = Duration::from_secs(5);
/// A watch that was away for longer has seen nothing: the process was stopped, or the machine.
const AWAY: Duration = Duration::from_secs(1);

/// A reactor under watch.
pub(crate) struct Watched {
    pub(crate) handle: Handle,
    /// Of its thread, below `/proc`.
    pub(crate) task: PathBuf,
}

/// One turn of a reactor, as long as it lasts.
struct Turn {
    beat: u64,
    since: Instant,
    /// It has been told of.
    held: Option<String>,
}

/// The watch over all reactors.
pub(crate) struct Watchdog {
    watched: Vec<Watched>,
    turns: Mutex<Vec<Turn>>,
    hooks: OnceLock<Hooks>,
    stop: AtomicBool,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watchdog {
    /// Begins to watch, until it is [stopped](Watchdog::stop).
    pub(crate) fn start(watched: Vec<Watched>) -> Arc<Watchdog> {
        let turn = |_: &Watched| Turn { beat: 0, since: Instant::now(), held: None };
        let turns = Mutex::new(watched.iter().map(turn).collect());
        let (hooks, stop) = (OnceLock::new(), AtomicBool::new(false));
        let dog = Arc::new(Watchdog { watched, turns, hooks, stop });
        let it = dog.clone();
        let thread = std::thread::Builder::new().name("weir-watchdog".into()).spawn(move || {
            while !it.stop.load(Ordering::Acquire) {
                let begun = Instant::now();
                std::thread::sleep(EVERY);
                it.look(begun.elapsed() > AWAY);
            }
        });
        if let Err(e) = thread {
            tracing::warn!("nobody watches over the reactors: {e}");
        }
        dog
    }

    /// Has events told, too.
    pub(crate) fn tell(&self, hooks: Hooks) {
        drop(self.hooks.set(hooks));
    }

    /// What holds up the reactor of this index, if anything does.
    pub(crate) fn held(&self, index: usize) -> Option<String> {
        lock(&self.turns).get(index)?.held.clone()
    }

    /// What the reactor of this index does just now.
    pub(crate) fn doing(&self, index: usize) -> String {
        let Some(w) = self.watched.get(index) else { return "what is not known".into() };
        doing(w.handle.progress().task, thread_waits_in(&w.task))
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    fn look(&self, away: bool) {
        let mut turns = lock(&self.turns);
        for (index, (w, t)) in self.watched.iter().zip(turns.iter_mut()).enumerate() {
            let p = w.handle.progress();
            if !p.inside || p.beat != t.beat || away && t.held.is_none() {
                let ended = t.held.take().map(|text| (text, t.since.elapsed()));
                *t = Turn { beat: p.beat, since: Instant::now(), held: None };
                if let Some((text, time)) = ended {
                    self.say(index, "fault.ended", &format!("{text}; it goes on after {time:.1?}"));
                }
            } else if t.held.is_none() && t.since.elapsed() >= LONG {
                let call = thread_waits_in(&w.task);
                if call.is_none() && t.since.elapsed() < VERY_LONG {
                    continue;
                }
                let text = format!("reactor {index} is held up by {}", doing(p.task, call));
                self.say(index, "fault.began", &text);
                t.held = Some(text);
            }
        }
    }

    fn say(&self, index: usize, what: &str, text: &str) {
        tracing::error!("{text}");
        if let Some(h) = self.hooks.get() {
            h.events.publish(what, &format!("reactor/{index}"), text);
        }
    }
}

/// A task, and the system call that its thread waits in.
fn doing(task: Option<&'static str>, call: Option<String>) -> String {
    let task = task.map_or("work that was sent to it".into(), plain);
    task + &call.map_or(String::new(), |c| format!(", in {c}"))
}

/// A future's type as people know the task.
fn plain(name: &'static str) -> String {
    let name = name.replace("::{{closure}}", "");
    format!("the task {}", name.strip_prefix("weir_").unwrap_or(&name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plane::node::{Node, NodeConfig};
    use std::os::fd::AsRawFd;
    use std::sync::mpsc::channel;
    use weir_reactor::PollMode;

    fn until(mut done: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !done() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it does not come");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn what_holds_a_reactor_up_is_named_as_long_as_it_does() {
        let config = NodeConfig {
            cores: vec![None, None],
            poll: PollMode::Sleep,
            buffer_memory: 32 << 20,
            unsummed: [].into(),
            initiator: weir_control::model::InitiatorId([1; 16]),
            secret: None,
        };
        let node = Node::start(&config).expect("two reactors");
        let (read, write) = std::io::pipe().expect("a pipe");
        let fd = read.as_raw_fd();
        node.handles()[0].run(move || {
            weir_reactor::spawn_task(async move {
                let mut byte = [0];
                drop(std::io::Read::read(&mut &read, &mut byte));
            });
        });
        until(|| node.watchdog.held(0).is_some());
        let text = node.watchdog.held(0).unwrap_or_default();
        for word in ["reactor 0", "the task weir::plane::watchdog::tests", "in read of pipe:"] {
            assert!(text.contains(word), "{word} is missing in {text} ({fd})");
        }
        assert_eq!(node.watchdog.held(1), None);
        let (told, hears) = channel();
        node.handles()[1].run(move || told.send(()).expect("somebody listens"));
        hears.recv_timeout(Duration::from_secs(60)).expect("the other one serves");
        drop(write);
        until(|| node.watchdog.held(0).is_none());
        node.end().expect("all reactors end");
    }
}
