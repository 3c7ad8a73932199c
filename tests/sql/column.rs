//! The column form: the mark in the user's own row.

use fencing::marks::Marks;
use fencing::sql::{
    ColumnKey, ColumnMarks, ColumnOutcome, FenceErrorKind, FencedColumn, FencedTx, SqlMarks,
};
use fencing::{ClaimState, Token, Verdict};
use sqlx::{Encode, Type};

use crate::forms::{Waits, id_of, run_all, until_it_waits};
use crate::support::{Db, Harness, claim, on_every_database};

on_every_database! {
    i8_an_applied_update_raises_the_mark_of_its_row,
    i1_a_stale_update_writes_nothing_and_names_the_mark,
    a_row_that_is_missing_and_a_condition_that_fails_are_told_apart,
    case_25_the_same_write_twice_is_applied_twice,
    case_3_a_column_that_cannot_hold_tokens_is_one_clear_error,
    texts_that_could_get_out_of_their_parentheses_are_refused,
    a_claim_before_a_read_raises_the_mark_of_the_row,
    i5_a_deleted_row_leaves_its_mark,
    i1_a_transaction_under_both_marks_respects_the_column,
    the_layer_sees_the_marks_of_the_rows,
    case_22_a_zombie_behind_the_holder_is_stale,
}

/// A database whose stock carries a mark in each row, and what can be bound on it.
pub(crate) trait Rows: Harness
where
    i64: ColumnKey<Self> + for<'q> Encode<'q, Self> + Type<Self>,
{
}

impl<H: Harness> Rows for H where i64: ColumnKey<H> + for<'q> Encode<'q, H> + Type<H> {}

async fn stock<H: Harness>() -> Db<H> {
    let db = Db::<H>::with_stock().await;
    let mut conn = db.pool(1).await.acquire().await.unwrap();
    H::run(&mut conn, "ALTER TABLE inventory ADD COLUMN last_token BIGINT NOT NULL DEFAULT 0")
        .await
        .unwrap();
    db
}

fn column<H: Harness>() -> FencedColumn<H> {
    FencedColumn::new("inventory", "id", "last_token").unwrap()
}

fn token(token: i64) -> Token {
    Token::new(token).unwrap()
}

async fn row<H: Harness>(db: &Db<H>) -> (i64, i64) {
    let mark = db.number("SELECT last_token FROM inventory WHERE id = 1").await.unwrap();
    (db.quantity().await, mark)
}

async fn i8_an_applied_update_raises_the_mark_of_its_row<H: Rows>()
where
    i64: ColumnKey<H>,
{
    let db = stock::<H>().await;
    let pool = db.pool(1).await;
    for (holder, expected) in [(claim(33), 7), (claim(33), 4), (claim(34), 1)] {
        let outcome = column::<H>()
            .update(&holder, 1_i64)
            .set_to("quantity", "quantity - {}", 3_i64)
            .only_if("quantity >= {}", 3_i64)
            .execute(&pool)
            .await
            .unwrap();
        assert_eq!(outcome, ColumnOutcome::Applied);
        assert_eq!(holder.state(), ClaimState::Committed);
        assert_eq!(row(&db).await, (expected, holder.token().get()));
    }
}

async fn i1_a_stale_update_writes_nothing_and_names_the_mark<H: Rows>()
where
    i64: ColumnKey<H>,
{
    let db = stock::<H>().await;
    let pool = db.pool(1).await;
    let (holder, zombie) = (claim(34), claim(33));
    let column = column::<H>();
    let set = |claim| column.update(claim, 1_i64).set("quantity", claim.token().get());
    assert!(set(&holder).execute(&pool).await.unwrap().applied(&holder).unwrap());
    for conditional in [false, true] {
        let update = set(&zombie);
        let update = if conditional { update.only_if("quantity = {}", 0_i64) } else { update };
        let outcome = update.execute(&pool).await.unwrap();
        assert_eq!(outcome, ColumnOutcome::Stale { last_token: token(34) });
        assert_eq!(zombie.state(), ClaimState::Stale);
        assert!(outcome.applied(&zombie).unwrap_err().is_stale());
    }
    assert_eq!(row(&db).await, (34, 34));
}

/// Interleaving C6.
async fn a_row_that_is_missing_and_a_condition_that_fails_are_told_apart<H: Rows>()
where
    i64: ColumnKey<H>,
{
    let db = stock::<H>().await;
    let pool = db.pool(1).await;
    let holder = claim(34);
    let missing = column::<H>().update(&holder, 2_i64).set("quantity", 1_i64);
    assert_eq!(missing.execute(&pool).await.unwrap(), ColumnOutcome::NoSuchRow);
    let few = column::<H>()
        .update(&holder, 1_i64)
        .set_to("quantity", "quantity - {}", 11_i64)
        .only_if("quantity >= {} OR 1 = 0", 11_i64);
    let outcome = few.execute(&pool).await.unwrap();
    assert_eq!(outcome, ColumnOutcome::ConditionFailed);
    assert!(!outcome.applied(&holder).unwrap());
    assert_eq!(holder.state(), ClaimState::Unspent);
    assert_eq!(row(&db).await, (10, 0), "the mark neither");
}

/// Case 25: how the rows are counted depends on a flag and on proxies; the answer does not.
async fn case_25_the_same_write_twice_is_applied_twice<H: Rows>()
where
    i64: ColumnKey<H>,
{
    let db = stock::<H>().await;
    let pool = db.pool(1).await;
    let holder = claim(34);
    for _ in 0..3 {
        let update = column::<H>().update(&holder, 1_i64).set("quantity", 5_i64);
        assert_eq!(update.execute(&pool).await.unwrap(), ColumnOutcome::Applied);
    }
}

/// Case 3, and interleaving C6: null is at or below nothing.
async fn case_3_a_column_that_cannot_hold_tokens_is_one_clear_error<H: Rows>()
where
    i64: ColumnKey<H>,
{
    let db = stock::<H>().await;
    let pool = db.pool(1).await;
    let mut tables = vec![
        ("nullable", "id BIGINT PRIMARY KEY, quantity BIGINT, last_token BIGINT", "NOT NULL"),
        (
            "texts",
            "id BIGINT PRIMARY KEY, quantity BIGINT, last_token VARCHAR(20) NOT NULL",
            "BIGINT",
        ),
        ("no_key", "id BIGINT, quantity BIGINT, last_token BIGINT NOT NULL", "unique"),
        (
            "half_key",
            "id BIGINT, b BIGINT, quantity BIGINT, last_token BIGINT NOT NULL, PRIMARY KEY (id, b)",
            "unique",
        ),
        ("elsewhere", "id BIGINT PRIMARY KEY, quantity BIGINT", "no such table or column"),
    ];
    if H::NAME == "MySQL" {
        tables.push((
            "unsigned_one",
            "id BIGINT PRIMARY KEY, quantity BIGINT, last_token BIGINT UNSIGNED NOT NULL",
            "unsigned",
        ));
    }
    if H::NAME != "SQLite" {
        tables.push((
            "narrow",
            "id BIGINT PRIMARY KEY, quantity BIGINT, last_token INTEGER NOT NULL",
            "found=`int",
        ));
    }
    for (table, columns, expected) in tables {
        run_all(&pool, &[&format!("CREATE TABLE {table} ({columns})")]).await;
        let column = FencedColumn::<H>::new(table, "id", "last_token").unwrap();
        let error = column.verify(&pool).await.unwrap_err();
        assert_eq!(error.kind(), FenceErrorKind::Misconfigured);
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains(expected), "{source}");
        let claim = claim(34);
        let error =
            column.update(&claim, 1_i64).set("quantity", 1_i64).execute(&pool).await.unwrap_err();
        assert_eq!(error.kind(), FenceErrorKind::Misconfigured);
    }
    let unknown = FencedColumn::<H>::new("nowhere", "id", "last_token").unwrap();
    assert_eq!(unknown.verify(&pool).await.unwrap_err().kind(), FenceErrorKind::Misconfigured);
    column::<H>().verify(&pool).await.unwrap();
    // Signed and wide enough for every token.
    let highest = fencing::Claim::new(claim(1).resource().clone(), Token::MAX);
    let update = column::<H>().update(&highest, 1_i64).set("quantity", 1_i64);
    assert_eq!(update.execute(&pool).await.unwrap(), ColumnOutcome::Applied);
    assert_eq!(row(&db).await, (1, i64::MAX));
}

async fn texts_that_could_get_out_of_their_parentheses_are_refused<H: Rows>()
where
    i64: ColumnKey<H>,
{
    let db = stock::<H>().await;
    let pool = db.pool(1).await;
    for text in [
        "quantity",
        "{} + {}",
        "quantity = {}) OR (1 = 1",
        "{}, id = 5",
        "{} -- x",
        "{}; DELETE FROM inventory",
        "{} + (SELECT max(token) FROM ledger)",
        "{fence} + {}",
    ] {
        let holder = claim(34);
        for update in [
            column::<H>().update(&holder, 1_i64).set_to("quantity", text, 1_i64),
            column::<H>().update(&holder, 1_i64).set("quantity", 1_i64).only_if(text, 1_i64),
        ] {
            let error = update.execute(&pool).await.unwrap_err();
            assert_eq!(error.kind(), FenceErrorKind::Misconfigured, "{text}");
        }
    }
    let holder = claim(34);
    for update in [
        column::<H>().update(&holder, 1_i64),
        column::<H>().update(&holder, 1_i64).set("last_token", 1_i64),
        column::<H>().update(&holder, 1_i64).set("quantity\" = 1 --", 1_i64),
    ] {
        let error = update.execute(&pool).await.unwrap_err();
        assert_eq!(error.kind(), FenceErrorKind::Misconfigured);
    }
    // No such column: the database's own word for it.
    let update = column::<H>().update(&holder, 1_i64).set("quantitty", 1_i64);
    let error = update.execute(&pool).await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Statement);
    assert_eq!(row(&db).await, (10, 0));
    for bad in ["", "a\"b", "a`b", "a\0", &"x".repeat(64)] {
        assert!(FencedColumn::<H>::new(bad, "id", "last_token").is_err());
    }
}

async fn a_claim_before_a_read_raises_the_mark_of_the_row<H: Rows>()
where
    i64: ColumnKey<H>,
{
    let db = stock::<H>().await;
    let pool = db.pool(1).await;
    let holder = claim(34);
    for _ in 0..2 {
        column::<H>().claim(&pool, &holder, 1_i64).await.unwrap();
        assert_eq!(holder.state(), ClaimState::Claimed);
    }
    assert_eq!(row(&db).await, (10, 34));
    let error = column::<H>().claim(&pool, &claim(33), 1_i64).await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Stale { last_token: token(34) });
    assert_eq!(db.mark().await, None, "the row has its own");
    // Without a row the mark is the one in fencing_marks.
    column::<H>().claim(&pool, &holder, 2_i64).await.unwrap();
    assert_eq!(db.mark().await, Some(34));
}

/// Interleaving C6 and case 17: 34 deletes the row, 33 makes it again.
async fn i5_a_deleted_row_leaves_its_mark<H: Rows>()
where
    i64: ColumnKey<H>,
{
    let db = stock::<H>().await;
    let pool = db.pool(1).await;
    let column = column::<H>();
    let mut tx = column.begin(&pool, &claim(34), 1_i64).await.unwrap();
    H::run(&mut tx, "DELETE FROM inventory WHERE id = 1").await.unwrap();
    tx.commit().await.unwrap();
    let zombie = claim(33);
    let update = column.update(&zombie, 1_i64).set("quantity", 33_i64);
    assert_eq!(update.execute(&pool).await.unwrap(), ColumnOutcome::NoSuchRow);
    assert!(column.begin(&pool, &zombie, 1_i64).await.unwrap_err().is_stale());
    assert!(column.claim(&pool, &zombie, 1_i64).await.unwrap_err().is_stale());
    // The next holder makes it again, with its own token in the row.
    let mut tx = column.begin(&pool, &claim(35), 1_i64).await.unwrap();
    H::run(&mut tx, "INSERT INTO inventory (id, quantity, last_token) VALUES (1, 5, 35)")
        .await
        .unwrap();
    tx.commit().await.unwrap();
    let update = column.update(&zombie, 1_i64).set("quantity", 33_i64);
    let outcome = update.execute(&pool).await.unwrap();
    assert_eq!(outcome, ColumnOutcome::Stale { last_token: token(35) });
}

async fn i1_a_transaction_under_both_marks_respects_the_column<H: Rows>()
where
    i64: ColumnKey<H>,
{
    let db = stock::<H>().await;
    let pool = db.pool(1).await;
    let column = column::<H>();
    let holder = claim(34);
    let update = column.update(&holder, 1_i64).set("quantity", 34_i64);
    assert_eq!(update.execute(&pool).await.unwrap(), ColumnOutcome::Applied);
    // fencing_marks knows nothing of it, so a plain transaction would be let through.
    FencedTx::begin(&pool, &claim(33)).await.unwrap().rollback().await;
    let zombie = claim(33);
    let error = column.begin(&pool, &zombie, 1_i64).await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Stale { last_token: token(34) });
    assert_eq!(zombie.state(), ClaimState::Stale);
    assert_eq!(db.mark().await, None, "rolled back");
    let mut tx = column.begin(&pool, &claim(35), 1_i64).await.unwrap();
    H::run(&mut tx, "UPDATE inventory SET quantity = quantity + 1 WHERE id = 1").await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!((row(&db).await, db.mark().await), ((35, 35), Some(35)));
}

async fn the_layer_sees_the_marks_of_the_rows<H: Rows>()
where
    i64: ColumnKey<H>,
{
    let db = stock::<H>().await;
    let pool = db.pool(2).await;
    let key = |resource: &fencing::Resource| {
        resource.as_str().strip_prefix("inventory:item:")?.parse::<i64>().ok()
    };
    let marks = ColumnMarks::new(pool.clone(), column::<H>(), key);
    let holder = claim(34);
    let update = column::<H>().update(&holder, 1_i64).set("quantity", 34_i64);
    assert_eq!(update.execute(&pool).await.unwrap(), ColumnOutcome::Applied);
    let stale = Verdict::Stale { last_token: token(34) };
    assert_eq!(marks.advance(&claim(33)).await.unwrap(), stale);
    assert_eq!(marks.advance(&claim(35)).await.unwrap(), Verdict::Accepted);
    assert_eq!(row(&db).await, (34, 35));
    let update = column::<H>().update(&holder, 1_i64).set("quantity", 34_i64);
    let outcome = update.execute(&pool).await.unwrap();
    assert_eq!(outcome, ColumnOutcome::Stale { last_token: token(35) });
    // Two marks for one resource do not fence each other: do not mix.
    let other = SqlMarks::new(pool);
    assert_eq!(other.advance(&claim(33)).await.unwrap(), Verdict::Accepted);
    let nameless = crate::support::claim_on("something:else", 1);
    assert!(marks.advance(&nameless).await.is_err());
}

/// Case 22 and interleaving C6: the answer names the mark as it is now, not as the snapshot of the
/// statement had it.
async fn case_22_a_zombie_behind_the_holder_is_stale<H: Rows>()
where
    i64: ColumnKey<H>,
{
    let db = stock::<H>().await;
    let pool = db.pool(8).await;
    let column = column::<H>();
    let tasks = (1..=30_i64).map(|n| {
        let (pool, column) = (pool.clone(), column.clone());
        tokio::spawn(async move {
            let claim = claim(n);
            column.update(&claim, 1_i64).set("quantity", n).execute(&pool).await
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        match task.await.unwrap().unwrap() {
            ColumnOutcome::Applied | ColumnOutcome::Stale { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(row(&db).await, (30, 30));
}

/// Interleaving C6: 33 waits for the row behind 34. What it is stale against is 34.
async fn i4_stale_names_the_mark_that_was_waited_for<H: Rows + Waits>()
where
    i64: ColumnKey<H>,
{
    let db = stock::<H>().await;
    let (a, b) = (db.pool(1).await, db.pool(1).await);
    let column = column::<H>();
    column.verify(&b).await.unwrap();
    let id = id_of(&b).await;
    let tx = column.begin(&a, &claim(34), 1_i64).await.unwrap();
    let waiting = tokio::spawn({
        let (b, column) = (b.clone(), column.clone());
        async move { column.update(&claim(33), 1_i64).set("quantity", 33_i64).execute(&b).await }
    });
    until_it_waits(&db, id).await;
    tx.commit().await.unwrap();
    let outcome = waiting.await.unwrap().unwrap();
    assert_eq!(outcome, ColumnOutcome::Stale { last_token: token(34) });
    assert_eq!(row(&db).await, (10, 34));
}

mod waits_postgres {
    #[tokio::test]
    async fn i4_stale_names_the_mark_that_was_waited_for() {
        super::i4_stale_names_the_mark_that_was_waited_for::<sqlx::Postgres>().await;
    }
}

mod waits_mysql {
    #[tokio::test]
    async fn i4_stale_names_the_mark_that_was_waited_for() {
        super::i4_stale_names_the_mark_that_was_waited_for::<sqlx::MySql>().await;
    }
}
