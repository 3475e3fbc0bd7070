//! Events of every kind in every order, also such as no daemon and no honest partner sends.

use crate::ids::{Epoch, Life, Node, Nodes, Session, Version};
use crate::message::{Beat, Message};
use crate::pair::{Action, Input, Outcome, Pair, Settings, Times};
use crate::register::{Phase, Register, Writer};
use proptest::prelude::*;
use std::sync::Arc;
use weir_base::MILLIS;

fn node(n: u8) -> Node {
    Node::new(n).expect("1 to 8")
}

fn registers() -> impl Strategy<Value = Register> {
    (1u64..8, 1u32..5, 1u8..=2, 0u8..4, 0u8..3, 1u8..=2, 0u32..4, any::<bool>()).prop_map(
        |(version, epoch, owner, able, phase, min_copies, n, foreign)| {
            let writer = Writer { node: node(owner), life: Life(5), n };
            let pool = if foreign { 8 } else { 7 };
            Register {
                version: Version(version),
                epoch: Epoch(epoch),
                able: Nodes::from_bits(able),
                phase: match phase {
                    0 => Phase::Serving,
                    1 => Phase::Handing(node(3 - owner)),
                    _ => Phase::Released,
                },
                min_copies,
                ..Register::made(pool, [node(1), node(2)], writer)
            }
        },
    )
}

fn messages() -> impl Strategy<Value = Message> {
    (prop_oneof![0u32..6, Just(u32::MAX)], 4u64..7, any::<u64>(), any::<bool>()).prop_map(
        |(epoch, life, sent, grant)| {
            let beat = Beat { epoch: Epoch(epoch), life: Life(life), sent };
            if grant { Message::Grant(beat) } else { Message::Beat(beat) }
        },
    )
}

fn outcomes() -> impl Strategy<Value = Outcome> {
    prop_oneof![Just(Outcome::Done), Just(Outcome::InDoubt), registers().prop_map(Outcome::Other)]
}

/// All but [`Input::Opened`], which an engine says of nodes that it was told.
fn inputs() -> impl Strategy<Value = Input> {
    let session = || (0u32..4).prop_map(Session);
    let epoch = || (0u32..6).prop_map(Epoch);
    prop_oneof![
        4 => Just(Input::Tick),
        2 => messages().prop_map(Input::Message),
        3 => registers().prop_map(Input::Read),
        1 => Just(Input::NotRead),
        2 => registers().prop_map(Input::Seen),
        4 => (0u32..6, outcomes()).prop_map(|(n, o)| Input::Changed(n, o)),
        3 => epoch().prop_map(Input::Drained),
        1 => epoch().prop_map(Input::NotDrained),
        1 => epoch().prop_map(Input::OpenFailed),
        2 => epoch().prop_map(Input::Closed),
        2 => session().prop_map(Input::SessionUp),
        1 => session().prop_map(Input::SessionDown),
        1 => session().prop_map(Input::InSync),
        1 => (1u8..=3).prop_map(|n| Input::DeviceFailed(node(n))),
        1 => Just(Input::Move),
        1 => any::<bool>().prop_map(Input::Drain),
    ]
}

proptest! {
    #[test]
    fn any_events_leave_the_machine_whole(all in prop::collection::vec((inputs(), 0u64..1200, any::<bool>()), 0..120)) {
        let settings = Settings { me: node(1), partner: node(2), pool: 7, times: Times::USUAL };
        let mut now = 1_000_000 * MILLIS;
        let mut pair = Pair::new(Arc::new(settings), Life(5), now);
        let (mut opening, mut open) = (None, None);
        for (input, wait, opens) in all {
            now += wait * MILLIS;
            pair.input(now, input);
            if let (Some((epoch, with)), true) = (opening, opens) {
                pair.input(now, Input::Opened(epoch, with));
            }
            while let Some(action) = pair.poll() {
                match action {
                    Action::Open(epoch, able) => {
                        prop_assert!(open.is_none_or(|e| epoch > e), "epochs only rise");
                        prop_assert!(!able.is_empty());
                        (opening, open) = (Some((epoch, able)), Some(epoch));
                    }
                    Action::Change(value) => {
                        let known = pair.known().expect("what is changed is known");
                        prop_assert!(value.version > known.version || !pair.is_changing());
                        prop_assert_eq!(Register::decode(&value.encode()), Ok(value));
                        prop_assert_eq!(value.pool, 7);
                    }
                    _ => {}
                }
            }
            // Who does not own the pool says nothing to hosts, whatever it heard.
            let owns = pair.known().is_some_and(|k| k.owner == node(1) && Some(k.epoch) == pair.serves());
            prop_assert!(owns || !(pair.may_read(now) || pair.may_acknowledge(Nodes::from_bits(3))));
            prop_assert!(pair.deadline() > now);
            prop_assert!(!pair.may_acknowledge(Nodes::NONE));
        }
    }
}
