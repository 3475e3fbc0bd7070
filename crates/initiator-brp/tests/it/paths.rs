//! One volume over two targets in front of one memory: loss of either and of both, writes in doubt.

use crate::common::slice;
use crate::target::{BLOCK, HOST, Served, config, map, serve};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{MILLIS, Prng, SECONDS};
use weir_initiator_brp::{Error, Multipath, PortId, Session, SessionConfig, Variant};
use weir_mem::Slice;
use weir_reactor::{JoinHandle, sleep, spawn};
use weir_sim::{Cut, Node, World};
use weir_target_brp::TargetConfig;

const PORT: u16 = 5555;
const UID: [u8; 16] = [0x60; 16];
/// Writers, and the bytes that each has for itself.
const WRITERS: u64 = 4;
const PART: usize = 32 << 10;
const LEN: usize = PART * WRITERS as usize;

/// Something to stop a load by, and what it has done.
#[derive(Default)]
struct Load {
    stop: Cell<bool>,
    ios: Cell<u64>,
    /// I/Os for which there was no path.
    failed: Cell<u64>,
}

fn bump(n: &Cell<u64>) {
    n.set(n.get() + 1);
}

/// Two targets and a host with a session to each.
struct Two {
    world: World,
    host: Node,
    nodes: [Node; 2],
    memory: Slice,
    config: TargetConfig,
    served: [RefCell<Option<Served>>; 2],
    sessions: [Session; 2],
}

impl Two {
    fn with(
        seed: u64,
        config: TargetConfig,
        change: impl Fn(SessionConfig) -> SessionConfig,
    ) -> Two {
        let world = World::new(seed);
        let nodes = [world.node("first"), world.node("second")];
        let session = |i: usize| {
            Session::new(change(SessionConfig {
                command_timeout: 0,
                keep_alive: 2 * SECONDS,
                reconnect_max: 200 * MILLIS,
                fast_io_fail: 4 * SECONDS,
                session: i as u64 + 1,
                ..SessionConfig::new(&nodes[i].addr(PORT), HOST)
            }))
        };
        let sessions = [session(0), session(1)];
        let memory = Slice::heap(LEN).sub(0, LEN);
        memory.fill(0);
        let host = world.node("host");
        let two = Two { world, host, nodes, memory, config, served: Default::default(), sessions };
        for (i, s) in two.sessions.iter().enumerate() {
            two.serve(i);
            two.host.enter(|| s.join(two.host.provider()));
            let login = s.clone();
            two.run(async move { login.login().await }).unwrap();
        }
        two
    }

    fn new(seed: u64) -> Two {
        Two::with(seed, config(), |c| c)
    }

    /// Starts a target.
    fn serve(&self, i: usize) {
        let node = &self.nodes[i];
        let config = TargetConfig {
            port_id: PortId([i as u8 + 1; 16]),
            relative_port: i as u16 + 1,
            incarnation: u64::from(node.lives()) + 1,
            ..self.config.clone()
        };
        let t = node.enter(|| serve(node.provider(), &node.addr(PORT), config, &self.memory));
        *self.served[i].borrow_mut() = Some(t);
    }

    fn with_target<R>(&self, i: usize, f: impl FnOnce(&Served) -> R) -> R {
        f(self.served[i].borrow().as_ref().unwrap())
    }

    /// A target dies, with or without a word.
    fn kill(&self, i: usize, silent: bool) {
        match silent {
            true => self.nodes[i].power_off(),
            false => self.nodes[i].kill(),
        }
        self.served[i].take();
    }

    fn restart(&self, i: usize) {
        self.nodes[i].restart();
        self.serve(i);
    }

    fn run<T: 'static>(&self, f: impl Future<Output = T> + 'static) -> T {
        match self.world.run(&self.host, 3600 * SECONDS, f) {
            Ok(v) => v,
            Err(stuck) => panic!("seed {}: {stuck}", self.world.seed()),
        }
    }

    fn open(&self) -> Result<Rc<Multipath>, Error> {
        let queues = self.host.enter(|| self.sessions.iter().map(Session::queue).collect());
        self.run(async move { Multipath::open(queues, &UID).await.map(Rc::new) })
    }

    fn is_up(&self, i: usize) -> bool {
        self.host.enter(|| self.sessions[i].queue().is_up())
    }

    fn wait_until(&self, what: &str, done: impl Fn() -> bool) {
        if let Err(stuck) = self.world.run_until(120 * SECONDS, done) {
            panic!("seed {}: {what}: {stuck}", self.world.seed());
        }
    }

    /// Starts writers that know what their blocks hold; it ends with all that they hold.
    fn work(&self, m: &Rc<Multipath>, load: &Rc<Load>) -> JoinHandle<Vec<u8>> {
        let (m, load, seed) = (m.clone(), load.clone(), self.world.seed());
        self.host.spawn(async move {
            let tasks: Vec<_> = (0..WRITERS)
                .map(|t| spawn(writer(m.clone(), load.clone(), t, seed * WRITERS + t)))
                .collect();
            let mut all = Vec::new();
            for t in tasks {
                all.extend(t.await.unwrap());
            }
            all
        })
    }

    /// Runs the load for `n` more I/Os.
    fn go_on(&self, load: &Load, n: u64) {
        let from = load.ios.get();
        self.wait_until("the load goes on", || load.ios.get() >= from + n);
    }

    /// Ends everything: memory holds what the writers know, also when all that was ever sent has been done or
    /// forgotten, and nothing is left at either side.
    fn close(self, load: &Load, work: JoinHandle<Vec<u8>>) {
        let seed = self.world.seed();
        load.stop.set(true);
        let held = self.run(work).unwrap();
        self.world.run_for(30 * SECONDS);
        assert!(
            self.memory.to_vec() == held,
            "seed {seed}: a write was lost or done once too often"
        );
        for s in &self.sessions {
            for c in self.host.enter(|| s.census()) {
                assert_eq!((c.busy, c.registrations, c.waiting), (0, 0, 0), "seed {seed}: {c:?}");
            }
            let s = s.clone();
            self.run(async move { s.close().await });
        }
        self.world.run_for(90 * SECONDS);
        for i in 0..2 {
            self.with_target(i, |t| {
                t.port.check_idle().unwrap();
                assert_eq!(t.port.census().channels, 0, "seed {seed}, target {i}");
                assert!(t.target.sessions().is_empty());
            });
        }
        assert_eq!(self.world.net().connections(), 0);
    }
}

/// Writes and reads at random in its own part of the volume; what fails is done again until there is a path.
async fn writer(m: Rc<Multipath>, load: Rc<Load>, number: u64, seed: u64) -> Vec<u8> {
    let mut rng = Prng::new(seed);
    let base = number * PART as u64;
    let mut model = vec![0u8; PART];
    while !load.stop.get() {
        let n = BLOCK * (1 + rng.below(24) as usize);
        let at = rng.below(((PART - n) / BLOCK) as u64 + 1) as usize * BLOCK;
        let (place, range) = (base + at as u64, at..at + n);
        let b = Slice::heap(n).sub(0, n);
        let kind = rng.below(20);
        match kind {
            0 => model[range.clone()].fill(0),
            1..=9 => rng.fill(&mut model[range.clone()]),
            _ => {}
        }
        b.write_at(0, &model[range.clone()]);
        loop {
            let r = match kind {
                0 => m.write_zeroes(place, n as u64, false).await,
                1..=9 => m.write(place, b.clone(), kind == 1).await,
                10 => m.flush().await,
                _ => m.read(place, b.clone()).await,
            };
            match r {
                Ok(()) => break,
                Err(e) if e.is_path() => bump(&load.failed),
                Err(e) => panic!("seed {seed}: {e}"),
            }
            sleep(100 * MILLIS).await;
        }
        assert!(b.to_vec() == model[range], "seed {seed}: {n} wrong bytes at {place}");
        bump(&load.ios);
        sleep(rng.below(MILLIS)).await;
    }
    model
}

#[test]
fn a_volume_survives_the_loss_of_either_target() {
    for seed in 0..8 {
        let two = Two::new(seed);
        let m = two.open().unwrap();
        let load = Rc::new(Load::default());
        let work = two.work(&m, &load);
        if seed % 3 == 0 {
            two.with_target(0, |t| t.mood.direct.set(false));
            two.with_target(0, |t| t.mood.delay.set(MILLIS));
        }
        two.go_on(&load, 50 + seed);
        // The first dies under load.
        two.kill(0, seed % 2 == 0);
        two.go_on(&load, 200);
        assert_eq!((m.active(), m.switches()), (1, 1), "seed {seed}");
        // It comes back, as another run of the program; the second is lost to the network.
        two.restart(0);
        two.wait_until("the first is up", || two.is_up(0));
        two.go_on(&load, 20);
        assert_eq!(m.active(), 1, "seed {seed}: a path that works is kept");
        let ends = (two.nodes[1].number(), two.host.number());
        two.world.net().partition(ends.0, ends.1);
        if seed % 2 == 0 {
            two.world.net().cut_between(ends.0, ends.1, Cut::Both);
        }
        two.go_on(&load, 200);
        assert_eq!((m.active(), m.switches()), (0, 2), "seed {seed}");
        two.world.net().heal_all();
        two.wait_until("the second is up", || two.is_up(1));
        assert_eq!(load.failed.get(), 0, "seed {seed}: there was always a path");
        drop(m);
        two.close(&load, work);
    }
}

#[test]
fn both_targets_down_and_up_again() {
    for seed in 20..26 {
        let two = Two::new(seed);
        let m = two.open().unwrap();
        let load = Rc::new(Load::default());
        let work = two.work(&m, &load);
        two.go_on(&load, 50);
        two.kill(0, seed % 2 == 0);
        two.kill(1, seed % 4 < 2);
        two.wait_until("I/O fails", || load.failed.get() >= WRITERS);
        assert!(two.world.now() < 20 * SECONDS, "seed {seed}: it fails in time");
        let done = load.ios.get();
        two.world.run_for(10 * SECONDS);
        assert_eq!(load.ios.get(), done, "seed {seed}");
        // Either's return is enough.
        let first = (seed % 3 % 2) as usize;
        two.restart(first);
        two.go_on(&load, 100);
        assert_eq!(m.active(), first, "seed {seed}");
        two.restart(1 - first);
        two.wait_until("both are up", || two.is_up(0) && two.is_up(1));
        two.go_on(&load, 100);
        drop(m);
        two.close(&load, work);
    }
}

#[test]
fn a_volume_that_a_target_no_longer_shows_is_reached_over_the_other() {
    let two = Two::new(30);
    let m = two.open().unwrap();
    let load = Rc::new(Load::default());
    let work = two.work(&m, &load);
    two.go_on(&load, 50);
    two.with_target(0, |t| t.access.set(map(&[])));
    two.go_on(&load, 100);
    assert_eq!(m.active(), 1);
    // There again, under another number.
    two.with_target(0, |t| t.access.set(map(&[5])));
    two.with_target(1, |t| t.access.set(map(&[])));
    two.go_on(&load, 100);
    assert_eq!((m.active(), load.failed.get()), (0, 0));
    two.with_target(1, |t| t.access.set(map(&[0])));
    drop(m);
    two.close(&load, work);
}

#[test]
fn nothing_is_lost_or_done_too_late_in_a_storm() {
    let mut switches = 0;
    for seed in 60..68 {
        let mut rng = Prng::new(seed);
        // Some hosts have less patience than the devices need.
        let hasty = seed % 2 == 0;
        let two = Two::with(seed, config(), |c| match hasty {
            true => {
                SessionConfig { command_timeout: 300 * MILLIS, abort_timeout: 200 * MILLIS, ..c }
            }
            false => c,
        });
        let m = two.open().unwrap();
        let load = Rc::new(Load::default());
        let work = two.work(&m, &load);
        for _ in 0..15 {
            two.world.run_for(rng.below(500 * MILLIS));
            let i = rng.below(2) as usize;
            let ends = (two.nodes[i].number(), two.host.number());
            let net = two.world.net();
            match rng.below(6) {
                0 => two.kill(i, rng.chance(1, 2)),
                1 => net.partition(ends.0, ends.1),
                2 => net.partition_one_way(ends.0, ends.1),
                3 => _ = net.cut_between(ends.0, ends.1, Cut::Any),
                4 => two.nodes[i].pause(rng.below(SECONDS)),
                // Slower than hasty hosts wait, faster than a target gives a connection up.
                _ => two.with_target(i, |t| {
                    t.mood.direct.set(false);
                    t.mood.delay.set(rng.below(SECONDS));
                }),
            }
            two.world.run_for(rng.below(6 * SECONDS));
            two.world.net().heal_all();
            if !two.nodes[i].is_alive() {
                two.restart(i);
            }
        }
        for i in 0..2 {
            two.with_target(i, |t| t.mood.delay.set(0));
        }
        two.wait_until("both are up", || two.is_up(0) && two.is_up(1));
        two.go_on(&load, 100);
        switches += m.switches();
        drop(m);
        two.close(&load, work);
    }
    assert!(switches > 12, "{switches}");
}

/// How a host comes to send a write anew over the second target that the first still works on.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Doubt {
    /// The network between them is gone.
    Partition,
    /// It takes too long, and so does its abort.
    TimedOut,
    /// The session is closed meanwhile.
    Closed,
}

/// What memory holds in the end when a write is slow at the first target, is sent over the second, and the same
/// block is written once more.
fn ghost(doubt: Doubt) -> u8 {
    let two = Two::with(40, config(), |c| match doubt {
        Doubt::TimedOut => {
            SessionConfig { command_timeout: 300 * MILLIS, abort_timeout: 200 * MILLIS, ..c }
        }
        _ => c,
    });
    let m = two.open().unwrap();
    // Longer than the host has patience, shorter than the keep-alive time.
    two.with_target(0, |t| t.mood.direct.set(false));
    two.with_target(0, |t| t.mood.delay.set(1800 * MILLIS));
    let io = two.host.spawn(async move {
        m.write(0, slice(&[1; BLOCK]), false).await.unwrap();
        m.write(0, slice(&[2; BLOCK]), false).await.unwrap();
        (m.active(), m.last_error())
    });
    two.world.run_for(50 * MILLIS);
    let ends = (two.nodes[0].number(), two.host.number());
    match doubt {
        Doubt::Partition => {
            two.world.net().partition(ends.0, ends.1);
            assert!(two.world.net().cut_between(ends.0, ends.1, Cut::Both) > 0);
        }
        Doubt::Closed => {
            let s = two.sessions[0].clone();
            drop(two.host.spawn(async move { s.close().await }));
        }
        Doubt::TimedOut => {}
    }
    let left = match doubt {
        Doubt::Partition => Error::PathDown,
        Doubt::TimedOut => Error::TimedOut,
        Doubt::Closed => Error::Closed,
    };
    assert_eq!(two.run(io), Some((1, Some(left))));
    two.world.run_for(10 * SECONDS);
    let found = two.memory.to_vec();
    assert!(found[..BLOCK].iter().all(|b| *b == found[0]));
    two.world.net().heal_all();
    two.world.run_for(10 * SECONDS);
    for s in two.sessions.clone() {
        two.run(async move { s.close().await });
    }
    found[0]
}

#[test]
fn a_write_in_doubt_waits_until_the_old_target_has_ended_it() {
    for doubt in [Doubt::Partition, Doubt::TimedOut, Doubt::Closed] {
        assert_eq!(ghost(doubt), 2, "{doubt:?}: the old write fell upon the newer one");
    }
}

#[test]
fn paths_that_would_be_left_too_early_are_refused() {
    let refused = |two: Two| match two.open() {
        Err(Error::Invalid(e)) => e,
        Err(e) => panic!("{e}"),
        Ok(_) => "accepted",
    };
    let with = |keep_alive, fast_io_fail| {
        refused(Two::with(50, config(), |c| SessionConfig { keep_alive, fast_io_fail, ..c }))
    };
    assert_eq!(with(2 * SECONDS, 4 * SECONDS), "accepted");
    // A target looks four times a second.
    assert!(with(2 * SECONDS, 2 * SECONDS + MILLIS).contains("fast_io_fail"));
    // A target that never gives a lost connection up may do its commands at any time.
    assert!(with(0, 4 * SECONDS).contains("keep_alive"));
    let never = TargetConfig { keep_alive: 0, ..config() };
    assert!(refused(Two::with(51, never, |c| c)).contains("keep-alive"));
}

/// Writes that were under way when their target died wait to be sent again, a few at a time; some are given up just
/// then.
#[test]
fn a_write_that_is_given_up_before_it_is_sent_again_does_no_harm_to_others() {
    const N: usize = 4096;
    let target = TargetConfig { credits: 4, ..config() };
    let two = Two::with(3, target, |c| SessionConfig {
        // A shifted message is found by its checksums; here nothing else would.
        integrity: false,
        variant: Variant::Brp3T,
        channels: 1,
        inline_write: 8192,
        ..c
    });
    two.with_target(0, |t| t.mood.stall.set(true));
    let s = two.sessions[0].clone();
    let d = two.run(async move { Rc::new(s.queue().open_number(0).await.unwrap()) });
    let writes: Vec<_> = (0..LEN / N)
        .map(|i| {
            let d = d.clone();
            let write =
                async move { d.write((i * N) as u64, slice(&[i as u8 + 1; N]), false).await };
            two.host.spawn(write)
        })
        .collect();
    two.world.run_for(100 * MILLIS);
    two.kill(0, true);
    two.restart(0);
    two.with_target(0, |t| t.mood.stall.set(true));
    let before = two.sessions[0].figures().reconnects;
    two.wait_until("the session is back", || two.sessions[0].figures().reconnects > before);
    assert!(two.host.enter(|| two.sessions[0].census())[0].waiting > 8, "many wait for credits");
    let given_up = |i: usize| i % 4 == 1;
    for (i, w) in writes.iter().enumerate().filter(|(i, _)| given_up(*i)) {
        assert!(!w.is_finished(), "{i}");
        two.host.enter(|| w.cancel());
    }
    two.with_target(0, |t| t.mood.stall.set(false));
    for (i, w) in writes.into_iter().enumerate() {
        if !given_up(i) {
            assert_eq!(two.run(w), Some(Ok(())), "{i}");
        }
    }
    two.world.run_for(5 * SECONDS);
    for i in 0..LEN / N {
        let mut b = vec![0; N];
        two.memory.read_at(i * N, &mut b);
        let mine = b.iter().all(|x| *x == i as u8 + 1);
        let untouched = given_up(i) && b.iter().all(|x| *x == 0);
        assert!(mine || untouched, "block {i} holds {} and {}", b[0], b[N - 1]);
    }
}

/// Two paths, of which the first has a read that its target never answers.
fn unanswered(seed: u64) -> (Two, Rc<Multipath>, JoinHandle<Result<(), Error>>) {
    let two = Two::with(seed, config(), |c| SessionConfig {
        command_timeout: 3 * SECONDS,
        abort_timeout: SECONDS,
        ..c
    });
    let m = two.open().unwrap();
    assert_eq!(m.active(), 0);
    two.with_target(0, |t| {
        t.mood.direct.set(false);
        t.mood.delay.set(600 * SECONDS);
    });
    let reads = m.clone();
    let read = two.host.spawn(async move { reads.read(0, Slice::heap(BLOCK).sub(0, BLOCK)).await });
    (two, m, read)
}

/// A path whose logins work and whose connections end, again and again, before a command does: its time goes on over all of them.
#[test]
fn a_path_that_comes_back_and_does_nothing_is_left() {
    let (two, m, read) = unanswered(31);
    for _ in 0..20 {
        two.world.run_for(SECONDS);
        two.world.net().cut_between(two.host.number(), two.nodes[0].number(), Cut::Both);
    }
    assert!(read.is_finished() && m.active() == 1, "{:?}", two.sessions[0].figures());
    assert_eq!(two.run(read), Some(Ok(())));
}

/// As there, but each connection is there for a moment only, and the target is away in between.
#[test]
fn a_path_that_is_there_for_moments_only_is_left() {
    let (two, m, read) = unanswered(33);
    let (host, target) = (two.host.number(), two.nodes[0].number());
    for _ in 0..15 {
        two.world.run_for(150 * MILLIS);
        two.world.net().partition(host, target);
        two.world.net().cut_between(host, target, Cut::Both);
        two.world.run_for(2 * SECONDS);
        two.world.net().heal(host, target);
        let up = two.sessions[0].figures().reconnects;
        let is_up = || two.sessions[0].figures().reconnects > up;
        two.world.run_until(10 * SECONDS, is_up).unwrap();
    }
    assert!(read.is_finished() && m.active() == 1, "{:?}", two.sessions[0].figures());
    assert_eq!(two.run(read), Some(Ok(())));
}
