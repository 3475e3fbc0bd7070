//! What is not declared goes.

use super::*;

/// Volumes whose data is not given up.
fn has_data(name: &str) -> Error {
    Error::new(Code::InvalidRequest, format!("volume `{name}` was not deleted"))
        .because("the file does not name it, and nobody has confirmed that its data may be lost")
        .hint("name it in the file; or confirm with --yes (by REST: `delete_data`)")
}

impl Run<'_> {
    /// Takes away mappings, then hosts and target ports, before what is declared may need what they hold.
    pub(super) async fn prune_access(&mut self, desired: &Desired) {
        let model = self.model();
        let named = |host: &str, volume: &str| {
            desired.maps.iter().any(|m| (m.host.as_str(), m.volume.as_str()) == (host, volume))
        };
        for m in model.maps.iter().filter(|m| !named(&m.host, &m.volume)) {
            let (host, volume) = (m.host.clone(), m.volume.clone());
            let object = format!("map/{host}/{volume}");
            let free = self.controller.check_not_used(&host, &volume).await;
            self.one(object, free.map(|()| Some(Command::DeleteMap { host, volume }))).await;
        }
        for name in model.hosts.keys().filter(|n| desired.hosts.iter().all(|h| h.name != **n)) {
            let command = Command::DeleteHost { name: name.clone() };
            self.one(format!("host/{name}"), Ok(Some(command))).await;
        }
        // A file that names no port at all says nothing of them.
        let ports = model.targets.keys().filter(|_| !desired.targets.is_empty());
        for name in ports.filter(|n| desired.targets.iter().all(|t| t.name != **n)) {
            let command = Command::DeleteTarget { name: name.clone() };
            self.one(format!("target/{name}"), Ok(Some(command))).await;
        }
    }

    /// Deletes volumes, then pools, after all that is declared has been done.
    pub(super) async fn prune_data(&mut self, desired: &Desired, how: How) {
        let model = self.model();
        for v in model.volumes.values() {
            if desired.volumes.iter().any(|d| d.name == v.name) {
                continue;
            }
            let name = v.name.clone();
            let lost = how.delete_data || how.dry_run || v.state == VolumeState::Deleting;
            let object = format!("volume/{name}");
            let command =
                if lost { Ok(Some(Command::DeleteVolume { name })) } else { Err(has_data(&name)) };
            self.one(object, command).await;
        }
        for name in model.pools.keys().filter(|n| desired.pools.iter().all(|p| p.name != **n)) {
            let command = Command::DeletePool { name: name.clone() };
            self.one(format!("pool/{name}"), Ok(Some(command))).await;
        }
    }
}
