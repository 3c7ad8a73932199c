use std::time::Duration;

use tokio::runtime::Handle;

use super::error::{ClientError, ClientErrorKind};
use super::lock_client::LockClient;
use super::timing::Backoff;
use crate::lock::OwnerToken;
use crate::{ProblemKind, Resource};

/// What a release came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a lock that was not held any more may mean that the work was not protected"]
pub enum ReleaseOutcome {
    /// The grant was live and has ended, or this very grant was released before.
    Released,
    /// Nobody holds the lock: the grant had expired.
    NotHeld,
    /// Another holds the lock by now: the grant had expired. After an answer that was lost it can
    /// also mean that the release was served, and the lock taken by another since.
    NotYours,
}

/// The limits of the pause after a release that failed.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How often a background release asks again.
const MORE_TRIES: u32 = 3;

impl LockClient {
    /// Asks once for a release, within `limit`.
    pub(super) async fn release_once(
        &self,
        resource: &Resource,
        secret: &OwnerToken,
        limit: Duration,
    ) -> Result<ReleaseOutcome, ClientError> {
        let answer = self.exchange(self.delete(resource, secret)?, limit).await?;
        if answer.status.is_success() {
            Ok(ReleaseOutcome::Released)
        } else if answer.is(ProblemKind::NOT_HELD) {
            Ok(ReleaseOutcome::NotHeld)
        } else if answer.is(ProblemKind::NOT_YOURS) {
            Ok(ReleaseOutcome::NotYours)
        } else {
            Err(answer.into_error())
        }
    }

    /// Releases, and tries again what may pass for as long as `patience`. It is idempotent, so a
    /// lost answer is no reason to stop.
    pub(super) async fn release_patiently(
        &self,
        resource: &Resource,
        secret: &OwnerToken,
        patience: Duration,
    ) -> Result<ReleaseOutcome, ClientError> {
        let end = self.clock().elapsed().saturating_add(patience);
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut in_doubt = false;
        loop {
            let error = match self.release_once(resource, secret, self.timeout()).await {
                Ok(outcome) => return Ok(outcome),
                Err(error) => error,
            };
            in_doubt |= error.kind() == ClientErrorKind::OutcomeUnknown;
            let left = end.saturating_sub(self.clock().elapsed());
            if !error.is_retryable() || left.is_zero() {
                return Err(if in_doubt { error.with_unknown_outcome() } else { error });
            }
            tracing::debug!(resource = resource.as_str(), %error, "a release failed and is tried again");
            self.clock().sleep(backoff.next().min(left)).await;
        }
    }

    /// Releases at best effort. `in_doubt` is whether a request for the grant may yet arrive.
    pub(super) async fn give_back(&self, resource: &Resource, secret: &OwnerToken, in_doubt: bool) {
        for tries in 0.. {
            let error = match self.release_once(resource, secret, self.timeout()).await {
                Ok(ReleaseOutcome::NotHeld) if in_doubt => None,
                Ok(_) => return,
                Err(error) => Some(error),
            };
            let more = tries < MORE_TRIES && error.as_ref().is_none_or(ClientError::is_retryable);
            if !more {
                if let Some(error) = error {
                    tracing::debug!(resource = resource.as_str(), %error, "a grant was not released; its TTL ends it");
                }
                return;
            }
            self.clock().sleep(LONGEST_PAUSE * (1 << tries)).await;
        }
    }
}

/// Releases in the background what may have been granted, at best effort.
///
/// The request for the grant may still be on its way, and be overtaken by the release: then nobody
/// holds the lock *yet*. So it is asked again a few times.
pub(super) fn give_back_in_doubt(
    runtime: &Handle,
    client: &LockClient,
    resource: &Resource,
    secret: &OwnerToken,
) {
    let (client, resource, secret) = (client.clone(), resource.clone(), secret.clone());
    // On a runtime that has shut down this drops the future, and does not panic.
    runtime.spawn(async move { client.give_back(&resource, &secret, true).await });
}
