//! Level transaction, as the guard sees it: a deferred layer before fenced transactions on SQLite.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::{Path, State};
use axum::routing;
use fencing::guard::FenceLayer;
use fencing::marks::{CachedMarks, Check, Issuer, Marks, MarksError, MemoryMarks};
use fencing::sql::{FenceError, FencedTx, SqlMarks, migrate};
use fencing::{Claim, ClaimState, Resource, Token};
use futures_core::future::BoxFuture;
use http::StatusCode;
use sqlx::SqlitePool;

use crate::support::{TOKEN, get, put, refusal, refused, send, status};

/// A database with the tables of the fence and one item.
struct Shop {
    pool: SqlitePool,
    _place: tempfile::TempDir,
}

impl Shop {
    async fn open() -> Self {
        let place = tempfile::tempdir().unwrap();
        let options = sqlx::sqlite::SqliteConnectOptions::new()
            .filename(place.path().join("shop.db"))
            .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
            .create_if_missing(true);
        let pool = SqlitePool::connect_with(options).await.unwrap();
        migrate(&pool).await.unwrap();
        let item = "CREATE TABLE item (quantity INTEGER NOT NULL); INSERT INTO item VALUES (10)";
        sqlx::raw_sql(item).execute(&pool).await.unwrap();
        Self { pool, _place: place }
    }

    async fn number(&self, sql: &'static str) -> Option<i64> {
        sqlx::query_scalar(sql).fetch_optional(&self.pool).await.unwrap()
    }

    async fn mark(&self) -> Option<i64> {
        self.number("SELECT last_token FROM fencing_marks WHERE resource = 'item'").await
    }

    async fn quantity(&self) -> i64 {
        self.number("SELECT quantity FROM item").await.unwrap()
    }

    fn app(&self, marks: impl Marks) -> Router {
        let layer = FenceLayer::new(marks).resource("item").deferred();
        Router::new()
            .route("/set/{quantity}", routing::put(set))
            .route("/forgets/{quantity}", routing::put(forgets))
            .route("/fails/{quantity}", routing::put(fails))
            .route("/show", routing::get(show))
            .route_layer(layer)
            .with_state(self.pool.clone())
    }
}

type Fenced<T> = Result<T, FenceError>;

async fn write(tx: &mut FencedTx<sqlx::Sqlite>, quantity: i64) -> Fenced<()> {
    let update = sqlx::query("UPDATE item SET quantity = ?1").bind(quantity);
    Ok(update.execute(&mut **tx).await.map(drop)?)
}

async fn set(claim: Claim, State(pool): State<SqlitePool>, Path(to): Path<i64>) -> Fenced<()> {
    let mut tx = FencedTx::begin(&pool, &claim).await?;
    write(&mut tx, to).await?;
    tx.commit().await
}

async fn forgets(claim: Claim, State(pool): State<SqlitePool>, Path(to): Path<i64>) -> Fenced<()> {
    let mut tx = FencedTx::begin(&pool, &claim).await?;
    write(&mut tx, to).await
}

async fn fails(
    claim: Claim,
    State(pool): State<SqlitePool>,
    Path(to): Path<i64>,
) -> Fenced<StatusCode> {
    let mut tx = FencedTx::begin(&pool, &claim).await?;
    write(&mut tx, to).await?;
    tx.rollback().await;
    Ok(StatusCode::UNPROCESSABLE_ENTITY)
}

async fn show(claim: Option<Claim>, State(pool): State<SqlitePool>) -> Fenced<String> {
    assert!(claim.is_none_or(|claim| claim.state() == ClaimState::Claimed));
    let quantity: i64 = sqlx::query_scalar("SELECT quantity FROM item").fetch_one(&pool).await?;
    Ok(quantity.to_string())
}

/// Counts the claims that a layer makes itself.
#[derive(Clone, Debug)]
struct Counted<M>(M, Arc<AtomicUsize>);

impl<M: Marks> Marks for Counted<M> {
    fn advance(&self, claim: &Claim) -> Check {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.advance(claim)
    }
    fn vet(&self, claim: &Claim) -> Check {
        self.0.vet(claim)
    }
    fn learn(&self, resource: &Resource, last_token: Token) {
        self.0.learn(resource, last_token);
    }
    fn look(&self, resource: &Resource) -> BoxFuture<'static, Result<Option<Token>, MarksError>> {
        self.0.look(resource)
    }
    fn issuer(&self) -> Option<Issuer> {
        self.0.issuer()
    }
}

#[tokio::test]
async fn a_write_is_checked_by_its_transaction_alone() {
    let shop = Shop::open().await;
    let asked = Arc::new(AtomicUsize::new(0));
    let app =
        shop.app(CachedMarks::new(Counted(SqlMarks::new(shop.pool.clone()), Arc::clone(&asked))));
    for quantity in 1..=5 {
        let response = send(&app, put(&format!("/set/{quantity}"), "34")).await;
        assert_eq!(
            (response.status(), &response.headers()[TOKEN]),
            (StatusCode::OK, &"34".parse().unwrap())
        );
        assert_eq!((shop.mark().await, shop.quantity().await), (Some(34), quantity));
    }
    assert_eq!(refused(&app, put("/set/9", "33")).await, (412, "stale-token"));
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    // A read has no transaction, so the layer claims for it, before it reads.
    assert_eq!(status(&app, get("/show", "36")).await, 200);
    assert_eq!((asked.load(Ordering::SeqCst), shop.mark().await), (1, Some(36)));
    assert_eq!(refused(&app, put("/set/9", "35")).await, (412, "stale-token"));
    assert_eq!(shop.quantity().await, 5);
}

/// The storm is told off without a database: there is none any more.
#[tokio::test]
async fn a_storm_of_stale_requests_reaches_no_database() {
    let shop = Shop::open().await;
    let app = shop.app(CachedMarks::new(SqlMarks::new(shop.pool.clone())));
    // Another replica has committed 34; the first zombie finds it out.
    let elsewhere = shop.app(SqlMarks::new(shop.pool.clone()));
    assert_eq!(status(&elsewhere, put("/set/1", "34")).await, 200);
    assert_eq!(refused(&app, put("/set/9", "33")).await, (412, "stale-token"));
    shop.pool.close().await;
    for token in 1..34 {
        let stale = refusal(&app, put("/set/9", &token.to_string())).await;
        assert_eq!((stale.status, &stale.document["last_token"]), (412, &34.into()));
    }
    assert_eq!(refused(&app, put("/set/9", "34")).await, (503, "fence-unavailable"), "i6");
}

/// H9: the handler forgets to commit. Its transaction is rolled back, and nobody hears of a success.
#[tokio::test]
async fn h9_i4_a_forgotten_commit_is_no_success() {
    let shop = Shop::open().await;
    let app = shop.app(CachedMarks::new(SqlMarks::new(shop.pool.clone())));
    assert_eq!(refused(&app, put("/forgets/9", "34")).await, (500, "misconfigured"));
    assert_eq!((shop.mark().await, shop.quantity().await), (None, 10), "i8: neither of both");
    assert_eq!(status(&app, put("/set/1", "34")).await, 200);
}

/// Case 19 and M1: 9 was claimed and rolled back, so 6 is accepted, by transaction and cache.
#[tokio::test]
async fn m1_a_claim_that_was_rolled_back_rejects_nobody() {
    let shop = Shop::open().await;
    let app = shop.app(CachedMarks::new(SqlMarks::new(shop.pool.clone())));
    assert_eq!(status(&app, put("/set/1", "4")).await, 200);
    assert_eq!(status(&app, put("/fails/9", "9")).await, 422);
    assert_eq!(refused(&app, put("/forgets/9", "9")).await, (500, "misconfigured"));
    assert_eq!((shop.mark().await, shop.quantity().await), (Some(4), 1));
    assert_eq!(status(&app, put("/set/2", "6")).await, 200);
    assert_eq!(refused(&app, put("/set/3", "5")).await, (412, "stale-token"));
}

/// M1: a claim and a write that do not use the same mark do not fence each other. This is the trap,
/// not a promise: give the layer the marks of the database.
#[tokio::test]
async fn m1_a_claim_on_other_marks_is_no_claim_for_the_transaction() {
    let shop = Shop::open().await;
    let trap = shop.app(MemoryMarks::ephemeral());
    assert_eq!(status(&trap, put("/set/5", "33")).await, 200);
    // 34 claims with its read, on the marks in memory, and reads 5.
    assert_eq!(status(&trap, get("/show", "34")).await, 200);
    // Another replica does not know: the zombie writes under what 34 has read.
    let replica = shop.app(MemoryMarks::ephemeral());
    assert_eq!(status(&replica, put("/set/4", "33")).await, 200, "the write that will be lost");

    let right = || shop.app(CachedMarks::new(SqlMarks::new(shop.pool.clone())));
    assert_eq!(status(&right(), get("/show", "34")).await, 200);
    assert_eq!(refused(&right(), put("/set/3", "33")).await, (412, "stale-token"));
}

/// M4: to report is the layer's affair. The transaction behind it refuses as ever.
#[tokio::test]
async fn m4_under_report_only_the_transaction_still_refuses() {
    let shop = Shop::open().await;
    let marks = CachedMarks::new(SqlMarks::new(shop.pool.clone()));
    for deferred in [false, true] {
        let layer = FenceLayer::new(marks.clone()).resource("item").report_only(true);
        let layer = if deferred { layer.deferred() } else { layer };
        let app = Router::new()
            .route("/set/{quantity}", routing::put(set))
            .route_layer(layer)
            .with_state(shop.pool.clone());
        assert_eq!(status(&app, put("/set/1", "34")).await, 200);
        let response = send(&app, put("/set/9", "33")).await;
        assert_eq!((response.status().as_u16(), response.headers().get(TOKEN)), (412, None));
        assert_eq!((shop.mark().await, shop.quantity().await), (Some(34), 1));
    }
}

/// The lock tables lie beside the marks, so what they never granted is refused, and needs no saying.
/// A resource they know nothing of has its tokens from elsewhere.
#[tokio::test]
async fn m5_sql_marks_know_what_their_lock_tables_granted() {
    let shop = Shop::open().await;
    let door = |marks| {
        Router::new()
            .route("/{name}", routing::put(|| async {}))
            .route_layer(FenceLayer::new(marks).resource("{name}"))
    };
    let at_door = door(SqlMarks::new(shop.pool.clone()));
    let deferred = shop.app(CachedMarks::new(SqlMarks::new(shop.pool.clone())));
    sqlx::raw_sql("INSERT INTO fencing_locks (resource, token) VALUES ('item', 34), ('new', 0)")
        .execute(&shop.pool)
        .await
        .unwrap();
    for token in ["35", "9223372036854775807"] {
        let answer = (403, "implausible-token");
        assert_eq!(refused(&at_door, put("/item", token)).await, answer);
        assert_eq!(refused(&deferred, put("/set/9", token)).await, answer);
        assert_eq!(refused(&deferred, get("/show", token)).await, answer);
    }
    assert_eq!((shop.mark().await, shop.quantity().await), (None, 10));
    assert_eq!(status(&deferred, put("/set/1", "34")).await, 200);
    assert_eq!(status(&at_door, put("/item", "34")).await, 200);
    // Never granted here.
    assert_eq!(status(&at_door, put("/other", "9223372036854775807")).await, 200);
    assert_eq!(status(&at_door, put("/new", "5000")).await, 200);
    // Where the tables are out of reach nobody is judged by them.
    sqlx::raw_sql("DROP TABLE fencing_locks").execute(&shop.pool).await.unwrap();
    assert_eq!(status(&at_door, put("/item", "35")).await, 200);
}

/// M5: the jump limit counts from the floor where there is no mark, so that a bump of the floor of
/// the marks lets the tokens after it in.
#[tokio::test]
async fn m5_a_jump_limit_counts_from_the_floor_of_the_marks() {
    let shop = Shop::open().await;
    let marks = SqlMarks::new(shop.pool.clone());
    let app = Router::new()
        .route("/{name}", routing::put(|| async {}))
        .route_layer(FenceLayer::new(marks).resource("{name}").max_jump(1000));
    assert_eq!(status(&app, put("/first", "5000000")).await, 200, "no mark and no floor");
    assert_eq!(refused(&app, put("/first", "5001001")).await, (403, "implausible-token"));
    let floor = Token::new(1_000_000_000).unwrap();
    fencing::sql::raise_floor(&shop.pool, floor).await.unwrap();
    assert_eq!(refused(&app, put("/second", "2000000000")).await, (403, "implausible-token"));
    assert_eq!(refused(&app, put("/second", "1000000000")).await, (412, "stale-token"));
    assert_eq!(status(&app, put("/second", "1000000001")).await, 200);
}

#[tokio::test]
async fn a_hidden_mark_is_hidden_in_what_the_transaction_refuses_too() {
    let shop = Shop::open().await;
    let layer = FenceLayer::new(SqlMarks::new(shop.pool.clone())).resource("item");
    let app = Router::new()
        .route("/set/{quantity}", routing::put(set))
        .route_layer(layer.deferred().hide_last_token(true))
        .with_state(shop.pool.clone());
    assert_eq!(status(&app, put("/set/7", "34")).await, StatusCode::OK);
    let response = send(&app, put("/set/8", "33")).await;
    assert_eq!(response.status(), 412);
    let body = axum::body::to_bytes(response.into_body(), 4096).await.unwrap();
    let body = String::from_utf8(body.to_vec()).unwrap();
    assert!(body.contains("stale-token") && !body.contains("last_token"), "{body}");
    assert_eq!(shop.quantity().await, 7);
}
