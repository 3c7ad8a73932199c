//! The tables are made once, by whoever comes first, and never by guessing.

use fencing::sql::{FenceOptions, MigrateErrorKind, Tables, migrate, migrations, verify};

use crate::support::{Db, Harness, on_every_database};

on_every_database! {
    a_second_migration_changes_nothing,
    verify_wants_the_tables_and_makes_none,
}

async fn a_second_migration_changes_nothing<H: Harness>() {
    let db = Db::<H>::empty().await;
    let pool = db.pool(2).await;
    migrate(&pool).await.unwrap();
    migrate(&pool).await.unwrap();
    verify(&pool).await.unwrap();
    let other = FenceOptions::new().tables(Tables::with_prefix("other_").unwrap());
    other.migrate(&pool).await.unwrap();
    other.verify(&pool).await.unwrap();
    assert_eq!(migrations::<H>(&Tables::default()).len(), 1);
}

async fn verify_wants_the_tables_and_makes_none<H: Harness>() {
    let db = Db::<H>::empty().await;
    let pool = db.pool(1).await;
    for _ in 0..2 {
        let error = verify(&pool).await.unwrap_err();
        assert_eq!(error.kind(), MigrateErrorKind::Older { found: 0, known: 1 }, "{error}");
    }
}
