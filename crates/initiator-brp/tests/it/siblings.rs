//! Hosts with several paths by one initiator port: each life of them ends what is left of the one before.

use crate::common::{check_clean, on_reactor, session_config};
use crate::peer::{Peer, command, login};
use crate::target::{BLOCK, Served, config, serve};
use std::rc::Rc;
use weir_base::{MILLIS, SECONDS};
use weir_fabric::Provider;
use weir_initiator_brp::{Error, Keep, Session, as_paths};
use weir_mem::Slice;
use weir_proto_brp::command::flag;
use weir_proto_brp::{Command, Features, LoginRequest, Op};
use weir_reactor::{sleep, timeout};
use weir_target_brp::TargetConfig;

/// A life of a host with so many paths, all of them to this target.
async fn life(p: &Rc<dyn Provider>, t: &Served, life: u32, paths: usize) -> Vec<Session> {
    let mut configs = vec![session_config(t); paths];
    as_paths(&mut configs, life);
    let mut all = Vec::new();
    for c in configs {
        all.push(Session::connect(p.clone(), c).await.expect("it is let in"));
    }
    all
}

/// One life after the other, with a target that knows families or one that does not.
async fn lives(p: Rc<dyn Provider>, features: Features) {
    let c = TargetConfig { features, ..config() };
    let t = serve(p.clone(), "127.0.0.1:0", c, &Slice::heap(1 << 20));
    let mut before = Vec::new();
    // In the end one that has one path only.
    for (number, paths) in [(1, 2), (2, 3), (3, 1)] {
        let now = life(&p, &t, number, paths).await;
        assert_eq!(t.target.sessions().len(), paths, "a former life stays");
        for s in &now {
            assert_eq!(s.queue().nop().await, Ok(()));
        }
        for s in before {
            let s: Session = s;
            assert_eq!(s.queue().nop().await, Err(Error::Replaced));
            s.close().await;
        }
        before = now;
    }
    check_clean(&before[0], &t).await;
}

#[test]
fn paths_leave_each_other_alone_and_end_former_lives() {
    on_reactor(|p| lives(p, Features::ALL));
}

#[test]
fn so_it_is_with_targets_that_know_no_families() {
    on_reactor(|p| lives(p, Features::ALL.without(Features::SIBLINGS)));
}

/// To a target that knows no families a path that comes back says that there are others.
#[test]
fn a_path_that_logs_in_anew_does_not_end_those_that_are_there() {
    on_reactor(|p| async move {
        let features = Features::ALL.without(Features::SIBLINGS);
        let c = TargetConfig { features, ..config() };
        let t = serve(p.clone(), "127.0.0.1:0", c, &Slice::heap(1 << 20));
        let all = life(&p, &t, 1, 2).await;
        let Keep::Siblings(family) = all[0].config().keep.clone() else { panic!("no siblings") };
        all[0].close().await;
        let again = session_config(&t);
        let again = weir_initiator_brp::SessionConfig { keep: Keep::Siblings(family), ..again };
        let again = Session::connect(p.clone(), again).await.unwrap();
        assert_eq!((all[1].queue().nop().await, again.queue().nop().await), (Ok(()), Ok(())));
        all[1].close().await;
        check_clean(&again, &t).await;
    });
}

/// A host is killed while a device is slow: its next life is let in when what it has left is over.
#[test]
fn a_new_life_waits_for_the_writes_of_the_one_before() {
    on_reactor(|p| async move {
        let memory = Slice::heap(1 << 20);
        let t = serve(p.clone(), "127.0.0.1:0", config(), &memory);
        let features = Features::USUAL.or(Features::KEEP_OTHERS).or(Features::SIBLINGS);
        let of = |life: u64, n: u64| LoginRequest { features, session: life << 32 | n, ..login() };
        let old = Peer::enter(&p, &t, of(1, 1), 4).await.unwrap();
        let guard = old.volume().await.guard;
        t.mood.direct.set(false);
        t.mood.delay.set(SECONDS);
        let of_write =
            Command { guard, len: BLOCK as u32, flags: flag::INLINE_OUT, ..command(Op::Write, 1) };
        old.send(&[(of_write, &[], &[0x11; BLOCK])]);
        while t.port.census().requests_busy == 0 {
            sleep(MILLIS).await;
        }
        sleep(100 * MILLIS).await;
        t.mood.delay.set(0);
        // Nobody need have noticed.
        let new = timeout(10 * SECONDS, Peer::enter(&p, &t, of(2, 1), 4)).await;
        let new = new.expect("an answer").expect("it is let in");
        assert_eq!(
            (memory.to_vec()[0], t.mood.writes.get()),
            (0x11, 1),
            "it is in before that is over"
        );
        let sibling = Peer::enter(&p, &t, of(2, 2), 4).await.unwrap();
        assert!(new.conn.is_open() && sibling.conn.is_open() && !old.conn.is_open());
    });
}
