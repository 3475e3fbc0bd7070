//! Work from other cores. The only door into a reactor that other threads may use.

use crate::completion::{Completion, Token};
use crate::driver::Unpark;
use crate::task::{MAX_REACTORS, TaskId};
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, RwLock};

pub(crate) enum Message {
    Wake(TaskId),
    Run(Box<dyn FnOnce() + Send>),
    Complete(Token, Completion),
}

/// What other threads see of a reactor's run loop.
#[derive(Default)]
pub(crate) struct Pulse {
    /// Counts the begins and ends of turns: odd inside one.
    beat: AtomicU64,
    /// What is run in the turn: 0 for none of its tasks, else a [`TaskName`].
    task: AtomicUsize,
}

/// Tells what a task is: the type of its future.
pub(crate) type TaskName = fn() -> &'static str;

impl Pulse {
    /// A turn begins or ends.
    #[inline]
    pub(crate) fn turn(&self) {
        // Only the reactor's own thread writes.
        self.task.store(0, Ordering::Relaxed);
        self.beat.store(self.beat.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// This task runs, until the next one does or the turn ends.
    #[inline]
    pub(crate) fn runs(&self, task: Option<TaskName>) {
        self.task.store(task.map_or(0, |t| t as usize), Ordering::Relaxed);
    }
}

/// Where a reactor's run loop is, as another thread sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Changes with every turn.
    pub beat: u64,
    /// It is in a turn, and not asleep or between two.
    pub inside: bool,
    /// The task that it runs, by the type of its future.
    pub task: Option<&'static str>,
}

struct Shared {
    pulse: Pulse,
    sender: Sender<Message>,
    /// Messages sent and not yet taken.
    waiting: AtomicUsize,
    sleeping: AtomicBool,
    unpark: Arc<dyn Unpark>,
}

impl Shared {
    fn post(&self, m: Message) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        if self.sender.send(m).is_err() {
            // The reactor has ended; so have the tasks that the message was for.
            return;
        }
        if self.sleeping.load(Ordering::SeqCst) {
            self.unpark.unpark();
        }
    }
}

struct Registered {
    generation: u16,
    shared: Option<Arc<Shared>>,
}

static REGISTRY: RwLock<Vec<Registered>> = RwLock::new(Vec::new());

/// Sends work to one reactor from any thread.
#[derive(Clone)]
pub struct Handle {
    id: u32,
    shared: Arc<Shared>,
}

impl Handle {
    /// The reactor's number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Where its run loop is: one that is inside a turn, and at the same beat for long, is held up by what it runs.
    pub fn progress(&self) -> Progress {
        let p = &self.shared.pulse;
        let beat = p.beat.load(Ordering::Relaxed);
        let task = match p.task.load(Ordering::Relaxed) {
            0 => None,
            // SAFETY: `runs` stores nothing else than pointers to functions of this type, and they are never gone.
            name => Some(unsafe { std::mem::transmute::<usize, TaskName>(name) }()),
        };
        Progress { beat, inside: beat % 2 == 1, task }
    }

    /// Runs `f` on the reactor, inside its next turn.
    pub fn run(&self, f: impl FnOnce() + Send + 'static) {
        self.shared.post(Message::Run(Box::new(f)));
    }

    /// Completes a token of that reactor.
    pub fn complete(&self, token: Token, c: Completion) {
        self.shared.post(Message::Complete(token, c));
    }
}

/// The receiving end, owned by the reactor.
pub(crate) struct Inbox {
    handle: Handle,
    receiver: RefCell<Receiver<Message>>,
    taken: Cell<u64>,
}

impl Inbox {
    pub(crate) fn new(unpark: Arc<dyn Unpark>) -> Self {
        let (sender, receiver) = channel();
        let shared = Arc::new(Shared {
            pulse: Pulse::default(),
            sender,
            waiting: AtomicUsize::new(0),
            sleeping: AtomicBool::new(false),
            unpark,
        });
        let mut all = REGISTRY.write().unwrap_or_else(|e| e.into_inner());
        let slot = all.iter().position(|r| r.shared.is_none()).unwrap_or_else(|| {
            assert!(all.len() < MAX_REACTORS, "too many reactors in one process");
            all.push(Registered { generation: 0, shared: None });
            all.len() - 1
        });
        all[slot].generation = (all[slot].generation + 1) & 0x3fff;
        all[slot].shared = Some(shared.clone());
        let id = u32::from(all[slot].generation) << 10 | slot as u32;
        Inbox {
            handle: Handle { id, shared },
            receiver: RefCell::new(receiver),
            taken: Cell::new(0),
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.handle.id
    }

    #[inline]
    pub(crate) fn pulse(&self) -> &Pulse {
        &self.handle.shared.pulse
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle.clone()
    }

    #[inline]
    pub(crate) fn has_mail(&self) -> bool {
        self.handle.shared.waiting.load(Ordering::SeqCst) > 0
    }

    #[inline]
    pub(crate) fn take(&self) -> Option<Message> {
        if self.handle.shared.waiting.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let m = self.receiver.borrow().try_recv().ok()?;
        self.handle.shared.waiting.fetch_sub(1, Ordering::SeqCst);
        self.taken.set(self.taken.get() + 1);
        Some(m)
    }

    pub(crate) fn set_sleeping(&self, yes: bool) {
        self.handle.shared.sleeping.store(yes, Ordering::SeqCst);
    }
}

impl Inbox {
    /// Gives the reactor's number free; mail sent to it from here on goes nowhere.
    pub(crate) fn retire(&self) {
        let mut all = REGISTRY.write().unwrap_or_else(|e| e.into_inner());
        if let Some(r) = all.get_mut((self.handle.id & 0x3ff) as usize)
            && u32::from(r.generation) == self.handle.id >> 10
        {
            r.shared = None;
        }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.retire();
    }
}

/// Posts to the reactor with this number; nothing happens when it has ended.
pub(crate) fn post(id: u32, m: Message) {
    let shared = {
        let all = REGISTRY.read().unwrap_or_else(|e| e.into_inner());
        match all.get((id & 0x3ff) as usize) {
            Some(r) if u32::from(r.generation) == id >> 10 => r.shared.clone(),
            _ => None,
        }
    };
    if let Some(s) = shared {
        s.post(m);
    }
}

/// Runs `f` on the reactor numbered `id`; nothing happens when that one has ended.
pub fn send_to(id: u32, f: impl FnOnce() + Send + 'static) {
    post(id, Message::Run(Box::new(f)));
}

/// A handle to the present reactor, to be given to other threads.
pub fn handle() -> Handle {
    crate::executor::with(|i| i.inbox.handle())
}
