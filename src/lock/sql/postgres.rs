//! PostgreSQL. Floor, row and clock come in one statement, in this order.

use sqlx::postgres::PgConnectOptions;
use sqlx::{PgConnection, PgPool, Postgres};

use super::backend::{Backend, Found, bind_row, found, higher_token};
use super::connect::connect;
use super::error::StepError;
use super::{LockDatabase, SqlLocksError, notify};
use crate::Resource;
use crate::clock::Clock;
use crate::lock::Released;
use crate::lock::rules::Row;
use crate::sql::Tables;
use crate::sql::postgres::now;
use crate::sql::tables::Text;

/// How often a row that is not there is made, in one step. It stays once it is there: a purge
/// waits for the floor.
const TRIES: u32 = 3;

const LOCK: usize = 0;
const MAKE: usize = 1;
const LOOK: usize = 2;
const WRITE: usize = 3;

impl LockDatabase for Postgres {}

impl Backend for Postgres {
    const ONE_WRITER: bool = false;

    const STATEMENTS: &'static [&'static str] = &[
        // A purge or bump writes the floor first, so whoever has locked it sees all of one or
        // waits with it. `l` reads from `f`, so its row is locked when the floor is. A statement
        // that waited looks at what was committed meanwhile, row by row; a row that was made
        // meanwhile it does not see, and then `MAKE` is next. The time is in the list of the
        // outer query, which is computed from rows of `l`: after both locks.
        concat!(
            "WITH f AS MATERIALIZED (SELECT floor FROM {prefix}floor WHERE id = 1 FOR SHARE), \
             l AS MATERIALIZED (SELECT l.* FROM {prefix}locks AS l, f WHERE l.resource = $1 \
             FOR NO KEY UPDATE OF l) \
             SELECT f.floor, ",
            now!(),
            ", l.token, l.owner, l.owner_token_hash, l.acquired_at, l.expires_at, l.hold_until, \
             l.released_at FROM f LEFT JOIN l ON true"
        ),
        // Waits for another that makes it.
        "INSERT INTO {prefix}locks (resource, token) VALUES ($1, 0) ON CONFLICT DO NOTHING",
        concat!(
            "SELECT f.floor, ",
            now!(),
            ", l.token, l.owner, l.owner_token_hash, l.acquired_at, l.expires_at, l.hold_until, \
             l.released_at FROM {prefix}floor AS f LEFT JOIN {prefix}locks AS l \
             ON l.resource = $1 WHERE f.id = 1"
        ),
        // With synchronous_commit off, a crash right after the commit loses it. What is set here
        // holds until the end of the transaction.
        "UPDATE {prefix}locks SET token = $2, owner = $3, owner_token_hash = $4, \
         acquired_at = $5, expires_at = $6, hold_until = $7, released_at = $8 \
         WHERE resource = $1 AND token <= $2 \
         RETURNING CASE current_setting('synchronous_commit') WHEN 'off' \
         THEN set_config('synchronous_commit', 'on', true) END",
    ];

    async fn connect(options: PgConnectOptions) -> Result<PgPool, SqlLocksError> {
        connect(options).await
    }

    /// By <https://www.postgresql.org/docs/current/runtime-config-wal.html>: without fsync a crash
    /// of the machine can lose anything. Of an asynchronous commit [`write`](Self::write) takes
    /// care.
    async fn check(conn: &mut PgConnection) -> Result<(), SqlLocksError> {
        let settings = "SELECT current_setting('fsync'), pg_is_in_recovery(), \
                        current_setting('transaction_read_only')";
        let (fsync, replica, read_only): (String, bool, String) =
            sqlx::query_as(settings).fetch_one(conn).await?;
        if fsync != "on" {
            return Err(SqlLocksError::not_durable(format!("set fsync to on, fsync=`{fsync}`")));
        }
        if replica {
            return Err(SqlLocksError::takes_no_writes(
                "use the primary, pg_is_in_recovery=`true`",
            ));
        }
        if read_only != "off" {
            return Err(SqlLocksError::takes_no_writes(format!(
                "use the primary, transaction_read_only=`{read_only}`"
            )));
        }
        Ok(())
    }

    async fn lock<'a>(
        conn: &'a mut PgConnection,
        text: &'a Text,
        resource: &'a Resource,
        make: bool,
        _: &'a dyn Clock,
    ) -> Result<Found, StepError> {
        for _ in 0..TRIES {
            let select = sqlx::query_as(text.get(LOCK)).bind(resource.as_str());
            let found = found(select.fetch_optional(&mut *conn).await?)?;
            if found.row.is_some() || !make {
                return Ok(found);
            }
            sqlx::query(text.get(MAKE)).bind(resource.as_str()).execute(&mut *conn).await?;
        }
        Err(StepError::other("the row of the lock goes as often as it is made"))
    }

    async fn look<'a>(
        conn: &'a mut PgConnection,
        text: &'a Text,
        resource: &'a Resource,
        _: &'a dyn Clock,
    ) -> Result<Found, StepError> {
        let select = sqlx::query_as(text.get(LOOK)).bind(resource.as_str());
        found(select.fetch_optional(conn).await?)
    }

    const ANNOUNCES: bool = true;

    async fn announce<'a>(
        pool: &'a PgPool,
        tables: &'a Tables,
        origin: &'a str,
        resources: &'a [Resource],
    ) -> Result<(), sqlx::Error> {
        notify::announce(pool, tables, origin, resources).await
    }

    async fn watch<'a>(
        pool: &'a PgPool,
        tables: &'a Tables,
        origin: &'a str,
        released: Released<'a>,
    ) {
        notify::watch(pool, tables, origin, released).await;
    }

    async fn write<'a>(
        conn: &'a mut PgConnection,
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
