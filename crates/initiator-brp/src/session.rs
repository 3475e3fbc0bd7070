//! A session: one initiator port at one target port, with channels on one or more reactors. Every reactor
//! that submits has channels of its own; nothing is shared per command.

use crate::channel::{Channel, ChannelCensus, ChannelFigures, Path};
use crate::config::{Keep, SessionConfig};
use crate::error::{Error, Hop};
use crate::planted::{Bug, has};
use crate::queue::Queue;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_base::Prng;
use weir_base::unflushed::Unflushed;
use weir_fabric::Provider;
use weir_proto_brp::control::EventKind;
use weir_reactor::{Handle, call, get_part, remove_part, set_part, spawn_task};

static NEXT: AtomicU64 = AtomicU64::new(1);
/// Events kept for [`Session::events`].
const EVENTS: usize = 256;

/// Something that the target told, or that happened to the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A volume has another size.
    Resized {
        /// Its number.
        volume: u16,
        /// Bytes.
        len: u64,
    },
    /// The list of volumes has changed.
    Volumes,
    /// This path to a volume has another state.
    PathState {
        /// Its number.
        volume: u16,
        /// As in the volume's description.
        state: u8,
    },
    /// The target is about to end.
    Leaving,
    /// The target has found damage.
    Damage {
        /// The volume's number.
        volume: u16,
        /// First byte of the damaged piece.
        at: u64,
    },
    /// This initiator has met damaged data.
    Damaged {
        /// Where it was changed.
        hop: Hop,
        /// First byte of the damaged piece.
        at: u64,
    },
    /// A connection was lost.
    Lost,
    /// A connection was made again.
    Reconnected,
    /// The target's machine lost power since the last login.
    PowerLost,
}

/// Counts since the session was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SessionFigures {
    /// Connections lost.
    pub losses: u64,
    /// Connections made again.
    pub reconnects: u64,
    /// Commands sent again after a loss.
    pub resent: u64,
    /// Of these, commands that the target had done already.
    pub replayed: u64,
    /// Commands aborted because their time was up.
    pub aborts: u64,
    /// Messages of the target that made no sense or were changed on their way.
    pub bad_messages: u64,
    /// I/Os that met damaged data, whether or not another try helped.
    pub damaged: u64,
}

#[derive(Default)]
struct Counts {
    losses: AtomicU64,
    reconnects: AtomicU64,
    resent: AtomicU64,
    replayed: AtomicU64,
    aborts: AtomicU64,
    bad_messages: AtomicU64,
    damaged: AtomicU64,
}

/// What all reactors of a session share. Nothing of it is touched per command.
pub(crate) struct Shared {
    id: u64,
    /// The session's number on the wire.
    pub(crate) number: u64,
    pub(crate) config: SessionConfig,
    reactors: Mutex<Vec<Handle>>,
    counts: Counts,
    events: Mutex<VecDeque<Event>>,
    /// Goes up when volumes may not be what they were.
    pub(crate) volumes: AtomicU64,
    /// Goes up when volumes may not be what they were, whatever their numbers and names say.
    doubts: AtomicU64,
    /// Commands go on where volumes may not be what they were.
    resends: AtomicBool,
    /// What the target last said of its power; 0 before the first login.
    power: AtomicU64,
    /// Writes that are not known to be durable, by volume.
    unflushed: Mutex<BTreeMap<[u8; 16], Arc<Unflushed>>>,
    /// It is logged in, as its siblings see it.
    here: AtomicBool,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.set_here(false);
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bump(n: &AtomicU64) {
    n.fetch_add(1, Ordering::Relaxed);
}

impl Shared {
    fn note(&self, e: Event) {
        let mut all = lock(&self.events);
        if all.len() == EVENTS {
            all.pop_front();
        }
        all.push_back(e);
    }

    /// It is logged in from here on, though it may have lost its connections; or it is no more.
    pub(crate) fn set_here(&self, is: bool) {
        let before = self.here.swap(is, Ordering::AcqRel);
        if let Keep::Siblings(f) = &self.config.keep
            && before != is
        {
            f.count(self.config.initiator, is);
        }
    }

    /// Whether other sessions of its family are logged in by its initiator port.
    pub(crate) fn has_siblings(&self) -> bool {
        match &self.config.keep {
            Keep::Siblings(f) => {
                f.of(&self.config.initiator) > usize::from(self.here.load(Ordering::Acquire))
            }
            _ => false,
        }
    }

    pub(crate) fn note_loss(&self) {
        bump(&self.counts.losses);
        self.note(Event::Lost);
    }

    pub(crate) fn note_reconnect(&self) {
        bump(&self.counts.reconnects);
        // Another target may have other volumes.
        bump(&self.volumes);
        self.note(Event::Reconnected);
    }

    /// The list of volumes has changed, or a login has found a target that knows nothing of this session.
    pub(crate) fn note_doubt(&self) {
        bump(&self.doubts);
    }

    /// Whether commands go on where volumes may not be what they were.
    pub(crate) fn goes_on(&self) -> bool {
        self.resends.load(Ordering::Acquire)
    }

    pub(crate) fn note_resent(&self, n: u64) {
        self.counts.resent.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn note_replayed(&self) {
        bump(&self.counts.replayed);
    }

    pub(crate) fn note_abort(&self) {
        bump(&self.counts.aborts);
    }

    pub(crate) fn note_bad_message(&self) {
        bump(&self.counts.bad_messages);
    }

    pub(crate) fn note_damage(&self, hop: Hop, at: u64) {
        bump(&self.counts.damaged);
        self.note(Event::Damaged { hop, at });
    }

    /// A channel has logged in at a target with this number of its power. One loss is one event, however many channels
    /// come back after it.
    pub(crate) fn note_power(&self, power: u64) {
        let before = self.power.swap(power, Ordering::AcqRel);
        if before != 0 && before != power {
            self.note(Event::PowerLost);
        }
    }

    /// The record of writes to a volume: the one there is, or `new`.
    pub(crate) fn unflushed(&self, uid: [u8; 16], new: Arc<Unflushed>) -> Arc<Unflushed> {
        lock(&self.unflushed).entry(uid).or_insert(new).clone()
    }

    /// The target tells something.
    pub(crate) fn event(&self, e: weir_proto_brp::control::Event) {
        let Some(kind) = EventKind::from_code(e.kind) else { return };
        self.note(match kind {
            EventKind::Resized => Event::Resized { volume: e.volume, len: e.value },
            EventKind::PathState => Event::PathState { volume: e.volume, state: e.value as u8 },
            EventKind::Volumes => Event::Volumes,
            EventKind::Leaving => Event::Leaving,
            EventKind::Damage => Event::Damage { volume: e.volume, at: e.value },
        });
        bump(&self.volumes);
    }
}

/// A channel that is not logged in yet. Dropping this ends it.
struct Opening(Option<Rc<Channel>>);

impl Opening {
    fn leave(mut self) {
        self.0 = None;
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(c) = self.0.take()
            && !has(Bug::GivenUpLogsInForEver)
        {
            spawn_task(async move { c.close().await });
        }
    }
}

/// A session's part on one reactor.
pub(crate) struct Local {
    pub(crate) shared: Arc<Shared>,
    provider: Rc<dyn Provider>,
    channels: RefCell<Vec<Rc<Channel>>>,
    turn: Cell<usize>,
}

impl Local {
    fn find(id: u64) -> Option<Rc<Local>> {
        get_part(id)
    }

    /// The channel for the next command: the next in turn that is up, else whichever.
    #[inline]
    pub(crate) fn channel(&self) -> Result<Rc<Channel>, Error> {
        let all = self.channels.borrow();
        match all.as_slice() {
            [] => Err(Error::Closed),
            [c] => Ok(c.clone()),
            many => {
                let (n, first) = (many.len(), self.turn.get());
                self.turn.set(if first + 1 >= n { 0 } else { first + 1 });
                let up = (0..n).map(|i| &many[(first + i) % n]).find(|c| c.path() == Path::Up);
                Ok(up.unwrap_or(&many[first % n]).clone())
            }
        }
    }

    /// All channels here.
    pub(crate) fn channels(&self) -> Vec<Rc<Channel>> {
        self.channels.borrow().clone()
    }

    async fn open(&self, index: u16) -> Result<(), Error> {
        if self.channels.borrow().iter().any(|c| c.index() == index) {
            // Of an earlier login that did not get all channels.
            return Ok(());
        }
        let c = Channel::new(self.shared.clone(), self.provider.clone(), index)?;
        // Also where whoever logs in gives that up.
        let opening = Opening(Some(c.clone()));
        if let Err(e) = c.connect().await {
            opening.leave();
            c.close().await;
            return Err(e);
        }
        opening.leave();
        self.channels.borrow_mut().push(c);
        Ok(())
    }

    async fn close(&self) {
        for c in self.channels.take() {
            c.close().await;
        }
        remove_part::<Local>(self.shared.id);
    }
}

/// A session. Cloning gives another handle; it may be used on any thread.
#[derive(Clone)]
pub struct Session(Arc<Shared>);

impl Session {
    /// A session that is not logged in. Every reactor that will submit commands [joins](Session::join) it, then
    /// one of them [logs in](Session::login).
    pub fn new(config: SessionConfig) -> Session {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let number = match config.session {
            0 => draw(id),
            n => n,
        };
        let number = match &config.keep {
            Keep::Siblings(f) => f.name(number),
            _ => number,
        };
        Session(Arc::new(Shared {
            id,
            number,
            config,
            reactors: Mutex::default(),
            counts: Counts::default(),
            events: Mutex::default(),
            volumes: AtomicU64::new(1),
            doubts: AtomicU64::new(0),
            resends: AtomicBool::new(true),
            power: AtomicU64::new(0),
            unflushed: Mutex::default(),
            here: AtomicBool::new(false),
        }))
    }

    /// A session of the present reactor alone, logged in.
    ///
    /// # Errors
    /// As [`login`](Session::login).
    pub async fn connect(
        provider: Rc<dyn Provider>,
        config: SessionConfig,
    ) -> Result<Session, Error> {
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

    /// Adds the present reactor, with the provider of its channels. Before the login.
    pub fn join(&self, provider: Rc<dyn Provider>) {
        if Local::find(self.0.id).is_some() {
            return;
        }
        let local = Rc::new(Local {
            shared: self.0.clone(),
            provider,
            channels: RefCell::default(),
            turn: Cell::new(0),
        });
        set_part(self.0.id, local);
        lock(&self.0.reactors).push(weir_reactor::handle());
    }

    /// Logs all channels in, spread over the reactors in the order in which these joined. After a failure it may
    /// be called again.
    ///
    /// # Errors
    /// A reactor would be left without a channel; why. [`Error::Closed`] when no reactor has joined, or the session was
    /// closed.
    pub async fn login(&self) -> Result<(), Error> {
        let reactors = lock(&self.0.reactors).clone();
        if reactors.is_empty() {
            // It was closed meanwhile.
            return Err(Error::Closed);
        }
        let wanted = self.0.config.channel_count(reactors.len());
        for index in 0..wanted {
            let opened = self.open(&reactors[index % reactors.len()], index as u16).await;
            match opened {
                Ok(()) => {}
                Err(e) if index < reactors.len() => return Err(e),
                Err(e) => {
                    tracing::warn!(error = %e, "only {index} of {wanted} channels");
                    break;
                }
            }
        }
        Ok(())
    }

    async fn open(&self, there: &Handle, index: u16) -> Result<(), Error> {
        let id = self.0.id;
        let opened = on(there, move || async move {
            match Local::find(id) {
                Some(l) => l.open(index).await,
                None => Err(Error::Closed),
            }
        });
        opened.await.unwrap_or(Err(Error::Closed))
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

    /// How often the target has told that its list of volumes changed, or was found not to know the session any more: a volume may have
    /// been away then, and be older than it was. Looked at after a command's end it tells whether the command may have met such a one.
    pub fn doubts(&self) -> u64 {
        self.0.doubts.load(Ordering::Acquire)
    }

    /// Whether commands go on, and those under way are sent again, when the target knows nothing of the session any more or tells that
    /// its list of volumes has changed. So it is at first. Else this is the session's end: no command of before comes to a volume that
    /// may be older than it was.
    pub fn set_resends(&self, yes: bool) {
        self.0.resends.store(yes, Ordering::Release);
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
            losses: get(&c.losses),
            reconnects: get(&c.reconnects),
            resent: get(&c.resent),
            replayed: get(&c.replayed),
            aborts: get(&c.aborts),
            bad_messages: get(&c.bad_messages),
            damaged: get(&c.damaged),
        }
    }

    /// What the present reactor's channels have done, and what their merge controllers have decided.
    pub fn channels(&self) -> Vec<ChannelFigures> {
        Local::find(self.0.id)
            .map_or_else(Vec::new, |l| l.channels.borrow().iter().map(|c| c.figures()).collect())
    }

    /// What the present reactor's channels hold.
    pub fn census(&self) -> Vec<ChannelCensus> {
        Local::find(self.0.id)
            .map_or_else(Vec::new, |l| l.channels.borrow().iter().map(|c| c.census()).collect())
    }

    /// What happened lately, oldest first; at most 256.
    pub fn events(&self) -> Vec<Event> {
        lock(&self.0.events).iter().copied().collect()
    }

    /// Ends all channels and waits until all is down. Commands under way fail.
    pub async fn close(&self) {
        let id = self.0.id;
        let reactors = std::mem::take(&mut *lock(&self.0.reactors));
        for h in reactors {
            // A reactor that has ended has closed its channels with itself.
            let _ = on(&h, move || async move {
                if let Some(l) = Local::find(id) {
                    l.close().await;
                }
            })
            .await;
        }
        self.0.set_here(false);
    }
}

/// A number for a session: not a secret, but no two alike.
fn draw(id: u64) -> u64 {
    let mut seed = weir_reactor::try_current_id().map_or(0, |_| weir_reactor::clock());
    seed ^= id << 17;
    let address = &raw const NEXT as u64;
    Prng::new(seed ^ address).next_u64() | 1
}

/// As [`call`], but here at once and without a task.
async fn on<R, F, Fut>(there: &Handle, f: F) -> Option<R>
where
    R: Send + 'static,
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = R> + 'static,
{
    if there.id() == weir_reactor::current_id() { Some(f().await) } else { call(there, f).await }
}
