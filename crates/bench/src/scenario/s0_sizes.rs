//! S0, figures 5 and 6: throughput and rate by request size, 8 hosts with 16 requests each.

use super::page::{Page, Section, Table};
use super::runner::Runner;
use super::target::Medium;
use super::{Scenario, ScenarioError};
use crate::engine::JobResult;
use crate::job::Rw;
use crate::plot::{Axis, Chart, Scale, Series};
use crate::srp::Sessions;
use crate::units;
use serde_json::json;

pub(super) const FIG5: Scenario = Scenario {
    name: "s0-fig5",
    title: "S0 fig. 5: throughput by request size",
    run: |r| run(r, Show::Throughput),
};

pub(super) const FIG6: Scenario = Scenario {
    name: "s0-fig6",
    title: "S0 fig. 6: I/O rate by request size",
    run: |r| run(r, Show::Rate),
};

const HOSTS: u32 = 8;
const REQUESTS: u32 = 16;
const VOLUME: u64 = 256 << 20;

#[derive(Clone, Copy, PartialEq)]
enum Show {
    Throughput,
    Rate,
}

/// 512 bytes to 4 MiB.
pub(super) fn sizes() -> impl Iterator<Item = u32> {
    (9..=22).map(|n| 1 << n)
}

fn run(r: &Runner<'_>, show: Show) -> Result<Page, ScenarioError> {
    let target = r.target(Medium::Ram, 1, VOLUME, &r.cores)?;
    r.fill(&target, 0, VOLUME)?;
    let mut way = r.way(&r.cores);
    way.sessions = Sessions::PerJob;
    let mut table = Table::new(&["size", "read MB/s", "write MB/s", "read IOPS", "write IOPS"]);
    let (mut read, mut write, mut data) = (Vec::new(), Vec::new(), Vec::new());
    for bs in sizes() {
        let measure = |rw| -> Result<JobResult, ScenarioError> {
            let mut spec = r.job(rw, bs, REQUESTS, VOLUME);
            spec.numjobs = HOSTS;
            r.median(&target, &spec, &way)
        };
        let (a, b) = (measure(Rw::RandRead)?, measure(Rw::RandWrite)?);
        let mb = |j: &JobResult| j.bandwidth() / 1e6;
        table.row(vec![
            units::size(u64::from(bs)),
            units::three(mb(&a)),
            units::three(mb(&b)),
            units::si(a.iops()),
            units::si(b.iops()),
        ]);
        let y = |j: &JobResult| if show == Show::Throughput { mb(j) } else { j.iops() };
        read.push((f64::from(bs), y(&a)));
        write.push((f64::from(bs), y(&b)));
        data.push(json!({
            "bs": bs, "read_iops": a.iops(), "write_iops": b.iops(),
            "read_bw_bytes": a.bandwidth(), "write_bw_bytes": b.bandwidth(),
        }));
    }
    let points = data.len() as u64 * 2;
    let (axis, what) = match show {
        Show::Throughput => ("MB/s", "Throughput"),
        Show::Rate => ("I/Os per second", "I/O rate"),
    };
    let chart = Chart {
        title: format!("{what}, {HOSTS} initiators x {REQUESTS} requests"),
        x: Axis::new("request size (bytes)", Scale::Bytes),
        y: Axis::new(axis, Scale::Decades),
        series: vec![Series::new("read", read), Series::new("write", write)],
    };
    Ok(Page {
        intro: format!(
            "S0 measures a storage virtualizer with eight hosts that keep {REQUESTS} requests each in flight, reads and \
             writes of 512 bytes to 4 MiB that are served from its cache. It peaked at about 144 000 reads per second \
             (two nodes, two InfiniBand adapters each of 2008). Here {HOSTS} initiator ports with a session each do the same \
             to one node with a RAM volume; initiators and target share one machine and its loopback interface."
        ),
        method: format!(
            "{}; random addresses in a volume of {} in memory, written before; RDMA by iWARP in user space over TCP \
             loopback, without MPA CRC.",
            r.cores.text(),
            units::size(VOLUME)
        ),
        sections: vec![
            Section::Figure(String::new(), format!("{what} by request size"), vec![chart]),
            Section::Table(table),
        ],
        data: json!(data),
        passed: points,
        failed: 0,
    })
}
