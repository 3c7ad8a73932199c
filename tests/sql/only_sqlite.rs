//! What only SQLite does.

use std::time::Duration;

use fencing::ClaimState;
use fencing::sql::{self, FenceError, FenceErrorKind, FenceOptions, FencedTx, Tables};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{ConnectOptions, Connection, Sqlite, SqlitePool};

use crate::support::{Db, Harness, claim, poll_times, set};

async fn run(conn: &mut SqliteConnection, sql: &str) -> Result<(), sqlx::Error> {
    Sqlite::run(conn, sql).await
}

async fn goes_on(db: &Db<Sqlite>, pool: &SqlitePool, token: i64) {
    let mut tx = FencedTx::begin(pool, &claim(token)).await.unwrap();
    set::<Sqlite>(&mut tx, token).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!((db.quantity().await, db.mark().await), (token, Some(token)));
    // And so does everybody else on the same connection.
    let mut conn = pool.acquire().await.unwrap();
    set::<Sqlite>(&mut conn, token + 1).await.unwrap();
    assert_eq!(db.quantity().await, token + 1);
}

/// Every way in which SQLite ends a transaction by itself, or the caller behind our back.
#[tokio::test]
async fn i1_no_write_after_the_end_of_the_transaction_is_applied() {
    let ends = [
        "INSERT OR ROLLBACK INTO inventory (id, quantity) VALUES (1, 5)",
        "UPDATE inventory SET quantity = -1000 WHERE id = 1",
        "ROLLBACK",
        "COMMIT",
        "END TRANSACTION",
    ];
    let db = Db::<Sqlite>::with_stock().await;
    let pool = db.pool(1).await;
    let mut conn = pool.acquire().await.unwrap();
    let trigger = "CREATE TRIGGER never_below BEFORE UPDATE ON inventory WHEN new.quantity < -100
                   BEGIN SELECT RAISE(ROLLBACK, 'never below'); END";
    run(&mut conn, trigger).await.unwrap();
    drop(conn);
    for end in ends {
        for writes in 0..3 {
            let holder = claim(34);
            let mut tx = FencedTx::begin(&pool, &holder).await.unwrap();
            set::<Sqlite>(&mut tx, 1).await.unwrap();
            let ended = run(&mut tx, end).await;
            assert_eq!(ended.is_ok(), end == "ROLLBACK", "{end}");
            for _ in 0..writes {
                let refused = set::<Sqlite>(&mut tx, 2).await.unwrap_err();
                let error = FenceError::from(refused);
                assert_eq!(error.kind(), FenceErrorKind::Contended, "{end}: {error:?}");
            }
            assert_eq!((db.quantity().await, db.mark().await), (10, None), "{end}");
            let error = tx.commit().await.unwrap_err();
            assert_eq!(error.kind(), FenceErrorKind::Contended, "{end}: {error:?}");
            assert_eq!(holder.state(), ClaimState::Unspent);
            assert_eq!((db.quantity().await, db.mark().await), (10, None), "{end}");
        }
    }
    goes_on(&db, &pool, 35).await;
}

/// A second transaction that the caller begins by hand after the first died is not ours to commit.
#[tokio::test]
async fn i8_a_transaction_begun_behind_our_back_is_not_committed() {
    let db = Db::<Sqlite>::with_stock().await;
    let pool = db.pool(1).await;
    let mut tx = FencedTx::begin(&pool, &claim(34)).await.unwrap();
    run(&mut tx, "ROLLBACK").await.unwrap();
    run(&mut tx, "BEGIN").await.unwrap();
    set::<Sqlite>(&mut tx, 1).await.unwrap();
    assert_eq!(tx.commit().await.unwrap_err().kind(), FenceErrorKind::Contended);
    assert_eq!((db.quantity().await, db.mark().await), (10, None));
    goes_on(&db, &pool, 35).await;
}

/// What was cancelled is still in the queue of the connection's thread: a statement that ends the
/// transaction and one behind it that would then commit by itself.
#[tokio::test]
async fn i1_what_is_left_in_the_queue_is_not_applied_unfenced() {
    let db = Db::<Sqlite>::with_stock().await;
    let pool = db.pool(1).await;
    let kill = "INSERT OR ROLLBACK INTO inventory (id, quantity) VALUES (1, 5)";
    let slow = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300000)
                SELECT count(*) FROM n";
    for commit in [false, true] {
        for round in 0..5 {
            let mut tx = FencedTx::begin(&pool, &claim(34)).await.unwrap();
            let _ = poll_times(1, run(&mut tx, slow)).await;
            let _ = poll_times(1, run(&mut tx, kill)).await;
            let _ = poll_times(1, set::<Sqlite>(&mut tx, 1)).await;
            let _ = poll_times(1, set::<Sqlite>(&mut tx, 2)).await;
            if commit {
                let error = tx.commit().await.unwrap_err();
                assert_eq!(error.kind(), FenceErrorKind::Contended, "{round}: {error:?}");
            } else {
                drop(tx);
            }
            let mut conn = pool.acquire().await.unwrap();
            let mark = "SELECT count(*) FROM fencing_marks";
            assert_eq!(Sqlite::number(&mut conn, mark).await.unwrap(), Some(0));
            assert_eq!(db.quantity().await, 10, "{round}");
        }
    }
    goes_on(&db, &pool, 35).await;
}

/// A full disk: SQLite may or may not roll back. Whatever it does, both or nothing.
#[tokio::test]
async fn i8_a_full_disk_leaves_both_or_nothing() {
    let db = Db::<Sqlite>::with_stock().await;
    let pool = db.pool(1).await;
    let mut tx = FencedTx::begin(&pool, &claim(34)).await.unwrap();
    run(&mut tx, "PRAGMA max_page_count = 1").await.unwrap();
    set::<Sqlite>(&mut tx, 1).await.unwrap();
    let fill = "INSERT INTO inventory SELECT id + 100000, quantity FROM inventory, ledger, ledger,
                (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 10) SELECT i FROM n)";
    let _ = run(&mut tx, "INSERT INTO ledger VALUES (1), (2)").await;
    let _ = run(&mut tx, fill).await;
    let full = "CREATE TABLE big AS SELECT randomblob(1000000) AS b";
    let error = FenceError::from(run(&mut tx, full).await.unwrap_err());
    assert_eq!(error.kind(), FenceErrorKind::OutcomeUnknown, "{error:?}");
    let _ = set::<Sqlite>(&mut tx, 2).await;
    let committed = tx.commit().await;
    let expected = if committed.is_ok() { (2, Some(34)) } else { (10, None) };
    assert_eq!((db.quantity().await, db.mark().await), expected, "{committed:?}");
    goes_on(&db, &pool, 35).await;
}

/// A deferred constraint is judged at COMMIT, which SQLite refuses with the transaction open.
#[tokio::test]
async fn i4_a_commit_that_the_database_refuses_is_rolled_back_and_known() {
    let db = Db::<Sqlite>::with_stock().await;
    let pool = db.pool(1).await;
    let mut conn = pool.acquire().await.unwrap();
    let child =
        "CREATE TABLE child (item BIGINT REFERENCES inventory (id) DEFERRABLE INITIALLY DEFERRED)";
    run(&mut conn, child).await.unwrap();
    drop(conn);
    let holder = claim(34);
    let mut tx = FencedTx::begin(&pool, &holder).await.unwrap();
    set::<Sqlite>(&mut tx, 1).await.unwrap();
    run(&mut tx, "INSERT INTO child VALUES (77)").await.unwrap();
    let error = tx.commit().await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Statement, "{error:?}");
    assert_eq!(holder.state(), ClaimState::Unspent);
    assert_eq!((db.quantity().await, db.mark().await), (10, None));
    goes_on(&db, &pool, 35).await;
}

/// A database with a rollback journal, where COMMIT has to wait for readers.
async fn journalled() -> (Db<Sqlite>, SqliteConnectOptions) {
    let mut db = Db::<Sqlite>::with_stock().await;
    let options = db.options.clone().journal_mode(SqliteJournalMode::Delete);
    db.options = options.clone();
    options.connect().await.unwrap().close().await.unwrap();
    (db, options)
}

#[tokio::test]
async fn i4_a_commit_that_readers_keep_out_is_contended_and_tried_again_by_run() {
    let (db, options) = journalled().await;
    let pool = db.pool_with(1, options.clone().busy_timeout(Duration::from_millis(50))).await;
    let mut reader = options.connect().await.unwrap();
    run(&mut reader, "BEGIN").await.unwrap();
    Sqlite::number(&mut reader, "SELECT count(*) FROM inventory").await.unwrap();

    let holder = claim(34);
    let mut tx = FencedTx::begin(&pool, &holder).await.unwrap();
    set::<Sqlite>(&mut tx, 1).await.unwrap();
    let error = tx.commit().await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Contended, "{error:?}");
    assert_eq!(holder.state(), ClaimState::Unspent);

    // Case 22: the second try of the same call gets through once the reader has gone.
    let mut runs = 0;
    let mut reader = Some(reader);
    FencedTx::run(&pool, &holder, |tx| {
        runs += 1;
        let leaving = if runs == 2 { reader.take() } else { None };
        Box::pin(async move {
            if let Some(mut reader) = leaving {
                run(&mut reader, "ROLLBACK").await?;
            }
            Ok(set::<Sqlite>(tx, 2).await?)
        })
    })
    .await
    .unwrap();
    assert_eq!(runs, 2);
    assert_eq!((db.quantity().await, db.mark().await), (2, Some(34)));
    goes_on(&db, &pool, 35).await;
}

/// Case 34: COMMIT waits for a reader when its future is dropped; a rollback of the next one on
/// the connection is a rollback again.
#[tokio::test]
async fn case_34_a_commit_dropped_in_flight_leaves_the_count_of_sqlx_right() {
    let (db, options) = journalled().await;
    for leaves in [true, false] {
        let timeout = if leaves { 5000 } else { 50 };
        let pool =
            db.pool_with(1, options.clone().busy_timeout(Duration::from_millis(timeout))).await;
        let before = (db.quantity().await, db.mark().await);
        let mut reader = options.connect().await.unwrap();
        run(&mut reader, "BEGIN").await.unwrap();
        Sqlite::number(&mut reader, "SELECT count(*) FROM inventory").await.unwrap();

        let holder = claim(36);
        let mut tx = FencedTx::begin(&pool, &holder).await.unwrap();
        set::<Sqlite>(&mut tx, 36).await.unwrap();
        assert!(poll_times(1, tx.commit()).await.is_none(), "the reader is in the way");
        assert_eq!(holder.state(), ClaimState::Unknown);
        if leaves {
            reader.close().await.unwrap();
        }
        let mut conn = pool.acquire().await.unwrap();
        let now = Sqlite::number(&mut conn, "SELECT quantity FROM inventory").await.unwrap();
        if leaves {
            assert_eq!((now.unwrap(), db.mark().await), (36, Some(36)), "it went through");
        } else {
            assert_eq!((now.unwrap(), db.mark().await), before, "it was refused");
        }
        // sqlx's own transaction, dropped: its rollback is not taken for ours.
        let mut own = conn.begin().await.unwrap();
        run(&mut own, "UPDATE inventory SET quantity = 99").await.unwrap_or(());
        drop(own);
        let now = Sqlite::number(&mut conn, "SELECT quantity FROM inventory").await.unwrap();
        assert_ne!(now, Some(99));
        drop(conn);
        pool.close().await;
    }
}

/// Case 26: a busy timeout that runs out is contended, and the connection gets its own back.
#[tokio::test]
async fn case_26_a_genuine_busy_timeout_is_contended() {
    let db = Db::<Sqlite>::with_stock().await;
    let (a, b) = (db.pool(1).await, db.pool(1).await);
    let open = FencedTx::begin(&a, &claim(34)).await.unwrap();
    let impatient = FenceOptions::new().lock_timeout(Duration::from_millis(50));
    let error = impatient.begin(&b, &claim(35)).await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Contended);
    drop(open);
    let tx = impatient.begin(&b, &claim(35)).await.unwrap();
    tx.commit().await.unwrap();
    for _ in 0..2 {
        let mut conn = b.acquire().await.unwrap();
        let timeout = Sqlite::number(&mut conn, "PRAGMA busy_timeout").await.unwrap();
        assert_eq!(timeout, Some(5000));
        drop(conn);
        impatient.begin(&b, &claim(36)).await.unwrap().rollback().await;
    }
}

/// One connection, in memory: closing it would lose everything, so nothing closes it.
#[tokio::test]
async fn a_database_in_memory_survives_whatever_happens_to_a_transaction() {
    // The ping of sqlx's own, cancelled while a connection is being acquired, closes it.
    let options = SqlitePoolOptions::new().max_connections(1).test_before_acquire(false);
    let pool = options.connect("sqlite::memory:").await.unwrap();
    sql::migrate(&pool).await.unwrap();
    let mut conn = pool.acquire().await.unwrap();
    run(&mut conn, Sqlite::STOCK).await.unwrap();
    run(&mut conn, "INSERT INTO inventory VALUES (1, 10)").await.unwrap();
    drop(conn);
    sql::claim(&pool, &claim(20)).await.unwrap();

    for polls in 0..12 {
        let _ = poll_times(polls, async {
            let mut tx = FencedTx::begin(&pool, &claim(20)).await.unwrap();
            set::<Sqlite>(&mut tx, 10).await.unwrap();
            tx.commit().await
        })
        .await;
    }
    let mut tx = FencedTx::begin(&pool, &claim(20)).await.unwrap();
    run(&mut tx, "ROLLBACK").await.unwrap();
    set::<Sqlite>(&mut tx, 1).await.unwrap_err();
    tx.commit().await.unwrap_err();
    assert!(FencedTx::begin(&pool, &claim(19)).await.unwrap_err().is_stale());

    let mut conn = pool.acquire().await.unwrap();
    let quantity = Sqlite::number(&mut conn, "SELECT quantity FROM inventory").await.unwrap();
    assert_eq!(quantity, Some(10));
}

/// The marks lie in the file of the data: a transaction over attached files is not atomic in WAL
/// mode.
#[tokio::test]
async fn a_schema_is_refused() {
    let db = Db::<Sqlite>::with_stock().await;
    let pool = db.pool(1).await;
    let options = FenceOptions::new().tables(Tables::default().in_schema("main").unwrap());
    let error = options.begin(&pool, &claim(1)).await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Misconfigured, "{error:?}");
}

/// A read-only file is no verdict about the token.
#[tokio::test]
async fn a_read_only_database_is_unavailable() {
    let db = Db::<Sqlite>::with_stock().await;
    let pool = db.pool_with(1, db.options.clone().read_only(true)).await;
    let error = FencedTx::begin(&pool, &claim(1)).await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Unavailable, "{error:?}");
}
