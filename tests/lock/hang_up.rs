//! Clients that go away in the middle of an acquire.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencing::lock::rules::{Ask, Refusal};
use fencing::lock::{Acquired, Endpoint, Held, LockStore, OwnerTokenHash, StoreError};
use fencing::{Resource, Token};
use futures_core::future::BoxFuture;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::site::{Answer, Site, on_every_store, post, secret};

/// A store that stops after it has granted, before it answers, and before it releases.
#[derive(Debug)]
struct Paused {
    store: Arc<dyn LockStore>,
    granted: Semaphore,
    answer: Semaphore,
    repeated: Semaphore,
    /// Repeats are not stopped unless a test takes these away.
    answer_repeat: Semaphore,
    release: Semaphore,
    releases: AtomicUsize,
}

impl Paused {
    fn over(store: &Arc<dyn LockStore>) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::clone(store),
            granted: Semaphore::new(0),
            answer: Semaphore::new(0),
            repeated: Semaphore::new(0),
            answer_repeat: Semaphore::new(100),
            release: Semaphore::new(0),
            releases: AtomicUsize::new(0),
        })
    }

    fn app(self: &Arc<Self>) -> axum::Router {
        axum::Router::new().nest("/locks", Endpoint::new(Arc::clone(self)).router())
    }

    async fn pass(gate: &Semaphore) {
        gate.acquire().await.unwrap().forget();
    }
}

type Answers<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

impl LockStore for Paused {
    fn acquire<'a>(&'a self, resource: &'a Resource, ask: &'a Ask) -> Answers<'a, Acquired> {
        Box::pin(async move {
            let answer = self.store.acquire(resource, ask).await?;
            match answer {
                Acquired::Granted(_) => {
                    self.granted.add_permits(1);
                    Self::pass(&self.answer).await;
                }
                Acquired::Repeated(_) => {
                    self.repeated.add_permits(1);
                    Self::pass(&self.answer_repeat).await;
                }
                _ => {}
            }
            Ok(answer)
        })
    }

    fn renew<'a>(
        &'a self,
        resource: &'a Resource,
        secret: &'a OwnerTokenHash,
        ttl: Duration,
    ) -> Answers<'a, Result<Held, Refusal>> {
        self.store.renew(resource, secret, ttl)
    }

    fn release<'a>(
        &'a self,
        resource: &'a Resource,
        secret: &'a OwnerTokenHash,
    ) -> Answers<'a, Result<(), Refusal>> {
        Box::pin(async move {
            self.releases.fetch_add(1, Ordering::SeqCst);
            Self::pass(&self.release).await;
            self.store.release(resource, secret).await
        })
    }

    fn show<'a>(&'a self, resource: &'a Resource) -> Answers<'a, Option<Held>> {
        self.store.show(resource)
    }

    fn highest_token<'a>(&'a self, resource: &'a Resource) -> Answers<'a, Option<Token>> {
        self.store.highest_token(resource)
    }
}

fn acquiring(app: &axum::Router, owner: &str) -> tokio::task::JoinHandle<Answer> {
    let body = json!({ "owner": owner, "ttl_seconds": 3600, "owner_token": secret(owner) });
    let app = app.clone();
    tokio::spawn(async move { post(&app, "/locks/job", body).await })
}

async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let reached = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(30), reached).await;
    assert!(in_time.is_ok(), "{what}");
}

/// Lets everything run that is ready to; the tests' runtime has one thread.
async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// Case 40: a client that gives up in the middle does not hold the lock for the whole TTL.
async fn a_grant_that_nobody_waits_for_is_given_back(site: Site) {
    let paused = Paused::over(&site.store);
    let client = acquiring(&paused.app(), "a");
    Paused::pass(&paused.granted).await;
    site.show("job").await.is(200);
    client.abort();
    let _ = client.await;
    paused.answer.add_permits(1);
    paused.release.add_permits(1);
    eventually("it is given back", async || site.show("job").await.status == 404).await;
    assert_eq!(site.take("job", "b", 1000).await.granted_token(), 2);
}

/// The client of a lost answer was told of the grant by its second request: it keeps it.
async fn a_grant_told_to_a_second_request_is_kept(site: Site) {
    let paused = Paused::over(&site.store);
    let app = paused.app();
    let first = acquiring(&app, "a");
    Paused::pass(&paused.granted).await;
    let second = acquiring(&app, "a").await.unwrap();
    assert_eq!(second.granted_token(), 1);
    first.abort();
    let _ = first.await;
    paused.answer.add_permits(1);
    paused.release.add_permits(1);
    settle().await;
    assert_eq!(paused.releases.load(Ordering::SeqCst), 0);
    assert_eq!(site.show("job").await.is(200).json["token"], 1);
}

/// As long as a second request for the grant is in progress, nobody knows yet whether its client
/// is told: the grant stays until then.
async fn a_grant_is_kept_while_a_second_request_may_tell_of_it(site: Site) {
    for second_is_answered in [true, false] {
        let paused = Paused::over(&site.store);
        paused.answer_repeat.forget_permits(100);
        let app = paused.app();
        let owner = format!("{second_is_answered}");
        let first = acquiring(&app, &owner);
        Paused::pass(&paused.granted).await;
        let second = acquiring(&app, &owner);
        Paused::pass(&paused.repeated).await;
        first.abort();
        let _ = first.await;
        paused.answer.add_permits(1);
        paused.release.add_permits(1);
        settle().await;
        assert_eq!(paused.releases.load(Ordering::SeqCst), 0);
        if second_is_answered {
            paused.answer_repeat.add_permits(1);
            second.await.unwrap().granted();
            settle().await;
            assert_eq!(paused.releases.load(Ordering::SeqCst), 0);
            site.show("job").await.is(200);
            site.release("job", &owner).await.is(204);
        } else {
            second.abort();
            let _ = second.await;
            paused.answer_repeat.add_permits(1);
            eventually("it is given back", async || site.show("job").await.status == 404).await;
        }
    }
}

/// While a grant is given back, a request for it is not told that it has it.
async fn a_grant_being_given_back_is_not_handed_out(site: Site) {
    let paused = Paused::over(&site.store);
    let app = paused.app();
    let first = acquiring(&app, "a");
    Paused::pass(&paused.granted).await;
    first.abort();
    let _ = first.await;
    paused.answer.add_permits(1);
    eventually("it is given back", async || paused.releases.load(Ordering::SeqCst) == 1).await;
    let second = acquiring(&app, "a");
    settle().await;
    assert!(!second.is_finished(), "it was answered before the release had ended");
    paused.release.add_permits(1);
    second.await.unwrap().problem(409, "spent-owner-token");
}

/// A repeat that nobody waits for leaves the grant alone: its lease is in use.
async fn a_repeat_that_nobody_waits_for_releases_nothing(site: Site) {
    let paused = Paused::over(&site.store);
    let app = paused.app();
    paused.answer.add_permits(1);
    assert_eq!(acquiring(&app, "a").await.unwrap().granted_token(), 1);
    let repeat = acquiring(&app, "a");
    repeat.abort();
    let _ = repeat.await;
    settle().await;
    assert_eq!(paused.releases.load(Ordering::SeqCst), 0);
    site.show("job").await.is(200);
}

/// Over a socket: the server notices that a waiting client hung up, and gives it nothing.
async fn a_waiting_client_that_hangs_up_gets_nothing(site: Site) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = site.app.clone();
    let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });

    site.take("job", "a", 3_600_000).await.granted();
    let body = json!({ "owner": "b", "ttl_seconds": 3600, "wait_ms": 60_000 }).to_string();
    let mut socket = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /locks/job HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    site.clock.until_sleeping(1).await;
    drop(socket);
    eventually("the server stops waiting", async || site.clock.sleeping() == 0).await;
    site.release("job", "a").await.is(204);
    settle().await;
    site.show("job").await.problem(404, "not-held");
    assert_eq!(site.take("job", "c", 1000).await.granted_token(), 2);
    server.abort();
}

/// Idle and slow connections do not hold others up.
async fn a_slow_client_stops_nobody(site: Site) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = site.app.clone();
    let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    let mut slow = Vec::new();
    for n in 0..50 {
        let mut socket = TcpStream::connect(address).await.unwrap();
        let head = "POST /locks/job HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
                    content-length: 500\r\n\r\n{";
        socket.write_all(&head.as_bytes()[..head.len().min(10 + 5 * n)]).await.unwrap();
        slow.push(socket);
    }
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket
        .write_all(b"GET /locks/job HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    let read = socket.read_to_string(&mut answer);
    tokio::time::timeout(Duration::from_secs(30), read).await.expect("an answer").unwrap();
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    server.abort();
}

on_every_store! {
    a_grant_that_nobody_waits_for_is_given_back,
    a_grant_told_to_a_second_request_is_kept,
    a_grant_is_kept_while_a_second_request_may_tell_of_it,
    a_grant_being_given_back_is_not_handed_out,
    a_repeat_that_nobody_waits_for_releases_nothing,
    a_waiting_client_that_hangs_up_gets_nothing,
    a_slow_client_stops_nobody,
}
