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
use crate::lock::wait::{Place, Turn};
use crate::lock::{Acquired, Held, OwnerToken, StoreError};
use crate::{Problem, ProblemKind, Resource};

/// How often the first of those who wait asks the store, at the longest. Half of it is jitter.
const POLL: Duration = Duration::from_millis(250);
/// How much longer than it asked for a request waits until the store has answered those before it.
const PATIENCE: Duration = Duration::from_secs(5);

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
    // Taken here, not in the task, so that places are in the order of arrival.
    let place = shared.lines.join(&resource, job.ask.owner_token_hash);
    // Both ends of this go with the client: when it hangs up, this future is dropped.
    let (here, gone) = oneshot::channel();
    let served = tokio::spawn(job.run(shared, place, gone)).await;
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

enum Woken {
    Changed,
    Due,
    Gone,
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
    async fn run(
        self,
        shared: Arc<Shared>,
        place: Place,
        gone: oneshot::Receiver<()>,
    ) -> (Outcome, Delivery) {
        let mut delivery = shared.deliveries.begin(&self.resource, self.ask.owner_token_hash).await;
        let outcome = self.stand_in_line(&shared, place, gone, &mut delivery).await;
        (outcome, delivery)
    }

    async fn stand_in_line(
        &self,
        shared: &Arc<Shared>,
        mut place: Place,
        mut gone: oneshot::Receiver<()>,
        delivery: &mut Delivery,
    ) -> Outcome {
        let mut ending = shared.ending.subscribe();
        let mut permit = None;
        // A client cannot ask again with an owner token that it does not know.
        let mut may_be_mine = !self.secret_is_ours;
        loop {
            // Read before the step that grants, so that the client, which counts its TTL from the
            // time it sent the request plus this, never counts on more than it has.
            let now = shared.clock.elapsed();
            let waited = now.saturating_sub(self.started);
            let is_ending = *ending.borrow();
            let left = match is_ending {
                true => Duration::ZERO,
                false => self.wait.saturating_sub(waited),
            };
            let turn = place.turn();
            let pause = match turn {
                Turn::Ask => {
                    let remaining = match self.step(shared, waited, &mut place, delivery).await {
                        Ok(remaining) => remaining,
                        Err(outcome) => return outcome,
                    };
                    place.held_until(shared.clock.elapsed() + remaining);
                    if left.is_zero() {
                        return self.held(remaining, waited);
                    }
                    continue;
                }
                Turn::Behind(Some(_)) if may_be_mine => {
                    may_be_mine = false;
                    // Then it may ask, wherever it stands. This grants nothing new: the owner token
                    // had its grant.
                    match self.is_mine(shared).await {
                        Ok(true) => match self.step(shared, waited, &mut place, delivery).await {
                            Ok(_) => continue,
                            Err(outcome) => return outcome,
                        },
                        Ok(false) => continue,
                        Err(outcome) => return outcome,
                    }
                }
                Turn::Front(until) | Turn::Behind(Some(until)) if left.is_zero() => {
                    return self.held(until.saturating_sub(now), waited);
                }
                Turn::Front(until) => until.saturating_sub(now).min(left).min(poll_pause()),
                Turn::Behind(Some(_)) => left,
                Turn::Behind(None) if waited > self.wait + PATIENCE => {
                    let error = StoreError::new("those before in the line were not answered");
                    return Outcome::Refused(unavailable(&error, &self.resource, &self.request_id));
                }
                Turn::Behind(None) => left + PATIENCE,
            };
            if permit.is_none() && !self.wait.is_zero() {
                let Ok(place) = Arc::clone(&shared.waiting).try_acquire_owned() else {
                    return self.refuse(ProblemKind::OVERLOADED, "too many requests are waiting");
                };
                permit = Some(place);
                shared.watch();
            }
            let pause = pause.max(Duration::from_millis(1));
            let woken = {
                let mut sleep = shared.clock.sleep(pause);
                let mut changed = pin!(place.changed());
                let mut ended = pin!(ending.wait_for(|ending| *ending));
                let mut gone = pin!(&mut gone);
                poll_fn(|cx| {
                    if gone.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(Woken::Gone);
                    }
                    if changed.as_mut().poll(cx).is_ready()
                        || (!is_ending && ended.as_mut().poll(cx).is_ready())
                    {
                        return Poll::Ready(Woken::Changed);
                    }
                    sleep.as_mut().poll(cx).map(|()| Woken::Due)
                })
                .await
            };
            match woken {
                Woken::Changed => {}
                Woken::Due => place.due(),
                // Nobody is told.
                Woken::Gone => return self.held(Duration::ZERO, waited),
            }
        }
    }

    /// Whether the grant that the line waits for is the one of this owner token: a client that lost
    /// the answer asks again, and must not wait for itself.
    async fn is_mine(&self, shared: &Shared) -> Result<bool, Outcome> {
        match shared.store.show(&self.resource).await {
            Ok(held) => {
                Ok(held
                    .is_some_and(|held| held.grant.owner_token_hash == self.ask.owner_token_hash))
            }
            Err(error) => {
                Err(Outcome::Refused(unavailable(&error, &self.resource, &self.request_id)))
            }
        }
    }

    /// Asks the store once: for how long another holds it, or else the outcome.
    async fn step(
        &self,
        shared: &Shared,
        waited: Duration,
        place: &mut Place,
        delivery: &mut Delivery,
    ) -> Result<Duration, Outcome> {
        let outcome = match shared.store.acquire(&self.resource, &self.ask).await {
            Ok(Acquired::Held(remaining)) => return Ok(remaining),
            Ok(Acquired::Granted(held)) => {
                delivery.must_be_delivered();
                place.granted_until(shared.clock.elapsed() + held.grant.remaining(held.now));
                self.log(&held, waited, "granted");
                Outcome::Acquired(held, waited)
            }
            Ok(Acquired::Repeated(held)) => {
                place.granted_until(shared.clock.elapsed() + held.grant.remaining(held.now));
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
            resource = self.resource.as_str(),
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
            resource = self.resource.as_str(),
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
            resource = self.resource.as_str(),
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
