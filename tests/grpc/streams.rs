//! Streaming calls: decided once, by the metadata they begin with.

use std::time::Duration;

use fencing::marks::MemoryMarks;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request};

use crate::ledger::{Ledger, Site, fence, refused, request, text, with_claim};

const LIMIT: Duration = Duration::from_secs(20);

/// A stream of large messages that never ends, and the task that feeds it until nobody reads.
fn endless(
    resource: &str,
    token: &str,
) -> (Request<ReceiverStream<String>>, tokio::task::JoinHandle<usize>) {
    let (send, receive) = mpsc::channel(4);
    let feeding = tokio::spawn(async move {
        let mut sent = 0;
        while send.send("x".repeat(64 * 1024)).await.is_ok() {
            sent += 1;
        }
        sent
    });
    (with_claim(ReceiverStream::new(receive), resource, token), feeding)
}

#[tokio::test]
async fn streams_are_accepted() {
    let site = Site::start(fence(MemoryMarks::ephemeral()), Ledger::default()).await;
    let mut client = site.connect().await;

    let (send, receive) = mpsc::channel(4);
    for message in ["a", "b"] {
        send.send(message.to_owned()).await.unwrap();
    }
    drop(send);
    let upload = with_claim(ReceiverStream::new(receive), "account:1", "34");
    let reply = client.upload(upload).await.unwrap();
    assert_eq!(text(reply.metadata(), "x-fencing-token"), Some("34"));
    assert_eq!(reply.get_ref(), "account:1=34 wrote 2");

    let reply = client.watch(request("account:1", "34")).await.unwrap();
    assert_eq!(text(reply.metadata(), "x-fencing-token"), Some("34"));
    let mut seen = reply.into_inner();
    for n in 0..3 {
        assert_eq!(seen.message().await.unwrap().unwrap(), format!("account:1=34 saw {n}"));
    }
    assert_eq!(seen.message().await.unwrap(), None);

    let (send, receive) = mpsc::channel(4);
    let chat = with_claim(ReceiverStream::new(receive), "account:1", "34");
    let mut answers = client.chat(chat).await.unwrap().into_inner();
    for message in ["a", "b"] {
        send.send(message.to_owned()).await.unwrap();
        let answer = answers.message().await.unwrap().unwrap();
        assert_eq!(answer, format!("account:1=34: {message}"));
    }
    drop(send);
    assert_eq!(answers.message().await.unwrap(), None);
}

/// A client that is still sending must see why it was refused, and not a broken stream, which it
/// would take for a reason to try again.
#[tokio::test]
async fn a_stale_client_that_is_still_sending_sees_why() {
    let ledger = Ledger::default();
    let site = Site::start(fence(MemoryMarks::ephemeral()), ledger.clone()).await;
    let mut client = site.connect().await;
    client.write("account:1", "34").await.unwrap();
    for round in 0..20 {
        let (upload, feeding) = endless("account:1", "33");
        let reply = tokio::time::timeout(LIMIT, client.upload(upload)).await.unwrap();
        let stale = refused(reply);
        assert_eq!(
            (stale.code, &*stale.name),
            (Code::FailedPrecondition, "stale-token"),
            "{round}"
        );
        // The stream is let go of: the client does not send for ever.
        tokio::time::timeout(LIMIT, feeding).await.unwrap().unwrap();
        let (chat, feeding) = endless("account:1", "33");
        let reply = tokio::time::timeout(LIMIT, client.chat(chat)).await.unwrap();
        assert_eq!(refused(reply).name, "stale-token");
        tokio::time::timeout(LIMIT, feeding).await.unwrap().unwrap();
    }
    // The connection lives on.
    client.write("account:1", "34").await.unwrap();
    assert_eq!(ledger.calls(), 2);
    assert_eq!(refused(client.watch(request("account:1", "33")).await).name, "stale-token");
}

/// What the docs say: a stream that has begun is not looked at again. Its writes have to be fenced
/// one by one where they are made.
#[tokio::test]
async fn a_stream_that_was_accepted_goes_on_when_it_is_overtaken() {
    let site = Site::start(fence(MemoryMarks::ephemeral()), Ledger::default()).await;
    let mut client = site.connect().await;
    let (send, receive) = mpsc::channel(4);
    let chat = with_claim(ReceiverStream::new(receive), "account:1", "33");
    let mut answers = client.chat(chat).await.unwrap().into_inner();
    client.write("account:1", "34").await.unwrap();
    send.send("still here".to_owned()).await.unwrap();
    assert_eq!(answers.message().await.unwrap().unwrap(), "account:1=33: still here");
}
