//! The deferred layer in front of gRPC, whose failures come with the HTTP status of a success.

use fencing::marks::MemoryMarks;
use tonic::Code;

use crate::ledger::{Client, Ledger, Site, fence, refused, request, text};

async fn start() -> (Site, Client) {
    let site = Site::start(fence(MemoryMarks::ephemeral()).deferred(), Ledger::default()).await;
    let client = site.connect().await;
    (site, client)
}

#[tokio::test]
async fn a_call_that_has_committed_is_a_success() {
    let (_site, mut client) = start().await;
    let reply = client.unary("Commit", request("account:1", "34")).await.unwrap();
    assert_eq!(text(reply.metadata(), "x-fencing-token"), Some("34"));
}

/// i4: nothing of a success goes out under which nothing was committed.
#[tokio::test]
async fn i4_a_success_without_a_commit_is_none() {
    let (_site, mut client) = start().await;
    let refusal = refused(client.write("account:1", "34").await);
    assert_eq!((refusal.code, &*refusal.name), (Code::Internal, "misconfigured"));
    let refusal = refused(client.watch(request("account:1", "34")).await);
    assert_eq!((refusal.code, &*refusal.name), (Code::Internal, "misconfigured"));
}

/// What the transaction found out is the answer, though its HTTP status is 200.
#[tokio::test]
async fn a_failure_of_the_handler_is_left_as_it_is() {
    let (_site, mut client) = start().await;
    let stale = refused(client.unary("Late", request("account:1", "34")).await);
    assert_eq!((stale.code, stale.last_token.as_deref()), (Code::FailedPrecondition, Some("99")));
    let unknown = client.unary("Nothing", request("account:1", "34")).await.unwrap_err();
    assert_eq!(unknown.code(), Code::Unimplemented);
    assert_eq!(text(unknown.metadata(), "x-fencing-token"), None, "nothing was committed");
}
