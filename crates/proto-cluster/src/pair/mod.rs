//! The pair machine: what one node does about one pool of its group.

mod change;
mod owner;
mod partner;
mod times;

use crate::ids::{Epoch, Life, Node, Nodes, Session};
use crate::message::Message;
use crate::planted::{Bug, has};
use crate::register::Register;
use change::Change;
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
pub use times::Times;
use weir_base::Nanos;

/// What a machine is about. The same for all lives of its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// This node.
    pub me: Node,
    /// The other node of the group.
    pub partner: Node,
    /// The pool.
    pub pool: u128,
    /// How long things take.
    pub times: Times,
}

/// What became of one attempt to change the register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It is changed.
    Done,
    /// It is not: this is what it was when the attempt was made.
    Other(Register),
    /// Nobody knows: it may have been changed, may be still, or never.
    InDoubt,
}

/// What happens to a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Input {
    /// Time has passed.
    Tick,
    /// The other node's machine says something.
    Message(Message),
    /// Answer to [`Action::Read`].
    Read(Register),
    /// There is no answer to [`Action::Read`].
    NotRead,
    /// The register was changed, by whomever (a *watch* of the engine). May be missed, or late.
    Seen(Register),
    /// Answer to the [`Action::Change`] whose writer has this number.
    Changed(u32, Outcome),
    /// Answer to [`Action::Fence`].
    Drained(Epoch),
    /// Commands to a device of this node do not end; it cannot be used in this life.
    NotDrained(Epoch),
    /// Answer to [`Action::Open`]: the engine has the pool, with the devices of these nodes, and its superblock with the epoch
    /// is durable on all of them.
    Opened(Epoch, Nodes),
    /// Answer to [`Action::Open`]: it has not. Nothing is written any more.
    OpenFailed(Epoch),
    /// Answer to [`Action::Close`] and [`Action::DropEngine`]: the engine has ended, and with it all its writes, here at least.
    Closed(Epoch),
    /// This session with the partner's devices is up: the login was answered.
    SessionUp(Session),
    /// This session is lost, or did not come about.
    SessionDown(Session),
    /// What is written goes to the partner's devices, too. All older blocks were copied and read back. A superblock that calls
    /// them in sync is durable on both nodes.
    InSync(Session),
    /// A device of a node failed, or is too slow to be waited for.
    DeviceFailed(Node),
    /// An operator has the pool go to the other node.
    Move,
    /// An operator wants the partner out, or does not any more.
    Drain(bool),
}

/// How a node's ports answer for volumes of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ports {
    /// Here they are served.
    Optimized,
    /// Commands are forwarded to the owner.
    NonOptimized,
    /// Commands are held: it will be known soon.
    Transitioning,
    /// There is no way to an owner.
    Unavailable,
}

/// For people, and for `weir status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// This node serves the pool under this epoch, with these nodes' devices.
    Serves(Epoch, Nodes),
    /// Another owner, or another life, has the pool: this engine was dropped.
    Deposed(Epoch),
    /// The partner is out: writes go on without it, once the register says so.
    PartnerOut,
    /// It was dropped before, within a minute.
    Flapping,
    /// The partner is able again.
    PartnerBack,
    /// The owner is silent, and this node must not take over.
    Waits,
    /// The pool could not be opened here.
    OpenFailed,
    /// Devices failed of the only node that is able: the pool waits for them.
    LastAble,
    /// There are fewer copies than the pool must have.
    TooFewCopies,
}

/// What the machine wants done. All are begun in the order in which they come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Say this to the other node's machine. It may be lost.
    Send(Message),
    /// Read the register.
    Read,
    /// Make the register this value if its version is one less.
    Change(Register),
    /// Tell the gates of this node's devices that the pool is claimed.
    Fence(Epoch),
    /// Open the pool with the devices of these nodes; without those that cannot be reached soon. Devices of others do not count.
    Open(Epoch, Nodes),
    /// Write what is to be written, and close.
    Close(Epoch),
    /// End the engine without one more write.
    DropEngine(Epoch),
    /// Log in to the partner's devices, as this session.
    Attach(Epoch, Session),
    /// End this session for good. What was sent in it may still be under way.
    Detach(Session),
    /// Bring the partner's devices up to date, in this session.
    Resync(Session),
    /// Hold I/O of hosts: neither begin nor acknowledge.
    Hold,
    /// Let it go on.
    Release,
    /// How ports answer from now on.
    Ports(Ports),
    /// For people.
    Tell(Event),
}

/// Where the machine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Role {
    /// The register has not been read yet.
    Starting,
    /// Somebody else's, or nobody's.
    Away,
    /// The register is asked to make this node the owner. With `handed`, the owner before has closed the pool.
    Claiming { handed: bool },
    /// Owner; waits for its gates, and for the lease of the owner before unless it was handed the pool.
    Fencing { handed: bool, drained: bool },
    /// The engine opens.
    Opening,
    /// The engine is open with these; waits until the register has no others.
    Open { with: Nodes },
    /// Serves hosts.
    Serving,
    /// The engine closes; then the partner is to have the pool.
    Yielding { closed: bool },
    /// The engine is being dropped.
    Closing,
}

/// The way to the partner's devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Link {
    /// There is none.
    None,
    /// Logging in.
    Coming(Session),
    /// Logged in. `synced` when the devices have everything.
    Up { session: Session, synced: bool },
}

/// The machine of one node for one pool: a struct without clock and I/O. Daemon, simulator and model run this one.
///
/// # Order of calls
/// 1. [`Pair::new`] at the start of the node's daemon, or when it joins a pool's group. Once for a life.
/// 2. [`Pair::input`] for everything that happens, one after the other, with a time that was read *after* the thing happened:
///    a grant counts from there. Times never go back.
/// 3. [`Pair::poll`] until there is nothing, after each input. Do what it says in that order before the next input; answers
///    come as inputs.
/// 4. [`Input::Tick`] when [`Pair::deadline`] has come. A tick that is late makes the pool slow, never wrong.
///
/// Questions change nothing, and are asked at the last moment:
/// * [`Pair::may_acknowledge`] before a write is told to a host or becomes visible to reads, with the nodes that have it durable.
/// * [`Pair::may_read`] after data were read and before they go to the port, with a time that was read *between* the two.
///   If not, hold the read and ask again.
///
/// The engine promises: no byte is written before [`Action::Open`] and after [`Input::Closed`]; a read returns only what may be
/// acknowledged; a copy counts for the partner only when it was made in the session that is up.
///
/// # Where this is not the design's text
/// * *Hand-over*: [`Phase::Handing`](crate::register::Phase::Handing) leaves owner and epoch as they are. The next owner
///   claims like any other, with its own epoch (R1), and need not wait for the lease, since the one before has closed. If the
///   register named the next owner at once, two lives of that one could open under one epoch.
/// * *One change at a time*: a change in doubt is repeated, the same one, until a newer version is seen. While it is out the
///   duties of both sets hold (R5a). So a partner that is lost during its readmission costs one change more.
/// * *Duties of two* begin when the partner is filled, not when the register is asked (R5a): what is written between the two
///   would be acknowledged alone. A partner that is filled and silent is let go, and filled again later.
/// * *An hour without a drop* (flapping) is counted from when the partner may be back: while it is out it proves nothing.
/// * *Only the owner beats.* Who is not the owner hears of a change by the register's watch, or reads when a beat has a newer
///   epoch.
/// * *Own devices lost*: the owner takes itself out of the set first, then hands over. It never takes out the last one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pair {
    settings: Aside<Arc<Settings>>,
    life: Life,
    /// Time of the last input.
    now: Nanos,
    /// The newest register seen.
    known: Option<Register>,
    /// A change whose outcome is not known.
    change: Option<Change>,
    /// A read is under way.
    reading: bool,
    /// Number of the last change of this life.
    n: u32,
    role: Role,
    /// Under which this life owns, or owned, the pool.
    epoch: Epoch,
    link: Link,
    /// Of the last session that was begun under this epoch.
    session: Session,
    lease_end: Nanos,
    granted_until: Nanos,
    next_beat: Nanos,
    /// When the silence of the other node has lasted too long.
    suspect_at: Nanos,
    /// Before this nothing that failed is tried again.
    retry_at: Nanos,
    /// Before this the register is not read again.
    read_at: Nanos,
    readmit_at: Nanos,
    backoff: Nanos,
    calm_at: Nanos,
    flapping_until: Nanos,
    /// When the pool goes to its preferred node.
    fail_back_at: Option<Nanos>,
    own_failed: bool,
    kept_out: bool,
    moving: bool,
    released: bool,
    ports: Aside<Ports>,
    told: Aside<Option<Event>>,
    out: VecDeque<Action>,
}

/// What decides nothing, and so adds nothing to the hash of a machine: a model need not tell such states apart.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Aside<T>(T);

impl<T> Hash for Aside<T> {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Pair {
    /// The machine of a life that has just begun. It has promised nothing that it knows of, so it takes it that it has.
    pub fn new(settings: Arc<Settings>, life: Life, now: Nanos) -> Pair {
        assert!(settings.me != settings.partner, "a pair is of two nodes");
        let times = &settings.times;
        let granted = if has(Bug::GrantForgottenAtStart) { 0 } else { times.grant() };
        let mut pair = Pair {
            life,
            now,
            known: None,
            change: None,
            reading: false,
            n: 0,
            role: Role::Starting,
            epoch: Epoch(0),
            link: Link::None,
            session: Session(0),
            lease_end: now,
            granted_until: now + granted,
            next_beat: now,
            suspect_at: now + times.suspicion + times.bias,
            retry_at: now,
            read_at: now,
            readmit_at: now,
            backoff: 0,
            calm_at: now,
            flapping_until: now,
            fail_back_at: None,
            own_failed: false,
            kept_out: false,
            moving: false,
            released: false,
            ports: Aside(Ports::Transitioning),
            told: Aside(None),
            out: VecDeque::new(),
            settings: Aside(settings),
        };
        pair.read();
        pair
    }

    /// Something has happened.
    pub fn input(&mut self, now: Nanos, input: Input) {
        assert!(now >= self.now, "the clock of a node went back");
        self.now = now;
        match input {
            Input::Tick => {}
            Input::Message(Message::Beat(beat)) => self.beat(beat),
            Input::Message(Message::Grant(beat)) => self.grant(beat),
            Input::Read(register) => {
                self.reading = false;
                self.learn(register);
                self.ask_again();
            }
            Input::NotRead => {
                self.reading = false;
                self.read_at = now + self.times().beat;
            }
            Input::Seen(register) => self.learn(register),
            Input::Changed(n, outcome) => self.changed(n, outcome),
            Input::Drained(epoch) => {
                if let Role::Fencing { drained, .. } = &mut self.role
                    && epoch == self.epoch
                {
                    *drained = true;
                }
            }
            Input::NotDrained(epoch) => {
                if matches!(self.role, Role::Fencing { .. }) && epoch == self.epoch {
                    self.open_failed();
                }
            }
            Input::Opened(epoch, with) => self.opened(epoch, with),
            Input::OpenFailed(epoch) => {
                if self.role == Role::Opening && epoch == self.epoch {
                    self.open_failed();
                }
            }
            Input::Closed(epoch) => self.closed(epoch),
            Input::SessionUp(session) => self.session_up(session),
            Input::SessionDown(session) => self.session_down(session),
            Input::InSync(session) => self.in_sync(session),
            Input::DeviceFailed(node) => self.device_failed(node),
            Input::Move => self.moving = self.role == Role::Serving,
            Input::Drain(on) => self.kept_out = on,
        }
        self.advance();
        if input == Input::Tick {
            self.beat_if_due();
        }
        self.show();
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Action> {
        self.out.pop_front()
    }

    /// When the next [`Input::Tick`] is wanted.
    pub fn deadline(&self) -> Nanos {
        let all = [
            self.next_beat,
            self.suspect_at,
            self.granted_until,
            self.retry_at,
            self.read_at,
            self.readmit_at,
            self.fail_back_at.unwrap_or(0),
        ];
        let later = all.into_iter().filter(|t| *t > self.now);
        later.min().unwrap_or(Nanos::MAX).min(self.now + self.times().suspicion)
    }

    /// Whether a write that is durable on these nodes may be acknowledged, and become visible to reads (R4, R5a).
    ///
    /// Needs no lease: the partner has it under this epoch, or is out. Who was deposed without knowing it gets neither.
    pub fn may_acknowledge(&self, copies: Nodes) -> bool {
        if has(Bug::AckBeforePartner) {
            return self.is_live() && !copies.is_empty();
        }
        let least = self.known.map_or(u32::MAX, |k| u32::from(k.min_copies));
        self.is_live()
            && copies.covers(self.duties())
            && !copies.is_empty()
            && copies.count() >= least
    }

    /// Whether what was read before `now` may be told to a host (R6, R8).
    pub fn may_read(&self, now: Nanos) -> bool {
        let now = if has(Bug::LeaseForgivesPauses) { self.now } else { now };
        let alone = !self.duties().has(self.partner()) || has(Bug::ReadWithoutLease);
        self.is_live() && (alone || now < self.lease_end)
    }

    /// The newest register that this machine has seen.
    pub fn known(&self) -> Option<&Register> {
        self.known.as_ref()
    }

    /// The epoch under which this life's engine has the pool, while it has it.
    pub fn serves(&self) -> Option<Epoch> {
        self.is_live().then_some(self.epoch)
    }

    /// Whether a change is under way.
    pub fn is_changing(&self) -> bool {
        self.change.is_some()
    }

    /// What the machine does, in one word of the design (section 5.3).
    pub fn standing(&self) -> &'static str {
        let able = self.known.map_or(Nodes::NONE, |k| k.able);
        let silent = self.now >= self.suspect_at;
        match self.role {
            Role::Starting => "starting",
            Role::Away if self.known.is_some_and(|k| k.owner == self.me()) => "offline",
            Role::Away if silent => "suspect",
            Role::Away => "away",
            Role::Claiming { .. } => "claiming",
            Role::Fencing { .. } => "fencing",
            Role::Opening | Role::Open { .. } => "opening",
            Role::Serving if self.is_dropping() => "dropping",
            Role::Serving if able.has(self.partner()) => "both",
            Role::Serving => "alone",
            Role::Yielding { .. } => "yielding",
            Role::Closing => "deposed",
        }
    }

    /// For models: the same machine by a clock that shows `now` where it showed `now + by`. Times that are over are all alike.
    #[doc(hidden)]
    pub fn rebase(&mut self, by: Nanos, now: Nanos) {
        // How stale the last input is matters to nobody.
        let stale = has(Bug::LeaseForgivesPauses);
        self.now = if stale { self.now.saturating_sub(by).max(now / 2) } else { now };
        let all = [
            &mut self.lease_end,
            &mut self.granted_until,
            &mut self.next_beat,
            &mut self.suspect_at,
            &mut self.retry_at,
            &mut self.read_at,
            &mut self.readmit_at,
            &mut self.calm_at,
            &mut self.flapping_until,
        ];
        for t in all.into_iter().chain(&mut self.fail_back_at) {
            *t = t.saturating_sub(by).max(now);
        }
    }

    fn me(&self) -> Node {
        self.settings.0.me
    }

    fn partner(&self) -> Node {
        self.settings.0.partner
    }

    fn times(&self) -> &Times {
        &self.settings.0.times
    }

    fn act(&mut self, action: Action) {
        self.out.push_back(action);
    }

    /// Tells people something, once until something else is to be told.
    fn tell(&mut self, event: Event) {
        if self.told.0 != Some(event) {
            self.told = Aside(Some(event));
            self.act(Action::Tell(event));
        }
    }

    /// Whether the engine answers hosts.
    fn is_live(&self) -> bool {
        matches!(self.role, Role::Serving | Role::Yielding { closed: false })
            || (has(Bug::HandOverWithoutClose) && matches!(self.role, Role::Yielding { .. }))
    }

    /// Goes on until nothing more follows from what is known.
    fn advance(&mut self) {
        // Each step is towards a state that waits for an input; more than a few would be a circle.
        for _ in 0..16 {
            if !self.step() {
                break;
            }
        }
    }

    /// One step; whether there was one.
    fn step(&mut self) -> bool {
        if self.known.is_none() || self.change.is_some_and(|c| c.doubt) {
            if self.now >= self.read_at {
                self.read();
            }
            return false;
        }
        match self.role {
            Role::Starting => {
                self.role = Role::Away;
                true
            }
            Role::Away => self.step_away(),
            Role::Claiming { .. } | Role::Opening | Role::Closing => false,
            Role::Fencing { handed, drained } => self.step_fencing(handed, drained),
            Role::Open { with } => self.step_open(with),
            Role::Serving => self.step_serving(),
            Role::Yielding { closed } => self.step_yielding(closed),
        }
    }

    /// Has I/O and ports follow the state.
    fn show(&mut self) {
        let released = self.role == Role::Serving;
        if released != self.released {
            self.released = released;
            self.act(if released { Action::Release } else { Action::Hold });
        }
        let ports = match self.role {
            Role::Serving => Ports::Optimized,
            Role::Away => self.ports_away(),
            _ => Ports::Transitioning,
        };
        if ports != self.ports.0 {
            self.ports = Aside(ports);
            self.act(Action::Ports(ports));
        }
    }
}
