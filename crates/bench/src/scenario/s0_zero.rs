//! S0, section VI, footnote 2: commands without data against reads.

use super::page::{Page, Section, Table};
use super::runner::Runner;
use super::target::Medium;
use super::{Scenario, ScenarioError};
use crate::job::Rw;
use crate::plot::{Axis, Chart, Scale, Series};
use crate::srp::Sessions;
use crate::units;
use serde_json::json;

pub(super) const ZERO: Scenario = Scenario {
    name: "s0-zero",
    title: "S0: zero-byte commands per second against 4 KiB reads",
    run,
};

const VOLUME: u64 = 256 << 20;
const DEPTHS: [u32; 5] = [1, 4, 16, 32, 64];

fn run(r: &Runner<'_>) -> Result<Page, ScenarioError> {
    let target = r.target(Medium::Ram, 1, VOLUME, &r.cores)?;
    r.fill(&target, 0, VOLUME)?;
    let mut way = r.way(&r.cores);
    way.sessions = Sessions::PerJob;
    let mut table = Table::new(&["requests", "zero-byte /s", "4 KiB reads /s", "ratio"]);
    let (mut zero, mut reads, mut data) = (Vec::new(), Vec::new(), Vec::new());
    for depth in DEPTHS {
        let measure = |rw| {
            let mut spec = r.job(rw, 4096, depth, VOLUME);
            spec.numjobs = 8;
            r.median(&target, &spec, &way).map(|j| j.iops())
        };
        let (z, d) = (measure(Rw::Nop)?, measure(Rw::RandRead)?);
        let x = f64::from(8 * depth);
        table.row(vec![format!("8 x {depth}"), units::si(z), units::si(d), units::three(z / d)]);
        zero.push((x, z));
        reads.push((x, d));
        data.push(json!({ "hosts": 8, "iodepth": depth, "zero_iops": z, "read_iops": d }));
    }
    let points = data.len() as u64 * 2;
    let chart = Chart {
        title: "Commands per second, 8 initiators".into(),
        x: Axis::new("requests in flight", Scale::Decades),
        y: Axis::new("commands per second", Scale::Linear),
        series: vec![Series::new("TEST UNIT READY", zero), Series::new("READ of 4 KiB", reads)],
    };
    Ok(Page {
        intro: "S0 reports more than 200 000 zero-byte requests per second where reads peaked at 144 000, a ratio of 1.4: \
                what the protocol costs without its data phase. Here the zero-byte command is TEST UNIT READY."
            .into(),
        method: format!(
            "{}; 8 initiator ports with a session each; reads at random addresses of a volume of {} in memory, written before.",
            r.cores.text(),
            units::size(VOLUME)
        ),
        sections: vec![
            Section::Figure(String::new(), "Zero-byte commands and reads".into(), vec![chart]),
            Section::Table(table),
        ],
        data: json!(data),
        passed: points,
        failed: 0,
    })
}
