//! The time of a path is up while its login is being told.

use crate::common::L0;
use crate::sim::Lab;
use weir_base::{MICROS, Nanos, SECONDS};
use weir_initiator_srp::{PathState, Rung, Session, SessionConfig};
use weir_mem::Slice;

/// A target that is away for a while: when the path is back, by the session's own record, if all goes well.
fn away(fast_io_fail: Nanos) -> (Lab, Session, Option<Nanos>) {
    let lab = Lab::new(21, 3);
    let s = lab.session(SessionConfig { fast_io_fail, ..lab.session_config() });
    lab.target.kill();
    lab.served.borrow_mut().take();
    lab.world.run_for(SECONDS / 2);
    lab.target.restart();
    lab.serve();
    lab.world.run_for(5 * SECONDS);
    let at = |rung| s.events().iter().find(|e| e.rung == rung).map(|e| e.at);
    let took = at(Rung::Reconnect).zip(at(Rung::Disconnect)).map(|(back, lost)| back - lost);
    (lab, s, took)
}

#[test]
fn a_path_whose_login_works_at_the_last_moment_is_up() {
    let (_, _, took) = away(600 * SECONDS);
    let took = took.expect("it is back");
    // Reactors hear of it within some microseconds, one after the other.
    for before in (0..200).map(|n| n * MICROS / 5) {
        let (lab, s, _) = away(took - before);
        assert_eq!(s.state(), PathState::Running, "{before} ns before its end");
        let q = lab.queue(&s);
        let read = async move { q.read(L0, 0, Slice::heap(512).sub(0, 512)).await };
        assert_eq!(lab.run(read), Ok(()));
        lab.check_clean(&s);
    }
}

/// A first login loses a channel while it is told to reactors; the next one is told to all of them, too.
#[test]
fn a_login_after_one_that_came_to_nothing_counts_everywhere() {
    // How long a login takes.
    let lab = Lab::new(22, 3);
    let (s, begun) = (joined(&lab), lab.world.now());
    let login = s.clone();
    lab.run(async move { login.login().await }).unwrap();
    let took = lab.world.now() - begun;
    let mut failed = 0;
    for before in (0..100).map(|n| n * MICROS / 2) {
        let lab = Lab::new(22, 3);
        let s = joined(&lab);
        let (node, served) = (lab.target.clone(), lab.served.clone());
        lab.world.after(took.saturating_sub(before), move |_| {
            node.kill();
            served.borrow_mut().take();
        });
        let login = s.clone();
        let first = lab.run(async move { login.login().await });
        lab.world.run_for(SECONDS);
        lab.target.restart();
        lab.serve();
        if first.is_err() {
            failed += 1;
            let login = s.clone();
            lab.run(async move { login.login().await }).unwrap();
        } else {
            lab.world.run_until(60 * SECONDS, || s.state() == PathState::Running).unwrap();
        }
        for core in 0..3 {
            let state = lab.host.enter_on(core, || s.queue().state());
            assert_eq!(state, PathState::Running, "core {core}, {before} ns before its end");
        }
        lab.check_clean(&s);
    }
    assert!(failed > 0, "no login came to nothing");
}

fn joined(lab: &Lab) -> Session {
    let s = Session::new(lab.session_config());
    for core in 0..lab.host.cores() {
        lab.host.enter_on(core, || s.join(lab.host.provider_on(core)));
    }
    s
}
