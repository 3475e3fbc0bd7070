//! In simulated worlds: loss, slowness and death, over many seeds.

use crate::common::{L0, verify_at};
use crate::target::{HOST, Medium, Served, config, medium, serve};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{MICROS, MILLIS, Nanos, SECONDS};
use weir_initiator_srp::{Error, PathState, Queue, QueueMode, Rung, Session, SessionConfig};
use weir_mem::Slice;
use weir_reactor::{sleep, spawn, timeout};
use weir_sim::{Cut, NetConfig, Node, World};
use weir_target_srp::TargetConfig;

/// `n` seeds, or as many as `WEIR_TEST_SEEDS` says.
pub(crate) fn seeds(from: u64, n: u64) -> std::ops::Range<u64> {
    let n = std::env::var("WEIR_TEST_SEEDS").ok().and_then(|v| v.parse().ok()).unwrap_or(n);
    from..from + n
}

pub(crate) const PORT: u16 = 5555;
pub(crate) const LEN: usize = 256 << 10;
/// Nobody looks at what is there.
const SCRATCH: u64 = LEN as u64;

pub(crate) struct Lab {
    pub(crate) world: World,
    pub(crate) target: Node,
    pub(crate) host: Node,
    pub(crate) medium: Medium,
    pub(crate) config: TargetConfig,
    pub(crate) served: Rc<RefCell<Option<Served>>>,
}

impl Lab {
    pub(crate) fn new(seed: u64, cores: usize) -> Lab {
        // Less than a connection request of the simulated network waits.
        Lab::with(seed, cores, TargetConfig { terminate_timeout: 2 * SECONDS, ..config() })
    }

    pub(crate) fn with(seed: u64, cores: usize, config: TargetConfig) -> Lab {
        let world = World::new(seed);
        let (target, host) = (world.node("target"), world.node_with("host", cores));
        let lab = Lab {
            world,
            target,
            host,
            medium: medium(LEN + (64 << 10)),
            config,
            served: Rc::default(),
        };
        lab.serve();
        lab
    }

    /// Starts the target.
    pub(crate) fn serve(&self) {
        start(&self.target, &self.config, &self.medium, &self.served);
    }

    /// The target dies every now and then, `times` times, and is back a millisecond later with a disk that is slow
    /// by `delay`.
    fn deaths(
        &self,
        times: u32,
        every: Nanos,
        delay: Nanos,
        silent: impl Fn(&World) -> bool + 'static,
    ) {
        let (node, config, medium, served) =
            (self.target.clone(), self.config.clone(), self.medium.clone(), self.served.clone());
        let death = move |w: &World| {
            match silent(w) {
                true => node.power_off(),
                false => node.kill(),
            }
            served.borrow_mut().take();
            let (n, c, m, s) = (node.clone(), config.clone(), medium.clone(), served.clone());
            w.after(MILLIS, move |_| {
                n.restart();
                start(&n, &c, &m, &s);
                s.borrow().as_ref().unwrap().mood.delay.set(delay);
            });
        };
        now_and_then(&self.world, times, every, Rc::new(death));
    }

    pub(crate) fn mood<R>(&self, f: impl FnOnce(&crate::target::Mood) -> R) -> R {
        f(&self.served.borrow().as_ref().unwrap().mood)
    }

    pub(crate) fn session_config(&self) -> SessionConfig {
        SessionConfig {
            command_timeout: 2 * SECONDS,
            task_timeout: SECONDS,
            reconnect_min: 10 * MILLIS,
            reconnect_max: SECONDS,
            fast_io_fail: 600 * SECONDS,
            ..SessionConfig::new(&self.target.addr(PORT), self.config.port_id, HOST)
        }
    }

    /// A session of all cores of the host, logged in.
    pub(crate) fn session(&self, config: SessionConfig) -> Session {
        let s = Session::new(config);
        for core in 0..self.host.cores() {
            self.host.enter_on(core, || s.join(self.host.provider_on(core)));
        }
        let login = s.clone();
        self.run(async move { login.login().await }).unwrap();
        s
    }

    pub(crate) fn queue(&self, s: &Session) -> Queue {
        self.host.enter(|| s.queue())
    }

    pub(crate) fn run<T: 'static>(&self, f: impl Future<Output = T> + 'static) -> T {
        match self.world.run(&self.host, 3600 * SECONDS, f) {
            Ok(v) => v,
            Err(stuck) => panic!("seed {}: {stuck}", self.world.seed()),
        }
    }

    /// Verifies on all cores at once, each its part of the disk.
    pub(crate) fn verify(&self, s: &Session, rounds: usize) {
        let part = LEN as u64 / self.host.cores() as u64 / 4096 * 4096;
        let all: Vec<_> = (0..self.host.cores())
            .map(|core| {
                let (s, seed) = (s.clone(), self.world.seed() * 10 + core as u64);
                self.host.spawn_on(core, async move {
                    verify_at(&s.queue(), core as u64 * part, part, 4, rounds, seed).await;
                })
            })
            .collect();
        let end = self.world.run_until(3600 * SECONDS, || all.iter().all(|h| h.is_finished()));
        if let Err(stuck) = end {
            panic!("seed {}: {stuck}", self.world.seed());
        }
    }

    /// Closes the session; nothing is held at either side then.
    pub(crate) fn check_clean(&self, s: &Session) {
        self.world.run_for(20 * SECONDS);
        for core in 0..self.host.cores() {
            for c in self.host.enter_on(core, || s.census()) {
                assert_eq!((c.busy, c.registrations, c.waiting), (0, 0, 0), "{c:?}");
            }
        }
        let close = s.clone();
        self.run(async move { close.close().await });
        self.world.run_for(20 * SECONDS);
        let served = self.served.borrow();
        let port = &served.as_ref().unwrap().port;
        port.check_idle().unwrap();
        assert_eq!(port.census().channels, 0);
        assert!(port.census().data_pool.iter().all(|c| c.free == c.total));
        assert_eq!(self.world.net().connections(), 0);
    }
}

async fn read_block(q: &Queue) -> Result<(), Error> {
    q.read(L0, 0, Slice::heap(512).sub(0, 512)).await
}

pub(crate) fn start(
    node: &Node,
    config: &TargetConfig,
    medium: &Medium,
    served: &Rc<RefCell<Option<Served>>>,
) {
    let t = node.enter(|| serve(node.provider(), &node.addr(PORT), config.clone(), medium));
    *served.borrow_mut() = Some(t);
}

/// Does something to the world every now and then, `times` times.
fn now_and_then(w: &World, times: u32, every: Nanos, f: Rc<dyn Fn(&World)>) {
    if times > 0 {
        let pause = every / 2 + w.rng(u64::from(times)).below(every);
        w.after(pause, move |w| {
            f(w);
            now_and_then(w, times - 1, every, f);
        });
    }
}

#[test]
fn data_survives_the_loss_of_channels() {
    for seed in seeds(0, 12) {
        let lab = Lab::new(seed, 1 + (seed % 3) as usize);
        let channels = 1 + (seed % 4) as usize;
        let s = lab.session(SessionConfig { channels, ..lab.session_config() });
        assert_eq!(s.figures().channels, channels);
        now_and_then(&lab.world, 8, 3 * MILLIS, Rc::new(|w| _ = w.net().cut_any(Cut::Any)));
        lab.mood(|m| m.delay.set(200 * MICROS));
        lab.verify(&s, 60);
        assert!(s.figures().reconnects > 0, "seed {seed}: {:?}", s.figures());
        assert_eq!(s.state(), PathState::Running);
        lab.check_clean(&s);
    }
}

#[test]
fn data_survives_a_restart_of_the_target() {
    for seed in seeds(100, 8) {
        let lab = Lab::new(seed, 2);
        let s = lab.session(lab.session_config());
        lab.deaths(3, 10 * MILLIS, 0, move |_| seed % 2 != 0);
        lab.mood(|m| m.delay.set(500 * MICROS));
        lab.verify(&s, 80);
        assert!(s.figures().reconnects > 0, "seed {seed}: {:?}", s.figures());
        lab.check_clean(&s);
    }
}

/// The machine answers, and the program is not there yet.
#[test]
fn a_host_is_back_soon_after_a_target_that_was_away_for_long() {
    for seconds in [1, 2, 3, 5, 7, 11, 17, 26] {
        let lab = Lab::new(300 + seconds, 1);
        let c = SessionConfig { reconnect_max: 600 * SECONDS, ..lab.session_config() };
        let s = lab.session(c);
        lab.target.kill();
        lab.served.borrow_mut().take();
        lab.target.restart();
        lab.world.run_for(seconds * SECONDS);
        lab.serve();
        let back = lab.world.now();
        lab.world.run_until(600 * SECONDS, || s.state() == PathState::Running).unwrap();
        let waited = lab.world.now() - back;
        assert!(waited < seconds * SECONDS * 2 / 5, "{} ms of {seconds} s", waited / MILLIS);
        lab.check_clean(&s);
    }
}

#[test]
fn a_deaf_disk_is_climbed_rung_by_rung() {
    let lab = Lab::new(7, 1);
    let s = lab.session(lab.session_config());
    let q = lab.queue(&s);
    let warm = q.clone();
    lab.run(async move { read_block(&warm).await.unwrap() });
    lab.mood(|m| m.stall.set(true));
    let started = lab.world.now();
    let reader = q.clone();
    let read = lab.host.spawn(async move { read_block(&reader).await });
    lab.world.run_until(60 * SECONDS, || s.figures().reconnects == 1).unwrap();
    let rungs: Vec<Rung> = s.events().iter().map(|e| e.rung).collect();
    assert_eq!(
        rungs,
        [Rung::AbortTask, Rung::LunReset, Rung::Disconnect, Rung::Reconnect],
        "after {} ms",
        (lab.world.now() - started) / MILLIS
    );
    let at: Vec<Nanos> = s.events().iter().map(|e| (e.at - s.events()[0].at) / MILLIS).collect();
    assert!((1000..1300).contains(&at[1]) && (2000..2600).contains(&at[2]), "{at:?}");
    // The command was kept and is sent again.
    assert!(!read.is_finished());
    lab.mood(|m| m.stall.set(false));
    assert_eq!(lab.run(read), Some(Ok(())));
    lab.check_clean(&s);
}

#[test]
fn slow_commands_are_aborted_and_tried_again() {
    let lab = Lab::new(8, 1);
    let s = lab.session(SessionConfig {
        retries: 2,
        task_timeout: 5 * SECONDS,
        ..lab.session_config()
    });
    let q = lab.queue(&s);
    let warm = q.clone();
    lab.run(async move { read_block(&warm).await.unwrap() });
    // Slower than the time for a command, quicker than that for an abort.
    lab.mood(|m| m.delay.set(3 * SECONDS));
    let reader = q.clone();
    let r = lab.run(async move { read_block(&reader).await });
    assert_eq!(r, Err(Error::TimedOut));
    let f = s.figures();
    assert_eq!((f.aborts, f.lun_resets, f.losses), (3, 0, 0), "{f:?}");
    // Once it is quick enough, a command that was aborted is done by its next try.
    let slow = q.clone();
    let read = lab.host.spawn(async move { read_block(&slow).await });
    lab.world.run_for(2500 * MILLIS);
    lab.mood(|m| m.delay.set(0));
    assert_eq!(lab.run(read), Some(Ok(())));
    lab.check_clean(&s);
}

#[test]
fn dropped_futures_leak_nothing() {
    for seed in seeds(200, 16) {
        let lab = Lab::new(seed, 2);
        // Half of the seeds forward from the second core to the first.
        let channels = 1 + (seed % 2) as usize;
        let s = lab.session(SessionConfig { channels, depth: 8, ..lab.session_config() });
        lab.mood(|m| m.delay.set(50_000));
        for core in 0..2 {
            let (s, mut rng) = (s.clone(), lab.world.rng(core));
            let all = lab.host.spawn_on(core as usize, async move {
                let q = s.queue();
                let mut tasks = Vec::new();
                for i in 0..40u64 {
                    let (q, patience) = (q.clone(), rng.below(400_000));
                    tasks.push(spawn(async move {
                        let b = Slice::heap(16384);
                        let io = async {
                            match i % 2 {
                                0 => q.read(L0, 0, b).await,
                                _ => q.write(L0, 65536 + (i % 4) * 16384, b, false).await,
                            }
                        };
                        if let Ok(r) = timeout(patience, io).await {
                            r.unwrap();
                        }
                    }));
                    sleep(rng.below(30_000)).await;
                }
                for t in tasks {
                    t.await.unwrap();
                }
            });
            lab.run(all);
        }
        lab.check_clean(&s);
    }
}

#[test]
fn few_credits_serve_many_commands() {
    for seed in seeds(300, 4) {
        let mut c = config();
        c.policy.credits = 2 + (seed % 2) as u32;
        let lab = Lab::with(seed, 1, c);
        let s = lab.session(lab.session_config());
        let q = lab.queue(&s);
        lab.run(async move {
            let tasks: Vec<_> = (0..50u64)
                .map(|i| {
                    let q = q.clone();
                    spawn(async move {
                        for _ in 0..5 {
                            q.read(L0, i * 512, Slice::heap(512).sub(0, 512)).await.unwrap();
                        }
                    })
                })
                .collect();
            for t in tasks {
                t.await.unwrap();
            }
        });
        lab.check_clean(&s);
    }
}

#[test]
fn a_path_that_stays_away_fails_fast_and_comes_back() {
    let lab = Lab::new(9, 2);
    let s = lab.session(SessionConfig { fast_io_fail: 5 * SECONDS, ..lab.session_config() });
    let q = lab.queue(&s);
    let (warm, reader) = (q.clone(), q.clone());
    lab.run(async move { read_block(&warm).await.unwrap() });
    lab.world.net().partition(lab.target.number(), lab.host.number());
    let r = lab.run(async move { read_block(&reader).await });
    assert_eq!(r, Err(Error::PathDown));
    lab.world.run_until(SECONDS, || s.state() == PathState::Failing).unwrap();
    // At once, while it is known to be down.
    let (t, reader) = (lab.world.now(), q.clone());
    let r = lab.run(async move { reader.test_unit_ready(L0).await });
    assert!(r == Err(Error::PathDown) && lab.world.now() - t < MILLIS);
    lab.world.net().heal_all();
    lab.world.run_until(60 * SECONDS, || s.state() == PathState::Running).unwrap();
    lab.run(async move { read_block(&q).await.unwrap() });
    lab.check_clean(&s);
}

#[test]
fn a_core_may_join_late() {
    let lab = Lab::new(11, 3);
    let s = Session::new(SessionConfig { channels: 2, ..lab.session_config() });
    lab.host.enter_on(0, || s.join(lab.host.provider_on(0)));
    let login = s.clone();
    lab.run(async move { login.login().await }).unwrap();
    for core in 1..3 {
        lab.host.enter_on(core, || s.join(lab.host.provider_on(core)));
    }
    lab.verify(&s, 10);
    assert!(lab.host.enter_on(1, || s.census()).is_empty());
    // The next login spreads the channels anew.
    lab.world.net().cut_any(Cut::Both);
    lab.world.run_for(SECONDS);
    lab.verify(&s, 10);
    assert_eq!(lab.host.enter_on(1, || s.census()).len(), 1);
    lab.check_clean(&s);
}

#[test]
fn closing_ends_what_is_under_way() {
    let lab = Lab::new(10, 2);
    let s = lab.session(SessionConfig { channels: 1, ..lab.session_config() });
    lab.mood(|m| m.delay.set(SECONDS));
    let reads: Vec<_> = (0..2)
        .map(|core| {
            let s = s.clone();
            lab.host.spawn_on(core, async move { read_block(&s.queue()).await })
        })
        .collect();
    lab.world.run_for(100 * MILLIS);
    let close = s.clone();
    lab.run(async move { close.close().await });
    for r in reads {
        assert!(matches!(lab.run(r), Some(Err(Error::Closed | Error::InDoubt))));
    }
    lab.check_clean(&s);
}

/// Everything at once: a hostile network, restarts, slow disks, commands that are given up.
#[test]
fn data_survives_storms() {
    for seed in seeds(500, 12) {
        let cores = 1 + (seed % 3) as usize;
        let lab = Lab::new(seed, cores);
        let mut rng = lab.world.rng(99);
        let s = lab.session(SessionConfig {
            channels: 1 + rng.below(4) as usize,
            queue_mode: if rng.chance(1, 4) { QueueMode::Single } else { QueueMode::Multi },
            depth: 1 + rng.below(24) as u16,
            immediate: [0, 512, 8192][rng.below(3) as usize],
            inline_entries: rng.below(5) as u8,
            command_timeout: [50 * MILLIS, 2 * SECONDS][rng.below(2) as usize],
            task_timeout: [20 * MILLIS, SECONDS][rng.below(2) as usize],
            ..lab.session_config()
        });
        let hostile = NetConfig::hostile(&mut rng);
        lab.world.net().set_config(|c| {
            (c.refuse, c.duplicate, c.half_open) =
                (hostile.refuse, hostile.duplicate, hostile.half_open);
            (c.cut, c.spike) = (hostile.cut, hostile.spike);
        });
        let delay = rng.below(2) * 300 * MICROS;
        lab.mood(|m| m.delay.set(delay));
        let deaths = rng.below(3) as u32;
        lab.deaths(deaths, 100 * MILLIS, delay, |w| !w.rng(w.now()).chance(1, 2));
        // Commands of no consequence, most of them given up.
        let stop = Rc::new(Cell::new(false));
        let droppers: Vec<_> = (0..cores)
            .map(|core| {
                let (s, mut rng, stop) = (s.clone(), rng.fork(), stop.clone());
                lab.host.spawn_on(core, async move {
                    let q = s.queue();
                    while !stop.get() {
                        let pieces: Vec<Slice> =
                            (0..1 + rng.below(8)).map(|_| Slice::heap(512).sub(0, 512)).collect();
                        let at = SCRATCH + rng.below(8) * 4096;
                        let io = async {
                            match rng.below(2) {
                                0 => q.read_to(L0, at, &pieces).await,
                                _ => q.write_from(L0, at, &pieces, false).await,
                            }
                        };
                        let patience = [20, 200, 2000, 50_000][core % 4] * MICROS;
                        let _ = timeout(patience, io).await;
                        sleep(100 * MICROS).await;
                    }
                })
            })
            .collect();
        let w = lab.world.net().clone();
        lab.world.after(400 * MILLIS, move |_| w.calm());
        lab.verify(&s, 60);
        stop.set(true);
        lab.world.net().calm();
        for d in droppers {
            lab.run(d).unwrap();
        }
        lab.check_clean(&s);
    }
}
