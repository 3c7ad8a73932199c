//! What the guard decides, apart from waiting and calling.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::refuse;
use super::resolve::Resolver;
use crate::marks::{Marks, MarksError, MarksErrorKind};
use crate::{Claim, ClaimState, Problem, ProblemKind, Token, Verdict};

/// All that a [`Fence`](super::Fence) was told, shared by its clones.
pub(super) struct Config {
    pub(super) marks: Arc<dyn Marks>,
    pub(super) options: Options,
    pub(super) resolver: Resolver,
}

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

    /// Makes an answer of the store final: the claim stands, or here is why not.
    pub(super) fn judge(
        &self,
        claim: &Claim,
        answer: Result<Verdict, MarksError>,
    ) -> Result<(), Problem> {
        match answer {
            Ok(Verdict::Accepted) => {
                claim.note(ClaimState::Claimed);
                Ok(())
            }
            Ok(Verdict::Stale { last_token }) => {
                claim.note(ClaimState::Stale);
                let problem = refuse::log(Problem::stale(claim, last_token), None);
                let hide = self.options.hide_last_token;
                Err(if hide { problem.without_last_token() } else { problem })
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
}

impl Options {
    /// The token the request offers; `None` when it offers none and may do so.
    fn offered(&self, parts: &Parts) -> Result<Option<(Token, HeaderValue)>, Problem> {
        // `is_safe` is true for GET, HEAD, OPTIONS and TRACE (RFC 9110, section 9.2.1) and false
        // for every method it does not know.
        match read_token(&parts.headers, &self.header)? {
            Some((token, text)) => Ok(Some((token, text.clone()))),
            None if parts.method.is_safe() && !self.require_on_safe_methods => Ok(None),
            None => {
                let detail = format!("send the token of your lease, header=`{}`", self.header);
                Err(Problem::new(ProblemKind::MISSING_TOKEN).with_detail(detail))
            }
        }
    }
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
