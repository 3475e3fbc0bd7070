//! S3: one queue for all cores against a queue per core, with one channel and with several.

use super::page::{Page, Section, Table};
use super::runner::{Runner, Way};
use super::target::Medium;
use super::{Scenario, ScenarioError};
use crate::job::Rw;
use crate::plot::{Axis, Chart, Scale, Series};
use crate::srp::QueueMode;
use crate::units;
use serde_json::json;

pub(super) const LATENCY: Scenario = Scenario {
    name: "s3-latency",
    title: "S3: latency of single queue and multi-queue",
    run: latency,
};

pub(super) const IOPS: Scenario = Scenario {
    name: "s3-iops",
    title: "S3: IOPS against the number of LUNs, single queue and multi-queue",
    run: iops,
};

const VOLUME: u64 = 1 << 30;
const MAX_LUNS: u16 = 8;
const DEPTH: u32 = 16;

/// What S3 compares.
fn ways(r: &Runner<'_>) -> Vec<(String, Way)> {
    let way = |queue_mode, channels| Way { queue_mode, channels, ..r.way(&r.cores) };
    let n = r.cores.load.len().min(8);
    let mut all = vec![
        ("single queue".to_owned(), way(QueueMode::Single, 1)),
        ("multi-queue, one channel".to_owned(), way(QueueMode::Multi, 1)),
    ];
    if n > 1 {
        all.push((format!("multi-queue, {n} channels"), way(QueueMode::Multi, n)));
    }
    all
}

/// What a page must say about a machine that is too small for its question.
fn caveat(r: &Runner<'_>) -> Option<Section> {
    (r.cores.load.len() < 2).then(|| {
        Section::Text(
            "**The initiator had one core only, so its queues were never used by two cores at once and nothing \
             could contend: these figures show what each way costs one core, not how it scales, and there was \
             no second channel.** Run it again on a machine with four or more cores."
                .into(),
        )
    })
}

fn latency(r: &Runner<'_>) -> Result<Page, ScenarioError> {
    let target = r.target(Medium::Null, 1, VOLUME, &r.cores)?;
    let mut table = Table::new(&["queues", "size", "mean us", "p50 us", "p99 us"]);
    let (mut series, mut data) = (Vec::new(), Vec::new());
    for (name, way) in ways(r) {
        let mut line = Vec::new();
        for bs in [512, 4096, 16 << 10, 64 << 10] {
            let j = r.median(&target, &r.job(Rw::RandRead, bs, 1, VOLUME), &way)?;
            let h = j.total().latency;
            let us =
                [h.mean(), h.percentile(50.0) as f64, h.percentile(99.0) as f64].map(|n| n / 1e3);
            let mut row = vec![name.clone(), units::size(u64::from(bs))];
            row.extend(us.map(units::three));
            table.row(row);
            line.push((f64::from(bs), us[0]));
            data.push(json!({ "queues": name, "bs": bs, "mean_us": us[0], "p50_us": us[1], "p99_us": us[2] }));
        }
        series.push(Series::new(&name, line));
    }
    let points = data.len() as u64;
    let chart = Chart {
        title: "Latency of one read at a time, null volume".into(),
        x: Axis::new("request size (bytes)", Scale::Bytes),
        y: Axis::new("mean latency (microseconds)", Scale::Linear),
        series,
    };
    let figure = Section::Figure(String::new(), "Latency by queue mode".into(), vec![chart]);
    Ok(Page {
        intro: "S3 finds that scsi-mq lowers latency significantly. Here the same initiator sends commands in three ways: \
                through one queue for all cores behind one lock, through a queue per core with one RDMA channel, and \
                through a queue per core with a channel each."
            .into(),
        method: format!("{}; one read at a time from a null volume.", r.cores.text()),
        sections: caveat(r).into_iter().chain([figure, Section::Table(table)]).collect(),
        data: json!(data),
        passed: points,
        failed: 0,
    })
}

fn iops(r: &Runner<'_>) -> Result<Page, ScenarioError> {
    let target = r.target(Medium::Null, MAX_LUNS, VOLUME, &r.cores)?;
    let ways = ways(r);
    let head: Vec<&str> =
        std::iter::once("LUNs").chain(ways.iter().map(|w| w.0.as_str())).collect();
    let mut table = Table::new(&head);
    let mut lines = vec![Vec::new(); ways.len()];
    let mut data = Vec::new();
    for luns in 1..=MAX_LUNS {
        let mut row = vec![luns.to_string()];
        for ((name, way), line) in ways.iter().zip(&mut lines) {
            let mut spec = r.job(Rw::RandMixed, 4096, DEPTH, VOLUME);
            // One I/O thread per LUN.
            spec.numjobs = u32::from(luns);
            let way = Way { luns: (0..luns).collect(), ..way.clone() };
            let j = r.median(&target, &spec, &way)?;
            row.push(units::si(j.iops()));
            line.push((f64::from(luns), j.iops()));
            data.push(json!({ "luns": luns, "queues": name, "iops": j.iops() }));
        }
        table.row(row);
    }
    let points = data.len() as u64;
    let series = ways.iter().zip(lines).map(|((name, _), l)| Series::new(name, l)).collect();
    let chart = Chart {
        title: format!(
            "4 KiB, 50 % reads and 50 % writes, {DEPTH} in flight per LUN, null volumes"
        ),
        x: Axis::new("number of LUNs", Scale::Count),
        y: Axis::new("I/Os per second", Scale::Linear),
        series,
    };
    let figure = Section::Figure(String::new(), "IOPS by number of LUNs".into(), vec![chart]);
    Ok(Page {
        intro: "S3 (12 initiator cores, one I/O thread per LUN, a null I/O target with 4 cores) finds that with one queue \
                IOPS fall as LUNs are added, for the lock is contended; that a queue per core over one channel is better up \
                to two LUNs; and that with several channels IOPS grow almost linearly and more than double. Here a job per \
                LUN is spread over the initiator's cores."
            .into(),
        method: format!("{}; random addresses of null volumes of {}.", r.cores.text(), units::size(VOLUME)),
        sections: caveat(r).into_iter().chain([figure, Section::Table(table)]).collect(),
        data: json!(data),
        passed: points,
        failed: 0,
    })
}
