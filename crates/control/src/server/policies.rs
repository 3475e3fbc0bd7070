//! Routes of periodic snapshots.

use super::Reply;
use super::extract::{JsonBody, Params};
use super::notes::About;
use super::routes::Ctl;
use crate::error::Problem;
use crate::live::SnapshotRuleLive;
use crate::model::SnapshotPolicySpec;
use axum::extract::State;
use axum::{Extension, Json};
use serde::Deserialize;
use utoipa::IntoParams;

/// Whose rules to give.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PolicyQuery {
    /// Those of this volume.
    volume: Option<String>,
}

/// Rules for periodic snapshots, and how they stand.
#[utoipa::path(get, path = "/v1/snapshot-policies", tag = "snapshots", params(PolicyQuery), responses(
    (status = 200, body = Vec<SnapshotRuleLive>), (status = "default", body = Problem)))]
pub(super) async fn list_policies(
    State(app): Ctl,
    Params(query): Params<PolicyQuery>,
) -> Reply<Json<Vec<SnapshotRuleLive>>> {
    Ok(Json(app.controller.policies(query.volume.as_deref()).await?))
}

/// Give volumes rules for periodic snapshots, all at once; an empty list ends them. Snapshots that were made stay.
#[utoipa::path(put, path = "/v1/snapshot-policies", tag = "snapshots",
    request_body = SnapshotPolicySpec,
    responses((status = 200, body = Vec<SnapshotRuleLive>), (status = "default", body = Problem)))]
pub(super) async fn put_policies(
    State(app): Ctl,
    JsonBody(spec): JsonBody<SnapshotPolicySpec>,
) -> Reply<(Extension<About>, Json<Vec<SnapshotRuleLive>>)> {
    let about = About::new("volume", spec.volumes.iter().cloned());
    Ok((about, Json(app.controller.set_policy(spec).await?)))
}
