//! Waiting for what is done about the devices of a protected pool, in the background of the daemon.

use super::super::progress::{Progress, Step};
use std::time::Duration;
use weir_control::client::Client;
use weir_control::live::PoolLive;
use weir_control::model::PoolInfo;
use weir_control::{Code, Error, Result};

/// How often it is asked for.
const ASK: Duration = Duration::from_millis(200);
/// Looks in a row that find nothing under way: one thing begins a moment after the other.
const QUIET: u32 = 5;

/// Whether something is still to be done about its devices.
fn is_under_way(p: &PoolLive) -> bool {
    let unfinished = p.devices.iter().any(|d| d.state == "syncing" || d.draining && d.slabs > 0);
    p.work.is_some() || unfinished && p.trouble.is_none()
}

fn step(p: &PoolLive) -> Option<Step> {
    let w = p.work.as_ref()?;
    Some(Step {
        doing: format!("{} of device {},", w.work, w.device),
        done: w.done,
        total: Some(w.total),
        rate: Some(w.pace.bytes_per_second),
        left: w.pace.seconds_left,
        note: p.trouble.clone(),
    })
}

/// Waits until nothing is under way, and gives how the pool stands then.
pub(super) async fn settled(client: &Client, name: &str, json: bool) -> Result<PoolInfo> {
    let mut progress = Progress::new(name, json);
    let mut quiet = 0;
    loop {
        let pool = client.pool(name).await?;
        let Some(live) = &pool.live else {
            return Err(Error::new(Code::NotReady, format!("pool `{name}` is not up"))
                .hint("`weir status` says why"));
        };
        quiet = if is_under_way(live) { 0 } else { quiet + 1 };
        if let Some(step) = step(live) {
            progress.show(step);
        }
        if quiet >= QUIET {
            return match &live.trouble {
                None => Ok(pool),
                Some(why) => Err(Error::new(
                    Code::PoolDegraded,
                    format!("not everything is done about the devices of pool `{name}`"),
                )
                .because(why)
                .hint("it is tried again by itself; `weir pool show` tells how the devices stand")),
            };
        }
        tokio::time::sleep(ASK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_control::live::{Pace, PoolDeviceLive, PoolWorkLive};

    #[test]
    fn it_is_over_when_nothing_is_left_or_cannot_be_done() {
        let mut p = PoolLive::default();
        assert!(!is_under_way(&p) && step(&p).is_none());
        p.devices = vec![PoolDeviceLive { state: "syncing".into(), ..PoolDeviceLive::default() }];
        assert!(is_under_way(&p), "it begins in a moment");
        p.trouble = Some("no room".into());
        assert!(!is_under_way(&p));
        let pace = Pace { bytes_per_second: 7, seconds_left: Some(1) };
        p.work = Some(PoolWorkLive { work: "resync".into(), device: 3, done: 1, total: 8, pace });
        assert!(is_under_way(&p));
        let s = step(&p).expect("it");
        assert_eq!((s.doing.as_str(), s.rate, s.left), ("resync of device 3,", Some(7), Some(1)));
        p.work = None;
        p.trouble = None;
        p.devices[0] = PoolDeviceLive { draining: true, slabs: 1, ..PoolDeviceLive::default() };
        assert!(is_under_way(&p));
        p.devices[0].slabs = 0;
        assert!(!is_under_way(&p));
    }
}
