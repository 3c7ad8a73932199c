use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use serde::Serialize;

use crate::lock::api::{AcquireAnswer, False, LockView, TokenView, True};
use crate::lock::{Held, OwnerToken};
use crate::problem::retry_after_seconds;
use crate::{Resource, Token};

/// A holder may release long before its grant ends, so nobody is sent away for longer.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(5);

pub(super) fn acquired(
    resource: &Resource,
    held: &Held,
    secret: OwnerToken,
    waited: Duration,
) -> Response {
    let lock = LockView { owner_token: Some(secret), ..view(resource, held) };
    json(&AcquireAnswer::Acquired { acquired: True, lock, waited_ms: millis(waited) })
}

/// Another holds it for `remaining`.
pub(super) fn held(resource: &Resource, remaining: Duration) -> Response {
    let after = remaining.clamp(Duration::from_millis(1), MAX_RETRY_AFTER);
    let mut response = json(&AcquireAnswer::Held {
        acquired: False,
        resource: resource.clone(),
        retry_after_ms: millis(after),
    });
    response.headers_mut().insert(RETRY_AFTER, retry_after_seconds(after));
    response
}

pub(super) fn lock(resource: &Resource, held: &Held) -> Response {
    json(&view(resource, held))
}

pub(super) fn token(resource: &Resource, token: Token) -> Response {
    json(&TokenView { resource: resource.clone(), token })
}

pub(super) fn no_content() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

fn view(resource: &Resource, held: &Held) -> LockView {
    LockView {
        resource: resource.clone(),
        owner: held.grant.owner.clone(),
        token: held.token,
        acquired_at: rfc3339(held.grant.acquired_at),
        expires_at: rfc3339(held.grant.expires_at),
        // A live grant has at least a millisecond left.
        remaining_ms: millis(held.grant.remaining(held.now)).max(1),
        owner_token: None,
    }
}

fn json(answer: &impl Serialize) -> Response {
    // Structs of text and integers cannot fail to serialize.
    let mut response = Response::new(Body::from(serde_json::to_vec(answer).unwrap_or_default()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Whole milliseconds, rounded down.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// RFC 3339 in UTC with milliseconds; a time beyond the year 9999 is shown as the last that fits.
fn rfc3339(epoch_ms: i64) -> String {
    let time = jiff::Timestamp::from_millisecond(epoch_ms).unwrap_or(if epoch_ms < 0 {
        jiff::Timestamp::MIN
    } else {
        jiff::Timestamp::MAX
    });
    format!("{time:.3}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339_in_utc_with_milliseconds() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(1_700_000_000_120), "2023-11-14T22:13:20.120Z");
        assert!(rfc3339(i64::MAX).starts_with("9999-"));
        assert!(rfc3339(i64::MIN).starts_with("-009999-"));
    }
}
