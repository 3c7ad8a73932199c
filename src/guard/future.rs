use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::future::BoxFuture;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;
use tracing::Span;

use super::admit::{Conclusion, Config, Offer};
use super::respond::{Documents, Refusal, Respond};
use crate::Problem;
use crate::Verdict;
use crate::marks::MarksError;

pin_project! {
    /// The future of a response of a [`Fence`](super::Fence).
    ///
    /// Dropped while the store of marks is asked, the inner service is never called; the mark may
    /// or may not have been raised.
    pub struct ResponseFuture<S, B, W = Documents>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        state: State<S, B, S::Future>,
        refusals: PhantomData<fn() -> W>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, B, F> {
        Inner { #[pin] future: F, echo: Option<Echo> },
        // Boxed, so that who does not have to wait does not carry the room for it.
        Waiting { waiting: Option<Box<Waiting<S, B>>> },
        Refused { refusal: Option<Refusal> },
    }
}

/// A claim the store has not answered yet, and all that is needed to go on when it has.
pub(super) struct Waiting<S, B> {
    pub(super) check: BoxFuture<'static, Result<Verdict, MarksError>>,
    pub(super) service: S,
    pub(super) request: Request<B>,
    pub(super) echo: Echo,
}

/// What an accepted request leaves for its response.
pub(super) struct Echo {
    pub(super) offer: Offer,
    pub(super) config: Arc<Config>,
    pub(super) span: Span,
}

impl Echo {
    /// Says in the response that the token was accepted, unless it turned out otherwise further in:
    /// in the handler's transaction. A success that is none does not go out.
    fn conclude<W: Respond<R>, R>(self, mut response: Response<R>) -> Response<R> {
        let Self { offer, config, span } = self;
        let _in = span.enter();
        match config.conclude(&offer, is_success(&response)) {
            Conclusion::Accepted => {
                response.headers_mut().insert(config.options.header.clone(), offer.text);
                response
            }
            // What the handler's own transaction refused, in its words, shows the mark.
            Conclusion::Silent if config.options.hide_last_token => {
                let shown = response.extensions().get::<Problem>();
                match shown.filter(|problem| problem.last_token().is_some()).cloned() {
                    Some(problem) => Refusal::new(problem.without_last_token(), response.headers())
                        .into_response::<W, R>(),
                    None => response,
                }
            }
            Conclusion::Silent => response,
            // What kind of answer the caller reads, the one in its place tells.
            Conclusion::Refused(problem) => {
                Refusal::new(problem, response.headers()).into_response::<W, R>()
            }
        }
    }
}

/// Whether whoever reads the response takes it for a success. gRPC says otherwise in a field beside
/// the status 200.
fn is_success<R>(response: &Response<R>) -> bool {
    let status = response.status();
    let grpc_status = response.headers().get("grpc-status");
    !status.is_client_error()
        && !status.is_server_error()
        && grpc_status.is_none_or(|status| status == "0")
}

impl<S: Service<Request<B>>, B, W> ResponseFuture<S, B, W> {
    pub(super) fn inner(future: S::Future, echo: Option<Echo>) -> Self {
        Self::new(State::Inner { future, echo })
    }

    pub(super) fn waiting(waiting: Waiting<S, B>) -> Self {
        Self::new(State::Waiting { waiting: Some(Box::new(waiting)) })
    }

    pub(super) fn refused(refusal: Refusal) -> Self {
        Self::new(State::Refused { refusal: Some(refusal) })
    }

    fn new(state: State<S, B, S::Future>) -> Self {
        Self { state, refusals: PhantomData }
    }
}

impl<S, B, R, W> Future for ResponseFuture<S, B, W>
where
    S: Service<Request<B>, Response = Response<R>>,
    W: Respond<R>,
{
    type Output = Result<Response<R>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            match state.as_mut().project() {
                StateProj::Inner { future, echo } => {
                    let within = echo.as_ref().map(|echo| echo.span.enter());
                    let polled = future.poll(cx);
                    drop(within);
                    let response = ready!(polled)?;
                    return Poll::Ready(Ok(match echo.take() {
                        Some(echo) => echo.conclude::<W, R>(response),
                        None => response,
                    }));
                }
                StateProj::Waiting { waiting } => {
                    let Some(asked) = waiting else { return Poll::Pending };
                    let answer = asked.echo.span.in_scope(|| asked.check.as_mut().poll(cx));
                    let answer = ready!(answer);
                    let Some(asked) = waiting.take() else { return Poll::Pending };
                    let Waiting { mut service, request, echo, .. } = *asked;
                    let within = echo.span.clone().entered();
                    if let Err(problem) = echo.config.judge(&echo.offer, answer) {
                        let refusal = Refusal::new(problem, request.headers());
                        return Poll::Ready(Ok(refusal.into_response::<W, R>()));
                    }
                    let future = service.call(request);
                    drop(within);
                    state.set(State::Inner { future, echo: Some(echo) });
                }
                // Polled after its end, a future may stay pending, which is kinder than a panic.
                StateProj::Refused { refusal } => {
                    let Some(refusal) = refusal.take() else { return Poll::Pending };
                    return Poll::Ready(Ok(refusal.into_response::<W, R>()));
                }
            }
        }
    }
}

impl<S: Service<Request<B>>, B, W> fmt::Debug for ResponseFuture<S, B, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
