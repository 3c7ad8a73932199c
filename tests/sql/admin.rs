//! What administrators do: floor, purge, bump, raise, lower.

use std::time::Duration;

use fencing::sql::{self, Admin, FenceErrorKind, FenceOptions, FencedTx, IssuerFloor};
use fencing::{Resource, Token};

use crate::forms::{Waits, id_of, run_all, until_it_waits};
use crate::support::{Db, Harness, claim, claim_on, on_every_database, set};

on_every_database! {
    i5_the_floor_only_rises_and_says_who_raised_it,
    i5_a_purged_mark_leaves_a_floor_above_it,
    i5_a_purge_leaves_what_was_claimed_lately_and_what_is_above_the_issuer,
    i2_a_purged_lock_leaves_a_floor_above_its_token,
    i2_a_bump_raises_every_lock_and_the_floor_far,
    i2_a_bump_at_the_end_of_the_range_is_refused,
    i5_after_a_restore_of_the_marks_all_are_raised,
    i5_only_an_approved_lowering_lets_a_mark_fall,
    case_47_in_two_databases_the_issuer_rises_first,
}

const DAY: Duration = Duration::from_secs(86_400);

fn token(token: i64) -> Token {
    Token::new(token).unwrap()
}

fn admin() -> Admin {
    Admin::new("alice", "a test").approved_by("bob")
}

async fn floor<H: Harness>(db: &Db<H>) -> i64 {
    db.number("SELECT floor FROM fencing_floor").await.unwrap()
}

async fn audited<H: Harness>(db: &Db<H>, event: &str) -> i64 {
    db.number(&format!(
        "SELECT count(*) FROM fencing_audit WHERE event = '{event}' AND actor = 'alice' \
         AND approved_by = 'bob' AND reason = 'a test' AND at > 1000000000000 AND token > 0"
    ))
    .await
    .unwrap()
}

async fn write<H: Harness>(pool: &sqlx::Pool<H>, token: i64) {
    let mut tx = FencedTx::begin(pool, &claim(token)).await.unwrap();
    set::<H>(&mut tx, token).await.unwrap();
    tx.commit().await.unwrap();
}

/// Makes the marks and locks old.
async fn age<H: Harness>(pool: &sqlx::Pool<H>) {
    run_all(pool, &["UPDATE fencing_marks SET updated_at = 1"]).await;
}

async fn i5_the_floor_only_rises_and_says_who_raised_it<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    assert_eq!(admin().raise_floor(&pool, token(57)).await.unwrap(), 57);
    assert_eq!(admin().raise_floor(&pool, token(40)).await.unwrap(), 57);
    assert_eq!((floor(&db).await, audited(&db, "raise-floor").await), (57, 1));
    sql::raise_floor(&pool, token(58)).await.unwrap();
    assert_eq!(db.number("SELECT count(*) FROM fencing_audit").await, Some(2));
    assert_eq!(floor(&db).await, 58);
}

/// Interleaving C5: after a purge of mark 57 the zombie 33 is no first claim.
async fn i5_a_purged_mark_leaves_a_floor_above_it<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    write(&pool, 57).await;
    age(&pool).await;
    let purged = admin().purge_marks(&pool, DAY, IssuerFloor::Shared).await.unwrap();
    assert_eq!((purged.rows, purged.floor, db.mark().await), (1, 57, None));
    assert_eq!((floor(&db).await, audited(&db, "purge-marks").await), (57, 1));
    for stale in [33, 57] {
        let error = FencedTx::begin(&pool, &claim(stale)).await.unwrap_err();
        assert_eq!(error.kind(), FenceErrorKind::Stale { last_token: token(57) });
    }
    write(&pool, 58).await;
    assert_eq!(db.quantity().await, 58);
    let purged = admin().purge_marks(&pool, DAY, IssuerFloor::Shared).await.unwrap();
    assert_eq!((purged.rows, purged.floor), (0, 57), "nothing is old");
}

async fn i5_a_purge_leaves_what_was_claimed_lately_and_what_is_above_the_issuer<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    for (resource, mark) in [("old", 10), ("high", 60), ("lately", 20)] {
        sql::claim(&pool, &claim_on(resource, mark)).await.unwrap();
    }
    age(&pool).await;
    sql::claim(&pool, &claim_on("lately", 21)).await.unwrap();
    let issuer = IssuerFloor::At(token(50));
    let purged = admin().purge_marks(&pool, DAY, issuer).await.unwrap();
    assert_eq!((purged.rows, purged.floor), (1, 10));
    assert_eq!(db.number("SELECT count(*) FROM fencing_marks").await, Some(2));
    // More than one batch.
    for n in 0..520 {
        let insert = format!(
            "INSERT INTO fencing_marks (resource, last_token, updated_at) VALUES ('r{n}', {}, 1)",
            n + 1
        );
        run_all(&pool, &[&insert]).await;
    }
    let purged = admin().purge_marks(&pool, DAY, IssuerFloor::Shared).await.unwrap();
    assert_eq!((purged.rows, purged.floor, floor(&db).await), (521, 520, 520));
}

async fn insert_lock<H: Harness>(pool: &sqlx::Pool<H>, resource: &str, token: i64, ended: bool) {
    let ended = if ended { "1" } else { "9000000000000" };
    let text = format!(
        "INSERT INTO fencing_locks (resource, token, acquired_at, expires_at, owner, \
         owner_token_hash) VALUES ('{resource}', {token}, 1, {ended}, 'me', {})",
        match H::NAME {
            "PostgreSQL" => "decode(repeat('00', 32), 'hex')",
            "MySQL" => "REPEAT(CHAR(0), 32)",
            _ => "zeroblob(32)",
        }
    );
    run_all(pool, &[&text]).await;
}

async fn i2_a_purged_lock_leaves_a_floor_above_its_token<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    insert_lock(&pool, "gone", 57, true).await;
    insert_lock(&pool, "held", 99, false).await;
    let purged = admin().purge_locks(&pool, DAY).await.unwrap();
    assert_eq!((purged.rows, purged.floor, floor(&db).await), (1, 57, 57));
    assert_eq!(db.number("SELECT count(*) FROM fencing_locks").await, Some(1));
    assert_eq!(audited(&db, "purge-locks").await, 1);
}

async fn i2_a_bump_raises_every_lock_and_the_floor_far<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    insert_lock(&pool, "a", 57, true).await;
    insert_lock(&pool, "b", 1, false).await;
    sql::raise_floor(&pool, token(60)).await.unwrap();
    assert_eq!(admin().bump(&pool).await.unwrap(), 60 + Admin::BUMP);
    assert_eq!(floor(&db).await, 60 + Admin::BUMP);
    let lowest = db.number("SELECT min(token) FROM fencing_locks").await;
    assert_eq!((lowest, audited(&db, "bump").await), (Some(1 + Admin::BUMP), 1));
}

/// Interleaving M12.
async fn i2_a_bump_at_the_end_of_the_range_is_refused<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    insert_lock(&pool, "a", Token::MAX_GRANTED.get() - 5, true).await;
    let error = admin().bump(&pool).await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Misconfigured);
    assert_eq!((floor(&db).await, audited(&db, "bump").await), (0, 0));
}

async fn i5_after_a_restore_of_the_marks_all_are_raised<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    write(&pool, 33).await;
    sql::claim(&pool, &claim_on("other", 2000)).await.unwrap();
    assert_eq!(admin().raise_marks(&pool, token(1000)).await.unwrap(), 1);
    assert_eq!((db.mark().await, floor(&db).await), (Some(1000), 1000));
    assert!(FencedTx::begin(&pool, &claim(45)).await.unwrap_err().is_stale());
    assert!(FencedTx::begin(&pool, &claim_on("new", 1000)).await.unwrap_err().is_stale());
    assert_eq!(audited(&db, "raise-marks").await, 1);
}

async fn i5_only_an_approved_lowering_lets_a_mark_fall<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    write(&pool, i64::MAX).await;
    let resource = claim(1).resource().clone();
    for alone in [
        Admin::new("alice", "a test"),
        Admin::new("alice", "a test").approved_by(" "),
        Admin::new("alice", "a test").approved_by("alice "),
    ] {
        let error = alone.lower_mark(&pool, &resource, token(40)).await.unwrap_err();
        assert_eq!(error.kind(), FenceErrorKind::Misconfigured);
    }
    assert_eq!(db.mark().await, Some(i64::MAX));
    let before = admin().lower_mark(&pool, &resource, token(40)).await.unwrap();
    assert_eq!((before, db.mark().await), (Some(Token::MAX), Some(40)));
    assert_eq!(db.number("SELECT epoch FROM fencing_floor").await, Some(1), "caches forget");
    assert_eq!(audited(&db, "lower-mark").await, 1);
    let named = "SELECT count(*) FROM fencing_audit WHERE resource = 'inventory:item:1'";
    assert_eq!(db.number(named).await, Some(1));
    write(&pool, 41).await;
    let error = admin().lower_mark(&pool, &resource, token(50)).await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Misconfigured, "it raises nothing");
    let nobody = Resource::new("nobody").unwrap();
    assert_eq!(admin().lower_mark(&pool, &nobody, token(1)).await.unwrap(), None);
    assert_eq!(db.number("SELECT epoch FROM fencing_floor").await, Some(1), "nothing was lowered");
}

/// Case 47 and interleaving C5: marks and locks in two databases.
async fn case_47_in_two_databases_the_issuer_rises_first<H: Harness>() {
    let (issuer, guard) = (Db::<H>::with_stock().await, Db::<H>::with_stock().await);
    let (locks, marks) = (issuer.pool(1).await, guard.pool(1).await);
    write(&marks, 57).await;
    age(&marks).await;
    // The locks were restored to 40: what they grant next is stale, never wrongly accepted.
    insert_lock(&locks, "inventory:item:1", 40, true).await;
    assert!(FencedTx::begin(&marks, &claim(41)).await.unwrap_err().is_stale());
    // Without a floor of the issuer at or above it, mark 57 is not dropped.
    let none = IssuerFloor::At(token(40));
    assert_eq!(admin().purge_marks(&marks, DAY, none).await.unwrap().rows, 0);
    let raised = token(admin().bump(&locks).await.unwrap());
    let purged = admin().purge_marks(&marks, DAY, IssuerFloor::At(raised)).await.unwrap();
    assert_eq!((purged.rows, purged.floor), (1, 57));
    let next = 41 + Admin::BUMP;
    write(&marks, next).await;
    assert!(FencedTx::begin(&marks, &claim(57)).await.unwrap_err().is_stale());
}

/// Interleaving C4: a purge is stopped in the middle, at a mark that is being claimed. A zombie whose
/// mark is about to go, or never was, waits for the floor of the purge, and then is below it. Were
/// the marks dropped before the floor is raised, it would be let in.
async fn i5_a_zombie_waits_for_the_floor_of_a_purge_under_way<H: Waits>() {
    let db = Db::<H>::with_stock().await;
    let (a, b, c) = (db.pool(1).await, db.pool(1).await, db.pool(1).await);
    sql::claim(&a, &claim_on("a:busy", 57)).await.unwrap();
    write(&a, 50).await;
    age(&a).await;
    let (purging, zombie) = (id_of(&b).await, id_of(&c).await);
    let tx = FencedTx::begin(&a, &claim_on("a:busy", 57)).await.unwrap();
    let purge = tokio::spawn({
        let b = b.clone();
        async move {
            let patient = admin().options(&FenceOptions::new());
            patient.purge_marks(&b, DAY, IssuerFloor::Shared).await
        }
    });
    until_it_waits(&db, purging).await;
    let claiming = tokio::spawn({
        let c = c.clone();
        async move { FencedTx::begin(&c, &claim_on("z:new", 55)).await.map(|_| ()) }
    });
    until_it_waits(&db, zombie).await;
    tx.rollback().await;
    let purged = purge.await.unwrap().unwrap();
    assert_eq!((purged.rows, purged.floor), (2, 57));
    let error = claiming.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Stale { last_token: token(57) });
    for resource in ["a:busy", "inventory:item:1", "z:new"] {
        assert!(FencedTx::begin(&c, &claim_on(resource, 57)).await.unwrap_err().is_stale());
    }
}

/// A purge waits for a claim that is open on a mark it chose, and leaves that mark.
async fn i5_a_purge_leaves_a_mark_that_is_being_claimed<H: Waits>() {
    let db = Db::<H>::with_stock().await;
    let (a, b) = (db.pool(1).await, db.pool(1).await);
    write(&a, 57).await;
    age(&a).await;
    let id = id_of(&b).await;
    let mut tx = FencedTx::begin(&a, &claim(57)).await.unwrap();
    let purge = tokio::spawn({
        let b = b.clone();
        async move {
            let patient = FenceOptions::new();
            admin().options(&patient).purge_marks(&b, DAY, IssuerFloor::Shared).await
        }
    });
    until_it_waits(&db, id).await;
    set::<H>(&mut tx, 1).await.unwrap();
    tx.commit().await.unwrap();
    let purged = purge.await.unwrap().unwrap();
    assert_eq!((purged.rows, db.mark().await), (0, Some(57)));
    write(&a, 57).await;
}

macro_rules! on_servers {
    ($($body:ident),+) => {
        mod waits_postgres { $(#[tokio::test] async fn $body() { super::$body::<sqlx::Postgres>().await; })+ }
        mod waits_mysql { $(#[tokio::test] async fn $body() { super::$body::<sqlx::MySql>().await; })+ }
    };
}
on_servers!(
    i5_a_zombie_waits_for_the_floor_of_a_purge_under_way,
    i5_a_purge_leaves_a_mark_that_is_being_claimed
);
