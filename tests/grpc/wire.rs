//! What is on the wire, and what a client that is no gRPC client gets.

use bytes::Bytes;
use fencing::guard::FenceLayer;
use fencing::marks::MemoryMarks;
use fencing::{Problem, ProblemKind};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tower::{Layer, ServiceExt};

use crate::ledger::{Ledger, Site, fence, from_metadata};

fn post(uri: &str, media_type: &str, token: &str) -> Request<Full<Bytes>> {
    Request::post(uri)
        .header("content-type", media_type)
        .header("te", "trailers")
        .header("resource", "account:1")
        .header("x-fencing-token", token)
        .body(Full::default())
        .unwrap()
}

/// "Trailers-only" of the specification: one block of headers that ends the stream, HTTP 200.
#[tokio::test]
async fn a_refusal_is_one_block_of_headers() {
    let site = Site::start(fence(MemoryMarks::ephemeral()), Ledger::default()).await;
    let http: Client<_, Full<Bytes>> =
        Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let uri = format!("http://{}/test.Ledger/Write", site.address);
    for media_type in ["application/grpc", "application/grpc+proto", "application/grpc-web+proto"] {
        let response = http.request(post(&uri, media_type, "007")).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], media_type);
        assert_eq!(response.headers()["grpc-status"], "3");
        assert_eq!(response.headers()["fencing-problem"], "malformed-token");
        // The end was in the headers: nothing came after them.
        assert!(http_body::Body::is_end_stream(response.body()), "{response:?}");
        let body = response.into_body().collect().await.unwrap();
        assert!(body.trailers().is_none());
        assert!(body.to_bytes().is_empty());
    }
    // Bytes that a gRPC client cannot send.
    let mut bytes = post(&uri, "application/grpc", "1");
    bytes.headers_mut().insert("x-fencing-token", b"\xff"[..].try_into().unwrap());
    let response = http.request(bytes).await.unwrap();
    assert_eq!(response.headers()["fencing-problem"], "malformed-token");
}

/// A gRPC status in a response with HTTP status 200 would tell any other client that all went well.
#[tokio::test]
async fn who_does_not_speak_grpc_gets_the_http_status() {
    let service = fence(MemoryMarks::ephemeral()).layer(Ledger::default());
    let request = post("/test.Ledger/Write", "application/json", "007");
    let response = service.oneshot(request.map(|_| tonic::body::Body::empty())).await.unwrap();
    assert_eq!(response.status(), 400);
    assert!(!response.headers().contains_key("grpc-status"));
    assert!(!response.headers().contains_key("content-type"));
    assert_eq!(response.headers()["cache-control"], "no-store");
    let problem = response.extensions().get::<Problem>().unwrap();
    assert_eq!(problem.kind(), ProblemKind::MALFORMED_TOKEN);
}

/// The layer for documents answers gRPC too: for bodies that are made of bytes nothing has to be
/// said.
#[tokio::test]
async fn each_request_is_answered_in_its_own_words() {
    let service = FenceLayer::new(MemoryMarks::ephemeral()).resource_with(from_metadata).layer(
        tower::service_fn(|_: Request<Full<Bytes>>| async {
            Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::default()))
        }),
    );
    let grpc = post("/a", "application/grpc", "007");
    let grpc = service.clone().oneshot(grpc).await.unwrap();
    assert_eq!(
        (grpc.status().as_u16(), &grpc.headers()["grpc-status"]),
        (200, &"3".parse().unwrap())
    );
    assert!(grpc.extensions().get::<Problem>().is_some());
    assert!(grpc.into_body().collect().await.unwrap().to_bytes().is_empty());
    let http = service.oneshot(post("/a", "application/json", "007")).await.unwrap();
    assert_eq!(http.status(), 400);
    assert_eq!(http.headers()["content-type"], "application/problem+json");
    assert!(!http.headers().contains_key("grpc-status"));
}
