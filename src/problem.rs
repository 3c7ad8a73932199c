mod grpc;

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::{Claim, InvalidResource, InvalidToken, Resource, Token};

/// The kind of a [`Problem`]: its name, its HTTP and gRPC status and a title for people.
///
/// The name goes on the wire as `urn:fencing:problem:NAME`, the `type` of RFC 9457. Two kinds are
/// equal when their names are.
///
/// An application may name kinds of its own:
///
/// ```
/// use fencing::{Problem, ProblemKind};
/// use http::StatusCode;
///
/// const NOT_ENOUGH: ProblemKind =
///     ProblemKind::new("not-enough", StatusCode::CONFLICT, "Not enough in stock");
/// let problem = Problem::new(NOT_ENOUGH).with_detail("3 wanted, 2 there");
/// assert_eq!(problem.status(), StatusCode::CONFLICT);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ProblemKind {
    name: &'static str,
    status: StatusCode,
    title: &'static str,
    grpc_code: u8,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $konst:ident = $name:literal, $status:ident, $title:literal $(, grpc $grpc:ident)?;)+) => {
        impl ProblemKind {
            $($(#[$doc])* pub const $konst: Self =
                Self::new($name, StatusCode::$status, $title)$(.with_grpc_code(grpc::$grpc))?;)+

            #[cfg(test)]
            const ALL: &'static [Self] = &[$(Self::$konst),+];
        }
    };
}

kinds! {
    /// An unsafe request carries no token.
    MISSING_TOKEN = "missing-token", PRECONDITION_REQUIRED, "The request carries no fencing token";
    /// The token header is doubled or is no token.
    MALFORMED_TOKEN = "malformed-token", BAD_REQUEST, "The fencing token is malformed";
    /// The request or path does not name a resource.
    INVALID_RESOURCE = "invalid-resource", BAD_REQUEST, "The request names no valid resource";
    /// The token is below the mark. Terminal: a retry cannot succeed, the lease is lost.
    STALE_TOKEN = "stale-token", PRECONDITION_FAILED, "The resource has accepted a higher fencing token";
    /// The token is above every token that can have been granted.
    IMPLAUSIBLE_TOKEN = "implausible-token", FORBIDDEN, "The fencing token cannot have been granted";
    /// The store of marks did not answer. Nothing was applied.
    FENCE_UNAVAILABLE = "fence-unavailable", SERVICE_UNAVAILABLE, "The fence cannot be checked at the moment";
    /// Others were in the way for too long. Nothing was applied; a retry may succeed.
    CONTENDED = "contended", SERVICE_UNAVAILABLE, "The resource is contended", grpc ABORTED;
    /// A write was sent and no verdict came back: it may or may not have been applied.
    OUTCOME_UNKNOWN = "outcome-unknown", INTERNAL_SERVER_ERROR, "It is not known whether the write was applied", grpc UNKNOWN;
    /// A part of the request was committed before its token turned out to be stale.
    PARTLY_APPLIED = "partly-applied", INTERNAL_SERVER_ERROR, "A part of the request was applied before its token became stale", grpc UNKNOWN;
    /// The fence is wired wrongly into the service.
    MISCONFIGURED = "misconfigured", INTERNAL_SERVER_ERROR, "The fence of this service is misconfigured";
    /// The protected write failed for a reason of its own. Nothing was applied.
    WRITE_FAILED = "write-failed", INTERNAL_SERVER_ERROR, "The write failed";

    /// The body is not the JSON object it must be.
    MALFORMED_BODY = "malformed-body", BAD_REQUEST, "The body is malformed";
    /// The key is missing or unknown.
    UNAUTHENTICATED = "unauthenticated", UNAUTHORIZED, "A valid key is required";
    /// The key does not reach that far.
    FORBIDDEN = "forbidden", FORBIDDEN, "The key does not allow this";
    /// The lock is held under another owner token.
    NOT_YOURS = "not-yours", FORBIDDEN, "The lock is held by another";
    /// Nobody holds the lock.
    NOT_HELD = "not-held", NOT_FOUND, "The lock is not held";
    /// The owner token had its grant already.
    SPENT_OWNER_TOKEN = "spent-owner-token", CONFLICT, "The owner token was used for a grant that has ended";
    /// The body is longer than the endpoint reads.
    TOO_LARGE = "too-large", PAYLOAD_TOO_LARGE, "The body is too large";
    /// The body is not declared as JSON.
    UNSUPPORTED_MEDIA_TYPE = "unsupported-media-type", UNSUPPORTED_MEDIA_TYPE, "The body must be application/json";
    /// A field of the body, named in `field`, is missing, of a wrong type or out of range.
    INVALID_FIELD = "invalid-field", UNPROCESSABLE_ENTITY, "A field of the body is invalid";
    /// The store of locks did not answer.
    LOCK_UNAVAILABLE = "lock-unavailable", SERVICE_UNAVAILABLE, "The lock service is unavailable at the moment";
    /// More requests are waiting than the endpoint takes.
    OVERLOADED = "overloaded", SERVICE_UNAVAILABLE, "The lock service is overloaded";
}

impl ProblemKind {
    /// A kind of problem. `name` is in kebab-case; `title` does not change from one occurrence to
    /// another (RFC 9457, section 3.1.3).
    #[must_use]
    pub const fn new(name: &'static str, status: StatusCode, title: &'static str) -> Self {
        Self { name, status, title, grpc_code: grpc::code_of(status) }
    }

    /// The same with another gRPC status code than the one its HTTP status suggests.
    #[must_use]
    pub const fn with_grpc_code(mut self, code: u8) -> Self {
        self.grpc_code = code;
        self
    }

    /// The name, the last part of `urn:fencing:problem:NAME`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// The HTTP status it is answered with.
    #[must_use]
    pub const fn status(self) -> StatusCode {
        self.status
    }

    /// The number of the gRPC status code it is answered with: 9 is `FAILED_PRECONDITION`.
    #[must_use]
    pub const fn grpc_code(self) -> u8 {
        self.grpc_code
    }
}

impl PartialEq for ProblemKind {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for ProblemKind {}

/// Why a request was not served: a problem document (RFC 9457) and the typed reason behind it.
///
/// Every refusal of this crate is one. The response that carries it has the problem in its
/// [extensions](http::Extensions) too, so that an outer layer can look at the reason and answer in
/// its own words. It never carries the text of a database error.
///
/// ```
/// use fencing::{Problem, ProblemKind};
///
/// let problem = Problem::new(ProblemKind::MISSING_TOKEN);
/// let response: http::Response<bytes::Bytes> = problem.into_http();
/// assert_eq!(response.status(), 428);
/// assert_eq!(response.extensions().get::<Problem>().unwrap().kind(), ProblemKind::MISSING_TOKEN);
/// ```
#[derive(Clone, Debug)]
pub struct Problem(Box<Parts>);

#[derive(Clone, Debug)]
struct Parts {
    kind: ProblemKind,
    detail: Option<Cow<'static, str>>,
    resource: Option<Resource>,
    token: Option<Token>,
    last_token: Option<Token>,
    field: Option<&'static str>,
    retry_after: Option<Duration>,
}

impl Problem {
    /// The media type of a problem document.
    pub const MEDIA_TYPE: &'static str = "application/problem+json";
    /// What stands before the name of a kind in `type`.
    pub const TYPE_PREFIX: &'static str = "urn:fencing:problem:";

    /// A problem of a kind. The kinds answered with 503 get a `Retry-After` of one second.
    #[must_use]
    pub fn new(kind: ProblemKind) -> Self {
        let retry_after =
            (kind.status == StatusCode::SERVICE_UNAVAILABLE).then_some(Duration::from_secs(1));
        Self(Box::new(Parts {
            kind,
            detail: None,
            resource: None,
            token: None,
            last_token: None,
            field: None,
            retry_after,
        }))
    }

    /// A [`STALE_TOKEN`](ProblemKind::STALE_TOKEN) problem: `claim` against the mark `last_token`.
    #[must_use]
    pub fn stale(claim: &Claim, last_token: Token) -> Self {
        let mut problem = Self::new(ProblemKind::STALE_TOKEN).with_claim(claim);
        problem.0.last_token = Some(last_token);
        problem
    }

    /// An [`INVALID_FIELD`](ProblemKind::INVALID_FIELD) problem.
    #[must_use]
    pub fn invalid_field(field: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        let mut problem = Self::new(ProblemKind::INVALID_FIELD).with_detail(detail);
        problem.0.field = Some(field);
        problem
    }

    /// Says what happened this time, and what to do about it.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        self.0.detail = Some(detail.into());
        self
    }

    /// Names the resource and token it is about.
    #[must_use]
    pub fn with_claim(mut self, claim: &Claim) -> Self {
        self.0.token = Some(claim.token());
        self.with_resource(claim.resource())
    }

    /// Names the resource it is about.
    #[must_use]
    pub fn with_resource(mut self, resource: &Resource) -> Self {
        self.0.resource = Some(resource.clone());
        self
    }

    /// Sets when a retry makes sense, sent as `Retry-After` in whole seconds, rounded up.
    #[must_use]
    pub fn with_retry_after(mut self, after: Duration) -> Self {
        self.0.retry_after = Some(after);
        self
    }

    /// Takes the mark out of the answer, where callers may not know the tokens of others.
    #[must_use]
    pub fn without_last_token(mut self) -> Self {
        self.0.last_token = None;
        self
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> ProblemKind {
        self.0.kind
    }

    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.0.kind.status
    }

    /// What happened this time.
    #[must_use]
    pub fn detail(&self) -> Option<&str> {
        self.0.detail.as_deref()
    }

    /// The resource it is about.
    #[must_use]
    pub fn resource(&self) -> Option<&Resource> {
        self.0.resource.as_ref()
    }

    /// The token that was offered.
    #[must_use]
    pub fn token(&self) -> Option<Token> {
        self.0.token
    }

    /// The mark the token was held against, for a stale token.
    #[must_use]
    pub fn last_token(&self) -> Option<Token> {
        self.0.last_token
    }

    /// The field of the body it is about.
    #[must_use]
    pub fn field(&self) -> Option<&'static str> {
        self.0.field
    }

    /// The document as JSON.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        // A map with text keys, text and integers cannot fail to serialize.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The response that carries the problem: status, `application/problem+json`,
    /// `Cache-Control: no-store`, `Retry-After` where there is one.
    #[must_use]
    pub fn into_http<B: From<Bytes>>(self) -> Response<B> {
        let body = B::from(Bytes::from(self.to_json()));
        let mut response = self.into_head(body);
        let media_type = HeaderValue::from_static(Self::MEDIA_TYPE);
        response.headers_mut().insert(CONTENT_TYPE, media_type);
        response
    }

    /// All of the response but what says how its body is to be read.
    pub(crate) fn into_head<B>(self, body: B) -> Response<B> {
        let mut response = Response::new(body);
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(after) = self.0.retry_after {
            headers.insert(RETRY_AFTER, retry_after_seconds(after));
        }
        // RFC 9110, section 15.5.2: a 401 tells how to authenticate.
        if self.status() == StatusCode::UNAUTHORIZED {
            let bearer = HeaderValue::from_static("Bearer realm=\"fencing\"");
            headers.insert(WWW_AUTHENTICATE, bearer);
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// A duration as the value of `Retry-After`: whole seconds, rounded up.
pub(crate) fn retry_after_seconds(after: Duration) -> HeaderValue {
    HeaderValue::from(after.as_secs().saturating_add(u64::from(after.subsec_nanos() > 0)))
}

impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let parts = &*self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", &format_args!("{}{}", Self::TYPE_PREFIX, parts.kind.name))?;
        map.serialize_entry("title", parts.kind.title)?;
        map.serialize_entry("status", &parts.kind.status.as_u16())?;
        if let Some(detail) = &parts.detail {
            map.serialize_entry("detail", detail)?;
        }
        if let Some(resource) = &parts.resource {
            map.serialize_entry("resource", resource.as_str())?;
        }
        if let Some(token) = parts.token {
            map.serialize_entry("token", &token)?;
        }
        if let Some(last_token) = parts.last_token {
            map.serialize_entry("last_token", &last_token)?;
        }
        if let Some(field) = parts.field {
            map.serialize_entry("field", field)?;
        }
        map.end()
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = &*self.0;
        write!(f, "{}: {}", parts.kind.name, parts.detail.as_deref().unwrap_or(parts.kind.title))?;
        if let Some(resource) = &parts.resource {
            write!(f, ", resource=`{resource}`")?;
        }
        if let Some(token) = parts.token {
            write!(f, ", token=`{token}`")?;
        }
        if let Some(last_token) = parts.last_token {
            write!(f, ", last_token=`{last_token}`")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problem {}

impl From<InvalidToken> for Problem {
    fn from(invalid: InvalidToken) -> Self {
        Self::new(ProblemKind::MALFORMED_TOKEN).with_detail(invalid.to_string())
    }
}

impl From<InvalidResource> for Problem {
    fn from(invalid: InvalidResource) -> Self {
        Self::new(ProblemKind::INVALID_RESOURCE).with_detail(invalid.to_string())
    }
}

#[cfg(feature = "axum")]
impl axum::response::IntoResponse for Problem {
    fn into_response(self) -> axum::response::Response {
        self.into_http()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_kebab_case() {
        let mut names: Vec<_> = ProblemKind::ALL.iter().map(|kind| kind.name).collect();
        assert!(names.iter().all(|n| n.bytes().all(|b| b.is_ascii_lowercase() || b == b'-')));
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn a_stale_problem_is_the_document_of_the_contract() {
        let claim = Claim::new(Resource::new("inventory:item:1").unwrap(), Token::new(33).unwrap());
        let response: Response<Bytes> = Problem::stale(&claim, Token::new(34).unwrap()).into_http();
        assert_eq!(response.status(), 412);
        assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
        assert_eq!(response.headers()[CACHE_CONTROL], "no-store");
        assert!(!response.headers().contains_key(RETRY_AFTER));
        let body: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(
            body,
            serde_json::json!({
                "type": "urn:fencing:problem:stale-token",
                "title": "The resource has accepted a higher fencing token",
                "status": 412, "resource": "inventory:item:1", "token": 33, "last_token": 34,
            })
        );
        let problem = Problem::stale(&claim, Token::new(34).unwrap()).without_last_token();
        assert!(!String::from_utf8(problem.to_json()).unwrap().contains("34"));
    }

    #[test]
    fn only_what_may_be_retried_says_when() {
        for kind in ProblemKind::ALL {
            let response: Response<Bytes> = Problem::new(*kind).into_http();
            let retryable = response.status() == StatusCode::SERVICE_UNAVAILABLE;
            assert_eq!(response.headers().contains_key(RETRY_AFTER), retryable, "{}", kind.name);
        }
        assert_eq!(retry_after_seconds(Duration::from_millis(1001)), "2");
    }
}
