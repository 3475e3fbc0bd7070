//! What a snapshot each minute costs, with the one before it deleted.

use super::page::{Page, Section, Table};
use super::pooled::{alone, store_failed};
use super::runner::Runner;
use super::store::{Backing, Kind, Scene, VOLUME, cost};
use super::{Scenario, ScenarioError};
use crate::job::{JobSpec, Rw};
use crate::units;
use serde_json::json;
use weir_base::{MILLIS, Nanos, SECONDS};
use weir_reactor::{PollMode, clock, sleep, spawn};
use weir_uring::Ring;

pub(super) const MINUTE: Scenario =
    Scenario { name: "store-minute", title: "The store: what a snapshot each minute costs", run };

/// Time of load between two snapshots.
const EVERY: Nanos = 60 * SECONDS;
const MOST_PERCENT: f64 = 1.0;

/// One workload on one backing.
#[derive(Debug)]
struct Found {
    spec: JobSpec,
    /// I/Os of all slices per second of load: without snapshots, with them.
    iops: [f64; 2],
    snapshots: u64,
    /// In percent.
    cost: f64,
    /// The standard error of `cost`, from the slices' own.
    error: f64,
}

/// Standard error of the mean.
fn error(all: &[f64]) -> f64 {
    let n = all.len() as f64;
    let mean = all.iter().sum::<f64>() / n;
    let squares: f64 = all.iter().map(|x| (x - mean).powi(2)).sum();
    if n < 2.0 { f64::INFINITY } else { (squares / (n - 1.0) / n).sqrt() }
}

/// A pool without snapshots and one with take turns, slice by slice: what the machine does meanwhile concerns both alike.
/// In the middle of every `every`-th slice of the second one a snapshot is taken and the one before it deleted.
async fn on(
    backing: Backing,
    ring: Ring,
    specs: Vec<JobSpec>,
    slices: usize,
    every: usize,
    say: fn(&str),
) -> Result<Vec<Found>, ScenarioError> {
    let plain = Scene::new(&backing, &ring, Kind::Sums).await?;
    let with = Scene::new(&backing, &ring, Kind::Snapshots).await?;
    let (mut last, mut named) = (None, 0);
    let mut found = Vec::new();
    for spec in specs {
        let warm = JobSpec { runtime: Some(spec.runtime.unwrap_or(SECONDS)), ..spec.clone() };
        for s in [&plain, &with] {
            s.load(&warm).await?;
        }
        let (mut sums, mut costs, mut snapshots) = ([0.0; 2], Vec::new(), 0);
        for n in 0..slices {
            // Now the one, now the other begins; what a snapshot leaves to do is over before the other's turn.
            let mut rates = [0.0; 2];
            if n % 2 == 0 {
                rates[0] = plain.load(&spec).await?;
            }
            let due = n % every == every / 2;
            let capture = due.then(|| {
                let (pool, volume, old) = (with.pool.clone(), with.volume, last.take());
                let (name, half) = (format!("s{named}"), spec.runtime.unwrap_or(SECONDS) / 2);
                named += 1;
                spawn(async move {
                    sleep(half).await;
                    let new = pool.snapshot(&[(volume, &name)], named).await?;
                    if let Some(old) = old {
                        pool.delete(old).await?;
                    }
                    // Its blocks are given back in the background.
                    while pool.datasets().iter().any(|d| d.deleting) {
                        sleep(MILLIS).await;
                    }
                    Ok(new.first().copied())
                })
            });
            rates[1] = with.load(&spec).await?;
            if let Some(c) = capture {
                let time = spec.runtime.unwrap_or(SECONDS) as f64;
                let over = clock();
                last = c.await.unwrap_or(Ok(None)).map_err(store_failed)?;
                // That counts as time without load.
                rates[1] *= time / (time + (clock() - over) as f64);
                snapshots += 1;
            }
            if n % 2 == 1 {
                rates[0] = plain.load(&spec).await?;
            }
            sums.iter_mut().zip(rates).for_each(|(s, r)| *s += r);
            costs.push(cost(rates[1], rates[0]));
        }
        let iops = sums.map(|s| s / slices as f64);
        let f = Found { spec, iops, snapshots, cost: cost(iops[1], iops[0]), error: error(&costs) };
        let text = iops.map(units::si).join(", ");
        let (name, depth) = (&f.spec.name, f.spec.iodepth);
        say(&format!(
            "  {}, {name} depth {depth}: {text}: {:.2} % ± {:.2}",
            backing.name(),
            f.cost,
            f.error
        ));
        found.push(f);
    }
    for s in [plain, with] {
        s.pool.close().await.map_err(store_failed)?;
    }
    Ok(found)
}

fn run(r: &Runner<'_>) -> Result<Page, ScenarioError> {
    let job = |rw, bs, depth| JobSpec { ramp: 0, ..r.job(rw, bs, depth, VOLUME) };
    let specs = [
        job(Rw::RandRead, 4096, 32),
        job(Rw::RandWrite, 4096, 1),
        job(Rw::RandWrite, 4096, 32),
        job(Rw::Write, 128 << 10, 32),
    ];
    let every = (EVERY / r.setup.runtime.max(1)).max(1) as usize;
    let slices = every * r.setup.repeat.max(1) as usize;
    let mut table = Table::new(&[
        "devices, workload, in flight",
        "without",
        "a snapshot a minute",
        "snapshots",
        "cost %",
        "standard error",
        "goal",
        "met",
    ]);
    let (mut data, mut passed, mut failed) = (Vec::new(), 0, 0);
    let (all, _folders) = Backing::all()?;
    for backing in all {
        let name = backing.name();
        let (specs, say) = (specs.to_vec(), r.setup.say);
        let work = |ring| on(backing, ring, specs, slices, every, say);
        for f in alone(r, PollMode::Busy, work)? {
            let met = f.cost <= MOST_PERCENT;
            *(if met { &mut passed } else { &mut failed }) += 1;
            let mut row = vec![format!("{name}, {}, {}", f.spec.name, f.spec.iodepth)];
            row.extend(f.iops.map(units::si));
            row.push(f.snapshots.to_string());
            row.extend([format!("{:.2}", f.cost), format!("{:.2}", f.error)]);
            row.extend([format!("<= {MOST_PERCENT}"), if met { "yes" } else { "no" }.into()]);
            table.row(row);
            data.push(json!({ "devices": name, "rw": f.spec.rw.name(), "bs": f.spec.bs, "iodepth": f.spec.iodepth,
                "iops": f.iops, "snapshots": f.snapshots, "cost_percent": f.cost, "standard_error": f.error }));
        }
    }
    Ok(Page {
        intro: "S2 reports 2.5 to 5 % for versions. Here a volume has a snapshot taken after each minute of load, and the one of \
                the minute before deleted. [store-overhead](store-overhead.md) has one each second."
            .into(),
        method: format!(
            "Two pools with two copies of everything and a volume of {} that was written before take turns, {} of load each, {slices} times: the \
             one has no snapshots. Rates are of all turns together, those in which a snapshot is made and deleted among them. \
             The standard error is that of the costs of single turns. The load is in the reactor of the pool on one core, no \
             protocol in between; devices as in store-overhead.",
            units::size(VOLUME),
            units::nanos(r.setup.runtime as f64),
        ),
        sections: vec![Section::Table(table)],
        data: json!(data),
        frame: None,
        passed,
        failed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;
    use weir_reactor::Reactor;

    #[test]
    fn snapshots_are_taken_in_the_turns_that_are_due() {
        let spec = JobSpec {
            rw: Rw::RandWrite,
            iodepth: 4,
            runtime: Some(20 * MILLIS),
            time_based: true,
            ramp: 0,
            size: Some(1 << 20),
            ..JobSpec::default()
        };
        let ring = Ring::new().unwrap();
        let reactor = Reactor::new(Rc::new(ring.clone()));
        let work = on(Backing::Memory, ring, vec![spec], 6, 2, |_| ());
        let found = reactor.block_on(PollMode::default(), work).unwrap();
        assert_eq!(found[0].snapshots, 3);
        assert!(found[0].iops.iter().all(|i| *i > 0.0) && found[0].error.is_finite());
    }

    #[test]
    fn the_error_is_that_of_the_mean() {
        assert!((error(&[1.0, 3.0]) - 1.0).abs() < 1e-9);
        assert_eq!(error(&[2.0, 2.0, 2.0]), 0.0);
        assert!(error(&[2.0]).is_infinite());
    }
}
