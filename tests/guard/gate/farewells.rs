//! What a handler or a body does when it is dropped, it does inside.

use fencing::Claim;

use super::*;

type Diary = Arc<Mutex<Vec<String>>>;

/// Notes when it is dropped: the last thing a handler does, wherever it is cancelled.
struct Farewell(Diary, i64);

impl Drop for Farewell {
    fn drop(&mut self) {
        self.0.lock().unwrap().push(format!("{} gone", self.1));
    }
}

/// 33 hangs until it is dropped and takes leave then; 34 says that it came.
async fn hang(State(diary): State<Diary>, claim: Claim) -> Body {
    let token = claim.token().get();
    diary.lock().unwrap().push(format!("{token} came"));
    if token == 33 {
        let _farewell = Farewell(diary, token);
        std::future::pending::<()>().await;
    }
    Body::empty()
}

/// The body of 33 hangs until it is dropped and takes leave then.
async fn hang_in_body(State(diary): State<Diary>, claim: Claim) -> Body {
    let token = claim.token().get();
    diary.lock().unwrap().push(format!("{token} came"));
    if token == 33 {
        let farewell = Farewell(diary, token);
        return Body::new(HangingBody(farewell));
    }
    Body::empty()
}

struct HangingBody(#[allow(dead_code, reason = "it is there to be dropped")] Farewell);

impl http_body::Body for HangingBody {
    type Data = bytes::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<bytes::Bytes>, Self::Error>>> {
        Poll::Pending
    }
}

/// A waker that runs the newer request on the spot: whoever lets it in before the farewell is
/// caught.
struct RunAtOnce(Mutex<Option<Running>>);

impl Wake for RunAtOnce {
    fn wake(self: Arc<Self>) {
        let running = self.0.lock().unwrap().take();
        if let Some(mut running) = running {
            drop(running.poll());
        }
    }
}

fn app(gate: Gate, diary: &Diary) -> Router {
    let layer = FenceLayer::new(MemoryMarks::ephemeral());
    let layer = layer.resource("file:{name}").exclusive(gate);
    Router::new()
        .route("/files/{name}", routing::put(hang))
        .route("/bodies/{name}", routing::put(hang_in_body))
        .route_layer(layer)
        .with_state(Arc::clone(diary))
}

fn newer_waits(app: &Router, uri: &str) -> Arc<RunAtOnce> {
    let newer = Arc::new(RunAtOnce(Mutex::new(None)));
    let mut running = Running::new(app.clone().oneshot(put(uri, "34")));
    let waker = Waker::from(Arc::clone(&newer));
    assert!(running.future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    *newer.0.lock().unwrap() = Some(running);
    newer
}

/// Not looked at under its lock: a failure would keep others from writing their farewell.
fn entries(diary: &Diary) -> Vec<String> {
    diary.lock().unwrap().clone()
}

const ORDER: [&str; 3] = ["33 came", "33 gone", "34 came"];

#[tokio::test]
async fn of_a_handler_whose_client_hangs_up() {
    let diary = Diary::default();
    let app = app(Gate::new(), &diary);
    let mut older = Running::new(app.clone().oneshot(put("/files/a", "33")));
    older.pending();
    let _newer = newer_waits(&app, "/files/a");
    drop(older);
    assert_eq!(entries(&diary), ORDER);
}

#[tokio::test]
async fn of_a_handler_that_is_cancelled() {
    let diary = Diary::default();
    let app = app(Gate::new().cancel_older(true), &diary);
    let mut older = Running::new(app.clone().oneshot(put("/files/a", "33")));
    older.pending();
    let _newer = newer_waits(&app, "/files/a");
    assert_eq!(kind(&older.ready()), (500, "outcome-unknown"));
    assert_eq!(entries(&diary), ORDER);
}

#[tokio::test]
async fn of_a_body_that_is_dropped() {
    let diary = Diary::default();
    let app = app(Gate::new(), &diary);
    let response = send(&app, put("/bodies/a", "33")).await;
    let _newer = newer_waits(&app, "/bodies/a");
    drop(response);
    assert_eq!(entries(&diary), ORDER);
}

#[tokio::test]
async fn of_a_body_that_is_cut_off() {
    let diary = Diary::default();
    let app = app(Gate::new().cancel_older(true), &diary);
    let mut body = send(&app, put("/bodies/a", "33")).await.into_body();
    let _newer = newer_waits(&app, "/bodies/a");
    assert!(body.frame().await.unwrap().is_err());
    assert_eq!(entries(&diary), ORDER);
}
