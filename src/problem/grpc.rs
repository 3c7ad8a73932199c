//! A problem as gRPC tells it: a response of trailers only.
//!
//! The names and numbers of the codes, the encoding of `grpc-message` and the form of the response
//! are those of "gRPC over HTTP2" (`PROTOCOL-HTTP2.md`, `statuscodes.md`), the pushback that of
//! gRFC A6.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::Problem;

pub(super) const UNKNOWN: u8 = 2;
const INVALID_ARGUMENT: u8 = 3;
const DEADLINE_EXCEEDED: u8 = 4;
const NOT_FOUND: u8 = 5;
const PERMISSION_DENIED: u8 = 7;
const RESOURCE_EXHAUSTED: u8 = 8;
const FAILED_PRECONDITION: u8 = 9;
pub(super) const ABORTED: u8 = 10;
const UNIMPLEMENTED: u8 = 12;
const INTERNAL: u8 = 13;
const UNAVAILABLE: u8 = 14;
const UNAUTHENTICATED: u8 = 16;

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
const PROBLEM: HeaderName = HeaderName::from_static("fencing-problem");
const LAST_TOKEN: HeaderName = HeaderName::from_static("fencing-last-token");

/// What `grpc-message` may not have in it as it is, besides what is no ASCII.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

/// Clients give all metadata of a response 8 KiB, and encoded a byte may take three.
const LONGEST_MESSAGE: usize = 1024;

/// The code whose description fits an answer of this HTTP status.
pub(super) const fn code_of(status: StatusCode) -> u8 {
    match status.as_u16() {
        401 => UNAUTHENTICATED,
        403 => PERMISSION_DENIED,
        404 => NOT_FOUND,
        409 => ABORTED,
        412 => FAILED_PRECONDITION,
        429 => RESOURCE_EXHAUSTED,
        400..500 => INVALID_ARGUMENT,
        501 => UNIMPLEMENTED,
        503 => UNAVAILABLE,
        504 => DEADLINE_EXCEEDED,
        500..600 => INTERNAL,
        _ => UNKNOWN,
    }
}

impl Problem {
    /// The problem as the trailers of a gRPC response:
    ///
    /// | key | value |
    /// |---|---|
    /// | `grpc-status` | [`grpc_code`](super::ProblemKind::grpc_code) of its kind |
    /// | `grpc-message` | the text of the problem, percent-encoded |
    /// | `fencing-problem` | the name of its kind: `stale-token` |
    /// | `fencing-last-token` | the mark, where it is told |
    /// | `grpc-retry-pushback-ms` | what `Retry-After` is, in milliseconds; `-1` where a retry cannot succeed or may do harm, which keeps clients with a retry policy from it |
    ///
    /// A handler of tonic makes its error of them, also of an error of [`sql`](crate#the-parts):
    ///
    /// ```
    /// use fencing::{Problem, ProblemKind};
    /// use tonic::{Code, Status};
    ///
    /// fn status(problem: impl Into<Problem>) -> Status {
    ///     Status::from_header_map(&problem.into().to_grpc_trailers())
    ///         .unwrap_or_else(|| Status::unknown("a problem has a status"))
    /// }
    ///
    /// let status = status(Problem::new(ProblemKind::CONTENDED));
    /// assert_eq!(status.code(), Code::Aborted);
    /// assert_eq!(status.metadata().get("fencing-problem").unwrap(), "contended");
    /// assert_eq!(status.metadata().get("grpc-retry-pushback-ms").unwrap(), "1000");
    /// ```
    #[must_use]
    pub fn to_grpc_trailers(&self) -> HeaderMap {
        let parts = &*self.0;
        let mut trailers = HeaderMap::with_capacity(8);
        trailers.insert(STATUS, HeaderValue::from(u16::from(parts.kind.grpc_code)));
        let mut message = self.to_string();
        message.truncate(message.floor_char_boundary(LONGEST_MESSAGE));
        let message = utf8_percent_encode(&message, ESCAPED).to_string();
        // Both are visible ASCII by what made them, or by the contract of a kind's name.
        if let Ok(message) = HeaderValue::try_from(message) {
            trailers.insert(MESSAGE, message);
        }
        if let Ok(name) = HeaderValue::from_str(parts.kind.name) {
            trailers.insert(PROBLEM, name);
        }
        if let Some(last_token) = parts.last_token {
            trailers.insert(LAST_TOKEN, HeaderValue::from(last_token));
        }
        let pushback = parts.retry_after.map_or(HeaderValue::from_static("-1"), |after| {
            // The largest number a client must be able to read is that of an i32: gRFC A6 says
            // "an integer", and all known clients parse at least that.
            let ms = u32::try_from(after.as_millis()).unwrap_or(u32::MAX).min(i32::MAX as u32);
            HeaderValue::from(ms)
        });
        trailers.insert(PUSHBACK, pushback);
        trailers
    }

    /// The response that carries the problem to a gRPC client: HTTP 200, `application/grpc`,
    /// [the trailers](Self::to_grpc_trailers) as headers, and no body ("trailers-only").
    ///
    /// `B::default()` must be an empty body that knows that it has ended, as it is of every
    /// common type.
    ///
    /// ```
    /// use fencing::{Problem, ProblemKind};
    ///
    /// let problem = Problem::new(ProblemKind::MISSING_TOKEN);
    /// let response: http::Response<tonic::body::Body> = problem.into_grpc();
    /// assert_eq!(response.status(), 200);
    /// assert_eq!(response.headers()["grpc-status"], "3");
    /// ```
    #[must_use]
    pub fn into_grpc<B: Default>(self) -> Response<B> {
        self.into_trailers_only(B::default(), HeaderValue::from_static("application/grpc"))
    }

    /// As [`into_grpc`](Self::into_grpc), with a body that is empty.
    pub(crate) fn into_trailers_only<B>(self, empty: B, media_type: HeaderValue) -> Response<B> {
        let mut response = Response::new(empty);
        *response.headers_mut() = self.to_grpc_trailers();
        response.headers_mut().insert(CONTENT_TYPE, media_type);
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tonic::{Code, Status};

    use super::super::ProblemKind;
    use super::*;
    use crate::{Claim, Resource, Token};

    fn stale(resource: &str) -> Problem {
        let claim = Claim::new(Resource::new(resource).unwrap(), Token::new(33).unwrap());
        Problem::stale(&claim, Token::new(34).unwrap())
    }

    #[test]
    fn the_codes_of_the_contract() {
        for (kind, code) in [
            (ProblemKind::MISSING_TOKEN, Code::InvalidArgument),
            (ProblemKind::MALFORMED_TOKEN, Code::InvalidArgument),
            (ProblemKind::INVALID_RESOURCE, Code::InvalidArgument),
            (ProblemKind::STALE_TOKEN, Code::FailedPrecondition),
            (ProblemKind::IMPLAUSIBLE_TOKEN, Code::PermissionDenied),
            (ProblemKind::FENCE_UNAVAILABLE, Code::Unavailable),
            (ProblemKind::CONTENDED, Code::Aborted),
            (ProblemKind::OUTCOME_UNKNOWN, Code::Unknown),
            (ProblemKind::PARTLY_APPLIED, Code::Unknown),
            (ProblemKind::MISCONFIGURED, Code::Internal),
            (ProblemKind::WRITE_FAILED, Code::Internal),
        ] {
            assert_eq!(Code::from(i32::from(kind.grpc_code())), code, "{}", kind.name());
        }
        // None is OK, and none is a number that gRPC does not have.
        for kind in ProblemKind::ALL {
            assert!((1..=16).contains(&kind.grpc_code()), "{}", kind.name());
        }
        let own = ProblemKind::new("busy", StatusCode::CONFLICT, "Busy");
        assert_eq!(own.grpc_code(), 10);
        assert_eq!(own.with_grpc_code(8).grpc_code(), 8);
    }

    #[test]
    fn a_client_reads_the_problem_out_of_the_trailers() {
        let problem = stale("inventory:größe 100%\u{1F512}");
        let status = Status::from_header_map(&problem.to_grpc_trailers()).unwrap();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert_eq!(status.message(), problem.to_string());
        assert_eq!(status.metadata().get("fencing-problem").unwrap(), "stale-token");
        assert_eq!(status.metadata().get("fencing-last-token").unwrap(), "34");
        let hidden = problem.without_last_token().to_grpc_trailers();
        assert!(!hidden.contains_key("fencing-last-token"));
        assert!(!hidden["grpc-message"].to_str().unwrap().contains("34"));
    }

    #[test]
    fn the_message_is_visible_ascii_and_not_too_long() {
        for detail in ["\0\r\n\t\u{7f}%~ é", "%41", &"é".repeat(5000), &"%".repeat(5000), ""] {
            let problem = Problem::new(ProblemKind::CONTENDED).with_detail(detail.to_owned());
            let message = problem.to_grpc_trailers()["grpc-message"].clone();
            assert!(message.len() <= 3 * LONGEST_MESSAGE);
            assert!(message.as_bytes().iter().all(|b| (0x20..=0x7e).contains(b)), "{message:?}");
            let status = Status::from_header_map(&problem.to_grpc_trailers()).unwrap();
            assert!(problem.to_string().starts_with(status.message()), "{message:?}");
            assert!(status.message().len() >= problem.to_string().len().min(LONGEST_MESSAGE - 1));
        }
    }

    /// Case 13: who has a retry policy is told not to retry what cannot succeed, or may be applied
    /// twice.
    #[test]
    fn only_what_may_be_retried_is_not_pushed_back() {
        for kind in ProblemKind::ALL {
            let trailers = Problem::new(*kind).to_grpc_trailers();
            let retryable = kind.status() == StatusCode::SERVICE_UNAVAILABLE;
            let expected = if retryable { "1000" } else { "-1" };
            assert_eq!(trailers["grpc-retry-pushback-ms"], expected, "{}", kind.name());
        }
        let long = Problem::new(ProblemKind::CONTENDED).with_retry_after(std::time::Duration::MAX);
        assert_eq!(long.to_grpc_trailers()["grpc-retry-pushback-ms"], "2147483647");
    }

    #[test]
    fn the_response_has_no_body_and_the_typed_reason() {
        let response: Response<http_body_util::Full<Bytes>> = stale("r").into_grpc();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "application/grpc");
        assert_eq!(response.headers()["grpc-status"], "9");
        assert!(http_body::Body::is_end_stream(response.body()));
        let problem = response.extensions().get::<Problem>().unwrap();
        assert_eq!(problem.last_token(), Token::new(34).ok());
    }
}
