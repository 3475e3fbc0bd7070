//! Routes of migrations, and of volumes in image mode.

use super::Reply;
use super::extract::{JsonBody, Names};
use super::notes::{MadeAt, made_at};
use super::routes::{Created, Ctl, made};
use crate::error::Problem;
use crate::live::MigrationLive;
use crate::model::{AdoptSpec, MigrationPatch, MigrationSpec, Volume};
use axum::Json;
use axum::extract::State;

/// Migrations under way, and the last ones that ended since the daemon was started.
#[utoipa::path(get, path = "/v1/migrations", tag = "migrations", responses(
    (status = 200, body = Vec<MigrationLive>), (status = "default", body = Problem)))]
pub(super) async fn list(State(app): Ctl) -> Reply<Json<Vec<MigrationLive>>> {
    Ok(Json(app.controller.migrations().await?))
}

/// How the migration of a volume stands, or how the last one ended.
#[utoipa::path(get, path = "/v1/volumes/{name}/migration", tag = "migrations",
    params(("name" = String, Path)),
    responses((status = 200, body = MigrationLive), (status = "default", body = Problem)))]
pub(super) async fn get(State(app): Ctl, Names(name): Names<String>) -> Reply<Json<MigrationLive>> {
    Ok(Json(app.controller.migration(&name).await?))
}

/// Begin to move a volume to another pool, or to a file or disk of its own. Hosts go on using it.
#[utoipa::path(post, path = "/v1/volumes/{name}/migration", tag = "migrations",
    params(("name" = String, Path)), request_body = MigrationSpec,
    responses((status = 201, body = MigrationLive), (status = "default", body = Problem)))]
pub(super) async fn start(
    State(app): Ctl,
    Names(name): Names<String>,
    JsonBody(spec): JsonBody<MigrationSpec>,
) -> Created<MigrationLive> {
    made(app.controller.start_migration(name, spec).await?)
}

/// Change the rate of a migration under way, or let it wait.
#[utoipa::path(patch, path = "/v1/volumes/{name}/migration", tag = "migrations",
    params(("name" = String, Path)), request_body = MigrationPatch,
    responses((status = 200, body = MigrationLive), (status = "default", body = Problem)))]
pub(super) async fn tune(
    State(app): Ctl,
    Names(name): Names<String>,
    JsonBody(patch): JsonBody<MigrationPatch>,
) -> Reply<Json<MigrationLive>> {
    Ok(Json(app.controller.tune_migration(name, patch).await?))
}

/// End a migration before its cut-over. The volume stays where it is.
#[utoipa::path(delete, path = "/v1/volumes/{name}/migration", tag = "migrations",
    params(("name" = String, Path)),
    responses((status = 200, body = MigrationLive), (status = "default", body = Problem)))]
pub(super) async fn cancel(
    State(app): Ctl,
    Names(name): Names<String>,
) -> Reply<Json<MigrationLive>> {
    Ok(Json(app.controller.cancel_migration(name).await?))
}

/// Make a volume of a foreign file or disk, as it is.
#[utoipa::path(post, path = "/v1/images", tag = "migrations", request_body = AdoptSpec, responses(
    (status = 201, body = Volume), (status = "default", body = Problem)))]
pub(super) async fn adopt(State(app): Ctl, JsonBody(spec): JsonBody<AdoptSpec>) -> MadeAt<Volume> {
    let volume = app.controller.adopt(spec).await?.told_to_others();
    made_at(format!("/v1/volumes/{}", volume.name), volume)
}
