//! Routes of device graphs and of layers that come and go.

use super::Reply;
use super::extract::{JsonBody, Names};
use super::routes::{Created, Ctl, made};
use crate::error::Problem;
use crate::live::{GraphLive, LayerKindLive, LayerLive};
use crate::model::{LayerChange, LayerSpec, LayerSwap};
use axum::Json;
use axum::extract::State;

/// The device graph of a volume, with what passes each layer.
#[utoipa::path(get, path = "/v1/volumes/{name}/graph", tag = "layers",
    params(("name" = String, Path)),
    responses((status = 200, body = GraphLive), (status = "default", body = Problem)))]
pub(super) async fn get_graph(
    State(app): Ctl,
    Names(name): Names<String>,
) -> Reply<Json<GraphLive>> {
    Ok(Json(app.controller.graph(&name).await?))
}

/// The kinds of layers there are, and why those that cannot be put over volumes cannot.
#[utoipa::path(get, path = "/v1/layers", tag = "layers", responses(
    (status = 200, body = Vec<LayerKindLive>), (status = "default", body = Problem)))]
pub(super) async fn kinds(State(app): Ctl) -> Reply<Json<Vec<LayerKindLive>>> {
    Ok(Json(app.controller.layer_kinds()))
}

/// The layers over a volume, the uppermost first.
#[utoipa::path(get, path = "/v1/volumes/{name}/layers", tag = "layers",
    params(("name" = String, Path)),
    responses((status = 200, body = Vec<LayerLive>), (status = "default", body = Problem)))]
pub(super) async fn list(
    State(app): Ctl,
    Names(name): Names<String>,
) -> Reply<Json<Vec<LayerLive>>> {
    Ok(Json(app.controller.layers(&name).await?))
}

/// Put a layer over a volume while hosts use it. Gives all layers.
#[utoipa::path(post, path = "/v1/volumes/{name}/layers", tag = "layers",
    params(("name" = String, Path)), request_body = LayerSpec,
    responses((status = 201, body = Vec<LayerLive>), (status = "default", body = Problem)))]
pub(super) async fn insert(
    State(app): Ctl,
    Names(name): Names<String>,
    JsonBody(spec): JsonBody<LayerSpec>,
) -> Created<Vec<LayerLive>> {
    made(app.controller.change_layers(name, LayerChange::Insert(spec)).await?)
}

/// Put another layer in the place of one while hosts use the volume. Gives all layers.
#[utoipa::path(put, path = "/v1/volumes/{name}/layers/{layer}", tag = "layers",
    params(("name" = String, Path), ("layer" = String, Path)), request_body = LayerSwap,
    responses((status = 200, body = Vec<LayerLive>), (status = "default", body = Problem)))]
pub(super) async fn swap(
    State(app): Ctl,
    Names((name, layer)): Names<(String, String)>,
    JsonBody(with): JsonBody<LayerSwap>,
) -> Reply<Json<Vec<LayerLive>>> {
    let change = LayerChange::Swap { layer, with };
    Ok(Json(app.controller.change_layers(name, change).await?))
}

/// Take a layer off a volume while hosts use it. Gives the layers that are left.
#[utoipa::path(delete, path = "/v1/volumes/{name}/layers/{layer}", tag = "layers",
    params(("name" = String, Path), ("layer" = String, Path)),
    responses((status = 200, body = Vec<LayerLive>), (status = "default", body = Problem)))]
pub(super) async fn remove(
    State(app): Ctl,
    Names((name, layer)): Names<(String, String)>,
) -> Reply<Json<Vec<LayerLive>>> {
    Ok(Json(app.controller.change_layers(name, LayerChange::Remove { layer }).await?))
}
