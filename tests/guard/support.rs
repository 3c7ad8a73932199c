//! What the modules of this binary share.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use fencing::guard::FenceLayer;
use fencing::marks::{Check, Marks};
use fencing::{Claim, Problem, Resource};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{Empty, Full};
use tower::{Service, ServiceExt};

/// The body of every request here, one that needs no framework.
pub(crate) type Body = Empty<Bytes>;

/// The header of the contract.
pub(crate) const TOKEN: &str = "x-fencing-token";

/// A request with a token, or without when `token` is empty.
pub(crate) fn request(method: Method, uri: &str, token: &str) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(uri);
    if !token.is_empty() {
        request = request.header(TOKEN, token);
    }
    request.body(Body::default()).unwrap()
}

pub(crate) fn put(uri: &str, token: &str) -> Request<Body> {
    request(Method::PUT, uri, token)
}

pub(crate) fn get(uri: &str, token: &str) -> Request<Body> {
    request(Method::GET, uri, token)
}

/// Sends to a clone, as a server does for each request.
pub(crate) async fn send<S, R>(service: &S, request: Request<Body>) -> Response<R>
where
    S: Service<Request<Body>, Response = Response<R>, Error = Infallible> + Clone,
{
    service.clone().oneshot(request).await.unwrap_or_else(|never| match never {})
}

pub(crate) async fn status<S, R>(service: &S, request: Request<Body>) -> StatusCode
where
    S: Service<Request<Body>, Response = Response<R>, Error = Infallible> + Clone,
{
    send(service, request).await.status()
}

/// A refusal, checked to be the same on the wire and in the extensions.
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) name: &'static str,
    pub(crate) problem: Problem,
    pub(crate) document: serde_json::Value,
    pub(crate) headers: http::HeaderMap,
}

/// Sends what must be refused.
pub(crate) async fn refusal<S, R>(service: &S, request: Request<Body>) -> Refusal
where
    S: Service<Request<Body>, Response = Response<R>, Error = Infallible> + Clone,
    R: http_body_util::BodyExt + Unpin,
    R::Error: std::fmt::Debug,
{
    let (parts, body) = send(service, request).await.into_parts();
    assert!(parts.status.is_client_error() || parts.status.is_server_error(), "{}", parts.status);
    assert_eq!(parts.headers["content-type"], "application/problem+json");
    assert_eq!(parts.headers["cache-control"], "no-store");
    assert!(!parts.headers.contains_key(TOKEN), "a refusal must not carry the token back");
    let problem = parts.extensions.get::<Problem>().expect("the typed reason").clone();
    assert_eq!(problem.status(), parts.status);
    let body = body.collect().await.unwrap().to_bytes();
    let document: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let name = problem.kind().name();
    assert_eq!(document["type"], format!("urn:fencing:problem:{name}"));
    assert_eq!(document["status"], parts.status.as_u16());
    Refusal { status: parts.status.as_u16(), name, problem, document, headers: parts.headers }
}

/// The status and the name of the kind of a refusal.
pub(crate) async fn refused<S, R>(service: &S, request: Request<Body>) -> (u16, &'static str)
where
    S: Service<Request<Body>, Response = Response<R>, Error = Infallible> + Clone,
    R: http_body_util::BodyExt + Unpin,
    R::Error: std::fmt::Debug,
{
    let refusal = refusal(service, request).await;
    (refusal.status, refusal.name)
}

/// The last segment of the path is the resource.
pub(crate) fn last_segment(parts: &Parts) -> Result<Resource, Problem> {
    let path = parts.uri.path();
    let (_, name) = path.rsplit_once('/').unwrap_or_default();
    Ok(Resource::from_path_segment(name)?)
}

pub(crate) fn fence(marks: impl Marks) -> FenceLayer {
    FenceLayer::new(marks).resource_with(last_segment)
}

/// A service without any framework: counts its calls, and answers with the claim it was given.
/// It panics when it is called without having said that it is ready, which a clone has not.
#[derive(Debug, Default)]
pub(crate) struct Plain {
    pub(crate) calls: Arc<AtomicUsize>,
    ready: bool,
}

impl Plain {
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

impl Clone for Plain {
    fn clone(&self) -> Self {
        Self { calls: Arc::clone(&self.calls), ready: false }
    }
}

impl Service<Request<Body>> for Plain {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called an instance that was not ready");
        self.calls.fetch_add(1, Ordering::SeqCst);
        let claim = request.extensions().get::<Claim>();
        let text = claim.map_or(String::new(), |it| format!("{}={}", it.resource(), it.token()));
        std::future::ready(Ok(Response::new(Full::from(text))))
    }
}

pub(crate) async fn text<R>(response: Response<R>) -> String
where
    R: http_body_util::BodyExt,
    R::Error: std::fmt::Debug,
{
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

/// A store whose answers come in their own time: after one more poll.
#[derive(Debug)]
pub(crate) struct Slow<M>(pub(crate) M);

impl<M: Marks> Marks for Slow<M> {
    fn advance(&self, claim: &Claim) -> Check {
        let check = self.0.advance(claim);
        Check::Pending(Box::pin(async move {
            tokio::task::yield_now().await;
            check.await
        }))
    }
}
