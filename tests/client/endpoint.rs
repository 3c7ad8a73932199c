//! Client and endpoint together: what one believes of the other holds.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use fencing::Resource;
use fencing::client::{ClientErrorKind, LostReason, ReleaseOutcome};
use fencing::clock::Clock;
use fencing::testing::{LockServer, ManualClock};

use crate::{eventually, ms, secs, soon};

/// The output of a future, while the clock ticks. Between two ticks there is time for what happens
/// on the wire.
async fn ticking<F: Future>(clock: &ManualClock, future: F) -> F::Output {
    let mut future = pin!(future);
    let ticking = async {
        loop {
            if let Ok(output) = tokio::time::timeout(ms(2), &mut future).await {
                return output;
            }
            clock.advance(ms(50));
        }
    };
    soon(ticking).await
}

#[tokio::test]
async fn a_lock_goes_from_hand_to_hand_with_growing_tokens() {
    let server = LockServer::start().await.unwrap();
    let client = server.client();
    let resource = Resource::new("a/b é%").unwrap();
    assert!(client.show(&resource).await.unwrap().is_none());
    assert_eq!(client.highest_token(&resource).await.unwrap(), None);
    for token in 1..=3 {
        let lease = client.acquire(&resource).owner("me").await.unwrap().unwrap();
        assert_eq!(lease.token().get(), token);
        assert!(client.acquire(resource.clone()).await.unwrap().is_none());
        let shown = client.show(&resource).await.unwrap().unwrap();
        assert_eq!((shown.token, &*shown.owner), (lease.token(), "me"));
        assert!(shown.owner_token.is_none());
        assert_eq!(soon(lease.release()).await.unwrap(), ReleaseOutcome::Released);
    }
    assert_eq!(client.highest_token(&resource).await.unwrap().unwrap().get(), 3);
}

#[tokio::test]
async fn a_lease_lives_as_long_as_its_renewals() {
    let server = LockServer::start().await.unwrap();
    let (client, clock) = (server.client(), server.clock());
    let lease = client.acquire("r").ttl(secs(3)).await.unwrap().unwrap();
    for _ in 0..30 {
        soon(clock.until_sleeping(1)).await;
        clock.advance(secs(1));
        eventually("the renewal", || lease.remaining() == secs(3)).await;
    }
    assert!(client.acquire("r").await.unwrap().is_none());
}

#[tokio::test]
async fn a_waiter_gets_the_lock_when_it_is_released() {
    let server = LockServer::start().await.unwrap();
    let client = server.client();
    let lease = client.acquire("r").ttl(secs(60)).await.unwrap().unwrap();
    let waiter = tokio::spawn(client.acquire("r").wait(secs(5)).into_future());
    // The client's timeout, the renewals, and the server's wait.
    soon(server.clock().until_sleeping(3)).await;
    assert_eq!(soon(lease.release()).await.unwrap(), ReleaseOutcome::Released);
    let next = ticking(server.clock(), waiter).await.unwrap().unwrap().unwrap();
    assert_eq!(next.token().get(), 2);
}

#[tokio::test]
async fn the_longest_hold_is_a_loss_and_then_the_lock_is_free() {
    let server = LockServer::start().await.unwrap();
    let (client, clock) = (server.client(), server.clock());
    let lease = client.acquire("r").ttl(secs(3)).max_hold(secs(5)).await.unwrap().unwrap();
    let start = clock.elapsed();
    assert_eq!(ticking(clock, lease.lost()).await.reason(), LostReason::Expired);
    // At the end of the hold: it is free for others, at the latest now.
    let held = clock.elapsed() - start;
    assert!((secs(4)..secs(6)).contains(&held), "{held:?}");
    clock.advance(secs(6) - held);
    assert!(client.acquire("r").await.unwrap().is_some());
}

/// Case 52: what was dropped is free at once, not after its TTL.
#[tokio::test]
async fn a_dropped_lease_is_free_again() {
    let server = LockServer::start().await.unwrap();
    let client = server.client();
    drop(client.acquire("r").await.unwrap().unwrap());
    let again = client.acquire("r").wait(secs(5)).into_future();
    let again = ticking(server.clock(), again).await.unwrap();
    assert_eq!(again.unwrap().token().get(), 2);
}

/// Case 48: (c) a cancelled acquire, whenever it is cancelled, leaves no lock behind.
#[tokio::test]
async fn a_cancelled_acquire_leaves_no_lock_behind() {
    let server = LockServer::start().await.unwrap();
    let client = server.client();
    let resource = Resource::new("r").unwrap();
    for polls in 0..150 {
        let acquire = tokio::spawn(client.acquire("r").into_future());
        for _ in 0..polls / 5 {
            tokio::task::yield_now().await;
        }
        acquire.abort();
        drop(acquire.await);
        let free = async { while client.show(&resource).await.unwrap().is_some() {} };
        soon(free).await;
    }
}

#[tokio::test]
async fn a_server_that_was_dropped_is_not_there() {
    let server = LockServer::start().await.unwrap();
    let (client, clock) = (server.client(), server.clock().clone());
    let lease = client.acquire("r").ttl(secs(3)).await.unwrap().unwrap();
    let waiter = tokio::spawn(client.acquire("r").wait(secs(1)).into_future());
    soon(clock.until_sleeping(3)).await;
    drop(server);
    let gone = async {
        loop {
            match client.acquire("other").await {
                Err(error) => break error.kind(),
                Ok(lease) => drop(lease),
            }
        }
    };
    assert_ne!(soon(gone).await, ClientErrorKind::Refused);
    assert_eq!(ticking(&clock, lease.lost()).await.reason(), LostReason::Expired);
    assert!(!matches!(ticking(&clock, waiter).await.unwrap(), Ok(Some(_))));
}

#[tokio::test]
async fn twenty_workers_never_hold_it_together() {
    let server = LockServer::start().await.unwrap();
    let inside = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let (client, inside) = (server.client(), Arc::clone(&inside));
        workers.spawn(async move {
            let lease = client.acquire("r").wait(secs(50)).await.unwrap().expect("in time");
            let others = inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            tokio::task::yield_now().await;
            inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
            let token = lease.token().get();
            assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
            (others, token)
        });
    }
    let mut tokens = Vec::new();
    while let Some(done) = ticking(server.clock(), workers.join_next()).await {
        let (others, token) = done.unwrap();
        assert_eq!(others, 0);
        tokens.push(token);
    }
    tokens.sort_unstable();
    assert_eq!(tokens, (1..=20).collect::<Vec<_>>());
}
