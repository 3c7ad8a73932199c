//! Tokens that cannot have been granted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use fencing::guard::FenceLayer;
use fencing::marks::{CachedMarks, Issuer, Marks, MemoryMarks, SeededMarks};
use fencing::{Resource, Token};
use tower::Layer;

use crate::support::{Plain, fence, get, put, refusal, refused, status};

/// Knows what was granted, and counts who asks.
#[derive(Clone, Default)]
struct Granted(Arc<Mutex<HashMap<String, i64>>>, Arc<AtomicUsize>, Arc<Mutex<bool>>);

impl Granted {
    fn up_to(resource: &str, token: i64) -> Self {
        let this = Self::default();
        this.set(resource, token);
        this
    }

    fn set(&self, resource: &str, token: i64) {
        self.0.lock().unwrap().insert(resource.to_owned(), token);
    }

    fn asked(&self) -> usize {
        self.1.load(Ordering::SeqCst)
    }

    fn issuer(&self) -> Issuer {
        let this = self.clone();
        Issuer::new(move |resource: Resource| {
            this.1.fetch_add(1, Ordering::SeqCst);
            let token = this.0.lock().unwrap().get(resource.as_str()).copied();
            let down = *this.2.lock().unwrap();
            async move {
                tokio::task::yield_now().await;
                if down {
                    return Err(std::io::Error::other("secret: db7 is down"));
                }
                Ok(token.and_then(|token| Token::new(token).ok()))
            }
        })
    }
}

/// One huge token must not shut every later holder out.
#[tokio::test]
async fn a_token_above_the_grants_is_implausible_and_raises_nothing() {
    let granted = Granted::up_to("1", 34);
    for deferred in [false, true] {
        let marks = Arc::new(MemoryMarks::ephemeral());
        let layer = fence(Arc::clone(&marks)).issued_by(granted.issuer());
        let layer = if deferred { layer.deferred() } else { layer };
        let inner = Plain::default();
        let service = layer.layer(inner.clone());
        for token in ["35", "9007199254740991", "9223372036854775807"] {
            for request in [put("/doc/1", token), get("/doc/1", token)] {
                let refusal = refusal(&service, request).await;
                assert_eq!((refusal.status, refusal.name), (403, "implausible-token"));
                assert_eq!(refusal.document["token"], token.parse::<i64>().unwrap());
                assert!(!refusal.headers.contains_key("retry-after"));
            }
        }
        assert_eq!(inner.calls(), 0);
        assert_eq!(marks.mark(&Resource::new("1").unwrap()), None, "the mark is where it was");
        assert_eq!(status(&service, get("/doc/1", "34")).await, 200);
        // A resource of which nothing was granted has no tokens at all.
        assert_eq!(refused(&service, put("/doc/2", "1")).await, (403, "implausible-token"));
    }
}

/// M5: the question is put after the request has come in, so that a grant of just now counts.
#[tokio::test]
async fn m5_a_token_granted_a_moment_ago_is_plausible() {
    let granted = Granted::up_to("1", 34);
    let service =
        fence(MemoryMarks::ephemeral()).issued_by(granted.issuer()).layer(Plain::default());
    for token in 34..60 {
        granted.set("1", token);
        assert_eq!(status(&service, put("/doc/1", &token.to_string())).await, 200);
        let next = (token + 1).to_string();
        assert_eq!(refused(&service, put("/doc/1", &next)).await.0, 403);
    }
}

/// The issuer is asked once for each new token, and not about those of zombies.
#[tokio::test]
async fn the_issuer_is_asked_once_for_a_token() {
    let granted = Granted::up_to("1", 34);
    let service = fence(CachedMarks::new(MemoryMarks::ephemeral()))
        .issued_by(granted.issuer())
        .layer(Plain::default());
    for _ in 0..100 {
        assert_eq!(status(&service, put("/doc/1", "34")).await, 200);
        assert_eq!(refused(&service, put("/doc/1", "33")).await, (412, "stale-token"));
    }
    assert_eq!(granted.asked(), 1);
    granted.set("1", 40);
    for token in ["36", "37", "38", "40"] {
        assert_eq!(status(&service, put("/doc/1", token)).await, 200);
    }
    assert_eq!(granted.asked(), 2, "36 was answered with 40");
}

/// Fail closed; and what is stale anyway is stale without asking.
#[tokio::test]
async fn i6_an_issuer_that_does_not_answer_is_503_for_a_new_token() {
    let granted = Granted::up_to("1", 34);
    let inner = Plain::default();
    let service = fence(MemoryMarks::ephemeral()).issued_by(granted.issuer()).layer(inner.clone());
    assert_eq!(status(&service, put("/doc/1", "34")).await, 200);
    *granted.2.lock().unwrap() = true;
    let refusal = refusal(&service, put("/doc/1", "35")).await;
    assert_eq!((refusal.status, refusal.name), (503, "fence-unavailable"));
    assert!(!refusal.document.to_string().contains("secret"));
    assert_eq!(refused(&service, put("/doc/1", "33")).await, (412, "stale-token"));
    assert_eq!(status(&service, put("/doc/1", "34")).await, 200);
    assert_eq!(inner.calls(), 2);
}

/// M6 and the default: marks that start from the issuer know it, and nothing need be said.
#[tokio::test]
async fn m6_seeded_marks_bring_their_issuer() {
    let granted = Granted::up_to("1", 34);
    let marks = SeededMarks::new(granted.issuer());
    let service = fence(marks.clone()).layer(Plain::default());
    assert_eq!(refused(&service, put("/doc/1", "35")).await, (403, "implausible-token"));
    assert_eq!(refused(&service, put("/doc/1", "33")).await, (412, "stale-token"));
    assert_eq!(status(&service, put("/doc/1", "34")).await, 200);
    // Behind a cache as well; and it can be told not to.
    let service = fence(CachedMarks::new(marks.clone())).layer(Plain::default());
    assert_eq!(refused(&service, put("/doc/1", "35")).await, (403, "implausible-token"));
    let service = fence(marks).issued_elsewhere().layer(Plain::default());
    assert_eq!(status(&service, put("/doc/1", "35")).await, 200);
}

/// M12: what the issuer never grants is implausible by the same rule.
#[tokio::test]
async fn m12_a_token_above_the_range_of_the_issuer_is_implausible() {
    let granted = Granted::up_to("1", Token::MAX_GRANTED.get());
    let service =
        fence(MemoryMarks::ephemeral()).issued_by(granted.issuer()).layer(Plain::default());
    let above = (Token::MAX_GRANTED.get() + 1).to_string();
    assert_eq!(refused(&service, put("/doc/1", &above)).await, (403, "implausible-token"));
    let last = Token::MAX_GRANTED.to_string();
    assert_eq!(status(&service, put("/doc/1", &last)).await, 200);
}

/// M5: the limit counts from the mark. A first claim without a floor may have any token, and nothing
/// is limited unless asked for: zxids jump.
#[tokio::test]
async fn m5_a_jump_limit_counts_from_the_mark() {
    let marks = Arc::new(MemoryMarks::ephemeral());
    let unlimited = fence(Arc::clone(&marks)).layer(Plain::default());
    let service = fence(Arc::clone(&marks)).max_jump(1000).layer(Plain::default());
    assert_eq!(status(&service, put("/doc/1", "5000000000")).await, 200, "the first");
    assert_eq!(refused(&service, put("/doc/1", "5000001001")).await, (403, "implausible-token"));
    assert_eq!(refused(&service, get("/doc/1", "5000001001")).await, (403, "implausible-token"));
    assert_eq!(marks.mark(&Resource::new("1").unwrap()), Token::new(5_000_000_000).ok());
    assert_eq!(status(&service, put("/doc/1", "5000001000")).await, 200);
    // From the new mark it is another thousand.
    assert_eq!(status(&service, put("/doc/1", "5000002000")).await, 200);
    assert_eq!(refused(&service, put("/doc/1", "4999999999")).await, (412, "stale-token"));
    assert_eq!(status(&unlimited, put("/doc/1", "9223372036854775807")).await, 200);
}

/// A limit has no say where the grants are known.
#[tokio::test]
async fn grants_that_are_known_may_jump() {
    let granted = Granted::up_to("1", 34);
    let marks: Arc<dyn Marks> = Arc::new(MemoryMarks::ephemeral());
    let layer: FenceLayer = fence(marks).max_jump(1).issued_by(granted.issuer());
    let service = layer.layer(Plain::default());
    assert_eq!(status(&service, put("/doc/1", "1")).await, 200);
    assert_eq!(status(&service, put("/doc/1", "34")).await, 200);
    assert_eq!(refused(&service, put("/doc/1", "35")).await, (403, "implausible-token"));
}

/// M4: to report is not to raise what is not plausible.
#[tokio::test]
async fn m4_report_only_raises_plausible_marks_and_refuses_nothing() {
    let granted = Granted::up_to("1", 34);
    let marks = Arc::new(MemoryMarks::ephemeral());
    let inner = Plain::default();
    let service = fence(Arc::clone(&marks))
        .issued_by(granted.issuer())
        .report_only(true)
        .layer(inner.clone());
    for (uri, token) in [
        ("/doc/1", "34"),
        ("/doc/1", "33"),
        ("/doc/1", "9000"),
        ("/doc/1", "+5"),
        ("/doc/1", ""),
        ("/doc/%00", "34"),
    ] {
        let response = crate::support::send(&service, put(uri, token)).await;
        assert_eq!(response.status(), 200, "{token}");
        // Only what would have been accepted says so.
        let echoed = response.headers().contains_key(crate::support::TOKEN);
        assert_eq!(echoed, token == "34" && uri == "/doc/1", "{token}");
    }
    assert_eq!(inner.calls(), 6);
    assert_eq!(marks.mark(&Resource::new("1").unwrap()), Token::new(34).ok());
}
