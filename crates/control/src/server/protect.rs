//! Routes of protected pools: snapshots, clones, scrub, opening by force.

use super::Reply;
use super::extract::{JsonBody, Names, Params};
use super::notes::{self, MadeAt, made_at};
use super::routes::{Created, Ctl, made};
use crate::dataplane::ScrubAction;
use crate::error::Problem;
use crate::live::{ScrubLive, SnapshotLive};
use crate::model::{CloneSpec, DeviceAction, ImportReport, ImportSpec, PoolInfo, Volume};
use crate::units;
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// A snapshot to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotWish {
    /// The volume.
    pub volume: String,
    /// The snapshot's name: up to 30 of `a-z 0-9 . _ -`.
    pub name: String,
}

/// Snapshots to make at one instant, of volumes of one pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotSpec {
    /// Which.
    pub snapshots: Vec<SnapshotWish>,
}

/// How to scrub.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScrubSpec {
    /// Bytes a second at most; left out or 0: as fast as possible.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "units::opt_size"
    )]
    pub rate: Option<u64>,
}

/// Which snapshots to give.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SnapshotQuery {
    /// Those of this volume.
    volume: Option<String>,
}

/// Snapshots, as the pools on the devices have them.
#[utoipa::path(get, path = "/v1/snapshots", tag = "snapshots", params(SnapshotQuery), responses(
    (status = 200, body = Vec<SnapshotLive>), (status = "default", body = Problem)))]
pub(super) async fn list_snapshots(
    State(app): Ctl,
    Params(query): Params<SnapshotQuery>,
) -> Reply<Json<Vec<SnapshotLive>>> {
    Ok(Json(app.controller.snapshots(query.volume.as_deref()).await?))
}

/// Make snapshots, all at one instant.
#[utoipa::path(post, path = "/v1/snapshots", tag = "snapshots", request_body = SnapshotSpec,
    responses((status = 201, body = Vec<SnapshotLive>), (status = "default", body = Problem)))]
pub(super) async fn create_snapshots(
    State(app): Ctl,
    JsonBody(spec): JsonBody<SnapshotSpec>,
) -> Created<Vec<SnapshotLive>> {
    let wanted = spec.snapshots.into_iter().map(|s| (s.volume, s.name)).collect();
    made(app.controller.take_snapshots(wanted).await?)
}

/// Delete a snapshot that no volume was made of.
#[utoipa::path(delete, path = "/v1/snapshots/{volume}/{name}", tag = "snapshots",
    params(("volume" = String, Path), ("name" = String, Path)),
    responses((status = 204), (status = "default", body = Problem)))]
pub(super) async fn delete_snapshot(
    State(app): Ctl,
    Names((volume, name)): Names<(String, String)>,
) -> Reply<StatusCode> {
    app.controller.delete_snapshot(volume, name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Make a volume that no host sees what it was at its newest snapshot.
#[utoipa::path(post, path = "/v1/snapshots/{volume}/{name}/revert", tag = "snapshots",
    params(("volume" = String, Path), ("name" = String, Path)),
    responses((status = 200, body = Volume), (status = "default", body = Problem)))]
pub(super) async fn revert(
    State(app): Ctl,
    Names((volume, name)): Names<(String, String)>,
) -> Reply<Json<Volume>> {
    Ok(Json(app.controller.revert(volume, name).await?.told_to_others()))
}

/// Make a volume of a snapshot.
#[utoipa::path(post, path = "/v1/clones", tag = "snapshots", request_body = CloneSpec, responses(
    (status = 201, body = Volume), (status = "default", body = Problem)))]
pub(super) async fn create_clone(
    State(app): Ctl,
    JsonBody(spec): JsonBody<CloneSpec>,
) -> MadeAt<Volume> {
    let name = spec.name.clone();
    let model = app.controller.clone_volume(spec).await?;
    made_at(format!("/v1/volumes/{name}"), model.volume(&name)?.told_to_others())
}

/// How the scrub of a protected pool stands; null when there was none since it was opened.
#[utoipa::path(get, path = "/v1/pools/{name}/scrub", tag = "pools",
    params(("name" = String, Path)),
    responses((status = 200, body = Option<ScrubLive>), (status = "default", body = Problem)))]
pub(super) async fn get_scrub(
    State(app): Ctl,
    Names(name): Names<String>,
) -> Reply<Json<Option<ScrubLive>>> {
    Ok(Json(app.controller.scrub(&name, ScrubAction::Status).await?))
}

/// Begin a scrub.
#[utoipa::path(post, path = "/v1/pools/{name}/scrub", tag = "pools",
    params(("name" = String, Path)), request_body = ScrubSpec,
    responses((status = 200, body = Option<ScrubLive>), (status = "default", body = Problem)))]
pub(super) async fn start_scrub(
    State(app): Ctl,
    Names(name): Names<String>,
    JsonBody(spec): JsonBody<ScrubSpec>,
) -> Reply<Json<Option<ScrubLive>>> {
    let action = ScrubAction::Start { rate: spec.rate.unwrap_or(0) };
    Ok(Json(app.controller.scrub(&name, action).await?))
}

/// End a scrub.
#[utoipa::path(delete, path = "/v1/pools/{name}/scrub", tag = "pools",
    params(("name" = String, Path)),
    responses((status = 200, body = Option<ScrubLive>), (status = "default", body = Problem)))]
pub(super) async fn stop_scrub(
    State(app): Ctl,
    Names(name): Names<String>,
) -> Reply<Json<Option<ScrubLive>>> {
    Ok(Json(app.controller.scrub(&name, ScrubAction::Stop).await?))
}

/// Open a protected pool without devices that may have what the others have not. That is lost then.
#[utoipa::path(post, path = "/v1/pools/{name}/force", tag = "pools",
    params(("name" = String, Path)),
    responses((status = 200, body = PoolInfo), (status = "default", body = Problem)))]
pub(super) async fn force_pool(
    State(app): Ctl,
    Names(name): Names<String>,
) -> Reply<Json<PoolInfo>> {
    Ok(Json(app.controller.force_pool(name).await?))
}

/// Take a protected pool over from devices that another node, or an earlier configuration, made it of.
#[utoipa::path(post, path = "/v1/imports", tag = "pools", request_body = ImportSpec,
    responses((status = 201, body = ImportReport), (status = "default", body = Problem)))]
pub(super) async fn import_pool(
    State(app): Ctl,
    JsonBody(spec): JsonBody<ImportSpec>,
) -> Created<ImportReport> {
    made(app.controller.import_pool(spec).await?)
}

/// How a pool goes.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ReleaseQuery {
    /// Even if hosts of its volumes are logged in: their commands end with errors. Disks of `weir attach` wait until the pool is back.
    #[serde(default)]
    force: bool,
}

/// Let go of a protected pool and its volumes, which stay on its devices.
#[utoipa::path(post, path = "/v1/pools/{name}/release", tag = "pools",
    params(("name" = String, Path), ReleaseQuery),
    responses((status = 204), (status = "default", body = Problem)))]
pub(super) async fn release_pool(
    State(app): Ctl,
    Names(name): Names<String>,
    Params(query): Params<ReleaseQuery>,
) -> Reply<(HeaderMap, StatusCode)> {
    let taken = match query.force {
        true => app.controller.release_by_force(name).await?,
        false => app.controller.release_pool(name).await.map(|()| Vec::new())?,
    };
    let text = |(host, volume): (String, String)| {
        format!(
            "host `{host}` was logged in: its commands to volume `{volume}` end with errors; a disk of `weir attach` waits until the pool is back"
        )
    };
    Ok((notes::warnings(taken.into_iter().map(text)), StatusCode::NO_CONTENT))
}

/// Do something about the devices of a protected pool. What takes long goes on in the background.
#[utoipa::path(post, path = "/v1/pools/{name}/devices", tag = "pools",
    params(("name" = String, Path)), request_body = DeviceAction,
    responses((status = 200, body = PoolInfo), (status = "default", body = Problem)))]
pub(super) async fn pool_device(
    State(app): Ctl,
    Names(name): Names<String>,
    JsonBody(action): JsonBody<DeviceAction>,
) -> Reply<Json<PoolInfo>> {
    Ok(Json(app.controller.pool_device(name, action).await?))
}
