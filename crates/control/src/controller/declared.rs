//! Carrying out a declared configuration.

use super::*;
use crate::declare::{self, Desired, Item};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What applying a declared configuration did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApplyReport {
    /// Objects that were created or changed, e.g. `volume/db-01`, in order.
    pub changed: Vec<String>,
    /// Number of declared objects that were as declared already.
    pub unchanged: usize,
}

/// The fault of an object that is not as it is declared.
fn fault(object: &str) -> String {
    format!("declared/{object}")
}

impl Controller {
    /// Makes what is declared so; what is not declared stays. Applying the same again changes nothing. Pools come
    /// first, as their sizes are known only once they are open; everything else is then checked as a whole before
    /// any of it is carried out.
    pub async fn declare(self: &Arc<Self>, desired: Desired) -> Result<ApplyReport> {
        let me = self.clone();
        finish(tokio::spawn(async move {
            me.warm_declared(&desired.volumes).await?;
            let _one = me.settled_turn().await?;
            let done = me.declare_locked(&desired).await?;
            me.supersede();
            Ok(done)
        }))
        .await
    }

    /// As [`declare`](Controller::declare) for what is declared at a start: each object by itself, its devices looked at as ever. One
    /// that cannot be made so stops nothing else: it is a fault, and is tried again every few seconds.
    pub async fn declare_at_start(self: &Arc<Self>, mut desired: Desired) {
        // The file says the same at every start, also when a pool was released, or the store is lost: that is no leave to destroy it.
        for spec in desired.pools.iter_mut().filter(|_| !has(Bug::FileDestroysPools)) {
            spec.overwrite = spec.overwrite.without_pools();
        }
        *self.declared_open() = desired;
        self.declare_again().await;
    }

    /// Another declaration counts from here on, and not what of the one at the start is not so yet.
    fn supersede(&self) {
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
            for item in open.items() {
                if let Item::Volume(spec) = item
                    && let Err(e) = me.warm_declared(std::slice::from_ref(spec)).await
                {
                    me.unfulfilled(&item.object(), &e);
                    continue;
                }
                let Ok(_one) = me.turn().await else { return };
                me.declare_one(item.object(), || item.command(&me.model())).await;
            }
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
        let mut report = ApplyReport::default();
        let done = match command() {
            Ok(command) => self.declared(object.clone(), command, &mut report).await,
            Err(e) => Err(e),
        };
        if let Err(e) = done {
            self.unfulfilled(&object, &e);
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

    async fn declare_locked(&self, desired: &Desired) -> Result<ApplyReport> {
        let mut report = ApplyReport::default();
        for spec in &desired.pools {
            let command = declare::pool(&self.model(), spec)?;
            self.declared(format!("pool/{}", spec.name), command, &mut report).await?;
        }
        let mut scratch = Model::clone(&self.model());
        for item in desired.items() {
            if let Some(command) = item.command(&scratch)? {
                self.check_ready(&command, &scratch)?;
                scratch.apply(command, entropy()?)?;
            }
        }
        for item in desired.items() {
            let command = item.command(&self.model())?;
            self.declared(item.object(), command, &mut report).await?;
        }
        Ok(report)
    }

    async fn declared(
        &self,
        object: String,
        command: Option<Command>,
        report: &mut ApplyReport,
    ) -> Result<()> {
        let before = self.model().revision;
        if let Some(command) = command {
            self.change(command).await?;
        }
        self.fulfil(&object);
        if self.model().revision == before {
            report.unchanged += 1;
        } else {
            report.changed.push(object);
        }
        Ok(())
    }
}
