//! The deferred layer: the handler claims, the layer sees to it that it did.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use axum::routing;
use fencing::guard::FenceLayer;
use fencing::marks::{CachedMarks, Check, Marks, MarksError, MarksErrorKind, MemoryMarks};
use fencing::{Claim, ClaimState, Problem, Resource, Token};
use http::{Method, Request, StatusCode};

use crate::support::{Body, TOKEN, get, put, refusal, refused, request, send, status, text};

/// What the handler notes of the claim, and what it answers: `/claimed/200`.
async fn handler(
    claim: Claim,
    axum::extract::Path((state, code)): axum::extract::Path<(String, u16)>,
) -> Response {
    assert_eq!(claim.state(), ClaimState::Unspent, "the layer has left it alone");
    note(&claim, &state);
    (StatusCode::from_u16(code).unwrap(), [("x-inner", "secret")], "secret").into_response()
}

fn note(claim: &Claim, states: &str) {
    for state in states.split('-') {
        claim.note(match state {
            "committed" => ClaimState::Committed,
            "claimed" => ClaimState::Claimed,
            "open" => ClaimState::Open,
            "stale" => ClaimState::Stale,
            "unknown" => ClaimState::Unknown,
            "rolledback" => ClaimState::Unspent,
            "untouched" => continue,
            other => panic!("{other}"),
        });
    }
}

/// Counts what it is asked, and never is for a write.
#[derive(Clone, Debug)]
struct Counted(Arc<AtomicUsize>, Arc<MemoryMarks>);

impl Counted {
    fn new() -> Self {
        Self(Arc::default(), Arc::new(MemoryMarks::ephemeral()))
    }

    fn asked(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Marks for Counted {
    fn advance(&self, claim: &Claim) -> Check {
        self.0.fetch_add(1, Ordering::SeqCst);
        self.1.advance(claim)
    }
}

fn layer(marks: impl Marks) -> FenceLayer {
    FenceLayer::new(marks).resource("doc").deferred()
}

fn app(layer: FenceLayer) -> Router {
    Router::new()
        .route("/{state}/{code}", routing::put(handler).post(handler).delete(handler))
        .route_layer(layer)
}

/// H9: a handler that forgets to commit, or whose transaction was rolled back, must not have its
/// success go out: the caller would take for written what is not.
#[tokio::test]
async fn h9_i4_success_without_a_commit_is_misconfigured() {
    let store = Counted::new();
    let app = app(layer(store.clone()));
    for code in [200, 201, 202, 204, 226, 301, 303, 304, 101] {
        for state in [
            "untouched",
            "open",
            "open-rolledback",
            "open-stale",
            "open-unknown",
            // For a write it is not enough to have claimed.
            "claimed",
            "claimed-open-rolledback",
            // A second transaction is still open, or nobody knows of it, or it was refused.
            "open-committed-open",
            "open-committed-unknown",
            "open-committed-stale",
        ] {
            let refusal = refusal(&app, put(&format!("/{state}/{code}"), "34")).await;
            assert_eq!((refusal.status, refusal.name), (500, "misconfigured"), "{state} {code}");
            assert!(!refusal.headers.contains_key("x-inner"), "nothing of the answer goes out");
            let document = refusal.document.to_string();
            assert!(!document.contains("secret"), "{document}");
            assert_eq!(refusal.document["resource"], "doc");
        }
        for state in ["open-committed", "open-committed-open-rolledback", "open-committed-claimed"]
        {
            let response = send(&app, put(&format!("/{state}/{code}"), "34")).await;
            assert_eq!(response.status(), code, "{state}");
            assert_eq!(response.headers()[TOKEN], "34", "{state}");
            assert_eq!(response.headers()["x-inner"], "secret");
        }
    }
    assert_eq!(store.asked(), 0, "a write is checked once: by its transaction");
}

/// An error is the handler's to give, and says by the token header whether something was committed.
#[tokio::test]
async fn an_error_of_the_handler_passes_and_is_echoed_only_after_a_commit() {
    let app = app(layer(Counted::new()));
    for code in [400, 404, 409, 412, 500, 503] {
        for state in ["untouched", "open", "open-rolledback", "open-stale", "open-unknown"] {
            let response = send(&app, put(&format!("/{state}/{code}"), "34")).await;
            assert_eq!(response.status(), code);
            assert_eq!(response.headers().get(TOKEN), None, "{state}");
            assert_eq!(text(response).await, "secret");
        }
        let response = send(&app, put(&format!("/open-committed/{code}"), "34")).await;
        assert_eq!(response.status(), code);
        assert_eq!(response.headers()[TOKEN], "34");
    }
}

/// H9: nobody else raises the mark for a read, and it has to be raised before anything is read.
#[tokio::test]
async fn h9_a_read_with_a_token_is_claimed_by_the_layer_before_the_handler_reads() {
    async fn read(claim: Option<Claim>, headers: HeaderMap) -> String {
        let Some(claim) = claim else { return "nobody".to_owned() };
        assert_eq!(claim.state(), ClaimState::Claimed);
        // What a handler may do with it besides changes nothing about that.
        if let Some(states) = headers.get("x-note") {
            note(&claim, states.to_str().unwrap());
        }
        "holder".to_owned()
    }
    let store = Counted::new();
    let app = Router::new()
        .route("/doc", routing::get(read).put(|| async {}))
        .route_layer(layer(store.clone()));
    for method in [Method::GET, Method::HEAD] {
        let response = send(&app, request(method, "/doc", "34")).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()[TOKEN], "34");
    }
    let with = |states: &'static str| {
        let mut request = get("/doc", "34");
        request.headers_mut().insert("x-note", HeaderValue::from_static(states));
        request
    };
    for states in ["claimed", "open-rolledback", "open-committed"] {
        assert_eq!(text(send(&app, with(states)).await).await, "holder", "{states}");
    }
    for states in ["stale", "open", "unknown"] {
        assert_eq!(refused(&app, with(states)).await, (500, "misconfigured"), "{states}");
    }
    assert_eq!(text(send(&app, get("/doc", "")).await).await, "nobody");
    assert_eq!(refused(&app, get("/doc", "33")).await, (412, "stale-token"));
    assert_eq!(store.asked(), 9);
}

/// Cases 1, 2 and 9 and the names hold for it too.
#[tokio::test]
async fn what_is_no_claim_is_refused_as_ever() {
    let app = app(layer(Counted::new()));
    assert_eq!(refused(&app, put("/committed/200", "")).await, (428, "missing-token"));
    assert_eq!(refused(&app, put("/committed/200", "+5")).await, (400, "malformed-token"));
    let empty = Router::new()
        .route("/{name}", routing::put(|| async {}))
        .route_layer(FenceLayer::new(Counted::new()).resource("{name}").deferred());
    assert_eq!(refused(&empty, put("/%00", "5")).await, (400, "invalid-resource"));
}

/// Case 19 and M1: what was rolled back is not remembered, what was committed is.
#[tokio::test]
async fn m1_the_cache_of_the_layer_learns_from_commits_alone() {
    let store = Counted::new();
    let cache = CachedMarks::new(store.clone());
    let app = app(layer(cache.clone()));
    // A claim of 9 is made and rolled back, and its handler is honest, or is not, or failed late.
    for uri in ["/open-rolledback/422", "/open-rolledback/200", "/open/500", "/open-unknown/500"] {
        assert!(!status(&app, put(uri, "9")).await.is_success());
        assert_eq!(cache.remembered(), 0, "{uri}");
    }
    assert_eq!(status(&app, put("/open-committed/200", "6")).await, 200, "6 is accepted after 9");
    // From here on 5 is turned away at the door, and 6 is not.
    let stale = refusal(&app, put("/open-committed/200", "5")).await;
    assert_eq!((stale.name, &stale.document["last_token"]), ("stale-token", &6.into()));
    assert_eq!(status(&app, put("/open-committed/200", "6")).await, 200);
    // Also when the handler answers with an error after it had committed.
    assert_eq!(status(&app, put("/open-committed/500", "8")).await, 500);
    assert_eq!(refused(&app, put("/open-committed/200", "7")).await, (412, "stale-token"));
    assert_eq!(store.asked(), 0);
}

/// A storm of stale requests, whose holder writes through another replica, starts one transaction.
#[tokio::test]
async fn the_layer_learns_the_mark_from_the_first_stale_transaction() {
    let transactions = Arc::new(AtomicUsize::new(0));
    let begin = {
        let transactions = Arc::clone(&transactions);
        async move |claim: Claim| {
            transactions.fetch_add(1, Ordering::SeqCst);
            let mark = Token::new(40).unwrap();
            claim.note_stale(mark);
            Problem::stale(&claim, mark)
        }
    };
    let app = Router::new()
        .route("/doc", routing::put(begin))
        .route_layer(layer(CachedMarks::new(Counted::new())));
    for _ in 0..100 {
        let stale = refusal(&app, put("/doc", "39")).await;
        assert_eq!((stale.status, &stale.document["last_token"]), (412, &40.into()));
    }
    assert_eq!(transactions.load(Ordering::SeqCst), 1);
}

/// gRPC says what failed beside the status 200.
#[tokio::test]
async fn a_grpc_error_is_no_success() {
    let respond =
        async |_: Claim, headers: HeaderMap| [("grpc-status", headers["x-status"].clone())];
    let app =
        Router::new().route("/doc", routing::post(respond)).route_layer(layer(Counted::new()));
    let call = |code: &'static str| {
        Request::post("/doc").header(TOKEN, "3").header("x-status", code).body(Body::default())
    };
    assert_eq!(status(&app, call("9").unwrap()).await, 200);
    assert_eq!(refused(&app, call("0").unwrap()).await, (500, "misconfigured"));
}

/// M11: and it is told in its own words that a success was none: 13 is INTERNAL.
#[tokio::test]
async fn m11_a_groundless_success_is_internal_to_grpc() {
    let respond = async |_: Claim| ([("content-type", "application/grpc+proto")], "a message");
    let app =
        Router::new().route("/doc", routing::post(respond)).route_layer(layer(Counted::new()));
    let response = send(&app, request(Method::POST, "/doc", "3")).await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["grpc-status"], "13");
    assert_eq!(response.headers()["content-type"], "application/grpc+proto");
    assert_eq!(response.extensions().get::<Problem>().unwrap().status(), 500);
    assert_eq!(response.headers().get(TOKEN), None);
    assert_eq!(text(response).await, "");
}

/// A request that may come without a token, and does, is none of the layer's business.
#[tokio::test]
async fn a_success_without_any_claim_passes() {
    use fencing::guard::Policy;
    let write = async |claim: Option<Claim>| assert!(claim.is_none());
    let layer = layer(Counted::new()).policy(|_: &_| Policy::Optional);
    let app = Router::new().route("/doc", routing::put(write)).route_layer(layer);
    let response = send(&app, put("/doc", "")).await;
    assert_eq!((response.status().as_u16(), response.headers().get(TOKEN)), (200, None));
}

/// Also in a release build, the check is there; it can be told to only tell.
#[tokio::test]
async fn report_only_lets_a_groundless_success_out() {
    let app = app(layer(Counted::new()).report_only(true));
    let response = send(&app, put("/open-rolledback/200", "34")).await;
    assert_eq!((response.status().as_u16(), response.headers().get(TOKEN)), (200, None));
    assert_eq!(text(response).await, "secret");
}

/// Without a cache it works too: the store knows nothing at hand, and the transaction decides.
#[tokio::test]
async fn i6_a_store_that_is_down_stops_reads_and_leaves_writes_to_the_transaction() {
    #[derive(Debug)]
    struct Down;
    impl Marks for Down {
        fn advance(&self, _: &Claim) -> Check {
            Check::Ready(Err(MarksError::new(MarksErrorKind::Unavailable)))
        }
    }
    let app = Router::new()
        .route("/{state}/{code}", routing::put(handler).get(|| async {}))
        .route_layer(layer(Down));
    assert_eq!(status(&app, put("/open-committed/200", "34")).await, 200);
    assert_eq!(refused(&app, get("/x/200", "34")).await, (503, "fence-unavailable"));
}

/// Memory marks that the handler itself decides by are a store like any other.
#[tokio::test]
async fn marks_that_are_at_hand_are_looked_at() {
    let marks = Arc::new(MemoryMarks::ephemeral());
    let resource = Resource::new("doc").unwrap();
    let _ = marks.decide(&Claim::new(resource.clone(), Token::new(34).unwrap()));
    let app = app(layer(Arc::clone(&marks)));
    assert_eq!(refused(&app, put("/committed/200", "33")).await, (412, "stale-token"));
    assert_eq!(status(&app, put("/open-committed/200", "35")).await, 200);
    assert_eq!(marks.mark(&resource), Token::new(34).ok(), "it was looked at, not raised");
}
