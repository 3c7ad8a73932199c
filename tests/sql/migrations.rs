//! The tables are made once, by whoever comes first, and never by guessing.

use fencing::sql::{
    FenceOptions, FencedTx, MigrateErrorKind, Tables, migrate, migrations, raise_floor, verify,
};
use tokio::task::JoinSet;

use crate::support::{Db, Harness, claim, on_every_database};

on_every_database! {
    a_second_migration_changes_nothing,
    verify_wants_the_tables_and_makes_none,
    many_processes_migrate_at_once,
    another_migrator_may_run_the_text,
    tables_of_a_newer_version_are_left_alone,
    tables_of_somebody_else_are_left_alone,
    a_changed_column_is_named,
    two_sets_of_tables_do_not_touch_each_other,
}

async fn a_second_migration_changes_nothing<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(2).await;
    FencedTx::begin(&pool, &claim(34)).await.unwrap().commit().await.unwrap();
    migrate(&pool).await.unwrap();
    verify(&pool).await.unwrap();
    assert_eq!(db.mark().await, Some(34));
    assert_eq!(db.number("SELECT count(*) FROM fencing_schema").await, Some(1));
}

async fn verify_wants_the_tables_and_makes_none<H: Harness>() {
    let db = Db::<H>::empty().await;
    let pool = db.pool(1).await;
    for _ in 0..2 {
        let error = verify(&pool).await.unwrap_err();
        assert_eq!(error.kind(), MigrateErrorKind::Older { found: 0, known: 1 }, "{error}");
    }
}

async fn many_processes_migrate_at_once<H: Harness>() {
    let db = Db::<H>::empty().await;
    let mut tasks = JoinSet::new();
    for _ in 0..6 {
        let pool = db.pool(1).await;
        tasks.spawn(async move {
            migrate(&pool).await.unwrap();
            verify(&pool).await
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap().unwrap();
    }
    assert_eq!(db.number("SELECT count(*) FROM fencing_schema").await, Some(1));
    assert_eq!(db.number("SELECT count(*) FROM fencing_floor").await, Some(1));
}

async fn another_migrator_may_run_the_text<H: Harness>() {
    let db = Db::<H>::empty().await;
    let pool = db.pool(1).await;
    let mut conn = pool.acquire().await.unwrap();
    for migration in migrations::<H>(&Tables::default()) {
        H::script(&mut conn, &migration.sql).await.unwrap();
    }
    drop(conn);
    verify(&pool).await.unwrap();
    migrate(&pool).await.unwrap();
    FencedTx::begin(&pool, &claim(34)).await.unwrap().commit().await.unwrap();
}

async fn tables_of_a_newer_version_are_left_alone<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    let mut conn = pool.acquire().await.unwrap();
    let newer = "INSERT INTO fencing_schema (version, applied_at) VALUES (99, 0)";
    H::run(&mut conn, newer).await.unwrap();
    drop(conn);
    for error in [migrate(&pool).await.unwrap_err(), verify(&pool).await.unwrap_err()] {
        assert_eq!(error.kind(), MigrateErrorKind::Newer { found: 99, known: 1 }, "{error}");
    }
    let mut conn = pool.acquire().await.unwrap();
    H::run(&mut conn, "DELETE FROM fencing_schema WHERE version = 1").await.unwrap();
    H::run(&mut conn, "UPDATE fencing_schema SET version = 0").await.unwrap();
    drop(conn);
    let error = migrate(&pool).await.unwrap_err();
    assert_eq!(error.kind(), MigrateErrorKind::Foreign, "{error}");
}

async fn tables_of_somebody_else_are_left_alone<H: Harness>() {
    for (table, columns) in [("marks", "x BIGINT"), ("schema", "x BIGINT"), ("audit", "x BIGINT")] {
        let db = Db::<H>::empty().await;
        let pool = db.pool(1).await;
        let mut conn = pool.acquire().await.unwrap();
        H::run(&mut conn, &format!("CREATE TABLE fencing_{table} ({columns})")).await.unwrap();
        drop(conn);
        for error in [migrate(&pool).await.unwrap_err(), verify(&pool).await.unwrap_err()] {
            assert_eq!(error.kind(), MigrateErrorKind::Foreign, "{table}: {error:?}");
            assert!(error.to_string().contains(&format!("table=`fencing_{table}`")), "{error}");
        }
        // Another prefix is the way out.
        let other = FenceOptions::new().tables(Tables::with_prefix("fence2_").unwrap());
        other.migrate(&pool).await.unwrap();
        other.begin(&pool, &claim(34)).await.unwrap().commit().await.unwrap();
    }
}

async fn a_changed_column_is_named<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    let mut conn = pool.acquire().await.unwrap();
    H::run(&mut conn, "ALTER TABLE fencing_marks RENAME COLUMN seq TO seq2").await.unwrap();
    drop(conn);
    for error in [migrate(&pool).await.unwrap_err(), verify(&pool).await.unwrap_err()] {
        assert_eq!(error.kind(), MigrateErrorKind::Shape, "{error:?}");
        assert!(error.to_string().contains("fencing_marks.seq"), "{error}");
    }
    let mut conn = pool.acquire().await.unwrap();
    H::run(&mut conn, "ALTER TABLE fencing_marks RENAME COLUMN seq2 TO seq").await.unwrap();
    H::run(&mut conn, "DELETE FROM fencing_floor").await.unwrap();
    drop(conn);
    assert_eq!(verify(&pool).await.unwrap_err().kind(), MigrateErrorKind::Shape);
    assert!(raise_floor(&pool, claim(1).token()).await.is_err(), "no row, no floor");
}

async fn two_sets_of_tables_do_not_touch_each_other<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    let other = FenceOptions::new().tables(Tables::with_prefix("other_").unwrap());
    other.migrate(&pool).await.unwrap();
    other.verify(&pool).await.unwrap();
    other.begin(&pool, &claim(34)).await.unwrap().commit().await.unwrap();
    assert_eq!(db.mark().await, None);
    FencedTx::begin(&pool, &claim(33)).await.unwrap().commit().await.unwrap();
    let marks = "SELECT last_token FROM other_marks";
    assert_eq!((db.mark().await, db.number(marks).await), (Some(33), Some(34)));
}
