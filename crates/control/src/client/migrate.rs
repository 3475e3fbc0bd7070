//! Migrations, and volumes in image mode.

use super::{Client, decode, path};
use crate::error::Result;
use crate::live::MigrationLive;
use crate::model::{AdoptSpec, MigrationPatch, MigrationSpec, Volume};
use hyper::Method;

fn of(volume: &str) -> Result<String> {
    Ok(path("volumes", &[("volume", volume)])? + "/migration")
}

impl Client {
    /// Migrations under way, and the last ones that ended.
    pub async fn migrations(&self) -> Result<Vec<MigrationLive>> {
        self.get("/v1/migrations").await
    }

    /// How the migration of a volume stands.
    pub async fn migration(&self, volume: &str) -> Result<MigrationLive> {
        self.get(&of(volume)?).await
    }

    /// Begins to move a volume.
    pub async fn start_migration(
        &self,
        volume: &str,
        spec: &MigrationSpec,
    ) -> Result<MigrationLive> {
        self.send(Method::POST, &of(volume)?, spec).await
    }

    /// Changes how a volume is moved.
    pub async fn tune_migration(
        &self,
        volume: &str,
        patch: &MigrationPatch,
    ) -> Result<MigrationLive> {
        self.send(Method::PATCH, &of(volume)?, patch).await
    }

    /// Ends a migration before its cut-over.
    pub async fn cancel_migration(&self, volume: &str) -> Result<MigrationLive> {
        decode(&self.call(Method::DELETE, &of(volume)?, None).await?)
    }

    /// Makes a volume of a foreign file or disk.
    pub async fn adopt(&self, spec: &AdoptSpec) -> Result<Volume> {
        self.send(Method::POST, "/v1/images", spec).await
    }
}
