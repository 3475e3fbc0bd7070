//! S0, figure 7: latency of one request at a time by its size.

use super::page::{Page, Section, Table};
use super::runner::Runner;
use super::s0_sizes::sizes;
use super::target::Medium;
use super::{Scenario, ScenarioError};
use crate::job::Rw;
use crate::plot::{Axis, Chart, Scale, Series};
use crate::units;
use serde_json::json;

pub(super) const FIG7: Scenario =
    Scenario { name: "s0-fig7", title: "S0 fig. 7: latency of serial requests by size", run };

const VOLUME: u64 = 256 << 20;

fn run(r: &Runner<'_>) -> Result<Page, ScenarioError> {
    let cores = r.cores.first(1);
    let target = r.target(Medium::Ram, 1, VOLUME, &cores)?;
    r.fill(&target, 0, VOLUME)?;
    let way = r.way(&cores);
    let head = [
        "size",
        "read mean us",
        "read p50 us",
        "read p99 us",
        "write mean us",
        "write p50 us",
        "write p99 us",
    ];
    let mut table = Table::new(&head);
    let mut lines = [Vec::new(), Vec::new()];
    let mut data = Vec::new();
    for bs in sizes() {
        let mut row = vec![units::size(u64::from(bs))];
        let mut point = json!({ "bs": bs });
        for (rw, line) in [Rw::RandRead, Rw::RandWrite].into_iter().zip(&mut lines) {
            let j = r.median(&target, &r.job(rw, bs, 1, VOLUME), &way)?;
            let h = j.total().latency;
            let us =
                [h.mean(), h.percentile(50.0) as f64, h.percentile(99.0) as f64].map(|n| n / 1e3);
            row.extend(us.map(units::three));
            line.push((f64::from(bs), us[0]));
            point[rw.name()] = json!({ "mean_us": us[0], "p50_us": us[1], "p99_us": us[2] });
        }
        table.row(row);
        data.push(point);
    }
    let [read, write] = lines;
    let points = data.len() as u64 * 2;
    let chart = Chart {
        title: "Latency of one request at a time".into(),
        x: Axis::new("request size (bytes)", Scale::Bytes),
        y: Axis::new("mean latency (microseconds)", Scale::Decades),
        series: vec![Series::new("read", read), Series::new("write", write)],
    };
    Ok(Page {
        intro: "S0 shows the latency of a single client that issues requests serially; small reads took about 30 us over \
                InfiniBand adapters. Here both sides share one machine, and RDMA is iWARP in user space over TCP loopback."
            .into(),
        method: format!(
            "{}; one request at a time at random addresses of a volume of {} in memory, written before.",
            cores.text(),
            units::size(VOLUME)
        ),
        sections: vec![
            Section::Figure(String::new(), "Latency by request size".into(), vec![chart]),
            Section::Table(table),
        ],
        data: json!(data),
        passed: points,
        failed: 0,
    })
}
