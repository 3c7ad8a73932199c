use std::task::{Context, Poll};

use http::{HeaderValue, Request};
use tower_layer::Layer;
use tower_service::Service;

use crate::Claim;
use crate::guard::X_FENCING_TOKEN;

/// Puts the token of `claim` on an outgoing request, as `X-Fencing-Token`. A token that is there
/// already is replaced: a guard refuses two.
///
/// With a client that has requests of its own, set the header by hand; in reqwest:
/// `.header("x-fencing-token", claim.token().to_string())`.
///
/// # What to try again
///
/// | the answer | what to do |
/// |---|---|
/// | 412 `stale-token`, gRPC `FAILED_PRECONDITION` | never: to send it again cannot succeed, the lease is lost. [`Lease::report_stale`](super::Lease::report_stale) tells everybody who works under it |
/// | 503 `fence-unavailable` or `contended`, gRPC `UNAVAILABLE` or `ABORTED` | as `Retry-After` says: nothing was applied |
/// | 500 `outcome-unknown`, gRPC `UNKNOWN`; no answer at all | look first: the request may have been served. Sent again under the same claim it is not stale, but may be served twice |
///
/// A retry layer therefore goes by 503, not by all of 5xx, and keeps the claim it began with: a
/// retry with the token of a newer lease is another request, of somebody who has to read again
/// first.
///
/// ```
/// use fencing::client::attach;
/// use fencing::{Claim, Resource, Token};
///
/// let claim = Claim::new(Resource::new("inventory:item:1")?, Token::new(34)?);
/// let mut request = http::Request::put("http://inventory/1").body("7")?;
/// attach(&mut request, &claim);
/// assert_eq!(request.headers()["x-fencing-token"], "34");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn attach<B>(request: &mut Request<B>, claim: &Claim) {
    request.headers_mut().insert(X_FENCING_TOKEN, HeaderValue::from(claim.token()));
}

/// A tower layer for clients that puts the token of one claim on each request: [`attach`] for a
/// stack of middleware. It sends each request once. A retry layer may be around it or within.
///
/// The client of hyper-util is such a service: `examples/plain_hyper` wraps it.
///
/// ```
/// use fencing::client::AttachClaim;
/// use fencing::{Claim, Resource, Token};
/// use http::{Request, Response};
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let claim = Claim::new(Resource::new("inventory:item:1")?, Token::new(34)?);
/// let client = ServiceBuilder::new()
///     .layer(AttachClaim::new(claim))
///     .service(service_fn(async |request: Request<()>| {
///         assert_eq!(request.headers()["x-fencing-token"], "34");
///         Ok::<_, std::convert::Infallible>(Response::new(()))
///     }));
/// client.oneshot(Request::new(())).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct AttachClaim {
    claim: Claim,
}

impl AttachClaim {
    /// A layer that attaches `claim`.
    #[must_use]
    pub fn new(claim: Claim) -> Self {
        Self { claim }
    }
}

impl<S> Layer<S> for AttachClaim {
    type Service = AttachClaimService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        AttachClaimService { inner, claim: self.claim.clone() }
    }
}

/// The service of [`AttachClaim`].
#[derive(Clone, Debug)]
pub struct AttachClaimService<S> {
    inner: S,
    claim: Claim,
}

impl<S, B> Service<Request<B>> for AttachClaimService<S>
where
    S: Service<Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> S::Future {
        attach(&mut request, &self.claim);
        self.inner.call(request)
    }
}
