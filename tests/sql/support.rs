//! What the bodies need of a database, and the harness of each.

use std::future::Future;
use std::task::Poll;
use std::time::Duration;

use fencing::sql::{FencedDatabase, migrate};
use fencing::{Claim, Resource, Token};
use sqlx::pool::PoolOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Pool};

/// Makes a module for each database, with a test for each body named in it.
macro_rules! on_every_database {
    ($($(#[$meta:meta])* $body:ident),+ $(,)?) => {
        mod sqlite {
            $($(#[$meta])* #[tokio::test] async fn $body() {
                super::$body::<sqlx::Sqlite>().await;
            })+
        }
        mod postgres {
            $($(#[$meta])* #[tokio::test] async fn $body() {
                super::$body::<sqlx::Postgres>().await;
            })+
        }
        mod mysql {
            $($(#[$meta])* #[tokio::test] async fn $body() {
                super::$body::<sqlx::MySql>().await;
            })+
        }
    };
}
pub(crate) use on_every_database;

/// The same for the databases that are servers, lock rows and may be reached through a proxy.
macro_rules! on_every_server {
    ($($(#[$meta:meta])* $body:ident),+ $(,)?) => {
        mod postgres {
            $($(#[$meta])* #[tokio::test] async fn $body() {
                super::$body::<sqlx::Postgres>().await;
            })+
        }
        mod mysql {
            $($(#[$meta])* #[tokio::test] async fn $body() {
                super::$body::<sqlx::MySql>().await;
            })+
        }
    };
}
pub(crate) use on_every_server;

/// The same for bodies that are no futures, where no runtime is at hand.
macro_rules! on_every_database_without_runtime {
    ($($(#[$meta:meta])* $body:ident),+ $(,)?) => {
        mod without_runtime {
            mod sqlite {
                $($(#[$meta])* #[test] fn $body() {
                    super::super::$body::<sqlx::Sqlite>();
                })+
            }
            mod postgres {
                $($(#[$meta])* #[test] fn $body() {
                    super::super::$body::<sqlx::Postgres>();
                })+
            }
            mod mysql {
                $($(#[$meta])* #[test] fn $body() {
                    super::super::$body::<sqlx::MySql>();
                })+
            }
        }
    };
}
pub(crate) use on_every_database_without_runtime;

/// A database a body can run on.
pub(crate) trait Harness: FencedDatabase<Connection: Send> {
    /// A fresh database, gone when it is dropped.
    type Place: Send + Sync;

    /// The shortest lock timeout the database knows, from 100 ms.
    const SHORT: Duration = Duration::from_millis(100);

    const STOCK: &str = "CREATE TABLE inventory (id BIGINT PRIMARY KEY, quantity BIGINT NOT NULL)";

    fn place() -> impl Future<Output = Self::Place> + Send;

    fn options(place: &Self::Place) -> Options<Self>;

    /// It as a program takes it on its command line.
    fn url(place: &Self::Place) -> String;

    /// Runs a statement without parameters.
    fn run(
        conn: &mut Self::Connection,
        sql: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Runs several statements.
    fn script(
        conn: &mut Self::Connection,
        sql: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// The first column of the first row.
    fn number(
        conn: &mut Self::Connection,
        sql: &str,
    ) -> impl Future<Output = Result<Option<i64>, sqlx::Error>> + Send;

    /// Makes the database end or spoil the transaction that is open on the connection.
    async fn spoil(conn: &mut Self::Connection, db: &Db<Self>)
    where
        Self: Sized;
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

    fn url(place: &Self::Place) -> String {
        format!("sqlite:{}", place.path().join("test.db").display())
    }

    async fn run(conn: &mut Self::Connection, sql: &str) -> Result<(), sqlx::Error> {
        sqlx::query(AssertSqlSafe(sql)).execute(conn).await.map(drop)
    }

    async fn script(conn: &mut Self::Connection, sql: &str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.map(drop)
    }

    async fn number(conn: &mut Self::Connection, sql: &str) -> Result<Option<i64>, sqlx::Error> {
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_optional(conn).await
    }

    async fn spoil(conn: &mut Self::Connection, _: &Db<Self>) {
        let duplicate = "INSERT OR ROLLBACK INTO inventory (id, quantity) VALUES (1, 5)";
        Self::run(conn, duplicate).await.unwrap_err();
    }
}

/// The URL of a server to make databases on, out of the environment.
fn server(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run the tests by tests/run, which starts the servers")
    })
}

/// Runs a future to its end where there is no runtime or only one that may not block.
fn block_on(future: impl Future<Output = ()> + Send + 'static) {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(future);
    };
    std::thread::spawn(run).join().unwrap();
}

/// A name that no other test run on the same server has.
fn fresh_name() -> String {
    use std::hash::{BuildHasher, RandomState};
    format!("t{:016x}", RandomState::new().hash_one(()))
}

/// A schema of its own, which all connections have as their default.
pub(crate) struct Schema {
    server: String,
    name: String,
}

impl Drop for Schema {
    fn drop(&mut self) {
        let (server, drop) = (self.server.clone(), format!("DROP SCHEMA {} CASCADE", self.name));
        block_on(async move {
            let mut conn = sqlx::PgConnection::connect(&server).await.unwrap();
            // A test that leaves a transaction open would wait here for itself.
            sqlx::Postgres::run(&mut conn, "SET lock_timeout = '5s'").await.unwrap();
            let _ = sqlx::Postgres::run(&mut conn, &drop).await;
        });
    }
}

impl Harness for sqlx::Postgres {
    type Place = Schema;

    async fn place() -> Schema {
        let schema = Schema { server: server("FENCING_TEST_POSTGRES"), name: fresh_name() };
        let mut conn = sqlx::PgConnection::connect(&schema.server).await.unwrap();
        Self::run(&mut conn, &format!("CREATE SCHEMA {}", schema.name)).await.unwrap();
        schema
    }

    fn options(place: &Schema) -> sqlx::postgres::PgConnectOptions {
        let options: sqlx::postgres::PgConnectOptions = place.server.parse().unwrap();
        options.options([("search_path", &place.name)])
    }

    fn url(place: &Schema) -> String {
        format!("{}?options[search_path]={}", place.server, place.name)
    }

    async fn run(conn: &mut Self::Connection, sql: &str) -> Result<(), sqlx::Error> {
        sqlx::query(AssertSqlSafe(sql)).execute(conn).await.map(drop)
    }

    async fn script(conn: &mut Self::Connection, sql: &str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.map(drop)
    }

    async fn number(conn: &mut Self::Connection, sql: &str) -> Result<Option<i64>, sqlx::Error> {
        let sql = format!("SELECT n::bigint FROM ({sql}) AS q (n)");
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_optional(conn).await
    }

    async fn spoil(conn: &mut Self::Connection, _: &Db<Self>) {
        let duplicate = "INSERT INTO inventory (id, quantity) VALUES (1, 5)";
        Self::run(conn, duplicate).await.unwrap_err();
    }
}

/// A database of its own.
pub(crate) struct Database {
    server: String,
    name: String,
}

impl Drop for Database {
    fn drop(&mut self) {
        let (server, drop) = (self.server.clone(), format!("DROP DATABASE {}", self.name));
        block_on(async move {
            let mut conn = sqlx::MySqlConnection::connect(&server).await.unwrap();
            sqlx::MySql::run(&mut conn, "SET lock_wait_timeout = 5").await.unwrap();
            let _ = sqlx::MySql::run(&mut conn, &drop).await;
        });
    }
}

impl Harness for sqlx::MySql {
    type Place = Database;

    const SHORT: Duration = Duration::from_secs(1);

    async fn place() -> Database {
        let schema = Database { server: server("FENCING_TEST_MYSQL"), name: fresh_name() };
        let mut conn = sqlx::MySqlConnection::connect(&schema.server).await.unwrap();
        Self::run(&mut conn, &format!("CREATE DATABASE {}", schema.name)).await.unwrap();
        schema
    }

    fn options(place: &Database) -> sqlx::mysql::MySqlConnectOptions {
        let options: sqlx::mysql::MySqlConnectOptions = place.server.parse().unwrap();
        options.database(&place.name)
    }

    fn url(place: &Database) -> String {
        let (server, _) = place.server.rsplit_once('/').unwrap();
        format!("{server}/{}", place.name)
    }

    async fn run(conn: &mut Self::Connection, sql: &str) -> Result<(), sqlx::Error> {
        sqlx::query(AssertSqlSafe(sql)).execute(conn).await.map(drop)
    }

    async fn script(conn: &mut Self::Connection, sql: &str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.map(drop)
    }

    async fn number(conn: &mut Self::Connection, sql: &str) -> Result<Option<i64>, sqlx::Error> {
        use sqlx::Row;
        // Unchecked, because some of what is asked for is unsigned.
        let row = sqlx::query(AssertSqlSafe(sql)).fetch_optional(conn).await?;
        row.map(|row| row.try_get_unchecked(0)).transpose()
    }

    /// A deadlock. The victim is the one that has changed fewer rows: ours.
    async fn spoil(conn: &mut Self::Connection, db: &Db<Self>) {
        let mut other = db.options.connect().await.unwrap();
        Self::run(&mut other, "START TRANSACTION").await.unwrap();
        let rows = vec!["(0)"; 100].join(", ");
        Self::run(&mut other, &format!("INSERT INTO ledger (token) VALUES {rows}")).await.unwrap();
        Self::run(&mut other, "INSERT INTO inventory (id, quantity) VALUES (2, 1)").await.unwrap();
        let (ours, theirs) = tokio::join!(
            Self::run(conn, "UPDATE inventory SET quantity = 1 WHERE id = 2"),
            async {
                tokio::time::sleep(Duration::from_millis(100)).await;
                Self::run(&mut other, "UPDATE inventory SET quantity = 1 WHERE id = 1").await
            }
        );
        theirs.unwrap();
        let ours = ours.unwrap_err();
        let number = ours.as_database_error().and_then(|e| e.try_downcast_ref());
        assert_eq!(number.map(sqlx::mysql::MySqlDatabaseError::number), Some(1213));
        other.close().await.unwrap();
    }
}

/// A database that is a server.
pub(crate) trait Server: Harness {
    /// What BEGIN of a fenced transaction has in its text.
    const BEGIN: &str;
    /// What COMMIT looks like on the wire, and nothing else does.
    const COMMIT: &str;
    /// The lock timeout and the idle timeout in force, in milliseconds and seconds.
    const SETTINGS: [&str; 2];
    /// Sets both on a connection, to something that nobody else would.
    const SET_SETTINGS: &str;
    /// A level above the default of fenced transactions, for the next transaction by hand.
    const BEGIN_REPEATABLE_READ: &str;
    /// Makes all transactions of the connection read-only.
    const READ_ONLY: &str;
    /// A number by which the connection can be killed, and the statement that kills it.
    const ID: &str;
    const KILL: &str;

    fn through(options: Options<Self>, port: u16) -> Options<Self>;
    fn port(options: &Options<Self>) -> u16;
}

impl Server for sqlx::Postgres {
    const BEGIN: &str = "BEGIN ISOLATION";
    const COMMIT: &str = "COMMIT\0";
    const SETTINGS: [&str; 2] = [
        "SELECT setting::bigint FROM pg_settings WHERE name = 'lock_timeout'",
        "SELECT setting::bigint FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'",
    ];
    const SET_SETTINGS: &str =
        "SET lock_timeout = 77; SET idle_in_transaction_session_timeout = 7777";
    const BEGIN_REPEATABLE_READ: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ";
    const READ_ONLY: &str = "SET default_transaction_read_only = on";
    const ID: &str = "SELECT pg_backend_pid()";
    const KILL: &str = "SELECT pg_terminate_backend({})";

    fn through(options: Options<Self>, port: u16) -> Options<Self> {
        options.port(port)
    }

    fn port(options: &Options<Self>) -> u16 {
        options.get_port()
    }
}

impl Server for sqlx::MySql {
    const BEGIN: &str = "START TRANSACTION";
    const COMMIT: &str = "\x03COMMIT";
    const SETTINGS: [&str; 2] = [
        "SELECT @@SESSION.innodb_lock_wait_timeout",
        "SELECT /*M! @@SESSION.idle_write_transaction_timeout */ /*!50700 @@SESSION.wait_timeout */",
    ];
    const SET_SETTINGS: &str = "SET SESSION innodb_lock_wait_timeout = 77
        /*M! , SESSION idle_write_transaction_timeout = 777 */ /*!50700 , SESSION wait_timeout = 777 */";
    const BEGIN_REPEATABLE_READ: &str = "START TRANSACTION";
    const READ_ONLY: &str = "SET SESSION TRANSACTION READ ONLY";
    const ID: &str = "SELECT CONNECTION_ID()";
    const KILL: &str = "KILL CONNECTION {}";

    fn through(options: Options<Self>, port: u16) -> Options<Self> {
        options.port(port)
    }

    fn port(options: &Options<Self>) -> u16 {
        options.get_port()
    }
}

/// A database with the tables of the fence, and one item in stock: 10 pieces of item 1.
pub(crate) struct Db<H: Harness> {
    pub(crate) options: Options<H>,
    place: H::Place,
}

pub(crate) type Options<H> = <<H as sqlx::Database>::Connection as Connection>::Options;

impl<H: Harness> Db<H> {
    pub(crate) async fn empty() -> Self {
        let place = H::place().await;
        Self { options: H::options(&place), place }
    }

    pub(crate) async fn with_stock() -> Self {
        let db = Self::empty().await;
        let pool = db.pool(1).await;
        migrate(&pool).await.unwrap();
        let mut conn = pool.acquire().await.unwrap();
        H::run(&mut conn, H::STOCK).await.unwrap();
        H::run(&mut conn, "CREATE TABLE ledger (token BIGINT NOT NULL)").await.unwrap();
        H::run(&mut conn, "INSERT INTO inventory (id, quantity) VALUES (1, 10)").await.unwrap();
        drop(conn);
        pool.close().await;
        db
    }

    pub(crate) fn url(&self) -> String {
        H::url(&self.place)
    }

    pub(crate) async fn connect(&self) -> H::Connection {
        self.options.connect().await.unwrap()
    }

    pub(crate) async fn pool(&self, max: u32) -> Pool<H> {
        self.pool_with(max, self.options.clone()).await
    }

    pub(crate) async fn pool_with(&self, max: u32, options: Options<H>) -> Pool<H> {
        PoolOptions::new()
            .max_connections(max)
            .acquire_timeout(Duration::from_secs(20))
            .connect_with(options)
            .await
            .unwrap()
    }

    /// What another client sees.
    pub(crate) async fn number(&self, sql: &str) -> Option<i64> {
        let mut conn = self.options.connect().await.unwrap();
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

impl Db<sqlx::Postgres> {
    pub(crate) fn name(&self) -> String {
        self.place.name.clone()
    }
}

impl Db<sqlx::MySql> {
    pub(crate) fn name(&self) -> String {
        self.place.name.clone()
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

/// Polls a future `times` times, each time when it has been woken; `None` when it is not done by
/// then. Dropping it after that is a cancellation at the await it stands at.
pub(crate) async fn poll_times<F: Future>(times: usize, future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let mut polled = 0;
    std::future::poll_fn(|cx| {
        if polled == times {
            return Poll::Ready(None);
        }
        polled += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if polled == times => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
