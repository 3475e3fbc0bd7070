//! Waiting for what is done about the devices of a protected pool, in the background of the daemon.

use super::super::progress::{Progress, Step};
use std::time::Duration;
use weir_control::client::Client;
use weir_control::live::{PoolDeviceLive, PoolLive};
use weir_control::model::{DeviceAction, DeviceUse, PoolInfo};
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

/// What was asked for and is not so, when nothing is under way: somebody has stopped it, or something else was in its way.
fn lacks(p: &PoolLive, asked: &DeviceAction) -> Option<String> {
    let left = |number: u16| {
        let d = p.devices.iter().find(|d| d.number == number)?;
        (d.slabs > 0).then(|| format!("device {number} still holds data"))
    };
    let behind = |d: &PoolDeviceLive| format!("device {} is `{}`", d.number, d.state);
    match asked {
        DeviceAction::Drain { number } => left(*number),
        DeviceAction::Put { r#as: DeviceUse::Replace(number), .. } => left(*number),
        DeviceAction::Put { r#as: DeviceUse::Back, device, .. } => {
            let is_it = |d: &&PoolDeviceLive| d.path.is_some() && d.path == device.path;
            p.devices.iter().find(is_it).filter(|d| d.state != "in-sync").map(behind)
        }
        DeviceAction::Resync => p.devices.iter().find(|d| d.state == "out").map(behind),
        _ => None,
    }
}

/// Waits until nothing is under way, and gives how the pool stands then.
///
/// # Errors
/// What was `asked` for is not done, and is not being done either.
pub(super) async fn settled(
    client: &Client,
    name: &str,
    asked: &DeviceAction,
    json: bool,
) -> Result<PoolInfo> {
    let undone = |why: &str| {
        Error::new(
            Code::PoolDegraded,
            format!("not everything is done about the devices of pool `{name}`"),
        )
        .because(why)
    };
    let mut progress = Progress::new(name, json);
    let mut quiet = 0;
    loop {
        let pool = client.pool(name).await?;
        let Some(live) = &pool.live else {
            return Err(Error::new(Code::NotReady, format!("pool `{name}` is not up"))
                .hint("`weir status` says why"));
        };
        if live.state == "suspended" && live.work.is_none() {
            let why = live.reason.as_deref().unwrap_or_default();
            return Err(undone(&format!("the pool is suspended: {why}"))
                .hint(format!("see to its devices, then `weir pool resume {name}`")));
        }
        quiet = if is_under_way(live) { 0 } else { quiet + 1 };
        if let Some(step) = step(live) {
            progress.show(step);
        }
        if quiet >= QUIET {
            if let Some(why) = &live.trouble {
                return Err(undone(why).hint(
                    "it is tried again by itself; `weir pool show` tells how the devices stand",
                ));
            }
            return match lacks(live, asked) {
                None => Ok(pool),
                Some(why) => {
                    Err(undone(&format!("{why}, and nothing is done about that any more"))
                        .hint("somebody may have cancelled it; `weir events` says so"))
                }
            };
        }
        tokio::time::sleep(ASK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_control::live::{Pace, PoolWorkLive};

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

    #[test]
    fn what_somebody_has_cancelled_is_not_done() {
        let mut p = PoolLive::default();
        let device = PoolDeviceLive { number: 1, slabs: 3, ..PoolDeviceLive::default() };
        p.devices = vec![PoolDeviceLive { state: "in-sync".into(), ..device }];
        let drain = DeviceAction::Drain { number: 1 };
        assert!(!is_under_way(&p) && lacks(&p, &drain).is_some());
        assert_eq!(lacks(&p, &DeviceAction::Resync), None);
        p.devices[0].state = "out".into();
        assert!(lacks(&p, &DeviceAction::Resync).is_some());
        p.devices[0].slabs = 0;
        assert_eq!(lacks(&p, &drain), None);
    }
}
