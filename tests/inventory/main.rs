//! The inventory example from outside: what its levels promise, and what they do not.

#![cfg(feature = "full")]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that fails may panic"
)]

#[allow(clippy::future_not_send, dead_code, unused_macros, unused_imports)]
#[path = "../sql/support.rs"]
mod support;

mod service;

use std::time::Duration;

use http::Method;
use serde_json::json;

use self::service::{PATIENCE, Service, Tried};
use self::support::on_every_database;

on_every_database! {
    an_item_is_put_taken_shown_logged_and_deleted,
    i1_at_level_transaction_a_paused_writer_is_never_overtaken,
    case_18_at_level_door_a_paused_writer_overwrites_its_successor,
    i1_at_level_exclusive_a_successor_waits_for_a_paused_writer,
    i1_at_level_exclusive_a_write_without_its_client_is_waited_for,
    a_read_with_a_token_is_a_claim,
    without_the_fence_the_zombie_writes,
    i6_bad_input_gets_a_problem_and_nothing_is_written,
    the_lock_endpoint_is_mounted_and_its_tokens_fence,
    case_34_a_client_that_hangs_up_leaves_neither_write_nor_lock,
    it_stops_gracefully,
}

async fn an_item_is_put_taken_shown_logged_and_deleted<H: Tried>() {
    let service = Service::start::<H>(&[]).await;
    assert_eq!(service.get("/inventory/1").await.status, 404);
    let put = service.put(1, 33, 5, 0).await;
    assert_eq!(put.status, 204);
    assert_eq!(put.headers["x-fencing-token"], "33");
    let taken = service.take(1, 34, 1, 0).await;
    assert_eq!((taken.status.as_u16(), taken.body), (200, json!({"quantity": 4})));
    assert_eq!(
        service.get("/inventory/1").await.body,
        json!({"id": 1, "quantity": 4, "last_token": 34})
    );
    let refused = service.take(1, 34, 9, 0).await;
    assert_eq!((refused.status.as_u16(), refused.problem()), (409, "not-enough"));
    assert_eq!(service.take(2, 34, 1, 0).await.status, 404);
    let delete = [("x-fencing-token", "34"), ("x-request-id", "r-3")];
    assert_eq!(service.call(Method::DELETE, "/inventory/1", &delete, "").await.status, 204);
    let log = service.get("/inventory/1/log").await.body;
    // One is made where none came.
    let id = |n: usize| log[n]["request_id"].as_str().unwrap();
    assert!(!id(0).is_empty() && id(0) != id(1));
    assert_eq!(
        log,
        json!([
            {"seq": 1, "token": 33, "op": "put", "quantity": 5, "request_id": id(0)},
            {"seq": 2, "token": 34, "op": "take", "quantity": 4, "request_id": id(1)},
            {"seq": 3, "token": 34, "op": "delete", "quantity": null, "request_id": "r-3"},
        ])
    );
    // I5: the mark outlives the row.
    assert_eq!(service.put(1, 33, 9, 0).await.status, 412);
}

async fn i1_at_level_transaction_a_paused_writer_is_never_overtaken<H: Tried>() {
    let service = Service::start::<H>(&["--level", "transaction"]).await;
    assert_eq!(service.put(1, 32, 5, 0).await.status, 204);
    // 33 claims, reads 5 and pauses inside its transaction; 34 comes in the middle.
    let (zombie, next) = tokio::join!(service.take(1, 33, 1, 2500), async {
        service.until_a_write_is_open().await;
        service.take(1, 34, 2, 0).await
    });
    // Whichever came first, both orders are right: 33 before 34, or 33 refused.
    assert_eq!(next.status, 200);
    let tokens = service.applied(1).await;
    assert!(tokens.is_sorted(), "{tokens:?}");
    let left = service.get("/inventory/1").await.body["quantity"].clone();
    assert_eq!(left, if zombie.status == 200 { 2 } else { 3 });
}

/// Case 18: what the door alone does not promise, and why the docs say so.
async fn case_18_at_level_door_a_paused_writer_overwrites_its_successor<H: Tried>() {
    let service = Service::start::<H>(&["--level", "door"]).await;
    assert_eq!(service.put(1, 32, 5, 0).await.status, 204);
    let (zombie, next) = tokio::join!(service.put(1, 33, 4, 3000), async {
        // The door has let 33 in, which now stands before its write.
        service.wait_for(1, |item| item["last_token"] == 33).await;
        service.put(1, 34, 3, 0).await
    });
    assert_eq!((zombie.status.as_u16(), next.status.as_u16()), (204, 204));
    assert_eq!(service.applied(1).await, [32, 34, 33]);
    // At the door itself the stale token is refused.
    assert_eq!(service.put(1, 33, 9, 0).await.problem(), "stale-token");
}

/// The same at level exclusive: 34 waits at the gate.
async fn i1_at_level_exclusive_a_successor_waits_for_a_paused_writer<H: Tried>() {
    let service = Service::start::<H>(&["--level", "exclusive"]).await;
    assert_eq!(service.put(1, 32, 5, 0).await.status, 204);
    let (older, next) = tokio::join!(service.take(1, 33, 1, 1500), async {
        service.wait_for(1, |item| item["last_token"] == 33).await;
        // Of another item it does not wait, and this is there long before 33 has left.
        assert_eq!(service.put(2, 7, 1, 0).await.status, 204);
        let next = service.take(1, 34, 1, 0);
        let (next, zombie) = tokio::join!(next, async {
            service.wait_for(1, |item| item["last_token"] == 34).await;
            service.put(1, 33, 9, 0).await
        });
        assert_eq!(zombie.problem(), "stale-token");
        next
    });
    assert_eq!((older.status.as_u16(), older.body), (200, json!({"quantity": 4})));
    assert_eq!((next.status.as_u16(), next.body), (200, json!({"quantity": 3})));
    assert_eq!(service.applied(1).await, [32, 33, 34]);
}

/// A client that hangs up does not take its permit along: the write it began goes on.
async fn i1_at_level_exclusive_a_write_without_its_client_is_waited_for<H: Tried>() {
    let service = Service::start::<H>(&["--level", "exclusive"]).await;
    for item in 1..10 {
        assert_eq!(service.put(item, 32, 5, 0).await.status, 204);
        tokio::select! {
            _ = service.put(item, 33, 4, 1000) => panic!("it pauses for longer than this waits"),
            () = service.wait_for(item, |item| item["last_token"] == 33) => {}
        }
        assert_eq!(service.put(item, 34, 3, 0).await.status, 204);
        match &*service.applied(item).await {
            [32, 33, 34] => return,
            // It hung up after its claim and before its write had begun: another try.
            [32, 34] => {}
            other => panic!("{other:?}"),
        }
    }
    panic!("no write was begun");
}

async fn a_read_with_a_token_is_a_claim<H: Tried>() {
    for level in ["door", "exclusive", "transaction"] {
        let service = Service::start::<H>(&["--level", level]).await;
        assert_eq!(service.put(1, 33, 5, 0).await.status, 204);
        let read = [("x-fencing-token", "34")];
        let read = service.call(Method::GET, "/inventory/1", &read, "").await;
        assert_eq!(read.body["last_token"], 34);
        let zombie = service.put(1, 33, 4, 0).await;
        assert_eq!((zombie.status.as_u16(), zombie.problem()), (412, "stale-token"));
        assert_eq!(zombie.body["last_token"], 34);
        assert_eq!(service.get("/inventory/1").await.body["quantity"], 5);
    }
}

async fn without_the_fence_the_zombie_writes<H: Tried>() {
    let service = Service::start::<H>(&["--fence", "off"]).await;
    for (token, quantity) in [(33, 5), (34, 3), (33, 4)] {
        assert_eq!(service.put(1, token, quantity, 0).await.status, 204);
    }
    assert_eq!(service.applied(1).await, [33, 34, 33]);
    assert_eq!(
        service.call(Method::PUT, "/inventory/1", &[], r#"{"quantity":1}"#).await.status,
        204
    );
}

async fn i6_bad_input_gets_a_problem_and_nothing_is_written<H: Tried>() {
    for level in ["door", "exclusive", "transaction"] {
        bad_input(&Service::start::<H>(&["--level", level]).await).await;
    }
}

async fn bad_input(service: &Service) {
    assert_eq!(service.put(1, 33, 5, 0).await.status, 204);
    let token = ("x-fencing-token", "33");
    let body = r#"{"quantity":9}"#;
    // Path, headers, body; status, problem.
    type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str, u16, &'a str);
    let cases: &[Case<'_>] = &[
        ("/inventory/1", &[], body, 428, "missing-token"),
        ("/inventory/1", &[("x-fence-token", "33")], body, 428, "missing-token"),
        ("/inventory/1", &[("x-fencing-token", "+33")], body, 400, "malformed-token"),
        ("/inventory/1", &[("x-fencing-token", "0")], body, 400, "malformed-token"),
        ("/inventory/1", &[token, token], body, 400, "malformed-token"),
        ("/inventory/1", &[("x-fencing-token", "32")], body, 412, "stale-token"),
        ("/inventory/01", &[token], body, 400, "invalid-resource"),
        ("/inventory/a%zz", &[token], body, 400, "invalid-resource"),
        ("/inventory/a%FF", &[token], body, 400, "invalid-resource"),
        ("/inventory/1", &[token], r#"{"quantity":-1}"#, 422, "invalid-field"),
        ("/inventory/1", &[token], r#"{"quantity":1.5}"#, 422, "invalid-field"),
        ("/inventory/1", &[token], "{}", 422, "invalid-field"),
        ("/inventory/1", &[token], "{", 400, "malformed-body"),
        ("/inventory/1", &[token], "[5]", 400, "malformed-body"),
        ("/inventory/1", &[token], "5", 400, "malformed-body"),
        ("/inventory/1", &[token], r#"{"quantity":1,"quantity":2}"#, 400, "malformed-body"),
        ("/inventory/1", &[token, ("x-demo-pause-ms", "8001")], body, 422, "invalid-field"),
    ];
    for (path, headers, body, status, problem) in cases {
        let answer = service.call(Method::PUT, path, headers, body).await;
        let got = (answer.status.as_u16(), answer.problem());
        assert_eq!(got, (*status, *problem), "{path} {headers:?} {body}");
        assert_eq!(answer.headers["content-type"], "application/problem+json");
    }
    // 405 and 404 come first: what is not served raises no mark.
    let higher = [("x-fencing-token", "99")];
    assert_eq!(service.call(Method::PATCH, "/inventory/1", &higher, body).await.status, 405);
    assert_eq!(service.call(Method::PATCH, "/inventory/1", &[], body).await.status, 405);
    assert_eq!(service.call(Method::PUT, "/nowhere", &[token], body).await.status, 404);
    assert_eq!(service.applied(1).await, [33]);
    assert_eq!(
        service.get("/inventory/1").await.body,
        json!({"id": 1, "quantity": 5, "last_token": 33})
    );
}

async fn the_lock_endpoint_is_mounted_and_its_tokens_fence<H: Tried>() {
    let service = Service::start::<H>(&[]).await;
    let json_type = ("content-type", "application/json");
    let acquire = async |ttl_ms: u64| {
        let body = format!(r#"{{"owner":"a","ttl_ms":{ttl_ms}}}"#);
        let path = "/locks/inventory:item:1";
        service.call(Method::POST, path, &[json_type], &body).await.body
    };
    let first = acquire(1).await;
    let token = first["lock"]["token"].as_i64().unwrap();
    assert_eq!(service.put(1, token, 5, 0).await.status, 204);
    let mut second = acquire(60_000).await;
    while second["acquired"] == false {
        second = acquire(60_000).await;
    }
    let newer = second["lock"]["token"].as_i64().unwrap();
    assert!(newer > token);
    assert_eq!(service.put(1, newer, 4, 0).await.status, 204);
    assert_eq!(service.put(1, token, 3, 0).await.status, 412);
}

/// Case 34: the client hangs up while the handler is inside its transaction.
async fn case_34_a_client_that_hangs_up_leaves_neither_write_nor_lock<H: Tried>() {
    let service = Service::start::<H>(&[]).await;
    assert_eq!(service.put(1, 33, 5, 0).await.status, 204);
    tokio::select! {
        _ = service.put(1, 35, 9, 8000) => panic!("it pauses for longer than the test waits"),
        () = service.until_a_write_is_open() => {}
    }
    // Long before the pause would have ended, another write goes through.
    let next = tokio::time::timeout(Duration::from_secs(6), service.put(1, 35, 4, 0)).await;
    assert_eq!(next.expect("the lock of the mark is released").status, 204);
    assert_eq!(service.applied(1).await, [33, 35]);
    assert_eq!(service.get("/inventory/1").await.body["quantity"], 4);
}

async fn it_stops_gracefully<H: Tried>() {
    let mut service = Service::start::<H>(&[]).await;
    let pid = rustix::process::Pid::from_raw(service.child.id().unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let status = tokio::time::timeout(PATIENCE, service.child.wait()).await.unwrap();
    assert!(status.unwrap().success());
}

#[tokio::test]
async fn a_database_it_cannot_use_is_one_clear_line() {
    for url in ["nonsense:x", "sqlite:/no/such/folder/stock.db"] {
        let mut run = tokio::process::Command::new(service::program());
        let output = run.args(["--database", url]).output().await.unwrap();
        assert_eq!(output.status.code(), Some(1), "{url}");
        assert!(output.stdout.is_empty());
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.starts_with("inventory: "), "{said}");
    }
}
