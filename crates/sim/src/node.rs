//! A simulated machine.

use crate::core::{Core, SimDriver};
use crate::disk::{SimDisk, SimMedium};
use crate::fabric::{Carrier, SimFabric};
use crate::stream::SimNetwork;
use crate::world::Inner as WorldInner;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::{Rc, Weak};
use weir_base::{Nanos, Prng};
use weir_fabric::Provider;
use weir_fabric_iwarp::{Config as IwarpConfig, CrcPolicy, Iwarp};
use weir_reactor::{JoinHandle, Reactor};

/// One core of a node that lives.
#[derive(Clone)]
pub(crate) struct Running {
    pub(crate) core: Rc<Core>,
    pub(crate) reactor: Reactor,
    fabric: Rc<SimFabric>,
    network: Rc<SimNetwork>,
    /// The provider that ships, if it is to be used.
    iwarp: Option<Rc<Iwarp>>,
}

pub(crate) struct Inner {
    world: Weak<WorldInner>,
    name: String,
    number: u32,
    cores: usize,
    /// The node's clock against the world's.
    offset: Nanos,
    lives: Cell<u32>,
    running: RefCell<Vec<Running>>,
    media: RefCell<Vec<SimMedium>>,
}

/// How a node speaks iWARP: each is one that peers may meet.
fn iwarp_config(rng: &mut Prng) -> IwarpConfig {
    let crc = if rng.chance(1, 2) { CrcPolicy::Off } else { CrcPolicy::Prefer };
    let fpdu_payload = [4096, 12288, 61440][rng.below(3) as usize];
    IwarpConfig { crc, fpdu_payload, ..IwarpConfig::default() }
}

/// A machine with one or more cores, a reactor on each. A handle: clones mean the same machine.
///
/// A node starts alive. Methods that need it alive panic when it is not, with its name.
#[derive(Clone)]
pub struct Node(Rc<Inner>);

impl Node {
    pub(crate) fn new(world: &Rc<WorldInner>, name: &str, cores: usize) -> Node {
        let node = Node(Rc::new(Inner {
            world: Rc::downgrade(world),
            name: name.to_string(),
            number: world.net.add_node(name),
            cores,
            // Origins far apart, as those of machines that were started on different days.
            offset: world.clock.between(0, 1 << 50),
            lives: Cell::new(0),
            running: RefCell::default(),
            media: RefCell::default(),
        }));
        node.start();
        node
    }

    fn world(&self) -> Rc<WorldInner> {
        self.0.world.upgrade().expect("a node is used while its world lives")
    }

    fn start(&self) {
        let world = self.world();
        self.0.lives.set(self.0.lives.get() + 1);
        for i in 0..self.0.cores {
            let label = match self.0.cores {
                1 => self.0.name.clone(),
                _ => format!("{}/{i}", self.0.name),
            };
            let clock = world.clock.clone();
            let core = Core::new(world.core_number(), self.0.number, label, clock, self.0.offset);
            let reactor = Reactor::new(SimDriver::new(core.clone(), world.options.fifo));
            core.set_reactor(reactor.handle().id());
            let fabric = Rc::new(SimFabric::new(world.net.clone(), core.clone()));
            let network = Rc::new(SimNetwork::new(world.net.clone(), core.clone()));
            let iwarp = match world.net.config(|c| c.carrier) {
                Carrier::Messages => None,
                Carrier::Streams => {
                    let config = world.net.draw(iwarp_config);
                    Some(Rc::new(Iwarp::new(&reactor, network.clone(), config)))
                }
            };
            let running = Running { core, reactor, fabric, network, iwarp };
            world.add_core(running.clone());
            self.0.running.borrow_mut().push(running);
        }
        world.net.node_started(self.0.number);
    }

    /// The name it was made with.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its number, for [`Net`](crate::Net)'s faults.
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// Cores (reactors) it has.
    pub fn cores(&self) -> usize {
        self.0.cores
    }

    /// How often it was started.
    pub fn lives(&self) -> u32 {
        self.0.lives.get()
    }

    /// The address of a port on it, for listening and connecting.
    pub fn addr(&self, port: u16) -> String {
        format!("{}:{port}", crate::fabric::Net::ip(self.0.number))
    }

    /// True until it is killed or cut from power, and again after a restart.
    pub fn is_alive(&self) -> bool {
        !self.0.running.borrow().is_empty()
    }

    pub(crate) fn running(&self, core: usize) -> Running {
        let r = self.0.running.borrow();
        assert!(!r.is_empty(), "node {} is not alive", self.0.name);
        r[core].clone()
    }

    /// The reactor of one core, in this life of the node.
    pub fn reactor(&self, core: usize) -> Reactor {
        self.running(core).reactor
    }

    /// The fabric provider of the first core.
    pub fn provider(&self) -> Rc<dyn Provider> {
        self.provider_on(0)
    }

    /// The fabric provider of one core.
    pub fn provider_on(&self, core: usize) -> Rc<dyn Provider> {
        let r = self.running(core);
        match r.iwarp {
            Some(iwarp) => iwarp,
            None => r.fabric,
        }
    }

    /// The simulation's own provider of the first core, whatever carries messages otherwise.
    pub fn fabric(&self) -> Rc<SimFabric> {
        self.running(0).fabric
    }

    /// The byte streams of one core.
    pub fn network_on(&self, core: usize) -> Rc<SimNetwork> {
        self.running(core).network
    }

    /// Plugs a medium in. It shares the node's power.
    pub fn attach(&self, medium: &SimMedium) {
        self.0.media.borrow_mut().push(medium.clone());
    }

    /// The first core's handle to the attached medium with this name.
    ///
    /// # Panics
    /// When there is none.
    pub fn disk(&self, name: &str) -> Rc<SimDisk> {
        self.disk_on(0, name)
    }

    /// One core's handle to the attached medium with this name.
    ///
    /// # Panics
    /// When there is none.
    pub fn disk_on(&self, core: usize, name: &str) -> Rc<SimDisk> {
        let medium = self.0.media.borrow().iter().find(|m| m.name() == name).cloned();
        let Some(medium) = medium else { panic!("node {} has no disk {name}", self.0.name) };
        SimDisk::new(medium, self.running(core).core)
    }

    /// Starts a task on the first core.
    pub fn spawn<T: 'static>(&self, f: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        self.spawn_on(0, f)
    }

    /// Starts a task on one core.
    pub fn spawn_on<T: 'static>(
        &self,
        core: usize,
        f: impl Future<Output = T> + 'static,
    ) -> JoinHandle<T> {
        self.running(core).reactor.spawn(f)
    }

    /// Runs `f` as if inside a task of the first core.
    pub fn enter<R>(&self, f: impl FnOnce() -> R) -> R {
        self.enter_on(0, f)
    }

    /// Runs `f` as if inside a task of one core.
    pub fn enter_on<R>(&self, core: usize, f: impl FnOnce() -> R) -> R {
        let r = self.running(core).reactor;
        r.enter(f)
    }

    /// Kills the process: all tasks are dropped, connections are reset by the operating system, disks
    /// keep what they have. Inside a turn it happens at the turn's end. Nothing happens when it is dead.
    pub fn kill(&self) {
        let node = self.clone();
        self.world().outside_turns(move || node.die(false));
    }

    /// Cuts the machine's power: as [`kill`](Node::kill), but peers are told nothing and its disks lose
    /// what they had not made durable.
    pub fn power_off(&self) {
        let node = self.clone();
        self.world().outside_turns(move || node.die(true));
    }

    /// Starts it again after a kill or power cut: new reactors, nothing spawned.
    pub fn restart(&self) {
        let node = self.clone();
        self.world().outside_turns(move || {
            if !node.is_alive() {
                node.start();
            }
        });
    }

    /// Stops all its cores for `duration`, as a paused virtual machine is stopped. Time goes on.
    pub fn pause(&self, duration: Nanos) {
        let world = self.world();
        for r in self.0.running.borrow().iter() {
            r.core.pause_until(world.clock.now() + duration);
        }
    }

    fn die(&self, silent: bool) {
        let running = std::mem::take(&mut *self.0.running.borrow_mut());
        if running.is_empty() {
            return;
        }
        let world = self.world();
        let name = &self.0.name;
        world.clock.trace.line(world.clock.now(), || {
            format!("{name}: {}", if silent { "power cut" } else { "killed" })
        });
        if silent {
            world.net.loses_power(self.0.number);
        }
        // First the outside: what destructors do afterwards must have no effect.
        for r in &running {
            r.core.die();
        }
        world.net.node_died(self.0.number, silent);
        for m in self.0.media.borrow().iter() {
            match silent {
                true => m.power_cut(),
                false => m.adopt(&world.clock, |e| world.schedule(e)),
            }
        }
        world.remove_cores(self.0.number);
        for r in running {
            r.reactor.shutdown();
        }
    }

    /// For the end of the world: as a kill that nobody hears of.
    pub(crate) fn end(&self) {
        let running = std::mem::take(&mut *self.0.running.borrow_mut());
        for r in &running {
            r.core.die();
        }
        // The media may live on in another world.
        self.0.media.borrow().iter().for_each(SimMedium::abandon);
        for r in running {
            r.reactor.shutdown();
        }
    }

    /// For a world that ends in a panic: destructors are not run, since they could panic again.
    pub(crate) fn leak(&self) {
        let running = self.0.running.try_borrow_mut().map(|mut r| std::mem::take(&mut *r));
        for r in running.into_iter().flatten() {
            r.reactor.abandon();
            std::mem::forget((r.core, r.fabric, r.network, r.iwarp));
        }
    }

    pub(crate) fn describe(&self) -> Vec<String> {
        let r = self.0.running.borrow();
        if r.is_empty() {
            return vec![format!("{}: dead", self.0.name)];
        }
        r.iter()
            .map(|r| {
                let f = r.reactor.figures();
                let timer = r.reactor.next_deadline().map(|t| r.core.to_world(t));
                format!(
                    "{}: {} tasks, {} turns, {} events, runnable: {}, next timer: {}",
                    r.core.label,
                    f.tasks,
                    f.turns,
                    r.core.events(),
                    r.reactor.has_work(),
                    timer.map_or("none".to_string(), |t| format!("{:.6} ms", t as f64 / 1e6)),
                )
            })
            .collect()
    }
}
