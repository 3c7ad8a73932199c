//! What one caller sees of a fenced transaction, a claim and an advance.

use fencing::marks::{Marks, conformance};
use fencing::sql::{self, FenceError, FenceErrorKind, FencedTx, SqlMarks};
use fencing::{Claim, ClaimState, Problem, ProblemKind, Token, Verdict};
use sqlx::Connection;

use crate::support::{Db, Harness, claim, claim_on, on_every_database, set};

on_every_database! {
    i8_the_mark_and_the_write_commit_together,
    case_14_one_token_writes_many_times,
    case_19_a_write_that_fails_leaves_the_mark_where_it_was,
    a_claim_raises_the_mark_before_a_read,
    advance_wants_a_transaction_of_its_own_and_no_savepoint,
    the_floor_decides_where_there_is_no_mark,
    several_claims_are_taken_all_or_none,
    claims_that_contradict_each_other_are_refused,
    stale_after_a_commit_is_partly_applied,
    savepoints_inside_work_as_usual,
    missing_tables_are_a_misconfiguration,
    case_12_a_pool_without_connections_is_unavailable,
    sql_marks_conform,
}

async fn i8_the_mark_and_the_write_commit_together<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    let holder = claim(34);
    let mut tx = FencedTx::begin(&pool, &holder).await.unwrap();
    assert_eq!(holder.state(), ClaimState::Open);
    set::<H>(&mut tx, 7).await.unwrap();
    assert_eq!((db.quantity().await, db.mark().await), (10, None), "nothing leaks before commit");
    tx.commit().await.unwrap();
    assert_eq!(holder.state(), ClaimState::Committed);
    assert_eq!((db.quantity().await, db.mark().await), (7, Some(34)));

    let zombie = claim(33);
    let error = FencedTx::begin(&pool, &zombie).await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Stale { last_token: holder.token() });
    assert_eq!(zombie.state(), ClaimState::Stale);
    assert_eq!(Problem::from(&error).kind(), ProblemKind::STALE_TOKEN);
    assert_eq!(Problem::from(&error).last_token(), Some(holder.token()));
    assert!(error.is_stale() && !error.is_retryable());
    assert_eq!(db.mark().await, Some(34));
}

/// Case 14: one lease covers many writes, so an equal token passes; and each of them is a new
/// version of the mark row.
async fn case_14_one_token_writes_many_times<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    for (resource, quantity) in [("r", 1), ("r", 2), ("other", 3), ("r", 4)] {
        let mut tx = FencedTx::begin(&pool, &claim_on(resource, 7)).await.unwrap();
        set::<H>(&mut tx, quantity).await.unwrap();
        tx.commit().await.unwrap();
    }
    assert_eq!(db.quantity().await, 4);
    let seq = db.number("SELECT seq FROM fencing_marks WHERE resource = 'r'").await;
    assert_eq!(seq, Some(3), "an equal token writes the mark row too");
}

/// Case 19: a handler that fails after its claim rolls back the mark with the data, whatever way
/// it fails, and a lower token that is still above the old mark goes on.
async fn case_19_a_write_that_fails_leaves_the_mark_where_it_was<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    FencedTx::begin(&pool, &claim(4)).await.unwrap().commit().await.unwrap();

    let returns = claim(9);
    let failed: Result<(), FenceError> = FencedTx::run(&pool, &returns, |tx| {
        Box::pin(async move {
            set::<H>(tx, 1).await?;
            Err(FenceError::other("out of stock"))
        })
    })
    .await;
    let error = failed.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Statement);
    assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "out of stock");
    assert_eq!(returns.state(), ClaimState::Unspent);

    let mut tx = FencedTx::begin(&pool, &claim(9)).await.unwrap();
    set::<H>(&mut tx, 2).await.unwrap();
    tx.rollback().await;

    let mut tx = FencedTx::begin(&pool, &claim(9)).await.unwrap();
    set::<H>(&mut tx, 3).await.unwrap();
    drop(tx);

    let duplicate = "INSERT INTO inventory (id, quantity) VALUES (1, 5)";
    let mut tx = FencedTx::begin(&pool, &claim(9)).await.unwrap();
    set::<H>(&mut tx, 4).await.unwrap();
    let error = FenceError::from(H::run(&mut tx, duplicate).await.unwrap_err());
    assert_eq!(error.kind(), FenceErrorKind::Statement, "{error:?}");
    drop(tx);

    let panicking = tokio::spawn({
        let pool = pool.clone();
        async move {
            let mut tx = FencedTx::begin(&pool, &claim(9)).await.unwrap();
            set::<H>(&mut tx, 6).await.unwrap();
            assert!(pool.is_closed(), "the handler panics here");
        }
    });
    assert!(panicking.await.unwrap_err().is_panic());

    assert_eq!((db.quantity().await, db.mark().await), (10, Some(4)));
    let mut tx = FencedTx::begin(&pool, &claim(6)).await.unwrap();
    set::<H>(&mut tx, 8).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!((db.quantity().await, db.mark().await), (8, Some(6)));
}

async fn a_claim_raises_the_mark_before_a_read<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    let reader = claim(34);
    for _ in 0..2 {
        sql::claim(&pool, &reader).await.unwrap();
        assert_eq!(reader.state(), ClaimState::Claimed);
        assert_eq!(db.mark().await, Some(34));
    }
    let error = sql::claim(&pool, &claim(33)).await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Stale { last_token: reader.token() });
    let error = FencedTx::begin(&pool, &claim(33)).await.unwrap_err();
    assert!(error.is_stale(), "the same mark: {error}");
}

async fn advance_wants_a_transaction_of_its_own_and_no_savepoint<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;

    let mut tx = pool.begin().await.unwrap();
    assert_eq!(sql::advance(&mut tx, &claim(33)).await.unwrap(), Verdict::Accepted);
    set::<H>(&mut tx, 7).await.unwrap();
    let conn: &mut H::Connection = &mut tx;
    let mut savepoint = conn.begin().await.unwrap();
    let error = sql::advance(&mut savepoint, &claim(34)).await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Misconfigured, "{error}");
    savepoint.rollback().await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!((db.quantity().await, db.mark().await), (7, Some(33)));

    let mut tx = pool.begin().await.unwrap();
    let stale = Verdict::Stale { last_token: claim(33).token() };
    assert_eq!(sql::advance(&mut tx, &claim(32)).await.unwrap(), stale);
    tx.rollback().await.unwrap();
}

async fn the_floor_decides_where_there_is_no_mark<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    let floor = Token::new(32).unwrap();
    FencedTx::begin(&pool, &claim_on("known", 5)).await.unwrap().commit().await.unwrap();
    sql::raise_floor(&pool, floor).await.unwrap();
    sql::raise_floor(&pool, Token::MIN).await.unwrap();
    assert_eq!(db.number("SELECT floor FROM fencing_floor").await, Some(32), "it never falls");

    for token in [1, 31, 32] {
        let error = FencedTx::begin(&pool, &claim(token)).await.unwrap_err();
        assert_eq!(error.kind(), FenceErrorKind::Stale { last_token: floor }, "{token}");
        let error = sql::claim(&pool, &claim(token)).await.unwrap_err();
        assert_eq!(error.kind(), FenceErrorKind::Stale { last_token: floor }, "{token}");
    }
    assert_eq!(db.mark().await, None, "what was refused leaves no mark");
    // A resource with a mark is judged by its mark.
    FencedTx::begin(&pool, &claim_on("known", 5)).await.unwrap().commit().await.unwrap();
    FencedTx::begin(&pool, &claim(33)).await.unwrap().commit().await.unwrap();
    assert_eq!(db.mark().await, Some(33));
}

async fn several_claims_are_taken_all_or_none<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    FencedTx::begin(&pool, &claim_on("b", 9)).await.unwrap().commit().await.unwrap();
    FencedTx::begin(&pool, &claim_on("c", 9)).await.unwrap().commit().await.unwrap();

    let all = [claim_on("c", 3), claim_on("b", 4), claim_on("a", 5), claim_on("a", 5)];
    let error = FencedTx::begin_all(&pool, &all).await.unwrap_err();
    assert_eq!(error.claim(), Some(&all[1]), "the first stale one in byte order");
    assert_eq!(error.kind(), FenceErrorKind::Stale { last_token: Token::new(9).unwrap() });
    let states = all.each_ref().map(Claim::state);
    let unspent = ClaimState::Unspent;
    assert_eq!(states, [unspent, ClaimState::Stale, unspent, unspent]);
    assert_eq!(db.number("SELECT count(*) FROM fencing_marks").await, Some(2));

    let all = [claim_on("c", 9), claim_on("b", 10), claim_on("a", 5), claim_on("a", 5)];
    let tx = FencedTx::begin_all(&pool, &all).await.unwrap();
    assert_eq!(tx.claims(), [&all[2], &all[3], &all[1], &all[0]].map(Claim::clone));
    tx.commit().await.unwrap();
    assert!(all.iter().all(|claim| claim.state() == ClaimState::Committed));
    for (resource, mark) in [("a", 5), ("b", 10), ("c", 9)] {
        let query = format!("SELECT last_token FROM fencing_marks WHERE resource = '{resource}'");
        assert_eq!(db.number(&query).await, Some(mark));
    }
}

async fn claims_that_contradict_each_other_are_refused<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    for claims in [vec![], vec![claim(3), claim_on("a", 1), claim(4)]] {
        let error = FencedTx::begin_all(&pool, &claims).await.unwrap_err();
        assert_eq!(error.kind(), FenceErrorKind::Misconfigured, "{error}");
        assert_eq!(Problem::from(error).kind(), ProblemKind::MISCONFIGURED);
    }
    assert_eq!(db.number("SELECT count(*) FROM fencing_marks").await, Some(0));
}

async fn stale_after_a_commit_is_partly_applied<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    let holder = claim(33);
    FencedTx::begin(&pool, &holder).await.unwrap().commit().await.unwrap();
    FencedTx::begin(&pool, &claim(34)).await.unwrap().commit().await.unwrap();
    for error in [
        FencedTx::begin(&pool, &holder.clone()).await.unwrap_err(),
        sql::claim(&pool, &holder).await.unwrap_err(),
    ] {
        let last_token = Token::new(34).unwrap();
        assert_eq!(error.kind(), FenceErrorKind::PartlyApplied { last_token });
        assert_eq!(Problem::from(&error).status(), 500);
        assert!(error.is_stale() && !error.is_retryable());
    }
}

async fn savepoints_inside_work_as_usual<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    let mut tx = FencedTx::begin(&pool, &claim(34)).await.unwrap();
    set::<H>(&mut tx, 7).await.unwrap();
    let mut savepoint = tx.begin().await.unwrap();
    set::<H>(&mut savepoint, 8).await.unwrap();
    drop(savepoint);
    let mut savepoint = tx.begin().await.unwrap();
    H::run(&mut savepoint, "INSERT INTO inventory (id, quantity) VALUES (2, 5)").await.unwrap();
    savepoint.commit().await.unwrap();
    let mut savepoint = tx.begin().await.unwrap();
    H::run(&mut savepoint, "INSERT INTO inventory (id, quantity) VALUES (3, 5)").await.unwrap();
    savepoint.rollback().await.unwrap();
    // One that is neither released nor rolled back does not keep the transaction from committing.
    std::mem::forget(tx.begin().await.unwrap());
    tx.commit().await.unwrap();
    assert_eq!((db.quantity().await, db.mark().await), (7, Some(34)));
    assert_eq!(db.number("SELECT count(*) FROM inventory").await, Some(2));
    // And the connection is as good as new.
    let mut tx = FencedTx::begin(&pool, &claim(35)).await.unwrap();
    set::<H>(&mut tx, 9).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!((db.quantity().await, db.mark().await), (9, Some(35)));
}

async fn missing_tables_are_a_misconfiguration<H: Harness>() {
    let db = Db::<H>::empty().await;
    let pool = db.pool(1).await;
    for error in [
        FencedTx::begin(&pool, &claim(1)).await.unwrap_err(),
        sql::claim(&pool, &claim(1)).await.unwrap_err(),
        sql::raise_floor(&pool, Token::MIN).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), FenceErrorKind::Misconfigured, "{error:?}");
    }
    assert!(SqlMarks::new(pool).advance(&claim(1)).await.is_err());
}

/// Case 12: no connection is no verdict, and it heals by itself.
async fn case_12_a_pool_without_connections_is_unavailable<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = sqlx::pool::PoolOptions::<H>::new()
        .max_connections(1)
        .acquire_timeout(std::time::Duration::from_millis(50))
        .connect_with(db.options.clone())
        .await
        .unwrap();
    let held = pool.acquire().await.unwrap();
    let error = FencedTx::begin(&pool, &claim(34)).await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Unavailable, "{error:?}");
    assert_eq!(Problem::from(&error).status(), 503);
    let error = sql::claim(&pool, &claim(34)).await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Unavailable, "{error:?}");
    drop(held);
    let mut healed = FencedTx::begin(&pool, &claim(34)).await;
    for _ in 0..100 {
        if healed.is_ok() {
            break;
        }
        healed = FencedTx::begin(&pool, &claim(34)).await;
    }
    healed.unwrap().commit().await.unwrap();
    pool.close().await;
    let error = FencedTx::begin(&pool, &claim(34)).await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Unavailable, "{error:?}");
}

async fn sql_marks_conform<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    conformance::run(SqlMarks::new(db.pool(1).await)).await;
    let (a, b) = (SqlMarks::new(db.pool(4).await), SqlMarks::new(db.pool(2).await));
    conformance::run(a.clone()).await;
    conformance::run_shared(a, b).await;
}
