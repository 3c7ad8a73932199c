use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use tower_service::Service;

use super::admit::{Admission, Config};
use super::future::{Echo, ResponseFuture, Waiting};
use crate::Problem;
use crate::marks::Check;

/// The service a [`FenceLayer`](super::FenceLayer) makes. See the [module](super).
#[derive(Clone, Debug)]
pub struct Fence<S> {
    inner: S,
    config: Arc<Config>,
}

/// In the extensions of a request that passed the layer without a claim, so that an extractor can
/// tell it from one that met no layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unclaimed;

impl<S> Fence<S> {
    pub(super) fn new(inner: S, config: Arc<Config>) -> Self {
        Self { inner, config }
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

impl<S, B, R> Service<Request<B>> for Fence<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    R: From<Bytes>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        let (claim, text) = match self.config.admit(&mut parts) {
            Ok(Admission::Claims(claim, text)) => (claim, text),
            Ok(Admission::Unclaimed) => {
                // The claim of another fence further out is not one on this resource.
                parts.extensions.remove::<crate::Claim>();
                #[cfg(feature = "exclusive")]
                parts.extensions.remove::<super::GatePermit>();
                parts.extensions.insert(Unclaimed);
                let inner = self.inner.call(Request::from_parts(parts, body));
                return ResponseFuture::inner(inner, None);
            }
            Err(problem) => return self.refuse(problem),
        };
        parts.extensions.insert(claim.clone());
        let check = self.config.check(&claim, &mut parts.extensions);
        let request = Request::from_parts(parts, body);
        let echo = Echo { name: self.config.options.header.clone(), value: text, claim };
        match check {
            Check::Ready(answer) => match self.config.judge(&echo.claim, answer) {
                Ok(()) => ResponseFuture::inner(self.inner.call(request), Some(echo)),
                Err(problem) => self.refuse(problem),
            },
            Check::Pending(check) => ResponseFuture::waiting(Waiting {
                check,
                service: self.take_ready(),
                request,
                echo,
                config: Arc::clone(&self.config),
            }),
        }
    }
}

impl<S: Clone> Fence<S> {
    /// The instance that said it was ready: a clone of it has not, and must not be called.
    fn take_ready(&mut self) -> S {
        let unready = self.inner.clone();
        mem::replace(&mut self.inner, unready)
    }

    /// The inner service is not called, so what it had reserved when it said it was ready is given
    /// back at once: this instance may be kept idle for long, and others wait for the place.
    fn refuse<B>(&mut self, problem: Problem) -> ResponseFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        drop(self.take_ready());
        ResponseFuture::refused(problem)
    }
}
