//! The service itself, apart from how it is started: routes, handlers, and how it is fenced.

mod database;
mod store;

use std::future::pending;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Request, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use fencing::guard::{FenceLayer, Gate, GatePermit};
use fencing::lock::{Endpoint, Waits};
use fencing::marks::CachedMarks;
use fencing::sql::FenceError;
use fencing::{Claim, Problem, ProblemKind, Token};
use serde::Serialize;
use tokio::task::JoinError;

use self::database::Database;
#[allow(unused_imports, reason = "the demo looks at it")]
pub(crate) use self::database::Kind;
use self::store::{Change, Op, Outcome, Store};

const NOT_ENOUGH: ProblemKind =
    ProblemKind::new("not-enough", StatusCode::CONFLICT, "There is not enough in stock");
const NO_SUCH_ITEM: ProblemKind =
    ProblemKind::new("no-such-item", StatusCode::NOT_FOUND, "There is no such item");

/// Where the fence is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Level {
    /// The layer checks, then the handler writes: a pause in between lets a stale write through.
    Door,
    /// The layer has a newer holder wait until older ones have left, then the handler writes. Right
    /// only while no other process writes to the database.
    Exclusive,
    /// The claim and the write are one transaction.
    Transaction,
}

/// Whether there is a fence.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Fence {
    /// Stale writes are refused.
    On,
    /// Nothing is checked, to show what goes wrong.
    Off,
}

/// The name of the lock and mark of an item.
pub(crate) fn resource_name(id: i64) -> String {
    format!("inventory:item:{id}")
}

/// The service with its lock endpoint, on a database whose tables are made when missing. Their names
/// begin with `prefix`.
pub(crate) async fn open(
    database: &str,
    prefix: &str,
    level: Level,
    fence: Fence,
) -> Result<App, OpenError> {
    let Database { store, marks, locks } = Database::open(database, prefix).await?;
    let claims = level == Level::Transaction && fence == Fence::On;
    // What was committed is remembered, so that a storm of stale requests stays out here.
    let layer = FenceLayer::new(CachedMarks::new(marks)).resource("inventory:item:{id}");
    let gate = Gate::new();
    // On the methods of a route, not on the router: there a method that a path does not have would
    // raise the mark before it is answered with 405.
    let fenced = |methods: MethodRouter<Stock>| match (fence, level) {
        (Fence::Off, _) => methods,
        (Fence::On, Level::Door) => methods.route_layer(layer.clone()),
        (Fence::On, Level::Exclusive) => methods.route_layer(layer.clone().exclusive(gate.clone())),
        // The transaction asks the database, so the layer need not.
        (Fence::On, Level::Transaction) => methods.route_layer(layer.clone().deferred()),
    };
    let items = Router::new()
        .route("/inventory/{id}", fenced(get(show).put(put).delete(remove)))
        .route("/inventory/{id}/take", fenced(post(take)))
        .route("/inventory/{id}/log", get(log))
        .with_state(Stock { store, claims });
    let endpoint = Endpoint::new(locks);
    let waits = endpoint.waits();
    Ok(App { router: items.nest("/locks", endpoint.router()), waits })
}

/// The service, ready to be served.
pub(crate) struct App {
    pub(crate) router: Router,
    /// To end the waits for locks when the service stops.
    pub(crate) waits: Waits,
}

pub(crate) type OpenError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone)]
struct Stock {
    store: Arc<dyn Store>,
    /// Whether a write claims in its own transaction.
    claims: bool,
}

impl Stock {
    async fn change(&self, id: ItemId, op: Op, meta: Meta) -> Result<Outcome, FenceError> {
        let change = Change {
            id: id.0,
            op,
            token: meta.token,
            claim: meta.claim.filter(|_| self.claims),
            request_id: meta.request_id,
            pause: meta.pause,
        };
        let Some(permit) = meta.permit else { return self.store.change(&change).await };
        // When the client hangs up, this future is dropped, and a statement that was sent goes on
        // in the database. At level `exclusive` the permit must not be dropped before that has
        // ended, so what goes on is a task of its own.
        let store = Arc::clone(&self.store);
        let change = tokio::spawn(async move {
            let outcome = store.change(&change).await;
            drop(permit);
            outcome
        });
        match change.await.map_err(JoinError::try_into_panic) {
            Ok(outcome) => outcome,
            Err(Ok(panic)) => resume_unwind(panic),
            // Only a runtime that stops cancels it, and this future with it.
            Err(Err(_)) => pending().await,
        }
    }
}

#[derive(serde::Deserialize)]
struct Quantity {
    quantity: Option<serde_json::Value>,
}

impl Quantity {
    fn at_least(&self, least: i64) -> Result<i64, Problem> {
        let quantity = self.quantity.as_ref().and_then(serde_json::Value::as_i64);
        quantity.filter(|quantity| *quantity >= least).ok_or_else(|| {
            Problem::invalid_field("quantity", format!("must be an integer, {least} or more"))
        })
    }
}

async fn put(
    id: ItemId,
    meta: Meta,
    State(stock): State<Stock>,
    body: Quantity,
) -> Result<StatusCode, Failure> {
    stock.change(id, Op::Put(body.at_least(0)?), meta).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn take(
    id: ItemId,
    meta: Meta,
    State(stock): State<Stock>,
    body: Quantity,
) -> Result<Response, Failure> {
    #[derive(Serialize)]
    struct Left {
        quantity: i64,
    }
    let wanted = body.at_least(1)?;
    match stock.change(id, Op::Take(wanted), meta).await? {
        Outcome::Applied(left) => Ok(json(&Left { quantity: left.unwrap_or(0) })),
        Outcome::NoSuchItem => Err(Problem::new(NO_SUCH_ITEM).into()),
        Outcome::NotEnough { there } => Err(Problem::new(NOT_ENOUGH)
            .with_detail(format!("wanted {wanted}, there are {there}"))
            .into()),
    }
}

async fn remove(id: ItemId, meta: Meta, State(stock): State<Stock>) -> Result<StatusCode, Failure> {
    stock.change(id, Op::Delete, meta).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// With a token this is a claim: the layer raises the mark before the stock is read.
async fn show(id: ItemId, State(stock): State<Stock>) -> Result<Response, Failure> {
    match stock.store.show(id.0).await? {
        Some(item) => Ok(json(&item)),
        None => Err(Problem::new(NO_SUCH_ITEM).into()),
    }
}

async fn log(id: ItemId, State(stock): State<Stock>) -> Result<Response, Failure> {
    Ok(json(&stock.store.log(id.0).await?))
}

fn json(value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

enum Failure {
    Problem(Problem),
    Fence(FenceError),
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl From<FenceError> for Failure {
    fn from(error: FenceError) -> Self {
        Self::Fence(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        match self {
            Self::Problem(problem) => problem.into_response(),
            Self::Fence(error) => error.into_response(),
        }
    }
}

/// The item of the path, in its one spelling. `/inventory/01` would find the row of item 1 under
/// the mark of `inventory:item:01`: two names for one row are no fence.
struct ItemId(i64);

impl<S: Send + Sync> FromRequestParts<S> for ItemId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path(text) = Path::<String>::from_request_parts(parts, state)
            .await
            .map_err(|_| Problem::new(ProblemKind::INVALID_RESOURCE))?;
        match text.parse() {
            Ok(id) if id > 0 && i64::to_string(&id) == text => Ok(Self(id)),
            _ => Err(Problem::new(ProblemKind::INVALID_RESOURCE)
                .with_detail("an item is a positive integer without leading zeros")),
        }
    }
}

/// What the headers say about a change.
struct Meta {
    claim: Option<Claim>,
    /// At level `exclusive`.
    permit: Option<GatePermit>,
    token: Option<Token>,
    request_id: String,
    pause: Duration,
}

impl<S: Send + Sync> FromRequestParts<S> for Meta {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        // Without the layer (`--fence off`) there is no claim: the token is for the log only.
        let claim = parts.extensions.get::<Claim>().cloned();
        let permit = parts.extensions.get::<GatePermit>().cloned();
        let header = |name| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let token = header("x-fencing-token").and_then(|token| token.parse().ok());
        let request_id = header("x-request-id").map_or_else(made_up, str::to_owned);
        let pause = match parts.headers.get("x-demo-pause-ms").map(|ms| ms.to_str()) {
            None => Some(0),
            Some(ms) => ms.ok().and_then(|ms| ms.parse().ok()).filter(|ms| *ms <= 8000),
        };
        let Some(pause) = pause else {
            return Err(Problem::invalid_field("X-Demo-Pause-Ms", "must be 0 to 8000"));
        };
        Ok(Self { claim, permit, token, request_id, pause: Duration::from_millis(pause) })
    }
}

/// An id for a request that came without one.
fn made_up() -> String {
    format!("{:016x}", fastrand::u64(..))
}

/// A body of at most 64 KiB: a JSON object with a quantity, or else a problem document.
impl<S: Send + Sync> FromRequest<S> for Quantity {
    type Rejection = Problem;

    async fn from_request(request: Request<Body>, _: &S) -> Result<Self, Problem> {
        let body = to_bytes(request.into_body(), 64 * 1024)
            .await
            .map_err(|_| Problem::new(ProblemKind::TOO_LARGE))?;
        // serde would take a list for the fields of a struct.
        let object = body.trim_ascii_start().starts_with(b"{");
        serde_json::from_slice(&body)
            .ok()
            .filter(|_| object)
            .ok_or_else(|| Problem::new(ProblemKind::MALFORMED_BODY))
    }
}
