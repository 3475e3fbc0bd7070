//! A target that follows a script: what an initiator must bear.

use crate::common::L0;
use crate::target::HOST;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{MILLIS, SECONDS};
use weir_fabric::{Connection, Incoming, Params, Provider, SendFlags};
use weir_initiator_srp::{Error, Queue, Rung, Session, SessionConfig};
use weir_mem::Slice;
use weir_proto_scsi::initiator as build;
use weir_proto_scsi::sense::{Sense, SenseFormat};
use weir_proto_srp::login::{BufferFormats, MultiChannelAction, MultiChannelResult};
use weir_proto_srp::misc::{CreditRequest, EventRequest, LogoutReason, TargetLogout};
use weir_proto_srp::residual::{Residual, Residuals};
use weir_proto_srp::{
    Form, Iu, IuContext, LoginReject, LoginRequest, LoginResponse, PortId, RejectReason, Response,
    RspCode, Tag, TaskFunction,
};
use weir_reactor::{CompletionQueue, Token, sleep, spawn, spawn_task};
use weir_sim::{Node, World};

const TARGET: PortId = PortId::new(5, 6);
const PORT: u16 = 5000;

/// What the target got.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Seen {
    Login,
    Command(Tag, u8),
    Task(Tag, TaskFunction, Tag),
    CreditResponse(Tag),
    EventResponse(Tag),
}

/// A channel of the scripted target.
#[derive(Clone)]
struct Peer {
    conn: Rc<dyn Connection>,
    /// Counts logins from 1.
    login: u32,
}

impl Peer {
    fn send(&self, bytes: &[u8]) {
        let (conn, bytes) = (self.conn.clone(), bytes.to_vec());
        spawn_task(async move {
            conn.send_slots().wait().await;
            conn.send(&bytes, None, SendFlags::default(), Token::NONE);
        });
    }

    fn respond(&self, r: Response<'_>) {
        let mut iu = [0; 256];
        let n = r.encode(&mut iu, 256).unwrap();
        self.send(&iu[..n]);
    }

    fn good(&self, tag: Tag) {
        self.respond(Response::scsi(tag, 0, 1));
    }

    fn check(&self, tag: Tag, sense: Sense) {
        let mut b = [0; 32];
        let n = sense.encode(SenseFormat::Fixed, &mut b);
        self.respond(Response::scsi(tag, 2, 1).with_sense(&b[..n]));
    }
}

type Script = Rc<dyn Fn(&Peer, Seen)>;

struct Scripted {
    credits: i32,
    /// Longest message that it takes; then it takes immediate data, too. `None`: as long as the host asks for.
    room: Option<u32>,
    /// Channels accepted at most; later ones are rejected.
    channels: u32,
    script: Script,
    seen: Rc<RefCell<Vec<Seen>>>,
    /// Bytes of each message.
    lengths: Rc<RefCell<Vec<u32>>>,
}

async fn serve(provider: Rc<dyn Provider>, addr: String, s: Rc<Scripted>) {
    let listener = provider.listen(&addr).unwrap();
    let logins = Cell::new(0);
    let open = Cell::new(0);
    loop {
        let incoming = listener.next().await.unwrap();
        let request = LoginRequest::decode(incoming.private_data(), Form::RdmaCm).unwrap();
        if request.action == MultiChannelAction::Terminate {
            open.set(0);
        } else {
            assert!(open.get() > 0, "a channel joins others");
        }
        if open.get() >= s.channels {
            let r = LoginReject {
                reason: RejectReason::ChannelLimit,
                tag: request.tag,
                formats: BufferFormats::BOTH,
            };
            incoming.reject(&r.to_bytes());
            continue;
        }
        open.set(open.get() + 1);
        logins.set(logins.get() + 1);
        let (p, s, login) = (provider.clone(), s.clone(), logins.get());
        spawn_task(async move {
            channel(p, incoming, request, s, login).await;
        });
    }
}

async fn channel(
    provider: Rc<dyn Provider>,
    incoming: Box<dyn Incoming>,
    request: LoginRequest,
    s: Rc<Scripted>,
    login: u32,
) {
    let queue = provider.recv_queue(64, 16384).unwrap();
    let cq = CompletionQueue::new();
    let buffers: Vec<Slice> = (0..64).map(|_| Slice::heap(16384)).collect();
    for (i, b) in buffers.iter().enumerate() {
        queue.post(b.clone(), cq.token(i as u32));
    }
    let response = LoginResponse {
        tag: request.tag,
        credits: s.credits,
        request_iu_len: s.room.unwrap_or(request.request_iu_len),
        response_iu_len: 256,
        formats: BufferFormats::BOTH,
        result: MultiChannelResult::NoneTerminated,
        solicit_supported: false,
        immediate_supported: s.room.is_some(),
    };
    let params = Params {
        private_data: response.to_bytes().to_vec(),
        recv_queue: queue.clone(),
        reads_out: 1,
        reads_in: 0,
    };
    let Ok(conn) = incoming.accept(&*provider, params).await else { return };
    let peer = Peer { conn: conn.clone(), login };
    let context = IuContext {
        max_iu_len: response.request_iu_len,
        immediate_offset: s.room.map(|_| request.immediate_offset),
        max_table_entries: 16,
    };
    let (p, lengths) = (peer.clone(), s.lengths.clone());
    let note = move |seen: Seen| {
        s.seen.borrow_mut().push(seen);
        (s.script)(&p, seen);
    };
    note(Seen::Login);
    let task = spawn_task(async move {
        loop {
            let (user, c) = cq.next().await;
            let b = &buffers[user as usize];
            let bytes = b.sub(0, c.len as usize).to_vec();
            lengths.borrow_mut().push(c.len);
            note(match Iu::decode(&bytes, &context).unwrap() {
                Iu::Command(c) => Seen::Command(c.tag, c.cdb[0]),
                Iu::TaskManagement(t) => Seen::Task(t.tag, t.function, t.task_tag),
                Iu::CreditResponse(r) => Seen::CreditResponse(r.tag),
                Iu::EventResponse(r) => Seen::EventResponse(r.tag),
                Iu::InitiatorLogout(_) => unreachable!("this initiator disconnects instead"),
            });
            queue.post(b.clone(), cq.token(user));
        }
    });
    let (token, closed) = weir_reactor::completion();
    conn.on_closed(token);
    closed.await;
    weir_reactor::cancel(task);
}

struct Play {
    world: World,
    host: Node,
    session: Session,
    seen: Rc<RefCell<Vec<Seen>>>,
    lengths: Rc<RefCell<Vec<u32>>>,
}

impl Play {
    fn run<T: 'static>(&self, f: impl Future<Output = T> + 'static) -> T {
        self.world.run(&self.host, 600 * SECONDS, f).unwrap_or_else(|s| panic!("{s}"))
    }

    fn queue(&self) -> Queue {
        self.host.enter(|| self.session.queue())
    }

    /// TEST UNIT READY.
    fn tur(&self) -> Result<(), Error> {
        let q = self.queue();
        self.run(async move { q.test_unit_ready(L0).await })
    }

    fn rungs(&self) -> Vec<Rung> {
        self.session.events().iter().map(|e| e.rung).collect()
    }

    fn count(&self, f: impl Fn(&Seen) -> bool) -> usize {
        self.seen.borrow().iter().filter(|s| f(s)).count()
    }

    /// Nothing is held any more.
    fn check_quiet(&self) {
        self.world.run_for(10 * SECONDS);
        for c in self.host.enter(|| self.session.census()) {
            assert_eq!((c.busy, c.registrations, c.waiting), (0, 0, 0), "{c:?}");
        }
    }
}

fn play_with(
    credits: i32,
    accepted: u32,
    change: impl FnOnce(&mut SessionConfig),
    script: impl Fn(&Peer, Seen) + 'static,
) -> Play {
    play_in(None, credits, accepted, change, script)
}

/// With a target that takes no longer messages than that.
fn play_in(
    room: Option<u32>,
    credits: i32,
    channels: u32,
    change: impl FnOnce(&mut SessionConfig),
    script: impl Fn(&Peer, Seen) + 'static,
) -> Play {
    let world = World::new(1);
    let (target, host) = (world.node("target"), world.node("host"));
    let seen: Rc<RefCell<Vec<Seen>>> = Rc::default();
    let lengths: Rc<RefCell<Vec<u32>>> = Rc::default();
    let (script, told) = (Rc::new(script), lengths.clone());
    let s = Scripted { credits, room, channels, script, seen: seen.clone(), lengths: told };
    target.spawn(serve(target.provider(), target.addr(PORT), Rc::new(s)));
    let mut config = SessionConfig {
        command_timeout: 2 * SECONDS,
        task_timeout: SECONDS,
        reconnect_min: 10 * MILLIS,
        ..SessionConfig::new(&target.addr(PORT), TARGET, HOST)
    };
    change(&mut config);
    let provider = host.provider();
    let login = host.spawn(async move { Session::connect(provider, config).await.unwrap() });
    let session = world.run(&host, SECONDS, login).unwrap().unwrap();
    Play { world, host, session, seen, lengths }
}

fn play(script: impl Fn(&Peer, Seen) + 'static) -> Play {
    play_with(32, 8, |_| {}, script)
}

/// Answers everything that the script of a test does not care for.
fn agree(p: &Peer, s: Seen) {
    match s {
        Seen::Command(tag, _) => p.good(tag),
        Seen::Task(tag, ..) => p.respond(Response::code(tag, RspCode::Complete, 1)),
        _ => {}
    }
}

#[test]
fn a_reset_that_helps_ends_the_ladder() {
    let silent = Rc::new(Cell::new(true));
    let aborts = Rc::new(RefCell::new(Vec::new()));
    let p = play(move |p, s| match s {
        Seen::Command(..) if silent.get() => {}
        Seen::Task(tag, TaskFunction::AbortTask, _) if silent.get() => {
            aborts.borrow_mut().push(tag)
        }
        Seen::Task(tag, TaskFunction::LunReset, task) => {
            assert_eq!(task, Tag(0xffff_ffff));
            silent.set(false);
            p.respond(Response::code(tag, RspCode::Complete, 1));
            // The aborts that were held up by what the reset has ended.
            let (p, held) = (p.clone(), aborts.take());
            spawn_task(async move {
                sleep(MILLIS).await;
                for tag in held {
                    p.respond(Response::code(tag, RspCode::Complete, 2));
                }
            });
        }
        s => agree(p, s),
    });
    assert_eq!(p.tur(), Ok(()));
    assert_eq!(p.rungs(), [Rung::AbortTask, Rung::LunReset]);
    assert_eq!(p.session.figures().losses, 0);
    p.check_quiet();
}

/// The abort is answered when the reset is already on its way: the tag is free, and the next command has it.
#[test]
fn a_reset_does_not_end_the_command_that_has_the_slot_since() {
    let (abort, reset) = (Rc::new(Cell::new(None::<Tag>)), Rc::new(Cell::new(None)));
    let with_target = Rc::new(RefCell::new(Vec::<Tag>::new()));
    let p = play_with(32, 8, |c| (c.depth, c.task_timeout) = (1, SECONDS), {
        let mut first = Some(());
        let first = RefCell::new(move || first.take().is_some());
        move |p, s| match s {
            Seen::Command(tag, _) if (first.borrow_mut())() => with_target.borrow_mut().push(tag),
            Seen::Command(tag, _) => {
                let mut there = with_target.borrow_mut();
                assert!(
                    !there.contains(&tag),
                    "the target has a command by {tag} that nobody ended"
                );
                there.push(tag);
                let Some(reset) = reset.take() else {
                    there.retain(|t| *t != tag);
                    return p.good(tag);
                };
                // Nothing that came before the reset is left; this came after it, and takes its time.
                p.respond(Response::code(reset, RspCode::Complete, 1));
                let (p, there, abort) = (p.clone(), with_target.clone(), abort.clone());
                spawn_task(async move {
                    sleep(500 * MILLIS).await;
                    there.borrow_mut().retain(|t| *t != tag);
                    p.good(tag);
                    if let Some(tag) = abort.take() {
                        p.respond(Response::code(tag, RspCode::Complete, 1));
                    }
                });
            }
            Seen::Task(tag, TaskFunction::AbortTask, _) => abort.set(Some(tag)),
            Seen::Task(tag, TaskFunction::LunReset, _) => {
                reset.set(Some(tag));
                with_target.borrow_mut().clear();
                let tag = abort.take().unwrap();
                p.respond(Response::code(tag, RspCode::Complete, 1));
            }
            s => agree(p, s),
        }
    });
    assert_eq!(p.tur(), Ok(()));
    // Whether the reset has ended the second, too, is not known: that is asked for.
    assert_eq!(p.rungs(), [Rung::AbortTask, Rung::LunReset, Rung::AbortTask]);
    assert_eq!(p.count(|s| matches!(s, Seen::Command(..))), 2, "it was sent again once");
    p.check_quiet();
}

/// While a reset takes its time a command comes that the target does not abort, and it is given up: the reset was there
/// before it, and has not ended it.
#[test]
fn a_reset_does_not_end_what_came_after_it() {
    // By login and tag.
    let there = Rc::new(RefCell::new(Vec::<(u32, Tag)>::new()));
    let resets = Rc::new(Cell::new(0));
    let change = |c: &mut SessionConfig| {
        (c.depth, c.channels, c.task_timeout) = (1, 2, SECONDS);
    };
    let p = play_with(32, 8, change, {
        let (there, resets, abort) =
            (there.clone(), resets.clone(), Rc::new(Cell::new(None::<(Peer, Tag)>)));
        let commands = Cell::new(0);
        move |p, s| match s {
            Seen::Command(tag, _) => {
                let mut there = there.borrow_mut();
                let one = (p.login, tag);
                assert!(!there.contains(&one), "{one:?} is of a command that nobody has ended");
                commands.set(commands.get() + 1);
                match commands.get() {
                    // Two that take for ever.
                    ..=2 => there.push(one),
                    _ => p.good(tag),
                }
            }
            Seen::Task(tag, TaskFunction::AbortTask, _) if commands.get() == 1 => {
                abort.set(Some((p.clone(), tag)));
            }
            Seen::Task(tag, TaskFunction::AbortTask, task) => {
                let is_there = there.borrow().contains(&(p.login, task));
                let code = if is_there { RspCode::TmfFailed } else { RspCode::Complete };
                p.respond(Response::code(tag, code, 1));
            }
            Seen::Task(tag, TaskFunction::LunReset, _) => {
                resets.set(resets.get() + 1);
                there.borrow_mut().clear();
                let (p, abort) = (p.clone(), abort.clone());
                spawn_task(async move {
                    sleep(600 * MILLIS).await;
                    p.respond(Response::code(tag, RspCode::Complete, 1));
                    if let Some((p, tag)) = abort.take() {
                        p.respond(Response::code(tag, RspCode::Complete, 1));
                    }
                });
            }
            s => agree(p, s),
        }
    });
    let q = p.queue();
    p.run(async move {
        for _ in 0..2 {
            let dropped = weir_reactor::timeout(MILLIS, q.test_unit_ready(L0)).await;
            assert!(dropped.is_err());
            // The first one's abort has its time, and the unit is being reset for it.
            sleep(1200 * MILLIS).await;
        }
        q.given_up().await;
        assert!(there.borrow().is_empty(), "the target has one yet");
        for _ in 0..2 {
            assert_eq!(q.test_unit_ready(L0).await, Ok(()));
        }
    });
    assert_eq!(resets.get(), 2);
    p.check_quiet();
}

/// The second channel stands still for a while, as one that goes another way than the first: the unit is reset over that
/// before the target has the command. `refuses`: it does not abort it then, and takes its time with it.
fn comes_after_the_reset(refuses: bool) {
    // What has come to the target, in order; by login.
    let order = Rc::new(RefCell::new(Vec::<u32>::new()));
    let running = Rc::new(Cell::new(None::<Tag>));
    let p = play_with(32, 8, |c| c.channels = 2, {
        let held = Rc::new(RefCell::new(Vec::<(Peer, Seen)>::new()));
        let (order, running) = (order.clone(), running.clone());
        let resets = Cell::new(0);
        move |p, s| match s {
            Seen::Command(..) | Seen::Task(..) if p.login == 2 && resets.get() == 0 => {
                held.borrow_mut().push((p.clone(), s));
            }
            Seen::Task(_, TaskFunction::LunReset, _) => {
                resets.set(resets.get() + 1);
                running.set(None);
                agree(p, s);
                let (held, order, running) = (held.take(), order.clone(), running.clone());
                spawn_task(async move {
                    sleep(500 * MILLIS).await;
                    for (p, s) in held {
                        match s {
                            Seen::Command(tag, _) => {
                                order.borrow_mut().push(2);
                                match refuses {
                                    true => running.set(Some(tag)),
                                    false => p.good(tag),
                                }
                            }
                            Seen::Task(tag, ..) if refuses => {
                                p.respond(Response::code(tag, RspCode::TmfFailed, 1));
                            }
                            s => agree(&p, s),
                        }
                        // The answers go in this order.
                        sleep(MILLIS).await;
                    }
                });
            }
            Seen::Command(tag, _) => {
                assert_eq!(running.get(), None, "the same command is with the unit yet");
                order.borrow_mut().push(p.login);
                p.good(tag);
            }
            s => agree(p, s),
        }
    });
    // The channels take turns.
    assert_eq!((p.tur(), p.tur()), (Ok(()), Ok(())));
    p.world.run_for(SECONDS);
    let expected: &[u32] = if refuses { &[1, 2, 1] } else { &[1, 2] };
    assert_eq!(*order.borrow(), expected, "it came once more, after its second try");
    assert_eq!(p.session.figures().losses, 0);
    p.check_quiet();
}

#[test]
fn what_a_target_may_not_have_yet_is_not_over_by_a_reset() {
    comes_after_the_reset(false);
}

#[test]
fn what_a_target_has_had_since_the_reset_and_does_not_abort_is_not_over() {
    comes_after_the_reset(true);
}

#[test]
fn other_commands_of_a_reset_unit_are_tried_again() {
    // The first command is never answered, nor its abort; the others only after the reset, by nothing.
    let p = play_with(32, 8, |c| c.channels = 3, {
        let (first, dead) = (Rc::new(Cell::new(None)), Rc::new(Cell::new(true)));
        let held = Rc::new(RefCell::new(Vec::<(Peer, Tag)>::new()));
        move |p, s| match s {
            Seen::Command(tag, _) if dead.get() => {
                first.set(first.get().or(Some((p.login, tag))));
            }
            Seen::Task(tag, TaskFunction::AbortTask, task) if dead.get() => {
                assert_eq!(first.get(), Some((p.login, task)), "only the first is overdue");
                held.borrow_mut().push((p.clone(), tag));
            }
            Seen::Task(tag, TaskFunction::LunReset, _) => {
                assert_eq!(p.login, 1, "resets go over the first channel");
                dead.set(false);
                agree(p, s);
                assert_ne!(tag, Tag(0));
                for (peer, tag) in held.take() {
                    peer.respond(Response::code(tag, RspCode::Complete, 2));
                }
            }
            s => agree(p, s),
        }
    });
    let q = p.queue();
    p.run(async move {
        let a = q.clone();
        let first = spawn(async move { a.test_unit_ready(L0).await });
        sleep(1500 * MILLIS).await;
        let others: Vec<_> = (0..7)
            .map(|_| {
                let q = q.clone();
                spawn(async move { q.test_unit_ready(L0).await })
            })
            .collect();
        assert_eq!(first.await, Some(Ok(())));
        for o in others {
            assert_eq!(o.await, Some(Ok(())));
        }
    });
    assert!(p.world.now() < 5 * SECONDS, "the others did not wait for their own time to be up");
    let aborts = p.rungs().iter().filter(|r| **r == Rung::AbortTask).count();
    assert_eq!((aborts, p.session.figures().lun_resets, p.session.figures().losses), (8, 1, 0));
    p.check_quiet();
}

/// No command has a time. One is given up, and it takes a reset to end it, which ends another without an answer.
#[test]
fn a_reset_unit_s_commands_end_that_may_wait_for_ever() {
    let (aborts, reset) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(false)));
    let p = play_with(32, 8, |c| c.command_timeout = 0, {
        let reset = reset.clone();
        move |p, s| match s {
            Seen::Command(..) if !reset.get() => {}
            Seen::Task(tag, TaskFunction::AbortTask, _) if !reset.get() => {
                aborts.borrow_mut().push(tag);
            }
            Seen::Task(_, TaskFunction::LunReset, _) => {
                reset.set(true);
                agree(p, s);
                for tag in aborts.take() {
                    p.respond(Response::code(tag, RspCode::Complete, 1));
                }
            }
            s => agree(p, s),
        }
    });
    let q = p.queue();
    p.run(async move {
        let other = q.clone();
        let other = spawn(async move { other.test_unit_ready(L0).await });
        let dropped = weir_reactor::timeout(MILLIS, q.test_unit_ready(L0)).await;
        assert!(dropped.is_err());
        assert_eq!(weir_reactor::timeout(60 * SECONDS, other).await, Ok(Some(Ok(()))));
    });
    assert!(reset.get());
    p.check_quiet();
}

#[test]
fn an_abort_that_is_never_answered_costs_the_channels() {
    let p = play(|p, s| match s {
        Seen::Command(..) | Seen::Task(_, TaskFunction::AbortTask, _) if p.login == 1 => {}
        s => agree(p, s),
    });
    assert_eq!(p.tur(), Ok(()));
    assert_eq!(p.rungs(), [Rung::AbortTask, Rung::LunReset, Rung::Disconnect, Rung::Reconnect]);
    p.check_quiet();
}

/// A target that does not abort a command may be about to answer it, or go on with it.
#[test]
fn an_abort_that_is_refused_is_not_the_end_of_the_command() {
    // It was just about to end: its answer comes behind that to the abort.
    let p = play(|p, s| match s {
        Seen::Task(tag, TaskFunction::AbortTask, task) => {
            p.respond(Response::code(tag, RspCode::TmfFailed, 1));
            p.good(task);
        }
        Seen::Command(..) => {}
        s => agree(p, s),
    });
    assert_eq!(p.tur(), Ok(()));
    assert_eq!(p.count(|s| matches!(s, Seen::Command(..))), 1, "it was not sent again");
    assert_eq!(p.rungs(), [Rung::AbortTask]);
    p.check_quiet();
    // It goes on: the unit is reset before anything is sent again.
    for refusal in [RspCode::TmfFailed, RspCode::TmfUnsupported] {
        let reset = Rc::new(Cell::new(false));
        let p = play(move |p, s| match s {
            Seen::Command(..) if !reset.get() => {}
            Seen::Task(tag, TaskFunction::AbortTask, _) => {
                p.respond(Response::code(tag, refusal, 1));
            }
            Seen::Task(_, TaskFunction::LunReset, _) => {
                reset.set(true);
                agree(p, s);
            }
            s => agree(p, s),
        });
        assert_eq!(p.tur(), Ok(()));
        assert_eq!(p.rungs(), [Rung::AbortTask, Rung::LunReset]);
        let seen = p.seen.borrow();
        let at = |f: fn(&Seen) -> bool| seen.iter().rposition(f).unwrap();
        assert!(
            at(|s| matches!(s, Seen::Task(_, TaskFunction::LunReset, _)))
                < at(|s| matches!(s, Seen::Command(..)))
        );
        drop(seen);
        p.check_quiet();
    }
}

#[test]
fn credits_that_are_given_and_taken_again_and_again_count_once() {
    let p = play(|p, s| match s {
        Seen::Command(tag, _) => {
            for delta in [i32::MIN / 2, -(i32::MIN / 2), i32::MIN / 2, -(i32::MIN / 2)] {
                p.send(&CreditRequest { solicited: false, delta, tag: Tag(77) }.to_bytes());
            }
            p.good(tag);
        }
        s => agree(p, s),
    });
    for _ in 0..3 {
        assert_eq!(p.tur(), Ok(()));
    }
    assert_eq!(p.session.figures().losses, 0);
}

#[test]
fn a_late_answer_wins_over_its_abort() {
    let late = Rc::new(Cell::new(None));
    let p = play(move |p, s| match s {
        Seen::Command(tag, _) => late.set(Some(tag)),
        Seen::Task(tag, TaskFunction::AbortTask, task) => {
            assert_eq!(late.get(), Some(task));
            p.good(task);
            p.respond(Response::code(tag, RspCode::Complete, 1));
        }
        s => agree(p, s),
    });
    assert_eq!(p.tur(), Ok(()));
    assert_eq!(p.count(|s| matches!(s, Seen::Command(..))), 1, "it was not sent again");
    p.check_quiet();
}

#[test]
fn a_tag_is_not_used_again_while_an_abort_names_it() {
    let last = Rc::new(Cell::new(None::<(Tag, Tag)>));
    let p = play_with(32, 8, |c| c.depth = 1, {
        let last = last.clone();
        move |p, s| match s {
            Seen::Command(tag, 0x00) => {
                if let Some((abort, task)) = last.get() {
                    panic!("{tag} is used while {abort} names {task}");
                }
            }
            Seen::Task(tag, TaskFunction::AbortTask, task) => {
                last.set(Some((tag, task)));
                // The answer to the command first, that to the abort much later.
                p.good(task);
                let (p, last) = (p.clone(), last.clone());
                spawn_task(async move {
                    sleep(500 * MILLIS).await;
                    last.set(None);
                    p.respond(Response::code(tag, RspCode::Complete, 1));
                });
            }
            s => agree(p, s),
        }
    });
    let q = p.queue();
    p.run(async move {
        let dropped = weir_reactor::timeout(MILLIS, q.test_unit_ready(L0)).await;
        assert!(dropped.is_err());
        // Waits for the only slot; then this command is given up, too.
        let dropped = weir_reactor::timeout(800 * MILLIS, q.test_unit_ready(L0)).await;
        assert!(dropped.is_err());
    });
    assert_eq!(p.count(|s| matches!(s, Seen::Command(..))), 2);
    p.check_quiet();
}

/// As many commands at once as there are credits, and others that wait for a slot; then the channel ends. The credits of
/// what was under way never come back.
#[test]
fn what_waits_for_a_slot_does_not_outlive_the_channel() {
    let p = play_with(5, 8, |c| c.depth = 4, {
        let held = Rc::new(Cell::new(0));
        move |p, s| match s {
            Seen::Command(..) if p.login == 1 => {
                held.set(held.get() + 1);
                if held.get() == 4 {
                    p.conn.disconnect(true);
                }
            }
            s => agree(p, s),
        }
    });
    let q = p.queue();
    p.run(async move {
        let command = |_| {
            let q = q.clone();
            spawn(async move { q.test_unit_ready(L0).await })
        };
        let all: Vec<_> = (0..12).map(command).collect();
        for c in all {
            assert_eq!(c.await, Some(Ok(())));
        }
    });
    p.check_quiet();
}

#[test]
fn credits_come_by_request_and_may_be_taken_back() {
    let p = play_with(5, 8, |_| {}, {
        let held = Rc::new(Cell::new(0));
        move |p, s| match s {
            // Answers carry no credit; four commands and the reserve use up what there was.
            Seen::Command(tag, _) => {
                p.respond(Response::scsi(tag, 0, 0));
                held.set(held.get() + 1);
                if held.get() == 4 {
                    held.set(0);
                    let r = CreditRequest { solicited: false, delta: 7, tag: Tag(77) };
                    p.send(&r.to_bytes());
                    let back = CreditRequest { solicited: false, delta: -3, tag: Tag(78) };
                    p.send(&back.to_bytes());
                }
            }
            s => agree(p, s),
        }
    });
    for _ in 0..5 {
        let q = p.queue();
        p.run(async move {
            let all: Vec<_> = (0..4)
                .map(|_| {
                    let q = q.clone();
                    spawn(async move { q.test_unit_ready(L0).await.unwrap() })
                })
                .collect();
            for t in all {
                t.await.unwrap();
            }
        });
    }
    p.world.run_for(SECONDS);
    assert_eq!(p.count(|s| *s == Seen::CreditResponse(Tag(77))), 5);
    assert_eq!(p.session.figures().losses, 0);
    p.check_quiet();
    assert_eq!(p.host.enter(|| p.session.census())[0].credits, 5);
}

#[test]
fn events_of_the_target_are_answered() {
    let p = play(|p, s| {
        if s == Seen::Login {
            let r = EventRequest {
                tag: Tag(9),
                delta: 0,
                lun: 0,
                sense: &[0x70; 18],
                solicited: false,
            };
            let mut iu = [0; 128];
            let n = r.encode(&mut iu, 128).unwrap();
            let p = p.clone();
            spawn_task(async move {
                // Not before the first command: an initiator's receives are there by then.
                sleep(MILLIS).await;
                p.send(&iu[..n]);
            });
        }
        agree(p, s);
    });
    assert_eq!(p.tur(), Ok(()));
    p.world.run_for(10 * MILLIS);
    assert_eq!(p.count(|s| *s == Seen::EventResponse(Tag(9))), 1);
}

#[test]
fn a_target_that_breaks_the_rules_is_logged_in_to_again() {
    for what in 0..4 {
        let p = play(move |p, s| match s {
            Seen::Command(tag, _) if p.login == 1 => match what {
                0 => p.send(
                    &TargetLogout { solicited: false, reason: LogoutReason::Inactive, tag: Tag(1) }
                        .to_bytes(),
                ),
                1 => p.send(&[0x42; 40]),
                2 => p.send(&[0xc1; 20]),
                _ => {
                    p.respond(Response::scsi(Tag(0xdead_beef), 0, i32::MAX));
                    p.good(tag);
                }
            },
            s => agree(p, s),
        });
        let r = p.tur();
        assert_eq!(r, Ok(()), "{what}");
        p.world.run_for(SECONDS);
        assert_eq!(p.session.figures().reconnects, 1, "{what}");
        p.check_quiet();
    }
}

#[test]
fn answers_to_nothing_are_passed_over() {
    let p = play(|p, s| match s {
        Seen::Command(tag, _) => {
            // Unknown tags, another queue's, a task's, and every answer twice.
            for t in [1 << 40, 0x7fff_0000, 0x0000_ffff, 0x8000_1234] {
                p.respond(Response::scsi(Tag(t), 0, 0));
            }
            p.good(tag);
            p.respond(Response::scsi(tag, 2, 0));
        }
        s => agree(p, s),
    });
    for _ in 0..200 {
        // An answer to a tag that is in use again is the target's lie; the command believes it.
        let _ = p.tur();
    }
    assert_eq!(p.session.figures().losses, 0);
    p.check_quiet();
}

#[test]
fn what_is_tried_again_and_what_is_not() {
    let step = Rc::new(Cell::new(0u32));
    let p = play_with(32, 8, |c| c.retries = 3, {
        let step = step.clone();
        move |p, s| match s {
            Seen::Command(tag, _) => match step.replace(step.get() + 1) {
                0 => p.check(tag, Sense::POWER_ON_OR_RESET),
                1 => p.check(tag, Sense::CAPACITY_CHANGED),
                2 | 3 | 5 => p.respond(Response::scsi(tag, 0x28, 1)),
                6 => p.check(tag, Sense::BECOMING_READY),
                7 => p.respond(Response::scsi(tag, 0x40, 1)),
                8 => p.respond(Response::scsi(tag, 0x08, 1)),
                10 => p.check(tag, Sense::UNRECOVERED_READ_ERROR.with_info(77)),
                11 => p.respond(Response::code(tag, RspCode::FieldsInvalid, 1)),
                12 => p.respond(Response::scsi(tag, 0x18, 1)),
                n if n < 20 => p.good(tag),
                // From here on: busy for ever.
                _ => p.respond(Response::scsi(tag, 0x08, 1)),
            },
            s => agree(p, s),
        }
    });
    // Three retries are one too few for steps 0 to 3.
    assert_eq!(p.tur(), Err(Error::Scsi { status: 0x28, sense: None }));
    assert_eq!((p.session.figures().unit_attentions, step.get()), (2, 4));
    assert_eq!((p.tur(), step.get()), (Ok(()), 5));
    let t = p.world.now();
    assert_eq!(p.tur(), Err(Error::Scsi { status: 0x08, sense: None }));
    assert!(p.world.now() - t >= 3 * MILLIS && step.get() == 9);
    assert_eq!((p.tur(), step.get()), (Ok(()), 10));
    let e = p.tur().unwrap_err();
    assert_eq!(e.sense().and_then(|s| s.info), Some(77));
    assert!(e.to_string().contains("unrecovered read error"), "{e}");
    assert_eq!(p.tur(), Err(Error::Response(RspCode::FieldsInvalid)));
    assert_eq!(p.tur(), Err(Error::Scsi { status: 0x18, sense: None }));
    assert_eq!(step.get(), 13, "none of these was tried again");
    step.set(20);
    assert!(p.tur().is_err());
    assert_eq!(step.get(), 24);
    p.check_quiet();
}

#[test]
fn a_lost_command_that_must_not_run_twice_is_in_doubt() {
    let p = play(|p, s| match s {
        Seen::Command(..) if p.login == 1 => p.conn.disconnect(true),
        s => agree(p, s),
    });
    let q = p.queue();
    // PERSISTENT RESERVE OUT, REGISTER.
    let cdb = [0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0];
    let r = p.run(async move { q.raw(L0, &cdb, &[], &[]).await });
    assert_eq!(r, Err(Error::InDoubt));
    assert_eq!(p.tur(), Ok(()));
    assert_eq!(p.count(|s| matches!(s, Seen::Command(_, 0x5f))), 1);
    p.check_quiet();
}

#[test]
fn missing_data_is_no_success() {
    let p = play(|p, s| match s {
        Seen::Command(tag, 0x28) => p.respond(
            Response::scsi(tag, 0, 1)
                .with_residuals(Residuals { data_in: Residual::Under(512), ..Default::default() }),
        ),
        s => agree(p, s),
    });
    let q = p.queue();
    let r = p.run(async move {
        let lun = L0;
        // READ CAPACITY is answered without data: the size is not known.
        assert!(matches!(q.read(lun, 0, Slice::heap(512)).await, Err(Error::Invalid(_))));
        q.raw(lun, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[], &[Slice::heap(512).sub(0, 512)]).await
    });
    assert_eq!(r.unwrap().in_residual, Residual::Under(512));
    p.check_quiet();
}

#[test]
fn fewer_channels_than_wanted_will_do() {
    let p = play_with(32, 2, |c| c.channels = 4, agree);
    assert_eq!(p.session.figures().channels, 2);
    assert_eq!(p.tur(), Ok(()));
    p.check_quiet();
}

/// A target may agree to shorter messages than it was asked for. What does not fit one it fetches.
#[test]
fn immediate_data_is_as_long_as_the_target_takes_it() {
    const ROOM: u32 = 2048;
    // In front of the data.
    const COMMAND: u32 = 68;
    let p = play_in(Some(ROOM), 32, 8, |c| c.immediate = 8192, agree);
    let most = (ROOM - COMMAND) / 512 * 512;
    for len in [512, most, most + 512, 8192] {
        // One piece is sent from where it lies, several are put together.
        for pieces in [1, 2] {
            let data: Vec<Slice> =
                (0..pieces).map(|_| Slice::heap((len / pieces) as usize)).collect();
            let q = p.queue();
            p.lengths.borrow_mut().clear();
            let cdb = build::write(0, len / 512, false);
            let done = p.run(async move { q.transfer(L0, &cdb, &data, &[]).await });
            assert_eq!(done, Ok(()), "{len} bytes in {pieces} pieces");
            let lengths = p.lengths.borrow().clone();
            let whole = lengths == [COMMAND + len];
            assert_eq!(whole, len <= most, "{len} bytes in {pieces} pieces: {lengths:?}");
        }
    }
    assert_eq!(p.session.figures().losses, 0);
    p.check_quiet();
}
