//! The guard: a tower layer that turns stale lock holders away at the door.
//!
//! A request says in `X-Fencing-Token` under which grant of a lock it comes. [`FenceLayer`] makes a
//! [`Claim`](crate::Claim) of it, asks a store of [marks](crate::marks), and lets it through only
//! if no higher token was seen for the same resource. A holder that was paused, lost its lock
//! meanwhile and does not know it is answered 412.
//!
//! ```
//! # #[cfg(feature = "axum")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! use axum::Router;
//! use axum::body::Body;
//! use axum::routing::put;
//! use fencing::Claim;
//! use fencing::guard::FenceLayer;
//! use fencing::marks::MemoryMarks;
//! use http::Request;
//! use tower::ServiceExt;
//!
//! async fn set_quantity(claim: Claim) -> String {
//!     format!("{} written under {}", claim.resource(), claim.token())
//! }
//!
//! async fn show(claim: Option<Claim>) -> &'static str {
//!     if claim.is_some() { "read by a holder" } else { "read by anybody" }
//! }
//!
//! let app = Router::new()
//!     .route("/inventory/{id}", put(set_quantity).get(show))
//!     .route_layer(FenceLayer::new(MemoryMarks::ephemeral()).resource("inventory:item:{id}"));
//!
//! let set = |token: &str| {
//!     let request = Request::put("/inventory/1234").header("x-fencing-token", token);
//!     app.clone().oneshot(request.body(Body::empty()).unwrap())
//! };
//! let response = set("34").await.unwrap();
//! assert_eq!(response.status(), 200);
//! assert_eq!(response.headers()["x-fencing-token"], "34");
//! // The same lease may write as often as it likes.
//! assert_eq!(set("34").await.unwrap().status(), 200);
//! // The zombie: its grant came before.
//! assert_eq!(set("33").await.unwrap().status(), 412);
//! // Nothing is written without a token, and anybody may read without one.
//! let nobody = Request::put("/inventory/1234").body(Body::empty()).unwrap();
//! assert_eq!(app.clone().oneshot(nobody).await.unwrap().status(), 428);
//! let reader = Request::get("/inventory/1234").body(Body::empty()).unwrap();
//! assert_eq!(app.clone().oneshot(reader).await.unwrap().status(), 200);
//! # }
//! # #[cfg(not(feature = "axum"))]
//! # fn main() {}
//! ```
//!
//! # What it is worth
//!
//! **The layer alone is not safe.** A check followed by a write is a race: token 33 passes the
//! check and sleeps, 34 passes and writes, 33 wakes and writes. The layer is enough only where the
//! effect of the handler cannot be overtaken. Elsewhere it is an early refusal, and the write
//! itself has to be fenced: by [`FencedTx`](crate::sql) on the same marks. With it in the handler,
//! say [`FenceLayer::deferred`]: the layer leaves the question to the transaction, and sees to it
//! that it was asked. What one process alone owns, as files, stands behind a [`Gate`]:
//! [`FenceLayer::exclusive`].
//!
//! **Claim first, then read.** A holder that reads, computes and writes must send its token with
//! the read too, so that no older holder writes between. A read with a token raises the mark and
//! is refused when it is stale; a read without one passes, and is no more than a look.
//!
//! Only marks that are shared by all who serve the resource protect it. Memory marks are those of
//! one process and are forgotten when it ends: [`SeededMarks`](crate::marks::SeededMarks) start
//! again from what was granted. [`CachedMarks`](crate::marks::CachedMarks) keep a storm of stale
//! requests from a database.
//!
//! # The answers
//!
//! | the request | the answer |
//! |---|---|
//! | token at or above the mark | passes; the response has `X-Fencing-Token` with the token |
//! | token above what can have been granted, see [`FenceLayer::issued_by`] | 403 `implausible-token`; the mark is not raised |
//! | token below the mark | 412 `stale-token`. Final: the lease is lost, a retry cannot succeed |
//! | no token, method other than GET, HEAD, OPTIONS and TRACE | 428 `missing-token` |
//! | no token, one of these methods | passes without a claim, and the store is not asked |
//! | not exactly one token: malformed, 0, too large, two lines, a list | 400 `malformed-token` |
//! | no resource in it: bad percent-encoding, a name that is none | 400 `invalid-resource` |
//! | the store of marks does not answer | 503 `fence-unavailable` with `Retry-After` |
//! | the store, or one waiting at a [`Gate`], gave up waiting for others | 503 `contended` with `Retry-After` |
//! | it was cancelled for a newer one, see [`Gate::cancel_older`] | 500 `outcome-unknown` |
//! | the fence is wired wrongly, or under [`deferred`](FenceLayer::deferred) a handler answers with success and has committed nothing | 500 `misconfigured` |
//!
//! Which requests need a token is for [`FenceLayer::policy`] to say, method by method and route by
//! route. For roll-out there is [`FenceLayer::report_only`]: it refuses nothing, and tells what it
//! would refuse.
//!
//! Refusals are documents of `application/problem+json` (RFC 9457), with a [`Problem`](crate::Problem)
//! in the extensions of the response, by which an outer layer can answer in its own words:
//!
//! ```
//! # #[cfg(feature = "axum")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! use axum::Router;
//! use axum::middleware::map_response;
//! use axum::response::{IntoResponse, Response};
//! use axum::routing::put;
//! use fencing::guard::FenceLayer;
//! use fencing::marks::MemoryMarks;
//! use fencing::{Problem, ProblemKind};
//! use http::StatusCode;
//!
//! async fn in_our_words(response: Response) -> Response {
//!     match response.extensions().get::<Problem>() {
//!         Some(problem) if problem.kind() == ProblemKind::STALE_TOKEN => {
//!             (StatusCode::CONFLICT, "somebody else took over").into_response()
//!         }
//!         _ => response,
//!     }
//! }
//!
//! let app: Router = Router::new()
//!     .route("/inventory/{id}", put(|| async {}))
//!     .route_layer(FenceLayer::new(MemoryMarks::ephemeral()).resource("inventory:item:{id}"))
//!     .layer(map_response(in_our_words));
//! # use tower::ServiceExt;
//! # let set = |token: &str| {
//! #     let request = http::Request::put("/inventory/1").header("x-fencing-token", token);
//! #     app.clone().oneshot(request.body(axum::body::Body::empty()).unwrap())
//! # };
//! # assert_eq!(set("34").await.unwrap().status(), 200);
//! # assert_eq!(set("33").await.unwrap().status(), 409);
//! # }
//! # #[cfg(not(feature = "axum"))]
//! # fn main() {}
//! ```
//!
//! The error of the service stays that of the inner one: a refusal is a response.
//!
//! Each refusal is one event of `tracing`, target `fencing::guard`, with the fields `resource`,
//! `token`, `last_token` and `verdict` (the name of the answer): at INFO what the caller did, at
//! WARN what the store did, at ERROR what the wiring did. `docs/observability.md` lists these, the
//! span of each claim, and the numbers of the feature `metrics`.
//!
//! # The name of the resource
//!
//! The lock, the mark and the layer must mean the same by a name, which is compared byte by byte.
//!
//! - **Two spellings of one row are two resources.** With `inventory:item:{id}`, the paths
//!   `/inventory/1` and `/inventory/01` are two marks, while a handler with `Path<i64>` writes one
//!   row for both: the zombie only needs the other spelling. Make the name canonical, with
//!   [`resource_with`](FenceLayer::resource_with), or refuse in the handler what is not. Letters
//!   in two cases, `+1`, UUIDs with and without hyphens are the same trap.
//! - Percent-encoding is not: `/docs/a%2Fb` and `/docs/%61%2fb` are one resource, `a/b`. In a
//!   wildcard, `{*rest}` in the route and `{rest}` in the template, `%2F` and `/` are therefore
//!   the same too.
//! - **Put the tenant into the template** where there are tenants: `{tenant}:item:{id}`. A router
//!   that is nested under two paths has the same marks under both otherwise.
//! - Requests that touch several resources need a claim on each, in one transaction. One layer
//!   makes one claim.
//!
//! # Where it goes
//!
//! **`route_layer`, inside authentication and routing.** 401, 403 and 404 come first, and only who
//! is authenticated may raise a mark: with a high token, a stranger could shut the holder out.
//! In axum, what is added later is further out, so add authentication after the fence.
//!
//! - `Router::layer` works for the routes there are, and answers 500 for unknown paths, which have
//!   no parameters. Around a whole `Router` every request is 500: no route was chosen yet.
//! - `Router::route_layer` wraps the answer 405 of its routes too: a DELETE that nobody serves is
//!   428 without a token, and 405 with one that it claims. Where 405 is to come first, use the
//!   `route_layer` of the method router: `put(set_quantity).route_layer(fence)`.
//! - CORS goes outside: then preflights never meet the fence, and pages can read refusals. Allow the
//!   header in `Access-Control-Allow-Headers`.
//! - A timeout inside the fence ends the handler, one outside may also end the wait for the store:
//!   then the mark may have been raised, the handler was not called.
//! - Retries belong outside, and must not retry 412.
//!
//! A handler with a [`Claim`](crate::Claim) among its arguments does not run where the layer is
//! missing: it is answered 500. `Option<Claim>` is for handlers that also serve requests that may
//! come without a token. A service without axum finds the claim in the extensions of the request:
//! `request.extensions().get::<Claim>()`.
//!
//! # Any tower service
//!
//! Without axum the resource comes from a function of the head of the request. No feature of this
//! crate is needed. Bodies are generic; the one of the response must be `From<Bytes>`, or `Default`
//! with [`FenceLayer::grpc`].
//!
//! ```
//! use bytes::Bytes;
//! use fencing::guard::FenceLayer;
//! use fencing::marks::MemoryMarks;
//! use fencing::{Claim, Problem, ProblemKind, Resource};
//! use http::request::Parts;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! fn file(parts: &Parts) -> Result<Resource, Problem> {
//!     let name = parts.uri.path().strip_prefix("/files/");
//!     let name = name.ok_or_else(|| Problem::new(ProblemKind::INVALID_RESOURCE))?;
//!     Ok(Resource::from_path_segment(name)?)
//! }
//!
//! let service = ServiceBuilder::new()
//!     .layer(FenceLayer::new(MemoryMarks::ephemeral()).resource_with(file))
//!     .service(service_fn(|request: Request<Full<Bytes>>| async move {
//!         let claim = request.extensions().get::<Claim>().cloned();
//!         let name = claim.map(|claim| claim.resource().to_string());
//!         Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::from(name.unwrap_or_default())))
//!     }));
//!
//! let request = Request::put("/files/report%202").header("x-fencing-token", "7");
//! let response = service.oneshot(request.body(Full::default()).unwrap()).await.unwrap();
//! assert_eq!(response.status(), 200);
//! # }
//! ```
//!
//! # gRPC
//!
//! A request with the content type `application/grpc` is refused in the words of gRPC: a response
//! of trailers only, with the status that [`ProblemKind::grpc_code`](crate::ProblemKind::grpc_code)
//! names and the metadata of [`Problem::to_grpc_trailers`](crate::Problem::to_grpc_trailers). For
//! the servers of tonic, say [`grpc`](FenceLayer::grpc).
//!
//! | HTTP | gRPC |
//! |---|---|
//! | 412 `stale-token` | `FAILED_PRECONDITION`. Final, and clients with a retry policy are told so |
//! | 428 `missing-token`, 400 `malformed-token`, 400 `invalid-resource` | `INVALID_ARGUMENT` |
//! | 503 `fence-unavailable` | `UNAVAILABLE` |
//! | 503 `contended` | `ABORTED` |
//! | 500 `outcome-unknown` | `UNKNOWN` |
//! | 500 `misconfigured` | `INTERNAL` |
//!
//! ```
//! use fencing::guard::FenceLayer;
//! use fencing::marks::MemoryMarks;
//! use fencing::{Claim, Problem, ProblemKind, Resource};
//! use http::request::Parts;
//! use tonic::service::LayerExt;
//! use tonic::transport::Server;
//! # use tonic::body::Body;
//! # #[derive(Clone)]
//! # struct LedgerServer;
//! # impl tonic::server::NamedService for LedgerServer {
//! #     const NAME: &'static str = "bank.Ledger";
//! # }
//! # impl tower::Service<http::Request<Body>> for LedgerServer {
//! #     type Response = http::Response<Body>;
//! #     type Error = std::convert::Infallible;
//! #     type Future = std::future::Ready<Result<Self::Response, Self::Error>>;
//! #     fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
//! #         std::task::Poll::Ready(Ok(()))
//! #     }
//! #     fn call(&mut self, _: http::Request<Body>) -> Self::Future {
//! #         std::future::ready(Ok(http::Response::default()))
//! #     }
//! # }
//!
//! // The path names a method, so the resource is in the metadata, which takes visible ASCII:
//! // hence percent-encoding.
//! fn account(parts: &Parts) -> Result<Resource, Problem> {
//!     let id = parts.headers.get("account-id").and_then(|id| id.to_str().ok());
//!     let id = id.ok_or_else(|| Problem::new(ProblemKind::INVALID_RESOURCE))?;
//!     Ok(Resource::from_path_segment(id)?)
//! }
//!
//! let fence = FenceLayer::new(MemoryMarks::ephemeral()).resource_with(account).grpc();
//!
//! // Around one service: health checks, reflection and unknown methods need no token.
//! # let ledger = LedgerServer;
//! let server = Server::builder().add_service(fence.named_layer(ledger));
//! # let ledger = LedgerServer;
//! // Or around all that the server has.
//! let server = Server::builder().layer(fence).add_service(ledger);
//!
//! // What the handler sees of it.
//! async fn post(request: tonic::Request<String>) -> Result<tonic::Response<()>, tonic::Status> {
//!     let claim = request.extensions().get::<Claim>();
//!     let claim = claim.ok_or_else(|| tonic::Status::internal("the ledger is not fenced"))?;
//!     // The account that is written to must be the one that was claimed.
//!     # let _ = claim;
//!     Ok(tonic::Response::new(()))
//! }
//! ```
//!
//! - **The metadata must name what the message is about.** The fence reads no message, so the handler
//!   must take the account from the claim, or compare: a message about another account would be
//!   written under a token that was never checked for it.
//! - All methods of gRPC are POST, so none passes without a token.
//! - A stream is decided once, when it begins. Later messages of it are not looked at: fence each
//!   write, or use a [`Gate`], behind which a newer token waits until the stream has ended.
//! - Behind tonic's `Routes::into_axum_router` all bodies are axum's: no `grpc()` is needed, and one
//!   server can serve both kinds of request.

mod admit;
#[cfg(feature = "axum")]
mod extract;
mod future;
#[cfg(feature = "exclusive")]
mod gate;
mod layer;
mod observe;
mod plausible;
mod refuse;
mod resolve;
mod respond;
mod service;
#[cfg(feature = "axum")]
mod template;

use http::HeaderName;

pub use self::admit::Policy;
pub use self::future::ResponseFuture;
#[cfg(feature = "exclusive")]
pub use self::gate::{
    Exclusive, ExclusiveFuture, ExclusiveLayer, Gate, GatePermit, OvertakenError, PermitBody,
};
pub use self::layer::{FenceLayer, NoResource};
pub use self::resolve::Resolver;
pub use self::respond::{Documents, Grpc, Respond};
pub use self::service::Fence;

/// The header that carries the fencing token, unless the layer is told another name.
#[allow(clippy::declare_interior_mutable_const, reason = "as the constants of `http::header` are")]
pub const X_FENCING_TOKEN: HeaderName = HeaderName::from_static("x-fencing-token");
