//! Any tower service, no framework and no features.

use std::convert::Infallible;
use std::sync::Arc;

use fencing::guard::{Fence, FenceLayer, Policy, X_FENCING_TOKEN};
use fencing::marks::{Marks, MemoryMarks};
use fencing::{Problem, ProblemKind, Resource};
use http::{HeaderName, Method, Request, Response};
use tower::{Layer, Service};

use crate::support::{
    Body, Plain, Slow, TOKEN, fence, get, put, refusal, refused, request, send, status, text,
};

#[tokio::test]
async fn a_lower_token_is_refused_before_the_service_is_called() {
    let inner = Plain::default();
    let service = fence(MemoryMarks::ephemeral()).layer(inner.clone());
    let response = send(&service, put("/item/1", "34")).await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()[TOKEN], "34");
    assert_eq!(text(response).await, "1=34");
    let refusal = refusal(&service, put("/item/1", "33")).await;
    assert_eq!((refusal.status, refusal.name), (412, "stale-token"));
    assert_eq!(refusal.document["resource"], "1");
    assert_eq!(refusal.document["token"], 33);
    assert_eq!(refusal.document["last_token"], 34);
    assert_eq!(inner.calls(), 1);
    // Another resource has another mark.
    assert_eq!(status(&service, put("/item/2", "33")).await, 200);
}

/// Case 14: one lease covers many writes, also after another resource was written. A retry with
/// the token of the mark is no stale one, and one with the token before it is (case 15).
#[tokio::test]
async fn the_equal_token_writes_again() {
    let service = fence(MemoryMarks::ephemeral()).layer(Plain::default());
    for uri in ["/doc/1", "/doc/1", "/doc/2", "/doc/1"] {
        assert_eq!(status(&service, put(uri, "7")).await, 200);
    }
    assert_eq!(status(&service, put("/doc/1", "8")).await, 200);
    assert_eq!(refused(&service, put("/doc/1", "7")).await, (412, "stale-token"));
}

/// Claim first, then read: a read with a token shuts out the older ones.
#[tokio::test]
async fn a_read_with_a_token_raises_the_mark_and_is_checked() {
    let service = fence(MemoryMarks::ephemeral()).layer(Plain::default());
    let response = send(&service, get("/doc/1", "34")).await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()[TOKEN]),
        (200, &"34".parse().unwrap())
    );
    assert_eq!(refused(&service, put("/doc/1", "33")).await, (412, "stale-token"));
    assert_eq!(refused(&service, get("/doc/1", "33")).await, (412, "stale-token"));
}

#[tokio::test]
async fn only_safe_methods_pass_without_a_token() {
    let inner = Plain::default();
    let service = fence(Unreachable).layer(inner.clone());
    for method in [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE] {
        let response = send(&service, request(method, "/doc/1", "")).await;
        assert_eq!(response.status(), 200);
        assert!(!response.headers().contains_key(TOKEN));
        assert_eq!(text(response).await, "", "no claim for a request without a token");
    }
    assert_eq!(inner.calls(), 4);
    let others = ["PUT", "POST", "PATCH", "DELETE", "CONNECT", "PROPFIND", "get", "QUERY"];
    for method in others.map(|name| Method::from_bytes(name.as_bytes()).unwrap()) {
        let refusal = refusal(&service, request(method, "/doc/1", "")).await;
        assert_eq!((refusal.status, refusal.name), (428, "missing-token"));
        assert_eq!(refusal.document["resource"], "1");
        let detail = refusal.document["detail"].as_str().unwrap();
        assert!(detail.contains("x-fencing-token"), "{detail}");
    }
    assert_eq!(inner.calls(), 4);
}

/// A store that must not be asked.
#[derive(Debug)]
struct Unreachable;

impl Marks for Unreachable {
    fn advance(&self, _: &fencing::Claim) -> fencing::marks::Check {
        panic!("the store was asked about a request without a valid claim")
    }
}

#[tokio::test]
async fn a_token_can_be_required_for_safe_methods_too() {
    let layer = fence(MemoryMarks::ephemeral()).policy(|_: &_| Policy::Required);
    let service = layer.layer(Plain::default());
    assert_eq!(refused(&service, get("/doc/1", "")).await, (428, "missing-token"));
    assert_eq!(status(&service, get("/doc/1", "3")).await, 200);
}

#[tokio::test]
async fn the_mark_can_be_kept_from_the_caller() {
    let service = fence(MemoryMarks::ephemeral()).hide_last_token(true).layer(Plain::default());
    assert_eq!(status(&service, put("/doc/1", "3434")).await, 200);
    let refusal = refusal(&service, put("/doc/1", "33")).await;
    assert_eq!(refusal.name, "stale-token");
    assert!(!refusal.document.to_string().contains("3434"), "{}", refusal.document);
    assert_eq!(refusal.problem.last_token(), None);
}

#[tokio::test]
async fn the_header_can_have_another_name() {
    const EPOCH: HeaderName = HeaderName::from_static("x-epoch");
    let service = fence(MemoryMarks::ephemeral()).header(EPOCH).layer(Plain::default());
    // The usual header means nothing then.
    let missing = refusal(&service, put("/doc/1", "5")).await;
    assert_eq!(missing.name, "missing-token");
    assert!(missing.document["detail"].as_str().unwrap().contains("x-epoch"));
    let with = |token: &str| {
        Request::put("/doc/1").header("X-Epoch", token).body(Body::default()).unwrap()
    };
    let response = send(&service, with("5")).await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()[EPOCH]),
        (200, &"5".parse().unwrap())
    );
    assert_eq!(refused(&service, with("4")).await, (412, "stale-token"));
    assert_eq!(X_FENCING_TOKEN, TOKEN);
}

/// The function decides what the answer is when there is no resource.
#[tokio::test]
async fn a_function_of_the_request_names_the_resource() {
    const NO_TENANT: ProblemKind =
        ProblemKind::new("no-tenant", http::StatusCode::NOT_FOUND, "There is no such tenant");
    let layer = FenceLayer::new(MemoryMarks::ephemeral()).resource_with(|parts: &_| {
        let parts: &http::request::Parts = parts;
        let tenant = parts.headers.get("x-tenant").ok_or_else(|| Problem::new(NO_TENANT))?;
        let name = String::from_utf8_lossy(tenant.as_bytes()).into_owned();
        Ok(Resource::new(name)?)
    });
    let inner = Plain::default();
    let service = layer.layer(inner.clone());
    assert_eq!(refused(&service, put("/", "5")).await, (404, "no-tenant"));
    let with = |tenant: &str| {
        let mut request = put("/", "5");
        request.headers_mut().insert("x-tenant", tenant.parse().unwrap());
        request
    };
    let long = "x".repeat(256);
    assert_eq!(refused(&service, with(&long)).await, (400, "invalid-resource"));
    assert_eq!(refused(&service, with("")).await, (400, "invalid-resource"));
    assert_eq!(inner.calls(), 0);
    assert_eq!(text(send(&service, with("acme")).await).await, "acme=5");
}

#[tokio::test]
async fn a_store_that_has_to_be_waited_for_decides_the_same() {
    let inner = Plain::default();
    let service = fence(Slow(MemoryMarks::ephemeral())).layer(inner.clone());
    let response = send(&service, put("/item/1", "34")).await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()[TOKEN]),
        (200, &"34".parse().unwrap())
    );
    assert_eq!(text(response).await, "1=34");
    assert_eq!(refused(&service, put("/item/1", "33")).await, (412, "stale-token"));
    assert_eq!(inner.calls(), 1);
}

#[tokio::test]
async fn layers_over_one_store_share_its_marks_and_clones_of_a_layer_do() {
    let marks: Arc<dyn Marks> = Arc::new(MemoryMarks::ephemeral());
    let layer = fence(Arc::clone(&marks));
    let (one, two) = (layer.clone().layer(Plain::default()), fence(marks).layer(Plain::default()));
    let three = layer.layer(Plain::default());
    assert_eq!(status(&one, put("/item/1", "34")).await, 200);
    for service in [two, three] {
        assert_eq!(refused(&service, put("/item/1", "33")).await, (412, "stale-token"));
    }
}

/// The handler of an inner fence must not get the claim on the resource of an outer one.
#[tokio::test]
async fn of_two_fences_the_inner_one_names_the_claim() {
    const EPOCH: HeaderName = HeaderName::from_static("x-epoch");
    let named = |name: &'static str| move |_: &http::request::Parts| Ok(Resource::new(name)?);
    let outer = FenceLayer::new(MemoryMarks::ephemeral()).resource_with(named("outer"));
    let inner = FenceLayer::new(MemoryMarks::ephemeral()).resource_with(named("inner"));
    let service = outer.layer(inner.header(EPOCH).layer(Plain::default()));
    assert_eq!(text(send(&service, get("/", "5")).await).await, "");
    let mut both = put("/", "5");
    both.headers_mut().insert(EPOCH, "9".parse().unwrap());
    let response = send(&service, both).await;
    assert_eq!(
        (&response.headers()[TOKEN], &response.headers()[EPOCH]),
        (&"5".parse().unwrap(), &"9".parse().unwrap())
    );
    assert_eq!(text(response).await, "inner=9");
}

/// The error of the service behind the fence passes through, and the fence adds none of its own.
#[test]
fn the_error_stays_that_of_the_inner_service() {
    fn error_of<S: Service<Request<Body>, Error = E>, E>(_: &S) -> std::marker::PhantomData<E> {
        std::marker::PhantomData
    }
    let service: Fence<Plain> = fence(MemoryMarks::ephemeral()).layer(Plain::default());
    let _: std::marker::PhantomData<Infallible> = error_of(&service);
    let failing = tower::service_fn(|_: Request<Body>| async {
        Err::<Response<http_body_util::Full<bytes::Bytes>>, std::io::Error>(std::io::Error::other(
            "inner",
        ))
    });
    let _: std::marker::PhantomData<std::io::Error> =
        error_of(&fence(MemoryMarks::ephemeral()).layer(failing));
}

/// Nothing is boxed on the way of a store that answers at once: what the fence adds to the future
/// of the inner service is the echo alone.
#[test]
fn the_future_stays_small() {
    type Inner =
        std::future::Ready<Result<Response<http_body_util::Full<bytes::Bytes>>, Infallible>>;
    let (whole, inner) =
        (size_of::<fencing::guard::ResponseFuture<Plain, Body>>(), size_of::<Inner>());
    assert!(whole <= inner + 128, "{whole} bytes over {inner}");
}

/// M2: a job that may write once is refused at its write, by `last_spent`. Its claim, here at the
/// door and in every read before, passes at the equal token, or it would refuse itself.
#[tokio::test]
async fn m2_a_claim_passes_at_the_equal_token_whatever_the_write_decides() {
    let service = fence(MemoryMarks::ephemeral()).layer(Plain::default());
    for request in [get("/doc/1", "7"), get("/doc/1", "7"), put("/doc/1", "7")] {
        assert_eq!(status(&service, request).await, 200);
    }
}

/// Each request is asked about by its head, and the default is at hand for the others.
#[tokio::test]
async fn a_policy_says_which_requests_need_a_token() {
    let inner = Plain::default();
    let layer = fence(MemoryMarks::ephemeral()).policy(|parts: &http::request::Parts| match parts
        .uri
        .path()
    {
        "/required/1" => Policy::Required,
        "/optional/1" => Policy::Optional,
        "/off/1" => Policy::Off,
        _ => Policy::of_method(&parts.method),
    });
    let service = layer.layer(inner.clone());
    for method in [Method::GET, Method::PUT] {
        let to = |uri: &str, token: &str| request(method.clone(), uri, token);
        assert_eq!(refused(&service, to("/required/1", "")).await, (428, "missing-token"));
        assert_eq!(text(send(&service, to("/required/1", "5")).await).await, "1=5");
        assert_eq!(text(send(&service, to("/optional/1", "")).await).await, "");
        assert_eq!(text(send(&service, to("/optional/1", "5")).await).await, "1=5");
        for uri in ["/required/1", "/optional/1"] {
            assert_eq!(refused(&service, to(uri, "4")).await, (412, "stale-token"));
            assert_eq!(refused(&service, to(uri, "+4")).await, (400, "malformed-token"));
        }
        // Off is off: neither claim nor echo, whatever the header says.
        for token in ["", "4", "9", "+4"] {
            let response = send(&service, to("/off/1", token)).await;
            assert_eq!((response.status().as_u16(), response.headers().get(TOKEN)), (200, None));
            assert_eq!(text(response).await, "");
        }
    }
    assert_eq!(refused(&service, put("/other/1", "")).await, (428, "missing-token"));
    assert_eq!(status(&service, get("/other/1", "")).await, 200);
    assert_eq!(status(&service, put("/other/1", "5")).await, 200, "9 went past the mark");
}
