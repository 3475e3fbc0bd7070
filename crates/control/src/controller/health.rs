//! What is not well with pools: told by `weir status` while it lasts, and by events when it begins and ends.

use super::{Controller, damage, policies};
use crate::descriptors::{self, shortage};
use crate::error::{Code, Error};
use crate::live::{Fault, LiveStatus, PoolDeviceLive, PoolLive, ReactorLive, ShortDevice};
use crate::model::Model;
use crate::units::format_size;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;

/// A pool is nearly full when less than one part in so many of it can be written, …
const NEARLY_FULL: u64 = 20;
/// … and it is not any more when one part in so many can, so that what hovers there is told once.
const ROOM_AGAIN: u64 = 14;

/// A pool is full when not even the longest write of a host fits: this many bytes.
const FULL: u64 = 1 << 20;

/// What is not well, by object and code.
type Faults = BTreeMap<(String, String), String>;

/// What events have told.
#[derive(Debug, Default, Clone)]
pub(super) struct Told {
    faults: Faults,
    /// Devices that are the reason of faults: of the same faults.
    ill: BTreeMap<(String, String), BTreeSet<String>>,
    /// How devices of pools stand: by pool and number.
    devices: BTreeMap<(String, u16), String>,
}

fn key(f: &Fault) -> (String, String) {
    (f.object.clone(), f.code.clone())
}

/// It serves with less protection than it was made for, or not at all.
fn protection(pool: &PoolLive) -> Option<Fault> {
    let hint = match pool.state.as_str() {
        "healthy" => return None,
        "suspended" => {
            format!("it can be read; see to the devices, then `weir pool resume {}`", pool.name)
        }
        _ => format!(
            "`weir pool show {0}` tells which device it is. One that is back: `weir pool attach {0} --device …`; one that is gone for \
             good: `weir pool replace {0} NUMBER --device …`",
            pool.name
        ),
    };
    let why = pool.reason.as_ref().map_or(String::new(), |r| format!(": {r}"));
    Some(Fault {
        object: format!("pool/{}", pool.name),
        code: Code::PoolDegraded.as_str().to_string(),
        text: format!("pool `{}` is {}{why}", pool.name, pool.state),
        hint,
    })
}

/// It runs out of space.
fn space(pool: &PoolLive, told: &Told) -> Option<Fault> {
    let object = format!("pool/{}", pool.name);
    let (full, nearly) = (Code::PoolFull.as_str(), Code::PoolNearlyFull.as_str());
    let known = |code: &str| told.faults.contains_key(&(object.clone(), code.to_string()));
    let part = if known(full) || known(nearly) { ROOM_AGAIN } else { NEARLY_FULL };
    if pool.total == 0 || pool.room >= pool.total / part {
        return None;
    }
    let (code, text) = match pool.room {
        ..FULL => (
            full,
            format!("pool `{}` is full: what hosts write fails if it needs space", pool.name),
        ),
        room => {
            let percent = u128::from(room) * 100 / u128::from(pool.total);
            let text = format!(
                "pool `{}` is nearly full: {room} bytes more can be written, {percent} % of it",
                pool.name
            );
            (nearly, text)
        }
    };
    let hint = format!(
        "add devices with `weir pool add {} --device …`, or delete snapshots and volumes, or discard in hosts (fstrim)",
        pool.name
    );
    Some(Fault { object, code: code.to_string(), text, hint })
}

/// How pools stand.
fn faults(live: &LiveStatus, told: &Told) -> Vec<Fault> {
    let of = |p| {
        let of_damage = damage::fault(p).into_iter().chain(damage::lost(p));
        protection(p).into_iter().chain(space(p, told)).chain(of_damage)
    };
    live.pools.iter().flat_map(of).chain(short(&live.short)).collect()
}

/// Devices, and volumes, that are the reason of faults, where another one is news.
fn ill(live: &LiveStatus) -> BTreeMap<(String, String), BTreeSet<String>> {
    let mut all = BTreeMap::<_, BTreeSet<String>>::new();
    let mut add = |pool: &str, code: Code, device: &str| {
        let key = (format!("pool/{pool}"), code.as_str().to_string());
        all.entry(key).or_default().insert(device.to_owned());
    };
    for p in &live.pools {
        damage::doubtful(p).for_each(|d| add(&p.name, Code::DeviceDoubtful, &d.id));
        p.lost.iter().for_each(|(whose, _)| add(&p.name, Code::DataLost, whose));
    }
    live.short.iter().for_each(|s| add(&s.pool, Code::PoolDamaged, &s.path));
    all
}

/// Devices that have become shorter under their pools.
fn short(devices: &[ShortDevice]) -> Vec<Fault> {
    let mut pools = BTreeMap::<&str, Vec<String>>::new();
    for d in devices {
        let text =
            format!("`{}` has {}, and had {}", d.path, format_size(d.has), format_size(d.had));
        pools.entry(&d.pool).or_default().push(text);
    }
    let fault = |(pool, all): (&str, Vec<String>)| {
        Fault {
        object: format!("pool/{pool}"),
        code: Code::PoolDamaged.as_str().to_string(),
        text: format!("a device of pool `{pool}` was made shorter under it: {}", all.join("; ")),
        hint: "what was behind its end is gone, also when it gets its length back; of a protected pool `weir scrub start` mends \
               what other copies give, or replace the device"
            .into(),
    }
    };
    pools.into_iter().map(fault).collect()
}

/// What became of a device, if that is worth an event. What went wrong is told by a fault.
fn turned(pool: &PoolLive, d: &PoolDeviceLive, before: &str) -> Option<String> {
    let what = match (before, d.state.as_str()) {
        ("spare", "syncing") => {
            "was a spare: it takes the place of one that failed, and is being filled"
        }
        ("spare", "in-sync") => {
            "was a spare: it has taken the place of one that failed, and has everything"
        }
        (_, "syncing") => "is being brought up to date",
        (_, "in-sync") => "has everything again",
        ("syncing", _) => "was being brought up to date, and is not any more",
        _ => return None,
    };
    let path = d.path.as_ref().map_or(String::new(), |p| format!(" ({p})"));
    Some(format!("device {}{path} of pool `{}` {what}", d.number, pool.name))
}

/// What began, became another and ended: kind, object and text of an event each.
fn news(told: &Told, next: &Told) -> Vec<(&'static str, String, String)> {
    let (before, now) = (&told.faults, &next.faults);
    let began = now.iter().filter(|(k, _)| !before.contains_key(*k));
    let began = began.map(|(k, text)| ("fault.began", k, text.clone()));
    let has_more = |k: &(String, String)| {
        let known = told.ill.get(k);
        next.ill.get(k).is_some_and(|all| known.is_none_or(|known| !all.is_subset(known)))
    };
    // Another device, or the same one again. Of space, and of devices that go on as they did, only the figures change.
    let changed = now.iter().filter(|(k, text)| {
        let is_another = k.1 == Code::PoolDegraded.as_str() || has_more(k);
        is_another && before.get(*k).is_some_and(|t| t != *text)
    });
    let changed = changed.map(|(k, text)| ("fault.changed", k, text.clone()));
    let ended = before.iter().filter(|(k, _)| !now.contains_key(*k));
    let ended = ended.map(|(k, text)| ("fault.ended", k, format!("not so any more: {text}")));
    let all = began.chain(changed).chain(ended);
    all.map(|(kind, k, text)| (kind, k.0.clone(), format!("{text} ({})", k.1))).collect()
}

/// What holds reactors up. Of that the data plane publishes events itself.
pub(super) fn reactor_faults(reactors: &[ReactorLive]) -> Vec<Fault> {
    let fault = |(index, r): (usize, &ReactorLive)| {
        Some(Fault {
            object: format!("reactor/{index}"),
            code: Code::IoError.as_str().to_string(),
            text: r.held.clone()?,
            hint:
                "its volumes and ports stand still: see to the file system or device that is named"
                    .into(),
        })
    };
    reactors.iter().enumerate().filter_map(fault).collect()
}

impl Told {
    /// The same as of now.
    fn next(&self, live: &LiveStatus) -> Told {
        let devices = live.pools.iter().flat_map(|p| p.devices.iter().map(move |d| (p, d)));
        Told {
            faults: faults(live, self).iter().map(|f| (key(f), f.text.clone())).collect(),
            ill: ill(live),
            devices: devices.map(|(p, d)| ((p.name.clone(), d.number), d.state.clone())).collect(),
        }
    }
}

impl Controller {
    /// What is not well with the pools now.
    pub(super) fn pool_faults(&self, live: &LiveStatus) -> Vec<Fault> {
        let mut all = faults(live, &self.told.lock().unwrap_or_else(PoisonError::into_inner));
        for p in &live.pools {
            // Of these the pools themselves publish events.
            all.extend(p.overdue.iter().map(|o| policies::fault(&p.name, o)));
        }
        all
    }

    /// What is not well with the process itself.
    pub(super) fn own_faults(&self, model: &Model, live: &LiveStatus) -> Vec<Fault> {
        let short = shortage(model, live.reactors.len() as u64, descriptors::limit());
        let short = short.map(|e| ("descriptors", e));
        let events = self.events.trouble().map(|e| ("events", e));
        let fault = |(object, e): (&str, Error)| Fault {
            object: object.to_string(),
            code: e.code.as_str().to_string(),
            text: e.to_string(),
            hint: e.hint,
        };
        events.into_iter().chain(short).map(fault).collect()
    }

    /// Publishes what began and what ended since the last time.
    pub(super) fn tell_faults(&self, live: &LiveStatus) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let mut now = told.next(live);
        now.faults
            .extend(self.own_faults(&self.model(), live).iter().map(|f| (key(f), f.text.clone())));
        for (kind, object, text) in news(&told, &now) {
            self.events.publish(kind, &object, &text);
        }
        for p in &live.pools {
            for d in &p.devices {
                let before = told.devices.get(&(p.name.clone(), d.number));
                let text = before.filter(|b| **b != d.state).and_then(|b| turned(p, d, b));
                if let Some(text) = text {
                    self.events.publish("pool.device", &format!("pool/{}", p.name), &text);
                }
            }
        }
        *told = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(room: u64, state: &str) -> PoolLive {
        PoolLive {
            name: "p".into(),
            state: state.into(),
            total: 1000 << 20,
            free: (room + 40) << 20,
            room: room << 20,
            ..PoolLive::default()
        }
    }

    fn of(pools: Vec<PoolLive>) -> LiveStatus {
        LiveStatus { pools, ..LiveStatus::default() }
    }

    #[test]
    fn a_device_that_became_shorter_is_a_fault_of_its_pool() {
        let device = |path: &str| ShortDevice {
            pool: "p".into(),
            path: path.into(),
            had: 64 << 20,
            has: 1 << 20,
        };
        let live = LiveStatus { short: vec![device("/a"), device("/b")], ..LiveStatus::default() };
        let all = faults(&live, &Told::default());
        assert_eq!(
            (all.len(), all[0].object.as_str(), all[0].code.as_str()),
            (1, "pool/p", "pool_damaged")
        );
        let text = "a device of pool `p` was made shorter under it: `/a` has 1 MiB, and had 64 MiB; `/b` has 1 MiB, and had 64 MiB";
        assert_eq!(all[0].text, text);
    }

    #[test]
    fn what_becomes_of_devices_is_told() {
        let mut p = pool(900, "healthy");
        p.devices = vec![PoolDeviceLive {
            number: 2,
            path: Some("/c".into()),
            ..PoolDeviceLive::default()
        }];
        let mut step = |from: &str, to: &str| {
            p.devices[0].state = to.into();
            turned(&p, &p.devices[0], from)
        };
        let text = "device 2 (/c) of pool `p` was a spare: it takes the place of one that failed, and is being filled";
        assert_eq!(step("spare", "syncing").as_deref(), Some(text));
        let text = "device 2 (/c) of pool `p` has everything again";
        assert_eq!(step("syncing", "in-sync").as_deref(), Some(text));
        assert_eq!(step("in-sync", "failed"), None);
    }

    #[test]
    fn a_pool_that_runs_out_of_space_is_told_once() {
        let mut told = Told::default();
        let mut step = |room| {
            let live = of(vec![pool(room, "healthy")]);
            let now = faults(&live, &told);
            told = told.next(&live);
            now.first().map(|f| (f.code.clone(), f.text.clone()))
        };
        let code = |f: Option<(String, String)>| f.map(|f| f.0);
        assert_eq!(step(50), None);
        let (c, text) = step(49).unwrap();
        assert!(
            c == "pool_nearly_full" && text.contains("51380224 bytes") && text.contains("4 %"),
            "{text}"
        );
        assert_eq!(code(step(60)).as_deref(), Some("pool_nearly_full"), "it hovers there");
        assert_eq!(code(step(0)).as_deref(), Some("pool_full"));
        assert_eq!(code(step(1)).as_deref(), Some("pool_nearly_full"));
        assert_eq!(step(72), None);
        assert_eq!(step(60), None);
    }

    #[test]
    fn a_pool_that_is_not_well_is_a_fault() {
        let all = faults(
            &of(vec![pool(900, "healthy"), pool(900, "degraded"), pool(0, "suspended")]),
            &Told::default(),
        );
        let codes: Vec<_> = all.iter().map(|f| f.code.as_str()).collect();
        assert_eq!(codes, ["pool_degraded", "pool_degraded", "pool_full"]);
        let hint = &all[0].hint;
        assert!(
            hint.contains("weir pool attach p") && hint.contains("weir pool replace p"),
            "{hint}"
        );
    }

    #[test]
    fn a_fault_that_becomes_another_is_told() {
        let told = |state: &str, reason: &str, room| {
            let p = PoolLive { reason: Some(reason.into()), ..pool(room, state) };
            Told::default().next(&of(vec![p]))
        };
        let well = told("healthy", "", 900);
        let steps = [
            well.clone(),
            told("degraded", "device 1 is gone", 900),
            told("degraded", "device 1 is brought up to date", 900),
            told("degraded", "device 1 is brought up to date", 800),
            told("degraded", "device 1 is gone", 800),
            well,
            told("healthy", "", 40),
            told("healthy", "", 30),
        ];
        let kinds: Vec<_> = steps
            .windows(2)
            .map(|w| news(&w[0], &w[1]).iter().map(|n| n.0).collect::<Vec<_>>().join(" "))
            .collect();
        let (began, changed) = ("fault.began", "fault.changed");
        assert_eq!(kinds, [began, changed, "", changed, "fault.ended", began, ""]);
    }

    #[test]
    fn another_device_of_a_fault_is_told() {
        let doubtful = |damaged: &[u64]| {
            let device = |(n, damaged): (usize, &u64)| PoolDeviceLive {
                number: n as u16,
                id: n.to_string(),
                damaged: *damaged,
                since_clean: *damaged,
                ..PoolDeviceLive::default()
            };
            let devices = damaged.iter().enumerate().map(device).collect();
            Told::default().next(&of(vec![PoolLive { devices, ..pool(900, "healthy") }]))
        };
        let short = |paths: &[&str], has| {
            let device = |path: &&str| ShortDevice {
                pool: "p".into(),
                path: (*path).into(),
                had: 64 << 20,
                has,
            };
            let short = paths.iter().map(device).collect();
            Told::default().next(&LiveStatus { short, ..LiveStatus::default() })
        };
        let kinds = |steps: &[Told]| -> Vec<String> {
            let kinds = |w: &[Told]| news(&w[0], &w[1]).iter().map(|n| n.0).collect();
            steps.windows(2).map(kinds).collect()
        };
        let steps =
            [&[0, 0], &[10, 9], &[11, 9], &[12, 10], &[12, 11], &[0, 11], &[10, 11], &[0, 0]];
        let expected = ["fault.began", "", "fault.changed", "", "", "fault.changed", "fault.ended"];
        assert_eq!(kinds(&steps.map(|s| doubtful(s))), expected);
        let lost = |volumes: &[(&str, u64)]| {
            let lost = volumes.iter().map(|(v, n)| ((*v).to_owned(), *n)).collect();
            Told::default().next(&of(vec![PoolLive { lost, ..pool(900, "healthy") }]))
        };
        let steps = [&[][..], &[("v", 1)], &[("v", 2)], &[("v", 2), ("w", 1)], &[("w", 1)], &[]];
        let expected = ["fault.began", "", "fault.changed", "", "fault.ended"];
        assert_eq!(kinds(&steps.map(lost)), expected);
        let steps = [short(&["a"], 1), short(&["a"], 2), short(&["a", "b"], 2), short(&["b"], 2)];
        assert_eq!(kinds(&steps), ["", "fault.changed", ""]);
    }

    #[test]
    fn a_pool_that_is_not_well_says_why() {
        let text = |reason: Option<&str>| {
            let p = PoolLive { reason: reason.map(str::to_string), ..pool(900, "degraded") };
            faults(&of(vec![p]), &Told::default())[0].text.clone()
        };
        assert_eq!(text(Some("device d1 is gone")), "pool `p` is degraded: device d1 is gone");
        assert_eq!(text(None), "pool `p` is degraded");
    }
}
