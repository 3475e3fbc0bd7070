//! What mappings mean to hosts that are logged in: nothing is taken away under them, and no number that they know stands
//! for something else.

use super::Controller;
use crate::error::{Code, Error, Result};
use crate::model::{Command, MapSpec, Model};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How often it is looked whether a host has gone that was about to, and how far apart.
const LOOKS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// Volumes that were taken from hosts and that these, being logged in ever since, still know by a number.
#[derive(Default)]
pub(super) struct Known(Mutex<BTreeMap<(String, u16), String>>);

impl Known {
    fn with<R>(&self, f: impl FnOnce(&mut BTreeMap<(String, u16), String>) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
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

    /// Keeps numbers apart that a logged-in host knows. Gives the command to be carried out.
    pub(super) async fn keep_luns(&self, command: Command, old: &Model) -> Result<Command> {
        match command {
            Command::DeleteMap { host, volume } => {
                if let Ok(m) = old.map(&host, &volume)
                    && self.is_logged_in(&host).await?
                {
                    self.known.with(|k| k.insert((host.clone(), m.lun), volume.clone()));
                }
                Ok(Command::DeleteMap { host, volume })
            }
            Command::CreateMap(spec) => self.choose_lun(spec, old).await.map(Command::CreateMap),
            other => Ok(other),
        }
    }

    async fn choose_lun(&self, spec: MapSpec, old: &Model) -> Result<MapSpec> {
        let known = self.known.with(|k| k.keys().any(|(h, _)| *h == spec.host));
        if !known {
            return Ok(spec);
        }
        if !self.is_logged_in(&spec.host).await? {
            self.known.with(|k| k.retain(|(h, _), _| *h != spec.host));
            return Ok(spec);
        }
        let other = |lun: u16| {
            let was = self.known.with(|k| k.get(&(spec.host.clone(), lun)).cloned());
            was.filter(|v| *v != spec.volume)
        };
        match spec.lun {
            Some(lun) => match other(lun) {
                Some(was) => Err(Error::new(
                    Code::LunInUse,
                    format!("host `{}` knows another volume as LUN {lun}", spec.host),
                )
                .because(format!("it was volume `{was}`, and the host has been logged in since"))
                .hint("name another LUN, or log the host out first")),
                None => Ok(spec),
            },
            None => {
                let taken = |lun: u16| {
                    old.maps.iter().any(|m| m.host == spec.host && m.lun == lun)
                        || other(lun).is_some()
                };
                // When all are taken the model says so.
                let lun = (0..=crate::model::MAX_LUN).find(|lun| !taken(*lun));
                Ok(MapSpec { lun, ..spec })
            }
        }
    }
}
