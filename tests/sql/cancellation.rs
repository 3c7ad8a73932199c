//! Dropped at any await, a fenced transaction leaves nothing open.

use std::time::Duration;

use fencing::sql::{self, FenceOptions, FencedTx};
use fencing::{Claim, ClaimState};
use sqlx::Pool;

use crate::support::{
    Db, Harness, claim, on_every_database, on_every_database_without_runtime, poll_times, set,
};

on_every_database! {
    case_33_dropped_at_any_await_the_pool_stays_clean,
    case_34_dropped_while_commit_is_in_flight,
    case_34_dropped_with_the_transaction_open_it_is_rolled_back_soon,
    a_claim_dropped_at_any_await_leaves_the_pool_clean,
    a_statement_dropped_in_flight_does_not_commit,
    a_dropped_waiter_lets_go,
}

on_every_database_without_runtime! {
    dropped_without_a_runtime_it_does_not_panic_and_is_rolled_back,
}

async fn write<H: Harness>(pool: &Pool<H>, claim: &Claim, quantity: i64) {
    let mut tx = FencedTx::begin(pool, claim).await.unwrap();
    set::<H>(&mut tx, quantity).await.unwrap();
    record::<H>(&mut tx, claim.token().get()).await;
    tx.commit().await.unwrap();
}

async fn record<H: Harness>(conn: &mut H::Connection, token: i64) {
    H::run(conn, &format!("INSERT INTO ledger (token) VALUES ({token})")).await.unwrap();
}

/// Cases 33 and 34: a pool of one connection; the write is dropped after its first poll, after
/// its second, and so on until it gets through. After each the next write goes through on the same
/// pool and is seen by others, and what was dropped was applied wholly or not at all.
async fn case_33_dropped_at_any_await_the_pool_stays_clean<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    for bounded in [false, true] {
        let pool = db.pool(1).await;
        let options = if bounded {
            FenceOptions::new().lock_timeout(Duration::from_secs(3))
        } else {
            FenceOptions::new()
        };
        let mut seen = Vec::new();
        for polls in 0.. {
            let token = db.mark().await.unwrap_or(0) + 1;
            let dropped = claim(token);
            let done = poll_times(polls, async {
                let mut tx = options.begin(&pool, &dropped).await.unwrap();
                set::<H>(&mut tx, token).await.unwrap();
                record::<H>(&mut tx, token).await;
                tx.commit().await.unwrap();
            })
            .await;
            let state = dropped.state();
            seen.push(state);
            // The next one waits for whatever the dropped one left to be cleaned up.
            write(&pool, &claim(token + 1), -token).await;
            assert_eq!((db.quantity().await, db.mark().await), (-token, Some(token + 1)));
            let recorded = db.number("SELECT count(*) FROM ledger").await;
            assert_eq!(recorded, db.number("SELECT seq FROM fencing_marks").await, "{polls}");
            let query = format!("SELECT count(*) FROM ledger WHERE token = {token}");
            let applied = db.number(&query).await == Some(1);
            match state {
                ClaimState::Unspent => assert!(!applied, "{polls}"),
                ClaimState::Committed => assert!(applied, "{polls}"),
                ClaimState::Unknown => {}
                other => panic!("{other:?} after {polls} polls"),
            }
            assert!(pool.size() <= 1, "{polls}");
            if done.is_some() {
                assert_eq!(state, ClaimState::Committed);
                break;
            }
        }
        assert!(seen.contains(&ClaimState::Unspent), "{seen:?}");
        pool.close().await;
    }
}

/// Case 34: dropped while COMMIT is in flight. Whether it was applied is not known to the claim,
/// but it was wholly or not at all, and the pool is clean.
async fn case_34_dropped_while_commit_is_in_flight<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    for polls in 0.. {
        let token = db.mark().await.unwrap_or(0) + 1;
        let dropped = claim(token);
        let mut tx = FencedTx::begin(&pool, &dropped).await.unwrap();
        set::<H>(&mut tx, token).await.unwrap();
        record::<H>(&mut tx, token).await;
        let done = poll_times(polls, tx.commit()).await;
        let state = dropped.state();
        write(&pool, &claim(token + 1), -token).await;
        assert_eq!((db.quantity().await, db.mark().await), (-token, Some(token + 1)));
        let recorded = db.number("SELECT count(*) FROM ledger").await;
        assert_eq!(recorded, db.number("SELECT seq FROM fencing_marks").await, "{polls}");
        match (polls, state) {
            (0, ClaimState::Unspent) => {}
            (1.., ClaimState::Unknown | ClaimState::Committed) => {}
            other => panic!("{other:?}"),
        }
        if done.is_some() {
            break;
        }
    }
}

/// Case 34: the client hangs up between the write and the commit. The lock is free at once, for
/// another pool too, and the same token goes on.
async fn case_34_dropped_with_the_transaction_open_it_is_rolled_back_soon<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let (a, b) = (db.pool(2).await, db.pool(1).await);
    let mut tx = FencedTx::begin(&a, &claim(34)).await.unwrap();
    set::<H>(&mut tx, 1).await.unwrap();
    drop(tx);
    let within = Duration::from_secs(1);
    tokio::time::timeout(within, write(&b, &claim(34), 2)).await.expect("the lock is released");
    assert_eq!((db.quantity().await, db.mark().await), (2, Some(34)));
    write(&a, &claim(34), 3).await;
    assert!(a.size() <= 1, "the connection went back or was closed");
}

async fn a_claim_dropped_at_any_await_leaves_the_pool_clean<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    for polls in 0.. {
        let token = db.mark().await.unwrap_or(0) + 1;
        let done = poll_times(polls, sql::claim(&pool, &claim(token))).await;
        write(&pool, &claim(token + 1), token).await;
        assert_eq!((db.quantity().await, db.mark().await), (token, Some(token + 1)));
        if done.is_some() {
            break;
        }
    }
}

/// A statement that nobody waits for any more is still run, inside the transaction or not at all.
async fn a_statement_dropped_in_flight_does_not_commit<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    for polls in 1..4 {
        let mut tx = FencedTx::begin(&pool, &claim(34)).await.unwrap();
        let _ = poll_times(polls, set::<H>(&mut tx, 1)).await;
        drop(tx);
        let mut conn = pool.acquire().await.unwrap();
        let now = H::number(&mut conn, "SELECT quantity FROM inventory WHERE id = 1").await;
        assert_eq!(now.unwrap(), Some(10), "{polls}");
        assert_eq!(db.mark().await, None);
    }
}

/// Who waits for the mark and is dropped is out of the way.
async fn a_dropped_waiter_lets_go<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let (a, b) = (db.pool(1).await, db.pool(1).await);
    let mut tx = FencedTx::begin(&a, &claim(34)).await.unwrap();
    let impatient = FenceOptions::new().lock_timeout(H::SHORT);
    for polls in 1..10 {
        if let Some(done) = poll_times(polls, impatient.begin(&b, &claim(35))).await {
            assert!(done.unwrap_err().is_retryable());
        }
    }
    set::<H>(&mut tx, 1).await.unwrap();
    tx.commit().await.unwrap();
    write(&a, &claim(34), 2).await;
    write(&b, &claim(34), 3).await;
    assert_eq!((db.quantity().await, db.mark().await), (3, Some(34)));
}

fn dropped_without_a_runtime_it_does_not_panic_and_is_rolled_back<H: Harness>() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let first = runtime();
    let db = first.block_on(Db::<H>::with_stock());
    let open = |min: u32| {
        let options = db.options.clone();
        async move {
            let pool = sqlx::pool::PoolOptions::<H>::new()
                .max_connections(2)
                .min_connections(min)
                .connect_with(options)
                .await
                .unwrap();
            let mut tx = FencedTx::begin(&pool, &claim(34)).await.unwrap();
            set::<H>(&mut tx, 1).await.unwrap();
            (pool, tx)
        }
    };
    for min in [0, 1] {
        // The runtime lives on, but not here.
        let (pool, tx) = first.block_on(open(min));
        drop(tx);
        first.block_on(async {
            write(&pool, &claim(34), 2).await;
            pool.close().await;
        });

        // While another panic unwinds.
        let (pool, tx) = first.block_on(open(min));
        let unwound = catch_unwind(AssertUnwindSafe(move || {
            let _tx = tx;
            panic!("of the handler's own");
        }));
        assert!(unwound.is_err());
        first.block_on(pool.close());

        // The runtime has gone.
        let second = runtime();
        let (pool, tx) = second.block_on(open(min));
        drop(second);
        drop(tx);
        drop(pool);
    }
    first.block_on(async {
        let pool = db.pool(1).await;
        write(&pool, &claim(50), 5).await;
        assert_eq!((db.quantity().await, db.mark().await), (5, Some(50)));
    });
}
