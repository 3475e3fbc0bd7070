//! What the node is doing now.

use super::door::Door;
use super::local::{Local, on};
use super::node::{Node, RunningTarget};
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::sync::PoisonError;
use std::time::{Duration, Instant};
use weir_block::{Graph, HOSTS, NodeSpec, Op, Rates, Snapshot};
use weir_control::events::EventLog;
use weir_control::live::{
    CensusLive, CompressionLive, DeduplicationLive, GraphLive, GraphNodeLive, IoStats, Latency,
    LiveStatus, NexusLive, PoolLive, PortLive, ReactorLive, VolumeLive,
};
use weir_control::model::InitiatorPort;
use weir_control::{Code, Error, Result};
use weir_target_core::{ChannelLine, RequestsLine};

/// How long a reactor may take to tell of itself, though nothing is seen that holds it up.
const ANSWER: Duration = Duration::from_secs(10);
/// The same for one that was held up a moment ago.
const GLANCE: Duration = Duration::from_millis(20);
/// How often is looked meanwhile whether something is.
const AGAIN: Duration = Duration::from_millis(200);

/// The reading before, for shares of time.
#[derive(Default)]
pub(crate) struct Last {
    at: Option<Instant>,
    /// Nanoseconds on the processor and (turns, busy turns), by reactor.
    reactors: Vec<(u64, u64, u64)>,
    volumes: BTreeMap<String, Snapshot>,
    /// Pools by reactor: those of one that is held up are as they were.
    pools: Vec<Vec<PoolLive>>,
    /// The reading before that one.
    earlier: Option<(Instant, BTreeMap<String, Snapshot>)>,
}

impl Last {
    /// What layers had counted a second or two ago.
    fn before(&self) -> Option<(Instant, &BTreeMap<String, Snapshot>)> {
        let last = self.at.map(|t| (t, &self.volumes));
        self.earlier.as_ref().map(|(t, s)| (*t, s)).or(last)
    }
}

/// What one reactor says of itself.
#[derive(Default)]
struct Reading {
    held: Option<String>,
    core: u16,
    on_cpu: u64,
    turns: u64,
    busy_turns: u64,
    parked: u64,
    pools: Vec<weir_mem::Census>,
    used: BTreeMap<String, u64>,
    compression: BTreeMap<String, CompressionLive>,
    deduplication: BTreeMap<String, DeduplicationLive>,
    stores: Vec<PoolLive>,
    ports: Vec<(String, Vec<ChannelLine>, Option<RequestsLine>)>,
}

fn on_cpu(local: &Local) -> u64 {
    // The first number of schedstat is nanoseconds on the processor.
    let text = std::fs::read_to_string(&local.schedstat).unwrap_or_default();
    text.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// A layer as it is, without figures.
fn node(graph: &Graph, n: &NodeSpec) -> GraphNodeLive {
    let geometry = graph.node(&n.id).map(|v| v.geometry());
    GraphNodeLive {
        id: n.id.clone(),
        kind: n.kind.clone(),
        params: n.params.iter().map(|(k, v)| (k.clone(), v.to_string())).collect(),
        children: n.children.clone(),
        size: geometry.map_or(0, |g| g.len),
        block_size: geometry.map_or(0, |g| g.block_size),
        ..GraphNodeLive::default()
    }
}

fn io_stats(now: &Snapshot, before: Option<&Snapshot>, op: Op) -> IoStats {
    let total = now.of(op);
    let recent = before.map_or_else(|| now.clone(), |b| now.since(b));
    let h = &recent.of(op).latency;
    let q = |p: f64| h.quantile(p);
    let mean = recent.of(op).nanos.checked_div(h.count());
    let latency = mean.map_or_else(Latency::default, |mean_ns| Latency {
        mean_ns,
        p50_ns: q(0.5),
        p95_ns: q(0.95),
        p99_ns: q(0.99),
        p999_ns: q(0.999),
        max_ns: q(1.0),
    });
    IoStats {
        ops: total.ops,
        bytes: total.bytes,
        errors: total.errors,
        latency,
        ..IoStats::default()
    }
}

/// The answer, or what holds it up. What answers is not held up any more, though that may be seen late.
async fn answer_or<R>(
    answer: impl Future<Output = R>,
    held: impl Fn() -> Option<String>,
) -> std::result::Result<R, String> {
    let mut answer = pin!(answer);
    loop {
        let held = held();
        let patience = if held.is_some() { GLANCE } else { AGAIN };
        match (tokio::time::timeout(patience, answer.as_mut()).await, held) {
            (Ok(answer), _) => return Ok(answer),
            (Err(_), Some(held)) => return Err(held),
            (Err(_), None) => {}
        }
    }
}

impl Node {
    async fn read(&self, h: &weir_reactor::Handle) -> Result<Reading> {
        let targets: Vec<_> = {
            let t = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
            t.iter().map(|(n, t)| (n.clone(), t.target.clone())).collect()
        };
        on(h, move |local: Rc<Local>| {
            Box::pin(async move {
                let f = local.figures();
                let ports = targets
                    .into_iter()
                    .map(|(n, t)| {
                        let requests = t.requests();
                        (n, t.channels(), requests)
                    })
                    .collect();
                Ok(Reading {
                    held: None,
                    core: local.core.get().unwrap_or(0),
                    on_cpu: on_cpu(&local),
                    turns: f.turns,
                    busy_turns: f.busy_turns,
                    parked: f.parked,
                    pools: local.pool.census(),
                    used: local.stores.borrow().values().flat_map(|p| p.used()).collect(),
                    compression: {
                        let all = local.stores.borrow();
                        all.values().flat_map(|p| p.compression()).collect()
                    },
                    deduplication: {
                        let all = local.stores.borrow();
                        all.values().flat_map(|p| p.deduplication()).collect()
                    },
                    stores: local.stores.borrow().iter().map(|(n, p)| p.live(n)).collect(),
                    ports,
                })
            })
        })
        .await
    }

    /// What a reactor says of itself, or what holds it up: that is no reason to tell nothing of the others.
    async fn read_or_held(&self, index: usize, h: &weir_reactor::Handle) -> Result<Reading> {
        let begun = Instant::now();
        let held = || {
            self.watchdog.held(index).or_else(|| {
                let late = begun.elapsed() >= ANSWER;
                late.then(|| format!("reactor {index} does not answer"))
            })
        };
        match answer_or(self.read(h), held).await {
            Ok(reading) => reading,
            Err(held) => Ok(Reading { held: Some(held), ..Reading::default() }),
        }
    }

    /// The device graph of an open volume.
    pub(crate) async fn graph_of(&self, volume: &str) -> Result<GraphLive> {
        let Some(h) = self.handles().into_iter().next() else { return Ok(GraphLive::default()) };
        let name = volume.to_owned();
        let mut live = on(&h, move |local: Rc<Local>| {
            Box::pin(async move {
                let graphs = local.graphs.borrow();
                let Some(graph) = graphs.get(&name) else {
                    let e = Error::new(Code::NotReady, format!("volume {name} is not open"));
                    return Err(e.hint("`weir status` says why"));
                };
                let spec = graph.spec();
                let mut nodes: Vec<_> = spec.nodes.iter().map(|n| node(graph, n)).collect();
                nodes.sort_by_key(|n| n.id != spec.top);
                drop(graphs);
                Ok(GraphLive { volume: name, nodes })
            })
        })
        .await?;
        let now = self.shared.meters().snapshot();
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let before = last.before();
        for (i, n) in live.nodes.iter_mut().enumerate() {
            // The top, which comes first, is counted under a name of its own.
            let of_top = (i == 0).then(|| format!("{volume}/{HOSTS}"));
            let key = of_top.unwrap_or_else(|| format!("{volume}/{}", n.id));
            let Some(s) = now.get(&key) else { continue };
            let seconds = before.map_or(0.0, |(t, _)| t.elapsed().as_secs_f64());
            let earlier = before.and_then(|(_, all)| all.get(&key));
            let rates = Rates::new(&earlier.map_or_else(|| s.clone(), |e| s.since(e)), seconds);
            for (op, io) in [(Op::Read, &mut n.read), (Op::Write, &mut n.write)] {
                *io = io_stats(s, earlier, op);
                (io.iops, io.bytes_per_second) = (rates.of(op).iops, rates.of(op).bytes);
            }
            n.in_flight = s.in_flight;
        }
        Ok(live)
    }

    pub(crate) async fn live(&self) -> Result<LiveStatus> {
        self.ask_sizes();
        // Before those of channels that are there, so that none counts twice.
        let gone: Vec<_> = {
            let targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
            targets
                .values()
                .map(|t| (t.target.clone(), t.target.counts().read().commands))
                .collect()
        };
        let mut readings = Vec::new();
        for (i, h) in self.handles().iter().enumerate() {
            readings.push(self.read_or_held(i, h).await?);
        }
        let snapshots = self.shared.meters().snapshot();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let elapsed = last.at.map_or(0.0, |t| now.duration_since(t).as_secs_f64());
        let initiator = Some(self.remotes.initiator().to_string());
        let mut live = LiveStatus { initiator, ..LiveStatus::default() };
        for (key, s) in &snapshots {
            let Some(name) = key.strip_suffix(HOSTS).and_then(|k| k.strip_suffix('/')) else {
                continue;
            };
            let before = last.volumes.get(key);
            live.volumes.push(VolumeLive {
                name: name.to_owned(),
                read: io_stats(s, before, Op::Read),
                write: io_stats(s, before, Op::Write),
                in_flight: s.in_flight,
                used_bytes: readings.iter().find_map(|r| r.used.get(name).copied()),
                compression: readings.iter().find_map(|r| r.compression.get(name).copied()),
                deduplication: readings.iter().find_map(|r| r.deduplication.get(name).copied()),
            });
        }
        for (i, r) in readings.iter().enumerate() {
            let (cpu0, turns0, busy0) = last.reactors.get(i).copied().unwrap_or_default();
            let share = |ns: u64| if elapsed > 0.0 { ns as f64 / elapsed / 1e7 } else { 0.0 };
            let awake = share(r.on_cpu.saturating_sub(cpu0)).min(100.0);
            let turns = r.turns.saturating_sub(turns0).max(1);
            let useful = r.busy_turns.saturating_sub(busy0) as f64 / turns as f64;
            live.reactors.push(ReactorLive {
                core: r.core,
                busy_percent: awake * useful,
                awake_percent: awake,
                polls: r.turns,
                useful_polls: r.busy_turns,
                sleeps: r.parked,
                held: r.held.clone(),
            });
            for c in &r.pools {
                live.census.push(CensusLive {
                    name: format!("reactor{i}/buffers-{}", c.size),
                    total: c.total as u64,
                    free: c.free as u64,
                    least_free: c.free as u64,
                    waiting: c.waiting as u64,
                    item_bytes: c.size as u64,
                });
            }
            for (name, _, census) in &r.ports {
                if let Some(c) = census {
                    live.census.push(CensusLive {
                        name: format!("{name}/requests-{i}"),
                        total: c.total as u64,
                        free: (c.total - c.busy) as u64,
                        least_free: (c.total - c.busy) as u64,
                        waiting: c.waiting as u64,
                        item_bytes: 0,
                    });
                }
            }
        }
        {
            let targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
            for (name, t) in targets.iter() {
                let (broken, news) = t.target.broken();
                if let Some(h) = self.hooks.get() {
                    tell(&h.events, name, t, news);
                }
                live.ports.push(PortLive { broken, ..port(name, t, &gone, &readings) });
            }
        }
        {
            let stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
            last.pools.resize_with(readings.len(), Vec::new);
            for (r, known) in readings.iter_mut().zip(&mut last.pools) {
                if r.held.is_none() {
                    *known = std::mem::take(&mut r.stores);
                }
            }
            for mut p in last.pools.iter().flatten().cloned() {
                p.reactor = stores.reactor_of(&p.name);
                live.pools.push(p);
            }
        }
        live.short = self.sizes.short(&live.pools);
        // Readings closer together than this would make shares of time meaningless.
        if elapsed == 0.0 || elapsed > 0.5 {
            let before = std::mem::take(&mut last.volumes);
            last.earlier = last.at.map(|t| (t, before));
            last.at = Some(now);
            last.reactors = readings.iter().map(|r| (r.on_cpu, r.turns, r.busy_turns)).collect();
            last.volumes = snapshots;
        }
        Ok(live)
    }
}

/// Publishes what has happened at a port, however often somebody asks for it.
fn tell(events: &EventLog, name: &str, t: &RunningTarget, broken: Vec<String>) {
    let (object, counts, now) = (format!("target/{name}"), t.target.counts(), Instant::now());
    for text in broken {
        events.happened("error", &object, &text);
    }
    for text in counts.take_refusals(now) {
        events.happened("login.refused", &object, &text);
    }
    for c in counts.take_comings(now) {
        let kind = if c.is_here { "login" } else { "logout" };
        let host = format!("host/{}", c.host);
        let object = if c.host.is_empty() { &object } else { &host };
        events.happened(kind, object, &format!("{} (target port `{name}`)", c.text));
    }
}

/// An initiator port as hosts are given it.
fn shown(key: &[u8]) -> String {
    let hex = || key.iter().map(|b| format!("{b:02x}")).collect();
    InitiatorPort::from_key(key).map_or_else(hex, |p| p.to_string())
}

/// What is told of a port; `gone` are commands of channels that are gone, of each port.
fn port(name: &str, t: &RunningTarget, gone: &[(Door, u64)], readings: &[Reading]) -> PortLive {
    let channels: Vec<_> = readings
        .iter()
        .flat_map(|r| r.ports.iter().filter(|(n, ..)| n == name).flat_map(|(_, c, _)| c))
        .collect();
    let nexuses = t
        .target
        .nexuses()
        .into_iter()
        .map(|n| {
            let own: Vec<_> = channels.iter().filter(|c| c.initiator == n.initiator).collect();
            let first = own.first();
            NexusLive {
                host: first.map(|c| c.host.clone()).filter(|h| !h.is_empty()),
                initiator: shown(&n.initiator),
                peer: first.map_or(n.address, |c| c.peer.clone()),
                channels: n.channels as u64,
                in_flight: own.iter().map(|c| u64::from(c.busy)).sum(),
            }
        })
        .collect();
    let counts = t.target.counts();
    let gone = gone.iter().find(|(d, _)| std::ptr::eq(d.counts(), counts)).map_or(0, |g| g.1);
    let counted = counts.read();
    PortLive {
        name: name.to_owned(),
        listening: t.listening.iter().map(ToString::to_string).collect(),
        channels: channels.len() as u64,
        nexuses,
        logins: counted.logins,
        rejects: counted.refused,
        commands: counts.commands(gone, channels.iter().map(|c| c.commands).sum()),
        task_management: counted.tasks,
        broken: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_answers_is_not_held_up() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let held = || Some("a file".to_owned());
            assert_eq!(answer_or(async { 7 }, held).await, Ok(7));
            let never = std::future::pending::<u32>();
            assert_eq!(answer_or(never, held).await, Err("a file".to_owned()));
            let late = async {
                tokio::time::sleep(AGAIN + GLANCE).await;
                8
            };
            assert_eq!(answer_or(late, || None).await, Ok(8));
        });
    }
}
