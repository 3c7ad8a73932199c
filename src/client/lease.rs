use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use http::Request;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::attach::attach;
use super::error::{ClientError, ClientErrorKind};
use super::grant::Grant;
use super::lock_client::LockClient;
use super::release::ReleaseOutcome;
use super::renew::renew;
use crate::lock::OwnerToken;
use crate::{Claim, Resource, Token};

/// A lock that is held, and renews itself.
///
/// A lease is a promise with a deadline: the grant's TTL reckoned from when the last successful
/// request was *sent*, on a clock that runs on while the machine is suspended. One background task
/// renews it at a third of the TTL, and tries again until the deadline when that fails. What the
/// server says about the lease itself (nobody holds it, another holds it) is believed at once.
/// Whatever else comes back (503, 401, the 404 of some proxy, nothing) is not.
///
/// # What it does not promise
///
/// No client can know that it still holds a lock: it may be paused between the look at the clock
/// and the write. So every write carries the [claim](Self::claim), and the resource refuses what
/// is stale. [`is_held`](Self::is_held), [`lost`](Self::lost) and [`run`](Self::run) only save
/// work that would be refused.
///
/// # Commit first, release after
///
/// What is written under the lease must be committed before the lock is released, or the next
/// holder reads around it. [`release`](Self::release) takes the lease by value and comes last:
///
/// ```
/// # use std::time::Duration;
/// # use fencing::Claim;
/// # use fencing::testing::LockServer;
/// # async fn set_quantity(claim: &Claim) -> Result<(), Box<dyn std::error::Error>> { Ok(()) }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = LockServer::start().await?;
/// # let client = server.client();
/// let Some(lease) = client.acquire("inventory:item:1").ttl(Duration::from_secs(10)).await? else {
///     return Ok(()); // another holds it
/// };
/// // Writes and commits under the claim; is dropped where it stands when the lease is lost.
/// lease.run(set_quantity(lease.claim())).await??;
/// let outcome = lease.release().await?;
/// # assert_eq!(outcome, fencing::client::ReleaseOutcome::Released);
/// # Ok(())
/// # }
/// ```
///
/// # Dropping
///
/// A lease that is dropped stops its renewals and releases in the background, at best effort. It
/// never panics: without its runtime, or on any thread, the grant ends by its TTL instead. A lease
/// that is leaked is renewed for ever, unless [`max_hold`](super::Acquire::max_hold) is set.
#[must_use = "a lease that is dropped is released"]
pub struct Lease {
    held: Arc<Held>,
    runtime: Handle,
    /// Gone once the lease was released.
    renewals: Option<JoinHandle<()>>,
}

/// What the lease, its renewals and whoever waits for its loss share.
pub(super) struct Held {
    pub(super) client: LockClient,
    pub(super) claim: Claim,
    pub(super) owner: String,
    pub(super) secret: OwnerToken,
    pub(super) ttl: Duration,
    deadline: Mutex<Duration>,
    lost: watch::Sender<Option<LostReason>>,
}

/// A grant, reckoned on the client's clock.
pub(super) struct Granted {
    pub(super) token: Token,
    /// What the life of the grant counts from at the earliest.
    pub(super) from: Duration,
    pub(super) life: Duration,
    pub(super) deadline: Duration,
}

/// Why a lease is no longer held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LostReason {
    /// The deadline passed before a renewal succeeded.
    Expired,
    /// The server said that nobody holds the lock: the grant expired or was released by force.
    NotHeld,
    /// The server said that another holds the lock.
    NotYours,
    /// A fenced service refused the token: [`Lease::report_stale`].
    Stale,
    /// The lease was released or dropped.
    Released,
    /// The runtime of the lease was shut down, and its renewals with it.
    Shutdown,
}

/// A lease is no longer held.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lost {
    claim: Claim,
    reason: LostReason,
}

impl Lost {
    /// Why.
    #[must_use]
    pub fn reason(&self) -> LostReason {
        self.reason
    }

    /// What was held.
    #[must_use]
    pub fn claim(&self) -> &Claim {
        &self.claim
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.reason {
            LostReason::Expired => "the lease expired before a renewal succeeded",
            LostReason::NotHeld => "the lease was lost: nobody holds the lock",
            LostReason::NotYours => "the lease was lost: another holds the lock",
            LostReason::Stale => "the lease was lost: a resource has accepted a higher token",
            LostReason::Released => "the lease was released",
            LostReason::Shutdown => "the lease is not renewed any more: its runtime was shut down",
        };
        write!(f, "{why}, resource=`{}`, token=`{}`", self.claim.resource(), self.claim.token())
    }
}

impl std::error::Error for Lost {}

impl Held {
    /// Whether it is held at this moment, by the clock. Once it is not, it never is again.
    pub(super) fn check(&self) -> Result<(), LostReason> {
        if let Some(reason) = *self.lost.borrow() {
            return Err(reason);
        }
        if self.remaining().is_zero() { Err(LostReason::Expired) } else { Ok(()) }
    }

    pub(super) fn deadline(&self) -> Duration {
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remaining(&self) -> Duration {
        self.deadline().saturating_sub(self.client.clock().elapsed())
    }

    /// Moves the deadline, unless it has passed: what was lost stays lost, whatever a late answer
    /// says. Never moves it back.
    pub(super) fn extend(&self, to: Duration) -> Result<(), LostReason> {
        let mut deadline = self.deadline.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reason) = *self.lost.borrow() {
            return Err(reason);
        }
        if self.client.clock().elapsed() >= *deadline {
            return Err(LostReason::Expired);
        }
        *deadline = to.max(*deadline);
        Ok(())
    }

    /// Notes that it is lost; the first reason stays. Tells whether this is the first.
    pub(super) fn lose(&self, reason: LostReason) -> bool {
        self.lost.send_if_modified(|lost| {
            let first = lost.is_none();
            lost.get_or_insert(reason);
            first
        })
    }

    /// Waits until somebody has noted that it is lost.
    pub(super) async fn noted(&self) -> LostReason {
        let mut lost = self.lost.subscribe();
        loop {
            if let Some(reason) = *lost.borrow_and_update() {
                return reason;
            }
            if lost.changed().await.is_err() {
                // The sender is in `self`, so this does not happen.
                return LostReason::Released;
            }
        }
    }

    fn lost(&self, reason: LostReason) -> Lost {
        Lost { claim: self.claim.clone(), reason }
    }
}

impl Lease {
    pub(super) fn start(
        client: LockClient,
        resource: Resource,
        owner: String,
        secret: OwnerToken,
        ttl: Duration,
        granted: &Granted,
        runtime: Handle,
    ) -> Self {
        let held = Arc::new(Held {
            client,
            claim: Claim::new(resource, granted.token),
            owner,
            secret,
            ttl,
            deadline: Mutex::new(granted.deadline),
            lost: watch::Sender::new(None),
        });
        tracing::debug!(resource = held.claim.resource().as_str(), token = %held.claim.token(),
            owner = held.owner, ttl_ms = ttl.as_millis(), "acquired");
        let renewals = renew(Arc::clone(&held), granted.from, granted.life);
        let renewals = Some(runtime.spawn(renewals));
        Self { held, runtime, renewals }
    }

    /// What is held.
    #[must_use]
    pub fn resource(&self) -> &Resource {
        self.held.claim.resource()
    }

    /// The fencing token it is held under. It stays the same for the life of the lease.
    #[must_use]
    pub fn token(&self) -> Token {
        self.held.claim.token()
    }

    /// The label of who holds it.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.held.owner
    }

    /// The claim that every write under the lease carries. It can be sent along in a job; there it
    /// says under which token to write, and nothing about the lease.
    #[must_use]
    pub fn claim(&self) -> &Claim {
        &self.held.claim
    }

    /// Whether it is held at this moment: the clock is read at each call. Once `false`, always
    /// `false`. See [above](Self#what-it-does-not-promise) for what `true` is worth.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held.check().is_ok()
    }

    /// How long it will still be held if no renewal succeeds, and nothing once it is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        if self.is_held() { self.held.remaining() } else { Duration::ZERO }
    }

    /// Waits until the lease is lost, at the latest at its deadline. It can be called any number of
    /// times, before and after, and the future outlives the lease: it is done as well when the
    /// lease is released or dropped.
    ///
    /// # Cancellation
    ///
    /// Nothing happens when the future is dropped.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + use<> {
        let held = Arc::clone(&self.held);
        async move {
            let reason = match held.check() {
                Ok(()) => held.noted().await,
                Err(reason) => reason,
            };
            held.lost(reason)
        }
    }

    /// Runs `work` until it is done or the lease is lost, whichever comes first. Before each step
    /// of the work the clock is read, so that after a pause it does not take another.
    ///
    /// # Errors
    ///
    /// [`Lost`]: the work was dropped at one of its awaits. What it had begun may have been done or
    /// not. A task that it spawned runs on, unless it is tied to it.
    ///
    /// # Cancellation
    ///
    /// When this future is dropped the work is, and the lease stays.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Lost> {
        let (mut work, mut lost) = (pin!(work), pin!(self.lost()));
        poll_fn(|cx| {
            if let Poll::Ready(lost) = lost.as_mut().poll(cx) {
                return Poll::Ready(Err(lost));
            }
            if let Err(reason) = self.held.check() {
                return Poll::Ready(Err(self.held.lost(reason)));
            }
            work.as_mut().poll(cx).map(Ok)
        })
        .await
    }

    /// Puts the token on an outgoing request, unless the lease is lost.
    ///
    /// ```
    /// # use fencing::testing::LockServer;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = LockServer::start().await?;
    /// # let Some(lease) = server.client().acquire("inventory:item:1").await? else { return Ok(()) };
    /// let mut request = http::Request::put("http://inventory/1").body("7")?;
    /// lease.attach(&mut request)?;
    /// assert_eq!(request.headers()["x-fencing-token"], lease.token().to_string());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Lost`]; the request is left as it was.
    pub fn attach<B>(&self, request: &mut Request<B>) -> Result<(), Lost> {
        self.held.check().map_err(|reason| self.held.lost(reason))?;
        attach(request, &self.held.claim);
        Ok(())
    }

    /// Notes that a fenced service has refused the token as stale (412 `stale-token`): another
    /// holds the lock, whatever the clocks say. The lease is lost at once.
    pub fn report_stale(&self) {
        self.held.lose(LostReason::Stale);
    }

    /// Stops the renewals and hands out the grant, to be renewed and released by whoever gets its
    /// owner token. Whoever waits for the loss of the lease learns that it is
    /// [`Released`](LostReason::Released): it is no lease any more.
    ///
    /// # Errors
    ///
    /// [`Lost`] when there is no grant to hand out.
    pub fn into_grant(mut self) -> Result<Grant, Lost> {
        // Without the task, dropping the lease releases nothing. What is lost the task gives back
        // by itself.
        let renewals = self.renewals.take();
        let remaining = self.held.remaining();
        self.held.check().map_err(|reason| self.held.lost(reason))?;
        if !self.held.lose(LostReason::Released) {
            let noted = *self.held.lost.borrow();
            return Err(self.held.lost(noted.unwrap_or(LostReason::Released)));
        }
        if let Some(renewals) = renewals {
            renewals.abort();
        }
        Ok(Grant {
            claim: self.held.claim.clone(),
            owner: self.held.owner.clone(),
            owner_token: self.held.secret.clone(),
            remaining,
        })
    }

    /// Stops the renewals, then releases. Commit first: the next holder may write as soon as this
    /// is under way.
    ///
    /// A release that gets no answer is tried again, for as long as the TTL or twice the client's
    /// [timeout](LockClient::with_timeout), whichever is shorter. No renewal is sent after the
    /// release.
    ///
    /// # Errors
    ///
    /// [`ClientError`] when the server gave no usable answer. The grant then ends by its TTL.
    ///
    /// # Cancellation
    ///
    /// When the future is dropped after its first poll, the release goes on in the background;
    /// before that, the lease is dropped.
    pub async fn release(mut self) -> Result<ReleaseOutcome, ClientError> {
        self.held.lose(LostReason::Released);
        let renewals = self.renewals.take();
        let held = Arc::clone(&self.held);
        let release = self.runtime.spawn(async move {
            stop(renewals).await;
            let patience = held.ttl.min(held.client.timeout() * 2);
            held.client.release_patiently(held.claim.resource(), &held.secret, patience).await
        });
        release.await.unwrap_or_else(|source| {
            Err(ClientError::new(
                ClientErrorKind::OutcomeUnknown,
                "the runtime of the lease was shut down",
            )
            .with_source(source))
        })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(renewals) = self.renewals.take() else { return };
        if !self.held.lose(LostReason::Released) {
            // It was lost before: there is no renewal to stop, and no grant to give back that the
            // renewals do not give back themselves.
            return;
        }
        let held = Arc::clone(&self.held);
        // On a runtime that has shut down this drops the future, and does not panic.
        self.runtime.spawn(async move {
            stop(Some(renewals)).await;
            held.client.give_back(held.claim.resource(), &held.secret, false).await;
        });
    }
}

/// Stops the renewals, and waits until they have: none is sent after that.
async fn stop(renewals: Option<JoinHandle<()>>) {
    if let Some(renewals) = renewals {
        renewals.abort();
        // That it was aborted is no news.
        let _ = renewals.await;
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("resource", &self.resource().as_str())
            .field("token", &self.token().get())
            .field("owner", &self.owner())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
