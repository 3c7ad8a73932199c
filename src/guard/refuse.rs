use std::error::Error;

use tracing::{error, info, warn};

use crate::marks::MarksError;
use crate::{Problem, ProblemKind, Resource};

/// Logs a refusal, once, and gives it back. A caller's doing is told at INFO, a store in trouble at
/// WARN, a fence wired wrongly at ERROR. Where nobody listens it costs a load for each.
pub(super) fn log(problem: Problem, error: Option<&MarksError>) -> Problem {
    macro_rules! refused {
        ($level:ident) => {
            $level!(
                target: "fencing::guard",
                resource = problem.resource().map(Resource::as_str),
                token = problem.token().map(i64::from),
                last_token = problem.last_token().map(i64::from),
                verdict = problem.kind().name(),
                detail = problem.detail(),
                error = error.map(|error| error as &(dyn Error + 'static)),
                "request refused"
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
    problem
}
