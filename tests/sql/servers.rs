//! Where the database is a server: lost connections, lock timeouts, deadlocks, isolation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use fencing::sql::{self, FenceError, FenceErrorKind, FenceOptions, FencedTx, Isolation, SqlMarks};
use fencing::{ClaimState, Problem, Token, Verdict};
use tokio::task::JoinSet;

use crate::proxy::{Proxy, Then};
use crate::support::{Db, Server, claim, claim_on, on_every_server, set};

on_every_server! {
    i4_a_commit_without_an_answer_is_unknown_and_not_tried_again,
    i4_a_connection_lost_before_the_commit_is_sent_is_known,
    a_statement_without_an_answer_is_unknown,
    a_claim_without_an_answer_is_unavailable,
    case_12_the_server_goes_and_comes_back,
    case_33_dropped_while_the_server_has_not_answered,
    i1_a_paused_holder_does_not_keep_the_next_one_out,
    a_holder_that_is_killed_has_applied_nothing,
    settings_do_not_leak_through_the_pool,
    case_22_a_deadlock_is_run_again,
    case_22_a_lock_timeout_of_the_callers_own_statement_is_run_again,
    case_22_a_claim_at_a_higher_isolation_waits_and_is_judged_afresh,
    case_24_an_older_snapshot_does_not_hide_the_winner,
    fifty_first_claims_in_transactions_of_the_callers,
    a_read_only_node_is_unavailable,
}

/// Interleaving H7: the connection is lost with COMMIT on the way, before the server has it, or
/// after it has committed. Nobody can tell which.
async fn i4_a_commit_without_an_answer_is_unknown_and_not_tried_again<H: Server>() {
    let db = Db::<H>::with_stock().await;
    let proxy = Proxy::before(&db).await;
    let pool = db.pool_with(1, proxy.options(&db)).await;
    for (then, token) in [(Then::CutBefore, 33), (Then::CutAfter, 34)] {
        let before = (db.quantity().await, db.mark().await);
        proxy.at(H::COMMIT, then);
        let holder = claim(token);
        let runs = AtomicU32::new(0);
        let error = FencedTx::run(&pool, &holder, |tx| {
            runs.fetch_add(1, Relaxed);
            Box::pin(async move { Ok(set::<H>(tx, token).await?) })
        })
        .await
        .unwrap_err();
        assert_eq!(error.kind(), FenceErrorKind::OutcomeUnknown, "{error:?}");
        assert!(!error.is_retryable());
        assert_eq!(holder.state(), ClaimState::Unknown);
        let response: http::Response<bytes::Bytes> = Problem::from(&error).into_http();
        assert_eq!(response.status(), 500);
        assert!(!response.headers().contains_key(http::header::RETRY_AFTER));
        assert_eq!(runs.into_inner(), 1);
        let expected = if then == Then::CutAfter { (token, Some(token)) } else { before };
        // The server may still be busy with it; who claims next waits for that.
        sql::claim(&db.pool(1).await, &claim_on("else", 1)).await.unwrap();
        let mut now = (db.quantity().await, db.mark().await);
        for _ in 0..100 {
            if now == expected {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            now = (db.quantity().await, db.mark().await);
        }
        assert_eq!(now, expected, "{then:?}");
    }
    // Case 15: the same again, with the same token, is accepted: it may run twice.
    let mut tx = FencedTx::begin(&pool, &claim(34)).await.unwrap();
    set::<H>(&mut tx, 35).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!((db.quantity().await, db.mark().await), (35, Some(34)));
    let error = FencedTx::begin(&pool, &claim(33)).await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Stale { last_token: Token::new(34).unwrap() });
}

async fn i4_a_connection_lost_before_the_commit_is_sent_is_known<H: Server>() {
    let db = Db::<H>::with_stock().await;
    let proxy = Proxy::before(&db).await;
    let pool = db.pool_with(1, proxy.options(&db)).await;
    let holder = claim(34);
    let mut tx = FencedTx::begin(&pool, &holder).await.unwrap();
    set::<H>(&mut tx, 1).await.unwrap();
    proxy.cut();
    let error = tx.commit().await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Unavailable, "{error:?}");
    assert_eq!(holder.state(), ClaimState::Unspent);
    let mut tx = FencedTx::begin(&pool, &claim(34)).await.unwrap();
    assert_eq!((db.quantity().await, db.mark().await), (10, None));
    set::<H>(&mut tx, 2).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!((db.quantity().await, db.mark().await), (2, Some(34)));
}

async fn a_statement_without_an_answer_is_unknown<H: Server>() {
    let db = Db::<H>::with_stock().await;
    let proxy = Proxy::before(&db).await;
    let pool = db.pool_with(1, proxy.options(&db)).await;
    let mut conn = pool.acquire().await.unwrap();
    proxy.at("UPDATE inventory", Then::CutBefore);
    let error = FenceError::from(set::<H>(&mut conn, 1).await.unwrap_err());
    assert_eq!(error.kind(), FenceErrorKind::OutcomeUnknown, "{error:?}");
}

/// To raise a mark again harms nobody, so a lost answer is no more than a store that is away.
async fn a_claim_without_an_answer_is_unavailable<H: Server>() {
    let db = Db::<H>::with_stock().await;
    let proxy = Proxy::before(&db).await;
    for text in [H::BEGIN, "fencing_marks", H::COMMIT] {
        for then in [Then::CutBefore, Then::CutAfter] {
            let pool = db.pool_with(1, proxy.options(&db)).await;
            proxy.at(text, then);
            let holder = claim(34 + db.mark().await.unwrap_or(0));
            let error = sql::claim(&pool, &holder).await.unwrap_err();
            assert_eq!(error.kind(), FenceErrorKind::Unavailable, "{text} {then:?}: {error:?}");
            assert_eq!(holder.state(), ClaimState::Unspent);
            sql::claim(&pool, &holder).await.unwrap();
        }
    }
}

/// Case 12, over a server that goes away and comes back.
async fn case_12_the_server_goes_and_comes_back<H: Server>() {
    use fencing::marks::{Marks, MarksErrorKind};
    let db = Db::<H>::with_stock().await;
    let proxy = Proxy::before(&db).await;
    let pool = sqlx::pool::PoolOptions::<H>::new()
        .max_connections(2)
        .acquire_timeout(Duration::from_secs(1))
        .connect_with(proxy.options(&db))
        .await
        .unwrap();
    sql::claim(&pool, &claim(34)).await.unwrap();
    drop(proxy);
    let error = FencedTx::begin(&pool, &claim(34)).await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Unavailable, "{error:?}");
    let error = SqlMarks::new(pool).advance(&claim(34)).await.unwrap_err();
    assert_eq!(error.kind(), MarksErrorKind::Unavailable);
    sql::claim(&db.pool(1).await, &claim(34)).await.unwrap();
}

/// Case 33: a slow server. The future is dropped while BEGIN, the claim, the write or COMMIT is on
/// its way; then the server answers. sqlx 0.9.0 itself hands on an open transaction here.
async fn case_33_dropped_while_the_server_has_not_answered<H: Server>() {
    let db = Db::<H>::with_stock().await;
    let proxy = Proxy::before(&db).await;
    for (token, text) in
        (34..).zip([H::BEGIN, "UPDATE fencing_marks", "UPDATE inventory", H::COMMIT])
    {
        let pool = db.pool_with(1, proxy.options(&db)).await;
        proxy.at(text, Then::Hold);
        let dropped = claim(token);
        tokio::select! {
            () = proxy.seen() => {}
            () = async {
                let mut tx = FencedTx::begin(&pool, &dropped).await.unwrap();
                set::<H>(&mut tx, token).await.unwrap();
                tx.commit().await.unwrap();
            } => panic!("{text} was held back"),
        }
        let state = dropped.state();
        proxy.release();
        let mut tx = FencedTx::begin(&pool, &claim(token)).await.unwrap();
        let quantity = H::number(&mut tx, "SELECT quantity FROM inventory WHERE id = 1").await;
        let applied = quantity.unwrap() == Some(token);
        match state {
            ClaimState::Unknown => assert_eq!(text, H::COMMIT),
            _ => assert!(!applied && state == ClaimState::Unspent, "{text}: {state:?}"),
        }
        set::<H>(&mut tx, -token).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!((db.quantity().await, db.mark().await), (-token, Some(token)), "{text}");
        // Statements by themselves commit by themselves again.
        let mut conn = pool.acquire().await.unwrap();
        set::<H>(&mut conn, token).await.unwrap();
        assert_eq!(db.quantity().await, token);
        set::<H>(&mut conn, 10).await.unwrap();
        assert!(pool.size() <= 1);
    }
}

/// Interleaving H1: the holder was stopped with its transaction open. The server ends it.
async fn i1_a_paused_holder_does_not_keep_the_next_one_out<H: Server>() {
    let db = Db::<H>::with_stock().await;
    let (a, b) = (db.pool(1).await, db.pool(1).await);
    let paused = claim(33);
    let options = FenceOptions::new().idle_timeout(Duration::from_millis(500));
    let mut zombie = options.begin(&a, &paused).await.unwrap();
    set::<H>(&mut zombie, 33).await.unwrap();

    let mut tx = FencedTx::begin(&b, &claim(34)).await.unwrap();
    set::<H>(&mut tx, 34).await.unwrap();
    tx.commit().await.unwrap();

    let _ = set::<H>(&mut zombie, 33).await;
    let error = zombie.commit().await.unwrap_err();
    let known = [FenceErrorKind::Contended, FenceErrorKind::Unavailable];
    assert!(known.contains(&error.kind()), "{error:?}");
    assert_eq!(paused.state(), ClaimState::Unspent);
    assert_eq!((db.quantity().await, db.mark().await), (34, Some(34)));
    assert!(FencedTx::begin(&a, &paused).await.unwrap_err().is_stale());
}

async fn a_holder_that_is_killed_has_applied_nothing<H: Server>() {
    let db = Db::<H>::with_stock().await;
    let (a, b) = (db.pool(1).await, db.pool(1).await);
    let killed = claim(33);
    let mut tx = FencedTx::begin(&a, &killed).await.unwrap();
    set::<H>(&mut tx, 33).await.unwrap();
    let id = H::number(&mut tx, H::ID).await.unwrap().unwrap();
    let mut conn = b.acquire().await.unwrap();
    H::script(&mut conn, &H::KILL.replace("{}", &id.to_string())).await.unwrap();
    drop(conn);
    let mut next = FencedTx::begin(&b, &claim(34)).await.unwrap();
    set::<H>(&mut next, 34).await.unwrap();
    next.commit().await.unwrap();
    let error = tx.commit().await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Unavailable, "{error:?}");
    assert_eq!(killed.state(), ClaimState::Unspent);
    assert_eq!((db.quantity().await, db.mark().await), (34, Some(34)));
}

async fn settings_do_not_leak_through_the_pool<H: Server>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    let mut conn = pool.acquire().await.unwrap();
    H::script(&mut conn, H::SET_SETTINGS).await.unwrap();
    let mut before = Vec::new();
    for setting in H::SETTINGS {
        before.push(H::number(&mut conn, setting).await.unwrap().unwrap());
    }
    drop(conn);
    let options = FenceOptions::new()
        .lock_timeout(Duration::from_secs(3))
        .idle_timeout(Duration::from_secs(4))
        .isolation(Isolation::Serializable);
    for end in 0..4 {
        let mut conn = pool.acquire().await.unwrap();
        let id = H::number(&mut conn, H::ID).await.unwrap();
        H::script(&mut conn, H::SET_SETTINGS).await.unwrap();
        drop(conn);
        let mut tx = options.begin(&pool, &claim(34)).await.unwrap();
        for (setting, was) in H::SETTINGS.iter().zip(&before) {
            let now = H::number(&mut tx, setting).await.unwrap().unwrap();
            assert_ne!(now, *was, "{setting}");
            assert!([3, 4, 3000, 4000].contains(&now), "{setting} is {now}");
        }
        match end {
            0 => tx.commit().await.unwrap(),
            1 => tx.rollback().await,
            2 => drop(tx),
            _ => {
                drop(tx);
                assert!(options.begin(&pool, &claim(33)).await.unwrap_err().is_stale());
            }
        }
        let mut conn = pool.acquire().await.unwrap();
        for (setting, was) in H::SETTINGS.iter().zip(&before) {
            let now = H::number(&mut conn, setting).await.unwrap().unwrap();
            assert!(![3, 4, 3000, 4000].contains(&now), "{setting} is {now} after {end}");
            if H::number(&mut conn, H::ID).await.unwrap() == id {
                assert_eq!(now, *was, "{setting} after {end}");
            }
        }
        set::<H>(&mut conn, end).await.unwrap();
        assert_eq!(db.quantity().await, end, "a statement commits by itself");
    }
}

/// Case 22: two fenced transactions lock rows crosswise. One is the victim, is run again, and both
/// are committed.
async fn case_22_a_deadlock_is_run_again<H: Server>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(2).await;
    let mut conn = pool.acquire().await.unwrap();
    H::run(&mut conn, "INSERT INTO inventory (id, quantity) VALUES (2, 10)").await.unwrap();
    drop(conn);
    let both_have_one = Arc::new(tokio::sync::Barrier::new(2));
    let runs = Arc::new(AtomicU32::new(0));
    let mut tasks = JoinSet::new();
    for (resource, first, second) in [("a", 1, 2), ("b", 2, 1)] {
        let (pool, barrier, runs) = (pool.clone(), Arc::clone(&both_have_one), Arc::clone(&runs));
        tasks.spawn(async move {
            let mut meet = true;
            FencedTx::run(&pool, &claim_on(resource, 7), |tx| {
                runs.fetch_add(1, Relaxed);
                let barrier = std::mem::take(&mut meet).then(|| Arc::clone(&barrier));
                Box::pin(async move {
                    let take = "UPDATE inventory SET quantity = quantity - 1 WHERE id = ";
                    H::run(tx, &format!("{take}{first}")).await?;
                    if let Some(barrier) = barrier {
                        barrier.wait().await;
                    }
                    Ok(H::run(tx, &format!("{take}{second}")).await?)
                })
            })
            .await
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap().unwrap();
    }
    // Run again, one may meet the other anew.
    assert!(runs.load(Relaxed) >= 3, "one of the two was run again");
    assert_eq!(db.quantity().await, 8);
    assert_eq!(db.number("SELECT count(*) FROM fencing_marks").await, Some(2));
}

async fn case_22_a_lock_timeout_of_the_callers_own_statement_is_run_again<H: Server>() {
    let db = Db::<H>::with_stock().await;
    let (a, b) = (db.pool(1).await, db.pool(1).await);
    let mut in_the_way = Some(a.begin().await.unwrap());
    set::<H>(in_the_way.as_mut().unwrap(), 5).await.unwrap();
    let mut runs = 0;
    FenceOptions::new()
        .lock_timeout(H::SHORT)
        .run(&b, &claim(34), |tx| {
            runs += 1;
            let leaves = if runs == 2 { in_the_way.take() } else { None };
            Box::pin(async move {
                if let Some(leaves) = leaves {
                    leaves.rollback().await?;
                }
                Ok(set::<H>(tx, 7).await?)
            })
        })
        .await
        .unwrap();
    assert_eq!(runs, 2);
    assert_eq!((db.quantity().await, db.mark().await), (7, Some(34)));
}

/// Case 22 and interleaving H2: a claim that waits behind another holder at a level with
/// snapshots. The lower one is stale, the higher one reads what was committed.
async fn case_22_a_claim_at_a_higher_isolation_waits_and_is_judged_afresh<H: Server>() {
    for isolation in [Isolation::RepeatableRead, Isolation::Serializable] {
        let db = Db::<H>::with_stock().await;
        let (a, b) = (db.pool(1).await, db.pool(2).await);
        FencedTx::begin(&a, &claim(10)).await.unwrap().commit().await.unwrap();
        let options = FenceOptions::new().isolation(isolation);
        let mut tx = FencedTx::begin(&a, &claim(20)).await.unwrap();
        let mut waiting = JoinSet::new();
        for token in [11, 21] {
            let (b, options) = (b.clone(), options.clone());
            waiting.spawn(async move {
                let mut tx = options.begin(&b, &claim(token)).await?;
                let query = "SELECT quantity FROM inventory WHERE id = 1";
                let read = H::number(&mut tx, query).await?;
                tx.commit().await.map(|()| (token, read))
            });
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        set::<H>(&mut tx, 5).await.unwrap();
        tx.commit().await.unwrap();
        while let Some(done) = waiting.join_next().await {
            match done.unwrap() {
                Ok(accepted) => assert_eq!(accepted, (21, Some(5)), "{isolation:?}"),
                Err(error) => {
                    assert!(error.is_stale(), "{isolation:?}: {error:?}");
                    assert_eq!(error.claim(), Some(&claim(11)));
                }
            }
        }
        assert_eq!(db.mark().await, Some(21));
    }
}

/// Case 24: the caller's own transaction has a snapshot with mark 10 in it; 20 is committed; 11
/// claims.
async fn case_24_an_older_snapshot_does_not_hide_the_winner<H: Server>() {
    let db = Db::<H>::with_stock().await;
    let (a, b) = (db.pool(1).await, db.pool(1).await);
    FencedTx::begin(&a, &claim(10)).await.unwrap().commit().await.unwrap();
    let mut tx = b.begin_with(H::BEGIN_REPEATABLE_READ).await.unwrap();
    let mark = "SELECT last_token FROM fencing_marks";
    assert_eq!(H::number(&mut tx, mark).await.unwrap(), Some(10));
    FencedTx::begin(&a, &claim(20)).await.unwrap().commit().await.unwrap();
    match sql::advance(&mut tx, &claim(11)).await {
        Ok(verdict) => assert_eq!(verdict, Verdict::Stale { last_token: claim(20).token() }),
        Err(error) => assert_eq!(error.kind(), FenceErrorKind::Contended, "{error:?}"),
    }
    tx.rollback().await.unwrap();
    assert_eq!(db.mark().await, Some(20));
}

/// Interleaving H3, at the server's own default isolation.
async fn fifty_first_claims_in_transactions_of_the_callers<H: Server>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(25).await;
    let start = Arc::new(tokio::sync::Barrier::new(25));
    let mut tasks = JoinSet::new();
    for token in 1..=50 {
        let (pool, start) = (pool.clone(), Arc::clone(&start));
        tasks.spawn(async move {
            let mut tx = pool.begin().await.unwrap();
            start.wait().await;
            match sql::advance(&mut tx, &claim(token)).await? {
                Verdict::Accepted => tx.commit().await.unwrap(),
                Verdict::Stale { .. } => tx.rollback().await.unwrap(),
            }
            Ok::<_, FenceError>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap().unwrap();
    }
    assert_eq!(db.mark().await, Some(50));
}

async fn a_read_only_node_is_unavailable<H: Server>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    let mut conn = pool.acquire().await.unwrap();
    H::script(&mut conn, H::READ_ONLY).await.unwrap();
    drop(conn);
    let error = FencedTx::begin(&pool, &claim(34)).await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Unavailable, "{error:?}");
    let error = sql::claim(&pool, &claim(34)).await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Unavailable, "{error:?}");
}
