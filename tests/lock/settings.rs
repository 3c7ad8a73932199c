//! Settings of a server under which it may forget, or cannot write.

mod postgres {
    use fencing::lock::{SqlLocks, SqlLocksErrorKind};
    use sqlx::{Connection, Postgres};

    use crate::site::{app, take};
    use crate::support::{Db, Harness};

    /// A schema whose functions are found before those of the catalogue.
    async fn before_the_catalogue(db: &mut Db<Postgres>) {
        let path = format!("{},pg_catalog", db.name());
        db.options = db.options.clone().options([("search_path", path)]);
    }

    async fn run(db: &Db<Postgres>, sql: &str) {
        let mut conn = db.connect().await;
        Postgres::script(&mut conn, sql).await.unwrap();
        conn.close().await.unwrap();
    }

    /// What the server says of itself is put in its mouth: these settings are those of a whole
    /// server, which other tests use meanwhile.
    #[tokio::test]
    async fn i2_a_server_that_does_not_flush_or_is_a_replica_is_refused() {
        let mut db = Db::<Postgres>::empty().await;
        before_the_catalogue(&mut db).await;
        SqlLocks::open(db.options.clone()).await.unwrap();

        run(
            &db,
            "CREATE FUNCTION current_setting(text) RETURNS text LANGUAGE sql AS \
             $$ SELECT CASE $1 WHEN 'fsync' THEN 'off' ELSE pg_catalog.current_setting($1) END $$",
        )
        .await;
        let error = SqlLocks::open(db.options.clone()).await.unwrap_err();
        assert_eq!(error.kind(), SqlLocksErrorKind::NotDurable);
        assert!(error.to_string().contains("set fsync to on"), "{error}");
        run(&db, "DROP FUNCTION current_setting(text)").await;

        run(
            &db,
            "CREATE FUNCTION pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS 'SELECT true'",
        )
        .await;
        let error = SqlLocks::open(db.options.clone()).await.unwrap_err();
        assert_eq!(error.kind(), SqlLocksErrorKind::TakesNoWrites);
        run(&db, "DROP FUNCTION pg_is_in_recovery()").await;

        let read_only = db.options.clone().options([("default_transaction_read_only", "on")]);
        let error = SqlLocks::open(read_only).await.unwrap_err();
        assert_eq!(error.kind(), SqlLocksErrorKind::TakesNoWrites);
        assert!(error.to_string().contains("primary"), "{error}");
    }

    /// Where the role or the connection commits without waiting for the disk, a grant does not.
    #[tokio::test]
    async fn i2_a_grant_is_committed_synchronously() {
        let mut db = Db::<Postgres>::empty().await;
        db.options = db.options.clone().options([("synchronous_commit", "off")]);
        let locks = SqlLocks::open(db.options.clone()).await.unwrap();
        // A deferred trigger runs at the commit, and sees what holds there.
        run(
            &db,
            "CREATE TABLE noted (setting text NOT NULL);
             CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 INSERT INTO noted VALUES (current_setting('synchronous_commit'));
                 RETURN NULL;
             END $$;
             CREATE CONSTRAINT TRIGGER note AFTER UPDATE ON fencing_locks
                 DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note()",
        )
        .await;
        let pool = locks.pool().clone();
        let app = app(locks);
        take(&app, "job", "a").await.granted();
        take(&app, "job", "a").await.granted();
        let on = db.number("SELECT count(*) FROM noted WHERE setting = 'on'").await;
        assert_eq!((on, db.number("SELECT count(*) FROM noted").await), (Some(2), Some(2)));
        // The connection is as it was.
        let setting: String =
            sqlx::query_scalar("SHOW synchronous_commit").fetch_one(&pool).await.unwrap();
        assert_eq!(setting, "off");
    }
}
