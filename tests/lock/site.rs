//! An endpoint over one of the stores, with its clocks in the hands of the test.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use fencing::Token;
use fencing::clock::Clock;
use fencing::lock::rules::Ask;
use fencing::lock::{Endpoint, LockDatabase, LockStore, MemoryLocks, OwnerToken, SqlLocks};
use fencing::testing::ManualClock;
use futures_core::future::BoxFuture;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use sqlx::pool::PoolOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, Pool};
use tower::ServiceExt;

use crate::support::{Db, Harness};

pub struct Site {
    pub app: Router,
    pub clock: ManualClock,
    pub store: Arc<dyn LockStore>,
    lift: Lift,
    /// On a server, the pool of the store.
    pool: Option<Box<dyn Any + Send + Sync>>,
    /// Goes when the test ends.
    _place: Box<dyn Any + Send + Sync>,
}

/// Lifts the floor of a store.
type Lift = Box<dyn Fn(Token) -> BoxFuture<'static, ()> + Send + Sync>;

/// A database that keeps the time of the test.
pub trait Timed: LockDatabase + Harness {
    /// Prepares a fresh database for it.
    async fn prepare(db: &mut Db<Self>);

    /// Sets the clock of a connection.
    fn set_clock(
        conn: &mut Self::Connection,
        epoch_ms: i64,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
}

impl Timed for sqlx::Postgres {
    /// A function of the same name is found before the one of the catalogue when the path says so.
    async fn prepare(db: &mut Db<Self>) {
        let mut conn = db.connect().await;
        let schema: String =
            sqlx::query_scalar("SELECT current_schema()").fetch_one(&mut conn).await.unwrap();
        db.options = db.options.clone().options([("search_path", format!("{schema},pg_catalog"))]);
        let clock = "CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE \
                     AS $$ SELECT to_timestamp(current_setting('test.ms')::float8 / 1000) $$";
        Self::run(&mut conn, clock).await.unwrap();
        conn.close().await.unwrap();
    }

    async fn set_clock(conn: &mut Self::Connection, epoch_ms: i64) -> Result<(), sqlx::Error> {
        Self::run(conn, &format!("SET test.ms = '{epoch_ms}'")).await
    }
}

impl Timed for sqlx::MySql {
    async fn prepare(_: &mut Db<Self>) {}

    /// <https://mariadb.com/kb/en/server-system-variables/#timestamp>
    async fn set_clock(conn: &mut Self::Connection, epoch_ms: i64) -> Result<(), sqlx::Error> {
        let (seconds, ms) = (epoch_ms / 1000, epoch_ms % 1000);
        Self::run(conn, &format!("SET timestamp = {seconds}.{ms:03}")).await
    }
}

/// A pool whose connections have the time of the test when they are handed out.
async fn timed_pool<H: Timed>(db: &Db<H>, clock: &ManualClock) -> Pool<H> {
    let (new, old) = (clock.clone(), clock.clone());
    PoolOptions::new()
        .max_connections(4)
        .after_connect(move |conn, _| {
            let now = new.epoch_ms();
            Box::pin(async move { H::set_clock(conn, now).await })
        })
        .before_acquire(move |conn, _| {
            let now = old.epoch_ms();
            Box::pin(async move { H::set_clock(conn, now).await.map(|()| true) })
        })
        .connect_with(db.options.clone())
        .await
        .unwrap()
}

fn lift<DB: LockDatabase>(pool: Pool<DB>) -> Lift {
    Box::new(move |floor| {
        let pool = pool.clone();
        Box::pin(async move { fencing::sql::raise_floor(&pool, floor).await.unwrap() })
    })
}

impl Site {
    pub async fn memory() -> Self {
        let clock = ManualClock::new();
        let locks = Arc::new(MemoryLocks::with_clock(Arc::new(clock.clone())));
        let lifted = locks.clone();
        let lift: Lift = Box::new(move |floor| {
            lifted.lift_floor(floor);
            Box::pin(std::future::ready(()))
        });
        Self::over(locks, clock, lift, Box::new(()))
    }

    pub async fn sqlite() -> Self {
        let clock = ManualClock::new();
        let directory = tempfile::tempdir().unwrap();
        let options = SqliteConnectOptions::new()
            .filename(directory.path().join("locks.db"))
            .create_if_missing(true);
        let locks = SqlLocks::open(options).await.unwrap().with_clock(Arc::new(clock.clone()));
        let lift = lift(locks.pool().clone());
        Self::over(Arc::new(locks), clock, lift, Box::new(directory))
    }

    /// On a server, whose clock is that of the test.
    pub async fn server<H: Timed<Place: 'static>>() -> Self {
        let clock = ManualClock::new();
        let mut db = Db::<H>::empty().await;
        H::prepare(&mut db).await;
        let pool = timed_pool(&db, &clock).await;
        fencing::sql::migrate(&pool).await.unwrap();
        // What the process thinks the time is does not count.
        let other = ManualClock::new();
        other.set_epoch_ms(ManualClock::START_EPOCH_MS + 180_000);
        let locks = SqlLocks::new(pool.clone()).await.unwrap().with_clock(Arc::new(other));
        let mut site = Self::over(Arc::new(locks), clock, lift(pool.clone()), Box::new(db));
        site.pool = Some(Box::new(pool));
        site
    }

    fn over(
        store: Arc<dyn LockStore>,
        clock: ManualClock,
        lift: Lift,
        place: Box<dyn Any + Send + Sync>,
    ) -> Self {
        let app = nest(Endpoint::new(Arc::clone(&store)), &clock);
        Self { app, clock, store, lift, pool: None, _place: place }
    }

    /// Runs a statement on every connection the store has, or will have.
    pub async fn with_every_connection<H: Timed>(self, sql: &str) -> Self {
        let pool: &Pool<H> = self.pool.as_ref().unwrap().downcast_ref().unwrap();
        let mut all = Vec::new();
        for _ in 0..4 {
            all.push(pool.acquire().await.unwrap());
        }
        for conn in &mut all {
            H::run(conn, sql).await.unwrap();
        }
        drop(all);
        self
    }

    /// What a statement finds on a connection of the store.
    pub async fn number<H: Timed>(&self, sql: &str) -> i64 {
        let pool: &Pool<H> = self.pool.as_ref().unwrap().downcast_ref().unwrap();
        H::number(&mut pool.acquire().await.unwrap(), sql).await.unwrap().unwrap()
    }

    /// Another endpoint over the same store, built differently.
    pub fn with(&self, build: impl FnOnce(Endpoint) -> Endpoint) -> Router {
        nest(build(Endpoint::new(Arc::clone(&self.store))), &self.clock)
    }

    /// Lifts the floor the way a bump does.
    pub async fn lift_floor(&self, floor: i64) {
        (self.lift)(Token::new(floor).unwrap()).await;
    }

    pub fn pass(&self, ms: u64) {
        self.clock.advance(Duration::from_millis(ms));
    }

    pub async fn acquire(&self, resource: &str, body: Value) -> Answer {
        post(&self.app, &format!("/locks/{resource}"), body).await
    }

    /// Acquires for `owner` with the owner token `secret(owner)`.
    pub async fn take(&self, resource: &str, owner: &str, ttl_ms: u64) -> Answer {
        let body = json!({ "owner": owner, "ttl_ms": ttl_ms, "owner_token": secret(owner) });
        self.acquire(resource, body).await
    }

    pub async fn renew(&self, resource: &str, owner: &str, ttl_ms: u64) -> Answer {
        let body = json!({ "owner_token": secret(owner), "ttl_ms": ttl_ms });
        post(&self.app, &format!("/locks/{resource}/renew"), body).await
    }

    pub async fn release(&self, resource: &str, owner: &str) -> Answer {
        release(&self.app, resource, owner).await
    }

    pub async fn show(&self, resource: &str) -> Answer {
        let request = Request::get(format!("/locks/{resource}")).body(Body::empty());
        send(&self.app, request.unwrap()).await
    }

    pub async fn token(&self, resource: &str) -> Answer {
        let request = Request::get(format!("/locks/{resource}/token")).body(Body::empty());
        send(&self.app, request.unwrap()).await
    }
}

fn nest(endpoint: Endpoint, clock: &ManualClock) -> Router {
    let endpoint = endpoint.with_clock(Arc::new(clock.clone()));
    Router::new().nest("/locks", endpoint.router())
}

/// An endpoint over a store, on the system's clock.
pub fn app(store: impl LockStore) -> Router {
    Router::new().nest("/locks", Endpoint::new(store).router())
}

/// Acquires for a minute, for `owner` with the owner token `secret(owner)`.
pub async fn take(app: &Router, resource: &str, owner: &str) -> Answer {
    let body = json!({ "owner": owner, "ttl_seconds": 60, "owner_token": secret(owner) });
    post(app, &format!("/locks/{resource}"), body).await
}

pub async fn release(app: &Router, resource: &str, owner: &str) -> Answer {
    let request = Request::delete(format!("/locks/{resource}"))
        .header("x-lock-owner-token", secret(owner))
        .body(Body::empty());
    send(app, request.unwrap()).await
}

/// What [`take`] asks a store for.
pub fn ask(owner: &str) -> Ask {
    Ask {
        owner: owner.into(),
        owner_token_hash: secret(owner).parse::<OwnerToken>().unwrap().hash(),
        ttl: Duration::from_secs(60),
        max_hold: None,
    }
}

/// Waits for a condition, with a bound.
pub async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let reached = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(30), reached).await.is_ok(), "{what}");
}

/// An owner token for a label.
pub fn secret(owner: &str) -> String {
    format!("secret-of-{owner:_>10}")
}

pub async fn post(app: &Router, path: &str, body: Value) -> Answer {
    let request = Request::post(path)
        .header("content-type", "application/json")
        .body(Body::from(body.to_string()));
    send(app, request.unwrap()).await
}

/// Sends bytes as they are, as JSON.
pub async fn raw(app: &Router, method: Method, path: &str, body: impl Into<Body>) -> Answer {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json")
        .body(body.into());
    send(app, request.unwrap()).await
}

pub async fn send(app: &Router, request: Request<Body>) -> Answer {
    let response = app.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let text = body.collect().await.unwrap().to_bytes();
    let text = String::from_utf8(text.to_vec()).unwrap();
    let json = serde_json::from_str(&text).unwrap_or(Value::Null);
    Answer { status: parts.status, headers: parts.headers, text, json }
}

#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
    pub json: Value,
}

impl Answer {
    /// The grant of an answer to acquire.
    #[track_caller]
    pub fn granted(&self) -> &Value {
        assert_eq!(self.status, 200, "{self:?}");
        assert_eq!(self.json["acquired"], true, "{self:?}");
        &self.json["lock"]
    }

    #[track_caller]
    pub fn granted_token(&self) -> i64 {
        self.granted()["token"].as_i64().unwrap()
    }

    /// The answer that another holds the lock.
    #[track_caller]
    pub fn held(&self) -> &Self {
        assert_eq!(self.status, 200, "{self:?}");
        assert_eq!(self.json["acquired"], false, "{self:?}");
        assert!(self.json["retry_after_ms"].as_u64().unwrap() > 0, "{self:?}");
        assert!(self.header("retry-after").parse::<u64>().unwrap() > 0, "{self:?}");
        self
    }

    #[track_caller]
    pub fn is(&self, status: u16) -> &Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    /// The answer is a problem of this status and name.
    #[track_caller]
    pub fn problem(&self, status: u16, name: &str) -> &Self {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        assert_eq!(self.json["type"], format!("urn:fencing:problem:{name}"), "{self:?}");
        assert_eq!(self.json["status"], status, "{self:?}");
        self
    }

    #[track_caller]
    pub fn invalid_field(&self, field: &str) -> &Self {
        self.problem(422, "invalid-field");
        assert_eq!(self.json["field"], field, "{self:?}");
        self
    }

    #[track_caller]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no {name}: {self:?}")).to_str().unwrap()
    }
}

/// Makes a test of each function for each store.
macro_rules! on_every_store {
    ($($name:ident,)+) => {
        mod memory {
            $(#[tokio::test]
            async fn $name() {
                super::$name(crate::site::Site::memory().await).await;
            })+
        }
        mod sqlite {
            $(#[tokio::test]
            async fn $name() {
                super::$name(crate::site::Site::sqlite().await).await;
            })+
        }
        mod postgres {
            $(#[tokio::test]
            async fn $name() {
                super::$name(crate::site::Site::server::<sqlx::Postgres>().await).await;
            })+
        }
        mod mysql {
            $(#[tokio::test]
            async fn $name() {
                super::$name(crate::site::Site::server::<sqlx::MySql>().await).await;
            })+
        }
    };
}
pub(crate) use on_every_store;
