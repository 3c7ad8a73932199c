//! PostgreSQL. The fast path of a claim is one UPDATE: under READ COMMITTED it waits for whoever
//! holds the row and then looks at what that one committed.

use std::time::Duration;

use sqlx::error::{BoxDynError, DatabaseError};
use sqlx::{Arguments as _, PgConnection, Postgres, SqlStr};
use sqlx_core::transaction::TransactionManager;

use super::backend::{Backend, Class, FencedDatabase, NotCommitted, Route, Stage, Tried, Written};
use super::column::Column;
use super::enforce::{self, Refused};
use super::scan::Dialect;
use super::statement::{self, Shape};
use super::tables::{Text, sql};
use super::{Enforce, FenceOptions, Isolation, Tables};
use crate::{Claim, Resource, Token, Verdict};

type Manager = <Postgres as sqlx::Database>::TransactionManager;

/// `now()` would be the time of BEGIN.
macro_rules! now {
    () => {
        "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
    };
}
#[cfg(feature = "server")]
pub(crate) use now;

const RAISE: usize = 0;
const LAST_TOKEN: usize = 1;
const SHARE_FLOOR: usize = 2;
const FIRST: usize = 3;
const FLOOR: usize = 4;
const VERSIONS: usize = 5;
const GRANTED: usize = 6;
const SPEND: usize = 7;

const TEMPLATES: &[&str] = &[
    concat!(
        "UPDATE {prefix}marks SET last_token = $2, seq = seq + 1, \
         claim_xid = pg_current_xact_id(), updated_at = ",
        now!(),
        " WHERE resource = $1 AND last_token <= $2"
    ),
    "SELECT last_token FROM {prefix}marks WHERE resource = $1",
    "SELECT floor FROM {prefix}floor WHERE id = 1 FOR SHARE",
    concat!(
        "INSERT INTO {prefix}marks AS m (resource, last_token, claim_xid, updated_at) \
         VALUES ($1, $2, pg_current_xact_id(), ",
        now!(),
        ") ON CONFLICT (resource) DO UPDATE SET last_token = $2, seq = m.seq + 1, \
         claim_xid = pg_current_xact_id(), updated_at = ",
        now!(),
        " WHERE m.last_token <= $2 RETURNING last_token"
    ),
    "SELECT floor FROM {prefix}floor WHERE id = 1",
    "SELECT version FROM {prefix}schema ORDER BY version",
    "SELECT token FROM {prefix}locks WHERE resource = $1",
    "UPDATE {prefix}marks SET last_spent = $2 WHERE resource = $1 AND last_spent < $2",
];

impl FencedDatabase for Postgres {}

impl Backend for Postgres {
    /// Settings of the transaction end with it.
    type Session = ();

    const SLOT: usize = 1;
    const QUOTE: char = '"';
    const DIALECT: Dialect = Dialect::Postgres;
    const ONE_TRIP: bool = true;
    const TEMPLATES: &'static [&'static str] = TEMPLATES;
    const MIGRATIONS: &'static [&'static str] = &[include_str!("schema/postgres_0001.sql")];
    const TRANSACTIONAL_DDL: bool = true;
    const COLUMNS: &'static [(&'static str, &'static str, &'static str)] = &[
        ("marks", "resource", "text"),
        ("marks", "last_token", "bigint"),
        ("marks", "last_spent", "bigint"),
        ("marks", "seq", "bigint"),
        ("marks", "claim_xid", "xid8 nullable"),
        ("marks", "updated_at", "bigint"),
        ("locks", "resource", "text"),
        ("locks", "token", "bigint"),
        ("locks", "owner", "text nullable"),
        ("locks", "owner_token_hash", "bytea nullable"),
        ("locks", "acquired_at", "bigint nullable"),
        ("locks", "expires_at", "bigint nullable"),
        ("locks", "hold_until", "bigint nullable"),
        ("locks", "released_at", "bigint nullable"),
        ("floor", "id", "integer"),
        ("floor", "floor", "bigint"),
        ("floor", "epoch", "bigint"),
        ("audit", "id", "bigint"),
        ("audit", "at", "bigint"),
        ("audit", "event", "text"),
        ("audit", "resource", "text nullable"),
        ("audit", "token", "bigint nullable"),
        ("audit", "owner", "text nullable"),
        ("audit", "actor", "text nullable"),
        ("audit", "approved_by", "text nullable"),
        ("audit", "reason", "text nullable"),
        ("schema", "version", "bigint"),
        ("schema", "applied_at", "bigint"),
    ];

    async fn begin<'a>(
        conn: &'a mut PgConnection,
        (): &'a mut (),
        options: &'a FenceOptions,
    ) -> Result<(), sqlx::Error> {
        let level = match options.isolation {
            Isolation::ReadCommitted => "READ COMMITTED",
            Isolation::RepeatableRead => "REPEATABLE READ",
            Isolation::Serializable => "SERIALIZABLE",
        };
        let lock = options.lock_timeout.unwrap_or(FenceOptions::DEFAULT_LOCK_TIMEOUT);
        // One round trip: the simple protocol takes several statements.
        let begin = sql(format!(
            "BEGIN ISOLATION LEVEL {level}; SET LOCAL lock_timeout = {}; \
             SET LOCAL idle_in_transaction_session_timeout = {}",
            milliseconds(lock),
            milliseconds(options.idle_timeout)
        ));
        Manager::begin(conn, Some(begin)).await
    }

    async fn advance<'a>(
        conn: &'a mut PgConnection,
        (): &'a mut (),
        text: &'a Text,
        claim: &'a Claim,
        _: Route,
    ) -> Result<Verdict, sqlx::Error> {
        let (resource, token) = (claim.resource().as_str(), claim.token());
        let raised = sqlx::query(text.get(RAISE))
            .bind(resource)
            .bind(token.get())
            .execute(&mut *conn)
            .await?;
        if raised.rows_affected() > 0 {
            return Ok(Verdict::Accepted);
        }
        if let Some(last_token) = above(conn, text, claim).await? {
            return Ok(Verdict::Stale { last_token });
        }
        // The first claim. A purge lifts the floor before it drops marks, so the floor is held
        // until commit, and looked at before the mark is made.
        let floor: i64 = sqlx::query_scalar(text.get(SHARE_FLOOR)).fetch_one(&mut *conn).await?;
        if let Ok(last_token) = Token::new(floor)
            && token <= last_token
        {
            // Another may have made the mark since.
            let mark = above(conn, text, claim).await?;
            return Ok(Verdict::Stale { last_token: mark.unwrap_or(last_token) });
        }
        let first: Option<i64> = sqlx::query_scalar(text.get(FIRST))
            .bind(resource)
            .bind(token.get())
            .fetch_optional(&mut *conn)
            .await?;
        if first.is_some() {
            return Ok(Verdict::Accepted);
        }
        match above(conn, text, claim).await? {
            Some(last_token) => Ok(Verdict::Stale { last_token }),
            // There was a mark, and it is gone again: deleted by hand.
            None => Err(sqlx::Error::RowNotFound),
        }
    }

    async fn spend<'a>(
        conn: &'a mut PgConnection,
        text: &'a Text,
        claim: &'a Claim,
    ) -> Result<bool, sqlx::Error> {
        let spent =
            sqlx::query(text.get(SPEND)).bind(claim.resource().as_str()).bind(claim.token().get());
        Ok(spent.execute(conn).await?.rows_affected() > 0)
    }

    async fn perform(
        conn: &mut PgConnection,
        text: SqlStr,
        arguments: Self::Arguments,
    ) -> Result<Written, sqlx::Error> {
        let result = sqlx::query_with(text, arguments).execute(conn).await?;
        Ok(Written { rows: result.rows_affected(), last_insert_id: 0 })
    }

    fn add(arguments: &mut Self::Arguments, value: i64) -> Result<(), BoxDynError> {
        arguments.add(value)
    }

    const CLOCK_MS: &'static str = now!();
    const LOCK_ROW: &'static str = " FOR UPDATE";

    fn add_resource(
        arguments: &mut Self::Arguments,
        resource: &Resource,
    ) -> Result<(), BoxDynError> {
        arguments.add(resource.as_str())
    }

    fn add_words(arguments: &mut Self::Arguments, words: Option<&str>) -> Result<(), BoxDynError> {
        arguments.add(words)
    }

    async fn fetch_resources(
        conn: &mut PgConnection,
        text: SqlStr,
        arguments: Self::Arguments,
    ) -> Result<Vec<(Resource, i64)>, sqlx::Error> {
        let rows: Vec<(String, i64)> = sqlx::query_as_with(text, arguments).fetch_all(conn).await?;
        rows.into_iter()
            .map(|(name, token)| match Resource::new(name) {
                Ok(resource) => Ok((resource, token)),
                Err(invalid) => Err(sqlx::Error::Decode(invalid.into())),
            })
            .collect()
    }

    async fn fetch_number(
        conn: &mut PgConnection,
        text: SqlStr,
        arguments: Self::Arguments,
    ) -> Result<Option<i64>, sqlx::Error> {
        sqlx::query_scalar_with(text, arguments).fetch_optional(conn).await
    }

    async fn column<'a>(
        conn: &'a mut PgConnection,
        schema: Option<&'a str>,
        table: &'a str,
        key: &'a str,
        token: &'a str,
    ) -> Result<Option<Column>, sqlx::Error> {
        let name = match schema {
            Some(schema) => format!("\"{schema}\".\"{table}\""),
            None => format!("\"{table}\""),
        };
        let found: Option<(String, bool, bool)> = sqlx::query_as(
            "SELECT format_type(t.atttypid, t.atttypmod), t.attnotnull, EXISTS ( \
             SELECT 1 FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute k \
             ON k.attrelid = i.indrelid AND k.attnum = i.indkey[0] \
             WHERE i.indrelid = t.attrelid AND k.attname = $3 AND i.indisunique AND i.indisvalid \
             AND i.indnkeyatts = 1 AND i.indpred IS NULL) \
             FROM pg_catalog.pg_attribute t WHERE t.attrelid = to_regclass($1) \
             AND t.attname = $2 AND t.attnum > 0 AND NOT t.attisdropped",
        )
        .bind(name)
        .bind(token)
        .bind(key)
        .fetch_optional(conn)
        .await?;
        Ok(found.map(|(kind, not_null, unique_key)| Column { kind, not_null, unique_key }))
    }

    async fn one_trip<'a>(
        conn: &'a mut PgConnection,
        options: &'a FenceOptions,
        claim: &'a Claim,
        shape: &'a Shape,
        arguments: &'a Self::Arguments,
    ) -> Result<Tried, sqlx::Error> {
        statement::postgres::one_trip(conn, options, claim, shape, arguments).await
    }

    async fn commit<'a>(conn: &'a mut PgConnection, (): &'a mut ()) -> Result<(), NotCommitted> {
        // COMMIT of a transaction in which a statement failed is a rollback, and no error. Any
        // other statement fails then. The claim has written, so there is a transaction id.
        let ours = sqlx::query_scalar("SELECT pg_current_xact_id_if_assigned() IS NOT NULL");
        if !ours.fetch_one(&mut *conn).await.map_err(NotCommitted::Refused)? {
            let ended = "a statement of the caller has ended the transaction";
            return Err(NotCommitted::Unknown(sqlx::Error::Protocol(ended.to_owned())));
        }
        // More than once where a savepoint was neither released nor rolled back.
        while Manager::get_transaction_depth(conn) > 0 {
            if let Err(error) = Manager::commit(conn).await {
                return Err(match &error {
                    sqlx::Error::Database(e) if refuses_commit(&code(&**e)) => {
                        NotCommitted::Refused(error)
                    }
                    _ => NotCommitted::Unknown(error),
                });
            }
        }
        Ok(())
    }

    async fn reset<'a>(conn: &'a mut PgConnection, (): &'a mut ()) -> Result<(), sqlx::Error> {
        while Manager::get_transaction_depth(conn) > 0 {
            Manager::rollback(conn).await?;
        }
        Ok(())
    }

    fn can_reset(_: &mut PgConnection, stage: Stage) -> bool {
        // With BEGIN, COMMIT or ROLLBACK in flight sqlx's count of transactions is wrong.
        matches!(stage, Stage::Open | Stage::Reading)
    }

    async fn last_token<'a>(
        conn: &'a mut PgConnection,
        text: &'a Text,
        resource: &'a Resource,
    ) -> Result<Option<i64>, sqlx::Error> {
        sqlx::query_scalar(text.get(LAST_TOKEN)).bind(resource.as_str()).fetch_optional(conn).await
    }

    async fn granted<'a>(
        conn: &'a mut PgConnection,
        text: &'a Text,
        resource: &'a Resource,
    ) -> Result<Option<i64>, sqlx::Error> {
        sqlx::query_scalar(text.get(GRANTED)).bind(resource.as_str()).fetch_optional(conn).await
    }

    async fn floor<'a>(
        conn: &'a mut PgConnection,
        text: &'a Text,
    ) -> Result<Option<i64>, sqlx::Error> {
        sqlx::query_scalar(text.get(FLOOR)).fetch_optional(conn).await
    }

    async fn enforce<'a>(
        conn: &'a mut PgConnection,
        plan: &'a Enforce,
    ) -> Result<Result<Vec<String>, Refused>, sqlx::Error> {
        enforce::postgres::enforce(conn, plan).await
    }

    async fn unenforce<'a>(
        conn: &'a mut PgConnection,
        plan: &'a Enforce,
    ) -> Result<Result<Vec<String>, Refused>, sqlx::Error> {
        enforce::postgres::unenforce(conn, plan).await
    }

    /// By SQLSTATE, <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
    fn class(error: &dyn DatabaseError) -> Class {
        let code = code(error);
        match &*code {
            // serialization_failure, deadlock_detected, query_canceled,
            // idle_in_transaction_session_timeout, transaction_timeout
            "40001" | "40P01" | "57014" | "25P03" | "25P04" => Class::Contended,
            // lock_not_available
            "55P03" => Class::TimedOut,
            // read_only_sql_transaction, cannot_connect_now
            "25006" | "57P03" => Class::Unavailable,
            // statement_completion_unknown
            "40003" => Class::Unknown,
            // undefined_table, undefined_column, insufficient_privilege, invalid_schema_name,
            // invalid_catalog_name
            "42P01" | "42703" | "42501" | "3F000" | "3D000" => Class::Setup,
            UNCLAIMED_STATE => Class::Unclaimed,
            // in_failed_sql_transaction
            "25P02" => Class::Refused,
            code => match code.get(..2) {
                // connection_exception; admin_shutdown and its like
                Some("08") => Class::Unknown,
                Some("57") if code.starts_with("57P") => Class::Unknown,
                // insufficient_resources
                Some("53") => Class::Unavailable,
                // data exceptions, constraints, syntax, check options, raised exceptions
                Some("22" | "23" | "42" | "44" | "P0") => Class::Refused,
                _ => Class::Other,
            },
        }
    }

    async fn lock_migrations<'a>(
        conn: &'a mut PgConnection,
        tables: &'a Tables,
    ) -> Result<(), sqlx::Error> {
        sqlx::query(
            "SELECT pg_advisory_xact_lock(hashtextextended( \
             'fencing:' || coalesce($2, current_schema()) || '.' || $1, 0))",
        )
        .bind(tables.prefix())
        .bind(tables.schema())
        .execute(conn)
        .await
        .map(drop)
    }

    async fn columns<'a>(
        conn: &'a mut PgConnection,
        tables: &'a Tables,
    ) -> Result<Vec<(String, String, String)>, sqlx::Error> {
        // An unlogged table is emptied by a crash: marks would fall.
        sqlx::query_as(
            "SELECT c.relname::text, a.attname::text, format_type(a.atttypid, a.atttypmod) || \
             CASE WHEN a.attnotnull THEN '' ELSE ' nullable' END || CASE c.relpersistence WHEN 'p' THEN '' ELSE ' unlogged' END \
             FROM pg_catalog.pg_class c \
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid \
             WHERE c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped \
             AND starts_with(c.relname::text, $1) \
             AND CASE WHEN $2 IS NULL THEN pg_table_is_visible(c.oid) ELSE n.nspname = $2 END",
        )
        .bind(tables.prefix())
        .bind(tables.schema())
        .fetch_all(conn)
        .await
    }

    async fn versions<'a>(
        conn: &'a mut PgConnection,
        text: &'a Text,
    ) -> Result<Vec<i64>, sqlx::Error> {
        sqlx::query_scalar(text.get(VERSIONS)).fetch_all(conn).await
    }

    async fn execute(conn: &mut PgConnection, statements: SqlStr) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(statements).execute(conn).await.map(drop)
    }
}

/// The mark, where it is above the claim. A statement of its own sees what was committed while the
/// one before it waited.
async fn above(
    conn: &mut PgConnection,
    text: &Text,
    claim: &Claim,
) -> Result<Option<Token>, sqlx::Error> {
    let mark = Postgres::last_token(conn, text, claim.resource()).await?;
    Ok(mark.and_then(|mark| Token::new(mark).ok()).filter(|mark| *mark > claim.token()))
}

fn code(error: &dyn DatabaseError) -> String {
    error.code().map(Into::into).unwrap_or_default()
}

/// Whether COMMIT was refused with this: the codes the server sends only before it has written the
/// commit to its log. `raise_exception` comes from a deferred trigger.
fn refuses_commit(code: &str) -> bool {
    matches!(code, "40001" | "40P01" | "25P02" | "25P03" | "P0001") || code.starts_with("23")
}

/// What the triggers of enforced tables raise, and what `fencing_claim` does: a class that neither the
/// standard nor PostgreSQL uses.
pub(super) const UNCLAIMED_STATE: &str = "FN428";
pub(super) const STALE_STATE: &str = "FN412";

/// For the settings of timeouts, where 0 means none.
pub(super) fn milliseconds(timeout: Duration) -> i32 {
    i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX).max(1)
}
