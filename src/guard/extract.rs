use std::future::{Future, ready};

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use http::Extensions;
use http::request::Parts;

use super::refuse;
use super::service::Unclaimed;
use crate::{Claim, Problem, ProblemKind};

/// The claim the layer accepted. Without the layer it fails closed: 500 `misconfigured`. Where the
/// layer let a request through that has no token it is 428 `missing-token`; take `Option<Claim>`
/// in a handler that serves such requests too.
impl<S: Sync> FromRequestParts<S> for Claim {
    type Rejection = Problem;

    fn from_request_parts(
        parts: &mut Parts,
        _: &S,
    ) -> impl Future<Output = Result<Self, Problem>> + Send {
        ready(accepted(&parts.extensions).and_then(|claim| {
            claim.ok_or_else(|| refuse::log(Problem::new(ProblemKind::MISSING_TOKEN)))
        }))
    }
}

/// `None` for a request with a safe method that came without a token. Without the layer it fails
/// closed: 500 `misconfigured`.
impl<S: Sync> OptionalFromRequestParts<S> for Claim {
    type Rejection = Problem;

    fn from_request_parts(
        parts: &mut Parts,
        _: &S,
    ) -> impl Future<Output = Result<Option<Self>, Problem>> + Send {
        ready(accepted(&parts.extensions))
    }
}

fn accepted(extensions: &Extensions) -> Result<Option<Claim>, Problem> {
    match extensions.get::<Claim>() {
        Some(claim) => Ok(Some(claim.clone())),
        None if extensions.get::<Unclaimed>().is_some() => Ok(None),
        None => Err(refuse::log(
            Problem::new(ProblemKind::MISCONFIGURED)
                .with_detail("the handler takes a claim, but no fence layer wraps its route"),
        )),
    }
}
