//! What mappings mean to hosts that are logged in: nothing is taken away under them, and no number that they know stands
//! for something else.

use super::{Controller, blocking};
use crate::error::{Code, Error, Result};
use crate::live::LiveStatus;
use crate::model::{Command, MapSpec, Model};
use crate::planted::{Bug, has};
use crate::store::MetaStore;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How often it is looked whether a host has gone that was about to, and how far apart.
const LOOKS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// How long a host may be away and still have the disks that it had: as long as Linux keeps them (`dev_loss_tmo`).
const AWAY: Duration = Duration::from_secs(600);
/// Under which name the store keeps what a host knows.
const LUNS: &str = "luns/";
/// Numbers that are kept of a host, the last ones.
const MOST: usize = 1024;

/// A host that was logged in, and may have disks by it.
struct Guest {
    /// Numbers by which it knows volumes that were taken from it, and those.
    numbers: Vec<(u16, String)>,
    /// When it was last logged in, as far as is known.
    seen: Instant,
}

/// What hosts know by numbers that are theirs no more. Neither a connection that is lost nor a start of the daemon makes them
/// forget it.
#[derive(Default)]
pub(super) struct Known(Mutex<BTreeMap<String, Guest>>);

impl Known {
    /// What was known when the daemon last ran. Hosts may have been there until now.
    pub(super) fn load(store: &MetaStore) -> Result<Known> {
        let mut all = BTreeMap::new();
        for (key, bytes) in store.blobs(LUNS)? {
            let Some(host) = key.strip_prefix(LUNS) else { continue };
            // One that makes no sense is as good as none.
            let numbers = serde_json::from_slice(&bytes).unwrap_or_default();
            all.insert(host.to_string(), Guest { numbers, seen: Instant::now() });
        }
        Ok(Known(Mutex::new(all)))
    }

    fn with<R>(&self, f: impl FnOnce(&mut BTreeMap<String, Guest>) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The other volume that a host knows by a number.
    fn other(&self, host: &str, lun: u16, volume: &str) -> Option<String> {
        self.with(|k| {
            let known = k.get(host)?.numbers.iter().find(|(l, _)| *l == lun);
            known.map(|(_, v)| v.clone()).filter(|v| v != volume)
        })
    }
}

impl Controller {
    /// Whether a host has a connection now.
    async fn is_logged_in(&self, host: &str) -> Result<bool> {
        let live = self.plane.status().await?;
        let mut nexuses = live.ports.iter().flat_map(|p| &p.nexuses);
        Ok(nexuses.any(|n| n.host.as_deref() == Some(host) && !n.peer.is_empty()))
    }

    /// Takes a mapping away. A host that is logged in keeps its volume, unless by `force`.
    pub async fn delete_map(
        self: &Arc<Self>,
        host: String,
        volume: String,
        force: bool,
    ) -> Result<Arc<Model>> {
        if !force {
            self.model().map(&host, &volume)?;
            self.check_left(&host, &volume).await?;
        }
        self.execute(Command::DeleteMap { host, volume }).await
    }

    async fn check_left(&self, host: &str, volume: &str) -> Result<()> {
        for _ in 0..LOOKS {
            if !self.is_logged_in(host).await? {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
        Err(Error::new(Code::VolumeMapped, format!("host `{host}` may be using volume `{volume}`"))
            .because("it is logged in")
            .hint("end the use there and log it out first; --force takes the volume away under it"))
    }

    /// Takes note of who is logged in. The caller holds `changes`.
    pub(super) async fn see(&self, live: &LiveStatus) -> Result<()> {
        let nexuses = live.ports.iter().flat_map(|p| &p.nexuses).filter(|n| !n.peer.is_empty());
        let here: BTreeSet<&String> = nexuses.filter_map(|n| n.host.as_ref()).collect();
        let new: Vec<&String> = self.known.with(|k| {
            let is_new = |h: &&String| match k.get_mut(*h) {
                Some(g) => {
                    g.seen = Instant::now();
                    false
                }
                None => true,
            };
            here.into_iter().filter(is_new).collect()
        });
        for host in new {
            self.remember(host, Vec::new()).await?;
        }
        let gone: Vec<String> = self.known.with(|k| {
            let is_gone = |g: &Guest| g.seen.elapsed() >= AWAY || has(Bug::NumbersForgotten);
            k.iter().filter(|(_, g)| is_gone(g)).map(|(h, _)| h.clone()).collect()
        });
        for host in gone {
            let (store, key) = (self.store.clone(), format!("{LUNS}{host}"));
            blocking(move || store.put_blob(&key, b"")).await?;
            self.known.with(|k| k.remove(&host));
        }
        Ok(())
    }

    /// Makes durable what a host knows.
    async fn remember(&self, host: &str, numbers: Vec<(u16, String)>) -> Result<()> {
        let unreadable = |e| Error::new(Code::Internal, "numbers of a host").because(e);
        let bytes = serde_json::to_vec(&numbers).map_err(unreadable)?;
        let (store, key) = (self.store.clone(), format!("{LUNS}{host}"));
        blocking(move || store.put_blob(&key, &bytes)).await?;
        self.known.with(|k| {
            let seen = Instant::now();
            k.entry(host.to_string()).or_insert(Guest { numbers: Vec::new(), seen }).numbers =
                numbers;
        });
        Ok(())
    }

    /// Keeps numbers apart that hosts know. Gives the command to be carried out.
    pub(super) async fn keep_luns(&self, command: Command, old: &Model) -> Result<Command> {
        let concerned = matches!(
            command,
            Command::CreateMap(_)
                | Command::DeleteMap { .. }
                | Command::ImportPool { .. }
                | Command::ReleasePool { .. }
        );
        if concerned {
            self.see(&self.plane.status().await?).await?;
        }
        Ok(match command {
            Command::CreateMap(spec) => Command::CreateMap(self.choose_lun(spec, old)),
            other => other,
        })
    }

    /// Refuses numbers by which hosts know other volumes, and remembers what is taken from them. Before it is in effect.
    pub(super) async fn note_luns(&self, old: &Model, new: &Model) -> Result<()> {
        let with = |m: &Model, host: &str, lun: u16, volume: &str| {
            m.maps.iter().any(|x| x.host == host && x.lun == lun && x.volume == volume)
        };
        for m in new.maps.iter().filter(|m| !with(old, &m.host, m.lun, &m.volume)) {
            if let Some(was) = self.known.other(&m.host, m.lun, &m.volume) {
                return Err(Error::new(
                    Code::LunInUse,
                    format!("host `{}` knows another volume as LUN {}", m.host, m.lun),
                )
                .because(format!(
                    "it was volume `{was}`, and the host has not been gone for ten minutes since"
                ))
                .hint("name another LUN"));
            }
        }
        let mut taken: BTreeMap<&str, Vec<(u16, String)>> = BTreeMap::new();
        for m in old.maps.iter().filter(|m| !with(new, &m.host, m.lun, &m.volume)) {
            taken.entry(&m.host).or_default().push((m.lun, m.volume.clone()));
        }
        for (host, taken) in taken {
            let Some(mut all) = self.known.with(|k| k.get(host).map(|g| g.numbers.clone())) else {
                // It never logged in.
                continue;
            };
            all.retain(|(lun, _)| !taken.iter().any(|(l, _)| l == lun));
            all.extend(taken);
            all.drain(..all.len().saturating_sub(MOST));
            self.remember(host, all).await?;
        }
        Ok(())
    }

    fn choose_lun(&self, spec: MapSpec, old: &Model) -> MapSpec {
        let known = self.known.with(|k| k.get(&spec.host).is_some_and(|g| !g.numbers.is_empty()));
        if !known || spec.lun.is_some() {
            return spec;
        }
        let taken = |lun: u16| {
            old.maps.iter().any(|m| m.host == spec.host && m.lun == lun)
                || self.known.other(&spec.host, lun, &spec.volume).is_some()
        };
        // When all are taken the model says so.
        let lun = (0..=crate::model::MAX_LUN).find(|lun| !taken(*lun));
        MapSpec { lun, ..spec }
    }
}
