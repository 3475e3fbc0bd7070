//! Random traffic between peers, on a network from kind to hostile.

use crate::{Pass, Run, Wrong};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{MILLIS, Prng, SECONDS};
use weir_fabric::{FabricError, Provider};
use weir_mem::{BufPool, PoolConfig};
use weir_reactor::sleep;
use weir_sim::check::fabric::{Config, Mode, Outcome, Peer};
use weir_sim::{Cut, NetConfig, Node, Options, World};

/// Connections at once from each connecting node.
const AT_ONCE: usize = 3;

/// How unkind the network is.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Weather {
    /// Nothing fails: orderly connections must complete.
    Calm,
    /// Anything may fail.
    Hostile,
}

fn peer(node: &Node, config: Config, connections: usize) -> Result<(Rc<Peer>, BufPool), Wrong> {
    let pool = PoolConfig { classes: vec![(4096, config.buffers(connections))] };
    let pool = BufPool::new(&pool).map_err(|e| Wrong(e.to_string()))?;
    let provider: Rc<dyn Provider> = node.provider();
    let made = node.enter(|| Peer::new(provider, pool.clone(), config));
    Ok((made.map_err(|e| Wrong(e.to_string()))?, pool))
}

/// Faults from outside at random times.
fn storm(w: &World, rng: &mut Prng, nodes: &[Node]) {
    for _ in 0..rng.below(6) {
        let at = rng.below(400 * MILLIS);
        let pick = |rng: &mut Prng| nodes[rng.below(nodes.len() as u64) as usize].clone();
        let (a, b) = (pick(rng), pick(rng));
        match rng.below(5) {
            0 => w.after(at, |w| {
                w.net().cut_any(Cut::Any);
            }),
            1 => w.after(at, move |w| {
                w.net().cut_between(a.number(), b.number(), Cut::Any);
            }),
            2 => {
                let (for_long, one_way) = (rng.below(3 * SECONDS), rng.chance(1, 2));
                w.after(at, move |w| {
                    w.net().partition_one_way(a.number(), b.number());
                    if !one_way {
                        w.net().partition_one_way(b.number(), a.number());
                    }
                    w.after(for_long, move |w| w.net().heal(a.number(), b.number()));
                });
            }
            3 => {
                let extra = rng.below(20 * MILLIS);
                w.after(at, move |w| w.net().spike(100 * MILLIS, extra));
            }
            _ => {
                let duration = rng.below(2 * SECONDS);
                w.after(at, move |_| a.pause(duration));
            }
        }
    }
}

/// What all clients together have to show.
#[derive(Default)]
struct Results {
    running: Cell<u32>,
    complete: Cell<u64>,
    broken: Cell<u64>,
    refused: Cell<u64>,
    wrong: RefCell<Option<String>>,
}

impl Results {
    fn take(&self, weather: Weather, mode: Mode, ended: Result<Outcome, FabricError>) {
        let more = |c: &Cell<u64>| c.set(c.get() + 1);
        let calm = weather == Weather::Calm;
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

    fn fail(&self, what: String) {
        self.wrong.borrow_mut().get_or_insert(what);
    }
}

async fn client(peer: Rc<Peer>, addr: String, seed: u64, weather: Weather, results: Rc<Results>) {
    let mut rng = Prng::new(seed);
    for _ in 0..rng.between(1, 3) {
        sleep(rng.below(50 * MILLIS)).await;
        let mode = Mode::draw(&mut rng);
        let ended = peer.clone().connect(&addr, rng.next_u64(), mode).await;
        results.take(weather, mode, ended);
    }
    results.running.set(results.running.get() - 1);
}

pub(super) fn run(run: &Run) -> Result<Pass, Wrong> {
    let mut rng = Prng::new(run.seed ^ 0xfab);
    let weather = if rng.chance(1, 3) { Weather::Calm } else { Weather::Hostile };
    let net = match weather {
        Weather::Calm => NetConfig::default(),
        Weather::Hostile => NetConfig::hostile(&mut rng),
    };
    let w = run.world(Options { net, ..Options::default() });
    let config = Config {
        message: rng.between(128, 1024) as usize,
        receives: rng.between(1, 12) as usize,
        ops: rng.between(1, 40) as u32,
        offers: rng.between(1, 4) as u32,
        reads: rng.between(1, 6) as u16,
    };
    let server = w.node("server");
    let clients: Vec<Node> =
        (0..rng.between(1, 2)).map(|i| w.node(&format!("client{i}"))).collect();
    // Aborted connections linger on the server, so there is room for all.
    let (server_peer, server_pool) = peer(&server, config, 3 * AT_ONCE * clients.len())?;
    let listener = server.enter(|| server.provider().listen("0.0.0.0:1"));
    let listener = listener.map_err(|e| Wrong(e.to_string()))?;
    server.spawn(server_peer.clone().serve(listener));
    let results = Rc::new(Results::default());
    let mut peers = vec![(server.clone(), server_peer, server_pool)];
    for node in &clients {
        let (p, pool) = peer(node, config, AT_ONCE)?;
        for _ in 0..AT_ONCE {
            results.running.set(results.running.get() + 1);
            let (p, addr, seed, r) = (p.clone(), server.addr(1), rng.next_u64(), results.clone());
            node.spawn(async move { client(p, addr, seed, weather, r).await });
        }
        peers.push((node.clone(), p, pool));
    }
    if weather == Weather::Hostile {
        let all: Vec<Node> = peers.iter().map(|p| p.0.clone()).collect();
        storm(&w, &mut rng, &all);
        w.after(5 * SECONDS, |w| w.net().calm());
    }
    w.run_until(300 * SECONDS, || results.running.get() == 0 || results.wrong.borrow().is_some())?;
    // The other sides of broken connections learn it by and by; then nothing may be left.
    w.run_for(60 * SECONDS);
    if let Some(wrong) = results.wrong.take() {
        return Err(Wrong(wrong));
    }
    if w.net().connections() > 0 {
        return Err(Wrong(format!("connections are left\n{}", w.dump())));
    }
    let mut pass = Pass::default();
    let (mut messages, mut reads, mut writes) = (0, 0, 0);
    for (node, peer, pool) in peers {
        let p = peer.clone();
        w.run(&node, SECONDS, async move { p.stop().await })?;
        if !pool.is_whole() {
            return Err(Wrong(format!("buffers leaked on {}: {:?}", node.name(), pool.census())));
        }
        let f = peer.figures();
        (messages, reads, writes) = (messages + f.messages, reads + f.reads, writes + f.writes);
    }
    pass.figures = vec![
        ("messages", messages),
        ("RDMA reads", reads),
        ("RDMA writes", writes),
        ("complete connections", results.complete.get()),
        ("broken connections", results.broken.get()),
        ("refused connections", results.refused.get()),
    ];
    pass.trace = w.trace_hash();
    Ok(pass)
}
