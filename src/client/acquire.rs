use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::runtime::Handle;

use super::error::{ClientError, ClientErrorKind};
use super::exchange::Answer;
use super::lease::{Granted, Lease};
use super::lock_client::{LockClient, runtime};
use super::release::give_back_in_doubt;
use super::timing::Backoff;
use crate::lock::OwnerToken;
use crate::lock::api::{AcquireAnswer, AcquireBody, LockView, MAX_OWNER_LEN, MAX_WAIT};
use crate::{InvalidResource, ProblemKind, Resource};

/// An acquire in the making: [`LockClient::acquire`]. Awaited it is
/// `Result<Option<Lease>, ClientError>`.
///
/// `Ok(None)` means that another holds the lock and that the time to [wait](Self::wait) is over. It
/// is an answer, not an error: do something else, or give the work back.
///
/// # Retries
///
/// Until the time to wait is over, whatever may pass is tried again: a server that cannot be
/// reached, answers 5xx, 408 or 429, or does not answer. The pauses grow exponentially, with full
/// jitter. Every try of one acquire carries the same owner token, so that a grant whose answer was
/// lost is found again rather than waited for. Other 4xx answers end it at once. Without a time to
/// wait there is one try: give it a second or two where the restart of a server should go unnoticed.
///
/// An answer that arrives when the TTL of its grant has passed is no lease: the grant is released
/// and asked for anew.
///
/// # Cancellation
///
/// When the future is dropped, or gives up without knowing what became of a request, a grant that
/// may have been made is released in the background. That is best effort. Where it fails, and
/// where the request overtakes its release on the way, the grant ends by its TTL.
#[must_use = "an acquire does nothing unless it is awaited"]
#[derive(Debug)]
pub struct Acquire {
    client: LockClient,
    resource: Result<Resource, InvalidResource>,
    owner: Option<String>,
    ttl: Duration,
    wait: Duration,
    max_hold: Option<Duration>,
}

/// How long a grant lives without a renewal, unless it is set.
const DEFAULT_TTL: Duration = Duration::from_secs(30);
/// The limits of the pause after a try that failed.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

impl Acquire {
    pub(super) fn new(client: LockClient, resource: Result<Resource, InvalidResource>) -> Self {
        let wait = Duration::ZERO;
        Self { client, resource, owner: None, ttl: DEFAULT_TTL, wait, max_hold: None }
    }

    /// Sets how long the grant lives without a renewal, in whole milliseconds, at least 1; 30 s
    /// unless it is set. The lease renews itself at a third of it. It is the longest time the
    /// resource stays locked after its holder has died.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets how long to wait while another holds the lock or the server fails; no time at all
    /// unless it is set. The last answer may take up to the client's
    /// [timeout](LockClient::with_timeout) longer.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Sets the label of who takes the lock, for people to read: 1 to 255 bytes, not blank. Unless
    /// it is set, it is made of host, program and process id. It is public and proves nothing.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Sets how long the lock may be held in all: no renewal reaches beyond this long after the
    /// grant, and then the lease is lost. The server has a limit of its own.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    async fn run(self) -> Result<Option<Lease>, ClientError> {
        let ask = Ask {
            resource: self.resource.map_err(|source| {
                ClientError::invalid("the resource has no valid name").with_source(source)
            })?,
            owner: valid_owner(self.owner)?,
            ttl: self.ttl,
            ttl_ms: whole_ms("ttl", self.ttl)?,
            max_hold_ms: self.max_hold.map(|hold| whole_ms("max_hold", hold)).transpose()?,
        };
        Tries::new(self.client, ask)?.run(self.wait).await
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Option<Lease>, ClientError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

struct Ask {
    resource: Resource,
    owner: String,
    ttl: Duration,
    ttl_ms: u64,
    max_hold_ms: Option<u64>,
}

/// The tries of one acquire.
struct Tries {
    client: LockClient,
    ask: Ask,
    runtime: Handle,
    secret: OwnerToken,
    /// Whether there may be a grant, or a request on its way that becomes one.
    in_doubt: bool,
}

/// What a try came to.
enum Try {
    Granted { lock: LockView, waited: Duration },
    Held,
    Spent(ClientError),
    Failed { error: ClientError, retry_after: Option<Duration> },
}

impl Tries {
    fn new(client: LockClient, ask: Ask) -> Result<Self, ClientError> {
        Ok(Self { client, ask, runtime: runtime()?, secret: draw()?, in_doubt: false })
    }

    async fn run(mut self, wait: Duration) -> Result<Option<Lease>, ClientError> {
        let give_up_at = self.client.clock().elapsed().saturating_add(wait);
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut redrawn = false;
        loop {
            let sent_at = self.client.clock().elapsed();
            let server_wait = give_up_at.saturating_sub(sent_at).min(MAX_WAIT);
            let (failure, pause) = match self.once(server_wait).await? {
                Try::Granted { lock, waited } => {
                    let granted = self.granted(&lock, sent_at, waited);
                    if granted.deadline > self.client.clock().elapsed() {
                        return Ok(Some(self.into_lease(&granted)));
                    }
                    self.release_what_came_too_late().await?;
                    let late = "the grant had ended when the answer came: set a longer TTL";
                    let error = ClientError::new(ClientErrorKind::Unavailable, late);
                    (Some(error), backoff.next())
                }
                Try::Held => {
                    let waited = self.client.clock().elapsed().saturating_sub(sent_at);
                    if !server_wait.is_zero() && waited >= server_wait {
                        // The server kept us in its queue all the time we asked for: back into it
                        // without a pause.
                        backoff.reset();
                        (None, Duration::ZERO)
                    } else {
                        (None, backoff.next())
                    }
                }
                Try::Spent(error) => {
                    // An earlier try had a grant that has ended, perhaps because the server gave
                    // it back for us when it saw the connection break.
                    self.secret = draw()?;
                    self.in_doubt = false;
                    if !std::mem::replace(&mut redrawn, true) {
                        continue;
                    }
                    (Some(error), backoff.next())
                }
                Try::Failed { error, retry_after } => {
                    (Some(error), backoff.next().saturating_add(retry_after.unwrap_or_default()))
                }
            };
            let left = give_up_at.saturating_sub(self.client.clock().elapsed());
            if left.is_zero() {
                let Some(error) = failure else { return Ok(None) };
                return Err(if self.in_doubt { error.with_unknown_outcome() } else { error });
            }
            if let Some(error) = &failure {
                tracing::debug!(resource = self.ask.resource.as_str(), owner = self.ask.owner, %error,
                    "an acquire failed and is tried again");
            }
            // The last try is made when the time is just over.
            self.client.clock().sleep(pause.min(left)).await;
        }
    }

    /// Asks once. An error ends the acquire.
    async fn once(&mut self, server_wait: Duration) -> Result<Try, ClientError> {
        let request = self.request(server_wait)?;
        let limit = server_wait.saturating_add(self.client.timeout());
        let before = std::mem::replace(&mut self.in_doubt, true);
        let answer = match self.client.exchange(request, limit).await {
            Ok(answer) => answer,
            Err(error) => return self.failed(error, None, before),
        };
        // An hour, as some proxies say, is not meant for locks.
        let retry_after = answer.retry_after().map(|after| after.min(MAX_WAIT));
        if answer.is(ProblemKind::SPENT_OWNER_TOKEN) {
            return Ok(Try::Spent(answer.into_error()));
        }
        if !answer.status.is_success() {
            return self.failed(answer.into_error(), retry_after, before);
        }
        match self.read(&answer) {
            Ok(granted @ Try::Granted { .. }) => Ok(granted),
            Ok(held) => {
                self.in_doubt = before;
                Ok(held)
            }
            Err(error) => self.failed(error, retry_after, before),
        }
    }

    fn read(&self, answer: &Answer) -> Result<Try, ClientError> {
        match answer.json()? {
            AcquireAnswer::Acquired { lock, waited_ms, .. }
                if lock.resource == self.ask.resource =>
            {
                Ok(Try::Granted { lock, waited: Duration::from_millis(waited_ms) })
            }
            AcquireAnswer::Held { .. } => Ok(Try::Held),
            AcquireAnswer::Acquired { .. } => Err(ClientError::new(
                ClientErrorKind::OutcomeUnknown,
                "the answer is about another resource: check the proxies",
            )),
        }
    }

    fn failed(
        &mut self,
        error: ClientError,
        retry_after: Option<Duration>,
        before: bool,
    ) -> Result<Try, ClientError> {
        if error.kind() != ClientErrorKind::OutcomeUnknown {
            // This try has made no grant. Of an earlier one that says nothing.
            self.in_doubt = before;
        }
        if error.is_retryable() { Ok(Try::Failed { error, retry_after }) } else { Err(error) }
    }

    fn request(&self, server_wait: Duration) -> Result<Request<Full<Bytes>>, ClientError> {
        let wait_ms = u64::try_from(server_wait.as_millis()).unwrap_or(u64::MAX);
        let body = AcquireBody {
            owner: &self.ask.owner,
            ttl_ms: self.ask.ttl_ms,
            wait_ms: (wait_ms > 0).then_some(wait_ms),
            max_hold_ms: self.ask.max_hold_ms,
            owner_token: Some(&self.secret),
        };
        self.client.post(&self.ask.resource, "", &body)
    }

    /// Reckons from when the request was *sent*: the TTL counts from the grant, which was made
    /// after that, and after the wait at the server. Reckoned from the arrival of the answer a
    /// lease would outlive its grant by as long as the answer took.
    fn granted(&self, lock: &LockView, sent_at: Duration, waited: Duration) -> Granted {
        // The server cannot have waited for longer than the answer took.
        let took = self.client.clock().elapsed().saturating_sub(sent_at);
        let from = sent_at.saturating_add(waited.min(took));
        let life = self.ask.ttl.min(Duration::from_millis(lock.remaining_ms));
        Granted { token: lock.token, from, life, deadline: from.saturating_add(life) }
    }

    fn into_lease(mut self, granted: &Granted) -> Lease {
        self.in_doubt = false;
        let (client, secret) = (self.client.clone(), self.secret.clone());
        let (resource, owner) = (self.ask.resource.clone(), std::mem::take(&mut self.ask.owner));
        Lease::start(client, resource, owner, secret, self.ask.ttl, granted, self.runtime.clone())
    }

    async fn release_what_came_too_late(&mut self) -> Result<(), ClientError> {
        let released =
            self.client.release_once(&self.ask.resource, &self.secret, self.client.timeout()).await;
        if released.is_err() {
            give_back_in_doubt(&self.runtime, &self.client, &self.ask.resource, &self.secret);
        }
        self.in_doubt = false;
        self.secret = draw()?;
        Ok(())
    }
}

impl Drop for Tries {
    fn drop(&mut self) {
        if self.in_doubt {
            give_back_in_doubt(&self.runtime, &self.client, &self.ask.resource, &self.secret);
        }
    }
}

fn draw() -> Result<OwnerToken, ClientError> {
    OwnerToken::random().map_err(|source| {
        ClientError::new(
            ClientErrorKind::Unavailable,
            "the operating system gave no randomness for an owner token",
        )
        .with_source(source.to_string())
    })
}

pub(super) fn whole_ms(what: &str, duration: Duration) -> Result<u64, ClientError> {
    match u64::try_from(duration.as_millis()) {
        Ok(0) => Err(ClientError::invalid(format!(
            "the {what} must be at least one millisecond, {what}=`{duration:?}`"
        ))),
        Ok(ms) => Ok(ms),
        Err(_) => {
            Err(ClientError::invalid(format!("the {what} is too long, {what}=`{duration:?}`")))
        }
    }
}

fn valid_owner(owner: Option<String>) -> Result<String, ClientError> {
    let Some(owner) = owner else { return Ok(default_owner().to_owned()) };
    if owner.trim().is_empty() || owner.len() > MAX_OWNER_LEN {
        return Err(ClientError::invalid("the owner must be 1 to 255 bytes long and not blank"));
    }
    Ok(owner)
}

/// `host:program:process`, as far as they are known.
fn default_owner() -> &'static str {
    static OWNER: OnceLock<String> = OnceLock::new();
    OWNER.get_or_init(|| {
        let program = std::env::args_os().next().unwrap_or_default();
        let program = std::path::Path::new(&program).file_stem().unwrap_or_default();
        let parts =
            [host(), program.to_string_lossy().into_owned(), std::process::id().to_string()];
        let known = parts.iter().filter(|part| !part.is_empty());
        // Names of hosts and programs have 64 and 255 bytes at most; the end matters most.
        let owner = known.map(String::as_str).collect::<Vec<_>>().join(":");
        let owner: String = owner.chars().filter(|c| !c.is_control()).collect();
        let cut = owner.ceil_char_boundary(owner.len().saturating_sub(MAX_OWNER_LEN));
        owner[cut..].to_owned()
    })
}

#[cfg(unix)]
fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
fn host() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}
