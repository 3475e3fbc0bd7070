//! One unit over two targets in front of one medium: loss of either, access states, writes in doubt.

use crate::common::{on_reactor, session_config};
use crate::sim::{LEN, Lab, PORT, seeds, start};
use crate::target::{BLOCK, HOST, Medium, Served, config, medium, serve};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{MILLIS, Nanos, Prng, SECONDS};
use weir_initiator_srp::{
    Error, Multipath, MultipathConfig, PathCondition, PathPolicy, PathState, Session, SessionConfig,
};
use weir_mem::Slice;
use weir_proto_scsi::lu::AluaState;
use weir_proto_srp::PortId;
use weir_reactor::{sleep, spawn};
use weir_sim::Node;
use weir_target_srp::TargetConfig;

const NAA: [u8; 16] = [0x60; 16];

/// Two targets and a host with a session to each.
struct Two {
    lab: Lab,
    second: Node,
    other: TargetConfig,
    served: Rc<RefCell<Option<Served>>>,
    sessions: [Session; 2],
    unit: Rc<Multipath>,
}

impl Two {
    fn new(seed: u64, config: MultipathConfig) -> Two {
        Two::with(seed, config, |c| c)
    }

    fn with(
        seed: u64,
        config: MultipathConfig,
        change: impl Fn(SessionConfig) -> SessionConfig,
    ) -> Two {
        let lab = Lab::new(seed, 1);
        let other = TargetConfig { port_id: PortId::new(2, 2), ..lab.config.clone() };
        let (second, served) = (lab.world.node("second"), Rc::default());
        start(&second, &other, &lab.medium, &served);
        let c = change(SessionConfig { fast_io_fail: SECONDS, ..lab.session_config() });
        let s1 = lab.session(c.clone());
        let s2 = lab.session(SessionConfig {
            addrs: vec![second.addr(PORT)],
            target: other.port_id,
            ..c
        });
        let queues = vec![lab.queue(&s1), lab.queue(&s2)];
        let m = lab.run(async move { Multipath::open(queues, &NAA, config).await });
        let two = Two { lab, second, other, served, sessions: [s1, s2], unit: Rc::new(m.unwrap()) };
        two.slow(2 * MILLIS);
        two
    }

    fn slow(&self, delay: u64) {
        for t in [&self.lab.served, &self.served] {
            if let Some(t) = t.borrow().as_ref() {
                t.mood.delay.set(delay);
            }
        }
    }

    /// Verifies until the flag is set.
    fn work(&self, stop: &Rc<Cell<bool>>) -> weir_reactor::JoinHandle<u64> {
        let (m, stop, seed) = (self.unit.clone(), stop.clone(), self.lab.world.seed());
        self.lab.host.spawn(async move { verify(&m, seed, move || stop.get()).await })
    }

    fn alua(&self, which: usize, state: AluaState) {
        let served = if which == 0 { &self.lab.served } else { &self.served };
        let unit = served.borrow().as_ref().unwrap().unit.clone();
        unit.with(|s| s.set_alua(1, state, false)).unwrap();
    }

    fn commands(&self) -> [u64; 2] {
        let p = self.unit.paths();
        [p[0].commands, p[1].commands]
    }

    /// The first target, which was down, is up again, and so is its path.
    fn first_returns(&self) {
        self.lab.target.restart();
        self.lab.serve();
        let up = || self.sessions[0].state() == PathState::Running;
        self.lab.world.run_until(60 * SECONDS, up).unwrap();
    }

    fn close(self) {
        let Two { lab, sessions: [s1, s2], unit, .. } = self;
        drop(unit);
        lab.run(async move { s2.close().await });
        lab.check_clean(&s1);
    }
}

/// Four writers with an eighth of the disk each, until `enough`; gives the number of their I/Os. Each knows what
/// its blocks hold.
async fn verify(m: &Rc<Multipath>, seed: u64, enough: impl Fn() -> bool + Clone + 'static) -> u64 {
    let part = (LEN / 8) as u64;
    let tasks: Vec<_> = (0..4u64)
        .map(|t| {
            let (m, mut rng, enough) = (m.clone(), Prng::new(seed * 4 + t), enough.clone());
            spawn(async move {
                let mut model = vec![0u8; part as usize];
                let mut ios = 0;
                while !enough() {
                    let n = BLOCK * (1 + rng.below(8) as usize);
                    let at = rng.below((part as usize - n) as u64 / BLOCK as u64) * BLOCK as u64;
                    let range = at as usize..at as usize + n;
                    let b = Slice::heap(n).sub(0, n);
                    if rng.below(2) == 0 {
                        rng.fill(&mut model[range.clone()]);
                        b.write_at(0, &model[range]);
                        m.write(t * part + at, b, false).await.unwrap();
                    } else {
                        m.read(t * part + at, b.clone()).await.unwrap();
                        assert!(b.to_vec() == model[range], "seed {seed}, task {t}: wrong data");
                    }
                    ios += 1;
                }
                ios
            })
        })
        .collect();
    let mut ios = 0;
    for t in tasks {
        ios += t.await.unwrap();
    }
    ios
}

#[test]
fn a_unit_survives_the_loss_of_either_target() {
    for seed in seeds(400, 6) {
        let policy = [PathPolicy::ActivePassive, PathPolicy::RoundRobin][(seed % 2) as usize];
        let failback = (seed % 4 < 2).then_some(2 * SECONDS);
        let two = Two::new(seed, MultipathConfig { policy, failback, ..Default::default() });
        let (w, m, stop) = (&two.lab.world, &two.unit, Rc::new(Cell::new(false)));
        let work = two.work(&stop);
        w.run_for((20 + seed % 7) * MILLIS);
        // The first dies under load.
        let before = two.commands();
        two.lab.target.power_off();
        w.run_until(60 * SECONDS, || two.commands()[1] > before[1] + 100).unwrap();
        assert!(!work.is_finished(), "seed {seed}: the load goes on");
        w.run_for(7 * SECONDS);
        let down = two.commands();
        assert_eq!(m.paths()[0].condition, PathCondition::Down);
        w.run_for(SECONDS);
        assert_eq!(two.commands()[0], down[0], "a dead path gets no commands");
        // It returns.
        two.lab.target.restart();
        two.lab.serve();
        two.slow(2 * MILLIS);
        w.run_until(60 * SECONDS, || matches!(m.paths()[0].condition, PathCondition::Up(_)))
            .unwrap();
        w.run_for(4 * SECONDS);
        let back = two.commands()[0] > down[0] + 100;
        assert_eq!(back, policy == PathPolicy::RoundRobin || failback.is_some(), "seed {seed}");
        // The network to the second is gone.
        let net = w.net().clone();
        net.partition(two.second.number(), two.lab.host.number());
        w.run_until(60 * SECONDS, || two.sessions[1].state() == PathState::Failing).unwrap();
        let left = two.commands();
        w.run_for(7 * SECONDS);
        assert!(two.commands()[0] > left[0] + 100, "seed {seed}: {:?}", m.paths());
        net.heal_all();
        w.run_until(60 * SECONDS, || two.sessions[1].state() == PathState::Running).unwrap();
        stop.set(true);
        assert!(two.lab.run(work).unwrap() > 1000);
        two.close();
    }
}

/// What the medium holds in the end when a write is under way at a target that the host cannot reach any more, is
/// sent over the other, and that block is written once more.
fn ghost(settle: u64) -> u8 {
    let two = Two::new(1, MultipathConfig { settle, ..Default::default() });
    let w = &two.lab.world;
    // Slow enough to be done after the host has given the path up.
    two.lab.mood(|m| m.delay.set(3 * SECONDS));
    let m = two.unit.clone();
    let write = |byte: u8| {
        let b = Slice::heap(BLOCK).sub(0, BLOCK);
        b.fill(byte);
        b
    };
    let (first, later) = (write(1), write(2));
    let io = two.lab.host.spawn(async move {
        m.write(0, first, false).await.unwrap();
        m.write(0, later, false).await.unwrap();
    });
    w.run_for(10 * MILLIS);
    // The host knows at once that the connections are gone, but cannot come back.
    let ends = (two.lab.target.number(), two.lab.host.number());
    w.net().partition(ends.0, ends.1);
    assert!(w.net().cut_between(ends.0, ends.1, weir_sim::Cut::Both) > 0);
    two.lab.run(io).unwrap();
    assert_eq!(two.unit.active(), 1);
    w.run_for(10 * SECONDS);
    let found = two.lab.medium.lock().unwrap()[0];
    w.net().heal_all();
    w.run_until(60 * SECONDS, || two.sessions[0].state() == PathState::Running).unwrap();
    two.close();
    found
}

#[test]
fn a_write_in_doubt_waits_until_the_old_target_has_ended_it() {
    assert_eq!(ghost(5 * SECONDS), 2);
    // The test would see it: with too short a wait the old write falls upon the newer one.
    assert_eq!(ghost(0), 1);
}

/// How long after its abort a write that takes too long is sent again.
fn sent_again_after(settle: Nanos) -> Nanos {
    let config = MultipathConfig { settle, ..Default::default() };
    let two = Two::with(6, config, |c| SessionConfig { retries: 1, ..c });
    let w = &two.lab.world;
    // Longer than the host waits for a command, shorter than for the answer to its abort.
    two.lab.mood(|m| m.delay.set(2500 * MILLIS));
    let (m, before) = (two.unit.clone(), two.commands().iter().sum::<u64>());
    let write = async move { m.write(0, Slice::heap(BLOCK).sub(0, BLOCK), false).await };
    let io = two.lab.host.spawn(write);
    w.run_until(60 * SECONDS, || two.unit.last_error() == Some(Error::TimedOut)).unwrap();
    let left = w.now();
    two.slow(0);
    w.run_until(60 * SECONDS, || two.commands().iter().sum::<u64>() == before + 2).unwrap();
    let waited = w.now() - left;
    assert_eq!(two.lab.run(io), Some(Ok(())));
    two.close();
    waited
}

/// The target says that it has ended the write. What another writes next is safe from it only later.
#[test]
fn a_write_that_was_aborted_is_sent_again_once_it_is_settled() {
    let settle = 5 * SECONDS;
    let waited = sent_again_after(settle);
    // A turn of the host takes its time, and ends after its wait has begun.
    assert!((settle - MILLIS..settle + SECONDS).contains(&waited), "{waited} ns");
    // The test would see it.
    let waited = sent_again_after(0);
    assert!(waited < SECONDS, "{waited} ns");
}

#[test]
fn what_must_not_be_done_twice_is_in_doubt() {
    let two = Two::new(2, MultipathConfig::default());
    let w = &two.lab.world;
    two.lab.mood(|m| m.delay.set(3 * SECONDS));
    let (m, both) = (two.unit.clone(), Slice::heap(2 * BLOCK).sub(0, 2 * BLOCK));
    both.sub(BLOCK, BLOCK).fill(7);
    let again = both.clone();
    let caw = two.lab.host.spawn(async move { m.compare_and_write(0, both).await });
    w.run_for(10 * MILLIS);
    two.lab.target.power_off();
    assert_eq!(two.lab.run(caw), Some(Err(Error::InDoubt)));
    // One that was not sent goes over the path that is left.
    let m = two.unit.clone();
    let r = two.lab.run(async move { m.compare_and_write(0, again).await });
    assert_eq!(r, Ok(true));
    assert_eq!(two.unit.active(), 1);
    two.first_returns();
    two.close();
}

#[test]
fn commands_follow_the_access_state() {
    let two = Two::new(3, MultipathConfig { failback: None, ..Default::default() });
    let (w, m, stop) = (&two.lab.world, &two.unit, Rc::new(Cell::new(false)));
    let work = two.work(&stop);
    let goes_to = |path: usize, what: &str| {
        w.run_for(3 * SECONDS);
        let before = two.commands();
        w.run_for(200 * MILLIS);
        let after = two.commands();
        assert_eq!(m.active(), path, "{what}");
        assert!(after[path] > before[path] && after[1 - path] == before[1 - path], "{what}");
    };
    goes_to(0, "both optimized");
    // A command is refused, or a look finds it: either way commands go elsewhere.
    two.alua(0, AluaState::Standby);
    goes_to(1, "the first is standby");
    let standby = PathCondition::Up(Some(AluaState::Standby));
    assert_eq!(m.paths()[0].condition, standby);
    two.alua(1, AluaState::ActiveNonOptimized);
    goes_to(1, "the second is not optimized, the first standby");
    two.alua(0, AluaState::ActiveOptimized);
    goes_to(0, "the first is optimized again: without fail-back, by the target's wish");
    two.alua(0, AluaState::Unavailable);
    goes_to(1, "the first is unavailable");
    // Nothing is usable for a while: commands wait.
    two.alua(1, AluaState::Transitioning);
    w.run_for(3 * SECONDS);
    let before = two.commands();
    w.run_for(5 * SECONDS);
    assert!(!work.is_finished());
    assert_eq!(before, two.commands());
    two.alua(0, AluaState::ActiveNonOptimized);
    goes_to(0, "the first takes commands again");
    stop.set(true);
    two.lab.run(work).unwrap();
    two.close();
}

#[test]
fn without_any_path_commands_fail_in_time() {
    let config = MultipathConfig { no_path: 4 * SECONDS, ..Default::default() };
    let two = Two::new(4, config);
    let w = &two.lab.world;
    two.lab.target.power_off();
    two.second.power_off();
    let (m, begun) = (two.unit.clone(), w.now());
    let r = two.lab.run(async move { m.read(0, Slice::heap(BLOCK).sub(0, BLOCK)).await });
    assert_eq!(r, Err(Error::PathDown));
    // Five seconds until it is known that nobody answers.
    assert!((w.now() - begun) / SECONDS <= 10, "{} ms", (w.now() - begun) / MILLIS);
    // Either's return is enough.
    two.second.restart();
    start(&two.second, &two.other, &two.lab.medium, &two.served);
    let m = two.unit.clone();
    two.lab.run(async move {
        while m.read(0, Slice::heap(BLOCK).sub(0, BLOCK)).await.is_err() {
            sleep(100 * MILLIS).await;
        }
    });
    assert_eq!(two.unit.active(), 1);
    two.first_returns();
    two.close();
}

#[test]
fn paths_that_would_end_each_other_are_refused() {
    let lab = Lab::new(5, 1);
    let s = lab.session(lab.session_config());
    let queues = vec![lab.queue(&s), lab.queue(&s)];
    let r = lab.run(async move { Multipath::open(queues, &NAA, MultipathConfig::default()).await });
    assert!(matches!(r.err(), Some(Error::Invalid(e)) if e.contains("end each other")));
    let queues = vec![lab.queue(&s)];
    let r = lab.run(async move { Multipath::open(queues, &[1; 16], Default::default()).await });
    assert!(matches!(r.err(), Some(Error::Invalid(e)) if e.contains("no path")));
    lab.check_clean(&s);
}

/// Serves `disk` on a thread of its own until told to end, at the address that it had before.
fn life(disk: Medium, config: TargetConfig, at: String) -> Life {
    let (tell, told) = std::sync::mpsc::channel();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        on_reactor(|p| async move {
            let t = serve(p, &at, config, &disk);
            t.mood.delay.set(MILLIS / 4);
            tell.send(session_config(&t)).unwrap();
            while stopped.try_recv().is_err() {
                sleep(MILLIS).await;
            }
        });
    });
    Life { config: told.recv().unwrap(), stop, thread }
}

struct Life {
    config: SessionConfig,
    stop: std::sync::mpsc::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Life {
    /// Its connections end with its reactor, and what was under way with them.
    fn end(self) -> String {
        self.stop.send(()).unwrap();
        self.thread.join().unwrap();
        self.config.addrs[0].clone()
    }
}

#[test]
fn over_iwarp_a_target_dies_and_returns_under_load() {
    let disk = medium(LEN);
    let other = TargetConfig { port_id: PortId::new(2, 2), ..config() };
    let first_config = config;
    let first = life(disk.clone(), first_config(), "127.0.0.1:0".into());
    let second = life(disk.clone(), other, "127.0.0.1:0".into());
    let quick = |c: &SessionConfig| SessionConfig {
        fast_io_fail: 50 * MILLIS,
        reconnect_min: 10 * MILLIS,
        reconnect_max: 50 * MILLIS,
        initiator: HOST,
        ..c.clone()
    };
    let (c1, c2) = (quick(&first.config), quick(&second.config));
    on_reactor(|p| async move {
        let s1 = Session::connect(p.clone(), c1).await.unwrap();
        let s2 = Session::connect(p, c2).await.unwrap();
        let config = MultipathConfig {
            check_every: 200 * MILLIS,
            failback: Some(50 * MILLIS),
            settle: 200 * MILLIS,
            ..Default::default()
        };
        let queues = vec![s1.queue(), s2.queue()];
        let m = Rc::new(Multipath::open(queues, &NAA, config).await.unwrap());
        let stop = Rc::new(Cell::new(false));
        let (worker, enough) = (m.clone(), stop.clone());
        let work = spawn(async move { verify(&worker, 9, move || enough.get()).await });
        sleep(50 * MILLIS).await;
        assert_eq!(m.active(), 0);
        let at = first.end();
        while m.active() == 0 || m.paths()[1].commands < 200 {
            sleep(MILLIS).await;
        }
        let first = life(disk.clone(), first_config(), at);
        while m.active() == 1 {
            sleep(MILLIS).await;
        }
        let again = m.paths()[0].commands;
        while m.paths()[0].commands < again + 200 {
            sleep(MILLIS).await;
        }
        stop.set(true);
        assert!(work.await.unwrap() > 400);
        assert_eq!(m.switches(), 2, "{:?}", m.last_error());
        s1.close().await;
        s2.close().await;
        first.end();
        second.end();
    });
}
