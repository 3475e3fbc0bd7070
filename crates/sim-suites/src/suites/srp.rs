//! Hosts and an SRP target. Every byte that is read is checked, every response, every credit; in the end
//! nothing may be left anywhere.

use crate::load::{Load, Mix};
use crate::srp::{Host, HostConfig, HostIo, Resets};
use crate::suites::scene::{Client, Play, Scene, Store, check_whole, partition, pool, unit_name};
use crate::{Pass, Run, Wrong};
use std::cell::Cell;
use std::rc::Rc;
use weir_base::{MICROS, MILLIS, Prng, SECONDS};
use weir_fabric::Provider;
use weir_proto_srp::{PortId, TargetPolicy, TaskFunction};
use weir_reactor::sleep;
use weir_sim::{Carrier, Cut, NetConfig, Node, Odds, Options, World};
use weir_target_srp::{Target, TargetConfig};

const TARGET: PortId = PortId::new(0x5745_4952, 1);

/// What happens besides I/O.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Weather {
    /// Nothing.
    Calm,
    /// Resets of slow units, on a network without faults: what they end must end.
    Resets,
    /// Aborts, resets, cuts, partitions, duplicate logins, deaths.
    Storm,
    /// The same, on a network that does all it can by itself.
    HostileNet,
}

/// What happens and what came of it.
struct Srp {
    scene: Scene<Target, Rc<Host>>,
    config: TargetConfig,
    tas: bool,
    host_config: HostConfig,
    time: weir_sim::Time,
}

impl Play for Srp {
    type Target = Target;
    type Host = Rc<Host>;

    fn scene(&self) -> &Scene<Target, Rc<Host>> {
        &self.scene
    }

    fn serve(&self) -> Result<(), Wrong> {
        let identity = |i: usize| {
            let mut id = self.scene.identity(i, TARGET.0);
            id.task_aborted_status = self.tas;
            id
        };
        let (config, cores) = (self.config.clone(), self.scene.target.cores());
        let target = Target::new(config, self.scene.access(), identity(0), cores);
        self.scene.put_up(target, identity, self.config.chunk)
    }

    fn start_host(self: &Rc<Self>, node: &Node, number: u64, rng: &mut Prng) -> Result<(), Wrong> {
        let pool = pool(&[(4096, 64), (16384, 16)])?;
        let provider: Rc<dyn Provider> = node.provider();
        node.fabric().set_native_cm(self.host_config.native_cm);
        let config = HostConfig {
            initiator: PortId::new(0x1000 + number, 7),
            channels: rng.between(1, 2) as usize,
            ..self.host_config.clone()
        };
        let (fault, loads) = (self.scene.fault.clone(), self.scene.loads.clone());
        let fork = rng.fork();
        let host = Host::new(provider, pool.clone(), config, fault, loads, self.time.clone(), fork);
        let running = Rc::new(Cell::new(0));
        for _ in 0..rng.between(1, 4) {
            let lun = rng.below(self.scene.loads.len() as u64) as usize;
            let io = Rc::new(HostIo { host: host.clone(), lun });
            let work = self.scene.loads[lun].clone().client(
                io,
                pool.clone(),
                rng.fork(),
                self.scene.requests,
            );
            running.set(running.get() + 1);
            let r = running.clone();
            node.spawn(async move {
                work.await;
                r.set(r.get() - 1);
            });
        }
        let (node, life) = (node.clone(), node.lives());
        let client = Client { node, life, host, pools: vec![pool], running };
        self.scene.clients.borrow_mut().push(client);
        Ok(())
    }
}

impl Srp {
    /// A host resets a unit.
    fn reset(&self, rng: &mut Prng) {
        let all = self.scene.clients.borrow();
        let c = &all[rng.below(all.len() as u64) as usize];
        let lun = crate::srp::lun(rng.below(self.scene.loads.len() as u64) as usize);
        let host = c.host.clone();
        let function = match rng.chance(1, 2) {
            true => TaskFunction::LunReset,
            false => TaskFunction::ClearTaskSet,
        };
        c.node.spawn(async move { host.manage(function, lun).await });
    }

    /// Something that a host does besides its I/O.
    fn nuisance(&self, rng: &mut Prng) {
        let all = self.scene.clients.borrow();
        let alive: Vec<&Client<_>> = all.iter().filter(|c| c.is_current()).collect();
        if alive.is_empty() {
            return;
        }
        let c = alive[rng.below(alive.len() as u64) as usize];
        let host = c.host.clone();
        let lun = crate::srp::lun(rng.below(self.scene.loads.len() as u64) as usize);
        match rng.below(5) {
            0 => c.node.enter(|| host.drop_one()),
            1 | 2 => {
                c.node.spawn(async move { host.manage(TaskFunction::LunReset, lun).await });
            }
            3 => {
                c.node.spawn(async move { host.manage(TaskFunction::AbortTaskSet, lun).await });
            }
            _ => {
                c.node.spawn(async move { host.manage(TaskFunction::ClearTaskSet, lun).await });
            }
        }
    }

    /// Another login in a host's name, from another node.
    fn duplicate(self: &Rc<Self>, w: &World, number: u64, rng: &mut Prng) -> Result<(), Wrong> {
        let node = w.node("impostor");
        if !node.is_alive() {
            return Ok(());
        }
        let pool = pool(&[(4096, 32)])?;
        let config = HostConfig {
            initiator: PortId::new(0x1000 + number, 7),
            channels: 1,
            tries: 2,
            ..self.host_config.clone()
        };
        let (provider, fault) = (node.provider(), self.scene.fault.clone());
        node.fabric().set_native_cm(self.host_config.native_cm);
        let (time, fork) = (self.time.clone(), rng.fork());
        let host =
            Host::new(provider, pool.clone(), config, fault, self.scene.loads.clone(), time, fork);
        let stay = rng.below(20 * MILLIS);
        let running = Rc::new(Cell::new(1));
        let (h, r) = (host.clone(), running.clone());
        node.spawn(async move {
            if h.channel().await.is_some() {
                sleep(stay).await;
            }
            h.close().await;
            r.set(0);
        });
        let client = Client { life: node.lives(), node, host, pools: vec![pool], running };
        self.scene.clients.borrow_mut().push(client);
        Ok(())
    }

    fn storm(self: &Rc<Self>, w: &World, rng: &mut Prng, hosts: &[Node], deaths: bool) {
        let mut nodes = hosts.to_vec();
        nodes.push(self.scene.target.clone());
        let span = rng.between(2 * MILLIS, 60 * MILLIS);
        for _ in 0..rng.below(20) {
            let at = rng.below(span);
            let pick = |rng: &mut Prng| nodes[rng.below(nodes.len() as u64) as usize].clone();
            let (a, mut fork, me) = (pick(rng), rng.fork(), self.clone());
            let t = self.scene.target.number();
            match rng.below(12) {
                0 | 1 => w.after(at, |w| {
                    w.net().cut_any(Cut::Any);
                }),
                2 => partition(w, rng, at, (a.number(), t), 4 * SECONDS),
                3 => {
                    let duration = rng.below(2 * SECONDS);
                    w.after(at, move |_| a.pause(duration));
                }
                4 => {
                    let number = rng.below(hosts.len() as u64);
                    w.after(at, move |w| {
                        if let Err(Wrong(e)) = me.duplicate(w, number, &mut fork) {
                            me.scene.fault.set(e);
                        }
                    });
                }
                5 if deaths => self.death(w, at, a, rng),
                _ => w.after(at, move |_| me.nuisance(&mut fork)),
            }
        }
    }

    /// Ends hosts and target and looks for anything left.
    fn close(&self, w: &World) -> Result<(), Wrong> {
        let clients = self.scene.clients.take();
        for c in &clients {
            if c.is_current() {
                let h = c.host.clone();
                w.run(&c.node, 60 * SECONDS, async move { h.close().await })?;
            }
        }
        let pools = self.scene.close_target(w, 30 * SECONDS)?;
        for i in 0..self.scene.loads.len() {
            self.scene.check_volume(w, i, &pools[0])?;
        }
        check_whole(pools.iter().chain(clients.iter().flat_map(|c| &c.pools)))
    }
}

pub(super) fn run(run: &Run) -> Result<Pass, Wrong> {
    let mut rng = Prng::new(run.seed ^ 0x5c51);
    let weather = match rng.below(10) {
        0..=2 => Weather::Calm,
        3 => Weather::Resets,
        4..=6 => Weather::Storm,
        _ => Weather::HostileNet,
    };
    let net = match weather {
        Weather::HostileNet => NetConfig::hostile(&mut rng),
        _ => NetConfig::default(),
    };
    let fifo = rng.chance(1, 3);
    let w = run.world(Options { net, fifo, ..Options::default() });
    let target = w.node_with("target", rng.between(1, 2) as usize);
    let stores: Vec<Store> = (0..rng.between(1, 2) as usize)
        .map(|i| match weather {
            // Resets must meet commands that have been there for long.
            Weather::Resets => Store::slow(80 * MILLIS),
            _ => Store::draw(&mut rng, &unit_name(i), 100 * MICROS),
        })
        .collect();
    stores.iter().for_each(|s| s.attach(&target));
    let loads: Vec<Rc<Load>> = stores
        .iter()
        .enumerate()
        .map(|(i, s)| {
            let mix = Mix {
                blocks: 64,
                most: rng.between(1, 24),
                think: rng.below(500 * MICROS),
                exclusive: s.is_direct(),
                ..Mix::default()
            };
            Load::new(i as u32 + 1, w.time(), mix)
        })
        .collect();
    let immediate = if rng.chance(1, 2) { rng.between(512, 8192) as u32 } else { 0 };
    let descriptors = rng.between(1, 12) as usize;
    let credits = rng.between(4, 16) as u32;
    // Enough for a first channel of everybody, not always for the others.
    let recv_buffers = (rng.between(5, 12) * u64::from(credits + 1)) as usize;
    let config = TargetConfig {
        port_id: TARGET,
        requests: (recv_buffers + rng.below(20) as usize) * target.cores(),
        recv_buffers,
        policy: TargetPolicy { credits, max_table_entries: 64, ..TargetPolicy::default() },
        reads_out: rng.between(1, 8) as u16,
        max_rdma: 4096 << rng.below(3),
        chunk: 4096 << rng.below(3),
        probe_after: 2 * SECONDS,
        ..TargetConfig::default()
    };
    let host_config = HostConfig {
        initiator: TARGET,
        target: TARGET,
        addr: target.addr(1),
        channels: 1,
        immediate,
        descriptors,
        timeout: rng.between(100 * MILLIS, 2 * SECONDS)
            + if weather == Weather::Resets { SECONDS } else { 0 },
        impatient: match weather {
            Weather::Calm | Weather::Resets => Odds::NEVER,
            _ => Odds::one_in(rng.between(5, 100) as u32),
        },
        native_cm: rng.chance(1, 2) && w.net().carrier() == Carrier::Messages,
        tries: 200,
        resets: Resets::new(weather == Weather::Resets),
    };
    let tas = rng.chance(1, 2);
    let scene = Scene::new(&target, stores, loads, rng.between(5, 80));
    let play = Rc::new(Srp { scene, config, tas, host_config, time: w.time() });
    play.serve()?;
    let mut hosts = Vec::new();
    for i in 0..rng.between(1, 3) {
        let node = w.node(&format!("host{i}"));
        play.start_host(&node, i, &mut rng)?;
        hosts.push(node);
    }
    if weather == Weather::Resets {
        for _ in 0..rng.between(1, 6) {
            let (me, mut fork) = (play.clone(), rng.fork());
            w.after(rng.below(500 * MILLIS), move |_| me.reset(&mut fork));
        }
    } else if weather != Weather::Calm {
        let deaths = rng.chance(1, 3);
        play.storm(&w, &mut rng, &hosts, deaths);
        play.scene.sit_out(&w);
    }
    play.scene.play_out(&w)?;
    let mut sum = crate::srp::Figures::default();
    for c in play.scene.clients.borrow().iter() {
        let f = c.host.figures();
        sum.answered += f.answered;
        sum.aborted += f.aborted;
        sum.lost += f.lost;
        sum.attentions += f.attentions;
        sum.logins += f.logins;
        sum.functions += f.functions;
    }
    play.close(&w)?;
    let mut figures = play.scene.figures();
    figures.extend([
        ("commands answered", sum.answered),
        ("aborted", sum.aborted),
        ("lost with their channel", sum.lost),
        ("unit attentions", sum.attentions),
        ("logins", sum.logins),
        ("task management functions", sum.functions),
    ]);
    Ok(Pass { trace: w.trace_hash(), figures })
}
