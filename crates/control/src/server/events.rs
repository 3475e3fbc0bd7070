//! Events, and metrics.

use super::extract::Params;
use super::routes::Ctl;
use super::{Reply, metrics};
use crate::error::Problem;
use crate::events::EventPage;
use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use serde::Deserialize;
use std::time::Duration;
use utoipa::IntoParams;

/// Longest wait of `GET /v1/events`, in milliseconds.
const MAX_WAIT_MS: u64 = 60_000;
/// Most events in one answer.
const MAX_EVENTS: usize = 1000;

/// The same as numbers for Prometheus.
#[utoipa::path(get, path = "/v1/metrics", tag = "node", responses(
    (status = 200, body = String, content_type = "text/plain"),
    (status = "default", body = Problem)))]
pub(super) async fn get_metrics(State(app): Ctl) -> Reply<impl IntoResponse> {
    let status = app.controller.status().await?;
    let model = app.controller.model();
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    Ok((kind, metrics::text(&status, &model)))
}

/// Which events to give.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventsQuery {
    /// Give events after this number (default 0).
    #[serde(default)]
    after: u64,
    /// When there are none, wait up to this many milliseconds for one (default 0, at most 60000).
    #[serde(default)]
    wait_ms: u64,
}

/// What happened, and how far long operations are. Poll with `after` set to `next` of the answer before.
#[utoipa::path(get, path = "/v1/events", tag = "node", params(EventsQuery), responses(
    (status = 200, body = EventPage), (status = "default", body = Problem)))]
pub(super) async fn get_events(
    State(mut app): Ctl,
    Params(query): Params<EventsQuery>,
) -> Json<EventPage> {
    let wait = Duration::from_millis(query.wait_ms.min(MAX_WAIT_MS));
    // A waiting reader must not hold up the end of the daemon.
    tokio::select! {
        page = app.controller.events().wait_after(query.after, MAX_EVENTS, wait) => Json(page),
        _ = app.stop.wait_for(|stop| *stop) => {
            Json(app.controller.events().after(query.after, MAX_EVENTS))
        }
    }
}
