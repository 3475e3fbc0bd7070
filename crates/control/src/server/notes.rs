//! Notes of answers: what was done is done, and there is something to know about it.

use super::routes::App;
use crate::controller::ApplyReport;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use axum::{Extension, Json};

/// Kinds of objects in paths, with their kind in names of objects and how many names follow.
const KINDS: &[(&str, &str, usize)] = &[
    ("pools", "pool", 1),
    ("volumes", "volume", 1),
    ("hosts", "host", 1),
    ("maps", "map", 2),
    ("targets", "target", 1),
];

/// Notes that come with an answer at most: headers have little room.
const MOST: usize = 16;

/// The objects that an answer is about, where neither its path nor its `Location` says so.
#[derive(Debug, Clone)]
pub(super) struct About(Vec<String>);

impl About {
    pub(super) fn new(kind: &str, names: impl IntoIterator<Item = String>) -> Extension<About> {
        Extension(About(names.into_iter().map(|n| format!("{kind}/{n}")).collect()))
    }

    /// What a declaration has changed; of much, the first.
    pub(super) fn applied(report: &ApplyReport) -> Extension<About> {
        let done = report.applied.iter().filter(|_| !report.dry_run);
        Extension(About(done.map(|a| a.object.clone()).take(MOST).collect()))
    }
}

/// An answer about a new object.
pub(super) type MadeAt<T> = super::Reply<(StatusCode, [(HeaderName, String); 1], Json<T>)>;

/// The same, with where it is to be found.
pub(super) fn made_at<T>(path: String, object: T) -> MadeAt<T> {
    Ok((StatusCode::CREATED, [(header::LOCATION, path)], Json(object)))
}

/// The object that a path is about, e.g. `volume/db-01` of `/v1/volumes/db-01/rekey`.
fn object(path: &str) -> Option<String> {
    let mut words = path.strip_prefix("/v1/")?.split('/');
    let first = words.next()?;
    let (_, kind, names) = KINDS.iter().find(|k| k.0 == first)?;
    let names: Vec<&str> = words.take(*names).collect();
    Some(format!("{kind}/{}", names.join("/")))
}

/// Text as a header may hold it.
fn warning(text: &str) -> Option<HeaderValue> {
    let plain = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
    let text: String = text.chars().map(plain).collect();
    let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
    HeaderValue::from_str(&format!("299 weir \"{quoted}\"")).ok()
}

/// These notes as headers, the first of many.
pub(super) fn warnings(notes: impl Iterator<Item = String>) -> HeaderMap {
    let values = notes.take(MOST).filter_map(|n| warning(&n));
    values.map(|v| (header::WARNING, v)).collect::<HeaderMap>()
}

/// Adds a `Warning` to the answer to a change if the next start takes it back.
pub(super) async fn noted(State(app): State<App>, request: Request, next: Next) -> Response {
    let (looks, path) = (request.method() == Method::GET, request.uri().path().to_string());
    let mut response = next.run(request).await;
    if looks || !response.status().is_success() {
        return response;
    }
    let made = response.headers().get(header::LOCATION).and_then(|l| l.to_str().ok());
    let about = match response.extensions().get::<About>() {
        Some(About(all)) => all.clone(),
        None => object(made.unwrap_or(&path)).into_iter().collect(),
    };
    let notes = about.iter().filter_map(|o| app.controller.declared_otherwise(o));
    for value in notes.filter_map(|n| warning(&n)) {
        response.headers_mut().append(header::WARNING, value);
    }
    response
}
