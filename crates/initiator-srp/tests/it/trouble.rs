//! Loss, restart and slowness over real connections.

use crate::common::{L0, check_clean, on_reactor, session_config, verify};
use crate::target::{HOST, Medium, config, medium, serve};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use weir_base::MILLIS;
use weir_initiator_srp::{
    Channel, ChannelConfig, Error, PathState, QueueMode, Rung, Session, SessionConfig,
};
use weir_mem::Slice;
use weir_reactor::{sleep, spawn, timeout};

/// Quick to see that something is wrong.
fn nervous(c: SessionConfig) -> SessionConfig {
    SessionConfig {
        command_timeout: 200 * MILLIS,
        task_timeout: 200 * MILLIS,
        reconnect_min: 10 * MILLIS,
        ..c
    }
}

#[test]
fn channels_that_another_login_ends_come_back() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &medium(1 << 20));
        let c = SessionConfig { channels: 3, ..nervous(session_config(&t)) };
        let s = Session::connect(p.clone(), c).await.unwrap();
        let q = s.queue();
        t.mood.delay.set(MILLIS / 2);
        let work = spawn(async move { verify(&q, 1 << 20, 8, 80, 3).await });
        for _ in 0..4 {
            sleep(20 * MILLIS).await;
            // The same initiator port logs in elsewhere, and goes away.
            let config = ChannelConfig::new(t.target.port_id(), HOST);
            if let Ok(c) = Channel::connect(&*p, &t.addr, config).await {
                c.disconnect(false);
                c.ended().await;
            }
        }
        work.await.unwrap();
        assert!(s.figures().losses > 0 && s.figures().reconnects > 0, "{:?}", s.figures());
        assert_eq!(s.figures().channels, 3);
        check_clean(Some(&s), &t).await;
    });
}

/// Serves `disk` until told to stop; true when that was the last time.
fn one_life(
    addr: &Arc<Mutex<String>>,
    disk: &Medium,
    started: &Sender<SessionConfig>,
    stop: &Arc<Mutex<Receiver<bool>>>,
    last: &Arc<AtomicBool>,
) -> bool {
    let (a, disk, started, stop, l) =
        (addr.clone(), disk.clone(), started.clone(), stop.clone(), last.clone());
    on_reactor(|p| async move {
        let at = a.lock().unwrap().clone();
        let t = serve(p, &at, config(), &disk);
        t.mood.delay.set(MILLIS / 2);
        *a.lock().unwrap() = t.addr.clone();
        let _ = started.send(session_config(&t));
        let end = loop {
            let told = stop.lock().unwrap().try_recv();
            match told {
                Ok(end) => break end,
                Err(_) => sleep(MILLIS).await,
            }
        };
        if end {
            check_clean(None, &t).await;
        }
        l.store(end, Ordering::Release);
    });
    last.load(Ordering::Acquire)
}

#[test]
fn a_target_that_restarts_finds_its_host_again() {
    for mode in [QueueMode::Multi, QueueMode::Single] {
        let disk = medium(1 << 20);
        let (addr_tx, addr_rx) = channel();
        let (stop_tx, stop_rx) = channel::<bool>();
        let stop_rx = Arc::new(Mutex::new(stop_rx));
        let target = std::thread::spawn(move || {
            let (addr, last) = (Arc::new(Mutex::new("127.0.0.1:0".to_owned())), Arc::default());
            while !one_life(&addr, &disk, &addr_tx, &stop_rx, &last) {}
        });
        let c = nervous(addr_rx.recv().unwrap());
        on_reactor(|p| async move {
            let c = SessionConfig { channels: 2, queue_mode: mode, ..c };
            let s = Session::connect(p, c).await.unwrap();
            let q = s.queue();
            let work = spawn(async move { verify(&q, 1 << 20, 8, 150, 4).await });
            for _ in 0..2 {
                sleep(40 * MILLIS).await;
                stop_tx.send(false).unwrap();
            }
            work.await.unwrap();
            assert!(s.figures().reconnects > 0, "{:?}", s.figures());
            s.close().await;
            stop_tx.send(true).unwrap();
        });
        target.join().unwrap();
    }
}

#[test]
fn the_ladder_over_a_real_connection() {
    on_reactor(|p| async move {
        let c = weir_target_srp::TargetConfig { terminate_timeout: 100 * MILLIS, ..config() };
        let t = serve(p.clone(), "127.0.0.1:0", c, &medium(1 << 20));
        let s = Session::connect(p, nervous(session_config(&t))).await.unwrap();
        let q = s.queue();
        q.read(L0, 0, Slice::heap(4096)).await.unwrap();
        t.mood.stall.set(true);
        let mood = t.mood.clone();
        let waker = s.clone();
        spawn(async move {
            while waker.figures().reconnects == 0 {
                sleep(5 * MILLIS).await;
            }
            mood.stall.set(false);
        });
        q.read(L0, 0, Slice::heap(4096)).await.unwrap();
        let rungs: Vec<Rung> = s.events().iter().map(|e| e.rung).collect();
        assert_eq!(rungs, [Rung::AbortTask, Rung::LunReset, Rung::Disconnect, Rung::Reconnect]);
        check_clean(Some(&s), &t).await;
    });
}

#[test]
fn dropped_commands_give_everything_back() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &medium(1 << 20));
        let c = SessionConfig { depth: 16, ..nervous(session_config(&t)) };
        let s = Session::connect(p, c).await.unwrap();
        let q = s.queue();
        q.test_unit_ready(L0).await.unwrap();
        t.mood.delay.set(3 * MILLIS);
        for round in 0..20u64 {
            let all: Vec<_> = (0..40u64)
                .map(|i| {
                    let q = q.clone();
                    spawn(async move {
                        // Some are cut off while they wait for a slot, some with the target, some not at all.
                        let b = Slice::heap(65536);
                        let patience = (i * 7 + round * 3) % 40 * MILLIS / 4;
                        let r = match i % 2 {
                            0 => timeout(patience, q.read(L0, i * 4096, b)).await,
                            _ => timeout(patience, q.write(L0, i * 4096, b, false)).await,
                        };
                        r.map_or(0, |r| {
                            r.unwrap();
                            1
                        })
                    })
                })
                .collect();
            let mut done = 0;
            for t in all {
                done += t.await.unwrap();
            }
            assert!(done < 40, "some were given up");
        }
        sleep(100 * MILLIS).await;
        q.test_unit_ready(L0).await.unwrap();
        assert!(s.figures().aborts > 0);
        let full = s.census()[0];
        assert_eq!((full.busy, full.credits, full.send_slots), (0, 32, 4096), "{full:?}");
        check_clean(Some(&s), &t).await;
    });
}

#[test]
fn a_target_that_is_gone_fails_fast() {
    let (started_tx, started_rx) = channel();
    let (stop_tx, stop_rx) = channel();
    let target = std::thread::spawn(move || {
        let addr = Arc::new(Mutex::new("127.0.0.1:0".to_owned()));
        let stop = Arc::new(Mutex::new(stop_rx));
        one_life(&addr, &medium(1 << 20), &started_tx, &stop, &Arc::default());
    });
    let c = nervous(started_rx.recv().unwrap());
    on_reactor(|p| async move {
        let c = SessionConfig { fast_io_fail: 300 * MILLIS, ..c };
        let s = Session::connect(p, c).await.unwrap();
        let q = s.queue();
        q.test_unit_ready(L0).await.unwrap();
        stop_tx.send(false).unwrap();
        target.join().unwrap();
        assert_eq!(q.read(L0, 0, Slice::heap(4096)).await, Err(Error::PathDown));
        assert_ne!(s.state(), PathState::Running);
        assert_eq!(q.test_unit_ready(L0).await, Err(Error::PathDown));
        s.close().await;
        assert_eq!(q.test_unit_ready(L0).await, Err(Error::Closed));
    });
}
