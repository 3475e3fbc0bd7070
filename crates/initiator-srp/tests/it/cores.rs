//! Several initiator reactors, and the target on one of its own.

use crate::common::{check_clean, on_reactor, session_config, verify_at};
use crate::target::{config, medium, serve};
use std::sync::mpsc::{Receiver, channel};
use weir_base::SECONDS;
use weir_initiator_srp::{QueueMode, Session, SessionConfig};
use weir_reactor::sleep;

async fn wait_for(r: &Receiver<()>) {
    while r.try_recv().is_err() {
        sleep(SECONDS / 1000).await;
    }
}

/// Two initiator threads use one session; each verifies its half of the disk.
fn two_threads(change: impl FnOnce(&mut SessionConfig)) {
    let (served_tx, served_rx) = channel();
    let (stop_tx, stop_rx) = channel::<()>();
    let target = std::thread::spawn(move || {
        on_reactor(|p| async move {
            let t = serve(p, "127.0.0.1:0", config(), &medium(1 << 20));
            served_tx.send(session_config(&t)).unwrap();
            while stop_rx.try_recv().is_err() {
                sleep(SECONDS / 1000).await;
            }
            check_clean(None, &t).await;
        });
    });
    let mut config = served_rx.recv().unwrap();
    change(&mut config);
    let s = Session::new(config.clone());
    let (joined_tx, joined_rx) = channel();
    let (go_tx, go_rx) = channel::<()>();
    let (done_tx, done_rx) = channel();
    let other = s.clone();
    let second = std::thread::spawn(move || {
        on_reactor(|p| async move {
            // Behind the first thread, which so has the first channel.
            wait_for(&go_rx).await;
            other.join(p);
            joined_tx.send(()).unwrap();
            wait_for(&go_rx).await;
            verify_at(&other.queue(), 512 << 10, 512 << 10, 4, 80, 5).await;
            done_tx.send(other.census()).unwrap();
            // The session's part here goes with its close.
            while go_rx.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected) {
                sleep(SECONDS / 1000).await;
            }
        });
    });
    on_reactor(|p| async move {
        s.join(p);
        go_tx.send(()).unwrap();
        joined_rx.recv().unwrap();
        s.login().await.unwrap();
        assert_eq!(s.figures().channels, config_channels(&config));
        go_tx.send(()).unwrap();
        verify_at(&s.queue(), 0, 512 << 10, 4, 80, 6).await;
        let theirs = loop {
            match done_rx.try_recv() {
                Ok(c) => break c,
                Err(_) => sleep(SECONDS / 1000).await,
            }
        };
        for c in s.census().iter().chain(&theirs) {
            assert_eq!((c.busy, c.registrations, c.waiting), (0, 0, 0), "{c:?}");
        }
        s.close().await;
        drop(go_tx);
    });
    second.join().unwrap();
    stop_tx.send(()).unwrap();
    target.join().unwrap();
}

fn config_channels(c: &SessionConfig) -> usize {
    match c.channels {
        0 => 2,
        n => n,
    }
}

#[test]
fn a_channel_on_each_core() {
    two_threads(|_| {});
}

#[test]
fn three_channels_on_two_cores() {
    two_threads(|c| c.channels = 3);
}

#[test]
fn one_channel_serves_two_cores() {
    two_threads(|c| c.channels = 1);
}

#[test]
fn the_single_queue_of_s3() {
    two_threads(|c| {
        c.queue_mode = QueueMode::Single;
        c.channels = 1;
        c.depth = 3;
    });
}
