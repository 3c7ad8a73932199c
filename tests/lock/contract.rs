//! The HTTP contract: statuses, headers, shapes of bodies.

use std::time::Duration;

use axum::body::Body;
use http::{Method, Request};
use serde_json::json;

use crate::site::{Site, on_every_store, post, raw, secret, send};

async fn a_grant_has_the_shape_of_the_contract(site: Site) {
    let body = json!({ "owner": "worker-1", "ttl_seconds": 30, "unknown": [1, 2] });
    let answer = site.acquire("inventory:item:1", body).await;
    let lock = answer.granted();
    assert_eq!(answer.json["waited_ms"], 0);
    assert_eq!(answer.header("content-type"), "application/json");
    assert_eq!(answer.header("cache-control"), "no-store");
    assert!(!answer.headers.contains_key("retry-after"));
    let made = lock["owner_token"].as_str().unwrap();
    assert_eq!(
        *lock,
        json!({
            "resource": "inventory:item:1", "owner": "worker-1", "token": 1,
            "acquired_at": "2023-11-14T22:13:20.000Z", "expires_at": "2023-11-14T22:13:50.000Z",
            "remaining_ms": 30_000, "owner_token": made,
        })
    );
    assert_eq!(made.len(), 32, "the server made one");
    let renew = json!({ "owner_token": made, "ttl_seconds": 40 });
    let renewed = post(&site.app, "/locks/inventory:item:1/renew", renew).await;
    assert_eq!(
        renewed.is(200).json,
        json!({
            "resource": "inventory:item:1", "owner": "worker-1", "token": 1,
            "acquired_at": "2023-11-14T22:13:20.000Z", "expires_at": "2023-11-14T22:14:00.000Z",
            "remaining_ms": 40_000,
        })
    );
    assert_eq!(site.show("inventory:item:1").await.is(200).json, renewed.json);
}

async fn a_refused_acquire_says_when_to_ask_again(site: Site) {
    site.take("job", "a", 1500).await.granted();
    let held = site.take("job", "b", 1000).await;
    assert_eq!(held.json, json!({ "acquired": false, "resource": "job", "retry_after_ms": 1500 }));
    assert_eq!(held.held().header("retry-after"), "2");
    // Not for the whole of a long grant: its holder may release it any time.
    site.take("long", "a", 3_600_000).await.granted();
    assert_eq!(site.take("long", "b", 1000).await.json["retry_after_ms"], 5000);
}

/// Case 8, the lock's part: all spellings of the same bytes are one lock.
async fn spellings_of_a_name_are_one_lock(site: Site) {
    let granted = site.take("a%2Fb", "a", 60_000).await;
    assert_eq!(granted.granted()["resource"], "a/b");
    for segment in ["a%2Fb", "a%2fb", "%61%2Fb", "%61%2f%62"] {
        assert_eq!(site.show(segment).await.is(200).json["token"], 1, "{segment}");
        site.take(segment, "b", 1000).await.held();
    }
    site.renew("a%2fb", "a", 60_000).await.is(200);
    site.token("a%2fb").await.is(200);
    // Two ways to write é are two locks.
    assert_eq!(site.take("%C3%A9", "a", 1000).await.granted_token(), 1);
    assert_eq!(site.take("e%CC%81", "a", 1000).await.granted_token(), 1);
    for name in ["Job", "job", "Job%20", "j%C3%B6b"] {
        assert_eq!(site.take(name, "a", 1000).await.granted_token(), 1, "{name}");
    }
}

/// Case 32: what is no name is refused on every route, before the store is asked.
async fn what_is_no_name_is_refused_everywhere(site: Site) {
    for bad in ["a%00b", "%0A", "%7F", "%C2%85", "a%zz", "a%2", "a%", "%FF", "%C3"] {
        for path in [format!("/locks/{bad}"), format!("/locks/{bad}/renew")] {
            // The body is fine, and so is one that is not: the name comes first.
            for body in ["{\"owner\":\"a\",\"ttl_ms\":1,\"owner_token\":\"0123456789abcdef\"}", "["]
            {
                let answer = raw(&site.app, Method::POST, &path, body).await;
                answer.problem(400, "invalid-resource");
            }
        }
        site.show(bad).await.problem(400, "invalid-resource");
        site.token(bad).await.problem(400, "invalid-resource");
        site.release(bad, "a").await.problem(400, "invalid-resource");
    }
    // A path without a name is no route, or names nothing; the next segment is not the name.
    for path in ["/locks/", "/locks", "/locks//", "/locks//other"] {
        assert_eq!(raw(&site.app, Method::POST, path, "{}").await.status, 404, "{path}");
    }
    raw(&site.app, Method::POST, "/locks//renew", "{}").await.problem(400, "invalid-resource");
    raw(&site.app, Method::GET, "/locks//token", "").await.problem(400, "invalid-resource");
    site.take("renew", "a", 1000).await.granted();
    site.renew("renew", "a", 1000).await.is(200);
}

async fn a_body_is_a_json_object(site: Site) {
    for bad in
        ["", "[]", "null", "{", "{\"owner\":\"a\",\"owner\":\"b\",\"ttl_ms\":1}", "\u{feff}{}"]
    {
        for path in ["/locks/job", "/locks/job/renew"] {
            let answer = raw(&site.app, Method::POST, path, bad).await;
            assert_eq!(answer.problem(400, "malformed-body").json["resource"], "job");
        }
    }
    raw(&site.app, Method::DELETE, "/locks/job", "[").await.problem(400, "malformed-body");
}

async fn a_body_is_declared_as_json(site: Site) {
    let body = "{\"owner\":\"a\",\"ttl_ms\":1000}";
    for bad in [
        None,
        Some("text/plain"),
        Some("application/json5"),
        Some("application/x-www-form-urlencoded"),
    ] {
        let mut request = Request::post("/locks/job");
        if let Some(bad) = bad {
            request = request.header("content-type", bad);
        }
        let answer = send(&site.app, request.body(Body::from(body)).unwrap()).await;
        answer.problem(415, "unsupported-media-type");
    }
    let twice = Request::post("/locks/job")
        .header("content-type", "application/json")
        .header("content-type", "text/plain");
    send(&site.app, twice.body(Body::from(body)).unwrap()).await.is(415);
    for good in ["application/json", "Application/JSON; charset=utf-8"] {
        let request = Request::post("/locks/job").header("content-type", good);
        send(&site.app, request.body(Body::from(body)).unwrap()).await.is(200);
    }
}

async fn a_body_is_bounded(site: Site) {
    let body = |length: usize| {
        let frame = "{\"owner\":\"a\",\"ttl_ms\":1000,\"x\":\"\"}";
        format!(
            "{{\"owner\":\"a\",\"ttl_ms\":1000,\"x\":\"{}\"}}",
            "x".repeat(length - frame.len())
        )
    };
    raw(&site.app, Method::POST, "/locks/job", body(65_536)).await.is(200);
    for path in ["/locks/job", "/locks/job/renew"] {
        raw(&site.app, Method::POST, path, body(65_537)).await.problem(413, "too-large");
    }
    raw(&site.app, Method::DELETE, "/locks/job", body(65_537)).await.problem(413, "too-large");
    // One that does not say how long it is.
    let chunks = (0..100).map(|_| Ok::<_, std::convert::Infallible>("x".repeat(1000)));
    let stream = Body::from_stream(tokio_stream(chunks));
    raw(&site.app, Method::POST, "/locks/job", stream).await.problem(413, "too-large");
}

/// An iterator as a stream.
fn tokio_stream<I: Iterator>(items: I) -> impl futures_core::Stream<Item = I::Item> {
    struct Items<I>(I);
    impl<I> Unpin for Items<I> {}
    impl<I: Iterator> futures_core::Stream for Items<I> {
        type Item = I::Item;
        fn poll_next(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<I::Item>> {
            std::task::Poll::Ready(self.0.next())
        }
    }
    Items(items)
}

/// Case 42: every TTL in range lives exactly that long, and a grant shown has time left.
async fn a_ttl_is_kept_to_the_millisecond(site: Site) {
    for (n, ttl) in [1, 500, 1500, 86_400_000].into_iter().enumerate() {
        let name = format!("job-{n}");
        let granted = site.take(&name, "a", ttl).await;
        assert_eq!(granted.granted()["remaining_ms"], ttl);
        site.pass(ttl - 1);
        assert_eq!(site.show(&name).await.is(200).json["remaining_ms"], 1);
        site.pass(1);
        site.show(&name).await.problem(404, "not-held");
    }
    for ttl in ["86400001", "1e15", "18446744073709551615", "NaN", "null"] {
        let body = format!("{{\"owner\":\"a\",\"ttl_ms\":{ttl}}}");
        let answer = raw(&site.app, Method::POST, "/locks/other", body).await;
        assert!(answer.status == 422 || (ttl == "NaN" && answer.status == 400), "{answer:?}");
    }
    let neither = site.acquire("other", json!({ "owner": "a" })).await;
    neither.invalid_field("ttl_seconds");
    let both = json!({ "owner": "a", "ttl_seconds": 1, "ttl_ms": 1 });
    site.acquire("other", both).await.invalid_field("ttl_ms");
    let app = site.with(|endpoint| endpoint.with_max_ttl(Duration::from_secs(10)));
    let body = |ttl| json!({ "owner": "a", "ttl_ms": ttl });
    post(&app, "/locks/other", body(10_001)).await.invalid_field("ttl_ms");
    post(&app, "/locks/other", body(10_000)).await.granted();
}

/// Case 45: a `DELETE` proves itself by header or body, twice is once, and none is refused.
async fn a_release_proves_itself(site: Site) {
    site.take("job", "a", 60_000).await.granted();
    let delete = |header: &[&str], body: &str| {
        let mut request = Request::delete("/locks/job");
        for value in header {
            request = request.header("X-Lock-Owner-Token", *value);
        }
        if !body.is_empty() {
            request = request.header("content-type", "application/json");
        }
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let app = site.app.clone();
        async move { send(&app, request).await }
    };
    let (a, b) = (secret("a"), secret("b"));
    let in_body = |secret: &str| json!({ "owner_token": secret }).to_string();

    delete(&[], "").await.invalid_field("owner_token");
    delete(&[], "{}").await.invalid_field("owner_token");
    delete(&[&a, &a], "").await.invalid_field("owner_token");
    delete(&["short"], &in_body(&a)).await.invalid_field("owner_token");
    delete(&[&a], &in_body(&b)).await.invalid_field("owner_token");
    delete(&[&a], "{\"owner_token\":7}").await.invalid_field("owner_token");
    delete(&[&b], "").await.problem(403, "not-yours");
    site.show("job").await.is(200);

    let gone = delete(&[&a], &in_body(&a)).await;
    assert_eq!(gone.is(204).text, "");
    delete(&[], &in_body(&a)).await.is(204);
    delete(&[&a], "{}").await.is(204);
    delete(&[&b], "").await.problem(404, "not-held");
    // Never the next holder's.
    site.take("job", "b", 60_000).await.granted();
    delete(&[&a], "").await.problem(403, "not-yours");
    assert_eq!(site.show("job").await.json["owner"], "b");
}

async fn a_renewal_needs_the_secret(site: Site) {
    let body = json!({ "ttl_ms": 1000 });
    post(&site.app, "/locks/job/renew", body).await.invalid_field("owner_token");
    let body = json!({ "owner_token": secret("a") });
    post(&site.app, "/locks/job/renew", body).await.invalid_field("ttl_seconds");
}

async fn every_answer_has_a_request_id_and_is_not_cached(site: Site) {
    let send_with = |path: &str, id: Option<&[u8]>| {
        let mut request = Request::get(path);
        if let Some(id) = id {
            request = request.header("x-request-id", id);
        }
        let request = request.body(Body::empty()).unwrap();
        let app = site.app.clone();
        async move { send(&app, request).await }
    };
    site.take("job", "a", 60_000).await.granted();
    let long = "x".repeat(129);
    for path in ["/locks/job", "/locks/free", "/locks/a%00", "/locks/job/token", "/locks/job/renew"]
    {
        let answer = send_with(path, Some(b"req-7/~")).await;
        assert_eq!(answer.header("x-request-id"), "req-7/~", "{path}");
        assert_eq!(answer.header("cache-control"), "no-store", "{path}");
        // What would spoil a log line is replaced.
        for bad in [&b""[..], b"a b", b"\xff", long.as_bytes()] {
            let answer = send_with(path, Some(bad)).await;
            assert_eq!(answer.header("x-request-id").len(), 32, "{path}");
        }
        let (one, two) = (send_with(path, None).await, send_with(path, None).await);
        assert_ne!(one.header("x-request-id"), two.header("x-request-id"));
    }
}

async fn the_token_route_seeds_a_guard(site: Site) {
    site.token("job").await.problem(404, "not-held");
    site.take("job", "a", 1000).await.granted();
    assert_eq!(site.token("job").await.is(200).json, json!({ "resource": "job", "token": 1 }));
    // Released or expired, it is still the highest.
    site.release("job", "a").await.is(204);
    assert_eq!(site.token("job").await.is(200).json["token"], 1);
    site.lift_floor(57).await;
    assert_eq!(site.token("job").await.is(200).json["token"], 57);
    assert_eq!(site.token("never").await.is(200).json["token"], 57);
}

/// R20: a hold limit bounds every renewal, the server's own too.
async fn a_lock_is_not_held_beyond_its_limit(site: Site) {
    let body =
        json!({ "owner": "a", "ttl_ms": 1000, "max_hold_ms": 1500, "owner_token": secret("a") });
    assert_eq!(site.acquire("job", body).await.granted()["remaining_ms"], 1000);
    site.pass(900);
    assert_eq!(site.renew("job", "a", 1000).await.is(200).json["remaining_ms"], 600);
    site.pass(600);
    site.renew("job", "a", 1000).await.problem(404, "not-held");
    let app = site.with(|endpoint| endpoint.with_max_hold(Duration::from_millis(700)));
    for asked in [json!(null), json!(9000)] {
        let body = json!({ "owner": "b", "ttl_ms": 1000, "max_hold_ms": asked });
        let answer = post(&app, "/locks/capped", body).await;
        assert_eq!(answer.granted()["remaining_ms"], 700);
        site.pass(700);
    }
    for bad in [json!(0), json!(-1), json!("1"), json!(1.5)] {
        let body = json!({ "owner": "b", "ttl_ms": 1000, "max_hold_ms": bad });
        site.acquire("bad", body).await.invalid_field("max_hold_ms");
    }
}

/// M12: the end of the range is a refusal that says so, and never a token that JSON rounds.
async fn used_up_tokens_are_a_clear_refusal(site: Site) {
    let max = 9_007_199_254_740_991;
    site.lift_floor(max - 1).await;
    assert_eq!(site.take("job", "a", 1000).await.granted_token(), max);
    site.release("job", "a").await.is(204);
    let answer = site.take("job", "b", 1000).await;
    answer.problem(503, "lock-unavailable");
    assert!(answer.json["detail"].as_str().unwrap().contains("used up"));
    assert_eq!(site.token("job").await.json["token"], max);
}

on_every_store! {
    a_grant_has_the_shape_of_the_contract,
    a_refused_acquire_says_when_to_ask_again,
    spellings_of_a_name_are_one_lock,
    what_is_no_name_is_refused_everywhere,
    a_body_is_a_json_object,
    a_body_is_declared_as_json,
    a_body_is_bounded,
    a_ttl_is_kept_to_the_millisecond,
    a_release_proves_itself,
    a_renewal_needs_the_secret,
    every_answer_has_a_request_id_and_is_not_cached,
    the_token_route_seeds_a_guard,
    a_lock_is_not_held_beyond_its_limit,
    used_up_tokens_are_a_clear_refusal,
}
