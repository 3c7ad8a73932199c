use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::body::{Hold, PermitBody};
use super::permit::GatePermit;
use crate::guard::refuse;
use crate::{Claim, ClaimState, Problem, ProblemKind};

/// Holds the permit of each request until the body of its response has ended. An
/// [`ExclusiveLayer`](super::ExclusiveLayer) puts it between the [`Fence`](crate::guard::Fence),
/// which lets requests in, and the service.
#[derive(Clone, Debug)]
pub struct Exclusive<S> {
    inner: S,
    cancel_older: bool,
}

pin_project! {
    /// The future of a response of an [`Exclusive`].
    pub struct ExclusiveFuture<F> {
        // Goes before the permit does, here and when it is cancelled: what it does when it is
        // dropped it does inside.
        #[pin]
        inner: Option<F>,
        hold: Option<Hold>,
        claim: Option<Claim>,
    }
}

impl<S> Exclusive<S> {
    pub(super) fn new(inner: S, cancel_older: bool) -> Self {
        Self { inner, cancel_older }
    }

    /// The service behind the gate.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The service behind the gate.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The service behind the gate, without the gate.
    #[must_use]
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, B, R> Service<Request<B>> for Exclusive<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body + From<Bytes>,
{
    type Response = Response<PermitBody<R>>;
    type Error = S::Error;
    type Future = ExclusiveFuture<S::Future>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // Without a permit it is a request that claims nothing: the fence saw to that.
        let permit = request.extensions().get::<GatePermit>();
        let hold = permit.map(|permit| Hold::new(permit.clone(), self.cancel_older));
        let claim = request.extensions().get::<Claim>().cloned();
        ExclusiveFuture { inner: Some(self.inner.call(request)), hold, claim }
    }
}

impl<F, R, E> Future for ExclusiveFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: Body + From<Bytes>,
{
    type Output = Result<Response<PermitBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        // Polled after its end it stays pending, which is kinder than a panic.
        let Some(inner) = this.inner.as_mut().as_pin_mut() else { return Poll::Pending };
        // The inner future first: an answer that is there is better than none.
        if let Poll::Ready(answer) = inner.poll(cx) {
            this.inner.set(None);
            let hold = this.hold.take();
            return Poll::Ready(answer.map(|it| it.map(|body| PermitBody::new(body, hold))));
        }
        if let Some(hold) = this.hold
            && hold.poll_cancelled(cx).is_ready()
        {
            this.inner.set(None);
            *this.hold = None;
            let problem = Problem::new(ProblemKind::OUTCOME_UNKNOWN).with_detail(
                "the request was cancelled, because a newer token took over the resource",
            );
            let problem = match this.claim {
                Some(claim) => {
                    claim.note(ClaimState::Unknown);
                    problem.with_claim(claim)
                }
                None => problem,
            };
            return Poll::Ready(Ok(refuse::log(problem, None).into_http()));
        }
        Poll::Pending
    }
}

impl<F> fmt::Debug for ExclusiveFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExclusiveFuture")
            .field("held", &self.hold.is_some())
            .finish_non_exhaustive()
    }
}
