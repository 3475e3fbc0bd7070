//! Target ports: one, several at once, and those that a configuration file moves at a start.

use super::*;
use crate::model::{TargetPort, TargetSpec};

/// What can be done of target ports that are to be.
pub(super) struct PortPlan {
    /// These can be, all at once.
    pub(super) put: Vec<TargetSpec>,
    /// These go with that.
    pub(super) gone: Vec<String>,
    /// Why others cannot be.
    pub(super) wrong: Vec<(String, Error)>,
    /// Why others do not go.
    pub(super) stay: Vec<(String, Error)>,
}

impl PortPlan {
    /// The command for it, if anything can be done.
    pub(super) fn command(&self) -> Option<Command> {
        let (put, gone) = (self.put.clone(), self.gone.clone());
        (!put.is_empty() || !gone.is_empty()).then_some(Command::PutTargets { put, gone })
    }
}

/// Why a port does not listen while something that hosts have is not as it is declared.
pub(super) fn exposed(object: &str) -> Error {
    Error::new(Code::NotReady, "its hosts are not as declared")
        .because(format!("hosts could log in there and have what they are not to have: `{object}`"))
        .hint(format!("correct `{object}`; the port listens then"))
}

/// Hosts find it elsewhere, or by another protocol.
fn is_elsewhere(was: &TargetPort, is: &TargetPort) -> bool {
    (&was.listen, was.protocol, was.transport) != (&is.listen, is.protocol, is.transport)
}

/// Which of these ports would listen where none of their names has before.
fn elsewhere(model: &Model, put: &[TargetSpec], gone: &[String]) -> BTreeSet<String> {
    let mut new = model.clone();
    let command = Command::PutTargets { put: put.to_vec(), gone: gone.to_vec() };
    if new.apply(command, 1).is_err() {
        return BTreeSet::new();
    }
    let moves = |t: &&TargetPort| model.targets.get(&t.name).is_none_or(|was| is_elsewhere(was, t));
    new.targets.values().filter(moves).map(|t| t.name.clone()).collect()
}

/// Ports that are here and that the file of a start has elsewhere: they are to listen nowhere before hosts and mappings
/// are as it declares them. Not among them are those that cannot be there.
pub(super) fn moved(model: &Model, declared: &[TargetSpec]) -> BTreeSet<String> {
    let here = declared.iter().filter(|t| model.targets.contains_key(&t.name));
    let (fit, _) = model.fitting_targets(&here.cloned().collect::<Vec<_>>(), &[]);
    elsewhere(model, &fit, &[])
}

impl Controller {
    pub(super) async fn start_target(&self, model: &Model, name: &str) -> Result<()> {
        let listening = match self.plane.start_target(model.target(name)?).await {
            Ok(listening) => listening,
            Err(e) => {
                self.may_listen(name);
                return Err(e);
            }
        };
        let list: Vec<String> = listening.iter().map(ToString::to_string).collect();
        tracing::info!("target `{name}` listens on {}", list.join(", "));
        let mut up = self.up();
        up.held.remove(name);
        up.strays.remove(name);
        up.targets.insert(name.to_string());
        up.faults.remove(&format!("target/{name}"));
        Ok(())
    }

    /// A target port could not be started or stopped: it may listen, and does not count as one that does.
    pub(super) fn may_listen(&self, name: &str) {
        let mut up = self.up();
        up.targets.remove(name);
        if !has(Bug::RefusedListens) {
            up.strays.insert(name.to_string());
        }
    }

    /// Stops target ports that may listen, and are not to.
    pub(super) async fn stop_strays(&self, model: &Model) {
        let strays: Vec<String> = self.up().strays.iter().cloned().collect();
        for name in strays.iter().filter(|name| !model.targets.contains_key(*name)) {
            if self.plane.stop_target(name).await.is_ok() {
                self.up().strays.remove(name);
            }
        }
    }

    /// What can be done of target ports: those that do not stand in each other's way, and of those that are new, or come to
    /// listen elsewhere, none while that is `closed`. None is `gone` before all that are to be can be.
    pub(super) fn plan_ports(
        &self,
        model: &Model,
        specs: &[TargetSpec],
        gone: Vec<String>,
        closed: Option<&Error>,
    ) -> PortPlan {
        let (mut put, mut wrong) = model.fitting_targets(specs, &gone);
        if let Some(why) = closed {
            let mut opened = elsewhere(model, &put, &gone);
            opened.extend(self.up().held.iter().cloned());
            let (held, rest) = put.into_iter().partition(|s| opened.contains(&s.name));
            let held: Vec<TargetSpec> = held;
            wrong.extend(held.into_iter().map(|s| (s.name, why.clone())));
            let (fit, more) = model.fitting_targets(&rest, &gone);
            put = fit;
            wrong.extend(more);
        }
        let Some((first, _)) = wrong.first().filter(|_| !gone.is_empty()) else {
            return PortPlan { put, gone, wrong, stay: Vec::new() };
        };
        let stays = |name: String| {
            let e = Error::new(Code::NotReady, format!("target port `{name}` was not removed"))
                .because(format!("`target/{first}`, which the file names, cannot be as declared"))
                .hint(format!("correct `target/{first}`, then apply the file again"));
            (name, e)
        };
        let stay = gone.into_iter().map(stays).collect();
        let (put, more) = model.fitting_targets(&put, &[]);
        wrong.extend(more);
        PortPlan { put, gone: Vec::new(), wrong, stay }
    }

    /// Has the ports listen where `new` says that `old` has elsewhere, and those of `named` that were held back. All of them
    /// are closed before any listens: one may take an address of another. One that cannot listen is a fault of its own, and
    /// is tried again.
    pub(super) async fn put_ports(&self, old: &Model, new: &Model, named: &[TargetSpec]) {
        let held = self.up().held.clone();
        let is_let_go =
            |name: &String| held.contains(name) && named.iter().any(|s| s.name == *name);
        let names = old.targets.keys().chain(new.targets.keys());
        let is_other =
            |name: &&String| old.targets.get(*name) != new.targets.get(*name) || is_let_go(name);
        let all: BTreeSet<&String> = names.filter(is_other).collect();
        for name in &all {
            {
                let mut up = self.up();
                up.targets.remove(*name);
                up.held.remove(*name);
            }
            if let Err(e) = self.plane.stop_target(name).await {
                tracing::warn!("target port {name} is not closed in order: {e}");
                self.may_listen(name);
            }
        }
        for name in all.into_iter().filter(|n| new.targets.contains_key(*n)) {
            if let Err(e) = self.start_target(new, name).await {
                self.fault(format!("target/{name}"), e);
            }
        }
    }

    /// Ports that were held back are not any more once a command names them, also if it changes nothing of them.
    pub(super) async fn let_go(&self, command: &Command, model: &Model) -> Result<()> {
        match command {
            Command::PutTarget(spec) if self.up().held.contains(&spec.name) => {
                self.start_target(model, &spec.name).await?;
                self.fulfil(&format!("target/{}", spec.name));
                Ok(())
            }
            Command::PutTargets { put, .. } => {
                self.put_ports(model, model, put).await;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
