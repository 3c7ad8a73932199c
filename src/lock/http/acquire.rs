use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::response::Response;
use tokio::sync::oneshot;

use super::body::Fields;
use super::delivery::Delivery;
use super::request_id::RequestId;
use super::{Shared, answer, stopped, unavailable};
use crate::lock::rules::Ask;
use crate::lock::{Acquired, Held, OwnerToken, StoreError};
use crate::{Problem, ProblemKind, Resource};

/// How often a waiting request asks the store, at the longest. Half of it is jitter.
const POLL: Duration = Duration::from_millis(250);

/// Serves an acquire. `started`, the time the wait counts from, is when the request had been read.
pub(super) async fn acquire(
    shared: Arc<Shared>,
    resource: Resource,
    fields: &Fields,
    request_id: RequestId,
) -> Result<Response, Problem> {
    let started = shared.clock.elapsed();
    let job = Job::new(&shared, resource.clone(), fields, request_id, started)
        .map_err(|problem| problem.with_resource(&resource))?;
    let secret = job.secret.clone();
    // Both ends of this go with the client: when it hangs up, this future is dropped.
    let (here, gone) = oneshot::channel();
    let served = tokio::spawn(job.run(shared, gone)).await;
    let answer = match served {
        Ok((Outcome::Acquired(held, waited), delivery)) => {
            let answer = answer::acquired(&resource, &held, secret, waited);
            delivery.deliver();
            Ok(answer)
        }
        Ok((Outcome::Held(remaining), _)) => Ok(answer::held(&resource, remaining)),
        Ok((Outcome::Refused(problem), _)) => Err(problem),
        Err(error) => Err(stopped(&error).with_resource(&resource)),
    };
    drop(here);
    answer
}

/// An acquire, to be run to its end in a task of its own.
struct Job {
    resource: Resource,
    ask: Ask,
    secret: OwnerToken,
    /// The client cannot ask again for a grant whose owner token it does not know.
    secret_is_ours: bool,
    wait: Duration,
    started: Duration,
    request_id: RequestId,
}

enum Outcome {
    Acquired(Held, Duration),
    Held(Duration),
    Refused(Problem),
}

impl Job {
    fn new(
        shared: &Shared,
        resource: Resource,
        fields: &Fields,
        request_id: RequestId,
        started: Duration,
    ) -> Result<Self, Problem> {
        let owner = fields.owner()?;
        let ttl = fields.ttl(shared.max_ttl)?;
        let wait = fields.wait()?;
        let max_hold = fields.max_hold()?.into_iter().chain(shared.max_hold).min();
        let given = fields.owner_token()?;
        let secret_is_ours = given.is_none();
        let secret = match given {
            Some(secret) => secret,
            None => OwnerToken::random()
                .map_err(|error| unavailable(&StoreError::new(error), &resource, &request_id))?,
        };
        let ask = Ask { owner, owner_token_hash: secret.hash(), ttl, max_hold };
        Ok(Self { resource, ask, secret, secret_is_ours, wait, started, request_id })
    }

    /// The delivery goes out with the outcome: dropped on the way, because nobody waits for it any
    /// more, it gives the grant back.
    async fn run(self, shared: Arc<Shared>, gone: oneshot::Receiver<()>) -> (Outcome, Delivery) {
        let mut delivery = shared.deliveries.begin(&self.resource, self.ask.owner_token_hash).await;
        let outcome = self.wait_for_it(&shared, gone, &mut delivery).await;
        (outcome, delivery)
    }

    async fn wait_for_it(
        &self,
        shared: &Shared,
        mut gone: oneshot::Receiver<()>,
        delivery: &mut Delivery,
    ) -> Outcome {
        let mut ending = shared.ending.subscribe();
        let mut turn = None;
        loop {
            // Read before the step that grants, so that the client, which counts its TTL from the
            // time it sent the request plus this, never counts on more than it has.
            let waited = shared.clock.elapsed().saturating_sub(self.started);
            let remaining = match self.step(shared, waited, delivery).await {
                Ok(remaining) => remaining,
                Err(outcome) => return outcome,
            };
            let left = self.wait.saturating_sub(waited);
            if left.is_zero() || *ending.borrow() {
                return self.held(remaining, waited);
            }
            if turn.is_none() {
                let Ok(permit) = Arc::clone(&shared.waiting).try_acquire_owned() else {
                    return self.refuse(ProblemKind::OVERLOADED, "too many requests are waiting");
                };
                turn = Some(permit);
            }
            let pause = remaining.min(left).min(poll_pause()).max(Duration::from_millis(1));
            let awake = {
                let mut sleep = shared.clock.sleep(pause);
                let mut ended = pin!(ending.wait_for(|ending| *ending));
                let mut gone = pin!(&mut gone);
                poll_fn(|cx| {
                    if gone.as_mut().poll(cx).is_ready() || ended.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(false);
                    }
                    sleep.as_mut().poll(cx).map(|()| true)
                })
                .await
            };
            if !awake {
                return self.held(remaining, waited);
            }
        }
    }

    /// Asks the store once: for how long another holds it, or else the outcome.
    async fn step(
        &self,
        shared: &Shared,
        waited: Duration,
        delivery: &mut Delivery,
    ) -> Result<Duration, Outcome> {
        let outcome = match shared.store.acquire(&self.resource, &self.ask).await {
            Ok(Acquired::Held(remaining)) => return Ok(remaining),
            Ok(Acquired::Granted(held)) => {
                delivery.must_be_delivered();
                self.log(&held, waited, "granted");
                Outcome::Acquired(held, waited)
            }
            Ok(Acquired::Repeated(held)) => {
                self.log(&held, waited, "granted again");
                Outcome::Acquired(held, waited)
            }
            Ok(Acquired::Spent) => self.refuse(
                ProblemKind::SPENT_OWNER_TOKEN,
                "one owner token is one grant: ask again with a new one",
            ),
            Ok(Acquired::Exhausted) => self.refuse(
                ProblemKind::LOCK_UNAVAILABLE,
                "the tokens of this resource are used up, up to 9007199254740991",
            ),
            Err(error) => {
                if self.secret_is_ours {
                    delivery.must_be_delivered();
                }
                Outcome::Refused(unavailable(&error, &self.resource, &self.request_id))
            }
        };
        Err(outcome)
    }

    fn log(&self, held: &Held, waited: Duration, what: &'static str) {
        tracing::info!(
            resource = %self.resource,
            owner = held.grant.owner,
            token = held.token.get(),
            ttl_ms = answer::millis(self.ask.ttl),
            waited_ms = answer::millis(waited),
            request_id = %self.request_id,
            "{what}"
        );
    }

    fn held(&self, remaining: Duration, waited: Duration) -> Outcome {
        tracing::debug!(
            resource = %self.resource,
            owner = self.ask.owner,
            ttl_ms = answer::millis(self.ask.ttl),
            waited_ms = answer::millis(waited),
            request_id = %self.request_id,
            "held by another"
        );
        Outcome::Held(remaining)
    }

    fn refuse(&self, kind: ProblemKind, detail: &'static str) -> Outcome {
        tracing::info!(
            resource = %self.resource,
            owner = self.ask.owner,
            reason = kind.name(),
            request_id = %self.request_id,
            "not granted"
        );
        Outcome::Refused(Problem::new(kind).with_detail(detail).with_resource(&self.resource))
    }
}

/// Between half of [`POLL`] and all of it, so that those who wait do not come in step.
fn poll_pause() -> Duration {
    let longest = answer::millis(POLL);
    Duration::from_millis(fastrand::u64(longest / 2..=longest))
}
