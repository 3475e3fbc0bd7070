//! What the configuration file declares, at a start and after it.

use super::*;
use crate::declare::{self, Item, differences};
use crate::model::TargetSpec;

/// The fault of an object that is not as it is declared.
fn fault(object: &str) -> String {
    format!("declared/{object}")
}

impl Controller {
    /// Makes so what the configuration file declares at a start: each object by itself, its devices looked at as
    /// ever. One that cannot be made so stops nothing else: it is a fault, and is tried again every few seconds.
    pub async fn declare_at_start(self: &Arc<Self>, mut desired: Desired) {
        // The file says the same at every start, also when a pool was released, or the store is lost: that is no
        // leave to destroy it.
        for spec in desired.pools.iter_mut().filter(|_| !has(Bug::FileDestroysPools)) {
            spec.overwrite = spec.overwrite.without_pools();
        }
        *self.declared_file.lock().unwrap_or_else(PoisonError::into_inner) = desired.clone();
        *self.declared_open() = desired;
        self.declare_again().await;
    }

    /// Another declaration counts from here on, and not what of the one at the start is not so yet.
    pub(super) fn supersede(&self) {
        if has(Bug::RetriedForEver) {
            return;
        }
        *self.declared_open() = Desired::default();
        let declared = fault("");
        self.up().faults.retain(|object, _| !object.starts_with(&declared));
    }

    /// Tries what was declared at the start and is not so yet.
    pub(super) async fn declare_again(self: &Arc<Self>) {
        let open = self.declared_open().clone();
        if open == Desired::default() {
            return;
        }
        let me = self.clone();
        // It goes on to its end, whoever waits.
        let done = tokio::spawn(async move {
            for spec in &open.pools {
                let command = || declare::pool(&me.model(), spec);
                let object = format!("pool/{}", spec.name);
                let Ok(_one) = me.turn().await else { return };
                me.declare_one(object, command).await;
            }
            for item in open.items().filter(|i| !matches!(i, Item::Target(_))) {
                if let Item::Volume(spec) = item
                    && let Err(e) = me.warm_declared(std::slice::from_ref(spec)).await
                {
                    me.unfulfilled(&item.object(), &e);
                    continue;
                }
                let Ok(_one) = me.turn().await else { return };
                me.declare_one(item.object(), || item.command(&me.model())).await;
            }
            let _one = me.changes.lock().await;
            me.declare_ports(&open.targets).await;
        });
        let done = tokio::select! {
            done = done => done,
            () = self.stopping.begun() => return,
        };
        if let Err(e) = done {
            tracing::error!("what is declared: {e}");
        }
    }

    /// The caller holds `changes`.
    async fn declare_one(&self, object: String, command: impl FnOnce() -> Result<Option<Command>>) {
        if !self.is_declared(&object) && !has(Bug::RetriedForEver) {
            // Somebody has said otherwise meanwhile.
            return;
        }
        let done = match command() {
            Ok(Some(command)) => self.change(command).await.map(drop),
            Ok(None) => Ok(()),
            Err(e) => Err(e),
        };
        match done {
            Ok(()) => self.fulfil(&object),
            Err(e) => self.unfulfilled(&object, &e),
        }
    }

    /// Target ports, all at once: one may take the address of another. The caller holds `changes`.
    async fn declare_ports(&self, specs: &[TargetSpec]) {
        let object = |name: &str| format!("target/{name}");
        let is_open =
            |s: &&TargetSpec| self.is_declared(&object(&s.name)) || has(Bug::RetriedForEver);
        let open: Vec<TargetSpec> = specs.iter().filter(is_open).cloned().collect();
        let (fit, wrong) = self.model().fitting_targets(&open, &[]);
        for (name, e) in &wrong {
            self.unfulfilled(&object(name), e);
        }
        if fit.is_empty() {
            return;
        }
        let put = Command::PutTargets { put: fit.clone(), gone: Vec::new() };
        let done = self.change(put).await;
        for spec in &fit {
            match &done {
                Ok(_) => self.fulfil(&object(&spec.name)),
                Err(e) => self.unfulfilled(&object(&spec.name), e),
            }
        }
    }

    fn unfulfilled(&self, object: &str, why: &Error) {
        let e = Error::new(
            why.code,
            format!("`{object}` is not as the configuration file declares it"),
        )
        .because(why)
        .hint(match why.hint.as_str() {
            "" => "it is tried again every few seconds".to_string(),
            hint => format!("{hint}; it is tried again every few seconds"),
        });
        let key = fault(object);
        if self.up().faults.insert(key.clone(), e.clone()).as_ref() != Some(&e) {
            self.events.publish("error", &key, &e.to_string());
        }
    }

    /// Whether an object is to be as it was declared at the start, and is not so yet.
    fn is_declared(&self, object: &str) -> bool {
        let open = self.declared_open();
        let pool = |p: &crate::model::PoolSpec| format!("pool/{}", p.name) == object;
        open.pools.iter().any(pool) || open.items().any(|i| i.object() == object)
    }

    /// An object is as it is declared, or somebody has changed it since: that counts more, until the next start.
    pub(super) fn fulfil(&self, object: &str) {
        self.up().faults.remove(&fault(object));
        let mut open = self.declared_open();
        let left: Vec<bool> = open.items().map(|i| i.object() != object).collect();
        let mut left = left.into_iter();
        let mut keep = || left.next().unwrap_or(true);
        open.volumes.retain(|_| keep());
        open.hosts.retain(|_| keep());
        open.maps.retain(|_| keep());
        open.targets.retain(|_| keep());
        open.pools.retain(|p| format!("pool/{}", p.name) != object);
    }

    fn declared_open(&self) -> MutexGuard<'_, Desired> {
        self.declared_open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the next start makes of an object (`volume/db-01`, `map/HOST/VOLUME`) that is not as the configuration
    /// file declares it.
    pub fn declared_otherwise(&self, object: &str) -> Option<String> {
        let file = self.declared_file.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let model = self.model();
        let pool = file.pools.iter().find(|p| format!("pool/{}", p.name) == object);
        let item = file.items().find(|i| i.object() == object);
        let command = match (pool, item) {
            (Some(spec), _) => declare::pool(&model, spec),
            (None, Some(item)) => item.command(&model),
            (None, None) => return None,
        };
        let what = format!(
            "`{object}` is declared in the configuration file that the daemon has read at its start"
        );
        let then = "unless the file is changed";
        let mut next = Model::clone(&model);
        let applied = match command {
            Ok(None) => return None,
            Ok(Some(command)) => next.apply(command, 0).map(drop),
            Err(e) => Err(e),
        };
        Some(match applied {
            Ok(()) if declare::is_there(object, &model) => {
                let all: Vec<String> =
                    differences(object, &model, &next).iter().map(ToString::to_string).collect();
                format!("{what}: {then}, the next start puts it back ({})", all.join(", "))
            }
            Ok(()) => format!("{what}: {then}, the next start makes it again"),
            Err(e) => format!("{what}: {then}, it is a fault after the next start ({e})"),
        })
    }
}
