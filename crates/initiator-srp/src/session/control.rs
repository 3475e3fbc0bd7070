//! The path as a whole: first login, loss, return.

use super::local::Local;
use super::{PathState, Shared};
use crate::channel::{ChannelError, Rung};
use crate::planted::{Bug, has};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_base::{Nanos, Prng};
use weir_reactor::{Handle, TaskId, call, current_id, sleep, spawn_task};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// A login is being made. `true`: one of its channels was lost already.
    LoggingIn(bool),
    Running,
}

/// The control task's state, on one reactor.
pub(crate) struct Control {
    shared: Arc<Shared>,
    /// Number of the present login.
    generation: Cell<u64>,
    phase: Cell<Phase>,
    /// Where the last good login began in the list of addresses.
    addr: Cell<usize>,
    jitter: RefCell<Prng>,
    task: Cell<Option<TaskId>>,
    timer: Cell<Option<TaskId>>,
    /// The path is down for so long that commands fail.
    late: Cell<bool>,
    /// Reactors of the channels.
    homes: RefCell<Vec<Handle>>,
}

/// The next number of what is counted. Only the control task counts.
fn next(counted: &AtomicU64) -> u64 {
    counted.fetch_add(1, Ordering::Relaxed) + 1
}

impl Control {
    pub(crate) async fn first_login(shared: &Arc<Shared>) -> Result<(), ChannelError> {
        let local = Local::find(shared.id).ok_or(ChannelError::NoReactor)?;
        let before = shared.home.swap(current_id(), Ordering::AcqRel);
        assert!(before == 0, "a session logs in once");
        // Hosts, and sessions of a host, come back at times of their own.
        let ports = [&shared.config.initiator, &shared.config.target];
        let seed = ports.iter().fold(0u64, |s, p| s.rotate_left(21) ^ p.extension() ^ p.guid());
        let control = Rc::new(Control {
            shared: shared.clone(),
            generation: Cell::new(next(&shared.logins)),
            phase: Cell::new(Phase::LoggingIn(false)),
            addr: Cell::new(0),
            jitter: RefCell::new(Prng::new(seed)),
            task: Cell::new(None),
            timer: Cell::new(None),
            late: Cell::new(false),
            homes: RefCell::default(),
        });
        *local.control.borrow_mut() = Some(control.clone());
        match control.login().await {
            Ok(()) => Ok(()),
            Err(e) => {
                // As before, so that the caller may try again.
                control.shut().await;
                local.control.take();
                shared.home.store(0, Ordering::Release);
                Err(e)
            }
        }
    }

    /// A channel of login `generation` was lost, or a ladder has come to its end.
    pub(crate) fn lost(self: &Rc<Self>, generation: u64) {
        if generation != self.generation.get() || self.shared.state() == PathState::Closed {
            return;
        }
        match self.phase.get() {
            Phase::LoggingIn(_) => self.phase.set(Phase::LoggingIn(true)),
            Phase::Running => {
                self.phase.set(Phase::LoggingIn(false));
                self.late.set(false);
                self.shared.note(Rung::Disconnect, 0);
                let me = self.clone();
                self.task.set(Some(spawn_task(async move { me.recover().await })));
                let me = self.clone();
                self.timer.set(Some(spawn_task(async move { me.fail_later().await })));
            }
        }
    }

    pub(crate) fn stop(&self) {
        for t in [self.task.take(), self.timer.take()].into_iter().flatten() {
            weir_reactor::cancel(t);
        }
    }

    /// A reactor has joined late: it learns how things are.
    pub(crate) fn joined(self: &Rc<Self>) {
        let me = self.clone();
        spawn_task(async move {
            if me.phase.get() == Phase::Running {
                let homes = me.homes.borrow().clone();
                let _ = me.tell(PathState::Running, &homes).await;
            }
        });
    }

    /// Ends waiting of commands when the path has been down for too long.
    async fn fail_later(self: Rc<Self>) {
        sleep(self.shared.config.fast_io_fail).await;
        self.timer.set(None);
        if self.phase.get() != Phase::Running {
            tracing::error!("the path has been down for too long: commands fail");
            self.late.set(true);
            self.tell(PathState::Failing, &[]).await;
        }
    }

    /// Logs in again, until that works.
    async fn recover(self: Rc<Self>) {
        self.tell(PathState::Blocked, &[]).await;
        let c = &self.shared.config;
        let mut pause: Nanos = c.reconnect_min.max(1);
        loop {
            self.shut().await;
            self.generation.set(next(&self.shared.logins));
            self.phase.set(Phase::LoggingIn(false));
            match self.login().await {
                Ok(()) => break,
                Err(e) => tracing::warn!(error = %e, pause_ms = pause / 1_000_000, "login failed"),
            }
            // Hosts that lost the same target do not come back in step.
            let jitter = self.jitter.borrow_mut().below(pause / 4 + 1);
            sleep(pause + jitter).await;
            pause = c.longer(pause);
        }
        self.task.set(None);
        if let Some(t) = self.timer.take() {
            weir_reactor::cancel(t);
        }
        self.shared.note(Rung::Reconnect, 0);
    }

    /// Logs all channels in and lets commands run.
    async fn login(&self) -> Result<(), ChannelError> {
        let reactors = self.shared.reactors();
        let config = &self.shared.config;
        let wanted = config.channel_count(reactors.len());
        let mut homes: Vec<Handle> = Vec::new();
        for index in 0..wanted {
            let h = &reactors[index % reactors.len()];
            match self.open(h, index).await {
                Ok(()) => homes.push(h.clone()),
                Err(e) if index == 0 => return Err(e),
                Err(e) => {
                    tracing::warn!(error = %e, "only {} of {wanted} channels", homes.len());
                    break;
                }
            }
        }
        loop {
            self.shared.channels.store(homes.len() as u32, Ordering::Relaxed);
            // Again if the time was up meanwhile: that would be the last word.
            if self.tell(PathState::Running, &homes).await || has(Bug::LateIsLast) {
                break;
            }
        }
        *self.homes.borrow_mut() = homes;
        if self.phase.get() == Phase::LoggingIn(true) {
            let before = if self.late.get() { PathState::Failing } else { PathState::Blocked };
            self.tell(before, &[]).await;
            return Err(ChannelError::BadResponse("a channel was lost during the login".into()));
        }
        self.phase.set(Phase::Running);
        Ok(())
    }

    /// Tells all reactors; `homes` are those of the channels. Of two tellings at once the later one counts: gives whether this did.
    async fn tell(&self, state: PathState, homes: &[Handle]) -> bool {
        let change = next(&self.shared.changes);
        if state != PathState::Running {
            self.shared.channels.store(0, Ordering::Relaxed);
        }
        if state == PathState::Running && self.phase.get() == Phase::Running {
            // A reactor that joined late.
        } else {
            self.shared.set_life(state == PathState::Running);
        }
        let (id, generation) = (self.shared.id, self.generation.get());
        for (i, h) in self.shared.reactors().into_iter().enumerate() {
            let single = self.shared.single.is_some();
            let here = homes.iter().any(|x| x.id() == h.id());
            let away =
                (!homes.is_empty() && (single || !here)).then(|| homes[i % homes.len()].clone());
            call(&h, move || async move {
                if let Some(l) = Local::find(id) {
                    l.enter(change, state, generation, away);
                }
            })
            .await;
        }
        let is_last = self.shared.changes.load(Ordering::Relaxed) == change;
        if is_last {
            self.shared.set_state_open(state);
        }
        is_last
    }

    /// Closes all channels everywhere.
    async fn shut(&self) {
        let id = self.shared.id;
        for h in self.shared.reactors() {
            call(&h, move || async move {
                if let Some(l) = Local::find(id) {
                    l.shut().await;
                }
            })
            .await;
        }
    }

    /// One channel, at the first address that has it.
    async fn open(&self, there: &Handle, index: usize) -> Result<(), ChannelError> {
        let addrs = &self.shared.config.addrs;
        let mut last = ChannelError::BadResponse("the session has no address".into());
        for i in 0..addrs.len() {
            let at = (self.addr.get() + index + i) % addrs.len();
            let (id, addr, generation) = (self.shared.id, addrs[at].clone(), self.generation.get());
            let opened = call(there, move || async move {
                match Local::find(id) {
                    Some(l) => l.open(index, addr, generation).await,
                    None => Err(ChannelError::NoReactor),
                }
            })
            .await;
            match opened.unwrap_or(Err(ChannelError::NoReactor)) {
                Ok(()) => {
                    if index == 0 {
                        self.addr.set(at);
                    }
                    return Ok(());
                }
                Err(e) => last = e,
            }
        }
        Err(last)
    }
}

/// Resets a logical unit over the first channel, then has its commands aborted wherever they are.
pub(crate) async fn lun_reset(shared: &Arc<Shared>, lun: u64) -> bool {
    let id = shared.id;
    let reactors = shared.reactors();
    let Some(first) = reactors.first() else { return false };
    let reset = move || async move {
        match Local::find(id) {
            Some(l) => l.lun_reset(lun).await,
            None => None,
        }
    };
    let Some(answered) = call(first, reset).await.flatten() else { return false };
    // A command that is sent again from here on is not an old one.
    for h in reactors {
        call(&h, move || async move {
            if let Some(l) = Local::find(id) {
                l.expire(lun, answered);
            }
        })
        .await;
    }
    true
}
