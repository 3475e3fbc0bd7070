//! Carrying out a declared configuration.

use super::*;
use crate::declare::{self, Desired};
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

impl Controller {
    /// Makes what is declared so; what is not declared stays. Applying the same again changes nothing. Pools come
    /// first, as their sizes are known only once they are open; everything else is then checked as a whole before
    /// any of it is carried out.
    pub async fn declare(self: &Arc<Self>, desired: Desired) -> Result<ApplyReport> {
        let me = self.clone();
        finish(tokio::spawn(async move {
            me.warm_declared(&desired.volumes).await?;
            let _one = me.changes.lock().await;
            me.declare_locked(&desired).await
        }))
        .await
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
        if self.model().revision == before {
            report.unchanged += 1;
        } else {
            report.changed.push(object);
        }
        Ok(())
    }
}
