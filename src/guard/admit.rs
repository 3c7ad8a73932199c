//! What the guard decides, apart from waiting and calling.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method};

use super::refuse;
use super::resolve::Resolver;
use crate::marks::{Check, Marks, MarksError, MarksErrorKind};
use crate::{Claim, ClaimState, Problem, ProblemKind, Token, Verdict};

/// All that a [`Fence`](super::Fence) was told, shared by its clones.
pub(super) struct Config {
    pub(super) marks: Arc<dyn Marks>,
    pub(super) options: Options,
    pub(super) resolver: Resolver,
    /// At level exclusive.
    pub(super) gate: Option<Gate>,
}

#[cfg(feature = "exclusive")]
pub(super) use super::gate::Gate;
/// Without the feature there is none.
#[cfg(not(feature = "exclusive"))]
#[derive(Debug)]
pub(super) enum Gate {}

#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) header: HeaderName,
    pub(super) require_on_safe_methods: bool,
    pub(super) hide_last_token: bool,
}

/// A request that may go on.
#[derive(Debug)]
pub(super) enum Admission {
    /// It claims nothing and needs not.
    Unclaimed,
    /// It goes on if the store accepts its claim. With it, the value of its token header.
    Claims(Claim, HeaderValue),
}

impl Config {
    /// The one place where a request becomes a claim. Whatever else has to speak for a claim
    /// before the store is asked is checked here.
    pub(super) fn admit(&self, parts: &mut Parts) -> Result<Admission, Problem> {
        match self.options.offered(parts) {
            Ok(Some((token, text))) => {
                let resource = self.resolver.resolve(parts);
                let resource = resource.map_err(|problem| refuse::log(problem, None))?;
                Ok(Admission::Claims(Claim::new(resource, token), text))
            }
            Ok(None) => Ok(Admission::Unclaimed),
            Err(problem) => {
                // Only to say what it was about: the request is refused either way.
                let problem = match self.resolver.resolve(parts) {
                    Ok(resource) => problem.with_resource(&resource),
                    Err(_) => problem,
                };
                Err(refuse::log(problem, None))
            }
        }
    }

    /// Asks the store of marks, and at level exclusive for a turn at the gate after it. The permit
    /// goes along with the request.
    pub(super) fn check(&self, claim: &Claim, extensions: &mut Extensions) -> Check {
        match &self.gate {
            None => self.marks.advance(claim),
            #[cfg(feature = "exclusive")]
            Some(gate) => {
                let (permit, check) = gate.check(&self.marks, claim);
                extensions.insert(permit);
                check
            }
            #[cfg(not(feature = "exclusive"))]
            Some(none) => {
                let _ = extensions;
                match *none {}
            }
        }
    }

    /// As [`judge`], with the mark in the answer only if callers may know it.
    pub(super) fn judge(
        &self,
        claim: &Claim,
        answer: Result<Verdict, MarksError>,
    ) -> Result<(), Problem> {
        let hide = self.options.hide_last_token;
        judge(claim, answer)
            .map_err(|problem| if hide { problem.without_last_token() } else { problem })
    }
}

/// Makes an answer of the store final: the claim stands, or here is why not.
pub(super) fn judge(claim: &Claim, answer: Result<Verdict, MarksError>) -> Result<(), Problem> {
    match answer {
        Ok(Verdict::Accepted) => {
            claim.note(ClaimState::Claimed);
            Ok(())
        }
        Ok(Verdict::Stale { last_token }) => {
            claim.note(ClaimState::Stale);
            Err(refuse::log(Problem::stale(claim, last_token), None))
        }
        Err(error) => {
            let kind = match error.kind() {
                MarksErrorKind::Contended => ProblemKind::CONTENDED,
                MarksErrorKind::Unavailable => ProblemKind::FENCE_UNAVAILABLE,
            };
            Err(refuse::log(Problem::new(kind).with_claim(claim), Some(&error)))
        }
    }
}

impl Options {
    /// The token the request offers; `None` when it offers none and may do so.
    fn offered(&self, parts: &Parts) -> Result<Option<(Token, HeaderValue)>, Problem> {
        match read_token(&parts.headers, &self.header)? {
            Some((token, text)) => Ok(Some((token, text.clone()))),
            None if is_safe(&parts.method) && !self.require_on_safe_methods => Ok(None),
            None => {
                let detail = format!("send the token of your lease, header=`{}`", self.header);
                Err(Problem::new(ProblemKind::MISSING_TOKEN).with_detail(detail))
            }
        }
    }
}

/// The methods of RFC 9110, section 9.2.1. `Method::is_safe` grows with the versions of `http`
/// (QUERY has joined): what passes without a token must not change with a dependency.
fn is_safe(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE)
}

/// The token in the header, which must be there once if at all. A value that is no text is
/// malformed, never absent.
fn read_token<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<Option<(Token, &'a HeaderValue)>, Problem> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(text), None) => Ok(Some((Token::from_ascii(text.as_bytes())?, text))),
        // Even when they are the same: whoever reads the first and whoever reads the last must
        // not come to differ (RFC 9110, section 5.3, allows only lists to be repeated).
        (Some(_), Some(_)) => Err(Problem::new(ProblemKind::MALFORMED_TOKEN)
            .with_detail(format!("send one token in one header line, header=`{name}`"))),
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("marks", &self.marks)
            .field("options", &self.options)
            .field("resolver", &self.resolver)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::guard::X_FENCING_TOKEN;

    fn read(values: &[&[u8]]) -> Result<Option<i64>, &'static str> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(X_FENCING_TOKEN, HeaderValue::from_bytes(value).unwrap());
        }
        read_token(&headers, &X_FENCING_TOKEN)
            .map(|found| found.map(|(token, _)| token.get()))
            .map_err(|problem| problem.kind().name())
    }

    #[test]
    fn there_is_one_value_or_none() {
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[b"34"]), Ok(Some(34)));
        for values in [["34", "34"], ["10", "3"], ["34", ""]] {
            assert_eq!(read(&values.map(str::as_bytes)), Err("malformed-token"), "{values:?}");
        }
    }

    #[test]
    fn a_method_is_safe_by_this_list_alone() {
        let offered = |method: &str, require_on_safe_methods| {
            let request = http::Request::builder().method(method).body(()).unwrap();
            let options = Options {
                header: X_FENCING_TOKEN,
                require_on_safe_methods,
                hide_last_token: false,
            };
            let offered = options.offered(&request.into_parts().0);
            offered.map_err(|problem| problem.kind().name())
        };
        for method in ["GET", "HEAD", "OPTIONS", "TRACE"] {
            assert_eq!(offered(method, false), Ok(None), "{method}");
            assert_eq!(offered(method, true), Err("missing-token"), "{method}");
        }
        for method in ["PUT", "POST", "PATCH", "DELETE", "CONNECT", "QUERY", "get", "LOCK"] {
            assert_eq!(offered(method, false), Err("missing-token"), "{method}");
        }
    }

    proptest! {
        /// Whatever is in the header: it is the text of a token, or it is malformed. Never absent.
        #[test]
        fn any_value_is_a_token_or_malformed(value in proptest::collection::vec(32..=255_u8, 0..24)) {
            prop_assume!(!value.contains(&127));
            match read(&[&value]) {
                Ok(Some(token)) => prop_assert_eq!(token.to_string().into_bytes(), value),
                other => prop_assert_eq!(other, Err("malformed-token")),
            }
        }
    }
}
