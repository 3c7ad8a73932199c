//! What only PostgreSQL does.

use fencing::ClaimState;
use fencing::sql::{
    self, FenceErrorKind, FenceOptions, FencedTx, Isolation, MigrateErrorKind, Tables,
};
use sqlx::{PgConnection, Postgres};

use crate::support::{Db, Harness, claim, claim_on, set};

async fn run(conn: &mut PgConnection, sql: &str) -> Result<(), sqlx::Error> {
    Postgres::script(conn, sql).await
}

/// COMMIT of a transaction in which a statement failed is answered with ROLLBACK and no error.
#[tokio::test]
async fn i4_a_swallowed_error_is_not_a_commit() {
    let db = Db::<Postgres>::with_stock().await;
    let pool = db.pool(1).await;
    let mut tx = FencedTx::begin(&pool, &claim(34)).await.unwrap();
    set::<Postgres>(&mut tx, 1).await.unwrap();
    run(&mut tx, "SELECT 1 / 0").await.unwrap_err();
    let error = tx.commit().await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Statement, "{error:?}");
    assert_eq!((db.quantity().await, db.mark().await), (10, None));

    // In a savepoint that is rolled back it does no harm.
    let mut tx = FencedTx::begin(&pool, &claim(34)).await.unwrap();
    set::<Postgres>(&mut tx, 2).await.unwrap();
    let mut savepoint = sqlx::Connection::begin(&mut *tx).await.unwrap();
    run(&mut savepoint, "SELECT 1 / 0").await.unwrap_err();
    savepoint.rollback().await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!((db.quantity().await, db.mark().await), (2, Some(34)));
}

/// Who ends the transaction by hand is told that nobody knows, never that all is well.
#[tokio::test]
async fn i4_a_transaction_ended_by_hand_is_not_a_commit() {
    let db = Db::<Postgres>::with_stock().await;
    let pool = db.pool(1).await;
    for end in ["ROLLBACK", "COMMIT"] {
        let holder = claim(34);
        let mut tx = FencedTx::begin(&pool, &holder).await.unwrap();
        set::<Postgres>(&mut tx, 1).await.unwrap();
        run(&mut tx, end).await.unwrap();
        let error = tx.commit().await.unwrap_err();
        assert_eq!(error.kind(), FenceErrorKind::OutcomeUnknown, "{end}: {error:?}");
        assert_eq!(holder.state(), ClaimState::Unknown);
    }
}

#[tokio::test]
async fn i4_a_commit_that_the_database_refuses_is_known() {
    let db = Db::<Postgres>::with_stock().await;
    let pool = db.pool(1).await;
    let mut conn = pool.acquire().await.unwrap();
    let child =
        "CREATE TABLE child (item bigint REFERENCES inventory DEFERRABLE INITIALLY DEFERRED);
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'refused'; END $$;
        CREATE TABLE refused (x bigint);
        CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON refused DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION refuse()";
    run(&mut conn, child).await.unwrap();
    drop(conn);
    for insert in ["INSERT INTO child VALUES (77)", "INSERT INTO refused VALUES (1)"] {
        let holder = claim(34);
        let mut tx = FencedTx::begin(&pool, &holder).await.unwrap();
        set::<Postgres>(&mut tx, 1).await.unwrap();
        run(&mut tx, insert).await.unwrap();
        let error = tx.commit().await.unwrap_err();
        assert_eq!(error.kind(), FenceErrorKind::Statement, "{error:?}");
        assert_eq!(holder.state(), ClaimState::Unspent);
        assert_eq!((db.quantity().await, db.mark().await), (10, None));
    }
    assert_eq!(pool.size(), 1);
}

/// Case 22: a serialization failure that comes with COMMIT is run again.
#[tokio::test]
async fn case_22_write_skew_is_refused_at_commit_and_run_again() {
    let db = Db::<Postgres>::with_stock().await;
    let (a, b) = (db.pool(1).await, db.pool(1).await);
    let mut conn = a.acquire().await.unwrap();
    run(&mut conn, "INSERT INTO inventory VALUES (2, 10)").await.unwrap();
    drop(conn);
    let options = FenceOptions::new().isolation(Isolation::Serializable);
    let sum = "SELECT sum(quantity) FROM inventory";
    let mut other = Some({
        let mut tx = options.begin(&a, &claim_on("a", 7)).await.unwrap();
        assert_eq!(Postgres::number(&mut tx, sum).await.unwrap(), Some(20));
        run(&mut tx, "UPDATE inventory SET quantity = 0 WHERE id = 2").await.unwrap();
        tx
    });
    let mut seen = Vec::new();
    let total = options
        .run(&b, &claim_on("b", 7), |tx| {
            let other = other.take();
            Box::pin(async move {
                let total = Postgres::number(tx, sum).await?.unwrap_or(0);
                set::<Postgres>(tx, total - 15).await?;
                if let Some(other) = other {
                    other.commit().await?;
                }
                Ok(total)
            })
        })
        .await
        .unwrap();
    seen.push(total);
    assert_eq!(seen, [10], "it was run again and saw the other's write");
    assert_eq!(db.quantity().await, -5);
}

#[tokio::test]
async fn marks_are_never_unlogged() {
    let db = Db::<Postgres>::with_stock().await;
    let pool = db.pool(1).await;
    let mut conn = pool.acquire().await.unwrap();
    run(&mut conn, "ALTER TABLE fencing_marks SET UNLOGGED").await.unwrap();
    drop(conn);
    let error = sql::verify(&pool).await.unwrap_err();
    assert_eq!(error.kind(), MigrateErrorKind::Shape);
    assert!(error.to_string().contains("unlogged"), "{error}");
}

/// A column that may be null compares with nothing, and a wider type is not read back.
#[tokio::test]
async fn case_3_changed_columns_are_named_at_start() {
    for (change, says) in
        [("seq DROP NOT NULL", "bigint nullable"), ("last_token TYPE numeric", "numeric")]
    {
        let db = Db::<Postgres>::with_stock().await;
        let pool = db.pool(1).await;
        let mut conn = pool.acquire().await.unwrap();
        run(&mut conn, &format!("ALTER TABLE fencing_marks ALTER {change}")).await.unwrap();
        drop(conn);
        for error in [sql::verify(&pool).await.unwrap_err(), sql::migrate(&pool).await.unwrap_err()]
        {
            assert_eq!(error.kind(), MigrateErrorKind::Shape, "{change}: {error:?}");
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}

#[tokio::test]
async fn the_tables_may_lie_in_another_schema() {
    let (db, other) = (Db::<Postgres>::with_stock().await, Db::<Postgres>::empty().await);
    let pool = db.pool(1).await;
    let there = other.number("SELECT 1").await;
    assert_eq!(there, Some(1));
    let tables = Tables::default().in_schema(&other.name()).unwrap();
    let options = FenceOptions::new().tables(tables);
    options.migrate(&pool).await.unwrap();
    options.migrate(&pool).await.unwrap();
    options.verify(&pool).await.unwrap();
    let mut tx = options.begin(&pool, &claim(34)).await.unwrap();
    set::<Postgres>(&mut tx, 7).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!((db.mark().await, other.mark().await), (None, Some(34)));
    options.raise_floor(&pool, claim(40).token()).await.unwrap();
    assert_eq!(other.number("SELECT floor FROM fencing_floor").await, Some(40));
}

/// What `docs/sql.md` says a service needs is enough, and less is a misconfiguration.
#[tokio::test]
async fn the_documented_privileges_are_enough() {
    let db = Db::<Postgres>::with_stock().await;
    let admin = db.pool(1).await;
    let (role, schema) = (format!("r{}", db.name()), db.name());
    let mut conn = admin.acquire().await.unwrap();
    let role_and_grants = format!(
        "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {role};
         GRANT SELECT ON fencing_marks, fencing_floor, fencing_schema TO {role};
         GRANT UPDATE ON fencing_marks TO {role};
         GRANT SELECT, UPDATE ON inventory TO {role}"
    );
    run(&mut conn, &role_and_grants).await.unwrap();
    let pool = db.pool_with(1, db.options.clone().username(&role)).await;
    let error = FencedTx::begin(&pool, &claim(34)).await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Misconfigured, "{error:?}");
    let rest = format!(
        "GRANT INSERT ON fencing_marks TO {role}; GRANT UPDATE (id) ON fencing_floor TO {role}"
    );
    run(&mut conn, &rest).await.unwrap();
    let mut tx = FencedTx::begin(&pool, &claim(34)).await.unwrap();
    set::<Postgres>(&mut tx, 7).await.unwrap();
    tx.commit().await.unwrap();
    sql::claim(&pool, &claim(35)).await.unwrap();
    assert!(sql::raise_floor(&pool, claim(1).token()).await.is_err());
    pool.close().await;
    run(&mut conn, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await.unwrap();
}
