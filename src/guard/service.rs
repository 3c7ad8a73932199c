use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{HeaderMap, Request, Response};
use tower_service::Service;

use super::admit::{Admission, Config};
use super::future::{Echo, ResponseFuture, Waiting};
use super::observe;
use super::respond::{Documents, Refusal, Respond};
use crate::Problem;
use crate::marks::Check;

/// The service a [`FenceLayer`](super::FenceLayer) makes. See the [module](super).
pub struct Fence<S, W = Documents> {
    inner: S,
    config: Arc<Config>,
    refusals: PhantomData<fn() -> W>,
}

/// In the extensions of a request that passed the layer without a claim, so that an extractor can
/// tell it from one that met no layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unclaimed;

impl<S, W> Fence<S, W> {
    pub(super) fn new(inner: S, config: Arc<Config>) -> Self {
        Self { inner, config, refusals: PhantomData }
    }

    /// The service behind the fence.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The service behind the fence.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The service behind the fence, without the fence.
    #[must_use]
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, B, R, W> Service<Request<B>> for Fence<S, W>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    W: Respond<R>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B, W>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        let offer = match self.config.admit(&mut parts) {
            Ok(Admission::Claims(offer)) => offer,
            Ok(Admission::Unclaimed) => {
                // The claim of another fence further out is not one on this resource.
                parts.extensions.remove::<crate::Claim>();
                #[cfg(feature = "exclusive")]
                parts.extensions.remove::<super::GatePermit>();
                parts.extensions.insert(Unclaimed);
                let inner = self.inner.call(Request::from_parts(parts, body));
                return ResponseFuture::inner(inner, None);
            }
            Err(problem) => return self.refuse(problem, &parts.headers),
        };
        let span = observe::span(&offer.claim, &parts.headers);
        let within = span.clone().entered();
        parts.extensions.insert(offer.claim.clone());
        let check = self.config.check(&offer, &mut parts.extensions);
        let request = Request::from_parts(parts, body);
        let echo = Echo { offer, config: Arc::clone(&self.config), span };
        let future = match check {
            Check::Ready(answer) => match self.config.judge(&echo.offer, answer) {
                Ok(()) => ResponseFuture::inner(self.inner.call(request), Some(echo)),
                Err(problem) => self.refuse(problem, request.headers()),
            },
            Check::Pending(check) => {
                let service = self.take_ready();
                ResponseFuture::waiting(Waiting { check, service, request, echo })
            }
        };
        drop(within);
        future
    }
}

impl<S: Clone, W> Fence<S, W> {
    /// The instance that said it was ready: a clone of it has not, and must not be called.
    fn take_ready(&mut self) -> S {
        let unready = self.inner.clone();
        mem::replace(&mut self.inner, unready)
    }

    /// The inner service is not called, so what it had reserved when it said it was ready is given
    /// back at once: this instance may be kept idle for long, and others wait for the place.
    fn refuse<B>(&mut self, problem: Problem, asked: &HeaderMap) -> ResponseFuture<S, B, W>
    where
        S: Service<Request<B>>,
    {
        drop(self.take_ready());
        ResponseFuture::refused(Refusal::new(problem, asked))
    }
}

impl<S: Clone, W> Clone for Fence<S, W> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), Arc::clone(&self.config))
    }
}

impl<S: fmt::Debug, W> fmt::Debug for Fence<S, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence").field("inner", &self.inner).field("config", &self.config).finish()
    }
}
