//! Damage of the devices of protected pools: counted over restarts, told by events as it is found, and a fault when there is
//! much of it.
//!
//! The data plane counts from when a pool was opened. Here that is added up, by the identities of pool and device, and kept in
//! the configuration store now and then: a loss of power costs what the last seconds have counted.

use super::{Controller, blocking};
use crate::error::{Code, Result};
use crate::live::{DamageLive, DamageOf, Fault, PoolDeviceLive, PoolLive, ScrubLive};
use crate::model::{Model, PoolId};
use crate::planted::{Bug, has};
use crate::platform::{Instant, timeout};
use crate::store::MetaStore;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

/// So many damaged copies and failed reads of a device, since a scrub found nothing on it, are a fault of its pool.
const DOUBTFUL: u64 = 10;
/// How far apart two events of the damage of a pool are at least: what is found meanwhile is in the second.
const APART: Duration = Duration::from_secs(10);
/// How far apart two writes of the counts are at least.
const SAVES: Duration = Duration::from_secs(10);
/// How long a last look, and a last write of the counts, may take: the end does not wait for devices.
const LAST: Duration = Duration::from_secs(2);
/// Volumes and snapshots that one event names.
const NAMED: usize = 8;

/// What is kept of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    damaged: u64,
    unread: u64,
    /// How many of both there were when a scrub last found nothing.
    #[serde(default)]
    clean: u64,
}

/// What the data plane had counted of a device when it was last asked.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    opening: u64,
    damaged: u64,
    unread: u64,
}

/// What a pool has told by events, of its present opening.
#[derive(Debug, Default)]
struct Told {
    opening: u64,
    damage: BTreeMap<(String, DamageOf), (u64, u64)>,
    last: Option<Instant>,
}

/// What is known of a device.
#[derive(Debug, Default)]
struct Known {
    kept: Kept,
    seen: Seen,
    /// Failed reads that events have told of.
    told: u64,
}

/// What is known of the devices of all pools.
#[derive(Debug, Default)]
pub(super) struct Book {
    devices: BTreeMap<String, Known>,
    told: BTreeMap<String, Told>,
    /// What the store has.
    saved: BTreeMap<String, Vec<u8>>,
    last_save: Option<Instant>,
}

/// Devices are kept under this name.
fn key(pool: PoolId, device: &str) -> String {
    format!("{pool}/{device}")
}

fn identity(model: &Model, pool: &str) -> Option<PoolId> {
    Some(model.pools.get(pool)?.protection.as_ref()?.id)
}

/// Names of volumes, by what they are called on the devices.
struct Names<'a>(BTreeMap<String, &'a str>);

impl Names<'_> {
    fn of(model: &Model) -> Names<'_> {
        Names(model.volumes.values().map(|v| (v.dataset(), v.name.as_str())).collect())
    }

    /// A volume or snapshot by the name that the configuration has for what is called so on the devices.
    fn called(&self, dataset: &str) -> String {
        let (naa, snapshot) = match dataset.split_once('@') {
            Some((naa, name)) => (naa, Some(name)),
            None => (dataset, None),
        };
        let name = self.0.get(naa).copied().unwrap_or(naa);
        snapshot.map_or_else(|| name.to_owned(), |s| format!("{name}@{s}"))
    }

    /// Gives findings of a scrub the names that the configuration has.
    fn name(&self, scrub: &mut ScrubLive) {
        for whose in scrub.findings.iter_mut().filter_map(|f| f.whose.as_mut()) {
            *whose = self.called(whose);
        }
    }
}

fn device_of(pool: &PoolLive, id: &str) -> String {
    let d = pool.devices.iter().find(|d| d.id == id);
    d.map_or_else(|| format!("device {id}, which has left"), named)
}

fn named(d: &PoolDeviceLive) -> String {
    let path = d.path.as_ref().map_or(String::new(), |p| format!(" ({p})"));
    format!("device {}{path}", d.number)
}

fn many(n: u64, one: &str, more: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {more}") }
}

impl Book {
    pub(super) fn load(store: &MetaStore) -> Result<Book> {
        let saved = store.devices()?;
        // What cannot be read counts from nothing: it is no reason not to start.
        let kept = |b: &[u8]| serde_json::from_slice::<Kept>(b).unwrap_or_default();
        let known = |(key, b): (&String, &Vec<u8>)| {
            let kept = kept(b);
            (key.clone(), Known { kept, told: kept.unread, ..Known::default() })
        };
        let devices = saved.iter().map(known).collect();
        Ok(Book { devices, saved, ..Book::default() })
    }

    /// Takes up what the data plane has counted, and puts in its place what was counted in all.
    fn count(&mut self, model: &Model, pools: &mut [PoolLive]) {
        for p in pools {
            let Some(id) = identity(model, &p.name) else { continue };
            for d in &mut p.devices {
                let Known { kept, seen, .. } = self.devices.entry(key(id, &d.id)).or_default();
                if p.opening > seen.opening {
                    *seen = Seen { opening: p.opening, ..Seen::default() };
                }
                // Two may ask at once, and what the first was told come last.
                if p.opening == seen.opening {
                    kept.damaged += d.damaged.saturating_sub(seen.damaged);
                    kept.unread += d.unread.saturating_sub(seen.unread);
                    seen.damaged = seen.damaged.max(d.damaged);
                    seen.unread = seen.unread.max(d.unread);
                    if let Some([damaged, unread]) = d.clean {
                        let since = (seen.damaged + seen.unread).saturating_sub(damaged + unread);
                        let all = kept.damaged + kept.unread;
                        kept.clean = kept.clean.max(all.saturating_sub(since));
                    }
                }
                (d.damaged, d.unread) = (kept.damaged, kept.unread);
                d.since_clean = (kept.damaged + kept.unread).saturating_sub(kept.clean);
            }
        }
    }

    /// What is to be told of damage that was found since the last time, if that is `apart` ago: by pool.
    fn news(
        &mut self,
        model: &Model,
        pools: &[PoolLive],
        now: Instant,
        apart: Duration,
    ) -> Vec<(String, String)> {
        let names = Names::of(model);
        self.told.retain(|name, _| model.pools.contains_key(name));
        let mut all = Vec::new();
        for p in pools {
            let Some(id) = identity(model, &p.name) else { continue };
            let told = self.told.entry(p.name.clone()).or_default();
            if p.opening < told.opening {
                continue;
            }
            if p.opening > told.opening {
                let last = told.last;
                *told = Told { opening: p.opening, last, ..Told::default() };
            }
            let rests = told.last.is_some_and(|t| now.saturating_duration_since(t) < apart);
            if rests && !has(Bug::EachDamageTold) {
                continue;
            }
            let mut parts = told.parts(&names, p);
            for d in &p.devices {
                let Some(known) = self.devices.get_mut(&key(id, &d.id)) else { continue };
                let new = known.kept.unread - known.told;
                known.told = known.kept.unread;
                if new > 0 {
                    let reads = many(new, "read failed", "reads failed");
                    parts.push(format!("{reads} on {}", named(d)));
                }
            }
            if !parts.is_empty() {
                told.last = Some(now);
                all.push((p.name.clone(), format!("pool `{}`: {}", p.name, parts.join("; "))));
            }
        }
        all
    }

    /// What the store lacks, if it is time to write it. Of pools that are gone, and devices that have left, nothing is kept.
    fn unsaved(
        &mut self,
        model: &Model,
        pools: &[PoolLive],
        now: Option<Instant>,
    ) -> BTreeMap<String, Vec<u8>> {
        let last = self.last_save.filter(|_| !has(Bug::EachDamageTold));
        if let (Some(last), Some(now)) = (last, now)
            && now.saturating_duration_since(last) < SAVES
        {
            return BTreeMap::new();
        }
        let known = |pool: &str| {
            model
                .pools
                .values()
                .find(|p| p.protection.as_ref().is_some_and(|x| x.id.to_string() == pool))
        };
        self.devices.retain(|key, _| {
            let Some((pool, device)) = key.split_once('/') else { return false };
            let Some(pool) = known(pool) else { return false };
            let open = pools.iter().find(|l| l.name == pool.name);
            open.is_none_or(|l| l.devices.iter().any(|d| d.id == device))
        });
        let mut changed = BTreeMap::new();
        for (key, Known { kept, .. }) in &self.devices {
            let bytes = serde_json::to_vec(kept).unwrap_or_default();
            let was = self.saved.get(key);
            if was != Some(&bytes) && (was.is_some() || *kept != Kept::default()) {
                changed.insert(key.clone(), bytes);
            }
        }
        let gone = self.saved.keys().filter(|k| !self.devices.contains_key(*k));
        changed.extend(gone.map(|k| (k.clone(), Vec::new())).collect::<Vec<_>>());
        changed
    }

    fn saved(&mut self, changed: BTreeMap<String, Vec<u8>>, now: Option<Instant>) {
        for (key, bytes) in changed {
            match bytes.is_empty() {
                true => drop(self.saved.remove(&key)),
                false => drop(self.saved.insert(key, bytes)),
            }
        }
        self.last_save = now;
    }
}

impl Told {
    /// What was found since the last time; from now on that is told.
    fn parts(&mut self, names: &Names<'_>, p: &PoolLive) -> Vec<String> {
        let mut parts = Vec::new();
        let (mut others, mut copies) = (0u64, 0);
        for d in &p.damage {
            let told = self.damage.entry((d.device.clone(), d.whose.clone())).or_default();
            let (new, lost) = (d.copies.saturating_sub(told.0), d.lost.saturating_sub(told.1));
            *told = (d.copies.max(told.0), d.lost.max(told.1));
            if new + lost == 0 {
                continue;
            }
            if parts.len() >= NAMED {
                (others, copies) = (others + 1, copies + new.max(lost));
                continue;
            }
            if new > 0 {
                parts.push(part(names, p, d, new, lost.min(new)));
            }
            if lost > new {
                parts.push(turned(names, p, d, lost - new));
            }
        }
        if others > 0 {
            let more = many(copies, "damaged copy", "damaged copies");
            parts.push(format!("{more} of {others} other volumes and snapshots"));
        }
        parts
    }
}

fn whose(names: &Names<'_>, d: &DamageLive) -> String {
    match &d.whose {
        DamageOf::Pool => "of the pool's own data".to_owned(),
        DamageOf::Others => "of other volumes and snapshots".to_owned(),
        DamageOf::Dataset(w) if w.contains('@') => format!("of snapshot `{}`", names.called(w)),
        DamageOf::Dataset(w) => format!("of volume `{}`", names.called(w)),
    }
}

/// Copies that were damaged before turned out to have been the last.
fn turned(names: &Names<'_>, p: &PoolLive, d: &DamageLive, lost: u64) -> String {
    let (whose, device) = (whose(names, d), device_of(p, &d.device));
    match lost {
        1 => {
            format!("1 copy {whose} on {device} that was damaged before has no good one elsewhere")
        }
        n => format!(
            "{n} copies {whose} on {device} that were damaged before have no good ones elsewhere"
        ),
    }
}

/// What was found of one volume or snapshot on one device.
fn part(names: &Names<'_>, p: &PoolLive, d: &DamageLive, new: u64, lost: u64) -> String {
    let copies = many(new, "damaged copy", "damaged copies");
    let whose = whose(names, d);
    let lost = match lost {
        0 => String::new(),
        n if n == new => ", without a good copy elsewhere".to_owned(),
        n => format!(", {n} of them without a good copy elsewhere"),
    };
    format!("{copies} {whose} on {}{lost}", device_of(p, &d.device))
}

/// Devices that give damaged data or errors again and again.
pub(super) fn doubtful(pool: &PoolLive) -> impl Iterator<Item = &PoolDeviceLive> {
    pool.devices.iter().filter(|d| d.since_clean >= DOUBTFUL)
}

/// That there are such.
pub(super) fn fault(pool: &PoolLive) -> Option<Fault> {
    let text = |d: &PoolDeviceLive| {
        let (all, reads) = (many(d.damaged, "damaged copy", "damaged copies"), d.unread);
        let reads = many(reads, "failed read", "failed reads");
        format!("{} has had {all} and {reads}", named(d))
    };
    let devices: Vec<String> = doubtful(pool).map(text).collect();
    (!devices.is_empty()).then(|| Fault {
        object: format!("pool/{}", pool.name),
        code: Code::DeviceDoubtful.as_str().to_string(),
        text: format!("pool `{}` has damage: {}", pool.name, devices.join("; ")),
        hint: format!(
            "`weir events` says whose data; `weir scrub start {0}` mends what other copies give, and ends this if it finds nothing; \
             a device that goes on like that: `weir pool replace {0} NUMBER --device …`",
            pool.name
        ),
    })
}

/// That data is lost, until it is written anew or deleted.
pub(super) fn lost(pool: &PoolLive) -> Option<Fault> {
    let text = |(whose, n): &(String, u64)| format!("{} of `{whose}`", many(*n, "block", "blocks"));
    let mut all: Vec<String> = pool.lost.iter().take(NAMED).map(text).collect();
    if pool.lost.len() > NAMED {
        let others = (pool.lost.len() - NAMED) as u64;
        let blocks: u64 = pool.lost.iter().skip(NAMED).map(|l| l.1).sum();
        let others = many(others, "other volume or snapshot", "other volumes and snapshots");
        all.push(format!("{} of {others}", many(blocks, "block", "blocks")));
    }
    (!all.is_empty()).then(|| Fault {
        object: format!("pool/{}", pool.name),
        code: Code::DataLost.as_str().to_string(),
        text: format!("pool `{}` has no good copy of {}", pool.name, all.join(", ")),
        hint: format!(
            "reads of them fail; `weir scrub start {}` says which they are. Write them anew, from a backup or a snapshot, or delete \
             what they belong to",
            pool.name
        ),
    })
}

impl Controller {
    fn damage(&self) -> MutexGuard<'_, Book> {
        self.damage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts what devices have had in all in place of what they have had since their pools were opened, and the names of the
    /// configuration in place of those on the devices.
    pub(super) fn count_damage(&self, pools: &mut [PoolLive]) {
        let model = self.model();
        self.damage().count(&model, pools);
        let mut scrubs = pools.iter_mut().filter_map(|p| p.scrub.as_mut()).peekable();
        if scrubs.peek().is_some() {
            let names = Names::of(&model);
            scrubs.for_each(|s| names.name(s));
        }
        for p in pools.iter_mut().filter(|p| !p.lost.is_empty()) {
            let names = Names::of(&model);
            p.lost.iter_mut().for_each(|(whose, _)| *whose = names.called(whose));
        }
    }

    /// Tells of damage that was found.
    pub(super) fn tell_damage(&self, pools: &[PoolLive]) {
        self.publish_damage(pools, APART);
    }

    fn publish_damage(&self, pools: &[PoolLive], apart: Duration) {
        let news = self.damage().news(&self.model(), pools, Instant::now(), apart);
        for (pool, text) in news {
            tracing::warn!("{text}");
            self.events.publish("pool.damage", &format!("pool/{pool}"), &text);
        }
    }

    /// Keeps what was counted, if it is time for that.
    pub(super) async fn keep_damage(&self, pools: &[PoolLive]) {
        let now = Some(Instant::now());
        let changed = self.damage().unsaved(&self.model(), pools, now);
        self.save_damage(changed, now).await;
    }

    /// Tells and keeps what was found since the last look, however short ago that is: a pool is about to be closed, and then
    /// nobody knows it any more.
    pub(super) async fn last_damage(&self) {
        let look = async {
            let Ok(mut live) = self.plane.status().await else { return };
            self.count_damage(&mut live.pools);
            self.publish_damage(&live.pools, Duration::ZERO);
            let changed = self.damage().unsaved(&self.model(), &live.pools, None);
            self.save_damage(changed, None).await;
        };
        if !has(Bug::LastUntold) && timeout(LAST, look).await.is_err() {
            tracing::debug!("what was found damaged last is not known");
        }
    }

    /// Keeps what was counted last: nothing counts any more.
    pub(super) async fn end_damage(&self) {
        let changed = self.damage().unsaved(&self.model(), &[], None);
        drop(timeout(LAST, self.save_damage(changed, None)).await);
    }

    async fn save_damage(&self, changed: BTreeMap<String, Vec<u8>>, now: Option<Instant>) {
        if changed.is_empty() {
            return;
        }
        let (store, rows) = (self.store.clone(), changed.clone());
        match blocking(move || store.keep_devices(&rows)).await {
            Ok(()) => self.damage().saved(changed, now),
            // That the store takes no changes is told elsewhere; it is tried again with the next look.
            Err(e) => tracing::debug!("what was counted of devices is not kept: {e}"),
        }
    }

    /// Gives findings of a scrub the names that the configuration has.
    pub(super) fn name_findings(&self, scrub: &mut ScrubLive) {
        Names::of(&self.model()).name(scrub);
    }
}

#[cfg(test)]
mod tests;
