//! What the fence tells the log: one event for each refusal.

use std::fmt::Write;
use std::sync::{Arc, Mutex};

use fencing::marks::{Check, Marks, MarksError, MarksErrorKind, MemoryMarks};
use tower::Layer;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::support::{Plain, fence, put, refused, status};

/// Keeps every event as a line of text.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
    fn record_error(&mut self, field: &Field, error: &(dyn std::error::Error + 'static)) {
        write!(self.0, " {}={error} caused by {:?}", field.name(), error.source()).unwrap();
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "fencing::guard"
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[derive(Debug)]
struct Down;

impl Marks for Down {
    fn advance(&self, _: &fencing::Claim) -> Check {
        let source = std::io::Error::other("connection refused by db7");
        Check::Ready(Err(MarksError::new(MarksErrorKind::Unavailable).with_source(source)))
    }
}

/// What is told about one refusal. Other tests of this process may meet an event for the first
/// time just now, with nobody listening, and have it switched off for all: then it is switched on
/// again and the request sent once more.
async fn told<R>(lines: &Lines, refuse: impl AsyncFn() -> R) -> (R, Vec<String>) {
    for _ in 0..1000 {
        let refusal = refuse().await;
        let told = lines.take();
        if !told.is_empty() {
            return (refusal, told);
        }
        tracing::callsite::rebuild_interest_cache();
    }
    panic!("nothing was told");
}

#[tokio::test]
async fn a_refusal_is_told_once_with_its_fields_and_an_acceptance_is_not() {
    let lines = Lines::default();
    let _guard = tracing::subscriber::set_default(lines.clone());
    let service = fence(MemoryMarks::ephemeral()).hide_last_token(true).layer(Plain::default());
    assert_eq!(status(&service, put("/doc/1", "34")).await, 200);
    assert_eq!(lines.take(), [""; 0]);
    let (answer, told_of) =
        told(&lines, async || refused(&service, put("/doc/1", "33")).await).await;
    assert_eq!(answer, (412, "stale-token"));
    assert_eq!(
        told_of,
        [
            "INFO message=request refused resource=\"1\" token=33 last_token=34 verdict=\"stale-token\""
        ],
        "the log has the mark that the answer leaves out"
    );
    assert_eq!(refused(&service, put("/doc/1", "")).await.0, 428);
    let line = lines.take().join("\n");
    assert!(line.starts_with("INFO ") && line.contains("verdict=\"missing-token\""), "{line}");
    assert!(line.contains("resource=\"1\"") && !line.contains(" token="), "{line}");
    assert_eq!(status(&service, put("/doc/1", "34")).await, 200);
    assert_eq!(lines.take(), [""; 0]);
}

#[tokio::test]
async fn trouble_of_the_store_is_told_with_its_cause() {
    let lines = Lines::default();
    let _guard = tracing::subscriber::set_default(lines.clone());
    let service = fence(Down).layer(Plain::default());
    let (answer, told) = told(&lines, async || refused(&service, put("/doc/1", "33")).await).await;
    assert_eq!(answer, (503, "fence-unavailable"));
    let [line] = told.as_slice() else { panic!("{told:?}") };
    assert!(line.starts_with("WARN ") && line.contains("verdict=\"fence-unavailable\""), "{line}");
    assert!(line.contains("db7"), "{line}");
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn a_broken_template_is_told_when_the_layer_is_built() {
    let lines = Lines::default();
    let _guard = tracing::subscriber::set_default(lines.clone());
    let broken =
        || fencing::guard::FenceLayer::new(MemoryMarks::ephemeral()).resource("inventory:{id");
    let (layer, told_of) = told(&lines, async || broken()).await;
    let [line] = told_of.as_slice() else { panic!("{told_of:?}") };
    assert!(line.starts_with("ERROR ") && line.contains("inventory:{id"), "{line}");
    let service = layer.layer(Plain::default());
    let (answer, told) = told(&lines, async || refused(&service, put("/1", "33")).await).await;
    assert_eq!(answer, (500, "misconfigured"));
    assert!(told[0].starts_with("ERROR ") && told[0].contains("misconfigured"), "{told:?}");
}
