//! A session whose commands are for what was there before only, and logins that are given up.

use crate::target::{BLOCK, HOST, Served, config, map, serve};
use std::rc::Rc;
use weir_base::{MILLIS, SECONDS};
use weir_initiator_brp::{Disk, Error, Session, SessionConfig};
use weir_mem::Slice;
use weir_reactor::{sleep, spawn, timeout};
use weir_sim::{Cut, Node, World};
use weir_target_brp::TargetConfig;

const PORT: u16 = 5555;
const UID: [u8; 16] = [0x60; 16];
const LEN: usize = 1 << 20;

fn served(node: &Node, memory: &Slice) -> Served {
    let config = TargetConfig { incarnation: u64::from(node.lives()) + 1, ..config() };
    let t = node.enter(|| serve(node.provider(), &node.addr(PORT), config, memory));
    t.mood.direct.set(false);
    t
}

/// Logs the session in, and opens the volume.
fn open(world: &World, host: &Node, session: &Session) -> Rc<Disk> {
    host.enter(|| session.join(host.provider()));
    let s = session.clone();
    let disk = world.run(host, 10 * SECONDS, async move {
        s.login().await.unwrap();
        Rc::new(s.queue().open_uid(&UID).await.unwrap())
    });
    disk.unwrap()
}

/// Neither a command that was sent, nor one that waits for its slot, nor one of before that begins later.
#[test]
fn nothing_of_before_comes_to_a_target_that_was_started_anew() {
    for seed in 0..20 {
        let world = World::new(seed);
        let (target, host) = (world.node("target"), world.node("host"));
        let memory = Slice::heap(LEN).sub(0, LEN);
        let t = served(&target, &memory);
        let session = Session::new(SessionConfig {
            depth: 1,
            channels: 1,
            reconnect_max: 100 * MILLIS,
            fast_io_fail: 30 * SECONDS,
            ..SessionConfig::new(&target.addr(PORT), HOST)
        });
        let disk = open(&world, &host, &session);
        session.set_resends(false);
        t.mood.stall.set(true);
        let write = |at: u64| {
            let d = disk.clone();
            host.spawn(async move {
                let data = Slice::heap(BLOCK);
                data.fill(7);
                d.write(at * BLOCK as u64, data, false).await
            })
        };
        let both = [write(0), write(1)];
        world.run_for(100 * MILLIS);
        target.kill();
        drop(t);
        world.run_for(50 * MILLIS);
        target.restart();
        let _t = served(&target, &memory);
        let ended = world.run(&host, 10 * SECONDS, async move {
            let [a, b] = both;
            [a.await.unwrap(), b.await.unwrap()]
        });
        assert_eq!(ended.unwrap(), [Err(Error::PathDown), Err(Error::PathDown)], "seed {seed}");
        let later = write(2);
        let later = world.run(&host, 10 * SECONDS, async move { later.await.unwrap() }).unwrap();
        assert_eq!(later, Err(Error::PathDown), "seed {seed}");
        world.run_for(SECONDS);
        assert!(memory.to_vec().iter().all(|b| *b == 0), "seed {seed}: something was written");
        assert_eq!(session.doubts(), 1, "seed {seed}");
    }
}

/// It is told by a connection that nobody hears any more.
#[test]
fn a_change_of_the_list_is_told_until_it_is_heard() {
    for seed in 0..10 {
        let world = World::new(seed);
        let (target, host) = (world.node("target"), world.node("host"));
        let memory = Slice::heap(LEN).sub(0, LEN);
        let t = served(&target, &memory);
        let session = Session::new(SessionConfig {
            channels: 1,
            keep_alive: 2 * SECONDS,
            reconnect_max: 100 * MILLIS,
            fast_io_fail: 30 * SECONDS,
            ..SessionConfig::new(&target.addr(PORT), HOST)
        });
        let disk = open(&world, &host, &session);
        session.set_resends(false);
        world.run_for(SECONDS);
        assert_eq!(session.doubts(), 0);
        world.net().partition(target.number(), host.number());
        // One change, told once: what comes after it would be told by the next connection.
        t.access.set(map(&[0, 3, 5]));
        world.run_for(600 * MILLIS);
        // What was sent by the connection before is lost with it.
        world.net().cut_between(target.number(), host.number(), Cut::Silent);
        world.net().heal_all();
        world.run_for(15 * SECONDS);
        assert!(session.doubts() > 0, "seed {seed}");
        let later = host.spawn(async move { disk.write(0, Slice::heap(BLOCK), false).await });
        let later = world.run(&host, 10 * SECONDS, async move { later.await.unwrap() }).unwrap();
        assert_eq!(later, Err(Error::PathDown), "seed {seed}");
    }
}

/// Whoever tries to log in again and again, and gives up each time, does not fill the machine by that.
#[test]
fn a_login_that_is_given_up_leaves_nothing() {
    let world = World::new(3);
    let (deaf, host) = (world.node("deaf"), world.node("host"));
    // Connections are made, and nobody takes them.
    let _listener = deaf.enter(|| deaf.provider().listen(&deaf.addr(PORT)).unwrap());
    let (provider, addr) = (host.provider(), deaf.addr(PORT));
    let before = host.reactor(0).figures().tasks;
    world
        .run(&host, 60 * SECONDS, async move {
            for _ in 0..5 {
                let session = Session::new(SessionConfig::new(&addr, HOST));
                session.join(provider.clone());
                let s = session.clone();
                let given_up = spawn(async move { timeout(100 * MILLIS, s.login()).await });
                assert!(given_up.await.unwrap().is_err());
                session.close().await;
            }
            sleep(20 * SECONDS).await;
        })
        .unwrap();
    assert_eq!(host.reactor(0).figures().tasks, before);
}
