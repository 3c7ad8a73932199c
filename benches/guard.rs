//! What the guard costs, each thing beside what it is to be held against, in rounds that take turns.
//!
//! ```sh
//! cargo bench --features full --bench guard
//! ```
//!
//! Times depend on the machine and on what else it does; the ratios, made of neighbouring rounds in
//! one run, much less. `docs/benchmarks.md` says what they are made of.

#![allow(clippy::print_stdout, reason = "it reports")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "as a test may")]
#![allow(clippy::disallowed_methods, reason = "it is about time that passes")]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::routing::put;
use fencing::guard::FenceLayer;
use fencing::marks::{CachedMarks, Check, Marks, MemoryMarks};
use fencing::{Claim, Resource, Token, Verdict};
use http::{Request, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tower::{Layer, Service, ServiceExt};

/// Rounds of each side. The first of each is to warm up.
const ROUNDS: usize = 41;
const CONNECTIONS: usize = 16;

fn main() {
    let runtime = Runtime::new().unwrap();
    println!("# one route of axum, over TCP, {CONNECTIONS} connections");
    over_tcp(&runtime);
    println!("# the same route, called in place");
    in_place();
    println!("# the decision alone");
    decisions();
    println!("# memory for each resource");
    memory();
}

// === Routes

async fn handler() -> StatusCode {
    StatusCode::NO_CONTENT
}

fn plain() -> Router {
    Router::new().route("/inventory/{id}", put(handler))
}

/// A layer that does nothing: what axum takes for any.
#[derive(Clone)]
struct Nothing;

#[derive(Clone)]
struct Through<S>(S);

impl<S> Layer<S> for Nothing {
    type Service = Through<S>;
    fn layer(&self, inner: S) -> Through<S> {
        Through(inner)
    }
}

impl<S: Service<R>, R> Service<R> for Through<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;
    fn poll_ready(
        &mut self,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }
    fn call(&mut self, request: R) -> S::Future {
        self.0.call(request)
    }
}

fn with_nothing() -> Router {
    plain().route_layer(Nothing)
}

fn fenced(marks: impl Marks) -> Router {
    plain().route_layer(FenceLayer::new(marks).resource("inventory:item:{id}"))
}

/// A store with a database behind it, which counts how often it is asked.
#[derive(Debug, Default)]
struct Remote(AtomicUsize);

impl Marks for Remote {
    fn advance(&self, claim: &Claim) -> Check {
        self.0.fetch_add(1, Ordering::Relaxed);
        let mark = Token::new(34).unwrap();
        let verdict = match mark > claim.token() {
            true => Verdict::Stale { last_token: mark },
            false => Verdict::Accepted,
        };
        Check::Pending(Box::pin(async move {
            tokio::task::yield_now().await;
            Ok(verdict)
        }))
    }
}

// === Over TCP

fn over_tcp(runtime: &Runtime) {
    let remote = Arc::new(Remote::default());
    let side = |router, token| runtime.block_on(Side::open(router, token));
    let sides = [
        side(plain(), "34"),
        side(with_nothing(), "34"),
        side(fenced(MemoryMarks::ephemeral()), "34"),
        side(fenced(CachedMarks::new(Arc::clone(&remote))), "33"),
    ];
    let asked = remote.0.load(Ordering::Relaxed);
    let rounds = rounds(&sides, |side| {
        let begun = Instant::now();
        let count = runtime.block_on(side.requests(Duration::from_millis(100)));
        per_second(count, begun.elapsed())
    });
    let [plain, nothing, fenced, stale] = &rounds;
    println!("plain {:.0} requests/s, any layer {:.0}", median(plain), median(nothing));
    report("guard.layer_over_plain", ratio(fenced, plain), "must 0.93 aim 0.97");
    report("guard.layer_over_any_layer", ratio(fenced, nothing), "");
    report("guard.stale_over_plain", ratio(stale, plain), "must 0.80 aim 0.95");
    let asked = remote.0.load(Ordering::Relaxed) - asked;
    println!(
        "COUNT guard.questions_of_the_stale {asked} must 0 (the store, once the mark is cached)"
    );
}

/// A server of one router, with connections to it that ask one thing again and again.
struct Side {
    connections: tokio::sync::Mutex<Vec<TcpStream>>,
    request: Arc<[u8]>,
    /// Of every response: they are all the same.
    response_len: usize,
}

impl Side {
    async fn open(router: Router, token: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        let request = format!(
            "PUT /inventory/1 HTTP/1.1\r\nhost: x\r\nx-fencing-token: {token}\r\n\
             content-length: 0\r\n\r\n"
        );
        let request: Arc<[u8]> = request.into_bytes().into();
        let mut connections = Vec::new();
        let mut response_len = 0;
        for _ in 0..CONNECTIONS {
            let mut connection = TcpStream::connect(address).await.unwrap();
            connection.set_nodelay(true).unwrap();
            // Twice: the first may be asked of the store.
            for _ in 0..2 {
                connection.write_all(&request).await.unwrap();
                response_len = read_response(&mut connection).await;
            }
            connections.push(connection);
        }
        Self { connections: connections.into(), request, response_len }
    }

    /// How many requests were answered in that time.
    async fn requests(&self, span: Duration) -> usize {
        let mut connections = self.connections.lock().await;
        let until = Instant::now() + span;
        let tasks: Vec<_> = connections
            .drain(..)
            .map(|mut connection| {
                let (request, len) = (Arc::clone(&self.request), self.response_len);
                tokio::spawn(async move {
                    let (mut count, mut response) = (0, vec![0; len]);
                    while Instant::now() < until {
                        connection.write_all(&request).await.unwrap();
                        connection.read_exact(&mut response).await.unwrap();
                        count += 1;
                    }
                    (connection, count)
                })
            })
            .collect();
        let mut total = 0;
        for task in tasks {
            let (connection, count) = task.await.unwrap();
            connections.push(connection);
            total += count;
        }
        total
    }
}

/// The length of the next response, head and body.
async fn read_response(connection: &mut TcpStream) -> usize {
    let mut read = Vec::new();
    loop {
        connection.read_buf(&mut read).await.unwrap();
        let text = String::from_utf8_lossy(&read);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head
            .split("content-length: ")
            .nth(1)
            .map_or(0, |rest| rest.split("\r\n").next().unwrap().parse().unwrap());
        if body.len() == length {
            return read.len();
        }
    }
}

// === In place

fn in_place() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let sides = [
        ("plain", plain(), "34"),
        ("any layer", with_nothing(), "34"),
        ("fenced", fenced(MemoryMarks::ephemeral()), "34"),
        ("stale", fenced(CachedMarks::new(Remote::default())), "33"),
    ];
    let call = |(_, router, token): &(&str, Router, &str)| {
        let request = Request::put("/inventory/1").header("x-fencing-token", *token);
        let request = request.body(Body::empty()).unwrap();
        black_box(runtime.block_on(router.clone().oneshot(request)).unwrap().status())
    };
    let rounds = rounds(&sides, |side| {
        const CALLS: usize = 5000;
        let begun = Instant::now();
        (0..CALLS).for_each(|_| {
            call(side);
        });
        per_second(CALLS, begun.elapsed())
    });
    for (side, rates) in sides.iter().zip(&rounds) {
        let counted = allocation_counter::measure(|| {
            call(side);
        });
        let (name, ns) = (side.0, 1e9 / median(rates));
        println!(
            "{name}: {ns:.0} ns, {} allocations, with those of the caller",
            counted.count_total
        );
    }
    let [plain, nothing, fenced, stale] = &rounds;
    report("guard.in_place_layer_over_plain", ratio(fenced, plain), "");
    report("guard.in_place_layer_over_any_layer", ratio(fenced, nothing), "");
    report("guard.in_place_stale_over_plain", ratio(stale, plain), "");
}

// === The decision

fn claim(n: usize) -> Claim {
    let resource = Resource::new(format!("inventory:item:{n}")).unwrap();
    Claim::new(resource, Token::new(34).unwrap())
}

/// Numbers all over the place, the same ones in each run.
fn scattered(count: usize, below: usize) -> impl Iterator<Item = usize> {
    (0..count).scan(0x9E37_79B9_7F4A_7C15_u64, move |state, _| {
        // xorshift64, Marsaglia 2003.
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        usize::try_from(*state >> 1).ok().map(|it| it % below)
    })
}

fn fill(marks: &MemoryMarks, resources: usize) {
    for n in 0..resources {
        let _ = black_box(marks.decide(&claim(n)));
    }
}

fn decisions() {
    for (resources, note) in [
        (1000, "must 100 aim 30"),
        (100_000, ""),
        (1_000_000, ""),
        (10_000_000, "must 1000 aim 500"),
    ] {
        if !room_for(resources) {
            println!("TIME guard.decision_{resources} skipped: not enough free memory");
            continue;
        }
        let marks = MemoryMarks::ephemeral();
        fill(&marks, resources);
        let claims: Vec<Claim> = scattered(500_000, resources).map(claim).collect();
        let mut times = Vec::new();
        for _ in 0..5 {
            let begun = Instant::now();
            for claim in &claims {
                let _ = black_box(marks.decide(black_box(claim)));
            }
            #[allow(clippy::cast_precision_loss)]
            times.push(begun.elapsed().as_nanos() as f64 / claims.len() as f64);
        }
        let counted = allocation_counter::measure(|| {
            for claim in &claims[..1000] {
                let _ = black_box(marks.decide(claim));
            }
        });
        println!(
            "TIME guard.decision_{resources} {:.0} ns {note} ({} allocations)",
            median(&times),
            counted.count_total
        );
    }
}

// === Memory

fn memory() {
    for resources in [1000, 10_000, 100_000, 1_000_000, 10_000_000] {
        if !room_for(resources) {
            println!("MEMORY guard.marks_{resources} skipped: not enough free memory");
            continue;
        }
        let mut marks = None;
        let counted = allocation_counter::measure(|| {
            let new = MemoryMarks::ephemeral();
            fill(&new, resources);
            marks = Some(new);
        });
        #[allow(clippy::cast_precision_loss)]
        let each = counted.bytes_current as f64 / resources as f64;
        println!("MEMORY guard.marks_{resources} {each:.0} bytes each");
        drop(marks);
    }
}

/// Whether so many resources fit into what is free.
fn room_for(resources: usize) -> bool {
    let free = std::fs::read_to_string("/proc/meminfo").ok().and_then(|info| {
        let line = info.lines().find(|line| line.starts_with("MemAvailable:"))?;
        line.split_whitespace().nth(1)?.parse::<usize>().ok()
    });
    free.is_none_or(|kib| kib / 1024 > 500 + resources / 4000)
}

// === Rounds and ratios

/// Runs each side once in each round, and throws the first round away.
fn rounds<S, const N: usize>(sides: &[S; N], rate: impl Fn(&S) -> f64) -> [Vec<f64>; N] {
    let mut rates = [const { Vec::new() }; N];
    for round in 0..=ROUNDS {
        // Each is first as often as the others, and after each of the others.
        for at in (0..N).map(|at| (at + round) % N) {
            rates[at].push(rate(&sides[at]));
        }
    }
    rates.map(|rates| rates[1..].to_vec())
}

#[allow(clippy::cast_precision_loss)]
fn per_second(count: usize, elapsed: Duration) -> f64 {
    count as f64 / elapsed.as_secs_f64()
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The ratio in each round, in order.
fn ratio(one: &[f64], other: &[f64]) -> Vec<f64> {
    one.iter().zip(other).map(|(one, other)| one / other).collect()
}

fn report(name: &str, mut ratios: Vec<f64>, held_against: &str) {
    ratios.sort_by(f64::total_cmp);
    let (low, high) = (ratios[ratios.len() / 4], ratios[ratios.len() * 3 / 4]);
    println!(
        "RATIO {name} {:.2} {held_against} (half of the rounds: {low:.2} to {high:.2})",
        median(&ratios)
    );
}
