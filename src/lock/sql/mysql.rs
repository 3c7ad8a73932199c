//! MySQL and MariaDB, with InnoDB.
//!
//! Floor, row and clock are a statement each: within one statement the clock stands still at its
//! beginning, and on MariaDB all locks of a statement are of one kind. At READ COMMITTED each reads
//! what was committed before it, and a locking read what was committed before it got the lock.

use std::collections::HashMap;

use sqlx::mysql::MySqlConnectOptions;
use sqlx::{MySql, MySqlConnection, MySqlPool};

use super::backend::{Backend, Columns, Found, bind_row, found, higher_token, no_floor, row};
use super::connect::connect;
use super::error::StepError;
use super::{LockDatabase, SqlLocksError};
use crate::Resource;
use crate::clock::Clock;
use crate::lock::rules::Row;
use crate::sql::mysql::now;
use crate::sql::tables::Text;

const LOCK_FLOOR: usize = 0;
const LOCK_ROW: usize = 1;
const MAKE: usize = 2;
const NOW: usize = 3;
const LOOK: usize = 4;
const WRITE: usize = 5;

impl LockDatabase for MySql {}

impl Backend for MySql {
    const ONE_WRITER: bool = false;

    const STATEMENTS: &'static [&'static str] = &[
        // A purge or bump writes the floor first.
        "SELECT floor FROM {prefix}floor WHERE id = 1 LOCK IN SHARE MODE",
        "SELECT token, owner, owner_token_hash, acquired_at, expires_at, hold_until, released_at \
         FROM {prefix}locks WHERE resource = ? FOR UPDATE",
        // INSERT IGNORE and a plain INSERT lock a row that is there in share mode, and with many
        // at once nearly every one of them is a deadlock. This locks it for writing.
        "INSERT INTO {prefix}locks (resource, token) VALUES (?, 0) \
         ON DUPLICATE KEY UPDATE token = token",
        concat!("SELECT CAST(", now!(), " AS SIGNED)"),
        concat!(
            "SELECT f.floor, CAST(",
            now!(),
            " AS SIGNED), l.token, l.owner, l.owner_token_hash, l.acquired_at, l.expires_at, \
             l.hold_until, l.released_at FROM {prefix}floor AS f LEFT JOIN {prefix}locks AS l \
             ON l.resource = ? WHERE f.id = 1"
        ),
        // The insert id tells that a row was found. A count of rows would depend on a flag of the
        // connection where the row is written as it was.
        "UPDATE {prefix}locks SET token = LAST_INSERT_ID(?), owner = ?, owner_token_hash = ?, \
         acquired_at = ?, expires_at = ?, hold_until = ?, released_at = ? \
         WHERE resource = ? AND token <= ?",
    ];

    async fn connect(options: MySqlConnectOptions) -> Result<MySqlPool, SqlLocksError> {
        connect(options).await
    }

    /// By <https://dev.mysql.com/doc/refman/8.4/en/innodb-parameters.html> and
    /// <https://mariadb.com/kb/en/innodb-system-variables/>: InnoDB flushes each commit at 1, and
    /// on MariaDB at 3. With a binary log, recovery rolls back what the log does not have, so it
    /// has to be flushed too.
    async fn check(conn: &mut MySqlConnection) -> Result<(), SqlLocksError> {
        let variables = "SHOW GLOBAL VARIABLES WHERE Variable_name IN \
             ('innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog', 'read_only', 'wsrep_on')";
        let found: Vec<(String, String)> = sqlx::query_as(variables).fetch_all(&mut *conn).await?;
        let found: HashMap<_, _> = found.iter().map(|(name, value)| (&**name, &**value)).collect();
        let is_on = |name| found.get(name).is_some_and(|value| matches!(*value, "ON" | "1"));
        let value = |name| found.get(name).copied().unwrap_or_default();
        let flush = value("innodb_flush_log_at_trx_commit");
        if !matches!(flush, "1" | "3") {
            return Err(SqlLocksError::not_durable(format!(
                "set innodb_flush_log_at_trx_commit to 1, \
                 innodb_flush_log_at_trx_commit=`{flush}`"
            )));
        }
        let sync = value("sync_binlog");
        if is_on("log_bin") && sync != "1" {
            return Err(SqlLocksError::not_durable(format!(
                "there is a binary log: set sync_binlog to 1, sync_binlog=`{sync}`"
            )));
        }
        if is_on("read_only") {
            return Err(SqlLocksError::takes_no_writes("use the primary, read_only=`ON`"));
        }
        if is_on("wsrep_on") {
            tracing::warn!(
                "this is a Galera cluster: row locks do not reach other nodes, so all servers of \
                 these locks, and all fenced writes, have to use one and the same node"
            );
        }
        Ok(())
    }

    async fn lock<'a>(
        conn: &'a mut MySqlConnection,
        text: &'a Text,
        resource: &'a Resource,
        make: bool,
        _: &'a dyn Clock,
    ) -> Result<Found, StepError> {
        let name = resource.as_str().as_bytes();
        let floor: Option<i64> =
            sqlx::query_scalar(text.get(LOCK_FLOOR)).fetch_optional(&mut *conn).await?;
        let floor = floor.ok_or_else(no_floor)?;
        let select = || sqlx::query_as(text.get(LOCK_ROW)).bind(name);
        let mut columns: Option<Columns> = select().fetch_optional(&mut *conn).await?;
        if columns.is_none() && make {
            sqlx::query(text.get(MAKE)).bind(name).execute(&mut *conn).await?;
            columns = Some(select().fetch_one(&mut *conn).await?);
        }
        let row = columns.map(row).transpose()?.flatten();
        let now = sqlx::query_scalar(text.get(NOW)).fetch_one(conn).await?;
        Ok(Found { row, floor, now })
    }

    async fn look<'a>(
        conn: &'a mut MySqlConnection,
        text: &'a Text,
        resource: &'a Resource,
        _: &'a dyn Clock,
    ) -> Result<Found, StepError> {
        let select = sqlx::query_as(text.get(LOOK)).bind(resource.as_str().as_bytes());
        found(select.fetch_optional(conn).await?)
    }

    async fn write<'a>(
        conn: &'a mut MySqlConnection,
        text: &'a Text,
        resource: &'a Resource,
        row: &'a Row,
    ) -> Result<(), StepError> {
        let write = bind_row!(sqlx::query(text.get(WRITE)), row)
            .bind(resource.as_str().as_bytes())
            .bind(row.token);
        let written = write.execute(conn).await?;
        if i64::try_from(written.last_insert_id()) == Ok(row.token) {
            Ok(())
        } else {
            Err(higher_token())
        }
    }
}
