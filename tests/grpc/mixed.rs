//! One server for HTTP and gRPC, over one store of marks.

use axum::Router;
use axum::routing::put;
use bytes::Bytes;
use fencing::Claim;
use fencing::guard::FenceLayer;
use fencing::marks::{Marks, MemoryMarks};
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use std::sync::Arc;
use tonic::service::Routes;

use crate::ledger::{Ledger, Site, from_metadata, refused};

async fn set(claim: Claim) -> String {
    claim.resource().to_string()
}

#[tokio::test]
async fn http_and_grpc_share_the_marks_and_are_refused_in_their_own_words() {
    let marks: Arc<dyn Marks> = Arc::new(MemoryMarks::ephemeral());
    let http = Router::new()
        .route("/accounts/{id}", put(set))
        .route_layer(FenceLayer::new(Arc::clone(&marks)).resource("account:{id}"));
    // As routes of axum, the responses of tonic's services have the body of axum.
    let grpc = Routes::new(Ledger::default())
        .into_axum_router()
        .layer(FenceLayer::new(marks).resource_with(from_metadata));
    let app = http.fallback_service(grpc);
    let site = Site::serve(|listener| axum::serve(listener, app).into_future()).await;

    let mut client = site.connect().await;
    client.write("account:1", "34").await.unwrap();
    let put = |token: &str| {
        Request::put(format!("http://{}/accounts/1", site.address))
            .header("x-fencing-token", token)
            .body(Full::<Bytes>::default())
            .unwrap()
    };
    let http = Client::builder(TokioExecutor::new()).build_http();
    let stale = http.request(put("33")).await.unwrap();
    assert_eq!(stale.status(), 412);
    let document = stale.into_body().collect().await.unwrap().to_bytes();
    let document: serde_json::Value = serde_json::from_slice(&document).unwrap();
    assert_eq!(
        (&document["type"], &document["last_token"]),
        (&"urn:fencing:problem:stale-token".into(), &34.into())
    );
    assert_eq!(http.request(put("35")).await.unwrap().status(), 200);
    let stale = refused(client.write("account:1", "34").await);
    assert_eq!((&*stale.name, stale.last_token.as_deref()), ("stale-token", Some("35")));
}
