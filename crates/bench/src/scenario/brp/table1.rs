//! S1 table 1: what a SEND takes by its size, and what several take that could be one.

use crate::bare::{Ends, request_response};
use crate::histogram::Histogram;
use crate::plot::{Axis, Chart, Scale, Series};
use crate::scenario::page::{Page, Section, Table};
use crate::scenario::runner::Runner;
use crate::scenario::{Scenario, ScenarioError};
use crate::send::{Exchange, ping_pong};
use serde_json::json;

pub(in crate::scenario) const TABLE1: Scenario =
    Scenario { name: "brp-table1", title: "S1 table 1: latency of an RDMA SEND by its size", run };

/// S1's sizes, and on.
const SIZES: [usize; 10] = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768];
/// S1's typical latencies of the first sizes, microseconds.
const S1: [f64; 5] = [4.73, 4.91, 5.28, 6.56, 8.32];
/// Messages of 64 bytes in a row, against one of as many bytes.
const BURSTS: [u32; 5] = [1, 4, 8, 16, 32];
const SMALL: usize = 64;

/// Minimum, 99.9th percentile and median, one way, microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Times {
    min: f64,
    high: f64,
    typical: f64,
}

/// The round with the median of the medians.
fn median(mut all: Vec<Times>) -> Option<Times> {
    all.sort_by(|a, b| a.typical.total_cmp(&b.typical));
    all.get(all.len() / 2).copied()
}

fn times(h: &Histogram) -> Times {
    let us = |ns: u64| ns as f64 / 2e3;
    Times { min: us(h.min()), high: us(h.percentile(99.9)), typical: us(h.percentile(50.0)) }
}

fn ends(r: &Runner<'_>) -> Ends {
    let cores = r.cores.first(1);
    Ends { far: cores.target.first().copied(), near: cores.load.first().copied() }
}

fn send(r: &Runner<'_>, bytes: usize, burst: u32) -> Result<Times, ScenarioError> {
    let x = Exchange { bytes, burst, time: r.setup.runtime };
    let h = ping_pong(ends(r), x).map_err(|e| ScenarioError::Io(e.to_string()))?;
    match h.count() {
        0 => Err(ScenarioError::Io("no message came back; use a longer --runtime".into())),
        _ => Ok(times(&h)),
    }
}

fn bare(r: &Runner<'_>, bytes: usize) -> Result<Times, ScenarioError> {
    request_response(ends(r), bytes, bytes, 1, None, r.setup.runtime)
        .map(|b| times(&b.latency))
        .map_err(|e| ScenarioError::System("the bare TCP loop".into(), e))
}

/// Measures both in turn, as often as set: the median of each.
fn both(
    r: &Runner<'_>,
    a: impl Fn() -> Result<Times, ScenarioError>,
    b: impl Fn() -> Result<Times, ScenarioError>,
) -> Result<(Times, Times), ScenarioError> {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for _ in 0..r.setup.repeat.max(1) {
        first.push(a()?);
        second.push(b()?);
    }
    let none = || ScenarioError::Io("nothing was measured".into());
    Ok((median(first).ok_or_else(none)?, median(second).ok_or_else(none)?))
}

fn run(r: &Runner<'_>) -> Result<Page, ScenarioError> {
    let head = ["bytes", "min us", "99.9 % us", "typical us", "bare TCP us", "S1 typical us"];
    let mut table = Table::new(&head);
    let (mut data, mut sends, mut loops) = (Vec::new(), Vec::new(), Vec::new());
    for (i, bytes) in SIZES.into_iter().enumerate() {
        let (t, b) = both(r, || send(r, bytes, 1), || bare(r, bytes))?;
        r.say(&format!("  {bytes} bytes: {:.2} us, bare {:.2} us", t.typical, b.typical));
        let s1 = S1.get(i).map_or("-".to_owned(), |v| format!("{v:.2}"));
        let mut row = vec![bytes.to_string()];
        row.extend([t.min, t.high, t.typical, b.typical].map(|v| format!("{v:.2}")));
        row.push(s1);
        table.row(row);
        sends.push((bytes as f64, t.typical));
        loops.push((bytes as f64, b.typical));
        data.push(
            json!({ "bytes": bytes, "min_us": t.min, "p99_9_us": t.high, "typical_us": t.typical,
            "bare_us": b.typical }),
        );
    }
    let head = ["messages of 64 bytes", "in a row us", "one of as many bytes us", "one / in a row"];
    let mut merged = Table::new(&head);
    let mut bursts = Vec::new();
    for n in BURSTS {
        let (many, one) = both(r, || send(r, SMALL, n), || send(r, SMALL * n as usize, 1))?;
        merged.row(vec![
            n.to_string(),
            format!("{:.2}", many.typical),
            format!("{:.2}", one.typical),
            format!("{:.2}", one.typical / many.typical),
        ]);
        bursts.push(json!({ "messages": n, "in_a_row_us": many.typical, "one_us": one.typical }));
    }
    let passed = (data.len() + bursts.len()) as u64;
    let chart = Chart {
        title: "One SEND, half the time there and back".into(),
        x: Axis::new("message (bytes)", Scale::Bytes),
        y: Axis::new("median (microseconds)", Scale::Linear),
        series: vec![Series::new("SEND", sends), Series::new("bare TCP", loops)],
    };
    let figure =
        Section::Figure(String::new(), "Latency of a SEND by its size".into(), vec![chart]);
    Ok(Page {
        intro: "S1 concludes from its table 1 that one message of 256 bytes is cheaper than four of 64 bytes in a row, which is \
                why commands are merged. The second table puts just that to the test: as many messages of 64 bytes as the row says, \
                sent one behind the other and answered by as many, against one message with all their bytes, answered by one. S1's \
                figures are of InfiniBand between two machines; these are of iWARP in user space over TCP loopback, where SENDs of one \
                turn leave together and so share most of what a message costs already."
            .into(),
        method: format!(
            "A SEND and its answer of the same size, the other end on a core of its own ({}), both ends spinning; latencies are half \
             of the time there and back, as `ib_send_lat` counts. iWARP without MPA's CRC; receives are posted anew for each message. \
             *Bare TCP* is a loop of the same bytes without iWARP. In place of S1's maximum there is the 99.9th percentile: on a \
             shared machine a maximum tells when something else ran. Ways take turns.",
            r.cores.first(1).text()
        ),
        sections: vec![
            figure,
            Section::Table(table),
            Section::Text("## Merged and in a row".into()),
            Section::Table(merged),
        ],
        data: json!({ "sizes": data, "bursts": bursts }),
        frame: None,
        passed,
        failed: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_round_counts() {
        let t = |typical| Times { min: 1.0, high: 9.0, typical };
        assert_eq!(median(vec![t(5.0), t(3.0), t(4.0)]), Some(t(4.0)));
        assert_eq!(median(Vec::new()), None);
        let mut h = Histogram::default();
        (0..100).for_each(|_| h.record(10_000));
        let found = times(&h);
        assert!((found.min - 5.0).abs() < 0.1 && (found.typical - 5.0).abs() < 0.1, "{found:?}");
    }
}
