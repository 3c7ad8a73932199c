//! The gate behind gRPC.

use std::time::Duration;

use fencing::guard::Gate;
use fencing::marks::MemoryMarks;
use fencing::testing::ManualClock;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::service::LayerExt;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use crate::ledger::{Client, Ledger, Site, fence, refused, with_claim};

async fn behind(gate: Gate) -> (Site, Client) {
    let service = fence(MemoryMarks::ephemeral()).exclusive(gate).named_layer(Ledger::default());
    let site = Site::serve(|listener| {
        Server::builder().add_service(service).serve_with_incoming(TcpIncoming::from(listener))
    })
    .await;
    let client = site.connect().await;
    (site, client)
}

/// A stream holds its permit to its end, and a newer token waits for it as long as it may.
#[tokio::test]
async fn a_newer_token_waits_for_a_stream_of_an_older_one() {
    let clock = ManualClock::new();
    let (_site, mut client) = behind(Gate::with_clock(clock.clone())).await;
    let (send, receive) = mpsc::channel(4);
    let chat = with_claim(ReceiverStream::new(receive), "file:1", "33");
    let mut answers = client.chat(chat).await.unwrap().into_inner();

    let mut newer = client.clone();
    let waiting = tokio::spawn(async move { newer.write("file:1", "34").await });
    let drained = Gate::DEFAULT_DRAIN_TIMEOUT;
    wait_until(|| clock.sleeping() > 0).await;
    clock.advance(drained);
    let contended = refused(waiting.await.unwrap());
    assert_eq!((contended.code, &*contended.name), (Code::Aborted, "contended"));
    assert_eq!(contended.pushback, "1000");

    drop(send);
    assert_eq!(answers.message().await.unwrap(), None);
    client.write("file:1", "34").await.unwrap();
}

/// A call that was cancelled for a newer one does not know how far it came.
#[tokio::test]
async fn a_cancelled_call_is_of_unknown_outcome() {
    let (_site, mut client) = behind(Gate::new().cancel_older(true)).await;
    let (send, receive) = mpsc::channel(4);
    send.send("a part".to_owned()).await.unwrap();
    let upload = with_claim(ReceiverStream::new(receive), "file:1", "33");
    let mut older = client.clone();
    let upload = tokio::spawn(async move { older.upload(upload).await });
    // Sent on, so that 33 is inside before 34 comes.
    for _ in 0..3 {
        let sent = send.reserve().await.unwrap();
        sent.send("more".to_owned());
    }
    wait_until(|| send.capacity() == send.max_capacity()).await;
    client.write("file:1", "34").await.unwrap();
    let cancelled = refused(upload.await.unwrap());
    assert_eq!((cancelled.code, &*cancelled.name), (Code::Unknown, "outcome-unknown"));
    assert_eq!(cancelled.pushback, "-1", "nothing may be applied twice");
}

async fn wait_until(condition: impl Fn() -> bool) {
    tokio::time::timeout(Duration::from_secs(20), async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .expect("the condition did not come true");
}
