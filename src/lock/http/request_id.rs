use std::fmt;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http::header::{CACHE_CONTROL, HeaderName};
use http::request::Parts;
use http::{HeaderMap, HeaderValue};

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MAX_LEN: usize = 128;

/// What ties the answer and the log lines of a request together.
#[derive(Clone, Debug)]
pub(super) struct RequestId(HeaderValue);

impl RequestId {
    /// The one that [`attach`] put into the request.
    pub(super) fn of(parts: &Parts) -> Self {
        parts.extensions.get().cloned().unwrap_or_else(Self::make)
    }

    /// Takes the caller's where it is one header of visible ASCII; it goes into logs as it is.
    fn take(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(X_REQUEST_ID).iter();
        let (Some(value), None) = (values.next(), values.next()) else { return None };
        let sane = (1..=MAX_LEN).contains(&value.len())
            && value.as_bytes().iter().all(u8::is_ascii_graphic);
        sane.then(|| Self(value.clone()))
    }

    fn make() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let mut text = String::with_capacity(32);
        let mut bytes = [0; 16];
        // Without randomness a number is still better than no answer: this is no secret.
        match getrandom::fill(&mut bytes) {
            Ok(()) => bytes.iter().for_each(|byte| {
                let _ = write!(text, "{byte:02x}");
            }),
            Err(_) => {
                let _ = write!(text, "{:016x}", COUNT.fetch_add(1, Ordering::Relaxed));
            }
        }
        Self(HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("none")))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.to_str().unwrap_or_default())
    }
}

/// Takes or makes the id of a request, and sends it back with every answer. What a lock's state is
/// may be out of date a moment later, so no answer is to be cached.
pub(super) async fn attach(mut request: Request, next: Next) -> Response {
    let id = RequestId::take(request.headers()).unwrap_or_else(RequestId::make);
    request.extensions_mut().insert(id.clone());
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(X_REQUEST_ID, id.0);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
