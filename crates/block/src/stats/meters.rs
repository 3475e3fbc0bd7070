//! The counters of all layers and cores of a process, and rates out of them.

use super::{Counters, Op, Snapshot};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use weir_base::{Nanos, SECONDS};

/// Counters of one key: of each reactor, by its number.
type PerReactor = Vec<(u32, Arc<Counters>)>;

/// The counters of all layers and cores of a process, by `graph/node`.
#[derive(Default)]
pub struct Meters {
    table: Mutex<BTreeMap<String, PerReactor>>,
}

impl Meters {
    fn table(&self) -> MutexGuard<'_, BTreeMap<String, PerReactor>> {
        self.table.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The counters of `key` on the present reactor: the same ones when a layer is built again.
    pub fn counters(&self, key: &str) -> Arc<Counters> {
        let reactor = weir_reactor::try_current_id();
        let mut table = self.table();
        let cores = table.entry(key.to_owned()).or_default();
        let known = cores.iter().find(|(id, _)| Some(*id) == reactor);
        match known {
            Some((_, c)) => c.clone(),
            None => {
                let c = Arc::new(Counters::default());
                // Outside a reactor nobody can say who writes, so nobody shares.
                cores.push((reactor.unwrap_or(u32::MAX), c.clone()));
                c
            }
        }
    }

    /// Figures of every key, summed over the cores.
    pub fn snapshot(&self) -> BTreeMap<String, Snapshot> {
        let table = self.table();
        let sum = |cores: &PerReactor| {
            let mut s = Snapshot::default();
            cores.iter().for_each(|(_, c)| s.add(&c.snapshot()));
            s
        };
        table.iter().map(|(k, cores)| (k.clone(), sum(cores))).collect()
    }

    /// Forgets one key.
    pub fn forget_key(&self, key: &str) {
        self.table().remove(key);
    }

    /// Forgets the keys below `graph`.
    pub fn forget(&self, graph: &str) {
        self.table().retain(|k, _| !below(k, graph));
    }
}

/// True for `graph/...`.
pub(crate) fn below(key: &str, graph: &str) -> bool {
    key.strip_prefix(graph).is_some_and(|rest| rest.starts_with('/'))
}

/// What an operation of a layer did in one period.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rate {
    /// I/Os per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes: f64,
    /// Failures per second.
    pub errors: f64,
    /// Mean latency in nanoseconds; 0 when all completed at once.
    pub mean: u64,
    /// 99th percentile of latency in nanoseconds, to 12.5 %; 0 when 99 % completed at once.
    pub p99: u64,
}

/// What a layer did in one period.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rates {
    of: [Rate; Op::ALL.len()],
    /// I/Os below the layer at the end of the period.
    pub in_flight: u64,
}

impl Rates {
    /// One operation's.
    pub fn of(&self, op: Op) -> Rate {
        self.of[op as usize]
    }

    /// Rates of what happened in a period of `seconds`.
    pub fn new(period: &Snapshot, seconds: f64) -> Rates {
        let mut r = Rates { in_flight: period.in_flight, ..Rates::default() };
        if seconds <= 0.0 {
            return r;
        }
        for op in Op::ALL {
            let f = period.of(op);
            // The ones that completed at once are the quickest: rank among all, look among the slow.
            let slow = f.ops.saturating_sub(f.at_once);
            let beyond = f.ops as f64 * 0.01;
            let p99 = match slow {
                0 => 0,
                s if (s as f64) < beyond => 0,
                s => f.latency.quantile(1.0 - beyond / s as f64),
            };
            r.of[op as usize] = Rate {
                iops: f.ops as f64 / seconds,
                bytes: f.bytes as f64 / seconds,
                errors: f.errors as f64 / seconds,
                mean: f.nanos.checked_div(f.ops).unwrap_or(0),
                p99,
            };
        }
        r
    }
}

/// Turns counters into rates: each sample covers the time since the one before.
#[derive(Default)]
pub struct Watch {
    last: BTreeMap<String, Snapshot>,
    at: Option<Nanos>,
}

impl Watch {
    /// Begins with nothing seen: the first sample has the counts, but no time to divide them by.
    pub fn new() -> Watch {
        Watch::default()
    }

    /// Rates of every key since the sample before, by a clock that shows `now`.
    pub fn sample(&mut self, meters: &Meters, now: Nanos) -> BTreeMap<String, Rates> {
        let next = meters.snapshot();
        let seconds = self.at.map_or(0.0, |t| now.saturating_sub(t) as f64 / SECONDS as f64);
        let none = Snapshot::default();
        let rates = next
            .iter()
            .map(|(k, s)| {
                let period = s.since(self.last.get(k).unwrap_or(&none));
                (k.clone(), Rates::new(&period, seconds))
            })
            .collect();
        self.last = next;
        self.at = Some(now);
        rates
    }
}
