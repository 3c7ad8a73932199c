//! What operators see of the guard: spans, and with the feature `metrics` numbers. Refusals are
//! logged by [`refuse`](super::refuse). All of it is listed in `docs/observability.md`.

use std::fmt;
use std::sync::Arc;

use http::HeaderMap;
use tracing::Span;

use crate::{Claim, Problem, Resource};

/// Puts a resource into one of a few classes, for the labels of metrics.
pub(super) type ClassOf = dyn Fn(&Resource) -> &'static str + Send + Sync;

/// The span of a request that claims, from its check to its response.
pub(super) fn span(claim: &Claim, headers: &HeaderMap) -> Span {
    tracing::debug_span!(
        target: "fencing::guard",
        "fence",
        resource = claim.resource().as_str(),
        token = i64::from(claim.token()),
        request_id = headers.get("x-request-id").and_then(|id| id.to_str().ok()),
        verdict = tracing::field::Empty,
    )
}

/// How long a request waited at a gate for older ones to leave.
#[cfg(feature = "exclusive")]
pub(super) fn gate_wait(outcome: &'static str, waited: std::time::Duration) {
    #[cfg(feature = "metrics")]
    metrics::histogram!("fencing_guard_gate_wait_seconds", "outcome" => outcome)
        .record(waited.as_secs_f64());
    #[cfg(not(feature = "metrics"))]
    let _ = (outcome, waited);
}

/// Counts for one layer.
#[derive(Clone)]
pub(super) struct Observer {
    pub(super) class: Option<Arc<ClassOf>>,
    /// Since when tokens have been overtaken.
    #[cfg(feature = "metrics")]
    marks: Arc<crate::marks::bounds::Bounds>,
}

impl Observer {
    pub(super) fn new() -> Self {
        Self {
            class: None,
            #[cfg(feature = "metrics")]
            marks: Arc::new(crate::marks::bounds::Bounds::new(1 << 16, std::time::Duration::MAX)),
        }
    }

    /// A request that was accepted.
    pub(super) fn accepted(&self, claim: &Claim) {
        Span::current().record("verdict", "accepted");
        #[cfg(feature = "metrics")]
        self.count_accepted(claim);
        #[cfg(not(feature = "metrics"))]
        let _ = claim;
    }

    /// A request that came without a claim, and needs none.
    pub(super) fn unclaimed(&self) {
        #[cfg(feature = "metrics")]
        self.count("unclaimed", None, false);
    }

    /// A write whose handler answered with an error, and under whose claim nothing was committed.
    pub(super) fn given_up(&self, claim: &Claim) {
        #[cfg(feature = "metrics")]
        self.count("given-up", Some(claim.resource()), false);
        #[cfg(not(feature = "metrics"))]
        let _ = claim;
    }

    /// A request that was refused, or would have been.
    pub(super) fn refused(&self, problem: &Problem, report_only: bool) {
        Span::current().record("verdict", problem.kind().name());
        #[cfg(feature = "metrics")]
        self.count_refused(problem, report_only);
        #[cfg(not(feature = "metrics"))]
        let _ = report_only;
    }
}

#[cfg(feature = "metrics")]
mod numbers {
    use metrics::{counter, histogram};

    use super::Observer;
    use crate::{Claim, Problem, ProblemKind, Resource, clock};

    impl Observer {
        fn class(&self, resource: Option<&Resource>) -> &'static str {
            match (resource, &self.class) {
                (Some(resource), Some(class)) => class(resource),
                (Some(_), None) => "all",
                (None, _) => "none",
            }
        }

        pub(super) fn count(
            &self,
            verdict: &'static str,
            resource: Option<&Resource>,
            report_only: bool,
        ) {
            counter!(
                "fencing_guard_requests_total",
                "verdict" => verdict,
                "class" => self.class(resource),
                "report_only" => if report_only { "true" } else { "false" },
            )
            .increment(1);
        }

        pub(super) fn count_accepted(&self, claim: &Claim) {
            self.count("accepted", Some(claim.resource()), false);
            let (resource, token, now) = (claim.resource(), claim.token(), clock::elapsed());
            // Only a new token is news.
            if !self.marks.reaches(resource, token, now) {
                self.marks.hear(resource, token, self.marks.ask(resource, now));
            }
        }

        pub(super) fn count_refused(&self, problem: &Problem, report_only: bool) {
            self.count(problem.kind().name(), problem.resource(), report_only);
            if problem.kind() != ProblemKind::STALE_TOKEN {
                return;
            }
            let (Some(resource), Some(token)) = (problem.resource(), problem.token()) else {
                return;
            };
            let class = self.class(Some(resource));
            if let Some(last_token) = problem.last_token() {
                #[allow(clippy::cast_precision_loss, reason = "a histogram is no exact thing")]
                let lag = last_token.get().saturating_sub(token.get()) as f64;
                histogram!("fencing_guard_token_lag", "class" => class).record(lag);
            }
            if let Some(heard) = self.marks.heard_above(resource, token) {
                let since = clock::elapsed().saturating_sub(heard).as_secs_f64();
                histogram!("fencing_guard_overtaken_seconds", "class" => class).record(since);
            }
        }
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer")
            .field("class", &self.class.as_ref().map_or("all", |_| "<fn>"))
            .finish_non_exhaustive()
    }
}
