//! What mappings mean to hosts that are logged in: nothing is taken away under them, and no number that they know stands
//! for something else.

use super::{Controller, blocking, finish};
use crate::error::{Code, Error, Result};
use crate::live::LiveStatus;
use crate::model::{Command, InitiatorPort, MapSpec, Model, Naa};
use crate::planted::{Bug, has};
use crate::store::MetaStore;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How often it is looked whether a host has gone that was about to, and how far apart.
const LOOKS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// How long a host may be away and still have the disks that it had: as long as Linux keeps them (`dev_loss_tmo`).
const AWAY: Duration = Duration::from_secs(600);
/// Under which names the store keeps what initiator ports know.
const PORTS: &str = "known/";
/// The same of programs that went by the names of hosts and volumes.
const BY_NAME: &str = "luns/";
/// Numbers that are kept of an initiator port, the last ones.
const MOST: usize = 1024;
/// Initiator ports that are kept, those that were there last.
const MOST_PORTS: usize = 4096;

/// A number by which a volume is known.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Number {
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
struct Guest {
    /// Numbers by which it knows volumes that were taken from it.
    numbers: Vec<Number>,
    /// When it was last logged in, as far as is known.
    seen: Instant,
}

impl Guest {
    fn new(numbers: Vec<Number>) -> Guest {
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

fn key(port: &InitiatorPort) -> String {
    format!("{PORTS}{port}")
}

fn written(numbers: &[Number]) -> Result<Vec<u8>> {
    let e = |e| Error::new(Code::Internal, "numbers that a host knows").because(e);
    serde_json::to_vec(numbers).map_err(e)
}

/// Makes it durable, in one transaction.
fn put(store: &MetaStore, rows: &[(String, Vec<u8>)]) -> Result<()> {
    store.put_blobs(rows.iter().map(|(k, v)| (k.as_str(), v.as_slice())))
}

impl Known {
    /// What was known when the daemon last ran. Hosts may have been there until now.
    pub(super) fn load(store: &MetaStore, model: &Model) -> Result<Known> {
        let mut all = BTreeMap::new();
        for (key, bytes) in store.blobs(PORTS)? {
            let Some(port) = key.strip_prefix(PORTS).and_then(|p| p.parse().ok()) else { continue };
            // One that makes no sense is as good as none.
            all.insert(port, Guest::new(serde_json::from_slice(&bytes).unwrap_or_default()));
        }
        let older = store.blobs(BY_NAME)?;
        let mut rows = Vec::new();
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
        if !older.is_empty()
            && let Err(e) = put(store, &rows)
        {
            tracing::warn!("what hosts know is kept as it was: {e}");
        }
        Ok(Known(Mutex::new(all)))
    }

    fn with<R>(&self, f: impl FnOnce(&mut BTreeMap<InitiatorPort, Guest>) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Controller {
    /// Whether a host has a connection now, as far as is known: a reactor that is held up does not tell whose are there.
    async fn is_logged_in(&self, host: &str) -> Result<bool> {
        let live = self.plane.status().await?;
        let held = live.reactors.iter().any(|r| r.held.is_some());
        let mut nexuses = live.ports.iter().flat_map(|p| &p.nexuses);
        Ok(nexuses.any(|n| match &n.host {
            Some(h) => h == host && !n.peer.is_empty(),
            None => held,
        }))
    }

    /// Takes a mapping away. A host that is logged in keeps its volume, unless by `force`.
    pub async fn delete_map(
        self: &Arc<Self>,
        host: String,
        volume: String,
        force: bool,
    ) -> Result<Arc<Model>> {
        let command = Command::DeleteMap { host: host.clone(), volume: volume.clone() };
        if force {
            return self.execute(command).await;
        }
        self.model().map(&host, &volume)?;
        for _ in 0..LOOKS {
            let (me, name, command) = (self.clone(), host.clone(), command.clone());
            let done = finish(tokio::spawn(async move {
                // Whoever logs in before it is done is seen.
                let _one = me.settled_turn().await?;
                match me.is_logged_in(&name).await? {
                    true => Ok(None),
                    false => me.change(command).await.map(Some),
                }
            }));
            if let Some(now) = done.await? {
                return Ok(now);
            }
            tokio::time::sleep(PAUSE).await;
        }
        Err(may_be_used(&host, &volume)
            .hint("end the use there and log it out first; --force takes the volume away under it"))
    }

    /// Refuses to take a mapping from a host that is logged in.
    pub(super) async fn check_not_used(&self, host: &str, volume: &str) -> Result<()> {
        match self.is_logged_in(host).await? {
            true => Err(may_be_used(host, volume).hint(format!(
                "end the use there and log it out first; or take it away under it: weir map delete {host} {volume} --force"
            ))),
            false => Ok(()),
        }
    }

    /// Takes note of who has logged in while a change came into effect: they may have seen what was before. The caller holds `changes`.
    pub(super) async fn see_late(&self, command: &Command, old: &Model, new: &Model) {
        if !concerns(command) || same_views(old, new) || has(Bug::LateIsOverlooked) {
            return;
        }
        let done = async {
            if self.see(&self.plane.status().await?).await? {
                self.note_taken(old, new).await?;
            }
            Ok::<(), Error>(())
        };
        if let Err(e) = done.await {
            tracing::warn!("who has logged in meanwhile cannot be kept: {e}");
        }
    }

    /// Takes note of who is logged in. True: somebody has come. The caller holds `changes`.
    pub(super) async fn see(&self, live: &LiveStatus) -> Result<bool> {
        let nexuses = live.ports.iter().flat_map(|p| &p.nexuses).filter(|n| !n.peer.is_empty());
        let here: BTreeSet<InitiatorPort> =
            nexuses.filter_map(|n| n.initiator.parse().ok()).collect();
        let (new, gone) = self.known.with(|k| {
            let mut new = Vec::new();
            for port in &here {
                match k.get_mut(port) {
                    Some(g) => g.seen = Instant::now(),
                    None => new.push(*port),
                }
            }
            let forgets = has(Bug::NumbersForgotten);
            let is_gone = |g: &Guest| g.seen.elapsed() >= AWAY || forgets;
            let mut away: Vec<_> = k.iter().filter(|(p, _)| forgets || !here.contains(p)).collect();
            away.sort_by_key(|(_, g)| g.seen);
            let over = (k.len() + new.len()).saturating_sub(MOST_PORTS);
            let away = away.into_iter().enumerate();
            let gone: Vec<_> =
                away.filter(|(n, (_, g))| *n < over || is_gone(g)).map(|(_, (p, _))| *p).collect();
            (new, gone)
        });
        if new.is_empty() && gone.is_empty() {
            return Ok(false);
        }
        let come = !new.is_empty();
        let mut rows = Vec::new();
        for port in &new {
            rows.push((key(port), written(&[])?));
        }
        rows.extend(gone.iter().map(|p| (key(p), Vec::new())));
        let store = self.store.clone();
        blocking(move || put(&store, &rows)).await?;
        self.known.with(|k| {
            gone.iter().for_each(|p| drop(k.remove(p)));
            k.extend(new.into_iter().map(|p| (p, Guest::new(Vec::new()))));
        });
        Ok(come)
    }

    /// Keeps numbers apart that hosts know. Gives the command to be carried out.
    pub(super) async fn keep_luns(&self, command: Command, old: &Model) -> Result<Command> {
        if concerns(&command) {
            self.see(&self.plane.status().await?).await?;
        }
        Ok(match command {
            Command::CreateMap(spec) => Command::CreateMap(self.choose_lun(spec, old)),
            other => other,
        })
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
        self.known.with(|k| k.iter().flat_map(of_port).collect())
    }

    /// Refuses numbers by which hosts know other volumes, and remembers what is taken from them. Before it is in effect.
    pub(super) async fn note_luns(&self, old: &Model, new: &Model) -> Result<()> {
        self.check_luns(old, new)?;
        self.note_taken(old, new).await
    }

    /// Refuses numbers by which hosts know other volumes.
    pub(super) fn check_luns(&self, old: &Model, new: &Model) -> Result<()> {
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

    /// Remembers what is taken from machines.
    pub(super) async fn note_taken(&self, old: &Model, new: &Model) -> Result<()> {
        if same_views(old, new) {
            return Ok(());
        }
        let (earlier, later) = (old.viewers(), new.viewers());
        let changed: Vec<(InitiatorPort, Vec<Number>)> = self.known.with(|k| {
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
        });
        if changed.is_empty() {
            return Ok(());
        }
        let row = |(p, n): &(InitiatorPort, Vec<Number>)| Ok((key(p), written(n)?));
        let rows: Vec<_> = changed.iter().map(row).collect::<Result<_>>()?;
        let store = self.store.clone();
        blocking(move || put(&store, &rows)).await?;
        self.known.with(|k| {
            for (port, numbers) in changed {
                k.entry(port).and_modify(|g| g.numbers = numbers);
            }
        });
        Ok(())
    }

    pub(super) fn choose_lun(&self, spec: MapSpec, old: &Model) -> MapSpec {
        let naa = old.volumes.get(&spec.volume).map(|v| v.naa);
        let viewer = old.viewers();
        let known: BTreeSet<u16> = self.known.with(|k| {
            let is_it = |p: &InitiatorPort| viewer(p).is_some_and(|h| h.name == spec.host);
            let guests = k.iter().filter(|(p, _)| is_it(p)).flat_map(|(_, g)| &g.numbers);
            let other = |n: &&Number| naa.is_none_or(|naa| n.is_other(naa, &spec.volume));
            guests.filter(other).map(|n| n.lun).collect()
        });
        if known.is_empty() || spec.lun.is_some() {
            return spec;
        }
        let mapped: BTreeSet<u16> = old.maps_of_host(&spec.host).map(|m| m.lun).collect();
        // When all are taken the model says so.
        let is_free = |lun: &u16| !mapped.contains(lun) && !known.contains(lun);
        let lun = (0..=crate::model::MAX_LUN).find(is_free);
        MapSpec { lun, ..spec }
    }
}

fn may_be_used(host: &str, volume: &str) -> Error {
    Error::new(Code::VolumeMapped, format!("host `{host}` may be using volume `{volume}`"))
        .because("it is logged in")
}

/// Whether hosts may see something else by a command.
fn concerns(command: &Command) -> bool {
    matches!(
        command,
        Command::CreateMap(_)
            | Command::DeleteMap { .. }
            | Command::CreateHost(_)
            | Command::PatchHost { .. }
            | Command::DeleteHost { .. }
            | Command::ImportPool { .. }
            | Command::ReleasePool { .. }
    )
}

/// Nobody sees anything else than before.
fn same_views(old: &Model, new: &Model) -> bool {
    old.maps == new.maps && old.hosts == new.hosts
}
