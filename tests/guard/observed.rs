//! What operators see: numbers and spans, and nothing that is secret. `docs/observability.md` lists
//! them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::routing;
use fencing::guard::{FenceLayer, Gate};
use fencing::marks::{Check, Issuer, Marks, MarksError, MarksErrorKind, MemoryMarks};
use fencing::{Claim, ClaimState, Resource, Token};
use http::{Method, Request, StatusCode};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tower::Layer;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::support::{Body, Plain, TOKEN, fence, get, put, request, send, status};

/// Collects the numbers of one test.
struct Numbers(Snapshotter);

impl Numbers {
    fn collect() -> (Self, impl Drop) {
        // Leaked, as a recorder has to outlive its guard: a few bytes for each test.
        let recorder: &'static DebuggingRecorder = Box::leak(Box::default());
        (Self(recorder.snapshotter()), metrics::set_default_local_recorder(recorder))
    }

    /// Name and labels of everything counted since, with its value.
    fn take(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        for (key, _, _, value) in self.0.snapshot().into_vec() {
            let mut name = key.key().name().to_owned();
            for label in key.key().labels() {
                write!(name, " {}={}", label.key(), label.value()).unwrap();
            }
            all.insert(
                name,
                match value {
                    DebugValue::Counter(count) => count.to_string(),
                    DebugValue::Histogram(values) => {
                        format!("{:?}", values.iter().map(|it| it.0).collect::<Vec<_>>())
                    }
                    DebugValue::Gauge(value) => value.0.to_string(),
                },
            );
        }
        all.retain(|_, value| value != "0" && value != "[]");
        all
    }
}

fn requests(verdict: &str, class: &str) -> String {
    format!("fencing_guard_requests_total verdict={verdict} class={class} report_only=false")
}

#[tokio::test]
async fn requests_are_counted_by_verdict_and_class_of_the_resource() {
    let (numbers, _collecting) = Numbers::collect();
    let issuer = Issuer::new(async |_| Ok::<_, std::io::Error>(Token::new(100).ok()));
    let layer = fence(MemoryMarks::ephemeral()).issued_by(issuer);
    let layer = layer.class(|resource: &Resource| match resource.as_str() {
        "1" => "first",
        _ => "other",
    });
    let service = layer.layer(Plain::default());
    for (uri, token) in [
        ("/doc/1", "34"),
        ("/doc/1", "40"),
        ("/doc/2", "34"),
        ("/doc/1", "33"),
        ("/doc/1", "38"),
        ("/doc/1", "101"),
        ("/doc/1", "+3"),
        ("/doc/1", ""),
        ("/doc/%00", "3"),
    ] {
        let _ = send(&service, put(uri, token)).await;
    }
    let _ = send(&service, get("/doc/1", "")).await;
    let mut seen = numbers.take();
    let overtaken = seen.remove("fencing_guard_overtaken_seconds class=first").unwrap();
    let overtaken: Vec<f64> = serde_json::from_str(&overtaken).unwrap();
    assert!(overtaken.len() == 2 && overtaken.iter().all(|it| (0.0..60.0).contains(it)));
    let expected = [
        (requests("accepted", "first"), "2"),
        (requests("accepted", "other"), "1"),
        (requests("stale-token", "first"), "2"),
        (requests("implausible-token", "first"), "1"),
        (requests("malformed-token", "first"), "1"),
        (requests("missing-token", "first"), "1"),
        (requests("invalid-resource", "none"), "1"),
        (requests("unclaimed", "none"), "1"),
        ("fencing_guard_token_lag class=first".to_owned(), "[7.0, 2.0]"),
    ];
    let expected = expected.map(|(name, value)| (name, value.to_owned()));
    assert_eq!(seen, BTreeMap::from(expected));
}

/// The names of resources come from callers. None becomes a label, whatever is sent.
#[tokio::test]
async fn no_name_of_a_resource_becomes_a_label() {
    let (numbers, _collecting) = Numbers::collect();
    let service = fence(MemoryMarks::ephemeral()).layer(Plain::default());
    for n in 0..1000 {
        let _ = send(&service, put(&format!("/doc/name-{n}"), "34")).await;
        let _ = send(&service, put(&format!("/doc/name-{n}"), "33")).await;
    }
    let seen = numbers.take();
    assert_eq!(seen.len(), 4, "{seen:?}");
    assert_eq!(seen[&requests("stale-token", "all")], "1000");
    assert!(seen.keys().all(|name| !name.contains("name-")));
}

#[tokio::test]
async fn trouble_of_the_store_and_reports_are_told_apart() {
    #[derive(Debug)]
    struct Down;
    impl Marks for Down {
        fn advance(&self, _: &Claim) -> Check {
            Check::Ready(Err(MarksError::new(MarksErrorKind::Unavailable)))
        }
    }
    let (numbers, _collecting) = Numbers::collect();
    assert_eq!(status(&fence(Down).layer(Plain::default()), put("/doc/1", "3")).await, 503);
    let reporting = fence(MemoryMarks::ephemeral()).report_only(true).layer(Plain::default());
    for token in ["34", "33", ""] {
        assert_eq!(status(&reporting, put("/doc/1", token)).await, 200);
    }
    let seen = numbers.take();
    assert_eq!(seen[&requests("fence-unavailable", "all")], "1");
    assert_eq!(seen[&requests("accepted", "all")], "1");
    let reported = |verdict| {
        let name = requests(verdict, "all").replace("report_only=false", "report_only=true");
        seen.get(&name).map(String::as_str)
    };
    assert_eq!((reported("stale-token"), reported("missing-token")), (Some("1"), Some("1")));
}

/// Under a deferred layer the verdict is that of the handler's transaction.
#[tokio::test]
async fn a_deferred_write_is_counted_by_what_became_of_its_claim() {
    let (numbers, _collecting) = Numbers::collect();
    async fn handler(
        claim: Claim,
        axum::extract::Path(what): axum::extract::Path<String>,
    ) -> StatusCode {
        match &*what {
            "commits" => claim.note(ClaimState::Committed),
            "stale" => claim.note_stale(Token::new(40).unwrap()),
            _ => {}
        }
        if what == "commits" || what == "forgets" { StatusCode::OK } else { StatusCode::CONFLICT }
    }
    let app = Router::new()
        .route("/{what}", routing::put(handler))
        .route_layer(FenceLayer::new(MemoryMarks::ephemeral()).resource("doc").deferred());
    for uri in ["/commits", "/stale", "/forgets", "/fails", "/fails"] {
        let _ = send(&app, put(uri, "34")).await;
    }
    let seen = numbers.take();
    for (verdict, count) in
        [("accepted", "1"), ("stale-token", "1"), ("misconfigured", "1"), ("given-up", "2")]
    {
        assert_eq!(seen[&requests(verdict, "all")], count, "{verdict}");
    }
    assert_eq!(seen["fencing_guard_token_lag class=all"], "[6.0]");
}

#[tokio::test]
async fn waits_at_the_gate_are_measured() {
    use fencing::testing::ManualClock;
    let (numbers, _collecting) = Numbers::collect();
    let clock = ManualClock::new();
    let gate = Gate::with_clock(clock.clone()).drain_timeout(Duration::from_secs(10));
    let marks = MemoryMarks::ephemeral();
    let claim = |token| Claim::new(Resource::new("r").unwrap(), Token::new(token).unwrap());
    let (older, newer, newest) = (claim(34), claim(35), claim(36));
    let inside = gate.enter(&marks, &older).await.unwrap();
    let first = gate.enter(&marks, &newer);
    let after = async {
        clock.until_sleeping(1).await;
        clock.advance(Duration::from_secs(3));
        drop(inside);
    };
    let (second, ()) = tokio::join!(first, after);
    let _second = second.unwrap();
    let waiting = gate.enter(&marks, &newest);
    let after = async {
        clock.until_sleeping(1).await;
        clock.advance(Duration::from_secs(10));
    };
    assert!(tokio::join!(waiting, after).0.is_err());
    let seen = numbers.take();
    assert_eq!(seen["fencing_guard_gate_wait_seconds outcome=entered"], "[3.0]");
    assert_eq!(seen["fencing_guard_gate_wait_seconds outcome=timed-out"], "[10.0]");
}

/// Keeps every span and event of every target as a line of text.
#[derive(Clone, Default)]
struct Everything(Arc<Mutex<Vec<String>>>);

impl Everything {
    fn tell(&self, kind: &str, record: impl FnOnce(&mut Line)) {
        let mut line = Line(kind.to_owned());
        record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

impl Subscriber for Everything {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let name = span.metadata().name();
        self.tell(&format!("span {name}"), |line| span.record(line));
        Id::from_u64(7)
    }
    fn record(&self, _: &Id, values: &Record<'_>) {
        self.tell("record", |line| values.record(line));
    }
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        self.tell("event", |line| event.record(line));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// I7: what a request brings along besides is nobody's business, in whatever it ends.
#[tokio::test]
async fn i7_no_secret_is_in_any_span_event_or_number() {
    let (numbers, _collecting) = Numbers::collect();
    let everything = Everything::default();
    let _listening = tracing::subscriber::set_default(everything.clone());
    let service = fence(MemoryMarks::ephemeral()).layer(Plain::default());
    // More than once, as another test may just have had an event switched off for all.
    while !everything.lines().iter().any(|line| line.contains("verdict=\"stale-token\"")) {
        tracing::callsite::rebuild_interest_cache();
        for (uri, token) in [
            ("/doc/1", "34"),
            ("/doc/1", "33"),
            ("/doc/1", ""),
            ("/doc/1", "+5"),
            ("/doc/%00", "3"),
        ] {
            for method in [Method::PUT, Method::GET] {
                let mut request: Request<Body> = request(method, uri, token);
                for name in ["authorization", "cookie", "x-lock-owner-token", "x-fencing-proof"] {
                    request.headers_mut().insert(name, "secret-of-mine".parse().unwrap());
                }
                request.headers_mut().insert("x-request-id", "r-17".parse().unwrap());
                let response = send(&service, request).await;
                let head = format!("{:?}", response.headers());
                assert!(!head.contains("secret"), "{head}");
            }
        }
    }
    let (lines, numbers) = (everything.lines().join("\n"), format!("{:?}", numbers.take()));
    assert!(!lines.contains("secret") && !numbers.contains("secret"), "{lines}\n{numbers}");
}

/// A line of the handler's is within the span, which names resource, token and request, and in the
/// end the verdict.
#[tokio::test]
async fn the_handler_runs_in_a_span_of_its_claim() {
    use tracing_subscriber::fmt::format::FmtSpan;
    let written = Written::default();
    let writer = written.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _listening = tracing::subscriber::set_default(subscriber);
    let app = Router::new()
        .route("/doc", routing::put(async || tracing::info!("written")))
        .route_layer(FenceLayer::new(MemoryMarks::ephemeral()).resource("doc"));
    let fence = "fence{resource=\"doc\" token=34 request_id=\"r-17\"";
    for _ in 0..1000 {
        let write = Request::put("/doc").header(TOKEN, "34").header("x-request-id", "r-17");
        assert_eq!(status(&app, write.body(Body::default()).unwrap()).await, 200);
        let text = written.take();
        let has = |line: &str| text.lines().any(|it| it.contains(fence) && it.contains(line));
        if has("written") && has("verdict=\"accepted\"}: fencing::guard: close") {
            return;
        }
        // Another test may just have had the span or the event switched off for all.
        tracing::callsite::rebuild_interest_cache();
    }
    panic!("the line and the span were not seen");
}

/// Where the formatter of tracing writes to.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
    }
}

impl std::io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
