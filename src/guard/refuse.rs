use std::error::Error;

use tracing::{error, info, warn};

use crate::marks::MarksError;
use crate::{Problem, ProblemKind, Resource};

/// Why a request does not go on, before it is known whether that is only reported.
#[derive(Debug)]
pub(super) struct Reason {
    pub(super) problem: Problem,
    /// What the store said, for the log.
    pub(super) error: Option<MarksError>,
}

impl From<Problem> for Reason {
    fn from(problem: Problem) -> Self {
        Self { problem, error: None }
    }
}

/// Logs a refusal, once, and gives the answer to it.
pub(super) fn log(reason: impl Into<Reason>) -> Problem {
    let reason = reason.into();
    tell(&reason, "request refused");
    reason.problem
}

/// Logs what would have been refused.
pub(super) fn report(reason: &Reason) {
    tell(reason, "request would be refused");
}

/// A caller's doing is told at INFO, a store in trouble at WARN, a fence wired wrongly at ERROR.
/// Where nobody listens it costs a load for each.
fn tell(Reason { problem, error }: &Reason, message: &'static str) {
    macro_rules! refused {
        ($level:ident) => {
            $level!(
                target: "fencing::guard",
                resource = problem.resource().map(Resource::as_str),
                token = problem.token().map(i64::from),
                last_token = problem.last_token().map(i64::from),
                verdict = problem.kind().name(),
                detail = problem.detail(),
                error = error.as_ref().map(|error| error as &(dyn Error + 'static)),
                "{message}"
            )
        };
    }
    if problem.kind() == ProblemKind::MISCONFIGURED {
        refused!(error);
    } else if problem.status().is_server_error() {
        refused!(warn);
    } else {
        refused!(info);
    }
}
