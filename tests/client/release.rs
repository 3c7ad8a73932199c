//! Release: its outcomes, and its retries.

use fencing::client::{ClientErrorKind, LostReason, ReleaseOutcome};

use crate::{eventually, secs, setup, skip_pause_after, soon};

#[tokio::test]
async fn the_three_outcomes() {
    let outcomes = [ReleaseOutcome::Released, ReleaseOutcome::NotHeld, ReleaseOutcome::NotYours];
    for expected in outcomes {
        let mut setup = setup().await;
        let lease = setup.lease(secs(30)).await;
        let lost = tokio::spawn(lease.lost());
        let release = tokio::spawn(lease.release());
        let call = setup.server.next_release().await;
        assert!(call.header("x-lock-owner-token").is_some());
        match expected {
            ReleaseOutcome::Released => call.released(),
            ReleaseOutcome::NotHeld => call.problem(404, "not-held"),
            ReleaseOutcome::NotYours => call.problem(403, "not-yours"),
        }
        assert_eq!(soon(release).await.unwrap().unwrap(), expected);
        assert_eq!(soon(lost).await.unwrap().reason(), LostReason::Released);
        assert_eq!(setup.clock.sleeping(), 0);
        setup.server.assert_quiet();
    }
}

/// Case 40: the answer to a release is lost: asked again it is the same.
#[tokio::test]
async fn a_release_is_tried_again_until_it_is_answered() {
    let mut setup = setup().await;
    let lease = setup.lease(secs(30)).await;
    let release = tokio::spawn(lease.release());
    let call = setup.server.next_release().await;
    let secret = call.secret();
    skip_pause_after(&setup.clock, || drop(call)).await;
    let call = setup.server.next_release().await;
    skip_pause_after(&setup.clock, || call.problem(503, "lock-unavailable")).await;
    let call = setup.server.next_release().await;
    assert_eq!(call.secret(), secret);
    call.released();
    assert_eq!(soon(release).await.unwrap().unwrap(), ReleaseOutcome::Released);
}

#[tokio::test]
async fn a_release_that_is_never_answered_is_an_unknown_outcome() {
    let mut setup = setup().await;
    let lease = setup.lease(secs(3)).await;
    let release = tokio::spawn(lease.release());
    let _black_hole = setup.server.next_release().await;
    for _ in 0..5 {
        soon(setup.clock.until_sleeping(1)).await;
        setup.clock.advance(secs(1));
    }
    let error = soon(release).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ClientErrorKind::OutcomeUnknown);
}

#[tokio::test]
async fn a_refused_key_is_an_error_and_not_an_outcome() {
    let mut setup = setup().await;
    let lease = setup.lease(secs(30)).await;
    let release = tokio::spawn(lease.release());
    setup.server.next_release().await.problem(403, "forbidden");
    let error = soon(release).await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.problem()), (ClientErrorKind::Refused, Some("forbidden")));
    setup.server.assert_quiet();
}

/// Case 48: (a) released while a renewal is in flight.
#[tokio::test]
async fn no_renewal_follows_a_release() {
    let mut setup = setup().await;
    let lease = setup.lease(secs(3)).await;
    soon(setup.clock.until_sleeping(1)).await;
    setup.clock.advance(secs(1));
    let in_flight = setup.server.next_renewal().await;
    let release = tokio::spawn(lease.release());
    setup.server.next_release().await.released();
    assert_eq!(soon(release).await.unwrap().unwrap(), ReleaseOutcome::Released);
    in_flight.renew(33);
    setup.clock.advance(secs(60));
    eventually("nobody sleeps", || setup.clock.sleeping() == 0).await;
    setup.server.assert_quiet();
}

#[tokio::test]
async fn a_release_whose_future_is_dropped_goes_on() {
    let mut setup = setup().await;
    let lease = setup.lease(secs(30)).await;
    let release = tokio::spawn(lease.release());
    let call = setup.server.next_release().await;
    release.abort();
    let _ = release.await;
    skip_pause_after(&setup.clock, || drop(call)).await;
    setup.server.next_release().await.released();
    eventually("nobody sleeps", || setup.clock.sleeping() == 0).await;
    setup.server.assert_quiet();
}

#[tokio::test]
async fn a_lost_lease_can_be_released_and_says_so() {
    let mut setup = setup().await;
    let lease = setup.lease(secs(3)).await;
    setup.clock.suspend(secs(3));
    let release = tokio::spawn(lease.release());
    setup.server.next_release().await.problem(404, "not-held");
    assert_eq!(soon(release).await.unwrap().unwrap(), ReleaseOutcome::NotHeld);
}
