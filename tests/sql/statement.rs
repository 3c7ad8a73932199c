//! The fenced statement.

use std::time::Duration;

use fencing::sql::{self, FenceErrorKind, FenceOptions, FencedTx, Outcome, Policy, fenced};
use fencing::{ClaimState, Token};
use sqlx::{Connection as _, Postgres};

use crate::forms::{Forms, Waits, id_of, run_all, until_it_waits};
use crate::support::{Db, Harness, claim, claim_on, on_every_database, set};

on_every_database! {
    i8_a_fenced_statement_raises_the_mark_and_writes,
    i1_a_stale_fenced_statement_writes_nothing,
    i5_a_fenced_statement_respects_the_floor,
    i8_a_statement_that_fails_leaves_the_mark,
    texts_that_are_not_of_the_form_are_refused_and_nothing_is_written,
    parameters_without_a_value_are_refused,
    a_closed_pool_is_unavailable,
    tables_that_are_missing_are_told_from_ours,
    case_16_fifty_first_statements_at_once,
    many_statements_under_one_token_all_get_through,
    i8_a_cancelled_statement_leaves_both_or_nothing,
    strict_a_token_writes_once_and_may_claim_before,
}

fn token(token: i64) -> Token {
    Token::new(token).unwrap()
}

async fn i8_a_fenced_statement_raises_the_mark_and_writes<H: Forms>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    let holder = claim(33);
    // The first claim ever, the same token again, a higher one.
    for (holder, quantity) in [(&holder, 5), (&holder, 6), (&claim(34), 7)] {
        let outcome = H::set(holder, quantity, 0).execute(&pool).await.unwrap();
        assert_eq!(outcome, Outcome::Applied { rows: 1 });
        assert_eq!(holder.state(), ClaimState::Committed);
        let mark = holder.token().get();
        assert_eq!((db.quantity().await, db.mark().await), (quantity, Some(mark)));
    }
    // No row is no error, and the claim stands.
    let outcome = H::set(&claim(35), 8, 1000).execute(&pool).await.unwrap();
    assert_eq!((outcome, db.mark().await), (Outcome::Applied { rows: 0 }, Some(35)));
}

async fn i1_a_stale_fenced_statement_writes_nothing<H: Forms>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    let holder = claim(34);
    H::set(&holder, 34, 0).execute(&pool).await.unwrap().applied(&holder).unwrap();
    let zombie = claim(33);
    let outcome = H::set(&zombie, 33, 0).execute(&pool).await.unwrap();
    assert_eq!(outcome, Outcome::Stale { last_token: token(34) });
    assert_eq!(zombie.state(), ClaimState::Stale);
    let error = outcome.applied(&zombie).unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Stale { last_token: token(34) });
    assert_eq!((db.quantity().await, db.mark().await), (34, Some(34)));
    // Something of the zombie's was committed before: then stale is not the whole truth.
    let zombie = claim(33);
    zombie.note(ClaimState::Committed);
    let outcome = H::set(&zombie, 33, 0).execute(&pool).await.unwrap();
    let error = outcome.applied(&zombie).unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::PartlyApplied { last_token: token(34) });
}

async fn i5_a_fenced_statement_respects_the_floor<H: Forms>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    sql::raise_floor(&pool, token(40)).await.unwrap();
    for stale in [33, 40] {
        let outcome = H::set(&claim(stale), stale, 0).execute(&pool).await.unwrap();
        assert_eq!(outcome, Outcome::Stale { last_token: token(40) });
    }
    assert_eq!((db.quantity().await, db.mark().await), (10, None));
    let outcome = H::set(&claim(41), 41, 0).execute(&pool).await.unwrap();
    assert_eq!(outcome, Outcome::Applied { rows: 1 });
}

/// Case 19, in one statement: a constraint fails, and the mark does not advance.
async fn i8_a_statement_that_fails_leaves_the_mark<H: Forms>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    H::set(&claim(4), 4, 0).execute(&pool).await.unwrap().applied(&claim(4)).unwrap();
    for resource in ["inventory:item:1", "never:claimed"] {
        let failing = claim_on(resource, 9);
        let null = "UPDATE inventory SET quantity = NULL WHERE {fence} AND (id = 1)";
        let error = H::text(&failing, null).execute(&pool).await.unwrap_err();
        assert_eq!(error.kind(), FenceErrorKind::Statement, "{error:?}");
        assert_eq!(failing.state(), ClaimState::Unspent);
    }
    assert_eq!(db.number("SELECT count(*) FROM fencing_marks").await, Some(1));
    let outcome = H::set(&claim(6), 6, 0).execute(&pool).await.unwrap();
    assert_eq!(outcome, Outcome::Applied { rows: 1 }, "token 9 has not advanced the mark");
}

/// Interleaving C3.
async fn texts_that_are_not_of_the_form_are_refused_and_nothing_is_written<H: Forms>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    for text in [
        "UPDATE inventory SET quantity = 1 WHERE id = 1",
        "UPDATE inventory SET quantity = 1 WHERE id = 1 OR id = 1 AND {fence}",
        "UPDATE inventory SET quantity = 1 WHERE {fence} AND (id = 2) OR (id = 1)",
        "UPDATE inventory SET quantity = 1 WHERE {fence} AND ({fence})",
        "WITH d AS (DELETE FROM ledger RETURNING *) UPDATE inventory SET quantity = 1 \
         WHERE {fence} AND (id = 1)",
        "UPDATE inventory SET quantity = 1 WHERE {fence} AND (id = 1); DELETE FROM ledger",
        "INSERT INTO inventory SELECT 2, 2 WHERE {fence} AND (1 = 1)",
        "SELECT 1",
        "",
    ] {
        let refused = claim(33);
        let error = H::text(&refused, text).execute(&pool).await.unwrap_err();
        assert_eq!(error.kind(), FenceErrorKind::Misconfigured, "{text}");
        let source = std::error::Error::source(&error).unwrap();
        assert!(source.downcast_ref::<sql::InvalidSql>().is_some(), "{source}");
        assert_eq!(refused.state(), ClaimState::Unspent);
    }
    assert_eq!((db.quantity().await, db.mark().await), (10, None));
}

async fn parameters_without_a_value_are_refused<H: Forms>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    let few = "UPDATE inventory SET quantity = 1 WHERE {fence} AND (id = ?)";
    let few = if H::NAME == "PostgreSQL" {
        "UPDATE inventory SET quantity = 1 WHERE {fence} AND (id = $1)"
    } else {
        few
    };
    let error = H::text(&claim(33), few).execute(&pool).await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Misconfigured);
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("parameters=`1`"));
    assert_eq!((db.quantity().await, db.mark().await), (10, None));
}

async fn a_closed_pool_is_unavailable<H: Forms>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    pool.close().await;
    let error = H::set(&claim(33), 1, 0).execute(&pool).await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Unavailable);
}

async fn tables_that_are_missing_are_told_from_ours<H: Forms>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    for text in [
        "UPDATE warehouse SET quantity = 1 WHERE {fence} AND (id = 1)",
        "UPDATE inventory SET quantitty = 1 WHERE {fence} AND (id = 1)",
    ] {
        let error = H::text(&claim(33), text).execute(&pool).await.unwrap_err();
        assert_eq!(error.kind(), FenceErrorKind::Statement, "{error:?}");
    }
    assert_eq!(db.mark().await, None);
    let bare = Db::<H>::empty().await;
    let error = H::set(&claim(33), 1, 0).execute(&bare.pool(1).await).await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Misconfigured, "{error:?}");
}

async fn case_16_fifty_first_statements_at_once<H: Forms>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(8).await;
    let tasks = (1..=50).map(|token| {
        let pool = pool.clone();
        tokio::spawn(async move { H::set(&claim(token), token, 0).execute(&pool).await })
    });
    for task in tasks.collect::<Vec<_>>() {
        let _ = task.await.unwrap().unwrap();
    }
    assert_eq!((db.mark().await, db.quantity().await), (Some(50), 50));
}

/// Each waits for the one before it, and so finds its snapshot too old.
async fn many_statements_under_one_token_all_get_through<H: Forms>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(8).await;
    let add = "UPDATE inventory SET quantity = quantity + 1 WHERE {fence} AND (id = 1)";
    let tasks = (0..40).map(|_| {
        let pool = pool.clone();
        tokio::spawn(async move { H::text(&claim(34), add).execute(&pool).await })
    });
    for task in tasks.collect::<Vec<_>>() {
        assert_eq!(task.await.unwrap().unwrap(), Outcome::Applied { rows: 1 });
    }
    assert_eq!(db.quantity().await, 50, "none was lost, none done twice");
}

async fn i8_a_cancelled_statement_leaves_both_or_nothing<H: Forms>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    for polls in 0.. {
        let token = db.mark().await.unwrap_or(0) + 1;
        let dropped = claim(token);
        let done =
            crate::support::poll_times(polls, H::set(&dropped, token, 0).execute(&pool)).await;
        let next = claim(token + 1);
        let outcome = H::set(&next, -1, token).execute(&pool).await.unwrap();
        // The next one sees the row with the quantity of the dropped one, or without.
        let applied = outcome == Outcome::Applied { rows: 1 };
        if done.is_some() {
            assert!(applied);
            break;
        }
        // It may be dropped after the verdict, while its connection is tidied up.
        assert!(applied || dropped.state() != ClaimState::Committed);
        let reset = claim(token + 2);
        let _ = H::set(&reset, 0, -5).execute(&pool).await.unwrap().applied(&reset).unwrap();
        assert!(polls < 500);
    }
}

/// Interleaving M2: the claim compares and raises with equal, only the write spends.
async fn strict_a_token_writes_once_and_may_claim_before<H: Forms>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    let strict = FenceOptions::new().policy(Policy::Strict);
    let job = claim(33);
    sql::claim(&pool, &job).await.unwrap();
    sql::claim(&pool, &job).await.unwrap();
    // Rolled back is not spent.
    strict.begin(&pool, &job).await.unwrap().rollback().await;
    let mut tx = strict.begin(&pool, &job).await.unwrap();
    set::<H>(&mut tx, 33).await.unwrap();
    tx.commit().await.unwrap();
    let again = claim(33);
    sql::claim(&pool, &again).await.unwrap();
    let error = strict.begin(&pool, &again).await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Stale { last_token: token(33) });
    assert!(error.to_string().contains("written before"), "{error}");
    for spent in [claim(33), claim(32)] {
        let outcome = H::set(&spent, 0, 0).options(&strict).execute(&pool).await.unwrap();
        assert_eq!(outcome, Outcome::Stale { last_token: token(33) });
    }
    for resource in ["inventory:item:1", "first:one"] {
        let next = claim_on(resource, 34);
        let outcome = H::set(&next, 34, 0).options(&strict).execute(&pool).await.unwrap();
        assert_eq!(outcome, Outcome::Applied { rows: 1 });
        let outcome = H::set(&next, 35, 0).options(&strict).execute(&pool).await.unwrap();
        assert_eq!(outcome, Outcome::Stale { last_token: token(34) });
        let mut tx = strict.begin(&pool, &next).await.map(|_| ()).unwrap_err();
        assert!(tx.is_stale());
        tx = strict.begin(&pool, &claim_on(resource, 33)).await.map(|_| ()).unwrap_err();
        assert!(tx.is_stale());
    }
    assert_eq!(db.quantity().await, 34);
}

mod servers {
    use super::*;

    /// Interleaving C2: 33 has written the ledger in an open transaction, 34 reads the ledger in
    /// its statement and waits for 33. What it writes has what 33 wrote in it.
    pub(super) async fn i1_a_statement_that_waited_reads_what_it_waited_for<H: Forms + Waits>() {
        let db = Db::<H>::with_stock().await;
        let (a, b) = (db.pool(1).await, db.pool(1).await);
        run_all(&a, &["INSERT INTO ledger (token) VALUES (10)"]).await;
        let id = id_of(&b).await;
        for (first, second) in [(33, 34), (34, 34), (34, 35)] {
            run_all(&a, &["DELETE FROM ledger WHERE token <> 10"]).await;
            let mut tx = FencedTx::begin(&a, &claim(first)).await.unwrap();
            let waiting = tokio::spawn({
                let b = b.clone();
                async move { H::settle(&claim(second)).execute(&b).await }
            });
            until_it_waits(&db, id).await;
            H::run(&mut tx, "INSERT INTO ledger (token) VALUES (-5)").await.unwrap();
            tx.commit().await.unwrap();
            assert_eq!(waiting.await.unwrap().unwrap(), Outcome::Applied { rows: 1 });
            assert_eq!(db.quantity().await, 5, "not 10: that is from before 33");
        }
        // A DELETE after the insert of an earlier holder deletes what that one inserted.
        let mut tx = FencedTx::begin(&a, &claim(40)).await.unwrap();
        let waiting = tokio::spawn({
            let b = b.clone();
            async move { H::forget(&claim(41), 1000).execute(&b).await }
        });
        until_it_waits(&db, id).await;
        H::run(&mut tx, "INSERT INTO ledger (token) VALUES (3)").await.unwrap();
        tx.commit().await.unwrap();
        let _ = waiting.await.unwrap().unwrap();
        assert_eq!(db.number("SELECT count(*) FROM ledger").await, Some(0));
    }

    /// A zombie waits behind the holder that overtook it.
    pub(super) async fn i1_a_statement_that_waited_for_a_newer_claim_is_stale<H: Forms + Waits>() {
        let db = Db::<H>::with_stock().await;
        let (a, b) = (db.pool(1).await, db.pool(1).await);
        let id = id_of(&b).await;
        for (newer, older) in [(34, 33), (36, 35)] {
            let mut tx = FencedTx::begin(&a, &claim(newer)).await.unwrap();
            let zombie = tokio::spawn({
                let b = b.clone();
                async move { H::set(&claim(older), older, 0).execute(&b).await }
            });
            until_it_waits(&db, id).await;
            set::<H>(&mut tx, newer).await.unwrap();
            tx.commit().await.unwrap();
            let outcome = zombie.await.unwrap().unwrap();
            assert_eq!(outcome, Outcome::Stale { last_token: token(newer) });
            assert_eq!(db.quantity().await, newer);
        }
    }

    pub(super) async fn waiting_is_bounded_and_then_contended<H: Forms + Waits>() {
        let db = Db::<H>::with_stock().await;
        let (a, b) = (db.pool(1).await, db.pool(1).await);
        let impatient = FenceOptions::new().lock_timeout(H::SHORT);
        for first in [true, false] {
            let tx = FencedTx::begin(&a, &claim(33)).await.unwrap();
            let waits = claim(34);
            let error = H::set(&waits, 1, 0).options(&impatient).execute(&b).await.unwrap_err();
            assert_eq!(error.kind(), FenceErrorKind::Contended, "{error:?}, first {first}");
            assert_eq!(waits.state(), ClaimState::Unspent);
            tx.commit().await.unwrap();
        }
        assert_eq!((db.quantity().await, db.mark().await), (10, Some(33)));
    }

    mod postgres {
        #[tokio::test]
        async fn i1_a_statement_that_waited_reads_what_it_waited_for() {
            super::i1_a_statement_that_waited_reads_what_it_waited_for::<sqlx::Postgres>().await;
        }
        #[tokio::test]
        async fn i1_a_statement_that_waited_for_a_newer_claim_is_stale() {
            super::i1_a_statement_that_waited_for_a_newer_claim_is_stale::<sqlx::Postgres>().await;
        }
        #[tokio::test]
        async fn waiting_is_bounded_and_then_contended() {
            super::waiting_is_bounded_and_then_contended::<sqlx::Postgres>().await;
        }
    }

    mod mysql {
        #[tokio::test]
        async fn i1_a_statement_that_waited_reads_what_it_waited_for() {
            super::i1_a_statement_that_waited_reads_what_it_waited_for::<sqlx::MySql>().await;
        }
        #[tokio::test]
        async fn i1_a_statement_that_waited_for_a_newer_claim_is_stale() {
            super::i1_a_statement_that_waited_for_a_newer_claim_is_stale::<sqlx::MySql>().await;
        }
        #[tokio::test]
        async fn waiting_is_bounded_and_then_contended() {
            super::waiting_is_bounded_and_then_contended::<sqlx::MySql>().await;
        }
    }
}

mod connection_postgres {
    use super::*;

    const SETTLE: &str = "UPDATE inventory SET quantity = (SELECT sum(token) FROM ledger) \
                          WHERE {fence} AND (id = 1)";

    /// Interleaving C2: accepted, but not fresh, is not applied, neither write nor mark.
    #[tokio::test]
    async fn i1_a_snapshot_older_than_the_mark_is_not_written_from() {
        let db = Db::<Postgres>::with_stock().await;
        let (a, b) = (db.pool(1).await, db.pool(1).await);
        run_all(&a, &["INSERT INTO ledger (token) VALUES (10)"]).await;
        FencedTx::begin(&a, &claim(33)).await.unwrap().commit().await.unwrap();
        let id = id_of(&b).await;
        let mut tx = FencedTx::begin(&a, &claim(33)).await.unwrap();
        let once = FenceOptions::new().attempts(1);
        let waiting = tokio::spawn({
            let (b, once) = (b.clone(), once.clone());
            async move {
                let mut conn = b.acquire().await.unwrap();
                fenced(&claim(34), SETTLE).options(&once).execute(&mut *conn).await
            }
        });
        until_it_waits(&db, id).await;
        Postgres::run(&mut tx, "INSERT INTO ledger (token) VALUES (-5)").await.unwrap();
        tx.commit().await.unwrap();
        let error = waiting.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), FenceErrorKind::Contended);
        assert_eq!((db.quantity().await, db.mark().await), (10, Some(33)), "nothing was applied");
        let mut conn = b.acquire().await.unwrap();
        let outcome = fenced(&claim(34), SETTLE).options(&once).execute(&mut *conn).await.unwrap();
        assert_eq!((outcome, db.quantity().await), (Outcome::Applied { rows: 1 }, 5));
    }

    /// The same for the first claim ever, and for a mark that was purged in between.
    #[tokio::test]
    async fn i1_a_first_claim_that_another_overtook_is_not_written_from() {
        let db = Db::<Postgres>::with_stock().await;
        let (a, b) = (db.pool(1).await, db.pool(1).await);
        run_all(&a, &["INSERT INTO ledger (token) VALUES (10)"]).await;
        let id = id_of(&b).await;
        let mut tx = FencedTx::begin(&a, &claim(33)).await.unwrap();
        let waiting = tokio::spawn({
            let b = b.clone();
            async move {
                let mut conn = b.acquire().await.unwrap();
                let once = FenceOptions::new().attempts(1);
                fenced(&claim(34), SETTLE).options(&once).execute(&mut *conn).await
            }
        });
        until_it_waits(&db, id).await;
        Postgres::run(&mut tx, "INSERT INTO ledger (token) VALUES (-5)").await.unwrap();
        tx.commit().await.unwrap();
        let error = waiting.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), FenceErrorKind::Contended);
        assert_eq!((db.quantity().await, db.mark().await), (10, Some(33)));

        // 34 waits for the floor. Meanwhile 40 makes the mark, writes, and is purged.
        run_all(&a, &["DELETE FROM fencing_marks"]).await;
        let mut purge = a.acquire().await.unwrap();
        let script = "BEGIN; UPDATE fencing_floor SET floor = 40";
        Postgres::script(&mut purge, script).await.unwrap();
        let waiting = tokio::spawn({
            let b = b.clone();
            async move {
                let mut conn = b.acquire().await.unwrap();
                let once = FenceOptions::new().attempts(1);
                fenced(&claim(50), SETTLE).options(&once).execute(&mut *conn).await
            }
        });
        until_it_waits(&db, id).await;
        let script = "INSERT INTO ledger (token) VALUES (-1); COMMIT";
        Postgres::script(&mut purge, script).await.unwrap();
        let error = waiting.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), FenceErrorKind::Contended);
        assert_eq!((db.quantity().await, db.mark().await), (10, None));
    }

    #[tokio::test]
    async fn a_connection_in_a_transaction_is_refused() {
        let db = Db::<Postgres>::with_stock().await;
        let pool = db.pool(1).await;
        let mut conn = pool.acquire().await.unwrap();
        let mut tx = conn.begin().await.unwrap();
        let error = Postgres::set(&claim(33), 1, 0).execute(&mut *tx).await.unwrap_err();
        assert_eq!(error.kind(), FenceErrorKind::Misconfigured);
        drop(tx);
        assert_eq!((db.quantity().await, db.mark().await), (10, None));
    }

    /// At a session's own REPEATABLE READ, what came between is a serialization failure.
    #[tokio::test]
    async fn i1_at_repeatable_read_a_statement_that_waited_is_run_again() {
        let db = Db::<Postgres>::with_stock().await;
        let a = db.pool(1).await;
        let level = [("default_transaction_isolation", "repeatable read")];
        let b = db.pool_with(1, db.options.clone().options(level)).await;
        run_all(&a, &["INSERT INTO ledger (token) VALUES (10)"]).await;
        let id = id_of(&b).await;
        for (first, second) in [(33, 34), (34, 34)] {
            run_all(&a, &["DELETE FROM ledger WHERE token <> 10"]).await;
            let mut tx = FencedTx::begin(&a, &claim(first)).await.unwrap();
            let waiting = tokio::spawn({
                let b = b.clone();
                async move { Postgres::settle(&claim(second)).execute(&b).await }
            });
            until_it_waits(&db, id).await;
            Postgres::run(&mut tx, "INSERT INTO ledger (token) VALUES (-5)").await.unwrap();
            tx.commit().await.unwrap();
            assert_eq!(waiting.await.unwrap().unwrap(), Outcome::Applied { rows: 1 });
            assert_eq!(db.quantity().await, 5);
        }
    }

    /// Interleaving H7: the statement was sent, and the connection dies before its answer.
    #[tokio::test]
    async fn i4_a_lost_answer_is_outcome_unknown() {
        let db = Db::<Postgres>::with_stock().await;
        let (a, b) = (db.pool(1).await, db.pool(1).await);
        let id = id_of(&b).await;
        let tx = FencedTx::begin(&a, &claim(33)).await.unwrap();
        let lost = claim(34);
        let waiting = tokio::spawn({
            let (b, lost) = (b.clone(), lost.clone());
            async move { Postgres::set(&lost, 1, 0).execute(&b).await }
        });
        until_it_waits(&db, id).await;
        db.number(&format!("SELECT pg_terminate_backend({id})::int")).await;
        let error = waiting.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), FenceErrorKind::OutcomeUnknown, "{error:?}");
        assert_eq!(lost.state(), ClaimState::Unknown);
        assert!(!error.is_retryable());
        tx.rollback().await;
    }

    /// The statement of a holder reads the tables it names, whatever ours are called inside.
    #[tokio::test]
    async fn the_lock_timeout_ends_with_the_statement() {
        let db = Db::<Postgres>::with_stock().await;
        let pool = db.pool(1).await;
        let bounded = FenceOptions::new().lock_timeout(Duration::from_millis(777));
        let outcome =
            Postgres::set(&claim(33), 1, 0).options(&bounded).execute(&pool).await.unwrap();
        assert_eq!(outcome, Outcome::Applied { rows: 1 });
        let mut conn = pool.acquire().await.unwrap();
        let left = "SELECT setting FROM pg_settings WHERE name = 'lock_timeout'";
        let left: String = sqlx::query_scalar(left).fetch_one(&mut *conn).await.unwrap();
        assert_eq!(left, "0");
    }
}
