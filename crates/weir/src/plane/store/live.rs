//! How protected pools stand.

use super::{OpenPool, Stores};
use weir_base::IoError;
use weir_block::Volume;
use weir_control::live::{
    CompressionLive, DamageLive, DamageOf, DeduplicationLive, Pace, PoolCounters, PoolDeviceLive,
    PoolLive, PoolWorkLive,
};
use weir_layers::remote::Home;
use weir_store::format::superblock::MemberState;
use weir_store::{Damage, DeviceInfo, Whose};

fn state(d: &DeviceInfo) -> &'static str {
    match d.state {
        _ if d.failed => "failed",
        _ if d.name.is_none() => "missing",
        MemberState::InSync => "in-sync",
        MemberState::Syncing => "syncing",
        MemberState::Out => "out",
        MemberState::Spare => "spare",
        MemberState::Gone => "gone",
    }
}

/// What a device told when it failed. That it has no space is not that the pool has none.
fn told(e: IoError) -> String {
    match e {
        IoError::NoSpace => "the file system below it has no space left".into(),
        IoError::Medium => "its medium gave an error".into(),
        IoError::Path => "it, or the path to it, gave an error that may pass".into(),
        IoError::Offline => "it is gone, or did not answer".into(),
        IoError::ReadOnly => "it cannot be written".into(),
        e => e.to_string(),
    }
}

/// How a device stands, with the reason.
fn standing(d: &DeviceInfo) -> String {
    let why = d.why.map_or(String::new(), |e| format!(": {}", told(e)));
    format!("device {} is {}{why}", d.number, state(d))
}

fn damage(d: Damage) -> DamageLive {
    DamageLive {
        device: format!("{:016x}", d.device),
        whose: match d.whose {
            Whose::Pool => DamageOf::Pool,
            Whose::Dataset(name) => DamageOf::Dataset(name),
            Whose::Others => DamageOf::Others,
        },
        copies: d.copies,
        lost: d.lost,
    }
}

impl OpenPool {
    /// How the pool stands.
    pub(in crate::plane) fn live(&self, name: &str) -> PoolLive {
        let s = self.pool.status();
        let c = self.pool.counters();
        let (damaged, lost) = self.pool.found_wrong();
        let ill: Vec<String> = s
            .devices
            .iter()
            .filter(|d| !matches!(state(d), "in-sync" | "spare"))
            .map(standing)
            .collect();
        self.let_go();
        let told = self.returns.told();
        let all = self.unused.borrow();
        let unused: Vec<String> =
            all.iter().chain(&told).map(|(path, why)| format!("{path}: {why}")).collect();
        let (state_now, reason) = match s.suspended {
            Some(e) if ill.is_empty() => ("suspended", Some(e.to_string())),
            Some(_) => ("suspended", Some(ill.join("; "))),
            None if !s.whole || !ill.is_empty() || !told.is_empty() => {
                let mut why = ill;
                if why.is_empty() && !s.whole {
                    why.push("blocks lack a copy".into());
                }
                why.extend(unused.iter().cloned());
                why.extend(s.trouble.clone());
                ("degraded", Some(why.join("; ")))
            }
            None => ("healthy", None),
        };
        let device = |d: &DeviceInfo| PoolDeviceLive {
            number: d.number,
            id: format!("{:016x}", d.id),
            path: d.name.clone(),
            state: state(d).into(),
            size: d.len,
            replaced: d.replaced,
            draining: d.draining,
            slabs: d.slabs,
            room: d.room,
            damaged: d.damaged,
            unread: d.unread,
            since_clean: 0,
            clean: self.clean.borrow().get(&d.id).copied(),
        };
        PoolLive {
            name: name.to_owned(),
            state: state_now.into(),
            reason,
            copies: s.copies,
            total: s.total,
            free: s.free,
            room: s.room,
            devices: s.devices.iter().map(device).collect(),
            unused,
            work: s.work.map(|w| PoolWorkLive {
                work: format!("{:?}", w.work).to_lowercase(),
                device: w.device,
                done: w.done,
                total: w.total,
                pace: Pace::default(),
            }),
            trouble: s.trouble,
            maps: self.pool.cached_maps().into(),
            counters: PoolCounters {
                blocks_written: c.blocks_written,
                blocks_read: c.blocks_read,
                media_writes: c.media_writes,
                groups: c.groups,
                checkpoints: c.checkpoints,
                damaged,
                repaired: c.repaired,
                relocated: c.relocated,
                lost,
                devices_failed: c.devices_failed,
                replayed: c.replayed,
            },
            scrub: self.scrub_live(),
            overdue: self.overdue(),
            opening: self.opening,
            damage: self.pool.damage().into_iter().map(damage).collect(),
            lost: self.pool.losses(),
            ..PoolLive::default()
        }
    }

    /// Bytes in use by open volumes, as of the last checkpoint.
    pub(in crate::plane) fn used(&self) -> Vec<(String, u64)> {
        let homes = self.homes.borrow();
        let all = self.pool.datasets().into_iter();
        all.filter_map(|d| homes.get(&d.name).map(|(_, v)| (v.clone(), d.mapped))).collect()
    }
}

impl OpenPool {
    /// What compression of open volumes has come to.
    pub(in crate::plane) fn compression(&self) -> Vec<(String, CompressionLive)> {
        let (homes, forms) = (self.homes.borrow(), self.forms.borrow());
        let of = |(dataset, (_, name)): (&String, &(Home, String))| {
            let c = forms.get(dataset)?.compressed.as_ref()?;
            let (stored_bytes, f) = (c.allocated()?, c.figures()?);
            let live = CompressionLive { stored_bytes, saved_bytes: f.saved, exact: f.exact };
            Some((name.clone(), live))
        };
        homes.iter().filter_map(of).collect()
    }

    /// What deduplication of open volumes has come to.
    pub(in crate::plane) fn deduplication(&self) -> Vec<(String, DeduplicationLive)> {
        let (homes, forms) = (self.homes.borrow(), self.forms.borrow());
        let of = |(dataset, (_, name)): (&String, &(Home, String))| {
            let d = forms.get(dataset)?.deduplicated.as_ref()?;
            let (stored_bytes, f) = (d.allocated()?, d.figures()?);
            let live = DeduplicationLive {
                stored_bytes,
                saved_bytes: f.saved,
                exact: f.exact,
                recount_percent: f.recount.map(|n| f64::from(n) / 10.0),
                indexed_chunks: f.indexed,
            };
            Some((name.clone(), live))
        };
        homes.iter().filter_map(of).collect()
    }
}

impl Stores {
    /// The reactor that a pool lives on, from 0.
    pub(in crate::plane) fn reactor_of(&self, pool: &str) -> usize {
        self.pools.get(pool).map_or(0, |p| p.reactor)
    }
}
