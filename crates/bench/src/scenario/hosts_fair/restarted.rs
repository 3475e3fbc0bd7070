//! A target that is stopped and started anew under the load of many hosts.

use super::{CHANNELS, Found, HOSTS, Host, LOOKS, STEP, channels, target};
use crate::plot::{Axis, Chart, Scale, Series};
use crate::scenario::ScenarioError;
use crate::scenario::runner::Runner;
use crate::scenario::target::Medium;
use crate::units;
use serde_json::json;
use std::time::Duration;

/// How long it may take to stop.
const STOP: Duration = Duration::from_secs(3);
/// How long a host may have to wait.
const PAUSE: Duration = Duration::from_secs(2);
/// How long hosts work before that.
const BEGINS: Duration = Duration::from_secs(2);

pub(super) fn run(r: &Runner<'_>, found: &mut Found) -> Result<(), ScenarioError> {
    let mut t = target(r, Medium::File)?;
    let load = format!(
        "--rw randrw --bs 4k --iodepth 2 --size 64m --channels {CHANNELS} --time-based --runtime 20s"
    );
    let hosts =
        (0..HOSTS).map(|n| Host::start(r, &t, 200 + n, &load)).collect::<Result<Vec<_>, _>>()?;
    for _ in 0..LOOKS {
        if channels(r, &t)? >= u64::from(HOSTS * CHANNELS) {
            break;
        }
        std::thread::sleep(STEP);
    }
    std::thread::sleep(BEGINS);
    let stop = t.stop()?;
    t.start_again(r.setup)?;
    let (mut pauses, mut why) = (Vec::new(), None);
    for h in hosts {
        match h.ended() {
            Ok(v) => pauses.extend(v["clat"]["max"].as_u64()),
            Err(e) => why = Some(e.to_string()),
        }
    }
    if let Some(why) = why {
        r.say(&format!("  {why}"));
    }
    let all = format!("{HOSTS} hosts with {CHANNELS} channels each");
    let is = units::nanos(stop.as_nanos() as f64);
    found.row(r, &format!("stop under the load of {all}"), is, "<= 3 s", stop <= STOP);
    let well = pauses.len() as u32;
    let what = format!("of {HOSTS} such hosts, those that saw no error over the stop and a start");
    found.row(r, &what, well.to_string(), &format!("= {HOSTS}"), well == HOSTS);
    pauses.sort_unstable();
    let longest = pauses.last().copied().unwrap_or_default();
    let points = pauses.iter().zip(1u32..);
    let points = points.map(|(p, n)| (f64::from(n), *p as f64 / 1e6)).collect();
    let chart = Chart {
        title: format!("Longest pause of {HOSTS} hosts"),
        x: Axis::new("hosts that paused no longer", Scale::Linear),
        y: Axis::new("pause in milliseconds", Scale::Linear),
        series: vec![Series::new("target stopped and started anew", points)],
    };
    // Where no host came through there is nothing to draw.
    found.charts.extend(Some(chart).filter(|_| longest > 0));
    let is = units::nanos(longest as f64);
    let met = longest > 0 && longest <= PAUSE.as_nanos() as u64;
    found.row(r, "longest pause of a host over both", is, "<= 2 s", met);
    found.data.push(json!({ "stop_ns": stop.as_nanos() as u64, "pauses_ns": pauses }));
    Ok(())
}
