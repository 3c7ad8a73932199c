//! Requests that wait for a lock.

use std::sync::Arc;
use std::time::Duration;

use fencing::lock::Endpoint;
use serde_json::json;
use tokio::task::JoinHandle;

use crate::site::{Answer, Site, on_every_store, post, secret};

fn waiting(app: &axum::Router, owner: &str, ttl_ms: u64, wait_ms: u64) -> JoinHandle<Answer> {
    let body = json!({
        "owner": owner, "ttl_ms": ttl_ms, "wait_ms": wait_ms, "owner_token": secret(owner),
    });
    let app = app.clone();
    tokio::spawn(async move { post(&app, "/locks/job", body).await })
}

/// Lets the time pass in the steps that sleepers wake at, until the task is done.
async fn pass_until_done(site: &Site, task: JoinHandle<Answer>) -> Answer {
    let bound = async {
        while !task.is_finished() {
            tokio::task::yield_now().await;
            if let Some(next) = site.clock.until_next_wake() {
                site.clock.advance(next);
            }
        }
        task.await.unwrap()
    };
    tokio::time::timeout(Duration::from_secs(60), bound).await.expect("the wait ends")
}

/// Case 41: the TTL counts from the grant, not from the request, and the answer says how long the
/// request had waited by then.
async fn a_grant_after_a_wait_has_its_whole_ttl(site: Site) {
    site.take("job", "a", 2000).await.granted();
    let answer = pass_until_done(&site, waiting(&site.app, "b", 1000, 3000)).await;
    assert_eq!(answer.granted()["remaining_ms"], 1000);
    let waited = answer.json["waited_ms"].as_u64().unwrap();
    assert!((2000..2300).contains(&waited), "{waited}");
    // H6: what a client counts on, from its sending plus the wait, is no more than it has.
    let sent = fencing::testing::ManualClock::START_EPOCH_MS;
    let deadline = sent + i64::try_from(waited).unwrap() + 1000;
    let now = fencing::clock::Clock::epoch_ms(&site.clock);
    assert!(deadline <= now + 1000, "{deadline}");
}

async fn a_release_lets_a_waiter_in(site: Site) {
    site.take("job", "a", 3_600_000).await.granted();
    let waiter = waiting(&site.app, "b", 1000, 60_000);
    site.clock.until_sleeping(1).await;
    site.release("job", "a").await.is(204);
    let answer = pass_until_done(&site, waiter).await;
    assert_eq!(answer.granted_token(), 2);
    assert!(answer.json["waited_ms"].as_u64().unwrap() <= 250, "{answer:?}");
}

async fn a_wait_ends_with_held(site: Site) {
    site.take("job", "a", 3_600_000).await.granted();
    let answer = pass_until_done(&site, waiting(&site.app, "b", 1000, 700)).await;
    answer.held();
    let passed = fencing::clock::Clock::epoch_ms(&site.clock)
        - fencing::testing::ManualClock::START_EPOCH_MS;
    assert_eq!(passed, 700, "neither shorter nor longer than asked");
    for bad in [json!(60_001), json!(-1), json!("5"), json!(0.5)] {
        let body = json!({ "owner": "b", "ttl_ms": 1000, "wait_ms": bad });
        site.acquire("job", body).await.invalid_field("wait_ms");
    }
}

async fn waits_are_bounded_in_number(site: Site) {
    let app = site.with(|endpoint| endpoint.with_max_waiting(2));
    site.take("job", "a", 3_600_000).await.granted();
    let first = waiting(&app, "b", 1000, 60_000);
    site.clock.until_sleeping(1).await;
    let second = waiting(&app, "c", 1000, 60_000);
    site.clock.until_sleeping(2).await;
    let third = waiting(&app, "d", 1000, 60_000).await.unwrap();
    third.problem(503, "overloaded").header("retry-after");
    // Who does not wait is served.
    waiting(&app, "e", 1000, 0).await.unwrap().held();
    // A place that is left is given to the next.
    first.abort();
    let _ = first.await;
    let freed = async {
        while site.clock.sleeping() > 1 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), freed).await.expect("a place");
    let next = waiting(&app, "f", 1000, 60_000);
    site.clock.until_sleeping(2).await;
    assert!(!next.is_finished());
    next.abort();
    second.abort();
}

async fn a_shutdown_ends_the_waits(site: Site) {
    site.take("job", "a", 3_600_000).await.granted();
    let endpoint = Endpoint::new(Arc::clone(&site.store)).with_clock(Arc::new(site.clock.clone()));
    let waits = endpoint.waits();
    let app = axum::Router::new().nest("/locks", endpoint.router());
    let waiter = waiting(&app, "b", 1000, 60_000);
    site.clock.until_sleeping(1).await;
    waits.end();
    let ended = tokio::time::timeout(Duration::from_secs(30), waiter).await;
    ended.expect("the wait ends at once").unwrap().held();
    waiting(&app, "c", 1000, 60_000).await.unwrap().held();
}

on_every_store! {
    a_grant_after_a_wait_has_its_whole_ttl,
    a_release_lets_a_waiter_in,
    a_wait_ends_with_held,
    waits_are_bounded_in_number,
    a_shutdown_ends_the_waits,
}
