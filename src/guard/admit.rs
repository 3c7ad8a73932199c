//! What the guard decides, apart from waiting and calling.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method};

use super::X_FENCING_TOKEN;
use super::observe::Observer;
use super::refuse::{self, Reason};
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

#[derive(Clone)]
pub(super) struct Options {
    pub(super) header: HeaderName,
    pub(super) policy: Option<Arc<PolicyOf>>,
    pub(super) hide_last_token: bool,
    pub(super) deferred: bool,
    pub(super) report_only: bool,
    pub(super) observer: Observer,
}

pub(super) type PolicyOf = dyn Fn(&Parts) -> Policy + Send + Sync;

/// Whether a request needs a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Policy {
    /// Without one it is refused: 428 `missing-token`.
    Required,
    /// Without one it passes unchecked and has no claim. With one it is checked.
    Optional,
    /// The fence stands aside: whether there is a token is not looked at, and there is no claim.
    Off,
}

impl Policy {
    /// What holds unless the layer is told otherwise: a token is optional for the safe methods GET,
    /// HEAD, OPTIONS and TRACE, and required for all others.
    #[must_use]
    pub fn of_method(method: &Method) -> Self {
        if is_safe(method) { Self::Optional } else { Self::Required }
    }
}

/// A request that may go on.
#[derive(Debug)]
pub(super) enum Admission {
    /// It claims nothing and needs not.
    Unclaimed,
    /// It goes on if the store accepts its claim.
    Claims(Offer),
}

/// A claim as a request makes it.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) claim: Claim,
    /// The value of its token header.
    pub(super) text: HeaderValue,
    /// Whether it is left to the handler to claim.
    pub(super) deferred: bool,
}

impl Config {
    /// The one place where a request becomes a claim. Whatever else has to speak for a claim
    /// before the store is asked is checked here.
    pub(super) fn admit(&self, parts: &mut Parts) -> Result<Admission, Problem> {
        let refused = match self.options.offered(parts) {
            Ok(Some((token, text))) => match self.resolver.resolve(parts) {
                Ok(resource) => {
                    let claim = Claim::new(resource, token);
                    // A read is claimed by the layer all the same: that has to be done before
                    // anything is read, and by then nobody knows whether the handler will. So is
                    // what passes a gate, which is for whom the mark lets in.
                    let deferred =
                        self.options.deferred && self.gate.is_none() && !is_safe(&parts.method);
                    return Ok(Admission::Claims(Offer { claim, text, deferred }));
                }
                Err(problem) => problem,
            },
            Ok(None) => {
                self.options.observer.unclaimed();
                return Ok(Admission::Unclaimed);
            }
            // Only to say what it was about: the request is refused either way.
            Err(problem) => match self.resolver.resolve(parts) {
                Ok(resource) => problem.with_resource(&resource),
                Err(_) => problem,
            },
        };
        match self.refuse(refused.into()) {
            Some(problem) => Err(problem),
            None => Ok(Admission::Unclaimed),
        }
    }

    /// Asks the store of marks, and at level exclusive for a turn at the gate after it. The permit
    /// goes along with the request.
    pub(super) fn check(&self, offer: &Offer, extensions: &mut Extensions) -> Check {
        match &self.gate {
            None if offer.deferred => self.marks.vet(&offer.claim),
            None => self.marks.advance(&offer.claim),
            #[cfg(feature = "exclusive")]
            Some(gate) => {
                let (permit, check) = gate.check(&self.marks, &offer.claim);
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

    /// What the answer of the store means for the request: it goes on, or here is why not.
    pub(super) fn judge(
        &self,
        offer: &Offer,
        answer: Result<Verdict, MarksError>,
    ) -> Result<(), Problem> {
        if offer.deferred && matches!(answer, Ok(Verdict::Accepted)) {
            return Ok(());
        }
        match judge(&offer.claim, answer) {
            Ok(()) => {
                self.options.observer.accepted(&offer.claim);
                Ok(())
            }
            Err(reason) => self.refuse(reason).map_or(Ok(()), Err),
        }
    }

    /// Whether a response to an accepted request may say so, or must not go out at all. `success`
    /// is what the handler says.
    pub(super) fn conclude(&self, offer: &Offer, success: bool) -> Conclusion {
        let claim = &offer.claim;
        let state = claim.state();
        if !self.options.deferred {
            return match state {
                // Unspent it is when it was let through all the same, to be reported.
                ClaimState::Stale | ClaimState::Unspent => Conclusion::Silent,
                _ => Conclusion::Accepted,
            };
        }
        if claim.has_committed() {
            self.marks.learn(claim.resource(), claim.token());
        }
        if let Some(last_token) = claim.last_token() {
            self.marks.learn(claim.resource(), last_token);
        }
        let stands = match state {
            ClaimState::Committed => true,
            // To have claimed is enough for a read, which the layer has then done itself.
            ClaimState::Claimed => !offer.deferred || claim.has_committed(),
            _ => false,
        };
        if offer.deferred {
            self.count(claim, state, success);
        }
        match (stands, success) {
            (true, _) => Conclusion::Accepted,
            (false, false) => Conclusion::Silent,
            // That was told when it came in.
            (false, true) if self.options.report_only && state == ClaimState::Stale => {
                Conclusion::Silent
            }
            (false, true) => {
                let problem = Problem::new(ProblemKind::MISCONFIGURED)
                    .with_claim(claim)
                    .with_detail(unfounded(state));
                self.refuse(problem.into()).map_or(Conclusion::Silent, Conclusion::Refused)
            }
        }
    }

    /// Counts what became of a write whose verdict was left to the handler.
    fn count(&self, claim: &Claim, state: ClaimState, success: bool) {
        let observer = &self.options.observer;
        match (state, claim.last_token()) {
            (ClaimState::Committed, _) => observer.accepted(claim),
            (ClaimState::Stale, Some(last_token)) => {
                observer.refused(&Problem::stale(claim, last_token), false);
            }
            // What is a success and must not be is counted as that.
            _ if success => {}
            _ => observer.given_up(claim),
        }
    }

    /// Tells of a refusal. `None` if that is all that is to be done.
    fn refuse(&self, reason: Reason) -> Option<Problem> {
        self.options.observer.refused(&reason.problem, self.options.report_only);
        if self.options.report_only {
            refuse::report(&reason);
            return None;
        }
        let problem = refuse::log(reason);
        Some(if self.options.hide_last_token { problem.without_last_token() } else { problem })
    }
}

/// What becomes of a response.
pub(super) enum Conclusion {
    /// It goes out, and says that the token was accepted.
    Accepted,
    /// It goes out as it is.
    Silent,
    /// This goes out in its place.
    Refused(Problem),
}

/// Why the success of a handler is none.
fn unfounded(state: ClaimState) -> &'static str {
    match state {
        ClaimState::Open => {
            "the handler answered with success while its fenced transaction was still open: commit \
             it first"
        }
        ClaimState::Stale => "the handler answered with success although its claim was refused",
        ClaimState::Unknown => {
            "the handler answered with success although no verdict on its commit came back"
        }
        _ => {
            "the handler answered with success, but nothing was committed under its claim: commit a \
             fenced transaction first, or take `deferred` off the layer"
        }
    }
}

/// Makes an answer of the store final: the claim stands, or here is why not.
pub(super) fn judge(claim: &Claim, answer: Result<Verdict, MarksError>) -> Result<(), Reason> {
    match answer {
        Ok(Verdict::Accepted) => {
            claim.note(ClaimState::Claimed);
            Ok(())
        }
        Ok(Verdict::Stale { last_token }) => {
            claim.note_stale(last_token);
            Err(Problem::stale(claim, last_token).into())
        }
        Err(error) => {
            let kind = match error.kind() {
                MarksErrorKind::Contended => ProblemKind::CONTENDED,
                MarksErrorKind::Unavailable => ProblemKind::FENCE_UNAVAILABLE,
                MarksErrorKind::Implausible => {
                    let problem = Problem::new(ProblemKind::IMPLAUSIBLE_TOKEN).with_claim(claim);
                    return Err(problem.into());
                }
            };
            Err(Reason { problem: Problem::new(kind).with_claim(claim), error: Some(error) })
        }
    }
}

impl Options {
    pub(super) fn new() -> Self {
        Self {
            header: X_FENCING_TOKEN,
            policy: None,
            hide_last_token: false,
            deferred: false,
            report_only: false,
            observer: Observer::new(),
        }
    }

    /// The token the request offers; `None` when it offers none and may do so.
    fn offered(&self, parts: &Parts) -> Result<Option<(Token, HeaderValue)>, Problem> {
        let policy = match &self.policy {
            Some(policy) => policy(parts),
            None => Policy::of_method(&parts.method),
        };
        if policy == Policy::Off {
            return Ok(None);
        }
        match read_token(&parts.headers, &self.header)? {
            Some((token, text)) => Ok(Some((token, text.clone()))),
            None if policy == Policy::Optional => Ok(None),
            None => {
                let detail = format!("send the token of your lease, header=`{}`", self.header);
                Err(Problem::new(ProblemKind::MISSING_TOKEN).with_detail(detail))
            }
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("header", &self.header)
            .field("policy", &self.policy.as_ref().map_or("by method", |_| "<fn>"))
            .field("hide_last_token", &self.hide_last_token)
            .field("deferred", &self.deferred)
            .field("report_only", &self.report_only)
            .field("observer", &self.observer)
            .finish()
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
        let offered = |method: &str| {
            let request = http::Request::builder().method(method).body(()).unwrap();
            let offered = Options::new().offered(&request.into_parts().0);
            offered.map_err(|problem| problem.kind().name())
        };
        for method in ["GET", "HEAD", "OPTIONS", "TRACE"] {
            assert_eq!(offered(method), Ok(None), "{method}");
        }
        for method in ["PUT", "POST", "PATCH", "DELETE", "CONNECT", "QUERY", "get", "LOCK"] {
            assert_eq!(offered(method), Err("missing-token"), "{method}");
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
