//! Single calls: accepted, and refused for each reason there is.

use std::sync::{Arc, Mutex};

use fencing::Claim;
use fencing::guard::Policy;
use fencing::marks::{Check, Marks, MarksError, MarksErrorKind, MemoryMarks};
use tonic::service::LayerExt;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Request};
use tower::ServiceBuilder;
use tower::limit::ConcurrencyLimitLayer;

use crate::ledger::{Ledger, Refused, Site, fence, refused, request, text, with_claim};

fn refusal(code: Code, name: &str, last_token: Option<&str>, pushback: &str) -> Refused {
    Refused {
        code,
        name: name.to_owned(),
        last_token: last_token.map(str::to_owned),
        pushback: pushback.to_owned(),
    }
}

#[tokio::test]
async fn a_call_is_accepted_or_stale() {
    let ledger = Ledger::default();
    let site = Site::start(fence(MemoryMarks::ephemeral()), ledger.clone()).await;
    let mut client = site.connect().await;
    let reply = client.write("account:1", "34").await.unwrap();
    assert_eq!(text(reply.metadata(), "x-fencing-token"), Some("34"));
    assert_eq!(reply.get_ref(), "account:1=34");
    // One lease covers many calls.
    client.write("account:1", "34").await.unwrap();
    let stale = refused(client.write("account:1", "33").await);
    assert_eq!(stale, refusal(Code::FailedPrecondition, "stale-token", Some("34"), "-1"));
    client.write("account:2", "33").await.unwrap();
    assert_eq!(ledger.calls(), 3);
}

/// Case 9: all methods of gRPC are POST, so no call goes without a token.
#[tokio::test]
async fn a_call_without_a_token_is_refused() {
    let ledger = Ledger::default();
    let site = Site::start(fence(MemoryMarks::ephemeral()), ledger.clone()).await;
    let mut client = site.connect().await;
    let missing = refusal(Code::InvalidArgument, "missing-token", None, "-1");
    assert_eq!(refused(client.write("account:1", "").await), missing);
    assert_eq!(refused(client.watch(request("account:1", "")).await), missing);
    let mut misspelt = request("account:1", "");
    misspelt.metadata_mut().insert("x-fence-token", "34".parse().unwrap());
    assert_eq!(refused(client.unary("Write", misspelt).await), missing);
    assert_eq!(ledger.calls(), 0);
}

/// Case 1, case 2 and case 3, in metadata.
#[tokio::test]
async fn malformed_tokens_are_refused_and_raise_nothing() {
    let ledger = Ledger::default();
    let site = Site::start(fence(MemoryMarks::ephemeral()), ledger.clone()).await;
    let mut client = site.connect().await;
    let malformed = refusal(Code::InvalidArgument, "malformed-token", None, "-1");
    for token in [
        "+5",
        "-0",
        "007",
        "0x5",
        "5.0",
        "1e3",
        "5_0",
        "5 6",
        "10, 3",
        "0",
        "9223372036854775808",
        "18446744073709551615",
        "18446744073709551616",
    ] {
        assert_eq!(refused(client.write("account:1", token).await), malformed, "{token}");
    }
    let mut empty = request("account:1", "");
    empty.metadata_mut().insert("x-fencing-token", "".parse().unwrap());
    assert_eq!(refused(client.unary("Write", empty).await), malformed);
    for pair in [["10", "3"], ["3", "10"], ["10", "10"]] {
        let mut twice = request("account:1", pair[0]);
        twice.metadata_mut().append("x-fencing-token", pair[1].parse().unwrap());
        assert_eq!(refused(client.unary("Write", twice).await), malformed, "{pair:?}");
    }
    // Metadata whose name ends in `-bin` is other metadata, and no token.
    let mut binary = request("account:1", "");
    let value = tonic::metadata::BinaryMetadataValue::from_bytes(b"34");
    binary.metadata_mut().insert_bin("x-fencing-token-bin", value);
    assert_eq!(refused(client.unary("Write", binary).await).name, "missing-token");
    assert_eq!(ledger.calls(), 0);
    client.write("account:1", "1").await.unwrap();
    client.write("account:1", "9223372036854775807").await.unwrap();
}

/// Case 8: all spellings of a name in the metadata are one resource.
#[tokio::test]
async fn the_resource_comes_from_the_metadata() {
    let ledger = Ledger::default();
    let site = Site::start(fence(MemoryMarks::ephemeral()), ledger.clone()).await;
    let mut client = site.connect().await;
    let reply = client.write("konto:m%C3%BCller%2F1", "9").await.unwrap();
    assert_eq!(reply.get_ref(), "konto:müller/1=9");
    for spelling in ["konto:m%c3%bcller/1", "%6bonto:m%C3%BCller%2f1"] {
        assert_eq!(refused(client.write(spelling, "3").await).name, "stale-token", "{spelling}");
    }
    let invalid = refusal(Code::InvalidArgument, "invalid-resource", None, "-1");
    for resource in ["", "a%zz", "a%00", "%FF", &"x".repeat(256)] {
        assert_eq!(refused(client.write(resource, "9").await), invalid, "{resource}");
    }
    assert_eq!(ledger.calls(), 1);
}

/// Fails as it is told to, else decides.
#[derive(Debug)]
struct Troubled(MemoryMarks, Arc<Mutex<Option<MarksErrorKind>>>);

impl Marks for Troubled {
    fn advance(&self, claim: &Claim) -> Check {
        match *self.1.lock().unwrap() {
            Some(kind) => {
                let source = std::io::Error::other("secret_table on db7.internal: refused");
                let error = MarksError::new(kind).with_source(source);
                Check::Pending(Box::pin(async move {
                    tokio::task::yield_now().await;
                    Err(error)
                }))
            }
            None => self.0.advance(claim),
        }
    }
}

/// Case 12 and case 13: a store in trouble is told from a stale token, and says when to come back.
#[tokio::test]
async fn i6_a_store_in_trouble_is_unavailable_and_recovers() {
    let trouble = Arc::new(Mutex::new(None));
    let ledger = Ledger::default();
    let marks = Troubled(MemoryMarks::ephemeral(), Arc::clone(&trouble));
    let site = Site::start(fence(marks), ledger.clone()).await;
    let mut client = site.connect().await;
    client.write("account:1", "5").await.unwrap();
    for (kind, code, name) in [
        (MarksErrorKind::Unavailable, Code::Unavailable, "fence-unavailable"),
        (MarksErrorKind::Contended, Code::Aborted, "contended"),
    ] {
        *trouble.lock().unwrap() = Some(kind);
        for token in ["5", "4"] {
            let status = client.write("account:1", token).await.unwrap_err();
            let shown = format!("{status:?}");
            assert!(!shown.contains("db7") && !shown.contains("secret"), "{shown}");
            assert_eq!(refused::<()>(Err(status)), refusal(code, name, None, "1000"));
        }
    }
    assert_eq!(ledger.calls(), 1);
    *trouble.lock().unwrap() = None;
    assert_eq!(refused(client.write("account:1", "4").await).name, "stale-token");
    client.write("account:1", "5").await.unwrap();
}

/// A handler that finds out in its transaction answers in the same words as the fence.
#[tokio::test]
async fn a_stale_claim_found_by_the_handler_is_the_same_refusal() {
    let site = Site::start(fence(MemoryMarks::ephemeral()), Ledger::default()).await;
    let mut client = site.connect().await;
    let late = refused(client.unary("Late", request("account:1", "34")).await);
    assert_eq!(late, refusal(Code::FailedPrecondition, "stale-token", Some("99"), "-1"));
}

#[tokio::test]
async fn the_mark_can_be_kept_from_callers() {
    let layer = fence(MemoryMarks::ephemeral()).hide_last_token(true);
    let site = Site::start(layer, Ledger::default()).await;
    let mut client = site.connect().await;
    client.write("account:1", "3434").await.unwrap();
    let status = client.write("account:1", "33").await.unwrap_err();
    assert!(!format!("{status:?}").contains("3434"), "{status:?}");
    assert_eq!(refused::<()>(Err(status)).name, "stale-token");
}

/// Around one service of a server, the others, and the answer to unknown methods, stay as they are.
#[tokio::test]
async fn one_service_of_a_server_can_be_fenced() {
    let ledger = Ledger::default();
    let service = fence(MemoryMarks::ephemeral()).named_layer(ledger.clone());
    let site = Site::serve(|listener| {
        Server::builder().add_service(service).serve_with_incoming(TcpIncoming::from(listener))
    })
    .await;
    let mut client = site.connect().await;
    client.write("account:1", "34").await.unwrap();
    assert_eq!(refused(client.write("account:1", "33").await).name, "stale-token");
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", site.address));
    let mut other = tonic::client::Grpc::new(channel.unwrap().connect().await.unwrap());
    other.ready().await.unwrap();
    let path = "/test.Other/Call".parse().unwrap();
    let call = Request::new(String::new());
    let status = other.unary(call, path, crate::ledger::Text).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    assert_eq!(ledger.calls(), 1);
}

/// A client with many calls in flight on one connection: each gets its own answer.
#[tokio::test]
async fn calls_at_once_on_one_connection_do_not_mix() {
    let site = Site::start(fence(MemoryMarks::ephemeral()), Ledger::default()).await;
    let mut client = site.connect().await;
    client.write("account:1", "50").await.unwrap();
    let calls: Vec<_> = (1..=100)
        .map(|token: i64| {
            let mut client = client.clone();
            tokio::spawn(async move {
                let request = with_claim(String::new(), "account:1", &token.to_string());
                (token, client.unary("Write", request).await)
            })
        })
        .collect();
    for call in calls {
        let (token, reply) = call.await.unwrap();
        match reply {
            Ok(reply) => {
                assert!(token >= 50);
                assert_eq!(text(reply.metadata(), "x-fencing-token"), Some(&*token.to_string()));
            }
            Err(status) => assert_eq!(refused::<()>(Err(status)).name, "stale-token"),
        }
    }
}

/// Methods that only read may do without, by the name of the method: there is no safe one in gRPC.
#[tokio::test]
async fn a_policy_goes_by_the_name_of_the_method() {
    let layer = fence(MemoryMarks::ephemeral()).policy(|parts| {
        if parts.uri.path() == "/test.Ledger/Read" { Policy::Optional } else { Policy::Required }
    });
    let ledger = Ledger::default();
    let site = Site::start(layer, ledger.clone()).await;
    let mut client = site.connect().await;
    let anybody = client.unary("Read", request("account:1", "")).await.unwrap_err();
    assert_eq!((anybody.code(), ledger.calls()), (Code::Unimplemented, 1), "the handler decides");
    assert_eq!(refused(client.write("account:1", "").await).name, "missing-token");
    client.write("account:1", "34").await.unwrap();
    let stale = refused(client.unary("Read", request("account:1", "33")).await);
    assert_eq!(stale.name, "stale-token", "a token that is there is looked at");
}

/// For roll-out: told, and let through.
#[tokio::test]
async fn report_only_lets_calls_through() {
    let ledger = Ledger::default();
    let layer = fence(MemoryMarks::ephemeral()).report_only(true);
    let site = Site::start(layer, ledger.clone()).await;
    let mut client = site.connect().await;
    client.write("account:1", "34").await.unwrap();
    assert_eq!(client.write("account:1", "33").await.unwrap().get_ref(), "account:1=33");
    let nobody = client.write("account:1", "").await.unwrap_err();
    assert_eq!((nobody.code(), nobody.message()), (Code::Internal, "no fence"));
    assert_eq!(ledger.calls(), 3);
}

/// Case 10: a place that was reserved for a call goes back when the call is refused.
#[tokio::test]
async fn a_refused_call_keeps_no_place() {
    let layer = ServiceBuilder::new()
        .layer(fence(MemoryMarks::ephemeral()))
        .layer(ConcurrencyLimitLayer::new(1));
    let site = Site::serve(|listener| {
        let server = Server::builder().layer(layer).add_service(Ledger::default());
        server.serve_with_incoming(TcpIncoming::from(listener))
    })
    .await;
    let mut client = site.connect().await;
    client.write("account:1", "34").await.unwrap();
    for _ in 0..100 {
        assert_eq!(refused(client.write("account:1", "33").await).name, "stale-token");
    }
    client.write("account:1", "34").await.unwrap();
}
