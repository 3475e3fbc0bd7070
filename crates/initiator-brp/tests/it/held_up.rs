//! A reactor of the port that something holds up, and a login that needs it.

use crate::common::on_reactor;
use crate::peer::{Peer, login};
use crate::second::{Second, until};
use crate::target::{config, serve};
use weir_base::{MILLIS, SECONDS};
use weir_mem::Slice;
use weir_proto_brp::{LoginRequest, RejectReason};
use weir_reactor::{sleep, timeout};
use weir_target_brp::TargetConfig;

/// Its host is told to come again, and is let in once that reactor goes on.
#[test]
fn a_login_that_a_reactor_does_not_take_is_told_to_wait() {
    on_reactor(|p| async move {
        let c = TargetConfig { drain_timeout: 200 * MILLIS, ..config() };
        let t = serve(p.clone(), "127.0.0.1:0", c, &Slice::heap(1 << 20));
        let second = Second::start(&t).await;
        let enter = async |channel| {
            let entered = Peer::enter(&p, &t, LoginRequest { channel, ..login() }, 4);
            let answered = timeout(5 * SECONDS, entered).await;
            answered.expect("a login waits for a reactor that is held up")
        };
        let go_on = second.hold().await;
        // Neighbours are on different reactors.
        let (a, b) = (enter(0).await, enter(1).await);
        let (here, waits) = match (a, b) {
            (Ok(here), Err(RejectReason::Draining)) => (here, 1),
            (Err(RejectReason::Draining), Ok(here)) => (here, 0),
            (a, b) => panic!("{:?}, {:?}", a.err(), b.err()),
        };
        drop(go_on);
        let there = loop {
            match enter(waits).await {
                Ok(there) => break there,
                Err(RejectReason::Draining) => sleep(MILLIS).await,
                Err(e) => panic!("{e:?}"),
            }
        };
        assert_eq!(t.target.local_channels().len(), 1);
        drop((here, there));
        second.end().await;
        until("its channels end", || t.port.census().requests_busy == 0).await;
    });
}

/// A unit comes to one reactor after the other. The last channel of a session ends where it has not come yet.
#[test]
fn a_unit_that_has_not_come_to_the_last_channel_s_reactor_forgets_the_session() {
    on_reactor(|p| async move {
        let c = TargetConfig { drain_timeout: 200 * MILLIS, ..config() };
        let t = serve(p.clone(), "127.0.0.1:0", c, &Slice::heap(1 << 20));
        let second = Second::start(&t).await;
        let enter =
            |session, channel| Peer::enter(&p, &t, LoginRequest { session, channel, ..login() }, 4);
        let old = [enter(77, 0).await.unwrap(), enter(77, 1).await.unwrap()];
        until("they are in service", || t.target.sessions()[0].channels == 2).await;
        assert_eq!(t.target.local_channels().len(), 1);
        let known = || t.unit.with(|s| s.nexuses().collect::<Vec<_>>());
        let former = known();
        assert_eq!(former.len(), 1);
        // Another life of the host ends them, the one of this reactor first.
        let go_on = second.hold().await;
        assert_eq!(enter(78, 0).await.err(), Some(RejectReason::Draining));
        until("the first one ends", || t.target.local_channels().is_empty()).await;
        drop(go_on);
        let is_left = || t.target.sessions().iter().any(|s| s.session == 77);
        let new = loop {
            match enter(78, 0).await {
                Ok(new) => break new,
                Err(RejectReason::Draining) => sleep(MILLIS).await,
                Err(e) => panic!("{e:?}"),
            }
        };
        assert!(!is_left() && known().iter().all(|n| !former.contains(n)), "it is known");
        drop((old, new));
        second.end().await;
    });
}
