//! Requests in, problems out.

use super::routes::App;
use crate::error::{Code, Error, MAX_BODY_HINT, Problem};
use axum::Json;
use axum::body::Body;
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use serde::de::DeserializeOwned;

/// After how many seconds a request may be sent again that a start has refused.
const AGAIN: &str = "2";

/// An error on its way out.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) Error);

/// The error as `application/problem+json`.
pub(super) fn problem(e: &Error) -> Response {
    let document: Problem = e.problem();
    let status = StatusCode::from_u16(document.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let text = serde_json::to_vec(&document).unwrap_or_default();
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    if e.code == Code::Starting {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static(AGAIN));
    }
    response
}

/// What changes nothing is answered from the first moment on; all else waits until the node's start is over.
pub(super) async fn after_start(State(app): State<App>, request: Request, next: Next) -> Response {
    let looks = matches!(*request.method(), Method::GET | Method::HEAD);
    match looks {
        true => next.run(request).await,
        false => match app.controller.after_start().await {
            Ok(()) => next.run(request).await,
            Err(e) => problem(&e),
        },
    }
}

/// A JSON body; what is wrong with it becomes a problem.
pub(super) struct JsonBody<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        match Json::<T>::from_request(request, state).await {
            Ok(Json(value)) => Ok(JsonBody(value)),
            Err(rejection) => {
                let hint = match &rejection {
                    JsonRejection::MissingJsonContentType(_) => {
                        "send Content-Type: application/json"
                    }
                    JsonRejection::BytesRejection(_) => MAX_BODY_HINT,
                    _ => "GET /v1/openapi.json describes the body",
                };
                Err(Failure(
                    Error::new(Code::InvalidRequest, "the request's body cannot be used")
                        .because(source_text(&rejection.body_text()))
                        .hint(hint),
                ))
            }
        }
    }
}

/// Query parameters; what is wrong with them becomes a problem.
pub(super) struct Params<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        match Query::from_request_parts(parts, state).await {
            Ok(Query(value)) => Ok(Params(value)),
            Err(e) => Err(unusable("query", &e.body_text())),
        }
    }
}

/// Names in the path; what is wrong with them becomes a problem.
pub(super) struct Names<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Names<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(value)) => Ok(Names(value)),
            Err(e) => Err(unusable("path", &e.body_text())),
        }
    }
}

fn unusable(part: &str, text: &str) -> Failure {
    Failure(
        Error::new(Code::InvalidRequest, format!("the request's {part} cannot be used"))
            .because(source_text(text))
            .hint("GET /v1/openapi.json describes it"),
    )
}

/// The library's own text may begin with a general sentence; what follows its colon says what is wrong then.
fn source_text(text: &str) -> &str {
    match text.split_once(": ") {
        Some((general, detail)) if general.starts_with("Failed to ") => detail,
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::source_text;

    #[test]
    fn only_general_sentences_are_left_out() {
        let text = "Failed to parse the request body as JSON: size: expected value at line 1";
        assert_eq!(source_text(text), "size: expected value at line 1");
        let text = "Expected request with `Content-Type: application/json`";
        assert_eq!(source_text(text), text);
    }
}
