//! Target ports: one, several at once, and those that a configuration file moves before a start.

use super::*;
use crate::model::{Change, TargetSpec};

impl Controller {
    pub(super) async fn start_target(&self, model: &Model, name: &str) -> Result<()> {
        let listening = self.plane.start_target(model.target(name)?).await?;
        let list: Vec<String> = listening.iter().map(ToString::to_string).collect();
        tracing::info!("target `{name}` listens on {}", list.join(", "));
        let mut up = self.up();
        up.targets.insert(name.to_string());
        up.faults.remove(&format!("target/{name}"));
        Ok(())
    }

    /// Has the ports listen where `new` says that `old` has elsewhere. All of them are closed before any listens: one
    /// may take an address of another. One that cannot listen is a fault of its own, and is tried again.
    pub(super) async fn put_ports(&self, old: &Model, new: &Model) {
        let names = old.targets.keys().chain(new.targets.keys());
        let is_other = |name: &&String| old.targets.get(*name) != new.targets.get(*name);
        let all: BTreeSet<&String> = names.filter(is_other).collect();
        for name in &all {
            self.up().targets.remove(*name);
            if let Err(e) = self.plane.stop_target(name).await {
                tracing::warn!("target port {name} is not closed in order: {e}");
            }
        }
        for name in all.into_iter().filter(|n| new.targets.contains_key(*n)) {
            if let Err(e) = self.start_target(new, name).await {
                self.fault(format!("target/{name}"), e);
            }
        }
    }
}

/// The configuration with ports that it has where they are declared to be, so that a start does not listen first
/// where they were. What cannot be, or cannot be kept, stays as it was: that is told when all that is declared is
/// carried out.
pub(super) fn moved(
    store: &MetaStore,
    model: Model,
    declared: &[TargetSpec],
) -> Result<(Model, Vec<Change>)> {
    let here = declared.iter().filter(|t| model.targets.contains_key(&t.name));
    let (fit, _) = model.fitting_targets(&here.cloned().collect::<Vec<_>>(), &[]);
    let mut new = model.clone();
    let put = Command::PutTargets { put: fit, gone: Vec::new() };
    let changes = new.apply(put, entropy()?)?;
    if changes.is_empty() {
        return Ok((model, changes));
    }
    match store.commit(&model, &new) {
        Ok(()) => Ok((new, changes)),
        Err(e) => {
            tracing::warn!("target ports begin where they were: {e}");
            Ok((model, Vec::new()))
        }
    }
}
