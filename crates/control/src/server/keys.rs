//! The route of keys.

use super::Reply;
use super::extract::{JsonBody, Names};
use super::routes::Ctl;
use crate::error::Problem;
use crate::model::{RekeySpec, Volume};
use axum::Json;
use axum::extract::State;

/// Wrap the own key of an encrypted volume with another key. At once, without touching its data; also while it is not
/// ready because the key is not where it was.
#[utoipa::path(post, path = "/v1/volumes/{name}/rekey", tag = "volumes",
    params(("name" = String, Path)), request_body = RekeySpec,
    responses((status = 200, body = Volume), (status = "default", body = Problem)))]
pub(super) async fn rekey(
    State(app): Ctl,
    Names(name): Names<String>,
    JsonBody(spec): JsonBody<RekeySpec>,
) -> Reply<Json<Volume>> {
    Ok(Json(app.controller.rekey(name, spec).await?.told_to_others()))
}
