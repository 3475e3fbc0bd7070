//! Hosts that say nothing: those that are gone are given up, those that are there stay.

use crate::peer::{End, Peer};
use crate::sim::Lab;
use crate::target::config;
use std::rc::Rc;
use weir_base::{Nanos, SECONDS};
use weir_fabric::Provider;
use weir_initiator_srp::SessionConfig;
use weir_proto_srp::PortId;
use weir_proto_srp::command_builder::BufferSpec;
use weir_target_srp::TargetConfig;

const ASKED: Nanos = 20 * SECONDS;
const RESERVE: [u8; 6] = [0x16, 0, 0, 0, 0, 0];
const TEST_UNIT_READY: [u8; 6] = [0; 6];

fn lab(seed: u64) -> Lab {
    Lab::with(seed, 1, TargetConfig { probe_after: ASKED, ..config() })
}

/// A host with two channels, of which it has used one, loses its power: what it held is free again.
#[test]
fn a_host_that_is_gone_leaves_no_channel_behind_that_it_has_never_used() {
    let lab = lab(40);
    let t = Rc::new(lab.served.take().expect("it is served"));
    let provider: Rc<dyn Provider> = lab.host.provider();
    let (p, served) = (provider, t.clone());
    let peers = lab.run(async move {
        let peers = [Peer::enter(&p, &served, 0).await, Peer::enter(&p, &served, 0).await];
        peers[0].attention().await;
        peers[0].send(1, &RESERVE, BufferSpec::None);
        assert_eq!(peers[0].next().await, (1, End::Status(0)));
        peers
    });
    assert_eq!(t.target.nexuses().first().map(|n| n.channels), Some(2));
    lab.world.net().partition(lab.host.number(), lab.target.number());
    lab.world.run_for(3 * ASKED);
    assert_eq!(t.target.nexuses(), []);
    let census = t.port.census();
    assert_eq!((census.channels, census.credits), (0, 0), "{census:?}");
    let other = lab.world.node("other");
    let (p, served): (Rc<dyn Provider>, _) = (other.provider(), t.clone());
    let answer = lab.world.run(&other, 60 * SECONDS, async move {
        let peer = Peer::enter_as(&p, &served, PortId::new(8, 1), 0).await.expect("it is let in");
        peer.attention().await;
        peer.send(1, &TEST_UNIT_READY, BufferSpec::None);
        peer.next().await
    });
    assert_eq!(answer.ok(), Some((1, End::Status(0))), "the reservation is gone");
    lab.host.enter(|| drop(peers));
}

/// By the times of a daemon: asked after a minute, given up after another.
#[test]
fn a_silent_host_is_asked_after_a_minute_and_given_up_after_another() {
    let lab = Lab::with(43, 1, config());
    let t = Rc::new(lab.served.take().expect("it is served"));
    let (p, served): (Rc<dyn Provider>, _) = (lab.host.provider(), t.clone());
    let peer = lab.run(async move {
        let peer = Peer::enter(&p, &served, 0).await;
        peer.attention().await;
        peer
    });
    lab.world.run_for(118 * SECONDS);
    assert_eq!(t.port.census().channels, 1);
    lab.world.run_for(4 * SECONDS);
    assert_eq!(t.port.census().channels, 0);
    lab.host.enter(|| drop(peer));
}

/// A host that is there keeps channels that it never uses.
#[test]
fn a_host_that_is_there_keeps_channels_that_it_has_never_used() {
    let lab = lab(41);
    let s = lab.session(SessionConfig { channels: 3, ..lab.session_config() });
    lab.world.run_for(20 * ASKED);
    let nexuses = lab.served.borrow().as_ref().map(|t| t.target.nexuses());
    assert!(nexuses.is_some_and(|all| all.len() == 1 && all[0].channels == 3));
    assert_eq!((s.figures().losses, s.figures().reconnects), (0, 0));
    lab.check_clean(&s);
}

/// A host that has been silent for long is told something just before it would be asked whether it is there: it has as long to
/// answer that as to answer any question.
#[test]
fn a_host_has_time_for_what_it_is_asked() {
    let lab = lab(42);
    let t = Rc::new(lab.served.take().expect("it is served"));
    let (p, served): (Rc<dyn Provider>, _) = (lab.host.provider(), t.clone());
    let peer = lab.run(async move {
        let peer = Peer::enter_for_events(&p, &served).await;
        peer.attention().await;
        peer
    });
    lab.world.run_for(ASKED - SECONDS);
    t.unit.with(|u| u.resize(64));
    lab.world.run_for(ASKED / 2);
    assert_eq!(t.port.census().channels, 1, "it is given up half the time after it was asked");
    assert!(lab.host.enter(|| peer.conn.is_open()));
    lab.world.run_for(ASKED);
    assert_eq!(t.port.census().channels, 0, "it does not answer");
    lab.host.enter(|| drop(peer));
}
