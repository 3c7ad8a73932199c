use std::sync::Arc;
use std::time::Duration;

use super::error::{ClientError, ClientErrorKind};
use super::grant::RenewOutcome;
use super::lease::{Held, LostReason};
use super::timing::{Backoff, Either, race, until};
use crate::lock::api::RenewBody;

/// With less left than this no renewal is tried: its answer would hardly come in time.
const LEAST_LEFT: Duration = Duration::from_millis(2);

/// The background task of a lease: renews until it is lost, says so, and gives back what a last
/// renewal may have extended.
pub(super) async fn renew(held: Arc<Held>, from: Duration, life: Duration) {
    let stopped = Stopped(&held);
    let reason = match race(held.noted(), renew_until_lost(&held, from, life)).await {
        Either::Left(reason) | Either::Right(reason) => reason,
    };
    let noted_here = held.lose(reason);
    drop(stopped);
    if reason == LostReason::Released {
        return;
    }
    let claim = &held.claim;
    tracing::warn!(resource = claim.resource().as_str(), token = %claim.token(), owner = held.owner,
        ?reason, noted_here, "the lease is lost");
    if matches!(reason, LostReason::Expired | LostReason::Stale) {
        // A renewal whose answer did not come in time may have been served. It is not counted on,
        // but it keeps others waiting.
        held.client.give_back(claim.resource(), &held.secret, false).await;
    }
}

/// When the task goes away in any other way than by its end, nothing renews the lease any more.
struct Stopped<'a>(&'a Held);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.lose(LostReason::Shutdown);
    }
}

async fn renew_until_lost(held: &Held, mut from: Duration, mut life: Duration) -> LostReason {
    let clock = held.client.clock();
    // Long leases need no haste, short ones have no time for pauses.
    let longest_pause = (held.ttl / 20).clamp(Duration::from_millis(1), Duration::from_mins(1));
    let mut backoff = Backoff::new(Duration::from_millis(100), longest_pause);
    // Not before a tenth of the TTL, even when the server grants less and less of it, as it does
    // towards the end of `max_hold`.
    let pause = |life: Duration| (life / 3).max(held.ttl / 10);
    let mut next = from.saturating_add(pause(life));
    loop {
        let deadline = held.deadline();
        until(clock, next.min(deadline)).await;
        // The clock is asked before each renewal: after a pause the deadline may have passed.
        let sent_at = clock.elapsed();
        if let Err(reason) = held.check() {
            return reason;
        }
        let left = deadline.saturating_sub(sent_at);
        if left < LEAST_LEFT {
            next = deadline;
            continue;
        }
        // Half of what is left, so that there is always time for another try.
        match once(held, (left / 2).min(held.client.timeout())).await {
            Ok(RenewOutcome::Renewed(lock)) => {
                from = sent_at;
                life = held.ttl.min(Duration::from_millis(lock.remaining_ms));
                if let Err(reason) = held.extend(from.saturating_add(life)) {
                    return reason;
                }
                backoff.reset();
                next = from.saturating_add(pause(life));
            }
            Ok(RenewOutcome::NotHeld) => return LostReason::NotHeld,
            Ok(RenewOutcome::NotYours) => return LostReason::NotYours,
            Err(error) => {
                tracing::debug!(resource = held.claim.resource().as_str(), token = %held.claim.token(),
                    owner = held.owner, %error, "a renewal failed and is tried again");
                next = clock.elapsed().saturating_add(backoff.next());
            }
        }
    }
}

/// Renews once. Only what the endpoint itself says about the lease is a loss; everything else is
/// an error that may pass.
async fn once(held: &Held, limit: Duration) -> Result<RenewOutcome, ClientError> {
    let resource = held.claim.resource();
    let ttl_ms = u64::try_from(held.ttl.as_millis()).unwrap_or(u64::MAX);
    let body = RenewBody { owner_token: &held.secret, ttl_ms };
    let outcome = held.client.renew_once(resource, &body, limit).await?;
    match &outcome {
        RenewOutcome::Renewed(lock)
            if lock.resource != *resource || lock.token != held.claim.token() =>
        {
            Err(ClientError::new(
                ClientErrorKind::OutcomeUnknown,
                "the answer is about another grant: check the proxies",
            ))
        }
        _ => Ok(outcome),
    }
}
