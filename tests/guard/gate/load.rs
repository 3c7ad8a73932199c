//! The gate under load: nothing is let in wrongly, nobody is forgotten, nothing is left.

use std::sync::atomic::AtomicI64;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;

use super::*;

const CLIENTS: u64 = 48;
const REQUESTS: u64 = 150;
const RESOURCES: usize = 3;

/// What is protected: who is at it, and under which tokens it was written.
#[derive(Default)]
struct Protected(Mutex<Content>);

#[derive(Default)]
struct Content {
    at_it: Vec<i64>,
    written: Vec<i64>,
}

impl Protected {
    /// Also after a failure, which is told by whoever failed first.
    fn lock(&self) -> MutexGuard<'_, Content> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One at work. Others may be at it under the same token only.
struct Work {
    protected: Arc<Protected>,
    token: i64,
}

impl Work {
    fn begin(protected: Arc<Protected>, token: i64) -> Self {
        let mut content = protected.lock();
        content.at_it.push(token);
        assert!(content.at_it.iter().all(|other| *other == token), "{:?}", content.at_it);
        drop(content);
        Self { protected, token }
    }

    fn write(&self) {
        self.protected.lock().written.push(self.token);
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.write();
        let mut content = self.protected.lock();
        let at = content.at_it.iter().position(|token| *token == self.token).unwrap();
        content.at_it.swap_remove(at);
    }
}

#[derive(Clone)]
struct Service {
    protected: Arc<[Arc<Protected>; RESOURCES]>,
    seed: Arc<AtomicUsize>,
}

impl Service {
    fn random(&self) -> fastrand::Rng {
        fastrand::Rng::with_seed(self.seed.fetch_add(1, Ordering::Relaxed) as u64)
    }
}

/// Works here, in a blocking closure or in the body of its response, and says no word before it
/// starts.
async fn handler(State(service): State<Service>, permit: GatePermit) -> Body {
    let name = permit.resource().as_str();
    let resource: usize = name.rsplit(':').next().unwrap().parse().unwrap();
    let protected = Arc::clone(&service.protected[resource]);
    let mut random = service.random();
    let work = Work::begin(protected, permit.token().get());
    for _ in 0..random.u8(0..4) {
        tokio::task::yield_now().await;
        work.write();
    }
    match random.u8(0..4) {
        0 => {
            // Not awaited when the client hangs up. The work drops before the permit does.
            let blocking = tokio::task::spawn_blocking(move || {
                let permit = permit;
                work.write();
                drop(work);
                drop(permit);
            });
            blocking.await.unwrap();
            Body::empty()
        }
        1 => Body::new(Chunks { work, left: random.u8(0..4) }),
        _ => Body::empty(),
    }
}

struct Chunks {
    work: Work,
    left: u8,
}

impl http_body::Body for Chunks {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.work.write();
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"chunk")))))
    }
}

/// How the requests of a client ended: served, stale, cancelled, hung up.
type Counts = [usize; 4];

async fn client(app: Router, seed: u64, newest: Arc<AtomicI64>) -> Counts {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut counts = Counts::default();
    for _ in 0..REQUESTS {
        let granted = newest.fetch_add(i64::from(random.u8(0..8) == 0), Ordering::Relaxed);
        let token = (granted - i64::from(random.u8(0..8) / 6)).max(1);
        let uri = format!("/files/{}", random.usize(0..RESOURCES));
        let request = app.clone().oneshot(put(&uri, &token.to_string()));
        let patience = match random.u8(0..8) {
            0 => Duration::from_micros(random.u64(0..300)),
            _ => Duration::from_secs(60),
        };
        let Ok(response) = tokio::time::timeout(patience, request).await else {
            counts[3] += 1;
            continue;
        };
        let response = response.unwrap();
        match response.status().as_u16() {
            200 => {
                counts[0] += 1;
                // One in four hangs up before it has read all.
                let mut body = response.into_body();
                for _ in 0..random.u8(1..8) {
                    if !matches!(body.frame().await, Some(Ok(_))) {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
            }
            412 => counts[1] += 1,
            500 if kind(&response) == (500, "outcome-unknown") => counts[2] += 1,
            _ => panic!("{:?}", kind(&response)),
        }
    }
    counts
}

async fn storm(gate: Gate, seed: u64) -> Counts {
    // Longer than all of it takes: whoever is forgotten at the gate is not helped by the timer.
    let gate = gate.drain_timeout(Duration::from_secs(3600));
    let service =
        Service { protected: Arc::default(), seed: Arc::new(AtomicUsize::new(seed as usize)) };
    let layer = FenceLayer::new(MemoryMarks::ephemeral()).resource("file:{name}");
    let app = Router::new()
        .route("/files/{name}", routing::put(handler))
        .route_layer(layer.exclusive(gate.clone()))
        .with_state(service.clone());
    let newest = Arc::new(AtomicI64::new(1));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|n| tokio::spawn(client(app.clone(), seed ^ (n << 32), Arc::clone(&newest))))
        .collect();
    let mut all = Counts::default();
    for client in clients {
        let counts = tokio::time::timeout(Duration::from_secs(60), client).await;
        let counts = counts.expect("somebody waits for ever").unwrap();
        all.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    // Blocking closures whose clients hung up may go on for a moment.
    while gate.visited() > 0 {
        tokio::task::yield_now().await;
    }
    for protected in service.protected.iter() {
        let content = protected.lock();
        assert!(content.at_it.is_empty());
        assert!(content.written.is_sorted(), "I1 broken with seed {seed}");
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn i1_under_load_tokens_never_mix_nobody_waits_for_ever_and_nothing_is_left() {
    for seed in 0..3 {
        let [served, stale, cancelled, hung_up] = storm(Gate::new(), seed).await;
        assert!(served > 0 && stale > 0 && hung_up > 0, "{served} {stale} {hung_up}");
        assert_eq!(cancelled, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn i1_under_load_with_older_requests_cancelled() {
    for seed in 10..13 {
        let counts = storm(Gate::new().cancel_older(true), seed).await;
        assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    }
}
