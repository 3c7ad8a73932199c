//! What only MySQL and MariaDB do.

use fencing::ClaimState;
use fencing::sql::{self, FenceErrorKind, FenceOptions, FencedTx, MigrateErrorKind, Tables};
use sqlx::{MySql, MySqlConnection};

use crate::support::{Db, Harness, claim, set};

async fn run(conn: &mut MySqlConnection, sql: &str) -> Result<(), sqlx::Error> {
    MySql::script(conn, sql).await
}

/// DDL commits in silence what came before it. The writes after it are not applied, and nobody is
/// told that nothing was.
#[tokio::test]
async fn i4_ddl_inside_is_noticed() {
    let db = Db::<MySql>::with_stock().await;
    let pool = db.pool(1).await;
    for ddl in ["CREATE TABLE other (x BIGINT)", "COMMIT", "BEGIN"] {
        let token = 34 + db.mark().await.unwrap_or(0);
        let holder = claim(token);
        let mut tx = FencedTx::begin(&pool, &holder).await.unwrap();
        set::<MySql>(&mut tx, 1).await.unwrap();
        run(&mut tx, ddl).await.unwrap();
        set::<MySql>(&mut tx, 2).await.unwrap();
        let error = tx.commit().await.unwrap_err();
        assert_eq!(error.kind(), FenceErrorKind::OutcomeUnknown, "{ddl}: {error:?}");
        assert_eq!(holder.state(), ClaimState::Unknown);
        assert_eq!((db.quantity().await, db.mark().await), (1, Some(token)), "{ddl}");
    }
    let mut tx = FencedTx::begin(&pool, &claim(1000)).await.unwrap();
    run(&mut tx, "ROLLBACK").await.unwrap();
    set::<MySql>(&mut tx, 3).await.unwrap();
    let error = tx.commit().await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Contended, "{error:?}");
    assert_eq!(db.quantity().await, 1);
}

/// Interleaving C7: the deadlock victim swallows the error; the next holder takes the mark; the
/// victim writes on.
#[tokio::test]
async fn i1_a_swallowed_deadlock_does_not_write_over_the_next_holder() {
    let db = Db::<MySql>::with_stock().await;
    let (a, b) = (db.pool(1).await, db.pool(1).await);
    let victim = claim(34);
    let mut tx = FencedTx::begin(&a, &victim).await.unwrap();
    set::<MySql>(&mut tx, 34).await.unwrap();
    MySql::spoil(&mut tx, &db).await;
    let mut next = FencedTx::begin(&b, &claim(35)).await.unwrap();
    set::<MySql>(&mut next, 35).await.unwrap();
    next.commit().await.unwrap();
    set::<MySql>(&mut tx, 34).await.unwrap();
    assert_eq!(db.quantity().await, 35, "not by itself");
    let error = tx.commit().await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Contended, "{error:?}");
    assert_eq!(victim.state(), ClaimState::Unspent);
    assert_eq!((db.quantity().await, db.mark().await), (35, Some(35)));
    assert!(FencedTx::begin(&a, &victim).await.unwrap_err().is_stale());
}

/// Case 25: what a stale upsert says of the rows it affected is not asked. Two equal writes, the
/// second of which changes no value of the caller's row, are both accepted.
#[tokio::test]
async fn case_25_counts_of_rows_decide_nothing() {
    let db = Db::<MySql>::with_stock().await;
    let pool = db.pool(1).await;
    for _ in 0..2 {
        let mut tx = FencedTx::begin(&pool, &claim(10)).await.unwrap();
        set::<MySql>(&mut tx, 7).await.unwrap();
        tx.commit().await.unwrap();
    }
    // The slow path is an upsert: in the caller's own transaction it is always taken.
    for (token, verdict) in [(10, true), (3, false), (10, true), (11, true)] {
        let mut tx = pool.begin().await.unwrap();
        let answer = sql::advance(&mut tx, &claim(token)).await.unwrap();
        assert_eq!(answer == fencing::Verdict::Accepted, verdict, "{token}");
        if verdict {
            tx.commit().await.unwrap();
        }
    }
    assert_eq!(db.mark().await, Some(11));
}

/// Case 3: a column that was changed to BIGINT UNSIGNED, and an engine without transactions, are
/// one clear error at start.
#[tokio::test]
async fn case_3_changed_tables_are_named_at_start() {
    for (change, says) in [
        ("MODIFY last_token BIGINT UNSIGNED NOT NULL", "unsigned"),
        ("MODIFY seq BIGINT DEFAULT 1", "nullable"),
        ("ENGINE = MyISAM", "without innodb"),
        ("MODIFY resource VARCHAR(255) NOT NULL", "varchar"),
    ] {
        let db = Db::<MySql>::with_stock().await;
        let pool = db.pool(1).await;
        let mut conn = pool.acquire().await.unwrap();
        run(&mut conn, &format!("ALTER TABLE fencing_marks {change}")).await.unwrap();
        drop(conn);
        for error in [sql::verify(&pool).await.unwrap_err(), sql::migrate(&pool).await.unwrap_err()]
        {
            assert_eq!(error.kind(), MigrateErrorKind::Shape, "{change}: {error:?}");
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}

/// A migration that broke off after some of its tables is run again.
#[tokio::test]
async fn a_migration_that_broke_off_is_finished() {
    let db = Db::<MySql>::empty().await;
    let pool = db.pool(1).await;
    let text = &sql::migrations::<MySql>(&Tables::default())[0].sql;
    let statements: Vec<_> = text.split_inclusive(';').collect();
    for stop in 1..statements.len() {
        let db = Db::<MySql>::empty().await;
        let pool = db.pool(1).await;
        let mut conn = pool.acquire().await.unwrap();
        run(&mut conn, &statements[..stop].concat()).await.unwrap();
        drop(conn);
        sql::migrate(&pool).await.unwrap();
        sql::verify(&pool).await.unwrap();
    }
    assert!(sql::verify(&pool).await.is_err());
}

/// Names are bytes, whatever the character set of the connection, and the mode of the server does
/// not cut them.
#[tokio::test]
async fn case_31_the_character_set_of_the_connection_does_not_matter() {
    let db = Db::<MySql>::with_stock().await;
    let latin = db.options.clone().charset("latin1").collation("latin1_swedish_ci");
    let (latin, utf8) = (db.pool_with(1, latin).await, db.pool(1).await);
    let name = "j\u{f6}b \u{1f512}";
    let held = crate::support::claim_on(name, 34);
    FencedTx::begin(&latin, &held).await.unwrap().commit().await.unwrap();
    let zombie = crate::support::claim_on(name, 33);
    assert!(FencedTx::begin(&utf8, &zombie).await.unwrap_err().is_stale());
    assert_eq!(db.number("SELECT length(resource) FROM fencing_marks").await, Some(9));
}

#[tokio::test]
async fn the_tables_may_lie_in_another_database() {
    let (db, other) = (Db::<MySql>::with_stock().await, Db::<MySql>::empty().await);
    let pool = db.pool(1).await;
    let options = FenceOptions::new().tables(Tables::default().in_schema(&other.name()).unwrap());
    options.migrate(&pool).await.unwrap();
    options.migrate(&pool).await.unwrap();
    options.verify(&pool).await.unwrap();
    let mut tx = options.begin(&pool, &claim(34)).await.unwrap();
    set::<MySql>(&mut tx, 7).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!((db.mark().await, other.mark().await), (None, Some(34)));
}

/// What `docs/sql.md` says a service needs is enough, and less is a misconfiguration.
#[tokio::test]
async fn the_documented_privileges_are_enough() {
    let db = Db::<MySql>::with_stock().await;
    let admin = db.pool(1).await;
    let (role, name) = (format!("r{}", db.name()), db.name());
    let mut conn = admin.acquire().await.unwrap();
    let role_and_grants = format!(
        "CREATE USER {role}@'%';
         GRANT SELECT, UPDATE ON {name}.fencing_marks TO {role}@'%';
         GRANT SELECT ON {name}.fencing_floor TO {role}@'%';
         GRANT SELECT ON {name}.fencing_schema TO {role}@'%';
         GRANT SELECT, UPDATE ON {name}.inventory TO {role}@'%'"
    );
    run(&mut conn, &role_and_grants).await.unwrap();
    let pool = db.pool_with(1, db.options.clone().username(&role)).await;
    let error = FencedTx::begin(&pool, &claim(34)).await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Misconfigured, "{error:?}");
    let rest = format!(
        "GRANT INSERT ON {name}.fencing_marks TO {role}@'%';
         GRANT UPDATE (id) ON {name}.fencing_floor TO {role}@'%'"
    );
    run(&mut conn, &rest).await.unwrap();
    pool.close().await;
    let pool = db.pool_with(1, db.options.clone().username(&role)).await;
    let mut tx = FencedTx::begin(&pool, &claim(34)).await.unwrap();
    set::<MySql>(&mut tx, 7).await.unwrap();
    tx.commit().await.unwrap();
    sql::claim(&pool, &claim(35)).await.unwrap();
    assert!(sql::raise_floor(&pool, claim(1).token()).await.is_err());
    pool.close().await;
    run(&mut conn, &format!("DROP USER {role}@'%'")).await.unwrap();
}
