use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{HeaderValue, Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::body::{Hold, PermitBody};
use super::permit::GatePermit;
use crate::guard::refuse;
use crate::guard::respond::{Documents, Refusal, Respond, grpc_content_type};
use crate::{Claim, ClaimState, Problem, ProblemKind};

/// Holds the permit of each request until the body of its response has ended. An
/// [`ExclusiveLayer`](super::ExclusiveLayer) puts it between the [`Fence`](crate::guard::Fence),
/// which lets requests in, and the service.
pub struct Exclusive<S, W = Documents> {
    inner: S,
    cancel_older: bool,
    refusals: PhantomData<fn() -> W>,
}

pin_project! {
    /// The future of a response of an [`Exclusive`].
    pub struct ExclusiveFuture<F, W = Documents> {
        // Goes before the permit does, here and when it is cancelled: what it does when it is
        // dropped it does inside.
        #[pin]
        inner: Option<F>,
        hold: Option<Hold>,
        claim: Option<Claim>,
        // The content type of a gRPC request that may be cancelled.
        grpc: Option<HeaderValue>,
        refusals: PhantomData<fn() -> W>,
    }
}

impl<S, W> Exclusive<S, W> {
    pub(super) fn new(inner: S, cancel_older: bool) -> Self {
        Self { inner, cancel_older, refusals: PhantomData }
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

impl<S, B, R, W> Service<Request<B>> for Exclusive<S, W>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body,
    W: Respond<R>,
{
    type Response = Response<PermitBody<R>>;
    type Error = S::Error;
    type Future = ExclusiveFuture<S::Future, W>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // Without a permit it is a request that claims nothing: the fence saw to that.
        let permit = request.extensions().get::<GatePermit>();
        let hold = permit.map(|permit| Hold::new(permit.clone(), self.cancel_older));
        let claim = request.extensions().get::<Claim>().cloned();
        let grpc = self.cancel_older.then(|| grpc_content_type(request.headers())).flatten();
        let inner = Some(self.inner.call(request));
        ExclusiveFuture { inner, hold, claim, grpc, refusals: PhantomData }
    }
}

impl<F, R, E, W> Future for ExclusiveFuture<F, W>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: Body,
    W: Respond<R>,
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
            let refusal = Refusal { problem: refuse::log(problem), grpc: this.grpc.take() };
            let answer = refusal.into_response::<W, R>();
            return Poll::Ready(Ok(answer.map(|body| PermitBody::new(body, None))));
        }
        Poll::Pending
    }
}

impl<S: Clone, W> Clone for Exclusive<S, W> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), self.cancel_older)
    }
}

impl<S: fmt::Debug, W> fmt::Debug for Exclusive<S, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exclusive")
            .field("inner", &self.inner)
            .field("cancel_older", &self.cancel_older)
            .finish()
    }
}

impl<F, W> fmt::Debug for ExclusiveFuture<F, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExclusiveFuture")
            .field("held", &self.hold.is_some())
            .finish_non_exhaustive()
    }
}
