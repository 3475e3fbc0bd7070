//! Gates, one event after the other.

use crate::gate::{Event, Gate, Login};
use crate::ids::{Epoch, Life, Node, Session};
use crate::register::{Register, Writer};

fn node(n: u8) -> Node {
    Node::new(n).expect("1 to 8")
}

fn register(epoch: u32, owner: u8) -> Register {
    let writer = Writer { node: node(owner), life: Life(1), n: 1 };
    Register { epoch: Epoch(epoch), ..Register::made(1, [node(1), node(2)], writer) }
}

/// By node 1, at the gate of node 2.
fn login(epoch: u32, session: u32) -> Login {
    Login { epoch: Epoch(epoch), owner: node(1), session: Session(session) }
}

fn events(gate: &mut Gate) -> Vec<Event> {
    std::iter::from_fn(|| gate.poll()).collect()
}

/// A gate of node 2 that has let this login in.
fn open(l: Login) -> Gate {
    let mut gate = Gate::new(node(2));
    gate.login(l);
    gate.registered(&register(l.epoch.0, 1));
    assert_eq!(events(&mut gate), [Event::Admitted(l)]);
    gate
}

#[test]
fn one_that_has_just_started_asks_the_register() {
    let mut gate = Gate::new(node(2));
    gate.login(login(3, 1));
    assert!(gate.asks() && !gate.begin(Epoch(3), Session(1)));
    gate.registered(&register(4, 2));
    assert_eq!(events(&mut gate), [Event::Refused(login(3, 1))]);
    gate.login(login(3, 2));
    assert!(!gate.asks(), "it knows better by now");
    assert_eq!(events(&mut gate), [Event::Refused(login(3, 2))]);
}

#[test]
fn a_newer_epoch_waits_for_what_is_under_way() {
    let mut gate = open(login(3, 1));
    assert!(gate.begin(Epoch(3), Session(1)));
    gate.login(login(4, 1));
    gate.registered(&register(4, 1));
    assert!(!gate.begin(Epoch(3), Session(1)), "the older one is over");
    assert!(events(&mut gate).is_empty() && !gate.begin(Epoch(4), Session(1)));
    gate.end();
    assert_eq!(events(&mut gate), [Event::Admitted(login(4, 1))]);
    assert!(gate.begin(Epoch(4), Session(1)));
}

#[test]
fn a_newer_session_of_one_epoch_does_too_and_an_older_one_never_comes_back() {
    let mut gate = open(login(3, 1));
    assert!(gate.begin(Epoch(3), Session(1)));
    gate.login(login(3, 2));
    assert!(!gate.asks() && !gate.begin(Epoch(3), Session(1)) && events(&mut gate).is_empty());
    gate.end();
    assert_eq!(events(&mut gate), [Event::Admitted(login(3, 2))]);
    gate.login(login(3, 1));
    assert_eq!(events(&mut gate), [Event::Refused(login(3, 1))]);
    assert!(gate.begin(Epoch(3), Session(2)));
}

#[test]
fn a_claim_of_its_own_node_drains_it() {
    let mut gate = open(login(3, 1));
    assert!(gate.begin(Epoch(3), Session(1)));
    gate.fence(Epoch(4));
    assert!(events(&mut gate).is_empty() && !gate.begin(Epoch(3), Session(1)));
    gate.end();
    assert_eq!(events(&mut gate), [Event::Drained(Epoch(4))]);
    assert!(gate.open_engine(Epoch(4)));
}

#[test]
fn the_own_engine_passes_it_like_any_other() {
    let mut gate = Gate::new(node(2));
    gate.fence(Epoch(4));
    assert!(!gate.open_engine(Epoch(3)) && gate.open_engine(Epoch(4)));
    gate.login(login(5, 1));
    gate.registered(&register(5, 1));
    assert_eq!(events(&mut gate), [Event::Drained(Epoch(4))], "the engine is still open");
    gate.engine_closed();
    assert_eq!(events(&mut gate), [Event::Admitted(login(5, 1))]);
    assert!(!gate.open_engine(Epoch(4)), "another has the device");
}

#[test]
fn of_two_that_wait_the_newer_one_is_let_in() {
    let mut gate = Gate::new(node(2));
    gate.login(login(3, 2));
    gate.login(login(3, 1));
    assert_eq!(events(&mut gate), [Event::Refused(login(3, 1))]);
    gate.login(login(3, 3));
    assert_eq!(events(&mut gate), [Event::Refused(login(3, 2))]);
    gate.login(login(3, 3));
    assert!(events(&mut gate).is_empty(), "it waits, however often it asks");
    gate.registered(&register(3, 1));
    assert_eq!(events(&mut gate), [Event::Admitted(login(3, 3))]);
}
