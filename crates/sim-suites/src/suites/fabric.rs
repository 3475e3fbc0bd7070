//! Random traffic between peers, on a network from kind to hostile.

use crate::suites::scene::partition;
use crate::{Pass, Run, Wrong};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{MILLIS, Prng, SECONDS};
use weir_fabric::{FabricError, Provider};
use weir_mem::{BufPool, PoolConfig};
use weir_reactor::sleep;
use weir_sim::check::fabric::{Config, Figures, Mode, Outcome, Peer};
use weir_sim::{Cut, NetConfig, Node, Options, Planted, World};

/// Connections at once from each connecting node.
const AT_ONCE: usize = 3;
/// Connecting nodes, at most.
const CLIENTS: u64 = 2;

/// How unkind the network is.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Weather {
    /// Nothing fails: orderly connections must complete.
    Calm,
    /// Anything may fail.
    Hostile,
}

/// A peer in one life of its node.
struct Site {
    node: Node,
    life: u32,
    peer: Rc<Peer>,
    pool: BufPool,
}

/// A client at work, which ends with its node's life.
struct Client {
    node: Node,
    life: u32,
    done: Rc<Cell<bool>>,
}

/// What happens and what came of it.
struct Play {
    weather: Weather,
    config: Config,
    sites: RefCell<Vec<Site>>,
    clients: RefCell<Vec<Client>>,
    complete: Cell<u64>,
    broken: Cell<u64>,
    refused: Cell<u64>,
    kills: Cell<u64>,
    wrong: RefCell<Option<String>>,
}

impl Play {
    fn fail(&self, what: String) {
        self.wrong.borrow_mut().get_or_insert(what);
    }

    fn is_over(&self) -> bool {
        let ended = |c: &Client| c.done.get() || !c.node.is_alive() || c.node.lives() != c.life;
        self.wrong.borrow().is_some() || self.clients.borrow().iter().all(ended)
    }

    /// A peer on a node that has just started.
    fn start(&self, node: &Node, connections: usize) -> Result<Rc<Peer>, Wrong> {
        let pool = PoolConfig { classes: vec![(4096, self.config.buffers(connections))] };
        let pool = BufPool::new(&pool).map_err(|e| Wrong(e.to_string()))?;
        let provider: Rc<dyn Provider> = node.provider();
        let peer = node.enter(|| Peer::new(provider, pool.clone(), self.config));
        let peer = peer.map_err(|e| Wrong(e.to_string()))?;
        let site = Site { node: node.clone(), life: node.lives(), peer: peer.clone(), pool };
        self.sites.borrow_mut().push(site);
        Ok(peer)
    }

    fn start_server(&self, node: &Node) -> Result<(), Wrong> {
        // Aborted connections linger, so there is room for more than are in use.
        let peer = self.start(node, 3 * AT_ONCE * CLIENTS as usize)?;
        let listener = node.enter(|| node.provider().listen("0.0.0.0:1"));
        node.spawn(peer.serve(listener.map_err(|e| Wrong(e.to_string()))?));
        Ok(())
    }

    fn start_clients(self: &Rc<Self>, node: &Node, to: &str, rng: &mut Prng) -> Result<(), Wrong> {
        let peer = self.start(node, AT_ONCE)?;
        for _ in 0..AT_ONCE {
            let done = Rc::new(Cell::new(false));
            let client = Client { node: node.clone(), life: node.lives(), done: done.clone() };
            self.clients.borrow_mut().push(client);
            let (me, p, addr, rng) = (self.clone(), peer.clone(), to.to_string(), rng.fork());
            node.spawn(async move {
                me.client(p, &addr, rng).await;
                done.set(true);
            });
        }
        Ok(())
    }

    async fn client(&self, peer: Rc<Peer>, addr: &str, mut rng: Prng) {
        for _ in 0..rng.between(1, 3) {
            sleep(rng.below(50 * MILLIS)).await;
            let mode = Mode::draw(&mut rng);
            let ended = peer.clone().connect(addr, rng.next_u64(), mode).await;
            self.take(mode, ended);
        }
    }

    fn take(&self, mode: Mode, ended: Result<Outcome, FabricError>) {
        let more = |c: &Cell<u64>| c.set(c.get() + 1);
        let calm = self.weather == Weather::Calm;
        match (mode, ended) {
            (Mode::Reject, Ok(o)) => self.fail(format!("a rejected connection was made: {o:?}")),
            (Mode::Orderly, Ok(Outcome::Broken(why))) if calm => {
                self.fail(format!("an orderly connection broke: {why}"));
            }
            (m, Err(e)) if calm && m != Mode::Reject && m != Mode::AcceptorAborts => {
                self.fail(format!("a connection for {m:?} was not made: {e}"));
            }
            (_, Ok(Outcome::Complete)) => more(&self.complete),
            (_, Ok(Outcome::Broken(_))) => more(&self.broken),
            (_, Err(_)) => more(&self.refused),
        }
    }

    /// Faults from outside at random times.
    fn storm(self: &Rc<Self>, w: &World, rng: &mut Prng, nodes: &[Node]) {
        for _ in 0..rng.below(6) {
            let at = rng.below(400 * MILLIS);
            let pick = |rng: &mut Prng| nodes[rng.below(nodes.len() as u64) as usize].clone();
            let (a, b) = (pick(rng), pick(rng));
            match rng.below(6) {
                0 => w.after(at, |w| {
                    w.net().cut_any(Cut::Any);
                }),
                1 => w.after(at, move |w| {
                    w.net().cut_between(a.number(), b.number(), Cut::Any);
                }),
                2 => partition(w, rng, at, (a.number(), b.number()), 3 * SECONDS),
                3 => {
                    let extra = rng.below(20 * MILLIS);
                    w.after(at, move |w| w.net().spike(100 * MILLIS, extra));
                }
                4 => {
                    let duration = rng.below(2 * SECONDS);
                    w.after(at, move |_| a.pause(duration));
                }
                _ => self.death(w, rng, at, a, &nodes[0]),
            }
        }
    }

    /// A node dies and comes back.
    fn death(self: &Rc<Self>, w: &World, rng: &mut Prng, at: u64, node: Node, server: &Node) {
        let (silent, back, mut rng) = (rng.chance(1, 2), rng.below(SECONDS), rng.fork());
        let (me, is_server, to) = (self.clone(), node.number() == server.number(), server.addr(1));
        w.after(at, move |w| {
            if !node.is_alive() {
                return;
            }
            match silent {
                true => node.power_off(),
                false => node.kill(),
            }
            me.kills.set(me.kills.get() + 1);
            w.after(back, move |_| {
                node.restart();
                let started = match is_server {
                    true => me.start_server(&node),
                    false => me.start_clients(&node, &to, &mut rng),
                };
                if let Err(Wrong(e)) = started {
                    me.fail(e);
                }
            });
        });
    }

    /// Ends all peers and counts their buffers.
    fn close(&self, w: &World) -> Result<Figures, Wrong> {
        let mut sum = Figures::default();
        for s in self.sites.take() {
            let f = s.peer.figures();
            sum.messages += f.messages;
            sum.reads += f.reads;
            sum.writes += f.writes;
            if s.node.is_alive() && s.node.lives() == s.life {
                let p = s.peer.clone();
                w.run(&s.node, SECONDS, async move { p.stop().await })?;
            } else {
                s.peer.abandon();
            }
            drop(s.peer);
            if !s.pool.is_whole() {
                let (name, census) = (s.node.name(), s.pool.census());
                return Err(Wrong(format!("buffers leaked on {name}: {census:?}")));
            }
        }
        Ok(sum)
    }
}

pub(super) fn run(run: &Run) -> Result<Pass, Wrong> {
    let mut rng = Prng::new(run.seed ^ 0xfab);
    let weather = if rng.chance(1, 3) { Weather::Calm } else { Weather::Hostile };
    traffic(run, weather, None)
}

/// A provider with a bug, on a kind network: the checker must find it in some seeds.
pub(super) fn planted(run: &Run) -> Result<Pass, Wrong> {
    let bug = Planted::ALL[(run.seed % Planted::ALL.len() as u64) as usize];
    traffic(run, Weather::Calm, Some(bug))
}

fn traffic(run: &Run, weather: Weather, planted: Option<Planted>) -> Result<Pass, Wrong> {
    let mut rng = Prng::new(run.seed ^ 0xfabc);
    let net = match weather {
        Weather::Calm => NetConfig::default(),
        Weather::Hostile => NetConfig::hostile(&mut rng),
    };
    let net = NetConfig { planted, ..net };
    let w = run.world(Options { net, ..Options::default() });
    let config = Config {
        message: rng.between(128, 1024) as usize,
        receives: rng.between(1, 12) as usize,
        ops: rng.between(1, 40) as u32,
        offers: rng.between(1, 4) as u32,
        reads: rng.between(1, 6) as u16,
    };
    let play = Rc::new(Play {
        weather,
        config,
        sites: RefCell::default(),
        clients: RefCell::default(),
        complete: Cell::default(),
        broken: Cell::default(),
        refused: Cell::default(),
        kills: Cell::default(),
        wrong: RefCell::default(),
    });
    let server = w.node("server");
    play.start_server(&server)?;
    let mut nodes = vec![server.clone()];
    for i in 0..rng.between(1, CLIENTS) {
        let node = w.node(&format!("client{i}"));
        play.start_clients(&node, &server.addr(1), &mut rng)?;
        nodes.push(node);
    }
    if weather == Weather::Hostile {
        play.storm(&w, &mut rng, &nodes);
        w.run_for(SECONDS);
        w.after(4 * SECONDS, |w| w.net().calm());
    }
    w.run_until(300 * SECONDS, || play.is_over())?;
    // The other sides of broken connections learn it by and by; then nothing may be left.
    w.run_for(60 * SECONDS);
    if let Some(wrong) = play.wrong.take() {
        return Err(Wrong(wrong));
    }
    if w.net().connections() > 0 {
        return Err(Wrong(format!("connections are left\n{}", w.dump())));
    }
    let f = play.close(&w)?;
    let figures = vec![
        ("messages", f.messages),
        ("RDMA reads", f.reads),
        ("RDMA writes", f.writes),
        ("complete connections", play.complete.get()),
        ("broken connections", play.broken.get()),
        ("refused connections", play.refused.get()),
        ("kills", play.kills.get()),
    ];
    Ok(Pass { trace: w.trace_hash(), figures })
}
