//! The routes. Each handler is a line or two: the controller does the work.

use super::extract::{Failure, JsonBody, Names, Params, after_start};
use super::notes::{About, MadeAt, made_at, noted};
use super::{MAX_BODY, Reply, events, keys, layers, migrate, openapi, policies, protect};
use crate::controller::{ApplyReport, Controller};
use crate::declare::ApplySpec;
use crate::error::{Code, Error, Problem};
use crate::live::{Status, VolumeInfo};
use crate::model::{
    Command, Host, HostPatch, HostSpec, InitiatorPort, MapSpec, Mapping, Model, PoolInfo,
    PoolPatch, PoolSpec, TargetPort, TargetSpec, Volume, VolumePatch, VolumeSpec,
};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Extension, Json, Router};
use serde::Deserialize;
use std::sync::Arc;
use tokio::sync::watch;
use utoipa::IntoParams;

#[derive(Clone)]
pub(super) struct App {
    pub(super) controller: Arc<Controller>,
    pub(super) stop: watch::Receiver<bool>,
}

pub(super) type Ctl = State<App>;
pub(super) type Created<T> = Reply<(StatusCode, Json<T>)>;

pub(super) fn router(controller: Arc<Controller>, stop: watch::Receiver<bool>) -> Router {
    let app = App { controller, stop };
    Router::new()
        .route("/v1/pools", get(list_pools).post(create_pool))
        .route("/v1/pools/{name}", get(get_pool).patch(patch_pool).delete(delete_pool))
        .route("/v1/pools/{name}/devices", post(protect::pool_device))
        .route("/v1/pools/{name}/force", post(protect::force_pool))
        .route("/v1/pools/{name}/release", post(protect::release_pool))
        .route("/v1/imports", post(protect::import_pool))
        .route(
            "/v1/pools/{name}/scrub",
            get(protect::get_scrub).post(protect::start_scrub).delete(protect::stop_scrub),
        )
        .route("/v1/snapshots", get(protect::list_snapshots).post(protect::create_snapshots))
        .route("/v1/snapshots/{volume}/{name}", delete(protect::delete_snapshot))
        .route("/v1/snapshots/{volume}/{name}/revert", post(protect::revert))
        .route("/v1/snapshot-policies", get(policies::list_policies).put(policies::put_policies))
        .route("/v1/clones", post(protect::create_clone))
        .route("/v1/layers", get(layers::kinds))
        .route("/v1/volumes/{name}/rekey", post(keys::rekey))
        .route("/v1/volumes/{name}/graph", get(layers::get_graph))
        .route("/v1/volumes/{name}/layers", get(layers::list).post(layers::insert))
        .route("/v1/volumes/{name}/layers/{layer}", put(layers::swap).delete(layers::remove))
        .route(
            "/v1/volumes/{name}/migration",
            get(migrate::get).post(migrate::start).patch(migrate::tune).delete(migrate::cancel),
        )
        .route("/v1/migrations", get(migrate::list))
        .route("/v1/images", post(migrate::adopt))
        .route("/v1/volumes", get(list_volumes).post(create_volume))
        .route("/v1/volumes/{name}", get(get_volume).patch(patch_volume).delete(delete_volume))
        .route("/v1/hosts", get(list_hosts).post(create_host))
        .route("/v1/hosts/{name}", get(get_host).patch(patch_host).delete(delete_host))
        .route("/v1/maps", get(list_maps).post(create_map))
        .route("/v1/maps/{host}/{volume}", get(get_map).delete(delete_map))
        .route("/v1/targets", get(list_targets).post(put_target))
        .route("/v1/targets/{name}", get(get_target).delete(delete_target))
        .route("/v1/apply", post(apply))
        .route("/v1/status", get(get_status))
        .route("/v1/metrics", get(events::get_metrics))
        .route("/v1/events", get(events::get_events))
        .route("/v1/openapi.json", get(get_openapi))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(axum::middleware::from_fn_with_state(app.clone(), noted))
        .layer(axum::middleware::from_fn_with_state(app.clone(), after_start))
        .with_state(app)
}

async fn no_route(uri: Uri) -> Failure {
    Failure(
        Error::new(Code::NotFound, format!("there is no `{}` here", uri.path()))
            .hint("GET /v1/openapi.json lists the paths"),
    )
}

async fn no_method(method: Method, uri: Uri) -> Failure {
    Failure(
        Error::new(Code::MethodNotAllowed, format!("`{}` does not take {method}", uri.path()))
            .hint("GET /v1/openapi.json lists the methods"),
    )
}

pub(super) fn made<T>(object: T) -> Created<T> {
    Ok((StatusCode::CREATED, Json(object)))
}

async fn run(app: &App, command: Command) -> Reply<Arc<Model>> {
    Ok(app.controller.execute(command).await?)
}

/// All pools.
#[utoipa::path(get, path = "/v1/pools", tag = "pools", responses(
    (status = 200, body = Vec<PoolInfo>), (status = "default", body = Problem)))]
pub(super) async fn list_pools(State(app): Ctl) -> Reply<Json<Vec<PoolInfo>>> {
    Ok(Json(app.controller.pool_infos().await?))
}

/// Create a pool.
#[utoipa::path(post, path = "/v1/pools", tag = "pools", request_body = PoolSpec, responses(
    (status = 201, body = PoolInfo), (status = "default", body = Problem)))]
pub(super) async fn create_pool(
    State(app): Ctl,
    JsonBody(spec): JsonBody<PoolSpec>,
) -> MadeAt<PoolInfo> {
    let name = spec.name.clone();
    run(&app, Command::CreatePool(spec)).await?;
    made_at(format!("/v1/pools/{name}"), app.controller.pool_info(&name).await?)
}

/// One pool.
#[utoipa::path(get, path = "/v1/pools/{name}", tag = "pools", params(("name" = String, Path)),
    responses((status = 200, body = PoolInfo), (status = "default", body = Problem)))]
pub(super) async fn get_pool(State(app): Ctl, Names(name): Names<String>) -> Reply<Json<PoolInfo>> {
    Ok(Json(app.controller.pool_info(&name).await?))
}

/// Add devices to a pool, or grow them.
#[utoipa::path(patch, path = "/v1/pools/{name}", tag = "pools", params(("name" = String, Path)),
    request_body = PoolPatch,
    responses((status = 200, body = PoolInfo), (status = "default", body = Problem)))]
pub(super) async fn patch_pool(
    State(app): Ctl,
    Names(name): Names<String>,
    JsonBody(patch): JsonBody<PoolPatch>,
) -> Reply<Json<PoolInfo>> {
    run(&app, Command::PatchPool { name: name.clone(), patch }).await?;
    Ok(Json(app.controller.pool_info(&name).await?))
}

/// Delete a pool that holds no volumes.
#[utoipa::path(delete, path = "/v1/pools/{name}", tag = "pools", params(("name" = String, Path)),
    responses((status = 204), (status = "default", body = Problem)))]
pub(super) async fn delete_pool(State(app): Ctl, Names(name): Names<String>) -> Reply<StatusCode> {
    run(&app, Command::DeletePool { name }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// All volumes.
#[utoipa::path(get, path = "/v1/volumes", tag = "volumes", responses(
    (status = 200, body = Vec<VolumeInfo>), (status = "default", body = Problem)))]
pub(super) async fn list_volumes(State(app): Ctl) -> Json<Vec<VolumeInfo>> {
    let model = app.controller.model();
    Json(model.volumes.values().map(|v| app.controller.volume_info(v)).collect())
}

/// Create a volume.
#[utoipa::path(post, path = "/v1/volumes", tag = "volumes", request_body = VolumeSpec, responses(
    (status = 201, body = Volume), (status = "default", body = Problem)))]
pub(super) async fn create_volume(
    State(app): Ctl,
    JsonBody(spec): JsonBody<VolumeSpec>,
) -> MadeAt<Volume> {
    let name = spec.name.clone();
    let model = run(&app, Command::CreateVolume(spec)).await?;
    made_at(format!("/v1/volumes/{name}"), model.volume(&name)?.told_to_others())
}

/// One volume.
#[utoipa::path(get, path = "/v1/volumes/{name}", tag = "volumes",
    params(("name" = String, Path)),
    responses((status = 200, body = VolumeInfo), (status = "default", body = Problem)))]
pub(super) async fn get_volume(
    State(app): Ctl,
    Names(name): Names<String>,
) -> Reply<Json<VolumeInfo>> {
    Ok(Json(app.controller.volume_info(app.controller.model().volume(&name)?)))
}

/// Resize a volume or make it read-only.
#[utoipa::path(patch, path = "/v1/volumes/{name}", tag = "volumes",
    params(("name" = String, Path)), request_body = VolumePatch,
    responses((status = 200, body = Volume), (status = "default", body = Problem)))]
pub(super) async fn patch_volume(
    State(app): Ctl,
    Names(name): Names<String>,
    JsonBody(patch): JsonBody<VolumePatch>,
) -> Reply<Json<Volume>> {
    let model = run(&app, Command::PatchVolume { name: name.clone(), patch }).await?;
    Ok(Json(model.volume(&name)?.told_to_others()))
}

/// Delete a volume that is not mapped, with its data. Where its devices take long to give its space back, it is deleted in the
/// background, and shown as *deleting* meanwhile.
#[utoipa::path(delete, path = "/v1/volumes/{name}", tag = "volumes",
    params(("name" = String, Path)),
    responses((status = 204), (status = 202, description = "It is being deleted", body = Volume),
        (status = "default", body = Problem)))]
pub(super) async fn delete_volume(State(app): Ctl, Names(name): Names<String>) -> Reply<Response> {
    let now = run(&app, Command::DeleteVolume { name: name.clone() }).await?;
    Ok(match now.volumes.get(&name) {
        Some(v) => (StatusCode::ACCEPTED, Json(v.told_to_others())).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    })
}

/// All hosts.
#[utoipa::path(get, path = "/v1/hosts", tag = "hosts", responses(
    (status = 200, body = Vec<Host>), (status = "default", body = Problem)))]
pub(super) async fn list_hosts(State(app): Ctl) -> Json<Vec<Host>> {
    Json(app.controller.model().hosts.values().map(Host::without_secret).collect())
}

/// Create a host.
#[utoipa::path(post, path = "/v1/hosts", tag = "hosts", request_body = HostSpec, responses(
    (status = 201, body = Host), (status = "default", body = Problem)))]
pub(super) async fn create_host(
    State(app): Ctl,
    JsonBody(spec): JsonBody<HostSpec>,
) -> MadeAt<Host> {
    let name = spec.name.clone();
    let model = run(&app, Command::CreateHost(spec)).await?;
    made_at(format!("/v1/hosts/{name}"), model.host(&name)?.without_secret())
}

/// One host.
#[utoipa::path(get, path = "/v1/hosts/{name}", tag = "hosts", params(("name" = String, Path)),
    responses((status = 200, body = Host), (status = "default", body = Problem)))]
pub(super) async fn get_host(State(app): Ctl, Names(name): Names<String>) -> Reply<Json<Host>> {
    Ok(Json(app.controller.model().host(&name)?.without_secret()))
}

/// Change a host's initiator ports.
#[utoipa::path(patch, path = "/v1/hosts/{name}", tag = "hosts", params(("name" = String, Path)),
    request_body = HostPatch,
    responses((status = 200, body = Host), (status = "default", body = Problem)))]
pub(super) async fn patch_host(
    State(app): Ctl,
    Names(name): Names<String>,
    JsonBody(patch): JsonBody<HostPatch>,
) -> Reply<Json<Host>> {
    let model = run(&app, Command::PatchHost { name: name.clone(), patch }).await?;
    Ok(Json(model.host(&name)?.without_secret()))
}

/// Delete a host without mappings.
#[utoipa::path(delete, path = "/v1/hosts/{name}", tag = "hosts", params(("name" = String, Path)),
    responses((status = 204), (status = "default", body = Problem)))]
pub(super) async fn delete_host(State(app): Ctl, Names(name): Names<String>) -> Reply<StatusCode> {
    run(&app, Command::DeleteHost { name }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// All mappings.
#[utoipa::path(get, path = "/v1/maps", tag = "maps", responses(
    (status = 200, body = Vec<Mapping>), (status = "default", body = Problem)))]
pub(super) async fn list_maps(State(app): Ctl) -> Json<Vec<Mapping>> {
    Json(app.controller.model().maps.iter().cloned().collect())
}

/// Map a volume to a host.
#[utoipa::path(post, path = "/v1/maps", tag = "maps", request_body = MapSpec, responses(
    (status = 201, body = Mapping), (status = "default", body = Problem)))]
pub(super) async fn create_map(
    State(app): Ctl,
    JsonBody(spec): JsonBody<MapSpec>,
) -> MadeAt<Mapping> {
    let (host, volume) = (spec.host.clone(), spec.volume.clone());
    let model = run(&app, Command::CreateMap(spec)).await?;
    made_at(format!("/v1/maps/{host}/{volume}"), model.map(&host, &volume)?.clone())
}

/// One mapping.
#[utoipa::path(get, path = "/v1/maps/{host}/{volume}", tag = "maps",
    params(("host" = String, Path), ("volume" = String, Path)),
    responses((status = 200, body = Mapping), (status = "default", body = Problem)))]
pub(super) async fn get_map(
    State(app): Ctl,
    Names((host, volume)): Names<(String, String)>,
) -> Reply<Json<Mapping>> {
    Ok(Json(app.controller.model().map(&host, &volume)?.clone()))
}

/// How a mapping goes.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DeleteMapQuery {
    /// Even if the host is logged in: its commands to the volume end with errors.
    #[serde(default)]
    force: bool,
    /// The only initiator port that is to lose the volume: refused if the host is logged in by another, or was within
    /// ten minutes. `force` is for this port only then.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    port: Option<InitiatorPort>,
}

/// Take a mapping away.
#[utoipa::path(delete, path = "/v1/maps/{host}/{volume}", tag = "maps",
    params(("host" = String, Path), ("volume" = String, Path), DeleteMapQuery),
    responses((status = 204), (status = "default", body = Problem)))]
pub(super) async fn delete_map(
    State(app): Ctl,
    Names((host, volume)): Names<(String, String)>,
    Params(query): Params<DeleteMapQuery>,
) -> Reply<StatusCode> {
    match query.port {
        None => app.controller.delete_map(host, volume, query.force).await?,
        Some(port) => app.controller.delete_map_of(host, volume, port, query.force).await?,
    };
    Ok(StatusCode::NO_CONTENT)
}

/// All target ports.
#[utoipa::path(get, path = "/v1/targets", tag = "targets", responses(
    (status = 200, body = Vec<TargetPort>), (status = "default", body = Problem)))]
pub(super) async fn list_targets(State(app): Ctl) -> Json<Vec<TargetPort>> {
    Json(app.controller.model().targets.values().cloned().collect())
}

/// Create a target port, or change the one of that name to be like this.
#[utoipa::path(post, path = "/v1/targets", tag = "targets", request_body = TargetSpec, responses(
    (status = 200, body = TargetPort), (status = "default", body = Problem)))]
pub(super) async fn put_target(
    State(app): Ctl,
    JsonBody(spec): JsonBody<TargetSpec>,
) -> Reply<(Extension<About>, Json<TargetPort>)> {
    let name = spec.name.clone();
    let port = run(&app, Command::PutTarget(spec)).await?.target(&name)?.clone();
    Ok((About::new("target", [name]), Json(port)))
}

/// One target port.
#[utoipa::path(get, path = "/v1/targets/{name}", tag = "targets",
    params(("name" = String, Path)),
    responses((status = 200, body = TargetPort), (status = "default", body = Problem)))]
pub(super) async fn get_target(
    State(app): Ctl,
    Names(name): Names<String>,
) -> Reply<Json<TargetPort>> {
    Ok(Json(app.controller.model().target(&name)?.clone()))
}

/// Delete a target port; its hosts are logged out.
#[utoipa::path(delete, path = "/v1/targets/{name}", tag = "targets",
    params(("name" = String, Path)),
    responses((status = 204), (status = "default", body = Problem)))]
pub(super) async fn delete_target(
    State(app): Ctl,
    Names(name): Names<String>,
) -> Reply<StatusCode> {
    run(&app, Command::DeleteTarget { name }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Make what is declared so, or tell what that would change. Applying the same again changes nothing. What cannot be made so
/// is in the answer's `failed`; all else is done.
#[utoipa::path(post, path = "/v1/apply", tag = "node", request_body = ApplySpec, responses(
    (status = 200, body = ApplyReport), (status = "default", body = Problem)))]
pub(super) async fn apply(
    State(app): Ctl,
    JsonBody(spec): JsonBody<ApplySpec>,
) -> Reply<(Extension<About>, Json<ApplyReport>)> {
    let report = app.controller.apply(spec).await?;
    Ok((About::applied(&report), Json(report)))
}

/// What the node is and does.
#[utoipa::path(get, path = "/v1/status", tag = "node", responses(
    (status = 200, body = Status), (status = "default", body = Problem)))]
pub(super) async fn get_status(State(app): Ctl) -> Reply<Json<Status>> {
    Ok(Json(app.controller.status().await?))
}

/// This description.
#[utoipa::path(get, path = "/v1/openapi.json", tag = "node", responses(
    (status = 200, body = String, content_type = "application/json")))]
pub(super) async fn get_openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], openapi::document())
}
