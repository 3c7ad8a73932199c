//! SQLite. `BEGIN IMMEDIATE` takes the write lock of the file: row and floor are locked with it,
//! and the clock of the process is read after.

use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, SqlStr, Sqlite, SqliteConnection};

use super::backend::{Backend, Found, row_and_floor};
use super::{LockDatabase, SqlLocks, SqlLocksError};
use crate::Resource;
use crate::clock::Clock;
use crate::lock::StoreError;
use crate::lock::rules::Row;

/// A protected handler of the same service may keep the write lock of the file for a while.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// One writes, the others read.
const CONNECTIONS: u32 = 4;

impl SqlLocks<Sqlite> {
    /// Locks in an SQLite file, in tables that are made when they are missing.
    ///
    /// A missing file is made only now, and only where `options` say `create_if_missing`: a file
    /// that goes later does not come back empty, with its tokens starting again. The file is set to write-ahead logging, each commit is flushed to the disk, and a step
    /// waits up to 10 s for another writer. Other settings stay as they are in `options`.
    ///
    /// # Errors
    ///
    /// [`SqlLocksError`] when the file cannot be opened or written, has tables of another version,
    /// or lies in memory.
    pub async fn open(options: SqliteConnectOptions) -> Result<Self, SqlLocksError> {
        let options = options
            .journal_mode(SqliteJournalMode::Wal)
            // Where there can be no write-ahead log the mode stays what it was, and then FULL
            // would not be enough: see below.
            .synchronous(SqliteSynchronous::Extra)
            // On macOS a plain fsync leaves the data in the cache of the disk.
            .pragma("fullfsync", "1")
            .pragma("checkpoint_fullfsync", "1")
            .busy_timeout(BUSY_TIMEOUT)
            .disable_statement_logging();
        let mut first = options.connect().await?;
        Sqlite::check_durability(&mut first).await?;
        first.close().await?;
        let pool = SqlitePoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(BUSY_TIMEOUT)
            .test_before_acquire(false)
            .connect_with(options.create_if_missing(false))
            .await?;
        crate::sql::migrate(&pool).await?;
        Self::new(pool).await
    }
}

impl LockDatabase for Sqlite {}

impl Backend for Sqlite {
    const ONE_WRITER: bool = true;

    const READ: &'static str = "SELECT f.floor, l.token, l.owner, l.owner_token_hash, \
         l.acquired_at, l.expires_at, l.hold_until, l.released_at \
         FROM {prefix}floor AS f LEFT JOIN {prefix}locks AS l ON l.resource = ?1 WHERE f.id = 1";

    const WRITE: &'static str = "INSERT INTO {prefix}locks AS l (resource, token, owner, \
         owner_token_hash, acquired_at, expires_at, hold_until, released_at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) \
         ON CONFLICT (resource) DO UPDATE SET token = excluded.token, owner = excluded.owner, \
         owner_token_hash = excluded.owner_token_hash, acquired_at = excluded.acquired_at, \
         expires_at = excluded.expires_at, hold_until = excluded.hold_until, \
         released_at = excluded.released_at WHERE l.token <= excluded.token";

    /// By <https://sqlite.org/pragma.html#pragma_synchronous>: with a write-ahead log, FULL syncs
    /// each commit; with a rollback journal that is deleted to commit, only EXTRA syncs the
    /// directory too.
    async fn check_durability(conn: &mut SqliteConnection) -> Result<(), SqlLocksError> {
        let file = "SELECT file FROM pragma_database_list WHERE name = 'main'";
        let file: Option<String> = sqlx::query_scalar(file).fetch_one(&mut *conn).await?;
        if file.is_none_or(|file| file.is_empty()) {
            return Err(SqlLocksError::not_durable("it is not in a file"));
        }
        let journal: String =
            sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut *conn).await?;
        let synchronous: i64 =
            sqlx::query_scalar("PRAGMA synchronous").fetch_one(&mut *conn).await?;
        let busy: i64 = sqlx::query_scalar("PRAGMA busy_timeout").fetch_one(conn).await?;
        let (least, name) = match journal.as_str() {
            "wal" | "truncate" | "persist" => (2, "FULL"),
            "delete" => (3, "EXTRA"),
            _ => {
                return Err(SqlLocksError::not_durable(format!(
                    "set journal_mode to WAL, journal_mode=`{journal}`"
                )));
            }
        };
        if synchronous < least {
            return Err(SqlLocksError::not_durable(format!(
                "set synchronous to {name}, synchronous=`{synchronous}` journal_mode=`{journal}`"
            )));
        }
        if Duration::from_millis(busy.unsigned_abs()) < BUSY_TIMEOUT {
            tracing::warn!(
                busy_timeout_ms = busy,
                "a step of the locks fails when another writer takes longer than busy_timeout: \
                 10 s is advised"
            );
        }
        Ok(())
    }

    async fn read<'a>(
        conn: &'a mut SqliteConnection,
        text: SqlStr,
        resource: &'a Resource,
    ) -> Result<(Option<Row>, i64), StoreError> {
        let found: Option<Found> = sqlx::query_as(text)
            .bind(resource.as_str())
            .fetch_optional(conn)
            .await
            .map_err(StoreError::new)?;
        row_and_floor(found)
    }

    async fn now<'a>(_: &'a mut SqliteConnection, clock: &'a dyn Clock) -> Result<i64, StoreError> {
        Ok(clock.epoch_ms())
    }

    async fn write<'a>(
        conn: &'a mut SqliteConnection,
        text: SqlStr,
        resource: &'a Resource,
        row: &'a Row,
    ) -> Result<(), StoreError> {
        let grant = row.grant.as_ref();
        let written = sqlx::query(text)
            .bind(resource.as_str())
            .bind(row.token)
            .bind(grant.map(|grant| grant.owner.as_str()))
            .bind(grant.map(|grant| grant.owner_token_hash.as_bytes().as_slice()))
            .bind(grant.map(|grant| grant.acquired_at))
            .bind(grant.map(|grant| grant.expires_at))
            .bind(grant.and_then(|grant| grant.hold_until))
            .bind(grant.and_then(|grant| grant.released_at))
            .execute(conn)
            .await
            .map_err(StoreError::new)?;
        match written.rows_affected() {
            1 => Ok(()),
            _ => Err(StoreError::new("the row has a higher token than the one to be written")),
        }
    }
}
