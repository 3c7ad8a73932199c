//! Level exclusive. Every interleaving is made by hand: requests are polled one step at a time, and
//! handlers go on when the test says so.

mod cancelling;
mod farewells;
mod load;
mod turns;
mod wiring;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing;
use fencing::guard::{FenceLayer, Gate, GatePermit};
use fencing::marks::{Marks, MemoryMarks};
use fencing::testing::ManualClock;
use fencing::{Problem, ProblemKind};
use http::Response;
use http_body_util::BodyExt;
use tokio::sync::oneshot;
use tower::ServiceExt;

use crate::support::{TOKEN, put, send};

/// A service behind a gate whose handlers wait for the test.
struct Stage {
    app: Router,
    gate: Gate,
    clock: ManualClock,
    handlers: Handlers,
}

/// The handlers that were called and that the test has not answered yet.
type Handlers = Arc<Mutex<Vec<Handler>>>;

struct Handler {
    token: i64,
    permit: Option<GatePermit>,
    answer: oneshot::Sender<Body>,
}

async fn work(State(handlers): State<Handlers>, permit: GatePermit) -> Result<Body, Problem> {
    let (answer, answered) = oneshot::channel();
    let token = permit.token().get();
    handlers.lock().unwrap().push(Handler { token, permit: Some(permit), answer });
    answered.await.map_err(|_| Problem::new(ProblemKind::WRITE_FAILED))
}

async fn look() -> &'static str {
    "looked"
}

impl Stage {
    fn new() -> Self {
        Self::with(MemoryMarks::ephemeral(), |gate| gate)
    }

    fn with(marks: impl Marks, options: impl FnOnce(Gate) -> Gate) -> Self {
        let clock = ManualClock::new();
        let gate = options(Gate::with_clock(clock.clone()));
        let handlers = Handlers::default();
        let layer = FenceLayer::new(marks).resource("file:{name}").exclusive(gate.clone());
        let app = Router::new()
            .route("/files/{name}", routing::put(work).get(look))
            .route("/empty/{name}", routing::put(|| async {}))
            .route_layer(layer)
            .with_state(Arc::clone(&handlers));
        Self { app, gate, clock, handlers }
    }

    fn put(&self, uri: &str, token: i64) -> Running {
        Running::new(self.app.clone().oneshot(put(uri, &token.to_string())))
    }

    /// The tokens of the handlers that were called and not answered yet.
    fn inside(&self) -> Vec<i64> {
        self.handlers.lock().unwrap().iter().map(|handler| handler.token).collect()
    }

    /// Takes the permit that the handler of a token handed to the test.
    fn permit(&self, token: i64) -> GatePermit {
        let mut handlers = self.handlers.lock().unwrap();
        handlers.iter_mut().find(|it| it.token == token).unwrap().permit.take().unwrap()
    }

    /// Has the first handler of a token answer, and drops the permit that it handed to the test.
    fn answer(&self, token: i64, body: impl Into<Body>) {
        let mut handlers = self.handlers.lock().unwrap();
        let at = handlers.iter().position(|handler| handler.token == token).unwrap();
        let handler = handlers.remove(at);
        handler.answer.send(body.into()).unwrap();
    }
}

/// A request on its way, polled by hand.
struct Running {
    future: Pin<Box<dyn Future<Output = Response<Body>> + Send>>,
    woken: Arc<Woken>,
}

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Running {
    fn new<E: std::fmt::Debug>(
        future: impl Future<Output = Result<Response<Body>, E>> + Send + 'static,
    ) -> Self {
        let future = Box::pin(async move { future.await.unwrap() });
        Self { future, woken: Arc::default() }
    }

    fn poll(&mut self) -> Poll<Response<Body>> {
        let waker = Waker::from(Arc::clone(&self.woken));
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    #[track_caller]
    fn pending(&mut self) {
        assert!(self.poll().is_pending(), "it must still wait");
    }

    #[track_caller]
    fn ready(&mut self) -> Response<Body> {
        match self.poll() {
            Poll::Ready(response) => response,
            Poll::Pending => panic!("it must not wait any more"),
        }
    }

    /// Whether something woke it since the last time this was asked.
    fn woken(&self) -> bool {
        self.woken.0.swap(0, Ordering::SeqCst) > 0
    }
}

fn header(response: &Response<Body>) -> Option<&http::HeaderValue> {
    response.headers().get(TOKEN)
}

fn kind(response: &Response<Body>) -> (u16, &'static str) {
    let problem = response.extensions().get::<Problem>().expect("a refusal");
    (response.status().as_u16(), problem.kind().name())
}

async fn text(response: Response<Body>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}
