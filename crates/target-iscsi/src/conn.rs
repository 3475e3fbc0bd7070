//! A session in service. It has one connection (MaxConnections=1), so both are the same.

use crate::greet::Greeted;
use crate::manage::AT_ONCE;
use crate::order::{DEPTH, Work};
use crate::planted::{Bug, has};
use crate::port::Port;
use crate::receive::Last;
use crate::send::{Out, asides};
use crate::sessions::Member;
use crate::task::Task;
use crate::text::Texts;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::pin;
use std::rc::{Rc, Weak};
use weir_base::{MICROS, Nanos, SECONDS};
use weir_mem::Share;
use weir_proto_iscsi::bhs::Response;
use weir_proto_iscsi::keys::Params;
use weir_proto_iscsi::window::Window;
use weir_proto_scsi::lu::Nexus;
use weir_proto_scsi::transport_id::TransportId;
use weir_reactor::{LocalFuture, WaitChannel, contained_future, now, sleep, spawn_task, timeout};
use weir_stream::Stream;
use weir_target_core::doubts::Doubts;
use weir_target_core::{Attachment, ChannelLine, Link, Seat, initiator_key};

/// How often is looked whether what was sent has arrived.
const LOOK: Nanos = 200 * MICROS;
/// Bytes of PDUs that wait in our system to leave.
const UNSENT: u32 = 256 << 10;
/// A silent initiator is asked whether it is there after this long, and has as long for its answer.
const SILENCE: Nanos = 15 * SECONDS;
/// How long an initiator has to log out when it is asked to; whole seconds.
const GOING: u16 = 1;
/// How long the last answers have to leave.
const FAREWELL: Nanos = 2 * SECONDS;

/// How long the reason of an end has to leave.
const LAST_WORDS: Nanos = SECONDS / 10;

pub(crate) struct Conn {
    pub(crate) port: Rc<Port>,
    pub(crate) stream: Box<dyn Stream>,
    pub(crate) peer: String,
    /// Goes before the member: who waits for the end of this session wants its place.
    seat: Cell<Option<Seat>>,
    member: Member,
    pub(crate) params: Cell<Params>,
    pub(crate) view: Attachment,
    pub(crate) share: Share,
    pub(crate) window: RefCell<Window<Work>>,
    /// Places of the window that are taken, and of immediate commands.
    pub(crate) taken: Cell<u32>,
    pub(crate) immediate: Cell<u32>,
    /// Commands that are not over.
    pub(crate) tasks: RefCell<Vec<Rc<Task>>>,
    pub(crate) texts: RefCell<Texts>,
    pub(crate) out: RefCell<VecDeque<Out>>,
    /// Bytes of the first of them that have gone.
    pub(crate) gone: Cell<usize>,
    /// Bytes of PDUs so far, and of these with the kernel.
    pub(crate) queued: Cell<u64>,
    pub(crate) handed: Cell<u64>,
    pub(crate) stat_sn: Cell<u32>,
    next_ttt: Cell<u32>,
    /// Signalled when there is something to send, when a command ends, or the session.
    pub(crate) news: WaitChannel,
    pub(crate) aside: WaitChannel,
    /// Places for task management.
    pub(crate) managing: WaitChannel,
    /// One gives turns to numbered PDUs.
    pub(crate) turns: WaitChannel,
    /// Signalled when PDUs have left.
    pub(crate) room: WaitChannel,
    /// Commands whose answers have not left.
    pub(crate) busy: Cell<u32>,
    pub(crate) commands: Cell<u64>,
    /// Whether its initiator is there. While that is asked nothing begins, but is put off.
    pub(crate) doubts: Rc<Doubts>,
    pub(crate) put_off: RefCell<VecDeque<Rc<Task>>>,
    /// Bytes that have come.
    pub(crate) received: Cell<u64>,
    /// When the initiator was last heard of.
    pub(crate) heard: Cell<Nanos>,
    /// It has been asked to log out.
    asked: Cell<bool>,
    /// Nothing is taken any more; what runs is answered.
    pub(crate) ending: Cell<bool>,
    /// The answer to a logout whose turn has come behind a command that was aborted.
    pub(crate) farewell: RefCell<Option<Response>>,
    /// Nobody is there to be answered.
    over: Cell<bool>,
    pub(crate) halt: WaitChannel,
    pub(crate) me: Weak<Conn>,
}

impl Conn {
    /// Puts a session into service.
    pub(crate) fn start(port: &Rc<Port>, stream: Box<dyn Stream>, g: Greeted) {
        let shared = &port.shared;
        let (name, isid) = &g.member.key;
        let key = initiator_key(name);
        let account = shared.access.map().account(&key, "");
        let id = TransportId::iscsi(name, Some(*isid));
        let conn = Rc::new_cyclic(|me: &Weak<Conn>| Conn {
            port: port.clone(),
            stream,
            peer: g.peer,
            params: Cell::new(g.params),
            view: Attachment::new(g.member.nexus, key, id, shared.relative),
            share: port.pool.share(&account),
            window: RefCell::new(Window::new(g.cmd_sn, DEPTH)),
            taken: Cell::new(0),
            immediate: Cell::new(0),
            tasks: RefCell::default(),
            texts: RefCell::default(),
            out: RefCell::default(),
            gone: Cell::new(0),
            queued: Cell::new(0),
            handed: Cell::new(0),
            stat_sn: Cell::new(g.stat_sn),
            next_ttt: Cell::new(0),
            news: WaitChannel::new(0),
            aside: asides(),
            managing: WaitChannel::new(AT_ONCE),
            turns: WaitChannel::new(1),
            room: WaitChannel::new(0),
            busy: Cell::new(0),
            commands: Cell::new(0),
            doubts: Rc::default(),
            put_off: RefCell::default(),
            received: Cell::new(0),
            heard: Cell::new(now()),
            asked: Cell::new(false),
            ending: Cell::new(false),
            farewell: RefCell::default(),
            over: Cell::new(false),
            halt: WaitChannel::new(0),
            member: g.member,
            seat: Cell::new(Some(g.seat)),
            me: me.clone(),
        });
        conn.view.set_link(conn.me.clone());
        conn.view.set_proved(g.proved);
        // A fence waits until what was sent before has arrived. What lies in our own system would be too much for who is slow.
        conn.stream.limit_unsent(UNSENT);
        port.add(&conn);
        spawn_task(conn.live(g.rest));
    }

    pub(crate) fn nexus(&self) -> Nexus {
        self.view.nexus()
    }

    /// The port ends whatever commands still do.
    pub(crate) fn parts(&self) {
        self.view.leave();
    }

    /// Looks at the access map, if that has changed.
    pub(crate) fn look(&self) {
        self.view.refresh(&self.port.shared.access, &self.port.units);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.get() || self.port.is_dead()
    }

    /// All places for commands are taken.
    pub(crate) fn waits(&self) -> bool {
        self.taken.get() >= DEPTH
    }

    pub(crate) fn line(&self) -> ChannelLine {
        ChannelLine {
            peer: self.peer.clone(),
            initiator: initiator_key(&self.member.key.0),
            host: self.view.host(),
            commands: self.commands.get(),
            busy: self.busy.get(),
        }
    }

    /// A target transfer tag that is in no use.
    pub(crate) fn tag(&self) -> u32 {
        let t = self.next_ttt.get();
        self.next_ttt.set(t.wrapping_add(1) % weir_proto_iscsi::NO_TAG);
        t
    }

    /// Commands wait for an answer whether their initiator is there.
    pub(crate) fn has_put_off(&self) -> bool {
        !self.put_off.borrow().is_empty()
    }

    /// Name of its initiator.
    pub(crate) fn initiator(&self) -> &str {
        &self.member.key.0
    }

    /// A later login of the same initiator ends it: nothing that has not begun will have an effect.
    pub(crate) fn replaced(&self) {
        self.view.leave();
        self.abort("a new login of its initiator ends it");
    }

    /// The port is about to end: the initiator is asked to log out, and has a moment for it.
    pub(crate) fn please_go(&self) {
        if self.asked.replace(true) {
            return;
        }
        self.push(Response::please_log_out(GOING), Vec::new());
        let me = self.me.clone();
        spawn_task(async move {
            sleep(u64::from(GOING) * SECONDS).await;
            if let Some(me) = me.upgrade() {
                me.end("the target stops");
            }
        });
    }

    /// Takes nothing more; what runs is answered.
    pub(crate) fn end(&self, why: &str) {
        if !self.ending.replace(true) {
            tracing::info!(peer = %self.peer, why, "a session ends");
            self.halt.signal_all();
        }
    }

    /// Ends at once.
    pub(crate) fn abort(&self, why: &str) {
        self.end(why);
        if !self.over.replace(true) {
            self.stream.abort();
            self.halt.signal_all();
            self.news.signal_all();
            self.stop_tasks(|_| true);
        }
    }

    /// Ends those of its commands without an answer.
    pub(crate) fn stop_tasks(&self, which: impl Fn(&Task) -> bool) {
        let all: Vec<_> = self.tasks.borrow().iter().filter(|t| which(t)).cloned().collect();
        all.iter().for_each(|t| t.abort());
    }

    async fn live(self: Rc<Self>, rest: Vec<u8>) {
        let shared = self.port.shared.clone();
        self.look();
        let host = self.view.host();
        shared.spread.counts().logged_in(&host, &self.peer);
        let initiator = &self.member.key.0;
        tracing::info!(peer = %self.peer, %initiator, %host, tsih = self.member.tsih, "session in service");
        let sender = spawn_task(self.clone().send());
        let pings = spawn_task(self.clone().ping());
        let served = contained_future(pin!(self.clone().receive(rest))).await;
        self.end("it is over");
        self.forget_unbegun();
        let farewell = self.farewell.take();
        let served = match (served, farewell) {
            (Ok(Last::Stopped), Some(r)) => Ok(Last::LoggedOut(r)),
            (served, _) => served,
        };
        match served {
            Ok(Last::Broken(why)) => {
                tracing::info!(peer = %self.peer, why, "a session breaks off");
                self.view.leave();
                self.stop_tasks(|_| true);
                // What is wrong is told where that can be.
                let _ = timeout(LAST_WORDS, self.emptied()).await;
            }
            Ok(Last::Stopped) => {
                // Those whose data come no more end; the others are answered.
                self.stop_tasks(Task::lacks_data);
                self.settle().await;
            }
            Ok(Last::LoggedOut(r)) => {
                // Tasks end with the session (RFC 7143 4.2.5.3); the answer says that they have.
                if !has(Bug::LogoutAnsweredEarly) {
                    self.view.leave();
                    self.stop_tasks(|_| true);
                    self.settle().await;
                    self.view.left().await;
                }
                self.push(r, Vec::new());
                self.settle().await;
            }
            Err(p) => shared.spread.broke(&self.peer, &p),
        }
        self.over.set(true);
        // Task management waits for nothing more.
        self.news.signal_all();
        self.view.leave();
        self.stop_tasks(|_| true);
        self.stream.shutdown(true);
        weir_reactor::cancel(sender);
        weir_reactor::cancel(pings);
        drop(self.out.take());
        // A device may keep the rest for long.
        if self.busy.get() > 0 && shared.sessions.lets_go(&self.member.key, self.nexus()) {
            drop(self.seat.take());
        }
        while self.busy.get() > 0 {
            self.news.wait().await;
        }
        self.view.left().await;
        shared.spread.counts().logged_out(&host);
        shared.spread.counts().gone(self.commands.get());
        tracing::info!(peer = %self.peer, %host, "session closed");
        self.port.remove(&self);
    }

    /// Those that wait for their turn never have it, and those that are not whole never will be. They keep the session, and their
    /// answers would be waited for.
    fn forget_unbegun(&self) {
        if has(Bug::UnbegunStay) {
            return;
        }
        drop(self.window.borrow_mut().clear());
        drop(self.put_off.take());
        let all = self.tasks.borrow().clone();
        all.iter().filter(|t| !t.begun.get()).for_each(|t| self.forget(t));
    }

    /// Waits until all PDUs have left.
    async fn emptied(&self) {
        while !self.is_over() && !self.out.borrow().is_empty() {
            self.news.wait().await;
        }
    }

    /// Waits until commands have ended and all answers have left, for a while.
    async fn settle(&self) {
        let quiet = async {
            while !self.is_over() && (self.busy.get() > 0 || !self.out.borrow().is_empty()) {
                self.news.wait().await;
            }
        };
        if timeout(FAREWELL, quiet).await.is_err() {
            self.abort("its last answers do not leave");
        }
    }

    /// A command is over.
    pub(crate) fn forget(&self, t: &Rc<Task>) {
        self.tasks.borrow_mut().retain(|x| !Rc::ptr_eq(x, t));
        t.end();
        drop(t.place.take());
    }

    /// Asks a silent initiator whether it is there, and ends the session if it is not (RFC 7143 11.19).
    async fn ping(self: Rc<Self>) {
        loop {
            let silent = now().saturating_sub(self.heard.get());
            if silent < SILENCE {
                sleep(SILENCE - silent).await;
                continue;
            }
            // Who sends nothing does not look at the access map by itself.
            self.look();
            let before = self.heard.get();
            self.push(Response::ping(self.tag()), Vec::new());
            sleep(SILENCE).await;
            if self.heard.get() == before {
                return self.abort("the initiator is silent");
            }
        }
    }
}

impl Link for Conn {
    fn refresh(&self) {
        self.look();
    }

    fn sent(&self) -> LocalFuture<'static, ()> {
        let (me, at) = (self.me.clone(), self.queued.get());
        Box::pin(async move {
            let waits = |c: &Rc<Conn>| {
                // What is not acknowledged may be older than the first PDU of the queue.
                !c.is_over() && c.handed.get() < at + c.stream.unacknowledged()
            };
            while me.upgrade().is_some_and(|c| waits(&c)) {
                sleep(LOOK).await;
            }
        })
    }

    fn cut(&self, why: &str) {
        tracing::warn!(peer = %self.peer, why, "closing a session");
        self.abort(why);
    }

    fn bar(&self) {
        self.abort("its host is not let in any more");
    }
}
