//! What machines know by numbers that are theirs no more.

use crate::error::{Code, Error, Result};
use crate::live::LiveStatus;
use crate::model::{InitiatorPort, MapSpec, Model, Naa};
use crate::planted::{Bug, has};
use crate::platform::Instant;
use crate::store::MetaStore;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long a host may be away and still have the disks that it had: as long as Linux keeps them (`dev_loss_tmo`).
pub(super) const AWAY: Duration = Duration::from_secs(600);
/// Under which names the store keeps what initiator ports know.
const PORTS: &str = "known/";
/// The same of programs that went by the names of hosts and volumes.
const BY_NAME: &str = "luns/";
/// Numbers that are kept of an initiator port, the last ones.
const MOST: usize = 1024;
/// Initiator ports that are kept, those that were there last.
pub(super) const MOST_PORTS: usize = 4096;

/// A number by which a volume is known.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Number {
    lun: u16,
    /// What it is called, or was.
    volume: String,
    naa: Naa,
}

impl Number {
    /// Another volume, whatever its name.
    fn is_other(&self, naa: Naa, name: &str) -> bool {
        if has(Bug::NumbersByName) { self.volume != name } else { self.naa != naa }
    }
}

/// An initiator port that was logged in. Its machine may have disks by it.
#[derive(Clone)]
pub(super) struct Guest {
    /// Numbers by which it knows volumes that were taken from it.
    numbers: Vec<Number>,
    /// When it was last logged in, as far as is known.
    pub(super) seen: Instant,
}

impl Guest {
    pub(super) fn new(numbers: Vec<Number>) -> Guest {
        Guest { numbers, seen: Instant::now() }
    }
}

/// A number that would become another volume.
#[derive(Debug, Clone)]
pub(super) struct Clash {
    port: InitiatorPort,
    pub(super) host: String,
    pub(super) lun: u16,
    /// The volume that is known by it.
    was: String,
}

/// What machines know by numbers that are theirs no more, by initiator port: a name of a host can be given to another, and a port to
/// another host. Neither a connection that is lost nor a start of the daemon makes them forget it.
#[derive(Default)]
pub(super) struct Known(Mutex<BTreeMap<InitiatorPort, Guest>>);

pub(super) fn key(port: &InitiatorPort) -> String {
    format!("{PORTS}{port}")
}

pub(super) fn written(numbers: &[Number]) -> Result<Vec<u8>> {
    let e = |e| Error::new(Code::Internal, "numbers that a host knows").because(e);
    serde_json::to_vec(numbers).map_err(e)
}

/// Makes it durable, in one transaction.
pub(super) fn put(store: &MetaStore, rows: &[(String, Vec<u8>)]) -> Result<()> {
    store.put_blobs(rows.iter().map(|(k, v)| (k.as_str(), v.as_slice())))
}

impl Known {
    /// What was known when the daemon last ran. Hosts may have been there until now.
    pub(super) fn load(store: &MetaStore, model: &Model) -> Result<Known> {
        let (mut all, mut rows) = (BTreeMap::new(), Vec::new());
        let kept = store.blobs(PORTS)?;
        let ports =
            kept.iter().filter_map(|(k, b)| Some((k.strip_prefix(PORTS)?.parse().ok()?, k, b)));
        let (present, older): (Vec<_>, Vec<_>) =
            ports.partition(|(port, k, _): &(InitiatorPort, _, _)| self::key(port) == **k);
        for (port, key, bytes) in present.into_iter().chain(older) {
            if self::key(&port) != *key {
                // An older release wrote it in another way; what is by the present one is newer.
                rows.push((key.clone(), Vec::new()));
                if all.contains_key(&port) {
                    continue;
                }
                rows.push((self::key(&port), bytes.clone()));
            }
            // One that makes no sense is as good as none.
            all.insert(port, Guest::new(serde_json::from_slice(bytes).unwrap_or_default()));
        }
        let older = store.blobs(BY_NAME)?;
        for (key, bytes) in &older {
            let host = key.strip_prefix(BY_NAME).and_then(|h| model.hosts.get(h));
            let numbers: Vec<(u16, String)> = serde_json::from_slice(bytes).unwrap_or_default();
            let named = |(lun, volume): (u16, String)| {
                // One that is gone is none of those that there are.
                let naa = model.volumes.get(&volume).map_or(Naa(0), |v| v.naa);
                Number { lun, volume, naa }
            };
            let numbers: Vec<Number> = numbers.into_iter().map(named).collect();
            for port in host.map_or(&[][..], |h| &h.ports) {
                rows.push((self::key(port), written(&numbers)?));
                all.insert(*port, Guest::new(numbers.clone()));
            }
            rows.push((key.clone(), Vec::new()));
        }
        if !rows.is_empty()
            && let Err(e) = put(store, &rows)
        {
            tracing::warn!("what hosts know is kept as it was: {e}");
        }
        Ok(Known(Mutex::new(all)))
    }

    pub(super) fn with<R>(&self, f: impl FnOnce(&mut BTreeMap<InitiatorPort, Guest>) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The same for what is tried on paper only, with who is logged in now.
    pub(super) fn on_paper(&self, live: &LiveStatus) -> Known {
        let here = logged_in(live);
        let mut all = self.with(|k| k.clone());
        all.retain(|port, guest| here.contains(port) || guest.seen.elapsed() < AWAY);
        for port in here {
            all.entry(port).or_insert_with(|| Guest::new(Vec::new()));
        }
        Known(Mutex::new(all))
    }

    /// Numbers by which machines know volumes, and that would be others.
    pub(super) fn clashes(&self, old: &Model, new: &Model) -> Vec<Clash> {
        let (earlier, later) = (old.viewers(), new.viewers());
        let of_port = |(port, guest): (&InitiatorPort, &Guest)| {
            let (before, host) = (earlier(port), later(port));
            let (was, is) = (old.seen_by(before), new.seen_by(host));
            let host = host.map_or(String::new(), |h| h.name.clone());
            if has(Bug::NumbersByName) && before.is_none_or(|h| h.name != host) {
                return Vec::new();
            }
            let clash = |lun: u16, was: String| Clash { port: *port, host: host.clone(), lun, was };
            let other = |(lun, v): (u16, &crate::model::Volume)| match was.get(&lun) {
                Some(w) => (w.naa != v.naa).then(|| clash(lun, w.name.clone())),
                None => {
                    let known = guest.numbers.iter().find(|n| n.lun == lun);
                    let known = known.filter(|n| n.is_other(v.naa, &v.name));
                    known.map(|n| clash(lun, n.volume.clone()))
                }
            };
            is.into_iter().filter_map(other).collect::<Vec<_>>()
        };
        if same_views(old, new) {
            return Vec::new();
        }
        self.with(|k| k.iter().flat_map(of_port).collect())
    }

    /// Refuses numbers by which hosts know other volumes.
    pub(super) fn check(&self, old: &Model, new: &Model) -> Result<()> {
        if let Some(c) = self.clashes(old, new).first() {
            return Err(Error::new(
                Code::LunInUse,
                format!("host `{}` knows another volume as LUN {}", c.host, c.lun),
            )
            .because(format!(
                "for initiator port {} it is volume `{}`, and that port has not been gone for ten minutes since",
                c.port, c.was
            ))
            .hint("use another LUN for one of the two"));
        }
        Ok(())
    }

    /// What is taken from machines, with all that each knows then.
    pub(super) fn taken(&self, old: &Model, new: &Model) -> Vec<(InitiatorPort, Vec<Number>)> {
        if same_views(old, new) {
            return Vec::new();
        }
        let (earlier, later) = (old.viewers(), new.viewers());
        self.with(|k| {
            let of_port = |(port, guest): (&InitiatorPort, &Guest)| {
                let (before, host) = (earlier(port), later(port));
                let names = [before, host].map(|h| h.map(|h| &h.name));
                if has(Bug::NumbersByName) && names[0] != names[1] {
                    return Some((*port, Vec::new()));
                }
                let (was, is) = (old.seen_by(before), new.seen_by(host));
                let stays = |lun: &u16, naa: Naa| is.get(lun).is_some_and(|v| v.naa == naa);
                let taken = was.into_iter().filter(|(lun, v)| !stays(lun, v.naa));
                let taken =
                    taken.map(|(lun, v)| Number { lun, volume: v.name.clone(), naa: v.naa });
                let taken: Vec<Number> = taken.collect();
                if taken.is_empty() {
                    return None;
                }
                let mut all = guest.numbers.clone();
                all.retain(|n| !taken.iter().any(|t| t.lun == n.lun));
                all.extend(taken);
                all.drain(..all.len().saturating_sub(MOST));
                Some((*port, all))
            };
            k.iter().filter_map(of_port).collect()
        })
    }

    pub(super) fn remember(&self, changed: Vec<(InitiatorPort, Vec<Number>)>) {
        self.with(|k| {
            for (port, numbers) in changed {
                k.entry(port).and_modify(|g| g.numbers = numbers);
            }
        });
    }

    /// A number for a mapping that names none. No port of the host knows another volume by it, nor sees one when the host is gone.
    pub(super) fn choose_lun(&self, spec: MapSpec, old: &Model) -> MapSpec {
        if spec.lun.is_some() {
            return spec;
        }
        let mut taken = self.known_to(&spec, old);
        if !has(Bug::NumbersOfAll) {
            taken.extend(seen_without(&spec, old));
        }
        if taken.is_empty() {
            return spec;
        }
        taken.extend(old.maps_of_host(&spec.host).map(|m| m.lun));
        // When all are taken the model says so.
        let lun = (0..=crate::model::MAX_LUN).find(|lun| !taken.contains(lun));
        MapSpec { lun, ..spec }
    }

    /// Numbers by which ports of a host know other volumes.
    fn known_to(&self, spec: &MapSpec, old: &Model) -> BTreeSet<u16> {
        let naa = old.volumes.get(&spec.volume).map(|v| v.naa);
        let viewer = old.viewers();
        self.with(|k| {
            let is_it = |p: &InitiatorPort| viewer(p).is_some_and(|h| h.name == spec.host);
            let guests = k.iter().filter(|(p, _)| is_it(p)).flat_map(|(_, g)| &g.numbers);
            let other = |n: &&Number| naa.is_none_or(|naa| n.is_other(naa, &spec.volume));
            guests.filter(other).map(|n| n.lun).collect()
        })
    }
}

/// Numbers by which the host for all ports, if there is one, has other volumes. Ports of another host are let in as that one when
/// theirs is deleted, and may have been before it was made.
fn seen_without(spec: &MapSpec, old: &Model) -> BTreeSet<u16> {
    let all = old.hosts.values().find(|h| h.allow_any && h.name != spec.host);
    let maps = all.into_iter().flat_map(|h| old.maps_of_host(&h.name));
    maps.filter(|m| m.volume != spec.volume).map(|m| m.lun).collect()
}

/// Initiator ports that are logged in.
pub(super) fn logged_in(live: &LiveStatus) -> BTreeSet<InitiatorPort> {
    let nexuses = live.ports.iter().flat_map(|p| &p.nexuses).filter(|n| !n.peer.is_empty());
    nexuses.filter_map(|n| n.initiator.parse().ok()).collect()
}

/// Nobody sees anything else than before.
pub(super) fn same_views(old: &Model, new: &Model) -> bool {
    old.maps == new.maps && old.hosts == new.hosts
}
