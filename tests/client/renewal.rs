//! Renewal and loss.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencing::client::LostReason;
use fencing::clock::Clock;
use fencing::testing::ManualClock;
use futures_core::future::BoxFuture;

use crate::fault::Call;
use crate::{eventually, ms, pause_after, secs, setup, skip_pause_after, soon};

#[tokio::test]
async fn a_lease_renews_itself_at_a_third_of_its_ttl_and_keeps_its_token() {
    let mut setup = setup().await;
    let lease = setup.lease(secs(3)).await;
    for _ in 0..20 {
        soon(setup.clock.until_sleeping(1)).await;
        setup.clock.advance(ms(999));
        soon(setup.clock.until_sleeping(1)).await;
        setup.server.assert_quiet();
        setup.clock.advance(ms(1));
        let call = setup.server.next_renewal().await;
        assert_eq!(call.body["ttl_ms"], 3000);
        pause_after(&setup.clock, || call.renew(33)).await;
        assert_eq!(lease.remaining(), secs(3));
    }
    assert_eq!(lease.token().get(), 33);
}

/// Case 49: (a) the server is a black hole after the acquire: the loss is known at the deadline,
/// and each renewal has given up well before it.
#[tokio::test]
async fn a_black_hole_is_a_loss_at_the_deadline() {
    let mut setup = setup().await;
    let sent_at = setup.clock.elapsed();
    let lease = setup.lease(secs(3)).await;
    let lost = tokio::spawn(lease.lost());
    let mut holes = Vec::new();
    soon(setup.clock.until_sleeping(1)).await;
    setup.clock.advance(secs(1));
    while lease.is_held() {
        holes.push(setup.server.next_renewal().await);
        assert!(!lost.is_finished());
        // Through the time of this request, and the pause after it.
        let before = setup.clock.begun();
        while setup.clock.begun() < before + 2 && lease.is_held() {
            if let Some(step) = setup.clock.until_next_wake() {
                setup.clock.advance(step.min(ms(10)));
            }
            tokio::task::yield_now().await;
        }
        if holes.len() == 4 {
            break;
        }
    }
    assert!(holes.len() >= 2, "only {} renewals were tried", holes.len());
    let left = lease.remaining();
    setup.clock.advance(left.saturating_sub(ms(1)));
    assert!(lease.is_held() || left.is_zero());
    setup.clock.advance(ms(1));
    assert!(!lease.is_held());
    let lost = soon(lost).await.unwrap();
    assert_eq!(lost.reason(), LostReason::Expired);
    assert_eq!(lost.claim(), lease.claim());
    assert!(setup.clock.elapsed() - sent_at >= secs(3));
}

/// Case 49: (b) the server answers each renewal late: the deadline counts from when the renewal
/// was sent.
#[tokio::test]
async fn a_renewal_extends_from_when_it_was_sent() {
    let mut setup = setup().await;
    let lease = setup.lease(secs(12)).await;
    soon(setup.clock.until_sleeping(1)).await;
    setup.clock.advance(secs(4));
    let call = setup.server.next_renewal().await;
    soon(setup.clock.until_sleeping(1)).await;
    setup.clock.advance(secs(2));
    pause_after(&setup.clock, || call.renew(33)).await;
    assert_eq!(lease.remaining(), secs(10));
}

/// H6: a renewal answered with less than is left does not shorten the lease; one that grants less
/// than was asked for extends by what it grants.
#[tokio::test]
async fn a_renewal_never_shortens_and_never_trusts_more_than_was_granted() {
    let mut setup = setup().await;
    let lease = setup.lease(secs(9)).await;
    soon(setup.clock.until_sleeping(1)).await;
    setup.clock.advance(secs(3));
    let call = setup.server.next_renewal().await;
    pause_after(&setup.clock, || call.renew_for(33, secs(2))).await;
    assert_eq!(lease.remaining(), secs(6));
    setup.clock.advance(secs(1));
    let call = setup.server.next_renewal().await;
    pause_after(&setup.clock, || call.renew_for(33, secs(8))).await;
    assert_eq!(lease.remaining(), secs(8));
}

#[tokio::test]
async fn what_the_server_says_about_the_lease_is_believed_at_once() {
    for (status, problem, reason) in
        [(404, "not-held", LostReason::NotHeld), (403, "not-yours", LostReason::NotYours)]
    {
        let mut setup = setup().await;
        let lease = setup.lease(secs(30)).await;
        soon(setup.clock.until_sleeping(1)).await;
        setup.clock.advance(secs(10));
        setup.server.next_renewal().await.problem(status, problem);
        let lost = soon(lease.lost()).await;
        assert_eq!(lost.reason(), reason);
        assert!(!lease.is_held());
        assert_eq!(lease.remaining(), Duration::ZERO);
        // Known again, and again.
        assert_eq!(soon(lease.lost()).await.reason(), reason);
        // No renewal, and nothing to release.
        eventually("the task ends", || setup.clock.sleeping() == 0).await;
        drop(lease);
        tokio::task::yield_now().await;
        setup.server.assert_quiet();
    }
}

#[tokio::test]
async fn whatever_else_comes_back_is_tried_again_until_the_deadline() {
    let mut setup = setup().await;
    let lease = setup.lease(secs(20)).await;
    soon(setup.clock.until_sleeping(1)).await;
    setup.clock.advance(secs(7));
    type Fault = fn(Call);
    let faults: [Fault; 16] = [
        |call| call.problem(503, "lock-unavailable"),
        |call| call.problem(401, "unauthenticated"),
        |call| call.problem(403, "forbidden"),
        |call| call.problem(422, "invalid-field"),
        |call| call.html(404),
        |call| call.html(403),
        |call| call.html(500),
        |call| call.html(200),
        |call| call.answer(302, "text/html", "Location: /login\r\n", ""),
        |call| call.json(404, &serde_json::json!({"type": "about:blank", "status": 404})),
        |call| call.json(200, &serde_json::json!({"acquired": false})),
        |call| call.raw("garbage\r\n\r\n"),
        |call| call.answer(200, "application/json", "", &"[".repeat(60_000)),
        |call| call.answer(200, "application/json", "", &" ".repeat(1_000_000)),
        |call| call.renew(34), // of another grant
        drop,
    ];
    let mut call = setup.server.next_renewal().await;
    for fault in faults {
        skip_pause_after(&setup.clock, || fault(call)).await;
        assert!(lease.is_held());
        call = setup.server.next_renewal().await;
    }
    let left = lease.remaining();
    pause_after(&setup.clock, || call.renew(33)).await;
    assert!(left < secs(20) && lease.remaining() == secs(20));
}

#[tokio::test]
async fn a_body_that_stalls_is_given_up() {
    let mut setup = setup().await;
    let lease = setup.lease(secs(3)).await;
    soon(setup.clock.until_sleeping(1)).await;
    setup.clock.advance(secs(1));
    let call = setup.server.next_renewal().await;
    call.stall_after("HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{");
    // Half of the two seconds that are left.
    soon(setup.clock.until_sleeping(1)).await;
    skip_pause_after(&setup.clock, || setup.clock.advance(secs(1))).await;
    let call = setup.server.next_renewal().await;
    pause_after(&setup.clock, || call.renew(33)).await;
    assert_eq!(lease.remaining(), secs(3));
}

/// H6: a renewal is in flight when the lease is lost. Its success is ignored, and what it may have
/// extended is released.
#[tokio::test]
async fn a_renewal_in_flight_at_the_loss_is_ignored_and_released() {
    let mut setup = setup().await;
    let lease = setup.lease(secs(3)).await;
    soon(setup.clock.until_sleeping(1)).await;
    setup.clock.advance(secs(1));
    let call = setup.server.next_renewal().await;
    let secret = call.secret();
    soon(setup.clock.until_sleeping(1)).await;
    // The answer is on its way while the process stands still past the deadline.
    call.renew(33);
    setup.clock.advance(secs(2));
    assert!(!lease.is_held());
    let lost = soon(lease.lost()).await;
    assert_eq!(lost.reason(), LostReason::Expired);
    let release = setup.server.next_release().await;
    assert_eq!(release.secret(), secret);
    assert!(!lease.is_held());
    release.released();
    eventually("the task ends", || setup.clock.sleeping() == 0).await;
    assert!(!lease.is_held());
    setup.server.assert_quiet();
}

/// A clock that jumps, once it is armed, just before it is read: the process is paused between the
/// arrival of an answer and the look at the clock.
#[derive(Debug)]
struct Jumping {
    clock: ManualClock,
    armed: AtomicBool,
}

impl Clock for Jumping {
    fn epoch_ms(&self) -> i64 {
        self.clock.epoch_ms()
    }
    fn elapsed(&self) -> Duration {
        if self.armed.swap(false, Ordering::SeqCst) {
            self.clock.suspend(ms(2500));
        }
        self.clock.elapsed()
    }
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.clock.sleep(duration)
    }
}

/// H6: the answer to a renewal is there in time, but is looked at past the deadline it would have
/// moved. The lease has been reported as lost meanwhile, so it stays lost.
#[tokio::test(flavor = "current_thread")]
async fn a_success_that_is_looked_at_after_the_deadline_revives_nothing() {
    let mut setup = setup().await;
    let clock = Arc::new(Jumping { clock: setup.clock.clone(), armed: AtomicBool::new(false) });
    setup.client = setup.client.with_clock(Arc::clone(&clock) as Arc<dyn Clock>);
    let lease = setup.lease(secs(3)).await;
    soon(setup.clock.until_sleeping(1)).await;
    setup.clock.advance(secs(1));
    let call = setup.server.next_renewal().await;
    soon(setup.clock.until_sleeping(1)).await;
    // From here the clock is read next when the answer is there: the deadline, three seconds after
    // the acquire, is over then; three seconds after the renewal are not.
    clock.armed.store(true, Ordering::SeqCst);
    call.renew(33);
    let release = setup.server.next_release().await;
    assert!(!clock.armed.load(Ordering::SeqCst) && !lease.is_held());
    assert_eq!(soon(lease.lost()).await.reason(), LostReason::Expired);
    release.released();
    eventually("the task ends", || setup.clock.sleeping() == 0).await;
    setup.server.assert_quiet();
}

/// Case 51: the machine is suspended past the TTL. Timers have stood still, the clock has not: the
/// lease is known to be lost at once, and no renewal is sent on resume.
#[tokio::test]
async fn after_a_suspend_the_lease_is_lost_and_no_renewal_is_sent() {
    let mut setup = setup().await;
    let lease = setup.lease(secs(3)).await;
    soon(setup.clock.until_sleeping(1)).await;
    setup.clock.advance(ms(500));
    soon(setup.clock.until_sleeping(1)).await;
    setup.clock.suspend(secs(60));
    assert!(!lease.is_held());
    assert_eq!(soon(lease.lost()).await.reason(), LostReason::Expired);
    assert!(lease.attach(&mut http::Request::new(())).is_err());
    // What was left of the timer.
    setup.clock.advance(ms(500));
    setup.server.next_release().await.problem(404, "not-held");
    eventually("the task ends", || setup.clock.sleeping() == 0).await;
    setup.server.assert_quiet();
}

/// Case 51: a suspend within the TTL is noticed within a second of its end, and answered with one
/// renewal, not with those that were missed.
#[tokio::test]
async fn after_a_short_suspend_one_renewal_is_sent_and_no_burst() {
    let mut setup = setup().await;
    let lease = setup.lease(secs(60)).await;
    soon(setup.clock.until_sleeping(1)).await;
    setup.clock.suspend(secs(55));
    setup.clock.advance(secs(1));
    let call = setup.server.next_renewal().await;
    pause_after(&setup.clock, || call.renew(33)).await;
    assert_eq!(lease.remaining(), secs(60));
    setup.clock.advance(secs(19));
    soon(setup.clock.until_sleeping(1)).await;
    setup.server.assert_quiet();
}

/// Case 51: blocking work on the only thread of the runtime starves the renewals past the TTL.
#[tokio::test(flavor = "current_thread")]
async fn a_starved_runtime_finds_the_lease_lost_and_sends_no_renewal() {
    let mut setup = setup().await;
    let lease = setup.lease(secs(3)).await;
    soon(setup.clock.until_sleeping(1)).await;
    // No await from here: nothing else of the runtime runs.
    setup.clock.advance(secs(1));
    setup.clock.advance(secs(1));
    setup.clock.advance(secs(2));
    assert!(!lease.is_held());
    assert_eq!(soon(lease.lost()).await.reason(), LostReason::Expired);
    setup.server.next_release().await.problem(404, "not-held");
    eventually("the task ends", || setup.clock.sleeping() == 0).await;
    setup.server.assert_quiet();
}

#[tokio::test]
async fn the_wall_clock_may_jump() {
    let mut setup = setup().await;
    let lease = setup.lease(secs(3)).await;
    setup.clock.set_epoch_ms(setup.clock.epoch_ms() + 86_400_000);
    assert_eq!(lease.remaining(), secs(3));
    setup.clock.set_epoch_ms(0);
    assert_eq!(lease.remaining(), secs(3));
}

#[tokio::test]
async fn the_work_is_dropped_when_the_lease_is_lost() {
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let mut setup = setup().await;
    let lease = Arc::new(setup.lease(secs(30)).await);
    assert_eq!(soon(lease.run(async { 7 })).await.unwrap(), 7);

    let dropped = Arc::new(AtomicBool::new(false));
    let work = {
        let guard = Dropped(Arc::clone(&dropped));
        async move {
            let _guard = guard;
            pending::<()>().await;
        }
    };
    let running = tokio::spawn({
        let lease = Arc::clone(&lease);
        async move { lease.run(work).await }
    });
    soon(setup.clock.until_sleeping(1)).await;
    setup.clock.advance(secs(10));
    setup.server.next_renewal().await.problem(403, "not-yours");
    let lost = soon(running).await.unwrap().unwrap_err();
    assert_eq!(lost.reason(), LostReason::NotYours);
    assert!(dropped.load(Ordering::SeqCst));
    let never = soon(lease.run(async { unreachable!("work after the loss") })).await;
    let _: Result<(), _> = never;
}

/// After a pause the work does not take another step, even when it is woken before the renewals
/// have noticed anything.
#[tokio::test(flavor = "current_thread")]
async fn the_work_takes_no_step_after_the_deadline() {
    let mut setup = setup().await;
    let lease = setup.lease(secs(3)).await;
    let clock = setup.clock.clone();
    let work = async {
        clock.suspend(secs(3)); // no timer notices
        tokio::task::yield_now().await;
        unreachable!("a step after the deadline");
    };
    let lost = soon(lease.run(work)).await.map(|_: ()| ()).unwrap_err();
    assert_eq!(lost.reason(), LostReason::Expired);
}

/// Case 13: a fenced service that says stale is believed over every clock. The client tries
/// nothing again.
#[tokio::test]
async fn a_stale_token_is_a_loss_at_once() {
    let mut setup = setup().await;
    let lease = setup.lease(secs(30)).await;
    let lost = tokio::spawn(lease.lost());
    soon(setup.clock.until_sleeping(1)).await;
    lease.report_stale();
    assert!(!lease.is_held());
    assert_eq!(soon(lost).await.unwrap().reason(), LostReason::Stale);
    setup.server.next_release().await.problem(403, "not-yours");
    eventually("the task ends", || setup.clock.sleeping() == 0).await;
    setup.clock.advance(secs(60));
    tokio::task::yield_now().await;
    setup.server.assert_quiet();
}

#[tokio::test]
async fn towards_the_end_of_the_longest_hold_renewals_do_not_storm() {
    let mut setup = setup().await;
    let lease = setup.lease(secs(10)).await;
    let mut renewals = 0;
    let end = setup.clock.elapsed() + secs(10); // of the hold
    soon(setup.clock.until_sleeping(1)).await;
    while lease.is_held() {
        let step = setup.clock.until_next_wake().unwrap();
        let begun = setup.clock.begun();
        setup.clock.advance(step);
        // Either the next slice of a sleep, or the timeout of a renewal.
        soon(setup.clock.until_begun(begun + 1)).await;
        let asked = tokio::time::timeout(ms(20), setup.server.next()).await;
        let Ok(call) = asked else { continue };
        if call.method == "DELETE" {
            call.released();
            break;
        }
        renewals += 1;
        let left = end.saturating_sub(setup.clock.elapsed());
        pause_after(&setup.clock, || call.renew_for(33, left)).await;
    }
    assert!(!lease.is_held());
    assert!(renewals <= 10, "{renewals} renewals");
}
