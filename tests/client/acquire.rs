//! Acquire: retries, lost answers, deadlines and giving up.

use std::sync::Arc;
use std::time::Duration;

use fencing::ProblemKind;
use fencing::client::{ClientErrorKind, LockClient};
use fencing::clock::Clock;
use fencing::testing::ManualClock;

use crate::{Setup, client_of, eventually, ms, pause_after, secs, setup, skip_pause_after, soon};

#[tokio::test]
async fn a_grant_is_a_lease_with_token_owner_and_deadline() {
    let Setup { mut server, clock: _clock, client } = setup().await;
    let acquire = client.acquire("r").owner("worker-a").ttl(secs(30)).max_hold(secs(90));
    let acquire = tokio::spawn(acquire.into_future());
    let call = server.next().await;
    assert_eq!((&*call.method, &*call.path), ("POST", "/locks/r"));
    assert_eq!(call.header("content-type"), Some("application/json"));
    assert_eq!(call.body["owner"], "worker-a");
    assert_eq!(call.body["ttl_ms"], 30_000);
    assert_eq!(call.body["max_hold_ms"], 90_000);
    assert_eq!(call.body.get("wait_ms"), None);
    let secret = call.secret();
    call.grant(33, 0);
    let lease = soon(acquire).await.unwrap().unwrap().unwrap();
    assert_eq!((lease.token().get(), lease.resource().as_str()), (33, "r"));
    assert_eq!(lease.owner(), "worker-a");
    assert_eq!(lease.claim().token(), lease.token());
    assert!(lease.is_held());
    assert_eq!(lease.remaining(), secs(30));
    assert!(!format!("{lease:?} {client:?}").contains(&secret));
}

#[tokio::test]
async fn held_by_another_is_an_answer_and_not_an_error() {
    let Setup { mut server, client, .. } = setup().await;
    let acquire = tokio::spawn(client.acquire("r").into_future());
    server.next().await.held();
    assert!(soon(acquire).await.unwrap().unwrap().is_none());
    server.assert_quiet();
}

#[tokio::test]
async fn each_grant_has_an_owner_token_of_its_own_and_a_sensible_owner() {
    let Setup { mut server, client, .. } = setup().await;
    let mut secrets = Vec::new();
    for _ in 0..2 {
        let acquire = tokio::spawn(client.acquire("r").into_future());
        let call = server.next().await;
        let owner = call.body["owner"].as_str().unwrap();
        assert!(owner.ends_with(&format!(":{}", std::process::id())), "{owner}");
        secrets.push(call.secret());
        call.held();
        let _ = soon(acquire).await;
    }
    assert_ne!(secrets[0], secrets[1]);
}

/// Case 40: the server grants and the answer is lost: the retry carries the same owner token and
/// gets the same grant, instead of waiting for itself.
#[tokio::test]
async fn a_lost_answer_is_asked_for_again_with_the_same_owner_token() {
    let mut setup = setup().await;
    let acquire = setup.client.acquire("r").ttl(secs(10)).wait(secs(30));
    let acquire = tokio::spawn(acquire.into_future());
    let lost = setup.server.next().await;
    let secret = lost.secret();
    // It is granted, and the connection breaks.
    skip_pause_after(&setup.clock, || drop(lost)).await;
    let again = setup.server.next().await;
    assert_eq!(again.secret(), secret);
    again.grant(33, 0);
    let lease = soon(acquire).await.unwrap().unwrap().unwrap();
    assert_eq!(lease.token().get(), 33);
    setup.server.assert_quiet();
}

/// Case 40: the client gives up while its request is on the way; what was granted meanwhile is
/// released.
#[tokio::test]
async fn giving_up_releases_in_the_background() {
    let Setup { mut server, clock, client } = setup().await;
    let acquire = tokio::spawn(client.acquire("r").wait(secs(3)).into_future());
    let black_hole = server.next().await;
    assert_eq!(black_hole.body["wait_ms"], 3000);
    // The wait, and the time an answer may take after it. In slices, for the sake of suspend.
    for _ in 0..8 {
        soon(clock.until_sleeping(1)).await;
        clock.advance(secs(1));
    }
    let error = soon(acquire).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ClientErrorKind::OutcomeUnknown);
    assert!(error.is_retryable());
    let release = server.next_release().await;
    assert_eq!(release.secret(), black_hole.secret());
    release.released();
    black_hole.hung_up().await;
    server.assert_quiet();
}

/// Case 40: (H5) the release overtakes the request it gives up, which is granted after it. The
/// release is asked again, so that the orphan does not stay for the whole TTL.
#[tokio::test]
async fn a_delayed_request_that_is_granted_after_the_release_is_released_too() {
    let setup = setup().await;
    let Setup { mut server, clock, client } = setup;
    let acquire = tokio::spawn(client.acquire("r").wait(secs(30)).into_future());
    let delayed = server.next().await;
    acquire.abort();
    let release = server.next_release().await;
    assert_eq!(release.secret(), delayed.secret());
    let overtaken = || release.problem(404, "not-held");
    assert_eq!(pause_after(&clock, overtaken).await, secs(1));
    clock.advance(secs(1));
    let release = server.next_release().await;
    assert_eq!(release.secret(), delayed.secret());
    release.released(); // the delayed request was granted meanwhile
    // The client of the test and its connection are all there is left.
    eventually("the release is done", || clock.sleeping() == 0).await;
    server.assert_quiet();
}

#[tokio::test]
async fn a_release_of_what_is_in_doubt_ends_after_a_few_tries() {
    let Setup { mut server, clock, client } = setup().await;
    let acquire = tokio::spawn(client.acquire("r").wait(secs(30)).into_future());
    drop(server.next().await);
    acquire.abort();
    for step in [1, 2, 4] {
        let release = server.next_release().await;
        assert_eq!(pause_after(&clock, || release.problem(404, "not-held")).await, secs(step));
        clock.advance(secs(step));
    }
    server.next_release().await.problem(404, "not-held");
    eventually("it ends", || clock.sleeping() == 0).await;
    server.assert_quiet();
}

#[tokio::test]
async fn a_refusal_ends_the_acquire_at_once_and_needs_no_release() {
    for (status, problem) in [
        (400, "invalid-resource"),
        (401, "unauthenticated"),
        (403, "forbidden"),
        (413, "too-large"),
        (422, "invalid-field"),
    ] {
        let Setup { mut server, client, .. } = setup().await;
        let acquire = tokio::spawn(client.acquire("r").wait(secs(60)).into_future());
        server.next().await.problem(status, problem);
        let error = soon(acquire).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ClientErrorKind::Refused);
        assert_eq!(error.problem(), Some(problem));
        assert_eq!(error.status().unwrap(), status);
        assert!(!error.is_retryable());
        assert!(error.to_string().contains("details"), "{error}");
        server.assert_quiet();
    }
}

#[tokio::test]
async fn a_page_that_does_not_exist_ends_the_acquire() {
    let Setup { mut server, client, .. } = setup().await;
    let acquire = tokio::spawn(client.acquire("r").wait(secs(60)).into_future());
    server.next().await.html(404);
    let error = soon(acquire).await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.problem()), (ClientErrorKind::Refused, None));
}

#[tokio::test]
async fn what_may_pass_is_tried_again_until_the_wait_is_over() {
    let mut setup = setup().await;
    let acquire = setup.client.acquire("r").ttl(secs(600)).wait(secs(600));
    let acquire = tokio::spawn(acquire.into_future());
    let first = setup.server.next().await;
    let secret = first.secret();
    type Fault = fn(crate::fault::Call);
    let faults: [Fault; 10] = [
        |call| call.html(503),
        |call| call.problem(503, "lock-unavailable"),
        |call| call.problem(503, "overloaded"),
        |call| call.html(429),
        |call| call.html(408),
        |call| call.html(502),
        |call| call.html(200),
        |call| call.raw("garbage\r\n\r\n"),
        |call| call.held(),
        drop,
    ];
    let mut call = first;
    for fault in faults {
        skip_pause_after(&setup.clock, || fault(call)).await;
        call = setup.server.next().await;
        assert_eq!(call.secret(), secret);
    }
    call.grant(33, 0);
    assert!(soon(acquire).await.unwrap().unwrap().is_some());
}

#[tokio::test]
async fn pauses_grow_with_full_jitter_and_stay_within_the_wait() {
    let setup = setup().await;
    let Setup { mut server, clock, client } = setup;
    let start = clock.elapsed();
    let acquire = tokio::spawn(client.acquire("r").wait(secs(20)).into_future());
    let mut limit = ms(100);
    loop {
        let call = server.next().await;
        let left = secs(20).saturating_sub(clock.elapsed() - start);
        assert_eq!(call.body["wait_ms"].as_u64().unwrap_or(0), left.as_millis() as u64);
        if left.is_zero() {
            call.html(503);
            break;
        }
        let pause = pause_after(&clock, || call.html(503)).await;
        assert!(pause <= limit && pause <= left, "{pause:?} of {limit:?}, {left:?} left");
        clock.advance(pause);
        limit = (limit * 2).min(secs(5));
    }
    assert_eq!(clock.elapsed() - start, secs(20));
    let error = soon(acquire).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ClientErrorKind::OutcomeUnknown);
    server.next_release().await.released();
}

#[tokio::test]
async fn retry_after_is_kept_to() {
    let Setup { mut server, clock, client } = setup().await;
    let acquire = tokio::spawn(client.acquire("r").wait(secs(20)).into_future());
    let call = server.next().await;
    let slow_down = || call.answer(429, "text/plain", "Retry-After: 7\r\n", "slow down");
    let pause = pause_after(&clock, slow_down).await;
    assert!((secs(7)..=ms(7100)).contains(&pause), "{pause:?}");
    acquire.abort();
    let _ = acquire.await;
    // Too many requests: nothing was granted, so nothing is given back.
    eventually("it ends", || clock.sleeping() == 0).await;
    server.assert_quiet();
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = soon(LockClient::new(&url).unwrap().acquire("r").into_future()).await.unwrap_err();
    assert_eq!(error.kind(), ClientErrorKind::Unavailable);
    assert!(std::error::Error::source(&error).is_some());
}

/// H5: the grant of the first try was given back by the server when it saw the connection break,
/// so its owner token is spent: the client draws another and goes on.
#[tokio::test]
async fn a_spent_owner_token_is_replaced() {
    let mut setup = setup().await;
    let acquire = tokio::spawn(setup.client.acquire("r").wait(secs(30)).into_future());
    let first = setup.server.next().await;
    let spent = first.secret();
    skip_pause_after(&setup.clock, || drop(first)).await;
    let second = setup.server.next().await;
    assert_eq!(second.secret(), spent);
    second.problem(409, "spent-owner-token");
    let third = setup.server.next().await; // without a pause
    assert_ne!(third.secret(), spent);
    third.grant(34, 0);
    assert!(soon(acquire).await.unwrap().unwrap().is_some());
    setup.server.assert_quiet();
}

#[tokio::test]
async fn a_server_that_calls_every_owner_token_spent_is_not_asked_in_a_tight_loop() {
    let setup = setup().await;
    let Setup { mut server, clock, client } = setup;
    let acquire = tokio::spawn(client.acquire("r").wait(secs(1)).into_future());
    server.next().await.problem(409, "spent-owner-token");
    let call = server.next().await;
    pause_after(&clock, || call.problem(409, "spent-owner-token")).await;
    clock.advance(secs(1));
    server.next().await.problem(409, "spent-owner-token");
    let error = soon(acquire).await.unwrap().unwrap_err();
    assert_eq!(error.problem(), Some(ProblemKind::SPENT_OWNER_TOKEN.name()));
    server.assert_quiet();
}

/// Case 41: (H6) the TTL counts from the grant, so the time spent in the server's queue does not
/// count against the lease.
#[tokio::test]
async fn the_wait_at_the_server_does_not_eat_the_ttl() {
    let Setup { mut server, clock, client } = setup().await;
    let acquire = tokio::spawn(client.acquire("r").ttl(secs(1)).wait(secs(3)).into_future());
    let call = server.next().await;
    soon(clock.until_sleeping(1)).await;
    clock.advance(secs(2));
    call.grant(34, 2000);
    let lease = soon(acquire).await.unwrap().unwrap().unwrap();
    assert!(lease.is_held());
    assert_eq!(lease.remaining(), secs(1));
}

/// H6: the deadline counts from when the request was sent. From its arrival the lease would
/// outlive the grant by as long as the answer took.
#[tokio::test]
async fn a_slow_answer_makes_a_shorter_lease() {
    let Setup { mut server, clock, client } = setup().await;
    let acquire = tokio::spawn(client.acquire("r").ttl(secs(10)).into_future());
    let call = server.next().await;
    soon(clock.until_sleeping(1)).await;
    clock.advance(secs(4));
    call.grant(34, 0);
    let lease = soon(acquire).await.unwrap().unwrap().unwrap();
    assert_eq!(lease.remaining(), secs(6));
}

#[tokio::test]
async fn a_server_cannot_have_waited_for_longer_than_its_answer_took() {
    let Setup { mut server, clock, client } = setup().await;
    let acquire = tokio::spawn(client.acquire("r").ttl(secs(10)).into_future());
    let call = server.next().await;
    soon(clock.until_sleeping(1)).await;
    clock.advance(secs(1));
    call.grant(34, 3_600_000);
    let lease = soon(acquire).await.unwrap().unwrap().unwrap();
    assert_eq!(lease.remaining(), secs(10));
}

#[tokio::test]
async fn a_grant_shorter_than_asked_for_makes_a_shorter_lease() {
    let Setup { mut server, client, .. } = setup().await;
    let acquire = tokio::spawn(client.acquire("r").ttl(secs(10)).into_future());
    let mut call = server.next().await;
    call.body["ttl_ms"] = 4000.into();
    call.grant(34, 0);
    let lease = soon(acquire).await.unwrap().unwrap().unwrap();
    assert_eq!(lease.remaining(), secs(4));
}

/// Case 41: a grant whose TTL has passed when its answer arrives is no lease. It is released, and
/// the lock is asked for anew under another owner token.
#[tokio::test]
async fn an_answer_after_its_deadline_is_released_and_asked_for_anew() {
    let mut setup = setup().await;
    let acquire = setup.client.acquire("r").ttl(secs(1)).wait(secs(60));
    let acquire = tokio::spawn(acquire.into_future());
    let call = setup.server.next().await;
    let late = call.secret();
    soon(setup.clock.until_sleeping(1)).await;
    setup.clock.advance(secs(2));
    call.grant(33, 0);
    let release = setup.server.next_release().await;
    assert_eq!(release.secret(), late);
    skip_pause_after(&setup.clock, || release.released()).await;
    let call = setup.server.next().await;
    assert_ne!(call.secret(), late);
    call.grant(34, 0);
    let lease = soon(acquire).await.unwrap().unwrap().unwrap();
    assert_eq!((lease.token().get(), lease.remaining()), (34, secs(1)));
    setup.server.assert_quiet();
}

#[tokio::test]
async fn an_answer_after_its_deadline_is_no_lease_when_there_is_no_time_to_wait() {
    let Setup { mut server, clock, client } = setup().await;
    let acquire = tokio::spawn(client.acquire("r").ttl(secs(1)).into_future());
    let call = server.next().await;
    soon(clock.until_sleeping(1)).await;
    clock.advance(secs(1));
    call.grant(33, 0);
    server.next_release().await.released();
    let error = soon(acquire).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ClientErrorKind::Unavailable);
    server.assert_quiet();
}

#[tokio::test]
async fn a_long_wait_is_made_of_waits_the_server_takes() {
    let Setup { mut server, clock, client } = setup().await;
    let acquire = tokio::spawn(client.acquire("r").wait(secs(150)).into_future());
    for (asked, taken) in [(60_000, 60), (60_000, 60), (30_000, 30)] {
        let call = server.next().await;
        assert_eq!(call.body["wait_ms"], asked);
        soon(clock.until_sleeping(1)).await;
        clock.advance(secs(taken));
        call.held();
        // Back into the queue at once: the next request comes without the clock moving.
    }
    assert!(soon(acquire).await.unwrap().unwrap().is_none());
    server.assert_quiet();
}

#[tokio::test]
async fn bad_input_is_refused_before_anything_is_sent() {
    let Setup { mut server, clock, client } = setup().await;
    let long = "x".repeat(256);
    for acquire in [
        client.acquire(""),
        client.acquire("a\nb"),
        client.acquire(&*long),
        client.acquire("r").ttl(Duration::ZERO),
        client.acquire("r").ttl(Duration::from_micros(999)),
        client.acquire("r").ttl(Duration::MAX),
        client.acquire("r").max_hold(Duration::ZERO),
        client.acquire("r").owner(""),
        client.acquire("r").owner(" \t"),
        client.acquire("r").owner(&*long),
    ] {
        let error = soon(acquire.into_future()).await.unwrap_err();
        assert_eq!(error.kind(), ClientErrorKind::Invalid, "{error}");
    }
    server.assert_quiet();
    let tls = LockClient::new("https://locks.example").unwrap_err();
    assert!(tls.to_string().contains("with_connector"), "{tls}");
    assert!(client_of(&server, &clock).with_key("a\nb").is_err());
}

#[tokio::test]
async fn the_key_goes_with_each_request_and_is_never_shown() {
    let Setup { mut server, client, .. } = setup().await;
    let client = client.with_key("opensesame").unwrap();
    let acquire = tokio::spawn(client.acquire("r").into_future());
    let call = server.next().await;
    assert_eq!(call.header("authorization"), Some("Bearer opensesame"));
    call.held();
    let _ = soon(acquire).await;
    assert!(!format!("{client:?}").contains("opensesame"));
}

#[test]
fn without_a_runtime_there_is_a_clear_error() {
    let client = LockClient::new("http://127.0.0.1:1").unwrap();
    let client = client.with_clock(Arc::new(ManualClock::new()));
    let mut acquire = client.acquire("r").into_future();
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match acquire.as_mut().poll(&mut cx) {
        std::task::Poll::Ready(Err(error)) => {
            assert_eq!(error.kind(), ClientErrorKind::Invalid);
            assert!(error.to_string().contains("tokio"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}
