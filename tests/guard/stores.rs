//! Stores in trouble: the fence fails closed, says what kind of trouble, and recovers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use fencing::marks::{Check, Marks, MarksError, MarksErrorKind, MemoryMarks};
use fencing::{Claim, Verdict};
use tokio::sync::oneshot;
use tower::{Layer, Service, ServiceExt};

use crate::support::{Plain, Slow, fence, put, refusal, refused, status};

/// Fails as it is told to, else decides.
#[derive(Clone, Debug, Default)]
struct Troubled {
    trouble: Arc<Mutex<Option<MarksErrorKind>>>,
    marks: Option<Arc<MemoryMarks>>,
    asked: Arc<AtomicUsize>,
}

impl Troubled {
    fn new() -> Self {
        Self { marks: Some(Arc::new(MemoryMarks::ephemeral())), ..Self::default() }
    }

    fn set(&self, trouble: Option<MarksErrorKind>) {
        *self.trouble.lock().unwrap() = trouble;
    }
}

impl Marks for Troubled {
    fn advance(&self, claim: &Claim) -> Check {
        self.asked.fetch_add(1, Ordering::SeqCst);
        match *self.trouble.lock().unwrap() {
            Some(kind) => {
                let source = std::io::Error::other("secret_table on db7.internal: refused");
                Check::Ready(Err(MarksError::new(kind).with_source(source)))
            }
            None => self.marks.as_ref().unwrap().advance(claim),
        }
    }
}

/// Case 12 and case 13: a store that is down is 503 and not stale; the handler is not called; it
/// recovers without a restart. The codes of what is final and what may be retried differ.
#[tokio::test]
async fn a_store_in_trouble_is_503_and_recovers() {
    for slow in [false, true] {
        let store = Troubled::new();
        let marks: Box<dyn Marks> =
            if slow { Box::new(Slow(store.clone())) } else { Box::new(store.clone()) };
        let inner = Plain::default();
        let service = fence(marks).layer(inner.clone());
        assert_eq!(status(&service, put("/doc/1", "5")).await, 200);
        for (kind, name) in [
            (MarksErrorKind::Unavailable, "fence-unavailable"),
            (MarksErrorKind::Contended, "contended"),
        ] {
            store.set(Some(kind));
            // Also for a token that is stale: nobody knows.
            for token in ["5", "4"] {
                let refusal = refusal(&service, put("/doc/1", token)).await;
                assert_eq!((refusal.status, refusal.name), (503, name));
                assert_eq!(refusal.headers["retry-after"], "1");
                let document = refusal.document.to_string();
                assert!(!document.contains("db7") && !document.contains("secret"), "{document}");
                assert!(refusal.document.get("last_token").is_none());
            }
            assert_eq!(inner.calls(), 1, "i6: no store, no write");
        }
        store.set(None);
        assert_eq!(refused(&service, put("/doc/1", "4")).await, (412, "stale-token"));
        let stale = refusal(&service, put("/doc/1", "4")).await;
        assert!(!stale.headers.contains_key("retry-after"), "a stale token is final");
        inner.calls.store(0, Ordering::SeqCst);
        assert_eq!(status(&service, put("/doc/1", "5")).await, 200);
        assert_eq!(inner.calls(), 1);
        // The guard asks once and leaves retries to who knows what is worth them.
        assert_eq!(store.asked.load(Ordering::SeqCst), 8);
    }
}

/// A store that answers when the test says so.
#[derive(Debug, Default)]
struct Held(Mutex<Vec<oneshot::Receiver<Result<Verdict, MarksError>>>>);

impl Marks for Held {
    fn advance(&self, _: &Claim) -> Check {
        let answer = self.0.lock().unwrap().remove(0);
        Check::Pending(Box::pin(async move {
            answer.await.unwrap_or(Err(MarksError::new(MarksErrorKind::Unavailable)))
        }))
    }
}

/// i6: the inner service is called after the verdict and never before, and never for a request
/// whose client has gone.
#[tokio::test]
async fn i6_the_service_is_not_called_before_the_verdict_nor_after_a_hang_up() {
    let (yes, first) = oneshot::channel();
    let (late, second) = oneshot::channel();
    let inner = Plain::default();
    let mut service = fence(Held(Mutex::new(vec![first, second]))).layer(inner.clone());

    let call = service.ready().await.unwrap().call(put("/doc/1", "5"));
    let mut call = tokio_test_task(call);
    assert!(call.poll().is_pending());
    assert_eq!(inner.calls(), 0);
    yes.send(Ok(Verdict::Accepted)).unwrap();
    assert_eq!(call.0.await.unwrap().status(), 200);
    assert_eq!(inner.calls(), 1);

    let mut call = tokio_test_task(service.ready().await.unwrap().call(put("/doc/1", "6")));
    assert!(call.poll().is_pending());
    drop(call);
    assert!(late.send(Ok(Verdict::Accepted)).is_err(), "the check goes with the request");
    assert_eq!(inner.calls(), 1);
}

/// A future that can be polled once at a time.
struct Polled<F>(std::pin::Pin<Box<F>>);

fn tokio_test_task<F: Future>(future: F) -> Polled<F> {
    Polled(Box::pin(future))
}

impl<F: Future> Polled<F> {
    fn poll(&mut self) -> std::task::Poll<F::Output> {
        self.0.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
    }
}
