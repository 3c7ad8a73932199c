//! What only the store on SQLite can get wrong.

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fencing::Resource;
use fencing::lock::{Acquired, LockStore, SqlLocks, SqlLocksErrorKind};
use fencing::sql::{FenceOptions, Tables};
use fencing::testing::ManualClock;
use serde_json::json;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, SqliteConnection, SqlitePool};
use tempfile::TempDir;

use crate::site::{app, ask, post, secret, take, until};

fn at(directory: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new().filename(directory.join("locks.db")).create_if_missing(true)
}

async fn another_process(directory: &TempDir) -> SqliteConnection {
    at(directory.path()).busy_timeout(Duration::from_secs(10)).connect().await.unwrap()
}

/// A migrated file, and a pool of one connection that gives up on a lock after `busy`.
async fn impatient(directory: &TempDir, busy: Duration) -> SqlitePool {
    drop(SqlLocks::open(at(directory.path())).await.unwrap());
    let options = at(directory.path()).synchronous(SqliteSynchronous::Full).busy_timeout(busy);
    SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap()
}

/// Start-up refuses what may forget a token: an in-memory database, and commits not synced.
#[tokio::test]
async fn i2_a_database_that_may_lose_commits_is_refused() {
    let memory: SqliteConnectOptions = "sqlite::memory:".parse().unwrap();
    let refused = SqlLocks::open(memory).await.unwrap_err();
    assert_eq!(refused.kind(), SqlLocksErrorKind::NotDurable);
    let cases = [
        (SqliteJournalMode::Wal, SqliteSynchronous::Normal, false),
        (SqliteJournalMode::Wal, SqliteSynchronous::Off, false),
        (SqliteJournalMode::Wal, SqliteSynchronous::Full, true),
        (SqliteJournalMode::Wal, SqliteSynchronous::Extra, true),
        (SqliteJournalMode::Delete, SqliteSynchronous::Full, false),
        (SqliteJournalMode::Delete, SqliteSynchronous::Extra, true),
        (SqliteJournalMode::Truncate, SqliteSynchronous::Full, true),
        (SqliteJournalMode::Memory, SqliteSynchronous::Extra, false),
        (SqliteJournalMode::Off, SqliteSynchronous::Extra, false),
    ];
    for (journal, synchronous, durable) in cases {
        let directory = tempfile::tempdir().unwrap();
        let options = at(directory.path()).journal_mode(journal).synchronous(synchronous);
        let pool = SqlitePool::connect_with(options).await.unwrap();
        fencing::sql::migrate(&pool).await.unwrap();
        match SqlLocks::new(pool).await {
            Ok(_) => assert!(durable, "{journal:?} {synchronous:?}"),
            Err(error) => {
                assert!(!durable, "{journal:?} {synchronous:?}: {error}");
                assert_eq!(error.kind(), SqlLocksErrorKind::NotDurable);
                assert!(error.to_string().contains("journal_mode"), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn missing_tables_are_told_at_start() {
    let directory = tempfile::tempdir().unwrap();
    let pool = SqlitePool::connect_with(at(directory.path())).await;
    let error = SqlLocks::new(pool.unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), SqlLocksErrorKind::Tables);
}

#[tokio::test]
async fn tables_of_another_prefix_are_locks_of_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let default = SqlLocks::open(at(directory.path())).await.unwrap();
    let options = FenceOptions::new().tables(Tables::with_prefix("other_").unwrap());
    options.migrate(default.pool()).await.unwrap();
    let other = SqlLocks::with_options(default.pool().clone(), options).await.unwrap();
    let (default, other) = (app(default), app(other));
    take(&default, "job", "a").await.granted();
    assert_eq!(take(&other, "job", "b").await.granted_token(), 1);
}

/// Cases 28 and 39: tokens go on over a restart, with every lock released, expired or swept.
#[tokio::test]
async fn i2_tokens_rise_over_restarts() {
    let directory = tempfile::tempdir().unwrap();
    let clock = ManualClock::new();
    for round in 0..4 {
        let locks = SqlLocks::open(at(directory.path())).await.unwrap();
        let pool = locks.pool().clone();
        let app = app(locks.with_clock(Arc::new(clock.clone())));
        // The one of the round before has expired.
        clock.advance(Duration::from_secs(60));
        let first = take(&app, "job", &format!("{round}-first")).await.granted_token();
        assert_eq!(first, 2 * round + 1);
        let owner = format!("{round}-first");
        let body = json!({ "owner_token": secret(&owner) });
        let released = http::Request::delete("/locks/job")
            .header("content-type", "application/json")
            .body(axum::body::Body::from(body.to_string()))
            .unwrap();
        crate::site::send(&app, released).await.is(204);
        assert_eq!(take(&app, "job", &format!("{round}-second")).await.granted_token(), first + 1);
        if round == 2 {
            // An operator vacuums and checks the file meanwhile.
            sqlx::query("VACUUM").execute(&pool).await.unwrap();
        }
        pool.close().await;
    }
}

/// A live grant outlives the server, and expires by the clock as if it had run all the time.
#[tokio::test]
async fn i3_a_grant_outlives_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let clock = ManualClock::new();
    let open = async || {
        let locks = SqlLocks::open(at(directory.path())).await.unwrap();
        (locks.pool().clone(), app(locks.with_clock(Arc::new(clock.clone()))))
    };
    let (pool, app) = open().await;
    take(&app, "job", "a").await.granted();
    pool.close().await;
    let (pool, app) = open().await;
    take(&app, "job", "b").await.held();
    assert_eq!(take(&app, "job", "a").await.granted_token(), 1, "the secret still counts");
    pool.close().await;
    clock.advance(Duration::from_secs(60));
    let (_, app) = open().await;
    assert_eq!(take(&app, "job", "b").await.granted_token(), 2);
}

/// H4: the TTL counts from a clock read after the locks were taken. Here another process holds the
/// file while time passes.
#[tokio::test]
async fn the_clock_is_read_after_the_locks() {
    let directory = tempfile::tempdir().unwrap();
    let clock = ManualClock::new();
    let locks = SqlLocks::open(at(directory.path())).await.unwrap();
    let pool = locks.pool().clone();
    let app = app(locks.with_clock(Arc::new(clock.clone())));
    let mut other = another_process(&directory).await;
    let held = other.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let waiting = tokio::spawn({
        let app = app.clone();
        async move { take(&app, "job", "a").await }
    });
    until("the step has its connection", async || pool.num_idle() < pool.size() as usize).await;
    // Long enough to have begun; the answer is the same if it has not.
    tokio::time::sleep(Duration::from_millis(50)).await;
    clock.advance(Duration::from_secs(7));
    held.rollback().await.unwrap();
    let answer = waiting.await.unwrap();
    assert_eq!(answer.granted()["remaining_ms"], 60_000);
    assert_eq!(answer.granted()["acquired_at"], "2023-11-14T22:13:27.000Z");
}

/// C4, the side of the grant: a floor that rises while an acquire waits counts for it.
#[tokio::test]
async fn i2_a_bump_or_purge_that_comes_first_counts() {
    let directory = tempfile::tempdir().unwrap();
    let locks = SqlLocks::open(at(directory.path())).await.unwrap();
    let pool = locks.pool().clone();
    let app = app(locks);
    let purge = "UPDATE fencing_floor SET floor = 57; DELETE FROM fencing_locks";
    let bump = "UPDATE fencing_floor SET floor = 1000; UPDATE fencing_locks SET token = 1000";
    for (statements, owner, expected) in [(purge, "a", 58), (bump, "b", 1001)] {
        let mut other = another_process(&directory).await;
        let mut first = other.begin_with("BEGIN IMMEDIATE").await.unwrap();
        sqlx::raw_sql(statements).execute(&mut *first).await.unwrap();
        let waiting = tokio::spawn({
            let app = app.clone();
            async move { take(&app, &format!("job-{owner}"), owner).await }
        });
        until("the step has its connection", async || pool.num_idle() < pool.size() as usize).await;
        first.commit().await.unwrap();
        assert_eq!(waiting.await.unwrap().granted_token(), expected);
    }
}

/// Two servers over one file, fifty at once: one holder, no error.
#[tokio::test]
async fn atk_10_over_two_servers_exactly_one_wins() {
    let directory = tempfile::tempdir().unwrap();
    let one = app(SqlLocks::open(at(directory.path())).await.unwrap());
    let two = app(SqlLocks::open(at(directory.path())).await.unwrap());
    let tasks: Vec<_> = (0..50)
        .map(|n| {
            let app = if n % 2 == 0 { one.clone() } else { two.clone() };
            tokio::spawn(async move { take(&app, "job", &n.to_string()).await })
        })
        .collect();
    let mut won = 0;
    for task in tasks {
        let answer = task.await.unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
        won += i32::from(answer.json["acquired"] == true);
    }
    assert_eq!(won, 1);
}

/// A file that another process keeps locked is 503, with nothing of the database in it, and
/// the server recovers by itself.
#[tokio::test]
async fn a_locked_file_is_unavailable_and_recovers() {
    let directory = tempfile::tempdir().unwrap();
    let pool = impatient(&directory, Duration::from_millis(50)).await;
    let app = app(SqlLocks::new(pool).await.unwrap());
    take(&app, "held", "a").await.granted();

    let mut other = another_process(&directory).await;
    let held = other.begin_with("BEGIN IMMEDIATE").await.unwrap();
    for path in ["/locks/job", "/locks/held/renew"] {
        let body = json!({ "owner": "b", "ttl_ms": 1000, "owner_token": secret("a") });
        let answer = post(&app, path, body).await;
        answer.problem(503, "lock-unavailable").header("retry-after");
        let text = answer.text.to_lowercase();
        assert!(!text.contains("sqlite") && !text.contains("locked"), "{text}");
        assert!(!text.contains("code"), "{text}");
    }
    // To read nobody's lock is needed.
    let shown = http::Request::get("/locks/held").body(axum::body::Body::empty()).unwrap();
    crate::site::send(&app, shown).await.is(200);
    held.rollback().await.unwrap();
    assert_eq!(take(&app, "job", "b").await.granted_token(), 1);
}

/// A step waits for another writer of the same file, as a handler of the same service is.
#[tokio::test]
async fn a_step_waits_for_another_writer() {
    let directory = tempfile::tempdir().unwrap();
    let locks = SqlLocks::open(at(directory.path())).await.unwrap();
    let pool = locks.pool().clone();
    let app = app(locks);
    let mut other = another_process(&directory).await;
    let held = other.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let tasks: Vec<_> = (0..10)
        .map(|n| {
            let app = app.clone();
            tokio::spawn(async move { take(&app, &format!("job-{n}"), "a").await })
        })
        .collect();
    until("a step has its connection", async || pool.num_idle() < pool.size() as usize).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(tasks.iter().all(|task| !task.is_finished()));
    held.commit().await.unwrap();
    for task in tasks {
        assert_eq!(task.await.unwrap().granted_token(), 1);
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_written_is_told_at_start_and_unavailable_later() {
    let directory = tempfile::tempdir().unwrap();
    drop(SqlLocks::open(at(directory.path())).await.unwrap());
    let options = at(directory.path()).synchronous(SqliteSynchronous::Full);
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
    let query_only = async |on: &'static str| sqlx::query(on).execute(&pool).await.unwrap();
    query_only("PRAGMA query_only = 1").await;
    let error = SqlLocks::new(pool.clone()).await.unwrap_err();
    assert_eq!(error.kind(), SqlLocksErrorKind::TakesNoWrites);
    query_only("PRAGMA query_only = 0").await;
    let app = app(SqlLocks::new(pool.clone()).await.unwrap());
    query_only("PRAGMA query_only = 1").await;
    take(&app, "job", "a").await.problem(503, "lock-unavailable");
    query_only("PRAGMA query_only = 0").await;
    assert_eq!(take(&app, "job", "a").await.granted_token(), 1);
}

/// A row that is not what the rules write is a refusal, never a grant over it.
#[tokio::test]
async fn a_corrupt_row_fails_closed() {
    let directory = tempfile::tempdir().unwrap();
    let locks = SqlLocks::open(at(directory.path())).await.unwrap();
    let pool = locks.pool().clone();
    let app = app(locks);
    take(&app, "job", "a").await.granted();
    sqlx::raw_sql(
        "PRAGMA ignore_check_constraints = 1; UPDATE fencing_locks SET owner_token_hash = x'00'; \
         PRAGMA ignore_check_constraints = 0;",
    )
    .execute(&mut *pool.acquire().await.unwrap())
    .await
    .unwrap();
    take(&app, "job", "b").await.problem(503, "lock-unavailable");
    sqlx::query("DELETE FROM fencing_floor").execute(&pool).await.unwrap();
    take(&app, "other", "b").await.problem(503, "lock-unavailable");
}

/// I7: the database holds the hash of an owner token, not the owner token.
#[tokio::test]
async fn i7_the_file_does_not_hold_the_secret() {
    let directory = tempfile::tempdir().unwrap();
    let locks = SqlLocks::open(at(directory.path())).await.unwrap();
    let pool = locks.pool().clone();
    let app = app(locks);
    take(&app, "job", "the-owner").await.granted();
    let secret = secret("the-owner").into_bytes();
    let contains = |needle: &[u8]| {
        std::fs::read_dir(directory.path()).unwrap().any(|file| {
            let bytes = std::fs::read(file.unwrap().path()).unwrap();
            bytes.windows(needle.len()).any(|window| window == needle)
        })
    };
    assert!(contains(b"the-owner"), "the search itself works");
    assert!(!contains(&secret));
    pool.close().await;
    assert!(!contains(&secret));
}

/// Cases 33 and 34: a step dropped at any of its awaits is taken wholly or not at all, and leaves
/// the one connection of the pool fit for the next.
#[tokio::test]
async fn a_dropped_step_leaves_no_transaction_behind() {
    let directory = tempfile::tempdir().unwrap();
    let pool = impatient(&directory, Duration::from_secs(5)).await;
    let locks = SqlLocks::new(pool.clone()).await.unwrap();
    let mut finished = 0;
    for polls in 0..200 {
        let resource = Resource::new(format!("job-{polls}")).unwrap();
        let ask = ask("a");
        let done = poll_times(locks.acquire(&resource, &ask), polls).await;
        finished += u32::from(done);
        // The next step on the same connection is served, and sees all of it or nothing.
        let other = Resource::new(format!("other-{polls}")).unwrap();
        let next = locks.acquire(&other, &ask).await.unwrap();
        assert!(matches!(next, Acquired::Granted(_)), "after {polls} polls: {next:?}");
        let token = locks.highest_token(&resource).await.unwrap();
        assert!(token.is_none_or(|token| token.get() == 1), "after {polls} polls");
        assert_eq!(locks.show(&resource).await.unwrap().is_some(), token.is_some());
        assert_eq!(pool.size(), 1);
        // What the other process sees is what was answered.
        let mut outside = another_process(&directory).await;
        let seen: i64 =
            sqlx::query_scalar("SELECT count(*) FROM fencing_locks WHERE resource = ?1")
                .bind(other.as_str())
                .fetch_one(&mut outside)
                .await
                .unwrap();
        assert_eq!(seen, 1, "after {polls} polls");
        if finished > 3 {
            return;
        }
    }
    panic!("a step takes more than 200 polls");
}

/// Polls a future so many times, then drops it; whether it was done before.
async fn poll_times<T>(future: impl Future<Output = T>, polls: usize) -> bool {
    let mut future = pin!(future);
    for _ in 0..polls {
        let once = std::future::poll_fn(|cx: &mut Context<'_>| {
            Poll::Ready(future.as_mut().poll(cx).is_ready())
        });
        if once.await {
            return true;
        }
        // The thread of the connection gets on meanwhile.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    false
}
