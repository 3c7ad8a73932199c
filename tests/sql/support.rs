//! What the bodies need of a database, and the harness of each.

use std::future::Future;
use std::time::Duration;

use fencing::sql::{FencedDatabase, migrate};
use fencing::{Claim, Resource, Token};
use sqlx::pool::PoolOptions;
use sqlx::{AssertSqlSafe, Pool};

/// Makes a module for each database, with a test for each body named in it.
macro_rules! on_every_database {
    ($($(#[$meta:meta])* $body:ident),+ $(,)?) => {
        mod sqlite {
            $($(#[$meta])* #[tokio::test] async fn $body() {
                super::$body::<sqlx::Sqlite>().await;
            })+
        }
    };
}
pub(crate) use on_every_database;

/// A database a body can run on.
pub(crate) trait Harness: FencedDatabase<Connection: Send> {
    /// A fresh database, gone when it is dropped.
    type Place: Send + Sync;

    const STOCK: &str = "CREATE TABLE inventory (id BIGINT PRIMARY KEY, quantity BIGINT NOT NULL)";

    fn place() -> impl Future<Output = Self::Place> + Send;

    fn options(place: &Self::Place) -> <Self::Connection as sqlx::Connection>::Options;

    /// Runs a statement without parameters.
    fn run(
        conn: &mut Self::Connection,
        sql: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// The first column of the first row.
    fn number(
        conn: &mut Self::Connection,
        sql: &str,
    ) -> impl Future<Output = Result<Option<i64>, sqlx::Error>> + Send;
}

impl Harness for sqlx::Sqlite {
    type Place = tempfile::TempDir;

    async fn place() -> Self::Place {
        tempfile::tempdir().unwrap()
    }

    fn options(place: &Self::Place) -> sqlx::sqlite::SqliteConnectOptions {
        sqlx::sqlite::SqliteConnectOptions::new()
            .filename(place.path().join("test.db"))
            .create_if_missing(true)
            .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(5))
    }

    async fn run(conn: &mut Self::Connection, sql: &str) -> Result<(), sqlx::Error> {
        sqlx::query(AssertSqlSafe(sql)).execute(conn).await.map(drop)
    }

    async fn number(conn: &mut Self::Connection, sql: &str) -> Result<Option<i64>, sqlx::Error> {
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_optional(conn).await
    }
}

/// A database with the tables of the fence, and one item in stock: 10 pieces of item 1.
pub(crate) struct Db<H: Harness> {
    pub(crate) place: H::Place,
}

impl<H: Harness> Db<H> {
    pub(crate) async fn empty() -> Self {
        Self { place: H::place().await }
    }

    pub(crate) async fn with_stock() -> Self {
        let db = Self::empty().await;
        let pool = db.pool(1).await;
        migrate(&pool).await.unwrap();
        let mut conn = pool.acquire().await.unwrap();
        H::run(&mut conn, H::STOCK).await.unwrap();
        H::run(&mut conn, "INSERT INTO inventory (id, quantity) VALUES (1, 10)").await.unwrap();
        drop(conn);
        pool.close().await;
        db
    }

    pub(crate) async fn pool(&self, max: u32) -> Pool<H> {
        self.pool_with(max, H::options(&self.place)).await
    }

    pub(crate) async fn pool_with(
        &self,
        max: u32,
        options: <H::Connection as sqlx::Connection>::Options,
    ) -> Pool<H> {
        PoolOptions::new()
            .max_connections(max)
            .acquire_timeout(Duration::from_secs(20))
            .connect_with(options)
            .await
            .unwrap()
    }

    /// What another client sees.
    pub(crate) async fn number(&self, sql: &str) -> Option<i64> {
        use sqlx::{ConnectOptions, Connection};
        let mut conn = H::options(&self.place).connect().await.unwrap();
        let number = H::number(&mut conn, sql).await.unwrap();
        conn.close().await.unwrap();
        number
    }

    /// The committed quantity of item 1.
    pub(crate) async fn quantity(&self) -> i64 {
        self.number("SELECT quantity FROM inventory WHERE id = 1").await.unwrap()
    }

    /// The committed mark of the resource of [`claim`].
    pub(crate) async fn mark(&self) -> Option<i64> {
        self.number("SELECT last_token FROM fencing_marks WHERE resource = 'inventory:item:1'")
            .await
    }
}

/// Writes the quantity of item 1.
pub(crate) async fn set<H: Harness>(
    conn: &mut H::Connection,
    quantity: i64,
) -> Result<(), sqlx::Error> {
    H::run(conn, &format!("UPDATE inventory SET quantity = {quantity} WHERE id = 1")).await
}

/// A claim on item 1.
pub(crate) fn claim(token: i64) -> Claim {
    claim_on("inventory:item:1", token)
}

pub(crate) fn claim_on(resource: &str, token: i64) -> Claim {
    Claim::new(Resource::new(resource).unwrap(), Token::new(token).unwrap())
}
