//! I7: nothing that others can read lets them renew or release.

use std::cell::RefCell;
use std::io;
use std::sync::OnceLock;

use axum::body::Body;
use http::{Method, Request};
use serde_json::json;

use crate::site::{Answer, Site, on_every_store, post, raw, send};

thread_local! {
    static LOG: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

/// Writes what a thread logs to the capture of that thread.
///
/// A subscriber of the thread's own would be simpler, but which events are wanted is remembered
/// for all threads at once.
struct Log;

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.with_borrow_mut(|log| log.as_mut().map(|log| log.extend_from_slice(bytes)));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Begins to capture what this thread, and so this test's runtime, logs at every level.
    fn capture() {
        static GLOBAL: OnceLock<()> = OnceLock::new();
        GLOBAL.get_or_init(|| {
            tracing_subscriber::fmt()
                .with_max_level(tracing::Level::TRACE)
                .with_ansi(false)
                .with_writer(|| Self)
                .init();
        });
        LOG.set(Some(Vec::new()));
    }

    fn text() -> String {
        String::from_utf8(LOG.take().unwrap()).unwrap()
    }
}

const SECRET: &str = "a-secret-that-nobody-sees";
const OTHER: &str = "the-secret-of-somebody-else";

async fn with_id(site: &Site, method: Method, path: &str, body: serde_json::Value) -> Answer {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json")
        .header("x-request-id", "req-42")
        .body(Body::from(body.to_string()));
    send(&site.app, request.unwrap()).await
}

async fn i7_the_owner_token_is_in_no_log_and_no_other_answer(site: Site) {
    Log::capture();
    let app = &site.app;
    let body = json!({ "owner": "worker-1", "ttl_ms": 60_000, "owner_token": SECRET });
    let mut seen_by_others = Vec::new();

    let granted = with_id(&site, Method::POST, "/locks/job", body.clone()).await;
    assert_eq!(granted.granted()["owner_token"], SECRET, "the holder itself is told");
    let other = json!({ "owner": "worker-2", "ttl_ms": 60_000, "owner_token": OTHER });
    seen_by_others.push(with_id(&site, Method::POST, "/locks/job", other).await);
    seen_by_others.push(site.show("job").await);
    seen_by_others.push(site.token("job").await);
    let renew = json!({ "owner_token": OTHER, "ttl_ms": 1 });
    seen_by_others.push(post(app, "/locks/job/renew", renew).await);
    let release = json!({ "owner_token": OTHER });
    seen_by_others.push(with_id(&site, Method::DELETE, "/locks/job", release).await);
    let renew = json!({ "owner_token": SECRET, "ttl_ms": 1 });
    seen_by_others.push(with_id(&site, Method::POST, "/locks/job/renew", renew).await);
    let release = json!({ "owner_token": SECRET });
    seen_by_others.push(with_id(&site, Method::DELETE, "/locks/job", release).await);
    seen_by_others.push(with_id(&site, Method::POST, "/locks/job", body).await);
    // Refusals of what is malformed quote nothing of it.
    let twice = format!("{{\"owner_token\":\"{SECRET}\",\"owner_token\":\"{SECRET}\"}}");
    seen_by_others.push(raw(app, Method::POST, "/locks/job", twice).await);
    let cut = format!("{{\"owner_token\":\"{SECRET}\"");
    seen_by_others.push(raw(app, Method::POST, "/locks/job/renew", cut).await);
    let wrong = format!("{{\"ttl_ms\":\"{SECRET}\",\"owner_token\":\"{SECRET} \",\"owner\":1}}");
    seen_by_others.push(raw(app, Method::POST, "/locks/job", wrong).await);

    for answer in &seen_by_others {
        assert!(!format!("{answer:?}").contains(SECRET), "{answer:?}");
    }
    let text = Log::text();
    assert!(!text.contains(SECRET) && !text.contains(OTHER), "{text}");
    let line = |what: &str| {
        let line = text.lines().find(|line| line.contains(what));
        line.unwrap_or_else(|| panic!("no {what:?} in {text}")).to_owned()
    };
    let granted = line(" granted ");
    for field in [
        "resource=\"job\"",
        "owner=\"worker-1\"",
        "token=1",
        "ttl_ms=60000",
        "waited_ms=0",
        "request_id=req-42",
    ] {
        assert!(granted.contains(field), "{field} in {granted}");
    }
    for what in
        ["held by another", "renewed", "released", "not renewed", "not released", "not granted"]
    {
        // With the spaces around, it is no column in the text of a statement.
        assert!(line(&format!(" {what} ")).contains("resource=\"job\""), "{what}");
    }
}

/// The secrets are random: the server's own are never the same, and never shown again.
async fn i7_a_secret_the_server_made_is_told_once(site: Site) {
    let body = json!({ "owner": "a", "ttl_ms": 60_000 });
    let made = site.acquire("one", body.clone()).await.granted()["owner_token"].clone();
    let other = site.acquire("two", body.clone()).await.granted()["owner_token"].clone();
    assert_ne!(made, other);
    let made = made.as_str().unwrap();
    assert!(!site.show("one").await.text.contains(made));
    // Without the secret the same label is another client.
    site.acquire("one", body).await.held();
}

on_every_store! {
    i7_the_owner_token_is_in_no_log_and_no_other_answer,
    i7_a_secret_the_server_made_is_told_once,
}
