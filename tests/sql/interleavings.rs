//! Two or more at once, one step after the other.

use std::sync::Arc;

use fencing::marks::{Marks, MemoryMarks};
use fencing::sql::{self, FenceErrorKind, FenceOptions, FencedTx};
use fencing::{Token, Verdict};
use tokio::task::JoinSet;

use crate::support::{Db, Harness, claim, on_every_database, set};

on_every_database! {
    i1_an_open_claim_keeps_the_next_holder_out_until_it_ends,
    i1_the_next_holder_sees_what_the_one_before_it_wrote,
    i1_a_zombie_that_passed_the_door_is_refused_at_the_write,
    case_16_fifty_first_claims_at_once,
    case_26_twenty_that_read_and_write_at_once,
    claims_in_any_order_do_not_deadlock,
    run_gives_up_with_contended_and_never_with_stale,
    a_holder_that_claims_first_loses_no_write_of_the_one_before,
    i5_a_floor_and_a_first_claim_at_once_agree,
}

/// Interleaving C1: the claim of an equal token locks the mark, so that the next holder cannot
/// slip past it; nor can it past a first claim.
async fn i1_an_open_claim_keeps_the_next_holder_out_until_it_ends<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let (a, b) = (db.pool(1).await, db.pool(1).await);
    let impatient = FenceOptions::new().lock_timeout(H::SHORT);
    // The first round is the first claim ever, the second finds its own token, the third a lower.
    for (token, round) in [(33, 1), (33, 2), (34, 3)] {
        let mut tx = FencedTx::begin(&a, &claim(token)).await.unwrap();
        for next in [token, token + 1] {
            let error = impatient.begin(&b, &claim(next)).await.unwrap_err();
            assert_eq!(error.kind(), FenceErrorKind::Contended, "{error:?}, round {round}");
            let error = impatient.claim(&b, &claim(token + 1)).await.unwrap_err();
            assert_eq!(error.kind(), FenceErrorKind::Contended, "{error:?}, round {round}");
        }
        set::<H>(&mut tx, round).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!((db.quantity().await, db.mark().await), (round, Some(token)));
    }
    let mut tx = FencedTx::begin(&b, &claim(35)).await.unwrap();
    assert!(impatient.begin(&a, &claim(34)).await.unwrap_err().is_retryable(), "not known yet");
    set::<H>(&mut tx, 35).await.unwrap();
    tx.commit().await.unwrap();
    assert!(FencedTx::begin(&a, &claim(34)).await.unwrap_err().is_stale());
}

/// Interleaving H2: who waited for the mark reads what was committed meanwhile.
async fn i1_the_next_holder_sees_what_the_one_before_it_wrote<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let (a, b) = (db.pool(1).await, db.pool(1).await);
    for first in [true, false] {
        let token = if first { 33 } else { 35 };
        let mut tx = FencedTx::begin(&a, &claim(token)).await.unwrap();
        let waiting = tokio::spawn({
            let b = b.clone();
            async move {
                let mut tx = FencedTx::begin(&b, &claim(token + 1)).await.unwrap();
                let now = H::number(&mut tx, "SELECT quantity FROM inventory WHERE id = 1").await;
                let now = now.unwrap().unwrap();
                set::<H>(&mut tx, now - 1).await.unwrap();
                tx.commit().await.unwrap();
            }
        });
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        set::<H>(&mut tx, 5).await.unwrap();
        tx.commit().await.unwrap();
        waiting.await.unwrap();
        assert_eq!((db.quantity().await, db.mark().await), (4, Some(token + 1)));
    }
}

/// Case 18: A passes the layer with 5 and pauses; B commits with 6; A wakes and writes. Two
/// servers, each with its own cache of marks at the door.
async fn i1_a_zombie_that_passed_the_door_is_refused_at_the_write<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let (a, b) = (db.pool(1).await, db.pool(1).await);
    let (door_a, door_b) = (MemoryMarks::ephemeral(), MemoryMarks::ephemeral());
    assert_eq!(door_a.advance(&claim(5)).await.unwrap(), Verdict::Accepted);

    assert_eq!(door_b.advance(&claim(6)).await.unwrap(), Verdict::Accepted);
    let mut tx = FencedTx::begin(&b, &claim(6)).await.unwrap();
    set::<H>(&mut tx, 6).await.unwrap();
    tx.commit().await.unwrap();

    let error = FencedTx::begin(&a, &claim(5)).await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Stale { last_token: Token::new(6).unwrap() });
    assert_eq!(db.quantity().await, 6);
}

/// Case 16 and interleaving H3: no row, fifty at once. Each is accepted or stale, none an error,
/// and the mark is the highest.
async fn case_16_fifty_first_claims_at_once<H: Harness>() {
    for with_claim in [false, true] {
        let db = Db::<H>::with_stock().await;
        let pool = db.pool(8).await;
        let start = Arc::new(tokio::sync::Barrier::new(50));
        let mut tasks = JoinSet::new();
        for token in 1..=50 {
            let (pool, start) = (pool.clone(), Arc::clone(&start));
            tasks.spawn(async move {
                start.wait().await;
                if with_claim {
                    return sql::claim(&pool, &claim(token)).await.map(|()| token);
                }
                let mut tx = FencedTx::begin(&pool, &claim(token)).await?;
                set::<H>(&mut tx, token).await?;
                tx.commit().await.map(|()| token)
            });
        }
        while let Some(done) = tasks.join_next().await {
            if let Err(error) = done.unwrap() {
                assert!(error.is_stale(), "{error:?}");
            }
        }
        assert_eq!(db.mark().await, Some(50));
        if !with_claim {
            assert_eq!(db.quantity().await, 50, "the last to write is the highest");
        }
        let error = FencedTx::begin(&pool, &claim(3)).await.unwrap_err();
        assert_eq!(error.kind(), FenceErrorKind::Stale { last_token: Token::new(50).unwrap() });
    }
}

/// Case 26: on SQLite, reading and then writing in one deferred transaction fails at once with
/// SQLITE_BUSY_SNAPSHOT when another wrote between; a fenced one takes the write lock first.
async fn case_26_twenty_that_read_and_write_at_once<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(8).await;
    let mut tasks = JoinSet::new();
    for _ in 0..20 {
        let pool = pool.clone();
        tasks.spawn(async move {
            let mut tx = FencedTx::begin(&pool, &claim(34)).await?;
            let now = H::number(&mut tx, "SELECT quantity FROM inventory WHERE id = 1").await?;
            set::<H>(&mut tx, now.unwrap() + 1).await?;
            tx.commit().await
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap().unwrap();
    }
    assert_eq!(db.quantity().await, 30, "none was lost");
}

async fn claims_in_any_order_do_not_deadlock<H: Harness>() {
    use crate::support::claim_on;
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(8).await;
    let mut tasks = JoinSet::new();
    for turn in 0..24 {
        let pool = pool.clone();
        tasks.spawn(async move {
            let mut claims = [claim_on("a", 7), claim_on("b", 7), claim_on("c", 7)];
            claims.rotate_left(turn % 3);
            if turn % 2 == 0 {
                claims.reverse();
            }
            let options = FenceOptions::new().attempts(1);
            options.begin_all(&pool, &claims).await?.commit().await
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap().unwrap();
    }
}

async fn run_gives_up_with_contended_and_never_with_stale<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let (a, b) = (db.pool(1).await, db.pool(1).await);
    let open = FencedTx::begin(&a, &claim(40)).await.unwrap();
    let impatient = FenceOptions::new().lock_timeout(H::SHORT).attempts(2);
    let runs = std::sync::atomic::AtomicU32::new(0);
    let error = impatient
        .run(&b, &claim(34), |tx| {
            runs.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Box::pin(async move { Ok(set::<H>(tx, 1).await?) })
        })
        .await
        .unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Contended, "{error:?}");
    assert!(error.is_retryable());
    assert_eq!(runs.into_inner(), 0, "the claim comes first");
    open.commit().await.unwrap();
    let error = impatient
        .run(&b, &claim(34), |tx| Box::pin(async move { Ok(set::<H>(tx, 1).await?) }))
        .await
        .unwrap_err();
    assert!(error.is_stale());
    assert_eq!(db.quantity().await, 10);
}

/// Holder 34 claims, reads 10, and before it writes the zombie tries: it is refused, so what 34
/// writes from is still true.
async fn a_holder_that_claims_first_loses_no_write_of_the_one_before<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let (a, b) = (db.pool(1).await, db.pool(1).await);
    FencedTx::begin(&a, &claim(33)).await.unwrap().commit().await.unwrap();
    let holder = claim(34);
    sql::claim(&b, &holder).await.unwrap();
    let read = db.quantity().await;
    assert!(FencedTx::begin(&a, &claim(33)).await.unwrap_err().is_stale());
    let mut tx = FencedTx::begin(&b, &holder).await.unwrap();
    set::<H>(&mut tx, read - 3).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(db.quantity().await, 7);
}

/// Interleaving C5: a first claim and a raise of the floor: whichever comes second sees the first.
async fn i5_a_floor_and_a_first_claim_at_once_agree<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let (a, b) = (db.pool(1).await, db.pool(1).await);
    let floor = Token::new(40).unwrap();
    let impatient = FenceOptions::new().lock_timeout(H::SHORT);
    let tx = FencedTx::begin(&a, &claim(33)).await.unwrap();
    let error = impatient.raise_floor(&b, floor).await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Contended, "the floor is read under a lock");
    tx.rollback().await;
    sql::raise_floor(&b, floor).await.unwrap();
    let error = FencedTx::begin(&a, &claim(33)).await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Stale { last_token: floor });
}
