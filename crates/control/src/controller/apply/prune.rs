//! What is not declared goes.

use super::*;
use crate::controller::clearing::WAIT;
use crate::model::VolumeState;

/// Volumes whose data is not given up.
fn has_data(name: &str) -> Error {
    Error::new(Code::InvalidRequest, format!("volume `{name}` was not deleted"))
        .because("the file does not name it, and nobody has confirmed that its data may be lost")
        .hint("name it in the file; or confirm with --yes (by REST: `delete_data`)")
}

/// Whether something that is declared cannot be without an object.
fn is_needed(desired: &Desired, object: &str) -> bool {
    !has(Bug::PrunedThoughNeeded) && desired.items().any(|i| i.needs().iter().any(|n| n == object))
}

impl Run<'_> {
    /// Takes away mappings, then hosts, before what is declared may need what they hold.
    pub(super) async fn prune_access(&mut self, desired: &Desired) {
        let model = self.model();
        let named = |host: &str, volume: &str| {
            desired.maps.iter().any(|m| (m.host.as_str(), m.volume.as_str()) == (host, volume))
        };
        for m in model.maps.iter().filter(|m| !named(&m.host, &m.volume)) {
            let (host, volume) = (m.host.clone(), m.volume.clone());
            self.prune(format!("map/{host}/{volume}"), Command::DeleteMap { host, volume }).await;
        }
        for name in model.hosts.keys().filter(|n| desired.hosts.iter().all(|h| h.name != **n)) {
            let object = format!("host/{name}");
            if !is_needed(desired, &object) {
                self.prune(object, Command::DeleteHost { name: name.clone() }).await;
            }
        }
    }

    /// Target ports that are not declared, and that nobody uses. They go with what becomes of those that are.
    pub(super) async fn ports_to_go(&mut self, desired: &Desired, model: &Model) -> Vec<String> {
        let mut gone = Vec::new();
        for name in model.targets.keys().filter(|n| desired.targets.iter().all(|t| t.name != **n)) {
            match self.controller.check_port_not_used(name).await {
                Ok(()) => gone.push(name.clone()),
                Err(e) => self.failed(format!("target/{name}"), &e),
            }
        }
        gone
    }

    /// Deletes volumes, then pools, after all that is declared has been done.
    pub(super) async fn prune_data(&mut self, desired: &Desired) {
        let model = self.model();
        let goes = |n: &&String| desired.volumes.iter().all(|v| v.name != **n);
        for name in model.volumes.keys().filter(goes) {
            let object = format!("volume/{name}");
            if !is_needed(desired, &object) {
                self.prune(object, Command::DeleteVolume { name: name.clone() }).await;
            }
        }
        // Their pools wait for their space.
        let until = Instant::now() + WAIT;
        for name in model.volumes.keys().filter(|_| !self.how.dry_run) {
            // What fails is a fault.
            drop(self.controller.deleted_soon(name, until).await);
        }
        for name in model.pools.keys().filter(|n| desired.pools.iter().all(|p| p.name != **n)) {
            let object = format!("pool/{name}");
            if !is_needed(desired, &object) {
                self.prune(object, Command::DeletePool { name: name.clone() }).await;
            }
        }
    }

    async fn prune(&mut self, object: String, command: Command) {
        if let Err(e) = self.try_prune(&object, command).await {
            self.failed(object, &e);
        }
    }

    async fn try_prune(&mut self, object: &str, command: Command) -> Result<()> {
        let _one = self.turn().await?;
        let model = self.model();
        if !is_there(object, &model) {
            // Somebody else was faster.
            return Ok(());
        }
        match &command {
            Command::DeleteMap { host, volume } => {
                self.controller.check_gone(host, volume).await?;
            }
            // It may carry what this configuration does not know yet.
            Command::DeletePool { name }
                if self.controller.is_unknown(name, &model) && !has(Bug::PrunedBesideOpening) =>
            {
                return Err(match self.controller.is_opening(name) {
                    true => opening::being_opened(name),
                    false => self.controller.not_ready("pool", name),
                });
            }
            // Whoever gives a pool up says so by a command.
            Command::DeletePool { name } if model.places_in(name).next().is_some() => {
                self.controller.check_pool_up(name)?;
            }
            Command::DeleteVolume { name } => {
                let volume = model.volume(name)?;
                let lost = volume.state == VolumeState::Deleting || self.how.may_delete(volume);
                if !lost && !self.how.dry_run {
                    return Err(has_data(name));
                }
            }
            _ => {}
        }
        self.tried(object.to_string(), Some(command)).await
    }
}
