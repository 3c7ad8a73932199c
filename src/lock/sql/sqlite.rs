//! SQLite. `BEGIN IMMEDIATE` takes the write lock of the file: row and floor are locked with it,
//! and the clock of the process is read after.

use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, Sqlite, SqliteConnection, SqlitePool};

use super::backend::{Backend, Found, bind_row, found, higher_token};
use super::error::StepError;
use super::{LockDatabase, SqlLocksError};
use crate::Resource;
use crate::clock::Clock;
use crate::lock::rules::Row;
use crate::sql::tables::Text;

/// A protected handler of the same service may keep the write lock of the file for a while.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// One writes, the others read.
const CONNECTIONS: u32 = 4;

const LOOK: usize = 0;
const WRITE: usize = 1;

impl LockDatabase for Sqlite {}

impl Backend for Sqlite {
    const ONE_WRITER: bool = true;

    const STATEMENTS: &'static [&'static str] = &[
        // The time is the process's own.
        "SELECT f.floor, 0, l.token, l.owner, l.owner_token_hash, l.acquired_at, l.expires_at, \
         l.hold_until, l.released_at \
         FROM {prefix}floor AS f LEFT JOIN {prefix}locks AS l ON l.resource = ?1 WHERE f.id = 1",
        "INSERT INTO {prefix}locks AS l (resource, token, owner, owner_token_hash, acquired_at, \
         expires_at, hold_until, released_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) \
         ON CONFLICT (resource) DO UPDATE SET token = excluded.token, owner = excluded.owner, \
         owner_token_hash = excluded.owner_token_hash, acquired_at = excluded.acquired_at, \
         expires_at = excluded.expires_at, hold_until = excluded.hold_until, \
         released_at = excluded.released_at WHERE l.token <= excluded.token",
    ];

    async fn connect(options: SqliteConnectOptions) -> Result<SqlitePool, SqlLocksError> {
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
        Self::check(&mut first).await?;
        first.close().await?;
        let pool = SqlitePoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(BUSY_TIMEOUT)
            .test_before_acquire(false)
            .connect_with(options.create_if_missing(false))
            .await?;
        Ok(pool)
    }

    /// By <https://sqlite.org/pragma.html#pragma_synchronous>: with a write-ahead log, FULL syncs
    /// each commit; with a rollback journal that is deleted to commit, only EXTRA syncs the
    /// directory too.
    async fn check(conn: &mut SqliteConnection) -> Result<(), SqlLocksError> {
        let file = "SELECT file FROM pragma_database_list WHERE name = 'main'";
        let file: Option<String> = sqlx::query_scalar(file).fetch_one(&mut *conn).await?;
        if file.is_none_or(|file| file.is_empty()) {
            return Err(SqlLocksError::not_durable("it is not in a file"));
        }
        let journal: String =
            sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut *conn).await?;
        let synchronous: i64 =
            sqlx::query_scalar("PRAGMA synchronous").fetch_one(&mut *conn).await?;
        let busy: i64 = sqlx::query_scalar("PRAGMA busy_timeout").fetch_one(&mut *conn).await?;
        let query_only: i64 = sqlx::query_scalar("PRAGMA query_only").fetch_one(conn).await?;
        if query_only != 0 {
            return Err(SqlLocksError::takes_no_writes("set query_only to 0, query_only=`1`"));
        }
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

    async fn lock<'a>(
        conn: &'a mut SqliteConnection,
        text: &'a Text,
        resource: &'a Resource,
        _: bool,
        clock: &'a dyn Clock,
    ) -> Result<Found, StepError> {
        // The file is locked, and with it what is not there.
        Self::look(conn, text, resource, clock).await
    }

    async fn look<'a>(
        conn: &'a mut SqliteConnection,
        text: &'a Text,
        resource: &'a Resource,
        clock: &'a dyn Clock,
    ) -> Result<Found, StepError> {
        let select = sqlx::query_as(text.get(LOOK)).bind(resource.as_str());
        let found = found(select.fetch_optional(conn).await?)?;
        Ok(Found { now: clock.epoch_ms(), ..found })
    }

    async fn write<'a>(
        conn: &'a mut SqliteConnection,
        text: &'a Text,
        resource: &'a Resource,
        row: &'a Row,
    ) -> Result<(), StepError> {
        let write = sqlx::query(text.get(WRITE)).bind(resource.as_str());
        match bind_row!(write, row).execute(conn).await?.rows_affected() {
            1 => Ok(()),
            _ => Err(higher_token()),
        }
    }
}
