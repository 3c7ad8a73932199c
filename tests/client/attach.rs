//! The token on outgoing requests, and retry layers around it.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use fencing::client::AttachClaim;
use fencing::guard::FenceLayer;
use fencing::marks::{Check, Marks, MarksError, MarksErrorKind, MemoryMarks};
use fencing::{Claim, Problem, Resource, Token};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tower::retry::{Policy, RetryLayer};
use tower::{ServiceBuilder, ServiceExt, service_fn};

type Body = Full<Bytes>;

fn claim(token: i64) -> Claim {
    Claim::new(Resource::new("report").unwrap(), Token::new(token).unwrap())
}

fn report(_: &Parts) -> Result<Resource, Problem> {
    Ok(Resource::new("report")?)
}

/// The policy the docs recommend: 503 may be tried again, nothing else.
#[derive(Clone, Debug)]
struct Unavailable(usize);

impl Policy<Request<Body>, Response<Body>, Infallible> for Unavailable {
    type Future = Ready<()>;

    fn retry(
        &mut self,
        _: &mut Request<Body>,
        answer: &mut Result<Response<Body>, Infallible>,
    ) -> Option<Ready<()>> {
        let unavailable =
            answer.as_ref().is_ok_and(|it| it.status() == StatusCode::SERVICE_UNAVAILABLE);
        if !unavailable || self.0 == 0 {
            return None;
        }
        self.0 -= 1;
        Some(ready(()))
    }

    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        Some(request.clone())
    }
}

/// Is contended as often as it is told, then decides.
#[derive(Debug)]
struct Contended(AtomicUsize, MemoryMarks);

impl Marks for Contended {
    fn advance(&self, claim: &Claim) -> Check {
        let left =
            self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        match left {
            Ok(_) => Check::Ready(Err(MarksError::new(MarksErrorKind::Contended))),
            Err(_) => self.1.advance(claim),
        }
    }
}

/// The status of a write under `claim`, and how often it was sent and written.
async fn write(marks: impl Marks, claim: Claim) -> (StatusCode, usize, usize) {
    let (sent, written) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&written);
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new(Unavailable(3)))
        .layer(AttachClaim::new(claim))
        .map_request(|request: Request<Body>| {
            sent.fetch_add(1, Ordering::SeqCst);
            request
        })
        .layer(FenceLayer::new(marks).resource_with(report))
        .service(service_fn(move |_: Request<Body>| {
            counted.fetch_add(1, Ordering::SeqCst);
            ready(Ok::<_, Infallible>(Response::new(Body::default())))
        }));
    let request = Request::put("/report").body(Body::default()).unwrap();
    let Ok(response) = service.oneshot(request).await;
    (response.status(), sent.load(Ordering::SeqCst), written.load(Ordering::SeqCst))
}

/// Case 13: a stale token is final. A layer that tries again what may succeed sends it once.
#[tokio::test]
async fn a_stale_write_is_sent_once_under_a_retry_layer() {
    let marks = MemoryMarks::ephemeral();
    let _ = marks.decide(&claim(34));
    assert_eq!(write(marks, claim(33)).await, (StatusCode::PRECONDITION_FAILED, 1, 0));
}

/// Each attempt carries the token once: a guard refuses two.
#[tokio::test]
async fn a_contended_write_is_sent_again_under_the_same_claim() {
    let marks = Contended(AtomicUsize::new(2), MemoryMarks::ephemeral());
    assert_eq!(write(marks, claim(34)).await, (StatusCode::OK, 3, 1));
}

/// While it waits to try again, another takes over: the attempt that reaches the fence is stale, and
/// that is the answer.
#[tokio::test]
async fn a_retry_never_turns_stale_into_success() {
    let marks = MemoryMarks::ephemeral();
    let _ = marks.decide(&claim(34));
    let marks = Contended(AtomicUsize::new(1), marks);
    assert_eq!(write(marks, claim(33)).await, (StatusCode::PRECONDITION_FAILED, 2, 0));
}

/// A token that an application put there itself is replaced, not joined.
#[tokio::test]
async fn the_token_of_the_claim_is_the_only_one() {
    let service = ServiceBuilder::new().layer(AttachClaim::new(claim(34))).service(service_fn(
        |request: Request<()>| {
            let tokens: Vec<_> = request.headers().get_all("x-fencing-token").iter().collect();
            assert_eq!(tokens, ["34"]);
            ready(Ok::<_, Infallible>(Response::new(())))
        },
    ));
    let mut request = Request::new(());
    for token in ["7", "8"] {
        request.headers_mut().append("x-fencing-token", token.parse().unwrap());
    }
    let Ok(_) = service.oneshot(request).await;
}
