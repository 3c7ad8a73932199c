//! The places where the parts meet: extractors, bodies, other callers of the gate.

use fencing::{Claim, Resource, Token, Verdict};
use http::{Request, StatusCode};

use super::*;
use crate::support::{self, get, refused};

async fn needs_permit(permit: GatePermit) -> String {
    format!("{} {}", permit.resource(), permit.token())
}

async fn may_have_permit(permit: Option<GatePermit>) -> String {
    permit.map_or("none".to_owned(), |permit| permit.token().to_string())
}

fn routes() -> Router {
    Router::new()
        .route("/files/{name}", routing::put(needs_permit).get(needs_permit))
        .route("/maybe/{name}", routing::get(may_have_permit))
}

fn fence() -> FenceLayer {
    FenceLayer::new(MemoryMarks::ephemeral()).resource("file:{name}")
}

#[tokio::test]
async fn i6_a_permit_without_a_gate_fails_closed() {
    for app in [routes(), routes().route_layer(fence())] {
        for request in [put("/files/a", "33"), get("/maybe/a", "33")] {
            assert_eq!(kind(&send(&app, request).await), (500, "misconfigured"));
        }
    }
    assert_eq!(kind(&send(&routes(), get("/maybe/a", "")).await), (500, "misconfigured"));
}

#[tokio::test]
async fn a_handler_takes_the_permit_as_an_argument() {
    let app = routes().route_layer(fence().exclusive(Gate::new()));
    assert_eq!(text(send(&app, put("/files/a", "33")).await).await, "file:a 33");
    assert_eq!(refused(&app, get("/files/a", "")).await, (428, "missing-token"));
    assert_eq!(refused(&app, put("/files/a", "")).await, (428, "missing-token"));
    assert_eq!(text(send(&app, get("/maybe/a", "")).await).await, "none");
    assert_eq!(text(send(&app, get("/maybe/a", "33")).await).await, "33");
}

/// The permit of a fence further out is not one of this gate.
#[tokio::test]
async fn a_request_that_claims_nothing_loses_the_permit_of_another_gate() {
    let inner = fence().header(http::HeaderName::from_static("x-inner"));
    let app = routes()
        .route_layer(inner.exclusive(Gate::new()))
        .route_layer(fence().exclusive(Gate::new()));
    assert_eq!(text(send(&app, get("/maybe/a", "33")).await).await, "none");
}

#[tokio::test]
async fn a_layer_that_only_reports_keeps_nobody_waiting_and_cancels_nobody() {
    let gate = Gate::new().cancel_older(true);
    let handlers = Handlers::default();
    let layer = fence().report_only(true).exclusive(gate.clone());
    let app = Router::new()
        .route("/files/{name}", routing::put(work))
        .route_layer(layer)
        .with_state(Arc::clone(&handlers));
    let mut requests = ["33", "34", "33"].map(|token| {
        let mut request = Running::new(app.clone().oneshot(put("/files/a", token)));
        request.pending();
        request
    });
    for request in &mut requests {
        request.pending();
        let handler = handlers.lock().unwrap().remove(0);
        handler.answer.send(Body::empty()).unwrap();
        assert_eq!(request.ready().status(), 200);
    }
    drop(requests);
    assert_eq!(gate.visited(), 0);
}

/// Only who has raised the mark gets a turn.
#[tokio::test]
async fn a_deferred_layer_is_not_deferred_at_the_gate() {
    let marks = Arc::new(MemoryMarks::ephemeral());
    let layer = FenceLayer::new(Arc::clone(&marks)).resource("file:{name}").deferred();
    let app = routes().route_layer(layer.exclusive(Gate::new()));
    assert_eq!(text(send(&app, put("/files/a", "34")).await).await, "file:a 34");
    let zombie = Claim::new(Resource::new("file:a").unwrap(), Token::new(33).unwrap());
    assert!(matches!(marks.decide(&zombie), Verdict::Stale { .. }));
}

#[tokio::test]
async fn a_response_is_the_same_as_without_a_gate() {
    async fn handler() -> Response<Body> {
        Response::builder().status(201).header("x-own", "kept").body(Body::from("body")).unwrap()
    }
    let route = || Router::new().route("/files/{name}", routing::put(handler));
    for app in [route().route_layer(fence()), route().route_layer(fence().exclusive(Gate::new()))] {
        let response = send(&app, put("/files/a", "33")).await;
        assert_eq!(response.status(), StatusCode::CREATED);
        assert_eq!(response.headers()["x-own"], "kept");
        assert_eq!(response.headers()[TOKEN], "33");
        assert_eq!(http_body::Body::size_hint(response.body()).exact(), Some(4));
        assert_eq!(text(response).await, "body");
    }
}

#[tokio::test]
async fn an_empty_body_ends_the_visit_at_once() {
    let gate = Gate::new();
    let app = Router::new()
        .route("/files/{name}", routing::put(|| async { StatusCode::NO_CONTENT }))
        .route_layer(fence().exclusive(gate.clone()));
    let response = send(&app, put("/files/a", "33")).await;
    assert!(http_body::Body::is_end_stream(response.body()));
    assert_eq!(gate.visited(), 0);
}

#[tokio::test]
async fn a_job_meets_the_requests_at_the_same_gate() {
    let marks = Arc::new(MemoryMarks::ephemeral());
    let stage = Stage::with(Arc::clone(&marks), |gate| gate);
    let claim = |token| Claim::new(Resource::new("file:a").unwrap(), Token::new(token).unwrap());
    let job = stage.gate.enter(&marks, &claim(33)).await.unwrap();
    let mut request = stage.put("/files/a", 34);
    request.pending();
    assert!(job.is_overtaken());
    let stale = stage.gate.enter(&marks, &claim(33)).await.unwrap_err();
    assert_eq!(stale.kind(), ProblemKind::STALE_TOKEN);
    drop(job);
    request.pending();
    assert_eq!(stage.inside(), [34]);

    let newer = claim(35);
    let job = stage.gate.enter(&marks, &newer);
    let mut job = std::pin::pin!(job);
    assert!(job.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    stage.clock.advance(Gate::DEFAULT_DRAIN_TIMEOUT);
    assert_eq!(job.await.unwrap_err().kind(), ProblemKind::CONTENDED);
}

#[tokio::test]
async fn any_tower_service_can_stand_behind_a_gate() {
    let service = tower::service_fn(|request: Request<support::Body>| async move {
        let permit = request.extensions().get::<GatePermit>().unwrap();
        let body = http_body_util::Full::new(bytes::Bytes::from(permit.token().to_string()));
        Ok::<_, std::convert::Infallible>(Response::new(body))
    });
    let layer = FenceLayer::new(MemoryMarks::ephemeral())
        .resource_with(|_| Ok(Resource::new("one")?))
        .exclusive(Gate::new());
    let service = tower::Layer::layer(&layer, service);
    let response = service.oneshot(put("/", "33")).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "33");
}
