//! A session: one initiator port at one target port, with several channels on several reactors.
//!
//! | | |
//! |---|---|
//! | [`Session`] | the handle, for any thread |
//! | [`local`] | a reactor's part: its channels |
//! | [`control`] | logins, loss and return of the path; runs on the reactor that logs in |
//! | [`Queue`](crate::Queue) | a reactor's handle for I/O |

mod config;
pub(crate) mod control;
pub(crate) mod local;

pub use config::{QueueMode, SessionConfig};

use crate::channel::{ChannelCensus, ChannelError, Rung};
use crate::forward::single::SingleQueue;
use crate::planted::{Bug, has};
use crate::queue::Queue;
use local::Local;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use weir_base::Nanos;
use weir_base::unflushed::Unflushed;
use weir_fabric::Provider;
use weir_proto_scsi::Lun;
use weir_proto_scsi::sense::{Sense, SenseKey};
use weir_reactor::{Handle, call, sleep, spawn_task};

static NEXT: AtomicU64 = AtomicU64::new(1);

/// Numbers of logins.
static LIVES: AtomicU64 = AtomicU64::new(1);

/// Marks a number as that of a login, and not as one that a target has told.
pub(crate) const LIFE: u64 = 1 << 63;

/// True for caches that are told apart by logins, for want of better.
pub(crate) fn is_life(cache: u64) -> bool {
    cache & LIFE != 0
}

/// Events kept for [`Session::events`].
const EVENTS: usize = 256;

/// State of the path to the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum PathState {
    /// Not logged in yet.
    New,
    /// Commands run.
    Running,
    /// Lost; commands wait.
    Blocked,
    /// Lost for longer than the time for fast I/O failure: commands fail. It is still tried to log in again.
    Failing,
    /// Closed by its owner.
    Closed,
}

impl PathState {
    const ALL: [PathState; 5] = [
        PathState::New,
        PathState::Running,
        PathState::Blocked,
        PathState::Failing,
        PathState::Closed,
    ];
}

/// Something that went wrong on the path, or was done about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// When, on the clock of the reactor where it happened.
    pub at: Nanos,
    /// What was done.
    pub rung: Rung,
    /// The logical unit, for task management.
    pub lun: u64,
}

/// News of a unit that the target told by itself (SRP_AER_REQ). The next command to the unit meets the same as
/// a unit attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notice {
    /// When it came, on the clock of the reactor of the first channel.
    pub at: Nanos,
    /// The logical unit.
    pub lun: Lun,
    /// What it says; `None` for sense data that cannot be read.
    pub sense: Option<Sense>,
}

/// Counts since the session was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SessionFigures {
    /// Channels logged in now.
    pub channels: usize,
    /// Commands aborted because their time was up, or nobody waited.
    pub aborts: u64,
    /// LOGICAL UNIT RESETs.
    pub lun_resets: u64,
    /// How often the path was lost.
    pub losses: u64,
    /// How often all channels were logged in again.
    pub reconnects: u64,
    /// Commands sent again after a loss of the path.
    pub resent: u64,
    /// Unit attentions met.
    pub unit_attentions: u64,
}

#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) aborts: AtomicU64,
    pub(crate) lun_resets: AtomicU64,
    pub(crate) losses: AtomicU64,
    pub(crate) reconnects: AtomicU64,
    pub(crate) resent: AtomicU64,
    pub(crate) unit_attentions: AtomicU64,
}

/// What all reactors of a session share. Nothing of it is touched per command.
pub(crate) struct Shared {
    pub(crate) id: u64,
    pub(crate) config: SessionConfig,
    reactors: Mutex<Vec<Handle>>,
    /// The reactor of the control task; 0 while there is none.
    pub(crate) home: AtomicU32,
    state: AtomicU8,
    pub(crate) channels: AtomicU32,
    /// Logins tried so far, by whichever control task.
    pub(crate) logins: AtomicU64,
    /// Changes of state told so far. Reactors know the last one: it goes on where a first login comes to nothing.
    pub(crate) changes: AtomicU64,
    pub(crate) counts: Counts,
    /// Present in single-queue mode.
    pub(crate) single: Option<Arc<SingleQueue>>,
    events: Mutex<VecDeque<Event>>,
    notices: Mutex<VecDeque<Notice>>,
    /// Goes up when a number may have another unit than it had.
    pub(crate) news: AtomicU64,
    /// Number of the login in force, of all sessions of the process; 0 while there is none.
    life: AtomicU64,
    /// Writes that are not known to be durable, by unit.
    unflushed: Mutex<BTreeMap<Vec<u8>, Arc<Record>>>,
    /// Units that have, or had, a number here.
    numbers: Mutex<Vec<(Lun, Arc<Record>)>>,
}

/// What the sessions of a process that reach a unit know of writes to it.
#[derive(Default)]
pub(crate) struct Record {
    pub(crate) unflushed: Arc<Unflushed>,
    sessions: Mutex<Vec<Weak<Shared>>>,
}

impl Record {
    fn joined(&self, session: &Arc<Shared>) {
        let mut all = lock(&self.sessions);
        if !all.iter().any(|s| std::ptr::eq(s.as_ptr(), Arc::as_ptr(session))) {
            all.push(Arc::downgrade(session));
        }
    }

    /// True when the login of this number is in force, of another session than `not`.
    fn lives(&self, life: u64, not: &Shared) -> bool {
        let all = lock(&self.sessions);
        let mut others = all.iter().filter_map(Weak::upgrade).filter(|s| s.id != not.id);
        others.any(|s| s.life() == life)
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(|e| e.into_inner())
}

impl Shared {
    pub(crate) fn reactors(&self) -> Vec<Handle> {
        lock(&self.reactors).clone()
    }

    pub(crate) fn set_state(&self, s: PathState) {
        self.state.store(s as u8, Ordering::Release);
    }

    /// As [`set_state`](Shared::set_state), unless the session was closed.
    pub(crate) fn set_state_open(&self, s: PathState) {
        if self.state() != PathState::Closed {
            self.set_state(s);
        }
    }

    /// Number of the login in force; 0 without one.
    pub(crate) fn life(&self) -> u64 {
        self.life.load(Ordering::Acquire)
    }

    /// A login works from now on, or none does.
    pub(crate) fn set_life(&self, running: bool) {
        let life = if running { LIVES.fetch_add(1, Ordering::Relaxed) } else { 0 };
        self.life.store(life, Ordering::Release);
    }

    /// The record of writes to a unit: the one there is, or `new`.
    pub(crate) fn record(self: &Arc<Self>, name: &[u8], new: Arc<Record>) -> Arc<Record> {
        let r = lock(&self.unflushed).entry(name.to_vec()).or_insert(new).clone();
        r.joined(self);
        r
    }

    /// The unit of this record has this number here.
    pub(crate) fn numbered(&self, lun: Lun, record: &Arc<Record>) {
        let mut all = lock(&self.numbers);
        match all.iter_mut().find(|(l, _)| *l == lun) {
            Some(known) => known.1 = record.clone(),
            None => all.push((lun, record.clone())),
        }
    }

    /// A number may have another unit than it had.
    pub(crate) fn renumbered(&self) {
        self.news.fetch_add(1, Ordering::AcqRel);
    }

    /// A command has not ended with GOOD, and nobody looks at what its unit has said, if anything has come.
    pub(crate) fn unseen(&self, lun: Lun, sense: &[u8]) {
        match Sense::parse(sense) {
            Some(s) if s.key == SenseKey::UnitAttention => self.heed(lun, &s),
            Some(_) => {}
            None => self.renumbered(),
        }
    }

    /// A unit has told a unit attention: another unit may have its number, or its caches may have lost something.
    pub(crate) fn heed(&self, lun: Lun, sense: &Sense) {
        // REPORTED LUNS DATA HAS CHANGED, INQUIRY DATA HAS CHANGED, and whatever has reset it.
        let renumbered = matches!((sense.asc, sense.ascq), (0x3f, 0x03 | 0x0e) | (0x29, _));
        if renumbered && !has(Bug::AttentionPassedOver) {
            self.renumbered();
        }
        let power = sense.same_code(&Sense::POWER_ON_OR_RESET) || sense.same_code(&Sense::POWER_ON);
        if !power {
            return;
        }
        let numbers = lock(&self.numbers);
        if let Some((_, r)) = numbers.iter().find(|(l, _)| *l == lun) {
            // Each nexus hears of it. A path that has been up all the time is proof that the target's machine has; units
            // that tell a number themselves (`POWER_PAGE`) are judged by that.
            r.unflushed.lose(|cache| is_life(cache) && !r.lives(cache & !LIFE, self));
        }
    }

    pub(crate) fn state(&self) -> PathState {
        PathState::ALL[usize::from(self.state.load(Ordering::Acquire))]
    }

    /// The target has told an event. What is known of its units may be wrong now, on all reactors.
    pub(crate) fn noticed(&self, lun: u64, sense: &[u8]) {
        let notice = Notice { at: weir_reactor::now(), lun: Lun(lun), sense: Sense::parse(sense) };
        tracing::info!(lun, sense = ?notice.sense, "event of the target");
        let mut n = lock(&self.notices);
        if n.len() == EVENTS {
            n.pop_front();
        }
        n.push_back(notice);
        drop(n);
        self.renumbered();
        let id = self.id;
        for h in self.reactors() {
            h.run(move || {
                if let Some(l) = Local::find(id) {
                    l.blocks.borrow_mut().clear();
                }
            });
        }
    }

    /// Notes a rung of the ladder.
    pub(crate) fn note(&self, rung: Rung, lun: u64) {
        let count = match rung {
            Rung::AbortTask => &self.counts.aborts,
            Rung::LunReset => &self.counts.lun_resets,
            Rung::Disconnect => &self.counts.losses,
            Rung::Reconnect => &self.counts.reconnects,
        };
        count.fetch_add(1, Ordering::Relaxed);
        let mut e = lock(&self.events);
        if e.len() == EVENTS {
            e.pop_front();
        }
        e.push_back(Event { at: weir_reactor::now(), rung, lun });
    }
}

/// A session. Cloning gives another handle; it may be used on any thread.
///
/// Its reactors keep their part of it until [`close`](Session::close).
#[derive(Clone)]
pub struct Session(pub(crate) Arc<Shared>);

impl Session {
    /// A session that is not logged in. Every reactor that will submit commands or hold channels
    /// [joins](Session::join) it, then one of them [logs in](Session::login).
    pub fn new(config: SessionConfig) -> Session {
        let single = (config.queue_mode == QueueMode::Single)
            .then(|| Arc::new(SingleQueue::new(usize::from(config.depth.max(1)))));
        Session(Arc::new(Shared {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            config,
            reactors: Mutex::default(),
            home: AtomicU32::new(0),
            state: AtomicU8::new(PathState::New as u8),
            channels: AtomicU32::new(0),
            logins: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            counts: Counts::default(),
            single,
            events: Mutex::default(),
            notices: Mutex::default(),
            news: AtomicU64::new(0),
            life: AtomicU64::new(0),
            unflushed: Mutex::default(),
            numbers: Mutex::default(),
        }))
    }

    /// A session of the present reactor alone, logged in.
    ///
    /// # Errors
    /// As [`login`](Session::login).
    pub async fn connect(
        provider: Rc<dyn Provider>,
        config: SessionConfig,
    ) -> Result<Session, ChannelError> {
        let s = Session::new(config);
        s.join(provider);
        match s.login().await {
            Ok(()) => Ok(s),
            Err(e) => {
                s.close().await;
                Err(e)
            }
        }
    }

    /// Adds the present reactor, with the provider of its channels. One that joins after the login uses
    /// the channels of others until the next login.
    pub fn join(&self, provider: Rc<dyn Provider>) {
        if Local::find(self.0.id).is_some() || self.state() == PathState::Closed {
            return;
        }
        Local::start(self.0.clone(), provider);
        lock(&self.0.reactors).push(weir_reactor::handle());
        let id = self.0.id;
        weir_reactor::send_to(self.0.home.load(Ordering::Acquire), move || {
            let control = Local::find(id).and_then(|l| l.control.borrow().clone());
            if let Some(c) = control {
                c.joined();
            }
        });
    }

    /// Logs all channels in: the first ends what the target still has of this initiator port (action
    /// terminate), the others join it. They are spread over the reactors in the order in which these
    /// joined. Fewer channels than configured are no error, none is.
    ///
    /// From here on the present reactor looks after the path: when a channel is lost, all are closed and
    /// logged in again.
    ///
    /// # Errors
    /// Why the first channel could not be logged in.
    ///
    /// # Panics
    /// When the present reactor has not joined, or the session has logged in before.
    pub async fn login(&self) -> Result<(), ChannelError> {
        control::Control::first_login(&self.0).await
    }

    /// Logs in as soon as that is possible, in the background: for one of several paths whose
    /// [`login`](Session::login) has failed. Commands wait until then.
    ///
    /// # Panics
    /// When the present reactor has not joined, or the session has logged in before.
    pub fn login_later(&self) {
        let me = self.clone();
        spawn_task(async move {
            let c = me.config();
            let mut pause = c.reconnect_min.max(1);
            loop {
                sleep(pause).await;
                if me.state() == PathState::Closed || me.login().await.is_ok() {
                    return;
                }
                pause = c.longer(pause);
            }
        });
    }

    /// The present reactor's handle for I/O.
    ///
    /// # Panics
    /// When the reactor has not joined, or the session is closed.
    #[expect(
        clippy::expect_used,
        reason = "documented misuse; nothing that a target sends leads here"
    )]
    pub fn queue(&self) -> Queue {
        let local = Local::find(self.0.id).expect("the reactor has joined the session");
        Queue::new(local)
    }

    /// State of the path.
    pub fn state(&self) -> PathState {
        self.0.state()
    }

    /// The settings.
    pub fn config(&self) -> &SessionConfig {
        &self.0.config
    }

    /// Counts since the session was made.
    pub fn figures(&self) -> SessionFigures {
        let c = &self.0.counts;
        let get = |a: &AtomicU64| a.load(Ordering::Relaxed);
        SessionFigures {
            channels: self.0.channels.load(Ordering::Relaxed) as usize,
            aborts: get(&c.aborts),
            lun_resets: get(&c.lun_resets),
            losses: get(&c.losses),
            reconnects: get(&c.reconnects),
            resent: get(&c.resent),
            unit_attentions: get(&c.unit_attentions),
        }
    }

    /// What went wrong lately, oldest first; at most 256.
    pub fn events(&self) -> Vec<Event> {
        lock(&self.0.events).iter().copied().collect()
    }

    /// What the target told of its units by itself lately, oldest first; at most 256.
    pub fn notices(&self) -> Vec<Notice> {
        lock(&self.0.notices).iter().copied().collect()
    }

    /// What the present reactor's channels hold.
    pub fn census(&self) -> Vec<ChannelCensus> {
        Local::find(self.0.id).map_or_else(Vec::new, |l| l.census())
    }

    /// Ends all channels; commands under way end in doubt, later ones fail. Waits until all is down.
    pub async fn close(&self) {
        self.0.set_state(PathState::Closed);
        let home = self.0.home.load(Ordering::Acquire);
        let id = self.0.id;
        weir_reactor::send_to(home, move || {
            if let Some(l) = Local::find(id) {
                l.stop_control();
            }
        });
        for h in self.0.reactors() {
            call(&h, move || async move {
                if let Some(l) = Local::find(id) {
                    l.close().await;
                }
            })
            .await;
        }
        lock(&self.0.reactors).clear();
    }
}
