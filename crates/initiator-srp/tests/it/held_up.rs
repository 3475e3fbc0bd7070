//! A reactor of the port that something holds up, and logins that need it.

use crate::again::{RESERVE, status};
use crate::common::on_reactor;
use crate::peer::Peer;
use crate::second::{Second, until};
use crate::target::{HOST, Mood, Served, config, medium, serve, side};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weir_base::{MILLIS, SECONDS};
use weir_fabric::{FabricError, Provider};
use weir_proto_scsi::initiator as build;
use weir_proto_srp::PortId;
use weir_proto_srp::command_builder::BufferSpec;
use weir_reactor::{sleep, spawn_task, timeout};
use weir_target_srp::TargetConfig;

/// The answer to a login, which has to come.
async fn answer(login: impl Future<Output = Result<Peer, FabricError>>) -> Option<Peer> {
    match timeout(5 * SECONDS, login).await.expect("a login waits for a reactor that is held up") {
        Ok(peer) => Some(peer),
        Err(FabricError::Rejected(_)) => None,
        Err(e) => panic!("{e}"),
    }
}

fn port(p: &Rc<dyn Provider>) -> Served {
    let c = TargetConfig { max_channels: 4, terminate_timeout: 200 * MILLIS, ..config() };
    serve(p.clone(), "127.0.0.1:0", c, &medium(1 << 20))
}

/// They come to nothing, and take no place from those that need the other reactor.
#[test]
fn logins_that_a_reactor_does_not_take_are_refused() {
    on_reactor(|p| async move {
        let t = port(&p);
        let second = Second::start(&t).await;
        let enter = |host| answer(Peer::enter_as(&p, &t, PortId::new(host, 1), 0));
        let there = enter(10).await.expect("it is let in");
        assert!(t.target.local_channels().is_empty(), "the second reactor has the first channel");
        let go_on = second.hold().await;
        let mut here = Vec::new();
        for i in 0..7 {
            let peer = enter(11 + i).await;
            // In turn. The fourth one is the port's last.
            assert_eq!(peer.is_some(), [0, 2, 4].contains(&i), "login {i}");
            here.extend(peer);
        }
        assert_eq!(t.target.nexuses().len(), 4);
        drop(go_on);
        // It finds what was given up, and does nothing with it.
        sleep(200 * MILLIS).await;
        assert_eq!(t.target.nexuses().len(), 4);
        assert_eq!((t.target.local_channels().len(), there.conn.is_open()), (3, true));
        drop((there, here));
        until("the nexuses end", || t.target.nexuses().is_empty()).await;
        t.port.check_idle().unwrap();
        second.end().await;
    });
}

/// As long as a channel does not know that it is to end, its commands go on: no login in its place may be answered.
#[test]
fn a_login_is_refused_while_a_channel_that_it_ends_does_not_know_of_it() {
    on_reactor(|p| async move {
        let t = port(&p);
        let second = Second::start(&t).await;
        let old = Peer::enter(&p, &t, 0).await;
        assert!(t.target.local_channels().is_empty(), "the second reactor has it");
        let go_on = second.hold().await;
        for i in 0..6 {
            let new = answer(Peer::enter_instead(&p, &t, HOST)).await;
            assert!(new.is_none(), "login {i} is answered beside the old channel");
        }
        drop(go_on);
        until("the old channel ends", || t.target.nexuses().is_empty()).await;
        until("its host hears of it", || !old.conn.is_open()).await;
        let new = answer(Peer::enter_instead(&p, &t, HOST)).await;
        assert!(new.is_some(), "there is nothing to wait for any more");
        drop((old, new));
        until("the channels end", || t.target.nexuses().is_empty()).await;
        second.end().await;
    });
}

/// A unit comes to one reactor after the other. The last channel of a host ends where it has not come yet; an earlier one has reserved
/// it elsewhere.
#[test]
fn a_unit_that_has_not_come_to_the_last_channel_s_reactor_forgets_the_host() {
    on_reactor(|p| async move {
        let m = medium(1 << 20);
        let t = serve(p.clone(), "127.0.0.1:0", config(), &m);
        let second = Second::start(&t).await;
        let there = Peer::enter(&p, &t, 0).await;
        assert!(t.target.local_channels().is_empty(), "the second reactor has it");
        let here = Peer::enter(&p, &t, 0).await;
        assert_eq!(t.target.local_channels().len(), 1);
        here.attention().await;
        assert_eq!(status(&here, 1, &RESERVE).await, 0);
        drop(here);
        until("its first channel ends", || t.target.nexuses()[0].channels == 1).await;
        drop(there);
        until("its last channel ends", || t.target.nexuses().is_empty()).await;
        let unit = t.unit.clone();
        second
            .has(move |units, pool, done| {
                units.insert(side(unit, &m, pool, Rc::default()));
                done.send(()).unwrap();
            })
            .await;
        t.access.touch();
        let other = Peer::enter_as(&p, &t, PortId::new(8, 1), 0).await.expect("it is let in");
        other.attention().await;
        assert_eq!(status(&other, 1, &RESERVE).await, 0, "a host that is gone has it");
        assert_eq!(t.unit.with(|s| s.nexuses().count()), 1);
        drop(other);
        until("the nexuses end", || t.target.nexuses().is_empty()).await;
        second.end().await;
    });
}

/// A login was refused, as a channel that it was to end did not know of it. Its host does not come again. What it had reserved is free
/// when that channel knows, though a device has a read of its yet.
#[test]
fn a_login_that_is_refused_frees_what_its_host_had_reserved() {
    on_reactor(|p| async move {
        let (t, m) = (port(&p), medium(1 << 20));
        let second = Second::start(&t).await;
        let (unit, goes_on) = (t.unit.clone(), Arc::new(AtomicBool::new(false)));
        let ends = goes_on.clone();
        second
            .has(move |units, pool, done| {
                let mood = Rc::<Mood>::default();
                mood.stall.set(true);
                units.insert(side(unit, &m, pool, mood.clone()));
                spawn_task(async move {
                    while !ends.load(Ordering::Relaxed) {
                        sleep(MILLIS).await;
                    }
                    mood.stall.set(false);
                });
                done.send(()).unwrap();
            })
            .await;
        let old = Peer::enter(&p, &t, 0).await;
        assert!(t.target.local_channels().is_empty(), "the second reactor has it");
        old.attention().await;
        assert_eq!(status(&old, 1, &RESERVE).await, 0);
        let other = Peer::enter_as(&p, &t, PortId::new(8, 1), 0).await.expect("it is let in");
        assert_eq!(t.target.local_channels().len(), 1);
        other.attention().await;
        old.send(2, build::verify(0, 1, false).as_bytes(), BufferSpec::None);
        assert!(timeout(SECONDS / 4, old.next()).await.is_err(), "the device has it");
        let go_on = second.hold().await;
        assert!(answer(Peer::enter_instead(&p, &t, HOST)).await.is_none());
        assert_eq!(status(&other, 2, &RESERVE).await, 0x18, "its commands may begin yet");
        drop(go_on);
        let free = async {
            while status(&other, 3, &RESERVE).await != 0 {
                sleep(MILLIS).await;
            }
        };
        let is_free = timeout(5 * SECONDS, free).await.is_ok();
        assert_eq!(t.target.nexuses().len(), 2, "it does not wait for the device");
        goes_on.store(true, Ordering::Relaxed);
        assert!(is_free, "it stays reserved");
        drop((old, other));
        until("the nexuses end", || t.target.nexuses().is_empty()).await;
        second.end().await;
    });
}
