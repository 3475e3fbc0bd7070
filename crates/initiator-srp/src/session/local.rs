//! A session's part on one reactor.

use super::control::Control;
use super::{PathState, Shared};
use crate::channel::{Channel, ChannelCensus, ChannelError, Escalate, Rung};
use crate::error::Error;
use crate::forward::lend::Name;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weir_base::{MILLIS, Nanos};
use weir_fabric::Provider;
use weir_proto_scsi::Lun;
use weir_proto_srp::TaskFunction;
use weir_reactor::{
    Handle, LocalFuture, TaskId, WaitChannel, get_part, remove_part, send_to, set_part, sleep,
    spawn_task,
};

/// How often is looked whether commands that were given up have ended.
const LOOK: Nanos = 5 * MILLIS;

/// Which login it is, and how much has been heard of units since the session was made: what was known of a unit under
/// another stamp has to be looked at again.
pub(crate) type Stamp = (u64, u64);

/// A reset of a logical unit that is under way.
#[derive(Default)]
struct Reset {
    /// It may be at the target already.
    sent: Cell<bool>,
    done: Cell<Option<Nanos>>,
    over: WaitChannel,
}

/// A session's part on one reactor.
pub(crate) struct Local {
    pub(crate) shared: Arc<Shared>,
    provider: Rc<dyn Provider>,
    /// Numbers and channels, as far as logged in.
    channels: RefCell<Vec<(usize, Rc<Channel>)>>,
    turn: Cell<usize>,
    state: Cell<PathState>,
    /// Counts logins, so that a command that was lost waits for the next one.
    generation: Cell<u64>,
    /// Number of the newest change of the path that is known here.
    change: Cell<u64>,
    changed: WaitChannel,
    /// Logical units whose reset is under way, and who else waits for that.
    resets: RefCell<Vec<(u64, Rc<Reset>)>>,
    /// Where commands go while no channel is here.
    away: RefCell<Option<Handle>>,
    direct: bool,
    /// Commands of other reactors that run here, by reactor and number.
    pub(crate) guests: RefCell<BTreeMap<Name, TaskId>>,
    /// Sizes of logical blocks: unit and binary logarithm.
    pub(crate) blocks: RefCell<Vec<(Lun, u32)>>,
    pub(crate) control: RefCell<Option<Rc<Control>>>,
    me: Weak<Local>,
}

impl Local {
    pub(crate) fn start(shared: Arc<Shared>, provider: Rc<dyn Provider>) -> Rc<Local> {
        let id = shared.id;
        let direct = shared.single.is_none();
        let local = Rc::new_cyclic(|me| Local {
            shared,
            provider,
            channels: RefCell::default(),
            turn: Cell::new(0),
            state: Cell::new(PathState::New),
            generation: Cell::new(0),
            change: Cell::new(0),
            resets: RefCell::default(),
            changed: WaitChannel::new(0),
            away: RefCell::default(),
            direct,
            guests: RefCell::default(),
            blocks: RefCell::default(),
            control: RefCell::default(),
            me: me.clone(),
        });
        set_part(id, local.clone());
        local
    }

    /// The part of session `id` on the present reactor.
    pub(crate) fn find(id: u64) -> Option<Rc<Local>> {
        get_part(id)
    }

    pub(crate) fn state(&self) -> PathState {
        self.state.get()
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.get()
    }

    #[inline]
    pub(crate) fn stamp(&self) -> Stamp {
        (self.generation.get(), self.shared.news.load(Ordering::Acquire))
    }

    /// A channel of this reactor for the next command. Round robin if there are several.
    #[inline]
    pub(crate) fn channel(&self) -> Option<Rc<Channel>> {
        // With one queue for all, no reactor uses a channel by itself.
        if self.direct { self.channel_here() } else { None }
    }

    #[inline]
    pub(crate) fn channel_here(&self) -> Option<Rc<Channel>> {
        if self.state.get() != PathState::Running {
            return None;
        }
        let all = self.channels.borrow();
        match all.as_slice() {
            [] => None,
            [(_, c)] => c.is_up().then(|| c.clone()),
            many => {
                let n = many.len();
                let first = self.turn.get();
                self.turn.set(if first + 1 >= n { 0 } else { first + 1 });
                (0..n).map(|i| &many[(first + i) % n].1).find(|c| c.is_up()).cloned()
            }
        }
    }

    /// The reactor that has a channel for this one.
    pub(crate) fn away(&self) -> Option<Handle> {
        self.away.borrow().clone()
    }

    /// Waits until commands may run; for a command that was lost, in a login after `lost`.
    pub(crate) async fn usable(&self, lost: Option<u64>) -> Result<(), Error> {
        loop {
            match self.state.get() {
                PathState::Closed => return Err(Error::Closed),
                PathState::Failing => return Err(Error::PathDown),
                PathState::Running if lost.is_none_or(|g| self.generation.get() > g) => {
                    return Ok(());
                }
                _ => self.changed.wait().await,
            }
        }
    }

    // What the control task asks of every reactor.

    /// Takes note of a change of the path, unless a later one is known.
    pub(crate) fn enter(
        &self,
        change: u64,
        state: PathState,
        generation: u64,
        away: Option<Handle>,
    ) {
        if self.state.get() == PathState::Closed || change < self.change.get() {
            return;
        }
        self.change.set(change);
        self.state.set(state);
        self.generation.set(generation);
        *self.away.borrow_mut() = away;
        self.changed.signal_all();
    }

    /// Logs a channel in, here.
    pub(crate) async fn open(
        self: Rc<Self>,
        index: usize,
        addr: String,
        generation: u64,
    ) -> Result<(), ChannelError> {
        let config = self.shared.config.channel(index);
        let escalate: Rc<dyn Escalate> = Rc::new(Ladder { local: self.me.clone(), generation });
        let c = Channel::connect_with(&*self.provider, &addr, config, Some(escalate)).await?;
        if self.state.get() == PathState::Closed {
            c.disconnect(true);
            return Err(ChannelError::NoReactor);
        }
        tracing::info!(peer = %c.peer(), channel = index, "channel logged in");
        let shared = self.shared.clone();
        c.on_event(Rc::new(move |lun, sense| shared.noticed(lun, sense)));
        let shared = self.shared.clone();
        c.on_unseen(Rc::new(move |lun, sense| shared.unseen(Lun(lun), sense)));
        self.channels.borrow_mut().push((index, c.clone()));
        spawn_task(async move {
            c.ended().await;
            tracing::warn!(channel = index, reason = %c.close_reason(), "channel lost");
            self.lost(generation);
        });
        Ok(())
    }

    /// Closes all channels and waits for their end.
    pub(crate) async fn shut(&self) {
        let all = self.channels.take();
        for (_, c) in &all {
            c.disconnect(true);
        }
        for (_, c) in &all {
            c.ended().await;
        }
    }

    pub(crate) async fn close(&self) {
        self.state.set(PathState::Closed);
        self.changed.signal_all();
        if let Some(q) = &self.shared.single {
            q.clear();
        }
        self.shut().await;
        *self.away.borrow_mut() = None;
        remove_part::<Local>(self.shared.id);
    }

    pub(crate) fn stop_control(&self) {
        if let Some(c) = self.control.take() {
            c.stop();
        }
    }

    /// Tells the control task that a channel of login `generation` is no good.
    fn lost(&self, generation: u64) {
        let id = self.shared.id;
        let home = self.shared.home.load(Ordering::Acquire);
        send_to(home, move || {
            let control = Local::find(id).and_then(|l| l.control.borrow().clone());
            if let Some(c) = control {
                c.lost(generation);
            }
        });
    }

    /// Resets a logical unit over the first channel, if that is here. Whoever wants the same before that is sent shares the
    /// result: the time at which the answer came. One that is at the target already may have passed there before the
    /// command came for which another is wanted; so that waits, and is sent then.
    pub(crate) async fn lun_reset(&self, lun: u64) -> Option<Nanos> {
        if let Some(next) = self.reset_of(lun, false) {
            next.over.wait().await;
            return next.done.get();
        }
        let r = Rc::new(Reset::default());
        self.resets.borrow_mut().push((lun, r.clone()));
        let mut helps = true;
        while let Some(before) = self.reset_of(lun, true) {
            before.over.wait().await;
            helps = before.done.get().is_some();
        }
        r.sent.set(true);
        let first = self.channels.borrow().iter().find(|(i, _)| *i == 0).map(|(_, c)| c.clone());
        // Where one was not done the channels end.
        if let Some(c) = first.filter(|_| helps) {
            r.done.set(c.done_at(TaskFunction::LunReset, lun).await.ok());
        }
        self.resets.borrow_mut().retain(|(_, other)| !Rc::ptr_eq(other, &r));
        r.over.signal_all();
        r.done.get()
    }

    /// A reset of a logical unit that is under way, or waits to be sent.
    fn reset_of(&self, lun: u64, sent: bool) -> Option<Rc<Reset>> {
        let all = self.resets.borrow();
        all.iter().find(|(l, r)| *l == lun && r.sent.get() == sent).map(|(_, r)| r.clone())
    }

    /// The unit was reset, and the answer came at this time: commands to it from before are to be aborted.
    pub(crate) fn expire(&self, lun: u64, answered: Nanos) {
        for (_, c) in self.channels.borrow().iter() {
            c.expire(lun, answered);
        }
    }

    /// Waits until the commands here that were given up before have been answered or aborted, or their channel has ended.
    pub(crate) async fn given_up(&self) {
        let channels: Vec<_> = self.channels.borrow().iter().map(|(_, c)| c.clone()).collect();
        for c in channels {
            let of_then = c.given_up();
            while c.given_up().iter().any(|g| of_then.contains(g)) {
                sleep(LOOK).await;
            }
        }
    }

    pub(crate) fn census(&self) -> Vec<ChannelCensus> {
        self.channels.borrow().iter().map(|(_, c)| c.census()).collect()
    }
}

/// A channel's way to the session.
struct Ladder {
    local: Weak<Local>,
    generation: u64,
}

impl Escalate for Ladder {
    fn climbing(&self, rung: Rung, lun: u64) {
        if let Some(l) = self.local.upgrade() {
            tracing::warn!(?rung, lun, "a command takes too long or was given up");
            l.shared.note(rung, lun);
        }
    }

    fn lun_reset(&self, lun: u64) -> LocalFuture<'_, bool> {
        Box::pin(async move {
            let Some(l) = self.local.upgrade() else { return false };
            super::control::lun_reset(&l.shared, lun).await
        })
    }

    fn give_up(&self, why: &str) {
        if let Some(l) = self.local.upgrade() {
            tracing::error!(why, "the path is closed and made again");
            l.lost(self.generation);
        }
    }
}
