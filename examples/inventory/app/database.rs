//! Where the service keeps everything: data, marks and locks, all in one database.

use std::sync::Arc;
use std::time::Duration;

use fencing::lock::{LockDatabase, LockStore, SqlLocks};
use fencing::marks::Marks;
use fencing::sql::{FenceOptions, SqlMarks, Tables};
use sqlx::pool::PoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, Pool};

use super::OpenError;
use super::store::{self, Dialect, MySqlStore, PostgresStore, SqliteStore, Store};

pub(super) struct Database {
    pub(super) store: Arc<dyn Store>,
    pub(super) marks: Arc<dyn Marks>,
    pub(super) locks: Arc<dyn LockStore>,
}

/// The kind of database that a URL names.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Sqlite,
    Postgres,
    MySql,
}

impl Kind {
    pub(crate) fn of(url: &str) -> Result<Self, OpenError> {
        // The rest of it may hold a password.
        let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
        match scheme {
            "sqlite" => Ok(Self::Sqlite),
            "postgres" | "postgresql" => Ok(Self::Postgres),
            "mysql" | "mariadb" => Ok(Self::MySql),
            _ => Err(format!(
                "no support for this database: use sqlite:, postgres: or mysql:, scheme=`{scheme}`"
            )
            .into()),
        }
    }
}

impl Database {
    pub(super) async fn open(url: &str, prefix: &str) -> Result<Self, OpenError> {
        match Kind::of(url)? {
            Kind::Sqlite => {
                let options: SqliteConnectOptions = url.parse()?;
                let options = options
                    .create_if_missing(true)
                    .journal_mode(SqliteJournalMode::Wal)
                    .synchronous(SqliteSynchronous::Full)
                    // One writer at a time: a handler that pauses for 8 s in its transaction holds
                    // up every other write to the file, of locks too.
                    .busy_timeout(Duration::from_secs(10));
                Self::over(options, prefix, &store::SQLITE, SqliteStore::open).await
            }
            Kind::Postgres => {
                let options: sqlx::postgres::PgConnectOptions = url.parse()?;
                Self::over(options, prefix, &store::POSTGRES, PostgresStore::open).await
            }
            Kind::MySql => {
                let options: sqlx::mysql::MySqlConnectOptions = url.parse()?;
                Self::over(options, prefix, &store::MYSQL, MySqlStore::open).await
            }
        }
    }

    async fn over<DB: LockDatabase, S: Store>(
        options: <DB::Connection as Connection>::Options,
        prefix: &str,
        dialect: &'static Dialect,
        open: impl AsyncFnOnce(Pool<DB>, FenceOptions, store::Sql) -> Result<S, sqlx::Error>,
    ) -> Result<Self, OpenError> {
        let fence = FenceOptions::new().tables(Tables::with_prefix(&format!("{prefix}fencing_"))?);
        // A pool tries for long to connect, and then does not say why it could not.
        options.connect().await?.close().await?;
        let connect = |connections, options| {
            PoolOptions::<DB>::new()
                .max_connections(connections)
                .acquire_timeout(Duration::from_secs(10))
                .connect_with(options)
        };
        // Apart, so that waiting handlers do not keep a holder from renewing.
        let pool = connect(16, options.clone()).await?;
        let lock_pool = connect(4, options).await?;
        fence.migrate(&pool).await?;
        Ok(Self {
            store: Arc::new(open(pool.clone(), fence.clone(), dialect.with(prefix)).await?),
            marks: Arc::new(SqlMarks::with_options(pool, fence.clone())),
            locks: Arc::new(SqlLocks::with_options(lock_pool, fence).await?),
        })
    }
}
