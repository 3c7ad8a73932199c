//! The claim in a handler.

use axum::Router;
use axum::routing;
use fencing::guard::FenceLayer;
use fencing::marks::MemoryMarks;
use fencing::{Claim, ClaimState, Problem, ProblemKind, Token};
use http::{Method, StatusCode};

use crate::support::{TOKEN, get, put, refusal, refused, request, send, status, text};

async fn strict(claim: Claim) -> String {
    format!("{} {} {:?}", claim.resource(), claim.token(), claim.state())
}

async fn lenient(claim: Option<Claim>) -> String {
    claim.map_or("none".to_owned(), |claim| claim.token().to_string())
}

fn layer() -> FenceLayer {
    FenceLayer::new(MemoryMarks::ephemeral()).resource("doc:{id}")
}

fn routes() -> Router {
    Router::new()
        .route("/strict/{id}", routing::put(strict).get(strict))
        .route("/lenient/{id}", routing::put(lenient).get(lenient))
}

#[tokio::test]
async fn a_handler_gets_the_claim_that_was_accepted() {
    let app = routes().route_layer(layer());
    let response = send(&app, put("/strict/1", "34")).await;
    assert_eq!(text(response).await, "doc:1 34 Claimed");
    assert_eq!(text(send(&app, put("/lenient/1", "34")).await).await, "34");
    assert_eq!(text(send(&app, get("/lenient/1", "34")).await).await, "34");
}

#[tokio::test]
async fn a_read_without_a_token_has_no_claim() {
    let app = routes().route_layer(layer());
    assert_eq!(text(send(&app, get("/lenient/1", "")).await).await, "none");
    assert_eq!(refused(&app, get("/strict/1", "")).await, (428, "missing-token"));
}

/// Case 9 (b): a handler that takes a claim does not run where nothing made one, with or without a
/// token in the request, and `None` is not how that looks.
#[tokio::test]
async fn i6_without_the_layer_the_extractor_fails_closed() {
    // The layer was added before the routes, and so wraps none of them.
    let too_early = Router::new().route("/other/{id}", routing::get(|| async {}));
    let too_early = too_early.route_layer(layer()).merge(routes());
    for app in [routes(), too_early] {
        for uri in ["/strict/1", "/lenient/1"] {
            for (method, token) in
                [(Method::PUT, "34"), (Method::PUT, ""), (Method::GET, "34"), (Method::GET, "")]
            {
                let refusal = refusal(&app, request(method, uri, token)).await;
                assert_eq!((refusal.status, refusal.name), (500, "misconfigured"), "{uri}");
                assert!(refusal.document["detail"].as_str().unwrap().contains("layer"));
            }
        }
    }
}

/// The echo says that the token was accepted. When the handler finds in its transaction that it is
/// stale, nobody says so.
#[tokio::test]
async fn a_claim_that_turns_out_stale_further_in_is_not_echoed() {
    async fn handler(claim: Claim) -> Problem {
        claim.note(ClaimState::Stale);
        Problem::stale(&claim, Token::MAX)
    }
    async fn own_words(claim: Claim) -> StatusCode {
        claim.note(ClaimState::Stale);
        StatusCode::CONFLICT
    }
    async fn not_found(_: Claim) -> StatusCode {
        StatusCode::NOT_FOUND
    }
    let app = Router::new()
        .route("/doc/{id}", routing::put(handler))
        .route("/own/{id}", routing::put(own_words))
        .route("/absent/{id}", routing::put(not_found))
        .route_layer(layer());
    assert_eq!(refused(&app, put("/doc/1", "34")).await, (412, "stale-token"));
    let response = send(&app, put("/own/1", "34")).await;
    assert_eq!((response.status().as_u16(), response.headers().get(TOKEN)), (409, None));
    // Any other answer of the handler has it.
    let response = send(&app, put("/absent/1", "34")).await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()[TOKEN]),
        (404, &"34".parse().unwrap())
    );
}

/// An outer layer can answer in its own words, by the typed reason.
#[tokio::test]
async fn an_outer_layer_can_replace_a_refusal() {
    let app = routes().route_layer(layer()).layer(axum::middleware::map_response(
        |response: axum::response::Response| async move {
            let reason = response.extensions().get::<Problem>().map(Problem::kind);
            if reason == Some(ProblemKind::STALE_TOKEN) {
                return Err(StatusCode::IM_A_TEAPOT);
            }
            Ok(response)
        },
    ));
    assert_eq!(status(&app, put("/strict/1", "34")).await, 200);
    assert_eq!(status(&app, put("/strict/1", "33")).await, 418);
}
