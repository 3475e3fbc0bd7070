//! News of units that the target tells by itself.

use crate::common::L0;
use crate::sim::{LEN, Lab, seeds};
use std::rc::Rc;
use weir_base::{MILLIS, SECONDS};
use weir_initiator_srp::{Error, Session, SessionConfig};
use weir_mem::Slice;
use weir_proto_scsi::lu::AluaState;
use weir_proto_scsi::sense::Sense;
use weir_sim::Cut;
use weir_target_core::{AccessMap, HostRule};

fn news(s: &Session) -> Vec<(u16, Sense)> {
    s.notices().iter().map(|n| (n.lun.index().unwrap(), n.sense.unwrap())).collect()
}

/// Logged in, and both units asked once, so that nothing is pending.
fn session(lab: &Lab, events: bool) -> Session {
    let s = lab.session(SessionConfig { events, ..lab.session_config() });
    let q = lab.queue(&s);
    lab.run(async move {
        for u in q.scan().await.unwrap() {
            q.test_unit_ready(u.lun).await.unwrap();
        }
    });
    s
}

fn map(lab: &Lab, luns: &[u16]) {
    let luns = luns.iter().map(|n| (*n, "v".into())).collect();
    let rule = HostRule { host: "any".into(), any: true, luns, ..HostRule::default() };
    lab.served.borrow().as_ref().unwrap().access.set(AccessMap { hosts: vec![rule] });
}

#[test]
fn a_host_that_asked_for_events_hears_of_changes_at_once() {
    for seed in seeds(600, 6) {
        let lab = Lab::new(seed, 1 + (seed % 2) as usize);
        let (s, deaf) = (session(&lab, true), session_of_another_host(&lab));
        lab.world.run_for(SECONDS);
        assert_eq!(news(&s), [], "what was so at the login is no news");
        let unit = lab.served.borrow().as_ref().unwrap().unit.clone();
        // Without a command in between.
        unit.with(|u| u.resize((LEN / 512) as u64));
        lab.world.run_for(101 * MILLIS);
        assert!(!news(&s).is_empty(), "the first is told within 0.1 s");
        lab.world.run_for(199 * MILLIS);
        // One unit under two numbers is two to the host; its attention is one.
        let mut told = news(&s);
        told.sort_by_key(|(l, _)| *l);
        assert_eq!(told, [(0, Sense::CAPACITY_CHANGED), (3, Sense::CAPACITY_CHANGED)]);
        // It is still pending, and met by the next command.
        let before = s.figures().unit_attentions;
        let q = lab.queue(&s);
        lab.run(async move { q.test_unit_ready(L0).await.unwrap() });
        assert_eq!(s.figures().unit_attentions, before + 1);
        lab.world.run_for(SECONDS);
        assert_eq!(s.notices().len(), 2, "told once");
        unit.with(|u| u.set_alua(1, AluaState::ActiveNonOptimized, false)).unwrap();
        lab.world.run_for(300 * MILLIS);
        assert_eq!(news(&s)[2..].iter().filter(|n| n.1 == Sense::ALUA_STATE_CHANGED).count(), 2);
        // The list of units: one event for all.
        let before = s.notices().len();
        map(&lab, &[0, 3, 7]);
        lab.world.run_for(300 * MILLIS);
        assert_eq!(news(&s)[before..], [(0, Sense::REPORT_LUNS_CHANGED)]);
        map(&lab, &[7]);
        lab.world.run_for(300 * MILLIS);
        assert_eq!(news(&s)[before + 1..], [(0, Sense::REPORT_LUNS_CHANGED)]);
        // A host that did not ask hears nothing, and finds the attentions with its commands.
        assert_eq!(deaf.notices(), []);
        assert!(unit.with(|u| u.nexuses().any(|n| !u.attentions(n).is_empty())));
        assert_eq!((s.figures().losses, deaf.figures().losses), (0, 0));
        lab.run(async move { deaf.close().await });
        lab.check_clean(&s);
    }
}

fn session_of_another_host(lab: &Lab) -> Session {
    let initiator = weir_proto_srp::PortId::new(9, 9);
    let s = lab.session(SessionConfig { initiator, events: false, ..lab.session_config() });
    let q = lab.queue(&s);
    lab.run(async move { q.test_unit_ready(L0).await.unwrap() });
    s
}

/// Events, credits that are asked for, aborts and cuts, all at once.
#[test]
fn events_do_not_disturb_a_load() {
    let mut told = 0;
    for seed in seeds(620, 6) {
        let lab = Lab::new(seed, 2);
        let s = session(&lab, true);
        let unit = lab.served.borrow().as_ref().unwrap().unit.clone();
        lab.mood(|m| m.delay.set(MILLIS));
        let stop = Rc::new(std::cell::Cell::new(false));
        let (mut blocks, ended) = ((LEN / 512) as u64, stop.clone());
        shake(
            &lab.world,
            5 * MILLIS,
            Rc::new(std::cell::RefCell::new(move || {
                blocks ^= 64;
                unit.with(|u| u.resize(blocks));
                !ended.get()
            })),
        );
        let dropper = lab.queue(&s);
        let gave_up = lab.host.spawn(async move {
            for _ in 0..20 {
                let io = dropper.read(L0, 0, Slice::heap(512).sub(0, 512));
                let r = weir_reactor::timeout(MILLIS / 2, io).await;
                assert!(matches!(r, Err(_) | Ok(Ok(()) | Err(Error::PathDown))), "{r:?}");
                weir_reactor::sleep(10 * MILLIS).await;
            }
        });
        lab.verify(&s, 20);
        lab.run(gave_up).unwrap();
        lab.world.net().cut_any(Cut::Any);
        lab.verify(&s, 20);
        stop.set(true);
        lab.world.run_for(SECONDS);
        told += s.notices().len();
        lab.check_clean(&s);
    }
    // An attention that a command has met before the next look is no news any more.
    assert!(told > 0);
}

/// Calls `f` every now and then, until it says false.
fn shake(w: &weir_sim::World, every: u64, f: Rc<std::cell::RefCell<dyn FnMut() -> bool>>) {
    w.after(every, move |w| {
        let on = (f.borrow_mut())();
        if on {
            shake(w, every, f);
        }
    });
}
