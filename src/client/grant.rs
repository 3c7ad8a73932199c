use std::time::Duration;

use super::acquire::whole_ms;
use super::error::ClientError;
use super::lock_client::LockClient;
use super::release::ReleaseOutcome;
use super::timing::Backoff;
use crate::lock::OwnerToken;
use crate::lock::api::{LockView, RenewBody};
use crate::{Claim, ProblemKind, Resource};

/// A grant that no [`Lease`](super::Lease) looks after: [`Lease::into_grant`](super::Lease::into_grant).
///
/// It ends by its TTL, unless whoever has the owner token renews it
/// ([`LockClient::renew_grant`]) or releases it ([`LockClient::release_grant`]), in this process
/// or in another. Keep the lease where you can: it knows its deadline, and this does not.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[must_use = "nobody renews or releases the grant without its owner token"]
pub struct Grant {
    /// What is held, and under which token.
    pub claim: Claim,
    /// The label of who holds it.
    pub owner: String,
    /// The secret that renews and releases it.
    pub owner_token: OwnerToken,
    /// How long it still lived when it was taken out of its lease.
    pub remaining: Duration,
}

/// What a renewal of a grant came to.
#[derive(Clone, Debug)]
#[must_use = "a lock that is not held any more does not protect the work"]
pub enum RenewOutcome {
    /// It is held for longer, under the same token.
    Renewed(LockView),
    /// Nobody holds the lock: the grant expired or was released. It is not revived; acquire anew.
    NotHeld,
    /// Another holds the lock by now.
    NotYours,
}

/// The limits of the pause after a renewal that failed.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl LockClient {
    /// Renews a grant that no lease looks after, to `ttl` from now; the time left never becomes
    /// shorter. What may pass is tried again for as long as the
    /// [timeout](Self::with_timeout).
    ///
    /// # Errors
    ///
    /// [`ClientError`]. Whether the grant was renewed is not known then, unless the error says
    /// so.
    pub async fn renew_grant(
        &self,
        resource: &Resource,
        owner_token: &OwnerToken,
        ttl: Duration,
    ) -> Result<RenewOutcome, ClientError> {
        let body = RenewBody { owner_token, ttl_ms: whole_ms("ttl", ttl)? };
        let end = self.clock().elapsed().saturating_add(self.timeout());
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            let left = end.saturating_sub(self.clock().elapsed());
            let error = match self.renew_once(resource, &body, left).await {
                Ok(outcome) => return Ok(outcome),
                Err(error) => error,
            };
            let left = end.saturating_sub(self.clock().elapsed());
            let pause = backoff.next();
            if !error.is_retryable() || pause >= left {
                return Err(error);
            }
            self.clock().sleep(pause).await;
        }
    }

    /// Asks once for a renewal, within `limit`.
    pub(super) async fn renew_once(
        &self,
        resource: &Resource,
        body: &RenewBody<'_>,
        limit: Duration,
    ) -> Result<RenewOutcome, ClientError> {
        let answer = self.exchange(self.post(resource, "/renew", body)?, limit).await?;
        if answer.status.is_success() {
            Ok(RenewOutcome::Renewed(answer.json()?))
        } else if answer.is(ProblemKind::NOT_HELD) {
            Ok(RenewOutcome::NotHeld)
        } else if answer.is(ProblemKind::NOT_YOURS) {
            Ok(RenewOutcome::NotYours)
        } else {
            Err(answer.into_error())
        }
    }

    /// Releases a grant that no lease looks after. It is idempotent, and tried again for as long
    /// as twice the [timeout](Self::with_timeout) when it gets no answer.
    ///
    /// # Errors
    ///
    /// [`ClientError`] when the server gave no usable answer. The grant then ends by its TTL.
    pub async fn release_grant(
        &self,
        resource: &Resource,
        owner_token: &OwnerToken,
    ) -> Result<ReleaseOutcome, ClientError> {
        self.release_patiently(resource, owner_token, self.timeout() * 2).await
    }
}
