//! The database ends a transaction, and the one who runs it does not look (interleaving C7).

use fencing::sql::{FenceErrorKind, FencedTx};

use crate::support::{Db, Harness, claim, on_every_database, set};

on_every_database! {
    i4_commit_is_never_ok_when_nothing_was_committed,
}

/// The harness knows how to have the database end or spoil the open transaction; what it says is
/// not looked at.
async fn i4_commit_is_never_ok_when_nothing_was_committed<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    let holder = claim(34);
    let mut tx = FencedTx::begin(&pool, &holder).await.unwrap();
    set::<H>(&mut tx, 1).await.unwrap();
    H::spoil(&mut tx, &db).await;
    // Unfenced now, if nothing is done about it.
    let _ = set::<H>(&mut tx, 2).await;
    assert_eq!((db.quantity().await, db.mark().await), (10, None));
    let error = tx.commit().await.unwrap_err();
    let known = [FenceErrorKind::Contended, FenceErrorKind::Statement];
    assert!(known.contains(&error.kind()), "{error:?}");
    assert_eq!(holder.state(), fencing::ClaimState::Unspent);
    assert_eq!((db.quantity().await, db.mark().await), (10, None), "nothing was applied");

    let mut tx = FencedTx::begin(&pool, &claim(35)).await.unwrap();
    set::<H>(&mut tx, 3).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!((db.quantity().await, db.mark().await), (3, Some(35)));
    assert_eq!(pool.size(), 1);
}
