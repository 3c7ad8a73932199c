//! The line of those who wait for one lock. No test here moves the clock unless it says so: every
//! hand-over is a wake-up, not a poll.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use fencing::lock::rules::{Ask, Refusal};
use fencing::lock::{Acquired, Endpoint, Held, LockStore, OwnerTokenHash, StoreError};
use fencing::testing::ManualClock;
use fencing::{Resource, Token};
use futures_core::future::BoxFuture;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::site::{Answer, Site, on_every_store, post, secret, send};

const BOUND: Duration = Duration::from_secs(20);

type Answers<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// A store that counts how often it is asked, and can be stopped before and after it decides.
#[derive(Debug)]
struct Watched {
    store: Arc<dyn LockStore>,
    /// Owner tokens that asked, in order.
    asked: std::sync::Mutex<Vec<[u8; 32]>>,
    looks: AtomicUsize,
    before: Gate,
    after: Gate,
    fail: AtomicUsize,
}

#[derive(Debug)]
struct Gate {
    open: Semaphore,
    reached: Semaphore,
}

impl Gate {
    fn open() -> Self {
        Self { open: Semaphore::new(1), reached: Semaphore::new(0) }
    }

    fn shut(&self) {
        self.open.try_acquire().expect("it is open").forget();
    }

    fn reopen(&self) {
        self.open.add_permits(1);
    }

    async fn pass(&self) {
        self.reached.add_permits(1);
        drop(self.open.acquire().await.unwrap());
    }

    /// Waits until somebody has come here since the last time.
    async fn reached(&self) {
        let reached = tokio::time::timeout(BOUND, self.reached.acquire()).await;
        reached.expect("the store is asked").unwrap().forget();
    }

    fn forget(&self) {
        self.reached.forget_permits(usize::MAX >> 4);
    }
}

impl Watched {
    fn over(site: &Site) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::clone(&site.store),
            asked: std::sync::Mutex::default(),
            looks: AtomicUsize::new(0),
            before: Gate::open(),
            after: Gate::open(),
            fail: AtomicUsize::new(0),
        })
    }

    fn app(self: &Arc<Self>, clock: &ManualClock) -> Router {
        let endpoint = Endpoint::new(Arc::clone(self)).with_clock(Arc::new(clock.clone()));
        Router::new().nest("/locks", endpoint.router())
    }

    fn asks(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

impl LockStore for Watched {
    fn acquire<'a>(&'a self, resource: &'a Resource, ask: &'a Ask) -> Answers<'a, Acquired> {
        Box::pin(async move {
            self.asked.lock().unwrap().push(*ask.owner_token_hash.as_bytes());
            self.before.pass().await;
            let fails =
                self.fail.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
            if fails.is_ok() {
                return Err(StoreError::new("as the test wants it"));
            }
            let answer = self.store.acquire(resource, ask).await;
            self.after.pass().await;
            answer
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
        self.store.release(resource, secret)
    }

    fn show<'a>(&'a self, resource: &'a Resource) -> Answers<'a, Option<Held>> {
        self.looks.fetch_add(1, Ordering::SeqCst);
        self.store.show(resource)
    }

    fn highest_token<'a>(&'a self, resource: &'a Resource) -> Answers<'a, Option<Token>> {
        self.store.highest_token(resource)
    }
}

fn asking(app: &Router, owner: &str, wait_ms: u64) -> JoinHandle<Answer> {
    let body = json!({
        "owner": owner, "ttl_ms": 3_600_000, "wait_ms": wait_ms, "owner_token": secret(owner),
    });
    let app = app.clone();
    tokio::spawn(async move { post(&app, "/locks/job", body).await })
}

/// Joins the line, and is in it when this returns.
async fn waiting(app: &Router, clock: &ManualClock, owner: &str) -> JoinHandle<Answer> {
    let begun = clock.begun();
    let task = asking(app, owner, 60_000);
    let joined = clock.until_begun(begun + 1);
    tokio::time::timeout(BOUND, joined).await.expect("it waits");
    task
}

async fn done(task: JoinHandle<Answer>) -> Answer {
    tokio::time::timeout(BOUND, task).await.expect("an answer").unwrap()
}

async fn release(app: &Router, owner: &str) -> Answer {
    let request = http::Request::delete("/locks/job")
        .header("x-lock-owner-token", secret(owner))
        .body(axum::body::Body::empty());
    send(app, request.unwrap()).await
}

/// Lets everything run that is ready to; the tests' runtime has one thread.
async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// R19. Nobody has to be asleep for it: each is woken by the release before.
async fn two_hundred_waiters_are_served_in_the_order_they_came(site: Site) {
    const WAITERS: usize = 200;
    let store = Watched::over(&site);
    let app = store.app(&site.clock);
    done(asking(&app, "first", 0)).await.granted();
    let mut waiters = Vec::new();
    for n in 0..WAITERS {
        waiters.push(waiting(&app, &site.clock, &n.to_string()).await);
    }
    assert!(store.asks() <= 3, "of those who wait only the first asks: {}", store.asks());
    let mut holder = "first".to_owned();
    for (n, waiter) in waiters.into_iter().enumerate() {
        release(&app, &holder).await.is(204);
        let answer = done(waiter).await;
        assert_eq!(answer.granted_token(), i64::try_from(n).unwrap() + 2);
        assert_eq!(answer.json["waited_ms"], 0, "the clock has not moved");
        holder = n.to_string();
    }
    // Once more for each that is told when it begins to listen for other servers.
    assert!((2 + WAITERS..=4 + WAITERS).contains(&store.asks()), "{}", store.asks());
    assert_eq!(store.looks.load(Ordering::SeqCst), WAITERS - 1, "whether it is one's own");
}

/// H8: neither who waits nor who does not gets past those who wait, at the very moment that the
/// lock is free.
async fn a_newcomer_never_overtakes_a_line(site: Site) {
    let store = Watched::over(&site);
    let app = store.app(&site.clock);
    done(asking(&app, "holder", 0)).await.granted();
    let waiter = waiting(&app, &site.clock, "waiter").await;
    store.before.forget();
    store.before.shut();
    release(&app, "holder").await.is(204);
    store.before.reached().await;
    site.show("job").await.problem(404, "not-held");
    let asks = store.asks();
    done(asking(&app, "hasty", 0)).await.held();
    let late = waiting(&app, &site.clock, "late").await;
    assert_eq!(store.asks(), asks, "neither asks the store");
    store.before.reopen();
    assert_eq!(done(waiter).await.granted_token(), 2);
    assert!(!late.is_finished());
    release(&app, "waiter").await.is(204);
    assert_eq!(done(late).await.granted_token(), 3);
}

/// Who came first is first, also when its question to the store takes longer.
async fn the_first_of_two_that_come_at_once_is_first(site: Site) {
    let store = Watched::over(&site);
    let app = store.app(&site.clock);
    store.before.shut();
    let first = asking(&app, "first", 0);
    store.before.reached().await;
    let second = asking(&app, "second", 0);
    settle().await;
    assert_eq!(store.asks(), 1);
    store.before.reopen();
    assert_eq!(done(first).await.granted_token(), 1);
    done(second).await.held();
}

/// H8: the release comes when the store has said "held", and the waiter does not know yet.
async fn a_release_while_a_waiter_is_told_that_it_is_held_wakes_it(site: Site) {
    let store = Watched::over(&site);
    let app = store.app(&site.clock);
    done(asking(&app, "holder", 0)).await.granted();
    store.after.forget();
    store.after.shut();
    let waiter = asking(&app, "waiter", 60_000);
    store.after.reached().await;
    release(&app, "holder").await.is(204);
    store.after.reopen();
    assert_eq!(done(waiter).await.granted_token(), 2);
}

/// Case 40 for those who wait: they leave the line, wherever they stand in it.
async fn waiters_that_hang_up_leave_no_grant(site: Site) {
    let store = Watched::over(&site);
    let app = store.app(&site.clock);
    done(asking(&app, "holder", 0)).await.granted();
    let mut waiters = Vec::new();
    for n in 0..20 {
        waiters.push(waiting(&app, &site.clock, &n.to_string()).await);
    }
    // The first, the last, and every second between.
    for n in (0..20).step_by(2).chain([19]) {
        waiters[n].abort();
    }
    let left = async {
        while site.clock.sleeping() > 9 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(BOUND, left).await.expect("they leave");
    let mut holder = "holder".to_owned();
    let mut tokens = 2..;
    for (n, waiter) in waiters.into_iter().enumerate().filter(|(n, _)| n % 2 == 1 && *n != 19) {
        release(&app, &holder).await.is(204);
        assert_eq!(done(waiter).await.granted_token(), tokens.next().unwrap(), "{n}");
        holder = n.to_string();
    }
    release(&app, &holder).await.is(204);
    settle().await;
    site.show("job").await.problem(404, "not-held");
    assert_eq!(site.token("job").await.json["token"], 10, "nobody else had it");
}

/// The first hangs up at the very moment that it gets the lock: it goes to the next, at once.
async fn a_grant_given_back_wakes_the_next(site: Site) {
    let store = Watched::over(&site);
    let app = store.app(&site.clock);
    done(asking(&app, "holder", 0)).await.granted();
    let gone = waiting(&app, &site.clock, "gone").await;
    let next = waiting(&app, &site.clock, "next").await;
    store.after.forget();
    store.after.shut();
    release(&app, "holder").await.is(204);
    store.after.reached().await;
    gone.abort();
    let _ = gone.await;
    store.after.reopen();
    assert_eq!(done(next).await.granted_token(), 3);
}

/// A holder whose answer was lost asks again, while others wait for it to be done.
async fn a_holder_that_asks_again_does_not_wait_for_itself(site: Site) {
    let store = Watched::over(&site);
    let app = store.app(&site.clock);
    done(asking(&app, "holder", 0)).await.granted();
    let waiter = waiting(&app, &site.clock, "waiter").await;
    for wait_ms in [0, 60_000] {
        assert_eq!(done(asking(&app, "holder", wait_ms)).await.granted_token(), 1);
    }
    release(&app, "holder").await.is(204);
    assert_eq!(done(waiter).await.granted_token(), 2);
}

/// A waiter whose connection broke asks again: it has the place it had.
async fn a_waiter_that_asks_again_keeps_its_place(site: Site) {
    let store = Watched::over(&site);
    let app = store.app(&site.clock);
    done(asking(&app, "holder", 0)).await.granted();
    let front = waiting(&app, &site.clock, "front").await;
    let lost = waiting(&app, &site.clock, "twice").await;
    let last = waiting(&app, &site.clock, "last").await;
    let again = waiting(&app, &site.clock, "twice").await;
    release(&app, "holder").await.is(204);
    done(front).await.granted();
    // The server learns only now that the first of the two is gone.
    lost.abort();
    let _ = lost.await;
    release(&app, "front").await.is(204);
    assert_eq!(done(again).await.granted_token(), 3);
    release(&app, "twice").await.is(204);
    assert_eq!(done(last).await.granted_token(), 4);
}

/// Two requests of one waiter: both are told of the one grant.
async fn both_requests_of_a_waiter_are_told(site: Site) {
    let store = Watched::over(&site);
    let app = store.app(&site.clock);
    done(asking(&app, "holder", 0)).await.granted();
    let one = waiting(&app, &site.clock, "twice").await;
    let two = waiting(&app, &site.clock, "twice").await;
    let last = waiting(&app, &site.clock, "last").await;
    release(&app, "holder").await.is(204);
    assert_eq!(done(one).await.granted_token(), 2);
    assert_eq!(done(two).await.granted_token(), 2);
    release(&app, "twice").await.is(204);
    assert_eq!(done(last).await.granted_token(), 3);
}

/// The store fails for the first in the line: that is its problem alone.
async fn a_failure_moves_the_line_on(site: Site) {
    let store = Watched::over(&site);
    let app = store.app(&site.clock);
    done(asking(&app, "holder", 0)).await.granted();
    let unlucky = waiting(&app, &site.clock, "unlucky").await;
    let next = waiting(&app, &site.clock, "next").await;
    store.fail.store(1, Ordering::SeqCst);
    release(&app, "holder").await.is(204);
    done(unlucky).await.problem(503, "lock-unavailable");
    assert_eq!(done(next).await.granted_token(), 2);
}

/// A store that does not answer the first of a line does not hang the others for ever. The clock
/// moves here.
async fn who_is_behind_an_unanswered_question_is_answered(site: Site) {
    let store = Watched::over(&site);
    let app = store.app(&site.clock);
    store.before.shut();
    let first = asking(&app, "first", 0);
    store.before.reached().await;
    let behind = asking(&app, "behind", 0);
    site.clock.until_sleeping(1).await;
    site.clock.advance(Duration::from_millis(5001));
    done(behind).await.problem(503, "lock-unavailable").header("retry-after");
    store.before.reopen();
    assert_eq!(done(first).await.granted_token(), 1);
}

/// The wait of one behind the first ends when it is to end. The clock moves here.
async fn a_wait_behind_others_ends_in_time(site: Site) {
    let store = Watched::over(&site);
    let app = store.app(&site.clock);
    done(asking(&app, "holder", 0)).await.granted();
    let front = waiting(&app, &site.clock, "front").await;
    let begun = site.clock.begun();
    let behind = asking(&app, "behind", 700);
    site.clock.until_begun(begun + 1).await;
    let started = fencing::clock::Clock::elapsed(&site.clock);
    let bound = async {
        while !behind.is_finished() {
            settle().await;
            if let Some(next) = site.clock.until_next_wake().filter(|_| !behind.is_finished()) {
                site.clock.advance(next);
            }
        }
    };
    tokio::time::timeout(BOUND, bound).await.expect("it ends");
    done(behind).await.held();
    let waited = fencing::clock::Clock::elapsed(&site.clock) - started;
    assert_eq!(waited, Duration::from_millis(700));
    release(&app, "holder").await.is(204);
    done(front).await.granted();
}

/// Case 27 and H8 between servers: there is no order, but no waiter is forgotten, and nobody has
/// the lock at the same time as another. The clock moves here: the servers do not hear each other.
async fn waiters_at_two_servers_are_all_served(site: Site) {
    const WAITERS: usize = 20;
    let (one, two) = (Watched::over(&site), Watched::over(&site));
    let apps = [one.app(&site.clock), two.app(&site.clock)];
    done(asking(&apps[0], "holder", 0)).await.granted();
    let mut waiters = Vec::new();
    for n in 0..WAITERS {
        waiters.push(waiting(&apps[n % 2], &site.clock, &n.to_string()).await);
    }
    release(&apps[0], "holder").await.is(204);
    let (mut served, mut token) = (Vec::new(), 1);
    let bound = async {
        while served.len() < WAITERS {
            settle().await;
            let ready = (0..WAITERS).find(|n| !served.contains(n) && waiters[*n].is_finished());
            let Some(n) = ready else {
                // While somebody asks the store, time stands still.
                if site.clock.sleeping() == WAITERS - served.len()
                    && let Some(next) = site.clock.until_next_wake()
                {
                    site.clock.advance(next);
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            };
            let answer = (&mut waiters[n]).await.unwrap();
            token += 1;
            assert_eq!(answer.granted_token(), token, "I2 and I3");
            served.push(n);
            release(&apps[n % 2], &n.to_string()).await.is(204);
        }
    };
    tokio::time::timeout(BOUND, bound).await.expect("all are served");
    for server in 0..2 {
        let order: Vec<_> = served.iter().filter(|n| **n % 2 == server).collect();
        assert!(order.is_sorted(), "in order at each server: {order:?}");
    }
}

on_every_store! {
    two_hundred_waiters_are_served_in_the_order_they_came,
    a_newcomer_never_overtakes_a_line,
    the_first_of_two_that_come_at_once_is_first,
    a_release_while_a_waiter_is_told_that_it_is_held_wakes_it,
    waiters_that_hang_up_leave_no_grant,
    a_grant_given_back_wakes_the_next,
    a_holder_that_asks_again_does_not_wait_for_itself,
    a_waiter_that_asks_again_keeps_its_place,
    both_requests_of_a_waiter_are_told,
    a_failure_moves_the_line_on,
    who_is_behind_an_unanswered_question_is_answered,
    a_wait_behind_others_ends_in_time,
    waiters_at_two_servers_are_all_served,
}
