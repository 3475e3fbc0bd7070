//! A target's machine loses power, and with it what its volatile caches held: the host learns of it by the next flush,
//! whichever handle, channel or path that goes by.

use crate::common::slice;
use crate::target::{BLOCK, HOST, Served, config, serve};
use std::cell::RefCell;
use std::rc::Rc;
use weir_base::{MILLIS, Nanos, SECONDS};
use weir_initiator_brp::{Disk, Error, Event, Multipath, PortId, Session, SessionConfig};
use weir_mem::Slice;
use weir_sim::{Node, World};
use weir_target_brp::TargetConfig;

const PORT: u16 = 5555;
const UID: [u8; 16] = [0x60; 16];
const LEN: usize = 1 << 20;

/// A target on a machine of its own, or a port of one.
struct Machine {
    node: Node,
    memory: Slice,
    served: RefCell<Option<Served>>,
    number: u8,
}

impl Machine {
    fn new(world: &World, number: u8, memory: &Slice) -> Machine {
        let node = world.node(&format!("port {number}"));
        let m = Machine { node, memory: memory.clone(), served: RefCell::default(), number };
        m.serve(1);
        m
    }

    fn serve(&self, power: u64) {
        let config = TargetConfig {
            port_id: PortId([self.number; 16]),
            relative_port: u16::from(self.number),
            incarnation: u64::from(self.node.lives()) + 1,
            power,
            ..config()
        };
        let (node, addr) = (&self.node, self.node.addr(PORT));
        let t = node.enter(|| serve(node.provider(), &addr, config, &self.memory));
        t.mood.volatile.set(true);
        t.mood.direct.set(false);
        *self.served.borrow_mut() = Some(t);
    }

    /// What was never flushed is gone.
    fn lose_power(&self) {
        self.node.power_off();
        self.served.take();
        self.memory.fill(0);
    }

    fn return_with(&self, power: u64) {
        self.node.restart();
        self.serve(power);
    }
}

/// A host with a session to each of some ports of one machine, on some reactors.
struct Lab {
    world: World,
    host: Node,
    ports: Vec<Machine>,
    sessions: Vec<Session>,
}

impl Lab {
    fn new(seed: u64, ports: u8, cores: usize) -> Lab {
        Lab::with(seed, ports, cores, 200 * MILLIS)
    }

    /// Sessions that wait up to so long before they try to connect again.
    fn with(seed: u64, ports: u8, cores: usize, reconnect_max: Nanos) -> Lab {
        Lab::of(seed, ports, cores, |c| SessionConfig { reconnect_max, ..c })
    }

    fn of(seed: u64, ports: u8, cores: usize, is: impl Fn(SessionConfig) -> SessionConfig) -> Lab {
        let world = World::new(seed);
        let memory = Slice::heap(LEN).sub(0, LEN);
        let ports: Vec<Machine> = (1..=ports).map(|i| Machine::new(&world, i, &memory)).collect();
        let host = world.node_with("host", cores);
        let session = |m: &Machine| {
            Session::new(is(SessionConfig {
                command_timeout: 0,
                keep_alive: 2 * SECONDS,
                fast_io_fail: 4 * SECONDS,
                session: u64::from(m.number),
                ..SessionConfig::new(&m.node.addr(PORT), HOST)
            }))
        };
        let sessions: Vec<Session> = ports.iter().map(session).collect();
        let lab = Lab { world, host, ports, sessions };
        for s in lab.sessions.clone() {
            for core in 0..cores {
                lab.host.enter_on(core, || s.join(lab.host.provider_on(core)));
            }
            lab.run(async move { s.login().await.unwrap() });
        }
        lab
    }

    fn run<T: 'static>(&self, f: impl Future<Output = T> + 'static) -> T {
        self.world.run(&self.host, 60 * SECONDS, f).unwrap_or_else(|e| panic!("{e}"))
    }

    /// As [`run`](Lab::run), on one of the host's cores.
    fn run_on<T: 'static>(&self, core: usize, f: impl Future<Output = T> + 'static) -> T {
        let task = self.host.spawn_on(core, f);
        self.world.run_until(60 * SECONDS, || task.is_finished()).unwrap();
        self.run(task).unwrap()
    }

    /// A handle of the first session on this core.
    fn disk(&self, core: usize) -> Rc<Disk> {
        let q = self.host.enter_on(core, || self.sessions[0].queue());
        self.run_on(core, async move { Rc::new(q.open_uid(&UID).await.unwrap()) })
    }

    fn multipath(&self) -> Rc<Multipath> {
        let queues = self.host.enter(|| self.sessions.iter().map(Session::queue).collect());
        self.run(async move { Rc::new(Multipath::open(queues, &UID).await.unwrap()) })
    }

    fn write(&self, core: usize, d: &Rc<Disk>) {
        let d = d.clone();
        self.run_on(core, async move { d.write(0, slice(&[7; BLOCK]), false).await.unwrap() });
    }

    fn flush(&self, core: usize, d: &Rc<Disk>) -> Result<(), Error> {
        let d = d.clone();
        self.run_on(core, async move { d.flush().await })
    }
}

#[test]
fn a_flush_by_any_handle_tells_what_was_lost() {
    // Handles of one reactor, and of two, which have channels of their own.
    for cores in 1..=2 {
        let lab = Lab::new(1, 1, cores);
        let (a, b) = (lab.disk(0), lab.disk(cores - 1));
        lab.write(0, &a);
        lab.ports[0].lose_power();
        lab.ports[0].return_with(2);
        assert_eq!(lab.flush(cores - 1, &b), Err(Error::LostCache), "{cores} cores");
        assert_eq!(lab.flush(0, &a), Err(Error::LostCache), "each handle tells it");
        assert_eq!(lab.flush(cores - 1, &b), Ok(()), "once");
        assert_eq!(lab.flush(0, &a), Ok(()));
    }
}

#[test]
fn one_loss_counts_once_however_many_channels_come_back_after_it() {
    let lab = Lab::new(2, 1, 2);
    let (a, b) = (lab.disk(0), lab.disk(1));
    lab.write(0, &a);
    assert_eq!(lab.flush(1, &b), Ok(()), "a flush by any handle covers all writes");
    lab.ports[0].lose_power();
    lab.ports[0].return_with(2);
    lab.write(0, &a);
    lab.write(1, &b);
    assert_eq!(lab.flush(0, &a), Ok(()), "nothing was in the cache that was lost");
    assert_eq!(lab.flush(1, &b), Ok(()));
    let events = lab.sessions[0].events();
    assert_eq!(events.iter().filter(|e| **e == Event::PowerLost).count(), 1, "{events:?}");
}

#[test]
fn a_flush_over_the_other_path_tells_what_was_lost() {
    let lab = Lab::new(3, 2, 1);
    let m = lab.multipath();
    let w = m.clone();
    lab.run(async move { w.write(0, slice(&[7; BLOCK]), false).await.unwrap() });
    assert_eq!(m.active(), 0);
    lab.ports.iter().for_each(Machine::lose_power);
    // The second port is there first.
    lab.ports[1].return_with(2);
    let f = m.clone();
    let flushed = lab.run(async move { (f.flush().await, f.flush().await) });
    assert_eq!((m.active(), flushed), (1, (Err(Error::LostCache), Ok(()))));
}

#[test]
fn of_two_flushes_at_once_both_tell() {
    let lab = Lab::new(4, 1, 1);
    let (a, b) = (lab.disk(0), lab.disk(0));
    lab.write(0, &a);
    lab.ports[0].lose_power();
    let flushes: Vec<_> =
        [a, b].into_iter().map(|d| lab.host.spawn(async move { d.flush().await })).collect();
    lab.world.run_for(100 * MILLIS);
    lab.ports[0].return_with(2);
    for f in flushes {
        assert_eq!(lab.run(f), Some(Err(Error::LostCache)));
    }
}

#[test]
fn a_flush_that_is_given_up_takes_nothing_with_it() {
    let lab = Lab::new(5, 1, 1);
    let d = lab.disk(0);
    lab.write(0, &d);
    lab.ports[0].lose_power();
    let f = d.clone();
    let flush = lab.host.spawn(async move { f.flush().await });
    lab.world.run_for(100 * MILLIS);
    lab.host.enter(|| flush.cancel());
    lab.ports[0].return_with(2);
    assert_eq!(lab.flush(0, &d), Err(Error::LostCache));
}

/// The machine answers, and the program is not there yet.
#[test]
fn a_host_is_back_soon_after_a_target_that_was_away_for_long() {
    for seconds in [1, 2, 3, 5, 7, 11, 17, 26] {
        let lab = Lab::with(300 + seconds, 1, 1, 600 * SECONDS);
        lab.ports[0].node.kill();
        lab.ports[0].served.take();
        lab.ports[0].node.restart();
        let since = lab.sessions[0].figures().reconnects;
        lab.world.run_for(seconds * SECONDS);
        assert_eq!(lab.sessions[0].figures().reconnects, since);
        lab.ports[0].serve(2);
        let back = lab.world.now();
        let is_back = || lab.sessions[0].figures().reconnects > since;
        lab.world.run_until(600 * SECONDS, is_back).unwrap();
        let waited = lab.world.now() - back;
        assert!(waited < seconds * SECONDS * 2 / 5, "{} ms of {seconds} s", waited / MILLIS);
    }
}

/// What waits for a target that is away has all its time when it is back, which is slow then.
#[test]
fn the_time_of_an_outage_is_not_that_of_a_command() {
    let lab = Lab::of(400, 1, 1, |c| SessionConfig {
        command_timeout: 30 * SECONDS,
        fast_io_fail: 600 * SECONDS,
        ..c
    });
    let slow = || {
        lab.ports[0].served.borrow().as_ref().unwrap().mood.delay.set(5 * SECONDS);
    };
    let d = lab.disk(0);
    slow();
    let write = lab.host.spawn(async move { d.write(0, slice(&[7; BLOCK]), false).await });
    lab.world.run_for(100 * MILLIS);
    lab.ports[0].node.kill();
    lab.ports[0].served.take();
    lab.ports[0].node.restart();
    lab.world.run_for(60 * SECONDS);
    lab.ports[0].serve(2);
    slow();
    assert_eq!(lab.run(write), Some(Ok(())));
    let f = lab.sessions[0].figures();
    assert_eq!((f.losses, f.aborts), (1, 0), "{f:?}");
}
