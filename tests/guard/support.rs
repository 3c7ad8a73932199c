//! What the modules of this binary share.

use axum::Router;
use axum::body::Body;
use fencing::Problem;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use tower::ServiceExt;

/// The header of the contract.
pub(crate) const TOKEN: &str = "x-fencing-token";

/// A request with a token, or without when `token` is empty.
pub(crate) fn request(method: Method, uri: &str, token: &str) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(uri);
    if !token.is_empty() {
        request = request.header(TOKEN, token);
    }
    request.body(Body::empty()).unwrap()
}

pub(crate) fn put(uri: &str, token: &str) -> Request<Body> {
    request(Method::PUT, uri, token)
}

pub(crate) fn get(uri: &str, token: &str) -> Request<Body> {
    request(Method::GET, uri, token)
}

pub(crate) async fn send(app: &Router, request: Request<Body>) -> Response<Body> {
    app.clone().oneshot(request).await.unwrap_or_else(|never| match never {})
}

pub(crate) async fn status(app: &Router, request: Request<Body>) -> StatusCode {
    send(app, request).await.status()
}

/// The document in a refusal, checked to be one on the wire and in the extensions alike.
#[track_caller]
fn is_problem(response: &Response<Body>) -> Problem {
    let headers = response.headers();
    assert_eq!(headers["content-type"], "application/problem+json");
    assert_eq!(headers["cache-control"], "no-store");
    assert!(!headers.contains_key(TOKEN), "a refusal must not carry the token back");
    let problem = response.extensions().get::<Problem>().expect("the typed reason").clone();
    assert_eq!(problem.status(), response.status());
    problem
}

/// Sends what must be refused, and gives the name of the kind, the typed problem and the document.
pub(crate) async fn refusal(
    app: &Router,
    request: Request<Body>,
) -> (&'static str, Problem, serde_json::Value) {
    let response = send(app, request).await;
    let problem = is_problem(&response);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let document: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let name = problem.kind().name();
    assert_eq!(document["type"], format!("urn:fencing:problem:{name}"));
    assert_eq!(document["status"], problem.status().as_u16());
    (name, problem, document)
}

/// The status and the name of the kind of a refusal.
pub(crate) async fn refused(app: &Router, request: Request<Body>) -> (u16, &'static str) {
    let (name, problem, _) = refusal(app, request).await;
    (problem.status().as_u16(), name)
}

pub(crate) fn header(response: &Response<Body>) -> Option<&HeaderValue> {
    response.headers().get(TOKEN)
}
