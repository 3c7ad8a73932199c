//! Leases that are dropped, anywhere.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use fencing::client::{Lease, LostReason};
use tokio::runtime::{Handle, Runtime};

use crate::fault::FaultServer;
use crate::{Setup, client_of, eventually, ms, secs, setup, soon};

/// Case 48: (a) dropped while a renewal is in flight.
#[tokio::test]
async fn a_dropped_lease_releases_and_stops_its_renewals() {
    let mut setup = setup().await;
    let lease = setup.lease(secs(3)).await;
    soon(setup.clock.until_sleeping(1)).await;
    setup.clock.advance(secs(1));
    let in_flight = setup.server.next_renewal().await;
    let lost = tokio::spawn(lease.lost());
    drop(lease);
    let release = setup.server.next_release().await;
    assert_eq!(release.secret(), in_flight.secret());
    release.released();
    in_flight.renew(33);
    assert_eq!(soon(lost).await.unwrap().reason(), LostReason::Released);
    eventually("nobody sleeps", || setup.clock.sleeping() == 0).await;
    setup.clock.advance(secs(60));
    tokio::task::yield_now().await;
    setup.server.assert_quiet();
}

/// What a loop of case 48 does with the lease or the acquire.
#[derive(Clone, Copy, PartialEq)]
enum End {
    ReleasedInFlight,
    DroppedInFlight,
    DroppedAtOnce,
    CancelledAcquire,
}

/// Case 48: (a), (b), (c) a thousand leases are released or dropped with a renewal in flight,
/// dropped right after the acquire, or cancelled after the server granted. The release is the last
/// that the server hears of each, and no task stays.
#[tokio::test]
async fn a_thousand_leases_leave_nothing_behind() {
    for end in
        [End::ReleasedInFlight, End::DroppedInFlight, End::DroppedAtOnce, End::CancelledAcquire]
    {
        let tasks = Handle::current().metrics().num_alive_tasks();
        let mut setup = setup().await;
        for _ in 0..250 {
            one_of_a_thousand(&mut setup, end).await;
        }
        eventually("nobody sleeps", || setup.clock.sleeping() == 0).await;
        setup.clock.advance(secs(3600));
        tokio::task::yield_now().await;
        setup.server.assert_quiet();
        drop(setup);
        eventually("no task is left", || Handle::current().metrics().num_alive_tasks() <= tasks)
            .await;
    }
}

async fn one_of_a_thousand(setup: &mut Setup, end: End) {
    let acquire = setup.client.acquire("r").ttl(secs(3));
    let acquire = tokio::spawn(acquire.into_future());
    let call = setup.server.next().await;
    let secret = call.secret();
    if end == End::CancelledAcquire {
        acquire.abort();
        let release = setup.server.next_release().await;
        assert_eq!(release.secret(), secret);
        release.released();
        return;
    }
    call.grant(33, 0);
    let lease = soon(acquire).await.unwrap().unwrap().unwrap();
    let mut release = None;
    let mut renewal = None;
    if end != End::DroppedAtOnce {
        soon(setup.clock.until_sleeping(1)).await;
        setup.clock.advance(secs(1));
        renewal = Some(setup.server.next_renewal().await);
    }
    if end == End::ReleasedInFlight {
        release = Some(tokio::spawn(lease.release()));
    } else {
        drop(lease);
    }
    let call = setup.server.next_release().await;
    assert_eq!(call.secret(), secret);
    if let Some(renewal) = renewal {
        renewal.renew(33);
    }
    call.released();
    if let Some(release) = release {
        let _ = soon(release).await.unwrap().unwrap();
    }
}

/// Case 48: under several threads, whatever the moment at which the lease is dropped, it is released,
/// and no more than the one renewal that was on its way at that moment can reach the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_may_be_dropped_on_another_thread_at_any_moment() {
    let Setup { mut server, clock, client } = setup().await;
    // Of each owner token: how many renewals were read, and whether a release was.
    let seen: Arc<Mutex<HashMap<String, (usize, bool)>>> = Arc::default();
    let serving = tokio::spawn({
        let seen = Arc::clone(&seen);
        async move {
            while let Some(call) = server.wait_next().await {
                let mut seen = seen.lock().unwrap();
                let (renewals, released) = seen.entry(call.secret()).or_default();
                match (&*call.method, &*call.path) {
                    ("POST", "/locks/r") => call.grant(33, 0),
                    ("POST", "/locks/r/renew") => {
                        // The connections are read independently, so a release may be read before
                        // the renewal that was sent before it.
                        *renewals += 1;
                        call.renew(33);
                    }
                    ("DELETE", "/locks/r") => {
                        *released = true;
                        call.released();
                    }
                    _ => unreachable!("{call:?}"),
                }
            }
        }
    });
    for round in 0..200 {
        let lease = soon(client.acquire("r").ttl(secs(3)).into_future()).await.unwrap().unwrap();
        soon(clock.until_sleeping(1)).await;
        let dropper = tokio::spawn(async move {
            for _ in 0..round % 7 {
                tokio::task::yield_now().await;
            }
            drop(lease);
        });
        clock.advance(secs(1));
        soon(dropper).await.unwrap();
    }
    eventually("all are released", || {
        let seen = seen.lock().unwrap();
        seen.len() == 200 && seen.values().all(|(_, released)| *released)
    })
    .await;
    assert!(seen.lock().unwrap().values().all(|(renewals, _)| *renewals <= 1), "{seen:?}");
    serving.abort();
}

/// Case 52: the lease is dropped on a thread that knows no runtime.
#[tokio::test]
async fn a_lease_can_be_dropped_on_a_plain_thread() {
    let mut setup = setup().await;
    let lease = setup.lease(secs(30)).await;
    soon(setup.clock.until_sleeping(1)).await;
    std::thread::spawn(move || drop(lease)).join().unwrap();
    setup.server.next_release().await.released();
    eventually("nobody sleeps", || setup.clock.sleeping() == 0).await;
}

/// Case 52: an acquire in flight is dropped on a thread that knows no runtime.
#[tokio::test]
async fn an_acquire_can_be_dropped_on_a_plain_thread() {
    let Setup { mut server, client, .. } = setup().await;
    let mut acquire = client.acquire("r").wait(secs(30)).into_future();
    let call = tokio::select! {
        _ = &mut acquire => unreachable!("nobody answers"),
        call = server.next() => call,
    };
    std::thread::spawn(move || drop(acquire)).join().unwrap();
    let release = server.next_release().await;
    assert_eq!(release.secret(), call.secret());
    release.released();
}

fn lease_of_a_runtime_that_ends() -> (Lease, Runtime, Arc<AtomicUsize>) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let lease = runtime.block_on(async {
        let mut setup = setup().await;
        let lease = setup.lease(secs(30)).await;
        let Setup { mut server, .. } = setup;
        let counted = Arc::clone(&calls);
        tokio::spawn(async move {
            loop {
                server.next().await.html(503);
                counted.fetch_add(1, Ordering::SeqCst);
            }
        });
        lease
    });
    (lease, runtime, calls)
}

/// Case 52: the runtime is gone when the lease is dropped: no panic, the grant ends by its TTL.
#[test]
fn a_lease_can_be_dropped_after_its_runtime() {
    let (lease, runtime, calls) = lease_of_a_runtime_that_ends();
    runtime.shutdown_timeout(secs(5));
    // Nothing renews it any more, and it says so.
    assert!(!lease.is_held());
    drop(lease);
    assert_eq!(calls.load(Ordering::SeqCst), 0);
}

/// Case 52: the lease belongs to a task that is dropped because the runtime shuts down.
#[test]
fn a_lease_can_be_dropped_by_its_runtime() {
    let (lease, runtime, _) = lease_of_a_runtime_that_ends();
    let lost = lease.lost();
    runtime.spawn(async move {
        let _lease = lease;
        std::future::pending::<()>().await;
    });
    runtime.shutdown_timeout(secs(5));
    let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let reason = other.block_on(soon(lost)).reason();
    // Whichever the runtime drops first, the lease or its renewals.
    assert!(matches!(reason, LostReason::Released | LostReason::Shutdown), "{reason:?}");
}

#[test]
fn a_lease_released_after_its_runtime_is_an_error_and_no_panic() {
    let (lease, runtime, _) = lease_of_a_runtime_that_ends();
    let lost = lease.lost();
    runtime.shutdown_timeout(secs(5));
    let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert_eq!(other.block_on(soon(lost)).reason(), LostReason::Shutdown);
    let error = other.block_on(soon(lease.release())).unwrap_err();
    assert!(error.to_string().contains("shut down"), "{error}");
}

/// Case 52: the lease is dropped while its thread unwinds. A second panic would abort.
#[tokio::test]
async fn a_lease_can_be_dropped_while_unwinding() {
    let mut setup = setup().await;
    let lease = setup.lease(secs(30)).await;
    let panicked = tokio::spawn(async move {
        let _lease = lease;
        std::panic::resume_unwind(Box::new("the work failed"));
    });
    assert!(panicked.await.unwrap_err().is_panic());
    setup.server.next_release().await.released();

    let lease = setup.lease(secs(30)).await;
    let caught = std::thread::spawn(|| {
        std::panic::catch_unwind(AssertUnwindSafe(move || {
            let _lease = lease;
            std::panic::resume_unwind(Box::new("the work failed"));
        }))
    });
    assert!(caught.join().unwrap().is_err());
    setup.server.next_release().await.released();
}

/// A lease of a server that is not there any more is dropped without noise, and the tries end.
#[tokio::test]
async fn a_background_release_gives_up() {
    let tasks = Handle::current().metrics().num_alive_tasks();
    let Setup { server, clock, client } = {
        let mut setup = setup().await;
        let lease = setup.lease(secs(30)).await;
        soon(setup.clock.until_sleeping(1)).await;
        let Setup { server, clock, client } = setup;
        drop(server);
        drop(lease);
        Setup { server: FaultServer::start().await, clock, client }
    };
    drop((client, server));
    eventually("no task is left", || {
        clock.advance(ms(100));
        Handle::current().metrics().num_alive_tasks() <= tasks
    })
    .await;
}

#[tokio::test]
async fn clients_share_a_clock_and_not_their_leases() {
    let Setup { mut server, clock, client } = setup().await;
    let other = client_of(&server, &clock);
    let first = tokio::spawn(client.acquire("r").ttl(ms(300)).into_future());
    server.next().await.grant(33, 0);
    let first = soon(first).await.unwrap().unwrap().unwrap();
    let second = tokio::spawn(other.acquire("r").into_future());
    server.next().await.held();
    assert!(soon(second).await.unwrap().unwrap().is_none());
    assert!(first.is_held());
}
