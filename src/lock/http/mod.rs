//! The lock endpoint over HTTP.

mod acquire;
mod answer;
mod body;
mod delivery;
mod request_id;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::request::Parts;
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;

use self::body::Fields;
use self::delivery::Deliveries;
use self::request_id::RequestId;
use super::api::DEFAULT_MAX_TTL;
use super::rules::Refusal;
use super::wait::Lines;
use super::{KeyRing, LockStore, Role, StoreError};
use crate::clock::{Clock, SystemClock};
use crate::{Problem, ProblemKind, Resource};

/// The lock endpoint: an axum router over a [`LockStore`], to be nested anywhere.
///
/// The contract is in `docs/http.md`.
///
/// ```
/// use axum::Router;
/// use fencing::lock::{Endpoint, MemoryLocks};
/// # use tower::ServiceExt;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let app: Router = Router::new().nest("/locks", Endpoint::new(MemoryLocks::new()).router());
///
/// let request = http::Request::post("/locks/nightly-batch")
///     .header("content-type", "application/json")
///     .body(axum::body::Body::from(r#"{"owner":"worker-1","ttl_seconds":30}"#))?;
/// let response = app.oneshot(request).await?;
/// assert_eq!(response.status(), 200);
/// # Ok(())
/// # }
/// ```
///
/// It must run inside a tokio runtime: an acquire is a task of its own, so that a client that hangs
/// up in the middle of one leaves no lock behind.
pub struct Endpoint {
    store: Arc<dyn LockStore>,
    clock: Arc<dyn Clock>,
    max_ttl: Duration,
    max_hold: Option<Duration>,
    max_waiting: usize,
    keys: Option<KeyRing>,
    ending: Waits,
}

impl Endpoint {
    /// How many requests may wait for a lock at once, unless it is told otherwise.
    pub const DEFAULT_MAX_WAITING: usize = 10_000;

    /// An endpoint over a store, on the system's clock.
    #[must_use]
    pub fn new(store: impl LockStore) -> Self {
        Self {
            store: Arc::new(store),
            clock: Arc::new(SystemClock),
            max_ttl: DEFAULT_MAX_TTL,
            max_hold: None,
            max_waiting: Self::DEFAULT_MAX_WAITING,
            keys: None,
            ending: Waits(Arc::new(watch::Sender::new(false))),
        }
    }

    /// The longest TTL it grants; a longer one is refused. At least 1 ms, at most 100 years.
    #[must_use]
    pub fn with_max_ttl(mut self, max_ttl: Duration) -> Self {
        const CENTURY: Duration = Duration::from_hours(24 * 36_525);
        self.max_ttl = max_ttl.clamp(Duration::from_millis(1), CENTURY);
        self
    }

    /// The longest a grant may be held in all, however often it is renewed. A request may ask for
    /// less. There is no such cap unless it is set.
    #[must_use]
    pub fn with_max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold.max(Duration::from_millis(1)));
        self
    }

    /// How many requests may wait for a lock at once; those beyond get 503 `overloaded`.
    #[must_use]
    pub fn with_max_waiting(mut self, max_waiting: usize) -> Self {
        self.max_waiting = max_waiting.min(Semaphore::MAX_PERMITS);
        self
    }

    /// Lets in only who has a key, with what it may be used for. Without this, whoever reaches the
    /// endpoint may do anything.
    #[must_use]
    pub fn with_keys(mut self, keys: KeyRing) -> Self {
        self.keys = Some(keys);
        self
    }

    /// The clock that waits are measured with. When a grant ends is decided by the store's.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// The waits of this endpoint, to end them when the server shuts down.
    #[must_use]
    pub fn waits(&self) -> Waits {
        self.ending.clone()
    }

    /// The routes `/{resource}`, `/{resource}/renew` and `/{resource}/token`.
    pub fn router<S: Clone + Send + Sync + 'static>(self) -> Router<S> {
        let lines = Lines::default();
        let shared = Arc::new(Shared {
            deliveries: Deliveries::new(Arc::clone(&self.store), lines.clone()),
            lines,
            store: self.store,
            clock: self.clock,
            max_ttl: self.max_ttl,
            max_hold: self.max_hold,
            waiting: Arc::new(Semaphore::new(self.max_waiting)),
            keys: self.keys,
            ending: self.ending,
            watch: OnceLock::new(),
        });
        Router::new()
            .route("/{resource}", post(acquire).get(show).delete(release))
            .route("/{resource}/renew", post(renew))
            .route("/{resource}/token", get(token))
            .layer(axum::middleware::from_fn(request_id::attach))
            .with_state(shared)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("store", &self.store)
            .field("max_ttl", &self.max_ttl)
            .field("max_hold", &self.max_hold)
            .field("max_waiting", &self.max_waiting)
            .field("keys", &self.keys)
            .finish_non_exhaustive()
    }
}

/// The requests that wait for a lock at an [`Endpoint`].
#[derive(Clone, Debug)]
pub struct Waits(Arc<watch::Sender<bool>>);

impl Waits {
    /// Ends all waits, those to come too: they are answered with `"acquired":false`. For a
    /// graceful shutdown, which would otherwise take as long as the longest wait.
    pub fn end(&self) {
        self.0.send_replace(true);
    }

    fn subscribe(&self) -> watch::Receiver<bool> {
        self.0.subscribe()
    }
}

/// What all requests of an endpoint share.
struct Shared {
    store: Arc<dyn LockStore>,
    clock: Arc<dyn Clock>,
    max_ttl: Duration,
    max_hold: Option<Duration>,
    waiting: Arc<Semaphore>,
    keys: Option<KeyRing>,
    ending: Waits,
    lines: Lines,
    deliveries: Deliveries,
    watch: OnceLock<Watch>,
}

/// The task that hears of releases through other servers.
struct Watch(AbortHandle);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Shared {
    /// From the first request that waits on, releases through other servers are listened for.
    fn watch(&self) {
        self.watch.get_or_init(|| {
            let (store, lines) = (Arc::clone(&self.store), self.lines.clone());
            let task = tokio::spawn(async move {
                store.watch(&|resource| lines.released(resource)).await;
            });
            Watch(task.abort_handle())
        });
    }

    /// Lets a request in: first who asks is found out, then about what, then whether they may.
    fn enter(&self, parts: &Parts, tail: &str, role: Role) -> Result<Resource, Problem> {
        let Some(keys) = &self.keys else { return resource(parts, tail) };
        let refused = |problem: Problem, key| {
            let (reason, request_id) = (problem.kind().name(), RequestId::of(parts));
            let resource = problem.resource().map(tracing::field::display);
            tracing::warn!(reason, key, resource, %request_id, "not let in");
            problem
        };
        let caller = keys.admit(&parts.headers).map_err(|problem| refused(problem, None))?;
        let resource = resource(parts, tail)?;
        match caller.check(role, Some(&resource)) {
            Ok(_) => Ok(resource),
            Err(problem) => Err(refused(problem, Some(&**caller.name()))),
        }
    }
}

type Ours = State<Arc<Shared>>;
type Request = http::Request<Body>;

async fn acquire(State(shared): Ours, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    finish(async {
        let resource = shared.enter(&parts, "", Role::Lock)?;
        let fields = Fields::read(&parts, body).await.map_err(|p| p.with_resource(&resource))?;
        let id = RequestId::of(&parts);
        acquire::acquire(shared, resource, &fields, id).await
    })
    .await
}

async fn renew(State(shared): Ours, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    finish(async {
        let resource = shared.enter(&parts, "/renew", Role::Lock)?;
        let on = |problem: Problem| problem.with_resource(&resource);
        let fields = Fields::read(&parts, body).await.map_err(on)?;
        let secret = fields.owner_token().map_err(on)?.ok_or_else(|| on(no_owner_token()))?;
        let ttl = fields.ttl(shared.max_ttl).map_err(on)?;
        let request_id = RequestId::of(&parts);
        let ttl_ms = answer::millis(ttl);
        match shared.store.renew(&resource, &secret.hash(), ttl).await {
            Ok(Ok(held)) => {
                let (token, owner) = (held.token.get(), held.grant.owner.as_str());
                tracing::debug!(resource = resource.as_str(), token, owner, ttl_ms, %request_id, "renewed");
                Ok(answer::lock(&resource, &held))
            }
            Ok(Err(refusal)) => Err(refused(refusal, &resource, &request_id, "not renewed")),
            Err(error) => Err(unavailable(&error, &resource, &request_id)),
        }
    })
    .await
}

async fn release(State(shared): Ours, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    finish(async {
        let resource = shared.enter(&parts, "", Role::Lock)?;
        let secret = body::owner_token_of_release(&parts, body)
            .await
            .and_then(|secret| secret.ok_or_else(no_owner_token))
            .map_err(|problem| problem.with_resource(&resource))?;
        let request_id = RequestId::of(&parts);
        // In a task of its own: whoever hangs up after a release wants it all the same.
        let step = async move {
            let released = shared.store.release(&resource, &secret.hash()).await;
            if matches!(released, Ok(Ok(()))) {
                shared.lines.released(Some(&resource));
            }
            answer_release(released, &resource, &request_id)
        };
        tokio::spawn(step).await.map_err(|error| stopped(&error))?
    })
    .await
}

fn answer_release(
    released: Result<Result<(), Refusal>, StoreError>,
    resource: &Resource,
    request_id: &RequestId,
) -> Result<Response, Problem> {
    match released {
        Ok(Ok(())) => {
            tracing::info!(resource = resource.as_str(), %request_id, "released");
            Ok(answer::no_content())
        }
        Ok(Err(refusal)) => Err(refused(refusal, resource, request_id, "not released")),
        Err(error) => Err(unavailable(&error, resource, request_id)),
    }
}

async fn show(State(shared): Ours, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    finish(async {
        let resource = shared.enter(&parts, "", Role::Read)?;
        match shared.store.show(&resource).await {
            Ok(Some(held)) => Ok(answer::lock(&resource, &held)),
            Ok(None) => Err(Problem::new(ProblemKind::NOT_HELD).with_resource(&resource)),
            Err(error) => Err(unavailable(&error, &resource, &RequestId::of(&parts))),
        }
    })
    .await
}

async fn token(State(shared): Ours, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    finish(async {
        let resource = shared.enter(&parts, "/token", Role::Read)?;
        match shared.store.highest_token(&resource).await {
            Ok(Some(token)) => Ok(answer::token(&resource, token)),
            Ok(None) => Err(Problem::new(ProblemKind::NOT_HELD)
                .with_detail("no token was ever granted for this resource")
                .with_resource(&resource)),
            Err(error) => Err(unavailable(&error, &resource, &RequestId::of(&parts))),
        }
    })
    .await
}

async fn finish(serve: impl Future<Output = Result<Response, Problem>>) -> Response {
    serve.await.unwrap_or_else(IntoResponse::into_response)
}

/// The resource out of the raw path, which nesting has cut down to the routes above: axum's own
/// decoding lets malformed percent-encoding through.
///
/// `tail` is what the route has after the name. It is taken off rather than the first segment
/// taken, since in `//renew` the router finds an empty name and nesting leaves `/renew`.
fn resource(parts: &Parts, tail: &str) -> Result<Resource, Problem> {
    let name = parts.uri.path().strip_suffix(tail).and_then(|path| path.strip_prefix('/'));
    Ok(Resource::from_path_segment(name.filter(|name| !name.contains('/')).unwrap_or_default())?)
}

fn no_owner_token() -> Problem {
    Problem::invalid_field("owner_token", "the owner token of the grant is needed")
}

fn refused(refusal: Refusal, resource: &Resource, id: &RequestId, what: &'static str) -> Problem {
    let kind = match refusal {
        Refusal::NotHeld => ProblemKind::NOT_HELD,
        Refusal::NotYours => ProblemKind::NOT_YOURS,
    };
    tracing::info!(resource = resource.as_str(), request_id = %id, reason = kind.name(), "{what}");
    Problem::new(kind).with_resource(resource)
}

fn unavailable(error: &StoreError, resource: &Resource, id: &RequestId) -> Problem {
    let cause = std::error::Error::source(error).map(tracing::field::display);
    tracing::error!(resource = resource.as_str(), request_id = %id, cause, "{error}");
    Problem::new(ProblemKind::LOCK_UNAVAILABLE).with_resource(resource)
}

/// A step's task panicked, or the runtime is shutting down.
fn stopped(error: &tokio::task::JoinError) -> Problem {
    tracing::error!(%error, "a step of the locks did not end");
    Problem::new(ProblemKind::LOCK_UNAVAILABLE)
}
