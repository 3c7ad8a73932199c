//! Bodies, checked by hand: each field by the text it has in the JSON, so that `"30"`, `60.5` and
//! `1e3` are told from integers, and a refusal names its field.

use std::borrow::Cow;
use std::error::Error as _;
use std::time::Duration;

use axum::body::{Body, Bytes};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http_body_util::LengthLimitError;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::lock::OwnerToken;
use crate::lock::api::{MAX_BODY_LEN, MAX_OWNER_LEN, MAX_WAIT, OWNER_TOKEN_HEADER};
use crate::{Problem, ProblemKind};

/// How long a body may take to arrive, so that clients who dribble do not pile up.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// The known fields of a body. Unknown ones are ignored, `null` is as good as absent; the derived
/// code refuses a known key that comes twice.
#[derive(Deserialize)]
pub(super) struct Fields {
    owner: Option<Box<RawValue>>,
    ttl_seconds: Option<Box<RawValue>>,
    ttl_ms: Option<Box<RawValue>>,
    wait_ms: Option<Box<RawValue>>,
    max_hold_ms: Option<Box<RawValue>>,
    owner_token: Option<Box<RawValue>>,
}

impl Fields {
    /// Reads and parses a body that must be there.
    pub(super) async fn read(parts: &Parts, body: Body) -> Result<Self, Problem> {
        // The type is checked first: a body of another type need not be read at all.
        check_content_type(parts)?;
        Self::parse(&read(parts, body).await?)
    }

    fn parse(body: &[u8]) -> Result<Self, Problem> {
        let malformed = |detail: Cow<'static, str>| {
            Problem::new(ProblemKind::MALFORMED_BODY).with_detail(detail)
        };
        let text = std::str::from_utf8(body).map_err(|_| malformed("JSON is UTF-8".into()))?;
        // The derived code would take an array as well.
        if !text.trim_start_matches([' ', '\t', '\n', '\r']).starts_with('{') {
            return Err(malformed("the body must be a JSON object".into()));
        }
        // What serde says quotes no more than names of fields.
        serde_json::from_str(text).map_err(|error| malformed(error.to_string().into()))
    }

    /// The label: not blank, no control characters, bounded.
    pub(super) fn owner(&self) -> Result<String, Problem> {
        let invalid = |detail| Problem::invalid_field("owner", detail);
        let raw = self.owner.as_deref().ok_or_else(|| invalid("an owner is needed"))?;
        let owner = text(raw).ok_or_else(|| invalid("the owner must be a string"))?;
        if owner.trim().is_empty() {
            Err(invalid("the owner must not be blank"))
        } else if owner.len() > MAX_OWNER_LEN {
            Err(invalid("the owner must be at most 255 bytes long"))
        } else if owner.chars().any(char::is_control) {
            Err(invalid("the owner must not have control characters"))
        } else {
            Ok(owner)
        }
    }

    /// The TTL, from 1 ms to `max`.
    pub(super) fn ttl(&self, max: Duration) -> Result<Duration, Problem> {
        let (field, raw, factor) = match (self.ttl_seconds.as_deref(), self.ttl_ms.as_deref()) {
            (Some(raw), None) => ("ttl_seconds", raw, 1000),
            (None, Some(raw)) => ("ttl_ms", raw, 1),
            (None, None) => {
                return Err(Problem::invalid_field(
                    "ttl_seconds",
                    "one of ttl_seconds and ttl_ms is needed",
                ));
            }
            (Some(_), Some(_)) => {
                return Err(Problem::invalid_field(
                    "ttl_ms",
                    "only one of ttl_seconds and ttl_ms may be given",
                ));
            }
        };
        let max_ms = super::answer::millis(max);
        integer(raw)
            .and_then(|value| value.checked_mul(factor))
            .filter(|ms| (1..=max_ms).contains(ms))
            .map(Duration::from_millis)
            .ok_or_else(|| {
                let unit = if factor == 1 { "milliseconds" } else { "seconds" };
                Problem::invalid_field(
                    field,
                    format!(
                        "the TTL must be an integer of {unit}, above 0 and at most {}",
                        max_ms / factor
                    ),
                )
            })
    }

    /// How long to wait; not at all where nothing is said.
    pub(super) fn wait(&self) -> Result<Duration, Problem> {
        let Some(raw) = self.wait_ms.as_deref() else { return Ok(Duration::ZERO) };
        let wait = integer(raw).map(Duration::from_millis).filter(|wait| *wait <= MAX_WAIT);
        wait.ok_or_else(|| {
            Problem::invalid_field("wait_ms", "the wait must be an integer from 0 to 60000")
        })
    }

    /// How long the grant may be held in all.
    pub(super) fn max_hold(&self) -> Result<Option<Duration>, Problem> {
        let Some(raw) = self.max_hold_ms.as_deref() else { return Ok(None) };
        let max_hold = integer(raw).filter(|ms| *ms > 0).map(Duration::from_millis);
        max_hold.map(Some).ok_or_else(|| {
            Problem::invalid_field("max_hold_ms", "the longest hold must be an integer above 0")
        })
    }

    /// The secret, where there is one.
    pub(super) fn owner_token(&self) -> Result<Option<OwnerToken>, Problem> {
        let Some(raw) = self.owner_token.as_deref() else { return Ok(None) };
        let token = text(raw).and_then(|text| text.parse().ok());
        token.map(Some).ok_or_else(invalid_owner_token)
    }
}

/// The secret of a `DELETE`: in a header, since proxies may strip its body, or in the body.
pub(super) async fn owner_token_of_release(
    parts: &Parts,
    body: Body,
) -> Result<Option<OwnerToken>, Problem> {
    let mut values = parts.headers.get_all(OWNER_TOKEN_HEADER).iter();
    let in_header: Option<OwnerToken> = match (values.next(), values.next()) {
        (None, _) => None,
        (Some(value), None) => {
            let token = value.to_str().ok().and_then(|text| text.parse().ok());
            Some(token.ok_or_else(invalid_owner_token)?)
        }
        (Some(_), Some(_)) => {
            let detail = "the header X-Lock-Owner-Token must not come twice";
            return Err(Problem::invalid_field("owner_token", detail));
        }
    };
    let body = read(parts, body).await?;
    if body.is_empty() {
        return Ok(in_header);
    }
    check_content_type(parts)?;
    let in_body = Fields::parse(&body)?.owner_token()?;
    match (in_header, in_body) {
        (Some(header), Some(body)) if header != body => Err(Problem::invalid_field(
            "owner_token",
            "the owner tokens in the header and in the body differ",
        )),
        (header, body) => Ok(header.or(body)),
    }
}

fn invalid_owner_token() -> Problem {
    Problem::invalid_field("owner_token", "an owner token is 16 to 128 visible ASCII characters")
}

async fn read(parts: &Parts, body: Body) -> Result<Bytes, Problem> {
    let too_large =
        || Problem::new(ProblemKind::TOO_LARGE).with_detail("a body may be at most 64 KiB long");
    // What says so itself need not be read.
    let declared = parts.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if declared.and_then(|length| length.parse::<u64>().ok()) > Some(MAX_BODY_LEN as u64) {
        return Err(too_large());
    }
    let Ok(read) =
        tokio::time::timeout(BODY_TIMEOUT, axum::body::to_bytes(body, MAX_BODY_LEN)).await
    else {
        return Err(Problem::new(ProblemKind::MALFORMED_BODY)
            .with_detail("the body did not arrive within 10 seconds"));
    };
    read.map_err(|error| {
        if error.source().is_some_and(|source| source.is::<LengthLimitError>()) {
            too_large()
        } else {
            Problem::new(ProblemKind::MALFORMED_BODY).with_detail("the body could not be read")
        }
    })
}

/// `application/json`, with or without parameters, and nothing else.
fn check_content_type(parts: &Parts) -> Result<(), Problem> {
    let mut values = parts.headers.get_all(CONTENT_TYPE).iter();
    let json = match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().ok().and_then(|value| value.split(';').next()),
        _ => None,
    };
    match json {
        Some(essence) if essence.trim().eq_ignore_ascii_case("application/json") => Ok(()),
        _ => Err(Problem::new(ProblemKind::UNSUPPORTED_MEDIA_TYPE)
            .with_detail("send the header Content-Type: application/json")),
    }
}

/// An integer as JSON writes it, with neither fraction nor exponent; `None` for anything else.
fn integer(raw: &RawValue) -> Option<u64> {
    let text = raw.get();
    // `parse` alone would take a plus sign; JSON has none, but this is where it is decided.
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn text(raw: &RawValue) -> Option<String> {
    serde_json::from_str(raw.get()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(json: &str) -> Fields {
        Fields::parse(json.as_bytes()).unwrap()
    }

    const MAX: Duration = Duration::from_hours(24);

    #[test]
    fn what_is_no_object_is_malformed() {
        for bad in [
            "",
            " ",
            "null",
            "[]",
            "[\"o\",1,2,3,4,\"x\"]",
            "\"x\"",
            "1",
            "{",
            "{}{}",
            "{} x",
            "{\"owner\"}",
            "{\"owner\":}",
            "{owner:1}",
            "{'owner':1}",
            "{\"owner\":1,}",
            "{\"owner\":\"a\",\"owner\":\"b\"}",
            "{\"owner\":null,\"\\u006fwner\":\"b\"}",
            "\u{feff}{}",
        ] {
            let problem = Fields::parse(bad.as_bytes()).err().expect(bad);
            assert_eq!(problem.kind(), ProblemKind::MALFORMED_BODY, "{bad}");
        }
        assert!(Fields::parse(b"{\"owner\":\"\xff\"}").is_err());
        assert!(Fields::parse(b" \r\n\t{ }\n").is_ok());
        // Unknown keys may come as often and as deep as they like.
        let deep = format!("{{\"x\":{}{},\"x\":1}}", "[".repeat(20_000), "]".repeat(20_000));
        assert!(Fields::parse(deep.as_bytes()).is_ok());
    }

    #[test]
    fn a_ttl_is_an_integer_in_its_range() {
        for bad in [
            "\"30\"",
            "60.5",
            "30.0",
            "1e3",
            "1E3",
            "1e400",
            "-1",
            "-0",
            "0",
            "18446744073709551616",
            "18446744073709551615",
            "1e15",
            "true",
            "[30]",
            "{}",
            "86400001",
        ] {
            let problem = fields(&format!("{{\"ttl_ms\":{bad}}}")).ttl(MAX).expect_err(bad);
            assert_eq!(problem.field(), Some("ttl_ms"), "{bad}");
            let problem = fields(&format!("{{\"ttl_seconds\":{bad}}}")).ttl(MAX).expect_err(bad);
            assert_eq!(problem.field(), Some("ttl_seconds"), "{bad}");
        }
        assert_eq!(fields("{\"ttl_seconds\":30}").ttl(MAX).unwrap(), Duration::from_secs(30));
        assert_eq!(fields("{\"ttl_ms\":1}").ttl(MAX).unwrap(), Duration::from_millis(1));
        assert_eq!(fields("{\"ttl_ms\":86400000}").ttl(MAX).unwrap(), MAX);
        assert_eq!(fields("{}").ttl(MAX).unwrap_err().field(), Some("ttl_seconds"));
        let both = fields("{\"ttl_ms\":1,\"ttl_seconds\":1}").ttl(MAX).unwrap_err();
        assert_eq!(both.field(), Some("ttl_ms"));
    }

    #[test]
    fn an_owner_is_a_label_for_people() {
        for bad in ["1", "null", "\"\"", "\"  \\t \"", "\"\u{a0}\"", "\"a\\u0000\"", "\"\\ud800\""]
        {
            let problem = fields(&format!("{{\"owner\":{bad}}}")).owner().expect_err(bad);
            assert_eq!(problem.field(), Some("owner"), "{bad}");
        }
        let long = "é".repeat(128);
        assert!(fields(&format!("{{\"owner\":\"{long}\"}}")).owner().is_err());
        assert_eq!(fields("{\"owner\":\"w\\u00f6rker 1\"}").owner().unwrap(), "wörker 1");
    }

    #[test]
    fn optional_fields_are_checked_when_they_are_there() {
        assert_eq!(fields("{}").wait().unwrap(), Duration::ZERO);
        assert_eq!(fields("{\"wait_ms\":null}").wait().unwrap(), Duration::ZERO);
        assert_eq!(fields("{\"wait_ms\":60000}").wait().unwrap(), MAX_WAIT);
        for bad in ["60001", "-1", "\"1\"", "1.0"] {
            assert!(fields(&format!("{{\"wait_ms\":{bad}}}")).wait().is_err(), "{bad}");
        }
        assert_eq!(fields("{}").max_hold().unwrap(), None);
        for bad in ["0", "-1", "\"1\"", "1.0", "true"] {
            assert!(fields(&format!("{{\"max_hold_ms\":{bad}}}")).max_hold().is_err(), "{bad}");
        }
        assert_eq!(fields("{}").owner_token().unwrap(), None);
        for bad in ["1", "\"short\"", "\"0123456789abcde\\n\"", "[]"] {
            let bad = format!("{{\"owner_token\":{bad}}}");
            assert_eq!(fields(&bad).owner_token().unwrap_err().field(), Some("owner_token"));
        }
    }

    #[test]
    fn a_refusal_does_not_quote_the_secret() {
        let body = "{\"owner_token\":\"0123456789abcdef\",\"owner_token\":\"0123456789abcdef\"}";
        let problem = Fields::parse(body.as_bytes()).err().unwrap();
        assert!(!format!("{problem} {problem:?}").contains("0123456789abcdef"));
    }
}
