//! S1 fig. 5: more and more threads that write 4 KiB at random addresses.

use super::{VARIANTS, VOLUME, Via, all, method, target};
use crate::job::{JobSpec, Rw};
use crate::plot::{Axis, Chart, Scale, Series};
use crate::scenario::page::{Page, Section, Table};
use crate::scenario::runner::Runner;
use crate::scenario::{Scenario, ScenarioError};
use crate::units;
use serde_json::json;

pub(in crate::scenario) const FIG5: Scenario =
    Scenario { name: "brp-fig5", title: "S1 fig. 5: 4 KiB random writes by 1 to 64 threads", run };

const THREADS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

fn run(r: &Runner<'_>) -> Result<Page, ScenarioError> {
    let t = target(r)?;
    let mut ways = vec![Via::Srp];
    ways.extend(VARIANTS.map(Via::Brp));
    ways.push(Via::Local);
    let head: Vec<&str> = std::iter::once("threads").chain(ways.iter().map(|w| w.name())).collect();
    let mut table = Table::new(&head);
    let mut lines = vec![Vec::new(); ways.len()];
    let mut data = Vec::new();
    for threads in THREADS {
        // One I/O at a time each, as direct I/O of a thread is.
        let spec = JobSpec { numjobs: threads, ..r.job(Rw::RandWrite, 4096, 1, VOLUME) };
        let p = all(r, &t, &spec, &ways)?;
        let mut row = vec![threads.to_string()];
        row.extend(p.iter().map(|p| units::si(p.iops)));
        table.row(row);
        for (line, p) in lines.iter_mut().zip(&p) {
            line.push((f64::from(threads), p.iops));
        }
        let rates: serde_json::Map<String, serde_json::Value> =
            ways.iter().zip(&p).map(|(w, p)| (w.name().to_owned(), json!(p.iops))).collect();
        data.push(json!({ "threads": threads, "iops": rates }));
    }
    // Local I/O is a copy in memory: on its scale all others would be one line.
    let drawn = ways.iter().zip(lines).filter(|(w, _)| **w != Via::Local);
    let chart = Chart {
        title: "4 KiB random writes (local I/O is in the table)".into(),
        x: Axis::new("threads, one I/O at a time each", Scale::Bytes),
        y: Axis::new("I/Os per second", Scale::Linear),
        series: drawn.map(|(w, l)| Series::new(w.name(), l)).collect(),
    };
    let figure =
        Section::Figure(String::new(), "4 KiB random writes by threads".into(), vec![chart]);
    let passed = data.len() as u64;
    Ok(Page {
        intro: "S1 raises the number of threads that write 4 KiB at random addresses, direct, from 1 to 64: SRP and BRP-1 (no SCSI \
                layer) saturate at 16, BRP-2 (and parallel) goes on, BRP-3T (and always merged) wins when there are many and loses \
                when there are few, BRP-3 takes the better of both by a threshold. Here a thread is a task with one I/O at a time, and \
                *auto* learns when merging pays ([brp-merge](brp-merge.md) judges it). What is waited for differs: S1's device took \
                12 us, here a volume in memory on one core takes less than one, so running commands in parallel brings \
                nothing but what the messages cost counts the more."
            .into(),
        method: method(r, "4 KiB random writes")
            + " All threads of the load share its core. *local* is the same kind of volume in the load's own process: a copy in memory.",
        sections: vec![figure, Section::Table(table)],
        data: json!(data),
        frame: None,
        passed,
        failed: 0,
    })
}
