//! Places and templates in an axum router.

use axum::Router;
use axum::routing;
use fencing::Claim;
use fencing::guard::FenceLayer;
use fencing::marks::MemoryMarks;

use crate::support::{get, header, put, refused, send, status};

async fn write(claim: Claim) -> String {
    claim.resource().to_string()
}

async fn read(claim: Option<Claim>) -> String {
    claim.map_or("none".to_owned(), |claim| claim.token().to_string())
}

fn app() -> Router {
    Router::new()
        .route("/inventory/{id}", routing::put(write).get(read))
        .route_layer(FenceLayer::new(MemoryMarks::ephemeral()).resource("inventory:item:{id}"))
}

#[tokio::test]
async fn a_lower_token_is_refused_and_an_accepted_one_is_echoed() {
    let app = app();
    let response = send(&app, put("/inventory/1", "34")).await;
    assert_eq!(response.status(), 200);
    assert_eq!(header(&response).unwrap(), "34");
    assert_eq!(refused(&app, put("/inventory/1", "33")).await, (412, "stale-token"));
    assert_eq!(status(&app, put("/inventory/2", "33")).await, 200);
    assert_eq!(status(&app, get("/inventory/2", "")).await, 200);
}
