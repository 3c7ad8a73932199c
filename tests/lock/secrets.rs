//! I7: nothing that others can read lets them renew or release.

use std::io;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use http::{Method, Request};
use serde_json::json;
use tracing_subscriber::fmt::MakeWriter;

use crate::site::{Answer, Site, on_every_store, post, raw, send};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Log {
    /// Captures what this thread, and so this test's runtime, logs at every level.
    fn capture() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(log.clone())
            .finish();
        let guard = tracing::subscriber::set_default(subscriber);
        (log, guard)
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
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
    let (log, _guard) = Log::capture();
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
    let text = log.text();
    assert!(!text.contains(SECRET) && !text.contains(OTHER), "{text}");
    let line = |what: &str| {
        let line = text.lines().find(|line| line.contains(what));
        line.unwrap_or_else(|| panic!("no {what:?} in {text}")).to_owned()
    };
    let granted = line(" granted ");
    for field in [
        "resource=job",
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
        assert!(line(what).contains("resource=job"), "{what}");
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
