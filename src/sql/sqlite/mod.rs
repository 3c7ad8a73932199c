//! SQLite. One writer at a time: `BEGIN IMMEDIATE` takes the write lock of the file, so that the
//! mark cannot change under an open transaction and several statements are as good as one.

mod guard;

use sqlx::error::{BoxDynError, DatabaseError};
use sqlx::{Arguments as _, Connection, SqlStr, Sqlite, SqliteConnection};
use sqlx_core::transaction::TransactionManager;

use self::guard::Guard;
use super::backend::{
    Backend, Class, FencedDatabase, NotCommitted, Route, Stage, Tried, UNCLAIMED, Written,
};
use super::column::Column;
use super::enforce::{self, Refused};
use super::scan::Dialect;
use super::statement::Shape;
use super::tables::{Text, sql};
use super::{Enforce, FenceOptions, Tables};
use crate::{Claim, Resource, Token, Verdict};

type Manager = <Sqlite as sqlx::Database>::TransactionManager;

/// `unixepoch('subsec')` would be shorter, and is NULL before SQLite 3.42.
macro_rules! now {
    () => {
        "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"
    };
}

const RAISE: usize = 0;
const LOOK: usize = 1;
const FIRST: usize = 2;
const LAST_TOKEN: usize = 3;
const FLOOR: usize = 4;
const VERSIONS: usize = 5;
const RAISE_OURS: usize = 6;
const FIRST_OURS: usize = 7;
const UNCLAIM: usize = 8;
const GRANTED: usize = 9;
const SPEND: usize = 10;

macro_rules! raise {
    () => {
        concat!(
            "UPDATE {prefix}marks SET last_token = ?2, seq = seq + 1, updated_at = ",
            now!(),
            " WHERE resource = ?1 AND last_token <= ?2"
        )
    };
}

macro_rules! first {
    () => {
        concat!(
            "INSERT INTO {prefix}marks (resource, last_token, updated_at) VALUES (?1, ?2, ",
            now!(),
            ")"
        )
    };
}

/// For the triggers of enforced tables, where there are any: the claim as a row, if the statement
/// before has written the mark. Both are one call, so it costs next to nothing.
macro_rules! and_permit {
    () => {
        "; INSERT OR REPLACE INTO {prefix}claims (resource, token) SELECT ?1, ?2 \
         FROM {prefix}floor WHERE id = 1 AND enforced = 1 AND changes() > 0"
    };
}

const TEMPLATES: &[&str] = &[
    raise!(),
    "SELECT (SELECT last_token FROM {prefix}marks WHERE resource = ?1), floor \
     FROM {prefix}floor WHERE id = 1",
    first!(),
    "SELECT last_token FROM {prefix}marks WHERE resource = ?1",
    "SELECT floor FROM {prefix}floor WHERE id = 1",
    "SELECT version FROM {prefix}schema ORDER BY version",
    concat!(raise!(), and_permit!()),
    concat!(first!(), and_permit!()),
    "DELETE FROM {prefix}claims",
    "SELECT token FROM {prefix}locks WHERE resource = ?1",
    "UPDATE {prefix}marks SET last_spent = ?2 WHERE resource = ?1 AND last_spent < ?2",
];

/// What a transaction of ours has left on its connection.
#[derive(Debug, Default)]
pub struct Session {
    guard: Guard,
    /// The `busy_timeout` to be restored, in milliseconds.
    busy_timeout: Option<i64>,
    /// Whether a transaction may be open.
    begun: bool,
    /// What takes the claims back that the triggers of enforced tables look for, where some were
    /// made.
    unclaim: Option<SqlStr>,
}

impl Session {
    /// The mark is one row, the permit a second.
    fn note_permit(&mut self, rows: u64, text: &Text) {
        if rows > 1 {
            self.unclaim = Some(text.get(UNCLAIM));
        }
    }
}

impl FencedDatabase for Sqlite {}

impl Backend for Sqlite {
    type Session = Session;

    const SLOT: usize = 0;
    const QUOTE: char = '"';
    const DIALECT: Dialect = Dialect::Sqlite;
    const ONE_TRIP: bool = false;
    const TEMPLATES: &'static [&'static str] = TEMPLATES;
    const MIGRATIONS: &'static [&'static str] = &[include_str!("../schema/sqlite_0001.sql")];
    const TRANSACTIONAL_DDL: bool = true;
    const COLUMNS: &'static [(&'static str, &'static str, &'static str)] = &[
        ("marks", "resource", "TEXT"),
        ("marks", "last_token", "INTEGER"),
        ("marks", "last_spent", "INTEGER"),
        ("marks", "seq", "INTEGER"),
        ("marks", "updated_at", "INTEGER"),
        ("claims", "resource", "TEXT"),
        ("claims", "token", "INTEGER"),
        ("locks", "resource", "TEXT"),
        ("locks", "token", "INTEGER"),
        ("locks", "owner", "TEXT nullable"),
        ("locks", "owner_token_hash", "BLOB nullable"),
        ("locks", "acquired_at", "INTEGER nullable"),
        ("locks", "expires_at", "INTEGER nullable"),
        ("locks", "hold_until", "INTEGER nullable"),
        ("locks", "released_at", "INTEGER nullable"),
        ("floor", "id", "INTEGER"),
        ("floor", "floor", "INTEGER"),
        ("floor", "epoch", "INTEGER"),
        ("floor", "enforced", "INTEGER"),
        ("audit", "id", "INTEGER"),
        ("audit", "at", "INTEGER"),
        ("audit", "event", "TEXT"),
        ("audit", "resource", "TEXT nullable"),
        ("audit", "token", "INTEGER nullable"),
        ("audit", "owner", "TEXT nullable"),
        ("audit", "actor", "TEXT nullable"),
        ("audit", "approved_by", "TEXT nullable"),
        ("audit", "reason", "TEXT nullable"),
        ("schema", "version", "INTEGER"),
        ("schema", "applied_at", "INTEGER"),
    ];

    async fn begin<'a>(
        conn: &'a mut SqliteConnection,
        session: &'a mut Session,
        options: &'a FenceOptions,
    ) -> Result<(), sqlx::Error> {
        if options.tables.schema().is_some() {
            return Err(sqlx::Error::Configuration(
                "sqlite has no schemas: the marks lie in the file of the protected data".into(),
            ));
        }
        session.begun = true;
        if let Some(timeout) = options.lock_timeout {
            let before = sqlx::query_scalar("PRAGMA busy_timeout").fetch_one(&mut *conn).await?;
            session.busy_timeout = Some(before);
            let ms = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX);
            set_busy_timeout(conn, ms).await?;
        }
        session.guard.install(&mut conn.lock_handle().await?);
        let begin = SqlStr::from_static("BEGIN IMMEDIATE");
        Manager::begin(conn, Some(begin)).await?;
        session.guard.open();
        Ok(())
    }

    async fn advance<'a>(
        conn: &'a mut SqliteConnection,
        session: &'a mut Session,
        text: &'a Text,
        claim: &'a Claim,
        _: Route,
    ) -> Result<Verdict, sqlx::Error> {
        let (resource, token) = (claim.resource().as_str(), claim.token());
        // In a transaction of the caller nobody would take the permit back.
        let (raise, first) = match session.begun {
            true => (RAISE_OURS, FIRST_OURS),
            false => (RAISE, FIRST),
        };
        let raised = sqlx::query(text.get(raise))
            .bind(resource)
            .bind(token.get())
            .execute(&mut *conn)
            .await?;
        if raised.rows_affected() > 0 {
            session.note_permit(raised.rows_affected(), text);
            return Ok(Verdict::Accepted);
        }
        // The first statement took the write lock, so nothing changes between the next two.
        let (mark, floor): (Option<i64>, i64) =
            sqlx::query_as(text.get(LOOK)).bind(resource).fetch_one(&mut *conn).await?;
        if let Ok(last_token) = Token::new(mark.unwrap_or(floor))
            && token <= last_token
        {
            return Ok(Verdict::Stale { last_token });
        }
        let made =
            sqlx::query(text.get(first)).bind(resource).bind(token.get()).execute(conn).await?;
        session.note_permit(made.rows_affected(), text);
        Ok(Verdict::Accepted)
    }

    async fn spend<'a>(
        conn: &'a mut SqliteConnection,
        text: &'a Text,
        claim: &'a Claim,
    ) -> Result<bool, sqlx::Error> {
        let spent =
            sqlx::query(text.get(SPEND)).bind(claim.resource().as_str()).bind(claim.token().get());
        Ok(spent.execute(conn).await?.rows_affected() > 0)
    }

    async fn perform(
        conn: &mut SqliteConnection,
        text: SqlStr,
        arguments: Self::Arguments,
    ) -> Result<Written, sqlx::Error> {
        let result = sqlx::query_with(text, arguments).execute(conn).await?;
        Ok(Written { rows: result.rows_affected(), last_insert_id: 0 })
    }

    fn is_bigint(kind: &str) -> bool {
        // What gives a column the affinity INTEGER, <https://sqlite.org/datatype3.html>.
        kind.to_ascii_uppercase().contains("INT")
    }

    fn add(arguments: &mut Self::Arguments, value: i64) -> Result<(), BoxDynError> {
        arguments.add(value)
    }

    const CLOCK_MS: &'static str = now!();
    const LOCK_ROW: &'static str = "";

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
        conn: &mut SqliteConnection,
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
        conn: &mut SqliteConnection,
        text: SqlStr,
        arguments: Self::Arguments,
    ) -> Result<Option<i64>, sqlx::Error> {
        sqlx::query_scalar_with(text, arguments).fetch_optional(conn).await
    }

    async fn column<'a>(
        conn: &'a mut SqliteConnection,
        schema: Option<&'a str>,
        table: &'a str,
        key: &'a str,
        token: &'a str,
    ) -> Result<Option<Column>, sqlx::Error> {
        let found: Option<(String, bool, bool)> = sqlx::query_as(
            "SELECT t.type, t.\"notnull\", EXISTS (SELECT 1 FROM pragma_table_info(?1, ?2) AS k \
             WHERE k.name = ?3 AND k.pk = 1 \
             AND NOT EXISTS (SELECT 1 FROM pragma_table_info(?1, ?2) AS o WHERE o.pk = 2)) \
             OR EXISTS (SELECT 1 FROM pragma_index_list(?1, ?2) AS i \
             WHERE i.\"unique\" AND NOT i.partial \
             AND (SELECT count(*) FROM pragma_index_info(i.name, ?2)) = 1 \
             AND (SELECT name FROM pragma_index_info(i.name, ?2)) = ?3) \
             FROM pragma_table_info(?1, ?2) AS t WHERE t.name = ?4",
        )
        .bind(table)
        .bind(schema.unwrap_or("main"))
        .bind(key)
        .bind(token)
        .fetch_optional(conn)
        .await?;
        Ok(found.map(|(kind, not_null, unique_key)| Column { kind, not_null, unique_key }))
    }

    async fn one_trip<'a>(
        conn: &'a mut SqliteConnection,
        options: &'a FenceOptions,
        claim: &'a Claim,
        shape: &'a Shape,
        arguments: &'a Self::Arguments,
    ) -> Result<Tried, sqlx::Error> {
        let _ = (conn, options, claim, shape, arguments);
        Ok(Tried::NotFresh)
    }

    async fn commit<'a>(
        conn: &'a mut SqliteConnection,
        session: &'a mut Session,
    ) -> Result<(), NotCommitted> {
        if !session.guard.allow_commit() {
            return Err(NotCommitted::Lost);
        }
        if let Some(unclaim) = session.unclaim.take()
            && let Err(error) = sqlx::query(unclaim).execute(&mut *conn).await
        {
            return Err(judge(conn, session, error).await);
        }
        loop {
            match Manager::commit(conn).await {
                // A savepoint that was never released nor rolled back was released.
                Ok(()) if Manager::get_transaction_depth(conn) > 0 => {}
                Ok(()) => break,
                Err(error) => return Err(judge(conn, session, error).await),
            }
        }
        session.guard.retire();
        session.begun = false;
        Ok(())
    }

    async fn reset<'a>(
        conn: &'a mut SqliteConnection,
        session: &'a mut Session,
    ) -> Result<(), sqlx::Error> {
        if session.begun {
            // What was cancelled is still in the queue of the connection's thread. Its count of
            // savepoints is right once the queue is empty.
            conn.ping().await?;
            roll_back(conn).await?;
            // Not earlier: until now a statement in the queue could have committed by itself.
            session.guard.retire();
            session.begun = false;
        }
        if let Some(before) = session.busy_timeout {
            set_busy_timeout(conn, before).await?;
            session.busy_timeout = None;
        }
        Ok(())
    }

    fn can_reset(conn: &mut SqliteConnection, stage: Stage) -> bool {
        if stage == Stage::Ending {
            // sqlx expects this after a COMMIT or ROLLBACK that nobody waited for: if that took
            // effect, it is what this is taken for, and nothing happens. Left out, the next
            // rollback on this connection would be skipped instead.
            Manager::start_rollback(conn);
        }
        true
    }

    async fn last_token<'a>(
        conn: &'a mut SqliteConnection,
        text: &'a Text,
        resource: &'a Resource,
    ) -> Result<Option<i64>, sqlx::Error> {
        sqlx::query_scalar(text.get(LAST_TOKEN)).bind(resource.as_str()).fetch_optional(conn).await
    }

    async fn granted<'a>(
        conn: &'a mut SqliteConnection,
        text: &'a Text,
        resource: &'a Resource,
    ) -> Result<Option<i64>, sqlx::Error> {
        sqlx::query_scalar(text.get(GRANTED)).bind(resource.as_str()).fetch_optional(conn).await
    }

    async fn floor<'a>(
        conn: &'a mut SqliteConnection,
        text: &'a Text,
    ) -> Result<Option<i64>, sqlx::Error> {
        sqlx::query_scalar(text.get(FLOOR)).fetch_optional(conn).await
    }

    async fn enforce<'a>(
        conn: &'a mut SqliteConnection,
        plan: &'a Enforce,
    ) -> Result<Result<Vec<String>, Refused>, sqlx::Error> {
        enforce::sqlite::enforce(conn, plan).await
    }

    async fn unenforce<'a>(
        conn: &'a mut SqliteConnection,
        plan: &'a Enforce,
    ) -> Result<Result<Vec<String>, Refused>, sqlx::Error> {
        let _ = conn;
        Ok(Ok(enforce::sqlite::unenforce(plan)))
    }

    /// By the primary result code, <https://sqlite.org/rescode.html>.
    fn class(error: &dyn DatabaseError) -> Class {
        let code = error.code().and_then(|code| code.parse().ok()).unwrap_or(0);
        match code {
            CONSTRAINT_COMMITHOOK => Class::Contended,
            CONSTRAINT_TRIGGER if error.message().starts_with(UNCLAIMED) => Class::Unclaimed,
            5 => Class::TimedOut,
            code => match code & 0xff {
                // BUSY_SNAPSHOT and others that do not wait, LOCKED
                5 | 6 => Class::Contended,
                // IOERR, FULL: without an open transaction they may come from the commit.
                10 | 13 => Class::Unknown,
                // PERM, READONLY, CORRUPT, CANTOPEN, AUTH, NOTADB
                3 | 8 | 11 | 14 | 23 | 26 => Class::Unavailable,
                // ERROR: no such table, no such column.
                1 => Class::Setup,
                // TOOBIG, CONSTRAINT, MISMATCH, RANGE
                18 | 19 | 20 | 25 => Class::Refused,
                _ => Class::Other,
            },
        }
    }

    async fn lock_migrations<'a>(
        _: &'a mut SqliteConnection,
        _: &'a Tables,
    ) -> Result<(), sqlx::Error> {
        Ok(()) // BEGIN IMMEDIATE does.
    }

    async fn columns<'a>(
        conn: &'a mut SqliteConnection,
        tables: &'a Tables,
    ) -> Result<Vec<(String, String, String)>, sqlx::Error> {
        sqlx::query_as(
            "SELECT t.name, c.name, c.type || iif(c.\"notnull\", '', ' nullable') FROM sqlite_schema AS t, pragma_table_info(t.name) AS c \
             WHERE t.type = 'table' AND substr(t.name, 1, length(?1)) = ?1",
        )
        .bind(tables.prefix())
        .fetch_all(conn)
        .await
    }

    async fn versions<'a>(
        conn: &'a mut SqliteConnection,
        text: &'a Text,
    ) -> Result<Vec<i64>, sqlx::Error> {
        sqlx::query_scalar(text.get(VERSIONS)).fetch_all(conn).await
    }

    async fn execute(conn: &mut SqliteConnection, statements: SqlStr) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(statements).execute(conn).await.map(drop)
    }
}

/// The commit hook said no: the transaction that was to be committed is not ours any more.
const CONSTRAINT_COMMITHOOK: i64 = 531;

/// What `RAISE(ABORT)` is, and how the message of our triggers begins.
const CONSTRAINT_TRIGGER: i64 = 1811;

/// What a failed COMMIT means. Where the transaction is still open it is rolled back first.
async fn judge(
    conn: &mut SqliteConnection,
    session: &mut Session,
    error: sqlx::Error,
) -> NotCommitted {
    let sqlx::Error::Database(database) = &error else { return NotCommitted::Unknown(error) };
    match Sqlite::class(&**database) {
        // "cannot commit - no transaction is active"
        Class::Setup if session.guard.is_dead() => NotCommitted::Lost,
        Class::Contended | Class::TimedOut | Class::Refused => match roll_back(conn).await {
            Ok(()) => NotCommitted::Refused(error),
            Err(_) => NotCommitted::Unknown(error),
        },
        _ => NotCommitted::Unknown(error),
    }
}

/// Rolls back until sqlx counts no transaction. Where SQLite itself rolled back, sqlx still counts
/// one; then one is begun, for the rollback to end.
async fn roll_back(conn: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    loop {
        let depth = Manager::get_transaction_depth(conn);
        if depth == 0 {
            return Ok(());
        }
        if Manager::rollback(conn).await.is_err() {
            let again = match depth {
                1 => SqlStr::from_static("BEGIN"),
                _ => sql(format!("SAVEPOINT _sqlx_savepoint_{}", depth - 1)),
            };
            sqlx::raw_sql(again).execute(&mut *conn).await?;
            Manager::rollback(conn).await?;
        }
    }
}

async fn set_busy_timeout(conn: &mut SqliteConnection, ms: i64) -> Result<(), sqlx::Error> {
    // The argument of a pragma cannot be bound. A C int is all it takes.
    let text = sql(format!("PRAGMA busy_timeout = {}", ms.clamp(0, i64::from(i32::MAX))));
    sqlx::raw_sql(text).execute(conn).await?;
    Ok(())
}
