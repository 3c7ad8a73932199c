use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use std::{error, fmt};

use super::state::Turn;
use super::visit::{Entering, Visit};
use super::{Gate, GatePermit};
use crate::guard::{admit, observe, refuse};
use crate::marks::{Check, Marks, MarksError, MarksErrorKind};
use crate::{Claim, Problem, Verdict};

impl Gate {
    /// Claims and comes in: raises the mark, waits until older tokens have left, and gives the
    /// permit to be held while the work goes on.
    ///
    /// For work that no HTTP request brings: a job that carries its claim along, say. It meets the
    /// requests behind [`FenceLayer::exclusive`](crate::guard::FenceLayer::exclusive) when gate and
    /// marks are theirs.
    ///
    /// ```
    /// use fencing::guard::Gate;
    /// use fencing::marks::MemoryMarks;
    /// use fencing::{Claim, ProblemKind, Resource, Token};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (gate, marks) = (Gate::new(), MemoryMarks::ephemeral());
    /// let report = Resource::new("report")?;
    /// let permit = gate.enter(&marks, &Claim::new(report.clone(), Token::new(34)?)).await?;
    /// // ... the work, then:
    /// drop(permit);
    /// let zombie = gate.enter(&marks, &Claim::new(report, Token::new(33)?)).await;
    /// assert_eq!(zombie.unwrap_err().kind(), ProblemKind::STALE_TOKEN);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `stale-token` when the mark or a token at the gate is above the claim's, `contended` when
    /// older ones have not left within the [drain timeout](Self::drain_timeout), and
    /// `fence-unavailable` or `contended` when the store of marks says so.
    ///
    /// # Cancellation
    ///
    /// Dropped while it waits, it leaves the queue; the mark may have been raised.
    pub async fn enter(
        &self,
        marks: &(impl Marks + ?Sized),
        claim: &Claim,
    ) -> Result<GatePermit, Problem> {
        let (permit, check) = self.check(marks, claim);
        match admit::judge(claim, check.await) {
            Ok(()) => Ok(permit),
            Err(reason) => Err(refuse::log(reason)),
        }
    }

    /// Asks the store and, if it accepts, for a turn at the gate. The permit is one from when the
    /// check is answered with `Accepted`; to drop it ends the visit at any time.
    pub(in crate::guard) fn check(
        &self,
        marks: &(impl Marks + ?Sized),
        claim: &Claim,
    ) -> (GatePermit, Check) {
        // First of all: from here on the gate remembers which tokens pass by.
        let visit = Visit::arrive(&self.shared, claim.resource().clone(), claim.token());
        let visit = Arc::new(visit);
        let check = match marks.advance(claim) {
            Check::Ready(Ok(Verdict::Accepted)) => self.turn(&visit),
            Check::Ready(refused) => Check::Ready(refused),
            Check::Pending(answer) => {
                let (gate, visit) = (self.clone(), Arc::clone(&visit));
                Check::Pending(Box::pin(async move {
                    match answer.await? {
                        Verdict::Accepted => gate.turn(&visit).await,
                        stale @ Verdict::Stale { .. } => Ok(stale),
                    }
                }))
            }
        };
        (GatePermit::new(visit), check)
    }

    fn turn(&self, visit: &Arc<Visit>) -> Check {
        match visit.turn() {
            Turn::Inside => Verdict::Accepted.into(),
            Turn::Overtaken(last_token) => Verdict::Stale { last_token }.into(),
            Turn::Wait if self.report_only => {
                tracing::info!(
                    target: "fencing::guard",
                    resource = visit.resource().as_str(),
                    token = i64::from(visit.token()),
                    "request would wait for older ones"
                );
                Verdict::Accepted.into()
            }
            Turn::Wait => Check::Pending(Box::pin(self.clone().wait(Arc::clone(visit)))),
        }
    }

    async fn wait(self, visit: Arc<Visit>) -> Result<Verdict, MarksError> {
        let (resource, token) = (visit.resource().clone(), visit.token());
        let mut entering = pin!(Entering::new(visit));
        // The timer is made only for whoever has to wait.
        let mut patience = None;
        let started = self.clock.elapsed();
        poll_fn(|cx| {
            if let Poll::Ready(turn) = entering.as_mut().poll(cx) {
                if patience.is_some() {
                    let waited = self.clock.elapsed().saturating_sub(started);
                    let outcome = if turn.is_ok() { "entered" } else { "overtaken" };
                    observe::gate_wait(outcome, waited);
                    tracing::debug!(
                        target: "fencing::guard",
                        resource = resource.as_str(),
                        token = i64::from(token),
                        waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
                        "older requests were waited for"
                    );
                }
                return Poll::Ready(Ok(match turn {
                    Ok(()) => Verdict::Accepted,
                    Err(last_token) => Verdict::Stale { last_token },
                }));
            }
            let patience = patience.get_or_insert_with(|| self.clock.sleep(self.drain_timeout));
            patience.as_mut().poll(cx).map(|()| {
                observe::gate_wait("timed-out", self.drain_timeout);
                let error = MarksError::new(MarksErrorKind::Contended);
                Err(error.with_source(NotDrained(self.drain_timeout)))
            })
        })
        .await
    }
}

/// For the log, behind a `contended`.
#[derive(Debug)]
struct NotDrained(Duration);

impl fmt::Display for NotDrained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "requests of an older token have not left the gate, drain_timeout=`{:?}`", self.0)
    }
}

impl error::Error for NotDrained {}
