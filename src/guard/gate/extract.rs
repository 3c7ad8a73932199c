use std::future::{Future, ready};

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use http::request::Parts;

use super::GatePermit;
use crate::guard::{refuse, service::Unclaimed};
use crate::{Problem, ProblemKind};

/// The permit of the request. Without [`FenceLayer::exclusive`](crate::guard::FenceLayer::exclusive)
/// it fails closed: 500 `misconfigured`. Where the layer let a request through that has no token it
/// is 428 `missing-token`; take `Option<GatePermit>` in a handler that serves such requests too.
impl<S: Sync> FromRequestParts<S> for GatePermit {
    type Rejection = Problem;

    fn from_request_parts(
        parts: &mut Parts,
        _: &S,
    ) -> impl Future<Output = Result<Self, Problem>> + Send {
        ready(permit(parts).and_then(|permit| {
            permit.ok_or_else(|| refuse::log(Problem::new(ProblemKind::MISSING_TOKEN)))
        }))
    }
}

/// `None` for a request with a safe method that came without a token. Without
/// [`FenceLayer::exclusive`](crate::guard::FenceLayer::exclusive) it fails closed: 500
/// `misconfigured`.
impl<S: Sync> OptionalFromRequestParts<S> for GatePermit {
    type Rejection = Problem;

    fn from_request_parts(
        parts: &mut Parts,
        _: &S,
    ) -> impl Future<Output = Result<Option<Self>, Problem>> + Send {
        ready(permit(parts))
    }
}

fn permit(parts: &Parts) -> Result<Option<GatePermit>, Problem> {
    match parts.extensions.get::<GatePermit>() {
        Some(permit) => Ok(Some(permit.clone())),
        None if parts.extensions.get::<Unclaimed>().is_some() => Ok(None),
        None => Err(refuse::log(
            Problem::new(ProblemKind::MISCONFIGURED)
                .with_detail("the handler takes a permit, but the layer of its route has no gate"),
        )),
    }
}
